//! Stable storage in a file.

use std::ffi::OsString;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::super::limits::{STABLE_APPENDED_BYTES_MAX, STABLE_BYTES_MAX};
use super::{MAGIC, Record, Replay, StableError, encode, replay};

/// Mode of the file: for its owner alone, as it names clients. It is written out because threads
/// that act for clients have no umask.
const MODE: u32 = 0o600;

/// A file with the records of one server. Its name is that of a file that is replaced as a whole
/// when it has grown; another server cannot have it at the same time.
#[derive(Debug)]
pub struct StableFile {
    path: PathBuf,
    file: File,
    /// Bytes that are whole and durable.
    length_bytes: u64,
    /// Bytes appended since it was written as a whole.
    appended_bytes: u64,
    /// Something may be behind them: a write has failed.
    is_torn: bool,
}

/// Why a file could not be used.
#[derive(Debug, Error)]
pub enum StableFileError {
    /// A system call failed.
    #[error(
        "{path}: {call} failed: {error}; expected a writable file in a writable directory, on a \
         file system with room"
    )]
    Io {
        /// The file.
        path: PathBuf,
        /// What was called.
        call: &'static str,
        /// What it said.
        error: io::Error,
    },
    /// Another server has it.
    #[error(
        "{path} is locked: another server uses it; stop that one, or give each a state folder of its own"
    )]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// It is larger than a server writes.
    #[error(
        "{path} has {length_bytes} bytes, expected {STABLE_BYTES_MAX} at most: it is not written \
         by this server; move it away (clients then reclaim nothing), or give the target another state folder"
    )]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its length.
        length_bytes: u64,
    },
    /// What it holds cannot be used.
    #[error("{path}: {error}")]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        error: StableError,
    },
}

impl StableFile {
    /// Looks at the file, and changes and makes nothing: whether [`open`](Self::open) could read
    /// it. One that is not there can be made.
    ///
    /// # Errors
    /// As of [`open`](Self::open).
    pub fn look(path: &Path) -> Result<(), StableFileError> {
        let failed = |call| {
            move |error| StableFileError::Io {
                path: path.into(),
                call,
                error,
            }
        };
        let file = match OpenOptions::new().read(true).write(true).open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            opened => opened.map_err(failed("open"))?,
        };
        // Not for longer than that: a server that starts meanwhile would be refused it.
        lock(&file, path)?;
        file.unlock().map_err(failed("flock"))?;
        replay_file(&file, path)
    }

    /// Likewise, also while a server has it: what that is about to write is a torn end.
    ///
    /// # Errors
    /// As of [`open`](Self::open), but that it is in use.
    pub fn look_beside(path: &Path) -> Result<(), StableFileError> {
        match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(StableFileError::Io {
                path: path.into(),
                call: "open",
                error,
            }),
            Ok(file) => replay_file(&file, path),
        }
    }

    /// Opens the file, or makes it, and replays it. A torn end is cut off.
    ///
    /// # Errors
    /// It cannot be read or written, another server has it, or it is not one of a server's.
    pub fn open(path: &Path) -> Result<(Self, Replay), StableFileError> {
        let failed = |call| {
            move |error| StableFileError::Io {
                path: path.into(),
                call,
                error,
            }
        };
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .mode(MODE)
            .truncate(false)
            .open(path)
            .map_err(failed("open"))?;
        lock(&file, path)?;
        let metadata = file.metadata().map_err(failed("stat"))?;
        let named = std::fs::metadata(path).map_err(failed("stat"))?;
        if (metadata.dev(), metadata.ino()) != (named.dev(), named.ino()) {
            // Replaced by the server that had it, between being opened and locked.
            return Err(StableFileError::InUse { path: path.into() });
        }
        let length_bytes = metadata.len();
        let bytes = read(&file, path, length_bytes)?;
        let (before, whole) = replay(&bytes).map_err(|error| StableFileError::Content {
            path: path.into(),
            error,
        })?;
        let whole = u64::try_from(whole).unwrap_or(u64::MAX);
        let mut stable = Self {
            path: path.into(),
            file,
            length_bytes: whole,
            appended_bytes: whole,
            is_torn: true,
        };
        if whole == 0 {
            stable.append_bytes(&MAGIC)?;
            sync_directory(path)?;
        }
        Ok((stable, before))
    }

    /// Makes records durable, in their order.
    ///
    /// # Errors
    /// They are not. Nothing of them is there as far as a replay goes, and they may be tried again.
    pub fn append(&mut self, records: &[Record]) -> Result<(), StableFileError> {
        let mut bytes = Vec::new();
        for record in records {
            encode(record, &mut bytes);
        }
        if bytes.is_empty() {
            return Ok(());
        }
        self.append_bytes(&bytes)
    }

    fn append_bytes(&mut self, bytes: &[u8]) -> Result<(), StableFileError> {
        let failed = |call| {
            let path = self.path.clone();
            move |error| StableFileError::Io { path, call, error }
        };
        if self.is_torn {
            self.file
                .set_len(self.length_bytes)
                .map_err(failed("ftruncate"))?;
        }
        self.is_torn = true;
        self.file
            .seek(SeekFrom::Start(self.length_bytes))
            .map_err(failed("lseek"))?;
        self.file.write_all(bytes).map_err(failed("write"))?;
        self.file.sync_data().map_err(failed("fdatasync"))?;
        self.is_torn = false;
        let count = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        self.length_bytes = self.length_bytes.saturating_add(count);
        self.appended_bytes = self.appended_bytes.saturating_add(count);
        Ok(())
    }

    /// Whether it has grown so much that it should be replaced.
    #[must_use]
    pub const fn wants_replacing(&self) -> bool {
        self.appended_bytes > STABLE_APPENDED_BYTES_MAX
    }

    /// Makes records durable: by those of a snapshot that has them, else by appending them.
    ///
    /// # Errors
    /// As of [`StableFile::append`]; a file that cannot be replaced grows up to three quarters of
    /// what may be read.
    pub fn write(
        &mut self,
        records: &[Record],
        snapshot: Option<&[Record]>,
    ) -> Result<(), StableFileError> {
        match snapshot.map(|snapshot| self.replace(snapshot)) {
            Some(Ok(())) => return Ok(()),
            Some(Err(error)) if self.length_bytes > STABLE_BYTES_MAX / 4 * 3 => return Err(error),
            Some(Err(error)) => tracing::warn!("it grows, as it could not be replaced: {error}"),
            None => {}
        }
        self.append(records)
    }

    /// Replaces all records at once: after a crash either the old ones are there or the new ones.
    ///
    /// # Errors
    /// The old ones are there, or the new ones when only the directory could not be synchronized.
    pub fn replace(&mut self, records: &[Record]) -> Result<(), StableFileError> {
        let mut name = OsString::from(self.path.as_os_str());
        name.push(".new");
        let new_path = PathBuf::from(name);
        let failed = |call| {
            let path = new_path.clone();
            move |error| StableFileError::Io { path, call, error }
        };
        let mut bytes = MAGIC.to_vec();
        for record in records {
            encode(record, &mut bytes);
        }
        let mut options = OpenOptions::new();
        let mut file = options
            .read(true)
            .write(true)
            .create(true)
            .mode(MODE)
            .truncate(true)
            .open(&new_path)
            .map_err(failed("open"))?;
        // Locked before it has the name by which another server would find it.
        lock(&file, &new_path)?;
        file.write_all(&bytes).map_err(failed("write"))?;
        file.sync_all().map_err(failed("fsync"))?;
        std::fs::rename(&new_path, &self.path).map_err(failed("rename"))?;
        self.file = file;
        self.length_bytes = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        self.appended_bytes = 0;
        self.is_torn = false;
        sync_directory(&self.path)
    }
}

