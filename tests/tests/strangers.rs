//! Hosts that may not connect, or do no more than that, beside one that may: it reads, and others
//! like it connect, as if nothing were. `CAPSTAN_ATTACKS=full` makes the bounds those of
//! `docs/resources.md`.
#![expect(clippy::print_stdout, reason = "the figures are what it is for")]

use std::collections::VecDeque;
use std::io::{ErrorKind, Read as _, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use capstan_nvme_proto::command::{IoCommand, LbaRange, Read};
use capstan_nvme_proto::fabrics::ConnectParameters;
use capstan_nvme_proto::log::LogPageId;
use capstan_nvme_proto::nqn::{HostId, Nqn};
use capstan_nvme_proto::sgl::Sgl;
use capstan_tests::attack::{
    ELSEWHERE, Figures, Stranger, ask_for_pages_without_end, connect_capsule, connect_sharing,
    endure, is_full, mpa_request, sources, tcp, tolerance,
};
use capstan_tests::process::{allow_many_descriptors, resident_shared_bytes_of};
use capstan_tests::program::{Daemon, own_address, utf8};
use capstan_tests::target::SUBNQN;
use capstan_tests::wire_host::{Data, Queue, WireHost, connect_data};

/// How long an attacker rests when everything it wants is open.
const REST: Duration = Duration::from_millis(1);
const WARM_UP: Duration = Duration::from_secs(20);

/// A target that hosts 0 to 99 may use, with 64 MiB of RAM.
fn target(at: SocketAddr) -> (Daemon, tempfile::TempDir) {
    let (folder, path) = configuration(at);
    (Daemon::serve(&["--config", utf8(&path)]), folder)
}

fn configuration(at: SocketAddr) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("target.toml");
    let hosts: Vec<_> = (0..100)
        .map(|number| format!("\"nqn.2026-11.org.example:host-{number}\""))
        .collect();
    let toml = format!(
        "[[listener]]\naddress = \"{}\"\nprovider = \"iwarp\"\n\
         [[subsystem]]\nnqn = \"{SUBNQN}\"\nallowed_hosts = [{}]\n\
         [[subsystem.namespace]]\nram = \"64MiB\"\nlba = 4096\n",
        at.ip(),
        hosts.join(", ")
    );
    std::fs::write(&path, toml).expect("written");
    (folder, path)
}

/// An attack of so many connections: each is opened as `open` says, and again when the target has
/// ended it.
fn hold<T: AsStream>(
    count: usize,
    opened: &AtomicUsize,
    stop: &AtomicBool,
    mut open: impl FnMut() -> std::io::Result<T>,
) {
    let mut held: VecDeque<T> = VecDeque::new();
    while !stop.load(Ordering::Relaxed) {
        if held.len() < count {
            // A refusal is one way to end it.
            if let Ok(connection) = open() {
                held.push_back(connection);
            }
            opened.fetch_add(1, Ordering::Relaxed);
            continue;
        }
        let before = held.len();
        held.retain(|connection| !has_ended(connection.stream()));
        if held.len() == before {
            thread::sleep(REST);
        }
    }
}

trait AsStream {
    fn stream(&self) -> &TcpStream;
}

impl AsStream for TcpStream {
    fn stream(&self) -> &TcpStream {
        self
    }
}

impl AsStream for Stranger {
    fn stream(&self) -> &TcpStream {
        &self.stream
    }
}

/// Whether the other side has closed a connection. What it has sent is dropped.
fn has_ended(stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).expect("a socket");
    let mut reader = stream;
    let ended = loop {
        match reader.read(&mut [0; 512]) {
            Ok(0) => break true,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => break false,
            Err(_) => break true,
        }
    };
    stream.set_nonblocking(false).expect("a socket");
    ended
}

