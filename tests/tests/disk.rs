//! `capstan attach`, `mount`, `umount`, `detach` and `list`, against `capstan-target`, as a user
//! meets them.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use capstan_initiator::internals::disk::loop_device::LoopDevice;
use capstan_tests::program::{
    Daemon, Machine, complaint, has_disks, own_address, signal, told, tool, utf8,
};
use capstan_tests::wait::wait_until;
use nix::sys::signal::Signal;

const TOOLS: [&str; 2] = ["mkfs.ext4", "e2fsck"];
/// How long anything may take that should take a moment.
const PATIENCE: Duration = Duration::from_secs(30);

/// A file with an empty ext4 file system.
fn ext4_image(dir: &Path, lba_bytes: u32) -> PathBuf {
    let path = dir.join("disk.img");
    File::create(&path).unwrap().set_len(96 << 20).unwrap();
    let block = lba_bytes.max(1024).to_string();
    tool("mkfs.ext4", &["-q", "-b", &block, utf8(&path)]);
    path
}

/// Files of many sizes, with contents that depend on name and place.
fn write_tree(folder: &Path) {
    for number in 0..40_usize {
        let folder = folder.join(format!("folder {}", number % 7));
        fs::create_dir_all(&folder).unwrap();
        let len = number * number * 700;
        let bytes: Vec<u8> = (0..len)
            .map(|at| (at / 256 + at + number).to_le_bytes()[0])
            .collect();
        fs::write(folder.join(format!("file {number}")), bytes).unwrap();
    }
}

/// Every file below `folder` with its contents.
fn read_tree(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(folder).unwrap().to_owned();
                files.push((name, fs::read(&path).unwrap()));
            }
        }
    }
    files.sort();
    files
}

#[test]
fn a_tree_survives_unmounting_and_the_file_system_is_sound() {
    let test = "a_tree_survives_unmounting_and_the_file_system_is_sound";
    if !has_disks(test, &TOOLS) {
        return;
    }
    for lba_bytes in [512, 4096] {
        let dir = tempfile::tempdir().unwrap();
        let image = ext4_image(dir.path(), lba_bytes);
        let at = own_address();
        let daemon = Daemon::start(utf8(&image), lba_bytes, at);
        let machine = Machine::new(at);
        machine.mount(&["-o", "noatime"]);
        let list = machine.list();
        assert_eq!(list[0]["state"], "live");
        assert_eq!(list[0]["lba_bytes"], lba_bytes);
        assert_eq!(list[0]["mount_points"][0], utf8(&machine.mount_point()));
        let device = PathBuf::from(list[0]["device"].as_str().unwrap());
        write_tree(&machine.mount_point());
        let written = read_tree(&machine.mount_point());
        machine.umount();
        machine.assert_clean(&device);
        machine.mount(&[]);
        assert!(read_tree(&machine.mount_point()) == written);
        machine.umount();
        machine.assert_clean(&device);
        drop(daemon);
        tool("e2fsck", &["-fn", utf8(&image)]);
    }
}

#[test]
fn umount_of_the_system_ends_the_volume_too() {
    if !has_disks("umount_of_the_system_ends_the_volume_too", &TOOLS) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = ext4_image(dir.path(), 4096);
    let at = own_address();
    let _daemon = Daemon::start(utf8(&image), 4096, at);
    let machine = Machine::new(at);
    machine.mount(&[]);
    let device = machine.list()[0]["device"].as_str().unwrap().to_owned();
    tool("umount", &[utf8(&machine.mount_point())]);
    wait_until("the process has ended", || machine.list().is_empty());
    machine.assert_clean(Path::new(&device));
}

#[test]
fn a_disk_in_use_is_not_detached() {
    if !has_disks("a_disk_in_use_is_not_detached", &TOOLS) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = ext4_image(dir.path(), 4096);
    let at = own_address();
    let _daemon = Daemon::start(utf8(&image), 4096, at);
    let machine = Machine::new(at);
    let device = machine.attach(&[]);
    let mount_point = machine.mount_point();
    tool("mount", &[utf8(&device), utf8(&mount_point)]);
    let error = complaint(&machine.run("detach", &[utf8(&device)]));
    assert!(error.contains(utf8(&mount_point)), "{error}");
    // Neither does a signal.
    signal(machine.serving_pid(), Signal::SIGTERM);
    thread::sleep(Duration::from_millis(200));
    fs::write(mount_point.join("file"), "still there").unwrap();
    // It was attached by hand, so it is detached by hand.
    let text = told(&machine.run("umount", &[utf8(&mount_point)]));
    assert!(text.contains("stays attached"), "{text}");
    assert_eq!(machine.list().len(), 1);
    told(&machine.run("detach", &[utf8(&device)]));
    machine.assert_clean(&device);
    // Not in use, a signal is enough.
    let device = machine.attach(&[]);
    signal(machine.serving_pid(), Signal::SIGTERM);
    wait_until("the process has ended", || machine.list().is_empty());
    machine.assert_clean(&device);
}

