//! What the kernel could not write back to a disk: `umount` and `detach` say so, and fail.

use std::fs;
use std::path::{Path, PathBuf};

use capstan_tests::disks::{Thin, own_mounts};
use capstan_tests::program::{
    Daemon, Machine, complaint, has_disks, own_address, signal, told, tool, utf8,
};
use nix::sys::signal::Signal;

const MIB: usize = 1 << 20;

/// A target whose volume promises more than can be stored, and a machine.
fn thin() -> (Thin, Daemon, Machine) {
    own_mounts();
    let thin = Thin::new(12);
    let image = thin.file("volume", 48 << 20);
    let at = own_address();
    let daemon = Daemon::start(utf8(&image), 4096, at);
    (thin, daemon, Machine::new(at))
}

fn says_what_is_missing(machine: &Machine, complaint: &str) {
    for words in [
        "are not on namespace 1",
        "check what is there (fsck)",
        "lost-capstan-",
    ] {
        assert!(complaint.contains(words), "no {words} in {complaint}");
    }
    let run = machine.path("run");
    let kept: Vec<PathBuf> = fs::read_dir(run)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| utf8(path).contains("lost-capstan-"))
        .collect();
    assert_eq!(kept.len(), 1, "{kept:?}");
    let log = fs::read_to_string(&kept[0]).unwrap();
    assert!(log.contains("are not on namespace 1"), "{log}");
    fs::remove_file(&kept[0]).unwrap();
}

#[test]
fn root_umount_and_detach_say_what_the_kernel_could_not_write() {
    let test = "root_umount_and_detach_say_what_the_kernel_could_not_write";
    if !has_disks(test, &["mkfs.ext4", "dd"]) {
        return;
    }
    let (_thin, daemon, machine) = thin();
    let device = machine.attach(&[]);
    let lazy = "lazy_itable_init=1,nodiscard";
    tool(
        "mkfs.ext4",
        &["-q", "-O", "^has_journal", "-E", lazy, utf8(&device)],
    );
    told(&machine.run("detach", &[utf8(&device)]));
    machine.mount(&[]);
    let point = machine.mount_point();
    fs::write(point.join("file"), vec![1; 30 * MIB]).unwrap();
    let said = complaint(&machine.run("umount", &[utf8(&point)]));
    says_what_is_missing(&machine, &said);
    machine.assert_clean(&device);

    let device = machine.attach(&[]);
    let of = format!("of={}", utf8(&device));
    tool(
        "dd",
        &["if=/dev/zero", &of, "bs=1M", "count=30", "status=none"],
    );
    let said = complaint(&machine.run("detach", &[utf8(&device)]));
    says_what_is_missing(&machine, &said);
    machine.assert_clean(&device);
    assert!(daemon.stop().success());
}

#[test]
fn what_was_dirty_when_the_serving_process_died_is_said_to_be_lost() {
    let test = "what_was_dirty_when_the_serving_process_died_is_said_to_be_lost";
    if !has_disks(test, &["mkfs.ext4"]) {
        return;
    }
    let at = own_address();
    let daemon = Daemon::start("ram:32MiB", 4096, at);
    let machine = Machine::new(at);
    let device = machine.attach(&[]);
    tool("mkfs.ext4", &["-q", utf8(&device)]);
    told(&machine.run("detach", &[utf8(&device)]));
    machine.mount(&[]);
    let point = machine.mount_point();
    let device = PathBuf::from(machine.list()[0]["device"].as_str().unwrap());
    fs::write(point.join("file"), vec![1; MIB]).unwrap();
    let serving = machine.serving_pid();
    signal(serving, Signal::SIGKILL);
    capstan_tests::wait::wait_until("it has died", || {
        !Path::new("/proc").join(serving.to_string()).exists()
    });
    let said = complaint(&machine.run("umount", &[utf8(&point)]));
    let words = "not everything could be written to";
    assert!(
        said.contains(words) && said.contains("may be lost"),
        "{said}"
    );
    machine.assert_clean(&device);
    assert!(daemon.stop().success());
}
