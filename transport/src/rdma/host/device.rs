//! What one association keeps of an RDMA device: protection domain, completion queue, and the
//! registrations of its memory.

use std::rc::Rc;
use std::sync::Arc;

use capstan_memory::{Pages, Pool, Slab, SlabId};
use capstan_rdma::contract::{
    Access, CompletionQueue, Device, DeviceAttributes, MemoryRegion, ProtectionDomain, RdmaError,
};

use super::connection::{Keyed, RegionKeys, RingSizes};
use crate::host::{OpenError, Span};

/// Memory of one association, in slabs by what the peer may reach.
pub(super) struct HostSlabs {
    /// Capsules and responses; never opened to the peer.
    pub(super) control: Pool,
    /// Data of admin commands.
    pub(super) admin: Pool,
    /// Data of I/O.
    pub(super) data: Pool,
}

impl HostSlabs {
    /// With room for the rings of the Admin queue and of `io_queues` of `io_sizes`.
    pub(super) fn new(
        admin_sizes: RingSizes,
        io_sizes: RingSizes,
        io_queues: u16,
        admin: Pool,
        data: Pool,
    ) -> Result<Self, OpenError> {
        let ring = |sizes: RingSizes| (sizes.control_bytes() as usize).next_power_of_two();
        // Twice the sum, as leases are powers of two of whole pages and must not fragment.
        let control = 2 * (ring(admin_sizes) + usize::from(io_queues) * ring(io_sizes));
        let control =
            Pool::new(control, Pages::Ordinary).map_err(|error| OpenError::Resources {
                what: "memory",
                message: error.to_string(),
            })?;
        Ok(Self {
            control,
            admin,
            data,
        })
    }
}

/// An RDMA device in use. Dropped after every connection on it.
pub(super) struct DeviceContext {
    control: Rc<dyn MemoryRegion>,
    admin: Rc<dyn MemoryRegion>,
    data: Rc<dyn MemoryRegion>,
    data_slab: SlabId,
    pub(super) cq: Rc<dyn CompletionQueue>,
    pub(super) pd: Rc<dyn ProtectionDomain>,
    pub(super) device: Rc<dyn Device>,
    /// Each command's data is opened by a window of its own.
    pub(super) windows: bool,
}

impl DeviceContext {
    /// Opens `device` for the queues of an association that need `cqes` completions.
    pub(super) fn new(
        device: Rc<dyn Device>,
        memory: &HostSlabs,
        cqes: u32,
    ) -> Result<Self, OpenError> {
        let error = |what| {
            move |error: RdmaError| OpenError::Resources {
                what,
                message: error.to_string(),
            }
        };
        let pd = device.allocate_pd().map_err(error("protection domain"))?;
        let cqe_max = device.attributes().cqe_max;
        if cqes > cqe_max {
            return Err(OpenError::Resources {
                what: "completion queue",
                message: format!(
                    "the queues can have {cqes} completions waiting, the device {} holds \
                     {cqe_max}; use fewer or smaller I/O queues (--nr-io-queues, --queue-size)",
                    device.attributes().name
                ),
            });
        }
        let cq = device.create_cq(cqes).map_err(error("completion queue"))?;
        // Asking is not enough: a device may have none left.
        let windows = device.attributes().memory_windows && pd.allocate_window().is_ok();
        let exposed = if windows {
            Access::LOCAL_WRITE | Access::MW_BIND
        } else {
            tracing::info!(
                device = device.attributes().name,
                "the device has no memory windows: the target can reach the whole data memory of \
                 this connection while it lasts"
            );
            Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE
        };
        let register = |slab: &Arc<Slab>, access| {
            pd.register(slab, 0, slab.len_bytes(), access)
                .map_err(error("memory region"))
        };
        Ok(Self {
            control: register(memory.control.slab(), Access::LOCAL_WRITE)?,
            admin: register(memory.admin.slab(), exposed)?,
            data: register(memory.data.slab(), exposed)?,
            data_slab: memory.data.slab().id(),
            cq,
            pd,
            device,
            windows,
        })
    }

    pub(super) fn attributes(&self) -> &DeviceAttributes {
        self.device.attributes()
    }

    pub(super) fn control_keys(&self) -> RegionKeys {
        keys(&self.control)
    }

    /// Bytes of a lease as work requests name them.
    #[inline]
    pub(super) fn keyed(&self, span: Span<'_>) -> Keyed {
        let region = if span.buffer.slab_id() == self.data_slab {
            &self.data
        } else {
            &self.admin
        };
        Keyed {
            addr: span.buffer.addr() + u64::from(span.offset_bytes),
            len_bytes: span.len_bytes,
            keys: keys(region),
        }
    }
}

fn keys(region: &Rc<dyn MemoryRegion>) -> RegionKeys {
    RegionKeys {
        lkey: region.lkey(),
        rkey: region.rkey(),
    }
}
