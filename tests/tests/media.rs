//! What others do to the files under a running target, and what its hosts and its operator hear of
//! it: files that grow, are cut, deleted or moved, and file systems that are full.

use std::fs::{self, File, OpenOptions};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread;
use std::time::Duration;

use capstan_initiator::{Controller, IoError};
use capstan_nvme_proto::status::Status;
use capstan_tests::disks::in_own_mounts;
use capstan_tests::host::options;
use capstan_tests::lossy::{is_write_fault, reload};
use capstan_tests::program::{
    Daemon, Machine, has_disks, has_tools, own_address, program, signal, told, tool, utf8,
};
use capstan_tests::target::SUBNQN;
use capstan_tests::wait::wait_until;
use nix::sys::signal::Signal;

const MIB: u64 = 1 << 20;

/// A target's configuration, its only image, and the state folder that it remembers in.
struct Bench {
    folder: tempfile::TempDir,
    at: SocketAddr,
    image: PathBuf,
}

impl Bench {
    fn new(bytes: u64) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let image = folder.path().join("volume.img");
        File::create(&image).unwrap().set_len(bytes).unwrap();
        fs::create_dir(folder.path().join("state")).unwrap();
        let bench = Self {
            at: own_address(),
            image,
            folder,
        };
        bench.configure(Some(""));
        bench
    }

    /// Writes the configuration, with these keys of the namespace, or without the namespace.
    fn configure(&self, keys: Option<&str>) {
        let namespace = keys.map(|keys| {
            let path = self.image.display();
            format!("[[subsystem.namespace]]\nnsid = 1\npath = \"{path}\"\n{keys}\n")
        });
        let toml = format!(
            "[target]\nreactors = 2\nmemory_budget = \"64MiB\"\n[[listener]]\naddress = \"{}\"\nport = {}\n\
             provider = \"iwarp\"\n[[subsystem]]\nnqn = \"{SUBNQN}\"\nallow_any_host = true\n{}",
            self.at.ip(),
            self.at.port(),
            namespace.unwrap_or_default(),
        );
        fs::write(self.config(), toml).unwrap();
    }

    /// The same, for a target that is running.
    fn reload(&self, daemon: &Daemon, keys: Option<&str>) {
        self.configure(keys);
        let known = daemon.log().len();
        signal(daemon.pid(), Signal::SIGHUP);
        daemon.wait_for_log_after(known, &["configuration reloaded"]);
    }

    fn config(&self) -> PathBuf {
        self.folder.path().join("target.toml")
    }

    fn folders(&self) -> [String; 2] {
        let of = |variable, name| format!("{variable}={}", self.folder.path().join(name).display());
        [
            of("STATE_DIRECTORY", "state"),
            of("RUNTIME_DIRECTORY", "run"),
        ]
    }

    fn serve(&self) -> Daemon {
        let [state, run] = self.folders();
        Daemon::serve_under(&["env", &state, &run], &["--config", utf8(&self.config())])
    }

    /// What `capstan-target COMMAND` says of the configuration, on stdout and on stderr.
    fn asked(&self, command: &str) -> Output {
        self.asked_of(command, &["--config", utf8(&self.config())])
    }

    fn asked_of(&self, command: &str, args: &[&str]) -> Output {
        let mut asked = Command::new("env");
        asked.args(self.folders()).arg(program("capstan-target"));
        asked.arg(command).args(args).output().unwrap()
    }

    fn check(&self) -> String {
        told(&self.asked("check"))
    }

    /// The lines of `doctor` that are errors of a medium, with what mends them.
    fn errors_of_media(&self) -> Vec<String> {
        let text = String::from_utf8(self.asked("doctor").stdout).unwrap();
        let lines: Vec<_> = text.lines().collect();
        let is_of_media = |line: &str| {
            ["error    media", "error    lost writes"]
                .iter()
                .any(|start| line.starts_with(start))
        };
        let blocks = lines.windows(3).filter(|block| is_of_media(block[0]));
        blocks.map(|block| block.join("\n")).collect()
    }

    /// Waits for the only such line, with these words.
    fn error_of_media(&self, words: &str) -> String {
        wait_until(words, || {
            self.errors_of_media()
                .iter()
                .any(|error| error.contains(words))
        });
        let mut errors = self.errors_of_media();
        assert_eq!(errors.len(), 1, "{errors:#?}");
        errors.remove(0)
    }

    /// What the SMART / Health log of the namespace warns of, in words.
    fn warns(&self) -> String {
        let (ip, port) = (self.at.ip().to_string(), self.at.port().to_string());
        let target = ["-a", &ip, "-s", &port, "-n", SUBNQN, "-N", "1"];
        let smart = told(&Machine::new(self.at).run("smart-log", &target));
        smart.lines().next().expect("a line").to_owned()
    }

    fn connect(&self) -> Controller {
        let mut options = options(self.at, 1);
        options.reconnect_delay = Duration::from_millis(200);
        Controller::connect(options).expect("connects")
    }

    fn resize(&self, bytes: u64) {
        let file = OpenOptions::new().write(true).open(&self.image).unwrap();
        file.set_len(bytes).unwrap();
    }

    /// Whether a loss is noted in the state folder.
    fn has_note(&self) -> bool {
        self.notes() > 0
    }

    fn notes(&self) -> usize {
        let entries = fs::read_dir(self.folder.path().join("state")).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name());
        names
            .filter(|name| name.to_string_lossy().starts_with("lost-writes-"))
            .count()
    }

    fn len(&self) -> u64 {
        fs::metadata(&self.image).unwrap().len()
    }
}

