//! Looks at what is allocated of a volume, for Get LBA Status. A file system may keep such a look
//! waiting, so a volume has a thread of its own for as long as there is one: nothing else waits for
//! a medium that does not answer. Looks at one volume wait for one another, the Admin queues taking
//! turns; there is one at most for each command that is outstanding on Admin queues.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use capstan_storage::Store;
use capstan_subsystem::{AllocationQuery, BackendId, ConnId};

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
    waiting: Waiting<(AllocationQuery, Box<LookingUp>)>,
}

/// Looks that have not begun, by the Admin queue that asked.
struct Waiting<L> {
    of: BTreeMap<ConnId, VecDeque<L>>,
    /// Whose turn it was last.
    last: Option<ConnId>,
}

impl<L> Default for Waiting<L> {
    fn default() -> Self {
        Self {
            of: BTreeMap::new(),
            last: None,
        }
    }
}

impl<L> Waiting<L> {
    fn add(&mut self, conn: ConnId, look: L) {
        self.of.entry(conn).or_default().push_back(look);
    }

    /// The oldest of the queue behind the one whose turn it was last.
    fn next(&mut self) -> Option<L> {
        let behind = |last| (Bound::Excluded(last), Bound::Unbounded);
        let later = self
            .last
            .and_then(|last| self.of.range(behind(last)).next());
        let (&conn, _) = later.or_else(|| self.of.first_key_value())?;
        self.last = Some(conn);
        let of_queue = self.of.get_mut(&conn)?;
        let look = of_queue.pop_front();
        if of_queue.is_empty() {
            self.of.remove(&conn);
        }
        look
    }

    fn forget(&mut self, conn: ConnId) {
        self.of.remove(&conn);
    }
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

    /// A connection has ended: what it asked for is not needed any more.
    pub(crate) fn forget(&self, conn: ConnId) {
        for volume in lock(&self.0).values() {
            lock(&volume.looks).waiting.forget(conn);
        }
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
        looks.waiting.add(command.conn(), (query, command));
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
                    "no thread to look at what is allocated: {error}; hosts are told that everything is"
                );
                while let Some((query, command)) = looks.waiting.next() {
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
                let next = looks.waiting.next();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_take_turns_and_what_ended_ones_asked_is_not_looked_at() {
        let mut waiting = Waiting::default();
        for look in 0..3 {
            waiting.add(ConnId(7), (7, look));
        }
        waiting.add(ConnId(9), (9, 0));
        assert_eq!(waiting.next(), Some((7, 0)));
        waiting.add(ConnId(8), (8, 0));
        assert_eq!(waiting.next(), Some((8, 0)), "behind the last");
        assert_eq!(waiting.next(), Some((9, 0)));
        assert_eq!(waiting.next(), Some((7, 1)), "from the start again");
        waiting.add(ConnId(8), (8, 1));
        waiting.forget(ConnId(7));
        assert_eq!(waiting.next(), Some((8, 1)));
        assert_eq!(waiting.next(), None);
        assert!(waiting.of.is_empty(), "nothing is kept of a queue");
    }
}
