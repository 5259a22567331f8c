//! The path of reservation commands: data like that of an I/O command, executed by the controllers
//! behind their lock; and what the controllers do to the commands of a queue: abort, drain,
//! complete.

use capstan_nvme_proto::status::Status;
use capstan_subsystem::{ConnId, ControlCommand, ControlOutcome, DrainId, Transfer};

use super::command::{Command, Work};
use super::connection::Connection;
use super::recv::Capsule;
use super::{IoPath, Resources, execute, respond, transfer, waiting};
use crate::limits::ADMIN_COST_BYTES;

/// Takes in a command that the controllers execute.
pub(super) fn start(
    resources: &mut Resources,
    connection: &mut Connection,
    slot: u16,
    control: ControlCommand,
    capsule: &mut Capsule,
) {
    let moved = *control.transfer();
    let command = connection.command(slot);
    command.segments = match &moved {
        Transfer::KeyedList(list) => Some(list.buffers(capsule.bytes()).collect()),
        Transfer::None | Transfer::InCapsule(_) | Transfer::Keyed(_) => None,
    };
    let in_capsule = matches!(moved, Transfer::InCapsule(_));
    command.pulls = !control.moves_data_to_host() && !in_capsule;
    command.transfer = moved;
    command.work = Work::Control(Box::new(control));
    let len_bytes = if in_capsule { 0 } else { moved.length_bytes() };
    execute::place_capsule_data(resources, connection, slot, capsule.data.take());
    waiting::obtain_buffer(resources, connection, slot, len_bytes);
}

/// Buffer and data are there: executes the command.
pub(super) fn on_data(resources: &mut Resources, connection: &mut Connection, slot: u16) {
    let command = connection.command(slot);
    let Work::Control(control) = std::mem::replace(&mut command.work, Work::Responded) else {
        return;
    };
    let len = command.transfer.length_bytes() as usize;
    let data_in = if control.moves_data_to_host() {
        Vec::new()
    } else {
        command.data_bytes(len)
    };
    resources.share.moved(ADMIN_COST_BYTES);
    let mut out = Vec::new();
    let now_us = resources.now_us;
    let outcome = resources
        .control
        .with(|target| target.execute_control(&control, &data_in, &mut out, now_us));
    resources.release_receive(connection, slot);
    let command = connection.command(slot);
    let status = match outcome {
        ControlOutcome::Complete(status) => status,
        ControlOutcome::Held => {
            command.release_buffers();
            command.work = Work::Held(control);
            return;
        }
    };
    if let Some(buffer) = command.data.as_mut()
        && !out.is_empty()
    {
        buffer.copy_from(0, &out);
        let len_bytes = u32::try_from(out.len()).unwrap_or(u32::MAX);
        if let Err(error) = transfer::push(connection, slot, len_bytes) {
            let why = format!("posting an RDMA WRITE failed: {error}");
            return resources.end(connection, why);
        }
    } else {
        command.release_buffers();
    }
    answer(resources, connection, slot, *control, status);
}

/// Ends a command that the controllers have not executed.
pub(super) fn finish(
    resources: &mut Resources,
    connection: &mut Connection,
    slot: u16,
    control: ControlCommand,
    status: Status,
) {
    resources.release_receive(connection, slot);
    connection.command(slot).release_buffers();
    answer(resources, connection, slot, control, status);
}

fn answer(
    resources: &mut Resources,
    connection: &mut Connection,
    slot: u16,
    control: ControlCommand,
    status: Status,
) {
    let invalidate = control.transfer().rkey_to_invalidate();
    let Some(queue) = connection.queue.as_mut() else {
        return;
    };
    let cqe = queue.complete(control.permit, status, 0);
    respond::send(resources, connection, slot, cqe, invalidate);
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
        match &self.work {
            Work::Io(io) => Some((io.permit.cid(), Some(io.namespace.nsid))),
            Work::Control(control) => Some((control.permit.cid(), None)),
            Work::Free | Work::Admin(_) | Work::Held(_) | Work::Responded | Work::Answered => None,
        }
    }
}

impl Connection {
    fn stage(&self, slot: u16) -> Stage {
        if self.waiting.contains(&slot) {
            Stage::Waiting
        } else if self.commands[usize::from(slot)].is_pulling() {
            Stage::Pulling
        } else {
            Stage::Storage
        }
    }

    /// The slots of commands that are still to be executed and that `matches` their CID and NSID.
    fn slots_where(&self, matches: impl Fn(u16, Option<u32>) -> bool) -> Vec<u16> {
        (0..)
            .zip(&self.commands)
            .filter(|(_, command)| command.name().is_some_and(|(cid, nsid)| matches(cid, nsid)))
            .map(|(slot, _)| slot)
            .collect()
    }
}

/// Completes the command in `slot` with `status` as soon as nothing of it is under way. Returns
/// whether it is kept from the storage engine.
fn stop(resources: &mut Resources, connection: &mut Connection, slot: u16, status: Status) -> bool {
    let stage = connection.stage(slot);
    match stage {
        Stage::Waiting => {
            connection.waiting.retain(|&other| other != slot);
            respond::finish(resources, connection, slot, status);
        }
        Stage::Pulling => {
            let Connection {
                queue, commands, ..
            } = connection;
            let command = &mut commands[usize::from(slot)];
            // The device still writes into its buffer: it is answered when that has ended.
            command.aborted = Some(status);
            if let (Some(queue), Work::Io(io)) = (queue, &mut command.work) {
                queue.withdraw(&mut io.permit);
            }
        }
        // Of several storage operations, those that have not begun are left out.
        Stage::Storage => connection.command(slot).aborted = Some(status),
    }
    stage != Stage::Storage
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
            connection.stage(slot) != Stage::Storage
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
        let slots = connection.slots_where(|_, other| other == Some(nsid));
        let stages: Vec<_> = slots
            .iter()
            .map(|&slot| (slot, connection.stage(slot)))
            .collect();
        let Connection {
            queue: Some(queue),
            commands,
            ..
        } = connection
        else {
            return;
        };
        queue.begin_drain_of_writes(nsid, drain);
        for (slot, stage) in stages {
            if let Work::Io(io) = &mut commands[usize::from(slot)].work
                && (stage != Stage::Storage || !io.operation.changes_blocks())
            {
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
        let held = (0..).zip(&mut connection.commands).find(|(_, command)| {
            matches!(&command.work, Work::Held(control) if control.permit.cid() == cid)
        });
        let Some((slot, command)) = held else { return };
        if let Work::Held(control) = std::mem::replace(&mut command.work, Work::Responded) {
            answer(resources, connection, slot, *control, status);
        }
    }
}
