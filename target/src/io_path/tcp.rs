//! Connections over NVMe/TCP: how they are accepted, and what their queues get. From there on their
//! commands take the path of all others.

use std::net::SocketAddr;

use capstan_nvme_proto::command::FabricsCommand;
use capstan_nvme_proto::sqe::Sqe;
use capstan_subsystem::{QueueSizes, Transport};
use capstan_transport::manager::TcpRequest;
use capstan_transport::tcp::controller::{Connected, Settings};
use capstan_transport::{Memory, Queue};

use super::accept::{Checked, Refusal};
use super::connection::{Carrier, Connection, Identity};
use super::{IoPath, Resources};
use crate::control_plane::conn_id;
use crate::limits::{ADMIN_PIECE_BYTES, IN_CAPSULE_BYTES, SPARE_BYTES};

/// The sizes of a queue before its Connect says them.
pub(super) const UNANNOUNCED: QueueSizes = QueueSizes {
    transport: Transport::Tcp,
    qid: 0,
    entries: 1,
    host_receives: 1,
    cntlid: 0,
};

impl IoPath {
    /// Makes a connection's queue, which has a place among strangers.
    pub(super) fn try_accept_tcp(
        &mut self,
        request: TcpRequest,
        (local, peer): (SocketAddr, SocketAddr),
        checked: &Checked,
    ) -> Result<(), Refusal> {
        let strangers = &self.resources.memory.strangers;
        // For the data of its Connect.
        let page = strangers.take(ADMIN_PIECE_BYTES);
        let page = page.ok_or(Refusal::Strangers)?;
        self.conn_serial += 1;
        let identity = Identity {
            id: conn_id(self.reactor, self.conn_serial),
            index: self.connections.reserve(),
            carrier: Carrier::Tcp,
            listener: checked.port,
            local,
            peer,
            sizes: checked.sizes,
            known: checked.known,
        };
        let now_us = self.resources.now_us;
        let accepted = (self.tcp).accept(identity.queue_id(), request, Settings::default(), now_us);
        let mut queue = match accepted {
            Ok(queue) => queue,
            Err(error) => {
                self.connections.free.push(identity.index);
                return Err(Refusal::Socket(error));
            }
        };
        queue.with(|queue| queue.give(page));
        self.accepted(identity, Queue::Tcp(Box::new(queue)), Vec::new());
        tracing::debug!(%peer, provider = "tcp", "accepted");
        Ok(())
    }
}

/// What its Connect says of a connection, which no connection request has announced.
pub(super) fn announce(resources: &Resources, connection: &mut Connection, sqe: &Sqe) {
    if connection.transport.tcp().is_some() {
        connection.identity.sizes = resources
            .control
            .with(|target| target.sizes_of_connect(sqe));
    }
}

/// Its Connect is accepted: to be called before the response.
pub(super) fn connected(connection: &mut Connection, sqe: &Sqe) {
    let entries = connection.identity.sizes.entries;
    let Some(queue) = connection.transport.tcp() else {
        return;
    };
    let flow_control = match FabricsCommand::parse(sqe) {
        Ok(FabricsCommand::Connect(connect)) => !connect.cattr.disable_sq_flow_control(),
        _ => true,
    };
    queue.with(|queue| {
        queue.connected(Connected {
            entries,
            in_capsule_max_bytes: IN_CAPSULE_BYTES,
            flow_control,
        });
    });
}

/// A buffer for the in-capsule data of each entry, and a spare one.
pub(super) fn furnish(memory: &Memory, connection: &mut Connection) -> Result<(), Refusal> {
    let entries = connection.identity.sizes.entries;
    let needed_bytes = u32::from(entries) * IN_CAPSULE_BYTES + SPARE_BYTES;
    let free_bytes = memory.queues.free_bytes();
    let missing = || {
        Refusal::Budget(format!(
            "a queue of {entries} entries needs {needed_bytes} bytes for in-capsule data and a \
             spare buffer, {free_bytes} are left"
        ))
    };
    if needed_bytes as usize > free_bytes {
        return Err(missing());
    }
    let buffers = (0..entries).map(|_| memory.queues.take(IN_CAPSULE_BYTES));
    let buffers: Option<Vec<_>> = buffers.collect();
    let spare = memory.queues.take(SPARE_BYTES);
    let (buffers, spare) = buffers.zip(spare).ok_or_else(missing)?;
    connection.settle_tcp(buffers, spare);
    Ok(())
}

/// Makes a connection the queue of a discovery controller: what it returns goes through a page of
/// its place.
pub(super) fn keep_place(memory: &Memory, connection: &mut Connection) -> Result<(), Refusal> {
    let page = memory.strangers.take(ADMIN_PIECE_BYTES);
    connection.spare = Some(page.ok_or(Refusal::Strangers)?);
    let entries = usize::from(connection.identity.sizes.entries);
    connection.waiting.reserve(entries);
    Ok(())
}

/// How many receives' worth of memory there is for more queues.
pub(super) fn left(memory: &Memory) -> usize {
    memory.queues.free_bytes() / IN_CAPSULE_BYTES as usize
}
