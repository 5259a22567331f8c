//! A device of a reactor: what all its queues share, the completion queue, the registered slabs and
//! the receives.

use std::rc::Rc;

use capstan_memory::Buffer;
use capstan_rdma::contract::{Device, DeviceAttributes, ProtectionDomain};
use capstan_rdma::direct::works_in_kernel;

use super::holdings::Holdings;
use super::queue::{Keys, own_bytes};
use super::receives::Receives;
use super::registered::Registered;
use super::room::Depths;
use super::wire::RdmaWire;
use crate::limits::{
    IN_CAPSULE_BYTES, INITIATOR_DEPTH_MAX, PLACE_RESPONSE_BYTES, SQE_BYTES, STRANGER_COMPLETIONS,
    send_wrs,
};
use crate::resources::{Memory, NoResources};

/// One device of a provider, opened when its first connection arrives. Dropped in the order of its
/// fields, once its connections are gone: first what the device writes with, then the memory.
pub(crate) struct DevicePort {
    pub(crate) wire: RdmaWire,
    registered: Rc<Registered>,
    device: Rc<dyn Device>,
}

/// What a connection has that is no queue yet.
pub(crate) struct DevicePlace {
    pub(crate) holdings: Holdings,
    /// Memory for its response.
    pub(crate) responses: Buffer,
    pub(crate) keys: Keys,
}

impl DevicePort {
    /// Opens `device`, registers `memory` with it and makes room for queues, which share their
    /// receives where that is wanted and the device can.
    ///
    /// # Errors
    /// The device does not do it, or has too little for one place.
    pub(crate) fn open(
        device: Rc<dyn Device>,
        memory: &Memory,
        shared: bool,
    ) -> Result<Self, NoResources> {
        let attributes = device.attributes();
        let registered = Registered::new(&*device, memory)?;
        // No more than the whole slab could serve.
        let affordable = memory.queues.slab().len_bytes() / (SQE_BYTES + IN_CAPSULE_BYTES) as usize;
        let affordable = u32::try_from(affordable).unwrap_or(u32::MAX);
        let shared = shares_receives(attributes, shared);
        let depths = Depths::new(attributes, affordable, shared);
        let cq = device.create_cq(depths.completions)?;
        let srq = shared
            .then(|| registered.pd().create_srq(depths.receives, 2))
            .transpose()?;
        let places = depths.places(memory.places);
        let (_, lkey) = registered.keys().queues;
        let receives = Receives::new(srq, depths.receives, lkey, &memory.queues, places)?;
        let wire = RdmaWire::new(cq, depths.completions, receives);
        (wire.shared().completions()).take(places * STRANGER_COMPLETIONS)?;
        Ok(Self {
            wire,
            registered: Rc::new(registered),
            device,
        })
    }

    /// Whether it is that of `device`.
    pub(crate) fn is_of(&self, device: &Rc<dyn Device>) -> bool {
        Rc::ptr_eq(&self.device, device)
    }

    /// The protection domain of its queue pairs.
    pub(crate) fn pd(&self) -> &Rc<dyn ProtectionDomain> {
        self.registered.pd()
    }

    /// RDMA READs that one of its queue pairs may have outstanding.
    pub(crate) fn pulls_max(&self) -> u8 {
        INITIATOR_DEPTH_MAX.min(self.device.attributes().initiator_depth_max)
    }

    /// Whether its work is done in the kernel, and there may be some.
    pub(crate) fn waits_for_kernel(&self) -> bool {
        works_in_kernel(self.device.attributes()) && !self.wire.is_empty()
    }

    /// Whether it can be closed: its device was removed, and its connections are gone. The log says
    /// so.
    pub(crate) fn is_over(&self) -> bool {
        let is_over = self.device.is_removed() && self.wire.is_empty();
        if is_over {
            let device = &self.device.attributes().name;
            tracing::info!(device, "closed the RDMA device that was removed");
        }
        is_over
    }

