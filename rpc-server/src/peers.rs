//! Which connections there may be.

use std::collections::HashMap;
use std::net::SocketAddr;

use capstan_rdma::{Source, Strangers};

use crate::limits::{STRANGERS_MAX, STRANGERS_PER_SOURCE_MAX};
use crate::program::{ConnectionNumber, Wire};

/// Names a connection, with what carries it.
pub(crate) type ConnectionName = (Wire, ConnectionNumber);

/// The connections there are, by where they come from.
#[derive(Debug)]
pub(crate) struct Peers {
    /// Of both wires together.
    max: usize,
    tcp: Places,
    rdma: Places,
    /// Connections that have had no call answered yet.
    strangers: Strangers<ConnectionName>,
    last_number: u64,
}

/// The connections over one wire.
#[derive(Debug)]
struct Places {
    max: usize,
    per_source_max: usize,
    /// Of addresses that have a connection.
    of_source: HashMap<Source, usize>,
    count: usize,
}

/// A connection that is not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum TooMany {
    /// There are as many as there may be.
    #[error(
        "there are {count} connections, expected fewer than {count} before another one: raise \
         the number of connections there may be"
    )]
    All {
        /// So many.
        count: usize,
    },
    /// Its address has as many as one may have.
    #[error(
        "its address has {count} connections, expected fewer than {count} before another one: \
         raise the number of connections that one address may have"
    )]
    OfSource {
        /// So many.
        count: usize,
    },
    /// What is left is for other addresses.
    #[error(
        "its address has {count} connections and {free} are left for all others, expected no more \
         than are left: end some of them (`ss -tn` there shows them)"
    )]
    Share {
        /// So many.
        count: usize,
        /// So many are left.
        free: usize,
    },
}

impl Places {
    fn new(max: usize, per_source_max: usize) -> Self {
        Self {
            max,
            per_source_max,
            of_source: HashMap::new(),
            count: 0,
        }
    }

    /// Takes a place, of which `free_of_all` are left over both wires. An address has no more than
    /// are left for others: so no number of addresses takes the last one.
    fn take(&mut self, source: Source, free_of_all: usize) -> Result<(), TooMany> {
        let count = self.of_source.get(&source).copied().unwrap_or(0);
        let free = self.max.saturating_sub(self.count).min(free_of_all);
        if free == 0 {
            return Err(TooMany::All { count: self.count });
        }
        if count >= self.per_source_max {
            return Err(TooMany::OfSource { count });
        }
        if count >= free {
            return Err(TooMany::Share { count, free });
        }
        self.of_source.insert(source, count.saturating_add(1));
        self.count = self.count.saturating_add(1);
        Ok(())
    }

    fn give_back(&mut self, source: Source) {
        self.count = self.count.saturating_sub(1);
        let left = self.of_source.get(&source).copied().unwrap_or(0);
        match left.checked_sub(1) {
            Some(left) if left > 0 => self.of_source.insert(source, left),
            _ => self.of_source.remove(&source),
        };
    }
}

impl Peers {
    /// At most `max` connections, of which `rdma_max` are RPC-over-RDMA, and over each wire
    /// `per_source_max` of one address.
    pub(crate) fn new(max: usize, rdma_max: usize, per_source_max: usize) -> Self {
        Self {
            max,
            tcp: Places::new(max, per_source_max),
            rdma: Places::new(rdma_max.min(max), per_source_max),
            strangers: Strangers::new(
                STRANGERS_MAX.min(max),
                STRANGERS_PER_SOURCE_MAX.min(per_source_max),
            ),
            last_number: 0,
        }
    }

    const fn places(&mut self, wire: Wire) -> &mut Places {
        match wire {
            Wire::Tcp => &mut self.tcp,
            Wire::Rdma => &mut self.rdma,
        }
    }

    pub(crate) const fn count(&self) -> usize {
        self.tcp.count.saturating_add(self.rdma.count)
    }

