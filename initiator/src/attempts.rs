//! What the log is told of attempts to connect again that fail.

use crate::limits::{ATTEMPT_CAUSES_MAX, ATTEMPTS_QUIET_MAX_US, ATTEMPTS_QUIET_US};

/// Says which failed attempts are lines of the log: each cause once, and then once more each time
/// that it has been quiet for long, which is longer and longer.
#[derive(Debug, Default)]
pub(crate) struct Attempts {
    /// Those of the lines since `begun_us`.
    causes: Vec<String>,
    begun_us: u64,
    quiet_us: u64,
}

impl Attempts {
    /// Whether an attempt that has failed for this `cause` is to be told.
    pub(crate) fn is_news(&mut self, cause: &str, now_us: u64) -> bool {
        if self.quiet_us == 0 || now_us.saturating_sub(self.begun_us) >= self.quiet_us {
            self.causes.clear();
            self.begun_us = now_us;
            self.quiet_us = (self.quiet_us * 2).clamp(ATTEMPTS_QUIET_US, ATTEMPTS_QUIET_MAX_US);
        }
        let is_known = self.causes.iter().any(|known| known == cause);
        if is_known || self.causes.len() >= ATTEMPT_CAUSES_MAX {
            return false;
        }
        self.causes.push(cause.to_owned());
        true
    }

    /// The controller is back.
    pub(crate) fn succeeded(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::Attempts;
    use crate::limits::{ATTEMPT_CAUSES_MAX, ATTEMPTS_QUIET_MAX_US, ATTEMPTS_QUIET_US};

    #[test]
    fn each_cause_is_told_once_and_again_after_a_quiet_time_that_grows() {
        let mut attempts = Attempts::default();
        assert!(attempts.is_news("refused", 5));
        assert!(!attempts.is_news("refused", 6));
        assert!(attempts.is_news("the other transport", 7));
        assert!(!attempts.is_news("refused", 4 + ATTEMPTS_QUIET_US));
        assert!(attempts.is_news("refused", 5 + ATTEMPTS_QUIET_US));
        assert!(!attempts.is_news("refused", 5 + 2 * ATTEMPTS_QUIET_US));
        assert!(attempts.is_news("refused", 5 + 3 * ATTEMPTS_QUIET_US));
        attempts.succeeded();
        assert!(attempts.is_news("refused", 6 + 3 * ATTEMPTS_QUIET_US));
    }

    #[test]
    fn an_outage_of_a_day_with_a_cause_that_always_differs_is_few_lines() {
        let mut attempts = Attempts::default();
        let day_us = 24 * 60 * 60 * 1_000_000;
        let each = (0..day_us).step_by(500_000);
        let told = each.filter(|at_us| attempts.is_news(&at_us.to_string(), *at_us));
        let hours = usize::try_from(day_us / ATTEMPTS_QUIET_MAX_US).unwrap();
        assert!(told.count() <= (hours + 7) * ATTEMPT_CAUSES_MAX);
    }
}