#[test]
fn force_leaves_a_mounted_disk_as_it_is() {
    if !has_disks("force_leaves_a_mounted_disk_as_it_is", &TOOLS) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = ext4_image(dir.path(), 4096);
    let at = own_address();
    let _daemon = Daemon::start(utf8(&image), 4096, at);
    let machine = Machine::new(at);
    machine.mount(&[]);
    let mount_point = machine.mount_point();
    let device = PathBuf::from(machine.list()[0]["device"].as_str().unwrap());
    let serving = machine.serving_pid();
    fs::write(mount_point.join("file"), "not synced yet").unwrap();
    let error = complaint(&machine.run("detach", &["--force", utf8(&device)]));
    assert!(error.contains(utf8(&mount_point)), "{error}");
    assert!(error.contains("nothing was changed"), "{error}");
    assert_eq!(machine.serving_pid(), serving);
    assert_eq!(machine.list()[0]["state"], "live");
    // Nobody uses it: it is unmounted in order, and nothing is lost.
    told(&machine.run("umount", &["--force", utf8(&mount_point)]));
    machine.assert_clean(&device);
    machine.mount(&[]);
    let text = fs::read_to_string(mount_point.join("file")).unwrap();
    assert_eq!(text, "not synced yet");
    machine.umount();
    machine.assert_clean(&device);
}

#[test]
fn a_busy_file_system_is_unmounted_by_force_entirely() {
    let test = "a_busy_file_system_is_unmounted_by_force_entirely";
    if !has_disks(test, &TOOLS) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = ext4_image(dir.path(), 4096);
    let at = own_address();
    let daemon = Daemon::start(utf8(&image), 4096, at);
    let machine = Machine::new(at);
    // By hand, and by `mount`: the disk would stay, or go with its file system.
    for by_hand in [true, false] {
        let mount_point = machine.mount_point();
        if by_hand {
            let device = machine.attach(&[]);
            tool("mount", &[utf8(&device), utf8(&mount_point)]);
        } else {
            machine.mount(&[]);
        }
        let device = PathBuf::from(machine.list()[0]["device"].as_str().unwrap());
        let path = mount_point.join(format!("by hand {by_hand}"));
        fs::write(&path, "written").unwrap();
        let user = File::open(&path).unwrap();
        let error = complaint(&machine.run("umount", &[utf8(&mount_point)]));
        // This process, as the test runs in it.
        let uses = format!(
            "{} is in use by ",
            mount_point.canonicalize().unwrap().display()
        );
        let id = format!("(pid {})", std::process::id());
        let step = format!("capstan umount --force {}", utf8(&mount_point));
        for words in ["busy", &uses, &id, &step] {
            assert!(error.contains(words), "{words}: {error}");
        }
        assert_eq!(machine.list()[0]["state"], "live");
        let output = machine.run("umount", &["--force", utf8(&mount_point)]);
        told(&output);
        let warning = String::from_utf8(output.stderr).unwrap();
        let named = format!("(pid {})", std::process::id());
        assert!(warning.contains(&named), "{warning}");
        let is_there = "what was written to it until now is on the volume";
        assert!(warning.contains(is_there), "{warning}");
        assert_eq!(machine.list().len(), 0);
        drop(user);
        let name = || LoopDevice::open(&device).and_then(|device| device.name());
        wait_until("the disk goes with its last user", || {
            !matches!(name(), Ok(Some(_)))
        });
        machine.assert_clean(&device);
    }
    drop(daemon);
    let fixed = Command::new("e2fsck").args(["-fy", utf8(&image)]).output();
    assert!(matches!(fixed.unwrap().status.code(), Some(0 | 1)));
    // What could be written was.
    let _daemon = Daemon::start(utf8(&image), 4096, at);
    machine.mount(&[]);
    for by_hand in [true, false] {
        let path = machine.mount_point().join(format!("by hand {by_hand}"));
        assert_eq!(fs::read_to_string(path).unwrap(), "written");
    }
    machine.umount();
}

