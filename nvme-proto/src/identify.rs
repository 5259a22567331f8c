//! Identify: what the command asks for (CNS) and the data structures it returns, each 4096 bytes.
//!
//! Source: NVMe Base 2.1, section 5.1.13; NVM Command Set 1.1, section 4.1.5. What Base 2.3 added
//! is named where it is.

mod capabilities;
mod controller;
mod lists;
mod namespace;
mod nvm;
mod vendor;

pub use capabilities::{
    AnaCapabilities, ControllerAttributes, FabricsControllerAttributes, FusedOperations,
    LogPageAttributes, MultiPath, OptionalAdminCommands, OptionalFabricsCommands,
    OptionalNvmCommands, SglSupport, VolatileWriteCacheSupport, WriteProtectionCapabilities,
};
pub use controller::{
    ControllerType, IdentifyController, KEEP_ALIVE_GRANULARITY_MS, PowerStateDescriptor,
};
pub use lists::{
    BufferTooSmall, COMMAND_SET_COMBINATIONS, CommandSetList, CommandSetVector, NAMESPACE_LIST_MAX,
    NamespaceId, NamespaceIdDescriptors, NamespaceIdType, NamespaceList, write_namespace_ids,
};
pub use namespace::{
    DeallocateFeatures, IdentifyNamespace, IndependentIdentifyNamespace, LbaFormat,
    NamespaceAttributes, NamespaceFeatures, NamespaceSharing, NamespaceStatus,
    ReservationCapabilities,
};
pub use nvm::{NvmAdminCommands, NvmIdentifyController, NvmIdentifyNamespace};
pub use vendor::{CapstanBlock, CapstanCapabilities};

use crate::macros::open_enum;

/// Bytes of every Identify data structure.
pub const IDENTIFY_BYTES: usize = 4096;

open_enum! {
    /// CNS, Controller or Namespace Structure: which data structure Identify returns.
    pub struct Cns(u8) {
        NAMESPACE = 0x00 => "Identify Namespace",
        CONTROLLER = 0x01 => "Identify Controller",
        ACTIVE_NAMESPACES = 0x02 => "Active Namespace ID list",
        NAMESPACE_ID_DESCRIPTORS = 0x03 => "Namespace Identification Descriptor list",
        NVM_SET_LIST = 0x04 => "NVM Set List",
        NAMESPACE_IOCS = 0x05 => "I/O Command Set specific Identify Namespace",
        CONTROLLER_IOCS = 0x06 => "I/O Command Set specific Identify Controller",
        ACTIVE_NAMESPACES_IOCS = 0x07 => "I/O Command Set specific Active Namespace ID list",
        NAMESPACE_INDEPENDENT = 0x08 => "I/O Command Set Independent Identify Namespace",
        NAMESPACE_USER_DATA_FORMAT = 0x09 => "Identify Namespace for a User Data Format",
        NAMESPACE_IOCS_USER_DATA_FORMAT =
            0x0A => "I/O Command Set specific Identify Namespace for a User Data Format",
        ALLOCATED_NAMESPACES = 0x10 => "Allocated Namespace ID list",
        NAMESPACE_ALLOCATED = 0x11 => "Identify Namespace for an allocated NSID",
        ATTACHED_CONTROLLERS = 0x12 => "Controller List of controllers attached to the namespace",
        CONTROLLERS = 0x13 => "Controller List of the NVM subsystem",
        PRIMARY_CONTROLLER_CAPABILITIES = 0x14 => "Primary Controller Capabilities",
        SECONDARY_CONTROLLERS = 0x15 => "Secondary Controller list",
        NAMESPACE_GRANULARITY = 0x16 => "Namespace Granularity List",
        UUID_LIST = 0x17 => "UUID List",
        DOMAIN_LIST = 0x18 => "Domain List",
        ENDURANCE_GROUPS = 0x19 => "Endurance Group List",
        ALLOCATED_NAMESPACES_IOCS =
            0x1A => "I/O Command Set specific Allocated Namespace ID list",
        NAMESPACE_ALLOCATED_IOCS =
            0x1B => "I/O Command Set specific Identify Namespace for an allocated NSID",
        COMMAND_SETS = 0x1C => "Identify I/O Command Set",
        UNDERLYING_NAMESPACES = 0x1D => "Underlying Namespace List",
        PORTS = 0x1E => "Ports List",
        NAMESPACE_INDEPENDENT_ALLOCATED =
            0x1F => "I/O Command Set Independent Identify Namespace for an allocated NSID",
        SUPPORTED_CONTROLLER_STATE_FORMATS = 0x20 => "Supported Controller State Formats",
    }
}

open_enum! {
    /// CSI, Command Set Identifier.
    pub struct Csi(u8) {
        NVM = 0x00 => "NVM Command Set",
        KEY_VALUE = 0x01 => "Key Value Command Set",
        ZONED = 0x02 => "Zoned Namespace Command Set",
        SUBSYSTEM_LOCAL_MEMORY = 0x03 => "Subsystem Local Memory Command Set",
        COMPUTATIONAL_PROGRAMS = 0x04 => "Computational Programs Command Set",
    }
}
