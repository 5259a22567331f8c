//! One connection of RPC-over-RDMA: its queue pair, its credits, and its calls.

mod posting;

use std::collections::VecDeque;
use std::net::SocketAddr;

use capstan_memory::{Account, Buffer, Short};
use capstan_rdma::Pair;
use capstan_rdma::contract::{CmId, QpNum, QueuePair};
use capstan_rpcrdma::credits::{CreditPool, Credits};
use capstan_rpcrdma::header::ErrorReply;
use capstan_rpcrdma::private::Agreed;

use super::call::{Call, NoBuffers, Refusal};
use super::demand::Demand;
use super::device::{Device, Memory};
use super::reply::{self, How, Unsendable};
use super::shares::Shares;
use super::slots::Slots;
use super::wr_id::WrId;
use crate::common::{Common, End};
use crate::limits::{MESSAGE_BYTES, PULL_STALLS, RDMA_CALLS_MAX, SPARE_CALLS_MAX};
use crate::peers::ConnectionName;
use crate::program::{ConnectionNumber, Outcome, Wire};
use crate::task::Task;
use crate::turns::Place;

/// What a connection needs of the others.
pub(super) struct World<'a> {
    pub(super) device: &'a mut Device,
    pub(super) memory: &'a Memory,
    pub(super) credits: &'a mut CreditPool,
    pub(super) shares: &'a mut Shares,
    /// Calls that wait for buffers, in the order in which they came.
    pub(super) short: &'a mut VecDeque<(ConnectionNumber, u16)>,
    /// Calls that are over, with memory for the lists of others.
    pub(super) spare: &'a mut Vec<Call>,
    pub(super) common: &'a mut Common,
}

impl World<'_> {
    /// A call is over.
    fn call_back(&mut self, mut call: Call) {
        call.clear();
        if self.spare.len() < SPARE_CALLS_MAX {
            self.spare.push(call);
        }
    }
}

/// What a connection is made of.
pub(super) struct Parts {
    pub(super) qp: Pair,
    pub(super) number: ConnectionNumber,
    pub(super) peer: SocketAddr,
    pub(super) place: Place,
    pub(super) manager: usize,
    pub(super) id: CmId,
    pub(super) device: usize,
    pub(super) credits: Credits,
    pub(super) account: Account,
    pub(super) agreed: Agreed,
    /// Whether a Send may invalidate a key of the client.
    pub(super) invalidates: bool,
    /// RDMA READs that may be outstanding.
    pub(super) reads_max: u32,
    /// Work requests that its send queue holds.
    pub(super) send_wrs_max: u32,
    pub(super) now_us: u64,
}

/// A connection, from its acceptance on.
pub(super) struct Connection {
    pub(super) parts: Parts,
    demand: Demand,
    /// Receives that are posted.
    receives: Slots<Buffer>,
    calls: Slots<Call>,
    /// Calls with pulls to be posted, oldest first.
    pulling: VecDeque<u16>,
    reads: u32,
    /// Calls that wait for a worker, with the times at which all of them had come.
    ready: VecDeque<(u16, u64)>,
    /// Calls whose replies are to be posted.
    replying: VecDeque<u16>,
    /// Sends without a completion.
    sends: u32,
    /// For each signaled work request without a completion, oldest first: how many are over with
    /// it.
    posted: VecDeque<u32>,
    send_wrs: u32,
    unsignaled: u32,
    unrung: u32,
    /// Calls that the workers have.
    under_way: usize,
    is_ready: bool,
    is_established: bool,
    is_known: bool,
    /// It waits for work requests of the device.
    pub(super) is_waiting: bool,
    /// It is among those whose doorbell is to be rung.
    pub(super) is_unflushed: bool,
    /// When a work request last completed, or there was none.
    progress_us: u64,
}

