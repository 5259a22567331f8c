//! A provider's connection manager and, per device behind it, what all connections share: the
//! protection domain, the completion queue, the registered slabs and the receives.

use std::rc::Rc;
use std::sync::Arc;

use capstan_memory::{Pool, Slab};
use capstan_rdma::contract::{
    Access, Device, DeviceAttributes, MemoryRegion, ProtectionDomain, Sge,
};
use capstan_rdma::direct::register_zeroes;
use capstan_transport::manager::Manager;
use capstan_transport::rdma::{Keys, Receives, Sinks, Zeroes};
use capstan_transport::{Wire, rdma, tcp};

use super::accept::Refusal;
use crate::limits::{
    IN_CAPSULE_BYTES, RECEIVES_MAX, SQE_BYTES, STRANGER_COMPLETIONS, STRANGER_RECEIVES,
    TRANSFER_BYTES_MAX, completions, cq_depth, discovery_completions, send_wrs,
};

/// One RDMA provider on this reactor.
pub(super) struct Fabric {
    pub(super) name: &'static str,
    /// Its connections, and those of NVMe/TCP that come to its listeners.
    pub(super) manager: Manager,
    /// Whether queues share their receives where the device can.
    pub(super) shared_receive_queue: bool,
    /// Empty entries are those of devices that have gone.
    pub(super) ports: Vec<Option<DevicePort>>,
}

/// One device of a fabric, opened when its first connection arrives. Dropped in the order of its
/// fields, once its connections are gone: first what the device writes with, then the memory.
pub(super) struct DevicePort {
    pub(super) device: Rc<dyn Device>,
    pub(super) pd: Rc<dyn ProtectionDomain>,
    pub(super) wire: rdma::Wire,
    /// Entries of the completion queue that connections may need.
    completions: Room,
    /// The slab of data buffers, the slab of receives and responses, and that of connections that
    /// are no queue yet, each registered once.
    data: Rc<dyn MemoryRegion>,
    queues: Rc<dyn MemoryRegion>,
    strangers: Rc<dyn MemoryRegion>,
    /// The zeroes, which nothing may write.
    zeroes: Option<Rc<dyn MemoryRegion>>,
}

/// The open ports of all fabrics, always in the same order.
pub(super) fn ports(fabrics: &[Fabric]) -> impl Iterator<Item = &DevicePort> {
    fabrics.iter().flat_map(|fabric| &fabric.ports).flatten()
}

/// All wires: of each device, and of the sockets of NVMe/TCP where there are any. Always in the
/// same order.
pub(super) fn wires<'a>(
    fabrics: &'a mut [Fabric],
    sockets: &'a mut tcp::wire::Wire,
) -> impl Iterator<Item = Wire<'a>> {
    let ports = fabrics.iter_mut().flat_map(|fabric| &mut fabric.ports);
    let sockets = (!sockets.is_empty()).then_some(Wire::Tcp(sockets));
    let devices = ports.flatten().map(|port| Wire::Rdma(&mut port.wire));
    devices.chain(sockets)
}

impl Fabric {
    /// The port of `device`, opening it when it is new.
    pub(super) fn port_of(
        &mut self,
        device: &Rc<dyn Device>,
        memory: &Memory,
    ) -> Result<usize, Refusal> {
        let is_it = |port: &DevicePort| Rc::ptr_eq(&port.device, device);
        let mut ports = self.ports.iter();
        if let Some(at) = ports.position(|port| port.as_ref().is_some_and(is_it)) {
            return Ok(at);
        }
        let port = DevicePort::open(device, memory, self.shared_receive_queue)?;
        let at = self.ports.iter().position(Option::is_none);
        let at = at.unwrap_or_else(|| {
            self.ports.push(None);
            self.ports.len() - 1
        });
        self.ports[at] = Some(port);
        Ok(at)
    }

    /// The port at an index that [`Fabric::port_of`] returned, as long as it has connections.
    pub(super) fn port(&mut self, at: usize) -> Option<&mut DevicePort> {
        self.ports.get_mut(at)?.as_mut()
    }

    /// Releases devices that were removed, once their connections are gone.
    pub(super) fn drop_removed_ports(&mut self) {
        for place in &mut self.ports {
            let over = |port: &mut DevicePort| port.device.is_removed() && port.wire.is_empty();
            if let Some(port) = place.take_if(over) {
                let device = &port.device.attributes().name;
                tracing::info!(device, "closed the RDMA device that was removed");
            }
        }
    }
}

