//! Messages to a reactor from other threads, with a wake-up only when it sleeps.

use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use nix::sys::eventfd::{EfdFlags, EventFd};

/// A message was not taken; it is handed back.
#[derive(Debug, thiserror::Error)]
pub enum MailboxError<T> {
    /// The bound of the mailbox is reached; try again after the reactor has run.
    #[error("the reactor's mailbox is full")]
    Full(T),
    /// The reactor has ended.
    #[error("the reactor has ended")]
    Closed(T),
}

/// A reactor writes here whenever it sleeps: in a cache line (and the neighbour that is fetched with it) of its own, or
/// others would wait for what is beside it.
#[derive(Debug)]
#[repr(align(128))]
struct Shared {
    event: EventFd,
    sleeping: AtomicBool,
}

/// The sending side; clone it for every thread.
#[derive(Debug)]
pub struct Sender<T> {
    queue: SyncSender<T>,
    shared: Arc<Shared>,
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self {
            queue: self.queue.clone(),
            shared: Arc::clone(&self.shared),
        }
    }
}

/// The reactor's side.
#[derive(Debug)]
pub struct Mailbox<T> {
    queue: Receiver<T>,
    shared: Arc<Shared>,
}

/// A mailbox for at most `bound` waiting messages.
///
/// # Errors
/// No eventfd (descriptor limit).
pub fn mailbox<T>(bound: usize) -> nix::Result<(Sender<T>, Mailbox<T>)> {
    let event = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?;
    let shared = Arc::new(Shared {
        event,
        sleeping: AtomicBool::new(false),
    });
    let (sender, receiver) = sync_channel(bound);
    Ok((
        Sender {
            queue: sender,
            shared: Arc::clone(&shared),
        },
        Mailbox {
            queue: receiver,
            shared,
        },
    ))
}

impl<T> Sender<T> {
    /// Sends without blocking, waking the reactor if it sleeps.
    ///
    /// # Errors
    /// The mailbox is full or its reactor has ended; the message comes back.
    pub fn send(&self, message: T) -> Result<(), MailboxError<T>> {
        self.queue.try_send(message).map_err(|error| match error {
            TrySendError::Full(message) => MailboxError::Full(message),
            TrySendError::Disconnected(message) => MailboxError::Closed(message),
        })?;
        // Pairs with the fence in `arm`: either this thread sees `sleeping`, or the reactor's last
        // look at the queue sees the message.
        fence(Ordering::SeqCst);
        if self.shared.sleeping.swap(false, Ordering::SeqCst) {
            // A full counter means that a wake-up is pending already.
            let _ = self.shared.event.write(1);
        }
        Ok(())
    }
}

impl<T> Mailbox<T> {
    /// The next message, if any.
    pub fn poll(&mut self) -> Option<T> {
        self.queue.try_recv().ok()
    }

    /// Asks for a wake-up at the next message. The caller must poll once more before it sleeps.
    pub fn arm(&mut self) {
        self.shared.sleeping.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Says that the reactor is awake again, and whether its descriptor may be readable.
    pub fn disarm(&mut self, readable: bool) {
        self.shared.sleeping.store(false, Ordering::SeqCst);
        if readable {
            // Who writes it only now wakes the next sleep, and is read after that.
            let _ = self.shared.event.read();
        }
    }

    /// Readable after [`Mailbox::arm`] when a message has come.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        self.shared.event.as_fd().as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::{MailboxError, mailbox};

    #[test]
    fn bounded_and_in_order() {
        let (sender, mut mailbox) = mailbox(2).unwrap();
        sender.send(1).unwrap();
        sender.send(2).unwrap();
        assert!(matches!(sender.send(3), Err(MailboxError::Full(3))));
        assert_eq!(
            (mailbox.poll(), mailbox.poll(), mailbox.poll()),
            (Some(1), Some(2), None)
        );
        drop(mailbox);
        assert!(matches!(sender.send(4), Err(MailboxError::Closed(4))));
    }
}
