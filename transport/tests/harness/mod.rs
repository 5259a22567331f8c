//! What the suites of queues have in common: cases as tests, ends of RDMA, and sockets.

pub(crate) mod socket;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::OnceLock;
use std::time::Instant;

use capstan_memory::{Buffer, Pages, Pool};
use capstan_rdma::contract::{
    Access, CompletionQueue, ConnectParam, ConnectionManager, Device, MemoryRegion, PrivateData,
    ProtectionDomain, QpConfig, ReceiveSource, Sge,
};
use capstan_rdma::iwarp;
use capstan_rdma::loopback::{Network, attributes};
use libtest_mimic::Trial;

/// An RDMA device of this machine: an address of it, and what makes connection managers.
pub(crate) type OwnDevice = (IpAddr, fn() -> Box<dyn ConnectionManager>);

/// Work requests of a queue pair: a push and a response for each command.
pub(crate) const SEND_WRS: u32 = 128;

/// What both sides of a connection ask for.
pub(crate) const PARAM: ConnectParam = ConnectParam {
    private_data: PrivateData::EMPTY,
    responder_resources: 4,
    initiator_depth: 4,
    rnr_retry_count: 7,
};

/// How the side that is not under test ends a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerEnd {
    /// In order.
    Closes,
    /// Without a word.
    Resets,
    /// It says that the other side has broken the rules; only over NVMe/TCP.
    Terminates,
}

/// A case with its name.
pub(crate) type Case<W> = (&'static str, fn(W));

/// The device under test, where there is one.
static DEVICE: OnceLock<OwnDevice> = OnceLock::new();

/// Sets the device under test, before any case runs.
pub(crate) fn use_device(device: OwnDevice) {
    let set = DEVICE.set(device);
    set.expect("there is one device under test");
}

/// Each case over each wire. Both come with their names.
pub(crate) fn trials<W: Copy + Send + 'static>(
    wires: &[(&'static str, W)],
    cases: &[Case<W>],
) -> Vec<Trial> {
    let over = |&(wire, over): &(&'static str, W)| {
        cases.iter().map(move |&(name, case)| {
            Trial::test(format!("{wire}::{name}"), move || {
                case(over);
                Ok(())
            })
        })
    };
    wires.iter().flat_map(over).collect()
}

/// What RDMA goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rdma {
    /// A network in virtual time.
    Loopback,
    /// User-space iWARP over sockets.
    Sockets,
    /// The same through memory that both ends have.
    SharedMemory,
    /// The device under test, on which both ends are.
    Device,
}

type Managers = [Box<dyn ConnectionManager>; 2];

/// The time of both ends.
pub(crate) struct Clock {
    /// Where time is virtual.
    network: Option<Network>,
    start: Instant,
}

impl Clock {
    pub(crate) fn now_us(&self) -> u64 {
        match &self.network {
            Some(network) => network.now_us(),
            None => u64::try_from(self.start.elapsed().as_micros()).expect("not so long"),
        }
    }

    /// Lets virtual time pass up to the next event.
    pub(crate) fn advance(&self) {
        if let Some(network) = &self.network
            && let Some(then_us) = network.next_deadline_us()
        {
            network.advance_to(then_us);
        }
    }
}

/// The connection managers of two ends, and the address at which the first one listens.
pub(crate) fn managers(rdma: Rdma) -> (Clock, Managers, SocketAddr) {
    let (network, [mut first, second], address) = match rdma {
        Rdma::Loopback => {
            let network = Network::new(3);
            let at = |last| IpAddr::V4(Ipv4Addr::new(10, 0, 0, last));
            let manager = |last| -> Box<dyn ConnectionManager> {
                let provider = network.provider(&[at(last)], attributes());
                Box::new(provider.expect("a device").manager().expect("a manager"))
            };
            let both = [manager(1), manager(2)];
            (Some(network), both, at(1))
        }
        Rdma::Sockets | Rdma::SharedMemory => {
            let manager = || {
                let provider = iwarp::Provider::new(iwarp::Config {
                    same_host: rdma == Rdma::SharedMemory,
                    ..iwarp::Config::default()
                });
                let provider = provider.expect("a device");
                provider.connection_manager().expect("a manager")
            };
            (None, [manager(), manager()], Ipv4Addr::LOCALHOST.into())
        }
        Rdma::Device => {
            let (address, manager) = DEVICE.get().expect("it is set before any case runs");
            (None, [manager(), manager()], *address)
        }
    };
    let (_, at) = first
        .listen(SocketAddr::new(address, 0), 4)
        .expect("listens");
    let start = Instant::now();
    (Clock { network, start }, [first, second], at)
}

/// What one end has of a device. Dropped in this order.
pub(crate) struct Side {
    pub(crate) cq: Rc<dyn CompletionQueue>,
    pub(crate) pd: Rc<dyn ProtectionDomain>,
    pub(crate) region: Rc<dyn MemoryRegion>,
    pub(crate) pool: Pool,
    _device: Rc<dyn Device>,
}

impl Side {
    /// With memory of `pool_bytes` that may be accessed so, and room for so many completions.
    pub(crate) fn new(
        device: Rc<dyn Device>,
        access: Access,
        pool_bytes: usize,
        completions: u32,
    ) -> Self {
        let pool = Pool::new(pool_bytes, Pages::Ordinary).expect("memory");
        let pd = device.allocate_pd().expect("a domain");
        let len_bytes = pool.slab().len_bytes();
        Self {
            cq: device.create_cq(completions).expect("a completion queue"),
            region: pd
                .register(pool.slab(), 0, len_bytes, access)
                .expect("a region"),
            pd,
            pool,
            _device: device,
        }
    }

    pub(crate) fn config(&self, receives: ReceiveSource) -> QpConfig {
        QpConfig {
            send_cq: Rc::clone(&self.cq),
            recv_cq: Rc::clone(&self.cq),
            send_wr_max: SEND_WRS,
            receives,
            send_sge_max: 1,
            recv_sge_max: 2,
            inline_bytes: 0,
        }
    }

    pub(crate) fn sge(&self, buffer: &Buffer, offset_bytes: u32, len_bytes: u32) -> Sge {
        Sge {
            addr: buffer.addr() + u64::from(offset_bytes),
            len_bytes,
            lkey: self.region.lkey(),
        }
    }
}
