//! The Status field of a completion: Status Code Type, Status Code, Command Retry Delay, More and
//! Do Not Retry.
//!
//! Source: NVMe Base 2.1, section 4.2.3 (Status Field Definition) with its tables of generic,
//! command specific, media and data integrity, and path related codes; NVM Command Set 1.1,
//! section 2.1; Zoned Namespace Command Set 1.2, section 2.1.

use core::fmt;

use crate::bits;
use crate::macros::open_enum;

open_enum! {
    /// Status Code Type (SCT): which table a Status Code belongs to.
    pub struct StatusCodeType(u8) {
        GENERIC = 0 => "Generic Command Status",
        COMMAND_SPECIFIC = 1 => "Command Specific Status",
        MEDIA = 2 => "Media and Data Integrity Errors",
        PATH = 3 => "Path Related Status",
        VENDOR_SPECIFIC = 7 => "Vendor Specific",
    }
}

/// The command set whose meaning of a command specific code applies: codes 80h and up are used
/// by Fabrics and by the I/O command sets for different things.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum StatusContext {
    /// Codes common to all command sets, and the NVM command set's.
    Nvm,
    /// A Fabrics command (opcode 7Fh).
    Fabrics,
    /// The Zoned Namespace command set.
    Zoned,
}

/// A completion's status, without the phase tag: 15 bits, in the order of completion dword 3 bits
/// 31:17 (SC in bits 7:0, SCT in 10:8, CRD in 12:11, M in bit 13, DNR in bit 14).
///
/// The named constants carry neither CRD, M nor DNR; add the last with [`Status::dnr`]. Two
/// statuses are equal only when those bits agree too: compare [`Status::code`] to look only at
/// SCT and SC.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Status(u16);

const CRD_SHIFT: u32 = 11;
const MORE: u16 = 1 << 13;
const DNR: u16 = 1 << 14;
const CODE_MASK: u16 = 0x07FF;
const ALL_MASK: u16 = 0x7FFF;

impl Status {
    /// A status from its Status Code Type (only its low 3 bits count) and Status Code.
    #[must_use]
    pub const fn new(sct: StatusCodeType, sc: u8) -> Self {
        Self(u16::from_le_bytes([sc, sct.0 & 0b111]))
    }

    /// The status from the 15 bits above the phase tag; a 16th bit is dropped.
    #[must_use]
    pub const fn from_bits(bits: u16) -> Self {
        Self(bits & ALL_MASK)
    }

    /// The 15 bits above the phase tag.
    #[must_use]
    pub const fn to_bits(self) -> u16 {
        self.0
    }

    /// Status Code Type.
    #[must_use]
    pub const fn sct(self) -> StatusCodeType {
        StatusCodeType(bits::byte(self.0 as u32, 8) & 0b111)
    }

    /// Status Code.
    #[must_use]
    pub const fn sc(self) -> u8 {
        bits::byte(self.0 as u32, 0)
    }

    /// Command Retry Delay: 0 for none, 1 to 3 to choose one of the Identify Controller CRDTn.
    #[must_use]
    pub const fn crd(self) -> u8 {
        bits::byte(bits::field(self.0 as u32, CRD_SHIFT, 2), 0)
    }

    /// More: the Error Information log page says more about this error.
    #[must_use]
    pub const fn is_more(self) -> bool {
        self.0 & MORE != 0
    }

    /// Do Not Retry: the same command is expected to fail again.
    #[must_use]
    pub const fn is_dnr(self) -> bool {
        self.0 & DNR != 0
    }

    /// This status with Do Not Retry set.
    #[must_use]
    pub const fn dnr(self) -> Self {
        Self(self.0 | DNR)
    }

    /// This status with More set.
    #[must_use]
    pub const fn more(self) -> Self {
        Self(self.0 | MORE)
    }

    /// This status with Command Retry Delay `crd` (its low 2 bits).
    #[must_use]
    pub const fn with_crd(self, crd: u8) -> Self {
        let cleared = self.0 as u32 & !bits::place(0b11, CRD_SHIFT, 2);
        Self(bits::low16(cleared | bits::place(crd as u32, CRD_SHIFT, 2)))
    }

    /// Only SCT and SC: the status as its named constant has it.
    #[must_use]
    pub const fn code(self) -> Self {
        Self(self.0 & CODE_MASK)
    }

    /// Whether the command completed without error.
    #[must_use]
    pub const fn is_success(self) -> bool {
        self.0 & CODE_MASK == 0
    }

