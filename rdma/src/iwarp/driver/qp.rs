//! A queue pair as the driver has it: the core of a connection, its link, and how it is watched.
#![expect(unsafe_code, reason = "has the link read and write registered memory")]

use std::ops::Range;
use std::sync::Arc;

use capstan_memory::Slab;

use super::notice::{Link2Cm, Notice};
use super::watch::Watch;
use crate::contract::{RKey, Remote};
use crate::direct::WriteSource;
use crate::iwarp::core::rx::Received;
use crate::iwarp::core::{IwarpCore, RunOutcome};
use crate::iwarp::fatal::Fatal;
use crate::iwarp::link::shared::{Memory, SharedLink};
use crate::iwarp::link::socket::waiting_bytes;
use crate::iwarp::link::{Link, preempted};
use crate::iwarp::piece::StreamIo;
use crate::iwarp::stag::StagTable;

/// A queue pair and what it is connected by.
pub(in crate::iwarp) struct Qp {
    pub core: IwarpCore,
    pub link: Option<Link>,
    /// The rings of a link that has ended, as data in them was lent.
    pub lent_rings: Option<Memory>,
    /// Where to report what happens to the connection.
    pub cm: Option<Link2Cm>,
    /// In the engine's list of busy queue pairs.
    pub busy: bool,
    /// How the engine's epoll watches the socket.
    pub watch: Watch,
    /// The peer sends no more, and no further event will come: receive until its end is found.
    pub hung_up: bool,
    /// Runs in a row that found nothing to do.
    pub idle_runs: u32,
    /// There is more to do without waiting for the socket.
    pub pending: bool,
}

impl Qp {
    pub(in crate::iwarp) fn new(core: IwarpCore, cm: Link2Cm) -> Self {
        Self {
            core,
            link: None,
            lent_rings: None,
            cm: Some(cm),
            busy: false,
            watch: Watch::None,
            hung_up: false,
            idle_runs: 0,
            pending: false,
        }
    }

    /// Continues the connection through shared memory.
    pub(super) fn move_into(&mut self, link: SharedLink) {
        self.core.move_into_memory();
        self.link = Some(Link::Shared(Box::new(link)));
    }

    /// Receives, with at most `calls_max` calls, and sends what is possible now.
    pub(super) fn run(
        &mut self,
        stags: &mut StagTable,
        calls_max: u32,
    ) -> Result<RunOutcome, Fatal> {
        let received = self.receive(stags, calls_max);
        if self.core.poll_begun()
            && let Some(cm) = &self.cm
        {
            cm.tell(Notice::FirstArrived);
        }
        let received = received?;
        let tx = &self.core.tx;
        let mut sent = false;
        if tx.wanted || tx.blocked {
            let before = tx.sent();
            self.transmit(stags)?;
            sent = self.core.tx.sent() != before;
        }
        self.pending = received == Received::More;
        let ran = self.core.ran(received, sent);
        // Only room for completions is missing, and polling makes it.
        self.pending |= received == Received::Stalled && ran == RunOutcome::Idle;
        Ok(ran)
    }

    fn receive(&mut self, stags: &mut StagTable, calls_max: u32) -> Result<Received, Fatal> {
        self.core.begin_receive();
        let received = self.receive_calls(stags, calls_max);
        self.core.end_receive();
        received
    }

    fn receive_calls(&mut self, stags: &mut StagTable, calls_max: u32) -> Result<Received, Fatal> {
        let mut outcome = Received::Nothing;
        for _ in 0..calls_max {
            if !self.core.handle_buffered(stags)? {
                return Ok(Received::Stalled);
            }
            // No more than the program takes at once: the rest would be copied after all.
            if self.core.rx.lent.is_enough() {
                return Ok(Received::More);
            }
            outcome = self.fill(stags)?;
            match outcome {
                Received::Nothing => return Ok(outcome),
                Received::Some => break,
                Received::More | Received::Stalled => {}
            }
        }
        if self.core.handle_buffered(stags)? {
            Ok(outcome)
        } else {
            Ok(Received::Stalled)
        }
    }

