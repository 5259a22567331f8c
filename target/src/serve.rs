//! `capstan-target serve`: opens what is exported, starts the reactors, waits for the end.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};
use capstan_config::{Config, MemoryPlan, Reactors, Written};
use capstan_memory::{PAGE_BYTES, Pages, Pool, Slab};
use capstan_nvme_proto::text::Count;
use capstan_rdma::ProviderKind;
use capstan_reactor::log::LastLines;
use capstan_reactor::{Mailbox, RunError, Runner, SpinBudget, mailbox, pin_to_core};
use capstan_storage::{Engine, FixedBuffers, Gate, ReadAtOnce};
use capstan_subsystem::Target;
use capstan_transport::tcp::NVME_TCP;
use capstan_transport::tcp::staging::Staging;
use capstan_transport::tcp::wire::TcpWire;
use capstan_transport::wires;
use nix::sys::resource::{Resource, getrlimit};
use rustc_hash::FxHashMap;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use crate::control_plane::{ControlPlane, Message};
use crate::handover::Handover;
use crate::identities::{Identities, Kept};
use crate::io_path::{IoPath, Opened, Parts, discovery_controllers};
use crate::lba_size::{LbaSizes, Unknown};
use crate::limits::{
    CHOICES_MAX, DRAIN_TIMEOUT_US, MAILBOX_BOUND, SGL_LIST_PAGES, STOP_TIMEOUT_US,
    TRANSFER_BYTES_MAX, closing_sockets,
};
use crate::listening::{self, AtStart};
use crate::lost;
use crate::media::Watch;
use crate::metrics::Told;
use crate::nfs::{self, NfsServer};
use crate::plan::{Export, build, queue_pool_bytes};
use crate::ports::Ports;
use crate::reload::{Served, numbers_kept};
use crate::rings;
use crate::scheduling;
use crate::signals::{self, Conversations, End, Held, Reloads, Waiting};
use crate::state;
use crate::steering::{self, News, Steering, Work, socket};

type ReactorThread = JoinHandle<Result<(), RunError>>;

/// A target that is running.
pub struct Running {
    control: Arc<ControlPlane>,
    reactors: Vec<ReactorThread>,
    served: Arc<Mutex<Served>>,
    watch: Option<Watch>,
    nfs: Option<NfsServer>,
    /// There are exports, which cannot be served.
    is_without_nfs: bool,
    /// Where it listens, with the ports that the kernel chose.
    pub addresses: Vec<SocketAddr>,
    /// Where metrics were told when it was started, with the port that the kernel chose.
    pub metrics_address: Option<SocketAddr>,
}

