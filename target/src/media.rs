//! The media under the namespaces, watched: files and devices that others make longer or shorter,
//! move, delete or take away, and those that fail. A state is said once, in the log with what to do
//! and to the hosts; what goes on is said again with a count.

mod looks;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use std::{fmt, fs, process};

use capstan_nvme_proto::nqn::Nqn;
use capstan_storage::{IoError, IoErrorKind, Look, Place, Store};
use capstan_subsystem::{BackendId, Geometry};

use crate::control_plane::ControlPlane;
use crate::limits::{LOOK_PATIENCE, LOOKS_AT_ONCE_MAX, MEDIA_LOOK_EVERY, MEDIA_SAID_AGAIN};
use crate::lost::{Said, What};
use crate::plan::Export;
use looks::{Asked, Round};

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
        })
    }

    /// A volume is closed.
    pub(crate) fn remove(&self, backend: BackendId) {
        self.volumes().remove(&backend);
        self.failures().retain(|(of, _), _| *of != backend);
    }

    /// Looks at every volume and tells hosts and the log what has changed. So many have another
    /// size. A look that a file system or device keeps waiting holds up no other volume, and is left
    /// alone until it ends.
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

    /// Volumes that are not at their path any more, with what is there and what to do, in words.
    pub(crate) fn away(&self) -> Vec<String> {
        let volumes = self.volumes();
        volumes.values().filter_map(Watched::away).collect()
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

    /// An operation failed by what its volume is on.
    pub(crate) fn failed(&self, backend: BackendId, error: &IoError) {
        if !is_of_the_medium(error) {
            return;
        }
        let mut failures = self.failures();
        let of = failures.entry((backend, error.kind)).or_default();
        if of.add(error, Instant::now()) {
            let seconds = MEDIA_SAID_AGAIN.as_secs();
            tracing::error!(
                "{error}; while it goes on this is said again every {seconds} s, with a count"
            );
        }
    }

    fn say_failures_again(&self, now: Instant, control: &ControlPlane) {
        let mut failures = self.failures();
        let mut changed = BTreeSet::new();
        failures.retain(|&(backend, _), of| {
            if !std::mem::replace(&mut of.is_noted, true) {
                changed.insert(backend);
            }
            let Some((count, last)) = of.take_if_due(now) else {
                return true;
            };
            let seconds = MEDIA_SAID_AGAIN.as_secs();
            if count > 0 {
                tracing::error!("{count} more in {seconds} s were like this: {last}");
            } else {
                tracing::info!(
                    "for {seconds} s nothing has failed any more like this: {}",
                    of.first
                );
            }
            // Quiet for that long: the next one is news.
            if count == 0 {
                changed.insert(backend);
            }
            count > 0
        });
        let states: Vec<_> = changed
            .into_iter()
            .map(|backend| (backend, failing(&failures, backend)))
            .collect();
        drop(failures);
        for (backend, (said, is_read_only)) in states {
            control.medium_failing(backend, said, is_read_only);
        }
    }
}

/// What fails on a volume, for the operator, and whether it cannot be written to.
fn failing(
    failures: &HashMap<(BackendId, IoErrorKind), Failures>,
    backend: BackendId,
) -> (Option<Said>, bool) {
    let of_it = || failures.iter().filter(|((of, _), _)| *of == backend);
    let is_read_only = of_it().any(|((_, kind), _)| *kind == IoErrorKind::ReadOnly);
    let first = of_it().map(|(_, of)| of).min_by_key(|of| of.since);
    let said = first.map(|of| Said {
        path: of.path.clone(),
        what: of.first.clone(),
        next: format!(
            "see the kernel log of this machine, and mend that; this is gone when nothing has failed so for {} s",
            MEDIA_SAID_AGAIN.as_secs()
        ),
    });
    (said, is_read_only)
}

/// Whether it is the medium that keeps an operation from being done: not the host's mistake, and
/// not told elsewhere ([`crate::lost`], and a changed size by [`Media::look`]).
fn is_of_the_medium(error: &IoError) -> bool {
    match error.kind {
        IoErrorKind::NoSpace
        | IoErrorKind::Medium
        | IoErrorKind::Device
        | IoErrorKind::Gone
        | IoErrorKind::NoMemory
        | IoErrorKind::Other => true,
        // The kernel's word, not that of the configuration.
        IoErrorKind::ReadOnly => error.errno.is_some(),
        _ => false,
    }
}

