//! A volume as a file, for the loop driver: with it a disk of the machine.
//!
//! The kernel's protocol is spoken here rather than through a crate: the driver's thread reads
//! requests itself, data of writes lands in registered memory and replies to reads are sent from
//! it. `request` and `file_system` are without I/O.

mod connection;
mod device;
pub(crate) mod file_system;
mod front_end;
mod replies;
mod request;
#[cfg(test)]
mod tests;
mod wire;

pub use connection::FuseConnection;
pub use device::FuseError;
pub(crate) use device::FuseMount;
pub(crate) use front_end::FuseFrontEnd;
