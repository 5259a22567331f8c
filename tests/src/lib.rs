//! What the end-to-end tests share: a target and hosts in this process, over real sockets.

pub mod host;
pub mod process;
pub mod target;
