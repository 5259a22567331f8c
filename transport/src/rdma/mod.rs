//! A queue over RDMA: what a queue does, in work requests and completions of one queue pair.
//!
//! * What the queues on one device share with their wire: `RdmaShared`, and in it [`Receives`].
//! * What one of them has of that: [`Holdings`].
//! * One of them: [`RdmaQueue`]. It posts RDMA READs and WRITEs and responses, and knows which of
//!   them are under way.
//! * The device under them, and what is left of it: `DevicePort`.
//! * What happens on them: [`RdmaWire`], which tells their completions apart.
//! * Buffers that data is pulled into: [`Sinks`]; buffers that it is pushed from: `Sources`.
//! * Which work request a completion is of: `WrId`.
//! * Where the data of a command is, by its SGL: [`host_memory()`].
//! * The host's side: [`host`].

mod fences;
mod holdings;
pub mod host;
mod host_memory;
mod in_place;
mod port;
mod queue;
mod receives;
mod registered;
mod responses;
mod room;
mod shared;
mod sinks;
mod sources;
mod wire;
mod wr_id;

pub use holdings::Holdings;
pub use host_memory::host_memory;
pub(crate) use port::{DevicePlace, DevicePort};
pub(crate) use queue::not_posted;
pub use queue::{Keys, RdmaQueue, Zeroes};
pub use receives::Receives;
pub use sinks::Sinks;
pub use wire::RdmaWire;

#[cfg(test)]
pub(crate) mod tests {
    pub(crate) use super::port::tests::{HERE, memory};
}
