//! Features: identifiers, the values Set Features carries in dword 11 and Get Features returns in
//! dword 0, and the data structures of those that have data.
//!
//! Source: NVMe Base 2.1, section 5.1.25; NVM Command Set 1.1, section 4.1.3.

use core::mem::offset_of;

use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, FromZeros as _, Immutable, IntoBytes, KnownLayout, Unaligned};

pub use crate::async_event::AsyncEventConfiguration;
use crate::bits;
use crate::error::CommandError;
use crate::macros::open_enum;
use crate::zeroes_based;

open_enum! {
    /// Feature Identifier (FID).
    pub struct FeatureId(u8) {
        ARBITRATION = 0x01 => "Arbitration",
        POWER_MANAGEMENT = 0x02 => "Power Management",
        LBA_RANGE_TYPE = 0x03 => "LBA Range Type",
        TEMPERATURE_THRESHOLD = 0x04 => "Temperature Threshold",
        ERROR_RECOVERY = 0x05 => "Error Recovery",
        VOLATILE_WRITE_CACHE = 0x06 => "Volatile Write Cache",
        NUMBER_OF_QUEUES = 0x07 => "Number of Queues",
        INTERRUPT_COALESCING = 0x08 => "Interrupt Coalescing",
        INTERRUPT_VECTOR_CONFIGURATION = 0x09 => "Interrupt Vector Configuration",
        WRITE_ATOMICITY_NORMAL = 0x0A => "Write Atomicity Normal",
        ASYNCHRONOUS_EVENT_CONFIGURATION = 0x0B => "Asynchronous Event Configuration",
        AUTONOMOUS_POWER_STATE_TRANSITION = 0x0C => "Autonomous Power State Transition",
        HOST_MEMORY_BUFFER = 0x0D => "Host Memory Buffer",
        TIMESTAMP = 0x0E => "Timestamp",
        KEEP_ALIVE_TIMER = 0x0F => "Keep Alive Timer",
        HOST_CONTROLLED_THERMAL_MANAGEMENT = 0x10 => "Host Controlled Thermal Management",
        NON_OPERATIONAL_POWER_STATE_CONFIG = 0x11 => "Non-Operational Power State Config",
        READ_RECOVERY_LEVEL_CONFIG = 0x12 => "Read Recovery Level Config",
        PREDICTABLE_LATENCY_MODE_CONFIG = 0x13 => "Predictable Latency Mode Config",
        PREDICTABLE_LATENCY_MODE_WINDOW = 0x14 => "Predictable Latency Mode Window",
        LBA_STATUS_INFORMATION_ATTRIBUTES = 0x15 => "LBA Status Information Attributes",
        HOST_BEHAVIOR_SUPPORT = 0x16 => "Host Behavior Support",
        SANITIZE_CONFIG = 0x17 => "Sanitize Config",
        ENDURANCE_GROUP_EVENT_CONFIGURATION = 0x18 => "Endurance Group Event Configuration",
        IO_COMMAND_SET_PROFILE = 0x19 => "I/O Command Set Profile",
        SPINUP_CONTROL = 0x1A => "Spinup Control",
        POWER_LOSS_SIGNALING_CONFIG = 0x1B => "Power Loss Signaling Config",
        PERFORMANCE_CHARACTERISTICS = 0x1C => "Performance Characteristics",
        FLEXIBLE_DATA_PLACEMENT = 0x1D => "Flexible Data Placement",
        FLEXIBLE_DATA_PLACEMENT_EVENTS = 0x1E => "Flexible Data Placement Events",
        NAMESPACE_ADMIN_LABEL = 0x1F => "Namespace Admin Label",
        CONTROLLER_DATA_QUEUE = 0x21 => "Controller Data Queue",
        EMBEDDED_MANAGEMENT_CONTROLLER_ADDRESS =
            0x78 => "Embedded Management Controller Address",
        HOST_MANAGEMENT_AGENT_ADDRESS = 0x79 => "Host Management Agent Address",
        ENHANCED_CONTROLLER_METADATA = 0x7D => "Enhanced Controller Metadata",
        CONTROLLER_METADATA = 0x7E => "Controller Metadata",
        NAMESPACE_METADATA = 0x7F => "Namespace Metadata",
        SOFTWARE_PROGRESS_MARKER = 0x80 => "Software Progress Marker",
        HOST_IDENTIFIER = 0x81 => "Host Identifier",
        RESERVATION_NOTIFICATION_MASK = 0x82 => "Reservation Notification Mask",
        RESERVATION_PERSISTENCE = 0x83 => "Reservation Persistence",
        NAMESPACE_WRITE_PROTECTION_CONFIG = 0x84 => "Namespace Write Protection Config",
        BOOT_PARTITION_WRITE_PROTECTION_CONFIG =
            0x85 => "Boot Partition Write Protection Config",
    }
}

