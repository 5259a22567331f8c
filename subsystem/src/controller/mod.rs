//! A controller: what exists between a Connect on an Admin queue and the end of its connection.

mod keep_alive;
mod properties;
mod state;

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::SocketAddr;

use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::error::{CommandError, ErrorLocation};
use capstan_nvme_proto::property::Cc;
use capstan_nvme_proto::status::Status;

use crate::ConnId;
use crate::action::{Association, ControllerId, DisconnectReason, FenceId};
use crate::aer::AsyncEvents;
use crate::bounds::DISCOVERY_KATO_MS;
use crate::config::Transport;
use crate::control::CrossResets;
use crate::counters::{HostCounters, NamespaceCounters, QueueCounters};
use crate::features::Features;
use crate::log_page::error::ErrorLog;
use crate::log_page::reservation::Notifications;
use crate::namespace::{ChangedNamespaces, NamespaceTable};
use crate::queue::{Accounting, Permit};
use crate::reported::ReportedNamespaces;
use crate::shared::{ControllerShared, ErrorRecord, QueueShared};

pub(crate) use keep_alive::{Expiry, KeepAlive};
pub(crate) use properties::VERSION;
pub use state::{ControllerEvent, ControllerState};

/// I/O controllers execute I/O commands; discovery controllers only tell where subsystems are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum ControllerKind {
    Io,
    Discovery,
}

impl ControllerKind {
    /// The Keep Alive Timeout of a controller whose host asks for `asked_ms` milliseconds. 0 is
    /// none, which a discovery controller cannot have: anybody may make one.
    pub(crate) fn kato_ms(self, asked_ms: u32) -> u32 {
        match (self, asked_ms) {
            (Self::Io, asked_ms) => asked_ms,
            (Self::Discovery, 0) => DISCOVERY_KATO_MS,
            (Self::Discovery, asked_ms) => asked_ms.min(DISCOVERY_KATO_MS),
        }
    }
}

/// What tells a controller from those that had its CNTLID before: CIU and CIRN. NVMe Base 2.3,
/// section 5.2.13 (Identify Controller data structure).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Instance {
    pub(crate) ciu: u8,
    pub(crate) cirn: u64,
}

/// The control half of one I/O queue.
#[derive(Debug)]
pub(crate) struct IoQueueRecord {
    pub(crate) conn: ConnId,
    /// Entries of the queue.
    pub(crate) entries: u16,
    pub(crate) shared: Arc<QueueShared>,
    /// What it counts in, last, and what it counted in before its controller showed more
    /// namespaces.
    pub(crate) counters: Vec<NamespaceCounters>,
    /// Errors of the queue that are in the controller's log already.
    pub(crate) errors_seen: u64,
}

impl IoQueueRecord {
    /// What it did, by namespace.
    pub(crate) fn counted(&self) -> impl Iterator<Item = (u32, QueueCounters)> {
        self.counters.iter().flat_map(NamespaceCounters::iter)
    }

    /// The same with errors, where there was anything.
    pub(crate) fn of_host(&self) -> impl Iterator<Item = (u32, HostCounters)> {
        let all = self.counters.iter().flat_map(NamespaceCounters::of_host);
        all.filter(|(_, counters)| !counters.is_empty())
    }

    /// What it did with one namespace.
    pub(crate) fn counted_of(&self, nsid: u32) -> QueueCounters {
        let mut sum = QueueCounters::default();
        for counters in &self.counters {
            sum.add(&counters.of(nsid));
        }
        sum
    }

    /// Its counters for a table: new ones where those it has are too few.
    pub(crate) fn counters_for(&mut self, namespaces: &NamespaceTable) -> NamespaceCounters {
        match self.counters.last() {
            Some(counters) if counters.cover(namespaces) => counters.clone(),
            _ => {
                let counters = NamespaceCounters::new(namespaces);
                self.counters.push(counters.clone());
                counters
            }
        }
    }
}

/// The control half of a controller.
#[derive(Debug)]
pub(crate) struct Controller {
    pub(crate) id: ControllerId,
    pub(crate) kind: ControllerKind,
    pub(crate) transport: Transport,
    pub(crate) association: Arc<Association>,
    /// The address by which the host reached the port.
    pub(crate) local: SocketAddr,
    /// The Admin queue's connection.
    pub(crate) conn: ConnId,
    pub(crate) admin: Accounting,
    pub(crate) state: ControllerState,
    /// CSTS.RDY was set since the controller was disabled.
    pub(crate) was_ready: bool,
    /// Since it was ready last.
    pub(crate) instance: Option<Instance>,
    /// What it was asked to reset.
    pub(crate) resets: CrossResets,
    /// What keeps it from becoming ready.
    pub(crate) fence: Option<FenceId>,
    pub(crate) cc: Cc,
    pub(crate) keep_alive: KeepAlive,
    /// When it ends unless its host has enabled it; `None` once that has happened.
    pub(crate) enable_by_us: Option<u64>,
    pub(crate) shared: Arc<ControllerShared>,
    pub(crate) namespaces: Arc<NamespaceTable>,
    /// NSIDs that changed since the host last asked.
    pub(crate) changed: ChangedNamespaces,
    pub(crate) reported: ReportedNamespaces,
    /// When the next of its host's looks at namespaces that keep I/O away ends.
    pub(crate) look_ends_us: Option<u64>,
    pub(crate) events: AsyncEvents,
    pub(crate) features: Features,
    pub(crate) notifications: Notifications,
    pub(crate) errors: ErrorLog,
    /// By QID.
    pub(crate) io_queues: BTreeMap<u16, IoQueueRecord>,
    /// Why this side ends the association, once it does.
    pub(crate) ending: Option<DisconnectReason>,
}

impl Controller {
    /// Completes an Admin command with an error, which goes into the Error Information log.
    pub(crate) fn fail(
        &mut self,
        permit: Permit,
        opcode: u8,
        nsid: u32,
        error: &CommandError,
    ) -> Cqe {
        let status = self.record_error(permit.cid(), opcode, nsid, error.status, error.location);
        self.admin.complete(permit, status, 0)
    }

    /// Writes an error of an Admin command into the Error Information log. Returns the status
    /// with More set, which tells the host that it is there.
    pub(crate) fn record_error(
        &mut self,
        cid: u16,
        opcode: u8,
        nsid: u32,
        status: Status,
        location: ErrorLocation,
    ) -> Status {
        self.errors.add(ErrorRecord {
            count: self.shared.next_error(),
            qid: 0,
            cid,
            status: status.more(),
            location: location.parameter_error_location(),
            opcode,
            nsid,
            lba: 0,
        });
        status.more()
    }
}
