//! Sending: work requests and Read Responses cut into FPDUs, many per system call.
#![expect(
    unsafe_code,
    reason = "gathers headers and registered memory into one system call"
)]

mod batch;
mod direct;
mod in_place;
mod messages;
mod scratch;
mod send_inline;

use std::sync::Arc;

use capstan_memory::Slab;
use zerocopy::IntoBytes;
use zerocopy::network_endian::{U16, U32, U64};

use crate::contract::{Access, RKey, Sge};
use crate::iwarp::piece::Piece;
use crate::iwarp::receives::SGES_MAX;
use crate::iwarp::stag::{Span, StagError, StagTable};
use crate::iwarp::wire::crc::{Crc32c, crc32c};
use crate::iwarp::wire::ddp::{
    CRC_BYTES, Control, LENGTH_BYTES, Opcode, QN_SEND, TAGGED_BYTES, TaggedHeader, UNTAGGED_BYTES,
    UntaggedHeader, pad_bytes,
};
use batch::Batch;

/// Most pieces of one system call: the kernel allows 1024 (`UIO_MAXIOV`), and one may be cut in
/// two.
const PIECES_MAX: usize = 1023;
/// A batch takes no further FPDU from here on. The more TCP gets at a time the faster it is: both
/// ends copy faster while they are not at the same cache lines (`docs/lab/tcp.md`).
const BATCH_BYTES: usize = 1 << 20;
/// Payloads up to this are copied next to their header, which is cheaper than another piece.
const INLINE_BYTES: usize = 256;
/// Room one FPDU needs at most in the scratch memory.
const FPDU_SCRATCH_BYTES: usize = INLINE_BYTES + 64;
/// Pieces one FPDU needs at most: its SGEs, and scratch before and after.
const FPDU_PIECES: usize = SGES_MAX as usize + 2;

/// How messages are cut into FPDUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::iwarp) enum Framing {
    /// As long as the length field allows, many to a system call.
    Large,
    /// As long as a TCP segment, many to a system call.
    Segment,
    /// As long as a TCP segment, and each one starts a segment.
    Aligned,
}

/// Longest FPDU that the length field allows, as a multiple of 4.
const FPDU_BYTES_MAX: usize = 65_536;

/// The message that is being cut into FPDUs.
#[derive(Clone, Copy)]
enum Current {
    /// A work request.
    Request { position: u32, offset: u32 },
    /// The oldest Read Response.
    Response { offset: u32 },
}

/// The sending half of a queue pair.
pub(in crate::iwarp) struct Tx {
    batch: Batch,
    /// First piece of the batch that has not been sent.
    next: usize,
    /// Bytes of the stream built, and handed to TCP.
    built: u64,
    sent: u64,
    /// Position at which the batch starts.
    batch_start: u64,
    current: Option<Current>,
    /// A Read Response is next, when a work request waits as well.
    responses_turn: bool,
    /// The next Send's and Read Request's message sequence numbers.
    send_msn: u32,
    read_msn: u32,
    /// Longest payload of a tagged and of an untagged segment.
    tagged_max: u32,
    untagged_max: u32,
    crc: bool,
    framing: Framing,
    /// Slabs that pieces point into without a region that keeps them mapped.
    keep: Vec<Arc<Slab>>,
    /// The rest of a page of which TCP has taken the first part.
    rest_of_page: Vec<u8>,
    /// The listening side may send only after the first FPDU has come (RFC 5044 §7.1.2).
    pub may_send: bool,
    /// The socket takes nothing now.
    pub blocked: bool,
    /// Something has happened that may let more be sent.
    pub wanted: bool,
}

impl Tx {
    pub(in crate::iwarp) fn new() -> Self {
        Self {
            batch: Batch::default(),
            next: 0,
            built: 0,
            sent: 0,
            batch_start: 0,
            current: None,
            responses_turn: false,
            send_msn: 1,
            read_msn: 1,
            tagged_max: 0,
            untagged_max: 0,
            crc: true,
            framing: Framing::Large,
            keep: Vec::new(),
            rest_of_page: Vec::new(),
            may_send: false,
            blocked: false,
            wanted: false,
        }
    }

