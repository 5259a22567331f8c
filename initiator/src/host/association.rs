//! The state of an association, and what goes in and comes out.

use std::collections::VecDeque;
use std::sync::Arc;

use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::rdma_cm::CmAccept;
use capstan_rdma::contract::RejectReason;

use super::action::{Action, AssociationStatus, Event, Step};
use super::backoff::Backoff;
use super::command::{AdminCommands, Waiting};
use super::config::HostConfig;
use super::fencing::Fence;
use super::info::{ControllerInfo, NamespaceInfo, Unidentified};
use super::live::KeepAlive;
use super::queue::{ResponseError, SlotIndex, SubmissionQueue};
use super::scan::Scan;
use super::words;
use crate::error::ConnectError;

/// Entries of the Admin Queue: the least every controller has (NVMe Base 2.1, section 3.3.3.1:
/// Admin Submission Queue of 32 entries over fabrics).
pub(crate) const ADMIN_QUEUE_ENTRIES: u16 = 32;
/// Responses that break the protocol before the connection is given up.
const PROTOCOL_ERRORS_MAX: u32 = 64;
/// A connection that held for so long was a good one: the next loss starts with the shortest wait.
const STEADY_US: u64 = 5_000_000;

/// What the controller did wrong, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Responses with a CID of no outstanding command.
    pub bad_cid: u64,
    /// Responses with an SQHD outside the submitted entries.
    pub bad_sqhd: u64,
    /// Answers of admin commands that do not follow the specification.
    pub bad_data: u64,
    /// Times the association was lost.
    pub losses: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum State {
    Connecting { step: Step, deadline_us: u64 },
    Live { since_us: u64 },
    Waiting { until_us: u64 },
    Resetting { since_us: u64, deadline_us: u64 },
    ShuttingDown { deadline_us: u64 },
    Closed,
    Failed(Arc<ConnectError>),
}

/// Since when, and why, the controller is gone.
#[derive(Clone, Debug)]
pub(super) struct Loss {
    since_us: u64,
    cause: Arc<ConnectError>,
}

/// The host side of one association. See the module.
#[derive(Debug)]
pub struct Host {
    pub(super) config: HostConfig,
    pub(super) state: State,
    /// By QID.
    pub(super) queues: Vec<SubmissionQueue>,
    pub(super) commands: AdminCommands,
    pub(super) actions: VecDeque<Action>,
    pub(super) events: VecDeque<Event>,
    /// Admin commands of the owner that wait for a slot.
    pub(super) waiting: VecDeque<Waiting>,
    pub(super) info: ControllerInfo,
    pub(super) namespaces: Vec<NamespaceInfo>,
    /// Those that are left out there.
    pub(super) unidentified: Vec<Unidentified>,
    /// Each namespace as it was first seen, with the most LBAs it ever had: one that is another now
    /// must not get its I/O.
    pub(super) first_seen: Vec<NamespaceInfo>,
    pub(super) scan: Option<Scan>,
    /// A change was told while a scan was going on.
    pub(super) scan_again: bool,
    pub(super) keep_alive: Option<KeepAlive>,
    pub(super) ready_poll_us: Option<u64>,
    pub(super) ready_timeout_ms: u64,
    /// The controller has refused a queue without SQ flow control.
    pub(super) keeps_flow_control: bool,
    pub(super) loss: Option<Loss>,
    pub(super) fence: Option<Fence>,
    /// Admin commands that may change media were not answered when their connection was lost.
    pub(super) unanswered: bool,
    pub(super) was_live: bool,
    /// The owner has asked for an orderly end.
    pub(super) shutdown_asked: bool,
    ended_in_order: bool,
    backoff: Backoff,
    protocol_errors: u32,
    pub(super) counters: Counters,
}

