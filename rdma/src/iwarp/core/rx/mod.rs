//! Receiving: the byte stream cut into segments, checked, and placed.

mod lent;
mod segment;
mod spare;

use zerocopy::FromZeros;

use crate::iwarp::core::IwarpCore;
use crate::iwarp::fatal::Fatal;
use crate::iwarp::piece::Piece;
use crate::iwarp::receives::{Receive, SGES_MAX};
use crate::iwarp::stag::StagTable;
use crate::iwarp::wire::crc::{Crc32c, crc32c};
use crate::iwarp::wire::ddp::{
    CRC_BYTES, LENGTH_BYTES, Opcode, Segment, TaggedHeader, fpdu_bytes, pad_bytes,
};
use crate::iwarp::wire::terminate::ErrorCode;
use lent::Lent;
use segment::{check_control, terminated};

/// Size of the stream buffer, and so the most that is read ahead: thirty capsules with 4 KiB of
/// data in one receive call.
const BUFFER_BYTES: usize = 128 << 10;
/// `Rx::bulk_ahead_bytes` and `Rx::bulk_bytes` of a socket, where a call costs more than a copy of
/// 16 KiB.
const BULK_AHEAD_BYTES: usize = 512;
const BULK_BYTES: u32 = 32 << 10;
/// The same for shared memory, where a call costs next to nothing. What follows the data of a READ:
/// its trailer, the response capsule, and the header of the next.
const MEMORY_AHEAD_BYTES: usize = 64;
const MEMORY_BULK_BYTES: u32 = 1 << 10;
/// Small segments in a row after which a whole buffer is read ahead again.
const BULK_MEMORY: u8 = 8;
/// Receive calls in one run of a connection; then the program sees what they brought.
pub(in crate::iwarp) const CALLS_MAX: u32 = 8;
/// The same where other queue pairs wait for their turn: 256 KiB of large segments, 512 KiB of
/// small ones.
pub(in crate::iwarp) const CALLS_BESIDE_OTHERS: u32 = 4;
/// Longest segment that is neither a Send nor tagged: a Terminate with everything in it.
const CONTROL_BYTES_MAX: usize = 256;
/// Most bytes of an incomplete FPDU that are kept without a stream buffer. There are no more, but
/// for Sends that wait for receives: payload goes to its place as it arrives.
const LEFT_BYTES_MAX: usize = CONTROL_BYTES_MAX;

/// The result of receiving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::iwarp) enum Received {
    /// Nothing arrived.
    Nothing,
    /// Something arrived, and the socket is probably empty now.
    Some,
    /// There is probably more.
    More,
    /// Waiting for a receive, or for room in the completion queue.
    Stalled,
}

/// Where in an FPDU the stream is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FpduPhase {
    /// At its start.
    Header,
    /// In the payload of `Rx::partial`.
    Payload,
    /// In the pad and CRC of `Rx::partial`.
    Trailer,
}

/// An FPDU that did not fit into the stream buffer as a whole.
struct Partial {
    segment: Segment,
    payload_bytes: u32,
    placed_bytes: u32,
    crc: Crc32c,
}

/// The Send that is arriving.
struct Message {
    opcode: Opcode,
    received_bytes: u32,
    /// The number of the message when it is lent, and so has no receive.
    lent: Option<u64>,
}