/// Runs an attack from each address. It counts what it has opened, and is at work when it has
/// opened `count`.
fn suffer<A>(name: &str, count: usize, attack: A) -> Vec<String>
where
    A: Fn(SocketAddr, Ipv4Addr, &AtomicUsize, &AtomicBool) + Clone + Send + 'static,
{
    allow_many_descriptors();
    let length = Duration::from_secs(if is_full() { 10 } else { 2 });
    let mut log = Vec::new();
    for source in sources() {
        let at = own_address();
        let (daemon, _folder) = target(at);
        let opened = Arc::new(AtomicUsize::new(0));
        let (attack, counts) = (attack.clone(), Arc::clone(&opened));
        let figures: Figures = endure(
            (daemon.pid(), at),
            length,
            move |stop| attack(at, source, &counts, stop),
            || {
                let start = Instant::now();
                while opened.load(Ordering::Relaxed) < count && start.elapsed() < WARM_UP {
                    thread::sleep(REST);
                }
                let opened = opened.load(Ordering::Relaxed);
                assert!(opened >= count, "{name}: only {opened} of {count} opened");
            },
        );
        let opened = opened.load(Ordering::Relaxed);
        println!("{name} from {source}, {opened} connections: {figures}");
        figures.assert_kept(tolerance());
        log.extend(daemon.log());
        assert!(daemon.stop().success());
    }
    log
}

/// What a host of no number that is allowed connects with, to `subnqn`.
fn nobody(subnqn: Nqn) -> ConnectParameters {
    ConnectParameters {
        hostid: HostId([0xEE; 16]),
        subnqn,
        hostnqn: Nqn::new("nqn.2026-11.org.example:nobody").expect("valid"),
        ..connect_data(0)
    }
}

#[test]
fn silent_tcp_connections() {
    suffer("silent", 1_000, |at, source, opened, stop| {
        hold(1_000, opened, stop, || tcp(at, source));
    });
}

/// Queues of 128 entries, which would have a mebibyte each.
#[test]
fn connections_that_send_no_connect() {
    suffer("bare", 200, |at, source, opened, stop| {
        hold(200, opened, stop, || Stranger::connect(at, source, 1));
    });
}

/// Each would have had the target pull 64 KiB, and no READ is ever answered.
#[test]
fn connects_whose_data_cannot_be_read() {
    suffer("unread", 300, |at, source, opened, stop| {
        let subnqn = Nqn::new(SUBNQN).expect("valid");
        hold(300, opened, stop, || {
            let mut stranger = Stranger::connect(at, source, 0)?;
            for cid in 0..64 {
                let parameters = nobody(subnqn.clone());
                stranger.send(&connect_capsule(cid, 0, 0, &parameters, true))?;
            }
            Ok(stranger)
        });
    });
}

/// The longest Keep Alive Timeout there is, and no Keep Alive.
#[test]
fn discovery_controllers_that_nobody_uses() {
    suffer("discovery", 748, |at, source, opened, stop| {
        hold(748, opened, stop, || {
            let mut stranger = Stranger::connect(at, source, 0)?;
            let parameters = nobody(Nqn::discovery());
            stranger.send(&connect_capsule(0, 0, u32::MAX, &parameters, false))?;
            stranger.hears();
            Ok(stranger)
        });
    });
}

/// Eight of them, which take all that comes; and as many as there may be.
#[test]
fn discovery_controllers_that_read_log_pages_without_end() {
    for controllers in [8, 60] {
        suffer("log pages", 1000, move |at, source, answered, stop| {
            let parameters = vec![nobody(Nqn::discovery()); controllers];
            let lid = LogPageId::DISCOVERY;
            ask_for_pages_without_end((at, source), &parameters, lid, answered, stop);
        });
    }
}

/// Of permitted hosts, whose controllers have other pages.
#[test]
fn permitted_hosts_that_read_log_pages_without_end() {
    for lid in [LogPageId::ERROR_INFORMATION, LogPageId::COMMAND_EFFECTS] {
        suffer("log pages", 1000, move |at, source, answered, stop| {
            let parameters: Vec<_> = (50..80).map(connect_data).collect();
            ask_for_pages_without_end((at, source), &parameters, lid, answered, stop);
        });
    }
}

