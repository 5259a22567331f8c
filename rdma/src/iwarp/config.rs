//! What can be chosen for a provider.

use nix::sys::resource::{Resource, getrlimit};

/// How long the FPDUs are that this side sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FpduSize {
    /// As long as the length field allows when both sides said in the set-up that they take it;
    /// otherwise as `Segment`. The question is a bit that RFC 5044 reserves and tells peers to
    /// ignore.
    Negotiated,
    /// Never longer than the TCP segment (RFC 5044 §4.2), and with CRCs each FPDU in a segment of
    /// its own.
    Segment,
    /// As long as the length field allows, whatever the peer said.
    Large,
}

/// When to ask for CRC32c on every FPDU. It is used when either side asks, whatever is chosen here
/// (RFC 5044 §7.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrcUse {
    /// Ask every peer.
    Always,
    /// Ask peers on other machines. What does not leave this one crosses no wire that could damage
    /// it.
    BetweenMachines,
    /// Ask no peer.
    Never,
}

impl CrcUse {
    /// Whether to ask a peer, which is on the `same_host` or another.
    pub(super) fn asks(self, same_host: bool) -> bool {
        match self {
            Self::Always => true,
            Self::BetweenMachines => !same_host,
            Self::Never => false,
        }
    }
}

/// Configuration of a [`Provider`](super::Provider).
#[derive(Clone, Debug)]
pub struct Config {
    /// Use of CRC32c.
    pub crc: CrcUse,
    /// MPA revision a connect starts with: 2 (RFC 6581), or 1 for peers that know no other.
    pub mpa_revision: u8,
    /// Ask for peer-to-peer mode: the connecting side sends a first message by itself, so that
    /// either side may speak first. Needs revision 2.
    pub peer_to_peer: bool,
    /// Length of FPDUs.
    pub fpdu_size: FpduSize,
    /// Offer and accept shared memory in place of the socket where both ends run this provider on
    /// one machine. The question is a bit that RFC 5044 reserves.
    pub same_host: bool,
    /// Queue pairs at work from which on epoll watches all of them, edge-triggered, and says which
    /// has received something: with so many, nearly every receive call would find nothing. Below a
    /// third of this number they are polled again.
    pub edge_triggered_from: u32,
    /// Time that a listening side waits for the first byte of the peer's Request, from then for all
    /// of it, and for its first message where that was agreed; each in milliseconds. Further bytes
    /// do not prolong it. A segment that is lost takes TCP a second.
    pub setup_timeout_ms: u64,
    /// Most connections of all listeners that have not sent their Request yet; never more than an
    /// eighth of the descriptors that the process may have. For one more, the oldest of the address
    /// that has most is closed.
    pub half_open_max: usize,
    /// Of these, the most from one IPv4 address or 64-bit IPv6 network.
    pub half_open_per_source_max: usize,
    /// How long a Send may wait for a receive before the connection is terminated, in milliseconds
    /// (receiver not ready). The peer is held back by TCP meanwhile.
    pub receiver_not_ready_timeout_ms: u64,
    /// How long a closed connection's socket is kept so that the peer reads the last bytes, in
    /// milliseconds.
    pub linger_ms: u64,
    /// Most sockets that are kept so; never more than an eighth of the descriptors that the process
    /// may have.
    pub lingering_max: usize,
    /// Idle time after which TCP probes whether the peer is still there, in seconds.
    pub keepalive_idle_s: u32,
    /// Time without an answer after which the peer counts as dead, in milliseconds
    /// (`TCP_USER_TIMEOUT`). Longer than `receiver_not_ready_timeout_ms` of the peer: a peer that
    /// is not ready looks the same.
    pub dead_peer_timeout_ms: u32,
    /// RDMA Reads served at once per queue pair (IRD).
    pub responder_resources_max: u8,
    /// RDMA Reads started at once per queue pair (ORD).
    pub initiator_depth_max: u8,
}

impl Config {
    /// `wanted` descriptors, or an eighth of what the process may have when that is less.
    pub(super) fn descriptors(wanted: usize) -> usize {
        let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or((u64::MAX, 0));
        wanted.min(usize::try_from(soft / 8).unwrap_or(usize::MAX))
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            crc: CrcUse::BetweenMachines,
            mpa_revision: 2,
            peer_to_peer: true,
            fpdu_size: FpduSize::Negotiated,
            same_host: true,
            edge_triggered_from: 24,
            setup_timeout_ms: 3_000,
            // A busy machine lets a host wait for some milliseconds between its connection and its
            // Request, and one process opens 70 connections in each: 512 are 7 ms. Each is a socket
            // of which nothing was read, so 1,024 are 2 MiB or so in the kernel, and nothing here.
            half_open_max: 1_024,
            half_open_per_source_max: 512,
            receiver_not_ready_timeout_ms: 10_000,
            linger_ms: 1_000,
            lingering_max: 1_024,
            keepalive_idle_s: 10,
            dead_peer_timeout_ms: 20_000,
            responder_resources_max: 128,
            initiator_depth_max: 128,
        }
    }
}
