//! The connection manager: listeners, set-ups, and the ids of connections.

mod connect;
mod listen;
mod others;
mod setup;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::rc::{Rc, Weak};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use self::listen::Request;
pub use self::others::{OtherProtocol, OtherStream, OtherStreams};
use self::setup::FrameReader;
use super::config::Config;
use super::cq::epoll_of;
use super::device;
use super::driver::notice::{Link2Cm, Notice, Notices};
use super::driver::qp::Qp;
use super::driver::{IwarpEngine, system};
use super::fatal::Fatal;
use crate::address_words::{check_families, refused, system_words};
use crate::contract::{
    CmError, CmEvent, CmEventKind, CmId, ConnectParam, ConnectionManager, Device, MigratedId,
    PrivateData, ProtectionDomain, QpConfig, QpState, QueuePair, RdmaError,
};
use crate::ids::{Ids, UNKNOWN, local_address, may_make_qp, may_migrate};
use crate::strangers::Strangers;

/// Events taken in one look at the sockets.
const EVENTS: usize = 64;
/// A manager that is polled all the time looks at its deadlines no more often than this.
const LOOK_EVERY_US: u64 = 20;

/// The state of an id.
enum State {
    /// Takes connections.
    Listening(listen::Listening),
    /// Has a destination; nothing sent yet.
    Resolved {
        destination: SocketAddr,
        source: Option<IpAddr>,
    },
    /// TCP connects, or the Reply is awaited.
    Connecting(connect::Connecting),
    /// Accepted by TCP; its Request is awaited.
    HalfOpen(listen::HalfOpen),
    /// The program has the request and has not decided yet.
    Requested(Request),
    /// Accepted; the peer's first message is awaited.
    AwaitFirst { param: ConnectParam },
    /// Established.
    Connected,
    /// Ended.
    Closed,
}

/// What belongs to an id.
struct Entry {
    state: State,
    local: Option<SocketAddr>,
    peer: Option<SocketAddr>,
    qp: Weak<RefCell<Qp>>,
    deadline_us: Option<u64>,
}

impl Entry {
    /// Whether its wait has begun without a deadline, because the time was not known then.
    fn is_unaware(&self) -> bool {
        self.deadline_us.is_none() && matches!(self.state, State::AwaitFirst { .. })
    }
}

/// A thread's connection manager.
pub(super) struct Manager {
    engine: Rc<IwarpEngine>,
    notices: Rc<Notices>,
    /// Watches listeners and set-ups; the engine watches it in turn.
    epoll: Epoll,
    /// Watches what the engine watches, and the notices.
    outer: Epoll,
    events: Vec<EpollEvent>,
    ids: Ids<Entry>,
    /// The ids that have a deadline, or get one when the time is known; no established connection
    /// is among them.
    timed: BTreeSet<CmId>,
    /// No deadline is earlier than this; 0 while some are not known.
    due_us: u64,
    half_open: Strangers<CmId>,
    /// Connections of another protocol that listeners take as well.
    others: Option<Rc<OtherStreams>>,
    now_us: u64,
    /// When the deadlines were last looked at.
    looked_us: Option<u64>,
    /// [`IwarpEngine::set_ups`] at that time.
    set_ups: u32,
    ticks: u32,
}

