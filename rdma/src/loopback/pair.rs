//! Queue pairs: state, posting, flushing.

use std::collections::VecDeque;
use std::rc::Rc;

use super::completion::Place;
use super::state::{Core, NetRef, Segment};
use crate::contract::{
    CompletionQueue, PostError, QpNum, QpState, QueuePair, SendOp, SendWr, Sge, SharedReceiveQueue,
    WcOpcode, WcStatus, WorkCompletion,
};

/// Most SGEs of a work request.
pub(super) const SGE_MAX: usize = 16;

/// SGEs by value, so that posting allocates nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sges {
    count: u8,
    sges: [Sge; SGE_MAX],
}

impl Sges {
    pub(super) fn new(sges: &[Sge], max: u32) -> Result<Self, PostError> {
        let blank = Sge {
            addr: 0,
            len_bytes: 0,
            lkey: crate::contract::LKey(0),
        };
        let mut all = [blank; SGE_MAX];
        let fits = sges.len() <= max as usize;
        match all.get_mut(..sges.len()).filter(|_| fits) {
            Some(room) => room.copy_from_slice(sges),
            None => return Err(PostError::TooManySges(sges.len(), max)),
        }
        Ok(Self {
            count: u8::try_from(sges.len()).unwrap_or(0),
            sges: all,
        })
    }

    pub(super) fn as_slice(&self) -> &[Sge] {
        &self.sges[..usize::from(self.count)]
    }

    pub(super) fn len_bytes(&self) -> u64 {
        self.as_slice()
            .iter()
            .map(|sge| u64::from(sge.len_bytes))
            .sum()
    }
}

/// State of a send work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Posted.
    Waiting,
    /// On its way to the peer.
    Sent,
    /// Done, perhaps before those posted earlier.
    Done,
    /// Failed on this side; reported when those before it are done.
    Failed(WcStatus),
}

/// A send work request.
#[derive(Clone, Copy, Debug)]
pub(super) struct SendEntry {
    pub(super) wr_id: u64,
    pub(super) op: SendOp,
    pub(super) sges: Sges,
    pub(super) signaled: bool,
    pub(super) fence: bool,
    pub(super) progress: Progress,
}

/// A receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReceiveEntry {
    pub(super) wr_id: u64,
    pub(super) sges: Sges,
}

/// Where a queue pair takes receives from.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Receives {
    Own {
        depth: u32,
        outstanding: u32,
        queue: VecDeque<ReceiveEntry>,
    },
    Shared(u32),
}

/// Depths agreed on when connecting.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Agreed {
    /// RDMA READs this side may have outstanding.
    pub(super) initiator_depth: u8,
    /// RDMA READs this side serves at once.
    pub(super) responder_resources: u8,
    /// The peer's count of how often this side retries a Send.
    pub(super) rnr_retry_count: u8,
}

/// A queue pair's state.
pub(super) struct Pair {
    pub(super) num: u32,
    pub(super) host: u32,
    pub(super) pd: u32,
    /// Its connection-manager id.
    pub(super) id: u64,
    pub(super) active: bool,
    pub(super) peer: Option<u32>,
    /// The connection's number in the order of accepting.
    pub(super) connection: Option<u64>,
    pub(super) state: QpState,
    /// Nothing leaves or arrives any more.
    pub(super) cut: bool,
    pub(super) agreed: Agreed,
    pub(super) send_cq: u32,
    pub(super) recv_cq: u32,
    pub(super) send_wr_max: u32,
    pub(super) send_sge_max: u32,
    pub(super) recv_sge_max: u32,

    /// Work requests that are not reported yet, oldest first; the oldest has number `first`.
    pub(super) sends: VecDeque<SendEntry>,
    pub(super) first: u64,
    /// Number of the next one to start.
    pub(super) start: u64,
    /// Those below have been handed over by the doorbell.
    pub(super) rung: u64,
    /// Entries of the send queue in use.
    pub(super) send_outstanding: u32,
    /// Entries without a completion of their own; the next completion frees them.
    pub(super) unsignaled: u32,
    pub(super) reads_outstanding: u8,
    /// The request that failed: those behind it do not start, and have no effect at the peer.
    pub(super) failed: Option<u64>,
    /// Whether [`Event::Unanswered`](super::state::Event::Unanswered) is on its way.
    pub(super) unanswered: bool,

