//! The transmission phase of one connection, without sockets: bytes in, I/O out, replies out.
//!
//! Requests are taken in order and answered as they complete. What a connection may keep busy is
//! bounded ([`REQUESTS_MAX`], [`HELD_BYTES_MAX`]); beyond that its bytes are left in the socket.

mod replies;

use std::collections::VecDeque;

use capstan_memory::Buffer;

use super::handshake::Negotiated;
use super::in_progress::{InProgress, token, untoken};
use super::reply::Outgoing;
use super::request::{CHUNK_BYTES, Command, HEADER_BYTES, Request};
use super::wire::NbdError;
use crate::allocation::Allocated;
use crate::driver::{Op, SubmitError};
use crate::error::IoError;
use crate::front_ends::block::{BlockQueue, Fault, Geometry};
use crate::front_ends::lease::Place;

/// Requests of one connection in progress or waiting to be sent.
pub(crate) const REQUESTS_MAX: usize = 256;
/// Registered memory one connection may hold, in bytes.
pub(crate) const HELD_BYTES_MAX: u32 = 16 << 20;
/// Replies that wait to be sent, beyond which no request is taken. Each chunk is one: those of the
/// requests in progress, and errors at once.
const REPLIES_MAX: usize = 2 * REQUESTS_MAX;

const _: () = assert!(
    HELD_BYTES_MAX >= 2 * CHUNK_BYTES,
    "a read must be able to be sent while the next is under way"
);
/// The request that is being taken; the next one is looked at when it is done.
#[derive(Debug)]
enum Current {
    /// I/Os of it are to be submitted.
    Submit { slot: u16 },
    /// Its data is being received.
    Receive {
        slot: u16,
        lease: Option<Buffer>,
        filled: u32,
    },
    /// Data of a refused request is thrown away, and then it is answered: a client may take an
    /// answer before it has sent everything for a broken connection, as libnbd does.
    Skip { left_bytes: u32, request: Request },
}

/// One connection in its transmission phase.
#[derive(Debug)]
pub(crate) struct Transmission {
    geometry: Geometry,
    negotiated: Negotiated,
    in_progress: Vec<Option<InProgress>>,
    free: Vec<u16>,
    current: Option<Current>,
    /// Slots of requests that end with a flush.
    flushes: VecDeque<u16>,
    /// Slots of block statuses whose controller is to be asked what is allocated.
    lookups: VecDeque<u16>,
    /// Slots of block statuses with reads to be submitted.
    scans: VecDeque<u16>,
    /// What the handshake left to send.
    first: Vec<u8>,
    output: VecDeque<Outgoing>,
    held_bytes: u32,
    end: Option<&'static str>,
    /// A reply was cut short: nothing can be sent any more.
    broken: bool,
}

impl Transmission {
    /// A transmission phase that begins.
    #[must_use]
    pub(crate) fn new(geometry: Geometry, negotiated: Negotiated) -> Self {
        let slots = u16::try_from(REQUESTS_MAX).unwrap_or(u16::MAX);
        Self {
            geometry,
            negotiated,
            in_progress: (0..slots).map(|_| None).collect(),
            free: (0..slots).rev().collect(),
            current: None,
            flushes: VecDeque::with_capacity(REQUESTS_MAX),
            lookups: VecDeque::new(),
            scans: VecDeque::new(),
            first: Vec::new(),
            output: VecDeque::with_capacity(REPLIES_MAX),
            held_bytes: 0,
            end: None,
            broken: false,
        }
    }

    /// Sends the last replies of the handshake before anything else.
    pub(crate) fn send_first(&mut self, bytes: Vec<u8>) {
        self.first = bytes;
    }

