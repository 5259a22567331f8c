//! Data that was written and is not on the disk yet, and what became of it.
//!
//! The kernel tells an error of write-back once to each open file, and forgets it with the last
//! file that is closed. So a file stays open here while it has unsynced data, and an error that one
//! sync finds is told to each who wrote before it: once, at its next commit. The write verifier
//! changes as well, so that clients write all again that they have not committed (RFC 1813, 3.3.7;
//! RFC 8881, 18.32.3).

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use capstan_memory::RawBytes;
use nix::errno::Errno;

use crate::attributes::FileType;
use crate::error::{FileError, Result};
use crate::file::{OpenAccess, OpenFile};
use crate::handle::{ExportId, KernelHandle};
use crate::identity::Caller;
use crate::limits::{UNSYNCED_FILES, UNSYNCED_WRITERS};
use crate::node::Node;

/// The source of writes and commits: a client, or a connection where clients have no name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WriterId(pub u64);

/// How far data has to be when a write is answered, as NFS has it (`stable_how`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stable {
    /// Anywhere: a commit follows.
    Unstable,
    /// On the disk, with what is needed to find it.
    Data,
    /// On the disk with all attributes.
    File,
}

type FileKey = (ExportId, KernelHandle);

#[derive(Debug)]
struct Unsynced {
    /// Open since before its first unsynced write.
    file: Arc<OpenFile>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Syncs that failed.
    errors: u64,
    last_error: Option<Errno>,
    writers: HashMap<WriterId, Writer>,
}

#[derive(Clone, Copy, Debug)]
struct Writer {
    /// Errors that it knows of, or that were before it.
    seen_errors: u64,
    /// Writes of it so far.
    writes: u64,
}

/// Files with data that was not synced.
#[derive(Debug)]
pub struct UnsyncedFiles {
    files: Mutex<HashMap<FileKey, Arc<Unsynced>>>,
    verifier: AtomicU64,
    most: usize,
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Default for UnsyncedFiles {
    fn default() -> Self {
        Self::new(UNSYNCED_FILES)
    }
}

impl UnsyncedFiles {
    /// For no more than `most` files at once; writes to more are synced at once.
    pub fn new(most: usize) -> Self {
        // Any number does that is most likely another one after a restart.
        let first = getrandom::u64().unwrap_or_else(|_| {
            let since = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
            since.as_secs() << 30 | u64::from(since.subsec_nanos())
        });
        Self {
            files: Mutex::default(),
            verifier: AtomicU64::new(first),
            most,
        }
    }

    /// The write verifier: another one after a restart, and after data was lost.
    pub fn verifier(&self) -> [u8; 8] {
        self.verifier.load(Ordering::Acquire).to_be_bytes()
    }

    /// How many files have unsynced data.
    pub fn count(&self) -> usize {
        locked(&self.files).len()
    }

    /// Writes, and syncs as far as `stable` says: how many bytes, and how far they are, which is
    /// more than was asked for where there is no room to remember the file.
    ///
    /// # Errors
    /// Of the write, or of the sync.
    pub fn write(
        &self,
        writer: WriterId,
        caller: &Caller,
        file: &Arc<OpenFile>,
        data: RawBytes<'_>,
        offset: u64,
        stable: Stable,
    ) -> Result<(usize, Stable)> {
        self.change(writer, file, stable, || {
            file.write_from(caller, data, offset)
        })
    }

