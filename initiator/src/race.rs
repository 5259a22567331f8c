//! Connecting to a name with several addresses: all are tried, those of IPv6 and IPv4 in turn, each
//! a moment after the one before, until one has an association (RFC 8305, "Happy Eyeballs").

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::Arc;

use capstan_rdma::choose;
use capstan_reactor::{Armed, Clock, Flow, SpinBudget, Turn};

use crate::direct;
use crate::driver::AssociationEngine;
use crate::error::{ConnectError, Failures};
use crate::host::AssociationStatus;
use crate::options::{Options, Transport};
use crate::provider;
use crate::transports;

/// How long an address is waited for before the next one is tried beside it, in microseconds: the
/// Connection Attempt Delay of RFC 8305, section 5.
const ATTEMPT_DELAY_US: u64 = 250_000;

/// Starts an association with one of `addresses`, which are those of `options`. With the only one
/// it is being set up, as far as is known; with one of several it is there.
///
/// # Errors
/// Wrong options, or why there is none with any of them.
pub(crate) fn start(
    options: &Options,
    addresses: &[SocketAddr],
) -> Result<AssociationEngine, ConnectError> {
    if options.transport == Transport::Auto {
        return transports::connect(options, addresses);
    }
    if let [only] = addresses {
        return begin(options, *only, false);
    }
    settle(options, addresses, false)
}

/// Starts an association with one of `addresses`; it is there. Whether its transport `is_tried`
/// among others is for the log.
///
/// # Errors
/// Why there is none with any of them.
pub(crate) fn settle(
    options: &Options,
    addresses: &[SocketAddr],
    is_tried: bool,
) -> Result<AssociationEngine, ConnectError> {
    let mut race = Race {
        options,
        is_tried,
        addresses,
        waiting: addresses.iter().copied().collect(),
        attempts: Vec::new(),
        failures: Vec::new(),
        next_us: 0,
        winner: None,
    };
    if let Err(error) = capstan_reactor::run(&mut race, SpinBudget::default()) {
        tracing::error!("{error}");
    }
    let Race {
        winner, failures, ..
    } = race;
    winner.ok_or_else(|| match &failures[..] {
        [(_, only)] => ConnectError::clone(only),
        _ => ConnectError::Addresses {
            name: options.traddr.clone(),
            failures: Failures(failures.into()),
        },
    })
}

fn begin(
    options: &Options,
    address: SocketAddr,
    is_tried: bool,
) -> Result<AssociationEngine, ConnectError> {
    let (way, provider) = provider::open(options, address, is_tried)?;
    let mut engine = direct::engine(options, address, way)?;
    engine.set_provider(provider);
    Ok(engine)
}

struct Race<'a> {
    options: &'a Options,
    is_tried: bool,
    addresses: &'a [SocketAddr],
    waiting: VecDeque<SocketAddr>,
    attempts: Vec<(SocketAddr, AssociationEngine)>,
    failures: Vec<(SocketAddr, Arc<ConnectError>)>,
    /// When the next address has its turn.
    next_us: u64,
    winner: Option<AssociationEngine>,
}

impl Race<'_> {
    /// An address that has answered is given the time that its association takes.
    fn next_address_us(&self) -> Option<u64> {
        let is_answered = self
            .attempts
            .iter()
            .any(|(_, engine)| engine.is_connected());
        (!self.waiting.is_empty() && !is_answered).then_some(self.next_us)
    }

    fn begin_next(&mut self, now_us: u64) {
        let Some(address) = self.waiting.pop_front() else {
            return;
        };
        self.next_us = now_us + ATTEMPT_DELAY_US;
        match begin(self.options, address, self.is_tried) {
            Ok(engine) => self.attempts.push((address, engine)),
            Err(error) => self.fail(address, Arc::new(error)),
        }
    }

    /// The addresses besides `address` that the same wire reaches.
    fn others(&self, address: SocketAddr) -> impl Iterator<Item = SocketAddr> {
        let kind = |at: SocketAddr| {
            let chosen = choose(self.options.provider, at.ip());
            let is_rdma = self.options.transport == Transport::Rdma;
            chosen.ok().filter(|_| is_rdma).map(|(kind, _)| kind)
        };
        let own = kind(address);
        let others = self.addresses.iter().copied();
        others.filter(move |&other| other != address && kind(other) == own)
    }

    /// The next one need not wait.
    fn fail(&mut self, address: SocketAddr, error: Arc<ConnectError>) {
        if !self.waiting.is_empty() {
            tracing::info!(%address, "{error}; trying the next address of {}", self.options.traddr);
        }
        self.next_us = 0;
        self.failures.push((address, error));
    }
}

