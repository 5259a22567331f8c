//! Protection domains, memory regions, memory windows.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::Arc;

use capstan_memory::Slab;
use rustc_hash::FxHashMap;

use super::device::VerbsDevice;
use super::error::resource;
use super::raw;
use super::raw::memory::{Mr, Mw};
use super::raw::send::BindKeys;
use super::srq::Srq;
use crate::contract::{
    Access, LKey, MemoryRegion, MemoryWindow, ProtectionDomain, RKey, RdmaError, Sge,
    SharedReceiveQueue,
};
use crate::ids::check_limit;

/// A protection domain, and its regions and windows by key.
pub(super) struct Pd {
    pub(super) raw: Rc<raw::memory::Pd>,
    id: u32,
    pub(super) device: Rc<VerbsDevice>,
    pub(super) keys: Rc<Keys>,
}

/// What the keys of a domain name: verbs wants objects where the contract has keys. The device
/// chose the keys, so no peer can make them collide.
#[derive(Default)]
pub(super) struct Keys {
    regions: RefCell<FxHashMap<u32, Weak<Mr>>>,
    /// By the part of the rkey that `ibv_inc_rkey` leaves alone.
    windows: RefCell<FxHashMap<u32, Weak<Mw>>>,
}

impl Keys {
    /// The objects of a bind; `None` when one of them is gone.
    pub(super) fn bind(&self, keys: BindKeys) -> Option<(Rc<Mr>, Rc<Mw>)> {
        let mr = self.regions.borrow().get(&keys.lkey)?.upgrade()?;
        let mw = self.windows.borrow().get(&(keys.rkey >> 8))?.upgrade()?;
        Some((mr, mw))
    }

    /// Copies the bytes that `sges` name; `None` when they are not in registered memory (the device
    /// will report what is wrong with them) or do not fit.
    pub(super) fn gather(&self, sges: &[Sge], out: &mut [u8]) -> Option<usize> {
        let regions = self.regions.borrow();
        let mut at = 0;
        for sge in sges {
            let to = out.get_mut(at..at + sge.len_bytes as usize)?;
            if !regions.get(&sge.lkey.0)?.upgrade()?.copy_to(sge.addr, to) {
                return None;
            }
            at += to.len();
        }
        Some(at)
    }
}

impl Pd {
    pub(super) fn new(raw: raw::memory::Pd, id: u32, device: Rc<VerbsDevice>) -> Self {
        Self {
            raw: Rc::new(raw),
            id,
            device,
            keys: Rc::default(),
        }
    }
}

impl ProtectionDomain for Pd {
    fn register(
        &self,
        slab: &Arc<Slab>,
        offset_bytes: usize,
        len_bytes: usize,
        access: Access,
    ) -> Result<Rc<dyn MemoryRegion>, RdmaError> {
        access.check()?;
        let mr = Mr::new(&self.raw, slab, offset_bytes, len_bytes, access).ok_or(
            RdmaError::Invalid("the range to be registered leaves its slab"),
        )?;
        let mr = Rc::new(mr.map_err(resource("memory region"))?);
        let mut regions = self.keys.regions.borrow_mut();
        regions.insert(mr.lkey(), Rc::downgrade(&mr));
        Ok(Rc::new(Region {
            mr,
            keys: Rc::clone(&self.keys),
        }))
    }

    fn allocate_window(&self) -> Result<Box<dyn MemoryWindow>, RdmaError> {
        if !self.device.attributes.memory_windows {
            return Err(RdmaError::NotSupported("a type 2 memory window"));
        }
        let mw = Mw::new(&self.raw).map_err(resource("memory window"))?;
        let mw = Rc::new(mw);
        let mut windows = self.keys.windows.borrow_mut();
        windows.insert(mw.rkey() >> 8, Rc::downgrade(&mw));
        Ok(Box::new(Window {
            last_rkey: Cell::new(mw.rkey()),
            mw,
            keys: Rc::clone(&self.keys),
        }))
    }

    fn create_srq(
        &self,
        depth: u32,
        sge_max: u32,
    ) -> Result<Rc<dyn SharedReceiveQueue>, RdmaError> {
        let attributes = &self.device.attributes;
        if attributes.srq_wr_max == 0 {
            return Err(RdmaError::NotSupported("a shared receive queue"));
        }
        check_limit("receives of a shared queue", depth, attributes.srq_wr_max)?;
        check_limit("SGEs of a receive", sge_max, attributes.sge_max)?;
        // One more than asked for: some devices free an entry just after its completion.
        let entries = (depth + 1).min(attributes.srq_wr_max);
        let srq = raw::receive::Srq::new(&self.raw, entries, sge_max);
        let srq = srq.map_err(resource("shared receive queue"))?;
        let device = Rc::clone(&self.device);
        let make = |place| Rc::new(Srq::new(srq, self.id, device, place, depth, sge_max));
        Ok(self.device.add_srq(make))
    }

    fn id(&self) -> u32 {
        self.id
    }
}

/// A memory region; its keys die with it.
struct Region {
    mr: Rc<Mr>,
    keys: Rc<Keys>,
}

impl MemoryRegion for Region {
    fn lkey(&self) -> LKey {
        LKey(self.mr.lkey())
    }

    fn rkey(&self) -> RKey {
        RKey(self.mr.rkey())
    }

    fn addr(&self) -> u64 {
        self.mr.addr()
    }

    fn len_bytes(&self) -> usize {
        self.mr.len_bytes()
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.keys.regions.borrow_mut().remove(&self.mr.lkey());
    }
}

/// A type 2 memory window.
struct Window {
    mw: Rc<Mw>,
    last_rkey: Cell<u32>,
    keys: Rc<Keys>,
}

impl MemoryWindow for Window {
    fn next_rkey(&mut self) -> RKey {
        // ibv_inc_rkey(3): the lowest byte is the program's.
        let last = self.last_rkey.get();
        let next = (last & !0xff) | (last.wrapping_add(1) & 0xff);
        self.last_rkey.set(next);
        RKey(next)
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        self.keys
            .windows
            .borrow_mut()
            .remove(&(self.mw.rkey() >> 8));
    }
}
