//! What a responder pulls before it can look at a call: which segments go into which buffer, and
//! where what lands there belongs in the message.
//!
//! * A read chunk at position zero is the whole message (RFC 8166, section 3.5.3). It takes one
//!   buffer.
//! * Any other read chunk is one data item that was reduced (RFC 8166, section 3.4.5). It takes a
//!   buffer of its own, so that the data of a WRITE lies at the beginning of that and goes to a
//!   file as it is. The stream is not put together again: [`Reader::with_reduced`] goes on behind
//!   it.
//!
//! [`Reader::with_reduced`]: crate::xdr::Reader::with_reduced

use crate::chunks::{ReadSegment, ReadSegments, Segment};
use crate::header::{ErrorReply, Header, Procedure};
use crate::limits::{CALL_MAX_BYTES, DATA_MAX_BYTES, READ_CHUNKS_MAX};
use crate::xdr::{ReducedItem, UNIT_BYTES};

/// Read chunks that do not make a message. All of it is answered with ERR_CHUNK (RFC 8166, section
/// 4.5.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum CallChunkError {
    /// RDMA_NOMSG without a message.
    #[error(
        "RDMA_NOMSG of XID {xid:08x} has no read chunk at position 0, expected the message there: \
         answer ERR_CHUNK"
    )]
    NoMessage {
        /// The XID of the call.
        xid: u32,
    },
    /// RDMA_MSG with a second message.
    #[error(
        "RDMA_MSG of XID {xid:08x} has a read chunk at position 0, expected the message inline: \
         answer ERR_CHUNK"
    )]
    TwoMessages {
        /// The XID of the call.
        xid: u32,
    },
    /// A position where no data item can begin.
    #[error(
        "a read chunk of XID {xid:08x} has position {position}, expected {expected}: \
         answer ERR_CHUNK"
    )]
    Position {
        /// The XID of the call.
        xid: u32,
        /// The position.
        position: u32,
        /// What it may be.
        expected: &'static str,
    },
    /// More data items than there may be.
    #[error(
        "XID {xid:08x} has more read chunks than {max}, expected at most so many: answer ERR_CHUNK"
    )]
    TooManyChunks {
        /// The XID of the call.
        xid: u32,
        /// The bound.
        max: usize,
    },
    /// A chunk, or the whole message, that is longer than there may be.
    #[error(
        "{what} of XID {xid:08x} has {length_bytes} bytes, expected at most {max_bytes}: \
         answer ERR_CHUNK"
    )]
    TooLong {
        /// The XID of the call.
        xid: u32,
        /// Which of them.
        what: &'static str,
        /// Its bytes.
        length_bytes: u64,
        /// The bound.
        max_bytes: u32,
    },
}

impl CallChunkError {
    /// What a responder answers.
    #[must_use]
    pub const fn answer(&self) -> ErrorReply {
        match self {
            Self::NoMessage { xid }
            | Self::TwoMessages { xid }
            | Self::Position { xid, .. }
            | Self::TooManyChunks { xid, .. }
            | Self::TooLong { xid, .. } => ErrorReply::chunk(*xid),
        }
    }
}

/// Where the message of a call is, without what was reduced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallMessage<'a> {
    /// It came with the header.
    Inline(&'a [u8]),
    /// It is pulled, so many bytes.
    Pulled {
        /// Its bytes.
        length_bytes: u32,
    },
}

/// A buffer that pulls fill.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Destination {
    /// The message: [`CallMessage::Pulled`].
    Message,
    /// The item with this index in [`CallPlan::items`].
    Item(usize),
}

/// One RDMA READ: all of `from` into the buffer at `at_bytes`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Pull {
    /// The buffer.
    pub into: Destination,
    /// Where in it.
    pub at_bytes: u32,
    /// What is pulled: at least one byte.
    pub from: Segment,
}

/// What a call takes before it can be looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CallPlan<'a> {
    header: Header<'a>,
    message: CallMessage<'a>,
    items: Items,
}

/// Data items, in ascending order of position.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Items {
    all: [ReducedItem; READ_CHUNKS_MAX],
    len: usize,
}

impl Items {
    fn as_slice(&self) -> &[ReducedItem] {
        self.all.get(..self.len).unwrap_or_default()
    }

    fn index_of(&self, position: u32) -> Result<usize, usize> {
        self.as_slice()
            .binary_search_by_key(&position, |item| item.position)
    }

