//! A queue of the controller's side over one of the wires, and a host that is a queue pair and
//! knows no rules.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use capstan_memory::{Buffer, Pages, Pool};
use capstan_rdma::contract::{
    Access, CmEventKind, CmId, CompletionQueue, ConnectParam, ConnectionManager, Device,
    MemoryRegion, PrivateData, ProtectionDomain, QpConfig, QueuePair, ReceiveSource, SendOp,
    SendWr, Sge, WcOpcode, WcStatus, WorkCompletion,
};
use capstan_rdma::loopback::{Network, attributes};
use capstan_rdma::{Pair, iwarp};
use capstan_transport::rdma::{Keys, Queue, Receives, Sinks, Wire};
use capstan_transport::{
    Capsule, CapsuleData, EndReason, Event, FenceNumber, KeyedBuffer, Pulled, QueueId, Queues, Tag,
};
use zerocopy::IntoBytes;

/// Entries of the queue.
pub(crate) const ENTRIES: u16 = 8;
/// What the wire calls it.
pub(crate) const QUEUE: QueueId = QueueId(5);
const PATIENCE: Duration = Duration::from_secs(10);
const COMPLETIONS: u32 = 256;

/// A wire under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Over {
    /// RDMA between two machines, in virtual time.
    Loopback,
    /// User-space iWARP over sockets.
    Sockets,
    /// The same through memory that both ends have.
    SharedMemory,
}

/// What has happened on the queue. The data of a capsule has been given back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    Capsule { sqe: Vec<u8>, data: Vec<u8> },
    Pulled(Tag),
    Pushed(Tag),
    Released(Tag),
    Ended(EndReason),
    Fenced(FenceNumber),
    Quiesced,
}

/// One side of the connection. Dropped in this order.
struct End {
    cq: Rc<dyn CompletionQueue>,
    pd: Rc<dyn ProtectionDomain>,
    region: Rc<dyn MemoryRegion>,
    pool: Pool,
    device: Rc<dyn Device>,
}

impl End {
    fn new(device: Rc<dyn Device>, access: Access) -> Self {
        let pool = Pool::new(4 << 20, Pages::Ordinary).expect("memory");
        let pd = device.allocate_pd().expect("a domain");
        let len_bytes = pool.slab().len_bytes();
        Self {
            cq: device.create_cq(COMPLETIONS).expect("a completion queue"),
            region: pd
                .register(pool.slab(), 0, len_bytes, access)
                .expect("a region"),
            pd,
            pool,
            device,
        }
    }

    fn config(&self, receives: ReceiveSource) -> QpConfig {
        QpConfig {
            send_cq: Rc::clone(&self.cq),
            recv_cq: Rc::clone(&self.cq),
            send_wr_max: 64,
            receives,
            send_sge_max: 1,
            recv_sge_max: 2,
        }
    }
}

pub(crate) struct World {
    pub(crate) queue: Option<Queue>,
    host_qp: Option<Pair>,
    pub(crate) wire: Wire,
    controller: End,
    host: End,
    /// Where the host sends from, receives responses, and has the data of commands.
    capsule: Buffer,
    responses: Buffer,
    pub(crate) data: Buffer,
    pub(crate) seen: Vec<Seen>,
    /// Those of pulls that have come.
    pub(crate) sinks: Vec<Buffer>,
    host_seen: Vec<WorkCompletion>,
    cm: Box<dyn ConnectionManager>,
    id: CmId,
    host_cm: Box<dyn ConnectionManager>,
    host_id: CmId,
    network: Option<Network>,
    start: Instant,
    taken: u32,
}

/// The queue, by its name.
struct Named<'a>(&'a mut Option<Queue>);

impl Queues<Queue> for Named<'_> {
    fn queue(&mut self, id: QueueId) -> Option<&mut Queue> {
        assert_eq!(id, QUEUE, "there is one queue");
        self.0.as_mut()
    }
}

type Managers = [Box<dyn ConnectionManager>; 2];

