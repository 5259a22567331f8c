//! The responding side of a queue pair: checks and carries out what the peer requests.

use super::keys::KeyError;
use super::pair::{ReceiveEntry, Receives, SendEntry};
use super::requester::local_spans;
use super::span::{Span, copy, read};
use super::state::{Answer, Core, Event, Segment};
use super::trace::Traced;
use crate::contract::{Access, RKey, Remote, SendOp, WcStatus};

/// How long a sender waits before each of its receiver-not-ready retries, in microseconds.
const NOT_READY_RETRY_US: u64 = 10_000;
/// A count of retries that means for ever (InfiniBand: the 3-bit field's largest value).
const RETRY_FOR_EVER: u8 = 7;

/// The result of a piece of a request.
enum Outcome {
    Taken,
    /// No receive is posted.
    NotReady,
    /// The request is refused; the peer gets `status`, this side fails with `cause`.
    Refused {
        status: WcStatus,
        cause: String,
    },
    /// The requester's own memory has gone.
    Withdrawn,
}

impl Core {
    /// The memory `rkey` names to the peer of `qp`.
    pub(super) fn remote_span(
        &self,
        qp: u32,
        rkey: RKey,
        range: (u64, u64),
        access: Access,
    ) -> Result<Span, KeyError> {
        let pair = self.pairs.get(&qp).ok_or(KeyError::Unknown(rkey.0))?;
        let host = self.hosts.get(pair.host as usize);
        let host = host.filter(|host| !host.removed);
        let keys = &host.ok_or(KeyError::Unknown(rkey.0))?.keys;
        keys.remote((pair.pd, qp), rkey, range, access)
    }

    pub(super) fn request_arrives(&mut self, segment: Segment) {
        let Some(pair) = self.pairs.get_mut(&segment.to) else {
            return;
        };
        if !pair.connected() || pair.cut {
            return;
        }
        if pair.stalled {
            pair.held_back.push_back(segment);
            return;
        }
        self.serve(segment);
    }

    fn serve(&mut self, segment: Segment) {
        let requester = self.pairs.get_mut(&segment.from);
        // A requester that has failed or gone has withdrawn its requests.
        let requester = requester.filter(|pair| pair.failed.is_none_or(|at| segment.wqe < at));
        let Some(entry) = requester.and_then(|pair| pair.send_entry(segment.wqe).copied()) else {
            return;
        };
        let outcome = match entry.op {
            SendOp::Send { invalidate, .. } => self.serve_send(&segment, &entry, invalidate),
            SendOp::Write(remote) => self.serve_write(&segment, &entry, remote),
            SendOp::Read(remote) => self.serve_read(&segment, &entry, remote),
            SendOp::BindWindow { .. } | SendOp::LocalInvalidate(_) => Outcome::Taken,
        };
        match outcome {
            Outcome::Taken => {}
            Outcome::NotReady => self.stall(segment),
            Outcome::Withdrawn => {
                self.fail_send(segment.from, segment.wqe, WcStatus::LocalProtectionError);
            }
            Outcome::Refused { status, cause } => {
                // The answer leaves before the end of the connection is reported.
                self.answer(&segment, Answer::Refused(status));
                self.fail(segment.to, &cause, true);
            }
        }
    }

    fn answer(&mut self, segment: &Segment, answer: Answer) {
        let Some(pair) = self.pairs.get(&segment.to) else {
            return;
        };
        let at_us = self.arrival_us(pair.response_last_us);
        if let Some(pair) = self.pairs.get_mut(&segment.to) {
            pair.response_last_us = at_us;
        }
        let event = Event::Response {
            to: segment.from,
            from: segment.to,
            wqe: segment.wqe,
            answer,
        };
        self.schedule(at_us, event);
    }

    /// The bytes of the requester that `segment` carries.
    fn carried(&self, segment: &Segment, entry: &SendEntry) -> Option<Vec<Span>> {
        let requester = self.pairs.get(&segment.from)?;
        let range = (segment.offset, segment.len_bytes);
        local_spans(self, requester, &entry.sges, range, Access::empty()).ok()
    }

    fn placed(&mut self, segment: &Segment, entry: &SendEntry) {
        self.note(Traced::Placed {
            qp: segment.from,
            wr_id: entry.wr_id,
            offset: segment.offset,
        });
    }