    pub(super) receives: Receives,
    /// The receive that the message now arriving goes to.
    pub(super) receiving: Option<ReceiveEntry>,
    /// The message that is arriving waits for a receive.
    pub(super) stalled: bool,
    /// How often that has happened.
    pub(super) stalls: u64,
    /// What has arrived behind it.
    pub(super) held_back: VecDeque<Segment>,
    /// RDMA READs of the peer being served.
    pub(super) reads_served: u8,

    /// Latest arrival of what this side has sent: requests, and answers.
    pub(super) request_last_us: u64,
    pub(super) response_last_us: u64,
}

impl Pair {
    pub(super) fn connected(&self) -> bool {
        self.state == QpState::ReadyToSend
    }

    /// The send work request of number `wqe`.
    pub(super) fn send_entry(&mut self, wqe: u64) -> Option<&mut SendEntry> {
        let at = usize::try_from(wqe.checked_sub(self.first)?).ok()?;
        self.sends.get_mut(at)
    }

    fn end_number(&self) -> u64 {
        self.first + self.sends.len() as u64
    }

    /// The entry that one of its receives frees.
    pub(super) fn receive_place(&self) -> Place {
        match self.receives {
            Receives::Own { .. } => Place::Receive,
            Receives::Shared(srq) => Place::Shared(srq),
        }
    }

    fn completion(&self, wr_id: u64, opcode: WcOpcode, status: WcStatus) -> WorkCompletion {
        WorkCompletion {
            wr_id,
            qp: QpNum(self.num),
            status,
            opcode,
            byte_len: 0,
            invalidated: None,
        }
    }
}

pub(super) fn opcode(op: &SendOp) -> WcOpcode {
    match op {
        SendOp::Send { .. } => WcOpcode::Send,
        SendOp::Write(_) => WcOpcode::RdmaWrite,
        SendOp::Read(_) => WcOpcode::RdmaRead,
        SendOp::BindWindow { .. } => WcOpcode::BindMw,
        SendOp::LocalInvalidate(_) => WcOpcode::LocalInvalidate,
    }
}

impl Core {
    /// Completes a receive of `qp`.
    pub(super) fn complete_receive(
        &mut self,
        qp: u32,
        entry: &ReceiveEntry,
        status: WcStatus,
        (byte_len, invalidated): (u32, Option<crate::contract::RKey>),
    ) {
        let Some(pair) = self.pairs.get(&qp) else {
            return;
        };
        let wc = WorkCompletion {
            byte_len,
            invalidated,
            ..pair.completion(entry.wr_id, WcOpcode::Recv, status)
        };
        let (cq, place) = (pair.recv_cq, pair.receive_place());
        self.complete(cq, wc, place);
        if self.overrun(cq) {
            self.fail(qp, "its completion queue was overrun", true);
        }
    }

    /// Reports the send work requests at the head of the queue that are done.
    pub(super) fn retire(&mut self, qp: u32) {
        while let Some(pair) = self.pairs.get_mut(&qp) {
            let Some(&entry) = pair.sends.front() else {
                return;
            };
            let status = match entry.progress {
                Progress::Done => WcStatus::Success,
                Progress::Failed(status) => status,
                Progress::Waiting | Progress::Sent => return,
            };
            pair.sends.pop_front();
            pair.first += 1;
            pair.unsignaled += 1;
            let failed = status != WcStatus::Success;
            if !entry.signaled && !failed {
                continue;
            }
            let places = std::mem::take(&mut pair.unsignaled);
            let wc = pair.completion(entry.wr_id, opcode(&entry.op), status);
            let cq = pair.send_cq;
            self.complete(cq, wc, Place::Send(places));
            if failed {
                self.fail(qp, &format!("{:?} failed: {status}", wc.opcode), true);
            } else if self.overrun(cq) {
                self.fail(qp, "its completion queue was overrun", true);
            }
        }
    }

