//! One submission queue as the host sees it: command identifiers, and credit by SQHD.

use std::fmt;

/// Most entries of a queue this host asks for. 1024 leaves six bits of a CID for its generation.
pub const QUEUE_ENTRIES_MAX: u16 = 1024;
/// Fewest entries a queue can have: one entry stays empty to tell full from empty.
pub const QUEUE_ENTRIES_MIN: u16 = 2;
/// CID that no command uses: an Error Information log entry says with it that it is about no
/// command (NVMe Base 2.1, section 5.1.12.1.2).
const CID_NONE: u16 = 0xFFFF;

/// Position of an outstanding command in its queue's tables.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct SlotIndex(pub u16);

impl SlotIndex {
    /// As an index.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// A response that cannot belong to any outstanding command, or breaks the flow control.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ResponseError {
    /// No command of this queue ever had it.
    #[error("CID {cid:#06x} is of no command of this queue ({entries} entries)")]
    UnknownCid {
        /// What the controller sent.
        cid: u16,
        /// Entries of the queue.
        entries: u16,
    },
    /// It was answered, and no command has been sent with it since.
    #[error(
        "CID {cid:#06x} is answered again: its command was answered before, and nothing was sent with it since"
    )]
    Again {
        /// What the controller sent.
        cid: u16,
    },
    /// The command with it was answered before.
    #[error("CID {cid:#06x} was answered before, its entry now belongs to {now:#06x}")]
    LateCid {
        /// What the controller sent.
        cid: u16,
        /// The CID the entry has now, or had last.
        now: u16,
    },
    /// SQHD names an entry that has not been submitted.
    #[error("SQHD {sqhd} is outside the submitted entries {head}..={tail}")]
    BadSqhd {
        /// What the controller sent.
        sqhd: u16,
        /// The head before.
        head: u16,
        /// The tail.
        tail: u16,
    },
}

/// Life of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotState {
    /// A command may take it.
    Free,
    /// Its command is with the controller.
    Outstanding,
    /// Its command is answered, but its memory is not back yet.
    Answered,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    generation: u16,
    state: SlotState,
}

/// Command identifiers of one queue, and how many more commands the controller takes.
///
/// A CID is the slot index in its low bits and a generation above, so that a response that comes
/// late, twice or from nowhere is told from the answer of the command that has the slot now.
pub struct SubmissionQueue {
    entries: Box<[Entry]>,
    /// Free slots; the last one freed is used first, its tables are still in the cache.
    free: Vec<u16>,
    index_bits: u32,
    size: u16,
    /// Whether SQHD says which entries are free again. Where it does not, those of the commands
    /// that are answered are.
    flow_control: bool,
    head: u16,
    tail: u16,
    outstanding: u16,
    outstanding_max: u16,
}

impl fmt::Debug for SubmissionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "SubmissionQueue({} of {} outstanding, head {}, tail {})",
            self.outstanding(),
            self.size - 1,
            self.head,
            self.tail
        )
    }
}

impl SubmissionQueue {
    /// A queue of `size` entries, cut to [`QUEUE_ENTRIES_MIN`]`..=`[`QUEUE_ENTRIES_MAX`]. One entry
    /// always stays empty, so `size - 1` commands can be outstanding (NVMe Base 2.1, section
    /// 3.3.1.5, Full Queue).
    #[must_use]
    pub fn new(size: u16) -> Self {
        let size = size.clamp(QUEUE_ENTRIES_MIN, QUEUE_ENTRIES_MAX);
        let slots = size - 1;
        let index_bits = u16::BITS - (slots - 1).leading_zeros();
        Self {
            entries: vec![
                Entry {
                    generation: 0,
                    state: SlotState::Free,
                };
                usize::from(slots)
            ]
            .into_boxed_slice(),
            free: (0..slots).rev().collect(),
            index_bits,
            size,
            flow_control: true,
            head: 0,
            tail: 0,
            outstanding: 0,
            outstanding_max: slots,
        }
    }

    /// SQ flow control is disabled: SQHD is reserved, and whatever it is means nothing (NVMe over
    /// Fabrics, section on flow control; NVMe Base 2.1, Connect command, CATTR bit 2).
    #[must_use]
    pub fn without_flow_control(mut self) -> Self {
        self.flow_control = false;
        self
    }

