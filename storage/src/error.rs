//! What went wrong with one operation, or with opening a volume.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use capstan_memory::SlabError;
use nix::errno::Errno;

use crate::io::{Op, OpKind};

/// Why an operation failed, in storage terms; the caller maps it to a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum IoErrorKind {
    /// The range leaves the volume.
    OutOfRange,
    /// The memory is missing or too small for the range: a mistake of the submitter.
    BadData,
    /// The file system or thin device is full, or a quota is used up.
    NoSpace,
    /// The medium could not read or store the data (`EIO`, `ENODATA`, integrity errors).
    Medium,
    /// The device or its transport failed the operation, not the medium (`EREMOTEIO`, time-outs).
    Device,
    /// The kernel refuses the size or alignment.
    Unaligned,
    /// The volume may not be written.
    ReadOnly,
    /// The file system or device cannot do this operation.
    NotSupported,
    /// Acknowledged writes did not reach the medium, now or earlier: nothing is promised any more
    /// until the volume is opened anew. Only Flush and FUA operations end so.
    Lost,
    /// Nothing is wrong with the volume; the same operation may succeed later.
    Retry,
    /// The device or file is gone.
    Gone,
    /// The file or device ends before the range does: it shrank after it was opened.
    Truncated,
    /// The kernel has no memory for the operation.
    NoMemory,
    /// A fault was injected by a test.
    Injected,
    /// Something else; see the errno.
    Other,
}

impl IoErrorKind {
    /// The kind of an errno value (positive).
    #[must_use]
    pub fn from_errno(errno: i32) -> Self {
        match Errno::from_raw(errno) {
            Errno::ENOSPC | Errno::EDQUOT | Errno::EFBIG => Self::NoSpace,
            // The block layer's names (block/blk-core.c): ENODATA is a medium error, EILSEQ a
            // protection error.
            Errno::EIO | Errno::ENODATA | Errno::EILSEQ | Errno::EBADMSG | Errno::EUCLEAN => {
                Self::Medium
            }
            // EREMOTEIO: target, ENOLINK: transport, EBADE: reservation conflict, ETIME(DOUT).
            Errno::EREMOTEIO | Errno::ENOLINK | Errno::EBADE | Errno::ETIME | Errno::ETIMEDOUT => {
                Self::Device
            }
            Errno::EINVAL | Errno::EFAULT => Self::Unaligned,
            Errno::EROFS | Errno::EPERM | Errno::EACCES | Errno::EBADF | Errno::ETXTBSY => {
                Self::ReadOnly
            }
            Errno::EOPNOTSUPP | Errno::ENOSYS | Errno::ENOTTY => Self::NotSupported,
            Errno::EINTR | Errno::EAGAIN | Errno::ECANCELED | Errno::EBUSY => Self::Retry,
            Errno::ENODEV | Errno::ENXIO | Errno::ESTALE | Errno::ENOTCONN | Errno::ESHUTDOWN => {
                Self::Gone
            }
            Errno::ENOMEM | Errno::ENOBUFS => Self::NoMemory,
            _ => Self::Other,
        }
    }

    fn what(self) -> &'static str {
        match self {
            Self::OutOfRange => "the range leaves the volume",
            Self::BadData => "the memory is missing or too small for the range",
            Self::NoSpace => "no space left; free space on the file system or device",
            Self::Medium => "medium error; see the kernel log of this machine",
            Self::Device => "the device failed the operation; see the kernel log of this machine",
            Self::Unaligned => "the kernel refuses the size or alignment; try without O_DIRECT",
            Self::ReadOnly => {
                "the volume may not be written; where its file system became read-only, see the kernel log of this \
                 machine, mend it and mount it for writing again"
            }
            Self::NotSupported => "the file system or device cannot do this",
            Self::Lost => {
                "acknowledged writes could not be stored and may be lost; mend the file system or device, check the data, \
                 then use `capstan-target clear-lost-writes PATH` and reload, or restart the target"
            }
            Self::Retry => "interrupted; the operation may be tried again",
            Self::Gone => "the device or file is gone",
            Self::Truncated => "it ends before the end of the range; it shrank after it was opened",
            Self::NoMemory => "the kernel has no memory for it",
            Self::Injected => "injected fault",
            Self::Other => "failed",
        }
    }
}

