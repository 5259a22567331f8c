//! Changes of reservations that persist through power loss: none takes effect, and none is
//! answered, before it is on stable storage. What cannot be put there has changed nothing.
//!
//! Of each namespace one set of changes is under way at most. The commands that come meanwhile
//! wait, and are then carried out together: each is answered after two writes at most.

use alloc::boxed::Box;
use alloc::collections::{BTreeSet, VecDeque};
use alloc::vec::Vec;

use capstan_nvme_proto::command::SetFeatures;
use capstan_nvme_proto::error::{CommandError, ErrorLocation};
use capstan_nvme_proto::features::ReservationPersistence;
use capstan_nvme_proto::nqn::Nqn;
use capstan_nvme_proto::opcode::AdminOpcode;
use capstan_nvme_proto::reservation::{
    AcquireAction, AcquireData, RegisterData, ReleaseData, ReservationAcquire, ReservationRegister,
    ReservationRelease,
};
use capstan_nvme_proto::sqe::NSID_BROADCAST;
use capstan_nvme_proto::status::Status;

use super::admin::{Executed, Execution, gone};
use super::{Subsystem, Target};
use crate::ConnId;
use crate::action::{Action, ControllerId, KeepId};
use crate::queue::Permit;
use crate::reservation::{Effects, Host, Reservation, ReservationsToKeep};

/// Names a Set Features command that waits, for one namespace or for several.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct SettingId(u64);

/// What waits for the answer to a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Asker {
    /// A reservation command of an I/O queue.
    Command { conn: ConnId, cid: u16 },
    /// A Set Features command.
    Setting(SettingId),
}

/// What a host wants of the reservations of a namespace.
#[derive(Clone, Copy, Debug)]
pub(super) enum What {
    Register(Host, ReservationRegister, RegisterData),
    Acquire(Host, ReservationAcquire, AcquireData),
    Release(Host, ReservationRelease, ReleaseData),
    /// PTPL of the feature Reservation Persistence.
    Persist(bool),
}

impl What {
    /// Changes a reservation; nothing of it where it fails.
    fn apply(&self, reservation: &mut Reservation) -> Result<Effects, CommandError> {
        match self {
            Self::Register(host, command, data) => reservation.register(*host, command, data),
            Self::Acquire(host, command, data) => reservation.acquire(*host, command, data),
            Self::Release(host, command, data) => reservation.release(*host, command, data),
            Self::Persist(persist) => {
                reservation.set_persists(*persist);
                Ok(Effects::default())
            }
        }
    }

    /// Whether it is answered only when no command of those that it preempts goes on.
    fn aborts(&self) -> bool {
        matches!(self, Self::Acquire(_, command, _)
            if command.action == AcquireAction::PreemptAndAbort)
    }
}

/// A change that waits or is under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Change {
    pub(super) by: Asker,
    pub(super) what: What,
}

/// A change that has been carried out on what is being put on stable storage.
#[derive(Debug)]
struct Done {
    by: Asker,
    result: Result<Effects, Status>,
    aborts: bool,
}

/// What the reservations of a namespace are about to become.
#[derive(Debug)]
pub(super) struct Changing {
    keep: KeepId,
    next: Box<Reservation>,
    /// What has led to it, in its order.
    done: Vec<Done>,
    /// What has come since: no more than hosts have commands outstanding.
    waiting: VecDeque<Change>,
}

/// What the driver puts on stable storage.
#[derive(Debug)]
pub(super) struct Keep {
    subnqn: Nqn,
    nsid: u32,
    /// I/O queues whose commands have led to it.
    conns: BTreeSet<ConnId>,
}

/// A Set Features command that waits.
#[derive(Debug)]
pub(super) struct Setting {
    controller: ControllerId,
    permit: Permit,
    nsid: u32,
    /// Of so many namespaces.
    left: usize,
    failed: bool,
}

