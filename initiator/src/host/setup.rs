//! From nothing to live, step by step.

use std::sync::Arc;

use capstan_nvme_proto::command::{AdminCommand, Identify, SetFeatures};
use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::error::ErrorLocation;
use capstan_nvme_proto::fabrics::{
    CNTLID_DYNAMIC, Cattr, Connect, ConnectParameters, ConnectResponse, FabricsCommand,
    PropertyGet, PropertySet,
};
use capstan_nvme_proto::features::{FeatureId, NumberOfQueues};
use capstan_nvme_proto::identify::Cns;
use capstan_nvme_proto::property::{
    Cap, Cc, CommandSetSelected, Csts, Property, PropertySize, Version,
};
use capstan_nvme_proto::rdma_cm::CmRequest;
use capstan_nvme_proto::sgl::Sgl;
use capstan_nvme_proto::status::Status;
use zerocopy::IntoBytes;

use super::action::{Action, CommandData, Step};
use super::association::{ADMIN_QUEUE_ENTRIES, Host, State};
use super::command::{IDENTIFY_DATA_BYTES, Purpose};
use super::info::ControllerInfo;
use super::live::KeepAlive;
use super::queue::SubmissionQueue;
use super::scan::Scan;
use super::words::{self, Asked};
use crate::error::ConnectError;

/// Between two looks at CSTS, in microseconds.
const READY_POLL_US: u64 = 10_000;
/// The shortest wait for CSTS.RDY: some controllers say 0 in CAP.TO and need a moment.
const READY_TIMEOUT_MIN_MS: u64 = 1000;
/// Where CATTR is in the SQE of a Connect (NVMe Base 2.1, Connect command, CDW11 bits 23:16).
const CATTR_BYTE: u8 = 46;
/// Commands whose time a scan has as a whole, of the up to 3073 of
/// [`NAMESPACES_MAX`](super::scan::NAMESPACES_MAX): with 30 s, 39 ms for each.
const SCAN_COMMANDS_SLOW: u64 = 4;

/// Whether a Connect may have been refused for its CATTR: for what is in its data it was not.
fn may_be_cattr(status: Status, location: ErrorLocation) -> bool {
    let refusals = [Status::CONNECT_INVALID_PARAMETERS, Status::INVALID_FIELD];
    refusals.contains(&status.code())
        && match location {
            ErrorLocation::Unspecified => true,
            ErrorLocation::Sqe { byte, .. } => byte == CATTR_BYTE,
            ErrorLocation::Data { .. } => false,
        }
}

impl Host {
    /// Begins an attempt.
    pub(super) fn start(&mut self, now_us: u64) {
        self.queues.clear();
        let admin = self.new_queue(ADMIN_QUEUE_ENTRIES);
        self.queues.push(admin);
        self.enter(Step::OpenAdmin, now_us);
    }

    /// Goes to `step` and does what it needs.
    fn enter(&mut self, step: Step, now_us: u64) {
        let bound_us = match step {
            // Each look at CSTS has the bound of a step.
            Step::Ready => self.ready_timeout_ms * 1000,
            // So has each of its commands.
            Step::Scan => self.scan_timeout_us(),
            _ => self.config.connect_timeout_us,
        };
        self.state = State::Connecting {
            step,
            deadline_us: now_us.saturating_add(bound_us),
        };
        let get = |property, size| FabricsCommand::PropertyGet(PropertyGet { property, size });
        match step {
            Step::OpenAdmin => self.open_queue(0, ADMIN_QUEUE_ENTRIES),
            Step::OpenIo(qid) => self.open_queue(qid, self.io_entries()),
            Step::ConnectAdmin => self.send_connect(0, now_us),
            Step::ConnectIo(qid) => self.send_connect(qid, now_us),
            Step::Version => {
                self.send_fabrics(step, get(Property::VS, PropertySize::Four), now_us);
            }
            Step::Capabilities => {
                self.send_fabrics(step, get(Property::CAP, PropertySize::Eight), now_us);
            }
            Step::Enable => {
                let command = self.set_cc(self.cc());
                self.send_fabrics(step, command, now_us);
            }
            Step::Ready => {
                self.send_fabrics(step, get(Property::CSTS, PropertySize::Four), now_us);
            }
            Step::Identify => {
                let command = AdminCommand::Identify(Identify::new(Cns::CONTROLLER, 0));
                let data = CommandData::FromController(IDENTIFY_DATA_BYTES);
                self.send_setup(step, command, data, now_us);
            }
            Step::NumberOfQueues => {
                let queues = u32::from(self.config.nr_io_queues);
                let value = NumberOfQueues {
                    submission: queues,
                    completion: queues,
                };
                let command = SetFeatures::new(FeatureId::NUMBER_OF_QUEUES, value.encode());
                let command = AdminCommand::SetFeatures(command);
                self.send_setup(step, command, CommandData::None, now_us);
            }
            Step::AsyncConfig => {
                let events = self.info.wanted_events().bits();
                let fid = FeatureId::ASYNCHRONOUS_EVENT_CONFIGURATION;
                let command = SetFeatures::new(fid, events);
                let command = AdminCommand::SetFeatures(command);
                self.send_setup(step, command, CommandData::None, now_us);
            }
            Step::Scan => {
                self.scan = Some(Scan::new());
                self.continue_scan(now_us);
            }
        }
    }

