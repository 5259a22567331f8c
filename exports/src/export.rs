//! Exported directories: opened once by path, and never looked for by it again.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use nix::fcntl::{OFlag, open};
use nix::libc;
use nix::sys::stat::Mode;
use nix::sys::statfs::{
    BTRFS_SUPER_MAGIC, EXT4_SUPER_MAGIC, FsType, TMPFS_MAGIC, XFS_SUPER_MAGIC, fstatfs,
};

use crate::clients::{ClientRules, Refused};
use crate::direct;
use crate::error::{ExportError, FileError, StaleReason};
use crate::handle::{
    Claim, ExportId, FileSystemId, Handle, KernelHandle, PSEUDO_FILE_SYSTEM, Presented, PseudoId,
};
use crate::identity::{Caller, Credentials};
use crate::key::{Key, OWNER_BYTES};
use crate::limits::EXPORTS;
use crate::mountinfo::mounts;
use crate::name::NameRule;
use crate::pseudo::{NestedExport, PseudoTree};
use crate::still::{self, Calls};
use crate::sys::{self, NoHandle};
use crate::uuid::file_system_id;
use crate::writers::Writers;

/// A directory to export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportSettings {
    /// Its absolute path on this machine.
    pub path: PathBuf,
    /// Its path for clients, such as `/projects`.
    pub client_path: String,
    /// Its id in handles, where the one made of `client_path` is not wanted. It has to stay.
    pub id: Option<ExportId>,
    /// The id of its file system, where that has no UUID, or another one after each mount.
    pub file_system: Option<FileSystemId>,
    /// Which clients may use it.
    pub clients: ClientRules,
    /// How names are read.
    pub names: NameRule,
    /// Whether file systems mounted below it are exported as well, with these settings.
    pub crossmnt: bool,
    /// Whether data goes past the page cache, where it is aligned.
    pub direct: bool,
    /// Whether it is there only where something is mounted at `path`.
    pub mount_point: bool,
}

impl ExportSettings {
    /// Whether what is to be mounted at `path` is not: another file system would be exported, the
    /// one that it is mounted on.
    ///
    /// # Errors
    /// What is mounted cannot be read, or `path` does not lead anywhere.
    pub fn lacks_mount(&self) -> io::Result<bool> {
        if !self.mount_point {
            return Ok(false);
        }
        let path = self.path.canonicalize()?;
        Ok(mounts()?.iter().all(|mount| mount.point != path))
    }
}

/// What is known of an open file from `statx(2)` that tells it from every other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    pub(crate) mount: u64,
    pub(crate) device: (u32, u32),
    pub(crate) inode: u64,
}

const MOUNT_ID: libc::c_uint = libc::STATX_MNT_ID | libc::STATX_MNT_ID_UNIQUE;

/// What [`Place`] and the file's type are read from.
pub(crate) const PLACE_MASK: libc::c_uint = MOUNT_ID | libc::STATX_INO | libc::STATX_TYPE;

impl Place {
    pub(crate) fn of(stat: &libc::statx) -> Self {
        Self {
            mount: stat.stx_mnt_id,
            device: (stat.stx_dev_major, stat.stx_dev_minor),
            inode: stat.stx_ino,
        }
    }
}

/// An exported directory, and what is mounted below it no more than its settings say.
#[derive(Debug)]
pub struct Export {
    pub(crate) id: ExportId,
    root: OwnedFd,
    pub(crate) root_place: Place,
    root_handle: KernelHandle,
    /// `..` of the root is another mount: the kernel itself does not go there.
    root_is_mounted: bool,
    /// No entry of a directory changes without this kernel.
    tells_changes: bool,
    file_system: FileSystemId,
    /// Its files have no disk, so that nothing is waited for to read one.
    is_in_memory: bool,
    pub(crate) settings: Arc<ExportSettings>,
    pub(crate) outer: Option<Arc<Self>>,
    writers: Arc<Writers>,
    /// Number of the directory that it is mounted on, once it was looked for.
    mounted_on: OnceLock<Option<u64>>,
    /// What is known of calls of it that hang.
    calls: Calls,
}

