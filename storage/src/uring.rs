//! Volumes on files and block devices: one io_uring per reactor.

mod command;
mod engine;
mod entry;
mod fixed;
mod open_file;
mod probe;
mod request;
mod ring;
mod setup;
mod syncs;
mod volume;

pub use engine::{Engine, EngineConfig};
pub use fixed::FixedBuffers;
pub use probe::{Capabilities, try_rings};
pub use setup::ring_bytes;
pub(crate) use volume::UringVolume;

/// An io_uring that cannot be made or no longer works.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The kernel refuses to make the ring.
    #[error("cannot create an io_uring: {error}; {remedy}")]
    Setup {
        /// The kernel's reason.
        error: std::io::Error,
        /// What to do about it.
        remedy: &'static str,
    },
    /// No eventfd to wake the reactor with.
    #[error(
        "cannot make an eventfd for the io_uring: {source}; raise `ulimit -Hn` if it is out of descriptors"
    )]
    Wake {
        /// The kernel's reason.
        source: std::io::Error,
    },
    /// No memory for the engine's own buffers.
    #[error(transparent)]
    Memory(#[from] capstan_memory::SlabError),
    /// The kernel refuses to take operations from the ring.
    #[error("io_uring_enter failed: {source}; the ring is unusable, this is a bug")]
    Enter {
        /// The kernel's reason.
        source: std::io::Error,
    },
}
