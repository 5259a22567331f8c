//! What the control half and the data half of a controller share: atomics, nothing else.
//!
//! The control half ([`Target`](crate::Target)) runs behind one lock; an
//! [`IoQueue`](crate::IoQueue) runs without any on the reactor that owns its connection.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use capstan_metrics::Gauge;
use capstan_nvme_proto::status::Status;

use crate::bounds::QUEUE_ERRORS;

/// Of one controller, written by its control half unless said otherwise. On its own cache lines,
/// because every command reads it, and another core may write what is beside it all the time.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct ControllerShared {
    /// CSTS.RDY, and no shutdown in progress: I/O commands are executed.
    ready: AtomicBool,
    /// Written by I/O queues: a command arrived since the Keep Alive timer last looked.
    active: AtomicBool,
    /// Volatile Write Cache feature: when off every write is made durable before its completion.
    write_cache_disabled: AtomicBool,
    /// Generation of the newest namespace table.
    namespaces_generation: AtomicU64,
    /// Errors of this controller so far, over all its queues (which add to it).
    errors: AtomicU64,
}

impl ControllerShared {
    pub(crate) fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    pub(crate) fn set_ready(&self, ready: bool) {
        self.ready.store(ready, Ordering::Release);
    }

    /// Notes that a command arrived. Stores only when no other queue has, so that queues on several
    /// cores do not fight over the cache line.
    pub(crate) fn note_activity(&self) {
        if !self.active.load(Ordering::Relaxed) {
            self.active.store(true, Ordering::Relaxed);
        }
    }

    /// Whether a command arrived since the last call.
    pub(crate) fn take_activity(&self) -> bool {
        self.active.swap(false, Ordering::Relaxed)
    }

    pub(crate) fn is_write_cache_disabled(&self) -> bool {
        self.write_cache_disabled.load(Ordering::Acquire)
    }

    pub(crate) fn set_write_cache_disabled(&self, disabled: bool) {
        self.write_cache_disabled.store(disabled, Ordering::Release);
    }

    pub(crate) fn namespaces_generation(&self) -> u64 {
        self.namespaces_generation.load(Ordering::Acquire)
    }

    pub(crate) fn set_namespaces_generation(&self, generation: u64) {
        self.namespaces_generation
            .store(generation, Ordering::Release);
    }

    /// Errors so far.
    pub(crate) fn errors(&self) -> u64 {
        self.errors.load(Ordering::Relaxed)
    }

    /// The Error Count of a new error, from 1.
    pub(crate) fn next_error(&self) -> u64 {
        self.errors
            .fetch_add(1, Ordering::Relaxed)
            .saturating_add(1)
    }
}

/// An error of a command, as the Error Information log tells it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ErrorRecord {
    /// Error Count: unique per controller, increasing.
    pub(crate) count: u64,
    pub(crate) qid: u16,
    pub(crate) cid: u16,
    pub(crate) status: Status,
    pub(crate) location: u16,
    pub(crate) opcode: u8,
    pub(crate) nsid: u32,
    pub(crate) lba: u64,
}

/// Of one I/O queue. On its own cache lines, because one core writes it all the time.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct QueueShared {
    /// Commands that are not completed.
    outstanding: Gauge,
    /// Errors recorded so far.
    errors_recorded: AtomicU64,
    errors: [ErrorCell; QUEUE_ERRORS],
}

/// A record that one side writes and the other reads without either waiting: the version says which
/// record it is (twice its index, plus two) and is odd while the words change, and the reader
/// throws away what is not, or no longer, the record it came for.
#[derive(Debug, Default)]
struct ErrorCell {
    version: AtomicU64,
    count: AtomicU64,
    lba: AtomicU64,
    /// QID, CID, status and location, 16 bits each from the low end.
    command: AtomicU64,
    /// NSID in the low half, opcode above it.
    namespace: AtomicU64,
}

impl QueueShared {
    /// So many commands are not completed. Only the queue calls this.
    #[inline]
    pub(crate) fn set_outstanding(&self, commands: u16) {
        self.outstanding.set(commands.into());
    }

    /// Commands that are not completed, about now.
    pub(crate) fn outstanding(&self) -> u64 {
        self.outstanding.value()
    }