/// File systems whose directories nothing but this kernel changes, and show each change behind a
/// look, where the kernel has fine times ([`sys::has_fine_times`]). Others may have them changed by
/// another machine, or below what is mounted here (FUSE, overlayfs). A tmpfs gives a directory the
/// time of the file that is removed from it, which may be the time that it has already: what a
/// program removed behind a look is not seen then.
const LOCAL: [FsType; 3] = [BTRFS_SUPER_MAGIC, EXT4_SUPER_MAGIC, XFS_SUPER_MAGIC];

impl Export {
    fn open_path(
        settings: Arc<ExportSettings>,
        id: ExportId,
        writers: &Arc<Writers>,
    ) -> Result<Self, ExportError> {
        let path = settings.path.clone();
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let root = open(&path, flags, Mode::empty()).map_err(|errno| ExportError::Open {
            path,
            doing: "opening it",
            errno,
        })?;
        Self::of_root(root, settings, |_, _| id, None, writers)
    }

    /// `id` is chosen with what is under the root, where that is not known before.
    pub(crate) fn of_root(
        root: OwnedFd,
        settings: Arc<ExportSettings>,
        id: impl FnOnce(FileSystemId, &KernelHandle) -> ExportId,
        outer: Option<Arc<Self>>,
        writers: &Arc<Writers>,
    ) -> Result<Self, ExportError> {
        let path = || settings.path.clone();
        let root_handle = sys::kernel_handle(root.as_fd()).map_err(|reason| match reason {
            NoHandle::Kernel(errno) => ExportError::NoHandles {
                path: path(),
                errno,
            },
            NoHandle::Large { bytes, kind } => ExportError::LargeHandles {
                path: path(),
                bytes,
                kind,
            },
        })?;
        let open_failed = |doing| {
            let path = path();
            move |errno| ExportError::Open { path, doing, errno }
        };
        // Some file systems give handles that they do not take back.
        sys::open_by_handle(root.as_fd(), &root_handle, libc::O_PATH).map_err(open_failed(
            "opening it by its handle (as root, with CAP_DAC_READ_SEARCH)",
        ))?;
        let stat = sys::statx(root.as_fd(), PLACE_MASK).map_err(open_failed("looking at it"))?;
        if settings.direct && !direct::is_possible(&root) {
            return Err(ExportError::NoDirect { path: path() });
        }
        // The one set by hand is for the file system of the export, not for those below it.
        let by_hand = if outer.is_none() {
            settings.file_system
        } else {
            None
        };
        let file_system = by_hand
            .or_else(|| file_system_id(root.as_fd()))
            .ok_or_else(|| ExportError::NoFileSystemId { path: path() })?;
        let kind = fstatfs(&root).map_err(open_failed("looking at its file system"))?;
        let is_mount = u64::from(libc::STATX_ATTR_MOUNT_ROOT.unsigned_abs());
        Ok(Self {
            id: id(file_system, &root_handle),
            root_place: Place::of(&stat),
            is_in_memory: kind.filesystem_type() == TMPFS_MAGIC,
            root_is_mounted: stat.stx_attributes & is_mount != 0,
            tells_changes: LOCAL.contains(&kind.filesystem_type()) && sys::has_fine_times(),
            root,
            root_handle,
            file_system,
            settings,
            outer,
            writers: writers.clone(),
            mounted_on: OnceLock::new(),
            calls: Calls::default(),
        })
    }

    /// Its id in handles.
    pub const fn id(&self) -> ExportId {
        self.id
    }

    /// The id of its file system: `fsid` of attributes, as two numbers or one.
    pub const fn file_system(&self) -> FileSystemId {
        self.file_system
    }

    /// What it was opened with.
    pub fn settings(&self) -> &ExportSettings {
        &self.settings
    }

