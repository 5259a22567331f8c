//! Step 5: the response capsule, sent behind the data of its command.

use capstan_memory::Buffer;
use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::status::Status;
use capstan_storage::Data;
use capstan_subsystem::{Drained, IoCommand, Permit};
use capstan_transport::{Pushed, Responded, Source, Tag};

use super::command::{Command, Holds, Responding, Work};
use super::connection::Connection;
use super::{Resources, admin, control, corrupt, probe, waiting};
use crate::metrics::Stage;

/// Ends a command of an I/O queue that is not carried out, or only in part.
pub(super) fn finish(
    resources: &mut Resources,
    connection: &mut Connection,
    slot: u16,
    work: Work,
    holds: Holds,
    status: Status,
) {
    match work {
        Work::Io(io) => finish_io(resources, connection, slot, io, holds, status),
        Work::Control(control) => {
            control::finish(resources, connection, slot, *control, holds, status);
        }
        // Nothing ends these before they are executed, but the end of their connection, and data
        // that has changed on the way.
        work @ (Work::Admin(_) | Work::Connect(_)) => {
            connection.free_slot_of(slot, holds);
            corrupt::refuse(resources, connection, work, status);
        }
    }
}

/// Ends an I/O command: pushes its data when it read successfully, then responds.
pub(super) fn finish_io(
    resources: &mut Resources,
    connection: &mut Connection,
    slot: u16,
    io: IoCommand,
    mut holds: Holds,
    status: Status,
) {
    if status.is_success() {
        probe::passed(resources, connection, slot, Stage::Medium);
    } else {
        connection.probe.give_up(slot);
    }
    connection.release_receive(&mut holds);
    if io.operation.moves_data_to_host() && status.is_success() {
        push(connection, slot, &mut holds, io.data_bytes);
        probe::passed(resources, connection, slot, Stage::Push);
    } else {
        holds.own.release();
    }
    let Some(queue) = connection.queue.as_mut() else {
        return;
    };
    let invalidate = holds.host.invalidate();
    let cqe = queue.complete(io.permit, status, 0);
    complete(resources, connection, slot, holds, cqe, invalidate);
    settle(resources, connection);
}

/// Pushes the data of the command in `slot` from its buffer, which belongs to the queue until
/// [`on_returned`]. Where it has none, its data is pushed already.
pub(super) fn push(connection: &mut Connection, slot: u16, holds: &mut Holds, len_bytes: u32) {
    if let Some(Data { buffer, .. }) = holds.lend_own(0) {
        let source = Source::Buffer(Tag(slot), buffer, 0..len_bytes);
        lend_source(connection, holds, source);
        if holds.own.buffer().is_some() {
            holds.own.release();
        }
    }
}

/// Pushes from the buffer of a command, which comes back at once where the queue does not need it.
pub(super) fn lend_source(connection: &mut Connection, holds: &mut Holds, source: Source<'_>) {
    let back = match connection.transport.push(&holds.host, source) {
        Ok(Pushed::UntilReleased) => None,
        Ok(Pushed::Gone(buffer)) => buffer,
        // Not of a buffer.
        Err(full) => full.what.into_buffer(),
    };
    if let Some(buffer) = back {
        holds.take_back_buffer(buffer);
    }
}

/// A buffer belongs to the queue no more: the data of the command in `slot` was pushed from it, or
/// was to be pulled into it before the queue ended.
pub(super) fn on_returned(
    resources: &mut Resources,
    connection: &mut Connection,
    slot: u16,
    buffer: Buffer,
) {
    match connection.command(slot) {
        Command::Responding(responding) => {
            if let Some(spare) = responding.take_back(buffer) {
                connection.spare = Some(spare);
                waiting::spare_came_back(resources, connection);
            }
        }
        Command::Pulling { holds, .. } => holds.take_back_buffer(buffer),
        Command::Pushing(_, holds) => {
            holds.take_back_buffer(buffer);
            admin::on_pushed(resources, connection, slot);
        }
        _ => {}
    }
}

/// Responds to an I/O command that is carried out already and has nothing in flight.
pub(super) fn answer(
    resources: &mut Resources,
    connection: &mut Connection,
    permit: Permit,
    invalidate: Option<u32>,
) {
    let Some(queue) = connection.queue.as_mut() else {
        return;
    };
    let cqe = queue.complete(permit, Status::SUCCESS, 0);
    send_alone(resources, connection, &cqe, invalidate);
    settle(resources, connection);
}

/// Sends the response of a command that has no slot, and takes one if the wire needs it.
pub(super) fn send_alone(
    resources: &mut Resources,
    connection: &mut Connection,
    cqe: &Cqe,
    invalidate: Option<u32>,
) {
    let Some(slot) = connection.next_slot() else {
        return resources.too_many_commands(connection);
    };
    let queue = &mut connection.transport;
    if queue.respond(Tag(slot), cqe, invalidate, false) == Responded::Leaving
        && let Some(slot) = connection.take_slot()
    {
        *connection.command(slot) = Command::Responding(Responding::default());
    }
}

/// After a command is completed: continues what may have waited for it.
pub(super) fn settle(resources: &mut Resources, connection: &mut Connection) {
    if connection.delete.is_some() {
        delete_queue(connection);
    }
    let (conn, now_us) = (connection.identity.id, resources.now_us);
    let Some(queue) = connection.queue.as_mut() else {
        return;
    };
    while let Some(drained) = queue.poll_drained() {
        resources.control.with(|target| match drained {
            Drained::Namespace(drain) => target.handle_drained(conn, drain, now_us),
            Drained::Queue(fence) => target.handle_fenced(conn, fence, now_us),
        });
    }
}

/// Answers the Disconnect command of an I/O queue once every other command has been answered; the
/// connection is closed when the response has gone.
pub(super) fn delete_queue(connection: &mut Connection) {
    let Some(queue) = connection
        .queue
        .as_mut()
        .filter(|queue| queue.outstanding() <= 1)
    else {
        return;
    };
    let Some((slot, permit)) = connection.delete.take() else {
        return;
    };
    let cqe = queue.complete(permit, Status::SUCCESS, 0);
    let last = Responding::last("the host deleted the queue");
    send(connection, slot, last, &cqe, None);
}

/// Answers a command: sends its response, and frees the memory that neither the response nor the
/// queue needs.
pub(super) fn complete(
    resources: &mut Resources,
    connection: &mut Connection,
    slot: u16,
    holds: Holds,
    cqe: Cqe,
    invalidate: Option<u32>,
) {
    let responding = connection.answered(holds);
    waiting::spare_came_back(resources, connection);
    send(connection, slot, responding, &cqe, invalidate);
    probe::sent(resources, connection, slot);
}

/// Sends the response of the command in `slot`, which is free at once, or with the response
/// ([`Connection::release`]).
#[inline]
pub(super) fn send(
    connection: &mut Connection,
    slot: u16,
    responding: Responding,
    cqe: &Cqe,
    invalidate: Option<u32>,
) {
    let waits = responding.waits();
    let queue = &mut connection.transport;
    match queue.respond(Tag(slot), cqe, invalidate, waits) {
        Responded::Released => connection.free_empty_slot(slot),
        Responded::Leaving => *connection.command(slot) = Command::Responding(responding),
    }
}
