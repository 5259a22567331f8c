//! Step 3: a command is carried out at once, or gets its buffer and its data, with which it goes to
//! the storage engine ([`on_medium`]).

use capstan_nvme_proto::command::LbaRange;
use capstan_nvme_proto::error::CommandError;
use capstan_nvme_proto::opcode::IoOpcode;
use capstan_nvme_proto::sgl::Sgl;
use capstan_nvme_proto::sqe::Sqe;
use capstan_nvme_proto::status::Status;
use capstan_storage::{Data, ReadAtOnce, Volume};
use capstan_subsystem::{IoCommand, IoOperation, IoStep};
use capstan_transport::{
    Capsule, CapsuleData, Full, HostMemory, Landed, Pulled, Pushed, Queue, Source, Tag,
};

use super::command::{Command, Holds, Responding, Work};
use super::connection::Connection;
use super::recv::land;
use super::{Resources, admin, control, corrupt, on_medium, probe, respond, waiting};
use crate::limits::{READ_AT_ONCE_BYTES_MAX, TRANSFER_BYTES_MAX};
use crate::metrics::Stage;

/// Takes in a command of an I/O queue.
pub(super) fn start(resources: &mut Resources, connection: &mut Connection, capsule: &mut Capsule) {
    let Connection {
        queue: Some(queue),
        transport,
        ..
    } = connection
    else {
        return;
    };
    let mut result = queue.handle_command(&capsule.sqe);
    let host = match find_data(transport, capsule, &result) {
        Ok(host) => host,
        Err(error) => {
            result = queue.refuse_data(result, &error);
            HostMemory::default()
        }
    };
    let is_timed = resources.is_next_timed();
    if is_timed {
        probe::begin(resources, connection, &result);
    }
    let at_once = at_once(resources, connection, capsule, (&result, &host));
    // Only these two fields: a wide load of fields that narrower stores have just written fails
    // store forwarding, and waits for the non-temporal stores of the page before them.
    if at_once == AtOnce::Done
        && let IoStep::Execute(IoCommand { permit, .. }) = result
    {
        if let CapsuleData::Landed(landed) = capsule.data.take() {
            let Landed {
                receive, buffer, ..
            } = landed;
            connection.transport.post_again(receive, buffer);
        }
        if is_timed {
            return probe::answer(resources, connection, permit, host.invalidate());
        }
        return respond::answer(resources, connection, permit, host.invalidate());
    }
    let Some(slot) = connection.take_slot() else {
        connection.transport.give_back(capsule.data.take());
        return resources.too_many_commands(connection);
    };
    if is_timed {
        connection.probe.enter(slot);
    }
    match result {
        IoStep::Execute(io) => {
            if !land(capsule, connection) {
                connection.free_slot(slot);
                return resources.lost(connection);
            }
            let mut holds = Holds::new(host);
            keep_capsule_data(connection, capsule, &mut holds);
            let len_bytes = io.data_bytes;
            if at_once == AtOnce::Zeroes && push_zeroes(connection, &mut holds, len_bytes) {
                resources.note_read(&io);
                return respond::finish_io(resources, connection, slot, io, holds, Status::SUCCESS);
            }
            let len_bytes = buffer_bytes(&io, holds.host.is_in_capsule());
            let command = (Work::Io(io), holds);
            // As the oldest that waits, it waits for room alone; otherwise the oldest goes first.
            connection.is_full |= at_once == AtOnce::Full && connection.waiting.is_empty();
            match at_once {
                AtOnce::Later | AtOnce::Full | AtOnce::Zeroes => {
                    waiting::line_up(resources, connection, slot, command, len_bytes);
                }
                AtOnce::Done | AtOnce::Not => {
                    waiting::obtain_buffer(resources, connection, slot, command, len_bytes);
                }
            }
        }
        IoStep::Control(command) => {
            control::start(resources, connection, slot, (command, host), capsule);
        }
        IoStep::Complete(cqe) => {
            connection.transport.give_back(capsule.data.take());
            let nothing = Responding::default();
            respond::send(connection, slot, nothing, &cqe, None);
        }
        IoStep::DeleteQueue(permit) => {
            connection.transport.give_back(capsule.data.take());
            connection.delete = Some((slot, permit));
            respond::delete_queue(connection);
        }
        IoStep::Disconnect(reason) => {
            connection.transport.give_back(capsule.data.take());
            connection.free_slot(slot);
            resources.end(connection, reason);
        }
    }
}

