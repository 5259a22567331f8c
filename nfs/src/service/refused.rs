//! Refused connections: the last one of each address, with its reason and a count.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Addresses that are kept. Beyond them the one that came longest ago is forgotten.
const ADDRESSES_MAX: usize = 64;

/// An address whose connections are refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedPeer {
    /// Where they come from.
    pub address: IpAddr,
    /// Why the last one was, with the next step.
    pub why: String,
    /// When that was.
    pub last: Instant,
    /// How many there were.
    pub count: u64,
}

/// The last refusal of each address, the oldest first.
#[derive(Debug, Default)]
pub(super) struct RefusedPeers(Mutex<VecDeque<RefusedPeer>>);

impl RefusedPeers {
    fn locked(&self) -> MutexGuard<'_, VecDeque<RefusedPeer>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, address: IpAddr, why: &str, now: Instant) {
        let mut peers = self.locked();
        let known = peers.iter().position(|peer| peer.address == address);
        let before = known.and_then(|at| peers.remove(at));
        if peers.len() >= ADDRESSES_MAX {
            peers.pop_front();
        }
        peers.push_back(RefusedPeer {
            address,
            why: why.to_owned(),
            last: now,
            count: before.map_or(0, |peer| peer.count).saturating_add(1),
        });
    }

    pub(super) fn all(&self) -> Vec<RefusedPeer> {
        self.locked().iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn each_address_is_kept_once_and_no_number_of_them_grows() {
        let (peers, now) = (RefusedPeers::default(), Instant::now());
        let address = |number: u32| IpAddr::V4(Ipv4Addr::from(number));
        for number in [1, 2, 1] {
            peers.add(address(number), "no network", now);
        }
        let all: Vec<_> = peers
            .all()
            .iter()
            .map(|peer| (peer.address, peer.count))
            .collect();
        assert_eq!(all, [(address(2), 1), (address(1), 2)]);
        for number in 0..1000 {
            peers.add(address(number), "no network", now);
        }
        assert_eq!(peers.all().len(), ADDRESSES_MAX);
    }
}