/// Serves `config` until SIGTERM or SIGINT, then drains. SIGHUP reads the file again that it was
/// `written` in, where there is one, and carries out what has changed. The control socket is at
/// `control_socket`, or where the environment says. Signals `held` while it starts
/// are answered when it has started. `log`: of the lines that this writes.
///
/// # Errors
/// What cannot be opened, listened at or set up, with the next step.
pub fn serve(
    config: &Config,
    written: Written,
    control_socket: Option<&Path>,
    held: Held,
    log: &LastLines,
) -> anyhow::Result<()> {
    lost::prepare();
    state::remove_begun();
    for warning in state::warnings(config) {
        tracing::warn!("{warning}");
    }
    // Before anything listens, as there may be no room for its ring.
    let runtime = rings::control(reactors(config))?;
    // Before anything is opened, as it may have to be there.
    let socket = socket::open(&socket::wanted(control_socket))?;
    // Options are written by hand, and a mistake in them is told at once.
    let may_wait = written.path().is_some();
    let running = Running::start_with(config, may_wait, Handover::here(config), None)?;
    let (news, heard) = unbounded_channel();
    let steering = Arc::new(running.steering(written, news));
    let work = Work::start(&steering).context("no thread for the control socket")?;
    Steering::look_for_absent(&steering).context("no thread to look for what is not there yet")?;
    let mut reloads = {
        let steering = Arc::clone(&steering);
        Reloads::start(move || steering.reload_by_signal()).context("no thread for reloads")?
    };
    let status = {
        let served = running.served.lock();
        let served = served.unwrap_or_else(PoisonError::into_inner);
        tracing::info!("{}", steering.listening(&served));
        steering.status(&served)
    };
    let trouble = || {
        let lines = running.control.trouble();
        (!lines.is_empty()).then(|| lines.join("; "))
    };
    let alive = || running.alive();
    let conversations = socket.as_ref().map(|socket| Conversations {
        listener: &socket.listener,
        steering: &steering,
        work,
    });
    let waiting = Waiting {
        status,
        trouble,
        alive,
        reloads: &mut reloads,
        news: heard,
        conversations,
    };
    let end = signals::wait_for_end(&runtime, held, waiting)
        .context("the control thread cannot wait for signals")?;
    drop(socket);
    steering.say_what_is_lost();
    let ending = signals::end_at_the_next();
    let control = Arc::clone(&running.control);
    let noted = control.lost_and_noted();
    tracing::info!(
        "{end}: draining: commands that hosts have sent are waited for, at most {} s, and what their media keep at most \
         {} s; a second one ends the target at once",
        Duration::from_micros(DRAIN_TIMEOUT_US).as_secs(),
        Duration::from_micros(STOP_TIMEOUT_US).as_secs()
    );
    signals::notify_stopping();
    if let Err(error) = &ending {
        tracing::warn!(%error, "a second signal does not end the target before it is drained");
    }
    reloads.end();
    running.stop()?;
    control.media().say_what_ends();
    // Behind this, what was lost is cleared: not by a target whose end was cut short.
    if let Ok(ending) = &ending {
        ending.is_sure();
    }
    match end {
        End::Asked(_) | End::Commanded => control.stopped_in_order(&noted, log),
        End::AskedEarly(_) => control.stopped_before_it_served(&noted),
        End::ReactorEnded => {
            bail!("a reactor ended before the target was asked to end; see the log above")
        }
    }
    tracing::info!("stopped");
    Ok(())
}

/// With how much is served: namespaces, and exports where NFS runs.
pub(crate) fn with_counts(status: &str, served: &Served) -> String {
    let count = |count: usize, what| Count(u64::try_from(count).unwrap_or(u64::MAX), what);
    let namespaces = count(served.namespaces(), "namespace");
    match served.exports() {
        None => format!("{status}; {namespaces}"),
        Some(exports) => format!("{status}; {namespaces}, {}", count(exports, "export")),
    }
}

fn reactors(config: &Config) -> usize {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    config.target.reactors.count(cores)
}

impl Running {
    /// Starts every reactor of `config` and listens.
    ///
    /// # Errors
    /// As for [`serve`].
    pub fn start(config: &Config) -> anyhow::Result<Self> {
        Self::start_with(config, false, Handover::default(), None)
    }

    /// The same with `gate` in front of every volume: for tests that need a slow medium.
    ///
    /// # Errors
    /// As for [`serve`].
    pub fn start_behind(config: &Config, gate: Option<&Gate>) -> anyhow::Result<Self> {
        Self::start_with(config, false, Handover::default(), gate)
    }

