//! Runs an association over the queues of one wire, on one thread.
//!
//! `AssociationEngine` does the work of one turn: it carries out what the
//! [`Host`](crate::host::Host) state machine wants, cuts I/O into commands, sends them, and takes
//! their responses. It never blocks and never reads a clock. Its owner decides when to turn and
//! when to sleep: the driver thread of a [`Controller`](crate::Controller), or the caller of a
//! [`DirectQueue`](crate::DirectQueue).
//!
//! Walk of a READ: `submit`; `issue` (the wire offers the buffer to the controller and sends the
//! capsule; one flush for the batch); the data and the response come; `complete` (where the
//! controller has not given the memory back with the response, the wire takes it back first); the
//! buffer goes to its owner. How a wire does it: `capstan_transport::host`.

mod attention;
mod complete;
mod corruption;
mod engine;
mod io;
mod issue;
mod memory;
mod open;
mod over;
mod passthru;
mod replay;
mod request;
mod troubles;
mod unflushed;

pub(crate) use engine::{AssociationConfig, AssociationEngine};
pub(crate) use io::Source;
pub use io::{Completion, Io, Op, Refused, SubmitError};

#[cfg(test)]
pub(crate) mod tests;
