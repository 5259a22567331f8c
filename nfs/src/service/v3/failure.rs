//! Why a procedure fails, and the status that says so (RFC 1813, section 2.6).

use capstan_exports::name::NameProblem;
use capstan_exports::{FileError, FileType};
use capstan_nfs_proto::v3::status::Status;
use capstan_nfs_proto::v4::status::Status as V4Status;
use capstan_rpcrdma::xdr::WriteError;
use nix::errno::Errno;

/// A procedure has failed with this status.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::service) struct Failure(pub(in crate::service) Status);

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        Self(status)
    }
}

impl From<WriteError> for Failure {
    fn from(_full: WriteError) -> Self {
        // The buffers of transports have room for what a procedure is allowed to answer.
        Self(Status::SERVERFAULT)
    }
}

/// What the state of version 4 says.
impl From<V4Status> for Failure {
    fn from(status: V4Status) -> Self {
        Self(match status {
            V4Status::DELAY => Status::JUKEBOX,
            // A share reservation of a client of version 4 denies it. It may do so for hours, which
            // is why the client is not told to wait.
            V4Status::LOCKED | V4Status::SHARE_DENIED => Status::ACCES,
            V4Status::BADHANDLE => Status::BADHANDLE,
            _ => Status::SERVERFAULT,
        })
    }
}

impl From<FileError> for Failure {
    fn from(error: FileError) -> Self {
        Self(match error {
            FileError::BadHandle(_) => Status::BADHANDLE,
            FileError::Stale(_) | FileError::OutsideExport => Status::STALE,
            FileError::Kernel { errno, .. } => status_of_errno(errno),
            FileError::Name(problem) => status_of_name(problem),
            FileError::ReadOnly => Status::ROFS,
            FileError::OtherExport { .. } | FileError::CrossExport => Status::XDEV,
            // What is mounted there is not for clients, which have to see that something is there.
            FileError::OtherFileSystem => Status::ACCES,
            // Hosts write it over NVMe.
            FileError::Namespace { .. } => Status::ACCES,
            FileError::AtRoot => Status::NOENT,
            FileError::BadCookie => Status::BAD_COOKIE,
            FileError::TooSmall { .. } => Status::TOOSMALL,
            FileError::WrongType {
                expected, found, ..
            } => status_of_type(expected, found),
            FileError::Replaced => Status::EXIST,
            FileError::OutOfRange { .. } => Status::INVAL,
            FileError::WriteBack { .. } => Status::IO,
            FileError::Identity { .. } | FileError::OtherFile => Status::SERVERFAULT,
            FileError::Full { .. } | FileError::Absent => Status::JUKEBOX,
        })
    }
}

fn status_of_type(expected: FileType, found: FileType) -> Status {
    if expected == FileType::Directory {
        Status::NOTDIR
    } else if expected == FileType::Regular && found == FileType::Directory {
        // Of READ and WRITE (RFC 1813, sections 3.3.6 and 3.3.7).
        Status::ISDIR
    } else {
        Status::INVAL
    }
}

/// Names that no file has are refused as such where they would be looked up or made (RFC 1813,
/// section 3.2).
const fn status_of_name(problem: NameProblem) -> Status {
    match problem {
        NameProblem::TooLong(_) => Status::NAMETOOLONG,
        NameProblem::Empty
        | NameProblem::Dots
        | NameProblem::Byte { .. }
        | NameProblem::NotUtf8(_) => Status::ACCES,
    }
}

/// The status of what the kernel says. What comes and goes by itself is NFS3ERR_JUKEBOX: the client
/// asks again.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "the kernel has more numbers than the protocol has statuses"
)]
const fn status_of_errno(errno: Errno) -> Status {
    match errno {
        Errno::EPERM => Status::PERM,
        Errno::ENOENT => Status::NOENT,
        Errno::ENXIO => Status::NXIO,
        Errno::EACCES => Status::ACCES,
        Errno::EEXIST => Status::EXIST,
        Errno::EXDEV => Status::XDEV,
        Errno::ENODEV => Status::NODEV,
        Errno::ENOTDIR => Status::NOTDIR,
        Errno::EISDIR => Status::ISDIR,
        Errno::EINVAL | Errno::ELOOP => Status::INVAL,
        Errno::EFBIG | Errno::EOVERFLOW => Status::FBIG,
        Errno::ENOSPC => Status::NOSPC,
        Errno::EROFS => Status::ROFS,
        Errno::EMLINK => Status::MLINK,
        Errno::ENAMETOOLONG => Status::NAMETOOLONG,
        Errno::ENOTEMPTY => Status::NOTEMPTY,
        Errno::EDQUOT => Status::DQUOT,
        Errno::ESTALE => Status::STALE,
        Errno::EOPNOTSUPP | Errno::ENOSYS => Status::NOTSUPP,
        Errno::EAGAIN | Errno::ENOMEM | Errno::EMFILE | Errno::ENFILE => Status::JUKEBOX,
        _ => Status::IO,
    }
}
