//! The conformance suite on the `loopback` provider.

mod harness;

use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;

use capstan_rdma::conformance::{Behaviour, Fabric, Side};
use capstan_rdma::contract::{ConnectionManager, DeviceAttributes};
use capstan_rdma::loopback::{Delay, Faults, Network, Provider, attributes};

/// Two machines on one network, in virtual time.
struct Loopback {
    network: Network,
    machines: [Provider; 2],
    behaviour: Behaviour,
}

const ADDRESSES: [[&str; 2]; 2] = [["10.0.0.1", "fd00::1"], ["10.0.0.2", "fd00::2"]];

fn address(side: usize, family: usize) -> IpAddr {
    ADDRESSES[side][family].parse().unwrap()
}

impl Loopback {
    fn boxed(faults: Faults, device: &DeviceAttributes, behaviour: Behaviour) -> Box<dyn Fabric> {
        let network = Network::with_faults(7, faults);
        let machines = [0, 1].map(|side| {
            let addresses = [address(side, 0), address(side, 1)];
            network.provider(&addresses, device.clone()).unwrap()
        });
        Box::new(Self {
            network,
            machines,
            behaviour,
        })
    }
}

impl Fabric for Loopback {
    fn manager(&mut self, side: Side) -> Result<Box<dyn ConnectionManager>, String> {
        let machine = match side {
            Side::Active => &self.machines[0],
            Side::Passive => &self.machines[1],
        };
        let manager = machine.manager().map_err(|error| error.to_string())?;
        Ok(Box::new(manager))
    }

    fn listen_address(&self) -> SocketAddr {
        SocketAddr::new(address(1, 0), 0)
    }

    fn listen_address_v6(&self) -> Result<SocketAddr, String> {
        Ok(SocketAddr::new(address(1, 1), 0))
    }

    fn behaviour(&self) -> Behaviour {
        self.behaviour
    }

    fn now_us(&mut self) -> u64 {
        self.network.now_us()
    }

    fn pause(&mut self, until_us: u64) {
        let next = self.network.next_deadline_us().unwrap_or(until_us);
        let at_least = self.network.now_us() + 1;
        self.network.advance_to(next.min(until_us).max(at_least));
    }
}

fn plain() -> Box<dyn Fabric> {
    Loopback::boxed(Faults::NONE, &attributes(), Behaviour::FULL)
}

/// Messages take time, mostly little, in small pieces; queue pairs overtake each other.
fn delayed() -> Box<dyn Fabric> {
    let faults = Faults {
        delay: Delay::Uniform {
            min_us: 1,
            max_us: 200,
        },
        segment_bytes: 1460,
        ..Faults::NONE
    };
    Loopback::boxed(faults, &attributes(), Behaviour::FULL)
}

fn long_tail() -> Box<dyn Fabric> {
    let faults = Faults {
        delay: Delay::LongTail {
            usual_us: 5,
            tail_us: 20_000,
            tail_per_million: 20_000,
        },
        ..Faults::NONE
    };
    Loopback::boxed(faults, &attributes(), Behaviour::FULL)
}

/// A device with the least a program must get along with: iWARP's peculiarities.
fn modest() -> Box<dyn Fabric> {
    let device = DeviceAttributes {
        sge_max: 3,
        sge_rd_max: 1,
        srq_wr_max: 0,
        responder_resources_max: 1,
        initiator_depth_max: 1,
        memory_windows: false,
        send_with_invalidate: false,
        read_sink_needs_remote_write: true,
        ..attributes()
    };
    let behaviour = Behaviour {
        passive_may_send_first: false,
        names_remote_errors: false,
        ..Behaviour::FULL
    };
    Loopback::boxed(Faults::NONE, &device, behaviour)
}

/// Every message goes into a receive.
const LENDING: &str = "receive::a_lent_message";

fn main() -> ExitCode {
    let variant = |name, fabric| harness::Variant {
        name,
        fabric,
        not_applicable: vec![LENDING],
    };
    harness::main(
        vec![
            variant("plain", plain),
            variant("delayed", delayed),
            variant("long_tail", long_tail),
            harness::Variant {
                not_applicable: vec![
                    LENDING,
                    "windows::",
                    "exchange::",
                    "limits::shared_receive_queue_full",
                    "receive::shared_",
                    "receive::empty_shared_",
                ],
                ..variant("modest", modest)
            },
        ],
        std::env::args(),
    )
}
