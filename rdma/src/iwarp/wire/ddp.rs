//! DDP segments and the RDMAP control byte inside them.
//!
//! An FPDU is `ULPDU_Length (2) | DDP control (1) | RDMAP control (1) | rest of the header |
//! payload
//! | pad to 4 | CRC (4)`. The header structures here start with the length field, so that an FPDU
//! is aligned to 4 from its first byte.

use core::mem::{offset_of, size_of};

use zerocopy::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of the MPA length field.
pub const LENGTH_BYTES: usize = 2;
/// Bytes of the MPA CRC field.
pub const CRC_BYTES: usize = 4;

/// Queue number of Sends (RFC 5040 §4.1).
pub const QN_SEND: u32 = 0;
/// Queue number of RDMA Read Requests.
pub const QN_READ_REQUEST: u32 = 1;
/// Queue number of Terminate.
pub const QN_TERMINATE: u32 = 2;

/// RDMAP opcode (RFC 5040 §4.1, Figure 4); unknown values are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Opcode(pub u8);

#[expect(missing_docs, reason = "the names are those of RFC 5040 Figure 4")]
impl Opcode {
    pub const RDMA_WRITE: Self = Self(0);
    pub const READ_REQUEST: Self = Self(1);
    pub const READ_RESPONSE: Self = Self(2);
    pub const SEND: Self = Self(3);
    pub const SEND_INVALIDATE: Self = Self(4);
    pub const SEND_SE: Self = Self(5);
    pub const SEND_SE_INVALIDATE: Self = Self(6);
    pub const TERMINATE: Self = Self(7);
}

impl Opcode {
    /// Whether it is one of the four Sends.
    #[must_use]
    pub fn is_send(self) -> bool {
        (Self::SEND.0..=Self::SEND_SE_INVALIDATE.0).contains(&self.0)
    }

    /// Whether a Send carries a STag to invalidate.
    #[must_use]
    pub fn invalidates(self) -> bool {
        self == Self::SEND_INVALIDATE || self == Self::SEND_SE_INVALIDATE
    }

    /// The Send with these properties.
    #[must_use]
    pub fn send(invalidate: bool, solicited: bool) -> Self {
        match (invalidate, solicited) {
            (false, false) => Self::SEND,
            (true, false) => Self::SEND_INVALIDATE,
            (false, true) => Self::SEND_SE,
            (true, true) => Self::SEND_SE_INVALIDATE,
        }
    }
}

/// DDP control and RDMAP control bytes (RFC 5041 §4.1, RFC 5040 §4.1).
#[repr(C)]
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
pub struct Control {
    ddp: u8,
    rdmap: u8,
}

impl Control {
    const TAGGED: u8 = 0x80;
    const LAST: u8 = 0x40;
    const DDP_VERSION_MASK: u8 = 0x03;
    const RDMAP_VERSION_MASK: u8 = 0xc0;
    const OPCODE_MASK: u8 = 0x0f;

    /// Versions 1 and 1, reserved bits zero.
    #[must_use]
    pub fn new(tagged: bool, last: bool, opcode: Opcode) -> Self {
        let tagged = if tagged { Self::TAGGED } else { 0 };
        let last = if last { Self::LAST } else { 0 };
        Self {
            ddp: tagged | last | 0x01,
            rdmap: 0x40 | (opcode.0 & Self::OPCODE_MASK),
        }
    }

    /// T bit.
    #[must_use]
    pub fn tagged(self) -> bool {
        self.ddp & Self::TAGGED != 0
    }

    /// L bit: last segment of its message.
    #[must_use]
    pub fn last(self) -> bool {
        self.ddp & Self::LAST != 0
    }

    /// DDP version.
    #[must_use]
    pub fn ddp_version(self) -> u8 {
        self.ddp & Self::DDP_VERSION_MASK
    }

    /// RDMAP version.
    #[must_use]
    pub fn rdmap_version(self) -> u8 {
        (self.rdmap & Self::RDMAP_VERSION_MASK) >> 6
    }

