//! Two rings beside the TCP connection they stand in for.
#![expect(unsafe_code, reason = "passes on pieces of registered memory")]

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;

use super::memory::Memory;
use super::ring::{RING_BYTES, Reader, Writer};
use crate::iwarp::socket::{Piece, Transfer};

/// Receive calls that found nothing before the socket is asked whether the peer is still there.
const LOOK_EVERY: u32 = 1024;

/// Most bytes that woke this end taken at once. By the book there are a few.
const BELLS_MAX: usize = 512;

/// A connection through shared memory.
pub(in crate::iwarp) struct SharedLink {
    // Both point into `memory`.
    writer: Writer,
    reader: Reader,
    /// Carries single bytes that wake, and its end is the peer's.
    stream: TcpStream,
    /// Receive calls in a row that found nothing.
    empty: u32,
    /// This end has said that it sleeps.
    armed: bool,
    /// The socket has ended: so does the stream, when the ring is empty.
    ended: Option<io::Result<()>>,
    /// Somebody looks whether it rests.
    watched: bool,
    memory: Memory,
}

impl SharedLink {
    /// `created` tells which of the two ends has created the memory.
    pub(super) fn new(memory: Memory, created: bool, stream: TcpStream) -> Self {
        Self {
            writer: Writer::new(&memory.place(!created)),
            reader: Reader::new(&memory.place(created)),
            stream,
            empty: 0,
            armed: false,
            ended: None,
            watched: false,
            memory,
        }
    }

    /// Bytes that have come and gone, to see whether any did.
    pub(super) fn moved(&self) -> u64 {
        self.writer.written().wrapping_add(self.reader.position())
    }

    /// Whether from now on somebody had better look whether it rests: it has memory to give back then. `true` once, until
    /// [`SharedLink::rest`] or [`SharedLink::is_busy`].
    pub(super) fn may_rest(&mut self) -> bool {
        self.writer.keeps_memory() && !std::mem::replace(&mut self.watched, true)
    }

    /// It does not rest now.
    pub(super) fn is_busy(&mut self) {
        self.watched = false;
    }

    /// It has rested: what it writes to takes no memory until it does so again. `false` when the peer has not read all of it yet.
    pub(super) fn rest(&mut self) -> bool {
        let rests = self.writer.give_back_memory();
        self.watched = !rests;
        rests
    }

    /// Goes on in memory that the peer has made; the stream comes back when that cannot be.
    pub(in crate::iwarp) fn open(
        fd: &OwnedFd,
        stream: TcpStream,
    ) -> Result<Self, (TcpStream, io::Error)> {
        match Memory::open(fd) {
            Ok(memory) => Ok(Self::new(memory, false, stream)),
            Err(error) => Err((stream, error)),
        }
    }

    pub(in crate::iwarp) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Bytes received so far.
    pub(in crate::iwarp) fn received_bytes(&self) -> u64 {
        self.reader.position()
    }

    /// Bytes that have arrived and not been received. With a position that cannot be there is no
    /// telling, and the next call ends the connection.
    pub(in crate::iwarp) fn waiting_bytes(&self) -> u64 {
        self.reader.available().map_or(0, |bytes| bytes as u64)
    }

    /// Receives as a socket does.
    ///
    /// # Safety
    /// Each piece is mapped memory that may be written and that nobody has a reference to.
    #[inline]
    pub(in crate::iwarp) unsafe fn receive(&mut self, pieces: &[Piece]) -> io::Result<Transfer> {
        // SAFETY: passed on.
        let bytes = unsafe { self.reader.read(pieces)? };
        if bytes != 0 {
            self.empty = 0;
            return Ok(Transfer::Bytes(bytes));
        }
        self.empty = self.empty.wrapping_add(1);
        if self.empty == 1 && self.reader.writer_sleeps() {
            self.ring_bell();
        }
        // A peer that is killed does not say so.
        let look = self.armed || self.reader.is_closed() || self.empty.is_multiple_of(LOOK_EVERY);
        if self.ended.is_none() && look {
            self.look_at_socket();
            if self.ended.is_some() {
                // What was written before the end comes first.
                // SAFETY: passed on.
                let bytes = unsafe { self.reader.read(pieces)? };
                if bytes != 0 {
                    return Ok(Transfer::Bytes(bytes));
                }
            }
        }
        match self.ended.take() {
            None => Ok(Transfer::WouldBlock),
            Some(Ok(())) => {
                self.ended = Some(Ok(()));
                Ok(Transfer::Bytes(0))
            }
            Some(Err(error)) => Err(error),
        }
    }

    /// Receives into `before` and `after`, and leaves the `lent` bytes between them in the ring: see
    /// [`Reader::read_around`].
    ///
    /// # Safety
    /// As for [`SharedLink::receive`].
    #[inline]
    pub(in crate::iwarp) unsafe fn receive_around(
        &mut self,
        before: &[Piece],
        lent: usize,
        after: Piece,
    ) -> io::Result<Option<(NonNull<u8>, usize)>> {
        // SAFETY: passed on.
        let read = unsafe { self.reader.read_around(before, lent, after)? };
        if read.is_some() {
            self.empty = 0;
        }
        Ok(read)
    }