    /// Sets what the set-up has agreed on.
    pub(super) fn set_up(
        &mut self,
        framing: Framing,
        crc: bool,
        may_send: bool,
        segment_bytes: usize,
    ) {
        self.framing = framing;
        self.crc = crc;
        self.may_send = may_send;
        let fpdu_max = match framing {
            Framing::Large => FPDU_BYTES_MAX,
            Framing::Segment | Framing::Aligned => segment_bytes,
        };
        self.set_fpdu_max(fpdu_max);
    }

    /// The stream continues in memory: FPDUs of any length, without CRC.
    pub(in crate::iwarp) fn move_into_memory(&mut self) {
        self.framing = Framing::Large;
        self.crc = false;
        self.set_fpdu_max(FPDU_BYTES_MAX);
    }

    /// Sets the longest FPDU; RFC 5044 §4.2 wants a multiple of 4.
    fn set_fpdu_max(&mut self, bytes: usize) {
        let fpdu_max = (bytes & !3).clamp(128, FPDU_BYTES_MAX);
        let payload = |header: usize| {
            let room = fpdu_max.saturating_sub(header + CRC_BYTES).max(4);
            // Whole pages where there is room for several: the next segment then starts aligned.
            let unit = if room >= 16_384 { 4096 } else { 4 };
            u32::try_from(room - room % unit).unwrap_or(u32::MAX)
        };
        self.tagged_max = payload(TAGGED_BYTES);
        self.untagged_max = payload(UNTAGGED_BYTES);
    }

    /// Keeps a slab mapped while a batch may point into it.
    pub(in crate::iwarp) fn keep(&mut self, slab: &Arc<Slab>) {
        if self.has_unsent() {
            self.keep.push(Arc::clone(slab));
        }
    }

    /// Whether FPDUs carry a CRC.
    pub(in crate::iwarp) fn crc(&self) -> bool {
        self.crc
    }

    /// Bytes handed to TCP so far.
    pub(in crate::iwarp) fn sent(&self) -> u64 {
        self.sent
    }

    /// What is left of the FPDU that TCP has a part of; forgets the rest of the batch.
    pub(in crate::iwarp) fn take_remaining_of_fpdu(&mut self) -> Vec<u8> {
        let between = self.sent == self.batch_start || self.batch.ends.contains(&self.sent);
        let end = self.batch.ends.iter().find(|end| **end > self.sent);
        let owed = match end {
            Some(end) if !between => usize::try_from(end - self.sent).unwrap_or(0),
            _ => 0,
        };
        let mut rest = Vec::with_capacity(owed);
        for piece in &self.batch.pieces[self.next..] {
            let length = piece.len_bytes().min(owed - rest.len());
            if length == 0 {
                break;
            }
            let base = piece.end().wrapping_sub(piece.len_bytes());
            // SAFETY: the pieces of an unfinished batch point into scratch memory or into
            // registered memory that is kept mapped (`keep`), and nothing writes it meanwhile.
            rest.extend_from_slice(unsafe { std::slice::from_raw_parts(base, length) });
        }
        self.reset();
        rest
    }

    fn reset(&mut self) {
        self.batch.clear();
        self.next = 0;
        self.keep.clear();
        self.batch_start = self.built;
    }

    /// After a run: leaves the memory to other queue pairs, once TCP has all of the batch.
    fn give_memory(&mut self) {
        if self.next == self.batch.pieces.len() {
            self.reset();
            self.batch.give_memory();
        }
    }

    fn has_room(&self) -> bool {
        if self.framing == Framing::Aligned && !self.batch.pieces.is_empty() {
            return false;
        }
        self.batch.pieces.len() + FPDU_PIECES <= PIECES_MAX
            && self.batch.scratch.room() >= FPDU_SCRATCH_BYTES
            && self.built - self.batch_start < BATCH_BYTES as u64
    }

    /// Whether the batch has room for so many FPDUs with so many bytes of payload in all; more than
    /// a batch holds gets one of its own. Not for FPDUs that have a segment each.
    #[inline]
    fn has_room_for(&self, fpdus: usize, bytes: usize) -> bool {
        debug_assert!(self.framing != Framing::Aligned, "a batch of several FPDUs");
        let (before, limit) = (self.built - self.batch_start, BATCH_BYTES as u64);
        self.batch.pieces.len() + fpdus * FPDU_PIECES <= PIECES_MAX
            && self.batch.scratch.room() >= fpdus * FPDU_SCRATCH_BYTES
            && (before == 0 || (before < limit && before + (bytes as u64) < 2 * limit))
    }