    /// Takes a place for a connection that is to become a queue of `entries`, if there is room for
    /// such a queue now. Of that nothing is taken: a request for a queue that would not fit is
    /// refused at once, and a host that is not known yet holds nothing.
    ///
    /// # Errors
    /// What is missing.
    pub(crate) fn take_place(
        &self,
        entries: u16,
        memory: &Memory,
    ) -> Result<DevicePlace, NoResources> {
        let (wanted, most) = (send_wrs(entries), self.device.attributes().qp_wr_max);
        if wanted > most {
            return Err(NoResources::Device(format!(
                "a queue of {entries} entries needs {wanted} work requests, a queue pair of the \
                 device takes {most}"
            )));
        }
        let shared = self.wire.shared();
        Holdings::check(shared, entries, own_bytes(entries), &memory.queues)?;
        let holdings = Holdings::place(shared, &self.registered)?;
        let responses = memory.strangers.take(PLACE_RESPONSE_BYTES);
        Ok(DevicePlace {
            holdings,
            responses: responses.ok_or(NoResources::Places)?,
            keys: self.registered.place_keys(),
        })
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
pub(super) mod tests {
    use std::net::{IpAddr, Ipv4Addr, SocketAddr};

    use capstan_memory::{PAGE_BYTES, Pages, Pool};
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
    pub(in super::super) fn next(network: &Network, cm: &mut dyn ConnectionManager) -> CmEvent {
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
        (DevicePort::open(device, &memory, true).unwrap(), memory)
    }

    fn refusal<T>(refused: Result<T, NoResources>) -> String {
        refused.err().expect("there is no room").to_string()
    }

    #[test]
    fn what_the_completion_queue_does_not_hold_is_refused_until_there_is_room() {
        // 32 receives and 158 work requests of one queue, and 19 for each of two places.
        let (port, memory) = port(DeviceAttributes {
            cqe_max: 238,
            ..attributes()
        });
        let held = port.wire.reserve(32, &memory.queues).unwrap();
        let refused = refusal(port.wire.reserve(32, &memory.queues));
        assert!(
            refused.contains("190 completions waiting, 10 of the device's 238"),
            "{refused}"
        );
        drop(held);
        port.wire.reserve(32, &memory.queues).unwrap();
    }

    #[test]
    fn a_queue_refused_for_memory_leaves_its_completions_to_others() {
        let (port, memory) = port(DeviceAttributes {
            cqe_max: 238,
            ..attributes()
        });
        let refused = Holdings::queue(port.wire.shared(), 32, 5 << 20, &memory.queues);
        assert!(matches!(refused, Err(NoResources::Memory(_))));
        port.wire.reserve(32, &memory.queues).unwrap();
    }

    #[test]
    fn a_queue_deeper_than_the_devices_queue_pairs_is_refused() {
        let (port, memory) = port(DeviceAttributes {
            qp_wr_max: 200,
            ..attributes()
        });
        let refused = refusal(port.take_place(64, &memory));
        assert!(
            refused.contains("64 entries needs 286 work requests"),
            "{refused}"
        );
        port.take_place(32, &memory).unwrap();
    }

    #[test]
    fn a_connection_that_is_no_queue_yet_takes_nothing_of_those_who_are() {
        let (port, memory) = port(attributes());
        let before = memory.queues.free_bytes();
        let left = port.wire.shared().completions().left();
        let mut places = [0; 2].map(|_| port.take_place(32, &memory).expect("two places"));
        for place in &places {
            assert!(place.holdings.receives().is_empty(), "they are shared");
        }
        let refused = port.take_place(32, &memory);
        assert!(matches!(refused, Err(NoResources::Places)));
        assert_eq!(memory.queues.free_bytes(), before);
        assert_eq!(port.wire.shared().completions().left(), left);
        // It becomes a queue: it has what it needs, and another one its place.
        let reserved = port.wire.reserve(32, &memory.queues).unwrap();
        assert!(memory.queues.free_bytes() < before);
        let [first, _] = &mut places;
        assert!(first.holdings.leave_place(reserved).is_empty());
        assert!(!first.holdings.is_place());
        assert!(port.take_place(32, &memory).is_ok());
        drop(places);
        assert_eq!(port.wire.shared().completions().left(), left);
    }
}
