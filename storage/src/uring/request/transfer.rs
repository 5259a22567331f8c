//! Moving data: reads, writes and writing zeroes, in as many pieces as necessary.

use super::{Request, Step};
use crate::error::IoErrorKind;
use crate::io::{Op, OpKind};
use crate::uring::command::{Command, Next, Progress};

/// The most bytes asked for at once: below the kernel's own limit (`MAX_RW_COUNT`), and aligned.
const TRANSFER_MAX_BYTES: u64 = 1 << 30;
/// The most bytes that go through one bounce buffer at a time.
pub(crate) const BOUNCE_MAX_BYTES: u32 = 64 << 10;

impl Request {
    /// What to ask for next of the data of a read or write.
    pub(super) fn next_transfer(&mut self, offset_bytes: u64, left_bytes: u64) -> Next {
        let Some(data) = &mut self.io.data else {
            // `check` refuses transfers without data; this keeps the function total for an empty
            // read.
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
        // RWF_DSYNC is a sync behind the write. Through the page cache the two are asked for one by
        // one: when that sync fails, writes of others are lost, and when the write does, only this
        // one is.
        let dsync = self.is_fua() && self.file.store.direct().is_some();
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

    /// Takes the count of bytes that were transferred.
    pub(super) fn transferred(&mut self, count: u32) -> Progress {
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
            // from where O_DIRECT can continue. At the end of the file that makes no progress.
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
        if self.step == Step::Fill {
            return self.emptied();
        }
        if self.is_fua() && self.file.store.direct().is_none() {
            self.step = Step::Sync;
            return Progress::Again;
        }
        self.succeeded()
    }

    pub(super) fn is_fua(&self) -> bool {
        matches!(self.io.op, Op::Write { fua: true, .. })
    }
}

/// `bytes`, at most `limit_bytes`, which is below 4 GiB.
pub(super) fn clamp(bytes: u64, limit_bytes: u64) -> u32 {
    u32::try_from(bytes.min(limit_bytes)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Rig, kind, range};
    use crate::error::IoErrorKind;
    use crate::io::{Data, Op};
    use crate::testing::{bytes, data};
    use crate::uring::command::{Command, Next, Progress};

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
        // With O_DIRECT the rest of a partial block cannot be asked for, so there is no progress
        // either.
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
}
