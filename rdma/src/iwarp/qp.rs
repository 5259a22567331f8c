//! Queue pairs.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use capstan_memory::{RawBytes, Slab};

use super::cm::notice::{Link2Cm, Notice};
use super::cq::Completions;
use super::engine::{Engine, Watch};
use super::fatal::Fatal;
use super::read::Reads;
use super::rx::{Received, Rx};
use super::same_host::SharedLink;
use super::socket::{Link, waiting_bytes};
use super::sq::SendQueue;
use super::srq::{Receive, ReceiveRing, SharedQueue, check_sges};
use super::stag::{Asker, StagTable};
use super::tx::Tx;
use crate::contract::{
    Access, PostError, QpNum, QpState, QueuePair, RKey, Remote, SendOp, SendWr, Sge, WcOpcode,
    WcStatus, WorkCompletion,
};
use crate::pair::{LENT_HEAD_BYTES, WriteSource};

/// Where receives come from.
pub(super) enum Receives {
    /// The queue pair's own ring.
    Own(ReceiveRing),
    /// A shared one.
    Shared(Rc<SharedQueue>),
}

impl Receives {
    /// Takes the oldest receive; `false` when there is none.
    #[inline]
    pub(super) fn take(&mut self, out: &mut Receive) -> bool {
        match self {
            Self::Own(ring) => ring.take(out),
            Self::Shared(queue) => queue.take(out),
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            Self::Own(ring) => ring.is_empty(),
            Self::Shared(queue) => queue.is_empty(),
        }
    }

    fn with_ring<R>(&mut self, call: impl FnOnce(&mut ReceiveRing) -> R) -> R {
        match self {
            Self::Own(ring) => call(ring),
            Self::Shared(queue) => call(&mut queue.ring()),
        }
    }

    /// Reserves a receive for a message of `len_bytes` that is lent; `false` when there is none, or
    /// it may be too short.
    #[inline]
    pub(super) fn reserve(&mut self, len_bytes: u32) -> bool {
        self.with_ring(|ring| ring.reserve(len_bytes))
    }

    /// A message that was lent needs its receive no more.
    #[inline]
    pub(super) fn unreserve(&mut self) {
        self.with_ring(ReceiveRing::unreserve);
    }

    /// Whether a receive that was taken for a message of `len_bytes` can be put back and reserved
    /// for it.
    pub(super) fn may_put_back(&self, len_bytes: u32) -> bool {
        match self {
            Self::Own(ring) => ring.may_put_back(len_bytes),
            Self::Shared(queue) => queue.ring().may_put_back(len_bytes),
        }
    }

    /// Puts back the receive that was taken last, and reserves one for its message.
    pub(super) fn put_back(&mut self, receive: &Receive) {
        match self {
            Self::Own(ring) => ring.put_back_oldest(receive),
            Self::Shared(queue) => queue.ring().put_back_newest(receive),
        }
        // A receive was just put back, so this cannot fail.
        self.reserve(0);
    }

    /// The shared queue, when queue pairs wait for its receives.
    pub(super) fn awaited(&self) -> Option<Rc<SharedQueue>> {
        match self {
            Self::Shared(queue) if queue.is_awaited() => Some(Rc::clone(queue)),
            Self::Own(_) | Self::Shared(_) => None,
        }
    }
}

/// The state of a queue pair.
pub(super) struct Qp {
    pub num: QpNum,
    pub asker: Asker,
    pub state: QpState,
    pub link: Option<Link>,
    pub sq: SendQueue,
    pub receives: Receives,
    pub reads: Reads,
    pub tx: Tx,
    pub rx: Rx,
    pub send_cq: Rc<Completions>,
    pub recv_cq: Rc<Completions>,
    /// Where to report what happens to the connection.
    pub cm: Option<Link2Cm>,
    /// In the engine's list of busy queue pairs.
    pub hot: bool,
    /// How the engine's epoll watches the socket.
    pub watch: Watch,
    /// The peer sends no more, and no further event will come: receive until its end is found.
    pub hung_up: bool,
    /// Runs in a row that found nothing to do.
    pub idle_runs: u32,
    /// There is more to do without waiting for the socket.
    pub pending: bool,
    /// The program's clock when a Send began to wait for a receive.
    pub not_ready_since_us: Option<u64>,
}