    /// The specification's name for SCT and SC, where `context` decides between the meanings of
    /// the command specific codes; `None` when the specification defines none.
    #[must_use]
    pub const fn name(self, context: StatusContext) -> Option<&'static str> {
        let sc = self.sc();
        match self.sct() {
            StatusCodeType::GENERIC => generic(sc),
            StatusCodeType::COMMAND_SPECIFIC => {
                let by_set = match context {
                    StatusContext::Nvm => command_specific_nvm(sc),
                    StatusContext::Fabrics => command_specific_fabrics(sc),
                    StatusContext::Zoned => command_specific_zoned(sc),
                };
                match by_set {
                    Some(name) => Some(name),
                    None => command_specific(sc),
                }
            }
            StatusCodeType::MEDIA => media(sc),
            StatusCodeType::PATH => path(sc),
            _ => None,
        }
    }

    /// This status for people, with the names of `context`.
    #[must_use]
    pub const fn display(self, context: StatusContext) -> StatusDisplay {
        StatusDisplay {
            status: self,
            context: Some(context),
        }
    }
}

/// [`Status`] made readable; see [`Status::display`].
#[derive(Clone, Copy, Debug)]
pub struct StatusDisplay {
    status: Status,
    context: Option<StatusContext>,
}

impl fmt::Display for StatusDisplay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let status = self.status;
        let (first, second) = if let Some(context) = self.context {
            (status.name(context), None)
        } else {
            // Without a context the command is not known, which decides between two names.
            let nvm = status
                .name(StatusContext::Nvm)
                .or_else(|| status.name(StatusContext::Zoned));
            let fabrics = status.name(StatusContext::Fabrics);
            (
                nvm.or(fabrics),
                if nvm == fabrics || nvm.is_none() {
                    None
                } else {
                    fabrics
                },
            )
        };
        f.write_str(first.unwrap_or("unknown status"))?;
        if let Some(second) = second {
            write!(f, ", or of a Fabrics command {second}")?;
        }
        write!(f, " (SCT {:X}h, SC {:02X}h", status.sct().0, status.sc())?;
        if status.crd() != 0 {
            write!(f, ", CRD {}", status.crd())?;
        }
        if status.is_more() {
            f.write_str(", M")?;
        }
        if status.is_dnr() {
            f.write_str(", DNR")?;
        }
        f.write_str(")")
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        StatusDisplay {
            status: *self,
            context: None,
        }
        .fmt(f)
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Declares the constants of one table and the function from code to name.
macro_rules! status_table {
    ($lookup:ident, $sct:ident, { $( $name:ident = $sc:literal => $text:literal, )+ }) => {
        impl Status {
            $( #[doc = concat!($text, " (", stringify!($sct), " `", stringify!($sc), "`).")]
               pub const $name: Self = Self::new(StatusCodeType::$sct, $sc); )+
        }

        const fn $lookup(sc: u8) -> Option<&'static str> {
            match sc {
                $( $sc => Some($text), )+
                _ => None,
            }
        }
    };
}