    /// Whether the link has nothing of the batch that is being built.
    #[inline]
    fn is_sent(&self) -> bool {
        self.sent == self.batch_start
    }

    /// Whether a part of the batch has not been handed over.
    pub(in crate::iwarp) fn has_unsent(&self) -> bool {
        self.next < self.batch.pieces.len()
    }

    /// Adds what was put into the scratch memory since `at` to the pieces.
    #[inline]
    fn add_scratch(&mut self, at: usize) {
        let length = self.batch.scratch.used() - at;
        let base = self.batch.scratch.end().wrapping_sub(length);
        match self.batch.pieces.last_mut() {
            Some(last) if last.end() == base => last.extend(length),
            _ => self.batch.pieces.push(Piece::raw(base, length)),
        }
    }

    /// Adds one FPDU. `payload` calls its argument with the spans of exactly `length` bytes; when
    /// it fails the FPDU is taken back.
    #[inline]
    fn add_fpdu<'t>(
        &mut self,
        header: &[u8],
        length: u32,
        payload: impl FnOnce(&mut dyn FnMut(Span<'t>)) -> Result<(), StagError>,
    ) -> Result<(), StagError> {
        let length = length as usize;
        let at = self.batch.scratch.used();
        let pad = pad_bytes(header.len() + length);
        let total = header.len() + length + pad + CRC_BYTES;
        self.batch.scratch.put(header);
        if length <= INLINE_BYTES {
            let scratch = &mut self.batch.scratch;
            if let Err(error) = payload(&mut |span| scratch.put_span(span)) {
                self.batch.scratch.cut(at);
                return Err(error);
            }
            self.add_trailer(at, pad);
            self.add_scratch(at);
        } else {
            let mark = (
                self.batch.pieces.len(),
                self.batch.pieces.last().map(Piece::len_bytes),
            );
            self.add_scratch(at);
            let mut crc = self.crc.then(Crc32c::new);
            if let Some(crc) = &mut crc {
                crc.update(header);
            }
            let pieces = &mut self.batch.pieces;
            let result = payload(&mut |span| {
                if let Some(crc) = &mut crc {
                    crc.update_span(span);
                }
                pieces.push(Piece::span(span));
            });
            if let Err(error) = result {
                self.batch.scratch.cut(at);
                self.batch.pieces.truncate(mark.0);
                if let (Some(last), Some(length)) = (self.batch.pieces.last_mut(), mark.1) {
                    last.shorten_to(length);
                }
                return Err(error);
            }
            let scratch = &mut self.batch.scratch;
            let at = scratch.used();
            match crc {
                None => scratch.put_zeroes(pad + CRC_BYTES),
                Some(mut crc) => {
                    if pad != 0 {
                        crc.update(&[0; 3][..pad]);
                    }
                    scratch.put_zeroes(pad);
                    scratch.put(&crc.value().to_le_bytes());
                }
            }
            self.add_scratch(at);
        }
        self.end_fpdu(total);
        Ok(())
    }

    /// Counts an FPDU of `bytes` that was added.
    #[inline]
    fn end_fpdu(&mut self, bytes: usize) {
        self.built += bytes as u64;
        self.batch.ends.push(self.built);
    }

    /// Adds pad and CRC of an FPDU that is in the scratch memory from `at`.
    #[inline]
    fn add_trailer(&mut self, at: usize, pad: usize) {
        let scratch = &mut self.batch.scratch;
        if self.crc {
            scratch.put_zeroes(pad);
            let crc = crc32c(scratch.from(at));
            scratch.put(&crc.to_le_bytes());
        } else {
            scratch.put_zeroes(pad + CRC_BYTES);
        }
    }

    /// Adds an FPDU of scratch bytes only: a header and no payload.
    fn add_bare(&mut self, header: &[u8]) {
        self.batch.take_memory();
        // A payload of nothing cannot fail.
        let _ = self.add_fpdu(header, 0, |_| Ok(()));
    }

    /// Adds an FPDU with an empty ULPDU, the Ready To Receive of RFC 6581 §4.3.1.
    pub(in crate::iwarp) fn add_empty_fpdu(&mut self) {
        self.add_bare(&[0; LENGTH_BYTES]);
    }

    /// Adds a zero-length RDMA Write.
    pub(in crate::iwarp) fn add_empty_write(&mut self) {
        self.add_bare(empty_write().as_bytes());
    }
}

impl Tx {
    /// The pieces of the batch that the link has not taken, in order. They point into the scratch
    /// memory, or into registered memory that is mapped: its region is registered, or `keep` holds
    /// the slab.
    #[inline]
    pub(in crate::iwarp) fn unsent(&mut self) -> &mut [Piece] {
        &mut self.batch.pieces[self.next..]
    }