/// LBA size and LBAs of the only namespace.
fn shape(controller: &Controller) -> (u32, u64) {
    let namespaces = controller.snapshot_blocking().namespaces;
    assert_eq!(namespaces.len(), 1, "{namespaces:?}");
    (namespaces[0].lba_bytes, namespaces[0].nsze_lbas)
}

fn sees(controller: &Controller, lbas: u64) {
    wait_until(&format!("the host sees {lbas} LBAs"), || {
        shape(controller) == (4096, lbas)
    });
}

#[test]
fn the_lba_size_of_an_image_does_not_follow_its_size() {
    let bench = Bench::new(MIB);
    let daemon = bench.serve();
    let controller = bench.connect();
    assert_eq!(shape(&controller), (4096, 256));
    let volume = controller.volume_blocking(1).unwrap().blocking();
    volume.write(0, &[1; 4096]).unwrap();
    controller.close();
    assert!(daemon.stop().success());
    bench.resize(MIB + 1536);
    let checked = bench.check();
    assert!(
        checked.contains("1536 bytes at its end out of reach"),
        "{checked}"
    );
    let daemon = bench.serve();
    let controller = bench.connect();
    assert_eq!(shape(&controller), (4096, 256));
    assert_eq!(daemon.count_log("1536 bytes at its end out of reach"), 1);
    controller.close();
    assert!(daemon.stop().success());
    // The next step that it names.
    tool("truncate", &["--size=%4096", utf8(&bench.image)]);
    assert!(!bench.check().contains("out of reach"));
    // Of an image that an earlier version has used nothing is remembered.
    let bench = Bench::new(MIB + 512);
    fs::write(&bench.image, vec![1; 1024 * 1024 + 512]).unwrap();
    for start in ["first", "second"] {
        let daemon = bench.serve();
        let controller = bench.connect();
        assert_eq!(shape(&controller), (512, 2049), "{start}");
        let told = daemon.count_log("has LBAs of 512 bytes, because it has data on it");
        assert_eq!(told, usize::from(start == "first"), "{:#?}", daemon.log());
        controller.close();
        assert!(daemon.stop().success());
    }
}