impl Connection {
    pub(super) fn new(parts: Parts) -> Self {
        Self {
            demand: Demand::default(),
            receives: Slots::new(RDMA_CALLS_MAX),
            calls: Slots::new(RDMA_CALLS_MAX),
            pulling: VecDeque::new(),
            reads: 0,
            ready: VecDeque::new(),
            replying: VecDeque::new(),
            sends: 0,
            posted: VecDeque::new(),
            send_wrs: 0,
            unsignaled: 0,
            unrung: 0,
            under_way: 0,
            is_ready: false,
            is_established: false,
            is_known: false,
            is_waiting: false,
            is_unflushed: false,
            progress_us: parts.now_us,
            parts,
        }
    }

    fn name(&self) -> ConnectionName {
        (Wire::Rdma, self.parts.number)
    }

    pub(super) fn qp_num(&self) -> QpNum {
        self.parts.qp.num()
    }

    /// Posts so many receives.
    pub(super) fn post_receives(&mut self, count: u32, world: &World<'_>) -> Result<(), End> {
        for _ in 0..count {
            let failed = |why: &str| End::Closed(format!("a receive could not be posted: {why}"));
            let page = world.memory.messages.take(MESSAGE_BYTES);
            let page = page.ok_or_else(|| failed("there is no page for each credit"))?;
            let sge = world.device.sge(&page, 0, MESSAGE_BYTES);
            let slot = self.receives.put(page);
            let slot = slot.map_err(|_| failed("there are too many"))?;
            let wr_id = WrId::Receive(slot).encode();
            let posted = self.parts.qp.post_recv(wr_id, &[sge]);
            posted.map_err(|error| failed(&error.to_string()))?;
        }
        Ok(())
    }

    /// The client has taken up the connection.
    pub(super) fn established(&mut self) {
        self.is_established = true;
    }

    /// A message of so many bytes has come into the receive of a slot.
    pub(super) fn received(
        &mut self,
        slot: u16,
        message_bytes: u32,
        world: &mut World<'_>,
    ) -> Result<(), End> {
        let Some(page) = self.receives.take(slot) else {
            return Ok(());
        };
        self.is_established = true;
        if world.common.is_stopping {
            return Ok(());
        }
        let credits = &mut self.parts.credits;
        credits
            .receive()
            .map_err(|error| End::Fault(error.to_string()))?;
        let len = usize::try_from(message_bytes.min(MESSAGE_BYTES)).unwrap_or(0);
        // A private copy: the device may write to the page as long as it likes.
        let mut call = world.spare.pop().unwrap_or_default();
        call.bytes.resize(len, 0);
        page.copy_to(0, &mut call.bytes);
        drop(page);
        match call.plan(self.parts.reads_max > 0) {
            Ok(()) => self.begin(call, world),
            Err(Refusal::Answer(answer, why)) => {
                let peer = self.parts.peer;
                tracing::warn!(target: capstan_rdma::PEER_CAUSED, %peer, "refused a call: {why}");
                self.answer_error(call, &answer, world)
            }
            Err(Refusal::Discard) => {
                world.call_back(call);
                let receives = self.parts.credits.discard();
                self.post_receives(receives, world)
            }
            Err(Refusal::End(why)) => Err(End::Fault(why)),
        }
    }

    fn put_call(&mut self, call: Call) -> Result<u16, End> {
        let slot = self.calls.put(call);
        slot.map_err(|_| End::Fault("it has more calls than there may be".to_owned()))
    }

    fn begin(&mut self, call: Call, world: &mut World<'_>) -> Result<(), End> {
        let needs_nothing = call.needs_nothing();
        let slot = self.put_call(call)?;
        if needs_nothing {
            self.is_whole(slot, world);
            return Ok(());
        }
        if world.short.is_empty() && self.lease(slot, world)?.is_ok() {
            return Ok(());
        }
        world.short.push_back((self.parts.number, slot));
        Ok(())
    }

