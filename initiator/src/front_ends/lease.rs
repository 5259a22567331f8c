//! Slices of leased memory that no operation uses, to hand to `read` and `write`.
#![expect(unsafe_code, reason = "makes slices of memory that devices address")]

use capstan_memory::Buffer;

/// The first `len_bytes` of a lease (at most all of it), from `start` on.
pub(super) fn bytes(lease: &Buffer, start: u32, len_bytes: u32) -> &[u8] {
    // SAFETY: an operation in flight owns its buffer (`BlockQueue::submit` takes it, the completion
    // brings it back when the controller's key is invalid again), so whoever holds a lease is the
    // only one who knows its bytes.
    let all = unsafe { lease.bytes() };
    all.get(start as usize..len_bytes as usize)
        .unwrap_or_default()
}

/// As [`bytes`], writable.
pub(super) fn bytes_mut(lease: &mut Buffer, start: u32, len_bytes: u32) -> &mut [u8] {
    // SAFETY: as for `bytes`; the exclusive borrow keeps every other safe user out.
    let all = unsafe { lease.bytes_mut() };
    all.get_mut(start as usize..len_bytes as usize)
        .unwrap_or_default()
}
