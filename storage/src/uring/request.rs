//! One operation on its way through the kernel, as a state machine without the kernel: it says what
//! to ask for next and takes the result.

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

/// How often an operation that was interrupted, or could not be done at the time, is retried before
/// it fails.
const RETRIES_MAX: u8 = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Transfer,
    BlockDiscard,
    Punch,
    ZeroRange,
    /// Writing zeroes, where nothing better works.
    Fill,
    Sync,
}

/// One operation and its state.
#[derive(Debug)]
pub(crate) struct Request {
    io: Io,
    file: Rc<OpenFile>,
    extent: Extent,
    step: Step,
    /// How much of the extent is done.
    done_bytes: u64,
    retries: u8,
    bounce: Option<Buffer>,
    /// Why a FUA write failed (positive errno), while a sync finds out whether more is lost.
    failed: Option<i32>,
}

impl Request {
    /// A request for an operation that [`crate::Geometry::check`] accepted.
    pub(crate) fn new(io: Io, file: Rc<OpenFile>, extent: Extent) -> Self {
        let step = match io.op {
            Op::Read { .. } | Op::Write { .. } => Step::Transfer,
            Op::Flush => Step::Sync,
            Op::WriteZeroes {
                deallocate: true, ..
            } => Step::Punch,
            Op::WriteZeroes { .. } => Step::ZeroRange,
            Op::Discard { .. } if file.store.is_block_device() => Step::BlockDiscard,
            Op::Discard { .. } => Step::Punch,
        };
        let mut request = Self {
            io,
            file,
            extent,
            step,
            done_bytes: 0,
            retries: 0,
            bounce: None,
            failed: None,
        };
        request.skip_refused();
        request
    }

    pub(crate) fn file(&self) -> &Rc<OpenFile> {
        &self.file
    }

    /// Whether its next command is a sync.
    pub(crate) fn syncs(&self) -> bool {
        self.step == Step::Sync
    }

    /// Whether there is nothing to ask the kernel for (a discard that nothing can do).
    pub(crate) fn is_done(&self) -> bool {
        let empty = self.extent.len_bytes == 0 && self.io.op != Op::Flush;
        empty || (self.step == Step::Fill && self.io.op.kind() == OpKind::Discard)
    }

    /// What to ask for now. `zeroes` is a buffer of zeroes that lives until the result is there.
    pub(crate) fn next(&mut self, zeroes: &Buffer) -> Next {
        let offset_bytes = self.extent.offset_bytes + self.done_bytes;
        let left_bytes = self.extent.len_bytes - self.done_bytes;
        let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let zero = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;
        Next::Command(match self.step {
            Step::Transfer => return self.next_transfer(offset_bytes, left_bytes),
            Step::BlockDiscard => Command::BlockDiscard {
                offset_bytes,
                len_bytes: left_bytes,
            },
            Step::Punch => Command::Fallocate {
                mode: punch,
                offset_bytes,
                len_bytes: left_bytes,
            },
            Step::ZeroRange => Command::Fallocate {
                mode: zero,
                offset_bytes,
                len_bytes: left_bytes,
            },
            Step::Fill => Command::Write {
                memory: zeroes.base().as_ptr(),
                len_bytes: clamp(left_bytes, u64::from(zeroes.len_bytes())),
                offset_bytes,
                dsync: false,
            },
            Step::Sync => {
                let Extent { offset_bytes, .. } = self.extent;
                // A length that does not fit stands for the whole file.
                let range = u32::try_from(self.extent.len_bytes).map(|len| (offset_bytes, len));
                let (offset_bytes, len_bytes) = range.unwrap_or((0, 0));
                Command::Fdatasync {
                    offset_bytes,
                    len_bytes,
                }
            }
        })
    }

    /// Gives the buffer that [`Next::Bounce`] asked for.
    pub(crate) fn bounce(&mut self, buffer: Buffer) {
        self.bounce = Some(buffer);
    }

    /// Takes the kernel's result: a count of bytes, or a negative errno.
    pub(crate) fn advance(&mut self, answer: i32) -> Progress {
        let Ok(count) = u32::try_from(answer) else {
            return self.refused(answer.saturating_neg());
        };
        match self.step {
            Step::Transfer | Step::Fill => self.transferred(count),
            Step::BlockDiscard | Step::Punch | Step::ZeroRange => self.emptied(),
            Step::Sync => self.synced(),
        }
    }

    fn synced(&self) -> Progress {
        match self.failed {
            Some(errno) => self.failed_with(errno),
            None => self.succeeded(),
        }
    }

    /// All of it is done. An operation that promises to be on the medium succeeds only where no
    /// promise was broken.
    fn succeeded(&self) -> Progress {
        let loss = self.file.store.loss().errno();
        match loss.filter(|_| self.io.op.is_durable()) {
            Some(errno) => self.lost(errno),
            None => Progress::Done(Ok(())),
        }
    }