    fn scan_timeout_us(&self) -> u64 {
        let command_us = self.config.admin_timeout_us;
        command_us.saturating_mul(SCAN_COMMANDS_SLOW)
    }

    fn open_queue(&mut self, qid: u16, entries: u16) {
        let request = CmRequest {
            qid,
            hrqsize: entries,
            hsqsize: entries.into(),
            cntlid: if qid == 0 { 0 } else { self.info.cntlid },
        };
        self.actions.push_back(Action::Open {
            entries,
            request,
            flow_control: !self.asks_no_flow_control(),
        });
    }

    /// Whether Connects ask for queues without SQ flow control.
    fn asks_no_flow_control(&self) -> bool {
        self.config.disable_sq_flow_control && !self.keeps_flow_control
    }

    fn new_queue(&self, entries: u16) -> SubmissionQueue {
        let queue = SubmissionQueue::new(entries);
        match self.asks_no_flow_control() {
            true => queue.without_flow_control(),
            false => queue,
        }
    }

    /// The connection of a queue is up: on to its Connect command.
    pub(super) fn connect_queue(&mut self, qid: u16, now_us: u64) {
        let step = match qid {
            0 => Step::ConnectAdmin,
            qid => Step::ConnectIo(qid),
        };
        self.enter(step, now_us);
    }

    fn send_connect(&mut self, qid: u16, now_us: u64) {
        let (entries, cntlid, kato_ms, step) = match qid {
            0 => (
                ADMIN_QUEUE_ENTRIES,
                CNTLID_DYNAMIC,
                self.config.kato_ms,
                Step::ConnectAdmin,
            ),
            _ => (self.io_entries(), self.info.cntlid, 0, Step::ConnectIo(qid)),
        };
        let connect = FabricsCommand::Connect(Connect {
            qid,
            sqsize: entries.into(),
            cattr: match self.asks_no_flow_control() {
                true => Cattr::DISABLE_SQ_FLOW_CONTROL,
                false => Cattr::NONE,
            },
            kato_ms,
        });
        let parameters = ConnectParameters {
            hostid: self.config.hostid,
            cntlid,
            subnqn: self.config.subnqn.clone(),
            hostnqn: self.config.hostnqn.clone(),
        };
        let data = CommandData::ToController(parameters.encode().as_bytes().into());
        let timeout_us = Some(self.config.connect_timeout_us);
        self.send_on(qid, Purpose::Setup(step), timeout_us, data, now_us, |cid| {
            connect.encode(cid, Sgl::EMPTY)
        });
    }

    fn send_fabrics(&mut self, step: Step, command: FabricsCommand, now_us: u64) {
        self.send(Purpose::Setup(step), CommandData::None, now_us, |cid| {
            command.encode(cid, Sgl::EMPTY)
        });
    }

    fn send_setup(&mut self, step: Step, command: AdminCommand, data: CommandData, now_us: u64) {
        self.send(Purpose::Setup(step), data, now_us, |cid| {
            command.encode(cid, Sgl::EMPTY)
        });
    }

