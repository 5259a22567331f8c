//! The provider, the completion queue and the memory that hosts share.

use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;

use capstan_memory::{Buffer, Pages, Pool};
use capstan_nvme_proto::sgl::{Sgl, SglBase};
use capstan_rdma::contract::{
    Access, CmEvent, CompletionQueue, ConnectionManager, MemoryRegion, ProtectionDomain, Sge,
    WcStatus, WorkCompletion,
};
use capstan_rdma::iwarp::{Config, Provider};
use capstan_reactor::Clock;
use zerocopy::IntoBytes;

/// Marks the work request of a receive; the low bits are its buffer.
pub(super) const RECV: u64 = 1 << 32;

/// What hosts of one thread share.
pub struct Wire {
    /// Where its hosts come from, if that matters.
    pub(super) source: Option<IpAddr>,
    pub(super) cm: RefCell<Box<dyn ConnectionManager>>,
    pub(super) cq: Rc<dyn CompletionQueue>,
    pub(super) pd: Rc<dyn ProtectionDomain>,
    region: Rc<dyn MemoryRegion>,
    pool: Pool,
}

impl Wire {
    /// A provider, with a completion queue of `entries` and so many bytes of memory for all of its
    /// hosts.
    ///
    /// # Panics
    /// When that cannot be had.
    #[must_use]
    pub fn new(config: Config, entries: u32, memory_bytes: usize) -> Rc<Self> {
        Self::from(None, config, entries, memory_bytes)
    }

    /// The same for hosts that come from an address.
    ///
    /// # Panics
    /// As [`Wire::new`].
    #[must_use]
    pub fn from(
        source: Option<IpAddr>,
        config: Config,
        entries: u32,
        memory_bytes: usize,
    ) -> Rc<Self> {
        let provider = Provider::new(config).expect("a provider");
        let device = provider.device();
        let pd = device.allocate_pd().expect("a protection domain");
        let pool = Pool::new(memory_bytes, Pages::Ordinary).expect("memory");
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        Rc::new(Self {
            source,
            cm: RefCell::new(provider.connection_manager().expect("a connection manager")),
            cq: device.create_cq(entries).expect("a completion queue"),
            region: pd
                .register(pool.slab(), 0, pool.slab().len_bytes(), access)
                .expect("a memory region"),
            pd,
            pool,
        })
    }

    pub(super) fn event(&self) -> Option<CmEvent> {
        self.cm.borrow_mut().poll(Clock.now_us())
    }

    /// What has come of all hosts: for those who [`post`](super::WireHost::post) capsules
    /// themselves. Sends that were signaled are left out.
    ///
    /// # Panics
    /// When a work request failed.
    pub fn poll<'a>(
        &self,
        completions: &'a mut [WorkCompletion],
    ) -> impl Iterator<Item = &'a WorkCompletion> + use<'a> {
        let count = self.cq.poll(completions);
        let responses = completions[..count].iter();
        responses.filter(|completion| {
            assert_eq!(completion.status, WcStatus::Success);
            completion.wr_id & RECV != 0
        })
    }

    /// Memory that a controller may write.
    ///
    /// # Panics
    /// When there is none left.
    #[must_use]
    pub fn take(&self, len_bytes: u32) -> Buffer {
        self.pool.take(len_bytes).expect("memory")
    }

    /// A buffer, as the SGL of a command that moves all of it.
    #[must_use]
    pub fn keyed(&self, buffer: &Buffer) -> Sgl {
        Sgl::Keyed {
            address: buffer.addr(),
            length_bytes: buffer.len_bytes(),
            rkey: self.region.rkey().0,
            invalidate: false,
        }
    }

    /// The descriptors of a buffer that is cut into pieces of one length.
    pub(super) fn pieces(&self, buffer: &Buffer, pieces: u32) -> Vec<u8> {
        let length_bytes = buffer.len_bytes() / pieces;
        let descriptor = |piece| Sgl::Keyed {
            address: buffer.addr() + u64::from(piece * length_bytes),
            length_bytes,
            rkey: self.region.rkey().0,
            invalidate: false,
        };
        let list = (0..pieces).map(descriptor);
        list.flat_map(|sgl| sgl.encode().as_bytes().to_vec())
            .collect()
    }

    /// Some bytes of a buffer.
    #[must_use]
    pub fn sge(&self, buffer: &Buffer, offset_bytes: u32, len_bytes: u32) -> Sge {
        Sge {
            addr: buffer.addr() + u64::from(offset_bytes),
            len_bytes,
            lkey: self.region.lkey(),
        }
    }
}

/// The SGL of a list of descriptors at the start of the in-capsule data.
pub(super) fn list_of(descriptors: &[u8]) -> Sgl {
    Sgl::Segment {
        base: SglBase::CapsuleOffset(0),
        length_bytes: u32::try_from(descriptors.len()).expect("small"),
        last: true,
    }
}
