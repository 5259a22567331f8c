//! Bit fields of Identify Controller: what the controller can do.
//!
//! Source: NVMe Base 2.1, section 5.1.13 (Identify Controller data structure).

use bitflags::bitflags;

bitflags! {
    /// CMIC, Controller Multi-Path I/O and Namespace Sharing Capabilities.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct MultiPath: u8 {
        /// The NVM subsystem may have more than one port.
        const PORTS = 1 << 0;
        /// The NVM subsystem may have two or more controllers.
        const CONTROLLERS = 1 << 1;
        /// The controller is an SR-IOV virtual function.
        const SR_IOV = 1 << 2;
        /// Asymmetric Namespace Access Reporting.
        const ANA = 1 << 3;
    }
}

bitflags! {
    /// CTRATT, Controller Attributes.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct ControllerAttributes: u32 {
        /// HIDS: 128-bit Host Identifier.
        const HOST_ID_128 = 1 << 0;
        /// NOPSPM: Non-Operational Power State Permissive Mode.
        const NON_OPERATIONAL_PERMISSIVE = 1 << 1;
        /// NSETS: NVM Sets.
        const NVM_SETS = 1 << 2;
        /// RRLVLS: Read Recovery Levels.
        const READ_RECOVERY_LEVELS = 1 << 3;
        /// EGS: Endurance Groups.
        const ENDURANCE_GROUPS = 1 << 4;
        /// PLM: Predictable Latency Mode.
        const PREDICTABLE_LATENCY = 1 << 5;
        /// TBKAS: Traffic Based Keep Alive Support.
        const TRAFFIC_BASED_KEEP_ALIVE = 1 << 6;
        /// NG: Namespace Granularity.
        const NAMESPACE_GRANULARITY = 1 << 7;
        /// SQA: SQ Associations.
        const SQ_ASSOCIATIONS = 1 << 8;
        /// ULIST: UUID List.
        const UUID_LIST = 1 << 9;
        /// MDS: Multi-Domain Subsystem.
        const MULTI_DOMAIN = 1 << 10;
        /// FCM: Fixed Capacity Management.
        const FIXED_CAPACITY = 1 << 11;
        /// VCM: Variable Capacity Management.
        const VARIABLE_CAPACITY = 1 << 12;
        /// DEG: Delete Endurance Group.
        const DELETE_ENDURANCE_GROUP = 1 << 13;
        /// DNVMS: Delete NVM Set.
        const DELETE_NVM_SET = 1 << 14;
        /// ELBAS: Extended LBA Formats.
        const EXTENDED_LBA_FORMATS = 1 << 15;
        /// MEM: MDTS and size limits exclude metadata.
        const MDTS_EXCLUDES_METADATA = 1 << 16;
        /// HMBR: host memory buffer restrict non-operational power state access.
        const HOST_MEMORY_BUFFER_RESTRICT = 1 << 17;
        /// RHII: Reservations and Host Identifier Interaction.
        const RESERVATIONS_HOST_ID = 1 << 18;
        /// FDPS: Flexible Data Placement.
        const FLEXIBLE_DATA_PLACEMENT = 1 << 19;
    }
}

bitflags! {
    /// OACS, Optional Admin Command Support.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct OptionalAdminCommands: u16 {
        /// Security Send and Receive.
        const SECURITY = 1 << 0;
        /// Format NVM.
        const FORMAT_NVM = 1 << 1;
        /// Firmware Commit and Firmware Image Download.
        const FIRMWARE = 1 << 2;
        /// Namespace Management and Attachment.
        const NAMESPACE_MANAGEMENT = 1 << 3;
        /// Device Self-test.
        const DEVICE_SELF_TEST = 1 << 4;
        /// Directives.
        const DIRECTIVES = 1 << 5;
        /// NVMe-MI Send and Receive.
        const NVME_MI = 1 << 6;
        /// Virtualization Management.
        const VIRTUALIZATION_MANAGEMENT = 1 << 7;
        /// Doorbell Buffer Config.
        const DOORBELL_BUFFER_CONFIG = 1 << 8;
        /// Get LBA Status.
        const GET_LBA_STATUS = 1 << 9;
        /// Command and Feature Lockdown.
        const LOCKDOWN = 1 << 10;
        /// Host Managed Live Migration.
        const LIVE_MIGRATION = 1 << 11;
    }
}

bitflags! {
    /// LPA, Log Page Attributes.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct LogPageAttributes: u8 {
        /// SMART / Health information per namespace.
        const SMART_PER_NAMESPACE = 1 << 0;
        /// The Commands Supported and Effects log page.
        const COMMAND_EFFECTS = 1 << 1;
        /// Extended Data: NUMDU and LPO of Get Log Page. Required over fabrics.
        const EXTENDED_DATA = 1 << 2;
        /// Telemetry.
        const TELEMETRY = 1 << 3;
        /// Persistent Event log page.
        const PERSISTENT_EVENT = 1 << 4;
        /// Supported Log Pages and the other self-describing log pages.
        const SUPPORTED_LOG_PAGES = 1 << 5;
        /// Telemetry Data Area 4.
        const TELEMETRY_DATA_AREA_4 = 1 << 6;
    }
}

