//! One queue of the controller's side: its queue pair, and what is under way on it.

mod data;
mod furnish;

use std::collections::VecDeque;
use std::sync::Arc;

use capstan_memory::{Buffer, RawBytes, Slab, SlabId};
use capstan_nvme_proto::cqe::Cqe;
use capstan_rdma::Pair;
use capstan_rdma::contract::{
    LKey, PostError, QpNum, QueuePair, RKey, Remote, SendOp, SendWr, Sge,
};
use capstan_rdma::direct::ZERO_COPY_HEAD_BYTES_MAX;
use zerocopy::IntoBytes;

use super::holdings::Holdings;
use super::in_place::InPlaceReceives;
use super::responses::Responses;
use super::shared::RdmaShared;
use super::sinks::{Sink, Sinks};
use super::sources::Sources;
use super::wr_id::WrId;
use crate::data::{CapsuleData, InPlace, Landed, Receive};
use crate::limits::{CQE_BYTES, SQE_BYTES};
use crate::manager::ConnectionId;
use crate::queue::{EndReason, Event, FenceNumber, QueueId, Responded, Tag};

pub(crate) use furnish::not_posted;
pub(super) use furnish::own_bytes;

const _: () = assert!(SQE_BYTES as usize <= ZERO_COPY_HEAD_BYTES_MAX);

/// The keys of the memory that a queue's work requests use.
pub struct Keys {
    /// Of the slab of data buffers.
    pub data: LKey,
    /// How data is pulled into it, or into the other slab.
    pub sinks: Sinks,
    /// The slab of receives, responses and spare buffers, and its key.
    pub queues: (SlabId, LKey),
    /// The shared zeroes, where there are some.
    pub zeroes: Option<Zeroes>,
}

/// Memory that is zero and stays so.
pub struct Zeroes {
    /// The slab, used from its start on.
    pub slab: Arc<Slab>,
    /// The largest push as an SGE.
    pub sge: Sge,
}

impl Keys {
    #[inline]
    fn sge(&self, buffer: &Buffer, len_bytes: u32) -> Sge {
        let (queues, lkey) = self.queues;
        let lkey = if buffer.slab_id() == queues {
            lkey
        } else {
            self.data
        };
        Sge {
            addr: buffer.addr(),
            len_bytes,
            lkey,
        }
    }
}

/// A queue over one queue pair. What is posted leaves when its wire is flushed, or before that
/// where it costs nothing.
pub struct RdmaQueue {
    // Dropped before the sinks and sources, which the device may write and read until then.
    qp: Pair,
    /// Sinks of the pulls under way, oldest first: work requests of a queue pair complete in the
    /// order in which they were posted (`completions_keep_the_order_of_posting`).
    sinks: VecDeque<(Tag, Sink)>,
    /// Sources of the pushes under way.
    sources: Sources,
    keys: Keys,
    /// One response capsule per tag.
    responses: Buffer,
    in_place: InPlaceReceives,
    /// Responses that may be outstanding.
    outstanding: Responses,
    /// The newest response that has left and is not released yet.
    gone: Option<u16>,
    life: Life,
    /// Signaled work requests without a completion.
    sends_outstanding: u32,
    /// Work requests posted since the last doorbell.
    unflushed: u32,
    /// What its wire calls it.
    id: Option<QueueId>,
    /// What its connection manager calls the connection.
    connection: Option<ConnectionId>,
    /// It is among the queues that are to be flushed.
    is_unflushed: bool,
    /// It is among the queues that are to tell of room.
    is_full: bool,
    /// Whether it took what was held when that was tried last.
    takes_held: Option<bool>,
    /// Dropped last: what it has goes to other queues when its queue pair is gone.
    holdings: Holdings,
}

/// How far a queue has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Open,
    /// It has broken.
    Ended,
    /// Its user ends it.
    Ending,
    /// Its user has ended it, and all posted work requests have completed: nothing can land any
    /// more.
    Quiescent,
}

impl RdmaQueue {
    /// A queue over `qp`, with a buffer for its response capsules, and what it has of its device.
    #[must_use]
    pub fn new(qp: Pair, responses: Buffer, keys: Keys, holdings: Holdings) -> Self {
        Self {
            qp,
            sinks: VecDeque::new(),
            sources: Sources::default(),
            keys,
            responses,
            in_place: InPlaceReceives::default(),
            outstanding: Responses::default(),
            gone: None,
            life: Life::Open,
            sends_outstanding: 0,
            unflushed: 0,
            id: None,
            connection: None,
            is_unflushed: false,
            is_full: false,
            takes_held: None,
            holdings,
        }
    }

