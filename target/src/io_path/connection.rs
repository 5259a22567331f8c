//! One connection: its queue pair, its queue, and the commands in flight on it.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;

use capstan_memory::{Account, Buffer, PAGE_BYTES, Slab};
use capstan_nvme_proto::cqe::Cqe;
use capstan_rdma::contract::{
    CmId, LKey, PostError, QueuePair, RKey, Remote, SendOp, SendWr, Sge, Source,
};
use capstan_subsystem::{Association, ConnId, IoQueue, Permit, PortId, QueueSizes};
use zerocopy::IntoBytes;

use super::command::{Command, Holds, Own, Responding};
use super::phase::Phase;
use super::queue_shares::Charge;
use super::responses::Responses;
use super::stall::Progress;
use super::transfer::Sinks;
use super::wr_id::WrId;
use crate::limits::{
    CQE_BYTES, SGL_DESCRIPTORS_MAX, SGL_LIST_BYTES, SQE_BYTES, SQES_IN_PLACE_AT, slots,
};

/// What identifies a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Identity {
    pub(super) id: ConnId,
    pub(super) index: usize,
    pub(super) fabric: usize,
    /// Index of the device's port in the fabric.
    pub(super) port: usize,
    pub(super) cm_id: CmId,
    pub(super) listener: PortId,
    pub(super) local: SocketAddr,
    pub(super) peer: SocketAddr,
    /// The sizes that the host asked for when it connected.
    pub(super) sizes: QueueSizes,
    /// Its host has a controller, and connects another queue of it.
    pub(super) known: bool,
}

/// The keys of the memory that a connection's work requests use.
pub(super) struct Keys {
    pub(super) data: LKey,
    pub(super) sinks: Sinks,
    /// Receives, responses and spares.
    pub(super) queues: LKey,
    /// All of the shared zeroes.
    pub(super) zeroes: Option<Sge>,
}

/// A transport connection and the NVMe queue it carries.
pub(super) struct Connection {
    pub(super) identity: Identity,
    /// It is not, or not yet, the queue of a permitted host: it has a place among strangers.
    pub(super) has_place: bool,
    /// The completions it may have waiting beyond those of a place, as a discovery controller's
    /// queue.
    pub(super) completions_beside_place: u32,
    /// Its part of the memory for queues.
    pub(super) charge: Option<Charge>,
    /// The association whose queue it is, once connected.
    pub(super) association: Option<Arc<Association>>,
    pub(super) phase: Phase,
    pub(super) qp: Box<dyn QueuePair>,
    /// Receives that are this connection's own; none where they are shared.
    pub(super) receive_slots: Vec<u32>,
    /// The data half of an I/O queue.
    pub(super) queue: Option<IoQueue>,
    /// The Disconnect command that waits for the others to be answered.
    pub(super) delete: Option<(u16, Permit)>,
    /// As many entries as there ever were commands in flight at once.
    pub(super) commands: Vec<Command>,
    /// The free ones: the last one used is taken first, as it is in the caches.
    free: Vec<u16>,
    /// One response capsule per command slot.
    responses: Buffer,
    /// Of a discovery controller's queue, pages for the SGL descriptors of commands.
    lists: Vec<Buffer>,
    pub(super) keys: Keys,
    /// Responses that may be on their way.
    on_their_way: Responses,
    /// Commands that were under way at the same time when a response was last reported to have
    /// gone.
    together: usize,
    /// The account for its data buffers.
    pub(super) account: Account,
    /// A buffer of its own, when no command has it: for a small command that finds no other, and
    /// for everything that an Admin queue returns.
    pub(super) spare: Option<Buffer>,
    /// Commands that wait for a data buffer, oldest first.
    pub(super) waiting: VecDeque<u16>,
    /// Whether it is in the list of connections with waiting commands.
    pub(super) starved: bool,
    /// Whether it is in the list of those whose spare buffer is free again.
    pub(super) spared: bool,
    /// Whether its host makes progress.
    pub(super) progress: Progress,
    /// Signaled work requests without a completion.
    pub(super) sends_outstanding: u32,
    /// Commands the storage engine has.
    pub(super) disk_outstanding: u32,
    /// Whether it is missing from the list of those whose doorbell is rung at the end of the turn.
    pub(super) rung: bool,
    /// Work requests posted since the doorbell was rung.
    unrung: u32,
    /// Work requests that commands with several host buffers may have beyond their two.
    extra_wrs: u32,
}

