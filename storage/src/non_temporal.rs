//! Non-temporal stores of whole pages: a volume is larger than the caches, so an ordinary store
//! would first fetch each line from memory.
#![expect(unsafe_code, reason = "copies between memory that callers answer for")]

use capstan_memory::{PAGE_BYTES, copy_around};

#[cfg(target_arch = "x86_64")]
const LINE_BYTES: usize = 64;

/// Copies a page with the widest non-temporal stores of this processor. `fence_around` has to
/// follow before anything else reads or writes the page.
///
/// # Safety
/// A page that does not overlap may be read at `from` and written at `to`, which is aligned to it.
#[inline]
pub(crate) unsafe fn copy_page(from: *const u8, to: *mut u8) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512f") {
        // SAFETY: AVX-512 is there; the rest is passed on.
        return unsafe { copy_page_by_lines(from, to) };
    }
    // SAFETY: passed on.
    unsafe { copy_around(from, to, PAGE_BYTES) };
}

/// As [`copy_page`], a line at a time and eight lines loaded before they are stored: a third of the
/// instructions, which leaves the processor room for what comes after the page.
///
/// # Safety
/// As for [`copy_page`]. The processor has AVX-512.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn copy_page_by_lines(from: *const u8, to: *mut u8) {
    use std::arch::x86_64::{__m512i, _mm512_loadu_si512, _mm512_stream_si512};
    const AT_ONCE: usize = 8;
    let (from, to) = (from.cast::<__m512i>(), to.cast::<__m512i>());
    for first in (0..PAGE_BYTES / LINE_BYTES).step_by(AT_ONCE) {
        // SAFETY: the caller answers for the page, and the vectors are inside it.
        let line = |at| unsafe { _mm512_loadu_si512(from.wrapping_add(first + at)) };
        let lines: [__m512i; AT_ONCE] = std::array::from_fn(line);
        for (at, line) in lines.into_iter().enumerate() {
            // SAFETY: as above.
            unsafe { _mm512_stream_si512(to.wrapping_add(first + at), line) };
        }
    }
}
