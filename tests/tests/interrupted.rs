//! SIGINT and SIGTERM: every command ends within two seconds, whatever it waits for, and says what
//! it has got until then.

use std::collections::HashSet;
use std::fs::{self, OpenOptions};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread;
use std::time::{Duration, Instant};

use capstan_tests::program::{
    Daemon, Machine, has_disks, own_address, program, signal, told, tool, utf8,
};
use capstan_tests::proxy::{Direction, Flow, Proxy};
use capstan_tests::running::Running;
use capstan_tests::target::SUBNQN;
use capstan_tests::wait::wait_until;
use nix::sys::signal::Signal;
use nix::sys::socket::{Backlog, listen};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use serde_json::Value;

/// For what happens between processes of a busy machine.
const LONG: Duration = Duration::from_secs(30);
/// Every command that connects, with what it needs besides the target. Those that make disks come
/// last: they are left out where there can be none.
const COMMANDS: [&str; 21] = [
    "discover",
    "id-ctrl",
    "id-ns",
    "list-ns",
    "smart-log",
    "error-log",
    "effects-log",
    "ana-log",
    "get-feature -f 1",
    "admin-passthru --opcode 6 --cdw10 1 --data-len 4096",
    "io-passthru --opcode 0",
    "read -z 4096",
    "write -z 4096",
    "flush",
    "bench --rw randread --runtime 60",
    "doctor",
    "serve-nbd --socket",
    "attach",
    "attach --read-only",
    "mount MOUNT_POINT",
    "mount --type ext4 --part 2 MOUNT_POINT",
];
/// Those that make disks.
const OF_DISKS: usize = 4;

/// Waits until as many sockets have begun to connect to `at`, or are connected: lines of
/// `/proc/net/tcp` with that peer (proc_pid_net(5)).
fn wait_until_connecting(at: SocketAddr, sockets: usize) {
    let SocketAddr::V4(v4) = at else {
        panic!("{at} is no IPv4 address");
    };
    let address = u32::from_ne_bytes(v4.ip().octets());
    let peer = format!("{address:08X}:{:04X}", at.port());
    let start = Instant::now();
    loop {
        let table = fs::read_to_string("/proc/net/tcp").expect("/proc is mounted");
        let found: HashSet<_> = table
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>())
            // 01 is established, 02 is SYN sent.
            .filter(|fields| fields.get(2) == Some(&&*peer) && matches!(fields[3], "01" | "02"))
            .map(|fields| fields[1].to_owned())
            .collect();
        if found.len() >= sockets {
            return;
        }
        assert!(
            start.elapsed() < LONG,
            "{} of {sockets} connect to {at}",
            found.len()
        );
        thread::sleep(Duration::from_millis(10));
    }
}

/// Every command, at work.
struct Commands {
    machine: Machine,
    running: Vec<Running>,
    socket: PathBuf,
}

impl Commands {
    /// Starts them all on the target at `at`.
    fn start(at: SocketAddr) -> Self {
        let machine = Machine::new(at);
        let socket = machine.path("nbd");
        let can = has_disks("attach and mount among the commands", &[]);
        let count = COMMANDS.len() - if can { 0 } else { OF_DISKS };
        let running = COMMANDS[..count].iter().enumerate().map(|(number, line)| {
            let mut words: Vec<&str> = line.split(' ').collect();
            let command = words.remove(0);
            let mount_point = machine.mount_point().join(number.to_string());
            fs::create_dir(&mount_point).expect("a folder");
            for word in &mut words {
                if *word == "MOUNT_POINT" {
                    *word = utf8(&mount_point);
                }
            }
            if words.last() == Some(&"--socket") {
                words.push(utf8(&socket));
            }
            let target = Running::target(at);
            let mut target: Vec<&str> = target.iter().map(String::as_str).collect();
            // The discovery service's own name is its default.
            if command == "discover" {
                target.truncate(target.len() - 2);
            }
            Running::start(machine.command(command, &[words, target].concat()))
        });
        let running = running.collect();
        Self {
            machine,
            running,
            socket,
        }
    }

    /// Sends each a signal: it ends, and leaves nothing.
    fn end(self) {
        for (number, command) in self.running.into_iter().enumerate() {
            let line = command.line.clone();
            let output = command.interrupted([Signal::SIGINT, Signal::SIGTERM][number % 2]);
            assert!(!output.status.success(), "`{line}` succeeded: {output:?}");
        }
        assert!(!self.socket.exists(), "serve-nbd left its socket");
        if fs::exists(self.machine.path("run")).expect("a folder") {
            self.machine.assert_clean(Path::new("/dev/loop-none"));
        }
    }
}

