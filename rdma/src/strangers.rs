//! Peers that are not known yet: how many of them wait at once, and which one makes room when there
//! are too many.
//!
//! Every machine that reaches the port can begin to connect, any number of times. So a peer that is
//! not known gets little memory, and their number is limited. There is always room for one more:
//! the oldest connection of the source that has most is removed. A source that opens many
//! connections thus loses its own, and a permitted host has connected before it would be removed.
//!
//! An attacker with many addresses can open one connection from each, which is as many as an honest
//! host opens. So recent connections that failed count too: an honest host has none, however slow
//! its network is, while each address of the attacker soon has some.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Where a peer comes from, as far as another origin costs an attacker something: an IPv4 address,
/// or the 64 bits of an IPv6 address that a network assigns (RFC 4291, section 2.5.4); the rest is
/// the peer's own choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// An IPv4 address.
    V4(Ipv4Addr),
    /// The network of an IPv6 address.
    V6(u64),
}

impl Source {
    /// The source that `address` belongs to.
    #[must_use]
    pub fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self::V4(address),
            IpAddr::V6(address) => {
                let network = address.to_bits() >> 64;
                Self::V6(u64::try_from(network).unwrap_or(u64::MAX))
            }
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::V4(address) => address.fmt(f),
            Self::V6(network) => {
                let address = Ipv6Addr::from_bits(u128::from(*network) << 64);
                write!(f, "{address}/64")
            }
        }
    }
}

/// Peers that came to nothing of which it is known where they came from, the latest: 13 of each of
/// 300 addresses. With what is counted of each that is some 200 KiB at most.
const FAILURES_KEPT: usize = 4096;

/// What a source has.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    waiting: usize,
    /// Of [`Strangers::failures`].
    failed: usize,
}

impl Tally {
    fn sum(self) -> usize {
        self.waiting + self.failed
    }
}

/// The peers that wait, each with its name (`T`), in the order in which they came.
#[derive(Debug)]
pub struct Strangers<T> {
    all: Vec<(Source, T)>,
    /// Of those that have something.
    tallies: HashMap<Source, Tally>,
    /// Where those came from that were removed as failures, oldest first.
    failures: VecDeque<Source>,
    max: usize,
    per_source_max: usize,
}

impl<T: Copy + PartialEq> Strangers<T> {
    /// Room for `max` of them, and for `per_source_max` of one source; at least one.
    #[must_use]
    pub fn new(max: usize, per_source_max: usize) -> Self {
        let max = max.max(1);
        Self {
            all: Vec::new(),
            tallies: HashMap::new(),
            failures: VecDeque::new(),
            max,
            per_source_max: per_source_max.clamp(1, max),
        }
    }

