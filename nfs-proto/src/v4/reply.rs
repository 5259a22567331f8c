//! COMPOUND4res: encoded result by result, within bounds.
//!
//! Source: RFC 8881, sections 16.2 and 2.10.6.4 (sizes of replies).

use crate::codec::{Encode, WriteError, Writer};
use crate::limits::{DIRECTORY_END_BYTES, FAILED_RESULT_BYTES_MAX};
use crate::v4::attr::Attributes;
use crate::v4::bitmap::Bitmap;
use crate::v4::compound::Tag;
use crate::v4::opnum::OpNum;
use crate::v4::result::OpResult;
use crate::v4::status::Status;
use crate::v4::types::{Component, Verifier};
use capstan_rpcrdma::xdr::{Mark, Place};

/// How large a reply may be, in bytes with the header of RPC and with reduced data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReplyBounds {
    /// ca_maxresponsesize of the session.
    pub max_bytes: u64,
    /// ca_maxresponsesize_cached of the session, where the reply is to be cached (sa_cachethis).
    pub max_cached_bytes: Option<u64>,
}

/// A result that does not fit. The operation is to fail with [`NoRoom::status`], which does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NoRoom {
    /// More than ca_maxresponsesize, or than the buffer has.
    #[error("a result would make the reply too big: answer NFS4ERR_REP_TOO_BIG")]
    Reply,
    /// More than ca_maxresponsesize_cached.
    #[error(
        "a result would make the reply too big for the cache: answer NFS4ERR_REP_TOO_BIG_TO_CACHE"
    )]
    Cache,
}

impl NoRoom {
    /// The status of the operation (RFC 8881, section 2.10.6.4).
    #[must_use]
    pub const fn status(self) -> Status {
        match self {
            Self::Reply => Status::REP_TOO_BIG,
            Self::Cache => Status::REP_TOO_BIG_TO_CACHE,
        }
    }
}

/// Encodes the reply of a COMPOUND behind what `to` has: the header of RPC.
///
/// Behind every result stays room for another operation to fail in.
#[derive(Debug)]
pub struct ReplyEncoder<'w, 'b> {
    to: &'w mut Writer<'b>,
    bounds: ReplyBounds,
    status_place: Place,
    count_place: Place,
    results: u32,
    status: Status,
}

impl<'w, 'b> ReplyEncoder<'w, 'b> {
    /// Begins a reply without bounds but that of the buffer; those of the session follow with
    /// [`ReplyEncoder::set_bounds`], when SEQUENCE has named it.
    ///
    /// # Errors
    /// There is not even room for the header.
    pub fn new(to: &'w mut Writer<'b>, tag: Tag<'_>) -> Result<Self, WriteError> {
        let status_place = to.open_u32()?;
        tag.encode(to)?;
        let count_place = to.open_u32()?;
        let bounds = ReplyBounds {
            max_bytes: u64::MAX,
            max_cached_bytes: None,
        };
        Ok(Self {
            to,
            bounds,
            status_place,
            count_place,
            results: 0,
            status: Status::OK,
        })
    }

    /// Bounds what follows.
    pub fn set_bounds(&mut self, bounds: ReplyBounds) {
        self.bounds = bounds;
    }

    /// Bytes that the next result can take, with its number and its status, so that another
    /// operation can still fail behind it.
    #[must_use]
    pub fn room_bytes(&self) -> u64 {
        let bound = self
            .bounds
            .max_bytes
            .min(self.bounds.max_cached_bytes.unwrap_or(u64::MAX));
        let in_bounds = bound.saturating_sub(self.to.position());
        let in_buffer = u64::try_from(self.to.left_bytes()).unwrap_or(u64::MAX);
        in_bounds
            .min(in_buffer)
            .saturating_sub(FAILED_RESULT_BYTES_MAX)
    }

    /// Whether a result of that many bytes fits, with its number, its status and data that is
    /// reduced.
    ///
    /// # Errors
    /// It does not fit the bounds.
    pub fn check_room(&self, bytes: u64) -> Result<(), NoRoom> {
        self.check_bounds(self.bytes_with(bytes))
    }

    /// Bytes of the reply with a result of that many, and another operation that fails behind it.
    #[must_use]
    pub fn bytes_with(&self, bytes: u64) -> u64 {
        let with_it = self.to.position().saturating_add(bytes);
        with_it.saturating_add(FAILED_RESULT_BYTES_MAX)
    }

    fn check_bounds(&self, bytes: u64) -> Result<(), NoRoom> {
        if bytes > self.bounds.max_bytes {
            return Err(NoRoom::Reply);
        }
        if self.bounds.max_cached_bytes.is_some_and(|max| bytes > max) {
            return Err(NoRoom::Cache);
        }
        Ok(())
    }

