//! The syncs of one file in one ring: one at a time.
//!
//! The kernel reports a failed write-back once per open file description: of two syncs that run at
//! the same time one would fail and the other succeed, and which of them ends first is chance.
//! Those that come while one runs wait and share the next, which covers what all of them have to
//! cover.

use std::cell::{Cell, RefCell};

/// The syncs that run, by slot, and those that wait. See the module.
#[derive(Debug, Default)]
pub(crate) struct Syncs {
    running: Cell<Option<u32>>,
    /// Slots that end with the running one.
    covered: RefCell<Vec<u32>>,
    /// Slots that came after the running one had begun.
    waiting: RefCell<Vec<u32>>,
    /// Empty: memory for those that come while the next one runs.
    spare: RefCell<Vec<u32>>,
}

impl Syncs {
    /// Whether the sync of `slot` may be submitted now. Otherwise it waits for [`Syncs::ended`].
    pub(crate) fn begin(&self, slot: u32) -> bool {
        match self.running.get() {
            None => self.running.set(Some(slot)),
            // Again: the submission queue was full, or the kernel was interrupted.
            Some(running) if running == slot => {}
            Some(_) => {
                self.waiting.borrow_mut().push(slot);
                return false;
            }
        }
        true
    }

    /// Whether the running sync stands for others, so that it has to cover the whole file.
    pub(crate) fn is_shared(&self) -> bool {
        !self.covered.borrow().is_empty()
    }

    /// The sync of `slot` has ended. Returns the slots that end with it, whose memory is to come
    /// back by [`Syncs::reuse`], and the one to run next.
    pub(crate) fn ended(&self, slot: u32) -> (Vec<u32>, Option<u32>) {
        if self.running.get() != Some(slot) {
            return (Vec::new(), None);
        }
        let mut waiting = self.waiting.replace(self.spare.take());
        let next = (!waiting.is_empty()).then(|| waiting.remove(0));
        self.running.set(next);
        (self.covered.replace(waiting), next)
    }

    /// Takes back the memory of what [`Syncs::ended`] returned, for those that come.
    pub(crate) fn reuse(&self, mut slots: Vec<u32>) {
        slots.clear();
        self.spare.replace(slots);
    }

    /// Drops every slot that the kernel has not seen, and returns them.
    pub(crate) fn forget(&self) -> Vec<u32> {
        let mut slots = self.covered.take();
        slots.append(&mut self.waiting.borrow_mut());
        slots
    }
}

#[cfg(test)]
mod tests {
    use super::Syncs;

    #[test]
    fn those_that_come_meanwhile_share_the_next() {
        let syncs = Syncs::default();
        assert!(syncs.begin(7));
        assert!(syncs.begin(7), "once more, after EINTR");
        assert!(!syncs.begin(8) && !syncs.begin(9) && !syncs.begin(4));
        assert!(!syncs.is_shared(), "they came too late for this one");
        assert_eq!(syncs.ended(7), (vec![], Some(8)));
        assert!(syncs.begin(8) && syncs.is_shared());
        assert!(!syncs.begin(7));
        assert_eq!(syncs.ended(8), (vec![9, 4], Some(7)));
        assert!(syncs.begin(7) && !syncs.is_shared());
        assert_eq!(syncs.ended(7), (vec![], None));
        assert_eq!(syncs.ended(7), (vec![], None), "nothing runs");
    }

    #[test]
    fn what_the_kernel_has_not_seen_can_be_forgotten() {
        let syncs = Syncs::default();
        assert!(syncs.begin(1) && !syncs.begin(2) && !syncs.begin(3));
        assert_eq!(syncs.ended(1), (vec![], Some(2)));
        assert!(!syncs.begin(5));
        assert_eq!(syncs.forget(), [3, 5]);
        assert_eq!(syncs.ended(2), (vec![], None));
    }
}
