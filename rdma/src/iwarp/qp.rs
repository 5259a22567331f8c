//! Queue pairs.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use capstan_memory::{RawBytes, Slab};

use super::core::flushed;
use super::driver::IwarpEngine;
use super::driver::qp::Qp;
use super::link::Link;
use super::receives::{Receives, check_sges};
use crate::contract::{
    Access, PostError, QpNum, QpState, QueuePair, RKey, Remote, SendOp, SendWr, Sge, WcOpcode,
};
use crate::direct::{WriteSource, ZERO_COPY_HEAD_BYTES_MAX};

/// What the program holds of a queue pair.
pub(crate) struct QpHandle {
    pub(super) engine: Rc<IwarpEngine>,
    pub(super) cell: Rc<RefCell<Qp>>,
    pub(super) num: QpNum,
}

impl QpHandle {
    pub(super) fn new(engine: &Rc<IwarpEngine>, cell: Rc<RefCell<Qp>>) -> Self {
        let num = cell.borrow().core.num;
        Self {
            engine: Rc::clone(engine),
            cell,
            num,
        }
    }
}

impl QueuePair for QpHandle {
    fn num(&self) -> QpNum {
        self.num
    }

    fn state(&self) -> QpState {
        self.cell.borrow().core.state
    }

    fn post_recv(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        let mut qp = self.cell.borrow_mut();
        let qp = &mut *qp;
        let Receives::Own(ring) = &mut qp.core.receives else {
            return Err(PostError::UsesSrq);
        };
        if qp.core.state == QpState::Error {
            qp.core
                .recv_cq
                .push(flushed(wr_id, qp.core.num, WcOpcode::Recv));
            return Ok(());
        }
        ring.post(&self.engine.stags.borrow(), qp.core.asker.pd, wr_id, sges)?;
        if qp.core.rx.stalled {
            qp.pending = true;
            self.engine.make_busy(&self.cell, qp);
        }
        Ok(())
    }

    fn post_send(&mut self, wr: &SendWr<'_>) -> Result<(), PostError> {
        let mut qp = self.cell.borrow_mut();
        let qp = &mut *qp;
        match qp.core.state {
            QpState::Init => return Err(PostError::NotConnected),
            QpState::Error => {
                let opcode = match wr.op {
                    SendOp::Send { .. } => WcOpcode::Send,
                    SendOp::Write(_) => WcOpcode::RdmaWrite,
                    SendOp::Read(_) => WcOpcode::RdmaRead,
                    SendOp::BindWindow { .. } => WcOpcode::BindMw,
                    SendOp::LocalInvalidate(_) => WcOpcode::LocalInvalidate,
                };
                qp.core.send_cq.push(flushed(wr.wr_id, qp.core.num, opcode));
                return Ok(());
            }
            QpState::ReadyToSend => {}
        }
        qp.core.sq.check_room()?;
        let (sge_max, need) = match wr.op {
            // One sink: an iWARP Read Request names one STag (RFC 5040 §4.4).
            SendOp::Read(_) => (1, Access::LOCAL_WRITE),
            _ => (qp.core.sq.sge_max(), Access::empty()),
        };
        if wr.sges.len() > sge_max {
            let max = u32::try_from(sge_max).unwrap_or(u32::MAX);
            return Err(PostError::TooManySges(wr.sges.len(), max));
        }
        if matches!(wr.op, SendOp::Read(_)) && qp.core.reads.ord == 0 {
            return Err(PostError::NotSupported(
                "RDMA READ on a connection with initiator depth 0",
            ));
        }
        let len_bytes = check_sges(&self.engine.stags.borrow(), qp.core.asker.pd, wr.sges, need)?;
        qp.core.sq.push(wr, len_bytes);
        Ok(())
    }

    fn ring_doorbell(&mut self) {
        let mut qp = self.cell.borrow_mut();
        let qp = &mut *qp;
        if qp.core.state != QpState::ReadyToSend {
            return;
        }
        qp.core.sq.ring();
        // While the socket is full, the engine continues when there is room again.
        if !qp.core.tx.blocked {
            let sent = qp.transmit(&mut self.engine.stags.borrow_mut());
            if let Err(fatal) = sent {
                self.engine.end(qp, &fatal);
                return;
            }
        }
        self.engine.expect_answer(&self.cell, qp);
    }
}

/// What it does beyond verbs ([`direct`](crate::direct)).
impl QpHandle {
    /// As [`Pair::shares_memory`](crate::Pair::shares_memory).
    pub(crate) fn shares_memory(&self) -> bool {
        matches!(self.cell.borrow().link, Some(Link::Shared(_)))
    }

    /// As [`Pair::write_inline`](crate::Pair::write_inline).
    pub(crate) fn write_inline(
        &mut self,
        remote: Remote,
        len_bytes: u32,
        source: &mut WriteSource<'_>,
    ) -> bool {
        let mut qp = self.cell.borrow_mut();
        let qp = &mut *qp;
        if qp.core.state != QpState::ReadyToSend {
            return false;
        }
        let written = qp.write_inline(
            &mut self.engine.stags.borrow_mut(),
            remote,
            len_bytes,
            source,
        );
        written.unwrap_or_else(|fatal| {
            self.engine.end(qp, &fatal);
            false
        })
    }

