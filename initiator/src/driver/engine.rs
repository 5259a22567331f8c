//! One association's objects, and the turn over them.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::sync::Arc;

use capstan_memory::{Buffer, Pool};
use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::nqn::Nqn;
use capstan_nvme_proto::opcode::IoOpcode;
use capstan_nvme_proto::sqe::Sqe;
use capstan_nvme_proto::tcp::setup::Digests;
use capstan_rdma::ProviderKind;
use capstan_rdma::contract::DeviceAttributes;
use capstan_reactor::Armed;
use capstan_transport::host::{HostEvent, HostTransport, HostWire, WindowsClosed};
use capstan_transport::rdma::host::RdmaHostSettings;
use zerocopy::FromZeros;

use super::corruption::Corruption;
use super::io::{Completion, Direction, Io, Op, Refused, Source, SubmitError};
use super::memory::Memory;
use super::open::open_error;
use super::replay::UnknownRange;
use super::request::{Piece, Requests};
use super::troubles::Troubles;
use super::unflushed::Unflushed;
use crate::error::{ConnectError, IoError};
use crate::host::{AssociationStatus, Event, Held, Host, HostConfig, NamespaceInfo, SlotIndex};
use crate::limits::RESET_DRAIN_US;
use crate::options::TRANSFER_BYTES_MAX;
use crate::transports::TakenTransport;
use crate::wire::Wire;

/// Turns between two looks at the connections and at the clock's deadlines while the
/// association is live: there are many in a millisecond, or a sleep between them.
const LOOK_TURNS: u32 = 64;
/// Between two looks for commands the controller has not answered in time, in microseconds.
const STALE_CHECK_US: u64 = 500_000;

/// What an [`AssociationEngine`] is made for.
#[derive(Clone, Debug)]
pub(crate) struct AssociationConfig {
    pub(crate) host: HostConfig,
    pub(crate) destination: SocketAddr,
    pub(crate) source: Option<IpAddr>,
    pub(crate) io_timeout_us: u64,
    pub(crate) data_bytes: usize,
    pub(crate) seed: u64,
}

/// What waits for the end of a command.
#[derive(Debug)]
pub(super) enum Owner {
    Free,
    /// The host state machine; its data is in the buffer.
    Host {
        data: Option<Buffer>,
        read_bytes: u32,
    },
    Io(Piece),
    /// A command sent as it is; its data is in the buffer.
    Passthru {
        token: u64,
        data: Option<Buffer>,
        read_bytes: u32,
        opcode: IoOpcode,
    },
}

/// A command in flight.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) owner: Owner,
    pub(super) await_response: bool,
    pub(super) cqe: Cqe,
    pub(super) sent_us: u64,
}

impl Slot {
    pub(super) fn free() -> Self {
        Self {
            owner: Owner::Free,
            await_response: false,
            cqe: Cqe::new_zeroed(),
            sent_us: 0,
        }
    }
}

