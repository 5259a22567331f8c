//! The control thread: signals, readiness and the watchdog, on its own `tokio-uring` runtime and
//! never on a data core.

use std::fmt;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use capstan_reactor::Asked;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::pipe2;
use sd_notify::NotifyState;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::JoinHandle as JoinTask;
use tokio_uring::Runtime;

use crate::limits::{RELOAD_PATIENCE, STATUS_CHARS_MAX};
use crate::steering::{self, News, Steering, Work};

/// How long after SIGTERM or SIGINT the start of a target may go on, and be drained in order.
const START_PATIENCE_MS: u16 = 1500;

/// Why a target ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// This signal came when the target was ready.
    Asked(Signal),
    /// It came before that.
    AskedEarly(Signal),
    /// The control socket asked for it.
    Commanded,
    /// Nobody asked for it.
    ReactorEnded,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Asked(signal) | Self::AskedEarly(signal) => f.write_str(signal.as_str()),
            Self::Commanded => f.write_str("asked to stop by the control socket"),
            Self::ReactorEnded => f.write_str("a reactor ended"),
        }
    }
}

/// Blocks SIGXFSZ in this thread and in those that it starts afterwards, so it is called first: a
/// write beyond RLIMIT_FSIZE then fails with EFBIG instead of ending the process (setrlimit(2)).
///
/// # Errors
/// The kernel refuses, which it does not for this signal.
pub fn outlive_file_size_limit() -> io::Result<()> {
    SigSet::from_iter([Signal::SIGXFSZ]).thread_block()?;
    Ok(())
}

/// SIGTERM, SIGINT and SIGHUP, kept from ending the process until there is somebody who answers
/// them: one that comes while the target starts is answered once it has, and ends the process where
/// it does not start. Threads that are made in the meantime never see them. Dropped, they do what
/// the kernel has them do.
pub struct Held {
    signals: SigSet,
    /// Closed when the start is over.
    _starting: OwnedFd,
}

impl Held {
    /// Holds them for this thread and those it makes, so it comes first in `serve`.
    ///
    /// # Errors
    /// The kernel refuses, which it does not for these signals.
    pub fn hold() -> io::Result<Self> {
        let signals = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP]);
        signals.thread_block()?;
        let (over, starting) = pipe2(OFlag::O_CLOEXEC)?;
        let ends = Self::ends()?;
        let watch = move || {
            let patience = PollTimeout::from(START_PATIENCE_MS);
            // Looked at and not taken: a start that goes on has it answered in order.
            if came_first(ends.as_fd(), over.as_fd()) && !is_readable(over.as_fd(), patience) {
                end("asked to end while the target starts, which did not go on within 1500 ms");
            }
        };
        thread::Builder::new()
            .name("signals".to_owned())
            .spawn(watch)?;
        Ok(Self {
            signals,
            _starting: starting,
        })
    }

    /// Whether SIGTERM or SIGINT wait to be answered, as far as can be found out.
    fn is_asked(&self) -> bool {
        Self::ends().map_or(true, |ends| is_readable(ends.as_fd(), PollTimeout::ZERO))
    }

    /// Readable while SIGTERM or SIGINT wait to be answered.
    fn ends() -> io::Result<SignalFd> {
        let ends = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT]);
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        Ok(SignalFd::with_flags(&ends, flags)?)
    }
}

/// An end that a second SIGTERM or SIGINT cuts short.
pub(crate) struct Ending {
    ends: SignalFd,
    asked: Asked,
    is_sure: Arc<Mutex<bool>>,
}

/// Has a second SIGTERM or SIGINT end the process at once, whatever it waits for, until
/// [`Ending::is_sure`].
///
/// # Errors
/// The system has no thread or descriptor left.
pub(crate) fn end_at_the_next() -> io::Result<Ending> {
    hold_the_next()?;
    let (ends, watched) = (Held::ends()?, Held::ends()?);
    let is_sure = Arc::new(Mutex::new(false));
    let known = Arc::clone(&is_sure);
    let asked = Asked::now();
    let watch = move || {
        while is_readable(watched.as_fd(), PollTimeout::NONE) {
            let is_sure = known.lock().unwrap_or_else(PoisonError::into_inner);
            if *is_sure {
                return;
            }
            take_second(&watched, asked);
        }
    };
    thread::Builder::new()
        .name("signals".to_owned())
        .spawn(watch)?;
    Ok(Ending {
        ends,
        asked,
        is_sure,
    })
}

