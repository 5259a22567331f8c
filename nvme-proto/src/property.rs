//! Controller properties, which Property Get and Property Set address by offset.
//!
//! Source: NVMe Base 2.1, section 3.1.4 (Controller Properties). Only the properties that exist
//! over fabrics are here; the others are memory of a PCIe function.

use crate::bits;
use crate::macros::open_enum;
use crate::zeroes_based;

open_enum! {
    /// A property, by its offset.
    pub struct Property(u32) {
        CAP = 0x00 => "CAP",
        VS = 0x08 => "VS",
        CC = 0x14 => "CC",
        CSTS = 0x1C => "CSTS",
        NSSR = 0x20 => "NSSR",
        NSSD = 0x64 => "NSSD",
        CRTO = 0x68 => "CRTO",
    }
}

/// Size of a property, the low 3 bits of the ATTRIB field.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PropertySize {
    /// 000b: 4 bytes.
    Four,
    /// 001b: 8 bytes.
    Eight,
}

impl PropertySize {
    /// The size as ATTRIB says it; `None` for a reserved value.
    #[must_use]
    pub const fn from_attrib(attrib: u8) -> Option<Self> {
        match attrib & 0b111 {
            0 => Some(Self::Four),
            1 => Some(Self::Eight),
            _ => None,
        }
    }

    /// The ATTRIB field.
    #[must_use]
    pub const fn to_attrib(self) -> u8 {
        match self {
            Self::Four => 0,
            Self::Eight => 1,
        }
    }
}

impl Property {
    /// The size the specification gives this property; `None` for an offset without one here.
    #[must_use]
    pub const fn size(self) -> Option<PropertySize> {
        match self {
            Self::CAP => Some(PropertySize::Eight),
            Self::VS | Self::CC | Self::CSTS | Self::NSSR | Self::NSSD | Self::CRTO => {
                Some(PropertySize::Four)
            }
            _ => None,
        }
    }
}

/// The value of NSSR that resets the NVM subsystem: "NVMe".
pub const NSSR_RESET: u32 = 0x4E56_4D65;
/// The value of NSSD that shuts the NVM subsystem down normally: "Nrml".
pub const NSSD_NORMAL: u32 = 0x4E72_6D6C;
/// The value of NSSD that shuts the NVM subsystem down abruptly: "Abrt".
pub const NSSD_ABRUPT: u32 = 0x4162_7274;

/// CAP, Controller Capabilities: 8 bytes at offset 0. Reserved bits are not kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cap {
    /// MQES, Maximum Queue Entries Supported: 1 to 65536 (on the wire 0's based).
    pub mqes: u32,
    /// CQR, Contiguous Queues Required: always set over fabrics.
    pub cqr: bool,
    /// AMS, Arbitration Mechanism Supported: bit 0 weighted round robin, bit 1 vendor specific.
    pub ams: u8,
    /// TO: the longest wait for CSTS.RDY to follow CC.EN, in units of 500 ms.
    pub to_500ms: u8,
    /// DSTRD, Doorbell Stride: zero over fabrics.
    pub dstrd: u8,
    /// NSSRS, NVM Subsystem Reset Supported.
    pub nssrs: bool,
    /// CSS, Command Sets Supported: bit 0 NVM, bit 6 one or more I/O command sets (Identify
    /// CNS 1Ch), bit 7 no I/O command set.
    pub css: u8,
    /// BPS, Boot Partition Support.
    pub bps: bool,
    /// CPS, Controller Power Scope: 2 bits.
    pub cps: u8,
    /// MPSMIN, Memory Page Size Minimum is 2^(12 + MPSMIN) bytes.
    pub mpsmin: u8,
    /// MPSMAX, Memory Page Size Maximum is 2^(12 + MPSMAX) bytes.
    pub mpsmax: u8,
    /// PMRS, Persistent Memory Region Supported.
    pub pmrs: bool,
    /// CMBS, Controller Memory Buffer Supported.
    pub cmbs: bool,
    /// NSSS, NVM Subsystem Shutdown Supported.
    pub nsss: bool,
    /// CRWMS: Controller Ready With Media Support.
    pub crwms: bool,
    /// CRIMS: Controller Ready Independent of Media Support.
    pub crims: bool,
    /// NSSES, NVM Subsystem Shutdown Enhancements Supported.
    pub nsses: bool,
}

