//! The memory of a reactor as one device knows it.

use std::rc::Rc;
use std::sync::Arc;

use capstan_memory::{Pool, Slab};
use capstan_rdma::contract::{Access, Device, MemoryRegion, ProtectionDomain, RdmaError, Sge};
use capstan_rdma::direct::register_zeroes;

use super::queue::{Keys, Zeroes};
use super::sinks::Sinks;
use crate::resources::Memory;

/// The memory of a reactor, each slab of which a device has registered once.
pub(super) struct Registered {
    /// Data of commands.
    data: Region,
    /// Receives and responses.
    queues: Region,
    /// What connections have that are no queue yet.
    strangers: Region,
    /// The zeroes, which nothing may write.
    zeroes: Option<Region>,
    /// Whether the host must be able to write the sinks of RDMA READs.
    opens_sinks: bool,
    pd: Rc<dyn ProtectionDomain>,
}

struct Region {
    registration: Rc<dyn MemoryRegion>,
    slab: Arc<Slab>,
}

impl Registered {
    /// Registers `memory` with `device`.
    ///
    /// # Errors
    /// The device does not do it.
    pub(super) fn new(device: &dyn Device, memory: &Memory) -> Result<Self, RdmaError> {
        let attributes = device.attributes();
        let pd = device.allocate_pd()?;
        if attributes.read_sink_needs_remote_write {
            let device = &attributes.name;
            tracing::info!(
                device,
                "the sinks of RDMA READs must be open to the host on this device: each is \
                 registered for the time of its READ"
            );
        }
        let register = |pool: &Pool| {
            let slab = pool.slab();
            let registration = pd.register(slab, 0, slab.len_bytes(), Access::LOCAL_WRITE)?;
            Ok::<_, RdmaError>(Region {
                registration,
                slab: Arc::clone(slab),
            })
        };
        let zeroes = memory.zeroes.as_ref().map(|slab| {
            let registration = register_zeroes(&pd, slab)?;
            Ok::<_, RdmaError>(Region {
                registration,
                slab: Arc::clone(slab),
            })
        });
        Ok(Self {
            data: register(&memory.data)?,
            queues: register(&memory.queues)?,
            strangers: register(&memory.strangers)?,
            zeroes: zeroes.transpose()?,
            opens_sinks: attributes.read_sink_needs_remote_write,
            pd,
        })
    }

    /// The protection domain that it is registered in.
    pub(super) fn pd(&self) -> &Rc<dyn ProtectionDomain> {
        &self.pd
    }

    /// Keys of the memory of a queue.
    pub(super) fn keys(&self) -> Keys {
        Keys {
            data: self.data.registration.lkey(),
            sinks: self.sinks([&self.data, &self.queues]),
            queues: (self.queues.slab.id(), self.queues.registration.lkey()),
            zeroes: self.zeroes.as_ref().map(Region::zeroes),
        }
    }

    /// Keys of the memory of a connection that is no queue yet.
    pub(super) fn place_keys(&self) -> Keys {
        let lkey = self.strangers.registration.lkey();
        Keys {
            data: lkey,
            sinks: self.sinks([&self.strangers; 2]),
            queues: (self.strangers.slab.id(), lkey),
            zeroes: None,
        }
    }

    /// How data is pulled into buffers of these slabs.
    fn sinks(&self, regions: [&Region; 2]) -> Sinks {
        if self.opens_sinks {
            let slabs = regions.map(|region| Arc::clone(&region.slab));
            Sinks::Open(Rc::clone(&self.pd), slabs)
        } else {
            Sinks::Closed
        }
    }
}

impl Region {
    fn zeroes(&self) -> Zeroes {
        Zeroes {
            slab: Arc::clone(&self.slab),
            sge: Sge {
                addr: self.registration.addr(),
                len_bytes: u32::try_from(self.slab.len_bytes()).unwrap_or(u32::MAX),
                lkey: self.registration.lkey(),
            },
        }
    }
}
