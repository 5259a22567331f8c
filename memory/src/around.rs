//! Copies with non-temporal stores, which go around the caches of the core that makes them.
#![expect(unsafe_code, reason = "copies between memory that callers answer for")]

use std::ptr;

/// Size of a cache line.
const LINE_BYTES: usize = 64;

/// Copies with non-temporal stores, except for the parts of lines at either end: an ordinary store
/// first fetches its line from wherever it is, and leaves it in this core's cache. [`fence_around`]
/// has to follow before another thread is told of the bytes. Where the processor has no such
/// stores, this is an ordinary copy.
///
/// # Safety
/// `bytes` that do not overlap may be read at `from` and written at `to`.
#[inline]
pub unsafe fn copy_around(from: *const u8, to: *mut u8, bytes: usize) {
    let before = to.align_offset(LINE_BYTES).min(bytes);
    let lines = (bytes - before) / LINE_BYTES * LINE_BYTES;
    let after = before + lines;
    let ordinary = |at, bytes| {
        // SAFETY: a range inside the caller's.
        unsafe { ptr::copy_nonoverlapping(from.wrapping_add(at), to.wrapping_add(at), bytes) };
    };
    ordinary(0, before);
    // SAFETY: a range inside the caller's, and whole lines of `to`.
    unsafe { copy_lines(from.wrapping_add(before), to.wrapping_add(before), lines) };
    ordinary(after, bytes - after);
}

/// Orders what [`copy_around`] has stored before the stores that follow.
#[inline]
pub fn fence_around() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE is part of x86-64.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

/// # Safety
/// As for [`copy_around`]; `to` is aligned to a line, and `bytes` is a multiple of one.
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn copy_lines(from: *const u8, to: *mut u8, bytes: usize) {
    if is_x86_feature_detected!("avx") {
        // SAFETY: AVX is there; the rest is passed on.
        unsafe { copy_lines_by_32(from, to, bytes) };
    } else {
        // SAFETY: passed on.
        unsafe { copy_lines_by_16(from, to, bytes) };
    }
}

/// # Safety
/// As for [`copy_lines`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
unsafe fn copy_lines_by_32(from: *const u8, to: *mut u8, bytes: usize) {
    use std::arch::x86_64::{__m256i, _mm256_loadu_si256, _mm256_stream_si256};
    let (from, to) = (from.cast::<__m256i>(), to.cast::<__m256i>());
    for at in 0..bytes / size_of::<__m256i>() {
        // SAFETY: the caller answers for the bytes, and the vector is inside them.
        let vector = unsafe { _mm256_loadu_si256(from.wrapping_add(at)) };
        // SAFETY: as above, and aligned.
        unsafe { _mm256_stream_si256(to.wrapping_add(at), vector) };
    }
}

/// # Safety
/// As for [`copy_lines`].
#[cfg(target_arch = "x86_64")]
unsafe fn copy_lines_by_16(from: *const u8, to: *mut u8, bytes: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
    let (from, to) = (from.cast::<__m128i>(), to.cast::<__m128i>());
    for at in 0..bytes / size_of::<__m128i>() {
        // SAFETY: the caller answers for the bytes, and the vector is inside them; SSE2 is part of
        // x86-64.
        let vector = unsafe { _mm_loadu_si128(from.wrapping_add(at)) };
        // SAFETY: as above, and aligned.
        unsafe { _mm_stream_si128(to.wrapping_add(at), vector) };
    }
}

/// # Safety
/// As for [`copy_around`].
#[cfg(not(target_arch = "x86_64"))]
#[inline]
unsafe fn copy_lines(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: passed on.
    unsafe { ptr::copy_nonoverlapping(from, to, bytes) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn lines_arrive_without_avx() {
        #[repr(align(64))]
        struct Lines([u8; 256]);
        let from: Vec<u8> = (0..=255).collect();
        let mut to = Lines([0; 256]);
        // SAFETY: a range of each; the second is aligned.
        unsafe { copy_lines_by_16(from[1..].as_ptr(), to.0.as_mut_ptr(), 192) };
        fence_around();
        assert_eq!(to.0[..192], from[1..193]);
        assert_eq!(to.0[192..], [0; 64]);
    }

    #[test]
    fn every_byte_arrives_and_none_besides_from_and_to_any_alignment() {
        let from: Vec<u8> = (0..=250).cycle().take(400).collect();
        for (skip, at) in (0..70).flat_map(|skip| (0..70).map(move |at| (skip, at))) {
            for bytes in [0, 1, 63, 64, 65, 127, 128, 200, 300] {
                let mut to = vec![255; 400];
                // SAFETY: ranges of two vectors.
                unsafe { copy_around(from[skip..].as_ptr(), to[at..].as_mut_ptr(), bytes) };
                fence_around();
                assert!(to[..at].iter().all(|&byte| byte == 255));
                assert_eq!(to[at..at + bytes], from[skip..skip + bytes]);
                assert!(to[at + bytes..].iter().all(|&byte| byte == 255));
            }
        }
    }
}
