//! Connections: making them one after the other, and dropping them all.

use std::rc::Rc;

use capstan_nvme_proto::rdma_cm::CmRequest;
use capstan_rdma::contract::{
    CmEventKind, CmId, ConnectParam, Device, PrivateData, QpConfig, ReceiveSource,
};
use zerocopy::IntoBytes;

use super::connection::{Connection, ConnectionParts, RingSizes};
use super::device::DeviceContext;
use super::engine::{ActiveQueue, AssociationEngine, Owner, Slot};
use super::replay::may_change;
use crate::error::{CommandError, ConnectError};
use crate::host::{ADMIN_QUEUE_ENTRIES, Action};

/// Receiver-not-ready retries: for ever. The controller posts its receives before it accepts, so a
/// not-ready receiver is a short queue, not a dead one; the I/O timeout bounds the wait.
const RNR_RETRY_COUNT: u8 = 7;
/// Reconnects one I/O survives before it counts as their cause.
pub(super) const REPLAYS_MAX: u8 = 10;

/// A connection being made.
pub(super) struct Opening {
    qid: u16,
    entries: u16,
    request: CmRequest,
    /// Dropped before the id is.
    connection: Option<Connection>,
    id: CmId,
}

impl AssociationEngine {
    /// Carries out one action; gives it back when memory for it is not free yet.
    pub(super) fn carry_out(&mut self, action: Action, now_us: u64) -> Result<(), Action> {
        match action {
            Action::Open { entries, request } => {
                self.open(entries, request, now_us);
                Ok(())
            }
            Action::Send {
                qid,
                slot,
                sqe,
                data,
            } => {
                let buffer = match data.len_bytes() {
                    0 => None,
                    len_bytes => match self.memory.admin.take(len_bytes) {
                        None => {
                            return Err(Action::Send {
                                qid,
                                slot,
                                sqe,
                                data,
                            });
                        }
                        buffer => buffer,
                    },
                };
                self.send_for_host(qid, slot, *sqe, buffer, &data, now_us);
                Ok(())
            }
            Action::CloseAll { orderly } => {
                let unanswered = self.close_all(orderly);
                self.given_up(unanswered, now_us);
                Ok(())
            }
        }
    }

    fn open(&mut self, entries: u16, request: CmRequest, now_us: u64) {
        let timeout_us = self.config.host.connect_timeout_us;
        let resolved = self.cm.resolve(
            self.config.destination,
            self.config.source,
            timeout_us,
            now_us,
        );
        let qid = request.qid;
        match resolved {
            Ok(id) => {
                self.opening = Some(Opening {
                    qid,
                    entries,
                    request,
                    connection: None,
                    id,
                });
            }
            Err(source) => {
                let cause = ConnectError::Transport { qid, source };
                self.open_failed(qid, cause, now_us);
            }
        }
    }

    fn open_failed(&mut self, qid: u16, cause: ConnectError, now_us: u64) {
        self.turn_to_next_address(qid);
        self.host.handle_open_failed(qid, cause, now_us);
    }

    /// Where a name has several addresses, the next attempt is made at the next one: the Admin
    /// queue decides, and the I/O queues follow it.
    fn turn_to_next_address(&mut self, qid: u16) {
        if qid == 0
            && let Some(next) = self.other_addresses.pop_front()
        {
            let last = std::mem::replace(&mut self.config.destination, next);
            self.other_addresses.push_back(last);
        }
    }

    /// Takes the connection manager's events.
    pub(super) fn poll_cm(&mut self, now_us: u64) -> bool {
        let mut busy = false;
        while let Some(event) = self.cm.poll(now_us) {
            busy = true;
            let opening = self.opening.as_ref().is_some_and(|o| o.id == event.id);
            let qid = match &self.opening {
                Some(opening) if opening.id == event.id => opening.qid,
                _ => match self.qid_of(event.id) {
                    Some(qid) => qid,
                    // Of a connection that is closed already.
                    None => continue,
                },
            };
            match event.kind {
                CmEventKind::Resolved if opening => self.resolved(now_us),
                CmEventKind::Established { param } if opening => {
                    self.established(&param, now_us);
                }
                CmEventKind::Rejected {
                    reason,
                    private_data,
                } if opening => {
                    self.drop_opening();
                    let words = private_data.as_bytes();
                    self.turn_to_next_address(qid);
                    self.host.handle_rejected(qid, reason, words, now_us);
                }
                CmEventKind::Failed(source) => {
                    let cause = ConnectError::Transport { qid, source };
                    self.ended(qid, opening, cause, now_us);
                }
                CmEventKind::Disconnected { cause } => {
                    let cause = ConnectError::Disconnected { qid, cause };
                    self.ended(qid, opening, cause, now_us);
                }
                CmEventKind::DeviceRemoved => {
                    let cause = "the RDMA device was removed".to_owned();
                    let cause = ConnectError::Disconnected { qid, cause };
                    self.ended(qid, opening, cause, now_us);
                }
                CmEventKind::Resolved
                | CmEventKind::Established { .. }
                | CmEventKind::Rejected { .. }
                | CmEventKind::ConnectRequest { .. } => {}
            }
        }
        self.forget_removed_device();
        busy
    }

