//! Discovery (LID 70h): the NVM subsystems a discovery controller knows, and how to reach them.
//!
//! Source: NVMe Base 2.1, section 5.1.12 (Discovery log page); NVMe over RDMA Transport 1.1 and
//! NVMe over TCP Transport 1.1 (Transport Specific Address Subtype).

use core::mem::offset_of;

use bitflags::bitflags;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::macros::open_enum;
use crate::nqn::{NQN_FIELD_BYTES, Nqn, NqnError};
use crate::text::{TextField, nul_padded};

open_enum! {
    /// TRTYPE, Transport Type.
    #[derive(Unaligned)]
    pub struct TransportType(u8) {
        RDMA = 1 => "RDMA",
        FIBRE_CHANNEL = 2 => "Fibre Channel",
        TCP = 3 => "TCP",
        INTRA_HOST = 254 => "Intra-host",
    }
}

open_enum! {
    /// ADRFAM, Address Family.
    #[derive(Unaligned)]
    pub struct AddressFamily(u8) {
        IPV4 = 1 => "IPv4",
        IPV6 = 2 => "IPv6",
        INFINIBAND = 3 => "InfiniBand",
        FIBRE_CHANNEL = 4 => "Fibre Channel",
        INTRA_HOST = 254 => "Intra-host",
    }
}

open_enum! {
    /// SUBTYPE, Subsystem Type.
    #[derive(Unaligned)]
    pub struct DiscoverySubsystemType(u8) {
        REFERRAL = 1 => "Referral to another Discovery Service",
        NVM = 2 => "NVM subsystem",
        CURRENT = 3 => "Current Discovery subsystem",
    }
}

open_enum! {
    /// RDMA_QPTYPE, RDMA QP Service Type.
    #[derive(Unaligned)]
    pub struct RdmaQpType(u8) {
        CONNECTED = 1 => "Reliable Connected",
        DATAGRAM = 2 => "Reliable Datagram",
    }
}

open_enum! {
    /// RDMA_PRTYPE, RDMA Provider Type.
    #[derive(Unaligned)]
    pub struct RdmaProviderType(u8) {
        NOT_SPECIFIED = 1 => "No provider specified",
        INFINIBAND = 2 => "InfiniBand",
        ROCE = 3 => "RoCE",
        ROCE_V2 = 4 => "RoCE v2",
        IWARP = 5 => "iWARP",
    }
}

open_enum! {
    /// RDMA_CMS, RDMA Connection Management Service.
    #[derive(Unaligned)]
    pub struct RdmaCms(u8) {
        RDMA_CM = 1 => "RDMA_IP_CM",
    }
}

open_enum! {
    /// SECTYPE, Security Type of NVMe/TCP.
    #[derive(Unaligned)]
    pub struct TcpSecurityType(u8) {
        NONE = 0 => "No security",
        TLS_1_2 = 1 => "TLS 1.2",
        TLS_1_3 = 2 => "TLS 1.3",
    }
}

bitflags! {
    /// EFLAGS, Entry Flags.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct DiscoveryEntryFlags: u16 {
        /// DUPRETINFO: the information of this Discovery subsystem's ports is the same.
        const DUPLICATE_RETURNED_INFORMATION = 1 << 0;
        /// EPCSD: explicit persistent connections to the Discovery controller are supported.
        const PERSISTENT_CONNECTIONS = 1 << 1;
        /// NCC: no connectivity to a CDC.
        const NO_CDC_CONNECTIVITY = 1 << 2;
    }
}

/// TREQ, Transport Requirements.
#[repr(transparent)]
#[derive(
    Clone, Copy, PartialEq, Eq, Hash, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
pub struct TransportRequirements(pub u8);

impl TransportRequirements {
    /// Fabric secure channel not required; SQ flow control disable supported.
    pub const SQ_FLOW_CONTROL_OPTIONAL: Self = Self(0b0000_0110);
    /// Fabric secure channel not specified.
    pub const NOT_SPECIFIED: Self = Self(0);
    /// Fabric secure channel not required.
    pub const SECURE_CHANNEL_NOT_REQUIRED: Self = Self(0b10);