#[test]
fn refused_connects_without_end() {
    let start = Instant::now();
    let log = suffer("refused", 100, |at, source, opened, stop| {
        let subnqn = Nqn::new(SUBNQN).expect("valid");
        while !stop.load(Ordering::Relaxed) {
            let refused = Stranger::connect(at, source, 0).and_then(|mut stranger| {
                let parameters = nobody(subnqn.clone());
                stranger.send(&connect_capsule(0, 0, 0, &parameters, false))?;
                stranger.hears();
                Ok(())
            });
            // The target may have ended it before.
            drop(refused);
            opened.fetch_add(1, Ordering::Relaxed);
        }
    });
    let seconds = usize::try_from(start.elapsed().as_secs()).expect("a few") + 2;
    for words in ["refused a Connect", "disconnected"] {
        let lines = log.iter().filter(|line| line.contains(words)).count();
        assert!(lines > 0, "no line says {words}");
        // Ten of each place of the program in a second, and one that says how many more.
        assert!(lines <= 4 * 11 * seconds, "{lines} lines say {words}");
    }
    let counted = log
        .iter()
        .any(|line| line.contains("more in 1 s were like this"));
    assert!(counted, "no line says how many were left out: {log:#?}");
}

/// Nobody reads the log (a paused terminal, a pager), and what strangers cause fills the pipe:
/// neither they nor a permitted host wait for that, nor does the end.
#[test]
fn a_log_that_nobody_reads() {
    const PROMPT: Duration = Duration::from_secs(3);
    const PIPE_BYTES: i32 = 4096;
    let at = own_address();
    let (folder, config) = configuration(at);
    let (daemon, unread) = Daemon::serve_unread(&["--config", utf8(&config)], PIPE_BYTES);
    let parameters = ConnectParameters {
        hostnqn: Nqn::new(&format!("nqn.2026-11.org.example:{}", "n".repeat(190))).expect("valid"),
        ..nobody(Nqn::new(SUBNQN).expect("valid"))
    };
    let mut host = WireHost::connect(at, 1);
    let start = Instant::now();
    // 20 lines of 300 bytes a second.
    while start.elapsed() < Duration::from_secs(4) {
        let began = Instant::now();
        let mut stranger = Stranger::connect(at, sources()[0], 0).expect("accepted");
        stranger
            .send(&connect_capsule(0, 0, 0, &parameters, false))
            .expect("sent");
        assert!(stranger.hears(), "a refusal after {:?}", start.elapsed());
        let range = LbaRange { slba: 0, nlb: 1 };
        let sqe = IoCommand::Read(Read::new(1, range)).encode(0, Sgl::EMPTY);
        let (cqe, _) = host.run(Queue::Io, sqe, Data::Pushed(4096));
        assert!(cqe.status().is_success(), "{:?}", cqe.status());
        let took = began.elapsed();
        assert!(took < PROMPT, "{took:?} after {:?}", start.elapsed());
    }
    drop(host);
    let start = Instant::now();
    assert!(daemon.stop().success());
    assert!(start.elapsed() < 2 * PROMPT, "it waited for its reader");
    let bytes: usize = unread.read().iter().map(String::len).sum();
    assert!(bytes > 3 << 10, "the pipe was not full: {bytes} bytes");
    drop(folder);
}

/// Byte by byte, in turn over some connections, as slowly as to be ended for it, or nearly so.
fn drip(
    at: SocketAddr,
    source: Ipv4Addr,
    opened: &AtomicUsize,
    stop: &AtomicBool,
    open: impl Fn(SocketAddr, Ipv4Addr) -> std::io::Result<(TcpStream, Vec<u8>)>,
) {
    const CONNECTIONS: usize = 100;
    let mut held: Vec<(TcpStream, Vec<u8>, usize)> = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        while held.len() < CONNECTIONS && !stop.load(Ordering::Relaxed) {
            if let Ok((stream, bytes)) = open(at, source) {
                held.push((stream, bytes, 0));
            }
            opened.fetch_add(1, Ordering::Relaxed);
        }
        held.retain_mut(|(stream, bytes, sent)| {
            let Some(byte) = bytes.get(*sent) else {
                return false;
            };
            *sent += 1;
            stream.write_all(&[*byte]).is_ok() && !has_ended(stream)
        });
        thread::sleep(10 * REST);
    }
}

