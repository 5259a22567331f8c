//! Devices, protection domains, regions and windows.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use capstan_memory::Slab;

use super::completion::{Cq, SharedState, Srq};
use super::keys::{KeyTable, RegionKeys};
use super::span::Span;
use super::state::{Core, NetRef};
use crate::contract::{
    Access, CompletionQueue, Device, DeviceAttributes, LKey, MemoryRegion, MemoryWindow,
    ProtectionDomain, RKey, RdmaError, SharedReceiveQueue,
};

/// A provider's device as one manager sees it.
pub(super) struct LoopbackDevice {
    net: NetRef,
    host: u32,
    attributes: DeviceAttributes,
    /// How often the provider's device had come back when this one was its device.
    restored: u32,
}

impl LoopbackDevice {
    /// The device that `host` has now, or had last.
    pub(super) fn new(net: &NetRef, core: &Core, host: u32) -> Result<Self, RdmaError> {
        Ok(Self {
            net: Rc::clone(net),
            host,
            attributes: core.attributes(host)?.clone(),
            restored: core.restored(host),
        })
    }

    /// Whether it is the device that its provider has now, or had last.
    pub(super) fn is_latest(&self, core: &Core) -> bool {
        core.restored(self.host) == self.restored
    }
}

impl Device for LoopbackDevice {
    fn attributes(&self) -> &DeviceAttributes {
        &self.attributes
    }

    fn is_removed(&self) -> bool {
        let core = self.net.core.borrow();
        core.usable(self.host).is_err() || !self.is_latest(&core)
    }

    fn allocate_pd(&self) -> Result<Rc<dyn ProtectionDomain>, RdmaError> {
        let mut core = self.net.core.borrow_mut();
        core.usable(self.host)?;
        core.next.pd += 1;
        Ok(Rc::new(Pd {
            net: Rc::clone(&self.net),
            host: self.host,
            pd: core.next.pd,
        }))
    }

    fn create_cq(&self, depth: u32) -> Result<Rc<dyn CompletionQueue>, RdmaError> {
        let cq: Rc<dyn CompletionQueue> = Cq::create(&self.net, self.host, depth)?;
        Ok(cq)
    }
}

/// A protection domain.
pub(super) struct Pd {
    pub(super) net: NetRef,
    pub(super) host: u32,
    pub(super) pd: u32,
}

impl Core {
    fn keys(&mut self, host: u32) -> Result<&mut KeyTable, RdmaError> {
        self.usable(host)?;
        let host = self.hosts.get_mut(host as usize);
        let keys = host.map(|host| &mut host.keys);
        keys.ok_or(RdmaError::Invalid("no such provider"))
    }

    fn remove_key(&mut self, host: u32, key: u32) {
        if let Some(host) = self.hosts.get_mut(host as usize) {
            host.keys.remove(key);
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
        let span = Span::new(slab, offset_bytes, len_bytes);
        let span = span.ok_or(RdmaError::Invalid("the region leaves its slab"))?;
        let addr = span.addr();
        let mut core = self.net.core.borrow_mut();
        let keys = core.keys(self.host)?.register(self.pd, span, access);
        let keys = keys.ok_or(RdmaError::Invalid("no key is left for another region"))?;
        Ok(Rc::new(Mr {
            net: Rc::clone(&self.net),
            host: self.host,
            keys,
            addr,
            len_bytes,
        }))
    }

    fn allocate_window(&self) -> Result<Box<dyn MemoryWindow>, RdmaError> {
        let mut core = self.net.core.borrow_mut();
        if !core.attributes(self.host)?.memory_windows {
            return Err(RdmaError::NotSupported("a memory window"));
        }
        let rkey = core.keys(self.host)?.allocate_window(self.pd);
        let rkey = rkey.ok_or(RdmaError::Invalid("no key is left for another window"))?;
        Ok(Box::new(Mw {
            net: Rc::clone(&self.net),
            host: self.host,
            rkey,
        }))
    }

    fn create_srq(
        &self,
        depth: u32,
        sge_max: u32,
    ) -> Result<Rc<dyn SharedReceiveQueue>, RdmaError> {
        let mut core = self.net.core.borrow_mut();
        core.usable(self.host)?;
        let attributes = core.attributes(self.host)?;
        for (what, value, max) in [
            ("shared receives", depth, attributes.srq_wr_max),
            ("SGEs of a shared receive", sge_max, attributes.sge_max),
        ] {
            if value > max {
                let (value, max) = (value.into(), max.into());
                return Err(RdmaError::Limit { what, value, max });
            }
        }
        core.next.srq += 1;
        let srq = core.next.srq;
        let state = SharedState {
            depth,
            sge_max,
            queue: VecDeque::new(),
            outstanding: 0,
            waiting: Vec::new(),
        };
        core.srqs.insert(srq, state);
        Ok(Rc::new(Srq {
            net: Rc::clone(&self.net),
            srq,
            pd: self.pd,
        }))
    }

    fn id(&self) -> u32 {
        self.pd
    }
}

/// A memory region.
struct Mr {
    net: NetRef,
    host: u32,
    keys: RegionKeys,
    addr: u64,
    len_bytes: usize,
}

impl MemoryRegion for Mr {
    fn lkey(&self) -> LKey {
        self.keys.lkey
    }

    fn rkey(&self) -> RKey {
        self.keys.rkey
    }

    fn addr(&self) -> u64 {
        self.addr
    }

    fn len_bytes(&self) -> usize {
        self.len_bytes
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        let mut core = self.net.core.borrow_mut();
        core.remove_key(self.host, self.keys.rkey.0);
    }
}

/// A memory window.
struct Mw {
    net: NetRef,
    host: u32,
    rkey: RKey,
}

impl MemoryWindow for Mw {
    fn next_rkey(&mut self) -> RKey {
        let mut core = self.net.core.borrow_mut();
        if let Some(host) = core.hosts.get_mut(self.host as usize) {
            self.rkey = host.keys.next_window_key(self.rkey);
        }
        self.rkey
    }
}

impl Drop for Mw {
    fn drop(&mut self) {
        let mut core = self.net.core.borrow_mut();
        core.remove_key(self.host, self.rkey.0);
    }
}
