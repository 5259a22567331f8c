//! COMPOUND4args: a header, and operations that are parsed one at a time, as the server comes to
//! them.
//!
//! Source: RFC 8881, section 16.2.

use crate::codec::{Opaque, ReadError, Reader};
use crate::limits::{LIST_ELEMENT_BYTES_MIN, TAG_BYTES_MAX};
use crate::v4::op::Op;
use crate::v4::opnum::{MinorVersion, OpNum};
use crate::v4::status::Status;

/// The tag of a COMPOUND, which its reply has as well.
pub type Tag<'a> = Opaque<'a, TAG_BYTES_MAX>;

/// The arguments of COMPOUND, of which the operations are not parsed yet.
#[derive(Clone, Copy, Debug)]
pub struct Compound<'a> {
    /// Goes back in the reply.
    pub tag: Tag<'a>,
    /// The minor version, which may be none of [`MinorVersion`].
    pub minor_version: u32,
    /// How many operations there are to be: at most a quarter of the bytes that follow, and to be
    /// compared to ca_maxoperations of the session (NFS4ERR_TOO_MANY_OPS).
    pub operations: u32,
    from: Reader<'a>,
}

impl<'a> Compound<'a> {
    /// Parses the header of what is left of a call behind its RPC header.
    ///
    /// # Errors
    /// There is none: GARBAGE_ARGS, as not even a tag can be answered.
    pub fn parse(mut from: Reader<'a>) -> Result<Self, ReadError> {
        let tag = Opaque(from.opaque("tag", TAG_BYTES_MAX)?);
        let minor_version = from.u32("minorversion")?;
        let operations = from.count("argarray", u32::MAX, LIST_ELEMENT_BYTES_MIN)?;
        Ok(Self {
            tag,
            minor_version,
            operations,
            from,
        })
    }

    /// The operations.
    ///
    /// # Errors
    /// NFS4ERR_MINOR_VERS_MISMATCH, to be answered with no results (RFC 8881, section 16.2.3).
    pub fn operations(&self) -> Result<Operations<'a>, Status> {
        let minor_version =
            MinorVersion::from_wire(self.minor_version).ok_or(Status::MINOR_VERS_MISMATCH)?;
        Ok(Operations {
            from: self.from,
            left: self.operations,
            minor_version,
        })
    }
}

/// An operation that cannot be carried out as it was sent. Its result is its number and the
/// status, and the last of the reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OpError {
    /// Its arguments, or its number, are not what the XDR says.
    #[error("{op} is malformed, answer NFS4ERR_BADXDR: {error}")]
    Malformed {
        /// The operation; [`OpNum::ILLEGAL`] where there is no number.
        op: OpNum,
        /// What is wrong.
        error: ReadError,
    },
    /// The minor version has no such operation.
    #[error(
        "operation {number} in minor version {minor_version}, expected one that it defines: answer \
         ILLEGAL with NFS4ERR_OP_ILLEGAL"
    )]
    Illegal {
        /// What was sent.
        number: u32,
        /// The minor version of the COMPOUND.
        minor_version: u32,
    },
}

impl OpError {
    /// The operation that the result is of (RFC 8881, section 18.52.3: ILLEGAL for one that is
    /// not defined).
    #[must_use]
    pub const fn op(&self) -> OpNum {
        match self {
            Self::Malformed { op, .. } => *op,
            Self::Illegal { .. } => OpNum::ILLEGAL,
        }
    }

    /// The status of the result.
    #[must_use]
    pub const fn status(&self) -> Status {
        match self {
            Self::Malformed { .. } => Status::BADXDR,
            Self::Illegal { .. } => Status::OP_ILLEGAL,
        }
    }
}

/// The operations of a COMPOUND, parsed one by one. An operation that cannot be parsed is the last
/// one.
#[derive(Clone, Debug)]
pub struct Operations<'a> {
    from: Reader<'a>,
    left: u32,
    minor_version: MinorVersion,
}

impl<'a> Operations<'a> {
    /// The minor version.
    #[must_use]
    pub const fn minor_version(&self) -> MinorVersion {
        self.minor_version
    }

    /// How many operations were not parsed yet.
    #[must_use]
    pub const fn left(&self) -> u32 {
        self.left
    }

    /// The next one's number, whatever that stands for; `None` behind the last.
    #[must_use]
    pub fn peek(&self) -> Option<OpNum> {
        let mut from = self.from;
        let number = (self.left > 0).then(|| from.u32("argop").ok()).flatten();
        number.map(OpNum)
    }

    fn parse_next(&mut self) -> Result<Op<'a>, OpError> {
        let malformed = |op| move |error| OpError::Malformed { op, error };
        let op = OpNum(self.from.u32("argop").map_err(malformed(OpNum::ILLEGAL))?);
        let illegal = OpError::Illegal {
            number: op.0,
            minor_version: self.minor_version.to_wire(),
        };
        if !op.is_defined_in(self.minor_version) {
            return Err(illegal);
        }
        Op::decode_arguments(op, &mut self.from)
            .map_err(malformed(op))?
            .ok_or(illegal)
    }

    /// That the message ends behind the last operation, and no reduced item is left. To be asked
    /// when all operations were parsed; whoever wants a message refused as a whole goes through a
    /// copy first.
    ///
    /// # Errors
    /// Something is left: a read chunk that no operation has a place for, or bytes.
    pub fn finish(&self) -> Result<(), ReadError> {
        self.from.finish()
    }
}

impl<'a> Iterator for Operations<'a> {
    type Item = Result<Op<'a>, OpError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let parsed = self.parse_next();
        if parsed.is_err() {
            self.left = 0;
        }
        Some(parsed)
    }
}
