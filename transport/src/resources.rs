//! What queues need of a reactor, and why they do not get it.

use std::sync::Arc;

use capstan_memory::{Pool, Slab};
use capstan_rdma::contract::RdmaError;

/// A reactor's memory for commands and queues, which every RDMA device registers. Two slabs,
/// because receives stay for long: among them, data buffers would leave gaps in which a large
/// transfer never fits again.
pub struct Memory {
    /// Data of commands in flight.
    pub data: Pool,
    /// Receives and responses of all queues, and the receives of connections that are none yet.
    pub queues: Pool,
    /// Two pages for each connection that is no queue yet: for the data of its Connect, and for its
    /// response. A discovery controller's Admin queue keeps both, and has two more.
    pub strangers: Pool,
    /// For how many connections that are no queue yet there is room.
    pub places: u32,
    /// As many zeroes as the largest transfer has bytes, to push for reads of what is known to be
    /// zero, where a volume has such LBAs. Nothing ever writes here.
    pub zeroes: Option<Arc<Slab>>,
}

/// Why a queue gets nothing of what it needs.
#[derive(Debug, thiserror::Error)]
pub enum NoResources {
    /// There is no memory for it; the text says how much is needed and how much there is.
    #[error("{0}")]
    Memory(String),
    /// The device has no more of something; the text says of what, and how much it has.
    #[error("{0}")]
    Device(String),
    /// Every place for a connection that is no queue yet is taken.
    #[error("too many connections are no queue yet")]
    Places,
    /// The device did not do something.
    #[error(transparent)]
    Rdma(#[from] RdmaError),
}
