//! Shared receive queues.

use std::cell::RefCell;
use std::rc::Rc;

use super::device::VerbsDevice;
use super::raw;
use super::wr_id::WrId;
use crate::contract::{PostError, Sge, SharedReceiveQueue};

/// A posted receive: kept so that it can be posted again when the queue pair that took it is
/// dropped before its completion was polled.
struct Posted {
    wr_id: u64,
    sges: Vec<Sge>,
}

/// A shared receive queue.
pub(super) struct Srq {
    pub(super) raw: Rc<raw::receive::Srq>,
    /// Number of its protection domain.
    pub(super) pd: u32,
    pub(super) device: Rc<VerbsDevice>,
    place: u32,
    depth: u32,
    sge_max: u32,
    slots: RefCell<Slots>,
}

struct Slots {
    posted: Vec<Posted>,
    free: Vec<u32>,
}

impl Srq {
    pub(super) fn new(
        raw: raw::receive::Srq,
        pd: u32,
        device: Rc<VerbsDevice>,
        place: u32,
        depth: u32,
        sge_max: u32,
    ) -> Self {
        let blank = || Posted {
            wr_id: 0,
            sges: Vec::with_capacity(sge_max as usize),
        };
        Self {
            raw: Rc::new(raw),
            pd,
            device,
            place,
            depth,
            sge_max,
            slots: RefCell::new(Slots {
                posted: (0..depth).map(|_| blank()).collect(),
                free: (0..depth).rev().collect(),
            }),
        }
    }

    fn post(&self, slot: u32, sges: &[Sge]) -> Result<(), PostError> {
        let wr_id = WrId::Shared {
            place: self.place,
            slot,
        };
        self.raw.post(wr_id.encode(), sges).map_err(|error| {
            tracing::error!("the device refused a shared receive: {error}");
            PostError::QueueFull(self.depth)
        })
    }

    /// The program's `wr_id` of a receive.
    #[inline]
    pub(super) fn wr_id(&self, slot: u32) -> Option<u64> {
        Some(self.slots.borrow().posted.get(slot as usize)?.wr_id)
    }

    /// The completion of a receive was polled.
    #[inline]
    pub(super) fn free(&self, slot: u32) {
        self.slots.borrow_mut().free.push(slot);
    }

    /// A receive went to a queue pair that is gone: it serves the others again.
    pub(super) fn post_again(&self, slot: u32) {
        let slots = self.slots.borrow();
        if let Some(posted) = slots.posted.get(slot as usize) {
            // An error is logged; the receive is lost then.
            let _ = self.post(slot, &posted.sges);
        }
    }
}

impl SharedReceiveQueue for Srq {
    fn post_recv(&self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        if sges.len() > self.sge_max as usize {
            return Err(PostError::TooManySges(sges.len(), self.sge_max));
        }
        let slot = {
            let mut slots = self.slots.borrow_mut();
            let slot = slots.free.pop().ok_or(PostError::QueueFull(self.depth))?;
            let posted = &mut slots.posted[slot as usize];
            posted.wr_id = wr_id;
            posted.sges.clear();
            posted.sges.extend_from_slice(sges);
            slot
        };
        let result = self.post(slot, sges);
        if result.is_err() {
            self.slots.borrow_mut().free.push(slot);
        }
        result
    }
}
