//! Connecting and ending, as messages between connection-manager ids.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::completion::Wake;
use super::pair::Agreed;
use super::state::{Core, Event, Host};
use super::trace::Traced;
use crate::contract::{
    CmError, CmEvent, CmEventKind, CmId, ConnectParam, PrivateData, QpState, RdmaError,
    RejectReason,
};

/// As the kernel's rdma_ucm refuses when a backlog is full: out of memory.
const BACKLOG_FULL: RejectReason = RejectReason::Other {
    code: libc::ENOMEM,
    words: "the backlog is full",
};

/// One thread's connection manager.
pub(super) struct ManagerState {
    pub(super) events: VecDeque<CmEvent>,
    pub(super) wake: Wake,
}

/// The state of an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Listening {
        backlog: u32,
    },
    Resolving,
    Resolved,
    Connecting,
    /// Requested by a peer, which may have given up since.
    Requested {
        gone: bool,
    },
    /// Accepted; the peer's confirmation is on its way.
    Accepted,
    Connected,
    Ended,
}

/// A listener or one side of a connection.
pub(super) struct Id {
    /// `None` on its way to another manager.
    pub(super) manager: Option<u32>,
    pub(super) host: u32,
    pub(super) step: Step,
    pub(super) local: SocketAddr,
    pub(super) peer: SocketAddr,
    pub(super) qp: Option<u32>,
    /// The id of the other side.
    pub(super) other: Option<u64>,
    /// The parameters of the connecting side.
    pub(super) asked: ConnectParam,
    /// The listener a request came to.
    pub(super) listener: Option<u64>,
    /// For the words of a timeout.
    pub(super) timeout_us: u64,
    /// Latest arrival of what this side has sent.
    pub(super) last_us: u64,
}

/// A connection request between two managers.
pub(super) struct Migrating {
    pub(super) dropped: Arc<AtomicBool>,
}

/// A connection-manager message that arrives.
#[derive(Debug)]
pub(super) enum CmMessage {
    Resolved(u64),
    TimedOut(u64),
    /// From the id that connects.
    Request(u64),
    /// To an id, from another.
    Accept {
        to: u64,
        from: u64,
        param: ConnectParam,
    },
    Reject {
        to: u64,
        reason: RejectReason,
        private_data: PrivateData,
    },
    Ready(u64),
    Disconnect {
        to: u64,
        cause: String,
    },
    /// The connecting side has gone.
    Abandon(u64),
}

const NO_PARAM: ConnectParam = ConnectParam {
    private_data: PrivateData::EMPTY,
    responder_resources: 0,
    initiator_depth: 0,
    rnr_retry_count: 0,
};

impl Core {
    /// Whether the device of `host` is there.
    pub(super) fn usable(&self, host: u32) -> Result<(), RdmaError> {
        match self.hosts.get(host as usize) {
            Some(host) if !host.removed => Ok(()),
            _ => Err(RdmaError::Invalid("the RDMA device was removed")),
        }
    }

    /// How often the device of `host` came back.
    pub(super) fn restored(&self, host: u32) -> u32 {
        self.hosts
            .get(host as usize)
            .map_or(0, |host| host.restored)
    }

    pub(super) fn new_id(&mut self, manager: u32, host: u32, step: Step) -> u64 {
        let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
        self.next.cm_id += 1;
        let id = Id {
            manager: Some(manager),
            host,
            step,
            local: nowhere,
            peer: nowhere,
            qp: None,
            other: None,
            asked: NO_PARAM,
            listener: None,
            timeout_us: 0,
            last_us: 0,
        };
        self.ids.insert(self.next.cm_id, id);
        self.next.cm_id
    }

    /// The id when it belongs to `manager`.
    pub(super) fn own_id(&mut self, manager: u32, id: CmId) -> Option<&mut Id> {
        let state = self.ids.get_mut(&id.0)?;
        (state.manager == Some(manager)).then_some(state)
    }

    pub(super) fn push_event(&mut self, id: u64, kind: CmEventKind) {
        self.note(Traced::Cm {
            id,
            event: event_name(&kind),
        });
        let manager = self.ids.get(&id).and_then(|state| state.manager);
        if let Some(manager) = manager.and_then(|manager| self.managers.get_mut(&manager)) {
            manager.events.push_back(CmEvent { id: CmId(id), kind });
            manager.wake.notify();
        }
    }

