//! What each host has done with each namespace, also on queues and in associations that are gone.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use capstan_nvme_proto::nqn::Nqn;

use super::Target;
use crate::action::{Association, ControllerId};
use crate::bounds::HOST_PAIRS_KEPT;
use crate::controller::{Controller, ControllerKind, IoQueueRecord};
use crate::counters::{HostCounters, QueueCounters};

/// A host and a namespace.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct HostPlace {
    /// The host.
    pub hostnqn: Nqn,
    /// The subsystem.
    pub subnqn: Nqn,
    /// The namespace; 0 for commands that name none.
    pub nsid: u32,
}

/// What hosts have done ([`Target::host_counts`]).
#[derive(Clone, Default, Debug)]
pub struct HostCounts {
    /// By host and namespace, of at most [`HOST_PAIRS_KEPT`] pairs.
    pub pairs: BTreeMap<HostPlace, HostCounters>,
    /// Pairs of hosts that are gone which had to make room for others.
    pub pairs_dropped: u64,
    /// Commands of pairs for which there was no room.
    pub commands_not_kept: u64,
}

/// What is kept of pairs.
#[derive(Default, Debug)]
pub(super) struct Kept {
    /// What queues that are gone had counted, of each pair that has ever been told or had such.
    pairs: BTreeMap<HostPlace, Retired>,
    /// The next number.
    next: u64,
    dropped: u64,
    /// Of queues that are gone.
    commands_not_kept: u64,
}

#[derive(Default, Debug)]
struct Retired {
    counters: HostCounters,
    /// A number that is greater than those of pairs that were used earlier.
    used: u64,
}

impl Kept {
    /// The pair, which from now on is kept; `None` where there is no room.
    fn admit(&mut self, place: &HostPlace, live: impl FnOnce() -> Live) -> Option<&mut Retired> {
        if !self.pairs.contains_key(place) && self.pairs.len() >= HOST_PAIRS_KEPT {
            self.make_room(&live());
            if self.pairs.len() >= HOST_PAIRS_KEPT {
                return None;
            }
        }
        self.next = self.next.wrapping_add(1);
        let pair = self.pairs.entry(place.clone()).or_default();
        pair.used = self.next;
        Some(pair)
    }

    /// Drops an eighth of all, of hosts that are gone, those that are gone for longest: rarely, as
    /// it looks at every pair.
    fn make_room(&mut self, live: &Live) {
        let is_live = |of: &HostPlace| live.contains(&(of.hostnqn.clone(), of.subnqn.clone()));
        let pairs = self.pairs.iter();
        let mut gone: Vec<_> = pairs
            .filter(|(place, _)| !is_live(place))
            .map(|(place, pair)| (pair.used, place.clone()))
            .collect();
        gone.sort_unstable();
        for (_, place) in gone.into_iter().take(HOST_PAIRS_KEPT.div_ceil(8)) {
            self.pairs.remove(&place);
            self.dropped = self.dropped.saturating_add(1);
        }
    }
}

fn commands(of: &QueueCounters) -> u64 {
    of.read_commands
        .saturating_add(of.write_commands)
        .saturating_add(of.other_commands)
}

/// The hosts and subsystems that have controllers.
type Live = BTreeSet<(Nqn, Nqn)>;

impl Target {
    /// Keeps what an I/O queue that is gone had counted.
    pub(super) fn retire(&mut self, association: &Association, record: &IoQueueRecord) {
        if let Some(subsystem) = self.subsystems.get_mut(&association.subnqn) {
            subsystem.retire(record);
        }
        let mut is_full = false;
        for (nsid, counters) in record.of_host() {
            let place = place(association, nsid);
            let pair = if is_full {
                self.hosts.pairs.get_mut(&place)
            } else {
                self.hosts.admit(&place, || live(&self.controllers))
            };
            match pair {
                Some(pair) => pair.counters.add(&counters),
                None => {
                    is_full = true;
                    let sum = &mut self.hosts.commands_not_kept;
                    *sum = sum.saturating_add(commands(&counters.commands));
                }
            }
        }
    }

