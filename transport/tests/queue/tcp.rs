//! NVMe/TCP: a wire of the controller's side, and a host that is a socket.

use std::net::{TcpListener, TcpStream};
use std::time::Instant;

use capstan_memory::{Pages, Pool};
use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::opcode::IoOpcode;
use capstan_nvme_proto::sgl::Sgl;
use capstan_nvme_proto::sqe::Sqe;
use capstan_nvme_proto::tcp::h2c::H2cData;
use capstan_nvme_proto::tcp::setup::{DataAlignment, Digests, IcRequest};
use capstan_nvme_proto::transfer::DataTransfer;
use capstan_transport::End;
use capstan_transport::tcp::controller::{Connected, IcSettings};
use capstan_transport::tcp::host_memory;
use capstan_transport::tcp::limits::TERM_US;
use capstan_transport::tcp::staging::Staging;
use capstan_transport::tcp::wire::{TcpQueue, TcpWire};
use capstan_transport::{CapsuleData, HostMemory, Queue};
use nix::sys::socket::{setsockopt, sockopt};
use zerocopy::IntoBytes;

use super::harness::PeerEnd;
use super::over::{Answers, Ends, LocalEnd, LocalEvent, Over};
use super::tcp_host::Host;
use super::world::{ENTRIES, IN_CAPSULE_BYTES, Named, PATIENCE, QUEUE};

const POOL_BYTES: usize = 4 << 20;
/// Of each socket and direction, so that a few pushes are more than the sockets take.
const SOCKET_BYTES: usize = 64 << 10;

pub(crate) struct TcpEnds {
    wire: TcpWire,
    pool: Pool,
    host: Host,
    start: Instant,
    /// What has gone by beside that.
    waited_us: u64,
}

/// What the host asks for, what the controller answers, and whether SQ flow control is in use.
fn settings(over: Over) -> (IcRequest, IcSettings, bool) {
    if over != Over::TcpInParts {
        let request = IcRequest {
            hpda: DataAlignment::DWORD,
            digests: Digests::empty(),
            maxr2t: 1,
        };
        return (request, IcSettings::default(), true);
    }
    let request = IcRequest {
        hpda: DataAlignment::from_wire(15).expect("64 bytes"),
        digests: Digests::all(),
        maxr2t: 4,
    };
    let settings = IcSettings {
        digests: Digests::all(),
        cpda: DataAlignment::from_wire(31).expect("128 bytes"),
        maxh2cdata_bytes: 4096,
        r2t_max_bytes: 16_000,
    };
    (request, settings, false)
}

impl TcpEnds {
    /// A connection whose Connect was accepted, and of which nothing was read since.
    pub(crate) fn accepted(over: Over) -> (Self, Queue) {
        let (request, settings, flow_control) = settings(over);
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        setsockopt(&listener, sockopt::SndBuf, &SOCKET_BYTES).expect("a socket");
        let host = TcpStream::connect(listener.local_addr().expect("bound")).expect("taken");
        setsockopt(&host, sockopt::RcvBuf, &SOCKET_BYTES).expect("a socket");
        let (stream, _) = listener.accept().expect("a connection");
        let mut wire = TcpWire::new(Staging::default()).expect("an epoll");
        let queue = wire.add(QUEUE, stream, (settings, &[]), 0);
        let mut ends = Self {
            wire,
            pool: Pool::new(POOL_BYTES, Pages::Ordinary).expect("memory"),
            host: Host::new(host, request),
            start: Instant::now(),
            waited_us: 0,
        };
        let mut queue = Some(Queue::Tcp(Box::new(queue.expect("a queue"))));
        while !ends.host.is_set_up() {
            assert!(ends.start.elapsed() < PATIENCE, "no ICResp");
            ends.poll(&mut queue);
            assert!(ends.next_event(&mut queue).is_none());
            ends.flush(&mut queue);
            ends.turn_host();
        }
        let mut queue = queue.expect("it is there");
        let connected = Connected {
            entries: ENTRIES,
            in_capsule_max_bytes: IN_CAPSULE_BYTES,
            flow_control,
        };
        of(&mut queue).with(|queue| {
            queue.connected(connected);
            for _ in 0..ENTRIES {
                queue.give(ends.pool.take(IN_CAPSULE_BYTES).expect("memory"));
            }
        });
        (ends, queue)
    }

    fn now_us(&self) -> u64 {
        let since = self.start.elapsed().as_micros();
        self.waited_us + u64::try_from(since).expect("not so long")
    }
}

