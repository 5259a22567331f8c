//! Connections: making them one after the other, and what the connection manager says of them.

use std::rc::Rc;

use capstan_rdma::contract::{CmEventKind, CmId, ConnectParam, Device, QpConfig, ReceiveSource};

use super::connection::{ConnectionParts, RdmaHostConnection, RingSizes};
use super::device::DeviceContext;
use super::wire::{RdmaHostWire, ended};
use crate::host::{HostEnd, HostEvent, OpenError, OpenQueue};
use crate::limits::INLINE_BYTES;

/// Receiver-not-ready retries: for ever. The controller posts its receives before it accepts, so a
/// not-ready receiver is a short queue, not a dead one; the I/O timeout bounds the wait.
const RNR_RETRY_COUNT: u8 = 7;

/// A connection being made.
pub(super) struct RdmaOpening {
    queue: OpenQueue,
    /// Dropped before the id is.
    connection: Option<RdmaHostConnection>,
    id: CmId,
}

impl RdmaHostWire {
    /// Begins to connect a queue, one at a time. Leads to [`HostEvent::Connected`],
    /// [`HostEvent::Rejected`] or [`HostEvent::OpenFailed`].
    ///
    /// # Errors
    /// It could not be begun.
    pub fn open(&mut self, queue: OpenQueue, now_us: u64) -> Result<(), OpenError> {
        let id = self
            .cm
            .resolve(queue.destination, queue.source, queue.timeout_us, now_us)
            .map_err(OpenError::Connection)?;
        self.opening = Some(RdmaOpening {
            queue,
            connection: None,
            id,
        });
        Ok(())
    }

