//! What one request may have done of what takes long, so that no thread is gone with one for long.

use std::cell::Cell;
use std::time::{Duration, Instant};

use capstan_exports::limits::COPY_BYTES;
use capstan_nfs_proto::v4::opnum::OpNum;
use capstan_nfs_proto::v4::status::Status;

/// How long operations that may take long are begun in one request, from the first of them on.
/// The last of them may take as long as its file system does.
const COSTLY: Duration = Duration::from_millis(100);

/// What is left of it in one request.
#[derive(Debug)]
pub(super) struct Budget {
    /// When the first operation that may take long was begun.
    began: Cell<Option<Instant>>,
    /// Bytes that COPY may move yet.
    copy_bytes: Cell<u64>,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            began: Cell::new(None),
            copy_bytes: Cell::new(COPY_BYTES),
        }
    }
}

/// Operations that may take long, of which none is harmed by what was done before when the client
/// sends the request again: those that change names are not among them.
const fn is_costly(op: OpNum) -> bool {
    matches!(
        op,
        OpNum::ALLOCATE
            | OpNum::CLONE
            | OpNum::COMMIT
            | OpNum::COPY
            | OpNum::DEALLOCATE
            | OpNum::LOOKUPP
            | OpNum::READDIR
    )
}

impl Budget {
    /// Before an operation is carried out.
    ///
    /// # Errors
    /// NFS4ERR_DELAY: it may take long, and those before it have.
    pub(super) fn check(&self, op: OpNum) -> Result<(), Status> {
        if !is_costly(op) {
            return Ok(());
        }
        match self.began.get() {
            None => self.began.set(Some(Instant::now())),
            Some(began) if began.elapsed() > COSTLY => return Err(Status::DELAY),
            Some(_) => {}
        }
        Ok(())
    }

    /// How many of `bytes` a COPY may move.
    ///
    /// # Errors
    /// NFS4ERR_DELAY: others have moved all that the request may.
    pub(super) fn copy_bytes(&self, bytes: u64) -> Result<u64, Status> {
        match self.copy_bytes.get() {
            0 => Err(Status::DELAY),
            left => Ok(bytes.min(left)),
        }
    }

    /// So many bytes were moved.
    pub(super) fn copied(&self, bytes: u64) {
        let left = self.copy_bytes.get();
        self.copy_bytes.set(left.saturating_sub(bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_take_long_is_put_off_behind_what_has() {
        let budget = Budget::default();
        assert_eq!(budget.check(OpNum::READDIR), Ok(()));
        assert_eq!(budget.check(OpNum::CLONE), Ok(()));
        budget.began.set(Instant::now().checked_sub(2 * COSTLY));
        assert_eq!(budget.check(OpNum::CLONE), Err(Status::DELAY));
        assert_eq!(budget.check(OpNum::LOOKUPP), Err(Status::DELAY));
        assert_eq!(budget.check(OpNum::GETATTR), Ok(()));
    }
}
