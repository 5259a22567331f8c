//! The data half of a controller: one I/O queue. It moves to the reactor that owns the
//! connection, takes no lock and allocates nothing per command.
//!
//! The driver's loop: [`IoQueue::handle_command`] for each command capsule, move and store the
//! data it asks for, [`IoQueue::complete`] with the permit it got.

mod command;
mod control;
mod drain;
mod state;

use alloc::sync::Arc;

use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::error::{CommandError, ErrorLocation};
use capstan_nvme_proto::fabrics::FabricsCommand;
use capstan_nvme_proto::sqe::Sqe;
use capstan_nvme_proto::status::Status;

use crate::counters::NamespaceCounters;
use crate::namespace::NamespaceTable;
use crate::queue::{AcceptError, Accounting, Effect, Permit, Trace};
use crate::shared::{ControllerShared, ErrorRecord, QueueShared};
use crate::{ConnId, DisconnectReason, DrainId, FenceId};
use drain::Drains;

pub(crate) use command::{CopyLimits, EXECUTED, length_bytes};
pub use command::{IoCommand, IoOperation, NamespaceRef};
pub use control::ControlCommand;
pub(crate) use control::RESERVATION_COMMANDS;
pub use drain::Drained;
pub use state::{IoQueueEvent, IoQueueState};

/// What to do with a command capsule.
#[derive(Debug)]
pub enum IoStep {
    /// Find its data ([`IoCommand::data_transfer`]), execute the command, then give its permit to
    /// [`IoQueue::complete`]; or give the step to [`IoQueue::refuse_data`].
    Execute(IoCommand),
    /// Find its data ([`ControlCommand::data_transfer`]) and fetch what it brings, have
    /// [`Target::execute_control`](crate::Target::execute_control) execute the command, then give
    /// its permit to [`IoQueue::complete`]; or give the step to [`IoQueue::refuse_data`].
    Control(ControlCommand),
    /// The command cannot be executed: send this response.
    Complete(Cqe),
    /// The host deletes the queue (Disconnect): when every other command is completed, complete
    /// this one with success, send the response, and close the connection.
    DeleteQueue(Permit),
    /// The host broke the rules of the queue in a way that no response can answer: close the
    /// connection.
    Disconnect(DisconnectReason),
}

/// One I/O queue of a controller. See the module documentation.
#[derive(Debug)]
pub struct IoQueue {
    conn: ConnId,
    qid: u16,
    cntlid: u16,
    state: IoQueueState,
    accounting: Accounting,
    namespaces: Arc<NamespaceTable>,
    controller: Arc<ControllerShared>,
    shared: Arc<QueueShared>,
    counters: NamespaceCounters,
    drains: Drains,
}

impl IoQueue {
    pub(crate) fn new(
        conn: ConnId,
        qid: u16,
        cntlid: u16,
        accounting: Accounting,
        namespaces: Arc<NamespaceTable>,
        controller: Arc<ControllerShared>,
        shared: Arc<QueueShared>,
        counters: NamespaceCounters,
    ) -> Self {
        Self {
            conn,
            qid,
            cntlid,
            state: IoQueueState::Live,
            accounting,
            namespaces,
            controller,
            shared,
            counters,
            drains: Drains::default(),
        }
    }

    /// The connection this queue belongs to.
    #[must_use]
    pub fn conn(&self) -> ConnId {
        self.conn
    }

    /// Queue Identifier, from 1.
    #[must_use]
    pub fn qid(&self) -> u16 {
        self.qid
    }

    /// Controller Identifier of the association.
    #[must_use]
    pub fn cntlid(&self) -> u16 {
        self.cntlid
    }

    /// Entries of the queue (SQSIZE + 1): the most commands that are ever outstanding.
    #[must_use]
    pub fn entries(&self) -> u16 {
        self.accounting.entries()
    }

    /// Commands that have a [`Permit`] and no completion.
    #[must_use]
    pub fn outstanding(&self) -> u16 {
        self.accounting.outstanding()
    }

    /// Whether the command `cid` is outstanding: what an
    /// [`Action::AbortIo`](crate::Action::AbortIo) needs to know first.
    #[must_use]
    pub fn is_outstanding(&self, cid: u16) -> bool {
        self.accounting.is_outstanding(cid)
    }

    /// State of the queue.
    #[must_use]
    pub fn state(&self) -> IoQueueState {
        self.state
    }

    /// Generation of the namespaces this queue knows.
    #[must_use]
    pub fn namespaces_generation(&self) -> u64 {
        self.namespaces.generation()
    }

    /// Whether a newer table is on its way in an
    /// [`Action::SetNamespaces`](crate::Action::SetNamespaces).
    #[must_use]
    pub fn are_namespaces_stale(&self) -> bool {
        self.namespaces.generation() < self.controller.namespaces_generation()
    }

