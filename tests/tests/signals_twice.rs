//! A first and a second SIGINT or SIGTERM at each stage of what runs: it ends within two seconds,
//! whatever it waits for.

use std::fs::{self, OpenOptions};
use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use capstan_tests::program::{Daemon, own_address, program, signal, utf8};
use capstan_tests::running::Running;
use capstan_tests::target::SUBNQN;
use capstan_tests::wait::wait_until;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::unistd::{mkfifo, pipe};

const BOTH: [Signal; 2] = [Signal::SIGTERM, Signal::SIGINT];

/// Sends `command` a signal, and one more: it ends.
fn twice(command: Running, [first, second]: [Signal; 2]) -> Output {
    signal(command.child.id(), first);
    command.interrupted(second)
}

/// Each order of the two.
fn pairs() -> impl Iterator<Item = [Signal; 2]> {
    let of = |first| BOTH.map(|second| [first, second]);
    BOTH.into_iter().flat_map(of)
}

#[test]
fn every_command_ends_at_a_second_signal_too() {
    let at = own_address();
    let target = Daemon::start("ram:16MiB", 4096, at);
    signal(target.pid(), Signal::SIGSTOP);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let socket = folder.path().join("nbd");
    let serve = format!("serve-nbd --socket {}", utf8(&socket));
    for pair in pairs() {
        for line in [
            "discover",
            "read -z 4096",
            "write -z 4096",
            "flush",
            "bench --rw randread --runtime 60",
            &serve,
        ] {
            let output = twice(Running::capstan(line, at), pair);
            assert!(!output.status.success(), "{line}: {output:?}");
        }
        assert!(!socket.exists(), "the socket is left");
    }
    signal(target.pid(), Signal::SIGCONT);
    assert!(target.stop().success());
}

/// `capstan LINE`, with a pipe for its stdout that somebody has filled and nobody reads.
fn into_a_full_pipe(line: &str, at: SocketAddr) -> (Running, OwnedFd) {
    let (reader, writer) = pipe().expect("a pipe");
    fcntl(&writer, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).expect("a flag");
    let mut filled = fs::File::from(writer);
    while filled.write(&[0; 4096]).is_ok() {}
    fcntl(filled.as_fd(), FcntlArg::F_SETFL(OFlag::empty())).expect("a flag");
    let target = Running::target(at);
    let words = line.split(' ').chain(target.iter().map(String::as_str));
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "KILL"])
        .arg(program("capstan"));
    command
        .args(words)
        .stdin(Stdio::null())
        .stderr(Stdio::piped());
    let child = command.stdout(filled).spawn().expect("the program starts");
    let line = line.to_owned();
    (Running { line, child }, reader)
}

/// Waits until a thread of the process is in `write(2)` to its stdout (proc_pid_syscall(5)).
fn wait_until_it_prints(pid: u32) {
    let call = format!("{} 0x1 ", nix::libc::SYS_write);
    wait_until("it waits for room in the pipe", || {
        let tasks = fs::read_dir(format!("/proc/{pid}/task"));
        let mut tasks = tasks.into_iter().flatten().flatten();
        tasks.any(|task| {
            fs::read_to_string(task.path().join("syscall")).is_ok_and(|now| now.starts_with(&call))
        })
    });
}

#[test]
fn what_waits_for_the_reader_of_its_output_ends() {
    let at = own_address();
    let target = Daemon::start("ram:16MiB", 4096, at);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let data = folder.path().join("data");
    fs::write(&data, [1; 4096]).expect("a file");
    let socket = folder.path().join("nbd");
    let lines = [
        "read -z 1048576".to_owned(),
        "smart-log".to_owned(),
        "id-ns -o json".to_owned(),
        "flush -o json".to_owned(),
        format!("write -z 4096 -o json -d {}", utf8(&data)),
        "bench --rw randread --runtime 1".to_owned(),
        format!("serve-nbd --socket {}", utf8(&socket)),
    ];
    for (line, pair) in lines
        .iter()
        .flat_map(|line| pairs().map(move |pair| (line, pair)))
    {
        let (printing, reader) = into_a_full_pipe(line, at);
        wait_until_it_prints(printing.child.id());
        let output = twice(printing, pair);
        // What serves already was asked to end, and has.
        let serves = line.starts_with("serve-nbd");
        assert_eq!(output.status.success(), serves, "{line}: {output:?}");
        assert!(!socket.exists(), "the socket is left");
        drop(reader);
    }
    // The first signal is enough.
    let (printing, _reader) = into_a_full_pipe("read -z 1048576", at);
    wait_until_it_prints(printing.child.id());
    let output = printing.interrupted(Signal::SIGINT);
    assert!(!output.status.success(), "{output:?}");
    assert!(target.stop().success());
}

