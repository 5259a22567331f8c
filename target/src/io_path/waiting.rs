//! Commands that wait: for a buffer, for room of their connection's device or send queue, or for
//! their connection's turn.

use capstan_memory::Short;
use capstan_nvme_proto::status::Status;

use super::command::Work;
use super::connection::Connection;
use super::execute::{AtOnce, check_again, on_data, read_at_once, with_buffer};
use super::phase::Phase;
use super::{Connections, Resources, respond};

/// Gives the command in `slot` the buffer it needs, or queues it for one.
pub(super) fn obtain_buffer(
    resources: &mut Resources,
    connection: &mut Connection,
    slot: u16,
    len_bytes: u32,
) {
    if len_bytes == 0 {
        return on_data(resources, connection, slot);
    }
    // Commands that wait already go first, of this connection and of the others.
    if resources.starved.is_empty()
        && !resources.share.is_over()
        && connection.has_room_for(slot)
        && let Ok(buffer) = connection.lease(&resources.memory, len_bytes)
    {
        return with_buffer(resources, connection, slot, buffer);
    }
    obtain_spare(resources, connection, slot, len_bytes);
}

/// Gives the command in `slot` the spare buffer of its queue, if no command waits for that already;
/// or queues it.
#[cold]
fn obtain_spare(resources: &mut Resources, connection: &mut Connection, slot: u16, len_bytes: u32) {
    if connection.waiting.is_empty()
        && !resources.share.is_over()
        && connection.has_room_for(slot)
        && let Some(buffer) = connection.take_spare(slot, len_bytes)
    {
        return with_buffer(resources, connection, slot, buffer);
    }
    line_up(resources, connection, slot, len_bytes);
}

/// Lets the command in `slot` wait until [`go_on`] comes to it.
pub(super) fn line_up(
    resources: &mut Resources,
    connection: &mut Connection,
    slot: u16,
    len_bytes: u32,
) {
    connection.command(slot).wanted_bytes = len_bytes;
    connection.waiting.push_back(slot);
    if !std::mem::replace(&mut connection.starved, true) {
        resources.starved.push_back(connection.identity.index);
    }
    if connection.phase == Phase::Admin {
        // It waits only for its turn, and not for those who find no data buffer.
        spare_came_back(resources, connection);
    }
    // The device may have become full with what it was given before: it watches for room from the
    // next doorbell on.
    resources.unrung(connection);
}

/// A response has gone, and with it, perhaps, the spare buffer for which a command waits has come
/// back.
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
        let Some(&slot) = connection.waiting.front() else {
            continue;
        };
        let len_bytes = connection.command(slot).wanted_bytes;
        // A command that waits for room of the device is not helped by a buffer.
        if connection.qp.is_full()
            || !connection.has_room_for(slot)
            || check_again(connection, slot).is_err()
        {
            continue;
        }
        if let Some(buffer) = connection.take_spare(slot, len_bytes) {
            connection.waiting.pop_front();
            with_buffer(resources, connection, slot, buffer);
            fed = true;
        }
    }
    fed
}

/// What became of the oldest waiting command of a connection.
enum Next {
    /// It was continued.
    Went,
    /// Its connection can do nothing now, but others can.
    Passed,
    /// There is no buffer for it: the others wait as well, so that large ones are served too.
    HeldUp,
}

/// Continues waiting commands, up to a turn's share, with room of their devices or buffers that
/// have come free. Connections take turns. One whose device or send queue is full, or whose
/// association has its share of the buffers, is passed over; a command whose buffer is not there
/// yet holds up the others. Returns whether any was continued.
pub(super) fn go_on(resources: &mut Resources, connections: &mut Connections) -> bool {
    resources.share.begin();
    let mut fed = spare_go_on(resources, connections);
    // What continues with spare buffers leaves the others their share.
    resources.share.begin();
    while !resources.share.is_over()
        && let Some(index) = resources.starved.pop_front()
    {
        let Some(connection) = connections.get_mut(index) else {
            continue;
        };
        let Some(&slot) = connection.waiting.front() else {
            connection.starved = false;
            continue;
        };
        match next(resources, connection, slot) {
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

/// Continues the command in `slot`, the oldest that waits on its connection.
fn next(resources: &mut Resources, connection: &mut Connection, slot: u16) -> Next {
    if let Err(status) = check_again(connection, slot) {
        connection.waiting.pop_front();
        respond::finish(resources, connection, slot, status);
        return Next::Went;
    }
    if !connection.has_room_for(slot) {
        return Next::Passed;
    }
    match read_waiting(resources, connection, slot) {
        AtOnce::Done => {
            connection.waiting.pop_front();
        }
        AtOnce::Zeroes => {
            connection.waiting.pop_front();
            let command = connection.command(slot);
            command.zeroes = true;
            resources.share.moved(command.wanted_bytes);
            respond::finish(resources, connection, slot, Status::SUCCESS);
        }
        AtOnce::Later => return Next::Passed,
        AtOnce::Not => {
            let len_bytes = connection.command(slot).wanted_bytes;
            let leased = if connection.phase == Phase::Admin {
                Err(Short::Share)
            } else {
                connection.lease(&resources.memory, len_bytes)
            };
            let buffer = match leased {
                Ok(buffer) => buffer,
                Err(short) => match (connection.take_spare(slot, len_bytes), short) {
                    (Some(spare), _) => spare,
                    (None, Short::Share) => return Next::Passed,
                    (None, Short::Memory) => return Next::HeldUp,
                },
            };
            connection.waiting.pop_front();
            with_buffer(resources, connection, slot, buffer);
        }
    }
    Next::Went
}

/// Carries out the waiting command in `slot` where it is a read that takes no buffer now.
#[cold]
fn read_waiting(resources: &mut Resources, connection: &mut Connection, slot: u16) -> AtOnce {
    let command = connection.command(slot);
    if command.data.is_some() {
        return AtOnce::Not;
    }
    let io = match std::mem::replace(&mut command.work, Work::Free) {
        Work::Io(io) => io,
        other => {
            command.work = other;
            return AtOnce::Not;
        }
    };
    let at_once = read_at_once(resources, connection, &io);
    if at_once != AtOnce::Done {
        connection.command(slot).work = Work::Io(io);
        return at_once;
    }
    let invalidate = io.transfer.rkey_to_invalidate();
    connection.free_slot(slot);
    respond::answer(resources, connection, io.permit, invalidate);
    AtOnce::Done
}
