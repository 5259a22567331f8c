//! An association driven by its caller's own thread: no hop, no lock, no allocation per I/O.

use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::time::{SystemTime, UNIX_EPOCH};

use capstan_memory::Buffer;
use capstan_nvme_proto::command::AdminCommand;
use capstan_nvme_proto::log::DiscoveryLogEntry;
use capstan_nvme_proto::sgl::Sgl;
use capstan_nvme_proto::sqe::Sqe;
use capstan_rdma::contract::{ConnectionManager, DeviceAttributes};
use capstan_reactor::{Armed, Clock, Flow, Runner, SpinBudget, Turn};
use capstan_transport::host::{HostTransport, WindowsClosed};

use crate::driver::{AssociationConfig, AssociationEngine, Completion, Io, Refused, Source};
use crate::error::{CommandError, ConnectError, IoError, Losses};
use crate::host::{
    AssociationStatus, CommandData, CommandReply, ControllerInfo, Counters, Discovery, Event,
    HostConfig, NamespaceInfo, Unidentified,
};
use crate::options::{Options, Transport};
use crate::race;
use crate::transports::TakenTransport;
use crate::wire::Wire;

/// One association on the calling thread. It works only while it is called: between calls
/// nothing is sent, received or kept alive.
pub struct DirectQueue {
    engine: AssociationEngine,
    runner: Runner,
    spin: SpinBudget,
    next_token: u64,
}

impl DirectQueue {
    /// Connects, and waits until the association is live.
    ///
    /// # Errors
    /// Wrong options, or why the association could not be made.
    pub fn connect(options: &Options) -> Result<Self, ConnectError> {
        options.check()?;
        Self::go_live(race::start(options, &options.socket_addrs()?)?)
    }

    /// Connects through a connection manager of the caller's choice.
    ///
    /// # Errors
    /// As [`DirectQueue::connect`].
    pub fn connect_through(
        options: &Options,
        cm: Box<dyn ConnectionManager>,
    ) -> Result<Self, ConnectError> {
        Self::go_live(engine(
            options,
            first_address(options)?,
            HostTransport::Rdma(cm),
        )?)
    }

    fn go_live(mut engine: AssociationEngine) -> Result<Self, ConnectError> {
        // The caller has each error.
        engine.log_no_failures();
        let mut queue = Self {
            engine,
            runner: Runner::default(),
            spin: SpinBudget::default(),
            next_token: 0,
        };
        queue.run_until(|engine| {
            loop {
                match engine.poll_event() {
                    Some(Event::Live { .. }) => return Some(Ok(())),
                    Some(Event::Failed { cause }) => return Some(Err((*cause).clone())),
                    Some(Event::Closed) => return Some(Err(ConnectError::Closed)),
                    Some(_) => {}
                    None => return None,
                }
            }
        })?;
        Ok(queue)
    }

    /// How long to spin before sleeping in [`DirectQueue::wait`].
    pub fn set_spin(&mut self, spin: SpinBudget) {
        self.spin = spin;
    }

    /// The controller.
    #[must_use]
    pub fn controller(&self) -> &ControllerInfo {
        self.engine.host().controller()
    }

    /// The namespaces.
    #[must_use]
    pub fn namespaces(&self) -> &[NamespaceInfo] {
        self.engine.host().namespaces()
    }

    /// Namespaces that are left out there, as the controller did not tell what they are.
    #[must_use]
    pub fn unidentified(&self) -> &[Unidentified] {
        self.engine.host().unidentified()
    }

    /// A namespace that this host can use.
    ///
    /// # Errors
    /// There is none with that NSID, or this host cannot use it.
    pub fn namespace(&self, nsid: u32) -> Result<&NamespaceInfo, IoError> {
        let Some(namespace) = self.namespaces().iter().find(|n| n.nsid == nsid) else {
            let subnqn = self.engine.subnqn();
            let unidentified = self.unidentified();
            return Err(IoError::no_namespace(
                subnqn,
                nsid,
                self.namespaces(),
                unidentified,
            ));
        };
        match &namespace.unusable {
            None => Ok(namespace),
            Some(unusable) => Err(unusable.to_error(nsid)),
        }
    }

