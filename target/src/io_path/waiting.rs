//! Commands that wait: for a buffer, for room on their wire or in the send queue, or for their
//! connection's turn.

use capstan_memory::Short;
use capstan_nvme_proto::status::Status;

use super::command::{Command, Holds, Work};
use super::connection::Connection;
use super::execute::{AtOnce, check_again, on_data, push_zeroes, read_at_once, with_buffer};
use super::phase::Phase;
use super::{Connections, Resources, probe, respond};
use crate::metrics::Stage;

/// Gives the command in `slot` the buffer it needs, or queues it for one.
pub(super) fn obtain_buffer(
    resources: &mut Resources,
    connection: &mut Connection,
    slot: u16,
    (work, mut holds): (Work, Holds),
    len_bytes: u32,
) {
    if len_bytes == 0 {
        return on_data(resources, connection, slot, work, holds);
    }
    // Commands that wait already go first, of this connection and of the others.
    if resources.starved.is_empty()
        && connection.waiting.is_empty()
        && !resources.share.is_over()
        && connection.has_room_for(&mut holds)
        && let Ok(own) = connection.lease(&resources.memory, len_bytes)
    {
        holds.own = own;
        return with_buffer(resources, connection, slot, work, holds);
    }
    obtain_spare(resources, connection, slot, (work, holds), len_bytes);
}

/// Gives the command in `slot` the spare buffer of its queue, if no command waits for that already;
/// or queues it.
#[cold]
fn obtain_spare(
    resources: &mut Resources,
    connection: &mut Connection,
    slot: u16,
    (work, mut holds): (Work, Holds),
    len_bytes: u32,
) {
    if connection.waiting.is_empty()
        && !resources.share.is_over()
        && connection.has_room_for(&mut holds)
        && let Some(own) = connection.take_spare(&holds, len_bytes)
    {
        holds.own = own;
        return with_buffer(resources, connection, slot, work, holds);
    }
    line_up(resources, connection, slot, (work, holds), len_bytes);
}

/// Lets the command in `slot` wait until [`go_on`] comes to it.
pub(super) fn line_up(
    resources: &mut Resources,
    connection: &mut Connection,
    slot: u16,
    (work, holds): (Work, Holds),
    wanted_bytes: u32,
) {
    *connection.command(slot) = Command::Waiting {
        work,
        holds,
        wanted_bytes,
    };
    connection.waiting.push_back(slot);
    starves(resources, connection);
    if connection.phase == Phase::Admin {
        // It waits only for its turn, and not behind commands that find no data buffer.
        spare_came_back(resources, connection);
    }
}

/// Puts a connection with waiting commands in line, unless the oldest of them waits for room.
fn starves(resources: &mut Resources, connection: &mut Connection) {
    if !connection.is_full && !std::mem::replace(&mut connection.starved, true) {
        resources.starved.push_back(connection.identity.index);
    }
}

/// The wire of a connection has room again, or the command that waited for that is not the oldest
/// any more.
pub(super) fn resume(resources: &mut Resources, connection: &mut Connection) {
    connection.is_full = false;
    if !connection.waiting.is_empty() {
        starves(resources, connection);
        spare_came_back(resources, connection);
    }
}

/// A response has left: the spare buffer for which a command waits may have come back.
#[inline]
pub(super) fn spare_came_back(resources: &mut Resources, connection: &mut Connection) {
    if !connection.waiting.is_empty()
        && connection.spare.is_some()
        && !std::mem::replace(&mut connection.spared, true)
    {
        resources.spared.push_back(connection.identity.index);
    }
}

/// Continues the oldest waiting commands of queues whose spare buffer is back with that buffer,
/// whatever waits for the others.
fn spare_go_on(resources: &mut Resources, connections: &mut Connections) -> bool {
    let mut fed = false;
    while !resources.share.is_over()
        && let Some(index) = resources.spared.pop_front()
    {
        let Some(connection) = connections.get_mut(index) else {
            continue;
        };
        connection.spared = false;
        // A command that waits for room on its wire needs more than a buffer.
        if connection.is_full {
            continue;
        }
        let Some((slot, mut waiting)) = Waiting::take(connection) else {
            continue;
        };
        let may_go = connection.has_room_for(&mut waiting.holds)
            && check_again(connection, &waiting.work).is_ok();
        let spare = may_go.then(|| connection.take_spare(&waiting.holds, waiting.wanted_bytes));
        let Some(own) = spare.flatten() else {
            waiting.put_back(connection, slot);
            continue;
        };
        waiting.holds.own = own;
        with_buffer(resources, connection, slot, waiting.work, waiting.holds);
        fed = true;
    }
    fed
}

/// What became of the oldest waiting command of a connection.
enum Next {
    /// It was continued.
    Went,
    /// Its connection can do nothing now; others may.
    Passed,
    /// Its connection can do nothing until [`resume`].
    Full,
    /// No buffer of its size is free. Later commands wait too, or large ones would starve.
    HeldUp,
}

