//! A provider's connection manager and, per device behind it, what all connections share: the
//! protection domain, the completion queue, the registered slab and the shared receive queue.

use std::rc::Rc;
use std::sync::Arc;

use capstan_memory::{Buffer, Pool, Slab};
use capstan_rdma::contract::{
    Access, CompletionQueue, ConnectionManager, Device, DeviceAttributes, LKey, MemoryRegion,
    PostError, ProtectionDomain, QpNum, RdmaError, Sge, SharedReceiveQueue,
};
use rustc_hash::FxHashMap;

use super::accept::Refusal;
use super::wr_id::WrId;
use crate::limits::{IN_CAPSULE_BYTES, RECEIVES_MAX, SQE_BYTES, completions, cq_depth, send_wrs};

/// One RDMA provider on this reactor.
pub(super) struct Fabric {
    pub(super) name: &'static str,
    pub(super) cm: Box<dyn ConnectionManager>,
    pub(super) ports: Vec<DevicePort>,
}

/// One device of a fabric, opened when its first connection arrives.
pub(super) struct DevicePort {
    pub(super) device: Rc<dyn Device>,
    pub(super) pd: Rc<dyn ProtectionDomain>,
    pub(super) cq: Rc<dyn CompletionQueue>,
    pub(super) receives: Receives,
    /// Entries of the completion queue that connections may need.
    completions: Room,
    /// The slab of data buffers and the slab of receives and responses, each registered once.
    pub(super) data: Rc<dyn MemoryRegion>,
    pub(super) queues: Rc<dyn MemoryRegion>,
    /// The zeroes, which nobody may write.
    pub(super) zeroes: Option<Rc<dyn MemoryRegion>>,
    /// Which connection a queue pair belongs to.
    pub(super) connection_of: FxHashMap<QpNum, usize>,
}

impl Fabric {
    /// The port of `device`, opening it when it is new.
    pub(super) fn port_of(
        &mut self,
        device: &Rc<dyn Device>,
        memory: &Memory,
    ) -> Result<usize, RdmaError> {
        if let Some(at) = self
            .ports
            .iter()
            .position(|p| Rc::ptr_eq(&p.device, device))
        {
            return Ok(at);
        }
        self.ports.push(DevicePort::open(device, memory)?);
        Ok(self.ports.len() - 1)
    }
}

impl DevicePort {
    fn open(device: &Rc<dyn Device>, memory: &Memory) -> Result<Self, RdmaError> {
        let attributes = device.attributes();
        let pd = device.allocate_pd()?;
        let mut sink = Access::LOCAL_WRITE;
        if attributes.read_sink_needs_remote_write {
            sink |= Access::REMOTE_WRITE;
        }
        let register = |slab, access| pd.register(slab, 0, slab.len_bytes(), access);
        let data = register(memory.data.slab(), sink)?;
        let queues = register(memory.queues.slab(), Access::LOCAL_WRITE)?;
        let zeroes = memory.zeroes.as_ref();
        let zeroes = zeroes.map(|slab| register(slab, Access::empty()));
        let zeroes = zeroes.transpose()?;
        // No more than the whole slab could serve.
        let affordable = memory.queues.slab().len_bytes() / (SQE_BYTES + IN_CAPSULE_BYTES) as usize;
        let affordable = u32::try_from(affordable).unwrap_or(u32::MAX);
        let depths = Depths::new(attributes, affordable);
        let cq = device.create_cq(depths.completions)?;
        let depth = depths.receives;
        let srq = pd.create_srq(depth, 2)?;
        let receives = Receives::new(srq, depth, queues.lkey(), &memory.queues)?;
        Ok(Self {
            device: Rc::clone(device),
            pd,
            cq,
            receives,
            completions: Room::new("completions", depths.completions),
            data,
            queues,
            zeroes,
            connection_of: FxHashMap::default(),
        })
    }

    /// Makes sure that everything a queue of `entries` can have outstanding fits the device and the
    /// memory beside what it has been promised to others, and that `extra_bytes` of memory are left
    /// after that. On success [`DevicePort::release`] gives it back.
    pub(super) fn reserve(
        &mut self,
        entries: u16,
        extra_bytes: u32,
        pool: &Pool,
    ) -> Result<(), Refusal> {
        let (wanted, most) = (send_wrs(entries), self.device.attributes().qp_wr_max);
        if wanted > most {
            return Err(Refusal::Device(format!(
                "a queue of {entries} entries needs {wanted} work requests, a queue pair of the \
                 device takes {most}"
            )));
        }
        // Memory first: that is what an operator can give more of.
        self.receives.reserve(entries, extra_bytes, pool)?;
        let fits = self.completions.take(completions(entries));
        if fits.is_err() {
            self.receives.release(entries);
        }
        fits
    }

    /// A queue of `entries` is gone.
    pub(super) fn release(&mut self, entries: u16) {
        self.completions.give_back(completions(entries));
        self.receives.release(entries);
    }
}

/// How deep a device's shared queues are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Depths {
    receives: u32,
    completions: u32,
}

