//! The sockets of one reactor's queues: which of them are read in a turn, and what they bring.
//!
//! Epoll watches all sockets. Busy sockets are read in every turn without asking epoll: a call that
//! finds nothing costs less. Where many are busy most calls would find nothing, so epoll then says
//! which to read.

mod data;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::rc::Rc;

use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::tcp::setup::Digests;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use super::controller::{ControllerQueue, Goes, Headway, IcSettings};
use super::limits::{
    DROPPED_BYTES_MAX, EPOLL_EVENTS, EPOLL_EVERY, IDLE_RUNS, MANY_AT_WORK, SCRATCH_BYTES,
};
use super::link::{Counts, Link};
use super::staging::Staging;
use crate::data::{CapsuleData, Landed};
use crate::manager::TcpRequest;
use crate::queue::{End, Event, FenceNumber, QueueId, Queues, Responded, Tag};

/// What the wire and its queues have in common.
struct TcpShared {
    epoll: Epoll,
    /// Queues that have events.
    noted: RefCell<Vec<QueueId>>,
    /// Queues that have something to send.
    unsent: RefCell<Vec<QueueId>>,
    /// Queues that are read in every turn.
    busy: RefCell<Vec<QueueId>>,
    /// How many queues there are.
    count: Cell<usize>,
    /// Queues that have a deadline, and the earliest of all.
    timed: RefCell<Vec<QueueId>>,
    due_us: Cell<u64>,
    /// When the wire was polled last.
    now_us: Cell<u64>,
}

impl TcpShared {
    /// The queue is dropped: another one may have its name.
    fn forget(&self, id: QueueId) {
        self.count.set(self.count.get().saturating_sub(1));
        for list in [&self.busy, &self.unsent, &self.noted, &self.timed] {
            list.borrow_mut().retain(|other| *other != id);
        }
        // Without queues it is not polled, and a deadline that nothing looks at would stay due.
        if self.timed.borrow().is_empty() {
            self.due_us.set(u64::MAX);
        }
    }
}

/// A controller's queue over its socket.
pub struct TcpQueue {
    id: QueueId,
    link: Link,
    queue: ControllerQueue,
    /// It has a place among connections that are no queue yet.
    has_place: bool,
    shared: Rc<TcpShared>,
    /// It is read in every turn.
    is_busy: bool,
    /// Epoll has said that it can be read or sent to.
    is_reported: bool,
    /// It is among the queues that have events.
    is_noted: bool,
    /// It is among those that have something to send.
    is_unsent: bool,
    /// It is among those that have a deadline.
    is_timed: bool,
    /// Epoll says as well when it can be sent to.
    watches_room: bool,
    /// Reads in a row that have brought nothing.
    idle_runs: u32,
    /// How much has to be read, in whole PDUs, before each fence is over.
    fences: Vec<(u64, FenceNumber)>,
    headway: Headway,
    /// Bytes that came behind its end.
    dropped_bytes: u64,
    /// Commands whose responses have left and that the user has not polled yet.
    released: VecDeque<Tag>,
    /// Whether an event is due for `released`.
    tells_released: bool,
}

impl TcpQueue {
    /// Sends the response of the command `tag`. Where something `waits` for it,
    /// [`Event::Released`] follows: at once, or behind [`Event::Returned`] where its data was not
    /// copied.
    #[inline]
    pub fn respond(&mut self, tag: Tag, cqe: &Cqe, waits: bool) -> Responded {
        self.queue.respond(cqe);
        self.is_to_be_flushed();
        if !waits {
            return Responded::Released;
        }
        if !self.queue.awaits_source(tag) {
            self.release(tag);
        }
        Responded::Leaving
    }

    /// A command is over.
    fn release(&mut self, tag: Tag) {
        // The commands of a queue that has ended stay with it.
        if !self.queue.has_ended() {
            self.released.push_back(tag);
            self.tells_released = true;
            self.note();
        }
    }

    /// The next command whose response has left. Its buffer has come back before, with
    /// [`Event::Returned`].
    pub fn poll_released(&mut self) -> Option<Tag> {
        self.released.pop_front()
    }

    /// In-capsule data is not needed any more.
    pub fn give_back(&mut self, data: CapsuleData) {
        if let CapsuleData::Landed(Landed { buffer, .. }) = data {
            self.queue.give(buffer);
        }
    }

    /// Whether the host has to do something: send data that it was asked for, take what is sent,
    /// or close the connection.
    #[must_use]
    pub fn awaits_host(&self) -> bool {
        let queue = &self.queue;
        !self.is_closed() && (queue.is_pulling() || queue.has_unsent() || queue.has_ended())
    }