impl DevicePort {
    pub(super) fn open(
        device: &Rc<dyn Device>,
        memory: &Memory,
        shared: bool,
    ) -> Result<Self, Refusal> {
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
        let register = |slab, access| pd.register(slab, 0, slab.len_bytes(), access);
        let data = register(memory.data.slab(), Access::LOCAL_WRITE)?;
        let queues = register(memory.queues.slab(), Access::LOCAL_WRITE)?;
        let strangers = register(memory.strangers.slab(), Access::LOCAL_WRITE)?;
        let zeroes = memory.zeroes.as_ref();
        let zeroes = zeroes.map(|slab| register_zeroes(&pd, slab));
        let zeroes = zeroes.transpose()?;
        // No more than the whole slab could serve.
        let affordable = memory.queues.slab().len_bytes() / (SQE_BYTES + IN_CAPSULE_BYTES) as usize;
        let affordable = u32::try_from(affordable).unwrap_or(u32::MAX);
        let shared = shares_receives(attributes, shared);
        let depths = Depths::new(attributes, affordable, shared);
        let cq = device.create_cq(depths.completions)?;
        let srq = shared
            .then(|| pd.create_srq(depths.receives, 2))
            .transpose()?;
        let places = depths.places(memory.places);
        let lkey = queues.lkey();
        let receives = Receives::new(srq, depths.receives, lkey, &memory.queues, places)?;
        let mut room = Room::new("completions", depths.completions);
        room.take(places * STRANGER_COMPLETIONS)?;
        Ok(Self {
            device: Rc::clone(device),
            pd,
            wire: rdma::Wire::new(cq, depths.completions, receives),
            completions: room,
            data,
            queues,
            strangers,
            zeroes,
        })
    }

    /// Keys of the memory of its queues.
    pub(super) fn keys(&self, memory: &Memory) -> Keys {
        Keys {
            data: self.data.lkey(),
            sinks: self.sinks([&memory.data, &memory.queues]),
            queues: (memory.queues.slab().id(), self.queues.lkey()),
            zeroes: self
                .zeroes
                .as_ref()
                .zip(memory.zeroes.as_ref())
                .map(|(region, slab)| Zeroes {
                    slab: Arc::clone(slab),
                    sge: Sge {
                        addr: region.addr(),
                        len_bytes: TRANSFER_BYTES_MAX,
                        lkey: region.lkey(),
                    },
                }),
        }
    }

    /// Keys of the memory of its connections that are no queue yet.
    pub(super) fn place_keys(&self, memory: &Memory) -> Keys {
        Keys {
            data: self.strangers.lkey(),
            sinks: self.sinks([&memory.strangers; 2]),
            queues: (memory.strangers.slab().id(), self.strangers.lkey()),
            zeroes: None,
        }
    }

    /// How its connections pull data into buffers of these pools.
    fn sinks(&self, pools: [&Pool; 2]) -> Sinks {
        if self.device.attributes().read_sink_needs_remote_write {
            let slabs = pools.map(|pool| Arc::clone(pool.slab()));
            Sinks::Open(Rc::clone(&self.pd), slabs)
        } else {
            Sinks::Closed
        }
    }

    /// Whether [`DevicePort::reserve`] would succeed now. Nothing is taken: a request for a queue
    /// that would not fit is refused at once, and a host that is not known yet holds nothing.
    pub(super) fn check_room(
        &self,
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
        let receives = self.wire.receives();
        receives.missing(entries.into(), extra_bytes, pool)?;
        self.completions.check(completions(entries))
    }

    /// Makes sure that everything a queue of `entries` can have outstanding fits the device and the
    /// memory beside what has been promised to others, and that `extra_bytes` of memory are left
    /// after that. Returns the receives that the queue keeps and posts itself; none with a shared
    /// queue. [`DevicePort::release`] gives everything back.
    pub(super) fn reserve(
        &mut self,
        entries: u16,
        extra_bytes: u32,
        pool: &Pool,
    ) -> Result<Vec<u32>, Refusal> {
        self.check_room(entries, extra_bytes, pool)?;
        let reserved = (self.wire.receives()).reserve(entries.into(), extra_bytes, pool);
        let slots = reserved?;
        match self.completions.take(completions(entries)) {
            Ok(()) => Ok(slots),
            Err(refusal) => {
                self.wire.receives().release(entries, slots);
                Err(refusal)
            }
        }
    }

