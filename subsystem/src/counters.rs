//! Commands and data of I/O queues, by namespace: what the SMART / Health log page tells, and what
//! an operator is told by host. A queue writes its own cells, without a lock and without an
//! instruction that locks; the control half reads them at leisure.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;

use capstan_metrics::{Counter, Tally};
use capstan_nvme_proto::status::Status;

use crate::bounds::STATUSES_COUNTED;
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
    /// All other commands completed, those that were refused left out.
    pub other_commands: u64,
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
            (&mut self.other_commands, other.other_commands),
            (&mut self.read_bytes, other.read_bytes),
            (&mut self.written_bytes, other.written_bytes),
            (&mut self.media_errors, other.media_errors),
        ];
        for (value, other) in pairs {
            *value = with(*value, other);
        }
    }
}

/// What a host has done with a namespace.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct HostCounters {
    /// Its commands and their data.
    pub commands: QueueCounters,
    /// Completions with an error, by status (its [`Status::code`]): also those of commands that
    /// were refused, which are in no other count. `None`: of statuses without room for them.
    pub errors: BTreeMap<Option<u16>, u64>,
}

impl HostCounters {
    pub(crate) fn add(&mut self, other: &Self) {
        self.commands.add(&other.commands);
        for (status, count) in &other.errors {
            let sum = self.errors.entry(*status).or_default();
            *sum = sum.saturating_add(*count);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.errors.is_empty() && self.commands == QueueCounters::default()
    }
}

/// The counters of one I/O queue for the namespaces 1 to some number, shared with the control half.
/// The first ones are of commands that name no namespace with counters.
#[derive(Clone, Debug)]
pub struct NamespaceCounters(Arc<[Cell]>);

/// Of one namespace. On cache lines of its own, because one core writes it all the time.
#[derive(Default, Debug)]
#[repr(align(128))]
struct Cell {
    read_commands: Counter,
    write_commands: Counter,
    other_commands: Counter,
    read_bytes: Counter,
    written_bytes: Counter,
    media_errors: Counter,
    errors: Tally<STATUSES_COUNTED>,
}

// All of it on two lines, of which only the first is written while nothing goes wrong.
const _: () = assert!(size_of::<Cell>() == 128);

impl NamespaceCounters {
    /// For the namespaces of a table, and some more.
    pub(crate) fn new(namespaces: &NamespaceTable) -> Self {
        let cells = namespaces.nsid_max().max(CELLS_MIN).next_power_of_two();
        Self((0..=cells).map(|_| Cell::default()).collect())
    }

    /// Whether every namespace of the table has its counters.
    pub(crate) fn cover(&self, namespaces: &NamespaceTable) -> bool {
        usize::try_from(namespaces.nsid_max()).is_ok_and(|nsid| nsid < self.0.len())
    }

    fn cell(&self, nsid: u32) -> Option<&Cell> {
        self.0.get(nsid as usize)
    }

    /// The cells of a namespace, or those of commands that name none which has any.
    fn cell_or_first(&self, nsid: u32) -> Option<&Cell> {
        self.cell(nsid).or_else(|| self.0.first())
    }

    pub(crate) fn add_read(&self, nsid: u32, bytes: u64) {
        if let Some(cell) = self.cell(nsid) {
            cell.read_commands.add(1);
            cell.read_bytes.add(bytes);
        }
    }

    pub(crate) fn add_write(&self, nsid: u32, bytes: u64) {
        if let Some(cell) = self.cell(nsid) {
            cell.write_commands.add(1);
            cell.written_bytes.add(bytes);
        }
    }

    pub(crate) fn add_other(&self, nsid: u32) {
        if let Some(cell) = self.cell_or_first(nsid) {
            cell.other_commands.add(1);
        }
    }

    pub(crate) fn add_error(&self, nsid: u32, status: Status) {
        let Some(cell) = self.cell_or_first(nsid) else {
            return;
        };
        cell.errors.add(status.code().to_bits());
        // Base 2.0, Figure 207, Media and Data Integrity Errors: data that could not be recovered
        // or kept. A Compare that finds a difference has done its work.
        if matches!(
            status.code(),
            Status::WRITE_FAULT | Status::UNRECOVERED_READ_ERROR
        ) {
            cell.media_errors.add(1);
        }
    }

    /// Of one namespace.
    pub(crate) fn of(&self, nsid: u32) -> QueueCounters {
        self.cell(nsid).map(Cell::counters).unwrap_or_default()
    }

    /// Of each namespace with a number that has counters, by that.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, QueueCounters)> {
        (0..).zip(self.0.iter().map(Cell::counters))
    }

    /// The same with the errors by status.
    pub(crate) fn of_host(&self) -> impl Iterator<Item = (u32, HostCounters)> {
        let cells = self.0.iter().map(|cell| HostCounters {
            commands: cell.counters(),
            errors: cell.errors.iter().collect(),
        });
        (0..).zip(cells)
    }
}

impl Cell {
    fn counters(&self) -> QueueCounters {
        QueueCounters {
            read_commands: self.read_commands.value(),
            write_commands: self.write_commands.value(),
            other_commands: self.other_commands.value(),
            read_bytes: self.read_bytes.value(),
            written_bytes: self.written_bytes.value(),
            media_errors: self.media_errors.value(),
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
        counters.add_error(9, Status::WRITE_FAULT.dnr());
        for nsid in [17, u32::MAX] {
            counters.add_read(nsid, 1);
            counters.add_write(nsid, 1);
            counters.add_other(nsid);
            counters.add_error(nsid, Status::INVALID_FIELD.dnr());
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
        let nowhere = QueueCounters {
            other_commands: 2,
            ..QueueCounters::default()
        };
        let counted = counters
            .iter()
            .filter(|(_, of)| *of != QueueCounters::default());
        let expected = [(0, nowhere), (2, second), (9, ninth)];
        assert_eq!(counted.collect::<vec::Vec<_>>(), expected);
        let mut sum = second;
        sum.add(&ninth);
        assert_eq!((sum.since(&ninth), sum.since(&second)), (second, ninth));
        let of_host = |nsid| counters.of_host().find(|(of, _)| *of == nsid).unwrap().1;
        let errors = |nsid| of_host(nsid).errors.into_iter().collect::<vec::Vec<_>>();
        let code = |status: Status| Some(status.to_bits());
        assert_eq!(errors(9), [(code(Status::WRITE_FAULT), 1)]);
        assert_eq!(errors(0), [(code(Status::INVALID_FIELD), 2)]);
    }

    #[test]
    fn a_table_with_higher_numbers_needs_others() {
        let counters = NamespaceCounters::new(&table(&[]));
        assert!(counters.cover(&table(&[1, 8])));
        assert!(!counters.cover(&table(&[9])));
        assert_eq!(counters.iter().count(), 9);
        assert!(NamespaceCounters::new(&table(&[1024])).cover(&table(&[1024])));
    }
}
