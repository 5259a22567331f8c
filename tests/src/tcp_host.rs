//! A host over NVMe/TCP that sends any command on any of its queues.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use capstan_memory::{Pages, Pool};
use capstan_nvme_proto::command::FabricsCommand;
use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::fabrics::{
    Cattr, Connect, ConnectParameters, ConnectResponse, PropertyGet, PropertySet,
};
use capstan_nvme_proto::property::{Cc, Csts, Property};
use capstan_nvme_proto::sgl::Sgl;
use capstan_nvme_proto::sqe::Sqe;
use capstan_nvme_proto::tcp::setup::{DataAlignment, Digests, IcRequest};
use capstan_transport::tcp::host::{Arrived, HostQueue, HostQueueEvent, Payload};
use capstan_transport::tcp::link::Link;
use zerocopy::IntoBytes;

use crate::attack::tcp;
use crate::wire_host::connect_data;

const PATIENCE: Duration = Duration::from_secs(10);
const MEMORY_BYTES: usize = 8 << 20;
const SCRATCH_BYTES: usize = 64 << 10;

/// What a command moves.
#[derive(Clone, Copy, Debug)]
pub enum Data<'a> {
    /// Nothing.
    None,
    /// These bytes, in the capsule.
    InCapsule(&'a [u8]),
    /// These bytes, when the controller asks for them.
    Out(&'a [u8]),
    /// So many bytes from the controller.
    In(u32),
}

/// How a queue was connected.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// The address of the host.
    pub source: Ipv4Addr,
    /// Queue Identifier.
    pub qid: u16,
    /// Entries of the submission queue.
    pub entries: u16,
    /// The digests that are asked for.
    pub digests: Digests,
    /// Whether SQ flow control is disabled.
    pub no_flow_control: bool,
}

/// One queue of a host.
pub struct TcpQueue {
    queue: HostQueue,
    link: Link,
    pool: Pool,
    scratch: Vec<u8>,
    next_cid: u16,
    entries: u16,
    /// Completions that have come and were not asked for, with their data.
    done: Vec<(Cqe, Vec<u8>)>,
}

impl TcpQueue {
    /// A connection, and its ICReq and ICResp.
    ///
    /// # Panics
    /// When the target does not answer.
    #[must_use]
    pub fn set_up(target: SocketAddr, asked: Asked) -> Self {
        let stream = tcp(target, asked.source).expect("a listener");
        let request = IcRequest {
            hpda: DataAlignment::DWORD,
            digests: asked.digests,
            maxr2t: 1,
        };
        let flow_control = !asked.no_flow_control;
        let mut queue = Self {
            queue: HostQueue::new(request, asked.entries, flow_control, 0),
            link: Link::new(stream).expect("options"),
            pool: Pool::new(MEMORY_BYTES, Pages::Ordinary).expect("memory"),
            scratch: vec![0; SCRATCH_BYTES],
            next_cid: 0,
            entries: asked.entries,
            done: Vec::new(),
        };
        let begin = Instant::now();
        while !matches!(queue.event(), Some(HostQueueEvent::Ready(_))) {
            assert!(begin.elapsed() < PATIENCE, "no ICResp");
        }
        queue
    }

    /// The same, and its Connect. Gives the response.
    ///
    /// # Panics
    /// When the target does not answer.
    #[must_use]
    pub fn connect(
        target: SocketAddr,
        asked: Asked,
        parameters: &ConnectParameters,
    ) -> (Self, Cqe) {
        let mut queue = Self::set_up(target, asked);
        let connect = Connect {
            qid: asked.qid,
            sqsize: asked.entries.into(),
            cattr: Cattr(u8::from(asked.no_flow_control) << 2),
            kato_ms: 0,
        };
        let sqe = FabricsCommand::Connect(connect).encode(0, Sgl::EMPTY);
        let data = parameters.encode();
        let (cqe, _) = queue.run(sqe, Data::InCapsule(data.as_bytes()));
        (queue, cqe)
    }

    /// What has happened since it was last asked.
    pub fn event(&mut self) -> Option<HostQueueEvent> {
        if let Some(event) = self.queue.poll_event() {
            return Some(event);
        }
        self.link.send(&mut self.queue);
        self.link.receive(&mut self.queue, &mut self.scratch, 0);
        self.queue.poll_event()
    }

    /// Sends a command. Gives its CID.
    ///
    /// # Panics
    /// When there is no room for it.
    pub fn post(&mut self, mut sqe: Sqe, data: Data<'_>) -> u16 {
        let cid = self.next_cid % self.entries;
        self.next_cid = self.next_cid.wrapping_add(1);
        sqe.cid = cid.into();
        let filled = |bytes: &[u8]| {
            let len_bytes = u32::try_from(bytes.len()).expect("a transfer");
            let mut buffer = self.pool.take(len_bytes).expect("memory");
            buffer.copy_from(0, bytes);
            (buffer, len_bytes)
        };
        let payload = match data {
            Data::None => Payload::None,
            Data::InCapsule(bytes) => {
                let (buffer, len_bytes) = filled(bytes);
                Payload::InCapsule(buffer, len_bytes)
            }
            Data::Out(bytes) => {
                let (buffer, len_bytes) = filled(bytes);
                Payload::ToController(buffer, len_bytes)
            }
            Data::In(len_bytes) => {
                let buffer = self.pool.take(len_bytes).expect("memory");
                Payload::FromController(buffer, len_bytes)
            }
        };
        self.queue.send(sqe, payload).expect("room");
        self.link.send(&mut self.queue);
        cid
    }

