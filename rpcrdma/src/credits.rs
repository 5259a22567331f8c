//! How many calls a client may have outstanding (RFC 8166, section 3.3.1).
//!
//! A server has so many receives, which its connections share. Of each connection
//! *receives that are posted + calls that are being carried out = credits that were granted last*:
//! * To grant more, further receives are posted first.
//! * To grant less, the receive of a call that is answered is not posted again. A client that does
//!   not know yet finds all receives it counts on: the grants go down by one with each reply.
//!
//! Nothing here posts anything: it says how many receives to post before a reply is sent, and what
//! the reply grants.

use crate::limits::CREDITS_INITIAL;

/// A client that has more calls outstanding than it was granted. Nothing is left to receive them
/// with, and its connection ends.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
#[error(
    "a client has more than {granted} calls outstanding, expected at most so many: \
     end the connection"
)]
pub struct CreditError {
    /// Credits that were granted.
    pub granted: u32,
}

/// The receives of a server.
#[derive(Clone, Debug)]
pub struct CreditPool {
    receives: u32,
    connections_max: u32,
    per_connection_max: u32,
    connections: u32,
    /// Receives that all connections have.
    held: u32,
}

/// The credits of one connection.
#[derive(Debug)]
#[must_use = "they go back to the pool with `CreditPool::close`"]
pub struct Credits {
    granted: u32,
    outstanding: u32,
}

/// What goes with a reply.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[must_use = "the receives are to be posted before the reply is sent"]
pub struct Grant {
    /// Receives to post before the reply is sent.
    pub post_receives: u32,
    /// `rdma_credit` of the reply: at least 1.
    pub credits: u32,
}

impl CreditPool {
    /// So many receives for at most `connections_max` connections, none of which has more than
    /// `per_connection_max`. `None` where there is not one for each, or one of them is 0.
    #[must_use]
    pub const fn new(receives: u32, connections_max: u32, per_connection_max: u32) -> Option<Self> {
        if connections_max == 0
            || receives < connections_max.saturating_mul(CREDITS_INITIAL)
            || per_connection_max < CREDITS_INITIAL
        {
            return None;
        }
        Some(Self {
            receives,
            connections_max,
            per_connection_max,
            connections: 0,
            held: 0,
        })
    }

    /// A connection begins: [`CREDITS_INITIAL`] receives are to be posted before it is accepted.
    /// `None` when there are as many as there may be.
    #[must_use]
    pub fn open(&mut self) -> Option<Credits> {
        if self.connections == self.connections_max {
            return None;
        }
        self.connections = self.connections.saturating_add(1);
        self.held = self.held.saturating_add(CREDITS_INITIAL);
        Some(Credits {
            granted: CREDITS_INITIAL,
            outstanding: 0,
        })
    }

    /// A connection has ended.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "credits that were given back are not used again"
    )]
    pub fn close(&mut self, credits: Credits) {
        self.connections = self.connections.saturating_sub(1);
        self.held = self.held.saturating_sub(credits.granted);
    }

    /// Receives that all connections have.
    #[must_use]
    pub const fn held(&self) -> u32 {
        self.held
    }

    /// What each connection may have, if it asks for as much: an equal share.
    #[must_use]
    pub fn share(&self) -> u32 {
        self.receives
            .checked_div(self.connections)
            .unwrap_or(self.receives)
            .min(self.per_connection_max)
            .max(CREDITS_INITIAL)
    }

    /// Receives that no connection has and that no connection to come begins with.
    #[must_use]
    pub fn free(&self) -> u32 {
        let to_come = self.connections_max.saturating_sub(self.connections);
        self.receives
            .saturating_sub(self.held)
            .saturating_sub(to_come.saturating_mul(CREDITS_INITIAL))
    }
}

impl Credits {
    /// Credits that were granted last.
    #[must_use]
    pub const fn granted(&self) -> u32 {
        self.granted
    }

    /// Calls that are being carried out.
    #[must_use]
    pub const fn outstanding(&self) -> u32 {
        self.outstanding
    }

    /// A message was received: it has taken a receive.
    ///
    /// # Errors
    /// [`CreditError`] where receives are shared and a client has sent more than it may.
    pub const fn receive(&mut self) -> Result<(), CreditError> {
        if self.outstanding >= self.granted {
            return Err(CreditError {
                granted: self.granted,
            });
        }
        self.outstanding = self.outstanding.saturating_add(1);
        Ok(())
    }