status_table!(generic, GENERIC, {
    SUCCESS = 0x00 => "Successful Completion",
    INVALID_OPCODE = 0x01 => "Invalid Command Opcode",
    INVALID_FIELD = 0x02 => "Invalid Field in Command",
    COMMAND_ID_CONFLICT = 0x03 => "Command ID Conflict",
    DATA_TRANSFER_ERROR = 0x04 => "Data Transfer Error",
    ABORTED_POWER_LOSS = 0x05 => "Commands Aborted due to Power Loss Notification",
    INTERNAL_ERROR = 0x06 => "Internal Error",
    ABORT_REQUESTED = 0x07 => "Command Abort Requested",
    ABORTED_SQ_DELETION = 0x08 => "Command Aborted due to SQ Deletion",
    ABORTED_FAILED_FUSED = 0x09 => "Command Aborted due to Failed Fused Command",
    ABORTED_MISSING_FUSED = 0x0A => "Command Aborted due to Missing Fused Command",
    INVALID_NAMESPACE_OR_FORMAT = 0x0B => "Invalid Namespace or Format",
    COMMAND_SEQUENCE_ERROR = 0x0C => "Command Sequence Error",
    INVALID_SGL_SEGMENT_DESCRIPTOR = 0x0D => "Invalid SGL Segment Descriptor",
    INVALID_NUMBER_OF_SGL_DESCRIPTORS = 0x0E => "Invalid Number of SGL Descriptors",
    DATA_SGL_LENGTH_INVALID = 0x0F => "Data SGL Length Invalid",
    METADATA_SGL_LENGTH_INVALID = 0x10 => "Metadata SGL Length Invalid",
    SGL_DESCRIPTOR_TYPE_INVALID = 0x11 => "SGL Descriptor Type Invalid",
    INVALID_USE_OF_CONTROLLER_MEMORY_BUFFER = 0x12 => "Invalid Use of Controller Memory Buffer",
    PRP_OFFSET_INVALID = 0x13 => "PRP Offset Invalid",
    ATOMIC_WRITE_UNIT_EXCEEDED = 0x14 => "Atomic Write Unit Exceeded",
    OPERATION_DENIED = 0x15 => "Operation Denied",
    SGL_OFFSET_INVALID = 0x16 => "SGL Offset Invalid",
    HOST_IDENTIFIER_INCONSISTENT_FORMAT = 0x18 => "Host Identifier Inconsistent Format",
    KEEP_ALIVE_TIMER_EXPIRED = 0x19 => "Keep Alive Timer Expired",
    KEEP_ALIVE_TIMEOUT_INVALID = 0x1A => "Keep Alive Timeout Invalid",
    ABORTED_PREEMPT_AND_ABORT = 0x1B => "Command Aborted due to Preempt and Abort",
    SANITIZE_FAILED = 0x1C => "Sanitize Failed",
    SANITIZE_IN_PROGRESS = 0x1D => "Sanitize In Progress",
    SGL_DATA_BLOCK_GRANULARITY_INVALID = 0x1E => "SGL Data Block Granularity Invalid",
    COMMAND_NOT_SUPPORTED_FOR_QUEUE_IN_CMB = 0x1F => "Command Not Supported for Queue in CMB",
    NAMESPACE_IS_WRITE_PROTECTED = 0x20 => "Namespace is Write Protected",
    COMMAND_INTERRUPTED = 0x21 => "Command Interrupted",
    TRANSIENT_TRANSPORT_ERROR = 0x22 => "Transient Transport Error",
    PROHIBITED_BY_LOCKDOWN = 0x23 => "Command Prohibited by Command and Feature Lockdown",
    ADMIN_COMMAND_MEDIA_NOT_READY = 0x24 => "Admin Command Media Not Ready",
    INVALID_KEY_TAG = 0x25 => "Invalid Key Tag",
    HOST_DISPERSED_NAMESPACE_SUPPORT_NOT_ENABLED =
        0x26 => "Host Dispersed Namespace Support Not Enabled",
    HOST_IDENTIFIER_NOT_INITIALIZED = 0x27 => "Host Identifier Not Initialized",
    INCORRECT_KEY = 0x28 => "Incorrect Key",
    FDP_DISABLED = 0x29 => "FDP Disabled",
    INVALID_PLACEMENT_HANDLE_LIST = 0x2A => "Invalid Placement Handle List",
    LBA_OUT_OF_RANGE = 0x80 => "LBA Out of Range",
    CAPACITY_EXCEEDED = 0x81 => "Capacity Exceeded",
    NAMESPACE_NOT_READY = 0x82 => "Namespace Not Ready",
    RESERVATION_CONFLICT = 0x83 => "Reservation Conflict",
    FORMAT_IN_PROGRESS = 0x84 => "Format In Progress",
    INVALID_VALUE_SIZE = 0x85 => "Invalid Value Size",
    INVALID_KEY_SIZE = 0x86 => "Invalid Key Size",
    KV_KEY_DOES_NOT_EXIST = 0x87 => "KV Key Does Not Exist",
    UNRECOVERED_ERROR = 0x88 => "Unrecovered Error",
    KEY_EXISTS = 0x89 => "Key Exists",
});

