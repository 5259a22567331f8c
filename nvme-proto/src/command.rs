//! Commands parsed once into typed values, with every 0's based count widened, and the reverse.
//!
//! A controller calls [`FabricsCommand::parse`](crate::fabrics::FabricsCommand::parse) for opcode
//! 7Fh, else [`AdminCommand::parse`] or [`IoCommand::parse`] by the queue; a host calls `encode`
//! of the same types. What depends on the controller (which log pages there are, how large a
//! namespace is, what SGLs it takes) is not checked here.

mod admin;
mod io;
mod lba;
mod lba_status;
mod reset;

pub use crate::fabrics::FabricsCommand;
pub use admin::{Abort, AdminCommand, GetFeatures, GetLogPage, Identify, SetFeatures};
pub use io::{Copy, DatasetManagement, Flush, IoCommand};
pub use lba::{
    Compare, Directive, LbaRange, Protection, Read, Verify, Write, WriteUncorrectable, WriteZeroes,
};
pub use lba_status::GetLbaStatus;
pub use reset::CrossControllerReset;