impl Cap {
    /// CSS bit 0: the NVM command set.
    pub const CSS_NVM: u8 = 1 << 0;
    /// CSS bit 6: one or more I/O command sets, listed by Identify CNS 1Ch.
    pub const CSS_IOCS: u8 = 1 << 6;
    /// CSS bit 7: no I/O command set (a discovery or administrative controller).
    pub const CSS_NOIO: u8 = 1 << 7;

    /// From the value of the property.
    #[must_use]
    pub const fn decode(value: u64) -> Self {
        let (low, high) = (bits::low32(value), bits::high32(value));
        Self {
            mqes: zeroes_based::from_u16(bits::low16(low)),
            cqr: bits::bit(low, 16),
            ams: bits::byte(bits::field(low, 17, 2), 0),
            to_500ms: bits::byte(low, 24),
            dstrd: bits::byte(bits::field(high, 0, 4), 0),
            nssrs: bits::bit(high, 4),
            css: bits::byte(bits::field(high, 5, 8), 0),
            bps: bits::bit(high, 13),
            cps: bits::byte(bits::field(high, 14, 2), 0),
            mpsmin: bits::byte(bits::field(high, 16, 4), 0),
            mpsmax: bits::byte(bits::field(high, 20, 4), 0),
            pmrs: bits::bit(high, 24),
            cmbs: bits::bit(high, 25),
            nsss: bits::bit(high, 26),
            crwms: bits::bit(high, 27),
            crims: bits::bit(high, 28),
            nsses: bits::bit(high, 29),
        }
    }

    /// The value of the property. MQES outside 1 to 65536 becomes the nearer end.
    #[must_use]
    pub const fn encode(self) -> u64 {
        let mqes_z = match (zeroes_based::to_u16(self.mqes), self.mqes) {
            (Some(field), _) => field,
            (None, 0) => 0,
            (None, _) => u16::MAX,
        };
        let low = mqes_z as u32
            | bits::flag(self.cqr, 16)
            | bits::place(self.ams as u32, 17, 2)
            | bits::place(self.to_500ms as u32, 24, 8);
        let high = bits::place(self.dstrd as u32, 0, 4)
            | bits::flag(self.nssrs, 4)
            | bits::place(self.css as u32, 5, 8)
            | bits::flag(self.bps, 13)
            | bits::place(self.cps as u32, 14, 2)
            | bits::place(self.mpsmin as u32, 16, 4)
            | bits::place(self.mpsmax as u32, 20, 4)
            | bits::flag(self.pmrs, 24)
            | bits::flag(self.cmbs, 25)
            | bits::flag(self.nsss, 26)
            | bits::flag(self.crwms, 27)
            | bits::flag(self.crims, 28)
            | bits::flag(self.nsses, 29);
        bits::dwords(low, high)
    }

    /// TO in milliseconds.
    #[must_use]
    pub const fn timeout_ms(self) -> u32 {
        (self.to_500ms as u32).saturating_mul(500)
    }
}

/// VS, Version: 4 bytes at offset 8; also Identify Controller VER and the CSI version fields.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Version {
    /// Major version.
    pub major: u16,
    /// Minor version.
    pub minor: u8,
    /// Tertiary version.
    pub tertiary: u8,
}

impl Version {
    /// NVMe 1.4.0.
    pub const V1_4: Self = Self {
        major: 1,
        minor: 4,
        tertiary: 0,
    };
    /// NVMe 2.0.0.
    pub const V2_0: Self = Self {
        major: 2,
        minor: 0,
        tertiary: 0,
    };
    /// NVMe 2.1.0.
    pub const V2_1: Self = Self {
        major: 2,
        minor: 1,
        tertiary: 0,
    };

    /// From the value of the property.
    #[must_use]
    pub const fn decode(value: u32) -> Self {
        Self {
            major: bits::high16(value),
            minor: bits::byte(value, 8),
            tertiary: bits::byte(value, 0),
        }
    }

    /// The value of the property.
    #[must_use]
    pub const fn encode(self) -> u32 {
        bits::words(u16::from_le_bytes([self.tertiary, self.minor]), self.major)
    }
}

impl core::fmt::Display for Version {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.tertiary)
    }
}

