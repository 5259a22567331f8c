//! Fabrics commands (opcode 7Fh): Connect, Property Get and Set, Disconnect, Authentication Send
//! and Receive, with their data and responses.
//!
//! Source: NVMe Base 2.1, section 6 (Fabrics Command Set).

mod connect_data;

pub use connect_data::{ConnectData, ConnectParameters, ConnectResponse};

use crate::bits;
use crate::error::{CommandError, ErrorLocation};
use crate::opcode::{AdminOpcode, FabricsCommandType};
use crate::property::{Property, PropertySize};
use crate::sgl::Sgl;
use crate::sqe::Sqe;
use crate::status::Status;
use crate::transfer::DataTransfer;
use crate::zeroes_based;

/// CNTLID in Connect data that asks for a controller of the dynamic model.
pub const CNTLID_DYNAMIC: u16 = 0xFFFF;
/// CNTLID in Connect data that asks for any controller of the static model.
pub const CNTLID_ANY_STATIC: u16 = 0xFFFE;
/// The largest Controller Identifier a controller can have (FFF0h and up are reserved).
pub const CNTLID_MAX: u16 = 0xFFEF;
/// The only Record Format of Connect and Disconnect.
pub const RECFMT: u16 = 0;
/// SECP of the NVMe authentication protocols.
pub const SECP_NVME: u8 = 0xE9;

/// A Fabrics command, parsed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FabricsCommand {
    /// Connect: binds this queue to a controller.
    Connect(Connect),
    /// Property Get.
    PropertyGet(PropertyGet),
    /// Property Set.
    PropertySet(PropertySet),
    /// Disconnect: deletes this I/O queue.
    Disconnect,
    /// Authentication Send.
    AuthenticationSend(Authentication),
    /// Authentication Receive.
    AuthenticationReceive(Authentication),
}

/// Connect Attributes (CATTR) of a Connect command.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Cattr(pub u8);

impl Cattr {
    /// Nothing is asked for, with the highest Priority Class.
    pub const NONE: Self = Self(0);
    /// Bit 2 alone: the host asks for SQ flow control to be disabled.
    pub const DISABLE_SQ_FLOW_CONTROL: Self = Self(1 << 2);

    /// Priority Class of the queue: bits 1:0.
    #[must_use]
    pub const fn priority_class(self) -> u8 {
        self.0 & 0b11
    }

    /// Bit 2: the host asks for SQ flow control to be disabled.
    #[must_use]
    pub const fn disable_sq_flow_control(self) -> bool {
        self.0 & Self::DISABLE_SQ_FLOW_CONTROL.0 != 0
    }

    /// Bit 3: the host supports deletion of individual I/O queues (Disconnect).
    #[must_use]
    pub const fn individual_io_queue_deletion(self) -> bool {
        self.0 & 1 << 3 != 0
    }
}

/// Connect command. NVMe Base 2.1, section 6.3.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Connect {
    /// QID: 0 creates the Admin Queue and the association.
    pub qid: u16,
    /// SQSIZE: entries of the submission queue, 2 to 65536 (on the wire 0's based).
    pub sqsize: u32,
    /// CATTR.
    pub cattr: Cattr,
    /// KATO, Keep Alive Timeout in milliseconds: 0 disables Keep Alive. Only for QID 0.
    pub kato_ms: u32,
}

/// Property Get command. NVMe Base 2.1, section 6.5.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PropertyGet {
    /// OFST.
    pub property: Property,
    /// Size to return, from ATTRIB.
    pub size: PropertySize,
}

/// Property Set command. NVMe Base 2.1, section 6.6.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PropertySet {
    /// OFST.
    pub property: Property,
    /// Size to write, from ATTRIB.
    pub size: PropertySize,
    /// VALUE; its high dword is zero when the size is 4 bytes.
    pub value: u64,
}

/// Authentication Send and Receive commands. NVMe Base 2.1, sections 6.1 and 6.2.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Authentication {
    /// SP Specific 0.
    pub spsp0: u8,
    /// SP Specific 1.
    pub spsp1: u8,
    /// Security Protocol: [`SECP_NVME`].
    pub secp: u8,
    /// Transfer Length (Send) or Allocation Length (Receive).
    pub length_bytes: u32,
}

