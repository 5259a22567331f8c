//! From a connection to a queue: a Connect whose data is there. Until then a connection has a place
//! among strangers; what a queue needs is taken once its host is known to be permitted, before the
//! response is sent.

use capstan_nvme_proto::command::FabricsCommand;
use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::fabrics::ConnectData;
use capstan_nvme_proto::sqe::Sqe;
use capstan_nvme_proto::tcp::setup::Digests;
use capstan_rdma::PEER_CAUSED;
use capstan_subsystem::{ConnectOutcome, ConnectRequest, Share};
use capstan_transport::{Memory, Queue};

use super::accept::Refusal;
use super::admin::Connect;
use super::command::Command;
use super::connection::Connection;
use super::phase::Phase;
use super::queue_shares::QueueShares;
use super::{IoPath, Resources, respond};

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
            let settled = settle(memory, connection, (queue_shares, share));
            settled.map_err(|why| why.to_string())
        };
        let outcome = resources
            .control
            .with(|target| target.handle_connect(&request, &mut settle, now_us));
        let cqe = became(resources, connection, (&sqe, &data), outcome);
        if let Some((receive, data)) = holds.take_receive() {
            connection.transport.give_back_connect_data(receive, data);
        }
        holds.own.release();
        if !connection.phase.is_unconnected() {
            self.unconnected.remove(connection.identity.id);
            if connection.transport.has_place()
                && let Err(why) = keep_place(&resources.memory, connection)
            {
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
        over: over(connection.identity.carrier, &connection.transport),
        sqe,
        data,
    }
}

/// What a connection goes by, in words, for the log: its transport, with the provider of NVMe/RDMA
/// or the digests of NVMe/TCP.
fn over(carrier: &str, transport: &Queue) -> &'static str {
    let digests = transport.digests();
    let has = |digest| digests.contains(digest);
    match (carrier, has(Digests::HEADER), has(Digests::DATA)) {
        ("tcp", false, false) => "NVMe/TCP",
        ("tcp", true, false) => "NVMe/TCP, header digests",
        ("tcp", false, true) => "NVMe/TCP, data digests",
        ("tcp", true, true) => "NVMe/TCP, header and data digests",
        ("iwarp", ..) if transport.shares_memory() => "NVMe/RDMA (iwarp, shared memory)",
        ("iwarp", ..) => "NVMe/RDMA (iwarp)",
        ("verbs", ..) => "NVMe/RDMA (verbs)",
        _ => "NVMe/RDMA",
    }
}

/// What a Connect has made of the connection; returns its response.
fn became(
    resources: &mut Resources,
    connection: &mut Connection,
    (sqe, data): (&Sqe, &[u8]),
    outcome: ConnectOutcome,
) -> Cqe {
    match outcome {
        ConnectOutcome::AdminQueue { cqe, association } => {
            connection.phase = Phase::Admin;
            connected(connection, sqe);
            connection.join(association, &mut resources.shares, &resources.memory);
            cqe
        }
        ConnectOutcome::IoQueue {
            cqe,
            queue,
            association,
        } => {
            connection.phase = Phase::Io;
            connected(connection, sqe);
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
            let named = ConnectData::from_data(data)
                .and_then(ConnectData::parse)
                .ok();
            tracing::warn!(
                target: PEER_CAUSED,
                %peer,
                hostnqn = named.as_ref().map(|named| named.hostnqn.to_string()),
                subnqn = named.as_ref().map(|named| named.subnqn.to_string()),
                reason = why.word(),
                "refused a Connect: {why}"
            );
            connection.phase = Phase::refused(resources.now_us);
            cqe
        }
    }
}

/// What its Connect says of a connection, where no connection request has announced it.
pub(super) fn announce(resources: &Resources, connection: &mut Connection, sqe: &Sqe) {
    if !connection.transport.is_announced() {
        connection.identity.sizes = resources
            .control
            .with(|target| target.sizes_of_connect(sqe));
    }
}

/// Its Connect is accepted: to be called before the response.
fn connected(connection: &mut Connection, sqe: &Sqe) {
    let flow_control = match FabricsCommand::parse(sqe) {
        Ok(FabricsCommand::Connect(connect)) => !connect.cattr.disable_sq_flow_control(),
        _ => true,
    };
    let entries = connection.identity.sizes.entries;
    connection.transport.connected(entries, flow_control);
}

/// Gives a connection what its queue needs, if that is within its share.
fn settle(
    memory: &Memory,
    connection: &mut Connection,
    (queue_shares, share): (&mut QueueShares, Share),
) -> Result<(), Refusal> {
    let left = connection.transport.receives_left(&memory.queues);
    let who = (share, connection.identity.peer.ip());
    let entries = connection.identity.sizes.entries;
    let charge = queue_shares.take(who, entries, left)?;
    match connection.transport.furnish(entries, memory) {
        Ok(spare) => {
            connection.settle(spare);
            connection.charge = Some(charge);
            Ok(())
        }
        Err(why) => {
            queue_shares.give_back(charge);
            Err(why.into())
        }
    }
}

/// Makes a connection the Admin queue of a discovery controller.
fn keep_place(memory: &Memory, connection: &mut Connection) -> Result<(), Refusal> {
    let entries = connection.identity.sizes.entries;
    let page = connection.transport.keep_place(entries, memory)?;
    connection.settle(page);
    Ok(())
}
