//! What `capstan umount` leaves alone: mounts of others that lie on a volume, other partitions of
//! its disk, swap. And what it says of a file system that lives on.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use capstan_initiator::internals::disk::mounts::mount_at;
use capstan_tests::disks::{in_own_mounts, lost_log};
use capstan_tests::program::{
    Daemon, Machine, complaint, has_disks, own_address, shell, signal, told, tool, utf8,
};
use capstan_tests::wait::wait_until;
use nix::sys::signal::Signal;
use tempfile::TempDir;

const MIB: u64 = 1 << 20;
const LBA: u64 = 4096;

/// A volume of a target.
struct Scene {
    _dir: TempDir,
    _daemon: Daemon,
    machine: Machine,
}

impl Scene {
    fn new(prepare: impl Fn(&Path)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("disk.img");
        File::create(&image).unwrap().set_len(128 * MIB).unwrap();
        prepare(&image);
        let at = own_address();
        Self {
            _daemon: Daemon::start(utf8(&image), 4096, at),
            machine: Machine::new(at),
            _dir: dir,
        }
    }

    /// With a file system; `None` where the machine lacks `tools`, which is said.
    fn ext4(test: &str, tools: &[&str]) -> Option<Self> {
        has_disks(test, tools).then(|| {
            Self::new(|image| {
                tool("mkfs.ext4", &["-q", "-b", "4096", utf8(image)]);
            })
        })
    }

    /// The same, mounted: with its mount point and its disk.
    fn mounted(test: &str, tools: &[&str]) -> Option<(Self, PathBuf, PathBuf)> {
        let scene = Self::ext4(test, tools)?;
        scene.machine.mount(&[]);
        let (point, device) = (scene.machine.mount_point(), scene.device());
        Some((scene, point, device))
    }

    /// Attached, with a file system on each of two partitions, mounted at the machine's mount point
    /// and at the folder that comes with the disk.
    fn partitions() -> (Self, PathBuf, PathBuf) {
        let scene = Self::new(|image| {
            let mut table = vec![0; 512];
            for (entry, start) in table[446..].chunks_mut(16).zip([MIB, 64 * MIB]) {
                let [start, size] = [start, 48 * MIB].map(|bytes| u32::try_from(bytes / LBA));
                entry[4] = 0x83;
                entry[8..12].copy_from_slice(&start.unwrap().to_le_bytes());
                entry[12..].copy_from_slice(&size.unwrap().to_le_bytes());
            }
            table[510..].copy_from_slice(&[0x55, 0xaa]);
            let file = File::options().write(true).open(image).unwrap();
            file.write_all_at(&table, 0).unwrap();
        });
        let disk = scene.machine.attach(&[]);
        let second = scene.folder("second");
        for (number, folder) in [(1, &scene.machine.mount_point()), (2, &second)] {
            let part = partition(&disk, number);
            tool("mkfs.ext4", &["-q", "-b", "4096", utf8(&part)]);
            tool("mount", &[utf8(&part), utf8(folder)]);
        }
        (scene, disk, second)
    }

    fn folder(&self, name: &str) -> PathBuf {
        let path = self.machine.path(name);
        fs::create_dir(&path).unwrap();
        path
    }

    fn device(&self) -> PathBuf {
        PathBuf::from(self.machine.list()[0]["device"].as_str().unwrap())
    }

    /// What `list` says is to be done.
    fn attention(&self) -> String {
        let list = self.machine.list();
        let attention = list[0]["attention"].as_str();
        attention.expect("something is to be done").to_owned()
    }

    fn umount(&self, args: &[&Path]) -> std::process::Output {
        let args: Vec<&str> = args.iter().map(|arg| utf8(arg)).collect();
        self.machine.run("umount", &args)
    }
}

fn partition(disk: &Path, number: u32) -> PathBuf {
    PathBuf::from(format!("{}p{number}", utf8(disk)))
}

/// A shell that waits, once it has said that it does.
fn waiting(command: &mut Command) -> Child {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let stdout = child.stdout.as_mut().unwrap();
    stdout.read_exact(&mut [0]).unwrap();
    child
}

fn end(mut child: Child) {
    drop(child.stdin.take());
    assert!(child.wait().is_ok());
}

const FORCE: &str = "--force";

