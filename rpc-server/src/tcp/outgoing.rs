//! Replies as they go out.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::net::TcpStream;
use std::os::fd::AsRawFd;

use capstan_rpcrdma::record::record_mark;
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, sendmsg};

use crate::limits::{CALLS_PER_TURN, COPIED_MAX_BYTES, PIECE_BYTES, PIECES_PER_SEND};

/// Bytes that leave together.
#[derive(Debug)]
struct Piece {
    bytes: Vec<u8>,
    /// Those of them that are to leave.
    end: usize,
    /// It is a buffer of the pool of replies.
    is_reply: bool,
}

/// What one connection is to send.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    pieces: VecDeque<Piece>,
    /// Bytes of the first piece that have left.
    sent_bytes: usize,
    /// Memory of all pieces.
    queued_bytes: usize,
    /// Memory for the next piece of copied replies.
    spare: Vec<u8>,
    /// The socket takes no more at present.
    is_blocked: bool,
    /// When it last took something, or began to have something to take.
    progress_us: u64,
}

impl Outgoing {
    /// Adds the reply that is in the first `reply_bytes` of `reply`. Returns the buffer where it is
    /// not needed any more; `None` when the reply leaves from it.
    pub(super) fn push(
        &mut self,
        reply: Vec<u8>,
        reply_bytes: usize,
        now_us: u64,
    ) -> Option<Vec<u8>> {
        // No buffer of replies is longer than a fragment can be.
        let mark = record_mark(reply_bytes)?;
        if self.pieces.is_empty() {
            self.progress_us = now_us;
        }
        self.copy(&mark);
        if reply_bytes <= COPIED_MAX_BYTES {
            self.copy(reply.get(..reply_bytes).unwrap_or_default());
            return Some(reply);
        }
        self.add(Piece {
            bytes: reply,
            end: reply_bytes,
            is_reply: true,
        });
        None
    }

    /// Adds a copy of so few bytes to what leaves last. A piece that grew would be copied again, so
    /// none does.
    fn copy(&mut self, bytes: &[u8]) {
        let fits = |piece: &&mut Piece| {
            let room = piece.bytes.capacity().saturating_sub(piece.end);
            !piece.is_reply && bytes.len() <= room
        };
        if let Some(piece) = self.pieces.back_mut().filter(fits) {
            piece.bytes.extend_from_slice(bytes);
            piece.end = piece.bytes.len();
            return;
        }
        let mut copied;
        if self.pieces.is_empty() && bytes.len() <= SPARE_BYTES {
            copied = std::mem::take(&mut self.spare);
            copied.reserve_exact(SPARE_BYTES);
        } else {
            copied = Vec::with_capacity(PIECE_BYTES.max(bytes.len()));
        }
        copied.extend_from_slice(bytes);
        self.add(Piece {
            end: copied.len(),
            bytes: copied,
            is_reply: false,
        });
    }

    fn add(&mut self, piece: Piece) {
        self.queued_bytes = self.queued_bytes.saturating_add(piece.bytes.capacity());
        self.pieces.push_back(piece);
    }

    /// Sends as much as the socket takes. Buffers of replies that have left are given to `back`.
    pub(super) fn send(
        &mut self,
        stream: &TcpStream,
        now_us: u64,
        mut back: impl FnMut(Vec<u8>),
    ) -> io::Result<()> {
        self.is_blocked = false;
        for _ in 0..CALLS_PER_TURN {
            let mut slices = [IoSlice::new(&[]); PIECES_PER_SEND];
            let (mut count, mut bytes) = (0_usize, 0_usize);
            for (slice, piece) in slices.iter_mut().zip(&self.pieces) {
                let sent = if count == 0 { self.sent_bytes } else { 0 };
                let rest = piece.bytes.get(sent..piece.end).unwrap_or_default();
                *slice = IoSlice::new(rest);
                count = count.saturating_add(1);
                bytes = bytes.saturating_add(rest.len());
            }
            if count == 0 {
                return Ok(());
            }
            let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
            let slices = slices.get(..count).unwrap_or_default();
            let sent = match sendmsg::<()>(stream.as_raw_fd(), slices, &[], flags, None) {
                Ok(sent) => sent,
                Err(Errno::EAGAIN | Errno::EINTR) => 0,
                Err(error) => return Err(error.into()),
            };
            if sent > 0 {
                self.progress_us = now_us;
            }
            self.sent(sent, &mut back);
            if sent < bytes {
                self.is_blocked = true;
                return Ok(());
            }
        }
        // More when the socket says that it takes more, behind the others.
        self.is_blocked = !self.pieces.is_empty();
        Ok(())
    }

