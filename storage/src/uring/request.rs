//! One operation on its way through the kernel, as a state machine without the kernel: it says
//! what to ask next and takes the answer.

mod empty;
#[cfg(test)]
mod testing;
mod transfer;

use std::rc::Rc;
use std::sync::Arc;

use capstan_memory::Buffer;

pub(crate) use transfer::BOUNCE_MAX_BYTES;
use transfer::clamp;

use super::command::{Command, Next, Progress};
use super::open_file::OpenFile;
use crate::error::{IoError, IoErrorKind};
use crate::geometry::Extent;
use crate::io::{Completion, Io, Op, OpKind};

/// How often one operation is asked again after `EINTR` or `EAGAIN` before the submitter hears of
/// it.
const RETRIES_MAX: u8 = 8;

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

    fn refused(&mut self, errno: i32) -> Progress {
        if matches!(errno, libc::EINTR | libc::EAGAIN) && self.retries < RETRIES_MAX {
            self.retries += 1;
            return Progress::Again;
        }
        self.fall_back(errno).unwrap_or_else(|| {
            Progress::Done(Err(IoError::from_errno(errno, &self.io.op, self.name())))
        })
    }

    fn failed(&self, kind: IoErrorKind) -> Progress {
        Progress::Done(Err(IoError::new(kind, &self.io.op, self.name())))
    }

    fn name(&self) -> &Arc<str> {
        self.file.store.name()
    }

    /// Ends the request with an error of this engine.
    pub(crate) fn fail(self, kind: IoErrorKind) -> Completion {
        let error = IoError::new(kind, &self.io.op, self.name());
        self.complete(Err(error))
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

#[cfg(test)]
mod tests {
    use super::testing::{Rig, kind};
    use super::{Command, Progress, RETRIES_MAX};
    use crate::error::IoErrorKind;
    use crate::io::Op;

    #[test]
    fn interruptions_are_tried_again_a_bounded_number_of_times() {
        let rig = Rig::new(None);
        for errno in [libc::EINTR, libc::EAGAIN] {
            let mut request = rig.request(Op::Flush, None);
            for _ in 0..RETRIES_MAX {
                assert!(matches!(request.advance(-errno), Progress::Again));
                assert_eq!(rig.command(&mut request), Command::Fdatasync);
            }
            assert_eq!(kind(request.advance(-errno)), Err(IoErrorKind::Retry));
        }
        let mut request = rig.request(Op::Flush, None);
        assert_eq!(kind(request.advance(-libc::EIO)), Err(IoErrorKind::Medium));
        let mut request = rig.request(Op::Flush, None);
        assert_eq!(kind(request.advance(i32::MIN)), Err(IoErrorKind::Other));
    }
}