    /// How many results there are.
    #[must_use]
    pub const fn results(&self) -> u32 {
        self.results
    }

    /// The status of the last result; NFS4_OK without any.
    #[must_use]
    pub const fn status(&self) -> Status {
        self.status
    }

    /// Where reduced data is; its order is that of the results.
    #[must_use]
    pub fn writer(&self) -> &Writer<'b> {
        self.to
    }

    /// Encodes a result.
    ///
    /// # Errors
    /// It does not fit, and nothing was encoded.
    pub fn push(&mut self, result: &OpResult<'_>) -> Result<(), NoRoom> {
        let is_failure = matches!(result, OpResult::Failed { .. });
        let kept = if is_failure {
            0
        } else {
            FAILED_RESULT_BYTES_MAX
        };
        self.push_with(result.status(), kept, |to| result.encode(to))
    }

    /// Encodes the result of GETATTR: those of the requested attributes that are present.
    ///
    /// # Errors
    /// They do not fit, and nothing was encoded.
    pub fn push_attributes(
        &mut self,
        attributes: &Attributes<'_>,
        requested: &Bitmap,
    ) -> Result<(), NoRoom> {
        self.push_with(Status::OK, FAILED_RESULT_BYTES_MAX, |to| {
            OpNum::GETATTR.encode(to)?;
            Status::OK.encode(to)?;
            attributes.encode_requested(requested, to)
        })
    }

    fn push_with(
        &mut self,
        status: Status,
        kept: u64,
        encode: impl FnOnce(&mut Writer<'b>) -> Result<(), WriteError>,
    ) -> Result<(), NoRoom> {
        let mark = self.to.mark();
        let fits = encode(self.to)
            .map_err(|_full| NoRoom::Reply)
            .and_then(|()| self.fits(kept));
        if let Err(no_room) = fits {
            self.to.rewind(mark);
            return Err(no_room);
        }
        self.results = self.results.saturating_add(1);
        self.status = status;
        Ok(())
    }

    /// Whether what was encoded is within the bounds with `kept` bytes more.
    fn fits(&self, kept: u64) -> Result<(), NoRoom> {
        if kept > u64::try_from(self.to.left_bytes()).unwrap_or(u64::MAX) {
            return Err(NoRoom::Reply);
        }
        self.check_bounds(self.to.position().saturating_add(kept))
    }

    /// Encodes the result of READ with `max_bytes` of data at most, which `fill` puts where they
    /// belong. It says how many there are, and whether the file ends behind them.
    ///
    /// # Errors
    /// There is no room for `max_bytes`, and `fill` was not asked; or what it says. Nothing was
    /// encoded then.
    pub fn push_read<E: From<NoRoom>>(
        &mut self,
        max_bytes: u32,
        fill: impl FnOnce(&mut [u8]) -> Result<(usize, bool), E>,
    ) -> Result<(), E> {
        let bytes = READ_RESULT_BYTES.saturating_add(u64::from(max_bytes).next_multiple_of(4));
        self.check_room(bytes)?;
        let in_buffer = bytes.saturating_add(FAILED_RESULT_BYTES_MAX);
        if in_buffer > u64::try_from(self.to.left_bytes()).unwrap_or(u64::MAX) {
            return Err(NoRoom::Reply.into());
        }
        let before = self.to.mark();
        let encoded = self.encode_read(max_bytes, fill);
        if encoded.is_err() {
            self.to.rewind(before);
        } else {
            self.results = self.results.saturating_add(1);
            self.status = Status::OK;
        }
        encoded
    }

    fn encode_read<E: From<NoRoom>>(
        &mut self,
        max_bytes: u32,
        fill: impl FnOnce(&mut [u8]) -> Result<(usize, bool), E>,
    ) -> Result<(), E> {
        let no_room = |_full| NoRoom::Reply;
        self.to.u32(OpNum::READ.0).map_err(no_room)?;
        self.to.u32(Status::OK.0).map_err(no_room)?;
        let eof_place = self.to.open_u32().map_err(no_room)?;
        let mut eof = false;
        let max_bytes = usize::try_from(max_bytes).unwrap_or(usize::MAX);
        let filled = self.to.opaque_with(max_bytes, |data| {
            let (bytes, is_end) = fill(data).map_err(Filling::Failed)?;
            eof = is_end;
            Ok(bytes)
        });
        match filled {
            Ok(_bytes) => self.to.fill_u32(eof_place, u32::from(eof)),
            Err(Filling::Failed(error)) => return Err(error),
            Err(Filling::Full) => return Err(NoRoom::Reply.into()),
        }
        Ok(())
    }

    /// Begins the result of READDIR, whose entries follow one by one.
    ///
    /// # Errors
    /// Not even a result without entries fits, and nothing was encoded.
    pub fn begin_directory<'r>(
        &'r mut self,
        cookieverf: Verifier,
        maxcount: u32,
    ) -> Result<DirectoryEncoder<'r, 'w, 'b>, NoRoom> {
        let before = self.to.mark();
        let begun = [OpNum::READDIR.0, Status::OK.0]
            .into_iter()
            .try_for_each(|word| self.to.u32(word))
            .map(|()| self.to.position())
            .and_then(|start| cookieverf.encode(self.to).map(|()| start))
            .map_err(|_full| NoRoom::Reply)
            .and_then(|start| {
                self.fits(DIRECTORY_END_BYTES.saturating_add(FAILED_RESULT_BYTES_MAX))?;
                Ok(start)
            });
        match begun {
            Ok(start) => Ok(DirectoryEncoder {
                max_position: start.saturating_add(u64::from(maxcount)),
                reply: self,
                before,
                entries: 0,
            }),
            Err(no_room) => {
                self.to.rewind(before);
                Err(no_room)
            }
        }
    }

    /// Ends the reply, and gives its status: that of the last result (RFC 8881, section 16.2.3).
    pub fn finish(self) -> Status {
        let status = self.status;
        self.finish_with(status);
        status
    }

    /// Ends a reply without results with a status of its own, as NFS4ERR_MINOR_VERS_MISMATCH.
    pub fn finish_with(self, status: Status) {
        self.to.fill_u32(self.status_place, status.0);
        self.to.fill_u32(self.count_place, self.results);
    }
}

