//! The host's state machine against a hostile controller.
//!
//! The input is a run of operations. Answers are right by default, so that the fuzzer gets past the
//! set-up, and the input spoils them.

use std::collections::VecDeque;

use capstan_initiator::internals::host::{
    Action, AssociationStatus, CommandData, Discovery, Host, HostConfig, SlotIndex,
};
use capstan_initiator::{ReplayWrites, Transport};
use capstan_nvme_proto::command::{AdminCommand, FabricsCommand};
use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::identify::{Cns, IdentifyController, IdentifyNamespace, NamespaceList};
use capstan_nvme_proto::nqn::{HostId, Nqn};
use capstan_nvme_proto::property::{Cap, Csts, Property, ShutdownStatus};
use capstan_nvme_proto::rdma_cm::CmAccept;
use capstan_nvme_proto::sqe::Sqe;
use capstan_nvme_proto::status::Status;
use capstan_rdma::contract::RejectReason;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::input::Input;

/// Operations of one input.
const OPERATIONS_MAX: usize = 2000;
/// Times `handle_timeout` may be due again at the same moment.
const TIMEOUTS_AT_ONCE_MAX: u32 = 100;

struct Outstanding {
    qid: u16,
    slot: SlotIndex,
    sqe: Sqe,
    wanted: usize,
}

struct World<'a> {
    host: Host,
    input: Input<'a>,
    now_us: u64,
    opening: Option<u16>,
    outstanding: VecDeque<Outstanding>,
    /// I/O commands submitted, as CIDs by queue.
    io: Vec<(u16, u16)>,
    shutdown: bool,
}

/// Feeds the state machine answers, connects, losses and time in any order.
pub fn host(data: &[u8]) {
    let mut input = Input::new(data);
    let [flags, queues, entries, kato] = input.bytes();
    let nqn = |name| Nqn::new(name).expect("a name");
    let config = HostConfig {
        transport: match flags & 8 {
            0 => Transport::Rdma,
            _ => Transport::Tcp,
        },
        subnqn: nqn("nqn.2026-11.io.capstan:s"),
        hostnqn: nqn("nqn.2026-11.io.capstan:h"),
        hostid: HostId([1; 16]),
        nr_io_queues: u16::from(queues % 4),
        queue_size: u16::from(entries),
        kato_ms: u32::from(kato) * 100,
        connect_timeout_us: 1_000_000,
        admin_timeout_us: 1_000_000,
        reconnect_delay_ms: 10_000,
        ctrl_loss_tmo_us: (flags & 1 == 0).then_some(30_000_000),
        replay_writes: match flags & 4 {
            0 => ReplayWrites::Fenced,
            _ => ReplayWrites::Immediate,
        },
        scan_namespaces: flags & 2 == 0,
        disable_sq_flow_control: flags & 16 != 0,
    };
    let mut world = World {
        host: Host::new(config, 1, 0),
        input,
        now_us: 0,
        opening: None,
        outstanding: VecDeque::new(),
        io: Vec::new(),
        shutdown: false,
    };
    for _ in 0..OPERATIONS_MAX {
        world.settle();
        if world.input.is_empty() {
            break;
        }
        world.operation();
    }
    world.settle();
}