impl Connection {
    pub(super) fn new(
        identity: Identity,
        qp: Box<dyn QueuePair>,
        receive_slots: Vec<u32>,
        responses: Buffer,
        keys: Keys,
        now_us: u64,
    ) -> Self {
        Self {
            identity,
            has_place: true,
            completions_beside_place: 0,
            charge: None,
            association: None,
            phase: Phase::accepted(now_us, identity.known),
            qp,
            receive_slots,
            queue: None,
            delete: None,
            commands: Vec::new(),
            free: Vec::new(),
            responses,
            lists: Vec::new(),
            keys,
            on_their_way: Responses::default(),
            together: 0,
            account: Account::COMMON,
            spare: None,
            waiting: VecDeque::new(),
            starved: false,
            spared: false,
            progress: Progress::default(),
            sends_outstanding: 0,
            disk_outstanding: 0,
            rung: true,
            unrung: 0,
            extra_wrs: 0,
        }
    }

    /// Its host is permitted: it gets memory of its own instead of a place.
    pub(super) fn settle(&mut self, keys: Keys, [responses, spare]: [Buffer; 2]) {
        self.has_place = false;
        self.responses = responses;
        self.spare = Some(spare);
        self.waiting
            .reserve(usize::from(self.identity.sizes.entries));
        self.keys = keys;
    }

    /// It is a discovery controller's: it keeps its place, and returns data through the place's
    /// `page`. The SGL descriptors of its commands come into `lists`.
    pub(super) fn keep_place(&mut self, page: Buffer, lists: Vec<Buffer>) {
        self.spare = Some(page);
        self.lists = lists;
        self.waiting
            .reserve(usize::from(self.identity.sizes.entries));
    }

    /// Posts the receive of the `at`th SQE behind its responses, which takes that and a list of SGL
    /// descriptors.
    pub(super) fn post_in_place(&mut self, at: u16) -> Result<(), PostError> {
        let sge = |addr, len_bytes| Sge {
            addr,
            len_bytes,
            lkey: self.keys.queues,
        };
        let sqe = sge(self.responses.addr() + in_place(at) as u64, SQE_BYTES);
        let wr_id = WrId::RecvInPlace(at).encode();
        let Some((page, offset)) = self.list(at) else {
            return self.qp.post_recv(wr_id, &[sqe]);
        };
        let list = sge(page.addr() + offset as u64, SGL_LIST_BYTES);
        self.qp.post_recv(wr_id, &[sqe, list])
    }

    /// Where the SGL descriptors behind the `at`th SQE arrive.
    fn list(&self, at: u16) -> Option<(&Buffer, usize)> {
        let offset = usize::from(at) * SGL_LIST_BYTES as usize;
        let page = self.lists.get(offset / PAGE_BYTES)?;
        Some((page, offset % PAGE_BYTES))
    }

    /// Copies out `len_bytes` of them.
    pub(super) fn list_in_place(&self, at: u16, len_bytes: u32) -> Box<[u8]> {
        let mut list = vec![0; len_bytes.min(SGL_LIST_BYTES) as usize];
        if let Some((page, offset)) = self.list(at) {
            page.copy_to(offset, &mut list);
        }
        list.into()
    }

    /// Copies out the SQE that has arrived in such a receive.
    pub(super) fn sqe_in_place(&self, at: u16) -> [u8; SQE_BYTES as usize] {
        let mut sqe = [0; SQE_BYTES as usize];
        self.responses.copy_to(in_place(at), &mut sqe);
        sqe
    }

    /// Whether a command is not answered, or a response is on its way.
    pub(super) fn has_commands(&self) -> bool {
        self.commands.len() > self.free.len()
    }

    pub(super) fn qp(&mut self) -> &mut dyn QueuePair {
        &mut *self.qp
    }

    /// Takes a free command slot; `None` when the host has more commands outstanding than its
    /// queue has entries.
    pub(super) fn take_slot(&mut self) -> Option<u16> {
        self.free.pop().or_else(|| {
            let slot = u16::try_from(self.commands.len()).ok()?;
            let within = slot < slots(self.identity.sizes.entries);
            within.then(|| self.commands.push(Command::default()))?;
            Some(slot)
        })
    }

