//! What was posted and what has completed.

use std::collections::BTreeSet;
use std::ptr::NonNull;

use capstan_memory::RawBytes;

use super::scene::{READS, RECEIVE_BYTES, RECEIVES};
use crate::contract::{CompletionQueue, WcStatus, WorkCompletion};
use crate::direct::WC_ZERO_COPY;
use crate::iwarp::QpHandle;

/// Bytes of the heads of messages that take no receive.
pub(super) const HEAD_BYTES: u32 = 64;

/// Identifier of the first work request of the send queue, which is an RDMA Read.
pub(super) const FIRST_SEND: u64 = 100;

/// Identifier of work requests that complete only when the connection ends before they are looked
/// at.
pub(super) const UNSIGNALED: u64 = FIRST_SEND - 1;

/// Work requests that have not completed. Those that succeed do so in the order they were posted
/// in, and none does after one that failed.
pub(super) struct Ledger {
    receives: BTreeSet<u64>,
    sends: BTreeSet<u64>,
    next_send: u64,
    failed: bool,
    /// Data that was taken where it arrived: it may be read until a queue is polled again.
    taken: Vec<(NonNull<u8>, usize)>,
}

impl Ledger {
    /// What a scene has posted at its start.
    pub(super) fn new() -> Self {
        let next_send = FIRST_SEND + READS;
        Self {
            receives: (0..RECEIVES).collect(),
            sends: (FIRST_SEND..next_send).collect(),
            next_send,
            failed: false,
            taken: Vec::new(),
        }
    }

    /// The identifier for the next work request of the send queue.
    pub(super) fn next_send(&self) -> u64 {
        self.next_send
    }

    /// Records that the work request was posted.
    pub(super) fn posted(&mut self) {
        self.sends.insert(self.next_send);
        self.next_send += 1;
    }

    /// Takes completions; returns how many there were.
    pub(super) fn poll(&mut self, cq: &dyn CompletionQueue) -> usize {
        self.poll_with(cq, |_| ())
    }

    /// The same; takes lent messages where they arrived or, without `takes`, has them put into
    /// receives.
    pub(super) fn take_messages(
        &mut self,
        qp: &mut QpHandle,
        cq: &dyn CompletionQueue,
        takes: bool,
    ) -> usize {
        let mut taken = Vec::new();
        let mut landed = Vec::new();
        let count = self.poll_with(cq, |done| {
            let message = done.wr_id;
            assert!(done.byte_len <= RECEIVE_BYTES, "{done:?}");
            let data_bytes = (done.byte_len - HEAD_BYTES) as usize;
            assert!(qp.zero_copy_head(message).is_some(), "{done:?}");
            let took = data_bytes != 0
                && qp.take_zero_copy(message, &mut |bytes| {
                    assert_eq!(bytes.len(), data_bytes);
                    let mut copy = vec![0; data_bytes];
                    bytes.copy_to(&mut copy);
                    if takes {
                        taken.push((bytes.base(), bytes.len()));
                    }
                    takes
                });
            if data_bytes != 0 && !took {
                landed.extend(qp.copy_to_receive(message));
            }
            assert_eq!(qp.zero_copy_head(message), None, "lent twice");
            assert!(!qp.take_zero_copy(message, &mut |_| true), "lent twice");
            assert_eq!(qp.copy_to_receive(message), None, "lent twice");
        });
        for wr_id in landed {
            assert!(self.receives.remove(&wr_id), "landed in {wr_id}");
        }
        self.taken = taken;
        count
    }

    /// Reads what was taken once more, like a program that copies it later.
    #[expect(unsafe_code, reason = "reads data that is lent")]
    pub(super) fn read_taken(&mut self) {
        for (base, len) in self.taken.drain(..) {
            let mut copy = vec![0; len];
            // SAFETY: the contract, which this is a test of: nothing was polled since.
            unsafe { RawBytes::new(base, len) }.copy_to(&mut copy);
        }
    }

    /// Calls `each` with each message that was lent.
    fn poll_with(
        &mut self,
        cq: &dyn CompletionQueue,
        mut each: impl FnMut(&WorkCompletion),
    ) -> usize {
        self.read_taken();
        let mut out = [WorkCompletion::EMPTY; 16];
        let count = cq.poll(&mut out);
        for done in &out[..count] {
            if done.opcode == WC_ZERO_COPY {
                assert_eq!(done.status, WcStatus::Success, "{done:?}");
                assert!(!self.failed, "success after the end: {done:?}");
                each(done);
            } else {
                self.completed(done);
            }
        }
        count
    }

    fn completed(&mut self, done: &WorkCompletion) {
        let success = done.status == WcStatus::Success;
        if done.wr_id == UNSIGNALED {
            assert!(!success, "{done:?}");
            return;
        }
        let receive = done.wr_id < RECEIVES;
        let of = if receive {
            assert!(!success || done.byte_len <= RECEIVE_BYTES, "{done:?}");
            &mut self.receives
        } else {
            &mut self.sends
        };
        let oldest = of.first() == Some(&done.wr_id);
        assert!(of.remove(&done.wr_id), "a second completion: {done:?}");
        // Of the send queue, the cause of the end comes first.
        assert!(oldest || !(success || receive), "out of order: {done:?}");
        assert!(!self.failed || !success, "success after the end: {done:?}");
        self.failed |= !success;
    }

    /// The connection has ended: nothing is outstanding.
    pub(super) fn assert_all_flushed(&self) {
        let (receives, sends) = (&self.receives, &self.sends);
        assert!(
            receives.is_empty() && sends.is_empty(),
            "outstanding after the end: receives {receives:?}, sends {sends:?}"
        );
    }
}
