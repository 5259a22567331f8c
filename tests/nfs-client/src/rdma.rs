//! A client of RPC-over-RDMA version 1 (RFC 8166) on user-space iWARP.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::rc::Rc;
use std::time::Instant;

use capstan_memory::{Buffer, Pages, Pool};
use capstan_rdma::contract::{
    Access, CmEvent, CmEventKind, CmId, CompletionQueue, ConnectParam, ConnectionManager,
    MemoryRegion, PrivateData, ProtectionDomain, QpConfig, QueuePair, RKey, ReceiveSource, SendOp,
    SendWr, Sge, WcOpcode, WcStatus, WorkCompletion,
};
use capstan_rdma::iwarp::{Config, Provider};
use capstan_reactor::{Armed, Clock, Flow, SpinBudget, Turn};
use capstan_rpcrdma::chunks::{ReadSegment, Segment, write_lists};
use capstan_rpcrdma::header::{Procedure, Received, write_fixed};
use capstan_rpcrdma::private::Offer;
use capstan_rpcrdma::xdr::Writer;

use crate::PATIENCE;
use crate::client::Transport;

/// Bytes of a receive.
const MESSAGE_BYTES: u32 = 4096;
/// Bytes of the memory of a connection that has it to itself.
const POOL_BYTES: usize = 160 << 20;
/// `wr_id` of a Send, and of a bind; receives have their numbers.
const SEND: u64 = 1 << 32;

/// What the client says of itself.
pub const OFFER: Offer = Offer {
    send_bytes: 4096,
    receive_bytes: 4096,
    remote_invalidation: false,
};

/// How a client connects.
#[derive(Clone, Copy, Debug)]
pub struct How {
    /// Through shared memory, in place of the socket.
    pub same_host: bool,
    /// What it says of itself, if anything.
    pub offer: Option<Offer>,
    /// RDMA READs that it serves at once.
    pub reads: u8,
    /// Receives that it posts: as many as it ever has calls under way.
    pub receives: u16,
}

/// A connection.
pub struct RdmaClient {
    qp: Option<Box<dyn QueuePair>>,
    cm: Box<dyn ConnectionManager>,
    id: CmId,
    cq: Rc<dyn CompletionQueue>,
    region: Rc<dyn MemoryRegion>,
    /// Of the memory.
    pub pd: Rc<dyn ProtectionDomain>,
    receives: Vec<Buffer>,
    sends: Vec<Buffer>,
    pool: Pool,
    events: Vec<CmEvent>,
    /// What came, and the key that it invalidated.
    came: VecDeque<(Vec<u8>, Option<RKey>)>,
    /// A work request has failed.
    failed: bool,
    /// What the server says of itself.
    pub offer: Offer,
    start: Instant,
}

impl RdmaClient {
    /// Connects with memory of its own.
    pub fn connect(address: SocketAddr, how: How) -> Self {
        let pool = Pool::new(POOL_BYTES, Pages::Ordinary).unwrap();
        Self::connect_with(&pool, address, how)
    }

    /// Connects with memory that others have as well.
    pub fn connect_with(pool: &Pool, address: SocketAddr, how: How) -> Self {
        let provider = Provider::new(Config {
            same_host: how.same_host,
            ..Config::default()
        });
        let provider = provider.unwrap();
        let device = provider.device();
        let pd = device.allocate_pd().unwrap();
        let slab = pool.slab();
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let region = pd
            .register(slab, 0, slab.len_bytes(), access | Access::MW_BIND)
            .unwrap();
        let mut cm = provider.connection_manager().unwrap();
        let id = cm.resolve(address, None, 5_000_000, 0).unwrap();
        let mut client = Self {
            qp: None,
            cm,
            id,
            cq: device.create_cq(4 * u32::from(how.receives)).unwrap(),
            region,
            pd,
            receives: Vec::new(),
            sends: Vec::new(),
            pool: pool.clone(),
            events: Vec::new(),
            came: VecDeque::new(),
            failed: false,
            offer: Offer::DEFAULT,
            start: Instant::now(),
        };
        client.until("resolving", |client| {
            client.has(|kind| matches!(kind, CmEventKind::Resolved))
        });
        client.make_qp(how);
        client.until("connecting", |client| {
            client.has(|kind| matches!(kind, CmEventKind::Established { .. })) || client.is_over()
        });
        for event in &client.events {
            if let CmEventKind::Established { param } = &event.kind {
                client.offer = Offer::parse(param.private_data.as_bytes());
            }
        }
        client
    }