    /// From now on it notes itself for its wire as `id`.
    pub(super) fn name(&mut self, id: QueueId) {
        self.id = Some(id);
    }

    /// What it shares with its wire.
    #[inline]
    fn shared(&self) -> &RdmaShared {
        self.holdings.shared()
    }

    /// What its connection manager calls the connection, which it has accepted.
    #[must_use]
    pub(crate) fn connection(&self) -> Option<ConnectionId> {
        self.connection
    }

    /// The number of its queue pair.
    pub(super) fn num(&self) -> QpNum {
        self.qp.num()
    }

    /// Its connection is accepted: capsules may stay where they arrive from now on.
    pub fn accepted(&mut self) {
        self.qp.enable_zero_copy_receive(SQE_BYTES);
    }

    /// As [`RdmaQueue::accepted`], by a manager that calls the connection `connection`.
    pub(crate) fn accepted_as(&mut self, connection: ConnectionId) {
        self.connection = Some(connection);
        self.accepted();
    }

    /// The SQE of a capsule that has come and took no receive; `None` when the queue has ended.
    #[inline]
    pub(super) fn sqe_of(&mut self, message: u64) -> Option<[u8; SQE_BYTES as usize]> {
        self.qp.zero_copy_head(message)?.first_chunk().copied()
    }

    /// What has come into a receive: the SQE, and the buffer with what is behind it. The receive is
    /// posted again at once unless it `has_data`.
    pub(super) fn take_received(
        &mut self,
        slot: u32,
        has_data: bool,
    ) -> ([u8; SQE_BYTES as usize], Option<Buffer>) {
        let mut receives = self.holdings.shared().receives();
        let sqe = receives.sqe(slot);
        if has_data {
            return (sqe, receives.take_data(slot));
        }
        let _ = receives.repost(slot, Some(&mut self.qp));
        (sqe, None)
    }

