//! Reads XDR.

use super::{DataItem, ReducedItem, UNIT_BYTES, padding_bytes, to_usize};

/// Bytes that are not what was expected. The sender gets an answer like GARBAGE_ARGS (RFC 5531,
/// section 9) or the layer above has one of its own; nothing was kept.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum ReadError {
    /// The stream ends within an item.
    #[error(
        "{field} at offset {offset} needs {needed_bytes} bytes, {left_bytes} are left: \
         refuse the message as undecodable"
    )]
    Short {
        /// The field, by its name in the specification.
        field: &'static str,
        /// Bytes of the stream before it.
        offset: usize,
        /// Bytes it takes, padding included; of an array, the least that its elements can take.
        needed_bytes: u64,
        /// Bytes there are from `offset` on.
        left_bytes: usize,
    },
    /// A count above its bound.
    #[error(
        "{field} at offset {offset} counts {count}, expected at most {max}: \
         refuse the message as undecodable"
    )]
    TooMany {
        /// The field, by its name in the specification.
        field: &'static str,
        /// Bytes of the stream before the count.
        offset: usize,
        /// Bytes or elements it counts.
        count: u32,
        /// The bound.
        max: u32,
    },
    /// A value that the field cannot have.
    #[error(
        "{field} at offset {offset} is {value}, expected {expected}: \
         refuse the message as undecodable"
    )]
    Invalid {
        /// The field, by its name in the specification.
        field: &'static str,
        /// Bytes of the stream before it.
        offset: usize,
        /// What it held.
        value: u64,
        /// What it may hold.
        expected: &'static str,
    },
    /// Bytes behind the last item.
    #[error(
        "{left_bytes} bytes follow the last item at offset {offset}, expected none: \
         refuse the message as undecodable"
    )]
    Trailing {
        /// Bytes of the stream that were read.
        offset: usize,
        /// Bytes behind them.
        left_bytes: usize,
    },
    /// A reduced item lies where none can: within a field, at one that is not DDP-eligible, or
    /// behind everything.
    #[error(
        "a read chunk has Position {position}, where {field} is (position {at}), expected one \
         right behind the count of a DDP-eligible item: refuse the message as undecodable"
    )]
    Misplaced {
        /// The field that was read.
        field: &'static str,
        /// Its position.
        at: u32,
        /// The Position of the read chunk.
        position: u32,
    },
    /// The count of a reduced item is not that of what was moved.
    #[error(
        "{field} counts {count} bytes, its read chunk at Position {position} has {length_bytes}, \
         expected as many, with or without padding: refuse the message as undecodable"
    )]
    ReducedLength {
        /// The field, by its name in the specification.
        field: &'static str,
        /// The Position of the read chunk.
        position: u32,
        /// Bytes as the stream counts them.
        count: u32,
        /// Bytes of the read chunk.
        length_bytes: u32,
    },
}

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
mod tests {
    extern crate std;
    use super::*;
    use std::string::ToString;

    #[test]
    fn integers_are_big_endian() {
        let mut bytes = std::vec::Vec::new();
        bytes.extend([0x01, 0x02, 0x03, 0x04]);
        bytes.extend([0xFF, 0xFF, 0xFF, 0xFE]);
        bytes.extend([0, 0, 0, 1, 0, 0, 0, 2]);
        bytes.extend([0xFF; 8]);
        let mut reader = Reader::new(&bytes);
        assert_eq!(reader.u32("a"), Ok(0x0102_0304));
        assert_eq!(reader.i32("b"), Ok(-2));
        assert_eq!(reader.u64("c"), Ok(0x1_0000_0002));
        assert_eq!(reader.i64("d"), Ok(-1));
        assert_eq!(reader.finish(), Ok(()));
    }

    #[test]
    fn a_short_stream_says_what_it_lacks() {
        let mut reader = Reader::new(&[0, 0, 0]);
        assert_eq!(
            reader.u32("xid").unwrap_err().to_string(),
            "xid at offset 0 needs 4 bytes, 3 are left: refuse the message as undecodable"
        );
        let mut reader = Reader::new(&[0, 0, 0, 5, 1, 2, 3, 4, 5, 0, 0]);
        assert_eq!(
            reader.opaque("name", 255),
            Err(ReadError::Short {
                field: "name",
                offset: 4,
                needed_bytes: 8,
                left_bytes: 7
            })
        );
    }

    #[test]
    fn a_boolean_is_0_or_1() {
        for (value, read) in [(0, Some(false)), (1, Some(true)), (2, None)] {
            let bytes = [0, 0, 0, value];
            assert_eq!(Reader::new(&bytes).bool("follows").ok(), read);
        }
        assert_eq!(
            Reader::new(&[0, 0, 0, 2]).bool("follows"),
            Err(ReadError::Invalid {
                field: "follows",
                offset: 0,
                value: 2,
                expected: "0 or 1"
            })
        );
    }

    #[test]
    fn opaque_data_ends_before_its_padding_which_may_hold_anything() {
        let mut reader = Reader::new(&[0, 0, 0, 5, 1, 2, 3, 4, 5, 0xAA, 0xBB, 0xCC, 7, 8, 9, 10]);
        assert_eq!(reader.opaque("data", 5), Ok(&[1, 2, 3, 4, 5][..]));
        assert_eq!(reader.array("next"), Ok([7, 8, 9, 10]));
        assert_eq!(reader.finish(), Ok(()));
        let mut reader = Reader::new(&[7, 8, 9, 0xAA]);
        assert_eq!(reader.array("three"), Ok([7, 8, 9]));
        assert_eq!(reader.left_bytes(), 0);
    }

