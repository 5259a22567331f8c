//! Errors of the contract, one per kind of call.

use std::io;

/// A resource could not be made.
#[derive(Debug, thiserror::Error)]
pub enum RdmaError {
    /// More than the device or a bound of this program allows.
    #[error("{what}: {value} asked, {max} is the most; lower it")]
    Limit {
        /// What was asked for.
        what: &'static str,
        /// How much.
        value: u64,
        /// The bound.
        max: u64,
    },
    /// The device lacks it.
    #[error("{0} is not supported by this RDMA device")]
    NotSupported(&'static str),
    /// Objects that do not belong together, or an unknown id.
    #[error("{0}")]
    Invalid(&'static str),
    /// The system refused.
    #[error("{what}: {source}{hint}")]
    System {
        /// The call.
        what: &'static str,
        /// Its error.
        source: io::Error,
        /// The next step, starting with a separator, or empty.
        hint: &'static str,
    },
}

/// A work request was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// All entries are outstanding.
    #[error("the queue is full ({0} work requests outstanding)")]
    QueueFull(u32),
    /// More SGEs than the queue pair was made for.
    #[error("{0} SGEs in one work request, {1} is the most")]
    TooManySges(usize, u32),
    /// An SGE is outside its region, or the key is unknown or of another domain.
    #[error("SGE {0} is not inside the memory region its lkey names")]
    BadSge(usize),
    /// The queue pair is not connected.
    #[error("the queue pair is not connected")]
    NotConnected,
    /// The queue pair takes its receives from a shared receive queue.
    #[error("the queue pair uses a shared receive queue")]
    UsesSrq,
    /// The operation is not supported by the device.
    #[error("{0} is not supported by this RDMA device")]
    NotSupported(&'static str),
}

/// How much has come of what was waited for so long.
fn came(came_bytes: usize, timeout_ms: u64) -> String {
    match came_bytes {
        0 => format!("nothing has come for {timeout_ms} ms"),
        1 => format!("1 byte of it has come in {timeout_ms} ms, and not the rest,"),
        _ => format!("{came_bytes} bytes of it have come in {timeout_ms} ms, and not the rest,"),
    }
}

/// A connection-manager call or an attempt to connect failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CmError {
    /// The peer did not answer in time.
    #[error(
        "{what} timed out after {timeout_ms} ms; check that the address is right and reachable"
    )]
    Timeout {
        /// The step, and the peer.
        what: String,
        /// The wait in milliseconds.
        timeout_ms: u64,
    },
    /// The peer has taken the connection and has said nothing in time, or has begun and not gone
    /// on.
    #[error(
        "{what}: {} from what has taken the connection; check the address and port (on the target: `ss -ltn` shows what \
         listens), and whether that hangs",
        came(*came_bytes, *timeout_ms)
    )]
    Silent {
        /// The step, and the peer.
        what: String,
        /// The wait in milliseconds.
        timeout_ms: u64,
        /// What has come of that which was waited for, in bytes.
        came_bytes: usize,
    },
    /// The system refused, with its own words.
    #[error("{what}: {message}")]
    System {
        /// The step and the address.
        what: String,
        /// The system's message.
        message: String,
        /// The raw error number, when there is one.
        errno: Option<i32>,
    },
    /// The peer broke the protocol.
    #[error("{what}: the peer sent {got}, expected {expected}")]
    Protocol {
        /// The step of the set-up.
        what: &'static str,
        /// What arrived.
        got: String,
        /// What should have arrived.
        expected: &'static str,
    },
    /// The id or its state does not fit the call.
    #[error("{0}")]
    Invalid(&'static str),
}
