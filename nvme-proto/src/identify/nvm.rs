//! Identify data structures specific to the NVM command set: of the namespace (CNS 05h) and of the
//! controller (CNS 06h), both with CSI 00h.
//!
//! Source: NVM Command Set 1.1, section 4.1.5 (CNS 05h and CNS 06h).

use core::mem::offset_of;

use bitflags::bitflags;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::IDENTIFY_BYTES;

/// I/O Command Set specific Identify Namespace data structure of the NVM command set, 4096 bytes.
#[repr(C)]
#[derive(Clone, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct NvmIdentifyNamespace {
    /// LBSTM, Logical Block Storage Tag Mask.
    pub lbstm: U64,
    /// PIC, Protection Information Capabilities.
    pub pic: u8,
    /// PIFA, Protection Information Format Attribute.
    pub pifa: u8,
    reserved10: [u8; 2],
    /// ELBAF0 to ELBAF63, Extended LBA Formats: STS in bits 6:0, PIF in bits 8:7.
    pub elbaf: [U32; 64],
    /// NPDGL, Namespace Preferred Deallocate Granularity Large in logical blocks.
    pub npdgl_lbas: U32,
    /// NPRG, Namespace Preferred Read Granularity in logical blocks.
    pub nprg_lbas: U32,
    /// NPRA, Namespace Preferred Read Alignment in logical blocks.
    pub npra_lbas: U32,
    /// NORS, Namespace Optimal Read Size in logical blocks.
    pub nors_lbas: U32,
    /// NPDAL, Namespace Preferred Deallocate Alignment Large in logical blocks.
    pub npdal_lbas: U32,
    /// LBAPSS, LBA Format Placement Shard Size.
    pub lbapss: U32,
    /// TLBAAG, Tracked LBA Allocation Granularity.
    pub tlbaag: U32,
    reserved296: [u8; 3800],
}

const _: () = {
    assert!(size_of::<NvmIdentifyNamespace>() == IDENTIFY_BYTES);
    assert!(align_of::<NvmIdentifyNamespace>() == 1);
    assert!(offset_of!(NvmIdentifyNamespace, pic) == 8);
    assert!(offset_of!(NvmIdentifyNamespace, pifa) == 9);
    assert!(offset_of!(NvmIdentifyNamespace, elbaf) == 12);
    assert!(offset_of!(NvmIdentifyNamespace, npdgl_lbas) == 268);
    assert!(offset_of!(NvmIdentifyNamespace, tlbaag) == 292);
};

bitflags! {
    /// AOCS, Admin Optional Command Support of the NVM command set.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct NvmAdminCommands: u16 {
        /// RALBAS: Get LBA Status reports allocated logical blocks
        /// ([`ActionType::ALLOCATED`](crate::lba_status::ActionType::ALLOCATED)).
        const REPORTS_ALLOCATED = 1 << 0;
    }
}

/// I/O Command Set specific Identify Controller data structure of the NVM command set, 4096 bytes.
/// A limit of 0 means that none is reported.
#[repr(C)]
#[derive(Clone, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct NvmIdentifyController {
    /// VSL, Verify Size Limit: 2^VSL minimum memory pages.
    pub vsl: u8,
    /// WZSL, Write Zeroes Size Limit: 2^WZSL minimum memory pages.
    pub wzsl: u8,
    /// WUSL, Write Uncorrectable Size Limit: 2^WUSL minimum memory pages.
    pub wusl: u8,
    /// DMRL, Dataset Management Ranges Limit.
    pub dmrl: u8,
    /// DMRSL, Dataset Management Range Size Limit in logical blocks.
    pub dmrsl_lbas: U32,
    /// DMSL, Dataset Management Size Limit in logical blocks.
    pub dmsl_lbas: U64,
    /// KPIOCAP, Key Per I/O Capabilities.
    pub kpiocap: u8,
    /// WZDSL, Write Zeroes With Deallocate Size Limit: 2^WZDSL minimum memory pages.
    pub wzdsl: u8,
    /// AOCS, Admin Optional Command Support: see [`NvmAdminCommands`].
    pub aocs: U16,
    /// VER, version of the NVM Command Set: see [`Version`](crate::property::Version).
    pub ver: U32,
    /// LBAMQF, LBA Migration Queue Format.
    pub lbamqf: u8,
    reserved25: [u8; 4071],
}

const _: () = {
    assert!(size_of::<NvmIdentifyController>() == IDENTIFY_BYTES);
    assert!(align_of::<NvmIdentifyController>() == 1);
    assert!(offset_of!(NvmIdentifyController, dmrl) == 3);
    assert!(offset_of!(NvmIdentifyController, dmrsl_lbas) == 4);
    assert!(offset_of!(NvmIdentifyController, dmsl_lbas) == 8);
    assert!(offset_of!(NvmIdentifyController, wzdsl) == 17);
    assert!(offset_of!(NvmIdentifyController, aocs) == 18);
    assert!(offset_of!(NvmIdentifyController, ver) == 20);
    assert!(offset_of!(NvmIdentifyController, lbamqf) == 24);
};

impl NvmIdentifyNamespace {
    /// From the data of the command; `None` when it is not 4096 bytes.
    #[must_use]
    pub fn from_data(data: &[u8]) -> Option<&Self> {
        Self::ref_from_bytes(data).ok()
    }
}

impl NvmIdentifyController {
    /// From the data of the command; `None` when it is not 4096 bytes.
    #[must_use]
    pub fn from_data(data: &[u8]) -> Option<&Self> {
        Self::ref_from_bytes(data).ok()
    }
}
