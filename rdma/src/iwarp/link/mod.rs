//! What a connection's bytes go through: a TCP socket, rings in shared memory, or in tests a pipe.
//! Only the driver touches a link; the core of a connection sees none.
#![expect(unsafe_code, reason = "passes on pieces of registered memory")]

pub(super) mod c_width;
#[cfg(any(test, feature = "fuzzing"))]
pub(super) mod pipe;
pub(super) mod preempted;
pub(super) mod shared;
pub(super) mod socket;

use std::io;
use std::net::TcpStream;

use self::shared::{Memory, SharedLink};
use self::socket::reset_when_closed;
use super::piece::{Piece, StreamIo};
#[cfg(any(test, feature = "fuzzing"))]
use pipe::TestPipe;

/// Where the bytes of a connection come from and go to.
pub(super) enum Link {
    /// A connected, non-blocking socket.
    Tcp(TcpStream),
    /// Shared memory with a peer on this machine. Boxed: it is large, and most links have none.
    Shared(Box<SharedLink>),
    /// Bytes in memory: for tests of the receive path without a network.
    #[cfg(any(test, feature = "fuzzing"))]
    Pipe(TestPipe),
}

impl Link {
    /// Receives into `pieces` in order.
    ///
    /// # Safety
    /// Each piece is mapped memory that the caller may write and that nothing has a reference to.
    #[inline]
    pub(super) unsafe fn receive(&mut self, pieces: &mut [Piece]) -> io::Result<StreamIo> {
        match self {
            // SAFETY: passed on.
            Self::Tcp(stream) => unsafe { socket::receive(stream, pieces) },
            // SAFETY: passed on.
            Self::Shared(link) => unsafe { link.receive(pieces) },
            #[cfg(any(test, feature = "fuzzing"))]
            // SAFETY: passed on.
            Self::Pipe(link) => unsafe { link.receive(pieces) },
        }
    }

    /// Sends `pieces` in order; with `end` they end a TCP segment.
    ///
    /// # Safety
    /// Each piece is mapped memory.
    #[inline]
    pub(super) unsafe fn send(&mut self, pieces: &mut [Piece], end: bool) -> io::Result<StreamIo> {
        match self {
            // SAFETY: passed on.
            Self::Tcp(stream) => unsafe { socket::send(stream, pieces, end) },
            // SAFETY: passed on.
            Self::Shared(link) => unsafe { link.send(pieces) },
            #[cfg(any(test, feature = "fuzzing"))]
            Self::Pipe(_) => Ok(TestPipe::send(pieces)),
        }
    }

    /// Lets the peer see what has been sent; only shared memory needs that.
    #[inline]
    pub(super) fn publish(&mut self) {
        if let Self::Shared(link) = self {
            link.publish();
        }
    }

    /// The maximum TCP segment in bytes.
    pub(super) fn segment_bytes(&self) -> usize {
        // 536 is what TCP assumes when nothing is known (RFC 9293 §3.7.1).
        self.tcp().and_then(socket::segment_bytes).unwrap_or(536)
    }

    /// Ends the link in order. Returns the socket, those of the last `bytes` that still have to go
    /// through it (a ring has taken them), and the memory of what was lent.
    pub(super) fn finish(self, mut bytes: Vec<u8>) -> Option<(TcpStream, Vec<u8>, Option<Memory>)> {
        match self {
            Self::Tcp(stream) => Some((stream, bytes, None)),
            Self::Shared(link) => {
                let (stream, memory) = link.finish(&mut bytes);
                Some((stream, Vec::new(), Some(memory)))
            }
            #[cfg(any(test, feature = "fuzzing"))]
            Self::Pipe(_) => None,
        }
    }

    /// Gives up: what has not left is not sent. Returns the socket, which resets the connection
    /// when it is closed, and the memory of what was lent.
    pub(super) fn abort(self) -> Option<(TcpStream, Option<Memory>)> {
        let (stream, memory) = match self {
            Self::Tcp(stream) => (stream, None),
            Self::Shared(link) => {
                let (stream, memory) = link.abort();
                (stream, Some(memory))
            }
            #[cfg(any(test, feature = "fuzzing"))]
            Self::Pipe(_) => return None,
        };
        reset_when_closed(&stream);
        Some((stream, memory))
    }

    /// The socket, when there is one.
    pub(super) fn tcp(&self) -> Option<&TcpStream> {
        match self {
            Self::Tcp(stream) => Some(stream),
            Self::Shared(link) => Some(link.stream()),
            #[cfg(any(test, feature = "fuzzing"))]
            Self::Pipe(_) => None,
        }
    }
}