/// Continues waiting commands, up to a turn's share, with room on their wires or buffers that have
/// come free. Connections take turns. A connection whose send queue is full, or whose host has its
/// share of the buffers, is passed over; one whose wire is full leaves the line until that has
/// room; a command whose buffer is not there yet holds up the others. Returns whether any was
/// continued.
pub(super) fn go_on(resources: &mut Resources, connections: &mut Connections) -> bool {
    resources.share.begin();
    let mut fed = spare_go_on(resources, connections);
    // Commands that continue with spare buffers do not count against the others' share.
    resources.share.begin();
    while !resources.share.is_over()
        && let Some(index) = resources.starved.pop_front()
    {
        let Some(connection) = connections.get_mut(index) else {
            continue;
        };
        let Some((slot, waiting)) = Waiting::take(connection) else {
            connection.starved = false;
            continue;
        };
        match next(resources, connection, slot, waiting) {
            Next::Went => {
                fed = true;
                connection.progress.moved();
                if connection.waiting.is_empty() {
                    connection.starved = false;
                } else {
                    resources.starved.push_back(index);
                }
            }
            Next::Passed => resources.passed.push(index),
            Next::Full => {
                connection.is_full = true;
                connection.starved = false;
            }
            Next::HeldUp => {
                resources.note_shortage();
                resources.starved.push_front(index);
                break;
            }
        }
    }
    resources.starved.extend(resources.passed.drain(..));
    fed
}

/// A command that waits, out of its slot.
struct Waiting {
    work: Work,
    holds: Holds,
    wanted_bytes: u32,
}

impl Waiting {
    /// The oldest of a connection, and its slot.
    fn take(connection: &mut Connection) -> Option<(u16, Self)> {
        let slot = connection.waiting.pop_front()?;
        match connection.take_command(slot) {
            Command::Waiting {
                work,
                holds,
                wanted_bytes,
            } => {
                let waiting = Self {
                    work,
                    holds,
                    wanted_bytes,
                };
                Some((slot, waiting))
            }
            other => {
                *connection.command(slot) = other;
                None
            }
        }
    }

    /// Puts the command back, as the oldest that waits on its connection.
    fn put_back(self, connection: &mut Connection, slot: u16) {
        let Self {
            work,
            holds,
            wanted_bytes,
        } = self;
        *connection.command(slot) = Command::Waiting {
            work,
            holds,
            wanted_bytes,
        };
        connection.waiting.push_front(slot);
    }
}

/// Continues the command of `slot`, the oldest that waited on its connection.
fn next(
    resources: &mut Resources,
    connection: &mut Connection,
    slot: u16,
    mut waiting: Waiting,
) -> Next {
    if let Err(status) = check_again(connection, &waiting.work) {
        let Waiting { work, holds, .. } = waiting;
        respond::finish(resources, connection, slot, work, holds, status);
        return Next::Went;
    }
    if !connection.has_room_for(&mut waiting.holds) {
        waiting.put_back(connection, slot);
        return Next::Passed;
    }
    go_on_with(resources, connection, slot, waiting)
}

/// Continues a command, if it can do without a buffer or finds one.
fn go_on_with(
    resources: &mut Resources,
    connection: &mut Connection,
    slot: u16,
    mut waiting: Waiting,
) -> Next {
    if let Work::Io(io) = &waiting.work
        && !waiting.holds.has_capsule_data()
    {
        match read_at_once(resources, connection, io, &waiting.holds.host) {
            AtOnce::Done => {
                let Waiting { work, holds, .. } = waiting;
                let invalidate = holds.host.invalidate();
                probe::passed(resources, connection, slot, Stage::WaitForBuffer);
                let is_timed = connection.probe.leave(slot);
                connection.free_slot_of(slot, holds);
                if let Work::Io(io) = work {
                    match is_timed {
                        true => probe::answer(resources, connection, io.permit, invalidate),
                        false => respond::answer(resources, connection, io.permit, invalidate),
                    }
                }
                return Next::Went;
            }
            AtOnce::Zeroes => {
                let len_bytes = io.data_bytes;
                if push_zeroes(connection, &mut waiting.holds, len_bytes) {
                    resources.note_read(io);
                    let Waiting { work, holds, .. } = waiting;
                    resources.share.moved(len_bytes);
                    respond::finish(resources, connection, slot, work, holds, Status::SUCCESS);
                    return Next::Went;
                }
            }
            AtOnce::Later => {
                waiting.put_back(connection, slot);
                return Next::Passed;
            }
            AtOnce::Full => {
                waiting.put_back(connection, slot);
                return Next::Full;
            }
            AtOnce::Not => {}
        }
    }
    let wanted_bytes = waiting.wanted_bytes;
    let leased = if connection.phase == Phase::Admin {
        Err(Short::Share)
    } else {
        connection.lease(&resources.memory, wanted_bytes)
    };
    let own = leased.or_else(|short| {
        let spare = connection.take_spare(&waiting.holds, wanted_bytes);
        spare.ok_or(short)
    });
    match own {
        Ok(own) => {
            let Waiting {
                work, mut holds, ..
            } = waiting;
            holds.own = own;
            with_buffer(resources, connection, slot, work, holds);
            Next::Went
        }
        Err(short) => {
            waiting.put_back(connection, slot);
            match short {
                Short::Share => Next::Passed,
                Short::Memory => Next::HeldUp,
            }
        }
    }
}