status_table!(command_specific, COMMAND_SPECIFIC, {
    COMPLETION_QUEUE_INVALID = 0x00 => "Completion Queue Invalid",
    INVALID_QUEUE_IDENTIFIER = 0x01 => "Invalid Queue Identifier",
    INVALID_QUEUE_SIZE = 0x02 => "Invalid Queue Size",
    ABORT_COMMAND_LIMIT_EXCEEDED = 0x03 => "Abort Command Limit Exceeded",
    ASYNCHRONOUS_EVENT_REQUEST_LIMIT_EXCEEDED =
        0x05 => "Asynchronous Event Request Limit Exceeded",
    INVALID_FIRMWARE_SLOT = 0x06 => "Invalid Firmware Slot",
    INVALID_FIRMWARE_IMAGE = 0x07 => "Invalid Firmware Image",
    INVALID_INTERRUPT_VECTOR = 0x08 => "Invalid Interrupt Vector",
    INVALID_LOG_PAGE = 0x09 => "Invalid Log Page",
    INVALID_FORMAT = 0x0A => "Invalid Format",
    FIRMWARE_REQUIRES_CONVENTIONAL_RESET =
        0x0B => "Firmware Activation Requires Conventional Reset",
    INVALID_QUEUE_DELETION = 0x0C => "Invalid Queue Deletion",
    FEATURE_IDENTIFIER_NOT_SAVEABLE = 0x0D => "Feature Identifier Not Saveable",
    FEATURE_NOT_CHANGEABLE = 0x0E => "Feature Not Changeable",
    FEATURE_NOT_NAMESPACE_SPECIFIC = 0x0F => "Feature Not Namespace Specific",
    FIRMWARE_REQUIRES_NVM_SUBSYSTEM_RESET =
        0x10 => "Firmware Activation Requires NVM Subsystem Reset",
    FIRMWARE_REQUIRES_CONTROLLER_LEVEL_RESET =
        0x11 => "Firmware Activation Requires Controller Level Reset",
    FIRMWARE_REQUIRES_MAXIMUM_TIME_VIOLATION =
        0x12 => "Firmware Activation Requires Maximum Time Violation",
    FIRMWARE_ACTIVATION_PROHIBITED = 0x13 => "Firmware Activation Prohibited",
    OVERLAPPING_RANGE = 0x14 => "Overlapping Range",
    NAMESPACE_INSUFFICIENT_CAPACITY = 0x15 => "Namespace Insufficient Capacity",
    NAMESPACE_IDENTIFIER_UNAVAILABLE = 0x16 => "Namespace Identifier Unavailable",
    NAMESPACE_ALREADY_ATTACHED = 0x18 => "Namespace Already Attached",
    NAMESPACE_IS_PRIVATE = 0x19 => "Namespace Is Private",
    NAMESPACE_NOT_ATTACHED = 0x1A => "Namespace Not Attached",
    THIN_PROVISIONING_NOT_SUPPORTED = 0x1B => "Thin Provisioning Not Supported",
    CONTROLLER_LIST_INVALID = 0x1C => "Controller List Invalid",
    DEVICE_SELF_TEST_IN_PROGRESS = 0x1D => "Device Self-test In Progress",
    BOOT_PARTITION_WRITE_PROHIBITED = 0x1E => "Boot Partition Write Prohibited",
    INVALID_CONTROLLER_IDENTIFIER = 0x1F => "Invalid Controller Identifier",
    INVALID_SECONDARY_CONTROLLER_STATE = 0x20 => "Invalid Secondary Controller State",
    INVALID_NUMBER_OF_CONTROLLER_RESOURCES = 0x21 => "Invalid Number of Controller Resources",
    INVALID_RESOURCE_IDENTIFIER = 0x22 => "Invalid Resource Identifier",
    SANITIZE_PROHIBITED_WHILE_PMR_ENABLED =
        0x23 => "Sanitize Prohibited While Persistent Memory Region is Enabled",
    ANA_GROUP_IDENTIFIER_INVALID = 0x24 => "ANA Group Identifier Invalid",
    ANA_ATTACH_FAILED = 0x25 => "ANA Attach Failed",
    INSUFFICIENT_CAPACITY = 0x26 => "Insufficient Capacity",
    NAMESPACE_ATTACHMENT_LIMIT_EXCEEDED = 0x27 => "Namespace Attachment Limit Exceeded",
    PROHIBITION_OF_COMMAND_EXECUTION_NOT_SUPPORTED =
        0x28 => "Prohibition of Command Execution Not Supported",
    IO_COMMAND_SET_NOT_SUPPORTED = 0x29 => "I/O Command Set Not Supported",
    IO_COMMAND_SET_NOT_ENABLED = 0x2A => "I/O Command Set Not Enabled",
    IO_COMMAND_SET_COMBINATION_REJECTED = 0x2B => "I/O Command Set Combination Rejected",
    INVALID_IO_COMMAND_SET = 0x2C => "Invalid I/O Command Set",
    IDENTIFIER_UNAVAILABLE = 0x2D => "Identifier Unavailable",
    NAMESPACE_IS_DISPERSED = 0x2E => "Namespace Is Dispersed",
    INVALID_DISCOVERY_INFORMATION = 0x2F => "Invalid Discovery Information",
    ZONING_DATA_STRUCTURE_LOCKED = 0x30 => "Zoning Data Structure Locked",
    ZONING_DATA_STRUCTURE_NOT_FOUND = 0x31 => "Zoning Data Structure Not Found",
    INSUFFICIENT_DISCOVERY_RESOURCES = 0x32 => "Insufficient Discovery Resources",
    REQUESTED_FUNCTION_DISABLED = 0x33 => "Requested Function Disabled",
    ZONEGROUP_ORIGINATOR_INVALID = 0x34 => "ZoneGroup Originator Invalid",
    INVALID_HOST_IDENTIFIER = 0x35 => "Invalid Host",
    INVALID_NVM_SUBSYSTEM = 0x36 => "Invalid NVM Subsystem",
    INVALID_CONTROLLER_DATA_QUEUE = 0x37 => "Invalid Controller Data Queue",
    NOT_ENOUGH_RESOURCES = 0x38 => "Not Enough Resources",
    CONTROLLER_SUSPENDED = 0x39 => "Controller Suspended",
    CONTROLLER_NOT_SUSPENDED = 0x3A => "Controller Not Suspended",
    CONTROLLER_DATA_QUEUE_FULL = 0x3B => "Controller Data Queue Full",
    CROSS_CONTROLLER_RESET_IN_PROGRESS = 0x3F => "Cross-Controller Reset in Progress",
    CROSS_CONTROLLER_RESET_LOG_PAGE_FULL = 0x40 => "Cross-Controller Reset Log Page Full",
    CROSS_CONTROLLER_RESET_LIMIT_EXCEEDED = 0x41 => "Cross-Controller Reset Limit Exceeded",
});

