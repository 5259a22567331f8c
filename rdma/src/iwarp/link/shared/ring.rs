//! One direction: a ring of bytes with one writer and one reader in different processes.
//!
//! Positions count bytes since the beginning and never wrap; the place in the ring is a position
//! modulo its size. Either process may write anything anywhere at any time, so what is read here is
//! never trusted: an impossible position ends the connection, and bytes are copied out before they
//! are looked at.
#![expect(unsafe_code, reason = "memory that another process writes")]

use std::io;
use std::mem;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use capstan_memory::{copy_around, fence_around};
use nix::sys::mman::{MmapAdvise, madvise};

use super::memory::Place;
use super::stores::StoreKind;
use crate::iwarp::piece::Piece;

/// Size of one direction: 2 to the power of this. Measured in
/// `docs/decisions/0007-shared-memory-between-two-ends-on-one-machine.md`.
pub(in crate::iwarp) const RING_ORDER: u8 = 20;
/// The same in bytes.
pub(in crate::iwarp) const RING_BYTES: usize = 1 << RING_ORDER;
/// Bytes written since memory was last given back, from which on it is worth giving back again.
const KEPT_BYTES: u64 = 64 << 10;
/// The position of a writer that has given up: an impossible one, as 2 to the power of 63 bytes
/// take decades.
const ABORTED: u64 = 1 << 63;
/// Size and alignment of the positions of one ring.
pub(in crate::iwarp) const LINES_BYTES: usize = 512;

/// What the two ends tell each other. Each value has cache lines of its own (a pair, as processors
/// prefetch the neighbouring line), by the end that writes it and how often.
#[repr(C, align(128))]
struct CacheLine<T>(T);

#[repr(C)]
struct Written {
    /// Bytes written so far.
    position: AtomicU64,
    /// Not 0: `position` is the last.
    closed: AtomicU32,
}

#[repr(C)]
struct RingPositions {
    /// The writer's.
    written: CacheLine<Written>,
    /// Bytes read so far; the reader's.
    read: CacheLine<AtomicU64>,
    /// Not 0: the reader sleeps and is to be woken by what is written. Set by the reader, reset by
    /// either.
    reader_sleeps: CacheLine<AtomicU32>,
    /// Not 0: the writer sleeps and is to be woken when there is room.
    writer_sleeps: CacheLine<AtomicU32>,
}

const _: () = assert!(size_of::<RingPositions>() == LINES_BYTES);

/// What both ends of a ring have.
struct End {
    lines: *const RingPositions,
    bytes: *mut u8,
}

impl End {
    fn new(place: &Place) -> Self {
        Self {
            lines: place.lines.cast_const().cast(),
            bytes: place.bytes,
        }
    }

    #[inline]
    fn lines(&self) -> &RingPositions {
        // SAFETY: the place is mapped, aligned and large enough (`Memory::place`); atomics may be
        // changed by others at any time.
        unsafe { &*self.lines }
    }

    /// Calls `each` for the one or two contiguous places of `length` bytes from `position` on: the
    /// address in the ring, how many of the bytes were in places before, and how many are there.
    /// `length` is at most the ring's size.
    #[inline]
    fn places(&self, position: u64, length: usize, mut each: impl FnMut(*mut u8, usize, usize)) {
        let at = place_of(position);
        let first = length.min(RING_BYTES - at);
        each(self.bytes.wrapping_add(at), 0, first);
        if first < length {
            each(self.bytes, first, length - first);
        }
    }
}

fn place_of(position: u64) -> usize {
    usize::try_from(position % RING_BYTES as u64).unwrap_or(0)
}

/// Bytes between two positions; an error when the ring cannot hold so many.
#[inline]
fn between(read: u64, written: u64) -> io::Result<usize> {
    match usize::try_from(written.wrapping_sub(read)) {
        Ok(bytes) if bytes <= RING_BYTES => Ok(bytes),
        _ if written == ABORTED => Err(io::ErrorKind::ConnectionReset.into()),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!(
                "the peer's position in shared memory is impossible: read up to {read}, written up \
                 to {written}, in a ring of {RING_BYTES} bytes"
            ),
        )),
    }
}

/// The writing end.
pub(in crate::iwarp) struct Writer {
    end: End,
    written: u64,
    /// The position up to which the reader sees the bytes.
    published: u64,
    /// The reader's position when it was last looked at.
    read: u64,
    /// This end's position when memory was last given back.
    given_back: u64,
    stores: StoreKind,
    /// Non-temporal stores are not ordered with the stores that follow yet.
    unfenced: bool,
}

impl Writer {
    pub(in crate::iwarp) fn new(place: &Place) -> Self {
        Self {
            end: End::new(place),
            written: 0,
            published: 0,
            read: 0,
            given_back: 0,
            stores: StoreKind::default(),
            unfenced: false,
        }
    }

