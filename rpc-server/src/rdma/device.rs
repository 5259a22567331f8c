//! A device: what all its connections share.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use capstan_memory::{Buffer, Pages, Pool, Slab, SlabError, SlabId};
use capstan_rdma::contract::{
    Access, CompletionQueue, Device as DeviceOf, DeviceAttributes, LKey, MemoryRegion,
    ProtectionDomain, QpNum, RdmaError, Sge,
};
use capstan_rdma::direct::works_in_kernel;
use rustc_hash::FxHashMap;

use crate::limits::{DEVICE_SEND_WRS, MESSAGES_BYTES, RECEIVES, SEND_WRS};
use crate::program::ConnectionNumber;

/// The memory of all connections.
pub(super) struct Memory {
    /// Receives and Sends, a page each.
    pub(super) messages: Pool,
    /// What is moved by RDMA.
    pub(super) data: Pool,
    /// Zeroes, for padding.
    pub(super) zeroes: Buffer,
}

impl Memory {
    /// `None` where `data_bytes` are not even enough for the zeroes.
    ///
    /// # Errors
    /// The system has not so much.
    pub(super) fn new(data_bytes: usize, pages: Pages) -> Result<Option<Self>, SlabError> {
        let messages = Pool::new(MESSAGES_BYTES, Pages::Ordinary)?;
        let data = Pool::new(data_bytes, pages)?;
        let Some(mut zeroes) = data.take(ZEROES_BYTES) else {
            return Ok(None);
        };
        zeroes.copy_from(0, &[0; ZEROES_BYTES as usize]);
        Ok(Some(Self {
            messages,
            data,
            zeroes,
        }))
    }
}

/// Zeroes of the longest padding, and of a whole unit.
const ZEROES_BYTES: u32 = 4;

/// A device with connections. Its fields are dropped in this order, once they are gone.
pub(super) struct Device {
    cq: Rc<dyn CompletionQueue>,
    messages: Rc<dyn MemoryRegion>,
    messages_slab: SlabId,
    data: Rc<dyn MemoryRegion>,
    data_slab: Arc<Slab>,
    pd: Rc<dyn ProtectionDomain>,
    device: Rc<dyn DeviceOf>,
    /// The connections, by their queue pairs.
    connections: FxHashMap<QpNum, ConnectionNumber>,
    /// Work requests of send queues that may still be posted.
    send_wrs_left: u32,
    /// Connections that wait for more of them.
    waiting: VecDeque<ConnectionNumber>,
}

impl Device {
    /// Registers `memory` with `device`.
    ///
    /// # Errors
    /// The device does not do it, or has too few completions.
    pub(super) fn open(device: Rc<dyn DeviceOf>, memory: &Memory) -> Result<Self, RdmaError> {
        let attributes = device.attributes();
        let needed = RECEIVES.saturating_add(SEND_WRS);
        if attributes.cqe_max < needed {
            return Err(RdmaError::Limit {
                what: "entries of a completion queue",
                value: needed.into(),
                max: attributes.cqe_max.into(),
            });
        }
        let send_wrs = DEVICE_SEND_WRS.min(attributes.cqe_max.saturating_sub(RECEIVES));
        let pd = device.allocate_pd()?;
        let register = |pool: &Pool| {
            let slab = pool.slab();
            pd.register(slab, 0, slab.len_bytes(), Access::LOCAL_WRITE)
        };
        Ok(Self {
            cq: device.create_cq(RECEIVES.saturating_add(send_wrs))?,
            messages: register(&memory.messages)?,
            messages_slab: memory.messages.slab().id(),
            data: register(&memory.data)?,
            data_slab: Arc::clone(memory.data.slab()),
            pd,
            connections: FxHashMap::default(),
            send_wrs_left: send_wrs,
            waiting: VecDeque::new(),
            device,
        })
    }

    /// Whether it is that of `device`.
    pub(super) fn is_of(&self, device: &Rc<dyn DeviceOf>) -> bool {
        Rc::ptr_eq(&self.device, device)
    }

    pub(super) fn attributes(&self) -> &DeviceAttributes {
        self.device.attributes()
    }

