//! SIGINT, SIGTERM and SIGHUP for commands that have something to put in order before they end. All
//! others leave them to the kernel, which ends them where they are.

use std::fmt;
use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use capstan_reactor::Asked;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::pipe2;

use super::{claim, output};

/// How long a command that was asked to end may take for that, and what it waits for then: together
/// with the rest it does, less than two seconds.
pub(super) const PATIENCE: Duration = Duration::from_millis(1200);

/// How long a command that was asked to end may take to print what it has: see [`PATIENCE`].
const PRINTING: Duration = Duration::from_millis(500);

/// A command was ended by a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Interrupted(pub(super) Signal);

impl Interrupted {
    /// Whether the terminal has gone. That comes unasked, several times at once or in a row, and is
    /// nobody's wish to lose what is not written.
    pub(super) fn is_hangup(self) -> bool {
        self.0 == Signal::SIGHUP
    }

    /// The exit status that shells give to a command which the signal ended.
    pub(super) fn exit_status(self) -> u8 {
        u8::try_from(self.0 as i32).map_or(u8::MAX, |number| number.saturating_add(128))
    }
}

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ended by {}", self.0)
    }
}

impl std::error::Error for Interrupted {}

/// Blocks SIGXFSZ in this thread and in those that it starts afterwards: a write beyond
/// RLIMIT_FSIZE then fails with EFBIG instead of ending the process (setrlimit(2)).
///
/// # Errors
/// The kernel refuses, which it does not for this signal.
pub(super) fn outlive_file_size_limit() -> Result<()> {
    let signals = SigSet::from_iter([Signal::SIGXFSZ]);
    signals.thread_block().context("blocking SIGXFSZ")
}

/// What asks this process to end: also that its terminal has gone, as at the end of an ssh session,
/// but where what started it had that ignored (nohup(1)).
fn ends() -> SigSet {
    let mut ends = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT]);
    if !is_ignored(Signal::SIGHUP) {
        ends.add(Signal::SIGHUP);
    }
    ends
}

/// Whether this process ignores a signal (`SigIgn` of proc_pid_status(5)).
fn is_ignored(signal: Signal) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let bits = line.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    bits.is_some_and(|bits| bits >> (signal as i32 - 1) & 1 == 1)
}

/// SIGINT, SIGTERM and SIGHUP, which this process takes itself from now on.
pub(super) struct Interrupts(SignalFd);

impl Interrupts {
    /// Blocks them for this thread and those that it starts afterwards: to be called before any is.
    pub(super) fn take() -> Result<Self> {
        let signals = ends();
        signals.thread_block().context("blocking signals")?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        let signals = SignalFd::with_flags(&signals, flags).context("signalfd")?;
        Ok(Self(signals))
    }

    /// The one that has come, if any.
    pub(super) fn next(&self) -> Option<Interrupted> {
        let signal = self.0.read_signal().ok()??;
        let number = i32::try_from(signal.ssi_signo).ok()?;
        Signal::try_from(number).ok().map(Interrupted)
    }

    /// The next one, waited for as long as `patience`.
    pub(super) fn wait(&self, patience: Duration) -> Result<Option<Interrupted>> {
        wait_for(&[self.as_fd()], Some(patience))?;
        Ok(self.next())
    }

