//! Step 1: connections, as they come and end. A request is checked, given to the reactor whose turn
//! it is, and accepted there; an ended connection is wound down.

use std::net::SocketAddr;

use capstan_nvme_proto::rdma_cm::RejectStatus;
use capstan_rdma::contract::{CmError, RdmaError};
use capstan_rdma::{PEER_CAUSED, Source};
use capstan_subsystem::{Association, CmRefusal, ConnId, PortId, QueueSizes};
use capstan_transport::manager::{
    AcceptError, Acceptance, ConnectionId, Happened, Manager, Migrating, Over, RdmaRequest, Request,
};
use capstan_transport::rdma::DevicePort;
use capstan_transport::tcp::End;
use capstan_transport::{Memory, NoResources, Queue, limits, rdma};

use super::connection::{Carrier, Connection, Identity, OnDevice};
use super::phase::Phase;
use super::{IoPath, Listener, Resources, tcp};
use crate::control_plane::conn_id;
use crate::limits::{MAILBOX_BOUND, REQUESTS_PER_TURN, SPARE_BYTES, slots as slots_of};

/// A checked connection request, on its way to the reactor that will own it.
#[derive(Debug)]
pub(crate) struct Offered {
    pub(crate) checked: Checked,
    pub(crate) request: Migrating,
}

/// What is known of a connection request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Checked {
    pub(crate) fabric: usize,
    pub(crate) port: PortId,
    pub(crate) sizes: QueueSizes,
    /// Its host has a controller, and connects another queue of it.
    pub(crate) known: bool,
}

impl From<AcceptError> for Refusal {
    fn from(why: AcceptError) -> Self {
        match why {
            AcceptError::Rdma(error) => Self::Rdma(error),
            AcceptError::Receive(_) => Self::Budget(why.to_string()),
            AcceptError::Cm(error) => Self::Cm(error),
        }
    }
}

impl From<NoResources> for Refusal {
    fn from(why: NoResources) -> Self {
        match why {
            NoResources::Memory(why) => Self::Budget(why),
            NoResources::Device(why) => Self::Device(why),
            NoResources::Places => Self::Strangers,
            NoResources::Rdma(error) => Self::Rdma(error),
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
        "the host connects by NVMe/RDMA, and the listener at {0} speaks NVMe/TCP only; look at its transports"
    )]
    TcpOnly(SocketAddr),
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
            // NVMe/RDMA Transport 1.1, section 3.1: no format of a request is taken here. There is
            // only format 0, so that a host cannot take this for another reason.
            Self::TcpOnly(_) => RejectStatus::INVALID_RECFMT,
            Self::Budget(_)
            | Self::Device(_)
            | Self::Share { .. }
            | Self::Reserved { .. }
            | Self::Strangers
            | Self::Rdma(_)
            | Self::Cm(_)
            | Self::Draining
            | Self::Socket(_)
            | Self::Stuck { .. } => RejectStatus::NO_RESOURCES,
        }
    }
}

impl IoPath {
    /// Handles what has happened to connections, up to so many requests. Whether there was
    /// anything.
    pub(super) fn poll_connection_managers(&mut self) -> bool {
        let (mut progress, mut requests) = (false, 0);
        for fabric in 0..self.fabrics.len() {
            while requests < 2 * REQUESTS_PER_TURN
                && let Some(happened) = self.fabrics[fabric].manager.poll(self.resources.now_us)
            {
                progress = true;
                match happened {
                    Happened::Request(request) => {
                        requests += 1;
                        self.on_request(fabric, request);
                    }
                    Happened::Established(id) => self.on_established(fabric, id),
                    Happened::Ended(id, why) => self.on_ended(fabric, id, &why),
                    Happened::ListenerLost => {
                        let provider = self.fabrics[fabric].name;
                        tracing::warn!(
                            provider,
                            "the RDMA device of a listener was removed; listening again when it returns"
                        );
                    }
                }
            }
        }
        progress
    }

    /// The time for its Connect begins.
    fn on_established(&mut self, fabric: usize, id: ConnectionId) {
        let index = self.cm_index.get(&(fabric, id)).copied();
        let connection = index.and_then(|index| self.connections.get_mut(index));
        if let Some(connection) = connection
            && matches!(connection.phase, Phase::AwaitingConnect { .. })
        {
            connection.phase = Phase::accepted(self.resources.now_us, connection.identity.known);
        }
    }

