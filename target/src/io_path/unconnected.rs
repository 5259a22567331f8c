//! Connections that are no queue yet: how many there may be, which one makes room, and when they
//! are looked at.

use std::net::SocketAddr;

use capstan_rdma::{Source, Strangers};
use capstan_subsystem::ConnId;

/// How many connections are asked for what has arrived before one of them makes room: each costs a
/// system call. Where something has arrived on all of them, the oldest goes all the same.
const LOOKS_MAX: usize = 8;

/// How the places of a reactor are divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Places {
    /// For connections of which nothing is known.
    unknown: usize,
    /// For more queues of hosts that have a controller.
    known: usize,
}

impl Places {
    /// Of `places` in all, in the proportions of [`STRANGERS_MAX`](capstan_config::STRANGERS_MAX).
    /// The others are for discovery controllers ([`discovery_controllers`]) and for connections
    /// that are ending.
    pub(super) fn of(places: u64) -> Self {
        Self {
            unknown: part(places, 128),
            known: part(places, 128),
        }
    }
}

/// Discovery controllers of a target whose reactors have so many places each: all may come to be on
/// one of them.
pub(crate) fn discovery_controllers(places: u64) -> usize {
    part(places, 64)
}

fn part(places: u64, of: u64) -> usize {
    let part = places * of / capstan_config::STRANGERS_MAX;
    usize::try_from(part).unwrap_or(usize::MAX).max(1)
}

/// Connections of a reactor that are no queue yet. In two groups: a host that fills one of them
/// keeps none out of the other.
pub(super) struct Unconnected {
    unknown: Strangers<ConnId>,
    known: Strangers<ConnId>,
    /// None of them is overdue before this.
    due_us: u64,
}

impl Unconnected {
    pub(super) fn new(places: Places) -> Self {
        let Places { unknown, known } = places;
        Self {
            // Half of them, so that the others need not drive anybody out.
            unknown: Strangers::new(unknown, unknown.div_ceil(2)),
            // A host may need as many as there are.
            known: Strangers::new(known, known),
            due_us: u64::MAX,
        }
    }

    fn group(&mut self, known: bool) -> &mut Strangers<ConnId> {
        if known {
            &mut self.known
        } else {
            &mut self.unknown
        }
    }

    /// The connection to end before another one of `peer` is accepted: the oldest one on which
    /// nothing has arrived that is still to be read, as `is_to_be_read` tells of a connection.
    pub(super) fn displaced_by(
        &self,
        peer: SocketAddr,
        known: bool,
        mut is_to_be_read: impl FnMut(ConnId) -> bool,
    ) -> Option<ConnId> {
        let group = if known { &self.known } else { &self.unknown };
        let those = || group.displaced_by(Source::of(peer.ip()));
        let silent = those().take(LOOKS_MAX).find(|&conn| !is_to_be_read(conn));
        silent.or_else(|| those().next())
    }

    /// A connection has been accepted, and has until `deadline_us`.
    pub(super) fn add(&mut self, conn: ConnId, peer: SocketAddr, known: bool, deadline_us: u64) {
        self.group(known).add(Source::of(peer.ip()), conn);
        self.due_us = self.due_us.min(deadline_us);
    }

    /// A connection is a queue now.
    pub(super) fn remove(&mut self, conn: ConnId) {
        if !self.unknown.remove(conn) {
            self.known.remove(conn);
        }
        self.one_is_gone();
    }

    /// A connection is ending, and is no queue.
    pub(super) fn fail(&mut self, conn: ConnId) {
        if !self.unknown.fail(conn) {
            self.known.fail(conn);
        }
        self.one_is_gone();
    }

    fn one_is_gone(&mut self) {
        if self.count() == 0 {
            self.due_us = u64::MAX;
        }
    }

    pub(super) fn count(&self) -> usize {
        self.unknown.count() + self.known.count()
    }

    /// When one of them may be overdue.
    pub(super) fn due_us(&self) -> Option<u64> {
        (self.count() > 0).then_some(self.due_us)
    }

    /// All of them, when it is time to look at their deadlines.
    pub(super) fn due(&self, now_us: u64) -> Vec<ConnId> {
        if now_us < self.due_us {
            return Vec::new();
        }
        self.unknown.names().chain(self.known.names()).collect()
    }

    /// The earliest deadline of those that are left.
    pub(super) fn looked(&mut self, earliest_us: Option<u64>) {
        self.due_us = earliest_us.unwrap_or(u64::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(last: u8) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, last], 1))
    }

    fn oldest(all: &Unconnected, last: u8, known: bool) -> Option<ConnId> {
        all.displaced_by(peer(last), known, |_| false)
    }

    #[test]
    fn what_has_brought_its_connect_does_not_make_room() {
        let mut all = Unconnected::new(Places::of(capstan_config::STRANGERS_MAX));
        for number in 0..64 {
            all.add(ConnId(number), peer(1), false, 100);
        }
        let mut looks = 0;
        let goes = all.displaced_by(peer(1), false, |conn| {
            looks += 1;
            conn.0 < 3
        });
        assert_eq!((goes, looks), (Some(ConnId(3)), 4));
        // Where something has arrived on all of them, the oldest goes.
        let goes = all.displaced_by(peer(1), false, |_| true);
        assert_eq!(goes, Some(ConnId(0)));
    }

    #[test]
    fn a_source_that_fills_its_share_drives_out_its_own_and_no_queue_of_a_known_host() {
        let mut all = Unconnected::new(Places::of(capstan_config::STRANGERS_MAX));
        for number in 0..64 {
            assert_eq!(oldest(&all, 1, false), None, "{number}");
            all.add(ConnId(number), peer(1), false, 100 + number);
        }
        assert_eq!(oldest(&all, 1, false), Some(ConnId(0)));
        assert_eq!(oldest(&all, 2, false), None);
        assert_eq!(oldest(&all, 1, true), None);
        all.add(ConnId(100), peer(1), true, 50);
        assert_eq!(all.due_us(), Some(50));
        assert!(all.due(49).is_empty());
        assert_eq!(all.due(50).len(), 65);
        all.remove(ConnId(100));
        all.looked(Some(100));
        assert_eq!((all.count(), all.due_us()), (64, Some(100)));
    }

    #[test]
    fn a_small_budget_has_a_place_of_each_kind() {
        assert_eq!(
            Places::of(3),
            Places {
                unknown: 1,
                known: 1
            }
        );
        assert_eq!(discovery_controllers(3), 1);
        let all = Places::of(352);
        assert_eq!((all.unknown, all.known), (128, 128));
        assert_eq!(discovery_controllers(352), 64);
    }
}
