//! Messages to a reactor from other threads, with a wake-up only when it sleeps.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::sys::eventfd::{EfdFlags, EventFd};

/// A message was not taken; it comes back.
#[derive(Debug, thiserror::Error)]
pub enum MailboxError<T> {
    /// The bound of the mailbox is reached; try again after the reactor has run.
    #[error("the reactor's mailbox is full")]
    Full(T),
    /// The reactor has ended.
    #[error("the reactor has ended")]
    Closed(T),
}

/// Written by the reactor whenever it sleeps, so it has a cache line of its own (and the
/// neighbouring one, which processors prefetch with it): otherwise other threads would wait for
/// what lies beside it.
#[derive(Debug)]
#[repr(align(128))]
struct Shared<T> {
    event: EventFd,
    sleeping: AtomicBool,
    /// Whether messages wait beyond the bound: checking it saves the reactor the lock.
    overflowed: AtomicBool,
    overflow: Mutex<Overflow<T>>,
}

/// Messages beyond the bound.
#[derive(Debug)]
struct Overflow<T> {
    messages: VecDeque<T>,
    /// The reactor has ended.
    closed: bool,
}

impl<T> Shared<T> {
    fn overflow(&self) -> MutexGuard<'_, Overflow<T>> {
        // Every call leaves the list consistent.
        self.overflow.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        // Pairs with the fence in `arm`: either this thread sees `sleeping`, or the reactor's last
        // look at the queue sees the message.
        fence(Ordering::SeqCst);
        if self.sleeping.swap(false, Ordering::SeqCst) {
            // A full counter means that a wake-up is pending already.
            let _ = self.event.write(1);
        }
    }
}

/// The sending side; clone it for every thread.
#[derive(Debug)]
pub struct Sender<T> {
    queue: SyncSender<T>,
    shared: Arc<Shared<T>>,
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
    shared: Arc<Shared<T>>,
}

