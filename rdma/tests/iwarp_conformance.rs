//! The conformance suite over the iWARP provider, on loopback TCP.

use std::net::SocketAddr;

use capstan_rdma::conformance::{self, Behaviour, CASES, Fabric, RealClock, Side, Stop};
use capstan_rdma::contract::ConnectionManager;
use capstan_rdma::iwarp::{Config, FpduSize, Provider};

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

/// Runs every case but those named in `except` with this configuration on both sides.
fn run_all(config: &Config, behaviour: Behaviour, except: &[&str]) {
    let mut failures = Vec::new();
    for case in CASES.iter().filter(|c| !except.contains(&c.name)) {
        let provider = || Provider::new(config.clone()).unwrap();
        let mut fabric = Tcp {
            providers: [provider(), provider()],
            clock: RealClock::new(),
            behaviour,
        };
        match conformance::run(case, &mut fabric) {
            Ok(()) => {}
            Err(Stop::NotApplicable(why)) => {
                failures.push(format!("{}: not applicable: {why}", case.name));
            }
            Err(stop) => failures.push(format!("{}: {stop}", case.name)),
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Where the listening side may not speak first the suite sends a greeting, which these do not
/// count in.
const NO_GREETING: [&str; 2] = [
    "limits::shared_receive_queue_full",
    "limits::separate_completion_queues",
];

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
    run_all(&config, IWARP, &[]);
}

#[test]
fn client_server_without_crc_and_with_segment_sized_fpdus() {
    let config = Config {
        peer_to_peer: false,
        crc: false,
        fpdu_size: FpduSize::Segment,
        receiver_not_ready_timeout_ms: 1000,
        ..Config::default()
    };
    let behaviour = Behaviour {
        passive_may_send_first: false,
        ..IWARP
    };
    run_all(&config, behaviour, &NO_GREETING);
}

#[test]
fn revision_1() {
    let config = Config {
        mpa_revision: 1,
        receiver_not_ready_timeout_ms: 1000,
        ..Config::default()
    };
    let behaviour = Behaviour {
        passive_may_send_first: false,
        ..IWARP
    };
    let [a, b] = NO_GREETING;
    // Revision 1 has no place for depths.
    run_all(
        &config,
        behaviour,
        &[a, b, "connection::read_depths_are_exchanged"],
    );
}
