//! A server: its listeners, its threads, and how it stops.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use capstan_rdma::{ProviderKind, choose};
use capstan_reactor::{RunError, Sender, SpinBudget, mailbox};

use crate::calls::Calls;
use crate::common::Common;
use crate::limits::{
    DATA_MIN_BYTES, LISTENERS_MAX, RDMA_CONNECTIONS_MAX, SPARE_THREADS_MAX, WORKERS_MAX,
};
use crate::peers::Peers;
use crate::program::Program;
use crate::rdma::Rdma;
use crate::reactor::{Phase, Reactor};
use crate::settings::{Listen, Settings, Transport};
use crate::tcp::Tcp;
use crate::workers::{Message, Workers};

/// A server cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// A setting out of its bounds.
    #[error("{what} is {value}, expected {min} to {max}: choose a value in between")]
    Setting {
        /// Which one.
        what: &'static str,
        /// What it is.
        value: u64,
        /// The least.
        min: u64,
        /// The most.
        max: u64,
    },
    /// There can be no listener at an address.
    #[error("cannot listen at {addr}: {why}; {}", listen_step(*addr))]
    Listen {
        /// The address.
        addr: SocketAddr,
        /// Why not, as the system says it.
        why: String,
    },
    /// The system has too little of something.
    #[error("cannot have {what}: {why}; raise the limits of this process")]
    Resources {
        /// Of what.
        what: &'static str,
        /// Why, as the system says it.
        why: String,
    },
}

fn resources(what: &'static str) -> impl FnOnce(io::Error) -> BindError {
    move |error| BindError::Resources {
        what,
        why: error.to_string(),
    }
}

/// An RPC server. It belongs to the thread that made it.
pub struct Server {
    reactor: Reactor,
    addresses: Vec<SocketAddr>,
    sockets: Sockets,
    handle: Handle,
    spin: SpinBudget,
}

/// Sockets that listen, with their addresses.
pub type Sockets = Vec<(SocketAddr, OwnedFd)>;

/// Stops a server, from any thread.
#[derive(Clone, Debug)]
pub struct Handle(Sender<Message>);

impl Handle {
    /// Has the server stop: it takes no more connections and calls, and answers those that it has
    /// taken, within the time of its settings. It returns at once. One that has ended does nothing.
    pub fn stop(&self) {
        let _ = self.0.send_even_if_full(Message::Stop);
    }
}

impl Server {
    /// Binds the listeners, and starts the threads that carry out the calls of `program`.
    ///
    /// # Errors
    /// [`BindError`]: nothing listens then.
    pub fn bind(settings: &Settings, program: Arc<dyn Program>) -> Result<Self, BindError> {
        Self::bind_or_go_on(settings, program, Vec::new())
    }

    /// As [`Server::bind`], and goes on at what an earlier process has `left` of its sockets
    /// ([`Server::sockets`]): clients that have connected since wait there.
    ///
    /// # Errors
    /// As of [`Server::bind`].
    pub fn bind_or_go_on(
        settings: &Settings,
        program: Arc<dyn Program>,
        mut left: Sockets,
    ) -> Result<Self, BindError> {
        check(settings)?;
        // What workers send is bounded by what they have: two calls each, as a rule.
        let (sender, mailbox) = mailbox(2 * WORKERS_MAX + SPARE_THREADS_MAX)
            .map_err(|error| resources("a descriptor")(error.into()))?;
        let mut tcp = Tcp::new().map_err(resources("a descriptor"))?;
        let mut rdma = needs_rdma(settings)
            .then(|| new_rdma(settings))
            .transpose()?;
        let mut addresses = Vec::with_capacity(settings.listeners.len());
        let mut sockets = Vec::new();
        for listen in &settings.listeners {
            let found = left.iter().position(|(addr, _)| *addr == listen.addr);
            let left = found.map(|at| left.swap_remove(at).1);
            let (addr, socket) = bind(*listen, left, &mut tcp, rdma.as_mut())?;
            addresses.push(addr);
            sockets.extend(socket.map(|socket| (addr, socket)));
        }
        let workers = Workers::start(settings.workers, &settings.worker_name, &program, &sender)
            .map_err(resources("a thread"))?;
        let common = Common {
            program,
            calls: Calls::new(workers, settings.workers),
            peers: Peers::new(
                settings.connections_max,
                usize::try_from(settings.rdma_connections_max).unwrap_or(usize::MAX),
                settings.connections_per_source_max,
            ),
            displaced: Vec::new(),
            stall_us: settings.stall_ms.saturating_mul(1000),
            now_us: 0,
            is_stopping: false,
        };
        Ok(Self {
            reactor: Reactor {
                common,
                mailbox,
                tcp,
                rdma,
                drain_us: settings.drain_ms.saturating_mul(1000),
                phase: Phase::Running,
                on_time_us: Some(0),
            },
            addresses,
            sockets,
            handle: Handle(sender),
            spin: settings.spin,
        })
    }

