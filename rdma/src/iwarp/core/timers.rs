//! What happens in a connection because time passes.

use super::IwarpCore;
use crate::contract::QpState;
use crate::iwarp::fatal::Fatal;

/// Before the first reminder, in microseconds: longer than a target in the same building takes to
/// answer. Doubles with each.
const FIRST_US: u64 = 20_000;
/// Reminders of one connection: the last is 20 ms × (2⁸ − 1) = 5.1 s after it was made.
const REMINDERS: u32 = 8;

/// The timers of a connection, in microseconds of the program's clock.
pub(super) struct Timers {
    not_ready_timeout_ms: u64,
    /// A Send waits for a receive.
    not_ready: bool,
    /// When its wait began, once the time is known.
    not_ready_since_us: Option<u64>,
    reminder: Option<Reminder>,
}

/// Reminds a peer that it has something to read.
///
/// Linux siw takes over a socket only after it has sent its MPA Reply (`siw_accept`, Linux 6.12),
/// and does not notice what arrived before: it looks only when the next bytes arrive. A side that
/// connects and then waits for the answer to its first message would wait for ever. So while
/// nothing has come from the peer, an empty RDMA WRITE is sent, which has no effect (RFC 5040 §5.1;
/// it is what opens a connection in peer-to-peer mode, RFC 6581 §4.3.1).
struct Reminder {
    due_us: u64,
    wait_us: u64,
    left: u32,
}

impl Timers {
    pub(super) fn new(not_ready_timeout_ms: u64) -> Self {
        Self {
            not_ready_timeout_ms,
            not_ready: false,
            not_ready_since_us: None,
            reminder: None,
        }
    }

    /// A Send waits for a receive.
    pub(super) fn start_not_ready(&mut self) {
        self.not_ready = true;
    }

    /// Something moved: a wait that follows begins anew.
    #[inline]
    pub(super) fn stop_not_ready(&mut self) {
        self.not_ready_since_us = None;
    }
}

impl IwarpCore {
    /// Reminds the peer from `now_us` on, until something comes from it.
    pub(in crate::iwarp) fn start_reminders(&mut self, now_us: u64) {
        self.timers.reminder = Some(Reminder {
            due_us: now_us + FIRST_US,
            wait_us: FIRST_US,
            left: REMINDERS,
        });
    }

    /// When [`IwarpCore::handle_timeout`] is due, in microseconds; 0 while the time that counts is
    /// not known. `None` when no timer runs.
    pub(in crate::iwarp) fn poll_timeout(&self) -> Option<u64> {
        let timers = &self.timers;
        let wait_us = timers.not_ready_timeout_ms * 1000;
        let since = timers.not_ready_since_us;
        let not_ready = timers.not_ready.then(|| since.map_or(0, |at| at + wait_us));
        let reminder = timers.reminder.as_ref().map(|reminder| reminder.due_us);
        not_ready.into_iter().chain(reminder).min()
    }

    /// It is `now_us`. What is to be sent then is built by the next [`IwarpCore::poll_transmit`]
    /// (`Tx::wanted`).
    ///
    /// # Errors
    /// A Send has waited too long for a receive.
    pub(in crate::iwarp) fn handle_timeout(&mut self, now_us: u64) -> Result<(), Fatal> {
        if self.state != QpState::ReadyToSend {
            self.timers.not_ready = false;
            self.timers.reminder = None;
            return Ok(());
        }
        self.handle_not_ready(now_us)?;
        if self.rx.before_first {
            self.remind(now_us);
        } else {
            self.timers.reminder = None;
        }
        Ok(())
    }

    fn handle_not_ready(&mut self, now_us: u64) -> Result<(), Fatal> {
        let timers = &mut self.timers;
        if !self.rx.stalled {
            timers.not_ready = false;
            timers.not_ready_since_us = None;
        }
        if timers.not_ready {
            let since = *timers.not_ready_since_us.get_or_insert(now_us);
            let waited_ms = timers.not_ready_timeout_ms;
            if now_us >= since + waited_ms * 1000 {
                return Err(Fatal::NotReady { waited_ms });
            }
        }
        Ok(())
    }

    fn remind(&mut self, now_us: u64) {
        let Some(reminder) = &mut self.timers.reminder else {
            return;
        };
        if now_us < reminder.due_us {
            return;
        }
        reminder.wait_us *= 2;
        reminder.due_us = now_us + reminder.wait_us;
        reminder.left -= 1;
        if reminder.left == 0 {
            self.timers.reminder = None;
        }
        // A peer that was sent nothing has nothing to read, and bytes that the link does not take
        // yet will remind it when they go.
        if self.tx.sent() > 0 && !self.tx.blocked {
            self.tx.add_empty_write();
            self.tx.wanted = true;
        }
    }
}
