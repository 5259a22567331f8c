//! Identify Controller (CNS 01h).
//!
//! Source: NVMe Base 2.1, section 5.1.13 (Identify Controller data structure).

use core::mem::offset_of;

use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::IDENTIFY_BYTES;
use crate::macros::open_enum;
use crate::nqn::{NQN_FIELD_BYTES, Nqn, NqnError};
use crate::text::TextField;

/// Unit of KAS.
pub const KEEP_ALIVE_GRANULARITY_MS: u32 = 100;

/// Identify Controller data structure, 4096 bytes. Reserved bytes are zero in a value made by
/// `FromZeros::new_zeroed` and are left alone otherwise.
#[repr(C)]
#[derive(Clone, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct IdentifyController {
    /// PCI Vendor ID; 0 where none is told.
    pub vid: U16,
    /// PCI Subsystem Vendor ID; 0 where none is told.
    pub ssvid: U16,
    /// SN, Serial Number: ASCII, padded with spaces.
    pub sn: [u8; 20],
    /// MN, Model Number: ASCII, padded with spaces.
    pub mn: [u8; 40],
    /// FR, Firmware Revision: ASCII, padded with spaces.
    pub fr: [u8; 8],
    /// RAB, Recommended Arbitration Burst: 2^RAB commands.
    pub rab: u8,
    /// IEEE OUI Identifier.
    pub ieee: [u8; 3],
    /// CMIC: see [`MultiPath`](super::MultiPath).
    pub cmic: u8,
    /// MDTS, Maximum Data Transfer Size: 2^MDTS minimum memory pages, 0 for no limit.
    pub mdts: u8,
    /// CNTLID, Controller Identifier.
    pub cntlid: U16,
    /// VER, Version: see [`Version`](crate::property::Version).
    pub ver: U32,
    /// RTD3R, RTD3 Resume Latency in microseconds.
    pub rtd3r_us: U32,
    /// RTD3E, RTD3 Entry Latency in microseconds: how long a shutdown may take.
    pub rtd3e_us: U32,
    /// OAES: see [`AsyncEventConfiguration`](crate::features::AsyncEventConfiguration).
    pub oaes: U32,
    /// CTRATT: see [`ControllerAttributes`](super::ControllerAttributes).
    pub ctratt: U32,
    /// RRLS, Read Recovery Levels Supported.
    pub rrls: U16,
    /// BPCAP, Boot Partition Capabilities.
    pub bpcap: u8,
    reserved103: u8,
    /// NSSL, NVM Subsystem Shutdown Latency in microseconds.
    pub nssl_us: U32,
    reserved108: [u8; 2],
    /// PLSI, Power Loss Signaling Information.
    pub plsi: u8,
    /// CNTRLTYPE: see [`ControllerType`].
    pub cntrltype: ControllerType,
    /// FGUID, FRU Globally Unique Identifier.
    pub fguid: [u8; 16],
    /// CRDT1: Command Retry Delay Time for CRD 1, in units of 100 ms.
    pub crdt1_100ms: U16,
    /// CRDT2: Command Retry Delay Time for CRD 2, in units of 100 ms.
    pub crdt2_100ms: U16,
    /// CRDT3: Command Retry Delay Time for CRD 3, in units of 100 ms.
    pub crdt3_100ms: U16,
    /// CRCAP, Controller Reachability Capabilities.
    pub crcap: u8,
    /// CIU, Controller Instance Uniquifier: not zero, and one more whenever CSTS.RDY is set. NVMe
    /// Base 2.3, section 5.2.13; 0 from a controller without Cross-Controller Reset.
    pub ciu: u8,
    /// CIRN, Controller Instance Random Number: another one whenever CSTS.RDY is set. NVMe Base
    /// 2.3, section 5.2.13.
    pub cirn: U64,
    reserved144: [u8; 109],
    /// NVMSR, NVM Subsystem Report.
    pub nvmsr: u8,
    /// VWCI, VPD Write Cycle Information.
    pub vwci: u8,
    /// MEC, Management Endpoint Capabilities.
    pub mec: u8,
    /// OACS: see [`OptionalAdminCommands`](super::OptionalAdminCommands).
    pub oacs: U16,
    /// ACL, Abort Command Limit (0's based).
    pub acl_z: u8,
    /// AERL, Asynchronous Event Request Limit (0's based).
    pub aerl_z: u8,
    /// FRMW, Firmware Updates.
    pub frmw: u8,
    /// LPA: see [`LogPageAttributes`](super::LogPageAttributes).
    pub lpa: u8,
    /// ELPE, Error Log Page Entries (0's based).
    pub elpe_z: u8,
    /// NPSS, Number of Power States Supported (0's based).
    pub npss_z: u8,
    /// AVSCC, Admin Vendor Specific Command Configuration.
    pub avscc: u8,
    /// APSTA, Autonomous Power State Transition Attributes.
    pub apsta: u8,
    /// WCTEMP, Warning Composite Temperature Threshold in kelvins.
    pub wctemp_kelvins: U16,
    /// CCTEMP, Critical Composite Temperature Threshold in kelvins.
    pub cctemp_kelvins: U16,
    /// MTFA, Maximum Time for Firmware Activation, in units of 100 ms.
    pub mtfa_100ms: U16,
    /// HMPRE, Host Memory Buffer Preferred Size in units of 4 KiB.
    pub hmpre_4kib: U32,
    /// HMMIN, Host Memory Buffer Minimum Size in units of 4 KiB.
    pub hmmin_4kib: U32,
    /// TNVMCAP, Total NVM Capacity in bytes.
    pub tnvmcap_bytes: U128,
    /// UNVMCAP, Unallocated NVM Capacity in bytes.
    pub unvmcap_bytes: U128,
    /// RPMBS, Replay Protected Memory Block Support.
    pub rpmbs: U32,
    /// EDSTT, Extended Device Self-test Time in minutes.
    pub edstt_minutes: U16,
    /// DSTO, Device Self-test Options.
    pub dsto: u8,
    /// FWUG, Firmware Update Granularity in units of 4 KiB.
    pub fwug_4kib: u8,
    /// KAS, Keep Alive Support: granularity of the timer in units of 100 ms, 0 for no support.
    pub kas_100ms: U16,
    /// HCTMA, Host Controlled Thermal Management Attributes.
    pub hctma: U16,
    /// MNTMT, Minimum Thermal Management Temperature in kelvins.
    pub mntmt_kelvins: U16,
    /// MXTMT, Maximum Thermal Management Temperature in kelvins.
    pub mxtmt_kelvins: U16,
    /// SANICAP, Sanitize Capabilities.
    pub sanicap: U32,
    /// HMMINDS, Host Memory Buffer Minimum Descriptor Entry Size in units of 4 KiB.
    pub hmminds_4kib: U32,
    /// HMMAXD, Host Memory Maximum Descriptors Entries.
    pub hmmaxd: U16,
    /// NSETIDMAX, NVM Set Identifier Maximum.
    pub nsetidmax: U16,
    /// ENDGIDMAX, Endurance Group Identifier Maximum.
    pub endgidmax: U16,
    /// ANATT, ANA Transition Time in seconds.
    pub anatt_seconds: u8,
    /// ANACAP: see [`AnaCapabilities`](super::AnaCapabilities).
    pub anacap: u8,
    /// ANAGRPMAX, ANA Group Identifier Maximum.
    pub anagrpmax: U32,
    /// NANAGRPID, Number of ANA Group Identifiers.
    pub nanagrpid: U32,
    /// PELS, Persistent Event Log Size in units of 64 KiB.
    pub pels_64kib: U32,
    /// DID, Domain Identifier.
    pub domain_id: U16,
    /// KPIOC, Key Per I/O Capabilities.
    pub kpioc: u8,
    reserved359: u8,
    /// MPTFAWR, Maximum Processing Time for Firmware Activation Without Reset, in units of 100 ms.
    pub mptfawr_100ms: U16,
    reserved362: [u8; 6],
    /// MEGCAP, Max Endurance Group Capacity in bytes.
    pub megcap_bytes: U128,
    /// TMPTHHA, Temperature Threshold Hysteresis Attributes.
    pub tmpthha: u8,
    reserved385: u8,
    /// CQT, Command Quiesce Time in milliseconds: how long the controller may take, after a Keep
    /// Alive Timeout or another loss of communication, to end every outstanding command. 0 for not
    /// told.
    pub cqt_ms: U16,
    reserved388: [u8; 124],
    /// SQES: log2 of the submission queue entry size, required in bits 3:0, maximum in bits 7:4.
    pub sqes: u8,
    /// CQES: log2 of the completion queue entry size, required in bits 3:0, maximum in bits 7:4.
    pub cqes: u8,
    /// MAXCMD, Maximum Outstanding Commands of a queue. Required over fabrics.
    pub maxcmd: U16,
    /// NN, Number of Namespaces: the largest valid NSID.
    pub nn: U32,
    /// ONCS: see [`OptionalNvmCommands`](super::OptionalNvmCommands).
    pub oncs: U16,
    /// FUSES: see [`FusedOperations`](super::FusedOperations).
    pub fuses: U16,
    /// FNA, Format NVM Attributes.
    pub fna: u8,
    /// VWC: see [`VolatileWriteCacheSupport`](super::VolatileWriteCacheSupport).
    pub vwc: u8,
    /// AWUN, Atomic Write Unit Normal in logical blocks (0's based).
    pub awun_z: U16,
    /// AWUPF, Atomic Write Unit Power Fail in logical blocks (0's based).
    pub awupf_z: U16,
    /// ICSVSCC, I/O Command Set Vendor Specific Command Configuration.
    pub icsvscc: u8,
    /// NWPC: see [`WriteProtectionCapabilities`](super::WriteProtectionCapabilities).
    pub nwpc: u8,
    /// ACWU, Atomic Compare & Write Unit in logical blocks (0's based).
    pub acwu_z: U16,
    /// OCFS, Optional Copy Formats Supported: bit n for
    /// [`CopyFormat`](crate::copy::CopyFormat) n.
    pub ocfs: U16,
    /// SGLS: see [`SglSupport`](super::SglSupport).
    pub sgls: U32,
    /// MNAN, Maximum Number of Allowed Namespaces; 0 for NN.
    pub mnan: U32,
    /// MAXDNA, Maximum Domain Namespace Attachments.
    pub maxdna: U128,
    /// MAXCNA, Maximum I/O Controller Namespace Attachments.
    pub maxcna: U32,
    /// OAQD, Optimal Aggregated Queue Depth.
    pub oaqd: U32,
    /// RHIRI, Recommended Host-Initiated Refresh Interval in days.
    pub rhiri_days: u8,
    /// HIRT, Host-Initiated Refresh Time in minutes.
    pub hirt_minutes: u8,
    /// CMMRTD, Controller Maximum Memory Range Tracking Descriptors.
    pub cmmrtd: U16,
    /// NMMRTD, NVM Subsystem Maximum Memory Range Tracking Descriptors.
    pub nmmrtd: U16,
    /// MINMRTG, Minimum Memory Range Tracking Granularity.
    pub minmrtg: u8,
    /// MAXMRTG, Maximum Memory Range Tracking Granularity.
    pub maxmrtg: u8,
    /// TRATTR, Tracking Attributes.
    pub trattr: u8,
    reserved577: u8,
    /// MCUDMQ, Maximum Controller User Data Migration Queues.
    pub mcudmq: U16,
    /// MNSUDMQ, Maximum NVM Subsystem User Data Migration Queues.
    pub mnsudmq: U16,
    /// MCMR, Maximum CDQ Memory Ranges.
    pub mcmr: U16,
    /// NMCMR, NVM Subsystem Maximum CDQ Memory Ranges.
    pub nmcmr: U16,
    /// MCDQPC, Maximum Controller Data Queue PRP Count.
    pub mcdqpc: U16,
    reserved588: [u8; 180],
    /// SUBNQN, NVM Subsystem NQN.
    pub subnqn: [u8; NQN_FIELD_BYTES],
    reserved1024: [u8; 768],
    /// IOCCSZ, I/O Queue Command Capsule Supported Size in units of 16 bytes: at least 4.
    pub ioccsz_16bytes: U32,
    /// IORCSZ, I/O Queue Response Capsule Supported Size in units of 16 bytes: at least 1.
    pub iorcsz_16bytes: U32,
    /// ICDOFF, In Capsule Data Offset from the end of the SQE in units of 16 bytes.
    pub icdoff_16bytes: U16,
    /// FCATT: see [`FabricsControllerAttributes`](super::FabricsControllerAttributes).
    pub fcatt: u8,
    /// MSDBD, Maximum SGL Data Block Descriptors in a capsule; 0 for no limit.
    pub msdbd: u8,
    /// OFCS: see [`OptionalFabricsCommands`](super::OptionalFabricsCommands).
    pub ofcs: U16,
    /// DCTYPE, Discovery Controller Type.
    pub dctype: u8,
    /// CCRL, Cross-Controller Reset Limit: most resets in progress at a time; 0 for no support.
    /// NVMe Base 2.3, section 5.2.13.
    pub ccrl: u8,
    reserved1808: [u8; 240],
    /// PSD0 to PSD31, Power State Descriptors.
    pub psd: [PowerStateDescriptor; 32],
    /// Vendor specific: see [`CapstanBlock`](super::CapstanBlock).
    pub vs: [u8; 1024],
}