/// One association at work. See the [module](super).
pub(crate) struct AssociationEngine {
    /// Dropped first: connections before the memory that they use.
    pub(super) wire: HostWire,
    /// The commands of each connected queue, by QID.
    pub(super) queues: Vec<Option<Box<[Slot]>>>,
    /// How many entries the queue has that is being connected.
    pub(super) opening: Option<u16>,
    pub(super) requests: Requests,
    pub(super) memory: Memory,
    /// Of the same target, which the wire reaches as well: those that have failed longest first.
    pub(super) other_addresses: VecDeque<SocketAddr>,
    /// Where a connection was last asked for; the next attempt may be made elsewhere.
    pub(super) last_tried: SocketAddr,
    /// The transport, where it was to be found.
    pub(super) taken: Option<TakenTransport>,
    pub(super) provider: Option<ProviderKind>,
    pub(super) asked_digests: Digests,
    /// What the queues went by when the association was last live.
    pub(super) went_by: Option<Wire>,
    pub(super) host: Host,
    pub(super) config: AssociationConfig,
    /// Actions of the host that wait for memory.
    pub(super) stalled: VecDeque<crate::host::Action>,
    /// Pieces that failed for a passing reason, and when to send them again.
    pub(super) delayed: Vec<(u64, Piece)>,
    pub(super) next_qid: u16,
    pub(super) losses: u64,
    /// Passthrough commands outstanding.
    pub(super) passthru: u32,
    /// When the I/O command was sent that is the youngest of those which have been answered.
    pub(super) answered_sent_us: u64,
    /// I/O needs a look before it is sent: writes are held, or a namespace has something to be
    /// told.
    pub(super) careful: bool,
    /// Blocks that are not written any more.
    pub(super) unknown: Vec<UnknownRange>,
    /// What succeeds is noted, for one of the two reasons below.
    pub(super) note_all: bool,
    /// Acknowledged writes are noted until they are flushed.
    pub(super) caches_writes: bool,
    pub(super) unflushed: Unflushed,
    pub(super) troubles: Troubles,
    pub(super) corruption: Corruption,
    /// Those are log lines as well.
    pub(super) logs_failures: bool,
    /// How many writes to which namespaces were not answered when the association ended.
    pub(super) unanswered: Vec<(u32, usize)>,
    /// Which boot of its machine the target was of.
    pub(super) boot_id: Option<[u8; 16]>,
    /// A reset waits for the I/O that is outstanding, until then.
    reset_until_us: Option<u64>,
    pub(super) events: VecDeque<Event>,
    /// What the wire has told; empty between turns.
    wire_events: Vec<(u16, HostEvent)>,
    unlooked_turns: u32,
    next_stale_check_us: u64,
    draining: bool,
    scratch: Vec<u8>,
}

impl AssociationEngine {
    /// Starts connecting.
    pub(crate) fn new(
        config: AssociationConfig,
        transport: HostTransport,
        now_us: u64,
    ) -> Result<Self, ConnectError> {
        let io_queues = config.host.nr_io_queues;
        let memory = Memory::new(config.data_bytes)?;
        let settings = RdmaHostSettings {
            admin_entries: crate::host::ADMIN_QUEUE_ENTRIES,
            io_queues,
            io_entries: config.host.queue_size,
            admin: memory.admin.clone(),
            data: memory.data.clone(),
        };
        let asked_digests = match &transport {
            HostTransport::Tcp(digests) => *digests,
            HostTransport::Rdma(_) => Digests::empty(),
        };
        let wire = HostWire::new(transport, settings).map_err(|error| open_error(0, error))?;
        let commands = usize::from(io_queues) * usize::from(config.host.queue_size);
        let requests = u32::try_from((2 * commands).max(64)).unwrap_or(u32::MAX);
        Ok(Self {
            wire,
            queues: Vec::new(),
            opening: None,
            requests: Requests::new(requests, commands),
            memory,
            other_addresses: VecDeque::new(),
            last_tried: config.destination,
            taken: None,
            provider: None,
            asked_digests,
            went_by: None,
            host: Host::new(config.host.clone(), config.seed, now_us),
            stalled: VecDeque::new(),
            delayed: Vec::with_capacity(commands),
            next_qid: 1,
            losses: 0,
            passthru: 0,
            answered_sent_us: 0,
            careful: false,
            unknown: Vec::new(),
            note_all: false,
            caches_writes: false,
            unflushed: Unflushed::default(),
            troubles: Troubles::default(),
            corruption: Corruption::default(),
            logs_failures: true,
            unanswered: Vec::new(),
            boot_id: None,
            reset_until_us: None,
            events: VecDeque::new(),
            wire_events: Vec::new(),
            unlooked_turns: 0,
            next_stale_check_us: now_us + STALE_CHECK_US,
            draining: false,
            scratch: Vec::new(),
            config,
        })
    }

    /// The state machine, to ask it things.
    pub(crate) fn host(&self) -> &Host {
        &self.host
    }

    /// Where a connection was last asked for.
    pub(crate) fn last_tried(&self) -> SocketAddr {
        self.last_tried
    }

    /// The subsystem.
    pub(crate) fn subnqn(&self) -> &Nqn {
        &self.config.host.subnqn
    }

