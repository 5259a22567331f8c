//! Making replies: what is pushed, and what is sent.

use capstan_memory::Buffer;
use capstan_rdma::contract::RKey;
use capstan_rpcrdma::header::{ERROR_REPLY_MAX_BYTES, ErrorReply, Header, Received};
use capstan_rpcrdma::push::{Piece, Push, ReplyPlan, Source};
use capstan_rpcrdma::xdr::{WriteError, Writer};

use super::call::{Call, Prepared};
use super::device::Memory;
use crate::limits::MESSAGE_BYTES;
use crate::task::Answer;

/// Where a header has the credits that it grants (RFC 8166, section 4.2).
pub(super) const CREDITS_AT: usize = 8;

/// A reply that cannot be made.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unsendable {
    /// There is no memory for what is sent, although there is a page for each credit.
    #[error("there is no page for a Send, expected one for each credit")]
    NoPage,
    /// The program has reduced data that is nowhere.
    #[error("a reply has reduced data without a buffer, expected it where the call offers one")]
    NoData,
    /// A header that does not fit, although its length was computed.
    #[error("the header of a reply could not be written: {0}")]
    Header(#[from] WriteError),
}

/// A Send of `bytes`, which have room for the credits.
fn send_of(bytes: &[u8], memory: &Memory) -> Result<Prepared, Unsendable> {
    let message_bytes = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    let page = memory.messages.take(message_bytes.min(MESSAGE_BYTES));
    let mut message = page.ok_or(Unsendable::NoPage)?;
    let bytes = bytes.get(..usize_of(MESSAGE_BYTES)).unwrap_or(bytes);
    message.copy_from(0, bytes);
    Ok(Prepared {
        message_bytes: message.len_bytes(),
        message,
        invalidate: None,
    })
}

/// Makes an RDMA_ERROR.
pub(super) fn prepare_error(error: &ErrorReply, memory: &Memory) -> Result<Prepared, Unsendable> {
    let mut bytes = [0; ERROR_REPLY_MAX_BYTES];
    let mut writer = Writer::new(&mut bytes);
    error.write(&mut writer, 0)?;
    send_of(writer.written(), memory)
}

/// What a connection takes of a reply.
#[derive(Clone, Copy, Debug)]
pub(super) struct How {
    /// Bytes of a Send.
    pub(super) inline_bytes: u32,
    /// Whether a Send may invalidate a key.
    pub(super) invalidates: bool,
    /// RDMA WRITEs that its send queue holds beside a Send.
    pub(super) pushes_max: u32,
}

/// Makes the reply to `call` that a worker has written to `stream`. A reply that the call has no
/// room for becomes an RDMA_ERROR.
pub(super) fn prepare(
    call: &mut Call,
    stream: &[u8],
    answer: &Answer,
    how: How,
    memory: &Memory,
) -> Result<Prepared, Unsendable> {
    let bytes = std::mem::take(&mut call.bytes);
    let prepared = match Received::read(&bytes) {
        Ok(Received::Message(header)) => prepare_to(&header, call, (stream, answer), how, memory),
        // It was read so before.
        _ => Err(Unsendable::NoData),
    };
    call.bytes = bytes;
    prepared
}

fn prepare_to(
    header: &Header<'_>,
    call: &mut Call,
    (stream, answer): (&[u8], &Answer),
    how: How,
    memory: &Memory,
) -> Result<Prepared, Unsendable> {
    let items = answer.items.as_slice();
    let results = &call.held().results;
    let has_room = |(index, length): (usize, u32)| {
        results
            .get(index)
            .is_some_and(|buffer: &Buffer| length <= buffer.len_bytes())
    };
    let lengths = items.iter().map(|item| item.length_bytes);
    if !lengths.enumerate().all(has_room) {
        return Err(Unsendable::NoData);
    }
    let stream_bytes = u32::try_from(stream.len()).unwrap_or(u32::MAX);
    let inline_bytes = how.inline_bytes.min(MESSAGE_BYTES);
    let plan = match ReplyPlan::new(header, stream_bytes, items, inline_bytes) {
        Ok(plan) => plan,
        Err(error) => {
            tracing::debug!("a reply has no room: {error}");
            return prepare_error(&error.answer(), memory);
        }
    };
    let mut bytes = [0; MESSAGE_BYTES as usize];
    let mut writer = Writer::new(&mut bytes);
    plan.write_header(&mut writer, 0)?;
    for piece in plan.inline() {
        write_piece(&mut writer, &piece, stream, results)?;
    }
    let mut prepared = send_of(writer.written(), memory)?;
    if how.invalidates {
        prepared.invalidate = plan.invalidate().map(RKey);
    }
    call.pushes.extend(plan.pushes());
    let pushes = u32::try_from(call.pushes.len()).unwrap_or(u32::MAX);
    if pushes > how.pushes_max {
        call.pushes.clear();
        tracing::debug!(
            pushes,
            "a reply takes more RDMA WRITEs than the device has room for"
        );
        return prepare_error(&ErrorReply::chunk(header.xid), memory);
    }
    let is_of_stream = |push: &Push| push.source == Source::Stream;
    if call.pushes.iter().any(is_of_stream) {
        let chunk = call.held_mut().reply_chunk.as_mut();
        let chunk = chunk.filter(|chunk| stream_bytes <= chunk.len_bytes());
        chunk.ok_or(Unsendable::NoData)?.copy_from(0, stream);
    }
    Ok(prepared)
}

/// Writes what follows a header, which is a whole number of units over all pieces.
fn write_piece(
    writer: &mut Writer<'_>,
    piece: &Piece,
    stream: &[u8],
    results: &[Buffer],
) -> Result<(), Unsendable> {
    let at = usize_of(piece.at_bytes);
    let end = at.saturating_add(usize_of(piece.length_bytes));
    match piece.source {
        Source::Stream => {
            let bytes = stream.get(at..end).ok_or(Unsendable::NoData)?;
            writer.opaque_fixed(bytes)?;
        }
        Source::Item(index) => {
            let buffer = results.get(index).ok_or(Unsendable::NoData)?;
            let mut bytes = [0; MESSAGE_BYTES as usize];
            let room = bytes.get_mut(..end.saturating_sub(at));
            let room = room.ok_or(Unsendable::NoData)?;
            buffer.raw().skip(at).copy_to(room);
            // With its padding.
            writer.opaque_fixed(room)?;
        }
        Source::Padding => {}
    }
    Ok(())
}

fn usize_of(value: u32) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}
