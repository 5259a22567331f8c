//! A namespace is written by one attachment of a machine at a time.
//!
//! Two file systems' caches over one volume destroy it, and each mount of it is one. So what may
//! write (a disk, an NBD export, a command) holds a locked file while it has the namespace, in a
//! folder where every user of the machine meets; the kernel lets go of the lock when the process
//! ends, however it does. The file says what holds it. An exclusive claim also holds a name that
//! does not go with the file (`name.rs`). A claim is not a reservation: other machines do not see
//! it.

use std::ffi::OsStr;
use std::fs::{self, File, TryLockError};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use capstan_nvme_proto::text::Shown;
use nix::libc;
use nix::unistd::getuid;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::front_ends::disk::loop_device::{has_file, is_configured};
use crate::front_ends::disk::loop_process::{LoopProcessError, look};
use crate::front_ends::disk::mounts::{Elsewhere, mount_elsewhere, mounts_of};
use crate::front_ends::disk::record::{RUN_DIR_VARIABLE, VolumeDir, run_dir};
use crate::front_ends::disk::serving::{FOLDER_OPTION, Process};
use crate::host::NamespaceInfo;
use crate::shortage::shortage;
use crate::variables;
use crate::words::word_of;

mod name;

use name::{Name, Named};

/// Names the folder of the claims.
pub(crate) const FOLDER_VARIABLE: &str = "CAPSTAN_CLAIM_DIR";
/// Folders where every user may make files and nobody may remove another's. The first is the usual
/// one; some systems leave it to root.
const FOLDERS: [&str; 2] = ["/run/lock", "/dev/shm"];
/// Everybody may write; only owners may remove.
const SHARED_FOLDER_MODE: u32 = 0o1777;
/// The next process must be able to say in it that the claim is its own.
const FILE_MODE: u32 = 0o666;
/// Longest description of a holder, in bytes.
const HOLDER_BYTES_MAX: u64 = 16 << 10;
/// How long a process may take to end after its disk is gone: an orderly shutdown of the
/// association has five seconds.
const END_PATIENCE: Duration = Duration::from_secs(6);
/// How long the kernel may take to close the files of a process that was killed.
const CLOSE_PATIENCE: Duration = Duration::from_secs(2);
/// Between two looks at one that ends.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Times the file may be removed by one that lets go between opening and locking it.
const ATTEMPTS_MAX: u32 = 64;

/// What has a namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// In words, as in "namespace 1 is …": "written to by `capstan write`".
    pub what: String,
    /// The process.
    pub process: Process,
    /// Its user.
    pub user: u32,
    /// Address and port of the target.
    pub target: String,
    /// The disk, of one.
    pub disk: Option<HolderDisk>,
}

/// A disk that has a namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HolderDisk {
    /// Its device.
    pub device: PathBuf,
    /// The name the loop device was configured with.
    pub loop_name: String,
    /// The folder of the volume.
    pub folder: PathBuf,
}

/// How a namespace is claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// Nothing else of this machine may write.
    Exclusive,
    /// What uses it is made for that. Nothing is refused but an exclusive claim that comes later.
    Shared,
}