/// The receiving half of a queue pair.
pub(in crate::iwarp) struct Rx {
    /// Taken from the spare ones of the thread for a run, and kept while it holds more than `left`
    /// can; otherwise empty.
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    /// Bytes that the last run left over.
    left: Vec<u8>,
    phase: FpduPhase,
    partial: Partial,
    /// Above 0 while large segments arrive.
    bulk: u8,
    /// A payload from this size on counts as large.
    bulk_bytes: u32,
    /// Read ahead while large segments arrive: the trailer, and the short segments after it.
    bulk_ahead_bytes: usize,
    /// Message sequence numbers expected next.
    send_msn: u32,
    read_msn: u32,
    message: Option<Message>,
    receive: Receive,
    /// Where the next bytes of the stream go.
    pieces: Vec<Piece>,
    /// Bytes of payload that `pieces` have room for, and bytes in all.
    direct: u32,
    asked: usize,
    /// Of these, data of a message that may be lent in the ring.
    lendable: u32,
    crc: bool,
    /// The first FPDU may be empty (RFC 6581 §4.3.1).
    empty_fpdu: bool,
    /// Bytes that came from the socket, or the ring.
    pub received_bytes: u64,
    /// Of these, the ones up to the end of the last FPDU that left no Send incomplete.
    whole_bytes: u64,
    /// No FPDU has arrived yet.
    pub before_first: bool,
    /// Waiting for a receive.
    pub stalled: bool,
    /// Messages that are lent to the program.
    pub lent: Lent,
}

impl Rx {
    pub(in crate::iwarp) fn new() -> Self {
        Self {
            buffer: Box::default(),
            start: 0,
            end: 0,
            left: Vec::new(),
            phase: FpduPhase::Header,
            partial: Partial {
                segment: Segment::Tagged(TaggedHeader::new_zeroed()),
                payload_bytes: 0,
                placed_bytes: 0,
                crc: Crc32c::new(),
            },
            bulk: 0,
            bulk_bytes: BULK_BYTES,
            bulk_ahead_bytes: BULK_AHEAD_BYTES,
            send_msn: 1,
            read_msn: 1,
            message: None,
            receive: Receive::default(),
            pieces: Vec::with_capacity(SGES_MAX as usize + 1),
            direct: 0,
            asked: 0,
            lendable: 0,
            crc: true,
            empty_fpdu: false,
            received_bytes: 0,
            whole_bytes: 0,
            before_first: true,
            stalled: false,
            lent: Lent::default(),
        }
    }

    /// Sets what the set-up has agreed on.
    pub(in crate::iwarp) fn set_up(&mut self, crc: bool, empty_fpdu: bool) {
        self.crc = crc;
        self.empty_fpdu = empty_fpdu;
    }

    /// Whether nothing has come yet.
    pub(in crate::iwarp) fn is_silent(&self) -> bool {
        self.before_first && !self.inside_fpdu()
    }

    /// The stream continues in memory, where nothing gets lost.
    pub(in crate::iwarp) fn move_into_memory(&mut self) {
        self.crc = false;
        self.bulk_bytes = MEMORY_BULK_BYTES;
        self.bulk_ahead_bytes = MEMORY_AHEAD_BYTES;
    }

    /// Whether the stream is inside an FPDU.
    fn inside_fpdu(&self) -> bool {
        self.phase != FpduPhase::Header
            || self.start != self.end
            || !self.left.is_empty()
            || self.message.is_some()
    }

    /// Bytes received of what is not complete: an FPDU, or a Send of several.
    pub(in crate::iwarp) fn begun_bytes(&self) -> u64 {
        self.received_bytes.saturating_sub(self.whole_bytes)
    }

    /// An FPDU has ended where the stream buffer begins.
    #[inline]
    fn fpdu_ended(&mut self) {
        if self.message.is_none() {
            let buffered = (self.end - self.start) as u64;
            self.whole_bytes = self.received_bytes.saturating_sub(buffered);
        }
    }

    /// Before a run: takes a stream buffer, and puts into it what the last run left.
    fn take_buffer(&mut self) {
        if self.buffer.is_empty() {
            self.buffer = spare::take();
            self.end = self.left.len();
            self.buffer[..self.end].copy_from_slice(&self.left);
            self.left.clear();
        }
    }

    /// After a run: returns the buffer, unless too much is left in it.
    fn give_buffer(&mut self) {
        let left = &self.buffer[self.start..self.end];
        if left.len() <= LEFT_BYTES_MAX {
            self.left.extend_from_slice(left);
            (self.start, self.end) = (0, 0);
            spare::give(std::mem::take(&mut self.buffer));
        }
    }

    /// Before more is received: what is left in the stream buffer, a few header bytes at most,
    /// moves to the front.
    fn move_to_front(&mut self) {
        self.set_lent_aside();
        if self.start != 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
    }

