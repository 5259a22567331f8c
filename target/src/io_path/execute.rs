//! Step 3: a command gets its buffer, its data, and goes to the storage engine; what comes back
//! decides the response.

use capstan_memory::Buffer;
use capstan_nvme_proto::command::LbaRange;
use capstan_nvme_proto::opcode::IoOpcode;
use capstan_nvme_proto::sgl::Sgl;
use capstan_nvme_proto::sqe::Sqe;
use capstan_nvme_proto::status::Status;
use capstan_storage::{Completion, Io, Op, Submitted};
use capstan_subsystem::{BackendId, IoCommand, IoOperation, IoStep, Transfer};
use capstan_transport::{CapsuleData, InPlace, Landed};

use super::command::{Command, Work};
use super::connection::Connection;
use super::receives::Receives;
use super::recv::Capsule;
use super::{Resources, admin, control, respond, status, transfer, waiting};
use crate::limits::{READ_AT_ONCE_BYTES_MAX, TRANSFER_BYTES_MAX};

/// Takes in a command of an I/O queue.
pub(super) fn start(
    resources: &mut Resources,
    connection: &mut Connection,
    receives: &mut Receives,
    capsule: &mut Capsule,
) {
    let Some(queue) = connection.queue.as_mut() else {
        return;
    };
    let result = queue.handle_command(&capsule.sqe, capsule.data());
    let at_once = at_once(resources, connection, receives, capsule, &result);
    // No more of the command than is needed: the stores of a page may still be on their way to
    // memory, and a wide load of what is stored in pieces behind them stalls until they have ended.
    if at_once == AtOnce::Done
        && let IoStep::Execute(IoCommand {
            permit, transfer, ..
        }) = result
    {
        if let CapsuleData::Landed(landed) = capsule.data.take() {
            receives.post_again(landed.receive, landed.buffer, Some(connection.qp()));
        }
        return respond::answer(resources, connection, permit, transfer.rkey_to_invalidate());
    }
    let Some(slot) = connection.take_slot() else {
        resources.give_back_receive(connection, capsule.data.take());
        return resources.too_many_commands(connection);
    };
    match result {
        IoStep::Execute(io) => {
            let segments = match &io.transfer {
                Transfer::KeyedList(list) => Some(list.buffers(capsule.bytes()).collect()),
                Transfer::None | Transfer::InCapsule(_) | Transfer::Keyed(_) => None,
            };
            let command = connection.command(slot);
            command.transfer = io.transfer;
            command.segments = segments;
            let in_capsule = matches!(io.transfer, Transfer::InCapsule(_));
            command.pulls = !io.operation.moves_data_to_host()
                && matches!(io.transfer, Transfer::Keyed(_) | Transfer::KeyedList(_));
            let len_bytes = buffer_bytes(&io, in_capsule);
            if !capsule.land(connection, receives) {
                connection.free_slot(slot);
                return resources.lost(connection);
            }
            let command = connection.command(slot);
            command.work = Work::Io(io);
            place_capsule_data(resources, connection, slot, capsule.data.take());
            if at_once == AtOnce::Zeroes && connection.has_room_for(slot) {
                connection.command(slot).zeroes = true;
                return respond::finish(resources, connection, slot, Status::SUCCESS);
            }
            if at_once == AtOnce::Later || at_once == AtOnce::Zeroes {
                waiting::line_up(resources, connection, slot, len_bytes);
            } else {
                waiting::obtain_buffer(resources, connection, slot, len_bytes);
            }
        }
        IoStep::Control(command) => {
            control::start(resources, connection, slot, command, capsule);
        }
        IoStep::Complete(cqe) => {
            resources.give_back_receive(connection, capsule.data.take());
            respond::send(resources, connection, slot, cqe, None);
        }
        IoStep::DeleteQueue(permit) => {
            resources.give_back_receive(connection, capsule.data.take());
            connection.delete = Some((slot, permit));
            respond::delete_queue(resources, connection);
        }
        IoStep::Disconnect(reason) => {
            resources.give_back_receive(connection, capsule.data.take());
            connection.free_slot(slot);
            resources.end(connection, reason.to_string());
        }
    }
}

/// Keeps the receive with a command whose data is in it; posts it again otherwise.
pub(super) fn place_capsule_data(
    resources: &mut Resources,
    connection: &mut Connection,
    slot: u16,
    data: CapsuleData,
) {
    let command = connection.command(slot);
    match (&command.transfer, data) {
        (Transfer::InCapsule(place), CapsuleData::Landed(landed)) => {
            command.data_offset_bytes = place.offset_bytes;
            command.receive = Some(landed.receive);
            command.data = Some(landed.buffer);
        }
        (_, data) => resources.give_back_receive(connection, data),
    }
}

