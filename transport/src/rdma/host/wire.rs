//! From completions to events, and the closing of all queues.

use std::os::fd::RawFd;

use capstan_memory::Pool;
use capstan_nvme_proto::sqe::Sqe;
use capstan_nvme_proto::text::Count;
use capstan_rdma::contract::{
    Access, ConnectionManager, DeviceAttributes, WcStatus, WorkCompletion,
};

use super::connection::{Offered, RdmaHostConnection, RingSizes};
use super::device::{DeviceContext, HostSlabs};
use super::open::RdmaOpening;
use super::wr_id::{HostWrId, WorkKind};
use crate::host::{HostEnd, HostEvent, Offer, OpenError, Response, SendError, WindowsClosed};
use crate::limits::CQE_BYTES;

/// Completions taken in one poll: as many as a deep queue has, because the commands that follow
/// them leave with one system call.
const POLL_BATCH: usize = 128;
/// How long flushed work requests wait for the connection manager to say why, in microseconds.
const CAUSE_WAIT_US: u64 = 100_000;

/// What a [`RdmaHostWire`] is made for.
#[derive(Clone)]
pub struct RdmaHostSettings {
    /// Entries of the Admin queue.
    pub admin_entries: u16,
    /// Most I/O queues.
    pub io_queues: u16,
    /// Entries of each.
    pub io_entries: u16,
    /// The memory of the data of admin commands.
    pub admin: Pool,
    /// The memory of the data of I/O.
    pub data: Pool,
}

/// The queues of one association over RDMA.
pub struct RdmaHostWire {
    /// By QID. Dropped first: connections before their device and their memory.
    pub(super) queues: Vec<Option<RdmaHostConnection>>,
    pub(super) opening: Option<RdmaOpening>,
    pub(super) device: Option<DeviceContext>,
    pub(super) memory: HostSlabs,
    pub(super) cm: Box<dyn ConnectionManager>,
    /// Entries of the Admin queue, entries of an I/O queue, and how many of these.
    pub(super) entries: (u16, u16, u16),
    /// Which connection of a queue its work requests are of.
    pub(super) epoch: u16,
    /// Work requests were flushed; the cause is awaited until then.
    flushed: Option<(u16, u64)>,
    windows_closed: WindowsClosed,
    completions: Box<[WorkCompletion; POLL_BATCH]>,
}

impl RdmaHostWire {
    /// Connects through `cm`.
    ///
    /// # Errors
    /// There is no memory for the capsules.
    pub fn new(
        cm: Box<dyn ConnectionManager>,
        settings: RdmaHostSettings,
    ) -> Result<Self, OpenError> {
        let RdmaHostSettings {
            admin_entries,
            io_queues,
            io_entries,
            admin,
            data,
        } = settings;
        // The device may take fewer work requests; that is known when it is.
        let sizes = |entries| RingSizes::new(entries, u32::MAX);
        let memory = HostSlabs::new(
            sizes(admin_entries),
            sizes(io_entries),
            io_queues,
            admin,
            data,
        )?;
        Ok(Self {
            queues: Vec::new(),
            opening: None,
            device: None,
            memory,
            cm,
            entries: (admin_entries, io_entries, io_queues),
            epoch: 0,
            flushed: None,
            windows_closed: WindowsClosed::default(),
            completions: Box::new([WorkCompletion::EMPTY; POLL_BATCH]),
        })
    }

    /// What the device can do; `None` while there is no connection.
    #[must_use]
    pub fn device_attributes(&self) -> Option<&DeviceAttributes> {
        Some(self.device.as_ref()?.attributes())
    }

    /// Whether shared memory has taken the place of TCP; `false` while there is no connection.
    #[must_use]
    pub fn shares_memory(&self) -> bool {
        let mut queues = self.queues.iter().flatten();
        queues.any(RdmaHostConnection::shares_memory)
    }

    /// What closed the memory windows of commands so far.
    #[must_use]
    pub fn windows_closed(&self) -> WindowsClosed {
        self.windows_closed
    }