    fn refused(&mut self, errno: i32) -> Progress {
        // A sync that fails with EAGAIN may have reported, for the only time, a write that failed
        // so.
        let may_succeed = errno == libc::EINTR || (errno == libc::EAGAIN && !self.syncs());
        if may_succeed && self.retries < RETRIES_MAX {
            self.retries += 1;
            return Progress::Again;
        }
        if self.syncs() {
            let lost = self.file.store.loss().sync_failed(errno, self.name());
            return match self.failed {
                _ if lost => self.lost(errno),
                Some(failed) => self.failed_with(failed),
                None => self.failed_with(errno),
            };
        }
        if self.may_be_lost(errno) {
            self.failed = Some(errno);
            self.step = Step::Sync;
            self.retries = 0;
            return Progress::Again;
        }
        self.fall_back(errno)
            .unwrap_or_else(|| self.failed_with(errno))
    }

    /// Whether `errno` can come from the sync that the kernel made as part of a FUA write, and so
    /// report other writes: a sync of its own finds out. (With `O_DIRECT` the write itself finds
    /// out whether there is space.)
    fn may_be_lost(&self, errno: i32) -> bool {
        let of_the_write = matches!(
            IoErrorKind::from_errno(errno),
            IoErrorKind::NoSpace | IoErrorKind::Unaligned | IoErrorKind::ReadOnly
        );
        self.step == Step::Transfer && self.is_fua() && !of_the_write
    }

    fn failed_with(&self, errno: i32) -> Progress {
        // A file that ends within a block that O_DIRECT needs whole is told by `EINVAL`, a device
        // that has become smaller by `ENOSPC` for a write, as a thin device that is full.
        let may_be_the_end = match self.file.store.is_block_device() {
            true => errno == libc::ENOSPC,
            false => errno == libc::EINVAL,
        };
        if may_be_the_end && self.is_beyond_the_end() {
            return self.failed(IoErrorKind::Truncated);
        }
        Progress::Done(Err(IoError::from_errno(errno, &self.io.op, self.name())))
    }

    /// Whether the file or device has become smaller than the range.
    fn is_beyond_the_end(&self) -> bool {
        let store = &self.file.store;
        store.look_at_size();
        self.extent.offset_bytes + self.extent.len_bytes > store.bytes()
    }

