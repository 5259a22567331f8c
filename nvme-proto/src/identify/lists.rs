//! Identify lists: of namespaces (CNS 02h, 07h), of a namespace's identifiers (CNS 03h) and of I/O
//! command sets (CNS 1Ch).
//!
//! Source: NVMe Base 2.1, section 5.1.13 (the data structures of these CNS values).

use core::fmt;

use bitflags::bitflags;
use uuid::Uuid;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Csi, IDENTIFY_BYTES};
use crate::macros::open_enum;

/// Entries of a namespace list.
pub const NAMESPACE_LIST_MAX: usize = 1024;

/// Namespace List, 4096 bytes: NSIDs in increasing order, then zeros. Also the Changed Attached
/// Namespace List log page.
#[repr(transparent)]
#[derive(Clone, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct NamespaceList([U32; NAMESPACE_LIST_MAX]);

const _: () = {
    assert!(size_of::<NamespaceList>() == IDENTIFY_BYTES && align_of::<NamespaceList>() == 1);
};

impl NamespaceList {
    /// From the data of the command; `None` when it is not 4096 bytes.
    #[must_use]
    pub fn from_data(data: &[u8]) -> Option<&Self> {
        Self::ref_from_bytes(data).ok()
    }

    /// Fills the list with the first 1024 of `nsids`, which the caller gives in increasing order,
    /// and the rest with zeros.
    pub fn fill(&mut self, nsids: impl IntoIterator<Item = u32>) {
        let mut nsids = nsids.into_iter();
        for entry in &mut self.0 {
            *entry = nsids.next().unwrap_or(0).into();
        }
    }

    /// The NSIDs before the first zero. A peer may send them in any order, or twice.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0
            .iter()
            .map(|nsid| nsid.get())
            .take_while(|nsid| *nsid != 0)
    }

    /// Whether every entry is used, so that more may follow (asked for with the last NSID).
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.0.iter().all(|nsid| nsid.get() != 0)
    }
}

open_enum! {
    /// NIDT, Namespace Identifier Type.
    pub struct NamespaceIdType(u8) {
        EUI64 = 1 => "IEEE Extended Unique Identifier",
        NGUID = 2 => "Namespace Globally Unique Identifier",
        UUID = 3 => "Namespace UUID",
        CSI = 4 => "Command Set Identifier",
    }
}

/// A Namespace Identification Descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum NamespaceId<'a> {
    /// EUI64: 8 bytes, big endian.
    Eui64([u8; 8]),
    /// NGUID: 16 bytes, big endian.
    Nguid([u8; 16]),
    /// UUID.
    Uuid(Uuid),
    /// Command Set Identifier. Required for every namespace.
    CommandSet(Csi),
    /// A type the specification does not define, or a length it does not give the type.
    Unknown {
        /// NIDT.
        id_type: NamespaceIdType,
        /// NID.
        bytes: &'a [u8],
    },
}

/// Bytes before the identifier of a descriptor: NIDT, NIDL and two reserved.
const DESCRIPTOR_HEAD_BYTES: usize = 4;

/// The descriptors of a Namespace Identification Descriptor list, up to one of length 0 or the
/// end of the data. A descriptor that reaches past the end ends the list.
#[derive(Clone, Debug)]
pub struct NamespaceIdDescriptors<'a> {
    rest: &'a [u8],
}

impl<'a> NamespaceIdDescriptors<'a> {
    /// The descriptors in the data of the command.
    #[must_use]
    pub const fn new(data: &'a [u8]) -> Self {
        Self { rest: data }
    }
}

impl<'a> Iterator for NamespaceIdDescriptors<'a> {
    type Item = NamespaceId<'a>;

    fn next(&mut self) -> Option<NamespaceId<'a>> {
        let (head, rest) = self.rest.split_first_chunk::<DESCRIPTOR_HEAD_BYTES>()?;
        let [nidt, nidl, _, _] = *head;
        if nidl == 0 {
            return None;
        }
        let (bytes, rest) = rest.split_at_checked(usize::from(nidl))?;
        self.rest = rest;
        let id_type = NamespaceIdType(nidt);
        let unknown = NamespaceId::Unknown { id_type, bytes };
        let sixteen = || <[u8; 16]>::try_from(bytes).ok();
        let known = match id_type {
            NamespaceIdType::EUI64 => bytes.try_into().ok().map(NamespaceId::Eui64),
            NamespaceIdType::NGUID => sixteen().map(NamespaceId::Nguid),
            NamespaceIdType::UUID => sixteen().map(|id| NamespaceId::Uuid(Uuid::from_bytes(id))),
            NamespaceIdType::CSI => match bytes {
                [csi] => Some(NamespaceId::CommandSet(Csi(*csi))),
                _ => None,
            },
            _ => None,
        };
        Some(known.unwrap_or(unknown))
    }
}

/// A list that does not fit its data structure.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
#[error("the list does not fit {available_bytes} bytes: give fewer entries")]
pub struct BufferTooSmall {
    /// Bytes of the data structure.
    pub available_bytes: usize,
}

