//! One page-aligned mapping, shared with devices for as long as anything holds it.
#![expect(unsafe_code, reason = "maps and unmaps memory that devices address")]

use std::num::NonZeroUsize;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous, munmap};
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};

use crate::RawBytes;

/// The page size every length is rounded up to, in bytes.
pub const PAGE_BYTES: usize = 4096;
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Names a slab within this process; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlabId(pub u32);

/// Which pages back a slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// Ordinary pages, with a hint that the kernel may use transparent huge pages.
    Ordinary,
    /// Reserved huge pages when there are any, ordinary pages otherwise.
    TryHuge,
}

/// The mapping could not be made.
#[derive(Debug, thiserror::Error)]
#[error("cannot map a slab of {len_bytes} bytes: {source}; {}", next_step(*source))]
pub struct SlabError {
    len_bytes: usize,
    source: nix::Error,
}

/// What is to be done about a mapping that the kernel refuses with `error` (setrlimit(2)).
fn next_step(error: nix::Error) -> String {
    match getrlimit(Resource::RLIMIT_AS) {
        Ok((bytes, _)) if error == nix::Error::ENOMEM && bytes != RLIM_INFINITY => format!(
            "the address space of this process is limited to {bytes} bytes: raise that (ulimit -v, LimitAS= of the unit)"
        ),
        _ => "lower the memory budget or free memory".to_owned(),
    }
}

/// A page-aligned, zeroed, anonymous mapping. It stays mapped until the last [`Arc`] is gone.
#[derive(Debug)]
pub struct Slab {
    base: NonNull<u8>,
    len_bytes: usize,
    huge: bool,
    id: SlabId,
}

// SAFETY: the mapping is process-wide memory without thread affinity, and `Slab` itself offers no
// access to the bytes; access goes through `Buffer` leases, or `unsafe` code that answers for it.
unsafe impl Send for Slab {}
// SAFETY: as for Send.
unsafe impl Sync for Slab {}

impl Slab {
    /// Maps `len_bytes` (rounded up to whole pages) of zeroed memory.
    ///
    /// # Errors
    /// [`SlabError`] when the kernel refuses the mapping or the length is zero or overflows.
    pub fn new(len_bytes: usize, pages: Pages) -> Result<Arc<Self>, SlabError> {
        static NEXT_ID: AtomicU32 = AtomicU32::new(0);
        let error = |source| SlabError { len_bytes, source };
        let invalid = || error(nix::Error::EINVAL);
        let unit = if pages == Pages::TryHuge {
            HUGE_PAGE_BYTES
        } else {
            PAGE_BYTES
        };
        let len = len_bytes
            .checked_next_multiple_of(unit)
            .and_then(NonZeroUsize::new);
        let len = len.ok_or_else(invalid)?;
        let map = |flags| {
            // SAFETY: an anonymous mapping at an address of the kernel's choice touches no
            // existing memory.
            unsafe {
                mmap_anonymous(
                    None,
                    len,
                    ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
                    flags,
                )
            }
        };
        let plain = MapFlags::MAP_PRIVATE;
        let huge = match pages {
            Pages::TryHuge => map(plain | MapFlags::MAP_HUGETLB | MapFlags::MAP_POPULATE).ok(),
            Pages::Ordinary => None,
        };
        let (base, huge) = match huge {
            Some(base) => (base, true),
            None => (map(plain).map_err(error)?, false),
        };
        if !huge {
            // SAFETY: the range is exactly the mapping made above. The call is a hint; a kernel
            // without transparent huge pages refuses it and nothing is lost.
            let _ = unsafe { madvise(base, len.get(), MmapAdvise::MADV_HUGEPAGE) };
        }
        let id = SlabId(NEXT_ID.fetch_add(1, Ordering::Relaxed));
        Ok(Arc::new(Self {
            base: base.cast(),
            len_bytes: len.get(),
            huge,
            id,
        }))
    }

    /// The address of the first byte, as RDMA and io_uring name it.
    #[must_use]
    pub fn addr(&self) -> u64 {
        self.base.as_ptr().addr() as u64
    }

    /// The first byte. Dereferencing is the caller's `unsafe`.
    #[must_use]
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Length in bytes, a multiple of the page size.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// The bytes of this range, to copy from; `None` where some of it is outside.
    #[must_use]
    pub fn raw(&self, range: Range<usize>) -> Option<RawBytes<'_>> {
        if range.start > range.end || range.end > self.len_bytes {
            return None;
        }
        // SAFETY: the whole mapping, which is there as long as the slab is borrowed, and whose
        // bytes this program writes through copies only (decision 0004).
        let all = unsafe { RawBytes::new(self.base, self.len_bytes) };
        Some(all.skip(range.start).first(range.len()))
    }

    /// Whether reserved huge pages back it.
    #[must_use]
    pub fn huge(&self) -> bool {
        self.huge
    }

    /// This slab's name within the process.
    #[must_use]
    pub fn id(&self) -> SlabId {
        self.id
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        // SAFETY: the range is exactly the mapping made in `new`; every lease and registration
        // holds the `Arc`, so nothing addresses it any more.
        let _ = unsafe { munmap(self.base.cast(), self.len_bytes) };
    }
}
