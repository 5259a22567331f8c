//! Where the data of a command is, checked: the SGL of the command against what the command needs
//! and what a controller of its transport with this Identify data accepts.

use core::ops::Range;

use capstan_nvme_proto::error::{CommandError, ErrorLocation};
use capstan_nvme_proto::sgl::{Sgl, SglBase, segment_descriptors};
use capstan_nvme_proto::sqe::Sqe;
use capstan_nvme_proto::status::Status;
use capstan_nvme_proto::tcp::command::CommandData;
use capstan_nvme_proto::transfer::DataTransfer;

use crate::bounds::SGL_DESCRIPTORS_MAX;
use crate::config::Transport;

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
            Self::InPlace(length_bytes) => to_usize(length_bytes),
        }
    }
}

/// Where the data of a command is, and how many bytes of it to move: exactly as many as the
/// command needs, even when the host's buffers are larger.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transfer {
    /// The command has no data.
    None,
    /// Host to controller only: the data came in the command capsule.
    InCapsule(InCapsule),
    /// One buffer in host memory.
    Keyed(KeyedBuffer),
    /// Several buffers in host memory, listed in the command capsule.
    KeyedList(KeyedList),
    /// NVMe/TCP moves it, by the command's identifier.
    Transport(TransportData),
}

/// Data that NVMe/TCP moves with H2CData or C2HData.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TransportData {
    /// Command Identifier.
    pub cid: u16,
    /// Bytes to move.
    pub length_bytes: u32,
}

/// Data inside the command capsule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InCapsule {
    /// Offset from the start of the in-capsule data (from byte 64 of the capsule).
    pub offset_bytes: u32,
    /// Length.
    pub length_bytes: u32,
}

impl InCapsule {
    /// The range in the in-capsule data.
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        let start = to_usize(self.offset_bytes);
        start..start.saturating_add(to_usize(self.length_bytes))
    }
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
pub struct KeyedList {
    /// Offset of the first descriptor from the start of the in-capsule data.
    pub offset_bytes: u32,
    /// Descriptors, 1 to [`SGL_DESCRIPTORS_MAX`].
    pub descriptors: u8,
    /// Bytes to move, over all descriptors.
    pub length_bytes: u32,
    /// The key to invalidate with the response: a response can invalidate one, so it is that of
    /// the last descriptor which asks for it.
    pub invalidate: Option<u32>,
}