/// A namespace is not claimed.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// Something else has it.
    #[error("namespace {nsid} of {subnqn} is in use on this machine: {held}")]
    Held {
        /// The namespace.
        nsid: u32,
        /// Its subsystem.
        subnqn: String,
        /// What has it, and how to end that, in words.
        held: String,
    },
    /// Another user keeps the file from this one.
    #[error("{} of user {user} has mode {mode:o}, expected {FILE_MODE:o}, with which every user of this machine can claim: as that user or root, end what has it open (see fuser) and remove it", .path.display())]
    Closed {
        /// The file.
        path: PathBuf,
        /// Its owner.
        user: u32,
        /// Its mode.
        mode: u32,
    },
    /// The file cannot be used.
    #[error("{}: {source}; {}: give one with {FOLDER_VARIABLE}", .path.display(), expected(.source))]
    System {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// A namespace that is claimed, until it is dropped or the process ends.
#[derive(Debug)]
pub struct Claim {
    file: File,
    path: PathBuf,
    holder: Holder,
    /// Of an exclusive claim.
    _name: Option<Name>,
}

/// What there is to be instead of `error`.
fn expected(error: &io::Error) -> String {
    const FOLDER: &str =
        "a folder where every user of this machine can make files, like /run/lock or /dev/shm";
    shortage(error).map_or_else(
        || format!("expected {FOLDER}"),
        |shortage| format!("{shortage}, or use {FOLDER}"),
    )
}

impl Holder {
    /// This process, which is `what`, as in "namespace 1 is …".
    ///
    /// # Errors
    /// `/proc` is not there.
    pub fn this(what: impl Into<String>, traddr: &str, trsvcid: u16) -> io::Result<Self> {
        Ok(Self {
            what: what.into(),
            process: Process::this()?,
            user: getuid().as_raw(),
            target: format!("{traddr} port {trsvcid}"),
            disk: None,
        })
    }

    /// What has a claim that is held, and how to end it; `None` when the file does not say it yet.
    fn held(&self) -> Option<String> {
        let disk = self.disk.as_ref();
        let words = disk.map_or_else(
            || (String::new(), format!("kill {}", self.process.pid)),
            HolderDisk::in_words,
        );
        self.process.is_alive().then(|| self.in_words(words, ""))
    }

    /// What is left of one whose claim is not held any more: its disk, if that is there.
    fn left(&self) -> Option<String> {
        let disk = self.disk.as_ref().filter(|disk| disk.is_there())?;
        Some(self.in_words(
            disk.in_words(),
            ", which has ended and left its disk behind",
        ))
    }

    /// How long it may take to let go: it has ended, or has had a disk, which is gone.
    fn patience(&self) -> Duration {
        if !self.process.is_alive() {
            return CLOSE_PATIENCE;
        }
        let is_ending = self.disk.as_ref().is_some_and(|disk| !disk.is_there());
        if is_ending {
            END_PATIENCE
        } else {
            Duration::ZERO
        }
    }

    fn in_words(&self, (state, end): (String, String), left: &str) -> String {
        let Self {
            what,
            process,
            user,
            target,
            ..
        } = self;
        let pid = process.pid;
        let by = if *user == getuid().as_raw() {
            format!("process {pid}, through {target}")
        } else {
            format!("process {pid} of user {user}, through {target}")
        };
        let words = format!(
            "{what}{state} ({by}{left}). A file system that two attachments write is destroyed: end \
             that first ({end}), only read from it, with {}, or, if what uses the volume is made for it \
             (a clustered file system), say --shared",
            crate::names::Name::ReadOnly
        );
        // It may be the text of another user.
        Shown(&words).to_string()
    }
}

impl HolderDisk {
    /// The disk that a process serves, by its command line (proc_pid_cmdline(5)).
    fn of_process(pid: i32) -> Option<Self> {
        let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let mut words = line.split(|&byte| byte == 0);
        words.find(|&word| word == FOLDER_OPTION.as_bytes())?;
        let folder = PathBuf::from(OsStr::from_bytes(words.next()?));
        let record = VolumeDir::at(folder.clone()).record().ok()??;
        let is_it = record.process.pid == pid && record.has_disk();
        is_it.then_some(Self {
            device: record.device,
            loop_name: record.loop_name,
            folder,
        })
    }

    /// Whether the device still is this disk.
    fn is_there(&self) -> bool {
        let look = || match look(&self.device) {
            Ok(state) => state.name.as_ref() == Some(&self.loop_name),
            // Its target does not answer, so it is one.
            Err(LoopProcessError::Late { .. }) => true,
            // Another user's cannot be opened: one of a volume then is taken for this one.
            Err(_) => has_file(&self.device, &self.loop_name),
        };
        is_configured(&self.device) && look()
    }

    /// Whether no command of `capstan` finds it any more, as after an end by force: its record is
    /// gone, or the folder is another volume's by now. Another user's folder cannot be looked into.
    fn is_given_up(&self) -> bool {
        match VolumeDir::at(self.folder.clone()).record() {
            Ok(record) => record.is_none_or(|record| record.loop_name != self.loop_name),
            Err(_) => matches!(self.folder.try_exists(), Ok(false)),
        }
    }

    /// Where it is mounted, and what ends it.
    fn in_words(&self) -> (String, String) {
        // The folder of the volume is in the one that its user's commands must look into.
        let of = self.folder.parent().filter(|of| *of != run_dir());
        let with = of.map_or_else(String::new, |of| {
            format!("{RUN_DIR_VARIABLE}={} ", word_of(of))
        });
        let device = self.device.display();
        let is_given_up = self.is_given_up();
        let mounts = mounts_of(&self.device).unwrap_or_default();
        if let Some(mount) = mounts.first() {
            let (at, point) = (mount.mount_point.display(), word_of(&mount.mount_point));
            let end = match is_given_up {
                true => format!("umount {point}"),
                false => format!("{with}capstan umount {point}"),
            };
            // A disk with partitions has room for other mounts.
            let source = mount.source.to_str().unwrap_or_default();
            let number = source.strip_prefix(&format!("{device}p"));
            let others = match number.is_some_and(|number| number.parse::<u32>().is_ok()) {
                true => format!(" (`mount {device}pN FOLDER` mounts another partition of it)"),
                false => String::new(),
            };
            return (format!(" as {device}, mounted at {at}{others}"), end);
        }
        let mut end = match is_given_up {
            true => format!("losetup -d {device}"),
            false => format!("{with}capstan detach {device}"),
        };
        let mut elsewhere = String::new();
        if let Some(Elsewhere { mount, pid, name }) = mount_elsewhere(&self.device) {
            let at = mount.mount_point.display();
            elsewhere = format!(", mounted at {at} in the mount namespace of {name} (pid {pid})");
            if is_given_up {
                let point = word_of(&mount.mount_point);
                end = format!("nsenter --target {pid} --mount umount {point}");
            }
        }
        (format!(" as {device}{elsewhere}"), end)
    }
}

impl Claim {
    /// Claims a namespace of `subnqn` for this process.
    ///
    /// # Errors
    /// [`ClaimError`].
    pub fn new(
        subnqn: &str,
        namespace: &NamespaceInfo,
        sharing: Sharing,
        holder: Holder,
    ) -> Result<Self, ClaimError> {
        Self::new_in(&folder(), subnqn, namespace, sharing, holder)
    }

    fn new_in(
        folder: &Path,
        subnqn: &str,
        namespace: &NamespaceInfo,
        sharing: Sharing,
        holder: Holder,
    ) -> Result<Self, ClaimError> {
        let of = format!("{subnqn}\n{}", identity(namespace));
        let name = Uuid::new_v5(&Uuid::NAMESPACE_OID, of.as_bytes());
        let file = |kind| folder.join(format!("capstan-{name}.{kind}"));
        let held = |held| ClaimError::Held {
            nsid: namespace.nsid,
            subnqn: subnqn.to_owned(),
            held,
        };
        let (path, shared) = (file("lock"), file("shared"));
        let path = match sharing {
            Sharing::Exclusive => path,
            Sharing::Shared => shared.clone(),
        };
        let start = Instant::now();
        let file = loop {
            match lock(&path, sharing)? {
                Locked::Yes(file) => break file,
                Locked::No(file) => match read(&file) {
                    Some(holder) if start.elapsed() < holder.patience() => {
                        thread::sleep(LOOK_EVERY);
                    }
                    holder => return Err(held(words(holder, &path))),
                },
            }
        };
        // What has ended may have left a disk, with a file system that still is mounted.
        if sharing == Sharing::Exclusive
            && let Some(left) = read(&file).and_then(|holder| holder.left())
        {
            return Err(held(left));
        }
        let name = match sharing {
            Sharing::Exclusive => match take_name(folder, &of, &path)? {
                Named::Yes(name) => Some(name),
                Named::No(pid) => {
                    // Nobody else has this one: it was made here, in place of another's.
                    let _ = fs::remove_file(&path);
                    return Err(held(unseen(pid, &path)));
                }
            },
            Sharing::Shared => None,
        };
        let claim = Self {
            file,
            path,
            holder,
            _name: name,
        };
        if sharing == Sharing::Exclusive && shared.exists() {
            match lock(&shared, Sharing::Exclusive)? {
                // Left by one that has ended.
                Locked::Yes(_) => {
                    let _ = fs::remove_file(&shared);
                }
                Locked::No(file) => return Err(held(words(read(&file), &shared))),
            }
        }
        claim.write().map_err(|source| ClaimError::System {
            path: claim.path.clone(),
            source,
        })?;
        Ok(claim)
    }

    /// Says which disk has the namespace.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn set_disk(&mut self, disk: HolderDisk) -> io::Result<()> {
        self.holder.disk = Some(disk);
        self.write()
    }

    fn write(&self) -> io::Result<()> {
        let text = serde_json::to_vec_pretty(&self.holder)?;
        self.file.set_len(0)?;
        self.file.write_all_at(&text, 0)
    }

    /// Removes the file, as a process does that is about to end with its claim. The name of an
    /// exclusive claim keeps others away until then.
    pub fn remove_file(&self) {
        // Others may share it; the last one removes the file. What stays says nothing wrong: its
        // process has ended.
        if self.file.try_lock().is_ok() && is_at(&self.file, &self.path).unwrap_or(true) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.remove_file();
    }
}

