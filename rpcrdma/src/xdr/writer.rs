//! Writes XDR.

use super::{REDUCED_ITEMS_MAX, ReducedItem, UNIT_BYTES, padding_bytes};

/// An item that was not written. What was written before stays as it is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum WriteError {
    /// The buffer ends within it.
    #[error(
        "{item} at offset {offset} takes {needed_bytes} bytes, {left_bytes} are left of the \
         buffer: answer that the reply is too big"
    )]
    Full {
        /// The type of the item, by its name in RFC 4506.
        item: &'static str,
        /// Bytes before it.
        offset: usize,
        /// Bytes it takes, padding included.
        needed_bytes: usize,
        /// Bytes of the buffer from `offset` on.
        left_bytes: usize,
    },
    /// More bytes or elements than a count can say.
    #[error("{item} at offset {offset} has {length}, expected at most 4294967295: send less of it")]
    Uncountable {
        /// The type of the item, by its name in RFC 4506.
        item: &'static str,
        /// Bytes before it.
        offset: usize,
        /// Bytes or elements it has.
        length: usize,
    },
    /// One reduced item more than there may be.
    #[error(
        "reduced data at offset {offset} is one more than the {max} that a message can have: \
         write it inline, or answer that the reply is too big"
    )]
    TooManyReduced {
        /// Bytes before it.
        offset: usize,
        /// The bound.
        max: usize,
    },
}

/// A place for an unsigned integer that was left open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "the place holds 0 until it is filled"]
pub struct Place(usize);

/// How far was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mark {
    length: usize,
    reduced_len: usize,
    reduced_bytes: u64,
}

/// Writes items into a buffer, from its front on. An item that does not fit is not written at all.
#[derive(Debug)]
pub struct Writer<'a> {
    buffer: &'a mut [u8],
    written: Mark,
    reduced: [ReducedItem; REDUCED_ITEMS_MAX],
}

impl<'a> Writer<'a> {
    /// A writer that may fill all of `buffer`.
    #[must_use]
    pub fn new(buffer: &'a mut [u8]) -> Self {
        Self {
            buffer,
            written: Mark {
                length: 0,
                reduced_len: 0,
                reduced_bytes: 0,
            },
            reduced: [ReducedItem::default(); REDUCED_ITEMS_MAX],
        }
    }

    /// What was written.
    #[must_use]
    pub fn written(&self) -> &[u8] {
        self.buffer.get(..self.written.length).unwrap_or_default()
    }

    /// Bytes that were written: the offset of what comes next.
    #[must_use]
    pub const fn offset(&self) -> usize {
        self.written.length
    }

    /// Bytes that would have been written if nothing had been reduced: what the sizes that a
    /// protocol above negotiates are about.
    #[must_use]
    pub fn position(&self) -> u64 {
        u64::try_from(self.written.length)
            .unwrap_or(u64::MAX)
            .saturating_add(self.written.reduced_bytes)
    }

    /// Bytes there is room for.
    #[must_use]
    pub fn left_bytes(&self) -> usize {
        self.buffer.len().saturating_sub(self.written.length)
    }

    /// The data that is not in the stream, in ascending order of position.
    #[must_use]
    pub fn reduced_items(&self) -> &[ReducedItem] {
        self.reduced
            .get(..self.written.reduced_len)
            .unwrap_or_default()
    }

    /// How far was written, for [`Writer::rewind`].
    #[must_use]
    pub const fn mark(&self) -> Mark {
        self.written
    }

    /// Takes back what was written since `mark`, reduced items included. One that lies ahead, as
    /// after an earlier rewind, changes nothing.
    pub fn rewind(&mut self, mark: Mark) {
        if mark.length <= self.written.length && mark.reduced_len <= self.written.reduced_len {
            self.written = mark;
        }
    }

    /// Unsigned Integer (RFC 4506, section 4.2).
    ///
    /// # Errors
    /// [`WriteError::Full`].
    pub fn u32(&mut self, value: u32) -> Result<(), WriteError> {
        self.put_whole("unsigned int", value.to_be_bytes())
    }

    /// Integer or Enumeration (RFC 4506, sections 4.1, 4.3).
    ///
    /// # Errors
    /// [`WriteError::Full`].
    pub fn i32(&mut self, value: i32) -> Result<(), WriteError> {
        self.put_whole("int", value.to_be_bytes())
    }

    /// Unsigned Hyper Integer (RFC 4506, section 4.5).
    ///
    /// # Errors
    /// [`WriteError::Full`].
    pub fn u64(&mut self, value: u64) -> Result<(), WriteError> {
        self.put_whole("unsigned hyper", value.to_be_bytes())
    }

