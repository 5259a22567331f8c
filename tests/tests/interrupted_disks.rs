//! SIGINT, SIGTERM and SIGHUP to what makes, serves and takes down disks: it ends within two
//! seconds and leaves nothing. What has to write dirty data of a mounted disk says so, and ends at
//! a second one.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use capstan_initiator::internals::disk::mounts::mount_at;
use capstan_tests::disks::{ext4_image, lost_log};
use capstan_tests::program::{
    Daemon, Machine, complaint, has_disks, own_address, signal, told, tool, utf8,
};
use capstan_tests::proxy::{Direction, Flow, Proxy};
use capstan_tests::running::Running;
use nix::sys::signal::Signal;
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(30);

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "waited too long until {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// A command on the volume, at work.
fn begin(machine: &Machine, command: &str, args: &[&str]) -> Running {
    let target = machine.target();
    let target: Vec<&str> = target.iter().map(String::as_str).collect();
    Running::start(machine.command(command, &[args, &target[..]].concat()))
}

/// A target that accepts and stays silent, and a machine that attaches its volume.
fn begin_attach_to_silence() -> (TcpListener, Machine, Running) {
    let at = own_address();
    let silent = TcpListener::bind(at).expect("the address is free");
    let machine = Machine::new(at);
    let attach = begin(&machine, "attach", &["--connect-timeout", "60"]);
    wait_until("it is listed", || !machine.list().is_empty());
    (silent, machine, attach)
}

#[test]
fn a_volume_that_is_being_connected_is_listed_and_can_be_given_up() {
    let test = "a_volume_that_is_being_connected_is_listed_and_can_be_given_up";
    if !has_disks(test, &[]) {
        return;
    }
    for force in [&[][..], &["--force"]] {
        let (_silent, machine, attach) = begin_attach_to_silence();
        let list = machine.list();
        assert_eq!(list[0]["state"], "connecting", "{list:?}");
        assert_eq!(list[0]["device"], Value::Null, "{list:?}");
        let folder = list[0]["folder"].as_str().unwrap();
        let advice = format!("to give it up: capstan detach {folder}");
        let text = told(&machine.run("list", &[]));
        assert!(
            text.contains(&advice) && text.contains("connecting to "),
            "{text}"
        );
        told(&machine.run("detach", &[force, &[folder]].concat()));
        let error = complaint(&attach.ends("though its volume was given up"));
        assert!(
            error.contains("given up") || error.contains("ended"),
            "{error}"
        );
        machine.assert_clean(Path::new("/dev/loop-none"));
    }
    // By the folder that it is going to be mounted at.
    let at = own_address();
    let _silent = TcpListener::bind(at).expect("the address is free");
    let machine = Machine::new(at);
    let point = machine.mount_point();
    let mount = begin(
        &machine,
        "mount",
        &["--connect-timeout", "60", utf8(&point)],
    );
    wait_until("it is listed", || !machine.list().is_empty());
    told(&machine.run("umount", &["--force", utf8(&point)]));
    drop(complaint(&mount.ends("though its volume was given up")));
    machine.assert_clean(Path::new("/dev/loop-none"));
}

#[test]
fn what_serves_a_disk_ends_with_the_command_that_asked_for_it() {
    if !has_disks(
        "what_serves_a_disk_ends_with_the_command_that_asked_for_it",
        &[],
    ) {
        return;
    }
    let (_silent, machine, attach) = begin_attach_to_silence();
    let serving = machine.serving_pid();
    signal(attach.child.id(), Signal::SIGKILL);
    wait_until("it has ended", || {
        !Path::new("/proc").join(serving.to_string()).exists()
    });
    machine.assert_clean(Path::new("/dev/loop-none"));
    // Asked itself, and stopped so that it cannot answer.
    for sent in [Signal::SIGTERM, Signal::SIGINT] {
        let (_silent, machine, attach) = begin_attach_to_silence();
        signal(machine.serving_pid(), sent);
        drop(complaint(&attach.ends("though its process was ended")));
        machine.assert_clean(Path::new("/dev/loop-none"));
        let (_silent, machine, attach) = begin_attach_to_silence();
        signal(machine.serving_pid(), Signal::SIGSTOP);
        drop(complaint(&attach.interrupted(sent)));
        machine.assert_clean(Path::new("/dev/loop-none"));
    }
}