impl Manager {
    pub(super) fn new(
        engine: &Rc<IwarpEngine>,
        others: Option<Rc<OtherStreams>>,
    ) -> Result<Self, RdmaError> {
        let notices = Notices::new().map_err(system("eventfd of a connection manager"))?;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)
            .map_err(system("epoll of a connection manager"))?;
        engine
            .watch_set_ups(&epoll)
            .map_err(system("epoll of a connection manager"))?;
        let outer = epoll_of(&[(&engine.poller.epoll.0, 0), (notices.waker.fd(), 1)]);
        Ok(Self {
            engine: Rc::clone(engine),
            notices,
            epoll,
            outer: outer.map_err(system("epoll of a connection manager"))?,
            events: vec![EpollEvent::empty(); EVENTS],
            ids: Ids::new(),
            timed: BTreeSet::new(),
            due_us: u64::MAX,
            half_open: Strangers::new(
                Config::descriptors(engine.config.half_open_max),
                engine.config.half_open_per_source_max,
            ),
            others,
            now_us: 0,
            looked_us: None,
            set_ups: engine.set_ups(),
            ticks: 0,
        })
    }

    /// Whether connections of the other protocol have not been taken yet.
    fn others_wait(&self) -> bool {
        let others = self.others.as_ref();
        others.is_some_and(|others| others.some_wait())
    }

    fn tell(&mut self, id: CmId, kind: CmEventKind) {
        self.ids.tell(id, kind);
        self.notices.waker.wake();
    }

    /// Ends an id with an event; its queue pair, if any, is flushed.
    fn close(&mut self, id: CmId, kind: CmEventKind) {
        if let Some(entry) = self.ids.get_mut(id) {
            let state = std::mem::replace(&mut entry.state, State::Closed);
            entry.deadline_us = None;
            if matches!(state, State::HalfOpen(_)) {
                self.half_open.fail(id);
            }
            if let Some(qp) = entry.qp.upgrade() {
                let mut qp = qp.borrow_mut();
                // The event below tells the program.
                qp.cm = None;
                self.engine.end(&mut qp, &Fatal::Disconnect);
            }
        }
        self.tell(id, kind);
    }

    /// Watches a socket of `id`.
    fn watch(&self, id: CmId, fd: impl AsFd, interest: EpollFlags) -> Result<(), CmError> {
        let event = EpollEvent::new(interest, id.0);
        self.epoll
            .add(fd, event)
            .map_err(|error| os_error("watching a socket", &error.into()))
    }

    /// Looks at listeners and set-ups.
    fn look(&mut self) {
        let mut events = std::mem::take(&mut self.events);
        let count = self.epoll.wait(&mut events, EpollTimeout::ZERO);
        for event in &events[..count.unwrap_or(0)] {
            let id = CmId(event.data());
            match self.ids.get(id).map(|e| &e.state) {
                Some(State::Listening(_)) => self.accept_connections(id),
                Some(State::HalfOpen(_)) => self.read_request(id),
                Some(State::Connecting(_)) => self.continue_connect(id),
                _ => {}
            }
        }
        self.events = events;
    }

    /// Turns the notices of queue pairs into events.
    fn take_notices(&mut self) {
        while let Some((id, notice)) = self.notices.take() {
            let Some(entry) = self.ids.get_mut(id) else {
                continue;
            };
            match (notice, &entry.state) {
                (Notice::FirstArrived, State::AwaitFirst { param }) => {
                    let param = *param;
                    entry.state = State::Connected;
                    entry.deadline_us = None;
                    self.tell(id, CmEventKind::Established { param });
                }
                (
                    Notice::Disconnected {
                        cause,
                        is_violation,
                    },
                    State::AwaitFirst { .. } | State::Connected | State::Connecting(_),
                ) => {
                    entry.state = State::Closed;
                    entry.deadline_us = None;
                    let kind = CmEventKind::Disconnected {
                        cause,
                        is_violation,
                    };
                    self.tell(id, kind);
                }
                _ => {}
            }
        }
    }

    /// Sets the deadline of an id; without `at_us` its wait begins at the next look at the clock.
    fn time(&mut self, id: CmId, at_us: Option<u64>) {
        if let Some(entry) = self.ids.get_mut(id) {
            entry.deadline_us = at_us;
            self.timed.insert(id);
            self.due_us = self.due_us.min(at_us.unwrap_or(0));
        }
    }

    /// How long a peer has for each step of a set-up.
    fn setup_us(&self) -> u64 {
        self.engine.config.setup_timeout_ms * 1000
    }

    /// Acts on everything whose time has come.
    fn run_deadlines(&mut self) {
        let now = self.now_us;
        if self.due_us <= now {
            self.run_timed();
        }
        let linger_us = self.engine.config.linger_ms * 1000;
        self.engine.lingering.run(now, linger_us);
        self.engine.handle_timeouts(now);
        self.engine.idle_links.run(&self.engine, now);
    }

    /// Ends the waits of ids that are due, and finds the next deadline.
    fn run_timed(&mut self) {
        let (now, setup_us) = (self.now_us, self.setup_us());
        let (mut due, mut next_us) = (Vec::new(), u64::MAX);
        let ids = &mut self.ids;
        self.timed.retain(|&id| {
            let Some(entry) = ids.get_mut(id) else {
                return false;
            };
            if entry.is_unaware() {
                entry.deadline_us = Some(now + setup_us);
            }
            match entry.deadline_us {
                Some(at) if at <= now => due.push(id),
                Some(at) => next_us = next_us.min(at),
                None => return false,
            }
            true
        });
        self.due_us = next_us;
        for id in due {
            self.time_out(id);
        }
    }

    fn time_out(&mut self, id: CmId) {
        let Some(entry) = self.ids.get_mut(id) else {
            return;
        };
        entry.deadline_us = None;
        self.timed.remove(&id);
        match &mut entry.state {
            State::Listening(_) => self.resume_listener(id),
            State::HalfOpen(_) => self.forget(id),
            State::Connecting(connecting) => {
                let peer = entry.peer.map(|peer| peer.to_string());
                let error = connecting.timed_out(peer.as_deref().unwrap_or("the peer"));
                self.close(id, CmEventKind::Failed(error));
            }
            State::AwaitFirst { .. } => {
                let waited_ms = self.engine.config.setup_timeout_ms;
                if let Some(qp) = entry.qp.upgrade() {
                    let fatal = Fatal::NoFirstMessage { waited_ms };
                    self.engine.end(&mut qp.borrow_mut(), &fatal);
                }
            }
            _ => {}
        }
    }

    /// Drops an id and its socket without an event for the program.
    fn forget(&mut self, id: CmId) {
        self.half_open.fail(id);
        self.ids.remove(id);
    }

    /// Ends a set-up socket in order, with `bytes` as its last.
    fn linger(&self, stream: TcpStream, bytes: Vec<u8>) {
        // The set-up no longer watches the socket, which is closed when nothing is left to wait
        // for.
        let _ = self.epoll.delete(&stream);
        self.engine.lingering.add(stream, bytes, None);
    }
}

