//! From work completions to finished commands.

use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::status::{Status, StatusCodeType};
use capstan_rdma::contract::{RKey, WcStatus, WorkCompletion};

use super::connection::RESPONSE_BYTES;
use super::engine::{AssociationEngine, Owner, Slot};
use super::request::Piece;
use super::wr_id::{WorkKind, WrId};
use crate::error::{ConnectError, IoError};
use crate::host::SlotIndex;

/// Times one I/O is tried again for a passing status.
const RETRIES_MAX: u8 = 5;
/// The wait before the first of them; it doubles.
const RETRY_DELAY_US: u64 = 50_000;

impl AssociationEngine {
    /// Takes one work completion.
    pub(super) fn handle_wc(&mut self, wc: &WorkCompletion, now_us: u64) {
        let Some(id) = WrId::unpack(wc.wr_id) else {
            return;
        };
        let queue = self.queues.get_mut(usize::from(id.qid));
        let Some(queue) = queue.and_then(Option::as_mut) else {
            // A queue that is being connected has only receives out; their flush says nothing the
            // connection manager does not.
            return;
        };
        if queue.connection.epoch() != id.epoch {
            return;
        }
        match wc.status {
            WcStatus::Success => {}
            WcStatus::WrFlushError => return self.note_flush(id.qid, now_us),
            status => return self.broken(id, status, now_us),
        }
        let slot = SlotIndex(id.value);
        match id.kind {
            WorkKind::Recv => self.response(id.qid, id.value, wc, now_us),
            WorkKind::Send => queue.connection.retire(),
            WorkKind::SendData => {
                queue.connection.retire();
                self.awaited(id.qid, slot, now_us, |slot| slot.await_send = false);
            }
            WorkKind::Invalidate => {
                queue.connection.retire();
                self.awaited(id.qid, slot, now_us, |slot| slot.await_invalidate = false);
            }
        }
    }

    /// A work request failed: the queue pair is in the error state.
    fn broken(&mut self, id: WrId, status: WcStatus, now_us: u64) {
        let what = match id.kind {
            WorkKind::Recv => "receiving a response",
            WorkKind::Send | WorkKind::SendData => "sending a command",
            WorkKind::Invalidate => "closing a memory window",
        };
        // The provider knows more of the cause than the status tells.
        self.poll_cm(now_us);
        let cause = format!("{what}: {status}");
        self.host.handle_disconnected(id.qid, cause, now_us);
    }

    fn response(&mut self, qid: u16, index: u16, wc: &WorkCompletion, now_us: u64) {
        let Some(queue) = self
            .queues
            .get_mut(usize::from(qid))
            .and_then(Option::as_mut)
        else {
            return;
        };
        let cqe = match queue.connection.take_response(index) {
            Ok(cqe) => cqe,
            Err(error) => {
                let cause = format!("posting a receive again: {error}");
                return self.host.handle_disconnected(qid, cause, now_us);
            }
        };
        if wc.byte_len != RESPONSE_BYTES {
            let what = format!(
                "a response capsule has {} bytes, expected {RESPONSE_BYTES}",
                wc.byte_len
            );
            return self
                .host
                .handle_broken(ConnectError::Protocol { qid, what }, now_us);
        }
        let slot = match self.host.take_response(qid, &cqe, now_us) {
            Ok(slot) => slot,
            Err(error) => {
                // Bounded: the host gives the connection up after a few dozen.
                tracing::warn!(qid, cid = cqe.cid.get(), "dropped a response: {error}");
                return;
            }
        };
        // The answer to a Keep Alive does not make the next one superfluous.
        self.traffic |= matches!(
            self.line_slot(qid, slot).map(|slot| &slot.owner),
            Some(Owner::Io(_) | Owner::Passthru { .. })
        );
        self.answered(qid, slot, &cqe, wc.invalidated, now_us);
    }

    /// A command was answered: its window closes now, if the controller did not close it.
    fn answered(
        &mut self,
        qid: u16,
        slot: SlotIndex,
        cqe: &Cqe,
        invalidated: Option<RKey>,
        now_us: u64,
    ) {
        let Some(queue) = self
            .queues
            .get_mut(usize::from(qid))
            .and_then(Option::as_mut)
        else {
            return;
        };
        let Some(entry) = queue.slots.get_mut(slot.index()) else {
            return;
        };
        entry.cqe = *cqe;
        entry.await_response = false;
        if let Some(rkey) = entry.window.take() {
            if invalidated == Some(rkey) {
                self.windows_closed.by_controller += 1;
                queue.connection.window_closed_by_peer();
            } else {
                self.windows_closed.by_host += 1;
                entry.await_invalidate = true;
                if let Err(error) = queue.connection.close_window(slot, rkey) {
                    let cause = format!("closing a memory window: {error}");
                    return self.host.handle_disconnected(qid, cause, now_us);
                }
            }
        }
        self.finish_if_done(qid, slot, now_us);
    }