/// Failures of one kind on one volume, since the first was told.
#[derive(Debug, Default)]
struct Failures {
    since: Option<Instant>,
    path: String,
    first: String,
    /// Whether `doctor` can find it.
    is_noted: bool,
    more: u64,
    last: String,
}

impl Failures {
    /// Counts one; whether it is the first, and to be told at once.
    fn add(&mut self, error: &IoError, now: Instant) -> bool {
        if self.since.is_none() {
            self.since = Some(now);
            self.path = error.volume.to_string();
            self.first = error.to_string();
            return true;
        }
        self.more += 1;
        if self.more == 1 {
            self.last = error.to_string();
        }
        false
    }

    /// How many more there were and what the first of them was like, once the time is over.
    fn take_if_due(&mut self, now: Instant) -> Option<(u64, String)> {
        let since = self.since?;
        if now.duration_since(since) < MEDIA_SAID_AGAIN {
            return None;
        }
        self.since = Some(now);
        Some((
            std::mem::take(&mut self.more),
            std::mem::take(&mut self.last),
        ))
    }
}

impl Watched {
    /// Compares with how it was, and says what is new.
    fn becomes(&mut self, look: Look) -> Option<Change> {
        let Look {
            bytes,
            geometry: capstan_storage::Geometry { lbas, .. },
            place,
        } = look;
        let before_bytes = std::mem::replace(&mut self.bytes, bytes);
        let moved = self.place != place;
        self.place = place;
        if before_bytes == bytes && !moved {
            return None;
        }
        let state = moved.then(|| (What::Place, self.say_place()));
        let is_gone = matches!(self.place, Place::Gone(_));
        let lost = match before_bytes != bytes && !is_gone {
            true => self.say_size(before_bytes),
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

    fn away(&self) -> Option<String> {
        let (volume, place) = (self.store.name(), &self.place);
        let (subnqn, nsid) = (&self.subnqn, self.nsid);
        matches!(place, Place::Deleted(_) | Place::Elsewhere(_)).then(|| {
            format!(
                "namespace {nsid} of {subnqn} goes on with what was opened at {volume}, which is {place}. {}: to serve what is \
                 there as another namespace, {}",
                self.at_its_path(),
                Again(subnqn, nsid)
            )
        })
    }

    /// What is at the path now, in words.
    fn at_its_path(&self) -> &'static str {
        match fs::symlink_metadata(&**self.store.name()) {
            Ok(_) => "Another file or device is at that path now, without what hosts wrote since",
            Err(_) => "Nothing is at that path now",
        }
    }

    /// Says in the log where it is, and returns that for `doctor` where it is not at its path.
    fn say_place(&self) -> Option<Said> {
        let (volume, place) = (self.store.name(), &self.place);
        let after = Again(&self.subnqn, self.nsid);
        let goes_on = format!("{volume} is {place}: hosts go on with what was opened there");
        let (what, next) = match place {
            Place::AtPath => {
                tracing::info!("{volume} is at its path again");
                return None;
            }
            Place::Elsewhere(kept) => {
                let now = fs::read_link(kept).unwrap_or_default();
                let what = format!("{goes_on}, which is {} now", now.display());
                (what, back(&now, Path::new(&**volume)))
            }
            Place::Deleted(kept) => {
                let pid = process::id();
                let next = format!(
                    "to keep it, copy it while no host writes (cp --sparse=always {} FILE), and write the `uuid` for it that \
                     `capstan-target check` then names, as hosts refuse a copy otherwise; then {after}",
                    kept.display()
                );
                let what =
                    format!("{goes_on}, which nobody finds any more when process {pid} ends");
                (what, next)
            }
            Place::Gone(_) => (
                format!("{volume} is {place}: every command of hosts fails"),
                format!("see the kernel log of this machine, and bring it back; then {after}"),
            ),
        };
        tracing::error!("{what}: {next}");
        let path = volume.to_string();
        Some(Said { path, what, next })
    }

    /// Says in the log how its size has changed, and returns that for `doctor` where it was cut.
    fn say_size(&self, before_bytes: u64) -> Option<Said> {
        let (volume, bytes) = (self.store.name(), self.bytes);
        let shown = "hosts are told of its new size";
        if bytes > before_bytes {
            tracing::info!("{volume} has grown from {before_bytes} to {bytes} bytes; {shown}");
            return None;
        }
        let what =
            format!("{volume} was cut from {before_bytes} to {bytes} bytes while hosts had it");
        let after = Again(&self.subnqn, self.nsid);
        let mend = format!(
            "look for who did it, make it as long as it was (`truncate --size={before_bytes} FILE`, a device by what made \
             it), and check or restore what is on it"
        );
        let next = match self.store.geometry().read_only {
            true => format!("{mend}; then {after}"),
            false => format!(
                "every Flush fails until it is cleared: {mend}. Then `capstan-target clear-lost-writes {volume}` and reload; \
                 or {after}"
            ),
        };
        tracing::error!(
            "{what}: what they had stored behind that is lost, and commands there fail; {shown}; {next}"
        );
        let path = volume.to_string();
        Some(Said { path, what, next })
    }
}

/// How what is at `now` is brought back to `path`.
fn back(now: &Path, path: &Path) -> String {
    match (now.is_file(), path.exists()) {
        (true, false) => format!("move it back (mv -n {} {})", now.display(), path.display()),
        (true, true) => "move away what is there now, and it back".to_owned(),
        (false, _) => "bring it back there".to_owned(),
    }
}

/// How a volume is opened anew.
struct Again<'a>(&'a Nqn, u32);