    /// The export that it is mounted in, for one that is reached through another.
    pub const fn outer(&self) -> Option<&Arc<Self>> {
        self.outer.as_ref()
    }

    /// Whom operations run as for a caller on a client.
    ///
    /// # Errors
    /// Where the client may not use the export.
    pub fn caller(
        &self,
        peer: SocketAddr,
        credentials: &Credentials<'_>,
    ) -> Result<Caller, Refused> {
        let rule = self.settings.clients.for_client(peer)?;
        Ok(Caller::new(self.id, rule, credentials))
    }

    pub(crate) const fn writers(&self) -> &Arc<Writers> {
        &self.writers
    }

    pub(crate) fn mounted_on(&self, find: impl FnOnce() -> Option<u64>) -> Option<u64> {
        *self.mounted_on.get_or_init(find)
    }

    /// What is known of calls of it that hang.
    pub(crate) const fn calls(&self) -> &Calls {
        &self.calls
    }

    pub(crate) fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    pub(crate) const fn is_in_memory(&self) -> bool {
        self.is_in_memory
    }

    pub(crate) const fn root_place(&self) -> Place {
        self.root_place
    }

    pub(crate) const fn root_handle(&self) -> &KernelHandle {
        &self.root_handle
    }

    /// Whether this kernel knows of every change of a directory, and shows it in its attributes.
    pub(crate) const fn tells_changes(&self) -> bool {
        self.tells_changes
    }

    pub(crate) const fn root_is_mounted(&self) -> bool {
        self.root_is_mounted
    }
}

/// What a handle stands for.
#[derive(Clone, Debug)]
pub enum Found {
    /// A directory of the pseudo file system.
    Pseudo(PseudoId),
    /// A file: its export, and the handle that the kernel knows it by.
    File(Arc<Export>, KernelHandle),
}

/// All exports, and the directories that lead to them.
#[derive(Debug)]
pub struct Exports {
    pub(crate) key: Key,
    pub(crate) table: RwLock<Table>,
    pub(crate) writers: Arc<Writers>,
    /// Mounts below exports of which threads are making exports.
    pub(crate) adopted: Mutex<HashSet<Place>>,
}

/// All exports there are: what a reload puts in the place of what was there, at once.
#[derive(Debug)]
pub(crate) struct Table {
    tree: Arc<PseudoTree>,
    /// Those of the settings, and those mounted below them with `crossmnt`.
    pub(crate) by_id: HashMap<ExportId, Arc<Export>>,
    pub(crate) absent: Absent,
    /// What is mounted below them and is not exported, in words.
    pub(crate) refused: HashMap<Place, String>,
}

/// Exports that were not opened, as their file systems do not answer.
#[derive(Debug, Default)]
pub(crate) struct Absent {
    ids: HashSet<ExportId>,
    /// One of them has more exports mounted in it, whose ids are not known.
    crossmnt: bool,
}

impl Absent {
    /// Whether an export that is not open is one of them, or may be.
    pub(crate) fn has(&self, id: ExportId) -> bool {
        self.crossmnt || self.ids.contains(&id)
    }
}

impl ExportSettings {
    /// What the handles of its files begin with.
    pub fn handle_id(&self) -> ExportId {
        self.id.unwrap_or_else(|| id_of_path(&self.client_path))
    }
}

fn id_of_path(client_path: &str) -> ExportId {
    let digest = blake3::hash(client_path.as_bytes());
    let first = digest.as_bytes().first_chunk().copied().unwrap_or_default();
    ExportId(u32::from_be_bytes(first))
}

impl Exports {
    /// Opens the directories.
    ///
    /// # Errors
    /// Where one cannot be exported: then none is.
    pub fn open(key: Key, exports: Vec<ExportSettings>) -> Result<Self, ExportError> {
        Self::open_but(key, exports, Vec::new())
    }