impl Depths {
    /// For memory of `affordable` receives. What the device has less of is logged.
    fn new(attributes: &DeviceAttributes, affordable: u32) -> Self {
        let wanted = affordable.clamp(1, RECEIVES_MAX);
        let receives = wanted.min(attributes.srq_wr_max).max(1);
        let completions = cq_depth(wanted).min(attributes.cqe_max);
        for (what, wanted, has) in [
            ("receives of a shared receive queue", wanted, receives),
            (
                "entries of a completion queue",
                cq_depth(wanted),
                completions,
            ),
        ] {
            if has < wanted {
                let device = &attributes.name;
                tracing::warn!(
                    device,
                    "the device has at most {has} {what}, the memory budget has room for {wanted}: \
                     connections that do not fit are refused"
                );
            }
        }
        Self {
            receives,
            completions,
        }
    }
}

/// So many of something a device has, promised to its connections.
struct Room {
    what: &'static str,
    has: u32,
    promised: u32,
}

impl Room {
    fn new(what: &'static str, has: u32) -> Self {
        Self {
            what,
            has,
            promised: 0,
        }
    }

    fn take(&mut self, count: u32) -> Result<(), Refusal> {
        let left = self.has.saturating_sub(self.promised);
        if count > left {
            let Self { what, has, .. } = self;
            return Err(Refusal::Device(format!(
                "a queue can have {count} {what} waiting, {left} of the device's {has} are left"
            )));
        }
        self.promised += count;
        Ok(())
    }

    fn give_back(&mut self, count: u32) {
        self.promised = self.promised.saturating_sub(count);
    }
}

/// A reactor's registered memory. Two slabs, because receives stay for long: among them, data
/// buffers would leave gaps in which a large transfer never fits again.
pub(super) struct Memory {
    /// Data of commands in flight.
    pub(super) data: Pool,
    /// Receives and responses of all queues.
    pub(super) queues: Pool,
    /// [`TRANSFER_BYTES_MAX`](crate::limits::TRANSFER_BYTES_MAX) of zeroes to push for reads of
    /// what is known to be zero, where a volume has such LBAs. Nothing ever writes here.
    pub(super) zeroes: Option<Arc<Slab>>,
}

/// The shared receive queue and the memory its receives land in.
///
/// Every receive has two SGEs: the SQE goes to a slot of one compact buffer, the in-capsule data to
/// a page-aligned buffer of its own, so that it can go to disk from where it landed.
pub(super) struct Receives {
    srq: Rc<dyn SharedReceiveQueue>,
    depth: u32,
    lkey: LKey,
    sqes: Buffer,
    /// Entries of all queues that take from here.
    promised: u32,
    /// Per posted or filled slot, its data buffer; `None` while a command uses it.
    data: Vec<Option<Buffer>>,
}

impl Receives {
    fn new(
        srq: Rc<dyn SharedReceiveQueue>,
        depth: u32,
        lkey: LKey,
        pool: &Pool,
    ) -> Result<Self, RdmaError> {
        let sqes = pool
            .take(depth * SQE_BYTES)
            .ok_or_else(|| RdmaError::Limit {
                what: "memory budget: bytes for received commands",
                value: u64::from(depth * SQE_BYTES),
                max: pool.free_bytes() as u64,
            })?;
        Ok(Self {
            srq,
            depth,
            lkey,
            sqes,
            promised: 0,
            data: Vec::new(),
        })
    }

    pub(super) fn srq(&self) -> Rc<dyn SharedReceiveQueue> {
        Rc::clone(&self.srq)
    }

    /// Makes sure that there is a receive for every entry of one more queue, so that a host never
    /// finds none, and that `extra_bytes` are left after that.
    fn reserve(&mut self, entries: u16, extra_bytes: u32, pool: &Pool) -> Result<(), Refusal> {
        let wanted = self.promised + u32::from(entries);
        let posted = u32::try_from(self.data.len()).unwrap_or(u32::MAX);
        let missing = wanted.saturating_sub(posted);
        let needed_bytes = (missing * IN_CAPSULE_BYTES + extra_bytes) as usize;
        let free_bytes = pool.free_bytes();
        if needed_bytes > free_bytes {
            return Err(Refusal::Budget(format!(
                "a queue of {entries} entries needs {needed_bytes} bytes for receives and \
                 responses, {free_bytes} are left"
            )));
        }
        if wanted > self.depth {
            return Err(Refusal::Device(format!(
                "{wanted} receives needed, the shared receive queue has {}",
                self.depth
            )));
        }
        for slot in posted..posted + missing {
            let buffer = pool.take(IN_CAPSULE_BYTES).ok_or_else(|| {
                Refusal::Budget("no contiguous bytes are free for a receive".to_owned())
            })?;
            self.data.push(None);
            self.post(slot, buffer)
                .map_err(|error| Refusal::Budget(format!("posting a receive failed: {error}")))?;
        }
        self.promised = wanted;
        Ok(())
    }

    /// A queue of `entries` is gone; its receives serve the next one.
    fn release(&mut self, entries: u16) {
        self.promised = self.promised.saturating_sub(u32::from(entries));
    }

