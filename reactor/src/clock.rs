//! The one place that reads the clock.

use nix::time::{ClockId, clock_gettime};

/// Monotonic microseconds. Everything above takes `now_us` as an argument.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock;

impl Clock {
    /// Microseconds since an arbitrary point before this process started.
    #[must_use]
    pub fn now_us(self) -> u64 {
        // CLOCK_MONOTONIC cannot fail on Linux; zero would only delay timers.
        clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |t| {
            t.tv_sec().unsigned_abs() * 1_000_000 + t.tv_nsec().unsigned_abs() / 1_000
        })
    }

    /// The same in nanoseconds, for what takes less than some microseconds.
    #[must_use]
    pub fn now_ns(self) -> u64 {
        // As above.
        clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |t| {
            t.tv_sec().unsigned_abs() * 1_000_000_000 + t.tv_nsec().unsigned_abs()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Clock;

    #[test]
    fn does_not_go_back() {
        let first = Clock.now_us();
        assert!(first > 0 && Clock.now_us() >= first);
        let ns = Clock.now_ns();
        assert!(ns / 1000 >= first && Clock.now_ns() >= ns);
    }
}