/// The host's memory of a command, where that is to be executed. The error is for
/// `IoQueue::refuse_data`.
#[inline]
pub(super) fn find_data(
    transport: &Queue,
    capsule: &mut Capsule,
    step: &IoStep,
) -> Result<HostMemory, CommandError> {
    let transfer = match step {
        IoStep::Execute(io) => io.data_transfer(),
        IoStep::Control(control) => control.data_transfer(),
        IoStep::Complete(_) | IoStep::DeleteQueue(_) | IoStep::Disconnect(_) => {
            return Ok(HostMemory::default());
        }
    };
    transport.host_memory(&capsule.sqe, transfer, &mut capsule.data)
}

/// Keeps the receive with a command whose data is in it; posts it again otherwise.
pub(super) fn keep_capsule_data(
    connection: &mut Connection,
    capsule: &mut Capsule,
    holds: &mut Holds,
) {
    match capsule.data.take() {
        CapsuleData::Landed(landed) if holds.host.is_in_capsule() => holds.keep(landed),
        CapsuleData::Copied(bytes) if holds.host.is_in_capsule() => holds.keep_copied(bytes),
        data => connection.transport.give_back(data),
    }
}

/// What became of a command before it has a buffer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum AtOnce {
    /// It is carried out: its data was copied from or to the volume, without a storage operation.
    Done,
    /// It reads LBAs that are known to be zero to several places of the host ([`push_zeroes`]).
    Zeroes,
    /// It waits until its connection's turn comes.
    Later,
    /// It waits until the wire has room (`Event::Room`).
    Full,
    /// It is not carried out yet: it needs a buffer.
    Not,
}

impl AtOnce {
    fn done(done: bool) -> Self {
        if done { Self::Done } else { Self::Not }
    }
}

/// Carries out a read whose data can be copied from the volume to the host at once, or left to the
/// wire where it is.
pub(super) fn read_at_once(
    resources: &Resources,
    connection: &mut Connection,
    io: &IoCommand,
    host: &HostMemory,
) -> AtOnce {
    let IoOperation::Read { range, fua } = io.operation else {
        return AtOnce::Not;
    };
    let Some(opened) = resources.volumes.get(&io.namespace.backend) else {
        return AtOnce::Not;
    };
    let transport = &mut connection.transport;
    let len_bytes = io.data_bytes;
    let memory = match opened.volume.read_at_once(range.slba, range.nlb) {
        ReadAtOnce::Zeroes if !host.is_one_place() => return AtOnce::Zeroes,
        ReadAtOnce::Zeroes => {
            return match transport.push(host, Source::Zeroes(len_bytes)) {
                Ok(Pushed::UntilReleased) if len_bytes <= READ_AT_ONCE_BYTES_MAX => {
                    // The device moves them.
                    opened.counters.reads(len_bytes.into());
                    AtOnce::Done
                }
                Ok(_) => {
                    opened.counters.reads(len_bytes.into());
                    resources.share.moved(len_bytes);
                    AtOnce::Done
                }
                Err(_) => AtOnce::Not,
            };
        }
        _ if fua || !host.is_one_place() => return AtOnce::Not,
        ReadAtOnce::Not if transport.has_backlog() => return AtOnce::Full,
        ReadAtOnce::Not => return AtOnce::Not,
        ReadAtOnce::InMemory(memory) => memory,
    };
    // A range outside the volume copies nothing here; the storage operation reports the error.
    let mut copy = |put: &mut dyn FnMut(&[u8])| {
        memory.each(range.slba, range.nlb, put);
    };
    let place = || memory.place_of(range.slba, range.nlb);
    let takes_held = transport.takes_held(len_bytes);
    let mut pushed = match (takes_held == Some(true)).then(place).flatten() {
        Some((slab, range)) => transport.push(host, Source::Held(slab, range)),
        None => transport.push(host, Source::Copy(len_bytes, &mut copy)),
    };
    if let Err(Full {
        until_room: false, ..
    }) = pushed
        && takes_held != Some(false)
        && let Some((slab, range)) = place()
    {
        pushed = transport.push(host, Source::Held(slab, range));
    }
    match pushed {
        Ok(_) => {
            opened.counters.reads(len_bytes.into());
            resources.share.moved(len_bytes);
            AtOnce::Done
        }
        Err(Full {
            until_room: true, ..
        }) => AtOnce::Full,
        Err(_) => AtOnce::Not,
    }
}

