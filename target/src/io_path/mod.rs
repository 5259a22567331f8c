//! The I/O path of one reactor, one file per step, in the order in which the data passes:
//!
//! 1. [`accept`]: connections come and end; a request becomes a connection, of which there are few
//!    ([`unconnected`]) until its Connect makes it a queue ([`connect`]).
//! 2. [`recv`]: completions; a received capsule becomes a command (admin commands continue in
//!    [`admin`], reservations in [`control`]).
//! 3. [`execute`]: the command gets its buffer and goes to the storage engine ([`on_medium`]).
//! 4. Data is pulled from or pushed to the host's memory by the queue's transport
//!    ([`capstan_transport::Queue`]). What a volume has in memory goes to a host on this
//!    machine from there, without step 3's buffer and operation.
//! 5. [`respond`]: the response capsule is sent, chained behind the pushed data.
//!
//! Beside them: [`connection`] (a queue and its commands in flight), [`command`] (the states of a
//! command, and what each has), [`corrupt`] (data that has changed on the way), [`fence`] (what a
//! new association waits for), [`resources`] (what every command may need), [`unanswered`]
//! (completions of disks), [`waiting`] (commands that wait for a buffer, for room or for their
//! turn), [`lease`] (how many buffers an association may have), [`share`] (how much a turn moves),
//! [`stall`] (hosts that make no progress), [`probe`] (how long a command is in each step). What
//! differs from wire to wire is behind
//! [`capstan_transport::Wires`] and its queues. One turn handles what is ready, then rings one
//! doorbell per connection, continues some of the commands that waited and rings for those, and
//! enters the kernel once for storage, however many operations there are.

mod accept;
mod admin;
mod cause;
mod command;
mod connect;
mod connection;
mod connections;
mod control;
mod corrupt;
mod drain;
mod execute;
mod fence;
mod lease;
mod on_medium;
mod phase;
mod probe;
mod queue_shares;
mod ranges;
mod recv;
mod resources;
mod respond;
mod share;
mod shutdown;
mod stall;
mod status;
mod unanswered;
mod unconnected;
mod waiting;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::rc::Rc;
use std::sync::Arc;

use capstan_memory::{Pool, Slab};
use capstan_rdma::ProviderKind;
use capstan_reactor::{Armed, Clock, Flow, Mailbox, Turn};
use capstan_storage::{Completion, Engine, OpenError};
use capstan_subsystem::{BackendId, ConnId, PortId};
use capstan_transport::manager::{CmError, ListenerId};
use capstan_transport::{Memory, Wires, wires};
use rustc_hash::FxHashMap;

#[cfg(test)]
pub(crate) use accept::Checked;
pub(crate) use accept::Offered;
pub(crate) use admin::LookingUp;
use connections::Connections;
use fence::Fences;
pub(crate) use resources::Opened;
use resources::Resources;
use shutdown::Shutdowns;
use stall::Looks;
use unanswered::{Answered, Unanswered};
pub(crate) use unconnected::discovery_controllers;
use unconnected::{Places, Unconnected};

use crate::control_plane::{ControlPlane, Message};
use crate::limits::{LISTEN_BACKLOG, TURNS_PER_REPORT};
use crate::metrics::ReactorMetrics;
use crate::plan::Export;

/// A listener of a provider.
#[derive(Clone, Copy)]
struct Listener {
    port: PortId,
    bound: SocketAddr,
    /// Whether it takes hosts that connect by NVMe/RDMA.
    rdma: bool,
}

/// Everything one reactor owns.
pub(crate) struct IoPath {
    reactor: usize,
    control: Arc<ControlPlane>,
    mailbox: Mailbox<Message>,
    wires: Wires,
    /// Of which kind each provider is, by its number.
    kinds: Vec<ProviderKind>,
    listeners: HashMap<ListenerId, Listener>,
    connections: Connections,
    index_of: HashMap<ConnId, usize>,
    conn_serial: u64,
    /// Connections that are no queue yet.
    unconnected: Unconnected,
    /// Connections that are ending.
    closing: Vec<usize>,
    drain_deadline_us: Option<u64>,
    /// Takes no connections until it is told to.
    refuses: bool,
    /// While connections leave: when those that are left are ended.
    leave_by_us: Option<u64>,
    looks: Looks,
    shutdown: Shutdowns,
    fences: Fences,
    resources: Resources,
    completions: Vec<Completion>,
    unanswered: Unanswered,
    /// Turns so far.
    turns: u32,
}

