//! The I/O path of one reactor, one file per step, in the order the data walks:
//!
//! 1. [`accept`]: connection-manager events; a request becomes a connection.
//! 2. [`recv`]: completions; a received capsule becomes a command ([`admin`] has its own road, and
//!    so have reservations, in [`control`]).
//! 3. [`execute`]: the command gets its buffer and goes to the storage engine.
//! 4. [`transfer`]: data is pulled from or pushed to the host's memory. What a volume has in memory goes
//!    to a host on this machine from there, without step 3's buffer and operation.
//! 5. [`respond`]: the response capsule is sent, chained behind the pushed data.
//!
//! Beside them: [`fabric`] and [`receives`] (what a device's connections share), [`connection`] (a
//! queue pair and its commands in flight), [`responses`] (those that may be on their way), [`wr_id`]. One turn handles what is ready, then rings one
//! doorbell per connection and enters the kernel once for storage, however many commands there were.

mod accept;
mod admin;
mod connection;
mod control;
mod execute;
mod fabric;
mod phase;
mod ranges;
mod receives;
mod recv;
mod respond;
mod responses;
mod shutdown;
mod status;
mod transfer;
mod wr_id;

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::rc::Rc;
use std::sync::Arc;

use capstan_memory::{Buffer, Pool, Slab};
use capstan_rdma::contract::{CmError, CmId, ConnectionManager, WorkCompletion};
use capstan_reactor::{Armed, Clock, Flow, Mailbox, Turn};
use capstan_storage::{Completion, Engine, OpenError, Trickle, Volume};
use capstan_subsystem::{BackendId, ConnId, PortId};
use rustc_hash::FxHashMap;

pub(crate) use accept::Request;
use connection::Connection;
use fabric::{Fabric, Memory};
use phase::Phase;
use recv::Received;
use shutdown::Shutdowns;

use crate::control_plane::{ControlPlane, Message};
use crate::limits::{
    COMPLETIONS_PER_TURN, DISK_ANSWERS_PER_TURN, DRAIN_TIMEOUT_US, LISTEN_BACKLOG,
};
use crate::plan::Export;

/// Everything one reactor owns.
pub(crate) struct IoPath {
    reactor: usize,
    control: Arc<ControlPlane>,
    mailbox: Mailbox<Message>,
    fabrics: Vec<Fabric>,
    listeners: HashMap<(usize, CmId), PortId>,
    connections: Connections,
    index_of: HashMap<ConnId, usize>,
    cm_index: HashMap<(usize, CmId), usize>,
    conn_serial: u64,
    /// Connections that are no queue yet.
    unconnected: Vec<ConnId>,
    /// Connections that are ending.
    closing: Vec<usize>,
    drain_deadline_us: Option<u64>,
    shutdown: Shutdowns,
    resources: Resources,
    completions: Vec<Completion>,
    /// What the storage has ended and no connection has been told yet.
    unanswered: VecDeque<Completion>,
    /// Room for the completions of one poll.
    work_completions: Box<[WorkCompletion]>,
}

/// What a reactor is made of.
pub(crate) struct Parts {
    /// Its number.
    pub(crate) reactor: usize,
    /// The controllers.
    pub(crate) control: Arc<ControlPlane>,
    /// Messages from other threads.
    pub(crate) mailbox: Mailbox<Message>,
    /// One connection manager per provider, in the same order on every reactor.
    pub(crate) managers: Vec<(&'static str, Box<dyn ConnectionManager>)>,
    /// Whether queues share their receives where the device can.
    pub(crate) shared_receive_queue: bool,
    /// The storage engine.
    pub(crate) engine: Rc<Engine>,
    /// What is exported.
    pub(crate) volumes: FxHashMap<BackendId, Box<dyn Volume>>,
    /// Memory for data.
    pub(crate) data: Pool,
    /// Memory for receives and responses: what it has room for is who may connect.
    pub(crate) queues: Pool,
    /// Zeroes to push, where a volume has LBAs that are known to be zero.
    pub(crate) zeroes: Option<Arc<Slab>>,
}

/// What every command may need, apart from its connection.
struct Resources {
    now_us: u64,
    memory: Memory,
    engine: Rc<Engine>,
    /// The engine's.
    trickle: Rc<Trickle>,
    // Numbers of this program: nobody chooses them so that they collide.
    volumes: FxHashMap<BackendId, Box<dyn Volume>>,
    control: Arc<ControlPlane>,
    /// Connections with commands that wait for a buffer, in the order their turn comes.
    starved: VecDeque<usize>,
    /// Connections with work requests posted since the last doorbell.
    unrung: Vec<usize>,
    /// Connections to end, and why.
    broken: Vec<(usize, String)>,
    /// Most commands that an I/O queue with completions in this turn had under way together, at least 1; 0 without one.
    in_flight: usize,
    /// Receives to post again.
    receives: Vec<ReturnedReceive>,
    /// No command is taken in any more.
    draining: bool,
}

/// A receive to post again.
struct ReturnedReceive {
    fabric: usize,
    port: usize,
    /// Index of the connection it came on.
    connection: usize,
    slot: u32,
    data: Buffer,
}

/// The connections of a reactor, by index.
#[derive(Default)]
struct Connections {
    all: Vec<Option<Box<Connection>>>,
    free: Vec<usize>,
}

impl Connections {
    fn get_mut(&mut self, index: usize) -> Option<&mut Connection> {
        self.all.get_mut(index)?.as_deref_mut()
    }

