//! A restart of the service: listening sockets go from one process to the next by way of the
//! service manager, which is the test here.
#![expect(
    unsafe_code,
    reason = "descriptors that come with a message belong to no value yet"
)]

use std::io::{IoSliceMut, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use capstan_initiator::Controller;
use capstan_tests::host::options;
use capstan_tests::place::{Place, volume};
use capstan_tests::program::{Daemon, utf8};
use capstan_tests::wait::wait_until;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, Shutdown, recvmsg, shutdown};

const PATIENCE: Duration = Duration::from_secs(20);
/// Below one second where nothing else runs (docs/resources.md); other tests do.
const GAP_MAX: Duration = Duration::from_secs(3);

/// What a service manager is told by.
struct Manager {
    socket: UnixDatagram,
    place: Place,
}

impl Manager {
    fn new() -> Self {
        let place = Place::new();
        let socket = UnixDatagram::bind(place.folder.path().join("notify")).expect("a socket");
        socket.set_read_timeout(Some(PATIENCE)).expect("a limit");
        Self { socket, place }
    }

    fn at(&self) -> SocketAddr {
        self.place.at
    }

    /// A target that is passed these sockets.
    fn serve(&self, sockets: &[&OwnedFd]) -> Daemon {
        let notify = self.place.folder.path().join("notify");
        let moves: Vec<_> = (3..)
            .zip(sockets)
            .map(|(to, socket)| {
                // The shell has it from this process.
                fcntl(socket, FcntlArg::F_SETFD(FdFlag::empty())).expect("is inherited");
                format!("exec {to}<&{}", socket.as_raw_fd())
            })
            .collect();
        let script = format!(
            "{}; export LISTEN_PID=$$ LISTEN_FDS={}; exec \"$0\" \"$@\"",
            moves.join("; "),
            sockets.len()
        );
        let script = script.trim_start_matches("; ");
        let state = self.place.environment();
        let notify = format!("NOTIFY_SOCKET={}", utf8(&notify));
        let tool = ["env", &state, &notify, "bash", "-c", script];
        let daemon = Daemon::serve_under(&tool, &["--config", utf8(&self.place.config())]);
        for socket in sockets {
            fcntl(socket, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).expect("is kept");
        }
        daemon
    }

    /// The next message with this word, and the socket that came with it.
    fn told(&self, word: &str) -> (String, Option<OwnedFd>) {
        let mut bytes = [0; 4096];
        let begun = Instant::now();
        loop {
            // Others come every second.
            assert!(begun.elapsed() < PATIENCE, "no {word}");
            let mut parts = [IoSliceMut::new(&mut bytes)];
            let mut space = nix::cmsg_space!([i32; 4]);
            let message = recvmsg::<()>(
                self.socket.as_raw_fd(),
                &mut parts,
                Some(&mut space),
                MsgFlags::MSG_CMSG_CLOEXEC,
            );
            let message = message.unwrap_or_else(|error| panic!("no {word}: {error}"));
            let mut rights = None;
            for part in message.cmsgs().expect("control messages") {
                if let ControlMessageOwned::ScmRights(fds) = part {
                    // SAFETY: the kernel has just made them for this message, and nothing else has
                    // them.
                    rights = fds.first().map(|fd| unsafe { OwnedFd::from_raw_fd(*fd) });
                }
            }
            let length = message.bytes;
            let text = String::from_utf8_lossy(&bytes[..length]).into_owned();
            if text.lines().any(|line| line == word) {
                return (text, rights);
            }
        }
    }
}

/// A host that writes all the time, and the longest that one of its writes took.
struct Writer {
    over: Arc<AtomicBool>,
    longest_us: Arc<AtomicU64>,
    writes: Arc<AtomicU64>,
    thread: thread::JoinHandle<()>,
}

impl Writer {
    fn start(at: SocketAddr) -> Self {
        let controller = Controller::connect(options(at, 1)).expect("connects");
        let over = Arc::new(AtomicBool::new(false));
        let longest_us = Arc::new(AtomicU64::new(0));
        let writes = Arc::new(AtomicU64::new(0));
        let thread = {
            let (over, longest_us, writes) = (over.clone(), longest_us.clone(), writes.clone());
            thread::spawn(move || {
                let first = volume(&controller, 1);
                let mut data = vec![0; 4096];
                for number in 0_u64.. {
                    if over.load(Ordering::Relaxed) {
                        break;
                    }
                    let wanted = vec![u8::try_from(number % 251).expect("a byte"); 4096];
                    let at = number % 16 * 4096;
                    let begun = Instant::now();
                    first.write(at, &wanted).expect("no write fails");
                    first.read(at, &mut data).expect("no read fails");
                    assert!(data == wanted, "another answer than what was written");
                    let took = u64::try_from(begun.elapsed().as_micros()).expect("short");
                    longest_us.fetch_max(took, Ordering::Relaxed);
                    writes.store(number, Ordering::Relaxed);
                }
            })
        };
        Self {
            over,
            longest_us,
            writes,
            thread,
        }
    }