#[test]
fn what_lies_on_a_volume_of_something_else_is_named_and_left() {
    let test = "what_lies_on_a_volume_of_something_else_is_named_and_left";
    let Some((scene, point, device)) = Scene::mounted(test, &["mkfs.ext4"]) else {
        return;
    };
    let machine = &scene.machine;
    fs::create_dir(point.join("sub")).unwrap();
    for (name, says) in [
        ("", "tmpfs (none) is mounted over that"),
        ("sub", "in it at"),
    ] {
        let other = match name {
            "" => point.clone(),
            name => point.join(name),
        };
        tool("mount", &["-t", "tmpfs", "none", utf8(&other)]);
        fs::write(other.join("precious"), "x").unwrap();
        let step = format!("umount {}", utf8(&other));
        let mut ways = vec![vec![device.as_path()], vec![Path::new(FORCE), &device]];
        if name == "sub" {
            ways.extend([vec![point.as_path()], vec![Path::new(FORCE), &point]]);
        }
        for way in ways {
            let error = complaint(&scene.umount(&way));
            for words in [says, &step, utf8(&device), "nothing was changed"] {
                assert!(error.contains(words), "{way:?}, {words}: {error}");
            }
            assert!(!error.contains(FORCE), "{error}");
            assert_eq!(fs::read_to_string(other.join("precious")).unwrap(), "x");
            assert_eq!(machine.list()[0]["state"], "live");
        }
        told(&shell(&step));
    }
    machine.umount();
    machine.assert_clean(&device);
}

#[test]
fn a_partition_is_unmounted_without_the_others() {
    let test = "a_partition_is_unmounted_without_the_others";
    if !has_disks(test, &["mkfs.ext4"]) {
        return;
    }
    let (scene, disk, second) = Scene::partitions();
    let first = partition(&disk, 1);
    for args in [&[first.as_path()][..], &[Path::new(FORCE), &first]] {
        told(&scene.umount(args));
        let left = scene.machine.list()[0]["mount_points"].clone();
        assert_eq!(left, serde_json::json!([utf8(&second)]));
        let error = complaint(&scene.umount(args));
        for words in ["is not mounted", utf8(&second), utf8(&first)] {
            assert!(error.contains(words), "{words}: {error}");
        }
        tool("mount", &[utf8(&first), utf8(&scene.machine.mount_point())]);
    }
    // The disk is all of them.
    told(&scene.umount(&[&disk]));
    assert_eq!(
        scene.machine.list()[0]["mount_points"],
        serde_json::json!([])
    );
    told(&scene.machine.run("detach", &[utf8(&disk)]));
    scene.machine.assert_clean(&disk);
}