#[test]
fn commands_on_a_disk_end_though_its_target_or_its_process_is_stopped() {
    let test = "commands_on_a_disk_end_though_its_target_or_its_process_is_stopped";
    if !has_disks(test, &[]) {
        return;
    }
    let at = own_address();
    let target = Daemon::start("ram:16MiB", 4096, at);
    let machine = Machine::new(at);
    let device = machine.attach(&["--keep-alive-tmo", "1", "--io-timeout", "1"]);
    let name = utf8(&device);
    let serving = machine.serving_pid();
    let stopped = [
        (target.pid(), &["reset"][..]),
        (serving, &["reset", "ns-rescan", "detach"]),
    ];
    for (pid, commands) in stopped {
        signal(pid, Signal::SIGSTOP);
        for sent in [Signal::SIGINT, Signal::SIGTERM] {
            let begun = commands
                .iter()
                .map(|&command| Running::start(machine.command(command, &[name])));
            let begun: Vec<_> = begun.collect();
            // They ask the serving process, or wait for the controller that it resets.
            thread::sleep(Duration::from_millis(300));
            for mut command in begun {
                let line = command.line.clone();
                let ended = command.child.try_wait().unwrap();
                assert!(ended.is_none(), "`{line}` did not wait: {ended:?}");
                assert!(!command.interrupted(sent).status.success(), "`{line}`");
            }
        }
        signal(pid, Signal::SIGCONT);
    }
    // A detach that was begun, and whose command has ended, goes on.
    wait_until("it is detached", || machine.list().is_empty());
    machine.assert_clean(&device);
    assert!(target.stop().success());
}

/// A target of `image` that can stand still, with a machine.
struct Scene {
    _folder: tempfile::TempDir,
    _daemon: Daemon,
    proxy: Proxy,
    machine: Machine,
}