    /// An index nobody uses.
    fn reserve(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.all.push(None);
            self.all.len() - 1
        })
    }

    fn put(&mut self, connection: Connection) {
        let index = connection.index;
        if let Some(place) = self.all.get_mut(index) {
            *place = Some(Box::new(connection));
        }
    }

    fn take(&mut self, index: usize) -> Option<Box<Connection>> {
        let connection = self.all.get_mut(index)?.take()?;
        self.free.push(index);
        Some(connection)
    }

    fn indices(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.all.len()).filter(|&index| self.all[index].is_some())
    }
}

impl IoPath {
    pub(crate) fn new(parts: Parts) -> Self {
        let Parts {
            reactor,
            control,
            mailbox,
            managers,
            shared_receive_queue,
            engine,
            volumes,
            data,
            queues,
            zeroes,
        } = parts;
        let fabric = |(name, cm)| Fabric {
            name,
            cm,
            shared_receive_queue,
            ports: Vec::new(),
        };
        Self {
            reactor,
            control: Arc::clone(&control),
            mailbox,
            fabrics: managers.into_iter().map(fabric).collect(),
            listeners: HashMap::new(),
            connections: Connections::default(),
            index_of: HashMap::new(),
            cm_index: HashMap::new(),
            conn_serial: 0,
            unconnected: Vec::new(),
            closing: Vec::new(),
            drain_deadline_us: None,
            shutdown: Shutdowns::default(),
            resources: Resources {
                now_us: 0,
                memory: Memory {
                    data,
                    queues,
                    zeroes,
                },
                trickle: Rc::clone(engine.trickle()),
                engine,
                volumes,
                control,
                starved: VecDeque::new(),
                unrung: Vec::new(),
                broken: Vec::new(),
                in_flight: 0,
                receives: Vec::new(),
                draining: false,
            },
            completions: Vec::new(),
            unanswered: VecDeque::new(),
            work_completions: vec![WorkCompletion::EMPTY; COMPLETIONS_PER_TURN].into(),
        }
    }

    /// Listens at `addr` with the `fabric`th provider. The answer is the address bound.
    pub(crate) fn listen(
        &mut self,
        fabric: usize,
        addr: SocketAddr,
        port: PortId,
    ) -> Result<SocketAddr, CmError> {
        let (id, bound) = self.fabrics[fabric].cm.listen(addr, LISTEN_BACKLOG)?;
        self.listeners.insert((fabric, id), port);
        Ok(bound)
    }

    fn poll_mailbox(&mut self) -> bool {
        let mut progress = false;
        while let Some(message) = self.mailbox.poll() {
            progress = true;
            match message {
                Message::Adopt { migrated, request } => self.adopt(migrated, &request),
                Message::Act(action) => self.act(action),
                Message::OpenVolume { export, opened } => {
                    // Whoever asked may have given up waiting.
                    let _ = opened.send(self.open_volume(&export));
                }
                Message::CloseVolume(backend) => {
                    // Operations in flight keep their file; a command between two of them finds none.
                    self.resources.volumes.remove(&backend);
                }
                Message::TimerMoved => {}
                Message::Drain => self.drain(),
            }
        }
        progress
    }

    fn open_volume(&mut self, export: &Export) -> Result<(), OpenError> {
        let volume = export.store.open(&self.resources.engine)?;
        self.resources.volumes.insert(export.backend, volume);
        Ok(())
    }

    /// Stops listening and taking in commands; those in flight get a bounded time to end.
    fn drain(&mut self) {
        self.resources.draining = true;
        for (fabric, id) in std::mem::take(&mut self.listeners).into_keys() {
            self.fabrics[fabric].cm.destroy(id);
        }
        self.drain_deadline_us = Some(self.resources.now_us + DRAIN_TIMEOUT_US);
    }

