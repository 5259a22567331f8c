//! The clock of a command: of one in so many, how long it is in each stage. A connection times one
//! command at a time; all others pay for a comparison at the end of a stage.

use capstan_reactor::Clock;
use capstan_subsystem::{IoOperation, IoStep, Permit};

use super::command::Command;
use super::connection::Connection;
use super::{Resources, respond};
use crate::metrics::{Kind, Stage};

/// No command of the connection is timed. No queue has as many slots.
const NONE: u16 = u16::MAX;
/// One is that has no slot.
const WITHOUT_SLOT: u16 = NONE - 1;
/// The response of the one that was timed has left.
const RELEASED: u16 = NONE - 2;

/// The command of a connection that is timed.
pub(super) struct Probe {
    /// Its slot, or one of the numbers above.
    slot: u16,
    kind: Kind,
    /// When its stage began, in nanoseconds.
    since_ns: u64,
}

impl Default for Probe {
    fn default() -> Self {
        Self {
            slot: NONE,
            kind: Kind::Other,
            since_ns: 0,
        }
    }
}

impl Probe {
    /// The command that is timed has a slot from now on.
    pub(super) fn enter(&mut self, slot: u16) {
        if self.slot == WITHOUT_SLOT {
            self.slot = slot;
        }
    }

    /// The command leaves its slot, to be answered without one. Whether it is timed.
    #[inline]
    pub(super) fn leave(&mut self, slot: u16) -> bool {
        let is_timed = self.slot == slot;
        if is_timed {
            self.slot = WITHOUT_SLOT;
        }
        is_timed
    }

    /// The response of the command in `slot` has left.
    #[inline]
    pub(super) fn release(&mut self, slot: u16) {
        if self.slot == slot {
            self.slot = RELEASED;
        }
    }

    /// The command in `slot` is not timed any more.
    #[inline]
    pub(super) fn give_up(&mut self, slot: u16) {
        if self.slot == slot {
            self.slot = NONE;
        }
    }
}

/// A command is to be timed, unless another one of its connection is: it has been received.
#[cold]
pub(super) fn begin(resources: &Resources, connection: &mut Connection, step: &IoStep) {
    let IoStep::Execute(io) = step else {
        return;
    };
    if connection.probe.slot != NONE {
        return;
    }
    let kind = match io.operation {
        IoOperation::Read { .. } => Kind::Read,
        IoOperation::Write { .. } => Kind::Write,
        _ => Kind::Other,
    };
    connection.probe = Probe {
        slot: WITHOUT_SLOT,
        kind,
        since_ns: resources.now_us.saturating_mul(1000),
    };
    observe(resources, connection, Stage::Receive);
}

/// The command in `slot` has come to the end of a stage.
#[inline]
pub(super) fn passed(resources: &Resources, connection: &mut Connection, slot: u16, stage: Stage) {
    if connection.probe.slot == slot {
        observe(resources, connection, stage);
    }
}

#[cold]
fn observe(resources: &Resources, connection: &mut Connection, stage: Stage) {
    let now_ns = Clock.now_ns();
    let probe = &mut connection.probe;
    let ns = now_ns.saturating_sub(probe.since_ns);
    probe.since_ns = now_ns;
    resources.metrics.observe(probe.kind, stage, ns);
}

/// As `respond::answer`, of a command that was to be timed and has no slot.
#[cold]
pub(super) fn answer(
    resources: &mut Resources,
    connection: &mut Connection,
    permit: Permit,
    invalidate: Option<u32>,
) {
    passed(resources, connection, WITHOUT_SLOT, Stage::Medium);
    let slot = connection.next_slot();
    respond::answer(resources, connection, permit, invalidate);
    if let Some(slot) = slot {
        connection.probe.enter(slot);
        sent(resources, connection, slot);
    }
}

/// The response of the command in `slot` was handed over to the wire, which may have sent it.
#[inline]
pub(super) fn sent(resources: &Resources, connection: &mut Connection, slot: u16) {
    if connection.probe.slot == slot && !matches!(connection.command(slot), Command::Responding(_))
    {
        end(resources, connection);
    }
}

/// Responses have left, that of the command that is timed perhaps among them.
#[inline]
pub(super) fn released(resources: &Resources, connection: &mut Connection) {
    if connection.probe.slot == RELEASED {
        end(resources, connection);
    }
}

#[cold]
fn end(resources: &Resources, connection: &mut Connection) {
    observe(resources, connection, Stage::Respond);
    connection.probe = Probe::default();
}
