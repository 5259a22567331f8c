//! Transports of an ONC RPC server: records over TCP (RFC 5531, section 11), and RPC-over-RDMA
//! version 1 (RFC 8166) over the verbs contract. Calls come out of it and replies go back; it knows
//! no program.
//!
//! One thread owns the connections ([`Server::run`]). A [`Program`] may block, and is called on
//! threads of a pool: addresses take turns, and at its turn the connections of an address do; the
//! calls of one connection are carried out at the same time and answered in any order.
//!
//! # Where things are
//! * `server`, `reactor`, `workers`, `calls`, `turns`: the threads, and which call is carried out
//!   next. `task`: a call on its way.
//! * `peers`, `common`: which connections there may be.
//! * `tcp`: records over TCP. `rdma`: RPC-over-RDMA, with the steps that a call goes through.
//! * [`limits`]: the bounds of what a client can make grow.
//!
//! # What it does not do
//! It makes no calls of its own: there is no back channel.
#![forbid(unsafe_code)]

mod calls;
mod common;
pub mod limits;
mod peers;
mod program;
mod rdma;
mod reactor;
mod server;
mod settings;
mod task;
mod tcp;
mod turns;
mod workers;

pub use capstan_rdma::{PEER_CAUSED, PEER_REPEATS, ProviderPreference};
pub use capstan_reactor::{RunError, SpinBudget};
pub use program::{Arguments, Call, ConnectionNumber, Data, Outcome, Program, Results, Wire};
pub use server::{BindError, Handle, Server, Sockets};
pub use settings::{Listen, Settings, Transport};
