//! The path of admin and fabrics commands: the same receives, transfers and responses as I/O, with
//! the controllers behind their lock in place of a storage engine.
//!
//! What they return goes through one page of their queue's own, piece by piece and one command
//! after the other: it takes none of the data buffers, however much a host asks for and does not
//! take.

use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::sqe::Sqe;
use capstan_subsystem::{
    AdminOutcome, AdminRequest, AdminStep, ConnId, KeyedBuffer, Target, Transfer,
};

use super::command::Work;
use super::connection::Connection;
use super::phase::Phase;
use super::recv::Capsule;
use super::{IoPath, Resources, execute, respond, transfer, waiting};
use crate::limits::{ADMIN_COST_BYTES, ADMIN_PIECE_BYTES, CONNECT_DATA_BYTES};

/// An admin command in flight.
pub(super) enum AdminWork {
    /// The Connect that makes the connection a queue.
    Connect(Sqe),
    /// A command of an admin queue.
    Request(AdminRequest),
    /// A command that was executed: the data it returns is on its way.
    Telling(Telling),
}

/// A command that asks which blocks are allocated, while the medium is looked at: it has no slot
/// then.
#[derive(Debug)]
pub(crate) struct LookingUp {
    conn: ConnId,
    pub(crate) request: AdminRequest,
    segments: Option<Box<[KeyedBuffer]>>,
}

impl LookingUp {
    /// Its Admin queue.
    pub(crate) fn conn(&self) -> ConnId {
        self.conn
    }
}

/// The data that a command returns, with the response behind it.
pub(super) struct Telling {
    data: Vec<u8>,
    /// Bytes of it that the host has, or that are on their way.
    told: usize,
    cqe: Cqe,
    invalidate: Option<u32>,
}

/// Takes in a capsule of a connection that is no I/O queue (yet).
pub(super) fn start(resources: &mut Resources, connection: &mut Connection, capsule: &mut Capsule) {
    if connection.phase.is_unconnected() && connection.has_commands() {
        resources.give_back_receive(connection, capsule.data.take());
        let why = "the host sent a second command before its Connect was answered";
        return resources.end(connection, why);
    }
    let Some(slot) = connection.take_slot() else {
        resources.give_back_receive(connection, capsule.data.take());
        let why = "the host sent more commands than its admin queue has entries";
        return resources.end(connection, why);
    };
    let (work, transfer) = match begin(resources, connection, capsule) {
        Begun::Work(work, transfer) => (work, transfer),
        Begun::Complete(cqe) => {
            resources.give_back_receive(connection, capsule.data.take());
            return respond::send(resources, connection, slot, cqe, None);
        }
        Begun::Refuse(cqe) => {
            resources.give_back_receive(connection, capsule.data.take());
            connection.phase = Phase::refused(resources.now_us);
            return respond::send(resources, connection, slot, cqe, None);
        }
        Begun::Disconnect(why) => {
            resources.give_back_receive(connection, capsule.data.take());
            connection.free_slot(slot);
            return resources.end(connection, why);
        }
    };
    let segments = match &transfer {
        Transfer::KeyedList(list) => Some(list.buffers(capsule.bytes()).collect()),
        Transfer::None | Transfer::InCapsule(_) | Transfer::Keyed(_) => None,
    };
    let query = match &work {
        AdminWork::Request(request) => request.allocation_query().cloned(),
        AdminWork::Connect(_) | AdminWork::Telling(_) => None,
    };
    let work = match (work, query) {
        (AdminWork::Request(request), Some(query)) => {
            resources.give_back_receive(connection, capsule.data.take());
            connection.free_slot(slot);
            let looking_up = LookingUp {
                conn: connection.identity.id,
                request,
                segments,
            };
            return resources.control.look_up(query, Box::new(looking_up));
        }
        (work, _) => work,
    };
    let command = connection.command(slot);
    command.segments = segments;
    let connects = matches!(work, AdminWork::Connect(_));
    let brings = match &work {
        AdminWork::Request(request) => request.brings_data(),
        AdminWork::Connect(_) => true,
        AdminWork::Telling(_) => false,
    };
    let in_capsule = matches!(transfer, Transfer::InCapsule(_));
    let buffer_bytes = if in_capsule {
        0
    } else {
        transfer.length_bytes()
    };
    command.transfer = transfer;
    command.work = Work::Admin(Box::new(work));
    command.pulls = brings && !in_capsule;
    execute::place_capsule_data(resources, connection, slot, capsule.data.take());
    if connects {
        return fetch_connect_data(resources, connection, slot, buffer_bytes);
    }
    if buffer_bytes == 0 {
        return execute::on_data(resources, connection, slot);
    }
    line_up(resources, connection, slot, buffer_bytes);
}

/// Lets a command that returns or brings data wait for its queue's page.
fn line_up(resources: &mut Resources, connection: &mut Connection, slot: u16, buffer_bytes: u32) {
    let piece_bytes = buffer_bytes.min(ADMIN_PIECE_BYTES);
    // Behind the responses of this turn, so that it holds up no others.
    waiting::line_up(resources, connection, slot, piece_bytes);
}

/// Pulls the data of a Connect, when it has not come in the capsule. It waits for no buffer of
/// permitted hosts.
fn fetch_connect_data(
    resources: &mut Resources,
    connection: &mut Connection,
    slot: u16,
    buffer_bytes: u32,
) {
    if buffer_bytes == 0 {
        return execute::on_data(resources, connection, slot);
    }
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
    execute::with_buffer(resources, connection, slot, buffer);
}