/// Pushes zeroes to several places of the host, where the wire has so many and there is room in the
/// send queue.
pub(super) fn push_zeroes(connection: &mut Connection, holds: &mut Holds, len_bytes: u32) -> bool {
    connection.has_room_for(holds)
        && connection
            .transport
            .push(&holds.host, Source::Zeroes(len_bytes))
            .is_ok()
}

/// Whether the command is a Write with in-capsule data, which only the volume reads.
pub(super) fn writes_capsule_data(sqe: &Sqe) -> bool {
    sqe.io_opcode() == IoOpcode::WRITE && matches!(sqe.sgl(), Ok(Sgl::InCapsule { .. }))
}

/// Carries out a command whose data is in memory, on both sides.
fn at_once(
    resources: &Resources,
    connection: &mut Connection,
    capsule: &mut Capsule,
    (step, host): (&IoStep, &HostMemory),
) -> AtOnce {
    let IoStep::Execute(io) = step else {
        return AtOnce::Not;
    };
    if matches!(capsule.data, CapsuleData::None) {
        // Long reads wait: a few of them a turn, after short commands have been answered.
        let long = io.data_bytes > READ_AT_ONCE_BYTES_MAX;
        if io.operation.moves_data_to_host() && (long || resources.share.is_over()) {
            return AtOnce::Later;
        }
        return read_at_once(resources, connection, io, host);
    }
    let written = host.is_in_capsule() && write_received(resources, connection, capsule, io);
    AtOnce::done(written)
}

/// Carries out a Write with in-capsule data to a volume in memory: from the memory of the wire, or
/// from the buffer of the receive. Returns whether the data was written.
fn write_received(
    resources: &Resources,
    connection: &mut Connection,
    capsule: &mut Capsule,
    io: &IoCommand,
) -> bool {
    let opened = resources.volumes.get(&io.namespace.backend);
    let (IoOperation::Write { range, .. }, Some(opened)) = (io.operation, opened) else {
        return false;
    };
    let written = write_received_to(&*opened.volume, connection, capsule, range);
    if written {
        opened.counters.writes(io.data_bytes.into());
    }
    written
}

fn write_received_to(
    volume: &dyn Volume,
    connection: &mut Connection,
    capsule: &mut Capsule,
    range: LbaRange,
) -> bool {
    if let CapsuleData::InPlace(in_place) = capsule.data {
        let mut asked = false;
        let written = connection.transport.consume(in_place, |data| {
            asked = true;
            volume.write_at_once(range.slba, range.nlb, data)
        });
        // A volume that is not in memory would not take it from a buffer either.
        if asked || !land(capsule, connection) {
            return written;
        }
    }
    match &capsule.data {
        CapsuleData::Landed(Landed {
            buffer,
            offset_bytes,
            ..
        }) => {
            let data = buffer.raw().skip(*offset_bytes as usize);
            volume.write_at_once(range.slba, range.nlb, data)
        }
        CapsuleData::None | CapsuleData::Copied(_) | CapsuleData::InPlace(_) => false,
    }
}

/// Carries out a Write of pulled data to a volume in memory, without a storage operation: its value
/// would be stored and then loaded behind the stores of the page. Returns whether the data was
/// written. The volume was asked about in-capsule data before ([`write_received`]).
fn write_at_once(resources: &Resources, io: &IoCommand, holds: &Holds) -> bool {
    let IoOperation::Write { range, .. } = io.operation else {
        return false;
    };
    if holds.host.is_in_capsule() {
        return false;
    }
    let opened = resources.volumes.get(&io.namespace.backend);
    let (Some(opened), Some((data, offset_bytes))) = (opened, holds.data()) else {
        return false;
    };
    let data = data.raw().skip(offset_bytes as usize);
    let written = opened.volume.write_at_once(range.slba, range.nlb, data);
    if written {
        opened.counters.writes(io.data_bytes.into());
    }
    written
}

