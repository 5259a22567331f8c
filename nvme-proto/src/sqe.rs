//! The submission queue entry: 64 bytes, the same for every command set.

use core::mem::offset_of;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::bits;
use crate::error::{CommandError, ErrorLocation};
use crate::opcode::{AdminOpcode, DataDirection, FabricsCommandType, IoOpcode};
use crate::sgl::{Sgl, SglDescriptor};
use crate::status::Status;

/// NSID that addresses every namespace.
pub const NSID_BROADCAST: u32 = 0xFFFF_FFFF;

/// Submission queue entry. NVMe Base 2.1, section 4.1 (Submission Queue Entry); 64 bytes.
///
/// Offsets: opcode 0, flags 1, CID 2, NSID 4 (FCTYPE is its first byte in a Fabrics command),
/// CDW2 8, CDW3 12, MPTR 16, DPTR 24, CDW10 to CDW15 40 to 63.
#[repr(C)]
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
pub struct Sqe {
    /// Opcode; its meaning depends on the queue. See [`Sqe::admin_opcode`], [`Sqe::io_opcode`].
    pub opcode: u8,
    /// FUSE in bits 1:0, PSDT in bits 7:6.
    pub flags: u8,
    /// Command Identifier, unique among the outstanding commands of one submission queue.
    pub cid: U16,
    /// Namespace Identifier.
    pub nsid: U32,
    /// Command dword 2.
    pub cdw2: U32,
    /// Command dword 3.
    pub cdw3: U32,
    /// Metadata Pointer.
    pub mptr: U64,
    /// Data Pointer: over fabrics always one SGL descriptor.
    pub dptr: SglDescriptor,
    /// Command dword 10.
    pub cdw10: U32,
    /// Command dword 11.
    pub cdw11: U32,
    /// Command dword 12.
    pub cdw12: U32,
    /// Command dword 13.
    pub cdw13: U32,
    /// Command dword 14.
    pub cdw14: U32,
    /// Command dword 15.
    pub cdw15: U32,
}

const _: () = {
    assert!(size_of::<Sqe>() == 64 && align_of::<Sqe>() == 1);
    assert!(offset_of!(Sqe, flags) == 1);
    assert!(offset_of!(Sqe, cid) == 2);
    assert!(offset_of!(Sqe, nsid) == 4);
    assert!(offset_of!(Sqe, cdw2) == 8);
    assert!(offset_of!(Sqe, cdw3) == 12);
    assert!(offset_of!(Sqe, mptr) == 16);
    assert!(offset_of!(Sqe, dptr) == 24);
    assert!(offset_of!(Sqe, cdw10) == 40);
    assert!(offset_of!(Sqe, cdw11) == 44);
    assert!(offset_of!(Sqe, cdw12) == 48);
    assert!(offset_of!(Sqe, cdw13) == 52);
    assert!(offset_of!(Sqe, cdw14) == 56);
    assert!(offset_of!(Sqe, cdw15) == 60);
};

/// Fused Operation (FUSE), bits 1:0 of byte 1.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Fuse {
    /// 00b: not fused.
    None,
    /// 01b: first command of a fused operation.
    First,
    /// 10b: second command of a fused operation.
    Second,
    /// 11b: reserved.
    Reserved,
}

/// PRP or SGL for Data Transfer (PSDT), bits 7:6 of byte 1.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Psdt {
    /// 00b: PRPs, which NVMe over Fabrics does not have.
    Prp,
    /// 01b: DPTR is an SGL; MPTR, if used, is the address of one contiguous buffer.
    SglMptrContiguous,
    /// 10b: DPTR is an SGL; MPTR, if used, is the address of an SGL segment.
    SglMptrSgl,
    /// 11b: reserved.
    Reserved,
}

impl Psdt {
    /// The value of byte 1 with this PSDT and no FUSE.
    #[must_use]
    pub const fn to_flags(self) -> u8 {
        match self {
            Self::Prp => 0x00,
            Self::SglMptrContiguous => 0x40,
            Self::SglMptrSgl => 0x80,
            Self::Reserved => 0xC0,
        }
    }
}

impl Sqe {
    /// Bytes of a submission queue entry.
    pub const SIZE_BYTES: usize = 64;

    /// An entry for `opcode` with PSDT 01b (as every command over fabrics must say), an empty
    /// keyed SGL descriptor, and all else zero.
    #[must_use]
    pub fn new(opcode: u8, cid: u16, nsid: u32) -> Self {
        Self {
            opcode,
            flags: Psdt::SglMptrContiguous.to_flags(),
            cid: cid.into(),
            nsid: nsid.into(),
            dptr: Sgl::EMPTY.encode(),
            ..Self::new_zeroed()
        }
    }

    /// The entry at the start of a command capsule of at least 64 bytes, and what follows it
    /// (in-capsule data). `None` when the capsule is shorter.
    #[must_use]
    pub fn from_capsule(capsule: &[u8]) -> Option<(&Self, &[u8])> {
        Self::ref_from_prefix(capsule).ok()
    }

    /// The opcode, read as an Admin command's.
    #[must_use]
    pub const fn admin_opcode(&self) -> AdminOpcode {
        AdminOpcode(self.opcode)
    }

    /// The opcode, read as an I/O command's.
    #[must_use]
    pub const fn io_opcode(&self) -> IoOpcode {
        IoOpcode(self.opcode)
    }