status_table!(command_specific_nvm, COMMAND_SPECIFIC, {
    STREAM_RESOURCE_ALLOCATION_FAILED = 0x7F => "Stream Resource Allocation Failed",
    CONFLICTING_ATTRIBUTES = 0x80 => "Conflicting Attributes",
    INVALID_PROTECTION_INFORMATION = 0x81 => "Invalid Protection Information",
    ATTEMPTED_WRITE_TO_READ_ONLY_RANGE = 0x82 => "Attempted Write to Read Only Range",
    COMMAND_SIZE_LIMIT_EXCEEDED = 0x83 => "Command Size Limit Exceeded",
    INVALID_MEMORY_NAMESPACE = 0x84 => "Invalid Memory Namespace",
    INCOMPATIBLE_NAMESPACE_OR_FORMAT = 0x85 => "Incompatible Namespace or Format",
    FAST_COPY_NOT_POSSIBLE = 0x86 => "Fast Copy Not Possible",
    OVERLAPPING_IO_RANGE = 0x87 => "Overlapping I/O Range",
    NAMESPACE_NOT_REACHABLE = 0x88 => "Namespace Not Reachable",
    INSUFFICIENT_RESOURCES = 0x89 => "Insufficient Resources",
});

status_table!(command_specific_fabrics, COMMAND_SPECIFIC, {
    CONNECT_INCOMPATIBLE_FORMAT = 0x80 => "Connect Incompatible Format",
    CONNECT_CONTROLLER_BUSY = 0x81 => "Connect Controller Busy",
    CONNECT_INVALID_PARAMETERS = 0x82 => "Connect Invalid Parameters",
    CONNECT_RESTART_DISCOVERY = 0x83 => "Connect Restart Discovery",
    CONNECT_INVALID_HOST = 0x84 => "Connect Invalid Host",
    DISCONNECT_INVALID_QUEUE_TYPE = 0x85 => "Invalid Queue Type",
    DISCOVER_RESTART = 0x90 => "Discover Restart",
    AUTHENTICATION_REQUIRED = 0x91 => "Authentication Required",
});

status_table!(command_specific_zoned, COMMAND_SPECIFIC, {
    INVALID_ZONE_OPERATION_REQUEST = 0xB6 => "Invalid Zone Operation Request",
    ZRWA_RESOURCES_UNAVAILABLE = 0xB7 => "ZRWA Resources Unavailable",
    ZONE_BOUNDARY_ERROR = 0xB8 => "Zone Boundary Error",
    ZONE_IS_FULL = 0xB9 => "Zone Is Full",
    ZONE_IS_READ_ONLY = 0xBA => "Zone Is Read Only",
    ZONE_IS_OFFLINE = 0xBB => "Zone Is Offline",
    ZONE_INVALID_WRITE = 0xBC => "Zone Invalid Write",
    TOO_MANY_ACTIVE_ZONES = 0xBD => "Too Many Active Zones",
    TOO_MANY_OPEN_ZONES = 0xBE => "Too Many Open Zones",
    INVALID_ZONE_STATE_TRANSITION = 0xBF => "Invalid Zone State Transition",
});

