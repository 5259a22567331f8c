//! Events of librdmacm, and what follows from them.

use std::io;
use std::rc::Rc;

use super::super::cm_words::{reason, why};
use super::super::error::step;
use super::super::raw::cm::{Event, EventParam, Id};
use super::super::sys::rdma_cm_event_type as kind;
use super::{Entry, Manager, RESOLVE_ATTEMPT_MS, State, milliseconds};
use crate::PEER_CAUSED;
use crate::contract::{
    CmError, CmEventKind, CmId, ConnectParam, PrivateData, RejectReason, Transport,
};

/// How long the device may take, once the peer has disconnected, to complete what the peer refused
/// before: that packet arrived sooner than the message of the connection manager.
const LAST_COMPLETIONS_US: u64 = 10_000;

impl Manager {
    pub(super) fn on_event(&mut self, event: Event) {
        // Of an id that was just destroyed; a request for it is refused when it is dropped.
        let Some(&id) = self.by_key.get(&event.key) else {
            return;
        };
        match event.kind {
            kind::RDMA_CM_EVENT_CONNECT_REQUEST => self.on_request(id, event),
            kind::RDMA_CM_EVENT_ADDR_RESOLVED => self.on_address(id),
            kind::RDMA_CM_EVENT_ROUTE_RESOLVED => self.on_route(id),
            kind::RDMA_CM_EVENT_ADDR_ERROR => self.on_address_error(id, event.status),
            kind::RDMA_CM_EVENT_ROUTE_ERROR => {
                self.on_unresolved(id, "resolving the route to", event.status);
            }
            kind::RDMA_CM_EVENT_ESTABLISHED => self.on_established(id, &event.param),
            kind::RDMA_CM_EVENT_REJECTED => self.on_rejected(id, event.status, &event.param),
            kind::RDMA_CM_EVENT_UNREACHABLE
            | kind::RDMA_CM_EVENT_CONNECT_ERROR
            | kind::RDMA_CM_EVENT_CONNECT_RESPONSE => self.on_connect_error(id, event.status),
            kind::RDMA_CM_EVENT_DISCONNECTED => self.on_disconnected(id),
            kind::RDMA_CM_EVENT_DEVICE_REMOVAL => self.on_removal(id),
            // A bonded interface moved its address: connections end by their timeouts.
            kind::RDMA_CM_EVENT_ADDR_CHANGE => tracing::warn!("an RDMA address moved"),
            _ => {}
        }
    }

    fn on_request(&mut self, listener: CmId, event: Event) {
        let Some(raw) = event.request else {
            return;
        };
        let device = match self.shared.device(&raw) {
            Ok(device) => device,
            Err(error) => {
                return tracing::warn!(
                    target: PEER_CAUSED,
                    "a connection request was refused: {error}"
                );
            }
        };
        let mut entry = Entry::new(State::Requested, raw);
        entry.device = Some(device);
        let param = ConnectParam {
            private_data: event.param.private_data,
            // librdmacm has them as this side would use them.
            responder_resources: event.param.initiator_depth,
            initiator_depth: event.param.responder_resources,
            rnr_retry_count: event.param.rnr_retry_count,
        };
        let id = self.insert(entry);
        self.ids
            .tell(id, CmEventKind::ConnectRequest { listener, param });
    }

    fn on_address(&mut self, id: CmId) {
        let now_us = self.now_us;
        let Ok(entry) = self.ids.known(id) else {
            return;
        };
        let left_us = entry.deadline_us.map_or(0, |at| at.saturating_sub(now_us));
        let Some(raw) = entry
            .id
            .as_ref()
            .filter(|_| matches!(entry.state, State::Resolving))
        else {
            return;
        };
        if let Err(error) = raw.resolve_route(milliseconds(left_us)) {
            let error = step(format!("resolving the route to {}", entry.peer()), &error);
            self.close(id, CmEventKind::Failed(error));
        }
    }

