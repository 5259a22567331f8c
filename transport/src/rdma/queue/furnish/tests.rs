use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;

use capstan_rdma::contract::{
    Access, CmId, CompletionQueue, ConnectParam, ConnectionManager, MemoryRegion, PrivateData,
    ProtectionDomain, QpConfig, QueuePair, ReceiveSource, SendOp, SendWr, Sge,
};
use capstan_rdma::loopback::{Network, attributes};
use zerocopy::IntoBytes;

use super::super::super::port::tests::{HERE, memory, next};
use super::super::super::port::{DevicePlace, DevicePort};
use super::*;
use crate::data::CapsuleData;
use crate::limits::STRANGER_COMPLETIONS;
use crate::queue::{Capsule, Event, QueueId, Queues};

const ENTRIES: u16 = 32;
const QUEUE: QueueId = QueueId(0);
/// An SQE, and the longest list.
const CAPSULE_BYTES: u32 = SQE_BYTES + SGL_LIST_BYTES;

fn queue_pair(
    (cm, id): (&mut dyn ConnectionManager, CmId),
    (pd, cq): (&Rc<dyn ProtectionDomain>, &Rc<dyn CompletionQueue>),
    receives: ReceiveSource,
) -> Box<dyn QueuePair> {
    let config = QpConfig {
        send_cq: Rc::clone(cq),
        recv_cq: Rc::clone(cq),
        send_wr_max: ENTRIES.into(),
        receives,
        send_sge_max: 1,
        recv_sge_max: 2,
        inline_bytes: 0,
    };
    cm.create_qp(id, pd, &config).unwrap()
}

/// A connection that was accepted, and its other end, which waits for no receive.
struct Accepted {
    network: Network,
    host: Box<dyn QueuePair>,
    /// A capsule of the host for each command, of one byte again and again.
    capsules: (Buffer, Rc<dyn MemoryRegion>),
    queue: RdmaQueue,
    port: DevicePort,
    memory: Memory,
    /// A queue of a permitted host was there already.
    _other: Holdings,
    _ends: [Box<dyn ConnectionManager>; 2],
}

impl Accepted {
    /// By a device whose queues share their receives, or have their own.
    fn new(shared: bool) -> Self {
        let network = Network::new(1);
        let there = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
        let [mut cm, mut host_cm] = [HERE, there].map(|address| {
            let provider = network.provider(&[address], attributes()).unwrap();
            provider.manager().unwrap()
        });
        let (_, at) = cm.listen(SocketAddr::new(HERE, 4420), 1).unwrap();
        let from = host_cm.resolve(at, None, 1_000_000, 0).unwrap();
        next(&network, &mut host_cm);
        let device = host_cm.device(from).unwrap();
        let (pd, cq) = (device.allocate_pd().unwrap(), device.create_cq(64).unwrap());
        let receives = ReceiveSource::Own(ENTRIES.into());
        let host = queue_pair((&mut host_cm, from), (&pd, &cq), receives);
        let host_memory = memory();
        let slab = host_memory.data.slab();
        let region = pd.register(slab, 0, slab.len_bytes(), Access::LOCAL_WRITE);
        let capsules = host_memory.data.take(u32::from(ENTRIES) * CAPSULE_BYTES);
        let param = ConnectParam {
            private_data: PrivateData::EMPTY,
            responder_resources: 1,
            initiator_depth: 1,
            rnr_retry_count: 0,
        };
        host_cm.connect(from, &param, 1_000_000, 0).unwrap();
        let id = next(&network, &mut cm).id;

        let memory = memory();
        let device = cm.device(id).unwrap();
        let mut port = DevicePort::open(device, &memory, shared).unwrap();
        let other = port.wire.reserve(ENTRIES, &memory.queues).unwrap();
        let DevicePlace {
            holdings,
            responses,
            keys,
        } = port.take_place(ENTRIES, &memory).unwrap();
        let receives = port.wire.receives().source(ENTRIES);
        let qp = queue_pair((&mut cm, id), (port.pd(), port.wire.cq()), receives);
        let mut queue = RdmaQueue::new(qp.into(), responses, keys, holdings);
        queue.post_receives().unwrap();
        cm.accept(id, &param).unwrap();
        next(&network, &mut host_cm);
        port.wire.add(QUEUE, &mut queue);
        Self {
            network,
            host,
            capsules: (capsules.unwrap(), region.unwrap()),
            queue,
            port,
            memory,
            _other: other,
            _ends: [Box::new(cm), Box::new(host_cm)],
        }
    }

