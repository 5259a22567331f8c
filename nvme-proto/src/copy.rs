//! Data of Copy: the source ranges.
//!
//! Source: NVM Command Set 1.1, section 3.3.2 (Copy Descriptor Formats).

use core::mem::offset_of;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::command::LbaRange;
use crate::dataset::too_short;
use crate::error::CommandError;
use crate::macros::open_enum;
use crate::zeroes_based;

open_enum! {
    /// Copy Descriptor Format: 4 bits. Also a bit number of Identify Controller OCFS.
    pub struct CopyFormat(u8) {
        FORMAT_0 = 0 => "Source Range Entries, 16b guard",
        FORMAT_1 = 1 => "Source Range Entries, 32b or 64b guard",
        FORMAT_2 = 2 => "Source Range Entries with NSID, 16b guard",
        FORMAT_3 = 3 => "Source Range Entries with NSID, 32b or 64b guard",
        FORMAT_4 = 4 => "Memory namespace source",
    }
}

impl CopyFormat {
    /// Bytes of one source range; 0 for a format without a defined size here.
    #[must_use]
    pub const fn range_bytes(self) -> usize {
        match self {
            Self::FORMAT_0 | Self::FORMAT_2 => 32,
            Self::FORMAT_1 | Self::FORMAT_3 => 40,
            _ => 0,
        }
    }
}

/// Source range of format 0h, 32 bytes.
#[repr(C)]
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
pub struct CopyRangeFormat0 {
    reserved0: [u8; 8],
    /// Starting LBA.
    pub slba: U64,
    /// Number of Logical Blocks (0's based).
    pub nlb_z: U16,
    reserved18: [u8; 6],
    /// Expected Logical Block Storage and Reference Tag.
    pub tags: U32,
    /// Expected Logical Block Application Tag.
    pub application_tag: U16,
    /// Expected Logical Block Application Tag Mask.
    pub application_tag_mask: U16,
}

const _: () = {
    assert!(size_of::<CopyRangeFormat0>() == CopyFormat::FORMAT_0.range_bytes());
    assert!(align_of::<CopyRangeFormat0>() == 1);
    assert!(offset_of!(CopyRangeFormat0, slba) == 8);
    assert!(offset_of!(CopyRangeFormat0, nlb_z) == 16);
    assert!(offset_of!(CopyRangeFormat0, tags) == 24);
    assert!(offset_of!(CopyRangeFormat0, application_tag) == 28);
    assert!(offset_of!(CopyRangeFormat0, application_tag_mask) == 30);
};

/// Source range of format 1h, 40 bytes.
#[repr(C)]
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
pub struct CopyRangeFormat1 {
    reserved0: [u8; 8],
    /// Starting LBA.
    pub slba: U64,
    /// Number of Logical Blocks (0's based).
    pub nlb_z: U16,
    reserved18: [u8; 8],
    /// Expected Logical Block Storage and Reference Tag.
    pub tags: [u8; 10],
    /// Expected Logical Block Application Tag.
    pub application_tag: U16,
    /// Expected Logical Block Application Tag Mask.
    pub application_tag_mask: U16,
}

const _: () = {
    assert!(size_of::<CopyRangeFormat1>() == CopyFormat::FORMAT_1.range_bytes());
    assert!(align_of::<CopyRangeFormat1>() == 1);
    assert!(offset_of!(CopyRangeFormat1, slba) == 8);
    assert!(offset_of!(CopyRangeFormat1, nlb_z) == 16);
    assert!(offset_of!(CopyRangeFormat1, tags) == 26);
    assert!(offset_of!(CopyRangeFormat1, application_tag) == 36);
    assert!(offset_of!(CopyRangeFormat1, application_tag_mask) == 38);
};

impl CopyRangeFormat0 {
    /// A source range without protection information. An `nlb` outside 1 to 65536 becomes the
    /// nearer end.
    #[must_use]
    pub fn new(range: LbaRange) -> Self {
        let nlb_z = zeroes_based::to_u16(range.nlb.clamp(1, 1 << 16)).unwrap_or(u16::MAX);
        Self {
            reserved0: [0; 8],
            slba: range.slba.into(),
            nlb_z: nlb_z.into(),
            reserved18: [0; 6],
            tags: U32::ZERO,
            application_tag: U16::ZERO,
            application_tag_mask: U16::ZERO,
        }
    }
}

