//! Admin and Connect commands in flight.

use std::sync::Arc;

use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::log::LogPageId;
use capstan_nvme_proto::opcode::AdminOpcode;
use capstan_nvme_proto::sqe::Sqe;

use super::action::{Action, CommandData, CommandReply, Event, Step};
use super::association::{Host, State};
use super::queue::SlotIndex;
use super::words;
use crate::error::{CommandError, ConnectError};

/// Admin commands of the owner that may wait for a slot.
const WAITING_MAX: usize = 64;
/// Admin Queue entries kept for this host's own commands: keep alive, scan, event log, shutdown,
/// Cross-Controller Reset and its log page.
const OWN_ENTRIES: u16 = 6;
/// Most bytes of one admin command's data.
pub(super) const ADMIN_DATA_BYTES_MAX: u32 = 64 << 10;

/// Bytes of every Identify data structure.
pub(super) const IDENTIFY_DATA_BYTES: u32 = 4096;
const _: () = assert!(capstan_nvme_proto::identify::IDENTIFY_BYTES == IDENTIFY_DATA_BYTES as usize);

/// Why a command was sent, so what its answer means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A step of the set-up.
    Setup(Step),
    AsyncEvent,
    KeepAlive,
    Scan,
    /// Reads a log page, which re-enables the event about it.
    EventLog(LogPageId),
    /// Cross-Controller Reset of the old controller.
    Reset,
    /// Reads how far that is.
    ResetLog,
    /// CC.SHN.
    Shutdown,
    /// CSTS.SHST.
    ShutdownStatus,
    /// One of the owner's.
    Owner {
        token: u64,
    },
}

impl Purpose {
    fn name(self) -> &'static str {
        match self {
            Self::Setup(step) => step.name(),
            Self::AsyncEvent => "Asynchronous Event Request",
            Self::KeepAlive => "Keep Alive",
            Self::Scan => "Identify of a namespace",
            Self::EventLog(_) => "Get Log Page after an event",
            Self::Reset => "Cross-Controller Reset",
            Self::ResetLog => "Get Log Page Cross-Controller Reset",
            Self::Shutdown => "Property Set CC.SHN",
            Self::ShutdownStatus => "Property Get CSTS.SHST",
            Self::Owner { .. } => "admin command",
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Outstanding {
    pub(super) purpose: Purpose,
    opcode: AdminOpcode,
    sent_us: u64,
    deadline_us: Option<u64>,
}

/// Whether an admin command of the owner may change what is on a medium, as far as its opcode
/// tells.
fn may_change(opcode: AdminOpcode) -> bool {
    !matches!(
        opcode,
        AdminOpcode::IDENTIFY
            | AdminOpcode::GET_LOG_PAGE
            | AdminOpcode::GET_FEATURES
            | AdminOpcode::GET_LBA_STATUS
            | AdminOpcode::ABORT
            | AdminOpcode::KEEP_ALIVE
            | AdminOpcode::ASYNCHRONOUS_EVENT_REQUEST
    )
}

/// An admin command of the owner that waits for a slot.
#[derive(Debug)]
pub(super) struct Waiting {
    token: u64,
    sqe: Sqe,
    data: CommandData,
}

/// What is outstanding on the Admin Queue, by slot, and the Connect of an I/O queue.
#[derive(Debug)]
pub(super) struct AdminCommands {
    slots: Box<[Option<Outstanding>]>,
    io_connect: Option<(u16, SlotIndex, Outstanding)>,
}

impl AdminCommands {
    pub(super) fn new(entries: u16) -> Self {
        Self {
            slots: vec![None; usize::from(entries)].into_boxed_slice(),
            io_connect: None,
        }
    }

    pub(super) fn next_deadline_us(&self) -> Option<u64> {
        let io = self.io_connect.as_ref().map(|(_, _, command)| command);
        let admin = self.slots.iter().flatten();
        admin.chain(io).filter_map(|c| c.deadline_us).min()
    }

    fn put(&mut self, qid: u16, slot: SlotIndex, command: Outstanding) {
        if qid != 0 {
            self.io_connect = Some((qid, slot, command));
        } else if let Some(entry) = self.slots.get_mut(slot.index()) {
            *entry = Some(command);
        }
    }

    fn take(&mut self, qid: u16, slot: SlotIndex) -> Option<Outstanding> {
        if qid == 0 {
            return self.slots.get_mut(slot.index())?.take();
        }
        match self.io_connect {
            Some((q, s, command)) if q == qid && s == slot => {
                self.io_connect = None;
                Some(command)
            }
            _ => None,
        }
    }

    fn expired(&self, now_us: u64) -> Option<Outstanding> {
        let io = self.io_connect.as_ref().map(|(_, _, command)| command);
        let mut all = self.slots.iter().flatten().chain(io);
        all.find(|c| {
            c.deadline_us
                .is_some_and(|deadline_us| now_us >= deadline_us)
        })
        .copied()
    }

    /// Whether a command of that purpose is outstanding on the Admin Queue.
    pub(super) fn has(&self, purpose: Purpose) -> bool {
        self.slots.iter().flatten().any(|c| c.purpose == purpose)
    }

    fn take_all(&mut self) -> impl Iterator<Item = Outstanding> + '_ {
        self.io_connect = None;
        self.slots.iter_mut().filter_map(Option::take)
    }
}

impl Host {
    /// Submits an admin command for the owner: `sqe` complete but for CID and data pointer. Its
    /// answer is [`Event::CommandDone`] with `token`; it may wait for its turn.
    ///
    /// # Errors
    /// [`CommandError::Busy`], [`CommandError::TooLong`], or [`CommandError::Lost`] when the
    /// association is over.
    pub fn submit_admin(
        &mut self,
        token: u64,
        sqe: Sqe,
        data: CommandData,
        now_us: u64,
    ) -> Result<(), CommandError> {
        if data.len_bytes() > ADMIN_DATA_BYTES_MAX {
            return Err(CommandError::TooLong {
                len_bytes: data.len_bytes().into(),
                max_bytes: ADMIN_DATA_BYTES_MAX,
            });
        }
        match &self.state {
            State::Failed(cause) => return Err(CommandError::Lost(Arc::clone(cause))),
            State::Closed | State::ShuttingDown { .. } => {
                return Err(CommandError::Lost(Arc::new(ConnectError::Closed)));
            }
            State::Connecting { .. }
            | State::Live { .. }
            | State::Waiting { .. }
            | State::Resetting { .. } => {}
        }
        if self.waiting.len() >= WAITING_MAX {
            return Err(CommandError::Busy);
        }
        self.waiting.push_back(Waiting { token, sqe, data });
        self.send_waiting(now_us);
        Ok(())
    }