    /// One receive call.
    fn fill(&mut self, stags: &StagTable) -> Result<Received, Fatal> {
        let Some(link) = &mut self.link else {
            return Ok(Received::Nothing);
        };
        if let Link::Shared(link) = link
            && let Some(lending) = self.core.poll_lending(stags)?
        {
            let (before, data_bytes, after) = (lending.before, lending.data_bytes, lending.after);
            // SAFETY: the pieces are spans the table has just resolved and its borrow keeps mapped;
            // `after` is the free end of the stream buffer, which nothing else has a reference to.
            let lent = unsafe { link.receive_around(before, data_bytes, after) };
            if let Some((base, bytes)) = lent.map_err(Fatal::Io)? {
                return self.core.handle_lent(stags, base, bytes);
            }
        }
        let pieces = self.core.poll_receive(stags)?;
        // SAFETY: the first pieces are spans the table has just resolved and its borrow keeps
        // mapped; the last is the free end of the stream buffer, which the core has borrowed.
        let received = unsafe { link.receive(pieces) };
        match received.map_err(Fatal::Io)? {
            StreamIo::WouldBlock => Ok(Received::Nothing),
            StreamIo::Bytes(bytes) => self.core.handle_received(stags, bytes),
        }
    }

    /// Sends as much as the link takes.
    pub(in crate::iwarp) fn transmit(&mut self, stags: &mut StagTable) -> Result<(), Fatal> {
        let result = self.hand_over(stags);
        if let Some(link) = &mut self.link {
            link.publish();
        }
        result
    }

    /// As [`Qp::transmit`], but a peer in shared memory does not see it yet.
    fn hand_over(&mut self, stags: &mut StagTable) -> Result<(), Fatal> {
        self.core.begin_transmit();
        let result = self.hand_over_batches(stags);
        self.core.end_transmit();
        result
    }

    fn hand_over_batches(&mut self, stags: &mut StagTable) -> Result<(), Fatal> {
        loop {
            if self.core.poll_segment_bytes()
                && let Some(link) = &self.link
            {
                self.core.handle_segment_bytes(link.segment_bytes());
            }
            let built = self.core.poll_transmit(stags);
            if let Ok(false) = built {
                return Ok(());
            }
            let Some(link) = &mut self.link else {
                return built.map(drop);
            };
            let took_all = send(&mut self.core, link)?;
            self.core.handle_flushed(took_all);
            // What was built before a failure has gone out first.
            built?;
            if !took_all {
                return Ok(());
            }
        }
    }

    /// Builds everything posted so far. Returns whether `fpdus` FPDUs with `bytes` of payload in
    /// all can be added behind it; to make room for them, what was built is handed over.
    #[inline]
    fn join_batch(
        &mut self,
        stags: &mut StagTable,
        fpdus: usize,
        bytes: usize,
    ) -> Result<bool, Fatal> {
        match self.core.poll_room(fpdus, bytes) {
            Some(room) => Ok(room),
            None => self.make_room_in_batch(stags, fpdus, bytes),
        }
    }

    /// As [`Qp::join_batch`], where something has to be built or handed over first.
    #[cold]
    fn make_room_in_batch(
        &mut self,
        stags: &mut StagTable,
        fpdus: usize,
        bytes: usize,
    ) -> Result<bool, Fatal> {
        if !self.core.poll_room_behind_all(stags, fpdus, bytes) {
            self.hand_over(stags)?;
        }
        Ok(self.core.poll_room(fpdus, bytes) == Some(true))
    }

    /// As [`Pair::send_inline`](crate::Pair::send_inline).
    pub(in crate::iwarp) fn send_inline(
        &mut self,
        stags: &mut StagTable,
        bytes: &[u8],
        invalidate: Option<RKey>,
    ) -> Result<bool, Fatal> {
        let able = self.core.sends_inline(bytes.len()) && self.link.is_some();
        if !able || !self.join_batch(stags, 1, bytes.len())? {
            return Ok(false);
        }
        self.core.tx.add_send(bytes, invalidate);
        Ok(true)
    }

