//! Receiving: the byte stream cut into segments, checked, and placed.
#![expect(unsafe_code, reason = "receives straight into registered memory")]

use zerocopy::{FromBytes, FromZeros};

use super::fatal::{Fatal, tagged_error};
use super::qp::Qp;
use super::read::Response;
use super::socket::{Piece, Transfer};
use super::sq::Progress;
use super::srq::{Receive, SGES_MAX};
use super::stag::{Span, StagError, StagTable};
use super::tx::each_span;
use super::wire::crc::{Crc32c, crc32c};
use super::wire::ddp::{
    CRC_BYTES, LENGTH_BYTES, Opcode, QN_READ_REQUEST, QN_SEND, QN_TERMINATE, ReadRequest, Segment,
    TaggedHeader, UntaggedHeader, fpdu_bytes, pad_bytes,
};
use super::wire::terminate::{ErrorCode, Terminate};
use crate::contract::{Access, RKey, WcOpcode, WcStatus, WorkCompletion};

/// Stream buffer, and so the most that is read ahead.
const BUFFER_BYTES: usize = 64 << 10;
/// Read ahead while large segments arrive: the trailer, and the short segments after it.
const BULK_AHEAD_BYTES: usize = 512;
/// A payload from this size on counts as large.
const BULK_BYTES: u32 = 16 << 10;
/// Small segments in a row after which reading ahead goes back to the whole buffer.
const BULK_MEMORY: u8 = 8;
/// Receive calls of one queue pair before the others have their turn.
const CALLS_MAX: u32 = 8;
/// Longest segment that is neither a Send nor tagged: a Terminate with everything in it.
const CONTROL_BYTES_MAX: usize = 256;

/// What receiving came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Received {
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
enum Phase {
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
}

/// The receiving half of a queue pair.
pub(super) struct Rx {
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    phase: Phase,
    partial: Partial,
    /// Above 0 while large segments arrive.
    bulk: u8,
    /// Message sequence numbers expected next.
    send_msn: u32,
    read_msn: u32,
    message: Option<Message>,
    receive: Receive,
    pieces: Vec<Piece>,
    crc: bool,
    /// The first FPDU may be empty (RFC 6581 §4.3.1).
    empty_fpdu: bool,
    /// No FPDU has come yet.
    pub before_first: bool,
    /// Waiting for a receive.
    pub stalled: bool,
}

impl Rx {
    pub(super) fn new() -> Self {
        Self {
            buffer: vec![0; BUFFER_BYTES].into(),
            start: 0,
            end: 0,
            phase: Phase::Header,
            partial: Partial {
                segment: Segment::Tagged(TaggedHeader::new_zeroed()),
                payload_bytes: 0,
                placed_bytes: 0,
                crc: Crc32c::new(),
            },
            bulk: 0,
            send_msn: 1,
            read_msn: 1,
            message: None,
            receive: Receive::default(),
            pieces: Vec::with_capacity(SGES_MAX as usize + 1),
            crc: true,
            empty_fpdu: false,
            before_first: true,
            stalled: false,
        }
    }

    /// Sets what the set-up has agreed on.
    pub(super) fn set_up(&mut self, crc: bool, empty_fpdu: bool) {
        self.crc = crc;
        self.empty_fpdu = empty_fpdu;
    }

    /// Whether the stream is inside an FPDU.
    fn inside_fpdu(&self) -> bool {
        self.phase != Phase::Header || self.start != self.end || self.message.is_some()
    }

    /// The receive of a Send that is still arriving.
    pub(super) fn take_message(&mut self) -> Option<u64> {
        self.message.take().map(|_| self.receive.wr_id)
    }
}

/// What a look at the buffer came to.
enum Parsed {
    /// An FPDU, or a part of one, was used up.
    Again,
    /// More bytes are needed.
    Bytes,
    /// A receive, or room for its completion, is needed.
    Receive,
}