    /// TSC: 0 not specified, 1 required, 2 not required. Bits 1:0.
    #[must_use]
    pub const fn secure_channel(self) -> u8 {
        self.0 & 0b11
    }

    /// Bit 2: the controller can disable SQ flow control.
    #[must_use]
    pub const fn disable_sq_flow_control_supported(self) -> bool {
        self.0 & 1 << 2 != 0
    }
}

/// Transport Specific Address Subtype of RDMA, 256 bytes.
#[repr(C)]
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
pub struct RdmaTsas {
    /// RDMA QP Service Type.
    pub qptype: RdmaQpType,
    /// RDMA Provider Type.
    pub prtype: RdmaProviderType,
    /// RDMA Connection Management Service.
    pub cms: RdmaCms,
    reserved3: [u8; 5],
    /// RDMA_PKEY, Partition Key, with the InfiniBand address family.
    pub pkey: U16,
    reserved10: [u8; 246],
}

/// Transport Specific Address Subtype of NVMe/TCP, 256 bytes.
#[repr(C)]
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
pub struct TcpTsas {
    /// Security Type.
    pub sectype: TcpSecurityType,
    reserved1: [u8; 255],
}

/// Head of the Discovery log page, 1024 bytes. The entries follow it.
#[repr(C)]
#[derive(Clone, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct DiscoveryLogHeader {
    /// GENCTR, Generation Counter: changes with the page. Read again after the entries, it says
    /// whether they belong together.
    pub genctr: U64,
    /// NUMREC, Number of Records.
    pub numrec: U64,
    /// RECFMT, Record Format: 0.
    pub recfmt: U16,
    /// DLPF, Discovery Log Page Flags: bit 0 extended entries, bit 1 port local entries only,
    /// bit 2 all NVM subsystem entries.
    pub dlpf: u8,
    reserved19: u8,
    /// TDLPL, Total Discovery Log Page Length in bytes, when entries are extended.
    pub tdlpl_bytes: U32,
    reserved24: [u8; 1000],
}

/// Discovery Log Page Entry, 1024 bytes.
#[repr(C)]
#[derive(Clone, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct DiscoveryLogEntry {
    /// TRTYPE.
    pub trtype: TransportType,
    /// ADRFAM.
    pub adrfam: AddressFamily,
    /// SUBTYPE.
    pub subtype: DiscoverySubsystemType,
    /// TREQ.
    pub treq: TransportRequirements,
    /// PORTID, Port ID.
    pub portid: U16,
    /// CNTLID, Controller ID: FFFFh for the dynamic controller model.
    pub cntlid: U16,
    /// ASQSZ, Admin Max SQ Size: at least 32.
    pub asqsz: U16,
    /// EFLAGS: see [`DiscoveryEntryFlags`].
    pub eflags: U16,
    reserved12: [u8; 20],
    /// TRSVCID, Transport Service Identifier: the port number as decimal text.
    pub trsvcid: [u8; 32],
    reserved64: [u8; 192],
    /// SUBNQN, NVM Subsystem Qualified Name.
    pub subnqn: [u8; NQN_FIELD_BYTES],
    /// TRADDR, Transport Address as text.
    pub traddr: [u8; 256],
    /// TSAS, Transport Specific Address Subtype; see [`DiscoveryLogEntry::rdma_tsas`] and
    /// [`DiscoveryLogEntry::tcp_tsas`].
    pub tsas: [u8; 256],
}