open_enum! {
    /// Select (SEL) of Get Features: which value to return. 3 bits.
    pub struct FeatureSelect(u8) {
        CURRENT = 0 => "Current",
        DEFAULT = 1 => "Default",
        SAVED = 2 => "Saved",
        SUPPORTED_CAPABILITIES = 3 => "Supported Capabilities",
    }
}

impl FeatureSelect {
    /// Whether a value of the feature is asked for, rather than its capabilities.
    #[must_use]
    pub const fn returns_value(self) -> bool {
        matches!(self, Self::CURRENT | Self::DEFAULT | Self::SAVED)
    }
}

impl FeatureId {
    /// Bytes of data a Set Features of this feature with `cdw11` brings; 0 for most.
    #[must_use]
    pub const fn set_data_bytes(self, cdw11: u32) -> u32 {
        match self {
            Self::LBA_RANGE_TYPE => 4096,
            Self::AUTONOMOUS_POWER_STATE_TRANSITION => 256,
            Self::TIMESTAMP => TimestampData::SIZE_BYTES,
            Self::PREDICTABLE_LATENCY_MODE_CONFIG => 512,
            Self::HOST_BEHAVIOR_SUPPORT => HostBehaviorSupport::SIZE_BYTES,
            Self::ENHANCED_CONTROLLER_METADATA
            | Self::CONTROLLER_METADATA
            | Self::NAMESPACE_METADATA => 4096,
            Self::HOST_IDENTIFIER => HostIdentifier::decode(cdw11).data_bytes(),
            _ => 0,
        }
    }

    /// Bytes of data a Get Features of this feature with `cdw11` returns; 0 for most.
    #[must_use]
    pub const fn get_data_bytes(self, cdw11: u32) -> u32 {
        match self {
            Self::HOST_MEMORY_BUFFER => 4096,
            _ => self.set_data_bytes(cdw11),
        }
    }
}

/// Dword 0 of Get Features with Select = Supported Capabilities.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FeatureCapabilities {
    /// The value can be saved across resets.
    pub saveable: bool,
    /// The feature is one of a namespace.
    pub namespace_specific: bool,
    /// The value can be changed.
    pub changeable: bool,
}

impl FeatureCapabilities {
    /// From dword 0 of the completion.
    #[must_use]
    pub const fn decode(dw0: u32) -> Self {
        Self {
            saveable: bits::bit(dw0, 0),
            namespace_specific: bits::bit(dw0, 1),
            changeable: bits::bit(dw0, 2),
        }
    }

    /// Dword 0 of the completion.
    #[must_use]
    pub const fn encode(self) -> u32 {
        bits::flag(self.saveable, 0)
            | bits::flag(self.namespace_specific, 1)
            | bits::flag(self.changeable, 2)
    }
}

/// Number of Queues (07h), without the Admin Queue. In Set Features what the host asks for, in
/// its completion's dword 0 what the controller allocated.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct NumberOfQueues {
    /// I/O submission queues: 1 to 65536 (on the wire 0's based).
    pub submission: u32,
    /// I/O completion queues: 1 to 65536 (on the wire 0's based).
    pub completion: u32,
}

impl NumberOfQueues {
    /// From dword 11 or dword 0.
    #[must_use]
    pub const fn decode(value: u32) -> Self {
        Self {
            submission: zeroes_based::from_u16(bits::low16(value)),
            completion: zeroes_based::from_u16(bits::high16(value)),
        }
    }

    /// From dword 11 of a Set Features.
    ///
    /// # Errors
    /// Invalid Field for a count of 65536, which would need a queue identifier of 65536.
    pub const fn parse(cdw11: u32) -> Result<Self, CommandError> {
        if bits::low16(cdw11) == u16::MAX {
            return Err(CommandError::invalid_field(
                "NSQR",
                44,
                0xFFFF,
                "0 to FFFEh",
            ));
        }
        if bits::high16(cdw11) == u16::MAX {
            return Err(CommandError::invalid_field(
                "NCQR",
                46,
                0xFFFF,
                "0 to FFFEh",
            ));
        }
        Ok(Self::decode(cdw11))
    }