    /// Gives a request to the reactor whose turn it is.
    fn on_request(&mut self, fabric: usize, request: Request) {
        let Some(&listener) = self.listeners.get(&(fabric, request.listener)) else {
            return;
        };
        let checked = match self.check_request(fabric, listener, &request) {
            Ok(checked) => checked,
            Err(refusal) => return self.refuse(fabric, request, &refusal),
        };
        let turn = match request.over {
            Over::Rdma(_) => checked.sizes.qid,
            // Which queue it will be is known when its Connect comes.
            Over::Tcp(_) => 1,
        };
        let reactor = self.control.next_reactor(turn);
        if reactor == self.reactor {
            return self.accept(request, &checked);
        }
        match self.fabrics[fabric].manager.give_away(request) {
            Ok(request) => {
                let offered = Box::new(Offered { checked, request });
                if let Err(offered) = self.control.offer(reactor, offered) {
                    self.take_back(*offered, reactor);
                }
            }
            Err(refused) => {
                let (request, error) = *refused;
                self.refuse(fabric, request, &error.into());
            }
        }
    }

    /// What is asked for, and whether the host has a controller already.
    fn check_request(
        &self,
        fabric: usize,
        Listener { port, rdma }: Listener,
        request: &Request,
    ) -> Result<Checked, Refusal> {
        let peer = request.peer.ip();
        let (sizes, known) = match &request.over {
            Over::Rdma(_) if !rdma => return Err(Refusal::TcpOnly(request.local)),
            Over::Rdma(_) | Over::Tcp(_) if self.drain_deadline_us.is_some() => {
                return Err(Refusal::Draining);
            }
            Over::Rdma(request) => self.control.with(|target| {
                let sizes = target.handle_cm_request(port, request.private_data())?;
                let known = sizes.qid != 0 && target.has_host_at(peer);
                Ok::<_, CmRefusal>((sizes, known))
            })?,
            Over::Tcp(_) => {
                let known = self.control.with(|target| target.has_host_at(peer));
                (tcp::UNANNOUNCED, known)
            }
        };
        Ok(Checked {
            fabric,
            port,
            sizes,
            known,
        })
    }

    /// Takes over a connection request that arrived at another reactor's listener.
    pub(super) fn adopt(&mut self, offered: Offered) {
        let Offered { checked, request } = offered;
        let peer = request.peer;
        match self.fabrics[checked.fabric].manager.take_over(request) {
            Ok(request) => self.accept(request, &checked),
            Err(error) => {
                tracing::warn!(
                    target: PEER_CAUSED,
                    %peer,
                    %error,
                    "connection lost before accept"
                );
            }
        }
    }

    /// Refuses a request that the reactor whose turn it is does not take.
    fn take_back(&mut self, offered: Offered, reactor: usize) {
        let Offered { checked, request } = offered;
        let (fabric, peer) = (checked.fabric, request.peer);
        match self.fabrics[fabric].manager.take_over(request) {
            Ok(request) => self.refuse(fabric, request, &Refusal::Stuck { reactor }),
            Err(error) => {
                tracing::debug!(%peer, %error, "connection lost before it was refused");
            }
        }
    }

