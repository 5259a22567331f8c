//! What Get LBA Status returns.
//!
//! Source: NVM Command Set 1.1, section 4.2.1 (LBA Status Descriptor List, LBA Status Descriptor
//! Entry).

use core::mem::offset_of;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::macros::open_enum;
use crate::zeroes_based;

open_enum! {
    /// ATYPE, Action Type: what a Get LBA Status command asks.
    pub struct ActionType(u8) {
        ALLOCATED = 0x02 => "Return Allocated LBAs",
        SCAN_UNRECOVERABLE = 0x10 => "Scan and return Potentially Unrecoverable LBAs",
        TRACKED_UNRECOVERABLE = 0x11 => "Return Tracked Potentially Unrecoverable LBAs",
    }
}

open_enum! {
    /// CMPC, Completion Condition: whether the list is whole.
    #[derive(Unaligned)]
    pub struct CompletionCondition(u8) {
        NOT_TOLD = 0x00 => "No indication",
        MORE = 0x01 => "There are more descriptors",
        COMPLETE = 0x02 => "Every descriptor of the range was returned",
    }
}

open_enum! {
    /// LBARS, LBA Range Status: bits 2:0 of the Status field of a descriptor.
    #[derive(Unaligned)]
    pub struct LbaRangeStatus(u8) {
        MAY_BE_UNRECOVERABLE = 0x00 => "May be unrecoverable",
        UNRECOVERABLE = 0x01 => "Unrecoverable",
        ALLOCATED = 0x02 => "Allocated",
        WRITTEN_UNCORRECTABLE = 0x03 => "Written uncorrectable",
    }
}

/// Head of the LBA Status Descriptor List, 8 bytes. The descriptors follow it.
#[repr(C)]
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
pub struct LbaStatusList {
    /// NLSD, Number of LBA Status Descriptors.
    pub descriptors: U32,
    /// CMPC.
    pub condition: CompletionCondition,
    reserved5: [u8; 3],
}

/// LBA Status Descriptor Entry, 16 bytes: some logical blocks, one behind the other.
#[repr(C)]
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
pub struct LbaStatusDescriptor {
    /// DSLBA, Descriptor Starting LBA.
    pub slba: U64,
    nlb_z: U32,
    reserved12: u8,
    /// Status.
    pub status: LbaRangeStatus,
    reserved14: [u8; 2],
}

const _: () = {
    assert!(size_of::<LbaStatusList>() == 8 && align_of::<LbaStatusList>() == 1);
    assert!(size_of::<LbaStatusDescriptor>() == 16 && align_of::<LbaStatusDescriptor>() == 1);
    assert!(offset_of!(LbaStatusList, condition) == 4);
    assert!(offset_of!(LbaStatusDescriptor, nlb_z) == 8);
    assert!(offset_of!(LbaStatusDescriptor, status) == 13);
};

impl LbaStatusList {
    /// Bytes of the head.
    pub const SIZE_BYTES: usize = 8;

    /// A head.
    #[must_use]
    pub const fn new(descriptors: u32, condition: CompletionCondition) -> Self {
        Self {
            descriptors: U32::new(descriptors),
            condition,
            reserved5: [0; 3],
        }
    }

    /// The head and the descriptors in the data of the command; `None` when there are fewer than 8
    /// bytes. There are as many descriptors as are whole in the data, and no more than the head
    /// says.
    #[must_use]
    pub fn parse(data: &[u8]) -> Option<(&Self, &[LbaStatusDescriptor])> {
        let (head, rest) = Self::ref_from_prefix(data).ok()?;
        let whole = rest.len().checked_div(LbaStatusDescriptor::SIZE_BYTES)?;
        let told = usize::try_from(head.descriptors.get()).unwrap_or(usize::MAX);
        let count = whole.min(told);
        let (descriptors, _) =
            <[LbaStatusDescriptor]>::ref_from_prefix_with_elems(rest, count).ok()?;
        Some((head, descriptors))
    }
}

impl LbaStatusDescriptor {
    /// Bytes of a descriptor.
    pub const SIZE_BYTES: usize = 16;
    /// Most logical blocks of a descriptor.
    pub const NLB_MAX: u64 = 1 << 32;

    /// `nlb` logical blocks from `slba`, 1 to [`LbaStatusDescriptor::NLB_MAX`]; the nearest of
    /// these for another count.
    #[must_use]
    pub fn new(slba: u64, nlb: u64, status: LbaRangeStatus) -> Self {
        let nlb_z = zeroes_based::to_u32(nlb.clamp(1, Self::NLB_MAX)).unwrap_or(u32::MAX);
        Self {
            slba: slba.into(),
            nlb_z: nlb_z.into(),
            reserved12: 0,
            status,
            reserved14: [0; 2],
        }
    }

    /// NLB, Number of Logical Blocks.
    #[must_use]
    pub const fn nlb(&self) -> u64 {
        zeroes_based::from_u32(self.nlb_z.get())
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    #[test]
    fn a_list_is_read_as_it_is_written_and_no_further_than_its_data() {
        let whole = LbaStatusDescriptor::new(5, 1, LbaRangeStatus::ALLOCATED);
        let most = LbaStatusDescriptor::new(u64::MAX, 1 << 32, LbaRangeStatus::ALLOCATED);
        assert_eq!((whole.nlb(), most.nlb()), (1, 1 << 32));
        assert_eq!(
            whole.as_bytes(),
            [5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0]
        );
        let head = LbaStatusList::new(2, CompletionCondition::MORE);
        assert_eq!(head.as_bytes(), [2, 0, 0, 0, 1, 0, 0, 0]);
        let mut data: Vec<u8> = Vec::new();
        data.extend(head.as_bytes());
        data.extend(whole.as_bytes());
        data.extend(most.as_bytes());
        data.extend([0xFF; 40]);
        assert_eq!(
            LbaStatusList::parse(&data),
            Some((&head, [whole, most].as_slice()))
        );
        // Cut short, and with a count that is not there.
        assert_eq!(
            LbaStatusList::parse(&data[..39]),
            Some((&head, [whole].as_slice()))
        );
        data[..4].fill(0xFF);
        let (_, descriptors) = LbaStatusList::parse(&data[..24]).unwrap();
        assert_eq!(descriptors, [whole]);
        assert_eq!(LbaStatusList::parse(&data[..7]), None);
    }
}
