//! Segments, chunks and the three lists of a transport header (RFC 8166, sections 3.4 and 4.3).
//!
//! The lists that arrive are checked once, against the bounds in [`crate::limits`], and stay where
//! they are: reading their elements costs no memory and cannot fail.

use crate::limits::{READ_SEGMENTS_MAX, SEGMENTS_PER_CHUNK_MAX, WRITE_CHUNKS_MAX};
use crate::xdr::{ReadError, Reader, UNIT_BYTES, WriteError, Writer};

/// Bytes of a segment.
pub const SEGMENT_BYTES: usize = 16;
/// Bytes of a segment in a read list, with its position and the word that says that it is there.
pub const READ_LIST_ENTRY_BYTES: usize = UNIT_BYTES + UNIT_BYTES + SEGMENT_BYTES;

/// A piece of registered memory of a requester (RFC 8166, section 3.4.3).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Segment {
    /// The steering tag or R_key.
    pub handle: u32,
    /// Its length.
    pub length_bytes: u32,
    /// Where it begins. It does not go past the end of 64 bits.
    pub offset: u64,
}

impl Segment {
    fn read(reader: &mut Reader<'_>) -> Result<Self, ReadError> {
        let handle = reader.u32("handle")?;
        let length_bytes = reader.u32("length")?;
        let before_offset = *reader;
        let offset = reader.u64("offset")?;
        if offset.checked_add(u64::from(length_bytes)).is_none() {
            return Err(before_offset.invalid("offset", offset, "one that its length can follow"));
        }
        Ok(Self {
            handle,
            length_bytes,
            offset,
        })
    }

    fn write(&self, writer: &mut Writer<'_>) -> Result<(), WriteError> {
        writer.u32(self.handle)?;
        writer.u32(self.length_bytes)?;
        writer.u64(self.offset)
    }

    /// Takes up to `max_bytes` from the front.
    pub(crate) fn take(&mut self, max_bytes: u32) -> Self {
        let taken = Self {
            length_bytes: self.length_bytes.min(max_bytes),
            ..*self
        };
        self.length_bytes = self.length_bytes.saturating_sub(taken.length_bytes);
        self.offset = self.offset.saturating_add(u64::from(taken.length_bytes));
        taken
    }
}

/// A segment of a read chunk. Those with the same position are one chunk (RFC 8166, section 3.4.5).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ReadSegment {
    /// Where its chunk was taken from the message, in bytes as if nothing had been.
    pub position: u32,
    /// The memory.
    pub target: Segment,
}

/// The read list: at most [`READ_SEGMENTS_MAX`] segments (RFC 8166, section 4.3.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReadList<'a> {
    /// The entries.
    bytes: &'a [u8],
}

impl<'a> ReadList<'a> {
    pub(crate) fn read(reader: &mut Reader<'a>) -> Result<Self, ReadError> {
        const FIELD: &str = "rdma_reads";
        let start = *reader;
        let mut segments = 0;
        let mut entries_end = *reader;
        while reader.bool(FIELD)? {
            next_of(&start, FIELD, &mut segments, READ_SEGMENTS_MAX)?;
            reader.u32("position")?;
            Segment::read(reader)?;
            entries_end = *reader;
        }
        Ok(Self {
            bytes: between(&start, &entries_end),
        })
    }

    /// The segments, in the order of the list.
    #[must_use]
    pub fn segments(&self) -> ReadSegments<'a> {
        ReadSegments(Reader::new(self.bytes))
    }

    /// Whether nothing is to be pulled.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

/// See [`ReadList::segments`].
#[derive(Clone, Debug)]
pub struct ReadSegments<'a>(Reader<'a>);

impl Iterator for ReadSegments<'_> {
    type Item = ReadSegment;

    fn next(&mut self) -> Option<ReadSegment> {
        self.0.u32("rdma_reads").ok()?;
        Some(ReadSegment {
            position: self.0.u32("position").ok()?,
            target: Segment::read(&mut self.0).ok()?,
        })
    }
}