const _: () = {
    assert!(size_of::<IdentifyController>() == IDENTIFY_BYTES);
    assert!(align_of::<IdentifyController>() == 1);
    assert!(offset_of!(IdentifyController, sn) == 4);
    assert!(offset_of!(IdentifyController, mn) == 24);
    assert!(offset_of!(IdentifyController, fr) == 64);
    assert!(offset_of!(IdentifyController, rab) == 72);
    assert!(offset_of!(IdentifyController, cmic) == 76);
    assert!(offset_of!(IdentifyController, mdts) == 77);
    assert!(offset_of!(IdentifyController, cntlid) == 78);
    assert!(offset_of!(IdentifyController, ver) == 80);
    assert!(offset_of!(IdentifyController, oaes) == 92);
    assert!(offset_of!(IdentifyController, ctratt) == 96);
    assert!(offset_of!(IdentifyController, nssl_us) == 104);
    assert!(offset_of!(IdentifyController, cntrltype) == 111);
    assert!(offset_of!(IdentifyController, fguid) == 112);
    assert!(offset_of!(IdentifyController, crdt1_100ms) == 128);
    assert!(offset_of!(IdentifyController, ciu) == 135);
    assert!(offset_of!(IdentifyController, cirn) == 136);
    assert!(offset_of!(IdentifyController, nvmsr) == 253);
    assert!(offset_of!(IdentifyController, oacs) == 256);
    assert!(offset_of!(IdentifyController, aerl_z) == 259);
    assert!(offset_of!(IdentifyController, lpa) == 261);
    assert!(offset_of!(IdentifyController, npss_z) == 263);
    assert!(offset_of!(IdentifyController, wctemp_kelvins) == 266);
    assert!(offset_of!(IdentifyController, tnvmcap_bytes) == 280);
    assert!(offset_of!(IdentifyController, rpmbs) == 312);
    assert!(offset_of!(IdentifyController, kas_100ms) == 320);
    assert!(offset_of!(IdentifyController, sanicap) == 328);
    assert!(offset_of!(IdentifyController, nsetidmax) == 338);
    assert!(offset_of!(IdentifyController, anatt_seconds) == 342);
    assert!(offset_of!(IdentifyController, anacap) == 343);
    assert!(offset_of!(IdentifyController, anagrpmax) == 344);
    assert!(offset_of!(IdentifyController, nanagrpid) == 348);
    assert!(offset_of!(IdentifyController, pels_64kib) == 352);
    assert!(offset_of!(IdentifyController, megcap_bytes) == 368);
    assert!(offset_of!(IdentifyController, cqt_ms) == 386);
    assert!(offset_of!(IdentifyController, sqes) == 512);
    assert!(offset_of!(IdentifyController, maxcmd) == 514);
    assert!(offset_of!(IdentifyController, nn) == 516);
    assert!(offset_of!(IdentifyController, oncs) == 520);
    assert!(offset_of!(IdentifyController, vwc) == 525);
    assert!(offset_of!(IdentifyController, awun_z) == 526);
    assert!(offset_of!(IdentifyController, nwpc) == 531);
    assert!(offset_of!(IdentifyController, acwu_z) == 532);
    assert!(offset_of!(IdentifyController, ocfs) == 534);
    assert!(offset_of!(IdentifyController, sgls) == 536);
    assert!(offset_of!(IdentifyController, mnan) == 540);
    assert!(offset_of!(IdentifyController, maxcna) == 560);
    assert!(offset_of!(IdentifyController, mcdqpc) == 586);
    assert!(offset_of!(IdentifyController, subnqn) == 768);
    assert!(offset_of!(IdentifyController, ioccsz_16bytes) == 1792);
    assert!(offset_of!(IdentifyController, iorcsz_16bytes) == 1796);
    assert!(offset_of!(IdentifyController, icdoff_16bytes) == 1800);
    assert!(offset_of!(IdentifyController, fcatt) == 1802);
    assert!(offset_of!(IdentifyController, msdbd) == 1803);
    assert!(offset_of!(IdentifyController, ofcs) == 1804);
    assert!(offset_of!(IdentifyController, dctype) == 1806);
    assert!(offset_of!(IdentifyController, ccrl) == 1807);
    assert!(offset_of!(IdentifyController, psd) == 2048);
    assert!(offset_of!(IdentifyController, vs) == 3072);
};

