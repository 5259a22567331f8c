//! Data and response of the Connect command.
//!
//! Source: NVMe Base 2.1, section 6.3.

use core::mem::offset_of;

use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::bits;
use crate::error::{CommandError, ErrorLocation};
use crate::nqn::{HostId, NQN_FIELD_BYTES, Nqn, NqnError};
use crate::status::Status;

/// Data of a Connect command on the wire, 1024 bytes. NVMe Base 2.1, section 6.3 (Connect
/// Command - Data).
#[repr(C)]
#[derive(Clone, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct ConnectData {
    /// Host Identifier.
    pub hostid: HostId,
    /// Controller Identifier: [`CNTLID_DYNAMIC`](super::CNTLID_DYNAMIC) or
    /// [`CNTLID_ANY_STATIC`](super::CNTLID_ANY_STATIC) on the Admin Queue, the controller's own on
    /// an I/O queue.
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

/// Which host connects to which subsystem: the data of a Connect command, parsed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConnectParameters {
    /// Host Identifier.
    pub hostid: HostId,
    /// Controller Identifier; see [`ConnectData::cntlid`].
    pub cntlid: u16,
    /// NVM Subsystem NQN.
    pub subnqn: Nqn,
    /// Host NQN; [`Nqn::NONE`] where the field is empty.
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

    /// Parses the names. A host may leave its own out: whether that will do is for the subsystem
    /// to say.
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
            hostnqn: match Nqn::from_field(&self.hostnqn) {
                Err(NqnError::Empty) => Nqn::NONE,
                _ => name(&self.hostnqn, Self::HOSTNQN_LOCATION, "HOSTNQN")?,
            },
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

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::fabrics::CNTLID_DYNAMIC;
    use std::string::ToString;

    #[test]
    fn connect_data_is_refused_at_the_name_that_is_wrong() {
        let parameters = ConnectParameters {
            hostid: HostId([3; 16]),
            cntlid: CNTLID_DYNAMIC,
            subnqn: Nqn::discovery(),
            hostnqn: Nqn::from_uuid(HostId([3; 16]).uuid()),
        };
        let good = parameters.encode();
        assert_eq!(good.parse(), Ok(parameters));
        let refused = |change: fn(&mut ConnectData)| {
            let mut data = good.clone();
            change(&mut data);
            let error = data.parse().unwrap_err();
            assert_eq!(error.status, Status::CONNECT_INVALID_PARAMETERS.dnr());
            (error.location, error.field)
        };
        let subnqn = (ConnectData::SUBNQN_LOCATION, "SUBNQN");
        let hostnqn = (ConnectData::HOSTNQN_LOCATION, "HOSTNQN");
        assert_eq!(refused(|data| data.subnqn = [b'x'; 256]), subnqn);
        assert_eq!(refused(|data| data.subnqn[5] = 0xFF), subnqn);
        assert_eq!(refused(|data| data.subnqn[0] = 0), subnqn);
        assert_eq!(refused(|data| data.hostnqn[1] = b'\n'), hostnqn);
        let mut nameless = good.clone();
        nameless.hostnqn[0] = 0;
        let host = nameless.parse().unwrap().hostnqn;
        assert_eq!(
            (host.as_str(), host.to_string().as_str()),
            ("", "(no name)")
        );
        assert_eq!(nameless.parse().unwrap().encode().hostnqn, [0; 256]);
        let short = ConnectData::from_data(&good.as_bytes()[..1023]).unwrap_err();
        assert_eq!(short.status, Status::DATA_SGL_LENGTH_INVALID.dnr());
        let longer = [good.as_bytes(), &[0xEE; 9]].concat();
        assert_eq!(ConnectData::from_data(&longer), Ok(&good));
    }

    #[test]
    fn responses_say_the_controller_and_what_it_requires() {
        let response = ConnectResponse {
            cntlid: 0x1234,
            authentication_required: true,
            secure_channel_required: false,
        };
        assert_eq!(response.encode(), 0x0002_1234);
        assert_eq!(ConnectResponse::decode(0x0002_1234), response);
    }
}
