//! Ranges of memory that a link reads from or writes to, and how far it got.

use super::stag::Span;

/// One piece of a scatter/gather call.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(super) struct Piece(pub(super) libc::iovec);

impl Piece {
    /// Registered memory. The caller keeps it mapped until the call.
    #[inline]
    pub(super) fn span(span: Span<'_>) -> Self {
        Self::raw(span.base(), span.len_bytes())
    }

    /// A range that starts at `base`.
    #[inline]
    pub(super) fn raw(base: *mut u8, len_bytes: usize) -> Self {
        Self(libc::iovec {
            iov_base: base.cast(),
            iov_len: len_bytes,
        })
    }

    /// Length in bytes.
    #[inline]
    pub(super) fn len_bytes(&self) -> usize {
        self.0.iov_len
    }

    /// The first byte.
    #[inline]
    pub(super) fn base(&self) -> *mut u8 {
        self.0.iov_base.cast()
    }

    /// One past the last byte.
    #[inline]
    pub(super) fn end(&self) -> *mut u8 {
        self.0.iov_base.cast::<u8>().wrapping_add(self.0.iov_len)
    }

    /// Makes the piece longer by `bytes`.
    #[inline]
    pub(super) fn extend(&mut self, bytes: usize) {
        self.0.iov_len += bytes;
    }

    /// Cuts off what is beyond `bytes`.
    #[inline]
    pub(super) fn shorten_to(&mut self, bytes: usize) {
        self.0.iov_len = self.0.iov_len.min(bytes);
    }

    /// Cuts off the first `bytes`.
    #[inline]
    pub(super) fn advance(&mut self, bytes: usize) {
        let bytes = bytes.min(self.0.iov_len);
        self.0.iov_base = self.0.iov_base.cast::<u8>().wrapping_add(bytes).cast();
        self.0.iov_len -= bytes;
    }
}

/// How much of a stream of bytes a link has moved.
pub(super) enum StreamIo {
    /// So many bytes; 0 is the end of the stream when receiving.
    Bytes(usize),
    /// Nothing is possible now.
    WouldBlock,
}