impl Changing {
    /// Everything that waits for an answer.
    fn askers(&self) -> impl Iterator<Item = Asker> {
        let done = self.done.iter().map(|done| done.by);
        done.chain(self.waiting.iter().map(|change| change.by))
    }
}

impl Subsystem {
    /// Nothing is under way or waits any more for a namespace that goes. What is with the driver
    /// may be put on stable storage or not.
    pub(super) fn stop_changing(&mut self, nsid: u32) -> Vec<Asker> {
        let changing = self.changing.remove(&nsid);
        changing.iter().flat_map(Changing::askers).collect()
    }

    /// The same of all of them.
    pub(super) fn stop_all_changing(&mut self) -> Vec<Asker> {
        let changing = core::mem::take(&mut self.changing);
        changing.values().flat_map(Changing::askers).collect()
    }

    /// The reservations of one of its namespaces.
    fn reservation(&mut self, nsid: u32) -> &mut Reservation {
        self.reservations.entry(nsid).or_default()
    }
}

impl Target {
    /// Carries out a change of the reservations of a namespace. Returns whether it is answered
    /// later.
    ///
    /// # Errors
    /// It is refused, and nothing has changed.
    pub(super) fn change(
        &mut self,
        subnqn: &Nqn,
        nsid: u32,
        change: Change,
    ) -> Result<bool, CommandError> {
        let subsystem = self.subsystems.get_mut(subnqn);
        let subsystem = subsystem
            .filter(|subsystem| subsystem.namespaces.contains_key(&nsid))
            .ok_or_else(gone)?;
        if let Some(changing) = subsystem.changing.get_mut(&nsid) {
            changing.waiting.push_back(change);
            return Ok(true);
        }
        let now = subsystem.reservation(nsid);
        let mut next = Box::new(now.clone());
        let effects = change.what.apply(&mut next)?;
        let aborts = change.what.aborts();
        if next.to_keep() == now.to_keep() {
            *now = *next;
            self.spread(subnqn, nsid, &effects);
            return Ok(aborts && self.drain_preempted(change.by, subnqn, nsid, &effects.preempted));
        }
        let done = Done {
            by: change.by,
            result: Ok(effects),
            aborts,
        };
        self.keep(subnqn, nsid, next, alloc::vec![done])?;
        Ok(true)
    }

    /// Has the driver put on stable storage what the reservations of a namespace are to become.
    fn keep(
        &mut self,
        subnqn: &Nqn,
        nsid: u32,
        next: Box<Reservation>,
        done: Vec<Done>,
    ) -> Result<(), CommandError> {
        let subsystem = self.subsystems.get_mut(subnqn).ok_or_else(gone)?;
        let namespace = subsystem.namespaces.get(&nsid);
        let uuid = namespace.and_then(|namespace| namespace.identity.uuid);
        let kept = ReservationsToKeep {
            uuid: uuid.ok_or_else(gone)?,
            state: next.to_keep(),
        };
        let keep = KeepId(self.next_keep);
        self.next_keep = self.next_keep.wrapping_add(1);
        let conns = done.iter().filter_map(|done| match done.by {
            Asker::Command { conn, .. } => Some(conn),
            Asker::Setting(_) => None,
        });
        let with_driver = Keep {
            subnqn: subnqn.clone(),
            nsid,
            conns: conns.collect(),
        };
        self.keeps.insert(keep, with_driver);
        let changing = Changing {
            keep,
            next,
            done,
            waiting: VecDeque::new(),
        };
        subsystem.changing.insert(nsid, changing);
        let action = Action::KeepReservations { keep, kept };
        self.actions.push_back(action);
        Ok(())
    }

    /// Answers [`Action::KeepReservations`]: whether it is on stable storage. Where it is not, what
    /// was there before is.
    pub fn handle_reservations_kept(&mut self, keep: KeepId, succeeded: bool, now_us: u64) {
        let Some(Keep {
            subnqn,
            nsid,
            conns,
        }) = self.keeps.remove(&keep)
        else {
            return;
        };
        self.kept(&subnqn, nsid, keep, succeeded);
        for conn in conns {
            if !self.is_changing_by(conn) && self.left_changing.remove(&conn) {
                self.end_lingering(conn, now_us);
            }
        }
    }

