//! What waits until data is on the medium: the end of a shutdown, and write protection.

use alloc::sync::Arc;
use alloc::vec::Vec;

use capstan_nvme_proto::async_event::AsyncEvent;
use capstan_nvme_proto::command::SetFeatures;
use capstan_nvme_proto::error::{CommandError, ErrorLocation};
use capstan_nvme_proto::features::WriteProtectionState;
use capstan_nvme_proto::nqn::Nqn;
use capstan_nvme_proto::status::Status;

use super::Target;
use super::admin::{Executed, Execution, gone};
use crate::action::{Action, Association, ControllerId, FlushId};
use crate::controller::{ControllerEvent, ControllerState};
use crate::namespace::BackendId;
use crate::queue::Permit;

/// What happens when a flush has ended.
#[derive(Debug)]
pub(super) enum FlushFor {
    /// The controller's shutdown is complete.
    Shutdown(ControllerId),
    /// The Set Features command is answered.
    WriteProtect(WriteProtect),
}

/// A Set Features command that write protects a namespace, and waits.
#[derive(Debug)]
pub(super) struct WriteProtect {
    controller: ControllerId,
    permit: Permit,
    association: Arc<Association>,
    nsid: u32,
    /// What is flushed, where it has a volatile write cache.
    volatile: Option<BackendId>,
}

impl FlushFor {
    /// Whether it goes on when its controller is gone.
    pub(super) fn is_for_subsystem(&self) -> bool {
        match self {
            Self::Shutdown(_) => false,
            Self::WriteProtect(_) => true,
        }
    }

    fn controller(&self) -> ControllerId {
        match self {
            Self::Shutdown(controller) => *controller,
            Self::WriteProtect(WriteProtect { controller, .. }) => *controller,
        }
    }
}

impl Target {
    /// Asks the driver to flush `backends`.
    pub(super) fn flush(&mut self, backends: Vec<BackendId>, then: FlushFor) {
        let flush = FlushId(self.next_flush);
        self.next_flush = self.next_flush.wrapping_add(1);
        self.flushes.insert(flush, then);
        self.actions.push_back(Action::Flush { flush, backends });
    }

    /// Answers [`Action::Flush`]: whether everything written to its backends is on the medium.
    pub fn handle_flushed(&mut self, flush: FlushId, succeeded: bool, _now_us: u64) {
        match self.flushes.remove(&flush) {
            Some(FlushFor::Shutdown(id)) => {
                let shutting_down = self
                    .controllers
                    .get(&id)
                    .is_some_and(|controller| controller.state == ControllerState::ShuttingDown);
                if shutting_down {
                    // A shutdown that could not save the data is never complete: the host sees
                    // CSTS.CFS instead of CSTS.SHST.
                    let event = if succeeded {
                        ControllerEvent::ShutdownDone
                    } else {
                        ControllerEvent::Failed
                    };
                    // Both are legal from ShuttingDown, which was just asked.
                    let _illegal = self.apply(id, event);
                }
            }
            Some(FlushFor::WriteProtect(then)) => self.write_protected(then, succeeded),
            None => {}
        }
    }

    /// No command that was accepted before can change the namespace any more.
    pub(super) fn nothing_changes(&mut self, then: WriteProtect) {
        match then.volatile {
            Some(backend) => self.flush(alloc::vec![backend], FlushFor::WriteProtect(then)),
            None => self.write_protected(then, true),
        }
    }

    fn write_protected(&mut self, then: WriteProtect, succeeded: bool) {
        let WriteProtect {
            controller: id,
            permit,
            association,
            nsid,
            ..
        } = then;
        if !succeeded {
            self.set_protected(&association.subnqn, nsid, false, None);
        }
        let Some(controller) = self.controllers.get_mut(&id) else {
            return;
        };
        let cqe = if succeeded {
            controller.admin.complete(permit, Status::SUCCESS, 0)
        } else {
            let error = CommandError {
                status: Status::INTERNAL_ERROR,
                location: ErrorLocation::Unspecified,
                field: "flush before write protection",
                value: nsid.into(),
                expected: "a medium that takes the data",
            };
            controller.fail(permit, SET_FEATURES, nsid, &error)
        };
        self.actions.push_back(Action::Complete {
            conn: controller.conn,
            cqe,
        });
    }

    /// The controller is gone: its shutdown is not waited for any more. What it set in motion for
    /// its subsystem goes on.
    pub(super) fn drop_flushes(&mut self, id: ControllerId) {
        self.flushes
            .retain(|_, then| then.is_for_subsystem() || then.controller() != id);
    }

    /// Set Features, Namespace Write Protection Config. NVMe Base 2.1, section 8.1.16: what was
    /// written before is on the medium before the command completes, and nothing changes after
    /// that. So the gates are closed first; then what had passed them is waited for, and then
    /// flushed.
    pub(super) fn set_write_protection(
        &mut self,
        set: &SetFeatures,
        execution: &mut Execution<'_>,
    ) -> Result<Executed, CommandError> {
        let id = execution.id;
        let controller = self.controllers.get(&id).ok_or_else(gone)?;
        let nsid = set.nsid;
        let namespace = controller.feature_namespace(nsid)?;
        let state = WriteProtectionState::decode(set.cdw11);
        let protect = match state {
            WriteProtectionState::PROTECTED => true,
            WriteProtectionState::NOT_PROTECTED => false,
            other => {
                return Err(CommandError::invalid_field(
                    "WPS",
                    44,
                    other.0.into(),
                    "0 or 1 (Identify Controller NWPC)",
                ));
            }
        };
        if namespace.geometry.read_only {
            // The operator's word stands.
            return match protect {
                true => Ok(Executed::OK),
                false => Err(CommandError {
                    status: Status::FEATURE_NOT_CHANGEABLE.dnr(),
                    ..CommandError::invalid_field("WPS", 44, 0, "1: the namespace is read-only")
                }),
            };
        }
        let (backend, volatile) = (namespace.backend, namespace.geometry.volatile_write_cache);
        let association = Arc::clone(&controller.association);
        self.set_protected(&association.subnqn, nsid, protect, Some(id));
        if !protect {
            return Ok(Executed::OK);
        }
        let Some(permit) = execution.permit.take() else {
            return Err(gone());
        };
        let then = WriteProtect {
            controller: id,
            permit,
            association: Arc::clone(&association),
            nsid,
            volatile: volatile.then_some(backend),
        };
        self.drain_writes(&association.subnqn, nsid, then);
        Ok(Executed::Held)
    }

    /// Sets the write protection of a namespace for every controller, and tells all but `by`.
    fn set_protected(&mut self, subnqn: &Nqn, nsid: u32, protect: bool, by: Option<ControllerId>) {
        let Some(subsystem) = self.subsystems.get_mut(subnqn) else {
            return;
        };
        let changed = if protect {
            subsystem.protected.insert(nsid)
        } else {
            subsystem.protected.remove(&nsid)
        };
        if !changed {
            return;
        }
        for id in self.controllers_of(subnqn) {
            self.set_gates(id);
            let Some(controller) = self.controllers.get_mut(&id) else {
                continue;
            };
            if Some(id) != by && controller.namespaces.find(nsid).is_some() {
                controller.changed.add(&[nsid]);
                self.raise(id, AsyncEvent::NAMESPACE_ATTRIBUTE_CHANGED);
            }
        }
    }
}

const SET_FEATURES: u8 = capstan_nvme_proto::opcode::AdminOpcode::SET_FEATURES.0;