    /// The peers of which one is to be removed before another one of `source` can wait, oldest
    /// first: its own when it has as many as it may, or, when there is no room at all, those of the
    /// source that has most, with those that failed. Empty while there is room.
    pub fn displaced_by(&self, source: Source) -> impl Iterator<Item = T> + '_ {
        let full = if self.count_of(source) >= self.per_source_max {
            Some(source)
        } else if self.all.len() >= self.max {
            self.source_with_most()
        } else {
            None
        };
        let all = self.all.iter();
        all.filter(move |(other, _)| Some(*other) == full)
            .map(|(_, name)| *name)
    }

    /// The oldest peer of the source that has most.
    #[must_use]
    pub fn oldest_of_most(&self) -> Option<T> {
        let most = self.source_with_most()?;
        let mut all = self.all.iter();
        all.find(|(source, _)| *source == most)
            .map(|(_, name)| *name)
    }

    /// The source that has most peers, with those that failed; of several with as many, the one
    /// that came first.
    fn source_with_most(&self) -> Option<Source> {
        let waiting = self.tallies.values().filter(|tally| tally.waiting > 0);
        let most = waiting.map(|tally| tally.sum()).max()?;
        let mut all = self.all.iter().map(|(source, _)| *source);
        all.find(|source| self.tally(*source).sum() == most)
    }

    fn tally(&self, source: Source) -> Tally {
        self.tallies.get(&source).copied().unwrap_or_default()
    }

    fn change(&mut self, source: Source, change: impl FnOnce(&mut Tally)) {
        let tally = self.tallies.entry(source).or_default();
        change(tally);
        if tally.sum() == 0 {
            self.tallies.remove(&source);
        }
    }

    /// How many peers of `source` wait.
    #[must_use]
    pub fn count_of(&self, source: Source) -> usize {
        self.tally(source).waiting
    }

    /// Adds a peer.
    pub fn add(&mut self, source: Source, name: T) {
        self.all.push((source, name));
        self.change(source, |tally| tally.waiting += 1);
    }

    /// Removes a peer that has gone on; returns whether it was there.
    pub fn remove(&mut self, name: T) -> bool {
        self.take(name).is_some()
    }

    /// Removes a peer that came to nothing, which then counts against its source for a while;
    /// returns whether it was there.
    pub fn fail(&mut self, name: T) -> bool {
        let Some(source) = self.take(name) else {
            return false;
        };
        self.failures.push_back(source);
        self.change(source, |tally| tally.failed += 1);
        if self.failures.len() > FAILURES_KEPT
            && let Some(oldest) = self.failures.pop_front()
        {
            self.change(oldest, |tally| tally.failed -= 1);
        }
        true
    }

    fn take(&mut self, name: T) -> Option<Source> {
        let at = self.all.iter().position(|(_, other)| *other == name)?;
        let (source, _) = self.all.remove(at);
        self.change(source, |tally| tally.waiting -= 1);
        Some(source)
    }

    /// How many peers wait.
    #[must_use]
    pub fn count(&self) -> usize {
        self.all.len()
    }

    /// The peers that wait, oldest first.
    pub fn names(&self) -> impl Iterator<Item = T> + '_ {
        self.all.iter().map(|(_, name)| *name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(last: u8) -> Source {
        Source::of(IpAddr::from([192, 0, 2, last]))
    }

    fn filled(with: &[(u8, u32)]) -> Strangers<u32> {
        let mut strangers = Strangers::new(6, 4);
        for &(last, name) in with {
            strangers.add(source(last), name);
        }
        strangers
    }

    fn goes(strangers: &Strangers<u32>, last: u8) -> Vec<u32> {
        strangers.displaced_by(source(last)).collect()
    }

    #[test]
    fn addresses_that_one_network_may_choose_are_one_source() {
        let of = |text: &str| Source::of(text.parse().unwrap());
        assert_eq!(of("2001:db8:1:2::3"), of("2001:db8:1:2:ffff::9"));
        assert_ne!(of("2001:db8:1:2::3"), of("2001:db8:1:3::3"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
        assert_eq!(of("2001:db8:1:2::3").to_string(), "2001:db8:1:2::/64");
        assert_eq!(of("192.0.2.1").to_string(), "192.0.2.1");
    }

    #[test]
    fn whoever_has_most_makes_room_and_with_the_oldest() {
        let mut strangers = filled(&[(1, 10), (2, 20), (2, 21), (1, 11), (2, 22)]);
        assert_eq!(goes(&strangers, 3), [], "there is room");
        strangers.add(source(3), 30);
        assert_eq!(goes(&strangers, 3), [20, 21, 22]);
        assert!(strangers.remove(20) && !strangers.remove(20));
        assert_eq!((strangers.count(), strangers.count_of(source(2))), (5, 2));
        strangers.add(source(3), 31);
        // Two each: the source that came first.
        assert_eq!(goes(&strangers, 4), [10, 11]);
    }

    /// As over a network that takes 80 ms for a round trip, while 300 addresses open 2,750 a
    /// second: more come in that time than there are places.
    #[test]
    fn one_that_is_slow_is_not_in_the_way_of_many_addresses_that_come_to_nothing() {
        let place = |number: u32| Source::V4(Ipv4Addr::from_bits(0x0a00_0000 + number));
        let mut strangers = Strangers::new(128, 64);
        let arrive = |strangers: &mut Strangers<u32>, name: u32, source: Source| {
            let goes = strangers.displaced_by(source).next();
            if let Some(goes) = goes {
                assert!(strangers.fail(goes));
            }
            strangers.add(source, name);
            goes
        };
        for name in 0..1000 {
            arrive(&mut strangers, name, place(name % 300));
        }
        for host in 0..20 {
            let (host, first) = (1_000_000 + host, 10_000 * (host + 1));
            arrive(&mut strangers, host, source(1));
            for name in first..first + 220 {
                let goes = arrive(&mut strangers, name, place(name % 300));
                assert_ne!(goes, Some(host), "after {} others", name - first);
            }
            assert!(strangers.remove(host), "it is through");
        }
        // What is known of sources is bounded.
        for name in 0..2 * u32::try_from(FAILURES_KEPT).unwrap() {
            arrive(&mut strangers, name + 2_000_000, place(name + 1000));
        }
        assert_eq!(strangers.failures.len(), FAILURES_KEPT);
        assert!(strangers.tallies.len() <= FAILURES_KEPT + 128);
    }

    #[test]
    fn a_source_that_has_all_it_may_makes_room_for_itself() {
        let strangers = filled(&[(1, 10), (1, 11), (1, 12), (1, 13)]);
        assert_eq!(goes(&strangers, 1), [10, 11, 12, 13]);
        assert_eq!(goes(&strangers, 2), []);
    }

    #[test]
    fn there_is_always_room_for_one() {
        let mut strangers = Strangers::new(0, 0);
        assert_eq!(goes(&strangers, 1), []);
        strangers.add(source(1), 1);
        assert_eq!(goes(&strangers, 2), [1]);
        assert_eq!(strangers.names().collect::<Vec<_>>(), [1]);
    }
}
