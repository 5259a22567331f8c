//! `capstan umount --force`: the end of a file system that cannot be unmounted in order.

use std::path::PathBuf;
use std::process::Command;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use capstan_initiator::front_ends::disk::mounts::{Mount, mounts_of};
use capstan_initiator::front_ends::disk::record::{Record, VolumeDir};
use capstan_initiator::front_ends::disk::users::users_of;
use nix::mount::{MntFlags, umount2};

use super::disk::{abandon, clean_up_ended, end_process};
use super::mount::run;

/// How long a file system may take to be unmounted in order, and again once its disk is dead: as
/// long as one I/O may take by default (`--io-timeout`).
const PATIENCE: Duration = Duration::from_secs(30);

/// Between two looks at a disk that goes.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Unmounts `mounts`: `true` when that was done in order, and the disk is left. Otherwise it was
/// done without what was not written, and everything of the volume is gone.
pub(super) fn unmount(dir: &VolumeDir, record: &Record, mounts: &[Mount]) -> Result<bool> {
    let (done, outcome) = mpsc::channel();
    let points: Vec<PathBuf> = mounts.iter().map(|m| m.mount_point.clone()).collect();
    // On a thread, as it stands still while the disk does.
    thread::spawn(move || done.send(unmount_in_order(&points)));
    let why = match outcome.recv_timeout(PATIENCE) {
        Ok(Ok(())) => return Ok(true),
        Ok(Err(error)) => {
            let users: Vec<_> = mounts.iter().map(|m| users_of(&m.mount_point)).collect();
            format!("{error:#}; used by {}", users.join(", "))
        }
        Err(_) => format!("it is not unmounted after {} s", PATIENCE.as_secs()),
    };
    tracing::warn!(
        device = %record.device.display(),
        "{why}: the serving process is ended, and what was not written is lost"
    );
    end_process(dir, record)?;
    // Its I/O fails now, so that it ends. Its sender is gone if it had.
    if let Err(RecvTimeoutError::Timeout) = outcome.recv_timeout(PATIENCE) {
        bail!(
            "{} is not unmounted {} s after its disk has ended; see the kernel's log",
            record.device.display(),
            PATIENCE.as_secs()
        );
    }
    // All of them: each has lost its disk.
    for mount in mounts_of(&record.device).context("/proc/self/mountinfo")? {
        // Out of sight at once; it ends with the last process that uses it.
        umount2(&mount.mount_point, MntFlags::MNT_DETACH)
            .with_context(|| format!("umount2 of {}", mount.mount_point.display()))?;
    }
    abandon(dir, record)?;
    Ok(false)
}

/// Unmounts, or at least writes what is not written yet.
fn unmount_in_order(points: &[PathBuf]) -> Result<()> {
    for point in points {
        if let Err(error) = run(Command::new("umount").arg(point)) {
            return match run(Command::new("sync").arg("-f").arg(point)) {
                Ok(()) => Err(error),
                Err(unwritten) => Err(error.context(format!("{unwritten:#}"))),
            };
        }
    }
    Ok(())
}

/// Ends a volume that is not in use and whose process does not end it.
pub(super) fn end(dir: &VolumeDir, record: &Record) -> Result<()> {
    end_process(dir, record)?;
    let start = Instant::now();
    // Its I/O fails now, so that an unmount that has waited for it comes to its end.
    while let Err(error) = clean_up_ended(dir, record) {
        if start.elapsed() >= PATIENCE {
            tracing::warn!("{error:#}; the disk goes with its last user");
            return abandon(dir, record);
        }
        thread::sleep(LOOK_EVERY);
    }
    Ok(())
}
