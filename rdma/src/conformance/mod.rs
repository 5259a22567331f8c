//! The conformance suite every provider must pass.
//!
//! Written against [`contract`](crate::contract) only. A [`Fabric`] says how to make two endpoints
//! and how time passes; [`CASES`] lists the cases, and [`run`] runs one. Nothing in here panics or
//! prints, so the list can be run by a test binary and by a tool that checks a machine's devices.
//!
//! What it does not check: speed, and what only one provider has (fault injection, wire formats).

mod area;
mod cases;
mod fabric;
mod link;
mod outcome;
mod world;

pub use cases::CASES;
pub use fabric::{Behaviour, Fabric, RealClock, ReceiverNotReady, Side};
pub use outcome::{Outcome, Stop};

/// One thing a provider must do.
#[derive(Clone, Copy)]
pub struct Case {
    /// Name, stable: `topic::what_must_hold`.
    pub name: &'static str,
    body: fn(&mut dyn Fabric) -> Outcome,
}

/// Runs one case on endpoints of its own.
///
/// # Errors
/// [`Stop`] says what was broken, or why the case does not apply to this device.
pub fn run(case: &Case, fabric: &mut dyn Fabric) -> Outcome {
    (case.body)(fabric)
}