    /// After a loss these are tried, too.
    pub(crate) fn set_other_addresses(&mut self, others: impl Iterator<Item = SocketAddr>) {
        self.other_addresses = others.collect();
    }

    /// How long each step of a connection may take, in microseconds.
    #[cfg(test)]
    pub(crate) fn connect_timeout_us(&self) -> u64 {
        self.config.host.connect_timeout_us
    }

    /// Whether the target has accepted a connection.
    pub(crate) fn is_connected(&self) -> bool {
        self.queues.iter().any(Option::is_some)
    }

    /// What the RDMA device of the association can do; `None` while there is no connection, and
    /// over NVMe/TCP.
    pub(crate) fn device_attributes(&self) -> Option<&DeviceAttributes> {
        self.wire.device_attributes()
    }

    /// What closed the memory windows of commands so far.
    pub(crate) fn windows_closed(&self) -> WindowsClosed {
        self.wire.windows_closed()
    }

    /// Leases registered memory for I/O.
    pub(crate) fn data_pool(&self) -> &Pool {
        &self.memory.data
    }

    /// What happened to the association; `None` when there is nothing new.
    pub(crate) fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The next finished I/O.
    pub(crate) fn poll_completion(&mut self) -> Option<Completion> {
        self.requests.poll()
    }

    /// I/Os taken and not handed back.
    pub(crate) fn in_progress(&self) -> usize {
        self.requests.in_progress()
    }

    /// Most I/Os in progress at once.
    pub(crate) fn capacity(&self) -> usize {
        self.requests.capacity()
    }

    /// The association's state, for people and for `list`.
    pub(crate) fn status(&self, now_us: u64) -> AssociationStatus {
        match self.reset_until_us {
            Some(_) => AssociationStatus::Resetting,
            None => self.host.status(now_us),
        }
    }

    /// Writes that wait; see [`Host::held`].
    pub(crate) fn held(&self, now_us: u64) -> Option<Held> {
        self.host.held(now_us)
    }

    /// Submits an admin command; see [`Host::submit_admin`].
    pub(crate) fn submit_admin(
        &mut self,
        token: u64,
        sqe: Sqe,
        data: crate::host::CommandData,
        now_us: u64,
    ) -> Result<(), crate::error::CommandError> {
        self.host.submit_admin(token, sqe, data, now_us)
    }

    /// Looks for namespaces again.
    pub(crate) fn rescan(&mut self, now_us: u64) {
        self.host.rescan(now_us);
    }

    /// Resets the controller once what is outstanding is answered, or a few seconds later; see
    /// [`Host::reset`].
    pub(crate) fn reset(&mut self, now_us: u64) {
        if self.host.is_live() && !self.draining {
            let until_us = now_us.saturating_add(RESET_DRAIN_US);
            self.reset_until_us.get_or_insert(until_us);
        } else {
            self.host.reset(now_us);
        }
    }

    /// A reset waits for what is outstanding: nothing more is sent.
    pub(super) fn is_resetting(&self) -> bool {
        self.reset_until_us.is_some()
    }

    fn continue_reset(&mut self, now_us: u64) {
        let outstanding = self.queues.iter().flatten().any(|queue| {
            let is_io = |slot: &Slot| matches!(slot.owner, Owner::Io(_) | Owner::Passthru { .. });
            queue.iter().any(is_io)
        });
        let over = self.reset_until_us.is_some_and(|at_us| now_us >= at_us);
        if !outstanding || over || !self.host.is_live() {
            self.reset_until_us = None;
            self.host.reset(now_us);
        }
    }

    /// Ends the association: I/O in progress is finished first, while the association is live.
    /// Leads to [`Event::Closed`].
    pub(crate) fn shutdown(&mut self) {
        self.draining = true;
        self.reset_until_us = None;
    }