/// The parts of a reactor.
pub(crate) struct Parts {
    /// Its number.
    pub(crate) reactor: usize,
    /// The controllers.
    pub(crate) control: Arc<ControlPlane>,
    /// Messages from other threads.
    pub(crate) mailbox: Mailbox<Message>,
    /// What its wires are made of.
    pub(crate) wires: wires::Parts,
    /// Of which kinds the providers are.
    pub(crate) kinds: Vec<ProviderKind>,
    /// The storage engine.
    pub(crate) engine: Rc<Engine>,
    /// What is exported.
    pub(crate) volumes: FxHashMap<BackendId, Opened>,
    /// Memory for data.
    pub(crate) data: Pool,
    /// Memory for receives and responses: its size decides how many hosts can connect.
    pub(crate) queues: Pool,
    /// Memory for so many connections that are no queue of a permitted host.
    pub(crate) strangers: Pool,
    /// How many they are.
    pub(crate) places: u64,
    /// Zeroes to push, where a volume has LBAs that are known to be zero.
    pub(crate) zeroes: Option<Arc<Slab>>,
    /// What it counts in.
    pub(crate) metrics: Arc<ReactorMetrics>,
}

impl IoPath {
    pub(crate) fn new(parts: Parts) -> Self {
        let Parts {
            reactor,
            control,
            mailbox,
            wires,
            kinds,
            engine,
            volumes,
            data,
            queues,
            strangers,
            places,
            zeroes,
            metrics,
        } = parts;
        let memory = Memory {
            data,
            queues,
            strangers,
            places: u32::try_from(places).unwrap_or(u32::MAX),
            zeroes,
        };
        Self {
            reactor,
            control: Arc::clone(&control),
            mailbox,
            wires: Wires::new(wires),
            kinds,
            listeners: HashMap::new(),
            connections: Connections::default(),
            index_of: HashMap::new(),
            conn_serial: 0,
            unconnected: Unconnected::new(Places::of(places)),
            closing: Vec::new(),
            drain_deadline_us: None,
            refuses: false,
            leave_by_us: None,
            looks: Looks::default(),
            shutdown: Shutdowns::default(),
            fences: Fences::default(),
            resources: Resources::new(memory, engine, volumes, control, metrics),
            completions: Vec::new(),
            unanswered: Unanswered::default(),
            turns: 0,
        }
    }

    /// Listens at `addr` with the provider of that number, and takes hosts by NVMe/RDMA there or by
    /// NVMe/TCP only. Returns the address that was bound.
    pub(crate) fn listen(
        &mut self,
        provider: usize,
        addr: SocketAddr,
        port: PortId,
        rdma: bool,
    ) -> Result<SocketAddr, CmError> {
        let is_of_sockets = self.kinds.get(provider) == Some(&ProviderKind::Iwarp);
        let left = is_of_sockets.then(|| self.control.handover().take(addr));
        let (id, bound) = match left.flatten() {
            // Where it came from has it already.
            Some(socket) => self.wires.listen_on(provider, socket)?,
            None => {
                let (id, bound) = self.wires.listen(provider, addr, LISTEN_BACKLOG)?;
                if let Some(socket) = self.wires.socket_of(id) {
                    self.control.handover().keep(bound, &socket);
                }
                (id, bound)
            }
        };
        let listener = Listener { port, bound, rdma };
        self.listeners.insert(id, listener);
        Ok(bound)
    }

    /// Listens at no address of this port any more. Connections that have come by it stay.
    pub(crate) fn close_listeners(&mut self, port: PortId) {
        let of_it = self
            .listeners
            .extract_if(|_, listener| listener.port == port);
        for (id, listener) in of_it {
            self.wires.close(id);
            self.control.handover().forget(listener.bound);
        }
    }