    /// Lets go of a device that was removed, once no connection is left.
    fn forget_removed_device(&mut self) {
        let idle = self.opening.is_none() && self.queues.iter().all(Option::is_none);
        if let Some(device) = self
            .device
            .take_if(|context| idle && context.device.is_removed())
        {
            let device = &device.attributes().name;
            tracing::info!(device, "closed the RDMA device that was removed");
        }
    }

    fn ended(&mut self, qid: u16, opening: bool, cause: ConnectError, now_us: u64) {
        self.flushed = None;
        if opening {
            self.drop_opening();
            self.open_failed(qid, cause, now_us);
        } else {
            self.host.handle_broken(cause, now_us);
        }
    }

    fn qid_of(&self, id: CmId) -> Option<u16> {
        let queues = (0_u16..).zip(&self.queues);
        queues
            .filter_map(|(qid, queue)| queue.as_ref().map(|queue| (qid, queue)))
            .find(|(_, queue)| queue.connection.id == id)
            .map(|(qid, _)| qid)
    }

    /// The way to the target is known: make the queue pair and connect.
    fn resolved(&mut self, now_us: u64) {
        let Some(mut opening) = self.opening.take() else {
            return;
        };
        match self.prepare(&mut opening, now_us) {
            Ok(()) => self.opening = Some(opening),
            Err(cause) => {
                let qid = opening.qid;
                drop(opening.connection);
                self.cm.destroy(opening.id);
                self.open_failed(qid, cause, now_us);
            }
        }
    }

