//! Transports of an ONC RPC server: records over TCP (RFC 5531, section 11), and RPC-over-RDMA
//! version 1 (RFC 8166) over the verbs contract. Calls come out of it and replies go back; it knows
//! no program.
//!
//! One thread owns the connections. A [`Program`] may block, and is called on threads of a pool.
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
mod tcp;
mod workers;

pub use capstan_rdma::ProviderPreference;
pub use capstan_reactor::{RunError, SpinBudget};
pub use program::{Arguments, Call, ConnectionNumber, Data, Outcome, Program, Results, Wire};
pub use server::{BindError, Handle, Server};
pub use settings::{Listen, Settings, Transport};