/// The name beside the file at `path`, for the claim of `of` in `folder`. One that has just ended
/// may keep it for a moment.
fn take_name(folder: &Path, of: &str, path: &Path) -> Result<Named, ClaimError> {
    let folder = fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned());
    let text = format!("{}\n{of}", folder.display());
    let claim = Uuid::new_v5(&Uuid::NAMESPACE_OID, text.as_bytes());
    let start = Instant::now();
    loop {
        let named = Name::take(&claim).map_err(|source| ClaimError::System {
            path: path.to_owned(),
            source,
        })?;
        if matches!(named, Named::Yes(_)) || start.elapsed() >= CLOSE_PATIENCE {
            return Ok(named);
        }
        thread::sleep(LOOK_EVERY);
    }
}

/// What has a claim whose file was removed, and how to end that. Of a disk its process tells.
fn unseen(pid: Option<i32>, path: &Path) -> String {
    let path = path.display();
    let disk = pid.and_then(HolderDisk::of_process);
    let by = pid.map_or_else(
        || "a process that cannot be seen from here (of another container)".to_owned(),
        |pid| format!("process {pid} (see ps -fp {pid})"),
    );
    let (state, end) = disk.map_or_else(
        || (String::new(), "end that process first".to_owned()),
        |disk| {
            let (state, end) = disk.in_words();
            (state, format!("end that first: {end}"))
        },
    );
    let words = format!("claimed by {by}{state}, whose file {path} was removed meanwhile; {end}");
    Shown(&words).to_string()
}