bitflags! {
    /// ANACAP, Asymmetric Namespace Access Capabilities.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct AnaCapabilities: u8 {
        /// Reports ANA Optimized state.
        const OPTIMIZED = 1 << 0;
        /// Reports ANA Non-Optimized state.
        const NON_OPTIMIZED = 1 << 1;
        /// Reports ANA Inaccessible state.
        const INACCESSIBLE = 1 << 2;
        /// Reports ANA Persistent Loss state.
        const PERSISTENT_LOSS = 1 << 3;
        /// Reports ANA Change state.
        const CHANGE = 1 << 4;
        /// ANAGRPID of a namespace does not change while it is attached.
        const GROUP_ID_STATIC = 1 << 6;
        /// A non-zero ANAGRPID is supported in Namespace Management.
        const GROUP_ID_MANAGED = 1 << 7;
    }
}

bitflags! {
    /// ONCS, Optional NVM Command Support.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct OptionalNvmCommands: u16 {
        /// Compare.
        const COMPARE = 1 << 0;
        /// Write Uncorrectable.
        const WRITE_UNCORRECTABLE = 1 << 1;
        /// Dataset Management.
        const DATASET_MANAGEMENT = 1 << 2;
        /// Write Zeroes.
        const WRITE_ZEROES = 1 << 3;
        /// Save of Set Features and Select of Get Features.
        const SAVE_AND_SELECT = 1 << 4;
        /// Reservations.
        const RESERVATIONS = 1 << 5;
        /// Timestamp feature.
        const TIMESTAMP = 1 << 6;
        /// Verify.
        const VERIFY = 1 << 7;
        /// Copy.
        const COPY = 1 << 8;
        /// The write part of a Copy is one atomic operation.
        const COPY_SINGLE_ATOMICITY = 1 << 9;
        /// All fast copy.
        const ALL_FAST_COPY = 1 << 10;
        /// Write Zeroes limits: the DEAC bit may exceed WZSL up to WZDSL.
        const WRITE_ZEROES_DEALLOCATE_LIMIT = 1 << 11;
        /// Namespace Zeroes of Write Zeroes.
        const NAMESPACE_ZEROES = 1 << 12;
    }
}

bitflags! {
    /// FUSES, Fused Operation Support.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct FusedOperations: u16 {
        /// Compare and Write.
        const COMPARE_AND_WRITE = 1 << 0;
    }
}

bitflags! {
    /// VWC, Volatile Write Cache.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct VolatileWriteCacheSupport: u8 {
        /// A volatile write cache is present.
        const PRESENT = 1 << 0;
        /// Bits 2:1 are 10b: Flush with NSID FFFFFFFFh is not supported.
        const FLUSH_BROADCAST_NOT_SUPPORTED = 0b10 << 1;
        /// Bits 2:1 are 11b: Flush with NSID FFFFFFFFh is supported.
        const FLUSH_BROADCAST_SUPPORTED = 0b11 << 1;
    }
}

bitflags! {
    /// SGLS, SGL Support.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct SglSupport: u32 {
        /// Bits 1:0 are 01b: SGLs without alignment or granularity requirement.
        const SUPPORTED = 0b01;
        /// Bits 1:0 are 10b: SGLs with dword alignment and granularity.
        const SUPPORTED_DWORD_ALIGNED = 0b10;
        /// Keyed SGL Data Block descriptor. Required over RDMA.
        const KEYED = 1 << 2;
        /// SGL Bit Bucket descriptor.
        const BIT_BUCKET = 1 << 16;
        /// MPTR with a byte aligned contiguous buffer.
        const METADATA_BYTE_ALIGNED = 1 << 17;
        /// Larger SGLs than the data need.
        const OVERSIZED = 1 << 18;
        /// MPTR with an SGL.
        const METADATA_SGL = 1 << 19;
        /// Address field with an offset: in-capsule data. Required over RDMA with in-capsule data.
        const OFFSET = 1 << 20;
        /// Transport SGL Data Block descriptor.
        const TRANSPORT = 1 << 21;
    }
}

bitflags! {
    /// FCATT, Fabrics Controller Attributes.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct FabricsControllerAttributes: u8 {
        /// The NVM subsystem uses the static controller model.
        const STATIC_CONTROLLER_MODEL = 1 << 0;
    }
}

bitflags! {
    /// OFCS, Optional Fabrics Commands Support.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct OptionalFabricsCommands: u16 {
        /// Disconnect.
        const DISCONNECT = 1 << 0;
    }
}

bitflags! {
    /// NWPC, Namespace Write Protection Capabilities.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct WriteProtectionCapabilities: u8 {
        /// No Write Protect and Write Protect.
        const WRITE_PROTECT = 1 << 0;
        /// Write Protect Until Power Cycle.
        const UNTIL_POWER_CYCLE = 1 << 1;
        /// Permanent Write Protect.
        const PERMANENT = 1 << 2;
    }
}