    fn wait_for_more(&self) {
        let before = self.writes.load(Ordering::Relaxed);
        wait_until("the host writes", || {
            self.writes.load(Ordering::Relaxed) > before + 20
        });
    }

    fn longest(&self) -> Duration {
        Duration::from_micros(self.longest_us.load(Ordering::Relaxed))
    }

    fn stop(self) {
        self.over.store(true, Ordering::Relaxed);
        self.thread.join().expect("no panic");
    }
}

/// Whether a process listens there, or a socket that is left.
fn listens(at: SocketAddr) -> bool {
    TcpStream::connect_timeout(&at, PATIENCE).is_ok()
}

#[test]
fn a_restart_under_load_is_a_short_gap_and_no_error() {
    let manager = Manager::new();
    let image = manager.place.image("a");
    manager.place.configure(&[(&image, "")]);
    let daemon = manager.serve(&[]);
    let (stored, socket) = manager.told("FDSTORE=1");
    let name = format!("FDNAME=listener-{}", manager.at()).replacen(':', "-", 1);
    assert!(stored.lines().any(|line| line == name), "{stored} {name}");
    let socket = socket.expect("a socket");
    let writer = Writer::start(manager.at());
    writer.wait_for_more();
    assert!(daemon.stop().success());
    // Hosts that come now wait.
    assert!(listens(manager.at()), "refused while no process runs");
    let daemon = manager.serve(&[&socket]);
    writer.wait_for_more();
    let gap = writer.longest();
    eprintln!("the longest write took {gap:?} over a restart");
    assert!(gap < GAP_MAX, "{gap:?}");
    // And again, with what is stored once.
    assert!(daemon.stop().success());
    let daemon = manager.serve(&[&socket]);
    writer.wait_for_more();
    writer.stop();
    assert!(daemon.stop().success());
    // A socket that was stored is not stored again.
    manager.socket.set_nonblocking(true).expect("no waiting");
    let mut rest = [0; 4096];
    while let Ok(length) = manager.socket.recv(&mut rest) {
        let text = String::from_utf8_lossy(&rest[..length]);
        assert!(!text.contains("FDSTORE=1"), "{text}");
    }
    drop(socket);
    assert!(!listens(manager.at()));
}

#[test]
fn a_host_that_has_connected_while_none_ran_is_served_by_the_next_one() {
    let manager = Manager::new();
    let image = manager.place.image("a");
    manager.place.configure(&[(&image, "")]);
    let socket = OwnedFd::from(TcpListener::bind(manager.at()).expect("listens"));
    let at = manager.at();
    let host = thread::spawn(move || Controller::connect(options(at, 1)).expect("connects"));
    let mut early = TcpStream::connect(at).expect("waits in the queue");
    let daemon = manager.serve(&[&socket]);
    let controller = host.join().expect("no panic");
    volume(&controller, 1).write(0, &[7; 4096]).expect("writes");
    drop(controller);
    assert!(daemon.stop().success());
    // What has said nothing was taken, and closed.
    early.set_read_timeout(Some(PATIENCE)).expect("a limit");
    assert_eq!(early.read(&mut [0; 8]).unwrap_or(0), 0);
}

#[test]
fn what_is_passed_and_not_wanted_is_closed() {
    let manager = Manager::new();
    let image = manager.place.image("a");
    manager.place.configure(&[(&image, "")]);
    let other = TcpListener::bind("127.0.0.1:0").expect("listens");
    let elsewhere = other.local_addr().expect("an address");
    let file = std::fs::File::open(Path::new("/dev/null")).expect("opens");
    let passed = [OwnedFd::from(file), OwnedFd::from(other)];
    let daemon = manager.serve(&[&passed[0], &passed[1]]);
    daemon.wait_for_log(&["passed something that is no TCP socket"]);
    daemon.wait_for_log(&[&format!("no listener at {elsewhere} any more")]);
    let (removed, _) = manager.told("FDSTOREREMOVE=1");
    let name = format!("FDNAME=listener-{elsewhere}").replacen(':', "-", 1);
    assert!(removed.lines().any(|line| line == name), "{removed}");
    drop(passed);
    assert!(!listens(elsewhere));
    assert!(listens(manager.at()));
    assert!(daemon.stop().success());
}

