//! What the steps of all commands of a reactor share.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use capstan_metrics::Sampler;
use capstan_storage::{Engine, IoError, IoErrorKind, Volume};
use capstan_subsystem::{BackendId, IoCommand};
use capstan_transport::Memory;
use rustc_hash::FxHashMap;

use super::cause::Cause;
use super::connection::Connection;
use super::lease::Shares;
use super::phase::Phase;
use super::queue_shares::QueueShares;
use super::share::Share;
use crate::control_plane::ControlPlane;
use crate::metrics::{BackendCounters, ReactorMetrics};
use crate::plan::Export;

/// A volume of a reactor, and what that does on it.
pub(crate) struct Opened {
    pub(crate) volume: Box<dyn Volume>,
    pub(super) counters: Arc<BackendCounters>,
}

impl Opened {
    /// That of an export.
    pub(crate) fn new(volume: Box<dyn Volume>, export: &Export, reactor: usize) -> Self {
        Self {
            volume,
            counters: export.counted.of_reactor(reactor),
        }
    }
}

/// What every command may need, apart from its connection.
pub(super) struct Resources {
    pub(super) now_us: u64,
    pub(super) memory: Memory,
    pub(super) engine: Rc<Engine>,
    // The keys are numbers of this program: no peer can choose them so that they collide.
    pub(super) volumes: FxHashMap<BackendId, Opened>,
    pub(super) control: Arc<ControlPlane>,
    /// Volumes that are known to have lost data, which the controllers have been told.
    pub(super) lost: Vec<BackendId>,
    /// Connections with commands that wait for a buffer or for their turn, in the order it comes;
    /// not those whose oldest waits for room.
    pub(super) starved: VecDeque<usize>,
    /// Connections skipped in this round: their send queue is full, or they have their share of the
    /// buffers.
    pub(super) passed: Vec<usize>,
    /// Starved connections whose spare buffer is free again.
    pub(super) spared: VecDeque<usize>,
    /// The associations that have queues here.
    pub(super) shares: Shares,
    /// How much of the memory for queues each host has.
    pub(super) queue_shares: QueueShares,
    /// How much data of volumes in memory and of Admin commands this thread may still move in this
    /// turn.
    pub(super) share: Share,
    /// Whether a command found no buffer since this was last asked.
    shortage: bool,
    /// Connects whose data is there: the connections, and the slots.
    pub(super) connects: Vec<(usize, u16)>,
    /// Connections to end, and why.
    pub(super) broken: Vec<(usize, Cause)>,
    /// Commands in flight on this turn's deepest I/O queue, at least 1; 0 if none had a completion.
    pub(super) in_flight: usize,
    /// Completions of this turn that only release responses: no host waits for them.
    pub(super) releases: u32,
    /// No command is taken in any more.
    pub(super) draining: bool,
    pub(super) metrics: Arc<ReactorMetrics>,
    sampler: Sampler,
}

impl Resources {
    pub(super) fn new(
        memory: Memory,
        engine: Rc<Engine>,
        volumes: FxHashMap<BackendId, Opened>,
        control: Arc<ControlPlane>,
        metrics: Arc<ReactorMetrics>,
    ) -> Self {
        Self {
            now_us: 0,
            memory,
            engine,
            volumes,
            control,
            lost: Vec::new(),
            starved: VecDeque::new(),
            passed: Vec::new(),
            spared: VecDeque::new(),
            shares: Shares::default(),
            queue_shares: QueueShares::default(),
            share: Share::default(),
            shortage: false,
            connects: Vec::new(),
            broken: Vec::new(),
            in_flight: 0,
            releases: 0,
            draining: false,
            metrics,
            sampler: Sampler::default(),
        }
    }

    /// Whether the stages of the next command are timed.
    #[inline]
    pub(super) fn is_next_timed(&mut self) -> bool {
        let metrics = &self.metrics;
        self.sampler.takes_next(|| metrics.sample())
    }

    /// What a command reads has been pushed without a storage operation.
    pub(super) fn note_read(&self, io: &IoCommand) {
        if let Some(opened) = self.volumes.get(&io.namespace.backend) {
            opened.counters.reads(io.data_bytes.into());
        }
    }

    /// Says what memory there is.
    pub(super) fn publish(&self, connections: usize) {
        let metrics = &self.metrics;
        let bytes = |bytes: usize| u64::try_from(bytes).unwrap_or(u64::MAX);
        for (pool, told) in [
            (&self.memory.data, &metrics.data),
            (&self.memory.queues, &metrics.queues),
        ] {
            told.all.set(bytes(pool.slab().len_bytes()));
            told.free.set(bytes(pool.free_bytes()));
        }
        metrics.connections.set(bytes(connections));
    }

    /// A command waits because others have the buffers.
    pub(super) fn note_shortage(&mut self) {
        self.shortage = true;
        self.metrics.shortages.add(1);
    }

    /// Whether a command waited because others have the buffers, since this was last asked.
    pub(super) fn take_shortage(&mut self) -> bool {
        std::mem::take(&mut self.shortage)
    }

    /// A completion of the connection was handled. Admin queues do not count: they have Keep Alives
    /// and little else, whose latency does not matter.
    pub(super) fn note_in_flight(&mut self, connection: &Connection) {
        if connection.phase == Phase::Io {
            self.in_flight = self.in_flight.max(connection.depth()).max(1);
        }
    }

    /// A storage operation failed: the log hears of the medium's state, and the controllers, once,
    /// of a volume that has lost data.
    pub(super) fn storage_failed(&mut self, backend: Option<BackendId>, error: &IoError) {
        tracing::debug!(%error, "a storage operation failed");
        let Some(backend) = backend else { return };
        if let Some(opened) = self.volumes.get(&backend) {
            opened.counters.failed();
        }
        if error.kind != IoErrorKind::Lost {
            self.control.storage_failed(backend, error);
        } else if !self.lost.contains(&backend) {
            self.lost.push(backend);
            self.control.data_lost(backend, error);
        }
    }

    /// The backend of the volume that an error names.
    pub(super) fn backend_of(&self, error: &IoError) -> Option<BackendId> {
        let mut volumes = self.volumes.iter();
        let named = volumes.find(|(_, opened)| *opened.volume.name() == error.volume);
        named.map(|(&backend, _)| backend)
    }

    /// Ends a connection at the end of the turn, and says why.
    pub(super) fn end(&mut self, connection: &Connection, why: impl Into<Cause>) {
        self.broken.push((connection.identity.index, why.into()));
    }

    /// Ends a connection whose device has ended it already: in-capsule data that lay in memory of
    /// the device is lost.
    pub(super) fn lost(&mut self, connection: &Connection) {
        self.end(
            connection,
            "the connection ended before a command was taken in",
        );
    }

    /// Ends a connection that has no slot left for a command.
    pub(super) fn too_many_commands(&mut self, connection: &Connection) {
        let why = "the host sent more commands than its queue has entries";
        self.end(connection, Cause::violation(why));
    }
}
