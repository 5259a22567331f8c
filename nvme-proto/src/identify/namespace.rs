//! Identify Namespace (CNS 00h) and I/O Command Set Independent Identify Namespace (CNS 08h).
//!
//! Source: NVM Command Set 1.1, section 4.1.5 (CNS 00h); NVMe Base 2.1, section 5.1.13 (CNS 08h).

use core::mem::offset_of;

use bitflags::bitflags;
use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::IDENTIFY_BYTES;

/// LBA Format, 4 bytes.
#[repr(C)]
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
pub struct LbaFormat {
    /// MS, Metadata Size in bytes.
    pub ms_bytes: U16,
    /// LBADS: a logical block is 2^LBADS bytes, 9 or more.
    pub lbads: u8,
    /// RP, Relative Performance in bits 1:0: 0 is best.
    pub rp: u8,
}

const _: () = {
    assert!(size_of::<LbaFormat>() == 4 && align_of::<LbaFormat>() == 1);
    assert!(offset_of!(LbaFormat, lbads) == 2);
    assert!(offset_of!(LbaFormat, rp) == 3);
};

impl LbaFormat {
    /// A format without metadata and of best performance.
    #[must_use]
    pub fn without_metadata(lbads: u8) -> Self {
        Self {
            lbads,
            ..Self::new_zeroed()
        }
    }

    /// Bytes of data in a logical block; `None` when LBADS is below 9 (the format is not
    /// available) or above 31.
    #[must_use]
    pub const fn lba_bytes(&self) -> Option<u32> {
        if self.lbads < 9 {
            None
        } else {
            1_u32.checked_shl(self.lbads as u32)
        }
    }
}

/// Identify Namespace data structure of the NVM command set, 4096 bytes.
#[repr(C)]
#[derive(Clone, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct IdentifyNamespace {
    /// NSZE, Namespace Size in logical blocks. 0 when the NSID is not active.
    pub nsze_lbas: U64,
    /// NCAP, Namespace Capacity in logical blocks.
    pub ncap_lbas: U64,
    /// NUSE, Namespace Utilization in logical blocks.
    pub nuse_lbas: U64,
    /// NSFEAT: see [`NamespaceFeatures`].
    pub nsfeat: u8,
    /// NLBAF, Number of LBA Formats (0's based).
    pub nlbaf_z: u8,
    /// FLBAS, Formatted LBA Size: index of the format in bits 3:0 and (upper part) 6:5; bit 4
    /// says that metadata is at the end of the data.
    pub flbas: u8,
    /// MC, Metadata Capabilities.
    pub mc: u8,
    /// DPC, End-to-end Data Protection Capabilities.
    pub dpc: u8,
    /// DPS, End-to-end Data Protection Type Settings.
    pub dps: u8,
    /// NMIC: see [`NamespaceSharing`].
    pub nmic: u8,
    /// RESCAP: see [`ReservationCapabilities`].
    pub rescap: u8,
    /// FPI, Format Progress Indicator.
    pub fpi: u8,
    /// DLFEAT: see [`DeallocateFeatures`].
    pub dlfeat: u8,
    /// NAWUN, Namespace Atomic Write Unit Normal in logical blocks (0's based).
    pub nawun_z: U16,
    /// NAWUPF, Namespace Atomic Write Unit Power Fail in logical blocks (0's based).
    pub nawupf_z: U16,
    /// NACWU, Namespace Atomic Compare & Write Unit in logical blocks (0's based).
    pub nacwu_z: U16,
    /// NABSN, Namespace Atomic Boundary Size Normal in logical blocks (0's based).
    pub nabsn_z: U16,
    /// NABO, Namespace Atomic Boundary Offset in logical blocks.
    pub nabo_lbas: U16,
    /// NABSPF, Namespace Atomic Boundary Size Power Fail in logical blocks (0's based).
    pub nabspf_z: U16,
    /// NOIOB, Namespace Optimal I/O Boundary in logical blocks.
    pub noiob_lbas: U16,
    /// NVMCAP, NVM Capacity in bytes.
    pub nvmcap_bytes: U128,
    /// NPWG, Namespace Preferred Write Granularity in logical blocks (0's based).
    pub npwg_z: U16,
    /// NPWA, Namespace Preferred Write Alignment in logical blocks (0's based).
    pub npwa_z: U16,
    /// NPDG, Namespace Preferred Deallocate Granularity in logical blocks (0's based).
    pub npdg_z: U16,
    /// NPDA, Namespace Preferred Deallocate Alignment in logical blocks (0's based).
    pub npda_z: U16,
    /// NOWS, Namespace Optimal Write Size in logical blocks (0's based).
    pub nows_z: U16,
    /// MSSRL, Maximum Single Source Range Length of Copy in logical blocks.
    pub mssrl_lbas: U16,
    /// MCL, Maximum Copy Length in logical blocks.
    pub mcl_lbas: U32,
    /// MSRC, Maximum Source Range Count of Copy (0's based).
    pub msrc_z: u8,
    /// KPIOS, Key Per I/O Status.
    pub kpios: u8,
    /// NULBAF, Number of Unique Attribute LBA Formats.
    pub nulbaf: u8,
    reserved83: u8,
    /// KPIODAAG, Key Per I/O Data Access Alignment and Granularity in logical blocks (0's based).
    pub kpiodaag_z: U32,
    reserved88: [u8; 4],
    /// ANAGRPID, ANA Group Identifier; 0 when ANA is not reported.
    pub anagrpid: U32,
    reserved96: [u8; 3],
    /// NSATTR: see [`NamespaceAttributes`].
    pub nsattr: u8,
    /// NVMSETID, NVM Set Identifier.
    pub nvmsetid: U16,
    /// ENDGID, Endurance Group Identifier.
    pub endgid: U16,
    /// NGUID, Namespace Globally Unique Identifier: big endian; 0 for none.
    pub nguid: [u8; 16],
    /// EUI64, IEEE Extended Unique Identifier: big endian; 0 for none.
    pub eui64: [u8; 8],
    /// LBAF0 to LBAF63, LBA Formats.
    pub lbaf: [LbaFormat; 64],
    /// Vendor specific.
    pub vs: [u8; 3712],
}

