//! Passes asynchronous events to every thread that uses the device.
//!
//! librdmacm opens a device once per process, so all threads share one source of its events, and an
//! event goes to the thread that reads it first. That one passes it to all of them.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::sys::eventfd::{EfdFlags, EventFd};

use super::raw::context::Context;
use super::raw::events::{self, AsyncEvent};

/// Most events that one call passes on, so that a device that floods cannot hold the thread.
const EVENTS_MAX: usize = 1024;

/// The threads that want the events of a device ([`Context::key`]).
static READERS: Mutex<Vec<(usize, Arc<Inbox>)>> = Mutex::new(Vec::new());

/// Events for one thread.
pub(super) struct Inbox {
    queue: Mutex<VecDeque<(usize, AsyncEvent)>>,
    /// Readable while there are events.
    pub(super) wake: EventFd,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while a lock is held, and each change is a single push or pop.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Inbox {
    pub(super) fn new() -> nix::Result<Arc<Self>> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        Ok(Arc::new(Self {
            queue: Mutex::default(),
            wake: EventFd::from_value_and_flags(0, flags)?,
        }))
    }

    /// Takes the next event and the key of its device.
    pub(super) fn take(&self) -> Option<(usize, AsyncEvent)> {
        let event = lock(&self.queue).pop_front();
        if event.is_none() {
            // Emptying a non-blocking eventfd; when it is empty already nothing is lost.
            let _ = self.wake.read();
            // An event that arrived between the two looks has not woken the thread.
            return lock(&self.queue).pop_front();
        }
        event
    }

    fn put(&self, key: usize, event: AsyncEvent) {
        lock(&self.queue).push_back((key, event));
        // Fails only when the counter is at its end, and then the reader is being woken.
        let _ = self.wake.write(1);
    }
}

/// A thread's subscription to the events of a device; ends when dropped.
pub(super) struct Subscription {
    key: usize,
    inbox: Arc<Inbox>,
}

impl Subscription {
    pub(super) fn new(context: &Context, inbox: &Arc<Inbox>) -> Self {
        let key = context.key();
        lock(&READERS).push((key, Arc::clone(inbox)));
        Self {
            key,
            inbox: Arc::clone(inbox),
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut readers = lock(&READERS);
        let mine = |(key, inbox): &(usize, Arc<Inbox>)| {
            *key == self.key && Arc::ptr_eq(inbox, &self.inbox)
        };
        if let Some(at) = readers.iter().position(mine) {
            readers.swap_remove(at);
        }
    }
}

/// Reads the device's events and passes them to every thread that wants them.
pub(super) fn pump(context: &Context) {
    // The lock also keeps two readers from changing the order of events.
    let readers = lock(&READERS);
    for _ in 0..EVENTS_MAX {
        let Some(event) = events::next(context) else {
            return;
        };
        for (key, inbox) in readers.iter() {
            if *key == context.key() {
                inbox.put(*key, event);
            }
        }
    }
}
