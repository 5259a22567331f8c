//! The notes of this process in the state folder, by volume.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use capstan_subsystem::BackendId;
use nix::errno::Errno;

use super::note::{self, All, Found, Note};
use crate::limits::{LOST_NOTE_BYTES_MAX, LOST_NOTE_WAIT, LOST_NOTES_RESERVED};
use crate::plan::Export;
use crate::state::{self, Reserve};

/// What is kept in the folder, and what is still to be.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// `None`: nothing can be kept.
    folder: Option<PathBuf>,
    notes: Mutex<Notes>,
}

#[derive(Debug, Default)]
struct Notes {
    by_backend: BTreeMap<BackendId, Held>,
    /// Notes that cannot be read and are of no volume here, which the log knows.
    unreadable_told: BTreeSet<String>,
    /// Where the state folder's file system is as full as the volume's.
    reserves: Vec<Reserve>,
}

#[derive(Debug)]
struct Held {
    found: Found,
    /// Only who writes to the medium clears what is lost of it by an end in order.
    is_for_writing: bool,
    is_written: bool,
    /// The log knows that it cannot be written.
    said: bool,
}

impl Held {
    fn new(export: &Export, found: Found, is_written: bool) -> Self {
        Self {
            found,
            is_for_writing: !export.store.geometry().read_only,
            is_written,
            said: false,
        }
    }

    /// Whether the operator has cleared it. Other targets may have the state folder, so the note of a
    /// volume that is written here counts until there is the mark.
    fn is_cleared(&self, folder: &Path) -> bool {
        let name = &self.found.name;
        self.is_written
            && match self.is_for_writing {
                true => note::is_cleared(folder, name),
                false => folder.is_dir() && !note::is_there(folder, name),
            }
    }

    /// Whether something else has removed it than the operator's command.
    fn is_missing(&self, folder: &Path) -> bool {
        self.is_written
            && self.is_for_writing
            && !note::is_there(folder, &self.found.name)
            && !note::is_cleared(folder, &self.found.name)
    }
}

impl Kept {
    pub(super) fn here() -> Self {
        Self::in_folder(state::folder())
    }

    fn in_folder(folder: Option<PathBuf>) -> Self {
        Self {
            folder,
            notes: Mutex::default(),
        }
    }

