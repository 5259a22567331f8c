//! The host's side over RDMA: the queues of one association, over one device.
//!
//! The memory of a command's data is opened to the controller by a memory window, for this command
//! alone, and revoked when the controller or this side has invalidated it. On a device without
//! windows the whole data memory is open while there are connections.
//!
//! * Connecting, completions and closing: [`RdmaHostWire`].
//! * One queue: `connection`.
//! * The device and its registrations: `device`.

mod connection;
mod device;
mod open;
mod wire;
mod wr_id;

pub use wire::{RdmaHostSettings, RdmaHostWire};
