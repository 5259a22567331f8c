//! What `capstan` says of writes that were lost, or that fail: aloud, in the exit status, in the
//! volume's log and in `capstan list`.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use capstan_tests::disks::{Thin, own_mounts, run};
use capstan_tests::program::{
    CLAIMS, Daemon, Machine, complaint, has_disks, has_tools, own_address, program, signal, told,
    tool, utf8,
};
use capstan_tests::target::SUBNQN;
use nix::sys::signal::Signal;
use serde_json::Value;

const MIB: usize = 1 << 20;
/// How long anything may take that should take a moment.
const PATIENCE: Duration = Duration::from_secs(60);

/// A target whose volume is a file through the page cache that promises more than can be stored.
struct Lossy {
    machine: Machine,
    daemon: Daemon,
    folder: tempfile::TempDir,
    _thin: Thin,
}

impl Lossy {
    fn new() -> Self {
        own_mounts();
        let thin = Thin::new(12);
        let path = thin.file("volume", 48 << 20);
        let folder = tempfile::tempdir().unwrap();
        let at = own_address();
        let toml = format!(
            "[target]\nreactors = 1\n[[listener]]\naddress = \"{}\"\nprovider = \"iwarp\"\n\
             [[subsystem]]\nnqn = \"{SUBNQN}\"\nallow_any_host = true\n\
             [[subsystem.namespace]]\nnsid = 1\npath = \"{}\"\nlba = 4096\ndirect = false\n",
            at.ip(),
            path.display()
        );
        let file = folder.path().join("target.toml");
        fs::write(&file, toml).unwrap();
        let runs_in = format!("RUNTIME_DIRECTORY={}", folder.path().join("run").display());
        let daemon = Daemon::serve_under(&["env", &runs_in], &["--config", utf8(&file)]);
        Self {
            machine: Machine::new(at),
            daemon,
            folder,
            _thin: thin,
        }
    }

    /// A file with more than can be stored.
    fn too_much(&self) -> PathBuf {
        let path = self.folder.path().join("data");
        fs::write(&path, vec![1; 30 * MIB]).unwrap();
        path
    }

    fn fill(&self, device: &Path) {
        let (from, to) = (self.too_much(), device.display());
        let from = format!("if={}", from.display());
        tool("dd", &[&from, &format!("of={to}"), "bs=1M", "oflag=direct"]);
    }

    fn sync_fails(device: &Path) {
        run(
            "dd",
            &[
                "if=/dev/null",
                &format!("of={}", utf8(device)),
                "conv=fsync",
            ],
        )
        .unwrap_err();
    }

    fn kept_log(&self, complaint: &str) -> String {
        kept_log(&self.machine, complaint)
    }
}

/// The volume's log is kept when writes were lost: its text, where the complaint says it is.
fn kept_log(machine: &Machine, complaint: &str) -> String {
    let kept = complaint
        .split_whitespace()
        .find(|word| word.contains("lost-capstan-"));
    let kept = kept.unwrap_or_else(|| panic!("no log in {complaint}"));
    let path = PathBuf::from(kept.trim_end_matches([',', ';', ':', ')']));
    let text = fs::read_to_string(&path).unwrap();
    assert_eq!(path.parent(), Some(machine.path("run").as_path()));
    fs::remove_file(path).unwrap();
    text
}

/// The line says which namespace has lost what, and what to do.
fn says_what_was_lost(complaint: &str) {
    for words in ["namespace 1", "may be lost", "target's log", "restore"] {
        assert!(complaint.contains(words), "no {words} in {complaint}");
    }
    assert_eq!(complaint.matches("may be lost").count(), 1, "{complaint}");
}

fn log(machine: &Machine) -> String {
    fs::read_to_string(machine.path("run/0/log")).unwrap()
}

