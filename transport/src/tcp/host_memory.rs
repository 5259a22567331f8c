//! Where the data of a command is at the host, by the rules of NVMe/TCP.

use capstan_nvme_proto::error::CommandError;
use capstan_nvme_proto::sqe::Sqe;
use capstan_nvme_proto::tcp::command::CommandData;
use capstan_nvme_proto::transfer::DataTransfer;

use crate::data::{CapsuleData, HostMemory, HostPlace, narrow};

/// As [`Queue::host_memory`](crate::Queue::host_memory), over NVMe/TCP.
///
/// # Errors
/// As [`CommandData::of`].
#[inline]
pub fn host_memory(
    sqe: &Sqe,
    transfer: DataTransfer,
    data: &mut CapsuleData,
) -> Result<HostMemory, CommandError> {
    if transfer.bytes() == 0 {
        return Ok(HostMemory::default());
    }
    let place = match CommandData::of(transfer, &sqe.sgl()?, data.len_bytes())? {
        CommandData::None => HostPlace::None,
        CommandData::InCapsule(range) => {
            data.cut(&range);
            HostPlace::InCapsule {
                length_bytes: narrow(range.len()),
            }
        }
        CommandData::Transport { length_bytes } => HostPlace::Transport {
            cid: sqe.cid.get(),
            offset_bytes: 0,
            length_bytes,
        },
    };
    Ok(HostMemory::new(place, None))
}

#[cfg(test)]
mod tests {
    use capstan_nvme_proto::opcode::IoOpcode;
    use capstan_nvme_proto::sgl::Sgl;

    use super::*;

    #[test]
    fn data_is_moved_by_the_identifier_of_the_command() {
        let mut sqe = Sqe::new(IoOpcode::READ.0, 7, 1);
        sqe.dptr = Sgl::Transport { length_bytes: 8192 }.encode();
        let read = DataTransfer::ControllerToHost { bytes: 4096 };
        let memory = host_memory(&sqe, read, &mut CapsuleData::None).unwrap();
        let expected = HostPlace::Transport {
            cid: 7,
            offset_bytes: 0,
            length_bytes: 4096,
        };
        assert_eq!(memory, HostMemory::new(expected, None));
        assert_eq!(memory.invalidate(), None);
    }
}
