//! The requesting side of a queue pair: starts work requests in order and handles the answers.

use super::faults::hits;
use super::keys::{BindRequest, KeyError};
use super::pair::{Pair, Progress, SendEntry, Sges};
use super::span::{Span, write};
use super::state::{Answer, Core, Event, Segment};
use super::trace::Traced;
use crate::contract::{Access, QpState, SendOp, WcStatus};

/// How long requests on a lost connection go unanswered before the requester gives up, in
/// microseconds (InfiniBand: 7 retries of half a second).
const UNANSWERED_US: u64 = 3_500_000;

/// Pieces of `sges` that hold the bytes `offset..offset + len_bytes` of the message.
pub(super) fn local_spans(
    core: &Core,
    pair: &Pair,
    sges: &Sges,
    (offset, len_bytes): (u64, u64),
    access: Access,
) -> Result<Vec<Span>, KeyError> {
    let Some(host) = core.hosts.get(pair.host as usize) else {
        return Ok(Vec::new());
    };
    let (mut skip, mut left) = (offset, len_bytes);
    let mut spans = Vec::with_capacity(sges.as_slice().len());
    // An empty SGE names no memory: devices do not look at its key.
    for sge in sges.as_slice().iter().filter(|sge| sge.len_bytes > 0) {
        let span = host.keys.local(pair.pd, sge, access)?;
        let here = u64::from(sge.len_bytes);
        let at = skip.min(here);
        skip -= at;
        let take = left.min(here - at);
        left -= take;
        if let Some(part) = span
            .part(sge.addr.saturating_add(at), take)
            .filter(|_| take > 0)
        {
            spans.push(part);
        }
    }
    Ok(spans)
}

/// What the sink of an RDMA READ needs.
pub(super) fn read_sink_access(core: &Core, pair: &Pair) -> Access {
    let host = core.hosts.get(pair.host as usize);
    if host.is_some_and(|host| host.attributes.read_sink_needs_remote_write) {
        Access::LOCAL_WRITE | Access::REMOTE_WRITE
    } else {
        Access::LOCAL_WRITE
    }
}

impl Core {
    /// Starts as many work requests as may be started now.
    pub(super) fn start_sends(&mut self, qp: u32) {
        while self.start_next(qp) {}
        self.retire(qp);
    }

    /// Starts the next work request; whether there may be another.
    fn start_next(&mut self, qp: u32) -> bool {
        let Some(pair) = self.pairs.get_mut(&qp) else {
            return false;
        };
        if pair.state != QpState::ReadyToSend || pair.failed.is_some() || pair.start >= pair.rung {
            return false;
        }
        let wqe = pair.start;
        let Some(entry) = pair.send_entry(wqe).copied() else {
            return false;
        };
        let is_read = matches!(entry.op, SendOp::Read(_));
        let depth = pair.agreed.initiator_depth;
        if entry.fence && pair.reads_outstanding > 0
            || is_read && depth > 0 && pair.reads_outstanding >= depth
        {
            return false;
        }
        pair.start += 1;
        let refused = match self.operation_fault() {
            Some(status) => {
                self.note(Traced::Fault {
                    on: u64::from(qp),
                    fault: "queue pair error",
                });
                Some(status)
            }
            None if is_read && depth == 0 => Some(WcStatus::LocalQpOperationError),
            None => self.check_local(qp, &entry),
        };
        let lost = hits(&mut self.rng, self.faults.lost_connections_per_million);
        let progress = match (refused, entry.op) {
            (Some(status), _) => Progress::Failed(status),
            (None, SendOp::BindWindow { .. } | SendOp::LocalInvalidate(_)) => {
                self.execute_local(qp, &entry.op)
            }
            (None, SendOp::Send { .. } | SendOp::Write(_) | SendOp::Read(_)) => Progress::Sent,
        };
        let Some(pair) = self.pairs.get_mut(&qp) else {
            return false;
        };
        if let Some(entry) = pair.send_entry(wqe) {
            entry.progress = progress;
        }
        if matches!(progress, Progress::Failed(_)) {
            pair.failed = Some(wqe);
        }
        if progress == Progress::Sent {
            pair.reads_outstanding += u8::from(is_read);
            self.transmit(qp, wqe, &entry);
        }
        if lost {
            self.lose_both(qp);
        }
        true
    }

    /// Checks lengths and local memory of a request before it starts.
    fn check_local(&self, qp: u32, entry: &SendEntry) -> Option<WcStatus> {
        let pair = self.pairs.get(&qp)?;
        let max = self
            .hosts
            .get(pair.host as usize)?
            .attributes
            .message_bytes_max;
        let len_bytes = entry.sges.len_bytes();
        if len_bytes > u64::from(max) {
            return Some(WcStatus::LocalLengthError);
        }
        let access = match entry.op {
            SendOp::Read(_) => read_sink_access(self, pair),
            _ => Access::empty(),
        };
        let spans = local_spans(self, pair, &entry.sges, (0, len_bytes), access);
        spans.is_err().then_some(WcStatus::LocalProtectionError)
    }