    /// As [`open`](Self::open), but for the `absent` ones, whose file systems do not answer: what
    /// leads to them is [`FileError::Absent`] and not stale, so that clients wait, until
    /// [`prepare`](Self::prepare) opens them.
    ///
    /// # Errors
    /// As there.
    pub fn open_but(
        key: Key,
        exports: Vec<ExportSettings>,
        absent: Vec<ExportSettings>,
    ) -> Result<Self, ExportError> {
        Self::open_beside(key, exports, absent, Arc::default(), &HashMap::new())
    }

    /// With what is `open` already, where it has the same settings.
    pub(crate) fn open_beside(
        key: Key,
        exports: Vec<ExportSettings>,
        absent: Vec<ExportSettings>,
        writers: Arc<Writers>,
        open: &HashMap<ExportId, Arc<Export>>,
    ) -> Result<Self, ExportError> {
        let count = exports.len().saturating_add(absent.len());
        if count > EXPORTS {
            return Err(ExportError::TooMany(count));
        }
        let mut settings = HashMap::new();
        let mut missing = Absent::default();
        let present = exports.len();
        for (index, export) in exports.into_iter().chain(absent).enumerate() {
            let id = export.handle_id();
            if index >= present {
                missing.ids.insert(id);
                missing.crossmnt |= export.crossmnt;
            }
            let second = export.client_path.clone();
            if let Some(first) = settings.insert(id, Arc::new(export)) {
                let first = first.client_path.clone();
                return Err(ExportError::SameId {
                    first,
                    second,
                    id: id.0,
                });
            }
        }
        let paths: Vec<_> = settings
            .iter()
            .map(|(id, of)| (&*of.client_path, *id))
            .collect();
        let (tree, nested) = PseudoTree::new(&paths)?;
        let mut by_id = HashMap::new();
        // One below another one, where that is open as well.
        let is_open = |id, settings: &ExportSettings, outer: Option<&Arc<Export>>| {
            let open = open.get(&id).filter(|open| !open.is_adopted());
            open.filter(|open| *open.settings == *settings)
                .filter(|open| open.outer.as_ref().map(Arc::as_ptr) == outer.map(Arc::as_ptr))
                .cloned()
        };
        for (&id, settings) in &settings {
            let is_nested = nested.iter().any(|nested| nested.inner == id);
            if !is_nested && !missing.ids.contains(&id) {
                let export = match is_open(id, settings, None) {
                    Some(open) => open,
                    None => Arc::new(Export::open_path(settings.clone(), id, &writers)?),
                };
                by_id.insert(id, export);
            }
        }
        // Their outer ones come before them: the tree has put them in order of their paths.
        for NestedExport { inner, outer } in nested {
            let outer = by_id.get(&outer).filter(|_| !missing.ids.contains(&inner));
            let (Some(of), Some(outer)) = (settings.get(&inner), outer) else {
                missing.ids.insert(inner);
                continue;
            };
            let outer = outer.clone();
            if let Some(export) = is_open(inner, of, Some(&outer)) {
                by_id.insert(inner, export);
                continue;
            }
            let mut export = Export::open_path(of.clone(), inner, &writers)?;
            if !is_mounted_in(of, &outer.settings) || !export.root_is_mounted {
                return Err(ExportError::NotMountedThere {
                    inner: of.client_path.clone(),
                    outer: outer.settings.client_path.clone(),
                    path: of.path.clone(),
                });
            }
            export.outer = Some(outer);
            by_id.insert(inner, Arc::new(export));
        }
        let exports = Self {
            key,
            table: RwLock::new(Table {
                tree: Arc::new(tree),
                by_id,
                absent: missing,
                refused: HashMap::new(),
            }),
            writers,
            adopted: Mutex::default(),
        };
        for export in exports.all() {
            let was = open.get(&export.id);
            if was.is_some_and(|was| Arc::ptr_eq(was, &export)) {
                let below = open.values().filter(|below| {
                    below.is_adopted() && Arc::ptr_eq(&below.settings, &export.settings)
                });
                let below = below.map(|below| (below.id, below.clone()));
                exports.table_to_change().by_id.extend(below);
            } else if export.settings.crossmnt {
                crate::mounts::adopt_below(&exports, &export);
            }
        }
        Ok(exports)
    }

