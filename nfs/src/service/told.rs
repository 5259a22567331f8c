//! Clients of which the log was told something, so that it is not told again with each attempt.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long an address is not told of again.
const EVERY: Duration = Duration::from_secs(60);
/// Addresses that are known to have been told of. Beyond them the oldest is forgotten, and told of
/// again.
const ADDRESSES_MAX: usize = 256;

/// Addresses that were told of, and when, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Told(Mutex<VecDeque<(IpAddr, Instant)>>);

impl Told {
    /// Whether the log is to be told of the address now; then it has been.
    pub(super) fn is_due(&self, address: IpAddr, now: Instant) -> bool {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some((_, at)) = told.front()
            && now.saturating_duration_since(*at) >= EVERY
        {
            told.pop_front();
        }
        if told.iter().any(|(other, _)| *other == address) {
            return false;
        }
        if told.len() >= ADDRESSES_MAX {
            told.pop_front();
        }
        told.push_back((address, now));
        true
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn an_address_is_told_of_once_a_minute_and_no_number_of_them_grows() {
        let told = Told::default();
        let start = Instant::now();
        let one = IpAddr::V4(Ipv4Addr::LOCALHOST);
        assert!(told.is_due(one, start));
        assert!(!told.is_due(one, start + EVERY / 2));
        assert!(told.is_due(one, start + EVERY));
        for last in 0..2000_u32 {
            assert!(told.is_due(IpAddr::V4(last.into()), start + EVERY));
        }
        assert_eq!(told.0.lock().unwrap().len(), ADDRESSES_MAX);
    }
}
