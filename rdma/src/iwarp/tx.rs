//! Sending: work requests and Read Responses cut into FPDUs, many per system call.
#![expect(
    unsafe_code,
    reason = "gathers headers and registered memory into one system call"
)]

use std::ptr::{self, NonNull};
use std::sync::Arc;

use capstan_memory::Slab;
use zerocopy::IntoBytes;
use zerocopy::network_endian::{U16, U32, U64};

use super::fatal::{Fatal, read_error};
use super::qp::Qp;
use super::read::{Outstanding, request, request_header};
use super::socket::{Link, Piece, Transfer};
use super::sq::Progress;
use super::srq::SGES_MAX;
use super::stag::{Span, StagError, StagTable};
use super::wire::crc::{Crc32c, crc32c};
use super::wire::ddp::{
    CRC_BYTES, Control, LENGTH_BYTES, Opcode, QN_SEND, READ_REQUEST_BYTES, TAGGED_BYTES,
    TaggedHeader, UNTAGGED_BYTES, UntaggedHeader, pad_bytes,
};
use crate::contract::{Access, LKey, Remote, SendOp, Sge, WcStatus};

/// Headers, trailers and short payloads of one batch.
const SCRATCH_BYTES: usize = 32 << 10;
/// Pieces of one system call; the kernel allows 1024.
const PIECES_MAX: usize = 256;
/// A batch takes no further FPDU from here on.
const BATCH_BYTES: usize = 256 << 10;
/// Payloads up to this are copied next to their header: cheaper than another piece.
const INLINE_BYTES: usize = 256;
/// Room one FPDU needs at most in the scratch memory.
const FPDU_SCRATCH_BYTES: usize = INLINE_BYTES + 64;
/// Pieces one FPDU needs at most: its SGEs, and scratch before and after.
const FPDU_PIECES: usize = SGES_MAX as usize + 2;

/// Memory for the parts of a batch that are not registered memory. Raw, because the pieces of a
/// batch point into it while more is added.
struct Scratch {
    base: NonNull<u8>,
    used: usize,
}

impl Scratch {
    fn new() -> Self {
        let memory = Box::leak(vec![0u8; SCRATCH_BYTES].into_boxed_slice());
        Self {
            base: NonNull::from(memory).cast(),
            used: 0,
        }
    }

    fn room(&self) -> usize {
        SCRATCH_BYTES - self.used
    }

    /// Adds bytes; what does not fit is left out (callers ask for room first).
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        let length = bytes.len().min(self.room());
        // SAFETY: `used + length` stays inside the allocation; `bytes` is a live reference to
        // other memory.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.end(), length) };
        self.used += length;
    }

    /// Adds registered memory.
    #[inline]
    fn put_span(&mut self, span: Span<'_>) {
        let length = span.len_bytes().min(self.room());
        // SAFETY: the allocation has `length` more initialized bytes, and nothing refers to them.
        let out = unsafe { std::slice::from_raw_parts_mut(self.end(), length) };
        span.copy_to(out);
        self.used += length;
    }

    #[inline]
    fn end(&self) -> *mut u8 {
        // SAFETY: `used` is at most the size of the allocation.
        unsafe { self.base.as_ptr().add(self.used) }
    }

    #[inline]
    fn from(&self, at: usize) -> &[u8] {
        let at = at.min(self.used);
        // SAFETY: the range lies inside the allocation and is initialized; it is written only
        // through `&mut self`.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().wrapping_add(at), self.used - at) }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let memory = ptr::slice_from_raw_parts_mut(self.base.as_ptr(), SCRATCH_BYTES);
        // SAFETY: leaked from a box of this size in `new`.
        drop(unsafe { Box::from_raw(memory) });
    }
}

/// The message that is being cut.
#[derive(Clone, Copy)]
enum Current {
    /// A work request.
    Request { position: u32, offset: u32 },
    /// The oldest Read Response.
    Response { offset: u32 },
}

