//! What is issued again after a loss, when, and what is not.
//!
//! The host state machine says how long nothing that changes media may be sent; this holds it.
//! Reads go on meanwhile: they change nothing, and a write that is held has not been acknowledged,
//! so they may find what was there before. So does Flush: what it covers has been answered.

use capstan_nvme_proto::opcode::IoOpcode;

use super::engine::AssociationEngine;
use super::io::{Io, Op};
use super::request::Piece;
use crate::error::IoError;
use crate::host::Event;
use crate::limits::UNKNOWN_RANGES_MAX;
use crate::names::Name;
use crate::options::ReplayWrites;
use crate::words::Count;

/// Blocks whose last write has an unknown outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UnknownRange {
    nsid: u32,
    slba: u64,
    end: u64,
}

impl Op {
    /// Whether it changes what is on the medium.
    pub(super) fn changes_media(&self) -> bool {
        match self {
            Self::Write { .. } | Self::WriteZeroes { .. } | Self::Discard { .. } => true,
            Self::Read { .. } | Self::Compare { .. } | Self::Flush | Self::Verify { .. } => false,
        }
    }
}

/// Whether a command that is sent as it is may change something, as far as its opcode tells.
pub(super) fn may_change(opcode: IoOpcode) -> bool {
    !matches!(
        opcode,
        IoOpcode::READ
            | IoOpcode::COMPARE
            | IoOpcode::FLUSH
            | IoOpcode::VERIFY
            | IoOpcode::RESERVATION_REPORT
    )
}

impl AssociationEngine {
    /// A piece was sent and not answered when its connection was given up. `true` when it may have
    /// changed something, or may still.
    pub(super) fn left_unanswered(&mut self, piece: Piece) -> bool {
        let losses = self.losses;
        let Some(request) = self.requests.get_mut(piece.request) else {
            return false;
        };
        let changes = request.io.op.changes_media();
        if request.last_loss != losses {
            request.last_loss = losses;
            request.replays += 1;
        }
        let replays = request.replays;
        if replays > super::open::REPLAYS_MAX {
            let cause = self.host.lost_cause();
            let error = IoError::Replays { replays, cause };
            tracing::error!("an I/O: {error}");
            self.requests.finish(piece.request, Err(error));
        } else if changes && self.config.host.replay_writes == ReplayWrites::Fenced {
            self.requests.leave_unanswered(piece);
        } else {
            self.requests.put_back(piece);
        }
        changes
    }

    /// Every connection has been given up. `unanswered`: commands were sent that change media, and
    /// not answered.
    pub(super) fn given_up(&mut self, unanswered: bool, now_us: u64) {
        self.host.handle_given_up(unanswered, now_us);
        if !self.host.holds_writes() {
            self.requests.release();
        }
        self.look_again();
    }

    /// Notes whether I/O needs a look before it is sent.
    fn look_again(&mut self) {
        self.careful =
            self.host.holds_writes() || !self.unknown.is_empty() || self.unflushed.has_lost();
    }

    /// Looks at an I/O before it is sent, in the times that need it: `true` when it is not to be
    /// sent now.
    #[cold]
    pub(super) fn is_kept_back(&mut self, io: &Io, now_us: u64) -> bool {
        if io.op == Op::Flush {
            let Some(since_us) = self.unflushed.take_lost(io.nsid) else {
                return false;
            };
            self.look_again();
            let error = IoError::WritesLost {
                nsid: io.nsid,
                acknowledged_s: now_us.saturating_sub(since_us) / 1_000_000,
            };
            tracing::error!("{error}");
            self.fail_next(error);
            return true;
        }
        if !io.op.changes_media() {
            return false;
        }
        if self.host.holds_writes() {
            self.requests.hold_next();
            return true;
        }
        let (slba, nlb) = io.op.range();
        let end = slba.saturating_add(nlb.into());
        let overlaps =
            |range: &UnknownRange| range.nsid == io.nsid && range.slba < end && slba < range.end;
        let unknown = self.unknown.iter().any(overlaps);
        if unknown {
            self.fail_next(IoError::OutcomeUnknown {
                opcode: io.op.opcode(),
                nsid: io.nsid,
                slba,
                nlb,
                why: "an earlier write there was never answered",
            });
        }
        unknown
    }