    /// Takes an I/O. Data goes to or comes from the start of `buffer`.
    pub(crate) fn submit(
        &mut self,
        source: Source,
        token: u64,
        io: Io,
        buffer: Option<Buffer>,
    ) -> Result<(), Refused> {
        match self.check(&io, buffer.as_ref()) {
            Ok(()) => {}
            Err(reason) => {
                return Err(Refused {
                    reason: SubmitError::Invalid(reason),
                    buffer,
                });
            }
        }
        let buffer = match io.op {
            Op::Discard { slba, nlb } => {
                let Some(mut ranges) = self.memory.admin.take(DISCARD_BYTES) else {
                    let reason = SubmitError::Busy;
                    return Err(Refused { reason, buffer });
                };
                let range = capstan_nvme_proto::dataset::DsmRange::new(slba, nlb);
                ranges.copy_from(0, zerocopy::IntoBytes::as_bytes(&range));
                Some(ranges)
            }
            _ => buffer,
        };
        self.requests.submit(source, token, io, buffer)
    }

    /// Whether `io` can be tried at all. What depends on the namespace is looked at when it is
    /// sent: the namespaces may not be known yet.
    fn check(&self, io: &Io, buffer: Option<&Buffer>) -> Result<(), IoError> {
        if !self.host.is_live() {
            self.check_alive()?;
        }
        if self.draining {
            return Err(IoError::Closed);
        }
        let (_, nlb) = io.op.range();
        if nlb == 0 && io.op != Op::Flush {
            return Err(IoError::Invalid {
                what: "nlb",
                value: 0,
                expected: "at least 1",
            });
        }
        if io.op.direction() == Direction::None {
            return Ok(());
        }
        if buffer.is_none_or(|b| b.slab_id() != self.memory.data.slab().id()) {
            return Err(IoError::Invalid {
                what: "buffer",
                value: 0,
                expected: "one leased from this association's data memory",
            });
        }
        Ok(())
    }

    /// Refuses I/O once the association is over.
    fn check_alive(&self) -> Result<(), IoError> {
        match self.status(0) {
            AssociationStatus::Failed(cause) => Err(IoError::ControllerLost(cause)),
            AssociationStatus::Closed | AssociationStatus::ShuttingDown => Err(IoError::Closed),
            AssociationStatus::Connecting { .. }
            | AssociationStatus::Live
            | AssociationStatus::Waiting { .. }
            | AssociationStatus::Resetting => Ok(()),
        }
    }

    /// Does one round. `true` when something was done.
    pub(crate) fn turn(&mut self, now_us: u64) -> bool {
        let mut busy = self.dispatch(now_us);
        busy |= self.poll_wire(now_us);
        self.unlooked_turns += 1;
        if !self.host.is_live() || self.unlooked_turns >= LOOK_TURNS || self.wire.awaits_cause() {
            self.unlooked_turns = 0;
            busy |= self.poll_connections(now_us);
            self.check_times(now_us);
        }
        if self.reset_until_us.is_some() {
            self.continue_reset(now_us);
        }
        if self.draining && (self.requests.unfinished() == 0 || !self.host.is_live()) {
            self.draining = false;
            self.host.shutdown(now_us);
        }
        busy |= self.act(now_us);
        busy
    }

    fn check_times(&mut self, now_us: u64) {
        self.host.note_traffic(self.answered_sent_us);
        if self.host.next_deadline_us().is_some_and(|d| now_us >= d) {
            self.host.handle_timeout(now_us);
        }
        if now_us >= self.next_stale_check_us {
            self.next_stale_check_us = now_us + STALE_CHECK_US;
            self.check_stale(now_us);
        }
        if !self.delayed.is_empty() {
            self.send_delayed(now_us);
        }
    }