/// Whether all of a file can be replayed.
fn replay_file(file: &File, path: &Path) -> Result<(), StableFileError> {
    let metadata = file.metadata().map_err(|error| StableFileError::Io {
        path: path.into(),
        call: "stat",
        error,
    })?;
    let bytes = read(file, path, metadata.len())?;
    replay(&bytes)
        .map(drop)
        .map_err(|error| StableFileError::Content {
            path: path.into(),
            error,
        })
}

/// All of a file that has so many bytes.
fn read(file: &File, path: &Path, length_bytes: u64) -> Result<Vec<u8>, StableFileError> {
    if length_bytes > STABLE_BYTES_MAX {
        return Err(StableFileError::TooLarge {
            path: path.into(),
            length_bytes,
        });
    }
    let mut bytes = Vec::new();
    file.take(STABLE_BYTES_MAX)
        .read_to_end(&mut bytes)
        .map_err(|error| StableFileError::Io {
            path: path.into(),
            call: "read",
            error,
        })?;
    Ok(bytes)
}

fn lock(file: &File, path: &Path) -> Result<(), StableFileError> {
    file.try_lock().map_err(|error| match error {
        TryLockError::WouldBlock => StableFileError::InUse { path: path.into() },
        TryLockError::Error(error) => StableFileError::Io {
            path: path.into(),
            call: "flock",
            error,
        },
    })
}

/// A new name is durable with its directory.
fn sync_directory(path: &Path) -> Result<(), StableFileError> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) | None => Path::new("."),
    };
    File::open(parent)
        .and_then(|directory| directory.sync_all())
        .map_err(|error| StableFileError::Io {
            path: parent.into(),
            call: "fsync",
            error,
        })
}

#[cfg(test)]
#[path = "../tests/stable_file.rs"]
mod tests;