    /// Takes a new namespace table and its counters; one that is older than what the queue has is
    /// dropped.
    pub fn set_namespaces(&mut self, namespaces: Arc<NamespaceTable>, counters: NamespaceCounters) {
        if namespaces.generation() > self.namespaces.generation() {
            self.namespaces = namespaces;
            self.counters = counters;
        }
    }

    /// Takes in a command capsule. Whether the SGL of `sqe` is right is for the driver to find out:
    /// that is up to the transport ([`IoQueue::refuse_data`]).
    pub fn handle_command(&mut self, sqe: &Sqe) -> IoStep {
        self.controller.note_activity();
        let cid = sqe.cid.get();
        let permit = match self.accounting.accept(cid) {
            Ok(permit) => permit,
            Err(AcceptError::Overrun) => {
                self.close();
                return IoStep::Disconnect(DisconnectReason::QueueOverrun {
                    qid: self.qid,
                    entries: self.entries(),
                });
            }
            Err(AcceptError::CidInUse) => {
                let status = Status::COMMAND_ID_CONFLICT.dnr();
                let status = self.record(cid, &trace(sqe), status, ErrorLocation::sqe(2));
                return IoStep::Complete(self.accounting.answer(cid, status, 0));
            }
        };
        self.shared.set_outstanding(self.accounting.outstanding());
        if sqe.is_fabrics() {
            return self.handle_fabrics(sqe, permit);
        }
        if RESERVATION_COMMANDS.contains(&sqe.io_opcode()) {
            return match self.decode_control(sqe) {
                Ok((command, data, trace)) => IoStep::Control(ControlCommand::new(
                    permit
                        .with_trace(trace)
                        .with_era(self.drains.enter(drain::RESERVATIONS)),
                    command,
                    data,
                )),
                Err(error) => self.refuse(sqe, permit, &error),
            };
        }
        match self.decode(sqe) {
            Ok((operation, namespace, trace)) => IoStep::Execute(IoCommand {
                permit: permit
                    .with_trace(trace)
                    .with_era(self.drains.enter(trace.nsid)),
                namespace,
                operation,
                data_bytes: trace.bytes,
            }),
            Err(error) => self.refuse(sqe, permit, &error),
        }
    }

    /// Fabrics commands on an I/O queue: only Disconnect. NVMe Base 2.1, section 6.
    fn handle_fabrics(&mut self, sqe: &Sqe, permit: Permit) -> IoStep {
        match FabricsCommand::parse(sqe) {
            Ok(FabricsCommand::Disconnect) => {
                match self.state.after(IoQueueEvent::DisconnectCommand) {
                    Ok(next) => {
                        self.state = next;
                        let trace = Trace {
                            effect: Effect::Unwaited,
                            ..trace(sqe)
                        };
                        IoStep::DeleteQueue(permit.with_trace(trace))
                    }
                    Err(_) => self.refuse(sqe, permit, &sequence_error(sqe, NOT_TWICE)),
                }
            }
            // A queue is connected once.
            Ok(FabricsCommand::Connect(_)) => {
                self.refuse(sqe, permit, &sequence_error(sqe, "one Connect"))
            }
            Ok(
                FabricsCommand::PropertyGet(_)
                | FabricsCommand::PropertySet(_)
                | FabricsCommand::AuthenticationSend(_)
                | FabricsCommand::AuthenticationReceive(_),
            ) => {
                let error = CommandError::invalid_opcode("FCTYPE", 4, sqe.fctype().0);
                self.refuse(sqe, permit, &error)
            }
            Err(error) => self.refuse(sqe, permit, &error),
        }
    }

    /// Refuses a command that was to be executed, as its data is not where its transport takes it
    /// from: what to do instead. Nothing has been done for it yet.
    #[cold]
    pub fn refuse_data(&mut self, step: IoStep, error: &CommandError) -> IoStep {
        let permit = match step {
            IoStep::Execute(IoCommand { permit, .. }) => permit,
            IoStep::Control(ControlCommand { permit, .. }) => permit,
            IoStep::Complete(_) | IoStep::DeleteQueue(_) | IoStep::Disconnect(_) => return step,
        };
        self.drains.leave(&permit);
        let trace = Trace {
            lba: 0,
            ..permit.trace
        };
        let status = self.record(permit.cid, &trace, error.status, error.location);
        IoStep::Complete(self.answered(permit, status, 0))
    }

    fn refuse(&mut self, sqe: &Sqe, permit: Permit, error: &CommandError) -> IoStep {
        let mut trace = trace(sqe);
        if error.status == Status::LBA_OUT_OF_RANGE.dnr() {
            // Its value is the start of the range at fault, of a command or in its data.
            trace.lba = error.value;
        }
        let status = self.record(permit.cid, &trace, error.status, error.location);
        IoStep::Complete(self.answered(permit, status, 0))
    }