    /// The number of the provider with connection managers of this kind, where there are some.
    pub(crate) fn fabric_of(&self, kind: ProviderKind) -> Option<usize> {
        self.kinds.iter().position(|other| *other == kind)
    }

    fn poll_mailbox(&mut self) -> bool {
        let mut progress = false;
        while let Some(message) = self.mailbox.poll() {
            progress = true;
            match message {
                Message::Adopt(offered) => self.adopt(*offered),
                Message::Act(action) => self.act(action),
                Message::LookedUp(command) => self.looked_up(*command),
                Message::OpenVolume { export, opened } => {
                    // The thread that asked may have given up waiting.
                    let _ = opened.send(self.open_volume(&export));
                }
                Message::CloseVolume(backend) => {
                    // Operations in flight keep their file; a command between two of them finds no
                    // volume.
                    self.resources.volumes.remove(&backend);
                    self.resources.lost.retain(|&lost| lost != backend);
                }
                Message::LossCleared(backend) => {
                    self.resources.lost.retain(|&lost| lost != backend);
                }
                Message::Listen(listening) => {
                    let control = Arc::clone(&self.control);
                    listening.carry_out(self, &control);
                }
                Message::StopListening(port) => self.close_listeners(port),
                Message::TimerMoved => {}
                Message::Drain => self.drain(),
                Message::LetGo { by_us } => self.let_go(by_us),
                Message::TakeIn => self.refuses = false,
            }
        }
        progress
    }

    fn open_volume(&mut self, export: &Export) -> Result<(), OpenError> {
        let volume = export.store.open(&self.resources.engine)?;
        let opened = Opened::new(volume, export, self.reactor);
        self.resources.volumes.insert(export.backend, opened);
        Ok(())
    }

    fn poll_storage(&mut self) -> bool {
        let Self {
            resources,
            completions,
            ..
        } = self;
        resources.engine.poll(completions);
        for Opened { volume, .. } in resources.volumes.values_mut() {
            if volume
                .next_deadline_us()
                .is_some_and(|at_us| at_us <= resources.now_us)
            {
                volume.poll(resources.now_us, completions);
            }
        }
        self.unanswered.extend(completions.drain(..));
        let mut answered = Answered::default();
        while let Some(completion) = self.unanswered.next(&mut answered) {
            self.on_storage(completion);
        }
        answered.any()
    }

    fn on_storage(&mut self, completion: Completion) {
        if self.flush_ended(&completion) {
            return;
        }
        let (index, _) = on_medium::split_token(completion.token);
        if let Some(connection) = self.connections.get_mut(index) {
            connection.disk_outstanding -= 1;
            on_medium::on_disk(&mut self.resources, connection, completion);
            if connection.closing() && connection.disk_outstanding == 0 {
                let (id, now_us) = (connection.identity.id, self.resources.now_us);
                self.control.disconnected(id, now_us);
            }
        }
    }

    fn submit_storage(&self) {
        if let Err(error) = self.resources.engine.submit_batch() {
            tracing::error!("submitting storage operations failed: {error}");
        }
    }

    fn flush_wires(&mut self) {
        for mut wire in self.wires.iter_mut() {
            wire.flush(&mut self.connections);
        }
        if std::mem::take(&mut self.connections.are_to_go_on) {
            self.looks.wanted(self.resources.now_us);
        }
    }

    /// The end of a turn: hands over what the commands have asked for, all at once. Returns whether
    /// commands that waited were continued.
    fn flush_turn(&mut self) -> bool {
        self.carry_out_connects();
        // One doorbell per connection and one system call for storage, however many commands. A
        // disk that has run out of work gets its commands before the responses leave: letting it
        // stand idle costs more than responses that leave a little later.
        if self.resources.engine.is_short_of_work() {
            self.submit_storage();
        }
        self.flush_wires();
        // Behind the responses that are ready, so that these do not wait for what takes long.
        let mut went_on = false;
        if !self.resources.starved.is_empty() {
            went_on = waiting::go_on(&mut self.resources, &mut self.connections);
            self.flush_wires();
        }
        self.submit_storage();
        self.end_stalled();
        if !self.resources.broken.is_empty() {
            // The provider may know more of the cause than a status does.
            self.poll_connection_managers();
        }
        for (index, why) in std::mem::take(&mut self.resources.broken) {
            self.close(index, &why, false);
        }
        self.end_overdue();
        self.reap();
        went_on
    }
}