/// A system error as the program is given it.
fn os_error(what: &str, error: &std::io::Error) -> CmError {
    CmError::System {
        what: what.into(),
        message: system_words(error),
        errno: error.raw_os_error(),
    }
}

impl ConnectionManager for Manager {
    fn listen(&mut self, addr: SocketAddr, backlog: u32) -> Result<(CmId, SocketAddr), CmError> {
        self.start_listening(addr, backlog)
    }

    fn listen_on(&mut self, socket: OwnedFd) -> Result<(CmId, SocketAddr), CmError> {
        self.listen_at(TcpListener::from(socket))
    }

    fn socket_of(&self, listener: CmId) -> Option<OwnedFd> {
        self.listening_socket(listener)
    }

    fn resolve(
        &mut self,
        destination: SocketAddr,
        source: Option<IpAddr>,
        _timeout_us: u64,
        now_us: u64,
    ) -> Result<CmId, CmError> {
        self.now_us = self.now_us.max(now_us);
        let what = || format!("route to {destination}");
        check_families(what, destination, source)?;
        let local = local_address(destination, source)
            .map_err(|error| refused(what(), destination, source, &error))?;
        let id = self.ids.reserve();
        self.ids.put(
            id,
            Entry {
                state: State::Resolved {
                    destination,
                    source,
                },
                local: Some(local),
                peer: Some(destination),
                qp: Weak::new(),
                deadline_us: None,
            },
        );
        self.tell(id, CmEventKind::Resolved);
        Ok(id)
    }

    fn device(&self, id: CmId) -> Option<Rc<dyn Device>> {
        let entry = self.ids.get(id)?;
        let device = self.engine.clone();
        (!matches!(entry.state, State::Listening(_))).then_some(device)
    }

    fn addresses(&self, id: CmId) -> Option<(SocketAddr, SocketAddr)> {
        let entry = self.ids.get(id)?;
        Some((entry.local?, entry.peer?))
    }

    fn create_qp(
        &mut self,
        id: CmId,
        pd: &Rc<dyn ProtectionDomain>,
        config: &QpConfig,
    ) -> Result<Box<dyn QueuePair>, RdmaError> {
        let entry = self.ids.get_mut(id).ok_or(RdmaError::Invalid(UNKNOWN))?;
        let waits = matches!(entry.state, State::Resolved { .. } | State::Requested(_));
        may_make_qp(waits, entry.qp.strong_count() > 0)?;
        let cm = Link2Cm::new(&self.notices, id);
        let qp = device::create_qp(&self.engine, pd, config, cm)?;
        entry.qp = Rc::downgrade(&qp.cell);
        Ok(Box::new(qp))
    }

    fn connect(
        &mut self,
        id: CmId,
        param: &ConnectParam,
        timeout_us: u64,
        now_us: u64,
    ) -> Result<(), CmError> {
        self.now_us = self.now_us.max(now_us);
        self.start_connect(id, param, timeout_us)
    }

    fn accept(&mut self, id: CmId, param: &ConnectParam) -> Result<(), CmError> {
        self.accept_request(id, param)
    }

    fn reject(&mut self, id: CmId, private_data: &PrivateData) {
        let Some(entry) = self.ids.remove(id) else {
            return;
        };
        if let State::Requested(request) = entry.state {
            if let Some(qp) = entry.qp.upgrade() {
                self.engine.end(&mut qp.borrow_mut(), &Fatal::Disconnect);
            }
            let (stream, bytes) = request.refuse(private_data.as_bytes());
            self.linger(stream, bytes);
        } else {
            self.ids.put(id, entry);
        }
    }