    /// Where it listens, in the order of the listeners in its settings.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Once: the sockets it listens at, for a process that goes on at them. They listen until the
    /// last of these is closed.
    #[must_use]
    pub fn sockets(&mut self) -> Sockets {
        std::mem::take(&mut self.sockets)
    }

    /// What stops it.
    #[must_use]
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Serves on this thread until it is stopped ([`Handle::stop`]). A call that is still being
    /// carried out when the time for that is over is left to its thread, which is not waited for.
    ///
    /// # Errors
    /// The system does not let it wait for its sockets.
    pub fn run(mut self) -> Result<(), RunError> {
        // It stops listening when it is told to, unless another process has them.
        self.sockets.clear();
        let ran = capstan_reactor::run(&mut self.reactor, self.spin);
        self.reactor.common.calls.end();
        ran
    }
}

fn needs_rdma(settings: &Settings) -> bool {
    let mut listeners = settings.listeners.iter();
    listeners.any(|listen| listen.transport != Transport::Tcp)
}

fn new_rdma(settings: &Settings) -> Result<Rdma, BindError> {
    let Settings {
        data_bytes,
        pages,
        rdma_connections_max,
        ..
    } = *settings;
    let made = Rdma::new(data_bytes, pages, rdma_connections_max);
    made.map_err(|error| BindError::Resources {
        what: "memory for RDMA",
        why: error.to_string(),
    })
}

/// What to do where there can be no listener.
fn listen_step(addr: SocketAddr) -> &'static str {
    match UdpSocket::bind((addr.ip(), 0)) {
        Err(error) if error.kind() == ErrorKind::AddrNotAvailable => {
            "choose an address of this machine (`ip address` lists them)"
        }
        _ => "choose another address, or end what has this one",
    }
}

/// Makes a listener, and returns the address that was bound and its socket, where it has one.
fn bind(
    listen: Listen,
    left: Option<OwnedFd>,
    tcp: &mut Tcp,
    rdma: Option<&mut Rdma>,
) -> Result<(SocketAddr, Option<OwnedFd>), BindError> {
    let Listen {
        addr,
        transport,
        provider,
    } = listen;
    let failed = |addr, why: String| BindError::Listen { addr, why };
    let rdma = rdma.filter(|_| transport != Transport::Tcp);
    let Some(rdma) = rdma else {
        let bound = tcp.listen(addr, left);
        let (bound, socket) = bound.map_err(|error| failed(addr, error.to_string()))?;
        return Ok((bound, Some(socket)));
    };
    let (kind, why) =
        choose(provider, addr.ip()).map_err(|error| failed(addr, error.to_string()))?;
    let manager = rdma.manager(kind);
    let manager = manager.map_err(|error| failed(addr, error.to_string()))?;
    let streams = transport == Transport::Both;
    // Devices have ports of their own.
    let left = left.filter(|_| kind == ProviderKind::Iwarp);
    let bound = rdma.listen(manager, addr, left, streams);
    let (bound, socket, takes_streams) = bound.map_err(|error| failed(addr, error.to_string()))?;
    let provider = kind.name();
    tracing::info!(addr = %bound, provider, "listens for RDMA: {why}");
    if streams && !takes_streams {
        // A device's ports are not those of TCP.
        let streams = tcp.listen(bound, None);
        streams.map_err(|error| failed(bound, error.to_string()))?;
    }
    Ok((bound, socket))
}

fn check(settings: &Settings) -> Result<(), BindError> {
    let within = |what, value: usize, min: usize, max: usize| {
        if (min..=max).contains(&value) {
            return Ok(());
        }
        let number = |value| u64::try_from(value).unwrap_or(u64::MAX);
        Err(BindError::Setting {
            what,
            value: number(value),
            min: number(min),
            max: number(max),
        })
    };
    within(
        "the number of listeners",
        settings.listeners.len(),
        1,
        LISTENERS_MAX,
    )?;
    within("the number of workers", settings.workers, 1, WORKERS_MAX)?;
    within(
        "the number of connections",
        settings.connections_max,
        1,
        1 << 20,
    )?;
    let per_source = settings.connections_per_source_max;
    within(
        "the number of connections of one address",
        per_source,
        1,
        1 << 20,
    )?;
    let rdma = |transport| transport != Transport::Tcp;
    if settings
        .listeners
        .iter()
        .any(|listen| rdma(listen.transport))
    {
        let most = usize::try_from(RDMA_CONNECTIONS_MAX).unwrap_or(usize::MAX);
        let connections = usize::try_from(settings.rdma_connections_max).unwrap_or(usize::MAX);
        within("the number of RDMA connections", connections, 1, most)?;
        within(
            "the memory for data in bytes",
            settings.data_bytes,
            DATA_MIN_BYTES,
            1 << 40,
        )?;
    }
    Ok(())
}
