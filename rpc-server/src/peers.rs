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
    max: usize,
    per_source_max: usize,
    /// Of addresses that have a connection.
    of_source: HashMap<Source, usize>,
    count: usize,
    /// Connections that have had no call answered yet.
    strangers: Strangers<ConnectionName>,
    last_number: u64,
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
}

impl Peers {
    pub(crate) fn new(max: usize, per_source_max: usize) -> Self {
        Self {
            max,
            per_source_max,
            of_source: HashMap::new(),
            count: 0,
            strangers: Strangers::new(
                STRANGERS_MAX.min(max),
                STRANGERS_PER_SOURCE_MAX.min(per_source_max),
            ),
            last_number: 0,
        }
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
        let of_source = self.of_source.get(&source).copied().unwrap_or(0);
        if self.count >= self.max {
            return Err(TooMany::All { count: self.count });
        }
        if of_source >= self.per_source_max {
            return Err(TooMany::OfSource { count: of_source });
        }
        self.of_source.insert(source, of_source.saturating_add(1));
        self.count = self.count.saturating_add(1);
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
        let source = Source::of(peer.ip());
        self.count = self.count.saturating_sub(1);
        let left = self.of_source.get(&source).copied().unwrap_or(0);
        match left.checked_sub(1) {
            Some(left) if left > 0 => self.of_source.insert(source, left),
            _ => self.of_source.remove(&source),
        };
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
        let mut peers = Peers::new(3, 2);
        let (first, _) = peers.begin(Wire::Tcp, peer(1)).unwrap();
        let (second, _) = peers.begin(Wire::Tcp, peer(1)).unwrap();
        assert!(second > first);
        let refused = peers.begin(Wire::Rdma, peer(1));
        assert_eq!(refused, Err(TooMany::OfSource { count: 2 }));
        peers.begin(Wire::Tcp, peer(2)).unwrap();
        let refused = peers.begin(Wire::Tcp, peer(3));
        assert_eq!(refused, Err(TooMany::All { count: 3 }));
        peers.end((Wire::Tcp, first), peer(1));
        peers.begin(Wire::Tcp, peer(3)).unwrap();
        assert_eq!(peers.count, 3);
    }

    #[test]
    fn one_that_was_answered_makes_no_room() {
        let mut peers = Peers::new(usize::MAX, usize::MAX);
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
