//! Which way bytes go into a ring: through the caches of the core that writes it, or around them.
//!
//! Cores that share a cache hand lines over in it. Between distant ones a line that the other has had is fetched from there by a
//! store, and fetched back by the other's load; memory is nearer to both then. Which of the two it is tells the time of a copy, and that
//! changes when the system moves an end to another core.

use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

/// Fewer bytes always go through the caches.
pub(super) const WORTH_BYTES: usize = 1024;
/// After so many bytes some are timed, of each way in turn.
const TIMED_EVERY_BYTES: usize = 2 << 20;
/// Most bytes of a copy that are timed: the way that is not taken may be much slower.
const TIMED_BYTES: usize = 4096;
/// Through the caches is taken unless it takes so many times as long. The fence makes the time of a copy around them whole; one through them
/// goes on at the reader, who fetches what the writer has.
const TIMES: u64 = 2;
/// So many times in a row, but for the other way around: a timed copy may have been interrupted.
const SURE: i8 = 4;

/// The way taken, and what is known of the other.
#[derive(Debug, Default)]
pub(super) struct Way {
    around: bool,
    /// Bytes copied since some were timed.
    untimed_bytes: usize,
    /// The next that are timed go around the caches.
    time_around: bool,
    /// Picoseconds a byte of the last ones timed through the caches.
    through: u64,
    /// How often they were faster around the caches, less how often they were not.
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

    /// Calls `copy` until it has copied `bytes`, each time with how many were before, how many to copy, and whether they go around the
    /// caches. Whether any did.
    #[inline]
    pub(super) fn take(&mut self, bytes: usize, mut copy: impl FnMut(usize, usize, bool)) -> bool {
        if bytes < WORTH_BYTES {
            copy(0, bytes, false);
            return false;
        }
        self.untimed_bytes += bytes;
        if self.untimed_bytes < TIMED_EVERY_BYTES {
            copy(0, bytes, self.around);
            return self.around;
        }
        self.untimed_bytes = 0;
        let timed = bytes.min(TIMED_BYTES);
        let around = self.time(timed, &mut copy);
        if timed == bytes {
            return around;
        }
        copy(timed, bytes - timed, self.around);
        around || self.around
    }

    #[cold]
    fn time(&mut self, bytes: usize, copy: &mut impl FnMut(usize, usize, bool)) -> bool {
        let around = self.time_around;
        self.time_around = !around;
        // Nothing that was stored before is in the time, and all of this is.
        fence(Ordering::SeqCst);
        let start = Instant::now();
        copy(0, bytes, around);
        fence(Ordering::SeqCst);
        self.timed(around, bytes, start.elapsed());
        around
    }

    /// So many bytes have taken so long.
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
    fn every_byte_is_copied_once_and_pages_of_both_ways_are_timed_whichever_is_taken() {
        for (usual, bytes) in [
            (false, PAGE),
            (true, PAGE),
            (false, 40 * PAGE),
            (true, 1500),
        ] {
            let mut way = Way::at_first(usual);
            // Where the clock changes the way, the first ones still tell.
            let (mut other, mut turns) = (0, 0);
            while other == 0 {
                let (mut copied, mut any) = (0, false);
                let answer = way.take(bytes, |before, bytes, around| {
                    assert_eq!(before, copied);
                    copied += bytes;
                    any |= around;
                    if around != usual {
                        assert!(bytes <= TIMED_BYTES);
                        other += bytes;
                    }
                });
                assert_eq!((copied, answer), (bytes, any), "{way:?}");
                turns += 1;
            }
            assert_eq!(other, bytes.min(TIMED_BYTES));
            let timed = if usual { 1 } else { 2 };
            assert_eq!(turns, timed * TIMED_EVERY_BYTES.div_ceil(bytes));
        }
    }

    #[test]
    fn short_copies_go_through_the_caches() {
        let mut way = Way::at_first(true);
        assert!(!way.take(WORTH_BYTES - 1, |_, _, around| assert!(!around)));
        assert!(way.take(WORTH_BYTES, |_, _, around| assert!(around)));
    }
}
