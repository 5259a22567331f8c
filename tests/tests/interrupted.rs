//! SIGINT and SIGTERM: every command ends within two seconds, whatever it waits for, and says what
//! it has got until then.

use std::collections::HashSet;
use std::fs::{self, OpenOptions};
use std::io::Read as _;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use capstan_tests::program::{Daemon, own_address, program, signal, told, tool, utf8};
use capstan_tests::target::SUBNQN;
use nix::sys::signal::Signal;
use nix::sys::socket::{Backlog, listen};
use serde_json::Value;

/// What every command promises.
const PATIENCE: Duration = Duration::from_secs(2);
/// For what happens between processes of a busy machine.
const LONG: Duration = Duration::from_secs(30);
/// Every command that connects, with what it needs besides the target.
const COMMANDS: [&str; 16] = [
    "discover",
    "id-ctrl",
    "id-ns",
    "list-ns",
    "smart-log",
    "error-log",
    "effects-log",
    "get-feature -f 1",
    "admin-passthru --opcode 6 --cdw10 1 --data-len 4096",
    "io-passthru --opcode 0",
    "read -z 4096",
    "write -z 4096",
    "flush",
    "bench --rw randread --runtime 60",
    "doctor",
    "serve-nbd --socket",
];

/// A program; killed when it is dropped.
struct Running {
    line: String,
    child: Child,
}

impl Running {
    fn new(name: &str, words: &[&str]) -> Self {
        // It must not outlive a test that is killed.
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL"])
            .arg(program(name))
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        Self {
            line: words.join(" "),
            child: command.spawn().expect("the program starts"),
        }
    }

    /// `capstan LINE` on the target at `at`.
    fn capstan(line: &str, at: SocketAddr) -> Self {
        let mut words: Vec<_> = line.split(' ').collect();
        let (addr, port) = (at.ip().to_string(), at.port().to_string());
        words.extend(["-a", &addr, "-s", &port, "--provider", "iwarp"]);
        // The discovery service's own name is its default.
        if words.first() != Some(&"discover") {
            words.extend(["-n", SUBNQN]);
        }
        Self::new("capstan", &words)
    }

    /// Sends a signal, and waits for the end: the status, and what was said.
    fn interrupted(mut self, sent: Signal) -> Output {
        signal(self.child.id(), sent);
        let since = Instant::now();
        while self.child.try_wait().expect("it is a child").is_none() {
            let waited = since.elapsed();
            assert!(
                waited < PATIENCE,
                "`{}` runs {waited:?} after {sent}",
                self.line
            );
            thread::sleep(Duration::from_millis(5));
        }
        let mut output = Output {
            status: self.child.wait().expect("it has ended"),
            stdout: Vec::new(),
            stderr: Vec::new(),
        };
        let (stdout, stderr) = (self.child.stdout.take(), self.child.stderr.take());
        stdout
            .expect("piped")
            .read_to_end(&mut output.stdout)
            .expect("stdout");
        stderr
            .expect("piped")
            .read_to_end(&mut output.stderr)
            .expect("stderr");
        output
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Ended already where all is well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

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

/// Starts every command on a target that does not answer, to which `already` sockets are connected,
/// and sends each a signal while it waits.
fn every_command_ends(at: SocketAddr, already: usize) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let socket = folder.path().join("nbd");
    let started: Vec<_> = COMMANDS
        .iter()
        .map(|line| match line.ends_with("--socket") {
            true => Running::capstan(&format!("{line} {}", utf8(&socket)), at),
            false => Running::capstan(line, at),
        })
        .collect();
    wait_until_connecting(at, already + started.len());
    for (number, command) in started.into_iter().enumerate() {
        let line = command.line.clone();
        let output = command.interrupted([Signal::SIGINT, Signal::SIGTERM][number % 2]);
        assert!(!output.status.success(), "`{line}` succeeded");
    }
    assert!(!socket.exists(), "serve-nbd left its socket");
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
        let target = Running::new("capstan-target", &[command, "--config", utf8(&fifo)]);
        // Opened once the other end is.
        let _writer = OpenOptions::new().write(true).open(&fifo).expect("a FIFO");
        let output = target.interrupted(Signal::SIGTERM);
        assert!(!output.status.success(), "{command}: {output:?}");
    }
}

/// `capstan bench` that reads from a target, once the target counts its reads.
fn measuring(at: SocketAddr, words: &str) -> Running {
    let reads = || {
        let (addr, port) = (at.ip().to_string(), at.port().to_string());
        let mut capstan = Command::new(program("capstan"));
        capstan.args([
            "smart-log",
            "-a",
            &addr,
            "-s",
            &port,
            "-n",
            SUBNQN,
            "-o",
            "json",
        ]);
        let text = told(&capstan.output().expect("capstan runs"));
        let log: Value = serde_json::from_str(&text).expect("JSON");
        log["host_read_commands"].as_u64().expect("a count")
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
        assert!(stderr.contains("the target does not answer"), "{output:?}");
        assert!(!socket.exists(), "the socket is left");
        signal(target.pid(), Signal::SIGCONT);
    }
    assert!(target.stop().success());
}
