//! How a reply goes out: what is pushed where, and what follows the header in the Send.
//!
//! Data that the reply has reduced goes to the write chunks of the call, the first to the first
//! (RFC 8166, section 4.3.2; RFC 8267, section 5), as long as there are some; a chunk without
//! segments asks for its data inline. What is then left of the message follows the header if both
//! are within the inline threshold; otherwise it goes to the reply chunk (RFC 8166, section 4.3.3).
//!
//! Data in a write chunk and the rest in the reply chunk go together by the RFC. A Linux client
//! would not take it (`rpcrdma_decode_nomsg` of its `rpc_rdma.c`), and offers only one of the two.
//!
//! A result that has no data (a READ that failed) leaves its chunk unused. In a COMPOUND it is the
//! last one, so that no later data could take the wrong chunk.

use crate::chunks::{Segment, Segments, WriteChunk, WriteChunks};
use crate::header::{ErrorReply, Header, ReplyHeader};
use crate::limits::WRITE_CHUNKS_MAX;
use crate::xdr::{ReducedItem, UNIT_BYTES, WriteError, Writer, padding_bytes, to_usize};

/// A reply that the call has no room for. It is answered with ERR_CHUNK in its place (RFC 8166,
/// section 4.5.3).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum ReplyChunkError {
    /// A write chunk shorter than its data.
    #[error(
        "write chunk {index} of XID {xid:08x} has {chunk_bytes} bytes, expected {length_bytes} for \
         its data: answer ERR_CHUNK"
    )]
    WriteChunk {
        /// The XID of the call.
        xid: u32,
        /// Which chunk of the write list.
        index: usize,
        /// Its bytes.
        chunk_bytes: u64,
        /// Bytes of the data.
        length_bytes: u32,
    },
    /// Neither inline nor in the reply chunk.
    #[error(
        "the reply to XID {xid:08x} has {message_bytes} bytes, expected at most {inline_bytes} \
         inline or {chunk_bytes} in the reply chunk: answer ERR_CHUNK"
    )]
    Message {
        /// The XID of the call.
        xid: u32,
        /// Bytes of the message without what goes to write chunks.
        message_bytes: u64,
        /// Bytes there are for it behind the header.
        inline_bytes: u64,
        /// Bytes of the reply chunk; 0 where there is none.
        chunk_bytes: u64,
    },
}

impl ReplyChunkError {
    /// What a responder answers.
    #[must_use]
    pub const fn answer(&self) -> ErrorReply {
        match self {
            Self::WriteChunk { xid, .. } | Self::Message { xid, .. } => ErrorReply::chunk(*xid),
        }
    }
}

/// Where bytes of a message come from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Source {
    /// What was written: [`Writer::written`].
    Stream,
    /// The data of the reduced item with this index in [`Writer::reduced_items`].
    Item(usize),
    /// Zeroes.
    Padding,
}

/// Consecutive bytes of one source.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Piece {
    /// The source.
    pub source: Source,
    /// Where in it.
    pub at_bytes: u32,
    /// How many: at least one.
    pub length_bytes: u32,
}

/// A message in pieces, in order: what was written, with the data of reduced items that go with it
/// put back and padded.
#[derive(Clone, Debug)]
pub struct Pieces<'a> {
    stream_bytes: u32,
    items: &'a [ReducedItem],
    /// A bit per item that goes elsewhere.
    elsewhere: u32,
    next: NextPiece,
    /// The item that is next, or due.
    index: usize,
    /// Bytes of the stream before the next piece.
    stream_at_bytes: u32,
    /// Bytes of earlier items, padding included.
    reduced_bytes: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum NextPiece {
    Stream,
    Item,
    Padding,
}

impl<'a> Pieces<'a> {
    /// A message with all its data put back, as over TCP, or of a call.
    #[must_use]
    pub fn whole(stream_bytes: u32, items: &'a [ReducedItem]) -> Self {
        Self::without(stream_bytes, items, 0)
    }

    fn without(stream_bytes: u32, items: &'a [ReducedItem], elsewhere: u32) -> Self {
        Self {
            stream_bytes,
            items,
            elsewhere,
            next: NextPiece::Stream,
            index: 0,
            stream_at_bytes: 0,
            reduced_bytes: 0,
        }
    }

    /// Bytes of all pieces.
    #[must_use]
    pub fn length_bytes(&self) -> u64 {
        self.clone().fold(0, |sum: u64, piece| {
            sum.saturating_add(u64::from(piece.length_bytes))
        })
    }

    fn stream(&mut self, end_bytes: u32) -> Piece {
        let end_bytes = end_bytes.min(self.stream_bytes);
        let at_bytes = self.stream_at_bytes;
        self.stream_at_bytes = at_bytes.max(end_bytes);
        Piece {
            source: Source::Stream,
            at_bytes,
            length_bytes: end_bytes.saturating_sub(at_bytes),
        }
    }
}

