//! NVMe/TCP: a controller that is a few sockets.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Instant;

use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::status::Status;
use capstan_nvme_proto::tcp::Role;
use capstan_nvme_proto::tcp::c2h::C2hData;
use capstan_nvme_proto::tcp::r2t::R2t;
use capstan_nvme_proto::tcp::setup::{Agreed, DataAlignment, Digests, IcResponse};
use capstan_nvme_proto::tcp::writer::PduWriter;
use nix::sys::socket::{setsockopt, sockopt};
use zerocopy::IntoBytes;

use super::harness::PeerEnd;
use super::harness::socket::whole;
use super::over::{Command, Controller, Over, Welcome};
use super::tcp_peer::Peer;

/// What a socket of the controller takes at once, so that a few commands are more than it does.
const SOCKET_BYTES: usize = 64 << 10;
/// What the controller calls every R2T.
const TTAG: u16 = 77;

pub(crate) struct TcpController {
    listener: TcpListener,
    response: IcResponse,
    expected: (u16, Welcome),
    peers: Vec<Peer>,
    reads: bool,
    corrupts_data: bool,
    /// Connections that are left as they are.
    waiting: Vec<TcpStream>,
    start: Instant,
}

/// What a controller answers ICReq with, over such a wire.
fn response(over: Over) -> IcResponse {
    if over == Over::TcpWithDigests {
        IcResponse {
            cpda: DataAlignment::from_wire(31).expect("128 bytes"),
            digests: Digests::all(),
            maxh2cdata_bytes: IcResponse::MAXH2CDATA_MIN_BYTES,
        }
    } else {
        IcResponse {
            cpda: DataAlignment::DWORD,
            digests: Digests::empty(),
            maxh2cdata_bytes: 1 << 20,
        }
    }
}

impl TcpController {
    pub(crate) fn new(over: Over) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        setsockopt(&listener, sockopt::RcvBuf, &SOCKET_BYTES).expect("a socket");
        listener.set_nonblocking(true).expect("a socket");
        Self {
            listener,
            response: response(over),
            expected: (0, Welcome::Waits),
            peers: Vec::new(),
            reads: true,
            corrupts_data: false,
            waiting: Vec::new(),
            start: Instant::now(),
        }
    }

    fn peer(&mut self, qid: u16) -> &mut Peer {
        let peer = self.peers.iter_mut().find(|peer| peer.qid == qid);
        peer.expect("the queue was connected")
    }

    /// Data of a command as a PDU.
    fn data_pdu(&self, command: &Command, at: u32, bytes: &[u8], last: bool) -> Vec<u8> {
        let data = C2hData {
            cid: command.sqe.cid.get(),
            offset_bytes: at,
            length_bytes: u32::try_from(bytes.len()).expect("a few"),
            last,
            success: false,
        };
        let head = self.writer(command.qid).c2h_data(&data);
        whole(&head, bytes, self.corrupts_data)
    }

    fn writer(&self, qid: u16) -> PduWriter {
        let peer = self.peers.iter().find(|peer| peer.qid == qid);
        let (_, writer) = peer.and_then(|peer| peer.setup).expect("it is set up");
        writer
    }

    fn agreed(&self, qid: u16) -> Agreed {
        let peer = self.peers.iter().find(|peer| peer.qid == qid);
        let (agreed, _) = peer.and_then(|peer| peer.setup).expect("it is set up");
        agreed
    }
}

impl Controller for TcpController {
    fn address(&self) -> SocketAddr {
        self.listener.local_addr().expect("it is bound")
    }

    fn silent_address(&self) -> SocketAddr {
        // Bound and closed again.
        let unused = TcpListener::bind("127.0.0.1:0").expect("a port");
        unused.local_addr().expect("it is bound")
    }