/// One failed operation: what, where and why.
#[derive(Clone, PartialEq, Eq)]
pub struct IoError {
    /// Why.
    pub kind: IoErrorKind,
    /// What was asked for.
    pub op: OpKind,
    /// First LBA of the operation.
    pub lba: u64,
    /// Number of LBAs of the operation.
    pub lbas: u64,
    /// The kernel's reason (positive errno), when the kernel gave one.
    pub errno: Option<i32>,
    /// The volume's name: a path, or the export such as `ram:64MiB`.
    pub volume: Arc<str>,
}

impl IoError {
    /// The error of `op` on `volume`, without a kernel reason.
    #[must_use]
    pub fn new(kind: IoErrorKind, op: &Op, volume: &Arc<str>) -> Self {
        let (lba, lbas) = op.range();
        Self {
            kind,
            op: op.kind(),
            lba,
            lbas,
            errno: None,
            volume: Arc::clone(volume),
        }
    }

    /// The error of `op` on `volume` for the reason the kernel gave (positive errno).
    #[must_use]
    pub fn from_errno(errno: i32, op: &Op, volume: &Arc<str>) -> Self {
        let kind = IoErrorKind::from_errno(errno);
        Self {
            errno: Some(errno),
            ..Self::new(kind, op, volume)
        }
    }
}

impl fmt::Display for IoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.op.name())?;
        if self.op != OpKind::Flush {
            write!(f, "of LBA {}+{} ", self.lba, self.lbas)?;
        }
        write!(f, "on {}: {}", self.volume, self.kind.what())?;
        match self.errno {
            Some(errno) => write!(f, " ({})", in_words(&io::Error::from_raw_os_error(errno))),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for IoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IoError({self}, {:?})", self.kind)
    }
}

impl std::error::Error for IoError {}

/// What the system says, without the number of it: for the brackets of a sentence.
pub(crate) fn in_words(error: &io::Error) -> String {
    match error.raw_os_error().map(Errno::from_raw) {
        Some(errno) if errno != Errno::UnknownErrno => errno.desc().to_owned(),
        _ => error.to_string(),
    }
}

/// Why a volume cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The LBA size is neither 512 nor 4096.
    #[error("{volume}: LBA size {lba_bytes} is not supported; use 512 or 4096")]
    LbaSize {
        /// The volume's name.
        volume: Arc<str>,
        /// What was asked for.
        lba_bytes: u32,
    },
    /// The device transfers nothing smaller than a block larger than the LBA.
    #[error(
        "{volume}: an LBA size of {lba_bytes} is smaller than the device's blocks of \
         {block_bytes} bytes; use an LBA size of {block_bytes}"
    )]
    LbaBelowBlock {
        /// The volume's name.
        volume: Arc<str>,
        /// What was asked for.
        lba_bytes: u32,
        /// The device's logical block size.
        block_bytes: u32,
    },
    /// There is not one LBA; or memory is not a whole number of LBAs, or too large for this
    /// machine.
    #[error(
        "{volume}: a size of {bytes} byte{} is {}",
        if *bytes == 1 { "" } else { "s" },
        not_a_size(*bytes, *lba_bytes)
    )]
    Size {
        /// The volume's name.
        volume: Arc<str>,
        /// Its size.
        bytes: u64,
        /// Its LBA size.
        lba_bytes: u32,
    },
    /// No memory for a RAM volume.
    #[error("{volume}: {reason}")]
    Memory {
        /// The volume's name.
        volume: Arc<str>,
        /// Why.
        reason: SlabError,
    },
    /// Memory that was prepared for one volume at a time, and has one.
    #[error("{volume} was prepared for one reactor, which has it; prepare it for several")]
    Taken {
        /// The volume's name.
        volume: Arc<str>,
    },
    /// The path is neither a regular file nor a block device.
    #[error("{volume} is {what}; expected a regular file or a block device")]
    NotAVolume {
        /// The volume's name.
        volume: Arc<str>,
        /// What it is.
        what: &'static str,
    },
    /// A system call on the file or device failed. Its reason is in these words and not a source: a
    /// chain of errors that is printed would say it twice.
    #[error("{volume}: cannot {action}: {reason}")]
    System {
        /// The volume's name.
        volume: Arc<str>,
        /// What was tried.
        action: &'static str,
        /// The system's reason.
        reason: io::Error,
    },
    /// Another process, or another export of this one, has it.
    #[error(
        "{volume} is exported already{holder}{}; stop that export, or open it read-only",
        .through.as_ref().map(|device| format!(", through {}, a loop device on it", device.display())).unwrap_or_default()
    )]
    Locked {
        /// The volume's name.
        volume: Arc<str>,
        /// The holder of the lock.
        holder: LockHolder,
        /// Of a file: the loop device on it that the holder has.
        through: Option<PathBuf>,
    },
    /// The process that exported it was killed or has ended, and the kernel still has operations of
    /// it.
    #[error(
        "{volume}: operations of pid {pid}, which was killed or has ended, are still on their way to the \
         medium; nothing is served before they are over. If they do not end, look for a hung device in the \
         kernel log"
    )]
    Unfinished {
        /// The volume's name.
        volume: Arc<str>,
        /// The process.
        pid: u32,
    },
    /// A block device that is mounted, part of something, or held exclusively.
    #[error(
        "{volume} is in use: mounted, part of a RAID, LVM or multipath device, or held \
         exclusively; see lsblk, or open it read-only"
    )]
    Busy {
        /// The volume's name.
        volume: Arc<str>,
    },
    /// `O_DIRECT` was demanded and cannot be had.
    #[error(
        "{volume}: O_DIRECT is not possible: {reason}; write `direct = false`, or leave `direct` out"
    )]
    NotDirect {
        /// The volume's name.
        volume: Arc<str>,
        /// Why.
        reason: String,
    },
}

