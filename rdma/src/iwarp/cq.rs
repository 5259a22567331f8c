//! Completion queues.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::rc::Rc;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::engine::Engine;
use crate::contract::{CompletionQueue, QpNum, RdmaError, WorkCompletion};

/// An eventfd that wakes a waiting thread: written at most once between two polls, and only while
/// armed.
pub(super) struct Waker {
    event: EventFd,
    armed: Cell<bool>,
    written: Cell<bool>,
}

impl Waker {
    pub(super) fn new() -> nix::Result<Self> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        Ok(Self {
            event: EventFd::from_value_and_flags(0, flags)?,
            armed: Cell::new(false),
            written: Cell::new(false),
        })
    }

    pub(super) fn fd(&self) -> &EventFd {
        &self.event
    }

    pub(super) fn arm(&self) {
        self.armed.set(true);
    }

    /// Wakes the thread, if it waits.
    #[inline]
    pub(super) fn wake(&self) {
        if self.armed.get() && !self.written.get() {
            // A write of 1 to an eventfd that holds 0 cannot fail.
            self.written.set(self.event.write(1).is_ok());
        }
    }

    /// The thread is awake.
    #[inline]
    pub(super) fn disarm(&self) {
        if self.armed.replace(false) && self.written.replace(false) {
            // Emptying a non-blocking eventfd; when it is empty already nothing is lost.
            let _ = self.event.read();
        }
    }
}

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

/// A system error while a resource is made.
pub(super) fn system(what: &'static str) -> impl FnOnce(nix::Error) -> RdmaError {
    move |error| RdmaError::System {
        what,
        source: error.into(),
        hint: match error {
            nix::Error::EMFILE | nix::Error::ENFILE => {
                "; raise the limit of open files (ulimit -n, LimitNOFILE=)"
            }
            _ => "",
        },
    }
}

/// A completion queue: a ring in memory. Polling an empty one drives the whole provider.
pub(super) struct Completions {
    engine: Rc<Engine>,
    ring: RefCell<VecDeque<WorkCompletion>>,
    depth: usize,
    waker: Waker,
    /// Readable when a socket has something to do or the waker was written.
    epoll: Epoll,
}

impl Completions {
    pub(super) fn new(engine: &Rc<Engine>, depth: u32) -> Result<Rc<Self>, RdmaError> {
        let waker = Waker::new().map_err(system("eventfd of a completion queue"))?;
        let epoll = epoll_of(&[(&engine.poller.epoll.0, 0), (waker.fd(), 1)])
            .map_err(system("epoll of a completion queue"))?;
        let depth = depth as usize;
        Ok(Rc::new(Self {
            engine: Rc::clone(engine),
            ring: RefCell::new(VecDeque::with_capacity(depth)),
            depth,
            waker,
            epoll,
        }))
    }

    /// Whether it belongs to this provider.
    pub(super) fn is_of(&self, engine: &Rc<Engine>) -> bool {
        Rc::ptr_eq(&self.engine, engine)
    }

    /// Adds a completion. Users of the queue keep within its depth; should they not, the ring grows
    /// rather than lose a completion.
    #[inline]
    pub(super) fn push(&self, completion: WorkCompletion) {
        self.ring.borrow_mut().push_back(completion);
        self.waker.wake();
    }

    /// Whether another completion fits.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        self.ring.borrow().len() < self.depth
    }

    /// Forgets the completions of a dropped queue pair.
    pub(super) fn forget(&self, qp: QpNum) {
        self.ring.borrow_mut().retain(|c| c.qp != qp);
    }
}

impl CompletionQueue for Completions {
    fn poll(&self, out: &mut [WorkCompletion]) -> usize {
        self.waker.disarm();
        if self.ring.borrow().is_empty() {
            let asked = out.len();
            self.engine.progress(|| self.ring.borrow().len() >= asked);
        }
        let mut ring = self.ring.borrow_mut();
        let taken = out.len().min(ring.len());
        for (slot, completion) in out.iter_mut().zip(ring.drain(..taken)) {
            *slot = completion;
        }
        taken
    }

    fn arm(&self) -> bool {
        if !self.ring.borrow().is_empty() || self.engine.arm() {
            return true;
        }
        self.waker.arm();
        false
    }

    fn fd(&self) -> RawFd {
        self.epoll.0.as_raw_fd()
    }
}
