//! From a connection to a queue: what a queue gets of its device once its host is known to be
//! permitted, and what a discovery controller's gets.

use capstan_memory::{Buffer, Pool};
use capstan_rdma::contract::{PostError, QueuePair, RdmaError, Sge};

use super::super::holdings::Holdings;
use super::super::in_place::InPlaceReceives;
use super::super::wr_id::WrId;
use super::RdmaQueue;
use crate::limits::{
    ADMIN_PIECE_BYTES, CQE_BYTES, SGL_LIST_BYTES, SGL_LIST_PAGE_BYTES, SGL_LIST_PAGES, SPARE_BYTES,
    SQE_BYTES, SQES_IN_PLACE, SQES_IN_PLACE_AT, STRANGER_RECEIVES, slots,
};
use crate::resources::{Memory, NoResources};

/// Bytes that a queue of `entries` has beside its receives: for its responses, and its spare
/// buffer.
pub(in super::super) fn own_bytes(entries: u16) -> u32 {
    response_bytes(entries) + SPARE_BYTES
}

fn response_bytes(entries: u16) -> u32 {
    u32::from(slots(entries)) * CQE_BYTES
}

impl RdmaQueue {
    /// Whether shared memory carries it.
    #[must_use]
    pub fn shares_memory(&self) -> bool {
        self.qp.shares_memory()
    }

    /// Whether it has a place among connections that are no queue yet, as its host is not (or not
    /// yet) permitted.
    #[must_use]
    pub fn has_place(&self) -> bool {
        self.holdings.is_place()
    }

    /// How many receives there are for more queues on its device.
    #[must_use]
    pub fn receives_left(&self, pool: &Pool) -> usize {
        self.holdings.shared().receives().left(pool) as usize
    }

    /// Gives it what a queue of `entries` needs instead of its place: a receive for each entry, and
    /// memory for responses. To be called before its first response. Returns its spare buffer.
    ///
    /// # Errors
    /// What is missing. Where a receive could not be posted it has no place any more.
    pub fn furnish(&mut self, entries: u16, memory: &Memory) -> Result<Buffer, NoResources> {
        let keys = self.holdings.keys();
        let keys = keys.ok_or(RdmaError::Invalid("the queue has what it needs already"))?;
        let response_bytes = response_bytes(entries);
        let shared = self.holdings.shared();
        let reserved = Holdings::queue(shared, entries, own_bytes(entries), &memory.queues)?;
        let take = |bytes| memory.queues.take(bytes);
        let Some((responses, spare)) = take(response_bytes).zip(take(SPARE_BYTES)) else {
            return Err(NoResources::Memory(format!(
                "no {response_bytes} and {SPARE_BYTES} contiguous bytes are free for responses and a \
                 spare buffer"
            )));
        };
        let receives = self.holdings.leave_place(reserved);
        let posted = (self.holdings.shared().receives()).post_own(&receives, &mut self.qp);
        self.responses = responses;
        self.keys = keys;
        posted.map_err(not_posted)?;
        Ok(spare)
    }

    /// It is the Admin queue of a discovery controller. Any host may have one, so it takes nothing
    /// of the queues of permitted hosts: it keeps its place. One page of that carries the data it
    /// returns; the other has its responses and, behind them, the SQEs of its commands. These bring
    /// no data: what may follow them is a list of SGL descriptors, for which there are two pages
    /// more. It gets a receive for each entry: a host sends that many commands as soon as it has
    /// the response to its Connect, and some devices end the connection of a message that finds
    /// none. Where receives are shared it goes without. Returns the page for what it returns.
    ///
    /// # Errors
    /// What is missing.
    pub fn keep_place(&mut self, entries: u16, memory: &Memory) -> Result<Buffer, NoResources> {
        self.holdings.keep_place(entries)?;
        // The page of its Connect's data, or the one for it where the data came in the capsule.
        let page = memory.strangers.take(ADMIN_PIECE_BYTES);
        let lists = (0..SGL_LIST_PAGES).map(|_| memory.strangers.take(SGL_LIST_PAGE_BYTES));
        let lists = lists.collect::<Option<_>>().ok_or(NoResources::Places)?;
        let page = page.ok_or(NoResources::Places)?;
        self.in_place = InPlaceReceives::new(SQES_IN_PLACE_AT, lists);
        if !self.holdings.shared().receives().are_shared() {
            // The two of its place are as good: one of them has the Connect.
            let others = u32::from(entries).saturating_sub(STRANGER_RECEIVES);
            let others = others.min(SQES_IN_PLACE);
            for at in 0..u16::try_from(others).unwrap_or(u16::MAX) {
                self.post_in_place(at).map_err(not_posted)?;
            }
        }
        Ok(page)
    }

    /// Posts the receives that are its own.
    ///
    /// # Errors
    /// As [`QueuePair::post_recv`].
    pub fn post_receives(&mut self) -> Result<(), PostError> {
        let receives = self.holdings.receives();
        (self.holdings.shared().receives()).post_own(receives, &mut self.qp)
    }

    /// Posts the receive of the `at`th SQE and of the list of SGL descriptors behind it.
    pub(in super::super) fn post_in_place(&mut self, at: u16) -> Result<(), PostError> {
        let (_, lkey) = self.keys.queues;
        let sge = |addr, len_bytes| Sge {
            addr,
            len_bytes,
            lkey,
        };
        let sqe_at = self.in_place.sqe_at(at);
        let sqe = sge(self.responses.addr() + sqe_at as u64, SQE_BYTES);
        let wr_id = WrId::RecvInPlace(at).encode();
        let Some((page, offset)) = self.in_place.list(at) else {
            return self.qp.post_recv(wr_id, &[sqe]);
        };
        let list = sge(page.addr() + offset as u64, SGL_LIST_BYTES);
        self.qp.post_recv(wr_id, &[sqe, list])
    }

    /// Copies out what has arrived in the receive that [`RdmaQueue::post_in_place`] posted: the
    /// SQE, and `list_bytes` of the descriptors behind it, at most the longest list.
    pub(in super::super) fn take_in_place(
        &self,
        at: u16,
        list_bytes: u32,
    ) -> ([u8; SQE_BYTES as usize], Box<[u8]>) {
        let mut sqe = [0; SQE_BYTES as usize];
        self.responses.copy_to(self.in_place.sqe_at(at), &mut sqe);
        let mut list = vec![0; list_bytes.min(SGL_LIST_BYTES) as usize];
        if let Some((page, offset)) = self.in_place.list(at) {
            page.copy_to(offset, &mut list);
        }
        (sqe, list.into())
    }
}

pub(crate) fn not_posted(error: PostError) -> NoResources {
    NoResources::Memory(format!("posting a receive failed: {error}"))
}

#[cfg(test)]
mod tests;
