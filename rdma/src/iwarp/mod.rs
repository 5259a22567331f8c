//! iWARP in user space: RDMAP (RFC 5040) over DDP (RFC 5041) over MPA (RFC 5044, RFC 6581) over an
//! ordinary TCP socket. It needs no device, no kernel module and no privilege, and speaks with
//! anything that speaks iWARP: Linux `siw`, iWARP NICs, or itself.
//!
//! One [`Provider`] belongs to one thread and moves only inside
//! [`CompletionQueue::poll`](crate::contract::CompletionQueue::poll),
//! [`ConnectionManager::poll`](crate::contract::ConnectionManager::poll) and
//! [`QueuePair::ring_doorbell`](crate::contract::QueuePair::ring_doorbell). Timeouts run on the
//! clock given to `ConnectionManager::poll`, which therefore has to be called now and then (its
//! `next_deadline_us` says when).
//!
//! * Sending: a doorbell builds FPDUs from as many work requests as fit and hands them to TCP in
//!   one system call: headers and short payloads from scratch memory, the rest straight from
//!   registered memory. A send or RDMA WRITE completes when TCP has it.
//! * Receiving: payload goes from the socket to its final address once; what arrived together with
//!   its header is copied from the stream buffer. Key, bounds, access, protection domain and queue
//!   pair are checked on every segment before a byte of it is placed.
//! * Between two ends on one machine the same stream of FPDUs takes a ring in shared memory
//!   ([`Config::same_host`]).
//! * A Send that finds no receive waits, and TCP holds the peer back, until a receive is posted or
//!   [`Config::receiver_not_ready_timeout_ms`] has passed.
//!
//! # Layers
//! The lowest first; no file imports from a layer above its own (`layers` tests it).
//!
//! 1. wire: the formats of MPA, DDP, RDMAP and Terminate (`wire`), and what can be chosen
//!    (`config`).
//! 2. memory: STags and what they open (`stag`), and ranges of it that are read or written
//!    (`piece`).
//! 3. queues: work requests (`sq`), receives, completions, RDMA Reads (`read`), and what ends a
//!    connection (`fatal`).
//! 4. core: a connection as a state machine without input, output or clock; receiving (`core::rx`)
//!    and sending (`core::tx`).
//! 5. link: a TCP socket, rings in shared memory, or in tests a pipe. Core and link do not know
//!    each other.
//! 6. driver: a connection's core and link together, and which of them run when.
//! 7. provider: the objects of the [contract](crate::contract), and the connection manager (`cm`).
//!
//! # What it does not do
//! MPA markers: a peer that insists on them is refused. Immediate data and atomics (RFC 7306).
//! Fast registration work requests: memory windows of type 2 do that here.

mod cm;
mod completions;
mod config;
mod core;
mod cq;
mod device;
mod driver;
mod fatal;
#[cfg(test)]
mod layers;
mod link;
mod memory;
mod piece;
mod provider;
mod qp;
mod read;
mod receives;
mod sq;
mod srq;
mod stag;
mod stag_keys;
#[cfg(any(test, feature = "fuzzing"))]
pub mod testing;
pub mod wire;

pub use cm::{OtherProtocol, OtherStream, OtherStreams};
pub use config::{Config, CrcUse, FpduSize};
pub use link::socket::can_listen;
pub(crate) use memory::Domain;
pub use provider::Provider;
pub(crate) use qp::QpHandle;