    /// Whether this is a Fabrics command (opcode 7Fh), on whatever queue.
    #[must_use]
    pub const fn is_fabrics(&self) -> bool {
        self.opcode == AdminOpcode::FABRICS.0
    }

    /// Fabrics Command Type, byte 4. Means something only when [`Sqe::is_fabrics`].
    #[must_use]
    pub const fn fctype(&self) -> FabricsCommandType {
        FabricsCommandType(bits::byte(self.nsid.get(), 0))
    }

    /// The direction of data the opcode, or FCTYPE of a Fabrics command, announces.
    #[must_use]
    pub const fn data_direction(&self) -> DataDirection {
        if self.is_fabrics() {
            DataDirection::of(self.fctype().0)
        } else {
            DataDirection::of(self.opcode)
        }
    }

    /// Fused Operation.
    #[must_use]
    pub const fn fuse(&self) -> Fuse {
        match self.flags & 0b11 {
            0b00 => Fuse::None,
            0b01 => Fuse::First,
            0b10 => Fuse::Second,
            _ => Fuse::Reserved,
        }
    }

    /// PRP or SGL for Data Transfer.
    #[must_use]
    pub const fn psdt(&self) -> Psdt {
        match self.flags >> 6 {
            0b00 => Psdt::Prp,
            0b01 => Psdt::SglMptrContiguous,
            0b10 => Psdt::SglMptrSgl,
            _ => Psdt::Reserved,
        }
    }

    /// The SGL descriptor of the data, for a command that has data.
    ///
    /// # Errors
    /// Invalid Field when PSDT says PRP or is reserved (not checked for a Fabrics command, whose
    /// byte 1 hosts leave zero); SGL Descriptor Type Invalid from [`Sgl::parse`].
    pub fn sgl(&self) -> Result<Sgl, CommandError> {
        let psdt_is_sgl = match self.psdt() {
            Psdt::SglMptrContiguous | Psdt::SglMptrSgl => true,
            Psdt::Prp | Psdt::Reserved => self.is_fabrics(),
        };
        if !psdt_is_sgl {
            return Err(CommandError {
                status: Status::INVALID_FIELD.dnr(),
                location: ErrorLocation::Sqe { byte: 1, bit: 6 },
                field: "PSDT",
                value: u64::from(self.flags >> 6),
                expected: "1 or 2 (an SGL), as NVMe over Fabrics requires",
            });
        }
        Sgl::parse(&self.dptr)
    }

    /// Refuses a FUSE other than 00b, for a command that no fused operation contains or a
    /// controller that supports none.
    ///
    /// # Errors
    /// Invalid Field pointing at byte 1.
    pub fn require_not_fused(&self) -> Result<(), CommandError> {
        match self.fuse() {
            Fuse::None => Ok(()),
            Fuse::First | Fuse::Second | Fuse::Reserved => Err(CommandError::invalid_field(
                "FUSE",
                1,
                u64::from(self.flags & 0b11),
                "0 (fused operations are not supported here)",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_entry_says_sgl_and_has_no_data() {
        let sqe = Sqe::new(AdminOpcode::KEEP_ALIVE.0, 0x1234, 0);
        assert_eq!(sqe.psdt(), Psdt::SglMptrContiguous);
        assert_eq!(sqe.fuse(), Fuse::None);
        assert_eq!(sqe.sgl(), Ok(Sgl::EMPTY));
        assert_eq!(sqe.as_bytes()[..4], [0x18, 0x40, 0x34, 0x12]);
    }

    #[test]
    fn prp_is_refused_except_on_fabrics_commands() {
        let mut sqe = Sqe::new(IoOpcode::READ.0, 1, 1);
        for flags in [0x00, 0xC0] {
            sqe.flags = flags;
            let error = sqe.sgl().unwrap_err();
            assert_eq!(error.status, Status::INVALID_FIELD.dnr());
            assert_eq!(error.location, ErrorLocation::Sqe { byte: 1, bit: 6 });
        }
        sqe.flags = 0;
        sqe.opcode = AdminOpcode::FABRICS.0;
        assert!(sqe.sgl().is_ok());
    }

    #[test]
    fn fused_commands_are_refused_where_asked() {
        let mut sqe = Sqe::new(IoOpcode::COMPARE.0, 1, 1);
        assert_eq!(sqe.require_not_fused(), Ok(()));
        for fuse in 1..=3 {
            sqe.flags = 0x40 | fuse;
            assert_eq!(
                sqe.require_not_fused().unwrap_err().location,
                ErrorLocation::sqe(1)
            );
        }
    }

    #[test]
    fn direction_of_a_fabrics_command_is_in_fctype() {
        let mut sqe = Sqe::new(AdminOpcode::FABRICS.0, 0, 0);
        sqe.nsid = u32::from(FabricsCommandType::CONNECT.0).into();
        assert_eq!(sqe.data_direction(), DataDirection::HostToController);
        sqe.nsid = 0xFFFF_FF06_u32.into();
        assert_eq!(sqe.fctype(), FabricsCommandType::AUTHENTICATION_RECEIVE);
        assert_eq!(sqe.data_direction(), DataDirection::ControllerToHost);
    }

    #[test]
    fn a_capsule_shorter_than_an_entry_is_none() {
        let bytes = [0_u8; 70];
        assert!(Sqe::from_capsule(&bytes[..63]).is_none());
        let (_, data) = Sqe::from_capsule(&bytes).unwrap();
        assert_eq!(data.len(), 6);
    }
}
