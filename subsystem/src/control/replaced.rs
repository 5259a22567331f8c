//! Namespaces in the place of others. A host that goes on with what was there must not reach them:
//! the specification has no generation of an NSID, so what counts is what the host has been told in
//! its association. Other programs, and other paths, of the same host know nothing of that.

use capstan_nvme_proto::async_event::AsyncEvent;
use capstan_nvme_proto::command::Identify;
use capstan_nvme_proto::identify::Cns;

use super::Target;
use crate::action::ControllerId;

impl Target {
    /// A host is answered an Identify command: it knows what that says from here on.
    pub(super) fn host_is_told(&mut self, id: ControllerId, identify: &Identify) {
        let nsid = identify.nsid;
        let Some(controller) = self.controllers.get_mut(&id) else {
            return;
        };
        match identify.cns {
            Cns::ACTIVE_NAMESPACES | Cns::ACTIVE_NAMESPACES_IOCS => {
                controller.told.list_read(nsid);
                if self.show_namespaces(id) {
                    self.raise(id, AsyncEvent::NAMESPACE_ATTRIBUTE_CHANGED);
                }
            }
            // The two that tell its identity.
            Cns::NAMESPACE | Cns::NAMESPACE_ID_DESCRIPTORS
                if controller.namespaces.find(nsid).is_some() =>
            {
                controller.told.identify(nsid);
                self.set_gates(id);
            }
            _ => {}
        }
    }
}
