//! A host that speaks capsules: it sends any command on any queue, and works only while it is
//! asked to, so that a test can let it hang.

mod connect;
mod identified;
mod wire;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use capstan_memory::Buffer;
use capstan_nvme_proto::command::FabricsCommand;
use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::fabrics::{
    CNTLID_DYNAMIC, ConnectParameters, ConnectResponse, PropertyGet, PropertySet,
};
use capstan_nvme_proto::nqn::{HostId, Nqn};
use capstan_nvme_proto::property::{Cc, Csts, Property};
use capstan_nvme_proto::sgl::Sgl;
use capstan_nvme_proto::sqe::Sqe;
use capstan_nvme_proto::status::Status;
use capstan_rdma::contract::{
    CmEventKind, CmId, QpNum, QueuePair, SendOp, SendWr, Sge, WcStatus, WorkCompletion,
};
use capstan_rdma::iwarp::Config;
use zerocopy::{FromBytes, IntoBytes};

pub use wire::Wire;

use crate::target::SUBNQN;
use wire::{RECV, list_of};

const MEMORY_BYTES: usize = 1 << 20;
const ENTRIES: u16 = 32;
const CQE_BYTES: u32 = 16;
const SQE_BYTES: u32 = 64;
const PATIENCE: Duration = Duration::from_secs(10);

/// A queue of a [`WireHost`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Queue {
    /// The Admin queue.
    Admin,
    /// The I/O queue, QID 1.
    Io,
}

impl Queue {
    fn qid(self) -> u16 {
        match self {
            Self::Admin => 0,
            Self::Io => 1,
        }
    }
}

