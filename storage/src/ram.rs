//! A volume in memory, shared by the reactors of one process.
//!
//! The bytes are a slab to which no Rust reference ever points outside of a lock. Access is by
//! copies of at most one page, each under the reader-writer lock of the page's stripe, so that two
//! reactors never race on a byte (a race would be undefined behaviour, with raw pointers too) and
//! no page, hence no LBA, is ever seen half written. Operations of several pages are not atomic:
//! where two of them overlap, each page holds one or the other. NVMe asks for no more (AWUN of one
//! LBA).
//!
//! A store that is prepared for one volume at a time has no locks: taking a lock makes the
//! processor wait until the stores of the page before have reached memory.
#![expect(
    unsafe_code,
    reason = "copies between memory that reactors share and buffers"
)]

use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::hint;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use capstan_memory::{PAGE_BYTES, Pages, RawBytes, Slab, SlabError, fence_around};
use nix::sys::mman::{MmapAdvise, madvise};

use crate::error::IoError;
use crate::geometry::{Extent, Geometry};
use crate::io::{Completion, Data, Io, Op, Submitted};
use crate::non_temporal::copy_page;
use crate::volume::{ReadAtOnce, Volume};

/// Stripes of pages: 16 KiB of lock words stay in the first-level cache, and with 4096 stripes two
/// of a handful of reactors next to never need the same one.
const STRIPES: usize = 4096;
/// How often a stripe is tried before the thread yields: a page is copied in much less time.
const SPINS: u32 = 1000;
const WRITER: u32 = 1 << 31;
/// Zeroing more than this is done in steps, one per [`Volume::poll`], so that a whole-volume
/// discard does not hold up the reactor's other work. 8 MiB take about a millisecond.
const STEP_BYTES: u64 = 8 << 20;
/// Whole-page ranges from this size on are given back to the kernel instead of being filled.
const RELEASE_BYTES: u64 = 2 << 20;

/// The bytes of a RAM volume. On its own cache lines: every reactor reads it for each command.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct RamStore {
    slab: Arc<Slab>,
    /// Locks of the pages; none where one volume at a time has them.
    stripes: Box<[AtomicU32]>,
    /// There is a volume, the only one that there may be.
    taken: AtomicBool,
}

impl RamStore {
    /// A store of zeroes. With `alone`, it is for one volume at a time.
    pub(crate) fn new(bytes: usize, alone: bool) -> Result<Self, SlabError> {
        let slab = Slab::new(bytes, Pages::Ordinary)?;
        let stripes = if alone { 0 } else { STRIPES };
        Ok(Self {
            slab,
            stripes: (0..stripes).map(|_| AtomicU32::new(0)).collect(),
            taken: AtomicBool::new(false),
        })
    }

    fn is_alone(&self) -> bool {
        self.stripes.is_empty()
    }

    fn lock_shared(&self, page: usize) -> Option<SharedLock<'_>> {
        let stripe = self.stripes.get(page % STRIPES)?;
        wait_until(|| {
            let now = stripe.load(Ordering::Relaxed);
            now & WRITER == 0
                && stripe
                    .compare_exchange_weak(now, now + 1, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
        });
        Some(SharedLock(stripe))
    }

    fn lock_exclusive(&self, page: usize) -> Option<ExclusiveLock<'_>> {
        let stripe = self.stripes.get(page % STRIPES)?;
        acquire_exclusive(stripe);
        Some(ExclusiveLock(stripe))
    }
}

/// One volume's access to the bytes: under the locks of their pages, or alone with them.
struct Access {
    store: Arc<RamStore>,
    streamed: Streamed,
}

impl Access {
    /// `None` when the store is for one volume and has it.
    fn new(store: Arc<RamStore>) -> Option<Self> {
        let free = !store.is_alone() || !store.taken.swap(true, Ordering::Acquire);
        free.then(|| Self {
            store,
            streamed: Streamed::new(),
        })
    }

