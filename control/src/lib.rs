//! How a running `capstan-target` is asked and told: JSON-RPC 2.0 in lines of text on a UNIX
//! socket. `docs/control-protocol.md` is the reference.
//!
//! - [`Request`]: what can be asked, each with its parameters;
//! - [`answer`]: what comes back, by request;
//! - [`Failure`]: why nothing was done: the field, the value, what is allowed, the next step;
//! - [`frame`]: lines to requests and answers to lines, for the end that serves;
//! - [`Client`]: the other end.
//!
//! # What it does not do
//! It opens no socket but the client's, and knows neither configuration files nor controllers.

#![forbid(unsafe_code)]

pub mod answer;
mod client;
mod failure;
pub mod frame;
mod request;

pub use client::{CallError, Client};
pub use failure::{Failure, Kind};
pub use request::{
    AddExport, AddListener, AddNamespace, AddSubsystem, AnaPlace, ConfigForm, DisconnectWhich,
    Drain, Levels, NamespacePlace, Request, ResizeNamespace, SetAna, SetNamespace,
};

/// The protocol's version. It changes when an answer loses a field or a request means something
/// else; fields and requests that come do not change it.
pub const PROTOCOL: u32 = 1;

/// Bytes of a request with its newline: the longest path and NQN, and what goes with them, in
/// escapes of six bytes each. A file that is as large as a configuration may be is never sent.
pub const REQUEST_BYTES_MAX: usize = 64 << 10;

/// Bytes of an answer with its newline: a configuration of a mebibyte in escapes of six bytes, or
/// 4 KiB for each of 4096 controllers.
pub const ANSWER_BYTES_MAX: usize = 16 << 20;

/// Where the socket is unless it is said otherwise: the runtime directory of the service.
pub const SOCKET: &str = "/run/capstan-target/control.sock";
