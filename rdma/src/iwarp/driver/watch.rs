//! Which queue pairs are busy, and what makes the others busy again.
//!
//! A busy queue pair is run again and again: while there are few, a receive call that finds nothing
//! costs less than asking epoll first. After a while without work it is left to epoll (one-shot, so
//! that a busy one costs nothing there) until its socket has something.
//!
//! With many queue pairs at work most receive calls would find nothing. Epoll watches all of them
//! then (edge-triggered), and a queue pair is busy from the event that reports something until all
//! of it has been received.

use std::cell::RefCell;
use std::rc::Rc;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use super::qp::Qp;
use super::{IwarpEngine, place_of};
use crate::contract::QpNum;
use crate::iwarp::fatal::Fatal;
use crate::iwarp::link::Link;

/// Receive calls that find nothing, over all busy queue pairs, before one of them is left to epoll.
const IDLE_RUNS: u32 = 2048;
/// Polls between two looks at epoll while queue pairs are busy.
const EPOLL_EVERY: u32 = 8;
/// Events of one look.
const EVENTS: usize = 64;
/// The estimate of queue pairs at work falls by one part in so many with every look that finds
/// fewer.
const AT_WORK_DECAY: u32 = 32;
/// Epoll's data of the socket on which shared memory arrives; no queue pair's number has so many
/// bits.
pub(in crate::iwarp) const RENDEZVOUS: u64 = u64::MAX;
/// Epoll's data of the listeners and set-ups of a connection manager.
const SET_UPS: u64 = u64::MAX - 1;

/// How epoll watches a queue pair's socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::iwarp) enum Watch {
    /// Not at all.
    None,
    /// One-shot: it has reported one event, or will.
    Once,
    /// Edge-triggered: it reports everything that arrives.
    Edge,
}

/// The sockets of queue pairs that are not busy.
pub(in crate::iwarp) struct Poller {
    pub(in crate::iwarp) epoll: Epoll,
    events: RefCell<Vec<EpollEvent>>,
}

impl Poller {
    pub(in crate::iwarp) fn new() -> nix::Result<Self> {
        Ok(Self {
            epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?,
            events: RefCell::new(vec![EpollEvent::empty(); EVENTS]),
        })
    }
}

impl IwarpEngine {
    /// Empty runs after which one of `busy` queue pairs is left to epoll.
    pub(in crate::iwarp) fn idle_runs_max(&self, busy: usize) -> u32 {
        if self.many_at_work.get() {
            return 0;
        }
        let busy = u32::try_from(busy).unwrap_or(u32::MAX);
        IDLE_RUNS / busy.max(self.at_work.get()).max(1)
    }

    /// Lets epoll report a connection manager's listeners and set-ups, too.
    pub(in crate::iwarp) fn watch_set_ups(&self, set_ups: &Epoll) -> nix::Result<()> {
        let event = EpollEvent::new(EpollFlags::EPOLLIN, SET_UPS);
        self.poller.epoll.add(&set_ups.0, event)?;
        self.managers.set(self.managers.get() + 1);
        Ok(())
    }

    /// The connection manager is gone.
    pub(in crate::iwarp) fn forget_set_ups(&self, set_ups: &Epoll) {
        if self.poller.epoll.delete(&set_ups.0).is_ok() {
            self.managers.set(self.managers.get() - 1);
        }
    }

    /// Counts the looks at epoll that found something for a connection manager.
    pub(in crate::iwarp) fn set_ups(&self) -> u32 {
        self.set_ups.get()
    }

    /// Looks at epoll when it is time to.
    pub(in crate::iwarp) fn watch(&self, tick: u32) {
        let busy = self.busy.borrow().len();
        let watched = self.watched.get() > 0 || self.managers.get() > 0;
        if watched && (tick.is_multiple_of(EPOLL_EVERY) || busy == 0) {
            self.look_at_epoll();
            let busy = u32::try_from(self.busy.borrow().len()).unwrap_or(u32::MAX);
            let before = self.at_work.get();
            let after = before - before.div_ceil(AT_WORK_DECAY);
            let at_work = after.max(busy);
            self.at_work.set(at_work);
            let least = self.config.edge_triggered_from;
            self.many_at_work
                .set(at_work >= least || at_work >= least / 3 && self.many_at_work.get());
        }
        if tick.is_multiple_of(EPOLL_EVERY) {
            self.take_memory(false);
        }
    }

    /// Makes a queue pair busy.
    pub(in crate::iwarp) fn make_busy(&self, cell: &Rc<RefCell<Qp>>, qp: &mut Qp) {
        if qp.link.is_none() {
            return;
        }
        qp.idle_runs = 0;
        if !qp.busy {
            qp.busy = true;
            if qp.watch != Watch::None {
                self.watched.set(self.watched.get().saturating_sub(1));
            }
            self.busy.borrow_mut().push(Rc::clone(cell));
        }
    }

    /// The same, when an answer is probably on its way; with many queue pairs at work epoll will
    /// report it.
    pub(in crate::iwarp) fn expect_answer(&self, cell: &Rc<RefCell<Qp>>, qp: &mut Qp) {
        if !self.is_reported(qp) {
            self.make_busy(cell, qp);
        }
    }

