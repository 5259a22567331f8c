//! The service: RPC calls in, replies out. Calls block on files and are carried out on threads of a
//! pool.
//!
//! # The walk of a COMPOUND
//! 1. `rpc` reads the header of the call and finds the procedure.
//! 2. `v4::compound` has SEQUENCE say whether the request is new, and then carries out one
//!    operation after the other, each of which adds its result to the reply.
//! 3. An operation is a function of `v4::context::Context`, in the module of its subject. State
//!    is asked and changed through `driver`, files through `capstan_exports`.
//!
//! NFS version 3 is in `v3`, MOUNT, which gives its clients their first filehandles, in
//! `mount`.

mod driver;
mod failure;
mod files;
mod mount;
mod refused;
mod rpc;
mod told;
mod v3;
mod v4;

use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use capstan_exports::cache::OpenFiles;
use capstan_exports::clients::Refused;
use capstan_exports::limits::UNSYNCED_FILES;
use capstan_exports::reload::Change;
use capstan_exports::still::{self, Still};
use capstan_exports::unsynced::UnsyncedFiles;
use capstan_exports::{ExportId, Exports, FileError};
use capstan_rpc_server::{Call, ConnectionNumber, Outcome, Program};
use capstan_rpcrdma::xdr::Writer;

use crate::counters::Counters;
use crate::state::stable::file::StableFileError;
use crate::state::{ClientReport, Config, ConnId};

pub use refused::RefusedPeer;

use driver::Driver;
use files::Files;
use refused::RefusedPeers;
use told::Told;
use v3::Guards;
use v3::duplicates::Duplicates;

/// How a service is set.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Times and bounds of clients' state.
    pub state: Config,
    /// The file of stable storage, in a folder that survives restarts.
    pub stable_path: PathBuf,
    /// What the server calls itself (so_major_id, and the scope): the same after a restart, and no
    /// other server's. Up to 1024 bytes.
    pub owner: Box<[u8]>,
    /// Most files kept open for clients without opens of their own. Up to twice as many, and no
    /// more than [`UNSYNCED_FILES`], are kept open for data that is not committed.
    pub cached_files: usize,
}

/// An NFS server without its transports.
#[derive(Debug)]
pub struct Service {
    exports: Arc<Exports>,
    driver: Driver,
    files: Files,
    /// For NFSv3, and for reads and writes with special stateids.
    cached: OpenFiles,
    unsynced: UnsyncedFiles,
    /// Replies of NFSv3, for calls that come again.
    duplicates: Duplicates,
    guards: Guards,
    /// Of paths of NFSv4 that are not there.
    missing: Told,
    refused: RefusedPeers,
    started: Instant,
    /// When the oldest call came that waits to be carried out, in microseconds since the service
    /// began; `u64::MAX`: none does.
    heard_us: AtomicU64,
    /// Exports whose file systems stand still.
    still: Mutex<Still>,
    owner: Box<[u8]>,
    counters: Counters,
}

impl Service {
    /// A service of these exports, with the state that stable storage has.
    ///
    /// # Errors
    /// Stable storage cannot be used.
    pub fn new(exports: Arc<Exports>, settings: Settings) -> Result<Arc<Self>, StableFileError> {
        let unsynced_files = UNSYNCED_FILES.min(settings.cached_files.saturating_mul(2));
        Ok(Arc::new(Self {
            exports,
            driver: Driver::open(settings.state, &settings.stable_path)?,
            files: Files::default(),
            cached: OpenFiles::new(settings.cached_files),
            unsynced: UnsyncedFiles::new(unsynced_files),
            duplicates: Duplicates::default(),
            guards: Guards::default(),
            missing: Told::default(),
            refused: RefusedPeers::default(),
            started: Instant::now(),
            heard_us: AtomicU64::new(u64::MAX),
            still: Mutex::default(),
            owner: settings.owner,
            counters: Counters::default(),
        }))
    }

    /// Clients can reach the service from now on: those that had something before a restart have
    /// the grace time from here to reclaim it.
    pub fn begin_grace(&self) {
        self.driver.begin_grace(self.now_us());
    }

    /// The exports.
    #[must_use]
    pub const fn exports(&self) -> &Arc<Exports> {
        &self.exports
    }

    /// What is counted of calls.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Clients of version 4, by what they call themselves, as the log has it; version 3 has none.
    #[must_use]
    pub fn clients(&self) -> Vec<(String, ClientReport)> {
        let mut clients: Vec<_> = self.update(|state, now_us| state.clients(now_us).collect());
        clients.sort_by(|one: &ClientReport, other| one.owner.cmp(&other.owner));
        let named = |client: ClientReport| (owner_shown(&client.owner), client);
        clients.into_iter().map(named).collect()
    }