const _: () = {
    assert!(size_of::<RdmaTsas>() == 256 && align_of::<RdmaTsas>() == 1);
    assert!(offset_of!(RdmaTsas, prtype) == 1);
    assert!(offset_of!(RdmaTsas, cms) == 2);
    assert!(offset_of!(RdmaTsas, pkey) == 8);
    assert!(size_of::<TcpTsas>() == 256 && align_of::<TcpTsas>() == 1);
    assert!(size_of::<DiscoveryLogHeader>() == DiscoveryLogHeader::SIZE_BYTES);
    assert!(align_of::<DiscoveryLogHeader>() == 1);
    assert!(offset_of!(DiscoveryLogHeader, numrec) == 8);
    assert!(offset_of!(DiscoveryLogHeader, recfmt) == 16);
    assert!(offset_of!(DiscoveryLogHeader, dlpf) == 18);
    assert!(offset_of!(DiscoveryLogHeader, tdlpl_bytes) == 20);
    assert!(size_of::<DiscoveryLogEntry>() == DiscoveryLogEntry::SIZE_BYTES);
    assert!(align_of::<DiscoveryLogEntry>() == 1);
    assert!(offset_of!(DiscoveryLogEntry, treq) == 3);
    assert!(offset_of!(DiscoveryLogEntry, portid) == 4);
    assert!(offset_of!(DiscoveryLogEntry, cntlid) == 6);
    assert!(offset_of!(DiscoveryLogEntry, asqsz) == 8);
    assert!(offset_of!(DiscoveryLogEntry, eflags) == 10);
    assert!(offset_of!(DiscoveryLogEntry, trsvcid) == 32);
    assert!(offset_of!(DiscoveryLogEntry, subnqn) == 256);
    assert!(offset_of!(DiscoveryLogEntry, traddr) == 512);
    assert!(offset_of!(DiscoveryLogEntry, tsas) == 768);
};

/// Why a Discovery log page cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum DiscoveryLogError {
    /// Fewer bytes than the head has.
    #[error("the discovery log page has {actual_bytes} bytes, expected at least 1024")]
    TooShort {
        /// Bytes there are.
        actual_bytes: usize,
    },
    /// A record format other than 0.
    #[error(
        "RECFMT of the discovery log page is {recfmt}, expected 0: its entries have a newer layout"
    )]
    RecordFormat {
        /// RECFMT.
        recfmt: u16,
    },
    /// Entries of another length than 1024 bytes, which are sent only on request.
    #[error("the discovery log page has extended entries, which were not asked for")]
    Extended,
}

impl DiscoveryLogHeader {
    /// Bytes of the head.
    pub const SIZE_BYTES: usize = 1024;

    /// A head of record format 0, its reserved bytes zero.
    #[must_use]
    pub fn new(genctr: u64, numrec: u64) -> Self {
        Self {
            genctr: genctr.into(),
            numrec: numrec.into(),
            ..Self::new_zeroed()
        }
    }

    /// Bytes of the whole page, with NUMREC entries of 1024 bytes.
    #[must_use]
    pub const fn page_bytes(&self) -> u64 {
        self.numrec
            .get()
            .saturating_mul(DiscoveryLogEntry::SIZE_BYTES as u64)
            .saturating_add(Self::SIZE_BYTES as u64)
    }
}

/// A Discovery log page, or as much of it as was read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiscoveryLog<'a> {
    /// The head; its NUMREC says how many entries there are.
    pub header: &'a DiscoveryLogHeader,
    /// The whole entries in the data, no more than NUMREC.
    pub entries: &'a [DiscoveryLogEntry],
}

impl<'a> DiscoveryLog<'a> {
    /// From the data of the command, which starts at offset 0 of the page.
    ///
    /// # Errors
    /// [`DiscoveryLogError`] when there is no head, or one of another record format.
    pub fn parse(data: &'a [u8]) -> Result<Self, DiscoveryLogError> {
        let too_short = DiscoveryLogError::TooShort {
            actual_bytes: data.len(),
        };
        let (header, rest) = DiscoveryLogHeader::ref_from_prefix(data).map_err(|_| too_short)?;
        if header.recfmt.get() != 0 {
            return Err(DiscoveryLogError::RecordFormat {
                recfmt: header.recfmt.get(),
            });
        }
        if header.dlpf & 1 != 0 {
            return Err(DiscoveryLogError::Extended);
        }
        let fitting = rest
            .len()
            .checked_div(DiscoveryLogEntry::SIZE_BYTES)
            .unwrap_or(0);
        let count = usize::try_from(header.numrec.get())
            .unwrap_or(usize::MAX)
            .min(fitting);
        let (entries, _rest) = <[DiscoveryLogEntry]>::ref_from_prefix_with_elems(rest, count)
            .map_err(|_| too_short)?;
        Ok(Self { header, entries })
    }

