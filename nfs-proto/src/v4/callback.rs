//! The callback program, as far as refusing needs it: this server sends no callbacks, and a client
//! of this crate answers each with [`refuse`].
//!
//! Source: RFC 8881, section 20; the XDR is that of RFC 5662.

use crate::codec::{Encode, Opaque, ReadError, Reader, WriteError, Writer};
use crate::limits::{LIST_ELEMENT_BYTES_MIN, TAG_BYTES_MAX};
use crate::v4::compound::Tag;
use crate::v4::status::Status;

/// Version of the callback program, whose number the client chooses (NFS_CB).
pub const VERSION: u32 = 1;
/// The procedure that does nothing (CB_NULL).
pub const PROC_CB_NULL: u32 = 0;
/// The procedure that carries everything else (CB_COMPOUND).
pub const PROC_CB_COMPOUND: u32 = 1;

/// The header of CB_COMPOUND (CB_COMPOUND4args; RFC 8881, section 20.2). Its operations are not
/// parsed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CallbackHeader<'a> {
    /// Goes back in the reply.
    pub tag: Tag<'a>,
    /// The minor version.
    pub minor_version: u32,
    /// Of NFSv4.0 alone.
    pub callback_ident: u32,
    /// How many operations follow.
    pub operations: u32,
}

impl<'a> CallbackHeader<'a> {
    /// Parses the header of what is left of a call behind its RPC header.
    ///
    /// # Errors
    /// There is none: GARBAGE_ARGS.
    pub fn parse(mut from: Reader<'a>) -> Result<Self, ReadError> {
        Ok(Self {
            tag: Opaque(from.opaque("tag", TAG_BYTES_MAX)?),
            minor_version: from.u32("minorversion")?,
            callback_ident: from.u32("callback_ident")?,
            operations: from.count("argarray", u32::MAX, LIST_ELEMENT_BYTES_MIN)?,
        })
    }
}

/// Encodes the header of a CB_COMPOUND of so many operations, which follow.
impl Encode for CallbackHeader<'_> {
    fn encode(&self, to: &mut Writer<'_>) -> Result<(), WriteError> {
        self.tag.encode(to)?;
        to.u32(self.minor_version)?;
        to.u32(self.callback_ident)?;
        to.u32(self.operations)
    }
}

/// Encodes a reply without results (CB_COMPOUND4res), as NFS4ERR_OP_NOT_IN_SESSION where there is
/// no session with a back channel.
///
/// # Errors
/// It does not fit; a part of it may have been written.
pub fn refuse(tag: Tag<'_>, status: Status, to: &mut Writer<'_>) -> Result<(), WriteError> {
    status.encode(to)?;
    tag.encode(to)?;
    to.u32(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_callback_is_refused_by_its_tag() {
        let header = CallbackHeader {
            tag: Opaque(b"cb"),
            minor_version: 1,
            callback_ident: 7,
            operations: 1,
        };
        let mut buffer = [0; 64];
        let mut writer = Writer::new(&mut buffer);
        header.encode(&mut writer).unwrap();
        // An operation is to follow, and takes its number at least.
        assert!(CallbackHeader::parse(Reader::new(writer.written())).is_err());
        writer.u32(11).unwrap();
        assert_eq!(
            CallbackHeader::parse(Reader::new(writer.written())),
            Ok(header)
        );

        let mut buffer = [0; 64];
        let mut writer = Writer::new(&mut buffer);
        refuse(header.tag, Status::OP_NOT_IN_SESSION, &mut writer).unwrap();
        assert_eq!(
            writer.written(),
            [0, 0, 0x27, 0x57, 0, 0, 0, 2, b'c', b'b', 0, 0, 0, 0, 0, 0]
        );
    }
}