/// What became of a command before it has a buffer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum AtOnce {
    /// It is carried out: its data was copied from or to where it is, without a storage operation.
    Done,
    /// It reads what is known to be zero: the shared zeroes are its data.
    Zeroes,
    /// It waits, until the device has room or it is this connection's turn.
    Later,
    /// Nothing.
    Not,
}

impl AtOnce {
    fn done(done: bool) -> Self {
        if done { Self::Done } else { Self::Not }
    }
}

/// Carries out a read of a volume in memory whose data can be copied from there to the host at once.
#[expect(
    clippy::inline_always,
    reason = "a second caller, which is rare, costs 40 instructions for each command"
)]
#[inline(always)]
pub(super) fn read_at_once(
    resources: &Resources,
    connection: &mut Connection,
    io: &IoCommand,
) -> AtOnce {
    let IoOperation::Read { range, fua } = io.operation else {
        return AtOnce::Not;
    };
    let Some(volume) = resources.volumes.get(&io.namespace.backend) else {
        return AtOnce::Not;
    };
    let len_bytes = io.transfer.length_bytes();
    if volume.known_zero(range.slba, range.nlb) && connection.has_zeroes(len_bytes) {
        let (Transfer::Keyed(host), Some(slab)) = (io.transfer, &resources.memory.zeroes) else {
            return AtOnce::Zeroes;
        };
        if transfer::push_in_place(connection, host, slab, 0..len_bytes as usize) {
            resources.share.moved(len_bytes);
            return AtOnce::Done;
        }
        return AtOnce::Zeroes;
    }
    let (Transfer::Keyed(host), false) = (io.transfer, fua) else {
        return AtOnce::Not;
    };
    // What is outside the volume puts nothing; the storage operation will say what is wrong.
    let mut read = transfer::push_from(connection, host, &mut |put| {
        volume.read_in_place(range.slba, range.nlb, put);
    });
    if !read && let Some((slab, range)) = volume.place_of(range.slba, range.nlb) {
        read = transfer::push_in_place(connection, host, slab, range);
        if !read && connection.qp().is_full() {
            return AtOnce::Later;
        }
    }
    if read {
        resources.share.moved(len_bytes);
    }
    AtOnce::done(read)
}

/// Whether the command is a Write whose data is behind it in the capsule, where nobody but the volume looks
/// at it.
pub(super) fn writes_capsule_data(sqe: &Sqe) -> bool {
    sqe.io_opcode() == IoOpcode::WRITE && matches!(sqe.sgl(), Ok(Sgl::InCapsule { .. }))
}

/// Carries out a command whose data is in memory, on both sides.
fn at_once(
    resources: &Resources,
    connection: &mut Connection,
    receives: &mut Receives,
    capsule: &mut Capsule,
    step: &IoStep,
) -> AtOnce {
    let IoStep::Execute(io) = step else {
        return AtOnce::Not;
    };
    if matches!(capsule.data, CapsuleData::None) {
        // Of what takes long, a few a turn are enough, behind the answers to everything else.
        let long = io.transfer.length_bytes() > READ_AT_ONCE_BYTES_MAX;
        if io.operation.moves_data_to_host() && (long || resources.share.is_over()) {
            return AtOnce::Later;
        }
        return read_at_once(resources, connection, io);
    }
    AtOnce::done(write_received(resources, connection, receives, capsule, io))
}

/// Carries out a Write to a volume in memory from where its data has come: the buffer of a receive, or not
/// even that.
fn write_received(
    resources: &Resources,
    connection: &mut Connection,
    receives: &mut Receives,
    capsule: &mut Capsule,
    io: &IoCommand,
) -> bool {
    let volume = resources.volumes.get(&io.namespace.backend);
    let (IoOperation::Write { range, .. }, Transfer::InCapsule(place), Some(volume)) =
        (io.operation, io.transfer, volume)
    else {
        return false;
    };
    let skip = place.offset_bytes as usize;
    if let CapsuleData::InPlace(InPlace { message, .. }) = capsule.data {
        let written = connection.qp().take_lent(message, &mut |data| {
            volume.write_at_once(range.slba, range.nlb, data.skip(skip))
        });
        if written || !capsule.land(connection, receives) {
            return written;
        }
    }
    match &capsule.data {
        CapsuleData::Landed(Landed { buffer, .. }) => {
            volume.write_at_once(range.slba, range.nlb, buffer.raw().skip(skip))
        }
        CapsuleData::None | CapsuleData::Copied(_) | CapsuleData::InPlace(_) => false,
    }
}

