//! Step 1: connections, as they come and end. A request is checked, given to the reactor whose turn
//! it is, and accepted there; an ended connection is wound down.

use std::net::SocketAddr;

use capstan_nvme_proto::rdma_cm::RejectStatus;
use capstan_rdma::{PEER_CAUSED, Source};
use capstan_subsystem::{CmRefusal, PortId, QueueSizes, Transport};
use capstan_transport::manager::{AcceptError, CmError, Happened, Migrating, Request};
use capstan_transport::{End, EndReason, NoResources, Queue, QueueId};

use super::cause::Cause;
use super::connection::{Connection, Identity};
use super::phase::Phase;
use super::{IoPath, Listener, Resources};
use crate::control_plane::conn_id;
use crate::limits::{MAILBOX_BOUND, REQUESTS_PER_TURN};

/// A checked connection request, on its way to the reactor that will own it.
#[derive(Debug)]
pub(crate) struct Offered {
    pub(crate) checked: Checked,
    pub(crate) request: Migrating,
}

/// What is known of a connection request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Checked {
    pub(crate) port: PortId,
    pub(crate) sizes: QueueSizes,
    /// Its host has a controller, and connects another queue of it.
    pub(crate) known: bool,
}

/// Why a request is refused: what the host is told, and what the log says.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    #[error(transparent)]
    Request(#[from] CmRefusal),
    #[error("no resources: {0}{advice}", advice = advice(.0))]
    Resources(#[from] NoResources),
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
        "the target is drained and takes no connections: `capstan-target drain --off` has it take them again"
    )]
    Drained,
    #[error(
        "reactor {reactor} takes no connections: {MAILBOX_BOUND} messages wait for it, or it has ended; look at the kernel \
         log for a hung device"
    )]
    Stuck { reactor: usize },
}

impl From<AcceptError> for Refusal {
    fn from(why: AcceptError) -> Self {
        match why {
            AcceptError::Resources(why) => Self::Resources(why),
            AcceptError::Cm(error) => Self::Cm(error),
            AcceptError::Socket(error) => Self::Socket(error),
        }
    }
}

/// What mends it.
fn advice(why: &NoResources) -> &'static str {
    match why {
        NoResources::Memory(_) => {
            "; raise memory_budget in the configuration or connect fewer or smaller queues"
        }
        NoResources::Device(_) => "; connect fewer or smaller queues, or use another device",
        NoResources::Places => "; try again",
        NoResources::Rdma(_) => "",
    }
}

/// The sizes of a queue before its Connect says them.
const UNANNOUNCED: QueueSizes = QueueSizes {
    transport: Transport::Tcp,
    qid: 0,
    entries: 1,
    host_receives: 1,
    cntlid: 0,
};