    /// Nothing writes the page while this lives.
    fn to_read(&self, page: usize) -> Option<SharedLock<'_>> {
        self.streamed.settle(page);
        self.store.lock_shared(page)
    }

    /// Nothing else reads or writes the page while this lives.
    fn to_write(&self, page: usize) -> Option<ExclusiveLock<'_>> {
        self.streamed.settle(page);
        self.store.lock_exclusive(page)
    }

    fn read(&self, extent: Extent, data: &mut Data) {
        self.each_page(extent, raw(data), |page, at, memory, len| {
            let _lock = self.to_read(page);
            // SAFETY: `each_page` proved both ranges; nothing writes this page, and the slab and
            // the exclusively owned buffer do not overlap.
            unsafe { ptr::copy_nonoverlapping(at.as_ptr(), memory.as_ptr(), len) };
        });
    }

    fn write(&self, extent: Extent, data: RawBytes<'_>) {
        self.each_page(extent, data, |page, at, memory, len| {
            let lock = self.to_write(page);
            // SAFETY: as in `read`, and nothing else reads this page.
            let streamed = unsafe { store(memory.as_ptr(), at.as_ptr(), len) };
            match lock {
                None if streamed => self.streamed.note(page),
                // Before the lock is released.
                Some(_) if streamed => fence_around(),
                _ => {}
            }
        });
    }

    /// Calls `each` with the bytes of `extent`, of one page at a time.
    fn read_in_place(&self, extent: Extent, each: &mut dyn FnMut(&[u8])) {
        let (mut offset, mut left) = self.within(extent);
        while left > 0 {
            let len = left.min(PAGE_BYTES - offset % PAGE_BYTES);
            let _lock = self.to_read(offset / PAGE_BYTES);
            // SAFETY: `within` proved the range inside the slab.
            let at = unsafe { self.store.slab.base().add(offset) };
            // SAFETY: mapped and initialized, and nothing writes this page as long as the reference
            // lives.
            each(unsafe { slice::from_raw_parts(at.as_ptr(), len) });
            offset += len;
            left -= len;
        }
    }

    /// Where `extent` is, when nothing else writes there.
    fn place_of(&self, extent: Extent) -> Option<(&Arc<Slab>, Range<usize>)> {
        self.store.is_alone().then(|| {
            let (offset, len) = self.within(extent);
            for page in offset / PAGE_BYTES..(offset + len).div_ceil(PAGE_BYTES) {
                self.streamed.settle(page);
            }
            (&self.store.slab, offset..offset + len)
        })
    }

    /// Calls `copy(page, address in the slab, address in the data, bytes)` per page of `extent`.
    fn each_page(
        &self,
        extent: Extent,
        data: RawBytes<'_>,
        mut copy: impl FnMut(usize, NonNull<u8>, NonNull<u8>, usize),
    ) {
        let (mut offset, mut left) = self.within(extent);
        let mut memory_offset = 0;
        assert!(left <= data.len(), "data checked");
        while left > 0 {
            let len = left.min(PAGE_BYTES - offset % PAGE_BYTES);
            // SAFETY: `within` proved `offset + left` inside the slab, and this loop keeps it so.
            let at = unsafe { self.store.slab.base().add(offset) };
            // SAFETY: `memory_offset + left` was proved inside the data above, likewise.
            let memory = unsafe { data.base().add(memory_offset) };
            copy(offset / PAGE_BYTES, at, memory, len);
            offset += len;
            memory_offset += len;
            left -= len;
        }
    }

    /// Fills a range with zeroes; large whole-page ranges are given back to the kernel.
    fn zero(&self, extent: Extent) {
        let (mut offset, mut left) = self.within(extent);
        while left > 0 {
            let whole_pages = left / PAGE_BYTES * PAGE_BYTES;
            if offset.is_multiple_of(PAGE_BYTES)
                && whole_pages as u64 >= RELEASE_BYTES
                && self.release(offset, whole_pages)
            {
                offset += whole_pages;
                left -= whole_pages;
                continue;
            }
            let len = left.min(PAGE_BYTES - offset % PAGE_BYTES);
            let _lock = self.to_write(offset / PAGE_BYTES);
            // SAFETY: `within` proved the range inside the slab.
            let at = unsafe { self.store.slab.base().add(offset) };
            // SAFETY: likewise, and nothing else reads or writes this page.
            unsafe { ptr::write_bytes(at.as_ptr(), 0, len) };
            offset += len;
            left -= len;
        }
    }

    /// Drops whole pages, which then read as zeroes. `false` when the kernel will not (locked or
    /// huge pages).
    fn release(&self, offset: usize, len: usize) -> bool {
        // Every stripe, in ascending order: other operations hold one stripe at a time, so there is
        // no deadlock. It costs some 20 us, for at least 2 MiB.
        self.store.stripes.iter().for_each(acquire_exclusive);
        self.streamed.settle_all();
        // SAFETY: the caller's range is inside the slab.
        let at = unsafe { self.store.slab.base().add(offset) };
        // SAFETY: the pages belong to this private anonymous mapping, hold no Rust object, and
        // nothing else reads or writes them: all locks are held, or this is the only volume.
        let released = unsafe { madvise(at.cast(), len, MmapAdvise::MADV_DONTNEED) }.is_ok();
        self.store
            .stripes
            .iter()
            .for_each(|stripe| drop(ExclusiveLock(stripe)));
        released
    }

    /// Offset and length, proved inside the slab.
    fn within(&self, extent: Extent) -> (usize, usize) {
        let offset = usize::try_from(extent.offset_bytes).unwrap_or(usize::MAX);
        let len = usize::try_from(extent.len_bytes).unwrap_or(usize::MAX);
        let inside = offset
            .checked_add(len)
            .is_some_and(|end| end <= self.store.slab.len_bytes());
        assert!(inside, "an extent of the geometry is inside the slab");
        (offset, len)
    }
}

