//! What goes wrong in a network, as values.

use crate::contract::WcStatus;
use crate::splitmix::SplitMix;

/// How long a message takes. Drawn for each message; messages of one queue pair never overtake each
/// other, those of different queue pairs do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delay {
    /// It arrives at the next poll.
    None,
    /// Always the same.
    Fixed {
        /// Microseconds.
        us: u64,
    },
    /// Evenly between two bounds.
    Uniform {
        /// Least, in microseconds.
        min_us: u64,
        /// Most, in microseconds.
        max_us: u64,
    },
    /// Mostly short, now and then long.
    LongTail {
        /// The usual delay in microseconds.
        usual_us: u64,
        /// The long one, in microseconds.
        tail_us: u64,
        /// How many of a million messages take the long one.
        tail_per_million: u32,
    },
}

impl Delay {
    pub(super) fn draw_us(self, rng: &mut SplitMix) -> u64 {
        match self {
            Self::None => 0,
            Self::Fixed { us } => us,
            Self::Uniform { min_us, max_us } => {
                let width = max_us.saturating_sub(min_us).saturating_add(1);
                min_us.saturating_add(rng.below(width))
            }
            Self::LongTail {
                usual_us,
                tail_us,
                tail_per_million,
            } => {
                if hits(rng, tail_per_million) {
                    tail_us
                } else {
                    usual_us
                }
            }
        }
    }
}

/// Whether something that happens `per_million` times of a million happens now.
pub(super) fn hits(rng: &mut SplitMix, per_million: u32) -> bool {
    per_million > 0 && rng.below(1_000_000) < u64::from(per_million)
}

/// Which side notices that a connection was lost. A side that is not notified finds out when a
/// request of its own goes unanswered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notified {
    /// Both sides.
    Both,
    /// The side that connected.
    Active,
    /// The side that listened.
    Passive,
    /// Neither side.
    Neither,
}

/// One thing that goes wrong once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A send work request fails on its own side and breaks its queue pair.
    QpError {
        /// Which, counted from 0 over all queue pairs of the network in the order of starting.
        operation: u64,
        /// Its completion status.
        status: WcStatus,
    },
    /// A connection carries nothing any more.
    LoseConnection {
        /// Which, counted from 0 in the order of accepting; all that are established when `None`.
        connection: Option<u64>,
        /// When.
        at_us: u64,
        /// Which side notices.
        notified: Notified,
    },
    /// A connection request never arrives.
    DropConnect {
        /// Which, counted from 0 over the network.
        nth: u64,
    },
    /// The device of a provider goes away.
    RemoveDevice {
        /// [`Provider::index`](super::Provider::index).
        provider: u32,
        /// When.
        at_us: u64,
    },
    /// The device of a provider comes back. Queue pairs, regions and windows made before stay dead;
    /// listeners work again.
    RestoreDevice {
        /// [`Provider::index`](super::Provider::index).
        provider: u32,
        /// When.
        at_us: u64,
    },
}

impl Fault {
    /// When it strikes, if that is a matter of time.
    pub(super) fn at_us(self) -> Option<u64> {
        match self {
            Self::LoseConnection { at_us, .. }
            | Self::RemoveDevice { at_us, .. }
            | Self::RestoreDevice { at_us, .. } => Some(at_us),
            Self::QpError { .. } | Self::DropConnect { .. } => None,
        }
    }
}

/// What goes wrong in a network, and how often.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults {
    /// How long messages take.
    pub delay: Delay,
    /// Longer messages travel in pieces of this many bytes, each with a delay of its own.
    pub segment_bytes: u32,
    /// How many of a million connection requests never arrive.
    pub dropped_connects_per_million: u32,
    /// How many of a million send work requests break their queue pair.
    pub qp_errors_per_million: u32,
    /// How many of a million send work requests lose their connection, without either side being
    /// notified.
    pub lost_connections_per_million: u32,
    /// What happens at given moments.
    pub plan: Vec<Fault>,
}

impl Faults {
    /// Nothing goes wrong and nothing takes time.
    pub const NONE: Self = Self {
        delay: Delay::None,
        segment_bytes: 64 * 1024,
        dropped_connects_per_million: 0,
        qp_errors_per_million: 0,
        lost_connections_per_million: 0,
        plan: Vec::new(),
    };
}
