//! The host side of Capstan: NVMe over RDMA as a library, without kernel module and without root.
//!
//! * [`Controller`]: an association on a thread of its own; [`Volume`]s of it read and write from
//!   any thread, async without a runtime or blocking.
//! * [`DirectQueue`]: an association on the caller's thread, for callers that poll: no hop, no
//!   allocation per I/O.
//! * [`FrontEnd`]: turns requests of other software (FUSE, NBD, ublk) into I/O on the driver's
//!   thread.
//! * [`host`]: the state machine of an association, without I/O.
//! * `driver`: runs it over the RDMA contract.
//!
//! # What it does not do
//! Authentication and multipath. One association has one path; when it is lost, I/O waits for its
//! return.

pub mod address;
pub mod allocation;
pub mod claim;
mod controller;
mod direct;
mod driver;
mod driver_thread;
pub mod error;
mod front_end;
pub mod front_ends;
pub mod health;
pub mod host;
pub mod identity;
mod limits;
mod oneshot;
pub mod options;
mod provider;
mod race;
#[cfg(test)]
mod scripted;
pub mod shortage;
mod volume;
pub mod words;

pub use capstan_rdma::Preference;
pub use capstan_reactor::Armed;
pub use controller::{Controller, Snapshot};
pub use direct::DirectQueue;
pub use driver::{Completion, Io, Op, Refused, SubmitError, WindowsClosed};
pub use error::{CommandError, ConnectError, IoError, Losses, OptionsError};
pub use front_end::{FrontEnd, QueueHandle};
pub use options::{Options, ReplayWrites};
pub use volume::{BlockingVolume, Volume};
