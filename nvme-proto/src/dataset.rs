//! Data of Dataset Management: the ranges.
//!
//! Source: NVM Command Set 1.1, section 3.3.3.

use core::mem::offset_of;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::error::{CommandError, ErrorLocation};
use crate::status::Status;

/// One range, 16 bytes. Its length is not 0's based: a range of 0 logical blocks does nothing.
#[repr(C)]
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
pub struct DsmRange {
    /// Context Attributes: hints about the access.
    pub context_attributes: U32,
    /// Length in logical blocks.
    pub length_lbas: U32,
    /// Starting LBA.
    pub slba: U64,
}

const _: () = {
    assert!(size_of::<DsmRange>() == DsmRange::SIZE_BYTES && align_of::<DsmRange>() == 1);
    assert!(offset_of!(DsmRange, length_lbas) == 4);
    assert!(offset_of!(DsmRange, slba) == 8);
};

impl DsmRange {
    /// Bytes of a range.
    pub const SIZE_BYTES: usize = 16;
    /// Most ranges in one command.
    pub const MAX_RANGES: u16 = 256;

    /// A range without hints.
    #[must_use]
    pub fn new(slba: u64, length_lbas: u32) -> Self {
        Self {
            context_attributes: U32::ZERO,
            length_lbas: length_lbas.into(),
            slba: slba.into(),
        }
    }

    /// The LBA after the last one; `None` when it is over 2^64 - 1.
    #[must_use]
    pub const fn end(&self) -> Option<u64> {
        self.slba.get().checked_add(self.length_lbas.get() as u64)
    }

    /// The first `count` ranges of `data`.
    ///
    /// # Errors
    /// Data SGL Length Invalid when there are fewer.
    pub fn parse_all(data: &[u8], count: u16) -> Result<&[Self], CommandError> {
        match <[Self]>::ref_from_prefix_with_elems(data, usize::from(count)) {
            Ok((ranges, _rest)) => Ok(ranges),
            Err(_) => Err(too_short(
                data,
                "16 bytes for each of the ranges NR announces",
            )),
        }
    }

    /// Refuses a range that is not inside a namespace of `nsze_lbas` logical blocks.
    ///
    /// # Errors
    /// LBA Out of Range, Do Not Retry.
    pub const fn require_within(&self, nsze_lbas: u64) -> Result<(), CommandError> {
        match self.end() {
            Some(end) if end <= nsze_lbas => Ok(()),
            Some(_) | None => Err(CommandError {
                status: Status::LBA_OUT_OF_RANGE.dnr(),
                location: ErrorLocation::Unspecified,
                field: "range Starting LBA",
                value: self.slba.get(),
                expected: "a range that ends inside the namespace",
            }),
        }
    }
}

/// Data shorter than what the command announces.
pub(crate) fn too_short(data: &[u8], expected: &'static str) -> CommandError {
    CommandError {
        status: Status::DATA_SGL_LENGTH_INVALID.dnr(),
        location: ErrorLocation::sqe(32),
        field: "data length",
        value: u64::try_from(data.len()).unwrap_or(u64::MAX),
        expected,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_counted_and_bounded() {
        let ranges = [
            DsmRange::new(1, 2),
            DsmRange::new(0x1122_3344_5566_7788, u32::MAX),
        ];
        let bytes = ranges.as_bytes();
        assert_eq!(
            bytes[..16],
            [0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]
        );
        assert_eq!(DsmRange::parse_all(bytes, 2), Ok(&ranges[..]));
        assert_eq!(DsmRange::parse_all(bytes, 1), Ok(&ranges[..1]));
        for (length, count) in [(31, 2), (0, 1), (32, 256)] {
            let error = DsmRange::parse_all(&bytes[..length], count).unwrap_err();
            assert_eq!(error.status, Status::DATA_SGL_LENGTH_INVALID.dnr());
        }
    }

    #[test]
    fn ends_do_not_wrap() {
        assert_eq!(DsmRange::new(u64::MAX, 1).end(), None);
        assert_eq!(DsmRange::new(10, 5).require_within(15), Ok(()));
        assert_eq!(DsmRange::new(10, 0).require_within(10), Ok(()));
        let status = |range: DsmRange| range.require_within(14).unwrap_err().status;
        assert_eq!(status(DsmRange::new(10, 5)), Status::LBA_OUT_OF_RANGE.dnr());
        assert_eq!(
            status(DsmRange::new(u64::MAX, 1)),
            Status::LBA_OUT_OF_RANGE.dnr()
        );
    }
}