    fn serve_write(&mut self, segment: &Segment, entry: &SendEntry, remote: Remote) -> Outcome {
        let total = entry.sges.len_bytes();
        if total > 0 {
            // The first piece announces the whole length (InfiniBand's RETH); a key revoked
            // meanwhile stops the later ones.
            let whole = (remote.addr, total);
            let span = self.remote_span(segment.to, remote.rkey, whole, Access::REMOTE_WRITE);
            let span = match span {
                Ok(span) => span,
                Err(error) => return refused("RDMA WRITE", total, remote, &error),
            };
            let Some(bytes) = self.carried(segment, entry) else {
                return Outcome::Withdrawn;
            };
            let addr = remote.addr.saturating_add(segment.offset);
            if let Some(target) = span.part(addr, segment.len_bytes) {
                copy(&bytes, &[target]);
            }
        }
        self.placed(segment, entry);
        if segment.last {
            self.answer(segment, Answer::Ack);
        }
        Outcome::Taken
    }

    fn serve_read(&mut self, segment: &Segment, entry: &SendEntry, remote: Remote) -> Outcome {
        let total = entry.sges.len_bytes();
        let Some(pair) = self.pairs.get_mut(&segment.to) else {
            return Outcome::Taken;
        };
        if pair.reads_served >= pair.agreed.responder_resources {
            let most = pair.agreed.responder_resources;
            return Outcome::Refused {
                status: WcStatus::RemoteInvalidRequestError,
                cause: format!("the peer sent more RDMA READs at once than the {most} agreed on"),
            };
        }
        let bytes = if total > 0 {
            let whole = (remote.addr, total);
            match self.remote_span(segment.to, remote.rkey, whole, Access::REMOTE_READ) {
                Ok(span) => read(&span),
                Err(error) => return refused("RDMA READ", total, remote, &error),
            }
        } else {
            Vec::new()
        };
        if let Some(pair) = self.pairs.get_mut(&segment.to) {
            pair.reads_served += 1;
        }
        let piece_bytes = usize::try_from(self.segment_bytes()).unwrap_or(usize::MAX);
        let pieces = bytes.len().div_ceil(piece_bytes).max(1);
        for piece in 0..pieces {
            let at = piece * piece_bytes;
            let end = bytes.len().min(at + piece_bytes);
            let answer = Answer::Data {
                offset: at as u64,
                bytes: bytes.get(at..end).unwrap_or_default().to_vec(),
                last: piece + 1 == pieces,
            };
            self.answer(segment, answer);
        }
        Outcome::Taken
    }

    fn serve_send(
        &mut self,
        segment: &Segment,
        entry: &SendEntry,
        invalidate: Option<RKey>,
    ) -> Outcome {
        let total = entry.sges.len_bytes();
        if segment.offset == 0 {
            let Some(receive) = self.take_receive(segment.to) else {
                return Outcome::NotReady;
            };
            let room = receive.sges.len_bytes();
            if total > room {
                let status = WcStatus::LocalLengthError;
                self.complete_receive(segment.to, &receive, status, (0, None));
                return Outcome::Refused {
                    status: WcStatus::RemoteInvalidRequestError,
                    cause: format!("the peer sent {total} bytes to a receive of {room}"),
                };
            }
            if let Some(pair) = self.pairs.get_mut(&segment.to) {
                pair.receiving = Some(receive);
            }
        }
        let Some(pair) = self.pairs.get(&segment.to) else {
            return Outcome::Taken;
        };
        let Some(receive) = pair.receiving else {
            return Outcome::Taken;
        };
        let range = (segment.offset, segment.len_bytes);
        // All of the receive is checked, as a device does before it uses it.
        let Ok(sink) = local_spans(self, pair, &receive.sges, range, Access::LOCAL_WRITE) else {
            if let Some(pair) = self.pairs.get_mut(&segment.to) {
                pair.receiving = None;
            }
            let status = WcStatus::LocalProtectionError;
            self.complete_receive(segment.to, &receive, status, (0, None));
            return Outcome::Refused {
                status: WcStatus::RemoteOperationError,
                cause: "a receive names memory it may not write".into(),
            };
        };
        let Some(bytes) = self.carried(segment, entry) else {
            return Outcome::Withdrawn;
        };
        copy(&bytes, &sink);
        self.placed(segment, entry);
        if segment.last {
            return self.receive_done(segment, &receive, total, invalidate);
        }
        Outcome::Taken
    }