enum Locked {
    Yes(File),
    /// By another one, which the file describes.
    No(File),
}

/// The file, locked; made if need be.
fn lock(path: &Path, sharing: Sharing) -> Result<Locked, ClaimError> {
    let error = |source| ClaimError::System {
        path: path.to_owned(),
        source,
    };
    for _ in 0..ATTEMPTS_MAX {
        let file = match open(path) {
            Ok(file) => file,
            // Another one was quicker to make or to remove it.
            Err(source)
                if matches!(
                    source.kind(),
                    io::ErrorKind::AlreadyExists | io::ErrorKind::NotFound
                ) && path.parent().is_some_and(Path::is_dir) =>
            {
                continue;
            }
            Err(source) => return Err(closed(path, &source).unwrap_or_else(|| error(source))),
        };
        let locked = match sharing {
            Sharing::Exclusive => file.try_lock(),
            Sharing::Shared => file.try_lock_shared(),
        };
        match locked {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(Locked::No(file)),
            Err(TryLockError::Error(source)) => return Err(error(source)),
        }
        if is_at(&file, path).map_err(error)? {
            return Ok(Locked::Yes(file));
        }
    }
    Err(error(io::Error::other(
        "it is made and removed over and over",
    )))
}

/// Whether `path` leads to this file, and not to one that was made there since.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let of = file.metadata()?;
    let same = |found: fs::Metadata| (found.dev(), found.ino()) == (of.dev(), of.ino());
    Ok(fs::symlink_metadata(path).is_ok_and(same))
}

