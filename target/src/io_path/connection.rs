//! One connection: its queue pair, its queue, and the commands in flight on it.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use capstan_memory::{Account, Buffer};
use capstan_subsystem::{Association, ConnId, IoQueue, Permit, PortId, QueueSizes};
use capstan_transport::{Queue, QueueId, Tag};

use super::command::{Command, Holds, Responding};
use super::phase::Phase;
use super::probe::Probe;
use super::queue_shares::Charge;
use super::stall::Progress;
use crate::limits::{SGL_DESCRIPTORS_MAX, slots};

/// What identifies a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Identity {
    pub(super) id: ConnId,
    pub(super) index: usize,
    pub(super) listener: PortId,
    pub(super) local: SocketAddr,
    pub(super) peer: SocketAddr,
    /// The name of what carries it (`Wires::carrier_name`).
    pub(super) carrier: &'static str,
    /// The sizes that the host asked for when it connected; over NVMe/TCP, with its Connect.
    pub(super) sizes: QueueSizes,
    /// Its host has a controller, and connects another queue of it.
    pub(super) known: bool,
}

impl Identity {
    /// What the wire calls its queue.
    pub(super) fn queue_id(&self) -> QueueId {
        QueueId(u32::try_from(self.index).unwrap_or(u32::MAX))
    }
}

/// A transport connection and the NVMe queue it carries.
pub(super) struct Connection {
    pub(super) identity: Identity,
    /// Its part of the memory for queues.
    pub(super) charge: Option<Charge>,
    /// The association whose queue it is, once connected.
    pub(super) association: Option<Arc<Association>>,
    pub(super) phase: Phase,
    /// The queue of its wire.
    pub(super) transport: Queue,
    /// Nothing can land in memory of the queue any more (`Event::Quiesced`).
    pub(super) quiesced: bool,
    /// It ends when its commands have: the target is drained.
    pub(super) is_leaving: bool,
    /// The data half of an I/O queue.
    pub(super) queue: Option<IoQueue>,
    /// The Disconnect command that waits for the others to be answered.
    pub(super) delete: Option<(u16, Permit)>,
    /// One entry per slot: as many as commands were ever in flight at once.
    pub(super) commands: Vec<Command>,
    /// Free entries of `commands`: the one freed last is taken first, as it is in the caches.
    free: Vec<u16>,
    /// Commands in flight when a completion last released responses.
    in_flight_at_release: usize,
    /// The account for its data buffers.
    pub(super) account: Account,
    /// A buffer of its own, when no command has it: for a small command that finds no other, and
    /// for everything that an Admin queue returns.
    pub(super) spare: Option<Buffer>,
    /// Commands that wait for a data buffer, oldest first.
    pub(super) waiting: VecDeque<u16>,
    /// Whether it is in the list of connections with waiting commands.
    pub(super) starved: bool,
    /// Whether the oldest of them waits for room on the wire (`Event::Room`).
    pub(super) is_full: bool,
    /// Whether it is in the list of those whose spare buffer is free again.
    pub(super) spared: bool,
    /// Whether its host makes progress.
    pub(super) progress: Progress,
    /// Commands the storage engine has.
    pub(super) disk_outstanding: u32,
    /// Work requests that commands with several host buffers may have beyond their two.
    extra_wrs: u32,
    /// The command that is timed.
    pub(super) probe: Probe,
}

impl Connection {
    pub(super) fn new(identity: Identity, transport: Queue, now_us: u64) -> Self {
        Self {
            identity,
            charge: None,
            association: None,
            phase: Phase::accepted(now_us, identity.known),
            transport,
            quiesced: false,
            is_leaving: false,
            queue: None,
            delete: None,
            commands: Vec::new(),
            free: Vec::new(),
            in_flight_at_release: 0,
            account: Account::COMMON,
            spare: None,
            waiting: VecDeque::new(),
            starved: false,
            is_full: false,
            spared: false,
            progress: Progress::default(),
            disk_outstanding: 0,
            extra_wrs: 0,
            probe: Probe::default(),
        }
    }

    /// It is a queue, with this buffer of its own.
    pub(super) fn settle(&mut self, spare: Buffer) {
        self.spare = Some(spare);
        self.waiting
            .reserve(usize::from(self.identity.sizes.entries));
    }

