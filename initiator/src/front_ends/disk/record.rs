//! The folder that says which volumes this machine has attached.
//!
//! Each volume has a folder of its own, named by a number: `volume.json` says what it is and who
//! serves it, `control` is the socket of the serving process, `log` its log.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use capstan_nvme_proto::text::Shown;
use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};

use super::serving::Process;
use crate::front_ends::fuse::FuseConnection;
use crate::shortage::shortage;
use crate::variables;
use crate::wire::WireFields;

/// The default folder. The target's service has one of its own (`RuntimeDirectory=` of its unit),
/// which belongs to its user and goes when it stops.
pub(crate) const RUN_DIR: &str = "/run/capstan-host";
/// Names another folder.
pub(crate) const RUN_DIR_VARIABLE: &str = "CAPSTAN_RUN_DIR";
/// Volumes at once: an end to the search for a free number.
const VOLUMES_MAX: u32 = 4096;
/// Longest record, in bytes.
const RECORD_BYTES_MAX: u64 = 64 << 10;
/// Permissions that let others than the owner write.
const OTHERS_WRITE: u32 = 0o022;

/// The folder, or the record of one volume, cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// A folder or a file is not this user's, or cannot be used.
    #[error("{}: {source}; {}", .path.display(), expected(.source))]
    System {
        /// What was tried.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// The folder of all volumes is not the same for every process.
    #[error("{RUN_DIR_VARIABLE} is {}, expected an absolute path, as {}", .path.display(), .absolute.display())]
    Relative {
        /// As it was given.
        path: PathBuf,
        /// What that is here.
        absolute: PathBuf,
    },
    /// A record does not say what one says.
    #[error("{}: {source}; expected a record of this version of capstan. The version that wrote it can detach the disk; remove the folder when that has gone", .path.display())]
    Unreadable {
        /// The record.
        path: PathBuf,
        /// What is wrong.
        source: serde_json::Error,
    },
}

/// What there is to be instead of `error`.
fn expected(error: &io::Error) -> String {
    let another = format!("another is given by {RUN_DIR_VARIABLE}");
    if error.kind() == io::ErrorKind::ReadOnlyFilesystem {
        return format!("its file system is mounted read-only: use another folder, {another}");
    }
    shortage(error).map_or_else(
        || format!("expected a folder of this user's own that nobody else can write (root's is {RUN_DIR}, {another})"),
        |shortage| format!("{shortage}, or use another folder: {another}"),
    )
}

