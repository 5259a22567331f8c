//! Leased bytes that another thread fills or takes away.
#![expect(unsafe_code, reason = "copies to and from memory that others write")]

use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use crate::{RawBytes, Slab};

/// The bytes of a [`Buffer`](crate::Buffer) for another thread, such as one that waits for a file.
/// They stay mapped for as long as this lives. Whose they are does not: the thread with the lease
/// keeps the lease until the other one says that it is done.
#[derive(Clone, Debug)]
pub struct Span {
    slab: Arc<Slab>,
    at: usize,
    len: usize,
}

impl Span {
    /// These bytes of a slab; `None` where some of them are outside.
    #[must_use]
    pub fn new(slab: &Arc<Slab>, range: Range<usize>) -> Option<Self> {
        if range.start > range.end || range.end > slab.len_bytes() {
            return None;
        }
        Some(Self {
            slab: Arc::clone(slab),
            at: range.start,
            len: range.len(),
        })
    }

    /// Length in bytes.
    #[must_use]
    pub const fn len_bytes(&self) -> usize {
        self.len
    }

    /// A part of the bytes; `None` where some of it is outside.
    #[must_use]
    pub fn part(&self, range: Range<usize>) -> Option<Self> {
        if range.end > self.len {
            return None;
        }
        let start = self.at.checked_add(range.start)?;
        let end = self.at.checked_add(range.end)?;
        Self::new(&self.slab, start..end)
    }

    /// The first byte. Dereferencing is the caller's `unsafe`.
    #[must_use]
    pub fn base(&self) -> NonNull<u8> {
        // SAFETY: `new` compared the range with the slab's length.
        unsafe { self.slab.base().add(self.at) }
    }

    /// The bytes, to copy from.
    #[must_use]
    pub fn raw(&self) -> RawBytes<'_> {
        // SAFETY: inside the mapping, which lives as long as this; this program writes it through
        // copies only (decision 0004).
        unsafe { RawBytes::new(self.base(), self.len) }
    }

    /// Copies `bytes` to `offset`; what does not fit is left out. How many were copied.
    pub fn copy_from(&self, offset: usize, bytes: &[u8]) -> usize {
        let Some(room) = self.len.checked_sub(offset) else {
            return 0;
        };
        let len = bytes.len().min(room);
        // SAFETY: `offset` is within the bytes, or their end.
        let to = unsafe { self.base().add(offset) };
        // SAFETY: `len` bytes from `to` on are inside the mapping, of which no safe code has a
        // reference, so that `bytes` lies elsewhere.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to.as_ptr(), len) };
        len
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Pages, Pool};

    #[test]
    fn what_one_thread_fills_the_lease_has() {
        let pool = Pool::new(1 << 20, Pages::Ordinary).unwrap();
        let buffer = pool.take(100).unwrap();
        let span = buffer.span();
        assert_eq!(span.len_bytes(), 100);
        let filled = std::thread::spawn(move || {
            let part = span.part(90..100).unwrap();
            assert_eq!(part.copy_from(8, &[1, 2, 3]), 2);
            assert_eq!(part.copy_from(11, &[9]), 0);
            assert!(span.part(0..101).is_none());
            let mut out = [0; 2];
            part.raw().skip(8).copy_to(&mut out);
            out
        });
        assert_eq!(filled.join().unwrap(), [1, 2]);
        let mut out = [0; 2];
        buffer.copy_to(98, &mut out);
        assert_eq!(out, [1, 2]);
    }

    #[test]
    fn none_leaves_its_slab() {
        let slab = Slab::new(4096, Pages::Ordinary).unwrap();
        assert!(Span::new(&slab, 0..4097).is_none());
        assert!(Span::new(&slab, Range { start: 2, end: 1 }).is_none());
        let end = Span::new(&slab, 4096..4096).unwrap();
        assert_eq!((end.len_bytes(), end.copy_from(0, &[1])), (0, 0));
    }
}
