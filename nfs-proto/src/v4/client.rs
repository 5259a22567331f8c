//! The client's side: COMPOUND encoded, and its reply decoded.

use crate::codec::{Decode, Encode, ReadError, Reader, WriteError, Writer};
use crate::limits::LIST_ELEMENT_BYTES_MIN;
use crate::limits::TAG_BYTES_MAX;
use crate::v4::compound::Tag;
use crate::v4::op::Op;
use crate::v4::result::OpResult;
use crate::v4::status::Status;
use capstan_rpcrdma::xdr::Place;

/// Encodes the arguments of COMPOUND behind what `to` has: the header of RPC.
#[derive(Debug)]
pub struct CompoundEncoder<'w, 'b> {
    to: &'w mut Writer<'b>,
    count_place: Place,
    operations: u32,
}

impl<'w, 'b> CompoundEncoder<'w, 'b> {
    /// Begins a COMPOUND.
    ///
    /// # Errors
    /// There is no room for its header.
    pub fn new(
        to: &'w mut Writer<'b>,
        tag: Tag<'_>,
        minor_version: u32,
    ) -> Result<Self, WriteError> {
        tag.encode(to)?;
        to.u32(minor_version)?;
        let count_place = to.open_u32()?;
        Ok(Self {
            to,
            count_place,
            operations: 0,
        })
    }

    /// Adds an operation.
    ///
    /// # Errors
    /// It does not fit, and was not added.
    pub fn push(&mut self, op: &Op<'_>) -> Result<(), WriteError> {
        let mark = self.to.mark();
        op.encode(self.to)
            .inspect_err(|_full| self.to.rewind(mark))?;
        self.operations = self.operations.saturating_add(1);
        self.to.fill_u32(self.count_place, self.operations);
        Ok(())
    }
}

/// The reply of COMPOUND, of which the results are not decoded yet.
#[derive(Clone, Debug)]
pub struct Reply<'a> {
    /// The status of the last result.
    pub status: Status,
    /// As in the call.
    pub tag: Tag<'a>,
    left: u32,
    from: Reader<'a>,
}

impl<'a> Reply<'a> {
    /// Decodes the header of what is left of a reply behind its RPC header.
    ///
    /// # Errors
    /// There is none.
    pub fn decode(mut from: Reader<'a>) -> Result<Self, ReadError> {
        let status = Status::decode(&mut from, "status")?;
        let tag = crate::codec::Opaque(from.opaque("tag", TAG_BYTES_MAX)?);
        let left = from.count("resarray", u32::MAX, LIST_ELEMENT_BYTES_MIN)?;
        Ok(Self {
            status,
            tag,
            left,
            from,
        })
    }

    /// That the message ends behind the last result.
    ///
    /// # Errors
    /// Something is left.
    pub fn finish(&self) -> Result<(), ReadError> {
        self.from.finish()
    }
}

/// The results, up to the first that cannot be decoded.
impl<'a> Iterator for Reply<'a> {
    type Item = Result<OpResult<'a>, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let decoded = OpResult::decode(&mut self.from, "resop");
        if decoded.is_err() {
            self.left = 0;
        }
        Some(decoded)
    }
}