#[test]
fn an_image_that_grows_or_is_cut_is_told_to_hosts_and_the_log_without_a_reload() {
    let bench = Bench::new(MIB);
    let daemon = bench.serve();
    let controller = bench.connect();
    bench.resize(2 * MIB);
    sees(&controller, 512);
    daemon.wait_for_log(&[
        "has grown from 1048576 to 2097152 bytes",
        utf8(&bench.image),
    ]);
    let whole = controller.volume_blocking(1).unwrap().blocking();
    whole.write(2 * MIB - 4096, &[2; 4096]).unwrap();
    // Less than an LBA is nothing to hosts.
    bench.resize(2 * MIB + 100);
    daemon.wait_for_log(&["has grown from 2097152 to 2097252 bytes"]);
    assert_eq!(shape(&controller), (4096, 512));

    bench.resize(MIB);
    daemon.wait_for_log(&[
        "ERROR",
        utf8(&bench.image),
        "was cut from 2097252 to 1048576 bytes",
        "truncate --size=2097252 FILE",
    ]);
    sees(&controller, 256);
    let error = whole.write(2 * MIB - 4096, &[3; 4096]).unwrap_err();
    assert!(
        matches!(error, IoError::Status { .. } | IoError::Invalid { .. }),
        "{error}"
    );
    assert_eq!(bench.len(), MIB, "the write did not make it long again");
    whole.write(MIB - 4096, &[4; 4096]).unwrap();
    // A host that connects later sees the same.
    let later = Controller::connect(options(bench.at, 2)).unwrap();
    assert_eq!(shape(&later), (4096, 256));
    later.close();
    // What is lost is lost, also when the file is as long as it was.
    let (ip, port) = (bench.at.ip().to_string(), bench.at.port().to_string());
    let target = ["-t", "rdma", "-a", &ip, "-s", &port, "-n", SUBNQN];
    let smart = [&["smart-log", "-o", "json"], &target[..]].concat();
    let smart = Machine::new(bench.at).run(smart[0], &smart[1..]);
    let smart: serde_json::Value = serde_json::from_str(&told(&smart)).unwrap();
    assert_eq!(smart["critical_warning"], 4, "{smart}");
    bench.resize(2 * MIB + 100);
    sees(&controller, 512);
    let mut read = [9; 4096];
    whole.read(2 * MIB - 4096, &mut read).unwrap();
    assert_eq!(read, [0; 4096]);
    assert_eq!(daemon.count_log("was cut"), 1);
    controller.close();
    assert!(daemon.stop().success());
}

/// Hosts are not told that all is stored between a cut and the next look at sizes, which comes
/// once a second, and a file that is as long as it was again by then has lost it all the same.
#[test]
fn no_flush_succeeds_behind_a_cut_also_where_nothing_has_looked_at_the_size() {
    for back in [false, true] {
        let bench = Bench::new(2 * MIB);
        let daemon = bench.serve();
        let controller = bench.connect();
        let volume = controller.volume_blocking(1).unwrap().blocking();
        volume.write(2 * MIB - 4096, &[5; 4096]).unwrap();
        volume.flush().unwrap();
        bench.resize(MIB);
        is_write_fault(&volume.flush());
        if back {
            bench.resize(2 * MIB);
        }
        let cut = ["ERROR", "was cut from 2097152 to 1048576 bytes"];
        daemon.wait_for_log(&cut);
        is_write_fault(&volume.flush());
        assert_eq!(daemon.count_log("ERROR"), 1, "{:?}", daemon.log());
        controller.close();
        assert!(daemon.stop().success());
    }
}