impl Turn for IoPath {
    fn turn(&mut self, now_us: u64) -> Flow {
        self.resources.now_us = now_us;
        self.resources.share.begin();
        let mut progress = self.poll_mailbox();
        progress |= self.poll_connection_managers();
        let completions = self.poll_wires();
        let answered = self.poll_storage();
        if self.reactor == 0 {
            self.control.run_timers(now_us);
        }
        let went_on = self.flush_turn() | answered;
        self.end_leaving();
        self.turns = self.turns.wrapping_add(1);
        if self.turns.is_multiple_of(TURNS_PER_REPORT) {
            self.resources.publish(self.index_of.len());
        }
        if self.drained() {
            return Flow::Stop;
        }
        match (completions, self.resources.in_flight) {
            (0, 0) if !progress && !went_on => Flow::Idle,
            (_, 0) => Flow::Busy(u32::from(went_on)),
            // The more commands are under way, the shorter the spin after them may be, so the loop
            // is told how many.
            (completions, in_flight) => {
                let commands = completions.saturating_sub(self.resources.releases);
                Flow::Busy(commands.max(u32::try_from(in_flight).unwrap_or(u32::MAX)))
            }
        }
    }

    fn arm(&mut self, fds: &mut Vec<RawFd>) -> Armed {
        self.resources.publish(self.index_of.len());
        // The wires first: where one has completions, nothing else need be armed.
        for mut wire in self.wires.iter_mut() {
            if wire.arm(&mut self.connections) {
                return Armed::Ready;
            }
            fds.push(wire.fd());
        }
        self.mailbox.arm();
        fds.push(self.mailbox.fd());
        let mut ready = self.poll_mailbox();
        for manager in self.wires.managers() {
            ready |= manager.arm();
            fds.push(manager.fd());
        }
        ready |= self.resources.engine.arm();
        fds.push(self.resources.engine.fd());
        if ready {
            // What the last look at the mailbox started must not wait for the next wake-up.
            self.flush_turn();
        }
        Armed::from_ready(ready)
    }

    fn disarm(&mut self, readable: &[bool]) {
        // A completion queue is polled in every turn anyway.
        let wires = self.wires.iter_mut().count();
        let Some(others) = readable.get(wires..) else {
            return;
        };
        let mut others = others.iter().copied();
        let mut silent = || others.next() == Some(false);
        self.mailbox.disarm(!silent());
        let now_us = Clock.now_us();
        for manager in self.wires.managers() {
            if silent() {
                manager.stayed_silent(now_us);
            }
        }
        if silent() {
            self.resources.engine.stayed_silent();
        }
    }

    fn next_deadline_us(&self) -> Option<u64> {
        let volumes = self
            .resources
            .volumes
            .values()
            .filter_map(|of| of.volume.next_deadline_us());
        let timers = (self.reactor == 0)
            .then(|| self.control.next_deadline_us())
            .flatten();
        let unconnected = self.unconnected.due_us();
        let closing = self.closing.iter().filter_map(|&index| {
            self.connections.all[index]
                .as_ref()
                .and_then(|c| c.phase.deadline_us())
        });
        // While draining, and while something is to be taken in, look again soon: a quiet
        // connection gives no sign of its own.
        let leave = self.drain_deadline_us.or(self.leave_by_us).is_some();
        let soon = leave || self.wires.has_fences();
        let drain = soon.then(|| self.resources.now_us + 1_000);
        volumes
            .chain(timers)
            .chain(unconnected)
            .chain(closing)
            .chain(self.wires.next_deadline_us())
            .chain(self.looks.at_us())
            .chain(drain)
            .min()
    }

    fn waits_for_kernel(&self) -> bool {
        self.wires.wait_for_kernel()
    }
}
