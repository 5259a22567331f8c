//! The sending side of a queue pair: requests are gathered, and given to the device when the
//! doorbell rings.

use super::super::outstanding::{Outcome, Request};
use super::super::raw::send::Chain;
use super::super::wr_id::WrId;
use super::Core;
use crate::contract::{PostError, QpState, RKey, Remote, SendOp, SendWr, Sge, WcOpcode, WcStatus};

impl Core {
    /// Takes a request; a `silent` one has no completion for the program.
    pub(super) fn post(&self, wr: &SendWr<'_>, silent: bool) -> Result<(), PostError> {
        if self.state.get() == QpState::Init {
            return Err(PostError::NotConnected);
        }
        let mut sends = self.sends.borrow_mut();
        if sends.is_full() {
            return Err(PostError::QueueFull(sends.depth()));
        }
        let (opcode, sge_max, may_be_inline) = match wr.op {
            // siw does not take inline data with an invalidation.
            SendOp::Send { invalidate, .. } => (
                WcOpcode::Send,
                self.limits.send_sge_max,
                invalidate.is_none() || !self.limits.counts_reads,
            ),
            SendOp::Write(_) => (WcOpcode::RdmaWrite, self.limits.send_sge_max, true),
            SendOp::Read(_) => (WcOpcode::RdmaRead, self.limits.read_sge_max, false),
            SendOp::BindWindow { .. } => (WcOpcode::BindMw, 0, false),
            SendOp::LocalInvalidate(_) => (WcOpcode::LocalInvalidate, 0, false),
        };
        if wr.sges.len() > sge_max as usize {
            return Err(PostError::TooManySges(wr.sges.len(), sge_max));
        }
        let alive = self.state.get() == QpState::ReadyToSend;
        if alive && opcode == WcOpcode::RdmaRead && self.initiator_depth.get() == 0 {
            return Err(PostError::NotSupported(
                "RDMA READ on a connection with initiator depth 0",
            ));
        }
        let late = self.limits.counts_reads && opcode == WcOpcode::RdmaRead;
        let position = sends.next_position();
        sends.push(Request {
            wr_id: wr.wr_id,
            opcode,
            signaled: wr.signaled,
            reported: wr.signaled || late,
            silent,
        });
        if !alive {
            sends.flush_ours(|request, outcome| {
                self.send_cq.push(self.num, request, outcome);
            });
            return Ok(());
        }
        let mut chain = self.chain.borrow_mut();
        // Behind a fence the bytes may not be there yet.
        let inline_bytes = (may_be_inline && !wr.fence)
            .then(|| self.inline(wr.sges, &mut chain))
            .flatten();
        let id = WrId::Send {
            place: self.place,
            position,
        };
        chain.push(id.encode(), wr, wr.signaled || late, inline_bytes);
        Ok(())
    }

    /// As [`Pair::send_inline`](crate::Pair::send_inline): for what fits into a work request of the
    /// device. Some are signaled, so that the queue empties. Half of the queue stays free for what
    /// is posted.
    pub(super) fn send_inline(&self, bytes: &[u8], invalidate: Option<RKey>) -> bool {
        // siw does not take inline data with an invalidation.
        let fits = bytes.len() <= self.limits.inline_bytes_max
            && (invalidate.is_none() || !self.limits.counts_reads);
        let mut sends = self.sends.borrow_mut();
        if !fits || self.state.get() != QpState::ReadyToSend || sends.len() >= sends.depth() / 2 {
            return false;
        }
        let reported = sends.unvouched() >= self.limits.unvouched_max;
        let id = WrId::Send {
            place: self.place,
            position: sends.next_position(),
        };
        sends.push(Request {
            wr_id: 0,
            opcode: WcOpcode::Send,
            signaled: false,
            reported,
            silent: true,
        });
        let mut chain = self.chain.borrow_mut();
        chain.push_message(id.encode(), bytes, invalidate, reported);
        true
    }

    /// As [`Pair::needs_drain`](crate::Pair::needs_drain). Where no completion would show when they
    /// have left, one is requested.
    pub(super) fn needs_drain(&self) -> bool {
        let has_silent = self.sends.borrow().has_silent();
        if !has_silent || self.state.get() != QpState::ReadyToSend {
            return false;
        }
        if self.sends.borrow().unvouched() > 0 {
            self.ask();
        }
        true
    }

    /// Posts an RDMA WRITE of no bytes, which is signaled and needs no key (InfiniBand Architecture
    /// 1.7, C9-88).
    fn ask(&self) {
        let nowhere = SendOp::Write(Remote {
            addr: 0,
            rkey: RKey(0),
        });
        let wr = SendWr {
            wr_id: 0,
            op: nowhere,
            sges: &[],
            signaled: true,
            fence: false,
        };
        // In a full queue there are requests that are signaled.
        if self.post(&wr, true).is_ok() {
            self.ring_doorbell();
        }
    }

    /// Copies a short payload into the request, which saves the device an access to memory.
    fn inline(&self, sges: &[Sge], chain: &mut Chain) -> Option<usize> {
        let total: usize = sges.iter().map(|sge| sge.len_bytes as usize).sum();
        if total == 0 || total > self.limits.inline_bytes_max {
            return None;
        }
        self.keys.gather(sges, chain.inline_room())
    }

    pub(super) fn ring_doorbell(&self) {
        self.held.set(self.chain.borrow().len());
        self.post_rung();
    }

    /// Gives the device the requests for which the doorbell has been rung.
    pub(super) fn post_rung(&self) {
        let mut chain = self.chain.borrow_mut();
        let rung = self.held.get();
        let (count, reads) = if self.limits.counts_reads {
            let allowed = u32::from(self.initiator_depth.get());
            chain.with_reads(rung, allowed.saturating_sub(self.reads.get()))
        } else {
            (rung, 0)
        };
        if count == 0 {
            return;
        }
        let here = u32::try_from(chain.len()).unwrap_or(u32::MAX);
        let pair = self.pair.borrow();
        let Some(pair) = pair.as_ref() else {
            return;
        };
        self.held.set(rung - count);
        self.reads.set(self.reads.get() + reads);
        let lookup = |keys| self.keys.bind(keys);
        let Err(broken) = pair.post_chain(&mut chain, count, &lookup) else {
            return;
        };
        drop(chain);
        // The device did not take all: the first it did not take is the cause of the end.
        let missing = here.saturating_sub(u32::try_from(broken.taken).unwrap_or(0));
        self.refused(missing, &broken.error.to_string());
    }

    /// The device refused the last `missing` requests.
    fn refused(&self, missing: u32, why: &str) {
        let cause = format!("the device refused a work request: {why}");
        {
            let mut sends = self.sends.borrow_mut();
            if missing > 0 {
                let position = sends.position_of_last(missing);
                sends.keep_from_device(missing);
                let outcome = Outcome {
                    status: WcStatus::LocalQpOperationError,
                    ..Outcome::FLUSHED
                };
                sends.end(position, outcome, |request, outcome| {
                    self.send_cq.push(self.num, request, outcome);
                });
            }
        }
        self.fail(&cause);
    }
}
