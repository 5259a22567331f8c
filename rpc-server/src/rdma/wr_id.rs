//! The `wr_id` of a work request: what it is, and of which slot.

/// The decoded `wr_id`. The queue pair of the completion says which connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WrId {
    /// A receive.
    Receive(u16),
    /// An RDMA READ of a call.
    Pull(u16),
    /// The Send of the reply to a call, and with it the RDMA WRITEs before it.
    Reply(u16),
    /// An RDMA WRITE, which has a completion only when it fails.
    Push,
}

const KIND_SHIFT: u32 = 16;
const RECEIVE: u64 = 1;
const PULL: u64 = 2;
const REPLY: u64 = 3;
const PUSH: u64 = 4;

impl WrId {
    pub(super) fn encode(self) -> u64 {
        let (kind, slot) = match self {
            Self::Receive(slot) => (RECEIVE, slot),
            Self::Pull(slot) => (PULL, slot),
            Self::Reply(slot) => (REPLY, slot),
            Self::Push => (PUSH, 0),
        };
        kind << KIND_SHIFT | u64::from(slot)
    }

    /// `None` for a value that no work request has.
    pub(super) fn decode(wr_id: u64) -> Option<Self> {
        let slot = u16::try_from(wr_id & u64::from(u16::MAX)).ok()?;
        match wr_id >> KIND_SHIFT {
            RECEIVE => Some(Self::Receive(slot)),
            PULL => Some(Self::Pull(slot)),
            REPLY => Some(Self::Reply(slot)),
            PUSH => Some(Self::Push),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded() {
        for id in [
            WrId::Receive(0),
            WrId::Pull(u16::MAX),
            WrId::Reply(7),
            WrId::Push,
        ] {
            assert_eq!(WrId::decode(id.encode()), Some(id));
        }
        assert_eq!(WrId::decode(0), None);
        assert_eq!(WrId::decode(u64::MAX), None);
    }
}