impl World<'_> {
    /// Does what the host wants, and checks what always holds.
    fn settle(&mut self) {
        while let Some(action) = self.host.poll_action() {
            match action {
                Action::Open {
                    request, entries, ..
                } => {
                    assert!(request.encode().is_some() && (2..=1024).contains(&entries));
                    self.opening = Some(request.qid);
                }
                Action::Send {
                    qid,
                    slot,
                    sqe,
                    data,
                } => {
                    let same = |o: &&Outstanding| o.qid == qid && o.sqe.cid == sqe.cid;
                    assert!(self.outstanding.iter().find(same).is_none(), "a CID twice");
                    self.outstanding.push_back(Outstanding {
                        qid,
                        slot,
                        sqe: *sqe,
                        wanted: match data {
                            CommandData::FromController(len) => len as usize,
                            CommandData::None | CommandData::ToController(_) => 0,
                        },
                    });
                }
                Action::CloseAll { .. } => {
                    self.opening = None;
                    self.outstanding.clear();
                    let unanswered = !self.io.is_empty();
                    self.io.clear();
                    self.host.handle_given_up(unanswered, self.now_us);
                }
            }
            assert!(self.outstanding.len() <= 64, "unbounded commands");
        }
        let mut events = 0;
        while self.host.poll_event().is_some() {
            events += 1;
            assert!(events < 1000, "unbounded events");
        }
        assert!(self.host.namespaces().len() <= 1024);
        // Never panics, whatever the state.
        let _ = self.host.status(self.now_us).to_string();
        let held = self.host.held(self.now_us);
        assert_eq!(held.is_some(), self.host.holds_writes());
        let _ = held.map(|held| held.to_string());
    }

    fn operation(&mut self) {
        match self.input.byte() % 16 {
            // Mostly good answers: the way to live is long.
            0..=6 => self.answer_next(),
            7 => self.answer_anything(),
            8 => self.opened(),
            9 => {
                let qid = u16::from(self.input.byte() % 5);
                self.host
                    .handle_disconnected(qid, "by the peer".to_owned(), self.now_us);
            }
            10 => {
                let [a, b, c] = self.input.bytes();
                self.pass(u64::from(u32::from_le_bytes([a, b, c, 0])) * 16);
            }
            11 => {
                let sqe = Sqe::new(self.input.byte(), 0, 1);
                let len = u32::from(self.input.word()) * 2;
                let data = CommandData::FromController(len);
                let _ = self.host.submit_admin(len.into(), sqe, data, self.now_us);
            }
            12 => self.host.rescan(self.now_us),
            13 => match self.input.byte() {
                0xFF => self.host.shutdown(self.now_us),
                0xFE => self.host.reset(self.now_us),
                _ => {}
            },
            14 => self.submit_io(),
            _ => self.answer_io(),
        }
    }

    fn pass(&mut self, us: u64) {
        let end = self.now_us + us;
        let mut at_once = 0;
        while let Some(at) = self.host.next_deadline_us().filter(|at| *at <= end) {
            at_once = if at > self.now_us { 0 } else { at_once + 1 };
            assert!(at_once < TIMEOUTS_AT_ONCE_MAX, "time stands still");
            self.now_us = self.now_us.max(at);
            self.host.handle_timeout(self.now_us);
            self.settle();
        }
        self.now_us = end;
    }

    fn opened(&mut self) {
        let qid = match self.opening.take() {
            Some(qid) => qid,
            None => u16::from(self.input.byte() % 4),
        };
        match self.input.byte() {
            0 => {
                let mut data = [0; 8];
                self.input.spoil(&mut data);
                self.host
                    .handle_rejected(qid, RejectReason::Consumer, &data, self.now_us);
            }
            1 => {
                let data = self.input.bytes::<32>();
                self.host.handle_established(qid, &data, self.now_us);
            }
            crqsize => {
                let accept = CmAccept {
                    crqsize: crqsize.into(),
                };
                let data = accept.encode();
                self.host
                    .handle_established(qid, data.as_bytes(), self.now_us);
            }
        }
    }

    /// Answers a command that is outstanding, or opens a queue that waits for it.
    fn answer_next(&mut self) {
        if self.opening.is_some() {
            let accept = CmAccept { crqsize: 32 }.encode();
            if let Some(qid) = self.opening.take() {
                self.host
                    .handle_established(qid, accept.as_bytes(), self.now_us);
            }
            return;
        }
        let choice = usize::from(self.input.byte());
        let at = match choice {
            // The newest: events and admin commands of the owner stay behind.
            0..=200 => self.outstanding.len().wrapping_sub(1),
            other => other % self.outstanding.len().max(1),
        };
        let Some(command) = self.outstanding.remove(at) else {
            return;
        };
        let (status, mut result, mut data) = self.good_answer(&command);
        let mut raw = [0; 8];
        raw.copy_from_slice(&result.to_le_bytes());
        self.input.spoil(&mut raw);
        result = u64::from_le_bytes(raw);
        self.input.spoil(&mut data);
        let status = match self.input.byte() {
            0xF0.. => Status::from_bits(self.input.word()),
            _ => status,
        };
        let sqhd = self.input.byte().into();
        let cqe = Cqe::new(command.sqe.cid.get(), sqhd, status, 0).with_result(result);
        let slot = self.host.take_response(command.qid, &cqe, self.now_us);
        assert_eq!(
            slot,
            Ok(command.slot),
            "the answer of an outstanding command"
        );
        self.host
            .handle_completion(command.qid, command.slot, &cqe, &data, self.now_us);
    }

    fn good_answer(&mut self, command: &Outstanding) -> (Status, u64, Vec<u8>) {
        let sqe = &command.sqe;
        let mut data = vec![0; command.wanted];
        let mut result = 0;
        match FabricsCommand::parse(sqe) {
            Ok(FabricsCommand::Connect(_)) => result = 1,
            Ok(FabricsCommand::PropertyGet(get)) => result = self.property(get.property),
            Ok(FabricsCommand::PropertySet(set)) => self.shutdown = set.value >> 14 & 0b11 != 0,
            _ => match AdminCommand::parse(sqe) {
                Ok(AdminCommand::Identify(identify)) if data.len() == 4096 => {
                    data = identify_data(identify.cns, identify.nsid);
                }
                Ok(AdminCommand::SetFeatures(set)) => result = set.cdw11.into(),
                _ => {}
            },
        }
        (Status::SUCCESS, result, data)
    }

    fn property(&self, property: Property) -> u64 {
        match property {
            Property::CAP => {
                let mut cap = Cap::decode(0);
                cap.mqes = 64;
                cap.css = Cap::CSS_NVM;
                cap.encode()
            }
            Property::CSTS => {
                let mut csts = Csts::decode(0);
                csts.rdy = true;
                if self.shutdown {
                    csts.shst = ShutdownStatus::COMPLETE;
                }
                csts.encode().into()
            }
            _ => 0x0002_0100,
        }
    }

    fn answer_anything(&mut self) {
        let bytes = self.input.bytes::<16>();
        let cqe = Cqe::read_from_bytes(&bytes).expect("16 bytes");
        let qid = u16::from(self.input.byte() % 5);
        if let Ok(slot) = self.host.take_response(qid, &cqe, self.now_us) {
            let same = |o: &Outstanding| o.qid == qid && o.slot == slot;
            let data = match self.outstanding.iter().position(same) {
                Some(at) => {
                    let command = self.outstanding.remove(at).expect("it is there");
                    vec![self.input.byte(); command.wanted]
                }
                None => Vec::new(),
            };
            self.io.retain(|io| *io != (qid, cqe.cid.get()));
            self.host
                .handle_completion(qid, slot, &cqe, &data, self.now_us);
        }
    }

    fn submit_io(&mut self) {
        if !self.host.is_live() {
            return;
        }
        let qid = 1 + u16::from(self.input.byte()) % self.host.io_queues().max(1);
        if qid > self.host.io_queues() {
            return;
        }
        let Some(queue) = self.host.queue(qid) else {
            return;
        };
        if let Some((_, cid)) = queue.submit() {
            assert!(!self.io.contains(&(qid, cid)), "a CID twice");
            self.io.push((qid, cid));
            assert!(self.io.len() <= 4 * 1024);
        } else {
            assert_eq!(self.host.queue(qid).map(|q| q.credit()), Some(0));
        }
    }

    fn answer_io(&mut self) {
        if self.io.is_empty() {
            return;
        }
        let at = usize::from(self.input.byte()) % self.io.len();
        let (qid, cid) = self.io.swap_remove(at);
        let cqe = Cqe::new(cid, self.input.word(), Status::SUCCESS, 0);
        let slot = self.host.take_response(qid, &cqe, self.now_us);
        let slot = slot.expect("the answer of an outstanding command");
        self.host.release(qid, slot);
        assert!(!matches!(
            self.host.status(self.now_us),
            AssociationStatus::Closed
        ));
    }
}

