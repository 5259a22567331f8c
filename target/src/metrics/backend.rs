//! What is done on a backend.

use std::sync::Arc;

use capstan_metrics::Counter;
use capstan_nvme_proto::nqn::Nqn;
use capstan_storage::Op;

/// What one reactor does on a backend. It alone writes it, so it is on cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct BackendCounters {
    reads: Counter,
    writes: Counter,
    flushes: Counter,
    others: Counter,
    read_bytes: Counter,
    written_bytes: Counter,
    errors: Counter,
}

impl BackendCounters {
    /// Data is read: copied from memory, or by an operation that begins.
    #[inline]
    pub(crate) fn reads(&self, bytes: u64) {
        self.reads.add(1);
        self.read_bytes.add(bytes);
    }

    /// Data is written, likewise.
    #[inline]
    pub(crate) fn writes(&self, bytes: u64) {
        self.writes.add(1);
        self.written_bytes.add(bytes);
    }

    /// An operation begins, on a volume with LBAs of so many bytes.
    #[inline]
    pub(crate) fn begins(&self, op: &Op, lba_bytes: u32) {
        let bytes = |lbas: u32| u64::from(lbas) * u64::from(lba_bytes);
        match op {
            Op::Read { lbas, .. } => self.reads(bytes(*lbas)),
            Op::Write { lbas, .. } => self.writes(bytes(*lbas)),
            Op::Flush => self.flushes.add(1),
            _ => self.others.add(1),
        }
    }

    /// An operation has failed.
    pub(crate) fn failed(&self) {
        self.errors.add(1);
    }
}

/// A backend, and what every reactor does on it.
#[derive(Debug)]
pub(crate) struct BackendMetrics {
    /// Its path, or what it is.
    pub(crate) name: String,
    /// The namespace on it.
    pub(crate) subnqn: Nqn,
    pub(crate) nsid: u32,
    reactors: Box<[Arc<BackendCounters>]>,
}

/// The sums of all reactors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct BackendCounted {
    /// In the order of [`OPERATIONS`].
    pub(super) operations: [u64; 4],
    pub(super) read_bytes: u64,
    pub(super) written_bytes: u64,
    pub(super) errors: u64,
}

pub(super) const OPERATIONS: [&str; 4] = ["read", "write", "flush", "other"];

impl BackendMetrics {
    /// So many reactors will have it.
    pub(crate) fn new(name: String, subnqn: Nqn, nsid: u32, reactors: usize) -> Self {
        Self {
            name,
            subnqn,
            nsid,
            reactors: (0..reactors).map(|_| Arc::default()).collect(),
        }
    }

    /// What a reactor counts in.
    pub(crate) fn of_reactor(&self, reactor: usize) -> Arc<BackendCounters> {
        let counters = self.reactors.get(reactor);
        counters.map_or_else(Arc::default, Arc::clone)
    }

    pub(super) fn counted(&self) -> BackendCounted {
        let mut sum = BackendCounted::default();
        for of in &self.reactors {
            let operations = [&of.reads, &of.writes, &of.flushes, &of.others];
            for (sum, counter) in sum.operations.iter_mut().zip(operations) {
                *sum += counter.value();
            }
            sum.read_bytes += of.read_bytes.value();
            sum.written_bytes += of.written_bytes.value();
            sum.errors += of.errors.value();
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_reactors_do_is_summed() {
        let metrics = BackendMetrics::new("ram".to_owned(), Nqn::new("a").unwrap(), 1, 2);
        let [first, second] = [0, 1].map(|reactor| metrics.of_reactor(reactor));
        first.begins(&Op::Read { lba: 0, lbas: 2 }, 512);
        second.begins(&Op::Flush, 512);
        second.writes(4096);
        second.begins(&Op::Discard { lba: 0, lbas: 1 }, 512);
        first.failed();
        let expected = BackendCounted {
            operations: [1, 1, 1, 1],
            read_bytes: 1024,
            written_bytes: 4096,
            errors: 1,
        };
        assert_eq!(metrics.counted(), expected);
        // One beyond those that there are disturbs none.
        metrics.of_reactor(2).failed();
        assert_eq!(metrics.counted(), expected);
    }
}