    /// Whether every entry that NUMREC announces is there.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        u64::try_from(self.entries.len()) == Ok(self.header.numrec.get())
    }
}

impl DiscoveryLogEntry {
    /// Bytes of an entry.
    pub const SIZE_BYTES: usize = 1024;

    /// An entry for an RDMA port of the dynamic controller model, reached through RDMA_IP_CM and
    /// a reliable connected QP. `traddr` and `trsvcid` are cut at 256 and 32 bytes.
    #[must_use]
    pub fn rdma(
        subtype: DiscoverySubsystemType,
        subnqn: &Nqn,
        portid: u16,
        adrfam: AddressFamily,
        traddr: &str,
        trsvcid: &str,
        prtype: RdmaProviderType,
    ) -> Self {
        let tsas = RdmaTsas {
            qptype: RdmaQpType::CONNECTED,
            prtype,
            cms: RdmaCms::RDMA_CM,
            ..RdmaTsas::new_zeroed()
        };
        Self {
            tsas: zerocopy::transmute!(tsas),
            ..Self::of_port(
                TransportType::RDMA,
                subtype,
                subnqn,
                portid,
                adrfam,
                traddr,
                trsvcid,
            )
        }
    }

    /// An entry for an NVMe/TCP port of the dynamic controller model. `traddr` and `trsvcid` are
    /// cut at 256 and 32 bytes.
    #[must_use]
    pub fn tcp(
        subtype: DiscoverySubsystemType,
        subnqn: &Nqn,
        portid: u16,
        adrfam: AddressFamily,
        traddr: &str,
        trsvcid: &str,
        sectype: TcpSecurityType,
    ) -> Self {
        let tsas = TcpTsas {
            sectype,
            ..TcpTsas::new_zeroed()
        };
        Self {
            tsas: zerocopy::transmute!(tsas),
            ..Self::of_port(
                TransportType::TCP,
                subtype,
                subnqn,
                portid,
                adrfam,
                traddr,
                trsvcid,
            )
        }
    }

    fn of_port(
        trtype: TransportType,
        subtype: DiscoverySubsystemType,
        subnqn: &Nqn,
        portid: u16,
        adrfam: AddressFamily,
        traddr: &str,
        trsvcid: &str,
    ) -> Self {
        Self {
            trtype,
            adrfam,
            subtype,
            portid: portid.into(),
            cntlid: crate::fabrics::CNTLID_DYNAMIC.into(),
            asqsz: Self::ASQSZ_MIN.into(),
            trsvcid: nul_padded(trsvcid),
            subnqn: subnqn.to_field(),
            traddr: nul_padded(traddr),
            ..Self::new_zeroed()
        }
    }

    /// The least ASQSZ a discovery log entry may say.
    pub const ASQSZ_MIN: u16 = 32;

    /// NVM Subsystem Qualified Name.
    ///
    /// # Errors
    /// When the field holds no NQN.
    pub fn subsystem_nqn(&self) -> Result<Nqn, NqnError> {
        Nqn::from_field(&self.subnqn)
    }

