//! Where the data of a command is at the host, by the rules of NVMe/RDMA.

use capstan_nvme_proto::error::CommandError;
use capstan_nvme_proto::rdma_sgl::{self, CommandData};
use capstan_nvme_proto::sqe::Sqe;
use capstan_nvme_proto::transfer::DataTransfer;

use crate::data::{CapsuleData, HostMemory, HostPlace, KeyedBuffer, narrow};

/// As [`Queue::host_memory`](crate::Queue::host_memory), over NVMe/RDMA.
///
/// # Errors
/// As [`CommandData::of`].
#[inline]
pub fn host_memory(
    sqe: &Sqe,
    transfer: DataTransfer,
    data: &mut CapsuleData,
) -> Result<HostMemory, CommandError> {
    let capsule_data = match data {
        CapsuleData::None => rdma_sgl::CapsuleData::Bytes(&[]),
        CapsuleData::Copied(bytes) => rdma_sgl::CapsuleData::Bytes(bytes),
        CapsuleData::Landed(landed) => rdma_sgl::CapsuleData::Bytes(landed.bytes()),
        CapsuleData::InPlace(in_place) => rdma_sgl::CapsuleData::InPlace(in_place.len_bytes),
    };
    let located = CommandData::of(transfer, sqe, capsule_data)?;
    let invalidate = located.rkey_to_invalidate();
    let place = match located {
        CommandData::None => HostPlace::None,
        CommandData::InCapsule(range) => {
            data.cut(&range);
            HostPlace::InCapsule {
                length_bytes: narrow(range.len()),
            }
        }
        CommandData::Keyed(buffer) => HostPlace::Keyed(keyed(&buffer)),
        CommandData::KeyedList(list) => {
            HostPlace::KeyedList(list.buffers().map(|buffer| keyed(&buffer)).collect())
        }
    };
    Ok(HostMemory::new(place, invalidate))
}

#[inline]
fn keyed(buffer: &rdma_sgl::KeyedBuffer) -> KeyedBuffer {
    KeyedBuffer {
        address: buffer.address,
        rkey: buffer.rkey,
        len_bytes: buffer.length_bytes,
    }
}

#[cfg(test)]
mod tests {
    use capstan_nvme_proto::opcode::IoOpcode;
    use capstan_nvme_proto::sgl::{Sgl, SglBase};
    use capstan_nvme_proto::status::Status;
    use zerocopy::IntoBytes;

    use super::*;
    use crate::data::InPlace;

    const PULL: DataTransfer = DataTransfer::HostToController { bytes: 4096 };

    fn sqe(sgl: Sgl) -> Sqe {
        let mut sqe = Sqe::new(IoOpcode::WRITE.0, 1, 1);
        sqe.dptr = sgl.encode();
        sqe
    }

    fn block(length_bytes: u32, rkey: u32, invalidate: bool) -> Sgl {
        Sgl::Keyed {
            address: 0x1000,
            length_bytes,
            rkey,
            invalidate,
        }
    }

    fn buffer(rkey: u32, len_bytes: u32) -> KeyedBuffer {
        KeyedBuffer {
            address: 0x1000,
            rkey,
            len_bytes,
        }
    }

    #[test]
    fn keys_are_those_of_the_descriptors() {
        let sgl = block(8192, 9, true);
        let memory = host_memory(&sqe(sgl), PULL, &mut CapsuleData::None).unwrap();
        assert_eq!(memory.keyed(), [buffer(9, 4096)]);
        assert_eq!(memory.invalidate(), Some(9));
        assert!(memory.is_remote() && !memory.is_in_capsule());
        let list = [block(1000, 1, true), block(8000, 2, false)];
        let list = list.map(|sgl| sgl.encode());
        let sgl = Sgl::Segment {
            base: SglBase::CapsuleOffset(0),
            length_bytes: 32,
            last: true,
        };
        let mut data = CapsuleData::Copied(list.as_bytes().into());
        let memory = host_memory(&sqe(sgl), PULL, &mut data).unwrap();
        assert_eq!(memory.keyed(), [buffer(1, 1000), buffer(2, 3096)]);
        assert_eq!((memory.invalidate(), memory.len_bytes()), (Some(1), 4096));
    }

    #[test]
    fn the_data_of_a_capsule_is_cut_to_that_of_the_command() {
        let sqe = |offset_bytes| {
            sqe(Sgl::InCapsule {
                offset_bytes,
                length_bytes: 4096,
            })
        };
        let mut data = CapsuleData::InPlace(InPlace {
            message: 1,
            offset_bytes: 0,
            len_bytes: 4100,
        });
        let memory = host_memory(&sqe(4), PULL, &mut data).unwrap();
        assert!(memory.is_in_capsule() && !memory.is_remote());
        assert_eq!((memory.len_bytes(), data.len_bytes()), (4096, 4096));
        let mut data = CapsuleData::Copied((0..=u8::MAX).cycle().take(4100).collect());
        let memory = host_memory(&sqe(4), PULL, &mut data).unwrap();
        assert_eq!(memory.len_bytes(), 4096);
        let CapsuleData::Copied(bytes) = &mut data else {
            panic!("{data:?}");
        };
        assert_eq!((bytes.len(), bytes[0]), (4096, 4));
        let error = host_memory(&sqe(4), PULL, &mut data).unwrap_err();
        assert_eq!(error.status, Status::DATA_SGL_LENGTH_INVALID.dnr());
    }
}
