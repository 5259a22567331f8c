//! Protection domains, memory regions and memory windows.

use std::any::Any;
use std::rc::Rc;
use std::sync::Arc;

use bitflags::bitflags;
use capstan_memory::Slab;

use super::error::RdmaError;
use super::queue::SharedReceiveQueue;

bitflags! {
    /// What a key allows, with the values of `enum ibv_access_flags`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Access: u32 {
        /// The local device may write (receives and, except on iWARP, the sink of RDMA READ).
        const LOCAL_WRITE = 1;
        /// The peer may RDMA WRITE. Needs `LOCAL_WRITE` beside it, as verbs demands
        /// (`ibv_reg_mr(3)`).
        const REMOTE_WRITE = 1 << 1;
        /// The peer may RDMA READ.
        const REMOTE_READ = 1 << 2;
        /// Memory windows may be bound to the region.
        const MW_BIND = 1 << 4;
    }
}

impl Access {
    /// Refuses what no memory region can have.
    ///
    /// # Errors
    /// `REMOTE_WRITE` without `LOCAL_WRITE` (`ibv_reg_mr(3)`).
    pub(crate) fn check(self) -> Result<(), RdmaError> {
        if self.contains(Self::REMOTE_WRITE) && !self.contains(Self::LOCAL_WRITE) {
            return Err(RdmaError::Invalid(
                "a memory region with REMOTE_WRITE needs LOCAL_WRITE too",
            ));
        }
        Ok(())
    }
}

/// Names local memory in an SGE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LKey(pub u32);

/// Names memory to the peer: `rkey` in verbs, STag in iWARP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RKey(pub u32);

/// A protection domain (`struct ibv_pd`): keys work only with queue pairs of the same domain.
/// (`Any`: as for [`CompletionQueue`](super::CompletionQueue).)
pub trait ProtectionDomain: Any {
    /// Registers `len_bytes` of `slab` from `offset_bytes` with `access` (ibv_reg_mr(3)). The
    /// region keeps the slab mapped; the keys die with the region, whose drop is ibv_dereg_mr(3).
    ///
    /// # Errors
    /// Range outside the slab, `REMOTE_WRITE` without `LOCAL_WRITE`, no resources, or
    /// pinned-memory limit (RLIMIT_MEMLOCK).
    fn register(
        &self,
        slab: &Arc<Slab>,
        offset_bytes: usize,
        len_bytes: usize,
        access: Access,
    ) -> Result<Rc<dyn MemoryRegion>, RdmaError>;

    /// Allocates an unbound type 2 memory window (ibv_alloc_mw(3)).
    ///
    /// [`DeviceAttributes`]: super::DeviceAttributes
    ///
    /// # Errors
    /// The device has no windows ([`DeviceAttributes`], `memory_windows`), or none left.
    fn allocate_window(&self) -> Result<Box<dyn MemoryWindow>, RdmaError>;

    /// Creates a shared receive queue of `depth` receives of up to `sge_max` SGEs
    /// (ibv_create_srq(3)).
    ///
    /// # Errors
    /// No resources, or more than the device has.
    fn create_srq(&self, depth: u32, sge_max: u32)
    -> Result<Rc<dyn SharedReceiveQueue>, RdmaError>;

    /// Number of the domain within its provider; a queue pair is made in the domain of this number.
    fn id(&self) -> u32;
}

/// Registered memory (`struct ibv_mr`).
pub trait MemoryRegion {
    /// Key for SGEs.
    fn lkey(&self) -> LKey;
    /// Key for the peer; grants what the region's access says.
    fn rkey(&self) -> RKey;
    /// First address.
    fn addr(&self) -> u64;
    /// Length in bytes.
    fn len_bytes(&self) -> usize;
}

/// A type 2 memory window (`struct ibv_mw`): a key for a piece of a region, bound and invalidated
/// by work requests. A bound key works on the queue pair it was bound on only. Dropping the window
/// ends the key.
pub trait MemoryWindow {
    /// The key the next [`SendOp::BindWindow`](super::SendOp::BindWindow) of this window must
    /// carry: a fresh one each call, so that a late use of an old key fails (ibv_inc_rkey(3)).
    fn next_rkey(&mut self) -> RKey;
}
