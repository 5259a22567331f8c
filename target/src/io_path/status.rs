//! The status for a storage error, in one place. The log keeps the cause, the host gets the status.

use capstan_nvme_proto::status::Status;
use capstan_storage::{IoError, IoErrorKind, OpKind};

/// The status of a failed storage operation. Do Not Retry where trying again cannot help.
pub(super) fn of(error: &IoError) -> Status {
    match error.kind {
        IoErrorKind::OutOfRange | IoErrorKind::Truncated => Status::LBA_OUT_OF_RANGE.dnr(),
        IoErrorKind::NoSpace => Status::CAPACITY_EXCEEDED.dnr(),
        IoErrorKind::Medium => match error.op {
            OpKind::Read => Status::UNRECOVERED_READ_ERROR.dnr(),
            OpKind::Write | OpKind::Flush | OpKind::WriteZeroes | OpKind::Discard => {
                Status::WRITE_FAULT.dnr()
            }
        },
        // Nothing that the host does again brings back what is lost.
        IoErrorKind::Lost => Status::WRITE_FAULT.dnr(),
        IoErrorKind::ReadOnly => Status::NAMESPACE_IS_WRITE_PROTECTED.dnr(),
        IoErrorKind::NotSupported => Status::INVALID_OPCODE.dnr(),
        IoErrorKind::Retry | IoErrorKind::NoMemory => Status::COMMAND_INTERRUPTED,
        IoErrorKind::Gone => Status::NAMESPACE_NOT_READY,
        // Mistakes of this program, faults a test injects, and what has no better name.
        _ => Status::INTERNAL_ERROR,
    }
}
