//! `capstan umount`: the end of file systems on volumes.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Error, Result, anyhow, bail};
use capstan_initiator::internals::disk::clearing::is_its_disk;
use capstan_initiator::internals::disk::loop_device::is_configured;
use capstan_initiator::internals::disk::loop_process::look;
use capstan_initiator::internals::disk::mounts::{Mount as Mounted, mount_at, mounts_of, resolved};
use capstan_initiator::internals::disk::record::{Record, VolumeDir};
use capstan_initiator::internals::disk::users::users_of_unmounted;
use capstan_initiator::internals::disk::uses::{
    Use, claimed, claimed_behind_unmount, perhaps_by_overlays,
};
use capstan_initiator::internals::words::word_of;
use clap::Args;
use serde_json::json;

use super::args::OutputArgs;
use super::busy::check_kernel_users;
use super::disk::{self, find, find_device, wait_for_last_user};
use super::force::TELL_AFTER;
use super::found::found_at;
use super::interrupt::{self, Interrupted, Interrupts};
use super::left_over::{clean_up, when_closed};
use super::others::{check_free, tell_taken};
use super::volume::require_root;
use super::{force, left_over, output};

/// Arguments of `umount`.
#[derive(Args, Debug)]
pub(crate) struct Umount {
    /// Mount point, the disk that is mounted, the name of its volume, or the number of its process
    /// (PID of `list`).
    target: PathBuf,
    /// Unmount though it is busy or the target does not answer, and end the disk: when that cannot
    /// be done in order within 30 s, the serving process is ended, I/O in progress fails, and what
    /// was not written is lost.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    output: OutputArgs,
}

impl Umount {
    pub(crate) fn run(&self) -> Result<()> {
        require_root("unmounting a volume needs root")?;
        let interrupts = Interrupts::take()?;
        let (dir, mut record, mounts) = self.find()?;
        // The kernel unmounts nothing that a process works in, as with `umount .`.
        std::env::set_current_dir("/").context("leaving this folder")?;
        // Before anything is changed: by force as well.
        check_free(&record, &mounts)?;
        if self.force && record.process.is_alive() {
            check_kernel_users(&record, &mounts)?;
        }
        if self.force && mounts.is_empty() {
            // It may be ended next, and only that one: another is not waited for.
            record.process.check_serves(dir.path())?;
        }
        if self.force {
            tell_taken(&self.target, &mounts);
        }
        let unfinished = mounts.is_empty() && !record.mount_points.is_empty();
        if unfinished && !self.force && record.process.is_alive() {
            let target = self.target.display();
            if let Some(used) = claimed(&record).filter(|used| !used.folders.is_empty()) {
                bail!(
                    "{target} is unmounted already, and the file system lives on: {used}; nothing was ended, and the \
                     disk goes with that"
                );
            }
            if let Some(users) = users_of_unmounted(&record.device) {
                bail!(
                    "{target} is unmounted already (lazily), and still in use by {users}: end that; nothing was ended, \
                     and the disk goes with that"
                );
            }
        }
        // Where an unmount is just over, so is this one, once the disk has gone.
        if unfinished && !self.force && !record.process.wait(TELL_AFTER) {
            let (target, device) = (self.target.display(), record.device.display());
            if claimed(&record).is_none() && record.has_disk() && is_its_disk(&record) {
                let found = disk::not_mounted(&record, &target.to_string());
                bail!("{device} is {found}");
            }
            let named = word_of(&self.target);
            bail!(
                "the kernel has unmounted {target} and has not finished with {device}, or has not begun \
                 to mount it: it waits for I/O; see `capstan list`; {}what ends it without what is not \
                 written: capstan umount --force {named}",
                perhaps_by_overlays()
            );
        }
        self.check_mounted(&record, &mounts)?;
        let points = || mounts.iter().map(|mount| mount.mount_point.clone());
        if record.process.is_alive() && !points().all(|p| record.mount_points.contains(&p)) {
            record.mount_points.extend(points());
            dir.write(&record)?;
        }
        let (mut unwritten, mut asked) = (None, None);
        if !self.force {
            (unwritten, asked) = force::unmount_in_order(&dir, &record, &mounts, &interrupts)?;
        } else if !force::unmount(&dir, &record, &mounts, &interrupts)? {
            disk::check_losses(&dir, &record)?;
            return self.tell(&record, None);
        }
        // Nothing is dirty any more, and what is left goes on without this process.
        let force = self.force;
        let pid = record.process.pid;
        let of = record.clone();
        let work = move || end_unmounted(&dir, record, force);
        let ended = match asked {
            None => interrupts.unless_one_comes(work),
            // It was asked to end before.
            Some(asked) => interrupt::within(MOMENT, work)
                .and_then(|done| done.ok_or_else(|| Error::from(asked))),
        };
        let (record, left) = match ended {
            Err(error) if error.is::<Interrupted>() && unwritten.is_none() => {
                if let Some(used) = claimed(&of) {
                    return Err(error.context(format!(
                        "{} is unmounted, and process {pid} still serves its disk: {used}",
                        self.target.display()
                    )));
                }
                return Err(error.context(format!(
                    "{} is unmounted; process {pid}, which serves its disk, ends by itself once nothing else uses that \
                     and the controller is told or does not answer (`capstan list`)",
                    self.target.display()
                )));
            }
            ended => ended?,
        };
        if let Some(error) = unwritten {
            bail!(
                "{} is unmounted, but not everything could be written to {}: {error}; what was written to it lately may \
                 be lost: attach it anew and check its file system (fsck), or restore what is on it",
                self.target.display(),
                record.device.display()
            );
        }
        interrupts.leave_to_the_kernel()?;
        self.tell(&record, left.as_ref())
    }

