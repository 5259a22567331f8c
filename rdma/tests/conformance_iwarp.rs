//! The conformance suite on the `iwarp` provider, through loopback TCP and through shared memory.

mod harness;

use std::net::{Ipv6Addr, SocketAddr, TcpListener};
use std::process::ExitCode;

use capstan_rdma::conformance::{Behaviour, Fabric, RealClock, Side};
use capstan_rdma::contract::ConnectionManager;
use capstan_rdma::iwarp::{Config, CrcUse, FpduSize, Provider};
use harness::Variant;

struct Tcp {
    /// One provider for each side.
    providers: [Provider; 2],
    clock: RealClock,
    behaviour: Behaviour,
}

fn ipv6() -> Result<SocketAddr, String> {
    let at = SocketAddr::from((Ipv6Addr::LOCALHOST, 0));
    let bound = TcpListener::bind(at).map_err(|error| error.to_string());
    bound.map(|_| at)
}

impl Tcp {
    fn boxed(config: &Config, behaviour: Behaviour) -> Box<dyn Fabric> {
        let provider = || {
            let config = Config {
                receiver_not_ready_timeout_ms: 1000,
                ..config.clone()
            };
            Provider::new(config).unwrap()
        };
        Box::new(Self {
            providers: [provider(), provider()],
            clock: RealClock::new(),
            behaviour,
        })
    }
}

impl Fabric for Tcp {
    fn manager(&mut self, side: Side) -> Result<Box<dyn ConnectionManager>, String> {
        let provider = match side {
            Side::Active => &self.providers[0],
            Side::Passive => &self.providers[1],
        };
        provider.connection_manager().map_err(|e| e.to_string())
    }

    fn listen_address(&self) -> SocketAddr {
        "127.0.0.1:0".parse().unwrap()
    }

    fn listen_address_v6(&self) -> Result<SocketAddr, String> {
        ipv6()
    }

    fn behaviour(&self) -> Behaviour {
        self.behaviour
    }

    fn now_us(&mut self) -> u64 {
        self.clock.now_us()
    }

    fn pause(&mut self, until_us: u64) {
        self.clock.pause(until_us);
    }
}

/// As between two of this make on one machine.
fn same_host() -> Box<dyn Fabric> {
    Tcp::boxed(&Config::default(), Behaviour::FULL)
}

/// As between two of this make on different machines.
fn tcp() -> Config {
    Config {
        same_host: false,
        crc: CrcUse::Always,
        ..Config::default()
    }
}

fn peer_to_peer() -> Box<dyn Fabric> {
    Tcp::boxed(&tcp(), Behaviour::FULL)
}

/// As between two of this make on one machine that stay with TCP.
fn without_crc() -> Box<dyn Fabric> {
    let config = Config {
        crc: CrcUse::BetweenMachines,
        ..tcp()
    };
    Tcp::boxed(&config, Behaviour::FULL)
}

/// As one of thousands of queue pairs, which epoll watches all the time.
fn many_queue_pairs() -> Box<dyn Fabric> {
    let config = Config {
        edge_triggered_from: 0,
        ..tcp()
    };
    Tcp::boxed(&config, Behaviour::FULL)
}

/// The connecting side speaks first; no CRC, FPDUs of one TCP segment.
fn client_server() -> Box<dyn Fabric> {
    let config = Config {
        peer_to_peer: false,
        crc: CrcUse::Never,
        fpdu_size: FpduSize::Segment,
        ..tcp()
    };
    let behaviour = Behaviour {
        passive_may_send_first: false,
        ..Behaviour::FULL
    };
    Tcp::boxed(&config, behaviour)
}

/// As with a peer that is not this provider: each FPDU in a TCP segment of its own.
fn foreign() -> Box<dyn Fabric> {
    let config = Config {
        fpdu_size: FpduSize::Segment,
        ..tcp()
    };
    Tcp::boxed(&config, Behaviour::FULL)
}

fn revision_1() -> Box<dyn Fabric> {
    let config = Config {
        mpa_revision: 1,
        ..tcp()
    };
    let behaviour = Behaviour {
        passive_may_send_first: false,
        exchanges_read_depths: false,
        ..Behaviour::FULL
    };
    Tcp::boxed(&config, behaviour)
}

fn main() -> ExitCode {
    let mut without = Vec::new();
    if let Err(why) = ipv6() {
        eprintln!("connection::ipv6 is not applicable: {why}");
        without.push("connection::ipv6");
    }
    let variant = |name, fabric| Variant {
        name,
        fabric,
        not_applicable: without.clone(),
    };
    let mut v1 = variant("revision_1", revision_1);
    v1.not_applicable
        .push("connection::read_depths_are_exchanged");
    harness::main(
        vec![
            variant("same_host", same_host),
            variant("peer_to_peer", peer_to_peer),
            variant("without_crc", without_crc),
            variant("many_queue_pairs", many_queue_pairs),
            variant("client_server", client_server),
            variant("foreign", foreign),
            v1,
        ],
        std::env::args(),
    )
}
