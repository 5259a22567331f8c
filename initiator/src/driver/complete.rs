//! From responses to finished commands.

use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::status::{Status, StatusCodeType};
use capstan_transport::host::Response;

use super::engine::{AssociationEngine, Owner};
use super::request::Piece;
use crate::error::{ConnectError, IoError};
use crate::host::SlotIndex;

/// Times one I/O is tried again for a passing status.
const RETRIES_MAX: u8 = 5;
/// The wait before the first of them; it doubles.
const RETRY_DELAY_US: u64 = 50_000;

impl AssociationEngine {
    /// A response has come. The command is finished once its memory is back.
    #[inline]
    pub(super) fn response(&mut self, qid: u16, response: &Response, now_us: u64) {
        if self.host.closes_next() {
            // It came with the end of another queue. All are given up, and the host has forgotten
            // its commands: this one counts as unanswered.
            return;
        }
        let cqe = &response.cqe;
        let slot = match self.host.take_response(qid, cqe, now_us) {
            Ok(slot) => slot,
            Err(error) => {
                // Bounded: the host gives the connection up after a few dozen.
                tracing::warn!(qid, cid = cqe.cid.get(), "dropped a response: {error}");
                return;
            }
        };
        let is_corrupt = response.is_corrupt;
        if is_corrupt || cqe.status().code() == Status::TRANSIENT_TRANSPORT_ERROR {
            self.corruption.note(is_corrupt, qid, now_us);
        }
        let Some(entry) = self.line_slot(qid, slot) else {
            return;
        };
        entry.cqe = *cqe;
        entry.await_response = false;
        // The answer to a Keep Alive does not make the next one superfluous.
        if matches!(entry.owner, Owner::Io(_) | Owner::Passthru { .. }) {
            let sent_us = entry.sent_us;
            self.answered_sent_us = self.answered_sent_us.max(sent_us);
        }
        match self.wire.answered(qid, slot.0, response) {
            Ok(true) => self.finish(qid, slot, now_us),
            Ok(false) => {}
            Err(error) => {
                let cause = format!("closing a memory window: {error}");
                self.host.handle_disconnected(qid, cause, now_us);
            }
        }
    }

    /// Hands an answered command back to its owner: nothing else can touch its memory any more.
    pub(super) fn finish(&mut self, qid: u16, slot: SlotIndex, now_us: u64) {
        let Some(entry) = self.line_slot(qid, slot) else {
            return;
        };
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
            .flatten()
            .filter(|slot| matches!(slot.owner, Owner::Io(_) | Owner::Passthru { .. }))
            .map(|slot| slot.sent_us)
            .min();
        if let Some(oldest_us) = oldest_us
            && now_us.saturating_sub(oldest_us) > timeout_us
        {
            let cause = ConnectError::Timeout {
                step: "an I/O command",
                waited_ms: now_us.saturating_sub(oldest_us) / 1000,
                next: "the target or its storage hangs; see its log".to_owned(),
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