    /// Dword 11 or dword 0. A count outside 1 to 65536 becomes the nearer end.
    #[must_use]
    pub const fn encode(self) -> u32 {
        bits::words(count_z(self.submission), count_z(self.completion))
    }
}

const fn count_z(count: u32) -> u16 {
    match (zeroes_based::to_u16(count), count) {
        (Some(field), _) => field,
        (None, 0) => 0,
        (None, _) => u16::MAX,
    }
}

/// Arbitration (01h).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Arbitration {
    /// AB, Arbitration Burst: 2^AB commands, 7 for no limit. 3 bits.
    pub burst: u8,
    /// LPW, Low Priority Weight (0's based).
    pub low_weight_z: u8,
    /// MPW, Medium Priority Weight (0's based).
    pub medium_weight_z: u8,
    /// HPW, High Priority Weight (0's based).
    pub high_weight_z: u8,
}

impl Arbitration {
    /// From dword 11 or dword 0.
    #[must_use]
    pub const fn decode(value: u32) -> Self {
        let [burst, low_weight_z, medium_weight_z, high_weight_z] = value.to_le_bytes();
        Self {
            burst: burst & 0b111,
            low_weight_z,
            medium_weight_z,
            high_weight_z,
        }
    }

    /// Dword 11 or dword 0.
    #[must_use]
    pub const fn encode(self) -> u32 {
        let Self {
            burst,
            low_weight_z,
            medium_weight_z,
            high_weight_z,
        } = self;
        u32::from_le_bytes([burst & 0b111, low_weight_z, medium_weight_z, high_weight_z])
    }
}

/// Power Management (02h).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PowerManagement {
    /// PS, Power State: 5 bits.
    pub power_state: u8,
    /// WH, Workload Hint: 3 bits.
    pub workload_hint: u8,
}

impl PowerManagement {
    /// From dword 11 or dword 0.
    #[must_use]
    pub const fn decode(value: u32) -> Self {
        Self {
            power_state: bits::byte(bits::field(value, 0, 5), 0),
            workload_hint: bits::byte(bits::field(value, 5, 3), 0),
        }
    }

    /// Dword 11 or dword 0.
    #[must_use]
    pub const fn encode(self) -> u32 {
        bits::place(self.power_state as u32, 0, 5) | bits::place(self.workload_hint as u32, 5, 3)
    }
}

/// Temperature Threshold (04h).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TemperatureThreshold {
    /// TMPTH, Temperature Threshold in kelvins.
    pub threshold_kelvins: u16,
    /// TMPSEL: 0 is the Composite Temperature, 1 to 8 a sensor, Fh all. 4 bits.
    pub sensor: u8,
    /// THSEL: 0 is an over, 1 an under temperature threshold. 2 bits.
    pub threshold_type: u8,
    /// TMPTHH, Temperature Threshold Hysteresis in kelvins. 3 bits.
    pub hysteresis_kelvins: u8,
}

impl TemperatureThreshold {
    /// From dword 11 or dword 0.
    #[must_use]
    pub const fn decode(value: u32) -> Self {
        Self {
            threshold_kelvins: bits::low16(value),
            sensor: bits::byte(bits::field(value, 16, 4), 0),
            threshold_type: bits::byte(bits::field(value, 20, 2), 0),
            hysteresis_kelvins: bits::byte(bits::field(value, 22, 3), 0),
        }
    }

    /// Dword 11 or dword 0.
    #[must_use]
    pub const fn encode(self) -> u32 {
        self.threshold_kelvins as u32
            | bits::place(self.sensor as u32, 16, 4)
            | bits::place(self.threshold_type as u32, 20, 2)
            | bits::place(self.hysteresis_kelvins as u32, 22, 3)
    }
}

/// Error Recovery (05h), a feature of a namespace.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ErrorRecovery {
    /// TLER, Time Limited Error Recovery, in units of 100 ms; 0 for no limit.
    pub time_limit_100ms: u16,
    /// DULBE, Deallocated or Unwritten Logical Block Error Enable.
    pub dulbe: bool,
}

impl ErrorRecovery {
    /// From dword 11 or dword 0.
    #[must_use]
    pub const fn decode(value: u32) -> Self {
        Self {
            time_limit_100ms: bits::low16(value),
            dulbe: bits::bit(value, 16),
        }
    }

    /// Dword 11 or dword 0.
    #[must_use]
    pub const fn encode(self) -> u32 {
        self.time_limit_100ms as u32 | bits::flag(self.dulbe, 16)
    }
}

