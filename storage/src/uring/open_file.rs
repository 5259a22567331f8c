//! A file or device as one engine knows it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use crate::file::FileStore;

/// A [`FileStore`] as one engine knows it.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(crate) store: Arc<FileStore>,
    /// Its place in the ring's table of fixed files, when it has one.
    pub(crate) fixed: Option<u32>,
    /// What turned out not to work here; not asked for again.
    pub(crate) refused: Refused,
    /// Where a fixed place goes when the last operation and the volume are gone.
    pub(crate) retired: Rc<RefCell<Vec<u32>>>,
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