    fn on_route(&mut self, id: CmId) {
        let raw: Option<Rc<Id>> = self.ids.get(id).and_then(|entry| entry.id.clone());
        let Some(raw) = raw else {
            return;
        };
        let device = self.shared.device(&raw);
        let Ok(entry) = self.ids.known(id) else {
            return;
        };
        if !matches!(entry.state, State::Resolving) {
            return;
        }
        entry.deadline_us = None;
        match device {
            Ok(device) => {
                entry.device = Some(device);
                entry.state = State::Resolved;
                self.ids.tell(id, CmEventKind::Resolved);
            }
            Err(error) => {
                let error = CmError::System {
                    what: "opening the RDMA device".to_owned(),
                    message: error.to_string(),
                    errno: None,
                };
                self.close(id, CmEventKind::Failed(error));
            }
        }
    }

    fn on_address_error(&mut self, id: CmId, status: i32) {
        if status != -libc::ETIMEDOUT || !self.resolve_again(id) {
            self.on_unresolved(id, "resolving the address of", status);
        }
    }

    /// Starts another attempt to resolve the address; `false` when there is no time for one.
    fn resolve_again(&mut self, id: CmId) -> bool {
        let now_us = self.now_us;
        let Some(entry) = self.ids.get(id) else {
            return false;
        };
        let (State::Resolving, Some(deadline_us), Some(raw)) =
            (&entry.state, entry.deadline_us, &entry.id)
        else {
            return false;
        };
        let left_ms = milliseconds(deadline_us.saturating_sub(now_us));
        // It is bound to its source already.
        let (_, Some(destination)) = raw.addresses() else {
            return false;
        };
        now_us < deadline_us
            && raw
                .resolve_addr(None, destination, left_ms.min(RESOLVE_ATTEMPT_MS))
                .is_ok()
    }

    fn on_unresolved(&mut self, id: CmId, what: &'static str, status: i32) {
        let Ok(entry) = self.ids.known(id) else {
            return;
        };
        if matches!(entry.state, State::Resolving) {
            let what = format!("{what} {}", entry.peer());
            let error = why(what, status, Some(entry.timeout_ms));
            self.close(id, CmEventKind::Failed(error));
        }
    }

    fn on_established(&mut self, id: CmId, told: &EventParam) {
        let Ok(entry) = self.ids.known(id) else {
            return;
        };
        match entry.state {
            State::Connecting(asked) => {
                let iwarp = entry
                    .device
                    .as_ref()
                    .is_some_and(|device| device.attributes.transport == Transport::Iwarp);
                // The kernel reports an iWARP reply from the peer's point of view (cma_iw_handler).
                let (serves, reads) = if iwarp {
                    (told.initiator_depth, told.responder_resources)
                } else {
                    (told.responder_resources, told.initiator_depth)
                };
                let param = ConnectParam {
                    private_data: told.private_data,
                    responder_resources: serves.min(asked.responder_resources),
                    initiator_depth: reads.min(asked.initiator_depth),
                    rnr_retry_count: asked.rnr_retry_count,
                };
                entry.deadline_us = None;
                let peer = entry.peer();
                let Some(core) = entry.core.upgrade() else {
                    return;
                };
                core.connected(param.initiator_depth, peer);
                entry.state = State::Connected;
                self.ids.tell(id, CmEventKind::Established { param });
            }
            State::Accepted(param) => {
                entry.state = State::Connected;
                self.ids.tell(id, CmEventKind::Established { param });
            }
            // Too late: it was given up.
            State::Closed => self.end_quietly(id),
            _ => {}
        }
    }

    /// Lets the peer know that this side has given up.
    fn end_quietly(&self, id: CmId) {
        let raw = self.ids.get(id).and_then(|entry| entry.id.as_ref());
        if let Some(raw) = raw {
            // A reject is right before the connection is established, a disconnect (which the
            // kernel takes in any state) afterwards.
            let told = raw.reject(&[]).or_else(|_| raw.disconnect());
            if let Err(error) = told {
                tracing::debug!("ending a connection that was given up: {error}");
            }
        }
    }