    fn make_qp(&mut self, how: How) {
        let config = QpConfig {
            send_cq: Rc::clone(&self.cq),
            recv_cq: Rc::clone(&self.cq),
            send_wr_max: 2 * u32::from(how.receives),
            receives: ReceiveSource::Own(how.receives.into()),
            send_sge_max: 1,
            recv_sge_max: 1,
            inline_bytes: 0,
        };
        self.qp = Some(self.cm.create_qp(self.id, &self.pd, &config).unwrap());
        for number in 0..how.receives {
            self.receives.push(self.pool.take(MESSAGE_BYTES).unwrap());
            self.post_receive(number.into());
        }
        let offer = how.offer.map(|offer| offer.encode().unwrap());
        let offer = offer.as_ref().map_or(&[][..], |bytes| bytes);
        let param = ConnectParam {
            private_data: PrivateData::new(offer).unwrap(),
            responder_resources: how.reads,
            initiator_depth: 0,
            rnr_retry_count: 7,
        };
        let now_us = self.now_us();
        self.cm.connect(self.id, &param, 5_000_000, now_us).unwrap();
    }

    fn now_us(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_micros()).unwrap()
    }

    fn has(&self, so: impl Fn(&CmEventKind) -> bool) -> bool {
        self.events.iter().any(|event| so(&event.kind))
    }

    /// Whether the connection is over, or never began.
    pub fn is_over(&self) -> bool {
        self.failed
            || self.has(|kind| {
                matches!(
                    kind,
                    CmEventKind::Disconnected { .. }
                        | CmEventKind::Failed(_)
                        | CmEventKind::Rejected { .. }
                )
            })
    }

    /// Waits until something is so.
    pub fn until(&mut self, what: &str, so: impl Fn(&Self) -> bool) {
        let mut wait = Wait {
            start: Instant::now(),
            client: self,
            so,
            is_over: false,
        };
        capstan_reactor::run(&mut wait, SpinBudget { spin_us: 0 }).unwrap();
        let is_over = wait.is_over;
        assert!(is_over, "{what} does not happen: {:?}", self.events);
    }

    /// Does what there is to do for the connection.
    /// Returns how much that was.
    pub fn turn(&mut self) -> usize {
        let now_us = self.now_us();
        let mut done = 0;
        while let Some(event) = self.cm.poll(now_us) {
            self.events.push(event);
            done += 1;
        }
        let mut completions = [WorkCompletion::EMPTY; 64];
        let count = self.cq.poll(&mut completions);
        for completion in &completions[..count] {
            if completion.status != WcStatus::Success {
                self.failed = true;
            } else if completion.opcode == WcOpcode::Recv {
                let page = &self.receives[usize::try_from(completion.wr_id).unwrap()];
                let mut bytes = vec![0; usize::try_from(completion.byte_len).unwrap()];
                page.copy_to(0, &mut bytes);
                self.came.push_back((bytes, completion.invalidated));
                self.post_receive(completion.wr_id);
            } else if completion.wr_id >= SEND && completion.opcode == WcOpcode::Send {
                self.sends.remove(0);
            }
        }
        done + count
    }

    fn post_receive(&mut self, number: u64) {
        let page = &self.receives[usize::try_from(number).unwrap()];
        let sge = Sge {
            addr: page.addr(),
            len_bytes: MESSAGE_BYTES,
            lkey: self.region.lkey(),
        };
        let qp = self.qp.as_mut().unwrap();
        qp.post_recv(number, &[sge]).unwrap();
    }

    /// Sends any bytes.
    pub fn send_raw(&mut self, bytes: &[u8]) {
        let len_bytes = u32::try_from(bytes.len()).unwrap();
        let mut page = self.pool.take(len_bytes).unwrap();
        page.copy_from(0, bytes);
        let sge = Sge {
            addr: page.addr(),
            len_bytes,
            lkey: self.region.lkey(),
        };
        self.sends.push(page);
        self.post(
            SendOp::Send {
                invalidate: None,
                solicited: false,
            },
            &[sge],
        );
    }

    /// Posts a work request, and waits for nothing.
    pub fn post(&mut self, op: SendOp, sges: &[Sge]) {
        let qp = self.qp.as_mut().unwrap();
        let wr = SendWr {
            wr_id: SEND,
            op,
            sges,
            signaled: true,
            fence: false,
        };
        qp.post_send(&wr).unwrap();
        qp.ring_doorbell();
    }

    /// Sends a call.
    pub fn send_call(&mut self, call: &CallOf<'_>) {
        self.send_raw(&call.bytes());
    }

    /// The next message, and the key that it invalidated.
    pub fn next_message(&mut self) -> (Vec<u8>, Option<RKey>) {
        self.until("a reply", |client| !client.came.is_empty());
        self.came.pop_front().unwrap()
    }

    /// The next reply as it came.
    pub fn reply(&mut self) -> Vec<u8> {
        self.next_message().0
    }

    /// Waits for the end of the connection; no reply has come.
    pub fn until_over(&mut self) {
        self.until("the end", Self::is_over);
        assert!(self.came.is_empty(), "{:?}", self.came);
    }

    /// Memory that the server may use, with these bytes.
    pub fn memory(&self, bytes: &[u8]) -> Buffer {
        let mut buffer = self.pool.take(u32::try_from(bytes.len()).unwrap()).unwrap();
        buffer.copy_from(0, bytes);
        buffer
    }

    /// A buffer cut into segments of these lengths.
    pub fn segments(&self, buffer: &Buffer, lengths: &[u32]) -> Vec<Segment> {
        let mut offset = buffer.addr();
        let segments = lengths.iter().map(|&length_bytes| {
            let segment = Segment {
                handle: self.region.rkey().0,
                length_bytes,
                offset,
            };
            offset += u64::from(length_bytes);
            segment
        });
        segments.collect()
    }

    /// The key of the memory for this side.
    pub fn lkey(&self) -> capstan_rdma::contract::LKey {
        self.region.lkey()
    }
}

