//! Step 1: connection-manager events. A request is checked, given to the reactor whose turn it is,
//! and accepted there; an ended connection is wound down.

use std::net::SocketAddr;
use std::rc::Rc;

use capstan_nvme_proto::rdma_cm::{CmAccept, CmReject, RejectStatus};
use capstan_rdma::contract::{
    CmError, CmEvent, CmEventKind, CmId, ConnectParam, ConnectionManager, MigratedId, PrivateData,
    QpConfig, RdmaError,
};
use capstan_rdma::{PEER_CAUSED, Source};
use capstan_subsystem::{Association, CmRefusal, ConnId, PortId, QueueSizes};
use capstan_transport::rdma::{NoReceives, Queue};
use capstan_transport::tcp::End;
use zerocopy::IntoBytes;

use super::connection::{Carrier, Connection, Identity, OnDevice};
use super::fabric::{DevicePort, Memory, wire_of};
use super::phase::Phase;
use super::{IoPath, Listener, Resources};
use crate::control_plane::conn_id;
use crate::limits::{
    CQE_BYTES, INITIATOR_DEPTH_MAX, MAILBOX_BOUND, PLACE_RESPONSE_BYTES, REQUESTS_PER_TURN,
    SPARE_BYTES, send_wrs, slots as slots_of,
};

/// A checked connection request, on its way to the reactor that will own it.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) fabric: usize,
    pub(crate) port: PortId,
    pub(crate) sizes: QueueSizes,
    pub(crate) param: ConnectParam,
    pub(crate) local: SocketAddr,
    pub(crate) peer: SocketAddr,
    /// Its host has a controller, and connects another queue of it.
    pub(crate) known: bool,
}

impl From<NoReceives> for Refusal {
    fn from(why: NoReceives) -> Self {
        match why {
            NoReceives::Memory(why) => Self::Budget(why),
            NoReceives::Device(why) => Self::Device(why),
            NoReceives::Rdma(error) => Self::Rdma(error),
        }
    }
}

/// Why a request is refused: what the host is told, and what the log says.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    #[error(transparent)]
    Request(#[from] CmRefusal),
    #[error(
        "no resources: {0}; raise memory_budget in the configuration or connect fewer or smaller \
         queues"
    )]
    Budget(String),
    #[error("no resources: {0}; connect fewer or smaller queues, or use another device")]
    Device(String),
    #[error(
        "no resources: any host may connect, and those of {address} have receives for {has} commands and leave {left} on \
         this reactor; an address may have three times as many as it leaves: list the host in allowed_hosts, raise \
         memory_budget in the configuration, or connect fewer or smaller queues"
    )]
    Share {
        address: Source,
        has: usize,
        left: usize,
    },
    #[error(
        "no resources: receives for {reserve} commands are kept for listed hosts on this reactor, and too few of the \
         others are left for a queue of {entries} entries; list the host in allowed_hosts, raise memory_budget in the \
         configuration, or connect fewer or smaller queues"
    )]
    Reserved { entries: u16, reserve: usize },
    #[error("no resources: too many connections are no queue yet; try again")]
    Strangers,
    #[error("no resources: {0}")]
    Rdma(#[from] RdmaError),
    #[error("the connection manager refused: {0}")]
    Cm(#[from] CmError),
    #[error(
        "the host connects by NVMe/RDMA, and the listener speaks NVMe/TCP only; look at transports of its listener"
    )]
    TcpOnly,
    #[error("its socket cannot be used: {0}")]
    Socket(std::io::Error),
    #[error("the target is shutting down")]
    Draining,
    #[error(
        "reactor {reactor} takes no connections: {MAILBOX_BOUND} messages wait for it, or it has ended; look at the kernel \
         log for a hung device"
    )]
    Stuck { reactor: usize },
}

impl Refusal {
    fn status(&self) -> RejectStatus {
        match self {
            Self::Request(refusal) => refusal.reject_status(),
            Self::Budget(_)
            | Self::Device(_)
            | Self::Share { .. }
            | Self::Reserved { .. }
            | Self::Strangers
            | Self::Rdma(_)
            | Self::Cm(_)
            | Self::Draining
            | Self::TcpOnly
            | Self::Socket(_)
            | Self::Stuck { .. } => RejectStatus::NO_RESOURCES,
        }
    }
}