    /// Calls `take` with in-capsule data where it arrived; another process may write it meanwhile.
    /// `true` when `take` says that it has what it wants, or will have copied it before the wire is
    /// polled or armed again: the data is gone then.
    #[inline]
    pub fn consume(&mut self, data: InPlace, mut take: impl FnMut(RawBytes<'_>) -> bool) -> bool {
        let InPlace {
            message,
            offset_bytes,
            ..
        } = data;
        self.qp.take_zero_copy(message, &mut |bytes| {
            take(bytes.skip(offset_bytes as usize))
        })
    }

    /// Puts in-capsule data into a receive, where it can stay. `None` when the queue has ended, and
    /// the data with it.
    pub fn land(&mut self, data: InPlace) -> Option<Landed> {
        let wr_id = self.qp.copy_to_receive(data.message)?;
        let Some(WrId::Recv(receive)) = WrId::decode(wr_id) else {
            return None;
        };
        Some(Landed {
            buffer: self.shared().receives().take_data(receive)?,
            offset_bytes: data.offset_bytes,
            len_bytes: data.len_bytes,
            receive: Receive(Some(receive)),
        })
    }

    /// The data of a capsule is not needed any more.
    pub fn give_back(&mut self, data: CapsuleData) {
        match data {
            CapsuleData::Landed(Landed {
                receive, buffer, ..
            }) => self.post_again(receive, buffer),
            CapsuleData::InPlace(in_place) => {
                self.consume(in_place, |_| true);
            }
            CapsuleData::Copied(_) | CapsuleData::None => {}
        }
    }

    /// Posts a receive that has completed, with the buffer of its in-capsule data.
    pub fn post_again(&mut self, receive: Receive, buffer: Buffer) {
        let Receive(Some(receive)) = receive else {
            return;
        };
        let mut receives = self.holdings.shared().receives();
        if self.has_ended() {
            receives.post_again(receive, buffer, None);
        } else {
            receives.post_again(receive, buffer, Some(&mut self.qp));
        }
    }

    /// Sends the response of the command `tag`. Where nothing `waits` for it and the provider takes
    /// a copy of it now, it takes no work request and has no completion. Otherwise it is posted,
    /// and signaled when something waits, or when enough before it were not.
    #[inline]
    pub fn respond(
        &mut self,
        tag: Tag,
        cqe: &Cqe,
        invalidate: Option<u32>,
        waits: bool,
    ) -> Responded {
        if !waits && self.qp.send_inline(cqe.as_bytes(), invalidate.map(RKey)) {
            self.count_posted();
            return Responded::Released;
        }
        if let Err(error) = self.post_response(tag, cqe, invalidate, waits) {
            self.fail(format!("posting a response failed: {error}"));
        }
        Responded::Leaving
    }

    fn post_response(
        &mut self,
        tag: Tag,
        cqe: &Cqe,
        invalidate: Option<u32>,
        waits: bool,
    ) -> Result<(), PostError> {
        let offset = u32::from(tag.0) * CQE_BYTES;
        self.responses.copy_from(offset as usize, cqe.as_bytes());
        let (_, lkey) = self.keys.queues;
        let sge = Sge {
            addr: self.responses.addr() + u64::from(offset),
            len_bytes: CQE_BYTES,
            lkey,
        };
        let signaled = waits || self.outstanding.is_due();
        let op = SendOp::Send {
            invalidate: invalidate.map(RKey),
            solicited: false,
        };
        self.post(WrId::Respond(tag.0).encode(), op, &[sge], signaled)?;
        self.outstanding.posted(tag.0, signaled);
        if signaled {
            self.sources.followed(tag);
        }
        Ok(())
    }

    /// The response of `slot` has left, and those before it.
    pub(super) fn responded(&mut self, slot: u16) {
        self.outstanding.completed();
        self.gone = Some(slot);
    }

    /// The next command whose response has left and is not released yet, oldest first, and the
    /// buffer its data was pushed from. To be asked until there is none at each
    /// [`Event::Released`](crate::Event::Released).
    #[inline]
    pub fn poll_released(&mut self) -> Option<(Tag, Option<Buffer>)> {
        let newest = self.gone?;
        let slot = self.outstanding.take_oldest();
        if slot.is_none_or(|slot| slot == newest) {
            self.gone = None;
        }
        let tag = Tag(slot?);
        Some((tag, self.take_source(tag)))
    }

    /// Outstanding responses whose Sends no completion will cover, unless others follow.
    #[inline]
    fn unsignaled_responses(&self) -> usize {
        self.outstanding.len() - self.outstanding.signaled()
    }

    /// How many commands are under way, of so many that have a tag: without those of which only the
    /// response is outstanding, and no completion will tell. At least as many as had responses
    /// queued when the last one completed, where the device knows that.
    #[must_use]
    #[inline]
    pub fn in_flight(&self, commands: usize) -> usize {
        let queued = self.qp.outstanding_at_completion() as usize + 1;
        queued.max(commands.saturating_sub(self.unsignaled_responses()))
    }

    /// Whether all of so many commands with a tag are answered and released, and nothing that was
    /// taken without a work request is left to be sent, as far as is known. Where no completion
    /// will tell of the last responses, has the device report them.
    pub fn is_drained(&mut self, commands: usize) -> bool {
        if commands > 0 && commands == self.unsignaled_responses() {
            let reported = self.report_responses();
            if let Err(error) = reported {
                self.fail(format!("posting an empty RDMA WRITE failed: {error}"));
            }
        }
        commands == 0 && !self.qp.needs_drain()
    }

    /// Posts an RDMA WRITE of no bytes behind the responses, which is signaled and needs no key
    /// (InfiniBand Architecture 1.7, C9-88).
    fn report_responses(&mut self) -> Result<(), PostError> {
        let Some(newest) = self.outstanding.newest() else {
            return Ok(());
        };
        let nowhere = Remote {
            addr: 0,
            rkey: RKey(0),
        };
        self.post(
            WrId::Respond(newest).encode(),
            SendOp::Write(nowhere),
            &[],
            true,
        )?;
        self.outstanding.signaled_behind();
        Ok(())
    }

    /// A signaled work request has completed.
    #[inline]
    pub(super) fn completed(&mut self) {
        self.sends_outstanding = self.sends_outstanding.saturating_sub(1);
    }

    /// Capsules that come are dropped from now on.
    pub(super) fn take_nothing_more(&mut self) {
        if self.life == Life::Open {
            self.life = Life::Ended;
        }
    }

    #[inline]
    pub(super) fn has_ended(&self) -> bool {
        self.life != Life::Open
    }

    /// Once it is quiescent: takes out the sinks of pulls that will not complete, and the sources
    /// of pushes.
    fn take_buffers(&mut self) -> impl Iterator<Item = (Tag, Buffer)> + '_ {
        let sinks = self.sinks.drain(..);
        let sinks = sinks.map(|(tag, sink)| (tag, sink.into_buffer()));
        // Those of responses that have left come back with the release, which is told of by now.
        let released: Vec<u16> = match self.gone {
            Some(newest) => self.outstanding.through(newest).collect(),
            None => Vec::new(),
        };
        let sources = self
            .sources
            .take_followed(move |slot| !released.contains(&slot));
        sinks.chain(sources)
    }

    /// Its queue pair has refused a work request: it ends, and [`Event::Ended`] says why.
    #[cold]
    fn fail(&mut self, why: String) {
        if self.life == Life::Open {
            self.life = Life::Ended;
            self.tell(Event::Ended(EndReason::Lost(why)));
        }
    }

