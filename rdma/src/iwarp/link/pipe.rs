//! Bytes in memory in place of a socket.
#![expect(unsafe_code, reason = "stands in for a socket")]

use std::io;

use crate::iwarp::piece::{Piece, StreamIo};

/// Bytes to receive; what is sent is thrown away.
pub(in crate::iwarp) struct TestPipe {
    bytes: Vec<u8>,
    at: usize,
    /// Most bytes of one receive call.
    step: usize,
}

impl TestPipe {
    /// A link that hands over `bytes`, `step` at a time.
    pub(in crate::iwarp) fn new(bytes: Vec<u8>, step: usize) -> Self {
        Self { bytes, at: 0, step }
    }

    /// A link on which nothing comes.
    pub(in crate::iwarp) fn empty() -> Self {
        Self::new(Vec::new(), 1)
    }

    /// Bytes received until now.
    #[cfg(test)]
    pub(in crate::iwarp) fn received(&self) -> usize {
        self.at
    }

    /// # Safety
    /// As `Link::receive`.
    pub(in crate::iwarp) unsafe fn receive(
        &mut self,
        pieces: &mut [Piece],
    ) -> io::Result<StreamIo> {
        let mut left = self.step.min(self.bytes.len() - self.at);
        if left == 0 {
            return Ok(StreamIo::WouldBlock);
        }
        let mut moved = 0;
        for piece in pieces {
            let length = piece.len_bytes().min(left);
            let from = self.bytes[self.at..self.at + length].as_ptr();
            // SAFETY: the caller answers for the piece; the source is this link's own memory.
            unsafe { std::ptr::copy_nonoverlapping(from, piece.base(), length) };
            self.at += length;
            left -= length;
            moved += length;
        }
        Ok(StreamIo::Bytes(moved))
    }

    pub(in crate::iwarp) fn send(pieces: &[Piece]) -> StreamIo {
        StreamIo::Bytes(pieces.iter().map(Piece::len_bytes).sum())
    }
}