    /// Whether a change that a command of the I/O queue `conn` has led to is with the driver.
    fn is_changing_by(&self, conn: ConnId) -> bool {
        let mut keeps = self.keeps.values();
        keeps.any(|keep| keep.conns.contains(&conn))
    }

    /// The I/O queue `conn` is gone, and no backend has a command of it. Returns whether it lingers
    /// for what is with the driver: what its host does on a new association comes behind that.
    pub(super) fn lingers_for_changes(&mut self, conn: ConnId) -> bool {
        let lingers = self.lingering.contains_key(&conn) && self.is_changing_by(conn);
        if lingers {
            self.left_changing.insert(conn);
        }
        lingers
    }

    fn kept(&mut self, subnqn: &Nqn, nsid: u32, keep: KeepId, succeeded: bool) {
        let subsystem = self.subsystems.get_mut(subnqn);
        // A namespace that went and came back meanwhile has what the driver gave with it.
        let Some(subsystem) = subsystem.filter(|of| {
            let changing = of.changing.get(&nsid);
            changing.is_some_and(|changing| changing.keep == keep)
        }) else {
            return;
        };
        let Some(changing) = subsystem.changing.remove(&nsid) else {
            return;
        };
        if succeeded {
            *subsystem.reservation(nsid) = *changing.next;
            self.carried_out(subnqn, nsid, changing.done);
        } else {
            for Done { by, .. } in changing.done {
                // Sent again, it may find storage that takes it.
                self.answer(by, Status::INTERNAL_ERROR);
            }
        }
        self.go_on(subnqn, nsid, changing.waiting);
    }

    /// Carries out what has waited, in its order.
    fn go_on(&mut self, subnqn: &Nqn, nsid: u32, waiting: VecDeque<Change>) {
        let Some(subsystem) = self.subsystems.get_mut(subnqn) else {
            return;
        };
        if waiting.is_empty() {
            return;
        }
        let now = subsystem.reservation(nsid);
        let mut next = Box::new(now.clone());
        let done: Vec<Done> = waiting
            .into_iter()
            .map(|Change { by, what }| Done {
                by,
                result: what.apply(&mut next).map_err(|error| error.status),
                aborts: what.aborts(),
            })
            .collect();
        if next.to_keep() == now.to_keep() {
            *now = *next;
            return self.carried_out(subnqn, nsid, done);
        }
        let askers: Vec<Asker> = done.iter().map(|done| done.by).collect();
        if self.keep(subnqn, nsid, next, done).is_err() {
            for by in askers {
                self.answer(by, Status::INTERNAL_ERROR);
            }
        }
    }

    /// These changes have taken effect.
    fn carried_out(&mut self, subnqn: &Nqn, nsid: u32, done: Vec<Done>) {
        for Done { by, result, aborts } in done {
            match result {
                Ok(effects) => {
                    self.spread(subnqn, nsid, &effects);
                    if !aborts || !self.drain_preempted(by, subnqn, nsid, &effects.preempted) {
                        self.answer(by, Status::SUCCESS);
                    }
                }
                Err(status) => self.answer(by, status),
            }
        }
    }

    /// Answers what has waited for a change of one namespace.
    pub(super) fn answer(&mut self, by: Asker, status: Status) {
        match by {
            Asker::Command { conn, cid } => {
                self.actions
                    .push_back(Action::CompleteIo { conn, cid, status });
            }
            Asker::Setting(id) => {
                // Its controller may be gone.
                let Some(setting) = self.settings.get_mut(&id) else {
                    return;
                };
                setting.left = setting.left.saturating_sub(1);
                setting.failed |= !status.is_success();
                if setting.left == 0
                    && let Some(setting) = self.settings.remove(&id)
                {
                    self.set(setting);
                }
            }
        }
    }