fn of(queue: &mut Queue) -> &mut TcpQueue {
    queue.tcp().expect("a queue over NVMe/TCP")
}

impl Ends for TcpEnds {
    fn pool(&self) -> &Pool {
        &self.pool
    }

    /// A queue that has ended gives back what it has for in-capsule data.
    fn resting_bytes(&self) -> usize {
        0
    }

    fn poll(&mut self, queue: &mut Option<Queue>) {
        let now_us = self.now_us();
        self.wire.poll(&mut Named(queue), now_us);
    }

    fn next_event(&mut self, queue: &mut Option<Queue>) -> Option<LocalEvent> {
        let (id, event) = self.wire.next_event(&mut Named(queue))?;
        assert_eq!(id, QUEUE);
        Some(LocalEvent::Of(event))
    }

    fn flush(&mut self, queue: &mut Option<Queue>) {
        self.wire.flush(&mut Named(queue));
    }

    /// The queue has them, and is gone with them.
    fn has_fences(&self) -> bool {
        false
    }

    fn end(&mut self, queue: &mut Queue, how: LocalEnd) {
        match how {
            LocalEnd::Closes => queue.end(End::Drained),
            LocalEnd::Aborts => queue.end(End::Now),
        }
    }

    fn is_empty(&self) -> bool {
        self.wire.is_empty()
    }

    fn wait_long(&mut self) {
        self.waited_us += TERM_US;
    }

    fn turn_host(&mut self) {
        self.host.turn();
    }

    fn send(&mut self, capsule: &[u8]) {
        let pdu = self.host.capsule(capsule);
        self.send_raw(&pdu);
    }

    fn offences(&self) -> Vec<(&'static str, Vec<u8>)> {
        let capsule = self.host.capsule(&[0; 64]);
        let mut short = capsule.clone();
        short[4..8].copy_from_slice(&10_u32.to_le_bytes());
        let unasked = H2cData {
            cid: 9,
            ttag: 99,
            offset_bytes: 0,
            length_bytes: 512,
            last: true,
        };
        let too_long = [0; 64 + IN_CAPSULE_BYTES as usize + 4];
        let again = IcRequest {
            hpda: DataAlignment::DWORD,
            digests: Digests::empty(),
            maxr2t: 1,
        };
        vec![
            ("a PDU of 10 bytes", short),
            (
                "a PDU of another protocol",
                b"GET / HTTP/1.1\r\n\r\n".to_vec(),
            ),
            ("data that was not asked for", self.host.h2c_data(&unasked)),
            ("too much in a capsule", self.host.capsule(&too_long)),
            (
                "more commands than entries",
                capsule.repeat(usize::from(ENTRIES) + 1),
            ),
            ("a second ICReq", again.encode().as_bytes().to_vec()),
        ]
    }

    fn send_raw(&mut self, bytes: &[u8]) {
        self.host.write(bytes);
        assert!(!self.host.has_unsent(), "the socket takes so much");
    }

    fn send_half(&mut self, capsule: &[u8]) {
        let pdu = self.host.capsule(capsule);
        self.send_raw(&pdu[..pdu.len() / 2]);
    }

    fn accused(&self) -> Option<(u16, u32)> {
        self.host.accused
    }

    fn most_asked(&self) -> usize {
        self.host.most_asked
    }

    fn host_ends(&mut self, how: PeerEnd) {
        self.host.ends(how);
    }

    fn host_reads(&mut self, reads: bool) {
        self.host.reads = reads;
    }

    fn host_answers(&mut self, answers: Answers) {
        self.host.answers = answers;
    }

    fn offer(&mut self, cid: u16, parts: &[(u32, u32)]) -> HostMemory {
        let &[(at, length_bytes)] = parts else {
            panic!("the data of a command is in one place over NVMe/TCP");
        };
        self.host.offer(cid, at);
        let mut sqe = Sqe::new(IoOpcode::READ.0, cid, 1);
        sqe.dptr = Sgl::Transport { length_bytes }.encode();
        let bytes = length_bytes.into();
        let transfer = DataTransfer::ControllerToHost { bytes };
        host_memory(&sqe, transfer, &mut CapsuleData::None).expect("its SGL is right")
    }

    fn put_data(&mut self, at: u32, bytes: &[u8]) {
        self.host.put_data(at, bytes);
    }

    fn data(&self, at: u32, len_bytes: u32) -> Vec<u8> {
        self.host.data(at, len_bytes)
    }

    fn take_responses(&mut self) -> Vec<Cqe> {
        self.host.take_responses()
    }
}
