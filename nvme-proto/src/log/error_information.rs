//! Error Information (LID 01h).

use core::mem::offset_of;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::status::Status;

/// One entry of the Error Information log page, 64 bytes; newest first. NVMe Base 2.1, section
/// 5.1.12.
#[repr(C)]
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
pub struct ErrorInformationEntry {
    /// Error Count: unique and increasing over the life of the controller; 0 marks an invalid
    /// entry.
    pub error_count: U64,
    /// Submission Queue ID; FFFFh when the error belongs to no command.
    pub sqid: U16,
    /// Command ID; FFFFh when the error belongs to no command.
    pub cid: U16,
    /// Status Field in bits 15:1, phase tag in bit 0; see [`ErrorInformationEntry::status`].
    pub status_and_phase: U16,
    /// Parameter Error Location: see
    /// [`ErrorLocation`](crate::error::ErrorLocation::parameter_error_location).
    pub parameter_error_location: U16,
    /// First LBA with the error, if it has one.
    pub lba: U64,
    /// Namespace.
    pub nsid: U32,
    /// Log page with vendor specific information; 0 for none.
    pub vendor_log_page: u8,
    /// Transport Type: 1 is RDMA.
    pub trtype: u8,
    /// Command Set Indicator, valid when log page version is 1.
    pub csi: u8,
    /// Opcode of the command, valid when log page version is 1.
    pub opcode: u8,
    /// Command Specific Information.
    pub command_specific: U64,
    /// Transport Type Specific Information.
    pub transport_specific: U16,
    reserved42: [u8; 21],
    /// Log Page Version: 1 when CSI and opcode are valid.
    pub version: u8,
}

const _: () = {
    assert!(size_of::<ErrorInformationEntry>() == ErrorInformationEntry::SIZE_BYTES);
    assert!(align_of::<ErrorInformationEntry>() == 1);
    assert!(offset_of!(ErrorInformationEntry, sqid) == 8);
    assert!(offset_of!(ErrorInformationEntry, cid) == 10);
    assert!(offset_of!(ErrorInformationEntry, status_and_phase) == 12);
    assert!(offset_of!(ErrorInformationEntry, parameter_error_location) == 14);
    assert!(offset_of!(ErrorInformationEntry, lba) == 16);
    assert!(offset_of!(ErrorInformationEntry, nsid) == 24);
    assert!(offset_of!(ErrorInformationEntry, trtype) == 29);
    assert!(offset_of!(ErrorInformationEntry, opcode) == 31);
    assert!(offset_of!(ErrorInformationEntry, command_specific) == 32);
    assert!(offset_of!(ErrorInformationEntry, transport_specific) == 40);
    assert!(offset_of!(ErrorInformationEntry, version) == 63);
};

impl ErrorInformationEntry {
    /// Bytes of an entry.
    pub const SIZE_BYTES: usize = 64;

    /// The whole entries in the data of the command, without the invalid ones.
    pub fn parse_all(data: &[u8]) -> impl Iterator<Item = &Self> {
        let count = data.len().checked_div(Self::SIZE_BYTES).unwrap_or(0);
        let entries = <[Self]>::ref_from_prefix_with_elems(data, count)
            .map_or(&[][..], |(entries, _rest)| entries);
        entries.iter().filter(|entry| entry.error_count.get() != 0)
    }

    /// The status.
    #[must_use]
    pub const fn status(&self) -> Status {
        Status::from_bits(self.status_and_phase.get() >> 1)
    }

    /// Sets the status, with a phase tag of 0.
    pub fn set_status(&mut self, status: Status) {
        self.status_and_phase = (status.to_bits() << 1).into();
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;
    use zerocopy::FromZeros;

    #[test]
    fn invalid_entries_and_a_cut_one_are_left_out() {
        let mut entries = [ErrorInformationEntry::new_zeroed(); 3];
        entries[0].error_count = 2.into();
        entries[0].set_status(Status::LBA_OUT_OF_RANGE.dnr());
        entries[2].error_count = 1.into();
        let bytes = entries.as_bytes();
        let counts = |data| -> Vec<u64> {
            ErrorInformationEntry::parse_all(data)
                .map(|entry| entry.error_count.get())
                .collect()
        };
        assert_eq!(counts(bytes), [2, 1]);
        assert_eq!(counts(&bytes[..191]), [2]);
        assert_eq!(counts(&[]), []);
        assert_eq!(entries[0].status(), Status::LBA_OUT_OF_RANGE.dnr());
    }
}
