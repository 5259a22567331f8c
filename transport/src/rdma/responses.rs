//! Responses of a connection that may be outstanding: most of their Sends are unsignaled, and the
//! completion of a signaled one covers those before it.

use std::collections::VecDeque;

use crate::limits::UNTOLD_MAX;

/// The slots of responses from their post until it is known that they have gone.
#[derive(Debug, Default)]
pub(super) struct Responses {
    /// In the order they were posted.
    slots: VecDeque<u16>,
    /// How many of them are signaled.
    told: usize,
    /// How many are behind the last signaled one.
    untold: u16,
}

impl Responses {
    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// How many of them, at least, will be reported by a completion.
    pub(super) fn told(&self) -> usize {
        self.told
    }

    /// The slot of the newest.
    pub(super) fn newest(&self) -> Option<u16> {
        self.slots.back().copied()
    }

    /// Whether the next one is to be signaled even if nothing waits for it.
    pub(super) fn is_due(&self) -> bool {
        self.untold >= UNTOLD_MAX
    }

    /// The response of `slot` was posted, signaled or not.
    pub(super) fn posted(&mut self, slot: u16, signaled: bool) {
        self.slots.push_back(slot);
        self.vouched(signaled);
    }

    /// A signaled work request was posted behind them, with the slot of the newest.
    pub(super) fn asked(&mut self) {
        self.vouched(true);
    }

    fn vouched(&mut self, signaled: bool) {
        self.told += usize::from(signaled);
        self.untold = if signaled { 0 } else { self.untold + 1 };
    }

    /// What was signaled with one of them has completed: it and those before it have left.
    pub(super) fn told_of_one(&mut self) {
        self.told = self.told.saturating_sub(1);
    }

    /// Takes out the slot of the oldest.
    pub(super) fn take_oldest(&mut self) -> Option<u16> {
        self.slots.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::Responses;
    use crate::limits::UNTOLD_MAX;

    fn gone(responses: &mut Responses, slot: u16) -> Vec<u16> {
        responses.told_of_one();
        let mut freed = Vec::new();
        while freed.last() != Some(&slot) {
            freed.push(responses.take_oldest().expect("it is on its way"));
        }
        freed
    }

    #[test]
    fn a_signaled_response_vouches_for_those_before_it_alone() {
        let mut responses = Responses::default();
        responses.posted(4, false);
        responses.posted(2, true);
        responses.posted(7, false);
        responses.posted(1, true);
        responses.posted(9, false);
        assert_eq!((responses.len(), responses.told()), (5, 2));
        assert_eq!(gone(&mut responses, 2), [4, 2]);
        assert_eq!((responses.len(), responses.told()), (3, 1));
        assert_eq!(gone(&mut responses, 1), [7, 1]);
        assert_eq!((responses.newest(), responses.told()), (Some(9), 0));
    }

    #[test]
    fn one_is_due_after_as_many_as_may_be_untold() {
        let mut responses = Responses::default();
        for slot in 0..UNTOLD_MAX {
            assert!(!responses.is_due(), "{slot}");
            responses.posted(slot, false);
        }
        assert!(responses.is_due());
        responses.posted(100, true);
        assert!(!responses.is_due());
    }

    #[test]
    fn what_is_asked_behind_the_newest_vouches_for_it() {
        let mut responses = Responses::default();
        responses.posted(3, false);
        responses.posted(5, false);
        responses.asked();
        assert_eq!(responses.told(), 1);
        assert_eq!(gone(&mut responses, 5), [3, 5]);
        assert_eq!((responses.len(), responses.told()), (0, 0));
    }
}