    /// Whether epoll reports by itself when something arrives for a queue pair. Not of one in
    /// shared memory, whose peer has to be asked for that each time.
    fn is_reported(&self, qp: &Qp) -> bool {
        let tcp = matches!(qp.link, Some(Link::Tcp(_)));
        tcp && qp.watch == Watch::Edge && self.many_at_work.get() && !qp.hung_up
    }

    /// Leaves a queue pair that has received everything to the edge-triggered epoll, if that
    /// watches it. Whether it does.
    pub(in crate::iwarp) fn leave_to_edge(&self, qp: &mut Qp) -> bool {
        let leave = self.is_reported(qp) && !qp.pending;
        if leave {
            qp.busy = false;
            self.watched.set(self.watched.get() + 1);
        }
        leave
    }

    /// Leaves a queue pair to epoll. `true` when that fails and it stays busy.
    pub(in crate::iwarp) fn leave_to_epoll(&self, qp: &mut Qp) -> bool {
        if self.leave_to_edge(qp) {
            return false;
        }
        let mut interest = EpollFlags::EPOLLONESHOT;
        let mut watch = Watch::Once;
        match &mut qp.link {
            Some(Link::Shared(link)) => {
                if !link.arm(!qp.core.rx.stalled, qp.core.tx.blocked) {
                    return true;
                }
                self.idle_links.watch(qp.core.num, link);
                interest |= EpollFlags::EPOLLIN;
            }
            _ if self.many_at_work.get() && !qp.hung_up => {
                interest = EpollFlags::EPOLLET | EpollFlags::EPOLLRDHUP;
                interest |= EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT;
                watch = Watch::Edge;
            }
            _ => {
                interest.set(EpollFlags::EPOLLIN, !qp.core.rx.stalled);
                interest.set(EpollFlags::EPOLLOUT, qp.core.tx.blocked);
            }
        }
        let Some(stream) = qp.link.as_ref().and_then(Link::tcp) else {
            qp.busy = false;
            return false;
        };
        let mut event = EpollEvent::new(interest, u64::from(qp.core.num.0));
        let epoll = &self.poller.epoll;
        let result = if qp.watch == Watch::None {
            epoll.add(stream, event)
        } else {
            epoll.modify(stream, &mut event)
        };
        if result.is_err() {
            // Out of memory for the watch: keep polling.
            return true;
        }
        qp.watch = watch;
        qp.busy = false;
        self.watched.set(self.watched.get() + 1);
        false
    }

    /// Makes those queue pairs busy whose sockets have something.
    fn look_at_epoll(&self) {
        let mut events = self.poller.events.borrow_mut();
        let wait = self.poller.epoll.wait(&mut events, EpollTimeout::ZERO);
        let count = wait.unwrap_or(0);
        for event in &events[..count] {
            match event.data() {
                RENDEZVOUS => {
                    self.take_memory(true);
                    continue;
                }
                SET_UPS => {
                    self.set_ups.set(self.set_ups.get().wrapping_add(1));
                    continue;
                }
                _ => {}
            }
            let num = QpNum(u32::try_from(event.data()).unwrap_or(u32::MAX));
            let Some(cell) = self.cell_at(place_of(num)) else {
                continue;
            };
            let mut qp = cell.borrow_mut();
            if qp.core.num != num {
                continue;
            }
            let broken = EpollFlags::EPOLLERR | EpollFlags::EPOLLHUP;
            // After a receive call that brings less than it asked for the end may come next, which
            // has no event of its own.
            qp.hung_up |= event.events().intersects(broken | EpollFlags::EPOLLRDHUP);
            if qp.core.rx.stalled && event.events().intersects(broken) {
                // Reading is suspended, so the socket is asked for its error.
                let error = qp.link.as_ref().and_then(Link::tcp);
                let error = error.and_then(|s| s.take_error().ok().flatten());
                let fatal = error.map_or(Fatal::PeerClosed { inside_fpdu: true }, Fatal::Io);
                self.end(&mut qp, &fatal);
                continue;
            }
            if qp.watch == Watch::Edge && !self.many_at_work.get() {
                self.stop_watching(&mut qp);
            }
            self.make_busy(&cell, &mut qp);
            // The event is consumed: the queue pair must run before it can be left to epoll again.
            qp.pending = true;
        }
    }

    /// Ends the edge-triggered watch of a queue pair; what it has then counts as a one-shot watch
    /// that has reported.
    fn stop_watching(&self, qp: &mut Qp) {
        let mut event = EpollEvent::new(EpollFlags::EPOLLONESHOT, u64::from(qp.core.num.0));
        if let Some(stream) = qp.link.as_ref().and_then(Link::tcp)
            && self.poller.epoll.modify(stream, &mut event).is_ok()
        {
            qp.watch = Watch::Once;
        }
    }

    /// Before waiting: leaves every queue pair to epoll. `true` when something can be done at once.
    pub(in crate::iwarp) fn arm(&self) -> bool {
        self.give_back_lent();
        let mut list = self.busy.take();
        list.retain(|cell| {
            let mut qp = cell.borrow_mut();
            if qp.link.is_none() {
                qp.busy = false;
                return false;
            }
            qp.pending || self.leave_to_epoll(&mut qp)
        });
        let busy = !list.is_empty();
        self.busy.replace(list);
        busy
    }
}
