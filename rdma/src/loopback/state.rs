//! The state of a network: plain data, reached through one `RefCell`.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::rc::Rc;

use super::completion::{CompletionState, SharedState};
use super::connection::{CmMessage, Id, ManagerState, Migrating};
use super::faults::{Fault, Faults, Notified, hits};
use super::keys::KeyTable;
use super::pair::Pair;
use super::trace::{Trace, Traced};
use crate::contract::{DeviceAttributes, WcStatus};
use crate::splitmix::SplitMix;

/// Shared by everything a network hands out.
pub(super) struct Net {
    pub(super) core: RefCell<Core>,
}

/// A piece of a request on its way to the responder.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    pub(super) from: u32,
    pub(super) to: u32,
    /// The work request, by its number in its queue.
    pub(super) wqe: u64,
    pub(super) offset: u64,
    pub(super) len_bytes: u64,
    pub(super) last: bool,
}

/// What a responder answers.
#[derive(Debug)]
pub(super) enum Answer {
    Ack,
    /// A piece of what an RDMA READ asked for, as it was when the request arrived.
    Data {
        offset: u64,
        bytes: Vec<u8>,
        last: bool,
    },
    Refused(WcStatus),
}

/// Something that is due at a time.
#[derive(Debug)]
pub(super) enum Event {
    Request(Segment),
    /// To requester `to`, from responder `from`, about work request `wqe`.
    Response {
        to: u32,
        from: u32,
        wqe: u64,
        answer: Answer,
    },
    /// A receive has been posted: the messages held back are tried again.
    ReceiverReady(u32),
    /// The receiver was not ready for too long.
    ReceiverNotReady {
        qp: u32,
        stall: u64,
    },
    /// Requests of a lost connection have gone unanswered.
    Unanswered(u32),
    Cm(Box<CmMessage>),
    Fault(Fault),
}

/// One provider: a machine with one device.
pub(super) struct Host {
    pub(super) addresses: Vec<IpAddr>,
    pub(super) attributes: DeviceAttributes,
    pub(super) keys: KeyTable,
    pub(super) removed: bool,
    /// How often the device came back.
    pub(super) restored: u32,
    pub(super) next_port: u16,
}

/// Numbers handed out; none is used twice.
#[derive(Default)]
pub(super) struct Counters {
    pub(super) sequence: u64,
    pub(super) qp: u32,
    pub(super) pd: u32,
    pub(super) cq: u32,
    pub(super) srq: u32,
    pub(super) manager: u32,
    pub(super) cm_id: u64,
    /// Send work requests started, for [`Fault::QpError`].
    pub(super) operations: u64,
    /// Connection requests sent, for [`Fault::DropConnect`].
    pub(super) connects: u64,
    /// Connections accepted, for [`Fault::LoseConnection`].
    pub(super) accepted: u64,
}

/// The state of a network.
pub(super) struct Core {
    pub(super) now_us: u64,
    pub(super) rng: SplitMix,
    pub(super) faults: Faults,
    pub(super) trace: Trace,
    pub(super) next: Counters,
    pub(super) hosts: Vec<Host>,
    pub(super) managers: BTreeMap<u32, ManagerState>,
    pub(super) ids: BTreeMap<u64, Id>,
    pub(super) migrating: BTreeMap<u64, Migrating>,
    pub(super) cqs: BTreeMap<u32, CompletionState>,
    pub(super) srqs: BTreeMap<u32, SharedState>,
    pub(super) pairs: BTreeMap<u32, Pair>,
    /// By time, then by order of scheduling.
    events: BTreeMap<(u64, u64), Event>,
}

impl Core {
    pub(super) fn new(seed: u64, faults: Faults) -> Self {
        let mut core = Self {
            now_us: 0,
            rng: SplitMix::new(seed),
            faults: Faults::NONE,
            trace: Trace::new(),
            next: Counters::default(),
            hosts: Vec::new(),
            managers: BTreeMap::new(),
            ids: BTreeMap::new(),
            migrating: BTreeMap::new(),
            cqs: BTreeMap::new(),
            srqs: BTreeMap::new(),
            pairs: BTreeMap::new(),
            events: BTreeMap::new(),
        };
        core.set_faults(faults);
        core
    }

    /// Replaces the fault plan; what is on its way keeps its time.
    pub(super) fn set_faults(&mut self, faults: Faults) {
        self.events
            .retain(|_, event| !matches!(event, Event::Fault(_)));
        for &fault in &faults.plan {
            if let Some(at_us) = fault.at_us() {
                self.schedule(at_us, Event::Fault(fault));
            }
        }
        self.faults = faults;
    }

    pub(super) fn schedule(&mut self, at_us: u64, event: Event) {
        self.next.sequence += 1;
        let at_us = at_us.max(self.now_us);
        self.events.insert((at_us, self.next.sequence), event);
    }

    /// When a message sent now arrives: behind what was sent before it on the same connection
    /// (`last_us`).
    pub(super) fn arrival_us(&mut self, last_us: u64) -> u64 {
        let delay_us = self.faults.delay.draw_us(&mut self.rng);
        self.now_us.saturating_add(delay_us).max(last_us)
    }

