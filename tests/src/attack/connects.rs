//! How fast an attacker may be that shares the address of a permitted host: that is counted in what
//! the host does, and not in time, as a busy machine may run either of them first.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Connections that the attacker opens at most while a permitted host at its address connects.
/// Among those of one address the newest keep their places: the host has its own until as many have
/// come as there are places for further queues, 128 of 352 (`docs/resources.md`). Of the smallest
/// budget of these tests, 32 MiB, 3 MiB are places of 26 KiB each: 118, of which 42 are for those.
const OPENED_MEANWHILE: usize = 32;

/// The connects of permitted hosts, one at a time, and what is opened meanwhile.
#[derive(Debug, Default)]
pub struct Connects {
    /// `None` while no host connects.
    opened: Mutex<Option<usize>>,
    ended: Condvar,
}

impl Connects {
    /// Connects a host.
    pub(super) fn run<T>(&self, connect: impl FnOnce() -> T) -> T {
        *self.opened() = Some(0);
        let _end = End(self);
        connect()
    }

    /// Waits until one more connection may be opened.
    pub fn wait_for_room(&self) {
        let is_full = |opened: &mut Option<usize>| *opened == Some(OPENED_MEANWHILE);
        let waited = self.ended.wait_while(self.opened(), is_full);
        let mut opened = waited.unwrap_or_else(PoisonError::into_inner);
        if let Some(opened) = opened.as_mut() {
            *opened += 1;
        }
    }

    fn opened(&self) -> MutexGuard<'_, Option<usize>> {
        // A number: a panic elsewhere does not spoil it.
        self.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends a connect also when it panics: the attacker goes on.
struct End<'a>(&'a Connects);

impl Drop for End<'_> {
    fn drop(&mut self) {
        *self.0.opened() = None;
        self.0.ended.notify_all();
    }
}
