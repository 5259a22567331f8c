//! How many credits a client has use for: receives that are granted and not used are memory that
//! others cannot have.

use crate::limits::CREDITS_AT_FIRST;

/// Replies during which a client may use less than before until that shows in what it gets.
const QUIET_REPLIES: u32 = 64;

/// What a client has used lately.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Demand {
    /// Most calls that were outstanding.
    peak: u32,
    /// Replies since then.
    replies: u32,
}

impl Demand {
    /// A call is answered while so many are outstanding, it included. The credits that the client
    /// has use for: twice as many as it used at once.
    pub(super) fn of_reply(&mut self, outstanding: u32) -> u32 {
        if outstanding >= self.peak {
            self.peak = outstanding;
            self.replies = 0;
        } else if self.replies < QUIET_REPLIES {
            self.replies = self.replies.saturating_add(1);
        } else {
            self.peak = self.peak.saturating_sub(1);
        }
        self.peak.saturating_mul(2).max(CREDITS_AT_FIRST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credits_grow_with_their_use_and_shrink_without() {
        let mut demand = Demand::default();
        assert_eq!(demand.of_reply(1), CREDITS_AT_FIRST);
        assert_eq!(demand.of_reply(8), 16);
        assert_eq!(demand.of_reply(64), 128);
        for _ in 0..QUIET_REPLIES {
            assert_eq!(demand.of_reply(1), 128);
        }
        for wanted in (4..64).rev() {
            assert_eq!(demand.of_reply(1), 2 * wanted);
        }
        assert_eq!((demand.of_reply(1), demand.of_reply(1)), (8, 8));
    }
}