    /// Makes the queue of a request, which has a place among strangers, and accepts.
    fn accept(&mut self, request: Request, checked: &Checked) {
        if self.drain_deadline_us.is_some() {
            return self.refuse(checked.fabric, request, &Refusal::Draining);
        }
        self.make_room(request.peer, checked.known);
        let accepted = match request.over {
            Over::Rdma(over) => {
                let accepted = self.try_accept(&over, (request.local, request.peer), checked);
                if let Err(refusal) = accepted {
                    let over = Over::Rdma(over);
                    self.refuse(checked.fabric, Request { over, ..request }, &refusal);
                }
                return;
            }
            Over::Tcp(over) => self.try_accept_tcp(over, (request.local, request.peer), checked),
        };
        if let Err(refusal) = accepted {
            let peer = request.peer;
            tracing::warn!(target: PEER_CAUSED, %peer, "refused a connection: {refusal}");
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

    fn try_accept(
        &mut self,
        request: &RdmaRequest,
        (local, peer): (SocketAddr, SocketAddr),
        checked: &Checked,
    ) -> Result<(), Refusal> {
        let memory = &self.resources.memory;
        let fabric = &mut self.fabrics[checked.fabric];
        let device = fabric
            .manager
            .device(request)
            .ok_or(RdmaError::Invalid("the request is gone"))?;
        let port_index = fabric.port_of(&device, memory)?;
        let port = fabric.ports[port_index]
            .as_mut()
            .ok_or(RdmaError::Invalid("the RDMA device is gone"))?;
        let entries = checked.sizes.entries;
        let response_bytes = u32::from(slots_of(entries)) * limits::CQE_BYTES;
        port.check_room(entries, response_bytes + SPARE_BYTES, &memory.queues)?;
        let slots = port.wire.receives().take_place();
        let slots = slots.ok_or(Refusal::Strangers)?;
        let mut queue = match establish(
            &mut fabric.manager,
            port,
            memory,
            request,
            (entries, &slots),
        ) {
            Ok(queue) => queue,
            Err(refusal) => {
                port.wire.receives().give_back_place(slots);
                return Err(refusal);
            }
        };
        let id = request.id();
        self.conn_serial += 1;
        let identity = Identity {
            id: conn_id(self.reactor, self.conn_serial),
            index: self.connections.reserve(),
            carrier: Carrier::Rdma(OnDevice {
                fabric: checked.fabric,
                port: port_index,
                id,
            }),
            listener: checked.port,
            local,
            peer,
            sizes: checked.sizes,
            known: checked.known,
        };
        port.wire.add(identity.queue_id(), &mut queue);
        self.cm_index.insert((checked.fabric, id), identity.index);
        let (provider, qid) = (fabric.name, checked.sizes.qid);
        self.accepted(identity, Queue::Rdma(queue), slots);
        tracing::debug!(%peer, provider, qid, entries, "accepted");
        Ok(())
    }

    /// A connection is there, with its place among strangers.
    pub(super) fn accepted(&mut self, identity: Identity, queue: Queue, slots: Vec<u32>) {
        let now_us = self.resources.now_us;
        self.index_of.insert(identity.id, identity.index);
        let connection = Connection::new(identity, queue, slots, now_us);
        let deadline_us = connection.phase.deadline_us().unwrap_or(now_us);
        self.connections.put(connection);
        let Identity {
            id, peer, known, ..
        } = identity;
        self.unconnected.add(id, peer, known, deadline_us);
    }

    fn refuse(&mut self, fabric: usize, request: Request, refusal: &Refusal) {
        let (peer, status) = (request.peer, refusal.status());
        match request.over {
            Over::Rdma(_) => {
                tracing::warn!(target: PEER_CAUSED, %peer, %status, "refused a connection: {refusal}");
            }
            // Nothing is told there.
            Over::Tcp(_) => {
                tracing::warn!(target: PEER_CAUSED, %peer, "refused a connection: {refusal}");
            }
        }
        self.fabrics[fabric].manager.refuse(request, status);
    }

    /// The transport says that a connection is over: nothing new starts on it, and it is freed
    /// when the devices and the storage engine have given everything back.
    fn on_ended(&mut self, fabric: usize, id: ConnectionId, cause: &str) {
        let Some(index) = self.cm_index.remove(&(fabric, id)) else {
            self.fabrics[fabric].manager.forget(id);
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
        let how = if gives_up { End::Now } else { End::Drained };
        connection.transport.end(how);
        self.closing.push(index);
        match carrier {
            Carrier::Rdma(on) => self.fabrics[on.fabric].manager.end(on.id, gives_up),
            Carrier::Tcp => {
                if let Some(oldest) = self.closing_sockets.add(id) {
                    self.close_socket(oldest);
                }
            }
        }
        // Fences that wait for it end here or with its last storage operation, and not with
        // `Event::Quiesced`: `fence` says why that is late enough.
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
        let carrier = connection.identity.carrier;
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
            self.cm_index.remove(&(on.fabric, on.id));
            self.fabrics[on.fabric].manager.forget(on.id);
        }
    }

    /// Gives back what a connection has of its device.
    fn leave_device(&mut self, connection: &mut Connection, on: OnDevice) {
        let Some(port) = self.fabrics[on.fabric].port(on.port) else {
            return;
        };
        for (receive, buffer) in connection.parked_receives() {
            connection.transport.post_again(receive, buffer);
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
    manager: &mut Manager,
    port: &DevicePort,
    memory: &Memory,
    request: &RdmaRequest,
    (entries, slots): (u16, &[u32]),
) -> Result<rdma::Queue, Refusal> {
    let responses = memory.strangers.take(limits::PLACE_RESPONSE_BYTES);
    let acceptance = Acceptance {
        pd: &port.pd,
        wire: &port.wire,
        keys: port.place_keys(memory),
        responses: responses.ok_or(Refusal::Strangers)?,
        receives: slots,
        entries,
        send_wrs: limits::send_wrs(entries),
        pulls: limits::INITIATOR_DEPTH_MAX.min(port.device.attributes().initiator_depth_max),
    };
    Ok(manager.accept(request, acceptance)?)
}
