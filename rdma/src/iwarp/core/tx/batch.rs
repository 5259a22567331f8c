//! FPDUs on their way to TCP. A queue pair needs a batch from the first FPDU until TCP has taken
//! the last, which is within one run unless the peer is slow. So thousands of queue pairs share the
//! few that are in the caches.

use std::cell::RefCell;

use super::scratch::Scratch;
use super::{FPDU_PIECES, PIECES_MAX};
use crate::iwarp::piece::Piece;

thread_local! {
    /// Batches of this thread that no queue pair has: at most as many as were once in use at the
    /// same time.
    static SPARE: RefCell<Vec<Batch>> = const { RefCell::new(Vec::new()) };
}

/// FPDUs for one system call. The default one has no memory.
#[derive(Default)]
pub(in crate::iwarp) struct Batch {
    pub scratch: Scratch,
    pub pieces: Vec<Piece>,
    /// Stream positions at which the FPDUs end.
    pub ends: Vec<u64>,
}

impl Batch {
    /// Takes memory, unless it has some.
    #[inline]
    pub(in crate::iwarp) fn take_memory(&mut self) {
        if self.pieces.capacity() == 0 {
            self.take_spare();
        }
    }

    #[cold]
    fn take_spare(&mut self) {
        let spare = SPARE.with_borrow_mut(Vec::pop);
        *self = spare.unwrap_or_else(|| Self {
            scratch: Scratch::new(),
            pieces: Vec::with_capacity(PIECES_MAX + FPDU_PIECES),
            ends: Vec::with_capacity(PIECES_MAX),
        });
    }

    /// Drops everything in it, and leaves the memory to other queue pairs.
    #[inline]
    pub(in crate::iwarp) fn give_memory(&mut self) {
        if self.pieces.capacity() != 0 {
            let mut batch = std::mem::take(self);
            batch.clear();
            SPARE.with_borrow_mut(|spare| spare.push(batch));
        }
    }

    #[inline]
    pub(in crate::iwarp) fn clear(&mut self) {
        self.scratch.cut(0);
        self.pieces.clear();
        self.ends.clear();
    }
}
