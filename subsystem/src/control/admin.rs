//! Commands on an Admin queue: accepted, their data located, then executed.

use alloc::vec::Vec;
use core::ops::Range;

use capstan_nvme_proto::command::{AdminCommand, GetFeatures, SetFeatures};
use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::error::{CommandError, ErrorLocation};
use capstan_nvme_proto::fabrics::{FabricsCommand, PropertyGet, PropertySet};
use capstan_nvme_proto::features::{
    FeatureId, FeatureSelect, HostBehaviorSupport, ReservationPersistence,
};
use capstan_nvme_proto::sqe::Sqe;
use capstan_nvme_proto::status::Status;
use capstan_nvme_proto::transfer::DataTransfer;
use zerocopy::IntoBytes as _;

use super::lba_status::{AllocationLook, AllocationQuery};
use super::{Queue, Target};
use crate::ConnId;
use crate::action::{Action, ControllerId, DisconnectReason};
use crate::bounds::ADMIN_DATA_MAX_BYTES;
use crate::controller::{Controller, ControllerEvent, ControllerKind, ControllerState};
use crate::features::FeatureValue;
use crate::io_queue::length_bytes;
use crate::queue::{AcceptError, Permit};

/// What to do with a command capsule on an Admin queue.
#[derive(Debug)]
pub enum AdminStep {
    /// Find its data ([`AdminRequest::data_transfer`]) and call [`Target::execute_admin`], or
    /// [`Target::refuse_admin_data`].
    Execute(AdminRequest),
    /// The command cannot be executed: send this response.
    Complete(Cqe),
    /// The host broke the rules of the queue in a way that no response can answer: close the
    /// connection.
    Disconnect(DisconnectReason),
}

/// An Admin command that was accepted and is to be executed.
#[derive(Debug)]
#[must_use = "the command stays outstanding until it is executed or failed"]
pub struct AdminRequest {
    permit: Permit,
    command: Command,
    opcode: u8,
    nsid: u32,
    /// What it needs.
    transfer: DataTransfer,
    /// What the host sends with it.
    data: Vec<u8>,
    /// Of Get LBA Status.
    look: Option<AllocationLook>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Command {
    Fabrics(FabricsCommand),
    Admin(AdminCommand),
}

impl AdminRequest {
    /// Bytes of data for the host: the most that [`Target::execute_admin`] tells. Or those of the
    /// host, if the command [`brings_data`](Self::brings_data).
    #[must_use]
    pub fn data_bytes(&self) -> u32 {
        length_bytes(self.transfer)
    }

    /// The data that it needs.
    #[must_use]
    pub fn data_transfer(&self) -> DataTransfer {
        self.transfer
    }

    /// Whether the host sends data with it, to be handed over with [`AdminRequest::set_data`]: Set
    /// Features of [`FeatureId::HOST_BEHAVIOR_SUPPORT`].
    #[must_use]
    pub fn brings_data(&self) -> bool {
        takes_data(&self.command)
    }

    /// What the host sends with it.
    pub fn set_data(&mut self, data: Vec<u8>) {
        self.data = data;
    }

    /// What the driver is to find out before it has the command executed: to be answered with
    /// [`AdminRequest::set_allocated`].
    #[must_use]
    pub fn allocation_query(&self) -> Option<&AllocationQuery> {
        self.look.as_ref().map(|look| &look.query)
    }

    /// Answers [`AdminRequest::allocation_query`]: the allocated extents, in ascending order, not
    /// touching one another, inside the range, and as many as asked for at most.
    pub fn set_allocated(&mut self, allocated: Vec<Range<u64>>) {
        if let Some(look) = &mut self.look {
            look.allocated = allocated;
        }
    }

    /// The command's opcode.
    #[must_use]
    pub fn opcode(&self) -> u8 {
        self.opcode
    }

    /// The command's identifier.
    #[must_use]
    pub fn cid(&self) -> u16 {
        self.permit.cid()
    }
}

/// What became of an Admin command.
#[derive(Debug)]
pub enum AdminOutcome {
    /// Push what `out` has to the host, then send this response.
    Complete(Cqe),
    /// The response comes later, as [`Action::Complete`].
    Held,
    /// The connection is gone or not an Admin queue: there is nobody to answer.
    Gone,
}

fn is_property_command(command: &FabricsCommand) -> bool {
    matches!(
        command,
        FabricsCommand::PropertyGet(_) | FabricsCommand::PropertySet(_)
    )
}

/// What executing a command gave.
pub(crate) enum Executed {
    /// Success: dwords 0 and 1 of the response.
    Done { result: u64 },
    /// The permit was taken: the response comes later.
    Held,
}

impl Executed {
    /// Success without result.
    pub(crate) const OK: Self = Self::Done { result: 0 };

