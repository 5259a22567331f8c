//! What the target counts, and how it is told: to Prometheus over HTTP (`endpoint`), and by the
//! control socket.
//!
//! Each number has one thread that writes it (`capstan_metrics`): the commands of a queue are
//! counted by that (`capstan_subsystem`), the rest of a reactor in `ReactorMetrics`, what is done
//! on a backend in `BackendMetrics`, NFS in `capstan_nfs::counters`. `snapshot` reads it all,
//! on the thread that asks: no I/O waits for a lock that it takes. [`names::METRICS`] is the list
//! of what is told.

mod backend;
mod endpoint;
pub mod names;
mod nfs;
mod reactor;
mod snapshot;
mod text;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::SystemTime;

use capstan_nfs::service::Service;
use capstan_subsystem::BackendId;

use crate::plan::Export;

pub(crate) use backend::{BackendCounters, BackendMetrics};
pub(crate) use endpoint::Told;
pub(crate) use reactor::{Kind, ReactorMetrics, Stage};
pub(crate) use snapshot::snapshot;
pub(crate) use text::answer;

/// What is counted of a target, or where it is.
#[derive(Debug)]
pub(crate) struct Metrics {
    reactors: OnceLock<Vec<Arc<ReactorMetrics>>>,
    /// Taken where volumes are opened and closed, by no reactor.
    backends: Mutex<BTreeMap<BackendId, Arc<BackendMetrics>>>,
    nfs: OnceLock<Arc<Service>>,
    budget_bytes: OnceLock<u64>,
    /// Of so many commands the stages of one are timed; 0: of none.
    sample: Arc<AtomicU32>,
    started: SystemTime,
    /// Answers over HTTP.
    scrapes: AtomicU64,
    steered: Mutex<Steered>,
}

/// What is known of a target where it is steered.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Steered {
    pub(crate) waits: usize,
    pub(crate) unsaved_changes: usize,
    pub(crate) reload_failed: bool,
    pub(crate) is_drained: bool,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            reactors: OnceLock::new(),
            backends: Mutex::default(),
            nfs: OnceLock::new(),
            budget_bytes: OnceLock::new(),
            sample: Arc::new(AtomicU32::new(capstan_config::Metrics::default().sample)),
            started: SystemTime::now(),
            scrapes: AtomicU64::new(0),
            steered: Mutex::default(),
        }
    }
}

impl Metrics {
    /// There are so many reactors. Called once, before the first of them runs.
    pub(crate) fn set_reactors(&self, reactors: usize) {
        let all = (0..reactors).map(|_| Arc::new(ReactorMetrics::new(Arc::clone(&self.sample))));
        // A second call would be a bug of `serve`; the first list stays.
        let _ = self.reactors.set(all.collect());
    }

    /// What a reactor counts in.
    pub(crate) fn of_reactor(&self, reactor: usize) -> Arc<ReactorMetrics> {
        let all = self.reactors().get(reactor);
        all.map_or_else(Arc::default, Arc::clone)
    }

    fn reactors(&self) -> &[Arc<ReactorMetrics>] {
        self.reactors.get().map_or(&[], Vec::as_slice)
    }

    fn backends(&self) -> MutexGuard<'_, BTreeMap<BackendId, Arc<BackendMetrics>>> {
        self.backends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A namespace is about to be on a new backend, or on one that was opened anew.
    pub(crate) fn backend_opened(&self, export: &Export) {
        let counted = Arc::clone(&export.counted);
        self.backends().insert(export.backend, counted);
    }

    /// No namespace is on a backend any more.
    pub(crate) fn backend_closed(&self, backend: BackendId) {
        self.backends().remove(&backend);
    }

    /// NFS is served, by this.
    pub(crate) fn set_nfs(&self, service: &Arc<Service>) {
        // It is started once.
        let _ = self.nfs.set(Arc::clone(service));
    }

    /// What serves NFS.
    pub(crate) fn nfs(&self) -> Option<&Arc<Service>> {
        self.nfs.get()
    }

    /// The memory budget, which does not change.
    pub(crate) fn set_budget(&self, bytes: u64) {
        let _ = self.budget_bytes.set(bytes);
    }

    /// Of so many commands, the stages of one are timed from now on; 0: of none.
    pub(crate) fn set_sample(&self, sample: u32) {
        self.sample.store(sample, Ordering::Relaxed);
    }

    /// How it is steered has changed.
    pub(crate) fn set_steered(&self, steered: Steered) {
        *self.steered.lock().unwrap_or_else(PoisonError::into_inner) = steered;
    }

    fn steered(&self) -> Steered {
        *self.steered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is counted is about to be told over HTTP: where that has just moved, by two threads.
    fn scraped(&self) {
        self.scrapes.fetch_add(1, Ordering::Relaxed);
    }

    fn scrapes(&self) -> u64 {
        self.scrapes.load(Ordering::Relaxed)
    }

    fn sample(&self) -> u32 {
        self.sample.load(Ordering::Relaxed)
    }
}

/// What no reactor counts in, for tests.
#[cfg(test)]
pub(crate) fn uncounted() -> Arc<BackendMetrics> {
    let subnqn = capstan_nvme_proto::nqn::Nqn::discovery();
    Arc::new(BackendMetrics::new(String::new(), subnqn, 1, 0))
}
