//! The RDMA half of one queue: its queue pair, its capsule and response rings, and the accounting
//! of work requests.
//!
//! A capsule stays in the device's hands until a signaled Send posted with or after it completes,
//! which may be after the response. So capsules live in a ring of their own, not in the command's
//! slot, and every [`SIGNAL_EVERY`]th work request is signaled to move the ring on.

use std::collections::VecDeque;

use capstan_memory::Buffer;
use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::sgl::Sgl;
use capstan_nvme_proto::sqe::Sqe;
use capstan_rdma::Pair;
use capstan_rdma::contract::{
    Access, CmId, LKey, MemoryWindow, PostError, QueuePair, RKey, SendOp, SendWr, Sge,
};
use zerocopy::IntoBytes;

use super::wr_id::{HostWrId, WorkKind};
use crate::host::{SendError, WindowsClosed};
use crate::limits::{CQE_BYTES, SQE_BYTES};

/// Work requests between two signaled ones.
const SIGNAL_EVERY: u32 = 16;
const _: () = assert!(Sqe::SIZE_BYTES == SQE_BYTES as usize);
const _: () = assert!(Cqe::SIZE_BYTES == CQE_BYTES as usize);

/// Sizes of one queue's rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RingSizes {
    /// Receives: one per entry of the submission queue, as many responses can be on their way.
    pub(super) responses: u16,
    /// Capsules: one per command, and those a signaled Send has not retired yet.
    pub(super) capsules: u32,
    /// Send work requests.
    pub(super) send_wr_max: u32,
}

impl RingSizes {
    /// For a submission queue of `entries`, on a device that takes `qp_wr_max` work requests.
    pub(super) fn new(entries: u16, qp_wr_max: u32) -> Self {
        // A command is a bind, a Send and an invalidate; the rest waits for a signaled completion.
        let wanted = 3 * u32::from(entries) + 4 * SIGNAL_EVERY;
        Self {
            responses: entries,
            capsules: u32::from(entries) + 2 * SIGNAL_EVERY,
            send_wr_max: wanted.min(qp_wr_max).max(4),
        }
    }

    /// Completion queue entries one queue can need.
    pub(super) fn cqes(self) -> u32 {
        self.send_wr_max + u32::from(self.responses)
    }

    /// Bytes of control memory: the capsule ring, then the response ring.
    pub(super) fn control_bytes(self) -> u32 {
        self.capsules * SQE_BYTES + u32::from(self.responses) * CQE_BYTES
    }
}

/// Keys of a registered region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RegionKeys {
    pub(super) lkey: LKey,
    pub(super) rkey: RKey,
}

/// Registered bytes of one command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Keyed {
    pub(super) addr: u64,
    pub(super) len_bytes: u32,
    pub(super) keys: RegionKeys,
}

/// What a command offers the controller, with the keys for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Offered {
    /// It has none.
    None,
    /// Behind the SQE in the capsule.
    InCapsule(Keyed),
    /// The controller reaches it by RDMA, with this access.
    Keyed(Keyed, Access),
}

/// What of a command can still reach or use its memory.
#[derive(Clone, Copy, Debug, Default)]
struct Use {
    /// The window that is open for it.
    window: Option<RKey>,
    /// It is not answered.
    unanswered: bool,
    /// The Send that carries its data has not completed.
    sending: bool,
    /// Its window is being closed by this side.
    closing: bool,
}

impl Use {
    fn is_over(self) -> bool {
        !(self.unanswered || self.sending || self.closing)
    }
}

/// Where the rings stand when a signaled work request completes.
#[derive(Clone, Copy, Debug)]
struct RingMark {
    wrs: u64,
    capsules: u64,
}

/// One connection of one queue.
pub(super) struct RdmaHostConnection {
    /// Dropped first: from then on nothing below is in a device's hands.
    qp: Pair,
    windows: Vec<Box<dyn MemoryWindow>>,
    /// By slot.
    uses: Box<[Use]>,
    ring: Buffer,
    pub(super) id: CmId,
    qid: u16,
    epoch: u16,
    sizes: RingSizes,
    control_lkey: LKey,
    /// Ask for SEND_WITH_INV.
    invalidate: bool,
    signal_every: u32,
    marks: VecDeque<RingMark>,
    /// Work requests posted, and known done, since the connection was made.
    posted: u64,
    retired: u64,
    /// Local invalidates that outstanding commands may still need.
    reserved: u64,
    since_signal: u32,
    capsules_posted: u64,
    capsules_retired: u64,
    /// Work requests posted since the doorbell rang.
    unrung: u32,
}

