//! A way past TCP for two ends on one machine.
//!
//! Both ends of a connection whose addresses are of this machine agree on it in the set-up frames
//! (a flag that RFC 5044 reserves), and then exchange the same byte stream of FPDUs through two
//! rings in shared memory instead of the socket. Nothing else changes: every segment is checked as
//! it is when it comes through TCP, and the peer can write nothing but the ring. CRCs are left out,
//! as nothing leaves the memory of the machine.
//!
//! * [`meeting`]: how the memory gets from one process to the other.
//! * [`memory`]: the shared mapping.
//! * [`ring`]: one direction.
//! * [`way`]: whether what is written to it goes through the caches.
//! * [`rest`]: the memory of connections that do nothing.
//! * [`link`]: both directions beside their TCP connection, which stays open: it wakes an end that
//!   sleeps, and says when the peer is gone.
//!
//! Where any step is not possible (another network namespace, a peer of another make, no room for
//! the memory) the connection stays with TCP.

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
