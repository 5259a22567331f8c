//! The NFS server of a target: its service, and the thread that has its connections.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};
use capstan_config::Nfs;
use capstan_exports::Exports;
use capstan_nfs::rpcbind::{PERIOD, RPCBIND, Registrar};
use capstan_nfs::service::{Service, Settings as ServiceSettings};
use capstan_nfs::state::Config as StateConfig;
use capstan_nfs::state::stable::file::StableFileError;
use capstan_rpc_server::limits::SPARE_THREADS_MAX;
use capstan_rpc_server::{Handle, Listen, Program, RunError, Server, Settings, Sockets, Transport};
use nix::sys::resource::{Resource, getrlimit};

use crate::handover::Handover;
use crate::providers::preference;

/// What stable storage is called in the state folder.
pub(super) const STABLE_FILE: &str = "nfs-clients";
/// Most files that are kept open for clients that open none themselves: those of NFSv3.
const CACHED_FILES_MAX: u64 = 4096;
/// How long calls that were taken are answered when the target stops.
const DRAIN_MS: u64 = 5_000;
/// How much longer the thread of the connections may take to end.
const END_GRACE: Duration = Duration::from_secs(2);

/// A server that is running.
pub(crate) struct NfsServer {
    handle: Handle,
    thread: JoinHandle<Result<(), RunError>>,
    /// Taken back when the server has ended.
    _registered: Option<Registrar>,
    /// Where it listens, with the ports that the kernel chose.
    pub(crate) addresses: Vec<SocketAddr>,
}

impl NfsServer {
    /// Starts serving `exports`. What clients reclaim after a restart is in `folder`.
    ///
    /// # Errors
    /// It cannot listen, or stable storage cannot be used.
    pub(crate) fn start(
        nfs: &Nfs,
        exports: &Arc<Exports>,
        folder: &Path,
        handover: &Handover,
    ) -> anyhow::Result<(Self, Arc<Service>)> {
        let service = service(nfs, exports, folder)?;
        let settings = settings(nfs);
        let listeners = settings.listeners.iter().map(|listen| listen.addr);
        let left: Sockets = listeners
            .filter_map(|addr| Some((addr, handover.take(addr)?)))
            .collect();
        let known: Vec<_> = left.iter().map(|(addr, _)| *addr).collect();
        let (program, of_thread): (Arc<dyn Program>, _) = (service.clone(), Arc::clone(&service));
        let (ready, set_up) = mpsc::channel();
        // A server belongs to the thread that makes it.
        let thread = thread::Builder::new()
            .name("nfs".to_owned())
            .spawn(
                move || match Server::bind_or_go_on(&settings, program, left) {
                    Ok(mut server) => {
                        let addresses = server.addresses().to_vec();
                        let _ = ready.send(Ok((server.handle(), addresses, server.sockets())));
                        of_thread.begin_grace();
                        server.run()
                    }
                    Err(error) => {
                        let _ = ready.send(Err(error));
                        Ok(())
                    }
                },
            )
            .context("no thread for the connections of NFS")?;
        let bound = set_up
            .recv()
            .map_err(|_| anyhow!("the thread of NFS panicked while it was set up"))?;
        let (handle, addresses, sockets) = bound.context("NFS")?;
        for (addr, socket) in &sockets {
            // Where it came from has it already.
            if !known.contains(addr) {
                handover.keep(*addr, socket);
            }
        }
        let server = Self {
            handle,
            thread,
            _registered: registered(nfs, &addresses),
            addresses,
        };
        Ok((server, service))
    }

    /// Whether its thread runs.
    pub(crate) fn is_alive(&self) -> bool {
        !self.thread.is_finished()
    }

    /// Answers the calls that were taken, and ends.
    ///
    /// # Errors
    /// Its thread has failed, or does not end.
    pub(crate) fn stop(self) -> anyhow::Result<()> {
        self.handle.stop();
        let deadline = Instant::now() + Duration::from_millis(DRAIN_MS) + END_GRACE;
        while !self.thread.is_finished() {
            if Instant::now() >= deadline {
                bail!("the thread of NFS does not end; calls of clients wait for a file system");
            }
            thread::sleep(Duration::from_millis(1));
        }
        let ended = self.thread.join();
        ended
            .map_err(|_| anyhow!("the thread of NFS panicked; see the log above"))?
            .context("NFS ended")
    }
}