    /// Keeps fewer commands outstanding than the queue has room for, at least one: the controller
    /// posts only so many receives (CRQSIZE), or takes only so many commands (MAXCMD). The least
    /// of several limits holds.
    pub fn limit_outstanding(&mut self, commands: u16) {
        self.outstanding_max = self.outstanding_max.min(commands).max(1);
    }

    /// Entries of the queue.
    #[must_use]
    pub fn size(&self) -> u16 {
        self.size
    }

    /// Commands that can be outstanding at once.
    #[must_use]
    pub fn slots(&self) -> u16 {
        self.size - 1
    }

    /// Commands submitted and not answered.
    #[must_use]
    pub fn outstanding(&self) -> u16 {
        self.outstanding
    }

    /// Commands that may be submitted now.
    #[must_use]
    pub fn credit(&self) -> u16 {
        let occupied = match self.flow_control {
            true => distance(self.head, self.tail, self.size),
            false => self.outstanding,
        };
        let free = u16::try_from(self.free.len()).unwrap_or(u16::MAX);
        let allowed = self.outstanding_max.saturating_sub(self.outstanding);
        (self.size - 1 - occupied).min(free).min(allowed)
    }

    /// Takes an entry for one command; `None` when the queue has no credit.
    pub fn submit(&mut self) -> Option<(SlotIndex, u16)> {
        if self.credit() == 0 {
            return None;
        }
        let slot = self.free.pop()?;
        let entry = self.entries.get_mut(usize::from(slot))?;
        entry.generation = entry.generation.wrapping_add(1);
        let mut cid = cid_of(slot, entry.generation, self.index_bits);
        if cid == CID_NONE {
            entry.generation = entry.generation.wrapping_add(1);
            cid = cid_of(slot, entry.generation, self.index_bits);
        }
        entry.state = SlotState::Outstanding;
        self.outstanding += 1;
        self.tail = next(self.tail, self.size);
        Some((SlotIndex(slot), cid))
    }

    /// Takes a response's CID: the slot of the command it answers. The slot is not free before
    /// [`SubmissionQueue::release`].
    ///
    /// # Errors
    /// [`ResponseError`] when no outstanding command has that CID; nothing changes.
    pub fn complete(&mut self, cid: u16) -> Result<SlotIndex, ResponseError> {
        let slot = cid & low_bits(self.index_bits);
        let unknown = ResponseError::UnknownCid {
            cid,
            entries: self.size,
        };
        let entry = self.entries.get_mut(usize::from(slot)).ok_or(unknown)?;
        let now = cid_of(slot, entry.generation, self.index_bits);
        if now != cid {
            return Err(ResponseError::LateCid { cid, now });
        }
        if entry.state != SlotState::Outstanding {
            return Err(ResponseError::Again { cid });
        }
        entry.state = SlotState::Answered;
        self.outstanding -= 1;
        if self.outstanding == 0 {
            // An answered command has been fetched, so with none outstanding the queue is empty,
            // whatever SQHD said: a controller that reports it late cannot stop the queue.
            self.head = self.tail;
        }
        Ok(SlotIndex(slot))
    }

    /// Takes back the command submitted last, before it went anywhere.
    pub fn withdraw(&mut self, slot: SlotIndex) {
        if let Some(entry) = self.entries.get_mut(slot.index())
            && entry.state == SlotState::Outstanding
        {
            entry.state = SlotState::Free;
            self.free.push(slot.0);
            self.outstanding -= 1;
            self.tail = if self.tail == 0 {
                self.size - 1
            } else {
                self.tail - 1
            };
        }
    }

    /// Frees the slot of an answered command. Any other slot stays as it is.
    pub fn release(&mut self, slot: SlotIndex) {
        if let Some(entry) = self.entries.get_mut(slot.index())
            && entry.state == SlotState::Answered
        {
            entry.state = SlotState::Free;
            self.free.push(slot.0);
        }
    }

