//! Reservations of one namespace: who is registered, who holds it, and what that lets others do.
//! NVMe Base 2.1, section 8.1.22, and sections 7.5 to 7.8 for the commands.

mod persistence;

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use capstan_nvme_proto::error::CommandError;
use capstan_nvme_proto::log::ReservationNotificationType as Notification;
use capstan_nvme_proto::nqn::HostId;
use capstan_nvme_proto::reservation::{
    AcquireAction, AcquireData, ChangePtpl, RegisterAction, RegisterData, ReleaseAction,
    ReleaseData, ReservationAcquire, ReservationRegister, ReservationRelease, ReservationType,
};
use capstan_nvme_proto::status::Status;

use crate::bounds::REGISTRANTS_MAX;
use crate::gate::Closed;

pub use persistence::{
    InconsistentReservations, KeptReservations, Persistence, ReservationsToKeep,
};

/// A host, as reservations know it: by its Host Identifier.
pub(crate) type Host = [u8; 16];

/// The reservation of one namespace, and its registrants.
#[derive(Clone, Default, Debug)]
pub(crate) struct Reservation {
    generation: u32,
    /// Reservation key of each registered host.
    registrants: BTreeMap<Host, u64>,
    held: Option<Held>,
    /// RESCAP offers that it persists through power loss.
    can_persist: bool,
    /// It does: PTPLS.
    persists: bool,
    /// A reservation is taken to be there that is not known any more ([`Persistence::Unknown`]).
    is_unknown: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Held {
    rtype: ReservationType,
    /// Who acquired it. Of the all registrants types every registrant is a holder.
    by: Host,
}

/// What a command that succeeded means for other hosts.
#[derive(Default, PartialEq, Eq, Debug)]
pub(crate) struct Effects {
    /// Whom to notify of what.
    pub(crate) notifications: Vec<(Host, Notification)>,
    /// Who was registered and is no longer, because another host said so.
    pub(crate) preempted: Vec<Host>,
}

fn is_all_registrants(rtype: ReservationType) -> bool {
    matches!(
        rtype,
        ReservationType::WRITE_EXCLUSIVE_ALL_REGISTRANTS
            | ReservationType::EXCLUSIVE_ACCESS_ALL_REGISTRANTS
    )
}

/// Types whose registrants other than the holder may use the namespace.
fn is_shared(rtype: ReservationType) -> bool {
    is_all_registrants(rtype)
        || matches!(
            rtype,
            ReservationType::WRITE_EXCLUSIVE_REGISTRANTS_ONLY
                | ReservationType::EXCLUSIVE_ACCESS_REGISTRANTS_ONLY
        )
}

fn is_exclusive_access(rtype: ReservationType) -> bool {
    matches!(
        rtype,
        ReservationType::EXCLUSIVE_ACCESS
            | ReservationType::EXCLUSIVE_ACCESS_REGISTRANTS_ONLY
            | ReservationType::EXCLUSIVE_ACCESS_ALL_REGISTRANTS
    )
}

fn conflict() -> CommandError {
    CommandError {
        status: Status::RESERVATION_CONFLICT.dnr(),
        ..CommandError::invalid_field("reservation key", 24, 0, "the key and state that allow it")
    }
}

impl Reservation {
    /// Of a namespace that comes: what is known of it.
    pub(crate) fn new(persistence: Persistence) -> Self {
        let can_persist = persistence.is_supported();
        let kept = match persistence {
            Persistence::None | Persistence::Ready => {
                return Self {
                    can_persist,
                    ..Self::default()
                };
            }
            Persistence::Found(kept) if kept.check().is_ok() => kept,
            Persistence::Found(_) | Persistence::Unknown => KeptReservations {
                is_unknown: true,
                ..KeptReservations::default()
            },
        };
        Self {
            generation: kept.generation,
            registrants: kept.registrants,
            held: kept.held.map(|(rtype, by)| Held { rtype, by }),
            can_persist,
            persists: true,
            is_unknown: kept.is_unknown,
        }
    }

    /// Whether it persists through power loss: PTPLS.
    pub(crate) fn persists(&self) -> bool {
        self.persists
    }

    /// Sets whether it does.
    pub(crate) fn set_persists(&mut self, persists: bool) {
        self.persists = persists && self.can_persist;
    }

    /// What is to be on stable storage of it; `None`: nothing.
    pub(crate) fn to_keep(&self) -> Option<KeptReservations> {
        if self.persists {
            return Some(KeptReservations {
                generation: self.generation,
                held: self.held.map(|held| (held.rtype, held.by)),
                registrants: self.registrants.clone(),
                is_unknown: self.is_unknown,
            });
        }
        // That nothing is known ends with a Clear alone, and not with a host that wants nothing of
        // its own to persist.
        self.is_unknown.then(|| KeptReservations {
            generation: self.generation,
            is_unknown: true,
            ..KeptReservations::default()
        })
    }

    /// Generation counter: changes of registrants and preemptions.
    pub(crate) fn generation(&self) -> u32 {
        self.generation
    }