impl Iterator for Pieces<'_> {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        loop {
            let Some(item) = self.items.get(self.index) else {
                let last = self.stream(self.stream_bytes);
                return (last.length_bytes > 0).then_some(last);
            };
            let goes_elsewhere = is_set(self.elsewhere, self.index);
            let piece = match self.next {
                NextPiece::Stream => {
                    self.next = NextPiece::Item;
                    self.stream(item.position.saturating_sub(self.reduced_bytes))
                }
                NextPiece::Item => {
                    self.next = NextPiece::Padding;
                    Piece {
                        source: Source::Item(self.index),
                        at_bytes: 0,
                        length_bytes: if goes_elsewhere { 0 } else { item.length_bytes },
                    }
                }
                NextPiece::Padding => {
                    self.next = NextPiece::Stream;
                    self.index = self.index.saturating_add(1);
                    let padding = padding_of(item);
                    self.reduced_bytes = self
                        .reduced_bytes
                        .saturating_add(item.length_bytes)
                        .saturating_add(padding);
                    Piece {
                        source: Source::Padding,
                        at_bytes: 0,
                        length_bytes: if goes_elsewhere { 0 } else { padding },
                    }
                }
            };
            if piece.length_bytes > 0 {
                return Some(piece);
            }
        }
    }
}

/// One RDMA WRITE: so many bytes of a source as `to` has, from `at_bytes` on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Push {
    /// The source.
    pub source: Source,
    /// Where in it.
    pub at_bytes: u32,
    /// Where to: at least one byte.
    pub to: Segment,
}

/// How a reply goes out: the pushes, then a Send of the header and what follows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReplyPlan<'a> {
    header: ReplyHeader<'a>,
    stream_bytes: u32,
    items: &'a [ReducedItem],
    /// A bit per item that goes to a write chunk.
    pushed: u32,
    /// The only key of the call, if it has one.
    only_handle: Option<u32>,
}

impl<'a> ReplyPlan<'a> {
    /// How the reply to `call` goes out that `reply` was written to, as bytes of the stream and
    /// reduced items, where a Send has at most `inline_bytes`
    /// ([`crate::private::Agreed::send_inline_bytes`]).
    ///
    /// # Errors
    /// [`ReplyChunkError`] when the call has no room for it.
    pub fn new(
        call: &Header<'a>,
        stream_bytes: u32,
        items: &'a [ReducedItem],
        inline_bytes: u32,
    ) -> Result<Self, ReplyChunkError> {
        let xid = call.xid;
        let mut pushed = 0;
        let mut pushed_bytes = [0; WRITE_CHUNKS_MAX as usize];
        let chunks = call.writes.chunks().zip(&mut pushed_bytes);
        for (index, (item, (chunk, chunk_pushed_bytes))) in items.iter().zip(chunks).enumerate() {
            if chunk.segment_count() == 0 {
                continue;
            }
            if chunk.length_bytes() < u64::from(item.length_bytes) {
                return Err(ReplyChunkError::WriteChunk {
                    xid,
                    index,
                    chunk_bytes: chunk.length_bytes(),
                    length_bytes: item.length_bytes,
                });
            }
            pushed |= bit(index);
            // Without its padding (RFC 8166, section 3.4.6).
            *chunk_pushed_bytes = item.length_bytes;
        }
        let mut plan = Self {
            header: ReplyHeader {
                xid,
                writes: call.writes,
                pushed_bytes,
                reply: None,
            },
            stream_bytes,
            items,
            pushed,
            only_handle: only_handle(call),
        };
        let message_bytes = plan.message().length_bytes();
        let for_message_bytes = plan.behind_header_bytes(inline_bytes);
        if for_message_bytes.is_some_and(|bytes| message_bytes <= bytes) {
            return Ok(plan);
        }
        let chunk_bytes = call.reply.map_or(0, |chunk| chunk.length_bytes());
        plan.header.reply = call
            .reply
            .filter(|_chunk| message_bytes <= chunk_bytes)
            .zip(u32::try_from(message_bytes).ok());
        if plan.header.reply.is_some() && plan.behind_header_bytes(inline_bytes).is_some() {
            return Ok(plan);
        }
        Err(ReplyChunkError::Message {
            xid,
            message_bytes,
            inline_bytes: for_message_bytes.unwrap_or(0),
            chunk_bytes,
        })
    }

    /// Bytes of a Send behind the header; `None` when not even that fits.
    fn behind_header_bytes(&self, inline_bytes: u32) -> Option<u64> {
        let header_bytes = u64::try_from(self.header.header_bytes()).ok()?;
        u64::from(inline_bytes).checked_sub(header_bytes)
    }

