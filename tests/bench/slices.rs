//! Counting in short slices of time.

use std::time::{Duration, Instant};

use crate::figure::percentile;

/// Long enough for thousands of operations, short enough to fall between interruptions.
const SLICE: Duration = Duration::from_millis(5);

/// Counts in slices of time.
pub(crate) struct Slices {
    start: Instant,
    slice: Instant,
    count: u64,
    total: u64,
    per_second: Vec<f64>,
}

impl Slices {
    /// From now on.
    pub(crate) fn new() -> Self {
        let now = Instant::now();
        Self {
            start: now,
            slice: now,
            count: 0,
            total: 0,
            per_second: Vec::new(),
        }
    }

    /// So many more.
    #[expect(clippy::cast_precision_loss, reason = "counts of a few seconds")]
    pub(crate) fn add(&mut self, count: u64) {
        self.count += count;
        self.total += count;
        let elapsed = self.slice.elapsed();
        if elapsed >= SLICE {
            let rate = self.count as f64 / elapsed.as_secs_f64();
            self.per_second.push(rate);
            self.count = 0;
            self.slice = Instant::now();
        }
    }

    /// Whether `time` has passed.
    pub(crate) fn over(&self, time: Duration) -> bool {
        self.start.elapsed() >= time
    }

    /// How often a second in the median slice.
    pub(crate) fn median(&self) -> f64 {
        percentile(&self.per_second, 50.0)
    }

    /// How often a second altogether.
    #[expect(clippy::cast_precision_loss, reason = "counts of a few seconds")]
    pub(crate) fn mean(&self) -> f64 {
        self.total as f64 / self.start.elapsed().as_secs_f64()
    }
}
