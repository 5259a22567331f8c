//! How many bytes a turn copies itself: of volumes in memory and of data that controllers return.
//! They take the time of the reactor, not of a disk or a device.

use std::cell::Cell;

use crate::limits::MOVED_BYTES_PER_TURN;

/// The bytes that a turn has moved.
#[derive(Default)]
pub(super) struct Share {
    moved_bytes: Cell<u32>,
}

impl Share {
    /// Begins another turn, or another round of one.
    pub(super) fn begin(&self) {
        self.moved_bytes.set(0);
    }

    /// Counts bytes that were moved.
    #[inline]
    pub(super) fn moved(&self, bytes: u32) {
        let before = self.moved_bytes.get();
        self.moved_bytes.set(before.saturating_add(bytes));
    }

    /// Whether the share of this turn is used up.
    #[inline]
    pub(super) fn is_over(&self) -> bool {
        self.moved_bytes.get() >= MOVED_BYTES_PER_TURN
    }
}