    /// Promises the completions that a discovery controller's queue of `entries` can have waiting
    /// beyond those of its place; returns how many.
    pub(super) fn keep_place(&mut self, entries: u16) -> Result<u32, Refusal> {
        let completions = discovery_completions(entries);
        self.completions.take(completions)?;
        Ok(completions)
    }

    #[cfg(test)]
    pub(super) fn completions_left(&self) -> u32 {
        self.completions.has - self.completions.promised
    }

    /// A connection with a place is gone, with what it had beside that.
    pub(super) fn leave_place(&mut self, slots: Vec<u32>, completions: u32) {
        self.completions.give_back(completions);
        self.wire.receives().give_back_place(slots);
    }

    /// A queue of `entries` with these receives is gone, or was never made.
    pub(super) fn release(&mut self, entries: u16, receive_slots: Vec<u32>) {
        self.completions.give_back(completions(entries));
        self.wire.receives().release(entries, receive_slots);
    }
}

/// Whether queues share their receives on a device, `wanted` or not; the log says what was wanted.
fn shares_receives(attributes: &DeviceAttributes, wanted: bool) -> bool {
    let device = &attributes.name;
    let shares = wanted && attributes.srq_wr_max > 0;
    if shares {
        tracing::info!(
            device,
            "queues share their receives, as configured, with connections whose host is not known yet"
        );
    } else if wanted {
        tracing::info!(
            device,
            "each queue has receives of its own: the device has no shared receive queues"
        );
    }
    shares
}

/// How deep a device's shared queues are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Depths {
    receives: u32,
    completions: u32,
}

impl Depths {
    /// How many of `wanted` connections that are no queue yet there may be: what they may have
    /// waiting is at most a quarter of what the device has.
    fn places(self, wanted: u32) -> u32 {
        let receives = self.receives / (4 * STRANGER_RECEIVES);
        let completions = self.completions / (4 * STRANGER_COMPLETIONS);
        wanted.min(receives).min(completions).max(1)
    }

    /// For memory of `affordable` receives. Where the device has fewer of something, that is
    /// logged.
    fn new(attributes: &DeviceAttributes, affordable: u32, shared: bool) -> Self {
        let wanted = affordable.clamp(1, RECEIVES_MAX);
        let receives = if shared {
            wanted.min(attributes.srq_wr_max).max(1)
        } else {
            wanted
        };
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

/// How much a device has of something, and how much of it is promised to connections.
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
        self.check(count)?;
        self.promised += count;
        Ok(())
    }

    fn check(&self, count: u32) -> Result<(), Refusal> {
        let left = self.has.saturating_sub(self.promised);
        if count > left {
            let Self { what, has, .. } = self;
            return Err(Refusal::Device(format!(
                "a queue can have {count} {what} waiting, {left} of the device's {has} are left"
            )));
        }
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
    /// Receives and responses of all queues, and the receives of connections that are none yet.
    pub(super) queues: Pool,
    /// Two pages for each connection that is no queue yet: for the data of its Connect, and for its
    /// response. A discovery controller's Admin queue keeps both, and has two more.
    pub(super) strangers: Pool,
    /// For how many connections that are no queue yet there is room.
    pub(super) places: u32,
    /// [`TRANSFER_BYTES_MAX`](crate::limits::TRANSFER_BYTES_MAX) of zeroes to push for reads of
    /// what is known to be zero, where a volume has such LBAs. Nothing ever writes here.
    pub(super) zeroes: Option<Arc<Slab>>,
}

#[cfg(test)]
pub(super) mod tests {
    use std::net::{IpAddr, Ipv4Addr, SocketAddr};

    use capstan_memory::{PAGE_BYTES, Pages};
    use capstan_rdma::contract::{CmEvent, ConnectionManager};
    use capstan_rdma::loopback::{Network, attributes};

    use super::*;