    /// Takes the connection manager's events.
    pub(super) fn poll_cm(&mut self, now_us: u64, events: &mut Vec<(u16, HostEvent)>) -> bool {
        let mut busy = false;
        while let Some(event) = self.cm.poll(now_us) {
            busy = true;
            let opening = self.opening.as_ref().filter(|o| o.id == event.id);
            let opening = opening.map(|opening| opening.queue.qid);
            // Other events are of connections that are closed already.
            let Some(qid) = opening.or_else(|| self.qid_of(event.id)) else {
                continue;
            };
            let opening = opening.is_some();
            match event.kind {
                CmEventKind::Resolved if opening => {
                    if let Err(error) = self.resolved(now_us) {
                        events.push((qid, HostEvent::OpenFailed(Box::new(error))));
                    }
                }
                CmEventKind::Established { param } if opening => {
                    if self.established() {
                        let sent_along = Some(Box::new(param.private_data));
                        events.push((qid, HostEvent::Connected(sent_along)));
                    }
                }
                CmEventKind::Rejected {
                    reason,
                    private_data,
                } if opening => {
                    self.drop_opening();
                    let sent_along = Box::new(private_data);
                    events.push((qid, HostEvent::Rejected(reason, sent_along)));
                }
                CmEventKind::Failed(error) if opening => {
                    self.open_failed(qid, OpenError::Connection(error), events);
                }
                CmEventKind::Failed(error) => {
                    self.forget_flushed();
                    ended(events, qid, HostEnd::Failed(error));
                }
                CmEventKind::Disconnected { cause, .. } => {
                    self.disconnected(qid, opening, cause, events);
                }
                CmEventKind::DeviceRemoved => {
                    let cause = "the RDMA device was removed".to_owned();
                    self.disconnected(qid, opening, cause, events);
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

    fn disconnected(
        &mut self,
        qid: u16,
        opening: bool,
        cause: String,
        events: &mut Vec<(u16, HostEvent)>,
    ) {
        if opening {
            self.open_failed(qid, OpenError::Disconnected(cause), events);
        } else {
            self.forget_flushed();
            ended(events, qid, HostEnd::Disconnected(cause));
        }
    }

    fn open_failed(&mut self, qid: u16, error: OpenError, events: &mut Vec<(u16, HostEvent)>) {
        self.forget_flushed();
        self.drop_opening();
        events.push((qid, HostEvent::OpenFailed(Box::new(error))));
    }

    /// Lets go of a device that was removed, once no connection is left.
    pub(super) fn forget_removed_device(&mut self) {
        let idle = self.opening.is_none() && self.queues.iter().all(Option::is_none);
        if let Some(device) = self
            .device
            .take_if(|context| idle && context.device.is_removed())
        {
            let device = &device.attributes().name;
            tracing::info!(device, "closed the RDMA device that was removed");
        }
    }

    fn qid_of(&self, id: CmId) -> Option<u16> {
        let mut queues = (0_u16..).zip(&self.queues);
        queues
            .find(|(_, queue)| queue.as_ref().is_some_and(|queue| queue.id == id))
            .map(|(qid, _)| qid)
    }

    /// The way to the target is known: make the queue pair and connect.
    fn resolved(&mut self, now_us: u64) -> Result<(), OpenError> {
        let Some(mut opening) = self.opening.take() else {
            return Ok(());
        };
        let prepared = self.prepare(&mut opening, now_us);
        self.opening = Some(opening);
        if prepared.is_err() {
            self.drop_opening();
        }
        prepared
    }

    fn prepare(&mut self, opening: &mut RdmaOpening, now_us: u64) -> Result<(), OpenError> {
        let OpenQueue {
            qid,
            entries,
            timeout_us,
            private_data,
            ..
        } = opening.queue;
        let resources = |what: &'static str, message: String| OpenError::Resources {
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
        let sizes = RingSizes::new(entries, attributes.qp_wr_max);
        let config = QpConfig {
            send_cq: Rc::clone(&context.cq),
            recv_cq: Rc::clone(&context.cq),
            send_wr_max: sizes.send_wr_max,
            receives: ReceiveSource::Own(u32::from(sizes.responses)),
            send_sge_max: 2.min(attributes.sge_max),
            recv_sge_max: 1,
            inline_bytes: INLINE_BYTES,
        };
        let qp = self
            .cm
            .create_qp(opening.id, &context.pd, &config)
            .map_err(|error| resources("queue pair", error.to_string()))?;
        let windows = if context.windows {
            let count = entries.saturating_sub(1);
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
        let mut connection = RdmaHostConnection::new(ConnectionParts {
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
            private_data,
            responder_resources: attributes.responder_resources_max,
            // This side reads nothing by RDMA.
            initiator_depth: 0,
            rnr_retry_count: RNR_RETRY_COUNT,
        };
        connection
            .post_receives()
            .map_err(|error| resources("receives", error.to_string()))?;
        opening.connection = Some(connection);
        self.cm
            .connect(opening.id, &param, timeout_us, now_us)
            .map_err(OpenError::Connection)
    }

    /// Keeps one device open for the association; another one after a loss replaces it.
    fn use_device(&mut self, device: Rc<dyn Device>) -> Result<(), OpenError> {
        let same = self
            .device
            .as_ref()
            .is_some_and(|context| Rc::ptr_eq(&context.device, &device));
        if same {
            return Ok(());
        }
        if self.queues.iter().any(Option::is_some) {
            return Err(OpenError::Resources {
                what: "RDMA device",
                message: "the queues of one association resolved to different devices".to_owned(),
            });
        }
        let (admin_entries, io_entries, io_queues) = self.entries;
        let qp_wr_max = device.attributes().qp_wr_max;
        let admin = RingSizes::new(admin_entries, qp_wr_max);
        let io = RingSizes::new(io_entries, qp_wr_max);
        let cqes = admin.cqes() + u32::from(io_queues) * io.cqes();
        // The old one first: it may be the same hardware with limits.
        self.device = None;
        self.device = Some(DeviceContext::new(device, &self.memory, cqes)?);
        Ok(())
    }

    /// Whether there was a queue to be established.
    fn established(&mut self) -> bool {
        let Some(RdmaOpening {
            queue,
            connection: Some(connection),
            ..
        }) = self.opening.take()
        else {
            return false;
        };
        let at = usize::from(queue.qid);
        if self.queues.len() <= at {
            self.queues.resize_with(at + 1, || None);
        }
        if let Some(place) = self.queues.get_mut(at) {
            *place = Some(connection);
        }
        true
    }

    pub(super) fn drop_opening(&mut self) {
        if let Some(opening) = self.opening.take() {
            drop(opening.connection);
            self.cm.destroy(opening.id);
        }
    }
}
