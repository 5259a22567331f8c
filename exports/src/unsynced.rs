//! Data that was written and is not on the disk yet, and what became of it.
//!
//! The kernel tells an error of write-back once to each open file, and forgets it with the last
//! file that is closed. So a file stays open here while it has unsynced data, and an error that one
//! sync finds is told to each who wrote before it: once, at its next commit. The write verifier
//! changes as well, so that clients write all again that they have not committed (RFC 1813, 3.3.7;
//! RFC 8881, 18.32.3).
//!
//! Places for such files are shared as bytes of state are: a writer that has more than a share gets
//! its next file synced at once. Where another one has more, as one that is gone may, that one's
//! oldest file is synced and makes room.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use capstan_memory::RawBytes;
use nix::errno::Errno;

use crate::attributes::FileType;
use crate::error::{FileError, Result};
use crate::file::{OpenAccess, OpenFile};
use crate::handle::{ExportId, KernelHandle};
use crate::identity::Caller;
use crate::limits::{UNSYNCED_FILES, UNSYNCED_TRIED, UNSYNCED_WRITERS};
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

/// How many times as many places as are free one writer may have: alone three quarters of all, the
/// next one three quarters of the rest.
const SHARE_TIMES_FREE: usize = 3;

#[derive(Debug)]
struct Unsynced {
    /// Open since before its first unsynced write.
    file: Arc<OpenFile>,
    /// Those of younger files are higher.
    number: u64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Syncs that failed.
    errors: u64,
    last_error: Option<Errno>,
    /// Writes of all so far.
    writes: u64,
    writers: HashMap<WriterId, Writer>,
}

#[derive(Clone, Copy, Debug)]
struct Writer {
    /// Errors that it knows of, or that were before it.
    seen_errors: u64,
    /// Writes of it so far.
    writes: u64,
    /// Writes of it that have not ended.
    under_way: u64,
}

impl State {
    fn is_written(&self) -> bool {
        self.writers.values().any(|writer| writer.under_way > 0)
    }
}

#[derive(Debug, Default)]
struct Table {
    files: HashMap<FileKey, Arc<Unsynced>>,
    /// The files of each writer, by their numbers.
    of_writers: HashMap<WriterId, BTreeMap<u64, FileKey>>,
    last_number: u64,
}

impl Table {
    fn places_of(&self, writer: WriterId) -> usize {
        self.of_writers.get(&writer).map_or(0, BTreeMap::len)
    }

    fn of_writer(&self, writer: WriterId) -> Vec<Arc<Unsynced>> {
        let numbered = self.of_writers.get(&writer).into_iter().flatten();
        let files = numbered.filter_map(|(_, key)| self.files.get(key));
        files.cloned().collect()
    }

    /// The writer that has more places than any other.
    fn largest(&self) -> Option<(WriterId, usize)> {
        let places = self.of_writers.iter();
        let places = places.map(|(writer, files)| (*writer, files.len()));
        places.max_by_key(|(_, places)| *places)
    }

    fn insert(&mut self, key: FileKey, file: Arc<OpenFile>) -> Arc<Unsynced> {
        self.last_number = self.last_number.wrapping_add(1);
        let unsynced = Arc::new(Unsynced {
            file,
            number: self.last_number,
            state: Mutex::default(),
        });
        self.files.insert(key, unsynced.clone());
        unsynced
    }

    fn forget_writer(&mut self, unsynced: &Unsynced, state: &mut State, writer: WriterId) {
        state.writers.remove(&writer);
        if let Some(files) = self.of_writers.get_mut(&writer) {
            files.remove(&unsynced.number);
            if files.is_empty() {
                self.of_writers.remove(&writer);
            }
        }
    }

    fn remove(&mut self, key: &FileKey) -> Option<Arc<Unsynced>> {
        let unsynced = self.files.remove(key)?;
        let mut state = locked(&unsynced.state);
        let writers: Vec<WriterId> = state.writers.keys().copied().collect();
        for writer in writers {
            self.forget_writer(&unsynced, &mut state, writer);
        }
        drop(state);
        Some(unsynced)
    }
}

