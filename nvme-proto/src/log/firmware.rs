//! Firmware Slot Information (LID 03h).

use core::mem::offset_of;

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::text::{TextField, space_padded};

/// Firmware Slot Information log page, 512 bytes. NVMe Base 2.1, section 5.1.12.
#[repr(C)]
#[derive(Clone, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct FirmwareSlotLog {
    /// AFI, Active Firmware Info: the active slot in bits 2:0, the slot of the next reset in bits
    /// 6:4 (0 for no change).
    pub afi: u8,
    reserved1: [u8; 7],
    /// FRS1 to FRS7, Firmware Revision for Slot: ASCII, padded with spaces; zeros for no slot.
    pub frs: [[u8; 8]; 7],
    reserved64: [u8; 448],
}

const _: () = {
    assert!(size_of::<FirmwareSlotLog>() == 512 && align_of::<FirmwareSlotLog>() == 1);
    assert!(offset_of!(FirmwareSlotLog, frs) == 8);
};

impl FirmwareSlotLog {
    /// One slot, active, with `revision`.
    #[must_use]
    pub fn single(revision: &str) -> Self {
        let mut log = Self {
            afi: 1,
            ..Self::new_zeroed()
        };
        let [first, ..] = &mut log.frs;
        *first = space_padded(revision);
        log
    }

    /// From the data of the command; `None` when there are fewer than 512 bytes.
    #[must_use]
    pub fn from_data(data: &[u8]) -> Option<&Self> {
        Self::ref_from_prefix(data).ok().map(|(log, _rest)| log)
    }

    /// The active slot: 1 to 7.
    #[must_use]
    pub const fn active_slot(&self) -> u8 {
        self.afi & 0b111
    }

    /// The revision in `slot` (1 to 7), without padding.
    #[must_use]
    pub fn revision(&self, slot: u8) -> Option<TextField<'_>> {
        let index = usize::from(slot).checked_sub(1)?;
        self.frs.get(index).map(|revision| TextField::new(revision))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_count_from_one() {
        let log = FirmwareSlotLog::single("0.1.0");
        assert_eq!(log.active_slot(), 1);
        assert_eq!(log.revision(1).and_then(TextField::as_str), Some("0.1.0"));
        assert_eq!(log.revision(7).and_then(TextField::as_str), Some(""));
        assert!(log.revision(0).is_none() && log.revision(8).is_none());
    }
}
