//! Turns: addresses take them, over both wires together, and at the turn of an address its
//! connections do. So an address has no more of the threads with many connections than another
//! one has with one. An address with slow calls has no more of them under way than the half of
//! the threads: the others are for those that come meanwhile.

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
    /// Addresses with a call that are not in `order`, as they have as many under way as they may.
    held_back: usize,
    /// Addresses with slow calls.
    slow: Vec<Source>,
    /// How many calls one of these may have under way beside those that are stuck, and with them.
    of_slow: (usize, usize),
}

/// The calls of an address that are slow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Slow {
    pub(crate) source: Source,
    /// How many of these are stuck.
    pub(crate) stuck: usize,
}

#[derive(Debug, Default)]
struct Address {
    source: Option<Source>,
    connections: usize,
    /// Connections that have a call to be carried out, each once; some may be gone.
    ready: VecDeque<ConnectionName>,
    /// Calls that the workers have.
    under_way: usize,
    /// How many of them are stuck; `None` where none is slow.
    slow: Option<usize>,
    /// It is not in the order.
    is_held_back: bool,
}

impl Address {
    /// Whether no more calls of it may be under way for now.
    fn is_full(&self, (free, all): (usize, usize)) -> bool {
        self.slow.is_some_and(|stuck| {
            self.under_way >= all || self.under_way.saturating_sub(stuck) >= free
        })
    }
}

impl Turns {
    /// Turns for the calls of so many threads, of which `spare` more take the places of stuck ones.
    pub(crate) fn new(threads: usize, spare: usize) -> Self {
        Self {
            of_slow: bounds_of_slow(threads, spare),
            ..Self::default()
        }
    }

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

    /// The workers have one more call of an address.
    pub(crate) fn started(&mut self, source: Source) {
        if let Some(address) = self.of_source(source) {
            address.under_way = address.under_way.saturating_add(1);
        }
    }

    /// They have carried one out.
    pub(crate) fn finished(&mut self, source: Source) {
        let Some(&place) = self.of_source.get(&source) else {
            return;
        };
        if let Some(address) = self.addresses.get_mut(place.0) {
            address.under_way = address.under_way.saturating_sub(1);
        }
        self.let_go_on(place);
        self.leave(place);
    }

    /// These addresses have slow calls, and no others.
    pub(crate) fn set_slow(&mut self, slow: &[Slow]) {
        for source in std::mem::take(&mut self.slow) {
            if let Some(address) = self.of_source(source) {
                address.slow = None;
            }
            if slow.iter().all(|of| of.source != source)
                && let Some(&place) = self.of_source.get(&source)
            {
                self.let_go_on(place);
            }
        }
        for &Slow { source, stuck } in slow {
            let Some(&place) = self.of_source.get(&source) else {
                continue;
            };
            if let Some(address) = self.addresses.get_mut(place.0) {
                address.slow = Some(stuck);
            }
            self.slow.push(source);
            self.let_go_on(place);
        }
    }

    fn of_source(&mut self, source: Source) -> Option<&mut Address> {
        let place = self.of_source.get(&source)?;
        self.addresses.get_mut(place.0)
    }

    /// Puts an address that was held back into the order again, if it may have more under way.
    fn let_go_on(&mut self, place: Place) {
        let of_slow = self.of_slow;
        if let Some(address) = self.addresses.get_mut(place.0)
            && address.is_held_back
            && !address.is_full(of_slow)
        {
            address.is_held_back = false;
            self.held_back = self.held_back.saturating_sub(1);
            self.order.push_back(place);
        }
    }

    /// Frees the place of an address that has neither connections nor calls.
    fn leave(&mut self, place: Place) {
        let Some(address) = self.addresses.get_mut(place.0) else {
            return;
        };
        if address.connections == 0
            && address.ready.is_empty()
            && address.under_way == 0
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
        let place = loop {
            let place = self.order.pop_front()?;
            let address = self.addresses.get_mut(place.0)?;
            if !address.is_full(self.of_slow) {
                break place;
            }
            address.is_held_back = true;
            self.held_back = self.held_back.saturating_add(1);
        };
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
        self.order.is_empty() && self.held_back == 0
    }
}

/// How many threads the slow calls of one address may have of `threads`, and of these with the
/// `spare` ones that take the places of stuck ones: half of each, and one at least.
pub(crate) const fn bounds_of_slow(threads: usize, spare: usize) -> (usize, usize) {
    let half = threads / 2;
    let free = if half == 0 { 1 } else { half };
    (free, free.saturating_add(spare / 2))
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
    fn an_address_with_slow_calls_has_half_of_the_threads() {
        let mut turns = Turns::new(4, 8);
        let (one, two) = (turns.begin(source(1)), turns.begin(source(2)));
        let take = |turns: &mut Turns| {
            let name = turns.pop()?;
            turns.started(source(u8::try_from(name.1.0 / 100).unwrap()));
            Some(name.1.0)
        };
        for number in 0..20 {
            turns.push(one, name(Wire::Tcp, 100 + number));
        }
        // As many as there are, as long as nothing is known to be slow.
        assert_eq!(
            [(); 4].map(|()| take(&mut turns)),
            [100, 101, 102, 103].map(Some)
        );
        let slow = |stuck| {
            [Slow {
                source: source(1),
                stuck,
            }]
        };
        turns.set_slow(&slow(0));
        assert_eq!(take(&mut turns), None);
        turns.push(two, name(Wire::Tcp, 200));
        assert_eq!(take(&mut turns), Some(200));
        assert!(!turns.is_empty(), "the first one waits");
        turns.finished(source(1));
        turns.finished(source(1));
        assert_eq!(take(&mut turns), None);
        turns.finished(source(1));
        assert_eq!([take(&mut turns), take(&mut turns)], [Some(104), None]);
        // Others have taken the places of stuck ones, half of which are for it.
        turns.set_slow(&slow(2));
        assert_eq!([take(&mut turns), take(&mut turns)], [105, 106].map(Some));
        assert_eq!(take(&mut turns), None);
        turns.set_slow(&slow(4));
        assert_eq!([take(&mut turns), take(&mut turns)], [107, 108].map(Some));
        assert_eq!(take(&mut turns), None, "six of twelve in all");
        turns.set_slow(&[]);
        assert_eq!(take(&mut turns), Some(109));
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
