//! When to try again: bounded exponential back-off with jitter.

/// First wait after a loss, in milliseconds.
const FIRST_DELAY_MS: u64 = 100;

/// Waits between attempts to connect: 100 ms, doubling up to `delay_max_ms`, each lengthened by up
/// to a quarter so that the hosts of one target do not all come back in the same instant.
#[derive(Clone, Debug)]
pub(super) struct Backoff {
    delay_max_ms: u64,
    attempts: u32,
    random: u64,
}

impl Backoff {
    /// `seed` makes the jitter; hosts should differ in it.
    #[must_use]
    pub(super) fn new(delay_max_ms: u64, seed: u64) -> Self {
        Self {
            delay_max_ms: delay_max_ms.max(FIRST_DELAY_MS),
            attempts: 0,
            random: seed,
        }
    }

    /// Attempts since the last [`Backoff::reset`].
    #[must_use]
    pub(super) fn attempts(&self) -> u32 {
        self.attempts
    }

    /// The wait before the next attempt, in microseconds. Counts one attempt.
    pub(super) fn next_delay_us(&mut self) -> u64 {
        let doublings = self.attempts.min(20);
        self.attempts = self.attempts.saturating_add(1);
        let delay_ms = (FIRST_DELAY_MS << doublings).min(self.delay_max_ms);
        let delay_us = delay_ms.saturating_mul(1000);
        delay_us + self.random() % (delay_us / 4 + 1)
    }

    /// The connection is back: start from the shortest wait at the next loss.
    pub(super) fn reset(&mut self) {
        self.attempts = 0;
    }

    /// SplitMix64.
    fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::Backoff;

    #[test]
    fn doubles_from_100_ms_to_the_bound() {
        let mut backoff = Backoff::new(10_000, 7);
        for expected_ms in [
            100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000, 10_000_u64,
        ] {
            let delay_us = backoff.next_delay_us();
            let floor_us = expected_ms * 1000;
            assert!(
                (floor_us..=floor_us + floor_us / 4).contains(&delay_us),
                "{delay_us} us for {expected_ms} ms"
            );
        }
        assert_eq!(backoff.attempts(), 10);
        backoff.reset();
        assert!(backoff.next_delay_us() <= 125_000);
    }

    #[test]
    fn a_thousand_attempts_do_not_overflow() {
        let mut backoff = Backoff::new(u64::MAX / 2_000, 1);
        for _ in 0..1000 {
            backoff.next_delay_us();
        }
    }

    #[test]
    fn two_hosts_come_back_at_different_times() {
        let (mut a, mut b) = (Backoff::new(10_000, 1), Backoff::new(10_000, 2));
        let same = (0..8)
            .filter(|_| a.next_delay_us() == b.next_delay_us())
            .count();
        assert!(same < 2);
    }
}
