//! Which 32-bit numbers an index of the table of steering tags gets: hard to guess, and none of
//! them twice before every other key of the index was used.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

/// Low bits of a STag, which differ for each use of an index.
const KEY_BITS: u32 = 14;
const KEY_MASK: u32 = (1 << KEY_BITS) - 1;
/// A key is two of these.
const HALF_BITS: u32 = KEY_BITS / 2;
const HALF_MASK: u32 = (1 << HALF_BITS) - 1;
/// Four make a Feistel network of random functions look like a random permutation (Luby, Rackoff).
const ROUNDS: usize = 4;
/// Values of half a key.
const HALVES: usize = 1 << HALF_BITS;

/// Most STags of one provider: every index that is not key bits.
pub(super) const STAGS_MAX: usize = 1 << (32 - KEY_BITS);

/// Makes STags from indices, and finds the index of a STag.
pub(super) struct StagKeys {
    /// SipHash under a secret of the system.
    random: RandomState,
    /// The random functions: what each round adds for each half.
    noise: Box<[[u8; HALVES]; ROUNDS]>,
    /// Makes another permutation of the same functions for each index.
    tweaks: Vec<[u8; ROUNDS]>,
    /// Hides the index part of the STags.
    index_secret: u32,
    /// How often each index was used; wraps.
    uses: Vec<u32>,
}

impl StagKeys {
    pub(super) fn new() -> Self {
        let random = RandomState::new();
        let index_secret = truncate(random.hash_one(u64::MAX)) & !KEY_MASK;
        let mut noise = Box::new([[0; HALVES]; ROUNDS]);
        for (round, values) in noise.iter_mut().enumerate() {
            for (half, value) in values.iter_mut().enumerate() {
                *value = random.hash_one((round, half)).to_ne_bytes()[0];
            }
        }
        Self {
            random,
            noise,
            tweaks: Vec::new(),
            index_secret,
            uses: Vec::new(),
        }
    }

    /// Makes room for the next index.
    pub(super) fn push_index(&mut self) {
        let [tweak @ .., _, _, _, _] = self.random.hash_one(self.uses.len()).to_ne_bytes();
        self.tweaks.push(tweak);
        self.uses.push(0);
    }

    /// A fresh STag for `index`, which is one that was pushed.
    pub(super) fn fresh(&mut self, index: usize) -> u32 {
        let high = u32::try_from(index).unwrap_or(u32::MAX) << KEY_BITS;
        loop {
            let count = self.uses[index];
            self.uses[index] = count.wrapping_add(1);
            let stag = (high ^ self.index_secret) | self.key(index, count & KEY_MASK);
            // 0 stands for "not valid" in an entry, and some devices give it a meaning.
            if stag != 0 {
                return stag;
            }
        }
    }

    /// The index of a STag, also of one that was never made.
    #[inline]
    pub(super) fn index(&self, stag: u32) -> usize {
        ((stag ^ self.index_secret) >> KEY_BITS) as usize
    }

    /// A permutation of the counts up to `KEY_MASK`, another one for each index.
    fn key(&self, index: usize, count: u32) -> u32 {
        let (mut left, mut right) = (count >> HALF_BITS, count & HALF_MASK);
        for (noise, tweak) in self.noise.iter().zip(self.tweaks[index]) {
            let noise = u32::from(noise[(right ^ u32::from(tweak)) as usize % HALVES]);
            (left, right) = (right, left ^ (noise & HALF_MASK));
        }
        (left << HALF_BITS) | right
    }

    /// The index that STag 0 would name becomes `index`.
    #[cfg(test)]
    pub(super) fn give_zero_to(&mut self, index: usize) {
        self.index_secret = u32::try_from(index).unwrap() << KEY_BITS;
    }
}

fn truncate(value: u64) -> u32 {
    let [a, b, c, d, ..] = value.to_ne_bytes();
    u32::from_ne_bytes([a, b, c, d])
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_key_comes_twice_before_all_came_once() {
        let mut keys = StagKeys::new();
        keys.push_index();
        keys.push_index();
        for index in [0, 1] {
            // Index 0 or 1 may be the one whose key 0 makes a STag of 0, which is left out.
            let seen: HashSet<u32> = (0..KEY_MASK).map(|_| keys.fresh(index)).collect();
            assert_eq!(seen.len(), KEY_MASK as usize);
            assert!(seen.iter().all(|stag| keys.index(*stag) == index));
        }
    }

    #[test]
    fn indices_and_tables_have_orders_of_their_own() {
        let first_keys = |keys: &mut StagKeys, index| -> Vec<u32> {
            (0..32).map(|_| keys.fresh(index) & KEY_MASK).collect()
        };
        let (mut one, mut other) = (StagKeys::new(), StagKeys::new());
        for _ in 0..2 {
            one.push_index();
            other.push_index();
        }
        let keys = first_keys(&mut one, 0);
        assert_ne!(keys, first_keys(&mut one, 1));
        assert_ne!(keys, first_keys(&mut other, 0));
    }

    #[test]
    fn zero_is_never_made() {
        let mut keys = StagKeys::new();
        keys.push_index();
        keys.give_zero_to(0);
        assert!((0..2 << KEY_BITS).all(|_| keys.fresh(0) != 0));
    }
}