    /// What is not there yet of the listeners is waited for where it `may_wait`.
    fn start_with(
        config: &Config,
        may_wait: bool,
        handover: Handover,
        gate: Option<&Gate>,
    ) -> anyhow::Result<Self> {
        let ports = Ports::new(&config.listeners);
        let listeners = Arc::new(AtStart::of(config, &ports, may_wait)?);
        let count = reactors(config);
        scheduling::check(&config.target.reactors);
        let mut lba_sizes = LbaSizes::here();
        let mut identities = Identities::here_for(state::has_paths(config))?;
        let (config, unknown, target, mut exports) =
            identify(config, &listeners, count, &mut lba_sizes, &mut identities)?;
        let config = &config;
        if let Some(gate) = gate {
            for export in &mut exports {
                export.store.set_gate(gate.clone());
            }
        }
        let exports = Arc::new(exports);
        let control = Arc::new(ControlPlane::new(target, handover));
        let plan = config.memory_plan(count)?;
        tracing::info!("{plan}");
        let mut mailboxes = Vec::with_capacity(count);
        let mut senders = Vec::with_capacity(count);
        for _ in 0..count {
            let (sender, receiver) = mailbox(MAILBOX_BOUND).context("no eventfd for a reactor")?;
            senders.push(sender);
            mailboxes.push(receiver);
        }
        control.set_reactors(senders);
        let kept = control.keep_reservations(identities.reservations());
        kept.context("no thread to keep reservations")?;
        // Before a host can ask for what a volume cannot promise.
        for export in exports.iter() {
            control.backend_opened(export);
        }
        control.tell_of_lost();
        // Before a client can open what hosts write.
        let files = nfs::Files::open(config)?;
        control
            .metrics()
            .set_budget(config.target.memory_budget_bytes);
        // Before anything is served: what it says goes with a start that does not come to that.
        let mut told = Told::default();
        told.replace(told.prepare(&config.metrics, &control)?, &control);
        let metrics_address = told.address();
        let mut served = Served::new(config, ports, unknown, (lba_sizes, identities), files, told);
        served.wait_for(&listeners);
        let mut running = Self {
            control,
            reactors: Vec::new(),
            served: Arc::new(Mutex::new(served)),
            watch: None,
            nfs: None,
            is_without_nfs: false,
            addresses: Vec::new(),
            metrics_address,
        };
        let kinds = AtStart::kinds(&listeners);
        let started = mailboxes
            .into_iter()
            .enumerate()
            .try_for_each(|(reactor, mailbox)| {
                let part = Starting {
                    reactor,
                    mailbox,
                    control: Arc::clone(&running.control),
                    exports: Arc::clone(&exports),
                    listeners: Arc::clone(&listeners),
                    kinds: kinds.clone(),
                    config: config.clone(),
                    plan,
                };
                let (handle, addresses) = part.spawn()?;
                running.reactors.push(handle);
                running.addresses.extend(addresses);
                Ok(())
            });
        let watched = started.and_then(|()| {
            let watch = Watch::start(&running.control).context("no thread to watch media")?;
            running.watch = Some(watch);
            running.serve_files(config)
        });
        match watched {
            Ok(()) => {
                running.control.handover().close_rest();
                Ok(running)
            }
            Err(error) => {
                // The reactors that did start must not outlive the failure.
                let _ = running.stop();
                Err(error)
            }
        }
    }