impl Drop for Access {
    fn drop(&mut self) {
        self.streamed.settle_all();
        self.store.taken.store(false, Ordering::Release);
    }
}

/// Pages that were written with non-temporal stores and not fenced yet. Before anything else reads
/// or writes such a page, and before a lock is released, a fence is made. A fence waits until the
/// stores are in memory, so one fence for many pages lets the processor work on meanwhile.
struct Streamed {
    /// A bit for each page, shared by pages that are a multiple of [`Self::BITS`] apart.
    pages: [Cell<u64>; Self::BITS / 64],
    count: Cell<usize>,
}

impl Streamed {
    /// As many bits as a few lines of the first-level cache hold.
    const BITS: usize = 4096;
    /// Few beside the bits, so that a page next to never shares the bit of another one.
    const PAGES: usize = 64;

    fn new() -> Self {
        Self {
            pages: [const { Cell::new(0) }; Self::BITS / 64],
            count: Cell::new(0),
        }
    }

    fn bit(&self, page: usize) -> (&Cell<u64>, u64) {
        let word = &self.pages[page / 64 % (Self::BITS / 64)];
        (word, 1 << (page % 64))
    }

    fn note(&self, page: usize) {
        let (word, bit) = self.bit(page);
        word.set(word.get() | bit);
        self.count.set(self.count.get() + 1);
        if self.count.get() >= Self::PAGES {
            self.settle_all();
        }
    }

    /// Completes and fences the page if necessary, before it is read or written again.
    fn settle(&self, page: usize) {
        let (word, bit) = self.bit(page);
        if word.get() & bit != 0 {
            self.settle_all();
        }
    }

    fn settle_all(&self) {
        if self.count.replace(0) > 0 {
            self.pages.iter().for_each(|word| word.set(0));
            fence_around();
        }
    }
}

/// Copies to a page of the volume, a whole one with non-temporal stores; `true` when
/// [`fence_around`] has to follow.
///
/// # Safety
/// `len` bytes that do not overlap may be read at `from` and written at `to`, of one page at most.
unsafe fn store(from: *const u8, to: *mut u8, len: usize) -> bool {
    let whole = len == PAGE_BYTES;
    if whole {
        // SAFETY: passed on; a volume aligns its pages to their size.
        unsafe { copy_page(from, to) };
    } else {
        // SAFETY: passed on.
        unsafe { ptr::copy_nonoverlapping(from, to, len) };
    }
    whole
}

fn acquire_exclusive(stripe: &AtomicU32) {
    wait_until(|| {
        stripe
            .compare_exchange_weak(0, WRITER, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    });
}

/// The data of an operation, from its offset on.
fn raw(data: &Data) -> RawBytes<'_> {
    data.buffer.raw().skip(data.offset_bytes as usize)
}

/// Waits for a lock. Holders copy one page and release it, so the wait is short; a holder that lost
/// its core is given time to come back.
fn wait_until(mut locked: impl FnMut() -> bool) {
    let mut spins = 0;
    while !locked() {
        spins += 1;
        if spins < SPINS {
            hint::spin_loop();
        } else {
            spins = 0;
            thread::yield_now();
        }
    }
}

struct SharedLock<'a>(&'a AtomicU32);

impl Drop for SharedLock<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

struct ExclusiveLock<'a>(&'a AtomicU32);

impl Drop for ExclusiveLock<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}

/// One reactor's view of a [`RamStore`].
pub(crate) struct RamVolume {
    access: Access,
    geometry: Geometry,
    name: Arc<str>,
    /// Zeroing that is done in steps, with what is left of it.
    zeroing: VecDeque<(Io, Extent)>,
}

impl RamVolume {
    pub(crate) fn geometry_of(lba_bytes: u32, lbas: u64) -> Geometry {
        Geometry {
            lba_bytes,
            lbas,
            // Memory is as durable as it can be here: Flush and FUA could add nothing.
            volatile_write_cache: false,
            discard: true,
            discard_zeroes: true,
            optimal_io_bytes: 4096,
            atomic_lbas: 1,
            read_only: false,
        }
    }