impl fmt::Display for Again<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(subnqn, nsid) = self;
        write!(
            f,
            "restart the target, or take namespace {nsid} of {subnqn} out of the configuration, reload, put it back \
             in, and reload again"
        )
    }
}

/// The thread that has volumes looked at. It ends with this.
pub(crate) struct Watch {
    end: Option<mpsc::Sender<()>>,
    thread: JoinHandle<()>,
}

impl Watch {
    /// Looks at the media of `control` every [`MEDIA_LOOK_EVERY`].
    pub(crate) fn start(control: &Arc<ControlPlane>) -> std::io::Result<Self> {
        let (end, ended) = mpsc::channel();
        let control = Arc::clone(control);
        let thread = thread::Builder::new().name("media".into()).spawn(move || {
            while ended.recv_timeout(MEDIA_LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
                control.look_at_media();
            }
        })?;
        Ok(Self {
            end: Some(end),
            thread,
        })
    }

    /// Ends it. A look that a file system or device keeps waiting is left alone.
    pub(crate) fn stop(mut self) {
        self.end = None;
        let deadline = Instant::now() + MEDIA_LOOK_EVERY;
        while !self.thread.is_finished() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
        if self.thread.is_finished() {
            let _ = self.thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::fs::{self, File, OpenOptions};
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Instant;

    use capstan_nvme_proto::nqn::Nqn;
    use capstan_storage::{DirectIo, IoError, IoErrorKind, Op, Place, VolumeSpec};
    use capstan_subsystem::BackendId;

    use super::{Failures, MEDIA_SAID_AGAIN, Media, Watched, failing, is_of_the_medium};
    use crate::lost::What;
    use crate::plan::Export;

    const MIB: u64 = 1 << 20;

    fn watched(path: &Path) -> Watched {
        let spec = VolumeSpec::Path {
            path: path.to_owned(),
            lba_bytes: Some(4096),
            read_only: false,
            direct: DirectIo::Auto,
        };
        let store = spec.prepare().unwrap();
        let media = Media::default();
        media.add(&Export {
            backend: BackendId(0),
            subnqn: Nqn::new("nqn.2026-11.org.example:a").unwrap(),
            nsid: 7,
            shown: crate::plan::shown_geometry(store.geometry(), false),
            store,
        });
        let mut volumes = media.volumes();
        volumes.remove(&BackendId(0)).unwrap()
    }

    fn look(watched: &mut Watched) -> Option<super::Change> {
        let look = watched.store.look().unwrap();
        watched.becomes(look)
    }

    #[test]
    fn each_change_is_told_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&path)
            .unwrap();
        file.set_len(MIB).unwrap();
        let mut watched = watched(&path);
        assert_eq!(look(&mut watched), None);
        file.set_len(2 * MIB).unwrap();
        let grown = look(&mut watched).unwrap();
        assert_eq!((grown.nsid, grown.lost, grown.is_sound), (7, None, true));
        assert_eq!(grown.state, None);
        assert_eq!(grown.geometry.unwrap().lbas, 512);
        assert_eq!(look(&mut watched), None);
        // Less than an LBA more is nothing for hosts.
        file.set_len(2 * MIB + 512).unwrap();
        assert_eq!(look(&mut watched).unwrap().geometry, None);
        file.set_len(MIB).unwrap();
        let cut = look(&mut watched).unwrap();
        assert_eq!(cut.geometry.unwrap().lbas, 256);
        assert!(
            cut.lost
                .unwrap()
                .what
                .contains("was cut from 2097664 to 1048576 bytes")
        );
        // Of nothing there is no namespace: what hosts see stays, and fails.
        file.set_len(0).unwrap();
        let emptied = look(&mut watched).unwrap();
        assert!(emptied.geometry.is_none() && emptied.lost.is_some());
        file.set_len(MIB).unwrap();
        assert_eq!(
            look(&mut watched).unwrap().geometry,
            None,
            "as hosts see it"
        );
        assert_eq!(look(&mut watched), None);
        let aside = folder.path().join("b");
        fs::rename(&path, &aside).unwrap();
        let moved = look(&mut watched).unwrap();
        let (what, said) = moved.state.unwrap();
        assert!(!moved.is_sound && what == What::Place);
        let (from, to) = (aside.display(), path.display());
        assert_eq!(
            said.unwrap().next,
            format!("move it back (mv -n {from} {to})")
        );
        File::create(&path).unwrap();
        assert_eq!(look(&mut watched), None, "replaced is as bad as moved");
        fs::rename(&aside, &path).unwrap();
        let back = look(&mut watched).unwrap();
        assert!(back.is_sound && back.state == Some((What::Place, None)));
        fs::remove_file(&path).unwrap();
        assert!(!look(&mut watched).unwrap().is_sound);
        assert!(matches!(watched.place, Place::Deleted(_)));
        assert_eq!(look(&mut watched), None);
    }