    /// What its wire calls it.
    #[must_use]
    pub fn id(&self) -> QueueId {
        self.id
    }

    /// Whether it has a place among connections that are no queue yet.
    #[must_use]
    pub fn has_place(&self) -> bool {
        self.has_place
    }

    /// The digests that both sides have agreed on; none before.
    #[must_use]
    pub fn digests(&self) -> Digests {
        self.queue.digests()
    }

    /// It is the queue of a permitted host.
    pub(super) fn leave_place(&mut self) {
        self.has_place = false;
    }

    /// What it has to send leaves when its wire is flushed.
    #[inline]
    fn is_to_be_flushed(&mut self) {
        if !self.is_unsent {
            self.is_unsent = true;
            self.shared.unsent.borrow_mut().push(self.id);
        }
    }

    /// Does something with the queue itself. What it stages leaves with [`TcpQueue::flush`].
    pub fn with<R>(&mut self, act: impl FnOnce(&mut ControllerQueue) -> R) -> R {
        let result = act(&mut self.queue);
        self.note();
        result
    }

    /// The queue itself.
    #[must_use]
    pub fn queue(&self) -> &ControllerQueue {
        &self.queue
    }

    /// What its socket was used for so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.link.counts()
    }

    /// Ends it: at once, or when all has left.
    pub fn end(&mut self, how: End) {
        self.queue.end(how, self.shared.now_us.get());
        self.flush();
    }

    /// Ends it at once, and with it what the kernel has and has not sent.
    pub fn abort(&mut self) {
        self.link.reset_when_closed();
        self.end(End::Now);
    }

    /// Closes the socket at once, in whatever way the queue was to end or has.
    pub fn close(&mut self) {
        self.queue.handle_end(None);
        self.flush();
    }

    /// Whether its socket is closed: nothing of it is under way any more.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.link.socket().is_none()
    }

    /// How the host goes on with the data that it was asked for, and with what it has to take,
    /// since this was last asked.
    pub fn headway(&mut self) -> (Goes, Goes) {
        let Self {
            headway,
            queue,
            link,
            ..
        } = self;
        let sends = headway.of_sends(queue, || link.unacknowledged_bytes());
        (headway.of_pulls(queue), sends)
    }

    /// [`Event::Fenced`] with this number follows when everything has been taken in that has
    /// arrived by now, with the rest of a PDU of which only the beginning has.
    pub fn fence(&mut self, fence: FenceNumber) {
        let mark = self.queue.read_bytes() + self.link.waiting_bytes();
        self.fences.push((mark, fence));
        self.note();
    }

    /// Whether something has arrived that is not read yet.
    #[must_use]
    pub fn has_unread(&self) -> bool {
        self.link.waiting_bytes() > 0
    }

    /// Sends what is staged, as far as the socket takes it, and closes the socket of a queue that
    /// is over.
    pub fn flush(&mut self) {
        if self.queue.has_unsent() || self.queue.wants_close() {
            self.link.send(&mut self.queue);
            self.watch_room();
        }
        self.note();
    }

    /// Lets epoll say when there is room again, while there is none.
    fn watch_room(&mut self) {
        let wanted = self.link.is_blocked();
        if wanted == self.watches_room {
            return;
        }
        let Some(socket) = self.link.socket() else {
            return;
        };
        let mut interest = EpollFlags::EPOLLIN;
        interest.set(EpollFlags::EPOLLOUT, wanted);
        let mut event = EpollEvent::new(interest, u64::from(self.id.0));
        // Changing a watch that is there does not fail.
        if self.shared.epoll.modify(socket, &mut event).is_ok() {
            self.watches_room = wanted;
        }
    }

    /// A fence that is over.
    fn passed_fence(&self) -> Option<usize> {
        // A queue that has ended takes nothing any more.
        let (whole_bytes, ended) = (self.queue.whole_bytes(), self.queue.has_ended());
        let mut fences = self.fences.iter();
        fences.position(|(mark, _)| *mark <= whole_bytes || ended)
    }

    fn has_events(&self) -> bool {
        self.queue.has_events()
            || self.tells_released
            || !self.fences.is_empty() && self.passed_fence().is_some()
    }

    fn next_event(&mut self) -> Option<Event> {
        if let Some(event) = self.queue.poll_event() {
            if let Event::Returned(tag, _) = event
                && self.queue.take_responded(tag)
            {
                self.release(tag);
            }
            return Some(event);
        }
        // The commands of a queue that has ended stay with it.
        if std::mem::take(&mut self.tells_released) && !self.queue.has_ended() {
            return Some(Event::Released);
        }
        let (_, fence) = self.fences.remove(self.passed_fence()?);
        Some(Event::Fenced(fence))
    }

    /// Puts it among those that have events or a deadline, where it has.
    fn note(&mut self) {
        if !self.is_noted && self.has_events() {
            self.is_noted = true;
            self.shared.noted.borrow_mut().push(self.id);
        }
        if !self.is_timed
            && let Some(deadline_us) = self.queue.poll_timeout()
        {
            self.is_timed = true;
            self.shared.timed.borrow_mut().push(self.id);
            let due_us = &self.shared.due_us;
            due_us.set(due_us.get().min(deadline_us));
        }
    }

    /// Reads it. Whether anything has come.
    fn run(&mut self, scratch: &mut [u8], now_us: u64) -> bool {
        let (had_ended, had) = (self.queue.has_ended(), self.link.counts().copied_bytes);
        let any = self.link.receive(&mut self.queue, scratch, now_us);
        if had_ended {
            self.dropped_bytes += self.link.counts().copied_bytes - had;
            if self.dropped_bytes > DROPPED_BYTES_MAX {
                self.close();
            }
        }
        let may_send = self.link.is_blocked() && (any || self.is_reported);
        self.is_reported = false;
        if may_send || self.queue.wants_close() {
            self.flush();
        } else if any {
            self.note();
        }
        any
    }
}

