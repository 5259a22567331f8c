//! Where the data of a command is, by its SGL, over NVMe/RDMA.
//!
//! Source: NVMe over RDMA Transport 1.1, section 3.2.1; NVMe Base 2.1, section 4.3.2.

use core::ops::Range;

use crate::error::{CommandError, ErrorLocation};
use crate::identify::SglSupport;
use crate::sgl::{Sgl, SglBase, segment_descriptors};
use crate::sqe::Sqe;
use crate::status::Status;
use crate::transfer::{DataSupport, DataTransfer};

/// Descriptors of an in-capsule Last Segment: MSDBD.
pub const SGL_DESCRIPTORS_MAX: u8 = 16;

/// What a controller that takes commands by these rules says of them.
pub const SUPPORT: DataSupport = DataSupport {
    sgls: SglSupport::SUPPORTED
        .union(SglSupport::OVERSIZED)
        .union(SglSupport::OFFSET)
        .union(SglSupport::KEYED),
    descriptors_max: SGL_DESCRIPTORS_MAX,
    in_capsule_bytes: 8192,
    in_capsule_offset_16bytes: 0,
};
const _: () = assert!(SGL_DESCRIPTORS_MAX as u32 * 16 <= SUPPORT.in_capsule_bytes);

/// What followed the SQE in a command capsule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CapsuleData<'a> {
    /// These bytes; none where the capsule ended behind the SQE.
    Bytes(&'a [u8]),
    /// So many bytes, which stay where they arrived: they can be data, but nothing is read from
    /// them, so a list of SGL descriptors in them is refused.
    InPlace(u32),
}

impl CapsuleData<'_> {
    /// Bytes behind the SQE.
    fn len(self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::InPlace(length_bytes) => usize::try_from(length_bytes).unwrap_or(usize::MAX),
        }
    }
}

/// Where the data of a command is, and how many bytes of it to move: exactly as many as the
/// command needs, even when the host's buffers are larger.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CommandData<'a> {
    /// The command has no data.
    None,
    /// Host to controller only: in the command capsule, at this place of the data there.
    InCapsule(Range<usize>),
    /// One buffer in host memory.
    Keyed(KeyedBuffer),
    /// Several buffers in host memory, listed in the command capsule.
    KeyedList(KeyedList<'a>),
}

/// A buffer in host memory that RDMA reaches with `rkey`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyedBuffer {
    /// Host memory address.
    pub address: u64,
    /// Remote key (STag).
    pub rkey: u32,
    /// Bytes to move, at most what the host's descriptor allows.
    pub length_bytes: u32,
    /// The host asks for the response to be a Send with Invalidate of `rkey`.
    pub invalidate: bool,
}

/// Buffers in host memory, described by an SGL Last Segment inside the command capsule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyedList<'a> {
    /// The descriptors, 1 to [`SGL_DESCRIPTORS_MAX`].
    segment: &'a [u8],
    /// Bytes to move, over all descriptors.
    length_bytes: u32,
    /// The key to invalidate with the response: a response can invalidate one, so it is that of
    /// the last descriptor which asks for it.
    invalidate: Option<u32>,
}

impl<'a> KeyedList<'a> {
    /// The buffers, in order, cut so that they add up to what the command needs; none is empty.
    pub fn buffers(&self) -> impl Iterator<Item = KeyedBuffer> + use<'a> {
        let descriptors = segment_descriptors(self.segment, SGL_DESCRIPTORS_MAX.into()).ok();
        let mut left_bytes = self.length_bytes;
        descriptors
            .into_iter()
            .flatten()
            .filter_map(Result::ok)
            .filter_map(move |sgl| {
                let buffer = keyed(&sgl, left_bytes)?;
                left_bytes = left_bytes.saturating_sub(buffer.length_bytes);
                (buffer.length_bytes > 0).then_some(buffer)
            })
    }
}

impl<'a> CommandData<'a> {
    /// Bytes of data to move.
    #[must_use]
    pub fn length_bytes(&self) -> u32 {
        match self {
            Self::None => 0,
            Self::InCapsule(range) => u32::try_from(range.len()).unwrap_or(u32::MAX),
            Self::Keyed(buffer) => buffer.length_bytes,
            Self::KeyedList(list) => list.length_bytes,
        }
    }