    /// Connections that were refused, the last of each address, the oldest first.
    #[must_use]
    pub fn refused_peers(&self) -> Vec<RefusedPeer> {
        self.refused.all()
    }

    /// Exports were replaced: what clients have of those that are stale, or not there any more, is
    /// given up, so that their file systems can be unmounted. Opens and locks end, and what was not
    /// committed is synced by a thread of its own, as a file system that is taken out may hang.
    /// Clients keep what they have of the others.
    pub fn exports_changed(&self, changes: &[Change]) {
        let stale = changes.iter().filter(|change| change.is_stale());
        let stale: HashSet<ExportId> = stale.map(|change| change.export.id()).collect();
        // Those that `crossmnt` had made of what is not mounted any more are in no change.
        let there = self.exports.all();
        let there: HashSet<ExportId> = there.iter().map(|export| export.id()).collect();
        let is_gone = |id: ExportId| stale.contains(&id) || !there.contains(&id);
        let gone_number = |id: u64| u32::try_from(id).is_ok_and(|id| is_gone(ExportId(id)));
        let _told_already = self.with_state(|state, _now_us| state.give_up_exports(gone_number));
        self.cached.forget_exports(is_gone);
        let given_up = self.unsynced.give_up_exports(is_gone);
        if given_up.is_empty() {
            return;
        }
        let thread = thread::Builder::new().name("nfs-given-up".into());
        if let Err(error) = thread.spawn(move || given_up.sync()) {
            tracing::warn!(
                "no thread syncs what exports that were taken out have unsynced, and the kernel \
                 does so later: {error}"
            );
        }
    }

    /// Sets how many open files opens and lock owners may have from now on: opens of exports that
    /// go past the page cache have two descriptors.
    pub fn set_open_files_max(&self, opens: u64, lock_states: u64) {
        self.update(|state, _now_us| state.set_open_files_max(opens, lock_states));
    }

    /// Microseconds since the service began.
    fn now_us(&self) -> u64 {
        self.us_of(Instant::now())
    }

    fn us_of(&self, instant: Instant) -> u64 {
        let since = instant.saturating_duration_since(self.started);
        u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
    }
}

impl Program for Service {
    fn call(&self, call: &Call<'_>, reply: &mut Writer<'_>) -> Outcome {
        let _in_call = still::begin_call();
        rpc::carry_out(self, call, reply)
    }

    fn at_once(&self, call: &Call<'_>, reply: &mut Writer<'_>) -> Option<Outcome> {
        let _in_call = still::begin_call();
        rpc::carry_out_at_once(self, call, reply)
    }

    fn admits(&self, peer: SocketAddr) -> Result<(), String> {
        let exports = self.exports.all();
        // A port that is not privileged is told so where an export is asked for.
        let has_rule = exports.iter().any(|export| {
            let rule = export.settings().clients.for_client(peer);
            !matches!(rule, Err(Refused::NoNetwork(_)))
        });
        let ip = peer.ip().to_canonical();
        let why = || {
            format!(
                "no network of any export has {ip}; add one that does to `clients` of an \
                 [[export]], and reload"
            )
        };
        has_rule.then_some(()).ok_or_else(|| {
            let why = why();
            self.refused.add(ip, &why, Instant::now());
            why
        })
    }

    fn refused(&self, call: &Call<'_>, reply: &mut Writer<'_>) -> Outcome {
        rpc::refuse(call, reply)
    }

    fn slow(&self, threads: &[(ThreadId, Duration)]) -> usize {
        let mut still = self.still.lock().unwrap_or_else(PoisonError::into_inner);
        self.exports.stand_still(threads, &mut still)
    }

    fn waits_since(&self, since: Option<Instant>) {
        let us = since.map_or(u64::MAX, |since| self.us_of(since));
        self.heard_us.store(us, Relaxed);
    }

    fn on_time(&self) -> Option<Duration> {
        self.end_grace_in_time()
    }

    fn connections(&self, count: usize) {
        let count = u64::try_from(count).unwrap_or(u64::MAX);
        self.counters.connections.set(count);
    }

    fn ended(&self, connection: ConnectionNumber) {
        self.connection_ended(ConnId(connection.0));
        self.unsynced.end_writer(v3::writer_of(connection));
    }
}

/// Bytes of a client's owner that are told: Linux begins with its version and its machine's name.
const OWNER_BYTES_TOLD: usize = 64;

/// What a client calls itself, for the log.
fn owner_shown(owner: &[u8]) -> String {
    let told = owner.get(..OWNER_BYTES_TOLD).unwrap_or(owner);
    told.escape_ascii().to_string()
}

/// A random number that no client can guess; the same as `FileError` says when there is none.
fn random() -> Result<u64, FileError> {
    getrandom::u64().map_err(|_none| FileError::Full {
        what: "the kernel's source of random numbers",
        places: 0,
    })
}