/// Whether `error` is for want of a right that the owner of the file keeps from others.
fn closed(path: &Path, error: &io::Error) -> Option<ClaimError> {
    let found = fs::symlink_metadata(path).ok()?;
    let mode = found.mode() & 0o777;
    let is_closed =
        error.kind() == io::ErrorKind::PermissionDenied && found.is_file() && mode != FILE_MODE;
    is_closed.then(|| ClaimError::Closed {
        path: path.to_owned(),
        user: found.uid(),
        mode,
    })
}

fn open(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options
        .read(true)
        .write(true)
        .custom_flags(libc::O_NOFOLLOW);
    // Not made by the same call: with fs.protected_regular the kernel refuses that for the file of
    // another user in such a folder.
    let file = match options.open(path) {
        Err(none) if none.kind() == io::ErrorKind::NotFound => {
            let file = options.create_new(true).mode(FILE_MODE).open(path)?;
            // Whatever the umask is.
            file.set_permissions(fs::Permissions::from_mode(FILE_MODE))?;
            file
        }
        opened => opened?,
    };
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no file"));
    }
    Ok(file)
}

/// What the file says. Any user may have written it: it is shown, and never acted upon.
fn read(file: &File) -> Option<Holder> {
    let mut text = Vec::new();
    let mut reader = file.take(HOLDER_BYTES_MAX);
    reader.read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

/// What has a claim, which it may not have said yet.
fn words(holder: Option<Holder>, path: &Path) -> String {
    holder.and_then(|holder| holder.held()).unwrap_or_else(|| {
        let (at, path) = (path.display(), word_of(path));
        format!("claimed by the process that has {at} locked (see lslocks, or fuser {path})")
    })
}

/// What the namespace is known by, from any subsystem port and under any NSID.
fn identity(namespace: &NamespaceInfo) -> String {
    match namespace {
        NamespaceInfo {
            uuid: Some(uuid), ..
        } if !uuid.is_nil() => uuid.to_string(),
        NamespaceInfo { nguid, .. } if *nguid != [0; 16] => format!("nguid {nguid:02x?}"),
        NamespaceInfo { eui64, .. } if *eui64 != [0; 8] => format!("eui64 {eui64:02x?}"),
        NamespaceInfo { nsid, .. } => format!("nsid {nsid}"),
    }
}

/// Where the users of this machine meet.
pub fn folder() -> PathBuf {
    if let Some(folder) = variables::folder(FOLDER_VARIABLE) {
        return folder;
    }
    let found = FOLDERS.iter().find(|folder| {
        let meta = fs::metadata(folder);
        meta.is_ok_and(|meta| meta.is_dir() && meta.mode() & 0o7777 == SHARED_FOLDER_MODE)
    });
    PathBuf::from(found.unwrap_or(&FOLDERS[0]))
}

#[cfg(test)]
mod tests;