    /// The key the host wants invalidated by the response.
    #[must_use]
    #[inline]
    pub fn rkey_to_invalidate(&self) -> Option<u32> {
        match self {
            Self::None | Self::InCapsule(_) => None,
            Self::Keyed(buffer) => buffer.invalidate.then_some(buffer.rkey),
            Self::KeyedList(list) => list.invalidate,
        }
    }

    /// Of the command `sqe`, which needs `transfer` and whose capsule carried `capsule_data` after
    /// the SQE. A longer SGL than needed is allowed.
    ///
    /// # Errors
    /// SGL Descriptor Type Invalid for anything but a Keyed SGL Data Block, a Last Segment of them
    /// in the capsule or, for data from the host, an SGL Data Block with an offset; Data SGL Length
    /// Invalid where the SGL has fewer bytes than the command needs; SGL Offset Invalid, Invalid
    /// SGL Segment Descriptor and Invalid Number of SGL Descriptors for data and lists that the
    /// capsule does not have.
    #[inline]
    pub fn of(
        transfer: DataTransfer,
        sqe: &Sqe,
        capsule_data: CapsuleData<'a>,
    ) -> Result<Self, CommandError> {
        let needed_bytes = transfer.bytes();
        if needed_bytes == 0 {
            return Ok(Self::None);
        }
        let from_host = matches!(transfer, DataTransfer::HostToController { .. });
        let needed_bytes = u32::try_from(needed_bytes).map_err(|_| too_long(needed_bytes))?;
        let sgl = sqe.sgl()?;
        match sgl {
            Sgl::Keyed { length_bytes, .. } => {
                require_length(u64::from(length_bytes), needed_bytes)?;
                match keyed(&sgl, needed_bytes) {
                    Some(buffer) => Ok(Self::Keyed(buffer)),
                    None => Err(type_invalid(sqe)),
                }
            }
            Sgl::InCapsule { length_bytes, .. } if from_host => {
                let Range { start, .. } = sgl.capsule_range(capsule_data.len())?;
                require_length(u64::from(length_bytes), needed_bytes)?;
                let needed_bytes = usize::try_from(needed_bytes).unwrap_or(usize::MAX);
                Ok(Self::InCapsule(start..start.saturating_add(needed_bytes)))
            }
            Sgl::Segment {
                base: SglBase::CapsuleOffset(_),
                last: true,
                ..
            } => match capsule_data {
                CapsuleData::Bytes(bytes) => Self::list(&sgl, needed_bytes, bytes),
                CapsuleData::InPlace(_) => Err(type_invalid(sqe)),
            },
            Sgl::InCapsule { .. }
            | Sgl::Segment { .. }
            | Sgl::DataBlock { .. }
            | Sgl::BitBucket { .. }
            | Sgl::Transport { .. } => Err(type_invalid(sqe)),
        }
    }

    fn list(sgl: &Sgl, needed_bytes: u32, capsule_data: &'a [u8]) -> Result<Self, CommandError> {
        let range = sgl.capsule_range(capsule_data.len())?;
        let segment = capsule_data.get(range).unwrap_or_default();
        let descriptors = segment_descriptors(segment, SGL_DESCRIPTORS_MAX.into())?;
        let mut available_bytes: u64 = 0;
        let mut invalidate = None;
        for descriptor in descriptors {
            let Sgl::Keyed {
                length_bytes,
                rkey,
                invalidate: wanted,
                ..
            } = descriptor?
            else {
                return Err(CommandError {
                    status: Status::SGL_DESCRIPTOR_TYPE_INVALID.dnr(),
                    location: ErrorLocation::sqe(DPTR_BYTE),
                    field: "descriptor of an SGL Last Segment",
                    value: 0,
                    expected: "a Keyed SGL Data Block",
                });
            };
            available_bytes = available_bytes.saturating_add(u64::from(length_bytes));
            if wanted {
                invalidate = Some(rkey);
            }
        }
        require_length(available_bytes, needed_bytes)?;
        Ok(Self::KeyedList(KeyedList {
            segment,
            length_bytes: needed_bytes,
            invalidate,
        }))
    }
}

/// First byte of SGL descriptor 1 in the submission queue entry.
const DPTR_BYTE: u8 = 24;

