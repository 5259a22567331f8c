//! The notes of this process in the state folder, by volume.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use capstan_nvme_proto::text::Word;
use capstan_subsystem::BackendId;
use nix::errno::Errno;

use super::note::{self, All, Found, Note};
use crate::limits::{LOST_NOTE_BYTES_MAX, LOST_NOTE_WAIT, LOST_NOTES_RESERVED};
use crate::plan::Export;
use crate::state::{self, Reserve, waits};

/// What is kept in the folder, and what is still to be.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// `None`: nothing can be kept.
    folder: Option<PathBuf>,
    notes: Mutex<Notes>,
}

#[derive(Debug, Default)]
struct Notes {
    /// By volume and the name of the file.
    held: BTreeMap<(BackendId, String), Held>,
    /// Notes that cannot be read and are of no volume here, which the log knows.
    unreadable_logged: BTreeSet<String>,
    /// Where the state folder's file system is as full as the volume's.
    reserves: Vec<Reserve>,
}

/// A loss of a volume that is noted in the folder.
#[derive(Debug)]
pub(crate) struct Noted {
    pub(super) backend: BackendId,
    /// Of its note.
    pub(super) name: String,
    /// Where it is.
    pub(super) path: String,
    pub(super) is_for_writing: bool,
}

#[derive(Clone, Debug)]
struct Held {
    found: Found,
    /// Where the volume is.
    path: String,
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
            path: export.store.name().to_string(),
            is_for_writing: !export.store.geometry().read_only,
            is_written,
            said: false,
        }
    }

    /// Whether the operator has cleared it. Other targets may have the state folder, so the note of
    /// a volume that is written here counts until there is the mark.
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

impl Notes {
    /// Takes out those of these volumes and names.
    fn take(&mut self, which: impl Fn(BackendId, &str) -> bool) -> Vec<(String, Held)> {
        let all = std::mem::take(&mut self.held).into_iter();
        let (taken, left): (BTreeMap<_, _>, _) =
            all.partition(|((backend, name), _)| which(*backend, name));
        self.held = left;
        let taken = taken.into_iter();
        taken.map(|((_, name), held)| (name, held)).collect()
    }

    fn write_missing(&mut self, folder: &Path) {
        let Self { held, reserves, .. } = self;
        for held in held.values_mut() {
            if held.is_missing(folder) {
                held.is_written = false;
                tracing::warn!(
                    "{}: the note of what it has lost, {}, was removed, and not by `capstan-target clear-lost-writes {2}`: \
                     it is written once more",
                    held.path,
                    folder.join(&held.found.name).display(),
                    Word::path(held.path.as_bytes())
                );
            }
        }
        for held in held.values_mut().filter(|held| !held.is_written) {
            match write(folder, &held.found, reserves) {
                Ok(()) => held.is_written = true,
                Err(error) if !held.said => {
                    held.said = true;
                    tracing::error!(
                        "{}: what it has lost cannot be noted in {}: {error}. It is tried again each second; until then a \
                         target that is killed forgets it. Make room there, or let this process write there",
                        held.path,
                        folder.display()
                    );
                }
                Err(_) => {}
            }
        }
        fill(reserves, folder);
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

    /// Does `work` on the notes. `None` while the folder does not answer: it is done when that
    /// does.
    pub(super) fn ask<R: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> R + Send + 'static,
    ) -> Option<R> {
        let kept = Arc::clone(self);
        let work = move || work(&kept);
        waits::within(LOST_NOTE_WAIT, work).ok().flatten()
    }

    /// Whether notes outlive this process.
    pub(super) fn has_folder(&self) -> bool {
        self.folder.is_some()
    }

    /// The folder in words, where there is one.
    pub(super) fn place(&self) -> String {
        let folder = self.folder.as_deref();
        folder
            .unwrap_or_else(|| Path::new(state::FOLDER))
            .display()
            .to_string()
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
        let path = note.path.clone();
        let name = note.name();
        let held = Held::new(export, Found { name, note }, false);
        let (spare, backend) = (held.clone(), export.backend);
        let kept = Arc::clone(&self);
        let write = move || {
            kept.hold(backend, held);
            kept.write_missing();
        };
        match waits::within(LOST_NOTE_WAIT, write) {
            Ok(Some(())) => {}
            Ok(None) => tracing::error!(
                "{}: what it has lost is not noted yet, as {} has not answered for {LOST_NOTE_WAIT:?}: a target that ends \
                 before it is noted forgets it. See the kernel log for a hung device",
                path.display(),
                folder.display()
            ),
            Err(_) => {
                self.hold(backend, spare);
                self.write_missing();
            }
        }
    }

    /// Takes up a note, under a name that is not of another medium's.
    fn hold(&self, backend: BackendId, mut held: Held) {
        let Some(folder) = &self.folder else { return };
        let note = &held.found.note;
        let mut notes = self.notes();
        let others = notes.held.iter().filter(|((of, _), _)| *of != backend);
        let mut others = others.map(|(_, other)| &other.found);
        let mut beside = others
            .find(|other| other.name == held.found.name)
            .map(|other| other.note.clone());
        if beside.is_none() {
            beside = waits::told(folder, || note::read(folder, &held.found.name)).ok();
        }
        if let Some(other) = beside {
            held.found.name = note.name_beside(&other);
        }
        let key = (backend, held.found.name.clone());
        notes.held.insert(key, held);
    }

