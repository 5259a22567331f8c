//! Log pages.
//!
//! Source: NVMe Base 2.1, section 5.1.12.

mod ana;
mod cross_controller_reset;
mod discovery;
mod effects;
mod error_information;
mod firmware;
mod health;
mod reservation;
mod supported;

pub use ana::{AnaGroup, AnaGroupHeader, AnaGroups, AnaLogError, AnaLogHeader, AnaState};
pub use cross_controller_reset::{
    CROSS_CONTROLLER_RESETS_MAX, CrossControllerResetEntry, CrossControllerResetFlags,
    CrossControllerResetLogHeader, CrossControllerResetStatus, LSP_REMOVE_COMPLETED,
};
pub use discovery::{
    AddressFamily, DiscoveryEntryFlags, DiscoveryLog, DiscoveryLogEntry, DiscoveryLogError,
    DiscoveryLogHeader, DiscoverySubsystemType, RdmaCms, RdmaProviderType, RdmaQpType, RdmaTsas,
    TcpSecurityType, TcpTsas, TransportRequirements, TransportType,
};
pub use effects::{CommandEffects, CommandEffectsLog};
pub use error_information::ErrorInformationEntry;
pub use firmware::FirmwareSlotLog;
pub use health::{CriticalWarning, HealthLog};
pub use reservation::{ReservationNotificationLog, ReservationNotificationType};
pub use supported::SupportedLogPages;

use crate::identify::NamespaceList;
use crate::macros::open_enum;

/// Changed Attached Namespace List (LID 04h), 4096 bytes. When more than 1024 namespaces changed,
/// its first entry is FFFFFFFFh and the others are zero.
pub type ChangedNamespaceList = NamespaceList;

open_enum! {
    /// LID, Log Page Identifier.
    pub struct LogPageId(u8) {
        SUPPORTED_LOG_PAGES = 0x00 => "Supported Log Pages",
        ERROR_INFORMATION = 0x01 => "Error Information",
        HEALTH = 0x02 => "SMART / Health Information",
        FIRMWARE_SLOT = 0x03 => "Firmware Slot Information",
        CHANGED_NAMESPACES = 0x04 => "Changed Attached Namespace List",
        COMMAND_EFFECTS = 0x05 => "Commands Supported and Effects",
        DEVICE_SELF_TEST = 0x06 => "Device Self-test",
        TELEMETRY_HOST = 0x07 => "Telemetry Host-Initiated",
        TELEMETRY_CONTROLLER = 0x08 => "Telemetry Controller-Initiated",
        ENDURANCE_GROUP = 0x09 => "Endurance Group Information",
        PREDICTABLE_LATENCY_NVM_SET = 0x0A => "Predictable Latency Per NVM Set",
        PREDICTABLE_LATENCY_AGGREGATE = 0x0B => "Predictable Latency Event Aggregate",
        ANA = 0x0C => "Asymmetric Namespace Access",
        PERSISTENT_EVENT = 0x0D => "Persistent Event",
        LBA_STATUS = 0x0E => "LBA Status Information",
        ENDURANCE_GROUP_AGGREGATE = 0x0F => "Endurance Group Event Aggregate",
        MEDIA_UNIT_STATUS = 0x10 => "Media Unit Status",
        SUPPORTED_CAPACITY_CONFIGURATIONS = 0x11 => "Supported Capacity Configuration List",
        FEATURE_EFFECTS = 0x12 => "Feature Identifiers Supported and Effects",
        NVME_MI_EFFECTS = 0x13 => "NVMe-MI Commands Supported and Effects",
        LOCKDOWN = 0x14 => "Command and Feature Lockdown",
        BOOT_PARTITION = 0x15 => "Boot Partition",
        ROTATIONAL_MEDIA = 0x16 => "Rotational Media Information",
        DISPERSED_NAMESPACE = 0x17 => "Dispersed Namespace Participating NVM Subsystems",
        MANAGEMENT_ADDRESSES = 0x18 => "Management Address List",
        PHY_RX_EYE = 0x19 => "Physical Interface Receiver Eye Opening Measurement",
        REACHABILITY_GROUPS = 0x1A => "Reachability Groups",
        REACHABILITY_ASSOCIATIONS = 0x1B => "Reachability Associations",
        CHANGED_ALLOCATED_NAMESPACES = 0x1C => "Changed Allocated Namespace List",
        CROSS_CONTROLLER_RESET = 0x1E => "Cross-Controller Reset",
        FDP_CONFIGURATIONS = 0x20 => "FDP Configurations",
        FDP_USAGE = 0x21 => "Reclaim Unit Handle Usage",
        FDP_STATISTICS = 0x22 => "FDP Statistics",
        FDP_EVENTS = 0x23 => "FDP Events",
        DISCOVERY = 0x70 => "Discovery",
        HOST_DISCOVERY = 0x71 => "Host Discovery",
        AVE_DISCOVERY = 0x72 => "AVE Discovery",
        PULL_MODEL_DDC_REQUEST = 0x73 => "Pull Model DDC Request",
        RESERVATION_NOTIFICATION = 0x80 => "Reservation Notification",
        SANITIZE_STATUS = 0x81 => "Sanitize Status",
        CHANGED_ZONES = 0xBF => "Changed Zone List",
    }
}
