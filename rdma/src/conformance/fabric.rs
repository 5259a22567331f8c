//! What the suite needs to know of the provider under test.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use crate::contract::{ConnectionManager, WcStatus};

/// An end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Connects (an NVMe host).
    Active,
    /// Listens (an NVMe target).
    Passive,
}

impl Side {
    /// Both sides.
    pub const BOTH: [Self; 2] = [Self::Active, Self::Passive];

    /// The other one.
    #[must_use]
    pub fn peer(self) -> Self {
        match self {
            Self::Active => Self::Passive,
            Self::Passive => Self::Active,
        }
    }

    pub(crate) fn index(self) -> usize {
        match self {
            Self::Active => 0,
            Self::Passive => 1,
        }
    }
}

/// What happens to a Send that finds no receive posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiverNotReady {
    /// It is retried or held back until a receive is posted; when none ever is, the connection
    /// ends in bounded time (with `rnr_retry_count` below 7).
    Waits,
    /// The connection ends at once (RFC 5041, section 7.1: no buffer available).
    Ends,
}

/// Where transports differ and the contract allows it.
#[derive(Clone, Copy, Debug)]
pub struct Behaviour {
    /// Most private data of a connect request, in bytes.
    pub connect_private_data_bytes_max: usize,
    /// Most private data of an accept, in bytes.
    pub accept_private_data_bytes_max: usize,
    /// Most private data of a reject, in bytes.
    pub reject_private_data_bytes_max: usize,
    /// What happens to a Send that finds no receive.
    pub receiver_not_ready: ReceiverNotReady,
    /// A request the peer refuses completes with the status that names the reason
    /// (`RemoteAccessError`, …); otherwise any error will do.
    pub names_remote_errors: bool,
    /// Statuses that stand for the one that names what a request or receive broke on its own side
    /// (`LocalProtectionError`, …), where a device does not do as the InfiniBand specification says
    /// (volume 1, section 11.6.2, "Completion Return Status").
    pub local_error_stand_ins: &'static [WcStatus],
    /// The listening side may send before it has received anything (not on iWARP without
    /// peer-to-peer mode).
    pub passive_may_send_first: bool,
    /// By connecting each side learns how many RDMA READs the other serves and sends (not with MPA
    /// revision 1, RFC 5044).
    pub exchanges_read_depths: bool,
    /// The device raises how many RDMA READs the accepting side serves to what the other side asked
    /// for, where it can, as RFC 6581 (section 9) lets it: siw (`relaxed_ird_negotiation` in
    /// Linux).
    pub raises_read_depths: bool,
    /// What was posted behind an RDMA READ may reach the peer before the READ is served, and so
    /// also when the READ is then refused (RFC 5040, section 5.5).
    pub others_overtake_reads: bool,
    /// RDMA READs are served as the standards say. siw serves them without checking the region's
    /// right to be read, and answers an empty one that had to wait with other bytes.
    pub serves_reads_faithfully: bool,
    /// Queue depths are exactly what was asked; otherwise the device may round them up.
    pub exact_queue_depths: bool,
    /// The flush that follows the peer's disconnect begins when the connection manager is polled:
    /// on InfiniBand and RoCE the end is a message of the connection manager (DREQ), which leaves
    /// the queue pair as it is until the program acts on it (InfiniBand specification, volume 1,
    /// section 12.6.10; `cma_ib_handler` in Linux). Otherwise the device flushes on its own.
    pub flush_needs_cm_poll: bool,
    /// Longest wait for anything, in microseconds.
    pub patience_us: u64,
}

impl Behaviour {
    /// A provider that does all the contract describes, with private data up to the contract's
    /// bound.
    pub const FULL: Self = Self {
        connect_private_data_bytes_max: crate::contract::PRIVATE_DATA_MAX,
        accept_private_data_bytes_max: crate::contract::PRIVATE_DATA_MAX,
        reject_private_data_bytes_max: crate::contract::PRIVATE_DATA_MAX,
        receiver_not_ready: ReceiverNotReady::Waits,
        names_remote_errors: true,
        local_error_stand_ins: &[],
        passive_may_send_first: true,
        exchanges_read_depths: true,
        raises_read_depths: false,
        others_overtake_reads: false,
        serves_reads_faithfully: true,
        exact_queue_depths: true,
        flush_needs_cm_poll: false,
        patience_us: 10_000_000,
    };
}

/// The provider (or the two that must understand each other) under test.
///
/// The suite drives both sides from one thread by polling them in turn.
pub trait Fabric {
    /// A new connection manager for one side. The sides may be of different providers; managers of
    /// the same side are of one provider (requests migrate between them).
    ///
    /// # Errors
    /// Why there is none; the case fails with it.
    fn manager(&mut self, side: Side) -> Result<Box<dyn ConnectionManager>, String>;

    /// An address with port 0 at which a passive manager can listen and an active one reaches it.
    fn listen_address(&self) -> SocketAddr;

    /// The same over IPv6.
    ///
    /// # Errors
    /// Why there is none; the case is reported as not applicable.
    fn listen_address_v6(&self) -> Result<SocketAddr, String>;

    /// Where this transport differs from others.
    fn behaviour(&self) -> Behaviour;

    /// Monotonic microseconds.
    fn now_us(&mut self) -> u64;

    /// Nothing happened in a round of polling: lets time pass, but not beyond `until_us`. A virtual
    /// clock jumps to the next deadline, a real one sleeps for a moment.
    fn pause(&mut self, until_us: u64);
}

/// Clock of a [`Fabric`] that runs in real time.
#[derive(Debug)]
pub struct RealClock(Instant);

impl RealClock {
    /// A clock that starts now.
    #[must_use]
    pub fn new() -> Self {
        Self(Instant::now())
    }

    /// For [`Fabric::now_us`].
    #[must_use]
    pub fn now_us(&self) -> u64 {
        u64::try_from(self.0.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// For [`Fabric::pause`].
    pub fn pause(&self, until_us: u64) {
        let left = until_us.saturating_sub(self.now_us());
        thread::sleep(Duration::from_micros(left.min(50)));
    }
}