    /// Bytes that can be written now; looks at the reader's position when these are fewer than
    /// `wanted`.
    #[inline]
    pub(in crate::iwarp) fn room(&mut self, wanted: usize) -> io::Result<usize> {
        let room = RING_BYTES - between(self.read, self.written)?;
        if room >= wanted.min(RING_BYTES) {
            return Ok(room);
        }
        self.read = self.end.lines().read.0.load(Ordering::Acquire);
        Ok(RING_BYTES - between(self.read, self.written)?)
    }

    /// Writes as much of `pieces` as there is room for, in order. The reader sees it once it is
    /// published.
    ///
    /// # Safety
    /// Each piece is mapped memory.
    #[inline]
    pub(in crate::iwarp) unsafe fn write(&mut self, pieces: &[Piece]) -> io::Result<usize> {
        let wanted = pieces.iter().map(Piece::len_bytes).sum();
        let mut room = self.room(wanted)?;
        let start = self.written;
        for piece in pieces {
            let length = piece.len_bytes().min(room);
            self.end
                .places(self.written, length, |ring, before, bytes| {
                    let from = piece.base().wrapping_add(before);
                    self.unfenced |= self.stores.take(bytes, |before, bytes, non_temporal| {
                        let (from, ring) = (from.wrapping_add(before), ring.wrapping_add(before));
                        let copy = if non_temporal {
                            copy_around
                        } else {
                            ptr::copy_nonoverlapping
                        };
                        // SAFETY: the caller answers for the piece, and `length` is at most the
                        // room. The peer may be writing the same bytes, as a device could by DMA:
                        // nothing here trusts them.
                        unsafe { copy(from, ring, bytes) };
                    });
                });
            self.written += length as u64;
            room -= length;
            if room == 0 {
                break;
            }
        }
        usize::try_from(self.written - start).map_err(io::Error::other)
    }

    /// Bytes written so far.
    #[inline]
    pub(in crate::iwarp) fn written(&self) -> u64 {
        self.written
    }

    /// Takes back what was written beyond a position of [`Writer::written`] and is not published.
    pub(in crate::iwarp) fn take_back(&mut self, written: u64) {
        self.written = written.max(self.published);
    }

    /// Lets the reader see what has been written. `false` when nothing was.
    #[inline]
    pub(in crate::iwarp) fn publish(&mut self) -> bool {
        if self.published == self.written {
            return false;
        }
        self.published = self.written;
        if mem::take(&mut self.unfenced) {
            fence_around();
        }
        let position = &self.end.lines().written.0.position;
        position.store(self.written, Ordering::Release);
        true
    }

    /// Whether the ring has memory that is worth giving back.
    pub(in crate::iwarp) fn keeps_memory(&self) -> bool {
        self.written - self.given_back >= KEPT_BYTES
    }

    /// Gives the memory of the ring's bytes back to the system, until it is written again. `false`
    /// while there is something to read.
    pub(in crate::iwarp) fn give_back_memory(&mut self) -> bool {
        let empty = self.room(RING_BYTES).ok() == Some(RING_BYTES);
        let Some(bytes) = NonNull::new(self.end.bytes).filter(|_| empty) else {
            return false;
        };
        // SAFETY: the place of the ring is mapped and whole pages; every byte of it has been read,
        // so its content is not needed. A system that refuses keeps the pages.
        let _ = unsafe { madvise(bytes.cast(), RING_BYTES, MmapAdvise::MADV_REMOVE) };
        self.given_back = self.written;
        true
    }

    /// Nothing more will be written.
    pub(in crate::iwarp) fn close(&self) {
        let closed = &self.end.lines().written.0.closed;
        closed.store(1, Ordering::Release);
    }

    /// The reader finds nothing more, not even what has been published.
    pub(in crate::iwarp) fn abort(&self) {
        let position = &self.end.lines().written.0.position;
        position.store(ABORTED, Ordering::Release);
    }

    /// Whether the reader has announced that it sleeps, and is to be woken; `true` once.
    #[inline]
    pub(in crate::iwarp) fn reader_sleeps(&self) -> bool {
        // A reader whose announcement is not seen here sees the written bytes (`Reader::sleep`).
        fence(Ordering::SeqCst);
        asleep(&self.end.lines().reader_sleeps.0)
    }

    /// Announces that this end sleeps until there is room. `false` when there is room already.
    pub(in crate::iwarp) fn sleep(&mut self) -> io::Result<bool> {
        let flag = &self.end.lines().writer_sleeps.0;
        flag.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        Ok(self.room(1)? == 0)
    }

    /// This end is awake.
    pub(in crate::iwarp) fn wake(&self) {
        self.end.lines().writer_sleeps.0.store(0, Ordering::Relaxed);
    }
}

/// The reading end.
pub(in crate::iwarp) struct Reader {
    end: End,
    read: u64,
    /// Bytes that were read are lent, so the writer is not told of them yet.
    held: bool,
}

