//! Bytes that may be written by others while they are copied.
#![expect(unsafe_code, reason = "copies from memory that others write")]

use std::marker::PhantomData;
use std::ptr::{self, NonNull};

/// A range of memory to copy from: of a buffer, or of memory that another process may write at any
/// time. A copy holds whatever was there at that moment.
#[derive(Clone, Copy, Debug)]
pub struct RawBytes<'a> {
    base: NonNull<u8>,
    len: usize,
    life: PhantomData<&'a [u8]>,
}

impl<'a> From<&'a [u8]> for RawBytes<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self {
            base: NonNull::from(bytes).cast(),
            len: bytes.len(),
            life: PhantomData,
        }
    }
}

impl RawBytes<'_> {
    /// `len` bytes from `base` on.
    ///
    /// # Safety
    /// They are mapped and may be read for `'a`, and meanwhile this program writes them through
    /// copies of the same kind only.
    #[must_use]
    pub unsafe fn new(base: NonNull<u8>, len: usize) -> Self {
        Self {
            base,
            len,
            life: PhantomData,
        }
    }

    /// The first byte. Dereferencing is the caller's `unsafe`.
    #[must_use]
    pub fn base(self) -> NonNull<u8> {
        self.base
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// The bytes behind the first `bytes`; none when there are fewer.
    #[must_use]
    pub fn skip(self, bytes: usize) -> Self {
        let bytes = bytes.min(self.len);
        Self {
            // SAFETY: inside the range, or its end.
            base: unsafe { self.base.add(bytes) },
            len: self.len - bytes,
            life: PhantomData,
        }
    }

    /// The first `bytes`, or all when there are fewer.
    #[must_use]
    pub fn first(self, bytes: usize) -> Self {
        Self {
            len: self.len.min(bytes),
            ..self
        }
    }

    /// Copies the start of the bytes to `out`; what does not fit is left out.
    pub fn copy_to(self, out: &mut [u8]) {
        let len = out.len().min(self.len);
        // SAFETY: mapped (`new`); `out` is an exclusive slice and so none of these bytes.
        unsafe { ptr::copy_nonoverlapping(self.base.as_ptr(), out.as_mut_ptr(), len) };
    }
}

#[cfg(test)]
mod tests {
    use crate::{Pages, Pool};

    #[test]
    fn what_is_left_is_inside_or_nothing() {
        let pool = Pool::new(1 << 20, Pages::Ordinary).unwrap();
        let mut buffer = pool.take(100).unwrap();
        buffer.copy_from(90, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
        let raw = buffer.raw();
        assert_eq!((raw.len(), raw.is_empty()), (100, false));
        let mut out = [0; 4];
        raw.skip(98).copy_to(&mut out);
        assert_eq!(out, [9, 10, 0, 0]);
        raw.skip(90).first(2).copy_to(&mut out);
        assert_eq!(out, [1, 2, 0, 0]);
        assert_eq!((raw.first(0).len(), raw.first(101).len()), (0, 100));
        for bytes in [100, 101, usize::MAX] {
            assert!(raw.skip(bytes).is_empty());
        }
    }
}
