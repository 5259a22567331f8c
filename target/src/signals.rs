//! The control thread: signals, readiness and the watchdog, on its own `tokio-uring` runtime and
//! never on a data core.

use std::io;
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};
use sd_notify::NotifyState;
use tokio::signal::unix::{SignalKind, signal};

/// SIGTERM, SIGINT and SIGHUP, kept from ending the process until there is somebody who answers
/// them: one that comes while the target starts is answered once it has. Threads that are made in
/// the meantime never see them. Dropped, they do what the kernel has them do.
pub struct Held {
    signals: SigSet,
}

impl Held {
    /// Holds them for this thread and those it makes, so it comes first in `main`.
    ///
    /// # Errors
    /// The kernel refuses, which it does not for these signals.
    pub fn hold() -> io::Result<Self> {
        let signals = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP]);
        signals.thread_block()?;
        Ok(Self { signals })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Err(error) = self.signals.thread_unblock() {
            tracing::error!(%error, "SIGTERM, SIGINT and SIGHUP stay blocked: only SIGKILL ends this process");
        }
    }
}

/// Waits until the process is asked to end: SIGTERM, SIGINT, or `ended` when a reactor has failed.
/// SIGHUP calls `reload`, which answers with the new status. Tells systemd that the service is ready
/// (again), and feeds its watchdog while every reactor is alive. Signals `held` until now are answered
/// first.
///
/// # Errors
/// The runtime (io_uring) or the signal handlers cannot be set up.
pub(crate) fn wait_for_end(
    held: Held,
    status: &str,
    mut alive: impl FnMut() -> bool,
    mut reload: impl FnMut() -> String,
) -> io::Result<&'static str> {
    tokio_uring::start(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut hangup = signal(SignalKind::hangup())?;
        drop(held);
        notify(&[NotifyState::Ready, NotifyState::Status(status)]);
        let mut beat = tokio::time::interval(beat_interval());
        loop {
            tokio::select! {
                _ = terminate.recv() => return Ok("SIGTERM"),
                _ = interrupt.recv() => return Ok("SIGINT"),
                _ = hangup.recv() => {
                    notify(&[NotifyState::Reloading]);
                    let status = reload();
                    notify(&[NotifyState::Ready, NotifyState::Status(&status)]);
                }
                _ = beat.tick() => {
                    if !alive() {
                        return Ok("a reactor ended");
                    }
                    notify(&[NotifyState::Watchdog]);
                }
            }
        }
    })
}

/// Tells systemd that the service is ending.
pub(crate) fn notify_stopping() {
    notify(&[NotifyState::Stopping]);
}

/// Tells systemd what the service does.
pub(crate) fn notify_status(status: &str) {
    notify(&[NotifyState::Status(status)]);
}

fn notify(states: &[NotifyState<'_>]) {
    // Without systemd there is nobody to tell; with it, a failure shows as a start timeout there.
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "systemd was not notified");
    }
}

/// Half the watchdog's period, as sd_watchdog_enabled(3) advises; a second without a watchdog.
fn beat_interval() -> Duration {
    sd_notify::watchdog_enabled().map_or(Duration::from_secs(1), |period| period / 2)
}