    fn notes(&self) -> MutexGuard<'_, Notes> {
        // Every call leaves it whole; a panic elsewhere does not spoil it.
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same, unless the thread that has them waits for a disk that does not answer.
    fn notes_if_free(&self) -> Option<MutexGuard<'_, Notes>> {
        let deadline = Instant::now() + LOST_NOTE_WAIT;
        loop {
            match self.notes.try_lock() {
                Ok(notes) => return Some(notes),
                Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                    thread::sleep(Duration::from_millis(1));
                }
                Err(TryLockError::WouldBlock) => return None,
            }
        }
    }

    /// Writes a note. This thread has hosts to answer, so it waits for a disk only for
    /// [`LOST_NOTE_WAIT`].
    pub(super) fn keep(self: Arc<Self>, export: &Export, note: Note) {
        let Some(folder) = &self.folder else {
            tracing::error!(
                "{}: what it has lost is remembered by this process alone, as there is no state folder ({}, or another \
                 one that {} names): if it is killed, the next one does not know. Clear it before, or make the folder for \
                 the next time",
                note.path.display(),
                state::FOLDER,
                state::FOLDER_VARIABLE
            );
            return;
        };
        let name = note.name();
        let path = note.path.clone();
        let found = Found { name, note };
        let spare = Held::new(export, found.clone(), false);
        let held = Held::new(export, found, false);
        let backend = export.backend;
        let (written, done) = mpsc::channel();
        let kept = Arc::clone(&self);
        let write = move || {
            kept.notes().by_backend.insert(backend, held);
            kept.write_missing();
            // Nobody may wait any more.
            let _ = written.send(());
        };
        match thread::Builder::new().name("lost".into()).spawn(write) {
            Ok(_) if done.recv_timeout(LOST_NOTE_WAIT).is_ok() => {}
            Ok(_) => tracing::error!(
                "{}: what it has lost is not noted yet, as {} has not answered for {LOST_NOTE_WAIT:?}: a target that ends \
                 before it is noted forgets it. See the kernel log for a hung device",
                path.display(),
                folder.display()
            ),
            Err(_) => {
                self.notes().by_backend.insert(backend, spare);
                self.write_missing();
            }
        }
    }

    /// As [`Self::write_missing`], unless another thread waits for that.
    pub(super) fn look(&self) {
        let is_free = !matches!(self.notes.try_lock(), Err(TryLockError::WouldBlock));
        if is_free {
            self.write_missing();
        }
    }

    /// Writes what is to be kept and is not, now or once more.
    pub(super) fn write_missing(&self) {
        let Some(folder) = &self.folder else { return };
        let mut notes = self.notes();
        let Notes {
            by_backend,
            reserves,
            ..
        } = &mut *notes;
        for held in by_backend.values_mut() {
            if held.is_missing(folder) {
                held.is_written = false;
                tracing::warn!(
                    "{}: the note of what it has lost, {}, was removed, and not by `capstan-target clear-lost-writes {0}`: \
                     it is written once more",
                    held.found.note.path.display(),
                    folder.join(&held.found.name).display()
                );
            }
        }
        for held in by_backend.values_mut().filter(|held| !held.is_written) {
            match write(folder, &held.found, reserves) {
                Ok(()) => held.is_written = true,
                Err(error) if !held.said => {
                    held.said = true;
                    tracing::error!(
                        "{}: what it has lost cannot be noted in {}: {error}. It is tried again each second; until then a \
                         target that is killed forgets it. Make room there, or let this process write there",
                        held.found.note.path.display(),
                        folder.display()
                    );
                }
                Err(_) => {}
            }
        }
        fill(reserves, folder);
    }

    /// What an earlier target has noted of this volume.
    pub(super) fn find(&self, export: &Export) -> Option<Note> {
        let medium = export.store.medium_id()?;
        let folder = self.folder.as_ref()?;
        let mut notes = self.notes();
        fill(&mut notes.reserves, folder);
        let all = note::all(folder).unwrap_or_else(|error| {
            tracing::error!(
                "whether {} has lost writes is not known: {} cannot be read: {error}; let this process read it, and \
                 restart",
                export.store.name(),
                folder.display()
            );
            All::default()
        });
        let path = Path::new(&**export.store.name());
        let found = all.of(path, medium, |unreadable| Note {
            path: path.to_owned(),
            subnqn: export.subnqn.as_str().to_owned(),
            nsid: export.nsid,
            when: unreadable.when.clone(),
            errno: Errno::EIO as i32,
            what: unreadable.what(),
            medium: medium.facts().clone(),
        });
        if !export.store.geometry().read_only {
            // Of a clear that a target was not told of before it ended.
            let name = found.as_ref().map(|found| found.name.clone());
            let name = name.unwrap_or_else(|| note::name(path, medium));
            let _ = note::forget_mark(folder, &name);
        }
        let found = found?;
        let note = found.note.clone();
        let held = Held::new(export, found, true);
        notes.by_backend.insert(export.backend, held);
        Some(note)
    }

    /// Says in the log, once each, which notes cannot be read and are of none of the volumes here.
    pub(super) fn tell_of_unreadable(&self) {
        let Some(folder) = &self.folder else { return };
        // That of a folder that cannot be read has been said.
        let all = note::all(folder).unwrap_or_default();
        let mut notes = self.notes();
        for unreadable in all.unreadable {
            let mut held = notes.by_backend.values();
            if held.all(|held| held.found.name != unreadable.name)
                && notes.unreadable_told.insert(unreadable.name.clone())
            {
                tracing::error!("{}", unreadable.line(folder));
            }
        }
    }

    /// The paths of volumes whose notes are in the folder.
    pub(super) fn noted_paths(&self) -> Vec<String> {
        let Some(notes) = self.notes_if_free() else {
            return Vec::new();
        };
        let written = notes.by_backend.values().filter(|held| held.is_written);
        let paths = written.map(|held| held.found.note.path.display().to_string());
        paths.collect()
    }

    /// Volumes whose notes are in the folder.
    pub(super) fn noted(&self) -> Vec<BackendId> {
        let Some(notes) = self.notes_if_free() else {
            return Vec::new();
        };
        let written = notes.by_backend.iter().filter(|(_, held)| held.is_written);
        written.map(|(&backend, _)| backend).collect()
    }

    /// Volumes whose notes the operator has cleared.
    pub(super) fn cleared(&self) -> Vec<BackendId> {
        let Some(folder) = &self.folder else {
            return Vec::new();
        };
        let Some(notes) = self.notes_if_free() else {
            return Vec::new();
        };
        let cleared = notes.by_backend.iter();
        let cleared = cleared.filter(|(_, held)| held.is_cleared(folder));
        cleared.map(|(&backend, _)| backend).collect()
    }

    /// What the operator has cleared of a volume has been seen.
    pub(super) fn forget(&self, backend: BackendId) {
        let held = self.notes().by_backend.remove(&backend);
        if let (Some(held), Some(folder)) = (held, &self.folder)
            && held.is_for_writing
        {
            // One that stays is removed before the next note is written.
            let _ = note::forget_mark(folder, &held.found.name);
        }
    }

    /// Removes the notes of these volumes: the paths, and how that went.
    pub(super) fn remove(&self, backends: &[BackendId]) -> Vec<(String, io::Result<()>)> {
        let Some(folder) = self.folder.as_ref().filter(|_| !backends.is_empty()) else {
            return Vec::new();
        };
        let mut notes = self.notes();
        let held = backends
            .iter()
            .filter_map(|backend| notes.by_backend.remove(backend));
        let removed = held.map(|held| {
            let Found { name, note } = held.found;
            let removed = match held.is_for_writing {
                true => note::remove(folder, &name),
                false => Err(io::Error::other(
                    "it is exported for reading only here, and others may write to it",
                )),
            };
            (note.path.display().to_string(), removed)
        });
        removed.collect()
    }
}