impl Scene {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let image = ext4_image(folder.path());
        let at = own_address();
        let daemon = Daemon::start(utf8(&image), 4096, at);
        let proxy = Proxy::start(at);
        let machine = Machine::new(proxy.address);
        Self {
            _folder: folder,
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

    fn device(&self) -> PathBuf {
        PathBuf::from(self.machine.list()[0]["device"].as_str().unwrap())
    }

    /// A volume that is mounted and has data that is not written, on a target that stands still.
    fn mounted_and_dirty(&self) -> PathBuf {
        self.machine.mount(&[]);
        let device = self.device();
        fs::write(self.machine.mount_point().join("file"), vec![7; 1 << 20]).unwrap();
        self.stand_still();
        device
    }
}

#[test]
fn an_unmount_says_what_it_waits_for_and_a_second_signal_ends_it() {
    let test = "an_unmount_says_what_it_waits_for_and_a_second_signal_ends_it";
    if !has_disks(test, &["mkfs.ext4"]) {
        return;
    }
    for args in [&[][..], &["--force"]] {
        let scene = Scene::new();
        let device = scene.mounted_and_dirty();
        let machine = &scene.machine;
        let point = machine.mount_point();
        let umount = machine.command("umount", &[args, &[utf8(&point)]].concat());
        let mut umount = Running::start(umount);
        wait_until("the kernel unmounts it", || {
            mount_at(&point).unwrap().is_none()
        });
        signal(umount.child.id(), Signal::SIGINT);
        let mut stderr = umount.child.stderr.take().unwrap();
        let mut said = String::new();
        while !said.contains("what is not written is lost") {
            let mut piece = [0; 512];
            let count = std::io::Read::read(&mut stderr, &mut piece).unwrap();
            assert!(count > 0, "{said}");
            said.push_str(&String::from_utf8_lossy(&piece[..count]));
        }
        assert!(
            said.contains(utf8(&device)) && said.contains("controller is"),
            "{said}"
        );
        assert!(
            umount.child.try_wait().unwrap().is_none(),
            "one signal ended it"
        );
        drop(umount.insisted(Signal::SIGTERM));
        assert!(lost_log(machine).contains("is lost"));
        machine.assert_clean(&device);
    }
}

/// As of timeout(1), which signals its command and then the group that this is in.
#[test]
fn signals_that_come_together_are_one() {
    if !has_disks("signals_that_come_together_are_one", &["mkfs.ext4"]) {
        return;
    }
    let scene = Scene::new();
    let device = scene.mounted_and_dirty();
    let machine = &scene.machine;
    let point = machine.mount_point();
    let serving = machine.serving_pid();
    // In a group of its own, so that it alone is signalled, with what it has started.
    let mut command = machine.command("umount", &[utf8(&point)]);
    let umount = Running::start({
        command.process_group(0);
        command
    });
    wait_until("the kernel unmounts it", || {
        mount_at(&point).unwrap().is_none()
    });
    let pid = umount.child.id();
    for sent in [Signal::SIGTERM, Signal::SIGINT] {
        signal(pid, sent);
        tool("kill", &["-s", sent.as_str(), "--", &format!("-{pid}")]);
        signal(serving, sent);
    }
    for direction in [Direction::ToTarget, Direction::ToHost] {
        scene.proxy.set_all(direction, Flow::Pass);
        scene.proxy.set_new(direction, Flow::Pass);
    }
    wait_until("it has ended", || {
        fs::read_to_string(format!("/proc/{pid}/stat")).map_or(true, |stat| stat.contains(") Z "))
    });
    let output = umount.ends("though it had ended");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!said.contains("is ended"), "{said}");
    wait_until("its process has ended", || machine.list().is_empty());
    machine.assert_clean(&device);
    machine.mount(&[]);
    let kept = fs::read(point.join("file")).unwrap();
    assert_eq!(kept, vec![7; 1 << 20], "what was dirty is not there");
    machine.umount();
}

#[test]
fn an_unmount_that_takes_long_says_what_it_waits_for_unasked() {
    let test = "an_unmount_that_takes_long_says_what_it_waits_for_unasked";
    if !has_disks(test, &["mkfs.ext4"]) {
        return;
    }
    let scene = Scene::new();
    let device = scene.mounted_and_dirty();
    let machine = &scene.machine;
    let mut umount = Running::start(machine.command("umount", &[utf8(&machine.mount_point())]));
    let mut stderr = umount.child.stderr.take().unwrap();
    let mut said = String::new();
    let mut wait_for = |words: &str| {
        while !said.contains(words) {
            let mut piece = [0; 512];
            let count = std::io::Read::read(&mut stderr, &mut piece).unwrap();
            assert!(count > 0, "no {words} in {said}");
            said.push_str(&String::from_utf8_lossy(&piece[..count]));
        }
    };
    wait_for("two signals (twice ctrl-C) end the disk at once");
    signal(umount.child.id(), Signal::SIGINT);
    wait_for("another signal ends the disk at once");
    drop(umount.insisted(Signal::SIGINT));
    assert!(lost_log(machine).contains("is lost"));
    machine.assert_clean(&device);
}

