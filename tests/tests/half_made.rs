//! Disks that are not whole: killed, given up or forgotten by the kernel half way. Nothing waits
//! for itself, `list` shows what there is, and one command ends it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use capstan_initiator::internals::disk::mounts::mount_at;
use capstan_tests::disks::{ext4_image, lost_log};
use capstan_tests::program::{
    Daemon, Machine, complaint, has_disks, own_address, signal, told, tool, utf8,
};
use capstan_tests::proxy::{Direction, Flow, Proxy};
use capstan_tests::wait::wait_until;
use nix::sys::signal::Signal;

const PATIENCE: Duration = Duration::from_secs(30);
/// How long the kernel may take to end a process that is killed. Memory that is locked takes a
/// moment on a busy machine.
const KILLED: Duration = Duration::from_secs(10);
/// How long an answer of the target takes, so that the disk is not made before the test holds it.
const SLOW: Duration = Duration::from_millis(400);

fn is_there(pid: u32) -> bool {
    Path::new("/proc").join(pid.to_string()).exists()
}

/// A target that stops to answer when it is told to.
struct Target {
    _daemon: Daemon,
    proxy: Proxy,
    machine: Machine,
}

impl Target {
    fn start(export: &str) -> Self {
        let at = own_address();
        let daemon = Daemon::start(export, 4096, at);
        let proxy = Proxy::start(at);
        let machine = Machine::new(proxy.address);
        Self {
            _daemon: daemon,
            proxy,
            machine,
        }
    }

    fn stand_still(&self) {
        for direction in [Direction::ToTarget, Direction::ToHost] {
            self.proxy.set_new(direction, Flow::Hold);
            self.proxy.set_all(direction, Flow::Hold);
        }
    }

    /// Begins `attach`, and has the target stand still while the loop device is configured.
    fn half_attach(&self, args: &[&str]) -> (Child, PathBuf) {
        let target = self.machine.target();
        let target: Vec<&str> = target.iter().map(String::as_str).collect();
        let args = [&target[..], args].concat();
        let mut attach = self.machine.command("attach", &args);
        let attach = attach.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        self.proxy.wait_for_connections(2);
        self.proxy.set(1, Direction::ToHost, Flow::Delay(SLOW));
        let record = self.machine.path("run/0/volume.json");
        wait_until("the record has a device", || {
            fs::read_to_string(&record).is_ok_and(|text| text.contains("/dev/loop"))
        });
        self.stand_still();
        let list = self.machine.list();
        assert_eq!(list[0]["state"], "setting up", "{list:?}");
        let device = list[0]["device"].as_str().unwrap();
        assert!(device.starts_with("/dev/loop"), "{list:?}");
        (attach.unwrap(), PathBuf::from(device))
    }
}

#[test]
fn a_process_that_is_killed_while_its_disk_is_set_up_goes() {
    if !has_disks(
        "a_process_that_is_killed_while_its_disk_is_set_up_goes",
        &[],
    ) {
        return;
    }
    let target = Target::start("ram:16MiB");
    let (attach, device) = target.half_attach(&[]);
    let pid = target.machine.serving_pid();
    signal(pid, Signal::SIGKILL);
    let start = Instant::now();
    while is_there(pid) {
        assert!(start.elapsed() < KILLED, "it waits for itself");
        thread::sleep(Duration::from_millis(20));
    }
    let error = complaint(&attach.wait_with_output().unwrap());
    assert!(error.contains("ended (signal: 9"), "{error}");
    // Nothing holds the device, so that it can be opened and is nobody's.
    drop(File::open(&device).unwrap());
    wait_until("it is cleaned up", || target.machine.list().is_empty());
    target.machine.assert_clean(&device);
}

#[test]
fn a_half_made_disk_is_detached() {
    if !has_disks("a_half_made_disk_is_detached", &[]) {
        return;
    }
    for args in [&["--force"][..], &[]] {
        let target = Target::start("ram:16MiB");
        let (attach, device) = target.half_attach(&[]);
        let start = Instant::now();
        let device_arg = [args, &[utf8(&device)]].concat();
        told(&target.machine.run("detach", &device_arg));
        assert!(start.elapsed() < PATIENCE, "{args:?}");
        drop(complaint(&attach.wait_with_output().unwrap()));
        target.machine.assert_clean(&device);
    }
}