impl RecordError {
    fn is_not_found(&self) -> bool {
        matches!(self, Self::System { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}

fn error(path: &Path, source: io::Error) -> RecordError {
    RecordError::System {
        path: path.to_owned(),
        source,
    }
}

/// Makes sure that only root or this user says what is in a folder or a file: what a record names
/// is ended, unmounted and removed by the commands that read it.
fn check_owned(path: &Path) -> Result<(), RecordError> {
    // Of a link itself, not of what it leads to.
    let found = fs::symlink_metadata(path).map_err(|source| error(path, source))?;
    let refused = if !(found.is_dir() || found.is_file()) {
        Some("neither a folder nor a file".to_owned())
    } else if found.uid() != 0 && found.uid() != geteuid().as_raw() {
        Some(format!("owned by user {}", found.uid()))
    } else if found.mode() & OTHERS_WRITE != 0 {
        Some(format!("of mode {:o}", found.mode() & 0o7777))
    } else {
        None
    };
    refused.map_or(Ok(()), |why| Err(error(path, io::Error::other(why))))
}

/// What `volume.json` says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Who serves the volume.
    pub process: Process,
    /// The disk; empty until one is chosen.
    pub device: PathBuf,
    /// The name the loop device was configured with.
    pub loop_name: String,
    /// Subsystem.
    pub subnqn: String,
    /// Namespace.
    pub nsid: u32,
    /// Address of the target.
    pub traddr: String,
    /// Its port.
    pub trsvcid: u16,
    /// The options of `capstan` that mean its connection, transport and digests included; empty
    /// where an older version has attached it.
    #[serde(default)]
    pub way: String,
    /// The transport of its association, `rdma` or `tcp`, which stays the same; `None` until it is
    /// known.
    #[serde(default)]
    pub transport: Option<String>,
    /// What was taken and why, where no transport was named.
    #[serde(default)]
    pub transport_why: Option<String>,
    /// What carried its queues when it was attached.
    #[serde(flatten)]
    pub wire: WireFields,
    /// Size in bytes; 0 until the controller has told it.
    pub size_bytes: u64,
    /// LBA size in bytes; 0 likewise.
    pub lba_bytes: u32,
    /// Writes are refused.
    pub read_only: bool,
    /// Where it is being mounted, is mounted or is being unmounted by `capstan`: the kernel forgets
    /// a mount point long before an unmount is over.
    #[serde(default)]
    pub mount_points: Vec<PathBuf>,
    /// The connection of its FUSE file.
    #[serde(default)]
    pub fuse: Option<FuseConnection>,
    /// Its name on this machine (`/etc/capstan/volumes.toml`), if it has one.
    #[serde(default)]
    pub volume_name: Option<String>,
    /// What the target calls the namespace: `uuid.…`, `nguid.…` or `eui.…`.
    #[serde(default)]
    pub identifier: Option<String>,
}

impl Record {
    /// What messages call the volume: its disk, or the namespace as long as it has none.
    #[must_use]
    pub fn name(&self) -> String {
        if self.has_disk() {
            return Shown(&self.device.to_string_lossy()).to_string();
        }
        format!("namespace {} of {}", self.nsid, Shown(&self.subnqn))
    }

    /// Whether a disk is chosen.
    #[must_use]
    pub fn has_disk(&self) -> bool {
        !self.device.as_os_str().is_empty()
    }
}

/// A volume's folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeDir {
    path: PathBuf,
}

/// The folder of all volumes: `RUN_DIR_VARIABLE` or `RUN_DIR`.
#[must_use]
pub fn run_dir() -> PathBuf {
    variables::folder(RUN_DIR_VARIABLE).unwrap_or_else(|| PathBuf::from(RUN_DIR))
}

/// A serving process works in another folder, and so may the next command.
fn check_absolute(run_dir: &Path) -> Result<(), RecordError> {
    if run_dir.is_absolute() {
        return Ok(());
    }
    Err(RecordError::Relative {
        path: run_dir.to_owned(),
        absolute: std::path::absolute(run_dir).unwrap_or_default(),
    })
}

impl VolumeDir {
    /// Makes the folder of a new volume in `run_dir`, which is made if need be. Only its owner can
    /// look into either.
    ///
    /// # Errors
    /// [`RecordError`].
    pub fn create(run_dir: &Path) -> Result<Self, RecordError> {
        check_absolute(run_dir)?;
        let mut builder = fs::DirBuilder::new();
        builder.mode(0o700);
        builder
            .recursive(true)
            .create(run_dir)
            .map_err(|source| error(run_dir, source))?;
        check_owned(run_dir)?;
        builder.recursive(false);
        for number in 0..VOLUMES_MAX {
            let path = run_dir.join(number.to_string());
            match builder.create(&path) {
                Ok(()) => return Ok(Self { path }),
                Err(source) if source.kind() == io::ErrorKind::AlreadyExists => {}
                Err(source) => return Err(error(&path, source)),
            }
        }
        Err(error(
            run_dir,
            io::Error::other("4096 volumes are attached"),
        ))
    }

    /// Takes a folder that [`VolumeDir::create`] made.
    #[must_use]
    pub fn at(path: PathBuf) -> Self {
        Self { path }
    }

    /// The folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its number.
    #[must_use]
    pub fn name(&self) -> String {
        let name = self.path.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }

    /// Where FUSE is mounted for a moment.
    #[must_use]
    pub fn mount_point(&self) -> PathBuf {
        self.path.join("fuse")
    }

    /// The socket of the serving process.
    #[must_use]
    pub fn control(&self) -> PathBuf {
        self.path.join("control")
    }

    /// The log of the serving process.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.path.join("log")
    }

    /// Writes the record; it is there entirely or not at all.
    ///
    /// # Errors
    /// [`RecordError`].
    pub fn write(&self, record: &Record) -> Result<(), RecordError> {
        let path = self.path.join("volume.json");
        let partial = self.path.join("volume.json.new");
        let text = serde_json::to_vec_pretty(record).map_err(io::Error::from);
        let mut options = File::options();
        // Whatever the umask is, nobody else may write it.
        options.write(true).create(true).truncate(true).mode(0o600);
        text.and_then(|text| options.open(&partial)?.write_all(&text))
            .and_then(|()| fs::rename(&partial, &path))
            .map_err(|source| RecordError::System { path, source })
    }