impl Ending {
    /// What is left takes no time, and is not given up any more.
    pub(crate) fn is_sure(&self) {
        let mut is_sure = self.is_sure.lock().unwrap_or_else(PoisonError::into_inner);
        // One that the watch has not seen yet.
        take_second(&self.ends, self.asked);
        *is_sure = true;
    }
}

fn hold_the_next() -> Result<(), Errno> {
    SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT]).thread_block()
}

/// Ends the process if a second signal waits; what came with the first is taken and counts no more.
fn take_second(ends: &SignalFd, asked: Asked) {
    while let Ok(Some(_)) = ends.read_signal() {
        if asked.is_insisted_on() {
            end("asked to end a second time: what is in flight is given up");
        }
    }
}

/// Whether `first` is readable before `second` is.
fn came_first(first: BorrowedFd<'_>, second: BorrowedFd<'_>) -> bool {
    let mut fds = [first, second].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
    loop {
        match poll(&mut fds, PollTimeout::NONE) {
            Err(Errno::EINTR) => {}
            _ => return fds.get(1).and_then(PollFd::any) != Some(true),
        }
    }
}

/// Whether `fd` is readable, or closed at its other end, within `patience`.
fn is_readable(fd: BorrowedFd<'_>, patience: PollTimeout) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::POLLIN)];
    loop {
        match poll(&mut fds, patience) {
            Err(Errno::EINTR) => {}
            ready => return ready.is_ok_and(|ready| ready > 0),
        }
    }
}

#[expect(
    clippy::exit,
    reason = "what the other threads wait for may never come"
)]
fn end(why: &str) {
    // There is nowhere left to tell that stderr is gone.
    let _ = writeln!(io::stderr(), "capstan-target: {why}");
    std::process::exit(1);
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Err(error) = self.signals.thread_unblock() {
            tracing::error!(%error, "SIGTERM, SIGINT and SIGHUP stay blocked: only SIGKILL ends this process");
        }
    }
}

/// The thread that carries reloads out: signals are answered and the watchdog is fed while a file
/// system keeps one waiting.
pub(crate) struct Reloads {
    /// Dropped when there are no more.
    ask: Option<mpsc::Sender<()>>,
    done: UnboundedReceiver<String>,
    /// Those that are not done: one that is under way, and one behind it.
    asked: usize,
    thread: JoinHandle<()>,
}

impl Reloads {
    /// Calls `reload` for each, which answers with the new status.
    ///
    /// # Errors
    /// There is no thread to be had.
    pub(crate) fn start(mut reload: impl FnMut() -> String + Send + 'static) -> io::Result<Self> {
        let (ask, asked) = mpsc::channel();
        let (tell, done) = unbounded_channel();
        let work = move || {
            // Whoever asked may be gone.
            while asked.recv().is_ok() && tell.send(reload()).is_ok() {}
        };
        let thread = thread::Builder::new().name("reload".into()).spawn(work)?;
        Ok(Self {
            ask: Some(ask),
            done,
            asked: 0,
            thread,
        })
    }

    /// One that has not begun will see what this one would.
    fn ask(&mut self) {
        if self.asked < 2 && self.ask.as_ref().is_some_and(|ask| ask.send(()).is_ok()) {
            self.asked += 1;
        }
    }

    /// The status after the last of those that were asked for; cancel safe.
    async fn done(&mut self) -> io::Result<String> {
        loop {
            let status = self.done.recv().await;
            let status =
                status.ok_or_else(|| io::Error::other("a reload panicked: see the log"))?;
            self.asked = self.asked.saturating_sub(1);
            if self.asked == 0 {
                return Ok(status);
            }
        }
    }

    /// There are no more. One that is under way is waited for, and given up after
    /// [`RELOAD_PATIENCE`].
    pub(crate) fn end(mut self) {
        self.ask = None;
        let deadline = Instant::now() + RELOAD_PATIENCE;
        while !self.thread.is_finished() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
        if !self.thread.is_finished() {
            tracing::warn!(
                "a reload that is under way is given up, as it has waited for {RELOAD_PATIENCE:?} and longer: what it was to \
                 change is not changed"
            );
        }
    }
}