impl Drop for TcpQueue {
    fn drop(&mut self) {
        self.shared.forget(self.id);
    }
}

/// The sockets of one reactor's queues.
pub struct TcpWire {
    shared: Rc<TcpShared>,
    staging: Staging,
    /// The queues that are being flushed: empty between two flushes.
    flushing: Vec<QueueId>,
    turns: u32,
    reported: Vec<EpollEvent>,
    scratch: Box<[u8]>,
}

impl TcpWire {
    /// Without a queue; its queues copy what they send to memory of `staging`.
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub fn new(staging: Staging) -> io::Result<Self> {
        Ok(Self {
            staging,
            shared: Rc::new(TcpShared {
                epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?,
                noted: RefCell::default(),
                unsent: RefCell::default(),
                busy: RefCell::default(),
                count: Cell::new(0),
                timed: RefCell::default(),
                due_us: Cell::new(u64::MAX),
                now_us: Cell::new(0),
            }),
            flushing: Vec::new(),
            turns: 0,
            reported: vec![EpollEvent::empty(); EPOLL_EVENTS],
            scratch: vec![0; SCRATCH_BYTES].into(),
        })
    }

    /// The queue `id` of a connection that has come over `stream`, of which `bytes` were read.
    ///
    /// # Errors
    /// The socket takes no options, or the system has no memory to watch it.
    pub fn add(
        &mut self,
        id: QueueId,
        stream: TcpStream,
        (settings, bytes): (IcSettings, &[u8]),
        now_us: u64,
    ) -> io::Result<TcpQueue> {
        let link = Link::new(stream)?;
        if let Some(socket) = link.socket() {
            let event = EpollEvent::new(EpollFlags::EPOLLIN, u64::from(id.0));
            self.shared.epoll.add(socket, event)?;
        }
        let mut queue = TcpQueue {
            id,
            link,
            has_place: true,
            queue: ControllerQueue::new(settings, now_us).within(&self.staging),
            shared: Rc::clone(&self.shared),
            is_busy: true,
            is_reported: true,
            is_noted: false,
            is_unsent: false,
            is_timed: false,
            watches_room: false,
            idle_runs: 0,
            fences: Vec::new(),
            headway: Headway::default(),
            dropped_bytes: 0,
            released: VecDeque::new(),
            tells_released: false,
        };
        self.shared.now_us.set(now_us);
        queue.with(|queue| queue.handle_bytes(bytes, now_us));
        let TcpShared { count, busy, .. } = &*self.shared;
        count.set(count.get() + 1);
        busy.borrow_mut().push(id);
        queue.is_to_be_flushed();
        Ok(queue)
    }

    /// The queue `id` of a connection that was asked for.
    ///
    /// # Errors
    /// As [`TcpWire::add`].
    pub fn accept(
        &mut self,
        id: QueueId,
        request: TcpRequest,
        settings: IcSettings,
        now_us: u64,
    ) -> io::Result<TcpQueue> {
        let TcpRequest { stream, bytes } = request;
        self.add(id, stream, (settings, &bytes), now_us)
    }