    fn disconnect(&mut self, id: CmId) {
        let Some(entry) = self.ids.get_mut(id) else {
            return;
        };
        match entry.state {
            State::Connected | State::AwaitFirst { .. } => {
                if let Some(qp) = entry.qp.upgrade() {
                    self.engine.end(&mut qp.borrow_mut(), &Fatal::Disconnect);
                }
            }
            State::Connecting(_) | State::Resolved { .. } | State::Requested(_) => {
                let cause = "closed by this side during set-up".into();
                let kind = CmEventKind::Disconnected {
                    cause,
                    is_violation: false,
                };
                self.close(id, kind);
            }
            State::Listening(_) | State::HalfOpen(_) | State::Closed => {}
        }
    }

    fn abort(&mut self, id: CmId) {
        let qp = self.ids.get(id).and_then(|entry| entry.qp.upgrade());
        match qp {
            // During a set-up nothing can have been posted.
            Some(qp) if qp.borrow().core.state != QpState::Init => {
                self.engine.abort(&mut qp.borrow_mut());
            }
            _ => self.disconnect(id),
        }
    }

    fn destroy(&mut self, id: CmId) {
        let Some(entry) = self.ids.remove(id) else {
            return;
        };
        if let Some(qp) = entry.qp.upgrade() {
            let mut qp = qp.borrow_mut();
            qp.cm = None;
            self.engine.end(&mut qp, &Fatal::Disconnect);
        }
        self.ids.forget_events(id);
        match entry.state {
            State::Requested(request) => {
                let (stream, bytes) = request.refuse(&[]);
                self.linger(stream, bytes);
            }
            State::Listening(listening) => {
                self.leave(&listening);
                self.forget_requests_of(id);
            }
            State::HalfOpen(_) => {
                self.half_open.fail(id);
            }
            _ => {}
        }
    }

    fn migrate(&mut self, id: CmId) -> Result<MigratedId, CmError> {
        let entry = self.ids.known(id)?;
        let requested = matches!(entry.state, State::Requested(_));
        may_migrate(requested, entry.qp.strong_count() > 0)?;
        let entry = self.ids.remove(id);
        match entry.map(|e| e.state) {
            Some(State::Requested(request)) => {
                // The socket was taken out of the epoll with the request, so this may find nothing.
                let _ = self.epoll.delete(request.stream());
                Ok(request.migrate())
            }
            _ => Err(CmError::Invalid(UNKNOWN)),
        }
    }

    fn adopt(&mut self, id: MigratedId) -> Result<CmId, CmError> {
        self.adopt_request(id)
    }

    fn poll(&mut self, now_us: u64) -> Option<CmEvent> {
        self.now_us = self.now_us.max(now_us);
        self.notices.waker.disarm();
        // They came before what is not looked at yet, which waits in the queues of the listeners.
        if self.others_wait() {
            return None;
        }
        if let Some(event) = self.ids.take_event() {
            return Some(event);
        }
        // When no completion queue was polled meanwhile, the connections are driven from here.
        let ticks = self.engine.ticks();
        if self.ticks == ticks {
            self.engine.progress(|| false);
        }
        self.ticks = self.engine.ticks();
        let set_ups = self.engine.set_ups();
        if self.set_ups != set_ups {
            self.set_ups = set_ups;
            self.look();
        }
        let since = self.looked_us.map(|at| self.now_us - at);
        if since.is_none_or(|us| us == 0 || us >= LOOK_EVERY_US) {
            self.looked_us = Some(self.now_us);
            self.run_deadlines();
        }
        self.take_notices();
        if self.others_wait() {
            return None;
        }
        self.ids.take_event()
    }

    fn arm(&mut self) -> bool {
        if self.ids.has_events() || !self.notices.is_empty() || self.engine.arm() {
            return true;
        }
        self.notices.waker.arm();
        false
    }

    fn fd(&self) -> RawFd {
        self.outer.0.as_raw_fd()
    }

    fn next_deadline_us(&self) -> Option<u64> {
        let entries = (!self.timed.is_empty()).then_some(self.due_us);
        let lingering = self.engine.lingering.due_us();
        let connections = self.engine.poll_timeout();
        let idle_links = self.engine.idle_links.due_us();
        let times = [entries, lingering, connections, idle_links];
        times.into_iter().flatten().min()
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        self.engine.forget_set_ups(&self.epoll);
    }
}

/// A socket on which an MPA frame is awaited.
struct SetUpSocket {
    stream: TcpStream,
    reader: FrameReader,
}