    /// A disk that is attached and not mounted is refused, as by umount(8). By force it is ended.
    fn check_mounted(&self, record: &Record, mounts: &[Mounted]) -> Result<()> {
        let is_mounted = !mounts.is_empty() || !record.mount_points.is_empty();
        if is_mounted || self.force || !record.has_disk() || !record.process.is_alive() {
            return Ok(());
        }
        let (target, device) = (self.target.display(), record.name());
        if let Some(used) = claimed(record) {
            bail!("{target} is not mounted here; {used}, then: capstan detach {device}");
        }
        bail!(
            "{target} is not mounted, expected a disk that is; it is attached: capstan detach {device} ends that"
        )
    }

    /// Says what is left; to people, nothing when that is nothing.
    fn tell(&self, record: &Record, left: Option<&Left>) -> Result<()> {
        let device = record.device.display();
        let mounts = left.map_or(&[][..], |left| &left.mounts);
        let used = left.and_then(|left| left.used.as_ref());
        if self.output.is_json() {
            let mut told = disk::left(record, mounts, left.is_some());
            told["in_use"] = json!(used.map(ToString::to_string));
            return output::json(&told);
        }
        match (mounts.first(), used, left) {
            (Some(other), ..) => output::line(&format!(
                "{device} is still mounted at {}",
                other.mount_point.display()
            )),
            (None, Some(used), Some(Left { stays: true, .. })) => output::line(&format!(
                "{device} stays attached; {used}, then: capstan detach {device}"
            )),
            // Nothing tells what it is used for.
            (None, Some(used), _) if used.folders.is_empty() => output::line(&format!(
                "{} is unmounted, but {used}; nothing was ended, and the disk goes with that",
                self.target.display()
            )),
            (None, Some(used), _) => output::line(&format!(
                "the file system lives on: {used}; nothing was ended, and the disk goes with that"
            )),
            (None, None, Some(_)) => {
                output::line(&format!("{device} stays attached; capstan detach {device}"))
            }
            (None, None, None) => Ok(()),
        }
    }

