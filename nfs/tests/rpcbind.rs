//! Registering with rpcbind: a port mapper of the test's own, and the real one.

use std::collections::BTreeMap;
use std::net::{SocketAddr, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use capstan_nfs::rpcbind::{PROGRAMS, RPCBIND, Registrar, RpcbindError, register};
use capstan_rpcrdma::rpc::{Accepted, AuthStat, Call, Denied, Reply};
use capstan_rpcrdma::xdr::{Reader, Writer};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

/// How it behaves.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Manner {
    Usual,
    /// It loses the first question.
    LosesFirst,
    /// It answers nothing.
    Silent,
    /// It takes no registrations.
    Denies,
}

type Ports = Arc<Mutex<BTreeMap<(u32, u32), u32>>>;

/// A port mapper.
struct Mapper {
    address: SocketAddr,
    ports: Ports,
    sources: Receiver<SocketAddr>,
    ended: Option<JoinHandle<()>>,
}

impl Mapper {
    fn new(manner: Manner) -> Self {
        Self::at("127.0.0.1:0".parse().unwrap(), manner)
    }

    fn at(address: SocketAddr, manner: Manner) -> Self {
        let socket = UdpSocket::bind(address).unwrap();
        let address = socket.local_addr().unwrap();
        let ports = Ports::default();
        let (of_thread, (sender, sources)) = (ports.clone(), channel());
        let ended = thread::spawn(move || {
            let mut count = 0;
            loop {
                let mut buffer = [0; 256];
                let (bytes, source) = socket.recv_from(&mut buffer).unwrap();
                if bytes == 0 {
                    return;
                }
                count += 1;
                let lost = manner == Manner::LosesFirst && count == 1;
                if lost || manner == Manner::Silent {
                    continue;
                }
                let _ = sender.send(source);
                let reply = answer(&buffer[..bytes], manner, &of_thread);
                // What is not asked for is not taken for an answer.
                socket.send_to(b"stray", source).unwrap();
                socket.send_to(&reply, source).unwrap();
            }
        });
        Self {
            address,
            ports,
            sources,
            ended: Some(ended),
        }
    }

    fn ports(&self) -> Vec<((u32, u32), u32)> {
        let ports = self.ports.lock().unwrap();
        ports
            .iter()
            .map(|(program, port)| (*program, *port))
            .collect()
    }
}

impl Drop for Mapper {
    fn drop(&mut self) {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.send_to(&[], self.address).unwrap();
        self.ended.take().unwrap().join().unwrap();
    }
}

fn answer(message: &[u8], manner: Manner, ports: &Ports) -> Vec<u8> {
    let mut reader = Reader::new(message);
    let call = Call::read(&mut reader).unwrap();
    assert_eq!((call.program, call.version), (100_000, 2));
    let mut word = || reader.u32("word").unwrap();
    let (program, protocol, port) = ((word(), word()), word(), word());
    let mut ports = ports.lock().unwrap();
    let result = match call.procedure {
        1 => {
            assert_eq!(protocol, 6, "TCP");
            u32::from(*ports.entry(program).or_insert(port) == port)
        }
        2 => u32::from(ports.remove(&program).is_some()),
        3 => ports.get(&program).copied().unwrap_or(0),
        other => panic!("procedure {other}"),
    };
    let mut buffer = [0; 256];
    let mut writer = Writer::new(&mut buffer);
    if manner == Manner::Denies {
        ports.clear();
        let denied = Denied::Auth(AuthStat::TOOWEAK);
        Reply::denied(call.xid, denied).write(&mut writer).unwrap();
    } else {
        Reply::accepted(call.xid, Accepted::Success)
            .write(&mut writer)
            .unwrap();
        writer.u32(result).unwrap();
    }
    writer.written().to_vec()
}

#[test]
fn root_programs_are_registered_until_the_registration_is_dropped() {
    for manner in [Manner::Usual, Manner::LosesFirst] {
        let mapper = Mapper::new(manner);
        mapper.ports.lock().unwrap().insert((100_021, 4), 5);
        let registration = register(mapper.address, 20_490).unwrap();
        let mut expected: Vec<_> = PROGRAMS.iter().map(|of| (*of, 20_490)).collect();
        expected.push(((100_021, 4), 5));
        expected.sort_unstable();
        assert_eq!(mapper.ports(), expected);
        // What a server that was killed has left there is not in the way of the next one.
        let again = register(mapper.address, 20_490).unwrap();
        drop(registration);
        assert_eq!(mapper.ports(), [((100_021, 4), 5)]);
        drop(again);
        for source in mapper.sources.try_iter() {
            assert!(source.port() < 1024, "{source} is not privileged");
        }
    }
}

