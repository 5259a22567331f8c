//! Commands that the controller has failed, kept for a person: the program that submitted them has
//! the error, but a file system makes "Input/output error" of it.

use capstan_nvme_proto::status::Status;

use super::io::Op;
use crate::limits::{TROUBLE_QUIET_US, TROUBLES_MAX};

/// What fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// What was acknowledged before may be lost. It stays so when a later Flush succeeds.
    Flush,
    Write,
    Read,
}

impl Kind {
    /// Of a command that failed with `status`; `None` where that is an answer as good as another.
    pub(super) fn of(op: &Op, status: Status) -> Option<Self> {
        match op {
            Op::Flush => Some(Self::Flush),
            Op::Write { fua: true, .. } | Op::WriteZeroes { fua: true, .. }
                if status.code() == Status::WRITE_FAULT =>
            {
                Some(Self::Flush)
            }
            Op::Write { .. } | Op::WriteZeroes { .. } | Op::Discard { .. } => Some(Self::Write),
            Op::Read { .. } | Op::Verify { .. } => Some(Self::Read),
            Op::Compare { .. } => None,
        }
    }
}

/// Commands of one kind that fail with one status; those of a failed Flush with any.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trouble {
    pub(super) nsid: u32,
    pub(super) kind: Kind,
    /// Of the last of them.
    pub(super) status: Status,
    pub(super) count: u64,
    last_us: u64,
    /// None of the kind has succeeded since.
    goes_on: bool,
    /// The log has it, and not yet that it is over.
    is_said: bool,
    said_us: Option<u64>,
}

/// By namespace, kind and status.
#[derive(Debug, Default)]
pub(super) struct Troubles(Vec<Trouble>);

impl Troubles {
    /// A command failed: what to say of it, when that is new.
    pub(super) fn failed(
        &mut self,
        nsid: u32,
        kind: Kind,
        status: Status,
        now_us: u64,
    ) -> Option<Trouble> {
        let is_same = |old: &Trouble| {
            let as_before = kind == Kind::Flush || old.status.code() == status.code();
            old.nsid == nsid && old.kind == kind && as_before
        };
        let at = self.0.iter().position(is_same).unwrap_or_else(|| {
            self.make_room();
            self.0.push(Trouble {
                nsid,
                kind,
                status,
                count: 0,
                last_us: now_us,
                goes_on: true,
                is_said: false,
                said_us: None,
            });
            self.0.len() - 1
        });
        let trouble = self.0.get_mut(at)?;
        trouble.status = status;
        trouble.count += 1;
        trouble.last_us = now_us;
        trouble.goes_on = true;
        let rests = |said_us: u64| now_us.saturating_sub(said_us) < TROUBLE_QUIET_US;
        if trouble.is_said || trouble.said_us.is_some_and(rests) {
            return None;
        }
        trouble.is_said = true;
        trouble.said_us = Some(now_us);
        Some(*trouble)
    }

    /// A command of `kind` succeeded: whether the log has said that they fail.
    pub(super) fn succeeded(&mut self, nsid: u32, kind: Kind) -> bool {
        let mut was_said = false;
        for trouble in &mut self.0 {
            if trouble.nsid == nsid && trouble.kind == kind && trouble.goes_on {
                trouble.goes_on = false;
                // That a Flush failed once is said once.
                if kind != Kind::Flush {
                    was_said |= std::mem::take(&mut trouble.is_said);
                }
            }
        }
        was_said
    }

    /// Whether a success would be news.
    pub(super) fn go_on(&self) -> bool {
        self.0.iter().any(|trouble| trouble.goes_on)
    }

    /// A Flush of the namespace that has failed.
    pub(super) fn failed_flush(&self, nsid: u32) -> Option<Trouble> {
        let is_flush = |t: &&Trouble| t.nsid == nsid && t.kind == Kind::Flush;
        self.0.iter().find(is_flush).copied()
    }

    /// Writes and reads of the namespace that fail, or did until a moment ago.
    pub(super) fn of(&self, nsid: u32, now_us: u64) -> impl Iterator<Item = &Trouble> {
        self.0.iter().filter(move |trouble| {
            let is_fresh = now_us.saturating_sub(trouble.last_us) < TROUBLE_QUIET_US;
            trouble.nsid == nsid && trouble.kind != Kind::Flush && (trouble.goes_on || is_fresh)
        })
    }

    pub(super) fn nsids(&self) -> impl Iterator<Item = u32> {
        self.0.iter().map(|trouble| trouble.nsid)
    }

    /// Forgets the oldest where there are many. A Flush is not: there is one of each namespace.
    fn make_room(&mut self) {
        let others = self.0.iter().enumerate();
        let others: Vec<_> = others.filter(|(_, t)| t.kind != Kind::Flush).collect();
        if others.len() >= TROUBLES_MAX
            && let Some((oldest, _)) = others.into_iter().min_by_key(|(_, t)| t.last_us)
        {
            self.0.swap_remove(oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use capstan_nvme_proto::status::Status;

    use super::{Kind, Troubles};
    use crate::limits::{TROUBLE_QUIET_US, TROUBLES_MAX};

    const NO_ROOM: Status = Status::CAPACITY_EXCEEDED;

    #[test]
    fn what_comes_and_goes_is_said_now_and_then() {
        let mut troubles = Troubles::default();
        let mut said = 0;
        let end_us = 10 * TROUBLE_QUIET_US;
        for now_us in (0..end_us).step_by(100_000) {
            said += u32::from(troubles.failed(1, Kind::Write, NO_ROOM, now_us).is_some());
            troubles.succeeded(1, Kind::Write);
            assert_eq!(troubles.of(1, now_us).count(), 1);
        }
        assert_eq!(said, 10);
        assert_eq!(troubles.of(1, end_us + TROUBLE_QUIET_US).count(), 0);
        assert_eq!(troubles.of(2, 0).count(), 0);
    }

    #[test]
    fn what_lasts_is_said_once_and_its_end_too() {
        let mut troubles = Troubles::default();
        assert!(troubles.failed(1, Kind::Read, NO_ROOM, 0).is_some());
        let later_us = 5 * TROUBLE_QUIET_US;
        assert!(troubles.failed(1, Kind::Read, NO_ROOM, later_us).is_none());
        assert!(!troubles.succeeded(1, Kind::Write));
        assert!(troubles.go_on());
        assert!(troubles.succeeded(1, Kind::Read));
        assert!(!troubles.succeeded(1, Kind::Read));
        assert!(!troubles.go_on());
    }

    #[test]
    fn a_failed_flush_is_never_forgotten() {
        let mut troubles = Troubles::default();
        assert!(
            troubles
                .failed(1, Kind::Flush, Status::WRITE_FAULT, 0)
                .is_some()
        );
        troubles.succeeded(1, Kind::Flush);
        for code in 0..=u8::MAX {
            let status = Status::new(Status::WRITE_FAULT.sct(), code);
            troubles.failed(1, Kind::Write, status, code.into());
            assert!(troubles.failed(1, Kind::Flush, status, u64::MAX).is_none());
        }
        assert_eq!(troubles.failed_flush(1).unwrap().count, 257);
        assert_eq!(troubles.of(1, 300).count(), TROUBLES_MAX);
    }
}
