//! Get LBA Status.
//!
//! Source: NVM Command Set 1.1, section 4.2.1 (Get LBA Status command).

use crate::bits;
use crate::lba_status::ActionType;
use crate::sqe::Sqe;
use crate::zeroes_based;

/// Get LBA Status: what the controller knows of a range of logical blocks, as a
/// [`LbaStatusList`](crate::lba_status::LbaStatusList).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct GetLbaStatus {
    /// Namespace.
    pub nsid: u32,
    /// SLBA, Starting LBA.
    pub slba: u64,
    /// Bytes to return at most: a multiple of 4, 4 to 2^34 (MNDW on the wire: dwords, 0's based).
    pub length_bytes: u64,
    /// ATYPE, Action Type: what is asked.
    pub action: ActionType,
    /// RL, Range Length in logical blocks; 0 is all up to the end of the namespace.
    pub range_lbas: u16,
}

impl GetLbaStatus {
    pub(super) fn parse(sqe: &Sqe) -> Self {
        let cdw13 = sqe.cdw13.get();
        Self {
            nsid: sqe.nsid.get(),
            slba: bits::dwords(sqe.cdw10.get(), sqe.cdw11.get()),
            length_bytes: zeroes_based::from_u32(sqe.cdw12.get()).saturating_mul(4),
            action: ActionType(bits::byte(cdw13, 24)),
            range_lbas: bits::low16(cdw13),
        }
    }

    pub(super) fn encode(self, sqe: &mut Sqe) {
        // As Get Log Page: what cannot be said becomes the nearest length that can.
        let dwords = self.length_bytes.div_ceil(4).clamp(1, 1 << 32);
        sqe.nsid = self.nsid.into();
        sqe.cdw10 = bits::low32(self.slba).into();
        sqe.cdw11 = bits::high32(self.slba).into();
        sqe.cdw12 = zeroes_based::to_u32(dwords).unwrap_or(u32::MAX).into();
        sqe.cdw13 =
            (u32::from(self.range_lbas) | bits::place(u32::from(self.action.0), 24, 8)).into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::AdminCommand;
    use crate::sgl::Sgl;
    use crate::transfer::DataTransfer;
    use zerocopy::IntoBytes;

    #[test]
    fn range_length_and_action_are_in_dwords_10_to_13() {
        let get = AdminCommand::GetLbaStatus(GetLbaStatus {
            nsid: 0x0102_0304,
            slba: 0x1122_3344_5566_7788,
            length_bytes: 4096,
            action: ActionType::ALLOCATED,
            range_lbas: 0x99AA,
        });
        let sqe = get.encode(7, Sgl::EMPTY);
        assert_eq!(sqe.opcode, 0x86);
        let bytes = sqe.as_bytes();
        assert_eq!(bytes[4..8], [4, 3, 2, 1]);
        assert_eq!(
            bytes[40..48],
            [0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11]
        );
        assert_eq!(bytes[48..52], [0xFF, 0x03, 0, 0]);
        assert_eq!(bytes[52..56], [0xAA, 0x99, 0, 0x02]);
        assert_eq!(AdminCommand::parse(&sqe), Ok(get));
        assert_eq!(
            get.data_transfer(),
            DataTransfer::ControllerToHost { bytes: 4096 }
        );
    }
}
