//! What a reactor counts, beside the commands of its queues.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use capstan_metrics::{Counter, Gauge, Histogram, HistogramSnapshot, Spent};

/// A part of the way of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// From the look at the wires that found it to the look at the command itself.
    Receive,
    /// Until it has the buffer that it needs, and its turn.
    WaitForBuffer,
    /// Until the host's data is there.
    Pull,
    /// On the medium. Of what a volume has in memory: until it is copied, to or from the wire.
    Medium,
    /// Handing the data over to the wire.
    Push,
    /// From the response that is handed over to the wire until that has sent it.
    Respond,
}

impl Stage {
    /// Each of them, in their order.
    pub(crate) const ALL: [Self; 6] = [
        Self::Receive,
        Self::WaitForBuffer,
        Self::Pull,
        Self::Medium,
        Self::Push,
        Self::Respond,
    ];

    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Receive => "receive",
            Self::WaitForBuffer => "wait_for_buffer",
            Self::Pull => "pull",
            Self::Medium => "medium",
            Self::Push => "push",
            Self::Respond => "respond",
        }
    }
}

/// What a command does, in one of three words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    Write,
    Other,
}

impl Kind {
    /// Each of them.
    pub(crate) const ALL: [Self; 3] = [Self::Read, Self::Write, Self::Other];

    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Other => "other",
        }
    }
}

/// Why a reactor refuses connections, before there is a Connect.
pub(crate) const REFUSED: [&str; 10] = [
    "bad-request",
    "drained",
    "listener-removed",
    "lost-before-accept",
    "no-resources",
    "reactor-stuck",
    "receives-reserved",
    "share-of-receives",
    "shutting-down",
    "transport-not-on-port",
];

/// Why a reactor ends connections: by what has happened to them, and by the words of
/// `capstan_subsystem::DisconnectReason` where their controllers end them.
pub(crate) const ENDED: [&str; 25] = [
    "admin-queue-gone",
    "connect-refused",
    "connect-timeout",
    "controller",
    "controller-reset",
    "cross-controller-reset",
    "device-removed",
    "drained",
    "earlier-commands-not-over",
    "host",
    "host-not-allowed",
    "keep-alive-expired",
    "lost",
    "made-room",
    "not-connected",
    "not-enabled",
    "operator",
    "other",
    "queue-deleted",
    "queue-overrun",
    "replaced",
    "shutting-down",
    "stalled",
    "subsystem-removed",
    "violation",
];

/// How often each of some words came.
#[derive(Debug)]
pub(crate) struct Words<const N: usize> {
    words: &'static [&'static str; N],
    counts: [Counter; N],
}

impl<const N: usize> Words<N> {
    fn new(words: &'static [&'static str; N]) -> Self {
        Self {
            words,
            counts: std::array::from_fn(|_| Counter::default()),
        }
    }

    /// Counts one of the words.
    pub(crate) fn add(&self, word: &str) {
        let at = self.words.iter().position(|of| *of == word);
        debug_assert!(at.is_some(), "{word} is not in the list");
        if let Some(count) = at.and_then(|at| self.counts.get(at)) {
            count.add(1);
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = self.counts.iter().map(Counter::value);
        self.words.iter().copied().zip(counts)
    }
}

/// Memory of a pool.
#[derive(Debug, Default)]
pub(crate) struct PoolBytes {
    /// All of it.
    pub(crate) all: Gauge,
    /// What is not in use.
    pub(crate) free: Gauge,
}

/// What one reactor counts. It alone writes it, so it is on cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct ReactorMetrics {
    /// Its time.
    pub(crate) spent: Arc<Spent>,
    stages: [[Histogram; Stage::ALL.len()]; Kind::ALL.len()],
    /// Memory for data.
    pub(crate) data: PoolBytes,
    /// Memory for queues: receives and responses.
    pub(crate) queues: PoolBytes,
    /// Connections, those that are no queue yet among them.
    pub(crate) connections: Gauge,
    /// Turns of a command that found no buffer, as others have them.
    pub(crate) shortages: Counter,
    pub(crate) refused: Words<{ REFUSED.len() }>,
    pub(crate) ended: Words<{ ENDED.len() }>,
    sample: Arc<AtomicU32>,
}