/// What the control thread has to do until the target ends.
pub(crate) struct Waiting<'w, T, A> {
    /// What systemd is told.
    pub(crate) status: String,
    /// What there is with media.
    pub(crate) trouble: T,
    /// Whether every reactor is alive.
    pub(crate) alive: A,
    pub(crate) reloads: &'w mut Reloads,
    /// What changes tell.
    pub(crate) news: UnboundedReceiver<News>,
    /// Those on the control socket, where there is one.
    pub(crate) conversations: Option<Conversations<'w>>,
}

/// What the control socket is served with.
pub(crate) struct Conversations<'w> {
    pub(crate) listener: &'w UnixListener,
    pub(crate) steering: &'w Arc<Steering>,
    pub(crate) work: Work,
}

/// Waits until the process is asked to end: SIGTERM, SIGINT, the control socket, or when a reactor
/// has failed. SIGHUP asks for a reload. Tells systemd that the service is ready
/// (again), what status it has and what trouble there is with media, and feeds its watchdog
/// while every reactor is alive. Signals `held` until now are answered first.
///
/// # Errors
/// The signal handlers cannot be set up; a reload panicked.
pub(crate) fn wait_for_end<T: Fn() -> Option<String>, A: FnMut() -> bool>(
    runtime: &Runtime,
    held: Held,
    mut waiting: Waiting<'_, T, A>,
) -> io::Result<End> {
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut hangup = signal(SignalKind::hangup())?;
        let asked = match held.is_asked() {
            true => End::AskedEarly,
            false => End::Asked,
        };
        drop(held);
        let conversations = waiting.conversations.take().map(Conversations::start);
        let conversations = conversations.transpose()?;
        let mut told = with_trouble(&waiting.status, (waiting.trouble)());
        notify(&[NotifyState::Ready, NotifyState::Status(&told)]);
        let mut beat = tokio::time::interval(beat_interval());
        let end = loop {
            tokio::select! {
                _ = terminate.recv() => break asked(Signal::SIGTERM),
                _ = interrupt.recv() => break asked(Signal::SIGINT),
                _ = hangup.recv() => {
                    notify(&[NotifyState::Reloading]);
                    waiting.reloads.ask();
                }
                reloaded = waiting.reloads.done() => {
                    waiting.status = reloaded?;
                    told = with_trouble(&waiting.status, (waiting.trouble)());
                    notify(&[NotifyState::Ready, NotifyState::Status(&told)]);
                }
                Some(news) = waiting.news.recv() => match news {
                    News::Stop => break End::Commanded,
                    News::Status(status) => waiting.status = status,
                },
                _ = beat.tick() => {
                    if !(waiting.alive)() {
                        return Ok(End::ReactorEnded);
                    }
                    notify(&[NotifyState::Watchdog]);
                    let now = with_trouble(&waiting.status, (waiting.trouble)());
                    if now != told {
                        notify_status(&now);
                        told = now;
                    }
                }
            }
        };
        if let Some(conversations) = conversations {
            conversations.abort();
        }
        // It waits for `end_at_the_next`.
        hold_the_next()?;
        Ok(end)
    })
}

impl Conversations<'_> {
    fn start(self) -> io::Result<JoinTask<io::Result<()>>> {
        let listener = self.listener.try_clone()?;
        let steering = Arc::clone(self.steering);
        Ok(tokio_uring::spawn(steering::serve(
            listener,
            steering,
            Rc::new(self.work),
        )))
    }
}

/// What systemd is told, of a length that it takes.
fn with_trouble(status: &str, trouble: Option<String>) -> String {
    let mut all = status.to_owned();
    if let Some(trouble) = trouble {
        all = format!("{all}; {trouble}");
    }
    if let Some((end, _)) = all.char_indices().nth(STATUS_CHARS_MAX) {
        all.truncate(end);
        all.push('…');
    }
    all
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

/// A second, after which the status is new as well; half the watchdog's period where that is
/// shorter, as sd_watchdog_enabled(3) advises.
fn beat_interval() -> Duration {
    let second = Duration::from_secs(1);
    sd_notify::watchdog_enabled().map_or(second, |period| second.min(period / 2))
}