    /// Tries to give a call its buffers. Inside, why there are none now.
    pub(super) fn lease(
        &mut self,
        slot: u16,
        world: &mut World<'_>,
    ) -> Result<Result<(), Short>, End> {
        let Some(call) = self.calls.get_mut(slot) else {
            return Ok(Ok(()));
        };
        let now_us = world.common.now_us;
        match call.lease(world.memory, self.parts.account, world.device, now_us) {
            Ok(()) => {}
            Err(NoBuffers::Yet(short)) => return Ok(Err(short)),
            Err(NoBuffers::Device(error)) => {
                let why = format!("memory for a call could not be registered: {error}");
                return Err(End::Closed(why));
            }
        }
        if call.next_pull().is_some() {
            self.pulling.push_back(slot);
            self.advance(world)?;
        } else {
            self.is_whole(slot, world);
        }
        Ok(Ok(()))
    }

    /// A call may be carried out, if all of it is there.
    fn is_whole(&mut self, slot: u16, world: &mut World<'_>) {
        if self.calls.get_mut(slot).is_some_and(Call::is_whole) {
            self.ready.push_back((slot, world.common.now_us));
            self.tell_ready(world.common);
        }
    }

    fn tell_ready(&mut self, common: &mut Common) {
        if !self.is_ready && !self.ready.is_empty() {
            self.is_ready = true;
            common.calls.turns.push(self.parts.place, self.name());
        }
    }

    /// When the call came that waits for its turn for longest.
    pub(super) fn oldest_us(&self) -> Option<u64> {
        self.ready.front().map(|(_, came_us)| *came_us)
    }

    /// It is its turn: has its next call carried out.
    pub(super) fn start_next(&mut self, world: &mut World<'_>) {
        self.is_ready = false;
        if let Some((slot, came_us)) = self.ready.pop_front()
            && let Some(call) = self.calls.get_mut(slot)
        {
            let mut task = world
                .common
                .calls
                .task((Wire::Rdma, self.parts.number), self.parts.peer);
            task.slot = slot;
            task.arrived_us = came_us;
            call.fill(&mut task, &mut world.common.calls.spare);
            world.common.start(task);
            self.under_way = self.under_way.saturating_add(1);
        }
        self.tell_ready(world.common);
    }

    /// A call was carried out.
    pub(super) fn answered(
        &mut self,
        mut task: Box<Task>,
        world: &mut World<'_>,
    ) -> Result<(), End> {
        self.under_way = self.under_way.saturating_sub(1);
        let (slot, answer) = (task.slot, task.answer);
        let Some(call) = self.calls.get_mut(slot) else {
            return Ok(());
        };
        call.take_back(&mut task);
        match answer.outcome {
            Outcome::Reply => {
                let stream = task.reply.get(..answer.reply_bytes).unwrap_or_default();
                let inline_bytes = self.parts.agreed.send_inline_bytes;
                let how = How {
                    inline_bytes,
                    invalidates: self.parts.invalidates,
                    pushes_max: self.parts.send_wrs_max.saturating_sub(1),
                };
                let prepared = reply::prepare(call, stream, &answer, how, world.memory);
                call.reply = Some(prepared.map_err(unsendable)?);
                self.replying.push_back(slot);
                if !std::mem::replace(&mut self.is_known, true) {
                    world.common.peers.known((Wire::Rdma, self.parts.number));
                }
            }
            Outcome::None => {
                self.end_call(slot, world);
                let receives = self.parts.credits.discard();
                self.post_receives(receives, world)?;
            }
            Outcome::End => {
                let why =
                    "it sent what is no message of RPC, or nothing behind which could be read";
                return Err(End::Fault(why.to_owned()));
            }
        }
        world.common.calls.task_back(task);
        self.advance(world)
    }

    /// Answers a call with an RDMA_ERROR.
    fn answer_error(
        &mut self,
        mut call: Call,
        error: &ErrorReply,
        world: &mut World<'_>,
    ) -> Result<(), End> {
        let prepared = reply::prepare_error(error, world.memory);
        call.reply = Some(prepared.map_err(unsendable)?);
        let slot = self.put_call(call)?;
        self.replying.push_back(slot);
        self.advance(world)
    }

