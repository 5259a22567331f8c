//! All wires of one reactor: RDMA providers with the devices behind them, and the sockets of
//! NVMe/TCP. Queues begin and end here, over whichever of them their connection came.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use capstan_nvme_proto::rdma_cm::RejectStatus;
use capstan_rdma::Beside;

use crate::limits::ADMIN_PIECE_BYTES;
use crate::manager::{
    AcceptError, CmError, Happened, ListenerId, Manager, Migrating, Over, RdmaRequest, Request,
    TcpRequest,
};
use crate::queue::{End, Queue, QueueId, Queues};
use crate::rdma::{self, DevicePort};
use crate::resources::{Memory, NoResources};
use crate::tcp;
use crate::tcp::closing::ClosingSockets;
use crate::tcp::controller::IcSettings;
use crate::wire::Wire;

/// What the wires of a reactor are made of.
pub struct Parts {
    /// One connection manager per provider, with its name, in the same order on every reactor.
    pub managers: Vec<(&'static str, Beside)>,
    /// Whether queues share their receives where the device can.
    pub shared_receive_queue: bool,
    /// The sockets of NVMe/TCP.
    pub sockets: tcp::wire::TcpWire,
    /// How many of them may be closing.
    pub closing_sockets_max: usize,
}

/// All wires of a reactor.
pub struct Wires {
    providers: Vec<Provider>,
    shared_receive_queue: bool,
    sockets: tcp::wire::TcpWire,
    closing: ClosingSockets,
}

/// One RDMA provider.
struct Provider {
    name: &'static str,
    /// Its connections, and those of NVMe/TCP that come to its listeners.
    manager: Manager,
    ports: Vec<DevicePort>,
}

impl Wires {
    /// Without a connection.
    #[must_use]
    pub fn new(parts: Parts) -> Self {
        let Parts {
            managers,
            shared_receive_queue,
            sockets,
            closing_sockets_max,
        } = parts;
        let providers = managers.into_iter().enumerate();
        let providers = providers.map(|(number, (name, beside))| Provider {
            name,
            manager: Manager::new(number, beside),
            ports: Vec::new(),
        });
        Self {
            providers: providers.collect(),
            shared_receive_queue,
            sockets,
            closing: ClosingSockets::new(closing_sockets_max),
        }
    }

    /// All wires: of each device, and of the sockets of NVMe/TCP where there are any. Always in the
    /// same order.
    #[inline]
    pub fn iter_mut(&mut self) -> impl Iterator<Item = Wire<'_>> {
        let Self {
            providers, sockets, ..
        } = self;
        let ports = providers.iter_mut().flat_map(|of| &mut of.ports);
        let sockets = (!sockets.is_empty()).then_some(Wire::Tcp(sockets));
        let devices = ports.map(|port| Wire::Rdma(&mut port.wire));
        devices.chain(sockets)
    }

    fn ports(&self) -> impl Iterator<Item = &DevicePort> {
        self.providers.iter().flat_map(|of| &of.ports)
    }

    /// The connection managers, in the order of their providers.
    pub fn managers(&mut self) -> impl Iterator<Item = &mut Manager> {
        self.providers.iter_mut().map(|of| &mut of.manager)
    }

    /// Listens at `addr` with the provider of that number, as [`Manager::listen`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Panics
    /// There are fewer providers.
    pub fn listen(
        &mut self,
        provider: usize,
        addr: SocketAddr,
        backlog: u32,
    ) -> Result<(ListenerId, SocketAddr), CmError> {
        (self.providers[provider].manager).listen(addr, backlog)
    }

    /// Goes on at a socket that an earlier process has left, with the provider of that number, as
    /// [`Manager::listen_on`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Panics
    /// There are fewer providers.
    pub fn listen_on(
        &mut self,
        provider: usize,
        socket: OwnedFd,
    ) -> Result<(ListenerId, SocketAddr), CmError> {
        (self.providers[provider].manager).listen_on(socket)
    }

    /// The socket of a listener, as [`Manager::socket_of`].
    #[must_use]
    pub fn socket_of(&self, listener: ListenerId) -> Option<OwnedFd> {
        let provider = self.providers.get(listener.provider())?;
        provider.manager.socket_of(listener)
    }

    /// Stops listening there.
    pub fn close(&mut self, listener: ListenerId) {
        self.provider(listener).manager.close(listener);
    }

    /// How many providers there are.
    #[must_use]
    pub fn providers(&self) -> usize {
        self.providers.len()
    }

