//! Queues of NVMe/TCP (NVM Express TCP Transport Specification 1.1), over the PDUs of
//! [`capstan_nvme_proto::tcp`].
//!
//! * The controller's side of a queue, without I/O: [`controller`].
//! * The host's: [`host`].
//! * Either over its socket: [`link`].
//! * All sockets of a reactor: [`wire`].
//! * The host's side of all queues of an association, over their sockets: [`host_wire`].
//! * Memory of what is copied to be sent: [`staging`].
//! * Bounds: [`limits`].

pub mod controller;
pub mod host;
pub mod host_wire;
pub mod limits;
pub mod link;
mod outgoing;
pub mod staging;
mod stream;
pub mod wire;

pub use stream::{End, Place};