    /// As [`write`](Self::write), of data that `work` brings to the file in another way: what it
    /// says, and how far the data is.
    ///
    /// # Errors
    /// Of `work`, or of the sync.
    pub fn change<T>(
        &self,
        writer: WriterId,
        file: &Arc<OpenFile>,
        stable: Stable,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<(T, Stable)> {
        let is_kept = stable == Stable::Unstable && self.enter(file, writer);
        let done = work()?;
        if is_kept {
            return Ok((done, Stable::Unstable));
        }
        let stable = stable.max(Stable::Data);
        self.sync(file, stable)?;
        Ok((done, stable))
    }

    /// Remembers a write that is about to be made.
    fn enter(&self, file: &Arc<OpenFile>, writer: WriterId) -> bool {
        let key = (file.export(), *file.kernel_handle());
        let mut files = locked(&self.files);
        if !files.contains_key(&key) && files.len() >= self.most {
            return false;
        }
        let unsynced = files.entry(key).or_insert_with(|| {
            Arc::new(Unsynced {
                file: file.clone(),
                state: Mutex::default(),
            })
        });
        let mut state = locked(&unsynced.state);
        if !state.writers.contains_key(&writer) && state.writers.len() >= UNSYNCED_WRITERS {
            return false;
        }
        let seen_errors = state.errors;
        let writer = state.writers.entry(writer).or_insert(Writer {
            seen_errors,
            writes: 0,
        });
        writer.writes = writer.writes.wrapping_add(1);
        true
    }

    /// Syncs through an open file of somebody, for whom an error is as well.
    fn sync(&self, file: &OpenFile, stable: Stable) -> Result<()> {
        let synced = match stable {
            Stable::File => file.sync_all(),
            Stable::Unstable | Stable::Data => file.sync_data(),
        };
        if let Err(error) = synced {
            let key = (file.export(), *file.kernel_handle());
            let unsynced = locked(&self.files).get(&key).cloned();
            if let Some(unsynced) = unsynced {
                self.lost(&unsynced, &error);
            } else {
                self.verifier.fetch_add(1, Ordering::AcqRel);
            }
        }
        synced
    }

    fn lost(&self, unsynced: &Unsynced, error: &FileError) {
        let mut state = locked(&unsynced.state);
        state.errors += 1;
        state.last_error = Some(error.errno().unwrap_or(Errno::EIO));
        self.verifier.fetch_add(1, Ordering::AcqRel);
    }

    /// COMMIT: all that `writer` has written to the file is on the disk, or was lost. The file is
    /// synced through `file` where nothing of it is known to be unsynced. Answers with the write
    /// verifier.
    ///
    /// # Errors
    /// [`FileError::WriteBack`] where a sync failed since the writer's first unsynced write: once.
    pub fn commit(&self, writer: WriterId, file: &OpenFile) -> Result<[u8; 8]> {
        match self.kept((file.export(), *file.kernel_handle())) {
            Some(unsynced) => self.commit_kept(writer, &unsynced),
            None => {
                self.sync(file, Stable::Data)?;
                Ok(self.verifier())
            }
        }
    }

    /// As [`commit`](Self::commit), of a file that the caller need not have open, nor be allowed to
    /// open any more: its mode may have been changed since it was written.
    ///
    /// # Errors
    /// As there; [`FileError::ReadOnly`], [`FileError::WrongType`].
    pub fn commit_node(&self, writer: WriterId, caller: &Caller, node: &Node) -> Result<[u8; 8]> {
        node.check_writer(caller)?;
        node.check_type("committing", FileType::Regular)?;
        match self.kept((node.export().id(), *node.kernel_handle())) {
            Some(unsynced) => self.commit_kept(writer, &unsynced),
            None => self.commit(writer, &node.open_as_self(OpenAccess::Read)?),
        }
    }

    fn kept(&self, key: FileKey) -> Option<Arc<Unsynced>> {
        locked(&self.files).get(&key).cloned()
    }

    fn commit_kept(&self, writer: WriterId, unsynced: &Unsynced) -> Result<[u8; 8]> {
        let key = (unsynced.file.export(), *unsynced.file.kernel_handle());
        let before = locked(&unsynced.state).writers.get(&writer).copied();
        let synced = unsynced.file.sync_data();
        if let Err(error) = &synced {
            self.lost(unsynced, error);
        }
        let told = {
            let mut files = locked(&self.files);
            let mut state = locked(&unsynced.state);
            let told = match before {
                Some(before) if before.seen_errors != state.errors => Err(FileError::WriteBack {
                    errno: state.last_error.unwrap_or(Errno::EIO),
                }),
                _ => synced,
            };
            let errors = state.errors;
            let now = state.writers.get_mut(&writer).map(|now| {
                now.seen_errors = errors;
                now.writes
            });
            // What it has written during the sync is another commit's.
            if before.is_some_and(|before| now == Some(before.writes)) {
                state.writers.remove(&writer);
            }
            if state.writers.is_empty() {
                files.remove(&key);
            }
            told
        };
        told.map(|()| self.verifier())
    }

    /// Forgets a file whose last name was removed, so that its space is free: what is lost of it
    /// now, is not looked for. Clients that have it open still commit it.
    pub fn forget_file(&self, export: ExportId, kernel: &KernelHandle) {
        let forgotten = locked(&self.files).remove(&(export, *kernel));
        // Closing it may take the time that its space takes to be given back.
        drop(forgotten);
    }

    /// Forgets a writer that will not commit any more. What it has written is synced.
    pub fn end_writer(&self, writer: WriterId) {
        let held: Vec<Arc<Unsynced>> = locked(&self.files).values().cloned().collect();
        for unsynced in held {
            let has_written = locked(&unsynced.state).writers.contains_key(&writer);
            if has_written && let Err(error) = self.commit(writer, &unsynced.file) {
                tracing::warn!("data of a client that has gone was lost: {error}");
            }
        }
    }
}