fn managers(over: Over) -> (Option<Network>, Managers, IpAddr) {
    if over == Over::Loopback {
        let network = Network::new(3);
        let at = |last| IpAddr::V4(Ipv4Addr::new(10, 0, 0, last));
        let manager = |last| -> Box<dyn ConnectionManager> {
            let provider = network.provider(&[at(last)], attributes());
            Box::new(provider.expect("a device").manager().expect("a manager"))
        };
        let both = [manager(1), manager(2)];
        return (Some(network), both, at(1));
    }
    let manager = || {
        let provider = iwarp::Provider::new(iwarp::Config {
            same_host: over == Over::SharedMemory,
            ..iwarp::Config::default()
        });
        let provider = provider.expect("a device");
        provider.connection_manager().expect("a manager")
    };
    (None, [manager(), manager()], Ipv4Addr::LOCALHOST.into())
}

impl World {
    /// A connection whose host is there, and which the controller has only accepted.
    pub(crate) fn accepted(over: Over) -> Self {
        let (network, [mut cm, mut host_cm], address) = managers(over);
        let start = Instant::now();
        let now_us = || match &network {
            Some(network) => network.now_us(),
            None => u64::try_from(start.elapsed().as_micros()).expect("not so long"),
        };
        let next = |cm: &mut Box<dyn ConnectionManager>, other: &mut Box<dyn ConnectionManager>| loop {
            assert!(start.elapsed() < PATIENCE, "no event");
            if let Some(event) = cm.poll(now_us()) {
                break event;
            }
            other.poll(now_us());
            advance(network.as_ref());
        };
        let (_, at) = cm.listen(SocketAddr::new(address, 0), 4).expect("listens");
        let host_id = host_cm
            .resolve(at, None, 1_000_000, now_us())
            .expect("resolves");
        next(&mut host_cm, &mut cm);
        let host = End::new(host_cm.device(host_id).expect("a device"), Access::all());
        let config = host.config(ReceiveSource::Own(64));
        let host_qp = host_cm
            .create_qp(host_id, &host.pd, &config)
            .expect("a queue pair");
        let param = ConnectParam {
            private_data: PrivateData::EMPTY,
            responder_resources: 4,
            initiator_depth: 4,
            rnr_retry_count: 7,
        };
        host_cm
            .connect(host_id, &param, 5_000_000, now_us())
            .expect("connects");
        let request = next(&mut cm, &mut host_cm);
        assert!(matches!(request.kind, CmEventKind::ConnectRequest { .. }));
        let id = request.id;

        let controller = End::new(cm.device(id).expect("a device"), Access::LOCAL_WRITE);
        let (pool, lkey) = (&controller.pool, controller.region.lkey());
        let receives = Receives::new(None, 64, lkey, pool, 0).expect("receives");
        let cq = Rc::clone(&controller.cq);
        let mut wire = Wire::new(cq, COMPLETIONS, receives);
        let slots = wire
            .receives()
            .reserve(ENTRIES.into(), 0, pool)
            .expect("receives");
        let config = controller.config(wire.receives().source(ENTRIES));
        let qp = cm
            .create_qp(id, &controller.pd, &config)
            .expect("a queue pair");
        let open = controller.device.attributes().read_sink_needs_remote_write;
        let slab = pool.slab();
        let keys = Keys {
            data: lkey,
            sinks: if open {
                let slabs = [slab, slab].map(Arc::clone);
                Sinks::Open(Rc::clone(&controller.pd), slabs)
            } else {
                Sinks::Closed
            },
            queues: (slab.id(), lkey),
            zeroes: None,
        };
        let responses = pool.take(4096).expect("memory");
        let mut queue = Queue::new(qp.into(), responses, keys, wire.shared_receives());
        queue.post_receives(&slots).expect("room");
        cm.accept(id, &param).expect("accepts");
        queue.accepted();
        wire.add(QUEUE, &queue);

        let take = |bytes| host.pool.take(bytes).expect("memory");
        let mut world = Self {
            capsule: take(16 << 10),
            responses: take(4096),
            data: take(1 << 20),
            queue: Some(queue),
            host_qp: Some(host_qp.into()),
            wire,
            controller,
            host,
            seen: Vec::new(),
            sinks: Vec::new(),
            host_seen: Vec::new(),
            cm,
            id,
            host_cm,
            host_id,
            network,
            start,
            taken: 0,
        };
        world.until("the host is connected", |world| {
            let now_us = world.now_us();
            advance(world.network.as_ref());
            world.turn_host();
            let event = world.host_cm.poll(now_us);
            event.is_some_and(|event| matches!(event.kind, CmEventKind::Established { .. }))
        });
        for nth in 0..32 {
            let sge = world.host_sge(&world.responses, nth * 16, 16);
            let qp = world.host_qp.as_mut().expect("there");
            qp.post_recv(nth.into(), &[sge]).expect("room");
        }
        world
    }