    /// Type of the reservation, [`ReservationType::NONE`] when there is none.
    pub(crate) fn rtype(&self) -> ReservationType {
        if self.is_unknown {
            return ReservationType::EXCLUSIVE_ACCESS;
        }
        self.held.map_or(ReservationType::NONE, |held| held.rtype)
    }

    /// Whether what was kept is not known any more.
    pub(crate) fn is_unknown(&self) -> bool {
        self.is_unknown
    }

    /// Registered hosts with their keys.
    pub(crate) fn registrants(&self) -> impl ExactSizeIterator<Item = (&Host, u64)> {
        self.registrants.iter().map(|(host, key)| (host, *key))
    }

    /// Whether `host` holds the reservation.
    pub(crate) fn is_holder(&self, host: &Host) -> bool {
        self.held.is_some_and(|held| {
            if is_all_registrants(held.rtype) {
                self.registrants.contains_key(host)
            } else {
                held.by == *host
            }
        })
    }

    /// What the reservation keeps `host` from. NVMe Base 2.1, section 8.1.22 (Command Behavior
    /// in the Presence of a Reservation).
    pub(crate) fn closed_for(&self, host: &Host) -> Closed {
        if self.is_unknown {
            return Closed::RESERVED_FOR_WRITE.with(Closed::RESERVED_FOR_READ, true);
        }
        let Some(Held { rtype, .. }) = self.held else {
            return Closed::default();
        };
        let is_registrant = self.registrants.contains_key(host);
        if self.is_holder(host) || is_shared(rtype) && is_registrant {
            return Closed::default();
        }
        Closed::RESERVED_FOR_WRITE.with(Closed::RESERVED_FOR_READ, is_exclusive_access(rtype))
    }

    pub(crate) fn register(
        &mut self,
        host: Host,
        command: &ReservationRegister,
        data: &RegisterData,
    ) -> Result<Effects, CommandError> {
        if command.change_ptpl == ChangePtpl::Set && !self.can_persist {
            return Err(CommandError::invalid_field(
                "CPTPL",
                43,
                0b11,
                "0 or 2 (RESCAP does not offer persistence through power loss)",
            ));
        }
        let (crkey, nrkey) = (data.crkey.get(), data.nrkey.get());
        let own = self.registrants.get(&host).copied();
        let key_matches = |own: u64| command.ignore_existing_key || own == crkey;
        let effects = match (command.action, own) {
            // Registering again with the same key changes nothing.
            (RegisterAction::Register, Some(own)) if own == nrkey => Effects::default(),
            (RegisterAction::Register, None) => self.add_registrant(host, nrkey)?,
            // With IEKEY a key is replaced whether or not there is one.
            (RegisterAction::Replace, None) if command.ignore_existing_key => {
                self.add_registrant(host, nrkey)?
            }
            (RegisterAction::Replace, Some(own)) if key_matches(own) => {
                self.registrants.insert(host, nrkey);
                Effects::default()
            }
            (RegisterAction::Unregister, Some(own)) if key_matches(own) => self.unregister(host),
            (
                RegisterAction::Register | RegisterAction::Replace | RegisterAction::Unregister,
                Some(_) | None,
            ) => return Err(conflict()),
        };
        match command.change_ptpl {
            ChangePtpl::NoChange => {}
            ChangePtpl::Clear => self.persists = false,
            ChangePtpl::Set => self.persists = true,
        }
        self.generation = self.generation.wrapping_add(1);
        Ok(effects)
    }

    fn add_registrant(&mut self, host: Host, key: u64) -> Result<Effects, CommandError> {
        if self.registrants.len() >= REGISTRANTS_MAX {
            return Err(CommandError {
                status: Status::INSUFFICIENT_RESOURCES,
                ..conflict()
            });
        }
        self.registrants.insert(host, key);
        Ok(Effects::default())
    }

    /// A host leaves. A reservation that nobody else holds ends with it.
    fn unregister(&mut self, host: Host) -> Effects {
        self.registrants.remove(&host);
        let Some(held) = self.held else {
            return Effects::default();
        };
        let ends = if is_all_registrants(held.rtype) {
            self.registrants.is_empty()
        } else {
            held.by == host
        };
        if !ends {
            return Effects::default();
        }
        self.held = None;
        self.released(held.rtype, host)
    }

    /// The registrants that a released reservation of `rtype` mattered to are told.
    fn released(&self, rtype: ReservationType, by: Host) -> Effects {
        let told = is_shared(rtype);
        Effects {
            notifications: self
                .others(by)
                .filter(|_| told)
                .map(|host| (host, Notification::RESERVATION_RELEASED))
                .collect(),
            preempted: Vec::new(),
        }
    }

    fn others(&self, host: Host) -> impl Iterator<Item = Host> {
        self.registrants
            .keys()
            .copied()
            .filter(move |other| *other != host)
    }