/// The sending half of a queue pair.
pub(super) struct Tx {
    scratch: Scratch,
    pieces: Vec<Piece>,
    /// First piece that has not been sent.
    next: usize,
    /// Stream positions at which the FPDUs of the batch end.
    ends: Vec<u64>,
    /// Bytes of the stream built, and handed to TCP.
    built: u64,
    sent: u64,
    /// Position at which the batch starts.
    batch_start: u64,
    current: Option<Current>,
    /// Whose turn it is when both have something.
    responses_turn: bool,
    /// The next Send's and Read Request's message sequence numbers.
    send_msn: u32,
    read_msn: u32,
    /// Longest payload of a tagged and of an untagged segment.
    tagged_max: u32,
    untagged_max: u32,
    crc: bool,
    /// Slabs that the pieces point into although their region has been deregistered.
    keep: Vec<Arc<Slab>>,
    /// The listening side may send only after the first FPDU has come (RFC 5044 §7.1.2).
    pub may_send: bool,
    /// The socket takes nothing now.
    pub blocked: bool,
    /// Something happened that may let more be sent.
    pub wanted: bool,
}

impl Tx {
    pub(super) fn new() -> Self {
        Self {
            scratch: Scratch::new(),
            pieces: Vec::with_capacity(PIECES_MAX + FPDU_PIECES),
            next: 0,
            ends: Vec::with_capacity(PIECES_MAX),
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
            keep: Vec::new(),
            may_send: false,
            blocked: false,
            wanted: false,
        }
    }

    /// Sets what the set-up has agreed on.
    pub(super) fn set_up(&mut self, fpdu_max: usize, crc: bool, may_send: bool) {
        let payload = |header: usize| {
            let room = fpdu_max.saturating_sub(header + CRC_BYTES).max(4);
            // Whole pages where there is room for several: the next segment starts aligned.
            let unit = if room >= 16_384 { 4096 } else { 4 };
            u32::try_from(room - room % unit).unwrap_or(u32::MAX)
        };
        self.tagged_max = payload(TAGGED_BYTES);
        self.untagged_max = payload(UNTAGGED_BYTES);
        self.crc = crc;
        self.may_send = may_send;
    }

    /// Keeps a slab mapped while a batch may point into it.
    pub(super) fn keep(&mut self, slab: &Arc<Slab>) {
        if self.next < self.pieces.len() {
            self.keep.push(Arc::clone(slab));
        }
    }

    /// Whether FPDUs carry a CRC.
    pub(super) fn crc(&self) -> bool {
        self.crc
    }

    /// Bytes handed to TCP so far.
    pub(super) fn sent(&self) -> u64 {
        self.sent
    }

    /// What is left of the FPDU that TCP has a part of; forgets the rest of the batch.
    pub(super) fn take_rest_of_fpdu(&mut self) -> Vec<u8> {
        let between = self.sent == self.batch_start || self.ends.contains(&self.sent);
        let end = self.ends.iter().find(|end| **end > self.sent);
        let owed = match end {
            Some(end) if !between => usize::try_from(end - self.sent).unwrap_or(0),
            _ => 0,
        };
        let mut rest = Vec::with_capacity(owed);
        for piece in &self.pieces[self.next..] {
            let length = piece.len_bytes().min(owed - rest.len());
            if length == 0 {
                break;
            }
            let base = piece.end().wrapping_sub(piece.len_bytes());
            // SAFETY: the pieces of an unfinished batch point into scratch memory or into
            // registered memory that is kept mapped (`keep`), and nobody writes it meanwhile.
            rest.extend_from_slice(unsafe { std::slice::from_raw_parts(base, length) });
        }
        self.reset();
        rest
    }

    fn reset(&mut self) {
        self.pieces.clear();
        self.next = 0;
        self.scratch.used = 0;
        self.ends.clear();
        self.keep.clear();
        self.batch_start = self.built;
    }

    fn has_room(&self) -> bool {
        self.pieces.len() + FPDU_PIECES <= PIECES_MAX
            && self.scratch.room() >= FPDU_SCRATCH_BYTES
            && self.built - self.batch_start < BATCH_BYTES as u64
    }

