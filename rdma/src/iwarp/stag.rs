//! Steering tags: which memory a 32-bit key names, for which queue pairs, and what it allows.
#![expect(
    unsafe_code,
    reason = "turns checked ranges of registered memory into bytes"
)]

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr;
use std::sync::Arc;

use capstan_memory::{RawBytes, Slab};

use super::stag_keys::{STAGS_MAX, StagKeys};
use crate::contract::{Access, LKey, RKey, RdmaError, Sge};

/// Freed indices that wait before the oldest is used again. As each use has a fresh key as well, a
/// late access through a dead STag finds neither its index nor its key for long.
const RESTING: usize = 1024;

/// Why an access through a STag is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StagError {
    /// Unknown, stale or unbound.
    Invalid,
    /// Outside the region or window.
    Bounds,
    /// The key does not allow it.
    Access,
    /// Another protection domain or queue pair.
    NotAssociated,
    /// Address plus length wraps.
    Wrap,
}

/// The side that asks: the queue pair on which a segment arrived, or whose work request names the
/// key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asker {
    /// Protection domain of the queue pair.
    pub pd: u32,
    /// Serial number of the queue pair.
    pub qp: u64,
}

/// The current use of an index.
enum Use {
    Free,
    /// A memory region.
    Region {
        slab: Arc<Slab>,
    },
    /// A type 2 window; bound when `Entry::stag` is not zero.
    Window {
        /// Index of the region it is bound to.
        region: usize,
        /// Queue pair it is bound to.
        qp: u64,
        /// The key the next bind must carry.
        next: u32,
    },
    /// The sink of a queue pair's RDMA Reads: a key that gives no access by itself.
    ReadSink,
}

struct Entry {
    /// The whole STag while valid, otherwise 0, which is never a valid STag.
    stag: u32,
    pd: u32,
    access: Access,
    addr: u64,
    len_bytes: u64,
    /// First byte of the region or window.
    base: *mut u8,
    /// Whether every byte is zero for as long as the region lives.
    zeroes: bool,
    purpose: Use,
}

/// All STags of one provider.
pub(super) struct StagTable {
    entries: Vec<Entry>,
    /// First in, first out: an index waits as long as possible before it is used again.
    free: VecDeque<usize>,
    keys: StagKeys,
}

/// Registered memory, checked and mapped for as long as the table is borrowed.
#[derive(Clone, Copy)]
pub(super) struct Span<'t> {
    base: *mut u8,
    len_bytes: usize,
    zeroes: bool,
    table: PhantomData<&'t StagTable>,
}

impl<'t> Span<'t> {
    /// A part of a slab that need not be registered; `None` when it is not inside.
    pub(super) fn of_slab(slab: &'t Slab, range: &Range<usize>) -> Option<Self> {
        let inside = range.start <= range.end && range.end <= slab.len_bytes();
        inside.then(|| Self {
            base: slab.base().as_ptr().wrapping_add(range.start),
            len_bytes: range.len(),
            zeroes: false,
            table: PhantomData,
        })
    }

    /// First byte.
    pub(super) fn base(self) -> *mut u8 {
        self.base
    }

    /// Length in bytes.
    pub(super) fn len_bytes(self) -> usize {
        self.len_bytes
    }

    /// Whether all bytes are known to be zero.
    #[inline]
    pub(super) fn zeroes(self) -> bool {
        self.zeroes
    }

    /// Copies `bytes` to the start of the span; what does not fit is left out.
    pub(super) fn copy_from(self, bytes: &[u8]) {
        let length = bytes.len().min(self.len_bytes);
        // SAFETY: the span lies inside a mapped region (checked by the table, kept mapped by its
        // borrow); `bytes` is private memory of this provider and so does not overlap.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.base, length) };
    }

