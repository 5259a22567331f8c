//! Asynchronous events: dword 0 of the completion of an Asynchronous Event Request, and which of
//! them a host wants.
//!
//! Source: NVMe Base 2.1, sections 5.1.2 and 5.1.25 (Asynchronous Event Configuration).

use crate::bits;
use crate::log::LogPageId;
use crate::macros::open_enum;

open_enum! {
    /// Asynchronous Event Type: 3 bits.
    pub struct AsyncEventType(u8) {
        ERROR = 0 => "Error status",
        SMART = 1 => "SMART / Health status",
        NOTICE = 2 => "Notice",
        IMMEDIATE = 3 => "Immediate",
        ONE_SHOT = 4 => "One-Shot",
        IO_COMMAND_SPECIFIC = 6 => "I/O Command specific status",
        VENDOR_SPECIFIC = 7 => "Vendor specific",
    }
}

open_enum! {
    /// Asynchronous Event Information of type Error status.
    pub struct ErrorEvent(u8) {
        INVALID_DOORBELL_REGISTER = 0x00 => "Write to Invalid Doorbell Register",
        INVALID_DOORBELL_VALUE = 0x01 => "Invalid Doorbell Write Value",
        DIAGNOSTIC_FAILURE = 0x02 => "Diagnostic Failure",
        PERSISTENT_INTERNAL_ERROR = 0x03 => "Persistent Internal Error",
        TRANSIENT_INTERNAL_ERROR = 0x04 => "Transient Internal Error",
        FIRMWARE_IMAGE_LOAD_ERROR = 0x05 => "Firmware Image Load Error",
    }
}

open_enum! {
    /// Asynchronous Event Information of type SMART / Health status.
    pub struct SmartEvent(u8) {
        NVM_SUBSYSTEM_RELIABILITY = 0x00 => "NVM subsystem Reliability",
        TEMPERATURE_THRESHOLD = 0x01 => "Temperature Threshold",
        SPARE_BELOW_THRESHOLD = 0x02 => "Spare Below Threshold",
    }
}

open_enum! {
    /// Asynchronous Event Information of type Notice.
    pub struct NoticeEvent(u8) {
        NAMESPACE_ATTRIBUTE_CHANGED = 0x00 => "Attached Namespace Attribute Changed",
        FIRMWARE_ACTIVATION_STARTING = 0x01 => "Firmware Activation Starting",
        TELEMETRY_LOG_CHANGED = 0x02 => "Telemetry Log Changed",
        ANA_CHANGE = 0x03 => "Asymmetric Namespace Access Change",
        PREDICTABLE_LATENCY_EVENT_AGGREGATE =
            0x04 => "Predictable Latency Event Aggregate Log Change",
        LBA_STATUS_INFORMATION_ALERT = 0x05 => "LBA Status Information Alert",
        ENDURANCE_GROUP_EVENT_AGGREGATE = 0x06 => "Endurance Group Event Aggregate Log Page Change",
        DISCOVERY_LOG_CHANGE = 0xF0 => "Discovery Log Page Change",
        CROSS_CONTROLLER_RESET_COMPLETED = 0xF4 => "Cross-Controller Reset Completed",
    }
}

/// An asynchronous event.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct AsyncEvent {
    /// Asynchronous Event Type.
    pub event_type: AsyncEventType,
    /// Asynchronous Event Information; its meaning depends on the type.
    pub information: u8,
    /// Log page that says more, and that re-arms the event when read without RAE.
    pub log_page: LogPageId,
}

impl AsyncEvent {
    /// A namespace was attached, detached or changed.
    pub const NAMESPACE_ATTRIBUTE_CHANGED: Self = Self::notice(
        NoticeEvent::NAMESPACE_ATTRIBUTE_CHANGED,
        LogPageId::CHANGED_NAMESPACES,
    );
    /// The ANA state of a group changed.
    pub const ANA_CHANGE: Self = Self::notice(NoticeEvent::ANA_CHANGE, LogPageId::ANA);
    /// The discovery log page changed.
    pub const DISCOVERY_LOG_CHANGE: Self =
        Self::notice(NoticeEvent::DISCOVERY_LOG_CHANGE, LogPageId::DISCOVERY);
    /// A Cross-Controller Reset ended. NVMe Base 2.3, section 5.2.2.
    pub const CROSS_CONTROLLER_RESET_COMPLETED: Self = Self::notice(
        NoticeEvent::CROSS_CONTROLLER_RESET_COMPLETED,
        LogPageId::CROSS_CONTROLLER_RESET,
    );
    /// A Reservation Notification log page is available.
    pub const RESERVATION_LOG_AVAILABLE: Self = Self {
        event_type: AsyncEventType::IO_COMMAND_SPECIFIC,
        information: 0,
        log_page: LogPageId::RESERVATION_NOTIFICATION,
    };

    /// The reliability of the NVM subsystem is compromised: the critical warning of its SMART /
    /// Health log page says how. NVMe Base 2.1, section 5.1.2.1.
    pub const NVM_SUBSYSTEM_RELIABILITY: Self = Self {
        event_type: AsyncEventType::SMART,
        information: SmartEvent::NVM_SUBSYSTEM_RELIABILITY.0,
        log_page: LogPageId::HEALTH,
    };

    /// A Notice.
    #[must_use]
    pub const fn notice(information: NoticeEvent, log_page: LogPageId) -> Self {
        Self {
            event_type: AsyncEventType::NOTICE,
            information: information.0,
            log_page,
        }
    }