    /// Hyper Integer (RFC 4506, section 4.5).
    ///
    /// # Errors
    /// [`WriteError::Full`].
    pub fn i64(&mut self, value: i64) -> Result<(), WriteError> {
        self.put_whole("hyper", value.to_be_bytes())
    }

    /// Boolean, also whether Optional-Data follows (RFC 4506, sections 4.4, 4.19).
    ///
    /// # Errors
    /// [`WriteError::Full`].
    pub fn bool(&mut self, value: bool) -> Result<(), WriteError> {
        self.put_whole("bool", u32::from(value).to_be_bytes())
    }

    /// Fixed-Length Opaque Data and its padding (RFC 4506, section 4.9).
    ///
    /// # Errors
    /// [`WriteError::Full`].
    pub fn opaque_fixed(&mut self, data: &[u8]) -> Result<(), WriteError> {
        self.put("opaque", data)
    }

    /// Variable-Length Opaque Data: its count, the data and its padding (RFC 4506, section 4.10).
    ///
    /// # Errors
    /// [`WriteError::Full`], [`WriteError::Uncountable`].
    pub fn opaque(&mut self, data: &[u8]) -> Result<(), WriteError> {
        const ITEM: &str = "opaque";
        let start = self.mark();
        self.count_of(ITEM, data.len())?;
        self.put(ITEM, data).inspect_err(|_full| self.rewind(start))
    }

    /// As [`Writer::opaque`], of at most `max_bytes`, which `fill` puts where they belong. It says
    /// how many there are. Fewer are asked of it where there is no room for `max_bytes`.
    ///
    /// # Errors
    /// [`WriteError::Full`] when there is not even room for the count, and whatever `fill` says.
    /// Nothing is written then.
    pub fn opaque_with<E: From<WriteError>>(
        &mut self,
        max_bytes: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<usize, E>,
    ) -> Result<usize, E> {
        let start = self.mark();
        let count = self.open_u32()?;
        let offset = self.offset();
        let left_bytes = self.left_bytes();
        let room_bytes = left_bytes.saturating_sub(left_bytes % UNIT_BYTES);
        let end = offset.saturating_add(max_bytes.min(room_bytes));
        let room = self.buffer.get_mut(offset..end).unwrap_or_default();
        let max_bytes = room.len();
        let filled_bytes = match fill(room) {
            Ok(bytes) => bytes.min(max_bytes),
            Err(error) => {
                self.rewind(start);
                return Err(error);
            }
        };
        let data_end = offset.saturating_add(filled_bytes);
        let padded_end = data_end.saturating_add(padding_bytes(filled_bytes));
        if let Some(padding) = self.buffer.get_mut(data_end..padded_end) {
            padding.fill(0); // RFC 4506, section 3
        }
        self.written.length = padded_end;
        self.fill_u32(count, u32::try_from(filled_bytes).unwrap_or(u32::MAX));
        Ok(filled_bytes)
    }

    /// A String, which XDR takes as bytes (RFC 4506, section 4.11).
    ///
    /// # Errors
    /// As [`Writer::opaque`].
    pub fn string(&mut self, text: &[u8]) -> Result<(), WriteError> {
        self.opaque(text)
    }

    /// The count of a Variable-Length Array (RFC 4506, section 4.13).
    ///
    /// # Errors
    /// [`WriteError::Full`], [`WriteError::Uncountable`].
    pub fn count(&mut self, elements: usize) -> Result<(), WriteError> {
        self.count_of("array", elements)
    }

    /// The count of variable-length opaque data that is kept elsewhere (RFC 8166, section 3.4).
    /// What is written next follows right behind it. The index of it in
    /// [`Writer::reduced_items`].
    ///
    /// # Errors
    /// [`WriteError::Full`], [`WriteError::TooManyReduced`], and [`WriteError::Uncountable`] where
    /// its position is more than 32 bits can say.
    pub fn reduced(&mut self, length_bytes: u32) -> Result<usize, WriteError> {
        const ITEM: &str = "reduced opaque";
        let offset = self.offset();
        let index = self.written.reduced_len;
        let data_position = self.position().saturating_add(UNIT_BYTES as u64);
        let Ok(position) = u32::try_from(data_position) else {
            return Err(WriteError::Uncountable {
                item: ITEM,
                offset,
                length: usize::try_from(data_position).unwrap_or(usize::MAX),
            });
        };
        let Some(slot) = self.reduced.get_mut(index) else {
            return Err(WriteError::TooManyReduced {
                offset,
                max: REDUCED_ITEMS_MAX,
            });
        };
        *slot = ReducedItem {
            position,
            length_bytes,
        };
        self.put_whole(ITEM, length_bytes.to_be_bytes())?;
        self.written.reduced_len = index.saturating_add(1);
        self.written.reduced_bytes = self
            .written
            .reduced_bytes
            .saturating_add(u64::from(length_bytes).next_multiple_of(UNIT_BYTES as u64));
        Ok(index)
    }