    /// Whether capsules can carry data.
    #[must_use]
    pub fn takes_in_capsule(&self) -> bool {
        self.device_attributes()
            .is_some_and(|attributes| attributes.sge_max >= 2)
    }

    /// How many queues are connected.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.queues.iter().flatten().count()
    }

    /// Whether a queue takes another command now.
    #[must_use]
    #[inline]
    pub fn has_room(&self, qid: u16) -> bool {
        let queue = self.queues.get(usize::from(qid));
        let queue = queue.and_then(Option::as_ref);
        queue.is_some_and(RdmaHostConnection::has_room)
    }

    /// Sends a command, whose data pointer this fills in, in `slot` of its queue: one less than the
    /// entries, each until its memory is back. It leaves with [`RdmaHostWire::flush`].
    ///
    /// # Errors
    /// The queue is to be closed.
    #[inline]
    pub fn send(
        &mut self,
        qid: u16,
        slot: u16,
        sqe: &mut Sqe,
        offer: Offer<'_>,
    ) -> Result<(), SendError> {
        let queue = self.queues.get_mut(usize::from(qid));
        let (Some(Some(queue)), Some(device)) = (queue, &self.device) else {
            return Err(SendError::NotConnected);
        };
        let offered = match offer {
            Offer::None => Offered::None,
            Offer::InCapsule(span) => Offered::InCapsule(device.keyed(span)),
            Offer::ToController(span) => Offered::Keyed(device.keyed(span), Access::REMOTE_READ),
            Offer::FromController(span) => Offered::Keyed(device.keyed(span), Access::REMOTE_WRITE),
        };
        queue.issue(slot, sqe, offered)
    }

    /// `response` is that of the command in `slot`. Whether its memory is back; where it is not,
    /// [`HostEvent::Revoked`] follows.
    ///
    /// # Errors
    /// The queue is to be closed.
    #[inline]
    pub fn answered(
        &mut self,
        qid: u16,
        slot: u16,
        response: &Response,
    ) -> Result<bool, SendError> {
        let queue = self.queues.get_mut(usize::from(qid));
        let Some(Some(queue)) = queue else {
            return Err(SendError::NotConnected);
        };
        Ok(queue.answered(slot, response.invalidated, &mut self.windows_closed)?)
    }

    /// What was sent leaves.
    #[inline]
    pub fn flush(&mut self) {
        for queue in self.queues.iter_mut().flatten() {
            queue.ring_doorbell();
        }
    }

    /// Takes what has happened to commands, within the budget of a turn. Whether anything has.
    pub fn poll(&mut self, now_us: u64, events: &mut Vec<(u16, HostEvent)>) -> bool {
        let Some(device) = &self.device else {
            return false;
        };
        let count = device.cq.poll(&mut self.completions[..]);
        for at in 0..count.min(POLL_BATCH) {
            let completion = self.completions[at];
            self.completed(&completion, now_us, events);
        }
        count > 0
    }

    /// Takes what has happened to connections. Whether anything has.
    pub fn poll_connections(&mut self, now_us: u64, events: &mut Vec<(u16, HostEvent)>) -> bool {
        let busy = self.poll_cm(now_us, events);
        if let Some((qid, deadline_us)) = self.flushed
            && now_us >= deadline_us
        {
            self.flushed = None;
            let cause = "work requests were flushed and no cause was told".to_owned();
            ended(events, qid, HostEnd::Disconnected(cause));
        }
        busy
    }

    /// Whether [`RdmaHostWire::poll_connections`] is to be called in each turn.
    #[must_use]
    pub fn awaits_cause(&self) -> bool {
        self.flushed.is_some()
    }

    pub(super) fn forget_flushed(&mut self) {
        self.flushed = None;
    }

    fn completed(
        &mut self,
        completion: &WorkCompletion,
        now_us: u64,
        events: &mut Vec<(u16, HostEvent)>,
    ) {
        let Some(HostWrId {
            kind,
            qid,
            epoch,
            value,
        }) = HostWrId::unpack(completion.wr_id)
        else {
            return;
        };
        let Some(Some(queue)) = self.queues.get_mut(usize::from(qid)) else {
            // A queue that is being connected has only receives out; their flush says nothing the
            // connection manager does not.
            return;
        };
        if queue.epoch() != epoch {
            return;
        }
        match completion.status {
            WcStatus::Success => {}
            WcStatus::WrFlushError => {
                let deadline_us = now_us.saturating_add(CAUSE_WAIT_US);
                self.flushed.get_or_insert((qid, deadline_us));
                return;
            }
            status => return self.broken(qid, kind, status, now_us, events),
        }
        let is_back = match kind {
            WorkKind::Recv => {
                let event = response(queue, value, completion);
                return events.push((qid, event));
            }
            WorkKind::Send => {
                queue.retire();
                false
            }
            WorkKind::SendData => {
                queue.retire();
                queue.not_sending(value)
            }
            WorkKind::Invalidate => {
                queue.retire();
                queue.closed(value)
            }
        };
        if is_back {
            events.push((qid, HostEvent::Revoked(value)));
        }
    }

    /// A work request failed: the queue pair is in the error state.
    fn broken(
        &mut self,
        qid: u16,
        kind: WorkKind,
        status: WcStatus,
        now_us: u64,
        events: &mut Vec<(u16, HostEvent)>,
    ) {
        let what = match kind {
            WorkKind::Recv => "receiving a response",
            WorkKind::Send | WorkKind::SendData => "sending a command",
            WorkKind::Invalidate => "closing a memory window",
        };
        // The provider knows more of the cause than the status tells.
        self.poll_cm(now_us, events);
        let cause = format!("{what}: {status}");
        ended(events, qid, HostEnd::Disconnected(cause));
    }

    /// Closes every queue, and gives up the one that is being connected. Nothing of them reaches
    /// memory any more when this returns, and no event of theirs follows.
    ///
    /// Unless it is an `orderly` end, the connections are given up first: a kernel that went on to
    /// deliver an old copy of a write would do so behind the one that is sent again.
    pub fn close(&mut self, orderly: bool) {
        self.drop_opening();
        self.flushed = None;
        for connection in self.queues.iter_mut().filter_map(Option::take) {
            let id = connection.id;
            if !orderly {
                self.cm.abort(id);
            }
            drop(connection);
            self.cm.destroy(id);
        }
        self.forget_removed_device();
    }

    /// Prepares to sleep: adds what to wait for. True where there is something to take.
    pub fn arm(&mut self, fds: &mut Vec<RawFd>) -> bool {
        if let Some(device) = &self.device {
            if device.cq.arm() {
                return true;
            }
            fds.push(device.cq.fd());
        }
        if self.cm.arm() {
            return true;
        }
        fds.push(self.cm.fd());
        false
    }

    /// When to poll even if every descriptor stays silent.
    #[must_use]
    pub fn next_deadline_us(&self) -> Option<u64> {
        let flushed_us = self.flushed.map(|(_, deadline_us)| deadline_us);
        let deadlines = [self.cm.next_deadline_us(), flushed_us];
        deadlines.into_iter().flatten().min()
    }
}

impl Drop for RdmaHostWire {
    fn drop(&mut self) {
        self.close(false);
    }
}

pub(super) fn ended(events: &mut Vec<(u16, HostEvent)>, qid: u16, end: HostEnd) {
    events.push((qid, HostEvent::Ended(Box::new(end))));
}

fn response(
    queue: &mut RdmaHostConnection,
    receive: u16,
    completion: &WorkCompletion,
) -> HostEvent {
    let cqe = match queue.take_response(receive) {
        Ok(cqe) => cqe,
        Err(error) => {
            let cause = format!("posting a receive again: {error}");
            return HostEvent::Ended(Box::new(HostEnd::Disconnected(cause)));
        }
    };
    if completion.byte_len != CQE_BYTES {
        let what = format!(
            "a response capsule has {}, expected {CQE_BYTES}",
            Count(completion.byte_len.into(), "byte")
        );
        return HostEvent::Ended(Box::new(HostEnd::Violation(what)));
    }
    HostEvent::Response(Response {
        is_corrupt: false,
        cqe,
        invalidated: completion.invalidated,
    })
}