impl Qp {
    /// Receives what there is and handles it.
    pub(super) fn receive(&mut self, stags: &mut StagTable) -> Result<Received, Fatal> {
        let mut outcome = Received::Nothing;
        for _ in 0..CALLS_MAX {
            if !self.parse(stags)? {
                return Ok(Received::Stalled);
            }
            outcome = self.fill(stags)?;
            match outcome {
                Received::Nothing => return Ok(outcome),
                Received::Some => break,
                Received::More | Received::Stalled => {}
            }
        }
        if self.parse(stags)? {
            Ok(outcome)
        } else {
            Ok(Received::Stalled)
        }
    }

    /// Handles everything in the stream buffer; `false` when a receive is missing.
    fn parse(&mut self, stags: &mut StagTable) -> Result<bool, Fatal> {
        // The buffer is taken out so that its bytes can be read while the rest changes.
        let buffer = std::mem::take(&mut self.rx.buffer);
        let mut result = Ok(Parsed::Again);
        while matches!(result, Ok(Parsed::Again)) {
            let bytes = &buffer[self.rx.start..self.rx.end];
            result = match self.rx.phase {
                Phase::Header => self.parse_fpdu(stags, bytes),
                Phase::Payload => self.continue_payload(stags, bytes),
                Phase::Trailer => self.finish_partial(stags, bytes),
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

    /// One receive call: the rest of a payload to where it belongs, then the stream buffer.
    fn fill(&mut self, stags: &StagTable) -> Result<Received, Fatal> {
        let rx = &mut self.rx;
        // A few header bytes at most are left over; they move to the front.
        if rx.start != 0 {
            rx.buffer.copy_within(rx.start..rx.end, 0);
            rx.end -= rx.start;
            rx.start = 0;
        }
        let mut pieces = std::mem::take(&mut rx.pieces);
        pieces.clear();
        let mut direct = 0;
        if rx.phase == Phase::Payload {
            direct = rx.partial.payload_bytes - rx.partial.placed_bytes;
            self.each_target(stags, direct, &mut |span| pieces.push(Piece::span(span)))?;
        }
        let rx = &mut self.rx;
        let ahead = if rx.bulk > 0 {
            BULK_AHEAD_BYTES.max(rx.end + BULK_AHEAD_BYTES / 2)
        } else {
            BUFFER_BYTES
        };
        let room = &mut rx.buffer[rx.end..ahead.min(BUFFER_BYTES)];
        let asked = direct as usize + room.len();
        pieces.push(Piece::raw(room.as_mut_ptr(), room.len()));
        let Some(link) = &mut self.link else {
            return Ok(Received::Nothing);
        };
        // SAFETY: the first pieces are spans the table has just resolved and its borrow keeps
        // mapped; the last is the free end of the stream buffer, borrowed mutably.
        let transfer = unsafe { link.receive(&mut pieces) };
        self.rx.pieces = pieces;
        let bytes = match transfer.map_err(Fatal::Io)? {
            Transfer::WouldBlock => return Ok(Received::Nothing),
            Transfer::Bytes(0) => {
                return Err(Fatal::PeerClosed {
                    inside_fpdu: self.rx.inside_fpdu(),
                });
            }
            Transfer::Bytes(bytes) => bytes,
        };
        let placed = u32::try_from(bytes).unwrap_or(u32::MAX).min(direct);
        self.rx.end += bytes - placed as usize;
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
            self.rx.phase = Phase::Trailer;
        }
        Ok(())
    }

    /// Calls `each` with where the next `length` bytes of the partial FPDU's payload go.
    fn each_target<'t>(
        &self,
        stags: &'t StagTable,
        length: u32,
        each: &mut dyn FnMut(Span<'t>),
    ) -> Result<(), Fatal> {
        let partial = &self.rx.partial;
        self.each_target_of(stags, &partial.segment, partial.placed_bytes, length, each)
    }

    /// Calls `each` with where `length` bytes from `offset` of the payload of `segment` go. Keys,
    /// bounds and rights are checked each time: a window may be invalidated in the middle.
    fn each_target_of<'t>(
        &self,
        stags: &'t StagTable,
        segment: &Segment,
        offset: u32,
        length: u32,
        each: &mut dyn FnMut(Span<'t>),
    ) -> Result<(), Fatal> {
        if length == 0 {
            return Ok(());
        }
        let pd = self.asker.pd;
        let local = |_: StagError| Fatal::Violation {
            // The peer did nothing wrong, but its message cannot be placed (RFC 5041 §7.1).
            error: ErrorCode::DDP_LOCAL_CATASTROPHIC,
            offending: None,
            receive: WcStatus::LocalProtectionError,
        };
        match segment {
            Segment::Untagged(_) => {
                let at = self.rx.message.as_ref().map_or(0, |m| m.received_bytes) + offset;
                let sges = &self.rx.receive.sges;
                each_span(stags, pd, sges, at, length, Access::LOCAL_WRITE, each).map_err(local)
            }
            Segment::Tagged(header) if header.control.opcode() == Opcode::READ_RESPONSE => {
                let read = self.reads.outstanding.front();
                let read = read.ok_or_else(|| unexpected(segment))?;
                let sink = std::slice::from_ref(&read.sink);
                let at = read.received_bytes + offset;
                each_span(stags, pd, sink, at, length, Access::LOCAL_WRITE, each).map_err(local)
            }
            Segment::Tagged(header) => {
                let to = header.to.get().wrapping_add(u64::from(offset));
                let (stag, bytes) = (header.stag.get(), u64::from(length));
                let span = stags.remote(self.asker, stag, to, bytes, Access::REMOTE_WRITE);
                each(span.map_err(|error| Fatal::segment(tagged_error(error), segment))?);
                Ok(())
            }
        }
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
            // Too short for its own header; it will be refused when the rest has come.
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
            Phase::Trailer
        } else {
            Phase::Payload
        };
        Ok(Parsed::Again)
    }

    /// An FPDU that is in the buffer from its length to its CRC, which is right.
    #[inline]
    fn parse_whole(
        &mut self,
        stags: &mut StagTable,
        ulpdu: &[u8],
        total: usize,
    ) -> Result<Parsed, Fatal> {
        if ulpdu.len() == LENGTH_BYTES && self.rx.before_first && self.rx.empty_fpdu {
            self.rx.start += total;
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
            if !self.start_segment(stags, &segment, payload_bytes)? {
                return Ok(Parsed::Receive);
            }
            let mut rest = payload;
            self.each_target_of(stags, &segment, 0, payload_bytes, &mut |span| {
                let (now, later) = rest.split_at(span.len_bytes().min(rest.len()));
                span.copy_from(now);
                rest = later;
            })?;
            self.finish_segment(stags, &segment, payload_bytes)?;
        }
        self.rx.start += total;
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
            self.rx.phase = Phase::Trailer;
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
        self.rx.phase = Phase::Header;
        self.finish_segment(stags, &segment, payload_bytes)?;
        self.first_fpdu();
        Ok(Parsed::Again)
    }

    /// Checks a Send, an RDMA Write or a Read Response before anything of it is placed; `false`
    /// when a Send has to wait for a receive.
    #[inline]
    fn start_segment(
        &mut self,
        stags: &StagTable,
        segment: &Segment,
        payload_bytes: u32,
    ) -> Result<bool, Fatal> {
        match segment {
            Segment::Untagged(header) => self.start_send(segment, header, payload_bytes),
            Segment::Tagged(header) if header.control.opcode() == Opcode::READ_RESPONSE => {
                self.check_response(segment, header, payload_bytes)?;
                Ok(true)
            }
            Segment::Tagged(header) => {
                // A Write of nothing accesses nothing; its STag is not checked (RFC 5040 §5.1).
                if payload_bytes != 0 {
                    let (stag, to) = (header.stag.get(), header.to.get());
                    let bytes = u64::from(payload_bytes);
                    stags
                        .remote(self.asker, stag, to, bytes, Access::REMOTE_WRITE)
                        .map_err(|error| Fatal::segment(tagged_error(error), segment))?;
                }
                Ok(true)
            }
        }
    }

    /// Checks a segment of a Send (RFC 5041 §7.2) and takes a receive for the first of a message.
    #[inline]
    fn start_send(
        &mut self,
        segment: &Segment,
        header: &UntaggedHeader,
        payload_bytes: u32,
    ) -> Result<bool, Fatal> {
        let violation = |error| Fatal::segment(error, segment);
        if header.qn.get() != QN_SEND {
            return Err(violation(ErrorCode::DDP_INVALID_QN));
        }
        if header.msn.get() != self.rx.send_msn {
            return Err(violation(ErrorCode::DDP_MSN_RANGE));
        }
        let opcode = header.control.opcode();
        let received = match &self.rx.message {
            Some(message) if message.opcode != opcode => {
                return Err(violation(ErrorCode::RDMAP_OPCODE));
            }
            Some(message) => message.received_bytes,
            None => 0,
        };
        if header.mo.get() != received {
            return Err(violation(ErrorCode::DDP_INVALID_MO));
        }
        if self.rx.message.is_none() {
            // Only as many completions as the queue holds: TCP holds the peer back meanwhile.
            if !self.recv_cq.has_room() || !self.receives.take(&mut self.rx.receive) {
                return Ok(false);
            }
            self.rx.message = Some(Message {
                opcode,
                received_bytes: 0,
            });
        }
        if payload_bytes > self.rx.receive.len_bytes - received {
            return Err(Fatal::Violation {
                error: ErrorCode::DDP_TOO_LONG,
                offending: Some(Box::new((*segment, None))),
                receive: WcStatus::LocalLengthError,
            });
        }
        Ok(true)
    }

    /// A Read Response has to continue the oldest Read exactly.
    fn check_response(
        &self,
        segment: &Segment,
        header: &TaggedHeader,
        payload_bytes: u32,
    ) -> Result<(), Fatal> {
        let read = self.reads.outstanding.front();
        let read = read.ok_or_else(|| unexpected(segment))?;
        if header.stag.get() != read.stag {
            return Err(Fatal::segment(ErrorCode::DDP_INVALID_STAG, segment));
        }
        let left = read.sink.len_bytes - read.received_bytes;
        if header.to.get() != u64::from(read.received_bytes)
            || payload_bytes > left
            || (header.control.last() && payload_bytes != left)
        {
            return Err(Fatal::segment(ErrorCode::DDP_BOUNDS, segment));
        }
        Ok(())
    }

    /// Everything of a segment is in its place and its CRC is right.
    #[inline]
    fn finish_segment(
        &mut self,
        stags: &mut StagTable,
        segment: &Segment,
        payload_bytes: u32,
    ) -> Result<(), Fatal> {
        let control = segment.control();
        self.rx.bulk = if payload_bytes >= BULK_BYTES {
            BULK_MEMORY
        } else {
            self.rx.bulk.saturating_sub(1)
        };
        match segment {
            Segment::Untagged(header) => {
                if let Some(message) = &mut self.rx.message {
                    message.received_bytes += payload_bytes;
                    if control.last() {
                        return self.finish_send(stags, segment, header);
                    }
                }
            }
            Segment::Tagged(_) if control.opcode() == Opcode::READ_RESPONSE => {
                if let Some(read) = self.reads.outstanding.front_mut() {
                    read.received_bytes += payload_bytes;
                    if control.last() {
                        if let Some(position) = read.position {
                            self.sq.set_progress(position, Progress::Done);
                        }
                        self.reads.outstanding.pop_front();
                        self.sq.complete(self.tx.sent(), self.num, &self.send_cq);
                        // A Read or a fence may have waited for this.
                        self.tx.wanted = true;
                    }
                }
            }
            Segment::Tagged(_) => {}
        }
        Ok(())
    }

    /// The last segment of a Send: its receive completes.
    #[inline]
    fn finish_send(
        &mut self,
        stags: &mut StagTable,
        segment: &Segment,
        header: &UntaggedHeader,
    ) -> Result<(), Fatal> {
        let mut invalidated = None;
        if header.control.opcode().invalidates() {
            let stag = header.invalidate_stag.get();
            stags
                .invalidate(self.asker, stag, true)
                .map_err(|_| Fatal::Violation {
                    error: ErrorCode::RDMAP_CANNOT_INVALIDATE,
                    offending: Some(Box::new((*segment, None))),
                    receive: WcStatus::RemoteInvalidRequestError,
                })?;
            invalidated = Some(RKey(stag));
        }
        let received = self.rx.message.take().map_or(0, |m| m.received_bytes);
        self.rx.send_msn = self.rx.send_msn.wrapping_add(1);
        self.recv_cq.push(WorkCompletion {
            wr_id: self.rx.receive.wr_id,
            qp: self.num,
            status: WcStatus::Success,
            opcode: WcOpcode::Recv,
            byte_len: received,
            invalidated,
        });
        Ok(())
    }

    /// A Read Request (RFC 5040 §5.2).
    fn read_request(
        &mut self,
        stags: &StagTable,
        segment: &Segment,
        payload: &[u8],
    ) -> Result<(), Fatal> {
        let violation = |error| Fatal::segment(error, segment);
        let Segment::Untagged(header) = segment else {
            return Err(violation(ErrorCode::RDMAP_OPCODE));
        };
        if header.qn.get() != QN_READ_REQUEST {
            return Err(violation(ErrorCode::DDP_INVALID_QN));
        }
        if header.msn.get() != self.rx.read_msn {
            return Err(violation(ErrorCode::DDP_MSN_RANGE));
        }
        if header.mo.get() != 0 {
            return Err(violation(ErrorCode::DDP_INVALID_MO));
        }
        let request = ReadRequest::read_from_bytes(payload).ok();
        let Some(request) = request.filter(|_| header.control.last()) else {
            return Err(violation(ErrorCode::DDP_TOO_LONG));
        };
        // The depth the set-up granted is the number of buffers of queue 1.
        if self.reads.responses.len() >= self.reads.ird {
            return Err(violation(ErrorCode::DDP_NO_BUFFER));
        }
        let length = request.length_bytes.get();
        if length != 0 {
            let (stag, to) = (request.source_stag.get(), request.source_to.get());
            stags
                .remote(self.asker, stag, to, u64::from(length), Access::REMOTE_READ)
                .map_err(|error| Fatal::Violation {
                    error: super::fatal::read_error(error),
                    offending: Some(Box::new((*segment, Some(request)))),
                    receive: WcStatus::WrFlushError,
                })?;
        }
        self.rx.read_msn = self.rx.read_msn.wrapping_add(1);
        self.reads.responses.push_back(Response {
            request,
            msn: header.msn.get(),
        });
        self.tx.wanted = true;
        Ok(())
    }

    /// The peer has sent an FPDU: from the first on this side may send (RFC 5044 §7.1.2).
    #[inline]
    fn first_fpdu(&mut self) {
        if self.rx.before_first {
            self.rx.before_first = false;
            self.tx.may_send = true;
            self.tx.wanted = true;
            self.first_arrived();
        }
    }
}

/// A Read Response that nobody asked for.
fn unexpected(segment: &Segment) -> Fatal {
    Fatal::segment(ErrorCode::RDMAP_OPCODE, segment)
}

fn terminated(segment: &Segment, payload: &[u8]) -> Fatal {
    let Segment::Untagged(header) = segment else {
        return Fatal::segment(ErrorCode::RDMAP_OPCODE, segment);
    };
    if header.qn.get() != QN_TERMINATE {
        return Fatal::segment(ErrorCode::DDP_INVALID_QN, segment);
    }
    match Terminate::parse(payload) {
        Some(terminate) => Fatal::Terminated(terminate),
        None => Fatal::stream(ErrorCode::MPA_FPDU),
    }
}

/// Versions, and whether the opcode exists and fits its kind of segment (RFC 5040 §7.2, RFC 5041
/// §7).
#[inline]
fn check_control(segment: &Segment) -> Result<(), Fatal> {
    let control = segment.control();
    let opcode = control.opcode();
    let error = if control.ddp_version() != 1 {
        if control.tagged() {
            ErrorCode::DDP_TAGGED_VERSION
        } else {
            ErrorCode::DDP_UNTAGGED_VERSION
        }
    } else if control.rdmap_version() != 1 {
        ErrorCode::RDMAP_VERSION
    } else {
        let tagged = opcode == Opcode::RDMA_WRITE || opcode == Opcode::READ_RESPONSE;
        if opcode.0 <= Opcode::TERMINATE.0 && tagged == control.tagged() {
            return Ok(());
        }
        ErrorCode::RDMAP_OPCODE
    };
    // The rest of the header cannot be understood, so it is not sent back.
    Err(Fatal::stream(error))
}
