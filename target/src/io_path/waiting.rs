//! Commands that wait: for a buffer, for room of their connection's device, or for their connection's turn.

use capstan_nvme_proto::status::Status;

use super::connection::{Connection, Work};
use super::execute::{AtOnce, check_again, on_data, read_at_once, with_buffer};
use super::{Connections, Resources, respond};

/// Gives the command in `slot` the buffer it needs, or lines it up for one.
pub(super) fn obtain_buffer(
    resources: &mut Resources,
    connection: &mut Connection,
    slot: u16,
    len_bytes: u32,
) {
    if len_bytes == 0 {
        return on_data(resources, connection, slot);
    }
    // Whoever waits already goes first, of this connection and of the others.
    if resources.starved.is_empty()
        && !resources.share.is_over()
        && let Some(buffer) = resources.memory.data.take(len_bytes)
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
    if connection.waiting.len() == 1 {
        resources.starved.push_back(connection.index);
    }
    // The device may have become full by what it was given before: it watches for room from the next doorbell on.
    resources.unrung(connection);
}

/// Lets waiting commands go on, up to a turn's share, with room of their devices or the buffers that have come free. Connections
/// take turns. One whose device is full is passed over; a command whose buffer is not there yet holds up the rest, so that large
/// ones are served too. Whether any went on.
pub(super) fn go_on(resources: &mut Resources, connections: &mut Connections) -> bool {
    resources.share.begin();
    let (mut fed, mut full) = (false, 0);
    while full < resources.starved.len() && !resources.share.is_over() {
        let Some(index) = resources.starved.pop_front() else {
            break;
        };
        let Some(connection) = connections.get_mut(index) else {
            continue;
        };
        let Some(&slot) = connection.waiting.front() else {
            continue;
        };
        if let Err(status) = check_again(connection, slot) {
            connection.waiting.pop_front();
            respond::finish(resources, connection, slot, status);
            fed = true;
            if !connection.waiting.is_empty() {
                resources.starved.push_back(index);
            }
            continue;
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
            AtOnce::Later => {
                resources.starved.push_back(index);
                full += 1;
                continue;
            }
            AtOnce::Not => {
                let len_bytes = connection.command(slot).wanted_bytes;
                let Some(buffer) = resources.memory.data.take(len_bytes) else {
                    resources.starved.push_front(index);
                    break;
                };
                connection.waiting.pop_front();
                with_buffer(resources, connection, slot, buffer);
            }
        }
        fed = true;
        if !connection.waiting.is_empty() {
            resources.starved.push_back(index);
        }
    }
    fed
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
