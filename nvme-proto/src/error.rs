//! What is wrong with a command, where, and the status that says so.

use core::fmt;

use crate::bits;
use crate::status::Status;

/// Where in a command (or its data) the first invalid parameter is.
///
/// Two places on the wire carry it: the Parameter Error Location of an Error Information log
/// entry (NVMe Base 2.1, section 5.1.12) and, for a refused Connect, dword 0 of the completion
/// with IATTR and IPO (section 6.3, Connect Response).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ErrorLocation {
    /// No particular parameter.
    Unspecified,
    /// A byte (0 to 63) and bit (0 to 7) of the submission queue entry.
    Sqe {
        /// Byte offset in the submission queue entry.
        byte: u8,
        /// Bit in that byte.
        bit: u8,
    },
    /// A byte offset in the data of the command.
    Data {
        /// Byte offset in the data.
        offset: u16,
    },
}

impl ErrorLocation {
    /// Bit 0 of byte `byte` of the submission queue entry.
    #[must_use]
    pub const fn sqe(byte: u8) -> Self {
        Self::Sqe { byte, bit: 0 }
    }

    /// The Parameter Error Location field: byte in bits 7:0, bit in bits 10:8, FFFFh when there
    /// is no single parameter in the command to point at.
    #[must_use]
    pub const fn parameter_error_location(self) -> u16 {
        match self {
            Self::Sqe { byte, bit } => u16::from_le_bytes([byte, bit & 0b111]),
            Self::Unspecified | Self::Data { .. } => 0xFFFF,
        }
    }

    /// Dword 0 of the completion of a Connect refused with Connect Invalid Parameters:
    /// Invalid Parameter Offset in bits 15:0, Invalid Attributes in bits 23:16 whose bit 0 says
    /// that the offset is into the data rather than into the command.
    #[must_use]
    pub const fn connect_dw0(self) -> u32 {
        match self {
            Self::Unspecified => 0,
            Self::Sqe { byte, .. } => byte as u32,
            Self::Data { offset } => bits::words(offset, 1),
        }
    }

    /// The reverse of [`ErrorLocation::connect_dw0`]. [`ErrorLocation::Unspecified`] for 0 (byte 0
    /// is the opcode, which cannot be what is wrong with a Connect) and for an offset past the end
    /// of the submission queue entry.
    #[must_use]
    pub const fn from_connect_dw0(dw0: u32) -> Self {
        let ipo = bits::low16(dw0);
        if bits::bit(dw0, 16) {
            return Self::Data { offset: ipo };
        }
        match ipo.to_le_bytes() {
            [byte @ 1..=63, 0] => Self::Sqe { byte, bit: 0 },
            _ => Self::Unspecified,
        }
    }
}

impl fmt::Display for ErrorLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unspecified => f.write_str("no single parameter"),
            Self::Sqe { byte, bit: 0 } => write!(f, "byte {byte} of the command"),
            Self::Sqe { byte, bit } => write!(f, "bit {bit} of byte {byte} of the command"),
            Self::Data { offset } => write!(f, "byte {offset} of the data"),
        }
    }
}

/// A command that cannot be carried out as it was sent: what is wrong, and what to answer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
#[error("{field} is {value:X}h in {location}, expected {expected}: answer {status}")]
pub struct CommandError {
    /// The status to complete the command with, Do Not Retry included.
    pub status: Status,
    /// Where the invalid parameter is.
    pub location: ErrorLocation,
    /// The field, by its name in the specification.
    pub field: &'static str,
    /// What the field held.
    pub value: u64,
    /// What it may hold.
    pub expected: &'static str,
}

impl CommandError {
    /// Invalid Field in Command, Do Not Retry, pointing at byte `byte` of the command.
    #[must_use]
    pub const fn invalid_field(
        field: &'static str,
        byte: u8,
        value: u64,
        expected: &'static str,
    ) -> Self {
        Self {
            status: Status::INVALID_FIELD.dnr(),
            location: ErrorLocation::sqe(byte),
            field,
            value,
            expected,
        }
    }

    /// Invalid Command Opcode, Do Not Retry. `byte` is 0 for the opcode and 4 for FCTYPE.
    #[must_use]
    pub const fn invalid_opcode(field: &'static str, byte: u8, value: u8) -> Self {
        Self {
            status: Status::INVALID_OPCODE.dnr(),
            location: ErrorLocation::sqe(byte),
            field,
            value: value as u64,
            expected: "a command this queue accepts",
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::string::ToString;

    #[test]
    fn connect_dw0_has_ipo_low_and_iattr_above() {
        assert_eq!(ErrorLocation::sqe(44).connect_dw0(), 44);
        assert_eq!(
            ErrorLocation::Data { offset: 256 }.connect_dw0(),
            0x0001_0100
        );
        for location in [ErrorLocation::sqe(63), ErrorLocation::Data { offset: 512 }] {
            assert_eq!(
                ErrorLocation::from_connect_dw0(location.connect_dw0()),
                location
            );
        }
        assert_eq!(
            ErrorLocation::from_connect_dw0(64),
            ErrorLocation::Unspecified
        );
        assert_eq!(
            ErrorLocation::from_connect_dw0(0xFFFF),
            ErrorLocation::Unspecified
        );
    }

    #[test]
    fn parameter_error_location_is_byte_and_bit() {
        let location = ErrorLocation::Sqe { byte: 43, bit: 7 };
        assert_eq!(location.parameter_error_location(), 0x072B);
        assert_eq!(
            ErrorLocation::Unspecified.parameter_error_location(),
            0xFFFF
        );
        assert_eq!(
            ErrorLocation::Data { offset: 1 }.parameter_error_location(),
            0xFFFF
        );
    }

    #[test]
    fn the_message_names_thing_value_expectation_and_answer() {
        let error = CommandError::invalid_field("SQSIZE", 44, 0, "1 to FFFFh");
        assert_eq!(
            error.to_string(),
            "SQSIZE is 0h in byte 44 of the command, expected 1 to FFFFh: \
             answer Invalid Field in Command (SCT 0h, SC 02h, DNR)"
        );
    }
}
