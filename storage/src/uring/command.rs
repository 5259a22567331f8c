//! What a request asks of the kernel, and how it handles the result.

use crate::error::IoError;

/// What to ask the kernel for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Read {
        memory: *mut u8,
        len_bytes: u32,
        offset_bytes: u64,
    },
    Write {
        memory: *const u8,
        len_bytes: u32,
        offset_bytes: u64,
        dsync: bool,
    },
    /// Zero bytes are the whole file.
    Fdatasync { offset_bytes: u64, len_bytes: u32 },
    Fallocate {
        mode: i32,
        offset_bytes: u64,
        len_bytes: u64,
    },
    /// `BLOCK_URING_CMD_DISCARD`, Linux 6.12.
    BlockDiscard { offset_bytes: u64, len_bytes: u64 },
}

impl Command {
    /// The sync of everything.
    pub(crate) const WHOLE_FILE: Self = Self::Fdatasync {
        offset_bytes: 0,
        len_bytes: 0,
    };

    /// Address and length of the memory it names.
    pub(crate) fn memory(&self) -> Option<(usize, u32)> {
        match *self {
            Self::Read {
                memory, len_bytes, ..
            } => Some((memory.addr(), len_bytes)),
            Self::Write {
                memory, len_bytes, ..
            } => Some((memory.addr(), len_bytes)),
            Self::Fdatasync { .. } | Self::Fallocate { .. } | Self::BlockDiscard { .. } => None,
        }
    }
}

/// What an operation needs next.
#[derive(Debug)]
pub(crate) enum Next {
    /// The kernel's result of this.
    Command(Command),
    /// A bounce buffer of this size: see [`Request::bounce`].
    Bounce(u32),
}

/// The state of an operation after a result.
#[derive(Debug)]
pub(crate) enum Progress {
    /// It has more to ask for: [`Request::next`].
    Again,
    /// It ended.
    Done(Result<(), IoError>),
}
