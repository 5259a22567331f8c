//! The send queue: work requests in order until they complete.

use super::cq::Completions;
use crate::contract::{PostError, QpNum, SendOp, SendWr, Sge, WcOpcode, WcStatus, WorkCompletion};

/// How far a work request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Not finished: posted, or a Read that is outstanding.
    Open,
    /// Built into FPDUs that end at this position of the byte stream.
    BuiltUpTo(u64),
    /// Finished.
    Done,
}

/// A posted work request.
#[derive(Clone, Copy)]
pub(super) struct Wqe {
    pub wr_id: u64,
    pub op: SendOp,
    pub sges: usize,
    pub len_bytes: u32,
    pub signaled: bool,
    pub fence: bool,
    pub progress: Progress,
}

/// A ring of work requests. Positions count up for ever; `position & mask` is the place.
pub(super) struct SendQueue {
    wqes: Box<[Wqe]>,
    sges: Box<[Sge]>,
    sge_max: usize,
    depth: u32,
    mask: u32,
    /// Oldest that has not completed.
    head: u32,
    /// Next to be built.
    next: u32,
    /// One after the newest that a doorbell covers.
    rung: u32,
    /// One after the newest.
    tail: u32,
}

impl SendQueue {
    pub(super) fn new(depth: u32, sge_max: u32) -> Self {
        let places = depth.max(1).next_power_of_two();
        let sge_max = sge_max.max(1) as usize;
        let empty = Wqe {
            wr_id: 0,
            op: SendOp::LocalInvalidate(crate::contract::RKey(0)),
            sges: 0,
            len_bytes: 0,
            signaled: false,
            fence: false,
            progress: Progress::Done,
        };
        let nothing = Sge {
            addr: 0,
            len_bytes: 0,
            lkey: crate::contract::LKey(0),
        };
        Self {
            wqes: vec![empty; places as usize].into(),
            sges: vec![nothing; places as usize * sge_max].into(),
            sge_max,
            depth,
            mask: places - 1,
            head: 0,
            next: 0,
            rung: 0,
            tail: 0,
        }
    }

    pub(super) fn sge_max(&self) -> usize {
        self.sge_max
    }

    #[inline]
    fn place(&self, position: u32) -> usize {
        (position & self.mask) as usize
    }

    /// Whether another work request fits.
    #[inline]
    pub(super) fn check_room(&self) -> Result<(), PostError> {
        let used = self.tail.wrapping_sub(self.head);
        if used >= self.depth {
            return Err(PostError::QueueFull(used));
        }
        Ok(())
    }

    /// Adds a work request of `len_bytes`; [`SendQueue::check_room`] has been asked.
    #[inline]
    pub(super) fn push(&mut self, wr: &SendWr<'_>, len_bytes: u32) {
        let place = self.place(self.tail);
        self.wqes[place] = Wqe {
            wr_id: wr.wr_id,
            op: wr.op,
            sges: wr.sges.len(),
            len_bytes,
            signaled: wr.signaled,
            fence: wr.fence,
            progress: Progress::Open,
        };
        let first = place * self.sge_max;
        self.sges[first..first + wr.sges.len()].copy_from_slice(wr.sges);
        self.tail = self.tail.wrapping_add(1);
    }

    /// Hands over everything posted so far.
    #[inline]
    pub(super) fn ring(&mut self) {
        self.rung = self.tail;
    }

    /// The next work request to build and its position.
    #[inline]
    pub(super) fn next(&self) -> Option<(u32, &Wqe)> {
        (self.next != self.rung).then(|| (self.next, &self.wqes[self.place(self.next)]))
    }

    /// Goes past the work request [`SendQueue::next`] tells.
    #[inline]
    pub(super) fn advance(&mut self) {
        self.next = self.next.wrapping_add(1);
    }

    #[inline]
    pub(super) fn wqe(&self, position: u32) -> &Wqe {
        &self.wqes[self.place(position)]
    }

    #[inline]
    pub(super) fn sges(&self, position: u32) -> &[Sge] {
        let place = self.place(position);
        let first = place * self.sge_max;
        &self.sges[first..first + self.wqes[place].sges]
    }

    #[inline]
    pub(super) fn set_progress(&mut self, position: u32, progress: Progress) {
        let place = self.place(position);
        self.wqes[place].progress = progress;
    }

    /// Completes, in order, what is finished now that `sent` bytes of the stream are with TCP.
    #[inline]
    pub(super) fn complete(&mut self, sent: u64, qp: QpNum, cq: &Completions) {
        while self.head != self.next {
            let wqe = &self.wqes[self.place(self.head)];
            let done = match wqe.progress {
                Progress::Open => false,
                Progress::BuiltUpTo(end) => end <= sent,
                Progress::Done => true,
            };
            if !done {
                return;
            }
            if wqe.signaled {
                cq.push(completion(wqe, qp, WcStatus::Success));
            }
            self.head = self.head.wrapping_add(1);
        }
    }

    /// Completes everything with an error: first the one at `culprit` with its status, then the
    /// rest in order as flushed.
    pub(super) fn flush(&mut self, culprit: Option<(u32, WcStatus)>, qp: QpNum, cq: &Completions) {
        if let Some((position, status)) = culprit {
            cq.push(completion(self.wqe(position), qp, status));
        }
        while self.head != self.tail {
            if culprit.is_none_or(|(position, _)| position != self.head) {
                cq.push(completion(
                    &self.wqes[self.place(self.head)],
                    qp,
                    WcStatus::WrFlushError,
                ));
            }
            self.head = self.head.wrapping_add(1);
        }
        self.next = self.tail;
        self.rung = self.tail;
    }
}

fn completion(wqe: &Wqe, qp: QpNum, status: WcStatus) -> WorkCompletion {
    WorkCompletion {
        wr_id: wqe.wr_id,
        qp,
        status,
        opcode: match wqe.op {
            SendOp::Send { .. } => WcOpcode::Send,
            SendOp::Write(_) => WcOpcode::RdmaWrite,
            SendOp::Read(_) => WcOpcode::RdmaRead,
            SendOp::BindWindow { .. } => WcOpcode::BindMw,
            SendOp::LocalInvalidate(_) => WcOpcode::LocalInvalidate,
        },
        byte_len: 0,
        invalidated: None,
    }
}
