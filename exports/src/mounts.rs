//! File systems that are mounted below an export with `crossmnt`: found when a client looks one up,
//! and when the export is opened, as their handles have to be known after a restart before that.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, MutexGuard, PoisonError};

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2};
use nix::sys::stat::Mode;
use nix::sys::statvfs::{FsFlags, fstatvfs};

use crate::error::{ExportError, FileError};
use crate::export::{Export, ExportSettings, Exports, PLACE_MASK, Place, Table};
use crate::handle::{ExportId, FileSystemId, KernelHandle};
use crate::limits::EXPORTS;
use crate::mountinfo::{Mount, is_in_mounted, mounts};
use crate::sys::{self, FdPath};

/// What to do where a mount cannot be exported with what it is in.
const BY_ITSELF: &str = "; export it with a path of its own";

/// The id of a mount that can be written, where one of the same directory can only be read.
fn id_beside(id: ExportId) -> ExportId {
    let digest = blake3::hash(&id.0.to_be_bytes());
    let first = digest.as_bytes().first_chunk().copied();
    ExportId(u32::from_be_bytes(first.unwrap_or_default()))
}

/// Another mount of the same directory that has the id, and is still there.
fn rival<'t>(
    by_id: &'t HashMap<ExportId, Arc<Export>>,
    export: &Export,
) -> Option<&'t Arc<Export>> {
    let held = by_id.get(&export.id)?;
    let is_other = held.root_place != export.root_place;
    (is_other && held.is_adopted() && held.is_mounted()).then_some(held)
}

impl Export {
    /// Whether it is mounted somewhere: what is not has nothing above it.
    fn is_mounted(&self) -> bool {
        let up = OpenHow::new()
            .flags(OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_NO_SYMLINKS);
        let above = openat2(self.root(), c"..", up).ok();
        let above = above.and_then(|fd| sys::statx(fd.as_fd(), PLACE_MASK).ok());
        above.is_some_and(|stat| Place::of(&stat).mount != self.root_place.mount)
    }

    /// Whether its mount, or all of its file system, can only be read.
    fn is_read_only(&self) -> bool {
        let flags = fstatvfs(self.root()).map(|about| about.flags());
        flags.is_ok_and(|flags| flags.contains(FsFlags::ST_RDONLY))
    }

    /// Where it is mounted, for the log.
    pub(crate) fn found_at(&self) -> PathBuf {
        found_at(self.root()).unwrap_or_else(|| self.settings.path.clone())
    }
}

/// Where it is mounted.
fn found_at(root: BorrowedFd<'_>) -> Option<PathBuf> {
    let path = FdPath::new(root);
    let path = nix::fcntl::readlink(path.as_c_str()).ok();
    path.map(PathBuf::from)
}

/// Why something cannot be exported with what it is mounted in, and what to do.
fn why_not_with(outer: &ExportSettings, error: &ExportError) -> String {
    if let ExportError::NoFileSystemId { .. } = error {
        return "its file system has no UUID, and `file_system` above it is not its own; an \
                [[export]] of its own with `file_system = \"UUID\"` exports it (`uuidgen` makes one)"
            .to_owned();
    }
    let words = error.to_string();
    let prefix = format!("exporting {}: ", outer.path.display());
    words.strip_prefix(&prefix).unwrap_or(&words).to_owned()
}

/// When the log tells of what is not exported.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Log {
    Now,
    /// Where the exports are opened, it is asked for ([`Exports::not_exported`]).
    Later,
}

impl Table {
    /// Something that is mounted below an export is not exported with it. It is told of once.
    fn refuse(&mut self, place: Place, (at, outer): (&Path, &ExportSettings), why: &str, log: Log) {
        if self.refused.len() >= EXPORTS || self.refused.contains_key(&place) {
            return;
        }
        let words = format!(
            "{}, mounted below {}, is not exported with it (crossmnt): {why}",
            at.display(),
            outer.path.display()
        );
        if log == Log::Now {
            tracing::warn!("{words}");
        }
        self.refused.insert(place, words);
    }
}

/// Makes exports of what is mounted below `export`. The outer of two comes first in the list.
pub(crate) fn adopt_below(exports: &Exports, export: &Arc<Export>) {
    let path = &export.settings().path;
    let mounts = match mounts() {
        Ok(mounts) => mounts,
        Err(error) => {
            tracing::warn!(
                "handles below mount points in {} are stale until they are looked up again: \
                 /proc/thread-self/mountinfo: {error}",
                path.display()
            );
            return;
        }
    };
    let Ok(real) = fs::canonicalize(path) else {
        return;
    };
    // Once more for those that have lost their ids to a mount that comes behind them.
    for _ in 0..2 {
        adopt_points(exports, export, &real, &mounts);
    }
}

fn adopt_points(exports: &Exports, export: &Arc<Export>, real: &Path, mounts: &[Mount]) {
    let mut above = vec![(PathBuf::new(), export.clone())];
    for mount in mounts {
        let Ok(below) = mount.point.strip_prefix(real) else {
            continue;
        };
        if below.as_os_str().is_empty() {
            continue;
        }
        let Some((_, outer)) = above
            .iter()
            .rev()
            .find(|(prefix, _)| below.starts_with(prefix))
        else {
            continue;
        };
        let how = OpenHow::new()
            .flags(OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_BENEATH);
        let Ok(fd) = openat2(export.root(), below, how) else {
            continue;
        };
        if let Ok(Some(adopted)) = exports.take_in(outer, fd.as_fd(), Log::Later) {
            above.push((below.to_owned(), adopted));
        }
    }
}

