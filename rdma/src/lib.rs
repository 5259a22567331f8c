//! RDMA as the verbs specifications name it, and the providers that implement it.
//!
//! * [`contract`]: the traits and values every provider implements. Everything above this crate is
//!   written against them.
//! * [`Pair`]: a queue pair, with what its provider does beyond that ([`direct`]).
//! * [`iwarp`]: the iWARP suite in user space over ordinary TCP sockets.
//! * [`loopback`]: deterministic, in memory, for tests and simulation.
//! * `conformance` (feature `conformance`): the suite every provider passes.
//!
//! A provider and everything it hands out belong to one thread (a reactor). Only
//! [`contract::MigratedId`] crosses threads.

pub mod address_words;
mod choice;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod contract;
mod device_limits;
pub mod direct;
mod ids;
pub mod iwarp;
pub mod loopback;
pub mod pacing;
mod pair;
mod splitmix;
mod strangers;
#[cfg(feature = "verbs")]
pub mod verbs;

pub use choice::{Beside, ChoiceError, ProviderKind, ProviderPreference, choose};
pub use device_limits::{DeviceLimits, device_limits};
pub use pair::Pair;
pub use strangers::{Source, Strangers};

/// The `tracing` target of log lines of which a peer can cause any number. The subscriber limits
/// them.
pub const PEER_CAUSED: &str = "capstan::peer";
/// Target of log lines about what a peer tries again by itself, many times in a second or for days,
/// until an operator does something. Each is written at most once a minute, so that it names the
/// peer's address without its port, which is another one each time.
pub const PEER_REPEATS: &str = "capstan::peer::repeats";
