//! Asymmetric Namespace Access: the state of each group of namespaces of a subsystem as reached
//! through each port. NVMe Base 2.1, section 8.1.1.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use capstan_nvme_proto::async_event::AsyncEvent;
use capstan_nvme_proto::log::AnaState;
use capstan_nvme_proto::nqn::Nqn;

use super::Target;
use super::configure::unknown_port;
use crate::action::ControllerId;
use crate::bounds::ANA_GROUPS_MAX;
use crate::config::{ConfigError, PortId, within};

/// The groups of one subsystem.
#[derive(Debug)]
pub(crate) struct AnaGroups {
    /// States other than optimized.
    states: BTreeMap<(PortId, u32), AnaState>,
    /// Change Count of the log page. It counts what changes through any port, so that a host may
    /// find it higher and the page the same, and never the other way round.
    change_count: u64,
    /// What it was when a group changed last.
    changed: BTreeMap<u32, u64>,
}

impl AnaGroups {
    pub(super) fn new() -> Self {
        Self {
            states: BTreeMap::new(),
            // 0 stands for no count at all.
            change_count: 1,
            changed: BTreeMap::new(),
        }
    }

    pub(crate) fn state(&self, port: PortId, group: u32) -> AnaState {
        let state = self.states.get(&(port, group)).copied();
        state.unwrap_or(AnaState::OPTIMIZED)
    }

    /// Change Count of the log page.
    pub(crate) fn change_count(&self) -> u64 {
        self.change_count
    }

    /// Change Count of a group's descriptor.
    pub(crate) fn change_count_of(&self, group: u32) -> u64 {
        self.changed.get(&group).copied().unwrap_or(1)
    }

    /// The states or the namespaces of these groups have changed.
    pub(super) fn count_change(&mut self, groups: impl IntoIterator<Item = u32>) {
        self.change_count = self.change_count.wrapping_add(1).max(1);
        for group in groups {
            self.changed.insert(group, self.change_count);
        }
    }

    pub(super) fn forget_port(&mut self, port: PortId) {
        self.states.retain(|(of, _), _| *of != port);
    }

    /// Takes over `states`. Returns what that changes.
    fn replace(&mut self, states: BTreeMap<(PortId, u32), AnaState>) -> BTreeSet<(PortId, u32)> {
        let before = core::mem::replace(&mut self.states, states);
        let keys = before.keys().chain(self.states.keys()).copied();
        let changed: BTreeSet<_> = keys
            .filter(|key| {
                let was = before.get(key).copied().unwrap_or(AnaState::OPTIMIZED);
                was != self.state(key.0, key.1)
            })
            .collect();
        if !changed.is_empty() {
            self.count_change(changed.iter().map(|(_, group)| *group));
        }
        changed
    }
}

impl Target {
    /// Sets the ANA state of a group of namespaces of a subsystem as reached through a port. Groups
    /// start out optimized.
    ///
    /// # Errors
    /// When there is no such subsystem or port, or the group is out of bounds.
    pub fn set_ana_state(
        &mut self,
        subnqn: &Nqn,
        port: PortId,
        group: u32,
        state: AnaState,
    ) -> Result<(), ConfigError> {
        let mut states = self.subsystem_mut(subnqn)?.ana.states.clone();
        states.insert((port, group), state);
        self.set_ana_states(subnqn, states)
    }

    /// Sets the ANA states of all groups of a subsystem; those that are left out are optimized.
    /// Commands that were accepted before are carried out; those that still wait for data or a
    /// buffer are asked for again.
    ///
    /// # Errors
    /// When there is no such subsystem or port, or a group is out of bounds. Then nothing changes.
    pub fn set_ana_states(
        &mut self,
        subnqn: &Nqn,
        states: BTreeMap<(PortId, u32), AnaState>,
    ) -> Result<(), ConfigError> {
        for (port, group) in states.keys() {
            if !self.ports.contains_key(port) {
                return Err(unknown_port(*port));
            }
            within("ANA group", (*group).into(), 1, ANA_GROUPS_MAX.into())?;
        }
        let changed = self.subsystem_mut(subnqn)?.ana.replace(states);
        let concerned: Vec<ControllerId> = self
            .controllers
            .values()
            .filter(|controller| {
                let port = controller.association.port;
                let mut namespaces = controller.namespaces.iter();
                controller.association.subnqn == *subnqn
                    && namespaces.any(|namespace| changed.contains(&(port, namespace.anagrpid)))
            })
            .map(|controller| controller.id)
            .collect();
        for id in concerned {
            self.set_gates(id);
            self.raise(id, AsyncEvent::ANA_CHANGE);
        }
        Ok(())
    }

    /// Puts a namespace into another group. Hosts are told by the event of ANA, and not by that of
    /// a namespace's attributes: they find the group in the log page.
    ///
    /// # Errors
    /// When there is no such namespace or subsystem, or the group is out of bounds.
    pub fn set_ana_group(
        &mut self,
        subnqn: &Nqn,
        nsid: u32,
        group: u32,
    ) -> Result<(), ConfigError> {
        within("anagrpid", group.into(), 1, ANA_GROUPS_MAX.into())?;
        let namespace = self.namespace_mut(subnqn, nsid)?;
        let before = core::mem::replace(&mut namespace.anagrpid, group);
        if before == group {
            return Ok(());
        }
        self.subsystem_mut(subnqn)?
            .ana
            .count_change([before, group]);
        for id in self.controllers_of(subnqn) {
            // Nothing but the group differs.
            self.show_namespaces(id);
            let controller = self.controllers.get(&id);
            if controller.is_some_and(|controller| controller.namespaces.find(nsid).is_some()) {
                self.raise(id, AsyncEvent::ANA_CHANGE);
            }
        }
        Ok(())
    }

    /// The ANA state of a group of a subsystem through a port.
    #[must_use]
    pub fn ana_state(&self, subnqn: &Nqn, port: PortId, group: u32) -> AnaState {
        let subsystem = self.subsystems.get(subnqn);
        subsystem.map_or(AnaState::OPTIMIZED, |of| of.ana.state(port, group))
    }

    /// The groups of a subsystem.
    pub(crate) fn ana(&self, subnqn: &Nqn) -> Option<&AnaGroups> {
        self.subsystems.get(subnqn).map(|subsystem| &subsystem.ana)
    }
}