#[test]
fn what_cannot_be_mounted_leaves_nothing_behind() {
    if !has_disks("what_cannot_be_mounted_leaves_nothing_behind", &[]) {
        return;
    }
    let at = own_address();
    let daemon = Daemon::start("ram:16MiB", 4096, at);
    let machine = Machine::new(at);
    let mount_point = machine.mount_point();
    let at = utf8(&mount_point);
    let error = complaint(&machine.run_on_target("mount", &[at]));
    assert!(error.contains("no signature of a file system"), "{error}");
    let error = complaint(&machine.run_on_target("mount", &["--type", "ext4", at]));
    assert!(error.contains("mount -t ext4"), "{error}");
    let error = complaint(&machine.run_on_target("mount", &["/no/such/folder"]));
    assert!(error.contains("mkdir -p /no/such/folder"), "{error}");
    let error = complaint(&machine.run_on_target("attach", &["--nsid", "7"]));
    assert!(error.contains("namespace 7"), "{error}");
    let error = complaint(&machine.run("umount", &[at]));
    assert!(error.contains("nothing is mounted"), "{error}");
    let error = complaint(&machine.run("detach", &["/dev/null"]));
    assert!(error.contains("no volume of capstan"), "{error}");
    drop(daemon);
    let error = complaint(&machine.run_on_target("attach", &[]));
    assert!(error.contains("nothing listens there"), "{error}");
    machine.assert_clean(Path::new("/dev/loop-none"));
}

#[test]
fn a_read_only_disk_is_read_only() {
    if !has_disks("a_read_only_disk_is_read_only", &TOOLS) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = ext4_image(dir.path(), 4096);
    let before = fs::read(&image).unwrap();
    let at = own_address();
    let daemon = Daemon::start(utf8(&image), 4096, at);
    let machine = Machine::new(at);
    machine.mount(&["--read-only"]);
    assert!(fs::write(machine.mount_point().join("file"), "x").is_err());
    let device = machine.list()[0]["device"].as_str().unwrap().to_owned();
    // Some kernels refuse to open it, others to write.
    let disk = File::options().write(true).open(&device);
    assert!(disk.and_then(|disk| disk.write_at(&[7; 4096], 0)).is_err());
    machine.umount();
    machine.assert_clean(Path::new(&device));
    drop(daemon);
    assert!(fs::read(&image).unwrap() == before, "the image has changed");
}

#[test]
fn when_the_serving_process_is_killed_io_fails_and_everything_is_cleaned_up() {
    let test = "when_the_serving_process_is_killed_io_fails_and_everything_is_cleaned_up";
    if !has_disks(test, &TOOLS) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = ext4_image(dir.path(), 4096);
    let at = own_address();
    let daemon = Daemon::start(utf8(&image), 4096, at);
    let machine = Machine::new(at);
    machine.mount(&[]);
    let device = machine.list()[0]["device"].as_str().unwrap().to_owned();
    let busy = {
        let path = machine.mount_point().join("file");
        thread::spawn(move || {
            let file = File::create(path).unwrap();
            // Ends with an error, or with the test.
            (0_u64..)
                .find_map(|at| {
                    let written = file.write_all_at(&[7; 65536], at % 64 * 65536);
                    written.and_then(|()| file.sync_data()).err()
                })
                .unwrap()
        })
    };
    thread::sleep(Duration::from_millis(300));
    signal(machine.serving_pid(), Signal::SIGKILL);
    let error = busy.join().unwrap();
    // EIO, or EROFS once the file system has noticed.
    assert!(
        [Some(5), Some(30)].contains(&error.raw_os_error()),
        "{error}"
    );
    // Dying takes a process with locked memory a moment.
    wait_until("the process is dead", || {
        machine.list()[0]["state"] == "dead"
    });
    let mount_point = machine.mount_point();
    let error = complaint(&machine.run("umount", &[utf8(&mount_point)]));
    assert!(error.contains("not everything could be written"), "{error}");
    machine.assert_clean(Path::new(&device));
    // A disk that is not mounted is cleaned up by looking.
    let device = machine.attach(&[]);
    signal(machine.serving_pid(), Signal::SIGKILL);
    wait_until("the disk is cleaned up", || machine.list().is_empty());
    machine.assert_clean(&device);
    // The journal makes good what was cut off.
    drop(daemon);
    let fixed = Command::new("e2fsck").args(["-fy", utf8(&image)]).output();
    assert!(matches!(fixed.unwrap().status.code(), Some(0 | 1)));
}

