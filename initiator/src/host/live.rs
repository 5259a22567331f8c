//! A live association: Keep Alive, asynchronous events, shutdown.

use capstan_nvme_proto::async_event::{AsyncEvent, AsyncEventType, NoticeEvent};
use capstan_nvme_proto::command::{AdminCommand, GetLogPage};
use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::log::LogPageId;
use capstan_nvme_proto::property::{Csts, ShutdownStatus};
use capstan_nvme_proto::sgl::Sgl;
use capstan_nvme_proto::status::Status;
use capstan_rdma::PEER_CAUSED;

use super::action::{CommandData, Event};
use super::association::{Host, State};
use super::command::Purpose;
use super::scan::Scan;
use crate::error::ConnectError;

/// Asynchronous Event Requests outstanding at once, if the controller takes as many (AERL).
const ASYNC_EVENTS_MAX: u16 = 4;
/// Bound of an orderly shutdown, in microseconds: closing is polite, not vital.
const SHUTDOWN_TIMEOUT_US: u64 = 5_000_000;
/// Between two looks at CSTS.SHST, in microseconds.
const SHUTDOWN_POLL_US: u64 = 10_000;
/// Bytes of the Changed Attached Namespace List: 1024 NSIDs.
const CHANGED_NAMESPACES_BYTES: u32 = 4096;
/// Bytes read of any other log page to re-enable its event.
const LOG_HEADER_BYTES: u32 = 64;

/// The Keep Alive timer of this host. It runs at half of KATO, so that one late command is no
/// expiry (NVMe Base 2.1, section 3.9), and at a quarter where commands stand for Keep Alive: then
/// two intervals may lie between a command and the Keep Alive behind it.
#[derive(Debug)]
pub(super) struct KeepAlive {
    interval_us: u64,
    pub(super) next_us: u64,
    /// Any command counts as Keep Alive (CTRATT.TBKAS; NVMe Base 2.1, section 3.9.4).
    traffic_based: bool,
    /// When the command was sent that is the youngest of those which have been answered.
    answered_sent_us: u64,
}

impl KeepAlive {
    /// `None` when Keep Alive is off.
    pub(super) fn new(kato_ms: u32, traffic_based: bool, now_us: u64) -> Option<Self> {
        let interval_us = u64::from(kato_ms) * if traffic_based { 250 } else { 500 };
        (kato_ms != 0).then_some(Self {
            interval_us,
            next_us: now_us + interval_us,
            traffic_based,
            answered_sent_us: 0,
        })
    }
}

impl Host {
    /// I/O that was sent at `sent_us` was answered: with a controller that supports it, that is as
    /// good as a Keep Alive sent then. The answer to what was sent long ago is none: the controller
    /// counts what arrives (NVMe Base 2.1, section 3.9.4).
    pub fn note_traffic(&mut self, sent_us: u64) {
        if let Some(keep_alive) = &mut self.keep_alive {
            keep_alive.answered_sent_us = keep_alive.answered_sent_us.max(sent_us);
        }
    }

    pub(super) fn tick_keep_alive(&mut self, now_us: u64) {
        let Some(keep_alive) = &mut self.keep_alive else {
            return;
        };
        if now_us < keep_alive.next_us {
            return;
        }
        let began_us = keep_alive.next_us.saturating_sub(keep_alive.interval_us);
        let skip = keep_alive.traffic_based && keep_alive.answered_sent_us >= began_us;
        keep_alive.next_us = now_us + keep_alive.interval_us;
        // One outstanding is enough: its own deadline is KATO.
        if !skip && !self.commands.has(Purpose::KeepAlive) {
            self.send(Purpose::KeepAlive, CommandData::None, now_us, |cid| {
                AdminCommand::KeepAlive.encode(cid, Sgl::EMPTY)
            });
        }
    }

    pub(super) fn keep_alive_answered(&mut self, cqe: &Cqe, now_us: u64) {
        let status = cqe.status();
        if !status.is_success() {
            let step = "Keep Alive";
            self.fail(ConnectError::Command { step, status }, now_us);
        }
    }

    /// Sends the Asynchronous Event Requests of a new association.
    pub(super) fn request_events(&mut self, now_us: u64) {
        if self.info.wanted_events().is_empty() {
            return;
        }
        let count = self.info.async_events_max.min(ASYNC_EVENTS_MAX);
        for _ in 0..count {
            self.request_event(now_us);
        }
    }

    fn request_event(&mut self, now_us: u64) {
        self.send(Purpose::AsyncEvent, CommandData::None, now_us, |cid| {
            AdminCommand::AsynchronousEventRequest.encode(cid, Sgl::EMPTY)
        });
    }