    /// The item at `position`, made where there is none. `None` when there are too many.
    fn at(&mut self, position: u32) -> Option<&mut ReducedItem> {
        let index = match self.index_of(position) {
            Ok(index) => index,
            Err(index) => {
                let end = self.len.checked_add(1)?;
                let later = self.all.get_mut(index..end)?;
                later.rotate_right(1);
                *later.first_mut()? = ReducedItem {
                    position,
                    length_bytes: 0,
                };
                self.len = end;
                index
            }
        };
        self.all.get_mut(index)
    }
}

impl<'a> CallPlan<'a> {
    /// What the call behind `header` takes. Everything it says is within [`CALL_MAX_BYTES`] and
    /// [`DATA_MAX_BYTES`] before a buffer is taken.
    ///
    /// # Errors
    /// [`CallChunkError`].
    pub fn new(header: &Header<'a>) -> Result<Self, CallChunkError> {
        let xid = header.xid;
        let mut items = Items::default();
        let mut message_bytes = None;
        for segment in header.reads.segments() {
            let length_bytes = segment.target.length_bytes;
            if segment.position == 0 {
                let sum = sum(message_bytes.unwrap_or(0), length_bytes);
                message_bytes = Some(within(
                    xid,
                    "the read chunk at position 0",
                    sum,
                    CALL_MAX_BYTES,
                )?);
            } else {
                let item = items
                    .at(segment.position)
                    .ok_or(CallChunkError::TooManyChunks {
                        xid,
                        max: READ_CHUNKS_MAX,
                    })?;
                let sum = sum(item.length_bytes, length_bytes);
                item.length_bytes = within(xid, "a read chunk", sum, DATA_MAX_BYTES)?;
            }
        }
        let message = match (header.procedure, message_bytes) {
            (Procedure::Msg, None) => CallMessage::Inline(header.inline),
            (Procedure::NoMsg, Some(length_bytes)) => CallMessage::Pulled { length_bytes },
            (Procedure::Msg, Some(_)) => return Err(CallChunkError::TwoMessages { xid }),
            (Procedure::NoMsg, None) => return Err(CallChunkError::NoMessage { xid }),
        };
        let plan = Self {
            header: *header,
            message,
            items,
        };
        plan.check_positions()?;
        Ok(plan)
    }

    /// Each item begins within the message, at a unit, and behind the one before it; and with all
    /// of them put back the message is within its bound.
    fn check_positions(&self) -> Result<(), CallChunkError> {
        let xid = self.header.xid;
        let message_bytes = match self.message {
            CallMessage::Inline(bytes) => u64::try_from(bytes.len()).unwrap_or(u64::MAX),
            CallMessage::Pulled { length_bytes } => u64::from(length_bytes),
        };
        let mut reduced_bytes = 0_u64;
        for item in self.items() {
            let wrong = |expected| CallChunkError::Position {
                xid,
                position: item.position,
                expected,
            };
            // RFC 8166, section 3.4.5.2.
            if !u64::from(item.position).is_multiple_of(UNIT_BYTES as u64) {
                return Err(wrong("a multiple of 4"));
            }
            match u64::from(item.position).checked_sub(reduced_bytes) {
                Some(offset) if offset <= message_bytes => {}
                _ => return Err(wrong("one within the message and behind other chunks")),
            }
            reduced_bytes = reduced_bytes.saturating_add(padded_bytes(item));
        }
        let whole_bytes = message_bytes.saturating_add(reduced_bytes);
        within(
            xid,
            "the message with its read chunks",
            whole_bytes,
            CALL_MAX_BYTES,
        )?;
        Ok(())
    }

    /// Where the message is.
    #[must_use]
    pub const fn message(&self) -> CallMessage<'a> {
        self.message
    }

    /// The data items that were reduced, in ascending order of position: what
    /// [`crate::xdr::Reader::with_reduced`] takes beside the message. Each takes a buffer of its
    /// length.
    #[must_use]
    pub fn items(&self) -> &[ReducedItem] {
        self.items.as_slice()
    }

    /// The RDMA READs, in the order of the read list, so many at a time as the connection may have.
    #[must_use]
    pub fn pulls(&self) -> Pulls<'a> {
        Pulls {
            segments: self.header.reads.segments(),
            items: self.items,
            message_filled_bytes: 0,
            filled_bytes: [0; READ_CHUNKS_MAX],
        }
    }
}

/// See [`CallPlan::pulls`].
#[derive(Clone, Debug)]
pub struct Pulls<'a> {
    segments: ReadSegments<'a>,
    items: Items,
    message_filled_bytes: u32,
    filled_bytes: [u32; READ_CHUNKS_MAX],
}

