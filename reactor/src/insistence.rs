//! A first signal asks, and a second one insists. What comes together is one.

use std::time::{Duration, Instant};

/// What comes sooner after the first signal was answered is one with it: timeout(1) signals its
/// command and then the group that this is in, and nobody has read the answer yet.
const TOGETHER: Duration = Duration::from_millis(300);

/// When a first signal was taken, and what that leads to was told.
#[derive(Clone, Copy, Debug)]
pub struct Asked(Instant);

impl Asked {
    /// It is told.
    #[must_use]
    pub fn now() -> Self {
        Self(Instant::now())
    }

    /// Whether a signal that comes now is a second one.
    #[must_use]
    pub fn is_insisted_on(&self) -> bool {
        self.0.elapsed() >= TOGETHER
    }

    /// How long ago that was.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}
