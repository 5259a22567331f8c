//! Looks at what is allocated of a volume, for Get LBA Status. A file system may keep such a look
//! waiting, so a volume has a thread of its own for as long as there is one: nothing else waits for
//! a medium that does not answer. Looks at one volume wait for one another; there is one at most for
//! each command that is outstanding on Admin queues.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use capstan_storage::Store;
use capstan_subsystem::{AllocationQuery, BackendId};

use crate::control_plane::{ControlPlane, Message};
use crate::io_path::LookingUp;

/// The volumes that can be looked at.
#[derive(Default)]
pub(crate) struct Allocations(Mutex<BTreeMap<BackendId, Arc<Volume>>>);

struct Volume {
    store: Store,
    looks: Mutex<Looks>,
}

#[derive(Default)]
struct Looks {
    has_thread: bool,
    waiting: VecDeque<(AllocationQuery, Box<LookingUp>)>,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every call leaves it whole; a panic elsewhere does not spoil it.
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Allocations {
    pub(crate) fn add(&self, backend: BackendId, store: &Store) {
        let volume = Volume {
            store: store.clone(),
            looks: Mutex::default(),
        };
        lock(&self.0).insert(backend, Arc::new(volume));
    }

    /// A volume is closed. Its thread still answers what it was asked.
    pub(crate) fn remove(&self, backend: BackendId) {
        lock(&self.0).remove(&backend);
    }

    /// Begins to find out what `query` asks; the answer goes to the reactor of `command`.
    pub(crate) fn look_up(
        &self,
        control: &Arc<ControlPlane>,
        query: AllocationQuery,
        command: Box<LookingUp>,
    ) {
        let volume = lock(&self.0).get(&query.backend).map(Arc::clone);
        let Some(volume) = volume else {
            // A reload has taken it out meanwhile: reads tell.
            return answer_unknown(control, query, command);
        };
        let mut looks = lock(&volume.looks);
        looks.waiting.push_back((query, command));
        if looks.has_thread {
            return;
        }
        let (of_thread, control_of_thread) = (Arc::clone(&volume), Arc::clone(control));
        let thread = thread::Builder::new().name("allocation".to_owned());
        match thread.spawn(move || of_thread.look(&control_of_thread)) {
            Ok(_) => looks.has_thread = true,
            Err(error) => {
                tracing::warn!(
                    volume = %volume.store.name(),
                    "no thread to look at what is allocated ({error}): hosts are told that everything is"
                );
                for (query, command) in looks.waiting.drain(..) {
                    answer_unknown(control, query, command);
                }
            }
        }
    }
}

impl Volume {
    /// Carries out looks until there are no more.
    fn look(&self, control: &ControlPlane) {
        loop {
            let next = {
                let mut looks = lock(&self.looks);
                let next = looks.waiting.pop_front();
                looks.has_thread = next.is_some();
                next
            };
            let Some((query, mut command)) = next else {
                return;
            };
            let allocated = self.store.allocated(query.lbas, query.extents_max);
            command.request.set_allocated(allocated);
            control.send_if_running(command.conn(), Message::LookedUp(command));
        }
    }
}

/// What is not known to be free is allocated.
fn answer_unknown(control: &ControlPlane, query: AllocationQuery, mut command: Box<LookingUp>) {
    command.request.set_allocated(vec![query.lbas]);
    control.send_if_running(command.conn(), Message::LookedUp(command));
}
