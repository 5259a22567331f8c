//! Namespaces in the place of others. A host that goes on with what was there must not reach them:
//! the specification has no generation of an NSID, so what counts is what the host has been told in
//! its association. Other programs, and other paths, of the same host know nothing of that.

use alloc::vec::Vec;

use capstan_nvme_proto::async_event::AsyncEvent;
use capstan_nvme_proto::command::Identify;
use capstan_nvme_proto::identify::Cns;

use super::Target;
use crate::action::ControllerId;
use crate::reported::Reported;

impl Target {
    /// A host is answered an Identify command: it knows what that says from here on.
    pub(super) fn note_reported(&mut self, id: ControllerId, identify: &Identify, now_us: u64) {
        let nsid = identify.nsid;
        let Some(controller) = self.controllers.get_mut(&id) else {
            return;
        };
        match identify.cns {
            Cns::ACTIVE_NAMESPACES | Cns::ACTIVE_NAMESPACES_IOCS => {
                controller.reported.list_read(nsid);
                if self.show_namespaces(id) {
                    self.raise(id, AsyncEvent::NAMESPACE_ATTRIBUTE_CHANGED);
                }
            }
            cns => {
                let Some(reported) = Reported::by(cns) else {
                    return;
                };
                if controller.namespaces.find(nsid).is_some() {
                    let has_io_queues = !controller.io_queues.is_empty();
                    controller
                        .reported
                        .look(nsid, reported, has_io_queues, now_us);
                    self.set_gates(id);
                }
            }
        }
    }

    /// Hosts that have looked at a namespace have found out by now which it is.
    pub(super) fn end_looks(&mut self, now_us: u64) {
        let is_due = |at_us: Option<u64>| at_us.is_some_and(|at_us| at_us <= now_us);
        let controllers = self.controllers.values_mut();
        let due = controllers.filter(|controller| is_due(controller.look_ends_us));
        let due: Vec<ControllerId> = due
            .map(|controller| {
                controller.reported.end_looks(now_us);
                controller.id
            })
            .collect();
        for id in due {
            self.set_gates(id);
        }
    }
}