#[test]
fn what_goes_with_a_busy_partition_is_written_and_named() {
    let test = "what_goes_with_a_busy_partition_is_written_and_named";
    if !has_disks(test, &["mkfs.ext4"]) {
        return;
    }
    let (scene, disk, second) = Scene::partitions();
    let machine = &scene.machine;
    let busy = File::create(machine.mount_point().join("busy")).unwrap();
    let data: Vec<u8> = (0..3_000_000_u32).map(|at| at.to_le_bytes()[1]).collect();
    fs::write(second.join("file"), &data).unwrap();
    let output = scene.umount(&[Path::new(FORCE), &machine.mount_point()]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    let named = format!("{} at {}", utf8(&partition(&disk, 2)), utf8(&second));
    for words in [&named, "is on the volume", "(pid "] {
        assert!(said.contains(words), "{words}: {said}");
    }
    drop(busy);
    machine.assert_clean(&disk);
    let disk = machine.attach(&[]);
    tool("mount", &[utf8(&partition(&disk, 2)), utf8(&second)]);
    assert!(fs::read(second.join("file")).unwrap() == data, "it is lost");
    told(&scene.umount(&[&disk]));
    told(&machine.run("detach", &[utf8(&disk)]));
    machine.assert_clean(&disk);
}

#[test]
fn swap_keeps_its_disk() {
    let test = "swap_keeps_its_disk";
    if !has_disks(test, &["mkswap", "swapon", "swapoff"]) {
        return;
    }
    let scene = Scene::new(|_| ());
    let disk = scene.machine.attach(&[]);
    tool("mkswap", &[utf8(&disk)]);
    if let Err(refused) = capstan_tests::disks::run("swapon", &[utf8(&disk)]) {
        eprintln!("SKIPPED {test}: no swap here: {refused}");
        told(&scene.machine.run("detach", &[utf8(&disk)]));
        return;
    }
    let output = scene.umount(&[Path::new(FORCE), &disk]);
    let swaps = fs::read_to_string("/proc/swaps").unwrap();
    let step = format!("swapoff {}", utf8(&disk));
    told(&shell(&step));
    let error = complaint(&output);
    assert!(
        error.contains(&step) && error.contains("nothing was changed"),
        "{error}"
    );
    assert!(swaps.contains(utf8(&disk)), "{swaps}");
    told(&scene.machine.run("detach", &[utf8(&disk)]));
    scene.machine.assert_clean(&disk);
}

#[test]
fn what_is_in_a_folder_that_was_unmounted_lazily_is_named() {
    let test = "what_is_in_a_folder_that_was_unmounted_lazily_is_named";
    let Some(scene) = Scene::ext4(test, &["mkfs.ext4"]) else {
        return;
    };
    let machine = &scene.machine;
    let point = machine.mount_point();
    // By its folder, and by a file.
    for by_file in [false, true] {
        machine.mount(&[]);
        let device = scene.device();
        let mut sh = Command::new("sh");
        let user = if by_file {
            let script = format!("exec 3>{}/file; echo; read -r _", utf8(&point));
            waiting(sh.args(["-c", &script]))
        } else {
            waiting(sh.args(["-c", "echo; read -r _"]).current_dir(&point))
        };
        tool("umount", &["--lazy", utf8(&point)]);
        let named = format!("sh (pid {})", user.id());
        let error = complaint(&scene.umount(&[&point]));
        for said in [scene.attention(), error] {
            assert!(said.contains(&named) && !said.contains(FORCE), "{said}");
        }
        end(user);
        wait_until("the disk goes with it", || machine.list().is_empty());
        machine.assert_clean(&device);
    }
}

#[test]
fn a_disk_given_up_by_force_is_ended_where_it_is_mounted() {
    let test = "a_disk_given_up_by_force_is_ended_where_it_is_mounted";
    let Some((scene, point, device)) = Scene::mounted(test, &["mkfs.ext4", "unshare", "nsenter"])
    else {
        return;
    };
    let machine = &scene.machine;
    let [unshare, own_mounts @ ..] = in_own_mounts(&point);
    let mut container = Command::new(unshare);
    let container = waiting(
        container
            .args(own_mounts)
            .args(["sh", "-c", "echo && read -r _"]),
    );
    told(&scene.umount(&[Path::new(FORCE), &point]));
    let error = complaint(&machine.run_on_target("mount", &[utf8(&point)]));
    let step = format!(
        "nsenter --target {} --mount umount {}",
        container.id(),
        utf8(&point)
    );
    assert!(
        error.contains(&format!("end that first ({step})")),
        "{error}"
    );
    told(&shell(&step));
    machine.assert_clean(&device);
    machine.mount(&[]);
    machine.umount();
    end(container);
    machine.assert_clean(&device);
}

#[test]
fn an_unmount_whose_process_is_stopped_is_ended_as_list_says() {
    let test = "an_unmount_whose_process_is_stopped_is_ended_as_list_says";
    let Some((scene, point, device)) = Scene::mounted(test, &["mkfs.ext4"]) else {
        return;
    };
    let machine = &scene.machine;
    fs::write(point.join("file"), vec![7; 1 << 20]).unwrap();
    signal(machine.serving_pid(), Signal::SIGSTOP);
    let mut umount = machine.command("umount", &[utf8(&point)]);
    let umount = umount.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let mut umount = umount.unwrap();
    wait_until("the mount point is gone", || {
        mount_at(&point).unwrap().is_none()
    });
    signal(umount.id(), Signal::SIGKILL);
    umount.wait().unwrap();
    let attention = scene.attention();
    let go_on = format!(
        "is stopped (`kill -CONT {}` lets it go on)",
        machine.serving_pid()
    );
    assert!(attention.contains(&go_on), "{attention}");
    let (_, step) = attention.rsplit_once(": capstan ").expect("a step");
    let words: Vec<&str> = step.split(' ').collect();
    let error = complaint(&machine.run(words[0], &words[1..]));
    // It is done, and what was not written is told as lost writes are.
    for words in ["is lost", &go_on] {
        assert!(error.contains(words), "{step}, {words}: {error}");
    }
    assert!(lost_log(machine).contains("is lost"));
    machine.assert_clean(&device);
}
