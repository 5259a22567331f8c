//! What tests and measurements need of a client: calls of RPC and COMPOUNDs as bytes, a session of
//! NFS version 4.1 or 4.2, and the transports that carry its calls: records over TCP, and
//! RPC-over-RDMA on user-space iWARP; and a file that makes a server's calls hang.
//!
//! For programs that test: all of it panics where a server does not do as it should, says what came
//! in place of what was expected, and waits for at most [`PATIENCE`].

pub mod call;
pub mod client;
pub mod gate;
pub mod rdma;
pub mod tcp;

use std::time::Duration;

/// How long something that has to happen is waited for.
pub const PATIENCE: Duration = Duration::from_secs(20);