    /// The room of what was lent can be written again. A link that is not `busy` is not received from soon, so the
    /// writer is told if it waits.
    pub(in crate::iwarp) fn give_back(&mut self, busy: bool) {
        self.reader.give_back();
        // The next call that finds nothing looks whether the writer waits.
        self.empty = 0;
        if !busy && self.reader.writer_sleeps() {
            self.ring_bell();
        }
    }

    /// Sends as a socket does, but for that the peer sees it with the next [`SharedLink::publish`].
    ///
    /// # Safety
    /// Each piece is mapped memory.
    #[inline]
    pub(in crate::iwarp) unsafe fn send(&mut self, pieces: &[Piece]) -> io::Result<Transfer> {
        // SAFETY: passed on.
        let bytes = unsafe { self.writer.write(pieces)? };
        Ok(match bytes {
            0 => Transfer::WouldBlock,
            bytes => Transfer::Bytes(bytes),
        })
    }

    /// Shows the peer what has been sent, and wakes it.
    #[inline]
    pub(in crate::iwarp) fn publish(&mut self) {
        if self.writer.publish() && self.writer.reader_sleeps() {
            self.ring_bell();
        }
    }

    /// Calls `send` with a way to send `bytes` more bytes, when there is room for all of them. Whether
    /// they are sent: nothing is when `send` answers `false` or sends less.
    pub(in crate::iwarp) fn send_with(
        &mut self,
        bytes: usize,
        send: impl FnOnce(&mut dyn FnMut(&[u8])) -> bool,
    ) -> io::Result<bool> {
        if bytes > RING_BYTES || self.writer.room(bytes)? < bytes {
            return Ok(false);
        }
        let start = self.writer.written();
        let (writer, mut left, mut result) = (&mut self.writer, bytes, Ok(0));
        let sent = send(&mut |bytes| {
            let length = bytes.len().min(left);
            let piece = Piece::raw(bytes.as_ptr().cast_mut(), length);
            left -= length;
            if result.is_ok() {
                // SAFETY: a slice that is borrowed during the call, and that is only read.
                result = unsafe { writer.write(&[piece]) };
            }
        });
        if !sent || left != 0 || result.is_err() {
            self.writer.take_back(start);
        }
        result.map(|_| sent && left == 0)
    }

    /// Before waiting for the socket: asks the peer to wake this end when there is something to
    /// receive or, for `room`, room to send. `false` when that is so already.
    pub(in crate::iwarp) fn arm(&mut self, receive: bool, room: bool) -> bool {
        self.armed = true;
        // Nobody makes room in a ring whose bytes it does not see.
        self.publish();
        if self.reader.writer_sleeps() {
            self.ring_bell();
        }
        // A position that cannot be is found again by the next call, which reports it.
        let sleeps = (!receive || self.reader.sleep().unwrap_or(false))
            && (!room || self.writer.sleep().unwrap_or(false));
        sleeps && self.ended.is_none()
    }

    /// Sends the last bytes, as far as there is room. The socket is what is left, and the memory for whoever still reads
    /// what was lent.
    pub(in crate::iwarp) fn finish(mut self, bytes: &mut [u8]) -> (TcpStream, Memory) {
        let piece = Piece::raw(bytes.as_mut_ptr(), bytes.len());
        // SAFETY: a slice that is borrowed during the call. Whether it fits or not, the end of the
        // socket follows.
        let _ = unsafe { self.send(&[piece]) };
        self.publish();
        self.writer.close();
        (self.stream, self.memory)
    }

    /// Gives up: the peer takes nothing more of what is in the ring, but for what it is copying.
    /// The socket is what is left, and the memory for whoever still reads what was lent.
    pub(in crate::iwarp) fn abort(self) -> (TcpStream, Memory) {
        self.writer.abort();
        (self.stream, self.memory)
    }

    /// Wakes the peer. One byte is enough, and when the socket is full of them it has not slept.
    fn ring_bell(&self) {
        let _ = (&self.stream).write(&[0]);
    }

    /// Takes the bytes that woke this end, and notices the end of the connection.
    fn look_at_socket(&mut self) {
        if self.armed {
            self.armed = false;
            self.reader.wake();
            self.writer.wake();
        }
        // No loop until there are none: a peer can ring faster than they are taken. What is left
        // wakes this end again.
        let mut bells = [0; BELLS_MAX];
        match (&self.stream).read(&mut bells) {
            Ok(0) => self.ended = Some(Ok(())),
            Ok(_) => {}
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => self.ended = Some(Err(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_peer_that_rings_without_end_does_not_hold_this_end_up() {
        let (memory, _fd) = Memory::create().unwrap();
        let (stream, mut peer) = UnixStream::pair().unwrap();
        stream.set_nonblocking(true).unwrap();
        let mut link = SharedLink::new(memory, true, TcpStream::from(OwnedFd::from(stream)));
        peer.write_all(&[0; 3 * BELLS_MAX]).unwrap();
        drop(peer);
        // Each wake takes a part; the end comes behind the last.
        let mut wakes = 0;
        loop {
            assert!(link.arm(true, false));
            // SAFETY: no pieces.
            match unsafe { link.receive(&[]) } {
                Ok(Transfer::WouldBlock) => wakes += 1,
                Ok(Transfer::Bytes(0)) => break,
                other => panic!("{:?}", other.map(|_| "bytes")),
            }
        }
        assert_eq!(wakes, 3);
    }
}