    #[test]
    fn failures_are_told_at_once_and_then_counted() {
        let error = |errno| {
            let volume: Arc<str> = Arc::from("/srv/a.img");
            IoError::from_errno(errno, &Op::Flush, &volume)
        };
        let start = Instant::now();
        let mut failures = Failures::default();
        assert!(failures.add(&error(libc_enospc()), start));
        for _ in 0..1000 {
            assert!(!failures.add(&error(libc_enospc()), start));
        }
        assert_eq!(failures.take_if_due(start), None);
        let (count, last) = failures.take_if_due(start + MEDIA_SAID_AGAIN).unwrap();
        assert_eq!(count, 1000);
        assert!(last.contains("/srv/a.img: no space left"), "{last}");
        let quiet = failures.take_if_due(start + 2 * MEDIA_SAID_AGAIN).unwrap();
        assert_eq!(quiet, (0, String::new()));
        // What `doctor` and hosts are told.
        let (full, other) = (BackendId(1), BackendId(2));
        let failures = HashMap::from([((full, IoErrorKind::NoSpace), failures)]);
        let (said, is_read_only) = failing(&failures, full);
        let said = said.unwrap();
        assert!(said.path == "/srv/a.img" && said.what.contains("no space left") && !is_read_only);
        assert_eq!(failing(&failures, other), (None, false));
        let read_only = HashMap::from([((full, IoErrorKind::ReadOnly), Failures::default())]);
        assert!(failing(&read_only, full).1);
        // What is a host's own mistake, or passes, is no state of the medium.
        let volume: Arc<str> = Arc::from("/srv/a.img");
        for kind in [
            IoErrorKind::OutOfRange,
            IoErrorKind::ReadOnly,
            IoErrorKind::Retry,
        ] {
            assert!(!is_of_the_medium(&IoError::new(kind, &Op::Flush, &volume)));
        }
    }

    fn libc_enospc() -> i32 {
        nix::errno::Errno::ENOSPC as i32
    }
}