/// The same in every run for the same directory of the same file system below the same export.
fn id_of_mounted(outer: ExportId, file_system: FileSystemId, root: &KernelHandle) -> ExportId {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&outer.0.to_be_bytes()).update(&file_system.0);
    hasher
        .update(&root.kind().to_be_bytes())
        .update(root.bytes());
    let mut first = [0; 4];
    hasher.finalize_xof().fill(&mut first);
    ExportId(u32::from_be_bytes(first))
}

impl Exports {
    /// What is mounted below exports with `crossmnt` and is not exported with them, each in words
    /// that say what to do.
    pub fn not_exported(&self) -> Vec<String> {
        let mut words: Vec<_> = self.table().refused.values().cloned().collect();
        words.sort_unstable();
        words
    }

    /// The export whose root is what is mounted in `outer` and open as `fd`: one of the settings,
    /// or one that `crossmnt` of `outer` makes. `None` where it is not exported. What is not
    /// exported, or was found before, is not asked for anything: it may not answer.
    ///
    /// # Errors
    /// [`FileError::Absent`]: another thread is making an export of it.
    pub(crate) fn mounted_in(
        &self,
        outer: &Arc<Export>,
        fd: BorrowedFd<'_>,
    ) -> Result<Option<Arc<Export>>, FileError> {
        self.take_in(outer, fd, Log::Now)
    }

    fn take_in(
        &self,
        outer: &Arc<Export>,
        fd: BorrowedFd<'_>,
        log: Log,
    ) -> Result<Option<Arc<Export>>, FileError> {
        let Ok(stat) = sys::statx_known(fd, PLACE_MASK) else {
            return Ok(None);
        };
        let place = Place::of(&stat);
        // One that a reload has removed meanwhile takes nothing in, and one that it has changed
        // does so with its new settings.
        let now = self.export(outer.id);
        let Some(outer) = &now.filter(|now| now.root_place == outer.root_place) else {
            return Ok(None);
        };
        let known = |export: &&Arc<Export>| {
            export.root_place == place && export.outer.as_ref().is_some_and(|of| of.id == outer.id)
        };
        if let Some(export) = self.table().by_id.values().find(known) {
            return Ok(Some(export.clone()));
        }
        if !outer.settings.crossmnt {
            return Ok(None);
        }
        // One that does not answer takes one thread.
        if !self.adopted().insert(place) {
            return Err(FileError::Absent);
        }
        let export = self.adopt_mounted(outer, fd, place, log);
        self.adopted().remove(&place);
        Ok(export)
    }

    /// The mounts of which threads are making exports.
    fn adopted(&self) -> MutexGuard<'_, HashSet<Place>> {
        self.adopted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn adopt_mounted(
        &self,
        outer: &Arc<Export>,
        fd: BorrowedFd<'_>,
        place: Place,
        log: Log,
    ) -> Option<Arc<Export>> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let root = open(FdPath::new(fd).as_c_str(), flags, Mode::empty()).ok()?;
        let settings = outer.settings.clone();
        let id = |file_system, root: &_| id_of_mounted(outer.id, file_system, root);
        match Export::of_root(root, settings, id, Some(outer.clone()), &self.writers) {
            Ok(export) => self.adopt(export, log),
            Err(error) => {
                let at = found_at(fd).unwrap_or_else(|| outer.settings.path.clone());
                let why = why_not_with(&outer.settings, &error);
                self.table_to_change()
                    .refuse(place, (&at, &outer.settings), &why, log);
                None
            }
        }
    }

    /// A file system that was unmounted and mounted again takes the place of what it was. Where the
    /// same directory is mounted once more, handles lead to the mount that can only be read, as
    /// they do not tell by which one a file was found: the other has an id beside it.
    fn adopt(&self, mut export: Export, log: Log) -> Option<Arc<Export>> {
        let key = self.key.folder();
        let holds_key = key.filter(|folder| is_in_mounted(export.root(), folder));
        let mut table = self.table_to_change();
        let by_id = &mut table.by_id;
        let outer = export.outer.as_ref()?;
        by_id.get(&outer.id).filter(|now| Arc::ptr_eq(now, outer))?;
        if rival(by_id, &export).is_some_and(|held| held.is_read_only() && !export.is_read_only()) {
            export.id = id_beside(export.id);
        }
        let problem = if let Some(folder) = holds_key {
            Some(format!(
                "the state folder {} is in it, with the key of file handles; move one of them",
                folder.display()
            ))
        } else if by_id.get(&export.id).is_some_and(|held| !held.is_adopted()) {
            Some(format!("its id is another export's{BY_ITSELF}"))
        } else if by_id.len() >= EXPORTS && !by_id.contains_key(&export.id) {
            Some(format!("there are {EXPORTS} exports already; export fewer"))
        } else {
            let held = rival(by_id, &export);
            let held = held.filter(|held| held.is_read_only() || !export.is_read_only());
            held.map(|held| {
                let at = held.found_at();
                format!("the same directory is, at {}{BY_ITSELF}", at.display())
            })
        };
        if let Some(problem) = problem {
            let (at, place) = (export.found_at(), export.root_place);
            table.refuse(place, (&at, &export.settings), &problem, log);
            return None;
        }
        let export = Arc::new(export);
        by_id.insert(export.id, export.clone());
        Some(export)
    }

    /// Forgets what `crossmnt` has made an export, so that it can be unmounted; it comes back when
    /// a client looks it up.
    pub fn release_mounted(&self) {
        let mut table = self.table_to_change();
        table.by_id.retain(|_, export| !export.is_adopted());
    }
}