    /// Waits for one of `fds` or a second signal, as long as `patience`, where the first one has
    /// just come: `true` when a second has.
    pub(super) fn insist(&self, fds: &[BorrowedFd<'_>], patience: Duration) -> Result<bool> {
        let asked = Asked::now();
        loop {
            let rest = patience.saturating_sub(asked.elapsed());
            let all = [fds, &[self.as_fd()]].concat();
            if !wait_for(&all, Some(rest))? {
                return Ok(false);
            }
            match self.next() {
                Some(_) if asked.is_insisted_on() => return Ok(true),
                // One with the first.
                Some(_) => {}
                None => return Ok(false),
            }
        }
    }

    /// What is left is to print what was done, to a reader who may take no more: a signal ends the
    /// process where it is.
    ///
    /// # Errors
    /// The kernel refuses, which it does not for these signals.
    pub(super) fn leave_to_the_kernel(&self) -> Result<()> {
        let signals = ends();
        signals.thread_unblock().context("unblocking signals")
    }

    /// The same when `came` has come: so the process ends soon in any case.
    ///
    /// # Errors
    /// There is no thread that waits so long.
    pub(super) fn end_the_process_soon(self, came: Interrupted) -> Result<()> {
        let wait = move || {
            let _ = self.insist(&[], PRINTING);
            claim::leave_no_file();
            process::exit(came.exit_status().into());
        };
        let name = "capstan-signals".to_owned();
        let thread = thread::Builder::new().name(name).spawn(wait);
        output::started(thread, || {
            "starting the thread that waits for signals".to_owned()
        })?;
        Ok(())
    }

    /// Has a signal end the process where it is, as the kernel would, once what `state` says is
    /// told.
    ///
    /// # Errors
    /// There is no thread to wait for one.
    pub(super) fn end_the_process(self, state: impl Fn() -> String + Send + 'static) -> Result<()> {
        let wait = move || {
            loop {
                match wait_for(&[self.as_fd()], None).map(|_| self.next()) {
                    Ok(None) => {}
                    Ok(Some(interrupted)) => {
                        claim::leave_no_file();
                        output::error(&anyhow::Error::from(interrupted).context(state()));
                        process::exit(interrupted.exit_status().into());
                    }
                    // Nobody else takes the signals.
                    Err(error) => {
                        output::error(&error);
                        process::exit(1);
                    }
                }
            }
        };
        let name = "capstan-signals".to_owned();
        let thread = thread::Builder::new().name(name).spawn(wait);
        output::started(thread, || {
            "starting the thread that waits for signals".to_owned()
        })?;
        Ok(())
    }

    /// Does `work` on a thread, unless a signal comes first: then it is left where it is, and ends
    /// with the process.
    ///
    /// # Errors
    /// [`Interrupted`], or what `work` says.
    pub(super) fn unless_one_comes<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let work = Work::start(work)?;
        wait_for(&[self.as_fd(), work.end.as_fd()], None)?;
        match self.next() {
            Some(interrupted) => Err(interrupted.into()),
            None => work.result(),
        }
    }

    /// The same, left where it is after `patience` as well: `None` then.
    ///
    /// # Errors
    /// As for [`Interrupts::unless_one_comes`].
    pub(super) fn unless_one_comes_within<T: Send + 'static>(
        &self,
        patience: Duration,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<Option<T>> {
        let work = Work::start(work)?;
        let done = wait_for(&[self.as_fd(), work.end.as_fd()], Some(patience))?;
        match self.next() {
            Some(interrupted) => Err(interrupted.into()),
            None if done => work.result().map(Some),
            None => Ok(None),
        }
    }
}

impl AsFd for Interrupts {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Does `work` on a thread: `None` when that is not over after `patience`.
pub(super) fn within<T: Send + 'static>(
    patience: Duration,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<Option<T>> {
    let work = Work::start(work)?;
    if wait_for(&[work.end.as_fd()], Some(patience))? {
        return work.result().map(Some);
    }
    Ok(None)
}

/// Something that is done on a thread.
pub(super) struct Work<T> {
    thread: JoinHandle<Result<T>>,
    /// A pipe whose other end is closed when it is done.
    end: OwnedFd,
}

impl<T: Send + 'static> Work<T> {
    pub(super) fn start(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<Self> {
        let (end, open) = pipe2(OFlag::O_CLOEXEC).context("pipe")?;
        let thread = thread::Builder::new()
            .name("capstan-work".to_owned())
            .spawn(move || {
                let _open = open;
                work()
            });
        let what = || "starting the thread that works while signals are waited for".to_owned();
        let thread = output::started(thread, what)?;
        Ok(Self { thread, end })
    }

    /// What it says, waited for.
    pub(super) fn result(self) -> Result<T> {
        let result = self.thread.join();
        result.unwrap_or_else(|_| Err(anyhow!("a thread has panicked; what it said is above")))
    }
}

impl<T> AsFd for Work<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.end.as_fd()
    }
}

/// Waits until one of `fds` is readable or closed at its other end: `false` when none is after
/// `patience`.
pub(super) fn wait_for(fds: &[BorrowedFd<'_>], patience: Option<Duration>) -> Result<bool> {
    let mut fds: Vec<_> = fds
        .iter()
        .map(|fd| PollFd::new(*fd, PollFlags::POLLIN))
        .collect();
    let timeout = patience.map_or(PollTimeout::NONE, |patience| {
        PollTimeout::try_from(patience).unwrap_or(PollTimeout::MAX)
    });
    loop {
        match poll(&mut fds, timeout) {
            Err(Errno::EINTR) => {}
            ready => return Ok(ready.context("poll")? > 0),
        }
    }
}
