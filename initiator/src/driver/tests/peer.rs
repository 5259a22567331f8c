//! A target over the contract, for tests: one thread, one namespace of RAM, and manners that can
//! be taken away.

use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

use capstan_memory::{Buffer, Pages, Pool};
use capstan_nvme_proto::command::IoCommand;
use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::dataset::DsmRange;
use capstan_nvme_proto::opcode::AdminOpcode;
use capstan_nvme_proto::rdma_cm::{CmAccept, CmReject, CmRequest, RejectStatus};
use capstan_nvme_proto::sgl::Sgl;
use capstan_nvme_proto::sqe::Sqe;
use capstan_nvme_proto::status::Status;
use capstan_rdma::contract::{
    Access, CmEventKind, CmId, CompletionQueue, ConnectParam, ConnectionManager, MemoryRegion,
    PrivateData, ProtectionDomain, QpConfig, QpNum, QueuePair, RKey, ReceiveSource, Remote, SendOp,
    SendWr, Sge, WcOpcode, WcStatus, WorkCompletion,
};
use zerocopy::IntoBytes;

use crate::scripted::{Answer, IN_CAPSULE_BYTES, LBA_BYTES, NSZE_LBAS, ScriptedController};

#[expect(clippy::cast_possible_truncation, reason = "8 KiB")]
const RECEIVE_BYTES: u32 = 64 + IN_CAPSULE_BYTES as u32;
const TRANSFER_BYTES: u32 = 1 << 20;

/// How an I/O is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manner {
    /// As asked: SEND_WITH_INV when the SGL says so.
    Proper,
    /// Never with SEND_WITH_INV.
    KeepKey,
    /// Not at all.
    Silent,
    /// Twice.
    Twice,
    /// With a CID of no command, then properly.
    WrongCidFirst,
    /// With an RDMA WRITE one byte past what was asked.
    Overrun,
    /// After the answer, with an RDMA WRITE to the same place.
    LateWrite,
    /// With this status.
    Fail(Status),
}

/// What a command waits for before it is answered.
enum Pending {
    /// An RDMA READ of the host's data into the buffer.
    Pull { sqe: Sqe, buffer: Buffer },
}

struct Queue {
    qp: Box<dyn QueuePair>,
    id: CmId,
    qid: u16,
    receives: Vec<Buffer>,
    entries: u16,
    head: u16,
    pending: HashMap<u64, Pending>,
    /// Buffers of sends and writes, until the completion of the last of them.
    sent: VecDeque<(u64, Vec<Buffer>)>,
}

/// What the target opened of its device.
type Device = (
    Rc<dyn ProtectionDomain>,
    Rc<dyn CompletionQueue>,
    Rc<dyn MemoryRegion>,
);

/// The target.
pub(super) struct Peer {
    pub(super) cm: Box<dyn ConnectionManager>,
    pub(super) controller: ScriptedController,
    pub(super) manner: Manner,
    pub(super) disk: Vec<u8>,
    /// Refuse connection requests.
    pub(super) refuse: bool,
    /// I/O commands that came, oldest first.
    pub(super) commands: Vec<IoCommand>,
    /// Those whose data came in the capsule.
    pub(super) in_capsule: usize,
    queues: Vec<Queue>,
    pool: Pool,
    device: Option<Device>,
    next_wr: u64,
}

impl Peer {
    pub(super) fn new(cm: Box<dyn ConnectionManager>) -> Self {
        Self {
            cm,
            controller: ScriptedController::new(),
            manner: Manner::Proper,
            disk: vec![0; usize::try_from(NSZE_LBAS).unwrap() * LBA_BYTES],
            refuse: false,
            commands: Vec::new(),
            in_capsule: 0,
            queues: Vec::new(),
            pool: Pool::new(64 << 20, Pages::Ordinary).unwrap(),
            device: None,
            next_wr: 0,
        }
    }

    pub(super) fn connections(&self) -> usize {
        self.queues.len()
    }

