//! The network between a host and a target, in this process: a TCP proxy that delays, holds,
//! crumbles and cuts.
//!
//! What it has read stays on its way, whatever becomes of the end that sent it, as bytes in a
//! network do: a connection that is held and then healed delivers everything, and only then tells
//! how the other end went. To the user-space iWARP provider its ends are on two machines: shared
//! memory would go past it.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, spawn};
use std::time::{Duration, Instant};

use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{setsockopt, sockopt};

/// What a direction keeps before it reads no more: 64 writes of 1 MiB.
const KEPT_BYTES_MAX: usize = 64 << 20;
const READ_BYTES: usize = 64 << 10;
/// What an MPA Request begins with (RFC 5044 §7.1.1), and where its flags are.
const MPA_REQUEST: &[u8] = b"MPA ID Req Frame";
const MPA_FLAGS: usize = MPA_REQUEST.len();
/// A reserved flag by which our host says that it can share memory.
const MPA_FLAG_SAME_HOST: u8 = 0x01;
const PATIENCE: Duration = Duration::from_secs(60);

/// Where bytes go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// From the host.
    ToTarget,
    /// From the target.
    ToHost,
}

impl Direction {
    const BOTH: [Self; 2] = [Self::ToTarget, Self::ToHost];

    fn back(self) -> Self {
        match self {
            Self::ToTarget => Self::ToHost,
            Self::ToHost => Self::ToTarget,
        }
    }
}

/// What happens to the bytes of a direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flow {
    /// They pass at once.
    Pass,
    /// The same, but their end stays here: what has passed looks alive.
    PassBytes,
    /// They pass this long after they have come.
    Delay(Duration),
    /// They are read and stay here.
    Hold,
    /// The first so many pass, and the others stay here.
    HoldAfter(usize),
    /// They pass one by one, each as a TCP segment of its own where the receiver keeps up.
    Crumble,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    /// No more bytes come (FIN).
    Closed,
    /// The connection was cut (RST).
    Reset,
}

/// One direction of a connection.
struct Pipe {
    flow: Flow,
    kept: VecDeque<(Instant, Vec<u8>)>,
    kept_bytes: usize,
    passed_bytes: usize,
    end: Option<End>,
    /// The end has been passed on, or there is nobody left to take bytes.
    over: bool,
}

impl Pipe {
    fn new(flow: Flow) -> Self {
        Self {
            flow,
            kept: VecDeque::new(),
            kept_bytes: 0,
            passed_bytes: 0,
            end: None,
            over: false,
        }
    }

    /// When its next bytes, or its end, may pass; `None` when nothing is there to pass.
    fn due(&self) -> Option<Instant> {
        if self.over || (self.kept.is_empty() && self.end.is_none()) {
            return None;
        }
        let come = self.kept.front().map(|(come, _)| *come);
        match self.flow {
            Flow::Hold => None,
            Flow::HoldAfter(bytes) if self.passed_bytes >= bytes => None,
            Flow::PassBytes => come,
            Flow::Pass | Flow::HoldAfter(_) | Flow::Crumble => {
                Some(come.unwrap_or_else(Instant::now))
            }
            Flow::Delay(delay) => Some(come.map_or_else(Instant::now, |come| come + delay)),
        }
    }

    fn is_due(&self) -> bool {
        self.due().is_some_and(|at| at <= Instant::now())
    }

    fn is_new(&self) -> bool {
        self.kept_bytes + self.passed_bytes == 0
    }

    fn reads(&self) -> bool {
        self.end.is_none() && self.kept_bytes < KEPT_BYTES_MAX
    }

