//! The open files of opens and of lock owners.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use capstan_exports::OpenFile;

use crate::state::{Action, LockId, OpenId};

/// Open files: one of each open, and one of each lock owner's locks on a file, as OFD locks belong
/// to an open file description (fcntl_locking(2)).
#[derive(Debug, Default)]
pub(super) struct Files {
    opens: Mutex<HashMap<OpenId, Arc<OpenFile>>>,
    locks: Mutex<HashMap<LockId, Arc<OpenFile>>>,
}

/// Files that are closed when this is dropped, unless they are in use.
#[derive(Debug, Default)]
pub(super) struct Released(Vec<Arc<OpenFile>>);

impl Released {
    pub(super) fn add(&mut self, file: Option<Arc<OpenFile>>) {
        self.0.extend(file);
    }
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Files {
    /// Keeps the file of an open: instead of the one it had, which is given back, where an owner's
    /// open became wider.
    pub(super) fn keep_open(&self, open: OpenId, file: Arc<OpenFile>) -> Option<Arc<OpenFile>> {
        locked(&self.opens).insert(open, file)
    }

    /// The file of an open.
    pub(super) fn open(&self, open: OpenId) -> Option<Arc<OpenFile>> {
        locked(&self.opens).get(&open).cloned()
    }

    /// Keeps the file that has a lock owner's locks.
    pub(super) fn keep_locks(&self, lock: LockId, file: Arc<OpenFile>) {
        locked(&self.locks).insert(lock, file);
    }

    /// The file that has a lock owner's locks.
    pub(super) fn locks(&self, lock: LockId) -> Option<Arc<OpenFile>> {
        locked(&self.locks).get(&lock).cloned()
    }

    /// What an action takes away.
    pub(super) fn carry_out(&self, action: &Action) -> Option<Arc<OpenFile>> {
        match action {
            Action::Close { open, .. } => locked(&self.opens).remove(open),
            Action::ReleaseLocks { lock, .. } => locked(&self.locks).remove(lock),
        }
    }
}
