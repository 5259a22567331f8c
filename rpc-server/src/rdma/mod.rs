//! RPC-over-RDMA version 1 (RFC 8166), over the verbs contract.
//!
//! A call goes through these steps, each of which may have to wait:
//! 1. It is received, and its header read (`connection.rs`, `call.rs`).
//! 2. It gets all the buffers that it and its reply take, or none: calls that find none wait in the
//!    order in which they came.
//! 3. What it has in read chunks is pulled, a bounded number of RDMA READs at a time.
//! 4. It is carried out by a worker, which fills the buffers of its write chunks.
//! 5. Its reply is made (`reply.rs`): RDMA WRITEs from those buffers, and a Send behind them.
//! 6. The Send has completed: its buffers are free again.

mod accept;
mod call;
mod connection;
mod demand;
mod device;
mod manager;
mod reply;
mod shares;
mod slots;
mod wr_id;

use std::collections::VecDeque;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{OwnedFd, RawFd};

use capstan_memory::{Pages, Short, SlabError};
use capstan_rdma::ProviderKind;
use capstan_rdma::contract::{CmError, RdmaError, WcOpcode, WcStatus, WorkCompletion};
use capstan_rpcrdma::credits::{CreditPool, Credits};
use capstan_rpcrdma::limits::CREDITS_PER_CONNECTION_MAX;
use rustc_hash::FxHashMap;

use self::call::{Call, Held};
use self::connection::{Connection, World};
use self::device::{Device, Memory};
use self::manager::{Happened, Manager};
use self::shares::Shares;
use self::wr_id::WrId;
use crate::common::{Common, End};
use crate::limits::{CM_EVENTS_PER_TURN, COMPLETIONS_PER_TURN, LOOK_PERIOD_US, RECEIVES};
use crate::program::{ConnectionNumber, Wire};
use crate::task::Task;

/// The RDMA devices and connections of a server. Dropped in the order of its fields: queue pairs
/// first, memory last.
pub(crate) struct Rdma {
    connections: FxHashMap<ConnectionNumber, Connection>,
    /// Each keeps its place as long as it has connections.
    devices: Vec<Option<Device>>,
    managers: Vec<Manager>,
    /// Buffers of calls that workers have, of connections that are gone.
    leaving: FxHashMap<(ConnectionNumber, u16), Held>,
    credits: CreditPool,
    shares: Shares,
    /// Calls that wait for buffers, in the order in which they came.
    short: VecDeque<(ConnectionNumber, u16)>,
    /// Connections whose doorbell is to be rung.
    unflushed: Vec<ConnectionNumber>,
    completions: Box<[WorkCompletion]>,
    /// Calls that are over, with memory for the lists of others.
    spare: Vec<Call>,
    /// When connections are looked at whose clients have to go on.
    look_at_us: Option<u64>,
    memory: Memory,
}

/// There can be no RDMA.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RdmaUnavailable {
    #[error(transparent)]
    Memory(#[from] SlabError),
    #[error("{data_bytes} bytes of data for {connections} connections are not enough")]
    Sizes { data_bytes: usize, connections: u32 },
}

impl Rdma {
    /// Without a provider.
    ///
    /// # Errors
    /// The system has not so much memory.
    pub(crate) fn new(
        data_bytes: usize,
        pages: Pages,
        connections: u32,
    ) -> Result<Self, RdmaUnavailable> {
        let memory = Memory::new(data_bytes, pages)?;
        let credits = CreditPool::new(RECEIVES, connections, CREDITS_PER_CONNECTION_MAX);
        let (memory, credits) = memory.zip(credits).ok_or(RdmaUnavailable::Sizes {
            data_bytes,
            connections,
        })?;
        Ok(Self {
            connections: FxHashMap::default(),
            devices: Vec::new(),
            managers: Vec::new(),
            leaving: FxHashMap::default(),
            credits,
            shares: Shares::default(),
            short: VecDeque::new(),
            unflushed: Vec::new(),
            completions: vec![WorkCompletion::EMPTY; COMPLETIONS_PER_TURN].into(),
            spare: Vec::new(),
            look_at_us: None,
            memory,
        })
    }

