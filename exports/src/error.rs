//! What an operation on an exported file answers when it does not succeed, and why a directory is
//! not exported.

use std::path::PathBuf;

use nix::errno::Errno;

use crate::limits::EXPORTS;
use crate::pseudo::PseudoError;

/// Why an operation was not carried out. The kernel's own answers keep their errno.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FileError {
    /// The bytes are not a handle of this version.
    #[error("{0}")]
    BadHandle(#[from] crate::handle::Malformed),
    /// The handle was never given out for what the export is now, or its file was deleted.
    #[error("the handle is stale: {0}; look the name up again")]
    Stale(StaleReason),
    /// The export is one of those that were not opened ([`Exports::open_but`](crate::Exports)).
    #[error("the file system of the export does not answer yet; ask again later")]
    Absent,
    /// The kernel refused.
    #[error("{operation}: {errno}")]
    Kernel {
        /// What was asked of it.
        operation: &'static str,
        /// What it answered.
        errno: Errno,
    },
    /// A name that no directory entry can have.
    #[error("{0}")]
    Name(#[from] crate::name::NameProblem),
    /// The client has the export for reading only.
    #[error(
        "the client may only read this export; give its network `access = \"read-write\"` to let it write"
    )]
    ReadOnly,
    /// A caller's identity of one export was used for a file of another.
    #[error("the caller's identity is of export {caller:#010x}, and the file of {file:#010x}")]
    OtherExport {
        /// Export of the identity.
        caller: u32,
        /// Export of the file.
        file: u32,
    },
    /// Both files of a rename, link, copy or clone have to be of one export.
    #[error("the two files are of two exports; copy the data instead")]
    CrossExport,
    /// Another file system is mounted there, which is not exported.
    #[error(
        "another file system is mounted here, which is not exported; export it, or set crossmnt"
    )]
    OtherFileSystem,
    /// The parent of an export's root is not the export's.
    #[error("this is the root of the export; what is above it is not exported")]
    AtRoot,
    /// The directory was moved out of the export, or lies deeper than is looked.
    #[error("the directory is not below the root of the export any more")]
    OutsideExport,
    /// The cookie is of another directory or of another file system.
    #[error("the cookie is not one of this directory; read it from the start")]
    BadCookie,
    /// Not one entry has room in the bytes that the caller gave.
    #[error("no directory entry has room in {given} bytes; ask for more")]
    TooSmall {
        /// Bytes that the caller would take.
        given: usize,
    },
    /// The operation needs another kind of file.
    #[error("the file is a {found}, and {operation} needs a {expected}")]
    WrongType {
        /// What was asked.
        operation: &'static str,
        /// Kind that it needs.
        expected: crate::attributes::FileType,
        /// Kind that the file has.
        found: crate::attributes::FileType,
    },
    /// Another one made a file of the same name while this one was made.
    #[error("the name is another file's already; look it up")]
    Replaced,
    /// Hosts write it over NVMe ([`Writers`](crate::Writers)): `NFS3ERR_ACCES` or `NFS4ERR_ACCESS`
    /// to a client that would write it, `NFS3ERR_ACCES` or `NFS4ERR_FILE_OPEN` to one that would
    /// take a name from it.
    #[error(
        "the file is namespace {nsid} over NVMe (the log names its subsystem), whose hosts write it; \
         read it, or take the namespace out of the configuration and reload"
    )]
    Namespace {
        /// NSID of the namespace.
        nsid: u32,
    },
    /// The open file is another one.
    #[error("the open file is not the one of the handle")]
    OtherFile,
    /// A number is out of the range that files have.
    #[error("{what} {value} is more than {most}; ask for less")]
    OutOfRange {
        /// What the number stands for.
        what: &'static str,
        /// What it was.
        value: u64,
        /// The most it may be.
        most: u64,
    },
    /// An earlier write of this writer, or of another one to the same file, did not reach the disk.
    #[error("data written to the file before did not reach the disk ({errno}); write it again")]
    WriteBack {
        /// What the kernel answered to the sync that found it.
        errno: Errno,
    },
    /// The calling thread could not become the caller.
    #[error("the thread cannot act as uid {uid}: {reason}; start the target as root")]
    Identity {
        /// Whom it was to act as.
        uid: u32,
        /// What went wrong.
        reason: IdentityProblem,
    },
    /// All places of a bounded table hold what is in use.
    #[error("{what} is full with {places}; ask again later")]
    Full {
        /// Which table.
        what: &'static str,
        /// How many places it has.
        places: usize,
    },
}

