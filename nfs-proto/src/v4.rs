//! NFS version 4, minor versions 1 and 2: program 100003, version 4.
//!
//! Source: RFC 8881, RFC 7862 and RFC 8276; the XDR is that of RFC 5662 and RFC 7863.

pub mod args;
pub mod attr;
pub mod bitmap;
pub mod callback;
#[cfg(feature = "client")]
pub mod client;
pub mod compound;
pub mod op;
pub mod opnum;
pub mod reply;
pub mod result;
pub mod results;
pub mod status;
pub mod types;

/// Version of the program [`crate::NFS_PROGRAM`] (RFC 5662).
pub const NFS_V4: u32 = 4;
/// The procedure that does nothing.
pub const PROC_NULL: u32 = 0;
/// The procedure that carries everything else.
pub const PROC_COMPOUND: u32 = 1;