/// Starts every command on a target that does not answer, to which `already` sockets are connected,
/// and sends each a signal while it waits.
fn every_command_ends(at: SocketAddr, already: usize) {
    let commands = Commands::start(at);
    wait_until_connecting(at, already + commands.running.len());
    commands.end();
}

#[test]
fn every_command_ends_at_every_stage_of_its_connection() {
    let at = own_address();
    let target = Daemon::start("ram:16MiB", 4096, at);
    // Bytes of the target that arrive: parts of the MPA reply, of the answers to Connect and to the
    // first properties, and of Identify Controller.
    for bytes in [10, 40, 100, 250, 1000] {
        let proxy = Proxy::start(at);
        proxy.set_new(Direction::ToHost, Flow::HoldAfter(bytes));
        let commands = Commands::start(proxy.address);
        proxy.wait_for_kept(commands.running.len(), Direction::ToHost);
        commands.end();
    }
    assert!(target.stop().success());
}

#[test]
fn every_command_ends_while_a_target_accepts_and_stays_silent() {
    let at = own_address();
    // The kernel accepts; nobody reads.
    let _listener = TcpListener::bind(at).expect("the address is free");
    every_command_ends(at, 0);
}

#[test]
fn every_command_ends_while_nothing_answers() {
    let at = own_address();
    let listener = TcpListener::bind(at).expect("the address is free");
    // A queue of one connection, which is full: what comes then is dropped (listen(2)).
    listen(&listener, Backlog::new(0).expect("a backlog")).expect("listen");
    let _in_the_queue = TcpStream::connect(at).expect("there is room for one");
    every_command_ends(at, 1);
}

#[test]
fn every_command_ends_while_a_target_is_stopped() {
    let at = own_address();
    let target = Daemon::start("ram:16MiB", 4096, at);
    signal(target.pid(), Signal::SIGSTOP);
    every_command_ends(at, 0);
    signal(target.pid(), Signal::SIGCONT);
    assert!(target.stop().success());
}

#[test]
fn a_target_ends_while_its_configuration_does_not_come() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let fifo = folder.path().join("target.toml");
    tool("mkfifo", &[utf8(&fifo)]);
    for command in ["serve", "check", "doctor"] {
        let mut shell = Command::new("setpriv");
        shell.args(["--pdeathsig", "KILL", "sh", "-c"]);
        shell.arg("exec \"$0\" \"$1\" --config - <\"$2\"");
        shell
            .arg(program("capstan-target"))
            .args([command, utf8(&fifo)]);
        let target = Running::start(shell);
        // Opened once the other end is.
        let _writer = OpenOptions::new().write(true).open(&fifo).expect("a FIFO");
        let output = target.interrupted(Signal::SIGTERM);
        assert!(!output.status.success(), "{command}: {output:?}");
    }
}

/// What the target has counted.
fn smart_log(at: SocketAddr) -> Value {
    let target = Running::target(at);
    let mut capstan = Command::new(program("capstan"));
    capstan.args(["smart-log", "-o", "json"]).args(target);
    let text = told(&capstan.output().expect("capstan runs"));
    serde_json::from_str(&text).expect("JSON")
}

/// `capstan bench` that reads from a target, once the target counts its reads.
fn measuring(at: SocketAddr, words: &str) -> Running {
    let reads = || {
        smart_log(at)["host_read_commands"]
            .as_u64()
            .expect("a count")
    };
    let before = reads();
    let bench = Running::capstan(&format!("bench --rw randread --iodepth 4 {words}"), at);
    let start = Instant::now();
    while reads() <= before {
        assert!(start.elapsed() < LONG, "nothing is read");
    }
    bench
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

#[test]
fn a_measurement_that_is_interrupted_tells_what_it_has() {
    let at = own_address();
    let target = Daemon::start("ram:16MiB", 4096, at);
    for (sent, status) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 143)] {
        let output = measuring(at, "--runtime 60 --numjobs 2 -o json").interrupted(sent);
        let report = json(&output);
        assert_eq!(report["interrupted"], true, "{report}");
        assert!(report["read"]["total_ios"].as_u64() > Some(0), "{report}");
        let seconds = report["runtime_s"].as_f64().expect("a time");
        assert!(seconds > 0.0 && seconds < 60.0, "{report}");
        assert_eq!(output.status.code(), Some(status), "{output:?}");
        let output = measuring(at, "--runtime 60").interrupted(sent);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            text.contains("IOPS=") && text.contains("of 60.0 s"),
            "{text}"
        );
        assert!(text.contains(&format!("ended by {sent}")), "{text}");
    }
    let output = measuring(at, "--runtime 60 --ramp-time 60").interrupted(Signal::SIGINT);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("nothing was measured"), "{text}");
    assert!(text.contains("usr=0.0%, sys=0.0%"), "{text}");
    assert!(target.stop().success());
}