fn identify_data(cns: Cns, above: u32) -> Vec<u8> {
    match cns {
        Cns::CONTROLLER => {
            let mut identify = IdentifyController::new_zeroed();
            identify.sgls = 0x0010_0005.into();
            identify.ioccsz_16bytes = 516.into();
            identify.aerl_z = 3;
            identify.oaes = (1 << 8 | 1 << 20).into();
            identify.ciu = 1;
            identify.ccrl = 4;
            identify.as_bytes().to_vec()
        }
        Cns::ACTIVE_NAMESPACES => {
            let mut list = NamespaceList::new_zeroed();
            list.fill((1..=3).filter(|nsid| *nsid > above));
            list.as_bytes().to_vec()
        }
        Cns::NAMESPACE => {
            let mut identify = IdentifyNamespace::new_zeroed();
            identify.nsze_lbas = 1000.into();
            identify.lbaf[0].lbads = 12;
            identify.as_bytes().to_vec()
        }
        _ => vec![0; 4096],
    }
}

/// Feeds the reader of the discovery log whatever comes.
pub fn host_discovery(data: &[u8]) {
    let mut discovery = Discovery::new();
    let mut rest = data;
    let mut commands = 0;
    while let Some(command) = discovery.next_command() {
        commands += 1;
        assert!(commands < 5000, "it never ends");
        assert!(command.length_bytes > 0 && command.length_bytes <= 64 << 10);
        if rest.is_empty() {
            break;
        }
        // A short piece of the input stands at the front of a long answer.
        let len = rest.len().min(64);
        let (piece, tail) = rest.split_at(len);
        rest = tail;
        let mut answer = vec![0; usize::try_from(command.length_bytes).expect("64 KiB")];
        let len = piece.len().min(answer.len());
        answer[..len].copy_from_slice(&piece[..len]);
        if discovery.answer(&answer).is_err() {
            return;
        }
    }
    assert!(discovery.into_entries().len() <= 4096);
}
