//! Disks that others have open when they are to go: what is waited for is said, by name where
//! there is one.

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use capstan_tests::disks::in_own_mounts;
use capstan_tests::program::{
    Daemon, Machine, complaint, has_disks, own_address, shell, signal, told, tool, utf8,
};
use capstan_tests::scene::Mounted;
use capstan_tests::wait::wait_until;
use nix::sys::signal::Signal;

fn goes(mounted: &Mounted) {
    wait_until("the disk has gone", || {
        mounted.scene.machine.list().is_empty()
    });
    mounted.scene.machine.assert_clean(&mounted.device);
}

#[test]
fn an_unmount_says_what_has_the_disk_open_and_that_it_waits_for_that() {
    let test = "an_unmount_says_what_has_the_disk_open_and_that_it_waits_for_that";
    if !has_disks(test, &["mkfs.ext4"]) {
        return;
    }
    let mounted = Mounted::ext4();
    let machine = &mounted.scene.machine;
    let user = File::open(&mounted.device).unwrap();
    let said = complaint(&machine.run("umount", &[utf8(&machine.mount_point())]));
    let pid = std::process::id();
    let [name, served_by] = [
        utf8(&mounted.device).to_owned(),
        machine.serving_pid().to_string(),
    ];
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines.len(), 2, "{said}");
    for line in &lines {
        assert!(
            line.contains(&format!("{name} is still open in ")),
            "{said}"
        );
    }
    let waits = format!("(pid {pid}): that is waited for, 8 s more at most");
    assert!(lines[0].ends_with(&waits), "{said}");
    let end = format!(
        "(pid {pid}); the disk goes when that ends, and process {served_by}, which serves it, with it"
    );
    assert!(lines[1].ends_with(&end), "{said}");
    drop(user);
    goes(&mounted);
    // By hand likewise.
    let device = machine.attach(&[]);
    let user = File::open(&device).unwrap();
    let said = complaint(&machine.run("detach", &[utf8(&device)]));
    let waits = format!("(pid {pid}): that is waited for, 2");
    let first = said.lines().next().unwrap();
    assert!(
        first.contains(&waits) && first.ends_with(" s more at most"),
        "{said}"
    );
    let end = format!("(pid {pid}); it is detached when that ends");
    assert!(said.contains(&end), "{said}");
    drop(user);
    goes(&mounted);
}

/// A mount namespace without a process keeps the file system, and nothing tells where.
#[test]
fn an_unmount_says_that_it_waits_for_what_nothing_can_name() {
    let test = "an_unmount_says_that_it_waits_for_what_nothing_can_name";
    if !has_disks(test, &["mkfs.ext4", "unshare"]) {
        return;
    }
    let mounted = Mounted::ext4();
    let machine = &mounted.scene.machine;
    let kept = Kept::new(&machine.path("kept"), &machine.mount_point());
    let since = Instant::now();
    let output = machine.run("umount", &[utf8(&machine.mount_point())]);
    assert!(since.elapsed() < Duration::from_secs(15), "{output:?}");
    let said = told(&output);
    let name = utf8(&mounted.device);
    let claimed = format!("{name} is claimed by another user (what no process has open: ");
    let waits = String::from_utf8(output.stderr).unwrap();
    assert_eq!(waits.lines().count(), 1, "{waits}");
    assert!(waits.starts_with(&claimed), "{waits}");
    assert!(waits.contains("that is waited for, 8 s more"), "{waits}");
    let point = machine.mount_point();
    let end = format!("{} is unmounted, but {claimed}", utf8(&point));
    assert!(said.starts_with(&end), "{said}");
    assert!(!said.contains("lives on"), "{said}");
    drop(kept);
    goes(&mounted);
}

/// A mount namespace that lives by its name, with the mount at one folder of those of tests.
struct Kept(String);

impl Kept {
    fn new(folder: &Path, kept: &Path) -> Self {
        let at = utf8(folder).to_owned();
        // A namespace is bound only where mounts do not spread.
        let made = shell(&format!(
            "mkdir {at} && mount --bind {at} {at} && mount --make-private {at} && touch {at}/ns"
        ));
        told(&made);
        let bound = Self(at);
        let by_name = format!("--mount={}/ns", bound.0);
        let mut words = in_own_mounts(kept);
        words[1] = &by_name;
        tool(words[0], &[&words[1..], &["true"]].concat());
        bound
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let at = &self.0;
        let gone = shell(&format!("umount {at}/ns; umount {at}"));
        if !gone.status.success() {
            eprintln!("{at}: {}", String::from_utf8_lossy(&gone.stderr));
        }
    }
}

/// A signal may stop what serves a disk, and a debugger.
#[test]
fn a_detach_says_that_the_process_is_stopped_and_keeps_its_bound() {
    let test = "a_detach_says_that_the_process_is_stopped_and_keeps_its_bound";
    if !has_disks(test, &[]) {
        return;
    }
    let at = own_address();
    let target = Daemon::start("ram:16MiB", 4096, at);
    let machine = Machine::new(at);
    let device = machine.attach(&[]);
    let serving = machine.serving_pid();
    signal(serving, Signal::SIGSTOP);
    let since = Instant::now();
    let said = complaint(&machine.run("detach", &[utf8(&device)]));
    let waited = since.elapsed();
    tool("kill", &["-CONT", &serving.to_string()]);
    assert!((8..14).contains(&waited.as_secs()), "{waited:?}: {said}");
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines.len(), 2, "{said}");
    let stopped = format!(
        "process {serving}, which serves {}, is stopped",
        utf8(&device)
    );
    assert!(
        lines[0].starts_with(&stopped) && lines[0].ends_with(" s more at most"),
        "{said}"
    );
    let steps = [
        format!("kill -CONT {serving}"),
        format!("capstan detach --force {}", utf8(&device)),
    ];
    for step in steps {
        assert!(lines[1].contains(&step), "{step}: {said}");
    }
    // As it says.
    wait_until("it is detached", || machine.list().is_empty());
    machine.assert_clean(&device);
    assert!(target.stop().success());
}