    /// While draining: closes connections without commands in flight, an Admin queue after its I/O queues; all of them at
    /// the deadline. Whether everything is over.
    fn drained(&mut self) -> bool {
        let Some(deadline_us) = self.drain_deadline_us else {
            return false;
        };
        let over = self.resources.now_us >= deadline_us;
        self.ask_for_responses();
        let idle: Vec<usize> = self
            .connections
            .indices()
            .filter(|&index| {
                self.connections.all[index].as_ref().is_some_and(|c| {
                    !c.closing() && (over || (c.quiet() && !self.has_io_queues(c)))
                })
            })
            .collect();
        for index in idle {
            self.begin_close(index, "the target is shutting down");
        }
        self.connections.indices().next().is_none()
    }

    /// Makes idle connections tell when the responses have gone of which they would say nothing.
    fn ask_for_responses(&mut self) {
        for connection in self.connections.all.iter_mut().flatten() {
            if connection.closing() {
                continue;
            }
            match connection.ask_for_responses() {
                Ok(true) => connection.ring_doorbell(),
                Ok(false) => {}
                Err(error) => {
                    let why = format!("posting an empty RDMA WRITE failed: {error}");
                    self.resources.broken.push((connection.index, why));
                }
            }
        }
    }

    /// Whether the connection is an Admin queue with I/O queues, on whatever reactor.
    fn has_io_queues(&self, connection: &Connection) -> bool {
        connection.phase == Phase::Admin
            && self
                .control
                .with(|target| target.has_io_queues(connection.id))
    }

    fn poll_storage(&mut self) -> bool {
        let Self {
            resources,
            completions,
            ..
        } = self;
        resources.engine.poll(completions);
        for volume in resources.volumes.values_mut() {
            if volume
                .next_deadline_us()
                .is_some_and(|at_us| at_us <= resources.now_us)
            {
                volume.poll(resources.now_us, completions);
            }
        }
        self.unanswered.extend(completions.drain(..));
        let mut progress = false;
        for _ in 0..DISK_ANSWERS_PER_TURN {
            let Some(completion) = self.unanswered.pop_front() else {
                break;
            };
            self.on_storage(completion);
            progress = true;
        }
        progress
    }

    fn on_storage(&mut self, completion: Completion) {
        if let Some((flush, succeeded)) = self.shutdown.completed(&completion) {
            return self.control.flushed(flush, succeeded);
        }
        let (index, _) = execute::split_token(completion.token);
        if let Some(connection) = self.connections.get_mut(index) {
            connection.disk_outstanding -= 1;
            execute::on_disk(&mut self.resources, connection, completion);
            if connection.closing() && connection.disk_outstanding == 0 {
                let (id, now_us) = (connection.id, self.resources.now_us);
                self.control.disconnected(id, now_us);
            }
        }
    }

    fn ring_doorbells(&mut self) {
        for index in self.resources.unrung.drain(..) {
            if let Some(connection) = self.connections.get_mut(index) {
                connection.rung = true;
                connection.ring_doorbell();
            }
        }
    }

    /// The end of a turn: what the commands asked for, all at once.
    fn flush_turn(&mut self) {
        if !self.resources.starved.is_empty() {
            execute::feed_starved(&mut self.resources, &mut self.connections);
        }
        for ReturnedReceive {
            fabric,
            port,
            connection,
            slot,
            data,
        } in self.resources.receives.drain(..)
        {
            if let Some(port) = self.fabrics[fabric].port(port) {
                let qp = self.connections.get_mut(connection).map(Connection::qp);
                port.receives.post_again(slot, data, qp);
            }
        }
        // One doorbell per connection and one system call for storage, however many commands.
        self.ring_doorbells();
        if let Err(error) = self.resources.engine.submit_batch() {
            tracing::error!("submitting storage operations failed: {error}");
        }
        if !self.resources.broken.is_empty() {
            // The provider may know more of the cause than a status tells.
            self.poll_connection_managers();
        }
        for (index, why) in std::mem::take(&mut self.resources.broken) {
            self.begin_close(index, &why);
        }
        self.end_overdue();
        self.reap();
    }
}