impl Reader {
    pub(in crate::iwarp) fn new(place: &Place) -> Self {
        Self {
            end: End::new(place),
            read: 0,
            held: false,
        }
    }

    /// Bytes that can be read.
    #[inline]
    pub(in crate::iwarp) fn available(&self) -> io::Result<usize> {
        let position = &self.end.lines().written.0.position;
        let written = position.load(Ordering::Acquire);
        between(self.read, written)
    }

    /// Bytes read so far.
    pub(in crate::iwarp) fn position(&self) -> u64 {
        self.read
    }

    /// Whether the writer says that it has ended.
    #[inline]
    pub(in crate::iwarp) fn is_closed(&self) -> bool {
        self.end.lines().written.0.closed.load(Ordering::Acquire) != 0
    }

    /// Reads into `pieces`, in order, what there is.
    ///
    /// # Safety
    /// Each piece is mapped memory that may be written and that nothing has a reference to.
    #[inline]
    pub(in crate::iwarp) unsafe fn read(&mut self, pieces: &[Piece]) -> io::Result<usize> {
        let available = self.available()?;
        if available == 0 {
            return Ok(0);
        }
        // SAFETY: passed on.
        let bytes = unsafe { self.copy_out(pieces, available) };
        self.publish();
        Ok(bytes)
    }

    /// Reads into `before`, skips the `lent` bytes that follow, and reads into `after` what there
    /// is. Returns where the lent ones are, and how many bytes were read in all. `None`, with
    /// nothing read, when there are not so many, or the lent ones are not contiguous. They stay in
    /// the ring, and so does all that is read from here on, until [`Reader::give_back`].
    ///
    /// # Safety
    /// As for [`Reader::read`].
    #[inline]
    pub(in crate::iwarp) unsafe fn read_around(
        &mut self,
        before: &[Piece],
        lent: usize,
        after: Piece,
    ) -> io::Result<Option<(NonNull<u8>, usize)>> {
        let available = self.available()?;
        let first: usize = before.iter().map(Piece::len_bytes).sum();
        let Some(rest) = available.checked_sub(first + lent) else {
            return Ok(None);
        };
        let at = place_of(self.read + first as u64);
        let base = NonNull::new(self.end.bytes.wrapping_add(at));
        let Some(base) = base.filter(|_| at + lent <= RING_BYTES) else {
            return Ok(None);
        };
        // SAFETY: passed on; there are so many bytes.
        unsafe { self.copy_out(before, first) };
        self.read += lent as u64;
        self.held = true;
        // SAFETY: passed on.
        let behind = unsafe { self.copy_out(&[after], rest) };
        Ok(Some((base, first + lent + behind)))
    }

    /// What was lent is not in use any more.
    pub(in crate::iwarp) fn give_back(&mut self) {
        self.held = false;
        self.publish();
    }

    /// Tells the writer how much has been read.
    #[inline]
    fn publish(&self) {
        if !self.held {
            let read = &self.end.lines().read.0;
            read.store(self.read, Ordering::Release);
        }
    }

    /// Copies the next bytes, at most `left`, which are there, into `pieces`; returns how many.
    ///
    /// # Safety
    /// As for [`Reader::read`].
    #[inline]
    unsafe fn copy_out(&mut self, pieces: &[Piece], mut left: usize) -> usize {
        let all = left;
        for piece in pieces {
            let length = piece.len_bytes().min(left);
            self.end.places(self.read, length, |ring, before, bytes| {
                let to = piece.base().wrapping_add(before);
                // SAFETY: the caller answers for the piece, and `length` is at most what is in the
                // ring. The peer may be writing the same bytes, as a device could by DMA: the copy
                // is opaque to this program and its result is not trusted.
                unsafe { ptr::copy_nonoverlapping(ring, to, bytes) };
            });
            self.read += length as u64;
            left -= length;
            if left == 0 {
                break;
            }
        }
        all - left
    }

    /// Whether the writer has announced that it sleeps, and is to be woken; `true` once. Asked when
    /// the ring has been found empty: a writer sleeps only before a full one.
    pub(in crate::iwarp) fn writer_sleeps(&self) -> bool {
        fence(Ordering::SeqCst);
        asleep(&self.end.lines().writer_sleeps.0)
    }

    /// Announces that this end sleeps until something is written. `false` when something is there
    /// already.
    pub(in crate::iwarp) fn sleep(&self) -> io::Result<bool> {
        let flag = &self.end.lines().reader_sleeps.0;
        flag.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        Ok(self.available()? == 0)
    }

    /// This end is awake.
    pub(in crate::iwarp) fn wake(&self) {
        self.end.lines().reader_sleeps.0.store(0, Ordering::Relaxed);
    }
}

#[inline]
fn asleep(flag: &AtomicU32) -> bool {
    flag.load(Ordering::Relaxed) != 0 && flag.swap(0, Ordering::Relaxed) != 0
}

#[cfg(test)]
mod tests;
