//! Replies on their way to the client.

use capstan_memory::Buffer;
use zerocopy::IntoBytes;
use zerocopy::byteorder::big_endian::U32;

use super::wire::{
    BASE_ALLOCATION_ID, CHUNK_DONE, ChunkType, ErrorChunk, Extent, NbdError, SIMPLE_REPLY_MAGIC,
    STRUCTURED_REPLY_MAGIC, SimpleReply, StructuredReply,
};
use crate::front_ends::lease::Part;

/// Bytes of the longest head: a chunk with the offset of its data.
const HEAD_BYTES_MAX: usize = size_of::<StructuredReply>() + 8;

/// The outcome of a request without data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    Done,
    Error(NbdError),
}

/// What follows a head.
#[derive(Debug)]
enum Body {
    Nothing,
    Lease(Buffer),
    Bytes(Vec<u8>),
}

impl Body {
    fn len(&self) -> usize {
        match self {
            Self::Nothing => 0,
            Self::Lease(lease) => lease.len_bytes() as usize,
            Self::Bytes(bytes) => bytes.len(),
        }
    }
}

/// A reply, or a part of one: a head, and what follows it.
#[derive(Debug)]
pub(super) struct Outgoing {
    head: [u8; HEAD_BYTES_MAX],
    head_len: usize,
    body: Body,
    /// Bytes of both that were sent.
    sent: usize,
}

impl Outgoing {
    fn new(parts: [&[u8]; 2], body: Body) -> Self {
        let mut head = [0; HEAD_BYTES_MAX];
        let mut head_len = 0;
        for byte in parts.into_iter().flatten() {
            if let Some(place) = head.get_mut(head_len) {
                *place = *byte;
                head_len += 1;
            }
        }
        Self {
            head,
            head_len,
            body,
            sent: 0,
        }
    }

    /// A reply without data; `structured` for reads once structured replies are negotiated.
    pub(super) fn status(cookie: u64, reply: Reply, structured: bool) -> Self {
        let error = match reply {
            Reply::Done => 0,
            Reply::Error(error) => error.code(),
        };
        if !structured {
            return Self::new([simple(cookie, error).as_bytes(), &[]], Body::Nothing);
        }
        let body = ErrorChunk {
            error: error.into(),
            message_len_bytes: 0.into(),
        };
        let (chunk_type, body) = match reply {
            Reply::Done => (ChunkType::NONE, &[][..]),
            Reply::Error(_) => (ChunkType::ERROR, body.as_bytes()),
        };
        let head = structured_head(cookie, chunk_type, body.len(), true);
        Self::new([head.as_bytes(), body], Body::Nothing)
    }

    /// The simple reply to a read, and its data.
    pub(super) fn simple_data(cookie: u64, lease: Buffer) -> Self {
        Self::new([simple(cookie, 0).as_bytes(), &[]], Body::Lease(lease))
    }

    /// More data of a simple reply to a read.
    pub(super) fn more_data(lease: Buffer) -> Self {
        Self::new([&[], &[]], Body::Lease(lease))
    }

    /// A chunk of the structured reply to a read.
    pub(super) fn data_chunk(cookie: u64, offset_bytes: u64, lease: Buffer, done: bool) -> Self {
        let len_bytes = 8 + lease.len_bytes() as usize;
        let head = structured_head(cookie, ChunkType::OFFSET_DATA, len_bytes, done);
        let parts = [head.as_bytes(), &offset_bytes.to_be_bytes()];
        Self::new(parts, Body::Lease(lease))
    }

    /// The reply to a block status.
    pub(super) fn extents(cookie: u64, extents: &[Extent]) -> Self {
        let bytes = extents.as_bytes().to_vec();
        let context = U32::new(BASE_ALLOCATION_ID);
        let len_bytes = size_of_val(&context) + bytes.len();
        let head = structured_head(cookie, ChunkType::BLOCK_STATUS, len_bytes, true);
        let parts = [head.as_bytes(), context.as_bytes()];
        Self::new(parts, Body::Bytes(bytes))
    }

    fn len(&self) -> usize {
        self.head_len + self.body.len()
    }

    /// What is left to send: of the head, and of the data.
    pub(super) fn parts(&self) -> [Part<'_>; 2] {
        let head = self.head.get(self.sent..self.head_len).unwrap_or_default();
        let start = self.sent.saturating_sub(self.head_len);
        let data = match &self.body {
            Body::Nothing => Part::EMPTY,
            Body::Bytes(bytes) => Part::Bytes(bytes.get(start..).unwrap_or_default()),
            Body::Lease(lease) => {
                let start = u32::try_from(start).unwrap_or(u32::MAX);
                Part::Lease {
                    lease,
                    start,
                    len_bytes: lease.len_bytes().saturating_sub(start),
                }
            }
        };
        [Part::Bytes(head), data]
    }

    /// At most `count` bytes more were sent; returns how many of them are of this reply.
    pub(super) fn advance(&mut self, count: usize) -> usize {
        let count = count.min(self.len() - self.sent);
        self.sent += count;
        count
    }

    pub(super) fn is_sent(&self) -> bool {
        self.sent == self.len()
    }

    pub(super) fn into_lease(self) -> Option<Buffer> {
        match self.body {
            Body::Lease(lease) => Some(lease),
            Body::Nothing | Body::Bytes(_) => None,
        }
    }
}

fn simple(cookie: u64, error: u32) -> SimpleReply {
    SimpleReply {
        magic: SIMPLE_REPLY_MAGIC.into(),
        error: error.into(),
        cookie: cookie.into(),
    }
}

fn structured_head(
    cookie: u64,
    chunk_type: ChunkType,
    len_bytes: usize,
    done: bool,
) -> StructuredReply {
    StructuredReply {
        magic: STRUCTURED_REPLY_MAGIC.into(),
        flags: if done { CHUNK_DONE } else { 0 }.into(),
        chunk_type: chunk_type.0.into(),
        cookie: cookie.into(),
        len_bytes: u32::try_from(len_bytes).unwrap_or(u32::MAX).into(),
    }
}
