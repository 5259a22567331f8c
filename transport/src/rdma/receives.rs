//! Receives, and the memory they land in.
//!
//! Every receive has two SGEs: the SQE goes to a slot of one compact buffer, the in-capsule data to
//! a page-aligned buffer of its own, so that it can go to disk from where it landed.

use std::rc::Rc;

use capstan_memory::{Buffer, Pool};
use capstan_rdma::contract::{
    LKey, PostError, QueuePair, RdmaError, ReceiveSource, Sge, SharedReceiveQueue,
};

use super::wr_id::WrId;
use crate::limits::{IN_CAPSULE_BYTES, SQE_BYTES, STRANGER_RECEIVES};
use crate::resources::NoResources;

/// The receives of a reactor's queues on one device.
pub struct Receives {
    /// Dropped first: then the device has none of the memory below. `None` where each queue has
    /// receives of its own, whose slots it keeps while it lives.
    srq: Option<Rc<dyn SharedReceiveQueue>>,
    depth: u32,
    lkey: LKey,
    sqes: Buffer,
    /// Entries of all queues that take from here.
    promised: u32,
    /// Per slot, its data buffer; `None` while a command uses it.
    data: Vec<Option<Buffer>>,
    /// Slots of queues that are gone, where there is no shared queue.
    free: Vec<u32>,
    /// How many places for strangers are free. The receives of all places are promised from the
    /// start. On a shared queue a stranger cannot use up more than those: a message beyond its
    /// Connect ends its connection.
    places: u32,
    /// Slots of the free places, where there is no shared queue.
    place_slots: Vec<u32>,
}

impl Receives {
    /// `depth` receives, on `srq` where it is given, with those of `places` for strangers.
    pub fn new(
        srq: Option<Rc<dyn SharedReceiveQueue>>,
        depth: u32,
        lkey: LKey,
        pool: &Pool,
        places: u32,
    ) -> Result<Self, NoResources> {
        let sqes = pool
            .take(depth * SQE_BYTES)
            .ok_or_else(|| RdmaError::Limit {
                what: "memory budget: bytes for received commands",
                value: u64::from(depth * SQE_BYTES),
                max: pool.free_bytes() as u64,
            })?;
        let mut receives = Self {
            srq,
            depth,
            lkey,
            sqes,
            promised: 0,
            data: Vec::new(),
            free: Vec::new(),
            places,
            place_slots: Vec::new(),
        };
        receives.place_slots = receives.reserve(places * STRANGER_RECEIVES, 0, pool)?;
        Ok(receives)
    }

    /// Takes a place for a stranger. Returns the slots that it posts itself, none with a shared
    /// queue; `None` when there is no place.
    pub(super) fn take_place(&mut self) -> Option<Vec<u32>> {
        self.places = self.places.checked_sub(1)?;
        let left = self
            .place_slots
            .len()
            .saturating_sub(STRANGER_RECEIVES as usize);
        Some(self.place_slots.split_off(left))
    }

    /// A stranger has become a queue or is gone: its place is free.
    pub(super) fn give_back_place(&mut self, slots: Vec<u32>) {
        self.places += 1;
        self.place_slots.extend(slots);
    }

    /// Whether all queues take their receives from a shared one.
    pub(super) fn are_shared(&self) -> bool {
        self.srq.is_some()
    }

    /// Where a queue of `entries` takes its receives from.
    pub fn source(&self, entries: u16) -> ReceiveSource {
        match &self.srq {
            Some(srq) => ReceiveSource::Shared(Rc::clone(srq)),
            None => ReceiveSource::Own(u32::from(entries)),
        }
    }

    /// Makes sure that there is a receive for every entry of one more queue, so that a host always
    /// finds one, and that `extra_bytes` are left after that. Returns the slots that the queue
    /// keeps and posts itself; none with a shared queue.
    pub(super) fn reserve(
        &mut self,
        entries: u32,
        extra_bytes: u32,
        pool: &Pool,
    ) -> Result<Vec<u32>, NoResources> {
        let missing = self.missing(entries, extra_bytes, pool)?;
        let slots = u32::try_from(self.data.len()).unwrap_or(u32::MAX);
        for slot in slots..slots + missing {
            let buffer = pool.take(IN_CAPSULE_BYTES).ok_or_else(|| {
                NoResources::Memory("no contiguous bytes are free for a receive".to_owned())
            })?;
            match &self.srq {
                None => {
                    self.data.push(Some(buffer));
                    self.free.push(slot);
                }
                Some(_) => {
                    self.data.push(None);
                    self.post(slot, buffer, None).map_err(|error| {
                        NoResources::Memory(format!("posting a receive failed: {error}"))
                    })?;
                }
            }
        }
        self.promised += entries;
        if self.srq.is_some() {
            return Ok(Vec::new());
        }
        let kept = self.free.len().saturating_sub(entries as usize);
        Ok(self.free.split_off(kept))
    }

