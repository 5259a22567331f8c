//! Calls in records over TCP (RFC 5531, section 11).
//!
//! Several calls of a connection are carried out at once, and answered in whatever order they are
//! done; the replies of a turn leave together. Where a client has as much outstanding as it may,
//! nothing more is read from it, so that TCP holds it back.

mod connection;
mod incoming;
mod listener;
mod outgoing;

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use rustc_hash::FxHashMap;

use self::connection::Connection;
use self::listener::Listener;
use crate::common::{Common, End};
use crate::limits::{
    CALLS_PER_TURN, EVENTS_PER_TURN, LOOK_PERIOD_US, QUEUED_BYTES, READ_BYTES, RECEIVED_BYTES,
};
use crate::program::{ConnectionNumber, Wire};
use crate::task::Task;

/// What epoll calls the first listener; the others are below it. Connections are numbered from
/// below, and never so many.
const FIRST_LISTENER: u64 = u64::MAX;

/// The sockets of a server.
pub(crate) struct Tcp {
    epoll: Epoll,
    events: Vec<EpollEvent>,
    listeners: Vec<Listener>,
    connections: FxHashMap<ConnectionNumber, Connection>,
    /// Connections that have something to send.
    unflushed: Vec<ConnectionNumber>,
    /// What one read takes.
    buffer: Box<[u8]>,
    /// Memory of what came over all connections, and of what is to leave.
    memory: (usize, usize),
    /// When connections are looked at whose clients have to go on.
    look_at_us: Option<u64>,
}