/// A write chunk: an array of at most [`SEGMENTS_PER_CHUNK_MAX`] segments that are filled one after
/// the other (RFC 8166, section 3.4.6).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WriteChunk<'a> {
    /// The segments.
    bytes: &'a [u8],
}

impl<'a> WriteChunk<'a> {
    fn read(reader: &mut Reader<'a>) -> Result<Self, ReadError> {
        let count = reader.count("target", SEGMENTS_PER_CHUNK_MAX, SEGMENT_BYTES)?;
        let start = *reader;
        for _ in 0..count {
            Segment::read(reader)?;
        }
        Ok(Self {
            bytes: between(&start, reader),
        })
    }

    /// The segments. Of a chunk in a reply their lengths say how much of each was filled.
    #[must_use]
    pub fn segments(&self) -> Segments<'a> {
        Segments(Reader::new(self.bytes))
    }

    /// How many segments there are: 0 asks for the data inline (RFC 8267, section 5).
    #[must_use]
    pub const fn segment_count(&self) -> usize {
        self.bytes.len() / SEGMENT_BYTES
    }

    /// Bytes of all segments.
    #[must_use]
    pub fn length_bytes(&self) -> u64 {
        self.segments().fold(0, |sum: u64, segment| {
            sum.saturating_add(u64::from(segment.length_bytes))
        })
    }

    /// Bytes of the chunk in a header.
    pub(crate) const fn header_bytes(&self) -> usize {
        UNIT_BYTES.saturating_add(self.bytes.len())
    }

    /// Writes the chunk as the reply has it: every segment, with as much of it as was filled by
    /// `filled_bytes` in their order; 0 for those that were not reached (RFC 8166, section 4.3.2).
    pub(crate) fn write_filled(
        &self,
        writer: &mut Writer<'_>,
        filled_bytes: u32,
    ) -> Result<(), WriteError> {
        writer.count(self.segment_count())?;
        let mut left_bytes = filled_bytes;
        for mut segment in self.segments() {
            let filled = segment.take(left_bytes);
            left_bytes = left_bytes.saturating_sub(filled.length_bytes);
            filled.write(writer)?;
        }
        Ok(())
    }
}

/// See [`WriteChunk::segments`].
#[derive(Clone, Debug)]
pub struct Segments<'a>(Reader<'a>);

impl Iterator for Segments<'_> {
    type Item = Segment;

    fn next(&mut self) -> Option<Segment> {
        Segment::read(&mut self.0).ok()
    }
}

/// The write list: at most [`WRITE_CHUNKS_MAX`] chunks (RFC 8166, section 4.3.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WriteList<'a> {
    /// The entries, each behind the word that says that it is there.
    bytes: &'a [u8],
}

impl<'a> WriteList<'a> {
    pub(crate) fn read(reader: &mut Reader<'a>) -> Result<Self, ReadError> {
        const FIELD: &str = "rdma_writes";
        let start = *reader;
        let mut chunks = 0;
        let mut entries_end = *reader;
        while reader.bool(FIELD)? {
            next_of(&start, FIELD, &mut chunks, WRITE_CHUNKS_MAX)?;
            WriteChunk::read(reader)?;
            entries_end = *reader;
        }
        Ok(Self {
            bytes: between(&start, &entries_end),
        })
    }

    /// The chunks, in the order of the list.
    #[must_use]
    pub fn chunks(&self) -> WriteChunks<'a> {
        WriteChunks(Reader::new(self.bytes))
    }

    /// Bytes of the list in a header, without the word that ends it.
    pub(crate) const fn entries_bytes(&self) -> usize {
        self.bytes.len()
    }
}

/// See [`WriteList::chunks`].
#[derive(Clone, Debug)]
pub struct WriteChunks<'a>(Reader<'a>);

impl<'a> Iterator for WriteChunks<'a> {
    type Item = WriteChunk<'a>;

    fn next(&mut self) -> Option<WriteChunk<'a>> {
        self.0.u32("rdma_writes").ok()?;
        WriteChunk::read(&mut self.0).ok()
    }
}