impl Iterator for Pulls<'_> {
    type Item = Pull;

    fn next(&mut self) -> Option<Pull> {
        loop {
            let ReadSegment {
                position,
                target: from,
            } = self.segments.next()?;
            if from.length_bytes == 0 {
                continue;
            }
            let (into, filled_bytes) = if position == 0 {
                (Destination::Message, &mut self.message_filled_bytes)
            } else {
                let index = self.items.index_of(position).ok()?;
                (Destination::Item(index), self.filled_bytes.get_mut(index)?)
            };
            let at_bytes = *filled_bytes;
            *filled_bytes = at_bytes.saturating_add(from.length_bytes);
            return Some(Pull {
                into,
                at_bytes,
                from,
            });
        }
    }
}

/// Bytes that an item takes in the stream, padding included.
fn padded_bytes(item: &ReducedItem) -> u64 {
    u64::from(item.length_bytes).next_multiple_of(UNIT_BYTES as u64)
}

fn sum(a: u32, b: u32) -> u64 {
    u64::from(a).saturating_add(u64::from(b))
}

fn within(
    xid: u32,
    what: &'static str,
    length_bytes: u64,
    max_bytes: u32,
) -> Result<u32, CallChunkError> {
    match u32::try_from(length_bytes) {
        Ok(fits) if fits <= max_bytes => Ok(fits),
        _ => Err(CallChunkError::TooLong {
            xid,
            what,
            length_bytes,
            max_bytes,
        }),
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::chunks::write_lists;
    use crate::header::{Received, write_fixed};
    use crate::xdr::{DataItem, Reader, Writer};
    use std::vec;
    use std::vec::Vec;

    fn read(position: u32, handle: u32, length_bytes: u32) -> ReadSegment {
        let offset = u64::from(handle) << 20;
        ReadSegment {
            position,
            target: Segment {
                handle,
                length_bytes,
                offset,
            },
        }
    }

    fn call(procedure: Procedure, reads: &[ReadSegment], inline: &[u8]) -> Vec<u8> {
        let mut buffer = vec![0; 1 << 16];
        let mut writer = Writer::new(&mut buffer);
        write_fixed(&mut writer, 7, 32, procedure).unwrap();
        write_lists(&mut writer, reads, &[], None).unwrap();
        writer.opaque_fixed(inline).unwrap();
        writer.written().to_vec()
    }

    fn plan(bytes: &[u8]) -> Result<CallPlan<'_>, CallChunkError> {
        match Received::read(bytes) {
            Ok(Received::Message(header)) => CallPlan::new(&header),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_plain_call_takes_no_pull() {
        let bytes = call(Procedure::Msg, &[], &[1, 2, 3, 4]);
        let plan = plan(&bytes).unwrap();
        assert_eq!(plan.message(), CallMessage::Inline(&[1, 2, 3, 4]));
        assert_eq!((plan.items(), plan.pulls().count()), (&[][..], 0));
    }

    #[test]
    fn data_of_several_segments_lands_in_one_buffer_of_its_own() {
        // A count of 205 at 4, the data at 8, and a word behind it.
        let inline = [0, 0, 0, 1, 0, 0, 0, 205, 0, 0, 0, 9];
        let reads = [read(8, 1, 100), read(8, 2, 0), read(8, 3, 105)];
        let bytes = call(Procedure::Msg, &reads, &inline);
        let plan = plan(&bytes).unwrap();
        assert_eq!(plan.message(), CallMessage::Inline(&inline));
        let pulls: Vec<_> = plan.pulls().collect();
        let pull = |at_bytes, from: &ReadSegment| Pull {
            into: Destination::Item(0),
            at_bytes,
            from: from.target,
        };
        assert_eq!(pulls, [pull(0, &reads[0]), pull(100, &reads[2])]);
        let mut reader = Reader::with_reduced(&inline, plan.items());
        assert_eq!(reader.u32("before"), Ok(1));
        assert_eq!(
            reader.data_item("data", 1024),
            Ok(DataItem::Reduced {
                index: 0,
                length_bytes: 205
            })
        );
        assert_eq!((reader.u32("behind"), reader.finish()), (Ok(9), Ok(())));
    }

    #[test]
    fn a_whole_message_is_pulled_and_may_have_data_apart() {
        let reads = [read(0, 1, 100), read(8, 3, 4096), read(0, 2, 60)];
        let bytes = call(Procedure::NoMsg, &reads, &[]);
        let plan = plan(&bytes).unwrap();
        assert_eq!(plan.message(), CallMessage::Pulled { length_bytes: 160 });
        let pulls: Vec<_> = plan
            .pulls()
            .map(|pull| (pull.into, pull.at_bytes, pull.from.handle))
            .collect();
        assert_eq!(
            pulls,
            [
                (Destination::Message, 0, 1),
                (Destination::Item(0), 0, 3),
                (Destination::Message, 100, 2),
            ]
        );
    }

    #[test]
    fn items_are_in_the_order_of_their_positions() {
        let inline = [0; 64];
        let reads = [
            read(40, 1, 5),
            read(12, 2, 7),
            read(40, 3, 5),
            read(28, 4, 8),
        ];
        let bytes = call(Procedure::Msg, &reads, &inline);
        let plan = plan(&bytes).unwrap();
        let items: Vec<_> = plan
            .items()
            .iter()
            .map(|item| (item.position, item.length_bytes))
            .collect();
        assert_eq!(items, [(12, 7), (28, 8), (40, 10)]);
        let pulls: Vec<_> = plan
            .pulls()
            .map(|pull| (pull.into, pull.at_bytes, pull.from.handle))
            .collect();
        assert_eq!(
            pulls,
            [
                (Destination::Item(2), 0, 1),
                (Destination::Item(0), 0, 2),
                (Destination::Item(2), 5, 3),
                (Destination::Item(1), 0, 4),
            ]
        );
    }

    fn refused(procedure: Procedure, reads: &[ReadSegment], inline: &[u8]) -> CallChunkError {
        let bytes = call(procedure, reads, inline);
        let error = plan(&bytes).unwrap_err();
        assert_eq!(error.answer(), ErrorReply::chunk(7));
        error
    }

    #[test]
    fn a_call_has_one_message() {
        assert_eq!(
            refused(Procedure::NoMsg, &[], &[1, 2, 3, 4]),
            CallChunkError::NoMessage { xid: 7 }
        );
        assert_eq!(
            refused(Procedure::NoMsg, &[read(8, 1, 4)], &[]),
            CallChunkError::NoMessage { xid: 7 }
        );
        assert_eq!(
            refused(Procedure::Msg, &[read(0, 1, 4)], &[]),
            CallChunkError::TwoMessages { xid: 7 }
        );
    }

    #[test]
    fn positions_are_within_the_message() {
        // Not at a unit, past the end, within an earlier item.
        for (reads, wrong) in [
            (&[read(6, 1, 4)][..], 6),
            (&[read(16, 1, 4)], 16),
            (&[read(8, 1, 100), read(12, 2, 4)], 12),
            (&[read(8, 1, 100), read(108 + 8, 2, 4)], 116),
            (&[read(u32::MAX - 3, 2, 4)], u32::MAX - 3),
        ] {
            assert!(matches!(
                refused(Procedure::Msg, reads, &[0; 12]),
                CallChunkError::Position { position, .. } if position == wrong
            ));
        }
        let bytes = call(
            Procedure::Msg,
            &[read(8, 1, 100), read(112, 2, 4)],
            &[0; 12],
        );
        assert!(plan(&bytes).is_ok());
    }

    #[test]
    fn lengths_and_numbers_are_bounded() {
        let most = read(8, 1, DATA_MAX_BYTES);
        assert!(plan(&call(Procedure::Msg, &[most], &[0; 12])).is_ok());
        for reads in [
            &[read(8, 1, DATA_MAX_BYTES + 1)][..],
            &[most, read(8, 2, 1)],
            &[read(8, 1, u32::MAX), read(8, 2, u32::MAX)],
            // Two of which each is within its bound.
            &[most, read(8 + DATA_MAX_BYTES, 2, DATA_MAX_BYTES)],
        ] {
            assert!(matches!(
                refused(Procedure::Msg, reads, &[0; 12]),
                CallChunkError::TooLong { .. }
            ));
        }
        let most = read(0, 1, CALL_MAX_BYTES);
        assert!(plan(&call(Procedure::NoMsg, &[most], &[])).is_ok());
        assert!(matches!(
            refused(Procedure::NoMsg, &[most, read(0, 1, 1)], &[]),
            CallChunkError::TooLong { .. }
        ));
        let mut reads = Vec::new();
        for position in (4..).step_by(4).take(READ_CHUNKS_MAX) {
            reads.push(read(position, position, 4));
        }
        assert!(plan(&call(Procedure::Msg, &reads, &[0; 12])).is_ok());
        reads.push(read(1024, 1, 4));
        assert_eq!(
            refused(Procedure::Msg, &reads, &[0; 12]),
            CallChunkError::TooManyChunks {
                xid: 7,
                max: READ_CHUNKS_MAX
            }
        );
    }
}