/// Waits for `count` such lines; there are no more. A thread of its own writes the log.
fn assert_loud_lines(machine: &Machine, words: &[&str], count: usize) {
    let start = Instant::now();
    while loud_lines(machine, words) < count && start.elapsed() < PATIENCE {
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(loud_lines(machine, words), count, "{}", log(machine));
}

/// Lines of the volume's log at a level that people see, with all of `words`.
fn loud_lines(machine: &Machine, words: &[&str]) -> usize {
    let log = log(machine);
    let lines = log
        .lines()
        .filter(|line| line.contains("ERROR") || line.contains("WARN"));
    lines
        .filter(|line| words.iter().all(|word| line.contains(word)))
        .count()
}

fn attention(machine: &Machine) -> String {
    let list = machine.list();
    list[0]["attention"]
        .as_str()
        .unwrap_or_else(|| panic!("{list:?}"))
        .to_owned()
}

#[test]
fn root_detach_says_which_writes_were_lost() {
    if !has_disks("root_detach_says_which_writes_were_lost", &[]) {
        return;
    }
    let lossy = Lossy::new();
    let device = lossy.machine.attach(&[]);
    lossy.fill(&device);
    assert_eq!(lossy.machine.list()[0]["attention"], Value::Null);
    // The write-back fails when the controller is shut down, and not before.
    let said = complaint(&lossy.machine.run("detach", &[utf8(&device)]));
    says_what_was_lost(&said);
    assert!(said.contains("is detached"), "{said}");
    let kept = lossy.kept_log(&said);
    assert!(kept.contains("attached"), "{kept}");
    lossy.machine.assert_clean(&device);
    assert!(lossy.daemon.stop().success());
}

#[test]
fn root_umount_says_that_a_flush_had_failed() {
    if !has_disks("root_umount_says_that_a_flush_had_failed", &["mkfs.ext4"]) {
        return;
    }
    let lossy = Lossy::new();
    let device = lossy.machine.attach(&[]);
    tool(
        "mkfs.ext4",
        &[
            "-q",
            "-O",
            "^has_journal",
            "-E",
            "lazy_itable_init=1",
            utf8(&device),
        ],
    );
    told(&lossy.machine.run("detach", &[utf8(&device)]));
    lossy.machine.mount(&[]);
    let file = lossy.machine.mount_point().join("file");
    fs::write(&file, vec![1; 30 * MIB]).unwrap();
    run("sync", &[utf8(&file)]).unwrap_err();
    let attention = attention(&lossy.machine);
    assert!(attention.contains("Flush"), "{attention}");
    let said = complaint(
        &lossy
            .machine
            .run("umount", &[utf8(&lossy.machine.mount_point())]),
    );
    says_what_was_lost(&said);
    lossy.kept_log(&said);
    lossy.machine.assert_clean(&device);
}

/// Whoever unmounts with the system's tools finds the log.
#[test]
fn root_a_disk_that_goes_by_itself_leaves_its_log_when_writes_were_lost() {
    let test = "root_a_disk_that_goes_by_itself_leaves_its_log_when_writes_were_lost";
    if !has_disks(test, &[]) {
        return;
    }
    let lossy = Lossy::new();
    let device = lossy.machine.attach(&[]);
    lossy.fill(&device);
    signal(lossy.machine.serving_pid(), Signal::SIGTERM);
    let run_dir = lossy.machine.path("run");
    let kept = || {
        let entries = fs::read_dir(&run_dir).unwrap();
        entries
            .map(|entry| entry.unwrap().path())
            .find(|path| utf8(path).contains("lost-capstan-"))
    };
    let start = Instant::now();
    while kept().is_none() {
        assert!(start.elapsed() < PATIENCE, "no log is kept");
        thread::sleep(Duration::from_millis(20));
    }
    let path = kept().unwrap();
    let text = fs::read_to_string(&path).unwrap();
    says_what_was_lost(text.lines().next().unwrap());
    fs::remove_file(path).unwrap();
    lossy.machine.assert_clean(&device);
}

#[test]
fn root_write_says_what_was_lost() {
    let lossy = Lossy::new();
    let data = lossy.too_much();
    let said = complaint(&lossy.machine.run_on_target("write", &["-d", utf8(&data)]));
    says_what_was_lost(&said);
    // The Flush of a volume that has lost writes says what to do, and names no LBA.
    let said = complaint(&lossy.machine.run_on_target("flush", &[]));
    for words in [
        "Flush of namespace 1",
        "Write Fault",
        "target's log",
        "capstan-target doctor",
    ] {
        assert!(said.contains(words), "no {words} in {said}");
    }
    assert!(!said.contains("LBA"), "{said}");
}

#[test]
fn root_serve_nbd_says_what_was_lost() {
    if !has_tools("root_serve_nbd_says_what_was_lost", &["nbdcopy"]) {
        return;
    }
    let lossy = Lossy::new();
    let data = lossy.too_much();
    let socket = lossy.folder.path().join("socket");
    let mut nbd = Command::new("setpriv")
        .args(["--pdeathsig", "TERM"])
        .arg(program("capstan"))
        .arg("serve-nbd")
        .args(lossy.machine.target())
        .args(["--socket", utf8(&socket)])
        .env(CLAIMS, lossy.machine.path("claims"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut uri = String::new();
    BufReader::new(nbd.stdout.take().unwrap())
        .read_line(&mut uri)
        .unwrap();
    tool("nbdcopy", &[utf8(&data), uri.trim()]);
    signal(nbd.id(), Signal::SIGTERM);
    says_what_was_lost(&complaint(&nbd.wait_with_output().unwrap()));
}

#[test]
fn root_a_flush_that_fails_is_said_once_in_the_log_and_always_in_the_list() {
    let test = "root_a_flush_that_fails_is_said_once_in_the_log_and_always_in_the_list";
    if !has_disks(test, &[]) {
        return;
    }
    let lossy = Lossy::new();
    let device = lossy.machine.attach(&[]);
    lossy.fill(&device);
    for _ in 0..3 {
        Lossy::sync_fails(&device);
    }
    let words = ["Flush", "namespace 1", "Write Fault"];
    assert_loud_lines(&lossy.machine, &words, 1);
    says_what_was_lost(&attention(&lossy.machine));
    let list = told(&lossy.machine.run("list", &[]));
    assert!(list.contains("live, but see below"), "{list}");
    let said = complaint(&lossy.machine.run("detach", &[utf8(&device)]));
    says_what_was_lost(&said);
    lossy.kept_log(&said);
    lossy.machine.assert_clean(&device);
}

fn dd_fails(device: &Path) {
    let to = format!("of={}", utf8(device));
    run(
        "dd",
        &["if=/dev/zero", &to, "bs=4096", "count=1", "oflag=direct"],
    )
    .unwrap_err();
}

#[test]
fn writes_to_a_protected_namespace_are_said() {
    if !has_disks("writes_to_a_protected_namespace_are_said", &[]) {
        return;
    }
    let at = own_address();
    let _daemon = Daemon::start("ram:16MiB", 4096, at);
    let machine = Machine::new(at);
    let device = machine.attach(&[]);
    let protect = [
        "--opcode",
        "0x09",
        "--namespace-id",
        "1",
        "--cdw10",
        "0x84",
        "--cdw11",
        "1",
    ];
    // It takes no options for the time after a loss.
    let target = machine.target();
    let target = target.iter().map(String::as_str);
    let target = target.take_while(|word| *word != "--reconnect-delay");
    let arguments: Vec<&str> = target.chain(protect).collect();
    told(&machine.run("admin-passthru", &arguments));
    for _ in 0..3 {
        dd_fails(&device);
    }
    let words = ["namespace 1", "Namespace is Write Protected"];
    assert_loud_lines(&machine, &words, 1);
    let attention = attention(&machine);
    for words in ["writes to namespace 1 fail", "Write Protected", "84h"] {
        assert!(attention.contains(words), "no {words} in {attention}");
    }
    assert!(!attention.contains("lost"), "{attention}");
    // What wrote past the cache was told; what the kernel writes back is told here only.
    let said = complaint(&machine.run("detach", &[utf8(&device)]));
    assert!(said.contains("4096 bytes that were written"), "{said}");
    kept_log(&machine, &said);
    machine.assert_clean(&device);
}

#[test]
fn root_writes_that_find_no_room_are_said() {
    if !has_disks("root_writes_that_find_no_room_are_said", &[]) {
        return;
    }
    own_mounts();
    let folder = tempfile::tempdir().unwrap();
    let at_folder = utf8(folder.path());
    run(
        "mount",
        &["-t", "tmpfs", "-o", "size=1m", "none", at_folder],
    )
    .unwrap();
    let image = folder.path().join("image");
    File::create(&image).unwrap().set_len(16 << 20).unwrap();
    fs::write(folder.path().join("other"), vec![1; MIB - 8192]).unwrap();
    let at = own_address();
    let daemon = Daemon::start(utf8(&image), 4096, at);
    let machine = Machine::new(at);
    let device = machine.attach(&[]);
    let to = format!("of={}", utf8(&device));
    let arguments = ["if=/dev/zero", &to, "bs=64k", "count=64", "oflag=direct"];
    run("dd", &arguments).unwrap_err();
    run("dd", &arguments).unwrap_err();
    let words = ["namespace 1", "Capacity Exceeded", "room"];
    assert_loud_lines(&machine, &words, 1);
    let attention = attention(&machine);
    assert!(attention.contains("make room"), "{attention}");
    let said = complaint(&machine.run("detach", &[utf8(&device)]));
    assert!(said.contains("65536 bytes that were written"), "{said}");
    kept_log(&machine, &said);
    machine.assert_clean(&device);
    let data = machine.path("data");
    fs::write(&data, vec![1; 2 * MIB]).unwrap();
    let said = complaint(&machine.run_on_target("write", &["-d", utf8(&data)]));
    for words in [
        "of the first 2097152 bytes",
        "some may be written",
        "Write of namespace 1: Capacity Exceeded",
        "make room",
    ] {
        assert_eq!(said.matches(words).count(), 1, "{words} in {said}");
    }
    // It leaves in order.
    assert_eq!(
        daemon.count_log("reset by the peer"),
        0,
        "{:?}",
        daemon.log()
    );
    assert!(daemon.stop().success());
    run("umount", &[at_folder]).unwrap();
}

#[test]
fn a_reset_or_rescan_of_a_disk_that_stays_refused_says_so() {
    if !has_disks(
        "a_reset_or_rescan_of_a_disk_that_stays_refused_says_so",
        &[],
    ) {
        return;
    }
    let at = own_address();
    let daemon = Daemon::start("ram:16MiB", 4096, at);
    let machine = Machine::new(at);
    let device = machine.attach(&[]);
    daemon.kill();
    let _daemon = Daemon::start("ram:16MiB", 4096, at);
    let start = Instant::now();
    while !machine.list()[0]["attention"].is_string() {
        assert!(start.elapsed() < PATIENCE, "it is not refused");
        thread::sleep(Duration::from_millis(20));
    }
    for command in ["reset", "ns-rescan"] {
        let said = complaint(&machine.run(command, &[utf8(&device)]));
        for words in ["refused", "capstan detach", "capstan attach"] {
            assert!(said.contains(words), "{command}: no {words} in {said}");
        }
    }
    told(&machine.run("detach", &[utf8(&device)]));
    machine.assert_clean(&device);
}

#[test]
fn a_serving_process_that_is_ended_by_force_is_not_said_to_have_died() {
    let test = "a_serving_process_that_is_ended_by_force_is_not_said_to_have_died";
    if !has_disks(test, &[]) {
        return;
    }
    let at = own_address();
    let _daemon = Daemon::start("ram:16MiB", 4096, at);
    let machine = Machine::new(at);
    let device = machine.attach(&[]);
    let pid = machine.serving_pid();
    let output = machine.run("detach", &["--force", utf8(&device)]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    for words in [&*pid.to_string(), "was ended", "not flushed may be lost"] {
        assert!(said.contains(words), "no {words} in {said}");
    }
    assert!(!said.contains("died"), "{said}");
    machine.assert_clean(&device);
    // One that has died by itself is said to have.
    let device = machine.attach(&[]);
    signal(machine.serving_pid(), Signal::SIGKILL);
    let start = Instant::now();
    let mut said = String::new();
    while !said.contains("died") {
        assert!(start.elapsed() < PATIENCE, "nothing is said of it: {said}");
        let output = machine.run("list", &[]);
        said = String::from_utf8_lossy(&output.stderr).into_owned();
    }
    assert!(said.contains("not flushed may be lost"), "{said}");
    machine.assert_clean(&device);
}

/// A write that a target which stands still has left unanswered, until the target goes on.
fn leave_a_write_unanswered(arguments: &[&str], look: impl FnOnce(&Machine)) {
    let at = own_address();
    let daemon = Daemon::start("ram:16MiB", 4096, at);
    let machine = Machine::new(at);
    let device = machine.attach(arguments);
    let to = format!("of={}", utf8(&device));
    signal(daemon.pid(), Signal::SIGSTOP);
    let mut dd = Command::new("dd")
        .args(["if=/dev/zero", &to, "bs=4096", "count=1", "oflag=direct"])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let start = Instant::now();
    while machine.list()[0]["state"] != "reconnecting" {
        let waited = start.elapsed() < PATIENCE;
        assert!(waited, "the loss is not seen: {}", log(&machine));
        thread::sleep(Duration::from_millis(20));
    }
    look(&machine);
    signal(daemon.pid(), Signal::SIGCONT);
    assert!(dd.wait().unwrap().success());
    // What is said of writes that are sent again is said when they are.
    look_at_the_end(arguments, &machine);
    told(&machine.run("detach", &[utf8(&device)]));
    machine.assert_clean(&device);
}

fn look_at_the_end(arguments: &[&str], machine: &Machine) {
    let immediate = usize::from(!arguments.is_empty());
    let words = [
        "1 command, sent and not answered, that would change media",
        "sent again at once",
    ];
    assert_loud_lines(machine, &words, immediate);
}

/// How long writes wait is for people, too, also while there is no connection.
#[test]
fn the_list_and_the_log_say_how_long_writes_wait() {
    if !has_disks("the_list_and_the_log_say_how_long_writes_wait", &[]) {
        return;
    }
    leave_a_write_unanswered(&[], |machine| {
        let list = told(&machine.run("list", &[]));
        assert!(
            list.contains("attempt") && list.contains("writes wait"),
            "{list}"
        );
        let words = ["they wait until", "KATO (", "CQT ("];
        assert_loud_lines(machine, &words, 1);
    });
}

#[test]
fn the_log_says_when_writes_are_sent_again_at_once() {
    if !has_disks("the_log_says_when_writes_are_sent_again_at_once", &[]) {
        return;
    }
    leave_a_write_unanswered(&["--replay-writes=immediate"], |machine| {
        assert_eq!(machine.list()[0]["held"], Value::Null);
    });
}
