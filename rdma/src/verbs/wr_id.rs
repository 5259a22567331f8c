//! The `wr_id` of a work request as this provider encodes it. The program's own is kept here.

/// Which request a completion is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WrId {
    /// Of a queue pair's send queue.
    Send {
        /// Of the queue pair, on its device.
        place: u32,
        /// In the send queue.
        position: u32,
    },
    /// Of a queue pair's own receive queue.
    Receive {
        /// Of the queue pair, on its device.
        place: u32,
        /// In the receive queue.
        position: u32,
    },
    /// Of a shared receive queue.
    Shared {
        /// Of the queue, on its device.
        place: u32,
        /// In the queue.
        slot: u32,
    },
}

/// Places have 30 bits: far more than a device has queue pairs (24 bits).
const PLACE_MASK: u32 = (1 << 30) - 1;

impl WrId {
    #[inline]
    pub(super) fn encode(self) -> u64 {
        let (kind, place, low) = match self {
            Self::Send { place, position } => (0, place, position),
            Self::Receive { place, position } => (1, place, position),
            Self::Shared { place, slot } => (2, place, slot),
        };
        (kind << 62) | (u64::from(place & PLACE_MASK) << 32) | u64::from(low)
    }

    #[inline]
    pub(super) fn decode(wr_id: u64) -> Self {
        let [.., d3, d2, d1, d0] = wr_id.to_be_bytes();
        let low = u32::from_be_bytes([d3, d2, d1, d0]);
        let [u0, u1, u2, u3, ..] = wr_id.to_be_bytes();
        let high = u32::from_be_bytes([u0, u1, u2, u3]);
        let place = high & PLACE_MASK;
        match high >> 30 {
            0 => Self::Send {
                place,
                position: low,
            },
            1 => Self::Receive {
                place,
                position: low,
            },
            _ => Self::Shared { place, slot: low },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{PLACE_MASK, WrId};

    #[test]
    fn round_trips_at_the_corners() {
        for place in [0, 1, PLACE_MASK] {
            for low in [0, 1, u32::MAX] {
                for id in [
                    WrId::Send {
                        place,
                        position: low,
                    },
                    WrId::Receive {
                        place,
                        position: low,
                    },
                    WrId::Shared { place, slot: low },
                ] {
                    assert_eq!(WrId::decode(id.encode()), id);
                }
            }
        }
    }
}
