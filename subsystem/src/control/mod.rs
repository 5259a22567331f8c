//! The control half: subsystems, ports, hosts and controllers, and everything that is not an I/O
//! command.

mod abort;
mod admin;
mod ana;
mod configure;
mod connect;
mod cross_reset;
mod degraded;
mod fence;
mod flush;
mod hosts;
mod keep;
mod lba_status;
mod life;
mod queue_sizes;
mod replaced;
mod report;
mod reserve;
mod shares;

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::net::IpAddr;

use capstan_nvme_proto::nqn::Nqn;

use crate::ConnId;
use crate::action::{AbortId, Action, ControllerId, DrainId, FenceId, FlushId, KeepId};
use crate::bounds::REFUSALS_KEPT;
use crate::config::{
    ConfigError, NamespaceConfig, PortConfig, PortId, SubsystemConfig, TargetConfig,
};
use crate::controller::{Controller, ControllerKind, IoQueueRecord};
use crate::counters::QueueCounters;
use crate::namespace::BackendId;
use crate::refuse::Refusal;
use crate::reservation::Reservation;
use abort::PendingAbort;
use ana::AnaGroups;
use fence::Fence;
use flush::FlushFor;
use keep::{Changing, Keep, Setting, SettingId};
use reserve::{Lingering, PendingDrain};

pub use admin::{AdminOutcome, AdminRequest, AdminStep};
pub(crate) use admin::{Executed, Execution, gone};
pub use connect::{ConnectOutcome, ConnectRequest, Settle};
pub(crate) use cross_reset::CrossResets;
pub use hosts::{HostCounts, HostPlace};
pub use lba_status::AllocationQuery;
pub use queue_sizes::{CmRefusal, QueueSizes};
pub use report::{AssociationReport, QueueReport, RegistrantReport, ReservationsReport};
pub use reserve::ControlOutcome;
pub use shares::{Excess, Share, Stock};

/// All subsystems, ports and controllers of a target.
///
/// Calls whose names begin with `handle_` say what happened. After each of them take everything
/// from [`Target::poll_action`] and do it; then [`Target::next_deadline_us`] says when
/// [`Target::handle_timeout`] is due. `now_us` is any clock that never goes back.
#[derive(Debug)]
pub struct Target {
    config: TargetConfig,
    started_us: u64,
    discovery_nqn: Nqn,
    ports: BTreeMap<PortId, PortConfig>,
    subsystems: BTreeMap<Nqn, Subsystem>,
    controllers: BTreeMap<ControllerId, Controller>,
    connections: BTreeMap<ConnId, Queue>,
    actions: VecDeque<Action>,
    refusals: VecDeque<Refusal>,
    /// Connects that were refused so far, by `RefuseReason::word`.
    refused: BTreeMap<&'static str, u64>,
    /// Associations that have ended so far, by `DisconnectReason::word`.
    ended: BTreeMap<&'static str, u64>,
    hosts: hosts::Kept,
    /// Generation Counter of the discovery log.
    genctr: u64,
    next_controller: u64,
    /// Where the search for a free discovery CNTLID starts.
    next_discovery_cntlid: u16,
    aborts: BTreeMap<AbortId, PendingAbort>,
    next_abort: u64,
    flushes: BTreeMap<FlushId, FlushFor>,
    /// Backends that have lost data.
    degraded: BTreeSet<BackendId>,
    /// Backends whose medium is not where it belongs.
    unsound: BTreeSet<BackendId>,
    /// Backends whose medium refuses writes.
    refuses_writes: BTreeSet<BackendId>,
    next_flush: u64,
    /// Namespaces whose reservations the driver puts on stable storage.
    keeps: BTreeMap<KeepId, Keep>,
    next_keep: u64,
    /// Set Features commands that wait for that.
    settings: BTreeMap<SettingId, Setting>,
    /// I/O queues that are gone but for a change of reservations that is with the driver.
    left_changing: BTreeSet<ConnId>,
    drains: BTreeMap<DrainId, PendingDrain>,
    next_drain: u64,
    /// Fences that are closed: of each controller one at most.
    fences: BTreeMap<FenceId, Fence>,
    next_fence: u64,
    /// Instances of controllers so far.
    instances: u64,
    /// I/O queues of hosts that left, until none of their commands is on a backend any more.
    lingering: BTreeMap<ConnId, Lingering>,
}

/// What a connection is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Queue {
    Admin(ControllerId),
    Io(ControllerId, u16),
}

