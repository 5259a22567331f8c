//! Reservations that persist through power loss: what the driver keeps of a namespace, and what it
//! finds. NVMe Base 2.1, section 8.1.22.

use alloc::collections::BTreeMap;

use capstan_nvme_proto::reservation::ReservationType;
use uuid::Uuid;

use crate::bounds::REGISTRANTS_MAX;

/// Registrants and reservation of a namespace whose state they persist by (PTPLS) is 1.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct KeptReservations {
    /// GEN of Reservation Report.
    pub generation: u32,
    /// Type of the reservation, and the Host Identifier of the host that acquired it.
    pub held: Option<(ReservationType, [u8; 16])>,
    /// Reservation key of each registrant, by Host Identifier.
    pub registrants: BTreeMap<[u8; 16], u64>,
    /// What was kept once is not known any more, and no host has cleared it since
    /// ([`Persistence::Unknown`]).
    pub is_unknown: bool,
}

impl KeptReservations {
    /// Whether commands could have led to it.
    ///
    /// # Errors
    /// What contradicts that.
    pub fn check(&self) -> Result<(), InconsistentReservations> {
        if self.registrants.len() > REGISTRANTS_MAX {
            return Err(InconsistentReservations::TooMany {
                registrants: self.registrants.len(),
            });
        }
        let Some((rtype, holder)) = self.held else {
            return Ok(());
        };
        if self.is_unknown {
            return Err(InconsistentReservations::Holder);
        }
        if !matches!(rtype.0, 1..=6) {
            return Err(InconsistentReservations::Type { rtype: rtype.0 });
        }
        // Of the all registrants types the one that acquired it may have gone.
        let is_held = match super::is_all_registrants(rtype) {
            true => !self.registrants.is_empty(),
            false => self.registrants.contains_key(&holder),
        };
        match is_held {
            true => Ok(()),
            false => Err(InconsistentReservations::Holder),
        }
    }
}

/// Why [`KeptReservations`] are none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum InconsistentReservations {
    /// More registrants than there can be.
    #[error("{registrants} registrants, expected at most {REGISTRANTS_MAX}")]
    TooMany {
        /// So many.
        registrants: usize,
    },
    /// No type of reservation.
    #[error("a reservation of type {rtype}, expected 1 to 6")]
    Type {
        /// RTYPE.
        rtype: u8,
    },
    /// A reservation that no registrant holds.
    #[error("a reservation whose holder is not registered, expected one of the registrants")]
    Holder,
}

/// Whether reservations of a namespace can persist through power loss, and those that have.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub enum Persistence {
    /// They cannot: what the namespace is on does not last, or there is nowhere to keep them.
    #[default]
    None,
    /// They can, and none have.
    Ready,
    /// These have.
    Found(KeptReservations),
    /// Some may have, and it is not known which. The namespace is taken for one that an absent host
    /// has reserved with Exclusive Access: its holder may rely on that no other host reads or
    /// writes, and would not hear that all hosts were let in. A host that registers and clears ends
    /// it, as it may end any reservation.
    Unknown,
}

impl Persistence {
    /// RESCAP bit 0.
    pub(crate) fn is_supported(&self) -> bool {
        !matches!(self, Self::None)
    }
}

/// What is to be on stable storage before hosts hear of success.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReservationsToKeep {
    /// Namespace UUID.
    pub uuid: Uuid,
    /// `None`: nothing persists any more, and what was kept is to be forgotten.
    pub state: Option<KeptReservations>,
}
