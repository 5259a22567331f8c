//! The path of admin and fabrics commands: the same receives, transfers and responses as I/O, with
//! the controllers behind their lock in place of a storage engine.
//!
//! Data that they return goes through one page of the queue, piece by piece and one command after
//! the other: it takes no data buffer, however much a host asks for and does not take.

use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::sqe::Sqe;
use capstan_nvme_proto::status::Status;
use capstan_storage::Data;
use capstan_subsystem::{AdminOutcome, AdminRequest, AdminStep, ConnId, DisconnectReason, Target};
use capstan_transport::{Capsule, HostMemory, Piece, Queue, Source, Tag};

use super::cause::Cause;
use super::command::{Command, Holds, Own, Responding, Work};
use super::connection::Connection;
use super::phase::Phase;
use super::{IoPath, Resources, connect, execute, respond, waiting};
use crate::limits::{ADMIN_COST_BYTES, ADMIN_PIECE_BYTES, CONNECT_DATA_BYTES};

/// The Connect that makes a connection a queue.
pub(super) struct Connect {
    pub(super) sqe: Sqe,
    /// Bytes of its data.
    pub(super) data_bytes: u32,
}

/// A command that asks which blocks are allocated, while the medium is looked at: it has no slot
/// then.
#[derive(Debug)]
pub(crate) struct LookingUp {
    conn: ConnId,
    pub(crate) request: AdminRequest,
    host: HostMemory,
}

impl LookingUp {
    /// Its Admin queue.
    pub(crate) fn conn(&self) -> ConnId {
        self.conn
    }
}

/// The data that a command returns, with the response behind it.
pub(super) struct Returning {
    data: Vec<u8>,
    /// Bytes of `data` that have been pushed.
    pushed_bytes: usize,
    cqe: Cqe,
}

/// Takes in a capsule of a connection that is no I/O queue (yet).
pub(super) fn start(resources: &mut Resources, connection: &mut Connection, capsule: &mut Capsule) {
    if connection.phase.is_unconnected() && connection.has_commands() {
        connection.transport.give_back(capsule.data.take());
        let why = "the host sent a second command before its Connect was answered";
        return resources.end(connection, Cause::violation(why));
    }
    if connection.phase.is_unconnected() {
        connect::announce(resources, connection, &capsule.sqe);
    }
    let Some(slot) = connection.take_slot() else {
        connection.transport.give_back(capsule.data.take());
        let why = "the host sent more commands than its admin queue has entries";
        return resources.end(connection, Cause::violation(why));
    };
    let (work, host) = match begin(resources, connection, capsule) {
        Begun::Work(work, host) => (work, host),
        Begun::Complete(cqe) => {
            connection.transport.give_back(capsule.data.take());
            let nothing = Responding::default();
            return respond::send(connection, slot, nothing, &cqe, None);
        }
        Begun::Refuse(cqe) => {
            connection.transport.give_back(capsule.data.take());
            connection.phase = Phase::refused(resources.now_us);
            let nothing = Responding::default();
            return respond::send(connection, slot, nothing, &cqe, None);
        }
        Begun::Disconnect(why) => {
            connection.transport.give_back(capsule.data.take());
            connection.free_slot(slot);
            return resources.end(connection, why);
        }
    };
    let work = match work {
        Work::Admin(request) if request.allocation_query().is_some() => {
            connection.transport.give_back(capsule.data.take());
            connection.free_slot(slot);
            return look_up(resources, connection, *request, host);
        }
        work => work,
    };
    let mut holds = Holds::new(host);
    execute::keep_capsule_data(connection, capsule, &mut holds);
    let buffer_bytes = work.data_bytes();
    if !holds.host.is_remote() {
        return execute::on_data(resources, connection, slot, work, holds);
    }
    if matches!(work, Work::Connect(_)) {
        return fetch_connect_data(resources, connection, slot, (work, holds), buffer_bytes);
    }
    line_up(resources, connection, slot, (work, holds), buffer_bytes);
}

