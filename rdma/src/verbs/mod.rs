//! Hardware and kernel RDMA devices, through libibverbs.
//!
//! # What it does not do
//! It lists devices, so that `auto` can say what it found. Connections over them are not there yet.

mod devices;
mod sys;

pub use devices::device_names;
