//! From a connection to a queue: a Connect whose data is there. Until then a connection has a place
//! among strangers; what a queue needs is taken once its host is known to be permitted, before the
//! response is sent.

use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::sqe::Sqe;
use capstan_rdma::PEER_CAUSED;
use capstan_subsystem::{ConnectOutcome, ConnectRequest, Share};
use capstan_transport::Memory;
use capstan_transport::limits::CQE_BYTES;
use capstan_transport::rdma::DevicePort;

use super::accept::Refusal;
use super::admin::Connect;
use super::command::Command;
use super::connection::{Carrier, Connection};
use super::phase::Phase;
use super::queue_shares::QueueShares;
use super::{IoPath, Resources, discovery, respond, tcp};
use crate::limits::{SPARE_BYTES, slots as slots_of};

impl IoPath {
    /// Carries out the Connects whose data has arrived in this turn.
    pub(super) fn carry_out_connects(&mut self) {
        while let Some((index, slot)) = self.resources.connects.pop() {
            self.carry_out_connect(index, slot);
        }
    }

    fn carry_out_connect(&mut self, index: usize, slot: u16) {
        let Some(connection) = self.connections.get_mut(index) else {
            return;
        };
        if !connection.phase.is_unconnected() {
            return;
        }
        let mut port = match connection.identity.carrier {
            Carrier::Rdma(on) => match self.fabrics[on.fabric].port(on.port) {
                Some(port) => Some(port),
                None => return,
            },
            Carrier::Tcp => None,
        };
        let (connect, mut holds) = match connection.take_command(slot) {
            Command::Connecting(connect, holds) => (*connect, holds),
            other => {
                *connection.command(slot) = other;
                return;
            }
        };
        let Connect { sqe, data_bytes } = connect;
        let resources = &mut self.resources;
        let Some(data) = holds.data_bytes(data_bytes) else {
            connection.release_receive(&mut holds);
            connection.free_slot_of(slot, holds);
            let why = format!("the {data_bytes} bytes of data of a Connect have not arrived");
            return resources.end(connection, why);
        };
        let now_us = resources.now_us;
        let request = request(connection, &sqe, &data);
        let memory = &resources.memory;
        let queue_shares = &mut resources.queue_shares;
        let mut settle = |share| {
            let settled = settle(
                port.as_deref_mut(),
                memory,
                connection,
                (queue_shares, share),
            );
            settled.map_err(|why| why.to_string())
        };
        let outcome = resources
            .control
            .with(|target| target.handle_connect(&request, &mut settle, now_us));
        let cqe = became(resources, connection, &sqe, outcome);
        if port.is_none() && !connection.has_place {
            // It is the page of its place, and what came in it is read.
            drop(holds.take_receive());
        }
        connection.release_receive(&mut holds);
        holds.own.release();
        if !connection.phase.is_unconnected() {
            self.unconnected.remove(connection.identity.id);
            let kept = match port {
                _ if !connection.has_place => Ok(()),
                Some(port) => discovery::keep_place(port, &resources.memory, connection),
                None => tcp::keep_place(&resources.memory, connection),
            };
            if let Err(why) = kept {
                return resources.end(connection, why.to_string());
            }
        }
        respond::complete(resources, connection, slot, holds, cqe, None);
    }
}

fn request<'a>(connection: &Connection, sqe: &'a Sqe, data: &'a [u8]) -> ConnectRequest<'a> {
    ConnectRequest {
        conn: connection.identity.id,
        port: connection.identity.listener,
        local: connection.identity.local,
        peer: connection.identity.peer,
        sizes: connection.identity.sizes,
        sqe,
        data,
    }
}

/// What a Connect has made of the connection; returns its response.
fn became(
    resources: &mut Resources,
    connection: &mut Connection,
    sqe: &Sqe,
    outcome: ConnectOutcome,
) -> Cqe {
    match outcome {
        ConnectOutcome::AdminQueue { cqe, association } => {
            connection.phase = Phase::Admin;
            tcp::connected(connection, sqe);
            connection.join(association, &mut resources.shares, &resources.memory);
            cqe
        }
        ConnectOutcome::IoQueue {
            cqe,
            queue,
            association,
        } => {
            connection.phase = Phase::Io;
            tcp::connected(connection, sqe);
            connection.queue = Some(*queue);
            connection.join(association, &mut resources.shares, &resources.memory);
            cqe
        }
        ConnectOutcome::Refused { cqe, why } => {
            let peer = connection.identity.peer;
            // Without the port, retries of one host make equal lines, which the log limits.
            let peer = match why.status().is_dnr() {
                true => peer.ip().to_string(),
                false => peer.to_string(),
            };
            tracing::warn!(target: PEER_CAUSED, %peer, "refused a Connect: {why}");
            connection.phase = Phase::refused(resources.now_us);
            cqe
        }
    }
}

/// Gives a connection what its queue needs, if that is within its share.
fn settle(
    port: Option<&mut DevicePort>,
    memory: &Memory,
    connection: &mut Connection,
    (queue_shares, share): (&mut QueueShares, Share),
) -> Result<(), Refusal> {
    let left = match &port {
        Some(port) => port.wire.receives().left(&memory.queues) as usize,
        None => tcp::left(memory),
    };
    let who = (share, connection.identity.peer.ip());
    let charge = queue_shares.take(who, connection.identity.sizes.entries, left)?;
    let furnished = match port {
        Some(port) => furnish(port, memory, connection),
        None => tcp::furnish(memory, connection),
    };
    match furnished {
        Ok(()) => {
            connection.charge = Some(charge);
            Ok(())
        }
        Err(refusal) => {
            queue_shares.give_back(charge);
            Err(refusal)
        }
    }
}

/// A receive for each entry, and memory for responses.
fn furnish(
    port: &mut DevicePort,
    memory: &Memory,
    connection: &mut Connection,
) -> Result<(), Refusal> {
    let entries = connection.identity.sizes.entries;
    let response_bytes = u32::from(slots_of(entries)) * CQE_BYTES;
    let own_bytes = response_bytes + SPARE_BYTES;
    let slots = port.reserve(entries, own_bytes, &memory.queues)?;
    let take = |bytes| memory.queues.take(bytes);
    let Some(buffers) = take(response_bytes).zip(take(SPARE_BYTES)) else {
        port.release(entries, slots);
        return Err(Refusal::Budget(format!(
            "no {response_bytes} and {SPARE_BYTES} contiguous bytes are free for responses and a \
             spare buffer"
        )));
    };
    // The receives of the place are as good as those of the queue, and one of them has the Connect.
    let slots = port.wire.receives().leave_place(slots);
    let posted = match connection.transport.rdma() {
        Some(queue) => queue.post_receives(&slots),
        None => Ok(()),
    };
    connection.receive_slots.extend(slots);
    connection.settle(port.keys(memory), buffers.into());
    posted.map_err(|error| Refusal::Budget(format!("posting a receive failed: {error}")))
}
