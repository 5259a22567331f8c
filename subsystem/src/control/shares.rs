//! How much each address may have: of what any host may have, no address keeps others out.

use alloc::collections::BTreeMap;
use core::net::IpAddr;

use capstan_nvme_proto::nqn::Nqn;

use super::Target;
use crate::action::DisconnectReason;
use crate::bounds::{LISTED_PART, SHARE_TIMES_FREE};
use crate::config::HostPolicy;
use crate::controller::{Controller, ControllerKind};
use crate::refuse::RefuseReason;

/// Whose share a queue counts on. Where any host may connect it can call itself what it likes, so
/// it is told by its address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Share {
    /// That of a host that is listed, which may have all there is.
    Listed,
    /// That of its address.
    Open {
        /// Whether there are listed hosts, to whom a part is left.
        keeps_part: bool,
    },
}

/// Something that hosts take, before one takes more of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stock {
    /// How much there is.
    pub total: usize,
    /// Of that, what is free.
    pub left: usize,
    /// What all have together that are not listed.
    pub open: usize,
    /// What those of them have that come from one address.
    pub of_address: usize,
}

/// Why a host may not take more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Excess {
    /// So much is left to hosts that are listed.
    Reserved(usize),
    /// Its address has its share.
    Share,
}

impl Stock {
    /// Whether a host may take `wanted` more of it. An address may have some times as much as is
    /// left, and all of them together leave a part to listed hosts, where there are such.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self, share: Share, wanted: usize) -> Result<(), Excess> {
        let Share::Open { keeps_part } = share else {
            return Ok(());
        };
        let part = self.total.checked_div(LISTED_PART).filter(|_| keeps_part);
        let reserve = part.unwrap_or(0);
        if self.open.saturating_add(wanted) > self.total.saturating_sub(reserve) {
            return Err(Excess::Reserved(reserve));
        }
        if self.of_address > self.left.saturating_mul(SHARE_TIMES_FREE) {
            return Err(Excess::Share);
        }
        Ok(())
    }
}

impl Target {
    /// Whose share a queue of `subnqn` counts on.
    pub(super) fn share_of(&self, subnqn: &Nqn) -> Share {
        if self.is_open(subnqn) {
            let keeps_part = self.lists_hosts();
            Share::Open { keeps_part }
        } else {
            Share::Listed
        }
    }

    /// Whether there is an I/O controller of `subnqn` for one more host at `address`.
    pub(super) fn check_shares(&self, subnqn: &Nqn, address: IpAddr) -> Result<(), RefuseReason> {
        let controllers = self.config.controllers;
        let left = controllers.saturating_sub(self.count_of(ControllerKind::Io));
        if left == 0 {
            return Err(self.no_controllers_left());
        }
        let unlisted = || {
            self.living(ControllerKind::Io)
                .filter(|controller| self.is_open(&controller.association.subnqn))
        };
        let source = source(address);
        let of_address = unlisted().filter(|controller| source_of(controller) == source);
        let stock = Stock {
            total: controllers,
            left,
            open: unlisted().count(),
            of_address: of_address.count(),
        };
        let has = stock.of_address;
        stock
            .check(self.share_of(subnqn), 1)
            .map_err(|excess| match excess {
                Excess::Reserved(reserve) => RefuseReason::ControllersReserved {
                    controllers,
                    reserve,
                },
                Excess::Share => RefuseReason::ShareOfControllers { has, left },
            })
    }

    pub(super) fn no_controllers_left(&self) -> RefuseReason {
        RefuseReason::TooManyControllers {
            controllers: self.config.controllers,
        }
    }

    /// Whether any host may connect to a subsystem.
    fn is_open(&self, subnqn: &Nqn) -> bool {
        let subsystem = self.subsystems.get(subnqn);
        subsystem.is_some_and(|subsystem| subsystem.config.hosts == HostPolicy::Any)
    }

    /// Whether there is a subsystem of hosts that are listed.
    fn lists_hosts(&self) -> bool {
        let mut subsystems = self.subsystems.values();
        subsystems.any(|subsystem| subsystem.config.hosts != HostPolicy::Any)
    }

    /// Ends the oldest discovery controller of the address that has most, when there are as many as
    /// there may be. Anybody may have one, so nobody is refused one: those of an address that takes
    /// them all go first.
    pub(super) fn make_room_for_discovery(&mut self) {
        let living = || self.living(ControllerKind::Discovery);
        let controllers = self.config.discovery_controllers;
        if living().count() < controllers {
            return;
        }
        let mut counts: BTreeMap<u128, usize> = BTreeMap::new();
        for controller in living() {
            let count = counts.entry(source_of(controller)).or_default();
            *count = count.saturating_add(1);
        }
        let count = |controller: &&Controller| counts.get(&source_of(controller));
        // By age; of several with as many, the first.
        let most = living().map(|controller| count(&controller)).max();
        let oldest = living().find(|controller| Some(count(controller)) == most);
        if let Some(id) = oldest.map(|controller| controller.id) {
            self.end_association(id, DisconnectReason::MadeRoom { controllers });
        }
    }

    /// Controllers of a kind that are not ending.
    fn living(&self, kind: ControllerKind) -> impl Iterator<Item = &Controller> {
        let controllers = self.controllers.values();
        controllers.filter(move |controller| controller.kind == kind && controller.ending.is_none())
    }

    pub(super) fn count_of(&self, kind: ControllerKind) -> usize {
        self.living(kind).count()
    }
}

fn source_of(controller: &Controller) -> u128 {
    source(controller.association.peer.ip())
}

/// Where a host comes from, as far as it costs something to come from somewhere else: an IPv4
/// address, or the network of an IPv6 address, its first 64 bits (RFC 4291, section 2.5.4).
fn source(address: IpAddr) -> u128 {
    match address.to_canonical() {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits() >> 64 << 64,
    }
}
