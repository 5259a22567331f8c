//! Step 3: a command gets its buffer, its data, and goes to the storage engine; what comes back
//! decides the response.

use capstan_nvme_proto::command::LbaRange;
use capstan_nvme_proto::error::CommandError;
use capstan_nvme_proto::opcode::IoOpcode;
use capstan_nvme_proto::sgl::Sgl;
use capstan_nvme_proto::sqe::Sqe;
use capstan_nvme_proto::status::Status;
use capstan_storage::{Completion, Data, Io, IoError, Op, ReadAtOnce, Submitted};
use capstan_subsystem::{IoCommand, IoOperation, IoStep};
use capstan_transport::{
    Capsule, CapsuleData, Full, HostMemory, Landed, Pulled, Pushed, Queue, Source, Tag,
};

use super::command::{Command, Holds, OnMedium, Responding, Work};
use super::connection::Connection;
use super::recv::land;
use super::{Resources, admin, control, respond, status, waiting};
use crate::limits::{READ_AT_ONCE_BYTES_MAX, TRANSFER_BYTES_MAX};

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
        return respond::answer(resources, connection, permit, host.invalidate());
    }
    let Some(slot) = connection.take_slot() else {
        connection.transport.give_back(capsule.data.take());
        return resources.too_many_commands(connection);
    };
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
            resources.end(connection, reason.to_string());
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
    let Some(volume) = resources.volumes.get(&io.namespace.backend) else {
        return AtOnce::Not;
    };
    let transport = &mut connection.transport;
    let len_bytes = io.data_bytes;
    let memory = match volume.read_at_once(range.slba, range.nlb) {
        ReadAtOnce::Zeroes if !host.is_one_place() => return AtOnce::Zeroes,
        ReadAtOnce::Zeroes => {
            return match transport.push(host, Source::Zeroes(len_bytes)) {
                Ok(Pushed::UntilReleased) if len_bytes <= READ_AT_ONCE_BYTES_MAX => {
                    // The device moves them.
                    AtOnce::Done
                }
                Ok(_) => {
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
    let mut pushed = match transport.prefers_held(len_bytes).then(place).flatten() {
        Some((slab, range)) => transport.push(host, Source::Held(slab, range)),
        None => transport.push(host, Source::Copy(len_bytes, &mut copy)),
    };
    if let Err(Full {
        until_room: false, ..
    }) = pushed
        && let Some((slab, range)) = place()
    {
        pushed = transport.push(host, Source::Held(slab, range));
    }
    match pushed {
        Ok(_) => {
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
    let volume = resources.volumes.get(&io.namespace.backend);
    let (IoOperation::Write { range, .. }, Some(volume)) = (io.operation, volume) else {
        return false;
    };
    if let CapsuleData::InPlace(in_place) = capsule.data {
        let written = connection.transport.consume(in_place, |data| {
            volume.write_at_once(range.slba, range.nlb, data)
        });
        if written || !land(capsule, connection) {
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

/// Carries out a Write to a volume in memory, without a storage operation: its value would be
/// stored and then loaded behind the stores of the page. Returns whether the data was written.
fn write_at_once(resources: &Resources, io: &IoCommand, holds: &Holds) -> bool {
    let IoOperation::Write { range, .. } = io.operation else {
        return false;
    };
    let volume = resources.volumes.get(&io.namespace.backend);
    let (Some(volume), Some((data, offset_bytes))) = (volume, holds.data()) else {
        return false;
    };
    let data = data.raw().skip(offset_bytes as usize);
    volume.write_at_once(range.slba, range.nlb, data)
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
    let closing = connection.closing();
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
    let mut on = OnMedium {
        io,
        holds,
        step: Step::Flush,
        ranges: None,
        aborted: None,
    };
    on.step = on.first();
    run(resources, connection, slot, on);
}

/// What a command does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Flush,
    Read(LbaRange),
    ReadForCompare(LbaRange),
    Write(LbaRange, bool),
    WriteZeroes(LbaRange, bool, bool),
    Discard(LbaRange),
    Done(Status),
}

/// Continues the command in `slot` until the storage engine has an operation of it, or until it is
/// answered.
fn run(resources: &mut Resources, connection: &mut Connection, slot: u16, mut on: OnMedium) {
    let token = token(connection.identity.index, slot);
    loop {
        let (op, data) = match on.operation() {
            Ok(operation) => operation,
            Err(status) => {
                let OnMedium { io, holds, .. } = on;
                return respond::finish_io(resources, connection, slot, io, holds, status);
            }
        };
        let Some(volume) = resources.volumes.get_mut(&on.io.namespace.backend) else {
            // The namespace went away between the check and here.
            on.holds.take_back(data);
            on.step = Step::Done(Status::NAMESPACE_NOT_READY);
            continue;
        };
        let reads = matches!(op, Op::Read { .. });
        match volume.submit(Io { token, op, data }, resources.now_us) {
            Submitted::Done(completion) => {
                if reads {
                    let data = completion.data.as_ref();
                    let bytes = data.map_or(0, |data| data.buffer.len_bytes());
                    resources.share.moved(bytes);
                }
                on.holds.take_back(completion.data);
                on.step = next(resources, connection, &mut on, completion.result);
            }
            Submitted::Pending => {
                connection.disk_outstanding += 1;
                *connection.command(slot) = Command::OnMedium(on);
                return;
            }
        }
    }
}

/// A storage operation ended.
pub(super) fn on_disk(
    resources: &mut Resources,
    connection: &mut Connection,
    completion: Completion,
) {
    let (_, slot) = split_token(completion.token);
    let closing = connection.closing();
    let Command::OnMedium(on) = connection.command(slot) else {
        return;
    };
    on.holds.take_back(completion.data);
    if closing {
        if let Err(error) = &completion.result {
            let backend = on.io.namespace.backend;
            resources.storage_failed(Some(backend), error);
        }
        return;
    }
    if let Command::OnMedium(mut on) = connection.take_command(slot) {
        on.step = next(resources, connection, &mut on, completion.result);
        run(resources, connection, slot, on);
    }
}

/// What a command does after a storage operation with this result.
fn next(
    resources: &mut Resources,
    connection: &Connection,
    on: &mut OnMedium,
    result: Result<(), IoError>,
) -> Step {
    if let Err(error) = result {
        resources.storage_failed(Some(on.io.namespace.backend), &error);
        return Step::Done(status::of(&error));
    }
    // Between the operations of one command the namespace may become reserved or write protected.
    let stopped = match (&on.ranges, &connection.queue) {
        (Some(_), Some(queue)) => queue.check_again(&on.io).err(),
        _ => None,
    };
    match (on.after(), on.aborted.or(stopped)) {
        // Storage operations that have ended stay; an aborted command starts no further one.
        (Step::Done(status), _) | (_, Some(status)) => Step::Done(status),
        (next, None) => next,
    }
}

impl OnMedium {
    /// The first step.
    fn first(&mut self) -> Step {
        match self.io.operation {
            // Volatile data goes to the medium before it is read back from there.
            IoOperation::Read { fua: true, .. }
            | IoOperation::Compare { fua: true, .. }
            | IoOperation::Verify { fua: true, .. }
            | IoOperation::Flush => Step::Flush,
            IoOperation::Read { range, .. } | IoOperation::Verify { range, .. } => {
                Step::Read(range)
            }
            IoOperation::Compare { range, .. } => Step::ReadForCompare(range),
            IoOperation::Write { range, fua } => Step::Write(range, fua),
            IoOperation::WriteZeroes {
                range,
                deallocate,
                fua,
            } => Step::WriteZeroes(range, deallocate, fua),
            IoOperation::DatasetManagement { .. } | IoOperation::Copy { .. } => {
                match self.read_ranges() {
                    Ok(()) => self.next_range(),
                    Err(status) => Step::Done(status),
                }
            }
        }
    }

    /// The step after one that succeeded.
    fn after(&mut self) -> Step {
        match (self.io.operation, self.step) {
            (IoOperation::Read { range, .. } | IoOperation::Verify { range, .. }, Step::Flush) => {
                Step::Read(range)
            }
            (IoOperation::Compare { range, .. }, Step::Flush) => Step::ReadForCompare(range),
            (IoOperation::Compare { .. }, _) => Step::Done(self.holds.compare(self.io.data_bytes)),
            (IoOperation::Copy { fua, .. }, Step::Read(_)) => self.copy_write(fua),
            (IoOperation::DatasetManagement { .. } | IoOperation::Copy { .. }, _) => {
                self.next_range()
            }
            _ => Step::Done(Status::SUCCESS),
        }
    }

    /// The storage operation of the step, with the memory for it; at the end, the status.
    fn operation(&mut self) -> Result<(Op, Option<Data>), Status> {
        let operation = match self.step {
            Step::Done(status) => return Err(status),
            Step::Flush => (Op::Flush, None),
            Step::Read(LbaRange { slba, nlb }) => (
                Op::Read {
                    lba: slba,
                    lbas: nlb,
                },
                self.holds.lend_own(0),
            ),
            Step::ReadForCompare(LbaRange { slba, nlb }) => (
                Op::Read {
                    lba: slba,
                    lbas: nlb,
                },
                self.holds.lend_for_compare(self.io.data_bytes),
            ),
            Step::Write(LbaRange { slba, nlb }, fua) => (
                Op::Write {
                    lba: slba,
                    lbas: nlb,
                    fua,
                },
                self.lend_written(),
            ),
            Step::WriteZeroes(LbaRange { slba, nlb }, deallocate, fua) => (
                Op::WriteZeroes {
                    lba: slba,
                    lbas: nlb,
                    deallocate,
                    fua,
                },
                None,
            ),
            Step::Discard(LbaRange { slba, nlb }) => (
                Op::Discard {
                    lba: slba,
                    lbas: u64::from(nlb),
                },
                None,
            ),
        };
        Ok(operation)
    }
}

/// The storage engine's name for a command: connection index and slot. An index is not used again
/// while the engine has a command of it.
fn token(index: usize, slot: u16) -> u64 {
    (index as u64) << 16 | u64::from(slot)
}

/// The connection index and the slot of a token.
pub(super) fn split_token(token: u64) -> (usize, u16) {
    let index = usize::try_from(token >> 16).unwrap_or(usize::MAX);
    let slot = u16::try_from(token & u64::from(u16::MAX)).unwrap_or(u16::MAX);
    (index, slot)
}