    /// As [`Pair::write_from_slab`](crate::Pair::write_from_slab).
    pub(crate) fn write_from_slab(
        &mut self,
        remote: Remote,
        slab: &Arc<Slab>,
        range: Range<usize>,
    ) -> bool {
        let mut qp = self.cell.borrow_mut();
        let qp = &mut *qp;
        if qp.core.state != QpState::ReadyToSend {
            return false;
        }
        let written = qp.write_from_slab(&mut self.engine.stags.borrow_mut(), remote, slab, &range);
        written.unwrap_or_else(|fatal| {
            self.engine.end(qp, &fatal);
            false
        })
    }

    /// As [`Pair::write_would_block`](crate::Pair::write_would_block).
    pub(crate) fn write_would_block(&self) -> bool {
        let qp = self.cell.borrow();
        qp.core.state == QpState::ReadyToSend && qp.core.tx.blocked && qp.writes_in_place()
    }

    /// As [`Pair::send_inline`](crate::Pair::send_inline).
    pub(crate) fn send_inline(&mut self, bytes: &[u8], invalidate: Option<RKey>) -> bool {
        let mut qp = self.cell.borrow_mut();
        let qp = &mut *qp;
        if qp.core.state != QpState::ReadyToSend {
            return false;
        }
        let sent = qp.send_inline(&mut self.engine.stags.borrow_mut(), bytes, invalidate);
        sent.unwrap_or_else(|fatal| {
            self.engine.end(qp, &fatal);
            false
        })
    }

    /// As [`Pair::needs_drain`](crate::Pair::needs_drain).
    pub(crate) fn needs_drain(&self) -> bool {
        let qp = self.cell.borrow();
        qp.core.state == QpState::ReadyToSend && qp.core.tx.has_unsent()
    }

    /// As [`Pair::enable_zero_copy_receive`](crate::Pair::enable_zero_copy_receive).
    pub(crate) fn enable_zero_copy_receive(&mut self, head_bytes: u32) {
        self.cell.borrow_mut().core.rx.lent.enable(head_bytes);
    }

    /// As [`Pair::zero_copy_head`](crate::Pair::zero_copy_head).
    pub(crate) fn zero_copy_head(
        &mut self,
        message: u64,
    ) -> Option<[u8; ZERO_COPY_HEAD_BYTES_MAX]> {
        self.with_lent(|qp| qp.core.zero_copy_head(message))
    }

    /// As [`Pair::take_zero_copy`](crate::Pair::take_zero_copy).
    pub(crate) fn take_zero_copy(
        &mut self,
        message: u64,
        take: &mut dyn FnMut(RawBytes<'_>) -> bool,
    ) -> bool {
        self.with_lent(|qp| qp.core.take_zero_copy(message, take))
    }

    /// As [`Pair::copy_to_receive`](crate::Pair::copy_to_receive).
    pub(crate) fn copy_to_receive(&mut self, message: u64) -> Option<u64> {
        let engine = Rc::clone(&self.engine);
        self.with_lent(|qp| qp.core.copy_to_receive(&engine.stags.borrow(), message))
    }

    /// As [`Pair::doorbell_batch_max`](crate::Pair::doorbell_batch_max).
    pub(crate) fn doorbell_batch_max(&self) -> u32 {
        match self.cell.borrow().link {
            // No system call is needed, so a few at a time cost no more.
            Some(Link::Shared(_)) => 8,
            _ => u32::MAX,
        }
    }

    /// As [`Pair::arrival_mark`](crate::Pair::arrival_mark).
    pub(crate) fn arrival_mark(&mut self) -> u64 {
        // A peer sends in shared memory as soon as it has delivered it here.
        self.engine.take_memory(false);
        let mut qp = self.cell.borrow_mut();
        let qp = &mut *qp;
        if qp.core.state != QpState::ReadyToSend {
            return 0;
        }
        // It is run in the next poll, whatever epoll knows.
        qp.pending = true;
        self.engine.make_busy(&self.cell, qp);
        qp.received_bytes().saturating_add(qp.waiting_bytes())
    }

    /// As [`Pair::has_passed`](crate::Pair::has_passed).
    pub(crate) fn has_passed(&self, mark: u64) -> bool {
        let qp = self.cell.borrow();
        // Every whole message that was received has been handled, unless a receive is missing.
        qp.core.state != QpState::ReadyToSend || !qp.core.rx.stalled && qp.received_bytes() >= mark
    }

    /// As [`Pair::has_passed_begun`](crate::Pair::has_passed_begun).
    pub(crate) fn has_passed_begun(&self, mark: u64) -> bool {
        let qp = self.cell.borrow();
        // A message that waits for a receive is not whole either.
        let whole_bytes = qp.received_bytes().saturating_sub(qp.core.rx.begun_bytes());
        qp.core.state != QpState::ReadyToSend || whole_bytes >= mark
    }

    /// Does something with lent messages. Queue pairs that wait for a receive may find one
    /// afterwards.
    #[inline]
    fn with_lent<R>(&self, call: impl FnOnce(&mut Qp) -> R) -> R {
        let mut qp = self.cell.borrow_mut();
        let result = call(&mut qp);
        if qp.core.rx.stalled && qp.core.state == QpState::ReadyToSend {
            qp.pending = true;
            self.engine.make_busy(&self.cell, &mut qp);
        }
        self.engine.wake_awaiting(qp);
        result
    }
}

impl Drop for QpHandle {
    fn drop(&mut self) {
        self.engine.drop_qp(&self.cell);
    }
}