/// Has the medium examined that a command asks about; the command has no slot meanwhile.
fn look_up(
    resources: &Resources,
    connection: &Connection,
    request: AdminRequest,
    host: HostMemory,
) {
    if let Some(query) = request.allocation_query().cloned() {
        let looking_up = LookingUp {
            conn: connection.identity.id,
            request,
            host,
        };
        resources.control.look_up(query, Box::new(looking_up));
    }
}

/// Lets a command that returns or brings data wait for its queue's page.
fn line_up(
    resources: &mut Resources,
    connection: &mut Connection,
    slot: u16,
    command: (Work, Holds),
    buffer_bytes: u32,
) {
    let piece_bytes = buffer_bytes.min(ADMIN_PIECE_BYTES);
    // It continues behind the responses of this turn, which so need not wait for it.
    waiting::line_up(resources, connection, slot, command, piece_bytes);
}

/// Pulls the data of a Connect, when it has not come in the capsule. It waits for no buffer of
/// permitted hosts.
fn fetch_connect_data(
    resources: &mut Resources,
    connection: &mut Connection,
    slot: u16,
    (work, mut holds): (Work, Holds),
    buffer_bytes: u32,
) {
    let place = (buffer_bytes <= CONNECT_DATA_BYTES).then(|| {
        let strangers = &resources.memory.strangers;
        strangers.take(buffer_bytes)
    });
    let Some(buffer) = place.flatten() else {
        let why = format!(
            "no buffer for {buffer_bytes} bytes of a Connect's data, which is {CONNECT_DATA_BYTES}"
        );
        return resources.end(connection, why);
    };
    connection.phase = Phase::connecting(resources.now_us);
    holds.own = Own::Leased(buffer);
    execute::with_buffer(resources, connection, slot, work, holds);
}

/// The capsule before its data is there.
enum Begun {
    /// The command, and the host's memory of its data.
    Work(Work, HostMemory),
    Complete(Cqe),
    /// The capsule is not a Connect that can be examined.
    Refuse(Cqe),
    Disconnect(DisconnectReason),
}

fn begin(resources: &Resources, connection: &Connection, capsule: &mut Capsule) -> Begun {
    let transport = &connection.transport;
    if connection.phase.is_unconnected() {
        let Capsule { sqe, data, .. } = capsule;
        let transfer = Target::connect_data(sqe);
        return match transport.host_memory(sqe, transfer, data) {
            Ok(host) => {
                let connect = Connect {
                    sqe: *sqe,
                    data_bytes: host.len_bytes(),
                };
                Begun::Work(Work::Connect(Box::new(connect)), host)
            }
            Err(error) => Begun::Refuse(Target::refuse_connect_data(sqe, error)),
        };
    }
    let (conn, now_us) = (connection.identity.id, resources.now_us);
    let (step, host) = resources
        .control
        .with(|target| take_in(target, (conn, transport), capsule, now_us));
    match step {
        AdminStep::Execute(request) => Begun::Work(Work::Admin(Box::new(request)), host),
        AdminStep::Complete(cqe) => Begun::Complete(cqe),
        AdminStep::Disconnect(why) => Begun::Disconnect(why),
    }
}

/// Has the controller take in a command, and finds the host's memory of one that is to be executed.
pub(super) fn take_in(
    target: &mut Target,
    (conn, transport): (ConnId, &Queue),
    capsule: &mut Capsule,
    now_us: u64,
) -> (AdminStep, HostMemory) {
    let Capsule { sqe, data, .. } = capsule;
    let request = match target.begin_admin(conn, sqe, now_us) {
        AdminStep::Execute(request) => request,
        step @ (AdminStep::Complete(_) | AdminStep::Disconnect(_)) => {
            return (step, HostMemory::default());
        }
    };
    match transport.host_memory(sqe, request.data_transfer(), data) {
        Ok(host) => (AdminStep::Execute(request), host),
        Err(error) => {
            let refused = target.refuse_admin_data(request, &error);
            let gone = AdminStep::Disconnect(DisconnectReason::NotConnected);
            let step = refused.map_or(gone, AdminStep::Complete);
            (step, HostMemory::default())
        }
    }
}

