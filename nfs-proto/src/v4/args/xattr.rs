//! Arguments of the operations on extended attributes.

use core::fmt;

use crate::codec::{Decode, Encode, ReadError, Reader, Unbounded, WriteError, Writer};
use crate::limits::{XATTR_NAME_BYTES_MAX, XATTR_VALUE_BYTES_MAX};
use crate::macros::{xdr_enum, xdr_struct};
use crate::v4::status::Status;

/// The name of an extended attribute as it arrived, without "user." in front (xattrkey4; RFC 8276,
/// section 7).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct XattrName<'a>(pub &'a [u8]);

impl<'a> XattrName<'a> {
    /// The name, when it can be one: of 1 to [`XATTR_NAME_BYTES_MAX`] bytes without NUL.
    ///
    /// # Errors
    /// What the operation is to answer: NFS4ERR_INVAL, NFS4ERR_NAMETOOLONG, NFS4ERR_BADCHAR.
    pub fn name(&self) -> Result<&'a [u8], Status> {
        match self.0 {
            [] => Err(Status::INVAL),
            long if long.len() > XATTR_NAME_BYTES_MAX => Err(Status::NAMETOOLONG),
            odd if odd.contains(&0) => Err(Status::BADCHAR),
            name => Ok(name),
        }
    }
}

impl fmt::Debug for XattrName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

impl Encode for XattrName<'_> {
    fn encode(&self, to: &mut Writer<'_>) -> Result<(), WriteError> {
        to.opaque(self.0)
    }
}

impl<'a> Decode<'a> for XattrName<'a> {
    fn decode(from: &mut Reader<'a>, field: &'static str) -> Result<Self, ReadError> {
        from.opaque(field, u32::MAX).map(Self)
    }
}

xdr_enum! {
    /// Whether SETXATTR may make or replace (setxattr_option4; RFC 8276, section 8.4.2).
    pub enum SetXattrOption {
        /// Either.
        Either = 0,
        /// Make: an existing one is NFS4ERR_EXIST.
        Create = 1,
        /// Replace: a missing one is NFS4ERR_NOXATTR.
        Replace = 2,
    }
}

xdr_struct! {
    /// SETXATTR (RFC 8276, section 8.4.2).
    pub struct SetXattr<'a> {
        /// Whether it may make or replace.
        pub option: SetXattrOption,
        /// The name.
        pub key: XattrName<'a>,
        /// The value.
        pub value: Unbounded<'a>,
    }
}

impl<'a> SetXattr<'a> {
    /// The value, of at most [`XATTR_VALUE_BYTES_MAX`] bytes.
    ///
    /// # Errors
    /// NFS4ERR_XATTR2BIG.
    pub const fn bounded_value(&self) -> Result<&'a [u8], Status> {
        let value = self.value.0;
        if value.len() > XATTR_VALUE_BYTES_MAX {
            return Err(Status::XATTR2BIG);
        }
        Ok(value)
    }
}

xdr_struct! {
    /// LISTXATTRS (RFC 8276, section 8.4.3).
    pub struct ListXattrs {
        /// Where to go on: 0 for the first.
        pub cookie: u64,
        /// Most bytes of the result, with its XDR.
        pub maxcount: u32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_values_have_the_bounds_of_linux() {
        assert_eq!(XattrName(b"").name(), Err(Status::INVAL));
        assert_eq!(XattrName(b"a\0").name(), Err(Status::BADCHAR));
        assert_eq!(XattrName(&[b'a'; 250]).name(), Ok([b'a'; 250].as_slice()));
        assert_eq!(XattrName(&[b'a'; 251]).name(), Err(Status::NAMETOOLONG));
        // Unlike a component, it may have a slash or be ".".
        assert_eq!(XattrName(b"a/b").name(), Ok(b"a/b".as_slice()));
        let set = |value| SetXattr {
            option: SetXattrOption::Either,
            key: XattrName(b"a"),
            value: crate::codec::Opaque(value),
        };
        assert_eq!(
            set(&[0; 65_536]).bounded_value().map(<[u8]>::len),
            Ok(65_536)
        );
        assert_eq!(set(&[0; 65_537]).bounded_value(), Err(Status::XATTR2BIG));
    }
}