impl IdentifyController {
    /// From the data of the command; `None` when it is not 4096 bytes.
    #[must_use]
    pub fn from_data(data: &[u8]) -> Option<&Self> {
        Self::ref_from_bytes(data).ok()
    }

    /// Serial Number without its padding.
    #[must_use]
    pub fn serial_number(&self) -> TextField<'_> {
        TextField::new(&self.sn)
    }

    /// Model Number without its padding.
    #[must_use]
    pub fn model_number(&self) -> TextField<'_> {
        TextField::new(&self.mn)
    }

    /// Firmware Revision without its padding.
    #[must_use]
    pub fn firmware_revision(&self) -> TextField<'_> {
        TextField::new(&self.fr)
    }

    /// NVM Subsystem NQN.
    ///
    /// # Errors
    /// When the field holds no NQN.
    pub fn subsystem_nqn(&self) -> Result<Nqn, NqnError> {
        Nqn::from_field(&self.subnqn)
    }

    /// Most bytes in one command's data, with a minimum memory page of 2^(12 + `mpsmin`) bytes;
    /// `None` for no limit (or one over 2^64 - 1).
    #[must_use]
    pub const fn max_data_transfer_bytes(&self, mpsmin: u8) -> Option<u64> {
        if self.mdts == 0 {
            return None;
        }
        let shift = (self.mdts as u32)
            .saturating_add(mpsmin as u32)
            .saturating_add(12);
        1_u64.checked_shl(shift)
    }

    /// Bytes of in-capsule data an I/O command capsule can carry: what IOCCSZ leaves after the
    /// 64 byte SQE and ICDOFF.
    #[must_use]
    pub const fn in_capsule_data_bytes(&self) -> u64 {
        let capsule = (self.ioccsz_16bytes.get() as u64).saturating_mul(16);
        let before = (self.icdoff_16bytes.get() as u64)
            .saturating_mul(16)
            .saturating_add(64);
        capsule.saturating_sub(before)
    }
}