/// The reply chunk, if there is one (RFC 8166, section 4.3.3).
pub(crate) fn read_reply_chunk<'a>(
    reader: &mut Reader<'a>,
) -> Result<Option<WriteChunk<'a>>, ReadError> {
    if reader.bool("rdma_reply")? {
        WriteChunk::read(reader).map(Some)
    } else {
        Ok(None)
    }
}

/// Writes the three lists of a call (RFC 8166, section 4.3).
///
/// # Errors
/// [`WriteError`].
pub fn write_lists(
    writer: &mut Writer<'_>,
    reads: &[ReadSegment],
    writes: &[&[Segment]],
    reply: Option<&[Segment]>,
) -> Result<(), WriteError> {
    for read in reads {
        writer.bool(true)?;
        writer.u32(read.position)?;
        read.target.write(writer)?;
    }
    writer.bool(false)?;
    for chunk in writes {
        writer.bool(true)?;
        write_chunk(writer, chunk)?;
    }
    writer.bool(false)?;
    writer.bool(reply.is_some())?;
    reply.map_or(Ok(()), |chunk| write_chunk(writer, chunk))
}

fn write_chunk(writer: &mut Writer<'_>, segments: &[Segment]) -> Result<(), WriteError> {
    writer.count(segments.len())?;
    segments
        .iter()
        .try_for_each(|segment| segment.write(writer))
}

/// Counts one more element of a list that `start` is at.
fn next_of(
    start: &Reader<'_>,
    field: &'static str,
    count: &mut u32,
    max: u32,
) -> Result<(), ReadError> {
    *count = count.saturating_add(1);
    if *count > max {
        return Err(ReadError::TooMany {
            field,
            offset: start.offset(),
            count: *count,
            max,
        });
    }
    Ok(())
}

/// What was read from `start` to `end`.
fn between<'a>(start: &Reader<'a>, end: &Reader<'a>) -> &'a [u8] {
    let length = end.offset().saturating_sub(start.offset());
    start.left().get(..length).unwrap_or_default()
}

