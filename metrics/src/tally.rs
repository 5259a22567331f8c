//! How often each of a few keys came, without knowing beforehand which.

use core::sync::atomic::{AtomicU64, Ordering};

/// Where the key is in a word; below it is the count.
const KEY_SHIFT: u32 = 48;
/// The largest count: a command in each nanosecond takes three days for that many.
pub const COUNT_MAX: u64 = (1 << KEY_SHIFT) - 1;

/// Counts of `N` keys, the first ones that come. Those of all others are one. One thread writes it,
/// where something has gone wrong: it looks for the key.
///
/// A key and its count are one word, so that a reader never has one without the other.
#[derive(Debug)]
pub struct Tally<const N: usize> {
    words: [AtomicU64; N],
    others: AtomicU64,
}

impl<const N: usize> Default for Tally<N> {
    fn default() -> Self {
        Self {
            words: [const { AtomicU64::new(0) }; N],
            others: AtomicU64::new(0),
        }
    }
}

impl<const N: usize> Tally<N> {
    /// Counts a key.
    pub fn add(&self, key: u16) {
        for word in &self.words {
            let (has, count) = split(word.load(Ordering::Relaxed));
            if count == 0 || has == key {
                let count = count.saturating_add(1).min(COUNT_MAX);
                word.store(u64::from(key) << KEY_SHIFT | count, Ordering::Relaxed);
                return;
            }
        }
        let others = self.others.load(Ordering::Relaxed).saturating_add(1);
        self.others.store(others, Ordering::Relaxed);
    }

    /// Each key that came, and how often; last, without a key, all for which there was no room.
    pub fn iter(&self) -> impl Iterator<Item = (Option<u16>, u64)> {
        let words = self.words.iter().map(|word| {
            let (key, count) = split(word.load(Ordering::Relaxed));
            (Some(key), count)
        });
        let others = (None, self.others.load(Ordering::Relaxed));
        words.chain([others]).filter(|(_, count)| *count > 0)
    }
}

fn split(word: u64) -> (u16, u64) {
    let key = u16::try_from(word >> KEY_SHIFT).unwrap_or(u16::MAX);
    (key, word & COUNT_MAX)
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    fn all<const N: usize>(tally: &Tally<N>) -> Vec<(Option<u16>, u64)> {
        tally.iter().collect()
    }

    #[test]
    fn each_key_is_counted_and_those_without_room_together() {
        let tally = Tally::<2>::default();
        assert_eq!(all(&tally), []);
        for key in [0, u16::MAX, 0, 7, 8, 0] {
            tally.add(key);
        }
        assert_eq!(all(&tally), [(Some(0), 3), (Some(u16::MAX), 1), (None, 2)]);
    }

    #[test]
    fn a_count_that_is_full_keeps_its_key() {
        let tally = Tally::<1>::default();
        tally.add(3);
        tally.words[0].store(3 << KEY_SHIFT | COUNT_MAX, Ordering::Relaxed);
        tally.add(3);
        assert_eq!(all(&tally), [(Some(3), COUNT_MAX)]);
    }
}