    /// Bytes in these.
    #[inline]
    pub(in crate::iwarp) fn unsent_bytes(&self) -> u64 {
        self.built - self.sent
    }

    /// Whether each FPDU has to start a TCP segment.
    #[inline]
    pub(in crate::iwarp) fn is_aligned(&self) -> bool {
        self.framing == Framing::Aligned
    }

    /// The link has taken `bytes` of the next `count` pieces. Whether that is all of them.
    pub(in crate::iwarp) fn handle_sent(&mut self, mut bytes: usize, count: usize) -> bool {
        self.sent += bytes as u64;
        for _ in 0..count {
            let piece = &mut self.batch.pieces[self.next];
            if bytes < piece.len_bytes() {
                piece.advance(bytes);
                self.keep_remaining_of_page();
                return false;
            }
            bytes -= piece.len_bytes();
            self.next += 1;
        }
        true
    }
}

impl Crc32c {
    /// Adds registered memory.
    #[inline]
    fn update_span(&mut self, span: Span<'_>) {
        if span.zeroes() {
            self.update_zeroes(span.len_bytes());
        } else {
            self.update(span.bytes());
        }
    }
}

/// A STag and an offset in it.
#[derive(Clone, Copy)]
struct Target {
    stag: u32,
    to: u64,
}

/// The header of a zero-length RDMA Write.
pub(in crate::iwarp) fn empty_write() -> TaggedHeader {
    // Nothing is accessed, so the STag is not checked (RFC 5040 §5.1); some peers give 0 a meaning
    // of its own.
    tagged_header(Opcode::RDMA_WRITE, true, 0, Target { stag: 1, to: 0 })
}

#[inline]
fn tagged_header(opcode: Opcode, last: bool, payload: u32, at: Target) -> TaggedHeader {
    TaggedHeader {
        ulpdu_length: ulpdu_length(TAGGED_BYTES, payload),
        control: Control::new(true, last, opcode),
        stag: U32::new(at.stag),
        to: U64::new(at.to),
    }
}

/// The header of a segment of a Send, with the message sequence number `msn`: `payload` bytes from
/// `offset`.
#[inline]
fn send_header(
    invalidate: Option<RKey>,
    solicited: bool,
    last: bool,
    payload: u32,
    msn: u32,
    offset: u32,
) -> UntaggedHeader {
    let opcode = Opcode::send(invalidate.is_some(), solicited);
    UntaggedHeader {
        ulpdu_length: ulpdu_length(UNTAGGED_BYTES, payload),
        control: Control::new(false, last, opcode),
        invalidate_stag: U32::new(invalidate.map_or(0, |rkey| rkey.0)),
        qn: U32::new(QN_SEND),
        msn: U32::new(msn),
        mo: U32::new(offset),
    }
}

#[inline]
fn ulpdu_length(header: usize, payload: u32) -> U16 {
    let length = header - LENGTH_BYTES + payload as usize;
    // The payload limits keep within the field.
    U16::new(u16::try_from(length).unwrap_or(u16::MAX))
}

/// Calls `each` with the spans of `length` bytes from `offset` of the memory `sges` name.
#[inline]
pub(in crate::iwarp) fn each_span<'t>(
    stags: &'t StagTable,
    pd: u32,
    sges: &[Sge],
    offset: u32,
    length: u32,
    need: Access,
    each: &mut dyn FnMut(Span<'t>),
) -> Result<(), StagError> {
    let (mut skip, mut left) = (offset, length);
    for sge in sges {
        if left == 0 {
            break;
        }
        if skip >= sge.len_bytes {
            skip -= sge.len_bytes;
            continue;
        }
        let take = left.min(sge.len_bytes - skip);
        let part = Sge {
            addr: sge.addr + u64::from(skip),
            len_bytes: take,
            lkey: sge.lkey,
        };
        each(stags.local(pd, &part, need)?);
        left -= take;
        skip = 0;
    }
    if left == 0 {
        Ok(())
    } else {
        Err(StagError::Bounds)
    }
}