    /// Sends what waits, as far as there are slots.
    pub(super) fn send_waiting(&mut self, now_us: u64) {
        while self.is_live()
            && self
                .queues
                .first()
                .is_some_and(|q| q.credit() > OWN_ENTRIES)
        {
            // What changes nothing does not wait behind what is held.
            let holds = self.holds_writes();
            let goes = |w: &Waiting| !(holds && may_change(w.sqe.admin_opcode()));
            let next = self.waiting.iter().position(goes);
            let Some(Waiting {
                token,
                mut sqe,
                data,
            }) = next.and_then(|at| self.waiting.remove(at))
            else {
                return;
            };
            let encode = |cid: u16| {
                sqe.cid = cid.into();
                sqe
            };
            self.send(Purpose::Owner { token }, data, now_us, encode);
        }
    }

    /// Sends one of this host's commands on the Admin Queue.
    pub(super) fn send(
        &mut self,
        purpose: Purpose,
        data: CommandData,
        now_us: u64,
        encode: impl FnOnce(u16) -> Sqe,
    ) {
        let timeout_us = match purpose {
            // The controller answers when there is an event, which may be never.
            Purpose::AsyncEvent => None,
            Purpose::KeepAlive => Some(u64::from(self.config.kato_ms) * 1000),
            Purpose::Setup(_) => Some(self.config.connect_timeout_us),
            Purpose::Scan if matches!(self.state, State::Connecting { .. }) => {
                Some(self.config.connect_timeout_us)
            }
            _ => Some(self.config.admin_timeout_us),
        };
        self.send_on(0, purpose, timeout_us, data, now_us, encode);
    }