    /// Starts the NFS server, where there is something to be served.
    fn serve_files(&mut self, config: &Config) -> anyhow::Result<()> {
        let mut served = self.served.lock().unwrap_or_else(PoisonError::into_inner);
        if let (Some(files), Some(nfs)) = (served.files_mut(), &config.nfs) {
            match files.serve(nfs, self.control.handover()) {
                Ok(server) => {
                    if let Some(service) = files.service() {
                        self.control.metrics().set_nfs(service);
                    }
                    self.nfs = Some(server);
                }
                // Hosts have what is not of NFS's clients.
                Err(error) if nfs::is_damaged(&error) && !self.addresses.is_empty() => {
                    tracing::error!("{error:#}; {}", nfs::WITHOUT_NFS);
                    self.is_without_nfs = true;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Where NFS is served, with the ports that the kernel chose: over TCP first.
    #[must_use]
    pub fn nfs_addresses(&self) -> &[SocketAddr] {
        self.nfs.as_ref().map_or(&[], |nfs| &nfs.addresses)
    }

    /// Whether every reactor runs.
    #[must_use]
    pub fn alive(&self) -> bool {
        let nfs = self.nfs.as_ref().is_none_or(NfsServer::is_alive);
        nfs && self.reactors.iter().all(|reactor| !reactor.is_finished())
    }

    /// How it is steered: the configuration was `written` so.
    fn steering(&self, written: Written, news: UnboundedSender<News>) -> Steering {
        Steering::new(steering::Parts {
            served: Arc::clone(&self.served),
            control: Arc::clone(&self.control),
            reactors: self.reactors.len(),
            written,
            is_without_nfs: self.is_without_nfs,
            nfs_addresses: self
                .nfs_addresses()
                .iter()
                .map(ToString::to_string)
                .collect(),
            news,
        })
    }

    /// Stops listening, lets commands in flight end, disconnects, and joins the reactors.
    ///
    /// # Errors
    /// A reactor panicked, failed or does not end.
    pub fn stop(self) -> anyhow::Result<()> {
        self.control.drain();
        if let Some(watch) = self.watch {
            watch.stop();
        }
        let files = self.nfs.map_or(Ok(()), NfsServer::stop);
        let deadline = Instant::now() + Duration::from_micros(STOP_TIMEOUT_US);
        for (at, reactor) in self.reactors.into_iter().enumerate() {
            while !reactor.is_finished() && Instant::now() < deadline {
                thread::sleep(Duration::from_millis(1));
            }
            if !reactor.is_finished() {
                let unended = self.control.unended();
                bail!("{}", unended.in_words(at, self.control.media()));
            }
            reactor
                .join()
                .map_err(|_| anyhow!("a reactor panicked; see the log above"))?
                .context("a reactor ended")?;
        }
        files
    }
}

/// Opens every volume of the configuration under what hosts know it by, which is remembered then;
/// but for those whose LBA size cannot be known, where there are others.
fn identify(
    config: &Config,
    listeners: &[AtStart],
    reactors: usize,
    lba_sizes: &mut LbaSizes,
    identities: &mut Identities,
) -> anyhow::Result<(Config, Vec<Unknown>, Target, Vec<Export>)> {
    if let Some(why) = identities.lost(config) {
        tracing::warn!("{why}");
    }
    for _ in 0..CHOICES_MAX {
        let mut numbered = identities.number(config, None)?;
        let was_served = |path: &Path| identities.was_served(path);
        let unknown = lba_sizes.take_out_unknown(&mut numbered, |_, _| true, was_served);
        let mut left = numbered.subsystems.iter().map(|s| s.namespaces.len());
        if !unknown.is_empty() && left.all(|namespaces| namespaces == 0) {
            let why: Vec<_> = unknown
                .iter()
                .map(|of| format!("{of}. Then start it again"))
                .collect();
            bail!("{}", why.join("\n"));
        }
        let (target, exports) = build(&numbered, listeners, reactors, lba_sizes, identities)?;
        if identities.keep()? == Kept::Yes {
            for line in numbers_kept(config, &numbered) {
                tracing::info!("{line}");
            }
            for unknown in &unknown {
                tracing::error!("{unknown}. Then reload");
            }
            return Ok((numbered, unknown, target, exports));
        }
    }
    bail!(
        "other targets with the same state folder choose what hosts know namespaces by each time that this one has: start it \
         again, or give each a folder of its own in {}",
        state::FOLDER_VARIABLE
    )
}

/// What a reactor's thread is started with.
struct Starting {
    reactor: usize,
    mailbox: Mailbox<Message>,
    control: Arc<ControlPlane>,
    exports: Arc<Vec<Export>>,
    listeners: Arc<Vec<AtStart>>,
    /// Of providers: the same ones in the same order on every reactor, as requests migrate between
    /// them.
    kinds: BTreeSet<ProviderKind>,
    config: Config,
    plan: MemoryPlan,
}

impl Starting {
    /// Starts the thread and waits until it is set up.
    fn spawn(self) -> anyhow::Result<(ReactorThread, Vec<SocketAddr>)> {
        let (ready, set_up) = mpsc::channel();
        let reactor = self.reactor;
        let spent = Arc::clone(&self.control.metrics().of_reactor(reactor).spent);
        let spin_us = u64::try_from(self.config.target.spin.as_micros()).unwrap_or(u64::MAX);
        let handle = thread::Builder::new()
            .name(format!("reactor-{reactor}"))
            .spawn(move || {
                let mut path = match self.set_up() {
                    Ok((path, addresses)) => {
                        let _ = ready.send(Ok(addresses));
                        path
                    }
                    Err(error) => {
                        let _ = ready.send(Err(error));
                        return Ok(());
                    }
                };
                Runner::counting(spent).run(&mut path, SpinBudget { spin_us })
            })
            .context("no thread for a reactor")?;
        let addresses = set_up
            .recv()
            .unwrap_or_else(|_| Err(anyhow!("reactor {reactor} panicked while it was set up")))?;
        Ok((handle, addresses))
    }

    fn set_up(self) -> anyhow::Result<(IoPath, Vec<SocketAddr>)> {
        if let Reactors::Cores(cores) = &self.config.target.reactors {
            let core = cores[self.reactor];
            pin_to_core(core).with_context(|| {
                format!(
                    "reactor {} cannot be pinned to core {core}; see target.reactors",
                    self.reactor
                )
            })?;
        }
        let places = self.plan.strangers_per_reactor;
        let queue_bytes = usize::try_from(queue_pool_bytes(&self.plan))?;
        let stranger_pages =
            2 * usize::try_from(places)? + SGL_LIST_PAGES as usize * discovery_controllers(places);
        let data_bytes = usize::try_from(self.plan.data_bytes_per_reactor)?;
        let data = Pool::new(data_bytes, Pages::TryHuge)?;
        let queues = Pool::new(queue_bytes, Pages::TryHuge)?;
        let strangers = Pool::new(stranger_pages * PAGE_BYTES, Pages::Ordinary)?;
        let engine = rings::engine(reactors(&self.config))?;
        self.register(&engine, [&data, &queues]);
        let mut volumes: FxHashMap<_, Opened> = FxHashMap::default();
        for export in self.exports.iter() {
            let volume = export.store.open(&engine)?;
            volumes.insert(export.backend, Opened::new(volume, export, self.reactor));
        }
        let has_zeroes = volumes
            .values()
            .any(|opened| matches!(opened.volume.read_at_once(0, 1), ReadAtOnce::Zeroes));
        let zeroes = has_zeroes.then(|| Slab::new(TRANSFER_BYTES_MAX as usize, Pages::Ordinary));
        let control = self.control;
        let mut managers = Vec::new();
        for kind in &self.kinds {
            let name = kind.name();
            let manager = kind.connection_manager_beside(NVME_TCP);
            let manager =
                manager.with_context(|| format!("the {name} provider cannot be set up"))?;
            managers.push((name, manager));
        }
        let (descriptors, _) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or((u64::MAX, 0));
        let mut path = IoPath::new(Parts {
            reactor: self.reactor,
            control: Arc::clone(&control),
            mailbox: self.mailbox,
            wires: wires::Parts {
                managers,
                shared_receive_queue: self.config.target.shared_receive_queue,
                sockets: TcpWire::new(Staging::new(self.plan.staging_bytes_per_reactor))
                    .context("no epoll for NVMe/TCP")?,
                closing_sockets_max: closing_sockets(reactors(&self.config), descriptors),
            },
            kinds: self.kinds.into_iter().collect(),
            engine,
            volumes,
            data,
            queues,
            strangers,
            places,
            zeroes: zeroes.transpose()?,
            metrics: control.metrics().of_reactor(self.reactor),
        });
        let addresses = match self.reactor {
            0 => {
                let mut there = self.listeners.iter().filter(|of| of.absent.is_none());
                there.try_fold(Vec::new(), |mut addresses, of| {
                    let all = &self.config.listeners;
                    let at = (&of.listener, &of.chosen);
                    let bound = listening::listen(&mut path, &control, all, at, of.port)?;
                    addresses.extend(bound);
                    anyhow::Ok(addresses)
                })?
            }
            _ => Vec::new(),
        };
        Ok((path, addresses))
    }

    /// Registers memory with the engine; going on without costs speed only.
    fn register(&self, engine: &Engine, pools: [&Pool; 2]) {
        let results = pools.map(|pool| engine.register_slab(pool.slab()));
        let refused = results.into_iter().find_map(|result| match result {
            FixedBuffers::NotRegistered { reason } => Some(reason),
            FixedBuffers::Registered => None,
        });
        if let Some(reason) = refused
            && self.reactor == 0
        {
            tracing::warn!("disk I/O goes without fixed buffers, a little slower: {reason}");
        }
    }
}