    /// As [`Self::write_missing`], unless another thread waits for that.
    pub(super) fn look(self: &Arc<Self>) {
        let is_free = !matches!(self.notes.try_lock(), Err(TryLockError::WouldBlock));
        if is_free && self.folder.is_some() {
            let _ = self.ask(Self::write_missing);
        }
    }

    /// Writes what is to be kept and is not, now or once more.
    pub(super) fn write_missing(&self) {
        let Some(folder) = &self.folder else { return };
        let mut notes = self.notes();
        waits::told(folder, || notes.write_missing(folder));
    }

    /// What an earlier target has noted of this volume.
    pub(super) fn find(&self, export: &Export) -> Vec<Note> {
        let (Some(medium), Some(folder)) = (export.store.medium_id(), &self.folder) else {
            return Vec::new();
        };
        let mut notes = self.notes();
        let all = waits::told(folder, || {
            fill(&mut notes.reserves, folder);
            note::all(folder)
        });
        let all = all.unwrap_or_else(|error| {
            tracing::error!(
                "whether {} has lost writes is not known: {} cannot be read: {error}; let this process read it, and \
                 restart",
                export.store.name(),
                folder.display()
            );
            All::default()
        });
        let path = Path::new(&**export.store.name());
        let found = all.of(path, medium, |kind, unreadable| Note {
            path: path.to_owned(),
            subnqn: export.subnqn.as_str().to_owned(),
            nsid: export.nsid,
            when: unreadable.when.clone(),
            kind,
            errno: Errno::EIO as i32,
            what: unreadable.what(),
            medium: medium.facts().clone(),
        });
        if !export.store.geometry().read_only {
            // Of a clear that a target was not told of before it ended.
            let names = note::names(path, medium);
            let names = names.iter().map(|(_, name)| name);
            let is_of_twin = |name: &String| {
                let mut held = notes.held.keys();
                held.any(|(of, held)| *of != export.backend && held == name)
            };
            let found = found.iter().map(|found| &found.name);
            for name in names.chain(found).filter(|name| !is_of_twin(name)) {
                let _ = note::forget_mark(folder, name);
            }
        }
        let of = found.iter().map(|found| found.note.clone()).collect();
        let held = found.into_iter().map(|found| {
            let key = (export.backend, found.name.clone());
            (key, Held::new(export, found, true))
        });
        notes.held.extend(held);
        of
    }

    /// Says in the log, once each, which notes cannot be read and are of none of the volumes here.
    pub(super) fn tell_of_unreadable(&self) {
        let Some(folder) = &self.folder else { return };
        // That of a folder that cannot be read has been said.
        let all = note::all(folder).unwrap_or_default();
        let mut notes = self.notes();
        for unreadable in all.unreadable {
            let mut held = notes.held.values();
            if held.all(|held| held.found.name != unreadable.name)
                && notes.unreadable_logged.insert(unreadable.name.clone())
            {
                tracing::error!("{}", unreadable.line(folder));
            }
        }
    }

    /// What is noted in the folder.
    pub(super) fn noted(&self) -> Vec<Noted> {
        let notes = self.notes();
        let written = notes.held.iter().filter(|(_, held)| held.is_written);
        let noted = written.map(|((backend, name), held)| Noted {
            backend: *backend,
            name: name.clone(),
            path: held.path.clone(),
            is_for_writing: held.is_for_writing,
        });
        noted.collect()
    }

    /// Volumes of whose notes the operator has cleared each.
    pub(super) fn cleared(&self) -> Vec<BackendId> {
        let Some(folder) = &self.folder else {
            return Vec::new();
        };
        let notes = self.notes();
        let mut cleared = BTreeMap::new();
        for ((backend, _), held) in &notes.held {
            *cleared.entry(*backend).or_insert(true) &= held.is_cleared(folder);
        }
        let cleared = cleared.into_iter().filter(|&(_, is_cleared)| is_cleared);
        cleared.map(|(backend, _)| backend).collect()
    }

    /// What the operator has cleared of a volume has been seen.
    pub(super) fn forget(&self, backend: BackendId) {
        for (name, held) in self.notes().take(|of, _| of == backend) {
            if let Some(folder) = self.folder.as_ref().filter(|_| held.is_for_writing) {
                // One that stays is removed before the next note is written.
                let _ = note::forget_mark(folder, &name);
            }
        }
    }

    /// Removes these notes, by volume and name: the paths, and how that went.
    pub(super) fn remove(
        &self,
        which: impl Fn(BackendId, &str) -> bool,
    ) -> Vec<(String, io::Result<()>)> {
        let Some(folder) = &self.folder else {
            return Vec::new();
        };
        let held = self.notes().take(which);
        let removed = held.into_iter().map(|(name, held)| {
            let removed = match held.is_for_writing {
                true => waits::told(folder, || note::remove(folder, &name)),
                false => Err(io::Error::other(
                    "it is exported for reading only here, and others may write to it",
                )),
            };
            (held.path, removed)
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
mod tests;
