//! Opcodes of the Admin, NVM and Fabrics command sets.

use crate::macros::open_enum;

open_enum! {
    /// Opcode of a command on the Admin Queue. NVMe Base 2.1, section 5 (Opcodes for Admin
    /// Commands).
    pub struct AdminOpcode(u8) {
        DELETE_IO_SQ = 0x00 => "Delete I/O Submission Queue",
        CREATE_IO_SQ = 0x01 => "Create I/O Submission Queue",
        GET_LOG_PAGE = 0x02 => "Get Log Page",
        DELETE_IO_CQ = 0x04 => "Delete I/O Completion Queue",
        CREATE_IO_CQ = 0x05 => "Create I/O Completion Queue",
        IDENTIFY = 0x06 => "Identify",
        ABORT = 0x08 => "Abort",
        SET_FEATURES = 0x09 => "Set Features",
        GET_FEATURES = 0x0A => "Get Features",
        ASYNCHRONOUS_EVENT_REQUEST = 0x0C => "Asynchronous Event Request",
        NAMESPACE_MANAGEMENT = 0x0D => "Namespace Management",
        FIRMWARE_COMMIT = 0x10 => "Firmware Commit",
        FIRMWARE_IMAGE_DOWNLOAD = 0x11 => "Firmware Image Download",
        DEVICE_SELF_TEST = 0x14 => "Device Self-test",
        NAMESPACE_ATTACHMENT = 0x15 => "Namespace Attachment",
        KEEP_ALIVE = 0x18 => "Keep Alive",
        DIRECTIVE_SEND = 0x19 => "Directive Send",
        DIRECTIVE_RECEIVE = 0x1A => "Directive Receive",
        VIRTUALIZATION_MANAGEMENT = 0x1C => "Virtualization Management",
        NVME_MI_SEND = 0x1D => "NVMe-MI Send",
        NVME_MI_RECEIVE = 0x1E => "NVMe-MI Receive",
        CAPACITY_MANAGEMENT = 0x20 => "Capacity Management",
        DISCOVERY_INFORMATION_MANAGEMENT = 0x21 => "Discovery Information Management",
        FABRIC_ZONING_RECEIVE = 0x22 => "Fabric Zoning Receive",
        LOCKDOWN = 0x24 => "Lockdown",
        FABRIC_ZONING_LOOKUP = 0x25 => "Fabric Zoning Lookup",
        CLEAR_EXPORTED_NVM_RESOURCE_CONFIGURATION =
            0x28 => "Clear Exported NVM Resource Configuration",
        FABRIC_ZONING_SEND = 0x29 => "Fabric Zoning Send",
        CREATE_EXPORTED_NVM_SUBSYSTEM = 0x2A => "Create Exported NVM Subsystem",
        MANAGE_EXPORTED_NVM_SUBSYSTEM = 0x2D => "Manage Exported NVM Subsystem",
        MANAGE_EXPORTED_NAMESPACE = 0x31 => "Manage Exported Namespace",
        MANAGE_EXPORTED_PORT = 0x35 => "Manage Exported Port",
        CROSS_CONTROLLER_RESET = 0x38 => "Cross-Controller Reset",
        SEND_DISCOVERY_LOG_PAGE = 0x39 => "Send Discovery Log Page",
        TRACK_SEND = 0x3D => "Track Send",
        TRACK_RECEIVE = 0x3E => "Track Receive",
        MIGRATION_SEND = 0x41 => "Migration Send",
        MIGRATION_RECEIVE = 0x42 => "Migration Receive",
        CONTROLLER_DATA_QUEUE = 0x45 => "Controller Data Queue",
        DOORBELL_BUFFER_CONFIG = 0x7C => "Doorbell Buffer Config",
        FABRICS = 0x7F => "Fabrics",
        FORMAT_NVM = 0x80 => "Format NVM",
        SECURITY_SEND = 0x81 => "Security Send",
        SECURITY_RECEIVE = 0x82 => "Security Receive",
        SANITIZE = 0x84 => "Sanitize",
        LOAD_PROGRAM = 0x85 => "Load Program",
        GET_LBA_STATUS = 0x86 => "Get LBA Status",
        PROGRAM_ACTIVATION_MANAGEMENT = 0x88 => "Program Activation Management",
        MEMORY_RANGE_SET_MANAGEMENT = 0x89 => "Memory Range Set Management",
    }
}

