//! Disks whose serving process was killed, or does not answer: `list` and `doctor` say what has
//! happened and the one command that cleans up, and that command does.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use capstan_tests::disks::{ext4_image, in_own_mounts};
use capstan_tests::program::{
    Daemon, Machine, complaint, has_disks, own_address, program, shell, signal, told, tool, utf8,
};
use capstan_tests::wait::wait_until;
use nix::sys::signal::Signal;
use serde_json::Value;

/// A target of an ext4 file system, and a machine.
struct Scene {
    _folder: tempfile::TempDir,
    _daemon: Daemon,
    machine: Machine,
}

impl Scene {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let image = ext4_image(folder.path());
        let at = own_address();
        Self {
            _folder: folder,
            _daemon: Daemon::start(utf8(&image), 4096, at),
            machine: Machine::new(at),
        }
    }

    fn device(&self) -> PathBuf {
        PathBuf::from(self.machine.list()[0]["device"].as_str().unwrap())
    }

    /// What the check of the only volume says.
    fn check(&self) -> Value {
        let output = self.machine.run("doctor", &["--output", "json"]);
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let checks = report["checks"].as_array().unwrap().iter();
        let of_volume = |check: &&Value| check["name"].as_str().unwrap().starts_with("volume ");
        let found: Vec<_> = checks.filter(of_volume).collect();
        assert_eq!(found.len(), 1, "{report:#}");
        found[0].clone()
    }

    /// What `list` and `doctor` say of the only volume names its process, its log and a command:
    /// that one.
    fn advice(&self, pid: u32, happened: &str) -> String {
        let text = told(&self.machine.run("list", &[]));
        let check = self.check();
        assert_eq!(check["verdict"], "error", "{check:#}");
        let (seen, remedy) = (&check["seen"], &check["remedy"]);
        for said in [text.as_str(), seen.as_str().unwrap()] {
            for words in [&format!("process {pid}"), happened, "/run/0/log"] {
                assert!(said.contains(words), "no {words} in {said}");
            }
        }
        let remedy = remedy.as_str().unwrap();
        let (_, command) = remedy.rsplit_once("capstan ").unwrap();
        let command = format!("capstan {command}");
        assert!(text.contains(&command), "no {command} in {text}");
        command
    }

    /// Does what was advised.
    fn follow(&self, advice: &str) -> std::process::Output {
        let words: Vec<&str> = advice.split(' ').collect();
        assert_eq!(words[0], "capstan");
        self.machine.run(words[1], &words[2..])
    }
}

fn kill(pid: u32) {
    signal(pid, Signal::SIGKILL);
    let process = Path::new("/proc").join(pid.to_string());
    wait_until("it has ended", || !process.exists());
}

#[test]
fn one_command_cleans_up_a_mounted_disk_whose_process_was_killed() {
    let test = "one_command_cleans_up_a_mounted_disk_whose_process_was_killed";
    if !has_disks(test, &["mkfs.ext4"]) {
        return;
    }
    // Also while somebody uses it, and where it is mounted twice.
    for is_used in [false, true] {
        let scene = Scene::new();
        let machine = &scene.machine;
        let point = machine.mount_point();
        machine.mount(&[]);
        let device = scene.device();
        let user = is_used.then(|| File::create(point.join("file")).unwrap());
        let second = machine.path("second");
        std::fs::create_dir(&second).unwrap();
        tool("mount", &[utf8(&device), utf8(&second)]);
        let pid = machine.serving_pid();
        kill(pid);
        let list = machine.list();
        assert_eq!(list[0]["state"], "dead", "{list:?}");
        let advice = scene.advice(pid, "was killed or has ended");
        assert_eq!(advice, format!("capstan umount --force {}", utf8(&device)));
        told(&scene.follow(&advice));
        assert!(machine.list().is_empty());
        drop(user);
        machine.assert_clean(&device);
    }
}

#[test]
fn an_unmount_of_a_dead_disk_says_that_its_disk_has_gone_with_its_last_user() {
    let test = "an_unmount_of_a_dead_disk_says_that_its_disk_has_gone_with_its_last_user";
    if !has_disks(test, &["mkfs.ext4"]) {
        return;
    }
    let scene = Scene::new();
    let machine = &scene.machine;
    machine.mount(&[]);
    let device = scene.device();
    kill(machine.serving_pid());
    let said = complaint(&machine.run("umount", &[utf8(&machine.mount_point())]));
    assert!(
        said.contains("had died, and the disk had gone with its last user"),
        "{said}"
    );
    assert!(!said.contains("another's"), "{said}");
    machine.assert_clean(&device);
}

