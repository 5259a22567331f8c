//! What queue pairs report to their connection manager.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use super::pair::Core;
use crate::contract::CmId;

/// Notices of one connection manager. All on one thread, which polls the manager before it waits.
#[derive(Default)]
pub(super) struct Notices {
    ended: RefCell<VecDeque<(CmId, String)>>,
    dying: RefCell<Vec<Dying>>,
}

/// A failed queue pair whose requests the device is flushing.
struct Dying {
    core: Rc<Core>,
    /// Set at the manager's next poll, which knows the time.
    bury_at_us: Option<u64>,
}

/// How long a device may take to flush a failed queue pair. Hardware needs microseconds, software
/// RDMA under load milliseconds.
const FLUSH_US: u64 = 200_000;

impl Notices {
    /// Reports that the connection `id` has ended, and why.
    pub(super) fn tell(&self, id: CmId, cause: String) {
        self.ended.borrow_mut().push_back((id, cause));
    }

    pub(super) fn take(&self) -> Option<(CmId, String)> {
        self.ended.borrow_mut().pop_front()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ended.borrow().is_empty()
    }

    /// A queue pair has failed.
    pub(super) fn will_die(&self, core: Rc<Core>) {
        self.dying.borrow_mut().push(Dying {
            core,
            bury_at_us: None,
        });
    }

    /// The program has dropped a queue pair.
    pub(super) fn forget(&self, core: &Rc<Core>) {
        self.dying
            .borrow_mut()
            .retain(|dying| !Rc::ptr_eq(&dying.core, core));
    }

    /// Destroys those that have had their time to flush.
    pub(super) fn bury(&self, now_us: u64) {
        if self.dying.borrow().is_empty() {
            return;
        }
        let mut due = Vec::new();
        self.dying.borrow_mut().retain_mut(|dying| {
            if dying.core.is_flushed() {
                return false;
            }
            let at_us = *dying.bury_at_us.get_or_insert(now_us + FLUSH_US);
            if now_us < at_us {
                return true;
            }
            due.push(Rc::clone(&dying.core));
            false
        });
        for core in due {
            core.bury();
        }
    }

    /// When [`Notices::bury`] has something to do.
    pub(super) fn next_deadline_us(&self) -> Option<u64> {
        let dying = self.dying.borrow();
        dying
            .iter()
            .map(|dying| dying.bury_at_us.unwrap_or(0))
            .min()
    }
}