    /// Copies bytes that another process may write meanwhile to the start of the span; what does
    /// not fit is left out.
    pub(super) fn copy_from_raw(self, bytes: RawBytes<'_>) {
        let length = bytes.len().min(self.len_bytes);
        // SAFETY: as for `copy_from`; no region contains a ring or a stream buffer.
        unsafe { ptr::copy_nonoverlapping(bytes.base().as_ptr(), self.base, length) };
    }

    /// Its first `at` bytes, and the others; all of it and nothing when it is shorter.
    pub(super) fn split_at(self, at: usize) -> (Self, Self) {
        let at = at.min(self.len_bytes);
        let behind = Self {
            base: self.base.wrapping_add(at),
            len_bytes: self.len_bytes - at,
            ..self
        };
        (
            Self {
                len_bytes: at,
                ..self
            },
            behind,
        )
    }

    /// Copies the start of the span to `out`; what does not fit is left out.
    pub(super) fn copy_to(self, out: &mut [u8]) {
        let length = out.len().min(self.len_bytes);
        // SAFETY: as for `copy_from`, with the directions exchanged.
        unsafe { ptr::copy_nonoverlapping(self.base, out.as_mut_ptr(), length) };
    }

    /// The bytes, to be read at once (CRC).
    pub(super) fn bytes(self) -> &'t [u8] {
        // SAFETY: mapped and initialized while the table is borrowed. Nothing writes meanwhile:
        // this thread is here, and the users of a region keep other writers off what a work
        // request names (contract: it is in the provider's hands until it completes).
        unsafe { std::slice::from_raw_parts(self.base, self.len_bytes) }
    }
}

impl StagTable {
    pub(super) fn new() -> Self {
        Self {
            entries: Vec::new(),
            free: VecDeque::new(),
            keys: StagKeys::new(),
        }
    }

    /// Registers `len_bytes` of `slab` from `offset_bytes`.
    pub(super) fn register(
        &mut self,
        slab: &Arc<Slab>,
        offset_bytes: usize,
        len_bytes: usize,
        access: Access,
        pd: u32,
    ) -> Result<u32, RdmaError> {
        access.check()?;
        let end = offset_bytes.checked_add(len_bytes);
        if end.is_none_or(|end| end > slab.len_bytes()) {
            return Err(RdmaError::Limit {
                what: "end of the memory region in its slab",
                value: end.unwrap_or(usize::MAX) as u64,
                max: slab.len_bytes() as u64,
            });
        }
        let index = self.take_index()?;
        let stag = self.keys.fresh(index);
        // SAFETY: just checked to stay inside the slab's mapping.
        let base = unsafe { slab.base().as_ptr().add(offset_bytes) };
        self.entries[index] = Entry {
            stag,
            pd,
            access,
            addr: base.addr() as u64,
            len_bytes: len_bytes as u64,
            base,
            zeroes: false,
            purpose: Use::Region {
                slab: Arc::clone(slab),
            },
        };
        Ok(stag)
    }

    /// Registers a whole slab of zeroes, which nothing writes to, for sending.
    pub(super) fn register_zeroes(&mut self, slab: &Arc<Slab>, pd: u32) -> Result<u32, RdmaError> {
        let stag = self.register(slab, 0, slab.len_bytes(), Access::empty(), pd)?;
        if let Some((_, entry)) = self.find_mut(stag) {
            entry.zeroes = true;
        }
        Ok(stag)
    }

    /// Ends a region and every window bound to it; gives its memory back.
    pub(super) fn deregister(&mut self, stag: u32) -> Option<Arc<Slab>> {
        let (region, entry) = self.find_mut(stag)?;
        let Use::Region { slab } = std::mem::replace(&mut entry.purpose, Use::Free) else {
            return None;
        };
        entry.stag = 0;
        self.free.push_back(region);
        for entry in &mut self.entries {
            if matches!(entry.purpose, Use::Window { region: r, .. } if r == region) {
                entry.stag = 0;
            }
        }
        Some(slab)
    }