/// What a ramp takes of the processor is no part of what is measured.
#[test]
fn one_job_has_one_core_at_most_however_long_its_ramp_was() {
    let at = own_address();
    let target = Daemon::start("ram:16MiB", 4096, at);
    let mut capstan = Command::new(program("capstan"));
    capstan.args(["bench", "--rw", "randread", "--iodepth", "4", "-o", "json"]);
    capstan.args(["--ramp-time", "2s", "--runtime", "100ms"]);
    let report = json(&capstan.args(Running::target(at)).output().expect("capstan"));
    let percent = |name: &str| report[name].as_f64().expect("a number");
    // The kernel counts in ticks of up to 10 ms.
    let all = percent("usr_cpu") + percent("sys_cpu");
    assert!(all > 0.0 && all < 130.0, "{report}");
    assert!(target.stop().success());
}

#[test]
fn a_measurement_whose_target_is_stopped_tells_what_it_has() {
    let at = own_address();
    let target = Daemon::start("ram:16MiB", 4096, at);
    let bench = measuring(at, "--runtime 60 --numjobs 2 -o json");
    signal(target.pid(), Signal::SIGSTOP);
    let report = json(&bench.interrupted(Signal::SIGINT));
    assert_eq!(report["interrupted"], true, "{report}");
    assert!(report["read"]["total_ios"].as_u64() > Some(0), "{report}");
    signal(target.pid(), Signal::SIGCONT);
    assert!(target.stop().success());
}

#[test]
fn a_write_that_is_interrupted_says_what_it_has_written() {
    let at = own_address();
    let target = Daemon::start("ram:16MiB", 4096, at);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let fifo = folder.path().join("fifo");
    mkfifo(&fifo, Mode::S_IRUSR | Mode::S_IWUSR).expect("a FIFO");
    let line = format!("write -d {}", utf8(&fifo));
    let writing = Running::capstan(&line, at);
    let mut data = OpenOptions::new()
        .write(true)
        .open(&fifo)
        .expect("it is read");
    // The first of these are answered before the last ones are sent.
    data.write_all(&vec![1; 12 << 20]).expect("it is read");
    let output = writing.interrupted(Signal::SIGTERM);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(143), "{output:?}");
    for words in [
        "the first ",
        utf8(&fifo),
        "are written, and not flushed (`capstan flush -a ",
        "ended by SIGTERM",
    ] {
        assert!(stderr.contains(words), "{words}: {stderr}");
    }
    drop(data);
    // Nobody opens its other end.
    let writing = Running::capstan(&line, at);
    let tasks = format!("/proc/{}/task", writing.child.id());
    wait_until("it takes signals", || {
        let mut tasks = fs::read_dir(&tasks).expect("it runs").flatten();
        tasks.any(|task| {
            let name = fs::read_to_string(task.path().join("comm"));
            name.is_ok_and(|name| name.trim_end() == "capstan-signals")
        })
    });
    let output = writing.interrupted(Signal::SIGINT);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    assert!(
        stderr.contains("nothing was written: ended by SIGINT"),
        "{stderr}"
    );
    assert!(target.stop().success());
}

