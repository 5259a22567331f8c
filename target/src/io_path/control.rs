//! The path of reservation commands: data like that of an I/O command, executed by the controllers
//! behind their lock; and what the controllers do to the commands of a queue: abort, drain,
//! complete.

use capstan_nvme_proto::status::Status;
use capstan_subsystem::{ConnId, ControlCommand, ControlOutcome, DrainId};
use capstan_transport::{Capsule, HostMemory};

use super::command::{Command, Holds, NotAnswered, OnMedium, Work};
use super::connection::Connection;
use super::{IoPath, Resources, execute, respond, waiting};
use crate::limits::ADMIN_COST_BYTES;

/// Takes in a command that the controllers execute.
pub(super) fn start(
    resources: &mut Resources,
    connection: &mut Connection,
    slot: u16,
    (control, host): (ControlCommand, HostMemory),
    capsule: &mut Capsule,
) {
    let mut holds = Holds::new(host);
    execute::keep_capsule_data(connection, capsule, &mut holds);
    let len_bytes = if holds.host.is_remote() {
        control.data_bytes()
    } else {
        0
    };
    let command = (Work::Control(Box::new(control)), holds);
    waiting::obtain_buffer(resources, connection, slot, command, len_bytes);
}

/// Buffer and data are there: executes the command.
pub(super) fn on_data(
    resources: &mut Resources,
    connection: &mut Connection,
    slot: u16,
    control: Box<ControlCommand>,
    mut holds: Holds,
) {
    let data_in = if control.moves_data_to_host() {
        Some(Vec::new())
    } else {
        holds.data_bytes(control.data_bytes())
    };
    let Some(data_in) = data_in else {
        let status = Status::INTERNAL_ERROR;
        return finish(resources, connection, slot, *control, holds, status);
    };
    resources.share.moved(ADMIN_COST_BYTES);
    let mut out = Vec::new();
    let now_us = resources.now_us;
    let outcome = resources
        .control
        .with(|target| target.execute_control(&control, &data_in, &mut out, now_us));
    connection.release_receive(&mut holds);
    let status = match outcome {
        ControlOutcome::Complete(status) => status,
        ControlOutcome::Held => {
            let host = std::mem::take(&mut holds.host);
            connection.put_back(holds);
            *connection.command(slot) = Command::Held(control, host);
            return;
        }
    };
    if let Some(buffer) = holds.own.buffer_mut()
        && !out.is_empty()
    {
        buffer.copy_from(0, &out);
        let mut len_bytes = u32::try_from(out.len()).unwrap_or(u32::MAX);
        if connection.transport.fills_data_buffer() {
            len_bytes = control.data_bytes().max(len_bytes);
            buffer.zero(out.len()..len_bytes as usize);
        }
        respond::push(connection, slot, &mut holds, len_bytes);
    } else {
        holds.own.release();
    }
    answer(resources, connection, slot, *control, holds, status);
}

/// Ends a command that the controllers have not executed.
pub(super) fn finish(
    resources: &mut Resources,
    connection: &mut Connection,
    slot: u16,
    control: ControlCommand,
    mut holds: Holds,
    status: Status,
) {
    connection.release_receive(&mut holds);
    holds.own.release();
    answer(resources, connection, slot, control, holds, status);
}

fn answer(
    resources: &mut Resources,
    connection: &mut Connection,
    slot: u16,
    control: ControlCommand,
    holds: Holds,
    status: Status,
) {
    let invalidate = holds.host.invalidate();
    let Some(queue) = connection.queue.as_mut() else {
        return;
    };
    let cqe = queue.complete(control.permit, status, 0);
    respond::complete(resources, connection, slot, holds, cqe, invalidate);
    respond::settle(resources, connection);
}

/// Where a command is that is to be aborted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// It waits for a buffer.
    Waiting,
    /// Its data is on its way.
    Pulling,
    /// It is on the storage engine.
    Storage,
}

impl Command {
    /// The CID and NSID of a command that is still to be executed; reservation commands have no
    /// NSID here, because they are never aborted by it.
    fn name(&self) -> Option<(u16, Option<u32>)> {
        match self.not_answered()? {
            NotAnswered::Io(io) => Some((io.permit.cid(), Some(io.namespace.nsid))),
            NotAnswered::Control(control) => Some((control.permit.cid(), None)),
            NotAnswered::Held => None,
        }
    }

    /// Where a command is that is still to be executed.
    fn stage(&self) -> Option<Stage> {
        match self {
            Self::Waiting { .. } => Some(Stage::Waiting),
            Self::Pulling { .. } => Some(Stage::Pulling),
            Self::OnMedium(_) => Some(Stage::Storage),
            Self::Empty
            | Self::Connecting(..)
            | Self::Held(..)
            | Self::Pushing(..)
            | Self::Responding(_) => None,
        }
    }
}

