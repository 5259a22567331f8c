//! A host on a slow network, beside an attacker with many addresses. Each address has no more
//! connections than the host, and more connect within one round trip than there are places. The
//! tests need no slow network: all of the attacker's connect while the host is silent.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};

use capstan_nvme_proto::fabrics::ConnectParameters;
use capstan_nvme_proto::nqn::{HostId, Nqn};
use capstan_tests::attack::{Stranger, connect_capsule, mpa_request, tcp};
use capstan_tests::process::allow_many_descriptors;
use capstan_tests::program::{Daemon, own_address, utf8};
use capstan_tests::target::SUBNQN;
use capstan_tests::wire_host::connect_data;

/// Where the host is.
const HOST: Ipv4Addr = Ipv4Addr::LOCALHOST;
/// How many addresses the others have: more than there are places, of those that were accepted and
/// of those that say nothing.
const ADDRESSES: usize = 300;
const SILENT_ADDRESSES: usize = 1_200;
/// How often the host connects.
const CONNECTS: usize = 10;
/// ICReq PDU (NVMe/TCP transport specification 1.1, section 3.6.2.2).
const ICREQ: [u8; 128] = {
    let mut bytes = [0; 128];
    (bytes[2], bytes[4]) = (128, 128);
    bytes
};

/// A target with one reactor, and so with one set of places.
fn target(at: SocketAddr) -> (Daemon, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("target.toml");
    let toml = format!(
        "[target]\nreactors = 1\n[[listener]]\naddress = \"{}\"\nport = {}\nprovider = \"iwarp\"\n\
         [[subsystem]]\nnqn = \"{SUBNQN}\"\nallowed_hosts = [\"nqn.2026-11.org.example:host-0\"]\n\
         [[subsystem.namespace]]\nram = \"1MiB\"\n",
        at.ip(),
        at.port()
    );
    std::fs::write(&path, toml).unwrap();
    (Daemon::serve(&["--config", utf8(&path)]), folder)
}

/// Those who come, one of each of so many addresses in turn.
struct Others<F> {
    addresses: usize,
    open: F,
    next: usize,
    held: Vec<TcpStream>,
}

impl<F: Fn(Ipv4Addr) -> io::Result<TcpStream>> Others<F> {
    /// Each address has come to nothing at least twice.
    fn at_work(addresses: usize, open: F) -> Self {
        let mut others = Self {
            addresses,
            open,
            next: 0,
            held: Vec::new(),
        };
        others.come(3 * addresses + 100);
        others
    }

    /// So many more; what they had before is gone then.
    fn come(&mut self, count: usize) {
        let numbers = self.next..self.next + count;
        self.next += count;
        let streams = numbers.filter_map(|number| {
            let [.., high, low] = (number % self.addresses).to_be_bytes();
            // The target may be ending it already.
            (self.open)(Ipv4Addr::new(127, 8, high, low)).ok()
        });
        self.held = streams.collect();
    }
}

fn has_ended(stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let ended = match stream.peek(&mut [0]) {
        Err(error) => error.kind() != ErrorKind::WouldBlock,
        Ok(length) => length == 0,
    };
    stream.set_nonblocking(false).unwrap();
    ended
}

fn accepted(at: SocketAddr, source: Ipv4Addr) -> io::Result<TcpStream> {
    Ok(Stranger::connect(at, source, 0)?.stream)
}

fn greeted(at: SocketAddr, source: Ipv4Addr) -> io::Result<TcpStream> {
    let mut stream = tcp(at, source)?;
    stream.write_all(&ICREQ)?;
    stream.read_exact(&mut [0; 128])?;
    Ok(stream)
}

/// 128 places, and 400 who come.
#[test]
fn a_slow_host_that_was_accepted_is_in_nobodys_way() {
    let at = own_address();
    let (daemon, _folder) = target(at);
    let mut others = Others::at_work(ADDRESSES, |source| accepted(at, source));
    for connect in 0..CONNECTS {
        let mut host = Stranger::connect(at, HOST, 0).expect("accepted");
        others.come(400);
        assert!(!has_ended(&host.stream), "connect {connect}");
        let permitted = ConnectParameters {
            hostid: HostId([7; 16]),
            hostnqn: Nqn::new("nqn.2026-11.org.example:host-0").unwrap(),
            ..connect_data(0)
        };
        let capsule = connect_capsule(0, 0, 0, &permitted, false);
        host.send(&capsule).expect("it is still there");
        assert!(host.hears(), "connect {connect}: no response");
    }
    drop(others);
    assert!(daemon.stop().success());
}

#[test]
fn a_slow_host_that_was_accepted_over_nvme_tcp_is_in_nobodys_way() {
    let at = own_address();
    let (daemon, _folder) = target(at);
    let mut others = Others::at_work(ADDRESSES, |source| greeted(at, source));
    for connect in 0..CONNECTS {
        let host = greeted(at, HOST).expect("accepted");
        others.come(400);
        assert!(!has_ended(&host), "connect {connect}");
    }
    drop(others);
    assert!(daemon.stop().success());
}

/// 1,024 sockets, and 1,500 who come and say nothing.
#[test]
fn a_slow_host_that_has_said_nothing_yet_is_in_nobodys_way() {
    allow_many_descriptors();
    let at = own_address();
    let (daemon, _folder) = target(at);
    let mut others = Others::at_work(SILENT_ADDRESSES, |source| tcp(at, source));
    for connect in 0..CONNECTS / 2 {
        let mut host = tcp(at, HOST).expect("connected");
        others.come(1_500);
        // All of them have been taken when one that came later is.
        accepted(at, Ipv4Addr::new(127, 7, 7, 7)).expect("accepted");
        assert!(!has_ended(&host), "connect {connect}");
        host.write_all(&mpa_request(0)).expect("it is still there");
        let heard = host.read(&mut [0; 20]).expect("a reply");
        assert!(heard > 0, "connect {connect}");
    }
    drop(others);
    assert!(daemon.stop().success());
}

/// One address has 64 places, and may have 512 connections that have not asked for anything.
#[test]
fn half_an_ic_req_takes_the_place_of_no_host_that_was_accepted() {
    let at = own_address();
    let (daemon, _folder) = target(at);
    for connect in 0..CONNECTS {
        let host = greeted(at, HOST).expect("accepted");
        let halves: Vec<_> = (0..100)
            .map(|number| {
                let mut stream = tcp(at, HOST).expect("connected");
                let sent = [1, 8, 60, 127][number % 4];
                stream.write_all(&ICREQ[..sent]).expect("it is there");
                stream
            })
            .collect();
        // All of them have been taken when one that came later is.
        greeted(at, HOST).expect("accepted");
        assert!(!has_ended(&host), "connect {connect}");
        drop(halves);
    }
    assert!(daemon.stop().success());
}