impl Host {
    /// Starts connecting. `seed` makes the jitter of reconnects; hosts should differ in it.
    #[must_use]
    pub fn new(config: HostConfig, seed: u64, now_us: u64) -> Self {
        let backoff = Backoff::new(config.reconnect_delay_ms, seed);
        let mut host = Self {
            backoff,
            config,
            state: State::Closed,
            queues: Vec::new(),
            commands: AdminCommands::new(ADMIN_QUEUE_ENTRIES),
            actions: VecDeque::new(),
            events: VecDeque::new(),
            waiting: VecDeque::new(),
            info: ControllerInfo::default(),
            namespaces: Vec::new(),
            unidentified: Vec::new(),
            first_seen: Vec::new(),
            scan: None,
            scan_again: false,
            keep_alive: None,
            ready_poll_us: None,
            ready_timeout_ms: 0,
            keeps_flow_control: false,
            loss: None,
            fence: None,
            unanswered: false,
            was_live: false,
            shutdown_asked: false,
            ended_in_order: false,
            protocol_errors: 0,
            counters: Counters::default(),
        };
        host.start(now_us);
        host
    }

    /// How long each step of a connection may take from now on.
    pub(crate) fn set_connect_timeout_us(&mut self, timeout_us: u64) {
        self.config.connect_timeout_us = timeout_us;
    }

    /// What to do next; `None` when there is nothing.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Whether the next action is [`Action::CloseAll`].
    pub(crate) fn closes_next(&self) -> bool {
        matches!(self.actions.front(), Some(Action::CloseAll { .. }))
    }

