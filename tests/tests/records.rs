//! Records of disks that are not what they say: what is told of them is true, and nothing in them
//! reaches a terminal.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use capstan_tests::disks::Loop;
use capstan_tests::program::{Machine, complaint, has_disks, own_address, told, utf8};
use serde_json::{Value, json};

/// Puts a record into the state folder.
fn put(machine: &Machine, number: u32, record: &Value) {
    let folder = machine.path("run").join(number.to_string());
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("volume.json"), record.to_string()).unwrap();
}

fn record(pid: i32, start_ticks: u64, device: &str) -> Value {
    json!({
        "process": { "pid": pid, "start_ticks": start_ticks },
        "device": device,
        "loop_name": "capstan-1-1",
        "subnqn": "nqn.2026-11.org.example:volume",
        "nsid": 1,
        "traddr": "127.0.0.1",
        "trsvcid": 4420,
        "size_bytes": 1 << 20,
        "lba_bytes": 4096,
        "read_only": false,
    })
}

fn stderr(machine: &Machine, command: &str, args: &[&str]) -> String {
    let output = machine.run(command, args);
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A process that has nothing to do with capstan.
struct Stranger(Child);

impl Stranger {
    fn start() -> Self {
        let mut sleep = Command::new("sleep");
        Self(sleep.arg("300").stdin(Stdio::null()).spawn().unwrap())
    }

    fn pid(&self) -> i32 {
        i32::try_from(self.0.id()).unwrap()
    }

    /// proc_pid_stat(5), field 22.
    fn start_ticks(&self) -> u64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.0.id())).unwrap();
        let (_, rest) = stat.rsplit_once(") ").unwrap();
        rest.split(' ').nth(19).unwrap().parse().unwrap()
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_record_with_the_number_of_no_process_is_none() {
    let machine = Machine::new(own_address());
    for pid in [0, -1, i32::MIN] {
        put(&machine, 0, &record(pid, 0, "/dev/loop99"));
        let path = machine.path("run/0/volume.json");
        let said = stderr(&machine, "list", &[]);
        assert!(
            said.contains(&format!(
                "{}: invalid value: integer `{pid}`, expected the number of a process, 1 or more",
                utf8(&path)
            )),
            "{said}"
        );
        assert!(!said.contains("taken down"), "{said}");
        assert!(path.exists(), "it is the user's to look at");
    }
}

#[test]
fn a_disk_that_was_not_taken_down_is_not_said_to_be() {
    let test = "a_disk_that_was_not_taken_down_is_not_said_to_be";
    if !has_disks(test, &["losetup"]) {
        return;
    }
    let machine = Machine::new(own_address());
    let file = machine.path("other.img");
    fs::File::create(&file).unwrap().set_len(1 << 20).unwrap();
    let others = Loop::new(&file);
    // One of a name that is another's now, and one that is gone.
    let anothers = "; the device is another's by now, and was left alone";
    let gone = ", and the disk had gone with its last user";
    for (device, disk) in [(utf8(others.path()), anothers), ("/dev/loop4095", gone)] {
        for (command, args) in [("list", &[][..]), ("detach", &[device])] {
            // What starts with the machine has other ticks.
            put(&machine, 0, &record(1, u64::MAX, device));
            let said = stderr(&machine, command, args);
            assert!(
                said.contains(&format!("process 1, which served {device}, had died{disk}")),
                "{command}: {said}"
            );
            assert!(!machine.path("run/0").exists(), "{said}");
        }
    }
    let left = fs::read_to_string(
        Path::new("/sys/block")
            .join(others.path().file_name().unwrap())
            .join("loop/backing_file"),
    );
    assert_eq!(left.unwrap().trim(), utf8(&file), "it was left alone");
}

#[test]
fn a_process_that_serves_no_disk_is_found_out_before_it_is_waited_for() {
    let test = "a_process_that_serves_no_disk_is_found_out_before_it_is_waited_for";
    if !has_disks(test, &[]) {
        return;
    }
    let machine = Machine::new(own_address());
    let folder = machine.path("mounted");
    fs::create_dir(&folder).unwrap();
    let stranger = Stranger::start();
    let mut stale = record(stranger.pid(), stranger.start_ticks(), "/dev/loop4095");
    stale["mount_points"] = json!([folder.canonicalize().unwrap()]);
    put(&machine, 0, &stale);
    let start = Instant::now();
    let error = complaint(&machine.run("umount", &["--force", utf8(&folder)]));
    let took = start.elapsed();
    assert!(took < Duration::from_secs(8), "{took:?}");
    assert!(
        error.contains("is `sleep 300`") && error.contains("it is left alone"),
        "{error}"
    );
    assert!(
        Path::new("/proc")
            .join(stranger.0.id().to_string())
            .exists()
    );
}

/// It will never listen again: "closing" would be waited for without end.
#[test]
fn a_volume_whose_process_is_another_program_now_is_not_said_to_be_closing() {
    let machine = Machine::new(own_address());
    let stranger = Stranger::start();
    let device = "/dev/loop4095";
    put(
        &machine,
        0,
        &record(stranger.pid(), stranger.start_ticks(), device),
    );
    let list = machine.list();
    let [volume] = &list[..] else {
        panic!("{list:?}")
    };
    assert_eq!(volume["state"], "dead");
    let seen = volume["attention"].as_str().expect("it is said");
    let folder = machine.path("run/0");
    for words in ["its process is gone", "is `sleep 300`", utf8(&folder)] {
        assert!(seen.contains(words), "no {words} in {seen}");
    }
    let start = Instant::now();
    let error = complaint(&machine.run("detach", &[utf8(&folder)]));
    assert!(start.elapsed() < Duration::from_secs(8), "{error}");
    assert!(error.contains("is `sleep 300`"), "{error}");
    assert!(folder.exists(), "nothing is known of what it left");
}

#[test]
fn what_a_record_holds_reaches_no_terminal() {
    if !has_disks("what_a_record_holds_reaches_no_terminal", &[]) {
        return;
    }
    let machine = Machine::new(own_address());
    let stranger = Stranger::start();
    let mut odd = record(
        stranger.pid(),
        stranger.start_ticks(),
        "/dev/\u{1b}[31mloop\u{202e}",
    );
    odd["subnqn"] = json!("\u{1b}]0;title\u{7}\nnqn");
    odd["traddr"] = json!("\u{9b}2J");
    odd["mount_points"] = json!(["/mnt/\u{1b}c"]);
    put(&machine, 0, &odd);
    let detach = ["detach", "/dev/\u{1b}[31mloop\u{202e}"];
    for words in [
        &["list"][..],
        &detach,
        &[&detach[..], &["--force"]].concat(),
    ] {
        let output = machine.run(words[0], &words[1..]);
        for bytes in [&output.stdout, &output.stderr] {
            let text = String::from_utf8_lossy(bytes);
            let raw = text
                .chars()
                .find(|char| (char.is_control() && *char != '\n') || *char == '\u{202e}');
            assert_eq!(raw, None, "{words:?}: {text:?}");
        }
    }
    let text = told(&machine.run("list", &[]));
    assert!(text.contains("\\u{1b}]0;title\\u{7}\\nnqn/1"), "{text}");
    assert!(text.contains("/dev/\\u{1b}[31mloop\\u{202e}"), "{text}");
}
