//! When to try again: bounded exponential back-off with jitter.

/// First wait after a loss, in milliseconds.
const FIRST_DELAY_MS: u64 = 100;
/// For so long a lost controller is looked for often: a target that was started anew, and most
/// networks that broke, are back by then.
const YOUNG_US: u64 = 30_000_000;
/// Longest wait meanwhile, in milliseconds: with what an attempt takes, I/O goes on within a
/// second of the target's return. It costs both sides a refused connection each time.
const YOUNG_DELAY_MAX_MS: u64 = 500;

/// Waits between attempts to connect: 100 ms, doubling up to half a second as long as the outage
/// is young and up to `delay_max_ms` from then on, each lengthened by up to a quarter so that the
/// hosts of one target do not all come back in the same instant.
#[derive(Clone, Debug)]
pub(super) struct Backoff {
    delay_max_ms: u64,
    /// The next wait, as far as its bound allows.
    delay_ms: u64,
    attempts: u32,
    /// The first loss since the last [`Backoff::reset`].
    since_us: Option<u64>,
    random: u64,
}

impl Backoff {
    /// `seed` makes the jitter; hosts should differ in it.
    #[must_use]
    pub(super) fn new(delay_max_ms: u64, seed: u64) -> Self {
        Self {
            delay_max_ms: delay_max_ms.max(FIRST_DELAY_MS),
            delay_ms: FIRST_DELAY_MS,
            attempts: 0,
            since_us: None,
            random: seed,
        }
    }

    /// Attempts since the last [`Backoff::reset`].
    #[must_use]
    pub(super) fn attempts(&self) -> u32 {
        self.attempts
    }

    /// The wait before the next attempt, in microseconds. Counts one attempt.
    pub(super) fn next_delay_us(&mut self, now_us: u64) -> u64 {
        let since_us = *self.since_us.get_or_insert(now_us);
        let is_young = now_us.saturating_sub(since_us) < YOUNG_US;
        let young_max_ms = if is_young {
            YOUNG_DELAY_MAX_MS
        } else {
            u64::MAX
        };
        let delay_ms = self.delay_ms.min(self.delay_max_ms).min(young_max_ms);
        self.delay_ms = delay_ms.saturating_mul(2);
        self.attempts = self.attempts.saturating_add(1);
        let delay_us = delay_ms.saturating_mul(1000);
        delay_us.saturating_add(self.random() % (delay_us / 4 + 1))
    }

    /// The connection is back, and has held: start from the shortest wait at the next loss.
    pub(super) fn reset(&mut self) {
        self.delay_ms = FIRST_DELAY_MS;
        self.attempts = 0;
        self.since_us = None;
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

    #[track_caller]
    fn assert_waits(backoff: &mut Backoff, now_us: u64, expected_ms: u64) {
        let delay_us = backoff.next_delay_us(now_us);
        let floor_us = expected_ms * 1000;
        assert!(
            (floor_us..=floor_us + floor_us / 4).contains(&delay_us),
            "{delay_us} us for {expected_ms} ms"
        );
    }

    #[test]
    fn doubles_to_half_a_second_and_after_half_a_minute_to_the_bound() {
        let mut backoff = Backoff::new(10_000, 7);
        let lost_us = 5_000_000;
        for expected_ms in [100, 200, 400, 500, 500] {
            assert_waits(&mut backoff, lost_us, expected_ms);
        }
        assert_waits(&mut backoff, lost_us + 29_999_999, 500);
        for expected_ms in [1000, 2000, 4000, 8000, 10_000, 10_000] {
            assert_waits(&mut backoff, lost_us + 30_000_000, expected_ms);
        }
        assert_eq!(backoff.attempts(), 12);
        backoff.reset();
        for expected_ms in [100, 200, 400, 500, 500] {
            assert_waits(&mut backoff, lost_us + 90_000_000, expected_ms);
        }
    }

    #[test]
    fn a_shorter_bound_holds_from_the_start() {
        let mut backoff = Backoff::new(200, 7);
        for expected_ms in [100, 200, 200, 200] {
            assert_waits(&mut backoff, 0, expected_ms);
        }
        assert_waits(&mut backoff, 60_000_000, 200);
    }

    #[test]
    fn a_thousand_attempts_do_not_overflow() {
        let mut backoff = Backoff::new(u64::MAX / 2_000, 1);
        for second in 0..1000 {
            backoff.next_delay_us(second * 1_000_000);
        }
    }

    #[test]
    fn two_hosts_come_back_at_different_times() {
        let (mut a, mut b) = (Backoff::new(10_000, 1), Backoff::new(10_000, 2));
        let same = (0..8)
            .filter(|_| a.next_delay_us(0) == b.next_delay_us(0))
            .count();
        assert!(same < 2);
    }
}
