//! What a person has to know of a namespace that is in use, and of what it has lost in the end.

use capstan_nvme_proto::status::Status;

use super::engine::AssociationEngine;
use super::io::Op;
use super::request::Piece;
use super::troubles::{Kind, Trouble};
use crate::error::{Losses, next_step};
use crate::host::AssociationStatus;
use crate::names::Name;
use crate::words::Count;

/// What to do about writes that may be lost.
const LOST: &str = "see the target's log and `capstan-target doctor` there, and check what is on the volume or restore it";

impl AssociationEngine {
    /// Why all I/O to a namespace that was there is refused, with what to do; `None` when it is
    /// not.
    pub(crate) fn refusal(&self, nsid: u32) -> Option<String> {
        let mut rest = self.host.unidentified().iter();
        let unidentified = rest.find(|unidentified| unidentified.nsid == nsid);
        let text = match self.namespace(nsid) {
            Some(namespace) => namespace.unusable.as_ref()?.to_error(nsid).to_string(),
            None if let Some(unidentified) = unidentified => {
                format!("{unidentified}; see the target's log")
            }
            None if self.host.has_seen(nsid) => format!(
                "namespace {nsid} is gone from the controller; put it back on the target, or unmount and detach"
            ),
            None => return None,
        };
        Some(format!("refused: {text}"))
    }

    /// What was cut off a namespace, and what to do about it; `None` when nothing was.
    pub(crate) fn shrunk(&self, nsid: u32) -> Option<String> {
        let namespace = self.namespace(nsid).filter(|n| n.unusable.is_none())?;
        let (bytes, had_bytes) = (namespace.size_bytes(), self.host.largest_seen(nsid)?);
        (bytes < had_bytes).then(|| {
            format!(
                "namespace {nsid} was cut from {had_bytes} to {bytes} bytes on the target: I/O behind that fails. Have it made \
                 as long as it was there, then check or restore what is on it, or unmount, detach and attach it anew"
            )
        })
    }

    /// What is wrong with a namespace though its controller may be live, with what to do; `None`
    /// when nothing is.
    pub(crate) fn attention(&self, nsid: u32, now_us: u64) -> Option<String> {
        let failed = matches!(self.status(now_us), AssociationStatus::Failed(_)).then(|| {
            format!(
                "all I/O to namespace {nsid} fails, as the association has failed: connect anew: {}",
                Name::ConnectAnew
            )
        });
        let troubles = self.troubles.of(nsid, now_us).map(Trouble::to_string);
        let texts: Vec<_> = [self.refusal(nsid), failed, self.shrunk(nsid)]
            .into_iter()
            .flatten()
            .chain(self.losses_of(nsid))
            .chain(troubles)
            .collect();
        (!texts.is_empty()).then(|| texts.join("; "))
    }

    /// What was written and may not be on the medium.
    pub(crate) fn losses(&self) -> Losses {
        let nsids = self.nsids().into_iter();
        Losses(nsids.flat_map(|nsid| self.losses_of(nsid)).collect())
    }

    /// Namespaces that have lost something, and perhaps others.
    fn nsids(&self) -> Vec<u32> {
        let mut nsids: Vec<u32> = (self.unflushed.nsids())
            .chain(self.unknown_nsids())
            .chain(self.troubles.nsids())
            .chain(self.unanswered.iter().map(|(nsid, _)| *nsid))
            .collect();
        nsids.sort_unstable();
        nsids.dedup();
        nsids
    }

    fn losses_of(&self, nsid: u32) -> Vec<String> {
        let ranges = self.unknown_ranges(nsid);
        let unknown = (ranges > 0).then(|| {
            format!(
                "writes to namespace {nsid} were never answered: those of the same blocks ({}, see the log) are \
                 refused until it is attached anew",
                Count(u64::try_from(ranges).unwrap_or(u64::MAX), "range")
            )
        });
        let lost = self.unflushed.has_ever_lost(nsid).then(|| {
            format!(
                "acknowledged writes to namespace {nsid} may be lost, as the target's machine was started anew before \
                 they were flushed: check what is there, then attach it anew"
            )
        });
        let flush = self.troubles.failed_flush(nsid);
        let flush = flush.map(|trouble| trouble.to_string());
        let texts = [unknown, lost, flush].into_iter().flatten();
        texts.chain(self.losses_of_the_end(nsid)).collect()
    }

