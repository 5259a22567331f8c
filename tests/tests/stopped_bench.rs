//! Programs of permitted hosts that are stopped in the middle of their writes: others go on.

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use capstan_tests::attack::file_target::{FileTarget, length, pause};
use capstan_tests::attack::{ELSEWHERE, endure, tolerance};
use capstan_tests::program::{CLAIMS, program, signal};
use capstan_tests::target::SUBNQN;
use nix::sys::signal::Signal;

/// `capstan bench`, which is killed when it is dropped.
struct Bench {
    child: Child,
    _claims: tempfile::TempDir,
}

impl Bench {
    /// Writes 1 MiB at depth 32 with these options.
    fn start(at: SocketAddr, options: &[&str]) -> Self {
        let claims = tempfile::tempdir().expect("a folder");
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL"])
            .arg(program("capstan"))
            .env(CLAIMS, claims.path())
            .args(["bench", "-a", &at.ip().to_string()])
            .args(["-s", &at.port().to_string()])
            .args(options)
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

    fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A program that is stopped in the middle of its writes stays there, and holds up nobody else.
#[test]
fn a_stopped_bench_is_withstood() {
    withstand_a_stopped_bench(&["-t", "rdma", "--provider", "iwarp"]);
}

#[test]
fn a_stopped_bench_over_nvme_tcp_is_withstood() {
    withstand_a_stopped_bench(&["-t", "tcp"]);
}

/// The options of two hosts: one at the address of the permitted host that is looked at, with the
/// default Keep Alive, and one elsewhere without any: only what it leaves undone can end that one.
fn hosts() -> [Vec<String>; 2] {
    [(1, "-k 5".to_owned()), (2, format!("-w {ELSEWHERE} -k 0"))].map(|(number, how)| {
        let uuid = format!("00112233-4455-6677-8899-00000000000{number}");
        let line = format!("-q nqn.2014-08.org.nvmexpress:uuid:{uuid} -I {uuid} {how}");
        line.split(' ').map(str::to_owned).collect()
    })
}

fn withstand_a_stopped_bench(transport: &[&str]) {
    let target = FileTarget::start(8);
    let mut benches = hosts().map(|options| {
        let options = options.iter().map(String::as_str);
        let options: Vec<_> = options.chain(transport.iter().copied()).collect();
        let bench = Bench::start(target.at, &options);
        target.wait_for_log(&["queue connected", "qid=1", options[1]]);
        bench
    });
    for bench in &mut benches {
        assert!(bench.child.try_wait().expect("a child").is_none());
    }
    let pids = benches.each_ref().map(Bench::pid);
    let figures = endure(
        (target.daemon.pid(), target.at),
        length(),
        move |stop| {
            // Stopped in another place of their writes each time.
            while !stop.load(Ordering::Relaxed) {
                for pid in pids {
                    signal(pid, Signal::SIGSTOP);
                }
                pause(stop, Duration::from_secs(2));
                for pid in pids {
                    signal(pid, Signal::SIGCONT);
                }
                pause(stop, Duration::from_millis(50));
            }
        },
        || thread::sleep(Duration::from_millis(500)),
    );
    eprintln!("stopped benches, {transport:?}: {figures}");
    figures.assert_kept(tolerance());
    drop(benches);
    assert!(target.daemon.stop().success());
}
