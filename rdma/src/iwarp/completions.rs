//! Work completions that wait to be polled, and what wakes a thread that waits for them.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::contract::{QpNum, WorkCompletion};

/// An eventfd that wakes a waiting thread: written at most once between two polls, and only while
/// armed.
pub(super) struct Waker {
    event: EventFd,
    armed: Cell<bool>,
    written: Cell<bool>,
}

impl Waker {
    pub(super) fn new() -> nix::Result<Self> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        Ok(Self {
            event: EventFd::from_value_and_flags(0, flags)?,
            armed: Cell::new(false),
            written: Cell::new(false),
        })
    }

    pub(super) fn fd(&self) -> &EventFd {
        &self.event
    }

    pub(super) fn arm(&self) {
        self.armed.set(true);
    }

    /// Wakes the thread, if it waits.
    #[inline]
    pub(super) fn wake(&self) {
        if self.armed.get() && !self.written.get() {
            // A write of 1 to an eventfd that holds 0 cannot fail.
            self.written.set(self.event.write(1).is_ok());
        }
    }

    /// The thread is awake.
    #[inline]
    pub(super) fn disarm(&self) {
        if self.armed.replace(false) && self.written.replace(false) {
            // Emptying a non-blocking eventfd; when it is empty already nothing is lost.
            let _ = self.event.read();
        }
    }
}

/// The ring of a completion queue.
pub(super) struct CompletionRing {
    ring: RefCell<VecDeque<WorkCompletion>>,
    depth: usize,
    waker: Waker,
}

impl CompletionRing {
    /// A ring with room for `depth` completions.
    ///
    /// # Errors
    /// The system has no descriptors left.
    pub(super) fn new(depth: u32) -> nix::Result<Self> {
        let depth = depth as usize;
        Ok(Self {
            ring: RefCell::new(VecDeque::with_capacity(depth)),
            depth,
            waker: Waker::new()?,
        })
    }

    /// Wakes a thread that waits for completions.
    #[inline]
    pub(super) fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Adds a completion. Users of the queue keep within its depth; should they not, the ring grows
    /// rather than lose a completion.
    #[inline]
    pub(super) fn push(&self, completion: WorkCompletion) {
        self.ring.borrow_mut().push_back(completion);
        self.waker.wake();
    }

    /// Completions in it.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.ring.borrow().len()
    }

    /// Whether another completion fits.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        self.len() < self.depth
    }

    /// Takes the oldest completions, as many as `out` has room for; returns how many.
    #[inline]
    pub(super) fn take(&self, out: &mut [WorkCompletion]) -> usize {
        let mut ring = self.ring.borrow_mut();
        let taken = out.len().min(ring.len());
        for (slot, completion) in out.iter_mut().zip(ring.drain(..taken)) {
            *slot = completion;
        }
        taken
    }

    /// Forgets the completions of a dropped queue pair.
    pub(super) fn forget(&self, qp: QpNum) {
        self.ring.borrow_mut().retain(|c| c.qp != qp);
    }
}