/// Bytes of buffer the command needs besides its in-capsule data.
fn buffer_bytes(io: &IoCommand, in_capsule: bool) -> u32 {
    match io.operation {
        // The data of both sides, one behind the other: two leases could deadlock.
        IoOperation::Compare { .. } if !in_capsule => 2 * io.data_bytes,
        IoOperation::Compare { .. } | IoOperation::Read { .. } => io.data_bytes,
        IoOperation::Verify { range, .. } => bytes_of(io, range),
        IoOperation::Write { .. } | IoOperation::DatasetManagement { .. } if in_capsule => 0,
        IoOperation::Write { .. } | IoOperation::DatasetManagement { .. } => io.data_bytes,
        // The source ranges first, then every chunk that is copied.
        IoOperation::Copy { .. } => TRANSFER_BYTES_MAX,
        IoOperation::WriteZeroes { .. } | IoOperation::Flush => 0,
    }
}

fn bytes_of(io: &IoCommand, range: LbaRange) -> u32 {
    let bytes = u64::from(range.nlb) * u64::from(io.namespace.lba_bytes);
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// Continues a command that has its buffer now.
pub(super) fn with_buffer(
    resources: &mut Resources,
    connection: &mut Connection,
    slot: u16,
    work: Work,
    mut holds: Holds,
) {
    probe::passed(resources, connection, slot, Stage::WaitForBuffer);
    if !holds.host.is_remote() || !work.brings_data() {
        return on_data(resources, connection, slot, work, holds);
    }
    let len_bytes = work.data_bytes();
    if let Some(Data { buffer: sink, .. }) = holds.lend_own(0) {
        let queue = &mut connection.transport;
        queue.pull(Tag(slot), &holds.host, sink, len_bytes);
    }
    *connection.command(slot) = Command::Pulling {
        work,
        holds,
        aborted: None,
    };
}

/// The data of a command was pulled.
pub(super) fn on_pulled(resources: &mut Resources, connection: &mut Connection, pulled: Pulled) {
    let Pulled {
        tag: Tag(slot),
        sink,
        intact,
    } = pulled;
    probe::passed(resources, connection, slot, Stage::Pull);
    let closing = connection.closing();
    if !intact && let Command::Pulling { work, .. } = connection.command(slot) {
        let cid = work.cid();
        corrupt::tell(connection, cid);
    }
    if let Command::Pulling { holds, aborted, .. } = connection.command(slot) {
        holds.take_back_buffer(sink);
        if !intact {
            *aborted = aborted.or(Some(Status::TRANSIENT_TRANSPORT_ERROR));
        }
        if closing {
            return;
        }
    }
    match connection.take_command(slot) {
        Command::Pulling {
            work,
            holds,
            aborted,
            ..
        } => match aborted.map_or_else(|| check_again(connection, &work), Err) {
            Ok(()) => on_data(resources, connection, slot, work, holds),
            Err(status) => respond::finish(resources, connection, slot, work, holds, status),
        },
        other => *connection.command(slot) = other,
    }
}

/// Whether a command that has waited may still go to the medium: the namespace may have been
/// reserved or write protected meanwhile. The error is the status of its response.
pub(super) fn check_again(connection: &Connection, work: &Work) -> Result<(), Status> {
    match (&connection.queue, work) {
        (Some(queue), Work::Io(io)) => queue.check_again(io),
        _ => Ok(()),
    }
}

/// Buffer and data are there: the first storage operation of the command, or what the controllers
/// do.
pub(super) fn on_data(
    resources: &mut Resources,
    connection: &mut Connection,
    slot: u16,
    work: Work,
    holds: Holds,
) {
    let io = match work {
        Work::Io(io) => io,
        Work::Admin(request) => {
            return admin::on_data(resources, connection, slot, *request, holds);
        }
        Work::Control(control) => {
            return control::on_data(resources, connection, slot, control, holds);
        }
        Work::Connect(connect) => {
            // Making a queue needs the whole `IoPath`: it is done at the end of the turn.
            *connection.command(slot) = Command::Connecting(connect, holds);
            return resources.connects.push((connection.identity.index, slot));
        }
    };
    if write_at_once(resources, &io, &holds) {
        return respond::finish_io(resources, connection, slot, io, holds, Status::SUCCESS);
    }
    on_medium::begin(resources, connection, slot, io, holds);
}
