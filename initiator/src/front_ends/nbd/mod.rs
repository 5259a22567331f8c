//! A volume for everything that speaks NBD, on a unix socket.
//!
//! `handshake`, `request` and `transmission` are the protocol, without sockets; `front_end`
//! runs them on the driver's thread.

mod connection;
mod front_end;
mod handshake;
mod in_progress;
mod reply;
mod request;
mod scan;
mod socket;
#[cfg(test)]
mod tests;
mod transmission;
mod uri;
mod wire;

pub use front_end::NbdFrontEnd;
pub use socket::{NbdSocket, SocketError};
pub use uri::uri;
pub use wire::STRING_BYTES_MAX;
