//! A buddy allocator over block numbers: constant memory, no allocation after creation.

/// The end of a free list.
const NONE: u32 = u32::MAX;

/// Free blocks of `2^order` units each, kept in doubly linked lists inside two arrays.
#[derive(Debug)]
pub(crate) struct Buddy {
    /// Per order, the first free block.
    heads: Vec<u32>,
    /// Per unit: the order of the free block that starts here, or `NOT_FREE`.
    free_order: Vec<u8>,
    links: Vec<(u32, u32)>,
    free_units: u32,
}

const NOT_FREE: u8 = u8::MAX;

impl Buddy {
    /// A buddy over `units` units whose largest block is `2^order_max` units. Units past the last
    /// whole largest block are used in smaller blocks.
    pub(crate) fn new(units: u32, order_max: u8) -> Self {
        let n = units as usize;
        let mut buddy = Self {
            heads: vec![NONE; usize::from(order_max) + 1],
            free_order: vec![NOT_FREE; n],
            links: vec![(NONE, NONE); n],
            free_units: 0,
        };
        let mut at = 0;
        while at < units {
            let mut order = order_max;
            while at % (1 << order) != 0 || at + (1 << order) > units {
                order -= 1;
            }
            buddy.push(at, order);
            at += 1 << order;
        }
        buddy.free_units = units;
        buddy
    }

    pub(crate) fn free_units(&self) -> u32 {
        self.free_units
    }

    /// Takes a block of `2^order` units; returns its first unit.
    pub(crate) fn take(&mut self, order: u8) -> Option<u32> {
        let order_max = self.heads.len() - 1;
        let found = (usize::from(order)..=order_max).find(|&o| self.heads[o] != NONE)?;
        let at = self.heads[found];
        #[expect(clippy::cast_possible_truncation, reason = "an order is below 32")]
        let mut split = found as u8;
        self.unlink(at, split);
        while split > order {
            split -= 1;
            self.push(at + (1 << split), split);
        }
        self.free_units -= 1 << order;
        Some(at)
    }

    /// Frees a block, joining it with its free buddies.
    pub(crate) fn give(&mut self, at: u32, order: u8) {
        self.free_units += 1 << order;
        let (mut at, mut order) = (at, order);
        while usize::from(order) + 1 < self.heads.len() {
            let buddy = at ^ (1 << order);
            if self.free_order.get(buddy as usize) != Some(&order) {
                break;
            }
            self.unlink(buddy, order);
            at = at.min(buddy);
            order += 1;
        }
        self.push(at, order);
    }

    fn push(&mut self, at: u32, order: u8) {
        let head = self.heads[usize::from(order)];
        self.links[at as usize] = (NONE, head);
        if head != NONE {
            self.links[head as usize].0 = at;
        }
        self.heads[usize::from(order)] = at;
        self.free_order[at as usize] = order;
    }

    fn unlink(&mut self, at: u32, order: u8) {
        let (previous, next) = self.links[at as usize];
        if previous == NONE {
            self.heads[usize::from(order)] = next;
        } else {
            self.links[previous as usize].1 = next;
        }
        if next != NONE {
            self.links[next as usize].0 = previous;
        }
        self.free_order[at as usize] = NOT_FREE;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Buddy;

    #[test]
    fn whole_comes_back_after_everything_is_given() {
        let mut buddy = Buddy::new(256, 8);
        let taken: Vec<_> = (0..256).map(|_| buddy.take(0).unwrap()).collect();
        assert_eq!(buddy.take(0), None);
        for at in taken {
            buddy.give(at, 0);
        }
        assert_eq!(buddy.take(8), Some(0));
    }

    #[test]
    fn odd_size_is_used_up_to_the_last_unit() {
        let mut buddy = Buddy::new(13, 3);
        assert_eq!(buddy.free_units(), 13);
        assert!(buddy.take(3).is_some() && buddy.take(2).is_some() && buddy.take(0).is_some());
        assert_eq!((buddy.free_units(), buddy.take(0)), (0, None));
    }

    proptest! {
        #[test]
        fn leases_never_overlap(units in 1u32..300, ops in prop::collection::vec((any::<bool>(), 0u8..6), 0..200)) {
            let mut buddy = Buddy::new(units, 5);
            let mut held: Vec<(u32, u8)> = Vec::new();
            for (take, order) in ops {
                if take {
                    if let Some(at) = buddy.take(order) {
                        prop_assert!(at + (1 << order) <= units);
                        for &(other, o) in &held {
                            prop_assert!(at + (1 << order) <= other || other + (1 << o) <= at);
                        }
                        held.push((at, order));
                    }
                } else if !held.is_empty() {
                    let (at, o) = held.swap_remove(usize::from(order) % held.len());
                    buddy.give(at, o);
                }
                let used: u32 = held.iter().map(|&(_, o)| 1 << o).sum();
                prop_assert_eq!(buddy.free_units() + used, units);
            }
        }
    }
}
