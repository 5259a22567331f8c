//! What happened, in order: equal for equal seeds.

use std::hash::{DefaultHasher, Hash, Hasher};

use crate::contract::{WcOpcode, WcStatus};

/// One thing that happened in a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TraceEvent {
    /// When.
    pub at_us: u64,
    /// What.
    pub what: Traced,
}

/// The kinds of [`TraceEvent`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Traced {
    /// A piece of a message was placed in memory.
    Placed {
        /// Requester's queue pair.
        qp: u32,
        /// Its work request.
        wr_id: u64,
        /// Offset in the message in bytes.
        offset: u64,
    },
    /// A work request completed.
    Completed {
        /// Queue pair.
        qp: u32,
        /// Work request.
        wr_id: u64,
        /// Operation.
        opcode: WcOpcode,
        /// Outcome.
        status: WcStatus,
    },
    /// A connection-manager event was queued.
    Cm {
        /// The id.
        id: u64,
        /// Its name.
        event: &'static str,
    },
    /// A fault struck.
    Fault {
        /// The queue pair, connection or provider.
        on: u64,
        /// Its name.
        fault: &'static str,
    },
}

/// A running digest, and the events themselves when asked for.
pub(super) struct Trace {
    digest: DefaultHasher,
    pub(super) log: Option<Vec<TraceEvent>>,
}

impl Trace {
    pub(super) fn new() -> Self {
        Self {
            digest: DefaultHasher::new(),
            log: None,
        }
    }

    pub(super) fn note(&mut self, at_us: u64, what: Traced) {
        let event = TraceEvent { at_us, what };
        event.hash(&mut self.digest);
        if let Some(log) = &mut self.log {
            log.push(event);
        }
    }

    pub(super) fn digest(&self) -> u64 {
        self.digest.finish()
    }
}