    /// RDMAP opcode.
    #[must_use]
    pub fn opcode(self) -> Opcode {
        Opcode(self.rdmap & Self::OPCODE_MASK)
    }
}

/// MPA length and the header of a tagged segment (RFC 5041 §4.2): RDMA Write, RDMA Read Response.
#[repr(C)]
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
pub struct TaggedHeader {
    /// ULPDU_Length: bytes between this field and the pad.
    pub ulpdu_length: U16,
    /// Control bytes.
    pub control: Control,
    /// STag.
    pub stag: U32,
    /// Tagged offset.
    pub to: U64,
}

const _: () = {
    assert!(size_of::<TaggedHeader>() == 16);
    assert!(offset_of!(TaggedHeader, stag) == 4);
    assert!(offset_of!(TaggedHeader, to) == 8);
};

/// MPA length and the header of an untagged segment (RFC 5041 §4.3).
#[repr(C)]
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
pub struct UntaggedHeader {
    /// ULPDU_Length.
    pub ulpdu_length: U16,
    /// Control bytes.
    pub control: Control,
    /// Reserved for the ULP: the STag to invalidate (RFC 5040 §4.3).
    pub invalidate_stag: U32,
    /// Queue number.
    pub qn: U32,
    /// Message sequence number.
    pub msn: U32,
    /// Message offset.
    pub mo: U32,
}

const _: () = {
    assert!(size_of::<UntaggedHeader>() == 20);
    assert!(offset_of!(UntaggedHeader, invalidate_stag) == 4);
    assert!(offset_of!(UntaggedHeader, qn) == 8);
    assert!(offset_of!(UntaggedHeader, msn) == 12);
    assert!(offset_of!(UntaggedHeader, mo) == 16);
};

/// RDMA Read Request header (RFC 5040 §4.4), which follows an [`UntaggedHeader`] of queue 1.
#[repr(C)]
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
pub struct ReadRequest {
    /// Data sink STag.
    pub sink_stag: U32,
    /// Data sink tagged offset.
    pub sink_to: U64,
    /// RDMA Read message size in bytes.
    pub length_bytes: U32,
    /// Data source STag.
    pub source_stag: U32,
    /// Data source tagged offset.
    pub source_to: U64,
}

const _: () = {
    assert!(size_of::<ReadRequest>() == 28);
    assert!(offset_of!(ReadRequest, sink_to) == 4);
    assert!(offset_of!(ReadRequest, length_bytes) == 12);
    assert!(offset_of!(ReadRequest, source_stag) == 16);
    assert!(offset_of!(ReadRequest, source_to) == 20);
};

/// Bytes of a tagged header with the length field.
pub const TAGGED_BYTES: usize = size_of::<TaggedHeader>();
/// Bytes of an untagged header with the length field.
pub const UNTAGGED_BYTES: usize = size_of::<UntaggedHeader>();
/// Bytes of a whole RDMA Read Request up to its CRC; it needs no pad.
pub const READ_REQUEST_BYTES: usize = UNTAGGED_BYTES + size_of::<ReadRequest>();

/// Pad bytes after `bytes` bytes of an FPDU (length field included) (RFC 5044 §4).
#[must_use]
pub const fn pad_bytes(bytes: usize) -> usize {
    bytes.wrapping_neg() & 3
}

/// Bytes of a whole FPDU whose ULPDU_Length is `ulpdu_bytes`.
#[must_use]
pub const fn fpdu_bytes(ulpdu_bytes: u16) -> usize {
    let framed = LENGTH_BYTES + ulpdu_bytes as usize;
    framed + pad_bytes(framed) + CRC_BYTES
}