fn write(folder: &Path, found: &Found, reserves: &mut Vec<Reserve>) -> io::Result<()> {
    let text = found.note.text()?;
    let _ = note::forget_mark(folder, &found.name);
    state::write(folder, &found.name, &text).or_else(|error| match reserves.pop() {
        Some(reserve) => reserve.write(folder, &found.name, &text),
        None => Err(error),
    })
}

fn fill(reserves: &mut Vec<Reserve>, folder: &Path) {
    let bytes = usize::try_from(LOST_NOTE_BYTES_MAX).unwrap_or(usize::MAX);
    while reserves.len() < LOST_NOTES_RESERVED {
        match Reserve::new(folder, bytes) {
            Ok(reserve) => reserves.push(reserve),
            Err(error) => {
                let folder = folder.display();
                tracing::debug!(%folder, %error, "no room is reserved for notes of lost writes");
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::path::Path;
    use std::sync::Arc;

    use capstan_nvme_proto::nqn::Nqn;
    use capstan_storage::{DirectIo, IoError, Op, VolumeSpec};
    use capstan_subsystem::BackendId;

    use super::super::running::Running;
    use super::super::{Lost, note};
    use super::Kept;
    use crate::plan::{Export, shown_geometry};

    fn export(backend: u32, path: &Path) -> Export {
        export_for(backend, path, false)
    }

    fn export_for(backend: u32, path: &Path, read_only: bool) -> Export {
        let spec = VolumeSpec::Path {
            path: path.to_owned(),
            lba_bytes: Some(4096),
            read_only,
            direct: DirectIo::Auto,
        };
        let store = spec.prepare().unwrap();
        Export {
            backend: BackendId(backend),
            subnqn: Nqn::new("nqn.2026-11.org.example:a").unwrap(),
            nsid: 7,
            shown: shown_geometry(store.geometry(), read_only),
            store,
        }
    }

    fn image(path: &Path) {
        File::create(path).unwrap().set_len(1 << 20).unwrap();
    }

    fn kept(folder: &Path) -> Arc<Kept> {
        Arc::new(Kept::in_folder(Some(folder.to_owned())))
    }

    fn keep(kept: &Arc<Kept>, export: &Export) {
        let errno = nix::errno::Errno::ENOSPC as i32;
        let error = IoError::from_errno(errno, &Op::Flush, export.store.name());
        let note = note(export, &error);
        Arc::clone(kept).keep(export, note);
    }

    #[test]
    fn the_next_process_finds_what_this_one_has_kept_until_it_is_removed() {
        let root = tempfile::tempdir().unwrap();
        let state = root.path().join("state");
        fs::create_dir(&state).unwrap();
        let [a, b] = ["a", "b"].map(|name| root.path().join(name));
        image(&a);
        image(&b);
        let this = kept(&state);
        keep(&this, &export(1, &a));
        assert_eq!(this.noted(), [BackendId(1)]);
        // Moved meanwhile; and another file has its path.
        let moved = root.path().join("moved");
        fs::rename(&a, &moved).unwrap();
        fs::rename(&b, &a).unwrap();
        let next = kept(&state);
        assert_eq!(next.find(&export(1, &a)), None);
        let note = next.find(&export(2, &moved)).unwrap();
        assert_eq!((note.errno, note.path, note.nsid), (28, a.clone(), 7));
        assert!(note.what.starts_with("flush on "), "{}", note.what);
        // What was lost behind the others is not removed with them.
        keep(&next, &export(3, &a));
        assert_eq!(next.noted(), [BackendId(2), BackendId(3)]);
        let removed = next.remove(&[BackendId(2), BackendId(9)]);
        assert!(removed.len() == 1 && removed[0].1.is_ok(), "{removed:?}");
        let third = kept(&state);
        assert_eq!(third.find(&export(1, &moved)), None);
        assert!(third.find(&export(2, &a)).is_some());
        assert_eq!(fs::read_dir(&state).unwrap().count(), 1);
    }

    #[test]
    fn a_note_that_the_operator_clears_is_cleared_and_one_that_was_never_written_is_not() {
        let root = tempfile::tempdir().unwrap();
        let state = root.path().join("state");
        let path = root.path().join("a");
        image(&path);
        let this = kept(&state);
        keep(&this, &export(1, &path));
        assert!(this.noted().is_empty(), "there is no folder");
        assert!(this.cleared().is_empty());
        // It is tried again.
        fs::create_dir(&state).unwrap();
        this.write_missing();
        assert_eq!(this.noted(), [BackendId(1)]);
        assert!(this.cleared().is_empty());
        for found in note::all(&state).unwrap().found {
            note::clear(&state, &found.name).unwrap();
        }
        assert_eq!(this.cleared(), [BackendId(1)]);
        this.write_missing();
        assert_eq!(this.cleared(), [BackendId(1)], "it stays cleared");
        this.forget(BackendId(1));
        assert_eq!(fs::read_dir(&state).unwrap().count(), 0, "no mark is left");
        // A folder that is not mounted clears nothing.
        keep(&this, &export(1, &path));
        fs::remove_dir_all(&state).unwrap();
        assert!(this.cleared().is_empty());
    }

    /// Other targets may have the same state folder.
    #[test]
    fn only_who_writes_clears_a_note_by_its_end_and_only_the_command_while_it_runs() {
        let root = tempfile::tempdir().unwrap();
        let state = root.path().join("state");
        fs::create_dir(&state).unwrap();
        let path = root.path().join("a");
        image(&path);
        let names = || {
            note::all(&state)
                .unwrap()
                .found
                .into_iter()
                .map(|found| found.name)
        };
        let writer = kept(&state);
        let written = export(1, &path);
        keep(&writer, &written);
        let reader = kept(&state);
        let read = export_for(1, &path, true);
        let (_, removed) = {
            reader.find(&read).unwrap();
            reader.remove(&[BackendId(1)]).remove(0)
        };
        assert!(removed.unwrap_err().to_string().contains("reading only"));
        assert_eq!(names().count(), 1);
        // Whatever removes it.
        reader.find(&read).unwrap();
        note::remove(&state, &names().next().unwrap()).unwrap();
        assert!(writer.cleared().is_empty(), "no mark");
        assert_eq!(reader.cleared(), [BackendId(1)], "it has nothing to keep");
        writer.write_missing();
        assert_eq!(names().count(), 1, "written once more");
        assert!(reader.cleared().is_empty());
        // The mark is of one loss, and is seen by who writes.
        note::clear(&state, &names().next().unwrap()).unwrap();
        assert_eq!(
            (writer.cleared(), reader.cleared()),
            (vec![BackendId(1)], vec![BackendId(1)])
        );
        reader.forget(BackendId(1));
        assert_eq!(writer.cleared(), [BackendId(1)]);
        keep(&writer, &written);
        note::remove(&state, &names().next().unwrap()).unwrap();
        assert!(
            writer.cleared().is_empty(),
            "the mark was of an earlier loss"
        );
        writer.write_missing();
        note::clear(&state, &names().next().unwrap()).unwrap();
        drop(writer);
        let next = kept(&state);
        assert!(next.find(&read).is_none() && next.find(&written).is_none());
        assert_eq!(fs::read_dir(&state).unwrap().count(), 0, "no mark is left");
    }

    #[test]
    fn writes_that_a_file_loses_which_was_cut_short_are_kept_as_well() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("a");
        image(&path);
        let lost = Lost {
            running: Running::in_folder(root.path().join("run")),
            kept: kept(root.path()),
        };
        let export = export(1, &path);
        lost.add(export.backend, "it was cut");
        assert!(lost.noted().is_empty(), "that is no failed write");
        let errno = nix::errno::Errno::EIO as i32;
        let error = IoError::from_errno(errno, &Op::Flush, export.store.name());
        for _ in 0..2 {
            lost.add_writes(&export, &error);
        }
        assert_eq!(lost.noted(), [export.backend]);
        lost.remove(export.backend);
        assert!(lost.noted().is_empty() && lost.backends().is_empty());
        assert!(note::all(root.path()).unwrap().found.is_empty());
    }

    #[test]
    fn without_a_folder_nothing_is_kept_and_nothing_fails() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("a");
        image(&path);
        let this = Arc::new(Kept::in_folder(None));
        let export = export(1, &path);
        keep(&this, &export);
        this.write_missing();
        assert!(this.noted().is_empty() && this.cleared().is_empty());
        assert!(this.find(&export).is_none() && this.remove(&[BackendId(1)]).is_empty());
    }
}
