//! RDMA: a controller that is a few queue pairs.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use capstan_memory::Buffer;
use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::sgl::Sgl;
use capstan_nvme_proto::sqe::Sqe;
use capstan_rdma::contract::{
    Access, CmEventKind, CmId, ConnectionManager, PrivateData, QpNum, QpState, QueuePair, RKey,
    ReceiveSource, Remote, SendOp, SendWr, WcOpcode, WcStatus, WorkCompletion,
};
use zerocopy::IntoBytes;

use super::harness::{Clock, PARAM, PeerEnd, Rdma, Side, managers};
use super::over::{Command, Controller, REFUSAL, Welcome};

const COMPLETIONS: u32 = 512;
const POOL_BYTES: usize = 8 << 20;
/// Receives of each queue, and the bytes of one.
const RECEIVES: u16 = 64;
const RECEIVE_BYTES: u32 = 64 + 8192;
/// Work requests that are no receives have names from here on.
const FIRST_SEND: u64 = 1 << 32;

/// One queue.
struct Peer {
    /// `None` when the controller has ended it.
    qp: Option<Box<dyn QueuePair>>,
    num: QpNum,
    id: CmId,
    qid: u16,
    receives: Buffer,
    has_failed: bool,
}

/// A work request that has not completed.
struct Posted {
    buffer: Buffer,
    /// How much it reads from the host.
    pulls_bytes: Option<u32>,
}

pub(crate) struct RdmaController {
    peers: Vec<Peer>,
    posted: BTreeMap<u64, Posted>,
    next_send: u64,
    end: Option<Side>,
    cm: Box<dyn ConnectionManager>,
    at: SocketAddr,
    expected: (u16, Welcome),
    reads: bool,
    commands: Vec<Command>,
    pulled: Vec<Vec<u8>>,
    clock: Clock,
}

impl RdmaController {
    /// With the connection manager of its host.
    pub(crate) fn new(over: Rdma) -> (Self, Box<dyn ConnectionManager>) {
        let (clock, [cm, host_cm], at) = managers(over);
        let controller = Self {
            peers: Vec::new(),
            posted: BTreeMap::new(),
            next_send: FIRST_SEND,
            end: None,
            cm,
            at,
            expected: (0, Welcome::Waits),
            reads: true,
            commands: Vec::new(),
            pulled: Vec::new(),
            clock,
        };
        (controller, host_cm)
    }

    fn requested(&mut self, id: CmId) {
        let (qid, welcome) = self.expected;
        match welcome {
            Welcome::Accepts => {}
            Welcome::Refuses => {
                let why = PrivateData::new(REFUSAL).expect("a few bytes");
                return self.cm.reject(id, &why);
            }
            Welcome::Waits => return,
        }
        let device = self.cm.device(id).expect("a device");
        // Some devices read from the host only into what the host might write to.
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let end = self
            .end
            .get_or_insert_with(|| Side::new(device, access, POOL_BYTES, COMPLETIONS));
        let config = end.config(ReceiveSource::Own(RECEIVES.into()));
        let Ok(qp) = self.cm.create_qp(id, &end.pd, &config) else {
            // The host has given up: librdmacm makes no queue pair for it.
            return self.cm.destroy(id);
        };
        let receives_bytes = u32::from(RECEIVES) * RECEIVE_BYTES;
        let mut peer = Peer {
            num: qp.num(),
            qp: Some(qp),
            id,
            qid,
            receives: end.pool.take(receives_bytes).expect("memory"),
            has_failed: false,
        };
        (0..RECEIVES).for_each(|nth| peer.post_receive(end, nth));
        if self.cm.accept(id, &PARAM).is_err() {
            // The host has given up.
            drop(peer);
            return self.cm.destroy(id);
        }
        self.peers.retain(|peer| peer.qid != qid);
        self.peers.push(peer);
    }

    fn completed(&mut self, wc: &WorkCompletion) {
        let posted = self.posted.remove(&wc.wr_id);
        let Some(peer) = self.peers.iter_mut().find(|peer| peer.num == wc.qp) else {
            return;
        };
        if wc.status != WcStatus::Success {
            peer.has_failed = true;
            return;
        }
        if let Some(Posted {
            buffer,
            pulls_bytes: Some(len_bytes),
        }) = posted
        {
            let mut bytes = vec![0; len_bytes as usize];
            buffer.copy_to(0, &mut bytes);
            self.pulled.push(bytes);
        }
        if wc.opcode == WcOpcode::Recv {
            let nth = u16::try_from(wc.wr_id).expect("the name of a receive");
            let mut capsule = vec![0; wc.byte_len as usize];
            let at = usize::from(nth) * RECEIVE_BYTES as usize;
            peer.receives.copy_to(at, &mut capsule);
            let (sqe, data) = Sqe::from_capsule(&capsule).expect("a capsule has an SQE");
            self.commands.push(Command {
                qid: peer.qid,
                sqe: *sqe,
                data: data.to_vec(),
            });
            if let Some(end) = &self.end {
                peer.post_receive(end, nth);
            }
        }
    }

