//! The Keep Alive timer, with traffic based Keep Alive. NVMe Base 2.1, section 3.9.

use crate::bounds::KAS;

/// Milliseconds of the granularity, KAS: 1 s.
const GRANULARITY_MS: u32 = KAS as u32 * 100;

/// The timer of one controller.
#[derive(Debug)]
pub(crate) struct KeepAlive {
    kato_ms: u32,
    /// End of the interval; `None` while Keep Alive is disabled.
    deadline_us: Option<u64>,
}

/// What the end of an interval means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Expiry {
    /// The interval has not ended, or had traffic and starts anew.
    Alive,
    /// Nothing came for a whole interval.
    Expired { kato_ms: u32 },
}

impl KeepAlive {
    /// A timer for the KATO a host asks for, rounded up to the granularity; 0 disables it.
    pub(crate) fn new(kato_ms: u32, now_us: u64) -> Self {
        let kato_ms = kato_ms
            .checked_next_multiple_of(GRANULARITY_MS)
            .unwrap_or(u32::MAX);
        let mut timer = Self {
            kato_ms,
            deadline_us: None,
        };
        timer.restart(now_us);
        timer
    }

    /// KATO in force.
    pub(crate) fn kato_ms(&self) -> u32 {
        self.kato_ms
    }

    pub(crate) fn deadline_us(&self) -> Option<u64> {
        self.deadline_us
    }

    /// Starts an interval: a Keep Alive command arrived.
    pub(crate) fn restart(&mut self, now_us: u64) {
        self.deadline_us = (self.kato_ms > 0)
            .then(|| now_us.saturating_add(u64::from(self.kato_ms).saturating_mul(1000)));
    }

    /// Stops for good: the controller failed.
    pub(crate) fn stop(&mut self) {
        self.deadline_us = None;
    }

    /// Looks at the clock. `had_traffic` is asked at the end of an interval only, and says
    /// whether a command arrived in it: with traffic based Keep Alive (CTRATT.TBKAS) that is as
    /// good as a Keep Alive, so a silent host is noticed after one to two times KATO.
    pub(crate) fn check(&mut self, now_us: u64, had_traffic: impl FnOnce() -> bool) -> Expiry {
        match self.deadline_us {
            Some(deadline_us) if now_us >= deadline_us => {
                if had_traffic() {
                    self.restart(now_us);
                    Expiry::Alive
                } else {
                    self.stop();
                    Expiry::Expired {
                        kato_ms: self.kato_ms,
                    }
                }
            }
            Some(_) | None => Expiry::Alive,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_up_to_the_granularity() {
        for (asked, kept) in [(0, 0), (1, 1000), (5000, 5000), (5001, 6000)] {
            assert_eq!(KeepAlive::new(asked, 0).kato_ms(), kept);
        }
        assert!(KeepAlive::new(u32::MAX, 0).kato_ms() >= u32::MAX - 1000);
    }

    #[test]
    fn zero_never_expires() {
        let mut timer = KeepAlive::new(0, 0);
        assert_eq!(timer.deadline_us(), None);
        assert_eq!(timer.check(u64::MAX, || false), Expiry::Alive);
    }

    #[test]
    fn silence_for_an_interval_expires_and_traffic_extends() {
        let mut timer = KeepAlive::new(5000, 100);
        assert_eq!(timer.deadline_us(), Some(5_000_100));
        assert_eq!(
            timer.check(5_000_099, || panic!("too early to ask")),
            Expiry::Alive
        );
        assert_eq!(timer.check(5_000_100, || true), Expiry::Alive);
        assert_eq!(timer.deadline_us(), Some(10_000_100));
        timer.restart(9_000_000);
        assert_eq!(timer.check(10_000_100, || false), Expiry::Alive);
        assert_eq!(
            timer.check(14_000_000, || false),
            Expiry::Expired { kato_ms: 5000 }
        );
        assert_eq!(timer.check(u64::MAX, || false), Expiry::Alive);
    }
}