    pub(crate) fn result(result: impl Into<u64>) -> Self {
        Self::Done {
            result: result.into(),
        }
    }
}

/// What an executing command works with.
pub(crate) struct Execution<'a> {
    pub(crate) id: ControllerId,
    /// To be taken by a command whose response comes later.
    pub(crate) permit: &'a mut Option<Permit>,
    /// What the host sends.
    pub(crate) data: &'a [u8],
    /// Takes data for the host.
    pub(crate) out: &'a mut Vec<u8>,
    /// Bytes the host wants, and the most that there may be.
    pub(crate) room: usize,
    pub(crate) now_us: u64,
}

impl Target {
    /// Takes in a command capsule of an Admin queue. Whether the SGL of `sqe` is right is for the
    /// driver to find out: that is up to the transport ([`Target::refuse_admin_data`]).
    pub fn begin_admin(&mut self, conn: ConnId, sqe: &Sqe, now_us: u64) -> AdminStep {
        let Some(controller) = self.admin_controller(conn) else {
            return AdminStep::Disconnect(DisconnectReason::NotConnected);
        };
        controller.shared.note_activity();
        let (cid, opcode, nsid) = (sqe.cid.get(), sqe.opcode, sqe.nsid.get());
        let permit = match controller.admin.accept(cid) {
            Ok(permit) => permit,
            Err(AcceptError::Overrun) => {
                let why = DisconnectReason::QueueOverrun {
                    qid: 0,
                    entries: controller.admin.entries(),
                };
                let id = controller.id;
                self.end_association(id, why);
                return AdminStep::Disconnect(why);
            }
            Err(AcceptError::CidInUse) => {
                let id = controller.id;
                if let Ok((Command::Fabrics(command), ..)) = decode(controller, sqe)
                    && is_property_command(&command)
                {
                    return self.answer_property_command(id, sqe, &command, now_us);
                }
                let Some(controller) = self.admin_controller(conn) else {
                    return AdminStep::Disconnect(DisconnectReason::NotConnected);
                };
                let status = Status::COMMAND_ID_CONFLICT.dnr();
                let location = ErrorLocation::sqe(2);
                let status = controller.record_error(cid, opcode, nsid, status, location);
                return AdminStep::Complete(controller.admin.answer(cid, status, 0));
            }
        };
        match decode(controller, sqe) {
            Ok((command, transfer, look)) => AdminStep::Execute(AdminRequest {
                permit,
                command,
                opcode,
                nsid,
                transfer,
                data: Vec::new(),
                look,
            }),
            Err(error) => AdminStep::Complete(controller.fail(permit, opcode, nsid, &error)),
        }
    }

    /// Answers a property command at once whose identifier an outstanding command has: SPDK's host
    /// shuts a controller down with those of Asynchronous Event Requests, and skips the shutdown
    /// where that is refused. Linux nvmet compares no identifiers.
    fn answer_property_command(
        &mut self,
        id: ControllerId,
        sqe: &Sqe,
        command: &FabricsCommand,
        now_us: u64,
    ) -> AdminStep {
        let executed = self.execute_fabrics(id, command, now_us);
        let Some(controller) = self.controllers.get_mut(&id) else {
            return AdminStep::Disconnect(DisconnectReason::NotConnected);
        };
        let cid = sqe.cid.get();
        let (status, result) = match executed {
            Ok(Executed::Done { result }) => (Status::SUCCESS, result),
            // Of these commands none is.
            Ok(Executed::Held) => (Status::INTERNAL_ERROR, 0),
            Err(CommandError {
                status, location, ..
            }) => {
                let nsid = sqe.nsid.get();
                (
                    controller.record_error(cid, sqe.opcode, nsid, status, location),
                    0,
                )
            }
        };
        let cqe = controller.admin.answer(cid, status, 0);
        AdminStep::Complete(cqe.with_result(result))
    }

