//! The open files of opens and of lock owners.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use capstan_exports::{OpenAccess, OpenFile};

use crate::state::{Action, IoAccess, LockId, OpenId, Shares};

/// Open files: those of each open, and one of each lock owner's locks on a file, as OFD locks
/// belong to an open file description (fcntl_locking(2)).
#[derive(Debug, Default)]
pub(super) struct Files {
    opens: Mutex<HashMap<OpenId, OfOpen>>,
    locks: Mutex<HashMap<LockId, Arc<OpenFile>>>,
}

/// What an open has open. An owner may open a file to read, and later to write what it can no more
/// read, or the other way round: each OPEN is let in by what the file's mode says at its time.
#[derive(Debug, Default)]
struct OfOpen {
    read: Option<Arc<OpenFile>>,
    write: Option<Arc<OpenFile>>,
    both: Option<Arc<OpenFile>>,
}

/// Files that are closed when this is dropped, unless they are in use.
#[derive(Debug, Default)]
pub(super) struct Released(Vec<Arc<OpenFile>>);

impl Released {
    /// Whether nothing is closed.
    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn add(&mut self, files: impl IntoIterator<Item = Arc<OpenFile>>) {
        self.0.extend(files);
    }
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a file is opened for.
pub(super) const fn open_access(shares: Shares) -> OpenAccess {
    match (
        shares.contains(Shares::READ),
        shares.contains(Shares::WRITE),
    ) {
        (true, true) => OpenAccess::Both,
        (false, true) => OpenAccess::Write,
        (_, false) => OpenAccess::Read,
    }
}

impl Files {
    /// Keeps a file of an open beside those it has; one that it has already is given back.
    pub(super) fn keep_open(&self, open: OpenId, file: Arc<OpenFile>) -> Released {
        let mut opens = locked(&self.opens);
        let of_open = opens.entry(open).or_default();
        let place = match file.access() {
            OpenAccess::Read => &mut of_open.read,
            OpenAccess::Write => &mut of_open.write,
            OpenAccess::Both => &mut of_open.both,
        };
        let mut released = Released::default();
        if place.is_some() {
            released.add([file]);
        } else {
            *place = Some(file);
        }
        released
    }

    /// The file of an open, to read or to write.
    pub(super) fn open(&self, open: OpenId, access: IoAccess) -> Option<Arc<OpenFile>> {
        let opens = locked(&self.opens);
        let of_open = opens.get(&open)?;
        let narrow = match access {
            IoAccess::Read => &of_open.read,
            IoAccess::Write => &of_open.write,
        };
        of_open.both.as_ref().or(narrow.as_ref()).cloned()
    }

    /// Gives back what an open does not need any more when no more OPENs than those with `left` as
    /// access are left of it.
    pub(super) fn narrow(&self, open: OpenId, left: &[Shares]) -> Released {
        let mut released = Released::default();
        if let Some(OfOpen { read, write, both }) = locked(&self.opens).get_mut(&open) {
            let kinds = [
                (Shares::READ, read),
                (Shares::WRITE, write),
                (Shares::BOTH, both),
            ];
            for (_, file) in kinds.into_iter().filter(|(kind, _)| !left.contains(kind)) {
                released.add(file.take());
            }
        }
        released
    }

    /// Keeps the file that has a lock owner's locks.
    pub(super) fn keep_locks(&self, lock: LockId, file: Arc<OpenFile>) {
        locked(&self.locks).insert(lock, file);
    }

    /// The file that has a lock owner's locks.
    pub(super) fn locks(&self, lock: LockId) -> Option<Arc<OpenFile>> {
        locked(&self.locks).get(&lock).cloned()
    }

    /// Gives back what an action takes away.
    pub(super) fn carry_out(&self, action: &Action, released: &mut Released) {
        match action {
            Action::Close { open, .. } => {
                if let Some(OfOpen { read, write, both }) = locked(&self.opens).remove(open) {
                    released.add([read, write, both].into_iter().flatten());
                }
            }
            Action::ReleaseLocks { lock, .. } => released.add(locked(&self.locks).remove(lock)),
            Action::EndClient { .. } => {}
        }
    }
}