    fn prepare(&mut self, opening: &mut Opening, now_us: u64) -> Result<(), ConnectError> {
        let qid = opening.qid;
        let resources = |what: &'static str, message: String| ConnectError::Resources {
            what,
            message: format!("queue {qid}: {message}"),
        };
        let device = self
            .cm
            .device(opening.id)
            .ok_or_else(|| resources("RDMA device", "none for this address".to_owned()))?;
        self.use_device(device)?;
        let Some(context) = &self.device else {
            return Ok(());
        };
        let attributes = context.attributes();
        let sizes = RingSizes::new(opening.entries, attributes.qp_wr_max);
        let config = QpConfig {
            send_cq: Rc::clone(&context.cq),
            recv_cq: Rc::clone(&context.cq),
            send_wr_max: sizes.send_wr_max,
            receives: ReceiveSource::Own(u32::from(sizes.responses)),
            send_sge_max: 2.min(attributes.sge_max),
            recv_sge_max: 1,
        };
        let qp = self
            .cm
            .create_qp(opening.id, &context.pd, &config)
            .map_err(|error| resources("queue pair", error.to_string()))?;
        let windows = if context.windows {
            let count = opening.entries - 1;
            let windows: Result<Vec<_>, _> =
                (0..count).map(|_| context.pd.allocate_window()).collect();
            windows.map_err(|error| resources("memory windows", error.to_string()))?
        } else {
            Vec::new()
        };
        let ring = self
            .memory
            .control
            .take(sizes.control_bytes())
            .ok_or_else(|| resources("control memory", "none is free".to_owned()))?;
        self.epoch = self.epoch.wrapping_add(1);
        let mut connection = Connection::new(ConnectionParts {
            qp: qp.into(),
            windows,
            ring,
            control_lkey: context.control_keys().lkey,
            id: opening.id,
            qid,
            epoch: self.epoch,
            sizes,
            send_with_invalidate: attributes.send_with_invalidate,
        });
        let param = ConnectParam {
            private_data: private_data(&opening.request)
                .ok_or_else(|| resources("private data", "cannot be encoded".to_owned()))?,
            responder_resources: attributes.responder_resources_max,
            // This side reads nothing by RDMA.
            initiator_depth: 0,
            rnr_retry_count: RNR_RETRY_COUNT,
        };
        connection
            .post_receives()
            .map_err(|error| resources("receives", error.to_string()))?;
        opening.connection = Some(connection);
        let timeout_us = self.config.host.connect_timeout_us;
        self.cm
            .connect(opening.id, &param, timeout_us, now_us)
            .map_err(|source| ConnectError::Transport { qid, source })
    }

    /// Keeps one device open for the association; another one after a loss replaces it.
    fn use_device(&mut self, device: Rc<dyn Device>) -> Result<(), ConnectError> {
        let same = self
            .device
            .as_ref()
            .is_some_and(|context| Rc::ptr_eq(&context.device, &device));
        if same {
            return Ok(());
        }
        if self.queues.iter().any(Option::is_some) {
            return Err(ConnectError::Resources {
                what: "RDMA device",
                message: "the queues of one association resolved to different devices".to_owned(),
            });
        }
        let queues = u32::from(self.config.host.nr_io_queues);
        let qp_wr_max = device.attributes().qp_wr_max;
        let admin = RingSizes::new(ADMIN_QUEUE_ENTRIES, qp_wr_max);
        let io = RingSizes::new(self.config.host.queue_size, qp_wr_max);
        let cqes = admin.cqes() + queues * io.cqes();
        // The old one first: it may be the same hardware with limits.
        self.device = None;
        self.device = Some(DeviceContext::new(device, &self.memory, cqes)?);
        Ok(())
    }

    fn established(&mut self, param: &ConnectParam, now_us: u64) {
        let Some(Opening {
            qid,
            entries,
            connection: Some(connection),
            ..
        }) = self.opening.take()
        else {
            return;
        };
        let slots = (1..entries).map(|_| Slot::free()).collect();
        let at = usize::from(qid);
        if self.queues.len() <= at {
            self.queues.resize_with(at + 1, || None);
        }
        if let Some(queue) = self.queues.get_mut(at) {
            *queue = Some(ActiveQueue { connection, slots });
        }
        self.host
            .handle_established(qid, param.private_data.as_bytes(), now_us);
    }

    fn drop_opening(&mut self) {
        if let Some(opening) = self.opening.take() {
            drop(opening.connection);
            self.cm.destroy(opening.id);
        }
    }

    /// Drops every connection. Commands of I/O that were not answered wait to be sent again;
    /// those that were answered are finished: dropping the queue pair closed their windows.
    ///
    /// Unless it is an `orderly` end, the connections are given up first: a kernel that went on to
    /// deliver an old copy of a write would do so behind the one that is sent again. `true` when
    /// commands were not answered that change something.
    pub(super) fn close_all(&mut self, orderly: bool) -> bool {
        self.drop_opening();
        self.flushed = None;
        self.losses += 1;
        let mut unanswered = false;
        for at in 0..self.queues.len() {
            let Some(queue) = self.queues.get_mut(at).and_then(Option::take) else {
                continue;
            };
            let ActiveQueue { connection, slots } = queue;
            let id = connection.id;
            if !orderly {
                self.cm.abort(id);
            }
            drop(connection);
            self.cm.destroy(id);
            for slot in slots {
                match slot.owner {
                    Owner::Io(piece) if slot.await_response => {
                        unanswered |= self.left_unanswered(piece);
                    }
                    Owner::Io(piece) => {
                        let result = self.outcome(piece, &slot.cqe);
                        if result.is_ok() && self.caches_writes {
                            self.note_done(piece, slot.sent_us);
                        }
                        self.requests.finish(piece.request, result);
                    }
                    Owner::Passthru { token, opcode, .. } if slot.await_response => {
                        let cause = self.host.lost_cause();
                        let changes = may_change(opcode);
                        unanswered |= changes;
                        let error = if changes {
                            let what = opcode.name().unwrap_or("the I/O command");
                            CommandError::OutcomeUnknown { what, cause }
                        } else {
                            CommandError::Lost(cause)
                        };
                        self.passthru_done(token, Err(error));
                    }
                    Owner::Passthru {
                        token,
                        data,
                        read_bytes,
                        ..
                    } => self.passthru_answered(token, slot.cqe, data.as_ref(), read_bytes),
                    Owner::Free | Owner::Host { .. } => {}
                }
            }
        }
        self.forget_removed_device();
        unanswered
    }
}

fn private_data(request: &CmRequest) -> Option<PrivateData> {
    PrivateData::new(request.encode()?.as_bytes())
}