    /// Leaves an unsigned integer open, as for a count that is known behind what it counts.
    ///
    /// # Errors
    /// [`WriteError::Full`].
    pub fn open_u32(&mut self) -> Result<Place, WriteError> {
        let place = Place(self.offset());
        self.u32(0)?;
        Ok(place)
    }

    /// Fills what [`Writer::open_u32`] left open, or overwrites what it was filled with. One that
    /// was taken back by [`Writer::rewind`] stays so.
    pub fn fill_u32(&mut self, place: Place, value: u32) {
        let end = place.0.saturating_add(UNIT_BYTES);
        if end <= self.written.length
            && let Some(bytes) = self.buffer.get_mut(place.0..end)
        {
            bytes.copy_from_slice(&value.to_be_bytes());
        }
    }

    fn count_of(&mut self, item: &'static str, length: usize) -> Result<(), WriteError> {
        let Ok(count) = u32::try_from(length) else {
            return Err(WriteError::Uncountable {
                item,
                offset: self.offset(),
                length,
            });
        };
        self.put_whole(item, count.to_be_bytes())
    }

    /// Data and its padding.
    fn put(&mut self, item: &'static str, data: &[u8]) -> Result<(), WriteError> {
        let padding = padding_bytes(data.len());
        let room = self.room(item, data.len().saturating_add(padding))?;
        let (room, pad) = room.split_at_mut(data.len());
        room.copy_from_slice(data);
        pad.fill(0); // RFC 4506, section 3
        Ok(())
    }

    /// An item of whole units, which has no padding.
    fn put_whole<const BYTES: usize>(
        &mut self,
        item: &'static str,
        data: [u8; BYTES],
    ) -> Result<(), WriteError> {
        const { assert!(BYTES.is_multiple_of(UNIT_BYTES)) };
        self.room(item, BYTES)?.copy_from_slice(&data);
        Ok(())
    }

