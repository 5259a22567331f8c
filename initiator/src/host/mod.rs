//! The host side of an association, without I/O and without a clock.
//!
//! [`Host`] decides; the driver acts. What happened goes in by `handle_*`, what is to be done comes
//! out of [`Host::poll_action`], what the owner should know out of [`Host::poll_event`], and when
//! to call [`Host::handle_timeout`] is [`Host::next_deadline_us`]. After every `handle_*` the
//! driver polls actions first, then events, both until `None`. Time is an argument everywhere.
//!
//! The life of an association: RDMA connection and Connect of the Admin Queue, VS and CAP, CC.EN,
//! wait for CSTS.RDY, Identify, number of queues, event configuration, RDMA connection and Connect
//! of each I/O queue, namespaces, live. A loss after that leads to waiting and connecting again
//! until `ctrl_loss_tmo` has passed.
//!
//! # What it does not do
//! It does not know the I/O commands in flight: the driver keeps them, submits them by the CIDs of
//! [`Host::queue`], and issues them again after [`Event::Lost`] and [`Event::Live`]; those that
//! change media only when [`Host::holds_writes`] says so no more. No authentication yet: a
//! controller that asks for it is refused with words.

mod action;
mod association;
mod backoff;
mod command;
mod config;
mod discovery;
mod fencing;
mod info;
mod live;
mod queue;
mod scan;
mod setup;
mod words;

#[cfg(test)]
mod tests;

pub(crate) use action::Event;
pub use action::{Action, AssociationStatus, CommandData, CommandReply};
pub(crate) use association::ADMIN_QUEUE_ENTRIES;
pub use association::{Counters, Host};
pub use config::HostConfig;
pub use discovery::{Discovery, DiscoveryError};
pub use fencing::Held;
pub use info::{ControllerInfo, NamespaceInfo, Unidentified, Unusable};
pub(crate) use queue::SubmissionQueue;
pub use queue::{QUEUE_ENTRIES_MAX, QUEUE_ENTRIES_MIN, SlotIndex};
pub(crate) use words::{no_namespace, rdma_only};