#[test]
fn requests_byte_by_byte() {
    suffer("request bytes", 100, |at, source, opened, stop| {
        drip(at, source, opened, stop, |at, source| {
            Ok((tcp(at, source)?, mpa_request(0)))
        });
    });
}

#[test]
fn connects_byte_by_byte() {
    suffer("Connect bytes", 100, |at, source, opened, stop| {
        drip(at, source, opened, stop, |at, source| {
            let stranger = Stranger::connect(at, source, 0)?;
            let parameters = nobody(Nqn::new(SUBNQN).expect("valid"));
            let capsule = connect_capsule(0, 0, 0, &parameters, false);
            Ok((stranger.stream, capstan_tests::attack::fpdu(1, &capsule)))
        });
    });
}

/// At every stage: nothing sent, half a request, a request, half a Connect, a Connect.
#[test]
fn connections_that_are_half_closed() {
    suffer("half-closed", 200, |at, source, opened, stop| {
        let mut stage = 0;
        hold(200, opened, stop, || {
            stage = (stage + 1) % 5;
            let parameters = nobody(Nqn::new(SUBNQN).expect("valid"));
            let capsule = connect_capsule(0, 0, 0, &parameters, false);
            let fpdu = capstan_tests::attack::fpdu(1, &capsule);
            let mut stream = match stage {
                0 | 1 => tcp(at, source)?,
                _ => Stranger::connect(at, source, 0)?.stream,
            };
            match stage {
                1 => stream.write_all(&mpa_request(0)[..20])?,
                3 => stream.write_all(&fpdu[..100])?,
                4 => stream.write_all(&fpdu)?,
                _ => {}
            }
            stream.shutdown(Shutdown::Write)?;
            Ok(stream)
        });
    });
}

/// Of permitted hosts: Admin queues without a Keep Alive Timeout, and I/O queues before their time.
#[test]
fn queues_of_controllers_that_are_never_enabled() {
    suffer("never enabled", 100, |at, source, opened, stop| {
        let mut number = 0;
        hold(100, opened, stop, || {
            number = 50 + (number + 1) % 50;
            let parameters = connect_data(number);
            let mut admin = Stranger::connect(at, source, 0)?;
            admin.send(&connect_capsule(0, 0, 0, &parameters, false))?;
            admin.hears();
            let mut io = Stranger::connect(at, source, 1)?;
            let parameters = ConnectParameters {
                cntlid: 1,
                ..parameters
            };
            io.send(&connect_capsule(0, 1, 0, &parameters, false))?;
            io.hears();
            Ok(admin)
        });
    });
}

/// Each brings 2 MiB, and says nothing.
#[test]
fn connections_that_bring_memory() {
    suffer("memory", 200, |at, source, opened, stop| {
        hold(200, opened, stop, || connect_sharing(at, source));
    });
}

/// What strangers bring is memory of theirs: the target looks at a page of it, and the kernel shows
/// it those beside at once.
#[test]
fn of_memory_that_strangers_bring_the_target_has_little() {
    /// As many as the target keeps of two addresses.
    const STRANGERS: usize = 128;
    allow_many_descriptors();
    let at = own_address();
    let (daemon, _folder) = target(at);
    let none = resident_shared_bytes_of(daemon.pid());
    let strangers: Vec<Stranger> = (0..STRANGERS)
        .map(|number| [ELSEWHERE, Ipv4Addr::LOCALHOST][number % 2])
        .map(|source| connect_sharing(at, source).expect("it is taken"))
        .collect();
    let memory = || resident_shared_bytes_of(daemon.pid()).saturating_sub(none);
    // It has none of the last one's before it has looked at it.
    let start = Instant::now();
    while memory() < STRANGERS * 4096 && start.elapsed() < Duration::from_secs(2) {
        thread::sleep(REST);
    }
    println!("{} KiB of {STRANGERS} strangers", memory() >> 10);
    assert!(
        (STRANGERS * 4096..STRANGERS * (128 << 10)).contains(&memory()),
        "{}",
        memory()
    );
    drop(strangers);
    let start = Instant::now();
    while memory() > 0 {
        assert!(
            start.elapsed() < Duration::from_secs(5),
            "{} are left",
            memory()
        );
        thread::sleep(REST);
    }
    assert!(daemon.stop().success());
}

