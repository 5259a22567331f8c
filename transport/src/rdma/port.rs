//! A device of a reactor: what all its queues share, the protection domain, the completion queue,
//! the registered slabs and the receives.

use std::rc::Rc;
use std::sync::Arc;

use capstan_memory::Pool;
use capstan_rdma::contract::{
    Access, Device, DeviceAttributes, MemoryRegion, ProtectionDomain, Sge,
};
use capstan_rdma::direct::register_zeroes;

use super::queue::{Keys, Zeroes};
use super::receives::Receives;
use super::room::{Depths, Room};
use super::sinks::Sinks;
use super::wire::Wire;
use crate::limits::{
    IN_CAPSULE_BYTES, SQE_BYTES, STRANGER_COMPLETIONS, completions, discovery_completions, send_wrs,
};
use crate::resources::{Memory, NoResources};

/// One device of a fabric, opened when its first connection arrives. Dropped in the order of its
/// fields, once its connections are gone: first what the device writes with, then the memory.
pub struct DevicePort {
    /// The device itself.
    pub device: Rc<dyn Device>,
    /// The protection domain of everything on it.
    pub pd: Rc<dyn ProtectionDomain>,
    /// What happens on its queues.
    pub wire: Wire,
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

impl DevicePort {
    /// Opens `device`, registers `memory` with it and makes room for queues, which share their
    /// receives where that is wanted and the device can.
    ///
    /// # Errors
    /// The device does not do it, or has too little for one place.
    pub fn open(
        device: &Rc<dyn Device>,
        memory: &Memory,
        shared: bool,
    ) -> Result<Self, NoResources> {
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
            wire: Wire::new(cq, depths.completions, receives),
            completions: room,
            data,
            queues,
            strangers,
            zeroes,
        })
    }

    /// Keys of the memory of its queues.
    #[must_use]
    pub fn keys(&self, memory: &Memory) -> Keys {
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
                        len_bytes: u32::try_from(slab.len_bytes()).unwrap_or(u32::MAX),
                        lkey: region.lkey(),
                    },
                }),
        }
    }

    /// Keys of the memory of its connections that are no queue yet.
    #[must_use]
    pub fn place_keys(&self, memory: &Memory) -> Keys {
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
    ///
    /// # Errors
    /// What is missing.
    pub fn check_room(
        &self,
        entries: u16,
        extra_bytes: u32,
        pool: &Pool,
    ) -> Result<(), NoResources> {
        let (wanted, most) = (send_wrs(entries), self.device.attributes().qp_wr_max);
        if wanted > most {
            return Err(NoResources::Device(format!(
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
    ///
    /// # Errors
    /// What is missing, or the device does not make a receive.
    pub fn reserve(
        &mut self,
        entries: u16,
        extra_bytes: u32,
        pool: &Pool,
    ) -> Result<Vec<u32>, NoResources> {
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
    ///
    /// # Errors
    /// There are not as many left.
    pub fn keep_place(&mut self, entries: u16) -> Result<u32, NoResources> {
        let completions = discovery_completions(entries);
        self.completions.take(completions)?;
        Ok(completions)
    }

    /// Completions that are promised to nobody.
    #[must_use]
    pub fn completions_left(&self) -> u32 {
        self.completions.left()
    }

    /// A connection with a place is gone, with what it had beside that.
    pub fn leave_place(&mut self, slots: Vec<u32>, completions: u32) {
        self.completions.give_back(completions);
        self.wire.receives().give_back_place(slots);
    }

    /// A queue of `entries` with these receives is gone, or was never made.
    pub fn release(&mut self, entries: u16, receive_slots: Vec<u32>) {
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

#[cfg(test)]
pub(crate) mod tests {
    use std::net::{IpAddr, Ipv4Addr, SocketAddr};

    use capstan_memory::{PAGE_BYTES, Pages};
    use capstan_rdma::contract::{CmEvent, ConnectionManager};
    use capstan_rdma::loopback::{Network, attributes};

    use super::*;

    pub(crate) const HERE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));

    /// Memory with two places, of two receives each.
    pub(crate) fn memory() -> Memory {
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
    pub(crate) fn next(network: &Network, cm: &mut dyn ConnectionManager) -> CmEvent {
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
        assert!(
            matches!(refused, Err(NoResources::Memory(_))),
            "{refused:?}"
        );
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
}