/// The result of one run of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ran {
    /// Something moved.
    Busy,
    /// Nothing moved.
    Idle,
    /// Waits for a receive to be posted.
    NotReady,
}

impl Qp {
    /// Whether it is connected and nothing has been sent or received yet.
    pub(super) fn is_silent(&self) -> bool {
        self.state == QpState::ReadyToSend && self.rx.is_silent() && self.tx.sent() == 0
    }

    /// Continues the connection through shared memory.
    pub(super) fn move_into(&mut self, link: SharedLink) {
        self.tx.move_into_memory();
        self.rx.move_into_memory();
        self.link = Some(Link::Shared(Box::new(link)));
    }

    /// Receives, with at most `calls_max` calls, and sends what is possible now.
    pub(super) fn run(&mut self, stags: &mut StagTable, calls_max: u32) -> Result<Ran, Fatal> {
        let received = self.receive(stags, calls_max)?;
        if self.tx.wanted || self.tx.blocked {
            let sent = self.tx.sent();
            self.transmit(stags)?;
            if self.tx.sent() != sent {
                self.pending = received == Received::More;
                return Ok(Ran::Busy);
            }
        }
        self.pending = received == Received::More;
        Ok(match received {
            Received::Nothing => Ran::Idle,
            Received::Some | Received::More => Ran::Busy,
            Received::Stalled if self.receives.is_empty() => Ran::NotReady,
            Received::Stalled => {
                // Only room for completions is missing, and polling makes it.
                self.pending = true;
                Ran::Idle
            }
        })
    }

    /// Bytes of the stream that have been received.
    fn received_bytes(&self) -> u64 {
        match &self.link {
            Some(Link::Shared(link)) => link.received_bytes(),
            _ => self.rx.received_bytes,
        }
    }

    /// Bytes of the stream that have arrived and are not received yet.
    fn waiting_bytes(&self) -> u64 {
        match &self.link {
            Some(Link::Shared(link)) => link.waiting_bytes(),
            Some(link) => link.tcp().map_or(0, waiting_bytes),
            None => 0,
        }
    }

    /// The first FPDU has come: a listening side that waited for it is connected now.
    pub(super) fn first_arrived(&mut self) {
        if let Some(cm) = &self.cm {
            cm.tell(Notice::FirstArrived);
        }
    }

    /// Completes everything outstanding: first what caused the end, then the rest as flushed.
    pub(super) fn flush(&mut self, fatal: &Fatal) {
        let culprit = match fatal {
            Fatal::Local { position, status } => Some((*position, *status)),
            _ => fatal.read_status().and_then(|status| {
                let oldest = self.reads.outstanding.front();
                Some((oldest?.position?, status))
            }),
        };
        self.sq.flush(culprit, self.num, &self.send_cq);
        self.reads.outstanding.clear();
        self.reads.responses.clear();
        if let Some(wr_id) = self.rx.take_message() {
            self.complete_receive(wr_id, fatal.receive_status());
        }
        if let Receives::Own(ring) = &mut self.receives {
            let mut receive = Receive::default();
            ring.unreserve_all();
            while ring.take(&mut receive) {
                self.recv_cq
                    .push(flushed(receive.wr_id, self.num, WcOpcode::Recv));
            }
        }
    }

    fn complete_receive(&self, wr_id: u64, status: WcStatus) {
        self.recv_cq.push(WorkCompletion {
            status,
            ..flushed(wr_id, self.num, WcOpcode::Recv)
        });
    }
}

fn flushed(wr_id: u64, qp: QpNum, opcode: WcOpcode) -> WorkCompletion {
    WorkCompletion {
        wr_id,
        qp,
        status: WcStatus::WrFlushError,
        opcode,
        byte_len: 0,
        invalidated: None,
    }
}

/// What the program holds of a queue pair.
pub(crate) struct QpHandle {
    pub(super) engine: Rc<Engine>,
    pub(super) cell: Rc<RefCell<Qp>>,
    pub(super) num: QpNum,
}

