//! What an operator is told of hosts, ports and namespaces, and associations that it ends.

use core::net::SocketAddr;

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use capstan_nvme_proto::nqn::{HostId, Nqn};
use capstan_nvme_proto::reservation::ReservationType;

use super::Target;
use crate::ConnId;
use crate::action::{Association, DisconnectReason};
use crate::config::{NamespaceConfig, PortConfig, Transport};
use crate::controller::{Controller, ControllerKind};
use crate::counters::QueueCounters;

/// An association of a host, those of discovery left out.
#[derive(Debug)]
pub struct AssociationReport<'t> {
    /// The host, the subsystem and the controller.
    pub association: &'t Association,
    /// What its queues are reached by.
    pub transport: Transport,
    /// The address by which the host reached the port.
    pub local: SocketAddr,
    /// I/O queues.
    pub io_queues: usize,
    /// What it has read and written on the I/O queues that it has.
    pub counters: QueueCounters,
}

/// An I/O queue of a host.
#[derive(Debug)]
pub struct QueueReport<'t> {
    /// The host, the subsystem and the controller.
    pub association: &'t Association,
    /// What it is reached by.
    pub transport: Transport,
    /// Its connection.
    pub conn: ConnId,
    /// Queue Identifier.
    pub qid: u16,
    /// Entries: the most commands that are ever outstanding.
    pub entries: u16,
    /// Commands that are not completed, about now.
    pub outstanding: u64,
}

/// The reservations of a namespace, without the keys, which are the hosts'.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReservationsReport {
    /// Type of the reservation; 0 where hosts are registered and none holds one.
    pub rtype: ReservationType,
    /// Hosts that are registered, by Host Identifier.
    pub registrants: Vec<RegistrantReport>,
    /// They persist through power loss: PTPLS.
    pub persists: bool,
    /// What was kept is not known any more: no host may use the namespace until one clears it.
    pub is_unknown: bool,
}

/// A registered host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegistrantReport {
    /// Host Identifier.
    pub host: HostId,
    /// It is a holder of the reservation.
    pub holds: bool,
}

impl Target {
    /// Every I/O queue, by controller.
    pub fn io_queue_reports(&self) -> impl Iterator<Item = QueueReport<'_>> {
        self.controllers.values().flat_map(|controller| {
            let queues = controller.io_queues.iter();
            queues.map(|(qid, record)| QueueReport {
                association: &controller.association,
                transport: controller.transport,
                conn: record.conn,
                qid: *qid,
                entries: record.entries,
                outstanding: record.shared.outstanding(),
            })
        })
    }

    /// How many Connects were refused so far, by
    /// [`RefuseReason::word`](crate::RefuseReason::word).
    #[must_use]
    pub fn refused_counts(&self) -> BTreeMap<&'static str, u64> {
        self.refused.clone()
    }

    /// How many associations have ended so far, by [`DisconnectReason::word`]; `host`: it, or the
    /// network, closed the connection. Those of discovery are left out.
    #[must_use]
    pub fn ended_counts(&self) -> BTreeMap<&'static str, u64> {
        self.ended.clone()
    }

    /// Every association, in the order of their connects.
    pub fn associations(&self) -> impl Iterator<Item = AssociationReport<'_>> {
        let controllers = self.controllers.values();
        let of_hosts = controllers.filter(|controller| controller.kind == ControllerKind::Io);
        of_hosts.map(|controller| AssociationReport {
            association: &controller.association,
            transport: controller.transport,
            local: controller.local,
            io_queues: controller.io_queues.len(),
            counters: counted(controller),
        })
    }

    /// Every port.
    pub fn ports(&self) -> impl Iterator<Item = &PortConfig> {
        self.ports.values()
    }

    /// The namespaces of a subsystem, by NSID; none where there is no such subsystem.
    pub fn namespaces(&self, subnqn: &Nqn) -> impl Iterator<Item = &NamespaceConfig> {
        let subsystem = self.subsystems.get(subnqn);
        subsystem.into_iter().flat_map(|of| of.namespaces.values())
    }

    /// The reservations of a namespace, as its operator sees them; `None` where no host has any.
    #[must_use]
    pub fn reservations(&self, subnqn: &Nqn, nsid: u32) -> Option<ReservationsReport> {
        let of = self.subsystems.get(subnqn)?.reservations.get(&nsid)?;
        let registrants = of.registrants().map(|(host, _)| RegistrantReport {
            host: HostId(*host),
            holds: of.is_holder(host),
        });
        let registrants: Vec<_> = registrants.collect();
        let is_unknown = of.is_unknown();
        (is_unknown || !registrants.is_empty()).then(|| ReservationsReport {
            rtype: of.rtype(),
            registrants,
            persists: of.persists(),
            is_unknown,
        })
    }

    /// Ends the associations that are `chosen`, those of discovery left out. Their hosts may
    /// connect again. Returns them.
    pub fn end_associations(&mut self, chosen: impl Fn(&Association) -> bool) -> Vec<Association> {
        let controllers = self.controllers.values();
        let ending: Vec<_> = controllers
            .filter(|of| of.kind == ControllerKind::Io && of.ending.is_none())
            .filter(|controller| chosen(&controller.association))
            .map(|controller| (controller.id, (*controller.association).clone()))
            .collect();
        for (id, _) in &ending {
            self.end_association(*id, DisconnectReason::Operator);
        }
        ending
            .into_iter()
            .map(|(_, association)| association)
            .collect()
    }
}

fn counted(controller: &Controller) -> QueueCounters {
    let mut sum = QueueCounters::default();
    let queues = controller.io_queues.values();
    for (_, counters) in queues.flat_map(|queue| queue.counted()) {
        sum.add(&counters);
    }
    sum
}
