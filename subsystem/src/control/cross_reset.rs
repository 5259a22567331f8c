//! Cross-Controller Reset: a host that has lost a controller has it reset through another one, and
//! is told when that is over. NVMe Base 2.3, section 5.4.3.
//!
//! It is over when every connection of the impacted controller is gone and none of its commands is
//! on a backend any more. Until then a controller that has ended stays addressable by what it left
//! there.

use alloc::vec::Vec;

use capstan_nvme_proto::async_event::AsyncEvent;
use capstan_nvme_proto::command::CrossControllerReset;
use capstan_nvme_proto::error::{CommandError, ErrorLocation};
use capstan_nvme_proto::status::Status;

use super::{Executed, Execution, Target, gone};
use crate::action::{Association, ControllerId, DisconnectReason};
use crate::bounds::{CROSS_RESETS_KEPT, CROSS_RESETS_MAX};
use crate::controller::{Controller, ControllerKind, Instance};

/// Byte of the submission queue entry where ICID starts.
const ICID_BYTE: u8 = 40;

/// What a controller was asked to reset: the Cross-Controller Reset log page, oldest first.
#[derive(Default, Debug)]
pub(crate) struct CrossResets(Vec<CrossReset>);

/// One reset.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CrossReset {
    pub(crate) icid: u16,
    impacted: ControllerId,
    pub(crate) instance: Instance,
    pub(crate) over: bool,
}

impl CrossResets {
    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = &CrossReset> {
        self.0.iter()
    }

    /// Forgets what is over among the entries that `told` names by their index.
    pub(crate) fn remove_completed(&mut self, told: impl Fn(usize) -> bool) {
        let mut index = 0;
        self.0.retain(|reset| {
            let keep = !(reset.over && told(index));
            index = index.saturating_add(1);
            keep
        });
    }

    fn in_progress(&self) -> usize {
        self.0.iter().filter(|reset| !reset.over).count()
    }
}

impl Target {
    pub(super) fn cross_controller_reset(
        &mut self,
        reset: CrossControllerReset,
        execution: &Execution<'_>,
    ) -> Result<Executed, CommandError> {
        let own = self.controllers.get(&execution.id).ok_or_else(gone)?;
        if own.kind == ControllerKind::Discovery {
            return Err(CommandError::invalid_opcode("Opcode", 0, 0x38));
        }
        let CrossControllerReset { icid, ciu, cirn } = reset;
        let instance = Instance { ciu, cirn };
        let refused =
            |expected| CommandError::invalid_field("ICID", ICID_BYTE, icid.into(), expected);
        if icid == own.association.cntlid {
            return Err(refused("another controller than the one that is asked"));
        }
        let of_subsystem = |association: &Association| {
            association.subnqn == own.association.subnqn && association.cntlid == icid
        };
        let living = self.controllers.values().find(|controller| {
            of_subsystem(&controller.association) && controller.instance == Some(instance)
        });
        let living = living.map(|controller| (controller.id, &controller.association));
        let left = || {
            let mut left = self.lingering.values();
            left.find(|left| of_subsystem(&left.association) && left.instance == Some(instance))
                .map(|left| (left.controller, &left.association))
        };
        let Some((impacted, association)) = living.or_else(left) else {
            // That instance is no more, or never was: nothing of it can reach a medium.
            return Ok(Executed::result(CrossControllerReset::completion_dw0(true)));
        };
        if association.hostnqn != own.association.hostnqn
            || association.hostid != own.association.hostid
        {
            return Err(refused("a controller of this host"));
        }
        let is_same = |other: &&CrossReset| {
            !other.over && other.impacted == impacted && other.instance == instance
        };
        let refused = |status| CommandError {
            status,
            location: ErrorLocation::sqe(ICID_BYTE),
            field: "ICID",
            value: icid.into(),
            expected: "a controller that is not being reset, and room for another reset",
        };
        if own.resets.iter().find(is_same).is_some() {
            return Err(refused(Status::CROSS_CONTROLLER_RESET_IN_PROGRESS));
        }
        if own.resets.in_progress() >= usize::from(CROSS_RESETS_MAX) {
            return Err(refused(Status::CROSS_CONTROLLER_RESET_LIMIT_EXCEEDED));
        }
        if own.resets.iter().len() >= CROSS_RESETS_KEPT {
            return Err(refused(Status::CROSS_CONTROLLER_RESET_LOG_PAGE_FULL));
        }
        let why = DisconnectReason::CrossControllerReset {
            cntlid: own.association.cntlid,
        };
        if let Some(own) = self.controllers.get_mut(&execution.id) {
            own.resets.0.push(CrossReset {
                icid,
                impacted,
                instance,
                over: false,
            });
        }
        // One that left commands behind has ended already.
        if self.instance_of(impacted) == Some(instance) {
            self.end_association(impacted, why);
        }
        Ok(Executed::result(CrossControllerReset::completion_dw0(
            false,
        )))
    }

    /// What resets the controller of the Admin queue `conn`.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn reset_of(&self, conn: crate::ConnId) -> Option<CrossControllerReset> {
        let mut controllers = self.controllers.values();
        let controller = controllers.find(|controller| controller.conn == conn)?;
        let Instance { ciu, cirn } = controller.instance?;
        let icid = controller.association.cntlid;
        Some(CrossControllerReset { icid, ciu, cirn })
    }

    fn instance_of(&self, id: ControllerId) -> Option<Instance> {
        self.controllers.get(&id)?.instance
    }

    /// Tells of resets that are over: a connection has gone, or its last command is off its
    /// backend.
    pub(super) fn settle_resets(&mut self) {
        let waits = |controller: &Controller| controller.resets.in_progress() != 0;
        if !self.controllers.values().any(waits) {
            return;
        }
        let living = self.controllers.values();
        let living = living.filter_map(|controller| Some((controller.id, controller.instance?)));
        let left = self.lingering.values();
        let left = left.filter_map(|left| Some((left.controller, left.instance?)));
        let there: Vec<(ControllerId, Instance)> = living.chain(left).collect();
        let mut told = Vec::new();
        for controller in self.controllers.values_mut() {
            let mut over = false;
            for reset in controller.resets.0.iter_mut().filter(|reset| !reset.over) {
                reset.over = !there.contains(&(reset.impacted, reset.instance));
                over |= reset.over;
            }
            if over {
                told.push(controller.id);
            }
        }
        for id in told {
            self.raise(id, AsyncEvent::CROSS_CONTROLLER_RESET_COMPLETED);
        }
    }

    /// What tells an instance of a controller from every other: never the same again, in this
    /// process or the next one.
    pub(super) fn next_instance(&mut self, before: Option<u8>) -> Instance {
        let [one, two] = self.config.seed;
        self.instances = self.instances.wrapping_add(1);
        let cirn = mixed(mixed(self.instances.wrapping_add(one)) ^ two);
        let [first, ..] = mixed(cirn ^ one).to_le_bytes();
        let ciu = before.map_or(first, |before| before.wrapping_add(1));
        Instance {
            // CIU is never 0.
            ciu: ciu.max(1),
            cirn,
        }
    }
}

/// A bijection in which every bit of the result depends on every bit of `value` (the finalizer of
/// SplitMix64).
fn mixed(value: u64) -> u64 {
    let value = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let value = (value ^ value.wrapping_shr(30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ value.wrapping_shr(27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ value.wrapping_shr(31)
}
