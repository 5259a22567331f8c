//! One operation on its way through the kernel, as a state machine without the kernel: it says
//! what to ask next and takes the answer.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use capstan_memory::Buffer;

use crate::error::{IoError, IoErrorKind};
use crate::file::FileStore;
use crate::geometry::Extent;
use crate::io::{Completion, Io, Op, OpKind};

/// How often one operation is asked again after `EINTR` or `EAGAIN` before the submitter hears of
/// it.
const RETRIES_MAX: u8 = 8;
/// The most bytes asked for at once: below the kernel's own limit (`MAX_RW_COUNT`), and aligned.
const TRANSFER_MAX_BYTES: u64 = 1 << 30;
/// The most bytes that go through one bounce buffer at a time.
pub(crate) const BOUNCE_MAX_BYTES: u32 = 64 << 10;

/// A [`FileStore`] as one engine knows it.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(crate) store: Arc<FileStore>,
    /// Its place in the ring's table of fixed files, when it has one.
    pub(crate) fixed: Option<u32>,
    /// What turned out not to work here; not asked for again.
    pub(crate) refused: Refused,
    /// Where a fixed place goes when the last operation and the volume are gone.
    pub(crate) retired: Rc<RefCell<Vec<u32>>>,
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        if let Some(fixed) = self.fixed {
            self.retired.borrow_mut().push(fixed);
        }
    }
}

/// Ways to empty a range that a file system or device has refused.
#[derive(Debug, Default)]
pub(crate) struct Refused {
    block_discard: Cell<bool>,
    punch: Cell<bool>,
    zero_range: Cell<bool>,
}

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
    Fdatasync,
    Fallocate {
        mode: i32,
        offset_bytes: u64,
        len_bytes: u64,
    },
    /// `BLOCK_URING_CMD_DISCARD`, Linux 6.12.
    BlockDiscard {
        offset_bytes: u64,
        len_bytes: u64,
    },
}

/// What an operation needs to go on.
#[derive(Debug)]
pub(crate) enum Next {
    /// The kernel's answer to this.
    Command(Command),
    /// A bounce buffer of this size: see [`Request::bounce`].
    Bounce(u32),
}

/// How an answer left the operation.
#[derive(Debug)]
pub(crate) enum Progress {
    /// It has more to ask: [`Request::next`].
    Again,
    /// It ended.
    Done(Result<(), IoError>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Transfer,
    BlockDiscard,
    Punch,
    ZeroRange,
    /// Writing zeroes, where nothing better works.
    Fill,
    Sync,
}

/// One operation and how far it is.
#[derive(Debug)]
pub(crate) struct Request {
    io: Io,
    file: Rc<OpenFile>,
    extent: Extent,
    phase: Phase,
    /// How much of the extent is done.
    done_bytes: u64,
    retries: u8,
    bounce: Option<Buffer>,
}

impl Request {
    /// A request for an operation that [`crate::Geometry::check`] accepted.
    pub(crate) fn new(io: Io, file: Rc<OpenFile>, extent: Extent) -> Self {
        let phase = match io.op {
            Op::Read { .. } | Op::Write { .. } => Phase::Transfer,
            Op::Flush => Phase::Sync,
            Op::WriteZeroes {
                deallocate: true, ..
            } => Phase::Punch,
            Op::WriteZeroes { .. } => Phase::ZeroRange,
            Op::Discard { .. } if file.store.is_block_device() => Phase::BlockDiscard,
            Op::Discard { .. } => Phase::Punch,
        };
        let mut request = Self {
            io,
            file,
            extent,
            phase,
            done_bytes: 0,
            retries: 0,
            bounce: None,
        };
        request.skip_refused();
        request
    }

    pub(crate) fn file(&self) -> &OpenFile {
        &self.file
    }

    /// Whether there is nothing to ask the kernel for (a discard that nothing can do).
    pub(crate) fn is_done(&self) -> bool {
        let empty = self.extent.len_bytes == 0 && self.io.op != Op::Flush;
        empty || (self.phase == Phase::Fill && self.io.op.kind() == OpKind::Discard)
    }