    fn lost(&self, errno: i32) -> Progress {
        let error = IoError::from_errno(errno, &self.io.op, self.name());
        let kind = IoErrorKind::Lost;
        Progress::Done(Err(IoError { kind, ..error }))
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
    use crate::testing::data;

    #[test]
    fn interruptions_are_tried_again_a_bounded_number_of_times() {
        let rig = Rig::new(None);
        let mut request = rig.request(Op::Flush, None);
        for _ in 0..RETRIES_MAX {
            assert!(matches!(request.advance(-libc::EINTR), Progress::Again));
            assert_eq!(rig.command(&mut request), Command::WHOLE_FILE);
        }
        assert_eq!(kind(request.advance(-libc::EINTR)), Err(IoErrorKind::Retry));
        for errno in [libc::EINTR, libc::EAGAIN] {
            let mut request = rig.request(write(false), Some(data(&rig.pool, &[1; 1024])));
            for _ in 0..RETRIES_MAX {
                assert!(matches!(request.advance(-errno), Progress::Again));
            }
            assert_eq!(kind(request.advance(-errno)), Err(IoErrorKind::Retry));
        }
        let mut request = rig.request(Op::Flush, None);
        assert_eq!(kind(request.advance(0)), Ok(()), "nothing is lost by that");
        let mut request = rig.request(Op::Flush, None);
        assert_eq!(kind(request.advance(i32::MIN)), Err(IoErrorKind::Lost));
    }

    #[test]
    fn an_einval_behind_the_end_of_a_file_that_was_cut_is_that_end() {
        let rig = Rig::new(None);
        let read = |lba| rig.request(Op::Read { lba, lbas: 2 }, Some(data(&rig.pool, &[0; 1024])));
        let fails = |mut request: super::Request| kind(request.advance(-libc::EINVAL));
        let requests = [2, 8, 100].map(|lba| (lba, read(lba)));
        let whole = read(8);
        assert_eq!(fails(whole), Err(IoErrorKind::Unaligned));
        rig.cut(5000);
        for (lba, request) in requests {
            let expected = match lba {
                2 => IoErrorKind::Unaligned,
                _ => IoErrorKind::Truncated,
            };
            assert_eq!(fails(request), Err(expected), "{lba}");
        }
    }

    /// A disk may have failed a write with any of these, and the kernel passes it on once.
    #[test]
    fn a_sync_that_says_not_now_has_told_of_a_loss() {
        for errno in [libc::EAGAIN, libc::EBUSY, libc::EOPNOTSUPP, libc::ENOMEM] {
            let zeroes = Op::WriteZeroes {
                lba: 0,
                lbas: 1,
                deallocate: true,
                fua: true,
            };
            let rig = Rig::new(None);
            let mut request = rig.request(zeroes, None);
            assert!(matches!(request.advance(0), Progress::Again), "it syncs");
            assert_eq!(kind(request.advance(-errno)), Err(IoErrorKind::Lost));
            let mut next = rig.request(Op::Flush, None);
            assert_eq!(kind(next.advance(0)), Err(IoErrorKind::Lost), "{errno}");
        }
    }

    fn write(fua: bool) -> Op {
        let (lba, lbas) = (8, 2);
        Op::Write { lba, lbas, fua }
    }

    /// Every operation that promises that something is on the medium, on a volume that has broken a
    /// promise.
    #[test]
    fn after_a_failed_sync_nothing_durable_succeeds() {
        let rig = Rig::new(None);
        let zeroes = Op::WriteZeroes {
            lba: 0,
            lbas: 1,
            deallocate: false,
            fua: true,
        };
        // Under way already when the sync fails.
        let mut late = rig.request(Op::Flush, None);
        let mut failed = rig.request(Op::Flush, None);
        assert_eq!(kind(failed.advance(-libc::EIO)), Err(IoErrorKind::Lost));
        assert_eq!(kind(late.advance(0)), Err(IoErrorKind::Lost));
        let mut request = rig.request(zeroes, None);
        assert!(matches!(request.advance(0), Progress::Again));
        assert_eq!(kind(request.advance(0)), Err(IoErrorKind::Lost));
        // An operation that promises nothing succeeds.
        let mut request = rig.request(write(false), Some(data(&rig.pool, &[1; 1024])));
        rig.command(&mut request);
        assert_eq!(kind(request.advance(1024)), Ok(()));
        let mut request = rig.request(Op::Discard { lba: 0, lbas: 1 }, None);
        assert_eq!(kind(request.advance(0)), Ok(()));
    }

    #[test]
    fn through_the_page_cache_a_fua_write_is_a_write_and_then_a_sync_of_its_range() {
        let rig = Rig::new(None);
        let mut request = rig.request(write(true), Some(data(&rig.pool, &[1; 1024])));
        let first = rig.command(&mut request);
        assert!(matches!(first, Command::Write { dsync: false, .. }));
        assert!(matches!(request.advance(1024), Progress::Again));
        let sync = Command::Fdatasync {
            offset_bytes: 8 * 512,
            len_bytes: 1024,
        };
        assert_eq!(rig.command(&mut request), sync);
        assert_eq!(kind(request.advance(0)), Ok(()));
        // A disk that is full when the write allocates its space has lost nothing.
        let mut request = rig.request(write(true), Some(data(&rig.pool, &[1; 1024])));
        rig.command(&mut request);
        let full = request.advance(-libc::ENOSPC);
        assert_eq!(kind(full), Err(IoErrorKind::NoSpace));
        let mut request = rig.request(Op::Flush, None);
        assert_eq!(kind(request.advance(0)), Ok(()));
        // One that is full when it writes back has.
        let mut request = rig.request(write(true), Some(data(&rig.pool, &[1; 1024])));
        rig.command(&mut request);
        assert!(matches!(request.advance(1024), Progress::Again));
        let lost = request.advance(-libc::ENOSPC);
        assert_eq!(kind(lost), Err(IoErrorKind::Lost));
        let mut request = rig.request(Op::Flush, None);
        assert_eq!(kind(request.advance(0)), Err(IoErrorKind::Lost));
    }

    /// The kernel syncs as part of a direct FUA write and does not say which of the two failed.
    #[test]
    fn a_direct_fua_write_that_fails_asks_whether_more_is_lost() {
        let rig = Rig::new(Some((512, 512)));
        let fails = |errno: i32| {
            let mut request = rig.request(write(true), Some(data(&rig.pool, &[1; 1024])));
            let command = rig.command(&mut request);
            assert!(matches!(command, Command::Write { dsync: true, .. }));
            let progress = request.advance(-errno);
            (request, progress)
        };
        // Only its own blocks cannot be written: it fails, and no other operation does.
        let (mut request, progress) = fails(libc::EIO);
        assert!(matches!(progress, Progress::Again));
        let asks = rig.command(&mut request);
        assert!(matches!(asks, Command::Fdatasync { .. }), "{asks:?}");
        assert_eq!(kind(request.advance(0)), Err(IoErrorKind::Medium));
        for (errno, its_own) in [
            (libc::EBUSY, IoErrorKind::Retry),
            (libc::EOPNOTSUPP, IoErrorKind::NotSupported),
        ] {
            let (mut request, progress) = fails(errno);
            assert!(matches!(progress, Progress::Again), "errno {errno}");
            assert_eq!(kind(request.advance(0)), Err(its_own));
        }
        let (_, progress) = fails(libc::ENOSPC);
        assert_eq!(kind(progress), Err(IoErrorKind::NoSpace));
        let mut request = rig.request(Op::Flush, None);
        assert_eq!(kind(request.advance(0)), Ok(()));
        // The sync fails as well.
        let (mut request, _) = fails(libc::EIO);
        rig.command(&mut request);
        assert_eq!(kind(request.advance(-libc::EIO)), Err(IoErrorKind::Lost));
        let mut request = rig.request(Op::Flush, None);
        assert_eq!(kind(request.advance(0)), Err(IoErrorKind::Lost));
    }
}