    /// Breaks every connection, as a target that dies does.
    pub(super) fn drop_connections(&mut self) {
        for queue in self.queues.drain(..) {
            drop(queue.qp);
            self.cm.destroy(queue.id);
        }
    }

    /// One round; `true` when something was done.
    pub(super) fn turn(&mut self, now_us: u64) -> bool {
        let mut busy = false;
        while let Some(event) = self.cm.poll(now_us) {
            busy = true;
            match event.kind {
                CmEventKind::ConnectRequest { param, .. } => self.requested(event.id, &param),
                CmEventKind::Disconnected { .. } | CmEventKind::Failed(_) => {
                    self.queues.retain(|q| q.id != event.id);
                    self.cm.destroy(event.id);
                }
                _ => {}
            }
        }
        let Some((_, cq, _)) = self.device.clone() else {
            return busy;
        };
        let mut wcs = [WorkCompletion::EMPTY; 32];
        let count = cq.poll(&mut wcs);
        for wc in &wcs[..count] {
            self.completion(wc);
        }
        for queue in &mut self.queues {
            queue.qp.ring_doorbell();
        }
        busy || count > 0
    }

    fn requested(&mut self, id: CmId, param: &ConnectParam) {
        let request = CmRequest::parse(param.private_data.as_bytes()).unwrap();
        if self.refuse {
            let status = RejectStatus::NO_RESOURCES;
            let data = PrivateData::new(CmReject { status }.encode().as_bytes()).unwrap();
            self.cm.reject(id, &data);
            return;
        }
        let device = self.cm.device(id).unwrap();
        let (pd, cq, region) = self
            .device
            .get_or_insert_with(|| {
                let pd = device.allocate_pd().unwrap();
                let cq = device.create_cq(4096).unwrap();
                let slab = self.pool.slab();
                let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
                let region = pd.register(slab, 0, slab.len_bytes(), access).unwrap();
                (pd, cq, region)
            })
            .clone();
        let entries = u16::try_from(request.hsqsize).unwrap();
        let config = QpConfig {
            send_cq: Rc::clone(&cq),
            recv_cq: cq,
            send_wr_max: 1024,
            receives: ReceiveSource::Own(entries.into()),
            send_sge_max: 1,
            recv_sge_max: 1,
            inline_bytes: 0,
        };
        let mut qp = self.cm.create_qp(id, &pd, &config).unwrap();
        let receives: Vec<_> = (0..entries)
            .map(|_| self.pool.take(RECEIVE_BYTES).unwrap())
            .collect();
        for (at, buffer) in (0..).zip(&receives) {
            qp.post_recv(at, &[sge(buffer, RECEIVE_BYTES, &region)])
                .unwrap();
        }
        let accept = CmAccept { crqsize: entries }.encode();
        let param = ConnectParam {
            private_data: PrivateData::new(accept.as_bytes()).unwrap(),
            responder_resources: 1,
            initiator_depth: param.responder_resources.min(16),
            rnr_retry_count: 7,
        };
        self.cm.accept(id, &param).unwrap();
        self.queues.push(Queue {
            qp,
            id,
            qid: request.qid,
            receives,
            entries,
            head: 0,
            pending: HashMap::new(),
            sent: VecDeque::new(),
        });
    }

    fn queue_of(&self, qp: QpNum) -> Option<usize> {
        self.queues.iter().position(|q| q.qp.num() == qp)
    }

    fn completion(&mut self, wc: &WorkCompletion) {
        let Some(at) = self.queue_of(wc.qp) else {
            return;
        };
        if wc.status != WcStatus::Success {
            return;
        }
        match wc.opcode {
            WcOpcode::Recv => self.received(at, wc),
            WcOpcode::RdmaRead => {
                if let Some(Pending::Pull { sqe, buffer }) =
                    self.queues[at].pending.remove(&wc.wr_id)
                {
                    let mut data = vec![0; buffer.len_bytes() as usize];
                    buffer.copy_to(0, &mut data);
                    self.with_data(at, &sqe, &data);
                }
            }
            _ => {
                let sent = &mut self.queues[at].sent;
                while sent.front().is_some_and(|(wr, _)| *wr <= wc.wr_id) {
                    sent.pop_front();
                }
            }
        }
    }