    /// Adds what was put into the scratch memory since `at` to the pieces.
    #[inline]
    fn add_scratch(&mut self, at: usize) {
        let length = self.scratch.used - at;
        let base = self.scratch.end().wrapping_sub(length);
        match self.pieces.last_mut() {
            Some(last) if last.end() == base => last.extend(length),
            _ => self.pieces.push(Piece::raw(base, length)),
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
        let at = self.scratch.used;
        let pad = pad_bytes(header.len() + length);
        let total = header.len() + length + pad + CRC_BYTES;
        self.scratch.put(header);
        if length <= INLINE_BYTES {
            let scratch = &mut self.scratch;
            if let Err(error) = payload(&mut |span| scratch.put_span(span)) {
                self.scratch.used = at;
                return Err(error);
            }
            self.scratch.put(&[0; 3][..pad]);
            let crc = if self.crc {
                crc32c(self.scratch.from(at))
            } else {
                0
            };
            self.scratch.put(&crc.to_le_bytes());
            self.add_scratch(at);
        } else {
            let mark = (self.pieces.len(), self.pieces.last().map(Piece::len_bytes));
            self.add_scratch(at);
            let mut crc = Crc32c::new();
            let with_crc = self.crc;
            if with_crc {
                crc.update(header);
            }
            let pieces = &mut self.pieces;
            let result = payload(&mut |span| {
                if with_crc {
                    crc.update(span.bytes());
                }
                pieces.push(Piece::span(span));
            });
            if let Err(error) = result {
                self.scratch.used = at;
                self.pieces.truncate(mark.0);
                if let (Some(last), Some(length)) = (self.pieces.last_mut(), mark.1) {
                    last.shorten_to(length);
                }
                return Err(error);
            }
            let at = self.scratch.used;
            self.scratch.put(&[0; 3][..pad]);
            if with_crc && pad != 0 {
                crc.update(&[0; 3][..pad]);
            }
            let crc = if with_crc { crc.value() } else { 0 };
            self.scratch.put(&crc.to_le_bytes());
            self.add_scratch(at);
        }
        self.built += total as u64;
        self.ends.push(self.built);
        Ok(())
    }

    /// Adds an FPDU of scratch bytes only: a header and no payload.
    fn add_bare(&mut self, header: &[u8]) {
        // A payload of nothing cannot fail.
        let _ = self.add_fpdu(header, 0, |_| Ok(()));
    }

    /// Adds an FPDU with an empty ULPDU, the Ready To Receive of RFC 6581 §4.3.1.
    pub(super) fn add_empty_fpdu(&mut self) {
        self.add_bare(&[0; LENGTH_BYTES]);
    }

    /// Adds a zero-length RDMA Write.
    pub(super) fn add_empty_write(&mut self) {
        // Nothing is accessed, so the STag is not checked (RFC 5040 §5.1); 0 is special to some.
        let header = tagged_header(Opcode::RDMA_WRITE, true, 0, Target { stag: 1, to: 0 });
        self.add_bare(header.as_bytes());
    }
}

/// A STag and an offset in it.
#[derive(Clone, Copy)]
struct Target {
    stag: u32,
    to: u64,
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

#[inline]
fn ulpdu_length(header: usize, payload: u32) -> U16 {
    let length = header - LENGTH_BYTES + payload as usize;
    // The payload limits keep within the field.
    U16::new(u16::try_from(length).unwrap_or(u16::MAX))
}

/// Calls `each` with the spans of `length` bytes from `offset` of the memory `sges` name.
#[inline]
pub(super) fn each_span<'t>(
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

impl Qp {
    /// Sends as much as TCP takes.
    pub(super) fn transmit(&mut self, stags: &mut StagTable) -> Result<(), Fatal> {
        self.tx.wanted = false;
        loop {
            if self.tx.next == self.tx.pieces.len() {
                self.tx.reset();
                let built = self.build(stags);
                if built.is_err() {
                    // What was built before the failure goes out first.
                    if let Some(link) = &mut self.link {
                        self.tx.send(link)?;
                        self.sq.complete(self.tx.sent, self.num, &self.send_cq);
                    }
                    return built;
                }
                if self.tx.pieces.is_empty() {
                    // Local work requests may have finished without a byte.
                    self.sq.complete(self.tx.sent, self.num, &self.send_cq);
                    self.tx.blocked = false;
                    return Ok(());
                }
            }
            let Some(link) = &mut self.link else {
                return Ok(());
            };
            let complete = self.tx.send(link)?;
            self.sq.complete(self.tx.sent, self.num, &self.send_cq);
            self.tx.blocked = !complete;
            if !complete {
                return Ok(());
            }
        }
    }

    /// Fills a batch.
    fn build(&mut self, stags: &mut StagTable) -> Result<(), Fatal> {
        while self.tx.has_room() {
            let current = match self.tx.current {
                Some(current) => current,
                None => match self.pick(stags)? {
                    Some(current) => current,
                    None => break,
                },
            };
            match current {
                Current::Request { position, offset } => {
                    self.build_request(stags, position, offset)?;
                }
                Current::Response { offset } => self.build_response(stags, offset)?,
            }
        }
        Ok(())
    }

