//! RDMA: a wire of the controller's side, and a host that is a queue pair.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use capstan_memory::{Buffer, Pages, Pool};
use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::opcode::IoOpcode;
use capstan_nvme_proto::sgl::{Sgl, SglBase};
use capstan_nvme_proto::sqe::Sqe;
use capstan_nvme_proto::transfer::DataTransfer;
use capstan_rdma::Pair;
use capstan_rdma::contract::{
    Access, CmEventKind, CmId, ConnectionManager, QueuePair, ReceiveSource, SendOp, SendWr,
    WcOpcode, WcStatus, WorkCompletion,
};
use capstan_transport::rdma::{Keys, RdmaQueue, RdmaWire, Receives, Sinks, Zeroes, host_memory};
use capstan_transport::{CapsuleData, End, HostMemory, Queue};
use zerocopy::IntoBytes;

use super::harness::{Clock, PARAM, PeerEnd, Rdma, Side, managers};
use super::over::{Answers, Ends, LocalEnd, LocalEvent};
use super::world::{DATA_BYTES, ENTRIES, Named, PATIENCE, QUEUE};

const COMPLETIONS: u32 = 256;
const POOL_BYTES: usize = 4 << 20;
pub(crate) const ZEROES_BYTES: u32 = 64 << 10;
/// How long a message is on its way whose Send has completed.
const ON_ITS_WAY: Duration = Duration::from_millis(10);
/// Receives of the host for responses.
const RESPONSES: u32 = 32;

pub(crate) struct RdmaEnds {
    host_qp: Option<Pair>,
    wire: RdmaWire,
    controller: Side,
    /// What the wire and the queue have of the controller's memory.
    resting_bytes: usize,
    /// Kept as long as the queue pushes from it.
    _zeroes: Buffer,
    host: Side,
    /// Where the host sends from, receives responses, and has the data of commands.
    capsule: Buffer,
    responses: Buffer,
    data: Buffer,
    host_seen: Vec<WorkCompletion>,
    host_reads: bool,
    cm: Box<dyn ConnectionManager>,
    id: CmId,
    /// The connection is gone, and no side was told.
    is_gone: bool,
    host_cm: Box<dyn ConnectionManager>,
    host_id: CmId,
    clock: Clock,
    rdma: Rdma,
}

impl RdmaEnds {
    /// A connection whose host is there, and which the controller has only accepted.
    pub(crate) fn accepted(rdma: Rdma) -> (Self, Queue) {
        let (clock, [mut cm, mut host_cm], at) = managers(rdma);
        let start = Instant::now();
        let next = |cm: &mut Box<dyn ConnectionManager>, other: &mut Box<dyn ConnectionManager>| loop {
            assert!(start.elapsed() < PATIENCE, "no event");
            if let Some(event) = cm.poll(clock.now_us()) {
                break event;
            }
            other.poll(clock.now_us());
            clock.advance();
        };
        let host_id = host_cm
            .resolve(at, None, 1_000_000, clock.now_us())
            .expect("resolves");
        next(&mut host_cm, &mut cm);
        let host = Side::new(
            host_cm.device(host_id).expect("a device"),
            Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE,
            POOL_BYTES,
            COMPLETIONS,
        );
        let config = host.config(ReceiveSource::Own(64));
        let host_qp = host_cm
            .create_qp(host_id, &host.pd, &config)
            .expect("a queue pair");
        host_cm
            .connect(host_id, &PARAM, 5_000_000, clock.now_us())
            .expect("connects");
        let request = next(&mut cm, &mut host_cm);
        assert!(matches!(request.kind, CmEventKind::ConnectRequest { .. }));
        let id = request.id;

        let controller = Side::new(
            cm.device(id).expect("a device"),
            Access::LOCAL_WRITE,
            POOL_BYTES,
            COMPLETIONS,
        );
        let zeroes = controller.pool.take(ZEROES_BYTES).expect("memory");
        let (wire, mut queue) = queue(&controller, &zeroes, &mut *cm, id);
        cm.accept(id, &PARAM).expect("accepts");
        queue.accepted();

        let take = |bytes| host.pool.take(bytes).expect("memory");
        let mut ends = Self {
            capsule: take(16 << 10),
            responses: take(4096),
            data: take(DATA_BYTES),
            host_qp: Some(host_qp.into()),
            wire,
            resting_bytes: POOL_BYTES - controller.pool.free_bytes(),
            controller,
            _zeroes: zeroes,
            host,
            host_seen: Vec::new(),
            host_reads: true,
            cm,
            id,
            is_gone: false,
            host_cm,
            host_id,
            clock,
            rdma,
        };
        ends.wire.add(QUEUE, &mut queue);
        ends.until("the host is connected", |ends| {
            let now_us = ends.clock.now_us();
            ends.clock.advance();
            ends.turn_host();
            let event = ends.host_cm.poll(now_us);
            event.is_some_and(|event| matches!(event.kind, CmEventKind::Established { .. }))
        });
        (0..RESPONSES).for_each(|slot| ends.post_receive(slot));
        (ends, Queue::Rdma(queue))
    }