    /// Takes a response's SQHD, before its CID. Of no effect without SQ flow control.
    ///
    /// # Errors
    /// [`ResponseError::BadSqhd`] when it passes the tail; nothing changes.
    pub fn advance_head(&mut self, sqhd: u16) -> Result<(), ResponseError> {
        if !self.flow_control {
            return Ok(());
        }
        let bad = ResponseError::BadSqhd {
            sqhd,
            head: self.head,
            tail: self.tail,
        };
        if sqhd >= self.size {
            return Err(bad);
        }
        let consumed = distance(self.head, sqhd, self.size);
        if consumed > distance(self.head, self.tail, self.size) {
            return Err(bad);
        }
        self.head = sqhd;
        Ok(())
    }

    /// Slots with an outstanding command, lowest first.
    pub fn outstanding_slots(&self) -> impl Iterator<Item = SlotIndex> + '_ {
        (0..)
            .zip(&*self.entries)
            .filter(|(_, entry)| entry.state == SlotState::Outstanding)
            .map(|(slot, _)| SlotIndex(slot))
    }

    /// Forgets every outstanding command: the connection is gone. Generations go on, so nothing of
    /// the old connection can be taken for an answer on the next.
    pub fn reset(&mut self) {
        self.free.clear();
        for entry in &mut self.entries {
            entry.state = SlotState::Free;
        }
        self.free.extend((0..self.size - 1).rev());
        self.head = 0;
        self.tail = 0;
        self.outstanding = 0;
    }
}

fn low_bits(bits: u32) -> u16 {
    (1_u16 << bits) - 1
}

fn cid_of(slot: u16, generation: u16, index_bits: u32) -> u16 {
    (generation << index_bits) | slot
}

fn next(at: u16, size: u16) -> u16 {
    if at + 1 == size { 0 } else { at + 1 }
}