/// An NVM subsystem.
#[derive(Debug)]
struct Subsystem {
    config: SubsystemConfig,
    /// By NSID.
    namespaces: BTreeMap<u32, NamespaceConfig>,
    ana: AnaGroups,
    /// Namespaces that a host has write protected.
    protected: BTreeSet<u32>,
    /// Reservations by NSID, of namespaces where a host ever registered or that can persist theirs.
    reservations: BTreeMap<u32, Reservation>,
    /// What they are about to become, when it is on stable storage.
    changing: BTreeMap<u32, Changing>,
    /// Where the search for a free CNTLID starts: an identifier is used again as late as
    /// possible, so that a host with old knowledge does not meet another host's controller.
    next_cntlid: u16,
    /// What the I/O queues that are gone had counted, by NSID.
    retired: BTreeMap<u32, QueueCounters>,
    /// What was counted of NSIDs when the namespaces that had them before went.
    counted_before: BTreeMap<u32, QueueCounters>,
}

impl Subsystem {
    fn new(config: SubsystemConfig) -> Self {
        Self {
            config,
            namespaces: BTreeMap::new(),
            ana: AnaGroups::new(),
            protected: BTreeSet::new(),
            reservations: BTreeMap::new(),
            changing: BTreeMap::new(),
            next_cntlid: 1,
            retired: BTreeMap::new(),
            counted_before: BTreeMap::new(),
        }
    }

    /// Keeps what an I/O queue that is gone had counted.
    fn retire(&mut self, record: &IoQueueRecord) {
        for (nsid, counted) in record.counted() {
            if counted != QueueCounters::default() {
                self.retired.entry(nsid).or_default().add(&counted);
            }
        }
    }
}

impl Target {
    /// A target without ports and subsystems, which starts now.
    ///
    /// # Errors
    /// A value of `config` that is not accepted.
    pub fn new(config: TargetConfig, now_us: u64) -> Result<Self, ConfigError> {
        config.check()?;
        Ok(Self {
            config,
            started_us: now_us,
            discovery_nqn: Nqn::discovery(),
            ports: BTreeMap::new(),
            subsystems: BTreeMap::new(),
            controllers: BTreeMap::new(),
            connections: BTreeMap::new(),
            actions: VecDeque::new(),
            refusals: VecDeque::new(),
            refused: BTreeMap::new(),
            ended: BTreeMap::new(),
            hosts: hosts::Kept::default(),
            genctr: 0,
            next_controller: 1,
            next_discovery_cntlid: 1,
            aborts: BTreeMap::new(),
            next_abort: 1,
            flushes: BTreeMap::new(),
            degraded: BTreeSet::new(),
            unsound: BTreeSet::new(),
            refuses_writes: BTreeSet::new(),
            next_flush: 1,
            keeps: BTreeMap::new(),
            next_keep: 1,
            settings: BTreeMap::new(),
            left_changing: BTreeSet::new(),
            drains: BTreeMap::new(),
            next_drain: 1,
            fences: BTreeMap::new(),
            next_fence: 1,
            instances: 0,
            lingering: BTreeMap::new(),
        })
    }

    /// The next thing to do. Take until `None` after every other call, and do them in order.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When [`Target::handle_timeout`] is due. Any `handle_` call may change it.
    #[must_use]
    pub fn next_deadline_us(&self) -> Option<u64> {
        self.controllers
            .values()
            .flat_map(|controller| {
                [
                    controller.keep_alive.deadline_us(),
                    controller.enable_by_us,
                    controller.look_ends_us,
                ]
            })
            .flatten()
            .chain(self.next_fence_deadline_us())
            .min()
    }

    /// The last refused connects, oldest first.
    pub fn refusals(&self) -> impl ExactSizeIterator<Item = &Refusal> {
        self.refusals.iter()
    }

    fn note_refusal(&mut self, refusal: Refusal) {
        let count = self.refused.entry(refusal.why.word()).or_default();
        *count = count.saturating_add(1);
        if self.refusals.len() >= REFUSALS_KEPT {
            self.refusals.pop_front();
        }
        self.refusals.push_back(refusal);
    }

    pub(crate) fn config(&self) -> &TargetConfig {
        &self.config
    }

    pub(crate) fn started_us(&self) -> u64 {
        self.started_us
    }

    pub(crate) fn genctr(&self) -> u64 {
        self.genctr
    }

