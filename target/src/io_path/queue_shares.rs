//! How much of a reactor's memory for queues a host may have, counted in receives, which are most
//! of it: hosts that are listed may have all there is, others a part, as of controllers.

use std::net::IpAddr;

use capstan_rdma::Source;
use capstan_subsystem::{Excess, Share, Stock};
use rustc_hash::FxHashMap;

use super::accept::Refusal;

/// Memory that the queues on a reactor have.
#[derive(Default)]
pub(super) struct QueueShares {
    /// All of them, in receives.
    all: usize,
    /// Shares of hosts that are not listed, by the address they come from.
    open: FxHashMap<Source, usize>,
}

/// The share of one queue, to be given back when the queue ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Charge {
    receives: usize,
    /// The address of its host, if the host is not listed.
    source: Option<Source>,
}

impl QueueShares {
    /// Counts a queue of `entries` for a host at `address`, while there are receives for `left`
    /// more.
    pub(super) fn take(
        &mut self,
        (share, address): (Share, IpAddr),
        entries: u16,
        left: usize,
    ) -> Result<Charge, Refusal> {
        let receives = usize::from(entries);
        let source = Source::of(address);
        let has = self.open.get(&source).copied().unwrap_or(0);
        let stock = Stock {
            total: self.all + left,
            left,
            open: self.open.values().sum(),
            of_address: has,
        };
        stock
            .check(share, receives)
            .map_err(|excess| match excess {
                Excess::Reserved(reserve) => Refusal::Reserved { entries, reserve },
                Excess::Share => Refusal::Share {
                    address: source,
                    has,
                    left,
                },
            })?;
        self.all += receives;
        let source = (share != Share::Listed).then_some(source);
        if let Some(source) = source {
            *self.open.entry(source).or_default() += receives;
        }
        Ok(Charge { receives, source })
    }

    /// A queue is gone.
    pub(super) fn give_back(&mut self, Charge { receives, source }: Charge) {
        self.all = self.all.saturating_sub(receives);
        let Some(source) = source else { return };
        if let Some(has) = self.open.get_mut(&source) {
            *has = has.saturating_sub(receives);
            if *has == 0 {
                self.open.remove(&source);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const TOTAL: usize = 1024;
    const ONE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
    const OTHER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));

    /// Queues of 32 entries until one is refused: how many receives they have, and why.
    fn take_all(shares: &mut QueueShares, share: Share, address: IpAddr) -> (Vec<Charge>, String) {
        let mut taken = Vec::new();
        loop {
            let left = TOTAL - shares.all;
            if left < 32 {
                return (taken, String::new());
            }
            match shares.take((share, address), 32, left) {
                Ok(charge) => taken.push(charge),
                Err(refusal) => return (taken, refusal.to_string()),
            }
        }
    }

    #[test]
    fn an_address_leaves_a_part_to_others_and_all_of_them_to_listed_hosts() {
        let open = Share::Open { keeps_part: true };
        let mut shares = QueueShares::default();
        let (of_one, why) = take_all(&mut shares, open, ONE);
        // Three times what it leaves, and the queue that made it so.
        assert_eq!(of_one.len() * 32, 800);
        assert!(
            why.contains("192.0.2.1 have receives for 800 commands and leave 224"),
            "{why}"
        );
        let (of_other, why) = take_all(&mut shares, open, OTHER);
        assert_eq!(of_other.len() * 32, TOTAL - TOTAL / 8 - 800);
        assert!(why.contains("128"), "{why}");
        let (listed, why) = take_all(&mut shares, Share::Listed, ONE);
        assert_eq!((listed.len() * 32, why.as_str()), (TOTAL / 8, ""));
        for charge in [of_one, of_other, listed].concat() {
            shares.give_back(charge);
        }
        assert_eq!((shares.all, shares.open.len()), (0, 0));
    }

    #[test]
    fn hosts_that_are_listed_may_have_all() {
        let mut shares = QueueShares::default();
        let (listed, why) = take_all(&mut shares, Share::Listed, ONE);
        assert_eq!((listed.len() * 32, why.as_str()), (TOTAL, ""));
    }

    /// The least budget: an Admin queue and one of 128 entries.
    #[test]
    fn one_host_has_what_the_least_budget_is_for() {
        let mut shares = QueueShares::default();
        let share = (Share::Open { keeps_part: false }, ONE);
        shares.take(share, 32, 160).unwrap();
        shares.take(share, 128, 128).unwrap();
    }
}