    /// A connection begins. Returns its number, and the connection that has to end for it, which
    /// has come to nothing so far.
    ///
    /// # Errors
    /// There are too many.
    pub(crate) fn begin(
        &mut self,
        wire: Wire,
        peer: SocketAddr,
    ) -> Result<(ConnectionNumber, Option<ConnectionName>), TooMany> {
        let source = Source::of(peer.ip());
        let free = self.max.saturating_sub(self.count());
        self.places(wire).take(source, free)?;
        self.last_number = self.last_number.saturating_add(1);
        let number = ConnectionNumber(self.last_number);
        let displaced = self.strangers.displaced_by(source).next();
        if let Some(displaced) = displaced {
            self.strangers.fail(displaced);
        }
        self.strangers.add(source, (wire, number));
        Ok((number, displaced))
    }

    /// A call of a connection was answered.
    pub(crate) fn known(&mut self, name: ConnectionName) {
        self.strangers.remove(name);
    }

    /// A connection has ended.
    pub(crate) fn end(&mut self, name: ConnectionName, peer: SocketAddr) {
        self.strangers.fail(name);
        self.places(name.0).give_back(Source::of(peer.ip()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(last: u8) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, last], 700))
    }

    #[test]
    fn connections_are_bounded_in_all_and_by_address() {
        let mut peers = Peers::new(5, 4, 2);
        let (first, _) = peers.begin(Wire::Tcp, peer(1)).unwrap();
        let (second, _) = peers.begin(Wire::Tcp, peer(1)).unwrap();
        assert!(second > first);
        let refused = peers.begin(Wire::Tcp, peer(1));
        assert_eq!(refused, Err(TooMany::OfSource { count: 2 }));
        peers.begin(Wire::Tcp, peer(2)).unwrap();
        peers.begin(Wire::Rdma, peer(3)).unwrap();
        peers.begin(Wire::Rdma, peer(4)).unwrap();
        let refused = peers.begin(Wire::Rdma, peer(5));
        assert_eq!(refused, Err(TooMany::All { count: 2 }));
        peers.end((Wire::Tcp, first), peer(1));
        peers.begin(Wire::Tcp, peer(3)).unwrap();
        assert_eq!(peers.count(), 5);
    }

    #[test]
    fn no_number_of_addresses_takes_the_last_connection_of_a_wire() {
        let mut peers = Peers::new(usize::MAX, 1024, 1024);
        let mut taken = Vec::new();
        for address in 1..=8 {
            let mut count = 0;
            let refused = loop {
                match peers.begin(Wire::Rdma, peer(address)) {
                    Ok((number, _)) => peers.known((Wire::Rdma, number)),
                    Err(refused) => break refused,
                }
                count += 1;
            };
            assert!(matches!(refused, TooMany::Share { .. }), "{refused}");
            taken.push(count);
        }
        assert_eq!(taken, [512, 256, 128, 64, 32, 16, 8, 4]);
        peers.begin(Wire::Rdma, peer(9)).unwrap();
        peers.begin(Wire::Tcp, peer(1)).unwrap();
    }

    #[test]
    fn one_that_was_answered_makes_no_room() {
        let mut peers = Peers::new(usize::MAX, usize::MAX, usize::MAX);
        let (known, none) = peers.begin(Wire::Tcp, peer(1)).unwrap();
        assert_eq!(none, None);
        peers.known((Wire::Tcp, known));
        let (oldest, _) = peers.begin(Wire::Tcp, peer(1)).unwrap();
        for _ in 1..STRANGERS_PER_SOURCE_MAX {
            assert_eq!(peers.begin(Wire::Rdma, peer(1)).unwrap().1, None);
        }
        let (_, displaced) = peers.begin(Wire::Tcp, peer(1)).unwrap();
        assert_eq!(displaced, Some((Wire::Tcp, oldest)));
        // There is room for another address.
        assert_eq!(peers.begin(Wire::Tcp, peer(2)).unwrap().1, None);
    }
}