impl KeyedList {
    /// The buffers, in order, cut so that they add up to `length_bytes`. `capsule_data` is the
    /// in-capsule data the command was accepted with; other bytes give no or other buffers, but
    /// never more bytes in sum.
    pub fn buffers(&self, capsule_data: &[u8]) -> impl Iterator<Item = KeyedBuffer> {
        let start = to_usize(self.offset_bytes);
        let segment_bytes = usize::from(self.descriptors).saturating_mul(16);
        let segment = capsule_data
            .get(start..start.saturating_add(segment_bytes))
            .unwrap_or_default();
        let descriptors = segment_descriptors(segment, SGL_DESCRIPTORS_MAX.into()).ok();
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

impl Transfer {
    /// Bytes of data to move.
    #[must_use]
    pub const fn length_bytes(&self) -> u32 {
        match self {
            Self::None => 0,
            Self::InCapsule(data) => data.length_bytes,
            Self::Keyed(buffer) => buffer.length_bytes,
            Self::KeyedList(list) => list.length_bytes,
            Self::Transport(data) => data.length_bytes,
        }
    }

    /// The key the host wants invalidated by the response.
    #[must_use]
    pub const fn rkey_to_invalidate(&self) -> Option<u32> {
        match self {
            Self::None | Self::InCapsule(_) | Self::Transport(_) => None,
            Self::Keyed(buffer) => {
                if buffer.invalidate {
                    Some(buffer.rkey)
                } else {
                    None
                }
            }
            Self::KeyedList(list) => list.invalidate,
        }
    }

    /// Checks the SGL of `sqe` for a command that needs `data`; the capsule came by `transport` and
    /// carried `capsule_data` after the SQE.
    ///
    /// NVMe Base 2.1, section 4.3.2; NVMe/RDMA Transport 1.1, section 3.2.1.
    pub(crate) fn resolve(
        transport: Transport,
        sqe: &Sqe,
        data: DataTransfer,
        capsule_data: CapsuleData<'_>,
    ) -> Result<Self, CommandError> {
        let (needed_bytes, from_host) = match data {
            DataTransfer::None => return Ok(Self::None),
            DataTransfer::HostToController { bytes } => (bytes, true),
            DataTransfer::ControllerToHost { bytes } => (bytes, false),
        };
        if needed_bytes == 0 {
            return Ok(Self::None);
        }
        if transport == Transport::Tcp {
            return Self::by_tcp(sqe, data, capsule_data);
        }
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
                let range = sgl.capsule_range(capsule_data.len())?;
                require_length(u64::from(length_bytes), needed_bytes)?;
                Ok(Self::InCapsule(InCapsule {
                    offset_bytes: to_u32(range.start),
                    length_bytes: needed_bytes,
                }))
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

    /// NVMe over TCP Transport 1.1 (SGL Descriptors).
    fn by_tcp(
        sqe: &Sqe,
        data: DataTransfer,
        capsule_data: CapsuleData<'_>,
    ) -> Result<Self, CommandError> {
        let capsule_bytes = to_u32(capsule_data.len());
        Ok(match CommandData::of(data, &sqe.sgl()?, capsule_bytes)? {
            CommandData::None => Self::None,
            CommandData::InCapsule(range) => Self::InCapsule(InCapsule {
                offset_bytes: to_u32(range.start),
                length_bytes: to_u32(range.len()),
            }),
            CommandData::Transport { length_bytes } => Self::Transport(TransportData {
                cid: sqe.cid.get(),
                length_bytes,
            }),
        })
    }

    fn list(sgl: &Sgl, needed_bytes: u32, capsule_data: &[u8]) -> Result<Self, CommandError> {
        let range = sgl.capsule_range(capsule_data.len())?;
        let offset_bytes = to_u32(range.start);
        let segment = capsule_data.get(range).unwrap_or_default();
        let descriptors = segment_descriptors(segment, SGL_DESCRIPTORS_MAX.into())?;
        let count = u8::try_from(descriptors.len()).unwrap_or(SGL_DESCRIPTORS_MAX);
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
            offset_bytes,
            descriptors: count,
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

fn to_usize(bytes: u32) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// Offsets in a capsule are below 2^32 because receive buffers are.
fn to_u32(offset: usize) -> u32 {
    u32::try_from(offset).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use capstan_nvme_proto::opcode::IoOpcode;
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
        Transfer::resolve(
            Transport::Rdma,
            &sqe(sgl),
            data,
            CapsuleData::Bytes(capsule_data),
        )
        .unwrap_err()
        .status
    }

    #[test]
    fn a_keyed_buffer_is_cut_to_what_the_command_needs() {
        let transfer = Transfer::resolve(
            Transport::Rdma,
            &sqe(keyed_sgl(8192, 9, true)),
            PUSH,
            CapsuleData::Bytes(&[]),
        )
        .unwrap();
        assert_eq!(
            transfer,
            Transfer::Keyed(KeyedBuffer {
                address: 0x1000,
                rkey: 9,
                length_bytes: 4096,
                invalidate: true
            })
        );
        assert_eq!(transfer.rkey_to_invalidate(), Some(9));
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
            let transfer =
                Transfer::resolve(Transport::Rdma, &sqe(inline(4, 4096)), PULL, data).unwrap();
            assert_eq!(
                transfer,
                Transfer::InCapsule(InCapsule {
                    offset_bytes: 4,
                    length_bytes: 4096
                })
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
        let refused =
            Transfer::resolve(Transport::Rdma, &sqe(sgl), PULL, CapsuleData::InPlace(len))
                .unwrap_err();
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
        let transfer = Transfer::resolve(
            Transport::Rdma,
            &sqe(sgl),
            PUSH,
            CapsuleData::Bytes(&capsule),
        )
        .unwrap();
        assert_eq!(transfer.rkey_to_invalidate(), Some(3));
        assert_eq!(transfer.length_bytes(), 4096);
        let Transfer::KeyedList(list) = transfer else {
            panic!("{transfer:?}");
        };
        let moved: Vec<_> = list
            .buffers(&capsule)
            .map(|buffer| (buffer.rkey, buffer.length_bytes))
            .collect();
        assert_eq!(moved, [(1, 1000), (3, 3000), (4, 96)]);
        assert_eq!(list.buffers(&[]).count(), 0);
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
                Transfer::resolve(Transport::Rdma, &sqe(bucket), data, CapsuleData::Bytes(&[])),
                Ok(Transfer::None)
            );
        }
    }
}
