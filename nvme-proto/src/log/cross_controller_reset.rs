//! Cross-Controller Reset (LID 1Eh).
//!
//! Source: NVMe Base 2.3, section 5.2.12.3.1 (Cross-Controller Reset log page).

use core::mem::offset_of;

use bitflags::bitflags;
use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::macros::open_enum;

/// Most entries of the page: its 4096 bytes hold a head and 511 entries of 8 bytes.
pub const CROSS_CONTROLLER_RESETS_MAX: usize = 511;

/// Bit 0 of the Log Specific Parameter of Get Log Page for this page: RMC, Remove Completed. What
/// is no more in progress is told once and then removed.
pub const LSP_REMOVE_COMPLETED: u8 = 1;

open_enum! {
    /// CCRS, Cross-Controller Reset Status.
    #[derive(Unaligned)]
    pub struct CrossControllerResetStatus(u8) {
        IN_PROGRESS = 0x00 => "In progress",
        SUCCESSFUL = 0x01 => "Successful",
        FAILED = 0x02 => "Failed",
    }
}

bitflags! {
    /// CCRF, Cross-Controller Reset Flags.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct CrossControllerResetFlags: u8 {
        /// V: the impacted controller was found by what the command named.
        const VALIDATED = 1 << 0;
        /// CLRI: a Controller Level Reset of the impacted controller was initiated.
        const RESET_INITIATED = 1 << 1;
    }
}

/// Head of the page, 8 bytes. The entries follow it.
#[repr(C)]
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
pub struct CrossControllerResetLogHeader {
    /// NE, Number of Entries.
    pub entries: U16,
    reserved2: [u8; 6],
}

/// An entry: one reset, 8 bytes.
#[repr(C)]
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
pub struct CrossControllerResetEntry {
    /// ICID, Impacted Controller Identifier.
    pub icid: U16,
    /// CIU, Controller Instance Uniquifier of the impacted controller.
    pub ciu: u8,
    reserved3: u8,
    /// ACID, Alternate Controller Identifier: the controller that was asked for the reset.
    pub acid: U16,
    /// How far it is.
    pub status: CrossControllerResetStatus,
    /// CCRF: see [`CrossControllerResetFlags`].
    pub flags: u8,
}

const _: () = {
    assert!(size_of::<CrossControllerResetLogHeader>() == 8);
    assert!(align_of::<CrossControllerResetLogHeader>() == 1);
    assert!(size_of::<CrossControllerResetEntry>() == 8);
    assert!(align_of::<CrossControllerResetEntry>() == 1);
    assert!(offset_of!(CrossControllerResetEntry, ciu) == 2);
    assert!(offset_of!(CrossControllerResetEntry, acid) == 4);
    assert!(offset_of!(CrossControllerResetEntry, status) == 6);
    assert!(offset_of!(CrossControllerResetEntry, flags) == 7);
};

impl CrossControllerResetLogHeader {
    /// A head, its reserved bytes zero.
    #[must_use]
    pub fn new(entries: u16) -> Self {
        Self {
            entries: entries.into(),
            ..Self::new_zeroed()
        }
    }

    /// The head and the entries in the data of the command; `None` when there are fewer than 8
    /// bytes. There are as many entries as are whole in the data, and no more than the head says:
    /// with fewer than it says the data was too short, and the page is to be read again.
    #[must_use]
    pub fn parse(data: &[u8]) -> Option<(&Self, &[CrossControllerResetEntry])> {
        let (header, rest) = Self::ref_from_prefix(data).ok()?;
        let whole = rest
            .len()
            .checked_div(CrossControllerResetEntry::SIZE_BYTES)?;
        let count = whole.min(usize::from(header.entries.get()));
        let (entries, _) =
            <[CrossControllerResetEntry]>::ref_from_prefix_with_elems(rest, count).ok()?;
        Some((header, entries))
    }
}

impl CrossControllerResetEntry {
    /// Bytes of an entry.
    pub const SIZE_BYTES: usize = 8;

    /// An entry, its reserved byte zero.
    #[must_use]
    pub fn new(
        icid: u16,
        ciu: u8,
        acid: u16,
        status: CrossControllerResetStatus,
        flags: CrossControllerResetFlags,
    ) -> Self {
        Self {
            icid: icid.into(),
            ciu,
            acid: acid.into(),
            status,
            flags: flags.bits(),
            ..Self::new_zeroed()
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    fn entry(icid: u16) -> CrossControllerResetEntry {
        CrossControllerResetEntry::new(
            icid,
            0xFE,
            0x1122,
            CrossControllerResetStatus::SUCCESSFUL,
            CrossControllerResetFlags::all(),
        )
    }

    #[test]
    fn entries_follow_the_head() {
        let mut page = CrossControllerResetLogHeader::new(2).as_bytes().to_vec();
        page.extend_from_slice([entry(0x3344), entry(5)].as_bytes());
        assert_eq!(page[..8], [2, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(page[8..16], [0x44, 0x33, 0xFE, 0, 0x22, 0x11, 1, 3]);
        let (header, entries) = CrossControllerResetLogHeader::parse(&page).expect("a head");
        assert_eq!(header.entries.get(), 2);
        assert_eq!(entries, [entry(0x3344), entry(5)]);
    }

    #[test]
    fn a_page_cut_short_gives_what_is_whole() {
        let mut page = CrossControllerResetLogHeader::new(u16::MAX)
            .as_bytes()
            .to_vec();
        page.extend_from_slice(entry(1).as_bytes());
        page.extend_from_slice(&[0xEE; 7]);
        let icids = |data: &[u8]| -> Option<Vec<u16>> {
            let (_, entries) = CrossControllerResetLogHeader::parse(data)?;
            Some(entries.iter().map(|entry| entry.icid.get()).collect())
        };
        assert_eq!(icids(&page), Some([1].to_vec()));
        assert_eq!(icids(&page[..15]), Some(Vec::new()));
        assert_eq!(icids(&page[..7]), None);
    }

    #[test]
    fn the_largest_page_is_4096_bytes() {
        let entries = CROSS_CONTROLLER_RESETS_MAX * CrossControllerResetEntry::SIZE_BYTES;
        assert_eq!(size_of::<CrossControllerResetLogHeader>() + entries, 4096);
    }
}
