//! The headers of PDUs on the wire.
//!
//! Source: NVMe over TCP Transport 1.1, section 3.6.2.

use core::mem::offset_of;

use bitflags::bitflags;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::Role;
use crate::cqe::Cqe;
use crate::macros::open_enum;
use crate::sqe::Sqe;

open_enum! {
    /// PDU-Type. Even values go from host to controller, odd ones the other way.
    #[derive(Unaligned)]
    pub struct PduType(u8) {
        IC_REQ = 0x00 => "ICReq",
        IC_RESP = 0x01 => "ICResp",
        H2C_TERM_REQ = 0x02 => "H2CTermReq",
        C2H_TERM_REQ = 0x03 => "C2HTermReq",
        CAPSULE_CMD = 0x04 => "CapsuleCmd",
        CAPSULE_RESP = 0x05 => "CapsuleResp",
        H2C_DATA = 0x06 => "H2CData",
        C2H_DATA = 0x07 => "C2HData",
        R2T = 0x09 => "R2T",
    }
}

bitflags! {
    /// FLAGS of the common header.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct PduFlags: u8 {
        /// HDGSTF: a header digest follows the header.
        const HEADER_DIGEST = 1 << 0;
        /// DDGSTF: a data digest follows the data.
        const DATA_DIGEST = 1 << 1;
        /// LAST_PDU of H2CData and C2HData.
        const LAST = 1 << 2;
        /// SUCCESS of C2HData: no response capsule follows; the command has succeeded.
        const SUCCESS = 1 << 3;
    }
}

/// The first 8 bytes of every PDU.
#[repr(C)]
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
pub struct CommonHeader {
    /// PDU-Type.
    pub pdu_type: PduType,
    /// FLAGS: see [`PduFlags`].
    pub flags: u8,
    /// HLEN: bytes of the header, without its digest.
    pub hlen: u8,
    /// PDO, PDU Data Offset from the start of the PDU; 0 where there is no data.
    pub pdo: u8,
    /// PLEN: bytes of the whole PDU, digests and padding included.
    pub plen: U32,
}

/// Initialize Connection Request, 128 bytes; see [`super::setup::IcRequest`].
#[repr(C)]
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
pub struct IcReq {
    /// Common header.
    pub common: CommonHeader,
    /// PFV, PDU Format Version.
    pub pfv: U16,
    /// HPDA, Host PDU Data Alignment in dwords, 0's based.
    pub hpda_z: u8,
    /// DGST: bit 0 asks for header digests, bit 1 for data digests.
    pub dgst: u8,
    /// MAXR2T, outstanding R2Ts that a command may have, 0's based.
    pub maxr2t_z: U32,
    reserved: [u8; 112],
}

/// Initialize Connection Response, 128 bytes; see [`super::setup::IcResponse`].
#[repr(C)]
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
pub struct IcResp {
    /// Common header.
    pub common: CommonHeader,
    /// PFV, PDU Format Version.
    pub pfv: U16,
    /// CPDA, Controller PDU Data Alignment in dwords, 0's based.
    pub cpda_z: u8,
    /// DGST: bit 0 enables header digests, bit 1 data digests.
    pub dgst: u8,
    /// MAXH2CDATA, bytes of data of an H2CData PDU.
    pub maxh2cdata_bytes: U32,
    reserved: [u8; 112],
}

/// Header of H2CTermReq and C2HTermReq, 24 bytes. As much of the header of the PDU that was at
/// fault as fits follows as data.
#[repr(C)]
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
pub struct TermReq {
    /// Common header.
    pub common: CommonHeader,
    /// FES, Fatal Error Status.
    pub fes: U16,
    /// FEI, Fatal Error Information.
    pub fei: U32,
    reserved: [u8; 10],
}

/// Header of a command capsule, 72 bytes. In-capsule data follows.
#[repr(C)]
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
pub struct CapsuleCmd {
    /// Common header.
    pub common: CommonHeader,
    /// CCSQE.
    pub sqe: Sqe,
}

/// A response capsule, 24 bytes.
#[repr(C)]
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
pub struct CapsuleResp {
    /// Common header.
    pub common: CommonHeader,
    /// RCCQE.
    pub cqe: Cqe,
}