#[test]
fn a_lost_target_is_told_and_io_fails_in_the_end() {
    if !has_disks("a_lost_target_is_told_and_io_fails_in_the_end", &[]) {
        return;
    }
    let at = own_address();
    let daemon = Daemon::start("ram:16MiB", 4096, at);
    let machine = Machine::new(at);
    let device = machine.attach(&["--ctrl-loss-tmo", "5"]);
    daemon.kill();
    wait_until("it says reconnecting", || {
        machine.list()[0]["state"] == "reconnecting"
    });
    assert!(machine.list()[0]["attempt"].as_u64().unwrap() >= 1);
    let text = told(&machine.run("list", &[]));
    for words in ["reconnecting: attempt ", ", I/O fails in "] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert!(!text.contains("does not take it back"), "{text}");
    let reading = Instant::now();
    let error = read_fails(&device);
    assert!(error.contains("Input/output error"), "{error}");
    assert!(reading.elapsed() < PATIENCE);
    assert_eq!(machine.list()[0]["state"], "lost");
    told(&machine.run("detach", &[utf8(&device)]));
    machine.assert_clean(&device);
}

#[test]
fn a_disk_whose_namespace_is_another_one_says_so() {
    if !has_disks("a_disk_whose_namespace_is_another_one_says_so", &[]) {
        return;
    }
    let at = own_address();
    let daemon = Daemon::start("ram:16MiB", 4096, at);
    let machine = Machine::new(at);
    let device = machine.attach(&[]);
    assert_eq!(machine.list()[0]["attention"], serde_json::Value::Null);
    daemon.kill();
    // Another memory, and empty.
    let _daemon = Daemon::start("ram:16MiB", 4096, at);
    wait_until("the disk says that it is refused", || {
        machine.list()[0]["attention"].is_string()
    });
    let volume = &machine.list()[0];
    let detail = volume["detail"].as_str().unwrap();
    assert!(
        detail.contains("refused: namespace 1 is not the one it was"),
        "{detail}"
    );
    assert_eq!(volume["state"], "refused");
    let text = told(&machine.run("list", &[]));
    assert!(text.contains("refused, see below"), "{text}");
    assert!(
        text.contains(&format!("{}: refused", utf8(&device))),
        "{text}"
    );
    let log = fs::read_to_string(machine.path("run/0/log")).unwrap();
    let errors: Vec<_> = log.lines().filter(|line| line.contains("ERROR")).collect();
    let told_once = errors
        .iter()
        .filter(|line| line.contains("refused: namespace 1"));
    assert_eq!(told_once.count(), 1, "{log}");
    told(&machine.run("detach", &[utf8(&device)]));
    machine.assert_clean(&device);
}

#[test]
fn a_reset_and_a_rescan_under_load_lose_nothing() {
    if !has_disks("a_reset_and_a_rescan_under_load_lose_nothing", &[]) {
        return;
    }
    let at = own_address();
    let daemon = Daemon::start("ram:16MiB", 4096, at);
    let machine = Machine::new(at);
    let device = machine.attach(&[]);
    let end = Instant::now() + Duration::from_secs(2);
    let writer = {
        let device = device.clone();
        thread::spawn(move || write_until(&device, 0, end))
    };
    let log = || fs::read_to_string(machine.path("run/0/log")).unwrap();
    let mut resets = 0;
    while Instant::now() < end {
        told(&machine.run("reset", &[utf8(&device)]));
        resets += 1;
        // It is what it says, and not before.
        let count = log()
            .matches("a reset of the controller was asked for")
            .count();
        assert_eq!(count, resets);
        assert!(!log().contains("is lost"), "{}", log());
        assert_eq!(machine.list()[0]["state"], "live");
        told(&machine.run("ns-rescan", &[utf8(&device)]));
        thread::sleep(Duration::from_millis(200));
    }
    assert!(resets > 1, "{resets} resets");
    let versions = writer.join().unwrap();
    let file = File::open(&device).unwrap();
    for (lba, &version) in (0_u64..).zip(&versions) {
        let mut found = vec![0; LBA];
        file.read_exact_at(&mut found, lba * LBA as u64).unwrap();
        let written = version == 0 || found == contents(lba, version);
        assert!(written, "LBA {lba}, version {version}");
    }
    assert!(versions.iter().sum::<u64>() > 100, "{versions:?}");
    // What has it open keeps it.
    drop(file);
    daemon.kill();
    let error = complaint(&machine.run("reset", &[utf8(&device), "--timeout", "1"]));
    assert!(error.contains("is not live 1 s after"), "{error}");
    told(&machine.run("detach", &[utf8(&device), "--force"]));
    let error = complaint(&machine.run("reset", &[utf8(&device)]));
    assert!(error.contains("no volume of capstan"), "{error}");
}