    /// Fails the I/O whose piece would be sent next.
    fn fail_next(&mut self, error: IoError) {
        if let Some(piece) = self.requests.next_piece(u32::MAX) {
            self.requests.finish(piece.request, Err(error));
        }
    }

    /// Acts on what the host tells.
    pub(super) fn heard(&mut self, event: &Event) {
        match event {
            Event::Live { .. } => self.went_live(),
            Event::WritesReleased => {
                self.requests.release();
                self.look_again();
            }
            Event::WritesUnknown { why } => self.outcome_unknown(why),
            Event::NotSaved => self.note_not_saved(),
            _ => {}
        }
    }

    /// Looks whether the target's machine is the one it was: what was acknowledged and not flushed
    /// is gone with it.
    fn went_live(&mut self) {
        let controller = self.host.controller();
        let boot_id = controller.boot_id;
        self.caches_writes = controller.volatile_write_cache;
        self.note_all = self.caches_writes || self.troubles.go_on();
        if boot_id.is_some() && self.boot_id.is_some() && boot_id != self.boot_id {
            for nsid in self.unflushed.lose() {
                tracing::error!(
                    nsid,
                    "the target's machine was started anew: acknowledged writes that were not flushed may be lost"
                );
            }
        }
        self.boot_id = boot_id.or(self.boot_id);
        self.look_again();
        let again = self.requests.writes_sent_again();
        if again > 0 && self.config.host.replay_writes == ReplayWrites::Immediate {
            tracing::warn!(
                "{}, sent and not answered, that would change media: sent again at once, as {} asks; \
                 an old copy may undo what is written there later",
                Count(u64::try_from(again).unwrap_or(u64::MAX), "command"),
                Name::ReplayImmediate
            );
        }
    }

    /// It is not known what became of commands that were not answered.
    fn outcome_unknown(&mut self, why: &'static str) {
        while let Some(piece) = self.requests.take_unanswered() {
            let Some(request) = self.requests.get(piece.request) else {
                continue;
            };
            let io = request.io;
            let slba = io.op.range().0 + u64::from(piece.first_lba);
            let error = IoError::OutcomeUnknown {
                opcode: io.op.opcode(),
                nsid: io.nsid,
                slba,
                nlb: piece.nlb,
                why,
            };
            tracing::error!("{error}");
            self.note_unknown(UnknownRange {
                nsid: io.nsid,
                slba,
                end: slba.saturating_add(piece.nlb.into()),
            });
            self.requests.finish(piece.request, Err(error));
        }
        self.requests.release();
        self.look_again();
    }

    /// Ranges of a namespace that are not written any more.
    pub(super) fn unknown_ranges(&self, nsid: u32) -> usize {
        let ranges = self.unknown.iter();
        ranges.filter(|range| range.nsid == nsid).count()
    }

    /// Their namespaces.
    pub(super) fn unknown_nsids(&self) -> impl Iterator<Item = u32> {
        self.unknown.iter().map(|range| range.nsid)
    }

    fn note_unknown(&mut self, range: UnknownRange) {
        if self.unknown.len() >= UNKNOWN_RANGES_MAX {
            // One range over all of the namespace's: more is refused than needs be.
            let mut all = range;
            self.unknown.retain(|other| {
                let same = other.nsid == all.nsid;
                if same {
                    all.slba = all.slba.min(other.slba);
                    all.end = all.end.max(other.end);
                }
                !same
            });
            self.unknown.push(all);
        } else {
            self.unknown.push(range);
        }
    }

    /// A piece was carried out.
    pub(super) fn note_done(&mut self, piece: Piece, now_us: u64) {
        if self.troubles.go_on() {
            self.note_outcome(piece, None, now_us);
        }
        let Some(request) = self
            .requests
            .get(piece.request)
            .filter(|_| self.caches_writes)
        else {
            return;
        };
        let nsid = request.io.nsid;
        match request.io.op {
            Op::Flush => self.unflushed.flushed(nsid, request.sequence()),
            // On stable media when it is answered.
            Op::Write { fua: true, .. } | Op::WriteZeroes { fua: true, .. } => {}
            Op::Write { .. } | Op::WriteZeroes { .. } | Op::Discard { .. } => {
                let next = self.requests.next_sequence();
                self.unflushed.acknowledged(nsid, next, now_us);
            }
            Op::Read { .. } | Op::Compare { .. } | Op::Verify { .. } => {}
        }
    }
}
