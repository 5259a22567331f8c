//! Which way bytes go into a ring: through the caches of the core that writes it, or around them.
//!
//! Cores that share a cache hand lines over in it. Between distant ones a line that the other has had is fetched from there by a
//! store, and fetched back by the other's load; memory is nearer to both then. Which of the two it is tells the time of a copy, and that
//! changes when the system moves an end to another core.

use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

/// Fewer bytes always go through the caches.
pub(super) const WORTH_BYTES: usize = 1024;
/// One of so many copies is timed, of each way in turn.
const TIMED_EVERY: u32 = 512;
/// Through the caches is taken unless it takes so many times as long. The fence makes the time of a copy around them whole; one through them
/// goes on at the reader, who fetches what the writer has.
const TIMES: u64 = 2;
/// So many times in a row, but for the other way around: a timed copy may have been interrupted.
const SURE: i8 = 4;

/// The way taken, and what is known of the other.
#[derive(Debug, Default)]
pub(super) struct Way {
    around: bool,
    /// Copies so far.
    copies: u32,
    /// Picoseconds a byte of the last timed copy through the caches.
    through: u64,
    /// Copies that would have been faster around the caches, less those that would not.
    sure: i8,
}

impl Way {
    /// A way that is not the usual one at first.
    #[cfg(test)]
    pub(super) fn at_first(around: bool) -> Self {
        Self {
            around,
            ..Self::default()
        }
    }

    /// Calls `copy`, which copies `bytes`, with whether they go around the caches, and answers that.
    #[inline]
    pub(super) fn take(&mut self, bytes: usize, copy: impl FnOnce(bool)) -> bool {
        if bytes < WORTH_BYTES {
            copy(false);
            return false;
        }
        self.copies = self.copies.wrapping_add(1);
        if self.copies.is_multiple_of(TIMED_EVERY) {
            return self.time(bytes, copy);
        }
        copy(self.around);
        self.around
    }

    #[cold]
    fn time(&mut self, bytes: usize, copy: impl FnOnce(bool)) -> bool {
        let around = self.copies.is_multiple_of(2 * TIMED_EVERY);
        // Nothing that was stored before is in the time, and all of this copy is.
        fence(Ordering::SeqCst);
        let start = Instant::now();
        copy(around);
        fence(Ordering::SeqCst);
        self.timed(around, bytes, start.elapsed());
        around
    }

    /// A copy has taken so long.
    fn timed(&mut self, around: bool, bytes: usize, took: Duration) {
        let picoseconds = took.as_nanos().saturating_mul(1000) / bytes.max(1) as u128;
        let picoseconds = u64::try_from(picoseconds).unwrap_or(u64::MAX);
        if !around {
            self.through = picoseconds;
            return;
        }
        let is_faster = self.through > picoseconds.saturating_mul(TIMES);
        self.sure = (self.sure + if is_faster { 1 } else { -1 }).clamp(-SURE, SURE);
        if self.sure.abs() == SURE {
            self.around = is_faster;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 4096;

    fn pair(way: &mut Way, through: u64, around: u64) {
        way.timed(false, PAGE, Duration::from_nanos(through));
        way.timed(true, PAGE, Duration::from_nanos(around));
    }

    #[test]
    fn the_way_changes_when_four_times_the_other_one_was_much_faster_and_back() {
        let mut way = Way::default();
        for turn in 0..4 {
            assert!(!way.around, "{turn}");
            pair(&mut way, 2000, 300);
        }
        assert!(way.around);
        // One that was interrupted changes nothing.
        pair(&mut way, 300, 1_000_000);
        pair(&mut way, 2000, 300);
        assert!(way.around);
        for turn in 0..8 {
            assert!(way.around, "{turn}");
            pair(&mut way, 250, 300);
        }
        assert!(!way.around);
        // A little faster is not enough.
        for _ in 0..100 {
            pair(&mut way, 600, 300);
        }
        assert!(!way.around);
    }

    #[test]
    fn times_of_other_sizes_are_compared_by_the_byte() {
        let mut way = Way::default();
        for _ in 0..4 {
            way.timed(false, 16 * PAGE, Duration::from_micros(32));
            way.timed(true, PAGE, Duration::from_nanos(300));
        }
        assert!(way.around);
        for _ in 0..8 {
            way.timed(false, 16 * PAGE, Duration::from_nanos(2_000));
            way.timed(true, PAGE, Duration::from_nanos(300));
        }
        assert!(!way.around);
    }

    #[test]
    fn both_ways_are_timed_whichever_is_taken_and_short_copies_take_neither() {
        for way in [false, true] {
            let mut way = Way::at_first(way);
            let mut ways = [0; 2];
            for _ in 0..4 * TIMED_EVERY {
                let mut taken = false;
                let answer = way.take(PAGE, |around| taken = around);
                assert_eq!(answer, taken);
                ways[usize::from(taken)] += 1;
                assert!(!way.take(WORTH_BYTES - 1, |around| assert!(!around)));
            }
            assert!(ways[0] >= 2 && ways[1] >= 2, "{ways:?}");
            assert_eq!(ways[0] + ways[1], 4 * TIMED_EVERY);
        }
    }
}
