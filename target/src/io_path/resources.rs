//! What the steps of a command share, whatever its connection.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use capstan_storage::{Engine, IoError, IoErrorKind, Volume};
use capstan_subsystem::BackendId;
use rustc_hash::FxHashMap;

use super::connection::Connection;
use super::fabric::Memory;
use super::lease::Shares;
use super::phase::Phase;
use super::queue_shares::QueueShares;
use super::share::Share;
use crate::control_plane::ControlPlane;

/// What every command may need, apart from its connection.
pub(super) struct Resources {
    pub(super) now_us: u64,
    pub(super) memory: Memory,
    pub(super) engine: Rc<Engine>,
    // Numbers of this program: nobody chooses them so that they collide.
    pub(super) volumes: FxHashMap<BackendId, Box<dyn Volume>>,
    pub(super) control: Arc<ControlPlane>,
    /// Volumes that are known to have lost data, which the controllers have been told.
    pub(super) lost: Vec<BackendId>,
    /// Connections with commands that wait for a buffer or for their turn, in the order it comes.
    pub(super) starved: VecDeque<usize>,
    /// Those that were passed over in this round.
    pub(super) passed: Vec<usize>,
    /// Those of them whose spare buffer has come back.
    pub(super) spared: VecDeque<usize>,
    /// The associations that have queues here.
    pub(super) shares: Shares,
    /// Who has how much of the memory for queues.
    pub(super) queue_shares: QueueShares,
    /// What this thread itself may still move of volumes in memory and of what controllers tell,
    /// before others have their turn.
    pub(super) share: Share,
    /// Whether a command found no buffer since this was last asked.
    shortage: bool,
    /// Connections with work requests posted since the last doorbell.
    pub(super) unrung: Vec<usize>,
    /// Connects whose data is there: the connections, and the slots.
    pub(super) connects: Vec<(usize, u16)>,
    /// Connections to end, and why.
    pub(super) broken: Vec<(usize, String)>,
    /// Most commands that an I/O queue with completions in this turn had under way together, at least 1; 0 without one.
    pub(super) in_flight: usize,
    /// Completions of this turn that tell of responses, for which nobody waits.
    pub(super) told: u32,
    /// No command is taken in any more.
    pub(super) draining: bool,
}

impl Resources {
    pub(super) fn new(
        memory: Memory,
        engine: Rc<Engine>,
        volumes: FxHashMap<BackendId, Box<dyn Volume>>,
        control: Arc<ControlPlane>,
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
            unrung: Vec::new(),
            connects: Vec::new(),
            broken: Vec::new(),
            in_flight: 0,
            told: 0,
            draining: false,
        }
    }

    /// A command waits because others have the buffers.
    pub(super) fn note_shortage(&mut self) {
        self.shortage = true;
    }

    /// Whether a command waited because others have the buffers, since this was last asked.
    pub(super) fn take_shortage(&mut self) -> bool {
        std::mem::take(&mut self.shortage)
    }

    /// A completion of the connection was handled. Nobody waits closely for an Admin queue, which has keep-alives and little
    /// else.
    pub(super) fn note_in_flight(&mut self, connection: &Connection) {
        if connection.phase == Phase::Io {
            self.in_flight = self.in_flight.max(connection.together()).max(1);
        }
    }

    /// Remembers that a connection has work requests to ring for.
    pub(super) fn unrung(&mut self, connection: &mut Connection) {
        if std::mem::take(&mut connection.rung) {
            self.unrung.push(connection.identity.index);
        }
    }

    /// A storage operation failed: the log hears of the medium's state, and the controllers, once,
    /// of a volume that has lost data.
    pub(super) fn storage_failed(&mut self, backend: Option<BackendId>, error: &IoError) {
        tracing::debug!(%error, "a storage operation failed");
        let Some(backend) = backend else { return };
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
        let named = volumes.find(|(_, volume)| *volume.name() == error.volume);
        named.map(|(&backend, _)| backend)
    }

    /// Ends a connection at the end of the turn, and says why.
    pub(super) fn end(&mut self, connection: &Connection, why: impl Into<String>) {
        self.broken.push((connection.identity.index, why.into()));
    }

    /// Ends a connection that the device has ended already, and with it data that it lent.
    pub(super) fn lost(&mut self, connection: &Connection) {
        self.end(
            connection,
            "the connection ended before a command was taken in",
        );
    }

    /// Ends a connection that has no slot left for a command.
    pub(super) fn too_many_commands(&mut self, connection: &Connection) {
        self.end(
            connection,
            "the host sent more commands than its queue has entries",
        );
    }
}
