//! Commands and data of I/O queues, by namespace: what the SMART / Health log page tells. A queue
//! writes its own cells, without a lock and without an instruction that locks; the control half
//! reads them at leisure.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::namespace::NamespaceTable;

/// Cells of a queue whose controller shows fewer namespaces: a kilobyte, so that it rarely needs
/// more later.
const CELLS_MIN: u32 = 8;

/// What was done on I/O queues.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct QueueCounters {
    /// Read and Compare commands completed.
    pub read_commands: u64,
    /// Write commands completed.
    pub write_commands: u64,
    /// Bytes read by commands that succeeded.
    pub read_bytes: u64,
    /// Bytes written by commands that succeeded.
    pub written_bytes: u64,
    /// Completions with a media or data integrity status.
    pub media_errors: u64,
}

impl QueueCounters {
    pub(crate) fn add(&mut self, other: &Self) {
        self.change(other, u64::saturating_add);
    }

    /// What has come since `before`.
    pub(crate) fn since(mut self, before: &Self) -> Self {
        self.change(before, u64::saturating_sub);
        self
    }

    fn change(&mut self, other: &Self, with: impl Fn(u64, u64) -> u64) {
        let pairs = [
            (&mut self.read_commands, other.read_commands),
            (&mut self.write_commands, other.write_commands),
            (&mut self.read_bytes, other.read_bytes),
            (&mut self.written_bytes, other.written_bytes),
            (&mut self.media_errors, other.media_errors),
        ];
        for (value, other) in pairs {
            *value = with(*value, other);
        }
    }
}

/// The counters of one I/O queue for the namespaces 1 to some number, shared with the control half.
#[derive(Clone, Debug)]
pub struct NamespaceCounters(Arc<[Cell]>);

/// Of one namespace. On cache lines of its own, because one core writes it all the time.
#[derive(Default, Debug)]
#[repr(align(128))]
struct Cell {
    read_commands: AtomicU64,
    write_commands: AtomicU64,
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
    media_errors: AtomicU64,
}

impl NamespaceCounters {
    /// For the namespaces of a table, and some more.
    pub(crate) fn new(namespaces: &NamespaceTable) -> Self {
        let cells = namespaces.nsid_max().max(CELLS_MIN).next_power_of_two();
        Self((0..cells).map(|_| Cell::default()).collect())
    }

    /// Whether every namespace of the table has its counters.
    pub(crate) fn cover(&self, namespaces: &NamespaceTable) -> bool {
        usize::try_from(namespaces.nsid_max()).is_ok_and(|nsid| nsid <= self.0.len())
    }

    fn cell(&self, nsid: u32) -> Option<&Cell> {
        // No NSID is 0, and 0 has no cell.
        self.0.get((nsid as usize).wrapping_sub(1))
    }

    /// The queue is the only writer: a load and a store, no locked instruction.
    fn add(counter: &AtomicU64, amount: u64) {
        let value = counter.load(Ordering::Relaxed).wrapping_add(amount);
        counter.store(value, Ordering::Relaxed);
    }

    pub(crate) fn add_read(&self, nsid: u32, bytes: u64) {
        if let Some(cell) = self.cell(nsid) {
            Self::add(&cell.read_commands, 1);
            Self::add(&cell.read_bytes, bytes);
        }
    }

    pub(crate) fn add_write(&self, nsid: u32, bytes: u64) {
        if let Some(cell) = self.cell(nsid) {
            Self::add(&cell.write_commands, 1);
            Self::add(&cell.written_bytes, bytes);
        }
    }

    pub(crate) fn add_media_error(&self, nsid: u32) {
        if let Some(cell) = self.cell(nsid) {
            Self::add(&cell.media_errors, 1);
        }
    }

    /// Of one namespace.
    pub(crate) fn of(&self, nsid: u32) -> QueueCounters {
        self.cell(nsid).map(Cell::counters).unwrap_or_default()
    }

    /// Of each namespace with a number that has counters, by that.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, QueueCounters)> {
        (1..).zip(self.0.iter().map(Cell::counters))
    }
}

impl Cell {
    fn counters(&self) -> QueueCounters {
        QueueCounters {
            read_commands: self.read_commands.load(Ordering::Relaxed),
            write_commands: self.write_commands.load(Ordering::Relaxed),
            read_bytes: self.read_bytes.load(Ordering::Relaxed),
            written_bytes: self.written_bytes.load(Ordering::Relaxed),
            media_errors: self.media_errors.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::namespace::tests::namespace;
    use std::vec;

    fn table(nsids: &[u32]) -> NamespaceTable {
        NamespaceTable::new(1, nsids.iter().map(|nsid| namespace(*nsid)).collect())
    }

    #[test]
    fn each_namespace_has_its_own_and_those_without_disturb_nobody() {
        let counters = NamespaceCounters::new(&table(&[2, 9]));
        counters.add_read(2, 4096);
        counters.add_read(2, 512);
        counters.add_write(9, 1024);
        counters.add_media_error(9);
        for nsid in [0, 17, u32::MAX] {
            counters.add_read(nsid, 1);
            counters.add_write(nsid, 1);
            counters.add_media_error(nsid);
            assert_eq!(counters.of(nsid), QueueCounters::default());
        }
        let second = QueueCounters {
            read_commands: 2,
            read_bytes: 4608,
            ..QueueCounters::default()
        };
        let ninth = QueueCounters {
            write_commands: 1,
            written_bytes: 1024,
            media_errors: 1,
            ..QueueCounters::default()
        };
        let counted = counters
            .iter()
            .filter(|(_, of)| *of != QueueCounters::default());
        assert_eq!(counted.collect::<vec::Vec<_>>(), [(2, second), (9, ninth)]);
        let mut sum = second;
        sum.add(&ninth);
        assert_eq!((sum.since(&ninth), sum.since(&second)), (second, ninth));
    }

    #[test]
    fn a_table_with_higher_numbers_needs_others() {
        let counters = NamespaceCounters::new(&table(&[]));
        assert!(counters.cover(&table(&[1, 8])));
        assert!(!counters.cover(&table(&[9])));
        assert!(NamespaceCounters::new(&table(&[1024])).cover(&table(&[1024])));
    }
}