    pub(super) fn async_event(&mut self, cqe: &Cqe, now_us: u64) {
        let status = cqe.status();
        if !self.is_live() {
            return;
        }
        if !status.is_success() {
            // Asynchronous Event Request Limit Exceeded or an abort: one request less is kept.
            if status.code() != Status::ABORT_REQUESTED {
                tracing::debug!(%status, "an Asynchronous Event Request was refused");
            }
            return;
        }
        let event = AsyncEvent::decode(cqe.dw0.get());
        tracing::info!(target: PEER_CAUSED, %event, log_page = %event.log_page, "asynchronous event");
        let notice =
            (event.event_type == AsyncEventType::NOTICE).then_some(NoticeEvent(event.information));
        match notice {
            Some(NoticeEvent::NAMESPACE_ATTRIBUTE_CHANGED) => {
                self.read_event_log(event.log_page, CHANGED_NAMESPACES_BYTES, now_us);
            }
            Some(NoticeEvent::CROSS_CONTROLLER_RESET_COMPLETED) if self.holds_writes() => {
                self.look_at_reset(now_us);
            }
            Some(NoticeEvent::DISCOVERY_LOG_CHANGE) => {
                // Reading the log re-enables the event; its reader does that.
                self.events.push_back(Event::DiscoveryLogChanged);
            }
            _ if event.log_page.0 != 0 => {
                self.read_event_log(event.log_page, LOG_HEADER_BYTES, now_us);
            }
            _ => {}
        }
        if self.is_live() {
            self.request_event(now_us);
        }
    }

    fn read_event_log(&mut self, lid: LogPageId, len_bytes: u32, now_us: u64) {
        let command = AdminCommand::GetLogPage(GetLogPage::new(lid, len_bytes.into()));
        let data = CommandData::FromController(len_bytes);
        self.send(Purpose::EventLog(lid), data, now_us, |cid| {
            command.encode(cid, Sgl::EMPTY)
        });
    }

    /// The log page of an event was read, which re-enabled the event. What the list says does not
    /// matter: everything is looked at again.
    pub(super) fn event_log_answered(&mut self, lid: LogPageId, now_us: u64) {
        if lid == LogPageId::CHANGED_NAMESPACES {
            self.rescan(now_us);
        }
    }

    /// Looks for namespaces again; leads to [`Event::NamespacesChanged`] if any changed.
    pub fn rescan(&mut self, now_us: u64) {
        if !self.is_live() {
            return;
        }
        if self.scan.is_some() {
            self.scan_again = true;
            return;
        }
        self.scan = Some(Scan::new());
        self.continue_scan(now_us);
    }

    /// Resets the controller by ending the association in order: CC.SHN, wait for CSTS.SHST,
    /// disconnect, which deletes the dynamic controller; the next attempt to connect begins at
    /// once. The driver lets outstanding I/O finish before; a controller that does not answer
    /// within five seconds is given up. A controller that was lost already is not waited for any
    /// longer. Leads to [`Event::Lost`], after which outstanding I/O is to be issued again, and to
    /// [`Event::Live`]. Nothing happens when the association is over, or has never been live.
    pub fn reset(&mut self, now_us: u64) {
        if !self.was_live || self.shutdown_asked {
            return;
        }
        match &mut self.state {
            State::Live { since_us } => {
                self.state = State::Resetting {
                    since_us: *since_us,
                    deadline_us: now_us.saturating_add(SHUTDOWN_TIMEOUT_US),
                };
                self.notify_shutdown(now_us);
            }
            State::Connecting { .. } => {
                self.fail(ConnectError::Reset, now_us);
                if let State::Waiting { until_us } = &mut self.state {
                    *until_us = now_us;
                }
            }
            State::Waiting { until_us } => *until_us = now_us,
            State::Resetting { .. }
            | State::ShuttingDown { .. }
            | State::Closed
            | State::Failed(_) => {}
        }
    }

    fn notify_shutdown(&mut self, now_us: u64) {
        self.scan = None;
        let set = self.shutdown_cc();
        self.send(Purpose::Shutdown, CommandData::None, now_us, |cid| {
            set.encode(cid, Sgl::EMPTY)
        });
    }

    /// Ends the association in order: CC.SHN, wait for CSTS.SHST, disconnect. Leads to
    /// [`Event::Closed`] within five seconds, whatever the controller does. I/O that is outstanding
    /// is lost; the driver waits for it before.
    pub fn shutdown(&mut self, now_us: u64) {
        self.shutdown_asked = true;
        match self.state {
            State::Live { .. } => {
                self.state = State::ShuttingDown {
                    deadline_us: now_us.saturating_add(SHUTDOWN_TIMEOUT_US),
                };
                self.notify_shutdown(now_us);
            }
            // It has been notified already.
            State::Resetting { .. } => {
                self.state = State::ShuttingDown {
                    deadline_us: now_us.saturating_add(SHUTDOWN_TIMEOUT_US),
                };
            }
            State::Connecting { .. } | State::Waiting { .. } => self.close(false),
            State::ShuttingDown { .. } | State::Closed | State::Failed(_) => {}
        }
    }

    pub(super) fn shutdown_answered(&mut self, purpose: Purpose, cqe: &Cqe, now_us: u64) {
        let resetting = match self.state {
            State::Resetting { .. } => true,
            State::ShuttingDown { .. } => false,
            _ => return,
        };
        let csts = Csts::decode(cqe.dw0.get());
        let success = cqe.status().is_success();
        let told = success && purpose == Purpose::ShutdownStatus;
        let done = told && csts.shst == ShutdownStatus::COMPLETE;
        if told && csts.cfs {
            self.events.push_back(Event::NotSaved);
        }
        if !success || done || (told && csts.cfs) {
            if resetting {
                self.lose(ConnectError::Reset, done, now_us);
            } else {
                self.close(done);
            }
        } else {
            let wait_us = match purpose {
                Purpose::Shutdown => 0,
                _ => SHUTDOWN_POLL_US,
            };
            self.ready_poll_us = Some(now_us.saturating_add(wait_us));
            self.poll_ready(now_us);
        }
    }
}
