//! What an Admin queue and an I/O queue have in common: which commands are outstanding, and what
//! the submission queue head says about it.
//!
//! A command that was accepted has a [`Permit`]. Only a permit makes a completion, it is used up
//! by that, and it cannot be copied: one completion per command by construction.

mod cid_table;

use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::status::Status;

use crate::ConnId;
use cid_table::{CidTable, InsertError};

/// The right, and the duty, to complete one command, once.
///
/// Given up with [`IoQueue::complete`](crate::IoQueue::complete); when the queue itself is gone
/// it may be dropped, because there is no host left to answer.
#[derive(PartialEq, Eq, Debug)]
#[must_use = "a command without a completion stays outstanding for ever"]
pub struct Permit {
    pub(crate) conn: ConnId,
    pub(crate) cid: u16,
    /// What the completion adds to counters and error log.
    pub(crate) trace: Trace,
    /// Which drains do not wait for the command: those that began before it.
    pub(crate) era: u32,
}

impl Permit {
    pub(crate) fn with_trace(self, trace: Trace) -> Self {
        Self { trace, ..self }
    }

    pub(crate) fn with_era(self, era: u32) -> Self {
        let mut permit = Self { era, ..self };
        permit.trace.writes_era = era;
        permit
    }

    /// Command Identifier of the command.
    #[must_use]
    pub const fn cid(&self) -> u16 {
        self.cid
    }

    /// The queue the command arrived on.
    #[must_use]
    pub const fn conn(&self) -> ConnId {
        self.conn
    }
}

/// What the completion of a command adds to the counters and to the error log.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Trace {
    pub(crate) opcode: u8,
    pub(crate) effect: Effect,
    pub(crate) nsid: u32,
    pub(crate) lba: u64,
    pub(crate) bytes: u32,
    /// As [`Permit::era`], of drains that wait for writes alone. Here, where there is room for it.
    pub(crate) writes_era: u32,
}

/// Which counters a command belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) enum Effect {
    #[default]
    Other,
    Read,
    Write,
    /// A reservation command: not on the medium, so only a fence waits for it.
    Control,
    /// Nothing waits for it: it is not on the medium, and will not be.
    Unwaited,
}

/// Why a command capsule could not be accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AcceptError {
    /// Another outstanding command has the same Command Identifier.
    CidInUse,
    /// The host sent more commands than the queue has entries.
    Overrun,
}

/// Outstanding commands and submission queue head of one queue.
#[derive(Debug)]
pub(crate) struct Accounting {
    conn: ConnId,
    entries: u16,
    /// `None` when Connect disabled SQ flow control.
    head: Option<u16>,
    cids: CidTable,
}

impl Accounting {
    /// A queue of `entries` entries (SQSIZE + 1).
    pub(crate) fn new(conn: ConnId, entries: u16, flow_control: bool) -> Self {
        Self {
            conn,
            entries,
            head: flow_control.then_some(0),
            cids: CidTable::new(entries),
        }
    }

    /// Commands accepted and not completed.
    pub(crate) fn outstanding(&self) -> u16 {
        self.cids.len()
    }

    pub(crate) fn entries(&self) -> u16 {
        self.entries
    }

    pub(crate) fn is_outstanding(&self, cid: u16) -> bool {
        self.cids.contains(cid)
    }

    /// Takes a command in.
    pub(crate) fn accept(&mut self, cid: u16) -> Result<Permit, AcceptError> {
        match self.cids.insert(cid) {
            Ok(()) => Ok(Permit {
                conn: self.conn,
                cid,
                trace: Trace::default(),
                era: 0,
            }),
            Err(InsertError::Present) => Err(AcceptError::CidInUse),
            Err(InsertError::Full) => Err(AcceptError::Overrun),
        }
    }

    /// Completes an accepted command.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "a permit is used up by completing its command"
    )]
    pub(crate) fn complete(&mut self, permit: Permit, status: Status, dw0: u32) -> Cqe {
        let Permit { conn, cid, .. } = permit;
        if conn == self.conn {
            self.cids.remove(cid);
        }
        self.completion(cid, status, dw0)
    }

    /// Completes a command that was never accepted: the Connect that made the queue, or one whose
    /// identifier another command has.
    pub(crate) fn answer(&mut self, cid: u16, status: Status, dw0: u32) -> Cqe {
        self.completion(cid, status, dw0)
    }

    /// The head moves when a command completes and not when it arrives: only then is its capsule
    /// buffer free for the entry the host may submit in its place.
    /// NVMe Base 2.1, section 3.3.2.1 (SQ flow control over message-based transports).
    fn completion(&mut self, cid: u16, status: Status, dw0: u32) -> Cqe {
        let sqhd = match self.head {
            Some(head) => {
                let next = head.checked_add(1).filter(|next| *next < self.entries);
                let next = next.unwrap_or(0);
                self.head = Some(next);
                next
            }
            None => Cqe::SQHD_FLOW_CONTROL_DISABLED,
        };
        Cqe::new(cid, sqhd, status, dw0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUEUE: ConnId = ConnId(7);

    #[test]
    fn head_advances_with_each_completion_and_wraps() {
        let mut queue = Accounting::new(QUEUE, 3, true);
        let mut heads = [0; 4];
        for (cid, head) in heads.iter_mut().enumerate() {
            let permit = queue.accept(u16::try_from(cid).unwrap()).unwrap();
            *head = queue.complete(permit, Status::SUCCESS, 0).sqhd.get();
        }
        assert_eq!(heads, [1, 2, 0, 1]);
        assert_eq!(queue.outstanding(), 0);
    }

    #[test]
    fn without_flow_control_the_head_is_ffff() {
        let mut queue = Accounting::new(QUEUE, 3, false);
        let permit = queue.accept(9).unwrap();
        assert_eq!(
            queue.complete(permit, Status::SUCCESS, 0).sqhd.get(),
            0xFFFF
        );
    }

    #[test]
    fn a_second_command_with_the_same_identifier_is_refused_and_the_first_lives() {
        let mut queue = Accounting::new(QUEUE, 4, true);
        let permit = queue.accept(5).unwrap();
        assert_eq!(queue.accept(5), Err(AcceptError::CidInUse));
        assert!(queue.is_outstanding(5));
        let cqe = queue.complete(permit, Status::SUCCESS, 3);
        assert_eq!((cqe.cid.get(), cqe.dw0.get()), (5, 3));
        assert!(queue.accept(5).is_ok());
    }

    #[test]
    fn more_commands_than_entries_are_an_overrun() {
        let mut queue = Accounting::new(QUEUE, 2, true);
        let _first = queue.accept(1).unwrap();
        let _second = queue.accept(2).unwrap();
        assert_eq!(queue.accept(3), Err(AcceptError::Overrun));
        assert_eq!(queue.outstanding(), 2);
    }

    #[test]
    fn a_permit_of_another_queue_frees_nothing_here() {
        let mut queue = Accounting::new(QUEUE, 2, true);
        let _mine = queue.accept(1).unwrap();
        let foreign = Accounting::new(ConnId(8), 2, true).accept(1).unwrap();
        let _cqe = queue.complete(foreign, Status::SUCCESS, 0);
        assert!(queue.is_outstanding(1));
    }
}