    /// Records an error over the oldest one. Only the queue calls this.
    pub(crate) fn record_error(&self, record: &ErrorRecord) {
        let recorded = self.errors_recorded.load(Ordering::Relaxed);
        let Some(cell) = self.cell(recorded) else {
            return;
        };
        let complete = complete_version(recorded);
        cell.version
            .store(complete.wrapping_sub(1), Ordering::Relaxed);
        fence(Ordering::Release);
        cell.count.store(record.count, Ordering::Relaxed);
        cell.lba.store(record.lba, Ordering::Relaxed);
        let [q0, q1] = record.qid.to_le_bytes();
        let [c0, c1] = record.cid.to_le_bytes();
        let [s0, s1] = record.status.to_bits().to_le_bytes();
        let [l0, l1] = record.location.to_le_bytes();
        let command = u64::from_le_bytes([q0, q1, c0, c1, s0, s1, l0, l1]);
        cell.command.store(command, Ordering::Relaxed);
        let [n0, n1, n2, n3] = record.nsid.to_le_bytes();
        let namespace = u64::from_le_bytes([n0, n1, n2, n3, record.opcode, 0, 0, 0]);
        cell.namespace.store(namespace, Ordering::Relaxed);
        cell.version.store(complete, Ordering::Release);
        self.errors_recorded
            .store(recorded.wrapping_add(1), Ordering::Release);
    }

    /// Calls `take` with the errors recorded after the first `seen` that are still here, oldest
    /// first. Returns how many have been recorded, for the next call.
    pub(crate) fn errors_since(&self, seen: u64, mut take: impl FnMut(ErrorRecord)) -> u64 {
        let recorded = self.errors_recorded.load(Ordering::Acquire);
        let kept = u64::try_from(QUEUE_ERRORS).unwrap_or(u64::MAX);
        let oldest = recorded.saturating_sub(kept).max(seen);
        for index in oldest..recorded {
            if let Some(record) = self.cell(index).and_then(|cell| cell.read(index)) {
                take(record);
            }
        }
        recorded
    }

    fn cell(&self, index: u64) -> Option<&ErrorCell> {
        let cells = u64::try_from(self.errors.len()).ok()?;
        let index = usize::try_from(index.checked_rem(cells)?).ok()?;
        self.errors.get(index)
    }
}

fn complete_version(index: u64) -> u64 {
    index.wrapping_mul(2).wrapping_add(2)
}

impl ErrorCell {
    fn read(&self, index: u64) -> Option<ErrorRecord> {
        let before = self.version.load(Ordering::Acquire);
        let count = self.count.load(Ordering::Relaxed);
        let lba = self.lba.load(Ordering::Relaxed);
        let command = self.command.load(Ordering::Relaxed);
        let namespace = self.namespace.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        let after = self.version.load(Ordering::Relaxed);
        if before != after || before != complete_version(index) {
            return None;
        }
        let [q0, q1, c0, c1, s0, s1, l0, l1] = command.to_le_bytes();
        let [n0, n1, n2, n3, opcode, ..] = namespace.to_le_bytes();
        Some(ErrorRecord {
            count,
            qid: u16::from_le_bytes([q0, q1]),
            cid: u16::from_le_bytes([c0, c1]),
            status: Status::from_bits(u16::from_le_bytes([s0, s1])),
            location: u16::from_le_bytes([l0, l1]),
            opcode,
            nsid: u32::from_le_bytes([n0, n1, n2, n3]),
            lba,
        })
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    fn record(count: u64) -> ErrorRecord {
        ErrorRecord {
            count,
            qid: 3,
            cid: 0xABCD,
            status: Status::LBA_OUT_OF_RANGE.dnr(),
            location: 40,
            opcode: 2,
            nsid: 0x0102_0304,
            lba: u64::MAX,
        }
    }

    #[test]
    fn errors_come_out_as_they_went_in_once_and_the_newest_stay() {
        let queue = QueueShared::default();
        queue.record_error(&record(1));
        let mut taken = Vec::new();
        let seen = queue.errors_since(0, |error| taken.push(error));
        assert_eq!((taken.as_slice(), seen), ([record(1)].as_slice(), 1));

        taken.clear();
        for count in 2..=20 {
            queue.record_error(&record(count));
        }
        let seen = queue.errors_since(seen, |error| taken.push(error));
        let expected: Vec<_> = (13..=20).map(record).collect();
        assert_eq!((taken, seen), (expected, 20));
        assert_eq!(queue.errors_since(seen, |_| panic!("nothing new")), 20);
    }

    #[test]
    fn a_reader_on_another_thread_never_sees_a_torn_record() {
        let queue = QueueShared::default();
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for count in 0..20_000 {
                    queue.record_error(&ErrorRecord {
                        lba: count,
                        ..record(count)
                    });
                }
            });
            let mut seen = 0;
            let mut newest = None;
            while seen < 20_000 {
                seen = queue.errors_since(seen, |error| {
                    assert_eq!(error.lba, error.count);
                    assert!(newest.is_none_or(|newest| newest < error.count));
                    newest = Some(error.count);
                });
            }
            writer.join().unwrap();
        });
    }
}
