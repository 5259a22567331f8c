//! The NFS server.
//!
//! * [`counters`]: what is counted of calls.
//! * [`rpcbind`]: tells rpcbind of this machine where the programs are.
//! * [`service`]: calls in, replies out, over [`state`] and `capstan_exports`.
//! * [`state`]: clients, sessions, opens, locks and their recovery, of NFS version 4.1 and 4.2.
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::wildcard_enum_match_arm
    )
)]

pub mod counters;
pub mod rpcbind;
pub mod service;
pub mod state;
