//! Exported directories of local file systems, for an NFS target: handles that survive restart and
//! rename, the identity an operation runs with, and the operations. It knows no RPC, no bytes of
//! NFS, no sockets; a pool of threads makes its calls, which block.
//!
//! The kernel resolves one name at a time and checks every permission: no path is followed after a
//! directory was exported, and no mode bits are looked at here.

pub mod attributes;
pub mod cache;
pub mod changes;
pub mod clients;
mod direct;
pub mod directory;
pub mod entries;
pub mod error;
pub mod export;
pub mod file;
pub mod handle;
pub mod identity;
mod inside;
pub mod key;
pub mod limits;
pub mod mountinfo;
mod mounts;
pub mod name;
pub mod node;
pub mod pseudo;
mod read;
pub mod reload;
pub mod still;
mod sys;
pub mod unsynced;
mod uuid;
pub mod writers;
pub mod xattr;

pub use attributes::{Attributes, FileType, SetAttributes, SetTime, Time};
pub use changes::EntriesChanged;
pub use error::{FileError, Result};
pub use export::{Export, ExportSettings, Exports, Found};
pub use file::{OpenAccess, OpenFile};
pub use handle::{ExportId, FileSystemId, Handle, KERNEL_HANDLE_BYTES, KernelHandle, PseudoId};
pub use identity::{Caller, Credentials};
pub use key::Key;
pub use name::Name;
pub use node::{Node, Rights};
pub use writers::{FileId, NamespaceClaim, Writers};
