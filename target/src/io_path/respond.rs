//! Step 5: the response capsule, chained behind the data it speaks for.

use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::status::Status;
use capstan_rdma::contract::RKey;
use capstan_subsystem::{Drained, Permit};

use super::command::Work;
use super::connection::Connection;
use super::{Resources, control, transfer};

/// Ends the I/O command in `slot`: pushes its data when it read successfully, then responds.
pub(super) fn finish(
    resources: &mut Resources,
    connection: &mut Connection,
    slot: u16,
    status: Status,
) {
    let command = connection.command(slot);
    let io = match std::mem::replace(&mut command.work, Work::Responded) {
        Work::Io(io) => io,
        Work::Control(control) => {
            return control::finish(resources, connection, slot, *control, status);
        }
        Work::Free | Work::Admin(_) | Work::Held(_) | Work::Responded | Work::Answered => return,
    };
    let pushes = io.operation.moves_data_to_host() && status.is_success();
    resources.release_receive(connection, slot);
    if pushes {
        if let Err(error) = transfer::push(connection, slot, io.transfer.length_bytes()) {
            let why = format!("posting an RDMA WRITE failed: {error}");
            return resources.end(connection, why);
        }
    } else {
        connection.command(slot).release_buffers();
    }
    let invalidate = io.transfer.rkey_to_invalidate();
    complete(resources, connection, slot, io.permit, status, invalidate);
}

/// Responds to an I/O command with nothing left of it but its `slot`.
pub(super) fn complete(
    resources: &mut Resources,
    connection: &mut Connection,
    slot: u16,
    permit: Permit,
    status: Status,
    invalidate: Option<u32>,
) {
    let Some(queue) = connection.queue.as_mut() else {
        return;
    };
    let cqe = queue.complete(permit, status, 0);
    send(resources, connection, slot, cqe, invalidate);
    settle(resources, connection);
}

/// Responds to an I/O command that is carried out already and has nothing in flight: it needs a
/// slot only where the response cannot leave at once.
#[expect(
    clippy::inline_always,
    reason = "a second caller, which is rare, costs 40 instructions for each command"
)]
#[inline(always)]
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
    if connection.respond_now(&cqe, invalidate.map(RKey)) {
        resources.unrung(connection);
    } else if let Some(slot) = connection.take_slot() {
        connection.command(slot).work = Work::Answered;
        send(resources, connection, slot, cqe, invalidate);
    } else {
        return resources.too_many_commands(connection);
    }
    settle(resources, connection);
}

/// After a command is completed: what may have waited for it.
pub(super) fn settle(resources: &mut Resources, connection: &mut Connection) {
    if connection.delete.is_some() {
        delete_queue(resources, connection);
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
pub(super) fn delete_queue(resources: &mut Resources, connection: &mut Connection) {
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
    connection.command(slot).close_after = Some("the host deleted the queue");
    send(resources, connection, slot, cqe, None);
}

/// Sends a response capsule from `slot`, which is free at once, or when the Send or one after it
/// has completed.
pub(super) fn send(
    resources: &mut Resources,
    connection: &mut Connection,
    slot: u16,
    cqe: Cqe,
    invalidate: Option<u32>,
) {
    let invalidate = invalidate.map(RKey);
    let command = connection.command(slot);
    if !command.waits_for_response() && connection.respond_now(&cqe, invalidate) {
        connection.free_slot(slot);
        return resources.unrung(connection);
    }
    let work = &mut connection.command(slot).work;
    if !matches!(work, Work::Answered) {
        *work = Work::Responded;
    }
    let sge = connection.response(slot, cqe);
    if let Err(error) = connection.post_response(slot, sge, invalidate) {
        let why = format!("posting a response failed: {error}");
        return resources.end(connection, why);
    }
    resources.unrung(connection);
}
