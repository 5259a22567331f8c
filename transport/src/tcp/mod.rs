//! Queues of NVMe/TCP (NVM Express TCP Transport Specification 1.1), over the PDUs of
//! [`capstan_nvme_proto::tcp`].
//!
//! * How a connection begins: [`NVME_TCP`].
//! * The controller's side of a queue, without I/O: [`controller`].
//! * What it gets when its connection becomes a queue: `furnish`.
//! * Where the data of a command is, by its SGL: [`host_memory()`].
//! * The host's side of a queue: [`host`].
//! * Either over its socket: [`link`].
//! * All sockets of a reactor: [`wire`].
//! * The host's side of all queues of an association, over their sockets: [`host_wire`].
//! * Which of them are ending: `closing`.
//! * Memory of what is copied to be sent: [`staging`].
//! * Bounds: [`limits`].

mod beginning;
pub(crate) mod closing;
pub mod controller;
mod furnish;
pub mod host;
mod host_memory;
pub mod host_wire;
pub mod limits;
pub mod link;
mod outgoing;
pub mod staging;
mod stream;
pub mod wire;

pub use beginning::NVME_TCP;
pub use host_memory::host_memory;
pub use stream::SocketPlace;