    /// Where in the stream buffer to receive next.
    fn room(&mut self) -> Piece {
        let ahead = if self.bulk > 0 {
            self.bulk_ahead_bytes
                .max(self.end + self.bulk_ahead_bytes / 2)
        } else {
            BUFFER_BYTES
        };
        let room = &mut self.buffer[self.end..ahead.min(BUFFER_BYTES)];
        Piece::raw(room.as_mut_ptr(), room.len())
    }

    /// The receive of a Send that is still arriving.
    pub(in crate::iwarp) fn take_message(&mut self) -> Option<u64> {
        let message = self.message.take()?;
        message.lent.is_none().then_some(self.receive.wr_id)
    }
}

/// The result of looking at the buffer.
enum Parsed {
    /// An FPDU, or a part of one, was consumed.
    Again,
    /// More bytes are needed.
    Bytes,
    /// A receive, or room for its completion, is needed.
    Receive,
}

impl IwarpCore {
    /// Before the driver receives: takes a stream buffer.
    pub(in crate::iwarp) fn begin_receive(&mut self) {
        self.rx.take_buffer();
    }

    /// After the driver has received.
    pub(in crate::iwarp) fn end_receive(&mut self) {
        self.rx.set_lent_aside();
        self.rx.give_buffer();
    }

    /// Handles everything in the stream buffer; `false` when a receive is missing.
    ///
    /// # Errors
    /// The peer broke the protocol, or has ended the connection with a Terminate.
    pub(in crate::iwarp) fn handle_buffered(
        &mut self,
        stags: &mut StagTable,
    ) -> Result<bool, Fatal> {
        // The buffer is moved out so that its bytes can be read while the rest changes.
        let buffer = std::mem::take(&mut self.rx.buffer);
        let mut result = Ok(Parsed::Again);
        while matches!(result, Ok(Parsed::Again)) {
            let bytes = &buffer[self.rx.start..self.rx.end];
            result = match self.rx.phase {
                FpduPhase::Header => self.parse_fpdu(stags, bytes),
                FpduPhase::Payload => self.continue_payload(stags, bytes),
                FpduPhase::Trailer => self.finish_partial(stags, bytes),
            };
        }
        self.rx.buffer = buffer;
        self.rx.stalled = false;
        match result? {
            Parsed::Again | Parsed::Bytes => Ok(true),
            Parsed::Receive => {
                self.rx.stalled = true;
                Ok(false)
            }
        }
    }

    /// Where the next bytes of the stream go: the rest of a payload to where it belongs, then the
    /// stream buffer. Registered memory is mapped as long as `stags` does not change.
    ///
    /// # Errors
    /// The place of the payload is not open any more.
    pub(in crate::iwarp) fn poll_receive(
        &mut self,
        stags: &StagTable,
    ) -> Result<&mut [Piece], Fatal> {
        self.rx.move_to_front();
        let mut pieces = std::mem::take(&mut self.rx.pieces);
        pieces.clear();
        let mut direct = 0;
        if self.rx.phase == FpduPhase::Payload {
            direct = self.rx.partial.payload_bytes - self.rx.partial.placed_bytes;
            self.each_target(stags, direct, &mut |span| pieces.push(Piece::span(span)))?;
        }
        let rx = &mut self.rx;
        let room = rx.room();
        (rx.direct, rx.asked) = (direct, direct as usize + room.len_bytes());
        pieces.push(room);
        rx.pieces = pieces;
        Ok(&mut rx.pieces)
    }

    /// `bytes` have come into the pieces of the last [`IwarpCore::poll_receive`], in order; 0 is
    /// the end of the stream.
    ///
    /// # Errors
    /// The stream has ended.
    pub(in crate::iwarp) fn handle_received(
        &mut self,
        stags: &StagTable,
        bytes: usize,
    ) -> Result<Received, Fatal> {
        if bytes == 0 {
            return Err(Fatal::PeerClosed {
                inside_fpdu: self.rx.inside_fpdu(),
            });
        }
        let rx = &mut self.rx;
        let asked = rx.asked;
        rx.received_bytes += bytes as u64;
        let placed = u32::try_from(bytes).unwrap_or(u32::MAX).min(rx.direct);
        rx.end += bytes - placed as usize;
        if placed != 0 {
            self.note_placed(stags, placed)?;
        }
        Ok(if bytes == asked {
            Received::More
        } else {
            Received::Some
        })
    }