    /// `None` when the store is for one volume and has it.
    pub(crate) fn new(
        store: Arc<RamStore>,
        lba_bytes: u32,
        lbas: u64,
        name: Arc<str>,
    ) -> Option<Self> {
        Some(Self {
            access: Access::new(store)?,
            geometry: Self::geometry_of(lba_bytes, lbas),
            name,
            zeroing: VecDeque::new(),
        })
    }
}

/// The bytes of a volume in memory, to be read without a buffer.
#[derive(Clone, Copy)]
pub struct InMemory<'a>(&'a RamVolume);

impl<'a> InMemory<'a> {
    /// Calls `each` with the bytes of this range where they are, in order. Each LBA is as
    /// consistent there as it is in a buffer. `false`, without a call, for a range outside the
    /// volume.
    ///
    /// `each` returns soon: writers may wait for it.
    pub fn each(self, lba: u64, lbas: u32, each: &mut dyn FnMut(&[u8])) -> bool {
        let extent = self.0.geometry.extent(&Op::Read { lba, lbas });
        if let Ok(extent) = extent {
            self.0.access.read_in_place(extent, each);
        }
        extent.is_ok()
    }

    /// The slab that has the bytes of this range, and where in it, for a read without a copy now:
    /// they stay there as long as the slab, and only this thread writes to them. `None` where other
    /// threads may, and for a range outside the volume.
    #[must_use]
    pub fn place_of(self, lba: u64, lbas: u32) -> Option<(&'a Arc<Slab>, Range<usize>)> {
        let extent = self.0.geometry.extent(&Op::Read { lba, lbas }).ok()?;
        self.0.access.place_of(extent)
    }
}

impl fmt::Debug for InMemory<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("InMemory").field(&self.0.name).finish()
    }
}

impl RamVolume {
    /// Where a write of `data` goes, when it would succeed.
    fn extent_for(&self, lba: u64, lbas: u32, data: RawBytes<'_>) -> Option<Extent> {
        // No part of the volume is read-only or more durable than the rest.
        let fua = false;
        let extent = self.geometry.extent(&Op::Write { lba, lbas, fua });
        let fits = |extent: &Extent| extent.len_bytes <= data.len() as u64;
        extent.ok().filter(fits)
    }
}

impl Volume for RamVolume {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn read_at_once(&self, _: u64, _: u32) -> ReadAtOnce<'_> {
        ReadAtOnce::InMemory(InMemory(self))
    }

    fn write_at_once(&self, lba: u64, lbas: u32, data: RawBytes<'_>) -> bool {
        let extent = self.extent_for(lba, lbas, data);
        if let Some(extent) = extent {
            self.access.write(extent, data);
        }
        extent.is_some()
    }

    fn submit(&mut self, mut io: Io, _now_us: u64) -> Submitted {
        let extent = match self.geometry.check(&io) {
            Ok(extent) => extent,
            Err(kind) => {
                let result = Err(IoError::new(kind, &io.op, &self.name));
                return Submitted::Done(Completion {
                    token: io.token,
                    result,
                    data: io.data,
                });
            }
        };
        match (io.op, &mut io.data) {
            (Op::Read { .. }, Some(data)) => self.access.read(extent, data),
            (Op::Write { .. }, Some(data)) => {
                self.access.write(extent, raw(data));
            }
            (Op::WriteZeroes { .. } | Op::Discard { .. }, _) => {
                if extent.len_bytes > STEP_BYTES {
                    self.zeroing.push_back((io, extent));
                    return Submitted::Pending;
                }
                self.access.zero(extent);
            }
            (Op::Flush | Op::Read { .. } | Op::Write { .. }, _) => {}
        }
        Submitted::Done(Completion {
            token: io.token,
            result: Ok(()),
            data: io.data,
        })
    }

    fn poll(&mut self, _now_us: u64, out: &mut Vec<Completion>) {
        let Some((_, extent)) = self.zeroing.front_mut() else {
            return;
        };
        let len_bytes = extent.len_bytes.min(STEP_BYTES);
        self.access.zero(Extent {
            len_bytes,
            ..*extent
        });
        extent.offset_bytes += len_bytes;
        extent.len_bytes -= len_bytes;
        if extent.len_bytes == 0
            && let Some((io, _)) = self.zeroing.pop_front()
        {
            out.push(Completion {
                token: io.token,
                result: Ok(()),
                data: io.data,
            });
        }
    }

    fn next_deadline_us(&self) -> Option<u64> {
        (!self.zeroing.is_empty()).then_some(0)
    }
}

#[cfg(test)]
mod tests;