    fn awaited(&mut self, qid: u16, slot: SlotIndex, now_us: u64, note: impl FnOnce(&mut Slot)) {
        if let Some(entry) = self.line_slot(qid, slot) {
            note(entry);
            self.finish_if_done(qid, slot, now_us);
        }
    }

    /// Hands a command back to its owner once nothing else can touch its memory.
    fn finish_if_done(&mut self, qid: u16, slot: SlotIndex, now_us: u64) {
        let Some(entry) = self.line_slot(qid, slot) else {
            return;
        };
        if entry.await_response || entry.await_send || entry.await_invalidate {
            return;
        }
        let cqe = entry.cqe;
        match std::mem::replace(&mut entry.owner, Owner::Free) {
            Owner::Free => {}
            Owner::Host { data, read_bytes } => {
                let bytes = self.read_out(data.as_ref(), read_bytes);
                // The buffer is free before the host wants the next one.
                drop(data);
                self.host.handle_completion(qid, slot, &cqe, &bytes, now_us);
                self.give_scratch(bytes);
            }
            Owner::Io(piece) => {
                self.host.release(qid, slot);
                self.finish_io(piece, &cqe, now_us);
            }
            Owner::Passthru {
                token,
                data,
                read_bytes,
                ..
            } => {
                self.host.release(qid, slot);
                self.passthru_answered(token, cqe, data.as_ref(), read_bytes);
            }
        }
    }

    fn finish_io(&mut self, piece: Piece, cqe: &Cqe, now_us: u64) {
        let status = cqe.status();
        if !status.is_success()
            && is_passing(status)
            && let Some(request) = self.requests.get_mut(piece.request)
            && request.retries < RETRIES_MAX
        {
            let delay_us = RETRY_DELAY_US << request.retries;
            request.retries += 1;
            self.delayed.push((now_us + delay_us, piece));
            return;
        }
        let result = self.outcome(piece, cqe);
        if result.is_err() {
            self.note_outcome(piece, Some(status), now_us);
        } else if self.note_all {
            self.note_done(piece, now_us);
        }
        self.requests.finish(piece.request, result);
    }

    /// The outcome of an answered piece.
    pub(super) fn outcome(&self, piece: Piece, cqe: &Cqe) -> Result<(), IoError> {
        let status = cqe.status();
        if status.is_success() {
            return Ok(());
        }
        let Some(request) = self.requests.get(piece.request) else {
            return Ok(());
        };
        let (slba, _) = request.io.op.range();
        Err(IoError::Status {
            opcode: request.io.op.opcode(),
            nsid: request.io.nsid,
            slba: slba + u64::from(piece.first_lba),
            nlb: piece.nlb,
            status,
        })
    }

    /// Puts pieces whose wait is over back in line.
    pub(super) fn send_delayed(&mut self, now_us: u64) {
        let mut at = 0;
        while let Some(&(due_us, piece)) = self.delayed.get(at) {
            if now_us >= due_us {
                self.delayed.swap_remove(at);
                self.requests.put_back(piece);
            } else {
                at += 1;
            }
        }
    }

    /// Gives the connection up when the controller has not answered an I/O in time.
    pub(super) fn check_stale(&mut self, now_us: u64) {
        let timeout_us = self.config.io_timeout_us;
        let oldest_us = self
            .queues
            .iter()
            .flatten()
            .flat_map(|queue| &*queue.slots)
            .filter(|slot| matches!(slot.owner, Owner::Io(_) | Owner::Passthru { .. }))
            .map(|slot| slot.sent_us)
            .min();
        if let Some(oldest_us) = oldest_us
            && now_us.saturating_sub(oldest_us) > timeout_us
        {
            let cause = ConnectError::Timeout {
                step: "an I/O command",
                waited_ms: now_us.saturating_sub(oldest_us) / 1000,
                next: "the target or its storage hangs; see its log",
            };
            self.host.handle_broken(cause, now_us);
        }
    }
}

/// Whether the same command may succeed a little later (NVMe Base 2.1, section 4.2.3: without Do
/// Not Retry, and for a reason that passes by itself).
fn is_passing(status: Status) -> bool {
    if status.is_dnr() {
        return false;
    }
    matches!(
        status.code(),
        Status::NAMESPACE_NOT_READY
            | Status::COMMAND_INTERRUPTED
            | Status::TRANSIENT_TRANSPORT_ERROR
            | Status::ABORT_REQUESTED
            | Status::ABORTED_SQ_DELETION
    ) || status.sct() == StatusCodeType::PATH
}

#[cfg(test)]
mod tests {
    use capstan_nvme_proto::status::Status;

    use super::is_passing;

    #[test]
    fn only_what_passes_by_itself_is_tried_again() {
        assert!(is_passing(Status::NAMESPACE_NOT_READY));
        assert!(is_passing(Status::ASYMMETRIC_ACCESS_TRANSITION));
        assert!(!is_passing(Status::NAMESPACE_NOT_READY.dnr()));
        assert!(!is_passing(Status::LBA_OUT_OF_RANGE));
        assert!(!is_passing(Status::UNRECOVERED_READ_ERROR));
    }
}
