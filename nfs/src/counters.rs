//! What is counted of calls: by export, and by the thread that carries them out, which alone writes
//! its numbers.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use capstan_exports::ExportId;
use capstan_metrics::{Counter, Gauge, Tally};
use capstan_nfs_proto::v3::call::Call as Procedure;
use capstan_nfs_proto::v3::status::Status as Status3;
use capstan_nfs_proto::v4::opnum::OpNum;
use capstan_nfs_proto::v4::status::Status as Status4;

/// Exports that a thread counts by themselves: as many as a configuration may have. Those that
/// `crossmnt` makes beyond them are counted together.
const EXPORTS_COUNTED: usize = 1024;
/// Operations of version 4, up to REMOVEXATTR; 0 stands for all that there are not.
const OPERATIONS: usize = 76;
/// Procedures of version 3.
const PROCEDURES: usize = 22;
/// Different statuses that a thread counts for each export and version.
const STATUSES: usize = 16;

/// A version of NFS.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Version {
    /// NFS version 3.
    V3,
    /// NFS versions 4.1 and 4.2.
    V4,
}

impl Version {
    /// In a word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::V3 => "3",
            Self::V4 => "4",
        }
    }
}

/// What an operation was done on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Place {
    /// No file of an export.
    None,
    /// A file of this export.
    Export(ExportId),
    /// One of those that are counted together.
    Others,
}

impl From<Option<ExportId>> for Place {
    fn from(export: Option<ExportId>) -> Self {
        export.map_or(Self::None, Self::Export)
    }
}

/// What one thread counts of one export.
#[derive(Debug)]
#[repr(align(128))]
struct Cells {
    place: Place,
    operations: [Counter; OPERATIONS],
    procedures: [Counter; PROCEDURES],
    errors_v4: Tally<STATUSES>,
    errors_v3: Tally<STATUSES>,
    read_bytes: Counter,
    written_bytes: Counter,
}

impl Cells {
    fn new(place: Place) -> Self {
        Self {
            place,
            operations: [const { Counter::new() }; OPERATIONS],
            procedures: [const { Counter::new() }; PROCEDURES],
            errors_v4: Tally::default(),
            errors_v3: Tally::default(),
            read_bytes: Counter::default(),
            written_bytes: Counter::default(),
        }
    }

    fn operation(&self, op: OpNum, status: Status4) {
        let number = usize::try_from(op.0).ok();
        let counter = number.and_then(|number| self.operations.get(number));
        if let Some(counter) = counter.or_else(|| self.operations.first()) {
            counter.add(1);
        }
        if status != Status4::OK {
            self.errors_v4
                .add(u16::try_from(status.0).unwrap_or(u16::MAX));
        }
    }

    fn procedure(&self, number: u32, status: u32) {
        let number = usize::try_from(number).ok();
        if let Some(counter) = number.and_then(|number| self.procedures.get(number)) {
            counter.add(1);
        }
        if status != Status3::OK.0 {
            self.errors_v3
                .add(u16::try_from(status).unwrap_or(u16::MAX));
        }
    }

    fn add_to(&self, totals: &mut Totals) {
        let of = totals.0.entry(self.place).or_default();
        let names = (0..).zip(&self.operations);
        for (number, counter) in names.filter(|(_, counter)| counter.value() > 0) {
            let name = OpNum(number).name().unwrap_or("ILLEGAL");
            grow(
                of.operations.entry((Version::V4, name)).or_default(),
                counter.value(),
            );
        }
        let names = (0..).zip(&self.procedures);
        for (number, counter) in names.filter(|(_, counter)| counter.value() > 0) {
            let name = Procedure::name(number).unwrap_or("ILLEGAL");
            grow(
                of.operations.entry((Version::V3, name)).or_default(),
                counter.value(),
            );
        }
        for (version, errors) in [
            (Version::V4, self.errors_v4.iter().collect::<Vec<_>>()),
            (Version::V3, self.errors_v3.iter().collect()),
        ] {
            for (status, count) in errors {
                grow(of.errors.entry((version, status)).or_default(), count);
            }
        }
        grow(&mut of.read_bytes, self.read_bytes.value());
        grow(&mut of.written_bytes, self.written_bytes.value());
    }
}

