//! NFS version 4.1, 4.2 and 3, and MOUNT: bytes to typed values and back.
//!
//! # Where things are
//! * [`v4`]: COMPOUND and its operations, their arguments and results, attributes.
//! * [`v3`]: the procedures of NFS version 3; [`mount`]: those of MOUNT.
//! * [`codec`]: how a value is decoded and encoded, on the reader and writer of `rpcrdma`.
//! * [`limits`]: every bound.
//!
//! # Conventions
//! * Names are the RFCs', without their prefixes (`sa_`, `csr_` …) and version suffixes.
//! * Nothing is copied: what is parsed borrows from the message. The data of WRITE and READ, and
//!   the text of symbolic links, may lie beside the message (RFC 8267, sections 4 and 6.1):
//!   [`codec::DataItem`].
//! * A value that the RFCs do not define stays itself where a later RFC may define it (statuses,
//!   numbers of operations and attributes, flags), and is malformed where XDR has an enumeration.
//!
//! # What it does not do
//! It decides nothing about files, state or sessions, reads no clock, allocates nothing and does
//! no I/O. It does not know RPC: that is `rpcrdma`'s.
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

pub mod codec;
pub mod limits;
mod macros;
pub mod mount;
pub mod v3;
pub mod v4;

/// The program number of every version of NFS (RFC 5662; RFC 1813, section 2.2).
pub const NFS_PROGRAM: u32 = 100_003;