    /// Reads the queues that may have something. How many had.
    pub fn poll(&mut self, queues: &mut impl Queues<TcpQueue>, now_us: u64) -> u32 {
        if self.is_empty() {
            return 0;
        }
        self.shared.now_us.set(now_us);
        self.run_deadlines(queues, now_us);
        self.turns = self.turns.wrapping_add(1);
        let busy = self.shared.busy.borrow().len();
        let are_many = busy >= MANY_AT_WORK;
        if are_many || busy == 0 || self.turns.is_multiple_of(EPOLL_EVERY) {
            self.look_at_epoll(queues);
        }
        let busy = &mut *self.shared.busy.borrow_mut();
        let count = u32::try_from(busy.len()).unwrap_or(u32::MAX);
        let idle_runs_max = IDLE_RUNS / count.max(1);
        let scratch = &mut self.scratch;
        let mut had = 0;
        busy.retain(|&id| {
            let Some(queue) = queues.queue(id) else {
                return false;
            };
            if !are_many || queue.is_reported {
                if queue.run(scratch, now_us) {
                    had += 1;
                    queue.idle_runs = 0;
                }
                // The answer to ICReq, R2Ts that waited, or a TermReq.
                if queue.queue.has_unsent() && !queue.link.is_blocked() {
                    queue.is_to_be_flushed();
                }
            }
            queue.idle_runs = queue.idle_runs.saturating_add(1);
            queue.is_busy = queue.idle_runs <= idle_runs_max && !queue.is_closed();
            queue.is_busy
        });
        had
    }

    /// The next event.
    pub fn next_event(&mut self, queues: &mut impl Queues<TcpQueue>) -> Option<(QueueId, Event)> {
        loop {
            let id = *self.shared.noted.borrow().last()?;
            if let Some(queue) = queues.queue(id) {
                if let Some(event) = queue.next_event() {
                    return Some((id, event));
                }
                queue.is_noted = false;
            }
            self.shared.noted.borrow_mut().pop();
        }
    }

    /// The end of a turn: sends what the queues have to send, as far as their sockets take it.
    pub fn flush(&mut self, queues: &mut impl Queues<TcpQueue>) {
        std::mem::swap(&mut self.flushing, &mut *self.shared.unsent.borrow_mut());
        for id in self.flushing.drain(..) {
            if let Some(queue) = queues.queue(id) {
                queue.is_unsent = false;
                queue.flush();
                queues.flushed(id);
            }
        }
    }

    /// Before waiting at [`TcpWire::fd`]: leaves all queues to epoll. `true` when something can be
    /// done at once.
    #[must_use = "waiting when something is ready loses it until the next wake-up"]
    pub fn arm(&mut self, queues: &mut impl Queues<TcpQueue>) -> bool {
        let TcpShared { noted, unsent, .. } = &*self.shared;
        if !unsent.borrow().is_empty() || !noted.borrow().is_empty() {
            return true;
        }
        for id in self.shared.busy.borrow_mut().drain(..) {
            if let Some(queue) = queues.queue(id) {
                queue.is_busy = false;
            }
        }
        false
    }

    /// Readable when there is something to poll.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        self.shared.epoll.0.as_raw_fd()
    }

    /// Whether it has no queues.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.shared.count.get() == 0
    }

    /// When [`TcpWire::poll`] is to be called at the latest.
    #[must_use]
    pub fn next_deadline_us(&self) -> Option<u64> {
        let due_us = self.shared.due_us.get();
        (due_us < u64::MAX).then_some(due_us)
    }

    fn look_at_epoll(&mut self, queues: &mut impl Queues<TcpQueue>) {
        let Self {
            shared, reported, ..
        } = self;
        let busy = &mut *shared.busy.borrow_mut();
        let found = shared.epoll.wait(reported, EpollTimeout::ZERO);
        for event in reported.iter().take(found.unwrap_or(0)) {
            let id = QueueId(u32::try_from(event.data()).unwrap_or(u32::MAX));
            let Some(queue) = queues.queue(id) else {
                continue;
            };
            queue.is_reported = true;
            if !queue.is_busy {
                queue.is_busy = true;
                queue.idle_runs = 0;
                busy.push(id);
            }
        }
    }

    /// Ends the waits of queues whose time has come.
    fn run_deadlines(&mut self, queues: &mut impl Queues<TcpQueue>, now_us: u64) {
        if now_us < self.shared.due_us.get() {
            return;
        }
        self.shared.due_us.set(u64::MAX);
        for id in self.shared.timed.take() {
            let Some(queue) = queues.queue(id) else {
                continue;
            };
            queue.is_timed = false;
            queue.queue.handle_timeout(now_us);
            queue.flush();
        }
    }
}

impl AsFd for TcpWire {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.epoll.0.as_fd()
    }
}