    /// The manager of a provider, made where there is none yet.
    ///
    /// # Errors
    /// The system lacks what the provider needs.
    pub(crate) fn manager(&mut self, kind: ProviderKind) -> Result<usize, RdmaError> {
        if let Some(at) = self.managers.iter().position(|of| of.kind() == kind) {
            return Ok(at);
        }
        self.managers.push(Manager::new(kind)?);
        Ok(self.managers.len().saturating_sub(1))
    }

    /// Listens at `addr`, or goes on at the socket that does, for records over TCP as well where
    /// `streams` says so and the provider can. Returns the address that was bound, the socket for a
    /// process that goes on at it, and whether streams come there.
    ///
    /// # Errors
    /// The address cannot be had.
    pub(crate) fn listen(
        &mut self,
        manager: usize,
        addr: SocketAddr,
        left: Option<OwnedFd>,
        streams: bool,
    ) -> Result<(SocketAddr, Option<OwnedFd>, bool), CmError> {
        let manager = self.managers.get_mut(manager);
        let manager = manager.ok_or(CmError::Invalid("there is no such provider"))?;
        let takes_streams = streams && manager.takes_streams();
        let (bound, socket) = manager.listen(addr, left, takes_streams)?;
        Ok((bound, socket, takes_streams))
    }