    /// Copies the SQE of a filled receive out of memory the host can no longer reach.
    pub(super) fn sqe(&self, slot: u32) -> [u8; SQE_BYTES as usize] {
        let mut sqe = [0; SQE_BYTES as usize];
        self.sqes.copy_to((slot * SQE_BYTES) as usize, &mut sqe);
        sqe
    }

    /// Takes the in-capsule data of a filled receive; the slot rests until it is posted again.
    pub(super) fn take_data(&mut self, slot: u32) -> Option<Buffer> {
        self.data.get_mut(slot as usize)?.take()
    }

    /// Posts a slot again with the data buffer it still has.
    pub(super) fn repost(&mut self, slot: u32) -> Result<(), PostError> {
        match self.take_data(slot) {
            Some(buffer) => self.post(slot, buffer),
            None => Ok(()),
        }
    }

    /// Posts a slot with `buffer` for its in-capsule data.
    pub(super) fn post(&mut self, slot: u32, buffer: Buffer) -> Result<(), PostError> {
        let sges = [
            Sge {
                addr: self.sqes.addr() + u64::from(slot * SQE_BYTES),
                len_bytes: SQE_BYTES,
                lkey: self.lkey,
            },
            Sge {
                addr: buffer.addr(),
                len_bytes: IN_CAPSULE_BYTES,
                lkey: self.lkey,
            },
        ];
        if let Some(place) = self.data.get_mut(slot as usize) {
            debug_assert!(place.is_none(), "receive slot {slot} is posted already");
            *place = Some(buffer);
        }
        self.srq.post_recv(WrId::Recv(slot).encode(), &sges)
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr, SocketAddr};

    use capstan_memory::Pages;
    use capstan_rdma::loopback::{Network, attributes};

    use super::*;

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));

    /// A port of a device with these limits and memory of 4 MiB.
    fn port(attributes: DeviceAttributes) -> (DevicePort, Memory) {
        let network = Network::new(1);
        let cm = network.provider(&[HERE], attributes).unwrap();
        let mut cm = cm.manager().unwrap();
        let id = cm.resolve(SocketAddr::new(HERE, 1), None, 1, 0).unwrap();
        while cm.poll(network.now_us()).is_none() {
            network.advance_to(network.next_deadline_us().unwrap());
        }
        let pool = || Pool::new(4 << 20, Pages::Ordinary).unwrap();
        let memory = Memory {
            data: pool(),
            queues: pool(),
            zeroes: None,
        };
        let device = cm.device(id).unwrap();
        (DevicePort::open(&device, &memory).unwrap(), memory)
    }

    fn refusal(port: &mut DevicePort, entries: u16, memory: &Memory) -> String {
        let refused = port.reserve(entries, 0, &memory.queues);
        refused.expect_err("there is no room").to_string()
    }

    #[test]
    fn queues_are_as_deep_as_the_memory_and_no_deeper_than_the_device() {
        let depths = Depths::new(&attributes(), 12_192);
        assert_eq!((depths.receives, depths.completions), (12_192, 381 * 176));
        // Soft-RoCE of Linux 6.12 has completion queues of 32,767 entries.
        let soft = DeviceAttributes {
            cqe_max: 32_767,
            srq_wr_max: 10_000,
            ..attributes()
        };
        let depths = Depths::new(&soft, 12_192);
        assert_eq!((depths.receives, depths.completions), (10_000, 32_767));
        let all = Depths::new(&attributes(), u32::MAX);
        assert_eq!(all.receives, 32_768, "what the loopback device has");
    }

    #[test]
    fn what_the_completion_queue_does_not_hold_is_refused_until_there_is_room() {
        // 32 receives and 144 work requests of one queue.
        let (mut port, memory) = port(DeviceAttributes {
            cqe_max: 200,
            ..attributes()
        });
        port.reserve(32, 0, &memory.queues).unwrap();
        let refused = refusal(&mut port, 32, &memory);
        assert!(
            refused.contains("176 completions waiting, 24 of the device's 200"),
            "{refused}"
        );
        port.release(32);
        port.reserve(32, 0, &memory.queues).unwrap();
    }

    #[test]
    fn a_queue_refused_for_memory_leaves_its_completions_to_others() {
        let (mut port, memory) = port(DeviceAttributes {
            cqe_max: 200,
            ..attributes()
        });
        let refused = port.reserve(32, 5 << 20, &memory.queues);
        assert!(matches!(refused, Err(Refusal::Budget(_))), "{refused:?}");
        port.reserve(32, 0, &memory.queues).unwrap();
    }

    #[test]
    fn a_queue_deeper_than_the_devices_queue_pairs_is_refused() {
        let (mut port, memory) = port(DeviceAttributes {
            qp_wr_max: 200,
            ..attributes()
        });
        let refused = refusal(&mut port, 64, &memory);
        assert!(
            refused.contains("64 entries needs 272 work requests"),
            "{refused}"
        );
        port.reserve(32, 0, &memory.queues).unwrap();
    }
}
