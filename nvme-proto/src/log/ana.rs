//! Asymmetric Namespace Access (LID 0Ch).
//!
//! Source: NVMe Base 2.1, section 5.1.12 (Asymmetric Namespace Access log page).

use core::mem::offset_of;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::macros::open_enum;

open_enum! {
    /// ANA State: 4 bits.
    pub struct AnaState(u8) {
        OPTIMIZED = 0x1 => "ANA Optimized state",
        NON_OPTIMIZED = 0x2 => "ANA Non-Optimized state",
        INACCESSIBLE = 0x3 => "ANA Inaccessible state",
        PERSISTENT_LOSS = 0x4 => "ANA Persistent Loss state",
        CHANGE = 0xF => "ANA Change state",
    }
}

/// Head of the ANA log page, 16 bytes. The group descriptors follow it.
#[repr(C)]
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
pub struct AnaLogHeader {
    /// Change Count: increases with every change of the page; 0 is not used.
    pub change_count: U64,
    /// Number of ANA Group Descriptors.
    pub groups: U16,
    reserved10: [u8; 6],
}

/// Head of an ANA Group Descriptor, 32 bytes. The NSIDs of the group follow it, 4 bytes each.
#[repr(C)]
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
pub struct AnaGroupHeader {
    /// ANA Group ID.
    pub group_id: U32,
    /// Number of NSID Values that follow; 0 when only groups were asked for (RGO).
    pub nsids: U32,
    /// Change Count of the group.
    pub change_count: U64,
    /// ANA State in bits 3:0.
    state: u8,
    reserved17: [u8; 15],
}

const _: () = {
    assert!(size_of::<AnaLogHeader>() == 16 && align_of::<AnaLogHeader>() == 1);
    assert!(offset_of!(AnaLogHeader, groups) == 8);
    assert!(size_of::<AnaGroupHeader>() == 32 && align_of::<AnaGroupHeader>() == 1);
    assert!(offset_of!(AnaGroupHeader, nsids) == 4);
    assert!(offset_of!(AnaGroupHeader, change_count) == 8);
    assert!(offset_of!(AnaGroupHeader, state) == 16);
};

impl AnaLogHeader {
    /// A head, its reserved bytes zero.
    #[must_use]
    pub fn new(change_count: u64, groups: u16) -> Self {
        Self {
            change_count: change_count.into(),
            groups: groups.into(),
            ..Self::new_zeroed()
        }
    }
}

impl AnaGroupHeader {
    /// A head, its reserved bytes zero.
    #[must_use]
    pub fn new(group_id: u32, nsids: u32, change_count: u64, state: AnaState) -> Self {
        Self {
            group_id: group_id.into(),
            nsids: nsids.into(),
            change_count: change_count.into(),
            state: state.0 & 0xF,
            ..Self::new_zeroed()
        }
    }

    /// ANA State.
    #[must_use]
    pub const fn state(&self) -> AnaState {
        AnaState(self.state & 0xF)
    }
}

/// An ANA log page that ends before its last group does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
#[error(
    "the ANA log page ends in group {group} of {groups}: \
     read more of it, or distrust the controller"
)]
pub struct AnaLogError {
    /// Index of the group that is not whole.
    pub group: u16,
    /// Groups the head announces.
    pub groups: u16,
}

/// One group of an ANA log page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AnaGroup<'a> {
    /// The head.
    pub header: &'a AnaGroupHeader,
    /// The namespaces of the group.
    pub nsids: &'a [U32],
}

/// The groups of an ANA log page, in order. After an error there are no more.
#[derive(Clone, Debug)]
pub struct AnaGroups<'a> {
    rest: &'a [u8],
    next: u16,
    groups: u16,
}

impl AnaLogHeader {
    /// The head and the groups in the data of the command; `None` when there are fewer than 16
    /// bytes.
    #[must_use]
    pub fn parse(data: &[u8]) -> Option<(&Self, AnaGroups<'_>)> {
        let (header, rest) = Self::ref_from_prefix(data).ok()?;
        Some((
            header,
            AnaGroups {
                rest,
                next: 0,
                groups: header.groups.get(),
            },
        ))
    }
}

impl<'a> Iterator for AnaGroups<'a> {
    type Item = Result<AnaGroup<'a>, AnaLogError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.next >= self.groups {
            return None;
        }
        let group = self.next;
        let Some((header, nsids, rest)) = split_group(self.rest) else {
            self.next = self.groups;
            return Some(Err(AnaLogError {
                group,
                groups: self.groups,
            }));
        };
        self.rest = rest;
        self.next = group.saturating_add(1);
        Some(Ok(AnaGroup { header, nsids }))
    }
}

fn split_group(data: &[u8]) -> Option<(&AnaGroupHeader, &[U32], &[u8])> {
    let (header, rest) = AnaGroupHeader::ref_from_prefix(data).ok()?;
    let count = usize::try_from(header.nsids.get()).ok()?;
    let (nsids, rest) = <[U32]>::ref_from_prefix_with_elems(rest, count).ok()?;
    Some((header, nsids, rest))
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    fn page() -> Vec<u8> {
        let mut page = AnaLogHeader::new(7, 2).as_bytes().to_vec();
        page.extend_from_slice(AnaGroupHeader::new(1, 2, 5, AnaState::OPTIMIZED).as_bytes());
        page.extend_from_slice([U32::new(1), U32::new(9)].as_bytes());
        page.extend_from_slice(AnaGroupHeader::new(2, 0, 6, AnaState::CHANGE).as_bytes());
        page
    }

    #[test]
    fn groups_come_with_their_namespaces() {
        let page = page();
        let (header, groups) = AnaLogHeader::parse(&page).unwrap();
        assert_eq!(header.change_count.get(), 7);
        let groups: Vec<_> = groups.map(Result::unwrap).collect();
        assert_eq!(groups.len(), 2);
        assert_eq!(groups[0].nsids, [U32::new(1), U32::new(9)]);
        assert_eq!(groups[0].header.state(), AnaState::OPTIMIZED);
        assert_eq!(groups[1].header.group_id.get(), 2);
        assert_eq!(groups[1].header.state(), AnaState::CHANGE);
    }

    #[test]
    fn a_page_cut_short_is_one_error() {
        let mut page = page();
        for length in 16..page.len() {
            let (_, groups) = AnaLogHeader::parse(&page[..length]).unwrap();
            let last = groups.last().unwrap();
            assert!(
                matches!(last, Err(AnaLogError { groups: 2, .. })),
                "{length}"
            );
        }
        assert!(AnaLogHeader::parse(&page[..15]).is_none());
        // A count whose bytes would overflow is an error too.
        page[20..24].fill(0xFF);
        let (_, mut groups) = AnaLogHeader::parse(&page).unwrap();
        assert_eq!(
            groups.next(),
            Some(Err(AnaLogError {
                group: 0,
                groups: 2
            }))
        );
        assert_eq!(groups.next(), None);
    }
}
