//! Responses of a connection that may be outstanding: most of their Sends are unsignaled, and the
//! completion of a signaled one covers those before it.

use std::collections::VecDeque;

use crate::limits::UNSIGNALED_MAX;

/// The slots of responses from their post until it is known that they have gone.
#[derive(Debug, Default)]
pub(super) struct Responses {
    /// In the order they were posted.
    slots: VecDeque<u16>,
    /// How many of them are signaled.
    signaled: usize,
    /// How many are behind the last signaled one.
    unsignaled: u16,
}

impl Responses {
    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// How many of them, at least, will be reported by a completion.
    pub(super) fn signaled(&self) -> usize {
        self.signaled
    }

    /// The slot of the newest.
    pub(super) fn newest(&self) -> Option<u16> {
        self.slots.back().copied()
    }

    /// Whether the next one is to be signaled even if nothing waits for it.
    pub(super) fn is_due(&self) -> bool {
        self.unsignaled >= UNSIGNALED_MAX
    }

    /// The response of `slot` was posted, signaled or not.
    pub(super) fn posted(&mut self, slot: u16, signaled: bool) {
        self.slots.push_back(slot);
        self.count(signaled);
    }

    /// A signaled work request was posted behind them, with the slot of the newest.
    pub(super) fn signaled_behind(&mut self) {
        self.count(true);
    }

    fn count(&mut self, signaled: bool) {
        self.signaled += usize::from(signaled);
        self.unsignaled = if signaled { 0 } else { self.unsignaled + 1 };
    }

    /// What was signaled with one of them has completed: it and those before it have left.
    pub(super) fn completed(&mut self) {
        self.signaled = self.signaled.saturating_sub(1);
    }

    /// The slots from the oldest one to this.
    pub(super) fn through(&self, newest: u16) -> impl Iterator<Item = u16> + '_ {
        let end = self.slots.iter().position(|&slot| slot == newest);
        let count = end.map_or(self.slots.len(), |end| end + 1);
        self.slots.iter().copied().take(count)
    }

    /// Takes out the slot of the oldest.
    pub(super) fn take_oldest(&mut self) -> Option<u16> {
        self.slots.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::Responses;
    use crate::limits::UNSIGNALED_MAX;

    fn gone(responses: &mut Responses, slot: u16) -> Vec<u16> {
        responses.completed();
        let mut freed = Vec::new();
        while freed.last() != Some(&slot) {
            freed.push(responses.take_oldest().expect("it is on its way"));
        }
        freed
    }

    #[test]
    fn those_through_one_end_with_it() {
        let mut responses = Responses::default();
        for slot in [4, 2, 9] {
            responses.posted(slot, true);
        }
        for (newest, slots) in [
            (4, &[4][..]),
            (2, &[4, 2]),
            (9, &[4, 2, 9]),
            (7, &[4, 2, 9]),
        ] {
            assert!(
                responses.through(newest).eq(slots.iter().copied()),
                "{newest}"
            );
        }
    }

    #[test]
    fn a_signaled_response_covers_those_before_it_alone() {
        let mut responses = Responses::default();
        responses.posted(4, false);
        responses.posted(2, true);
        responses.posted(7, false);
        responses.posted(1, true);
        responses.posted(9, false);
        assert_eq!((responses.len(), responses.signaled()), (5, 2));
        assert_eq!(gone(&mut responses, 2), [4, 2]);
        assert_eq!((responses.len(), responses.signaled()), (3, 1));
        assert_eq!(gone(&mut responses, 1), [7, 1]);
        assert_eq!((responses.newest(), responses.signaled()), (Some(9), 0));
    }

    #[test]
    fn one_is_due_after_as_many_as_may_be_unsignaled() {
        let mut responses = Responses::default();
        for slot in 0..UNSIGNALED_MAX {
            assert!(!responses.is_due(), "{slot}");
            responses.posted(slot, false);
        }
        assert!(responses.is_due());
        responses.posted(100, true);
        assert!(!responses.is_due());
    }

    #[test]
    fn what_is_asked_behind_the_newest_covers_it() {
        let mut responses = Responses::default();
        responses.posted(3, false);
        responses.posted(5, false);
        responses.signaled_behind();
        assert_eq!(responses.signaled(), 1);
        assert_eq!(gone(&mut responses, 5), [3, 5]);
        assert_eq!((responses.len(), responses.signaled()), (0, 0));
    }
}