impl IoPath {
    /// Handles every connection-manager event there is, up to so many requests. Whether there was
    /// one.
    pub(super) fn poll_connection_managers(&mut self) -> bool {
        let (mut progress, mut requests) = (false, 0);
        for fabric in 0..self.fabrics.len() {
            while requests < REQUESTS_PER_TURN
                && let Some(event) = self.fabrics[fabric].cm.poll(self.resources.now_us)
            {
                progress = true;
                requests += usize::from(matches!(event.kind, CmEventKind::ConnectRequest { .. }));
                self.on_cm_event(fabric, event);
            }
        }
        progress | self.take_tcp_connections()
    }

    fn on_cm_event(&mut self, fabric: usize, CmEvent { id, kind }: CmEvent) {
        match kind {
            CmEventKind::ConnectRequest { listener, param } => {
                self.on_connect_request(fabric, listener, id, &param);
            }
            CmEventKind::Established { .. } => self.on_established(fabric, id),
            CmEventKind::Resolved => {}
            CmEventKind::Failed(error) => self.on_ended(fabric, id, &error.to_string()),
            CmEventKind::Rejected { .. } => self.on_ended(fabric, id, "the peer rejected"),
            CmEventKind::Disconnected { cause } => self.on_ended(fabric, id, &cause),
            CmEventKind::DeviceRemoved => self.on_removed(fabric, id),
        }
    }

    /// The time for its Connect begins.
    fn on_established(&mut self, fabric: usize, id: CmId) {
        let index = self.cm_index.get(&(fabric, id)).copied();
        let connection = index.and_then(|index| self.connections.get_mut(index));
        if let Some(connection) = connection
            && matches!(connection.phase, Phase::AwaitingConnect { .. })
        {
            connection.phase = Phase::accepted(self.resources.now_us, connection.identity.known);
        }
    }

    fn on_connect_request(
        &mut self,
        fabric: usize,
        listener: CmId,
        id: CmId,
        param: &ConnectParam,
    ) {
        let Some(&Listener { port, rdma }) = self.listeners.get(&(fabric, listener)) else {
            return;
        };
        let unknown = SocketAddr::from(([0, 0, 0, 0], 0));
        let addresses = self.fabrics[fabric].cm.addresses(id);
        let (local, peer) = addresses.unwrap_or((unknown, unknown));
        if !rdma {
            return self.refuse(fabric, id, peer, &Refusal::TcpOnly);
        }
        let (sizes, known) = match self.check_request(port, param, peer) {
            Ok(checked) => checked,
            Err(refusal) => return self.refuse(fabric, id, peer, &refusal),
        };
        let request = Request {
            fabric,
            port,
            sizes,
            param: *param,
            local,
            peer,
            known,
        };
        let reactor = self.control.next_reactor(request.sizes.qid);
        if reactor == self.reactor {
            self.accept(id, &request);
            return;
        }
        match self.fabrics[fabric].cm.migrate(id) {
            Ok(migrated) => {
                let offered = self.control.offer(reactor, migrated, Box::new(request));
                if let Err((migrated, request)) = offered {
                    self.take_back(migrated, &request, reactor);
                }
            }
            Err(error) => self.refuse(fabric, id, peer, &error.into()),
        }
    }

    /// What is asked for, and whether the host has a controller already.
    fn check_request(
        &self,
        port: PortId,
        param: &ConnectParam,
        peer: SocketAddr,
    ) -> Result<(QueueSizes, bool), Refusal> {
        if self.drain_deadline_us.is_some() {
            return Err(Refusal::Draining);
        }
        let private_data = param.private_data.as_bytes();
        self.control.with(|target| {
            let sizes = target.handle_cm_request(port, private_data)?;
            let known = sizes.qid != 0 && target.has_host_at(peer.ip());
            Ok((sizes, known))
        })
    }

    /// Takes over a connection request that arrived at another reactor's listener.
    pub(super) fn adopt(&mut self, migrated: MigratedId, request: &Request) {
        match self.fabrics[request.fabric].cm.adopt(migrated) {
            Ok(id) => self.accept(id, request),
            Err(error) => {
                tracing::warn!(
                    target: PEER_CAUSED,
                    peer = %request.peer,
                    %error,
                    "connection lost before accept"
                );
            }
        }
    }

