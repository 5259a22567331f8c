//! Prefetches memory that is in no cache while the program does something else.
#![expect(unsafe_code, reason = "a hint to the processor")]

use std::ptr;

use crate::iwarp::stag::Span;

/// Memory to prefetch, a few lines at a time: a processor that has as many fetches under way as it
/// can stalls at the next.
pub(in crate::iwarp) struct Ahead {
    first: *const u8,
    next: *const u8,
    left_bytes: usize,
}

impl Ahead {
    /// Lines of one step. Few, because the hardware prefetcher sees a page being read in order, and
    /// fetches what follows by itself.
    const LINES: usize = 4;
    const LINE_BYTES: usize = 64;

    /// Nothing to prefetch.
    pub(in crate::iwarp) const NONE: Self = Self {
        first: ptr::null(),
        next: ptr::null(),
        left_bytes: 0,
    };

    /// Prefetches the first lines of `span`, unless it begins where the last one did: that is in
    /// the caches.
    pub(in crate::iwarp) fn start(&mut self, span: Span<'_>) {
        if self.first != span.base() {
            *self = Self {
                first: span.base(),
                next: span.base(),
                left_bytes: span.len_bytes(),
            };
            self.fetch(Self::LINES);
        }
    }

    /// Prefetches the next lines; called between two steps of the program.
    #[inline]
    pub(in crate::iwarp) fn fetch_more(&mut self) {
        self.fetch(Self::LINES);
    }

    /// Prefetches all that is left.
    #[inline]
    pub(in crate::iwarp) fn fetch_rest(&mut self) {
        self.fetch(usize::MAX);
    }

    #[inline]
    fn fetch(&mut self, lines: usize) {
        let bytes = self.left_bytes.min(lines.saturating_mul(Self::LINE_BYTES));
        #[cfg(target_arch = "x86_64")]
        for at in (0..bytes).step_by(Self::LINE_BYTES) {
            use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
            // SAFETY: a hint, for any address; SSE is part of x86-64.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(self.next.wrapping_add(at).cast()) };
        }
        self.next = self.next.wrapping_add(bytes);
        self.left_bytes -= bytes;
    }
}
