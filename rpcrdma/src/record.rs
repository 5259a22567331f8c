//! Records on a stream of bytes: how RPC messages are told apart over TCP (RFC 5531, section 11).
//!
//! A record is one message. It comes in fragments, each behind a word whose highest bit says
//! whether it is the last one and whose other bits are its length in bytes.

use crate::limits::{FRAGMENTS_MAX, RECORD_MAX_BYTES};
use crate::xdr::to_usize;

/// The bit of a header that marks the last fragment of a record.
const LAST_FRAGMENT: u32 = 1 << 31;

/// Bytes of a header.
pub const RECORD_MARK_BYTES: usize = 4;

/// A stream whose records cannot be taken. It says nothing about where the next one begins.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum RecordError {
    /// A record longer than there may be.
    #[error(
        "a fragment of {fragment_bytes} bytes makes a record of {record_bytes}, expected at most \
         {max_bytes}: end the connection"
    )]
    TooLong {
        /// Bytes of the fragment by its header.
        fragment_bytes: u32,
        /// Bytes of the record with it.
        record_bytes: u64,
        /// The bound.
        max_bytes: u32,
    },
    /// More fragments than there may be.
    #[error("a record has more than {max} fragments, expected at most so many: end the connection")]
    TooManyFragments {
        /// The bound.
        max: u32,
    },
    /// A fault was found before.
    #[error("the stream was faulty before, expected no more of it: end the connection")]
    Ended,
}

/// What was found at the front of the bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event<'a> {
    /// The next bytes of the record: at least one.
    Data(&'a [u8]),
    /// The record is whole.
    End,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum At {
    /// In a header, so many bytes of which were read.
    Header {
        bytes: [u8; RECORD_MARK_BYTES],
        read: usize,
    },
    /// In a fragment.
    Fragment { left_bytes: u32, last: bool },
    /// A fault was found.
    Ended,
}

const HEADER: At = At::Header {
    bytes: [0; RECORD_MARK_BYTES],
    read: 0,
};

/// Tells records apart. It keeps nothing but one header and can be left and taken up at any byte.
#[derive(Clone, Debug)]
pub struct RecordReader {
    at: At,
    max_bytes: u32,
    record_bytes: u32,
    fragments: u32,
}

impl Default for RecordReader {
    fn default() -> Self {
        Self::new(RECORD_MAX_BYTES)
    }
}

impl RecordReader {
    /// A reader at the beginning of a stream, of records of at most `max_bytes`.
    #[must_use]
    pub const fn new(max_bytes: u32) -> Self {
        Self {
            at: HEADER,
            max_bytes,
            record_bytes: 0,
            fragments: 0,
        }
    }

    /// Bytes of the record whose headers were read so far. They are within the bound before the
    /// first of them is due, so that room for so many may be made.
    #[must_use]
    pub const fn record_bytes(&self) -> u32 {
        self.record_bytes
    }

    /// Takes from the front of `bytes` what one event needs, and moves them on behind it. `None`
    /// when all of them were taken and the next event needs more.
    ///
    /// # Errors
    /// [`RecordError`].
    pub fn next<'a>(&mut self, bytes: &mut &'a [u8]) -> Result<Option<Event<'a>>, RecordError> {
        loop {
            match self.at {
                At::Ended => return Err(RecordError::Ended),
                At::Header {
                    bytes: mut header,
                    mut read,
                } => {
                    for (slot, byte) in header
                        .iter_mut()
                        .skip(read)
                        .zip(take(bytes, RECORD_MARK_BYTES.saturating_sub(read)))
                    {
                        *slot = *byte;
                        read = read.saturating_add(1);
                    }
                    if read < RECORD_MARK_BYTES {
                        self.at = At::Header {
                            bytes: header,
                            read,
                        };
                        return Ok(None);
                    }
                    self.begin_fragment(u32::from_be_bytes(header))?;
                }
                At::Fragment {
                    left_bytes: 0,
                    last,
                } => {
                    self.at = HEADER;
                    if last {
                        self.record_bytes = 0;
                        self.fragments = 0;
                        return Ok(Some(Event::End));
                    }
                }
                At::Fragment { left_bytes, last } => {
                    let data = take(bytes, to_usize(left_bytes));
                    if data.is_empty() {
                        return Ok(None);
                    }
                    let taken = u32::try_from(data.len()).unwrap_or(left_bytes);
                    self.at = At::Fragment {
                        left_bytes: left_bytes.saturating_sub(taken),
                        last,
                    };
                    return Ok(Some(Event::Data(data)));
                }
            }
        }
    }

    fn begin_fragment(&mut self, header: u32) -> Result<(), RecordError> {
        self.at = At::Ended;
        let fragment_bytes = header & !LAST_FRAGMENT;
        let record_bytes = u64::from(self.record_bytes).saturating_add(u64::from(fragment_bytes));
        self.record_bytes = match u32::try_from(record_bytes) {
            Ok(fits) if fits <= self.max_bytes => fits,
            _ => {
                return Err(RecordError::TooLong {
                    fragment_bytes,
                    record_bytes,
                    max_bytes: self.max_bytes,
                });
            }
        };
        if self.fragments == FRAGMENTS_MAX {
            return Err(RecordError::TooManyFragments { max: FRAGMENTS_MAX });
        }
        self.fragments = self.fragments.saturating_add(1);
        self.at = At::Fragment {
            left_bytes: fragment_bytes,
            last: header & LAST_FRAGMENT != 0,
        };
        Ok(())
    }
}

