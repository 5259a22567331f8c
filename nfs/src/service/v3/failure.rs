//! Why a procedure fails, and the status that says so (RFC 1813, section 2.6).

use capstan_exports::name::NameProblem;
use capstan_exports::{FileError, FileType};
use capstan_nfs_proto::v3::status::Status;
use capstan_nfs_proto::v4::status::Status as V4Status;
use capstan_rpcrdma::xdr::WriteError;
use nix::errno::Errno;

use crate::service::failure::status_of as v4_status_of;

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

impl From<V4Status> for Failure {
    fn from(status: V4Status) -> Self {
        Self(of_v4(status))
    }
}

/// What version 4 says, in the words of version 3. Statuses that both have are the same number.
fn of_v4(status: V4Status) -> Status {
    match status {
        // A share reservation of a client of version 4 denies it. It may do so for hours, which is
        // why the client is not told to wait.
        V4Status::LOCKED | V4Status::SHARE_DENIED => Status::ACCES,
        V4Status::GRACE => Status::JUKEBOX,
        V4Status::SYMLINK => Status::INVAL,
        V4Status(number) if number <= Status::JUKEBOX.0 => Status(number),
        _ => Status::SERVERFAULT,
    }
}

impl From<FileError> for Failure {
    fn from(error: FileError) -> Self {
        if let FileError::Name(problem) = error {
            return Self(status_of_name(problem));
        }
        if let FileError::WrongType {
            expected, found, ..
        } = error
        {
            return Self(status_of_type(expected, found));
        }
        if error.errno() == Some(Errno::ENODEV) {
            return Self(Status::NODEV);
        }
        Self(of_v4(v4_status_of(&error)))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_version_4_alone_has_is_said_in_words_of_version_3() {
        let kernel = |errno| {
            let operation = "opening a file";
            Failure::from(FileError::Kernel { operation, errno }).0
        };
        for (errno, status) in [
            (Errno::EACCES, Status::ACCES),
            (Errno::EDQUOT, Status::DQUOT),
            (Errno::ELOOP, Status::INVAL),
            (Errno::EMFILE, Status::JUKEBOX),
            (Errno::ENODEV, Status::NODEV),
            (Errno::EOPNOTSUPP, Status::NOTSUPP),
            (Errno::EOVERFLOW, Status::FBIG),
            (Errno::EUCLEAN, Status::IO),
        ] {
            assert_eq!(kernel(errno), status, "{errno}");
        }
        for (error, status) in [
            (FileError::Absent, Status::JUKEBOX),
            (FileError::BadCookie, Status::BAD_COOKIE),
            (FileError::Namespace { nsid: 1 }, Status::ACCES),
            (FileError::OtherFile, Status::SERVERFAULT),
        ] {
            assert_eq!(Failure::from(error).0, status, "{error}");
        }
        for (of_v4, status) in [
            (V4Status::SHARE_DENIED, Status::ACCES),
            (V4Status::DELAY, Status::JUKEBOX),
            (V4Status::GRACE, Status::JUKEBOX),
        ] {
            assert_eq!(Failure::from(of_v4).0, status, "{of_v4:?}");
        }
    }
}