/// Carries out a write to a volume in memory: without a storage operation, whose data goes there and
/// back, and would be loaded again while the processor still stores the page. Whether that was so.
fn write_at_once(resources: &Resources, command: &Command) -> bool {
    let Work::Io(io) = &command.work else {
        return false;
    };
    let IoOperation::Write { range, .. } = io.operation else {
        return false;
    };
    let volume = resources.volumes.get(&io.namespace.backend);
    let (Some(volume), Some(data)) = (volume, &command.data) else {
        return false;
    };
    let data = data.raw().skip(command.data_offset_bytes as usize);
    volume.write_at_once(range.slba, range.nlb, data)
}

/// Bytes of buffer the command needs besides its in-capsule data.
fn buffer_bytes(io: &IoCommand, in_capsule: bool) -> u32 {
    match io.operation {
        // The data of both sides, one behind the other: two leases could deadlock.
        IoOperation::Compare { .. } if !in_capsule => 2 * io.transfer.length_bytes(),
        IoOperation::Compare { .. } | IoOperation::Read { .. } => io.transfer.length_bytes(),
        IoOperation::Verify { range, .. } => bytes_of(io, range),
        IoOperation::Write { .. } | IoOperation::DatasetManagement { .. } if in_capsule => 0,
        IoOperation::Write { .. } | IoOperation::DatasetManagement { .. } => {
            io.transfer.length_bytes()
        }
        // The source ranges first, then every chunk that is copied.
        IoOperation::Copy { .. } => TRANSFER_BYTES_MAX,
        IoOperation::WriteZeroes { .. } | IoOperation::Flush => 0,
    }
}