impl QueuePair for QpHandle {
    fn num(&self) -> QpNum {
        self.num
    }

    fn state(&self) -> QpState {
        self.cell.borrow().state
    }

    fn post_recv(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        let mut qp = self.cell.borrow_mut();
        let qp = &mut *qp;
        let Receives::Own(ring) = &mut qp.receives else {
            return Err(PostError::UsesSrq);
        };
        if qp.state == QpState::Error {
            qp.recv_cq.push(flushed(wr_id, qp.num, WcOpcode::Recv));
            return Ok(());
        }
        ring.post(&self.engine.stags.borrow(), qp.asker.pd, wr_id, sges)?;
        if qp.rx.stalled {
            qp.pending = true;
            self.engine.heat(&self.cell, qp);
        }
        Ok(())
    }

    fn post_send(&mut self, wr: &SendWr<'_>) -> Result<(), PostError> {
        let mut qp = self.cell.borrow_mut();
        let qp = &mut *qp;
        match qp.state {
            QpState::Init => return Err(PostError::NotConnected),
            QpState::Error => {
                let opcode = match wr.op {
                    SendOp::Send { .. } => WcOpcode::Send,
                    SendOp::Write(_) => WcOpcode::RdmaWrite,
                    SendOp::Read(_) => WcOpcode::RdmaRead,
                    SendOp::BindWindow { .. } => WcOpcode::BindMw,
                    SendOp::LocalInvalidate(_) => WcOpcode::LocalInvalidate,
                };
                qp.send_cq.push(flushed(wr.wr_id, qp.num, opcode));
                return Ok(());
            }
            QpState::ReadyToSend => {}
        }
        qp.sq.check_room()?;
        let (sge_max, need) = match wr.op {
            // One sink: an iWARP Read Request names one STag (RFC 5040 §4.4).
            SendOp::Read(_) => (1, Access::LOCAL_WRITE),
            _ => (qp.sq.sge_max(), Access::empty()),
        };
        if wr.sges.len() > sge_max {
            let max = u32::try_from(sge_max).unwrap_or(u32::MAX);
            return Err(PostError::TooManySges(wr.sges.len(), max));
        }
        if matches!(wr.op, SendOp::Read(_)) && qp.reads.ord == 0 {
            return Err(PostError::NotSupported(
                "RDMA READ on a connection with initiator depth 0",
            ));
        }
        let len_bytes = check_sges(&self.engine.stags.borrow(), qp.asker.pd, wr.sges, need)?;
        qp.sq.push(wr, len_bytes);
        qp.tx.ahead.fetch_more();
        Ok(())
    }

    fn arrived(&mut self) -> u64 {
        let mut qp = self.cell.borrow_mut();
        let qp = &mut *qp;
        if qp.state != QpState::ReadyToSend {
            return 0;
        }
        // It is run in the next poll, whatever epoll knows.
        qp.pending = true;
        self.engine.heat(&self.cell, qp);
        qp.received_bytes().saturating_add(qp.waiting_bytes())
    }

    fn has_passed(&self, mark: u64) -> bool {
        let qp = self.cell.borrow();
        // Every whole message that was received has been handled, unless a receive is missing.
        qp.state != QpState::ReadyToSend || !qp.rx.stalled && qp.received_bytes() >= mark
    }

    fn ring_doorbell(&mut self) {
        let mut qp = self.cell.borrow_mut();
        let qp = &mut *qp;
        if qp.state != QpState::ReadyToSend {
            return;
        }
        qp.sq.ring();
        // While the socket is full, the engine continues when there is room again.
        if !qp.tx.blocked {
            let sent = qp.transmit(&mut self.engine.stags.borrow_mut());
            if let Err(fatal) = sent {
                self.engine.end(qp, &fatal);
                return;
            }
        }
        self.engine.expect_answer(&self.cell, qp);
    }
}

