//! Messages cut into FPDUs: which one is next, and what goes into the next FPDU.

use zerocopy::IntoBytes;

use super::{Current, Framing, Target, each_span, send_header, tagged_header};
use crate::contract::{Access, LKey, Remote, SendOp, Sge, WcStatus};
use crate::iwarp::core::IwarpCore;
use crate::iwarp::fatal::{Fatal, read_error};
use crate::iwarp::read::{Outstanding, request, request_header};
use crate::iwarp::sq::Progress;
use crate::iwarp::stag::StagTable;
use crate::iwarp::wire::ddp::{Opcode, READ_REQUEST_BYTES, UNTAGGED_BYTES};

impl IwarpCore {
    /// Before the driver sends: takes the memory of a batch.
    #[inline]
    pub(in crate::iwarp) fn begin_transmit(&mut self) {
        self.tx.wanted = false;
        self.tx.batch.take_memory();
    }

    /// After the driver has sent: leaves that memory to others.
    #[inline]
    pub(in crate::iwarp) fn end_transmit(&mut self) {
        self.tx.give_memory();
    }

    /// Whether the next FPDU is to be as long as a TCP segment of now, which has to be asked for
    /// ([`IwarpCore::handle_segment_bytes`]): it may have become shorter since.
    #[inline]
    pub(in crate::iwarp) fn poll_segment_bytes(&self) -> bool {
        self.tx.framing == Framing::Aligned && !self.tx.has_unsent()
    }

    /// A TCP segment has `bytes`.
    pub(in crate::iwarp) fn handle_segment_bytes(&mut self, bytes: usize) {
        self.tx.set_fpdu_max(bytes);
    }

    /// Builds the next batch of FPDUs, once the link has all of the last. Whether there is anything
    /// for the link.
    ///
    /// # Errors
    /// A work request, or an RDMA Read of the peer, cannot be carried out. What was built before it
    /// is to be sent first.
    pub(in crate::iwarp) fn poll_transmit(&mut self, stags: &mut StagTable) -> Result<bool, Fatal> {
        if !self.tx.has_unsent() {
            self.tx.reset();
        }
        if self.tx.is_sent() {
            self.build(stags)?;
            if self.tx.batch.pieces.is_empty() {
                // Local work requests may have finished without a byte.
                self.handle_flushed(true);
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The link has taken what it takes now, which is all when it `took_all`: completes the work
    /// requests that are with it.
    #[inline]
    pub(in crate::iwarp) fn handle_flushed(&mut self, took_all: bool) {
        self.sq.complete(self.tx.sent, self.num, &self.send_cq);
        self.tx.blocked = !took_all;
    }

    /// Whether `fpdus` FPDUs with `bytes` of payload in all can be added behind all that is posted
    /// so far; `None` when something has to be built or sent first.
    #[inline]
    pub(in crate::iwarp) fn poll_room(&mut self, fpdus: usize, bytes: usize) -> Option<bool> {
        self.sq.ring();
        self.tx.batch.take_memory();
        if self.tx.blocked || self.may_join_batch(fpdus, bytes) {
            return Some(!self.tx.blocked);
        }
        None
    }

    /// As [`IwarpCore::poll_room`], once everything posted so far is built.
    pub(in crate::iwarp) fn poll_room_behind_all(
        &mut self,
        stags: &mut StagTable,
        fpdus: usize,
        bytes: usize,
    ) -> bool {
        // A failure is found again by the next `poll_transmit`, behind what was built before it.
        self.build(stags).is_ok() && self.may_join_batch(fpdus, bytes)
    }

    #[inline]
    fn may_join_batch(&self, fpdus: usize, bytes: usize) -> bool {
        let behind_all = self.tx.current.is_none() && self.sq.next().is_none();
        behind_all && self.tx.has_room_for(fpdus, bytes)
    }

    /// Fills a batch.
    pub(in crate::iwarp) fn build(&mut self, stags: &mut StagTable) -> Result<(), Fatal> {
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

    /// The next work request with bytes for the peer. Local ones before it are carried out here.
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
    pub(in crate::iwarp) fn add_read_request(
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
                let last = length == left;
                let header = send_header(invalidate, solicited, last, length, tx.send_msn, offset);
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