    pub(crate) fn table(&self) -> RwLockReadGuard<'_, Table> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn table_to_change(&self) -> RwLockWriteGuard<'_, Table> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The pseudo file system, as it is now.
    pub fn tree(&self) -> Arc<PseudoTree> {
        self.table().tree.clone()
    }

    /// Which files hosts write over NVMe, and which clients do.
    pub const fn writers(&self) -> &Arc<Writers> {
        &self.writers
    }

    /// The export with this id.
    pub fn export(&self, id: ExportId) -> Option<Arc<Export>> {
        self.table().by_id.get(&id).cloned()
    }

    /// As [`export`](Self::export).
    ///
    /// # Errors
    /// [`FileError::Absent`] of one that is not open yet, and [`FileError::Stale`] of any other.
    pub fn opened(&self, id: ExportId) -> Result<Arc<Export>, FileError> {
        let table = self.table();
        let export = table.by_id.get(&id).cloned();
        export.ok_or_else(|| match table.absent.has(id) {
            true => FileError::Absent,
            false => FileError::Stale(StaleReason::NoSuchExport(id.0)),
        })
    }

    /// All of them, in no order.
    pub fn all(&self) -> Vec<Arc<Export>> {
        self.table().by_id.values().cloned().collect()
    }

    /// The export whose path for clients it is: what NFSv3's MOUNT asks for.
    pub fn by_client_path(&self, path: &str) -> Option<Arc<Export>> {
        self.all()
            .into_iter()
            .find(|export| export.settings.client_path == path && !export.is_adopted())
    }

    /// What a server of these exports may call itself ([`Key::owner`]).
    pub fn server_owner(&self) -> [u8; OWNER_BYTES] {
        self.key.owner()
    }

    /// What the bytes of a client stand for. Nothing is opened yet.
    ///
    /// # Errors
    /// Where they are not a handle that was given out for what is exported now.
    pub fn find(&self, handle: &[u8]) -> Result<Found, FileError> {
        let presented = Presented::read(handle)?;
        match presented.claim() {
            Claim::Pseudo(id) => {
                if !presented.is_genuine(&self.key, PSEUDO_FILE_SYSTEM) {
                    return Err(FileError::Stale(StaleReason::Mac));
                }
                let known = self.table().tree.contains(id).then_some(Found::Pseudo(id));
                known.ok_or(FileError::Stale(StaleReason::NoSuchDirectory))
            }
            Claim::File(id, kernel) => {
                let export = self.opened(id)?;
                if !presented.is_genuine(&self.key, export.file_system) {
                    return Err(FileError::Stale(StaleReason::Mac));
                }
                still::enter(&export)?;
                Ok(Found::File(export, kernel))
            }
        }
    }

    /// The handle of a directory of the pseudo file system.
    pub fn pseudo_handle(&self, directory: PseudoId) -> Handle {
        Handle::of_pseudo(&self.key, directory)
    }

    /// The handle of what the kernel knows by `kernel` in an export.
    pub fn file_handle(&self, export: &Export, kernel: &KernelHandle) -> Handle {
        Handle::of_file(&self.key, export.file_system, export.id, kernel)
    }
}

impl Export {
    /// Whether `crossmnt` made it, and no settings of its own.
    pub(crate) fn is_adopted(&self) -> bool {
        let outer = self.outer.as_ref();
        outer.is_some_and(|outer| Arc::ptr_eq(&outer.settings, &self.settings))
    }
}

/// Whether the inner path leads as much further on this machine as it does for clients.
fn is_mounted_in(inner: &ExportSettings, outer: &ExportSettings) -> bool {
    let here = inner.path.strip_prefix(&outer.path);
    let there = Path::new(&inner.client_path).strip_prefix(&outer.client_path);
    matches!((here, there), (Ok(here), Ok(there)) if here == there)
}
