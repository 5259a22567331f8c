//! What a `wr_id` says: one function packs it, one unpacks it.

/// The kind of work request a completion is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WorkKind {
    /// A receive; the value is its place in the response ring.
    Recv,
    /// A command capsule, or the bind before it.
    Send,
    /// A command capsule with in-capsule data; the value is its slot, whose data it frees.
    SendData,
    /// A local invalidate; the value is the slot whose window it closes.
    Invalidate,
}

/// A work request's name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct HostWrId {
    pub(super) kind: WorkKind,
    /// QID of the queue.
    pub(super) qid: u16,
    /// Which connection of that queue: it tells completions of an older one apart.
    pub(super) epoch: u16,
    pub(super) value: u16,
}

impl HostWrId {
    pub(super) fn pack(self) -> u64 {
        let kind: u64 = match self.kind {
            WorkKind::Recv => 0,
            WorkKind::Send => 1,
            WorkKind::SendData => 2,
            WorkKind::Invalidate => 3,
        };
        kind << 48 | u64::from(self.qid) << 32 | u64::from(self.epoch) << 16 | u64::from(self.value)
    }

    /// `None` for a value [`HostWrId::pack`] did not make.
    pub(super) fn unpack(wr_id: u64) -> Option<Self> {
        let [v0, v1, e0, e1, q0, q1, kind, 0] = wr_id.to_le_bytes() else {
            return None;
        };
        let kind = match kind {
            0 => WorkKind::Recv,
            1 => WorkKind::Send,
            2 => WorkKind::SendData,
            3 => WorkKind::Invalidate,
            _ => return None,
        };
        Some(Self {
            kind,
            qid: u16::from_le_bytes([q0, q1]),
            epoch: u16::from_le_bytes([e0, e1]),
            value: u16::from_le_bytes([v0, v1]),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{HostWrId, WorkKind};

    proptest! {
        #[test]
        fn unpack_undoes_pack(kind in 0..4_usize, qid: u16, epoch: u16, value: u16) {
            use WorkKind::{Invalidate, Recv, Send, SendData};
            let kind = [Recv, Send, SendData, Invalidate][kind];
            let id = HostWrId { kind, qid, epoch, value };
            prop_assert_eq!(HostWrId::unpack(id.pack()), Some(id));
        }

        #[test]
        fn anything_else_is_none_or_packs_to_itself(wr_id: u64) {
            if let Some(id) = HostWrId::unpack(wr_id) {
                prop_assert_eq!(id.pack(), wr_id);
            }
        }
    }
}