open_enum! {
    /// Opcode of a command on an I/O Queue with the NVM command set. NVMe Base 2.1, section 7, and
    /// NVM Command Set 1.1, section 3.
    pub struct IoOpcode(u8) {
        FLUSH = 0x00 => "Flush",
        WRITE = 0x01 => "Write",
        READ = 0x02 => "Read",
        WRITE_UNCORRECTABLE = 0x04 => "Write Uncorrectable",
        COMPARE = 0x05 => "Compare",
        WRITE_ZEROES = 0x08 => "Write Zeroes",
        DATASET_MANAGEMENT = 0x09 => "Dataset Management",
        VERIFY = 0x0C => "Verify",
        RESERVATION_REGISTER = 0x0D => "Reservation Register",
        RESERVATION_REPORT = 0x0E => "Reservation Report",
        RESERVATION_ACQUIRE = 0x11 => "Reservation Acquire",
        IO_MANAGEMENT_RECEIVE = 0x12 => "I/O Management Receive",
        RESERVATION_RELEASE = 0x15 => "Reservation Release",
        CANCEL = 0x18 => "Cancel",
        COPY = 0x19 => "Copy",
        IO_MANAGEMENT_SEND = 0x1D => "I/O Management Send",
        FABRICS = 0x7F => "Fabrics",
    }
}

open_enum! {
    /// Fabrics Command Type (FCTYPE), byte 4 of a command with opcode 7Fh. NVMe Base 2.1,
    /// section 6 (Fabrics Command Type).
    pub struct FabricsCommandType(u8) {
        PROPERTY_SET = 0x00 => "Property Set",
        CONNECT = 0x01 => "Connect",
        PROPERTY_GET = 0x04 => "Property Get",
        AUTHENTICATION_SEND = 0x05 => "Authentication Send",
        AUTHENTICATION_RECEIVE = 0x06 => "Authentication Receive",
        DISCONNECT = 0x08 => "Disconnect",
    }
}

/// Direction in which a command moves data: bits 1:0 of every opcode (and of FCTYPE).
/// NVMe Base 2.1, section 5 (Opcodes: Data Transfer).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DataDirection {
    /// 00b: no data.
    None,
    /// 01b: from the host to the controller (the controller pulls).
    HostToController,
    /// 10b: from the controller to the host (the controller pushes).
    ControllerToHost,
    /// 11b: both ways.
    Bidirectional,
}

impl DataDirection {
    /// The direction the opcode (or FCTYPE) `code` announces.
    #[must_use]
    pub const fn of(code: u8) -> Self {
        match code & 0b11 {
            0b00 => Self::None,
            0b01 => Self::HostToController,
            0b10 => Self::ControllerToHost,
            _ => Self::Bidirectional,
        }
    }
}

impl AdminOpcode {
    /// Opcodes C0h to FFh are the vendor's.
    #[must_use]
    pub const fn is_vendor_specific(self) -> bool {
        self.0 >= 0xC0
    }
}

impl IoOpcode {
    /// Opcodes 80h to FFh are the vendor's.
    #[must_use]
    pub const fn is_vendor_specific(self) -> bool {
        self.0 >= 0x80
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::format;

    #[test]
    fn display_is_the_name_or_the_value() {
        assert_eq!(format!("{}", AdminOpcode::IDENTIFY), "Identify");
        assert_eq!(format!("{}", AdminOpcode(0xC1)), "C1h");
        assert_eq!(format!("{:?}", IoOpcode::READ), "02h Read");
        assert_eq!(format!("{:?}", IoOpcode(0x77)), "77h");
    }

    #[test]
    fn direction_is_in_the_low_bits() {
        assert_eq!(
            DataDirection::of(IoOpcode::READ.0),
            DataDirection::ControllerToHost
        );
        assert_eq!(
            DataDirection::of(IoOpcode::WRITE.0),
            DataDirection::HostToController
        );
        assert_eq!(DataDirection::of(IoOpcode::FLUSH.0), DataDirection::None);
        assert_eq!(DataDirection::of(0x83), DataDirection::Bidirectional);
        assert_eq!(
            DataDirection::of(FabricsCommandType::CONNECT.0),
            DataDirection::HostToController
        );
    }
}