    /// What a connection needs, and the managers.
    fn world<'a>(
        &'a mut self,
        device: usize,
        common: &'a mut Common,
    ) -> Option<(World<'a>, &'a mut [Manager])> {
        let world = World {
            device: self.devices.get_mut(device)?.as_mut()?,
            memory: &self.memory,
            credits: &mut self.credits,
            shares: &mut self.shares,
            short: &mut self.short,
            spare: &mut self.spare,
            common,
        };
        Some((world, &mut self.managers))
    }

    /// Does something with a connection, where it is still there, and what follows from that.
    /// Returns what `act` does, unless the connection has ended.
    fn with<T>(
        &mut self,
        number: ConnectionNumber,
        common: &mut Common,
        act: impl FnOnce(&mut Connection, &mut World<'_>) -> Result<T, End>,
    ) -> Option<T> {
        let connection = self.connections.get_mut(&number)?;
        let device = self.devices.get_mut(connection.parts.device)?.as_mut()?;
        let mut world = World {
            device,
            memory: &self.memory,
            credits: &mut self.credits,
            shares: &mut self.shares,
            short: &mut self.short,
            spare: &mut self.spare,
            common,
        };
        let acted = act(connection, &mut world);
        if connection.needs_flush() && !std::mem::replace(&mut connection.is_unflushed, true) {
            self.unflushed.push(number);
        }
        let is_awaited = connection.is_awaited();
        match acted {
            Ok(done) => {
                if is_awaited {
                    self.is_awaited(common.now_us);
                }
                Some(done)
            }
            Err(why) => {
                self.end(number, &why, common);
                None
            }
        }
    }

    /// There is a connection whose client has to go on.
    fn is_awaited(&mut self, now_us: u64) {
        let at_us = now_us.saturating_add(LOOK_PERIOD_US);
        self.look_at_us.get_or_insert(at_us);
    }

    /// Takes what has happened on all devices. Streams that came to a listener of RDMA are given to
    /// `stream`. Returns how much happened.
    pub(crate) fn poll(
        &mut self,
        common: &mut Common,
        mut stream: impl FnMut(TcpStream, SocketAddr, Vec<u8>, &mut Common),
    ) -> usize {
        let mut count = 0_usize;
        for manager in 0..self.managers.len() {
            for _ in 0..CM_EVENTS_PER_TURN {
                let Some(of) = self.managers.get_mut(manager) else {
                    break;
                };
                let Some(happened) = of.poll(common.now_us) else {
                    break;
                };
                count = count.saturating_add(1);
                match happened {
                    Happened::Request(id, param) => {
                        self.take_request(manager, id, &param, common);
                    }
                    Happened::Stream(socket, peer, bytes) => stream(socket, peer, bytes, common),
                    Happened::Established(number) => {
                        self.with(number, common, |connection, _| {
                            connection.established();
                            Ok(())
                        });
                    }
                    Happened::Ended(number, why) => {
                        self.end(number, &End::Closed(why), common);
                    }
                }
            }
        }
        for device in 0..self.devices.len() {
            count = count.saturating_add(self.poll_device(device, common));
        }
        count
    }

    fn poll_device(&mut self, device: usize, common: &mut Common) -> usize {
        let Some(Some(of)) = self.devices.get(device) else {
            return 0;
        };
        let mut completions = std::mem::take(&mut self.completions);
        let count = of.cq().poll(&mut completions);
        for completion in completions.iter().take(count) {
            let of = self.devices.get(device).and_then(Option::as_ref);
            if let Some(number) = of.and_then(|of| of.connection(completion.qp)) {
                self.completed(number, completion, common);
            }
        }
        self.completions = completions;
        if let Some(place) = self.devices.get_mut(device)
            && let Some(over) = place.take_if(|of| of.is_over())
        {
            let device = &over.attributes().name;
            tracing::info!(device, "closed the RDMA device that was removed");
        }
        count
    }

    fn completed(
        &mut self,
        number: ConnectionNumber,
        completion: &WorkCompletion,
        common: &mut Common,
    ) {
        let &WorkCompletion {
            wr_id,
            status,
            opcode,
            byte_len,
            ..
        } = completion;
        self.with(number, common, |connection, world| {
            if status != WcStatus::Success {
                return Err(End::Closed(format!("a work request ended with: {status}")));
            }
            match WrId::decode(wr_id) {
                Some(WrId::Receive(slot)) if opcode == WcOpcode::Recv => {
                    connection.received(slot, byte_len, world)
                }
                Some(wr_id) => connection.completed(wr_id, world),
                None => Ok(()),
            }
        });
    }

    /// Work requests and buffers may be free again, for which connections and calls wait.
    fn serve_waiting(&mut self, common: &mut Common) {
        for device in 0..self.devices.len() {
            while let Some(number) = self
                .devices
                .get_mut(device)
                .and_then(Option::as_mut)
                .and_then(Device::next_waiting)
            {
                self.with(number, common, |connection, world| {
                    connection.is_waiting = false;
                    connection.advance(world)
                });
            }
        }
        // Those of an address that has its share are passed over, and keep their places.
        let mut passed_over = VecDeque::new();
        while let Some((number, slot)) = self.short.pop_front() {
            let leased = self.with(number, common, |connection, world| {
                connection.lease(slot, world)
            });
            match leased {
                Some(Err(Short::Share)) => passed_over.push_back((number, slot)),
                Some(Err(Short::Memory)) => {
                    self.short.push_front((number, slot));
                    break;
                }
                Some(Ok(())) | None => {}
            }
        }
        passed_over.append(&mut self.short);
        self.short = passed_over;
    }

    /// When the call came that waits for the turn of its connection for longest.
    pub(crate) fn oldest_us(&self) -> Option<u64> {
        let all = self.connections.values();
        all.filter_map(Connection::oldest_us).min()
    }

    /// It is the turn of a connection: its next call is carried out.
    pub(crate) fn start_next(&mut self, number: ConnectionNumber, common: &mut Common) {
        self.with(number, common, |connection, world| {
            connection.start_next(world);
            Ok(())
        });
    }

    /// A call was carried out.
    pub(crate) fn answered(&mut self, task: Box<Task>, common: &mut Common) {
        let number = task.connection;
        if !self.connections.contains_key(&number) {
            self.leaving.remove(&(number, task.slot));
            common.calls.left(number);
            common.calls.task_back(task);
            return;
        }
        self.with(number, common, |connection, world| {
            connection.answered(task, world)
        });
    }

    /// The end of a turn: serves what waits for what it has freed, and hands what was posted to
    /// the devices.
    pub(crate) fn flush(&mut self, common: &mut Common) {
        self.serve_waiting(common);
        for number in self.unflushed.drain(..) {
            if let Some(connection) = self.connections.get_mut(&number) {
                connection.is_unflushed = false;
                connection.flush();
            }
        }
    }

    /// Ends a connection, if there is one of that number.
    pub(crate) fn end(&mut self, number: ConnectionNumber, why: &End, common: &mut Common) {
        let Some(connection) = self.connections.remove(&number) else {
            return;
        };
        let qp = connection.qp_num();
        let is_stuck = connection.is_awaited();
        let (manager, id) = (connection.parts.manager, connection.parts.id);
        if is_stuck && let Some(manager) = self.managers.get_mut(manager) {
            // What it did not take until now nothing is to linger for.
            manager.cm.abort(id);
        }
        let closed = connection.close();
        why.log(closed.peer, number);
        if let Some(Some(device)) = self.devices.get_mut(closed.device) {
            device.remove(qp);
            device.give_send_wrs(closed.send_wrs);
        }
        if let Some(manager) = self.managers.get_mut(closed.manager) {
            manager.forget(closed.id);
        }
        self.leave(closed.peer, closed.credits);
        for (slot, call) in closed.calls {
            if let Some(held) = call.into_held() {
                self.leaving.insert((number, slot), held);
            }
        }
        self.short.retain(|(of, _)| *of != number);
        common.end((Wire::Rdma, number), closed.peer, closed.under_way);
    }

    fn leave(&mut self, peer: SocketAddr, credits: Credits) {
        let pool = &mut self.credits;
        self.shares.leave(peer, &self.memory, pool, credits);
    }

    /// Ends connections whose clients leave something as it is for too long.
    pub(crate) fn look(&mut self, common: &mut Common) {
        if self.look_at_us.is_none_or(|at_us| at_us > common.now_us) {
            return;
        }
        let (stall_us, now_us) = (common.stall_us, common.now_us);
        let all = self.connections.iter();
        let overdue = all.filter_map(|(number, of)| Some((*number, of.overdue(stall_us, now_us)?)));
        for (number, why) in overdue.collect::<Vec<_>>() {
            self.end(number, &End::Fault(why.to_owned()), common);
        }
        let is_any_awaited = self.connections.values().any(Connection::is_awaited);
        self.look_at_us = is_any_awaited.then(|| common.now_us.saturating_add(LOOK_PERIOD_US));
    }

    /// Takes no more connections.
    pub(crate) fn stop(&mut self) {
        self.managers.iter_mut().for_each(Manager::stop);
    }

    /// Whether all calls are answered, and the answers have left.
    pub(crate) fn is_drained(&self) -> bool {
        self.connections.values().all(Connection::is_drained)
    }

    /// Begins to end all connections in order.
    pub(crate) fn close(&mut self) {
        for connection in self.connections.values() {
            if let Some(manager) = self.managers.get_mut(connection.parts.manager) {
                manager.cm.disconnect(connection.parts.id);
            }
        }
    }

    /// Ends all connections.
    pub(crate) fn end_all(&mut self, common: &mut Common) {
        let why = End::Closed("the server stops".to_owned());
        for number in self.connections.keys().copied().collect::<Vec<_>>() {
            self.end(number, &why, common);
        }
    }

    /// Whether there are no connections.
    pub(crate) fn is_empty(&self) -> bool {
        self.connections.is_empty()
    }

    /// Whether the kernel has work to do for a device, which it does on this core as well.
    pub(crate) fn waits_for_kernel(&self) -> bool {
        self.devices.iter().flatten().any(Device::waits_for_kernel)
    }

    /// Has what happens next make a descriptor readable. `true` when something has happened.
    #[must_use]
    pub(crate) fn arm(&mut self, fds: &mut Vec<RawFd>) -> bool {
        let mut is_ready = false;
        for manager in &mut self.managers {
            is_ready |= manager.arm();
            fds.push(manager.fd());
        }
        for device in self.devices.iter().flatten() {
            is_ready |= device.cq().arm();
            fds.push(device.cq().fd());
        }
        is_ready
    }

    /// Whether the descriptors that [`Rdma::arm`] has added were readable.
    pub(crate) fn disarm(&mut self, readable: &[bool], now_us: u64) {
        for (manager, is_readable) in self.managers.iter_mut().zip(readable) {
            if !is_readable {
                manager.stayed_silent(now_us);
            }
        }
    }

    /// When it is to be polled and looked at at the latest.
    pub(crate) fn next_deadline_us(&self) -> Option<u64> {
        let managers = self.managers.iter().filter_map(Manager::next_deadline_us);
        managers.chain(self.look_at_us).min()
    }
}