/// Byte offsets of fields in the submission queue entry, for error locations.
const FCTYPE_BYTE: u8 = 4;
const RECFMT_BYTE: u8 = 40;
const ATTRIB_BYTE: u8 = 40;
const SQSIZE_BYTE: u8 = 44;

impl FabricsCommand {
    /// Parses a submission queue entry whose opcode is 7Fh.
    ///
    /// # Errors
    /// Invalid Command Opcode for another opcode or an unknown FCTYPE; Connect Incompatible
    /// Format for a RECFMT other than 0; Connect Invalid Parameters for a SQSIZE of 0 (a queue of
    /// one entry); Invalid Field for a reserved property size.
    pub fn parse(sqe: &Sqe) -> Result<Self, CommandError> {
        if !sqe.is_fabrics() {
            return Err(CommandError::invalid_opcode("Opcode", 0, sqe.opcode));
        }
        match sqe.fctype() {
            FabricsCommandType::CONNECT => Connect::parse(sqe).map(Self::Connect),
            FabricsCommandType::PROPERTY_GET => {
                let size = property_size(sqe)?;
                Ok(Self::PropertyGet(PropertyGet {
                    property: Property(sqe.cdw11.get()),
                    size,
                }))
            }
            FabricsCommandType::PROPERTY_SET => {
                let size = property_size(sqe)?;
                let value = match size {
                    PropertySize::Four => u64::from(sqe.cdw12.get()),
                    PropertySize::Eight => bits::dwords(sqe.cdw12.get(), sqe.cdw13.get()),
                };
                let property = Property(sqe.cdw11.get());
                Ok(Self::PropertySet(PropertySet {
                    property,
                    size,
                    value,
                }))
            }
            FabricsCommandType::DISCONNECT => {
                check_recfmt(sqe)?;
                Ok(Self::Disconnect)
            }
            FabricsCommandType::AUTHENTICATION_SEND => {
                Ok(Self::AuthenticationSend(Authentication::parse(sqe)))
            }
            FabricsCommandType::AUTHENTICATION_RECEIVE => {
                Ok(Self::AuthenticationReceive(Authentication::parse(sqe)))
            }
            unknown => Err(CommandError::invalid_opcode(
                "FCTYPE",
                FCTYPE_BYTE,
                unknown.0,
            )),
        }
    }

    /// The Fabrics Command Type.
    #[must_use]
    pub const fn fctype(&self) -> FabricsCommandType {
        match self {
            Self::Connect(_) => FabricsCommandType::CONNECT,
            Self::PropertyGet(_) => FabricsCommandType::PROPERTY_GET,
            Self::PropertySet(_) => FabricsCommandType::PROPERTY_SET,
            Self::Disconnect => FabricsCommandType::DISCONNECT,
            Self::AuthenticationSend(_) => FabricsCommandType::AUTHENTICATION_SEND,
            Self::AuthenticationReceive(_) => FabricsCommandType::AUTHENTICATION_RECEIVE,
        }
    }

    /// The data this command moves.
    #[must_use]
    pub const fn data_transfer(&self) -> DataTransfer {
        match self {
            Self::Connect(_) => DataTransfer::HostToController {
                bytes: ConnectData::SIZE_BYTES as u64,
            },
            Self::AuthenticationSend(command) => DataTransfer::HostToController {
                bytes: command.length_bytes as u64,
            },
            Self::AuthenticationReceive(command) => DataTransfer::ControllerToHost {
                bytes: command.length_bytes as u64,
            },
            Self::PropertyGet(_) | Self::PropertySet(_) | Self::Disconnect => DataTransfer::None,
        }
    }

