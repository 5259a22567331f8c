//! Configuration at run time: ports, subsystems, hosts, namespaces, ANA states. Every change is
//! told to the controllers it concerns.

use alloc::collections::BTreeSet;
use alloc::string::ToString;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::SocketAddr;

use capstan_nvme_proto::async_event::AsyncEvent;
use capstan_nvme_proto::log::{AnaState, DiscoverySubsystemType, RdmaProviderType};
use capstan_nvme_proto::nqn::Nqn;
use capstan_nvme_proto::status::Status;

use super::{Subsystem, Target};
use crate::action::{Action, ControllerId, DisconnectReason};
use crate::config::{
    ConfigError, HostPolicy, NamespaceConfig, PortConfig, PortId, SubsystemConfig,
};
use crate::controller::ControllerKind;
use crate::gate::Closed;
use crate::namespace::{Geometry, Namespace, NamespaceTable};
use crate::reservation::{Persistence, Reservation};

impl Target {
    /// Adds a listener.
    ///
    /// # Errors
    /// When one with its identifier exists.
    pub fn add_port(&mut self, port: PortConfig) -> Result<(), ConfigError> {
        if self.ports.contains_key(&port.id) {
            return Err(ConfigError::Duplicate {
                what: "port",
                name: port.id.0.to_string(),
            });
        }
        self.ports.insert(port.id, port);
        self.discovery_changed(|_| true);
        Ok(())
    }

    /// Says where a listener was bound, when its port was for the system to choose.
    ///
    /// # Errors
    /// When there is none.
    pub fn set_port_address(&mut self, id: PortId, address: SocketAddr) -> Result<(), ConfigError> {
        let port = self.ports.get_mut(&id).ok_or_else(|| unknown_port(id))?;
        if port.address != address {
            port.address = address;
            self.discovery_changed(|_| true);
        }
        Ok(())
    }

    /// Says at which port a listener has NVMe/TCP, which is not the one that RDMA has.
    ///
    /// # Errors
    /// When there is no such listener.
    pub fn set_tcp_port(&mut self, id: PortId, tcp_port: u16) -> Result<(), ConfigError> {
        let port = self.ports.get_mut(&id).ok_or_else(|| unknown_port(id))?;
        if port.tcp_port != Some(tcp_port) {
            port.tcp_port = Some(tcp_port);
            self.discovery_changed(|_| true);
        }
        Ok(())
    }

    /// Says what a port speaks from now on. Associations that it has go on.
    ///
    /// # Errors
    /// When there is no such port.
    pub fn set_port_transports(
        &mut self,
        id: PortId,
        rdma: Option<RdmaProviderType>,
        tcp: bool,
    ) -> Result<(), ConfigError> {
        let port = self.ports.get_mut(&id).ok_or_else(|| unknown_port(id))?;
        if (port.rdma, port.tcp) != (rdma, tcp) {
            (port.rdma, port.tcp) = (rdma, tcp);
            self.discovery_changed(|_| true);
        }
        Ok(())
    }

    /// Takes a listener away, also from every subsystem; associations through it end.
    ///
    /// # Errors
    /// When there is none.
    pub fn remove_port(&mut self, id: PortId) -> Result<(), ConfigError> {
        self.ports.remove(&id).ok_or_else(|| unknown_port(id))?;
        for subsystem in self.subsystems.values_mut() {
            subsystem.config.ports.remove(&id);
            subsystem.ana.forget_port(id);
        }
        self.end_where(DisconnectReason::SubsystemRemoved, |_, association| {
            association.port == id
        });
        self.discovery_changed(|_| true);
        Ok(())
    }

    /// Adds a subsystem without namespaces.
    ///
    /// # Errors
    /// When a value is not accepted, a port does not exist, or the NQN is taken.
    pub fn add_subsystem(&mut self, config: SubsystemConfig) -> Result<(), ConfigError> {
        config.check()?;
        self.check_ports(&config.ports)?;
        if self.subsystems.contains_key(&config.nqn) {
            return Err(ConfigError::Duplicate {
                what: "subsystem",
                name: config.nqn.as_str().into(),
            });
        }
        let hosts = config.hosts.clone();
        let nqn = config.nqn.clone();
        self.subsystems.insert(nqn, Subsystem::new(config));
        self.discovery_changed(|host| hosts.allows(host));
        Ok(())
    }

    /// Takes a subsystem away with its namespaces; its associations end.
    ///
    /// # Errors
    /// When there is none.
    pub fn remove_subsystem(&mut self, subnqn: &Nqn) -> Result<(), ConfigError> {
        let mut subsystem = self
            .subsystems
            .remove(subnqn)
            .ok_or_else(|| unknown_subsystem(subnqn))?;
        for asker in subsystem.stop_all_changing() {
            self.answer(asker, Status::INVALID_NAMESPACE_OR_FORMAT.dnr());
        }
        self.end_where(DisconnectReason::SubsystemRemoved, |_, association| {
            association.subnqn == *subnqn
        });
        self.discovery_changed(|host| subsystem.config.hosts.allows(host));
        self.forget_degraded();
        self.forget_hosts_of(subnqn);
        Ok(())
    }

