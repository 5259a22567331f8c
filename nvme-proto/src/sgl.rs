//! Scatter Gather List descriptors: where a command's data is.
//!
//! Source: NVMe Base 2.1, section 4.3.2; NVMe over RDMA Transport 1.1 (which types a command
//! capsule may carry, and the Invalidate Key sub type).

use core::mem::offset_of;
use core::ops::Range;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::bits;
use crate::error::{CommandError, ErrorLocation};
use crate::macros::open_enum;
use crate::status::Status;

open_enum! {
    /// SGL Descriptor Type, the high 4 bits of byte 15.
    pub struct SglDescriptorType(u8) {
        DATA_BLOCK = 0x0 => "SGL Data Block",
        BIT_BUCKET = 0x1 => "SGL Bit Bucket",
        SEGMENT = 0x2 => "SGL Segment",
        LAST_SEGMENT = 0x3 => "SGL Last Segment",
        KEYED_DATA_BLOCK = 0x4 => "Keyed SGL Data Block",
        TRANSPORT_DATA_BLOCK = 0x5 => "Transport SGL Data Block",
        VENDOR_SPECIFIC = 0xF => "Vendor specific",
    }
}

open_enum! {
    /// SGL Descriptor Sub Type, the low 4 bits of byte 15.
    pub struct SglDescriptorSubtype(u8) {
        ADDRESS = 0x0 => "Address",
        OFFSET = 0x1 => "Offset",
        TRANSPORT = 0xA => "NVMe Transport Specific",
        INVALIDATE_KEY = 0xF => "Invalidate Key",
    }
}

/// One SGL descriptor, 16 bytes, not yet understood; see [`Sgl::parse`].
#[repr(C)]
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
pub struct SglDescriptor {
    /// Address, or offset from the start of the in-capsule data.
    address: U64,
    /// Length in bytes: 32 bits unkeyed, only the low 24 when keyed.
    length: U32,
    /// Keyed: bits 31:8 of the key (bits 7:0 are byte 3 of `length`). Unkeyed: reserved.
    key_high: [u8; 3],
    /// Type in bits 7:4, sub type in bits 3:0.
    identifier: u8,
}

const _: () = {
    assert!(size_of::<SglDescriptor>() == 16 && align_of::<SglDescriptor>() == 1);
    assert!(offset_of!(SglDescriptor, length) == 8);
    assert!(offset_of!(SglDescriptor, key_high) == 12);
    assert!(offset_of!(SglDescriptor, identifier) == 15);
};

impl SglDescriptor {
    /// Bytes of a descriptor.
    pub const SIZE_BYTES: usize = 16;

    /// SGL Descriptor Type.
    #[must_use]
    pub const fn descriptor_type(&self) -> SglDescriptorType {
        SglDescriptorType(self.identifier >> 4)
    }

    /// SGL Descriptor Sub Type.
    #[must_use]
    pub const fn subtype(&self) -> SglDescriptorSubtype {
        SglDescriptorSubtype(self.identifier & 0xF)
    }
}

/// What the address field of a descriptor counts from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SglBase {
    /// Sub type 0h: a memory address of the host.
    Address(u64),
    /// Sub type 1h: bytes from the start of the in-capsule data.
    CapsuleOffset(u64),
}