    /// Refuses a request that the reactor whose turn it is does not take.
    fn take_back(&mut self, migrated: MigratedId, request: &Request, reactor: usize) {
        match self.fabrics[request.fabric].cm.adopt(migrated) {
            Ok(id) => {
                let refusal = Refusal::Stuck { reactor };
                self.refuse(request.fabric, id, request.peer, &refusal);
            }
            Err(error) => {
                tracing::debug!(peer = %request.peer, %error, "connection lost before it was refused");
            }
        }
    }

    /// Makes the queue pair, posts receives and accepts.
    fn accept(&mut self, cm_id: CmId, request: &Request) {
        if let Err(refusal) = self.try_accept(cm_id, request) {
            self.refuse(request.fabric, cm_id, request.peer, &refusal);
        }
    }

    /// Ends the oldest unconnected connection of the source that has most of them, except one whose
    /// Connect has arrived and waits to be read.
    pub(super) fn make_room(&mut self, peer: SocketAddr, known: bool) {
        let (index_of, connections) = (&self.index_of, &mut self.connections);
        let goes = self.unconnected.displaced_by(peer, known, |conn| {
            let connection = index_of.get(&conn).and_then(|&at| connections.get_mut(at));
            connection.is_some_and(|connection| connection.transport.has_arrivals())
        });
        let Some(conn) = goes else {
            return;
        };
        self.unconnected.fail(conn);
        if let Some(&index) = self.index_of.get(&conn) {
            let why = "it made room for another one: too many connections are no queue yet, and most of them, and of those \
                       that became none, from its address";
            self.begin_close(index, why);
        }
    }

    fn try_accept(&mut self, cm_id: CmId, request: &Request) -> Result<(), Refusal> {
        self.make_room(request.peer, request.known);
        let memory = &self.resources.memory;
        let fabric = &mut self.fabrics[request.fabric];
        let device = fabric
            .cm
            .device(cm_id)
            .ok_or(RdmaError::Invalid("the request is gone"))?;
        let port_index = fabric.port_of(&device, memory)?;
        let port = fabric.ports[port_index]
            .as_mut()
            .ok_or(RdmaError::Invalid("the RDMA device is gone"))?;
        let entries = request.sizes.entries;
        let response_bytes = u32::from(slots_of(entries)) * CQE_BYTES;
        port.check_room(entries, response_bytes + SPARE_BYTES, &memory.queues)?;
        let slots = port.wire.receives().take_place();
        let slots = slots.ok_or(Refusal::Strangers)?;
        let established = establish(&mut *fabric.cm, port, memory, cm_id, request, &slots);
        let queue = match established {
            Ok(queue) => queue,
            Err(refusal) => {
                port.wire.receives().give_back_place(slots);
                return Err(refusal);
            }
        };
        self.conn_serial += 1;
        let identity = Identity {
            id: conn_id(self.reactor, self.conn_serial),
            index: self.connections.reserve(),
            carrier: Carrier::Rdma(OnDevice {
                fabric: request.fabric,
                port: port_index,
                cm_id,
            }),
            listener: request.port,
            local: request.local,
            peer: request.peer,
            sizes: request.sizes,
            known: request.known,
        };
        let provider = fabric.name;
        port.wire.add(identity.queue_id(), &queue);
        self.index_of.insert(identity.id, identity.index);
        self.cm_index
            .insert((request.fabric, cm_id), identity.index);
        let now_us = self.resources.now_us;
        let queue = capstan_transport::Queue::Rdma(queue);
        let connection = Connection::new(identity, queue, slots, now_us);
        let deadline_us = connection.phase.deadline_us().unwrap_or(now_us);
        self.connections.put(connection);
        let Request { peer, known, .. } = *request;
        self.unconnected.add(identity.id, peer, known, deadline_us);
        tracing::debug!(peer = %request.peer, provider, qid = request.sizes.qid, entries, "accepted");
        Ok(())
    }

    fn refuse(&mut self, fabric: usize, id: CmId, peer: SocketAddr, refusal: &Refusal) {
        let status = refusal.status();
        tracing::warn!(target: PEER_CAUSED, %peer, %status, "refused a connection: {refusal}");
        let reject = CmReject { status }.encode();
        let private_data = PrivateData::new(reject.as_bytes()).unwrap_or(PrivateData::EMPTY);
        self.fabrics[fabric].cm.reject(id, &private_data);
    }