    fn received(&mut self, at: usize, wc: &WorkCompletion) {
        let (_, _, region) = self.device.clone().unwrap();
        let queue = &mut self.queues[at];
        let index = usize::try_from(wc.wr_id).unwrap();
        let mut capsule = vec![0; wc.byte_len as usize];
        queue.receives[index].copy_to(0, &mut capsule);
        let sges = [sge(&queue.receives[index], RECEIVE_BYTES, &region)];
        queue.qp.post_recv(wc.wr_id, &sges).unwrap();
        queue.head = (queue.head + 1) % queue.entries;
        let (sqe, in_capsule) = Sqe::from_capsule(&capsule).unwrap();
        let (sqe, in_capsule) = (*sqe, in_capsule.to_vec());
        if queue.qid != 0 && !sqe.is_fabrics() {
            self.commands.push(IoCommand::parse(&sqe).unwrap());
        }
        match sqe.sgl().unwrap() {
            sgl @ Sgl::InCapsule { .. } => {
                let range = sgl.capsule_range(in_capsule.len()).unwrap();
                self.in_capsule += 1;
                self.with_data(at, &sqe, &in_capsule[range]);
            }
            Sgl::Keyed {
                address,
                length_bytes,
                rkey,
                ..
            } if length_bytes > 0 && sqe.data_direction() == OUT => {
                let buffer = self.pool.take(length_bytes).unwrap();
                let wr_id = self.wr();
                let queue = &mut self.queues[at];
                let sges = [sge(&buffer, length_bytes, &region)];
                let remote = Remote {
                    addr: address,
                    rkey: RKey(rkey),
                };
                post(&mut *queue.qp, wr_id, SendOp::Read(remote), &sges);
                queue.pending.insert(wr_id, Pending::Pull { sqe, buffer });
            }
            _ => self.with_data(at, &sqe, &[]),
        }
    }

    fn wr(&mut self) -> u64 {
        self.next_wr += 1;
        self.next_wr
    }

    /// The command and its data are here.
    fn with_data(&mut self, at: usize, sqe: &Sqe, data: &[u8]) {
        let qid = self.queues[at].qid;
        if qid == 0 || sqe.is_fabrics() {
            match self.controller.answer(qid, sqe, data) {
                Some(answer) => self.respond(at, sqe, &answer, Manner::Proper),
                None => assert!(matches!(
                    sqe.admin_opcode(),
                    AdminOpcode::ASYNCHRONOUS_EVENT_REQUEST
                        | AdminOpcode::KEEP_ALIVE
                        | AdminOpcode::GET_LOG_PAGE
                )),
            }
            return;
        }
        let manner = self.manner;
        let answer = match manner {
            Manner::Silent => return,
            Manner::Fail(status) => Answer {
                status,
                ..Answer::success(Vec::new())
            },
            _ => self.execute(sqe, data),
        };
        self.respond(at, sqe, &answer, manner);
    }

    fn execute(&mut self, sqe: &Sqe, data: &[u8]) -> Answer {
        let place = |slba: u64, nlb: u32| {
            let start = usize::try_from(slba).unwrap() * LBA_BYTES;
            start..start + nlb as usize * LBA_BYTES
        };
        let mut status = Status::SUCCESS;
        let mut out = Vec::new();
        match IoCommand::parse(sqe).unwrap() {
            IoCommand::Read(c) => out = self.disk[place(c.range.slba, c.range.nlb)].to_vec(),
            IoCommand::Write(c) => {
                self.disk[place(c.range.slba, c.range.nlb)].copy_from_slice(data);
            }
            IoCommand::Compare(c) => {
                if self.disk[place(c.range.slba, c.range.nlb)] != *data {
                    status = Status::COMPARE_FAILURE.dnr();
                }
            }
            IoCommand::WriteZeroes(c) => self.disk[place(c.range.slba, c.range.nlb)].fill(0),
            IoCommand::DatasetManagement(c) => {
                for range in DsmRange::parse_all(data, c.ranges).unwrap() {
                    let place = place(range.slba.get(), range.length_lbas.get());
                    self.disk[place].fill(0xDD);
                }
            }
            IoCommand::Flush(_) | IoCommand::Verify(_) => {}
            other => panic!("unexpected {other:?}"),
        }
        Answer {
            status,
            ..Answer::success(out)
        }
    }

