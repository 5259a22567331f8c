//! Reads XDR.

use super::{DataItem, ReadError, ReducedItem, UNIT_BYTES, padding_bytes, to_usize};

/// Reads items from the front of a stream. Nothing is copied; a read that fails leaves the reader
/// where an unspecified part of the item was read, so that the caller stops or keeps a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    offset: usize,
    /// Those that were not read yet.
    reduced: &'a [ReducedItem],
    /// How many were.
    reduced_read: usize,
    /// Bytes they would have taken, padding included.
    reduced_bytes: u64,
}

impl<'a> Reader<'a> {
    /// A reader of a stream that has everything in it.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self::with_reduced(bytes, &[])
    }

    /// A reader of a stream from which `reduced` was taken, in ascending order of position.
    ///
    /// One out of order is not met by [`Reader::data_item`], and fails what is read behind its
    /// position, [`Reader::finish`] at the latest.
    #[must_use]
    pub const fn with_reduced(bytes: &'a [u8], reduced: &'a [ReducedItem]) -> Self {
        Self {
            bytes,
            offset: 0,
            reduced,
            reduced_read: 0,
            reduced_bytes: 0,
        }
    }

    /// Bytes of the stream that were read.
    #[must_use]
    pub const fn offset(&self) -> usize {
        self.offset
    }

    /// Bytes that would have been read if nothing had been reduced.
    #[must_use]
    pub fn position(&self) -> u64 {
        u64::try_from(self.offset)
            .unwrap_or(u64::MAX)
            .saturating_add(self.reduced_bytes)
    }

    /// The bytes that were not read yet.
    #[must_use]
    pub fn left(&self) -> &'a [u8] {
        self.bytes.get(self.offset..).unwrap_or_default()
    }

    /// How many bytes were not read yet.
    #[must_use]
    pub fn left_bytes(&self) -> usize {
        self.left().len()
    }

    /// Unsigned Integer (RFC 4506, section 4.2).
    ///
    /// # Errors
    /// [`ReadError::Short`], [`ReadError::Misplaced`].
    pub fn u32(&mut self, field: &'static str) -> Result<u32, ReadError> {
        self.array(field).map(u32::from_be_bytes)
    }

    /// Integer, or Enumeration before its values are looked at (RFC 4506, sections 4.1, 4.3).
    ///
    /// # Errors
    /// As [`Reader::u32`].
    pub fn i32(&mut self, field: &'static str) -> Result<i32, ReadError> {
        self.array(field).map(i32::from_be_bytes)
    }

    /// Unsigned Hyper Integer (RFC 4506, section 4.5).
    ///
    /// # Errors
    /// As [`Reader::u32`].
    pub fn u64(&mut self, field: &'static str) -> Result<u64, ReadError> {
        self.array(field).map(u64::from_be_bytes)
    }

    /// Hyper Integer (RFC 4506, section 4.5).
    ///
    /// # Errors
    /// As [`Reader::u32`].
    pub fn i64(&mut self, field: &'static str) -> Result<i64, ReadError> {
        self.array(field).map(i64::from_be_bytes)
    }

    /// Boolean, also whether Optional-Data follows: 0 or 1 (RFC 4506, sections 4.4, 4.19).
    ///
    /// # Errors
    /// As [`Reader::u32`], and [`ReadError::Invalid`] for another value.
    pub fn bool(&mut self, field: &'static str) -> Result<bool, ReadError> {
        let start = *self;
        match self.u32(field)? {
            0 => Ok(false),
            1 => Ok(true),
            value => Err(start.invalid(field, u64::from(value), "0 or 1")),
        }
    }

    /// Fixed-Length Opaque Data of `N` bytes, without its padding (RFC 4506, section 4.9).
    ///
    /// # Errors
    /// As [`Reader::u32`].
    pub fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], ReadError> {
        let bytes = self.opaque_fixed(field, N)?;
        Ok(bytes.first_chunk().copied().unwrap_or([0; N]))
    }

    /// Fixed-Length Opaque Data, without its padding (RFC 4506, section 4.9).
    ///
    /// # Errors
    /// As [`Reader::u32`].
    pub fn opaque_fixed(
        &mut self,
        field: &'static str,
        length_bytes: usize,
    ) -> Result<&'a [u8], ReadError> {
        let padded = length_bytes.saturating_add(padding_bytes(length_bytes));
        let needed_bytes = u64::try_from(padded).unwrap_or(u64::MAX);
        let end = self.position().saturating_add(needed_bytes);
        if let Some(next) = self.reduced.first()
            && u64::from(next.position) < end
            && padded > 0
        {
            return Err(self.misplaced(field, next.position));
        }
        let Some((item, _)) = self.left().split_at_checked(padded) else {
            return Err(self.short(field, needed_bytes));
        };
        self.offset = self.offset.saturating_add(padded);
        Ok(item.get(..length_bytes).unwrap_or_default())
    }

    /// Variable-Length Opaque Data of at most `max_bytes`, without its padding (RFC 4506, section
    /// 4.10).
    ///
    /// # Errors
    /// As [`Reader::u32`], and [`ReadError::TooMany`].
    pub fn opaque(&mut self, field: &'static str, max_bytes: u32) -> Result<&'a [u8], ReadError> {
        let count = self.bounded(field, max_bytes)?;
        self.opaque_fixed(field, to_usize(count))
    }

    /// A String of at most `max_bytes`, as bytes: XDR knows no character set (RFC 4506, section
    /// 4.11).
    ///
    /// # Errors
    /// As [`Reader::opaque`].
    pub fn string(&mut self, field: &'static str, max_bytes: u32) -> Result<&'a [u8], ReadError> {
        self.opaque(field, max_bytes)
    }

    /// Variable-length opaque data of at most `max_bytes` that is DDP-eligible: it may have been
    /// reduced (RFC 8166, section 3.4).
    ///
    /// # Errors
    /// As [`Reader::opaque`], and [`ReadError::ReducedLength`].
    pub fn data_item(
        &mut self,
        field: &'static str,
        max_bytes: u32,
    ) -> Result<DataItem<'a>, ReadError> {
        let count = self.bounded(field, max_bytes)?;
        let Some((item, later)) = self.reduced.split_first() else {
            return self
                .opaque_fixed(field, to_usize(count))
                .map(DataItem::Inline);
        };
        if u64::from(item.position) != self.position() {
            return self
                .opaque_fixed(field, to_usize(count))
                .map(DataItem::Inline);
        }
        let padded = u64::from(count).next_multiple_of(UNIT_BYTES as u64);
        // A requester should leave the padding out of a read chunk and may have it in, and the
        // stream has it in neither case (RFC 8166, section 3.4.5.2).
        if item.length_bytes != count && u64::from(item.length_bytes) != padded {
            return Err(ReadError::ReducedLength {
                field,
                position: item.position,
                count,
                length_bytes: item.length_bytes,
            });
        }
        let index = self.reduced_read;
        self.reduced = later;
        self.reduced_read = self.reduced_read.saturating_add(1);
        self.reduced_bytes = self.reduced_bytes.saturating_add(padded);
        Ok(DataItem::Reduced {
            index,
            length_bytes: count,
        })
    }

    /// The count of a Variable-Length Array of at most `max` elements (RFC 4506, section 4.13),
    /// each of which takes at least `element_min_bytes` of the stream: what is left is enough for
    /// them, so that room for so many may be made.
    ///
    /// # Errors
    /// As [`Reader::opaque`].
    pub fn count(
        &mut self,
        field: &'static str,
        max: u32,
        element_min_bytes: usize,
    ) -> Result<u32, ReadError> {
        let count = self.bounded(field, max)?;
        let needed_bytes =
            u64::from(count).saturating_mul(u64::try_from(element_min_bytes).unwrap_or(u64::MAX));
        if needed_bytes > u64::try_from(self.left_bytes()).unwrap_or(u64::MAX) {
            return Err(self.short(field, needed_bytes));
        }
        Ok(count)
    }

    /// Nothing follows: neither bytes nor a reduced item.
    ///
    /// # Errors
    /// [`ReadError::Trailing`], [`ReadError::Misplaced`].
    pub fn finish(&self) -> Result<(), ReadError> {
        if let Some(next) = self.reduced.first() {
            return Err(self.misplaced("the end of the message", next.position));
        }
        if self.left().is_empty() {
            return Ok(());
        }
        Err(ReadError::Trailing {
            offset: self.offset,
            left_bytes: self.left_bytes(),
        })
    }

    /// The error for a value that `field`, which begins here, cannot have. For a field that was
    /// read already, of a copy of the reader from before it.
    #[must_use]
    pub const fn invalid(
        &self,
        field: &'static str,
        value: u64,
        expected: &'static str,
    ) -> ReadError {
        ReadError::Invalid {
            field,
            offset: self.offset,
            value,
            expected,
        }
    }

    fn bounded(&mut self, field: &'static str, max: u32) -> Result<u32, ReadError> {
        let offset = self.offset;
        let count = self.u32(field)?;
        if count > max {
            return Err(ReadError::TooMany {
                field,
                offset,
                count,
                max,
            });
        }
        Ok(count)
    }

    fn short(&self, field: &'static str, needed_bytes: u64) -> ReadError {
        ReadError::Short {
            field,
            offset: self.offset,
            needed_bytes,
            left_bytes: self.left_bytes(),
        }
    }

    fn misplaced(&self, field: &'static str, position: u32) -> ReadError {
        ReadError::Misplaced {
            field,
            at: u32::try_from(self.position()).unwrap_or(u32::MAX),
            position,
        }
    }
}

#[cfg(test)]
mod tests;