    /// Sends a message from `id`, behind what it has sent before.
    pub(super) fn send_cm(&mut self, id: u64, message: CmMessage) {
        let last_us = self.ids.get(&id).map_or(0, |state| state.last_us);
        let at_us = self.arrival_us(last_us);
        if let Some(state) = self.ids.get_mut(&id) {
            state.last_us = at_us;
        }
        self.schedule(at_us, Event::Cm(Box::new(message)));
    }

    pub(super) fn cm_arrives(&mut self, message: CmMessage) {
        match message {
            CmMessage::Resolved(id) => self.resolved(id),
            CmMessage::TimedOut(id) => self.timed_out(id),
            CmMessage::Request(from) => self.requested(from),
            CmMessage::Accept { to, from, param } => self.accepted(to, from, &param),
            CmMessage::Reject {
                to,
                reason,
                private_data,
            } => {
                if let Some(state) = self.ids.get_mut(&to)
                    && state.step == Step::Connecting
                {
                    state.step = Step::Ended;
                    let kind = CmEventKind::Rejected {
                        reason,
                        private_data,
                    };
                    self.push_event(to, kind);
                }
            }
            CmMessage::Ready(id) => {
                if let Some(state) = self.ids.get_mut(&id)
                    && state.step == Step::Accepted
                {
                    state.step = Step::Connected;
                    let param = state.asked;
                    self.push_event(id, CmEventKind::Established { param });
                }
            }
            CmMessage::Disconnect { to, cause } => self.disconnect_arrives(to, &cause),
            CmMessage::Abandon(id) => {
                if let Some(state) = self.ids.get_mut(&id)
                    && matches!(state.step, Step::Requested { .. })
                {
                    state.step = Step::Requested { gone: true };
                }
            }
        }
    }

    fn resolved(&mut self, id: u64) {
        let Some(state) = self.ids.get_mut(&id) else {
            return;
        };
        if state.step == Step::Resolving {
            state.step = Step::Resolved;
            self.push_event(id, CmEventKind::Resolved);
        }
    }

    fn timed_out(&mut self, id: u64) {
        let Some(state) = self.ids.get_mut(&id) else {
            return;
        };
        let what = match state.step {
            Step::Resolving => format!("resolving {}", state.peer),
            Step::Connecting => format!("connecting to {}", state.peer),
            _ => return,
        };
        state.step = Step::Ended;
        let other = state.other;
        let timeout_ms = state.timeout_us / 1000;
        let error = CmError::Timeout { what, timeout_ms };
        self.push_event(id, CmEventKind::Failed(error));
        if let Some(other) = other {
            self.send_cm(id, CmMessage::Abandon(other));
        }
    }

    /// The listener for `address`, the exact one first.
    pub(super) fn listener_at(&self, address: SocketAddr) -> Option<u64> {
        let host = self.host_of(address.ip())?;
        let fits = |any: bool| {
            self.ids.iter().find_map(|(&id, state)| {
                let listening = matches!(state.step, Step::Listening { .. });
                let ip = state.local.ip();
                let same = if any {
                    ip.is_unspecified() && ip.is_ipv4() == address.is_ipv4()
                } else {
                    ip == address.ip()
                };
                let here = state.host == host && state.local.port() == address.port();
                (listening && same && here).then_some(id)
            })
        };
        fits(false).or_else(|| fits(true))
    }

    /// The host that has an address.
    pub(super) fn host_of(&self, ip: IpAddr) -> Option<u32> {
        let has = |host: &Host| host.addresses.contains(&ip);
        let at = self.hosts.iter().position(has)?;
        u32::try_from(at).ok()
    }

    /// Whether a machine with a device answers at an address.
    pub(super) fn reachable(&self, ip: IpAddr) -> bool {
        self.host_of(ip)
            .is_some_and(|host| self.usable(host).is_ok())
    }