const _: () = {
    assert!(size_of::<IdentifyNamespace>() == IDENTIFY_BYTES);
    assert!(align_of::<IdentifyNamespace>() == 1);
    assert!(offset_of!(IdentifyNamespace, ncap_lbas) == 8);
    assert!(offset_of!(IdentifyNamespace, nuse_lbas) == 16);
    assert!(offset_of!(IdentifyNamespace, nsfeat) == 24);
    assert!(offset_of!(IdentifyNamespace, nlbaf_z) == 25);
    assert!(offset_of!(IdentifyNamespace, flbas) == 26);
    assert!(offset_of!(IdentifyNamespace, nmic) == 30);
    assert!(offset_of!(IdentifyNamespace, rescap) == 31);
    assert!(offset_of!(IdentifyNamespace, dlfeat) == 33);
    assert!(offset_of!(IdentifyNamespace, nawun_z) == 34);
    assert!(offset_of!(IdentifyNamespace, noiob_lbas) == 46);
    assert!(offset_of!(IdentifyNamespace, nvmcap_bytes) == 48);
    assert!(offset_of!(IdentifyNamespace, npwg_z) == 64);
    assert!(offset_of!(IdentifyNamespace, nows_z) == 72);
    assert!(offset_of!(IdentifyNamespace, mssrl_lbas) == 74);
    assert!(offset_of!(IdentifyNamespace, mcl_lbas) == 76);
    assert!(offset_of!(IdentifyNamespace, msrc_z) == 80);
    assert!(offset_of!(IdentifyNamespace, kpiodaag_z) == 84);
    assert!(offset_of!(IdentifyNamespace, anagrpid) == 92);
    assert!(offset_of!(IdentifyNamespace, nsattr) == 99);
    assert!(offset_of!(IdentifyNamespace, nvmsetid) == 100);
    assert!(offset_of!(IdentifyNamespace, nguid) == 104);
    assert!(offset_of!(IdentifyNamespace, eui64) == 120);
    assert!(offset_of!(IdentifyNamespace, lbaf) == 128);
    assert!(offset_of!(IdentifyNamespace, vs) == 384);
};