    pub(crate) fn acquire(
        &mut self,
        host: Host,
        command: &ReservationAcquire,
        data: &AcquireData,
    ) -> Result<Effects, CommandError> {
        refuse_iekey(command.ignore_existing_key)?;
        self.require_key(&host, data.crkey.get())?;
        let rtype = command.reservation_type;
        match command.action {
            // Its holder is not known; a Clear ends it.
            _ if self.is_unknown => Err(conflict()),
            AcquireAction::Acquire => match self.held {
                None => {
                    self.held = Some(Held { rtype, by: host });
                    Ok(Effects::default())
                }
                Some(held) if held.rtype == rtype && self.is_holder(&host) => {
                    Ok(Effects::default())
                }
                Some(_) => Err(conflict()),
            },
            AcquireAction::Preempt | AcquireAction::PreemptAndAbort => {
                self.preempt(host, rtype, data.prkey.get())
            }
        }
    }

    fn preempt(
        &mut self,
        host: Host,
        rtype: ReservationType,
        prkey: u64,
    ) -> Result<Effects, CommandError> {
        let takes_over = match self.held {
            None => false,
            Some(held) if is_all_registrants(held.rtype) => prkey == 0,
            Some(held) => self.registrants.get(&held.by) == Some(&prkey),
        };
        let everybody = takes_over && self.held.is_some_and(|held| is_all_registrants(held.rtype));
        if prkey == 0 && !takes_over {
            return Err(CommandError::invalid_field(
                "PRKEY",
                24,
                0,
                "the key of a registrant; 0 only with an all registrants reservation",
            ));
        }
        let preempted: Vec<Host> = self
            .registrants
            .iter()
            .filter(|(other, key)| **other != host && (everybody || **key == prkey))
            .map(|(other, _)| *other)
            .collect();
        // Its own key names the host among the others, unless it takes the reservation with it.
        let leaves = !takes_over && self.registrants.get(&host) == Some(&prkey);
        if preempted.is_empty() && !takes_over && !leaves {
            return Err(conflict());
        }
        for other in &preempted {
            self.registrants.remove(other);
        }
        let mut effects = Effects {
            notifications: preempted
                .iter()
                .map(|other| (*other, Notification::REGISTRATION_PREEMPTED))
                .collect(),
            preempted,
        };
        if takes_over {
            let before = self.held.replace(Held { rtype, by: host });
            // For those who stay, the reservation they knew is gone when its type changes.
            if let Some(before) = before.filter(|before| before.rtype != rtype) {
                let told = self.released(before.rtype, host);
                effects.notifications.extend(told.notifications);
            }
        } else if leaves {
            let told = self.unregister(host);
            effects.notifications.extend(told.notifications);
        }
        self.generation = self.generation.wrapping_add(1);
        Ok(effects)
    }

    pub(crate) fn release(
        &mut self,
        host: Host,
        command: &ReservationRelease,
        data: &ReleaseData,
    ) -> Result<Effects, CommandError> {
        refuse_iekey(command.ignore_existing_key)?;
        self.require_key(&host, data.crkey.get())?;
        match command.action {
            ReleaseAction::Release => {
                let Some(held) = self.held.filter(|_| self.is_holder(&host)) else {
                    // Nothing of this host's to release: success without effect.
                    return Ok(Effects::default());
                };
                if held.rtype != command.reservation_type {
                    return Err(CommandError::invalid_field(
                        "RTYPE",
                        41,
                        command.reservation_type.0.into(),
                        "the type of the reservation",
                    ));
                }
                self.held = None;
                Ok(self.released(held.rtype, host))
            }
            ReleaseAction::Clear => {
                let effects = Effects {
                    notifications: self
                        .others(host)
                        .map(|other| (other, Notification::RESERVATION_PREEMPTED))
                        .collect(),
                    preempted: Vec::new(),
                };
                self.registrants.clear();
                self.held = None;
                self.is_unknown = false;
                self.generation = self.generation.wrapping_add(1);
                Ok(effects)
            }
        }
    }

    fn require_key(&self, host: &Host, crkey: u64) -> Result<(), CommandError> {
        if self.registrants.get(host) == Some(&crkey) {
            Ok(())
        } else {
            Err(conflict())
        }
    }
}

/// Acquire and Release have no Ignore Existing Key since revision 1.3 (RESCAP bit 7).
fn refuse_iekey(ignore_existing_key: bool) -> Result<(), CommandError> {
    if ignore_existing_key {
        return Err(CommandError::invalid_field("IEKEY", 40, 1, "0"));
    }
    Ok(())
}

/// The Host Identifier of a host that may use reservations at all.
pub(crate) fn host_of(hostid: HostId) -> Result<Host, CommandError> {
    if hostid == HostId::NONE {
        return Err(CommandError {
            status: Status::HOST_IDENTIFIER_NOT_INITIALIZED.dnr(),
            ..CommandError::invalid_field("HOSTID", 0, 0, "a Host Identifier in Connect")
        });
    }
    Ok(hostid.0)
}

#[cfg(test)]
#[path = "tests/reservation_rules.rs"]
mod tests;
