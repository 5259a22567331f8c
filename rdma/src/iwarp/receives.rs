//! Receives: the ring of one queue pair, or of several.

use std::cell::{RefCell, RefMut};
use std::rc::Rc;

use super::stag::StagTable;
use crate::contract::{Access, PostError, Sge};

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
    /// Of the used ones, those reserved for lent messages, which may have to be put into one.
    reserved: usize,
    /// Length of the shortest receive that was posted since the ring was last empty.
    shortest_bytes: u32,
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
            reserved: 0,
            shortest_bytes: u32::MAX,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.used <= self.reserved
    }

    /// Reserves a receive for a message of `len_bytes`; `false` when there is none, or one may be
    /// too short.
    #[inline]
    pub(super) fn reserve(&mut self, len_bytes: u32) -> bool {
        let able = !self.is_empty() && len_bytes <= self.shortest_bytes;
        self.reserved += usize::from(able);
        able
    }

    /// Ends a reservation.
    #[inline]
    pub(super) fn unreserve(&mut self) {
        self.reserved = self.reserved.saturating_sub(1);
    }

    /// Ends all reservations.
    pub(super) fn unreserve_all(&mut self) {
        self.reserved = 0;
    }

    /// Whether a receive that was taken for a message of `len_bytes` can be put back and reserved
    /// for it.
    #[inline]
    pub(super) fn may_put_back(&self, len_bytes: u32) -> bool {
        self.has_room() && len_bytes <= self.shortest_bytes
    }

    /// Puts a receive back that was the oldest one, where there is room.
    pub(super) fn put_back_oldest(&mut self, receive: &Receive) {
        let before = self.head.checked_sub(1);
        self.head = before.unwrap_or(self.slots.len() - 1);
        self.put(self.head, receive.wr_id, receive.len_bytes, &receive.sges);
    }

    /// Puts a receive back that was the newest one, where there is room.
    pub(super) fn put_back_newest(&mut self, receive: &Receive) {
        let at = self.place(self.used);
        self.put(at, receive.wr_id, receive.len_bytes, &receive.sges);
    }

    /// Whether another receive fits.
    fn has_room(&self) -> bool {
        self.used < self.slots.len()
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
        if !self.has_room() {
            return Err(PostError::QueueFull(
                u32::try_from(depth).unwrap_or(u32::MAX),
            ));
        }
        let len_bytes = check_sges(stags, pd, sges, Access::LOCAL_WRITE)?;
        self.put(self.place(self.used), wr_id, len_bytes, sges);
        Ok(())
    }

    fn put(&mut self, at: usize, wr_id: u64, len_bytes: u32, sges: &[Sge]) {
        if self.used == 0 {
            self.shortest_bytes = u32::MAX;
        }
        self.shortest_bytes = self.shortest_bytes.min(len_bytes);
        self.slots[at] = Slot {
            wr_id,
            sges: u32::try_from(sges.len()).unwrap_or(u32::MAX),
            len_bytes,
        };
        let first = at * self.sge_max;
        self.sges[first..first + sges.len()].copy_from_slice(sges);
        self.used += 1;
    }

    /// Takes the oldest receive into `out`; `false` when there is none.
    pub(super) fn take(&mut self, out: &mut Receive) -> bool {
        if self.is_empty() {
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
        if self.is_empty() {
            return false;
        }
        self.used -= 1;
        self.copy_to(self.place(self.used), out);
        true
    }

    /// The index of the receive that was posted after `nth` others.
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

/// Receives that several queue pairs share.
pub(super) struct SharedReceives {
    ring: RefCell<ReceiveRing>,
    /// Slots of the queue pairs that wait for a receive.
    waiting: RefCell<Vec<usize>>,
}

impl SharedReceives {
    pub(super) fn new(depth: u32, sge_max: u32) -> Self {
        Self {
            ring: RefCell::new(ReceiveRing::new(depth, sge_max)),
            waiting: RefCell::new(Vec::new()),
        }
    }

    /// Takes the newest receive: its memory is the likeliest to be in the processor's caches still.
    /// (Receives that are shared have no order that a program could count on.)
    pub(super) fn take(&self, out: &mut Receive) -> bool {
        self.ring.borrow_mut().take_newest(out)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ring.borrow().is_empty()
    }

    /// The receives, to look at them, add some or reserve one.
    #[inline]
    pub(super) fn ring(&self) -> RefMut<'_, ReceiveRing> {
        self.ring.borrow_mut()
    }

    /// Whether queue pairs wait for a receive.
    #[inline]
    pub(super) fn is_awaited(&self) -> bool {
        !self.waiting.borrow().is_empty()
    }

    /// The slots of the queue pairs that wait for a receive; none does any more.
    pub(super) fn take_waiting(&self) -> Vec<usize> {
        self.waiting.take()
    }

    /// Notes that the queue pair of `slot` waits for a receive.
    pub(super) fn wait(&self, slot: usize) {
        let mut waiting = self.waiting.borrow_mut();
        if !waiting.contains(&slot) {
            waiting.push(slot);
        }
    }
}