/// What a [`RdmaHostConnection`] is made from.
pub(super) struct ConnectionParts {
    pub(super) qp: Pair,
    /// One per slot, or none when the device has none.
    pub(super) windows: Vec<Box<dyn MemoryWindow>>,
    /// At least [`RingSizes::control_bytes`].
    pub(super) ring: Buffer,
    pub(super) control_lkey: LKey,
    pub(super) id: CmId,
    pub(super) qid: u16,
    pub(super) epoch: u16,
    pub(super) sizes: RingSizes,
    pub(super) send_with_invalidate: bool,
}

impl RdmaHostConnection {
    pub(super) fn shares_memory(&self) -> bool {
        self.qp.shares_memory()
    }

    pub(super) fn new(parts: ConnectionParts) -> Self {
        let signal_every = SIGNAL_EVERY.min(parts.sizes.send_wr_max / 4).max(1);
        Self {
            invalidate: parts.send_with_invalidate && !parts.windows.is_empty(),
            qp: parts.qp,
            windows: parts.windows,
            uses: (1..parts.sizes.responses).map(|_| Use::default()).collect(),
            ring: parts.ring,
            id: parts.id,
            qid: parts.qid,
            epoch: parts.epoch,
            sizes: parts.sizes,
            control_lkey: parts.control_lkey,
            signal_every,
            marks: VecDeque::with_capacity(parts.sizes.send_wr_max as usize),
            posted: 0,
            retired: 0,
            reserved: 0,
            since_signal: 0,
            capsules_posted: 0,
            capsules_retired: 0,
            unrung: 0,
        }
    }

    pub(super) fn epoch(&self) -> u16 {
        self.epoch
    }

    /// Posts every receive; before the connection is made, so that no response can find none.
    pub(super) fn post_receives(&mut self) -> Result<(), PostError> {
        (0..self.sizes.responses).try_for_each(|index| self.post_receive(index))
    }

    fn post_receive(&mut self, index: u16) -> Result<(), PostError> {
        let sge = Sge {
            addr: self.ring.addr() + self.response_offset(index) as u64,
            len_bytes: CQE_BYTES,
            lkey: self.control_lkey,
        };
        self.qp.post_recv(self.wr_id(WorkKind::Recv, index), &[sge])
    }

    /// Whether another command's work requests fit now.
    pub(super) fn has_room(&self) -> bool {
        let in_use = self.posted - self.retired + self.reserved;
        let capsules = self.capsules_posted - self.capsules_retired;
        in_use + 3 <= u64::from(self.sizes.send_wr_max) && capsules < u64::from(self.sizes.capsules)
    }

    /// Posts one command; [`RdmaHostConnection::has_room`] was true. `sqe` comes complete but for
    /// its data pointer.
    pub(super) fn issue(
        &mut self,
        slot: u16,
        sqe: &mut Sqe,
        offered: Offered,
    ) -> Result<(), SendError> {
        let entry = self.uses.get_mut(usize::from(slot));
        let entry = entry.ok_or(SendError::NotConnected)?;
        *entry = Use {
            unanswered: true,
            ..Use::default()
        };
        let mut data_sge = None;
        sqe.dptr = match offered {
            Offered::None => Sgl::EMPTY,
            Offered::InCapsule(data) => {
                entry.sending = true;
                data_sge = Some(Sge {
                    addr: data.addr,
                    len_bytes: data.len_bytes,
                    lkey: data.keys.lkey,
                });
                Sgl::InCapsule {
                    offset_bytes: 0,
                    length_bytes: data.len_bytes,
                }
            }
            Offered::Keyed(data, access) => {
                let window = self.open_window(slot, data, access)?;
                Sgl::Keyed {
                    address: data.addr,
                    length_bytes: data.len_bytes,
                    rkey: window.unwrap_or(data.keys.rkey).0,
                    invalidate: self.invalidate,
                }
            }
        }
        .encode();
        Ok(self.send_capsule(slot, sqe, data_sge)?)
    }

    /// Binds the slot's window to `data`; `None` on a device without windows.
    fn open_window(
        &mut self,
        slot: u16,
        data: Keyed,
        access: Access,
    ) -> Result<Option<RKey>, PostError> {
        let Some(window) = self.windows.get_mut(usize::from(slot)) else {
            return Ok(None);
        };
        let rkey = window.next_rkey();
        let op = SendOp::BindWindow {
            rkey,
            lkey: data.keys.lkey,
            addr: data.addr,
            len_bytes: u64::from(data.len_bytes),
            access,
        };
        self.post(WorkKind::Send, slot, op, &[], false)?;
        self.reserved += 1;
        if let Some(entry) = self.uses.get_mut(usize::from(slot)) {
            entry.window = Some(rkey);
        }
        Ok(Some(rkey))
    }

