//! What uses a file system that is to be unmounted, and what ends that.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Error, Result, bail};
use capstan_initiator::internals::disk::file_users::{FileUse, by_the_kernel_in, by_the_kernel_on};
use capstan_initiator::internals::disk::loop_device::holders;
use capstan_initiator::internals::disk::mounts::{Mount, mount_at};
use capstan_initiator::internals::disk::record::{Record, VolumeDir};
use capstan_initiator::internals::disk::users::{processes_of, users_of};
use capstan_initiator::internals::disk::uses::claimed;
use capstan_initiator::internals::disk::waiting::waiting_in;
use capstan_initiator::internals::words::word_of;

use super::force::what_io_waits_for;
use super::interrupt::within;

/// How long the memory of processes that wait may be looked at.
const LOOK_PATIENCE: Duration = Duration::from_secs(2);

/// With what uses a file system of the volume in `record` that is busy, and what ends it.
pub(super) fn with_users(
    error: Error,
    dir: &VolumeDir,
    record: &Record,
    mounts: &[Mount],
) -> Error {
    // The kernel's word for EBUSY, which umount(8) repeats in its own.
    let is_busy = format!("{error:#}").contains("busy");
    let still_there =
        |mount: &&Mount| mount_at(&mount.mount_point).is_ok_and(|mount| mount.is_some());
    let Some(mount) = mounts.iter().filter(|_| is_busy).find(still_there) else {
        return error;
    };
    let point = &mount.mount_point;
    let target = what_io_waits_for(dir, record);
    let kernel = by_the_kernel_in(std::slice::from_ref(mount)).unwrap_or_default();
    let mut users = processes_of(point);
    let of = point.clone();
    let waiting = within(LOOK_PATIENCE, move || Ok(waiting_in(&of)));
    for waiting in waiting.ok().flatten().unwrap_or_default() {
        if !users.iter().any(|user| waiting.starts_with(user)) {
            users.push(waiting);
        }
    }
    if !kernel.is_empty() {
        users.push(as_what(&kernel));
    }
    let users = match (&users[..], &target) {
        ([], Some(_)) => "processes that have nothing of it open, as those which wait for the target inside of a call \
                          (open, stat)"
            .to_owned(),
        ([], None) => users_of(point),
        _ => users.join(", "),
    };
    // The shell that runs this command, mostly.
    let parent = std::os::unix::process::parent_id();
    let cwd = fs::read_link(format!("/proc/{parent}/cwd"));
    let leave = match cwd.is_ok_and(|cwd| cwd.starts_with(point)) {
        true => format!(
            "leave it first, as process {parent}, which runs this command, is in it: cd /; then "
        ),
        false => String::new(),
    };
    let (at, folder) = (point.display(), word_of(point));
    let by_force = format!("with the loss of what is not written: capstan umount --force {folder}");
    let text = match (&kernel[..], target) {
        ([], None) => format!(
            "{at} is in use by {users}: {leave}end what is in it and unmount it again, or take the disk away from it, \
             {by_force}"
        ),
        ([], Some(target)) => format!(
            "{target}; {at} is in use by {users}: {leave}what waits goes on once that is over, then: capstan umount \
             {folder}; or take the disk away from it, {by_force}"
        ),
        (kernel, target) => format!(
            "{}{at} is in use by {users}: {leave}end that first: {}; then: capstan umount {folder}",
            target.map_or_else(String::new, |target| format!("{target}; ")),
            steps(kernel)
        ),
    };
    error.context(text)
}

/// Refuses to take a disk away from what would not survive that: swap, loop devices on files of it
/// and what is mounted of those, and devices on one that is not mounted.
pub(super) fn check_kernel_users(record: &Record, mounts: &[Mount]) -> Result<()> {
    let found = by_the_kernel_on(&record.device).context("/proc")?;
    let name = record.name();
    if !found.is_empty() {
        bail!(
            "{name} is in use by {}; nothing was changed; end that first: {}",
            as_what(&found),
            steps(&found)
        );
    }
    let was_mounted = !mounts.is_empty() || !record.mount_points.is_empty();
    if !was_mounted
        && !holders(&record.device).is_empty()
        && let Some(used) = claimed(record)
    {
        bail!("{used}; {name} is not mounted, and nothing was changed");
    }
    Ok(())
}

fn as_what(found: &[FileUse]) -> String {
    let by: Vec<_> = found.iter().map(|one| one.by.as_str()).collect();
    format!("the kernel, {}", by.join(", and "))
}

fn steps(found: &[FileUse]) -> String {
    let steps: Vec<_> = found
        .iter()
        .flat_map(|one| &one.end)
        .map(String::as_str)
        .collect();
    steps.join("; ")
}
