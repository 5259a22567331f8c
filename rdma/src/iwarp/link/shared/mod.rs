//! Shared memory in place of TCP between two ends on one machine.
//!
//! Both ends of a connection whose addresses are of this machine agree on it in the set-up frames
//! (a flag that RFC 5044 reserves), and then exchange the same byte stream of FPDUs through two
//! rings in shared memory instead of the socket. Nothing else changes: every segment is checked as
//! it is when it comes through TCP, and the peer can write nothing but the ring. CRCs are left out,
//! as nothing leaves the memory of the machine.
//!
//! * [`memory`]: the shared mapping.
//! * [`ring`]: one direction.
//! * [`stores`]: whether a ring is written through the caches or with non-temporal stores.
//! * [`link`]: both directions beside their TCP connection, which stays open: it wakes an end that
//!   sleeps, and tells when the peer is gone.
//!
//! The driver passes the memory from one process to the other (`driver::rendezvous`).
//! Where any step is not possible (another network namespace, a peer with other software, no room
//! for the memory) the connection stays with TCP.

pub(in crate::iwarp) mod link;
pub(in crate::iwarp) mod memory;
pub(in crate::iwarp) mod ring;
mod stores;

pub(in crate::iwarp) use link::SharedLink;
pub(in crate::iwarp) use memory::Memory;