    /// The host sends as many capsules as its queue has entries before this side looks; returns
    /// those that have found a receive.
    fn flood(&mut self) -> Vec<Capsule> {
        let (capsules, region) = &mut self.capsules;
        for nth in 0..ENTRIES {
            let at = u32::from(nth) * CAPSULE_BYTES;
            capsules.copy_from(at as usize, &capsule(nth));
            let op = SendOp::Send {
                invalidate: None,
                solicited: false,
            };
            let sge = Sge {
                addr: capsules.addr() + u64::from(at),
                len_bytes: CAPSULE_BYTES,
                lkey: region.lkey(),
            };
            self.host
                .post_send(&SendWr {
                    wr_id: 0,
                    op,
                    sges: &[sge],
                    signaled: false,
                    fence: false,
                })
                .unwrap();
        }
        self.host.ring_doorbell();
        while let Some(then_us) = self.network.next_deadline_us() {
            self.network.advance_to(then_us);
        }
        let (wire, mut queues) = (&mut self.port.wire, One(&mut self.queue));
        assert!(wire.poll(&mut queues) > 0);
        let events = std::iter::from_fn(|| wire.next_event(&mut queues));
        let capsules = events.filter_map(|(id, event)| match event {
            Event::Capsule(capsule) if id == QUEUE => Some(capsule),
            _ => None,
        });
        capsules.collect()
    }

    /// Completions that are promised to no queue, and receives for more queues.
    fn left(&self) -> (u32, usize) {
        let shared = self.port.wire.shared();
        let receives = self.queue.receives_left(&self.memory.queues);
        (shared.completions().left(), receives)
    }
}

/// The queue of the connection.
struct One<'a>(&'a mut RdmaQueue);

impl Queues<RdmaQueue> for One<'_> {
    fn queue(&mut self, id: QueueId) -> Option<&mut RdmaQueue> {
        (id == QUEUE).then_some(&mut *self.0)
    }
}

fn bytes(capsule: &Capsule) -> Vec<u8> {
    let data = match &capsule.data {
        CapsuleData::Landed(landed) => landed.bytes(),
        CapsuleData::Copied(bytes) => bytes,
        CapsuleData::None => &[],
        CapsuleData::InPlace(_) => panic!("{capsule:?}"),
    };
    [capsule.sqe.as_bytes(), data].concat()
}

/// The `nth` capsule that the host sends.
fn capsule(nth: u16) -> Vec<u8> {
    vec![u8::try_from(nth).unwrap(); CAPSULE_BYTES as usize]
}

fn all_of(taken: &[Capsule]) -> BTreeSet<Vec<u8>> {
    taken.iter().map(bytes).collect()
}

#[test]
fn a_stranger_takes_no_receive_but_those_of_its_place() {
    let mut accepted = Accepted::new(false);
    assert_eq!(accepted.flood().len(), STRANGER_RECEIVES as usize);
}

#[test]
fn a_discovery_controllers_queue_has_a_receive_for_each_entry() {
    let mut accepted = Accepted::new(false);
    let queues_bytes = accepted.memory.queues.free_bytes();
    let kept = accepted.queue.keep_place(ENTRIES, &accepted.memory);
    kept.unwrap();
    assert!(accepted.queue.has_place());
    let taken = accepted.flood();
    assert_eq!(taken.len(), usize::from(ENTRIES));
    assert_eq!(accepted.memory.queues.free_bytes(), queues_bytes);
    // None is where another one has arrived.
    assert_eq!(all_of(&taken), (0..ENTRIES).map(capsule).collect());
}

#[test]
fn the_completions_of_a_discovery_controllers_queue_are_promised_to_it() {
    let mut accepted = Accepted::new(false);
    let (before, _) = accepted.left();
    let kept = accepted.queue.keep_place(ENTRIES, &accepted.memory);
    kept.unwrap();
    let (after, _) = accepted.left();
    // 32 receives, 71 responses, and the data of one command in 16 pieces and a request.
    assert_eq!(before - after + STRANGER_COMPLETIONS, 32 + 71 + 16 + 1);
    let Accepted { queue, port, .. } = accepted;
    drop(queue);
    assert_eq!(port.wire.shared().completions().left(), before);
}

#[test]
fn a_permitted_hosts_queue_has_a_receive_for_each_entry_and_leaves_its_place() {
    for shared in [false, true] {
        let mut accepted = Accepted::new(shared);
        let before = accepted.left();
        let other = accepted.port.take_place(ENTRIES, &accepted.memory).unwrap();
        let taken = accepted.port.take_place(ENTRIES, &accepted.memory);
        assert!(matches!(taken, Err(NoResources::Places)));
        let spare = accepted.queue.furnish(ENTRIES, &accepted.memory).unwrap();
        assert!(!accepted.queue.has_place());
        accepted.port.take_place(ENTRIES, &accepted.memory).unwrap();
        let again = accepted.queue.furnish(ENTRIES, &accepted.memory);
        assert!(matches!(again, Err(NoResources::Rdma(_))));
        let taken = accepted.flood();
        assert_eq!(all_of(&taken), (0..ENTRIES).map(capsule).collect());
        for Capsule { data, .. } in taken {
            accepted.queue.give_back(data);
        }
        // Two more for its responses and its spare buffer.
        let (completions, receives) = accepted.left();
        assert_eq!(receives + usize::from(ENTRIES) + 2, before.1);
        assert!(completions < before.0);
        // What it has serves the next queue.
        let Accepted {
            queue,
            port,
            memory,
            ..
        } = accepted;
        drop((queue, spare, other));
        let shared = port.wire.shared();
        assert_eq!(shared.completions().left(), before.0);
        let left = shared.receives().left(&memory.queues) as usize;
        assert_eq!(left, before.1);
    }
}