    /// A signaled work request has completed.
    pub(super) fn completed(&mut self, wr_id: WrId, world: &mut World<'_>) -> Result<(), End> {
        self.progress_us = world.common.now_us;
        let over = self.posted.pop_front().unwrap_or(0);
        self.send_wrs = self.send_wrs.saturating_sub(over);
        world.device.give_send_wrs(over);
        match wr_id {
            WrId::Pull(slot) => {
                self.reads = self.reads.saturating_sub(1);
                if let Some(call) = self.calls.get_mut(slot) {
                    call.pull_completed();
                }
                self.is_whole(slot, world);
            }
            WrId::Reply(slot) => {
                self.sends = self.sends.saturating_sub(1);
                self.end_call(slot, world);
            }
            WrId::Receive(_) | WrId::Push => {}
        }
        self.advance(world)
    }

    fn end_call(&mut self, slot: u16, world: &mut World<'_>) {
        if let Some(call) = self.calls.take(slot) {
            world.call_back(call);
        }
    }

    /// Hands what was posted to the device.
    pub(super) fn flush(&mut self) {
        if std::mem::take(&mut self.unrung) > 0 {
            self.parts.qp.ring_doorbell();
        }
    }

    /// Whether the doorbell is to be rung.
    pub(super) fn needs_flush(&self) -> bool {
        self.unrung > 0
    }

    /// Whether all its calls are answered, and the answers have left.
    pub(super) fn is_drained(&self) -> bool {
        self.calls.len() == 0 && !self.parts.qp.needs_drain()
    }

    /// Whether its client has to go on.
    pub(super) fn is_awaited(&self) -> bool {
        !self.is_established || !self.posted.is_empty()
    }

    /// What its client left as it is for longer than `stall_us`, in words.
    pub(super) fn overdue(&self, stall_us: u64, now_us: u64) -> Option<&'static str> {
        if !self.is_awaited() {
            return None;
        }
        let before_us = |times: u64| now_us.saturating_sub(stall_us.saturating_mul(times));
        let mut pulls = self.calls.iter().filter_map(Call::pulled_since_us);
        if pulls.any(|since_us| since_us < before_us(PULL_STALLS)) {
            return Some("all data of a call did not come in time, expected that it sends faster");
        }
        if self.progress_us >= before_us(1) {
            return None;
        }
        Some(if !self.is_established {
            "it did not take up the connection that it asked for"
        } else if self.reads > 0 {
            "it left data unsent that is pulled from it, expected it in time"
        } else {
            "it took no reply, expected that it receives them"
        })
    }

    /// Ends it: the device reaches none of its memory from then on. Returns what goes back, with
    /// the buffers of the calls that workers have.
    pub(super) fn close(self) -> Closed {
        let Self {
            parts,
            calls,
            receives,
            ready,
            send_wrs,
            under_way,
            ..
        } = self;
        let Parts {
            qp,
            credits,
            manager,
            id,
            peer,
            device,
            ..
        } = parts;
        drop(qp);
        drop(receives);
        drop(ready);
        Closed {
            credits,
            manager,
            id,
            peer,
            device,
            send_wrs,
            under_way,
            calls: calls.into_iter().collect(),
        }
    }
}

/// What is left of a connection.
pub(super) struct Closed {
    pub(super) credits: Credits,
    pub(super) manager: usize,
    pub(super) id: CmId,
    pub(super) peer: SocketAddr,
    pub(super) device: usize,
    pub(super) send_wrs: u32,
    pub(super) under_way: usize,
    pub(super) calls: Vec<(u16, Call)>,
}

#[expect(clippy::needless_pass_by_value, reason = "the shape of `map_err`")]
fn unsendable(error: Unsendable) -> End {
    tracing::error!("{error}: the connection ends");
    End::Closed("a reply could not be sent".to_owned())
}