    /// The submission queue entry of this command with its data at `sgl` ([`Sgl::EMPTY`] for a
    /// command without data). A SQSIZE outside 1 to 65536 becomes 0, which controllers refuse.
    #[must_use]
    pub fn encode(&self, cid: u16, sgl: Sgl) -> Sqe {
        let fctype = u32::from(self.fctype().0);
        let mut sqe = Sqe::new(AdminOpcode::FABRICS.0, cid, fctype);
        sqe.dptr = sgl.encode();
        match *self {
            Self::Connect(Connect {
                qid,
                sqsize,
                cattr,
                kato_ms,
            }) => {
                let sqsize_z = zeroes_based::to_u16(sqsize).unwrap_or(0);
                sqe.cdw10 = bits::words(RECFMT, qid).into();
                sqe.cdw11 = bits::words(sqsize_z, u16::from(cattr.0)).into();
                sqe.cdw12 = kato_ms.into();
            }
            Self::PropertyGet(PropertyGet { property, size }) => {
                sqe.cdw10 = u32::from(size.to_attrib()).into();
                sqe.cdw11 = property.0.into();
            }
            Self::PropertySet(PropertySet {
                property,
                size,
                value,
            }) => {
                sqe.cdw10 = u32::from(size.to_attrib()).into();
                sqe.cdw11 = property.0.into();
                sqe.cdw12 = bits::low32(value).into();
                if size == PropertySize::Eight {
                    sqe.cdw13 = bits::high32(value).into();
                }
            }
            Self::Disconnect => {}
            Self::AuthenticationSend(command) | Self::AuthenticationReceive(command) => {
                let Authentication {
                    spsp0,
                    spsp1,
                    secp,
                    length_bytes,
                } = command;
                sqe.cdw10 = u32::from_le_bytes([0, spsp0, spsp1, secp]).into();
                sqe.cdw11 = length_bytes.into();
            }
        }
        sqe
    }
}

impl Connect {
    fn parse(sqe: &Sqe) -> Result<Self, CommandError> {
        check_recfmt(sqe)?;
        let cdw11 = sqe.cdw11.get();
        let sqsize_z = bits::low16(cdw11);
        if sqsize_z == 0 {
            return Err(CommandError {
                status: Status::CONNECT_INVALID_PARAMETERS.dnr(),
                location: ErrorLocation::sqe(SQSIZE_BYTE),
                field: "SQSIZE",
                value: 0,
                expected: "1 to FFFFh (a queue of at least 2 entries)",
            });
        }
        Ok(Self {
            qid: bits::high16(sqe.cdw10.get()),
            sqsize: zeroes_based::from_u16(sqsize_z),
            cattr: Cattr(bits::byte(cdw11, 16)),
            kato_ms: sqe.cdw12.get(),
        })
    }
}

impl Authentication {
    fn parse(sqe: &Sqe) -> Self {
        let [_, spsp0, spsp1, secp] = sqe.cdw10.to_bytes();
        Self {
            spsp0,
            spsp1,
            secp,
            length_bytes: sqe.cdw11.get(),
        }
    }
}

fn check_recfmt(sqe: &Sqe) -> Result<(), CommandError> {
    let recfmt = bits::low16(sqe.cdw10.get());
    if recfmt == RECFMT {
        return Ok(());
    }
    Err(CommandError {
        status: Status::CONNECT_INCOMPATIBLE_FORMAT.dnr(),
        location: ErrorLocation::sqe(RECFMT_BYTE),
        field: "RECFMT",
        value: u64::from(recfmt),
        expected: "0",
    })
}

