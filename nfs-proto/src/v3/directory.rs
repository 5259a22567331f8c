//! READDIR and READDIRPLUS encoded entry by entry, within the bytes that the client gave.
//!
//! Source: RFC 1813, sections 3.3.16 and 3.3.17.

use capstan_rpcrdma::xdr::Mark;

use crate::codec::{Encode, WriteError, Writer};
use crate::limits::DIRECTORY_END_BYTES;
use crate::v3::results::{DirEntry, DirEntryPlus};
use crate::v3::status::Status;
use crate::v3::types::{PostOpAttr, Verifier};

/// An entry that does not fit: the entries before it are the result, and without any the procedure
/// fails with NFS3ERR_TOOSMALL.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the entry does not fit: end the result before it, or answer NFS3ERR_TOOSMALL")]
pub struct EntryDoesNotFit;

/// The result of READDIR or READDIRPLUS. Without [`DirectoryEncoder::finish`] or
/// [`DirectoryEncoder::abandon`] it has no end.
#[derive(Debug)]
#[must_use = "the result has no end yet"]
pub struct DirectoryEncoder<'w, 'b> {
    to: &'w mut Writer<'b>,
    before: Mark,
    max_position: u64,
    entries: u32,
}

impl<'w, 'b> DirectoryEncoder<'w, 'b> {
    /// Begins a result, whose READDIR3resok or READDIRPLUS3resok has at most `max_bytes`.
    ///
    /// # Errors
    /// The buffer has no room for a result without entries; nothing was encoded.
    pub fn new(
        to: &'w mut Writer<'b>,
        dir_attributes: PostOpAttr,
        cookieverf: Verifier,
        max_bytes: u32,
    ) -> Result<Self, WriteError> {
        let before = to.mark();
        let begun = Status::OK
            .encode(to)
            .map(|()| to.position())
            .and_then(|start| dir_attributes.encode(to).map(|()| start))
            .and_then(|start| cookieverf.encode(to).map(|()| start));
        // The end, which is written again by `finish`, is known to fit from here on.
        let behind = to.mark();
        let begun = begun.and_then(|start| to.u64(0).map(|()| start));
        to.rewind(if begun.is_ok() { behind } else { before });
        let max_position = begun?.saturating_add(u64::from(max_bytes));
        Ok(Self {
            to,
            before,
            max_position,
            entries: 0,
        })
    }

    /// How many entries there are.
    #[must_use]
    pub const fn entries(&self) -> u32 {
        self.entries
    }

    /// Encodes an entry of READDIR.
    ///
    /// # Errors
    /// It does not fit, and was not encoded.
    pub fn entry(&mut self, entry: &DirEntry<'_>) -> Result<(), EntryDoesNotFit> {
        self.push(entry)
    }

    /// Encodes an entry of READDIRPLUS.
    ///
    /// # Errors
    /// It does not fit, and was not encoded.
    pub fn entry_plus(&mut self, entry: &DirEntryPlus<'_>) -> Result<(), EntryDoesNotFit> {
        self.push(entry)
    }

    fn push(&mut self, entry: &impl Encode) -> Result<(), EntryDoesNotFit> {
        let before = self.to.mark();
        let encoded = self.to.bool(true).and_then(|()| entry.encode(self.to));
        let end = self.to.position().saturating_add(DIRECTORY_END_BYTES);
        let left_bytes = u64::try_from(self.to.left_bytes()).unwrap_or(u64::MAX);
        if encoded.is_err() || end > self.max_position || left_bytes < DIRECTORY_END_BYTES {
            self.to.rewind(before);
            return Err(EntryDoesNotFit);
        }
        self.entries = self.entries.saturating_add(1);
        Ok(())
    }

    /// Ends the result; `eof` when no entry follows in the directory.
    ///
    /// # Errors
    /// None: its room was kept.
    pub fn finish(self, eof: bool) -> Result<(), WriteError> {
        self.to.bool(false)?;
        self.to.bool(eof)
    }

    /// Takes the result back, its status included.
    pub fn abandon(self) {
        self.to.rewind(self.before);
    }
}