    /// Fails send work request `wqe` with `status` and with it the queue pair.
    pub(super) fn fail_send(&mut self, qp: u32, wqe: u64, status: WcStatus) {
        let Some(pair) = self.pairs.get_mut(&qp) else {
            return;
        };
        if pair.state != QpState::ReadyToSend {
            return;
        }
        pair.failed = Some(wqe);
        if let Some(entry) = pair.send_entry(wqe) {
            entry.progress = Progress::Failed(status);
        }
        self.retire(qp);
    }

    /// Fails the oldest send work request that is on its way, if there is one, and the queue pair.
    pub(super) fn break_head(&mut self, qp: u32, status: WcStatus, cause: &str) {
        let Some(pair) = self.pairs.get_mut(&qp) else {
            return;
        };
        match pair.sends.front().map(|entry| entry.progress) {
            Some(Progress::Sent) => {
                let first = pair.first;
                self.fail_send(qp, first, status);
            }
            _ => self.fail(qp, cause, true),
        }
    }

    /// Brings a queue pair into the error state: everything outstanding is flushed and the
    /// connection ends.
    pub(super) fn fail(&mut self, qp: u32, cause: &str, tell_peer: bool) {
        let Some(pair) = self.pairs.get_mut(&qp) else {
            return;
        };
        if pair.state == QpState::Error {
            return;
        }
        pair.state = QpState::Error;
        pair.stalled = false;
        pair.held_back.clear();
        self.flush(qp);
        self.connection_ended(qp, cause, tell_peer);
    }

    /// Completes everything outstanding with the flush status, each queue in order.
    fn flush(&mut self, qp: u32) {
        let Some(pair) = self.pairs.get_mut(&qp) else {
            return;
        };
        let sends = std::mem::take(&mut pair.sends);
        pair.first += sends.len() as u64;
        let mut receives: VecDeque<ReceiveEntry> = pair.receiving.take().into_iter().collect();
        if let Receives::Own { queue, .. } = &mut pair.receives {
            receives.append(queue);
        }
        let pair_places = std::mem::take(&mut pair.unsignaled);
        let (send_cq, recv_cq, place) = (pair.send_cq, pair.recv_cq, pair.receive_place());
        let flushed = WcStatus::WrFlushError;
        let mut completions = Vec::with_capacity(sends.len() + receives.len());
        let mut places = pair_places + 1;
        for entry in &sends {
            let wc = pair.completion(entry.wr_id, opcode(&entry.op), flushed);
            completions.push((send_cq, wc, Place::Send(places)));
            places = 1;
        }
        if sends.is_empty() {
            // They are reported no more: their entries are free.
            pair.send_outstanding -= pair_places;
        }
        for entry in receives {
            let wc = pair.completion(entry.wr_id, WcOpcode::Recv, flushed);
            completions.push((recv_cq, wc, place));
        }
        for (cq, wc, place) in completions {
            self.complete(cq, wc, place);
        }
    }