/// What a command moves.
#[derive(Clone, Copy, Debug)]
pub enum Data<'a> {
    /// Nothing.
    None,
    /// To the controller, behind the SQE in the capsule.
    InCapsule(&'a [u8]),
    /// To the controller, which reads it from here by RDMA.
    Pulled(&'a [u8]),
    /// So many bytes to the host, which the controller writes here by RDMA.
    Pushed(u32),
    /// As [`Data::Pulled`], from so many pieces, of which the capsule has a list.
    PulledInPieces(&'a [u8], u32),
    /// As [`Data::Pushed`], into so many pieces.
    PushedInPieces(u32, u32),
}

/// What hosts choose by themselves.
#[derive(Clone, Copy, Debug)]
pub struct Manner {
    /// Entries of the I/O queue, and of its receives.
    pub io_entries: u16,
    /// Keep Alive Timeout.
    pub kato_ms: u32,
}

impl Default for Manner {
    fn default() -> Self {
        Self {
            io_entries: ENTRIES,
            kato_ms: 0,
        }
    }
}

struct ConnectedQueue {
    qp: Box<dyn QueuePair>,
    /// A place for a CQE for each receive.
    receives: Buffer,
    id: CmId,
}

/// A host with an Admin queue and one I/O queue.
pub struct WireHost {
    // In this order: a queue pair must be gone before its connection manager.
    queues: HashMap<Queue, ConnectedQueue>,
    wire: Rc<Wire>,
    /// Capsules and data of commands, by queue and CID; kept until the command is answered.
    outstanding: HashMap<(Queue, u16), (Buffer, Option<Buffer>)>,
    answers: HashMap<(Queue, u16), (Cqe, Vec<u8>)>,
    next_cid: u16,
    manner: Manner,
    /// Where its association is, and whose.
    known: Option<(SocketAddr, ConnectParameters)>,
}

impl WireHost {
    /// Connects the `number`th host of [`options`](crate::host::options) to the subsystem under
    /// test, enables its controller and connects I/O queue 1.
    ///
    /// # Panics
    /// When any of that does not succeed.
    #[must_use]
    pub fn connect(address: SocketAddr, number: u8) -> Self {
        let wire = Wire::new(Config::default(), 1024, MEMORY_BYTES);
        Self::connect_through(wire, address, connect_data(number))
    }

    /// The same with any identity, beside other hosts of the same wire, none of which has commands
    /// outstanding.
    ///
    /// # Panics
    /// As [`WireHost::connect`].
    #[must_use]
    pub fn connect_through(
        wire: Rc<Wire>,
        address: SocketAddr,
        parameters: ConnectParameters,
    ) -> Self {
        let mut host = Self::associate(wire, address, parameters);
        host.wait_until_ready();
        let status = host.connect_io();
        assert!(status.is_success(), "{status:?}");
        host
    }

    /// Connects the Admin queue and asks for the controller to be enabled.
    ///
    /// # Panics
    /// When that does not succeed.
    #[must_use]
    pub fn associate(wire: Rc<Wire>, address: SocketAddr, parameters: ConnectParameters) -> Self {
        let mut host = Self::connect_admin(wire, address, parameters, Manner::default());
        let enable = PropertySet {
            property: Property::CC,
            size: Property::CC.size().expect("CC has a size"),
            value: Cc::ENABLE_NVM.encode().into(),
        };
        let sqe = FabricsCommand::PropertySet(enable).encode(0, Sgl::EMPTY);
        let (cqe, _) = host.run(Queue::Admin, sqe, Data::None);
        assert!(cqe.status().is_success(), "enabling: {:?}", cqe.status());
        host
    }

    /// Connects the Admin queue, and does no more.
    ///
    /// # Panics
    /// When that does not succeed.
    #[must_use]
    pub fn connect_admin(
        wire: Rc<Wire>,
        address: SocketAddr,
        mut parameters: ConnectParameters,
        manner: Manner,
    ) -> Self {
        let mut host = Self::new(wire);
        host.manner = manner;
        let answer = host.connect_queue(address, Queue::Admin, &parameters);
        assert!(answer.status().is_success(), "{:?}", answer.status());
        parameters.cntlid = ConnectResponse::decode(answer.dw0.get()).cntlid;
        host.known = Some((address, parameters));
        host
    }

    /// CIDs of the commands outstanding on the Admin queue, lowest first.
    #[must_use]
    pub fn outstanding_admin(&self) -> Vec<u16> {
        let admin = self
            .outstanding
            .keys()
            .filter(|(queue, _)| *queue == Queue::Admin);
        let mut cids: Vec<_> = admin.map(|(_, cid)| *cid).collect();
        cids.sort_unstable();
        cids
    }

    fn entries(&self, queue: Queue) -> u16 {
        match queue {
            Queue::Admin => ENTRIES,
            Queue::Io => self.manner.io_entries,
        }
    }

    /// Closes the connection of a queue.
    pub fn disconnect(&mut self, queue: Queue) {
        if let Some(ConnectedQueue { qp, id, .. }) = self.queues.remove(&queue) {
            drop(qp);
            self.wire.cm.borrow_mut().destroy(id);
        }
    }

    /// CSTS.RDY.
    ///
    /// # Panics
    /// When the controller does not tell.
    pub fn is_ready(&mut self) -> bool {
        let get = PropertyGet {
            property: Property::CSTS,
            size: Property::CSTS.size().expect("CSTS has a size"),
        };
        let sqe = FabricsCommand::PropertyGet(get).encode(0, Sgl::EMPTY);
        let (cqe, _) = self.run(Queue::Admin, sqe, Data::None);
        assert!(cqe.status().is_success(), "CSTS: {:?}", cqe.status());
        Csts::decode(cqe.dw0.get()).rdy
    }

    /// Waits for CSTS.RDY.
    ///
    /// # Panics
    /// When it is not set within ten seconds.
    pub fn wait_until_ready(&mut self) {
        let start = Instant::now();
        while !self.is_ready() {
            assert!(start.elapsed() < PATIENCE, "the controller is not ready");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Gives up the connection of a queue, with what is outstanding on it.
    ///
    /// # Panics
    /// When the queue is not connected.
    pub fn give_up(&mut self, queue: Queue) {
        let connected = self.queues.remove(&queue).expect("a connected queue");
        self.end(connected);
        self.outstanding.retain(|(of, _), _| *of != queue);
    }

    fn end(&self, ConnectedQueue { qp, id, .. }: ConnectedQueue) {
        drop(qp);
        self.wire.cm.borrow_mut().destroy(id);
    }

    /// Connects I/O queue 1 of an association; the status of its Connect.
    ///
    /// # Panics
    /// When there is no association, or no response.
    pub fn connect_io(&mut self) -> Status {
        let (address, parameters) = self.known.clone().expect("an association");
        self.connect_queue(address, Queue::Io, &parameters).status()
    }

    /// CNTLID of the association.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn cntlid(&self) -> u16 {
        self.known.as_ref().expect("an association").1.cntlid
    }

    /// Tries the same as a host that is not allowed to: its one connection, and the status of its
    /// Connect.
    ///
    /// # Panics
    /// When it is allowed to, or there is no response.
    #[must_use]
    pub fn refused(address: SocketAddr, number: u8) -> (Self, Status) {
        let mut host = Self::new(Wire::new(Config::default(), 1024, MEMORY_BYTES));
        let answer = host.connect_queue(address, Queue::Admin, &connect_data(number));
        assert!(!answer.status().is_success(), "Connect succeeded");
        (host, answer.status())
    }

    /// Tries the same with a connection request for another queue than Connect's: its one
    /// connection, and the response to its Connect.
    ///
    /// # Panics
    /// When there is no response.
    #[must_use]
    pub fn connect_as_announced(
        address: SocketAddr,
        number: u8,
        announced_qid: u16,
    ) -> (Self, Cqe) {
        let mut host = Self::new(Wire::new(Config::default(), 1024, MEMORY_BYTES));
        host.establish(address, Queue::Admin, announced_qid, 0);
        let answer = host.connect_established(Queue::Admin, &connect_data(number));
        (host, answer)
    }

    fn new(wire: Rc<Wire>) -> Self {
        Self {
            queues: HashMap::new(),
            wire,
            outstanding: HashMap::new(),
            answers: HashMap::new(),
            next_cid: 0,
            manner: Manner::default(),
            known: None,
        }
    }

    /// Waits until the target has ended the connections.
    ///
    /// # Panics
    /// When it has not within ten seconds.
    pub fn wait_for_the_end(&mut self) {
        for queue in self.queues.keys().copied().collect::<Vec<_>>() {
            self.wait_for_the_end_of(queue);
        }
    }

    /// Waits until the target has ended the connection of a queue.
    ///
    /// # Panics
    /// When it has not within ten seconds.
    pub fn wait_for_the_end_of(&mut self, queue: Queue) {
        let id = self.queues[&queue].id;
        self.wait_for(id, "the target's end of the connection", |kind| {
            matches!(kind, CmEventKind::Disconnected { .. })
        });
    }

    /// The queue pair of a queue.
    ///
    /// # Panics
    /// When it is not connected.
    #[must_use]
    pub fn qp_num(&self, queue: Queue) -> QpNum {
        self.queues[&queue].qp.num()
    }

    /// Posts a capsule as it is, which stays until it has been answered.
    ///
    /// # Panics
    /// When the queue is not connected or full.
    pub fn post(&mut self, queue: Queue, capsule: Sge, signaled: bool) {
        let send = SendOp::Send {
            invalidate: None,
            solicited: false,
        };
        self.post_op(queue, send, &[capsule], signaled);
    }

    /// Posts any work request.
    ///
    /// # Panics
    /// When the queue is not connected or full.
    pub fn post_op(&mut self, queue: Queue, op: SendOp, sges: &[Sge], signaled: bool) {
        let connected = self.queues.get_mut(&queue).expect("a connected queue");
        connected
            .qp
            .post_send(&SendWr {
                wr_id: 0,
                op,
                sges,
                signaled,
                fence: false,
            })
            .expect("a send");
    }

    /// Sends what was posted.
    ///
    /// # Panics
    /// When the queue is not connected.
    pub fn ring_doorbell(&mut self, queue: Queue) {
        let connected = self.queues.get_mut(&queue).expect("a connected queue");
        connected.qp.ring_doorbell();
    }

    /// The CQE that has been received, whose receive is posted again until the next doorbell.
    ///
    /// # Panics
    /// When it is no CQE, or not of this queue.
    pub fn take_response(&mut self, queue: Queue, completion: &WorkCompletion) -> Cqe {
        assert_eq!(completion.byte_len, CQE_BYTES);
        let connected = self.queues.get_mut(&queue).expect("a connected queue");
        let at = u32::try_from(completion.wr_id & !RECV).expect("small") * CQE_BYTES;
        let mut bytes = [0; CQE_BYTES as usize];
        connected.receives.copy_to(at as usize, &mut bytes);
        let sge = self.wire.sge(&connected.receives, at, CQE_BYTES);
        connected
            .qp
            .post_recv(completion.wr_id, &[sge])
            .expect("a receive again");
        Cqe::read_from_bytes(&bytes).expect("16 bytes")
    }

    /// Waits for the next response on a queue, whatever becomes of the other one. `None` when the
    /// queue has ended.
    ///
    /// # Panics
    /// When there is neither within ten seconds.
    pub fn next_response(&mut self, queue: Queue) -> Option<Cqe> {
        let (start, qp) = (Instant::now(), self.qp_num(queue));
        let mut completion = [WorkCompletion::EMPTY];
        loop {
            let [completion] = if self.wire.cq.poll(&mut completion) == 1 {
                completion
            } else {
                assert!(start.elapsed() < PATIENCE, "no response on {queue:?}");
                std::thread::sleep(Duration::from_micros(50));
                continue;
            };
            if completion.qp == qp && completion.wr_id & RECV != 0 {
                let received = completion.status == WcStatus::Success;
                return received.then(|| self.take_response(queue, &completion));
            }
        }
    }

    /// Sends a command; CID and SGL are filled in. Returns its CID.
    ///
    /// # Panics
    /// When it cannot be posted.
    pub fn send(&mut self, queue: Queue, sqe: Sqe, data: Data<'_>) -> u16 {
        let cid = self.post_command(queue, sqe, data);
        self.ring_doorbell(queue);
        cid
    }

    /// The same without a doorbell.
    ///
    /// # Panics
    /// When it cannot be posted.
    pub fn post_command(&mut self, queue: Queue, sqe: Sqe, data: Data<'_>) -> u16 {
        let cid = self.next_cid;
        self.next_cid += 1;
        self.post_command_as(queue, cid, sqe, data);
        cid
    }

    /// Sends a command with this CID, whatever is outstanding with it, and waits for its response.
    ///
    /// # Panics
    /// When there is none within ten seconds.
    pub fn run_as(&mut self, queue: Queue, cid: u16, sqe: Sqe, data: Data<'_>) -> (Cqe, Vec<u8>) {
        self.post_command_as(queue, cid, sqe, data);
        self.ring_doorbell(queue);
        self.answer(queue, cid)
    }

    fn post_command_as(&mut self, queue: Queue, cid: u16, mut sqe: Sqe, data: Data<'_>) {
        let len = |bytes: &[u8]| u32::try_from(bytes.len()).expect("small");
        let mut beside = None;
        let mut behind: &[u8] = &[];
        let list: Vec<u8>;
        let sgl = match data {
            Data::None => Sgl::EMPTY,
            Data::InCapsule(bytes) => {
                behind = bytes;
                Sgl::InCapsule {
                    offset_bytes: 0,
                    length_bytes: len(bytes),
                }
            }
            Data::Pulled(bytes) => {
                let buffer = beside.insert(self.wire.take(len(bytes)));
                buffer.copy_from(0, bytes);
                self.wire.keyed(buffer)
            }
            Data::Pushed(bytes) => {
                let buffer = beside.insert(self.wire.take(bytes));
                self.wire.keyed(buffer)
            }
            Data::PulledInPieces(bytes, pieces) => {
                let buffer = beside.insert(self.wire.take(len(bytes)));
                buffer.copy_from(0, bytes);
                list = self.wire.pieces(buffer, pieces);
                behind = &list;
                list_of(behind)
            }
            Data::PushedInPieces(bytes, pieces) => {
                let buffer = beside.insert(self.wire.take(bytes));
                list = self.wire.pieces(buffer, pieces);
                behind = &list;
                list_of(behind)
            }
        };
        sqe.cid = cid.into();
        sqe.dptr = sgl.encode();
        let mut capsule = self.wire.take(SQE_BYTES + len(behind));
        capsule.copy_from(0, sqe.as_bytes());
        capsule.copy_from(SQE_BYTES as usize, behind);
        let sge = self.wire.sge(&capsule, 0, capsule.len_bytes());
        self.post(queue, sge, true);
        self.outstanding.insert((queue, cid), (capsule, beside));
    }

    /// Waits for the response to a command: the CQE, and the data pushed for it.
    ///
    /// # Panics
    /// When there is none within ten seconds.
    pub fn answer(&mut self, queue: Queue, cid: u16) -> (Cqe, Vec<u8>) {
        let start = Instant::now();
        loop {
            if let Some(answer) = self.poll(queue, cid) {
                return answer;
            }
            assert!(
                start.elapsed() < PATIENCE,
                "no response to command {cid} on {queue:?}"
            );
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// Works once; the response to a command when it has arrived.
    ///
    /// # Panics
    /// When the target ends a connection.
    pub fn poll(&mut self, queue: Queue, cid: u16) -> Option<(Cqe, Vec<u8>)> {
        if let Some(event) = self.wire.event() {
            panic!("the target ended a connection: {:?}", event.kind);
        }
        let mut completions = [WorkCompletion::EMPTY; 16];
        let wire = Rc::clone(&self.wire);
        for completion in wire.poll(&mut completions) {
            self.received(completion);
        }
        self.answers.remove(&(queue, cid))
    }

    fn received(&mut self, completion: &WorkCompletion) {
        let mut queues = self.queues.iter();
        let (&queue, _) = queues
            .find(|(_, connected)| connected.qp.num() == completion.qp)
            .expect("a queue pair of this host");
        let cqe = self.take_response(queue, completion);
        self.ring_doorbell(queue);
        let key = (queue, cqe.cid.get());
        let (_, data) = self
            .outstanding
            .remove(&key)
            .expect("a response to an outstanding command");
        let data = data.map_or_else(Vec::new, |buffer| {
            let mut bytes = vec![0; buffer.len_bytes() as usize];
            buffer.copy_to(0, &mut bytes);
            bytes
        });
        self.answers.insert(key, (cqe, data));
    }

    /// Sends a command and waits for its response.
    ///
    /// # Panics
    /// When there is none within ten seconds.
    pub fn run(&mut self, queue: Queue, sqe: Sqe, data: Data<'_>) -> (Cqe, Vec<u8>) {
        let cid = self.send(queue, sqe, data);
        self.answer(queue, cid)
    }
}

/// What the `number`th host of [`options`](crate::host::options) connects with.
///
/// # Panics
/// Never: its names are valid.
#[must_use]
pub fn connect_data(number: u8) -> ConnectParameters {
    ConnectParameters {
        hostid: HostId([number; 16]),
        cntlid: CNTLID_DYNAMIC,
        subnqn: Nqn::new(SUBNQN).expect("a valid NQN"),
        hostnqn: Nqn::new(&format!("nqn.2026-11.org.example:host-{number}")).expect("a valid NQN"),
    }
}

impl Drop for WireHost {
    fn drop(&mut self) {
        for (_, connected) in std::mem::take(&mut self.queues) {
            self.end(connected);
        }
    }
}