#[test]
fn a_disk_whose_set_up_takes_too_long_is_given_up() {
    if !has_disks("a_disk_whose_set_up_takes_too_long_is_given_up", &[]) {
        return;
    }
    let target = Target::start("ram:16MiB");
    let (attach, device) = target.half_attach(&["--io-timeout", "1"]);
    let error = complaint(&attach.wait_with_output().unwrap());
    assert!(error.contains("is not set up after 6 s"), "{error}");
    assert!(
        error.contains("attempt"),
        "where the association is: {error}"
    );
    target.machine.assert_clean(&device);
}

/// A mounted volume whose unmount was begun, and whose mount point the kernel has dropped.
fn half_unmount(target: &Target, by_hand: bool) -> PathBuf {
    let machine = &target.machine;
    let mount_point = machine.mount_point();
    if by_hand {
        let device = machine.attach(&[]);
        tool("mount", &[utf8(&device), utf8(&mount_point)]);
    } else {
        machine.mount(&[]);
    }
    let device = PathBuf::from(machine.list()[0]["device"].as_str().unwrap());
    fs::write(mount_point.join("file"), vec![7; 1 << 20]).unwrap();
    target.stand_still();
    let name = if by_hand { &device } else { &mount_point };
    let mut umount = machine.command("umount", &[utf8(name)]);
    let umount = umount.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let mut umount = umount.unwrap();
    wait_until("the mount point is gone", || {
        mount_at(&mount_point).unwrap().is_none()
    });
    signal(umount.id(), Signal::SIGKILL);
    umount.wait().unwrap();
    device
}

#[test]
fn an_interrupted_unmount_is_ended_by_its_folder() {
    let test = "an_interrupted_unmount_is_ended_by_its_folder";
    if !has_disks(test, &["mkfs.ext4", "e2fsck"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for by_hand in [false, true] {
        let image = ext4_image(dir.path());
        let target = Target::start(utf8(&image));
        let device = half_unmount(&target, by_hand);
        let machine = &target.machine;
        let mount_point = machine.mount_point();
        let list = machine.list();
        assert_eq!(list.len(), 1);
        let attention = list[0]["attention"].as_str().unwrap();
        let advice = format!("capstan umount --force {}", utf8(&mount_point));
        assert!(attention.contains(&advice), "{attention}");
        let error = complaint(&machine.run("umount", &[utf8(&mount_point)]));
        assert!(error.contains(&advice), "{error}");
        let unmounting = format!(
            "is being mounted at {}, or unmounted from there",
            utf8(&mount_point)
        );
        let pid = list[0]["pid"].to_string();
        for args in [
            &["--force", utf8(&mount_point)][..],
            &[utf8(&device)],
            &[&pid],
        ] {
            let error = complaint(&machine.run("detach", args));
            assert!(
                error.contains(&unmounting) && error.contains(&advice),
                "{args:?}: {error}"
            );
        }
        // It is done, and what was not written is told as lost writes are.
        let error = complaint(&machine.run("umount", &["--force", utf8(&mount_point)]));
        assert!(error.contains("what was not written is lost"), "{error}");
        assert!(lost_log(machine).contains("is lost"));
        machine.assert_clean(&device);
    }
}

/// PID in `list`.
#[test]
fn a_volume_is_found_by_the_number_of_its_process() {
    let test = "a_volume_is_found_by_the_number_of_its_process";
    if !has_disks(test, &["mkfs.ext4"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = ext4_image(dir.path());
    let target = Target::start(utf8(&image));
    let machine = &target.machine;
    machine.mount(&[]);
    let of = || machine.list()[0]["pid"].to_string();
    let error = complaint(&machine.run("detach", &[&of()]));
    let mounted = format!("is mounted at {}", utf8(&machine.mount_point()));
    assert!(error.contains(&mounted), "{error}");
    told(&machine.run("umount", &[&of()]));
    assert!(machine.list().is_empty());
    let device = machine.attach(&[]);
    told(&machine.run("detach", &[&of()]));
    machine.assert_clean(&device);
    // One of nobody's.
    for command in ["detach", "umount"] {
        let error = complaint(&machine.run(command, &["4194304"]));
        assert!(error.contains("`capstan list`"), "{error}");
    }
}