/// An SGL descriptor, understood. Lengths are in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Sgl {
    /// SGL Data Block, sub type Address: host memory without a key. Not usable over RDMA.
    DataBlock {
        /// Host memory address.
        address: u64,
        /// Length.
        length_bytes: u32,
    },
    /// SGL Data Block, sub type Offset: data inside the command capsule.
    InCapsule {
        /// Offset from the start of the in-capsule data.
        offset_bytes: u64,
        /// Length.
        length_bytes: u32,
    },
    /// SGL Bit Bucket: this many bytes of read data are to be dropped.
    BitBucket {
        /// Length.
        length_bytes: u32,
    },
    /// SGL Segment (`last` false) or SGL Last Segment (`last` true): a list of descriptors.
    Segment {
        /// Where the list is.
        base: SglBase,
        /// Length of the list, a non-zero multiple of 16 when valid.
        length_bytes: u32,
        /// Whether the segment pointed to is the last one.
        last: bool,
    },
    /// Keyed SGL Data Block: host memory the controller may reach by RDMA with `rkey`.
    Keyed {
        /// Host memory address.
        address: u64,
        /// Length, below 2^24.
        length_bytes: u32,
        /// Remote key (STag).
        rkey: u32,
        /// Sub type Invalidate Key: answer with Send with Invalidate of `rkey`.
        invalidate: bool,
    },
    /// Transport SGL Data Block: data moved by the transport (NVMe/TCP and Fibre Channel).
    Transport {
        /// Length.
        length_bytes: u32,
    },
}

/// Length field of a keyed descriptor: 24 bits.
const KEYED_LENGTH_MAX_BYTES: u32 = 0x00FF_FFFF;
/// Byte 39 of the submission queue entry: the identifier of SGL descriptor 1.
const IDENTIFIER_BYTE: u8 = 39;
/// Byte 32 of the submission queue entry: the length of SGL descriptor 1.
const LENGTH_BYTE: u8 = 32;

impl Sgl {
    /// A keyed descriptor of no bytes: what a command without data carries.
    pub const EMPTY: Self = Self::Keyed {
        address: 0,
        length_bytes: 0,
        rkey: 0,
        invalidate: false,
    };

    /// The largest length a keyed descriptor can say: 2^24 - 1 bytes.
    pub const KEYED_LENGTH_MAX_BYTES: u32 = KEYED_LENGTH_MAX_BYTES;

    /// Understands one descriptor. Which types a transport or controller accepts is for the
    /// caller to decide.
    ///
    /// # Errors
    /// SGL Descriptor Type Invalid for a type, or a combination of type and sub type, that the
    /// specification does not define.
    pub const fn parse(descriptor: &SglDescriptor) -> Result<Self, CommandError> {
        use SglDescriptorSubtype as Subtype;
        use SglDescriptorType as Type;
        let address = descriptor.address.get();
        let length_bytes = descriptor.length.get();
        let subtype = descriptor.subtype();
        let base = match subtype {
            Subtype::ADDRESS => Some(SglBase::Address(address)),
            Subtype::OFFSET => Some(SglBase::CapsuleOffset(address)),
            _ => None,
        };
        match (descriptor.descriptor_type(), subtype, base) {
            (Type::DATA_BLOCK, _, Some(SglBase::Address(address))) => Ok(Self::DataBlock {
                address,
                length_bytes,
            }),
            (Type::DATA_BLOCK, _, Some(SglBase::CapsuleOffset(offset_bytes))) => {
                Ok(Self::InCapsule {
                    offset_bytes,
                    length_bytes,
                })
            }
            (Type::BIT_BUCKET, Subtype::ADDRESS, _) => Ok(Self::BitBucket { length_bytes }),
            (Type::SEGMENT, _, Some(base)) => Ok(Self::Segment {
                base,
                length_bytes,
                last: false,
            }),
            (Type::LAST_SEGMENT, _, Some(base)) => Ok(Self::Segment {
                base,
                length_bytes,
                last: true,
            }),
            (Type::KEYED_DATA_BLOCK, Subtype::ADDRESS | Subtype::INVALIDATE_KEY, _) => {
                let [k1, k2, k3] = descriptor.key_high;
                let k0 = bits::byte(length_bytes, 24);
                Ok(Self::Keyed {
                    address,
                    length_bytes: length_bytes & KEYED_LENGTH_MAX_BYTES,
                    rkey: u32::from_le_bytes([k0, k1, k2, k3]),
                    invalidate: matches!(subtype, Subtype::INVALIDATE_KEY),
                })
            }
            (Type::TRANSPORT_DATA_BLOCK, Subtype::TRANSPORT, _) => {
                Ok(Self::Transport { length_bytes })
            }
            _ => Err(descriptor_type_invalid(
                descriptor.identifier,
                "a type and sub type the specification defines",
            )),
        }
    }