    pub(in crate::io_path) const HERE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));

    /// Memory with two places, of two receives each.
    pub(in crate::io_path) fn memory() -> Memory {
        let pool = |bytes| Pool::new(bytes, Pages::Ordinary).unwrap();
        Memory {
            data: pool(4 << 20),
            queues: pool(4 << 20),
            strangers: pool(4 * PAGE_BYTES),
            places: 2,
            zeroes: None,
        }
    }

    /// The next event of one of two ends of a network.
    pub(in crate::io_path) fn next(network: &Network, cm: &mut dyn ConnectionManager) -> CmEvent {
        loop {
            if let Some(event) = cm.poll(network.now_us()) {
                return event;
            }
            network.advance_to(network.next_deadline_us().expect("something happens"));
        }
    }

    /// A port of a device with these limits and memory of 4 MiB, whose queues share their receives.
    fn port(attributes: DeviceAttributes) -> (DevicePort, Memory) {
        let network = Network::new(1);
        let cm = network.provider(&[HERE], attributes).unwrap();
        let mut cm = cm.manager().unwrap();
        let id = cm.resolve(SocketAddr::new(HERE, 1), None, 1, 0).unwrap();
        next(&network, &mut cm);
        let memory = memory();
        let device = cm.device(id).unwrap();
        (DevicePort::open(&device, &memory, true).unwrap(), memory)
    }

    fn refusal(port: &mut DevicePort, entries: u16, memory: &Memory) -> String {
        let refused = port.reserve(entries, 0, &memory.queues);
        refused.expect_err("there is no room").to_string()
    }

    #[test]
    fn queues_are_as_deep_as_the_memory_and_no_deeper_than_the_device() {
        let depths = Depths::new(&attributes(), 12_192, true);
        assert_eq!(
            (depths.receives, depths.completions),
            (12_192, 381 * 190 + 64 * 101)
        );
        // Soft-RoCE of Linux 6.12 has completion queues of 32,767 entries.
        let soft = DeviceAttributes {
            cqe_max: 32_767,
            srq_wr_max: 10_000,
            ..attributes()
        };
        let depths = Depths::new(&soft, 12_192, true);
        assert_eq!((depths.receives, depths.completions), (10_000, 32_767));
        let all = Depths::new(&attributes(), u32::MAX, true);
        assert_eq!(all.receives, 32_768, "what the loopback device has");
        let own = Depths::new(&soft, 12_192, false);
        assert_eq!((own.receives, own.completions), (12_192, 32_767));
    }

    #[test]
    fn what_the_completion_queue_does_not_hold_is_refused_until_there_is_room() {
        // 32 receives and 158 work requests of one queue, and 19 for each of two places.
        let (mut port, memory) = port(DeviceAttributes {
            cqe_max: 238,
            ..attributes()
        });
        port.reserve(32, 0, &memory.queues).unwrap();
        let refused = refusal(&mut port, 32, &memory);
        assert!(
            refused.contains("190 completions waiting, 10 of the device's 238"),
            "{refused}"
        );
        port.release(32, Vec::new());
        port.reserve(32, 0, &memory.queues).unwrap();
    }

    #[test]
    fn a_queue_refused_for_memory_leaves_its_completions_to_others() {
        let (mut port, memory) = port(DeviceAttributes {
            cqe_max: 238,
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
            refused.contains("64 entries needs 286 work requests"),
            "{refused}"
        );
        port.reserve(32, 0, &memory.queues).unwrap();
    }

    #[test]
    fn a_connection_that_is_no_queue_yet_takes_nothing_of_those_who_are() {
        let (mut port, memory) = port(attributes());
        let before = memory.queues.free_bytes();
        for _ in 0..2 {
            let slots = port.wire.receives().take_place().expect("two places");
            assert!(slots.is_empty(), "they are shared");
        }
        assert_eq!(port.wire.receives().take_place(), None);
        assert_eq!(memory.queues.free_bytes(), before);
        // It becomes a queue: it has what it needs, and another one its place.
        let slots = port.reserve(32, 0, &memory.queues).unwrap();
        port.wire.receives().leave_place(slots);
        assert!(memory.queues.free_bytes() < before);
        assert!(port.wire.receives().take_place().is_some());
        port.wire.receives().give_back_place(Vec::new());
    }

    #[test]
    fn what_strangers_may_have_waiting_is_a_part_of_what_the_device_has() {
        let depths = Depths {
            receives: 1000,
            completions: 40_000,
        };
        assert_eq!(depths.places(352), 125);
        assert_eq!(depths.places(100), 100);
        let small = Depths {
            receives: 4,
            completions: 4,
        };
        assert_eq!(small.places(352), 1);
    }
}
