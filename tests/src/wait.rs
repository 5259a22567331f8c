//! Waiting for what comes to be.

use std::thread;
use std::time::{Duration, Instant};

/// How long a busy machine may take for anything.
const PATIENCE: Duration = Duration::from_secs(30);
/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Waits until `is_so`; `what` says what that is, as in "until the disk is gone".
///
/// # Panics
/// When it is not so in half a minute.
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "waited too long until {what}");
        thread::sleep(LOOK_EVERY);
    }
}