    /// Reads the record. `None` when there is none (yet).
    ///
    /// # Errors
    /// Another user owns it or could have written it, or it is no record.
    pub(crate) fn record(&self) -> Result<Option<Record>, RecordError> {
        check_owned(&self.path)?;
        let path = self.path.join("volume.json");
        match check_owned(&path) {
            Ok(()) => {}
            Err(none) if none.is_not_found() => return Ok(None),
            Err(refused) => return Err(refused),
        }
        let mut text = Vec::new();
        File::open(&path)
            .and_then(|file| file.take(RECORD_BYTES_MAX).read_to_end(&mut text))
            .map_err(|source| error(&path, source))?;
        let record = serde_json::from_slice(&text);
        record
            .map(Some)
            .map_err(|source| RecordError::Unreadable { path, source })
    }

    /// Removes the folder and what is known to be in it; what is not stays, and with it the folder.
    ///
    /// # Errors
    /// Something is left.
    pub fn remove(&self) -> io::Result<()> {
        // A mount point that is still mounted cannot be removed, and must not be looked into.
        let missing_is_fine = |result: io::Result<()>| match result {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        };
        missing_is_fine(fs::remove_dir(self.mount_point()))?;
        for file in ["volume.json", "volume.json.new", "control", "log"] {
            missing_is_fine(fs::remove_file(self.path.join(file)))?;
        }
        missing_is_fine(fs::remove_dir(&self.path))
    }
}

/// A volume's folder, and what its record says: nothing yet while it is just being attached, or why
/// it is not believed.
pub(crate) type Found = (VolumeDir, Result<Option<Record>, RecordError>);

/// The volumes in `run_dir`, by number, each by itself.
///
/// # Errors
/// `RecordError`: the folder cannot be read, or it is not root's or this user's alone; when there
/// is none, there is no volume.
pub fn volumes(run_dir: &Path) -> Result<Vec<Found>, RecordError> {
    check_absolute(run_dir)?;
    let entries = match fs::read_dir(run_dir) {
        Ok(entries) => entries,
        Err(source) if source.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(error(run_dir, source)),
    };
    check_owned(run_dir)?;
    let mut numbers: Vec<u32> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    numbers.sort_unstable();
    let dirs = numbers
        .into_iter()
        .map(|number| VolumeDir::at(run_dir.join(number.to_string())));
    let found = dirs.map(|dir| {
        let record = dir.record();
        (dir, record)
    });
    // Those that are not found have just been detached.
    let there = found.filter(|(_, record)| {
        let gone = record.as_ref().is_err_and(RecordError::is_not_found);
        !gone
    });
    Ok(there.collect())
}

