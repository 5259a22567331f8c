//! Namespaces in the place of others. A host that goes on with what was there must not reach them:
//! the specification has no generation of an NSID, so what counts is what the host has been told.

use capstan_nvme_proto::async_event::AsyncEvent;
use capstan_nvme_proto::command::Identify;
use capstan_nvme_proto::identify::Cns;

use super::Target;
use crate::action::{Association, ControllerId};
use crate::bounds::IDENTIFYING_HOSTS_MAX;
use crate::namespace::GoneNamespaces;

impl Target {
    /// What a host that connects now may take for something else.
    pub(super) fn unidentified(&self, association: &Association) -> GoneNamespaces {
        let mut gone = GoneNamespaces::default();
        let subsystem = self.subsystems.get(&association.subnqn);
        for (nsid, hosts) in subsystem.into_iter().flat_map(|s| &s.replaced) {
            if !hosts.contains(&association.hostid) {
                gone.must_be_identified(*nsid);
            }
        }
        gone
    }

    /// A host is answered an Identify command: it knows what that says from here on.
    pub(super) fn host_is_told(&mut self, id: ControllerId, identify: &Identify) {
        let nsid = identify.nsid;
        let Some(controller) = self.controllers.get_mut(&id) else {
            return;
        };
        match identify.cns {
            Cns::ACTIVE_NAMESPACES | Cns::ACTIVE_NAMESPACES_IOCS => {
                controller.gone.list_read(nsid);
                if self.show_namespaces(id) {
                    self.raise(id, AsyncEvent::NAMESPACE_ATTRIBUTE_CHANGED);
                }
            }
            // The two that tell its identity.
            Cns::NAMESPACE | Cns::NAMESPACE_ID_DESCRIPTORS => {
                if controller.namespaces.find(nsid).is_none() || !controller.gone.identified(nsid) {
                    return;
                }
                let association = &controller.association;
                let subsystem = self.subsystems.get_mut(&association.subnqn);
                if let Some(replaced) = subsystem.map(|subsystem| &mut subsystem.replaced)
                    && let Some(hosts) = replaced.get_mut(&nsid)
                {
                    hosts.insert(association.hostid);
                    if hosts.len() >= IDENTIFYING_HOSTS_MAX {
                        replaced.remove(&nsid);
                    }
                }
                self.set_gates(id);
            }
            _ => {}
        }
    }
}
