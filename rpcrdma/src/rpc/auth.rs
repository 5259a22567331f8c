//! The caller's identity: `opaque_auth`, AUTH_NONE and AUTH_SYS (RFC 5531, sections 8 and 9,
//! appendix A).

use crate::limits::{AUTH_BODY_MAX_BYTES, GIDS_MAX, MACHINE_NAME_MAX_BYTES};
use crate::open_enum;
use crate::xdr::{ReadError, Reader, WriteError, Writer, to_usize};

open_enum! {
    /// `auth_flavor` (RFC 5531, section 8.2).
    pub struct AuthFlavor {
        NONE = 0 => "AUTH_NONE",
        SYS = 1 => "AUTH_SYS",
        SHORT = 2 => "AUTH_SHORT",
        DH = 3 => "AUTH_DH",
        RPCSEC_GSS = 6 => "RPCSEC_GSS",
        /// RFC 9289, section 4.1.
        TLS = 7 => "AUTH_TLS",
    }
}

open_enum! {
    /// `auth_stat`: why a call was not permitted (RFC 5531, section 9).
    pub struct AuthStat {
        OK = 0 => "AUTH_OK",
        BADCRED = 1 => "AUTH_BADCRED",
        REJECTEDCRED = 2 => "AUTH_REJECTEDCRED",
        BADVERF = 3 => "AUTH_BADVERF",
        REJECTEDVERF = 4 => "AUTH_REJECTEDVERF",
        TOOWEAK = 5 => "AUTH_TOOWEAK",
        INVALIDRESP = 6 => "AUTH_INVALIDRESP",
        FAILED = 7 => "AUTH_FAILED",
        KERB_GENERIC = 8 => "AUTH_KERB_GENERIC",
        TIMEEXPIRE = 9 => "AUTH_TIMEEXPIRE",
        TKT_FILE = 10 => "AUTH_TKT_FILE",
        DECODE = 11 => "AUTH_DECODE",
        NET_ADDR = 12 => "AUTH_NET_ADDR",
        RPCSEC_GSS_CREDPROBLEM = 13 => "RPCSEC_GSS_CREDPROBLEM",
        RPCSEC_GSS_CTXPROBLEM = 14 => "RPCSEC_GSS_CTXPROBLEM",
    }
}

/// Supplementary groups of a caller: at most 16.
#[derive(Clone, Copy, Default)]
pub struct Gids {
    gids: [u32; GIDS_MAX as usize],
    len: usize,
}

impl Gids {
    /// The groups; `None` for more than 16.
    #[must_use]
    pub fn new(gids: &[u32]) -> Option<Self> {
        let mut all = Self::default();
        all.gids.get_mut(..gids.len())?.copy_from_slice(gids);
        all.len = gids.len();
        Some(all)
    }

    /// The groups, in the order in which they came.
    #[must_use]
    pub fn as_slice(&self) -> &[u32] {
        self.gids.get(..self.len).unwrap_or_default()
    }
}

impl PartialEq for Gids {
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl Eq for Gids {}

impl core::fmt::Debug for Gids {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.as_slice().fmt(f)
    }
}

/// `authsys_parms`: the identity that the caller claims (RFC 5531, appendix A).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AuthSys<'a> {
    /// An arbitrary number of the caller's machine.
    pub stamp: u32,
    /// The name of the caller's machine, at most 255 bytes of any kind.
    pub machine_name: &'a [u8],
    /// Effective user.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
    /// Further groups.
    pub gids: Gids,
}

impl<'a> AuthSys<'a> {
    fn read(body: &'a [u8]) -> Result<Self, ReadError> {
        let mut reader = Reader::new(body);
        let stamp = reader.u32("stamp")?;
        let machine_name = reader.opaque("machinename", MACHINE_NAME_MAX_BYTES)?;
        let uid = reader.u32("uid")?;
        let gid = reader.u32("gid")?;
        let count = reader.count("gids", GIDS_MAX, 4)?;
        let mut gids = Gids {
            len: to_usize(count),
            ..Gids::default()
        };
        for slot in gids.gids.iter_mut().take(gids.len) {
            *slot = reader.u32("gids")?;
        }
        reader.finish()?;
        Ok(Self {
            stamp,
            machine_name,
            uid,
            gid,
            gids,
        })
    }

    fn write(&self, writer: &mut Writer<'_>) -> Result<(), WriteError> {
        writer.u32(self.stamp)?;
        writer.opaque(self.machine_name)?;
        writer.u32(self.uid)?;
        writer.u32(self.gid)?;
        writer.count(self.gids.as_slice().len())?;
        for gid in self.gids.as_slice() {
            writer.u32(*gid)?;
        }
        Ok(())
    }
}

/// The caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Credentials<'a> {
    /// AUTH_NONE: without an identity (RFC 5531, section 10.1).
    None,
    /// AUTH_SYS.
    Sys(AuthSys<'a>),
}

