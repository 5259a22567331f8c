//! A start that finds operations of a killed target still on their way to a medium: it waits for
//! their end, since an old write would land after newer ones.

use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use capstan_storage::{OpenError, Store};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::signals;

/// Prepares a volume with `prepare`, again and again for as long as `limit` while a killed process
/// has operations under way there. `prepare` itself takes a second to find that out. SIGTERM and
/// SIGINT end the wait.
///
/// # Errors
/// As `prepare`; also when the wait is over, or was ended.
pub(crate) fn wait(
    limit: Duration,
    mut prepare: impl FnMut() -> Result<Store, OpenError>,
) -> anyhow::Result<Store> {
    let start = Instant::now();
    let mut told = false;
    loop {
        let error = match prepare() {
            Err(error @ OpenError::Unfinished { .. }) => error,
            Ok(store) => {
                if told {
                    let volume = store.name();
                    tracing::info!(%volume, "its last operation was over after {:?}", start.elapsed());
                }
                return Ok(store);
            }
            Err(error) => return Err(error.into()),
        };
        if start.elapsed() >= limit {
            let waited = start.elapsed().as_secs();
            return Err(error).with_context(|| format!("waited for {waited} s"));
        }
        if !std::mem::replace(&mut told, true) {
            tracing::warn!("{error}; waiting for at most {limit:?}");
            signals::notify_status(&format!("waiting: {error}"));
        }
        if is_asked_to_end().context("cannot look for signals")? {
            bail!("asked to end while it waited: {error}");
        }
    }
}

/// Whether SIGTERM or SIGINT came while they were held. It is taken, so the caller has to end.
fn is_asked_to_end() -> io::Result<bool> {
    let signals = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT]);
    let pending = SignalFd::with_flags(&signals, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
    let mut fds = [PollFd::new(pending.as_fd(), PollFlags::POLLIN)];
    Ok(poll(&mut fds, PollTimeout::ZERO)? > 0)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use capstan_storage::{OpenError, VolumeSpec};

    use super::wait;

    fn unfinished() -> OpenError {
        OpenError::Unfinished {
            volume: Arc::from("/dev/slow"),
            pid: 4711,
        }
    }

    #[test]
    fn operations_of_a_killed_process_are_waited_for_and_nothing_else_is() {
        let spec = VolumeSpec::Null {
            bytes: 4096,
            lba_bytes: 4096,
        };
        let mut left = 3;
        let store = wait(Duration::from_secs(600), || {
            left -= 1;
            if left == 0 {
                spec.prepare()
            } else {
                Err(unfinished())
            }
        });
        assert_eq!((left, &**store.unwrap().name()), (0, "null:4KiB"));
        let mut tries = 0;
        let error = wait(Duration::from_secs(600), || {
            tries += 1;
            let volume = Arc::from("/dev/mounted");
            Err(OpenError::Busy { volume })
        });
        assert!(error.unwrap_err().to_string().contains("is in use"));
        assert_eq!(tries, 1);
    }

    #[test]
    fn the_wait_has_a_bound_and_says_what_for() {
        let error = wait(Duration::ZERO, || Err(unfinished())).unwrap_err();
        let words = format!("{error:#}");
        for word in ["/dev/slow", "pid 4711", "on their way", "waited for 0 s"] {
            assert!(words.contains(word), "{words}");
        }
    }
}