    /// What to know next; `None` when there is nothing.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When [`Host::handle_timeout`] must be called. Any `handle_*`, [`Host::submit_admin`] and
    /// [`Host::shutdown`] may change it.
    #[must_use]
    pub fn next_deadline_us(&self) -> Option<u64> {
        let own = match &self.state {
            State::Connecting { deadline_us, .. }
            | State::Resetting { deadline_us, .. }
            | State::ShuttingDown { deadline_us } => Some(*deadline_us),
            State::Waiting { until_us } => Some(*until_us),
            State::Live { .. } | State::Closed | State::Failed(_) => None,
        };
        let keep_alive = self.keep_alive.as_ref().map(|k| k.next_us);
        let loss = self.loss_deadline_us();
        [
            own,
            self.ready_poll_us,
            keep_alive,
            loss,
            self.fence_deadline_us(),
            self.commands.next_deadline_us(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Where the association is.
    #[must_use]
    pub fn status(&self, now_us: u64) -> AssociationStatus {
        match &self.state {
            State::Connecting { step, .. } => AssociationStatus::Connecting {
                step: *step,
                attempt: self.backoff.attempts(),
                fails_in_ms: self.fails_in_ms(now_us),
                cause: self.loss.as_ref().map(|loss| Arc::clone(&loss.cause)),
            },
            State::Live { .. } => AssociationStatus::Live,
            State::Waiting { until_us } => AssociationStatus::Waiting {
                attempt: self.backoff.attempts(),
                next_in_ms: until_us.saturating_sub(now_us) / 1000,
                fails_in_ms: self.fails_in_ms(now_us),
                cause: self
                    .loss
                    .as_ref()
                    .map_or_else(|| Arc::new(ConnectError::Closed), |l| Arc::clone(&l.cause)),
            },
            State::Resetting { .. } => AssociationStatus::Resetting,
            State::ShuttingDown { .. } => AssociationStatus::ShuttingDown,
            State::Closed => AssociationStatus::Closed,
            State::Failed(cause) => AssociationStatus::Failed(Arc::clone(cause)),
        }
    }

    /// Whether I/O commands can be submitted.
    #[must_use]
    pub fn is_live(&self) -> bool {
        matches!(self.state, State::Live { .. })
    }

    /// The controller, as far as it is known.
    #[must_use]
    pub fn controller(&self) -> &ControllerInfo {
        &self.info
    }

    /// Whether the association is over, and the controller had confirmed its shutdown.
    #[must_use]
    pub fn has_ended_in_order(&self) -> bool {
        self.ended_in_order
    }

    /// Whether [`Host::shutdown`] was called.
    #[must_use]
    pub fn is_shutting_down(&self) -> bool {
        self.shutdown_asked
    }

    /// Whether namespaces are being looked for.
    #[must_use]
    pub fn is_scanning(&self) -> bool {
        self.scan.is_some()
    }

    /// Namespaces found by the last scan, by NSID.
    #[must_use]
    pub fn namespaces(&self) -> &[NamespaceInfo] {
        &self.namespaces
    }

    /// Namespaces that the last scan left out, as their Identify failed; by NSID.
    #[must_use]
    pub fn unidentified(&self) -> &[Unidentified] {
        &self.unidentified
    }

    /// Whether the namespace was there, now or before.
    #[must_use]
    pub fn has_seen(&self, nsid: u32) -> bool {
        self.first_seen.iter().any(|n| n.nsid == nsid)
    }

    /// The most bytes that a namespace had in any scan.
    #[must_use]
    pub fn largest_seen(&self, nsid: u32) -> Option<u64> {
        let seen = self.first_seen.iter().find(|n| n.nsid == nsid);
        seen.map(NamespaceInfo::size_bytes)
    }

    /// What the controller did wrong so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// I/O queues there are; their QIDs are `1..=io_queues()`.
    #[must_use]
    pub fn io_queues(&self) -> u16 {
        u16::try_from(self.queues.len().saturating_sub(1)).unwrap_or(u16::MAX)
    }

    /// CIDs and credit of a queue. I/O commands may be submitted on `1..=io_queues()` while
    /// [`Host::is_live`].
    pub fn queue(&mut self, qid: u16) -> Option<&mut SubmissionQueue> {
        self.queues.get_mut(usize::from(qid))
    }

    /// A queue's RDMA connection is up; `private_data` is what the target accepted with.
    pub fn handle_established(&mut self, qid: u16, private_data: &[u8], now_us: u64) {
        if !self.is_opening(qid) {
            return;
        }
        match CmAccept::parse(private_data) {
            Ok(accept) => {
                if let Some(queue) = self.queue(qid) {
                    // CRQSIZE: receives the controller posts. A controller that says none would
                    // be of no use; some leave the field zero.
                    if accept.crqsize != 0 {
                        queue.limit_outstanding(accept.crqsize);
                    }
                }
                self.connect_queue(qid, now_us);
            }
            Err(error) => {
                let what = format!("RDMA_CM accept: {error}");
                self.fail(ConnectError::Protocol { qid, what }, now_us);
            }
        }
    }

    /// A queue's NVMe/TCP connection is set up.
    pub fn handle_set_up(&mut self, qid: u16, now_us: u64) {
        if self.is_opening(qid) {
            self.connect_queue(qid, now_us);
        }
    }

    /// A queue's RDMA connection was refused.
    pub fn handle_rejected(
        &mut self,
        qid: u16,
        reason: RejectReason,
        private_data: &[u8],
        now_us: u64,
    ) {
        if self.is_opening(qid) {
            let by_target = matches!(reason, RejectReason::Consumer);
            let (reason, next) = words::rejected(reason, private_data);
            let cause = ConnectError::Rejected {
                qid,
                reason,
                next,
                by_target,
            };
            self.fail(cause, now_us);
        }
    }

    /// A queue's connection could not be made, for this side's or the network's reasons.
    pub fn handle_open_failed(&mut self, qid: u16, cause: ConnectError, now_us: u64) {
        if self.is_opening(qid) {
            self.fail(cause, now_us);
        }
    }

    /// A connection ended, or its queue pair broke.
    pub fn handle_disconnected(&mut self, qid: u16, cause: String, now_us: u64) {
        if self.is_connected() && usize::from(qid) < self.queues.len().max(1) {
            self.fail(ConnectError::Disconnected { qid, cause }, now_us);
        }
    }

    /// Something the driver noticed makes the connection useless.
    pub fn handle_broken(&mut self, cause: ConnectError, now_us: u64) {
        if self.is_connected() {
            self.fail(cause, now_us);
        }
    }

    /// A response came. The slot stays taken until [`Host::release`].
    ///
    /// # Errors
    /// It answers no outstanding command: counted here; the driver drops it. Too many of them end
    /// the connection.
    pub fn take_response(
        &mut self,
        qid: u16,
        cqe: &Cqe,
        now_us: u64,
    ) -> Result<SlotIndex, ResponseError> {
        let unknown = ResponseError::UnknownCid {
            cid: cqe.cid.get(),
            entries: 0,
        };
        let Some(queue) = self.queues.get_mut(usize::from(qid)) else {
            self.counters.bad_cid += 1;
            return Err(unknown);
        };
        let sqhd = cqe.sqhd.get();
        // A completion sent before the queue is known to the controller may carry anything; the
        // CID decides.
        let head = queue.advance_head(sqhd);
        let slot = queue.complete(cqe.cid.get());
        if head.is_err() {
            self.counters.bad_sqhd += 1;
        }
        if slot.is_err() {
            self.counters.bad_cid += 1;
            self.protocol_errors += 1;
            if self.protocol_errors > PROTOCOL_ERRORS_MAX {
                let what =
                    format!("more than {PROTOCOL_ERRORS_MAX} responses to no outstanding command");
                self.handle_broken(ConnectError::Protocol { qid, what }, now_us);
            }
        }
        slot
    }

    /// The memory of an answered command is back: its slot may be used again.
    pub fn release(&mut self, qid: u16, slot: SlotIndex) {
        if let Some(queue) = self.queue(qid) {
            queue.release(slot);
        }
    }

    /// The time of [`Host::next_deadline_us`] has come.
    pub fn handle_timeout(&mut self, now_us: u64) {
        if let Some(deadline_us) = self.loss_deadline_us()
            && now_us >= deadline_us
        {
            self.give_up(now_us);
            return;
        }
        match self.state {
            State::Waiting { until_us } if now_us >= until_us => self.start(now_us),
            State::Connecting { step, deadline_us } if now_us >= deadline_us => {
                self.step_timed_out(step, now_us);
            }
            State::Resetting { deadline_us, .. } if now_us >= deadline_us => {
                self.lose(ConnectError::Reset, false, now_us);
            }
            State::ShuttingDown { deadline_us } if now_us >= deadline_us => self.close(false),
            _ => {
                self.tick_fence(now_us);
                self.poll_ready(now_us);
                self.tick_keep_alive(now_us);
                self.expire_commands(now_us);
            }
        }
    }

    /// Connections exist or are being made.
    pub(super) fn is_connected(&self) -> bool {
        matches!(
            self.state,
            State::Connecting { .. }
                | State::Live { .. }
                | State::Resetting { .. }
                | State::ShuttingDown { .. }
        )
    }

    fn is_opening(&self, qid: u16) -> bool {
        match self.state {
            State::Connecting { step, .. } => match step {
                Step::OpenAdmin => qid == 0,
                Step::OpenIo(opening) => qid == opening,
                _ => false,
            },
            _ => false,
        }
    }

    fn fails_in_ms(&self, now_us: u64) -> Option<u64> {
        let deadline_us = self.loss_deadline_us()?;
        Some(deadline_us.saturating_sub(now_us) / 1000)
    }

    fn loss_deadline_us(&self) -> Option<u64> {
        let loss = self.loss.as_ref()?;
        let tmo_us = self.config.ctrl_loss_tmo_us?;
        match self.state {
            State::Waiting { .. } | State::Connecting { .. } => {
                Some(loss.since_us.saturating_add(tmo_us))
            }
            _ => None,
        }
    }

    /// The connection is useless: wait and try again, or fail for good.
    pub(super) fn fail(&mut self, cause: ConnectError, now_us: u64) {
        self.lose(cause, false, now_us);
    }

    /// The association is over; `orderly` when the controller has been shut down, or there is none.
    pub(super) fn lose(&mut self, cause: ConnectError, orderly: bool, now_us: u64) {
        let cause = Arc::new(cause);
        let previous = std::mem::replace(&mut self.state, State::Closed);
        self.drop_connections(&cause, orderly);
        if matches!(previous, State::ShuttingDown { .. }) || self.shutdown_asked {
            self.events.push_back(Event::Closed);
            return;
        }
        if let State::Live { since_us } | State::Resetting { since_us, .. } = previous {
            self.counters.losses += 1;
            if now_us.saturating_sub(since_us) >= STEADY_US {
                self.backoff.reset();
            }
            self.events.push_back(Event::Lost {
                cause: Arc::clone(&cause),
            });
            self.loss = Some(Loss {
                since_us: now_us,
                cause: Arc::clone(&cause),
            });
        } else if let Some(loss) = &mut self.loss {
            loss.cause = Arc::clone(&cause);
        }
        if !self.was_live {
            self.end(cause);
            return;
        }
        if let State::Connecting { .. } = previous {
            self.events.push_back(Event::AttemptFailed {
                attempt: self.backoff.attempts(),
                cause: Arc::clone(&cause),
            });
        }
        let until_us = match previous {
            // It was asked for: nothing is waited for.
            State::Resetting { .. } => now_us,
            _ => now_us.saturating_add(self.backoff.next_delay_us(now_us)),
        };
        self.state = State::Waiting { until_us };
        if self.loss_deadline_us().is_some_and(|end| now_us >= end) {
            self.give_up(now_us);
        }
    }

    /// Why the association is not live.
    pub(crate) fn lost_cause(&self) -> Arc<ConnectError> {
        match (&self.state, &self.loss) {
            (State::Failed(cause), _) => Arc::clone(cause),
            (State::Closed | State::ShuttingDown { .. }, _) | (_, None) => {
                Arc::new(ConnectError::Closed)
            }
            (_, Some(loss)) => Arc::clone(&loss.cause),
        }
    }

    /// `ctrl_loss_tmo` has passed.
    fn give_up(&mut self, now_us: u64) {
        let Some(loss) = self.loss.take() else {
            return;
        };
        if self.is_connected() {
            self.drop_connections(&loss.cause, false);
        }
        self.end(Arc::new(ConnectError::LossTimeout {
            lost_s: now_us.saturating_sub(loss.since_us) / 1_000_000,
            attempts: self.backoff.attempts(),
            ctrl_loss_tmo_s: self.config.ctrl_loss_tmo_us.unwrap_or(0) / 1_000_000,
            cause: loss.cause,
        }));
    }

    fn end(&mut self, cause: Arc<ConnectError>) {
        self.fence = None;
        self.state = State::Failed(Arc::clone(&cause));
        self.fail_waiting(&cause);
        self.events.push_back(Event::Failed { cause });
    }

    /// Shut down in order, if `orderly`, or as far as that went.
    pub(super) fn close(&mut self, orderly: bool) {
        self.drop_connections(&Arc::new(ConnectError::Closed), orderly);
        self.fence = None;
        self.ended_in_order = orderly;
        self.state = State::Closed;
        self.events.push_back(Event::Closed);
    }

    pub(super) fn drop_connections(&mut self, cause: &Arc<ConnectError>, orderly: bool) {
        self.actions.clear();
        self.actions.push_back(Action::CloseAll { orderly });
        self.fail_commands(cause);
        if self.shutdown_asked {
            self.fail_waiting(cause);
        }
        self.fence_disconnected();
        for queue in &mut self.queues {
            queue.reset();
        }
        self.keep_alive = None;
        self.ready_poll_us = None;
        self.scan = None;
        self.scan_again = false;
        self.protocol_errors = 0;
    }

    /// Live: forget the loss.
    pub(super) fn become_live(&mut self, now_us: u64) {
        self.state = State::Live { since_us: now_us };
        self.loss = None;
        self.events.push_back(Event::Live {
            again: self.was_live,
        });
        self.was_live = true;
    }
}