    /// What to ask for now. `zeroes` is a buffer of zeroes that outlives the answer.
    pub(crate) fn next(&mut self, zeroes: &Buffer) -> Next {
        let offset_bytes = self.extent.offset_bytes + self.done_bytes;
        let left_bytes = self.extent.len_bytes - self.done_bytes;
        let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let zero = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;
        Next::Command(match self.phase {
            Phase::Transfer => return self.next_transfer(offset_bytes, left_bytes),
            Phase::BlockDiscard => Command::BlockDiscard {
                offset_bytes,
                len_bytes: left_bytes,
            },
            Phase::Punch => Command::Fallocate {
                mode: punch,
                offset_bytes,
                len_bytes: left_bytes,
            },
            Phase::ZeroRange => Command::Fallocate {
                mode: zero,
                offset_bytes,
                len_bytes: left_bytes,
            },
            Phase::Fill => Command::Write {
                memory: zeroes.base().as_ptr(),
                len_bytes: clamp(left_bytes, u64::from(zeroes.len_bytes())),
                offset_bytes,
                dsync: false,
            },
            Phase::Sync => Command::Fdatasync,
        })
    }

    fn next_transfer(&mut self, offset_bytes: u64, left_bytes: u64) -> Next {
        let Some(data) = &mut self.io.data else {
            // `check` refuses transfers without data; an empty read keeps this total.
            let memory = std::ptr::null_mut();
            return Next::Command(Command::Read {
                memory,
                len_bytes: 0,
                offset_bytes,
            });
        };
        let done = usize::try_from(self.done_bytes).unwrap_or(usize::MAX);
        let at = data.offset_bytes as usize + done;
        let mut memory = data.buffer.base().as_ptr().wrapping_add(at);
        let mut len_bytes = clamp(left_bytes, TRANSFER_MAX_BYTES);
        let aligned = self.file.store.direct().is_none_or(|direct| {
            memory
                .addr()
                .is_multiple_of(direct.memory_bytes.max(1) as usize)
        });
        let write = self.io.op.kind() == OpKind::Write;
        if !aligned {
            len_bytes = len_bytes.min(BOUNCE_MAX_BYTES);
            let Some(bounce) = &mut self.bounce else {
                return Next::Bounce(len_bytes);
            };
            len_bytes = len_bytes.min(bounce.len_bytes());
            if write {
                bounce.copy_from_buffer(0, &data.buffer, at..at + len_bytes as usize);
            }
            memory = bounce.base().as_ptr();
        }
        let dsync = matches!(self.io.op, Op::Write { fua: true, .. });
        Next::Command(if write {
            Command::Write {
                memory,
                len_bytes,
                offset_bytes,
                dsync,
            }
        } else {
            Command::Read {
                memory,
                len_bytes,
                offset_bytes,
            }
        })
    }

    /// Gives the buffer that [`Next::Bounce`] asked for.
    pub(crate) fn bounce(&mut self, buffer: Buffer) {
        self.bounce = Some(buffer);
    }

    /// Takes the kernel's answer: a count of bytes, or a negative errno.
    pub(crate) fn advance(&mut self, answer: i32) -> Progress {
        let Ok(count) = u32::try_from(answer) else {
            return self.refused(answer.saturating_neg());
        };
        match self.phase {
            Phase::Transfer | Phase::Fill => self.transferred(count),
            Phase::BlockDiscard | Phase::Punch | Phase::ZeroRange => self.emptied(),
            Phase::Sync => Progress::Done(Ok(())),
        }
    }