/// Header of H2CData, of C2HData (where TTAG is reserved), and R2T: they have the same layout,
/// 24 bytes.
#[repr(C)]
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
pub struct TransferHeader {
    /// Common header.
    pub common: CommonHeader,
    /// CCCID, Command Capsule CID.
    pub cccid: U16,
    /// TTAG, Transfer Tag.
    pub ttag: U16,
    /// DATAO or R2TO: bytes from the start of the command's data.
    pub offset_bytes: U32,
    /// DATAL or R2TL: bytes.
    pub length_bytes: U32,
    reserved: [u8; 4],
}

const _: () = {
    assert!(size_of::<CommonHeader>() == 8 && align_of::<CommonHeader>() == 1);
    assert!(offset_of!(CommonHeader, flags) == 1);
    assert!(offset_of!(CommonHeader, hlen) == 2);
    assert!(offset_of!(CommonHeader, pdo) == 3);
    assert!(offset_of!(CommonHeader, plen) == 4);
    assert!(size_of::<IcReq>() == 128 && align_of::<IcReq>() == 1);
    assert!(offset_of!(IcReq, pfv) == 8);
    assert!(offset_of!(IcReq, hpda_z) == 10);
    assert!(offset_of!(IcReq, dgst) == 11);
    assert!(offset_of!(IcReq, maxr2t_z) == 12);
    assert!(size_of::<IcResp>() == 128 && align_of::<IcResp>() == 1);
    assert!(offset_of!(IcResp, pfv) == 8);
    assert!(offset_of!(IcResp, cpda_z) == 10);
    assert!(offset_of!(IcResp, dgst) == 11);
    assert!(offset_of!(IcResp, maxh2cdata_bytes) == 12);
    assert!(size_of::<TermReq>() == 24 && align_of::<TermReq>() == 1);
    assert!(offset_of!(TermReq, fes) == 8);
    assert!(offset_of!(TermReq, fei) == 10);
    assert!(size_of::<CapsuleCmd>() == 72 && align_of::<CapsuleCmd>() == 1);
    assert!(offset_of!(CapsuleCmd, sqe) == 8);
    assert!(size_of::<CapsuleResp>() == 24 && align_of::<CapsuleResp>() == 1);
    assert!(offset_of!(CapsuleResp, cqe) == 8);
    assert!(size_of::<TransferHeader>() == 24 && align_of::<TransferHeader>() == 1);
    assert!(offset_of!(TransferHeader, cccid) == 8);
    assert!(offset_of!(TransferHeader, ttag) == 10);
    assert!(offset_of!(TransferHeader, offset_bytes) == 12);
    assert!(offset_of!(TransferHeader, length_bytes) == 16);
};

impl PduType {
    /// HLEN of this type, or `None` for a type that is not defined.
    #[must_use]
    pub const fn hlen(self) -> Option<u8> {
        match self {
            Self::IC_REQ | Self::IC_RESP => Some(128),
            Self::CAPSULE_CMD => Some(72),
            Self::H2C_TERM_REQ
            | Self::C2H_TERM_REQ
            | Self::CAPSULE_RESP
            | Self::H2C_DATA
            | Self::C2H_DATA
            | Self::R2T => Some(24),
            _ => None,
        }
    }

    /// The side that sends it.
    #[must_use]
    pub const fn sender(self) -> Role {
        if self.0 & 1 == 0 {
            Role::Host
        } else {
            Role::Controller
        }
    }

    /// Whether it can have a header digest: those that set a connection up or end it have none.
    #[must_use]
    pub const fn has_header_digest(self) -> bool {
        self.0 >= Self::CAPSULE_CMD.0
    }

    /// Whether it can have data, and with it padding and a data digest.
    #[must_use]
    pub const fn has_data(self) -> bool {
        matches!(self, Self::CAPSULE_CMD | Self::H2C_DATA | Self::C2H_DATA)
    }
}

impl CommonHeader {
    /// Bytes of the common header.
    pub const SIZE_BYTES: usize = 8;

    /// The header of a PDU of one of the defined types that is nothing but a header without a
    /// digest.
    #[must_use]
    pub const fn bare(pdu_type: PduType) -> Self {
        let hlen = match pdu_type.hlen() {
            Some(hlen) => hlen,
            None => 0,
        };
        Self {
            pdu_type,
            flags: 0,
            hlen,
            pdo: 0,
            plen: U32::from_bytes([hlen, 0, 0, 0]),
        }
    }
}