    pub(super) fn pd(&self) -> &Rc<dyn ProtectionDomain> {
        &self.pd
    }

    pub(super) fn cq(&self) -> &Rc<dyn CompletionQueue> {
        &self.cq
    }

    /// Bytes of a buffer, as work requests name them.
    pub(super) fn sge(&self, buffer: &Buffer, at_bytes: u32, len_bytes: u32) -> Sge {
        let region = if buffer.slab_id() == self.messages_slab {
            &self.messages
        } else {
            &self.data
        };
        Sge {
            addr: buffer.addr().saturating_add(at_bytes.into()),
            len_bytes,
            lkey: region.lkey(),
        }
    }

    /// Makes `buffer` one that RDMA READs fill. Where a device needs that (iWARP), the client can
    /// write to it until it is closed, and to nothing else.
    ///
    /// # Errors
    /// The device has no more registrations.
    pub(super) fn open_sink(&self, buffer: Buffer) -> Result<Sink, RdmaError> {
        if !self.attributes().read_sink_needs_remote_write || buffer.len_bytes() == 0 {
            let lkey = self.data.lkey();
            return Ok(Sink {
                region: None,
                lkey,
                buffer,
            });
        }
        let offset = buffer.addr().checked_sub(self.data_slab.addr());
        let offset = offset.and_then(|offset| usize::try_from(offset).ok());
        let outside = RdmaError::Invalid("a sink outside the memory of data");
        let offset = offset.ok_or(outside)?;
        let len = usize::try_from(buffer.len_bytes()).unwrap_or(usize::MAX);
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let region = self.pd.register(&self.data_slab, offset, len, access)?;
        Ok(Sink {
            lkey: region.lkey(),
            region: Some(region),
            buffer,
        })
    }

    /// Takes so many work requests, if there are as many.
    pub(super) fn take_send_wrs(&mut self, count: u32) -> bool {
        match self.send_wrs_left.checked_sub(count) {
            Some(left) => {
                self.send_wrs_left = left;
                true
            }
            None => false,
        }
    }

    /// So many work requests have ended.
    pub(super) fn give_send_wrs(&mut self, count: u32) {
        self.send_wrs_left = self.send_wrs_left.saturating_add(count);
    }

    /// A connection waits for work requests.
    pub(super) fn wait(&mut self, connection: ConnectionNumber) {
        self.waiting.push_back(connection);
    }

    /// A connection that waits, where there is something for it again.
    pub(super) fn next_waiting(&mut self) -> Option<ConnectionNumber> {
        if self.send_wrs_left < SEND_WRS {
            return None;
        }
        self.waiting.pop_front()
    }

    pub(super) fn add(&mut self, qp: QpNum, connection: ConnectionNumber) {
        self.connections.insert(qp, connection);
    }

    pub(super) fn remove(&mut self, qp: QpNum) {
        self.connections.remove(&qp);
    }

    pub(super) fn connection(&self, qp: QpNum) -> Option<ConnectionNumber> {
        self.connections.get(&qp).copied()
    }

    /// Whether its work is done in the kernel, and there may be some.
    pub(super) fn waits_for_kernel(&self) -> bool {
        works_in_kernel(self.attributes()) && !self.connections.is_empty()
    }

    /// Whether it was removed, and its connections are gone.
    pub(super) fn is_over(&self) -> bool {
        self.device.is_removed() && self.connections.is_empty()
    }
}

/// A buffer that RDMA READs fill.
pub(super) struct Sink {
    // Dropped first: the client can write there until then.
    region: Option<Rc<dyn MemoryRegion>>,
    lkey: LKey,
    buffer: Buffer,
}

impl Sink {
    pub(super) fn sge(&self, at_bytes: u32, len_bytes: u32) -> Sge {
        Sge {
            addr: self.buffer.addr().saturating_add(at_bytes.into()),
            len_bytes,
            lkey: self.lkey,
        }
    }

    /// The client can write there no more.
    pub(super) fn close(&mut self) {
        self.region = None;
    }

    pub(super) fn buffer(&self) -> &Buffer {
        &self.buffer
    }
}