impl<'a> Credentials<'a> {
    /// Reads `cred` and `verf` of a call.
    ///
    /// # Errors
    /// The `auth_stat` to answer: AUTH_BADCRED for a flavor other than the two or parameters that
    /// cannot be read, AUTH_BADVERF for a verifier other than an empty AUTH_NONE, which is what
    /// goes with both.
    pub(super) fn read(reader: &mut Reader<'a>) -> Result<Self, AuthStat> {
        let cred = OpaqueAuth::read(reader, "cred").map_err(|_unread| AuthStat::BADCRED)?;
        let credentials = match cred.flavor {
            // What an AUTH_NONE has for a body is not looked at (RFC 5531, section 10.1).
            AuthFlavor::NONE => Self::None,
            AuthFlavor::SYS => AuthSys::read(cred.body)
                .map(Self::Sys)
                .map_err(|_unread| AuthStat::BADCRED)?,
            _ => return Err(AuthStat::BADCRED),
        };
        let verf = OpaqueAuth::read(reader, "verf").map_err(|_unread| AuthStat::BADVERF)?;
        if verf.flavor != AuthFlavor::NONE || !verf.body.is_empty() {
            return Err(AuthStat::BADVERF);
        }
        Ok(credentials)
    }

    /// Writes `cred` and `verf` of a call.
    pub(super) fn write(&self, writer: &mut Writer<'_>) -> Result<(), WriteError> {
        match self {
            Self::None => OpaqueAuth::NONE.write(writer)?,
            Self::Sys(parameters) => {
                writer.u32(AuthFlavor::SYS.0)?;
                let length = writer.open_u32()?;
                let start = writer.offset();
                parameters.write(writer)?;
                let body_bytes = writer.offset().saturating_sub(start);
                writer.fill_u32(length, u32::try_from(body_bytes).unwrap_or(u32::MAX));
            }
        }
        OpaqueAuth::NONE.write(writer)
    }
}

/// `opaque_auth`: credentials or a verifier, with at most 400 bytes (RFC 5531, section 8.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct OpaqueAuth<'a> {
    pub(super) flavor: AuthFlavor,
    pub(super) body: &'a [u8],
}

impl<'a> OpaqueAuth<'a> {
    pub(super) const NONE: Self = Self {
        flavor: AuthFlavor::NONE,
        body: &[],
    };

    pub(super) fn read(reader: &mut Reader<'a>, field: &'static str) -> Result<Self, ReadError> {
        Ok(Self {
            flavor: AuthFlavor(reader.u32(field)?),
            body: reader.opaque(field, AUTH_BODY_MAX_BYTES)?,
        })
    }

    pub(super) fn write(&self, writer: &mut Writer<'_>) -> Result<(), WriteError> {
        writer.u32(self.flavor.0)?;
        writer.opaque(self.body)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    fn auth(flavor: u32, body: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(flavor.to_be_bytes());
        bytes.extend(u32::try_from(body.len()).unwrap().to_be_bytes());
        bytes.extend(body);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn sys(name_bytes: u32, gids: u32) -> Vec<u8> {
        let mut body = Vec::new();
        body.extend(7_u32.to_be_bytes());
        body.extend(name_bytes.to_be_bytes());
        body.resize(
            body.len()
                .saturating_add(usize::try_from(name_bytes).unwrap())
                .next_multiple_of(4),
            b'h',
        );
        body.extend(1000_u32.to_be_bytes());
        body.extend(100_u32.to_be_bytes());
        body.extend(gids.to_be_bytes());
        for gid in 0..gids {
            body.extend(gid.to_be_bytes());
        }
        body
    }

    fn read(cred: &[u8], verf: &[u8]) -> Result<(), AuthStat> {
        let bytes = [cred, verf].concat();
        Credentials::read(&mut Reader::new(&bytes)).map(|_credentials| ())
    }

    #[test]
    fn bounds_of_auth_sys_are_those_of_the_rfc() {
        let none = auth(0, &[]);
        assert_eq!(read(&auth(1, &sys(255, 16)), &none), Ok(()));
        assert_eq!(read(&auth(1, &sys(0, 0)), &none), Ok(()));
        assert_eq!(read(&auth(1, &sys(256, 0)), &none), Err(AuthStat::BADCRED));
        assert_eq!(read(&auth(1, &sys(0, 17)), &none), Err(AuthStat::BADCRED));
        let mut trailing = sys(5, 1);
        trailing.extend([0; 4]);
        assert_eq!(read(&auth(1, &trailing), &none), Err(AuthStat::BADCRED));
    }

    #[test]
    fn a_body_has_at_most_400_bytes() {
        let none = auth(0, &[]);
        assert_eq!(read(&auth(0, &[1; 400]), &none), Ok(()));
        assert_eq!(read(&auth(0, &[1; 401]), &none), Err(AuthStat::BADCRED));
        assert_eq!(read(&none, &auth(0, &[1; 401])), Err(AuthStat::BADVERF));
    }

    #[test]
    fn other_flavors_are_refused_by_the_half_they_are_in() {
        let none = auth(0, &[]);
        for flavor in [2, 3, 6, u32::MAX] {
            assert_eq!(read(&auth(flavor, &[]), &none), Err(AuthStat::BADCRED));
            assert_eq!(read(&none, &auth(flavor, &[])), Err(AuthStat::BADVERF));
        }
        assert_eq!(read(&none, &auth(0, &[1])), Err(AuthStat::BADVERF));
        assert_eq!(read(&none, &[]), Err(AuthStat::BADVERF));
        assert_eq!(read(&[], &[]), Err(AuthStat::BADCRED));
    }
}