    fn read(&mut self, mut from: &TcpStream) {
        let mut bytes = vec![0; READ_BYTES];
        match from.read(&mut bytes) {
            Ok(0) => self.end = Some(End::Closed),
            Ok(count) => {
                bytes.truncate(count);
                if self.is_new() && bytes.starts_with(MPA_REQUEST) && count > MPA_FLAGS {
                    bytes[MPA_FLAGS] &= !MPA_FLAG_SAME_HOST;
                }
                self.kept_bytes += count;
                self.kept.push_back((Instant::now(), bytes));
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => self.end = Some(End::Reset),
        }
    }

    /// Passes on what is due and fits. An error when nobody takes it any more.
    fn write(&mut self, mut to: &TcpStream) -> Result<(), ()> {
        while self.is_due() {
            let Some((_, bytes)) = self.kept.front_mut() else {
                break;
            };
            let piece = match self.flow {
                Flow::Crumble => &bytes[..1],
                Flow::HoldAfter(pass) => {
                    let rest = pass.saturating_sub(self.passed_bytes);
                    &bytes[..rest.min(bytes.len())]
                }
                Flow::Pass | Flow::PassBytes | Flow::Delay(_) | Flow::Hold => bytes.as_slice(),
            };
            match to.write(piece) {
                Ok(count) => {
                    bytes.drain(..count);
                    self.kept_bytes -= count;
                    self.passed_bytes += count;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(_) => return Err(()),
            }
            if bytes.is_empty() {
                self.kept.pop_front();
            }
        }
        Ok(())
    }
}

/// A connection and what is on its way.
struct Connection {
    host: Option<Arc<TcpStream>>,
    target: Option<Arc<TcpStream>>,
    to_target: Pipe,
    to_host: Pipe,
}

impl Connection {
    fn pipe(&mut self, direction: Direction) -> &mut Pipe {
        match direction {
            Direction::ToTarget => &mut self.to_target,
            Direction::ToHost => &mut self.to_host,
        }
    }

    /// The end that takes the bytes of a direction.
    fn taker(&mut self, direction: Direction) -> &mut Option<Arc<TcpStream>> {
        match direction {
            Direction::ToTarget => &mut self.target,
            Direction::ToHost => &mut self.host,
        }
    }

    fn read(&mut self, direction: Direction) {
        if let Some(from) = self.taker(direction.back()).clone()
            && self.pipe(direction).reads()
        {
            self.pipe(direction).read(&from);
        }
    }

    fn write(&mut self, direction: Direction) {
        let to = self.taker(direction).clone();
        let pipe = self.pipe(direction);
        let alive = to.as_ref().is_some_and(|to| pipe.write(to).is_ok());
        if !alive {
            pipe.kept.clear();
            pipe.kept_bytes = 0;
            pipe.over = true;
        }
        if !pipe.kept.is_empty() || !pipe.is_due() {
            return;
        }
        pipe.over = true;
        match (pipe.end, to) {
            (Some(End::Reset), _) => self.reset(direction),
            (Some(End::Closed), Some(to)) => {
                // An end that has gone already needs no telling.
                let _ = to.shutdown(Shutdown::Write);
            }
            _ => {}
        }
    }

    /// Cuts the connection to the end that takes a direction's bytes.
    fn reset(&mut self, direction: Direction) {
        if let Some(stream) = self.taker(direction).take() {
            abort(&stream);
        }
    }

    /// Lets go of an end that has nothing more to send or to take.
    fn forget(&mut self) {
        if self.to_target.over && self.to_host.over {
            self.host = None;
            self.target = None;
        }
    }
}

/// Makes the close of a socket a RST.
fn abort(stream: &TcpStream) {
    let linger = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    setsockopt(stream, sockopt::Linger, &linger).expect("SO_LINGER can be set");
}

struct State {
    connections: Vec<Connection>,
    /// What new connections begin with, by direction.
    flow: [Flow; 2],
    /// New connections are cut at once.
    refuses: bool,
    stops: bool,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    wake: UnixStream,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // A test that failed holds no half-made change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        // A full pipe wakes as well.
        let _ = (&self.wake).write(&[0]);
    }
}

/// A proxy that runs until it is dropped. Connections are numbered as they come, from 0.
pub struct Proxy {
    /// Where hosts connect.
    pub address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// A proxy on a free port of 127.0.0.1 before `target`.
    ///
    /// # Panics
    /// When there are no sockets.
    #[must_use]
    pub fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        listener.set_nonblocking(true).expect("not blocking");
        let address = listener.local_addr().expect("an address");
        let (wake, woken) = UnixStream::pair().expect("a pair of sockets");
        for end in [&wake, &woken] {
            end.set_nonblocking(true).expect("not blocking");
        }
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                connections: Vec::new(),
                flow: [Flow::Pass; 2],
                refuses: false,
                stops: false,
            }),
            changed: Condvar::new(),
            wake,
        });
        let thread = spawn({
            let shared = Arc::clone(&shared);
            move || work(&shared, &listener, &woken, target)
        });
        Self {
            address,
            shared,
            thread: Some(thread),
        }
    }

    /// How many connections have come.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared.state().connections.len()
    }

    /// Waits until so many connections have come.
    ///
    /// # Panics
    /// When they have not within a minute.
    pub fn wait_for_connections(&self, count: usize) {
        self.wait("connections", |state| state.connections.len() >= count);
    }

    /// Changes what happens to the bytes of a connection, those that are kept as well.
    ///
    /// # Panics
    /// When there is no such connection.
    pub fn set(&self, connection: usize, direction: Direction, flow: Flow) {
        self.change(|state| state.connections[connection].pipe(direction).flow = flow);
    }

    /// The same for every connection there is; those that come later pass.
    pub fn set_all(&self, direction: Direction, flow: Flow) {
        self.change(|state| {
            for connection in &mut state.connections {
                connection.pipe(direction).flow = flow;
            }
        });
    }

    /// What happens to the bytes of connections that come from now on.
    pub fn set_new(&self, direction: Direction, flow: Flow) {
        self.change(|state| state.flow[direction as usize] = flow);
    }

    /// Whether connections that come from now on are cut at once.
    pub fn refuse_new(&self, refuses: bool) {
        self.change(|state| state.refuses = refuses);
    }

    /// Cuts both halves of a connection (RST), with what is on its way.
    ///
    /// # Panics
    /// When there is no such connection.
    pub fn reset(&self, connection: usize) {
        self.change(|state| {
            let connection = &mut state.connections[connection];
            for direction in Direction::BOTH {
                connection.reset(direction);
                connection.pipe(direction).over = true;
            }
        });
    }

    /// Tells the end that takes a direction's bytes that no more come (FIN), with what is on its
    /// way left out. The other direction goes on.
    ///
    /// # Panics
    /// When there is no such connection.
    pub fn half_close(&self, connection: usize, direction: Direction) {
        self.change(|state| {
            let connection = &mut state.connections[connection];
            connection.pipe(direction).over = true;
            if let Some(taker) = connection.taker(direction) {
                taker.shutdown(Shutdown::Write).expect("a connected socket");
            }
        });
    }

    /// Bytes of a direction that are kept here.
    ///
    /// # Panics
    /// When there is no such connection.
    #[must_use]
    pub fn kept_bytes(&self, connection: usize, direction: Direction) -> usize {
        self.shared.state().connections[connection]
            .pipe(direction)
            .kept_bytes
    }

    /// Waits until so many bytes of a direction are kept here.
    ///
    /// # Panics
    /// When they are not within a minute, or there is no such connection.
    pub fn wait_for_kept_bytes(&self, connection: usize, direction: Direction, count: usize) {
        self.wait("kept bytes", |state| {
            state.connections[connection].pipe(direction).kept_bytes >= count
        });
    }

    /// Waits until bytes of a direction are kept here of so many connections.
    ///
    /// # Panics
    /// When there are not within a minute.
    pub fn wait_for_kept(&self, connections: usize, direction: Direction) {
        self.wait("connections that are held", |state| {
            let all = state.connections.iter_mut();
            let held = all
                .filter_map(|connection| (connection.pipe(direction).kept_bytes > 0).then_some(()));
            held.count() >= connections
        });
    }

    /// Waits until the end that sends a direction's bytes has closed or cut the connection.
    ///
    /// # Panics
    /// When it has not within a minute, or there is no such connection.
    pub fn wait_for_end(&self, connection: usize, direction: Direction) {
        self.wait("the end of a connection", |state| {
            state.connections[connection].pipe(direction).end.is_some()
        });
    }

    /// Whether the end that sends a direction's bytes has cut the connection (RST), not closed it.
    ///
    /// # Panics
    /// When there is no such connection.
    #[must_use]
    pub fn was_reset(&self, connection: usize, direction: Direction) -> bool {
        let mut state = self.shared.state();
        state.connections[connection].pipe(direction).end == Some(End::Reset)
    }

    /// Waits until everything that has come of a direction, and its end if there was one, is passed
    /// on or has nobody to go to.
    ///
    /// # Panics
    /// When it is not within a minute, or there is no such connection.
    pub fn wait_until_passed(&self, connection: usize, direction: Direction) {
        self.wait("the passing of bytes", |state| {
            let pipe = state.connections[connection].pipe(direction);
            pipe.over || (pipe.kept.is_empty() && pipe.end.is_none())
        });
    }

    fn change<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        let result = change(&mut self.shared.state());
        self.shared.wake();
        result
    }

    fn wait(&self, what: &str, mut done: impl FnMut(&mut State) -> bool) {
        let waited =
            self.shared
                .changed
                .wait_timeout_while(self.shared.state(), PATIENCE, |state| !done(state));
        let (state, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        drop(state);
        assert!(!timeout.timed_out(), "waited a minute for {what}");
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.change(|state| state.stops = true);
        if let Some(thread) = self.thread.take() {
            // A test that failed already must not be covered by another panic.
            let _ = thread.join();
        }
    }
}