    /// The same, when both sides have taken it up.
    pub(crate) fn new(over: Over) -> Self {
        let mut world = Self::accepted(over);
        world.send(&[0; 64]);
        world.until("the first capsule", |world| {
            world.turn();
            !world.seen.is_empty()
        });
        world.seen.clear();
        world
    }

    fn now_us(&self) -> u64 {
        match &self.network {
            Some(network) => network.now_us(),
            None => u64::try_from(self.start.elapsed().as_micros()).expect("not so long"),
        }
    }

    pub(crate) fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let start = Instant::now();
        while !done(self) {
            let Self {
                seen, host_seen, ..
            } = self;
            assert!(
                start.elapsed() < PATIENCE,
                "{what}: {seen:?}, {host_seen:?}"
            );
        }
    }

    /// Lets both sides go on once.
    pub(crate) fn turn(&mut self) {
        self.turn_host();
        self.turn_controller();
        advance(self.network.as_ref());
    }

    fn turn_host(&mut self) {
        let mut completions = [WorkCompletion::EMPTY; 16];
        let count = self.host.cq.poll(&mut completions);
        self.host_seen.extend_from_slice(&completions[..count]);
        let now_us = self.now_us();
        while self.host_qp.is_none() && self.host_cm.poll(now_us).is_some() {}
    }

    pub(crate) fn turn_controller(&mut self) {
        let now_us = self.now_us();
        while self.cm.poll(now_us).is_some() {}
        self.wire.poll(&mut Named(&mut self.queue));
        while let Some((id, event)) = self.wire.next_event(&mut Named(&mut self.queue)) {
            assert_eq!(id, QUEUE);
            let Some(queue) = &mut self.queue else {
                panic!("{event:?} of a queue that was removed");
            };
            match event {
                Event::Capsule(capsule) => {
                    self.taken += 1;
                    // Where it may stay and where it came, in turn.
                    let stays = self.taken.is_multiple_of(2);
                    self.seen.push(taken(queue, capsule, stays));
                }
                Event::Pulled(Pulled { tag, sink, intact }) => {
                    assert!(intact);
                    self.sinks.push(sink);
                    self.seen.push(Seen::Pulled(tag));
                }
                Event::Pushed(tag) => self.seen.push(Seen::Pushed(tag)),
                Event::Released => {
                    let tags = std::iter::from_fn(|| queue.poll_released());
                    self.seen.extend(tags.map(Seen::Released));
                }
                Event::Room => {}
                Event::Ended(why) => self.seen.push(Seen::Ended(why)),
                Event::Fenced(number) => self.seen.push(Seen::Fenced(number)),
                Event::Quiesced => self.seen.push(Seen::Quiesced),
            }
        }
    }

    /// Turns both until that is seen.
    pub(crate) fn see(&mut self, what: &Seen) {
        self.until(&format!("{what:?}"), |world| {
            world.turn();
            world.seen.contains(what)
        });
    }

    pub(crate) fn queue(&mut self) -> &mut Queue {
        self.queue.as_mut().expect("it was not removed")
    }

    /// A buffer of the controller.
    pub(crate) fn buffer(&self, len_bytes: u32) -> Buffer {
        self.controller.pool.take(len_bytes).expect("memory")
    }

    fn host_sge(&self, buffer: &Buffer, offset_bytes: u32, len_bytes: u32) -> Sge {
        Sge {
            addr: buffer.addr() + u64::from(offset_bytes),
            len_bytes,
            lkey: self.host.region.lkey(),
        }
    }

    /// `len_bytes` of the host's data from an offset on.
    pub(crate) fn keyed(&self, offset_bytes: u32, len_bytes: u32) -> KeyedBuffer {
        KeyedBuffer {
            address: self.data.addr() + u64::from(offset_bytes),
            rkey: self.host.region.rkey().0,
            len_bytes,
        }
    }

    /// The host sends a message, and knows that it has left.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.capsule.copy_from(0, bytes);
        let len_bytes = u32::try_from(bytes.len()).expect("a few");
        let sge = self.host_sge(&self.capsule, 0, len_bytes);
        let qp = self.host_qp.as_mut().expect("the host is there");
        let op = SendOp::Send {
            invalidate: None,
            solicited: false,
        };
        let send = SendWr {
            wr_id: 0,
            op,
            sges: &[sge],
            signaled: true,
            fence: false,
        };
        qp.post_send(&send).expect("room");
        qp.ring_doorbell();
        self.until("the host's message leaves", |world| {
            world.turn_host();
            advance(world.network.as_ref());
            let is_it = |wc: &WorkCompletion| wc.opcode == WcOpcode::Send;
            let at = world.host_seen.iter().position(is_it);
            let sent = at.map(|at| world.host_seen.remove(at));
            sent.is_some_and(|wc| wc.status == WcStatus::Success)
        });
    }

    /// Turns both until the host has so many responses; returns them, 16 bytes each.
    pub(crate) fn responses(&mut self, count: usize) -> Vec<Vec<u8>> {
        let is_it =
            |wc: &&WorkCompletion| wc.opcode == WcOpcode::Recv && wc.status == WcStatus::Success;
        self.until("responses", |world| {
            world.turn();
            world.host_seen.iter().filter(is_it).count() >= count
        });
        let slots = self.host_seen.iter().filter(is_it).map(|wc| wc.wr_id);
        let response = |slot| {
            let mut bytes = vec![0; 16];
            let at = usize::try_from(slot).expect("small") * 16;
            self.responses.copy_to(at, &mut bytes);
            bytes
        };
        slots.map(response).collect()
    }

    /// The host is gone, without a word.
    pub(crate) fn host_ends(&mut self) {
        self.host_cm.abort(self.host_id);
        self.host_qp = None;
        self.host_cm.destroy(self.host_id);
    }

    /// The controller ends the connection.
    pub(crate) fn end(&mut self) {
        let queue = self.queue.as_mut().expect("it was not removed");
        self.wire.end(QUEUE, queue);
        self.cm.disconnect(self.id);
    }

    pub(crate) fn fence(&mut self, number: FenceNumber) {
        let queue = self.queue.as_mut().expect("it was not removed");
        self.wire.fence(QUEUE, queue, number);
    }

    pub(crate) fn remove(&mut self) {
        if let Some(queue) = self.queue.take() {
            self.wire.remove(QUEUE, &queue);
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // Queue pairs go before their connections.
        self.remove();
        self.host_qp = None;
    }
}

fn advance(network: Option<&Network>) {
    if let Some(network) = network
        && let Some(then_us) = network.next_deadline_us()
    {
        network.advance_to(then_us);
    }
}

/// Takes the data of a capsule, and gives it back.
fn taken(queue: &mut Queue, capsule: Capsule, stays: bool) -> Seen {
    let sqe = capsule.sqe.as_bytes().to_vec();
    let data = match capsule.data {
        CapsuleData::InPlace(in_place) if !stays => {
            let mut data = vec![0; in_place.len_bytes as usize];
            assert!(queue.consume(in_place, &mut |bytes| {
                bytes.copy_to(&mut data);
                true
            }));
            data
        }
        other => {
            let landed = match other {
                CapsuleData::InPlace(in_place) => {
                    CapsuleData::Landed(queue.land(in_place).expect("it has not ended"))
                }
                other => other,
            };
            let data = landed.bytes().to_vec();
            queue.give_back(landed);
            data
        }
    };
    Seen::Capsule { sqe, data }
}
