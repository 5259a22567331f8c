//! Shared memory in place of TCP between two ends on one machine.
//!
//! Both ends of a connection whose addresses are of this machine agree on it in the set-up frames
//! (a flag that RFC 5044 reserves), and then exchange the same byte stream of FPDUs through two
//! rings in shared memory instead of the socket. Nothing else changes: every segment is checked as
//! it is when it comes through TCP, and the peer can write nothing but the ring. CRCs are left out,
//! as nothing leaves the memory of the machine.
//!
//! * [`meeting`]: the rendezvous: how the memory gets from one process to the other.
//! * [`memory`]: the shared mapping.
//! * [`ring`]: one direction.
//! * [`way`]: whether a ring is written through the caches or with non-temporal stores.
//! * [`rest`]: gives back the memory of idle connections.
//! * [`link`]: both directions beside their TCP connection, which stays open: it wakes an end that
//!   sleeps, and tells when the peer is gone.
//!
//! Where any step is not possible (another network namespace, a peer with other software, no room
//! for the memory) the connection stays with TCP.

mod link;
mod meeting;
mod memory;
mod rest;
mod ring;
#[cfg(any(test, feature = "fuzzing"))]
pub(super) mod testing;
mod way;

pub(super) use link::SharedLink;
pub(super) use meeting::{Invitation, Meeting, is_same_host, take_up};
pub(super) use memory::Memory;
pub(super) use rest::Resting;