fn keyed(sgl: &Sgl, at_most_bytes: u32) -> Option<KeyedBuffer> {
    match *sgl {
        Sgl::Keyed {
            address,
            length_bytes,
            rkey,
            invalidate,
        } => Some(KeyedBuffer {
            address,
            rkey,
            length_bytes: length_bytes.min(at_most_bytes),
            invalidate,
        }),
        Sgl::DataBlock { .. }
        | Sgl::InCapsule { .. }
        | Sgl::BitBucket { .. }
        | Sgl::Segment { .. }
        | Sgl::Transport { .. } => None,
    }
}

/// A longer SGL than needed is allowed (Identify Controller SGLS bit 18), a shorter one is not.
fn require_length(available_bytes: u64, needed_bytes: u32) -> Result<(), CommandError> {
    if available_bytes >= u64::from(needed_bytes) {
        return Ok(());
    }
    Err(CommandError {
        status: Status::DATA_SGL_LENGTH_INVALID.dnr(),
        location: ErrorLocation::sqe(32),
        field: "SGL length",
        value: available_bytes,
        expected: "at least the bytes the command transfers",
    })
}

fn too_long(value: u64) -> CommandError {
    CommandError::invalid_field("transfer length", 40, value, "at most MDTS")
}

fn type_invalid(sqe: &Sqe) -> CommandError {
    let identifier = sqe
        .dptr
        .descriptor_type()
        .0
        .wrapping_shl(4)
        .wrapping_add(sqe.dptr.subtype().0);
    CommandError {
        status: Status::SGL_DESCRIPTOR_TYPE_INVALID.dnr(),
        location: ErrorLocation::sqe(39),
        field: "SGL Identifier",
        value: u64::from(identifier),
        expected: "a Keyed Data Block, an in-capsule Last Segment of them, or, for data from the \
                   host, an in-capsule Data Block",
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::opcode::IoOpcode;
    use std::vec::Vec;
    use zerocopy::IntoBytes;

    const PULL: DataTransfer = DataTransfer::HostToController { bytes: 4096 };
    const PUSH: DataTransfer = DataTransfer::ControllerToHost { bytes: 4096 };

    fn keyed_sgl(length_bytes: u32, rkey: u32, invalidate: bool) -> Sgl {
        Sgl::Keyed {
            address: 0x1000,
            length_bytes,
            rkey,
            invalidate,
        }
    }

    fn sqe(sgl: Sgl) -> Sqe {
        let mut sqe = Sqe::new(IoOpcode::WRITE.0, 1, 1);
        sqe.dptr = sgl.encode();
        sqe
    }

    fn status(sgl: Sgl, data: DataTransfer, capsule_data: &[u8]) -> Status {
        CommandData::of(data, &sqe(sgl), CapsuleData::Bytes(capsule_data))
            .unwrap_err()
            .status
    }

    #[test]
    fn a_keyed_buffer_is_cut_to_what_the_command_needs() {
        let sgl = keyed_sgl(8192, 9, true);
        let data = CommandData::of(PUSH, &sqe(sgl), CapsuleData::Bytes(&[])).unwrap();
        assert_eq!(
            data,
            CommandData::Keyed(KeyedBuffer {
                address: 0x1000,
                rkey: 9,
                length_bytes: 4096,
                invalidate: true
            })
        );
        assert_eq!(data.rkey_to_invalidate(), Some(9));
        assert_eq!(
            status(keyed_sgl(4095, 9, true), PUSH, &[]),
            Status::DATA_SGL_LENGTH_INVALID.dnr()
        );
    }

    #[test]
    fn in_capsule_data_must_be_there_and_come_from_the_host() {
        let inline = |offset_bytes, length_bytes| Sgl::InCapsule {
            offset_bytes,
            length_bytes,
        };
        let data = [0; 4100];
        for data in [CapsuleData::Bytes(&data), CapsuleData::InPlace(4100)] {
            assert_eq!(
                CommandData::of(PULL, &sqe(inline(4, 4096)), data),
                Ok(CommandData::InCapsule(4..4 + 4096))
            );
        }
        let cases = [
            (inline(4101, 0), PULL, Status::SGL_OFFSET_INVALID),
            (inline(5, 4096), PULL, Status::DATA_SGL_LENGTH_INVALID),
            (inline(0, 4095), PULL, Status::DATA_SGL_LENGTH_INVALID),
            (inline(0, 4096), PUSH, Status::SGL_DESCRIPTOR_TYPE_INVALID),
            (inline(u64::MAX, 4096), PULL, Status::SGL_OFFSET_INVALID),
        ];
        for (sgl, transfer, expected) in cases {
            assert_eq!(status(sgl, transfer, &data), expected.dnr(), "{sgl:?}");
        }
    }

    #[test]
    fn other_descriptors_are_of_an_invalid_type() {
        let others = [
            Sgl::DataBlock {
                address: 0,
                length_bytes: 4096,
            },
            Sgl::BitBucket { length_bytes: 4096 },
            Sgl::Transport { length_bytes: 4096 },
            Sgl::Segment {
                base: SglBase::Address(0),
                length_bytes: 16,
                last: true,
            },
            Sgl::Segment {
                base: SglBase::CapsuleOffset(0),
                length_bytes: 16,
                last: false,
            },
        ];
        for sgl in others {
            assert_eq!(
                status(sgl, PULL, &[0; 64]),
                Status::SGL_DESCRIPTOR_TYPE_INVALID.dnr()
            );
        }
    }

    #[test]
    fn no_list_is_read_from_data_that_stays_in_place() {
        let (sgl, capsule) = list(&[keyed_sgl(4096, 1, false)]);
        let len = u32::try_from(capsule.len()).unwrap();
        let refused = CommandData::of(PULL, &sqe(sgl), CapsuleData::InPlace(len)).unwrap_err();
        let expected = Status::SGL_DESCRIPTOR_TYPE_INVALID.dnr();
        assert_eq!(refused.status, expected);
    }

    fn list(descriptors: &[Sgl]) -> (Sgl, Vec<u8>) {
        let bytes: Vec<u8> = descriptors
            .iter()
            .flat_map(|sgl| sgl.encode().as_bytes().to_vec())
            .collect();
        let sgl = Sgl::Segment {
            base: SglBase::CapsuleOffset(0),
            length_bytes: u32::try_from(bytes.len()).unwrap(),
            last: true,
        };
        (sgl, bytes)
    }

    #[test]
    fn a_list_is_walked_up_to_what_the_command_needs() {
        let (sgl, capsule) = list(&[
            keyed_sgl(1000, 1, true),
            keyed_sgl(0, 2, false),
            keyed_sgl(3000, 3, true),
            keyed_sgl(8000, 4, false),
            keyed_sgl(8000, 5, false),
        ]);
        let data = CommandData::of(PUSH, &sqe(sgl), CapsuleData::Bytes(&capsule)).unwrap();
        assert_eq!(data.rkey_to_invalidate(), Some(3));
        assert_eq!(data.length_bytes(), 4096);
        let CommandData::KeyedList(list) = data else {
            panic!("{data:?}");
        };
        let moved: Vec<_> = list
            .buffers()
            .map(|buffer| (buffer.rkey, buffer.length_bytes))
            .collect();
        assert_eq!(moved, [(1, 1000), (3, 3000), (4, 96)]);
    }

    #[test]
    fn faults_of_a_list_have_their_statuses() {
        let long = list(&[keyed_sgl(512, 1, false); 17]);
        let short = list(&[keyed_sgl(2047, 1, false); 2]);
        let inline = list(&[Sgl::BitBucket { length_bytes: 4096 }]);
        let empty = list(&[]);
        let cases = [
            (long, Status::INVALID_NUMBER_OF_SGL_DESCRIPTORS),
            (short, Status::DATA_SGL_LENGTH_INVALID),
            (inline, Status::SGL_DESCRIPTOR_TYPE_INVALID),
            (empty, Status::INVALID_SGL_SEGMENT_DESCRIPTOR),
        ];
        for ((sgl, capsule), expected) in cases {
            assert_eq!(status(sgl, PULL, &capsule), expected.dnr());
        }
    }

    #[test]
    fn commands_without_data_ignore_their_sgl() {
        let bucket = Sgl::BitBucket { length_bytes: 1 };
        for data in [
            DataTransfer::None,
            DataTransfer::HostToController { bytes: 0 },
        ] {
            assert_eq!(
                CommandData::of(data, &sqe(bucket), CapsuleData::Bytes(&[])),
                Ok(CommandData::None)
            );
        }
    }
}