    /// Posts a work request with memory that has these bytes, or room for so many.
    fn post(&mut self, qid: u16, op: SendOp, bytes: &[u8], pulls_bytes: Option<u32>) {
        let is_it = |peer: &&mut Peer| peer.qid == qid && peer.qp.is_some();
        let peer = self.peers.iter_mut().find(is_it);
        let (Some(peer), Some(end)) = (peer, &self.end) else {
            return;
        };
        let Some(qp) = &mut peer.qp else { return };
        let sent_bytes = u32::try_from(bytes.len()).expect("a few");
        let len_bytes = pulls_bytes.unwrap_or(sent_bytes);
        let mut buffer = end.pool.take(len_bytes.max(1)).expect("memory");
        buffer.copy_from(0, bytes);
        let wr_id = self.next_send;
        self.next_send += 1;
        let posted = qp.post_send(&SendWr {
            wr_id,
            op,
            sges: &[end.sge(&buffer, 0, len_bytes)],
            signaled: true,
            fence: false,
        });
        qp.ring_doorbell();
        // One that has ended takes nothing.
        assert!(posted.is_ok() || qp.state() == QpState::Error, "{posted:?}");
        if posted.is_ok() {
            self.posted.insert(
                wr_id,
                Posted {
                    buffer,
                    pulls_bytes,
                },
            );
        }
    }
}

impl Peer {
    fn post_receive(&mut self, end: &Side, nth: u16) {
        let at = u32::from(nth) * RECEIVE_BYTES;
        let sge = end.sge(&self.receives, at, RECEIVE_BYTES);
        if let Some(qp) = &mut self.qp {
            // One that has ended takes nothing.
            let _ = qp.post_recv(nth.into(), &[sge]);
        }
    }
}

/// Where the memory of a command is.
fn remote(command: &Command, offset_bytes: u32) -> Remote {
    match command.sqe.sgl() {
        Ok(Sgl::Keyed { address, rkey, .. }) => Remote {
            addr: address + u64::from(offset_bytes),
            rkey: RKey(rkey),
        },
        other => panic!("{other:?} is no memory with a key"),
    }
}

impl Controller for RdmaController {
    fn address(&self) -> SocketAddr {
        self.at
    }

    fn silent_address(&self) -> SocketAddr {
        SocketAddr::new(self.at.ip(), 9)
    }

    fn now_us(&self) -> u64 {
        self.clock.now_us()
    }

    fn expects(&mut self, qid: u16, welcome: Welcome) {
        self.expected = (qid, welcome);
    }

    fn turn(&mut self) {
        let now_us = self.now_us();
        let mut is_idle = true;
        while let Some(event) = self.cm.poll(now_us) {
            is_idle = false;
            match event.kind {
                CmEventKind::ConnectRequest { .. } => self.requested(event.id),
                CmEventKind::Disconnected { .. } | CmEventKind::Failed(_) => {
                    let peer = self.peers.iter_mut().find(|peer| peer.id == event.id);
                    if let Some(peer) = peer {
                        peer.has_failed = true;
                    }
                }
                _ => {}
            }
        }
        if let Some(end) = self.end.as_ref().filter(|_| self.reads) {
            let mut completions = [WorkCompletion::EMPTY; 32];
            let count = end.cq.poll(&mut completions);
            is_idle &= count == 0;
            completions[..count]
                .iter()
                .for_each(|wc| self.completed(wc));
        }
        if is_idle {
            // Everything that has happened was looked at.
            self.clock.advance();
        }
    }

    fn reads(&mut self, reads: bool) {
        self.reads = reads;
    }

    fn take_commands(&mut self) -> Vec<Command> {
        std::mem::take(&mut self.commands)
    }

    fn push(&mut self, command: &Command, offset_bytes: u32, bytes: &[u8], _: bool) {
        let op = SendOp::Write(remote(command, offset_bytes));
        self.post(command.qid, op, bytes, None);
    }

    fn push_half(&mut self, command: &Command, bytes: &[u8]) {
        self.push(command, 0, &bytes[..bytes.len() / 2], false);
    }

    fn pull(&mut self, command: &Command, offset_bytes: u32, len_bytes: u32) {
        let op = SendOp::Read(remote(command, offset_bytes));
        self.post(command.qid, op, &[], Some(len_bytes));
    }

    fn take_pulled(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.pulled)
    }

    fn respond(&mut self, command: &Command, cqe: &Cqe, invalidates: bool) {
        let invalidate = match command.sqe.sgl() {
            Ok(Sgl::Keyed {
                rkey, invalidate, ..
            }) if invalidate && invalidates => Some(RKey(rkey)),
            _ => None,
        };
        let op = SendOp::Send {
            invalidate,
            solicited: false,
        };
        self.post(command.qid, op, cqe.as_bytes(), None);
    }

    fn offences(&self, _: &Command, _: &Command) -> Vec<(&'static str, Vec<u8>)> {
        vec![
            ("a response of 10 bytes", vec![0; 10]),
            ("a response of 15 bytes", vec![7; 15]),
            ("a response of 17 bytes", vec![0; 17]),
            ("a command", vec![0; 64]),
        ]
    }

    fn send_raw(&mut self, qid: u16, bytes: &[u8]) {
        let op = SendOp::Send {
            invalidate: None,
            solicited: false,
        };
        self.post(qid, op, bytes, None);
    }

    fn ends(&mut self, qid: u16, how: PeerEnd) {
        let Some(peer) = self.peers.iter_mut().find(|peer| peer.qid == qid) else {
            return;
        };
        match how {
            PeerEnd::Closes => self.cm.disconnect(peer.id),
            PeerEnd::Resets => self.cm.abort(peer.id),
            PeerEnd::Terminates => panic!("there is no such message"),
        }
        if peer.qp.take().is_some() {
            self.cm.destroy(peer.id);
        }
    }
}