    /// The descriptor on the wire. A keyed length above [`Sgl::KEYED_LENGTH_MAX_BYTES`] is cut to
    /// 24 bits: the caller keeps transfers below it.
    #[must_use]
    pub fn encode(&self) -> SglDescriptor {
        use SglDescriptorSubtype as Subtype;
        use SglDescriptorType as Type;
        let zero = SglDescriptor::new_zeroed();
        let split = |base: SglBase| match base {
            SglBase::Address(address) => (address, Subtype::ADDRESS),
            SglBase::CapsuleOffset(offset) => (offset, Subtype::OFFSET),
        };
        match *self {
            Self::DataBlock {
                address,
                length_bytes,
            } => SglDescriptor {
                address: address.into(),
                length: length_bytes.into(),
                identifier: identifier(Type::DATA_BLOCK, Subtype::ADDRESS),
                ..zero
            },
            Self::InCapsule {
                offset_bytes,
                length_bytes,
            } => SglDescriptor {
                address: offset_bytes.into(),
                length: length_bytes.into(),
                identifier: identifier(Type::DATA_BLOCK, Subtype::OFFSET),
                ..zero
            },
            Self::BitBucket { length_bytes } => SglDescriptor {
                length: length_bytes.into(),
                identifier: identifier(Type::BIT_BUCKET, Subtype::ADDRESS),
                ..zero
            },
            Self::Segment {
                base,
                length_bytes,
                last,
            } => {
                let (address, subtype) = split(base);
                let kind = if last {
                    Type::LAST_SEGMENT
                } else {
                    Type::SEGMENT
                };
                SglDescriptor {
                    address: address.into(),
                    length: length_bytes.into(),
                    identifier: identifier(kind, subtype),
                    ..zero
                }
            }
            Self::Keyed {
                address,
                length_bytes,
                rkey,
                invalidate,
            } => {
                let [k0, k1, k2, k3] = rkey.to_le_bytes();
                let [l0, l1, l2, _] = length_bytes.to_le_bytes();
                let subtype = if invalidate {
                    Subtype::INVALIDATE_KEY
                } else {
                    Subtype::ADDRESS
                };
                SglDescriptor {
                    address: address.into(),
                    length: U32::from_bytes([l0, l1, l2, k0]),
                    key_high: [k1, k2, k3],
                    identifier: identifier(Type::KEYED_DATA_BLOCK, subtype),
                }
            }
            Self::Transport { length_bytes } => SglDescriptor {
                length: length_bytes.into(),
                identifier: identifier(Type::TRANSPORT_DATA_BLOCK, Subtype::TRANSPORT),
                ..zero
            },
        }
    }

    /// Bytes of data (or of descriptors, for a segment) this descriptor stands for.
    #[must_use]
    pub const fn length_bytes(&self) -> u32 {
        match *self {
            Self::DataBlock { length_bytes, .. }
            | Self::InCapsule { length_bytes, .. }
            | Self::BitBucket { length_bytes }
            | Self::Segment { length_bytes, .. }
            | Self::Keyed { length_bytes, .. }
            | Self::Transport { length_bytes } => length_bytes,
        }
    }