/// The first `count` source ranges of `data`, of format 0h or 1h.
///
/// # Errors
/// Invalid Field, pointing at the Descriptor Format, for another format; Data SGL Length Invalid
/// when there are fewer ranges.
pub fn source_ranges(
    data: &[u8],
    format: CopyFormat,
    count: u16,
) -> Result<SourceRanges<'_>, CommandError> {
    let count = usize::from(count);
    let ranges = match format {
        CopyFormat::FORMAT_0 => <[CopyRangeFormat0]>::ref_from_prefix_with_elems(data, count)
            .ok()
            .map(|(ranges, _rest)| SourceRanges::Format0(ranges.iter())),
        CopyFormat::FORMAT_1 => <[CopyRangeFormat1]>::ref_from_prefix_with_elems(data, count)
            .ok()
            .map(|(ranges, _rest)| SourceRanges::Format1(ranges.iter())),
        other => {
            return Err(CommandError::invalid_field(
                "Descriptor Format",
                49,
                u64::from(other.0),
                "0 or 1",
            ));
        }
    };
    ranges.ok_or_else(|| too_short(data, "a whole entry for each range NR announces"))
}

/// The source ranges of a Copy, in order.
#[derive(Clone, Debug)]
pub enum SourceRanges<'a> {
    /// Of format 0h.
    Format0(core::slice::Iter<'a, CopyRangeFormat0>),
    /// Of format 1h.
    Format1(core::slice::Iter<'a, CopyRangeFormat1>),
}

impl Iterator for SourceRanges<'_> {
    type Item = LbaRange;

    fn next(&mut self) -> Option<LbaRange> {
        let (slba, nlb_z) = match self {
            Self::Format0(ranges) => ranges.next().map(|range| (range.slba, range.nlb_z))?,
            Self::Format1(ranges) => ranges.next().map(|range| (range.slba, range.nlb_z))?,
        };
        Some(LbaRange {
            slba: slba.get(),
            nlb: zeroes_based::from_u16(nlb_z.get()),
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match self {
            Self::Format0(ranges) => ranges.size_hint(),
            Self::Format1(ranges) => ranges.size_hint(),
        }
    }
}

impl ExactSizeIterator for SourceRanges<'_> {}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::error::ErrorLocation;
    use crate::status::Status;
    use std::vec::Vec;
    use zerocopy::FromZeros;

    #[test]
    fn both_formats_give_the_same_ranges() {
        let expected = [
            LbaRange { slba: 5, nlb: 1 },
            LbaRange {
                slba: 1 << 40,
                nlb: 65_536,
            },
        ];
        let format0: Vec<_> = expected
            .iter()
            .map(|range| CopyRangeFormat0::new(*range))
            .collect();
        let mut format1 = [CopyRangeFormat1::new_zeroed(); 2];
        format1[0].slba = 5.into();
        format1[1].slba = (1 << 40).into();
        format1[1].nlb_z = 0xFFFF.into();
        let parse = |data, format, count| {
            source_ranges(data, format, count).map(Iterator::collect::<Vec<_>>)
        };
        assert_eq!(
            parse(format0.as_bytes(), CopyFormat::FORMAT_0, 2).as_deref(),
            Ok(&expected[..])
        );
        assert_eq!(
            parse(format1.as_bytes(), CopyFormat::FORMAT_1, 2).as_deref(),
            Ok(&expected[..])
        );
        let short = parse(&format0.as_bytes()[..63], CopyFormat::FORMAT_0, 2).unwrap_err();
        assert_eq!(short.status, Status::DATA_SGL_LENGTH_INVALID.dnr());
    }

    #[test]
    fn other_formats_are_refused_where_the_field_is() {
        for format in [2, 3, 4, 15] {
            let error = source_ranges(&[0; 64], CopyFormat(format), 1).unwrap_err();
            assert_eq!(error.status, Status::INVALID_FIELD.dnr());
            assert_eq!(error.location, ErrorLocation::sqe(49));
        }
    }
}
