//! SIGHUP on the real binary: what the configuration file says now is served, while a host is connected.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use capstan_initiator::{Controller, Options};
use capstan_nvme_proto::nqn::{HostId, Nqn};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const SUBNQN: &str = "nqn.2026-11.org.example:reloaded";
const HOSTNQN: &str = "nqn.2026-11.org.example:tester";
const PATIENCE: Duration = Duration::from_secs(10);

/// The daemon in a process of its own, and what it logs.
struct Daemon {
    child: Child,
    lines: Receiver<String>,
}

impl Daemon {
    fn start(config: &Path) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_capstan-target"))
            .arg("serve")
            .arg("--config")
            .arg(config)
            .stderr(Stdio::piped())
            .spawn()
            .expect("the daemon starts");
        let stderr = BufReader::new(child.stderr.take().expect("piped"));
        let (sender, lines) = channel();
        // Reads on when nobody listens any more, or the daemon would block on a full pipe.
        thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        let daemon = Self { child, lines };
        daemon.said("listening at");
        daemon
    }

    /// Waits for a line of the log that contains `words`.
    fn said(&self, words: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        let mut last = String::new();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(left);
            let line = line.unwrap_or_else(|_| panic!("no {words:?} in the log; last: {last}"));
            if line.contains(words) {
                return line;
            }
            last = line;
        }
    }

    fn reload(&self) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).expect("a pid"));
        kill(pid, Signal::SIGHUP).expect("the daemon is there");
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Ended already in a test that failed on that.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A configuration with these namespaces, of which each is a file of 1 MiB that is made.
fn configure(folder: &Path, port: u16, nsids: &[u32], allowed: &str) {
    let mut toml = format!(
        "[target]\nreactors = 2\nmemory_budget = \"64MiB\"\n\n[[listener]]\naddress = \"127.0.0.1\"\n\
         port = {port}\nprovider = \"iwarp\"\n\n[[subsystem]]\nnqn = \"{SUBNQN}\"\n{allowed}\n"
    );
    for nsid in nsids {
        let path = folder.join(format!("{nsid}.img"));
        if !path.exists() {
            std::fs::write(&path, vec![0; 1 << 20]).expect("an image");
        }
        toml += &format!(
            "\n[[subsystem.namespace]]\nnsid = {nsid}\npath = \"{}\"\n",
            path.display()
        );
    }
    std::fs::write(folder.join("target.toml"), toml).expect("a configuration");
}

fn connect(port: u16) -> Controller {
    let mut options = Options::new(
        "127.0.0.1",
        Nqn::new(SUBNQN).expect("valid"),
        Nqn::new(HOSTNQN).expect("valid"),
        HostId([7; 16]),
    );
    options.trsvcid = port;
    options.reconnect_delay = Duration::from_millis(200);
    Controller::connect(options).expect("connects")
}

/// Waits until the host sees exactly these namespaces.
fn sees(controller: &Controller, nsids: &[u32]) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let namespaces = controller.snapshot_blocking().namespaces;
        let seen: Vec<u32> = namespaces.iter().map(|n| n.nsid).collect();
        if seen == nsids {
            return;
        }
        assert!(
            Instant::now() < deadline,
            "the host sees {seen:?}, expected {nsids:?}"
        );
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn namespaces_come_and_go_under_a_connected_host() {
    let any = "allow_any_host = true";
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    drop(listener);
    configure(folder, port, &[1, 2], any);
    let daemon = Daemon::start(&folder.join("target.toml"));
    let controller = connect(port);
    sees(&controller, &[1, 2]);
    let first = controller.volume_blocking(1).expect("namespace 1");
    first.blocking().write(0, &[1; 4096]).expect("writes");

    configure(folder, port, &[1, 2, 7], any);
    daemon.reload();
    daemon.said("namespaces added: 1");
    sees(&controller, &[1, 2, 7]);
    let seventh = controller.volume_blocking(7).expect("namespace 7");
    seventh.blocking().write(0, &[7; 4096]).expect("writes");

    configure(folder, port, &[1, 7], any);
    daemon.reload();
    daemon.said("namespaces removed: 1");
    sees(&controller, &[1, 7]);
    // Closed, and so free for somebody else: it can be exported again.
    configure(folder, port, &[1, 2, 7], any);
    daemon.reload();
    daemon.said("namespaces added: 1");
    sees(&controller, &[1, 2, 7]);

    // What is not in order changes nothing, nor does what needs a restart.
    std::fs::write(folder.join("target.toml"), "[[subsystem]]").expect("written");
    daemon.reload();
    daemon.said("the configuration was not reloaded");
    configure(folder, port + 1, &[1], any);
    daemon.reload();
    let why = daemon.said("the configuration was not reloaded");
    assert!(why.contains("[[listener]] needs a restart"), "{why}");
    sees(&controller, &[1, 2, 7]);
    let mut read = [0; 4096];
    seventh.blocking().read(0, &mut read).expect("reads");
    assert_eq!(read, [7; 4096]);

    // The host is not allowed any more: its association ends, and a new one is refused.
    let others = "allowed_hosts = [\"nqn.2026-11.org.example:other\"]";
    configure(folder, port, &[1, 2, 7], others);
    daemon.reload();
    daemon.said("subsystems with other hosts: 1");
    let refused = daemon.said("refused a Connect");
    assert!(refused.contains(HOSTNQN), "{refused}");
}