    /// Counts `placed` bytes that the socket has put in their place, and adds them to the CRC.
    fn note_placed(&mut self, stags: &StagTable, placed: u32) -> Result<(), Fatal> {
        if self.rx.crc {
            let mut crc = self.rx.partial.crc;
            self.each_target(stags, placed, &mut |span| crc.update(span.bytes()))?;
            self.rx.partial.crc = crc;
        }
        let partial = &mut self.rx.partial;
        partial.placed_bytes += placed;
        if partial.placed_bytes == partial.payload_bytes {
            self.rx.phase = FpduPhase::Trailer;
        }
        Ok(())
    }

    /// At the start of an FPDU.
    #[inline]
    fn parse_fpdu(&mut self, stags: &mut StagTable, bytes: &[u8]) -> Result<Parsed, Fatal> {
        let Some(&[a, b]) = bytes.first_chunk() else {
            return Ok(Parsed::Bytes);
        };
        let ulpdu = u16::from_be_bytes([a, b]);
        let total = fpdu_bytes(ulpdu);
        if let Some(fpdu) = bytes.get(..total) {
            let framed = &fpdu[..total - CRC_BYTES];
            if self.rx.crc && crc32c(framed).to_le_bytes() != fpdu[total - CRC_BYTES..] {
                return Err(Fatal::stream(ErrorCode::MPA_CRC));
            }
            let ulpdu = &framed[..LENGTH_BYTES + usize::from(ulpdu)];
            return self.parse_whole(stags, ulpdu, total);
        }
        let Some(segment) = Segment::read(bytes) else {
            return Ok(Parsed::Bytes);
        };
        let Some(payload_bytes) = segment.payload_bytes() else {
            // Too short for its own header; it is refused when the rest has arrived.
            return Ok(Parsed::Bytes);
        };
        check_control(&segment)?;
        let opcode = segment.control().opcode();
        if !segment.control().tagged() && !opcode.is_send() {
            // Read Requests and Terminates are handled whole.
            return if total <= CONTROL_BYTES_MAX {
                Ok(Parsed::Bytes)
            } else {
                Err(Fatal::stream(ErrorCode::MPA_FPDU))
            };
        }
        if !self.start_segment(stags, &segment, payload_bytes)? {
            return Ok(Parsed::Receive);
        }
        let mut crc = Crc32c::new();
        if self.rx.crc {
            crc.update(segment.as_bytes());
        }
        self.rx.start += segment.header_bytes();
        self.rx.partial = Partial {
            segment,
            payload_bytes,
            placed_bytes: 0,
            crc,
        };
        self.rx.phase = if payload_bytes == 0 {
            FpduPhase::Trailer
        } else {
            FpduPhase::Payload
        };
        Ok(Parsed::Again)
    }