    /// What the end of a controller, or of the association, has lost.
    fn losses_of_the_end(&self, nsid: u32) -> impl Iterator<Item = String> {
        let unanswered = self.unanswered.iter().find(|(of, _)| *of == nsid);
        let unanswered = unanswered.map(|(_, count)| {
            format!(
                "{} to namespace {nsid}, sent and never answered, may have been carried out or not: check what is there",
                Count(u64::try_from(*count).unwrap_or(u64::MAX), "write")
            )
        });
        // A failed Flush says the same of them.
        let flush = self.troubles.failed_flush(nsid);
        let unsaved = flush.is_none().then(|| self.unsaved(nsid)).flatten();
        [unanswered, unsaved].into_iter().flatten()
    }

    pub(super) fn log_losses_of_the_end(&self) {
        for text in self
            .nsids()
            .into_iter()
            .flat_map(|n| self.losses_of_the_end(n))
        {
            tracing::error!("{text}");
        }
    }

    /// Acknowledged writes that the end of the controller has not saved.
    fn unsaved(&self, nsid: u32) -> Option<String> {
        if self.unflushed.is_not_saved(nsid) {
            return Some(format!(
                "acknowledged writes to namespace {nsid} may be lost: the controller could not save everything \
                 when it was shut down (CSTS.CFS); {LOST}"
            ));
        }
        let over = matches!(
            self.status(0),
            AssociationStatus::Closed | AssociationStatus::Failed(_)
        );
        if !over || !self.unflushed.is_dirty(nsid) {
            return None;
        }
        // The shutdown of a controller covers the namespaces that it has.
        let is_there = self.namespace(nsid).is_some_and(|n| n.unusable.is_none());
        if !is_there {
            return Some(format!(
                "acknowledged writes to namespace {nsid} may be lost: it was taken out of the subsystem, or another one was \
                 put in its place, before they were flushed, and no shutdown covers it; {LOST}"
            ));
        }
        (!self.host.has_ended_in_order()).then(|| {
            format!(
                "whether all acknowledged writes to namespace {nsid} are on the medium is unknown: the association \
                 ended without a shutdown of the controller; {} makes them durable, unless the target's \
                 machine was started anew meanwhile: then check what is there",
                Name::Flush
            )
        })
    }

    /// Of commands that fail; their submitter tells them.
    pub(crate) fn log_no_failures(&mut self) {
        self.logs_failures = false;
    }

    /// A piece failed for good, or succeeded in a time when others fail.
    #[cold]
    pub(super) fn note_outcome(&mut self, piece: Piece, failure: Option<Status>, now_us: u64) {
        let Some(request) = self.requests.get(piece.request) else {
            return;
        };
        let (nsid, op) = (request.io.nsid, request.io.op);
        match failure {
            Some(status) => {
                if let Some(kind) = Kind::of(&op, status)
                    && let Some(trouble) = self.troubles.failed(nsid, kind, status, now_us)
                    && self.logs_failures
                {
                    tracing::error!("{trouble}");
                }
            }
            None => self.note_success(nsid, &op),
        }
        self.note_all = self.caches_writes || self.troubles.go_on();
    }

    fn note_success(&mut self, nsid: u32, op: &Op) {
        let kind = match op {
            Op::Flush => Kind::Flush,
            op if op.changes_media() => Kind::Write,
            _ => Kind::Read,
        };
        if self.troubles.succeeded(nsid, kind) {
            let what = kind.of_namespace();
            tracing::info!("{what} namespace {nsid} succeed again");
        }
    }

    /// The controller could not save everything when it was shut down.
    pub(super) fn note_not_saved(&mut self) {
        self.unflushed.not_saved();
        // The end of the association tells it again, to its caller.
        if !self.host.is_shutting_down() {
            self.log_losses_of_the_end();
        }
    }

    /// The association is over: what it leaves behind.
    pub(super) fn note_the_end(&mut self) {
        self.unanswered = self.requests.unanswered_writes();
    }
}

impl Kind {
    fn of_namespace(self) -> &'static str {
        match self {
            Self::Flush => "Flush commands of",
            Self::Write => "writes to",
            Self::Read => "reads of",
        }
    }
}

impl std::fmt::Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            nsid,
            kind,
            status,
            count,
            ..
        } = self;
        if *kind == Kind::Flush {
            return write!(
                f,
                "acknowledged writes to namespace {nsid} may be lost: a Flush failed with {status}; {LOST}"
            );
        }
        write!(
            f,
            "{} namespace {nsid} fail with {status}",
            kind.of_namespace()
        )?;
        if *count > 1 {
            write!(f, ", {count} so far")?;
        }
        match next_step(*status) {
            Some(step) => write!(f, "; {step}"),
            None => f.write_str("; see the target's log"),
        }
    }
}