    fn transferred(&mut self, count: u32) -> Progress {
        let left_bytes = self.extent.len_bytes - self.done_bytes;
        let mut count = u64::from(count).min(left_bytes);
        if let (Op::Read { .. }, Some(bounce), Some(data)) =
            (&self.io.op, &self.bounce, &mut self.io.data)
        {
            let len = usize::try_from(count).unwrap_or(usize::MAX);
            let done = usize::try_from(self.done_bytes).unwrap_or(usize::MAX);
            data.buffer
                .copy_from_buffer(data.offset_bytes as usize + done, bounce, 0..len);
        }
        if count < left_bytes {
            // A short count is where the file ended or something interrupted: ask for the rest,
            // from where O_DIRECT can go on. At the end of the file that makes no progress.
            let unit = self
                .file
                .store
                .direct()
                .map_or(1, |direct| direct.offset_bytes);
            count -= (self.done_bytes + count) % u64::from(unit.max(1));
            if count == 0 {
                let kind = if self.io.op.kind() == OpKind::Read {
                    IoErrorKind::Truncated
                } else {
                    IoErrorKind::Device
                };
                return self.failed(kind);
            }
        }
        self.done_bytes += count;
        if self.done_bytes < self.extent.len_bytes {
            return Progress::Again;
        }
        if self.phase == Phase::Fill {
            self.emptied()
        } else {
            Progress::Done(Ok(()))
        }
    }

    /// The range is empty; whether it also has to be on the medium.
    fn emptied(&mut self) -> Progress {
        if matches!(self.io.op, Op::WriteZeroes { fua: true, .. }) {
            self.phase = Phase::Sync;
            return Progress::Again;
        }
        Progress::Done(Ok(()))
    }

    fn refused(&mut self, errno: i32) -> Progress {
        if matches!(errno, libc::EINTR | libc::EAGAIN) && self.retries < RETRIES_MAX {
            self.retries += 1;
            return Progress::Again;
        }
        let emptying = matches!(
            self.phase,
            Phase::BlockDiscard | Phase::Punch | Phase::ZeroRange
        );
        let unknown = matches!(
            errno,
            libc::EOPNOTSUPP | libc::ENOSYS | libc::ENOTTY | libc::ENODEV | libc::EINVAL
        );
        if !(emptying && unknown) {
            return Progress::Done(Err(IoError::from_errno(errno, &self.io.op, self.name())));
        }
        tracing::debug!(volume = %self.name(), phase = ?self.phase, errno, "falling back");
        let refused = &self.file.refused;
        match self.phase {
            Phase::BlockDiscard => refused.block_discard.set(true),
            Phase::Punch => refused.punch.set(true),
            Phase::ZeroRange => refused.zero_range.set(true),
            Phase::Transfer | Phase::Fill | Phase::Sync => {}
        }
        self.skip_refused();
        if self.is_done() {
            Progress::Done(Ok(()))
        } else {
            Progress::Again
        }
    }

    /// Moves on to the next way of emptying a range that is not known to be refused. A discard
    /// never zeroes by writing: as a hint it may as well do nothing.
    fn skip_refused(&mut self) {
        let refused = &self.file.refused;
        if self.phase == Phase::BlockDiscard && refused.block_discard.get() {
            self.phase = Phase::Punch;
        }
        if self.phase == Phase::Punch && refused.punch.get() {
            let discard = self.io.op.kind() == OpKind::Discard;
            self.phase = if discard {
                Phase::Fill
            } else {
                Phase::ZeroRange
            };
        }
        if self.phase == Phase::ZeroRange && refused.zero_range.get() {
            self.phase = Phase::Fill;
        }
    }

    fn failed(&self, kind: IoErrorKind) -> Progress {
        Progress::Done(Err(IoError::new(kind, &self.io.op, self.name())))
    }

    fn name(&self) -> &Arc<str> {
        self.file.store.name()
    }

    /// Ends the request.
    pub(crate) fn complete(self, result: Result<(), IoError>) -> Completion {
        Completion {
            token: self.io.token,
            result,
            data: self.io.data,
        }
    }
}

/// `bytes`, at most `limit_bytes`, which is below 4 GiB.
fn clamp(bytes: u64, limit_bytes: u64) -> u32 {
    u32::try_from(bytes.min(limit_bytes)).unwrap_or(u32::MAX)
}