/// What it does beyond verbs.
impl QpHandle {
    /// As [`Pair::write_now`](crate::Pair::write_now).
    pub(crate) fn write_now(
        &mut self,
        remote: Remote,
        len_bytes: u32,
        source: &mut WriteSource<'_>,
    ) -> bool {
        let mut qp = self.cell.borrow_mut();
        let qp = &mut *qp;
        qp.tx.ahead.fetch_more();
        if qp.state != QpState::ReadyToSend {
            return false;
        }
        let written = qp.write_now(
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

    /// As [`Pair::write_in_place`](crate::Pair::write_in_place).
    pub(crate) fn write_in_place(
        &mut self,
        remote: Remote,
        slab: &Arc<Slab>,
        range: Range<usize>,
    ) -> bool {
        let mut qp = self.cell.borrow_mut();
        let qp = &mut *qp;
        if qp.state != QpState::ReadyToSend {
            return false;
        }
        let written = qp.write_in_place(&mut self.engine.stags.borrow_mut(), remote, slab, &range);
        written.unwrap_or_else(|fatal| {
            self.engine.end(qp, &fatal);
            false
        })
    }

    /// As [`Pair::is_full`](crate::Pair::is_full).
    pub(crate) fn is_full(&self) -> bool {
        let qp = self.cell.borrow();
        qp.state == QpState::ReadyToSend && qp.tx.blocked && qp.writes_in_place()
    }

    /// As [`Pair::send_now`](crate::Pair::send_now).
    pub(crate) fn send_now(&mut self, bytes: &[u8], invalidate: Option<RKey>) -> bool {
        let mut qp = self.cell.borrow_mut();
        let qp = &mut *qp;
        if qp.state != QpState::ReadyToSend {
            return false;
        }
        qp.tx.ahead.fetch_more();
        let sent = qp.send_now(&mut self.engine.stags.borrow_mut(), bytes, invalidate);
        qp.tx.ahead.fetch_more();
        sent.unwrap_or_else(|fatal| {
            self.engine.end(qp, &fatal);
            false
        })
    }

    /// As [`Pair::has_unsent`](crate::Pair::has_unsent).
    pub(crate) fn has_unsent(&self) -> bool {
        let qp = self.cell.borrow();
        qp.state == QpState::ReadyToSend && qp.tx.has_unsent()
    }

    /// As [`Pair::lend_messages`](crate::Pair::lend_messages).
    pub(crate) fn lend_messages(&mut self) {
        self.cell.borrow_mut().rx.lent.wanted = true;
    }

    /// As [`Pair::lent_head`](crate::Pair::lent_head).
    pub(crate) fn lent_head(&mut self, message: u64) -> Option<[u8; LENT_HEAD_BYTES]> {
        self.with_lent(|qp| qp.lent_head(message))
    }

    /// As [`Pair::take_lent`](crate::Pair::take_lent).
    pub(crate) fn take_lent(
        &mut self,
        message: u64,
        take: &mut dyn FnMut(RawBytes<'_>) -> bool,
    ) -> bool {
        self.with_lent(|qp| qp.take_lent(message, take))
    }

    /// As [`Pair::land_lent`](crate::Pair::land_lent).
    pub(crate) fn land_lent(&mut self, message: u64) -> Option<u64> {
        let engine = Rc::clone(&self.engine);
        self.with_lent(|qp| qp.land_lent(&engine.stags.borrow(), message))
    }

    /// As [`Pair::doorbell_interval`](crate::Pair::doorbell_interval).
    pub(crate) fn doorbell_interval(&self) -> u32 {
        match self.cell.borrow().link {
            // No system call is needed, so a few at a time cost no more.
            Some(Link::Shared(_)) => 8,
            _ => u32::MAX,
        }
    }

    /// Does something with lent messages. Queue pairs that wait for a receive may find one
    /// afterwards.
    #[inline]
    fn with_lent<R>(&self, call: impl FnOnce(&mut Qp) -> R) -> R {
        let mut qp = self.cell.borrow_mut();
        let result = call(&mut qp);
        if qp.rx.stalled && qp.state == QpState::ReadyToSend {
            qp.pending = true;
            self.engine.heat(&self.cell, &mut qp);
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