impl IdentifyNamespace {
    /// From the data of the command; `None` when it is not 4096 bytes.
    #[must_use]
    pub fn from_data(data: &[u8]) -> Option<&Self> {
        Self::ref_from_bytes(data).ok()
    }

    /// The LBA format the namespace is formatted with; `None` when FLBAS points past the last.
    ///
    /// FLBAS bits 6:5 extend the index only when there are more than 16 formats.
    #[must_use]
    pub fn formatted_lba_format(&self) -> Option<&LbaFormat> {
        let low = self.flbas & 0xF;
        let index = if self.nlbaf_z < 16 {
            low
        } else {
            (self.flbas >> 1) & 0x30 | low
        };
        self.lbaf.get(usize::from(index))
    }
}

bitflags! {
    /// NSFEAT, Namespace Features.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct NamespaceFeatures: u8 {
        /// THINP: thin provisioning.
        const THIN_PROVISIONING = 1 << 0;
        /// NSABP: NAWUN, NAWUPF and NACWU count rather than the controller's.
        const ATOMIC_BOUNDARY_PARAMETERS = 1 << 1;
        /// DAE: Deallocated or Unwritten Logical Block error.
        const DEALLOCATED_ERROR = 1 << 2;
        /// UIDREUSE: NGUID and EUI64 are never reused.
        const IDENTIFIERS_NEVER_REUSED = 1 << 3;
        /// OPTPERF bit 4: NPWG, NPWA, NPDG, NPDA and NOWS are defined.
        const OPTIMAL_PERFORMANCE = 1 << 4;
    }
}

bitflags! {
    /// NMIC, Namespace Multi-path I/O and Namespace Sharing Capabilities.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct NamespaceSharing: u8 {
        /// The namespace may be attached to two or more controllers at once.
        const SHARED = 1 << 0;
        /// The namespace is dispersed.
        const DISPERSED = 1 << 1;
    }
}

bitflags! {
    /// RESCAP, Reservation Capabilities.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct ReservationCapabilities: u8 {
        /// Persist Through Power Loss.
        const PERSIST_THROUGH_POWER_LOSS = 1 << 0;
        /// Write Exclusive.
        const WRITE_EXCLUSIVE = 1 << 1;
        /// Exclusive Access.
        const EXCLUSIVE_ACCESS = 1 << 2;
        /// Write Exclusive - Registrants Only.
        const WRITE_EXCLUSIVE_REGISTRANTS_ONLY = 1 << 3;
        /// Exclusive Access - Registrants Only.
        const EXCLUSIVE_ACCESS_REGISTRANTS_ONLY = 1 << 4;
        /// Write Exclusive - All Registrants.
        const WRITE_EXCLUSIVE_ALL_REGISTRANTS = 1 << 5;
        /// Exclusive Access - All Registrants.
        const EXCLUSIVE_ACCESS_ALL_REGISTRANTS = 1 << 6;
        /// Ignore Existing Key as revision 1.3 and later define it.
        const IGNORE_EXISTING_KEY_1_3 = 1 << 7;
    }
}

bitflags! {
    /// DLFEAT, Deallocate Logical Block Features.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct DeallocateFeatures: u8 {
        /// Bits 2:0 are 001b: deallocated blocks read as zeros.
        const READS_ZEROES = 0b001;
        /// Bits 2:0 are 010b: deallocated blocks read as FFh.
        const READS_ONES = 0b010;
        /// The Deallocate bit of Write Zeroes is supported.
        const WRITE_ZEROES_DEALLOCATE = 1 << 3;
        /// The guard of deallocated blocks is the CRC of what is read.
        const GUARD_CRC = 1 << 4;
    }
}