    /// Allocates an unbound window; the answer names it in the other window calls.
    pub(super) fn allocate_window(&mut self, pd: u32) -> Result<usize, RdmaError> {
        let index = self.take_index()?;
        let next = self.keys.fresh(index);
        self.entries[index].pd = pd;
        self.entries[index].zeroes = false;
        self.entries[index].purpose = Use::Window {
            region: usize::MAX,
            qp: 0,
            next,
        };
        Ok(index)
    }

    /// The key the next bind of a window must carry, a fresh one each call.
    pub(super) fn next_rkey(&mut self, window: usize) -> RKey {
        let fresh = self.keys.fresh(window);
        if let Some(Entry {
            purpose: Use::Window { next, .. },
            ..
        }) = self.entries.get_mut(window)
        {
            *next = fresh;
        }
        RKey(fresh)
    }

    /// Frees a window, a read sink or a region index.
    pub(super) fn release(&mut self, index: usize) {
        if let Some(entry) = self.entries.get_mut(index) {
            entry.stag = 0;
            entry.purpose = Use::Free;
            self.free.push_back(index);
        }
    }

    /// Allocates the read sink of a queue pair.
    pub(super) fn allocate_read_sink(&mut self) -> Result<usize, RdmaError> {
        let index = self.take_index()?;
        self.entries[index].purpose = Use::ReadSink;
        Ok(index)
    }

    /// A fresh STag on a read sink, for one RDMA Read.
    pub(super) fn read_sink_stag(&mut self, index: usize) -> u32 {
        self.keys.fresh(index)
    }

    /// Binds a window (type 2): `rkey` opens `len_bytes` at `addr` of the region `lkey` to the
    /// asking queue pair.
    pub(super) fn bind(
        &mut self,
        asker: Asker,
        rkey: RKey,
        lkey: LKey,
        addr: u64,
        len_bytes: u64,
        access: Access,
    ) -> Result<(), StagError> {
        let (region, parent) = self.find(lkey.0).ok_or(StagError::Invalid)?;
        if !matches!(parent.purpose, Use::Region { .. }) {
            return Err(StagError::Invalid);
        }
        if parent.pd != asker.pd {
            return Err(StagError::NotAssociated);
        }
        // InfiniBand and RFC 5040 §6.6.3 alike: a window never grants what its region could not do
        // locally.
        let writes = access.contains(Access::REMOTE_WRITE);
        if !parent.access.contains(Access::MW_BIND)
            || (writes && !parent.access.contains(Access::LOCAL_WRITE))
        {
            return Err(StagError::Access);
        }
        let at = offset_in(parent, addr, len_bytes)?;
        // SAFETY: `offset_in` proved the offset inside the region.
        let base = unsafe { parent.base.add(at) };
        let index = self.index(rkey.0);
        let entry = self.entries.get_mut(index).ok_or(StagError::Invalid)?;
        let Use::Window {
            region: r,
            qp,
            next,
        } = &mut entry.purpose
        else {
            return Err(StagError::Invalid);
        };
        if entry.pd != asker.pd {
            return Err(StagError::NotAssociated);
        }
        // Only an unbound type 2 window can be bound, and only with its current key.
        if entry.stag != 0 || *next != rkey.0 {
            return Err(StagError::Invalid);
        }
        *r = region;
        *qp = asker.qp;
        entry.stag = rkey.0;
        entry.access = access;
        entry.addr = addr;
        entry.len_bytes = len_bytes;
        entry.base = base;
        Ok(())
    }

    /// Invalidates a bound window; a region's key cannot be invalidated. `remote` is the peer's
    /// Send with Invalidate, which reaches only windows bound to its queue pair (RFC 5040 §6.6.3).
    pub(super) fn invalidate(
        &mut self,
        asker: Asker,
        stag: u32,
        remote: bool,
    ) -> Result<(), StagError> {
        let (_, entry) = self.find_mut(stag).ok_or(StagError::Invalid)?;
        let Use::Window { qp, .. } = entry.purpose else {
            return Err(StagError::Access);
        };
        if entry.pd != asker.pd || (remote && qp != asker.qp) {
            return Err(StagError::NotAssociated);
        }
        entry.stag = 0;
        Ok(())
    }