impl Turn for IoPath {
    fn turn(&mut self, now_us: u64) -> Flow {
        self.resources.now_us = now_us;
        let mut progress = self.poll_mailbox();
        progress |= self.poll_connection_managers();
        let completions = self.poll_completions();
        let answered = self.poll_storage();
        if self.reactor == 0 {
            self.control.run_timers(now_us);
        }
        self.flush_turn();
        if self.drained() {
            return Flow::Stop;
        }
        match (completions, self.resources.in_flight) {
            (0, 0) if !progress && !answered => Flow::Idle,
            (_, 0) => Flow::Busy(u32::from(answered)),
            // Who waits for several commands waits for the next one less.
            (completions, in_flight) => {
                Flow::Busy(completions.max(u32::try_from(in_flight).unwrap_or(u32::MAX)))
            }
        }
    }

    fn arm(&mut self, fds: &mut Vec<RawFd>) -> Armed {
        self.mailbox.arm();
        fds.push(self.mailbox.fd());
        let mut ready = self.poll_mailbox();
        for fabric in &mut self.fabrics {
            ready |= fabric.cm.arm();
            fds.push(fabric.cm.fd());
            for port in fabric.ports.iter().flatten() {
                ready |= port.cq.arm();
                fds.push(port.cq.fd());
            }
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
        let mut readable = readable.iter().copied();
        let mut silent = || readable.next() == Some(false);
        self.mailbox.disarm(!silent());
        let now_us = Clock.now_us();
        for fabric in &mut self.fabrics {
            if silent() {
                fabric.cm.stayed_silent(now_us);
            }
            for _ in fabric.ports.iter().flatten() {
                // A completion queue is polled in every turn anyway.
                let _ = silent();
            }
        }
        if silent() {
            self.resources.engine.stayed_silent();
        }
    }

    fn next_deadline_us(&self) -> Option<u64> {
        let managers = self
            .fabrics
            .iter()
            .filter_map(|fabric| fabric.cm.next_deadline_us());
        let volumes = self
            .resources
            .volumes
            .values()
            .filter_map(|v| v.next_deadline_us());
        let timers = (self.reactor == 0)
            .then(|| self.control.next_deadline_us())
            .flatten();
        let unconnected = self
            .unconnected
            .iter()
            .filter_map(|id| self.index_of.get(id));
        let limited = unconnected.chain(&self.closing).filter_map(|&index| {
            self.connections.all[index]
                .as_ref()
                .and_then(|c| c.phase.deadline_us())
        });
        // While draining, look again soon: a quiet connection gives no sign of its own.
        let drain = self
            .drain_deadline_us
            .map(|_| self.resources.now_us + 1_000);
        managers
            .chain(volumes)
            .chain(timers)
            .chain(limited)
            .chain(drain)
            .min()
    }
}

impl Resources {
    /// A completion of the connection was handled. Nobody waits closely for an Admin queue, which has keep-alives and little
    /// else.
    fn note_in_flight(&mut self, connection: &Connection) {
        if connection.phase == Phase::Io {
            self.in_flight = self.in_flight.max(connection.together()).max(1);
        }
    }

    /// Between two steps of a command: a page of the one before may go on to memory.
    #[inline]
    fn step(&self) {
        self.trickle.step();
    }

    /// Remembers that a connection has work requests to ring for.
    fn unrung(&mut self, connection: &mut Connection) {
        if std::mem::take(&mut connection.rung) {
            self.unrung.push(connection.index);
        }
    }

    /// Ends a connection that the device has ended already, and with it data that it lent.
    fn lost(&mut self, connection: &Connection) {
        let why = "the connection ended before a command was taken in".to_owned();
        self.broken.push((connection.index, why));
    }

    /// Ends a connection that has no slot left for a command.
    fn too_many_commands(&mut self, connection: &Connection) {
        let why = "the host sent more commands than its queue has entries".to_owned();
        self.broken.push((connection.index, why));
    }

    /// Nobody needs the data of a capsule any more: posts its receive again at the end of the turn.
    fn give_back_receive(&mut self, connection: &mut Connection, received: Option<Received>) {
        match received {
            Some(Received::Landed { slot, buffer, .. }) => self.repost(connection, slot, buffer),
            Some(Received::Lent { message, .. }) => {
                connection.qp().take_lent(message, &mut |_| true);
            }
            None => {}
        }
    }

    fn repost(&mut self, connection: &Connection, slot: u32, data: Buffer) {
        let (fabric, port) = (connection.fabric, connection.port);
        self.receives.push(ReturnedReceive {
            fabric,
            port,
            connection: connection.index,
            slot,
            data,
        });
    }

    /// Posts the receive of a command again, when it kept one for its in-capsule data.
    fn release_receive(&mut self, connection: &mut Connection, slot: u16) {
        let command = connection.command(slot);
        if let Some(receive) = command.receive.take()
            && let Some(data) = command.take_received()
        {
            self.repost(connection, receive, data);
        }
    }
}