bitflags! {
    /// NSATTR, Namespace Attributes.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct NamespaceAttributes: u8 {
        /// The namespace is write protected.
        const WRITE_PROTECTED = 1 << 0;
    }
}

bitflags! {
    /// NSTAT, Namespace Status.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct NamespaceStatus: u8 {
        /// NRDY: the namespace is ready.
        const READY = 1 << 0;
    }
}

/// I/O Command Set Independent Identify Namespace data structure, 4096 bytes.
#[repr(C)]
#[derive(Clone, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct IndependentIdentifyNamespace {
    /// NSFEAT, Common Namespace Features: bit 3 as in [`NamespaceFeatures`], bit 4 that the
    /// namespace is on rotational media, bit 5 that the volatile write cache is not present.
    pub nsfeat: u8,
    /// NMIC: see [`NamespaceSharing`].
    pub nmic: u8,
    /// RESCAP: see [`ReservationCapabilities`].
    pub rescap: u8,
    /// FPI, Format Progress Indicator.
    pub fpi: u8,
    /// ANAGRPID, ANA Group Identifier.
    pub anagrpid: U32,
    /// NSATTR: see [`NamespaceAttributes`].
    pub nsattr: u8,
    reserved9: u8,
    /// NVMSETID, NVM Set Identifier.
    pub nvmsetid: U16,
    /// ENDGID, Endurance Group Identifier.
    pub endgid: U16,
    /// NSTAT: see [`NamespaceStatus`].
    pub nstat: u8,
    /// KPIOS, Key Per I/O Status.
    pub kpios: u8,
    /// MAXKT, Maximum Key Tag.
    pub maxkt: U16,
    reserved18: [u8; 2],
    /// RGRPID, Reachability Group Identifier.
    pub rgrpid: U32,
    reserved24: [u8; 4072],
}

const _: () = {
    assert!(size_of::<IndependentIdentifyNamespace>() == IDENTIFY_BYTES);
    assert!(align_of::<IndependentIdentifyNamespace>() == 1);
    assert!(offset_of!(IndependentIdentifyNamespace, anagrpid) == 4);
    assert!(offset_of!(IndependentIdentifyNamespace, nsattr) == 8);
    assert!(offset_of!(IndependentIdentifyNamespace, nvmsetid) == 10);
    assert!(offset_of!(IndependentIdentifyNamespace, nstat) == 14);
    assert!(offset_of!(IndependentIdentifyNamespace, maxkt) == 16);
    assert!(offset_of!(IndependentIdentifyNamespace, rgrpid) == 20);
};

impl IndependentIdentifyNamespace {
    /// From the data of the command; `None` when it is not 4096 bytes.
    #[must_use]
    pub fn from_data(data: &[u8]) -> Option<&Self> {
        Self::ref_from_bytes(data).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_formatted_format_is_found_with_few_and_many_formats() {
        let mut identify = IdentifyNamespace::new_zeroed();
        for (index, format) in identify.lbaf.iter_mut().enumerate() {
            format.ms_bytes = u16::try_from(index).unwrap().into();
        }
        let index = |identify: &IdentifyNamespace| {
            identify
                .formatted_lba_format()
                .map(|format| format.ms_bytes.get())
        };
        identify.flbas = 0b0110_0011;
        assert_eq!(index(&identify), Some(3));
        identify.nlbaf_z = 63;
        assert_eq!(index(&identify), Some(0b11_0011));
        identify.flbas = 0b0011_1111;
        assert_eq!(index(&identify), Some(0b01_1111));
    }

    #[test]
    fn logical_blocks_are_512_bytes_or_more() {
        let bytes = |lbads| LbaFormat::without_metadata(lbads).lba_bytes();
        assert_eq!(bytes(9), Some(512));
        assert_eq!(bytes(12), Some(4096));
        assert_eq!(bytes(31), Some(1 << 31));
        for lbads in [0, 8, 32, 255] {
            assert_eq!(bytes(lbads), None);
        }
    }
}
