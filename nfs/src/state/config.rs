//! How a server is set.

use thiserror::Error;

use super::limits::{
    CLIENTS_MAX, COURTESY_US_MAX, LEASE_US_MAX, LEASE_US_MIN, LOCK_STATES_MAX, OPENS_MAX,
    REPLY_CACHE_BYTES_MAX, STATE_BYTES_MAX,
};

/// What is in stock of all that clients share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stocks {
    pub(crate) clients: u64,
    pub(crate) bytes: u64,
    pub(crate) replies: u64,
    pub(crate) opens: u64,
    pub(crate) lock_states: u64,
}

/// The settings of a server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    lease_us: u64,
    grace_us: u64,
    courtesy_us: u64,
    stocks: Stocks,
}

/// A setting that cannot be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum ConfigError {
    /// The lease.
    #[error(
        "a lease of {0} µs: expected {LEASE_US_MIN} to {LEASE_US_MAX}; 90 s are what Linux servers \
         have"
    )]
    Lease(u64),
    /// The grace period.
    #[error(
        "a grace period of {grace_us} µs: expected {lease_us} (the lease, in which a client finds \
         out that the server has restarted) to {LEASE_US_MAX}; set it to the lease or longer"
    )]
    Grace {
        /// As it was to be.
        grace_us: u64,
        /// The lease.
        lease_us: u64,
    },
}

impl Config {
    /// A lease of 90 s, and a grace period of as long, as Linux has them.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            lease_us: 90_000_000,
            grace_us: 90_000_000,
            courtesy_us: COURTESY_US_MAX,
            stocks: Stocks {
                clients: CLIENTS_MAX,
                bytes: STATE_BYTES_MAX,
                replies: REPLY_CACHE_BYTES_MAX,
                opens: OPENS_MAX,
                lock_states: LOCK_STATES_MAX,
            },
        }
    }

    /// With another lease and grace period, in microseconds.
    ///
    /// # Errors
    /// The lease is not one of [`LEASE_US_MIN`] to [`LEASE_US_MAX`], or the grace period is shorter
    /// than it (RFC 8881, section 8.4.2.1) or too long.
    pub const fn with_times(self, lease_us: u64, grace_us: u64) -> Result<Self, ConfigError> {
        if lease_us < LEASE_US_MIN || lease_us > LEASE_US_MAX {
            return Err(ConfigError::Lease(lease_us));
        }
        if grace_us < lease_us || grace_us > LEASE_US_MAX {
            return Err(ConfigError::Grace { grace_us, lease_us });
        }
        Ok(Self {
            lease_us,
            grace_us,
            ..self
        })
    }

    /// With another time for which state is kept after its lease, in microseconds; at most
    /// [`COURTESY_US_MAX`], at least the lease.
    #[must_use]
    pub fn with_courtesy_us(self, courtesy_us: u64) -> Self {
        let courtesy_us = courtesy_us.min(COURTESY_US_MAX).max(self.lease_us);
        Self {
            courtesy_us,
            ..self
        }
    }

    /// With fewer open files for opens, of which each has one to three: no more than the process
    /// may have.
    #[must_use]
    pub fn with_opens_max(self, opens: u64) -> Self {
        let opens = opens.min(OPENS_MAX);
        Self {
            stocks: Stocks {
                opens,
                ..self.stocks
            },
            ..self
        }
    }

    /// With fewer lock owners on files, each of which has an open file as well.
    #[must_use]
    pub fn with_lock_states_max(self, lock_states: u64) -> Self {
        let lock_states = lock_states.min(LOCK_STATES_MAX);
        Self {
            stocks: Stocks {
                lock_states,
                ..self.stocks
            },
            ..self
        }
    }

    /// With less memory for state, in bytes.
    #[must_use]
    pub fn with_bytes_max(self, bytes: u64) -> Self {
        let bytes = bytes.min(STATE_BYTES_MAX);
        Self {
            stocks: Stocks {
                bytes,
                ..self.stocks
            },
            ..self
        }
    }

    /// With less memory for kept replies, in bytes.
    #[must_use]
    pub fn with_reply_bytes_max(self, replies: u64) -> Self {
        let replies = replies.min(REPLY_CACHE_BYTES_MAX);
        Self {
            stocks: Stocks {
                replies,
                ..self.stocks
            },
            ..self
        }
    }

    /// With fewer clients.
    #[must_use]
    pub fn with_clients_max(self, clients: u64) -> Self {
        let clients = clients.min(CLIENTS_MAX);
        Self {
            stocks: Stocks {
                clients,
                ..self.stocks
            },
            ..self
        }
    }

    /// How long a lease is, in microseconds (the attribute lease_time is in seconds).
    #[must_use]
    pub const fn lease_us(&self) -> u64 {
        self.lease_us
    }

    /// How long clients may reclaim after a restart, in microseconds.
    #[must_use]
    pub const fn grace_us(&self) -> u64 {
        self.grace_us
    }

    /// How long after its last renewal a client's state is kept without a conflict, in
    /// microseconds.
    #[must_use]
    pub const fn courtesy_us(&self) -> u64 {
        self.courtesy_us
    }

    pub(crate) const fn stocks(&self) -> Stocks {
        self.stocks
    }
}

impl Default for Config {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_that_clients_cannot_keep_are_refused() {
        let set = |lease, grace| Config::new().with_times(lease, grace);
        assert_eq!(set(999_999, 90_000_000), Err(ConfigError::Lease(999_999)));
        assert!(matches!(
            set(90_000_000, 89_000_000),
            Err(ConfigError::Grace { .. })
        ));
        assert_eq!(set(2_000_000, 5_000_000).unwrap().grace_us(), 5_000_000);
    }
}
