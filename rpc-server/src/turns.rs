//! Whose turn it is: addresses take turns, over both wires together, and at the turn of an address
//! its connections do. So an address has no more of the threads with many connections than another
//! one has with one.

use std::collections::VecDeque;

use capstan_rdma::Source;
use rustc_hash::FxHashMap;

use crate::peers::ConnectionName;

/// An index into [`Turns::addresses`].
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Place(usize);

/// The connections that have a call to be carried out.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    /// Addresses with a connection, or with one that has ended and is still in `ready`.
    addresses: Vec<Address>,
    of_source: FxHashMap<Source, Place>,
    free: Vec<Place>,
    /// Addresses that have a connection with a call, each once.
    order: VecDeque<Place>,
}

#[derive(Debug, Default)]
struct Address {
    source: Option<Source>,
    connections: usize,
    /// Connections that have a call to be carried out, each once; some may be gone.
    ready: VecDeque<ConnectionName>,
}

impl Turns {
    /// An address has one more connection.
    pub(crate) fn begin(&mut self, source: Source) -> Place {
        let place = match self.of_source.get(&source) {
            Some(place) => *place,
            None => self.new_place(source),
        };
        if let Some(address) = self.addresses.get_mut(place.0) {
            address.connections = address.connections.saturating_add(1);
        }
        place
    }

    fn new_place(&mut self, source: Source) -> Place {
        let place = self.free.pop().unwrap_or_else(|| {
            self.addresses.push(Address::default());
            Place(self.addresses.len().saturating_sub(1))
        });
        if let Some(address) = self.addresses.get_mut(place.0) {
            address.source = Some(source);
        }
        self.of_source.insert(source, place);
        place
    }

    /// A connection of an address has ended.
    pub(crate) fn end(&mut self, source: Source) {
        let Some(&place) = self.of_source.get(&source) else {
            return;
        };
        if let Some(address) = self.addresses.get_mut(place.0) {
            address.connections = address.connections.saturating_sub(1);
        }
        self.leave(place);
    }

    /// Frees the place of an address that has neither connections nor calls.
    fn leave(&mut self, place: Place) {
        let Some(address) = self.addresses.get_mut(place.0) else {
            return;
        };
        if address.connections == 0
            && address.ready.is_empty()
            && let Some(source) = address.source.take()
        {
            // With the memory of `ready`, which had room for all of its connections.
            *address = Address::default();
            self.of_source.remove(&source);
            self.free.push(place);
        }
    }

    /// A connection of an address has a call to be carried out, and had none.
    pub(crate) fn push(&mut self, place: Place, name: ConnectionName) {
        let Some(address) = self.addresses.get_mut(place.0) else {
            return;
        };
        if address.ready.is_empty() {
            self.order.push_back(place);
        }
        address.ready.push_back(name);
    }

    /// The connection whose turn it is. It may be gone.
    pub(crate) fn pop(&mut self) -> Option<ConnectionName> {
        let place = self.order.pop_front()?;
        let address = self.addresses.get_mut(place.0)?;
        let name = address.ready.pop_front()?;
        if !address.ready.is_empty() {
            self.order.push_back(place);
        } else if address.connections == 0 {
            self.leave(place);
        }
        Some(name)
    }

    /// Whether no connection waits for its turn.
    pub(crate) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::program::{ConnectionNumber, Wire};

    fn source(last: u8) -> Source {
        Source::of(IpAddr::from([192, 0, 2, last]))
    }

    fn name(wire: Wire, number: u64) -> ConnectionName {
        (wire, ConnectionNumber(number))
    }

    #[test]
    fn addresses_take_turns_and_then_their_connections() {
        let mut turns = Turns::default();
        let many = (1..=4).map(|_| turns.begin(source(1))).last().unwrap();
        let one = turns.begin(source(2));
        for number in 1..=4 {
            turns.push(many, name(Wire::Tcp, number));
        }
        turns.push(one, name(Wire::Rdma, 9));
        let first = [turns.pop(), turns.pop()];
        let expected = [name(Wire::Tcp, 1), name(Wire::Rdma, 9)].map(Some);
        assert_eq!(first, expected);
        // It has another call, and waits for one turn of the other address, not for three.
        turns.push(one, name(Wire::Rdma, 9));
        let rest: Vec<_> = std::iter::from_fn(|| turns.pop()).collect();
        let expected = [
            (Wire::Tcp, 2),
            (Wire::Rdma, 9),
            (Wire::Tcp, 3),
            (Wire::Tcp, 4),
        ];
        assert_eq!(rest, expected.map(|(wire, number)| name(wire, number)));
        assert!(turns.is_empty());
    }

    #[test]
    fn the_place_of_an_address_that_is_gone_is_another_ones() {
        let mut turns = Turns::default();
        for last in 1..=9 {
            let place = turns.begin(source(last));
            turns.push(place, name(Wire::Tcp, last.into()));
            // Its turn comes once it is gone.
            turns.end(source(last));
            assert_eq!(turns.pop(), Some(name(Wire::Tcp, last.into())));
            turns.begin(source(last));
            turns.end(source(last));
        }
        assert_eq!((turns.addresses.len(), turns.of_source.len()), (1, 0));
        assert_eq!(turns.pop(), None);
    }
}