/// As of every command in a shell: `capstan read | head -c 1`.
#[test]
fn what_has_lost_the_reader_of_its_output_ends_without_a_word() {
    let at = own_address();
    let target = Daemon::start("ram:16MiB", 4096, at);
    for line in [
        "read -z 16777216",
        "smart-log",
        "bench --rw randread --runtime 1",
    ] {
        let mut reading = Running::capstan(line, at);
        let mut stdout = reading.child.stdout.take().expect("piped");
        if line.starts_with("read") {
            stdout.read_exact(&mut [0]).expect("data");
        }
        drop(stdout);
        wait_until("it ends", || {
            reading.child.try_wait().expect("a child").is_some()
        });
        let output = reading.ends("though nobody reads its output");
        assert!(output.status.success(), "{line}: {output:?}");
        assert!(output.stderr.is_empty(), "{line}: {output:?}");
    }
    assert!(target.stop().success());
}

/// The path as one that a shell hands over (`<(…)`): it may be a FIFO, which is waited for.
fn handed_over(path: &Path) -> String {
    // `/dev/fd` leads to `/proc/PID/fd` (proc(5)).
    format!("/dev/fd/../../..{}", utf8(path))
}

fn configuration(at: SocketAddr) -> String {
    format!(
        "[target]\nreactors = 1\nmemory_budget = \"64MiB\"\n[[listener]]\naddress = \"{}\"\nport = {}\n\
         provider = \"iwarp\"\n[[subsystem]]\nnqn = \"{SUBNQN}\"\nallow_any_host = true\n\
         [[subsystem.namespace]]\nram = \"1MiB\"\n",
        at.ip(),
        at.port()
    )
}

#[test]
fn a_target_that_starts_ends_at_a_second_signal_too() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let fifo = folder.path().join("target.toml");
    mkfifo(&fifo, Mode::S_IRUSR | Mode::S_IWUSR).expect("a FIFO");
    for pair in pairs() {
        let words = ["serve", "--config", &handed_over(&fifo)];
        let target = Running::new("capstan-target", &words);
        let _writer = OpenOptions::new().write(true).open(&fifo).expect("a FIFO");
        let output = twice(target, pair);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
    }
}

#[test]
fn a_target_ends_while_it_serves_and_while_it_reloads() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("target.toml");
    for (reloads, pair) in [false, true]
        .into_iter()
        .flat_map(|r| pairs().map(move |p| (r, p)))
    {
        let at = own_address();
        let _ = fs::remove_file(&file);
        fs::write(&file, configuration(at)).expect("a file");
        let target = Daemon::serve(&["--config", &handed_over(&file)]);
        let [first, second] = pair;
        if reloads {
            // What is written there does not come.
            fs::remove_file(&file).expect("a file");
            mkfifo(&file, Mode::S_IRUSR | Mode::S_IWUSR).expect("a FIFO");
            signal(target.pid(), Signal::SIGHUP);
            let writer = OpenOptions::new()
                .write(true)
                .open(&file)
                .expect("it is read");
            signal(target.pid(), first);
            target.wait_for_log(&["draining", "a second one ends the target at once"]);
            let since = Instant::now();
            // What comes with the first, as from timeout(1), is not a second one.
            signal(target.pid(), second);
            wait_until("a second one ends it", || {
                signal(target.pid(), second);
                target.count_log("asked to end a second time") > 0
            });
            assert!(since.elapsed() > Duration::from_millis(200), "at once");
            assert_eq!(target.ended().code(), Some(1));
            assert!(
                since.elapsed() < Duration::from_secs(2),
                "{:?}",
                since.elapsed()
            );
            drop(writer);
            continue;
        }
        let since = Instant::now();
        signal(target.pid(), first);
        assert!(target.ended().success(), "nobody has anything in flight");
        assert!(
            since.elapsed() < Duration::from_secs(2),
            "{:?}",
            since.elapsed()
        );
    }
}
