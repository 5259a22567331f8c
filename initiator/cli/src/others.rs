//! Mounts of something else that lie on those of a volume: an unmount of the volume would take them
//! away, instead of its own or with it.

use std::path::Path;

use anyhow::{Context, Result, bail};
use capstan_initiator::internals::disk::mounts::{InTheWay, Mount, in_the_way, resolved, seen_at};
use capstan_initiator::internals::disk::record::Record;
use capstan_initiator::internals::words::word_of;

use super::output;
use super::tool::run;

/// More of them are not named: the next try does.
const NAMED_MAX: usize = 3;

/// Makes sure that nothing else lies on `mounts`, which are to be unmounted.
///
/// # Errors
/// What does, and what ends that.
pub(super) fn check_free(record: &Record, mounts: &[Mount]) -> Result<()> {
    let found = in_the_way(mounts).context("/proc/self/mountinfo")?;
    let Some(InTheWay { of, .. }) = found.first() else {
        return Ok(());
    };
    bail!(
        "{} is mounted at {}, and {}; nothing was changed",
        record.name(),
        of.mount_point.display(),
        in_words(&found)
    )
}

/// Says which of `mounts` is unmounted with the folder `named`, the last of them, as it lies on
/// that.
pub(super) fn tell_taken(named: &Path, mounts: &[Mount]) {
    let Some((of, others)) = mounts.split_last() else {
        return;
    };
    // By a disk, all of it is named.
    if resolved(named).is_ok_and(|path| path == of.mount_point) {
        let of = of.mount_point.display();
        for Mount {
            fs_type,
            mount_point: at,
            ..
        } in others
        {
            let at = at.display();
            output::note(&format!(
                "the {fs_type} at {at} lies on {of}, and is unmounted with it"
            ));
        }
    }
}

/// What they are, and the commands that unmount them.
pub(super) fn in_words(found: &[InTheWay]) -> String {
    let named = || found.iter().take(NAMED_MAX);
    let others: Vec<_> = named().map(one_in_words).collect();
    let commands: Vec<_> = named()
        .map(|InTheWay { other, .. }| format!("umount {}", word_of(&other.mount_point)))
        .collect();
    let more = match found.len().saturating_sub(NAMED_MAX) {
        0 => String::new(),
        more => format!(", with {more} more"),
    };
    format!(
        "{}{more}: unmount that first: {}",
        others.join(" and "),
        commands.join("; ")
    )
}

fn one_in_words(InTheWay { of, other }: &InTheWay) -> String {
    let (kind, source) = (&other.fs_type, other.source.display());
    let (at, point) = (other.mount_point.display(), of.mount_point.display());
    if other.mount_point == of.mount_point {
        format!("{kind} ({source}) is mounted over that")
    } else if other.mount_point.starts_with(&of.mount_point) {
        format!("{kind} ({source}) is mounted in it at {at}")
    } else {
        format!("{kind} ({source}) is mounted at {at}, which hides {point}")
    }
}

/// Unmounts a mount in order, and no other one that has come to be seen there.
pub(super) fn unmount(mount: &Mount) -> Result<()> {
    check_seen(mount)?;
    // Without a helper: that of a volume is this program again.
    let mut command = std::process::Command::new("umount");
    run(command.arg("-i").arg(&mount.mount_point))
}

/// Makes sure that `mount` is what an unmount of its mount point ends.
///
/// # Errors
/// Something else is seen there.
pub(super) fn check_seen(mount: &Mount) -> Result<()> {
    match seen_at(&mount.mount_point) {
        Some(id) if id != mount.id => bail!(
            "at {} something else than {} is mounted by now, which stays: unmount that first",
            mount.mount_point.display(),
            mount.source.display()
        ),
        _ => Ok(()),
    }
}