    /// The name of the provider of that number, where there is one.
    #[must_use]
    pub fn provider_name(&self, provider: usize) -> &'static str {
        (self.providers.get(provider)).map_or("unknown", |of| of.name)
    }

    /// What has happened next to connections of the provider of that number.
    pub fn poll_connections(&mut self, provider: usize, now_us: u64) -> Option<Happened> {
        self.providers.get_mut(provider)?.manager.poll(now_us)
    }

    /// What a request is to be carried by.
    #[must_use]
    pub fn carrier_name(&self, request: &Request) -> &'static str {
        match request.over {
            Over::Rdma(_) => self.provider_name(request.listener.provider()),
            Over::Tcp(_) => "tcp",
        }
    }

    /// As [`Manager::refuse`].
    pub fn refuse(&mut self, request: Request, status: RejectStatus) {
        let provider = self.provider(request.listener);
        provider.manager.refuse(request, status);
    }

    /// As [`Manager::give_away`].
    ///
    /// # Errors
    /// As there.
    pub fn give_away(&mut self, request: Request) -> Result<Migrating, Box<(Request, CmError)>> {
        let provider = self.provider(request.listener);
        provider.manager.give_away(request)
    }

    /// As [`Manager::take_over`].
    ///
    /// # Errors
    /// As there.
    pub fn take_over(&mut self, migrating: Migrating) -> Result<Request, CmError> {
        let provider = self.provider(migrating.listener());
        provider.manager.take_over(migrating)
    }

    /// Makes the queue `id` of a request, with a place among connections that are no queue yet, and
    /// accepts the connection. It is to become a queue of `entries`, for which there is room now
    /// where it is announced. Where it cannot be accepted the request is refused, with
    /// [`RejectStatus::NO_RESOURCES`] over NVMe/RDMA.
    ///
    /// # Errors
    /// Why it cannot be accepted.
    pub fn accept(
        &mut self,
        id: QueueId,
        request: Request,
        entries: u16,
        memory: &Memory,
        now_us: u64,
    ) -> Result<Queue, AcceptError> {
        let Request {
            listener,
            local,
            peer,
            over,
        } = request;
        match over {
            Over::Rdma(over) => {
                let shared_receive_queue = self.shared_receive_queue;
                let provider = self.provider(listener);
                let accepted = provider.accept(id, &over, entries, memory, shared_receive_queue);
                accepted.map(Queue::Rdma).inspect_err(|_| {
                    let request = Request {
                        listener,
                        local,
                        peer,
                        over: Over::Rdma(over),
                    };
                    let status = RejectStatus::NO_RESOURCES;
                    provider.manager.refuse(request, status);
                })
            }
            Over::Tcp(over) => self.accept_socket(id, over, memory, now_us),
        }
    }

    fn accept_socket(
        &mut self,
        id: QueueId,
        request: TcpRequest,
        memory: &Memory,
        now_us: u64,
    ) -> Result<Queue, AcceptError> {
        // For the data of its Connect.
        let page = memory.strangers.take(ADMIN_PIECE_BYTES);
        let page = page.ok_or(NoResources::Places)?;
        let accepted = (self.sockets).accept(id, request, IcSettings::default(), now_us);
        let mut queue = accepted.map_err(AcceptError::Socket)?;
        queue.with(|queue| queue.give(page));
        Ok(Queue::Tcp(Box::new(queue)))
    }

    /// Ends the queue `id` of `queues` and its connection: when all has left that is to be sent, or
    /// so that nothing lingers. It quiesces within [`Queue::close_timeout_us`], or is to be
    /// released then. The socket of another one is closed where too many are ending.
    pub fn end(&mut self, id: QueueId, queues: &mut impl Queues<Queue>, how: End) {
        let Some(queue) = queues.queue(id) else {
            return;
        };
        queue.end(how);
        match queue {
            Queue::Rdma(queue) => {
                let connection = queue.connection();
                if let Some(connection) = connection
                    && let Some(provider) = self.providers.get_mut(connection.provider())
                {
                    provider.manager.end(connection, how == End::Now);
                }
            }
            Queue::Tcp(_) => {
                let oldest = self.closing.add(id);
                let oldest = oldest.and_then(|oldest| queues.queue(oldest)?.tcp());
                if let Some(oldest) = oldest {
                    // Whatever its host has not read.
                    oldest.close();
                }
            }
        }
    }

    /// Gives back everything that a queue has, whose connection is forgotten.
    pub fn release(&mut self, queue: Queue) {
        match queue {
            Queue::Rdma(queue) => {
                let connection = queue.connection();
                // The queue pair must be gone before its id.
                drop(queue);
                if let Some(connection) = connection
                    && let Some(provider) = self.providers.get_mut(connection.provider())
                {
                    provider.manager.forget(connection);
                }
            }
            Queue::Tcp(queue) => self.closing.remove(queue.id()),
        }
    }

    /// Closes devices that were removed, once their connections are gone.
    pub fn close_removed_devices(&mut self) {
        for provider in &mut self.providers {
            provider.ports.retain(|port| !port.is_over());
        }
    }

    /// Whether a fence waits for something that only a poll tells.
    #[must_use]
    pub fn has_fences(&self) -> bool {
        self.ports().any(|port| port.wire.has_fences())
    }

    /// Whether the kernel has work to do for a wire, which it does on this core as well.
    #[must_use]
    pub fn wait_for_kernel(&self) -> bool {
        self.ports().any(DevicePort::waits_for_kernel)
    }

    /// When its managers and wires are to be polled at the latest.
    #[must_use]
    pub fn next_deadline_us(&self) -> Option<u64> {
        let managers = self.providers.iter();
        let managers = managers.filter_map(|of| of.manager.next_deadline_us());
        managers.chain(self.sockets.next_deadline_us()).min()
    }

    /// The provider of a listener: one of this reactor or, as all reactors have the same, of
    /// another one.
    fn provider(&mut self, listener: ListenerId) -> &mut Provider {
        &mut self.providers[listener.provider()]
    }
}

impl Provider {
    fn accept(
        &mut self,
        id: QueueId,
        request: &RdmaRequest,
        entries: u16,
        memory: &Memory,
        shared_receive_queue: bool,
    ) -> Result<rdma::RdmaQueue, AcceptError> {
        let Self { manager, ports, .. } = self;
        let device = manager.device(request)?;
        let at = match ports.iter().position(|port| port.is_of(&device)) {
            Some(at) => at,
            None => {
                ports.push(DevicePort::open(device, memory, shared_receive_queue)?);
                ports.len() - 1
            }
        };
        manager.accept(id, request, &mut ports[at], (entries, memory))
    }
}

#[cfg(test)]
mod tests;