    /// A Set Features command is over.
    fn set(&mut self, setting: Setting) {
        let Setting {
            controller: id,
            permit,
            nsid,
            failed,
            ..
        } = setting;
        let Some(controller) = self.controllers.get_mut(&id) else {
            return;
        };
        let cqe = if failed {
            let error = CommandError {
                status: Status::INTERNAL_ERROR,
                location: ErrorLocation::Unspecified,
                field: "reservations that persist through power loss",
                value: nsid.into(),
                expected: "storage of the target that keeps them",
            };
            controller.fail(permit, AdminOpcode::SET_FEATURES.0, nsid, &error)
        } else {
            controller.admin.complete(permit, Status::SUCCESS, 0)
        };
        self.actions.push_back(Action::Complete {
            conn: controller.conn,
            cqe,
        });
    }

    /// The I/O queue `conn` is going: what waits of it is not carried out any more. What is with
    /// the driver takes effect when it is on stable storage.
    pub(super) fn drop_changes_of_queue(&mut self, conn: ConnId) {
        let subsystems = self.subsystems.values_mut();
        for changing in subsystems.flat_map(|of| of.changing.values_mut()) {
            let is_of = |by: Asker| matches!(by, Asker::Command { conn: of, .. } if of == conn);
            changing.waiting.retain(|change| !is_of(change.by));
        }
    }

    /// The controller is gone: its Set Features are not answered.
    pub(super) fn drop_settings(&mut self, id: ControllerId) {
        self.settings.retain(|_, setting| setting.controller != id);
    }

    /// Whether reservations of a namespace persist through power loss: PTPLS.
    pub(super) fn persists(&self, id: ControllerId, nsid: u32) -> bool {
        let controller = self.controllers.get(&id);
        let subsystem = controller.and_then(|of| self.subsystems.get(&of.association.subnqn));
        let reservation = subsystem.and_then(|of| of.reservations.get(&nsid));
        reservation.is_some_and(Reservation::persists)
    }

    /// Set Features, Reservation Persistence. NVMe Base 2.1, section 5.1.25.1.30: with the
    /// broadcast NSID, that of all namespaces which can persist their reservations. Of several,
    /// some may have been changed when it fails.
    pub(super) fn set_persistence(
        &mut self,
        set: &SetFeatures,
        execution: &mut Execution<'_>,
    ) -> Result<Executed, CommandError> {
        let id = execution.id;
        let controller = self.controllers.get(&id).ok_or_else(gone)?;
        let persist = ReservationPersistence::decode(set.cdw11).persist_through_power_loss;
        let all = set.nsid == NSID_BROADCAST;
        let meant = controller.namespaces.iter();
        let meant = meant.filter(|namespace| all || namespace.nsid == set.nsid);
        let can_persist = meant.filter(|namespace| namespace.persistent);
        let nsids: Vec<u32> = can_persist.map(|namespace| namespace.nsid).collect();
        if persist && nsids.is_empty() {
            return Err(CommandError::invalid_field(
                "PTPL",
                44,
                1,
                "0 (RESCAP does not offer persistence through power loss)",
            ));
        }
        let subnqn = controller.association.subnqn.clone();
        let setting = SettingId(self.next_keep);
        self.next_keep = self.next_keep.wrapping_add(1);
        let change = Change {
            by: Asker::Setting(setting),
            what: What::Persist(persist),
        };
        let mut left = 0_usize;
        for nsid in nsids {
            left = left.saturating_add(self.change(&subnqn, nsid, change)?.into());
        }
        if left == 0 {
            return Ok(Executed::OK);
        }
        let permit = execution.permit.take().ok_or_else(gone)?;
        let waits = Setting {
            controller: id,
            permit,
            nsid: set.nsid,
            left,
            failed: false,
        };
        self.settings.insert(setting, waits);
        Ok(Executed::Held)
    }
}