/// Nothing dirty is held: the kernel unmounts at once, and only the controller is not told.
#[test]
fn an_unmount_without_dirty_data_ends_by_itself_and_says_so_to_a_signal() {
    let test = "an_unmount_without_dirty_data_ends_by_itself_and_says_so_to_a_signal";
    if !has_disks(test, &["mkfs.ext4"]) {
        return;
    }
    for sent in [None, Some(Signal::SIGTERM), Some(Signal::SIGINT)] {
        let scene = Scene::new();
        let machine = &scene.machine;
        let point = machine.mount_point();
        machine.mount(&["--read-only"]);
        let device = scene.device();
        let pid = machine.serving_pid();
        scene.stand_still();
        if let Some(sent) = sent {
            let umount = Running::start(machine.command("umount", &[utf8(&point)]));
            wait_until("its disk has ended", || {
                let list = machine.list();
                list.first().is_some_and(|v| v["state"] == "closing")
            });
            let said = complaint(&umount.interrupted(sent));
            for words in [&*format!("process {pid}"), "ends by itself", utf8(&point)] {
                assert!(said.contains(words), "no {words} in {said}");
            }
        } else {
            machine.umount();
        }
        wait_until("it has ended by itself", || machine.list().is_empty());
        machine.assert_clean(&device);
    }
}

#[test]
fn a_second_signal_ends_the_process_of_a_mounted_disk() {
    let test = "a_second_signal_ends_the_process_of_a_mounted_disk";
    if !has_disks(test, &["mkfs.ext4"]) {
        return;
    }
    let scene = Scene::new();
    let device = scene.mounted_and_dirty();
    let machine = &scene.machine;
    let serving = machine.serving_pid();
    let log = machine.path("run/0/log");
    let says = |words: &str| fs::read_to_string(&log).is_ok_and(|log| log.contains(words));
    signal(serving, Signal::SIGTERM);
    wait_until("it says why it goes on", || {
        says("another signal within 60 s")
    });
    assert!(says("unmount it first: capstan umount"));
    let start = Instant::now();
    wait_until("it has ended", || {
        let has_ended = !Path::new("/proc").join(serving.to_string()).exists();
        if !has_ended {
            signal(serving, Signal::SIGTERM);
        }
        has_ended
    });
    assert!(
        start.elapsed() < Duration::from_secs(3),
        "{:?}",
        start.elapsed()
    );
    assert_eq!(machine.list()[0]["state"], "dead");
    told(&machine.run("umount", &["--force", utf8(&machine.mount_point())]));
    machine.assert_clean(&device);
}

#[test]
fn a_mount_ends_while_its_disk_does_not_answer() {
    let test = "a_mount_ends_while_its_disk_does_not_answer";
    if !has_disks(test, &["mkfs.ext4"]) {
        return;
    }
    // While blkid looks at the disk, and while mount(8) does.
    for args in [&[][..], &["--type", "ext4"]] {
        for sent in [Signal::SIGTERM, Signal::SIGINT] {
            let scene = Scene::new();
            // What the kernel reads by itself comes; the rest does not.
            scene
                .proxy
                .set_new(Direction::ToHost, Flow::Delay(Duration::from_millis(50)));
            let point = scene.machine.mount_point();
            let mount = begin(&scene.machine, "mount", &[args, &[utf8(&point)]].concat());
            wait_until("the disk is made", || {
                let list = scene.machine.list();
                list.first().is_some_and(|volume| volume["state"] == "live")
            });
            scene.stand_still();
            let device = scene.device();
            let output = mount.interrupted(sent);
            assert!(!output.status.success(), "{output:?}");
            scene.machine.assert_clean(&device);
        }
    }
}

/// A tool that never ends, before that of the system: the path to look for tools in, and where it
/// says its process.
fn endless(machine: &Machine, tool: &str) -> (String, PathBuf) {
    let folder = machine.path(&format!("endless-{tool}"));
    fs::create_dir_all(&folder).unwrap();
    let path = folder.join(tool);
    fs::write(&path, "#!/bin/sh\necho $$ >\"$0.pid\"\nexec sleep 1000\n").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", utf8(&folder), std::env::var("PATH").unwrap());
    (path, folder.join(format!("{tool}.pid")))
}