    fn requested(&mut self, from: u64) {
        let Some(asker) = self.ids.get(&from) else {
            return;
        };
        if asker.step != Step::Connecting {
            return;
        }
        let (local, peer, param) = (asker.local, asker.peer, asker.asked);
        if !self.reachable(peer.ip()) {
            return;
        }
        let listener = self.listener_at(peer);
        let found = listener.and_then(|id| self.ids.get(&id).map(|state| (id, state)));
        let Some((listener, state)) = found else {
            return self.send_reject(from, RejectReason::NoListener);
        };
        let (manager, host) = (state.manager, state.host);
        let Step::Listening { backlog } = state.step else {
            return;
        };
        let waiting = |state: &&Id| {
            state.listener == Some(listener) && matches!(state.step, Step::Requested { .. })
        };
        let count = self.ids.values().filter(waiting).count();
        let Some(manager) = manager.filter(|_| count < backlog as usize) else {
            return self.send_reject(from, BACKLOG_FULL);
        };
        let id = self.new_id(manager, host, Step::Requested { gone: false });
        if let Some(state) = self.ids.get_mut(&id) {
            state.local = peer;
            state.peer = local;
            state.other = Some(from);
            state.asked = param;
            state.listener = Some(listener);
        }
        if let Some(asker) = self.ids.get_mut(&from) {
            asker.other = Some(id);
        }
        let kind = CmEventKind::ConnectRequest {
            listener: CmId(listener),
            param,
        };
        self.push_event(id, kind);
    }

    /// Refuses the connect of `to` on behalf of the network.
    fn send_reject(&mut self, to: u64, reason: RejectReason) {
        let at_us = self.arrival_us(self.now_us);
        let message = CmMessage::Reject {
            to,
            reason,
            private_data: PrivateData::EMPTY,
        };
        self.schedule(at_us, Event::Cm(Box::new(message)));
    }

    /// Refuses a request on behalf of its program and drops it.
    pub(super) fn refuse(&mut self, id: u64, private_data: &PrivateData) {
        let Some(state) = self.ids.get(&id) else {
            return;
        };
        if let (Step::Requested { .. }, Some(to)) = (state.step, state.other) {
            let message = CmMessage::Reject {
                to,
                reason: RejectReason::Consumer,
                private_data: *private_data,
            };
            self.send_cm(id, message);
        }
        self.ids.remove(&id);
    }

    /// The peer accepted the connect of `to`.
    fn accepted(&mut self, to: u64, from: u64, param: &ConnectParam) {
        let waiting = self
            .ids
            .get(&to)
            .filter(|state| state.step == Step::Connecting);
        let ready = waiting.and_then(|state| Some((state.qp?, state.asked)));
        let peer_qp = self.ids.get(&from).and_then(|state| state.qp);
        let (Some((qp, asked)), Some(peer_qp)) = (ready, peer_qp) else {
            let cause = "the peer gave up before it was accepted".to_owned();
            let at_us = self.arrival_us(self.now_us);
            let message = CmMessage::Disconnect { to: from, cause };
            return self.schedule(at_us, Event::Cm(Box::new(message)));
        };
        // Both sides keep to the smaller of what is served and what is asked for.
        let param = ConnectParam {
            initiator_depth: param.responder_resources.min(asked.initiator_depth),
            responder_resources: param.initiator_depth.min(asked.responder_resources),
            ..*param
        };
        if let Some(pair) = self.pairs.get_mut(&qp) {
            pair.state = QpState::ReadyToSend;
            pair.peer = Some(peer_qp);
            pair.agreed = agreed(&param, &param);
        }
        let connection = self.pairs.get(&peer_qp).and_then(|pair| pair.connection);
        if let Some(pair) = self.pairs.get_mut(&qp) {
            pair.connection = connection;
        }
        if let Some(state) = self.ids.get_mut(&to) {
            state.step = Step::Connected;
        }
        self.push_event(to, CmEventKind::Established { param });
        self.send_cm(to, CmMessage::Ready(from));
    }

