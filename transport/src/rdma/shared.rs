//! What a wire and its queues have in common: a queue notes here what its wire is to do for it.

use std::cell::{RefCell, RefMut};
use std::collections::VecDeque;

use capstan_rdma::contract::QpNum;
use rustc_hash::FxHashMap;

use super::fences::Fences;
use super::receives::Receives;
use super::room::Room;
use crate::queue::{Event, QueueId};

/// What the queues on one device share with their wire.
pub(super) struct RdmaShared {
    /// The receives of all queues on the device.
    receives: RefCell<Receives>,
    /// Entries of the completion queue that queues may need.
    completions: RefCell<Room>,
    // The keys are numbers of this program or of a device: no peer can choose them so that they
    // collide.
    queue_of: RefCell<FxHashMap<QpNum, QueueId>>,
    /// Events that are no completions.
    ready: RefCell<VecDeque<(QueueId, Event)>>,
    fences: RefCell<Fences>,
    /// Queues with something posted since the last flush.
    unflushed: RefCell<Vec<QueueId>>,
    /// Queues that are to tell of room.
    full: RefCell<Vec<QueueId>>,
}

impl RdmaShared {
    /// For a completion queue that has at most `depth` completions at once.
    pub(super) fn new(receives: Receives, depth: u32) -> Self {
        Self {
            receives: RefCell::new(receives),
            completions: RefCell::new(Room::new("completions", depth)),
            queue_of: RefCell::default(),
            ready: RefCell::default(),
            fences: RefCell::new(Fences::new(depth)),
            unflushed: RefCell::default(),
            full: RefCell::default(),
        }
    }

    /// The receives.
    pub(super) fn receives(&self) -> RefMut<'_, Receives> {
        self.receives.borrow_mut()
    }

    /// Entries of the completion queue that queues may need.
    pub(super) fn completions(&self) -> RefMut<'_, Room> {
        self.completions.borrow_mut()
    }

    /// What the wire calls the queue of each queue pair.
    #[inline]
    pub(super) fn queue_of(&self) -> RefMut<'_, FxHashMap<QpNum, QueueId>> {
        self.queue_of.borrow_mut()
    }

    /// Events that are no completions.
    #[inline]
    pub(super) fn ready(&self) -> RefMut<'_, VecDeque<(QueueId, Event)>> {
        self.ready.borrow_mut()
    }

    /// Fences that wait.
    #[inline]
    pub(super) fn fences(&self) -> RefMut<'_, Fences> {
        self.fences.borrow_mut()
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

    /// The queue is dropped: there are no more events of that name.
    pub(super) fn forget(&self, id: QueueId, qp: QpNum) {
        self.queue_of().remove(&qp);
        self.ready().retain(|(other, _)| *other != id);
        self.fences().forget(id);
        self.unflushed().retain(|other| *other != id);
        self.full().retain(|other| *other != id);
    }
}
