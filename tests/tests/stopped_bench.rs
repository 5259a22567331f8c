//! A program of a permitted host that is stopped in the middle of its writes: others go on.

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use capstan_tests::attack::file_target::{FileTarget, length, pause};
use capstan_tests::attack::{endure, tolerance};
use capstan_tests::program::{CLAIMS, program, signal};
use capstan_tests::target::SUBNQN;
use nix::sys::signal::Signal;

/// `capstan bench`, which is killed when it is dropped.
struct Bench {
    child: Child,
    _claims: tempfile::TempDir,
}

impl Bench {
    /// Writes 1 MiB at depth 32, over this transport.
    fn start(at: SocketAddr, transport: &[&str]) -> Self {
        let claims = tempfile::tempdir().expect("a folder");
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL"])
            .arg(program("capstan"))
            .env(CLAIMS, claims.path())
            .args(["bench", "-a", &at.ip().to_string()])
            .args(["-s", &at.port().to_string()])
            .args(transport)
            .args(["-n", SUBNQN, "--rw", "write", "--bs", "1m"])
            .args(["--iodepth", "32", "--runtime", "120"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Self {
            child: child.expect("the bench starts"),
            _claims: claims,
        }
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What an operator sees who stops a program: it is in the middle of its writes, and stays there.
#[test]
fn a_stopped_bench_is_withstood() {
    withstand_a_stopped_bench(&["-t", "rdma", "--provider", "iwarp"]);
}

#[test]
fn a_stopped_bench_over_nvme_tcp_is_withstood() {
    withstand_a_stopped_bench(&["-t", "tcp"]);
}

fn withstand_a_stopped_bench(transport: &[&str]) {
    let target = FileTarget::start(8);
    let mut bench = Bench::start(target.at, transport);
    let line = target.wait_for_log(&["queue connected", "qid=1"]);
    assert!(bench.child.try_wait().expect("a child").is_none(), "{line}");
    let pid = bench.child.id();
    let figures = endure(
        (target.daemon.pid(), target.at),
        length(),
        move |stop| {
            // Stopped in another place of its writes each time.
            while !stop.load(Ordering::Relaxed) {
                signal(pid, Signal::SIGSTOP);
                pause(stop, Duration::from_secs(2));
                signal(pid, Signal::SIGCONT);
                pause(stop, Duration::from_millis(50));
            }
        },
        || thread::sleep(Duration::from_millis(500)),
    );
    eprintln!("stopped bench, {transport:?}: {figures}");
    figures.assert_kept(tolerance());
    drop(bench);
    assert!(target.daemon.stop().success());
}
