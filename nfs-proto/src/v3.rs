//! NFS version 3: program 100003, version 3.
//!
//! Source: RFC 1813.

pub mod args;
pub mod call;
pub mod directory;
pub mod results;
pub mod status;
pub mod types;

/// Version of the program [`crate::NFS_PROGRAM`] (RFC 1813, section 2.2).
pub const NFS_V3: u32 = 3;
