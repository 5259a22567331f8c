//! Where RDMA READs put data.

use std::rc::Rc;
use std::sync::Arc;

use capstan_memory::{Buffer, Slab};
use capstan_rdma::contract::{
    Access, LKey, MemoryRegion, PostError, ProtectionDomain, RdmaError, Sge,
};

/// How data gets from a host into a buffer of the data slab.
#[derive(Clone)]
pub enum Sinks {
    /// Through the registration of the whole slab, which no host can reach.
    Closed,
    /// The device needs remote write access to the sink of an RDMA READ (iWARP), and sends its key
    /// to the host. So the sink of each READ is registered for the time of the READ alone: whatever
    /// the host writes there meanwhile, it writes to the data of its own command.
    Open(Rc<dyn ProtectionDomain>, [Arc<Slab>; 2]),
}

/// Where the data of a pull under way arrives.
pub(super) struct Sink {
    // Dropped first: the host can write there until then.
    region: Option<Rc<dyn MemoryRegion>>,
    buffer: Buffer,
}

impl Sink {
    /// A buffer, and its registration where that is of its own.
    pub(super) fn new(buffer: Buffer, region: Option<Rc<dyn MemoryRegion>>) -> Self {
        Self { region, buffer }
    }

    /// The buffer, which the host can reach no more.
    pub(super) fn into_buffer(self) -> Buffer {
        drop(self.region);
        self.buffer
    }
}

/// Pulling could not be started.
#[derive(Debug, thiserror::Error)]
pub(super) enum PullError {
    /// Its sink could not be registered.
    #[error("registering the sink of an RDMA READ failed: {0}")]
    Sink(#[from] RdmaError),
    /// The queue pair took no work request.
    #[error("posting an RDMA READ failed: {0}")]
    Post(#[from] PostError),
}

impl Sinks {
    /// The key of `sge` as a sink, and the registration that ends with the READ.
    pub(super) fn open(&self, sge: Sge) -> Result<(LKey, Option<Rc<dyn MemoryRegion>>), RdmaError> {
        match self {
            Self::Closed => Ok((sge.lkey, None)),
            Self::Open(pd, slabs) => {
                let offset_in = |slab: &Arc<Slab>| {
                    let offset = sge.addr.checked_sub(slab.addr())?;
                    let offset = usize::try_from(offset).ok()?;
                    (offset < slab.len_bytes()).then_some(offset)
                };
                let (slab, offset) = slabs
                    .iter()
                    .find_map(|slab| Some((slab, offset_in(slab)?)))
                    .ok_or(RdmaError::Invalid(
                        "a sink outside the memory of this reactor",
                    ))?;
                let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
                let region = pd.register(slab, offset, sge.len_bytes as usize, access)?;
                Ok((region.lkey(), Some(region)))
            }
        }
    }
}
