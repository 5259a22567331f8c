//! The thread that looks for what is configured and not there yet, and has it served.

use std::io;
use std::slice;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use super::{Published, Steering, locked};
use crate::absent::{Awaited, Wait, missing, missing_at, missing_under};
use crate::answers;

/// How often is looked: short, so that hosts go on soon after a device has come.
const EVERY: Duration = Duration::from_secs(1);
/// Exports on file systems that do not answer are asked by a process of its own, once in so many
/// looks.
const LOOKS_PER_QUESTION: u64 = 5;

impl Steering {
    /// Looks until the target ends.
    ///
    /// # Errors
    /// There is no thread to be had.
    pub(crate) fn look_for_absent(steering: &Arc<Self>) -> io::Result<()> {
        let steering = Arc::downgrade(steering);
        let look = move || look(&steering);
        let started = thread::Builder::new().name("absent".into()).spawn(look);
        started.map(drop)
    }

    /// Has it served. What keeps it from being served is told once.
    fn take_in(&self, wait: &Wait, told: &mut String) {
        let mut served = locked(&self.served);
        match served.take_in(&wait.of, &self.control, self.reactors) {
            Ok(words) => {
                tracing::info!("{words}");
                self.publish(&served);
            }
            Err(error) => {
                let words = format!("{}: {error:#}", wait.of);
                if *told != words {
                    let every = EVERY.as_secs();
                    tracing::error!("{words}; it is tried again every {every} s");
                    *told = words;
                }
            }
        }
    }
}

impl Published {
    /// Whether it may be there now. Nothing is locked meanwhile: a file system may not answer.
    fn may_be_there(&self, awaited: &Awaited, looks: u64) -> bool {
        match awaited {
            Awaited::Listener(port) => {
                let mut listeners = self.config.listeners.iter().zip(&self.ports);
                let listener = listeners.find(|(_, id)| *id == port);
                listener.is_some_and(|(listener, _)| missing_at(listener).is_none())
            }
            Awaited::Namespace(nqn, nsid) => {
                let subsystem = self.config.subsystems.iter().find(|of| of.nqn == *nqn);
                let mut absent = subsystem.into_iter().flat_map(|of| &of.absent);
                let namespace = absent.find(|of| of.nsid == *nsid);
                namespace.is_some_and(|namespace| missing_under(namespace).is_none())
            }
            Awaited::Export(path) => {
                let mut absent = self.config.nfs.iter().flat_map(|nfs| &nfs.absent);
                let export = absent.find(|export| export.client_path == *path);
                export.is_some_and(|export| {
                    looks.is_multiple_of(LOOKS_PER_QUESTION)
                        && answers::answering(slice::from_ref(&export.path)) == [true]
                        && missing(&export.path).is_none()
                })
            }
        }
    }
}

fn look(steering: &Weak<Steering>) {
    let mut told = String::new();
    for looks in 0.. {
        thread::sleep(EVERY);
        let Some(steering) = steering.upgrade() else {
            return;
        };
        let published = steering.published();
        for wait in &published.waits {
            if published.may_be_there(&wait.of, looks) {
                steering.take_in(wait, &mut told);
            }
        }
    }
}
