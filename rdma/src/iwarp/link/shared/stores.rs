//! How bytes are stored into a ring: through the caches of the processor that writes it, or with
//! non-temporal stores, which go past them to memory.
//!
//! Processors that share a cache hand lines over in it. Between distant ones a store first fetches
//! the line from the processor that used it last, and the other's load fetches it back; memory is
//! nearer to both then. Which of the two it is shows in the time of a copy, and changes when the
//! system moves an end to another processor.

use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

/// Fewer bytes always go through the caches.
pub(in crate::iwarp) const WORTH_BYTES: usize = 1024;
/// A copy is timed after so many bytes, each kind of store in turn.
const TIMED_EVERY_BYTES: usize = 2 << 20;
/// Most bytes of a timed copy: the kind that is not in use may be much slower.
const TIMED_BYTES: usize = 4096;
/// Non-temporal stores are used where a copy through the caches takes so many times as long. A
/// fence makes the time of a non-temporal copy complete; one through the caches takes more later,
/// when the reader fetches the lines from the writer.
const TIMES: u64 = 2;
/// Net number of timed copies in favour of the other kind after which it is used: a single one may
/// have been interrupted.
const SURE: i8 = 4;

/// The kind of store in use, and what is known of the other.
#[derive(Debug, Default)]
pub(in crate::iwarp) struct StoreKind {
    non_temporal: bool,
    /// Bytes copied since a copy was timed.
    untimed_bytes: usize,
    /// The next timed copy is non-temporal.
    time_non_temporal: bool,
    /// Picoseconds per byte of the last timed copy through the caches.
    through: u64,
    /// How often non-temporal stores were faster, minus how often they were not; at most [`SURE`].
    sure: i8,
}

impl StoreKind {
    /// Begins with the given kind.
    #[cfg(test)]
    pub(in crate::iwarp) fn at_first(non_temporal: bool) -> Self {
        Self {
            non_temporal,
            ..Self::default()
        }
    }

    /// Calls `copy` until it has copied `bytes`, each time with how many were before, how many to
    /// copy, and whether to copy with non-temporal stores. Returns whether any were.
    #[inline]
    pub(in crate::iwarp) fn take(
        &mut self,
        bytes: usize,
        mut copy: impl FnMut(usize, usize, bool),
    ) -> bool {
        if bytes < WORTH_BYTES {
            copy(0, bytes, false);
            return false;
        }
        self.untimed_bytes += bytes;
        if self.untimed_bytes < TIMED_EVERY_BYTES {
            copy(0, bytes, self.non_temporal);
            return self.non_temporal;
        }
        self.untimed_bytes = 0;
        let timed = bytes.min(TIMED_BYTES);
        let non_temporal = self.time(timed, &mut copy);
        if timed == bytes {
            return non_temporal;
        }
        copy(timed, bytes - timed, self.non_temporal);
        non_temporal || self.non_temporal
    }

    #[cold]
    fn time(&mut self, bytes: usize, copy: &mut impl FnMut(usize, usize, bool)) -> bool {
        let non_temporal = self.time_non_temporal;
        self.time_non_temporal = !non_temporal;
        // The time has no earlier stores in it, and all of this copy.
        fence(Ordering::SeqCst);
        let start = Instant::now();
        copy(0, bytes, non_temporal);
        fence(Ordering::SeqCst);
        self.timed(non_temporal, bytes, start.elapsed());
        non_temporal
    }

    /// Takes the time of a copy into account.
    fn timed(&mut self, non_temporal: bool, bytes: usize, took: Duration) {
        let picoseconds = took.as_nanos().saturating_mul(1000) / bytes.max(1) as u128;
        let picoseconds = u64::try_from(picoseconds).unwrap_or(u64::MAX);
        if !non_temporal {
            self.through = picoseconds;
            return;
        }
        let is_faster = self.through > picoseconds.saturating_mul(TIMES);
        self.sure = (self.sure + if is_faster { 1 } else { -1 }).clamp(-SURE, SURE);
        if self.sure.abs() == SURE {
            self.non_temporal = is_faster;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 4096;

    fn pair(kind: &mut StoreKind, through: u64, non_temporal: u64) {
        kind.timed(false, PAGE, Duration::from_nanos(through));
        kind.timed(true, PAGE, Duration::from_nanos(non_temporal));
    }

    #[test]
    fn the_way_changes_when_four_times_the_other_one_was_much_faster_and_back() {
        let mut kind = StoreKind::default();
        for turn in 0..4 {
            assert!(!kind.non_temporal, "{turn}");
            pair(&mut kind, 2000, 300);
        }
        assert!(kind.non_temporal);
        // A copy that was interrupted changes nothing.
        pair(&mut kind, 300, 1_000_000);
        pair(&mut kind, 2000, 300);
        assert!(kind.non_temporal);
        for turn in 0..8 {
            assert!(kind.non_temporal, "{turn}");
            pair(&mut kind, 250, 300);
        }
        assert!(!kind.non_temporal);
        // A little faster is not enough.
        for _ in 0..100 {
            pair(&mut kind, 600, 300);
        }
        assert!(!kind.non_temporal);
    }

    #[test]
    fn times_of_other_sizes_are_compared_by_the_byte() {
        let mut kind = StoreKind::default();
        for _ in 0..4 {
            kind.timed(false, 16 * PAGE, Duration::from_micros(32));
            kind.timed(true, PAGE, Duration::from_nanos(300));
        }
        assert!(kind.non_temporal);
        for _ in 0..8 {
            kind.timed(false, 16 * PAGE, Duration::from_nanos(2_000));
            kind.timed(true, PAGE, Duration::from_nanos(300));
        }
        assert!(!kind.non_temporal);
    }

    #[test]
    fn every_byte_is_copied_once_and_pages_of_both_ways_are_timed_whichever_is_taken() {
        for (usual, bytes) in [
            (false, PAGE),
            (true, PAGE),
            (false, 40 * PAGE),
            (true, 1500),
        ] {
            let mut kind = StoreKind::at_first(usual);
            // Where the clock changes the kind, the first copies are still of the old one.
            let (mut other, mut turns) = (0, 0);
            while other == 0 {
                let (mut copied, mut any) = (0, false);
                let answer = kind.take(bytes, |before, bytes, non_temporal| {
                    assert_eq!(before, copied);
                    copied += bytes;
                    any |= non_temporal;
                    if non_temporal != usual {
                        assert!(bytes <= TIMED_BYTES);
                        other += bytes;
                    }
                });
                assert_eq!((copied, answer), (bytes, any), "{kind:?}");
                turns += 1;
            }
            assert_eq!(other, bytes.min(TIMED_BYTES));
            let timed = if usual { 1 } else { 2 };
            assert_eq!(turns, timed * TIMED_EVERY_BYTES.div_ceil(bytes));
        }
    }

    #[test]
    fn short_copies_go_through_the_caches() {
        let mut kind = StoreKind::at_first(true);
        assert!(!kind.take(WORTH_BYTES - 1, |_, _, non_temporal| assert!(!non_temporal)));
        assert!(kind.take(WORTH_BYTES, |_, _, non_temporal| assert!(non_temporal)));
    }
}