impl Default for ReactorMetrics {
    fn default() -> Self {
        Self::new(Arc::default())
    }
}

impl ReactorMetrics {
    pub(super) fn new(sample: Arc<AtomicU32>) -> Self {
        Self {
            spent: Arc::default(),
            stages: Default::default(),
            data: PoolBytes::default(),
            queues: PoolBytes::default(),
            connections: Gauge::default(),
            shortages: Counter::default(),
            refused: Words::new(&REFUSED),
            ended: Words::new(&ENDED),
            sample,
        }
    }

    /// Of so many commands, the stages of one are timed.
    pub(crate) fn sample(&self) -> u32 {
        self.sample.load(Ordering::Relaxed)
    }

    /// A command was so long in a stage.
    pub(crate) fn observe(&self, kind: Kind, stage: Stage, ns: u64) {
        if let Some(histogram) = self.histogram(kind, stage) {
            histogram.observe_ns(ns);
        }
    }

    fn histogram(&self, kind: Kind, stage: Stage) -> Option<&Histogram> {
        self.stages.get(kind as usize)?.get(stage as usize)
    }

    pub(super) fn stage(&self, kind: Kind, stage: Stage) -> HistogramSnapshot {
        let histogram = self.histogram(kind, stage);
        histogram.map(Histogram::snapshot).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use capstan_subsystem::DisconnectReason;

    use super::*;

    #[test]
    fn each_kind_and_stage_has_its_times() {
        let metrics = ReactorMetrics::default();
        let mut ns = 0;
        for kind in Kind::ALL {
            for stage in Stage::ALL {
                ns += 1;
                metrics.observe(kind, stage, ns);
                let seen = metrics.stage(kind, stage);
                assert_eq!((seen.count(), seen.sum_ns), (1, ns), "{kind:?} {stage:?}");
            }
        }
    }

    #[test]
    fn the_words_are_sorted_and_those_of_controllers_are_among_them() {
        assert!(REFUSED.is_sorted() && ENDED.is_sorted());
        for reason in [
            DisconnectReason::QueueOverrun { qid: 1, entries: 2 },
            DisconnectReason::KeepAliveExpired { kato_ms: 1 },
            DisconnectReason::ControllerReset,
            DisconnectReason::Fenced {
                queues: 1,
                waited_ms: 1,
            },
            DisconnectReason::CrossControllerReset { cntlid: 1 },
            DisconnectReason::Replaced {
                cntlid: 1,
                peer: "192.0.2.1:1".parse().unwrap(),
            },
            DisconnectReason::AdminQueueGone,
            DisconnectReason::MadeRoom { controllers: 1 },
            DisconnectReason::NotEnabled { timeout_s: 1 },
            DisconnectReason::HostNotAllowed,
            DisconnectReason::SubsystemRemoved,
            DisconnectReason::Operator,
            DisconnectReason::DisconnectCommand,
            DisconnectReason::NotConnected,
        ] {
            let words = Words::new(&ENDED);
            words.add(reason.word());
            assert_eq!(words.iter().map(|(_, count)| count).sum::<u64>(), 1);
        }
    }

    #[test]
    fn the_reference_has_every_word() {
        let reference = include_str!("../../../docs/metrics.md");
        let (_, reasons) = reference.split_once("\n## Reasons\n").unwrap();
        for word in REFUSED.iter().chain(&ENDED) {
            // In the first column of a table, but for `host`, of which there is more to say.
            let is_told = reasons.contains(&format!("\n| `{word}` |"))
                || *word == "host" && reasons.contains("\n`host` is");
            assert!(is_told, "{word}");
        }
    }
}