/// Why a handle is stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StaleReason {
    /// No export has its id.
    #[error("nothing is exported as {0:#010x}")]
    NoSuchExport(u32),
    /// No directory of the pseudo file system has its id.
    #[error("no directory leads to an export there any more")]
    NoSuchDirectory,
    /// The MAC is not that of this key and this file system.
    #[error("it was not made with this key for this file system")]
    Mac,
    /// The kernel knows no such file.
    #[error("the file was deleted")]
    Deleted,
}

/// Why a thread could not take the identity of a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityProblem {
    /// A system call failed.
    #[error("{call}: {errno}")]
    Call {
        /// The call.
        call: &'static str,
        /// What it answered.
        errno: Errno,
    },
    /// The uid or gid stayed what it was.
    #[error("{0} was refused")]
    Refused(&'static str),
    /// The thread acts for a caller already.
    #[error("the thread acts for another caller, and was to act for one inside that")]
    Nested,
    /// Capabilities that override file permissions outlived the change.
    #[error("capabilities {0:#x} would override file permissions")]
    Capabilities(u64),
}

impl FileError {
    pub(crate) const fn kernel(operation: &'static str) -> impl FnOnce(Errno) -> Self + Copy {
        move |errno| Self::Kernel { operation, errno }
    }

    /// What the kernel answered, where it was the kernel that refused.
    pub const fn errno(&self) -> Option<Errno> {
        match self {
            Self::Kernel { errno, .. } | Self::WriteBack { errno } => Some(*errno),
            _ => None,
        }
    }
}

/// What an operation on an exported file answers.
pub type Result<T> = std::result::Result<T, FileError>;

/// Why a directory is not exported.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// It could not be opened or looked at.
    #[error("exporting {}: {doing}: {errno}; export a directory that is there", path.display())]
    Open {
        /// The directory.
        path: PathBuf,
        /// What was tried.
        doing: &'static str,
        /// What the kernel answered.
        errno: Errno,
    },
    /// The file system has no handles.
    #[error("exporting {}: its file system gives no file handles ({errno}); export a directory of \
             ext4, XFS, btrfs or tmpfs", path.display())]
    NoHandles {
        /// The directory.
        path: PathBuf,
        /// What the kernel answered.
        errno: Errno,
    },
    /// Its handles are too long.
    #[error("exporting {}: a file handle of its file system has {bytes} bytes and type {kind:#x}, \
             and at most 104 bytes and 16 bits fit in a handle; export the file system below",
            path.display())]
    LargeHandles {
        /// The directory.
        path: PathBuf,
        /// Bytes of a handle.
        bytes: u32,
        /// The kernel's type of it.
        kind: i32,
    },
    /// The file system cannot be told from others after a restart.
    #[error("exporting {}: its file system has no UUID that the kernel (6.9 and later, not of btrfs) or \
             /dev/disk/by-uuid tells; `file_system = \"UUID\"` in its [[export]], or \
             `--file-system UUID` of `export add`, is one that you keep (`uuidgen` makes one; \
             --export-dir alone has no place for it)", path.display())]
    NoFileSystemId {
        /// The directory.
        path: PathBuf,
    },
    /// Data is to go past the page cache, and cannot.
    #[error("exporting {}: its file system has no direct reads and writes (O_DIRECT); leave \
             `direct` out", path.display())]
    NoDirect {
        /// The directory.
        path: PathBuf,
    },
    /// Two exports have the same id.
    #[error(
        "{first} and {second} have the same export id {id:#010x}; set another one for one of \
             them"
    )]
    SameId {
        /// Path of one for clients.
        first: String,
        /// Path of the other.
        second: String,
        /// The id.
        id: u32,
    },
    /// It is below another export for clients, and not mounted there.
    #[error("clients come to {inner} through the export {outer}, and {} is no mount point there that could be \
             an export of its own, but a part of that one or elsewhere; give it a `pseudo` that is not below \
             {outer}", path.display())]
    NotMountedThere {
        /// Path of the export for clients.
        inner: String,
        /// Path of the one above.
        outer: String,
        /// The directory.
        path: PathBuf,
    },
    /// The paths for clients make no tree.
    #[error(transparent)]
    Paths(#[from] PseudoError),
    /// More than are kept.
    #[error("{0} exports, and at most {EXPORTS} are kept; export fewer directories")]
    TooMany(usize),
}