    /// Sets who may use a subsystem. Associations of hosts that no longer may end.
    ///
    /// # Errors
    /// When there is no such subsystem.
    pub fn set_hosts(&mut self, subnqn: &Nqn, hosts: HostPolicy) -> Result<(), ConfigError> {
        let before = core::mem::replace(&mut self.subsystem_mut(subnqn)?.config.hosts, hosts);
        let after = self.subsystem_mut(subnqn)?.config.hosts.clone();
        self.end_where(DisconnectReason::HostNotAllowed, |_, association| {
            association.subnqn == *subnqn && !after.allows(&association.hostnqn)
        });
        self.discovery_changed(|host| before.allows(host) != after.allows(host));
        Ok(())
    }

    /// Sets through which ports a subsystem is reached. Associations through others end.
    ///
    /// # Errors
    /// When there is no such subsystem or port.
    pub fn set_ports(&mut self, subnqn: &Nqn, ports: &BTreeSet<PortId>) -> Result<(), ConfigError> {
        self.check_ports(ports)?;
        let subsystem = self.subsystem_mut(subnqn)?;
        subsystem.config.ports.clone_from(ports);
        let hosts = subsystem.config.hosts.clone();
        self.end_where(DisconnectReason::SubsystemRemoved, |_, association| {
            association.subnqn == *subnqn && !ports.contains(&association.port)
        });
        self.discovery_changed(|host| hosts.allows(host));
        Ok(())
    }

    /// Adds a namespace to a subsystem.
    ///
    /// # Errors
    /// When a value is not accepted, the NSID is taken, or there is no such subsystem.
    pub fn add_namespace(
        &mut self,
        subnqn: &Nqn,
        mut config: NamespaceConfig,
    ) -> Result<(), ConfigError> {
        config.check()?;
        let subsystem = self.subsystem_mut(subnqn)?;
        if subsystem.namespaces.contains_key(&config.nsid) {
            return Err(ConfigError::Duplicate {
                what: "namespace",
                name: config.nsid.to_string(),
            });
        }
        subsystem.ana.count_change([config.anagrpid]);
        // They are kept by it.
        if config.identity.uuid.is_none() {
            config.persistence = Persistence::None;
        }
        if config.persistence.is_supported() {
            let found = core::mem::replace(&mut config.persistence, Persistence::Ready);
            let reservation = Reservation::new(found);
            subsystem.reservations.insert(config.nsid, reservation);
        }
        subsystem.namespaces.insert(config.nsid, config);
        self.namespaces_changed(subnqn);
        Ok(())
    }

    /// Takes a namespace away. Its backend may be closed when every I/O queue has taken its
    /// [`Action::SetNamespaces`] and has no command for it outstanding.
    ///
    /// # Errors
    /// When there is no such namespace or subsystem.
    pub fn remove_namespace(&mut self, subnqn: &Nqn, nsid: u32) -> Result<(), ConfigError> {
        let subsystem = self.subsystem_mut(subnqn)?;
        let removed = subsystem.namespaces.remove(&nsid);
        let removed = removed.ok_or_else(|| unknown_namespace(nsid))?;
        subsystem.ana.count_change([removed.anagrpid]);
        // A namespace that gets this NSID later is another one.
        let counted = self.counted_of(subnqn, nsid);
        let subsystem = self.subsystem_mut(subnqn)?;
        subsystem.counted_before.insert(nsid, counted);
        subsystem.protected.remove(&nsid);
        subsystem.reservations.remove(&nsid);
        for asker in subsystem.stop_changing(nsid) {
            self.answer(asker, Status::INVALID_NAMESPACE_OR_FORMAT.dnr());
        }
        for id in self.controllers_of(subnqn) {
            if let Some(controller) = self.controllers.get_mut(&id) {
                controller.notifications.forget(nsid);
            }
        }
        self.forget_degraded();
        self.namespaces_changed(subnqn);
        Ok(())
    }

    /// Sets the size and capabilities of a namespace: it was resized, or its medium changed.
    ///
    /// # Errors
    /// When a value is not accepted, or there is no such namespace or subsystem.
    pub fn set_geometry(
        &mut self,
        subnqn: &Nqn,
        nsid: u32,
        geometry: Geometry,
    ) -> Result<(), ConfigError> {
        let namespace = self.namespace_mut(subnqn, nsid)?;
        let changed = NamespaceConfig {
            geometry,
            ..namespace.clone()
        };
        changed.check()?;
        *namespace = changed;
        self.namespaces_changed(subnqn);
        Ok(())
    }

