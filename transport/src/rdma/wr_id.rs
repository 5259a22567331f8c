//! The `wr_id` of a work request: which kind it is, and for which slot.

/// The decoded `wr_id`. The queue pair of the completion says which connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WrId {
    /// A receive, and its slot.
    Recv(u32),
    /// A receive of a discovery controller's queue, in the stranger's place that it has kept.
    RecvInPlace(u16),
    /// The RDMA READ (the last one of several) that pulls a command's data.
    Pull(u16),
    /// The RDMA WRITE (the last one of several) of a piece of what a command returns, while there
    /// is more.
    Push(u16),
    /// A command's response capsule, and with it the RDMA WRITEs before it.
    Respond(u16),
}

const KIND_SHIFT: u32 = 32;
const RECV: u64 = 1;
const PULL: u64 = 2;
const RESPOND: u64 = 3;
const PUSH: u64 = 4;
const RECV_IN_PLACE: u64 = 5;

impl WrId {
    #[inline]
    pub(super) fn encode(self) -> u64 {
        let (kind, slot) = match self {
            Self::Recv(slot) => (RECV, u64::from(slot)),
            Self::RecvInPlace(at) => (RECV_IN_PLACE, u64::from(at)),
            Self::Pull(slot) => (PULL, u64::from(slot)),
            Self::Push(slot) => (PUSH, u64::from(slot)),
            Self::Respond(slot) => (RESPOND, u64::from(slot)),
        };
        kind << KIND_SHIFT | slot
    }

    /// `None` for a value no work request of this program carries.
    #[inline]
    pub(super) fn decode(wr_id: u64) -> Option<Self> {
        let slot = u32::try_from(wr_id & u64::from(u32::MAX)).ok()?;
        match wr_id >> KIND_SHIFT {
            RECV => Some(Self::Recv(slot)),
            RECV_IN_PLACE => Some(Self::RecvInPlace(u16::try_from(slot).ok()?)),
            PULL => Some(Self::Pull(u16::try_from(slot).ok()?)),
            PUSH => Some(Self::Push(u16::try_from(slot).ok()?)),
            RESPOND => Some(Self::Respond(u16::try_from(slot).ok()?)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::WrId;

    #[test]
    fn round_trips_and_refuses_other_values() {
        for id in [
            WrId::Recv(u32::MAX),
            WrId::RecvInPlace(29),
            WrId::Pull(7),
            WrId::Push(0),
            WrId::Respond(u16::MAX),
        ] {
            assert_eq!(WrId::decode(id.encode()), Some(id));
        }
        assert_eq!(WrId::decode(0), None);
        assert_eq!(WrId::decode(3 << 32 | 1 << 20), None);
    }
}