/// A mailbox for at most `bound` waiting messages, beside those of [`Sender::send_even_if_full`].
///
/// # Errors
/// No eventfd (descriptor limit).
pub fn mailbox<T>(bound: usize) -> nix::Result<(Sender<T>, Mailbox<T>)> {
    let event = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?;
    let shared = Arc::new(Shared {
        event,
        sleeping: AtomicBool::new(false),
        overflowed: AtomicBool::new(false),
        overflow: Mutex::new(Overflow {
            messages: VecDeque::new(),
            closed: false,
        }),
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
        // What waits beyond the bound must not be overtaken.
        if self.shared.overflowed.load(Ordering::Acquire) {
            return Err(MailboxError::Full(message));
        }
        self.queue.try_send(message).map_err(|error| match error {
            TrySendError::Full(message) => MailboxError::Full(message),
            TrySendError::Disconnected(message) => MailboxError::Closed(message),
        })?;
        self.shared.wake();
        Ok(())
    }

    /// The same for a message that must arrive: where the bound is reached it waits beyond it,
    /// behind all that this thread has sent before. The caller makes sure that there are not many
    /// of them. Returns how many wait there now.
    ///
    /// # Errors
    /// The reactor has ended; the message comes back.
    pub fn send_even_if_full(&self, message: T) -> Result<usize, MailboxError<T>> {
        let message = match self.send(message) {
            Err(MailboxError::Full(message)) => message,
            other => return other.map(|()| 0),
        };
        let mut overflow = self.shared.overflow();
        if overflow.closed {
            return Err(MailboxError::Closed(message));
        }
        overflow.messages.push_back(message);
        let waiting = overflow.messages.len();
        self.shared.overflowed.store(true, Ordering::Release);
        drop(overflow);
        self.shared.wake();
        Ok(waiting)
    }
}

impl<T> Mailbox<T> {
    /// The next message, if any.
    pub fn poll(&mut self) -> Option<T> {
        let message = self.queue.try_recv().ok();
        if message.is_none() && self.shared.overflowed.load(Ordering::Acquire) {
            return self.poll_overflow();
        }
        message
    }

    #[cold]
    fn poll_overflow(&mut self) -> Option<T> {
        let mut overflow = self.shared.overflow();
        // A thread whose message is in the overflow has put its earlier ones into the queue before:
        // those are visible under the lock.
        if let Ok(message) = self.queue.try_recv() {
            return Some(message);
        }
        let message = overflow.messages.pop_front();
        if overflow.messages.is_empty() {
            // The memory is freed as well: this is rare.
            overflow.messages = VecDeque::new();
            self.shared.overflowed.store(false, Ordering::Release);
        }
        message
    }

    /// Asks for a wake-up at the next message. The caller must poll once more before it sleeps.
    pub fn arm(&mut self) {
        self.shared.sleeping.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// The reactor is awake again; `readable` says whether its descriptor may be readable.
    pub fn disarm(&mut self, readable: bool) {
        self.shared.sleeping.store(false, Ordering::SeqCst);
        if readable {
            // A wake-up that is written only after this ends the next sleep, and is read then.
            let _ = self.shared.event.read();
        }
    }

    /// Readable after [`Mailbox::arm`] when a message has arrived.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        self.shared.event.as_fd().as_raw_fd()
    }
}

impl<T> Drop for Mailbox<T> {
    fn drop(&mut self) {
        let mut overflow = self.shared.overflow();
        overflow.closed = true;
        let undelivered = std::mem::take(&mut overflow.messages);
        self.shared.overflowed.store(false, Ordering::Release);
        drop(overflow);
        // Messages may hold senders of their own.
        drop(undelivered);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::thread;

    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    use super::{Mailbox, MailboxError, mailbox};

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

    #[test]
    fn what_must_arrive_waits_for_a_stuck_reactor_and_is_not_overtaken() {
        let (sender, mut mailbox) = mailbox(2).unwrap();
        let counts: Vec<_> = (0..5)
            .map(|n| sender.send_even_if_full(n).unwrap())
            .collect();
        assert_eq!(counts, [0, 0, 1, 2, 3]);
        // The queue itself has room again, but older messages wait beyond it.
        assert_eq!((mailbox.poll(), mailbox.poll()), (Some(0), Some(1)));
        assert!(matches!(sender.send(5), Err(MailboxError::Full(5))));
        assert_eq!(sender.send_even_if_full(5).unwrap(), 4);
        let rest: Vec<_> = std::iter::from_fn(|| mailbox.poll()).collect();
        assert_eq!(rest, [2, 3, 4, 5]);
        sender.send(6).unwrap();
        assert_eq!(mailbox.poll(), Some(6));
    }

    #[test]
    fn an_ended_reactor_keeps_nothing_that_must_arrive() {
        let (sender, mailbox) = mailbox(1).unwrap();
        for n in 0..3 {
            sender.send_even_if_full(n).unwrap();
        }
        drop(mailbox);
        assert!(matches!(sender.send(3), Err(MailboxError::Closed(3))));
        let late = sender.send_even_if_full(4);
        assert!(matches!(late, Err(MailboxError::Closed(4))));
    }

    #[test]
    fn messages_beyond_the_bound_wake_a_sleeping_reactor_in_the_order_of_each_sender() {
        const SENDERS: usize = 4;
        const MESSAGES: usize = 20_000;
        let (sender, mut mailbox) = mailbox(8).unwrap();
        let threads: Vec<_> = (0..SENDERS)
            .map(|thread| {
                let sender = sender.clone();
                thread::spawn(move || {
                    for n in 0..MESSAGES {
                        sender.send_even_if_full((thread, n)).unwrap();
                    }
                })
            })
            .collect();
        let mut next = [0; SENDERS];
        while next.iter().sum::<usize>() < SENDERS * MESSAGES {
            let (thread, n) = wait(&mut mailbox);
            assert_eq!(n, next[thread], "of sender {thread}");
            next[thread] += 1;
        }
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(mailbox.poll(), None);
    }

    /// The next message; sleeps until it comes, as a reactor does.
    fn wait<T>(mailbox: &mut Mailbox<T>) -> T {
        loop {
            if let Some(message) = mailbox.poll() {
                return message;
            }
            mailbox.arm();
            if let Some(message) = mailbox.poll() {
                mailbox.disarm(true);
                return message;
            }
            let mut fds = [PollFd::new(mailbox.shared.event.as_fd(), PollFlags::POLLIN)];
            let ready = poll(&mut fds, PollTimeout::from(60_000_u16)).unwrap();
            assert_eq!(ready, 1, "no wake-up within a minute");
            mailbox.disarm(true);
        }
    }
}