    /// Sets whether the operator lets hosts write a namespace. Commands that were accepted before
    /// are carried out; those that still wait for data or a buffer are asked for again.
    ///
    /// # Errors
    /// When there is no such namespace or subsystem.
    pub fn set_read_only(
        &mut self,
        subnqn: &Nqn,
        nsid: u32,
        read_only: bool,
    ) -> Result<(), ConfigError> {
        self.namespace_mut(subnqn, nsid)?.geometry.read_only = read_only;
        self.namespaces_changed(subnqn);
        Ok(())
    }

    /// Sets which of the subsystem's hosts see a namespace.
    ///
    /// # Errors
    /// When there is no such namespace or subsystem.
    pub fn set_visibility(
        &mut self,
        subnqn: &Nqn,
        nsid: u32,
        visible_to: HostPolicy,
    ) -> Result<(), ConfigError> {
        self.namespace_mut(subnqn, nsid)?.visible_to = visible_to;
        self.namespaces_changed(subnqn);
        Ok(())
    }

    /// What a host finds in the discovery log: the discovery service on each port, then each
    /// subsystem it may use on each of its ports.
    pub(crate) fn discovery_records(
        &self,
        host: &Nqn,
    ) -> Vec<(DiscoverySubsystemType, &Nqn, &PortConfig)> {
        let current = self
            .ports
            .values()
            .map(|port| (DiscoverySubsystemType::CURRENT, &self.discovery_nqn, port));
        let subsystems = self
            .subsystems
            .values()
            .filter(|subsystem| subsystem.config.hosts.allows(host))
            .flat_map(|subsystem| {
                subsystem
                    .config
                    .ports
                    .iter()
                    .filter_map(|port| self.ports.get(port))
                    .map(|port| (DiscoverySubsystemType::NVM, &subsystem.config.nqn, port))
            });
        current.chain(subsystems).collect()
    }

    /// The discovery log of the hosts that `concerns` accepts changed.
    fn discovery_changed(&mut self, concerns: impl Fn(&Nqn) -> bool) {
        self.genctr = self.genctr.wrapping_add(1);
        let concerned: Vec<ControllerId> = self
            .controllers
            .values()
            .filter(|controller| {
                controller.kind == ControllerKind::Discovery
                    && concerns(&controller.association.hostnqn)
            })
            .map(|controller| controller.id)
            .collect();
        for id in concerned {
            self.raise(id, AsyncEvent::DISCOVERY_LOG_CHANGE);
        }
    }

    /// Notes an event of a controller and sends it when a request waits.
    pub(crate) fn raise(&mut self, id: ControllerId, event: AsyncEvent) {
        if let Some(controller) = self.controllers.get_mut(&id) {
            controller.events.raise(event);
            self.send_events(id);
        }
    }

    pub(super) fn namespaces_changed(&mut self, subnqn: &Nqn) {
        for id in self.controllers_of(subnqn) {
            if self.show_namespaces(id) {
                self.raise(id, AsyncEvent::NAMESPACE_ATTRIBUTE_CHANGED);
            }
        }
    }

    /// Gives a controller and its I/O queues the namespaces its host may see. Returns whether
    /// any of them changed but for its ANA group, which has an event of its own.
    pub(super) fn show_namespaces(&mut self, id: ControllerId) -> bool {
        let Some(controller) = self.controllers.get_mut(&id) else {
            return false;
        };
        let host = &controller.association.hostnqn;
        let visible: Vec<Namespace> = self
            .subsystems
            .get(&controller.association.subnqn)
            .into_iter()
            .flat_map(|subsystem| subsystem.namespaces.values())
            .filter(|namespace| namespace.visible_to.allows(host))
            .filter(|namespace| {
                !controller
                    .reported
                    .hide(namespace.nsid, &namespace.identity)
            })
            .map(|namespace| Namespace {
                nsid: namespace.nsid,
                backend: namespace.backend,
                geometry: namespace.geometry,
                identity: namespace.identity,
                anagrpid: namespace.anagrpid,
                persistent: namespace.persistence.is_supported(),
                gate: controller
                    .namespaces
                    .find(namespace.nsid)
                    .map(|known| Arc::clone(&known.gate))
                    .unwrap_or_default(),
            })
            .collect();
        let generation = controller.namespaces.generation().saturating_add(1);
        let after = NamespaceTable::new(generation, visible);
        let changed = controller.namespaces.differences(&after);
        if changed.is_empty() && !controller.namespaces.is_regrouped(&after) {
            return false;
        }
        controller.changed.add(&changed);
        for before in controller.namespaces.iter() {
            if after.find(before.nsid).is_none() {
                controller.reported.add_gone(before.nsid, before.identity);
            }
        }
        for namespace in after.iter() {
            controller.reported.shown(namespace.nsid);
        }
        controller.namespaces = Arc::new(after);
        controller.shared.set_namespaces_generation(generation);
        let namespaces = &controller.namespaces;
        let tables = controller
            .io_queues
            .values_mut()
            .map(|queue| Action::SetNamespaces {
                conn: queue.conn,
                counters: queue.counters_for(namespaces),
                namespaces: Arc::clone(namespaces),
            });
        self.actions.extend(tables);
        self.set_gates(id);
        !changed.is_empty()
    }