impl Connection {
    /// The slots of commands that are still to be executed and that `matches` their CID and NSID.
    fn slots_where(&self, matches: impl Fn(u16, Option<u32>) -> bool) -> Vec<u16> {
        (0..)
            .zip(&self.commands)
            .filter(|(_, command)| command.name().is_some_and(|(cid, nsid)| matches(cid, nsid)))
            .map(|(slot, _)| slot)
            .collect()
    }
}

/// Completes the command in `slot` with `status` as soon as no transfer or storage operation of it
/// is under way. Returns whether it will not reach the storage engine.
fn stop(resources: &mut Resources, connection: &mut Connection, slot: u16, status: Status) -> bool {
    match connection.take_command(slot) {
        Command::Waiting { work, holds, .. } => {
            connection.waiting.retain(|&other| other != slot);
            waiting::resume(resources, connection);
            respond::finish(resources, connection, slot, work, holds, status);
            return true;
        }
        other => *connection.command(slot) = other,
    }
    let Connection {
        queue, commands, ..
    } = connection;
    match &mut commands[usize::from(slot)] {
        Command::Pulling { work, aborted, .. } => {
            // The device still writes into its buffer: it is answered when that has ended.
            *aborted = Some(status);
            if let (Some(queue), Work::Io(io)) = (queue, work) {
                queue.withdraw(&mut io.permit);
            }
            true
        }
        // A command of several storage operations starts no more of them.
        Command::OnMedium(on) => {
            on.aborted = Some(status);
            false
        }
        _ => false,
    }
}

impl IoPath {
    /// The connection, unless it is ending.
    pub(super) fn live(&mut self, conn: ConnId) -> Option<(&mut Resources, &mut Connection)> {
        let &index = self.index_of.get(&conn)?;
        let connection = self.connections.get_mut(index)?;
        (!connection.closing()).then_some((&mut self.resources, connection))
    }

    /// Completes a command that has not gone to the storage engine yet. Returns whether there was
    /// one.
    pub(super) fn abort(&mut self, conn: ConnId, cid: u16) -> bool {
        let Some((resources, connection)) = self.live(conn) else {
            return false;
        };
        let slots = connection.slots_where(|other, _| other == cid);
        slots.first().is_some_and(|&slot| {
            connection.command(slot).stage() != Some(Stage::Storage)
                && stop(resources, connection, slot, Status::ABORT_REQUESTED)
        })
    }

    /// Aborts what can be aborted of the commands for `nsid`, and answers when the others are over.
    pub(super) fn drain_io(&mut self, conn: ConnId, nsid: u32, drain: DrainId) {
        // When a connection ends, the controllers are told at its end.
        let Some((resources, connection)) = self.live(conn) else {
            return;
        };
        for slot in connection.slots_where(|_, other| other == Some(nsid)) {
            stop(
                resources,
                connection,
                slot,
                Status::ABORTED_PREEMPT_AND_ABORT,
            );
        }
        if let Some(queue) = connection.queue.as_mut() {
            queue.begin_drain(nsid, drain);
        }
        respond::settle(resources, connection);
    }

    /// Answers when no command for `nsid` that was accepted before can change the namespace any
    /// more. Those that have not reached the storage engine are checked again before they do
    /// ([`execute::check_again`]).
    pub(super) fn drain_writes(&mut self, conn: ConnId, nsid: u32, drain: DrainId) {
        // When a connection ends, the controllers are told at its end.
        let Some((resources, connection)) = self.live(conn) else {
            return;
        };
        let Connection {
            queue: Some(queue),
            commands,
            ..
        } = connection
        else {
            return;
        };
        queue.begin_drain_of_writes(nsid, drain);
        for command in commands {
            let io = match command {
                Command::Waiting {
                    work: Work::Io(io), ..
                }
                | Command::Pulling {
                    work: Work::Io(io), ..
                } => io,
                Command::OnMedium(OnMedium { io, .. }) if !io.operation.changes_blocks() => io,
                _ => continue,
            };
            if io.namespace.nsid == nsid {
                queue.excuse(&mut io.permit);
            }
        }
        respond::settle(resources, connection);
    }

    /// Completes a reservation command that waited.
    pub(super) fn complete_io(&mut self, conn: ConnId, cid: u16, status: Status) {
        let Some((resources, connection)) = self.live(conn) else {
            return;
        };
        let held = (0..).zip(&connection.commands).find(
            |(_, command)| matches!(command, Command::Held(control, _) if control.permit.cid() == cid),
        );
        let Some((slot, _)) = held else { return };
        if let Command::Held(control, host) = connection.take_command(slot) {
            let holds = Holds::new(host);
            answer(resources, connection, slot, *control, holds, status);
        }
    }
}