impl IcReq {
    /// A request with PFV 0.
    #[must_use]
    pub fn new(hpda_z: u8, dgst: u8, maxr2t_z: u32) -> Self {
        Self {
            common: CommonHeader::bare(PduType::IC_REQ),
            hpda_z,
            dgst,
            maxr2t_z: maxr2t_z.into(),
            ..Self::new_zeroed()
        }
    }
}

impl IcResp {
    /// A response with PFV 0.
    #[must_use]
    pub fn new(cpda_z: u8, dgst: u8, maxh2cdata_bytes: u32) -> Self {
        Self {
            common: CommonHeader::bare(PduType::IC_RESP),
            cpda_z,
            dgst,
            maxh2cdata_bytes: maxh2cdata_bytes.into(),
            ..Self::new_zeroed()
        }
    }
}

impl TermReq {
    /// Bytes of data it may have: those of the largest header.
    pub const DATA_MAX_BYTES: usize = 128;
    /// The largest PLEN.
    pub const PLEN_MAX_BYTES: usize = 152;

    /// From `role`, with `data_bytes` bytes of the header that was at fault.
    #[must_use]
    pub fn new(role: Role, fes: u16, fei: u32, data_bytes: u8) -> Self {
        let common = CommonHeader::bare(match role {
            Role::Host => PduType::H2C_TERM_REQ,
            Role::Controller => PduType::C2H_TERM_REQ,
        });
        let plen = u32::from(common.hlen).saturating_add(u32::from(data_bytes));
        Self {
            common: CommonHeader {
                plen: plen.into(),
                ..common
            },
            fes: fes.into(),
            fei: fei.into(),
            ..Self::new_zeroed()
        }
    }
}

impl TransferHeader {
    /// The header of an H2CData, C2HData or R2T.
    #[must_use]
    pub fn new(
        common: CommonHeader,
        cid: u16,
        ttag: u16,
        offset_bytes: u32,
        length_bytes: u32,
    ) -> Self {
        Self {
            common,
            cccid: cid.into(),
            ttag: ttag.into(),
            offset_bytes: offset_bytes.into(),
            length_bytes: length_bytes.into(),
            ..Self::new_zeroed()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hlen_is_the_size_of_the_header() {
        for (pdu_type, bytes) in [
            (PduType::IC_REQ, size_of::<IcReq>()),
            (PduType::IC_RESP, size_of::<IcResp>()),
            (PduType::H2C_TERM_REQ, size_of::<TermReq>()),
            (PduType::C2H_TERM_REQ, size_of::<TermReq>()),
            (PduType::CAPSULE_CMD, size_of::<CapsuleCmd>()),
            (PduType::CAPSULE_RESP, size_of::<CapsuleResp>()),
            (PduType::H2C_DATA, size_of::<TransferHeader>()),
            (PduType::C2H_DATA, size_of::<TransferHeader>()),
            (PduType::R2T, size_of::<TransferHeader>()),
        ] {
            assert_eq!(pdu_type.hlen().map(usize::from), Some(bytes), "{pdu_type}");
        }
        assert_eq!(PduType(0x08).hlen(), None);
        assert_eq!(PduType::NAMED.len(), 9);
    }

    #[test]
    fn a_type_tells_its_sender_and_what_it_can_have() {
        assert_eq!(PduType::H2C_DATA.sender(), Role::Host);
        assert_eq!(PduType::R2T.sender(), Role::Controller);
        assert!(!PduType::C2H_TERM_REQ.has_header_digest());
        assert!(PduType::CAPSULE_CMD.has_header_digest() && PduType::CAPSULE_CMD.has_data());
        assert!(PduType::R2T.has_header_digest() && !PduType::R2T.has_data());
    }

    #[test]
    fn a_term_req_counts_the_header_it_brings() {
        let term = TermReq::new(Role::Controller, 1, 0x0102_0304, 72);
        assert_eq!(
            term.as_bytes()[..14],
            [3, 0, 24, 0, 96, 0, 0, 0, 1, 0, 4, 3, 2, 1]
        );
        assert_eq!(
            TermReq::new(Role::Host, 1, 0, 0).common.pdu_type,
            PduType::H2C_TERM_REQ
        );
    }
}
