//! What is said, and done, when a target does not answer for a while: minutes of an unmount, the
//! half minute of one by force, seconds of a measurement.

use std::fs;
use std::io::Read;
use std::process::ChildStderr;
use std::time::{Duration, Instant};

use capstan_tests::disks::{ext4_image, lost_log};
use capstan_tests::program::{Daemon, Machine, complaint, has_disks, own_address, signal, utf8};
use capstan_tests::running::Running;
use nix::sys::signal::Signal;
use tempfile::TempDir;

/// A mounted volume with what is not written, whose target stands still.
struct Dirty {
    _folder: TempDir,
    daemon: Daemon,
    machine: Machine,
}

impl Dirty {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let image = ext4_image(folder.path());
        let at = own_address();
        let scene = Self {
            daemon: Daemon::start(utf8(&image), 4096, at),
            machine: Machine::new(at),
            _folder: folder,
        };
        scene.machine.mount(&[]);
        let file = scene.machine.mount_point().join("file");
        fs::write(file, vec![7; 1 << 20]).unwrap();
        // The write itself has waited for nothing: a test in the kernel cannot be ended.
        signal(scene.daemon.pid(), Signal::SIGSTOP);
        scene
    }
}

/// Reads until these words have come, at most so long.
fn wait_for(stderr: &mut ChildStderr, said: &mut String, words: &str, most: Duration) {
    let since = Instant::now();
    while !said.contains(words) {
        let mut piece = [0; 512];
        let count = stderr.read(&mut piece).unwrap();
        assert!(count > 0, "no {words} in {said}");
        said.push_str(&String::from_utf8_lossy(&piece[..count]));
    }
    let waited = since.elapsed();
    assert!(waited < most, "{words} after {waited:?}");
}

#[test]
fn an_unmount_that_takes_minutes_says_again_what_it_waits_for() {
    let test = "an_unmount_that_takes_minutes_says_again_what_it_waits_for";
    if !has_disks(test, &["mkfs.ext4"]) {
        return;
    }
    let scene = Dirty::new();
    let machine = &scene.machine;
    let point = machine.mount_point();
    let mut umount = Running::start(machine.command("umount", &[utf8(&point)]));
    let mut stderr = umount.child.stderr.take().unwrap();
    let mut said = String::new();
    let soon = Duration::from_secs(10);
    wait_for(&mut stderr, &mut said, "is being unmounted:", soon);
    let minute = Duration::from_secs(75);
    wait_for(
        &mut stderr,
        &mut said,
        "is being unmounted since 1 min:",
        minute,
    );
    signal(scene.daemon.pid(), Signal::SIGCONT);
    assert!(umount.child.wait().unwrap().success());
    assert!(machine.list().is_empty());
}

#[test]
fn an_unmount_by_force_gives_a_silent_target_half_a_minute() {
    let test = "an_unmount_by_force_gives_a_silent_target_half_a_minute";
    if !has_disks(test, &["mkfs.ext4"]) {
        return;
    }
    let scene = Dirty::new();
    let machine = &scene.machine;
    let point = machine.mount_point();
    let since = Instant::now();
    let said = complaint(&machine.run("umount", &["--force", utf8(&point)]));
    let waited = since.elapsed();
    let expected = Duration::from_secs(30)..Duration::from_secs(60);
    assert!(expected.contains(&waited), "{waited:?}: {said}");
    for words in [
        "it is not unmounted after 30 s",
        "what was not written is lost",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    assert!(lost_log(machine).contains("is lost"));
    assert!(machine.list().is_empty());
    signal(scene.daemon.pid(), Signal::SIGCONT);
}

#[test]
fn a_measurement_says_that_its_target_does_not_answer() {
    let at = own_address();
    let daemon = Daemon::start("ram:16MiB", 4096, at);
    let mut bench = Running::capstan("bench --rw randread --runtime 2", at);
    let mut stderr = bench.child.stderr.take().unwrap();
    daemon.wait_for_log(&["qid=1"]);
    signal(daemon.pid(), Signal::SIGSTOP);
    let (mut said, most) = (String::new(), Duration::from_secs(10));
    wait_for(&mut stderr, &mut said, "no completion for 5 s", most);
    assert!(said.contains("waiting for the target until"), "{said}");
    signal(daemon.pid(), Signal::SIGCONT);
    assert!(bench.child.wait().unwrap().success(), "{said}");
}
