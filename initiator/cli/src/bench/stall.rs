//! A target that completes nothing: a measurement of it has nothing to show, and says so.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use capstan_initiator::AssociationStatus;
use capstan_initiator::{DirectQueue, Options};

use super::super::output;

/// How long no I/O of a job may end before that is told.
const TELL_AFTER: Duration = Duration::from_secs(5);
/// And how long after that it is told again.
const TELL_AGAIN: Duration = Duration::from_secs(60);

/// Of all jobs: one of them tells it.
#[derive(Debug, Default)]
pub(super) struct Stalls {
    is_told: AtomicBool,
}

/// The wait of a job for its next completion.
pub(super) struct Wait<'a> {
    stalls: &'a Stalls,
    start: Instant,
    tell_at: Duration,
    tells: bool,
}

impl<'a> Wait<'a> {
    pub(super) fn new(stalls: &'a Stalls) -> Self {
        Self {
            stalls,
            start: Instant::now(),
            tell_at: TELL_AFTER,
            tells: false,
        }
    }

    /// Nothing has come: says so when it is time for that.
    pub(super) fn goes_on(&mut self, queue: &DirectQueue, options: &Options) {
        let waited = self.start.elapsed();
        if waited < self.tell_at {
            return;
        }
        self.tells = self.tells || !self.stalls.is_told.swap(true, Ordering::Relaxed);
        if self.tells {
            self.tell_at = waited + TELL_AGAIN;
            let (waited_s, status) = (waited.as_secs(), queue.status());
            output::note(&format!(
                "no completion for {waited_s} s ({status}); waiting for the target until {}",
                until(&status, options)
            ));
        }
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        if self.tells {
            self.stalls.is_told.store(false, Ordering::Relaxed);
        }
    }
}

/// What ends the wait for a target that stays as it is.
fn until(status: &AssociationStatus, options: &Options) -> String {
    let lost = match options.ctrl_loss_tmo {
        None => "tried again without end (--ctrl-loss-tmo -1)".to_owned(),
        Some(after) => format!("tried again for {} s (--ctrl-loss-tmo)", after.as_secs()),
    };
    match status {
        AssociationStatus::Live => format!(
            "an I/O has taken {} s (--io-timeout): then its connection counts as lost, and is {lost}",
            options.io_timeout.as_secs()
        ),
        _ => format!("it answers; it is {lost}"),
    }
}
