//! Exports whose file systems stand still: calls of them hang in the kernel, and nothing that a
//! thread does ends them. So that they take no more and more threads, further calls of such an
//! export are told to come again ([`FileError::Absent`]) until one of them comes back.
//!
//! Each thread notes which export it is at (`enter`), and the owner of the threads says which are
//! in a call for long ([`Exports::stand_still`]).

use std::cell::OnceCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;

use crate::error::{FileError, Result};
use crate::export::{Export, Exports};
use crate::handle::ExportId;
use crate::limits::{STILL_AFTER, STILL_CALLS};

/// Where threads are, as far as they have been at an export.
static THREADS: Mutex<Vec<(ThreadId, Arc<AtomicU64>)>> = Mutex::new(Vec::new());

fn threads() -> MutexGuard<'static, Vec<(ThreadId, Arc<AtomicU64>)>> {
    THREADS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The place of a thread, as long as there is the thread: the id of an export and 1 above it, or 0.
struct Here(Arc<AtomicU64>);

const AT: u64 = 1 << 32;

impl Here {
    fn new() -> Self {
        let place = Arc::new(AtomicU64::new(0));
        threads().push((thread::current().id(), Arc::clone(&place)));
        Self(place)
    }
}

impl Drop for Here {
    fn drop(&mut self) {
        threads().retain(|(_, place)| !Arc::ptr_eq(place, &self.0));
    }
}

thread_local! {
    static HERE: OnceCell<Here> = const { OnceCell::new() };
}

fn note(place: u64) {
    // A thread that ends is at nothing.
    let _ = HERE.try_with(|here| {
        let Here(at) = here.get_or_init(Here::new);
        at.store(place, Ordering::Relaxed);
    });
}

/// The calling thread begins a call, and is at no export yet.
pub fn begin_call() {
    note(0);
}

/// The calling thread is at an export now.
///
/// # Errors
/// [`FileError::Absent`]: its file system stands still.
pub(crate) fn enter(export: &Export) -> Result<()> {
    if export.is_still().load(Ordering::Relaxed) {
        return Err(FileError::Absent);
    }
    note(AT | u64::from(export.id().0));
    Ok(())
}

fn export_of(thread: ThreadId, all: &[(ThreadId, Arc<AtomicU64>)]) -> Option<ExportId> {
    let (_, place) = all.iter().find(|(id, _)| *id == thread)?;
    let place = place.load(Ordering::Relaxed).checked_sub(AT)?;
    u32::try_from(place).ok().map(ExportId)
}

/// Exports that stand still, with how many calls of each hang.
#[derive(Debug, Default)]
pub struct Still(HashMap<ExportId, usize>);

impl Exports {
    /// Finds out which exports stand still, by the threads that are in one call for so long; to be
    /// told while there are any, and once when there are none any more. The log is told of each.
    pub fn stand_still(&self, hanging: &[(ThreadId, Duration)], still: &mut Still) {
        let mut calls = HashMap::<ExportId, usize>::new();
        let all = threads();
        let long = hanging.iter().filter(|(_, time)| *time >= STILL_AFTER);
        for id in long.filter_map(|(thread, _)| export_of(*thread, &all)) {
            let count = calls.entry(id).or_default();
            *count = count.saturating_add(1);
        }
        drop(all);
        still.0.retain(|id, most| {
            // One that has come back is not asked again in the same look.
            let count = calls.remove(id).unwrap_or(0);
            let came_back = count < *most;
            *most = count.max(*most);
            if came_back {
                self.set_still(*id, false);
                if let Some(export) = self.export(*id) {
                    let name = &export.settings().client_path;
                    tracing::warn!("export {name}: its file system answers again");
                }
            }
            !came_back
        });
        for (id, count) in calls {
            let is_new = count >= STILL_CALLS && still.0.insert(id, count).is_none();
            if let (true, Some(export)) = (is_new, self.export(id)) {
                let name = &export.settings().client_path;
                let path = export.found_at();
                let path = path.display();
                tracing::warn!(
                    "export {name}: {count} calls wait for the file system of {path} for more \
                     than {} s, expected an answer; further ones are put off (NFS4ERR_DELAY) \
                     until one of them comes back: look at what it is on (`dmesg`, `fsfreeze -u`)",
                    STILL_AFTER.as_secs()
                );
            }
        }
        // A reload may have opened one anew.
        for id in still.0.keys() {
            self.set_still(*id, true);
        }
    }

    fn set_still(&self, id: ExportId, is_still: bool) {
        if let Some(export) = self.export(id) {
            export.is_still().store(is_still, Ordering::Relaxed);
        }
    }
}
