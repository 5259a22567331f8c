//! The end of a disk that nobody uses.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use capstan_reactor::Asked;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::sys::signalfd::SignalFd;

use super::clearing::clear_loop;
use super::making::on_thread;
use super::record::Record;
use super::serve::ServeError;
use super::users::open_in;

/// How long a cleared loop device may take to let the file go.
const RELEASE_PATIENCE: Duration = Duration::from_secs(10);

/// Why a disk is not taken down, in words.
#[derive(Debug, thiserror::Error)]
pub(super) enum Stays {
    /// It is in use, or does not go.
    #[error("{0}")]
    InUse(String),
    /// Another signal has come while it was to go.
    #[error("{0}")]
    Insisted(String),
}

/// Takes the loop device of a volume down unless it is in use. `life` hangs up when its FUSE file
/// is gone. One of `signals` gives up waiting for that.
pub(super) fn detach(
    record: &Record,
    life: BorrowedFd<'_>,
    signals: Option<&SignalFd>,
) -> Result<(), Stays> {
    let device = record.device.display();
    let of = record.clone();
    let in_use = |error: ServeError| Stays::InUse(error.to_string());
    let (clearing, done) = on_thread(move || clear_loop(&of)).map_err(in_use)?;
    wait_or_insist(done.as_fd(), PollFlags::POLLIN, signals, None, || {
        format!("{device} is not cleared yet: the kernel waits for its I/O")
    })?;
    if let Ok(cleared) = clearing.join() {
        cleared.map_err(Stays::InUse)?;
    }
    // The device lets the file go when its last I/O is done; the kernel then ends the mount.
    // Asked for nothing, it tells of the hang-up.
    let patience = Some(RELEASE_PATIENCE);
    wait_or_insist(life, PollFlags::empty(), signals, patience, || {
        let open_in = open_in(&record.device);
        format!("{device} is still open {open_in}; it is detached when that ends")
    })
}

/// Waits for `fd`, with `why` that may take long.
fn wait_or_insist(
    fd: BorrowedFd<'_>,
    flags: PollFlags,
    signals: Option<&SignalFd>,
    patience: Option<Duration>,
    why: impl Fn() -> String,
) -> Result<(), Stays> {
    let asked = Asked::now();
    loop {
        let mut fds = vec![PollFd::new(fd, flags)];
        fds.extend(signals.map(|signals| PollFd::new(signals.as_fd(), PollFlags::POLLIN)));
        let rest = patience.map(|patience| patience.saturating_sub(asked.elapsed()));
        let timeout = rest.map_or(PollTimeout::NONE, |rest| {
            PollTimeout::try_from(rest).unwrap_or(PollTimeout::MAX)
        });
        match poll(&mut fds, timeout) {
            Err(Errno::EINTR) => continue,
            Ok(1..) => {}
            _ => return Err(Stays::InUse(why())),
        }
        let is_over = fds.first().and_then(PollFd::any).unwrap_or(false);
        if is_over {
            return Ok(());
        }
        while let Some(Ok(Some(signal))) = signals.map(SignalFd::read_signal) {
            let is_hangup = i32::try_from(signal.ssi_signo) == Ok(Signal::SIGHUP as i32);
            if !is_hangup && asked.is_insisted_on() {
                return Err(Stays::Insisted(why()));
            }
        }
    }
}