    /// Why no more requests are taken, once it is so. The connection is to be closed when
    /// [`Transmission::is_idle`].
    #[must_use]
    pub(crate) fn end(&self) -> Option<&'static str> {
        self.end
    }

    /// Takes no more requests.
    pub(crate) fn stop(&mut self, reason: &'static str) {
        self.end.get_or_insert(reason);
        while let Some(slot) = self.lookups.pop_front().or_else(|| self.scans.pop_front()) {
            self.give_up(slot);
        }
        // What is being received will not come; I/Os not submitted yet will not be.
        let slot = match self.current.take() {
            Some(Current::Submit { slot }) => slot,
            Some(Current::Receive { slot, lease, .. }) => {
                self.drop_lease(lease);
                slot
            }
            Some(Current::Skip { .. }) | None => return,
        };
        self.give_up(slot);
    }

    /// Submits nothing more of a request.
    fn give_up(&mut self, slot: u16) {
        if let Some(in_progress) = self.in_progress_mut(slot) {
            in_progress.started = in_progress.ios();
            in_progress.error.get_or_insert(NbdError::Eio);
        }
        self.close_if_finished(slot);
    }

    /// Nothing can be sent any more, and no more requests are taken.
    pub(crate) fn break_off(&mut self, reason: &'static str) {
        self.broken = true;
        while let Some(outgoing) = self.output.pop_front() {
            self.drop_lease(outgoing.into_lease());
        }
        self.first = Vec::new();
        self.stop(reason);
    }

    /// Nothing is in progress, and nothing waits to be sent.
    #[must_use]
    pub(crate) fn is_idle(&self) -> bool {
        self.free.len() == self.in_progress.len() && self.output.is_empty() && self.first.is_empty()
    }

    /// It waits for memory or a place in the queue.
    #[must_use]
    pub(crate) fn is_blocked(&self) -> bool {
        match &self.current {
            Some(Current::Submit { .. }) => true,
            Some(Current::Receive { .. }) => !self.wants_input(),
            Some(Current::Skip { .. }) | None => !self.flushes.is_empty() || !self.scans.is_empty(),
        }
    }

    /// Bytes can be taken now.
    #[must_use]
    pub(crate) fn wants_input(&self) -> bool {
        match &self.current {
            Some(Current::Receive { lease, filled, .. }) => lease
                .as_ref()
                .is_some_and(|lease| *filled < lease.len_bytes()),
            Some(Current::Skip { .. }) => true,
            Some(Current::Submit { .. }) => false,
            None => self.has_room(),
        }
    }

    fn in_progress_mut(&mut self, slot: u16) -> Option<&mut InProgress> {
        self.in_progress.get_mut(usize::from(slot))?.as_mut()
    }

    fn has_room(&self) -> bool {
        self.end.is_none()
            && !self.free.is_empty()
            && self.output.len() < REPLIES_MAX
            && self.held_bytes <= HELD_BYTES_MAX - CHUNK_BYTES
    }

    /// Takes bytes from the start of `bytes`, and returns how many. The rest is to come again,
    /// after a completion or with more behind it.
    pub(crate) fn input(&mut self, bytes: &[u8], queue: &mut dyn BlockQueue) -> usize {
        let mut taken = 0;
        // Bounded: every round takes bytes or ends.
        loop {
            self.advance(queue);
            let rest = bytes.get(taken..).unwrap_or_default();
            let count = match &mut self.current {
                Some(Current::Skip {
                    left_bytes,
                    request,
                }) => {
                    let count = rest.len().min(*left_bytes as usize);
                    *left_bytes -= u32::try_from(count).unwrap_or(*left_bytes);
                    if *left_bytes == 0 {
                        let request = *request;
                        self.current = None;
                        self.refuse(&request);
                    }
                    count
                }
                Some(Current::Submit { .. }) => 0,
                Some(Current::Receive { lease, filled, .. }) => {
                    let room = lease.as_ref().map_or(0, |l| l.len_bytes() - *filled);
                    let count = rest.len().min(room as usize);
                    if let (Some(lease), Some(data)) = (lease, rest.get(..count)) {
                        lease.copy_from(*filled as usize, data);
                    }
                    self.payload_received(count, queue);
                    count
                }
                None => self.take_request(rest, queue),
            };
            if count == 0 {
                return taken;
            }
            taken += count;
        }
    }

    /// Where the data that comes next belongs; `None` when what comes next is no data.
    pub(crate) fn payload(&mut self) -> Option<Place<'_>> {
        let Some(Current::Receive {
            lease: Some(lease),
            filled,
            ..
        }) = &mut self.current
        else {
            return None;
        };
        let len_bytes = lease.len_bytes() - *filled;
        (len_bytes > 0).then_some(Place::Lease {
            lease,
            start: *filled,
            len_bytes,
        })
    }

    /// `count` bytes were received into [`Transmission::payload`].
    pub(crate) fn payload_received(&mut self, count: usize, queue: &mut dyn BlockQueue) {
        if let Some(Current::Receive { filled, .. }) = &mut self.current {
            *filled += u32::try_from(count).unwrap_or(0);
        }
        self.advance(queue);
    }

    /// Takes a request from the start of `bytes`.
    fn take_request(&mut self, bytes: &[u8], queue: &mut dyn BlockQueue) -> usize {
        if !self.has_room() {
            return 0;
        }
        let Some(header) = bytes.first_chunk::<HEADER_BYTES>() else {
            return 0;
        };
        let Some(mut request) = Request::parse(header, &self.geometry) else {
            self.stop("a request without its magic");
            return HEADER_BYTES;
        };
        let is_scan = matches!(request.command, Some(Command::BlockStatus { .. }));
        if is_scan && !self.negotiated.allocation {
            request.refused = Some(NbdError::Einval);
        }
        if request.refused.is_some() {
            let left_bytes = request.payload_bytes();
            if left_bytes == 0 {
                self.refuse(&request);
            } else {
                self.current = Some(Current::Skip {
                    left_bytes,
                    request,
                });
            }
            return HEADER_BYTES;
        }
        if request.command == Some(Command::Disconnect) {
            self.stop("the client disconnected");
            return HEADER_BYTES;
        }
        if let Some(slot) = self.free.pop()
            && let Some(entry) = self.in_progress.get_mut(usize::from(slot))
        {
            *entry = Some(InProgress::new(request, self.geometry.lba_bytes));
            self.current = match request.command {
                Some(Command::Write { .. }) => Some(Current::Receive {
                    slot,
                    lease: None,
                    filled: 0,
                }),
                Some(Command::BlockStatus { .. }) => {
                    if self.geometry.holes {
                        self.lookups.push_back(slot);
                    } else {
                        self.begin_scan(slot, None);
                    }
                    None
                }
                _ => Some(Current::Submit { slot }),
            };
        }
        self.advance(queue);
        HEADER_BYTES
    }

    /// Submits what can be submitted. To be called after completions of any kind.
    pub(crate) fn advance(&mut self, queue: &mut dyn BlockQueue) {
        while let Some(&slot) = self.flushes.front() {
            if !self.start(slot, Op::Flush, 0, None, queue) {
                return;
            }
            self.flushes.pop_front();
        }
        while let Some(slot) = self.lookups.pop_front() {
            if let Some(in_progress) = self.in_progress_mut(slot) {
                in_progress.in_flight += 1;
                let (slba, nlb) = in_progress.request.lbas;
                queue.look_up(token(slot, 0), slba, nlb);
            }
        }
        // Bounded by the reads of each, which are submitted or wait.
        while let Some(&slot) = self.scans.front() {
            if self.submit_next(slot, queue) {
                continue;
            }
            let waits = |in_progress: &mut InProgress| in_progress.started < in_progress.ios();
            if self.in_progress_mut(slot).is_some_and(waits) {
                break;
            }
            // One that has failed is gone already.
            if self.scans.front() == Some(&slot) {
                self.scans.pop_front();
            }
        }
        // Bounded by the I/Os of one request: `step` ends or submits one.
        while self.step(queue) {}
    }

    /// One step of the current request; `false` when there is none that can be done.
    fn step(&mut self, queue: &mut dyn BlockQueue) -> bool {
        let Some(current) = self.current.take() else {
            return false;
        };
        let (Current::Submit { slot } | Current::Receive { slot, .. }) = current else {
            self.current = Some(current);
            return false;
        };
        let Some(in_progress) = self
            .in_progress
            .get(usize::from(slot))
            .and_then(Option::as_ref)
        else {
            return false;
        };
        let chunk = in_progress.started;
        if chunk == in_progress.ios() {
            return false;
        }
        let len_bytes = in_progress
            .data(chunk)
            .map_or(0, |(_, len_bytes)| len_bytes);
        let op = in_progress.op(chunk, self.geometry.lba_bytes);
        match current {
            Current::Submit { .. } => {
                self.current = Some(current);
                self.submit_next(slot, queue)
            }
            Current::Receive { lease: None, .. } => {
                let lease = self.take_lease(len_bytes, queue);
                let taken = lease.is_some();
                self.current = Some(Current::Receive {
                    slot,
                    lease,
                    filled: 0,
                });
                taken
            }
            Current::Receive {
                lease: Some(lease),
                filled,
                ..
            } if filled < len_bytes => {
                self.current = Some(Current::Receive {
                    slot,
                    lease: Some(lease),
                    filled,
                });
                false
            }
            Current::Receive {
                lease: Some(lease), ..
            } => self.submit_write(slot, op, chunk, lease, queue),
            Current::Skip { .. } => false,
        }
    }

    /// Submits the next I/O of a request that sends no data; `false` when it cannot be now, or
    /// there is none.
    fn submit_next(&mut self, slot: u16, queue: &mut dyn BlockQueue) -> bool {
        let Some(in_progress) = self
            .in_progress
            .get(usize::from(slot))
            .and_then(Option::as_ref)
        else {
            return false;
        };
        let io = in_progress.started;
        if io == in_progress.ios() {
            return false;
        }
        let op = in_progress.op(io, self.geometry.lba_bytes);
        let lease = match in_progress.data(io) {
            None => None,
            Some((_, len_bytes)) => match self.take_lease(len_bytes, queue) {
                None => return false,
                lease => lease,
            },
        };
        self.start(slot, op, io, lease, queue)
    }

    /// Submits a chunk of a write that has been received.
    fn submit_write(
        &mut self,
        slot: u16,
        op: Op,
        chunk: u32,
        lease: Buffer,
        queue: &mut dyn BlockQueue,
    ) -> bool {
        let filled = lease.len_bytes();
        let (started, lease) = self.try_start(slot, op, chunk, Some(lease), queue);
        self.current = Some(Current::Receive {
            slot,
            lease,
            filled: if started { 0 } else { filled },
        });
        started
    }

    fn take_lease(&mut self, len_bytes: u32, queue: &mut dyn BlockQueue) -> Option<Buffer> {
        if self.held_bytes > HELD_BYTES_MAX - len_bytes {
            return None;
        }
        let lease = queue.take(len_bytes)?;
        self.held_bytes += len_bytes;
        Some(lease)
    }

    fn drop_lease(&mut self, lease: Option<Buffer>) {
        if let Some(lease) = lease {
            self.held_bytes -= lease.len_bytes();
        }
    }

    /// As [`Transmission::try_start`], dropping the lease when there is no room.
    fn start(
        &mut self,
        slot: u16,
        op: Op,
        chunk: u32,
        lease: Option<Buffer>,
        queue: &mut dyn BlockQueue,
    ) -> bool {
        let (started, lease) = self.try_start(slot, op, chunk, lease, queue);
        self.drop_lease(lease);
        started
    }

    /// Submits an I/O. `false`, and the lease, when there is no room for it now.
    fn try_start(
        &mut self,
        slot: u16,
        op: Op,
        chunk: u32,
        lease: Option<Buffer>,
        queue: &mut dyn BlockQueue,
    ) -> (bool, Option<Buffer>) {
        let (result, lease) = match queue.submit(token(slot, chunk), op, lease) {
            Ok(()) => (Ok(()), None),
            Err(refused) => match refused.reason {
                SubmitError::Busy => return (false, refused.buffer),
                SubmitError::Invalid(error) => (Err(error), refused.buffer),
            },
        };
        let Some(in_progress) = self.in_progress_mut(slot) else {
            return (true, lease);
        };
        in_progress.in_flight += 1;
        if !in_progress.flushed {
            in_progress.started += 1;
        }
        if let Err(error) = result {
            self.finished(slot, chunk, Err(error), lease);
        }
        (true, None)
    }

    /// What was asked with `token` is answered: `None` where that tells nothing.
    pub(crate) fn looked_up(&mut self, token: u64, allocated: Option<&Allocated>) {
        let (slot, _) = untoken(token);
        if let Some(in_progress) = self.in_progress_mut(slot) {
            in_progress.in_flight -= 1;
        }
        self.begin_scan(slot, allocated);
    }

    /// Begins the reads of a block status, if there are any.
    fn begin_scan(&mut self, slot: u16, allocated: Option<&Allocated>) {
        if self.end.is_some() {
            return self.give_up(slot);
        }
        if let Some(in_progress) = self.in_progress_mut(slot)
            && let Some(scan) = &mut in_progress.scan
        {
            scan.begin(allocated, in_progress.request.lbas.0);
            if scan.reads() > 0 {
                return self.scans.push_back(slot);
            }
        }
        self.close_if_finished(slot);
    }

    /// An I/O submitted with `token` is finished.
    pub(crate) fn completed(
        &mut self,
        token: u64,
        result: Result<(), IoError>,
        lease: Option<Buffer>,
    ) {
        let (slot, chunk) = untoken(token);
        self.finished(slot, chunk, result, lease);
    }

    fn finished(
        &mut self,
        slot: u16,
        chunk: u32,
        result: Result<(), IoError>,
        lease: Option<Buffer>,
    ) {
        let Some(in_progress) = self.in_progress_mut(slot) else {
            return self.drop_lease(lease);
        };
        in_progress.in_flight -= 1;
        let command = in_progress.request.command;
        match (result, command) {
            (Ok(()), Some(Command::Read)) if in_progress.error.is_none() => {
                if let Some(lease) = lease {
                    self.chunk_read(slot, chunk, lease);
                }
            }
            (Ok(()), Some(Command::Trim { fua: true })) if !in_progress.flushed => {
                in_progress.flushed = true;
                self.flushes.push_back(slot);
                return self.drop_lease(lease);
            }
            (Ok(()), Some(Command::BlockStatus { .. })) => {
                if let (Some(scan), Some(lease)) = (&mut in_progress.scan, &lease) {
                    scan.was_read(chunk, lease);
                }
                let is_pass_done = in_progress.is_finished() && in_progress.error.is_none();
                let goes_on = is_pass_done
                    && in_progress
                        .scan
                        .as_mut()
                        .is_some_and(|scan| scan.begin_second_pass());
                if goes_on {
                    self.scans.push_back(slot);
                }
                self.drop_lease(lease);
            }
            (Ok(()), _) => self.drop_lease(lease),
            (Err(error), _) => {
                tracing::debug!("an I/O of an NBD client failed: {error}");
                let error = NbdError::from(Fault::of(&error));
                in_progress.error.get_or_insert(error);
                if let Some(Command::Read | Command::BlockStatus { .. }) = command {
                    // What is not submitted yet is not worth the trouble.
                    in_progress.started = in_progress.ios();
                }
                self.drop_lease(lease);
            }
        }
        self.close_if_finished(slot);
    }
}