    pub(crate) fn subsystem_config(&self, subnqn: &Nqn) -> Option<&SubsystemConfig> {
        self.subsystems
            .get(subnqn)
            .map(|subsystem| &subsystem.config)
    }

    pub(crate) fn controller(&self, id: ControllerId) -> Option<&Controller> {
        self.controllers.get(&id)
    }

    pub(crate) fn controller_mut(&mut self, id: ControllerId) -> Option<&mut Controller> {
        self.controllers.get_mut(&id)
    }

    /// Commands and data of a subsystem, of all controllers it has and had.
    #[must_use]
    pub fn totals(&self, subnqn: &Nqn) -> QueueCounters {
        let mut totals = QueueCounters::default();
        let subsystem = self.subsystems.get(subnqn);
        let retired = subsystem.into_iter().flat_map(|s| s.retired.values());
        retired.for_each(|counted| totals.add(counted));
        let live = self.io_queues(subnqn).flat_map(IoQueueRecord::counted);
        live.for_each(|(_, counted)| totals.add(&counted));
        totals
    }

    /// The same of one namespace, since it was added.
    #[must_use]
    pub fn totals_of(&self, subnqn: &Nqn, nsid: u32) -> QueueCounters {
        let subsystem = self.subsystems.get(subnqn);
        let before = subsystem.and_then(|s| s.counted_before.get(&nsid).copied());
        let before = before.unwrap_or_default();
        self.counted_of(subnqn, nsid).since(&before)
    }

    /// What was ever counted of an NSID.
    fn counted_of(&self, subnqn: &Nqn, nsid: u32) -> QueueCounters {
        let subsystem = self.subsystems.get(subnqn);
        let retired = subsystem.and_then(|s| s.retired.get(&nsid).copied());
        let mut counted = retired.unwrap_or_default();
        for queue in self.io_queues(subnqn) {
            counted.add(&queue.counted_of(nsid));
        }
        counted
    }

    /// I/O queues of a subsystem.
    fn io_queues(&self, subnqn: &Nqn) -> impl Iterator<Item = &IoQueueRecord> {
        let controllers = self.controllers.values();
        controllers
            .filter(move |controller| controller.association.subnqn == *subnqn)
            .flat_map(|controller| controller.io_queues.values())
    }

    /// Nothing holds more than its bound, with `connections` of them open.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn assert_bounds(&self, connections: usize) {
        assert!(self.actions.is_empty());
        assert!(self.count_of(ControllerKind::Io) <= self.config.controllers);
        // Those that make room are gone when their connections are.
        assert!(self.count_of(ControllerKind::Discovery) <= self.config.discovery_controllers);
        assert_eq!(self.connections.len(), connections);
        assert!(self.refusals.len() <= REFUSALS_KEPT);
        assert!(self.fences.len() <= self.controllers.len());
        for controller in self.controllers.values() {
            let aborts = self
                .aborts
                .values()
                .filter(|abort| abort.is_of(controller.id));
            assert!(aborts.count() <= crate::bounds::ABORT_MAX);
            assert!(controller.errors.iter().count() <= crate::bounds::ERROR_LOG_ENTRIES);
            assert!(controller.io_queues.len() <= usize::from(self.config.io_queues));
        }
    }

    /// Nothing is left of any host.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn assert_empty(&self) {
        self.assert_bounds(0);
        assert!(self.controllers.is_empty());
        assert!(self.aborts.is_empty() && self.drains.is_empty());
        assert!(self.keeps.is_empty() && self.settings.is_empty());
        assert!(self.left_changing.is_empty());
        let mut subsystems = self.subsystems.values();
        assert!(subsystems.all(|of| of.changing.is_empty()));
        assert!(self.lingering.is_empty() && self.fences.is_empty());
        assert!(self.flushes.values().all(FlushFor::is_for_subsystem));
        assert_eq!(self.next_deadline_us(), None);
    }

    /// Whether a host has an I/O controller whose Admin queue comes from `address`. Another queue
    /// from there is probably one more of it.
    #[must_use]
    pub fn has_host_at(&self, address: IpAddr) -> bool {
        self.controllers.values().any(|controller| {
            controller.kind == ControllerKind::Io && controller.association.peer.ip() == address
        })
    }

    /// Controllers of a subsystem.
    fn controllers_of(&self, subnqn: &Nqn) -> Vec<ControllerId> {
        self.controllers
            .values()
            .filter(|controller| controller.association.subnqn == *subnqn)
            .map(|controller| controller.id)
            .collect()
    }
}
