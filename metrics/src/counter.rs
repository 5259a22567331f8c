//! Single numbers.

use core::sync::atomic::{AtomicU64, Ordering};

/// A number that one thread adds to.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// One that is 0.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Adds. Only one thread may: of what two add at once, one would be lost.
    #[inline]
    pub fn add(&self, amount: u64) {
        let value = self.0.load(Ordering::Relaxed).wrapping_add(amount);
        self.0.store(value, Ordering::Relaxed);
    }

    /// As it is about now.
    #[must_use]
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A number that one thread sets.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    /// Sets it.
    #[inline]
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// As it is about now.
    #[must_use]
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;

    #[test]
    fn a_reader_sees_a_counter_grow_and_its_end() {
        let counter = Counter::default();
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| (0..100_000).for_each(|_| counter.add(3)));
            let mut before = 0;
            while !writer.is_finished() {
                let now = counter.value();
                assert!(before <= now && now % 3 == 0, "{before} {now}");
                before = now;
            }
        });
        assert_eq!(counter.value(), 300_000);
        let gauge = Gauge::default();
        gauge.set(7);
        gauge.set(5);
        assert_eq!(gauge.value(), 5);
    }
}