    /// Executes a command. What goes to the host comes into `out`, which is empty before: as much
    /// as there is, and no more than the host wants ([`AdminRequest::data_bytes`]).
    pub fn execute_admin(
        &mut self,
        request: AdminRequest,
        out: &mut Vec<u8>,
        now_us: u64,
    ) -> AdminOutcome {
        let conn = request.permit.conn();
        let Some(controller) = self.admin_controller(conn) else {
            return AdminOutcome::Gone;
        };
        let id = controller.id;
        let room = usize::try_from(request.data_bytes()).unwrap_or(0);
        let mut permit = Some(request.permit);
        let mut execution = Execution {
            id,
            permit: &mut permit,
            data: &request.data,
            out,
            room,
            now_us,
        };
        let executed = match &request.command {
            Command::Fabrics(command) => self.execute_fabrics(id, command, now_us),
            Command::Admin(AdminCommand::GetLbaStatus(get)) => match &request.look {
                Some(look) => {
                    look.report(get, execution.out, execution.room);
                    Ok(Executed::OK)
                }
                // Every such command has one.
                None => Err(gone()),
            },
            Command::Admin(command) => self.execute(command, &mut execution),
        };
        let (Some(permit), Some(controller)) = (permit.take(), self.admin_controller(conn)) else {
            return AdminOutcome::Held;
        };
        match executed {
            Ok(Executed::Done { result }) => {
                let cqe = controller.admin.complete(permit, Status::SUCCESS, 0);
                AdminOutcome::Complete(cqe.with_result(result))
            }
            Ok(Executed::Held) => AdminOutcome::Held,
            Err(error) => {
                out.clear();
                let cqe = controller.fail(permit, request.opcode, request.nsid, &error);
                AdminOutcome::Complete(cqe)
            }
        }
    }

    /// Gives up on a command that was accepted: there is no room for its data. `None` when the
    /// connection is gone.
    pub fn fail_admin(&mut self, request: AdminRequest, status: Status) -> Option<Cqe> {
        let controller = self.admin_controller(request.permit.conn())?;
        let error = CommandError {
            status,
            location: ErrorLocation::Unspecified,
            field: "data",
            value: request.data_bytes().into(),
            expected: "room for the data",
        };
        Some(controller.fail(request.permit, request.opcode, request.nsid, &error))
    }

    /// Refuses a command that was accepted and whose data is not where its transport takes it from.
    /// `None` when the connection is gone.
    pub fn refuse_admin_data(
        &mut self,
        request: AdminRequest,
        error: &CommandError,
    ) -> Option<Cqe> {
        let controller = self.admin_controller(request.permit.conn())?;
        Some(controller.fail(request.permit, request.opcode, request.nsid, error))
    }

    /// The controller whose Admin queue `conn` is.
    pub(super) fn admin_controller(&mut self, conn: ConnId) -> Option<&mut Controller> {
        match self.connections.get(&conn)? {
            Queue::Admin(id) => self.controllers.get_mut(id),
            Queue::Io(..) => None,
        }
    }

    fn execute_fabrics(
        &mut self,
        id: ControllerId,
        command: &FabricsCommand,
        now_us: u64,
    ) -> Result<Executed, CommandError> {
        match *command {
            FabricsCommand::PropertyGet(get) => self.property_get(id, get),
            FabricsCommand::PropertySet(set) => self.property_set(id, set, now_us),
            // The Admin queue ends with its connection. NVMe Base 2.1, section 6.4.
            FabricsCommand::Disconnect => Err(CommandError {
                status: Status::DISCONNECT_INVALID_QUEUE_TYPE.dnr(),
                ..CommandError::invalid_opcode("FCTYPE", 4, command.fctype().0)
            }),
            FabricsCommand::Connect(_) => Err(CommandError {
                status: Status::COMMAND_SEQUENCE_ERROR.dnr(),
                ..CommandError::invalid_opcode("FCTYPE", 4, command.fctype().0)
            }),
            FabricsCommand::AuthenticationSend(_) | FabricsCommand::AuthenticationReceive(_) => {
                Err(CommandError::invalid_opcode(
                    "FCTYPE",
                    4,
                    command.fctype().0,
                ))
            }
        }
    }