    /// Waits for the completion of a command. Gives what it has returned, too.
    ///
    /// # Panics
    /// When it does not come.
    pub fn wait(&mut self, cid: u16) -> (Cqe, Vec<u8>) {
        let begin = Instant::now();
        loop {
            let found = self.done.iter().position(|(cqe, _)| cqe.cid.get() == cid);
            if let Some(at) = found {
                return self.done.remove(at);
            }
            match self.event() {
                Some(HostQueueEvent::Response {
                    cqe,
                    memory,
                    arrived,
                }) => {
                    let mut bytes = Vec::new();
                    if let Some(memory) = memory
                        && cqe.status().is_success()
                    {
                        // What an Admin command returns may be less than was asked for.
                        let is_allowed = matches!(arrived, Arrived::Whole | Arrived::Short);
                        assert!(is_allowed, "{arrived:?}: {cqe:?}");
                        bytes.resize(memory.len_bytes() as usize, 0);
                        memory.copy_to(0, &mut bytes);
                    }
                    self.done.push((cqe, bytes));
                }
                Some(HostQueueEvent::Ended(why)) => panic!("the queue ended: {why}"),
                _ => assert!(begin.elapsed() < PATIENCE, "no completion of {cid}"),
            }
        }
    }

    /// Sends a command and waits for its completion.
    ///
    /// # Panics
    /// As [`TcpQueue::wait`].
    pub fn run(&mut self, sqe: Sqe, data: Data<'_>) -> (Cqe, Vec<u8>) {
        let cid = self.post(sqe, data);
        self.wait(cid)
    }

    /// Waits for the end of the queue, and says why it ended.
    ///
    /// # Panics
    /// When it goes on.
    pub fn wait_for_the_end(&mut self) -> String {
        let begin = Instant::now();
        loop {
            if let Some(HostQueueEvent::Ended(why)) = self.event() {
                return why.to_string();
            }
            assert!(begin.elapsed() < PATIENCE, "the queue did not end");
        }
    }
}

/// A host with an Admin queue, and an I/O queue of QID 1.
pub struct TcpHost {
    /// The Admin queue.
    pub admin: TcpQueue,
    /// The I/O queue.
    pub io: TcpQueue,
}

impl TcpHost {
    /// Connects as host `number`, enables the controller and connects its I/O queue.
    ///
    /// # Panics
    /// When that does not succeed.
    #[must_use]
    pub fn connect(target: SocketAddr, number: u8, digests: Digests, entries: u16) -> Self {
        Self::connect_from(Ipv4Addr::LOCALHOST, target, number, digests, entries)
    }

    /// The same from this address.
    ///
    /// # Panics
    /// When that does not succeed.
    #[must_use]
    pub fn connect_from(
        source: Ipv4Addr,
        target: SocketAddr,
        number: u8,
        digests: Digests,
        entries: u16,
    ) -> Self {
        let mut parameters = connect_data(number);
        let asked = Asked {
            source,
            qid: 0,
            entries: 32,
            digests,
            no_flow_control: false,
        };
        let (mut admin, cqe) = TcpQueue::connect(target, asked, &parameters);
        assert!(cqe.status().is_success(), "{:?}", cqe.status());
        parameters.cntlid = ConnectResponse::decode(cqe.dw0.get()).cntlid;
        enable(&mut admin);
        let asked = Asked {
            qid: 1,
            entries,
            no_flow_control: true,
            ..asked
        };
        let (io, cqe) = TcpQueue::connect(target, asked, &parameters);
        assert!(cqe.status().is_success(), "{:?}", cqe.status());
        Self { admin, io }
    }
}

/// Enables the controller of an Admin queue.
///
/// # Panics
/// When it does not become ready.
pub fn enable(admin: &mut TcpQueue) {
    let set = PropertySet {
        property: Property::CC,
        size: Property::CC.size().expect("CC has a size"),
        value: Cc::ENABLE_NVM.encode().into(),
    };
    let (cqe, _) = admin.run(
        FabricsCommand::PropertySet(set).encode(0, Sgl::EMPTY),
        Data::None,
    );
    assert!(cqe.status().is_success(), "{:?}", cqe.status());
    let begin = Instant::now();
    loop {
        let get = PropertyGet {
            property: Property::CSTS,
            size: Property::CSTS.size().expect("CSTS has a size"),
        };
        let (cqe, _) = admin.run(
            FabricsCommand::PropertyGet(get).encode(0, Sgl::EMPTY),
            Data::None,
        );
        if Csts::decode(cqe.dw0.get()).rdy {
            return;
        }
        assert!(begin.elapsed() < PATIENCE, "the controller is not ready");
    }
}