/// A busy machine keeps a host waiting between its connection and its Request: long enough for
/// another program at its address to open hundreds.
#[test]
fn a_host_that_is_slow_to_ask_is_not_closed_for_those_that_ask_nothing() {
    const SILENT: usize = 500;
    allow_many_descriptors();
    let at = own_address();
    let (daemon, _folder) = target(at);
    let mut host = tcp(at, Ipv4Addr::LOCALHOST).expect("a connection");
    let silent: Vec<_> = (0..SILENT)
        .map(|_| tcp(at, Ipv4Addr::LOCALHOST).expect("a connection"))
        .collect();
    // The target has taken the last one: it closes that when it is shut.
    let mut last = tcp(at, ELSEWHERE).expect("a connection");
    last.shutdown(Shutdown::Write).expect("shut");
    assert_eq!(last.read(&mut [0; 1]).expect("closed"), 0);
    host.write_all(&mpa_request(0)).expect("not closed");
    let mut reply = [0; 20];
    host.read_exact(&mut reply).expect("the Reply");
    assert!(reply.starts_with(b"MPA ID Rep Frame"), "{reply:?}");
    drop((host, silent));
    assert!(daemon.stop().success());
}

/// A second Connect after a refusal, and a second one before the answer, end the connection at
/// once.
#[test]
fn a_connection_has_one_connect() {
    let at = own_address();
    let (daemon, _folder) = target(at);
    let source = sources()[0];
    let parameters = nobody(Nqn::new(SUBNQN).expect("valid"));
    for pulled in [false, true] {
        let mut stranger = Stranger::connect(at, source, 0).expect("accepted");
        let capsule = connect_capsule(0, 0, 0, &parameters, pulled);
        stranger.send(&capsule).expect("sent");
        assert!(stranger.hears(), "a response, or an RDMA READ Request");
        stranger.send(&capsule).expect("sent");
        let start = Instant::now();
        while !has_ended(&stranger.stream) {
            // Well before any deadline.
            assert!(start.elapsed() < Duration::from_secs(2), "pulled: {pulled}");
            thread::sleep(REST);
        }
    }
    daemon.wait_for_log(&["sent a command though its Connect was refused"]);
    daemon.wait_for_log(&["sent a second command before its Connect was answered"]);
    assert!(daemon.stop().success());
}

/// Every stage has its few seconds, and they end with a reason.
#[test]
fn every_stage_of_a_connect_has_its_time() {
    let at = own_address();
    let (daemon, _folder) = target(at);
    let source = sources()[0];
    let parameters = nobody(Nqn::new(SUBNQN).expect("valid"));
    let silent = tcp(at, source).expect("TCP");
    let bare = Stranger::connect(at, source, 0).expect("accepted");
    let mut unread = Stranger::connect(at, source, 0).expect("accepted");
    unread
        .send(&connect_capsule(0, 0, 0, &parameters, true))
        .expect("sent");
    let mut refused = Stranger::connect(at, source, 0).expect("accepted");
    refused
        .send(&connect_capsule(0, 0, 0, &parameters, false))
        .expect("sent");
    let start = Instant::now();
    let all = [&silent, &bare.stream, &unread.stream, &refused.stream];
    let mut ended = [None; 4];
    while ended.iter().any(Option::is_none) {
        for (end, stream) in ended.iter_mut().zip(all) {
            if end.is_none() && has_ended(stream) {
                *end = Some(start.elapsed());
            }
        }
        assert!(start.elapsed() < Duration::from_secs(60), "{ended:?}");
        thread::sleep(REST);
    }
    // Three seconds each.
    for end in ended.into_iter().flatten() {
        assert!(end > Duration::from_millis(2_900), "{ended:?}");
        let late = Duration::from_millis(3_000 + 1_000 * u64::from(tolerance()));
        assert!(end < late, "{ended:?}");
    }
    for why in [
        "no Connect in time",
        "did not answer the RDMA READ of its Connect's data in time",
        "its Connect was refused, and the host did not disconnect in time",
    ] {
        daemon.wait_for_log(&["disconnected", why]);
    }
    assert!(daemon.stop().success());
}