    /// Whether a command is not answered, or a response is on its way.
    pub(super) fn has_commands(&self) -> bool {
        self.commands.len() > self.free.len()
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

    /// The slot that `take_slot` takes next.
    #[inline]
    pub(super) fn next_slot(&mut self) -> Option<u16> {
        if self.free.is_empty() {
            let slot = self.take_slot()?;
            self.free.push(slot);
        }
        self.free.last().copied()
    }

    /// Frees a slot, with the room in the send queue that its command had.
    pub(super) fn free_slot(&mut self, slot: u16) {
        self.probe.give_up(slot);
        if let Command::Responding(responding) = self.take_command(slot) {
            self.extra_wrs -= responding.extra_wrs();
        }
        self.free.push(slot);
    }

    /// Frees the slot of a command that was taken out of it, and that has nothing any more.
    #[inline]
    pub(super) fn free_empty_slot(&mut self, slot: u16) {
        self.free.push(slot);
    }

    /// Frees the slot of a command whose response, if it has one, is not sent from that slot.
    pub(super) fn free_slot_of(&mut self, slot: u16, holds: Holds) {
        self.put_back(holds);
        self.free.push(slot);
    }

    /// Frees what a command holds.
    pub(super) fn put_back(&mut self, holds: Holds) {
        let responding = self.answered(holds);
        self.extra_wrs -= responding.extra_wrs();
    }

    /// The command that had `holds` is answered: frees what its response does not need.
    pub(super) fn answered(&mut self, holds: Holds) -> Responding {
        let (responding, spare) = holds.answered();
        if spare.is_some() {
            self.spare = spare;
        }
        responding
    }

    /// Reserves work requests of the send queue for the host's SGL. One buffer always fits
    /// (`limits::send_wrs`); a list of buffers waits until earlier lists have left. Call it for the
    /// command that is carried out next only: the command keeps the reservation.
    pub(super) fn has_room_for(&mut self, holds: &mut Holds) -> bool {
        let extra = self.transport.extra_requests(&holds.host);
        if holds.extra_wrs < extra {
            if self.extra_wrs.saturating_add(extra) > SGL_DESCRIPTORS_MAX {
                return false;
            }
            holds.extra_wrs = extra;
            self.extra_wrs += extra;
        }
        true
    }

    /// Takes the command out of its slot, to continue it.
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

    /// Commands in flight at the same time, as far as is known: the larger of those in flight now
    /// and those in flight at the last release.
    pub(super) fn depth(&self) -> usize {
        let taken = self.commands.len() - self.free.len();
        let in_flight = self.transport.in_flight(taken);
        in_flight.max(self.in_flight_at_release)
    }

    /// Whether no command is in flight, nor a response on its way.
    pub(super) fn quiet(&mut self) -> bool {
        let taken = self.commands.len() - self.free.len();
        self.transport.is_drained(taken)
    }

    /// Responses have left. Returns why the connection is to be closed now, if it is.
    pub(super) fn release(&mut self) -> Option<&'static str> {
        let mut why = None;
        while let Some((Tag(slot), source)) = self.transport.poll_released() {
            if let Command::Responding(mut responding) = self.take_command(slot) {
                why = responding.close_after();
                self.extra_wrs -= responding.extra_wrs();
                let spare = source.and_then(|source| responding.take_back(source));
                if spare.is_some() {
                    self.spare = spare;
                }
            }
            self.probe.release(slot);
            self.free.push(slot);
        }
        self.in_flight_at_release = 1 + self.commands.len() - self.free.len();
        why
    }

    /// Whether nothing uses its memory any more: the storage engine does not, and the device has
    /// flushed everything or has had its time (dropping the queue pair then stops it).
    pub(super) fn may_be_freed(&self, now_us: u64) -> bool {
        let late = self
            .phase
            .deadline_us()
            .is_some_and(|deadline_us| now_us >= deadline_us);
        self.disk_outstanding == 0 && (self.quiesced || late)
    }

    /// Posts the receive of a command again, when it kept one for its in-capsule data.
    pub(super) fn release_receive(&mut self, holds: &mut Holds) {
        if let Some((receive, data)) = holds.take_receive() {
            self.transport.post_again(receive, data);
        }
    }

    /// Posts the receives again that commands still hold.
    pub(super) fn release_receives(&mut self) {
        let held = self.commands.iter_mut().filter_map(Command::holds_mut);
        for (receive, data) in held.filter_map(Holds::take_receive) {
            self.transport.post_again(receive, data);
        }
    }
}