    fn send_capsule(&mut self, slot: u16, sqe: &Sqe, data: Option<Sge>) -> Result<(), PostError> {
        let entry = self.capsules_posted % u64::from(self.sizes.capsules);
        let at = entry * u64::from(SQE_BYTES);
        self.ring
            .copy_from(usize::try_from(at).unwrap_or(0), sqe.as_bytes());
        let capsule = Sge {
            addr: self.ring.addr() + at,
            len_bytes: SQE_BYTES,
            lkey: self.control_lkey,
        };
        self.capsules_posted += 1;
        let op = SendOp::Send {
            invalidate: None,
            solicited: false,
        };
        match data {
            None => self.post(WorkKind::Send, slot, op, &[capsule], false),
            Some(data) => self.post(WorkKind::SendData, slot, op, &[capsule, data], true),
        }
    }

    /// The command of `slot` is answered: its window closes now, unless the controller has
    /// `invalidated` it. Whether its memory is back; otherwise [`RdmaHostConnection::not_sending`]
    /// or [`RdmaHostConnection::closed`] says so later.
    #[inline]
    pub(super) fn answered(
        &mut self,
        slot: u16,
        invalidated: Option<RKey>,
        windows: &mut WindowsClosed,
    ) -> Result<bool, PostError> {
        let Some(entry) = self.uses.get_mut(usize::from(slot)) else {
            return Ok(true);
        };
        entry.unanswered = false;
        let Some(window) = entry.window.take() else {
            return Ok(entry.is_over());
        };
        self.reserved = self.reserved.saturating_sub(1);
        if invalidated == Some(window) {
            windows.by_controller += 1;
            return Ok(entry.is_over());
        }
        windows.by_host += 1;
        entry.closing = true;
        let op = SendOp::LocalInvalidate(window);
        self.post(WorkKind::Invalidate, slot, op, &[], true)?;
        Ok(false)
    }

    /// The Send with the data of the command of `slot` has completed. Whether its memory is back.
    pub(super) fn not_sending(&mut self, slot: u16) -> bool {
        self.no_longer(slot, |entry| entry.sending = false)
    }

    /// This side has closed the window of the command of `slot`. Whether its memory is back.
    pub(super) fn closed(&mut self, slot: u16) -> bool {
        self.no_longer(slot, |entry| entry.closing = false)
    }

    fn no_longer(&mut self, slot: u16, note: impl FnOnce(&mut Use)) -> bool {
        let Some(entry) = self.uses.get_mut(usize::from(slot)) else {
            return false;
        };
        note(entry);
        entry.is_over()
    }

    fn post(
        &mut self,
        kind: WorkKind,
        slot: u16,
        op: SendOp,
        sges: &[Sge],
        signaled: bool,
    ) -> Result<(), PostError> {
        self.since_signal += 1;
        let signaled = signaled
            || (self.since_signal >= self.signal_every && matches!(op, SendOp::Send { .. }));
        self.qp.post_send(&SendWr {
            wr_id: self.wr_id(kind, slot),
            op,
            sges,
            signaled,
            fence: false,
        })?;
        self.unrung += 1;
        self.posted += 1;
        if signaled {
            self.since_signal = 0;
            self.marks.push_back(RingMark {
                wrs: self.posted,
                capsules: self.capsules_posted,
            });
        }
        if self.unrung >= self.qp.doorbell_batch_max() {
            self.ring_doorbell();
        }
        Ok(())
    }

    /// A signaled work request completed: it and everything posted before it is done.
    pub(super) fn retire(&mut self) {
        if let Some(mark) = self.marks.pop_front() {
            self.retired = mark.wrs;
            self.capsules_retired = mark.capsules;
        }
    }

    /// Copies the response in receive `index` out and posts the receive again.
    pub(super) fn take_response(&mut self, index: u16) -> Result<Cqe, PostError> {
        let mut bytes = [0; CQE_BYTES as usize];
        if index < self.sizes.responses {
            self.ring.copy_to(self.response_offset(index), &mut bytes);
        }
        self.post_receive(index)?;
        Ok(zerocopy::transmute!(bytes))
    }

    /// Rings the doorbell if anything was posted.
    #[inline]
    pub(super) fn ring_doorbell(&mut self) {
        if self.unrung > 0 {
            self.unrung = 0;
            self.qp.ring_doorbell();
        }
    }

    fn response_offset(&self, index: u16) -> usize {
        (self.sizes.capsules * SQE_BYTES + u32::from(index) * CQE_BYTES) as usize
    }

    fn wr_id(&self, kind: WorkKind, value: u16) -> u64 {
        HostWrId {
            kind,
            qid: self.qid,
            epoch: self.epoch,
            value,
        }
        .pack()
    }
}
