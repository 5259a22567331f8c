//! Shared receive queues.

use std::rc::Rc;

use super::driver::IwarpEngine;
use super::receives::{RECEIVES_MAX, SGES_MAX, SharedReceives};
use crate::contract::{PostError, RdmaError, Sge, SharedReceiveQueue};
use crate::ids::check_limit;

/// A shared receive queue.
pub(super) struct SharedQueue {
    engine: Rc<IwarpEngine>,
    pd: u32,
    receives: Rc<SharedReceives>,
}

impl SharedQueue {
    pub(super) fn new(
        engine: &Rc<IwarpEngine>,
        pd: u32,
        depth: u32,
        sge_max: u32,
    ) -> Result<Rc<Self>, RdmaError> {
        check_limit("receives of a shared receive queue", depth, RECEIVES_MAX)?;
        check_limit("SGEs of a receive", sge_max, SGES_MAX)?;
        Ok(Rc::new(Self {
            engine: Rc::clone(engine),
            pd,
            receives: Rc::new(SharedReceives::new(depth, sge_max)),
        }))
    }

    /// Whether it belongs to this provider and domain.
    pub(super) fn is_of(&self, engine: &Rc<IwarpEngine>, pd: u32) -> bool {
        Rc::ptr_eq(&self.engine, engine) && self.pd == pd
    }

    /// Where queue pairs take their receives.
    pub(super) fn receives(&self) -> &Rc<SharedReceives> {
        &self.receives
    }
}

impl SharedReceiveQueue for SharedQueue {
    fn post_recv(&self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        let stags = self.engine.stags.borrow();
        self.receives.ring().post(&stags, self.pd, wr_id, sges)?;
        drop(stags);
        self.engine.wake(&self.receives);
        Ok(())
    }
}
