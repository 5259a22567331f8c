//! Memory for what is copied to be sent, which the queues of a reactor share: a queue has some of
//! it only while it has something that has not left.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use super::limits::STAGED_CHUNK_BYTES;

/// Pieces of [`STAGED_CHUNK_BYTES`] each. What was made of them stays, for the next queue.
#[derive(Clone, Debug)]
pub struct Staging(Rc<Inner>);

#[derive(Debug)]
struct Inner {
    free: RefCell<Vec<Vec<u8>>>,
    /// How many more there may be.
    left: Cell<usize>,
    made: Cell<usize>,
}

impl Staging {
    /// As many as fit into `max_bytes`.
    #[must_use]
    pub fn new(max_bytes: u64) -> Self {
        let max_bytes = usize::try_from(max_bytes).unwrap_or(usize::MAX);
        Self(Rc::new(Inner {
            free: RefCell::default(),
            left: Cell::new(max_bytes / STAGED_CHUNK_BYTES),
            made: Cell::new(0),
        }))
    }

    /// How much memory there is of it by now, in use or not.
    #[must_use]
    pub fn made_bytes(&self) -> usize {
        self.0.made.get().saturating_mul(STAGED_CHUNK_BYTES)
    }

    /// An empty piece, if there is one.
    pub(super) fn take(&self) -> Option<Vec<u8>> {
        if let Some(piece) = self.0.free.borrow_mut().pop() {
            return Some(piece);
        }
        self.0.left.set(self.0.left.get().checked_sub(1)?);
        self.0.made.set(self.0.made.get().saturating_add(1));
        Some(Vec::with_capacity(STAGED_CHUNK_BYTES))
    }

    /// Takes back a piece.
    pub(super) fn give_back(&self, mut piece: Vec<u8>) {
        piece.clear();
        self.0.free.borrow_mut().push(piece);
    }
}

impl Default for Staging {
    /// As many as are asked for.
    fn default() -> Self {
        Self::new(u64::MAX)
    }
}