    /// Resolves an access of the peer: `len_bytes` at `addr` through `stag`, which must allow all
    /// of `need`.
    #[inline]
    pub(super) fn remote(
        &self,
        asker: Asker,
        stag: u32,
        addr: u64,
        len_bytes: u64,
        need: Access,
    ) -> Result<Span<'_>, StagError> {
        let (_, entry) = self.find(stag).ok_or(StagError::Invalid)?;
        if entry.pd != asker.pd {
            return Err(StagError::NotAssociated);
        }
        if let Use::Window { qp, .. } = entry.purpose
            && qp != asker.qp
        {
            return Err(StagError::NotAssociated);
        }
        if !entry.access.contains(need) {
            return Err(StagError::Access);
        }
        span(entry, addr, len_bytes)
    }

    /// Resolves an SGE of the protection domain `pd`.
    #[inline]
    pub(super) fn local(&self, pd: u32, sge: &Sge, need: Access) -> Result<Span<'_>, StagError> {
        let (_, entry) = self.find(sge.lkey.0).ok_or(StagError::Invalid)?;
        if entry.pd != pd {
            return Err(StagError::NotAssociated);
        }
        if !matches!(entry.purpose, Use::Region { .. }) {
            return Err(StagError::Invalid);
        }
        if !entry.access.contains(need) {
            return Err(StagError::Access);
        }
        span(entry, sge.addr, u64::from(sge.len_bytes))
    }

    /// The valid entry of exactly this STag.
    #[inline]
    fn find(&self, stag: u32) -> Option<(usize, &Entry)> {
        let index = self.index(stag);
        let entry = self.entries.get(index)?;
        (entry.stag == stag && stag != 0).then_some((index, entry))
    }

    fn find_mut(&mut self, stag: u32) -> Option<(usize, &mut Entry)> {
        let index = self.index(stag);
        let entry = self.entries.get_mut(index)?;
        (entry.stag == stag && stag != 0).then_some((index, entry))
    }

    fn index(&self, stag: u32) -> usize {
        self.keys.index(stag)
    }

    fn take_index(&mut self) -> Result<usize, RdmaError> {
        if self.free.len() < RESTING && self.entries.len() < STAGS_MAX {
            self.keys.push_index();
            self.entries.push(Entry {
                stag: 0,
                pd: 0,
                access: Access::empty(),
                addr: 0,
                len_bytes: 0,
                base: ptr::null_mut(),
                zeroes: false,
                purpose: Use::Free,
            });
            return Ok(self.entries.len() - 1);
        }
        self.free.pop_front().ok_or(RdmaError::Limit {
            what: "memory regions, memory windows and queue pairs of one iwarp provider",
            value: STAGS_MAX as u64 + 1,
            max: STAGS_MAX as u64,
        })
    }
}

#[inline]
fn offset_in(entry: &Entry, addr: u64, len_bytes: u64) -> Result<usize, StagError> {
    let end = addr.checked_add(len_bytes).ok_or(StagError::Wrap)?;
    let at = addr.checked_sub(entry.addr).ok_or(StagError::Bounds)?;
    if end > entry.addr + entry.len_bytes {
        return Err(StagError::Bounds);
    }
    usize::try_from(at).map_err(|_| StagError::Bounds)
}

#[inline]
fn span(entry: &Entry, addr: u64, len_bytes: u64) -> Result<Span<'_>, StagError> {
    let at = offset_in(entry, addr, len_bytes)?;
    Ok(Span {
        // SAFETY: `offset_in` proved `at` and `at + len_bytes` inside the region, whose slab the
        // table keeps mapped (windows die with their region).
        base: unsafe { entry.base.add(at) },
        zeroes: entry.zeroes,
        len_bytes: usize::try_from(len_bytes).map_err(|_| StagError::Bounds)?,
        table: PhantomData,
    })
}

#[cfg(test)]
mod tests;
