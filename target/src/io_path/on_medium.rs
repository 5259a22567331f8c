//! The storage operations of a command, one after the other; what comes back decides the response.

use capstan_nvme_proto::command::LbaRange;
use capstan_nvme_proto::status::Status;
use capstan_storage::{Completion, Data, Io, IoError, Op, Submitted};
use capstan_subsystem::{IoCommand, IoOperation};

use super::command::{Command, Holds, OnMedium};
use super::connection::Connection;
use super::{Resources, respond, status};

/// Starts the first operation of the command in `slot`, whose buffer and data are there.
pub(super) fn begin(
    resources: &mut Resources,
    connection: &mut Connection,
    slot: u16,
    io: IoCommand,
    holds: Holds,
) {
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
        let Some(opened) = resources.volumes.get_mut(&on.io.namespace.backend) else {
            // The namespace went away between the check and here.
            on.holds.take_back(data);
            on.step = Step::Done(Status::NAMESPACE_NOT_READY);
            continue;
        };
        let reads = matches!(op, Op::Read { .. });
        opened.counters.begins(&op, on.io.namespace.lba_bytes);
        match opened
            .volume
            .submit(Io { token, op, data }, resources.now_us)
        {
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
