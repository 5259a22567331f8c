//! The completion queue entry: 16 bytes, over fabrics the whole response capsule.

use core::mem::offset_of;

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::bits;
use crate::status::Status;

/// Completion queue entry. NVMe Base 2.1, section 4.2 (Completion Queue Entry);
/// 16 bytes.
#[repr(C)]
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
pub struct Cqe {
    /// Dword 0: command specific result.
    pub dw0: U32,
    /// Dword 1: command specific result (the high half of a Property Get value).
    pub dw1: U32,
    /// SQ Head Pointer: how far the controller has consumed the submission queue. FFFFh when
    /// Connect disabled SQ flow control.
    pub sqhd: U16,
    /// SQ Identifier. Reserved over fabrics: zero.
    pub sqid: U16,
    /// Command Identifier of the completed command.
    pub cid: U16,
    /// Phase tag in bit 0 (unused over fabrics: zero), [`Status`] in bits 15:1.
    pub status_and_phase: U16,
}

const _: () = {
    assert!(size_of::<Cqe>() == 16 && align_of::<Cqe>() == 1);
    assert!(offset_of!(Cqe, dw1) == 4);
    assert!(offset_of!(Cqe, sqhd) == 8);
    assert!(offset_of!(Cqe, sqid) == 10);
    assert!(offset_of!(Cqe, cid) == 12);
    assert!(offset_of!(Cqe, status_and_phase) == 14);
};

impl Cqe {
    /// Bytes of a completion queue entry.
    pub const SIZE_BYTES: usize = 16;

    /// SQHD of a queue whose Connect disabled SQ flow control.
    pub const SQHD_FLOW_CONTROL_DISABLED: u16 = 0xFFFF;

    /// A completion as a response capsule carries it: no SQ Identifier, phase tag zero.
    #[must_use]
    pub fn new(cid: u16, sqhd: u16, status: Status, dw0: u32) -> Self {
        let status_and_phase = status.to_bits() << 1;
        let dwords_2_and_3 =
            u64::from(sqhd) | u64::from(cid) << 32 | u64::from(status_and_phase) << 48;
        // In two pieces, as the sender loads it again at once.
        zerocopy::transmute!([u64::from(dw0).to_le(), dwords_2_and_3.to_le()])
    }

    /// This completion with `value` in dwords 0 and 1.
    #[must_use]
    pub fn with_result(mut self, value: u64) -> Self {
        self.dw0 = bits::low32(value).into();
        self.dw1 = bits::high32(value).into();
        self
    }

    /// The completion in a response capsule, which is exactly 16 bytes over RDMA.
    /// `None` for any other length.
    #[must_use]
    pub fn from_capsule(capsule: &[u8]) -> Option<&Self> {
        Self::ref_from_bytes(capsule).ok()
    }

    /// The status.
    #[must_use]
    pub const fn status(&self) -> Status {
        Status::from_bits(self.status_and_phase.get() >> 1)
    }

    /// The phase tag.
    #[must_use]
    pub const fn phase(&self) -> bool {
        self.status_and_phase.get() & 1 == 1
    }

    /// Dwords 0 and 1 as one value.
    #[must_use]
    pub const fn result(&self) -> u64 {
        bits::dwords(self.dw0.get(), self.dw1.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_sits_above_the_phase_tag() {
        let cqe = Cqe::new(0x0102, 0x0304, Status::INVALID_FIELD.dnr(), 0x0506_0708);
        assert_eq!(
            cqe.as_bytes(),
            [8, 7, 6, 5, 0, 0, 0, 0, 4, 3, 0, 0, 2, 1, 0x04, 0x80]
        );
        assert_eq!(cqe.status(), Status::INVALID_FIELD.dnr());
        assert!(!cqe.phase());
    }

    #[test]
    fn result_spans_both_dwords() {
        let cqe = Cqe::new(0, 0, Status::SUCCESS, 0).with_result(0x1122_3344_5566_7788);
        assert_eq!((cqe.dw0.get(), cqe.dw1.get()), (0x5566_7788, 0x1122_3344));
        assert_eq!(cqe.result(), 0x1122_3344_5566_7788);
    }

    #[test]
    fn a_response_capsule_has_one_length() {
        let bytes = [0_u8; 17];
        assert!(Cqe::from_capsule(&bytes[..16]).is_some());
        assert!(Cqe::from_capsule(&bytes[..15]).is_none());
        assert!(Cqe::from_capsule(&bytes).is_none());
    }
}
