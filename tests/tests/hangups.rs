//! The end of a terminal, as of an ssh session, while a disk is made or unmounted.

use std::fs;
use std::io::Read as _;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use capstan_initiator::internals::disk::mounts::mount_at;
use capstan_tests::disks::ext4_image;
use capstan_tests::program::{
    CLAIMS, Daemon, Machine, complaint, has_disks, own_address, program, signal, told, utf8,
};
use capstan_tests::proxy::{Direction, Flow, Proxy};
use capstan_tests::running::Running;
use capstan_tests::wait::wait_until;
use nix::sys::signal::Signal;

/// As long as signals that come together count as one, and more.
const TOGETHER_MS: u128 = 600;

#[test]
fn what_serves_a_disk_has_no_terminal_to_lose() {
    if !has_disks("what_serves_a_disk_has_no_terminal_to_lose", &[]) {
        return;
    }
    let at = own_address();
    let target = Daemon::start("ram:16MiB", 4096, at);
    let machine = Machine::new(at);
    let device = machine.attach(&[]);
    let serving = machine.serving_pid();
    let stat = fs::read_to_string(format!("/proc/{serving}/stat")).unwrap();
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    // Its session, and its controlling terminal (proc_pid_stat(5), fields 6 and 7).
    let fields: Vec<_> = fields.split(' ').skip(3).take(2).collect();
    assert_eq!(fields, [serving.to_string().as_str(), "0"], "{stat}");
    signal(serving, Signal::SIGHUP);
    told(&machine.run("detach", &[utf8(&device)]));
    machine.assert_clean(&device);
    assert!(target.stop().success());
}

#[test]
fn a_command_that_nohup_started_does_not_end_with_its_terminal() {
    let test = "a_command_that_nohup_started_does_not_end_with_its_terminal";
    if !has_disks(test, &[]) {
        return;
    }
    for is_ignored in [false, true] {
        let at = own_address();
        let _silent = TcpListener::bind(at).expect("the address is free");
        let machine = Machine::new(at);
        let trap = match is_ignored {
            true => "trap '' HUP; exec \"$0\" \"$@\"",
            false => "exec \"$0\" \"$@\"",
        };
        let mut attach = Command::new("sh");
        attach
            .args(["-c", trap])
            .arg(program("capstan"))
            .args(["attach", "--connect-timeout", "60"])
            .args(machine.target())
            .env("CAPSTAN_RUN_DIR", machine.path("run"))
            .env(CLAIMS, machine.path("claims"));
        let attach = Running::start(attach);
        wait_until("it is listed", || !machine.list().is_empty());
        signal(attach.child.id(), Signal::SIGHUP);
        // The first of them is taken first.
        let output = attach.interrupted(Signal::SIGTERM);
        let expected = match is_ignored {
            true => Signal::SIGTERM,
            false => Signal::SIGHUP,
        };
        assert_eq!(
            output.status.code(),
            Some(128 + expected as i32),
            "{output:?}"
        );
        machine.assert_clean(Path::new("/dev/loop-none"));
    }
}

/// Nobody has asked for the loss of what is not written.
#[test]
fn hangups_do_not_insist_on_the_end_of_an_unmount() {
    let test = "hangups_do_not_insist_on_the_end_of_an_unmount";
    if !has_disks(test, &["mkfs.ext4"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let at = own_address();
    let _daemon = Daemon::start(utf8(&ext4_image(folder.path())), 4096, at);
    let proxy = Proxy::start(at);
    let machine = Machine::new(proxy.address);
    machine.mount(&[]);
    let point = machine.mount_point();
    fs::write(point.join("file"), vec![7; 1 << 20]).unwrap();
    for direction in [Direction::ToTarget, Direction::ToHost] {
        proxy.set_new(direction, Flow::Hold);
        proxy.set_all(direction, Flow::Hold);
    }
    let mut umount = Running::start(machine.command("umount", &[utf8(&point)]));
    wait_until("the kernel unmounts it", || {
        mount_at(&point).unwrap().is_none()
    });
    let pid = umount.child.id();
    signal(pid, Signal::SIGHUP);
    let mut stderr = umount.child.stderr.take().unwrap();
    let mut said = String::new();
    while !said.contains("what is not written is lost") {
        let mut piece = [0; 512];
        let count = stderr.read(&mut piece).unwrap();
        assert!(count > 0, "{said}");
        said.push_str(&String::from_utf8_lossy(&piece[..count]));
    }
    let start = Instant::now();
    wait_until("they are not one any more", || {
        signal(pid, Signal::SIGHUP);
        start.elapsed().as_millis() > TOGETHER_MS
    });
    assert!(umount.child.try_wait().unwrap().is_none(), "it has ended");
    for direction in [Direction::ToTarget, Direction::ToHost] {
        proxy.set_all(direction, Flow::Pass);
        proxy.set_new(direction, Flow::Pass);
    }
    wait_until("it has ended", || {
        umount.child.try_wait().unwrap().is_some()
    });
    wait_until("the disk has gone", || machine.list().is_empty());
    machine.mount(&[]);
    let kept = fs::read(point.join("file")).unwrap();
    assert!(kept == vec![7; 1 << 20], "what was dirty is not there");
    machine.umount();
}

/// As `kill -9` leaves it, which nothing can put in order.
#[test]
fn a_disk_whose_mount_was_killed_is_said_to_be_attached() {
    let test = "a_disk_whose_mount_was_killed_is_said_to_be_attached";
    if !has_disks(test, &["mkfs.ext4"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let at = own_address();
    let _daemon = Daemon::start(utf8(&ext4_image(folder.path())), 4096, at);
    let machine = Machine::new(at);
    let point = machine.mount_point();
    // A mount(8) that takes its time.
    let tools = machine.path("tools");
    fs::create_dir(&tools).unwrap();
    let (slow, begun) = (tools.join("mount"), tools.join("begun"));
    fs::write(
        &slow,
        format!("#!/bin/sh\necho $$ >{}\nexec sleep 60\n", utf8(&begun)),
    )
    .unwrap();
    fs::set_permissions(&slow, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let mut mount = machine.command("mount", &[utf8(&point)]);
    mount.args(machine.target());
    let path = format!("{}:{}", utf8(&tools), std::env::var("PATH").unwrap());
    mount.env("PATH", path);
    let mount = Running::start(mount);
    let text = || fs::read_to_string(&begun).unwrap_or_default();
    wait_until("mount(8) runs", || text().ends_with('\n'));
    drop(mount);
    signal(text().trim().parse().unwrap(), Signal::SIGKILL);
    let list = machine.list();
    let device = list[0]["device"].as_str().unwrap().to_owned();
    let step = format!("capstan detach {device}");
    let attention = list[0]["attention"].as_str().unwrap().to_owned();
    let refused = complaint(&machine.run("umount", &[utf8(&point)]));
    for said in [attention, refused] {
        assert!(
            said.contains("attached and not mounted") && said.contains(&step),
            "{said}"
        );
        assert!(
            !said.contains("--force") && !said.contains("waits for I/O"),
            "{said}"
        );
    }
    told(&machine.run("detach", &[&device]));
    machine.assert_clean(Path::new(&device));
}