open_enum! {
    /// CC.SHN, Shutdown Notification: 2 bits.
    pub struct ShutdownNotification(u8) {
        NONE = 0b00 => "No notification",
        NORMAL = 0b01 => "Normal shutdown notification",
        ABRUPT = 0b10 => "Abrupt shutdown notification",
    }
}

open_enum! {
    /// CSTS.SHST, Shutdown Status: 2 bits.
    pub struct ShutdownStatus(u8) {
        NORMAL = 0b00 => "Normal operation",
        OCCURRING = 0b01 => "Shutdown processing occurring",
        COMPLETE = 0b10 => "Shutdown processing complete",
    }
}

open_enum! {
    /// CC.CSS, I/O Command Set Selected: 3 bits.
    pub struct CommandSetSelected(u8) {
        NVM = 0b000 => "NVM Command Set",
        ALL_SUPPORTED = 0b110 => "All Supported I/O Command Sets",
        ADMIN_ONLY = 0b111 => "Admin Command Set only",
    }
}

/// CC, Controller Configuration: 4 bytes at offset 14h. Reserved bits are not kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cc {
    /// EN, Enable.
    pub en: bool,
    /// CSS, I/O Command Set Selected.
    pub css: CommandSetSelected,
    /// MPS: the memory page size is 2^(12 + MPS) bytes.
    pub mps: u8,
    /// AMS, Arbitration Mechanism Selected: 0 is round robin.
    pub ams: u8,
    /// SHN, Shutdown Notification.
    pub shn: ShutdownNotification,
    /// IOSQES: an I/O submission queue entry is 2^IOSQES bytes; 6 over fabrics.
    pub iosqes: u8,
    /// IOCQES: an I/O completion queue entry is 2^IOCQES bytes; 4 over fabrics.
    pub iocqes: u8,
    /// CRIME, Controller Ready Independent of Media Enable.
    pub crime: bool,
}

impl Cc {
    /// What a host writes to enable a controller with the NVM command set: 64 byte SQEs, 16 byte
    /// CQEs, 4 KiB pages, round robin.
    pub const ENABLE_NVM: Self = Self {
        en: true,
        css: CommandSetSelected::NVM,
        mps: 0,
        ams: 0,
        shn: ShutdownNotification::NONE,
        iosqes: 6,
        iocqes: 4,
        crime: false,
    };

    /// From the value of the property.
    #[must_use]
    pub const fn decode(value: u32) -> Self {
        Self {
            en: bits::bit(value, 0),
            css: CommandSetSelected(bits::byte(bits::field(value, 4, 3), 0)),
            mps: bits::byte(bits::field(value, 7, 4), 0),
            ams: bits::byte(bits::field(value, 11, 3), 0),
            shn: ShutdownNotification(bits::byte(bits::field(value, 14, 2), 0)),
            iosqes: bits::byte(bits::field(value, 16, 4), 0),
            iocqes: bits::byte(bits::field(value, 20, 4), 0),
            crime: bits::bit(value, 24),
        }
    }

    /// The value of the property.
    #[must_use]
    pub const fn encode(self) -> u32 {
        bits::flag(self.en, 0)
            | bits::place(self.css.0 as u32, 4, 3)
            | bits::place(self.mps as u32, 7, 4)
            | bits::place(self.ams as u32, 11, 3)
            | bits::place(self.shn.0 as u32, 14, 2)
            | bits::place(self.iosqes as u32, 16, 4)
            | bits::place(self.iocqes as u32, 20, 4)
            | bits::flag(self.crime, 24)
    }
}

/// CSTS, Controller Status: 4 bytes at offset 1Ch. Reserved bits are not kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Csts {
    /// RDY, Ready.
    pub rdy: bool,
    /// CFS, Controller Fatal Status.
    pub cfs: bool,
    /// SHST, Shutdown Status.
    pub shst: ShutdownStatus,
    /// NSSRO, NVM Subsystem Reset Occurred.
    pub nssro: bool,
    /// PP, Processing Paused.
    pub pp: bool,
    /// ST, Shutdown Type: set when SHST speaks of an NVM subsystem shutdown.
    pub st: bool,
}

impl Csts {
    /// Not ready, nothing wrong.
    pub const NOT_READY: Self = Self {
        rdy: false,
        cfs: false,
        shst: ShutdownStatus::NORMAL,
        nssro: false,
        pp: false,
        st: false,
    };