impl Tcp {
    /// Without a socket.
    ///
    /// # Errors
    /// The process has no descriptor left.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?,
            events: vec![EpollEvent::empty(); EVENTS_PER_TURN],
            listeners: Vec::new(),
            connections: FxHashMap::default(),
            unflushed: Vec::new(),
            buffer: vec![0; READ_BYTES].into(),
            memory: (0, 0),
            look_at_us: None,
        })
    }

    /// Listens at `addr`, or goes on at the socket that does. Returns the address that was bound,
    /// and the socket for a process that goes on at it.
    ///
    /// # Errors
    /// As of `bind(2)` and `listen(2)`.
    pub(crate) fn listen(
        &mut self,
        addr: SocketAddr,
        left: Option<OwnedFd>,
    ) -> io::Result<(SocketAddr, OwnedFd)> {
        let number = u64::try_from(self.listeners.len()).unwrap_or(u64::MAX);
        let token = FIRST_LISTENER.saturating_sub(number);
        let (listener, bound) = Listener::bind(addr, left, token, &self.epoll)?;
        let socket = listener.socket()?;
        self.listeners.push(listener);
        Ok((bound, socket))
    }

    /// Takes what has happened to the sockets. Returns how much.
    pub(crate) fn poll(&mut self, common: &mut Common) -> usize {
        if self.connections.is_empty() && self.listeners.is_empty() {
            return 0;
        }
        let mut events = std::mem::take(&mut self.events);
        // Only a signal that comes meanwhile is an error here.
        let count = self
            .epoll
            .wait(&mut events, EpollTimeout::ZERO)
            .unwrap_or(0);
        for event in events.iter().take(count) {
            let listener = FIRST_LISTENER.saturating_sub(event.data());
            match usize::try_from(listener) {
                Ok(listener) if listener < self.listeners.len() => self.accept(listener, common),
                _ => self.happened(ConnectionNumber(event.data()), event.events(), common),
            }
        }
        self.events = events;
        count
    }

    fn accept(&mut self, listener: usize, common: &mut Common) {
        for _ in 0..CALLS_PER_TURN {
            let Some(listener) = self.listeners.get_mut(listener) else {
                return;
            };
            let Some((stream, peer)) = listener.accept(&self.epoll, common.now_us) else {
                return;
            };
            self.adopt(stream, peer, &[], common);
        }
    }

    /// Takes a connection of which `bytes` were read.
    pub(crate) fn adopt(
        &mut self,
        stream: TcpStream,
        peer: SocketAddr,
        bytes: &[u8],
        common: &mut Common,
    ) {
        let Some((number, place)) = common.begin(Wire::Tcp, peer) else {
            return;
        };
        let added = Connection::new(stream, (number, place), peer).and_then(|connection| {
            let event = EpollEvent::new(connection.interest, number.0);
            self.epoll.add(connection.stream(), event)?;
            Ok(connection)
        });
        match added {
            Ok(connection) => {
                self.connections.insert(number, connection);
                self.with(number, common, |connection, _, common| {
                    connection.received(bytes, common)
                });
            }
            Err(error) => {
                End::Closed(error.to_string()).log(peer, number);
                common.end((Wire::Tcp, number), peer, 0);
            }
        }
    }

    fn happened(&mut self, number: ConnectionNumber, events: EpollFlags, common: &mut Common) {
        self.with(number, common, |connection, buffer, common| {
            if events.contains(EpollFlags::EPOLLOUT) {
                connection.send(common)?;
            }
            if events.contains(EpollFlags::EPOLLIN) {
                connection.read(buffer, common)?;
            }
            if events.intersects(EpollFlags::EPOLLERR | EpollFlags::EPOLLHUP)
                && !events.contains(EpollFlags::EPOLLIN)
            {
                let error = connection.stream().take_error().ok().flatten();
                let why = error.map_or_else(|| "the client ended it".to_owned(), |e| e.to_string());
                return Err(End::Closed(why));
            }
            Ok(())
        });
    }

    /// Does something with a connection, where it is still there, and what follows from that.
    fn with(
        &mut self,
        number: ConnectionNumber,
        common: &mut Common,
        act: impl FnOnce(&mut Connection, &mut [u8], &mut Common) -> Result<(), End>,
    ) {
        let Some(connection) = self.connections.get_mut(&number) else {
            return;
        };
        let acted = act(connection, &mut self.buffer, common);
        if let Err(why) = acted.and_then(|()| self.watch(number, common.now_us)) {
            self.end(number, &why, common);
        }
        self.keep_within_bounds(common);
    }

    /// Counts the memory of a connection, and has epoll say of it what it wants to know.
    fn watch(&mut self, number: ConnectionNumber, now_us: u64) -> Result<(), End> {
        let Some(connection) = self.connections.get_mut(&number) else {
            return Ok(());
        };
        connection.close_if_done();
        let memory = connection.memory();
        let counted = std::mem::replace(&mut connection.counted, memory);
        self.memory = recounted(self.memory, counted, memory);
        let wanted = connection.wanted();
        if wanted != connection.interest {
            if wanted.contains(EpollFlags::EPOLLIN & !connection.interest) {
                connection.goes_on(now_us);
            }
            connection.interest = wanted;
            let event = &mut EpollEvent::new(wanted, number.0);
            let modified = self.epoll.modify(connection.stream(), event);
            modified.map_err(|error| End::Closed(error.to_string()))?;
        }
        if connection.is_awaited() && self.look_at_us.is_none() {
            self.look_at_us = Some(now_us.saturating_add(LOOK_PERIOD_US));
        }
        Ok(())
    }

    /// Ends a connection, if there is one of that number.
    pub(crate) fn end(&mut self, number: ConnectionNumber, why: &End, common: &mut Common) {
        if let Some(connection) = self.connections.remove(&number) {
            why.log(connection.peer(), number);
            self.memory = recounted(self.memory, connection.counted, (0, 0));
            let under_way = connection.under_way();
            common.end((Wire::Tcp, number), connection.peer(), under_way);
        }
    }

    /// Ends connections while all together have more memory than there is for them.
    fn keep_within_bounds(&mut self, common: &mut Common) {
        let (received, queued) = self.memory;
        if received > RECEIVED_BYTES {
            let why = "there is no memory for more records, and its is the oldest unfinished one";
            self.end_oldest(Connection::begun_us, why, common);
        }
        if queued > QUEUED_BYTES {
            let why = "there is no memory for more replies, and it took none for longest";
            self.end_oldest(Connection::stuck_since_us, why, common);
        }
    }

    fn end_oldest(
        &mut self,
        since_us: impl Fn(&Connection) -> Option<u64>,
        why: &str,
        common: &mut Common,
    ) {
        let all = self.connections.iter();
        let all = all.filter_map(|(number, connection)| Some((since_us(connection)?, *number)));
        if let Some((_, oldest)) = all.min() {
            self.end(oldest, &End::Fault(why.to_owned()), common);
        }
    }

    /// When the call came that waits for the turn of its connection for longest.
    pub(crate) fn oldest_us(&self) -> Option<u64> {
        let all = self.connections.values();
        all.filter_map(Connection::oldest_us).min()
    }

    /// It is the turn of a connection: its next call is carried out.
    pub(crate) fn start_next(&mut self, number: ConnectionNumber, common: &mut Common) {
        self.with(number, common, |connection, _, common| {
            connection.start_next(common);
            Ok(())
        });
    }

    /// A call was carried out.
    pub(crate) fn answered(&mut self, task: Box<Task>, common: &mut Common) {
        let number = task.connection;
        let Some(connection) = self.connections.get_mut(&number) else {
            common.calls.left(number);
            common.calls.task_back(task);
            return;
        };
        if !std::mem::replace(&mut connection.is_unflushed, true) {
            self.unflushed.push(number);
        }
        self.with(number, common, |connection, _, common| {
            connection.answered(task, common)
        });
    }

    /// The end of a turn: sends the replies that it brought.
    pub(crate) fn flush(&mut self, common: &mut Common) {
        for number in std::mem::take(&mut self.unflushed) {
            self.with(number, common, |connection, _, common| {
                connection.is_unflushed = false;
                // The socket says when it takes more.
                if connection.stuck_since_us().is_some() {
                    return Ok(());
                }
                connection.send(common)
            });
        }
    }

    /// Ends connections whose clients leave something as it is for too long.
    pub(crate) fn look(&mut self, common: &mut Common) {
        for listener in &mut self.listeners {
            listener.resume(&self.epoll, common.now_us);
        }
        if self.look_at_us.is_none_or(|at_us| at_us > common.now_us) {
            return;
        }
        let before_us = common.stalled_before_us();
        let all = self.connections.iter();
        let overdue = all.filter_map(|(number, connection)| {
            let why = connection.overdue(before_us)?;
            Some((*number, why))
        });
        for (number, why) in overdue.collect::<Vec<_>>() {
            self.end(number, &End::Fault(why), common);
        }
        let is_any_awaited = self.connections.values().any(Connection::is_awaited);
        self.look_at_us = is_any_awaited.then(|| common.now_us.saturating_add(LOOK_PERIOD_US));
    }

    /// Takes no more connections, and reads no more calls.
    pub(crate) fn stop(&mut self, common: &mut Common) {
        self.listeners.clear();
        for number in self.connections.keys().copied().collect::<Vec<_>>() {
            self.with(number, common, |connection, _, _| {
                connection.stop();
                Ok(())
            });
        }
    }

    /// Ends all connections.
    pub(crate) fn end_all(&mut self, common: &mut Common) {
        let why = End::Closed("the server stops".to_owned());
        for number in self.connections.keys().copied().collect::<Vec<_>>() {
            self.end(number, &why, common);
        }
    }

    /// Once it stops: whether all calls are answered, and the answers have left.
    pub(crate) fn is_drained(&self) -> bool {
        self.connections.values().all(Connection::is_closing)
    }

    /// Whether there are no connections.
    pub(crate) fn is_empty(&self) -> bool {
        self.connections.is_empty()
    }

    /// Readable when there is something to poll.
    pub(crate) fn fd(&self) -> RawFd {
        self.epoll.0.as_raw_fd()
    }

    /// When [`Tcp::look`] is to be called at the latest.
    pub(crate) fn next_deadline_us(&self) -> Option<u64> {
        let paused = self.listeners.iter().filter_map(Listener::paused_until_us);
        paused.chain(self.look_at_us).min()
    }
}

/// The sums, where one of those that were added has changed.
fn recounted(sums: (usize, usize), from: (usize, usize), to: (usize, usize)) -> (usize, usize) {
    let recount = |sum: usize, from, to| sum.saturating_sub(from).saturating_add(to);
    (recount(sums.0, from.0, to.0), recount(sums.1, from.1, to.1))
}
