//! Sockets of ended connections, kept until the peer has read the last bytes.
//!
//! Closing a socket that has unread bytes makes TCP send a reset, and a reset takes away what the
//! peer has not read yet: a Terminate would be lost. So the end is: send the rest, close our half,
//! and read and drop what still comes until the peer closes too, or time is up.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};

use crate::contract::QpNum;
use crate::iwarp::link::socket::reset_when_closed;

/// Most bytes that are read and dropped for one socket.
const DRAIN_BYTES: usize = 4 << 20;
/// How often they are looked at: each look is a system call for each.
const LOOK_EVERY_US: u64 = 10_000;

/// The lingering sockets of a provider.
pub(in crate::iwarp) struct Lingering {
    /// The oldest first.
    all: RefCell<VecDeque<Linger>>,
    max: usize,
    /// Some have no deadline yet: the time is not known where they are added.
    has_new: Cell<bool>,
    look_us: Cell<u64>,
}

impl Lingering {
    /// Room for `max`, at least one.
    pub(in crate::iwarp) fn new(max: usize) -> Self {
        Self {
            all: RefCell::default(),
            max: max.max(1),
            has_new: Cell::new(false),
            look_us: Cell::new(0),
        }
    }

    /// Ends a socket in order, with `bytes` as its last; `qp` is the queue pair it belonged to, if
    /// any. Where there are too many, the oldest is closed at once: any peer can connect and leave
    /// as often as it likes.
    pub(in crate::iwarp) fn add(&self, stream: TcpStream, bytes: Vec<u8>, qp: Option<QpNum>) {
        let Some(linger) = Linger::start(stream, bytes, qp) else {
            return;
        };
        let mut all = self.all.borrow_mut();
        if all.len() >= self.max {
            all.pop_front();
        }
        all.push_back(linger);
        self.has_new.set(true);
    }

    /// Closes what is left of `qp`: what it has not sent is not sent any more.
    pub(in crate::iwarp) fn abort(&self, qp: QpNum) {
        self.all.borrow_mut().retain(|linger| !linger.abort(qp));
    }

    /// Makes progress with all of them at `now_us`.
    pub(in crate::iwarp) fn run(&self, now_us: u64, linger_us: u64) {
        if !self.has_new.replace(false) && now_us < self.look_us.get() {
            return;
        }
        let mut all = self.all.borrow_mut();
        all.retain_mut(|linger| !linger.run(now_us, linger_us));
        self.look_us.set(now_us + LOOK_EVERY_US);
    }

    /// When the first is closed at the latest; 0 while its deadline is not known.
    pub(in crate::iwarp) fn due_us(&self) -> Option<u64> {
        if self.has_new.get() {
            return Some(0);
        }
        // All linger for the same time, so the oldest is due first.
        self.all.borrow().front()?.deadline_us
    }

    #[cfg(any(test, feature = "fuzzing"))]
    pub(in crate::iwarp) fn clear(&self) {
        self.all.borrow_mut().clear();
    }
}

/// A socket that is being closed.
struct Linger {
    stream: TcpStream,
    /// The queue pair whose connection it was, if it got that far.
    qp: Option<QpNum>,
    bytes: Vec<u8>,
    written: usize,
    half_closed: bool,
    drained: usize,
    /// On the program's clock; set at the first run that knows the time.
    deadline_us: Option<u64>,
}

impl Linger {
    /// Sends what can be sent at once; `None` when nothing is left to wait for.
    fn start(stream: TcpStream, bytes: Vec<u8>, qp: Option<QpNum>) -> Option<Self> {
        let mut linger = Self {
            stream,
            qp,
            bytes,
            written: 0,
            half_closed: false,
            drained: 0,
            deadline_us: None,
        };
        (!linger.advance()).then_some(linger)
    }

    /// Makes progress; `true` when the socket can be closed.
    fn advance(&mut self) -> bool {
        while let Some(rest) = self.bytes.get(self.written..).filter(|r| !r.is_empty()) {
            match (&self.stream).write(rest) {
                Ok(0) => return true,
                Ok(bytes) => self.written += bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
                Err(_) => return true,
            }
        }
        // An error means that the peer is gone.
        if !self.half_closed && self.stream.shutdown(Shutdown::Write).is_err() {
            return true;
        }
        self.half_closed = true;
        let mut sink = [0; 16 << 10];
        while self.drained < DRAIN_BYTES {
            match (&self.stream).read(&mut sink) {
                Ok(0) => return true,
                Ok(bytes) => self.drained += bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
                Err(_) => return true,
            }
        }
        true
    }

    /// Makes progress at `now_us`; `true` when the socket can be closed.
    fn run(&mut self, now_us: u64, linger_us: u64) -> bool {
        let deadline = *self.deadline_us.get_or_insert(now_us + linger_us);
        self.advance() || now_us >= deadline
    }

    /// Whether it belongs to `qp` and is to be closed; what it has not sent is not sent any more.
    fn abort(&self, qp: QpNum) -> bool {
        let own = self.qp == Some(qp);
        if own {
            reset_when_closed(&self.stream);
        }
        own
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn those_who_leave_without_end_keep_a_bounded_number_of_sockets() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let lingering = Lingering::new(4);
        let mut peers = Vec::new();
        for _ in 0..10 {
            peers.push(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
            let (stream, _) = listener.accept().unwrap();
            stream.set_nonblocking(true).unwrap();
            lingering.add(stream, b"last words".to_vec(), None);
        }
        assert_eq!(lingering.all.borrow().len(), 4);
        assert_eq!(lingering.due_us(), Some(0), "the time is not known yet");
        lingering.run(100, 1000);
        assert_eq!(lingering.due_us(), Some(1100));
        // Every peer has read what was sent to it, also where the socket was closed at once.
        for peer in &mut peers {
            let mut heard = [0; 10];
            peer.read_exact(&mut heard).unwrap();
            assert_eq!(&heard, b"last words");
        }
        drop(peers);
        lingering.run(100 + LOOK_EVERY_US, 1000);
        assert_eq!(lingering.due_us(), None);
    }
}