    /// A queue pair has failed: its connection ends.
    pub(super) fn connection_ended(&mut self, qp: u32, cause: &str, tell_peer: bool) {
        let Some(pair) = self.pairs.get(&qp) else {
            return;
        };
        let (id, cut) = (pair.id, pair.cut);
        let behind_us = pair.request_last_us.max(pair.response_last_us);
        let Some(state) = self.ids.get_mut(&id) else {
            return;
        };
        if !matches!(state.step, Step::Accepted | Step::Connected) {
            return;
        }
        state.step = Step::Ended;
        state.last_us = state.last_us.max(behind_us);
        let (other, told) = (state.other, state.qp.is_some());
        if told {
            let cause = cause.to_owned();
            let kind = CmEventKind::Disconnected {
                cause,
                is_violation: false,
            };
            self.push_event(id, kind);
        }
        if let Some(to) = other.filter(|_| tell_peer && !cut) {
            let cause = format!("the peer ended the connection: {cause}");
            self.send_cm(id, CmMessage::Disconnect { to, cause });
        }
    }

    fn disconnect_arrives(&mut self, id: u64, cause: &str) {
        let Some(qp) = self.ids.get(&id).and_then(|state| state.qp) else {
            return;
        };
        if self.pairs.get(&qp).is_some_and(|pair| !pair.cut) {
            self.fail(qp, cause, false);
        }
    }

    /// The owner drops the queue pair of `id`.
    pub(super) fn forget_pair(&mut self, id: u64) {
        if let Some(state) = self.ids.get_mut(&id) {
            state.qp = None;
        }
    }

    /// Drops an id; whatever it was in ends.
    pub(super) fn destroy_id(&mut self, id: u64) {
        let Some(state) = self.ids.get(&id) else {
            return;
        };
        let (step, qp, other, manager) = (state.step, state.qp, state.other, state.manager);
        if let Some(qp) = qp {
            self.fail(qp, "this side destroyed the connection", true);
        }
        match (step, other) {
            (Step::Connecting, Some(other)) => self.send_cm(id, CmMessage::Abandon(other)),
            (Step::Requested { .. }, _) => self.refuse(id, &PrivateData::EMPTY),
            _ => {}
        }
        self.ids.remove(&id);
        if let Some(state) = manager.and_then(|manager| self.managers.get_mut(&manager)) {
            state.events.retain(|event| event.id != CmId(id));
        }
    }

    /// Notifies every id of a host that its device has gone.
    pub(super) fn tell_removed(&mut self, host: u32) {
        let ids: Vec<u64> = self
            .ids
            .iter()
            .filter(|(_, state)| state.host == host)
            .map(|(&id, _)| id)
            .collect();
        for id in ids {
            self.push_event(id, CmEventKind::DeviceRemoved);
        }
    }

    pub(super) fn migration_dropped(&self) -> bool {
        let dropped = |moving: &Migrating| moving.dropped.load(Ordering::Acquire);
        self.migrating.values().any(dropped)
    }

    /// Refuses requests that were dropped on their way to another manager.
    pub(super) fn refuse_dropped_migrations(&mut self) {
        if !self.migration_dropped() {
            return;
        }
        let dropped: Vec<u64> = self
            .migrating
            .iter()
            .filter(|(_, moving)| moving.dropped.load(Ordering::Acquire))
            .map(|(&id, _)| id)
            .collect();
        for id in dropped {
            self.migrating.remove(&id);
            self.refuse(id, &PrivateData::EMPTY);
        }
    }
}

/// What `own` and the peer's parameters make of a queue pair.
pub(super) fn agreed(own: &ConnectParam, peer: &ConnectParam) -> Agreed {
    Agreed {
        initiator_depth: own.initiator_depth,
        responder_resources: own.responder_resources,
        // `rdma_connect(3)`: the count is for Sends of the remote peer.
        rnr_retry_count: peer.rnr_retry_count,
    }
}

fn event_name(kind: &CmEventKind) -> &'static str {
    match kind {
        CmEventKind::Resolved => "resolved",
        CmEventKind::ConnectRequest { .. } => "connect request",
        CmEventKind::Established { .. } => "established",
        CmEventKind::Rejected { .. } => "rejected",
        CmEventKind::Failed(_) => "failed",
        CmEventKind::Disconnected { .. } => "disconnected",
        CmEventKind::DeviceRemoved => "device removed",
    }
}
