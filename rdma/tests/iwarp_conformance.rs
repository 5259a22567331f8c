//! The conformance suite over the iWARP provider, on loopback TCP.

use std::net::SocketAddr;

use capstan_rdma::conformance::{self, Behaviour, CASES, Fabric, RealClock, Side, Stop};
use capstan_rdma::contract::ConnectionManager;
use capstan_rdma::iwarp::{Config, Provider};

struct Tcp {
    /// One provider for each side.
    providers: [Provider; 2],
    clock: RealClock,
    behaviour: Behaviour,
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
        match std::net::TcpListener::bind("[::1]:0") {
            Ok(_) => Ok("[::1]:0".parse().unwrap()),
            Err(error) => Err(format!("no IPv6 on this machine: {error}")),
        }
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

/// Runs every case with this configuration on both sides; the names of those that do not apply.
fn run_all(config: &Config, behaviour: Behaviour) -> Vec<&'static str> {
    let mut skipped = Vec::new();
    let mut failures = Vec::new();
    for case in CASES {
        let provider = || Provider::new(config.clone()).unwrap();
        let mut fabric = Tcp {
            providers: [provider(), provider()],
            clock: RealClock::new(),
            behaviour,
        };
        match conformance::run(case, &mut fabric) {
            Ok(()) => {}
            Err(Stop::NotApplicable(_)) => skipped.push(case.name),
            Err(stop) => failures.push(format!("{}: {stop}", case.name)),
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    skipped
}

const IWARP: Behaviour = Behaviour {
    // A Send or an RDMA WRITE has completed when the peer refuses it.
    names_remote_errors: false,
    ..Behaviour::FULL
};

#[test]
fn peer_to_peer() {
    let config = Config {
        receiver_not_ready_timeout_ms: 1000,
        ..Config::default()
    };
    let skipped = run_all(&config, IWARP);
    assert!(skipped.is_empty(), "{skipped:?}");
}