#[test]
fn a_tool_that_does_not_end_is_given_up_and_named() {
    let test = "a_tool_that_does_not_end_is_given_up_and_named";
    if !has_disks(test, &["mkfs.ext4"]) {
        return;
    }
    let scene = Scene::new();
    let machine = &scene.machine;
    let point = machine.mount_point();
    let slow = |tool: &str, command: &str, args: &[&str]| {
        let target = machine.target();
        let target: Vec<&str> = target.iter().map(String::as_str).collect();
        let args = [args, &["--io-timeout", "1"], &target[..]].concat();
        let mut command = machine.command(command, &args);
        command.env("PATH", endless(machine, tool).0);
        command
    };
    // Without its partitions, the disk is there.
    let output = slow("blkid", "attach", &[]).output().unwrap();
    let device = PathBuf::from(told(&output).trim());
    let warned = String::from_utf8_lossy(&output.stderr).into_owned();
    let named = |said: &str| {
        let blkid = format!("`blkid --probe --output export {}`", utf8(&device));
        said.contains(&blkid) && said.contains("has not ended after 6 s")
    };
    assert!(named(&warned), "{warned}");
    told(&machine.run("detach", &[utf8(&device)]));
    machine.assert_clean(&device);
    let error = complaint(&slow("blkid", "mount", &[utf8(&point)]).output().unwrap());
    assert!(
        error.contains("`blkid") && error.contains("has not ended after 6 s"),
        "{error}"
    );
    machine.assert_clean(&device);
    // A signal ends it sooner, and what may take its time as well.
    let all = [Signal::SIGTERM, Signal::SIGHUP];
    for (tool, sent) in ["blkid", "mount"].into_iter().zip(all) {
        let (_, pid) = endless(machine, tool);
        let _ = fs::remove_file(&pid);
        let mount = Running::start(slow(tool, "mount", &[utf8(&point)]));
        let said = || fs::read_to_string(&pid).unwrap_or_default();
        wait_until("the tool runs", || said().ends_with('\n'));
        let output = mount.interrupted(sent);
        assert_eq!(output.status.code(), Some(128 + sent as i32), "{output:?}");
        machine.assert_clean(&device);
        let process = Path::new("/proc").join(said().trim());
        wait_until("the tool has ended", || !process.exists());
    }
}

#[test]
fn a_mount_that_has_failed_ends_while_its_disk_does_not_go() {
    let test = "a_mount_that_has_failed_ends_while_its_disk_does_not_go";
    if !has_disks(test, &["mkfs.ext4"]) {
        return;
    }
    for sent in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        let scene = Scene::new();
        let machine = &scene.machine;
        let point = machine.mount_point();
        // A mount(8) that fails, and before that stops what serves the disk: it does not detach it.
        let folder = machine.path("failing");
        fs::create_dir_all(&folder).unwrap();
        let failing = folder.join("mount");
        let failed = folder.join("failed");
        let stop = format!(
            "#!/bin/sh\nkill -STOP $(sed -n 's/.*\"pid\": *\\([0-9]*\\).*/\\1/p' {} | head -1)\n\
             : >{}\nexit 32\n",
            utf8(&machine.path("run/0/volume.json")),
            utf8(&failed)
        );
        fs::write(&failing, stop).unwrap();
        fs::set_permissions(&failing, fs::Permissions::from_mode(0o755)).unwrap();
        let target = machine.target();
        let target: Vec<&str> = target.iter().map(String::as_str).collect();
        let mut mount = machine.command("mount", &[&[utf8(&point)], &target[..]].concat());
        let path = format!("{}:{}", utf8(&folder), std::env::var("PATH").unwrap());
        mount.env("PATH", path);
        let mount = Running::start(mount);
        wait_until("mount(8) has failed", || failed.exists());
        let record = fs::read_to_string(machine.path("run/0/volume.json")).unwrap();
        let record: Value = serde_json::from_str(&record).unwrap();
        let device = PathBuf::from(record["device"].as_str().unwrap());
        let output = mount.interrupted(sent);
        assert_eq!(output.status.code(), Some(128 + sent as i32), "{output:?}");
        machine.assert_clean(&device);
    }
}
