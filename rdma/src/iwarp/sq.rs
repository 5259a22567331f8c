//! The send queue: work requests in order until they complete.

use super::completions::CompletionRing;
use crate::contract::{
    LKey, PostError, QpNum, SendOp, SendWr, Sge, WcOpcode, WcStatus, WorkCompletion,
};

/// The state of a work request.
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

const PLAIN_SEND: SendOp = SendOp::Send {
    invalidate: None,
    solicited: false,
};

const NO_WQE: Wqe = Wqe {
    wr_id: 0,
    op: PLAIN_SEND,
    sges: 0,
    len_bytes: 0,
    signaled: false,
    fence: false,
    progress: Progress::Open,
};

const NO_SGE: Sge = Sge {
    addr: 0,
    len_bytes: 0,
    lkey: LKey(0),
};

/// Most work requests of one send queue.
pub(super) const SENDS_MAX: u32 = 1 << 16;

/// A ring of work requests. Positions count up from the last time it was empty; `position & mask`
/// is the index.
pub(super) struct SendQueue {
    /// As many entries as were ever in use at once.
    wqes: Vec<Wqe>,
    sges: Vec<Sge>,
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
        Self {
            wqes: Vec::new(),
            sges: Vec::new(),
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
        if self.head == self.tail {
            // The first entries are in the caches; the others may not be.
            (self.head, self.next, self.rung, self.tail) = (0, 0, 0, 0);
        }
        let place = self.place(self.tail);
        let first = place * self.sge_max;
        if place == self.wqes.len() {
            self.wqes.push(NO_WQE);
            self.sges.resize(first + self.sge_max, NO_SGE);
        }
        // Stored field by field: a struct that is assembled first and then moved with wide loads
        // stalls on store forwarding until every earlier store has ended, and those of a page on
        // its way to memory may be among them.
        let wqe = &mut self.wqes[place];
        wqe.wr_id = wr.wr_id;
        match wr.op {
            // A plain Send, which most are, has nothing more to load.
            SendOp::Send {
                invalidate: None,
                solicited: false,
            } => wqe.op = PLAIN_SEND,
            op => wqe.op = op,
        }
        wqe.sges = wr.sges.len();
        wqe.len_bytes = len_bytes;
        wqe.signaled = wr.signaled;
        wqe.fence = wr.fence;
        wqe.progress = Progress::Open;
        for (to, from) in self.sges[first..].iter_mut().zip(wr.sges) {
            to.addr = from.addr;
            to.len_bytes = from.len_bytes;
            to.lkey = from.lkey;
        }
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

    /// Goes past the work request that [`SendQueue::next`] returns.
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
    pub(super) fn complete(&mut self, sent: u64, qp: QpNum, cq: &CompletionRing) {
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
    pub(super) fn flush(
        &mut self,
        culprit: Option<(u32, WcStatus)>,
        qp: QpNum,
        cq: &CompletionRing,
    ) {
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Progress, SendQueue};
    use crate::contract::{LKey, QpNum, SendOp, SendWr, Sge, WorkCompletion};
    use crate::iwarp::completions::CompletionRing;

    const DEPTH: u32 = 6;

    fn sges_of(wr_id: u64) -> usize {
        usize::try_from(wr_id % 3).unwrap()
    }

    fn push(queue: &mut SendQueue, wr_id: u64) {
        let len_bytes = u32::try_from(wr_id).unwrap();
        let sge = Sge {
            addr: wr_id,
            len_bytes,
            lkey: LKey(7),
        };
        let op = SendOp::Send {
            invalidate: None,
            solicited: false,
        };
        let wr = SendWr {
            wr_id,
            op,
            sges: &[sge, sge][..sges_of(wr_id)],
            signaled: true,
            fence: false,
        };
        queue.push(&wr, len_bytes);
        queue.ring();
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// What is posted completes in order and as it was posted, and entries are made for as many
        /// as are outstanding at once.
        #[test]
        fn places_are_as_many_as_were_in_use(rounds in prop::collection::vec((1..=DEPTH, 1..=DEPTH), 1..60)) {
            let cq = CompletionRing::new(64).unwrap();
            let mut queue = SendQueue::new(DEPTH, 2);
            let (mut posted, mut done, mut most) = (0, 0, 0);
            for (post, complete) in rounds {
                for _ in 0..post.min(DEPTH - (posted - done)) {
                    queue.check_room().unwrap();
                    push(&mut queue, u64::from(posted));
                    posted += 1;
                }
                most = most.max(posted - done);
                prop_assert_eq!(queue.check_room().is_err(), posted - done == DEPTH);
                while let Some((position, wqe)) = queue.next() {
                    prop_assert_eq!(queue.sges(position).len(), sges_of(wqe.wr_id));
                    prop_assert!(queue.sges(position).iter().all(|sge| sge.addr == wqe.wr_id));
                    queue.set_progress(position, Progress::BuiltUpTo(wqe.wr_id));
                    queue.advance();
                }
                let end = (done + complete).min(posted);
                // Up to the end of a stream position, as with TCP.
                queue.complete(u64::from(end).saturating_sub(1), QpNum(1), &cq);
                let mut out = [WorkCompletion::EMPTY; 64];
                let count = cq.take(&mut out);
                for completion in &out[..count] {
                    prop_assert_eq!(completion.wr_id, u64::from(done));
                    done += 1;
                }
                prop_assert_eq!(done, end);
                let places = u32::try_from(queue.wqes.len()).unwrap();
                prop_assert!((most..=DEPTH.next_power_of_two()).contains(&places));
                prop_assert_eq!(queue.sges.len(), 2 * queue.wqes.len());
            }
        }
    }

    #[test]
    fn an_empty_queue_starts_with_its_first_place_again() {
        let cq = CompletionRing::new(64).unwrap();
        let mut queue = SendQueue::new(64, 1);
        for round in 0..100 {
            for wr_id in [3 * round, 3 * round] {
                push(&mut queue, wr_id);
            }
            while let Some((position, _)) = queue.next() {
                queue.set_progress(position, Progress::Done);
                queue.advance();
            }
            queue.complete(0, QpNum(1), &cq);
        }
        assert_eq!((queue.wqes.len(), queue.sges.len()), (2, 2));
        let mut out = [WorkCompletion::EMPTY; 256];
        assert_eq!(cq.take(&mut out), 200);
    }
}
