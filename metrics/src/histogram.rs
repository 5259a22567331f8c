//! Times, by how long they are.

use crate::Counter;

/// Buckets with a bound: 1 us, 2 us, 4 us, … up to 2^20 us, which is about a second.
const BOUNDED: usize = 21;
/// All buckets: the last one has what is longer than all bounds.
pub const BUCKETS: usize = BOUNDED + 1;

/// How often times of each length came. One thread writes it.
#[derive(Debug, Default)]
pub struct Histogram {
    counts: [Counter; BUCKETS],
    sum_ns: Counter,
}

/// A histogram as it was about when it was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HistogramSnapshot {
    /// Times in each bucket, those of smaller ones left out.
    pub counts: [u64; BUCKETS],
    /// The sum of all times, in nanoseconds.
    pub sum_ns: u64,
}

/// The bound of each bucket but the last one: the longest time in it, in nanoseconds.
pub fn bucket_bounds_ns() -> impl ExactSizeIterator<Item = u64> {
    (0..BOUNDED).map(|bucket| 1000 << bucket)
}

impl Histogram {
    /// Counts a time.
    pub fn observe_ns(&self, ns: u64) {
        if let Some(count) = self.counts.get(bucket_of(ns)) {
            count.add(1);
        }
        self.sum_ns.add(ns);
    }

    /// As it is about now.
    #[must_use]
    pub fn snapshot(&self) -> HistogramSnapshot {
        HistogramSnapshot {
            counts: core::array::from_fn(|at| self.counts.get(at).map_or(0, Counter::value)),
            sum_ns: self.sum_ns.value(),
        }
    }
}

impl HistogramSnapshot {
    /// How many times were counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts
            .iter()
            .fold(0, |sum, count| sum.wrapping_add(*count))
    }

    /// Adds what another thread has counted.
    pub fn add(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            *count = count.wrapping_add(more);
        }
        self.sum_ns = self.sum_ns.wrapping_add(other.sum_ns);
    }
}

fn bucket_of(ns: u64) -> usize {
    let us = ns.div_ceil(1000);
    // The smallest power of two that is no smaller.
    let bucket = match us.checked_sub(1) {
        None | Some(0) => 0,
        Some(below) => u64::BITS.saturating_sub(below.leading_zeros()),
    };
    usize::try_from(bucket).map_or(BOUNDED, |bucket| bucket.min(BOUNDED))
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    #[test]
    fn a_time_is_in_the_first_bucket_with_a_bound_that_is_no_shorter() {
        let bounds: Vec<_> = bucket_bounds_ns().collect();
        assert_eq!(bounds.len(), BUCKETS - 1);
        assert_eq!((bounds[0], bounds[20]), (1000, 1_048_576_000));
        for (bucket, bound) in bounds.iter().enumerate() {
            assert_eq!(bucket_of(*bound), bucket);
            assert_eq!(bucket_of(*bound + 1), bucket + 1);
        }
        assert_eq!((bucket_of(0), bucket_of(1)), (0, 0));
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn what_was_counted_comes_out_and_adds_up() {
        let histogram = Histogram::default();
        for ns in [0, 999, 1001, 3_000_000_000] {
            histogram.observe_ns(ns);
        }
        let mut sum = histogram.snapshot();
        assert_eq!((sum.count(), sum.sum_ns), (4, 3_000_002_000));
        assert_eq!((sum.counts[0], sum.counts[1]), (2, 1));
        assert_eq!(sum.counts[BUCKETS - 1], 1);
        sum.add(&histogram.snapshot());
        assert_eq!((sum.count(), sum.counts[0]), (8, 4));
    }
}