/// As long as it was again, it looks as if nothing had been cut off.
#[test]
fn a_cut_is_known_to_the_next_target_until_it_is_cleared() {
    let bench = Bench::new(2 * MIB);
    let image = utf8(&bench.image).to_owned();
    let daemon = bench.serve();
    let controller = bench.connect();
    let volume = controller.volume_blocking(1).unwrap().blocking();
    volume.write(2 * MIB - 4096, &[1; 4096]).unwrap();
    volume.flush().unwrap();
    bench.resize(MIB);
    let cut = "was cut from 2097152 to 1048576 bytes";
    daemon.wait_for_log(&["ERROR", &image, cut, "clear-lost-writes"]);
    wait_until("a Flush fails", || volume.flush().is_err());
    wait_until("it is noted", || bench.has_note());
    // What a Flush says of it is no second loss.
    is_write_fault(&volume.flush());
    drop(volume);
    daemon.kill();
    assert_eq!(bench.notes(), 1);
    bench.resize(2 * MIB);
    assert!(bench.check().contains(cut), "{}", bench.check());
    let daemon = bench.serve();
    daemon.wait_for_log(&["ERROR", &image, "has lost writes", cut]);
    let later = Controller::connect(options(bench.at, 2)).unwrap();
    let volume = later.volume_blocking(1).unwrap().blocking();
    is_write_fault(&volume.flush());
    told(&bench.asked_of("clear-lost-writes", &[&image]));
    reload(&daemon, "lost writes cleared of volumes: 1");
    volume.flush().unwrap();
    drop(volume);
    later.close();
    controller.close();
    assert!(daemon.stop().success());
    assert!(!bench.has_note());
}

#[test]
fn growth_to_no_whole_number_of_lbas_says_what_is_out_of_reach() {
    let bench = Bench::new(2 * MIB);
    let daemon = bench.serve();
    bench.resize(3 * MIB + 1000);
    daemon.wait_for_log(&[
        "WARN",
        utf8(&bench.image),
        "has grown from 2097152 to 3146728 bytes",
        "leaves 1000 bytes at its end, no whole LBA of 4096 bytes, out of reach of hosts",
    ]);
    assert!(daemon.stop().success());
}

/// Whenever it comes: what is cleared is told, and what is not told is not cleared.
#[test]
fn a_second_signal_finds_what_was_lost_noted_or_told() {
    let bench = Bench::new(2 * MIB);
    for delay_ms in (0..20).step_by(2) {
        bench.resize(2 * MIB);
        let daemon = bench.serve();
        bench.resize(MIB);
        reload(&daemon, "configuration reloaded");
        wait_until("it is noted", || bench.has_note());
        signal(daemon.pid(), Signal::SIGTERM);
        thread::sleep(Duration::from_millis(delay_ms));
        // Where it is by then, until what comes is no part of the first one.
        signal(daemon.pid(), Signal::SIGSTOP);
        thread::sleep(Duration::from_millis(320));
        signal(daemon.pid(), Signal::SIGTERM);
        signal(daemon.pid(), Signal::SIGCONT);
        wait_until("it has ended", || {
            daemon.count_log("INFO stopped") + daemon.count_log("asked to end a second time") > 0
        });
        let is_told = daemon.count_log("is cleared, as this target was asked to stop") > 0;
        let log = daemon.log();
        let status = daemon.ended();
        assert_ne!(is_told, bench.has_note(), "{delay_ms} ms: {log:#?}");
        assert_eq!(status.success(), is_told, "{delay_ms} ms: {log:#?}");
    }
}

#[test]
fn a_reload_looks_at_sizes_whatever_else_has_changed() {
    let bench = Bench::new(MIB);
    let daemon = bench.serve();
    for mib in 2..5 {
        bench.resize(mib * MIB);
        bench.reload(&daemon, Some(""));
        let controller = bench.connect();
        assert_eq!(shape(&controller), (4096, mib * 256));
        controller.close();
    }
    assert!(daemon.stop().success());
}