    /// The answer to the command of a step.
    pub(super) fn setup_answered(&mut self, step: Step, cqe: &Cqe, data: &[u8], now_us: u64) {
        if !matches!(self.state, State::Connecting { step: now, .. } if now == step) {
            return;
        }
        let status = cqe.status();
        if !status.is_success() {
            match step {
                Step::ConnectAdmin => return self.refused(0, cqe, now_us),
                Step::ConnectIo(qid) => return self.refused(qid, cqe, now_us),
                // Events are a convenience: go on without them.
                Step::AsyncConfig => return self.open_next_io(0, now_us),
                _ => {
                    let step = step.name();
                    return self.fail(ConnectError::Command { step, status }, now_us);
                }
            }
        }
        match step {
            Step::ConnectAdmin => self.admin_connected(cqe, now_us),
            Step::ConnectIo(qid) => self.io_connected(qid, cqe, now_us),
            Step::Version => {
                self.info.version = Version::decode(cqe.dw0.get());
                self.enter(Step::Capabilities, now_us);
            }
            Step::Capabilities => self.capabilities(cqe, now_us),
            Step::Enable => self.enter(Step::Ready, now_us),
            Step::Ready => self.ready_answered(cqe, now_us),
            Step::Identify => self.identified(data, now_us),
            Step::NumberOfQueues => {
                let given = NumberOfQueues::decode(cqe.dw0.get());
                let given = given.submission.min(given.completion);
                let asked = self.config.nr_io_queues;
                self.info.io_queues = u16::try_from(given).unwrap_or(u16::MAX).min(asked);
                self.enter(Step::AsyncConfig, now_us);
            }
            Step::AsyncConfig => self.open_next_io(0, now_us),
            Step::OpenAdmin | Step::OpenIo(_) | Step::Scan => {}
        }
    }

    fn refused(&mut self, qid: u16, cqe: &Cqe, now_us: u64) {
        let status = cqe.status();
        let location = ErrorLocation::from_connect_dw0(cqe.dw0.get());
        let entries = match qid {
            0 => ADMIN_QUEUE_ENTRIES,
            _ => self.io_entries(),
        };
        let asked = Asked {
            subnqn: &self.config.subnqn,
            hostnqn: &self.config.hostnqn,
            hostid: self.config.hostid,
            qid,
            entries,
            transport: self.config.transport,
        };
        let reason = words::refused(status, location, asked);
        let error = ConnectError::Refused {
            qid,
            status,
            location,
            reason,
        };
        if self.asks_no_flow_control() && may_be_cattr(status, location) {
            tracing::info!("{error}; trying again with SQ flow control");
            self.keeps_flow_control = true;
            // A queue whose Connect was refused takes no other one.
            self.drop_connections(&Arc::new(error), qid == 0);
            return self.start(now_us);
        }
        // Without an Admin Queue there is nothing to give up.
        self.lose(error, qid == 0, now_us);
    }

    fn admin_connected(&mut self, cqe: &Cqe, now_us: u64) {
        let response = ConnectResponse::decode(cqe.dw0.get());
        if response.authentication_required || response.secure_channel_required {
            let error = ConnectError::Unsupported {
                what: "AUTHREQ (authentication the target requires)",
                value: 1,
                expected: "0: this host cannot authenticate yet, let the target allow it without",
            };
            return self.fail(error, now_us);
        }
        self.info = ControllerInfo {
            cntlid: response.cntlid,
            ..ControllerInfo::default()
        };
        self.enter(Step::Version, now_us);
    }

    fn capabilities(&mut self, cqe: &Cqe, now_us: u64) {
        let cap = Cap::decode(cqe.result());
        self.info.cap = Some(cap);
        // CAP.TO bounds the wait for CSTS.RDY (NVMe Base 2.1, section 3.1.4.1).
        self.ready_timeout_ms = u64::from(cap.timeout_ms()).max(READY_TIMEOUT_MIN_MS);
        self.enter(Step::Enable, now_us);
    }

    /// What this host writes to CC to enable the controller.
    fn cc(&self) -> Cc {
        let css = self.info.cap.map_or(Cap::CSS_NVM, |cap| cap.css);
        let css = if css & Cap::CSS_NVM != 0 {
            CommandSetSelected::NVM
        } else if css & Cap::CSS_IOCS != 0 {
            CommandSetSelected::ALL_SUPPORTED
        } else if css & Cap::CSS_NOIO != 0 {
            CommandSetSelected::ADMIN_ONLY
        } else {
            CommandSetSelected::NVM
        };
        Cc {
            css,
            mps: self.info.cap.map_or(0, |cap| cap.mpsmin),
            ..Cc::ENABLE_NVM
        }
    }

    pub(super) fn set_cc(&self, cc: Cc) -> FabricsCommand {
        FabricsCommand::PropertySet(PropertySet {
            property: Property::CC,
            size: PropertySize::Four,
            value: cc.encode().into(),
        })
    }

    /// CC as enabled, with a shutdown notification.
    pub(super) fn shutdown_cc(&self) -> FabricsCommand {
        self.set_cc(Cc {
            shn: capstan_nvme_proto::property::ShutdownNotification::NORMAL,
            ..self.cc()
        })
    }

