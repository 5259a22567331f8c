//! Emptying a range: discards and zeroes, in the best way that the file or device does not refuse.

use std::rc::Rc;

use super::{Request, Step};
use crate::io::{Op, OpKind};
use crate::uring::command::Progress;

impl Request {
    /// The range is empty; what is left is whether it has to be on the medium, too.
    pub(super) fn emptied(&mut self) -> Progress {
        if matches!(self.io.op, Op::WriteZeroes { fua: true, .. }) {
            self.step = Step::Sync;
            return Progress::Again;
        }
        self.succeeded()
    }

    /// After a refusal of the way in use: continues in the next way, which the file remembers.
    /// `None` when the result is no refusal but an error of the operation.
    pub(super) fn fall_back(&mut self, errno: i32) -> Option<Progress> {
        let file = Rc::clone(&self.file);
        let way = match self.step {
            Step::BlockDiscard => &file.refused.block_discard,
            Step::Punch => &file.refused.punch,
            Step::ZeroRange => &file.refused.zero_range,
            Step::Transfer | Step::Fill | Step::Sync => return None,
        };
        let unknown = matches!(
            errno,
            libc::EOPNOTSUPP | libc::ENOSYS | libc::ENOTTY | libc::ENODEV | libc::EINVAL
        );
        if !unknown {
            return None;
        }
        tracing::debug!(volume = %self.name(), step = ?self.step, errno, "falling back");
        way.set(true);
        self.skip_refused();
        Some(if self.is_done() {
            Progress::Done(Ok(()))
        } else {
            Progress::Again
        })
    }

    /// Takes the next way of emptying a range that is not known to be refused. A discard
    /// never zeroes by writing: as a hint it may as well do nothing.
    pub(super) fn skip_refused(&mut self) {
        let refused = &self.file.refused;
        if self.step == Step::BlockDiscard && refused.block_discard.get() {
            self.step = Step::Punch;
        }
        if self.step == Step::Punch && refused.punch.get() {
            let discard = self.io.op.kind() == OpKind::Discard;
            self.step = if discard { Step::Fill } else { Step::ZeroRange };
        }
        if self.step == Step::ZeroRange && refused.zero_range.get() {
            self.step = Step::Fill;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Rig, kind, range};
    use crate::io::Op;
    use crate::uring::command::{Command, Progress};

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
        let sync = Command::Fdatasync {
            offset_bytes: 8 * 512,
            len_bytes: 24 * 512,
        };
        assert_eq!(rig.command(&mut request), sync);
        assert_eq!(kind(request.advance(0)), Ok(()));
        // It is not tried again.
        for deallocate in [true, false] {
            let mut request = zeroes(deallocate, false);
            assert!(matches!(
                rig.command(&mut request),
                Command::Write { dsync: false, .. }
            ));
        }
        // A discard is a hint: it does nothing rather than write.
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
