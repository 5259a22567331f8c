//! Protection domains, memory regions and memory windows.

use std::rc::Rc;
use std::sync::Arc;

use capstan_memory::Slab;

use super::driver::IwarpEngine;
use super::srq::SharedQueue;
use crate::contract::{
    Access, LKey, MemoryRegion, MemoryWindow, ProtectionDomain, RKey, RdmaError, SharedReceiveQueue,
};

/// A protection domain.
pub(crate) struct Domain {
    engine: Rc<IwarpEngine>,
    id: u32,
}

impl Domain {
    pub(super) fn new(engine: Rc<IwarpEngine>, id: u32) -> Self {
        Self { engine, id }
    }

    /// As [`register_zeroes`](crate::direct::register_zeroes).
    pub(crate) fn register_zeroes(
        &self,
        slab: &Arc<Slab>,
    ) -> Result<Rc<dyn MemoryRegion>, RdmaError> {
        let stag = self
            .engine
            .stags
            .borrow_mut()
            .register_zeroes(slab, self.id)?;
        Ok(Rc::new(Region {
            engine: Rc::clone(&self.engine),
            stag,
            addr: slab.addr(),
            len_bytes: slab.len_bytes(),
        }))
    }

    /// Whether it belongs to this provider.
    pub(super) fn is_of(&self, engine: &Rc<IwarpEngine>) -> bool {
        Rc::ptr_eq(&self.engine, engine)
    }
}

impl ProtectionDomain for Domain {
    fn register(
        &self,
        slab: &Arc<Slab>,
        offset_bytes: usize,
        len_bytes: usize,
        access: Access,
    ) -> Result<Rc<dyn MemoryRegion>, RdmaError> {
        let mut stags = self.engine.stags.borrow_mut();
        let stag = stags.register(slab, offset_bytes, len_bytes, access, self.id)?;
        Ok(Rc::new(Region {
            engine: Rc::clone(&self.engine),
            stag,
            addr: slab.addr() + offset_bytes as u64,
            len_bytes,
        }))
    }

    fn allocate_window(&self) -> Result<Box<dyn MemoryWindow>, RdmaError> {
        let index = self.engine.stags.borrow_mut().allocate_window(self.id)?;
        Ok(Box::new(Window {
            engine: Rc::clone(&self.engine),
            index,
        }))
    }

    fn create_srq(
        &self,
        depth: u32,
        sge_max: u32,
    ) -> Result<Rc<dyn SharedReceiveQueue>, RdmaError> {
        let queue = SharedQueue::new(&self.engine, self.id, depth, sge_max)?;
        Ok(queue)
    }

    fn id(&self) -> u32 {
        self.id
    }
}

/// A memory region; one STag serves as lkey and rkey.
struct Region {
    engine: Rc<IwarpEngine>,
    stag: u32,
    addr: u64,
    len_bytes: usize,
}

impl MemoryRegion for Region {
    fn lkey(&self) -> LKey {
        LKey(self.stag)
    }

    fn rkey(&self) -> RKey {
        RKey(self.stag)
    }

    fn addr(&self) -> u64 {
        self.addr
    }

    fn len_bytes(&self) -> usize {
        self.len_bytes
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let slab = self.engine.stags.borrow_mut().deregister(self.stag);
        if let Some(slab) = slab {
            self.engine.keep_while_sending(&slab);
        }
    }
}

/// A type 2 memory window.
struct Window {
    engine: Rc<IwarpEngine>,
    index: usize,
}

impl MemoryWindow for Window {
    fn next_rkey(&mut self) -> RKey {
        self.engine.stags.borrow_mut().next_rkey(self.index)
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        self.engine.stags.borrow_mut().release(self.index);
    }
}