    fn on_removed(&mut self, fabric: usize, id: CmId) {
        if self.listeners.contains_key(&(fabric, id)) {
            let provider = self.fabrics[fabric].name;
            return tracing::warn!(
                provider,
                "the RDMA device of a listener was removed; listening again when it returns"
            );
        }
        self.on_ended(fabric, id, "the RDMA device was removed");
    }

    /// The transport says that a connection is over: nothing new starts on it, and it is freed
    /// when the devices and the storage engine have given everything back.
    fn on_ended(&mut self, fabric: usize, id: CmId, cause: &str) {
        let Some(index) = self.cm_index.remove(&(fabric, id)) else {
            self.fabrics[fabric].cm.destroy(id);
            return;
        };
        self.begin_close(index, cause);
    }

    /// Starts to wind a connection down.
    pub(super) fn begin_close(&mut self, index: usize, cause: &str) {
        self.close(index, cause, false);
    }

    /// The same; one that `gives_up` aborts it: nothing lingers, and nothing more of it is sent.
    pub(super) fn close(&mut self, index: usize, cause: &str, gives_up: bool) {
        let Some(connection) = self.connections.get_mut(index) else {
            return;
        };
        if connection.closing() {
            return;
        }
        if connection.phase.is_unconnected() {
            self.unconnected.fail(connection.identity.id);
        }
        let is_queue = connection.association.is_some();
        let (peer, qid) = (connection.identity.peer, connection.identity.sizes.qid);
        match &connection.association {
            Some(association) => {
                let Association {
                    hostnqn,
                    subnqn,
                    cntlid,
                    ..
                } = &**association;
                let (hostnqn, subnqn) = (hostnqn.to_string(), subnqn.as_str());
                tracing::info!(
                    target: PEER_CAUSED,
                    %peer, hostnqn, subnqn, cntlid, qid,
                    "disconnected: {cause}"
                );
            }
            None => tracing::info!(target: PEER_CAUSED, %peer, qid, "disconnected: {cause}"),
        }
        let Identity { id, carrier, .. } = connection.identity;
        connection.phase = Phase::closing(self.resources.now_us, carrier);
        let lingers = connection.disk_outstanding > 0;
        // What waits for a buffer has not started and never will.
        connection.waiting.clear();
        let name = connection.queue_id();
        let how = if gives_up { End::Now } else { End::Drained };
        if let Some(mut wire) = wire_of(&mut self.fabrics, &mut self.tcp, carrier) {
            wire.end(name, &mut connection.transport, how);
        }
        self.closing.push(index);
        match carrier {
            Carrier::Rdma(on) if gives_up => self.fabrics[on.fabric].cm.abort(on.cm_id),
            Carrier::Rdma(on) => self.fabrics[on.fabric].cm.disconnect(on.cm_id),
            Carrier::Tcp => {
                if let Some(oldest) = self.closing_sockets.add(id) {
                    self.close_socket(oldest);
                }
            }
        }
        let now_us = self.resources.now_us;
        if lingers {
            self.control.disconnecting(id, now_us);
        } else if is_queue {
            self.control.disconnected(id, now_us);
        }
    }

    /// Closes the socket of a connection that is ending, whatever its host has not read.
    fn close_socket(&mut self, conn: ConnId) {
        let index = self.index_of.get(&conn).copied();
        let connection = index.and_then(|index| self.connections.get_mut(index));
        if let Some(queue) = connection.and_then(|connection| connection.transport.tcp()) {
            queue.close();
        }
    }

    /// Ends connections that are no queue yet and whose host has had its time.
    pub(super) fn end_overdue(&mut self) {
        let now_us = self.resources.now_us;
        let due = self.unconnected.due(now_us);
        if due.is_empty() {
            return;
        }
        let mut earliest_us = None;
        for conn in due {
            let index = self.index_of.get(&conn).copied();
            let connection = index.and_then(|index| self.connections.get_mut(index));
            let Some(connection) = connection else {
                self.unconnected.remove(conn);
                continue;
            };
            let (index, phase) = (connection.identity.index, connection.phase);
            match phase.overdue(now_us) {
                Some(why) => self.begin_close(index, why),
                None => {
                    let deadline_us = phase.deadline_us();
                    earliest_us = earliest_us.into_iter().chain(deadline_us).min();
                }
            }
        }
        self.unconnected.looked(earliest_us);
    }