    /// From dword 0 of the completion.
    #[must_use]
    pub const fn decode(dw0: u32) -> Self {
        Self {
            event_type: AsyncEventType(bits::byte(bits::field(dw0, 0, 3), 0)),
            information: bits::byte(dw0, 8),
            log_page: LogPageId(bits::byte(dw0, 16)),
        }
    }

    /// Dword 0 of the completion.
    #[must_use]
    pub const fn encode(self) -> u32 {
        u32::from_le_bytes([
            self.event_type.0 & 0b111,
            self.information,
            self.log_page.0,
            0,
        ])
    }

    /// The specification's name of type and information; `None` when it defines none.
    #[must_use]
    pub const fn name(self) -> Option<&'static str> {
        match self.event_type {
            AsyncEventType::ERROR => ErrorEvent(self.information).name(),
            AsyncEventType::SMART => SmartEvent(self.information).name(),
            AsyncEventType::NOTICE => NoticeEvent(self.information).name(),
            AsyncEventType::IMMEDIATE if self.information == 0 => Some("NVM subsystem Shutdown"),
            AsyncEventType::IO_COMMAND_SPECIFIC if self.information == 0 => {
                Some("Reservation Log Page Available")
            }
            _ => None,
        }
    }
}

impl core::fmt::Display for AsyncEvent {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(
                f,
                "{}, information {:02X}h",
                self.event_type, self.information
            ),
        }
    }
}

bitflags::bitflags! {
    /// Asynchronous Event Configuration (0Bh): which events the host wants. The bits from 8 up
    /// are also those of Identify Controller OAES: which notices the controller can send.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct AsyncEventConfiguration: u32 {
        /// SHCW: available spare is below the threshold.
        const SPARE = 1 << 0;
        /// SHCW: a temperature threshold was passed.
        const TEMPERATURE = 1 << 1;
        /// SHCW: reliability is degraded.
        const RELIABILITY = 1 << 2;
        /// SHCW: all media is read-only.
        const READ_ONLY = 1 << 3;
        /// SHCW: the volatile memory backup failed.
        const VOLATILE_MEMORY_BACKUP = 1 << 4;
        /// SHCW: the persistent memory region is read-only or unreliable.
        const PERSISTENT_MEMORY = 1 << 5;
        /// Attached Namespace Attribute Notices.
        const NAMESPACE_ATTRIBUTE = 1 << 8;
        /// Firmware Activation Notices.
        const FIRMWARE_ACTIVATION = 1 << 9;
        /// Telemetry Log Notices.
        const TELEMETRY_LOG = 1 << 10;
        /// Asymmetric Namespace Access Change Notices.
        const ANA_CHANGE = 1 << 11;
        /// Predictable Latency Event Aggregate Log Change Notices.
        const PREDICTABLE_LATENCY_EVENT_AGGREGATE = 1 << 12;
        /// LBA Status Information Alert Notices.
        const LBA_STATUS_INFORMATION = 1 << 13;
        /// Endurance Group Event Aggregate Log Change Notices.
        const ENDURANCE_GROUP_EVENT_AGGREGATE = 1 << 14;
        /// Normal NVM Subsystem Shutdown.
        const NORMAL_NVM_SUBSYSTEM_SHUTDOWN = 1 << 15;
        /// Temperature Threshold Hysteresis Recovery.
        const TEMPERATURE_HYSTERESIS_RECOVERY = 1 << 16;
        /// Reachability Group.
        const REACHABILITY_GROUP = 1 << 17;
        /// Reachability Association.
        const REACHABILITY_ASSOCIATION = 1 << 18;
        /// Allocated Namespace Attribute Notices.
        const ALLOCATED_NAMESPACE_ATTRIBUTE = 1 << 19;
        /// Cross-Controller Reset Completed Notices. NVMe Base 2.3, section 5.2.26.
        const CROSS_CONTROLLER_RESET_COMPLETED = 1 << 20;
        /// Zone Descriptor Changed Notices.
        const ZONE_DESCRIPTOR_CHANGED = 1 << 27;
        /// Discovery Log Page Change Notices.
        const DISCOVERY_LOG_CHANGE = 1 << 31;
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::string::ToString;

    #[test]
    fn events_are_type_information_and_log_page() {
        assert_eq!(
            AsyncEvent::NAMESPACE_ATTRIBUTE_CHANGED.encode(),
            0x0004_0002
        );
        assert_eq!(AsyncEvent::ANA_CHANGE.encode(), 0x000C_0302);
        assert_eq!(AsyncEvent::DISCOVERY_LOG_CHANGE.encode(), 0x0070_F002);
        assert_eq!(
            AsyncEvent::CROSS_CONTROLLER_RESET_COMPLETED.encode(),
            0x001E_F402
        );
        assert_eq!(AsyncEvent::RESERVATION_LOG_AVAILABLE.encode(), 0x0080_0006);
        assert_eq!(AsyncEvent::NVM_SUBSYSTEM_RELIABILITY.encode(), 0x0002_0001);
        let event = AsyncEvent::decode(0xFF70_F0FA);
        assert_eq!(event, AsyncEvent::DISCOVERY_LOG_CHANGE);
        assert_eq!(AsyncEvent::decode(event.encode()), event);
    }

    #[test]
    fn events_read_by_name() {
        assert_eq!(
            AsyncEvent::ANA_CHANGE.to_string(),
            "Asymmetric Namespace Access Change"
        );
        assert_eq!(
            AsyncEvent::decode(0x0000_0501).to_string(),
            "SMART / Health status, information 05h"
        );
        assert_eq!(
            AsyncEvent::decode(0x0080_0006).to_string(),
            "Reservation Log Page Available"
        );
    }
}