    /// Carries out what the host wants and takes what it tells, until it wants nothing.
    fn act(&mut self, now_us: u64) -> bool {
        let mut busy = false;
        loop {
            if self.host.closes_next() {
                // What is stalled may wait for memory of a connection that is to be closed.
                self.stalled.clear();
            }
            let action = match self.stalled.pop_front() {
                Some(action) => Some(action),
                None => self.host.poll_action(),
            };
            let Some(action) = action else {
                break;
            };
            busy = true;
            if let Err(action) = self.carry_out(action, now_us) {
                self.stalled.push_front(action);
                break;
            }
        }
        self.wire.flush();
        while let Some(event) = self.host.poll_event() {
            busy = true;
            match &event {
                Event::Failed { cause } => {
                    let error = IoError::ControllerLost(Arc::clone(cause));
                    self.note_the_end();
                    self.log_losses_of_the_end();
                    self.fail_io(&error);
                }
                Event::Closed => {
                    self.note_the_end();
                    self.fail_io(&IoError::Closed);
                }
                Event::Live { again } => {
                    self.note_wire(*again);
                    self.heard(&event);
                }
                event => self.heard(event),
            }
            self.events.push_back(event);
        }
        busy
    }

    fn fail_io(&mut self, error: &IoError) {
        self.delayed.clear();
        self.requests.fail_all(error);
    }

    /// Takes what has happened to commands, within the budget of a turn.
    fn poll_wire(&mut self, now_us: u64) -> bool {
        let mut events = std::mem::take(&mut self.wire_events);
        let busy = self.wire.poll(now_us, &mut events);
        self.take_events(events, now_us);
        busy
    }

    /// Takes what has happened to connections.
    fn poll_connections(&mut self, now_us: u64) -> bool {
        let mut events = std::mem::take(&mut self.wire_events);
        let busy = self.wire.poll_connections(now_us, &mut events);
        self.take_events(events, now_us);
        busy
    }

    fn take_events(&mut self, mut events: Vec<(u16, HostEvent)>, now_us: u64) {
        for (qid, event) in events.drain(..) {
            self.happened(qid, event, now_us);
        }
        self.wire_events = events;
    }

    pub(super) fn namespace(&self, nsid: u32) -> Option<&NamespaceInfo> {
        self.host.namespaces().iter().find(|n| n.nsid == nsid)
    }

    /// Most data of one command, in bytes: MDTS, what a keyed descriptor can say, and this host's
    /// own bound.
    pub(crate) fn transfer_bytes_max(&self) -> u32 {
        self.host
            .controller()
            .transfer_bytes_max
            .map_or(TRANSFER_BYTES_MAX, |max| max.min(TRANSFER_BYTES_MAX))
    }

    /// Gives the slot's owner its outcome.
    pub(super) fn line_slot(&mut self, qid: u16, slot: SlotIndex) -> Option<&mut Slot> {
        let queue = self.queues.get_mut(usize::from(qid))?.as_mut()?;
        queue.get_mut(slot.index())
    }

    /// Bytes of a read admin command, copied out of its buffer.
    pub(super) fn read_out(&mut self, data: Option<&Buffer>, read_bytes: u32) -> Vec<u8> {
        let mut bytes = std::mem::take(&mut self.scratch);
        bytes.clear();
        if let Some(data) = data {
            bytes.resize(read_bytes.min(data.len_bytes()) as usize, 0);
            data.copy_to(0, &mut bytes);
        }
        bytes
    }

    pub(super) fn give_scratch(&mut self, bytes: Vec<u8>) {
        self.scratch = bytes;
    }

    /// Prepares to sleep: pushes what to wait for.
    pub(crate) fn arm(&mut self, fds: &mut Vec<RawFd>) -> Armed {
        if self.wire.arm(fds) {
            self.unlooked_turns = LOOK_TURNS;
            return Armed::Ready;
        }
        // The turn after the sleep looks at everything.
        self.unlooked_turns = LOOK_TURNS;
        Armed::Quiet
    }

    /// When to turn even if every descriptor stays silent.
    pub(crate) fn next_deadline_us(&self) -> Option<u64> {
        let outstanding = self.requests.unfinished() > 0 || self.passthru > 0;
        let stale = outstanding.then_some(self.next_stale_check_us);
        let delayed = self.delayed.iter().map(|(due_us, _)| *due_us).min();
        [
            self.host.next_deadline_us(),
            self.wire.next_deadline_us(),
            stale,
            delayed,
            self.reset_until_us,
        ]
        .into_iter()
        .flatten()
        .min()
    }
}

/// Bytes of the one range a discard becomes.
pub(super) const DISCARD_BYTES: u32 = 16;