    fn post_receive(&mut self, slot: u32) {
        let sge = self.host.sge(&self.responses, slot * 16, 16);
        if let Some(qp) = &mut self.host_qp {
            qp.post_recv(slot.into(), &[sge]).expect("room");
        }
    }

    fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let start = Instant::now();
        while !done(self) {
            let seen = &self.host_seen;
            assert!(start.elapsed() < PATIENCE, "{what}: {seen:?}");
        }
    }

    fn look_at_completions(&mut self) {
        let mut completions = [WorkCompletion::EMPTY; 16];
        let count = self.host.cq.poll(&mut completions);
        self.host_seen.extend_from_slice(&completions[..count]);
    }
}

/// The controller's wire, and its queue over the connection `id`.
fn queue(
    controller: &Side,
    zeroes: &Buffer,
    cm: &mut dyn ConnectionManager,
    id: CmId,
) -> (RdmaWire, RdmaQueue) {
    let (pool, lkey) = (&controller.pool, controller.region.lkey());
    let receives = Receives::new(None, 64, lkey, pool, 0).expect("receives");
    let wire = RdmaWire::new(Rc::clone(&controller.cq), COMPLETIONS, receives);
    let holdings = wire.reserve(ENTRIES, pool).expect("receives");
    let config = controller.config(wire.receives().source(ENTRIES));
    let qp = cm
        .create_qp(id, &controller.pd, &config)
        .expect("a queue pair");
    let device = cm.device(id).expect("a device");
    let needs_remote_write = device.attributes().read_sink_needs_remote_write;
    let slab = pool.slab();
    let fresh = Pool::new(ZEROES_BYTES as usize, Pages::Ordinary).expect("memory");
    let keys = Keys {
        data: lkey,
        sinks: if needs_remote_write {
            let slabs = [slab, slab].map(Arc::clone);
            Sinks::Open(Rc::clone(&controller.pd), slabs)
        } else {
            Sinks::Closed
        },
        queues: (slab.id(), lkey),
        zeroes: Some(Zeroes {
            slab: Arc::clone(fresh.slab()),
            sge: controller.sge(zeroes, 0, ZEROES_BYTES),
        }),
    };
    let responses = pool.take(4096).expect("memory");
    let mut queue = RdmaQueue::new(qp.into(), responses, keys, holdings);
    queue.post_receives().expect("room");
    (wire, queue)
}

impl Ends for RdmaEnds {
    fn pool(&self) -> &Pool {
        &self.controller.pool
    }

    fn resting_bytes(&self) -> usize {
        self.resting_bytes
    }

    fn poll(&mut self, queue: &mut Option<Queue>) {
        let now_us = self.clock.now_us();
        while let Some(event) = self.cm.poll(now_us) {
            self.is_gone |= matches!(event.kind, CmEventKind::Disconnected { .. });
        }
        self.wire.poll(&mut Named(queue));
    }

    fn next_event(&mut self, queue: &mut Option<Queue>) -> Option<LocalEvent> {
        if let Some((id, event)) = self.wire.next_event(&mut Named(queue)) {
            assert_eq!(id, QUEUE);
            return Some(LocalEvent::Of(event));
        }
        std::mem::take(&mut self.is_gone).then_some(LocalEvent::Gone)
    }

    fn flush(&mut self, queue: &mut Option<Queue>) {
        self.wire.flush(&mut Named(queue));
        self.clock.advance();
    }

    fn has_fences(&self) -> bool {
        self.wire.has_fences()
    }