#[test]
fn an_image_without_its_name_is_said_once_and_can_be_saved_as_the_log_says() {
    if !has_tools("an_image_without_its_name_…", &["cp"]) {
        return;
    }
    let bench = Bench::new(MIB);
    let daemon = bench.serve();
    let controller = bench.connect();
    let volume = controller.volume_blocking(1).unwrap().blocking();
    volume.write(8192, &[7; 4096]).unwrap();
    volume.flush().unwrap();
    let aside = bench.folder.path().join("aside");
    fs::rename(&bench.image, &aside).unwrap();
    daemon.wait_for_log(&[
        "ERROR",
        utf8(&bench.image),
        "not at its path any more",
        utf8(&aside),
    ]);
    fs::rename(&aside, &bench.image).unwrap();
    daemon.wait_for_log(&["is at its path again"]);
    // Deleted, and another one made in its place.
    fs::remove_file(&bench.image).unwrap();
    let line = daemon.wait_for_log_after(0, &["ERROR", utf8(&bench.image), "is deleted"]);
    File::create(&bench.image).unwrap().set_len(MIB).unwrap();
    volume.write(4096, &[8; 4096]).unwrap();
    volume.flush().unwrap();
    assert!(line.contains("`uuid`"), "a copy is another medium: {line}");
    let (_, command) = line.split_once('(').unwrap();
    let (command, _) = command.split_once(')').unwrap();
    let saved = bench.folder.path().join("saved");
    tool("sh", &["-c", &command.replace("FILE", utf8(&saved))]);
    let saved = fs::read(&saved).unwrap();
    assert_eq!(saved.len() as u64, MIB);
    assert!(saved[4096..8192] == [8; 4096] && saved[8192..12288] == [7; 4096]);
    assert_eq!(daemon.count_log("is deleted"), 1);
    controller.close();
    assert!(daemon.stop().success());
}

/// The command in parentheses.
fn command_of(text: &str) -> &str {
    let (_, command) = text.rsplit_once("(").unwrap();
    command.split_once(')').unwrap().0
}

#[test]
fn check_and_doctor_tell_what_a_running_target_knows_of_its_media() {
    let bench = Bench::new(MIB);
    let daemon = bench.serve();
    let image = utf8(&bench.image);
    assert!(bench.errors_of_media().is_empty());
    assert!(bench.warns().ends_with(": 0x0"), "{}", bench.warns());

    let aside = bench.folder.path().join("aside");
    fs::rename(&bench.image, &aside).unwrap();
    let error = bench.error_of_media("is not at its path any more");
    let pid = format!("(process {})", daemon.pid());
    assert!(error.contains(image) && error.contains(&pid), "{error}");
    let warns = bench.warns();
    assert!(warns.ends_with("0x4: reliability is degraded"), "{warns}");
    let check = bench.asked("check");
    let said = String::from_utf8(check.stdout).unwrap();
    assert!(!check.status.success(), "a start would not find it");
    assert!(
        said.starts_with("warning: media: ") && said.contains("(mv -n "),
        "{said}"
    );
    // The next step.
    let (_, remedy) = error.split_once("mend: ").unwrap();
    tool("sh", &["-c", command_of(remedy)]);
    wait_until("it is back", || bench.errors_of_media().is_empty());
    wait_until("hosts see that", || bench.warns().ends_with(": 0x0"));

    bench.resize(MIB / 2);
    let error = bench.error_of_media("was cut from 1048576 to 524288 bytes");
    let clear = format!("`capstan-target clear-lost-writes {image}` and reload");
    assert!(
        error.contains("`truncate --size=1048576 FILE`") && error.contains(&clear),
        "{error}"
    );
    let said = bench.check();
    assert!(
        said.contains("warning: lost writes: ") && said.contains("was cut from"),
        "{said}"
    );
    // What is lost stays lost as long as this target runs.
    tool("truncate", &["--size=1048576", image]);
    daemon.wait_for_log(&["has grown from 524288 to 1048576 bytes"]);
    assert_eq!(bench.errors_of_media().len(), 1);
    assert!(daemon.stop().success());
    assert!(bench.errors_of_media().is_empty());
    assert!(!bench.check().contains("was cut"));

    let daemon = bench.serve();
    fs::remove_file(&bench.image).unwrap();
    let error = bench.error_of_media("is deleted");
    let copy = format!("cp --sparse=always /proc/{}/fd/", daemon.pid());
    assert!(error.contains(&copy), "{error}");
    assert!(daemon.stop().success());
}

