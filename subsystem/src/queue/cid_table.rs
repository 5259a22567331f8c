//! The set of outstanding Command Identifiers of one queue: fixed size, no allocation after
//! creation, exact for every 16-bit identifier.
//!
//! Open addressing with linear probing over at least twice as many cells as the queue has
//! entries. Hosts number their commands from a small range (Linux: the tag in the low bits), so
//! the low bits of the identifier are the hash and probes are short; a host that makes them
//! collide pays for it with a scan no longer than the table.

use alloc::boxed::Box;
use alloc::vec;

/// A cell: [`EMPTY`], or [`USED`] and the identifier.
type Cell = u32;
const EMPTY: Cell = 0;
const USED: Cell = 1 << 16;

/// Why an identifier could not be added.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum InsertError {
    Present,
    Full,
}

#[derive(Debug)]
pub(super) struct CidTable {
    cells: Box<[Cell]>,
    /// `cells.len() - 1`; the length is a power of two.
    mask: usize,
    len: u16,
    capacity: u16,
}

impl CidTable {
    pub(super) fn new(capacity: u16) -> Self {
        // At most 2 * 65,536 cells of 4 bytes; for the largest I/O queue 8 KiB.
        let cells = usize::from(capacity.max(1))
            .saturating_mul(2)
            .next_power_of_two();
        Self {
            cells: vec![EMPTY; cells].into_boxed_slice(),
            mask: cells.saturating_sub(1),
            len: 0,
            capacity,
        }
    }

    pub(super) fn len(&self) -> u16 {
        self.len
    }

    pub(super) fn contains(&self, cid: u16) -> bool {
        let (_, cell) = self.probe(cid);
        cell != EMPTY
    }

    /// Adds `cid`. Present wins over Full, because it is the more precise complaint.
    pub(super) fn insert(&mut self, cid: u16) -> Result<(), InsertError> {
        let (index, cell) = self.probe(cid);
        if cell != EMPTY {
            return Err(InsertError::Present);
        }
        if self.len >= self.capacity {
            return Err(InsertError::Full);
        }
        self.put(index, used(cid));
        self.len = self.len.saturating_add(1);
        Ok(())
    }

    /// Takes `cid` out; nothing happens when it is not there.
    pub(super) fn remove(&mut self, cid: u16) {
        let (mut hole, cell) = self.probe(cid);
        if cell == EMPTY {
            return;
        }
        self.len = self.len.saturating_sub(1);
        // Close the gap: an entry further along may move into the hole unless its home lies
        // cyclically after the hole, where a search for it would not pass the hole.
        let mut next = hole;
        for _ in 0..self.cells.len() {
            next = self.after(next);
            let cell = self.at(next);
            if cell == EMPTY {
                break;
            }
            let home = self.home(cell);
            if self.distance(home, next) >= self.distance(hole, next) {
                self.put(hole, cell);
                hole = next;
            }
        }
        self.put(hole, EMPTY);
    }

    /// The cell that holds `cid`, or the empty one where it would go. The table is never full
    /// (twice as many cells as entries), so the search ends at an empty cell at the latest.
    fn probe(&self, cid: u16) -> (usize, Cell) {
        let wanted = used(cid);
        let mut index = self.home(wanted);
        for _ in 0..self.cells.len() {
            let cell = self.at(index);
            if cell == wanted || cell == EMPTY {
                return (index, cell);
            }
            index = self.after(index);
        }
        (index, EMPTY)
    }

    fn home(&self, cell: Cell) -> usize {
        usize::try_from(cell & 0xFFFF).unwrap_or(0) & self.mask
    }

    fn after(&self, index: usize) -> usize {
        index.wrapping_add(1) & self.mask
    }

    /// Steps forward from `from` to `to`, round the end of the table.
    fn distance(&self, from: usize, to: usize) -> usize {
        to.wrapping_sub(from) & self.mask
    }

    fn at(&self, index: usize) -> Cell {
        self.cells.get(index).copied().unwrap_or(EMPTY)
    }

    fn put(&mut self, index: usize, cell: Cell) {
        if let Some(place) = self.cells.get_mut(index) {
            *place = cell;
        }
    }
}

fn used(cid: u16) -> Cell {
    USED | Cell::from(cid)
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        /// The table against a set, over identifiers that collide often.
        #[test]
        fn behaves_as_a_set(
            capacity in 1_u16..20,
            operations in proptest::collection::vec((any::<bool>(), 0_u16..12, 0_u16..5), 0..300),
        ) {
            let mut table = CidTable::new(capacity);
            let mut model = BTreeSet::new();
            for (insert, low, high) in operations {
                let cid = high << 13 | low;
                if insert {
                    let expected = if model.contains(&cid) {
                        Err(InsertError::Present)
                    } else if model.len() >= usize::from(capacity) {
                        Err(InsertError::Full)
                    } else {
                        model.insert(cid);
                        Ok(())
                    };
                    prop_assert_eq!(table.insert(cid), expected);
                } else {
                    table.remove(cid);
                    model.remove(&cid);
                }
                prop_assert_eq!(usize::from(table.len()), model.len());
                for low in 0..12 {
                    for high in 0..5 {
                        let cid = high << 13 | low;
                        prop_assert_eq!(table.contains(cid), model.contains(&cid));
                    }
                }
            }
        }
    }
}