fn bytes_of(io: &IoCommand, range: LbaRange) -> u32 {
    let bytes = u64::from(range.nlb) * u64::from(io.namespace.lba_bytes);
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// Goes on with a command that has its buffer now.
pub(super) fn with_buffer(
    resources: &mut Resources,
    connection: &mut Connection,
    slot: u16,
    buffer: Buffer,
) {
    let command = connection.command(slot);
    if command.data.is_some() {
        command.second = Some(buffer);
        return on_data(resources, connection, slot);
    }
    command.data = Some(buffer);
    if !command.pulls {
        return on_data(resources, connection, slot);
    }
    if let Err(error) = transfer::pull(connection, slot) {
        resources.end(connection, error.to_string());
    }
    resources.unrung(connection);
}

/// The data of the command in `slot` was pulled.
pub(super) fn on_pulled(resources: &mut Resources, connection: &mut Connection, slot: u16) {
    // Nobody writes to the data from here on.
    connection.command(slot).sink = None;
    if connection.closing() {
        return;
    }
    match check_again(connection, slot) {
        Ok(()) => on_data(resources, connection, slot),
        Err(status) => respond::finish(resources, connection, slot, status),
    }
}

/// Whether the command in `slot`, which has waited, may still go to the medium: the namespace may
/// have been reserved or write protected meanwhile. What it is answered with otherwise.
pub(super) fn check_again(connection: &Connection, slot: u16) -> Result<(), Status> {
    let command = &connection.commands[usize::from(slot)];
    match (&connection.queue, &command.work, command.aborted) {
        (Some(queue), Work::Io(io), None) => queue.check_again(io),
        _ => Ok(()),
    }
}

/// Buffer and data are there: the first storage operation of the command.
pub(super) fn on_data(resources: &mut Resources, connection: &mut Connection, slot: u16) {
    let command = connection.command(slot);
    if let Some(status) = command.aborted {
        return respond::finish(resources, connection, slot, status);
    }
    if write_at_once(resources, command) {
        return respond::finish(resources, connection, slot, Status::SUCCESS);
    }
    let io = match &command.work {
        Work::Io(io) => io,
        Work::Admin(_) => return admin::on_data(resources, connection, slot),
        Work::Control(_) => return control::on_data(resources, connection, slot),
        Work::Held(_) | Work::Free | Work::Responded | Work::Answered => return,
    };
    let first = match io.operation {
        // What is volatile goes to the medium before it is read back from there.
        IoOperation::Read { fua: true, .. }
        | IoOperation::Compare { fua: true, .. }
        | IoOperation::Verify { fua: true, .. }
        | IoOperation::Flush => Step::Flush,
        IoOperation::Read { range, .. } | IoOperation::Verify { range, .. } => Step::Read(range),
        IoOperation::Compare { range, .. } => Step::ReadForCompare(range),
        IoOperation::Write { range, fua } => Step::Write(range, fua),
        IoOperation::WriteZeroes {
            range,
            deallocate,
            fua,
        } => Step::WriteZeroes(range, deallocate, fua),
        IoOperation::DatasetManagement { .. } | IoOperation::Copy { .. } => {
            match command.read_ranges() {
                Ok(()) => command.next_range(),
                Err(status) => Step::Done(status),
            }
        }
    };
    run(resources, connection, slot, first);
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

/// Submits one storage operation for the command in `slot`, or responds.
fn run(resources: &mut Resources, connection: &mut Connection, slot: u16, step: Step) {
    let token = token(connection.identity.index, slot);
    let command = connection.command(slot);
    let Work::Io(io) = &command.work else { return };
    let backend = io.namespace.backend;
    let len_bytes = io.transfer.length_bytes();
    let (op, data) = match step {
        Step::Done(status) => return respond::finish(resources, connection, slot, status),
        Step::Flush => (Op::Flush, None),
        Step::Read(LbaRange { slba, nlb }) => (
            Op::Read {
                lba: slba,
                lbas: nlb,
            },
            command.take_data(),
        ),
        Step::ReadForCompare(LbaRange { slba, nlb }) => (
            Op::Read {
                lba: slba,
                lbas: nlb,
            },
            command.take_compare_half(len_bytes),
        ),
        Step::Write(LbaRange { slba, nlb }, fua) => (
            Op::Write {
                lba: slba,
                lbas: nlb,
                fua,
            },
            command.take_data(),
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
    command.step = Some(step);
    let Some(volume) = resources.volumes.get_mut(&backend) else {
        // The namespace went away between the check and here.
        return respond::finish(resources, connection, slot, Status::NAMESPACE_NOT_READY);
    };
    let reads = matches!(op, Op::Read { .. });
    match volume.submit(Io { token, op, data }, resources.now_us) {
        Submitted::Done(completion) => {
            if reads {
                let data = completion.data.as_ref();
                let bytes = data.map_or(0, |data| data.buffer.len_bytes());
                resources.share.moved(bytes);
            }
            on_disk(resources, connection, completion);
        }
        Submitted::Pending => connection.disk_outstanding += 1,
    }
}

/// A storage operation ended.
pub(super) fn on_disk(
    resources: &mut Resources,
    connection: &mut Connection,
    completion: Completion,
) {
    let (_, slot) = split_token(completion.token);
    let command = connection.command(slot);
    command.put_back(completion.data);
    if connection.closing() {
        if let Err(error) = &completion.result {
            let backend = connection.command(slot).backend();
            resources.storage_failed(backend, error);
        }
        return;
    }
    // A command of several operations waits between them.
    let stopped = match connection.commands[usize::from(slot)].ranges {
        Some(_) => check_again(connection, slot).err(),
        None => None,
    };
    let command = connection.command(slot);
    let next = match (completion.result, command.step) {
        (Err(error), _) => {
            resources.storage_failed(command.backend(), &error);
            Step::Done(status::of(&error))
        }
        (Ok(()), Some(step)) => match (command.after(step), command.aborted.or(stopped)) {
            // What is done is done; what is left of an aborted command is not.
            (Step::Done(status), _) | (_, Some(status)) => Step::Done(status),
            (next, None) => next,
        },
        (Ok(()), None) => Step::Done(Status::INTERNAL_ERROR),
    };
    run(resources, connection, slot, next);
}

impl Command {
    /// Where its blocks are.
    fn backend(&self) -> Option<BackendId> {
        match &self.work {
            Work::Io(io) => Some(io.namespace.backend),
            _ => None,
        }
    }

    /// The step after one that succeeded.
    fn after(&mut self, step: Step) -> Step {
        let Work::Io(io) = &self.work else {
            return Step::Done(Status::INTERNAL_ERROR);
        };
        match (io.operation, step) {
            (IoOperation::Read { range, .. } | IoOperation::Verify { range, .. }, Step::Flush) => {
                Step::Read(range)
            }
            (IoOperation::Compare { range, .. }, Step::Flush) => Step::ReadForCompare(range),
            (IoOperation::Compare { .. }, _) => {
                Step::Done(self.compare(io.transfer.length_bytes()))
            }
            (IoOperation::Copy { fua, .. }, Step::Read(_)) => self.copy_write(fua),
            (IoOperation::DatasetManagement { .. } | IoOperation::Copy { .. }, _) => {
                self.next_range()
            }
            _ => Step::Done(Status::SUCCESS),
        }
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