    /// Chooses the next message: work requests in their order, alternating with Read Responses.
    fn pick(&mut self, stags: &mut StagTable) -> Result<Option<Current>, Fatal> {
        let response = !self.reads.responses.is_empty();
        if response && self.tx.responses_turn {
            return Ok(Some(Current::Response { offset: 0 }));
        }
        match self.pick_request(stags)? {
            None if response => Ok(Some(Current::Response { offset: 0 })),
            request => Ok(request),
        }
    }

    /// The next work request with bytes for the peer. Local ones before it are carried out.
    fn pick_request(&mut self, stags: &mut StagTable) -> Result<Option<Current>, Fatal> {
        if !self.tx.may_send {
            return Ok(None);
        }
        while let Some((position, wqe)) = self.sq.next() {
            if wqe.fence && !self.reads.outstanding.is_empty() {
                return Ok(None);
            }
            let failed = |status| Fatal::Local { position, status };
            match wqe.op {
                SendOp::Send { .. } | SendOp::Write(_) => {
                    return Ok(Some(Current::Request {
                        position,
                        offset: 0,
                    }));
                }
                SendOp::Read(remote) => {
                    // RFC 6581 §6 and verbs: no more Reads than the peer serves.
                    if self.reads.outstanding.len() >= self.reads.ord || !self.tx.has_room() {
                        return Ok(None);
                    }
                    self.start_read(stags, position, remote).map_err(failed)?;
                }
                SendOp::BindWindow {
                    rkey,
                    lkey,
                    addr,
                    len_bytes,
                    access,
                } => {
                    stags
                        .bind(self.asker, rkey, lkey, addr, len_bytes, access)
                        .map_err(|_| failed(WcStatus::MwBindError))?;
                    self.sq.set_progress(position, Progress::Done);
                    self.sq.advance();
                }
                SendOp::LocalInvalidate(rkey) => {
                    stags
                        .invalidate(self.asker, rkey.0, false)
                        .map_err(|_| failed(WcStatus::LocalQpOperationError))?;
                    self.sq.set_progress(position, Progress::Done);
                    self.sq.advance();
                }
            }
        }
        Ok(None)
    }

    /// Asks for a Read.
    fn start_read(
        &mut self,
        stags: &mut StagTable,
        position: u32,
        remote: Remote,
    ) -> Result<(), WcStatus> {
        let nowhere = Sge {
            addr: 0,
            len_bytes: 0,
            lkey: LKey(0),
        };
        let sink = self.sq.sges(position).first().copied().unwrap_or(nowhere);
        if sink.len_bytes != 0 {
            let sink = stags.local(self.asker.pd, &sink, Access::LOCAL_WRITE);
            sink.map_err(|_| WcStatus::LocalProtectionError)?;
        }
        self.add_read_request(stags, Some(position), sink, remote);
        self.sq.advance();
        Ok(())
    }

    /// Adds a Read Request; `position` is `None` for a Ready To Receive.
    pub(super) fn add_read_request(
        &mut self,
        stags: &mut StagTable,
        position: Option<u32>,
        sink: Sge,
        source: Remote,
    ) {
        let stag = stags.read_sink_stag(self.reads.sink);
        let request = request(stag, sink.len_bytes, source.rkey.0, source.addr);
        let mut bytes = [0; READ_REQUEST_BYTES];
        let header = request_header(self.tx.read_msn);
        bytes[..UNTAGGED_BYTES].copy_from_slice(header.as_bytes());
        bytes[UNTAGGED_BYTES..].copy_from_slice(request.as_bytes());
        self.tx.add_bare(&bytes);
        self.tx.read_msn = self.tx.read_msn.wrapping_add(1);
        self.reads.outstanding.push_back(Outstanding {
            position,
            stag,
            sink,
            received_bytes: 0,
        });
    }

