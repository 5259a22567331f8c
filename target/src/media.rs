//! The media under the namespaces, watched: files and devices that others make longer or shorter,
//! move, delete or take away, and those that fail. A state is said once, in the log with what to do
//! and to the hosts; what goes on is said again with a count.

mod failures;
mod looks;
#[cfg(test)]
mod tests;
mod watch;
mod words;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use capstan_nvme_proto::nqn::Nqn;
use capstan_storage::{IoErrorKind, Look, MediumId, Place, Store};
use capstan_subsystem::{BackendId, Geometry};

use crate::control_plane::ControlPlane;
use crate::limits::{LOOK_PATIENCE, LOOKS_AT_ONCE_MAX};
use crate::lost::{Said, What};
use crate::metrics::BackendMetrics;
use crate::plan::Export;
use failures::Failures;
use looks::{Asked, Round};

pub(crate) use watch::Watch;

/// What is watched.
#[derive(Debug, Default)]
pub(crate) struct Media {
    volumes: Mutex<BTreeMap<BackendId, Watched>>,
    failures: Mutex<HashMap<(BackendId, IoErrorKind), Failures>>,
    /// Looks that have not ended.
    asked: Mutex<BTreeMap<BackendId, Asked>>,
}

/// A volume on a file or device.
#[derive(Debug)]
struct Watched {
    store: Store,
    subnqn: Nqn,
    nsid: u32,
    /// What hosts see.
    shown: Geometry,
    counted: Arc<BackendMetrics>,
    bytes: u64,
    place: Place,
}

/// What hosts are told of a volume that has changed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) subnqn: Nqn,
    pub(crate) nsid: u32,
    /// Its new shape; `None` when that is the old one, or there is no LBA left to show.
    pub(crate) geometry: Option<Geometry>,
    /// What hosts were told of as stored is gone.
    pub(crate) lost: Option<Said>,
    /// What it is like from now on, if that has changed; without words: as it should be.
    pub(crate) state: Option<(What, Option<Said>)>,
    /// Whether it is where it belongs.
    pub(crate) is_sound: bool,
}

impl Media {
    fn volumes(&self) -> MutexGuard<'_, BTreeMap<BackendId, Watched>> {
        // Every call leaves it whole; a panic elsewhere does not spoil it.
        self.volumes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failures(&self) -> MutexGuard<'_, HashMap<(BackendId, IoErrorKind), Failures>> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn asked(&self) -> MutexGuard<'_, BTreeMap<BackendId, Asked>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches the volume of a namespace, unless it is memory.
    pub(crate) fn add(&self, export: &Export) {
        // As hosts are shown it: what has changed since is found by the next look.
        let bytes = export.store.bytes();
        if export.store.look().is_none() {
            return;
        }
        let watched = Watched {
            store: export.store.clone(),
            subnqn: export.subnqn.clone(),
            nsid: export.nsid,
            shown: export.shown,
            counted: Arc::clone(&export.counted),
            bytes,
            place: Place::AtPath,
        };
        self.volumes().insert(export.backend, watched);
    }

    /// The export of a volume that is watched.
    pub(crate) fn export(&self, backend: BackendId) -> Option<Export> {
        let volumes = self.volumes();
        let watched = volumes.get(&backend)?;
        Some(Export {
            backend,
            store: watched.store.clone(),
            subnqn: watched.subnqn.clone(),
            nsid: watched.nsid,
            shown: watched.shown,
            counted: Arc::clone(&watched.counted),
        })
    }

    /// Hosts may only read a namespace, or may write it, from now on.
    pub(crate) fn show_read_only(&self, subnqn: &Nqn, nsid: u32, read_only: bool) {
        let mut volumes = self.volumes();
        let mut volumes = volumes.values_mut();
        if let Some(watched) = volumes.find(|of| of.subnqn == *subnqn && of.nsid == nsid) {
            watched.shown.read_only = read_only;
        }
    }

    /// A volume is closed.
    pub(crate) fn remove(&self, backend: BackendId) {
        self.volumes().remove(&backend);
        self.failures().retain(|(of, _), _| *of != backend);
    }

    /// Looks at every volume and tells hosts and the log what has changed. So many have another
    /// size. A look that a file system or device keeps waiting holds up no other volume, and is
    /// left alone until it ends.
    pub(crate) fn look(&self, control: &Arc<ControlPlane>) -> usize {
        let now = Instant::now();
        let mut asked = self.asked();
        let silent: Vec<_> = asked
            .values_mut()
            .filter_map(|look| {
                look.is_due(now)
                    .then(|| look.change(false, Some(look.silent())))
            })
            .collect();
        let volumes = self.volumes();
        let next = volumes.iter().filter(|(of, _)| !asked.contains_key(of));
        let next: VecDeque<_> = next.map(|(&of, watched)| Asked::of(of, watched)).collect();
        let busy = asked.len();
        drop((volumes, asked));
        for (backend, change) in silent {
            control.medium_changed(backend, change);
        }
        let round = Arc::new(Round {
            left: Mutex::new(next),
            resized: AtomicUsize::new(0),
        });
        // As many threads as volumes that do not answer, and one more.
        for _ in busy..LOOKS_AT_ONCE_MAX {
            if round.is_over_within(LOOK_PATIENCE, control) {
                break;
            }
        }
        self.say_failures_again(Instant::now(), control);
        round.resized.load(Ordering::Relaxed)
    }

