//! The thread that looks for what is configured and not there yet, and has it served.

use std::io;
use std::slice;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use capstan_config::Config;

use super::{Steering, locked};
use crate::absent::{Awaited, Wait, absent_export, why_not_there};
use crate::answers;

/// How often is looked: short, so that hosts go on soon after a device has come.
const EVERY: Duration = Duration::from_secs(1);
/// Exports on file systems that do not answer are asked by a process of its own, once in so many
/// looks.
const LOOKS_PER_QUESTION: u64 = 5;
/// What is there and cannot be served is tried after twice as many looks each time, up to these.
const LOOKS_PER_TRY_MAX: u64 = 30;

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

    /// Looks at what it is time for, without a lock: a file system may not answer. Has served what
    /// is there.
    fn look(&self, looks: u64) {
        let published = self.published();
        let config = &published.config;
        for wait in published.waits.iter().filter(|wait| is_time(wait, looks)) {
            let why = match &wait.of {
                Awaited::Export(path) if !answers(config, path) => {
                    Some("its file system does not answer".to_owned())
                }
                of => why_not_there(of, config, &published.ports),
            };
            let mut served = locked(&self.served);
            if served.looked(&wait.of, why, &self.control, self.reactors) {
                self.publish(&served);
            }
        }
    }
}

fn is_time(wait: &Wait, looks: u64) -> bool {
    let pause = match wait.of {
        Awaited::Export(_) => LOOKS_PER_QUESTION,
        Awaited::Listener(_) | Awaited::Namespace(..) => 1,
    };
    let pause = pause.saturating_mul(1 << wait.failures.min(6));
    looks.is_multiple_of(pause.min(LOOKS_PER_TRY_MAX))
}

fn answers(config: &Config, export: &str) -> bool {
    let absent = absent_export(config, export);
    absent.is_some_and(|of| answers::answering(slice::from_ref(&of.path)) == [true])
}

fn look(steering: &Weak<Steering>) {
    for looks in 0.. {
        thread::sleep(EVERY);
        let Some(steering) = steering.upgrade() else {
            return;
        };
        steering.look(looks);
    }
}