    /// Where the association is.
    #[must_use]
    pub fn status(&self) -> AssociationStatus {
        self.engine.status(Clock.now_us())
    }

    /// What the controller did wrong so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.engine.host().counters()
    }

    /// What the RDMA device behind the association can do.
    #[must_use]
    pub fn device(&self) -> Option<&DeviceAttributes> {
        self.engine.device_attributes()
    }

    /// The transport, where the options had [`Transport::Auto`](crate::Transport::Auto).
    #[must_use]
    pub fn taken(&self) -> Option<&TakenTransport> {
        self.engine.taken()
    }

    /// What carries the queues, with the digests in use; while the controller is lost, what carried
    /// them before.
    #[must_use]
    pub fn wire(&self) -> Option<&Wire> {
        self.engine.went_by()
    }

    /// What closed the memory windows of commands so far; none are opened on a device that has
    /// none.
    #[must_use]
    pub fn windows_closed(&self) -> WindowsClosed {
        self.engine.windows_closed()
    }

    /// Leases registered memory of `len_bytes`; `None` when none that large is free.
    #[must_use]
    pub fn take(&self, len_bytes: u32) -> Option<Buffer> {
        self.engine.data_pool().take(len_bytes)
    }

    /// Most data one command carries, in bytes. Larger I/Os are cut.
    #[must_use]
    pub fn transfer_bytes_max(&self) -> u32 {
        self.engine.transfer_bytes_max()
    }

    /// I/Os submitted and not handed back.
    #[must_use]
    pub fn in_progress(&self) -> usize {
        self.engine.in_progress()
    }

    /// Submits an I/O whose data is at the start of `buffer`, a lease of [`DirectQueue::take`].
    /// Nothing is sent before the next [`DirectQueue::poll`] or [`DirectQueue::wait`].
    ///
    /// # Errors
    /// [`Refused`] with the buffer: too many in progress, or it cannot succeed.
    pub fn submit(&mut self, token: u64, io: Io, buffer: Option<Buffer>) -> Result<(), Refused> {
        self.engine.submit(Source::default(), token, io, buffer)
    }

    /// The next finished I/O. When none has been handed over yet, does one round of work first:
    /// sends what was submitted, takes what has arrived.
    pub fn poll(&mut self) -> Option<Completion> {
        if let Some(completion) = self.engine.poll_completion() {
            return Some(completion);
        }
        self.engine.turn(Clock.now_us());
        log_losses(&mut self.engine);
        self.engine.poll_completion()
    }

    /// Waits for the next finished I/O: spins first, then sleeps. `None` at `deadline_us` of
    /// [`Clock`], or when nothing is in progress.
    pub fn wait(&mut self, deadline_us: Option<u64>) -> Option<Completion> {
        if let Some(completion) = self.engine.poll_completion() {
            return Some(completion);
        }
        let start_us = Clock.now_us();
        let (mut now_us, mut idle_since_us) = (start_us, start_us);
        while now_us - start_us < self.spin.spin_us {
            let busy = self.engine.turn(now_us);
            if let Some(completion) = self.engine.poll_completion() {
                return Some(completion);
            }
            if self.engine.in_progress() == 0 || deadline_us.is_some_and(|at| now_us >= at) {
                return None;
            }
            now_us = Clock.now_us();
            if busy {
                idle_since_us = now_us;
            } else {
                capstan_reactor::pause(now_us - idle_since_us);
            }
        }
        self.run_until_deadline(deadline_us, |engine| {
            log_losses(engine);
            match engine.poll_completion() {
                Some(completion) => Some(Some(completion)),
                None if engine.in_progress() == 0 => Some(None),
                None => None,
            }
        })
        .flatten()
    }

    /// Sends an admin command and waits for its answer. `sqe` comes complete but for CID and data
    /// pointer. I/O goes on meanwhile; its completions wait for [`DirectQueue::poll`].
    ///
    /// # Errors
    /// [`CommandError`]; a status other than success is one.
    pub fn admin(&mut self, sqe: Sqe, data: CommandData) -> Result<CommandReply, CommandError> {
        let what = sqe.admin_opcode().name().unwrap_or("admin command");
        let token = self.token();
        self.engine.submit_admin(token, sqe, data, Clock.now_us())?;
        self.reply(token, what)
    }

    /// Sends a command on an I/O queue as it is, whatever its opcode, and waits for its answer.
    /// `sqe` comes complete but for CID and data pointer; only the controller checks it. Data is at
    /// most 1 MiB. I/O goes on meanwhile; its completions wait for [`DirectQueue::poll`].
    ///
    /// # Errors
    /// [`CommandError`]; a status other than success is one. A command whose answer was lost with
    /// the connection is not sent again.
    pub fn io_passthru(
        &mut self,
        sqe: Sqe,
        data: &CommandData,
    ) -> Result<CommandReply, CommandError> {
        let what = sqe.io_opcode().name().unwrap_or("I/O command");
        let token = self.token();
        self.engine
            .submit_passthru(token, sqe, data, Clock.now_us())?;
        self.reply(token, what)
    }

    fn token(&mut self) -> u64 {
        self.next_token += 1;
        self.next_token
    }

    /// Waits for the answer to an admin or passthrough command.
    fn reply(&mut self, token: u64, what: &'static str) -> Result<CommandReply, CommandError> {
        let reply = self.run_until(|engine| {
            loop {
                match engine.poll_event() {
                    Some(Event::CommandDone { token: t, result }) if t == token => {
                        return Some(result);
                    }
                    Some(_) => {}
                    None => return None,
                }
            }
        })?;
        let status = reply.cqe.status();
        if status.is_success() {
            Ok(reply)
        } else {
            Err(CommandError::Status { what, status })
        }
    }

    /// Reads the discovery log page, consistently.
    ///
    /// # Errors
    /// [`CommandError`].
    pub fn discover(&mut self) -> Result<(u64, Vec<DiscoveryLogEntry>), CommandError> {
        let mut discovery = Discovery::new();
        while let Some(command) = discovery.next_command() {
            let len_bytes = u32::try_from(command.length_bytes).unwrap_or(u32::MAX);
            let sqe = AdminCommand::GetLogPage(command).encode(0, Sgl::EMPTY);
            let reply = self.admin(sqe, CommandData::FromController(len_bytes))?;
            discovery
                .answer(&reply.data)
                .map_err(|error| CommandError::Data {
                    what: "Get Log Page (Discovery)",
                    problem: error.to_string(),
                })?;
        }
        Ok((discovery.genctr(), discovery.into_entries()))
    }

    /// Ends the association in order; I/O in progress is finished first. At most about five
    /// seconds. What was written and may not be on the medium is returned.
    #[expect(
        clippy::must_use_candidate,
        reason = "a caller that has written nothing has lost nothing"
    )]
    pub fn close(self) -> Losses {
        self.close_by(None)
    }

    /// The same, but at `deadline_us` of [`Clock`] whatever is left is given up.
    #[expect(
        clippy::must_use_candidate,
        reason = "a caller that has written nothing has lost nothing"
    )]
    pub fn close_by(mut self, deadline_us: Option<u64>) -> Losses {
        self.engine.shutdown();
        let over = |engine: &mut AssociationEngine| {
            loop {
                match engine.poll_event() {
                    Some(Event::Closed | Event::Failed { .. }) => return Some(()),
                    Some(_) => {}
                    None if is_over(engine) => return Some(()),
                    None => return None,
                }
            }
        };
        match deadline_us {
            None => self.run_until(over),
            // What is given up is not reported.
            Some(_) => self.run_until_deadline(deadline_us, over).unwrap_or(()),
        }
        self.engine.losses()
    }

    fn run_until<T>(&mut self, found: impl FnMut(&mut AssociationEngine) -> Option<T>) -> T {
        let mut found = found;
        loop {
            // Without a deadline the run ends only with what it waits for, unless the system
            // refuses to wait; then polling goes on without sleep.
            if let Some(value) = self.run_until_deadline(None, &mut found) {
                return value;
            }
        }
    }

    fn run_until_deadline<T>(
        &mut self,
        deadline_us: Option<u64>,
        found: impl FnMut(&mut AssociationEngine) -> Option<T>,
    ) -> Option<T> {
        let mut until = Until {
            engine: &mut self.engine,
            deadline_us,
            found,
            value: None,
        };
        if let Err(error) = self.runner.run(&mut until, self.spin) {
            tracing::error!("{error}");
        }
        until.value
    }
}