    /// How many receives there are for more queues.
    pub(super) fn left(&self, pool: &Pool) -> u32 {
        let slots = u32::try_from(self.data.len()).unwrap_or(u32::MAX);
        let free = u32::try_from(pool.free_bytes()).unwrap_or(u32::MAX) / IN_CAPSULE_BYTES;
        let room = self.depth.saturating_sub(self.promised);
        (slots.saturating_sub(self.promised) + free).min(room)
    }

    /// How many receives one more queue of `entries` is short of, when there is room for them and
    /// `extra_bytes`.
    pub(super) fn missing(
        &self,
        entries: u32,
        extra_bytes: u32,
        pool: &Pool,
    ) -> Result<u32, NoResources> {
        let wanted = self.promised + entries;
        let slots = u32::try_from(self.data.len()).unwrap_or(u32::MAX);
        let missing = wanted.saturating_sub(slots);
        let needed_bytes = (missing * IN_CAPSULE_BYTES + extra_bytes) as usize;
        let free_bytes = pool.free_bytes();
        if needed_bytes > free_bytes {
            return Err(NoResources::Memory(format!(
                "a queue of {entries} entries needs {needed_bytes} bytes for receives and \
                 responses, {free_bytes} are left"
            )));
        }
        if wanted > self.depth {
            return Err(NoResources::Device(format!(
                "{wanted} receives needed, there are {} on this device and reactor",
                self.depth
            )));
        }
        Ok(missing)
    }

    /// A queue of `entries` is gone or was never made; its receives serve the next one.
    pub(super) fn release(&mut self, entries: u16, slots: Vec<u32>) {
        self.promised = self.promised.saturating_sub(u32::from(entries));
        self.free.extend(slots);
    }

    /// Copies the SQE of a filled receive out of memory the host can no longer reach.
    pub(super) fn sqe(&self, slot: u32) -> [u8; SQE_BYTES as usize] {
        let mut sqe = [0; SQE_BYTES as usize];
        self.sqes.copy_to((slot * SQE_BYTES) as usize, &mut sqe);
        sqe
    }

    /// Takes the in-capsule data of a filled receive; the slot is unused until it is posted again.
    pub(super) fn take_data(&mut self, slot: u32) -> Option<Buffer> {
        self.data.get_mut(slot as usize)?.take()
    }

    /// Posts a slot again with the data buffer it still has; see [`Receives::post`].
    pub(super) fn repost(
        &mut self,
        slot: u32,
        qp: Option<&mut dyn QueuePair>,
    ) -> Result<(), PostError> {
        match self.take_data(slot) {
            Some(buffer) => self.post(slot, buffer, qp),
            None => Ok(()),
        }
    }

    /// As [`Receives::post`], for a slot that was posted before: a failure loses it.
    pub(super) fn post_again(&mut self, slot: u32, buffer: Buffer, qp: Option<&mut dyn QueuePair>) {
        if let Err(error) = self.post(slot, buffer, qp) {
            tracing::error!(slot, "a receive could not be posted again: {error}");
        }
    }

    /// Posts a slot with `buffer` for its in-capsule data: on the shared queue, or else on that of
    /// `qp`. Without either it stays unposted: its queue is ending.
    pub(super) fn post(
        &mut self,
        slot: u32,
        buffer: Buffer,
        qp: Option<&mut dyn QueuePair>,
    ) -> Result<(), PostError> {
        let sges = [
            Sge {
                addr: self.sqes.addr() + u64::from(slot * SQE_BYTES),
                len_bytes: SQE_BYTES,
                lkey: self.lkey,
            },
            Sge {
                addr: buffer.addr(),
                len_bytes: IN_CAPSULE_BYTES,
                lkey: self.lkey,
            },
        ];
        if let Some(place) = self.data.get_mut(slot as usize) {
            debug_assert!(place.is_none(), "receive slot {slot} is posted already");
            *place = Some(buffer);
        }
        let wr_id = WrId::Recv(slot).encode();
        match (&self.srq, qp) {
            (Some(srq), _) => srq.post_recv(wr_id, &sges),
            (None, Some(qp)) => qp.post_recv(wr_id, &sges),
            (None, None) => Ok(()),
        }
    }

    /// Posts the slots that a new queue keeps.
    pub(super) fn post_own(
        &mut self,
        slots: &[u32],
        qp: &mut dyn QueuePair,
    ) -> Result<(), PostError> {
        slots
            .iter()
            .try_for_each(|&slot| self.repost(slot, Some(&mut *qp)))
    }
}