    /// A call is answered, be it with an RDMA_ERROR, that asked for `requested` credits.
    pub fn reply(&mut self, pool: &mut CreditPool, requested: u32) -> Grant {
        self.outstanding = self.outstanding.saturating_sub(1);
        let target = pool.share().min(requested).max(CREDITS_INITIAL);
        if self.granted > target {
            self.granted = self.granted.saturating_sub(1);
            pool.held = pool.held.saturating_sub(1);
            return Grant {
                post_receives: 0,
                credits: self.granted,
            };
        }
        let more = target.saturating_sub(self.granted).min(pool.free());
        self.granted = self.granted.saturating_add(more);
        pool.held = pool.held.saturating_add(more);
        Grant {
            post_receives: more.saturating_add(1),
            credits: self.granted,
        }
    }

    /// A message was discarded: nothing tells the client, and so many receives are to be posted.
    #[must_use = "the receive is to be posted again"]
    pub const fn discard(&mut self) -> u32 {
        self.outstanding = self.outstanding.saturating_sub(1);
        1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_begins_with_one_and_gets_its_share_with_the_first_reply() {
        let mut pool = CreditPool::new(256, 4, 64).unwrap();
        let mut credits = pool.open().unwrap();
        assert_eq!(credits.receive(), Ok(()));
        assert_eq!(credits.receive(), Err(CreditError { granted: 1 }));
        assert_eq!(
            credits.reply(&mut pool, 128),
            Grant {
                post_receives: 64,
                credits: 64
            }
        );
        assert_eq!((credits.granted(), pool.held()), (64, 64));
        pool.close(credits);
        assert_eq!(pool.held(), 0);
    }

    #[test]
    fn a_client_gets_no_more_than_it_asks_for_and_never_none() {
        let mut pool = CreditPool::new(256, 4, 64).unwrap();
        let mut credits = pool.open().unwrap();
        for (requested, granted) in [(3, 3), (3, 3), (0, 2), (0, 1), (0, 1)] {
            credits.receive().unwrap();
            assert_eq!(credits.reply(&mut pool, requested).credits, granted);
        }
        pool.close(credits);
    }

    #[test]
    fn grants_shrink_by_one_a_reply_when_others_come() {
        let mut pool = CreditPool::new(10, 3, 64).unwrap();
        let mut first = pool.open().unwrap();
        first.receive().unwrap();
        // One each is kept for the two that may come.
        assert_eq!(
            first.reply(&mut pool, 64),
            Grant {
                post_receives: 8,
                credits: 8
            }
        );
        let mut second = pool.open().unwrap();
        second.receive().unwrap();
        // Its share is 5, of which there is none yet.
        assert_eq!(
            second.reply(&mut pool, 64),
            Grant {
                post_receives: 1,
                credits: 1
            }
        );
        for granted in [7, 6, 5] {
            first.receive().unwrap();
            assert_eq!(
                first.reply(&mut pool, 64),
                Grant {
                    post_receives: 0,
                    credits: granted
                }
            );
        }
        first.receive().unwrap();
        assert_eq!(
            first.reply(&mut pool, 64),
            Grant {
                post_receives: 1,
                credits: 5
            }
        );
        second.receive().unwrap();
        assert_eq!(second.reply(&mut pool, 64).credits, 4);
        let third = pool.open().unwrap();
        assert_eq!((pool.held(), pool.share()), (10, 3));
        assert!(pool.open().is_none());
        for credits in [first, second, third] {
            pool.close(credits);
        }
        assert_eq!(pool.held(), 0);
    }

    #[test]
    fn what_is_discarded_changes_no_grant() {
        let mut pool = CreditPool::new(8, 1, 8).unwrap();
        let mut credits = pool.open().unwrap();
        credits.receive().unwrap();
        assert_eq!((credits.discard(), credits.granted()), (1, 1));
        assert_eq!(credits.receive(), Ok(()));
        pool.close(credits);
    }

    #[test]
    fn a_pool_has_one_for_each_connection() {
        assert!(CreditPool::new(4, 5, 8).is_none());
        assert!(CreditPool::new(4, 0, 8).is_none());
        assert!(CreditPool::new(4, 4, 0).is_none());
        assert!(CreditPool::new(4, 4, 1).is_some());
    }
}
