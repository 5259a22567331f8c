//! Transports of an ONC RPC server: records over TCP (RFC 5531, section 11), and RPC-over-RDMA
//! version 1 (RFC 8166) over the verbs contract. Calls come out of it and replies go back; it knows
//! no program.
//!
//! One thread owns the connections. A [`Program`] may block, and is called on threads of a pool.
#![forbid(unsafe_code)]

mod program;

pub use program::{Arguments, Call, ConnectionNumber, Data, Outcome, Program, Results, Wire};