    /// The volume, and the mounts to undo.
    fn find(&self) -> Result<(VolumeDir, Record, Vec<Mounted>)> {
        let target = self.target.display();
        let meta = std::fs::metadata(&self.target);
        let is_device = meta
            .is_ok_and(|meta| std::os::unix::fs::FileTypeExt::is_block_device(&meta.file_type()));
        if is_device {
            let (dir, record) = find_device(&self.target)?;
            let mounts = left_over::mounts(&record).context("/proc/self/mountinfo")?;
            let path = resolved(&self.target).with_context(|| target.to_string())?;
            let Some(other) = mounts.first().filter(|_| path != record.device) else {
                return Ok((dir, record, mounts));
            };
            // A partition is that one.
            let of_it = mounts_of(&path).context("/proc/self/mountinfo")?;
            if of_it.is_empty() {
                bail!(
                    "{target} is not mounted, expected a partition that is, or the disk {disk} for all of it ({} is mounted \
                     at {}): `capstan list` shows where it is mounted",
                    other.source.display(),
                    other.mount_point.display(),
                    disk = record.name(),
                );
            }
            return Ok((dir, record, of_it));
        }
        let by_word = match disk::find_process(&self.target)? {
            None => disk::find_named(&self.target)?,
            found => found,
        };
        if let Some((dir, record)) = by_word {
            let mounts = left_over::mounts(&record);
            return Ok((dir, record, mounts.context("/proc/self/mountinfo")?));
        }
        let path = resolved(&self.target).with_context(|| target.to_string())?;
        let of = |record: &Record| left_over::mounts(record).unwrap_or_default();
        let Some(mount) = mount_at(&path).context("/proc/self/mountinfo")? else {
            // The kernel forgets it before its unmount is over.
            let found = find(|_, record| record.mount_points.contains(&path))?;
            let (dir, record) = found.ok_or_else(|| {
                anyhow!(
                    "nothing is mounted at {target} ({}), expected a mount point or the disk of a volume: `capstan list` \
                     shows both",
                    found_at(&self.target)
                )
            })?;
            return Ok((dir, record, Vec::new()));
        };
        let found = find(|_, record| of(record).contains(&mount))?;
        let (dir, record) = found.ok_or_else(|| {
            anyhow!(
                "what is mounted at {target} is no volume of capstan; use umount, or see \
                 `capstan list`"
            )
        })?;
        let mut mounts = of(&record);
        mounts.retain(|other| other.lies_on(&mount));
        if let Some(overlay) = mounts.first().filter(|_| !self.force) {
            // The kernel would unmount it, and the overlay would keep the disk without a name.
            bail!(
                "{target} is under the overlay at {at}; unmount that first: capstan umount {over}, \
                 or everything of the volume: capstan umount {}",
                record.device.display(),
                at = overlay.mount_point.display(),
                over = word_of(&overlay.mount_point),
            );
        }
        mounts.push(mount);
        Ok((dir, record, mounts))
    }
}

/// How long what keeps a disk may take to end by itself before it is named.
pub(super) const MOMENT: Duration = Duration::from_secs(1);

/// What keeps the disk of a volume that was unmounted.
struct Left {
    /// Other places where it is mounted.
    mounts: Vec<Mounted>,
    /// What else uses it, as a mount that only another mount namespace sees, and what ends that.
    used: Option<Use>,
    /// It was attached by hand, and is detached by hand.
    stays: bool,
}

/// Leaves a volume as it is, with where it is mounted on record.
fn leave(dir: &VolumeDir, mut record: Record, left: Left) -> Result<(Record, Option<Left>)> {
    // One that goes with its last user is still found by where it was mounted.
    if left.used.is_none() || left.stays {
        let points = left.mounts.iter().map(|mount| mount.mount_point.clone());
        record.mount_points = points.collect();
        dir.write(&record)?;
    }
    Ok((record, Some(left)))
}

/// Ends the disk of a volume that was unmounted. One that was attached by hand stays, and one that
/// is still in use: by what is returned then.
fn end_unmounted(
    dir: &VolumeDir,
    record: Record,
    by_force: bool,
) -> Result<(Record, Option<Left>)> {
    if !record.process.is_alive() {
        when_closed(&record, || clean_up(dir, &record))?;
        disk::check_losses(dir, &record)?;
        return Ok((record, None));
    }
    let mounts = mounts_of(&record.device).context("/proc/self/mountinfo")?;
    // Mounted by `capstan mount`, the disk goes with its file system.
    let stays = is_configured(&record.device)
        && look(&record.device)
            .is_ok_and(|now| now.name.as_ref() == Some(&record.loop_name) && !now.autoclear);
    let used = claimed(&record).filter(|_| mounts.is_empty());
    if let Some(used) = used.as_ref().filter(|_| by_force) {
        force::end_in_use(dir, &record, used, stays)?;
        disk::check_losses(dir, &record)?;
        return Ok((record, None));
    }
    if !mounts.is_empty() || stays && !by_force {
        let left = Left {
            used,
            mounts,
            stays,
        };
        return leave(dir, record, left);
    }
    // It may be in use for a moment only, as where a container is made.
    let kept = || claimed(&record).filter(|used| !used.folders.is_empty());
    if kept().is_some()
        && !record.process.wait(MOMENT)
        && let Some(used) = kept()
    {
        let left = Left {
            used: Some(used),
            mounts,
            stays,
        };
        return leave(dir, record, left);
    }
    let ended = if stays || !record.has_disk() {
        disk::detach(dir, &record)
    } else {
        wait_for_last_user(&record)
    };
    match ended {
        Err(_) if by_force => force::end(dir, &record)?,
        Err(error) => {
            let left = Left {
                mounts,
                used: Some(claimed_behind_unmount(&record).ok_or(error)?),
                stays,
            };
            return leave(dir, record, left);
        }
        Ok(()) => {}
    }
    disk::check_losses(dir, &record)?;
    Ok((record, None))
}