/// Moves bytes until the proxy is dropped.
fn work(shared: &Shared, listener: &TcpListener, woken: &UnixStream, target: SocketAddr) {
    loop {
        let (sockets, timeout) = {
            let mut state = shared.state();
            if state.stops {
                return;
            }
            let sockets = state
                .connections
                .iter_mut()
                .flat_map(interests)
                .collect::<Vec<_>>();
            (sockets, timeout(&state))
        };
        let mut fds: Vec<_> = [listener.as_fd(), woken.as_fd()]
            .map(|fd: BorrowedFd<'_>| PollFd::new(fd, PollFlags::POLLIN))
            .into();
        fds.extend(
            sockets
                .iter()
                .map(|(fd, events)| PollFd::new(fd.as_fd(), *events)),
        );
        match poll(&mut fds, timeout) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => panic!("poll: {error}"),
        }
        drop(fds);
        drop(sockets);
        let mut wakes = [0; 64];
        while matches!((&*woken).read(&mut wakes), Ok(count) if count > 0) {}
        let mut state = shared.state();
        while let Ok((host, _)) = listener.accept() {
            take_in(&mut state, host, target);
        }
        for connection in &mut state.connections {
            for direction in Direction::BOTH {
                connection.read(direction);
                if connection.pipe(direction).is_due() {
                    connection.write(direction);
                }
            }
            connection.forget();
        }
        drop(state);
        shared.changed.notify_all();
    }
}

