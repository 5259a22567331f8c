//! Where the receives of a discovery controller's queue are: in memory of the queue, as its entries
//! are few and what comes behind an SQE is a list of SGL descriptors at most.

use capstan_memory::{Buffer, PAGE_BYTES};

use crate::limits::{SGL_LIST_BYTES, SQE_BYTES};

/// The memory of such receives; of other queues it is none.
#[derive(Default)]
pub(super) struct InPlaceReceives {
    /// Where the SQEs are, behind the responses.
    sqes_at_bytes: u32,
    /// Pages for the lists of SGL descriptors behind them.
    lists: Vec<Buffer>,
}

impl InPlaceReceives {
    pub(super) fn new(sqes_at_bytes: u32, lists: Vec<Buffer>) -> Self {
        Self {
            sqes_at_bytes,
            lists,
        }
    }

    /// Where the `at`th SQE is, in the buffer of the responses.
    pub(super) fn sqe_at(&self, at: u16) -> usize {
        (self.sqes_at_bytes + u32::from(at) * SQE_BYTES) as usize
    }

    /// Where the SGL descriptors behind the `at`th SQE arrive.
    pub(super) fn list(&self, at: u16) -> Option<(&Buffer, usize)> {
        let offset = usize::from(at) * SGL_LIST_BYTES as usize;
        Some((self.lists.get(offset / PAGE_BYTES)?, offset % PAGE_BYTES))
    }
}