    /// Frees a slot, with what its response was made from.
    pub(super) fn free_slot(&mut self, slot: u16) {
        if let Command::Responding(responding) = self.take_command(slot) {
            self.take_back(responding);
        }
        self.free.push(slot);
    }

    /// Frees a slot whose command has no response now, or had it without one of its own.
    pub(super) fn free_slot_of(&mut self, slot: u16, holds: Holds) {
        self.put_back(holds);
        self.free.push(slot);
    }

    /// Frees what a command holds.
    pub(super) fn put_back(&mut self, holds: Holds) {
        self.take_back(holds.into());
    }

    fn take_back(&mut self, responding: Responding) {
        let (spare, extra_wrs) = responding.into_parts();
        self.extra_wrs -= extra_wrs;
        if spare.is_some() {
            self.spare = spare;
        }
    }

    /// Makes sure that the send queue has room for the command that holds this: for one buffer of
    /// the host it always has (`limits::send_wrs`), for a list of them when those before it have
    /// gone. To be called for the next command only: it has that room from then on.
    pub(super) fn has_room_for(&mut self, holds: &mut Holds) -> bool {
        let extra = holds.host.as_slice().len().saturating_sub(1);
        let extra = u32::try_from(extra).unwrap_or(u32::MAX);
        if holds.extra_wrs < extra {
            if self.extra_wrs.saturating_add(extra) > SGL_DESCRIPTORS_MAX {
                return false;
            }
            holds.extra_wrs = extra;
            self.extra_wrs += extra;
        }
        true
    }

    /// Takes the command out of its slot, to carry it on.
    pub(super) fn take_command(&mut self, slot: u16) -> Command {
        std::mem::take(self.command(slot))
    }

    /// The command in a slot that `take_slot` gave.
    pub(super) fn command(&mut self, slot: u16) -> &mut Command {
        &mut self.commands[usize::from(slot)]
    }

    pub(super) fn closing(&self) -> bool {
        matches!(self.phase, Phase::Closing { .. })
    }

    /// Commands that are not answered, or whose response is on its way and will be reported.
    pub(super) fn in_flight(&self) -> usize {
        let taken = self.commands.len() - self.free.len();
        taken - self.on_their_way.len() + self.on_their_way.told()
    }

    /// Commands that are under way at the same time, as far as is known: those in flight, or those
    /// that came while the last response that was reported was on its way.
    pub(super) fn together(&self) -> usize {
        let sent = self.qp.sent_behind() as usize + 1;
        self.in_flight().max(self.together).max(sent)
    }

    /// Whether no command is in flight, nor a response on its way.
    pub(super) fn quiet(&self) -> bool {
        self.commands.len() == self.free.len() && !self.qp.has_unsent()
    }

    /// Posts the response capsule of `slot`, which [`Connection::response`] has filled. It is
    /// signaled when something waits for it, or when enough before it were not.
    pub(super) fn post_response(
        &mut self,
        slot: u16,
        (sge, waits): (Sge, bool),
        invalidate: Option<RKey>,
    ) -> Result<(), PostError> {
        let signaled = waits || self.on_their_way.is_due();
        let op = SendOp::Send {
            invalidate,
            solicited: false,
        };
        self.post(WrId::Respond(slot).encode(), op, &[sge], signaled)?;
        self.on_their_way.posted(slot, signaled);
        Ok(())
    }

    /// Where only unsignaled responses may be on their way, posts an RDMA WRITE of no bytes behind
    /// them, which is signaled and needs no key (InfiniBand Architecture 1.7, C9-88). Returns
    /// whether there were any.
    pub(super) fn ask_for_responses(&mut self) -> Result<bool, PostError> {
        let newest = self.on_their_way.newest();
        let Some(newest) = newest.filter(|_| self.in_flight() == 0) else {
            return Ok(false);
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
        self.on_their_way.asked();
        Ok(true)
    }

    /// The response of `slot` has gone, and with it those before it. Returns why the connection is
    /// to be closed now, if it is.
    pub(super) fn responded(&mut self, slot: u16) -> Option<&'static str> {
        let why = match self.command(slot) {
            Command::Responding(responding) => responding.close_after(),
            _ => None,
        };
        let mut on_their_way = std::mem::take(&mut self.on_their_way);
        on_their_way.gone(slot, |slot| self.free_slot(slot));
        self.on_their_way = on_their_way;
        self.together = 1 + self.commands.len() - self.free.len();
        why
    }