fn take_in(state: &mut State, host: TcpStream, target: SocketAddr) {
    let target = (!state.refuses)
        .then(|| TcpStream::connect_timeout(&target, PATIENCE).ok())
        .flatten();
    let Some(target) = target else {
        return abort(&host);
    };
    for stream in [&host, &target] {
        stream.set_nodelay(true).expect("TCP_NODELAY can be set");
        stream.set_nonblocking(true).expect("not blocking");
    }
    let [to_target, to_host] = state.flow.map(Pipe::new);
    state.connections.push(Connection {
        host: Some(Arc::new(host)),
        target: Some(Arc::new(target)),
        to_target,
        to_host,
    });
}

/// What a connection waits for.
fn interests(connection: &mut Connection) -> Vec<(Arc<TcpStream>, PollFlags)> {
    let ends = Direction::BOTH.map(|direction| {
        let reads = connection.pipe(direction.back()).reads();
        let writes = connection.pipe(direction).is_due();
        let mut events = PollFlags::empty();
        events.set(PollFlags::POLLIN, reads);
        events.set(PollFlags::POLLOUT, writes);
        let end = connection.taker(direction).clone();
        // An end without events would be told of as hung up, over and over.
        end.filter(|_| !events.is_empty()).map(|end| (end, events))
    });
    ends.into_iter().flatten().collect()
}

/// Until the next delayed bytes are due.
fn timeout(state: &State) -> PollTimeout {
    let pipes = state
        .connections
        .iter()
        .flat_map(|connection| [&connection.to_target, &connection.to_host]);
    let due = pipes
        .filter_map(Pipe::due)
        .filter(|at| *at > Instant::now())
        .min();
    due.map_or(PollTimeout::NONE, |at| {
        let wait = at.saturating_duration_since(Instant::now());
        // Not before it is due, or the last millisecond would be spent polling.
        let wait_ms = u16::try_from(wait.as_millis() + 1).unwrap_or(u16::MAX);
        PollTimeout::from(wait_ms)
    })
}

#[cfg(test)]
mod tests;