// The list of reads fits a receive of the inline threshold that is offered.
const _: () = assert!(
    READ_SEGMENTS_MAX as usize * READ_LIST_ENTRY_BYTES
        <= crate::limits::INLINE_OFFER_BYTES as usize
);

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::xdr::to_usize;
    use std::vec::Vec;

    fn segment(handle: u32, length_bytes: u32) -> Segment {
        Segment {
            handle,
            length_bytes,
            offset: u64::from(handle) << 32,
        }
    }

    fn written(reads: &[ReadSegment], writes: &[&[Segment]], reply: Option<&[Segment]>) -> Vec<u8> {
        let mut buffer = std::vec![0; 1 << 16];
        let mut writer = Writer::new(&mut buffer);
        write_lists(&mut writer, reads, writes, reply).unwrap();
        writer.written().to_vec()
    }

    #[test]
    fn lists_are_read_as_they_were_written() {
        let reads = [(0, 1), (0, 2), (4096, 3)].map(|(position, handle)| ReadSegment {
            position,
            target: segment(handle, 100),
        });
        let first = [segment(4, 1 << 17), segment(5, 1 << 17)];
        let bytes = written(&reads, &[&first, &[], &first[..1]], Some(&first));
        let mut reader = Reader::new(&bytes);
        let list = ReadList::read(&mut reader).unwrap();
        assert_eq!(list.segments().collect::<Vec<_>>(), reads);
        let list = WriteList::read(&mut reader).unwrap();
        let chunks: Vec<_> = list.chunks().collect();
        assert_eq!(chunks.len(), 3);
        assert_eq!(chunks[0].segments().collect::<Vec<_>>(), first);
        assert_eq!(chunks[1].segment_count(), 0);
        assert_eq!(chunks[2].length_bytes(), 1 << 17);
        let reply = read_reply_chunk(&mut reader).unwrap().unwrap();
        assert_eq!(reply, chunks[0]);
        assert_eq!((reply.segment_count(), reply.length_bytes()), (2, 1 << 18));
        assert_eq!(reader.finish(), Ok(()));
        let none = written(&[], &[], None);
        assert_eq!(none, [0; 12]);
        assert!(ReadList::read(&mut Reader::new(&none)).unwrap().is_empty());
    }

    #[test]
    fn lists_are_bounded() {
        let too_many = |count: u32, max: u32| ReadError::TooMany {
            field: if max == READ_SEGMENTS_MAX {
                "rdma_reads"
            } else {
                "rdma_writes"
            },
            offset: 0,
            count,
            max,
        };
        let read = ReadSegment {
            position: 0,
            target: segment(1, 1),
        };
        for (count, fits) in [(READ_SEGMENTS_MAX, true), (READ_SEGMENTS_MAX + 1, false)] {
            let bytes = written(&std::vec![read; to_usize(count)], &[], None);
            let list = ReadList::read(&mut Reader::new(&bytes));
            assert_eq!(list.is_ok(), fits);
            if let Err(error) = list {
                assert_eq!(error, too_many(count, READ_SEGMENTS_MAX));
            }
        }
        for (count, fits) in [(WRITE_CHUNKS_MAX, true), (WRITE_CHUNKS_MAX + 1, false)] {
            let chunks: Vec<&[Segment]> = std::vec![&[]; to_usize(count)];
            let bytes = written(&[], &chunks, None);
            let list = WriteList::read(&mut Reader::new(&bytes[4..]));
            assert_eq!(list.is_ok(), fits);
            if let Err(error) = list {
                assert_eq!(error, too_many(count, WRITE_CHUNKS_MAX));
            }
        }
        for (count, fits) in [
            (SEGMENTS_PER_CHUNK_MAX, true),
            (SEGMENTS_PER_CHUNK_MAX + 1, false),
        ] {
            let segments = std::vec![segment(1, 1); to_usize(count)];
            let bytes = written(&[], &[], Some(&segments));
            let chunk = read_reply_chunk(&mut Reader::new(&bytes[8..]));
            assert_eq!(chunk.is_ok(), fits);
        }
    }

    #[test]
    fn a_count_of_segments_that_are_not_there_costs_nothing() {
        let bytes = [0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0];
        assert!(matches!(
            read_reply_chunk(&mut Reader::new(&bytes)),
            Err(ReadError::Short {
                needed_bytes: 32,
                ..
            })
        ));
    }

    #[test]
    fn a_segment_ends_within_64_bits() {
        let mut past = segment(1, 2);
        past.offset = u64::MAX - 1;
        let bytes = written(&[], &[], Some(&[past]));
        assert!(matches!(
            read_reply_chunk(&mut Reader::new(&bytes[8..])),
            Err(ReadError::Invalid {
                field: "offset",
                ..
            })
        ));
        past.length_bytes = 1;
        let bytes = written(&[], &[], Some(&[past]));
        assert!(read_reply_chunk(&mut Reader::new(&bytes[8..])).is_ok());
    }

    #[test]
    fn a_reply_says_how_much_of_each_segment_was_filled() {
        let segments = [
            segment(1, 100),
            segment(2, 0),
            segment(3, 100),
            segment(4, 5),
        ];
        let bytes = written(&[], &[], Some(&segments));
        let chunk = read_reply_chunk(&mut Reader::new(&bytes[8..]))
            .unwrap()
            .unwrap();
        for (filled_bytes, lengths) in [
            (0, [0, 0, 0, 0]),
            (99, [99, 0, 0, 0]),
            (101, [100, 0, 1, 0]),
            (205, [100, 0, 100, 5]),
        ] {
            let mut buffer = [0; 128];
            let mut writer = Writer::new(&mut buffer);
            chunk.write_filled(&mut writer, filled_bytes).unwrap();
            let filled = WriteChunk::read(&mut Reader::new(writer.written())).unwrap();
            let expected: Vec<_> = segments
                .iter()
                .zip(lengths)
                .map(|(segment, length_bytes)| Segment {
                    length_bytes,
                    ..*segment
                })
                .collect();
            assert_eq!(filled.segments().collect::<Vec<_>>(), expected);
            assert_eq!(writer.offset(), chunk.header_bytes());
        }
    }
}
