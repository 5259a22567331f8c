//! Sockets of ended connections, kept until the peer has read the last bytes.
//!
//! Closing a socket that has unread bytes makes TCP send a reset, and a reset takes away what the
//! peer has not read yet: a Terminate would be lost. So the end is: send the rest, close our half,
//! and read and drop what still comes until the peer closes too, or time is up.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};

use crate::contract::QpNum;
use crate::iwarp::socket::reset_when_closed;

/// Most bytes that are read and dropped for one socket.
const DRAIN_BYTES: usize = 4 << 20;

/// A socket on its way out.
pub(in crate::iwarp) struct Linger {
    stream: TcpStream,
    /// Whose connection it was, once it was one.
    qp: Option<QpNum>,
    bytes: Vec<u8>,
    written: usize,
    half_closed: bool,
    drained: usize,
    /// On the program's clock; set when that is first known.
    deadline_us: Option<u64>,
}

impl Linger {
    /// Sends what can be sent at once; `None` when nothing is left to wait for.
    pub(in crate::iwarp) fn start(
        stream: TcpStream,
        bytes: Vec<u8>,
        qp: Option<QpNum>,
    ) -> Option<Self> {
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

    /// Goes on; `true` when the socket can be closed.
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

    /// Goes on at `now_us`; `true` when the socket can be closed.
    pub(super) fn run(&mut self, now_us: u64, linger_us: u64) -> bool {
        let deadline = *self.deadline_us.get_or_insert(now_us + linger_us);
        self.advance() || now_us >= deadline
    }

    /// Whether it is of `qp`, and then to be closed: what it has not sent is not sent any more.
    pub(in crate::iwarp) fn abort(&self, qp: QpNum) -> bool {
        let own = self.qp == Some(qp);
        if own {
            reset_when_closed(&self.stream);
        }
        own
    }

    /// When it is closed at the latest, once that is known.
    pub(super) fn deadline_us(&self) -> Option<u64> {
        self.deadline_us
    }
}