/// Bytes of a SEQUENCE's result: its number, its status, the session and five numbers.
pub const SEQUENCE_RESULT_BYTES: u64 = 4 + 4 + 16 + 5 * 4;

/// Bytes of a READ's result but for its data: its number, its status, eof and the count.
pub const READ_RESULT_BYTES: u64 = 4 + 4 + 4 + 4;

/// Why data was not put into a reply.
enum Filling<E> {
    Full,
    Failed(E),
}

impl<E> From<WriteError> for Filling<E> {
    fn from(_full: WriteError) -> Self {
        Self::Full
    }
}

/// An entry that does not fit: the entries before it are the result, and with none of them READDIR
/// fails with NFS4ERR_TOOSMALL (RFC 8881, section 18.23.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the entry does not fit: end the result before it, or answer NFS4ERR_TOOSMALL")]
pub struct EntryDoesNotFit;

/// Encodes the result of READDIR, entry by entry. One that is dropped leaves a result without end:
/// [`DirectoryEncoder::finish`] or [`DirectoryEncoder::abandon`] it.
#[derive(Debug)]
#[must_use = "the result has no end yet"]
pub struct DirectoryEncoder<'r, 'w, 'b> {
    reply: &'r mut ReplyEncoder<'w, 'b>,
    before: Mark,
    max_position: u64,
    entries: u32,
}

impl DirectoryEncoder<'_, '_, '_> {
    /// How many entries there are.
    #[must_use]
    pub const fn entries(&self) -> u32 {
        self.entries
    }

    /// Encodes an entry, with those of the requested attributes that are present.
    ///
    /// # Errors
    /// It does not fit into the reply or into maxcount, and was not encoded.
    pub fn entry(
        &mut self,
        cookie: u64,
        name: &[u8],
        attributes: &Attributes<'_>,
        requested: &Bitmap,
    ) -> Result<(), EntryDoesNotFit> {
        let to = &mut *self.reply.to;
        let before = to.mark();
        let encoded = to
            .bool(true)
            .and_then(|()| to.u64(cookie))
            .and_then(|()| Component(name).encode(to))
            .and_then(|()| attributes.encode_requested(requested, to));
        let end = to.position().saturating_add(DIRECTORY_END_BYTES);
        let kept = DIRECTORY_END_BYTES.saturating_add(FAILED_RESULT_BYTES_MAX);
        if encoded.is_err() || end > self.max_position || self.reply.fits(kept).is_err() {
            self.reply.to.rewind(before);
            return Err(EntryDoesNotFit);
        }
        self.entries = self.entries.saturating_add(1);
        Ok(())
    }

    /// Ends the result; `eof` when no entry follows in the directory.
    ///
    /// # Errors
    /// There is no room, which was kept: another writer has written there.
    pub fn finish(self, eof: bool) -> Result<(), NoRoom> {
        let ended = self
            .reply
            .to
            .bool(false)
            .and_then(|()| self.reply.to.bool(eof));
        if ended.is_err() {
            self.reply.to.rewind(self.before);
            return Err(NoRoom::Reply);
        }
        self.reply.results = self.reply.results.saturating_add(1);
        self.reply.status = Status::OK;
        Ok(())
    }

    /// Takes the result back, so that READDIR can fail.
    pub fn abandon(self) {
        self.reply.to.rewind(self.before);
    }
}