    fn respond(&mut self, at: usize, sqe: &Sqe, answer: &Answer, manner: Manner) {
        let (_, _, region) = self.device.clone().unwrap();
        let mut buffers = Vec::new();
        let mut invalidate = None;
        let mut late = None;
        if let Ok(Sgl::Keyed {
            address,
            length_bytes,
            rkey,
            invalidate: asked,
        }) = sqe.sgl()
        {
            invalidate = (asked && manner != Manner::KeepKey).then_some(RKey(rkey));
            let remote = Remote {
                addr: address,
                rkey: RKey(rkey),
            };
            if !answer.data.is_empty() {
                assert_eq!(answer.data.len(), length_bytes as usize);
                let len = length_bytes + u32::from(manner == Manner::Overrun);
                let mut buffer = self.pool.take(len.max(TRANSFER_BYTES)).unwrap();
                buffer.copy_from(0, &answer.data);
                let wr_id = self.wr();
                let sges = [sge(&buffer, len, &region)];
                post(
                    &mut *self.queues[at].qp,
                    wr_id,
                    SendOp::Write(remote),
                    &sges,
                );
                late = Some((remote, len));
                buffers.push(buffer);
            }
        }
        let head = self.queues[at].head;
        let proper = Cqe::new(sqe.cid.get(), head, answer.status, 0).with_result(answer.result);
        if manner == Manner::WrongCidFirst {
            let wrong = Cqe::new(sqe.cid.get() ^ 0x8000, head, Status::SUCCESS, 0);
            self.send(at, &wrong, None, Vec::new());
        }
        self.send(at, &proper, invalidate, buffers);
        if manner == Manner::Twice {
            self.send(at, &proper, None, Vec::new());
        }
        if let Some((remote, len)) = late.filter(|_| manner == Manner::LateWrite) {
            let buffer = self.pool.take(len).unwrap();
            let wr_id = self.wr();
            let sges = [sge(&buffer, len, &region)];
            let queue = &mut self.queues[at];
            post(&mut *queue.qp, wr_id, SendOp::Write(remote), &sges);
            queue.sent.push_back((wr_id, vec![buffer]));
        }
    }

    fn send(&mut self, at: usize, cqe: &Cqe, invalidate: Option<RKey>, mut keep: Vec<Buffer>) {
        let (_, _, region) = self.device.clone().unwrap();
        let mut buffer = self.pool.take(16).unwrap();
        buffer.copy_from(0, cqe.as_bytes());
        let wr_id = self.wr();
        let op = SendOp::Send {
            invalidate,
            solicited: false,
        };
        let queue = &mut self.queues[at];
        post(&mut *queue.qp, wr_id, op, &[sge(&buffer, 16, &region)]);
        keep.push(buffer);
        queue.sent.push_back((wr_id, keep));
    }
}

const OUT: capstan_nvme_proto::opcode::DataDirection =
    capstan_nvme_proto::opcode::DataDirection::HostToController;

fn sge(buffer: &Buffer, len_bytes: u32, region: &Rc<dyn MemoryRegion>) -> Sge {
    Sge {
        addr: buffer.addr(),
        len_bytes,
        lkey: region.lkey(),
    }
}

fn post(qp: &mut dyn QueuePair, wr_id: u64, op: SendOp, sges: &[Sge]) {
    qp.post_send(&SendWr {
        wr_id,
        op,
        sges,
        signaled: true,
        fence: false,
    })
    .unwrap();
}