/// What one thread counts.
#[derive(Debug)]
struct OfThread {
    /// Exports, each at or behind the place that its number says.
    exports: Box<[OnceLock<Box<Cells>>]>,
    none: Cells,
    others: Cells,
}

impl OfThread {
    fn new() -> Self {
        Self {
            exports: (0..EXPORTS_COUNTED).map(|_| OnceLock::new()).collect(),
            none: Cells::new(Place::None),
            others: Cells::new(Place::Others),
        }
    }

    fn of(&self, place: Place) -> &Cells {
        let Place::Export(export) = place else {
            return &self.none;
        };
        let first = usize::try_from(export.0).unwrap_or(0) % EXPORTS_COUNTED;
        // Where it is but for exports of numbers that are this far apart.
        if let Some(cells) = self.exports.get(first).and_then(OnceLock::get)
            && cells.place == place
        {
            return cells;
        }
        let (before, behind) = self.exports.split_at(first);
        for slot in behind.iter().chain(before) {
            let cells = slot.get_or_init(|| Box::new(Cells::new(place)));
            if cells.place == place {
                return cells;
            }
        }
        &self.others
    }

    fn add_to(&self, totals: &mut Totals) {
        let exports = self.exports.iter().filter_map(OnceLock::get);
        for cells in exports
            .map(|cells| &**cells)
            .chain([&self.none, &self.others])
        {
            cells.add_to(totals);
        }
    }
}

/// What was counted of an export.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct ExportTotals {
    /// Operations and procedures by their names.
    pub operations: BTreeMap<(Version, &'static str), u64>,
    /// Those that failed, by status. `None`: of statuses that there was no room for.
    pub errors: BTreeMap<(Version, Option<u16>), u64>,
    /// Bytes that were read.
    pub read_bytes: u64,
    /// Bytes that were written.
    pub written_bytes: u64,
}

/// What was counted, by export.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Totals(pub BTreeMap<Place, ExportTotals>);

impl Totals {
    fn add(&mut self, other: &Self) {
        for (place, more) in &other.0 {
            let of = self.0.entry(*place).or_default();
            for (name, count) in &more.operations {
                grow(of.operations.entry(*name).or_default(), *count);
            }
            for (status, count) in &more.errors {
                grow(of.errors.entry(*status).or_default(), *count);
            }
            grow(&mut of.read_bytes, more.read_bytes);
            grow(&mut of.written_bytes, more.written_bytes);
        }
    }
}

/// The threads that count, and what those had counted that have ended.
#[derive(Debug, Default)]
struct Threads {
    running: Vec<Arc<OfThread>>,
    ended: Totals,
}

/// What is counted of a service.
#[derive(Debug)]
pub struct Counters {
    /// No other ones have it.
    number: u64,
    /// Taken when a thread begins to count, when it ends, and by what reads.
    threads: Arc<Mutex<Threads>>,
    /// Clients of version 4, also those whose lease is over.
    pub(crate) clients: Gauge,
    /// Their opens.
    pub(crate) opens: Gauge,
    /// Connections of clients.
    pub(crate) connections: Gauge,
}

/// What a thread counts in; given up when the thread ends.
struct Mine {
    number: u64,
    counters: Arc<OfThread>,
    threads: Weak<Mutex<Threads>>,
}

impl Drop for Mine {
    fn drop(&mut self) {
        let Some(threads) = self.threads.upgrade() else {
            return;
        };
        let mut threads = locked(&threads);
        threads
            .running
            .retain(|of| !Arc::ptr_eq(of, &self.counters));
        self.counters.add_to(&mut threads.ended);
    }
}

thread_local! {
    static MINE: RefCell<Option<Mine>> = const { RefCell::new(None) };
}

fn grow(sum: &mut u64, by: u64) {
    *sum = sum.saturating_add(by);
}

fn locked(threads: &Mutex<Threads>) -> MutexGuard<'_, Threads> {
    // Every call leaves it whole.
    threads.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Default for Counters {
    fn default() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            threads: Arc::default(),
            clients: Gauge::default(),
            opens: Gauge::default(),
            connections: Gauge::default(),
        }
    }
}

impl Counters {
    /// An operation of version 4 has ended.
    pub(crate) fn operation(&self, place: Place, op: OpNum, status: Status4) {
        self.mine(|mine| mine.of(place).operation(op, status));
    }