/// The holder of the lock of an export, as far as the kernel says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockHolder {
    /// This process.
    Own,
    /// Another process.
    Process {
        /// Its process id.
        pid: u32,
        /// Its name, when it could be read.
        name: Option<String>,
    },
    /// A process that will write nothing new: it is gone, or was killed. Some of its operations are
    /// not over.
    Ended {
        /// What its process id was.
        pid: u32,
    },
    /// The kernel did not say: another pid namespace, or another machine over NFS.
    Unknown,
}

impl fmt::Display for LockHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own => write!(f, " by this process"),
            Self::Process {
                pid,
                name: Some(name),
            } => write!(f, " by pid {pid} ({name})"),
            Self::Process { pid, name: None } => write!(f, " by pid {pid}"),
            Self::Ended { pid } => write!(f, " by pid {pid}, which has ended"),
            Self::Unknown => Ok(()),
        }
    }
}

/// What is wrong with a size, and what would be right.
fn not_a_size(bytes: u64, lba_bytes: u32) -> String {
    match bytes < u64::from(lba_bytes) {
        true if bytes >= 512 => format!(
            "less than one LBA of {lba_bytes}; make it larger, or choose LBAs of 512 bytes (`lba = 512`)"
        ),
        true => format!("less than one LBA of {lba_bytes}; make it larger"),
        false => format!(
            "no whole number of LBAs of {lba_bytes}, or more than this machine can address; choose another size"
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{IoError, IoErrorKind};
    use crate::io::Op;

    #[test]
    fn message_names_operation_range_volume_and_reason() {
        let volume = Arc::from("/srv/a.img");
        let write = Op::Write {
            lba: 16,
            lbas: 8,
            fua: false,
        };
        let error = IoError::from_errno(libc::ENOSPC, &write, &volume);
        assert_eq!(error.kind, IoErrorKind::NoSpace);
        assert_eq!(
            error.to_string(),
            "write of LBA 16+8 on /srv/a.img: no space left; free space on the file system or \
             device (No space left on device)"
        );
        let flush = IoError::from_errno(libc::EIO, &Op::Flush, &volume);
        assert!(
            flush
                .to_string()
                .starts_with("flush on /srv/a.img: medium error")
        );
    }

    #[test]
    fn kernel_reasons_are_told_apart() {
        for (errno, kind) in [
            (libc::EIO, IoErrorKind::Medium),
            (libc::ENODATA, IoErrorKind::Medium),
            (libc::EREMOTEIO, IoErrorKind::Device),
            (libc::EDQUOT, IoErrorKind::NoSpace),
            (libc::EOPNOTSUPP, IoErrorKind::NotSupported),
            (libc::ECANCELED, IoErrorKind::Retry),
            (libc::ENXIO, IoErrorKind::Gone),
            (libc::EINVAL, IoErrorKind::Unaligned),
            (libc::EROFS, IoErrorKind::ReadOnly),
            (libc::EXDEV, IoErrorKind::Other),
        ] {
            assert_eq!(IoErrorKind::from_errno(errno), kind, "errno {errno}");
        }
    }
}
