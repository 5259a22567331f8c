//! What ends the making of a disk before the disk is there: a signal, `capstan detach`, and the end
//! of the command that asked for it. `list` is answered meanwhile.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::sys::signalfd::SignalFd;
use nix::unistd::pipe2;

use super::control::{Answer, Asker, ControlSocket, Request, State};
use super::serve::{ServeError, system};
use crate::controller::Controller;
use crate::error::{ConnectError, Losses};
use crate::options::Options;

/// Does `work` on a thread; what is returned with it is hung up when that is done.
pub(super) fn on_thread<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<(JoinHandle<T>, OwnedFd), ServeError> {
    let (done, open) = pipe2(OFlag::O_CLOEXEC).map_err(system("pipe"))?;
    let work = move || {
        let _open = open;
        work()
    };
    let name = "capstan-work".to_owned();
    let thread = thread::Builder::new().name(name).spawn(work);
    Ok((thread.map_err(system("starting a thread"))?, done))
}

/// Ends an association in order, and waits for that: what was lost, or `None` when it has not ended
/// after `patience`, and ends with this process.
pub(super) fn close(
    controller: &Controller,
    patience: Option<Duration>,
) -> Result<Option<Losses>, ServeError> {
    let controller = controller.clone();
    let (closing, done) = on_thread(move || controller.close())?;
    let mut fds = [PollFd::new(done.as_fd(), PollFlags::POLLIN)];
    let timeout = patience.map_or(PollTimeout::NONE, |patience| {
        PollTimeout::try_from(patience).unwrap_or(PollTimeout::MAX)
    });
    loop {
        match poll(&mut fds, timeout) {
            Err(Errno::EINTR) => {}
            Ok(0) => return Ok(None),
            Ok(_) => return Ok(Some(closing.join().unwrap_or_default())),
            Err(errno) => return Err(system("poll")(errno)),
        }
    }
}

/// What is listened to while a disk is made.
pub(super) struct Making<'a> {
    pub(super) signals: &'a SignalFd,
    pub(super) control: &'a ControlSocket,
    /// The pipe that takes the report: nobody reads it once the command that asked has ended.
    pub(super) asked_by: BorrowedFd<'a>,
}

impl Making<'_> {
    /// Connects on a thread, which is left behind when the disk is given up: it ends with this
    /// process.
    pub(super) fn connect(
        &self,
        options: Options,
    ) -> Result<Result<Controller, ConnectError>, ServeError> {
        let target = format!("{} port {}", options.traddr, options.trsvcid);
        let (connecting, done) = on_thread(move || Controller::connect(options))?;
        let start = Instant::now();
        let state = || State {
            state: "connecting".to_owned(),
            detail: format!("connecting to {target} for {} s", start.elapsed().as_secs()),
            ..State::default()
        };
        self.wait_for(done.as_fd(), None, |request, asker| {
            asker.answer(&match request {
                Request::Status => Answer::Status(state()),
                _ => Answer::Refused(format!("there is no controller yet: {}", state().detail)),
            });
        })?;
        let panicked = |_| ConnectError::Closed;
        Ok(connecting.join().map_err(panicked).flatten())
    }

    /// Waits until `fd` is readable or hung up: `false` when it is not after `patience`. All
    /// requests but `Detach` are answered by `answer`.
    pub(super) fn wait_for(
        &self,
        fd: BorrowedFd<'_>,
        patience: Option<Duration>,
        answer: impl Fn(Request, Asker),
    ) -> Result<bool, ServeError> {
        let start = Instant::now();
        loop {
            let rest = patience.map(|patience| patience.saturating_sub(start.elapsed()));
            if rest == Some(Duration::ZERO) {
                return Ok(false);
            }
            let readable = |fd| PollFd::new(fd, PollFlags::POLLIN);
            let mut fds = [
                readable(fd),
                readable(self.signals.as_fd()),
                readable(self.control.as_fd()),
                // Asked for nothing, it tells that its other end is closed.
                PollFd::new(self.asked_by, PollFlags::empty()),
            ];
            let timeout = rest.map_or(PollTimeout::NONE, |rest| {
                PollTimeout::try_from(rest).unwrap_or(PollTimeout::MAX)
            });
            match poll(&mut fds, timeout) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(errno) => return Err(system("poll")(errno)),
            }
            let [of_fd, .., of_asker] = fds.map(|fd| fd.revents().unwrap_or(PollFlags::empty()));
            while let Ok(Some(signal)) = self.signals.read_signal() {
                if i32::try_from(signal.ssi_signo) != Ok(Signal::SIGHUP as i32) {
                    return Err(ServeError::Interrupted);
                }
            }
            if of_asker.intersects(PollFlags::POLLERR | PollFlags::POLLHUP) {
                tracing::warn!("the command that asked for the disk has ended");
                return Err(ServeError::Interrupted);
            }
            match self.control.accept() {
                Some((Request::Detach, asker)) => {
                    // Nobody can use it yet.
                    asker.answer(&Answer::Detached);
                    return Err(ServeError::Interrupted);
                }
                Some((request, asker)) => answer(request, asker),
                None => {}
            }
            if !of_fd.is_empty() {
                return Ok(true);
            }
        }
    }
}