impl Turn for Race<'_> {
    fn turn(&mut self, now_us: u64) -> Flow {
        while self.next_address_us().is_some_and(|at_us| at_us <= now_us) {
            self.begin_next(now_us);
        }
        let mut busy = false;
        for (address, mut engine) in std::mem::take(&mut self.attempts) {
            busy |= engine.turn(now_us);
            match engine.status(now_us) {
                AssociationStatus::Live if self.winner.is_none() => {
                    engine.set_other_addresses(self.others(address));
                    self.winner = Some(engine);
                }
                AssociationStatus::Failed(error) => self.fail(address, error),
                AssociationStatus::Closed => self.fail(address, Arc::new(ConnectError::Closed)),
                _ => self.attempts.push((address, engine)),
            }
        }
        if self.winner.is_some() || self.attempts.is_empty() && self.waiting.is_empty() {
            Flow::Stop
        } else if busy {
            Flow::Busy(1)
        } else {
            Flow::Idle
        }
    }

    fn arm(&mut self, fds: &mut Vec<RawFd>) -> Armed {
        let mut quiet = true;
        for (_, engine) in &mut self.attempts {
            quiet &= engine.arm(fds) == Armed::Quiet;
        }
        let is_due = self
            .next_address_us()
            .is_some_and(|at_us| at_us <= Clock.now_us());
        Armed::from_ready(!quiet || is_due)
    }

    fn next_deadline_us(&self) -> Option<u64> {
        let engines = self.attempts.iter();
        engines
            .filter_map(|(_, engine)| engine.next_deadline_us())
            .chain(self.next_address_us())
            .min()
    }
}

/// The addresses of a name in the order of RFC 8305, section 4: as the system has them (RFC 6724),
/// but the two families in turn.
pub(crate) fn in_turn(addresses: impl IntoIterator<Item = SocketAddr>) -> Vec<SocketAddr> {
    let mut all: Vec<SocketAddr> = Vec::new();
    for address in addresses {
        if !all.contains(&address) {
            all.push(address);
        }
    }
    let Some(first) = all.first().map(SocketAddr::is_ipv4) else {
        return all;
    };
    let (preferred, other): (Vec<_>, Vec<_>) = all
        .into_iter()
        .partition(|address| address.is_ipv4() == first);
    let (mut preferred, mut other) = (preferred.into_iter(), other.into_iter());
    let mut ordered = Vec::new();
    loop {
        let pair = [preferred.next(), other.next()];
        if pair == [None, None] {
            return ordered;
        }
        ordered.extend(pair.into_iter().flatten());
    }
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpListener};
    use std::time::{Duration, Instant};

    use capstan_nvme_proto::nqn::{HostId, Nqn};
    use capstan_rdma::ProviderPreference;

    use super::{in_turn, start};
    use crate::error::ConnectError;
    use crate::options::Options;

    fn addresses(list: &[&str]) -> Vec<SocketAddr> {
        list.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn the_families_take_turns_in_the_order_of_the_system() {
        let sorted = |list| in_turn(addresses(list));
        assert_eq!(
            sorted(&["[::1]:1", "[::2]:1", "[::3]:1", "1.0.0.1:1", "1.0.0.2:1"]),
            addresses(&["[::1]:1", "1.0.0.1:1", "[::2]:1", "1.0.0.2:1", "[::3]:1"])
        );
        assert_eq!(
            sorted(&["1.0.0.1:1", "1.0.0.1:1", "[::1]:1"]),
            addresses(&["1.0.0.1:1", "[::1]:1"])
        );
        assert_eq!(sorted(&[]), []);
    }

    fn options() -> Options {
        let nqn = |name| Nqn::new(name).unwrap();
        let mut options = Options::discovery("two.test", nqn("nqn.h"), HostId([1; 16]));
        options.provider = ProviderPreference::Iwarp;
        options.connect_timeout = Duration::from_millis(600);
        options
    }

    #[test]
    fn every_address_that_fails_is_named_with_its_reason() {
        // One refuses, one takes the connection and says nothing.
        let mute = TcpListener::bind("127.0.0.1:0").unwrap();
        let mute_at = mute.local_addr().unwrap();
        let closed = TcpListener::bind("127.0.0.1:0").unwrap();
        let closed_at = closed.local_addr().unwrap();
        drop(closed);
        let begun = Instant::now();
        let error = start(&options(), &[mute_at, closed_at]).err().unwrap();
        assert!(begun.elapsed() < Duration::from_secs(5));
        let ConnectError::Addresses { failures, .. } = &error else {
            panic!("{error:?}");
        };
        let at: Vec<_> = failures.0.iter().map(|(address, _)| *address).collect();
        // The second was tried while the first was still waited for.
        assert_eq!(at, [closed_at, mute_at]);
        let told = error.to_string();
        assert!(
            told.starts_with("two.test has 2 addresses, and none leads to a controller: "),
            "{told}"
        );
        for address in at {
            assert_eq!(
                told.matches(&format!("{address}: queue 0")).count(),
                1,
                "{told}"
            );
        }
    }
}