    /// Adds one segment of a Send or an RDMA Write.
    fn build_request(
        &mut self,
        stags: &StagTable,
        position: u32,
        offset: u32,
    ) -> Result<(), Fatal> {
        let (sq, tx, pd) = (&self.sq, &mut self.tx, self.asker.pd);
        let wqe = sq.wqe(position);
        let left = wqe.len_bytes - offset;
        let sges = sq.sges(position);
        let result;
        let length;
        match wqe.op {
            SendOp::Write(remote) => {
                length = left.min(tx.tagged_max);
                let at = Target {
                    stag: remote.rkey.0,
                    to: remote.addr.wrapping_add(u64::from(offset)),
                };
                let header = tagged_header(Opcode::RDMA_WRITE, length == left, length, at);
                result = tx.add_fpdu(header.as_bytes(), length, |each| {
                    each_span(stags, pd, sges, offset, length, Access::empty(), each)
                });
            }
            SendOp::Send {
                invalidate,
                solicited,
            } => {
                length = left.min(tx.untagged_max);
                let opcode = Opcode::send(invalidate.is_some(), solicited);
                let header = UntaggedHeader {
                    ulpdu_length: ulpdu_length(UNTAGGED_BYTES, length),
                    control: Control::new(false, length == left, opcode),
                    invalidate_stag: U32::new(invalidate.map_or(0, |rkey| rkey.0)),
                    qn: U32::new(QN_SEND),
                    msn: U32::new(tx.send_msn),
                    mo: U32::new(offset),
                };
                result = tx.add_fpdu(header.as_bytes(), length, |each| {
                    each_span(stags, pd, sges, offset, length, Access::empty(), each)
                });
                if length == left {
                    tx.send_msn = tx.send_msn.wrapping_add(1);
                }
            }
            SendOp::Read(_) | SendOp::BindWindow { .. } | SendOp::LocalInvalidate(_) => {
                // `pick_request` finishes these itself.
                return Ok(());
            }
        }
        result.map_err(|_| Fatal::Local {
            position,
            status: WcStatus::LocalProtectionError,
        })?;
        if length == left {
            let built = Progress::BuiltUpTo(tx.built);
            tx.current = None;
            tx.responses_turn = true;
            self.sq.set_progress(position, built);
            self.sq.advance();
        } else {
            tx.current = Some(Current::Request {
                position,
                offset: offset + length,
            });
        }
        Ok(())
    }

    /// Adds one segment of the oldest Read Response.
    fn build_response(&mut self, stags: &StagTable, offset: u32) -> Result<(), Fatal> {
        let Some(response) = self.reads.responses.front() else {
            self.tx.current = None;
            return Ok(());
        };
        let request = &response.request;
        let left = request.length_bytes.get() - offset;
        let length = left.min(self.tx.tagged_max);
        let at = Target {
            stag: request.sink_stag.get(),
            to: request.sink_to.get().wrapping_add(u64::from(offset)),
        };
        let header = tagged_header(Opcode::READ_RESPONSE, length == left, length, at);
        let (stag, asker) = (request.source_stag.get(), self.asker);
        let source = request.source_to.get().wrapping_add(u64::from(offset));
        let result = self.tx.add_fpdu(header.as_bytes(), length, |each| {
            if length != 0 {
                let bytes = u64::from(length);
                each(stags.remote(asker, stag, source, bytes, Access::REMOTE_READ)?);
            }
            Ok(())
        });
        result.map_err(|error| Fatal::Violation {
            error: read_error(error),
            offending: Some(Box::new((response.segment(), Some(response.request)))),
            receive: WcStatus::WrFlushError,
        })?;
        if length == left {
            self.reads.responses.pop_front();
            self.tx.current = None;
            self.tx.responses_turn = false;
        } else {
            self.tx.current = Some(Current::Response {
                offset: offset + length,
            });
        }
        Ok(())
    }
}

impl Tx {
    /// One system call; `true` when the batch is with TCP.
    fn send(&mut self, link: &mut Link) -> Result<bool, Fatal> {
        // SAFETY: the pieces point into the scratch memory, or into registered memory that is
        // mapped: its region is registered, or `keep` holds the slab.
        let transfer = unsafe { link.send(&mut self.pieces[self.next..]) };
        let mut bytes = match transfer.map_err(Fatal::Io)? {
            Transfer::Bytes(bytes) => bytes,
            Transfer::WouldBlock => return Ok(false),
        };
        self.sent += bytes as u64;
        while let Some(piece) = self.pieces.get_mut(self.next) {
            if bytes < piece.len_bytes() {
                piece.advance(bytes);
                return Ok(false);
            }
            bytes -= piece.len_bytes();
            self.next += 1;
        }
        Ok(true)
    }
}