    pub(super) fn send_on(
        &mut self,
        qid: u16,
        purpose: Purpose,
        timeout_us: Option<u64>,
        data: CommandData,
        now_us: u64,
        encode: impl FnOnce(u16) -> Sqe,
    ) {
        let Some((slot, cid)) = self.queue(qid).and_then(super::SubmissionQueue::submit) else {
            // The set-up sends one command at a time and the rest keeps `OWN_ENTRIES` free, so only
            // a controller that leaves commands unanswered leads here.
            let what = format!("no entry is free for {}", purpose.name());
            self.fail(ConnectError::Protocol { qid, what }, now_us);
            return;
        };
        let sqe = Box::new(encode(cid));
        let command = Outstanding {
            purpose,
            opcode: sqe.admin_opcode(),
            sent_us: now_us,
            deadline_us: timeout_us.map(|timeout_us| now_us.saturating_add(timeout_us)),
        };
        self.commands.put(qid, slot, command);
        self.actions.push_back(Action::Send {
            qid,
            slot,
            sqe,
            data,
        });
    }

    /// A command of [`Action::Send`] was answered and its memory is back; `data` is what the
    /// controller sent of the bytes asked for.
    pub fn handle_completion(
        &mut self,
        qid: u16,
        slot: SlotIndex,
        cqe: &Cqe,
        data: &[u8],
        now_us: u64,
    ) {
        self.release(qid, slot);
        let Some(command) = self.commands.take(qid, slot) else {
            return;
        };
        match command.purpose {
            Purpose::Setup(step) => self.setup_answered(step, cqe, data, now_us),
            Purpose::Owner { token } => {
                let reply = CommandReply {
                    cqe: *cqe,
                    data: data.to_vec(),
                };
                self.events.push_back(Event::CommandDone {
                    token,
                    result: Ok(reply),
                });
            }
            Purpose::AsyncEvent => self.async_event(cqe, now_us),
            Purpose::KeepAlive => self.keep_alive_answered(cqe, now_us),
            Purpose::Scan => self.scan_answered(cqe, data, now_us),
            Purpose::EventLog(lid) => self.event_log_answered(lid, now_us),
            Purpose::Reset => self.reset_answered(cqe, now_us),
            Purpose::ResetLog => self.reset_log_answered(cqe, data, now_us),
            Purpose::Shutdown | Purpose::ShutdownStatus => {
                self.shutdown_answered(command.purpose, cqe, now_us);
            }
        }
        self.send_waiting(now_us);
    }

    /// Gives the connection up when a command has not been answered in time.
    pub(super) fn expire_commands(&mut self, now_us: u64) {
        let Some(command) = self.commands.expired(now_us) else {
            return;
        };
        let next = match command.purpose {
            Purpose::KeepAlive => {
                "the target or the network is gone, or KATO is too short for it".to_owned()
            }
            _ if matches!(self.state, State::Connecting { .. }) => words::hangs_in_setup(),
            _ => "the target is too busy or hangs; see its log".to_owned(),
        };
        let waited_ms = now_us.saturating_sub(command.sent_us) / 1000;
        let step = command.purpose.name();
        self.fail(
            ConnectError::Timeout {
                step,
                waited_ms,
                next,
            },
            now_us,
        );
    }

    /// Tells the owner of its outstanding commands that they are lost.
    pub(super) fn fail_commands(&mut self, cause: &Arc<ConnectError>) {
        for command in self.commands.take_all() {
            if let Purpose::Owner { token } = command.purpose {
                let cause = Arc::clone(cause);
                let error = if may_change(command.opcode) {
                    self.unanswered = true;
                    let what = command.opcode.name().unwrap_or("the admin command");
                    CommandError::OutcomeUnknown { what, cause }
                } else {
                    CommandError::Lost(cause)
                };
                self.events.push_back(Event::CommandDone {
                    token,
                    result: Err(error),
                });
            }
        }
    }

    /// Tells the owner of its waiting commands that they will not be sent.
    pub(super) fn fail_waiting(&mut self, cause: &Arc<ConnectError>) {
        for waiting in self.waiting.drain(..) {
            self.events.push_back(Event::CommandDone {
                token: waiting.token,
                result: Err(CommandError::Lost(Arc::clone(cause))),
            });
        }
    }
}