    fn ready_answered(&mut self, cqe: &Cqe, now_us: u64) {
        let csts = Csts::decode(cqe.dw0.get());
        if csts.cfs {
            self.fail(ConnectError::ControllerFatal, now_us);
        } else if csts.rdy {
            self.enter(Step::Identify, now_us);
        } else {
            self.ready_poll_us = Some(now_us.saturating_add(READY_POLL_US));
        }
    }

    /// Looks at CSTS again when it is time.
    pub(super) fn poll_ready(&mut self, now_us: u64) {
        if self.ready_poll_us.is_none_or(|at_us| now_us < at_us) {
            return;
        }
        self.ready_poll_us = None;
        let get = FabricsCommand::PropertyGet(PropertyGet {
            property: Property::CSTS,
            size: PropertySize::Four,
        });
        match self.state {
            State::Connecting {
                step: Step::Ready, ..
            } => self.send_fabrics(Step::Ready, get, now_us),
            State::Resetting { .. } | State::ShuttingDown { .. } => {
                self.send(Purpose::ShutdownStatus, CommandData::None, now_us, |cid| {
                    get.encode(cid, Sgl::EMPTY)
                });
            }
            _ => {}
        }
    }

    fn identified(&mut self, data: &[u8], now_us: u64) {
        if let Err(error) = self.info.identified(data, &self.config) {
            return self.fail(error, now_us);
        }
        self.keep_alive = KeepAlive::new(self.config.kato_ms, self.info.tbkas, now_us);
        if self.config.nr_io_queues == 0 {
            self.info.io_queues = 0;
            self.enter(Step::AsyncConfig, now_us);
        } else {
            self.enter(Step::NumberOfQueues, now_us);
        }
    }

    /// Opens the I/O queue after `qid`, or goes on when there is none.
    fn open_next_io(&mut self, qid: u16, now_us: u64) {
        let next = qid + 1;
        if next <= self.info.io_queues {
            let queue = self.new_queue(self.io_entries());
            self.queues.push(queue);
            if let Some(queue) = self.queues.last_mut()
                && self.info.maxcmd != 0
            {
                queue.limit_outstanding(self.info.maxcmd);
            }
            self.enter(Step::OpenIo(next), now_us);
        } else if self.config.scan_namespaces {
            self.enter(Step::Scan, now_us);
        } else {
            self.set_up(now_us);
        }
    }

    fn io_connected(&mut self, qid: u16, cqe: &Cqe, now_us: u64) {
        let response = ConnectResponse::decode(cqe.dw0.get());
        if response.cntlid != self.info.cntlid {
            let what = format!(
                "Connect answers with CNTLID {:#06x}, expected {:#06x}",
                response.cntlid, self.info.cntlid
            );
            return self.fail(ConnectError::Protocol { qid, what }, now_us);
        }
        self.open_next_io(qid, now_us);
    }

    /// Everything is done.
    pub(super) fn set_up(&mut self, now_us: u64) {
        self.become_live(now_us);
        self.request_events(now_us);
        self.fence_live(now_us);
        self.send_waiting(now_us);
    }

    /// Entries of an I/O queue: what is asked, as far as the controller has them (CAP.MQES).
    fn io_entries(&self) -> u16 {
        let mqes = self.info.cap.map_or(u32::MAX, |cap| cap.mqes);
        let mqes = u16::try_from(mqes).unwrap_or(u16::MAX);
        self.config
            .queue_size
            .min(mqes)
            .clamp(super::QUEUE_ENTRIES_MIN, super::QUEUE_ENTRIES_MAX)
    }

    pub(super) fn step_timed_out(&mut self, step: Step, now_us: u64) {
        let (bound_us, next) = match step {
            Step::OpenAdmin | Step::OpenIo(_) => (
                self.config.connect_timeout_us,
                "check that the address is right and reachable and that the target runs".to_owned(),
            ),
            Step::Ready => (
                self.ready_timeout_ms * 1000,
                "the controller needs longer than its CAP.TO says; see the target's log".to_owned(),
            ),
            Step::Scan => (
                self.scan_timeout_us(),
                "the target is too busy for so many namespaces; see its log".to_owned(),
            ),
            _ => (self.config.connect_timeout_us, words::hangs_in_setup()),
        };
        let error = ConnectError::Timeout {
            step: step.name(),
            waited_ms: bound_us / 1000,
            next,
        };
        self.fail(error, now_us);
    }
}
