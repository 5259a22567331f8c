//! Signals that come to `capstan-target` while it starts: it reads its configuration from a pipe,
//! so the test knows where it is.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};

use capstan_tests::program::{Daemon, own_address, program, signal, tool};
use capstan_tests::target::SUBNQN;
use capstan_tests::wait::wait_until;
use nix::libc;
use nix::sys::signal::Signal;

/// A target in the middle of its start.
struct Starting {
    child: Child,
}

impl Starting {
    /// Starts `capstan-target COMMAND --config -`, and waits until it reads.
    fn new(command: &str) -> Self {
        // It must not outlive a test that is killed.
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL"])
            .arg(program("capstan-target"))
            .args([command, "--config", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the target starts");
        // proc(5): number and arguments of the system call it waits in.
        let reads_stdin = format!("{} 0x0 ", libc::SYS_read);
        let syscall = format!("/proc/{}/syscall", child.id());
        wait_until("the target reads its configuration", || {
            fs::read_to_string(&syscall).is_ok_and(|now| now.starts_with(&reads_stdin))
        });
        Self { child }
    }

    /// Sends it SIGTERM, and then the configuration it waits for: how it ended, and its log.
    fn terminated(mut self) -> (ExitStatus, String) {
        signal(self.child.id(), Signal::SIGTERM);
        let at = own_address();
        let config = format!(
            "[target]\nreactors = 1\nmemory_budget = \"64MiB\"\n\n[[listener]]\naddress = \"{}\"\n\
             port = {}\nprovider = \"iwarp\"\n\n[[subsystem]]\nnqn = \"{SUBNQN}\"\n\
             allow_any_host = true\n\n[[subsystem.namespace]]\nnsid = 1\nram = \"1MiB\"\n",
            at.ip(),
            at.port(),
        );
        // A target that is gone does not read it; its status is what counts.
        let mut stdin = self.child.stdin.take().expect("piped");
        let _ = stdin.write_all(config.as_bytes());
        drop(stdin);
        let mut log = String::new();
        let mut stderr = self.child.stderr.take().expect("piped");
        stderr.read_to_string(&mut log).expect("the log is text");
        (self.child.wait().expect("it ends"), log)
    }
}

#[test]
fn a_sigterm_during_the_start_drains_when_started() {
    let (status, log) = Starting::new("serve").terminated();
    assert!(status.success(), "{status}: {log}");
    assert!(log.contains("SIGTERM: draining"), "{log}");
}

/// Nobody depends on a check: it may end where it is.
#[test]
fn a_sigterm_during_a_check_ends_it() {
    let (status, log) = Starting::new("check").terminated();
    assert_eq!(status.signal(), Some(Signal::SIGTERM as i32), "{log}");
}

/// Nobody asked for it, so the service is to be started again (`Restart=on-failure`).
#[test]
fn a_target_with_a_reactor_that_fails_ends_with_an_error() {
    let at = own_address();
    let daemon = Daemon::start("ram:1MiB", 4096, at);
    // Its control thread is there.
    signal(daemon.pid(), Signal::SIGHUP);
    daemon.wait_for_log(&["no file to read again"]);
    // poll(2) refuses to wait for more descriptors than a process may have.
    tool(
        "prlimit",
        &["--pid", &daemon.pid().to_string(), "--nofile=1:"],
    );
    let _wakes_it = TcpStream::connect(at);
    daemon.wait_for_log(&["a reactor ended"]);
    assert_eq!(daemon.ended().code(), Some(1));
}