    fn on_rejected(&mut self, id: CmId, status: i32, told: &EventParam) {
        let Ok(entry) = self.ids.known(id) else {
            return;
        };
        match entry.state {
            State::Connecting(_) => {
                let kind = CmEventKind::Rejected {
                    reason: reason(status),
                    private_data: told.private_data,
                };
                self.close(id, kind);
            }
            State::Accepted(_) => {
                let peer = entry.peer();
                let error = CmError::System {
                    what: format!("accepting {peer}"),
                    message: "the peer gave up before the connection was up".to_owned(),
                    errno: None,
                };
                self.close(id, CmEventKind::Failed(error));
            }
            // The peer no longer waits: an accept will say so.
            State::Requested => entry.state = State::Closed,
            _ => {}
        }
    }

    fn on_connect_error(&mut self, id: CmId, status: i32) {
        let Ok(entry) = self.ids.known(id) else {
            return;
        };
        let what = match entry.state {
            State::Connecting(_) => format!("connecting to {}", entry.peer()),
            State::Accepted(_) => format!("accepting {}", entry.peer()),
            State::Closed => return self.end_quietly(id),
            _ => return,
        };
        let error = why(what, status, None);
        self.end_quietly(id);
        self.close(id, CmEventKind::Failed(error));
    }

    fn on_disconnected(&mut self, id: CmId) {
        let now_us = self.now_us;
        let Ok(entry) = self.ids.known(id) else {
            return;
        };
        match entry.state {
            State::Accepted(_) | State::Connected => {
                // The refusal that caused it may still be on its way to the completion queue.
                let core = entry.core.upgrade();
                if core.is_some_and(|core| core.is_sending()) {
                    entry.wait(LAST_COMPLETIONS_US, now_us);
                } else {
                    self.on_end(id);
                }
            }
            State::Connecting(_) => {
                let error = CmError::System {
                    what: format!("connecting to {}", entry.peer()),
                    message: "the peer closed the connection during set-up".to_owned(),
                    errno: None,
                };
                self.close(id, CmEventKind::Failed(error));
            }
            State::Requested => entry.state = State::Closed,
            _ => {}
        }
    }

    /// The peer has ended the connection, or it was lost.
    pub(super) fn on_end(&mut self, id: CmId) {
        let Ok(entry) = self.ids.known(id) else {
            return;
        };
        let cause = "the peer closed the connection, or it was lost";
        match entry.core.upgrade() {
            // Answers the peer, and notifies the program.
            Some(core) => core.fail(cause),
            None => {
                self.end_quietly(id);
                self.notices.tell(id, cause.to_owned());
            }
        }
    }

    pub(super) fn on_removal(&mut self, id: CmId) {
        let Some(entry) = self.ids.get(id) else {
            return;
        };
        if let Some(raw) = &entry.id {
            self.shared.removed(raw);
        }
        match entry.state {
            State::Listening(_) => self.listener_lost(id),
            State::Closed => {}
            _ => self.close(id, CmEventKind::DeviceRemoved),
        }
    }

    /// `rdma_connect` itself failed: on iWARP it may have connected TCP, and been refused.
    pub(super) fn refused_at_once(&mut self, id: CmId, error: &io::Error) {
        let kind = match error.raw_os_error() {
            Some(libc::ECONNREFUSED) => CmEventKind::Rejected {
                reason: RejectReason::NoListener,
                private_data: PrivateData::EMPTY,
            },
            _ => {
                let peer = self.ids.get(id).map(Entry::peer).unwrap_or_default();
                CmEventKind::Failed(step(format!("connecting to {peer}"), error))
            }
        };
        self.close(id, kind);
    }
}