/// tmpfs, in a mount namespace of the target's own.
#[test]
fn root_a_full_file_system_is_said_once_however_many_writes_find_it_full() {
    let test = "root_a_full_file_system_is_said_once_however_many_writes_find_it_full";
    if !has_disks(test, &["unshare", "mount"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("full.img");
    let script =
        "mount -t tmpfs -o size=2m none \"$0\" && truncate -s 16M \"$0/full.img\" && exec \"$@\"";
    let at = own_address();
    let (listen, folder) = (at.to_string(), utf8(folder.path()));
    let own_mounts = in_own_mounts(folder.as_ref());
    let daemon = Daemon::serve_under(
        &[&own_mounts[..], &["sh", "-c", script, folder]].concat(),
        &[
            "--provider",
            "iwarp",
            "--nqn",
            SUBNQN,
            "--export",
            utf8(&image),
            "--listen",
            &listen,
        ],
    );
    let controller = Controller::connect(options(at, 1)).unwrap();
    let volume = controller.volume_blocking(1).unwrap().blocking();
    let mut full = 0;
    for block in 0..128 {
        match volume.write(block * (64 << 10), &vec![1; 64 << 10]) {
            Ok(()) => {}
            Err(IoError::Status { status, .. }) => {
                assert_eq!(status.code(), Status::CAPACITY_EXCEEDED, "{status:?}");
                full += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(full > 90, "{full} of 128 found no space");
    daemon.wait_for_log(&["ERROR", utf8(&image), "no space left; free space"]);
    assert_eq!(daemon.count_log("no space left"), 1);
    controller.close();
    assert!(daemon.stop().success());
}

/// The size of a disk, in bytes.
fn disk_bytes(device: &Path) -> u64 {
    let size = tool("blockdev", &["--getsize64", utf8(device)]);
    size.trim().parse().unwrap()
}

#[test]
fn root_a_disk_grows_with_its_volume_and_list_says_when_it_was_cut() {
    let test = "root_a_disk_grows_with_its_volume_and_list_says_when_it_was_cut";
    if !has_disks(test, &["blockdev", "mkfs.ext4", "resize2fs"]) {
        return;
    }
    let bench = Bench::new(32 * MIB);
    let daemon = bench.serve();
    let machine = Machine::new(bench.at);
    let device = machine.attach(&[]);
    tool("mkfs.ext4", &["-q", utf8(&device)]);
    bench.resize(64 * MIB);
    wait_until("the disk has 64 MiB", || disk_bytes(&device) == 64 * MIB);
    assert_eq!(machine.list()[0]["size_bytes"], 64 * MIB);
    assert_eq!(machine.list()[0]["attention"], serde_json::Value::Null);
    // While the target is away.
    assert!(daemon.stop().success());
    bench.resize(128 * MIB);
    let daemon = bench.serve();
    wait_until("the disk has 128 MiB", || disk_bytes(&device) == 128 * MIB);
    tool("e2fsck", &["-f", "-p", utf8(&device)]);
    tool("resize2fs", &[utf8(&device)]);
    tool("e2fsck", &["-f", "-n", utf8(&device)]);
    assert_eq!(fs::metadata(&bench.image).unwrap().len(), 128 * MIB);

    bench.resize(64 * MIB);
    let attention = || machine.list()[0]["attention"].as_str().map(str::to_owned);
    wait_until("list says that it was cut", || attention().is_some());
    let words = attention().unwrap();
    assert!(
        words.contains("was cut from 134217728 to 67108864 bytes"),
        "{words}"
    );
    let list = told(&machine.run("list", &[]));
    assert!(
        list.contains("live, but see below") && list.contains("was cut from"),
        "{list}"
    );
    bench.resize(128 * MIB);
    // What was cut off stays lost.
    wait_until("it is as long as it was", || {
        attention().is_some_and(|text| text.contains("warns of the medium of namespace 1"))
    });
    told(&bench.asked_of("clear-lost-writes", &[utf8(&bench.image)]));
    reload(&daemon, "lost writes cleared of volumes: 1");
    wait_until("it is cleared", || attention().is_none());
    told(&machine.run("detach", &[utf8(&device)]));
    machine.assert_clean(&device);
    assert!(daemon.stop().success());
}

#[test]
fn root_list_says_what_has_become_of_a_namespace_and_what_it_says_to_do_helps() {
    let test = "root_list_says_what_has_become_of_a_namespace_and_what_it_says_to_do_helps";
    if !has_disks(test, &[]) {
        return;
    }
    let bench = Bench::new(32 * MIB);
    let daemon = bench.serve();
    let machine = Machine::new(bench.at);
    let device = machine.attach(&[]);
    let attention = || machine.list()[0]["attention"].as_str().map(str::to_owned);
    let says = |words: &str| {
        wait_until(words, || {
            attention().is_some_and(|text| text.contains(words))
        });
        let list = told(&machine.run("list", &[]));
        assert!(
            list.contains("refused, see below") && list.contains(words),
            "{list}"
        );
        assert_eq!(machine.list()[0]["state"], "refused");
        // So does doctor, with what to do.
        let doctor = machine.run("doctor", &[]);
        let said = String::from_utf8_lossy(&doctor.stdout).into_owned();
        assert!(said.contains(words), "{said}");
    };
    bench.reload(&daemon, None);
    says("namespace 1 is gone from the controller; put it back on the target");
    bench.reload(&daemon, Some("lba = 512"));
    says("its LBAs have 512 bytes, had 4096");
    let to = format!("of={}", utf8(&device));
    let writes = || {
        let words = ["if=/dev/zero", &to, "bs=4096", "count=1", "conv=fsync"];
        let output = Command::new("dd").args(words).output().unwrap();
        output.status.success()
    };
    assert!(!writes(), "to another namespace");
    bench.reload(&daemon, None);
    bench.reload(&daemon, Some("lba = 4096"));
    // Nobody else says that it failed once the program has not looked.
    let missing = "4096 bytes that were written to this disk are not on namespace 1";
    wait_until(missing, || {
        attention().is_some_and(|text| text.contains(missing))
    });
    assert!(writes());
    wait_until("it is as it was", || attention().is_none());
    told(&machine.run("detach", &[utf8(&device)]));
    machine.assert_clean(&device);
    assert!(daemon.stop().success());
}

#[test]
fn root_list_says_that_the_medium_of_a_live_volume_is_not_at_its_path() {
    let test = "root_list_says_that_the_medium_of_a_live_volume_is_not_at_its_path";
    if !has_disks(test, &[]) {
        return;
    }
    let bench = Bench::new(32 * MIB);
    let daemon = bench.serve();
    let machine = Machine::new(bench.at);
    let device = machine.attach(&[]);
    let attention = || machine.list()[0]["attention"].as_str().map(str::to_owned);
    assert_eq!(attention(), None);
    let aside = bench.image.with_extension("aside");
    fs::rename(&bench.image, &aside).unwrap();
    wait_until("list says that it was moved", || attention().is_some());
    let words = attention().unwrap();
    let warns = "reliability is degraded (critical warning 0x4)";
    assert!(words.contains(warns), "{words}");
    let row = &machine.list()[0];
    assert_eq!(row["state"], "live");
    assert!(row["detail"].as_str().unwrap().contains(&words), "{row}");
    let list = told(&machine.run("list", &[]));
    assert!(
        list.contains("live, but see below") && list.contains(&words),
        "{list}"
    );
    // The next steps that it names.
    let error = bench.error_of_media("is not at its path any more");
    assert!(error.contains("mv -n"), "{error}");
    let quoted = words
        .split('`')
        .find(|text| text.starts_with("capstan smart-log "));
    let args: Vec<_> = quoted.unwrap().split(' ').skip(2).collect();
    let smart = told(&machine.run("smart-log", &args));
    assert!(smart.contains("0x4: reliability is degraded"), "{smart}");
    fs::rename(&aside, &bench.image).unwrap();
    wait_until("it is back", || attention().is_none());
    fs::remove_file(&bench.image).unwrap();
    wait_until("list says that it was deleted", || attention().is_some());
    told(&machine.run("detach", &[utf8(&device)]));
    machine.assert_clean(&device);
    assert!(daemon.stop().success());
}
