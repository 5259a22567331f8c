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

/// When to ask for CRC32c on every FPDU. Where nobody asks there is none; where the peer asks there is, whatever is chosen here
/// (RFC 5044 §7.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrcUse {
    /// Of every peer.
    Always,
    /// Of peers on other machines. What does not leave this one has no wire that could damage it.
    BetweenMachines,
    /// Of nobody.
    Never,
}

impl CrcUse {
    /// Whether to ask a peer that is on the `same_host` or not.
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
    /// Offer and take shared memory in place of the socket where both ends are on one machine and of
    /// this make. The question is a bit that RFC 5044 reserves.
    pub same_host: bool,
    /// Queue pairs at work from which on epoll keeps watching all of them and says which has received something: each would make
    /// a receive call that finds nothing for every one that finds something. They are no crowd any more below a third of it.
    pub crowd: u32,
    /// Wait of a listening side for the first byte of the peer's Request, from then for all of it,
    /// and for its first message where that was agreed, each in milliseconds. Bytes do not prolong
    /// it. One that is lost takes TCP a second.
    pub setup_timeout_ms: u64,
    /// Connections of all listeners that have not sent their Request yet, and at most an eighth of
    /// the descriptors that the process may have. For one more, the oldest of the source that has
    /// most is closed.
    pub half_open_max: usize,
    /// Of these, so many from one address, or network of 64 bits.
    pub half_open_per_source_max: usize,
    /// How long a Send may wait for a receive before the connection is terminated, in milliseconds
    /// (receiver not ready). The peer is held back by TCP meanwhile.
    pub receiver_not_ready_timeout_ms: u64,
    /// How long a closed connection's socket is kept so that the peer reads the last bytes, in
    /// milliseconds.
    pub linger_ms: u64,
    /// Sockets that are kept so, and at most an eighth of the descriptors that the process may
    /// have.
    pub lingering_max: usize,
    /// Idle time after which TCP asks whether the peer is still there, in seconds.
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
            crowd: 24,
            setup_timeout_ms: 3_000,
            half_open_max: 256,
            half_open_per_source_max: 128,
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