#[test]
fn a_dead_disk_that_others_use_says_what_uses_it_and_what_comes_then() {
    let test = "a_dead_disk_that_others_use_says_what_uses_it_and_what_comes_then";
    if !has_disks(test, &["mkfs.ext4", "unshare", "nsenter"]) {
        return;
    }
    let scene = Scene::new();
    let machine = &scene.machine;
    let device = machine.attach(&[]);
    let script = "mount \"$0\" \"$1\" && echo && read -r _";
    let mount_point = machine.mount_point();
    let [unshare, own_mounts @ ..] = in_own_mounts(&mount_point);
    let mut container = Command::new(unshare)
        .args(own_mounts)
        .args(["sh", "-c", script, utf8(&device)])
        .arg(&mount_point)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = [0];
    std::io::Read::read_exact(container.stdout.as_mut().unwrap(), &mut line).unwrap();
    let pid = machine.serving_pid();
    kill(pid);
    let advice = scene.advice(pid, "was killed or has ended");
    assert_eq!(advice, format!("capstan detach {}", utf8(&device)));
    let remedy = scene.check()["remedy"].as_str().unwrap().to_owned();
    let first = remedy.split("first: ").nth(1).unwrap();
    let first = first.split("; then").next().unwrap();
    assert!(first.starts_with("nsenter "), "{remedy}");
    assert!(shell(first).status.success(), "{first}");
    told(&scene.follow(&advice));
    drop(container.stdin.take());
    assert!(container.wait().is_ok());
    machine.assert_clean(&device);
}

#[test]
fn a_process_that_does_not_answer_is_ended_by_the_command_that_is_named() {
    let test = "a_process_that_does_not_answer_is_ended_by_the_command_that_is_named";
    if !has_disks(test, &["mkfs.ext4"]) {
        return;
    }
    let scene = Scene::new();
    let machine = &scene.machine;
    let device = machine.attach(&[]);
    let pid = machine.serving_pid();
    signal(pid, Signal::SIGSTOP);
    let since = Instant::now();
    let list = machine.list();
    assert_eq!(list[0]["state"], "silent", "{list:?}");
    assert!(since.elapsed() < Duration::from_secs(5), "it is waited for");
    let advice = scene.advice(pid, "does not answer");
    assert_eq!(advice, format!("capstan detach --force {}", utf8(&device)));
    told(&scene.follow(&advice));
    machine.assert_clean(&device);
}

#[test]
fn what_another_has_mounted_is_not_unmounted_for_a_dead_process() {
    let test = "what_another_has_mounted_is_not_unmounted_for_a_dead_process";
    if !has_disks(test, &["mkfs.ext4"]) {
        return;
    }
    let scene = Scene::new();
    let machine = &scene.machine;
    machine.mount(&[]);
    let device = scene.device();
    let point = machine.mount_point();
    // A record of a process that has died, with a device that is this volume's by now.
    let record = std::fs::read_to_string(machine.path("run/0/volume.json")).unwrap();
    let mut record: Value = serde_json::from_str(&record).unwrap();
    record["loop_name"] = "capstan-1-2".into();
    record["process"]["start_ticks"] = u64::MAX.into();
    let other = machine.path("other");
    std::fs::create_dir_all(other.join("0")).unwrap();
    std::fs::write(other.join("0/volume.json"), record.to_string()).unwrap();
    for (command, args) in [
        ("umount", vec!["--force", utf8(&device)]),
        ("umount", vec!["--force", utf8(&point)]),
        ("list", vec![]),
    ] {
        let output = Command::new(program("capstan"))
            .arg(command)
            .args(args)
            .env("CAPSTAN_RUN_DIR", &other)
            .output();
        drop(output.unwrap());
        assert_eq!(machine.list()[0]["mount_points"][0], utf8(&point));
    }
    machine.umount();
    machine.assert_clean(&device);
}

/// As a worker of udev has it for a moment, or for as long as its own reads wait.
#[test]
fn a_disk_that_others_have_open_is_still_the_volumes_and_detached_by_another_try() {
    let test = "a_disk_that_others_have_open_is_still_the_volumes_and_detached_by_another_try";
    if !has_disks(test, &["mkfs.ext4"]) {
        return;
    }
    let scene = Scene::new();
    let machine = &scene.machine;
    let device = machine.attach(&[]);
    let user = File::open(&device).unwrap();
    let name = utf8(&device);
    let said = complaint(&machine.run("detach", &["--force", name]));
    let pid = std::process::id();
    let waits = format!("(pid {pid}): that is waited for, ");
    assert_eq!(said.matches(&waits).count(), 1, "{said}");
    for words in [
        &format!("{name} is still open in "),
        &format!("(pid {pid}); the disk goes when that ends"),
        &format!("capstan detach {name}"),
    ] {
        assert!(said.contains(words), "no {words} in {said}");
    }
    assert!(!said.contains("another's"), "{said}");
    let advice = scene.advice(machine.serving_pid(), "was killed or has ended");
    assert_eq!(advice, format!("capstan detach {name}"));
    drop(user);
    told(&scene.follow(&advice));
    machine.assert_clean(&device);
}