fn property_size(sqe: &Sqe) -> Result<PropertySize, CommandError> {
    let attrib = bits::byte(sqe.cdw10.get(), 0);
    PropertySize::from_attrib(attrib).ok_or_else(|| {
        CommandError::invalid_field(
            "ATTRIB",
            ATTRIB_BYTE,
            u64::from(attrib),
            "size 0 (4 bytes) or 1 (8 bytes)",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::IntoBytes;

    const CONNECT: Connect = Connect {
        qid: 1,
        sqsize: 128,
        cattr: Cattr(0),
        kato_ms: 15_000,
    };

    fn error_of(change: impl Fn(&mut Sqe), command: FabricsCommand) -> CommandError {
        let mut sqe = command.encode(7, Sgl::EMPTY);
        change(&mut sqe);
        FabricsCommand::parse(&sqe).unwrap_err()
    }

    #[test]
    fn connect_fields_are_where_the_figure_has_them() {
        let command = FabricsCommand::Connect(Connect {
            cattr: Cattr(0b1100),
            ..CONNECT
        });
        let sqe = command.encode(0x0102, Sgl::EMPTY);
        let bytes = sqe.as_bytes();
        assert_eq!(bytes[..5], [0x7F, 0x40, 0x02, 0x01, 0x01]);
        assert_eq!(
            bytes[40..52],
            [0, 0, 1, 0, 127, 0, 0b1100, 0, 0x98, 0x3A, 0, 0]
        );
        assert!(Cattr(0b100).disable_sq_flow_control());
        assert!(Cattr(0b1000).individual_io_queue_deletion());
        assert_eq!(Cattr(0b1111_0010).priority_class(), 2);
    }

    #[test]
    fn a_connect_that_cannot_be_is_refused_where_it_is_wrong() {
        let connect = FabricsCommand::Connect(CONNECT);
        let error = error_of(|sqe| sqe.cdw10 = 1.into(), connect);
        assert_eq!(error.status, Status::CONNECT_INCOMPATIBLE_FORMAT.dnr());
        assert_eq!(error.location, ErrorLocation::sqe(40));
        let error = error_of(|sqe| sqe.cdw11 = 0.into(), connect);
        assert_eq!(error.status, Status::CONNECT_INVALID_PARAMETERS.dnr());
        assert_eq!(error.location.connect_dw0(), 44);
        // A host that asks for an impossible queue gets the refusal, not another queue.
        for sqsize in [0, 1, 65_537] {
            let command = FabricsCommand::Connect(Connect { sqsize, ..CONNECT });
            assert!(FabricsCommand::parse(&command.encode(1, Sgl::EMPTY)).is_err());
        }
    }

    #[test]
    fn the_largest_queue_is_widened() {
        let mut sqe = FabricsCommand::Connect(CONNECT).encode(1, Sgl::EMPTY);
        sqe.cdw11 = 0xFFFF.into();
        let largest = Connect {
            sqsize: 65_536,
            ..CONNECT
        };
        assert_eq!(
            FabricsCommand::parse(&sqe),
            Ok(FabricsCommand::Connect(largest))
        );
    }

    #[test]
    fn reserved_values_are_refused() {
        let error = error_of(|sqe| sqe.cdw10 = 7.into(), FabricsCommand::Disconnect);
        assert_eq!(error.status, Status::CONNECT_INCOMPATIBLE_FORMAT.dnr());
        let get = PropertyGet {
            property: Property::CAP,
            size: PropertySize::Eight,
        };
        for size in 2..8 {
            let error = error_of(
                |sqe| sqe.cdw10 = size.into(),
                FabricsCommand::PropertyGet(get),
            );
            assert_eq!(error.status, Status::INVALID_FIELD.dnr());
            assert_eq!(error.location, ErrorLocation::sqe(40));
        }
        for fctype in (0..=0xFF).filter(|code| ![0, 1, 4, 5, 6, 8].contains(code)) {
            let error = error_of(|sqe| sqe.nsid = fctype.into(), FabricsCommand::Disconnect);
            assert_eq!(error.status, Status::INVALID_OPCODE.dnr());
            assert_eq!(error.location, ErrorLocation::sqe(4));
        }
        let error = error_of(|sqe| sqe.opcode = 0x7E, FabricsCommand::Disconnect);
        assert_eq!(error.location, ErrorLocation::sqe(0));
    }

    #[test]
    fn a_property_of_four_bytes_has_no_high_half() {
        let set = PropertySet {
            property: Property::CC,
            size: PropertySize::Four,
            value: 1,
        };
        let mut sqe = FabricsCommand::PropertySet(set).encode(1, Sgl::EMPTY);
        sqe.cdw13 = u32::MAX.into();
        assert_eq!(
            FabricsCommand::parse(&sqe),
            Ok(FabricsCommand::PropertySet(set))
        );
    }

    #[test]
    fn only_three_commands_have_data() {
        let authentication = Authentication {
            spsp0: 1,
            spsp1: 1,
            secp: SECP_NVME,
            length_bytes: 64,
        };
        let transfer = |command: FabricsCommand| command.data_transfer();
        assert_eq!(
            transfer(FabricsCommand::Connect(CONNECT)),
            DataTransfer::HostToController { bytes: 1024 }
        );
        assert_eq!(
            transfer(FabricsCommand::AuthenticationSend(authentication)),
            DataTransfer::HostToController { bytes: 64 }
        );
        assert_eq!(
            transfer(FabricsCommand::AuthenticationReceive(authentication)),
            DataTransfer::ControllerToHost { bytes: 64 }
        );
        assert_eq!(transfer(FabricsCommand::Disconnect), DataTransfer::None);
    }
}
