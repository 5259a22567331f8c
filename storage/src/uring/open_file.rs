//! A file or device as one engine knows it.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::rc::Rc;
use std::sync::Arc;

use super::syncs::Syncs;
use crate::file::FileStore;

/// A [`FileStore`] as one engine knows it.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(crate) store: Arc<FileStore>,
    /// Its index in the ring's table of fixed files, when it has one.
    pub(crate) fixed: Option<u32>,
    /// This engine's own description of the file, to sync through; `None` where none could be
    /// opened.
    pub(crate) to_sync: Option<File>,
    /// Syncs that run and syncs that wait.
    pub(crate) syncs: Syncs,
    /// What turned out not to work here; not tried again.
    pub(crate) refused: Refused,
    /// Where a fixed index is put when the last operation and the volume are gone.
    pub(crate) retired: Rc<RefCell<Vec<u32>>>,
}

impl OpenFile {
    pub(crate) fn sync_fd(&self) -> RawFd {
        let own = self.to_sync.as_ref().map(AsRawFd::as_raw_fd);
        own.unwrap_or_else(|| self.store.raw_fd())
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        if let Some(fixed) = self.fixed {
            self.retired.borrow_mut().push(fixed);
        }
    }
}

/// Ways to empty a range that a file system or device has refused.
#[derive(Debug, Default)]
pub(crate) struct Refused {
    pub(crate) block_discard: Cell<bool>,
    pub(crate) punch: Cell<bool>,
    pub(crate) zero_range: Cell<bool>,
}
