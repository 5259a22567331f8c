//! A target whose buffers are few, and attacks on it beside permitted hosts that are looked at.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::{Connects, endure_beside, is_full, sources, tcp, tolerance};
use crate::program::{Daemon, own_address, utf8};
use crate::target::SUBNQN;

/// How long a host may leave everything as it is, as the target's limits say.
pub const STALLED: Duration = Duration::from_secs(10);
/// How much longer a busy machine may take.
pub const BUSY: Duration = Duration::from_secs(20);
/// The bound while others wait for buffers is a fifth of that.
pub const PRESSED: Duration = Duration::from_secs(2);

/// A target whose one namespace is a file, so that reads take buffers: `data_mib` of them on its
/// one reactor.
pub struct FileTarget {
    /// The target.
    pub daemon: Daemon,
    /// Where it listens.
    pub at: SocketAddr,
    _dir: tempfile::TempDir,
}

impl FileTarget {
    /// Starts it.
    ///
    /// # Panics
    /// When it does not listen.
    #[must_use]
    pub fn start(data_mib: u32) -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let (volume, config) = (dir.path().join("volume"), dir.path().join("config.toml"));
        let file = std::fs::File::create(&volume).expect("a file");
        file.set_len(64 << 20).expect("a sparse file");
        let at = own_address();
        let text = format!(
            "[target]\nreactors = 1\nmemory_budget = \"{}MiB\"\n\
             [[listener]]\naddress = \"{}\"\nprovider = \"iwarp\"\ntransports = [\"rdma\", \"tcp\"]\n\
             [[subsystem]]\nnqn = \"{SUBNQN}\"\nallow_any_host = true\n\
             [[subsystem.namespace]]\npath = \"{}\"\nlba = 4096\n",
            4 * data_mib,
            at.ip(),
            utf8(&volume)
        );
        std::fs::write(&config, text).expect("a configuration");
        let daemon = Daemon::serve(&["--config", utf8(&config)]);
        Self {
            daemon,
            at,
            _dir: dir,
        }
    }

    /// Waits for a line of the log with all of `words`, for longer than the target waits for a
    /// host.
    ///
    /// # Panics
    /// When there is none.
    pub fn wait_for_log(&self, words: &[&str]) -> String {
        let start = Instant::now();
        loop {
            let log = self.daemon.log();
            let line = log
                .iter()
                .find(|line| words.iter().all(|word| line.contains(word)));
            if let Some(line) = line {
                return line.clone();
            }
            let waited = start.elapsed();
            assert!(
                waited < STALLED + BUSY,
                "no line with {words:?} in {log:#?}"
            );
            thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Hosts of an attack, and numbers that no permitted host has.
#[must_use]
pub fn attackers() -> std::ops::Range<u8> {
    100..if is_full() { 124 } else { 106 }
}

/// How long an attack is looked at.
#[must_use]
pub fn length() -> Duration {
    Duration::from_secs(if is_full() { 20 } else { 3 })
}

/// Waits for the end of an attack, or of its round.
pub fn pause(stop: &AtomicBool, round: Duration) {
    let start = Instant::now();
    while !stop.load(Ordering::Relaxed) && start.elapsed() < round {
        thread::sleep(Duration::from_millis(10));
    }
}

/// Runs an attack from either address, and checks what permitted hosts see of it.
///
/// # Panics
/// When that is worse than what is promised.
pub fn withstand(
    name: &str,
    attack: impl Fn(SocketAddr, IpAddr, &AtomicBool) + Copy + Send + 'static,
) {
    withstand_beside(name, move |at, source, stop, _| {
        attack(at, source.into(), stop);
    });
}

/// Runs an attack of many connections, which are greeted and held for a second, again and again.
/// One from the address of the permitted hosts opens no more of them while one of these connects
/// than such a host is promised to bear ([`Connects`]).
///
/// # Panics
/// As [`withstand`].
pub fn withstand_strangers(
    name: &str,
    greet: impl Fn(&mut TcpStream) -> io::Result<()> + Copy + Send + 'static,
) {
    let count = if is_full() { 500 } else { 200 };
    withstand_beside(name, move |at, source, stop, connects| {
        while !stop.load(Ordering::Relaxed) {
            let held: Vec<_> = (0..count)
                .filter_map(|_| {
                    if source == Ipv4Addr::LOCALHOST {
                        connects.wait_for_room();
                    }
                    let mut stream = tcp(at, source).ok()?;
                    greet(&mut stream).ok()?;
                    Some(stream)
                })
                .collect();
            pause(stop, Duration::from_secs(1));
            drop(held);
        }
    });
}

fn withstand_beside(
    name: &str,
    attack: impl Fn(SocketAddr, Ipv4Addr, &AtomicBool, &Connects) + Copy + Send + 'static,
) {
    for source in sources() {
        let target = FileTarget::start(if is_full() { 16 } else { 8 });
        // The rings and the heap are used as far as the attack uses them.
        let warm_up = if is_full() { STALLED } else { PRESSED / 4 };
        let at = target.at;
        let connects = Arc::new(Connects::default());
        let seen = Arc::clone(&connects);
        let figures = endure_beside(
            (target.daemon.pid(), at),
            length(),
            &connects,
            move |stop| attack(at, source, stop, &seen),
            move || thread::sleep(warm_up),
        );
        eprintln!("{name} from {source}: {figures}");
        figures.assert_kept(tolerance());
        assert!(target.daemon.stop().success());
    }
}