    /// Moves the clock; it never goes back.
    pub(super) fn advance(&mut self, now_us: u64) {
        // Time passes event by event, so that one that is due early sees the clock of its time.
        while let Some((&(at_us, _), _)) = self.events.first_key_value() {
            if at_us > now_us {
                break;
            }
            self.now_us = self.now_us.max(at_us);
            self.progress();
        }
        self.now_us = self.now_us.max(now_us);
        self.progress();
    }

    /// Handles everything that is due now.
    pub(super) fn progress(&mut self) {
        self.refuse_dropped_migrations();
        while let Some(entry) = self.events.first_entry() {
            if entry.key().0 > self.now_us {
                break;
            }
            match entry.remove() {
                Event::Request(segment) => self.request_arrives(segment),
                Event::Response {
                    to,
                    from,
                    wqe,
                    answer,
                } => self.response_arrives(to, from, wqe, answer),
                Event::ReceiverReady(qp) => self.receiver_ready(qp),
                Event::ReceiverNotReady { qp, stall } => self.receiver_not_ready(qp, stall),
                Event::Unanswered(qp) => self.unanswered(qp),
                Event::Cm(message) => self.cm_arrives(*message),
                Event::Fault(fault) => self.strike(fault),
            }
        }
    }

    /// When there is something to do next.
    pub(super) fn next_deadline_us(&self) -> Option<u64> {
        if self.migration_dropped() {
            return Some(self.now_us);
        }
        self.events.first_key_value().map(|(&(at_us, _), _)| at_us)
    }

    /// Whether something is due now.
    pub(super) fn work_due(&self) -> bool {
        self.next_deadline_us()
            .is_some_and(|at_us| at_us <= self.now_us)
    }

    pub(super) fn note(&mut self, what: Traced) {
        self.trace.note(self.now_us, what);
    }

    pub(super) fn strike(&mut self, fault: Fault) {
        match fault {
            Fault::LoseConnection {
                connection,
                notified,
                ..
            } => self.lose_connections(connection, notified),
            Fault::RemoveDevice { provider, .. } => self.remove_device(provider),
            Fault::RestoreDevice { provider, .. } => {
                if let Some(host) = self.hosts.get_mut(provider as usize) {
                    host.restored += u32::from(host.removed);
                    host.removed = false;
                }
            }
            // These strike where the operation or the connect starts.
            Fault::QpError { .. } | Fault::DropConnect { .. } => {}
        }
    }

    /// The status with which the send work request that starts now breaks its queue pair, if so.
    pub(super) fn operation_fault(&mut self) -> Option<WcStatus> {
        let nth = self.next.operations;
        self.next.operations += 1;
        let planned = self.faults.plan.iter().find_map(|fault| match *fault {
            Fault::QpError { operation, status } if operation == nth => Some(status),
            _ => None,
        });
        let rate = self.faults.qp_errors_per_million;
        planned.or_else(|| hits(&mut self.rng, rate).then_some(WcStatus::FatalError))
    }

    /// Whether the connection request sent now gets lost.
    pub(super) fn connect_fault(&mut self) -> bool {
        let nth = self.next.connects;
        self.next.connects += 1;
        let planned = self.faults.plan.contains(&Fault::DropConnect { nth });
        planned || hits(&mut self.rng, self.faults.dropped_connects_per_million)
    }

    fn lose_connections(&mut self, connection: Option<u64>, notified: Notified) {
        let hit = |pair: &&Pair| {
            pair.connected() && connection.is_none_or(|nth| pair.connection == Some(nth))
        };
        let lost: Vec<(u32, bool)> = self
            .pairs
            .values()
            .filter(hit)
            .map(|pair| (pair.num, pair.active))
            .collect();
        for (qp, active) in lost {
            let notices = match notified {
                Notified::Both => true,
                Notified::Active => active,
                Notified::Passive => !active,
                Notified::Neither => false,
            };
            self.lose(qp, notices);
        }
    }

    /// Cuts one side of a connection off.
    pub(super) fn lose(&mut self, qp: u32, notices: bool) {
        self.note(Traced::Fault {
            on: u64::from(qp),
            fault: "connection lost",
        });
        if let Some(pair) = self.pairs.get_mut(&qp) {
            pair.cut = true;
        }
        if notices {
            self.break_head(qp, WcStatus::RetryExceededError, "the connection was lost");
        } else {
            self.expect_answer(qp);
        }
    }

    fn remove_device(&mut self, provider: u32) {
        self.note(Traced::Fault {
            on: u64::from(provider),
            fault: "device removed",
        });
        let Some(host) = self.hosts.get_mut(provider as usize) else {
            return;
        };
        host.removed = true;
        host.keys.kill();
        let pairs: Vec<u32> = self
            .pairs
            .values()
            .filter(|pair| pair.host == provider)
            .map(|pair| pair.num)
            .collect();
        self.tell_removed(provider);
        for qp in pairs {
            self.fail(qp, "the device was removed", true);
        }
    }
}

/// A shared handle on the state of a network.
pub(super) type NetRef = Rc<Net>;
