//! Receives: the ring of one queue pair, or of several.

use std::cell::RefCell;
use std::rc::Rc;

use super::engine::Engine;
use super::stag::StagTable;
use crate::contract::{Access, PostError, RdmaError, Sge, SharedReceiveQueue};
use crate::ids::check_limit;

/// Most receives of one queue.
pub(super) const RECEIVES_MAX: u32 = 1 << 16;
/// Most SGEs of one work request.
pub(super) const SGES_MAX: u32 = 16;

/// Total length of SGEs that all lie in their regions.
pub(super) fn check_sges(
    stags: &StagTable,
    pd: u32,
    sges: &[Sge],
    need: Access,
) -> Result<u32, PostError> {
    let mut total = 0u32;
    for (at, sge) in sges.iter().enumerate() {
        // An empty SGE names no memory, so its key is not looked at (as in verbs).
        if sge.len_bytes != 0 && stags.local(pd, sge, need).is_err() {
            return Err(PostError::BadSge(at));
        }
        total = total
            .checked_add(sge.len_bytes)
            .ok_or(PostError::BadSge(at))?;
    }
    Ok(total)
}

#[derive(Clone, Copy, Default)]
struct Slot {
    wr_id: u64,
    sges: u32,
    len_bytes: u32,
}

/// Posted receives in memory sized at creation.
pub(super) struct ReceiveRing {
    slots: Box<[Slot]>,
    sges: Box<[Sge]>,
    sge_max: usize,
    head: usize,
    used: usize,
}

/// A receive taken from its ring.
#[derive(Default)]
pub(super) struct Receive {
    /// Of the work request.
    pub wr_id: u64,
    /// Where the message goes.
    pub sges: Vec<Sge>,
    /// Total length of the SGEs.
    pub len_bytes: u32,
}

impl ReceiveRing {
    pub(super) fn new(depth: u32, sge_max: u32) -> Self {
        let (depth, sge_max) = (depth as usize, sge_max.max(1) as usize);
        let nothing = Sge {
            addr: 0,
            len_bytes: 0,
            lkey: crate::contract::LKey(0),
        };
        Self {
            slots: vec![Slot::default(); depth].into(),
            sges: vec![nothing; depth * sge_max].into(),
            sge_max,
            head: 0,
            used: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Adds a receive.
    pub(super) fn post(
        &mut self,
        stags: &StagTable,
        pd: u32,
        wr_id: u64,
        sges: &[Sge],
    ) -> Result<(), PostError> {
        if sges.len() > self.sge_max {
            let max = u32::try_from(self.sge_max).unwrap_or(u32::MAX);
            return Err(PostError::TooManySges(sges.len(), max));
        }
        let depth = self.slots.len();
        if self.used == depth {
            return Err(PostError::QueueFull(
                u32::try_from(depth).unwrap_or(u32::MAX),
            ));
        }
        let len_bytes = check_sges(stags, pd, sges, Access::LOCAL_WRITE)?;
        let at = self.place(self.used);
        self.slots[at] = Slot {
            wr_id,
            sges: u32::try_from(sges.len()).unwrap_or(u32::MAX),
            len_bytes,
        };
        let first = at * self.sge_max;
        self.sges[first..first + sges.len()].copy_from_slice(sges);
        self.used += 1;
        Ok(())
    }

    /// Takes the oldest receive into `out`; `false` when there is none.
    pub(super) fn take(&mut self, out: &mut Receive) -> bool {
        if self.used == 0 {
            return false;
        }
        self.copy_to(self.head, out);
        self.head += 1;
        if self.head == self.slots.len() {
            self.head = 0;
        }
        self.used -= 1;
        true
    }

    /// Takes the newest receive into `out`; `false` when there is none.
    fn take_newest(&mut self, out: &mut Receive) -> bool {
        let Some(used) = self.used.checked_sub(1) else {
            return false;
        };
        self.copy_to(self.place(used), out);
        self.used = used;
        true
    }

    /// Where the receive is that `nth` others were posted before.
    #[inline]
    fn place(&self, nth: usize) -> usize {
        let (at, depth) = (self.head + nth, self.slots.len());
        if at >= depth { at - depth } else { at }
    }

    #[inline]
    fn copy_to(&self, at: usize, out: &mut Receive) {
        let slot = self.slots[at];
        let first = at * self.sge_max;
        out.wr_id = slot.wr_id;
        out.len_bytes = slot.len_bytes;
        out.sges.clear();
        out.sges
            .extend_from_slice(&self.sges[first..first + slot.sges as usize]);
    }
}

/// A shared receive queue.
pub(super) struct SharedQueue {
    engine: Rc<Engine>,
    pd: u32,
    ring: RefCell<ReceiveRing>,
    /// Slots of the queue pairs that wait for a receive.
    waiting: RefCell<Vec<usize>>,
}

impl SharedQueue {
    pub(super) fn new(
        engine: &Rc<Engine>,
        pd: u32,
        depth: u32,
        sge_max: u32,
    ) -> Result<Rc<Self>, RdmaError> {
        check_limit("receives of a shared receive queue", depth, RECEIVES_MAX)?;
        check_limit("SGEs of a receive", sge_max, SGES_MAX)?;
        Ok(Rc::new(Self {
            engine: Rc::clone(engine),
            pd,
            ring: RefCell::new(ReceiveRing::new(depth, sge_max)),
            waiting: RefCell::new(Vec::new()),
        }))
    }

    /// Whether it is of this provider and domain.
    pub(super) fn is_of(&self, engine: &Rc<Engine>, pd: u32) -> bool {
        Rc::ptr_eq(&self.engine, engine) && self.pd == pd
    }

    /// Takes the newest receive: its memory is the likeliest to be in the processor's caches still.
    /// (Receives that are shared have no order that a program could count on.) When there is none the
    /// queue pair of `slot` is run again once one has been posted.
    pub(super) fn take(&self, out: &mut Receive) -> bool {
        self.ring.borrow_mut().take_newest(out)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ring.borrow().is_empty()
    }

    /// Notes that the queue pair of `slot` waits for a receive.
    pub(super) fn wait(&self, slot: usize) {
        let mut waiting = self.waiting.borrow_mut();
        if !waiting.contains(&slot) {
            waiting.push(slot);
        }
    }
}

impl SharedReceiveQueue for SharedQueue {
    fn post_recv(&self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        self.ring
            .borrow_mut()
            .post(&self.engine.stags.borrow(), self.pd, wr_id, sges)?;
        if !self.waiting.borrow().is_empty() {
            for slot in self.waiting.take() {
                self.engine.resume(slot);
            }
        }
        Ok(())
    }
}