    /// Completes a command: the response capsule to send. `dw0` is the command specific result.
    pub fn complete(&mut self, permit: Permit, status: Status, dw0: u32) -> Cqe {
        let trace = permit.trace;
        let bytes = if status.is_success() {
            u64::from(trace.bytes)
        } else {
            0
        };
        match trace.effect {
            Effect::Read => self.counters.add_read(trace.nsid, bytes),
            Effect::Write => self.counters.add_write(trace.nsid, bytes),
            Effect::Other | Effect::Control => self.counters.add_other(trace.nsid),
            Effect::Unwaited => {}
        }
        self.drains.leave(&permit);
        let status = if status.is_success() {
            status
        } else {
            self.record(permit.cid, &trace, status, ErrorLocation::Unspecified)
        };
        self.answered(permit, status, dw0)
    }

    /// The completion of a command, which is not outstanding any more.
    fn answered(&mut self, permit: Permit, status: Status, dw0: u32) -> Cqe {
        let cqe = self.accounting.complete(permit, status, dw0);
        self.shared.set_outstanding(self.accounting.outstanding());
        cqe
    }

    /// Begins an [`Action::DrainIo`](crate::Action::DrainIo): it is over when every command for the
    /// namespace that was accepted before is completed or withdrawn. [`IoQueue::poll_drained`] says
    /// when; ask it after this call and after each [`IoQueue::complete`] and
    /// [`IoQueue::withdraw`].
    pub fn begin_drain(&mut self, nsid: u32, drain: DrainId) {
        self.drains.begin(nsid, drain, false);
    }

    /// Begins an [`Action::DrainWrites`](crate::Action::DrainWrites): as [`IoQueue::begin_drain`],
    /// but for the commands that are then taken out of it ([`IoQueue::excuse`]).
    pub fn begin_drain_of_writes(&mut self, nsid: u32, drain: DrainId) {
        self.drains.begin(nsid, drain, true);
    }

    /// Begins the second half of an [`Action::FenceIo`](crate::Action::FenceIo), when everything
    /// that had come was given to [`IoQueue::handle_command`]: it is over when every command that
    /// was accepted before is completed or withdrawn. [`IoQueue::poll_drained`] says when.
    pub fn begin_fence(&mut self, fence: FenceId) {
        self.drains.begin_fence(fence);
    }

    /// Whether a new association of the host waits for commands of this queue.
    #[must_use]
    pub fn is_fenced(&self) -> bool {
        self.drains.has_fence()
    }

    /// The command will be completed without having reached its backend: no drain waits for it,
    /// however long its transfer may take to end.
    pub fn withdraw(&mut self, permit: &mut Permit) {
        self.drains.leave(permit);
        permit.trace.effect = Effect::Unwaited;
    }

    /// The command goes on, and no drain of writes that has begun waits for it: it changes no
    /// block, or is asked for again ([`IoQueue::check_again`]) before it can.
    pub fn excuse(&mut self, permit: &mut Permit) {
        self.drains.excuse(permit);
    }

    /// A drain or a fence that is over.
    pub fn poll_drained(&mut self) -> Option<Drained> {
        self.drains.poll()
    }

    /// Ends the queue: every later command is a protocol violation.
    pub fn close(&mut self) {
        self.apply(IoQueueEvent::Closed);
    }

    fn apply(&mut self, event: IoQueueEvent) {
        if let Ok(next) = self.state.after(event) {
            self.state = next;
        }
    }

    /// Writes an error into the controller's Error Information log. Returns the status with More
    /// set, which tells the host that it is there.
    fn record(&self, cid: u16, trace: &Trace, status: Status, location: ErrorLocation) -> Status {
        self.counters.add_error(trace.nsid, status);
        self.shared.record_error(&ErrorRecord {
            count: self.controller.next_error(),
            qid: self.qid,
            cid,
            status: status.more(),
            location: location.parameter_error_location(),
            opcode: trace.opcode,
            nsid: trace.nsid,
            lba: trace.lba,
        });
        status.more()
    }

    /// Whether commands are executed now.
    fn check_state(&mut self, sqe: &Sqe) -> Result<(), CommandError> {
        if self.state == IoQueueState::Live && !self.controller.is_ready() {
            self.apply(IoQueueEvent::ControllerNotReady);
        }
        let expected = match self.state {
            IoQueueState::Live => return Ok(()),
            IoQueueState::Quiesced => "a command while the controller is ready (CSTS.RDY)",
            IoQueueState::Draining => "no command after Disconnect",
            IoQueueState::Closed => "no command on a closed queue",
        };
        Err(sequence_error(sqe, expected))
    }
}

const NOT_TWICE: &str = "one Disconnect";

fn sequence_error(sqe: &Sqe, expected: &'static str) -> CommandError {
    CommandError {
        status: Status::COMMAND_SEQUENCE_ERROR.dnr(),
        location: ErrorLocation::Unspecified,
        field: "Opcode",
        value: u64::from(sqe.opcode),
        expected,
    }
}

fn trace(sqe: &Sqe) -> Trace {
    Trace {
        opcode: sqe.opcode,
        nsid: sqe.nsid.get(),
        ..Trace::default()
    }
}
