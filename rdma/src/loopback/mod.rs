//! A deterministic RDMA provider in memory, for tests and simulation.
//!
//! A [`Network`] carries messages between [`Provider`]s (machines with one device each) of one
//! thread. It keeps the rules of real devices: keys, access, bounds, protection domains, memory
//! windows, negotiated READ depths, receiver-not-ready retries, completion order, flushes. What goes
//! wrong is told by value ([`Faults`]), what is random comes from the seed, and time is what callers
//! say, so the same calls give the same run, event by event ([`Network::trace`]).
//!
//! It is stricter than some devices where that finds mistakes: an lkey is never an rkey, keys come
//! back late, local errors are told by completions, data is gathered when it arrives (not when it
//! is posted), and completions of a reply may come before that of the request.
//!
//! What it does not do: threads, real time, speed. Requests of a side that fails vanish on their way.

mod completion;
mod connection;
mod device;
mod faults;
mod keys;
mod manager;
mod network;
mod pair;
mod pair_config;
mod requester;
mod responder;
mod span;
mod state;
mod trace;

pub use faults::{Delay, Fault, Faults, Told};
pub use manager::Manager;
pub use network::{Network, Provider, attributes};
pub use trace::{TraceEvent, Traced};
