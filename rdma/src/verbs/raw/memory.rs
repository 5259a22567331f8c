//! Protection domains, memory regions and memory windows.
#![expect(
    unsafe_code,
    reason = "calls libibverbs, and copies from registered memory"
)]

use std::io;
use std::ptr::{self, NonNull};
use std::rc::Rc;
use std::sync::Arc;

use capstan_memory::Slab;

use super::super::sys;
use super::context::Context;
use super::{errno, left_behind};
use crate::contract::Access;

/// A protection domain.
pub(in crate::verbs) struct Pd {
    pd: NonNull<sys::ibv_pd>,
    _context: Rc<Context>,
}

impl Pd {
    pub(in crate::verbs) fn new(context: &Rc<Context>) -> io::Result<Self> {
        // SAFETY: the context is open.
        let pd = errno::pointer(unsafe { sys::ibv_alloc_pd(context.as_ptr()) })?;
        Ok(Self {
            pd,
            _context: Rc::clone(context),
        })
    }

    pub(super) fn as_ptr(&self) -> *mut sys::ibv_pd {
        self.pd.as_ptr()
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        // SAFETY: made by `new`, destroyed once; everything made in it holds an `Rc` of it.
        let answer = unsafe { sys::ibv_dealloc_pd(self.as_ptr()) };
        left_behind("a protection domain", errno::number(answer));
    }
}

/// A memory region: the device may reach its bytes while it lives.
pub(in crate::verbs) struct Mr {
    mr: NonNull<sys::ibv_mr>,
    /// Stays mapped as long as the device may reach it.
    slab: Arc<Slab>,
    offset_bytes: usize,
    len_bytes: usize,
    _pd: Rc<Pd>,
}

impl Mr {
    /// Registers a range of a slab; `None` when it leaves the slab.
    pub(in crate::verbs) fn new(
        pd: &Rc<Pd>,
        slab: &Arc<Slab>,
        offset_bytes: usize,
        len_bytes: usize,
        access: Access,
    ) -> Option<io::Result<Self>> {
        let end = offset_bytes.checked_add(len_bytes)?;
        if end > slab.len_bytes() {
            return None;
        }
        // SAFETY: `offset_bytes` is inside the slab's mapping, or its end.
        let base = unsafe { slab.base().add(offset_bytes) };
        let (at, addr) = (base.as_ptr(), base.addr().get() as u64);
        // SAFETY: the range was just checked to be mapped, and the slab held below keeps it so
        // until the region has been deregistered. No Rust reference to a slab's bytes exists that
        // the device's accesses could break: that is what a slab is for.
        let mr = unsafe {
            sys::ibv_reg_mr_iova2(pd.as_ptr(), at.cast(), len_bytes, addr, access.bits())
        };
        Some(errno::pointer(mr).map(|mr| Self {
            mr,
            slab: Arc::clone(slab),
            offset_bytes,
            len_bytes,
            _pd: Rc::clone(pd),
        }))
    }

    pub(super) fn as_ptr(&self) -> *mut sys::ibv_mr {
        self.mr.as_ptr()
    }

    fn mr(&self) -> &sys::ibv_mr {
        // SAFETY: it lives until `self` is dropped, and its fields do not change.
        unsafe { self.mr.as_ref() }
    }

    pub(in crate::verbs) fn lkey(&self) -> u32 {
        self.mr().lkey
    }

    pub(in crate::verbs) fn rkey(&self) -> u32 {
        self.mr().rkey
    }

    pub(in crate::verbs) fn addr(&self) -> u64 {
        self.slab.addr() + self.offset_bytes as u64
    }

    pub(in crate::verbs) fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Copies `out.len()` bytes from `addr`; `false`, and nothing copied, when they are not all
    /// inside the region.
    pub(in crate::verbs) fn copy_to(&self, addr: u64, out: &mut [u8]) -> bool {
        let at = addr
            .checked_sub(self.addr())
            .and_then(|at| usize::try_from(at).ok())
            .filter(|at| {
                at.checked_add(out.len())
                    .is_some_and(|end| end <= self.len_bytes)
            });
        let Some(at) = at else {
            return false;
        };
        // SAFETY: the region is inside the slab's mapping (`new`), and `at` inside the region.
        let from = unsafe { self.slab.base().as_ptr().add(self.offset_bytes + at) };
        // SAFETY: the source range was just proved to be mapped; `out` is an exclusive slice, which
        // slab memory never is part of.
        unsafe { ptr::copy_nonoverlapping(from, out.as_mut_ptr(), out.len()) };
        true
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        // SAFETY: made by `new`, destroyed once.
        let result = errno::number(unsafe { sys::ibv_dereg_mr(self.as_ptr()) });
        if result.is_err() {
            // The device may still reach the bytes, so they stay mapped for ever.
            let _ = Arc::into_raw(Arc::clone(&self.slab));
        }
        left_behind("a memory region", result);
    }
}

/// A type 2 memory window.
pub(in crate::verbs) struct Mw {
    mw: NonNull<sys::ibv_mw>,
    _pd: Rc<Pd>,
}

impl Mw {
    pub(in crate::verbs) fn new(pd: &Rc<Pd>) -> io::Result<Self> {
        // SAFETY: the domain is live.
        let mw = unsafe { sys::ibv_alloc_mw(pd.as_ptr(), sys::ibv_mw_type::IBV_MW_TYPE_2) };
        // `None` when the device has no such call; errno is set then, too.
        let mw = errno::pointer(mw.unwrap_or(ptr::null_mut()))?;
        Ok(Self {
            mw,
            _pd: Rc::clone(pd),
        })
    }

    pub(super) fn as_ptr(&self) -> *mut sys::ibv_mw {
        self.mw.as_ptr()
    }

    /// The key it has, or had when it was last bound.
    pub(in crate::verbs) fn rkey(&self) -> u32 {
        // SAFETY: live until `self` is dropped, and only this thread touches it.
        unsafe { (*self.as_ptr()).rkey }
    }

    /// A bind with `rkey` was posted: verbs leaves it to the program to keep the key of a type 2
    /// window (`ibv_post_send(3)`).
    pub(super) fn set_rkey(&self, rkey: u32) {
        // SAFETY: as in `rkey`.
        unsafe { (*self.as_ptr()).rkey = rkey };
    }
}

impl Drop for Mw {
    fn drop(&mut self) {
        // SAFETY: made by `new`, destroyed once.
        let answer = unsafe { sys::ibv_dealloc_mw(self.as_ptr()) };
        left_behind("a memory window", errno::number(answer));
    }
}
