//! Cross-Controller Reset.
//!
//! Source: NVMe Base 2.3, section 5.4.3 (Cross-Controller Reset command), which took it from TP8028
//! (Rapid Path Failure Recovery).

use crate::bits;
use crate::sqe::Sqe;

/// Cross-Controller Reset: asks this controller to reset another controller of the same host and
/// NVM subsystem, the impacted controller.
///
/// What names it is what its own Identify Controller data structure says, so that a host cannot
/// reset a later controller that was given the same identifier.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CrossControllerReset {
    /// ICID, Impacted Controller Identifier: its CNTLID.
    pub icid: u16,
    /// CIU, Controller Instance Uniquifier of the impacted controller.
    pub ciu: u8,
    /// CIRN, Controller Instance Random Number of the impacted controller.
    pub cirn: u64,
}

impl CrossControllerReset {
    /// Dword 0 of the completion: bit 0 is IRS, Immediate Reset Successful. It is set when the
    /// impacted controller had been reset, or was no more, as the command completed; clear when the
    /// reset goes on and an entry of the Cross-Controller Reset log page tells how it ends.
    #[must_use]
    pub const fn completion_dw0(immediate: bool) -> u32 {
        immediate as u32
    }

    /// Whether dword 0 of a successful completion says that the reset is over (IRS).
    #[must_use]
    pub const fn was_immediate(dw0: u32) -> bool {
        bits::bit(dw0, 0)
    }

    pub(super) fn parse(sqe: &Sqe) -> Self {
        let cdw10 = sqe.cdw10.get();
        Self {
            icid: bits::low16(cdw10),
            ciu: bits::byte(cdw10, 16),
            cirn: bits::dwords(sqe.cdw12.get(), sqe.cdw13.get()),
        }
    }

    pub(super) fn encode(self, sqe: &mut Sqe) {
        sqe.cdw10 = bits::words(self.icid, u16::from(self.ciu)).into();
        sqe.cdw12 = bits::low32(self.cirn).into();
        sqe.cdw13 = bits::high32(self.cirn).into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::AdminCommand;
    use crate::sgl::Sgl;
    use zerocopy::IntoBytes;

    #[test]
    fn the_instance_is_in_dwords_10_12_and_13() {
        let reset = AdminCommand::CrossControllerReset(CrossControllerReset {
            icid: 0x1122,
            ciu: 0x33,
            cirn: 0x4455_6677_8899_AABB,
        });
        let sqe = reset.encode(7, Sgl::EMPTY);
        assert_eq!(sqe.opcode, 0x38);
        assert_eq!(sqe.as_bytes()[40..48], [0x22, 0x11, 0x33, 0, 0, 0, 0, 0]);
        assert_eq!(
            sqe.as_bytes()[48..56],
            [0xBB, 0xAA, 0x99, 0x88, 0x77, 0x66, 0x55, 0x44]
        );
        assert_eq!(AdminCommand::parse(&sqe), Ok(reset));
    }

    #[test]
    fn an_immediate_reset_is_said_with_a_set_bit() {
        assert_eq!(CrossControllerReset::completion_dw0(true), 1);
        assert_eq!(CrossControllerReset::completion_dw0(false), 0);
        assert!(CrossControllerReset::was_immediate(0xFFFF_FFFF));
        assert!(!CrossControllerReset::was_immediate(0xFFFF_FFFE));
    }
}
