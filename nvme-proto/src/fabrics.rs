//! Fabrics commands (opcode 7Fh): Connect, Property Get and Set, Disconnect, Authentication Send
//! and Receive, with their data and responses.
//!
//! Source: NVMe Base 2.1, section 6 (Fabrics Command Set).

use core::mem::offset_of;

use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::bits;
use crate::error::{CommandError, ErrorLocation};
use crate::nqn::{HostId, NQN_FIELD_BYTES, Nqn, NqnError};
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
    /// Priority Class of the queue: bits 1:0.
    #[must_use]
    pub const fn priority_class(self) -> u8 {
        self.0 & 0b11
    }

    /// Bit 2: the host asks for SQ flow control to be disabled.
    #[must_use]
    pub const fn disable_sq_flow_control(self) -> bool {
        self.0 & 1 << 2 != 0
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

/// Data of a Connect command on the wire, 1024 bytes. NVMe Base 2.1, section 6.3 (Connect
/// Command - Data).
#[repr(C)]
#[derive(Clone, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct ConnectData {
    /// Host Identifier.
    pub hostid: HostId,
    /// Controller Identifier: [`CNTLID_DYNAMIC`] or [`CNTLID_ANY_STATIC`] on the Admin Queue, the
    /// controller's own on an I/O queue.
    pub cntlid: U16,
    reserved18: [u8; 238],
    /// NVM Subsystem NQN.
    pub subnqn: [u8; NQN_FIELD_BYTES],
    /// Host NQN.
    pub hostnqn: [u8; NQN_FIELD_BYTES],
    reserved768: [u8; 256],
}

const _: () = {
    assert!(size_of::<ConnectData>() == 1024 && align_of::<ConnectData>() == 1);
    assert!(offset_of!(ConnectData, cntlid) == CNTLID_OFFSET as usize);
    assert!(offset_of!(ConnectData, subnqn) == SUBNQN_OFFSET as usize);
    assert!(offset_of!(ConnectData, hostnqn) == HOSTNQN_OFFSET as usize);
};

const CNTLID_OFFSET: u16 = 16;
const SUBNQN_OFFSET: u16 = 256;
const HOSTNQN_OFFSET: u16 = 512;

/// Who connects to what: the data of a Connect command, parsed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConnectParameters {
    /// Host Identifier.
    pub hostid: HostId,
    /// Controller Identifier; see [`ConnectData::cntlid`].
    pub cntlid: u16,
    /// NVM Subsystem NQN.
    pub subnqn: Nqn,
    /// Host NQN.
    pub hostnqn: Nqn,
}

impl ConnectData {
    /// Bytes of Connect data.
    pub const SIZE_BYTES: usize = 1024;

    /// Location of HOSTID, for a refusal with IPO and IATTR.
    pub const HOSTID_LOCATION: ErrorLocation = ErrorLocation::Data { offset: 0 };
    /// Location of CNTLID, for a refusal with IPO and IATTR.
    pub const CNTLID_LOCATION: ErrorLocation = ErrorLocation::Data {
        offset: CNTLID_OFFSET,
    };
    /// Location of SUBNQN, for a refusal with IPO and IATTR.
    pub const SUBNQN_LOCATION: ErrorLocation = ErrorLocation::Data {
        offset: SUBNQN_OFFSET,
    };
    /// Location of HOSTNQN, for a refusal with IPO and IATTR.
    pub const HOSTNQN_LOCATION: ErrorLocation = ErrorLocation::Data {
        offset: HOSTNQN_OFFSET,
    };

    /// The first 1024 bytes of `data`.
    ///
    /// # Errors
    /// Data SGL Length Invalid when there are fewer.
    pub fn from_data(data: &[u8]) -> Result<&Self, CommandError> {
        match Self::ref_from_prefix(data) {
            Ok((wire, _rest)) => Ok(wire),
            Err(_) => Err(CommandError {
                status: Status::DATA_SGL_LENGTH_INVALID.dnr(),
                location: ErrorLocation::sqe(32),
                field: "Connect data length",
                value: u64::try_from(data.len()).unwrap_or(u64::MAX),
                expected: "400h bytes",
            }),
        }
    }

    /// Parses the names.
    ///
    /// # Errors
    /// Connect Invalid Parameters, located at the name that is no NQN.
    pub fn parse(&self) -> Result<ConnectParameters, CommandError> {
        let name = |field, location, name| {
            Nqn::from_field(field).map_err(|error| nqn_invalid(error, location, name))
        };
        Ok(ConnectParameters {
            hostid: self.hostid,
            cntlid: self.cntlid.get(),
            subnqn: name(&self.subnqn, Self::SUBNQN_LOCATION, "SUBNQN")?,
            hostnqn: name(&self.hostnqn, Self::HOSTNQN_LOCATION, "HOSTNQN")?,
        })
    }
}

impl ConnectParameters {
    /// The data of a Connect command.
    #[must_use]
    pub fn encode(&self) -> ConnectData {
        ConnectData {
            hostid: self.hostid,
            cntlid: self.cntlid.into(),
            subnqn: self.subnqn.to_field(),
            hostnqn: self.hostnqn.to_field(),
            ..ConnectData::new_zeroed()
        }
    }
}

fn nqn_invalid(error: NqnError, location: ErrorLocation, field: &'static str) -> CommandError {
    let (value, expected) = match error {
        NqnError::Empty => (0, "a name, not an empty string"),
        NqnError::TooLong { length_bytes } => (length_bytes, "at most DFh bytes before a NUL"),
        NqnError::NotUtf8 { at } => (at, "UTF-8 (the value is the offset of the first error)"),
        NqnError::ControlCharacter { at } => (at, "no control character (the value is its offset)"),
        NqnError::Form => (0, "an NVMe Qualified Name"),
    };
    CommandError {
        status: Status::CONNECT_INVALID_PARAMETERS.dnr(),
        location,
        field,
        value: u64::try_from(value).unwrap_or(u64::MAX),
        expected,
    }
}

/// Dword 0 of a successful Connect response. NVMe Base 2.1, section 6.3 (Connect Response).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ConnectResponse {
    /// Controller Identifier of the association.
    pub cntlid: u16,
    /// AUTHREQ.ATR: authentication is required before any other command.
    pub authentication_required: bool,
    /// AUTHREQ.ASCR: authentication and a secure channel are required.
    pub secure_channel_required: bool,
}

impl ConnectResponse {
    /// From dword 0 of the completion.
    #[must_use]
    pub const fn decode(dw0: u32) -> Self {
        Self {
            cntlid: bits::low16(dw0),
            authentication_required: bits::bit(dw0, 17),
            secure_channel_required: bits::bit(dw0, 18),
        }
    }

    /// Dword 0 of the completion.
    #[must_use]
    pub const fn encode(self) -> u32 {
        self.cntlid as u32
            | bits::flag(self.authentication_required, 17)
            | bits::flag(self.secure_channel_required, 18)
    }
}