    /// The last piece of a message has been placed.
    fn receive_done(
        &mut self,
        segment: &Segment,
        receive: &ReceiveEntry,
        total: u64,
        invalidate: Option<RKey>,
    ) -> Outcome {
        if let Some(rkey) = invalidate {
            let host = self.pairs.get(&segment.to).map_or(0, |pair| pair.host);
            let keys = self.hosts.get_mut(host as usize).map(|host| &mut host.keys);
            let done = keys.map(|keys| keys.invalidate(segment.to, rkey));
            if let Some(Err(error)) = done {
                // The message is not delivered: its receive is flushed.
                return Outcome::Refused {
                    status: WcStatus::RemoteOperationError,
                    cause: format!("the peer may not invalidate what it named: {error}"),
                };
            }
        }
        if let Some(pair) = self.pairs.get_mut(&segment.to) {
            pair.receiving = None;
        }
        self.answer(segment, Answer::Ack);
        let length = u32::try_from(total).unwrap_or(u32::MAX);
        let told = (length, invalidate);
        self.complete_receive(segment.to, receive, WcStatus::Success, told);
        Outcome::Taken
    }

    fn take_receive(&mut self, qp: u32) -> Option<ReceiveEntry> {
        match &mut self.pairs.get_mut(&qp)?.receives {
            Receives::Own { queue, .. } => queue.pop_front(),
            Receives::Shared(srq) => {
                let srq = *srq;
                self.srqs.get_mut(&srq)?.queue.pop_front()
            }
        }
    }

    /// A Send found no receive: it and what follows wait, for as long as the retries last.
    fn stall(&mut self, segment: Segment) {
        let requester = self.pairs.get(&segment.from);
        let retries = requester.map_or(0, |pair| pair.agreed.rnr_retry_count);
        let Some(pair) = self.pairs.get_mut(&segment.to) else {
            return;
        };
        pair.stalled = true;
        pair.stalls += 1;
        pair.held_back.push_front(segment);
        let shared = match pair.receives {
            Receives::Shared(srq) => Some(srq),
            Receives::Own { .. } => None,
        };
        let event = Event::ReceiverNotReady {
            qp: segment.to,
            stall: pair.stalls,
        };
        if let Some(state) = shared.and_then(|srq| self.srqs.get_mut(&srq)) {
            state.waiting.push(segment.to);
        }
        if retries < RETRY_FOR_EVER {
            let at_us = self.now_us + u64::from(retries) * NOT_READY_RETRY_US;
            self.schedule(at_us, event);
        }
    }

    pub(super) fn schedule_receiver_ready(&mut self, qp: u32) {
        let at_us = self.arrival_us(self.now_us);
        self.schedule(at_us, Event::ReceiverReady(qp));
    }

    pub(super) fn receiver_ready(&mut self, qp: u32) {
        let Some(pair) = self.pairs.get_mut(&qp).filter(|pair| pair.stalled) else {
            return;
        };
        pair.stalled = false;
        let waiting = std::mem::take(&mut pair.held_back);
        for segment in waiting {
            // One of them may stall again: the rest then queues up behind it.
            self.request_arrives(segment);
        }
    }

    pub(super) fn receiver_not_ready(&mut self, qp: u32, stall: u64) {
        let Some(pair) = self.pairs.get(&qp) else {
            return;
        };
        if !pair.stalled || pair.stalls != stall || pair.cut {
            return;
        }
        if let Some(&segment) = pair.held_back.front() {
            self.answer(&segment, Answer::Refused(WcStatus::RnrRetryExceededError));
        }
    }
}

fn refused(what: &str, len_bytes: u64, remote: Remote, error: &KeyError) -> Outcome {
    Outcome::Refused {
        status: WcStatus::RemoteAccessError,
        cause: format!(
            "the peer's {what} of {len_bytes} bytes at {:#x} was refused: {error}",
            remote.addr
        ),
    }
}
