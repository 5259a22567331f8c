//! The folder that says which volumes this machine has attached.
//!
//! Each volume has a folder of its own, named by a number: `volume.json` says what it is and who
//! serves it, `control` is the socket of the serving process, `log` its log.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

/// The default folder.
pub const RUN_DIR: &str = "/run/capstan";
/// Names another folder.
pub const RUN_DIR_VARIABLE: &str = "CAPSTAN_RUN_DIR";
/// Volumes at once: an end to the search for a free number.
const VOLUMES_MAX: u32 = 4096;
/// Between two looks at a process that is to end.
const EXIT_POLL: Duration = Duration::from_millis(5);

/// The folder cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {source}; expected a folder this user can write (root's is {RUN_DIR}, another is given by {RUN_DIR_VARIABLE})", .path.display())]
pub struct RecordError {
    /// What was tried.
    pub path: PathBuf,
    /// Why it failed.
    pub source: io::Error,
}

/// A process, so that another one with its number is not taken for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its number.
    pub pid: i32,
    /// When it started, in clock ticks since the machine did (proc_pid_stat(5), field 22).
    pub start_ticks: u64,
}

impl Process {
    /// This process.
    ///
    /// # Errors
    /// `/proc` is not there.
    pub fn this() -> io::Result<Self> {
        let pid = Pid::this().as_raw();
        let start_ticks = start_ticks(pid)?;
        Ok(Self { pid, start_ticks })
    }

    /// Whether it still runs.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        start_ticks(self.pid).is_ok_and(|ticks| ticks == self.start_ticks)
    }

    /// Waits for its end; `false` when it runs on after `patience`.
    #[must_use]
    pub fn wait(&self, patience: Duration) -> bool {
        let start = std::time::Instant::now();
        while self.is_alive() {
            if start.elapsed() > patience {
                return false;
            }
            std::thread::sleep(EXIT_POLL);
        }
        true
    }
}

fn start_ticks(pid: i32) -> io::Result<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let invalid = || io::Error::from(io::ErrorKind::InvalidData);
    // The name, field 2, may have spaces and parentheses.
    let (_, rest) = stat.rsplit_once(") ").ok_or_else(invalid)?;
    let mut fields = rest.split(' ');
    // A zombie has ended.
    if fields.clone().next() == Some("Z") {
        return Err(io::ErrorKind::NotFound.into());
    }
    let ticks = fields.nth(19).ok_or_else(invalid)?;
    ticks.parse().map_err(|_| invalid())
}

/// What `volume.json` says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Who serves the volume.
    pub process: Process,
    /// The disk.
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
    /// Size in bytes.
    pub size_bytes: u64,
    /// LBA size in bytes.
    pub lba_bytes: u32,
    /// Writes are refused.
    pub read_only: bool,
}

/// A volume's folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeDir {
    path: PathBuf,
}

/// The folder of all volumes: [`RUN_DIR_VARIABLE`] or [`RUN_DIR`].
#[must_use]
pub fn run_dir() -> PathBuf {
    std::env::var_os(RUN_DIR_VARIABLE).map_or_else(|| PathBuf::from(RUN_DIR), PathBuf::from)
}

impl VolumeDir {
    /// Makes the folder of a new volume in `run_dir`, which is made if need be. Only its owner can
    /// look into either.
    ///
    /// # Errors
    /// [`RecordError`].
    pub fn create(run_dir: &Path) -> Result<Self, RecordError> {
        let error = |path: &Path, source| RecordError {
            path: path.to_owned(),
            source,
        };
        let mut builder = fs::DirBuilder::new();
        builder.mode(0o700);
        builder
            .recursive(true)
            .create(run_dir)
            .map_err(|source| error(run_dir, source))?;
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
        text.and_then(|text| fs::write(&partial, text))
            .and_then(|()| fs::rename(&partial, &path))
            .map_err(|source| RecordError { path, source })
    }

    /// Reads the record.
    ///
    /// # Errors
    /// There is none (yet), or it is none of this version's.
    pub fn read(&self) -> io::Result<Record> {
        let text = fs::read(self.path.join("volume.json"))?;
        Ok(serde_json::from_slice(&text)?)
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

/// The volumes in `run_dir`, by number. A volume that is just being attached has no record yet.
///
/// # Errors
/// [`RecordError`]: the folder cannot be read; when there is none, there is no volume.
pub fn volumes(run_dir: &Path) -> Result<Vec<(VolumeDir, Option<Record>)>, RecordError> {
    let entries = match fs::read_dir(run_dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => {
            return Err(RecordError {
                path: run_dir.to_owned(),
                source,
            });
        }
    };
    let mut numbers: Vec<u32> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    numbers.sort_unstable();
    Ok(numbers
        .into_iter()
        .map(|number| VolumeDir::at(run_dir.join(number.to_string())))
        .map(|dir| {
            let record = dir.read().ok();
            (dir, record)
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;
    use std::time::Duration;

    use super::{Process, Record, VolumeDir, volumes};

    fn record() -> Record {
        Record {
            process: Process::this().unwrap(),
            device: PathBuf::from("/dev/loop0"),
            loop_name: "capstan-1-2".to_owned(),
            subnqn: "nqn.2026-11.io.capstan:vol".to_owned(),
            nsid: 1,
            traddr: "127.0.0.1".to_owned(),
            trsvcid: 4420,
            size_bytes: 1 << 30,
            lba_bytes: 512,
            read_only: false,
        }
    }

    #[test]
    fn volumes_have_folders_of_their_own() {
        let dir = tempfile::tempdir().unwrap();
        let run_dir = dir.path().join("run/capstan");
        assert!(volumes(&run_dir).unwrap().is_empty());
        let first = VolumeDir::create(&run_dir).unwrap();
        let second = VolumeDir::create(&run_dir).unwrap();
        assert_eq!((first.name(), second.name()), ("0".into(), "1".into()));
        let mode = fs::metadata(first.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        second.write(&record()).unwrap();
        let found = volumes(&run_dir).unwrap();
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
    fn what_is_not_known_is_not_removed() {
        let dir = tempfile::tempdir().unwrap();
        let volume = VolumeDir::create(dir.path()).unwrap();
        fs::write(volume.path().join("precious"), "data").unwrap();
        assert!(volume.remove().is_err());
        assert!(volume.path().join("precious").exists());
    }

    #[test]
    fn another_process_with_the_number_is_not_the_process() {
        let this = Process::this().unwrap();
        assert!(this.is_alive());
        let other = Process {
            start_ticks: this.start_ticks + 1,
            ..this
        };
        assert!(!other.is_alive());
        assert!(other.wait(Duration::ZERO));
        assert!(!this.wait(Duration::from_millis(20)));
    }
}