open_enum! {
    /// CNTRLTYPE, Controller Type.
    #[derive(Unaligned)]
    pub struct ControllerType(u8) {
        NOT_REPORTED = 0 => "Not reported",
        IO = 1 => "I/O controller",
        DISCOVERY = 2 => "Discovery controller",
        ADMINISTRATIVE = 3 => "Administrative controller",
    }
}

/// Power State Descriptor, 32 bytes. NVMe Base 2.1, section 5.1.13 (Power State Descriptor).
#[repr(C)]
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
pub struct PowerStateDescriptor {
    /// MP, Maximum Power in centiwatts, or in units of 0.1 mW when bit 0 of `flags` is set.
    pub mp: U16,
    reserved2: u8,
    /// Bit 0 MXPS, Max Power Scale; bit 1 NOPS, Non-Operational State.
    pub flags: u8,
    /// ENLAT, Entry Latency in microseconds.
    pub enlat_us: U32,
    /// EXLAT, Exit Latency in microseconds.
    pub exlat_us: U32,
    /// RRT, Relative Read Throughput.
    pub rrt: u8,
    /// RRL, Relative Read Latency.
    pub rrl: u8,
    /// RWT, Relative Write Throughput.
    pub rwt: u8,
    /// RWL, Relative Write Latency.
    pub rwl: u8,
    /// IDLP, Idle Power.
    pub idlp: U16,
    /// IPS, Idle Power Scale in bits 7:6.
    pub ips: u8,
    reserved19: u8,
    /// ACTP, Active Power.
    pub actp: U16,
    /// Bits 2:0 APW, Active Power Workload; bits 7:6 APS, Active Power Scale.
    pub apw_aps: u8,
    /// Emergency power fail and forced quiescence vault times, and reserved bytes.
    pub rest: [u8; 9],
}