    /// These operations of version 4 have ended.
    pub(crate) fn operations(&self, ended: impl Iterator<Item = (Place, OpNum, Status4)>) {
        self.mine(|mine| {
            for (place, op, status) in ended {
                mine.of(place).operation(op, status);
            }
        });
    }

    /// A procedure of version 3 has ended.
    pub(crate) fn procedure(&self, place: Place, number: u32, status: u32) {
        self.mine(|mine| mine.of(place).procedure(number, status));
    }

    /// Bytes of a file were read.
    pub(crate) fn read(&self, export: ExportId, bytes: usize) {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        self.mine(|mine| mine.of(Place::Export(export)).read_bytes.add(bytes));
    }

    /// Bytes of a file were written.
    pub(crate) fn written(&self, export: ExportId, bytes: usize) {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        self.mine(|mine| mine.of(Place::Export(export)).written_bytes.add(bytes));
    }

    fn mine(&self, count: impl FnOnce(&OfThread)) {
        MINE.with_borrow_mut(|mine| {
            let is_of_this = mine.as_ref().is_some_and(|mine| mine.number == self.number);
            if !is_of_this {
                *mine = Some(self.begin());
            }
            if let Some(mine) = mine {
                count(&mine.counters);
            }
        });
    }

    #[cold]
    fn begin(&self) -> Mine {
        let counters = Arc::new(OfThread::new());
        locked(&self.threads).running.push(Arc::clone(&counters));
        Mine {
            number: self.number,
            counters,
            threads: Arc::downgrade(&self.threads),
        }
    }

    /// What was counted of all calls, about now.
    #[must_use]
    pub fn totals(&self) -> Totals {
        // A thread ends, and its numbers move, in front of this or behind it.
        let threads = locked(&self.threads);
        let mut totals = threads.ended.clone();
        for thread in &threads.running {
            let mut of_thread = Totals::default();
            thread.add_to(&mut of_thread);
            totals.add(&of_thread);
        }
        totals.0.retain(|_, of| *of != ExportTotals::default());
        totals
    }

    /// Connections, clients, and their opens, about now.
    #[must_use]
    pub fn now(&self) -> [u64; 3] {
        [&self.connections, &self.clients, &self.opens].map(Gauge::value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_threads_count_is_summed_also_when_they_have_ended() {
        let counters = Counters::default();
        let place = Place::Export(ExportId(7));
        let count = || {
            counters.operation(place, OpNum::READ, Status4::OK);
            counters.operation(place, OpNum::READ, Status4::STALE);
            counters.operation(Place::None, OpNum(12_345), Status4::OP_ILLEGAL);
            counters.procedure(place, 6, 0);
            counters.read(ExportId(7), 4096);
            counters.written(ExportId(7), 1);
        };
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(count);
            }
        });
        count();
        let Totals(totals) = counters.totals();
        let of = &totals[&place];
        assert_eq!(of.operations[&(Version::V4, "READ")], 6);
        assert_eq!(of.operations[&(Version::V3, "READ")], 3);
        assert_eq!((of.read_bytes, of.written_bytes), (3 * 4096, 3));
        let stale = u16::try_from(Status4::STALE.0).unwrap();
        assert_eq!(of.errors, BTreeMap::from([((Version::V4, Some(stale)), 3)]));
        let none = &totals[&Place::None];
        assert_eq!(none.operations[&(Version::V4, "ILLEGAL")], 3);
        assert_eq!(locked(&counters.threads).running.len(), 1);
        // Those of another service are its own.
        let other = Counters::default();
        other.read(ExportId(7), 5);
        assert_eq!(other.totals().0[&place].read_bytes, 5);
        assert_eq!(counters.totals().0, totals);
    }

    #[test]
    fn exports_of_any_number_are_told_apart_as_long_as_there_is_room() {
        let counters = Counters::default();
        let most = u32::try_from(EXPORTS_COUNTED).unwrap();
        // All of them want the same place.
        for number in 0..=most {
            counters.read(ExportId(number * most), 1);
        }
        let Totals(totals) = counters.totals();
        assert_eq!(totals.len(), EXPORTS_COUNTED + 1);
        assert!(totals.values().all(|of| of.read_bytes == 1));
        assert!(totals.contains_key(&Place::Others));
    }
}
