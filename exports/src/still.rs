//! Exports whose file systems stand still: calls of them hang in the kernel, and nothing that a
//! thread does ends them. So that they take no more and more threads, further calls of such an
//! export are told to come again ([`FileError::Absent`]) until one of them comes back. Before that
//! is known, an export of which some calls are stuck has a bounded part of the threads, and others
//! of it are told the same.
//!
//! Each thread notes which export it is at (`enter`), and the owner of the threads says which are
//! in a call for long ([`Exports::stand_still`]).

use std::cell::OnceCell;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;

use crate::error::{FileError, Result};
use crate::export::{Export, Exports};
use crate::handle::ExportId;
use crate::limits::{CROWDED_CALLS, STILL_AFTER, STILL_CALLS, STUCK_AFTER};

/// What is known of the calls of an export.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    /// Its file system stands still.
    are_put_off: AtomicBool,
    /// Some are stuck, and no more than [`STILL_CALLS`] are to be under way.
    are_crowded: AtomicBool,
}

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

/// The calling thread is at no export, until what this returns is dropped.
pub fn begin_call() -> InCall {
    note(0);
    InCall(())
}

/// A call that the thread carries out.
#[must_use = "the call ends with it"]
#[derive(Debug)]
pub struct InCall(());

impl Drop for InCall {
    fn drop(&mut self) {
        note(0);
    }
}

/// The calling thread is at an export now.
///
/// # Errors
/// [`FileError::Absent`]: its file system stands still, or may do so and has as many calls as it is
/// to have then.
pub(crate) fn enter(export: &Export) -> Result<()> {
    let (calls, place) = (export.calls(), AT | u64::from(export.id().0));
    if calls.are_put_off.load(Ordering::Relaxed) {
        return Err(FileError::Absent);
    }
    if calls.are_crowded.load(Ordering::Relaxed) {
        return enter_crowded(place);
    }
    note(place);
    Ok(())
}

/// Counts those that are there, while none can come.
fn enter_crowded(place: u64) -> Result<()> {
    let entered = HERE.try_with(|here| {
        let Here(own) = here.get_or_init(Here::new);
        let all = threads();
        // A call that is there goes on.
        let is_there = |(_, at): &&(ThreadId, Arc<AtomicU64>)| at.load(Ordering::Relaxed) == place;
        let has_room = own.load(Ordering::Relaxed) == place
            || all.iter().filter(is_there).count() < STILL_CALLS;
        if has_room {
            own.store(place, Ordering::Relaxed);
        }
        has_room
    });
    // A thread that ends is at nothing.
    if entered.unwrap_or(true) {
        Ok(())
    } else {
        Err(FileError::Absent)
    }
}

fn export_of(thread: ThreadId, all: &[(ThreadId, Arc<AtomicU64>)]) -> Option<ExportId> {
    let (_, place) = all.iter().find(|(id, _)| *id == thread)?;
    let place = place.load(Ordering::Relaxed).checked_sub(AT)?;
    u32::try_from(place).ok().map(ExportId)
}

/// Exports of which calls hang.
#[derive(Debug, Default)]
pub struct Still {
    /// Those that stand still, with how many calls of each hang.
    still: HashMap<ExportId, usize>,
    /// Those of which some are stuck.
    crowded: HashSet<ExportId>,
}

/// How many calls of each export are among these.
fn count(exports: impl Iterator<Item = ExportId>) -> HashMap<ExportId, usize> {
    let mut counts = HashMap::<ExportId, usize>::new();
    for id in exports {
        let count = counts.entry(id).or_default();
        *count = count.saturating_add(1);
    }
    counts
}

impl Exports {
    /// Finds out which exports stand still, by the threads that are in one call, each for so long;
    /// to be told while there are any, and once when there are none any more. The log is told of
    /// each. Returns how many of these threads others may take the places of: up to [`STILL_CALLS`]
    /// for each export, and all that are at none.
    pub fn stand_still(&self, slow: &[(ThreadId, Duration)], still: &mut Still) -> usize {
        let all = threads();
        let at: Vec<_> = slow
            .iter()
            .filter_map(|(thread, time)| Some((export_of(*thread, &all)?, *time)))
            .collect();
        drop(all);
        let for_long = |long: Duration| {
            let of_it = at.iter().filter(|(_, time)| *time >= long);
            count(of_it.map(|(id, _)| *id))
        };
        self.set_crowded(&for_long(STUCK_AFTER), still);
        self.find_still(for_long(STILL_AFTER), still);
        let all = for_long(Duration::ZERO);
        let beyond = all.values().map(|count| count.saturating_sub(STILL_CALLS));
        slow.len().saturating_sub(beyond.sum())
    }

    fn set_crowded(&self, counts: &HashMap<ExportId, usize>, still: &mut Still) {
        let set = |id: ExportId, are_crowded| {
            if let Some(export) = self.export(id) {
                let flag = &export.calls().are_crowded;
                flag.store(are_crowded, Ordering::Relaxed);
            }
        };
        let crowded = counts.iter().filter(|(_, count)| **count >= CROWDED_CALLS);
        let crowded: HashSet<_> = crowded.map(|(id, _)| *id).collect();
        for id in still.crowded.difference(&crowded) {
            set(*id, false);
        }
        // A reload may have opened one anew.
        for id in &crowded {
            set(*id, true);
        }
        still.crowded = crowded;
    }

    fn find_still(&self, mut calls: HashMap<ExportId, usize>, still: &mut Still) {
        still.still.retain(|id, most| {
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
            let is_new = count >= STILL_CALLS && still.still.insert(id, count).is_none();
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
        for id in still.still.keys() {
            self.set_still(*id, true);
        }
    }

    fn set_still(&self, id: ExportId, is_still: bool) {
        if let Some(export) = self.export(id) {
            let flag = &export.calls().are_put_off;
            flag.store(is_still, Ordering::Relaxed);
        }
    }
}
