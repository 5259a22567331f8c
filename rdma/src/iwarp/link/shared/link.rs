//! A connection through shared memory: two rings, and the TCP connection that they replace.
#![expect(unsafe_code, reason = "passes on pieces of registered memory")]

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;

use super::memory::Memory;
use super::ring::{RING_BYTES, Reader, Writer};
use crate::iwarp::piece::{Piece, StreamIo};

/// Receive calls that found nothing before the socket is asked whether the peer is still there.
const LOOK_EVERY: u32 = 1024;

/// Most wake-up bytes taken at once. A correct peer sends a few.
const BELLS_MAX: usize = 512;

/// A connection through shared memory.
pub(in crate::iwarp) struct SharedLink {
    // Both point into `memory`.
    writer: Writer,
    reader: Reader,
    /// Carries single bytes that wake the other end, and tells of the peer's end.
    stream: TcpStream,
    /// Receive calls in a row that found nothing.
    empty: u32,
    /// This end has announced that it sleeps.
    armed: bool,
    /// The socket has ended; so does the stream, once the ring is empty.
    ended: Option<io::Result<()>>,
    /// It is being watched for idleness.
    watched: bool,
    memory: Memory,
}

impl SharedLink {
    /// `created` tells which of the two ends has created the memory.
    pub(in crate::iwarp) fn new(memory: Memory, created: bool, stream: TcpStream) -> Self {
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

    /// Bytes received and sent so far, to see whether any moved.
    pub(in crate::iwarp) fn moved(&self) -> u64 {
        self.writer.written().wrapping_add(self.reader.position())
    }

    /// Whether it is to be watched for idleness from now on, because it has memory to give back
    /// then. `true` once, until [`SharedLink::become_idle`] or [`SharedLink::is_busy`].
    pub(in crate::iwarp) fn may_become_idle(&mut self) -> bool {
        self.writer.keeps_memory() && !std::mem::replace(&mut self.watched, true)
    }

    /// It is not idle.
    pub(in crate::iwarp) fn is_busy(&mut self) {
        self.watched = false;
    }

    /// It is idle: gives back the memory of the ring that this end writes, until it writes again.
    /// `false` when the peer has not read all of it yet.
    pub(in crate::iwarp) fn become_idle(&mut self) -> bool {
        let rests = self.writer.give_back_memory();
        self.watched = !rests;
        rests
    }

    /// Continues in memory that the peer has made; returns the stream when that is not possible.
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

    /// Bytes that have arrived and are not received yet. 0 when a position is impossible, which the
    /// next call finds, too, and ends the connection.
    pub(in crate::iwarp) fn waiting_bytes(&self) -> u64 {
        self.reader.available().map_or(0, |bytes| bytes as u64)
    }

    /// Receives as a socket does.
    ///
    /// # Safety
    /// Each piece is mapped memory that may be written and that nothing has a reference to.
    #[inline]
    pub(in crate::iwarp) unsafe fn receive(&mut self, pieces: &[Piece]) -> io::Result<StreamIo> {
        // SAFETY: passed on.
        let bytes = unsafe { self.reader.read(pieces)? };
        if bytes != 0 {
            self.empty = 0;
            return Ok(StreamIo::Bytes(bytes));
        }
        self.empty = self.empty.wrapping_add(1);
        if self.empty == 1 && self.reader.writer_sleeps() {
            self.ring_bell();
        }
        // A peer that is killed does not close its ring.
        let look = self.armed || self.reader.is_closed() || self.empty.is_multiple_of(LOOK_EVERY);
        if self.ended.is_none() && look {
            self.look_at_socket();
            if self.ended.is_some() {
                // What was written before the end comes first.
                // SAFETY: passed on.
                let bytes = unsafe { self.reader.read(pieces)? };
                if bytes != 0 {
                    return Ok(StreamIo::Bytes(bytes));
                }
            }
        }
        match self.ended.take() {
            None => Ok(StreamIo::WouldBlock),
            Some(Ok(())) => {
                self.ended = Some(Ok(()));
                Ok(StreamIo::Bytes(0))
            }
            Some(Err(error)) => Err(error),
        }
    }

    /// Receives into `before` and `after`, and leaves the `lent` bytes between them in the ring:
    /// see [`Reader::read_around`].
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

    /// Lets the peer write again where data was lent. A link that is not `busy` is not received
    /// from soon, so a writer that waits is woken now.
    pub(in crate::iwarp) fn give_back(&mut self, busy: bool) {
        self.reader.give_back();
        // The next call that finds nothing looks whether the writer waits.
        self.empty = 0;
        if !busy && self.reader.writer_sleeps() {
            self.ring_bell();
        }
    }

    /// Sends as a socket does, except that the peer sees nothing of it before
    /// [`SharedLink::publish`].
    ///
    /// # Safety
    /// Each piece is mapped memory.
    #[inline]
    pub(in crate::iwarp) unsafe fn send(&mut self, pieces: &[Piece]) -> io::Result<StreamIo> {
        // SAFETY: passed on.
        let bytes = unsafe { self.writer.write(pieces)? };
        Ok(match bytes {
            0 => StreamIo::WouldBlock,
            bytes => StreamIo::Bytes(bytes),
        })
    }

    /// Lets the peer see what has been sent, and wakes it.
    #[inline]
    pub(in crate::iwarp) fn publish(&mut self) {
        if self.writer.publish() && self.writer.reader_sleeps() {
            self.ring_bell();
        }
    }

    /// Calls `send` with a function that sends `bytes` more bytes, when there is room for all of
    /// them. Returns whether they were sent: nothing is when `send` answers `false` or sends less.
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
    /// receive or, with `room`, room to send. `false` when there is already.
    pub(in crate::iwarp) fn arm(&mut self, receive: bool, room: bool) -> bool {
        self.armed = true;
        // The peer makes no room in a ring whose bytes it does not see.
        self.publish();
        if self.reader.writer_sleeps() {
            self.ring_bell();
        }
        // An impossible position is found again by the next call, which reports it.
        let sleeps = (!receive || self.reader.sleep().unwrap_or(false))
            && (!room || self.writer.sleep().unwrap_or(false));
        sleeps && self.ended.is_none()
    }

    /// Sends the last bytes, as far as there is room. Returns the socket, and the memory for
    /// readers of what was lent.
    pub(in crate::iwarp) fn finish(mut self, bytes: &mut [u8]) -> (TcpStream, Memory) {
        let piece = Piece::raw(bytes.as_mut_ptr(), bytes.len());
        // SAFETY: a slice that is borrowed during the call. Whether it fits or not, the end of the
        // socket follows.
        let _ = unsafe { self.send(&[piece]) };
        self.publish();
        self.writer.close();
        (self.stream, self.memory)
    }

    /// Gives up: the peer takes nothing more from the ring than what it is copying now. Returns the
    /// socket, and the memory for readers of what was lent.
    pub(in crate::iwarp) fn abort(self) -> (TcpStream, Memory) {
        self.writer.abort();
        (self.stream, self.memory)
    }

    /// Wakes the peer. One byte is enough; a socket that is full of them will wake it anyway.
    fn ring_bell(&self) {
        let _ = (&self.stream).write(&[0]);
    }

    /// Takes wake-up bytes, and notices the end of the connection.
    fn look_at_socket(&mut self) {
        if self.armed {
            self.armed = false;
            self.reader.wake();
            self.writer.wake();
        }
        // No loop until none is left: a peer can send them faster than they are taken. The rest
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
        // Each call takes a part; the end comes behind the last.
        let mut wakes = 0;
        loop {
            assert!(link.arm(true, false));
            // SAFETY: no pieces.
            match unsafe { link.receive(&[]) } {
                Ok(StreamIo::WouldBlock) => wakes += 1,
                Ok(StreamIo::Bytes(0)) => break,
                other => panic!("{:?}", other.map(|_| "bytes")),
            }
        }
        assert_eq!(wakes, 3);
    }
}
