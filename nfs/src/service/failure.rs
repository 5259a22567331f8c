//! Why an operation fails, and the status that says so.

use std::cell::Cell;

use capstan_exports::{FileError, FileType};
use capstan_nfs_proto::v4::reply::NoRoom;
use capstan_nfs_proto::v4::status::Status;
use capstan_rpcrdma::xdr::WriteError;
use nix::errno::Errno;

/// An operation has failed: its result is its number and this status.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Failure(pub(super) Status);

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        Self(status)
    }
}

impl From<NoRoom> for Failure {
    fn from(no_room: NoRoom) -> Self {
        Self(no_room.status())
    }
}

impl From<WriteError> for Failure {
    fn from(_full: WriteError) -> Self {
        Self(Status::REP_TOO_BIG)
    }
}

impl From<FileError> for Failure {
    fn from(error: FileError) -> Self {
        Self(status_of(&error))
    }
}

thread_local! {
    /// An operation of this thread has failed for want of a descriptor.
    static WAS_SHORT: Cell<bool> = const { Cell::new(false) };
}

/// Whether an operation of this thread has failed for want of a descriptor since this was asked
/// last. It is asked by the thread that carries the operation out, where what failed deep in it is
/// not known any more.
pub(super) fn was_short_of_descriptors() -> bool {
    WAS_SHORT.take()
}

/// The status of what a file operation says (RFC 8881, section 15.1).
pub(super) fn status_of(error: &FileError) -> Status {
    if matches!(error.errno(), Some(Errno::EMFILE | Errno::ENFILE)) {
        WAS_SHORT.set(true);
    }
    match *error {
        FileError::BadHandle(_) => Status::BADHANDLE,
        FileError::Stale(_) | FileError::OutsideExport => Status::STALE,
        FileError::Kernel { errno, .. } => status_of_errno(errno),
        FileError::Name(problem) => status_of_name(problem),
        FileError::ReadOnly => Status::ROFS,
        FileError::OtherExport { .. } | FileError::CrossExport => Status::XDEV,
        // What is mounted there is not for clients, which have to see that something is there.
        FileError::OtherFileSystem => Status::ACCESS,
        FileError::Namespace { .. } => Status::ACCESS,
        FileError::AtRoot => Status::NOENT,
        FileError::BadCookie => Status::BAD_COOKIE,
        FileError::TooSmall { .. } => Status::TOOSMALL,
        FileError::WrongType {
            expected, found, ..
        } => status_of_type(expected, found),
        FileError::Replaced => Status::EXIST,
        FileError::OtherFile => Status::BAD_STATEID,
        FileError::OutOfRange { .. } => Status::INVAL,
        FileError::WriteBack { .. } => Status::IO,
        FileError::Identity { .. } => Status::SERVERFAULT,
        FileError::Full { .. } | FileError::Absent => Status::DELAY,
    }
}

const fn status_of_type(expected: FileType, found: FileType) -> Status {
    match (expected, found) {
        // RFC 8881, sections 18.13.3 and 18.16.3.
        (FileType::Directory | FileType::Regular, FileType::Symlink) => Status::SYMLINK,
        (FileType::Directory, _) => Status::NOTDIR,
        (_, FileType::Directory) => Status::ISDIR,
        (FileType::Regular, _) => Status::WRONG_TYPE,
        (_, _) => Status::INVAL,
    }
}

fn status_of_name(problem: capstan_exports::name::NameProblem) -> Status {
    use capstan_exports::name::NameProblem as Problem;
    match problem {
        // RFC 8881, sections 15.1.1 and 14.4.
        Problem::Empty | Problem::NotUtf8(_) => Status::INVAL,
        Problem::TooLong(_) => Status::NAMETOOLONG,
        Problem::Byte { .. } => Status::BADCHAR,
        Problem::Dots => Status::BADNAME,
    }
}

/// The status of what the kernel says.
#[cfg_attr(
    not(test),
    expect(
        clippy::wildcard_enum_match_arm,
        reason = "most of what errno can be has no status of its own"
    )
)]
pub(super) fn status_of_errno(errno: Errno) -> Status {
    match errno {
        Errno::EPERM => Status::PERM,
        Errno::ENOENT => Status::NOENT,
        Errno::ENXIO => Status::NXIO,
        Errno::EACCES => Status::ACCESS,
        Errno::EEXIST => Status::EXIST,
        Errno::EXDEV => Status::XDEV,
        Errno::ENOTDIR => Status::NOTDIR,
        Errno::EISDIR => Status::ISDIR,
        Errno::EINVAL => Status::INVAL,
        Errno::EFBIG | Errno::EOVERFLOW => Status::FBIG,
        Errno::ENOSPC => Status::NOSPC,
        Errno::EROFS => Status::ROFS,
        Errno::EMLINK => Status::MLINK,
        Errno::ENAMETOOLONG => Status::NAMETOOLONG,
        Errno::ENOTEMPTY => Status::NOTEMPTY,
        Errno::EDQUOT => Status::DQUOT,
        Errno::ESTALE => Status::STALE,
        Errno::ELOOP => Status::SYMLINK,
        Errno::EOPNOTSUPP | Errno::ENOSYS => Status::NOTSUPP,
        Errno::EAGAIN | Errno::ENOMEM | Errno::EMFILE | Errno::ENFILE | Errno::ETXTBSY => {
            Status::DELAY
        }
        Errno::ENODATA => Status::NOXATTR,
        Errno::E2BIG => Status::XATTR2BIG,
        _ => Status::IO,
    }
}
