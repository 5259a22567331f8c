//! What the log is told of attempts to connect again that fail.

use std::net::SocketAddr;

use crate::limits::{
    ATTEMPT_CAUSES_MAX, ATTEMPT_LINES_MAX, ATTEMPTS_QUIET_MAX_US, ATTEMPTS_QUIET_US,
};

/// Says which failed attempts are lines of the log: each cause once of each address, and then once
/// more each time that it has been quiet for long, which is longer and longer.
#[derive(Debug, Default)]
pub(crate) struct Attempts {
    /// Those of the lines since `begun_us`.
    causes: Vec<(SocketAddr, String)>,
    begun_us: u64,
    quiet_us: u64,
}

impl Attempts {
    /// Whether an attempt at `address` that has failed for this `cause` is to be told.
    pub(crate) fn is_news(&mut self, address: SocketAddr, cause: &str, now_us: u64) -> bool {
        if self.quiet_us == 0 || now_us.saturating_sub(self.begun_us) >= self.quiet_us {
            self.causes.clear();
            self.begun_us = now_us;
            self.quiet_us = (self.quiet_us * 2).clamp(ATTEMPTS_QUIET_US, ATTEMPTS_QUIET_MAX_US);
        }
        let of_address = self.causes.iter().filter(|(at, _)| *at == address);
        let is_known = of_address.clone().any(|(_, known)| known == cause);
        let is_full = of_address.count() >= ATTEMPT_CAUSES_MAX;
        if is_known || is_full || self.causes.len() >= ATTEMPT_LINES_MAX {
            return false;
        }
        self.causes.push((address, cause.to_owned()));
        true
    }

    /// The controller is back.
    pub(crate) fn succeeded(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use super::Attempts;
    use crate::limits::{
        ATTEMPT_CAUSES_MAX, ATTEMPT_LINES_MAX, ATTEMPTS_QUIET_MAX_US, ATTEMPTS_QUIET_US,
    };

    /// An address of its name.
    fn at(port: u16) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, port).into()
    }

    #[test]
    fn each_cause_is_told_once_and_again_after_a_quiet_time_that_grows() {
        let mut attempts = Attempts::default();
        assert!(attempts.is_news(at(1), "refused", 5));
        assert!(!attempts.is_news(at(1), "refused", 6));
        assert!(attempts.is_news(at(1), "the other transport", 7));
        assert!(!attempts.is_news(at(1), "refused", 4 + ATTEMPTS_QUIET_US));
        assert!(attempts.is_news(at(1), "refused", 5 + ATTEMPTS_QUIET_US));
        assert!(!attempts.is_news(at(1), "refused", 5 + 2 * ATTEMPTS_QUIET_US));
        assert!(attempts.is_news(at(1), "refused", 5 + 3 * ATTEMPTS_QUIET_US));
        attempts.succeeded();
        assert!(attempts.is_news(at(1), "refused", 6 + 3 * ATTEMPTS_QUIET_US));
    }

    #[test]
    fn an_outage_of_a_day_with_a_cause_that_always_differs_is_few_lines() {
        let mut attempts = Attempts::default();
        let day_us = 24 * 60 * 60 * 1_000_000;
        let each = (0..day_us).step_by(500_000);
        let told = each.filter(|at_us| attempts.is_news(at(1), &at_us.to_string(), *at_us));
        let hours = usize::try_from(day_us / ATTEMPTS_QUIET_MAX_US).unwrap();
        assert!(told.count() <= (hours + 7) * ATTEMPT_CAUSES_MAX);
    }

    #[test]
    fn the_same_cause_is_told_of_each_address_and_of_few_addresses() {
        let mut attempts = Attempts::default();
        for round in 0..3 {
            for port in [1, 2] {
                assert_eq!(attempts.is_news(at(port), "refused", 5), round == 0);
            }
        }
        let many = (3..1000).filter(|port| attempts.is_news(at(*port), "refused", 6));
        assert_eq!(many.count(), ATTEMPT_LINES_MAX - 2);
    }
}