    /// What a look has found, if the volume is still there.
    fn looked(&self, asked: &Asked, look: Option<Look>, control: &ControlPlane) -> bool {
        let told = self.asked().remove(&asked.backend);
        if let Some(told) = told.filter(|look| look.has_told) {
            let (name, seconds) = (told.store.name(), told.since.elapsed().as_secs());
            tracing::info!("{name} answers again, after {seconds} s");
            let is_sound = look.as_ref().is_none_or(|look| look.place == Place::AtPath);
            let (backend, change) = told.change(is_sound, None);
            control.medium_changed(backend, change);
        }
        let change = match (look, self.volumes().get_mut(&asked.backend)) {
            (Some(look), Some(watched)) => watched.becomes(look),
            _ => None,
        };
        let Some(change) = change else { return false };
        let is_resized = change.geometry.is_some();
        control.medium_changed(asked.backend, change);
        is_resized
    }

    /// The size of a namespace's file or device at the last look.
    pub(crate) fn bytes_of(&self, subnqn: &Nqn, nsid: u32) -> Option<u64> {
        let volumes = self.volumes();
        let mut volumes = volumes.values();
        let watched = volumes.find(|of| of.subnqn == *subnqn && of.nsid == nsid)?;
        Some(watched.bytes)
    }

    /// Volumes that are not at their path any more, with what is there and what to do, in words.
    pub(crate) fn away(&self) -> Vec<String> {
        let volumes = self.volumes();
        volumes.values().filter_map(Watched::away).collect()
    }

    /// Namespaces whose volume had another name at the last look.
    pub(crate) fn elsewhere(&self) -> Vec<(Nqn, u32)> {
        let volumes = self.volumes();
        let moved = volumes
            .values()
            .filter(|of| matches!(of.place, Place::Elsewhere(_)));
        moved.map(|of| (of.subnqn.clone(), of.nsid)).collect()
    }

    /// Namespaces whose path led to something else at the last look, and of which hosts lose
    /// nothing when their volume is closed; with where it is.
    pub(crate) fn replaceable(&self) -> Vec<(Nqn, u32, String)> {
        let volumes = self.volumes();
        let kept = volumes.values().filter_map(|of| {
            let where_ = of.kept_as()?;
            Some((of.subnqn.clone(), of.nsid, where_))
        });
        kept.collect()
    }

    /// What the end of this process takes with it.
    pub(crate) fn say_what_ends(&self) {
        for watched in self.volumes().values() {
            if matches!(watched.place, Place::Deleted(_)) {
                let (volume, subnqn, nsid) = (watched.store.name(), &watched.subnqn, watched.nsid);
                tracing::warn!(
                    "namespace {nsid} of {subnqn} was served until the end from the file that was opened at {volume} and \
                     deleted since: it goes with this process. {}",
                    watched.at_its_path()
                );
            }
        }
    }
}

impl Watched {
    /// What has become of a volume that is not at its path any more, if closing it loses nothing
    /// that hosts have written.
    fn kept_as(&self) -> Option<String> {
        // The path of others is not looked at, as it may not answer.
        let kept = match &self.place {
            Place::Elsewhere(kept) => format!("is {}", name_of(kept)?.display()),
            Place::Deleted(_) if self.store.geometry().read_only => {
                "was deleted, and hosts could not write it".to_owned()
            }
            _ => return None,
        };
        // Hosts have to see another namespace: what is known by its path alone would be the same.
        let there = MediumId::at(Path::new(&**self.store.name())).ok()?;
        (self.store.medium_id()?.is_same(&there) == Some(false)).then_some(kept)
    }

    /// Compares with how it was, and says what is new.
    fn becomes(&mut self, look: Look) -> Option<Change> {
        let Look {
            bytes,
            least_bytes,
            geometry: capstan_storage::Geometry { lbas, .. },
            place,
        } = look;
        let before_bytes = std::mem::replace(&mut self.bytes, bytes);
        let moved = self.place != place;
        self.place = place;
        if before_bytes == bytes && least_bytes == bytes && !moved {
            return None;
        }
        let state = moved.then(|| (What::Place, self.say_place()));
        let is_gone = matches!(self.place, Place::Gone(_));
        let lost = match (before_bytes != bytes || least_bytes < bytes) && !is_gone {
            true => self.say_size(before_bytes, least_bytes),
            false => None,
        };
        let resized = lbas != self.shown.lbas && lbas > 0;
        if resized {
            self.shown.lbas = lbas;
        }
        Some(Change {
            subnqn: self.subnqn.clone(),
            nsid: self.nsid,
            geometry: resized.then_some(self.shown),
            lost,
            state,
            is_sound: self.place == Place::AtPath,
        })
    }
}

/// The name that what is open as `kept` has now, where it has one that stays when it is closed.
fn name_of(kept: &Path) -> Option<PathBuf> {
    let name = fs::read_link(kept).ok()?;
    // Network and FUSE file systems keep what is deleted so, until it is closed.
    let hidden = [".nfs", ".fuse_hidden", ".smbdelete"];
    let file_name = name.file_name()?.to_string_lossy();
    if hidden.iter().any(|hidden| file_name.starts_with(hidden)) {
        return None;
    }
    let (open, named) = (fs::metadata(kept).ok()?, fs::metadata(&name).ok()?);
    let is_it = (open.dev(), open.ino()) == (named.dev(), named.ino());
    is_it.then_some(name)
}