/// Writes descriptors of `ids` to `data`, the rest of it zeros, which end the list.
///
/// # Errors
/// [`BufferTooSmall`] when they do not fit; `data` is then partly written.
pub fn write_namespace_ids<'a>(
    data: &mut [u8],
    ids: impl IntoIterator<Item = NamespaceId<'a>>,
) -> Result<(), BufferTooSmall> {
    let too_small = BufferTooSmall {
        available_bytes: data.len(),
    };
    let mut rest = data;
    for id in ids {
        let scratch;
        let (id_type, bytes): (_, &[u8]) = match &id {
            NamespaceId::Eui64(bytes) => (NamespaceIdType::EUI64, bytes),
            NamespaceId::Nguid(bytes) => (NamespaceIdType::NGUID, bytes),
            NamespaceId::Uuid(uuid) => (NamespaceIdType::UUID, uuid.as_bytes()),
            NamespaceId::CommandSet(csi) => {
                scratch = [csi.0];
                (NamespaceIdType::CSI, &scratch)
            }
            NamespaceId::Unknown { id_type, bytes } => (*id_type, *bytes),
        };
        let length = u8::try_from(bytes.len()).map_err(|_| too_small)?;
        let (head, after_head) = rest
            .split_first_chunk_mut::<DESCRIPTOR_HEAD_BYTES>()
            .ok_or(too_small)?;
        *head = [id_type.0, length, 0, 0];
        let (body, after_body) = after_head
            .split_at_mut_checked(bytes.len())
            .ok_or(too_small)?;
        body.copy_from_slice(bytes);
        rest = after_body;
    }
    rest.fill(0);
    Ok(())
}

bitflags! {
    /// I/O Command Set Vector: the command sets of one combination.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct CommandSetVector: u64 {
        /// NVM Command Set.
        const NVM = 1 << 0;
        /// Key Value Command Set.
        const KEY_VALUE = 1 << 1;
        /// Zoned Namespace Command Set.
        const ZONED = 1 << 2;
        /// Subsystem Local Memory Command Set.
        const SUBSYSTEM_LOCAL_MEMORY = 1 << 3;
        /// Computational Programs Command Set.
        const COMPUTATIONAL_PROGRAMS = 1 << 4;
    }
}

/// Combinations in an Identify I/O Command Set data structure.
pub const COMMAND_SET_COMBINATIONS: usize = 512;

/// Identify I/O Command Set data structure, 4096 bytes: the combinations of command sets that may
/// be selected together.
#[repr(transparent)]
#[derive(Clone, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct CommandSetList([U64; COMMAND_SET_COMBINATIONS]);

const _: () = {
    assert!(size_of::<CommandSetList>() == IDENTIFY_BYTES && align_of::<CommandSetList>() == 1);
};

impl CommandSetList {
    /// A list of one combination.
    #[must_use]
    pub fn single(combination: CommandSetVector) -> Self {
        let mut list = Self::new_zeroed();
        let [first, ..] = &mut list.0;
        *first = combination.bits().into();
        list
    }

    /// From the data of the command; `None` when it is not 4096 bytes.
    #[must_use]
    pub fn from_data(data: &[u8]) -> Option<&Self> {
        Self::ref_from_bytes(data).ok()
    }

    /// The combinations before the first empty one.
    pub fn iter(&self) -> impl Iterator<Item = CommandSetVector> + '_ {
        self.0
            .iter()
            .map(|vector| CommandSetVector::from_bits_retain(vector.get()))
            .take_while(|vector| !vector.is_empty())
    }
}

impl fmt::Debug for CommandSetList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    #[test]
    fn namespace_lists_end_at_the_first_zero() {
        let mut list = NamespaceList::new_zeroed();
        assert_eq!(list.iter().count(), 0);
        list.fill([1, 2, 0xFFFF_FFFE]);
        assert_eq!(list.iter().collect::<Vec<_>>(), [1, 2, 0xFFFF_FFFE]);
        assert!(!list.is_full());
        list.fill(1..=5000);
        assert_eq!(list.iter().count(), 1024);
        assert!(list.is_full());
        assert_eq!(NamespaceList::from_data(list.as_bytes()), Some(&list));
        assert_eq!(NamespaceList::from_data(&list.as_bytes()[..4092]), None);
    }

    #[test]
    fn identifiers_survive_the_wire() {
        let ids = [
            NamespaceId::Eui64([1, 2, 3, 4, 5, 6, 7, 8]),
            NamespaceId::Nguid([9; 16]),
            NamespaceId::Uuid(Uuid::from_u128(0x0011_2233_4455_6677_8899_AABB_CCDD_EEFF)),
            NamespaceId::CommandSet(Csi::NVM),
            NamespaceId::Unknown {
                id_type: NamespaceIdType(9),
                bytes: &[1, 2, 3],
            },
        ];
        let mut data = [0xEE; IDENTIFY_BYTES];
        write_namespace_ids(&mut data, ids).unwrap();
        assert_eq!(data[..12], [1, 8, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(NamespaceIdDescriptors::new(&data).collect::<Vec<_>>(), ids);
        let mut small = [0; 15];
        let error = BufferTooSmall {
            available_bytes: 15,
        };
        assert_eq!(write_namespace_ids(&mut small, ids), Err(error));
    }

    #[test]
    fn broken_descriptors_end_the_list() {
        let ids = |data| NamespaceIdDescriptors::new(data).collect::<Vec<_>>();
        assert_eq!(ids(&[3, 16, 0, 0, 1, 2, 3]), []);
        assert_eq!(ids(&[3, 0, 0, 0, 1, 2, 3, 4]), []);
        assert_eq!(ids(&[3]), []);
        let short_uuid = NamespaceId::Unknown {
            id_type: NamespaceIdType::UUID,
            bytes: &[7, 8],
        };
        assert_eq!(
            ids(&[3, 2, 0, 0, 7, 8, 4, 1, 0, 0, 2]),
            [short_uuid, NamespaceId::CommandSet(Csi::ZONED)]
        );
    }

    #[test]
    fn command_set_combinations_end_at_the_first_empty_one() {
        let list = CommandSetList::single(CommandSetVector::NVM);
        assert_eq!(list.iter().collect::<Vec<_>>(), [CommandSetVector::NVM]);
        assert_eq!(list.as_bytes()[..9], [1, 0, 0, 0, 0, 0, 0, 0, 0]);
    }
}