/// Messages are inline; the credits are the test's business.
impl Transport for RdmaClient {
    fn send(&mut self, messages: &[Vec<u8>]) {
        for message in messages {
            let xid = u32::from_be_bytes(*message.first_chunk().unwrap());
            self.send_call(&CallOf::inline(xid, message));
        }
    }

    fn receive(&mut self) -> Vec<u8> {
        inline_message(&self.reply()).0
    }
}

impl Drop for RdmaClient {
    fn drop(&mut self) {
        drop(self.qp.take());
        self.cm.destroy(self.id);
    }
}

/// Waits for something, and sleeps meanwhile.
struct Wait<'a, F> {
    client: &'a mut RdmaClient,
    so: F,
    is_over: bool,
    start: Instant,
}

impl<F: Fn(&RdmaClient) -> bool> Turn for Wait<'_, F> {
    fn turn(&mut self, _now_us: u64) -> Flow {
        self.is_over = (self.so)(self.client);
        if self.is_over || self.start.elapsed() > PATIENCE {
            return Flow::Stop;
        }
        match self.client.turn() {
            0 => Flow::Idle,
            _ => Flow::Busy(0),
        }
    }

    fn arm(&mut self, fds: &mut Vec<RawFd>) -> Armed {
        fds.extend([self.client.cm.fd(), self.client.cq.fd()]);
        Armed::from_ready(self.client.cm.arm() | self.client.cq.arm())
    }

    fn next_deadline_us(&self) -> Option<u64> {
        // The manager has another clock; patience ends some time, too.
        Some(Clock.now_us() + 100_000)
    }
}

/// A call as it is sent.
#[derive(Clone, Debug)]
pub struct CallOf<'a> {
    /// That of the message.
    pub xid: u32,
    /// Credits that it asks for.
    pub credits: u32,
    /// The read list.
    pub reads: Vec<ReadSegment>,
    /// The write list.
    pub writes: Vec<Vec<Segment>>,
    /// The reply chunk.
    pub reply: Option<Vec<Segment>>,
    /// What is inline; of RDMA_NOMSG nothing is.
    pub message: Option<&'a [u8]>,
}

impl<'a> CallOf<'a> {
    /// A call whose message is inline.
    pub fn inline(xid: u32, message: &'a [u8]) -> Self {
        Self {
            xid,
            credits: 128,
            reads: Vec::new(),
            writes: Vec::new(),
            reply: None,
            message: Some(message),
        }
    }

    /// Adds a read chunk at a position.
    pub fn read(mut self, position: u32, segments: &[Segment]) -> Self {
        let reads = segments
            .iter()
            .map(|&target| ReadSegment { position, target });
        self.reads.extend(reads);
        self
    }

    /// Adds a write chunk.
    pub fn write(mut self, segments: Vec<Segment>) -> Self {
        self.writes.push(segments);
        self
    }

    /// The bytes of a Send.
    pub fn bytes(&self) -> Vec<u8> {
        let mut buffer = vec![0; 1 << 16];
        let mut writer = Writer::new(&mut buffer);
        let procedure = match self.message {
            Some(_) => Procedure::Msg,
            None => Procedure::NoMsg,
        };
        write_fixed(&mut writer, self.xid, self.credits, procedure).unwrap();
        let writes: Vec<&[Segment]> = self.writes.iter().map(Vec::as_slice).collect();
        write_lists(&mut writer, &self.reads, &writes, self.reply.as_deref()).unwrap();
        writer
            .opaque_fixed(self.message.unwrap_or_default())
            .unwrap();
        writer.written().to_vec()
    }
}

/// The message of a reply that is inline, and the credits it grants.
pub fn inline_message(bytes: &[u8]) -> (Vec<u8>, u32) {
    match Received::read(bytes) {
        Ok(Received::Message(header)) => {
            assert_eq!(header.procedure, Procedure::Msg);
            assert_eq!(header.inline[..4], header.xid.to_be_bytes());
            (header.inline.to_vec(), header.credits)
        }
        other => panic!("no reply: {other:?}"),
    }
}
