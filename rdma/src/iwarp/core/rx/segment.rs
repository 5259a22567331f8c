//! Segments: their checks, where their payload goes, and what follows when one is complete.

use zerocopy::FromBytes;

use super::{BULK_MEMORY, Message};
use crate::contract::{Access, RKey, WcOpcode, WcStatus, WorkCompletion};
use crate::direct::WC_ZERO_COPY;
use crate::iwarp::core::IwarpCore;
use crate::iwarp::core::tx::each_span;
use crate::iwarp::fatal::{Fatal, read_error, tagged_error};
use crate::iwarp::read::Response;
use crate::iwarp::sq::Progress;
use crate::iwarp::stag::{Span, StagError, StagTable};
use crate::iwarp::wire::ddp::{
    Opcode, QN_READ_REQUEST, QN_SEND, QN_TERMINATE, ReadRequest, Segment, TaggedHeader,
    UntaggedHeader,
};
use crate::iwarp::wire::terminate::{ErrorCode, Terminate};

impl IwarpCore {
    /// Calls `each` with where the next `length` bytes of the partial FPDU's payload go.
    pub(in crate::iwarp) fn each_target<'t>(
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
    pub(in crate::iwarp) fn each_target_of<'t>(
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

    /// Checks a Send, an RDMA Write or a Read Response before anything of it is placed; `false`
    /// when a Send has to wait for a receive.
    #[inline]
    pub(in crate::iwarp) fn start_segment(
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

    /// Checks a segment of a Send (RFC 5041 §7.2); returns how many bytes of its message came
    /// before it.
    #[inline]
    pub(in crate::iwarp) fn check_send(
        &self,
        segment: &Segment,
        header: &UntaggedHeader,
    ) -> Result<u32, Fatal> {
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
        Ok(received)
    }

    /// Checks a segment of a Send and takes a receive for the first of a message.
    #[inline]
    fn start_send(
        &mut self,
        segment: &Segment,
        header: &UntaggedHeader,
        payload_bytes: u32,
    ) -> Result<bool, Fatal> {
        let received = self.check_send(segment, header)?;
        if self.rx.message.is_none() {
            // Only as many Sends as the completion queue has room for: TCP holds the peer back
            // meanwhile.
            if !self.recv_cq.has_room() || !self.receives.take(&mut self.rx.receive) {
                return Ok(false);
            }
            self.rx.message = Some(Message {
                opcode: header.control.opcode(),
                received_bytes: 0,
                lent: None,
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

    /// All of a segment is in its place and its CRC is right.
    #[inline]
    pub(in crate::iwarp) fn finish_segment(
        &mut self,
        stags: &mut StagTable,
        segment: &Segment,
        payload_bytes: u32,
    ) -> Result<(), Fatal> {
        let control = segment.control();
        self.rx.bulk = if payload_bytes >= self.rx.bulk_bytes {
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
        let message = self.rx.message.take();
        let lent = message.as_ref().and_then(|message| message.lent);
        self.rx.send_msn = self.rx.send_msn.wrapping_add(1);
        self.recv_cq.push(WorkCompletion {
            wr_id: lent.unwrap_or(self.rx.receive.wr_id),
            qp: self.num,
            status: WcStatus::Success,
            opcode: match lent {
                Some(_) => WC_ZERO_COPY,
                None => WcOpcode::Recv,
            },
            byte_len: message.map_or(0, |message| message.received_bytes),
            invalidated,
        });
        Ok(())
    }

    /// A Read Request (RFC 5040 §5.2).
    pub(in crate::iwarp) fn read_request(
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
                    error: read_error(error),
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
    pub(in crate::iwarp) fn first_fpdu(&mut self) {
        if self.rx.before_first {
            self.rx.before_first = false;
            self.tx.may_send = true;
            self.tx.wanted = true;
            self.begun = true;
        }
    }
}

/// A Read Response that was not asked for.
fn unexpected(segment: &Segment) -> Fatal {
    Fatal::segment(ErrorCode::RDMAP_OPCODE, segment)
}

pub(in crate::iwarp) fn terminated(segment: &Segment, payload: &[u8]) -> Fatal {
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
pub(in crate::iwarp) fn check_control(segment: &Segment) -> Result<(), Fatal> {
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