    /// So many bytes have left.
    fn sent(&mut self, bytes: usize, back: &mut impl FnMut(Vec<u8>)) {
        self.sent_bytes = self.sent_bytes.saturating_add(bytes);
        while let Some(first) = self.pieces.front() {
            let Some(rest) = self.sent_bytes.checked_sub(first.end) else {
                return;
            };
            self.sent_bytes = rest;
            if let Some(gone) = self.pieces.pop_front() {
                let memory = gone.bytes.capacity();
                self.queued_bytes = self.queued_bytes.saturating_sub(memory);
                self.recycle(gone, back);
            }
        }
    }

    fn recycle(&mut self, piece: Piece, back: &mut impl FnMut(Vec<u8>)) {
        let Piece {
            mut bytes,
            is_reply,
            ..
        } = piece;
        if is_reply {
            back(bytes);
        } else if self.spare.capacity() == 0 && bytes.capacity() <= SPARE_BYTES {
            bytes.clear();
            self.spare = bytes;
        }
    }

    /// Whether all has left.
    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Memory of what is to leave, in bytes.
    pub(super) fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }

    /// Whether the socket is to say when it takes more.
    pub(super) fn is_blocked(&self) -> bool {
        self.is_blocked
    }

    /// Since when nothing has left, where the socket takes no more.
    pub(super) fn stuck_since_us(&self) -> Option<u64> {
        self.is_blocked.then_some(self.progress_us)
    }
}

/// Memory for copied replies that an idle connection keeps: a page, for the few short replies that
/// leave together as a rule.
const SPARE_BYTES: usize = 4096;

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::TcpListener;

    use super::*;
    use crate::limits::REPLY_MAX_BYTES;

    #[test]
    fn short_replies_are_copied_and_long_ones_leave_from_their_buffer() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        let mut outgoing = Outgoing::default();
        let lengths = [
            5,
            COPIED_MAX_BYTES,
            REPLY_MAX_BYTES,
            0,
            7,
            COPIED_MAX_BYTES + 1,
        ];
        let mut expected = Vec::new();
        for (fill, length) in (1_u8..).zip(lengths) {
            let reply = vec![fill; REPLY_MAX_BYTES];
            expected.extend_from_slice(&record_mark(length).unwrap());
            expected.extend_from_slice(&reply[..length]);
            let back = outgoing.push(reply, length, 1);
            assert_eq!(back.is_some(), length <= COPIED_MAX_BYTES);
        }
        let all = expected.len();
        let reader = std::thread::spawn(move || {
            let mut came = vec![0; all];
            peer.read_exact(&mut came).unwrap();
            came
        });
        let mut back = 0;
        while !outgoing.is_empty() {
            outgoing.send(&stream, 2, |_| back += 1).unwrap();
            std::thread::yield_now();
        }
        assert!(reader.join().unwrap() == expected);
        assert_eq!((back, outgoing.queued_bytes()), (2, 0));
        assert!(outgoing.spare.capacity() <= SPARE_BYTES);
    }

    #[test]
    fn what_is_copied_is_copied_once() {
        let mut outgoing = Outgoing::default();
        let reply = vec![0; 4200];
        for _ in 0..16 {
            outgoing.push(reply.clone(), reply.len(), 1);
            let memory: Vec<_> = (outgoing.pieces.iter())
                .map(|piece| piece.bytes.capacity())
                .collect();
            let (first, later) = memory.split_first().unwrap();
            assert_eq!(*first, SPARE_BYTES);
            assert!(later.iter().all(|bytes| *bytes == PIECE_BYTES));
        }
        assert_eq!(outgoing.queued_bytes(), SPARE_BYTES + 3 * PIECE_BYTES);
    }

    #[test]
    fn a_peer_that_takes_nothing_is_noticed() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        let mut outgoing = Outgoing::default();
        for now_us in 0..16 {
            outgoing.push(vec![0; REPLY_MAX_BYTES], REPLY_MAX_BYTES, now_us);
            outgoing.send(&stream, now_us, drop).unwrap();
        }
        let stuck_us = outgoing.stuck_since_us();
        assert!(
            stuck_us.is_some_and(|since_us| since_us < 15),
            "{stuck_us:?}"
        );
        assert!(outgoing.queued_bytes() > 4 * REPLY_MAX_BYTES);
        drop(peer);
        assert!(outgoing.send(&stream, 20, drop).is_err());
    }
}