    fn post_send(&mut self, qp: u32, wr: &SendWr<'_>) -> Result<(), PostError> {
        let Some(pair) = self.pairs.get(&qp) else {
            return Err(PostError::NotConnected);
        };
        let attributes = self
            .hosts
            .get(pair.host as usize)
            .map(|host| &host.attributes);
        let (windows, reads) = attributes.map_or((false, 0), |a| (a.memory_windows, a.sge_rd_max));
        let mut sge_max = pair.send_sge_max;
        match wr.op {
            SendOp::Read(_) => sge_max = sge_max.min(reads),
            SendOp::BindWindow { .. } | SendOp::LocalInvalidate(_) if !windows => {
                return Err(PostError::NotSupported("memory windows"));
            }
            SendOp::Send {
                invalidate: Some(_),
                ..
            } if !attributes.is_some_and(|a| a.send_with_invalidate) => {
                return Err(PostError::NotSupported("SEND_WITH_INV"));
            }
            _ => {}
        }
        let sges = Sges::new(wr.sges, sge_max)?;
        if pair.state == QpState::Init {
            return Err(PostError::NotConnected);
        }
        if pair.send_outstanding >= pair.send_wr_max {
            return Err(PostError::QueueFull(pair.send_wr_max));
        }
        let Some(pair) = self.pairs.get_mut(&qp) else {
            return Err(PostError::NotConnected);
        };
        pair.send_outstanding += 1;
        pair.sends.push_back(SendEntry {
            wr_id: wr.wr_id,
            op: wr.op,
            sges,
            signaled: wr.signaled,
            fence: wr.fence,
            progress: Progress::Waiting,
        });
        if pair.state == QpState::Error {
            self.flush(qp);
        }
        Ok(())
    }

    fn post_recv(&mut self, qp: u32, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        let Some(pair) = self.pairs.get_mut(&qp) else {
            return Err(PostError::NotConnected);
        };
        let Receives::Own {
            depth,
            outstanding,
            queue,
        } = &mut pair.receives
        else {
            return Err(PostError::UsesSrq);
        };
        let sges = Sges::new(sges, pair.recv_sge_max)?;
        if *outstanding >= *depth {
            return Err(PostError::QueueFull(*depth));
        }
        *outstanding += 1;
        queue.push_back(ReceiveEntry { wr_id, sges });
        if pair.stalled {
            self.schedule_receiver_ready(qp);
        } else if pair.state == QpState::Error {
            self.flush(qp);
        }
        Ok(())
    }

    /// Ends all that a queue pair does. Its completions that were not polled are lost.
    fn drop_pair(&mut self, qp: u32) {
        if let Some(pair) = self.pairs.get_mut(&qp) {
            // The owner knows; only the peer is notified.
            let id = pair.id;
            self.forget_pair(id);
            self.fail(qp, "the queue pair was dropped", true);
        }
        let Some(pair) = self.pairs.get(&qp) else {
            return;
        };
        let (send_cq, recv_cq) = (pair.send_cq, pair.recv_cq);
        let mut lost = Vec::new();
        for cq in [send_cq, recv_cq] {
            let Some(state) = self.cqs.get_mut(&cq) else {
                continue;
            };
            state.entries.retain(|&(wc, place)| {
                let keep = wc.qp.0 != qp;
                if !keep {
                    lost.push(place);
                }
                keep
            });
        }
        self.pairs.remove(&qp);
        for place in lost {
            self.give_back(qp, place);
        }
    }
}

/// A queue pair.
pub(super) struct Qp {
    pub(super) net: NetRef,
    pub(super) qp: u32,
    /// Kept alive for as long as completions may follow.
    pub(super) _cqs: [Rc<dyn CompletionQueue>; 2],
    pub(super) _srq: Option<Rc<dyn SharedReceiveQueue>>,
}

impl QueuePair for Qp {
    fn num(&self) -> QpNum {
        QpNum(self.qp)
    }

    fn state(&self) -> QpState {
        let core = self.net.core.borrow();
        core.pairs
            .get(&self.qp)
            .map_or(QpState::Error, |pair| pair.state)
    }

    fn post_recv(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        self.net.core.borrow_mut().post_recv(self.qp, wr_id, sges)
    }

    fn post_send(&mut self, wr: &SendWr<'_>) -> Result<(), PostError> {
        self.net.core.borrow_mut().post_send(self.qp, wr)
    }

    fn ring_doorbell(&mut self) {
        let mut core = self.net.core.borrow_mut();
        if let Some(pair) = core.pairs.get_mut(&self.qp) {
            pair.rung = pair.end_number();
        }
        core.start_sends(self.qp);
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        self.net.core.borrow_mut().drop_pair(self.qp);
    }
}