    /// Where in `capsule_data_bytes` bytes of in-capsule data the data of an
    /// [`Sgl::InCapsule`] (or of a segment inside the capsule) is.
    ///
    /// # Errors
    /// SGL Offset Invalid when the offset lies past the data; Data SGL Length Invalid when the
    /// data end before the length does; SGL Descriptor Type Invalid for a descriptor that does
    /// not point into the capsule.
    pub fn capsule_range(&self, capsule_data_bytes: usize) -> Result<Range<usize>, CommandError> {
        let (offset, length_bytes) = match *self {
            Self::InCapsule {
                offset_bytes,
                length_bytes,
            } => (offset_bytes, length_bytes),
            Self::Segment {
                base: SglBase::CapsuleOffset(offset),
                length_bytes,
                ..
            } => (offset, length_bytes),
            Self::DataBlock { .. }
            | Self::BitBucket { .. }
            | Self::Segment { .. }
            | Self::Keyed { .. }
            | Self::Transport { .. } => {
                return Err(descriptor_type_invalid(
                    self.encode().identifier,
                    "a descriptor with sub type Offset",
                ));
            }
        };
        let start = usize::try_from(offset)
            .ok()
            .filter(|start| *start <= capsule_data_bytes);
        let Some(start) = start else {
            return Err(CommandError {
                status: Status::SGL_OFFSET_INVALID.dnr(),
                location: ErrorLocation::sqe(24),
                field: "SGL offset",
                value: offset,
                expected: "an offset inside the in-capsule data",
            });
        };
        let end = usize::try_from(length_bytes)
            .ok()
            .and_then(|length| start.checked_add(length))
            .filter(|end| *end <= capsule_data_bytes);
        match end {
            Some(end) => Ok(start..end),
            None => Err(CommandError {
                status: Status::DATA_SGL_LENGTH_INVALID.dnr(),
                location: ErrorLocation::sqe(LENGTH_BYTE),
                field: "SGL length",
                value: u64::from(length_bytes),
                expected: "a length that ends inside the in-capsule data",
            }),
        }
    }
}

/// The descriptors of one segment: `bytes` is what an [`Sgl::Segment`] points to, at most
/// `descriptors_max` of them.
///
/// Each is parsed when it is taken from the iterator; the caller adds up the lengths.
///
/// # Errors
/// Invalid SGL Segment Descriptor when the length is zero or no multiple of 16; Invalid Number of
/// SGL Descriptors when there are more than `descriptors_max`.
pub fn segment_descriptors(
    bytes: &[u8],
    descriptors_max: usize,
) -> Result<impl ExactSizeIterator<Item = Result<Sgl, CommandError>> + Clone, CommandError> {
    let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
    let error = |status: Status, expected| CommandError {
        status: status.dnr(),
        location: ErrorLocation::sqe(LENGTH_BYTE),
        field: "SGL segment length",
        value: length,
        expected,
    };
    let descriptors = <[SglDescriptor]>::ref_from_bytes(bytes)
        .ok()
        .filter(|descriptors| !descriptors.is_empty())
        .ok_or_else(|| {
            error(
                Status::INVALID_SGL_SEGMENT_DESCRIPTOR,
                "a non-zero multiple of 16",
            )
        })?;
    if descriptors.len() > descriptors_max {
        return Err(error(
            Status::INVALID_NUMBER_OF_SGL_DESCRIPTORS,
            "no more descriptors than the controller supports",
        ));
    }
    Ok(descriptors.iter().map(Sgl::parse))
}

const fn identifier(kind: SglDescriptorType, subtype: SglDescriptorSubtype) -> u8 {
    kind.0 << 4 | subtype.0
}