/// The header of a record of one fragment; `None` when a fragment cannot be so long: 2 GiB.
#[must_use]
pub fn record_mark(length_bytes: usize) -> Option<[u8; RECORD_MARK_BYTES]> {
    let length_bytes = u32::try_from(length_bytes).ok()?;
    (length_bytes < LAST_FRAGMENT).then(|| (length_bytes | LAST_FRAGMENT).to_be_bytes())
}

/// Takes up to `max_bytes` from the front.
fn take<'a>(bytes: &mut &'a [u8], max_bytes: usize) -> &'a [u8] {
    let (taken, rest) = bytes
        .split_at_checked(max_bytes.min(bytes.len()))
        .unwrap_or((bytes, &[]));
    *bytes = rest;
    taken
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec;
    use std::vec::Vec;

    fn fragment(data: &[u8], last: bool) -> Vec<u8> {
        let length = u32::try_from(data.len()).unwrap();
        let header = if last { length | LAST_FRAGMENT } else { length };
        [&header.to_be_bytes(), data].concat()
    }

    /// The records of a stream that comes in pieces of so many bytes.
    fn records(stream: &[u8], piece_bytes: usize) -> Result<Vec<Vec<u8>>, RecordError> {
        let mut reader = RecordReader::new(100);
        let (mut records, mut record) = (Vec::new(), Vec::new());
        for mut piece in stream.chunks(piece_bytes) {
            while let Some(event) = reader.next(&mut piece)? {
                match event {
                    Event::Data(data) => {
                        assert!(!data.is_empty());
                        record.extend(data);
                        assert!(record.len() <= usize::try_from(reader.record_bytes()).unwrap());
                    }
                    Event::End => records.push(std::mem::take(&mut record)),
                }
            }
            assert!(piece.is_empty());
        }
        Ok(records)
    }

    #[test]
    fn records_are_whole_wherever_the_stream_is_cut() {
        let stream = [
            fragment(&[1, 2, 3], true),
            fragment(&[4], false),
            fragment(&[], false),
            fragment(&[5, 6], true),
            fragment(&[], true),
            fragment(&[7; 100], true),
            fragment(&[8; 5], false),
        ]
        .concat();
        for piece_bytes in 1..=stream.len() {
            assert_eq!(
                records(&stream, piece_bytes),
                Ok(vec![vec![1, 2, 3], vec![4, 5, 6], vec![], vec![7; 100]])
            );
        }
    }

    #[test]
    fn a_record_is_bounded_over_all_its_fragments() {
        let stream = [fragment(&[0; 60], false), fragment(&[0; 41], true)].concat();
        for piece_bytes in [1, 64, 200] {
            assert_eq!(
                records(&stream, piece_bytes),
                Err(RecordError::TooLong {
                    fragment_bytes: 41,
                    record_bytes: 101,
                    max_bytes: 100
                })
            );
        }
        // Before any of its data is there.
        let mut reader = RecordReader::default();
        let mut header = &[0xFF; 4][..];
        assert!(matches!(
            reader.next(&mut header),
            Err(RecordError::TooLong { .. })
        ));
        assert_eq!(reader.next(&mut header), Err(RecordError::Ended));
    }

    #[test]
    fn empty_fragments_come_to_an_end() {
        let stream = vec![0; RECORD_MARK_BYTES * (usize::try_from(FRAGMENTS_MAX).unwrap() + 1)];
        assert_eq!(
            records(&stream, 4096),
            Err(RecordError::TooManyFragments { max: FRAGMENTS_MAX })
        );
    }

    #[test]
    fn a_mark_says_last_and_length() {
        assert_eq!(record_mark(40), Some([0x80, 0, 0, 40]));
        assert_eq!(record_mark(0x7FFF_FFFF), Some([0xFF; 4]));
        assert_eq!(record_mark(0x8000_0000), None);
    }
}