const _: () = {
    assert!(size_of::<PowerStateDescriptor>() == 32 && align_of::<PowerStateDescriptor>() == 1);
    assert!(offset_of!(PowerStateDescriptor, flags) == 3);
    assert!(offset_of!(PowerStateDescriptor, enlat_us) == 4);
    assert!(offset_of!(PowerStateDescriptor, exlat_us) == 8);
    assert!(offset_of!(PowerStateDescriptor, rrt) == 12);
    assert!(offset_of!(PowerStateDescriptor, idlp) == 16);
    assert!(offset_of!(PowerStateDescriptor, actp) == 20);
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::space_padded;
    use zerocopy::FromZeros;

    #[test]
    fn limits_come_from_their_exponents_and_units() {
        let mut identify = IdentifyController::new_zeroed();
        assert_eq!(identify.max_data_transfer_bytes(0), None);
        identify.mdts = 8;
        assert_eq!(identify.max_data_transfer_bytes(0), Some(1 << 20));
        assert_eq!(identify.max_data_transfer_bytes(4), Some(1 << 24));
        identify.mdts = 255;
        assert_eq!(identify.max_data_transfer_bytes(255), None);

        assert_eq!(identify.in_capsule_data_bytes(), 0);
        identify.ioccsz_16bytes = (4 + 512).into();
        assert_eq!(identify.in_capsule_data_bytes(), 8192);
        identify.icdoff_16bytes = 1.into();
        assert_eq!(identify.in_capsule_data_bytes(), 8176);
        identify.icdoff_16bytes = u16::MAX.into();
        assert_eq!(identify.in_capsule_data_bytes(), 0);
    }

    #[test]
    fn text_and_names_are_read_without_padding() {
        let mut identify = IdentifyController::new_zeroed();
        identify.sn = space_padded("0123abcd");
        identify.mn = space_padded("Capstan");
        identify.subnqn = Nqn::discovery().to_field();
        assert_eq!(identify.serial_number().as_str(), Some("0123abcd"));
        assert_eq!(identify.model_number().as_str(), Some("Capstan"));
        assert_eq!(identify.firmware_revision().as_str(), Some(""));
        assert_eq!(identify.subsystem_nqn(), Ok(Nqn::discovery()));
        assert!(IdentifyController::from_data(identify.as_bytes()).is_some());
        assert!(IdentifyController::from_data(&identify.as_bytes()[1..]).is_none());
    }
}