/// A feature whose value is one bit, bit 0.
macro_rules! one_bit_feature {
    ($(#[$meta:meta])* $type:ident, $(#[$fmeta:meta])* $field:ident) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub struct $type {
            $(#[$fmeta])*
            pub $field: bool,
        }

        impl $type {
            /// From dword 11 or dword 0.
            #[must_use]
            pub const fn decode(value: u32) -> Self {
                Self { $field: bits::bit(value, 0) }
            }

            /// Dword 11 or dword 0.
            #[must_use]
            pub const fn encode(self) -> u32 {
                bits::flag(self.$field, 0)
            }
        }
    };
}

one_bit_feature!(
    /// Volatile Write Cache (06h).
    VolatileWriteCache,
    /// WCE, Volatile Write Cache Enable.
    enabled
);
one_bit_feature!(
    /// Write Atomicity Normal (0Ah).
    WriteAtomicityNormal,
    /// DN, Disable Normal: only atomicity across power fail is asked for.
    disable_normal
);
one_bit_feature!(
    /// Reservation Persistence (83h), a feature of a namespace.
    ReservationPersistence,
    /// PTPL, Persist Through Power Loss.
    persist_through_power_loss
);
one_bit_feature!(
    /// Host Identifier (81h). The identifier itself is the data.
    HostIdentifier,
    /// EXHID, Enable Extended Host Identifier: 16 bytes rather than 8. Fabrics knows only 16.
    extended
);

impl HostIdentifier {
    /// Bytes of the identifier.
    #[must_use]
    pub const fn data_bytes(self) -> u32 {
        if self.extended { 16 } else { 8 }
    }
}

bitflags::bitflags! {
    /// Reservation Notification Mask (82h), a feature of a namespace: a set bit hides the
    /// notification.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct ReservationNotificationMask: u32 {
        /// REGPRE: Registration Preempted.
        const REGISTRATION_PREEMPTED = 1 << 1;
        /// RESREL: Reservation Released.
        const RESERVATION_RELEASED = 1 << 2;
        /// RESPRE: Reservation Preempted.
        const RESERVATION_PREEMPTED = 1 << 3;
    }
}

/// Keep Alive Timer (0Fh).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct KeepAliveTimer {
    /// KATO, Keep Alive Timeout in milliseconds; 0 disables.
    pub kato_ms: u32,
}

open_enum! {
    /// Namespace Write Protection Config (84h), a feature of a namespace: the state, in bits 2:0.
    pub struct WriteProtectionState(u8) {
        NOT_PROTECTED = 0 => "No Write Protect",
        PROTECTED = 1 => "Write Protect",
        UNTIL_POWER_CYCLE = 2 => "Write Protect Until Power Cycle",
        PERMANENT = 3 => "Permanent Write Protect",
    }
}

impl WriteProtectionState {
    /// From dword 11 or dword 0.
    #[must_use]
    pub const fn decode(value: u32) -> Self {
        Self(bits::byte(bits::field(value, 0, 3), 0))
    }

    /// Dword 11 or dword 0.
    #[must_use]
    pub const fn encode(self) -> u32 {
        bits::place(self.0 as u32, 0, 3)
    }
}

/// Data of the Timestamp feature (0Eh), 8 bytes.
#[repr(C)]
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
pub struct TimestampData {
    /// Milliseconds since 1970-01-01 00:00 UTC: 48 bits.
    timestamp_ms: [u8; 6],
    /// Bit 0 SYNCH, bits 3:1 origin.
    pub attributes: u8,
    reserved: u8,
}

const _: () = {
    assert!(size_of::<TimestampData>() == TimestampData::SIZE_BYTES as usize);
    assert!(offset_of!(TimestampData, attributes) == 6);
};

impl TimestampData {
    const SIZE_BYTES: u32 = 8;

    /// Milliseconds since 1970-01-01 00:00 UTC.
    #[must_use]
    pub const fn timestamp_ms(&self) -> u64 {
        let [a, b, c, d, e, f] = self.timestamp_ms;
        u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
    }

    /// A timestamp (48 bits) with its attributes.
    #[must_use]
    pub const fn new(timestamp_ms: u64, attributes: u8) -> Self {
        let [a, b, c, d, e, f, _, _] = timestamp_ms.to_le_bytes();
        Self {
            timestamp_ms: [a, b, c, d, e, f],
            attributes,
            reserved: 0,
        }
    }
}