const fn descriptor_type_invalid(identifier: u8, expected: &'static str) -> CommandError {
    CommandError {
        status: Status::SGL_DESCRIPTOR_TYPE_INVALID.dnr(),
        location: ErrorLocation::sqe(IDENTIFIER_BYTE),
        field: "SGL Identifier",
        value: identifier as u64,
        expected,
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    fn every_form() -> [Sgl; 11] {
        let (address, length_bytes) = (0x1122_3344_5566_7788, 0x0099_AABB);
        let base = [SglBase::Address(address), SglBase::CapsuleOffset(address)];
        let keyed = |invalidate| Sgl::Keyed {
            address,
            length_bytes,
            rkey: 0xCAFE_F00D,
            invalidate,
        };
        let segment = |base, last| Sgl::Segment {
            base,
            length_bytes,
            last,
        };
        [
            Sgl::DataBlock {
                address,
                length_bytes: u32::MAX,
            },
            Sgl::InCapsule {
                offset_bytes: address,
                length_bytes,
            },
            Sgl::BitBucket { length_bytes },
            segment(base[0], false),
            segment(base[0], true),
            segment(base[1], false),
            segment(base[1], true),
            keyed(false),
            keyed(true),
            Sgl::Transport { length_bytes },
            Sgl::EMPTY,
        ]
    }

    #[test]
    fn every_form_survives_the_wire() {
        for sgl in every_form() {
            assert_eq!(Sgl::parse(&sgl.encode()), Ok(sgl));
        }
    }

    #[test]
    fn keyed_bytes_are_as_the_figure_has_them() {
        let [.., keyed, _, _] = every_form();
        assert_eq!(
            keyed.encode().as_bytes(),
            [
                0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, // address
                0xBB, 0xAA, 0x99, // length, 24 bits
                0x0D, 0xF0, 0xFE, 0xCA, // key
                0x4F, // Keyed SGL Data Block, Invalidate Key
            ]
        );
    }

    #[test]
    fn exactly_the_defined_identifiers_are_accepted() {
        let accepted: Vec<u8> = (0..=0xFF)
            .filter(|identifier| {
                let mut descriptor = SglDescriptor::new_zeroed();
                descriptor.identifier = *identifier;
                Sgl::parse(&descriptor).is_ok()
            })
            .collect();
        assert_eq!(
            accepted,
            [0x00, 0x01, 0x10, 0x20, 0x21, 0x30, 0x31, 0x40, 0x4F, 0x5A]
        );
    }

    #[test]
    fn in_capsule_ranges_end_inside_the_data() {
        let at = |offset_bytes, length_bytes| Sgl::InCapsule {
            offset_bytes,
            length_bytes,
        };
        assert_eq!(at(0, 8192).capsule_range(8192), Ok(0..8192));
        assert_eq!(at(8192, 0).capsule_range(8192), Ok(8192..8192));
        let status = |sgl: Sgl| sgl.capsule_range(8192).unwrap_err().status;
        assert_eq!(status(at(8193, 0)), Status::SGL_OFFSET_INVALID.dnr());
        assert_eq!(status(at(u64::MAX, 1)), Status::SGL_OFFSET_INVALID.dnr());
        assert_eq!(status(at(1, 8192)), Status::DATA_SGL_LENGTH_INVALID.dnr());
        assert_eq!(
            status(at(0, u32::MAX)),
            Status::DATA_SGL_LENGTH_INVALID.dnr()
        );
        assert_eq!(
            status(Sgl::EMPTY),
            Status::SGL_DESCRIPTOR_TYPE_INVALID.dnr()
        );
    }

    #[test]
    fn segments_are_whole_descriptors_up_to_the_limit() {
        let mut bytes = Vec::new();
        for sgl in every_form() {
            bytes.extend_from_slice(sgl.encode().as_bytes());
        }
        let parsed: Vec<_> = segment_descriptors(&bytes, 11)
            .unwrap()
            .map(Result::unwrap)
            .collect();
        assert_eq!(parsed, every_form());
        let status = |bytes: &[u8], max| match segment_descriptors(bytes, max) {
            Ok(_) => Status::SUCCESS,
            Err(error) => error.status.code(),
        };
        assert_eq!(
            status(&bytes, 10),
            Status::INVALID_NUMBER_OF_SGL_DESCRIPTORS
        );
        assert_eq!(
            status(&bytes[..17], 11),
            Status::INVALID_SGL_SEGMENT_DESCRIPTOR
        );
        assert_eq!(status(&[], 11), Status::INVALID_SGL_SEGMENT_DESCRIPTOR);
    }
}
