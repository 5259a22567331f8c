//! Counting in short slices of time.

use std::time::{Duration, Instant};

use crate::figure::percentile;

/// Long enough for thousands of operations, short enough to fall between interruptions.
const SLICE: Duration = Duration::from_millis(5);

/// Counts in slices of time.
pub(crate) struct Slices {
    start: Instant,
    slice: Instant,
    now: Instant,
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
            now,
            count: 0,
            total: 0,
            per_second: Vec::new(),
        }
    }

    /// So many more. The clock is looked at here alone.
    #[expect(clippy::cast_precision_loss, reason = "counts of a few seconds")]
    pub(crate) fn add(&mut self, count: u64) {
        self.count += count;
        self.total += count;
        self.now = Instant::now();
        let elapsed = self.now - self.slice;
        if elapsed >= SLICE {
            let rate = self.count as f64 / elapsed.as_secs_f64();
            self.per_second.push(rate);
            self.count = 0;
            self.slice = self.now;
        }
    }

    /// Whether `time` had passed when something was added last.
    pub(crate) fn over(&self, time: Duration) -> bool {
        self.now - self.start >= time
    }

    /// How often a second in the median slice.
    pub(crate) fn median(&self) -> f64 {
        percentile(&self.per_second, 50.0)
    }

    /// How often a second altogether.
    #[expect(clippy::cast_precision_loss, reason = "counts of a few seconds")]
    pub(crate) fn mean(&self) -> f64 {
        self.total as f64 / (self.now - self.start).as_secs_f64()
    }
}
