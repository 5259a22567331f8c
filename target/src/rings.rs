//! The io_uring rings of a target: one for each reactor, and one for the control thread. Where the
//! kernel counts them against RLIMIT_MEMLOCK, a small limit may have no room for them.

use std::io;
use std::rc::Rc;
use std::thread;
use std::time::Duration;

use anyhow::anyhow;
use capstan_doctor::{Check, Machine};
use capstan_storage::{Engine, EngineConfig, EngineError, ring_bytes, try_rings};
use nix::sys::resource::{Resource, getrlimit};
use tokio_uring::Runtime;

/// Entries of the control thread's ring, which has nothing to do but to be waited for. tokio-uring
/// makes room for twice as many completions.
const CONTROL_ENTRIES: u32 = 8;
/// How often that ring is tried, and after how long again, where RLIMIT_MEMLOCK has no room for it:
/// what processes that have ended count is given back some milliseconds later. Each try that fails
/// costs tokio three descriptors until the process ends.
const CONTROL_TRIES: u32 = 8;
const CONTROL_AGAIN: Duration = Duration::from_millis(60);

/// Entries and operations in flight of every ring.
fn sizes(reactors: usize) -> impl Iterator<Item = (u32, u32)> {
    let engine = EngineConfig::default();
    let engine = (engine.entries, engine.in_flight_max);
    let control = (CONTROL_ENTRIES, 2 * CONTROL_ENTRIES);
    std::iter::repeat_n(engine, reactors).chain([control])
}

fn needed_bytes(reactors: usize) -> u64 {
    let each = sizes(reactors).map(|(entries, in_flight)| ring_bytes(entries, in_flight));
    each.fold(0, u64::saturating_add)
}

/// Whether a target with so many reactors can have its rings.
pub(crate) fn check(machine: &Machine, reactors: usize) -> Check {
    let what = format!("{reactors} reactor(s) and the control thread");
    capstan_doctor::rings(machine, needed_bytes(reactors), &what, || {
        try_rings(sizes(reactors))
    })
}

/// The runtime of the control thread, with its ring.
///
/// # Errors
/// The system has no room for a ring, or no descriptor.
pub(crate) fn control(reactors: usize) -> anyhow::Result<Runtime> {
    let mut tries = 1..CONTROL_TRIES;
    let mut builder = tokio_uring::builder();
    let made = loop {
        match Runtime::new(builder.entries(CONTROL_ENTRIES)) {
            Err(error) if is_shortage(&error) && tries.next().is_some() => {
                thread::sleep(CONTROL_AGAIN);
            }
            made => break made,
        }
    };
    made.map_err(|error| explained(EngineError::refused(error), reactors))
}

/// The ring of a reactor with what it needs.
///
/// # Errors
/// As [`Engine::new`], with the limit where that is in the way.
pub(crate) fn engine(reactors: usize) -> anyhow::Result<Rc<Engine>> {
    Engine::new(&EngineConfig::default()).map_err(|error| explained(error, reactors))
}

/// With the limit and what all rings need, where one could not be made for want of memory.
fn explained(error: EngineError, reactors: usize) -> anyhow::Error {
    match &error {
        EngineError::Setup { error: cause, .. } if is_shortage(cause) => {
            anyhow!("{}: {error}", shortage(reactors))
        }
        _ => error.into(),
    }
}

fn is_shortage(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::OutOfMemory
}

fn shortage(reactors: usize) -> String {
    let limit = match getrlimit(Resource::RLIMIT_MEMLOCK) {
        Ok((bytes, _)) if bytes < u64::MAX => format!("{} KiB", bytes / 1024),
        _ => "unlimited".to_owned(),
    };
    format!(
        "RLIMIT_MEMLOCK is {limit}, and the rings of {reactors} reactor(s) and the control thread need {} KiB",
        needed_bytes(reactors) / 1024
    )
}
