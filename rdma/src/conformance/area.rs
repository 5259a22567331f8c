//! Registered memory with guard bytes and a shadow of what it must contain.

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use capstan_memory::{Buffer, Pages, Pool, Slab};

use super::outcome::{Outcome, Stop};
use crate::contract::{Access, LKey, MemoryRegion, ProtectionDomain, RKey, Remote, Sge};
use crate::splitmix::SplitMix;

/// Unregistered bytes on each side of the region; odd, so that the region starts unaligned.
const GUARD_BYTES: usize = 259;

/// Longest region: a lease holds 4 MiB.
pub(crate) const AREA_BYTES_MAX: usize = (4 << 20) - 2 * GUARD_BYTES;

/// A registered region between guard bytes. Whatever the case writes itself, or says it expects a
/// device to write, goes into the shadow; [`Area::check`] compares all of it, guards included.
pub(crate) struct Area {
    region: Option<Rc<dyn MemoryRegion>>,
    buffer: Buffer,
    slab: Arc<Slab>,
    shadow: Vec<u8>,
    len_bytes: usize,
    lkey: LKey,
    rkey: RKey,
}

impl Area {
    pub(crate) fn new(
        pd: &Rc<dyn ProtectionDomain>,
        len_bytes: usize,
        access: Access,
    ) -> Outcome<Self> {
        let total = len_bytes + 2 * GUARD_BYTES;
        // A pool leases powers of two; only the region itself is registered (and pinned).
        let pool = Pool::new(total.next_power_of_two(), Pages::Ordinary)?;
        let slab = Arc::clone(pool.slab());
        let size = u32::try_from(total).map_err(Stop::failed)?;
        let buffer = pool.take(size);
        let mut buffer = buffer.ok_or_else(|| Stop::failed("no lease that large"))?;
        let shadow: Vec<u8> = (0..total)
            .map(|at| u8::try_from(at % 251).unwrap_or(0) ^ 0xa5)
            .collect();
        buffer.copy_from(0, &shadow);
        let offset = usize::try_from(buffer.addr() - slab.addr()).map_err(Stop::failed)?;
        let region = pd.register(&slab, offset + GUARD_BYTES, len_bytes, access)?;
        ensure_region(region.as_ref(), buffer.addr(), len_bytes)?;
        Ok(Self {
            lkey: region.lkey(),
            rkey: region.rkey(),
            region: Some(region),
            buffer,
            slab,
            shadow,
            len_bytes,
        })
    }

    pub(crate) fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    pub(crate) fn lkey(&self) -> LKey {
        self.lkey
    }

    pub(crate) fn rkey(&self) -> RKey {
        self.rkey
    }

    /// The address `at` bytes into the region.
    pub(crate) fn addr(&self, at: usize) -> u64 {
        self.buffer.addr() + (GUARD_BYTES + at) as u64
    }

    pub(crate) fn sge(&self, at: usize, len_bytes: usize) -> Sge {
        Sge {
            addr: self.addr(at),
            len_bytes: u32::try_from(len_bytes).unwrap_or(u32::MAX),
            lkey: self.lkey,
        }
    }

    pub(crate) fn remote(&self, at: usize) -> Remote {
        Remote {
            addr: self.addr(at),
            rkey: self.rkey,
        }
    }

    /// Where `len_bytes` from `at` bytes into the region are in its slab.
    pub(crate) fn place(&self, at: usize, len_bytes: usize) -> (&Arc<Slab>, Range<usize>) {
        let start = usize::try_from(self.addr(at) - self.slab.addr()).unwrap_or(usize::MAX);
        (&self.slab, start..start + len_bytes)
    }

    /// Writes random bytes all over the region.
    pub(crate) fn fill(&mut self, seed: u64) {
        let mut bytes = vec![0; self.len_bytes];
        SplitMix::new(seed).fill(&mut bytes);
        self.write(0, &bytes);
    }

    pub(crate) fn write(&mut self, at: usize, bytes: &[u8]) {
        self.buffer.copy_from(GUARD_BYTES + at, bytes);
        self.expect(at, bytes);
    }

    /// Expects a device to write `bytes` at `at`.
    pub(crate) fn expect(&mut self, at: usize, bytes: &[u8]) {
        self.shadow[GUARD_BYTES + at..][..bytes.len()].copy_from_slice(bytes);
    }

    pub(crate) fn read(&self, at: usize, len_bytes: usize) -> Vec<u8> {
        let mut out = vec![0; len_bytes];
        self.buffer.copy_to(GUARD_BYTES + at, &mut out);
        out
    }

    /// What the region must hold in `at..at + len_bytes`.
    pub(crate) fn shadow(&self, at: usize, len_bytes: usize) -> &[u8] {
        &self.shadow[GUARD_BYTES + at..][..len_bytes]
    }

    /// Compares region and guards with the shadow.
    #[track_caller]
    pub(crate) fn check(&self, what: &str) -> Outcome {
        let mut now = vec![0; self.shadow.len()];
        self.buffer.copy_to(0, &mut now);
        if now == self.shadow {
            return Ok(());
        }
        let differs = |&at: &usize| now[at] != self.shadow[at];
        let first = (0..now.len()).find(differs).unwrap_or(0);
        let count = (0..now.len()).filter(differs).count();
        let (at, is, want) = (first, now[first], self.shadow[first]);
        let place = if at < GUARD_BYTES {
            format!("{} bytes before the region", GUARD_BYTES - at)
        } else if at >= GUARD_BYTES + self.len_bytes {
            format!(
                "{} bytes behind the region",
                at - GUARD_BYTES - self.len_bytes + 1
            )
        } else {
            format!("byte {} of {}", at - GUARD_BYTES, self.len_bytes)
        };
        Err(Stop::failed(format_args!(
            "{what}: {place} is {is:#04x}, expected {want:#04x} ({count} bytes differ)"
        )))
    }

    /// Compares the guards only: part of a refused transfer may lie inside the region.
    #[track_caller]
    pub(crate) fn check_guards(&mut self, what: &str) -> Outcome {
        let inside = self.read(0, self.len_bytes);
        self.expect(0, &inside);
        self.check(what)
    }

    /// Drops the region; its memory stays allocated.
    pub(crate) fn deregister(&mut self) {
        self.region = None;
    }

    /// Registers the same bytes again with other access, as a region with its own keys.
    pub(crate) fn register_again(
        &self,
        pd: &Rc<dyn ProtectionDomain>,
        access: Access,
    ) -> Outcome<Rc<dyn MemoryRegion>> {
        let offset = usize::try_from(self.addr(0) - self.slab.addr()).map_err(Stop::failed)?;
        Ok(pd.register(&self.slab, offset, self.len_bytes, access)?)
    }
}

fn ensure_region(region: &dyn MemoryRegion, buffer: u64, len_bytes: usize) -> Outcome {
    let start = buffer + GUARD_BYTES as u64;
    if (region.addr(), region.len_bytes()) == (start, len_bytes) {
        return Ok(());
    }
    Err(Stop::failed(format_args!(
        "region is {:#x}+{}, registered {start:#x}+{len_bytes}",
        region.addr(),
        region.len_bytes()
    )))
}