    /// Whether nothing uses its memory any more: the storage engine does not, and the device has
    /// flushed everything or has had its time (dropping the queue pair then stops it).
    pub(super) fn may_be_freed(&self, now_us: u64) -> bool {
        let late = self
            .phase
            .deadline_us()
            .is_some_and(|deadline_us| now_us >= deadline_us);
        self.disk_outstanding == 0 && (self.sends_outstanding == 0 || late)
    }

    /// Whether the shared zeroes hold a transfer of `len_bytes`.
    pub(super) fn has_zeroes(&self, len_bytes: u32) -> bool {
        self.keys
            .zeroes
            .is_some_and(|sge| len_bytes <= sge.len_bytes)
    }

    /// The SGE of memory that a command has: its buffer's, or the shared zeroes.
    pub(super) fn sge(&self, own: &Own) -> Option<Sge> {
        let (buffer, lkey) = match own {
            Own::Leased(buffer) => (buffer, self.keys.data),
            Own::Spare(buffer) => (buffer, self.keys.queues),
            Own::Zeroes => return self.keys.zeroes,
            Own::Nothing | Own::AtEngine { .. } => return None,
        };
        Some(Sge {
            addr: buffer.addr(),
            len_bytes: buffer.len_bytes(),
            lkey,
        })
    }

    /// Posts a work request; the doorbell is rung once, at the end of the turn, or more often where
    /// that is free.
    pub(super) fn post(
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

    fn count_posted(&mut self) {
        self.unrung += 1;
        if self.unrung >= self.qp.doorbell_interval() {
            self.ring_doorbell();
        }
    }

    /// As [`QueuePair::write_now`]; counts as a work request that was posted.
    pub(super) fn write_now(
        &mut self,
        remote: Remote,
        len_bytes: u32,
        source: &mut Source<'_>,
    ) -> bool {
        let written = self.qp.write_now(remote, len_bytes, source);
        self.unrung += u32::from(written);
        written
    }

    /// As [`QueuePair::write_in_place`]; counts as a work request that was posted.
    pub(super) fn write_in_place(
        &mut self,
        remote: Remote,
        slab: &Arc<Slab>,
        range: Range<usize>,
    ) -> bool {
        let written = self.qp.write_in_place(remote, slab, range);
        self.unrung += u32::from(written);
        written
    }

    /// As [`QueuePair::send_now`], of a response capsule; counts as a work request that was posted.
    pub(super) fn respond_now(&mut self, cqe: &Cqe, invalidate: Option<RKey>) -> bool {
        let sent = self.qp.send_now(cqe.as_bytes(), invalidate);
        if sent {
            self.count_posted();
        }
        sent
    }

    /// Hands everything that was posted to the device.
    pub(super) fn ring_doorbell(&mut self) {
        self.unrung = 0;
        self.qp.ring_doorbell();
    }

    /// Writes a response capsule into the slot's place; returns its SGE.
    pub(super) fn response(&mut self, slot: u16, cqe: Cqe) -> Sge {
        let offset = u32::from(slot) * CQE_BYTES;
        // In registers: see `execute::start` of a write that is done.
        let [low, high]: [u64; 2] = zerocopy::transmute!(cqe);
        self.responses
            .copy_from(offset as usize, &low.to_ne_bytes());
        self.responses
            .copy_from(offset as usize + 8, &high.to_ne_bytes());
        Sge {
            addr: self.responses.addr() + u64::from(offset),
            len_bytes: CQE_BYTES,
            lkey: self.keys.queues,
        }
    }

    /// Takes the receives that commands still hold.
    pub(super) fn parked_receives(&mut self) -> Vec<(u32, Buffer)> {
        let held = self.commands.iter_mut().filter_map(Command::holds_mut);
        held.filter_map(Holds::take_receive).collect()
    }
}

/// Where the `at`th SQE is, in the page of its place that has the responses.
fn in_place(at: u16) -> usize {
    (SQES_IN_PLACE_AT + u32::from(at) * SQE_BYTES) as usize
}