/// Takes the events of an association, and says of a lost controller that it is waited for: where
/// it is not, the caller has the error.
fn log_losses(engine: &mut AssociationEngine) {
    while let Some(event) = engine.poll_event() {
        if let Event::Lost { cause } = event {
            let status = engine.status(Clock.now_us());
            if !matches!(status, AssociationStatus::Failed(_)) {
                tracing::warn!(%status, "the controller is lost: {cause}");
            }
        }
    }
}

fn is_over(engine: &AssociationEngine) -> bool {
    matches!(
        engine.status(0),
        AssociationStatus::Closed | AssociationStatus::Failed(_)
    )
}

/// Turns an engine until something is found.
struct Until<'a, T, F> {
    engine: &'a mut AssociationEngine,
    deadline_us: Option<u64>,
    found: F,
    value: Option<T>,
}

impl<T, F: FnMut(&mut AssociationEngine) -> Option<T>> Turn for Until<'_, T, F> {
    fn turn(&mut self, now_us: u64) -> Flow {
        let busy = self.engine.turn(now_us);
        self.value = (self.found)(self.engine);
        if self.value.is_some() || self.deadline_us.is_some_and(|at| now_us >= at) {
            Flow::Stop
        } else if busy {
            Flow::Busy(1)
        } else {
            Flow::Idle
        }
    }

    fn arm(&mut self, fds: &mut Vec<RawFd>) -> Armed {
        self.engine.arm(fds)
    }

    fn next_deadline_us(&self) -> Option<u64> {
        [self.deadline_us, self.engine.next_deadline_us()]
            .into_iter()
            .flatten()
            .min()
    }
}