#[test]
fn a_listener_that_a_reload_takes_away_is_left_to_no_process() {
    let manager = Manager::new();
    let image = manager.place.image("a");
    manager.place.configure(&[(&image, "")]);
    let daemon = manager.serve(&[]);
    let (_, socket) = manager.told("FDSTORE=1");
    let config = manager.place.config();
    let text = std::fs::read_to_string(&config).expect("the configuration");
    let other = capstan_tests::program::own_address();
    let moved = text.replace(&manager.at().ip().to_string(), &other.ip().to_string());
    std::fs::write(&config, moved).expect("written");
    capstan_tests::place::reload(&daemon);
    let (stored, _) = manager.told("FDSTORE=1");
    assert!(stored.contains(&other.ip().to_string()), "{stored}");
    let (removed, _) = manager.told("FDSTOREREMOVE=1");
    let name = format!("FDNAME=listener-{}", manager.at()).replacen(':', "-", 1);
    assert!(removed.lines().any(|line| line == name), "{removed}");
    drop(socket);
    assert!(!listens(manager.at()) && listens(other));
    assert!(daemon.stop().success());
}

/// The store has the port of all addresses, and the configuration asks for one of them.
#[test]
fn a_port_that_is_left_for_other_addresses_is_free_for_a_listener() {
    let mut manager = Manager::new();
    let all = TcpListener::bind("0.0.0.0:0").expect("listens");
    let left = all.local_addr().expect("an address");
    let all = OwnedFd::from(all);
    manager.place.at.set_port(left.port());
    let image = manager.place.image("a");
    manager.place.configure(&[(&image, "")]);
    let manager = &manager;
    let daemon = thread::scope(|scope| {
        scope.spawn(|| {
            let (removed, _) = manager.told("FDSTOREREMOVE=1");
            let name = format!("FDNAME=listener-{left}").replacen(':', "-", 1);
            assert!(removed.lines().any(|line| line == name), "{removed}");
            // As if it were closed, which `serve` still has.
            shutdown(all.as_raw_fd(), Shutdown::Both).expect("it listens no more");
            let _done = manager.told("BARRIER=1");
        });
        manager.serve(&[&all])
    });
    assert!(listens(manager.at()));
    assert!(daemon.stop().success());
}

/// A call of procedure NULL of NFS version 4, as a record of RPC over TCP (RFC 5531, sections 9 and
/// 11).
fn null_call() -> Vec<u8> {
    const LAST_OF_40_BYTES: u32 = 1 << 31 | 40;
    const XID: u32 = 7;
    let words = [LAST_OF_40_BYTES, XID, 0, 2, 100_003, 4, 0, 0, 0, 0, 0];
    words.into_iter().flat_map(u32::to_be_bytes).collect()
}

#[test]
fn clients_of_nfs_that_have_connected_while_none_ran_are_served_by_the_next_one() {
    let manager = Manager::new();
    // A tmpfs has handles, whatever the machine is on.
    let exported = tempfile::tempdir_in("/dev/shm").expect("a folder");
    let image = manager.place.image("a");
    manager.place.configure(&[(&image, "")]);
    let config = manager.place.config();
    let mut text = std::fs::read_to_string(&config).expect("the configuration");
    text += &format!(
        "[nfs]\naddresses = [\"{}\"]\n[[export]]\npath = {:?}\npseudo = \"/a\"\nclients = [\"127.0.0.0/8\"]\n\
         file_system = \"0a6d2c9e-55f1-4a37-8a5c-52b6c4a5f7a1\"\n",
        manager.at().ip(),
        exported.path()
    );
    std::fs::write(&config, text).expect("written");
    let daemon = manager.serve(&[]);
    let mut sockets = Vec::new();
    for (number, port) in [manager.at().port(), 2049, 20_049].into_iter().enumerate() {
        let (stored, socket) = manager.told("FDSTORE=1");
        let name = format!("FDNAME=listener-{}-{port}", manager.at().ip());
        assert!(
            stored.lines().any(|line| line == name),
            "{number}: {stored}"
        );
        sockets.push(socket.expect("a socket"));
    }
    assert!(daemon.stop().success());
    let [tcp, rdma] = [2049, 20_049].map(|port| SocketAddr::new(manager.at().ip(), port));
    let mut client = TcpStream::connect_timeout(&tcp, PATIENCE).expect("waits in the queue");
    client.write_all(&null_call()).expect("is taken");
    assert!(listens(rdma));
    let passed: Vec<_> = sockets.iter().collect();
    let daemon = manager.serve(&passed);
    client.set_read_timeout(Some(PATIENCE)).expect("a limit");
    let mut reply = [0; 28];
    client.read_exact(&mut reply).expect("a reply");
    // Its XID, that it is a reply, accepted and a success.
    assert_eq!(reply[4..12], [0, 0, 0, 7, 0, 0, 0, 1]);
    assert_eq!(reply[12..28], [0; 16]);
    assert!(daemon.stop().success());
    drop(sockets);
    assert!(!listens(tcp) && !listens(rdma));
}