    /// The next `needed_bytes`, which count as written.
    fn room(&mut self, item: &'static str, needed_bytes: usize) -> Result<&mut [u8], WriteError> {
        let offset = self.offset();
        let left_bytes = self.left_bytes();
        let end = offset.saturating_add(needed_bytes);
        let Some(room) = self.buffer.get_mut(offset..end) else {
            return Err(WriteError::Full {
                item,
                offset,
                needed_bytes,
                left_bytes,
            });
        };
        self.written.length = end;
        Ok(room)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::string::ToString;

    #[test]
    fn items_are_big_endian_and_padded_with_zeroes() {
        let mut buffer = [0xEE; 48];
        let mut writer = Writer::new(&mut buffer);
        writer.u32(0x0102_0304).unwrap();
        writer.i32(-2).unwrap();
        writer.u64(0x1_0000_0002).unwrap();
        writer.i64(-1).unwrap();
        writer.bool(true).unwrap();
        writer.opaque(&[1, 2, 3, 4, 5]).unwrap();
        writer.opaque_fixed(&[9]).unwrap();
        assert_eq!(
            writer.written(),
            [
                1, 2, 3, 4, 0xFF, 0xFF, 0xFF, 0xFE, 0, 0, 0, 1, 0, 0, 0, 2, 0xFF, 0xFF, 0xFF, 0xFF,
                0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 0, 1, 0, 0, 0, 5, 1, 2, 3, 4, 5, 0, 0, 0, 9, 0, 0, 0,
            ]
        );
        assert_eq!(writer.left_bytes(), 4);
    }

    #[test]
    fn what_is_filled_in_place_is_counted_and_padded() {
        let mut buffer = [0xEE; 14];
        let mut writer = Writer::new(&mut buffer);
        let filled = writer.opaque_with(100, |room| {
            assert_eq!(room.len(), 8, "whole units");
            room[..5].copy_from_slice(&[1, 2, 3, 4, 5]);
            Ok::<_, WriteError>(5)
        });
        assert_eq!(filled, Ok(5));
        assert_eq!(writer.written(), [0, 0, 0, 5, 1, 2, 3, 4, 5, 0, 0, 0]);
        let start = writer.mark();
        assert!(writer.opaque_with(4, |_| Ok::<_, WriteError>(0)).is_err());
        assert_eq!(writer.mark(), start);
    }

    #[test]
    fn what_cannot_be_filled_leaves_no_trace() {
        #[derive(PartialEq, Debug)]
        enum Why {
            Full,
            Disk,
        }
        impl From<WriteError> for Why {
            fn from(_: WriteError) -> Self {
                Self::Full
            }
        }
        let mut buffer = [0xEE; 12];
        let mut writer = Writer::new(&mut buffer);
        assert_eq!(writer.opaque_with(8, |_| Err(Why::Disk)), Err(Why::Disk));
        assert_eq!(writer.offset(), 0);
        assert_eq!(writer.opaque_with(8, |_| Ok::<_, Why>(8)), Ok(8));
        assert_eq!(writer.opaque_with(8, |_| Ok(8)), Err(Why::Full));
    }

    #[test]
    fn what_does_not_fit_leaves_no_trace() {
        let mut buffer = [0; 11];
        let mut writer = Writer::new(&mut buffer);
        writer.u32(7).unwrap();
        assert_eq!(
            writer.opaque(&[1, 2]).unwrap_err().to_string(),
            "opaque at offset 8 takes 4 bytes, 3 are left of the buffer: \
             answer that the reply is too big"
        );
        assert_eq!(writer.written(), [0, 0, 0, 7]);
        assert!(writer.u64(0).is_err());
        assert_eq!((writer.u32(8), writer.offset()), (Ok(()), 8));
    }

    #[test]
    fn a_count_is_filled_behind_what_it_counts() {
        let mut buffer = [0; 12];
        let mut writer = Writer::new(&mut buffer);
        let count = writer.open_u32().unwrap();
        writer.u32(5).unwrap();
        writer.fill_u32(count, 1);
        assert_eq!(writer.written(), [0, 0, 0, 1, 0, 0, 0, 5]);
        let before = writer.mark();
        let gone = writer.open_u32().unwrap();
        writer.rewind(before);
        writer.fill_u32(gone, 0xFFFF_FFFF);
        writer.u32(0).unwrap();
        assert_eq!(writer.written(), [0, 0, 0, 1, 0, 0, 0, 5, 0, 0, 0, 0]);
    }

    #[test]
    fn reduced_data_takes_its_count_and_a_position() {
        let mut buffer = [0; 64];
        let mut writer = Writer::new(&mut buffer);
        writer.u32(1).unwrap();
        assert_eq!(writer.reduced(5), Ok(0));
        let behind_first = writer.mark();
        assert_eq!(writer.reduced(1 << 20), Ok(1));
        assert_eq!((writer.offset(), writer.position()), (12, 20 + (1 << 20)));
        let [first, second] = [(8, 5), (20, 1 << 20)].map(|(position, length_bytes)| ReducedItem {
            position,
            length_bytes,
        });
        assert_eq!(writer.reduced_items(), [first, second]);
        writer.rewind(behind_first);
        assert_eq!(writer.reduced_items(), [first]);
        assert_eq!((writer.offset(), writer.position()), (8, 16));
    }

    #[test]
    fn a_mark_that_lies_ahead_changes_nothing() {
        let mut buffer = [0xEE; 16];
        let mut writer = Writer::new(&mut buffer);
        let start = writer.mark();
        writer.reduced(5).unwrap();
        writer.u32(7).unwrap();
        let ahead = writer.mark();
        writer.rewind(start);
        writer.u32(9).unwrap();
        writer.rewind(ahead);
        assert_eq!(writer.written(), [0, 0, 0, 9]);
        assert_eq!(writer.reduced_items(), []);
    }

    #[test]
    fn reduced_items_are_bounded() {
        let mut buffer = [0; 4 * (REDUCED_ITEMS_MAX + 1)];
        let mut writer = Writer::new(&mut buffer);
        for index in 0..REDUCED_ITEMS_MAX {
            assert_eq!(writer.reduced(4), Ok(index));
        }
        assert_eq!(
            writer.reduced(4),
            Err(WriteError::TooManyReduced {
                offset: 64,
                max: REDUCED_ITEMS_MAX
            })
        );
        let mut buffer = [0; 64];
        let mut writer = Writer::new(&mut buffer);
        assert_eq!(writer.reduced(u32::MAX), Ok(0));
        assert!(matches!(
            writer.reduced(1),
            Err(WriteError::Uncountable { .. })
        ));
        assert_eq!((writer.offset(), writer.reduced_items().len()), (4, 1));
    }
}