    /// Leaves an event for its user with the wire.
    fn tell(&self, event: Event) {
        let event = self.id.map(|id| (id, event));
        self.shared().ready().extend(event);
    }

    /// Its user ends it now, or has ended its connection: it takes nothing more. [`Event::Ended`]
    /// follows where it has not been told of, and [`Event::Quiesced`] when nothing can land in its
    /// buffers any more.
    pub fn end(&mut self) {
        if !self.has_ended() {
            self.tell(Event::Ended(EndReason::Controller));
        }
        if self.life != Life::Quiescent {
            self.life = Life::Ending;
        }
        self.quiesces();
    }

    /// What follows where it has just become quiescent.
    #[inline]
    pub(super) fn quiesces(&mut self) {
        if self.becomes_quiescent() {
            for (tag, buffer) in self.take_buffers().collect::<Vec<_>>() {
                self.tell(Event::Returned(tag, buffer));
            }
            self.tell(Event::Quiesced);
        }
    }

    /// Sets a fence: everything that has arrived by now, in socket buffers and shared memory as
    /// well, comes before [`Event::Fenced`], and so does a capsule of which only the beginning has
    /// arrived, where the provider sees it. None comes where the queue is dropped first.
    pub fn fence(&mut self, number: FenceNumber) {
        let mark = self.arrived();
        if let Some(id) = self.id {
            self.shared().fences().set(id, number, mark);
        }
    }

    /// Whether it has just become quiescent: its user ended it, and all posted work requests have
    /// completed. Returns `true` once.
    #[inline]
    fn becomes_quiescent(&mut self) -> bool {
        let is_over = self.life == Life::Ending && self.sends_outstanding == 0;
        if is_over {
            self.life = Life::Quiescent;
        }
        is_over
    }

    /// Whether work requests wait for their completions, or what was taken without one for the
    /// host to take what came before it.
    #[must_use]
    #[inline]
    pub fn awaits_host(&self) -> bool {
        self.sends_outstanding > 0 || self.qp.write_would_block()
    }

    /// Whether something from the host has arrived here and has not been polled.
    pub fn has_arrivals(&mut self) -> bool {
        let mark = self.arrived();
        !self.qp.has_passed(mark)
    }

    /// A mark behind everything of the host that has arrived here by now.
    fn arrived(&mut self) -> u64 {
        self.qp.arrival_mark()
    }

    /// Whether every capsule of which any byte had arrived at `mark` has its completion.
    pub(super) fn has_passed_begun(&self, mark: u64) -> bool {
        self.qp.has_passed_begun(mark)
    }

    /// Posts a work request; it leaves with the next flush, or before that where it costs nothing.
    fn post(
        &mut self,
        wr_id: u64,
        op: SendOp,
        sges: &[Sge],
        signaled: bool,
    ) -> Result<(), PostError> {
        self.qp.post_send(&SendWr {
            wr_id,
            op,
            sges,
            signaled,
            fence: false,
        })?;
        self.sends_outstanding += u32::from(signaled);
        self.count_posted();
        Ok(())
    }

    #[inline]
    fn count_posted(&mut self) {
        self.count_taken();
        if self.unflushed >= self.qp.doorbell_batch_max() {
            self.ring_doorbell();
        }
    }

    /// The provider has taken something. It leaves with the next doorbell.
    #[inline]
    fn count_taken(&mut self) {
        self.unflushed += 1;
        self.is_to_be_flushed();
    }

    #[inline]
    fn is_to_be_flushed(&mut self) {
        if !self.is_unflushed {
            self.is_unflushed = true;
            self.shared().unflushed().extend(self.id);
        }
    }

    /// The provider is full: there is to be [`Event::Room`](crate::Event::Room). It waits for room
    /// from the next doorbell on.
    #[cold]
    fn wait_for_room(&mut self) {
        if !self.is_full {
            self.is_full = true;
            self.shared().full().extend(self.id);
        }
        self.is_to_be_flushed();
    }

    /// Whether there is room again, for the first time since the provider was full.
    pub(super) fn has_room_again(&mut self) -> bool {
        self.is_full &= self.qp.write_would_block();
        !self.is_full
    }

    #[inline]
    fn ring_doorbell(&mut self) {
        self.unflushed = 0;
        self.qp.ring_doorbell();
    }

    /// Hands everything that was posted to the device.
    #[inline]
    pub(super) fn flush(&mut self) {
        self.is_unflushed = false;
        self.ring_doorbell();
    }
}

impl Drop for RdmaQueue {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.shared().forget(id, self.qp.num());
        }
    }
}