    #[test]
    fn counts_are_bounded_and_covered_by_what_is_left() {
        let bytes = [0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(Reader::new(&bytes).count("gids", 16, 2), Ok(3));
        assert_eq!(
            Reader::new(&bytes)
                .count("gids", 2, 1)
                .unwrap_err()
                .to_string(),
            "gids at offset 0 counts 3, expected at most 2: refuse the message as undecodable"
        );
        assert_eq!(
            Reader::new(&bytes).count("gids", 16, 4),
            Err(ReadError::Short {
                field: "gids",
                offset: 4,
                needed_bytes: 12,
                left_bytes: 8
            })
        );
        let most = [0xFF; 8];
        assert!(matches!(
            Reader::new(&most).count("gids", u32::MAX, usize::MAX),
            Err(ReadError::Short { .. })
        ));
        assert!(matches!(
            Reader::new(&most).opaque("data", u32::MAX),
            Err(ReadError::Short { .. })
        ));
    }

    /// A count of 5 at offset 4, the data reduced, and 4 bytes behind it.
    const REDUCED: [u8; 12] = [0, 0, 0, 1, 0, 0, 0, 5, 0, 0, 0, 9];

    #[test]
    fn the_stream_goes_on_right_behind_the_count_of_a_reduced_item() {
        // Without and with its padding (RFC 8166, section 3.4).
        for length_bytes in [5, 8] {
            let items = [ReducedItem {
                position: 8,
                length_bytes,
            }];
            let mut reader = Reader::with_reduced(&REDUCED, &items);
            assert_eq!(reader.u32("before"), Ok(1));
            assert_eq!(
                reader.data_item("data", 1024),
                Ok(DataItem::Reduced {
                    index: 0,
                    length_bytes: 5
                })
            );
            assert_eq!((reader.offset(), reader.position()), (8, 16));
            assert_eq!(reader.u32("behind"), Ok(9));
            assert_eq!(reader.finish(), Ok(()));
        }
    }

    #[test]
    fn the_position_of_a_second_item_counts_the_first_and_its_padding() {
        let items = [(4, 5), (16, 1)].map(|(position, length_bytes)| ReducedItem {
            position,
            length_bytes,
        });
        let bytes = [0, 0, 0, 5, 0, 0, 0, 1];
        let mut reader = Reader::with_reduced(&bytes, &items);
        assert!(reader.data_item("first", 8).is_ok());
        assert_eq!(
            reader.data_item("second", 8),
            Ok(DataItem::Reduced {
                index: 1,
                length_bytes: 1
            })
        );
        assert_eq!((reader.position(), reader.finish()), (20, Ok(())));
    }

    #[test]
    fn a_reduced_item_lies_nowhere_else() {
        // At a field, within one, behind everything, and within data that is inline.
        for position in [0, 2, 3] {
            let items = [ReducedItem {
                position,
                length_bytes: 4,
            }];
            let mut reader = Reader::with_reduced(&REDUCED, &items);
            assert_eq!(
                reader.u32("before"),
                Err(ReadError::Misplaced {
                    field: "before",
                    at: 0,
                    position
                })
            );
        }
        let items = [ReducedItem {
            position: 12,
            length_bytes: 4,
        }];
        let mut reader = Reader::with_reduced(&REDUCED, &items);
        assert_eq!(reader.opaque_fixed("all", 12), Ok(&REDUCED[..]));
        assert!(matches!(reader.finish(), Err(ReadError::Misplaced { .. })));
        let inline = [0, 0, 0, 4, 1, 2, 3, 4];
        let items = [ReducedItem {
            position: 6,
            length_bytes: 4,
        }];
        assert!(matches!(
            Reader::with_reduced(&inline, &items).data_item("data", 8),
            Err(ReadError::Misplaced { .. })
        ));
    }

    #[test]
    fn a_reduced_item_is_as_long_as_its_count_says() {
        for length_bytes in [0, 4, 6, 7, 9, u32::MAX] {
            let items = [ReducedItem {
                position: 8,
                length_bytes,
            }];
            let mut reader = Reader::with_reduced(&REDUCED, &items);
            assert_eq!(reader.u32("before"), Ok(1));
            assert_eq!(
                reader.data_item("data", 1024),
                Err(ReadError::ReducedLength {
                    field: "data",
                    position: 8,
                    count: 5,
                    length_bytes
                })
            );
        }
    }

    #[test]
    fn data_without_a_reduced_item_is_inline() {
        let bytes = [0, 0, 0, 2, 8, 9, 0, 0];
        assert_eq!(
            Reader::new(&bytes).data_item("data", 2),
            Ok(DataItem::Inline(&[8, 9]))
        );
        // A later item does not disturb it.
        let items = [ReducedItem {
            position: 12,
            length_bytes: 1,
        }];
        let bytes = [0, 0, 0, 2, 8, 9, 0, 0, 0, 0, 0, 1];
        let mut reader = Reader::with_reduced(&bytes, &items);
        assert_eq!(reader.data_item("data", 2), Ok(DataItem::Inline(&[8, 9])));
        assert!(reader.data_item("next", 1).is_ok());
        assert_eq!(reader.finish(), Ok(()));
    }
}
