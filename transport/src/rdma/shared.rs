//! What a wire and its queues have in common.

use std::cell::{RefCell, RefMut};

use capstan_rdma::contract::QpNum;

use super::receives::Receives;
use crate::queue::QueueId;

/// What the queues on one device share with their wire.
pub struct Shared {
    /// The receives of all queues on the device.
    receives: RefCell<Receives>,
    /// Queues whose queue pairs have refused a work request since the last poll, and why.
    failed: RefCell<Vec<(QpNum, String)>>,
    /// Queues with something posted since the last flush.
    unflushed: RefCell<Vec<QueueId>>,
    /// Queues that are to tell of room.
    full: RefCell<Vec<QueueId>>,
}

impl Shared {
    pub(super) fn new(receives: Receives) -> Self {
        Self {
            receives: RefCell::new(receives),
            failed: RefCell::default(),
            unflushed: RefCell::default(),
            full: RefCell::default(),
        }
    }

    /// The receives.
    pub(super) fn receives(&self) -> RefMut<'_, Receives> {
        self.receives.borrow_mut()
    }

    /// A queue has ended, as its queue pair has refused a work request.
    pub(super) fn failed(&self, qp: QpNum, why: String) {
        self.failed.borrow_mut().push((qp, why));
    }

    /// Whether a queue has failed that [`Shared::take_failed`] has not returned.
    #[inline]
    pub(super) fn has_failed(&self) -> bool {
        !self.failed.borrow().is_empty()
    }

    /// The queues that have failed.
    pub(super) fn take_failed(&self) -> Vec<(QpNum, String)> {
        self.failed.take()
    }

    /// The queues with something posted since the last flush. Each notes itself once.
    #[inline]
    pub(super) fn unflushed(&self) -> RefMut<'_, Vec<QueueId>> {
        self.unflushed.borrow_mut()
    }

    /// The queues that are to tell of room. Each notes itself once.
    #[inline]
    pub(super) fn full(&self) -> RefMut<'_, Vec<QueueId>> {
        self.full.borrow_mut()
    }

    /// The queue is gone.
    pub(super) fn forget(&self, id: QueueId, qp: QpNum) {
        self.failed.borrow_mut().retain(|(other, _)| *other != qp);
        self.unflushed().retain(|other| *other != id);
        self.full().retain(|other| *other != id);
    }
}