status_table!(media, MEDIA, {
    WRITE_FAULT = 0x80 => "Write Fault",
    UNRECOVERED_READ_ERROR = 0x81 => "Unrecovered Read Error",
    GUARD_CHECK_ERROR = 0x82 => "End-to-end Guard Check Error",
    APPLICATION_TAG_CHECK_ERROR = 0x83 => "End-to-end Application Tag Check Error",
    REFERENCE_TAG_CHECK_ERROR = 0x84 => "End-to-end Reference Tag Check Error",
    COMPARE_FAILURE = 0x85 => "Compare Failure",
    ACCESS_DENIED = 0x86 => "Access Denied",
    DEALLOCATED_OR_UNWRITTEN_LOGICAL_BLOCK = 0x87 => "Deallocated or Unwritten Logical Block",
    STORAGE_TAG_CHECK_ERROR = 0x88 => "End-to-End Storage Tag Check Error",
});

status_table!(path, PATH, {
    INTERNAL_PATH_ERROR = 0x00 => "Internal Path Error",
    ASYMMETRIC_ACCESS_PERSISTENT_LOSS = 0x01 => "Asymmetric Access Persistent Loss",
    ASYMMETRIC_ACCESS_INACCESSIBLE = 0x02 => "Asymmetric Access Inaccessible",
    ASYMMETRIC_ACCESS_TRANSITION = 0x03 => "Asymmetric Access Transition",
    CONTROLLER_PATHING_ERROR = 0x60 => "Controller Pathing Error",
    HOST_PATHING_ERROR = 0x70 => "Host Pathing Error",
    COMMAND_ABORTED_BY_HOST = 0x71 => "Command Aborted By Host",
});

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::string::ToString;

    #[test]
    fn fields_do_not_touch_each_other() {
        let status = Status::INVALID_FIELD.with_crd(3).more().dnr();
        assert_eq!(status.to_bits(), 0x7802);
        assert_eq!(status.sct(), StatusCodeType::GENERIC);
        assert_eq!((status.sc(), status.crd()), (0x02, 3));
        assert!(status.is_more() && status.is_dnr() && !status.is_success());
        assert_eq!(status.with_crd(0).to_bits(), 0x6002);
        assert_eq!(status.code(), Status::INVALID_FIELD);
        assert_eq!(Status::from_bits(0xFFFF).to_bits(), 0x7FFF);
    }

    #[test]
    fn names_follow_the_context() {
        let status = Status::CONNECT_INVALID_HOST;
        assert_eq!(
            status.name(StatusContext::Fabrics),
            Some("Connect Invalid Host")
        );
        assert_eq!(
            status.name(StatusContext::Nvm),
            Some("Invalid Memory Namespace")
        );
        assert_eq!(
            Status::ZONE_IS_FULL.name(StatusContext::Zoned),
            Some("Zone Is Full")
        );
        assert_eq!(
            Status::new(StatusCodeType::VENDOR_SPECIFIC, 1).name(StatusContext::Nvm),
            None
        );
    }

    #[test]
    fn display_shows_the_name_the_numbers_and_the_flags() {
        assert_eq!(
            Status::LBA_OUT_OF_RANGE.dnr().to_string(),
            "LBA Out of Range (SCT 0h, SC 80h, DNR)"
        );
        assert_eq!(
            Status::CONFLICTING_ATTRIBUTES.to_string(),
            "Conflicting Attributes, or of a Fabrics command Connect Incompatible Format (SCT 1h, SC 80h)"
        );
        assert_eq!(
            std::format!("{:?}", Status::CONNECT_INVALID_PARAMETERS.dnr()),
            "Attempted Write to Read Only Range, or of a Fabrics command Connect Invalid Parameters \
             (SCT 1h, SC 82h, DNR)"
        );
        assert_eq!(
            Status::CONFLICTING_ATTRIBUTES
                .display(StatusContext::Nvm)
                .to_string(),
            "Conflicting Attributes (SCT 1h, SC 80h)"
        );
        assert_eq!(
            Status::AUTHENTICATION_REQUIRED.to_string(),
            "Authentication Required (SCT 1h, SC 91h)"
        );
        assert_eq!(
            Status::new(StatusCodeType(6), 5).to_string(),
            "unknown status (SCT 6h, SC 05h)"
        );
    }
}