#[cfg(test)]
pub(super) mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::{Path, PathBuf};

    use super::{Record, VolumeDir, volumes};
    use crate::front_ends::disk::serving::Process;

    pub(in super::super) fn record() -> Record {
        Record {
            process: Process::this().unwrap(),
            device: PathBuf::from("/dev/loop0"),
            loop_name: "capstan-1-2".to_owned(),
            subnqn: "nqn.2026-11.io.capstan:vol".to_owned(),
            nsid: 1,
            traddr: "127.0.0.1".to_owned(),
            trsvcid: 4420,
            way: "-a 127.0.0.1 -s 4420".to_owned(),
            transport: Some("tcp".to_owned()),
            transport_why: None,
            wire: crate::wire::WireFields::default(),
            size_bytes: 1 << 30,
            lba_bytes: 512,
            read_only: false,
            mount_points: Vec::new(),
            fuse: None,
            volume_name: None,
            identifier: None,
        }
    }

    #[test]
    fn volumes_have_folders_of_their_own() {
        let dir = tempfile::tempdir().unwrap();
        let run_dir = dir.path().join("run/capstan-host");
        assert!(volumes(&run_dir).unwrap().is_empty());
        let first = VolumeDir::create(&run_dir).unwrap();
        let second = VolumeDir::create(&run_dir).unwrap();
        assert_eq!((first.name(), second.name()), ("0".into(), "1".into()));
        let mode = fs::metadata(first.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        second.write(&record()).unwrap();
        let found = volumes(&run_dir).unwrap();
        let found: Vec<_> = found.into_iter().map(|(d, r)| (d, r.unwrap())).collect();
        assert_eq!(
            found,
            [(first.clone(), None), (second.clone(), Some(record()))]
        );
        first.remove().unwrap();
        second.remove().unwrap();
        assert!(volumes(&run_dir).unwrap().is_empty());
        assert_eq!(VolumeDir::create(&run_dir).unwrap().name(), "0");
    }

    #[test]
    fn a_bad_record_hides_no_other_one() {
        let dir = tempfile::tempdir().unwrap();
        let [cut, foreign, link, good] = [(); 4].map(|()| VolumeDir::create(dir.path()).unwrap());
        let file = |dir: &VolumeDir| dir.path().join("volume.json");
        good.write(&record()).unwrap();
        let text = fs::read(file(&good)).unwrap();
        fs::write(file(&cut), &text[..text.len() / 2]).unwrap();
        fs::write(file(&foreign), "{}").unwrap();
        fs::set_permissions(file(&foreign), fs::Permissions::from_mode(0o666)).unwrap();
        symlink(file(&good), file(&link)).unwrap();
        let found = volumes(dir.path()).unwrap();
        let said: Vec<_> = found
            .iter()
            .map(|(dir, record)| match record {
                Ok(record) => format!("{:?}", record.as_ref().map(|r| r.nsid)),
                Err(error) => error
                    .to_string()
                    .replace(&format!("{}/", dir.path().display()), ""),
            })
            .collect();
        assert!(
            said[0].starts_with("volume.json: EOF while parsing"),
            "{said:?}"
        );
        assert!(said[0].contains("this version of capstan"), "{said:?}");
        assert!(said[1].starts_with("volume.json: of mode 666"), "{said:?}");
        assert!(said[2].starts_with("volume.json: neither"), "{said:?}");
        assert_eq!(said[3], "Some(1)");
        assert_eq!(said.len(), 4);
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_told_from_one_of_another_user() {
        let said = |errno| {
            let source = std::io::Error::from_raw_os_error(errno);
            let path = PathBuf::from("/run/capstan-host");
            super::RecordError::System { path, source }.to_string()
        };
        let read_only = said(nix::libc::EROFS);
        assert!(
            read_only.contains("mounted read-only: use another"),
            "{read_only}"
        );
        assert!(!read_only.contains("own"), "{read_only}");
        assert!(said(nix::libc::EACCES).contains("a folder of this user's own"));
    }

    #[test]
    fn what_is_not_known_is_not_removed() {
        let dir = tempfile::tempdir().unwrap();
        let volume = VolumeDir::create(dir.path()).unwrap();
        fs::write(volume.path().join("precious"), "data").unwrap();
        assert!(volume.remove().is_err());
        assert!(volume.path().join("precious").exists());
    }

    #[test]
    fn what_others_could_have_written_is_not_believed() {
        let dir = tempfile::tempdir().unwrap();
        let run_dir = dir.path().join("run");
        let volume = VolumeDir::create(&run_dir).unwrap();
        volume.write(&record()).unwrap();
        let file = volume.path().join("volume.json");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&file), 0o600);
        assert_eq!(volumes(&run_dir).unwrap().len(), 1);
        // The folder of all speaks for all, what is in it for one.
        let said = || match volumes(&run_dir) {
            Ok(mut found) => found.remove(0).1.unwrap_err().to_string(),
            Err(error) => error.to_string(),
        };
        for path in [run_dir.as_path(), volume.path(), &file] {
            let good = fs::metadata(path).unwrap().permissions();
            for writable in [0o720, 0o702] {
                fs::set_permissions(path, fs::Permissions::from_mode(writable)).unwrap();
                let said = said();
                let expected = format!("{}: of mode {writable:o}", path.display());
                assert!(said.starts_with(&expected), "{said}");
            }
            fs::set_permissions(path, good).unwrap();
            if nix::unistd::geteuid().is_root() {
                std::os::unix::fs::chown(path, Some(65534), None).unwrap();
                let said = said();
                let expected = format!("{}: owned by user 65534;", path.display());
                assert!(said.starts_with(&expected), "{said}");
                std::os::unix::fs::chown(path, Some(0), None).unwrap();
            }
        }
        // Somebody else's folder takes no volume.
        fs::set_permissions(&run_dir, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(VolumeDir::create(&run_dir).is_err());
        fs::set_permissions(&run_dir, fs::Permissions::from_mode(0o700)).unwrap();
        let elsewhere = dir.path().join("elsewhere");
        fs::rename(volume.path(), &elsewhere).unwrap();
        symlink(&elsewhere, volume.path()).unwrap();
        assert!(said().contains("neither a folder nor a file"), "{}", said());
        fs::remove_file(volume.path()).unwrap();
        let link = dir.path().join("link");
        symlink(&run_dir, &link).unwrap();
        assert!(volumes(&link).is_err());
        assert!(VolumeDir::create(&link).is_err());
    }
}