/// The header of one segment. The discriminant's size puts the header at a multiple of 8: at an odd
/// address it is copied in pieces that overlap, and a load of such a copy stalls on store
/// forwarding until every earlier store has ended, those of the last payload included.
#[repr(u64)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Segment {
    /// Names its buffer by STag.
    Tagged(TaggedHeader),
    /// Goes to the next buffer of a queue.
    Untagged(UntaggedHeader),
}

impl Segment {
    /// Reads the header at the start of an FPDU; `None` when `bytes` is too short to hold it.
    /// Nothing is checked yet.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let control = Control::read_from_bytes(bytes.get(2..4)?).ok()?;
        if control.tagged() {
            let (header, _) = TaggedHeader::read_from_prefix(bytes).ok()?;
            Some(Self::Tagged(header))
        } else {
            let (header, _) = UntaggedHeader::read_from_prefix(bytes).ok()?;
            Some(Self::Untagged(header))
        }
    }

    /// Control bytes.
    #[must_use]
    pub fn control(&self) -> Control {
        match self {
            Self::Tagged(h) => h.control,
            Self::Untagged(h) => h.control,
        }
    }

    /// ULPDU_Length.
    #[must_use]
    pub fn ulpdu_length(&self) -> u16 {
        match self {
            Self::Tagged(h) => h.ulpdu_length.get(),
            Self::Untagged(h) => h.ulpdu_length.get(),
        }
    }

    /// Header bytes with the length field.
    #[must_use]
    pub fn header_bytes(&self) -> usize {
        match self {
            Self::Tagged(_) => TAGGED_BYTES,
            Self::Untagged(_) => UNTAGGED_BYTES,
        }
    }

    /// Payload bytes; `None` when ULPDU_Length is shorter than the header.
    #[must_use]
    pub fn payload_bytes(&self) -> Option<u32> {
        let framed = LENGTH_BYTES + usize::from(self.ulpdu_length());
        u32::try_from(framed.checked_sub(self.header_bytes())?).ok()
    }

    /// The header's bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Tagged(h) => h.as_bytes(),
            Self::Untagged(h) => h.as_bytes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn fpdu_sizes_are_multiples_of_four() {
        assert_eq!(fpdu_bytes(0), 8);
        assert_eq!(fpdu_bytes(14), 20);
        assert_eq!(fpdu_bytes(15), 24);
        assert_eq!(fpdu_bytes(18), 24);
        assert_eq!(fpdu_bytes(u16::MAX), 65_544);
    }

    #[test]
    fn write_header_is_laid_out_as_in_rfc_5041() {
        let header = TaggedHeader {
            ulpdu_length: U16::new(0x1234),
            control: Control::new(true, true, Opcode::RDMA_WRITE),
            stag: U32::new(0xa1a2_a3a4),
            to: U64::new(0x0102_0304_0506_0708),
        };
        let expected = [
            0x12, 0x34, 0xc1, 0x40, 0xa1, 0xa2, 0xa3, 0xa4, 1, 2, 3, 4, 5, 6, 7, 8,
        ];
        assert_eq!(header.as_bytes(), expected);
        assert_eq!(Segment::read(&expected), Some(Segment::Tagged(header)));
    }

    #[test]
    fn send_opcodes() {
        for opcode in (0..16).map(Opcode) {
            assert_eq!(opcode.is_send(), (3..=6).contains(&opcode.0));
        }
        assert!(Opcode::send(true, true).invalidates());
        assert!(!Opcode::send(false, true).invalidates());
    }

    proptest! {
        #[test]
        fn any_bytes_read_back_as_they_were(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            if let Some(segment) = Segment::read(&bytes) {
                prop_assert_eq!(segment.as_bytes(), &bytes[..segment.header_bytes()]);
                let framed = 2 + usize::from(segment.ulpdu_length());
                prop_assert_eq!(
                    segment.payload_bytes().map(|n| n as usize + segment.header_bytes()),
                    (framed >= segment.header_bytes()).then_some(framed)
                );
            } else {
                prop_assert!(bytes.len() < UNTAGGED_BYTES);
            }
        }
    }
}