    /// Carries out what concerns this side only.
    fn execute_local(&mut self, qp: u32, op: &SendOp) -> Progress {
        let Some(pair) = self.pairs.get(&qp) else {
            return Progress::Done;
        };
        let (pd, host) = (pair.pd, pair.host as usize);
        let Some(keys) = self.hosts.get_mut(host).map(|host| &mut host.keys) else {
            return Progress::Done;
        };
        let done = match *op {
            SendOp::BindWindow {
                rkey,
                lkey,
                addr,
                len_bytes,
                access,
            } => {
                let request = BindRequest {
                    rkey,
                    lkey,
                    addr,
                    len_bytes,
                    access,
                };
                keys.bind((pd, qp), &request)
            }
            SendOp::LocalInvalidate(rkey) => {
                let done = keys.invalidate(qp, rkey);
                done.map_err(|_| WcStatus::LocalQpOperationError)
            }
            SendOp::Send { .. } | SendOp::Write(_) | SendOp::Read(_) => Ok(()),
        };
        done.map_or_else(Progress::Failed, |()| Progress::Done)
    }

    /// Sends a request, in pieces.
    fn transmit(&mut self, qp: u32, wqe: u64, entry: &SendEntry) {
        let Some(pair) = self.pairs.get(&qp) else {
            return;
        };
        let Some(peer) = pair.peer.filter(|_| !pair.cut) else {
            self.expect_answer(qp);
            return;
        };
        let total = match entry.op {
            SendOp::Read(_) => 0,
            _ => entry.sges.len_bytes(),
        };
        let mut last_us = pair.request_last_us;
        let mut offset = 0;
        loop {
            let len_bytes = (total - offset).min(self.segment_bytes());
            let last = offset + len_bytes == total;
            last_us = self.arrival_us(last_us);
            let segment = Segment {
                from: qp,
                to: peer,
                wqe,
                offset,
                len_bytes,
                last,
            };
            self.schedule(last_us, Event::Request(segment));
            offset += len_bytes;
            if last {
                break;
            }
        }
        if let Some(pair) = self.pairs.get_mut(&qp) {
            pair.request_last_us = last_us;
        }
    }

    pub(super) fn segment_bytes(&self) -> u64 {
        u64::from(self.faults.segment_bytes.max(1))
    }

    /// Gives up, after a while, on requests that a lost connection swallows.
    pub(super) fn expect_answer(&mut self, qp: u32) {
        let Some(pair) = self.pairs.get_mut(&qp) else {
            return;
        };
        let waiting = pair
            .sends
            .iter()
            .any(|entry| entry.progress == Progress::Sent);
        if pair.connected() && waiting && !pair.unanswered {
            pair.unanswered = true;
            self.schedule(self.now_us + UNANSWERED_US, Event::Unanswered(qp));
        }
    }

    pub(super) fn unanswered(&mut self, qp: u32) {
        let cause = "the peer does not answer";
        self.break_head(qp, WcStatus::RetryExceededError, cause);
    }

    /// Cuts a connection off on both sides without notifying either.
    fn lose_both(&mut self, qp: u32) {
        let peer = self.pairs.get(&qp).and_then(|pair| pair.peer);
        for side in [Some(qp), peer].into_iter().flatten() {
            self.lose(side, false);
        }
    }

    pub(super) fn response_arrives(&mut self, to: u32, from: u32, wqe: u64, answer: Answer) {
        let Some(pair) = self.pairs.get_mut(&to) else {
            return;
        };
        if !pair.connected() || pair.cut {
            return;
        }
        let Some(entry) = pair.send_entry(wqe).copied() else {
            return;
        };
        match answer {
            Answer::Ack => self.request_done(to, wqe),
            Answer::Refused(status) => self.fail_send(to, wqe, status),
            Answer::Data {
                offset,
                bytes,
                last,
            } => {
                if let Err(status) = self.place_read(to, &entry, offset, &bytes) {
                    self.fail_send(to, wqe, status);
                    return;
                }
                self.note(Traced::Placed {
                    qp: to,
                    wr_id: entry.wr_id,
                    offset,
                });
                if last {
                    if let Some(responder) = self.pairs.get_mut(&from) {
                        responder.reads_served = responder.reads_served.saturating_sub(1);
                    }
                    if let Some(pair) = self.pairs.get_mut(&to) {
                        pair.reads_outstanding -= 1;
                    }
                    self.request_done(to, wqe);
                }
            }
        }
    }

    fn request_done(&mut self, qp: u32, wqe: u64) {
        let entry = self
            .pairs
            .get_mut(&qp)
            .and_then(|pair| pair.send_entry(wqe));
        if let Some(entry) = entry {
            entry.progress = Progress::Done;
        }
        self.start_sends(qp);
    }

    /// Places a piece of the data of an RDMA READ.
    fn place_read(
        &self,
        qp: u32,
        entry: &SendEntry,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), WcStatus> {
        let Some(pair) = self.pairs.get(&qp) else {
            return Ok(());
        };
        let range = (offset, bytes.len() as u64);
        let access = read_sink_access(self, pair);
        let sink = local_spans(self, pair, &entry.sges, range, access);
        // Its region may have gone since it was posted.
        write(bytes, &sink.map_err(|_| WcStatus::LocalProtectionError)?);
        Ok(())
    }
}
