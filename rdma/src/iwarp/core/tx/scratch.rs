//! Memory for the parts of a batch that are not registered memory.
#![expect(
    unsafe_code,
    reason = "pieces of a batch point into it while more is added"
)]

use std::ptr::{self, NonNull};

use crate::iwarp::stag::Span;

/// Headers, trailers and short payloads of one batch.
const SCRATCH_BYTES: usize = 32 << 10;

/// Memory for the parts of a batch that are not registered memory. Raw, because the pieces of a
/// batch point into it while more is added.
pub(in crate::iwarp) struct Scratch {
    base: NonNull<u8>,
    len: usize,
    used: usize,
}

/// Without memory.
impl Default for Scratch {
    fn default() -> Self {
        Self::of(Box::default())
    }
}

impl Scratch {
    pub(in crate::iwarp) fn new() -> Self {
        Self::of(vec![0; SCRATCH_BYTES].into())
    }

    fn of(memory: Box<[u8]>) -> Self {
        Self {
            len: memory.len(),
            base: NonNull::from(Box::leak(memory)).cast(),
            used: 0,
        }
    }

    /// Bytes in use.
    #[inline]
    pub(in crate::iwarp) fn used(&self) -> usize {
        self.used
    }

    /// Takes back what was added behind the first `used` bytes.
    #[inline]
    pub(in crate::iwarp) fn cut(&mut self, used: usize) {
        self.used = self.used.min(used);
    }

    /// Bytes that can be added.
    pub(in crate::iwarp) fn room(&self) -> usize {
        self.len - self.used
    }

    /// Adds bytes, all of them or none (callers ask for room first).
    #[inline]
    pub(in crate::iwarp) fn put(&mut self, bytes: &[u8]) {
        if bytes.len() <= self.room() {
            // SAFETY: `used + bytes.len()` stays inside the allocation; `bytes` is a live reference
            // to other memory.
            unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.end(), bytes.len()) };
            self.used += bytes.len();
        }
    }

    /// Adds up to eight zeroes, where there is room for eight.
    #[inline]
    pub(in crate::iwarp) fn put_zeroes(&mut self, count: usize) {
        let before = self.used;
        // A constant length, so that no function is called.
        self.put(&[0; 8]);
        self.used = self.used.min(before + count);
    }

    /// Adds registered memory.
    #[inline]
    pub(in crate::iwarp) fn put_span(&mut self, span: Span<'_>) {
        let length = span.len_bytes().min(self.room());
        // SAFETY: the allocation has `length` more initialized bytes, and nothing refers to them.
        let out = unsafe { std::slice::from_raw_parts_mut(self.end(), length) };
        span.copy_to(out);
        self.used += length;
    }

    /// Where the next byte goes.
    #[inline]
    pub(in crate::iwarp) fn end(&self) -> *mut u8 {
        // SAFETY: `used` is at most the size of the allocation.
        unsafe { self.base.as_ptr().add(self.used) }
    }

    /// What was added since `at` bytes were in use.
    #[inline]
    pub(in crate::iwarp) fn from(&self, at: usize) -> &[u8] {
        let at = at.min(self.used);
        // SAFETY: the range lies inside the allocation and is initialized; it is written only
        // through `&mut self`.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().wrapping_add(at), self.used - at) }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let memory = ptr::slice_from_raw_parts_mut(self.base.as_ptr(), self.len);
        // SAFETY: leaked from a box of this size in `of`.
        drop(unsafe { Box::from_raw(memory) });
    }
}
