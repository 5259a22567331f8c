//! Backends that have lost data which hosts were told of as stored, and those whose medium is not
//! where it belongs. What fails there fails by the driver; hosts that did not ask are told here: in
//! the SMART / Health log page, and by an event.

use alloc::vec::Vec;

use capstan_nvme_proto::async_event::AsyncEvent;
use capstan_nvme_proto::log::CriticalWarning;

use super::Target;
use crate::action::ControllerId;
use crate::namespace::BackendId;

impl Target {
    /// Says that writes which had succeeded did not reach the medium of `backend`. It stays so
    /// until [`Target::handle_loss_cleared`], or no namespace is on it any more.
    pub fn handle_data_lost(&mut self, backend: BackendId, _now_us: u64) {
        // The driver may have carried out a flush for a namespace that is gone.
        if !self.is_in_use(backend) || !self.degraded.insert(backend) {
            return;
        }
        self.warn_of_reliability();
    }

    /// Says that the operator has cleared what was lost on `backend`: what is on it stands.
    pub fn handle_loss_cleared(&mut self, backend: BackendId, _now_us: u64) {
        self.degraded.remove(&backend);
    }

    /// Says whether the medium of `backend` is where it belongs: one that was deleted or taken away
    /// is not, until it is back.
    pub fn handle_medium(&mut self, backend: BackendId, is_sound: bool, _now_us: u64) {
        let changed = if is_sound {
            self.unsound.remove(&backend);
            false
        } else {
            self.is_in_use(backend) && self.unsound.insert(backend)
        };
        if changed {
            self.warn_of_reliability();
        }
    }

    /// Says whether the medium of `backend` refuses writes although its namespace does not: its
    /// file system or device was made read-only, by the kernel after an error, say.
    pub fn handle_medium_read_only(&mut self, backend: BackendId, is_so: bool, _now_us: u64) {
        if !is_so {
            self.refuses_writes.remove(&backend);
        } else if self.is_in_use(backend) && self.refuses_writes.insert(backend) {
            // The event for reliability is that of media placed in read only mode as well.
            self.warn_of_reliability();
        }
    }

    fn warn_of_reliability(&mut self) {
        let shows = |id: &ControllerId| {
            let warning = self.critical_warning(*id);
            warning.intersects(CriticalWarning::RELIABILITY | CriticalWarning::READ_ONLY)
        };
        let concerned: Vec<ControllerId> = self.controllers.keys().copied().filter(shows).collect();
        for id in concerned {
            self.raise(id, AsyncEvent::NVM_SUBSYSTEM_RELIABILITY);
        }
    }

    /// What the SMART / Health log page warns this controller's host of.
    pub(crate) fn critical_warning(&self, id: ControllerId) -> CriticalWarning {
        let namespaces = self
            .controllers
            .get(&id)
            .map(|controller| &controller.namespaces);
        let backends = namespaces.into_iter().flat_map(|table| table.iter());
        backends.fold(CriticalWarning::empty(), |warning, namespace| {
            warning | self.critical_warning_of(namespace.backend)
        })
    }

    /// The same of one backend.
    pub(crate) fn critical_warning_of(&self, backend: BackendId) -> CriticalWarning {
        let is_unreliable = self.degraded.contains(&backend) || self.unsound.contains(&backend);
        let mut warning = CriticalWarning::empty();
        warning.set(CriticalWarning::RELIABILITY, is_unreliable);
        let is_read_only = self.refuses_writes.contains(&backend);
        warning.set(CriticalWarning::READ_ONLY, is_read_only);
        warning
    }

    /// Forgets backends that no namespace is on any more.
    pub(super) fn forget_degraded(&mut self) {
        let known = self.degraded.iter().chain(&self.unsound);
        let known = known.chain(&self.refuses_writes).copied();
        let gone: Vec<BackendId> = known.filter(|&backend| !self.is_in_use(backend)).collect();
        for backend in gone {
            self.degraded.remove(&backend);
            self.unsound.remove(&backend);
            self.refuses_writes.remove(&backend);
        }
    }

    fn is_in_use(&self, backend: BackendId) -> bool {
        let mut subsystems = self.subsystems.values();
        subsystems.any(|subsystem| {
            let mut namespaces = subsystem.namespaces.values();
            namespaces.any(|namespace| namespace.backend == backend)
        })
    }
}
