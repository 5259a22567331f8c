//! A deterministic RDMA provider in memory, for tests and simulation.
//!
//! A [`Network`] carries messages between [`Provider`]s (machines with one device each) of one
//! thread. It keeps the rules of real devices: keys, access, bounds, protection domains, memory
//! windows, negotiated READ depths, receiver-not-ready retries, completion order, flushes. What
//! goes wrong is given by value ([`Faults`]), what is random comes from the seed, and time is what
//! callers say, so the same calls give the same run, event by event ([`Network::trace`]).
//!
//! It is stricter than some devices where that finds mistakes: an lkey is never an rkey, keys come
//! back late, local errors are reported by completions, data is gathered when it arrives (not when
//! it is posted), and completions of a reply may come before that of the request.
//!
//! Programs on both sides run in one thread. They are polled until neither has anything to do; then
//! time jumps to the network's next deadline, or to one of the programs' own:
//!
//! ```
//! use std::net::SocketAddr;
//!
//! use capstan_rdma::contract::{CmEventKind, ConnectionManager};
//! use capstan_rdma::loopback::{Delay, Faults, Network, attributes};
//!
//! let faults = Faults {
//!     delay: Delay::Uniform { min_us: 5, max_us: 50 },
//!     ..Faults::NONE
//! };
//! let network = Network::with_faults(42, faults);
//! let target = network.provider(&["10.0.0.1".parse()?], attributes())?;
//! let host = network.provider(&["10.0.0.2".parse()?], attributes())?;
//! let (mut target, mut host) = (target.manager()?, host.manager()?);
//!
//! let (_, at) = target.listen(SocketAddr::from(([10, 0, 0, 1], 4420)), 16)?;
//! let id = host.resolve(at, None, 1_000_000, network.now_us())?;
//! let event = loop {
//!     if let Some(event) = host.poll(network.now_us()) {
//!         break event;
//!     }
//!     network.advance_to(network.next_deadline_us().ok_or("nothing will happen")?);
//! };
//! assert!(event.id == id && matches!(event.kind, CmEventKind::Resolved));
//! assert!((5..=50).contains(&network.now_us()));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! What it does not do: threads, real time, speed. Requests of a side that fails vanish on their
//! way.

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

pub use faults::{Delay, Fault, Faults, Notified};
pub use manager::Manager;
pub use network::{Network, Provider, attributes};
pub use trace::{TraceEvent, Traced};
