//! XDR, ONC RPC and RPC-over-RDMA version 1: bytes to typed values and back.
//!
//! # Where things are
//! * [`xdr`]: the reader and the writer that everything above stands on (RFC 4506).
//! * [`rpc`]: calls and replies (RFC 5531), and [`record`]: how they are told apart over TCP.
//! * [`header`]: the transport header of RPC-over-RDMA version 1 (RFC 8166), and [`chunks`]: its
//!   lists.
//! * [`pull`]: what is to be pulled for a call, and where it belongs.
//! * [`push`]: how a reply goes out: what is pushed, and what follows the header.
//! * [`private`]: what two peers say while a connection is set up (RFC 8797).
//! * [`credits`]: how many calls a client may have outstanding.
//! * [`limits`]: the bounds of what a peer can make grow.
//!
//! # What it does not do
//! It has no sockets, verbs or clock, allocates nothing, and knows no RPC program.
#![no_std]
#![forbid(unsafe_code)]
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::wildcard_enum_match_arm
)]

pub mod chunks;
pub mod credits;
pub mod header;
pub mod limits;
mod macros;
pub mod private;
pub mod pull;
pub mod push;
pub mod record;
pub mod rpc;
pub mod xdr;