    /// From the value of the property.
    #[must_use]
    pub const fn decode(value: u32) -> Self {
        Self {
            rdy: bits::bit(value, 0),
            cfs: bits::bit(value, 1),
            shst: ShutdownStatus(bits::byte(bits::field(value, 2, 2), 0)),
            nssro: bits::bit(value, 4),
            pp: bits::bit(value, 5),
            st: bits::bit(value, 6),
        }
    }

    /// The value of the property.
    #[must_use]
    pub const fn encode(self) -> u32 {
        bits::flag(self.rdy, 0)
            | bits::flag(self.cfs, 1)
            | bits::place(self.shst.0 as u32, 2, 2)
            | bits::flag(self.nssro, 4)
            | bits::flag(self.pp, 5)
            | bits::flag(self.st, 6)
    }
}

/// CRTO, Controller Ready Timeouts: 4 bytes at offset 68h.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Crto {
    /// CRWMT, Controller Ready With Media Timeout, in units of 500 ms.
    pub crwmt_500ms: u16,
    /// CRIMT, Controller Ready Independent of Media Timeout, in units of 500 ms.
    pub crimt_500ms: u16,
}

impl Crto {
    /// From the value of the property.
    #[must_use]
    pub const fn decode(value: u32) -> Self {
        Self {
            crwmt_500ms: bits::low16(value),
            crimt_500ms: bits::high16(value),
        }
    }

    /// The value of the property.
    #[must_use]
    pub const fn encode(self) -> u32 {
        bits::words(self.crwmt_500ms, self.crimt_500ms)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::string::ToString;

    /// Bits that `decode` then `encode` keeps, found by setting each alone.
    fn kept_u32(round_trip: impl Fn(u32) -> u32) -> u32 {
        (0..32)
            .map(|bit| 1 << bit)
            .filter(|bit| round_trip(*bit) & bit != 0)
            .sum()
    }

    #[test]
    fn every_defined_bit_is_kept() {
        assert_eq!(kept_u32(|v| Cc::decode(v).encode()), 0x01FF_FFF1);
        assert_eq!(kept_u32(|v| Csts::decode(v).encode()), 0x0000_007F);
        assert_eq!(kept_u32(|v| Crto::decode(v).encode()), u32::MAX);
        assert_eq!(kept_u32(|v| Version::decode(v).encode()), u32::MAX);
        let kept: u64 = (0..64)
            .map(|b| 1 << b)
            .filter(|b| Cap::decode(*b).encode() & b != 0)
            .sum();
        assert_eq!(kept, 0x3FFF_FFFF_FF07_FFFF);
        assert_eq!(Cap::decode(kept).encode(), kept);
    }

    #[test]
    fn enabling_writes_the_value_hosts_write() {
        assert_eq!(Cc::ENABLE_NVM.encode(), 0x0046_0001);
    }

    #[test]
    fn mqes_is_widened_before_its_one_is_added() {
        assert_eq!(Cap::decode(0xFFFF).mqes, 65_536);
        let cap = Cap {
            mqes: 128,
            ..Cap::decode(0)
        };
        assert_eq!(cap.encode() & 0xFFFF, 127);
        assert_eq!(Cap { mqes: 0, ..cap }.encode() & 0xFFFF, 0);
        assert_eq!(
            Cap {
                mqes: u32::MAX,
                ..cap
            }
            .encode()
                & 0xFFFF,
            0xFFFF
        );
        assert_eq!(
            Cap {
                to_500ms: 255,
                ..cap
            }
            .timeout_ms(),
            127_500
        );
    }

    #[test]
    fn versions_read_as_people_write_them() {
        assert_eq!(Version::V2_1.encode(), 0x0002_0100);
        assert_eq!(Version::decode(0x0001_0201).to_string(), "1.2.1");
        assert!(Version::V1_4 < Version::V2_0);
    }

    #[test]
    fn sizes_are_the_specifications() {
        assert_eq!(Property::CAP.size(), Some(PropertySize::Eight));
        assert_eq!(Property::CSTS.size(), Some(PropertySize::Four));
        assert_eq!(Property(0x0C).size(), None);
        assert_eq!(
            PropertySize::from_attrib(0b1111_1001),
            Some(PropertySize::Eight)
        );
        assert_eq!(PropertySize::from_attrib(2), None);
    }
}
