//! Front ends: a volume for software that knows nothing of NVMe.
//!
//! * [`nbd`]: a unix socket that speaks NBD; no root needed.
//! * [`fuse`]: a file.
//! * `disk`: that file as a loop device: a disk of the machine.
//!
//! They run on the driver's thread: what they read from their descriptors lands in registered
//! memory, and what the controller wrote there is sent from it. That is why both protocols are
//! spoken here and by no crate (`docs/decisions/0009-fuse-and-nbd-by-our-own-code.md`).

mod block;
pub(crate) mod disk;
#[cfg(test)]
mod fake;
pub mod fuse;
mod lease;
pub mod nbd;
mod unwritten;

pub use block::{BlockQueue, Fault, Geometry};
