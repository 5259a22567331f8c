//! Stream buffers. A queue pair needs one from a receive call until everything has been handled,
//! which is within one run but for Sends that wait for receives. So thousands of queue pairs share
//! the few that are in the caches.

use std::cell::RefCell;

use super::BUFFER_BYTES;

thread_local! {
    /// Stream buffers of this thread that no queue pair has: at most as many as once had bytes left
    /// over at the same time.
    static SPARE: RefCell<Vec<Box<[u8]>>> = const { RefCell::new(Vec::new()) };
}

/// The buffer that was returned last, or a new one.
pub(in crate::iwarp) fn take() -> Box<[u8]> {
    let spare = SPARE.with_borrow_mut(Vec::pop);
    spare.unwrap_or_else(|| vec![0; BUFFER_BYTES].into())
}

/// Returns a buffer.
pub(in crate::iwarp) fn give(buffer: Box<[u8]>) {
    SPARE.with_borrow_mut(|spare| spare.push(buffer));
}