    /// Writes what a controller's host may do with each namespace to where its I/O queues look.
    pub(super) fn set_gates(&mut self, id: ControllerId) {
        let Some(controller) = self.controllers.get(&id) else {
            return;
        };
        let mut look_ends_us: Option<u64> = None;
        for namespace in controller.namespaces.iter() {
            let association = &controller.association;
            let state = self.ana_state(&association.subnqn, association.port, namespace.anagrpid);
            let subsystem = self.subsystems.get(&association.subnqn);
            // The operator's word takes effect before the queues have the table that says it.
            let protected = namespace.geometry.read_only
                || subsystem.is_some_and(|of| of.protected.contains(&namespace.nsid));
            let reserved = subsystem
                .and_then(|subsystem| subsystem.reservations.get(&namespace.nsid))
                .map(|reservation| reservation.closed_for(&controller.association.hostid.0))
                .unwrap_or_default();
            let replaces = subsystem
                .and_then(|subsystem| subsystem.namespaces.get(&namespace.nsid))
                .is_some_and(|config| config.replaces);
            let reported = &controller.reported;
            let unidentified = replaces && !reported.is_identified(namespace.nsid);
            if unidentified && let Some(ends_us) = reported.look_ends_us(namespace.nsid) {
                look_ends_us = Some(look_ends_us.map_or(ends_us, |other| ends_us.min(other)));
            }
            let waits = unidentified && controller.features.acre;
            let closed = namespace
                .gate
                .closed()
                .with(Closed::WRITE_PROTECTED, protected)
                .with(Closed::GONE, reported.is_gone(namespace.nsid))
                .with(Closed::UNIDENTIFIED, unidentified)
                .with(Closed::UNIDENTIFIED_WAITS, waits)
                .with(
                    Closed::RESERVED_FOR_READ,
                    reserved.has(Closed::RESERVED_FOR_READ),
                )
                .with(
                    Closed::RESERVED_FOR_WRITE,
                    reserved.has(Closed::RESERVED_FOR_WRITE),
                )
                .with(Closed::INACCESSIBLE, state == AnaState::INACCESSIBLE)
                .with(Closed::PERSISTENT_LOSS, state == AnaState::PERSISTENT_LOSS)
                .with(Closed::TRANSITION, state == AnaState::CHANGE);
            namespace.gate.set(closed);
        }
        if let Some(controller) = self.controllers.get_mut(&id) {
            controller.look_ends_us = look_ends_us;
        }
    }

    fn end_where(
        &mut self,
        why: DisconnectReason,
        ends: impl Fn(ControllerId, &crate::Association) -> bool,
    ) {
        let ending: Vec<ControllerId> = self
            .controllers
            .values()
            .filter(|controller| ends(controller.id, &controller.association))
            .map(|controller| controller.id)
            .collect();
        for id in ending {
            self.end_association(id, why);
        }
    }

    fn check_ports(&self, ports: &BTreeSet<PortId>) -> Result<(), ConfigError> {
        match ports.iter().find(|id| !self.ports.contains_key(id)) {
            Some(id) => Err(unknown_port(*id)),
            None => Ok(()),
        }
    }

    pub(super) fn subsystem_mut(&mut self, subnqn: &Nqn) -> Result<&mut Subsystem, ConfigError> {
        self.subsystems
            .get_mut(subnqn)
            .ok_or_else(|| unknown_subsystem(subnqn))
    }

    pub(super) fn namespace_mut(
        &mut self,
        subnqn: &Nqn,
        nsid: u32,
    ) -> Result<&mut NamespaceConfig, ConfigError> {
        self.subsystem_mut(subnqn)?
            .namespaces
            .get_mut(&nsid)
            .ok_or_else(|| unknown_namespace(nsid))
    }
}

pub(super) fn unknown_port(id: PortId) -> ConfigError {
    ConfigError::Unknown {
        what: "port",
        name: id.0.to_string(),
    }
}

fn unknown_subsystem(subnqn: &Nqn) -> ConfigError {
    ConfigError::Unknown {
        what: "subsystem",
        name: subnqn.as_str().into(),
    }
}

fn unknown_namespace(nsid: u32) -> ConfigError {
    ConfigError::Unknown {
        what: "namespace",
        name: nsid.to_string(),
    }
}