    /// An FPDU that is in the buffer as a whole, with a CRC that is right.
    #[inline]
    fn parse_whole(
        &mut self,
        stags: &mut StagTable,
        ulpdu: &[u8],
        total: usize,
    ) -> Result<Parsed, Fatal> {
        if ulpdu.len() == LENGTH_BYTES && self.rx.before_first && self.rx.empty_fpdu {
            self.rx.start += total;
            self.rx.fpdu_ended();
            self.first_fpdu();
            return Ok(Parsed::Again);
        }
        let segment = Segment::read(ulpdu);
        let segment = segment.ok_or_else(|| Fatal::stream(ErrorCode::MPA_FPDU))?;
        check_control(&segment)?;
        let payload = &ulpdu[segment.header_bytes()..];
        let opcode = segment.control().opcode();
        if opcode == Opcode::READ_REQUEST {
            self.read_request(stags, &segment, payload)?;
        } else if opcode == Opcode::TERMINATE {
            return Err(terminated(&segment, payload));
        } else {
            let payload_bytes = u32::try_from(payload.len()).unwrap_or(u32::MAX);
            if !self.lend_of_buffer(&segment, payload)? {
                if !self.start_segment(stags, &segment, payload_bytes)? {
                    return Ok(Parsed::Receive);
                }
                let mut rest = payload;
                self.each_target_of(stags, &segment, 0, payload_bytes, &mut |span| {
                    let (now, later) = rest.split_at(span.len_bytes().min(rest.len()));
                    span.copy_from(now);
                    rest = later;
                })?;
            }
            self.finish_segment(stags, &segment, payload_bytes)?;
        }
        self.rx.start += total;
        self.rx.fpdu_ended();
        self.first_fpdu();
        Ok(Parsed::Again)
    }

    /// In the payload of a partial FPDU: copies what is in the buffer.
    fn continue_payload(&mut self, stags: &StagTable, bytes: &[u8]) -> Result<Parsed, Fatal> {
        let partial = &self.rx.partial;
        let left = partial.payload_bytes - partial.placed_bytes;
        let length = left.min(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
        if length == 0 {
            return Ok(Parsed::Bytes);
        }
        let now = &bytes[..length as usize];
        let mut rest = now;
        self.each_target(stags, length, &mut |span| {
            let (now, later) = rest.split_at(span.len_bytes().min(rest.len()));
            span.copy_from(now);
            rest = later;
        })?;
        if self.rx.crc {
            self.rx.partial.crc.update(now);
        }
        self.rx.start += now.len();
        self.rx.partial.placed_bytes += length;
        if length == left {
            self.rx.phase = FpduPhase::Trailer;
        }
        Ok(Parsed::Again)
    }

    /// In the pad and CRC of a partial FPDU.
    fn finish_partial(&mut self, stags: &mut StagTable, bytes: &[u8]) -> Result<Parsed, Fatal> {
        let partial = &self.rx.partial;
        let segment = partial.segment;
        let payload_bytes = partial.payload_bytes;
        let pad = pad_bytes(segment.header_bytes() + payload_bytes as usize);
        let Some(trailer) = bytes.get(..pad + CRC_BYTES) else {
            return Ok(Parsed::Bytes);
        };
        let (pad, crc) = trailer.split_at(pad);
        if self.rx.crc {
            let mut own = partial.crc;
            if !pad.is_empty() {
                own.update(pad);
            }
            if own.value().to_le_bytes() != crc {
                return Err(Fatal::stream(ErrorCode::MPA_CRC));
            }
        }
        self.rx.start += trailer.len();
        self.rx.phase = FpduPhase::Header;
        self.finish_segment(stags, &segment, payload_bytes)?;
        self.rx.fpdu_ended();
        self.first_fpdu();
        Ok(Parsed::Again)
    }
}

#[cfg(test)]
mod tests {
    use super::{LEFT_BYTES_MAX, Rx};

    #[test]
    fn what_is_left_of_an_fpdu_keeps_no_stream_buffer() {
        for (left, keeps) in [
            (0, false),
            (1, false),
            (LEFT_BYTES_MAX, false),
            (LEFT_BYTES_MAX + 1, true),
        ] {
            let mut rx = Rx::new();
            rx.take_buffer();
            let bytes: Vec<u8> = (0..left).map(|n| n.to_le_bytes()[0]).collect();
            (rx.start, rx.end) = (9, 9 + left);
            rx.buffer[9..9 + left].copy_from_slice(&bytes);
            rx.give_buffer();
            assert_eq!(rx.buffer.is_empty(), !keeps, "{left} bytes");
            assert_eq!(rx.inside_fpdu(), left != 0);
            rx.take_buffer();
            assert_eq!(rx.buffer[rx.start..rx.end], bytes);
            assert_eq!(rx.inside_fpdu(), left != 0);
        }
    }
}
