//! NVM subsystem, controller and queues as a sans-I/O state machine.
//!
//! Two halves. [`Target`] is the control half: subsystems, ports, hosts, controllers, Connect, the
//! Admin queues, Keep Alive. A driver keeps it behind one lock. [`IoQueue`] is the data half: one
//! I/O queue, which moves to the thread that owns its connection and takes no lock. They share
//! atomics and immutable namespace tables.
//!
//! Nothing here does I/O, reads a clock or knows a thread: what happened goes in through
//! `handle_*` (and [`Target::begin_admin`], [`Target::execute_admin`]), what is to be done comes
//! out of [`Target::poll_action`], and time is the `now_us` argument.
//!
//! The walk of a command on an I/O queue:
//! 1. [`IoQueue::handle_command`] with the SQE gives an [`IoCommand`]: operation, namespace, bytes
//!    of data, and the [`Permit`] to complete it. Where the data is the driver finds out meanwhile:
//!    which SGLs a transport has is nothing that this crate knows.
//! 2. The driver moves the data and executes the operation on the namespace's backend.
//! 3. [`IoQueue::complete`] turns the permit and a status into the response capsule.
//!
//! A reservation command is a [`ControlCommand`] instead, executed by [`Target::execute_control`].
//! Reservations belong to the subsystem, whichever controller they came through, and end with it,
//! but for what the driver keeps of them ([`Action::KeepReservations`]).
//!
//! # What it does not do
//! Metadata and end-to-end protection, fused operations, namespace management, firmware update,
//! sanitize, zoned or key value command sets, in-band authentication.
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::wildcard_enum_match_arm
    )
)]

extern crate alloc;
// The derive of the arbitrary crate needs it.
#[cfg(any(test, feature = "testing"))]
extern crate std;

mod action;
mod aer;
pub mod bounds;
mod config;
mod control;
mod controller;
mod counters;
mod features;
mod gate;
mod identify;
mod io_queue;
mod log_page;
mod namespace;
mod queue;
mod refuse;
mod reported;
mod reservation;
mod shared;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
mod transitions;
mod wire;

pub use action::{
    AbortId, Action, Association, ControllerId, DisconnectReason, DrainId, Event, FenceId, FlushId,
    KeepId,
};
pub use config::{
    ConfigError, HostPolicy, NamespaceConfig, PortConfig, PortId, SubsystemConfig, TargetConfig,
    Transport,
};
pub use control::{
    AdminOutcome, AdminRequest, AdminStep, AllocationQuery, AssociationReport, CmRefusal,
    ConnectOutcome, ConnectRequest, ControlOutcome, Excess, HostCounts, HostPlace, QueueReport,
    QueueSizes, RegistrantReport, ReservationsReport, Settle, Share, Stock, Target,
};
pub use controller::{ControllerEvent, ControllerState};
pub use counters::{HostCounters, NamespaceCounters, QueueCounters};
pub use io_queue::{
    ControlCommand, Drained, IoCommand, IoOperation, IoQueue, IoQueueEvent, IoQueueState, IoStep,
    NamespaceRef,
};
pub use namespace::{BackendId, Geometry, Namespace, NamespaceIdentity, NamespaceTable};
pub use queue::Permit;
pub use refuse::{Refusal, RefuseReason};
pub use reservation::{
    InconsistentReservations, KeptReservations, Persistence, ReservationsToKeep,
};
pub use transitions::IllegalTransition;

/// The driver's name of one transport connection, which is one queue. Never used twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConnId(pub u64);