/// Data of the Host Behavior Support feature (16h), 512 bytes.
#[repr(C)]
#[derive(Clone, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct HostBehaviorSupport {
    /// ACRE, Advanced Command Retry Enable: the host honours CRD.
    pub acre: u8,
    /// ETDAS, Extended Telemetry Data Area 4 Supported.
    pub etdas: u8,
    /// LBAFEE, LBA Format Extension Enable.
    pub lbafee: u8,
    /// HDISNS, Host Dispersed Namespace Support.
    pub hdisns: u8,
    /// CDFE, Copy Descriptor Formats Enable: bit n enables format n (2h to 4h).
    pub cdfe: U16,
    reserved: [u8; 506],
}

const _: () = {
    assert!(size_of::<HostBehaviorSupport>() == HostBehaviorSupport::SIZE_BYTES as usize);
    assert!(offset_of!(HostBehaviorSupport, lbafee) == 2);
    assert!(offset_of!(HostBehaviorSupport, cdfe) == 4);
};

impl HostBehaviorSupport {
    const SIZE_BYTES: u32 = 512;

    /// With Advanced Command Retry as said, and nothing else.
    #[must_use]
    pub fn with_acre(acre: bool) -> Self {
        let mut behavior = Self::new_zeroed();
        behavior.acre = acre.into();
        behavior
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorLocation;

    /// Bits that `decode` then `encode` keeps, found by setting each alone.
    fn kept(round_trip: impl Fn(u32) -> u32) -> u32 {
        (0..32)
            .map(|bit| 1 << bit)
            .filter(|bit| round_trip(*bit) & bit != 0)
            .sum()
    }

    #[test]
    fn every_defined_bit_is_kept() {
        assert_eq!(kept(|v| FeatureCapabilities::decode(v).encode()), 0b111);
        assert_eq!(kept(|v| NumberOfQueues::decode(v).encode()), u32::MAX);
        assert_eq!(kept(|v| Arbitration::decode(v).encode()), 0xFFFF_FF07);
        assert_eq!(kept(|v| PowerManagement::decode(v).encode()), 0xFF);
        assert_eq!(
            kept(|v| TemperatureThreshold::decode(v).encode()),
            0x01FF_FFFF
        );
        assert_eq!(kept(|v| ErrorRecovery::decode(v).encode()), 0x0001_FFFF);
        assert_eq!(kept(|v| VolatileWriteCache::decode(v).encode()), 1);
        assert_eq!(kept(|v| WriteAtomicityNormal::decode(v).encode()), 1);
        assert_eq!(kept(|v| ReservationPersistence::decode(v).encode()), 1);
        assert_eq!(kept(|v| HostIdentifier::decode(v).encode()), 1);
        assert_eq!(kept(|v| WriteProtectionState::decode(v).encode()), 0b111);
    }

    #[test]
    fn numbers_of_queues_are_widened() {
        let queues = NumberOfQueues::decode(0xFFFF_007F);
        assert_eq!((queues.submission, queues.completion), (128, 65_536));
        assert_eq!(
            NumberOfQueues {
                submission: 0,
                completion: 70_000
            }
            .encode(),
            0xFFFF_0000
        );
        assert_eq!(
            NumberOfQueues::parse(0x0000_0000).map(|q| q.submission),
            Ok(1)
        );
        let location = |cdw11| NumberOfQueues::parse(cdw11).unwrap_err().location;
        assert_eq!(location(0x0000_FFFF), ErrorLocation::sqe(44));
        assert_eq!(location(0xFFFF_0000), ErrorLocation::sqe(46));
    }

    #[test]
    fn timestamps_have_48_bits() {
        let data = TimestampData::new(0x0001_1122_3344_5566, 0b11);
        assert_eq!(
            data.as_bytes(),
            [0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 0b11, 0]
        );
        assert_eq!(data.timestamp_ms(), 0x1122_3344_5566);
    }

    #[test]
    fn data_lengths_are_the_features() {
        assert_eq!(FeatureId::HOST_IDENTIFIER.set_data_bytes(1), 16);
        assert_eq!(FeatureId::HOST_IDENTIFIER.get_data_bytes(0), 8);
        assert_eq!(FeatureId::HOST_MEMORY_BUFFER.get_data_bytes(0), 4096);
        assert_eq!(FeatureId::HOST_MEMORY_BUFFER.set_data_bytes(0), 0);
        assert_eq!(FeatureId::NUMBER_OF_QUEUES.get_data_bytes(0), 0);
        assert!(!FeatureSelect(7).returns_value());
    }
}