/// A write that has not ended: what is synced now need not have its data.
struct UnderWay {
    unsynced: Arc<Unsynced>,
    writer: WriterId,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if let Some(writer) = locked(&self.unsynced.state).writers.get_mut(&self.writer) {
            writer.under_way = writer.under_way.saturating_sub(1);
        }
    }
}

/// Files with data that was not synced.
#[derive(Debug)]
pub struct UnsyncedFiles {
    table: Mutex<Table>,
    /// Taken while a file of another writer is synced: one of a file system that hangs has no more
    /// than one thread for that.
    making_room: Mutex<()>,
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
    /// For no more than `most` files at once. Writes of a writer to more than its share of them are
    /// synced at once.
    pub fn new(most: usize) -> Self {
        // Any number does that is most likely another one after a restart.
        let first = getrandom::u64().unwrap_or_else(|_| {
            let since = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
            since.as_secs() << 30 | u64::from(since.subsec_nanos())
        });
        Self {
            table: Mutex::default(),
            making_room: Mutex::default(),
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
        locked(&self.table).files.len()
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
        let under_way = match stable {
            Stable::Unstable => self.enter(file, writer),
            Stable::Data | Stable::File => None,
        };
        let done = work()?;
        if under_way.is_some() {
            return Ok((done, Stable::Unstable));
        }
        let stable = stable.max(Stable::Data);
        self.sync(file, stable)?;
        Ok((done, stable))
    }

    /// Remembers a write that is about to be made; `None` where there is no room for its file.
    fn enter(&self, file: &Arc<OpenFile>, writer: WriterId) -> Option<UnderWay> {
        let key = (file.export(), *file.kernel_handle());
        let mut table = locked(&self.table);
        if !table.files.contains_key(&key) && !self.has_room(&table, writer) {
            let own = table.places_of(writer);
            let (largest, _) = table.largest().filter(|(_, places)| *places > own)?;
            drop(table);
            self.make_room(largest)?;
            table = locked(&self.table);
        }
        let unsynced = match table.files.get(&key) {
            Some(unsynced) => unsynced.clone(),
            // Another one may have taken the room that was made.
            None if table.files.len() >= self.most => return None,
            None => table.insert(key, file.clone()),
        };
        let mut state = locked(&unsynced.state);
        if !state.writers.contains_key(&writer) && state.writers.len() >= UNSYNCED_WRITERS {
            return None;
        }
        state.writes = state.writes.wrapping_add(1);
        let seen_errors = state.errors;
        let of_writer = state.writers.entry(writer).or_insert(Writer {
            seen_errors,
            writes: 0,
            under_way: 0,
        });
        of_writer.writes = of_writer.writes.wrapping_add(1);
        of_writer.under_way = of_writer.under_way.saturating_add(1);
        drop(state);
        let places = table.of_writers.entry(writer).or_default();
        places.insert(unsynced.number, key);
        drop(table);
        Some(UnderWay { unsynced, writer })
    }

    /// Whether the writer may have one more place.
    fn has_room(&self, table: &Table, writer: WriterId) -> bool {
        let used = table.files.len().saturating_add(1);
        let free = self.most.checked_sub(used);
        let own = table.places_of(writer).saturating_add(1);
        free.is_some_and(|free| own <= free.saturating_mul(SHARE_TIMES_FREE))
    }

    /// Syncs the oldest file of a writer and gives its place up; `None` where none can be. What is
    /// lost with that is told to all clients that wrote it by the write verifier.
    fn make_room(&self, writer: WriterId) -> Option<()> {
        let _one = self.making_room.try_lock().ok()?;
        let (unsynced, writes) = {
            let table = locked(&self.table);
            let files = table.of_writers.get(&writer)?.values();
            files.take(UNSYNCED_TRIED).find_map(|key| {
                let unsynced = table.files.get(key)?;
                let state = locked(&unsynced.state);
                (!state.is_written()).then(|| (unsynced.clone(), state.writes))
            })?
        };
        if let Err(error) = unsynced.file.sync_data() {
            tracing::warn!("data that was not committed was lost: {error}");
            self.lost(&unsynced, &error);
        }
        let key = (unsynced.file.export(), *unsynced.file.kernel_handle());
        let mut table = locked(&self.table);
        let is_same = |now: &Arc<Unsynced>| Arc::ptr_eq(now, &unsynced);
        let is_idle = locked(&unsynced.state).writes == writes;
        if is_idle && table.files.get(&key).is_some_and(is_same) {
            table.remove(&key)?;
        }
        Some(())
    }

    /// Syncs through an open file of somebody, for whom an error is as well.
    fn sync(&self, file: &OpenFile, stable: Stable) -> Result<()> {
        let synced = match stable {
            Stable::File => file.sync_all(),
            Stable::Unstable | Stable::Data => file.sync_data(),
        };
        if let Err(error) = synced {
            let key = (file.export(), *file.kernel_handle());
            if let Some(unsynced) = self.kept(key) {
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
        locked(&self.table).files.get(&key).cloned()
    }

    fn commit_kept(&self, writer: WriterId, unsynced: &Unsynced) -> Result<[u8; 8]> {
        let key = (unsynced.file.export(), *unsynced.file.kernel_handle());
        let before = locked(&unsynced.state).writers.get(&writer).copied();
        let synced = unsynced.file.sync_data();
        if let Err(error) = &synced {
            self.lost(unsynced, error);
        }
        let told = {
            let mut table = locked(&self.table);
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
            let is_all = |before: Writer| before.under_way == 0 && now == Some(before.writes);
            if before.is_some_and(is_all) {
                table.forget_writer(unsynced, &mut state, writer);
            }
            let is_same = |now: &Arc<Unsynced>| now.number == unsynced.number;
            if state.writers.is_empty() && table.files.get(&key).is_some_and(is_same) {
                table.files.remove(&key);
            }
            told
        };
        told.map(|()| self.verifier())
    }

    /// Forgets a file whose last name was removed, so that its space is free: what is lost of it
    /// now, is not looked for. Clients that have it open still commit it.
    pub fn forget_file(&self, export: ExportId, kernel: &KernelHandle) {
        let forgotten = locked(&self.table).remove(&(export, *kernel));
        // Closing it may take the time that its space takes to be given back.
        drop(forgotten);
    }

    /// Forgets a writer that will not commit any more. What it has written is synced.
    pub fn end_writer(&self, writer: WriterId) {
        let held = locked(&self.table).of_writer(writer);
        for unsynced in held {
            if let Err(error) = self.commit_kept(writer, &unsynced) {
                tracing::warn!("data of a client that has gone was lost: {error}");
            }
        }
    }

    /// Forgets all files of exports that are given up, and hands them out to be synced.
    pub fn give_up_exports(&self, is_gone: impl Fn(ExportId) -> bool) -> GivenUp {
        let mut table = locked(&self.table);
        let keys = table.files.keys().copied();
        let keys: Vec<FileKey> = keys.filter(|(export, _)| is_gone(*export)).collect();
        let files = keys.iter().filter_map(|key| table.remove(key));
        GivenUp(files.collect())
    }
}

/// Files with unsynced data of exports that are given up. They are closed when this is dropped.
#[derive(Debug)]
#[must_use = "what clients have written is to be synced"]
pub struct GivenUp(Vec<Arc<Unsynced>>);

impl GivenUp {
    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Syncs and closes them. Clients cannot be told what is lost, and the log is.
    pub fn sync(self) {
        for unsynced in self.0 {
            if let Err(error) = unsynced.file.sync_data() {
                tracing::warn!("data of an export that was taken out was lost: {error}");
            }
        }
    }
}