/// Whether what clients reclaim is damaged: hosts need none of it. A file that another target uses,
/// or a folder that cannot be written to, concerns all of a start.
pub(super) fn is_damaged(error: &StableFileError) -> bool {
    matches!(
        error,
        StableFileError::Content { .. }
            | StableFileError::TooLarge { .. }
            | StableFileError::Io { call: "read", .. }
    )
}

/// Tells rpcbind of the server, where it runs. Only `showmount` and mounts of version 3 without
/// `mountport=` ask it.
fn registered(nfs: &Nfs, addresses: &[SocketAddr]) -> Option<Registrar> {
    let over_tcp = addresses.iter().take(nfs.tcp.len());
    // A port mapper knows IPv4 alone, and one port of each program.
    let port = over_tcp.map(SocketAddr::port).next()?;
    let started = Registrar::start(RPCBIND, port, PERIOD);
    started
        .inspect_err(|error| {
            tracing::warn!(
                "`showmount -e` does not find this server: no thread to tell rpcbind: {error}"
            );
        })
        .ok()
}

/// How many the process may have: the soft limit was raised to the hard one.
fn descriptors() -> anyhow::Result<u64> {
    let (descriptors, _) = getrlimit(Resource::RLIMIT_NOFILE).context("RLIMIT_NOFILE")?;
    Ok(descriptors)
}

/// How many open files opens and lock owners of clients may have: half of the descriptors and a
/// quarter, and the rest is for connections and all else. An open has two where its export goes
/// past the page cache.
fn open_files_max(exports: &Exports, descriptors: u64) -> [u64; 2] {
    let mut exports = exports.all().into_iter();
    let each = match exports.any(|export| export.settings().direct) {
        true => 2,
        false => 1,
    };
    [2, 4].map(|part| descriptors / (part * each))
}

/// A reload has changed the exports.
pub(super) fn exports_changed(service: &Service) {
    match descriptors() {
        Ok(descriptors) => {
            let [opens, lock_states] = open_files_max(service.exports(), descriptors);
            service.set_open_files_max(opens, lock_states);
        }
        Err(error) => tracing::warn!("as many files can be open as before: {error:#}"),
    }
}

fn service(nfs: &Nfs, exports: &Arc<Exports>, folder: &Path) -> anyhow::Result<Arc<Service>> {
    let us = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let descriptors = descriptors()?;
    let [opens, lock_states] = open_files_max(exports, descriptors);
    let state = StateConfig::new()
        .with_times(us(nfs.lease_time), us(nfs.grace_time))?
        .with_opens_max(opens)
        .with_lock_states_max(lock_states);
    // Each may have two, after a reload as well.
    let cached = CACHED_FILES_MAX.min(descriptors / 32);
    let settings = ServiceSettings {
        state,
        stable_path: folder.join(STABLE_FILE),
        owner: exports.server_owner().as_slice().into(),
        cached_files: usize::try_from(cached)?,
    };
    Service::new(Arc::clone(exports), settings).context("what NFS clients reclaim")
}

fn workers(nfs: &Nfs) -> usize {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    nfs.threads(cores)
}

/// The threads of NFS: that of the connections, that which tells rpcbind, and those of the pool,
/// with all that take the places of others while a file system does not answer.
pub(crate) fn threads(nfs: &Nfs) -> u64 {
    let pool = workers(nfs).saturating_add(SPARE_THREADS_MAX);
    u64::try_from(pool).unwrap_or(u64::MAX).saturating_add(2)
}

/// Bytes of memory for data that NFS moves by RDMA.
pub(crate) fn data_bytes(nfs: &Nfs) -> u64 {
    if nfs.rdma.is_empty() {
        return 0;
    }
    nfs.memory_bytes
}

fn settings(nfs: &Nfs) -> Settings {
    let listen = |transport| {
        let provider = preference(nfs.provider);
        move |addr: &SocketAddr| Listen {
            addr: *addr,
            transport,
            provider,
        }
    };
    let tcp = nfs.tcp.iter().map(listen(Transport::Tcp));
    let rdma = nfs.rdma.iter().map(listen(Transport::Rdma));
    Settings {
        listeners: tcp.chain(rdma).collect(),
        workers: workers(nfs),
        worker_name: "nfs-".to_owned(),
        drain_ms: DRAIN_MS,
        data_bytes: usize::try_from(nfs.memory_bytes).unwrap_or(usize::MAX),
        ..Settings::default()
    }
}