/// The capsule before its data is there.
enum Begun {
    Work(AdminWork, Transfer),
    Complete(Cqe),
    /// It is no Connect that could be examined.
    Refuse(Cqe),
    Disconnect(String),
}

fn begin(resources: &Resources, connection: &Connection, capsule: &Capsule) -> Begun {
    let Capsule { sqe, .. } = capsule;
    if connection.phase.is_unconnected() {
        return match Target::connect_transfer(sqe, capsule.bytes()) {
            Ok(transfer) => Begun::Work(AdminWork::Connect(*sqe), transfer),
            Err(cqe) => Begun::Refuse(cqe),
        };
    }
    let now_us = resources.now_us;
    let step = resources
        .control
        .with(|target| target.begin_admin(connection.identity.id, sqe, capsule.bytes(), now_us));
    match step {
        AdminStep::Execute(request) => {
            let transfer = *request.transfer();
            Begun::Work(AdminWork::Request(request), transfer)
        }
        AdminStep::Complete(cqe) => Begun::Complete(cqe),
        AdminStep::Disconnect(why) => Begun::Disconnect(why.to_string()),
    }
}

/// Buffer and data are there: executes the command.
pub(super) fn on_data(resources: &mut Resources, connection: &mut Connection, slot: u16) {
    let command = connection.command(slot);
    let Work::Admin(work) = std::mem::replace(&mut command.work, Work::Responded) else {
        return;
    };
    match *work {
        connect @ AdminWork::Connect(_) => {
            // What its queue needs is not accessible here.
            command.work = Work::Admin(Box::new(connect));
            resources.connects.push((connection.identity.index, slot));
        }
        AdminWork::Request(request) => admin(resources, connection, slot, request),
        AdminWork::Telling(telling) => tell(resources, connection, slot, telling),
    }
}

fn admin(
    resources: &mut Resources,
    connection: &mut Connection,
    slot: u16,
    mut request: AdminRequest,
) {
    let command = connection.command(slot);
    if request.brings_data() {
        request.set_data(command.data_bytes(command.transfer.length_bytes() as usize));
    }
    let invalidate = command.transfer.rkey_to_invalidate();
    if command.data.is_some() {
        resources.share.moved(ADMIN_COST_BYTES);
    }
    let mut data = Vec::new();
    let now_us = resources.now_us;
    let outcome = resources
        .control
        .with(|target| target.execute_admin(request, &mut data, now_us));
    resources.release_receive(connection, slot);
    let AdminOutcome::Complete(cqe) = outcome else {
        // The response comes later, or the host is gone.
        return connection.free_slot(slot);
    };
    let telling = Telling {
        data,
        told: 0,
        cqe,
        invalidate,
    };
    tell(resources, connection, slot, telling);
}

/// Pushes the next piece of the data that the command in `slot` returns, and the response behind
/// the last.
fn tell(resources: &mut Resources, connection: &mut Connection, slot: u16, mut telling: Telling) {
    let left = telling.data.get(telling.told..).unwrap_or_default();
    let piece = left.get(..ADMIN_PIECE_BYTES as usize).unwrap_or(left);
    let is_last = piece.len() == left.len();
    let command = connection.command(slot);
    if let Some(buffer) = command.data.as_mut()
        && !piece.is_empty()
    {
        buffer.copy_from(0, piece);
        let len_bytes = u32::try_from(piece.len()).unwrap_or(u32::MAX);
        let pushed = if is_last {
            transfer::push(connection, slot, len_bytes)
        } else {
            transfer::push_piece(connection, slot, len_bytes)
        };
        if let Err(error) = pushed {
            let why = format!("posting an RDMA WRITE failed: {error}");
            return resources.end(connection, why);
        }
    }
    if is_last {
        let Telling {
            cqe, invalidate, ..
        } = telling;
        return respond::send(resources, connection, slot, cqe, invalidate);
    }
    telling.told += piece.len();
    connection.command(slot).work = Work::Admin(Box::new(AdminWork::Telling(telling)));
    resources.unrung(connection);
}

/// The device has completed a piece of the data that the command in `slot` returns.
pub(super) fn on_pushed(resources: &mut Resources, connection: &mut Connection, slot: u16) {
    if !connection.closing() {
        on_data(resources, connection, slot);
    }
}

impl IoPath {
    /// Continues a command whose medium has been looked at.
    pub(super) fn looked_up(&mut self, command: LookingUp) {
        let LookingUp {
            conn,
            request,
            segments,
        } = command;
        // A command of a connection that ends is not answered.
        let Some((resources, connection)) = self.live(conn) else {
            return;
        };
        let Some(slot) = connection.take_slot() else {
            return resources.too_many_commands(connection);
        };
        let transfer = *request.transfer();
        let command = connection.command(slot);
        command.transfer = transfer;
        command.segments = segments;
        command.work = Work::Admin(Box::new(AdminWork::Request(request)));
        line_up(resources, connection, slot, transfer.length_bytes());
    }
}

/// Sends a response that the controllers held back.
pub(super) fn respond_late(resources: &mut Resources, connection: &mut Connection, cqe: &Cqe) {
    if connection.closing() {
        return;
    }
    match connection.take_slot() {
        Some(slot) => respond::send(resources, connection, slot, *cqe, None),
        None => {
            let why = "no slot for a response: the host left too many unanswered";
            resources.end(connection, why);
        }
    }
}
