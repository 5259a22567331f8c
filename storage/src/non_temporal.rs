//! Pages that are written with non-temporal stores, a few lines at a time.
#![expect(unsafe_code, reason = "copies between memory that callers answer for")]

use std::cell::Cell;
use std::ptr;

use capstan_memory::PAGE_BYTES;

const LINE_BYTES: usize = 64;
/// Lines of a page that are stored at once: as many as the processors on which this was measured
/// have fill buffers for.
const FIRST: usize = 16;
/// Lines of each step after that.
const STEP: usize = 8;

/// A page that is being written, in steps between those of the program. A processor can have only
/// some non-temporal stores under way at once: after those of a whole page, the program's next
/// store would wait. There is one for all volumes of a thread.
#[derive(Debug)]
pub struct Trickle {
    from: Cell<*const u8>,
    to: Cell<*mut u8>,
    lines: Cell<usize>,
}

impl Default for Trickle {
    fn default() -> Self {
        Self {
            from: Cell::new(ptr::null()),
            to: Cell::new(ptr::null_mut()),
            lines: Cell::new(0),
        }
    }
}

impl Trickle {
    /// Stores the first lines of a page, after what is left of the page before.
    ///
    /// # Safety
    /// Until [`Trickle::finish`] returns or the next page starts, a page that does not overlap may
    /// be read at `from` and written at `to`, which is aligned to it, and nothing else touches the
    /// latter. The processor can [`store_by_lines`].
    pub(crate) unsafe fn start(&self, from: *const u8, to: *mut u8) {
        self.finish();
        self.from.set(from);
        self.to.set(to);
        self.lines.set(PAGE_BYTES / LINE_BYTES);
        self.store(FIRST);
    }

    /// Stores the next lines.
    #[inline]
    pub fn step(&self) {
        if self.lines.get() != 0 {
            self.store(STEP);
        }
    }

    /// Stores all that is left.
    #[inline]
    pub fn finish(&self) {
        if self.lines.get() != 0 {
            self.store(usize::MAX);
        }
    }

    fn store(&self, most: usize) {
        let (from, to) = (self.from.get(), self.to.get());
        let lines = self.lines.get().min(most);
        let bytes = lines * LINE_BYTES;
        #[cfg(target_arch = "x86_64")]
        // SAFETY: these are of the page that `start` was called with, whose caller answers for it
        // and for the processor.
        unsafe {
            store_by_lines(from, to, bytes);
        }
        #[cfg(not(target_arch = "x86_64"))]
        // SAFETY: as above.
        unsafe {
            ptr::copy_nonoverlapping(from, to, bytes);
        }
        self.from.set(from.wrapping_add(bytes));
        self.to.set(to.wrapping_add(bytes));
        self.lines.set(self.lines.get() - lines);
    }
}

/// Copies with non-temporal stores, a line at a time and with as few instructions as possible:
/// while the first lines are being fetched, the processor has room for what comes after.
///
/// # Safety
/// `bytes`, a multiple of eight lines, that do not overlap may be read at `from` and written at
/// `to`, which is aligned to a line. The processor has AVX-512.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
pub(crate) unsafe fn store_by_lines(from: *const u8, to: *mut u8, bytes: usize) {
    use std::arch::x86_64::{__m512i, _mm512_loadu_si512, _mm512_stream_si512};
    const AT_ONCE: usize = 8;
    let (from, to) = (from.cast::<__m512i>(), to.cast::<__m512i>());
    for first in (0..bytes / LINE_BYTES).step_by(AT_ONCE) {
        // SAFETY: the caller answers for the bytes, and the vectors are inside them.
        let line = |at| unsafe { _mm512_loadu_si512(from.wrapping_add(first + at)) };
        let lines: [__m512i; AT_ONCE] = std::array::from_fn(line);
        for (at, line) in lines.into_iter().enumerate() {
            // SAFETY: as above.
            unsafe { _mm512_stream_si512(to.wrapping_add(first + at), line) };
        }
    }
}