    /// Adds an RDMA WRITE of `range` of `slab` to the batch, behind everything posted so far.
    /// `false` when that is too much for one batch, when TCP is full, and where pages may not
    /// change on the way.
    pub(in crate::iwarp) fn write_from_slab(
        &mut self,
        stags: &mut StagTable,
        remote: Remote,
        slab: &Arc<Slab>,
        range: &Range<usize>,
    ) -> Result<bool, Fatal> {
        if !self.writes_in_place() {
            return Ok(false);
        }
        let Some(fpdus) = self.core.fpdus_in_place(slab, range) else {
            return Ok(false);
        };
        let joins = self.join_batch(stags, fpdus, range.len())?;
        if joins {
            self.core.tx.add_in_place(remote, slab, range);
        }
        Ok(joins)
    }

    /// Whether pages that may change can be sent from where they are.
    #[inline]
    pub(in crate::iwarp) fn writes_in_place(&self) -> bool {
        matches!(self.link, Some(Link::Tcp(_))) && self.core.writes_in_place()
    }

    /// Writes `len_bytes` of `source` to `remote` at once, behind everything posted so far. `false`
    /// when the ring has no room for all of that, or there is no ring.
    pub(in crate::iwarp) fn write_inline(
        &mut self,
        stags: &mut StagTable,
        remote: Remote,
        len_bytes: u32,
        source: &mut WriteSource<'_>,
    ) -> Result<bool, Fatal> {
        if !matches!(self.link, Some(Link::Shared(_))) || len_bytes == 0 {
            return Ok(false);
        }
        self.core.sq.ring();
        if !self.core.tx.blocked {
            self.hand_over(stags)?;
        }
        let Some(write) = self.core.poll_direct(remote, len_bytes) else {
            return Ok(false);
        };
        let Some(Link::Shared(link)) = &mut self.link else {
            return Ok(false);
        };
        let sent = link.send_with(write.total_bytes(), |send| write.compose(source, send));
        let sent = sent.map_err(Fatal::Io)?;
        if sent {
            self.core.handle_direct(write);
        }
        Ok(sent)
    }

    /// Bytes of the stream that have been received.
    pub(in crate::iwarp) fn received_bytes(&self) -> u64 {
        match &self.link {
            Some(Link::Shared(link)) => link.received_bytes(),
            _ => self.core.rx.received_bytes,
        }
    }

    /// Bytes of the stream that have arrived and are not received yet.
    pub(in crate::iwarp) fn waiting_bytes(&self) -> u64 {
        match &self.link {
            Some(Link::Shared(link)) => link.waiting_bytes(),
            Some(link) => link.tcp().map_or(0, waiting_bytes),
            None => 0,
        }
    }

    /// Before anything else is received: gives back room in the ring and stream buffers. What the
    /// program has not taken yet is copied.
    pub(super) fn give_back_lent(&mut self) {
        self.core.give_back_lent();
        self.lent_rings = None;
        if let Some(Link::Shared(link)) = &mut self.link {
            link.give_back(self.busy);
        }
    }
}

/// One system call, or few; `true` when the link has all of the batch.
fn send(core: &mut IwarpCore, link: &mut Link) -> Result<bool, Fatal> {
    let tx = &mut core.tx;
    let aligned = tx.is_aligned();
    while tx.has_unsent() {
        let bytes = tx.unsent_bytes();
        let unsent = tx.unsent();
        let count = match link {
            Link::Tcp(_) => preempted::pieces_of_call(unsent, bytes),
            // Copied by this thread, which can be preempted at any time.
            _ => unsent.len(),
        };
        // SAFETY: what the pieces point into is mapped (`Tx::unsent`).
        let sent = unsafe { link.send(&mut unsent[..count], aligned) };
        let whole = match sent.map_err(Fatal::Io)? {
            StreamIo::Bytes(bytes) => tx.handle_sent(bytes, count),
            StreamIo::WouldBlock => false,
        };
        if !whole {
            return Ok(false);
        }
    }
    Ok(true)
}