    /// Frees closing connections that have nothing outstanding any more.
    pub(super) fn reap(&mut self) {
        let mut at = 0;
        while let Some(&index) = self.closing.get(at) {
            let now_us = self.resources.now_us;
            if self
                .connections
                .get_mut(index)
                .is_some_and(|c| !c.may_be_freed(now_us))
            {
                at += 1;
                continue;
            }
            self.closing.swap_remove(at);
            if let Some(connection) = self.connections.take(index) {
                self.free(connection);
            }
        }
        for fabric in &mut self.fabrics {
            fabric.drop_removed_ports();
        }
    }

    fn free(&mut self, mut connection: Box<Connection>) {
        let (name, carrier) = (connection.queue_id(), connection.identity.carrier);
        if let Some(mut wire) = wire_of(&mut self.fabrics, &mut self.tcp, carrier) {
            wire.remove(name, &connection.transport);
        }
        match carrier {
            Carrier::Rdma(on) => self.leave_device(&mut connection, on),
            Carrier::Tcp => self.closing_sockets.remove(connection.identity.id),
        }
        self.index_of.remove(&connection.identity.id);
        self.fences.forget(connection.identity.id);
        let Resources {
            shares,
            queue_shares,
            memory,
            ..
        } = &mut self.resources;
        connection.leave(shares, memory);
        if let Some(charge) = connection.charge.take() {
            queue_shares.give_back(charge);
        }
        // The queue pair must be gone before its id.
        drop(connection);
        if let Carrier::Rdma(on) = carrier {
            self.cm_index.remove(&(on.fabric, on.cm_id));
            self.fabrics[on.fabric].cm.destroy(on.cm_id);
        }
    }

    /// Gives back what a connection has of its device.
    fn leave_device(&mut self, connection: &mut Connection, on: OnDevice) {
        let Some(port) = self.fabrics[on.fabric].port(on.port) else {
            return;
        };
        for (slot, buffer) in connection.parked_receives() {
            connection.transport.post_again(slot, buffer);
        }
        let slots = std::mem::take(&mut connection.receive_slots);
        if connection.has_place {
            port.leave_place(slots, connection.completions_beside_place);
        } else {
            port.release(connection.identity.sizes.entries, slots);
        }
    }
}

/// Makes the queue of a request, posts the receives of its place (`slots`) and accepts.
fn establish(
    cm: &mut dyn ConnectionManager,
    port: &DevicePort,
    memory: &Memory,
    cm_id: CmId,
    request: &Request,
    slots: &[u32],
) -> Result<Queue, Refusal> {
    let entries = request.sizes.entries;
    let response = memory.strangers.take(PLACE_RESPONSE_BYTES);
    let response = response.ok_or(Refusal::Strangers)?;
    let attributes = port.device.attributes();
    let config = QpConfig {
        send_cq: Rc::clone(port.wire.cq()),
        recv_cq: Rc::clone(port.wire.cq()),
        send_wr_max: send_wrs(entries),
        receives: port.wire.receives().source(entries),
        send_sge_max: 1,
        recv_sge_max: 2,
    };
    let initiator_depth = INITIATOR_DEPTH_MAX
        .min(attributes.initiator_depth_max)
        .min(request.param.responder_resources);
    let qp = cm.create_qp(cm_id, &port.pd, &config)?;
    let receives = port.wire.shared_receives();
    let mut queue = Queue::new(qp.into(), response, port.place_keys(memory), receives);
    queue
        .post_receives(slots)
        .map_err(|error| Refusal::Budget(format!("posting a receive failed: {error}")))?;
    let accept = ConnectParam {
        private_data: PrivateData::new(CmAccept { crqsize: entries }.encode().as_bytes())
            .unwrap_or(PrivateData::EMPTY),
        // A host sends only capsules; it never reads the target's memory.
        responder_resources: 0,
        initiator_depth,
        rnr_retry_count: 7,
    };
    cm.accept(cm_id, &accept)?;
    queue.accepted();
    Ok(queue)
}
