//! The control thread: signals, readiness and the watchdog, on its own `tokio-uring` runtime and
//! never on a data core.

use std::io;
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::signal::unix::{SignalKind, signal};

/// Waits until the process is asked to end: SIGTERM, SIGINT, or `ended` when a reactor has failed.
/// SIGHUP calls `reload`, which answers with the new status. Tells systemd that the service is ready
/// (again), and feeds its watchdog while every reactor is alive.
///
/// # Errors
/// The runtime (io_uring) or the signal handlers cannot be set up.
pub(crate) fn wait_for_end(
    status: &str,
    mut alive: impl FnMut() -> bool,
    mut reload: impl FnMut() -> String,
) -> io::Result<&'static str> {
    tokio_uring::start(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut hangup = signal(SignalKind::hangup())?;
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
