//! Completion queues.

use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::rc::Rc;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};

use super::completions::CompletionRing;
use super::driver::{IwarpEngine, system};
use crate::contract::{CompletionQueue, RdmaError, WorkCompletion};

/// An epoll instance that contains `fds`.
pub(super) fn epoll_of(fds: &[(&dyn AsFdDyn, u64)]) -> nix::Result<Epoll> {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    for (fd, data) in fds {
        epoll.add(fd.fd(), EpollEvent::new(EpollFlags::EPOLLIN, *data))?;
    }
    Ok(epoll)
}

/// `AsFd` as a trait object.
pub(super) trait AsFdDyn {
    /// The descriptor.
    fn fd(&self) -> std::os::fd::BorrowedFd<'_>;
}

impl<T: AsFd> AsFdDyn for T {
    fn fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.as_fd()
    }
}

/// A completion queue: a ring in memory. Polling an empty one drives the whole provider.
pub(super) struct Completions {
    engine: Rc<IwarpEngine>,
    ring: Rc<CompletionRing>,
    /// Readable when a socket has something to do or the waker was written.
    epoll: Epoll,
}

impl Completions {
    pub(super) fn new(engine: &Rc<IwarpEngine>, depth: u32) -> Result<Rc<Self>, RdmaError> {
        let ring = CompletionRing::new(depth).map_err(system("eventfd of a completion queue"))?;
        let epoll = epoll_of(&[(&engine.poller.epoll.0, 0), (ring.waker().fd(), 1)])
            .map_err(system("epoll of a completion queue"))?;
        Ok(Rc::new(Self {
            engine: Rc::clone(engine),
            ring: Rc::new(ring),
            epoll,
        }))
    }

    /// Whether it belongs to this provider.
    pub(super) fn is_of(&self, engine: &Rc<IwarpEngine>) -> bool {
        Rc::ptr_eq(&self.engine, engine)
    }

    /// Where queue pairs put their completions.
    pub(super) fn ring(&self) -> &Rc<CompletionRing> {
        &self.ring
    }
}

impl CompletionQueue for Completions {
    fn poll(&self, out: &mut [WorkCompletion]) -> usize {
        self.ring.waker().disarm();
        if self.ring.len() == 0 {
            let asked = out.len();
            self.engine.progress(|| self.ring.len() >= asked);
        }
        self.ring.take(out)
    }

    fn arm(&self) -> bool {
        if self.ring.len() != 0 || self.engine.arm() {
            return true;
        }
        self.ring.waker().arm();
        false
    }

    fn fd(&self) -> RawFd {
        self.epoll.0.as_raw_fd()
    }
}