    fn now_us(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_micros()).expect("not so long")
    }

    fn expects(&mut self, qid: u16, welcome: Welcome) {
        self.expected = (qid, welcome);
    }

    fn turn(&mut self) {
        while let Ok((stream, _)) = self.listener.accept() {
            let (qid, welcome) = self.expected;
            match welcome {
                Welcome::Accepts => {
                    self.peers.retain(|peer| peer.qid != qid);
                    self.peers.push(Peer::new(qid, stream, self.response));
                }
                Welcome::Refuses => drop(stream),
                Welcome::Waits => self.waiting.push(stream),
            }
        }
        for peer in &mut self.peers {
            if self.reads {
                peer.receive();
            }
            peer.write(&[]);
        }
    }

    fn reads(&mut self, reads: bool) {
        self.reads = reads;
    }

    fn take_commands(&mut self) -> Vec<Command> {
        let peers = self.peers.iter_mut();
        peers.flat_map(|peer| peer.commands.drain(..)).collect()
    }

    fn push(&mut self, command: &Command, offset_bytes: u32, bytes: &[u8], is_last: bool) {
        let pdu = self.data_pdu(command, offset_bytes, bytes, is_last);
        self.peer(command.qid).write(&pdu);
    }

    fn push_half(&mut self, command: &Command, bytes: &[u8]) {
        let pdu = self.data_pdu(command, 0, bytes, true);
        self.peer(command.qid).write(&pdu[..pdu.len() / 2]);
    }

    fn pull(&mut self, command: &Command, offset_bytes: u32, length_bytes: u32) {
        let r2t = R2t {
            cid: command.sqe.cid.get(),
            ttag: TTAG,
            offset_bytes,
            length_bytes,
        };
        let pdu = self.writer(command.qid).r2t(&r2t);
        let peer = self.peer(command.qid);
        peer.due_at_bytes = offset_bytes;
        peer.write(pdu.as_bytes());
    }

    fn take_pulled(&mut self) -> Vec<Vec<u8>> {
        let peers = self.peers.iter_mut();
        peers.flat_map(|peer| peer.pulled.drain(..)).collect()
    }

    fn respond(&mut self, command: &Command, cqe: &Cqe, _: bool) {
        let pdu = self.writer(command.qid).capsule_resp(cqe);
        self.peer(command.qid).write(pdu.as_bytes());
    }

    fn corrupts_data(&mut self) {
        self.corrupts_data = true;
    }

    fn offences(&self, read: &Command, write: &Command) -> Vec<(&'static str, Vec<u8>)> {
        let writer = self.writer(read.qid);
        let ask = |command: &Command, offset_bytes, length_bytes| {
            let r2t = R2t {
                cid: command.sqe.cid.get(),
                ttag: TTAG,
                offset_bytes,
                length_bytes,
            };
            writer.r2t(&r2t).as_bytes().to_vec()
        };
        let success = Cqe::new(read.sqe.cid.get(), 0, Status::SUCCESS, 0);
        let response = writer.capsule_resp(&success).as_bytes().to_vec();
        let mut short = response.clone();
        short[4..8].copy_from_slice(&10_u32.to_le_bytes());
        let last_success = C2hData {
            cid: read.sqe.cid.get(),
            offset_bytes: 0,
            length_bytes: 4096,
            last: true,
            success: true,
        };
        let last_success = whole(&writer.c2h_data(&last_success), &[0; 4096], false);
        let from_host = PduWriter::new(Role::Host, &self.agreed(read.qid));
        let mut offences = vec![
            ("a PDU of 10 bytes", short),
            ("another protocol", b"HTTP/1.1 400 Bad Request\r\n".to_vec()),
            (
                "a second ICResp",
                self.response.encode().as_bytes().to_vec(),
            ),
            (
                "a PDU of hosts",
                from_host.capsule_cmd(&read.sqe, 0).as_bytes().to_vec(),
            ),
            (
                "data of a command asked for beyond its end",
                ask(write, 4096, 512),
            ),
            (
                "data of a command asked for from its middle",
                ask(write, 512, 512),
            ),
            (
                "more R2Ts than MAXR2T",
                [ask(write, 0, 2048), ask(write, 2048, 512)].concat(),
            ),
            (
                "data asked for of a command that has none",
                ask(read, 0, 512),
            ),
            (
                "data for a command that takes none",
                self.data_pdu(write, 0, &[0; 512], true),
            ),
            (
                "data beyond what was asked for",
                self.data_pdu(read, 0, &[0; 4608], true),
            ),
            (
                "data from the middle on",
                self.data_pdu(read, 512, &[0; 3584], true),
            ),
            (
                "LAST_PDU before the end",
                self.data_pdu(read, 0, &[0; 512], true),
            ),
            ("SUCCESS with SQ flow control", last_success),
            ("two responses", response.repeat(2)),
        ];
        if self.agreed(read.qid).digests.contains(Digests::HEADER) {
            let mut corrupt = response;
            corrupt[9] ^= 1;
            offences.push(("a header that does not fit its digest", corrupt));
        }
        offences
    }

    fn send_raw(&mut self, qid: u16, bytes: &[u8]) {
        self.peer(qid).write(bytes);
    }

    fn ends(&mut self, qid: u16, how: PeerEnd) {
        self.peer(qid).ends(how);
    }

    fn was_reset(&self, qid: u16) -> bool {
        let peer = self.peers.iter().find(|peer| peer.qid == qid);
        peer.is_some_and(|peer| peer.was_reset)
    }

    fn accusation(&self, qid: u16) -> Option<(u16, u32)> {
        let peer = self.peers.iter().find(|peer| peer.qid == qid);
        peer.and_then(|peer| peer.accusation)
    }

    fn has_ended(&self, qid: u16) -> bool {
        let peer = self.peers.iter().find(|peer| peer.qid == qid);
        peer.is_none_or(|peer| peer.has_ended)
    }
}
