//! One operation on its way through the kernel, as a state machine without the kernel: it says
//! what to ask next and takes the answer.

use std::rc::Rc;
use std::sync::Arc;

use capstan_memory::Buffer;

use super::command::{Command, Next, Progress};
use super::open_file::OpenFile;
use crate::error::{IoError, IoErrorKind};
use crate::geometry::Extent;
use crate::io::{Completion, Io, Op, OpKind};

/// How often one operation is asked again after `EINTR` or `EAGAIN` before the submitter hears of
/// it.
const RETRIES_MAX: u8 = 8;
/// The most bytes asked for at once: below the kernel's own limit (`MAX_RW_COUNT`), and aligned.
const TRANSFER_MAX_BYTES: u64 = 1 << 30;
/// The most bytes that go through one bounce buffer at a time.
pub(crate) const BOUNCE_MAX_BYTES: u32 = 64 << 10;

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

/// `bytes`, at most `limit_bytes`, which is below 4 GiB.
fn clamp(bytes: u64, limit_bytes: u64) -> u32 {
    u32::try_from(bytes.min(limit_bytes)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::fs::{self, File};
    use std::path::PathBuf;
    use std::process;
    use std::rc::Rc;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use capstan_memory::{Buffer, Pool};

    use super::{Command, Next, OpenFile, Progress, RETRIES_MAX, Request};
    use crate::error::IoErrorKind;
    use crate::file::FileStore;
    use crate::io::{Data, Io, Op};
    use crate::spec::DirectIo;
    use crate::testing::{bytes, data, pool};
    use crate::uring::open_file::Refused;

    /// Runs requests against answers that the test makes up.
    struct Rig {
        pool: Pool,
        zeroes: Buffer,
        file: Rc<OpenFile>,
    }

    impl Rig {
        /// On a file of 1 MiB with LBAs of 512 bytes. `align` is what its O_DIRECT asks of memory
        /// and offsets, `None` the page cache.
        fn new(align: Option<(u32, u32)>) -> Self {
            static NEXT: AtomicU32 = AtomicU32::new(0);
            let n = NEXT.fetch_add(1, Ordering::Relaxed);
            let path: PathBuf =
                std::env::temp_dir().join(format!("capstan-request-{}-{n}", process::id()));
            File::create(&path).unwrap().set_len(1 << 20).unwrap();
            let name = Arc::from("file");
            let store = FileStore::open(&path, &name, Some(512), false, DirectIo::Off).unwrap();
            fs::remove_file(&path).unwrap();
            let store = Arc::new(store.with_alignment(align));
            let (refused, retired) = (Refused::default(), Rc::new(RefCell::default()));
            let file = Rc::new(OpenFile {
                store,
                fixed: None,
                refused,
                retired,
            });
            let pool = pool(4 << 20);
            Self {
                zeroes: pool.take(8192).unwrap(),
                file,
                pool,
            }
        }

        fn request(&self, op: Op, data: Option<Data>) -> Request {
            let io = Io { token: 5, op, data };
            let extent = self.file.store.geometry().check(&io).unwrap();
            Request::new(io, Rc::clone(&self.file), extent)
        }

        fn command(&self, request: &mut Request) -> Command {
            match request.next(&self.zeroes) {
                Next::Command(command) => command,
                Next::Bounce(_) => panic!("wants to bounce"),
            }
        }
    }

    fn range(command: Command) -> (u64, u64) {
        match command {
            Command::Read {
                len_bytes,
                offset_bytes,
                ..
            }
            | Command::Write {
                len_bytes,
                offset_bytes,
                ..
            } => (offset_bytes, u64::from(len_bytes)),
            Command::Fallocate {
                offset_bytes,
                len_bytes,
                ..
            }
            | Command::BlockDiscard {
                offset_bytes,
                len_bytes,
            } => (offset_bytes, len_bytes),
            Command::Fdatasync => (0, 0),
        }
    }

    fn kind(progress: Progress) -> Result<(), IoErrorKind> {
        match progress {
            Progress::Done(result) => result.map_err(|error| error.kind),
            Progress::Again => panic!("goes on"),
        }
    }

    #[test]
    fn short_transfers_go_on_where_they_stopped() {
        let rig = Rig::new(None);
        let read = Op::Read { lba: 2, lbas: 4 };
        let mut request = rig.request(read, Some(data(&rig.pool, &[0; 2048])));
        let first = rig.command(&mut request);
        assert_eq!(range(first), (1024, 2048));
        assert!(matches!(request.advance(100), Progress::Again));
        let second = rig.command(&mut request);
        assert_eq!(range(second), (1124, 1948));
        let (Command::Read { memory: a, .. }, Command::Read { memory: b, .. }) = (first, second)
        else {
            panic!("reads");
        };
        assert_eq!(b.addr() - a.addr(), 100);
        assert_eq!(kind(request.advance(1948)), Ok(()));
    }

    #[test]
    fn the_end_of_the_file_is_an_error_and_not_a_loop() {
        let rig = Rig::new(None);
        let read = Op::Read { lba: 0, lbas: 2 };
        let mut request = rig.request(read, Some(data(&rig.pool, &[0; 1024])));
        assert!(matches!(request.advance(700), Progress::Again));
        assert_eq!(kind(request.advance(0)), Err(IoErrorKind::Truncated));
        // With O_DIRECT the rest of a partial block cannot be asked for: no progress either.
        let rig = Rig::new(Some((512, 512)));
        let mut request = rig.request(read, Some(data(&rig.pool, &[0; 1024])));
        assert!(matches!(request.advance(700), Progress::Again));
        assert_eq!(range(rig.command(&mut request)), (512, 512));
        assert_eq!(kind(request.advance(188)), Err(IoErrorKind::Truncated));
        let write = Op::Write {
            lba: 0,
            lbas: 2,
            fua: false,
        };
        let mut request = rig.request(write, Some(data(&rig.pool, &[0; 1024])));
        assert_eq!(kind(request.advance(0)), Err(IoErrorKind::Device));
    }

    #[test]
    fn an_answer_longer_than_the_question_changes_nothing() {
        let rig = Rig::new(None);
        let read = Op::Read { lba: 0, lbas: 1 };
        let mut request = rig.request(read, Some(data(&rig.pool, &[0; 512])));
        assert_eq!(kind(request.advance(i32::MAX)), Ok(()));
    }

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

    #[test]
    fn unaligned_memory_is_bounced_in_pieces_with_the_right_bytes() {
        let rig = Rig::new(Some((512, 512)));
        let content: Vec<u8> = (0..160 << 10)
            .map(|i| u8::try_from(i / 512 % 251).unwrap())
            .collect();
        let mut buffer = rig.pool.take((160 << 10) + 64).unwrap();
        buffer.copy_from(64, &content);
        let write = Op::Write {
            lba: 0,
            lbas: 320,
            fua: true,
        };
        let mut request = rig.request(
            write,
            Some(Data {
                buffer,
                offset_bytes: 64,
            }),
        );
        let Next::Bounce(len_bytes) = request.next(&rig.zeroes) else {
            panic!("unaligned")
        };
        assert_eq!(len_bytes, 64 << 10);
        request.bounce(rig.pool.take(len_bytes).unwrap());
        let mut written = Vec::new();
        // 64 KiB, a short 30,000 (of which whole blocks count), and the rest.
        for answer in [64 << 10, 30_000, 64 << 10, 1 << 20] {
            let Command::Write {
                len_bytes,
                offset_bytes,
                dsync: true,
                memory,
            } = rig.command(&mut request)
            else {
                panic!("a write that is not FUA");
            };
            let bounce = request.bounce.as_ref().unwrap();
            assert_eq!(memory.addr() as u64, bounce.addr());
            let mut bytes = vec![0; len_bytes as usize];
            bounce.copy_to(0, &mut bytes);
            written.truncate(usize::try_from(offset_bytes).unwrap());
            written.extend(bytes);
            if let Progress::Done(result) =
                request.advance(answer.min(i32::try_from(len_bytes).unwrap()))
            {
                assert_eq!(result, Ok(()));
                break;
            }
        }
        assert!(written == content);
        assert_eq!(
            bytes(request.complete(Ok(())).data.as_ref().unwrap()),
            content
        );
    }

    #[test]
    fn a_bounced_read_lands_where_it_belongs() {
        let rig = Rig::new(Some((512, 512)));
        let mut buffer = rig.pool.take(64 + 1024 + 8).unwrap();
        buffer.copy_from(0, &[9; 64 + 1024 + 8]);
        let read = Op::Read { lba: 0, lbas: 2 };
        let mut request = rig.request(
            read,
            Some(Data {
                buffer,
                offset_bytes: 64,
            }),
        );
        let Next::Bounce(len_bytes) = request.next(&rig.zeroes) else {
            panic!("unaligned")
        };
        let mut bounce = rig.pool.take(len_bytes).unwrap();
        bounce.copy_from(0, &[1; 1024]);
        request.bounce(bounce);
        assert!(matches!(request.advance(512), Progress::Again));
        assert_eq!(range(rig.command(&mut request)), (512, 512));
        request.bounce.as_mut().unwrap().copy_from(0, &[2; 512]);
        assert_eq!(kind(request.advance(512)), Ok(()));
        let mut data = request.complete(Ok(())).data.unwrap();
        data.offset_bytes = 0;
        let expected = [&[9; 64][..], &[1; 512], &[2; 512], &[9; 8]].concat();
        assert_eq!(bytes(&data), expected);
    }

    #[test]
    fn zeroes_fall_back_and_the_file_remembers() {
        let rig = Rig::new(None);
        let zeroes = |deallocate, fua| {
            rig.request(
                Op::WriteZeroes {
                    lba: 8,
                    lbas: 24,
                    deallocate,
                    fua,
                },
                None,
            )
        };
        let mode = |command| match command {
            Command::Fallocate { mode, .. } => mode & !libc::FALLOC_FL_KEEP_SIZE,
            _ => 0,
        };
        let mut request = zeroes(true, true);
        assert_eq!(mode(rig.command(&mut request)), libc::FALLOC_FL_PUNCH_HOLE);
        assert!(matches!(
            request.advance(-libc::EOPNOTSUPP),
            Progress::Again
        ));
        assert_eq!(mode(rig.command(&mut request)), libc::FALLOC_FL_ZERO_RANGE);
        assert!(matches!(
            request.advance(-libc::EOPNOTSUPP),
            Progress::Again
        ));
        // 12 KiB by writing 8 KiB of zeroes at a time, and then to the medium.
        for (answer, piece) in [(8192, (4096, 8192)), (4096, (12288, 4096))] {
            assert_eq!(range(rig.command(&mut request)), piece);
            assert!(matches!(request.advance(answer), Progress::Again));
        }
        assert_eq!(rig.command(&mut request), Command::Fdatasync);
        assert_eq!(kind(request.advance(0)), Ok(()));
        // Not asked again.
        for deallocate in [true, false] {
            let mut request = zeroes(deallocate, false);
            assert!(matches!(
                rig.command(&mut request),
                Command::Write { dsync: false, .. }
            ));
        }
        // A discard is a hint: it does nothing rather than writing.
        assert!(rig.request(Op::Discard { lba: 0, lbas: 9 }, None).is_done());
    }

    #[test]
    fn an_error_that_is_no_refusal_is_the_operations_own() {
        let rig = Rig::new(None);
        for errno in [libc::ENOSPC, libc::EIO, libc::EPERM] {
            let op = Op::WriteZeroes {
                lba: 0,
                lbas: 1,
                deallocate: true,
                fua: false,
            };
            let mut request = rig.request(op, None);
            assert!(kind(request.advance(-errno)).is_err());
        }
        let discard = rig.request(Op::Discard { lba: 0, lbas: 1 }, None);
        assert!(
            !discard.is_done(),
            "ENOSPC does not mean that holes cannot be punched"
        );
    }
}