#[test]
fn root_another_server_is_left_alone() {
    let mapper = Mapper::new(Manner::Usual);
    mapper.ports.lock().unwrap().insert((100_003, 3), 2049);
    match register(mapper.address, 20_490) {
        Err(RpcbindError::Taken {
            program: 100_003,
            version: 3,
            port: 2049,
            wanted: 20_490,
        }) => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(mapper.ports(), [((100_003, 3), 2049)]);
}

/// Waits until the mapper has these ports, of which it is asked again and again.
fn wait_for_ports(mapper: &Mapper, expected: &[((u32, u32), u32)]) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while mapper.ports() != expected {
        let left = deadline.saturating_duration_since(Instant::now());
        let asked = mapper.sources.recv_timeout(left);
        asked.unwrap_or_else(|_| panic!("has {:?}, expected {expected:?}", mapper.ports()));
    }
}

#[test]
fn root_an_rpcbind_that_comes_later_or_anew_is_told() {
    let own: Vec<_> = {
        let mut programs = PROGRAMS;
        programs.sort_unstable();
        programs.map(|of| (of, 20_490)).to_vec()
    };
    let address = Mapper::new(Manner::Usual).address;
    let period = Duration::from_millis(20);
    let registrar = Registrar::start(address, 20_490, period).unwrap();
    let mapper = Mapper::at(address, Manner::Usual);
    wait_for_ports(&mapper, &own);
    // As one that was started anew has none.
    mapper.ports.lock().unwrap().clear();
    wait_for_ports(&mapper, &own);
    drop(registrar);
    assert_eq!(mapper.ports(), []);

    // Another server has come first, behind an rpcbind that knows of none.
    let registrar = Registrar::start(address, 20_490, Duration::from_secs(3600)).unwrap();
    assert_eq!(mapper.ports(), own);
    drop(registrar);
    let other = [((100_003, 3), 2049)];
    let registrar = Registrar::start(address, 20_490, period).unwrap();
    *mapper.ports.lock().unwrap() = other.into();
    let taken = [((100_003, 3), 2049), ((100_005, 3), 20_490)];
    wait_for_ports(&mapper, &taken);
    drop(registrar);
    assert_eq!(mapper.ports(), other);
}

#[test]
fn root_what_is_wrong_with_rpcbind_is_told() {
    let gone = UdpSocket::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let error = register(gone, 2049).unwrap_err();
    assert!(
        matches!(error, RpcbindError::NotRunning(at) if at == gone),
        "{error:?}"
    );
    let silent = Mapper::new(Manner::Silent);
    let error = register(silent.address, 2049).unwrap_err();
    assert!(matches!(error, RpcbindError::Silent { .. }), "{error:?}");
    let denies = Mapper::new(Manner::Denies);
    match register(denies.address, 2049) {
        Err(RpcbindError::Refused { answer, .. }) => assert!(answer.contains("AUTH_TOOWEAK")),
        other => panic!("{other:?}"),
    }
}

/// The real one, in a network of the test's own.
struct Rpcbind(Child);

impl Drop for Rpcbind {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `None` where there is none.
fn real_rpcbind() -> Option<Rpcbind> {
    let none = None::<&str>;
    unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS).unwrap();
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
    // For its socket, and what it keeps over restarts.
    mount(Some("tmpfs"), "/run", Some("tmpfs"), MsFlags::empty(), none).unwrap();
    let up = Command::new("ip")
        .args(["link", "set", "lo", "up"])
        .status();
    assert!(up.expect("ip, of the package iproute2").success());
    let mut command = Command::new("rpcbind");
    let started = command.arg("-f").stderr(Stdio::inherit()).spawn();
    match started {
        Ok(child) => Some(Rpcbind(child)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => panic!("rpcbind: {error}"),
    }
}

#[test]
fn root_the_real_rpcbind_takes_registrations() {
    let Some(_rpcbind) = real_rpcbind() else {
        eprintln!("left out: there is no rpcbind here; apt-get install rpcbind");
        return;
    };
    let deadline = Instant::now() + Duration::from_secs(20);
    let registration = loop {
        match register(RPCBIND, 20_490) {
            Ok(registration) => break registration,
            Err(RpcbindError::NotRunning(_)) if Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(20));
            }
            Err(error) => panic!("{error}"),
        }
    };
    let listed = || {
        let listed = Command::new("rpcinfo").args(["-p", "127.0.0.1"]).output();
        String::from_utf8(listed.unwrap().stdout).unwrap()
    };
    let shown = listed();
    for (program, version) in PROGRAMS {
        let line = shown.lines().find(|line| {
            let words: Vec<_> = line.split_whitespace().collect();
            words.starts_with(&[&program.to_string(), &version.to_string(), "tcp", "20490"])
        });
        assert!(line.is_some(), "{program} {version}: {shown}");
    }
    match register(RPCBIND, 20_491) {
        Err(RpcbindError::Taken { port: 20_490, .. }) => {}
        other => panic!("{other:?}"),
    }
    // The same again: as behind a server that was killed.
    let again = register(RPCBIND, 20_490).unwrap();
    drop(registration);
    let shown = listed();
    assert!(!shown.contains("20490"), "{shown}");
    drop(again);
}