    /// What every host has done with every namespace. A pair that is told once is told until its
    /// host is gone and others need the room; there is none for pairs beyond [`HOST_PAIRS_KEPT`].
    pub fn host_counts(&mut self) -> HostCounts {
        let mut counted: BTreeMap<HostPlace, HostCounters> = BTreeMap::new();
        for controller in self.controllers.values() {
            for record in controller.io_queues.values() {
                for (nsid, counters) in record.of_host() {
                    let place = place(&controller.association, nsid);
                    counted.entry(place).or_default().add(&counters);
                }
            }
        }
        let mut counts = HostCounts {
            commands_not_kept: self.hosts.commands_not_kept,
            ..HostCounts::default()
        };
        let mut is_full = false;
        for (place, counters) in &counted {
            let mut is_kept = self.hosts.pairs.contains_key(place);
            if !is_kept && !is_full {
                let pair = self.hosts.admit(place, || live(&self.controllers));
                is_kept = pair.is_some();
            }
            if !is_kept {
                is_full = true;
                let sum = &mut counts.commands_not_kept;
                *sum = sum.saturating_add(commands(&counters.commands));
            }
        }
        counts.pairs_dropped = self.hosts.dropped;
        for (place, retired) in &self.hosts.pairs {
            let mut sum = retired.counters.clone();
            if let Some(counters) = counted.get(place) {
                sum.add(counters);
            }
            counts.pairs.insert(place.clone(), sum);
        }
        counts
    }

    /// Nothing is kept of a subsystem that is removed.
    pub(super) fn forget_hosts_of(&mut self, subnqn: &Nqn) {
        self.hosts.pairs.retain(|place, _| place.subnqn != *subnqn);
    }
}

fn live(controllers: &BTreeMap<ControllerId, Controller>) -> Live {
    let of_hosts = controllers
        .values()
        .filter(|of| of.kind == ControllerKind::Io);
    let names = of_hosts.map(|of| {
        let association = &of.association;
        (association.hostnqn.clone(), association.subnqn.clone())
    });
    names.collect()
}

fn place(association: &Association, nsid: u32) -> HostPlace {
    HostPlace {
        hostnqn: association.hostnqn.clone(),
        subnqn: association.subnqn.clone(),
        nsid,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;

    fn place(host: usize) -> HostPlace {
        HostPlace {
            hostnqn: Nqn::new(&format!("host-{host}")).unwrap(),
            subnqn: Nqn::new("subsystem").unwrap(),
            nsid: 1,
        }
    }

    fn here(hosts: &[usize]) -> Live {
        let places = hosts.iter().map(|host| place(*host));
        places.map(|of| (of.hostnqn, of.subnqn)).collect()
    }

    #[test]
    fn hosts_that_are_gone_for_longest_make_room_and_those_that_are_here_do_not() {
        let mut kept = Kept::default();
        for host in 0..HOST_PAIRS_KEPT {
            assert!(kept.admit(&place(host), || here(&[])).is_some());
        }
        // It comes again.
        assert!(kept.admit(&place(0), || here(&[])).is_some());
        let new = place(HOST_PAIRS_KEPT);
        assert!(kept.admit(&new, || here(&[1])).is_some());
        assert_eq!(kept.dropped, (HOST_PAIRS_KEPT / 8) as u64);
        assert!(kept.pairs.contains_key(&place(0)) && kept.pairs.contains_key(&place(1)));
        assert!(!kept.pairs.contains_key(&place(2)));
        let mut host = HOST_PAIRS_KEPT;
        while kept.pairs.len() < HOST_PAIRS_KEPT {
            host += 1;
            assert!(kept.admit(&place(host), || here(&[])).is_some());
        }
        let all: Vec<_> = (0..=host).collect();
        assert!(kept.admit(&place(host + 1), || here(&all)).is_none());
        assert!(
            kept.admit(&new, || here(&all)).is_some(),
            "it has its place"
        );
    }
}