/// Where receives come from.
pub(super) enum Receives {
    /// The queue pair's own ring.
    Own(ReceiveRing),
    /// A shared one.
    Shared(Rc<SharedReceives>),
}

impl Receives {
    /// Takes the oldest receive; `false` when there is none.
    #[inline]
    pub(super) fn take(&mut self, out: &mut Receive) -> bool {
        match self {
            Self::Own(ring) => ring.take(out),
            Self::Shared(queue) => queue.take(out),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::Own(ring) => ring.is_empty(),
            Self::Shared(queue) => queue.is_empty(),
        }
    }

    fn with_ring<R>(&mut self, call: impl FnOnce(&mut ReceiveRing) -> R) -> R {
        match self {
            Self::Own(ring) => call(ring),
            Self::Shared(queue) => call(&mut queue.ring()),
        }
    }

    /// Reserves a receive for a message of `len_bytes` that is lent; `false` when there is none, or
    /// it may be too short.
    #[inline]
    pub(super) fn reserve(&mut self, len_bytes: u32) -> bool {
        self.with_ring(|ring| ring.reserve(len_bytes))
    }

    /// A message that was lent needs its receive no more.
    #[inline]
    pub(super) fn unreserve(&mut self) {
        self.with_ring(ReceiveRing::unreserve);
    }

    /// Whether a receive that was taken for a message of `len_bytes` can be put back and reserved
    /// for it.
    pub(super) fn may_put_back(&self, len_bytes: u32) -> bool {
        match self {
            Self::Own(ring) => ring.may_put_back(len_bytes),
            Self::Shared(queue) => queue.ring().may_put_back(len_bytes),
        }
    }

    /// Puts back the receive that was taken last, and reserves one for its message.
    pub(super) fn put_back(&mut self, receive: &Receive) {
        match self {
            Self::Own(ring) => ring.put_back_oldest(receive),
            Self::Shared(queue) => queue.ring().put_back_newest(receive),
        }
        // A receive was just put back, so this cannot fail.
        self.reserve(0);
    }

    /// The shared queue, when queue pairs wait for its receives.
    pub(super) fn awaited(&self) -> Option<Rc<SharedReceives>> {
        match self {
            Self::Shared(queue) if queue.is_awaited() => Some(Rc::clone(queue)),
            Self::Own(_) | Self::Shared(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Receive, ReceiveRing};
    use crate::contract::{LKey, Sge};
    use crate::iwarp::stag::StagTable;

    const DEPTH: u32 = 3;

    /// Posts a receive with an empty SGE, whose key is not looked at.
    fn post(ring: &mut ReceiveRing, wr_id: u64) -> bool {
        let sge = Sge {
            addr: wr_id,
            len_bytes: 0,
            lkey: LKey(0),
        };
        ring.post(&StagTable::new(), 0, wr_id, &[sge]).is_ok()
    }

    fn taken(ring: &mut ReceiveRing, newest: bool) -> Option<u64> {
        let mut out = Receive::default();
        let taken = if newest {
            ring.take_newest(&mut out)
        } else {
            ring.take(&mut out)
        };
        assert!(!taken || out.sges[0].addr == out.wr_id, "its SGE");
        taken.then_some(out.wr_id)
    }

    /// At every index of the ring, from both ends.
    #[test]
    fn what_is_put_back_is_taken_again_and_what_is_kept_is_not() {
        for newest in [false, true] {
            let mut ring = ReceiveRing::new(DEPTH, 1);
            for round in 0..2 * u64::from(DEPTH) {
                let ids = [10 * round, 10 * round + 1, 10 * round + 2];
                assert!(ids.iter().all(|&id| post(&mut ring, id)), "room for three");
                assert!(!post(&mut ring, 99) && !ring.may_put_back(0), "full");
                let first = if newest { ids[2] } else { ids[0] };
                let mut out = Receive::default();
                assert!(if newest {
                    ring.take_newest(&mut out)
                } else {
                    ring.take(&mut out)
                });
                assert_eq!(out.wr_id, first);
                assert!(
                    ring.may_put_back(0) && !ring.may_put_back(1),
                    "too short for 1"
                );
                if newest {
                    ring.put_back_newest(&out);
                } else {
                    ring.put_back_oldest(&out);
                }
                assert!(ring.reserve(0) && ring.reserve(0) && !ring.reserve(1));
                assert_eq!(taken(&mut ring, newest), Some(first), "one is not kept");
                assert!(ring.is_empty() && !ring.reserve(0), "two are kept");
                assert_eq!(taken(&mut ring, newest), None);
                ring.unreserve();
                assert_eq!(taken(&mut ring, newest), Some(ids[1]));
                assert_eq!(taken(&mut ring, newest), None, "the last one is kept");
                // One time too many does no harm.
                ring.unreserve();
                ring.unreserve();
                let last = if newest { ids[0] } else { ids[2] };
                // The next round has another index.
                assert_eq!(taken(&mut ring, newest), Some(last));
                assert!(post(&mut ring, 7) && taken(&mut ring, false) == Some(7));
            }
        }
    }
}