/// What dd says to a disk whose first LBA cannot be read.
fn read_fails(device: &Path) -> String {
    let mut dd = Command::new("dd");
    dd.args(["of=/dev/null", "iflag=direct", "bs=4096", "count=1"])
        .arg(format!("if={}", utf8(device)));
    complaint(&dd.output().expect("dd runs"))
}

#[test]
fn an_idle_disk_keeps_its_association() {
    if !has_disks("an_idle_disk_keeps_its_association", &[]) {
        return;
    }
    let at = own_address();
    let _daemon = Daemon::start("ram:16MiB", 4096, at);
    let machine = Machine::new(at);
    let device = machine.attach(&["--keep-alive-tmo", "1"]);
    thread::sleep(Duration::from_secs(5));
    let log = fs::read_to_string(machine.path("run/0/log")).unwrap();
    assert!(!log.contains("lost"), "{log}");
    told(&machine.run("detach", &[utf8(&device)]));
    machine.assert_clean(&device);
}

/// LBAs of one writer, and bytes of an LBA.
const AREA: u64 = 256;
const LBA: usize = 4096;

/// What LBA `lba` holds after its `version`th write.
fn contents(lba: u64, version: u64) -> Vec<u8> {
    [lba.to_le_bytes(), version.to_le_bytes()]
        .concat()
        .repeat(LBA / 16)
}

#[test]
fn a_target_that_is_killed_and_started_again_loses_nothing() {
    let test = "a_target_that_is_killed_and_started_again_loses_nothing";
    if !has_disks(test, &[]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("disk.img");
    File::create(&image).unwrap().set_len(16 << 20).unwrap();
    let at = own_address();
    let mut daemon = Some(Daemon::start(utf8(&image), 4096, at));
    let machine = Machine::new(at);
    let device = machine.attach(&[]);
    let end = Instant::now() + Duration::from_secs(6);
    let writers: Vec<_> = (0..3_u64)
        .map(|writer| {
            let device = device.clone();
            thread::spawn(move || write_until(&device, writer * AREA, end))
        })
        .collect();
    for _ in 0..3 {
        thread::sleep(Duration::from_millis(1200));
        daemon.take().expect("it runs").kill();
        thread::sleep(Duration::from_millis(300));
        daemon = Some(Daemon::start(utf8(&image), 4096, at));
    }
    let versions: Vec<Vec<u64>> = writers.into_iter().map(|w| w.join().unwrap()).collect();
    told(&machine.run("detach", &[utf8(&device)]));
    machine.assert_clean(&device);
    daemon.take().expect("it runs").kill();
    let file = File::open(&image).unwrap();
    for (lba, &version) in (0_u64..).zip(versions.iter().flatten()) {
        let mut found = vec![0; LBA];
        file.read_exact_at(&mut found, lba * LBA as u64).unwrap();
        let expected = if version == 0 {
            vec![0; LBA]
        } else {
            contents(lba, version)
        };
        assert!(found == expected, "LBA {lba}, version {version}");
    }
    let writes: u64 = versions.iter().flatten().sum();
    assert!(writes > 100, "only {writes} writes in six seconds");
}

/// Writes LBAs from `first` on until `end`, each write flushed; gives the version each ended with.
fn write_until(device: &Path, first: u64, end: Instant) -> Vec<u64> {
    let file = File::options().write(true).open(device).unwrap();
    let mut versions = vec![0; usize::try_from(AREA).unwrap()];
    let mut state = first + 1;
    while Instant::now() < end {
        for _ in 0..8 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let at = usize::try_from((state >> 33) % AREA).unwrap();
            versions[at] += 1;
            let lba = first + at as u64;
            file.write_all_at(&contents(lba, versions[at]), lba * LBA as u64)
                .expect("the write ends well on the host");
        }
        file.sync_data().expect("the flush ends well on the host");
    }
    let mut file = file;
    file.flush().unwrap();
    versions
}