    fn message(&self) -> Pieces<'a> {
        Pieces::without(self.stream_bytes, self.items, self.pushed)
    }

    /// The RDMA WRITEs, to be posted before the Send.
    #[must_use]
    pub fn pushes(&self) -> Pushes<'a> {
        Pushes {
            chunks: self.header.writes.chunks(),
            items: self.items,
            index: 0,
            pushed: self.pushed,
            message: self.header.reply.map(|_chunk| self.message()),
            reply: self.header.reply.map(|(chunk, _bytes)| chunk),
            segments: None,
            segment: None,
            piece: None,
        }
    }

    /// What follows the header in the Send, in order.
    #[must_use]
    pub fn inline(&self) -> Pieces<'a> {
        match self.header.reply {
            None => self.message(),
            Some(_) => Pieces::whole(0, &[]),
        }
    }

    /// Bytes of the Send.
    #[must_use]
    pub fn send_bytes(&self) -> u64 {
        u64::try_from(self.header.header_bytes())
            .unwrap_or(u64::MAX)
            .saturating_add(self.inline().length_bytes())
    }

    /// Writes the header of the Send, which grants so many credits.
    ///
    /// # Errors
    /// [`WriteError`].
    pub fn write_header(&self, writer: &mut Writer<'_>, credits: u32) -> Result<(), WriteError> {
        self.header.write(writer, credits)
    }

    /// The key that the Send invalidates where the connection has agreed on that
    /// ([`crate::private::Agreed::remote_invalidation`]): that of a call which has only one. A Send
    /// can invalidate no second one (RFC 8797), and the client, which then has others to
    /// invalidate itself, would gain nothing.
    #[must_use]
    pub const fn invalidate(&self) -> Option<u32> {
        self.only_handle
    }
}

/// See [`ReplyPlan::pushes`].
#[derive(Clone, Debug)]
pub struct Pushes<'a> {
    chunks: WriteChunks<'a>,
    items: &'a [ReducedItem],
    /// The item whose chunk is next.
    index: usize,
    /// A bit per item that goes to its chunk.
    pushed: u32,
    /// What goes to the reply chunk.
    message: Option<Pieces<'a>>,
    /// The reply chunk, until it is begun.
    reply: Option<WriteChunk<'a>>,
    /// Later segments of the chunk that is being filled.
    segments: Option<Segments<'a>>,
    /// What is left of the segment that is being filled.
    segment: Option<Segment>,
    /// What is left of the piece that is being pushed.
    piece: Option<Piece>,
}

impl Pushes<'_> {
    /// The next piece, and the chunk it goes to where that is another one than before.
    fn begin_piece(&mut self) -> Option<Piece> {
        while let Some(item) = self.items.get(self.index) {
            let index = self.index;
            self.index = index.saturating_add(1);
            let Some(chunk) = self.chunks.next() else {
                self.index = self.items.len();
                break;
            };
            if is_set(self.pushed, index) {
                self.segments = Some(chunk.segments());
                self.segment = None;
                return Some(Piece {
                    source: Source::Item(index),
                    at_bytes: 0,
                    length_bytes: item.length_bytes,
                });
            }
        }
        if let Some(chunk) = self.reply.take() {
            self.segments = Some(chunk.segments());
            self.segment = None;
        }
        self.message.as_mut()?.next()
    }
}

impl Iterator for Pushes<'_> {
    type Item = Push;

    fn next(&mut self) -> Option<Push> {
        loop {
            let mut piece = match self.piece.take() {
                Some(piece) => piece,
                None => self.begin_piece()?,
            };
            if piece.length_bytes == 0 {
                continue;
            }
            let mut segment = match self.segment.take() {
                Some(segment) => segment,
                None => self.segments.as_mut()?.next()?,
            };
            let to = segment.take(piece.length_bytes);
            let push = Push {
                source: piece.source,
                at_bytes: piece.at_bytes,
                to,
            };
            piece.at_bytes = piece.at_bytes.saturating_add(to.length_bytes);
            piece.length_bytes = piece.length_bytes.saturating_sub(to.length_bytes);
            self.piece = Some(piece);
            if segment.length_bytes > 0 {
                self.segment = Some(segment);
            }
            if to.length_bytes > 0 {
                return Some(push);
            }
        }
    }
}

/// The key of all segments of a call, if they have the same.
fn only_handle(call: &Header<'_>) -> Option<u32> {
    let reads = call.reads.segments().map(|segment| segment.target);
    let writes = call.writes.chunks().flat_map(|chunk| chunk.segments());
    let reply = call.reply.into_iter().flat_map(|chunk| chunk.segments());
    let mut handles = reads
        .chain(writes)
        .chain(reply)
        .map(|segment| segment.handle);
    let first = handles.next()?;
    handles.all(|handle| handle == first).then_some(first)
}

fn padding_of(item: &ReducedItem) -> u32 {
    u32::try_from(padding_bytes(to_usize(item.length_bytes))).unwrap_or(0)
}

fn bit(index: usize) -> u32 {
    u32::try_from(index)
        .ok()
        .and_then(|index| 1_u32.checked_shl(index))
        .unwrap_or(0)
}

fn is_set(bits: u32, index: usize) -> bool {
    bits & bit(index) != 0
}

// A bit for each, and padding that is less than a unit.
const _: () = assert!(WRITE_CHUNKS_MAX <= u32::BITS && UNIT_BYTES == 4);

#[cfg(test)]
#[expect(
    clippy::arithmetic_side_effects,
    reason = "an overflow fails the test, as it should"
)]
mod tests;