    fn property_get(&self, id: ControllerId, get: PropertyGet) -> Result<Executed, CommandError> {
        let controller = self.controllers.get(&id).ok_or_else(gone)?;
        let mqes = match controller.kind {
            ControllerKind::Io => self.config.io_queue_entries,
            ControllerKind::Discovery => self.config.admin_queue_entries,
        };
        controller.property(get, mqes).map(Executed::result)
    }

    fn property_set(
        &mut self,
        id: ControllerId,
        set: PropertySet,
        now_us: u64,
    ) -> Result<Executed, CommandError> {
        let controller = self.controllers.get_mut(&id).ok_or_else(gone)?;
        let (cc, event) = controller.check_property_set(set)?;
        if let Some(event) = event {
            if event == ControllerEvent::Enabled {
                self.close_own_fence(id, now_us);
            }
            self.apply(id, event).map_err(|illegal| CommandError {
                status: Status::COMMAND_SEQUENCE_ERROR.dnr(),
                location: ErrorLocation::sqe(48),
                field: illegal.event,
                value: set.value,
                expected: "a state of the controller in which that is possible",
            })?;
        }
        if let Some(controller) = self.controllers.get_mut(&id) {
            controller.cc = cc;
        }
        Ok(Executed::OK)
    }

    fn execute(
        &mut self,
        command: &AdminCommand,
        execution: &mut Execution<'_>,
    ) -> Result<Executed, CommandError> {
        match *command {
            AdminCommand::Identify(identify) => {
                let executed = self.identify(&identify, execution)?;
                self.note_reported(execution.id, &identify, execution.now_us);
                Ok(executed)
            }
            AdminCommand::GetLogPage(get) => self.log_page(&get, execution),
            AdminCommand::SetFeatures(set) => self.set_features(&set, execution),
            AdminCommand::GetFeatures(get) => self.get_features(&get, execution),
            AdminCommand::Abort(abort) => self.abort(abort, execution),
            AdminCommand::AsynchronousEventRequest => self.request_event(execution),
            AdminCommand::CrossControllerReset(reset) => {
                self.cross_controller_reset(reset, execution)
            }
            // The driver has looked: see `execute_admin`.
            AdminCommand::GetLbaStatus(_) => Err(gone()),
            AdminCommand::KeepAlive => {
                if let Some(controller) = self.controllers.get_mut(&execution.id) {
                    // The command starts an interval; it is no traffic in it.
                    controller.shared.take_activity();
                    controller.keep_alive.restart(execution.now_us);
                }
                Ok(Executed::OK)
            }
        }
    }

    fn request_event(&mut self, execution: &mut Execution<'_>) -> Result<Executed, CommandError> {
        let Some(controller) = self.controllers.get_mut(&execution.id) else {
            return Err(gone());
        };
        if let Some(permit) = execution.permit.take()
            && let Err(permit) = controller.events.request(permit)
        {
            *execution.permit = Some(permit);
            return Err(CommandError {
                status: Status::ASYNCHRONOUS_EVENT_REQUEST_LIMIT_EXCEEDED.dnr(),
                ..CommandError::invalid_opcode("Opcode", 0, 0x0C)
            });
        }
        self.send_events(execution.id);
        Ok(Executed::Held)
    }

    /// Completes Asynchronous Event Requests for which there is an event.
    pub(super) fn send_events(&mut self, id: ControllerId) {
        let Some(controller) = self.controllers.get_mut(&id) else {
            return;
        };
        while let Some((permit, event)) = controller.events.next_completion() {
            let cqe = controller
                .admin
                .complete(permit, Status::SUCCESS, event.encode());
            self.actions.push_back(Action::Complete {
                conn: controller.conn,
                cqe,
            });
        }
    }
}

/// The controller vanished during its own command: cannot happen, and is no reason to panic.
pub(crate) fn gone() -> CommandError {
    CommandError {
        status: Status::INTERNAL_ERROR,
        location: ErrorLocation::Unspecified,
        field: "controller",
        value: 0,
        expected: "a controller",
    }
}