/// The file of a claim ends with what has it: `write`, whose input has not ended, and
/// `io-passthru`, whose command is not answered.
#[test]
fn what_writes_and_is_interrupted_leaves_no_file_of_its_claim() {
    let at = own_address();
    let target = Daemon::start("ram:16MiB", 4096, at);
    let proxy = Proxy::start(at);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let fifo = folder.path().join("fifo");
    mkfifo(&fifo, Mode::S_IRUSR | Mode::S_IWUSR).expect("a FIFO");
    let machine = Machine::new(proxy.address);
    let (ip, port) = (
        proxy.address.ip().to_string(),
        proxy.address.port().to_string(),
    );
    let files = || {
        fs::read_dir(machine.path("claims"))
            .expect("a folder")
            .count()
    };
    let target_words = ["-t", "tcp", "-n", SUBNQN, "-a", &ip, "-s", &port];
    for (command, words) in [
        ("write", ["-d", utf8(&fifo)]),
        ("io-passthru", ["--opcode", "0x08"]),
    ] {
        for sent in [Signal::SIGTERM, Signal::SIGINT] {
            let first = proxy.connections();
            // Each step takes so long that the answer to the command can be held.
            let slow = Flow::Delay(Duration::from_millis(100));
            proxy.set_new(Direction::ToHost, slow);
            let running = machine.command(command, &[&words[..], &target_words].concat());
            let running = Running::start(running);
            let data = (command == "write").then(|| {
                let data = OpenOptions::new().write(true).open(&fifo);
                data.expect("it is read")
            });
            proxy.wait_for_connections(first + 2);
            if command == "io-passthru" {
                // Behind an ICResp and the response to Connect.
                let held = Flow::HoldAfter(128 + 24);
                proxy.set(first + 1, Direction::ToHost, held);
            }
            wait_until("it is claimed", || files() == 1);
            let output = running.interrupted(sent);
            assert!(!output.status.success(), "{output:?}");
            assert_eq!(files(), 0, "{command}: {output:?}");
            drop(data);
        }
    }
    drop(proxy);
    assert!(target.stop().success());
}

#[test]
fn an_interrupted_read_says_how_much_of_it_is_there() {
    let at = own_address();
    let target = Daemon::start("ram:16MiB", 4096, at);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let fifo = folder.path().join("fifo");
    mkfifo(&fifo, Mode::S_IRUSR | Mode::S_IWUSR).expect("a FIFO");
    let reading = Running::capstan(&format!("read -d {}", utf8(&fifo)), at);
    let mut data = fs::File::open(&fifo).expect("it is written");
    // A chunk is counted once all of it is taken.
    data.read_exact(&mut vec![1; 3 << 20])
        .expect("it is written");
    let output = reading.interrupted(Signal::SIGTERM);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(143), "{output:?}");
    let words = format!("{} has the first ", utf8(&fifo));
    assert!(
        stderr.contains(&words) && stderr.contains("ended by SIGTERM"),
        "{stderr}"
    );
    assert!(target.stop().success());
}

#[test]
fn a_volume_served_over_nbd_ends_though_its_target_is_stopped() {
    let at = own_address();
    let target = Daemon::start("ram:16MiB", 4096, at);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let socket = folder.path().join("nbd");
    for sent in [Signal::SIGTERM, Signal::SIGINT] {
        let mut serving = Running::capstan(&format!("serve-nbd --socket {}", utf8(&socket)), at);
        // It prints the URI when it serves.
        let stdout = serving.child.stdout.as_mut().expect("piped");
        stdout.read_exact(&mut [0; 4]).expect("the URI");
        signal(target.pid(), Signal::SIGSTOP);
        let output = serving.interrupted(sent);
        let stderr = String::from_utf8_lossy(&output.stderr);
        for words in ["the target did not answer", "no I/O was in progress"] {
            assert!(stderr.contains(words), "{words}: {output:?}");
        }
        assert!(!socket.exists(), "the socket is left");
        signal(target.pid(), Signal::SIGCONT);
    }
    assert!(target.stop().success());
}

/// A host that is stopped keeps its commands from ending: the target waits for them, and says so.
#[test]
fn a_second_signal_ends_a_target_that_drains() {
    for second in [Signal::SIGTERM, Signal::SIGINT] {
        let at = own_address();
        let target = Daemon::start("ram:64MiB", 4096, at);
        // Data of writes this large is pulled, and a host that is stopped does not give it.
        let bench = "bench --rw randwrite --bs 1M --iodepth 32 --runtime 60";
        let bench = Running::capstan(bench, at);
        let start = Instant::now();
        while smart_log(at)["host_write_commands"].as_u64() == Some(0) {
            assert!(start.elapsed() < LONG, "nothing is written");
        }
        signal(bench.child.id(), Signal::SIGSTOP);
        signal(target.pid(), Signal::SIGTERM);
        target.wait_for_log(&[
            "SIGTERM: draining",
            "at most 20 s",
            "a second one ends the target at once",
        ]);
        let since = Instant::now();
        wait_until("a second one ends it", || {
            signal(target.pid(), second);
            target.count_log("asked to end a second time") > 0
        });
        assert_eq!(target.ended().code(), Some(1));
        assert!(
            since.elapsed() < Duration::from_secs(2),
            "{:?}",
            since.elapsed()
        );
        signal(bench.child.id(), Signal::SIGCONT);
    }
}
