//! Media that do not answer, fail, shrink or become read-only under a running target: what its
//! hosts and its operator hear of it. All of it needs root.

use std::fs::{self, File, OpenOptions};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::thread;
use std::time::{Duration, Instant};

use capstan_initiator::{Controller, IoError};
use capstan_nvme_proto::status::Status;
use capstan_tests::disks::{Loop, Thin, Unanswered, own_mounts};
use capstan_tests::host::options;
use capstan_tests::lossy::critical_warning;
use capstan_tests::program::{Daemon, has_disks, own_address, program, signal, tool, utf8};
use capstan_tests::target::SUBNQN;
use capstan_tests::wait::wait_until;
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

const MIB: u64 = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(30);

fn wait_for_lines(daemon: &Daemon, words: &str, lines: usize) {
    let start = Instant::now();
    while daemon.count_log(words) < lines {
        assert!(start.elapsed() < PATIENCE, "{:#?}", daemon.log());
        thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until the host sees so many LBAs of its only namespace.
fn sees(controller: &Controller, lbas: u64) {
    let start = Instant::now();
    while controller.snapshot_blocking().namespaces[0].nsze_lbas != lbas {
        assert!(
            start.elapsed() < PATIENCE,
            "the host does not see {lbas} LBAs"
        );
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn root_a_file_system_that_does_not_answer_holds_up_the_watching_of_its_own_volumes_only() {
    let test =
        "root_a_file_system_that_does_not_answer_holds_up_the_watching_of_its_own_volumes_only";
    if !has_disks(test, &[]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let at = own_address();
    let remote = folder.path().join("remote");
    fs::create_dir(&remote).unwrap();
    // Two of them before the one that answers, and one behind it.
    let images = [
        remote.join("1"),
        remote.join("2"),
        folder.path().join("3"),
        remote.join("4"),
    ];
    let mut toml = format!(
        "[target]\nreactors = 1\nmemory_budget = \"64MiB\"\n[[listener]]\naddress = \"{}\"\nport = {}\n\
         provider = \"iwarp\"\n[[subsystem]]\nnqn = \"{SUBNQN}\"\nallow_any_host = true\n",
        at.ip(),
        at.port(),
    );
    for (number, image) in images.iter().enumerate() {
        File::create(image).unwrap().set_len(MIB).unwrap();
        let (nsid, path) = (number + 1, image.display());
        toml += &format!("[[subsystem.namespace]]\nnsid = {nsid}\npath = \"{path}\"\n");
    }
    let config = folder.path().join("target.toml");
    fs::write(&config, toml).unwrap();
    let daemon = Daemon::serve(&["--config", utf8(&config)]);
    let unanswered = Unanswered::over(&remote);
    let grows_to = |mib: u64| {
        let file = OpenOptions::new().write(true).open(&images[2]).unwrap();
        file.set_len(mib * MIB).unwrap();
        let size = format!("to {} bytes", mib * MIB);
        daemon.wait_for_log(&["has grown from", &size, utf8(&images[2])]);
    };
    grows_to(2);
    grows_to(3);
    let silent = "has not answered for 10 s";
    wait_for_lines(&daemon, silent, 3);
    // A reload looks at media as well.
    let known = daemon.log().len();
    signal(daemon.pid(), Signal::SIGHUP);
    daemon.wait_for_log_after(known, &["configuration reloaded"]);
    grows_to(4);
    assert_eq!(daemon.count_log(silent), 3, "said once each");
    drop(unanswered);
    wait_for_lines(&daemon, "answers again, after", 3);
    // A look that waits does not keep the target.
    let unanswered = Unanswered::over(&remote);
    grows_to(5);
    let start = Instant::now();
    assert!(daemon.stop().success());
    assert!(
        start.elapsed() < Duration::from_secs(2),
        "{:?}",
        start.elapsed()
    );
    drop(unanswered);
}

/// They are what one turns to in this state.
#[test]
fn root_check_and_doctor_name_what_does_not_answer() {
    if !has_disks("root_check_and_doctor_name_what_does_not_answer", &[]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let remote = folder.path().join("remote");
    fs::create_dir(&remote).unwrap();
    let images = [remote.join("1"), folder.path().join("2"), remote.join("3")];
    let mut toml = format!(
        "[[listener]]\naddress = \"127.0.0.1\"\nport = 0\nprovider = \"iwarp\"\n\
         [[subsystem]]\nnqn = \"{SUBNQN}\"\nallow_any_host = true\n"
    );
    for image in &images {
        File::create(image).unwrap().set_len(MIB).unwrap();
        toml += &format!("[[subsystem.namespace]]\npath = \"{}\"\n", image.display());
    }
    let config = folder.path().join("target.toml");
    fs::write(&config, toml).unwrap();
    let asked = |command| {
        Command::new(program("capstan-target"))
            .args([command, "--config", utf8(&config)])
            .output()
            .unwrap()
    };
    let words = |output: &Output| {
        let both = [&output.stdout[..], &output.stderr[..]].concat();
        String::from_utf8(both).unwrap()
    };
    let unanswered = Unanswered::over(&remote);
    for command in ["check", "doctor"] {
        let output = asked(command);
        assert_eq!(output.status.code(), Some(1), "{command}");
        let words = words(&output);
        for (image, seconds) in [(&images[0], 5), (&images[2], 1)] {
            let line = format!(
                "{} does not answer: it was not opened within {seconds} s",
                image.display()
            );
            assert!(words.contains(&line), "{command}: {words}");
        }
        let other = format!("{} does not answer", images[1].display());
        assert!(!words.contains(&other), "{command}: {words}");
    }
    drop(unanswered);
    let output = asked("check");
    assert!(output.status.success(), "{}", words(&output));
    // What is no medium is refused as that, and not waited for.
    fs::remove_file(&images[1]).unwrap();
    mkfifo(&images[1], Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
    let output = asked("check");
    assert_eq!(output.status.code(), Some(1));
    let words = words(&output);
    assert!(!words.contains("does not answer"), "{words}");
}

/// A target of a loop device, and its file below.
struct OnLoop {
    _folder: tempfile::TempDir,
    file: PathBuf,
    device: Loop,
    at: SocketAddr,
    daemon: Daemon,
}

impl OnLoop {
    fn new(bytes: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("below.img");
        File::create(&file).unwrap().set_len(bytes).unwrap();
        let device = Loop::new(&file);
        let at = own_address();
        let daemon = Daemon::start(utf8(device.path()), 4096, at);
        Self {
            _folder: folder,
            file,
            device,
            at,
            daemon,
        }
    }

    fn resize_below(&self, bytes: u64) {
        let file = OpenOptions::new().write(true).open(&self.file).unwrap();
        file.set_len(bytes).unwrap();
    }

    /// Tells the device of the size of its file.
    fn tell_size(&self) {
        tool("losetup", &["--set-capacity", utf8(self.device.path())]);
    }
}

/// The status that a command ended with.
fn status_of(result: Result<(), IoError>) -> Status {
    match result {
        Err(IoError::Status { status, .. }) => status.code(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn root_a_device_that_fails_is_said_once_to_the_log_and_to_hosts_as_what_it_is() {
    let test = "root_a_device_that_fails_is_said_once_to_the_log_and_to_hosts_as_what_it_is";
    if !has_disks(test, &["losetup"]) {
        return;
    }
    let on = OnLoop::new(4 * MIB);
    let controller = Controller::connect(options(on.at, 1)).unwrap();
    let volume = controller.volume_blocking(1).unwrap().blocking();
    volume.write(3 * MIB, &[3; 4096]).unwrap();
    volume.flush().unwrap();
    // The device has its size still, and nothing is there: EIO of a real device.
    on.resize_below(MIB);
    let mut read = [0; 4096];
    for _ in 0..20 {
        let status = status_of(volume.read(3 * MIB, &mut read));
        assert_eq!(status, Status::UNRECOVERED_READ_ERROR, "{status:?}");
    }
    let name = utf8(on.device.path());
    let line = on.daemon.wait_for_log_after(0, &["ERROR", name]);
    assert!(line.contains("kernel log"), "the next step: {line}");
    assert_eq!(on.daemon.count_log("ERROR"), 1, "{:#?}", on.daemon.log());
    // What is in order goes on.
    volume.read(0, &mut read).unwrap();
    controller.close();
    assert!(on.daemon.stop().success());
}

#[test]
fn root_a_device_that_is_made_shorter_is_said_to_the_log_and_to_hosts() {
    let test = "root_a_device_that_is_made_shorter_is_said_to_the_log_and_to_hosts";
    if !has_disks(test, &["losetup"]) {
        return;
    }
    let on = OnLoop::new(4 * MIB);
    let controller = Controller::connect(options(on.at, 1)).unwrap();
    let volume = controller.volume_blocking(1).unwrap().blocking();
    let name = utf8(on.device.path()).to_owned();
    for (bytes, words) in [
        (2 * MIB, "was cut from 4194304 to 2097152 bytes"),
        (4 * MIB, "has grown from 2097152 to 4194304 bytes"),
    ] {
        on.resize_below(bytes);
        on.tell_size();
        on.daemon.wait_for_log(&[&name, words]);
        sees(&controller, bytes / 4096);
        let written = volume.write(3 * MIB, &[1; 4096]);
        assert_eq!(written.is_ok(), bytes > 3 * MIB, "{written:?}");
        assert_eq!(on.daemon.count_log(words), 1);
    }
    // Of nothing there is no device.
    on.resize_below(0);
    on.tell_size();
    on.daemon
        .wait_for_log(&["ERROR", &name, "every command of hosts fails"]);
    assert!(volume.write(0, &[1; 4096]).is_err());
    on.resize_below(4 * MIB);
    on.tell_size();
    on.daemon.wait_for_log(&[&name, "is at its path again"]);
    volume.write(0, &[1; 4096]).unwrap();
    assert_eq!(on.daemon.count_log("every command of hosts fails"), 1);
    controller.close();
    assert!(on.daemon.stop().success());
}

/// ext4 makes itself read-only when it finds an error (ext4(5), `errors=remount-ro`).
#[test]
fn root_a_file_system_that_has_become_read_only_is_said_once() {
    let test = "root_a_file_system_that_has_become_read_only_is_said_once";
    if !has_disks(test, &["mount", "mkfs.ext4"]) {
        return;
    }
    own_mounts();
    let thin = Thin::new(32);
    let image = thin.file("volume.img", 4 * MIB);
    let at = own_address();
    let daemon = Daemon::start(utf8(&image), 4096, at);
    let controller = Controller::connect(options(at, 1)).unwrap();
    let volume = controller.volume_blocking(1).unwrap().blocking();
    volume.write(0, &[1; 4096]).unwrap();
    volume.flush().unwrap();
    thin.find_an_error();
    for block in 1..20 {
        let status = status_of(volume.write(block * 4096, &[2; 4096]));
        let expected = [Status::NAMESPACE_IS_WRITE_PROTECTED, Status::WRITE_FAULT];
        assert!(expected.contains(&status), "{status:?}");
    }
    daemon.wait_for_log(&["ERROR", utf8(&image)]);
    assert_eq!(daemon.count_log("ERROR"), 1, "{:#?}", daemon.log());
    let mut read = [0; 4096];
    volume.read(0, &mut read).unwrap();
    assert_eq!(read, [1; 4096], "what is there can be read");
    if daemon.count_log("read-only") > 0 {
        // A host that leaves has what it wrote flushed, which may find that lost.
        let warnings = ["0x8", "0xc"];
        wait_until("hosts are told", || {
            warnings.contains(&critical_warning(at).as_str())
        });
    }
    controller.close();
    let _ = daemon.stop();
}
