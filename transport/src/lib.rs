//! Queues of NVMe over Fabrics over their wires: a queue delivers capsules, moves data and takes
//! responses (`docs/decisions/0010-queue-transport.md`).
//!
//! * Names and events of queues: [`queue`].
//! * Wires, which have the queues: [`wire`].
//! * Memory of queues, and why there is none: [`Memory`], [`NoResources`].
//! * All wires of a reactor, where queues begin and end: [`wires`].
//! * From a connection to a queue: `life`.
//! * In-capsule data, and data that is pushed and pulled: [`data`].
//! * Lists of buffers of the host: `keyed_list`.
//! * What a host has left undone, in the words of its wire: [`overdue`].
//! * Connections, as they come and end: [`manager`].
//! * The host's side of queues: [`host`].
//! * NVMe/RDMA: [`rdma`].
//! * NVMe/TCP: [`tcp`].

pub mod data;
pub mod host;
mod keyed_list;
mod life;
pub mod limits;
pub mod manager;
pub mod overdue;
pub mod queue;
pub mod rdma;
mod resources;
pub mod tcp;
pub mod wire;
pub mod wires;

pub use data::{
    CapsuleData, CopyTo, Full, HostMemory, InPlace, Landed, Piece, Pushed, Receive, Source,
};
pub use overdue::Overdue;
pub use queue::{
    Capsule, End, EndReason, Event, FenceNumber, Pulled, Queue, QueueId, Queues, Responded, Tag,
};
pub use resources::{Memory, NoResources};
pub use tcp::controller::Goes;
pub use wire::Wire;
pub use wires::Wires;
