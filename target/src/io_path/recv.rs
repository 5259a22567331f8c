//! Step 2: what has happened on the queues. A capsule becomes a command; a pulled transfer goes on
//! to disk; a response that has left frees its command.

use capstan_transport::{Capsule, CapsuleData, Event, QueueId, Tag};

use super::cause::Cause;
use super::connection::Connection;
use super::connections::Connections;
use super::fence::Fences;
use super::phase::Phase;
use super::{IoPath, Resources, admin, corrupt, execute, fence, probe, respond, waiting};

/// Puts data that is in place where it can stay. `false` when the connection has ended meanwhile,
/// and the data with it.
#[must_use]
pub(super) fn land(capsule: &mut Capsule, connection: &mut Connection) -> bool {
    let CapsuleData::InPlace(in_place) = capsule.data else {
        return true;
    };
    let landed = connection.transport.land(in_place);
    let is_landed = landed.is_some();
    capsule.data = landed.map_or(CapsuleData::None, CapsuleData::Landed);
    is_landed
}

impl IoPath {
    /// Handles what has happened on the queues of every wire, up to a budget. Returns the number of
    /// completions, or of sockets that had something.
    pub(super) fn poll_wires(&mut self) -> u32 {
        let mut all = 0;
        self.resources.in_flight = 0;
        self.resources.releases = 0;
        let Self {
            resources,
            connections,
            fences,
            wires,
            ..
        } = self;
        for mut wire in wires.iter_mut() {
            all += wire.poll(connections, resources.now_us);
            while let Some((id, event)) = wire.next_event(connections) {
                on_event(resources, connections, fences, (id, event));
            }
        }
        all
    }
}

fn on_event(
    resources: &mut Resources,
    connections: &mut Connections,
    fences: &mut Fences,
    (id, event): (QueueId, Event),
) {
    let Some(connection) = connections.named(id) else {
        return;
    };
    match event {
        Event::Capsule(mut capsule) => return on_capsule(resources, connection, &mut capsule),
        Event::Pulled(pulled) => {
            connection.progress.pulled();
            execute::on_pulled(resources, connection, pulled);
        }
        Event::Released => {
            connection.progress.moved();
            resources.releases += 1;
            if let Some(why) = connection.release() {
                resources.end(connection, Cause::new("queue-deleted", why));
            }
            probe::released(resources, connection);
            waiting::spare_came_back(resources, connection);
        }
        Event::Returned(Tag(slot), buffer) => {
            connection.progress.moved();
            respond::on_returned(resources, connection, slot, buffer);
        }
        Event::Room => return waiting::resume(resources, connection),
        Event::Ended(why) => {
            connection.progress.moved();
            return resources.end(connection, why);
        }
        Event::Fenced(number) => return fence::passed(resources, connection, fences, number),
        Event::Quiesced => {
            connection.quiesced = true;
            return;
        }
    }
    resources.note_in_flight(connection);
}

fn on_capsule(resources: &mut Resources, connection: &mut Connection, capsule: &mut Capsule) {
    if resources.draining || connection.is_leaving {
        return connection.transport.give_back(capsule.data.take());
    }
    if !capsule.intact {
        return corrupt::on_capsule(resources, connection, capsule);
    }
    let may_be_lent = connection.phase == Phase::Io && execute::writes_capsule_data(&capsule.sqe);
    if !may_be_lent && !land(capsule, connection) {
        return resources.lost(connection);
    }
    match connection.phase {
        Phase::Io => execute::start(resources, connection, capsule),
        Phase::AwaitingConnect { .. } | Phase::AwaitingData { .. } | Phase::Admin => {
            admin::start(resources, connection, capsule);
        }
        Phase::Refused { .. } => {
            connection.transport.give_back(capsule.data.take());
            let why = "the host sent a command though its Connect was refused";
            resources.end(connection, Cause::violation(why));
        }
        Phase::Closing { .. } => connection.transport.give_back(capsule.data.take()),
    }
    resources.note_in_flight(connection);
}