/// Where a connection manager that the caller has chosen connects to.
pub(crate) fn first_address(options: &Options) -> Result<SocketAddr, ConnectError> {
    let [first, ..] = options.socket_addrs()?[..] else {
        return Err(ConnectError::Closed);
    };
    Ok(first)
}

/// An engine for `options`, connecting to `destination`.
pub(crate) fn engine(
    options: &Options,
    destination: SocketAddr,
    transport: HostTransport,
) -> Result<AssociationEngine, ConnectError> {
    options.check()?;
    let us =
        |duration: std::time::Duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
    let config = AssociationConfig {
        destination,
        source: options.host_traddr,
        io_timeout_us: us(options.io_timeout),
        data_bytes: options.data_memory_bytes,
        seed: seed(),
        host: HostConfig {
            subnqn: options.subnqn.clone(),
            hostnqn: options.hostnqn.clone(),
            hostid: options.hostid,
            nr_io_queues: options.nr_io_queues,
            queue_size: options.queue_size,
            kato_ms: u32::try_from(options.keep_alive_tmo.as_millis()).unwrap_or(u32::MAX),
            connect_timeout_us: us(options.connect_timeout),
            admin_timeout_us: us(options.admin_timeout),
            reconnect_delay_ms: us(options.reconnect_delay) / 1000,
            ctrl_loss_tmo_us: options.ctrl_loss_tmo.map(us),
            replay_writes: options.replay_writes,
            scan_namespaces: options.scan_namespaces,
            transport: options.transport,
            // There a read takes one PDU less.
            disable_sq_flow_control: options.disable_sq_flow_control
                || options.transport == Transport::Tcp,
        },
    };
    AssociationEngine::new(config, transport, Clock.now_us())
}

/// Jitter of reconnects differs between processes and associations.
fn seed() -> u64 {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH);
    let wall = wall.map_or(0, |d| u64::from(d.subsec_nanos()));
    Clock.now_us() ^ wall << 32 ^ u64::from(std::process::id()) << 16
}