/// Entries from `from` up to, not including, `to`.
fn distance(from: u16, to: u16, size: u16) -> u16 {
    if to >= from {
        to - from
    } else {
        size - from + to
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{QUEUE_ENTRIES_MAX, ResponseError, SubmissionQueue};

    #[test]
    fn a_queue_takes_one_command_less_than_it_has_entries() {
        let mut queue = SubmissionQueue::new(4);
        for _ in 0..3 {
            assert!(queue.submit().is_some());
        }
        assert_eq!((queue.submit(), queue.outstanding()), (None, 3));
    }

    #[test]
    fn a_cid_is_answered_once() {
        let mut queue = SubmissionQueue::new(8);
        let (slot, cid) = queue.submit().unwrap();
        assert_eq!(queue.complete(cid), Ok(slot));
        let again = ResponseError::Again { cid };
        assert_eq!(queue.complete(cid), Err(again));
        let said = again.to_string();
        assert!(said.contains("is answered again"), "{said}");
        assert_ne!(queue.submit().unwrap().0, slot, "its memory is not back");
        queue.release(slot);
        queue.release(slot);
        let (again, second) = queue.submit().unwrap();
        assert_eq!(again, slot);
        assert_ne!(second, cid, "the generation must differ");
        assert!(matches!(
            queue.complete(cid),
            Err(ResponseError::LateCid { .. })
        ));
        assert_eq!(queue.complete(second), Ok(slot));
    }

    #[test]
    fn a_cid_outside_the_queue_is_unknown() {
        let mut queue = SubmissionQueue::new(6);
        assert_eq!(
            queue.complete(7),
            Err(ResponseError::UnknownCid { cid: 7, entries: 6 })
        );
    }

    #[test]
    fn sqhd_past_the_tail_is_refused_and_credit_follows_it() {
        let mut queue = SubmissionQueue::new(4);
        let (_, first) = queue.submit().unwrap();
        queue.submit().unwrap();
        queue.submit().unwrap();
        assert!(queue.advance_head(4).is_err());
        assert!(queue.advance_head(1).is_ok());
        // One entry consumed but no command answered: no slot to submit with.
        assert_eq!(queue.credit(), 0);
        let slot = queue.complete(first).unwrap();
        assert_eq!(queue.credit(), 0);
        queue.release(slot);
        assert_eq!(queue.credit(), 1);
        assert!(queue.advance_head(0).is_err(), "the head does not go back");
    }

    #[test]
    fn without_flow_control_only_answers_make_room() {
        let mut queue = SubmissionQueue::new(4).without_flow_control();
        let cids: Vec<_> = std::iter::from_fn(|| queue.submit()).collect();
        assert_eq!((cids.len(), queue.credit()), (3, 0));
        // Reserved, or as with flow control: whatever it is.
        for (sqhd, (slot, cid)) in [0xFFFF, 0, 3].into_iter().zip(cids) {
            assert_eq!(queue.advance_head(sqhd), Ok(()));
            assert_eq!(queue.complete(cid), Ok(slot));
            assert_eq!(queue.credit(), 0);
            queue.release(slot);
            // The others are outstanding, whatever SQHD was.
            assert_eq!(queue.submit().map(|(again, _)| again), Some(slot));
            assert_eq!(queue.credit(), 0);
        }
    }

    #[test]
    fn a_controller_whose_sqhd_stands_still_does_not_stop_the_queue() {
        let mut queue = SubmissionQueue::new(4);
        for _ in 0..20 {
            let (_, cid) = queue.submit().expect("credit");
            queue.advance_head(0).ok();
            let slot = queue.complete(cid).unwrap();
            queue.release(slot);
        }
    }

    #[test]
    fn fewer_commands_than_entries_when_the_controller_posts_fewer_receives() {
        let mut queue = SubmissionQueue::new(32);
        queue.limit_outstanding(2);
        assert_eq!(queue.credit(), 2);
        queue.submit().unwrap();
        queue.submit().unwrap();
        assert_eq!(queue.submit(), None);
        queue.limit_outstanding(0);
        assert_eq!(queue.credit(), 0);
    }

    #[test]
    fn a_withdrawn_command_leaves_no_trace_in_the_credit() {
        let mut queue = SubmissionQueue::new(3);
        let (slot, cid) = queue.submit().unwrap();
        queue.withdraw(slot);
        assert_eq!((queue.credit(), queue.outstanding()), (2, 0));
        assert!(queue.complete(cid).is_err());
        assert!(queue.advance_head(1).is_err());
    }

    #[test]
    fn no_command_has_cid_ffff() {
        let mut queue = SubmissionQueue::new(2);
        for _ in 0..200_000 {
            let (_, cid) = queue.submit().unwrap();
            assert_ne!(cid, 0xFFFF);
            let slot = queue.complete(cid).unwrap();
            queue.release(slot);
        }
    }

    proptest! {
        #[test]
        fn whatever_the_controller_answers_the_counts_hold(
            size in 0_u16..2000,
            ops in prop::collection::vec((any::<bool>(), any::<u16>(), any::<u16>()), 0..300),
        ) {
            let mut queue = SubmissionQueue::new(size);
            prop_assert!(queue.size() <= QUEUE_ENTRIES_MAX);
            let mut held = Vec::new();
            for (submit, sqhd, cid) in ops {
                if submit {
                    if let Some((slot, cid)) = queue.submit() {
                        prop_assert!(held.iter().all(|&(s, c)| s != slot && c != cid));
                        held.push((slot, cid));
                    }
                } else {
                    let _ = queue.advance_head(sqhd % (queue.size() + 1));
                    // Half of the answers are real ones.
                    let cid = match held.get(usize::from(cid) % (held.len() + 1)) {
                        Some(&(_, real)) if cid % 2 == 0 => real,
                        _ => cid,
                    };
                    let known = held.iter().position(|&(_, c)| c == cid);
                    match queue.complete(cid) {
                        Ok(slot) => {
                            prop_assert_eq!(held.swap_remove(known.unwrap()).0, slot);
                            queue.release(slot);
                        }
                        Err(_) => prop_assert!(known.is_none()),
                    }
                }
                prop_assert_eq!(usize::from(queue.outstanding()), held.len());
                prop_assert!(queue.credit() <= queue.slots() - queue.outstanding());
                prop_assert_eq!(queue.outstanding_slots().count(), held.len());
            }
            queue.reset();
            prop_assert_eq!(queue.credit(), queue.slots());
        }
    }
}