/// Understands a command, checks that the controller executes it now, and says what data it needs.
fn decode(
    controller: &Controller,
    sqe: &Sqe,
) -> Result<(Command, DataTransfer, Option<AllocationLook>), CommandError> {
    let mut look = None;
    let (command, data) = if sqe.is_fabrics() {
        let command = FabricsCommand::parse(sqe)?;
        (Command::Fabrics(command), command.data_transfer())
    } else {
        let command = AdminCommand::parse(sqe)?;
        check_state(controller, sqe)?;
        if let AdminCommand::GetLbaStatus(get) = &command {
            look = Some(AllocationLook::new(controller, get)?);
        }
        (Command::Admin(command), command.data_transfer())
    };
    if data.bytes() > u64::from(ADMIN_DATA_MAX_BYTES) {
        return Err(CommandError::invalid_field(
            "transfer length",
            40,
            data.bytes(),
            "at most 100000h bytes (MDTS)",
        ));
    }
    let is_moved = match data {
        DataTransfer::ControllerToHost { .. } => true,
        // The others that bring data are refused by what they are, not by what they bring.
        DataTransfer::HostToController { .. } => {
            takes_data(&command) && controller.kind == ControllerKind::Io
        }
        DataTransfer::None => false,
    };
    let data = if is_moved { data } else { DataTransfer::None };
    Ok((command, data, look))
}

fn takes_data(command: &Command) -> bool {
    match command {
        Command::Admin(AdminCommand::SetFeatures(set)) => {
            set.fid == FeatureId::HOST_BEHAVIOR_SUPPORT
        }
        Command::Admin(_) | Command::Fabrics(_) => false,
    }
}

/// Before CSTS.RDY only Fabrics commands are executed. NVMe Base 2.1, section 3.5.
fn check_state(controller: &Controller, sqe: &Sqe) -> Result<(), CommandError> {
    match controller.state {
        ControllerState::Ready | ControllerState::ShuttingDown | ControllerState::Shutdown => {
            Ok(())
        }
        ControllerState::Disabled
        | ControllerState::Enabling
        | ControllerState::Resetting
        | ControllerState::Fatal => Err(CommandError {
            status: Status::COMMAND_SEQUENCE_ERROR.dnr(),
            location: ErrorLocation::Unspecified,
            field: "Opcode",
            value: sqe.opcode.into(),
            expected: "a Fabrics command before the controller is ready (CSTS.RDY)",
        }),
    }
}

impl Target {
    fn set_features(
        &mut self,
        set: &SetFeatures,
        execution: &mut Execution<'_>,
    ) -> Result<Executed, CommandError> {
        if set.fid == FeatureId::NAMESPACE_WRITE_PROTECTION_CONFIG {
            let controller = self.controllers.get(&execution.id).ok_or_else(gone)?;
            controller.check_set(set)?;
            return self.set_write_protection(set, execution);
        }
        if set.fid == FeatureId::RESERVATION_PERSISTENCE {
            let controller = self.controllers.get(&execution.id).ok_or_else(gone)?;
            controller.check_set(set)?;
            return self.set_persistence(set, execution);
        }
        let io_queues = self.config.io_queues;
        let controller = self.controllers.get_mut(&execution.id).ok_or_else(gone)?;
        let dw0 = controller.set_feature(set, execution.data, io_queues, execution.now_us)?;
        self.send_events(execution.id);
        if set.fid == FeatureId::HOST_BEHAVIOR_SUPPORT {
            // What is refused is to be tried again later, or now.
            self.set_gates(execution.id);
        }
        Ok(Executed::result(dw0))
    }

    fn get_features(
        &self,
        get: &GetFeatures,
        execution: &mut Execution<'_>,
    ) -> Result<Executed, CommandError> {
        let controller = self.controllers.get(&execution.id).ok_or_else(gone)?;
        match controller.feature(get, self.config.io_queues)? {
            FeatureValue::Dword(_)
                if get.fid == FeatureId::RESERVATION_PERSISTENCE
                    && get.select == FeatureSelect::CURRENT =>
            {
                let persist_through_power_loss = self.persists(execution.id, get.nsid);
                let value = ReservationPersistence {
                    persist_through_power_loss,
                };
                Ok(Executed::result(value.encode()))
            }
            FeatureValue::Dword(dw0) => Ok(Executed::result(dw0)),
            FeatureValue::HostIdentifier => {
                let hostid = controller.association.hostid.0;
                execution.out.extend(hostid.iter().take(execution.room));
                Ok(Executed::OK)
            }
            FeatureValue::HostBehavior { acre } => {
                let behavior = HostBehaviorSupport::with_acre(acre);
                let bytes = behavior.as_bytes().iter();
                execution.out.extend(bytes.take(execution.room));
                Ok(Executed::OK)
            }
        }
    }
}
