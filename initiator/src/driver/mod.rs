//! Runs an association over the RDMA contract, on one thread.
//!
//! `AssociationEngine` does the work of one turn: it carries out what the
//! [`Host`](crate::host::Host) state machine wants, cuts I/O into commands, posts them, and takes
//! their completions. It never blocks and never reads a clock. Its owner decides when to turn and
//! when to sleep: the driver thread of a [`Controller`](crate::Controller), or the caller of a
//! [`DirectQueue`](crate::DirectQueue).
//!
//! Walk of a READ: `submit` → `issue` (bind a memory window on the buffer, Send the capsule, one
//! doorbell for the batch) → the controller's RDMA WRITEs and its SEND_WITH_INV → `complete` (the
//! receive says which key it closed) → the buffer goes back. A WRITE that fits the capsule travels
//! behind the SQE; a larger one is pulled through a window by RDMA READ.

mod attention;
mod complete;
mod connection;
mod device;
mod engine;
mod io;
mod issue;
mod open;
mod passthru;
mod replay;
mod request;
mod troubles;
mod unflushed;
mod wr_id;

pub use engine::WindowsClosed;
pub(crate) use engine::{AssociationConfig, AssociationEngine};
pub(crate) use io::Source;
pub use io::{Completion, Io, Op, Refused, SubmitError};

#[cfg(test)]
mod tests;
