//! Acknowledged writes that did not reach the medium.
//!
//! A write without FUA is answered before it is on the medium. When it cannot be put there later,
//! the kernel reports that once per open file description and marks the pages clean, so the next
//! sync would succeed over data that is gone. So it is remembered, for every reactor and host, as
//! long as the volume is open in this process, or until [`Loss::clear`].

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

/// Whether a volume has lost acknowledged writes. One for all reactors that have it.
#[derive(Debug, Default)]
pub(crate) struct Loss {
    /// The kernel's reason (positive errno); 0 while nothing is lost.
    errno: AtomicI32,
    is_cut: AtomicBool,
}

impl Loss {
    /// Why writes were lost (positive errno), if any were.
    pub(crate) fn errno(&self) -> Option<i32> {
        Some(self.errno.load(Ordering::Acquire)).filter(|&errno| errno != 0)
    }

    /// Writes were lost for this reason (positive errno) before the volume was opened.
    pub(crate) fn came_with(&self, errno: i32) {
        let errno = if errno > 0 { errno } else { libc::EIO };
        self.errno.store(errno, Ordering::Release);
    }

    /// The file or device was cut short, and with it what was behind its new end. The thread
    /// that watches sizes logs it.
    pub(crate) fn cut(&self) {
        let _other =
            (self.errno).compare_exchange(0, libc::EIO, Ordering::AcqRel, Ordering::Relaxed);
        self.is_cut.store(true, Ordering::Release);
    }

    /// Whether it was cut short.
    pub(crate) fn is_cut(&self) -> bool {
        self.is_cut.load(Ordering::Acquire)
    }

    /// The operator takes care of what was lost.
    pub(crate) fn clear(&self) {
        self.is_cut.store(false, Ordering::Release);
        self.errno.store(0, Ordering::Release);
    }

    /// A sync of `volume` ended with `errno`. Returns whether that means that writes are lost.
    pub(crate) fn sync_failed(&self, errno: i32, volume: &Arc<str>) -> bool {
        if was_not_carried_out(errno) {
            return false;
        }
        let first = self
            .errno
            .compare_exchange(0, errno, Ordering::AcqRel, Ordering::Relaxed);
        if first.is_ok() {
            let error = io::Error::from_raw_os_error(errno);
            tracing::error!(
                %volume, %error,
                "writes that hosts were told of as done could not be stored and may be lost; every Flush and FUA write \
                 of this volume fails from now on. See the kernel log and the free space of the file system or device, \
                 mend it, and check or restore what is on the volume. Then `capstan-target clear-lost-writes PATH` and \
                 reload, or restart the target, or take the namespace out of the configuration, reload, put it back in, \
                 and reload again"
            );
        }
        true
    }
}

/// Whether the kernel has not reported anything yet by a sync that ended with `errno`: the wait was
/// interrupted (before anything was reported: fs/fuse, fs/nfs), io_uring never began, or the file
/// system has no sync. Any other error of a sync may be a disk's answer to an earlier write,
/// reported this once: `EAGAIN`, `EBUSY`, `EOPNOTSUPP` and `ENOMEM` are among them
/// (`blk_status_to_errno` in block/blk-core.c, `file_write_and_wait_range` in mm/filemap.c).
fn was_not_carried_out(errno: i32) -> bool {
    matches!(errno, libc::EINTR | libc::ECANCELED | libc::ENOSYS)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::Loss;

    #[test]
    fn the_first_reason_stays_until_the_operator_clears_it() {
        let (loss, volume) = (Loss::default(), Arc::from("/srv/a.img"));
        assert_eq!(loss.errno(), None);
        assert!(loss.sync_failed(libc::ENOSPC, &volume));
        assert!(loss.sync_failed(libc::EIO, &volume));
        assert_eq!(loss.errno(), Some(libc::ENOSPC));
        loss.clear();
        assert_eq!(loss.errno(), None);
        // Known from before, whether for a known reason or not.
        for (known, told) in [
            (libc::EDQUOT, libc::EDQUOT),
            (0, libc::EIO),
            (-5, libc::EIO),
        ] {
            loss.came_with(known);
            assert_eq!(loss.errno(), Some(told));
        }
    }

    /// The kernel reports a failed write-back with the error of the write, and only once.
    #[test]
    fn what_a_write_back_can_fail_with_is_a_loss_and_what_was_not_carried_out_is_none() {
        let volume = Arc::from("/srv/a.img");
        for errno in [libc::EINTR, libc::ECANCELED, libc::ENOSYS] {
            let loss = Loss::default();
            assert!(!loss.sync_failed(errno, &volume), "errno {errno}");
            assert_eq!(loss.errno(), None);
        }
        for errno in [
            // block/blk-core.c: BLK_STS_AGAIN, _DEV_RESOURCE, _NOTSUPP, _RESOURCE, _TIMEOUT,
            // _TRANSPORT, _TARGET, _RESV_CONFLICT, _MEDIUM, _PROTECTION, _OFFLINE, _INVAL.
            libc::EAGAIN,
            libc::EBUSY,
            libc::EOPNOTSUPP,
            libc::ENOMEM,
            libc::ETIMEDOUT,
            libc::ENOLINK,
            libc::EREMOTEIO,
            libc::EBADE,
            libc::ENODATA,
            libc::EILSEQ,
            libc::ENODEV,
            libc::EINVAL,
            // Reasons of file systems: over quota, read-only, gone.
            libc::EDQUOT,
            libc::EROFS,
            libc::ESTALE,
        ] {
            let loss = Loss::default();
            assert!(loss.sync_failed(errno, &volume), "errno {errno}");
            assert_eq!(loss.errno(), Some(errno));
        }
    }
}