/// Buffer and data are there: executes the command.
pub(super) fn on_data(
    resources: &mut Resources,
    connection: &mut Connection,
    slot: u16,
    mut request: AdminRequest,
    mut holds: Holds,
) {
    if request.brings_data() {
        let Some(data) = holds.data_bytes(request.data_bytes()) else {
            connection.release_receive(&mut holds);
            let (work, status) = (Work::Admin(Box::new(request)), Status::INTERNAL_ERROR);
            return respond::finish(resources, connection, slot, work, holds, status);
        };
        request.set_data(data);
    }
    if holds.data().is_some() {
        resources.share.moved(ADMIN_COST_BYTES);
    }
    let mut data = Vec::new();
    let now_us = resources.now_us;
    let outcome = resources
        .control
        .with(|target| target.execute_admin(request, &mut data, now_us));
    connection.release_receive(&mut holds);
    let AdminOutcome::Complete(cqe) = outcome else {
        // The response comes later, or the host is gone.
        return connection.free_slot_of(slot, holds);
    };
    let returning = Returning {
        data,
        pushed_bytes: 0,
        cqe,
    };
    push_next(resources, connection, slot, Box::new(returning), holds);
}

/// Pushes the next piece of the data that the command in `slot` returns, and the response behind
/// the last.
fn push_next(
    resources: &mut Resources,
    connection: &mut Connection,
    slot: u16,
    mut returning: Box<Returning>,
    mut holds: Holds,
) {
    let left = returning
        .data
        .get(returning.pushed_bytes..)
        .unwrap_or_default();
    let piece = left.get(..ADMIN_PIECE_BYTES as usize).unwrap_or(left);
    let is_last = piece.len() == left.len();
    // Where the data buffer is to be filled (`Queue::fills_data_buffer`), if only with zeroes.
    if (!piece.is_empty() || returning.cqe.status().is_success())
        && let Some(Data {
            buffer: mut page, ..
        }) = holds.lend_own(0)
    {
        page.copy_from(0, piece);
        let piece = Piece {
            tag: Tag(slot),
            buffer: page,
            len_bytes: u32::try_from(piece.len()).unwrap_or(u32::MAX),
            last: is_last,
        };
        respond::lend_source(connection, &mut holds, Source::Piece(piece));
    }
    if is_last {
        let (cqe, invalidate) = (returning.cqe, holds.host.invalidate());
        return respond::complete(resources, connection, slot, holds, cqe, invalidate);
    }
    returning.pushed_bytes += piece.len();
    holds.host = holds
        .host
        .behind(u32::try_from(piece.len()).unwrap_or(u32::MAX));
    *connection.command(slot) = Command::Pushing(returning, holds);
}

/// The queue has sent a piece of the data that the command in `slot` returns.
pub(super) fn on_pushed(resources: &mut Resources, connection: &mut Connection, slot: u16) {
    if connection.closing() {
        return;
    }
    match connection.take_command(slot) {
        Command::Pushing(returning, holds) => {
            push_next(resources, connection, slot, returning, holds);
        }
        other => *connection.command(slot) = other,
    }
}

impl IoPath {
    /// Continues a command whose medium has been looked at.
    pub(super) fn looked_up(&mut self, command: LookingUp) {
        let LookingUp {
            conn,
            request,
            host,
        } = command;
        // Commands of a connection that is ending are not answered.
        let Some((resources, connection)) = self.live(conn) else {
            return;
        };
        let Some(slot) = connection.take_slot() else {
            return resources.too_many_commands(connection);
        };
        let len_bytes = request.data_bytes();
        let command = (Work::Admin(Box::new(request)), Holds::new(host));
        line_up(resources, connection, slot, command, len_bytes);
    }
}

/// Sends a response that the controllers held back.
pub(super) fn respond_late(resources: &mut Resources, connection: &mut Connection, cqe: &Cqe) {
    if connection.closing() {
        return;
    }
    match connection.take_slot() {
        Some(slot) => {
            let nothing = Responding::default();
            respond::send(connection, slot, nothing, cqe, None);
        }
        None => {
            let why = "no slot for a response: the host left too many unanswered";
            resources.end(connection, why);
        }
    }
}