    fn end(&mut self, queue: &mut Queue, how: LocalEnd) {
        match how {
            LocalEnd::Closes => {
                queue.end(End::Drained);
                self.cm.disconnect(self.id);
            }
            LocalEnd::Aborts => {
                queue.end(End::Now);
                self.cm.abort(self.id);
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.wire.is_empty()
    }

    fn wait_long(&mut self) {}

    fn turn_host(&mut self) {
        if !self.host_reads {
            return;
        }
        self.look_at_completions();
        let now_us = self.clock.now_us();
        while self.host_qp.is_none() && self.host_cm.poll(now_us).is_some() {}
    }

    fn send(&mut self, capsule: &[u8]) {
        self.send_raw(capsule);
    }

    fn offences(&self) -> Vec<(&'static str, Vec<u8>)> {
        vec![
            ("a capsule of 10 bytes", vec![7; 10]),
            ("a capsule of 63 bytes", vec![0; 63]),
        ]
    }

    fn send_raw(&mut self, bytes: &[u8]) {
        self.capsule.copy_from(0, bytes);
        let len_bytes = u32::try_from(bytes.len()).expect("a few");
        let sge = self.host.sge(&self.capsule, 0, len_bytes);
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
        self.until("the host's message leaves", |ends| {
            ends.look_at_completions();
            ends.clock.advance();
            let is_it = |wc: &WorkCompletion| wc.opcode == WcOpcode::Send;
            let at = ends.host_seen.iter().position(is_it);
            let sent = at.map(|at| ends.host_seen.remove(at));
            sent.is_some_and(|wc| wc.status == WcStatus::Success)
        });
        if self.rdma == Rdma::Device {
            // Some devices complete a Send before its message has arrived, and no event tells that.
            std::thread::sleep(ON_ITS_WAY);
        }
    }

    fn host_ends(&mut self, how: PeerEnd) {
        match how {
            PeerEnd::Closes | PeerEnd::Terminates => self.host_cm.disconnect(self.host_id),
            PeerEnd::Resets => self.host_cm.abort(self.host_id),
        }
        self.host_qp = None;
        self.host_cm.destroy(self.host_id);
    }

    fn host_reads(&mut self, reads: bool) {
        self.host_reads = reads;
    }

    fn host_answers(&mut self, answers: Answers) {
        self.host_reads = answers == Answers::All;
    }

    fn offer(&mut self, cid: u16, parts: &[(u32, u32)]) -> HostMemory {
        let keyed = |&(offset_bytes, length_bytes): &(u32, u32)| Sgl::Keyed {
            address: self.data.addr() + u64::from(offset_bytes),
            rkey: self.host.region.rkey().0,
            length_bytes,
            invalidate: false,
        };
        let list: Vec<_> = parts.iter().map(|part| keyed(part).encode()).collect();
        let list = list.as_bytes();
        let (sgl, mut data) = match parts {
            [one] => (keyed(one), CapsuleData::None),
            _ => {
                let last = Sgl::Segment {
                    base: SglBase::CapsuleOffset(0),
                    length_bytes: u32::try_from(list.len()).expect("a few"),
                    last: true,
                };
                (last, CapsuleData::Copied(list.into()))
            }
        };
        let mut sqe = Sqe::new(IoOpcode::READ.0, cid, 1);
        sqe.dptr = sgl.encode();
        let bytes = parts
            .iter()
            .map(|(_, len_bytes)| u64::from(*len_bytes))
            .sum();
        let transfer = DataTransfer::ControllerToHost { bytes };
        host_memory(&sqe, transfer, &mut data).expect("its SGL is right")
    }

    fn put_data(&mut self, at: u32, bytes: &[u8]) {
        self.data.copy_from(at as usize, bytes);
    }

    fn data(&self, at: u32, len_bytes: u32) -> Vec<u8> {
        let mut bytes = vec![0; len_bytes as usize];
        self.data.copy_to(at as usize, &mut bytes);
        bytes
    }

    fn take_responses(&mut self) -> Vec<Cqe> {
        let is_it =
            |wc: &mut WorkCompletion| wc.opcode == WcOpcode::Recv && wc.status == WcStatus::Success;
        let received: Vec<_> = self.host_seen.extract_if(.., is_it).collect();
        let response = |wc: &WorkCompletion| -> Cqe {
            let slot = u32::try_from(wc.wr_id).expect("small");
            let mut bytes = [0; 16];
            self.responses.copy_to(slot as usize * 16, &mut bytes);
            self.post_receive(slot);
            zerocopy::transmute!(bytes)
        };
        received.iter().map(response).collect()
    }
}

impl Drop for RdmaEnds {
    fn drop(&mut self) {
        // Queue pairs go before their connections.
        self.host_qp = None;
    }
}