impl Refusal {
    /// Of what kind it is, in a word or two (`metrics::reactor::REFUSED`).
    fn word(&self) -> &'static str {
        match self {
            Self::Request(CmRefusal::UnknownPort) => "listener-removed",
            Self::Request(_) => "bad-request",
            Self::Resources(_) => "no-resources",
            Self::Share { .. } => "share-of-receives",
            Self::Reserved { .. } => "receives-reserved",
            Self::Cm(_) | Self::Socket(_) => "lost-before-accept",
            Self::TcpOnly(_) => "transport-not-on-port",
            Self::Draining => "shutting-down",
            Self::Drained => "drained",
            Self::Stuck { .. } => "reactor-stuck",
        }
    }

    fn status(&self) -> RejectStatus {
        match self {
            Self::Request(refusal) => refusal.reject_status(),
            // NVMe/RDMA Transport 1.1, section 3.1: no format of a request is taken here. There is
            // only format 0, so that a host cannot take this for another reason.
            Self::TcpOnly(_) => RejectStatus::INVALID_RECFMT,
            Self::Resources(_)
            | Self::Share { .. }
            | Self::Reserved { .. }
            | Self::Cm(_)
            | Self::Draining
            | Self::Drained
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
        for provider in 0..self.wires.providers() {
            while requests < 2 * REQUESTS_PER_TURN
                && let Some(happened) =
                    (self.wires).poll_connections(provider, self.resources.now_us)
            {
                progress = true;
                match happened {
                    Happened::Request(request) => {
                        requests += 1;
                        self.on_request(request);
                    }
                    Happened::Established(id) => self.on_established(id),
                    Happened::Ended(id, why) => self.on_ended(id, why),
                    Happened::ListenerLost => {
                        let provider = self.wires.provider_name(provider);
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
    fn on_established(&mut self, id: QueueId) {
        if let Some(connection) = self.connections.named(id)
            && matches!(connection.phase, Phase::AwaitingConnect { .. })
        {
            connection.phase = Phase::accepted(self.resources.now_us, connection.identity.known);
        }
    }

    /// Gives a request to the reactor whose turn it is.
    fn on_request(&mut self, request: Request) {
        let Some(&listener) = self.listeners.get(&request.listener) else {
            return;
        };
        let checked = match self.check_request(listener, &request) {
            Ok(checked) => checked,
            Err(refusal) => return self.refuse(request, &refusal),
        };
        let turn = match request.private_data() {
            Some(_) => checked.sizes.qid,
            // Which queue it will be is known when its Connect comes.
            None => 1,
        };
        let reactor = self.control.next_reactor(turn);
        if reactor == self.reactor {
            return self.accept(request, &checked);
        }
        match self.wires.give_away(request) {
            Ok(request) => {
                let offered = Box::new(Offered { checked, request });
                if let Err(offered) = self.control.offer(reactor, offered) {
                    self.take_back(*offered, reactor);
                }
            }
            Err(refused) => {
                let (request, error) = *refused;
                self.refuse(request, &error.into());
            }
        }
    }

    /// What is asked for, and whether the host has a controller already.
    fn check_request(
        &self,
        Listener { port, rdma, .. }: Listener,
        request: &Request,
    ) -> Result<Checked, Refusal> {
        let peer = request.peer.ip();
        let (sizes, known) = match request.private_data() {
            Some(_) if !rdma => return Err(Refusal::TcpOnly(request.local)),
            _ if self.drain_deadline_us.is_some() => return Err(Refusal::Draining),
            _ if self.refuses => return Err(Refusal::Drained),
            Some(private_data) => self.control.with(|target| {
                let sizes = target.handle_cm_request(port, private_data)?;
                let known = sizes.qid != 0 && target.has_host_at(peer);
                Ok::<_, CmRefusal>((sizes, known))
            })?,
            None => {
                let known = self.control.with(|target| target.has_host_at(peer));
                (UNANNOUNCED, known)
            }
        };
        Ok(Checked { port, sizes, known })
    }

    /// Takes over a connection request that arrived at another reactor's listener.
    pub(super) fn adopt(&mut self, offered: Offered) {
        let Offered { checked, request } = offered;
        let peer = request.peer;
        match self.wires.take_over(request) {
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
        let peer = offered.request.peer;
        match self.wires.take_over(offered.request) {
            Ok(request) => self.refuse(request, &Refusal::Stuck { reactor }),
            Err(error) => {
                tracing::debug!(%peer, %error, "connection lost before it was refused");
            }
        }
    }

    /// Makes the queue of a request, which has a place among strangers, and accepts.
    fn accept(&mut self, request: Request, checked: &Checked) {
        if self.drain_deadline_us.is_some() {
            return self.refuse(request, &Refusal::Draining);
        }
        if self.refuses {
            return self.refuse(request, &Refusal::Drained);
        }
        self.make_room(request.peer, checked.known);
        self.conn_serial += 1;
        let identity = Identity {
            id: conn_id(self.reactor, self.conn_serial),
            index: self.connections.reserve(),
            listener: checked.port,
            local: request.local,
            peer: request.peer,
            carrier: self.wires.carrier_name(&request),
            sizes: checked.sizes,
            known: checked.known,
        };
        let Identity {
            peer,
            index,
            carrier: provider,
            ..
        } = identity;
        let QueueSizes { qid, entries, .. } = identity.sizes;
        let is_announced = request.private_data().is_some();
        let Resources { memory, now_us, .. } = &self.resources;
        match (self.wires).accept(identity.queue_id(), request, entries, memory, *now_us) {
            Ok(queue) => {
                self.accepted(identity, queue);
                if is_announced {
                    tracing::debug!(%peer, provider, qid, entries, "accepted");
                } else {
                    tracing::debug!(%peer, provider, "accepted");
                }
            }
            Err(why) => {
                self.connections.unreserve(index);
                let refusal = why.into();
                self.note_refused(&refusal);
                log_refusal(peer, is_announced, &refusal);
            }
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
            self.begin_close(index, "made-room", why);
        }
    }

    /// A connection is there, with its place among strangers.
    fn accepted(&mut self, identity: Identity, queue: Queue) {
        let now_us = self.resources.now_us;
        self.index_of.insert(identity.id, identity.index);
        let connection = Connection::new(identity, queue, now_us);
        let deadline_us = connection.phase.deadline_us().unwrap_or(now_us);
        self.connections.put(connection);
        let Identity {
            id, peer, known, ..
        } = identity;
        self.unconnected.add(id, peer, known, deadline_us);
    }

    fn note_refused(&self, refusal: &Refusal) {
        self.resources.metrics.refused.add(refusal.word());
    }

    fn refuse(&mut self, request: Request, refusal: &Refusal) {
        self.note_refused(refusal);
        log_refusal(request.peer, request.private_data().is_some(), refusal);
        self.wires.refuse(request, refusal.status());
    }

    /// The transport says that a connection is over: nothing new starts on it, and it is freed
    /// when the devices and the storage engine have given everything back.
    fn on_ended(&mut self, id: QueueId, why: EndReason) {
        if let Some(connection) = self.connections.named(id) {
            let index = connection.identity.index;
            self.close(index, &why.into(), false);
        }
    }

    /// Starts to wind a connection down.
    pub(super) fn begin_close(&mut self, index: usize, word: &'static str, cause: &str) {
        self.close(index, &Cause::new(word, cause), false);
    }

    /// The same; one that `gives_up` aborts it: nothing lingers, and nothing more of it is sent.
    pub(super) fn close(&mut self, index: usize, cause: &Cause, gives_up: bool) {
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
        self.resources.metrics.ended.add(cause.word());
        cause.log(connection);
        let Identity { id, .. } = connection.identity;
        let queue = connection.identity.queue_id();
        let timeout_us = connection.transport.close_timeout_us();
        connection.phase = Phase::closing(self.resources.now_us, timeout_us);
        let lingers = connection.disk_outstanding > 0;
        // What waits for a buffer has not started and never will.
        connection.waiting.clear();
        self.closing.push(index);
        let how = if gives_up { End::Now } else { End::Drained };
        self.wires.end(queue, &mut self.connections, how);
        // Fences that wait for it end here or with its last storage operation, and not with
        // `Event::Quiesced`: `fence` says why that is late enough.
        let now_us = self.resources.now_us;
        if lingers {
            self.control.disconnecting(id, now_us);
        } else if is_queue {
            self.control.disconnected(id, now_us);
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
                Some(why) => {
                    let word = match phase {
                        Phase::Refused { .. } => "connect-refused",
                        _ => "connect-timeout",
                    };
                    self.begin_close(index, word, why);
                }
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
        self.wires.close_removed_devices();
    }

    fn free(&mut self, mut connection: Box<Connection>) {
        connection.release_receives();
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
        // Before the buffers of its commands: until then its device may use them.
        self.wires.release(connection.transport);
    }
}

/// Says that a connection is refused; the host is told the status where it `is_told`.
fn log_refusal(peer: SocketAddr, is_told: bool, refusal: &Refusal) {
    // Mostly a host that has given up: there is nothing that it could be told.
    let lost: Option<&dyn std::error::Error> = match refusal {
        Refusal::Cm(error) => Some(error),
        Refusal::Socket(error) => Some(error),
        _ => None,
    };
    let reason = refusal.word();
    if let Some(error) = lost {
        tracing::warn!(target: PEER_CAUSED, %peer, %error, reason, "connection lost before accept");
    } else if is_told {
        let status = refusal.status();
        tracing::warn!(
            target: PEER_CAUSED,
            %peer, %status, reason,
            "refused a connection: {refusal}"
        );
    } else {
        tracing::warn!(target: PEER_CAUSED, %peer, reason, "refused a connection: {refusal}");
    }
}