    /// Transport Address, without padding.
    #[must_use]
    pub fn transport_address(&self) -> TextField<'_> {
        TextField::new(&self.traddr)
    }

    /// Transport Service Identifier, without padding.
    #[must_use]
    pub fn transport_service_id(&self) -> TextField<'_> {
        TextField::new(&self.trsvcid)
    }

    /// TSAS of an RDMA entry; `None` for another transport.
    #[must_use]
    pub fn rdma_tsas(&self) -> Option<&RdmaTsas> {
        if self.trtype == TransportType::RDMA {
            Some(zerocopy::transmute_ref!(&self.tsas))
        } else {
            None
        }
    }

    /// TSAS of an NVMe/TCP entry; `None` for another transport.
    #[must_use]
    pub fn tcp_tsas(&self) -> Option<&TcpTsas> {
        if self.trtype == TransportType::TCP {
            Some(zerocopy::transmute_ref!(&self.tsas))
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    fn entry() -> DiscoveryLogEntry {
        DiscoveryLogEntry::rdma(
            DiscoverySubsystemType::NVM,
            &Nqn::new("nqn.2024-01.io.capstan:disk").unwrap(),
            7,
            AddressFamily::IPV4,
            "192.0.2.1",
            "4420",
            RdmaProviderType::IWARP,
        )
    }

    #[test]
    fn an_rdma_entry_reads_back() {
        let entry = entry();
        assert_eq!(entry.as_bytes()[..4], [1, 1, 2, 0]);
        assert_eq!(entry.as_bytes()[768..771], [1, 5, 1]);
        assert_eq!(entry.transport_address().as_str(), Some("192.0.2.1"));
        assert_eq!(entry.transport_service_id().as_str(), Some("4420"));
        assert_eq!(
            entry.subsystem_nqn().unwrap().as_str(),
            "nqn.2024-01.io.capstan:disk"
        );
        assert_eq!(entry.rdma_tsas().unwrap().prtype, RdmaProviderType::IWARP);
        assert_eq!(entry.tcp_tsas(), None);
    }

    #[test]
    fn a_tcp_entry_reads_back() {
        let entry = DiscoveryLogEntry::tcp(
            DiscoverySubsystemType::NVM,
            &Nqn::new("nqn.2024-01.io.capstan:disk").unwrap(),
            7,
            AddressFamily::IPV6,
            "2001:db8::1",
            "8009",
            TcpSecurityType::TLS_1_3,
        );
        assert_eq!(entry.as_bytes()[..4], [3, 2, 2, 0]);
        assert_eq!(entry.as_bytes()[768..770], [2, 0]);
        assert_eq!(entry.transport_address().as_str(), Some("2001:db8::1"));
        assert_eq!(entry.transport_service_id().as_str(), Some("8009"));
        assert_eq!(entry.asqsz.get(), DiscoveryLogEntry::ASQSZ_MIN);
        assert_eq!(entry.tcp_tsas().unwrap().sectype, TcpSecurityType::TLS_1_3);
        assert_eq!(entry.rdma_tsas(), None);
    }

    #[test]
    fn entries_are_those_that_fit_and_are_announced() {
        let page = |numrec, entries: usize| -> Vec<u8> {
            let mut page = DiscoveryLogHeader::new(5, numrec).as_bytes().to_vec();
            for _ in 0..entries {
                page.extend_from_slice(entry().as_bytes());
            }
            page
        };
        let count = |page: &[u8]| {
            let log = DiscoveryLog::parse(page).unwrap();
            (log.entries.len(), log.is_complete())
        };
        assert_eq!(count(&page(2, 2)), (2, true));
        assert_eq!(count(&page(1, 2)), (1, true));
        assert_eq!(count(&page(u64::MAX, 2)), (2, false));
        assert_eq!(count(&page(2, 2)[..3071]), (1, false));
        assert_eq!(DiscoveryLogHeader::new(0, 3).page_bytes(), 4096);
        assert_eq!(DiscoveryLogHeader::new(0, u64::MAX).page_bytes(), u64::MAX);
    }

    #[test]
    fn other_layouts_are_refused() {
        let mut page = DiscoveryLogHeader::new(1, 0);
        let short = &page.as_bytes()[..1023];
        assert_eq!(
            DiscoveryLog::parse(short),
            Err(DiscoveryLogError::TooShort { actual_bytes: 1023 })
        );
        page.dlpf = 1;
        assert_eq!(
            DiscoveryLog::parse(page.as_bytes()),
            Err(DiscoveryLogError::Extended)
        );
        page.recfmt = 2.into();
        assert_eq!(
            DiscoveryLog::parse(page.as_bytes()),
            Err(DiscoveryLogError::RecordFormat { recfmt: 2 })
        );
    }
}
