//! What processes that serve volumes leave behind when they are killed, and those that do not
//! answer: what is said of them, and what takes it away.

use std::fmt;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, anyhow};
use capstan_initiator::internals::disk::clearing::{Cleared, clear_loop, clear_loop_later};
use capstan_initiator::internals::disk::links;
use capstan_initiator::internals::disk::loop_device::is_configured;
use capstan_initiator::internals::disk::loop_process::look;
use capstan_initiator::internals::disk::mounts::{Mount, mounts_of};
use capstan_initiator::internals::disk::record::{Record, VolumeDir, run_dir, volumes};
use capstan_initiator::internals::disk::serving::EndError;
use capstan_initiator::internals::disk::users::open_in;
use capstan_initiator::internals::disk::uses::claimed;
use capstan_initiator::internals::words::word_of;
use nix::mount::{MntFlags, umount2};

use super::force::TELL_AFTER;
use super::output;

/// How long others may have a disk open whose process has ended, as a worker of udev for a moment.
const CLOSE_PATIENCE: Duration = Duration::from_secs(10);
/// Between two looks at it.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// What is wrong with a volume whose process does not say how it is.
pub(super) struct Trouble {
    /// What has happened, and what is left.
    pub(super) seen: String,
    /// The command that takes that away.
    pub(super) next: String,
    /// When that is to be done.
    when: String,
}

impl Trouble {
    /// Of one whose process has ended; `mounts` are those of its disk.
    pub(super) fn dead(dir: &VolumeDir, record: &Record, mounts: &[Mount]) -> Self {
        let pid = record.process.pid;
        let left = match mounts {
            _ if !record.has_disk() => "it had no disk yet".to_owned(),
            [] => format!("{} is left, and its I/O fails", record.name()),
            _ => format!("{} is left mounted, and its I/O fails", record.name()),
        };
        Self {
            seen: format!(
                "process {pid}, which served it, was killed or has ended, and its log is {}: {left}; what was \
                 written and not flushed may be lost",
                dir.log().display()
            ),
            next: end(dir, record, mounts, ""),
            // A mount that this process sees goes with that command.
            when: claimed(record)
                .filter(|_| mounts.is_empty() && is_its_disk(record))
                .map_or_else(|| "to clean up".to_owned(), |used| format!("{used}; then")),
        }
    }

    /// Of one whose process lives, and what that does instead of telling how the volume is.
    pub(super) fn mute(dir: &VolumeDir, record: &Record, mounts: &[Mount], why: &str) -> Self {
        let (pid, log) = (record.process.pid, dir.log());
        let why = match record.process.is_stopped() {
            true => format!("is stopped (`kill -CONT {pid}` lets it go on) and {why}"),
            false => why.to_owned(),
        };
        Self {
            seen: format!(
                "process {pid}, which serves it, {why}; its log is {}",
                log.display()
            ),
            next: end(dir, record, mounts, "--force "),
            when: "if it does not come back, what ends it without what is not written".to_owned(),
        }
    }

    /// Of one whose process has ended, and whose number is that of another program now.
    pub(super) fn anothers(dir: &VolumeDir, process: &EndError) -> Self {
        let folder = word_of(dir.path());
        Self {
            seen: format!("its process is gone: {process}"),
            next: format!("rm -r {folder}"),
            when: "if it does not, what takes its record away".to_owned(),
        }
    }

    /// What is to be done, for people.
    pub(super) fn next_in_words(&self) -> String {
        format!("{}: {}", self.when, self.next)
    }
}

/// The command that ends a volume.
fn end(dir: &VolumeDir, record: &Record, mounts: &[Mount], force: &str) -> String {
    if !record.has_disk() {
        return format!("capstan detach {force}{}", word_of(dir.path()));
    }
    let device = record.name();
    // Mounted a moment ago: the kernel has forgotten that, and its unmount has not ended.
    let is_unmounted = || !record.mount_points.is_empty() && claimed(record).is_some();
    match mounts {
        [] if !force.is_empty() && is_unmounted() => format!("capstan umount --force {device}"),
        [] => format!("capstan detach {force}{device}"),
        _ => format!("capstan umount --force {device}"),
    }
}

/// The mounts of a volume's disk.
///
/// # Errors
/// `/proc` is not there.
pub(super) fn mounts(record: &Record) -> io::Result<Vec<Mount>> {
    let mounts = mounts_of(&record.device)?;
    let has_any = !mounts.is_empty() && is_its_disk(record);
    Ok(if has_any { mounts } else { Vec::new() })
}

/// Whether the device is the volume's: one that a dead process was to end with may be another's by
/// now.
fn is_its_disk(record: &Record) -> bool {
    record.process.is_alive()
        || is_configured(&record.device)
            && look(&record.device).map_or(true, |now| now.name.as_ref() == Some(&record.loop_name))
}

/// Takes away what a process that has died left behind.
pub(super) fn clean_up(dir: &VolumeDir, record: &Record) -> Result<()> {
    // In order: it has removed its folder itself.
    let has_died = dir.path().exists();
    let cleared = take_away(dir, record)?;
    if has_died && record.has_disk() {
        tracing::warn!("{}", unflushed(record, "had died", cleared));
    }
    Ok(())
}

/// Does `clean_up` once nobody has the disk open, and says what has when that takes long.
pub(super) fn when_closed(record: &Record, mut clean_up: impl FnMut() -> Result<()>) -> Result<()> {
    let (start, mut has_told) = (Instant::now(), false);
    loop {
        let open = match clean_up() {
            Err(error) if error.is::<StillOpen>() => error,
            ended => return ended,
        };
        if start.elapsed() >= CLOSE_PATIENCE {
            let name = record.name();
            return Err(Error::msg(format!(
                "{open}; the disk goes when that ends, and what is left of it with: capstan detach {name}"
            )));
        }
        if start.elapsed() >= TELL_AFTER && !has_told {
            let rest = CLOSE_PATIENCE.saturating_sub(start.elapsed()).as_secs();
            output::note(&format!(
                "{open}: that is waited for, {rest} s more at most"
            ));
            has_told = true;
        }
        thread::sleep(LOOK_EVERY);
    }
}

/// Takes away what processes that have died left behind, where nobody uses it.
pub(super) fn clean_up_dead() {
    for (dir, record) in volumes(&run_dir()).unwrap_or_default() {
        if let Ok(Some(record)) = record
            && !record.process.is_alive()
            && mounts(&record).is_ok_and(|mounts| mounts.is_empty())
            && let Err(error) = clean_up(&dir, &record)
        {
            tracing::debug!("{} stays: {error:#}", dir.path().display());
        }
    }
}

/// Takes away what a process that was ended here left behind.
pub(super) fn clean_up_ended(dir: &VolumeDir, record: &Record) -> Result<()> {
    let cleared = take_away(dir, record)?;
    if record.has_disk() {
        tracing::warn!("{}", unflushed(record, "was ended", cleared));
    }
    Ok(())
}

fn unflushed(record: &Record, what: &str, cleared: Cleared) -> String {
    let name = record.name();
    let disk = match cleared {
        Cleared::Now => ", and the disk was taken down",
        Cleared::Before | Cleared::WithLastUser => ", and the disk had gone with its last user",
        Cleared::Anothers => "; the device is another's by now, and was left alone",
    };
    format!(
        "process {}, which served {name}, {what}{disk}: what was written and not flushed may be lost",
        record.process.pid,
    )
}

/// Others have the disk of a volume open whose process has ended.
#[derive(Debug)]
pub(super) struct StillOpen {
    name: String,
    open_in: String,
    pid: i32,
}

impl fmt::Display for StillOpen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, open_in, pid } = self;
        write!(
            f,
            "process {pid}, which served {name}, has ended, and {name} is still open {open_in}"
        )
    }
}

impl std::error::Error for StillOpen {}

/// Loop device and folder; the FUSE mount went with the process. The folder stays, for another
/// try, as long as the device does.
fn take_away(dir: &VolumeDir, record: &Record) -> Result<Cleared> {
    links::remove(record);
    let cleared = clear_loop(record).map_err(|reason| anyhow!("{reason}"))?;
    if cleared == Cleared::WithLastUser {
        return Err(Error::new(StillOpen {
            name: record.name(),
            open_in: open_in(&record.device),
            pid: record.process.pid,
        }));
    }
    remove(dir)?;
    Ok(cleared)
}

/// Gives a volume up whose process has ended while its disk is in use: the disk goes with its last
/// user.
pub(super) fn abandon(dir: &VolumeDir, record: &Record) -> Result<()> {
    clear_loop_later(record).map_err(|reason| anyhow!("{reason}"))?;
    remove(dir)
}

/// A folder without record: of a volume that is being attached, unless nobody holds its log.
pub(super) fn clean_up_unborn(dir: &VolumeDir) {
    let log = std::fs::File::open(dir.log());
    let abandoned = match log {
        Ok(log) => log.try_lock().is_ok(),
        // Between the folder and its log there is a moment.
        Err(_) => false,
    };
    if abandoned && let Err(error) = remove(dir) {
        tracing::warn!("{error:#}");
    }
}

/// Removes a folder, and a FUSE mount in it that its process did not live to detach.
pub(super) fn remove(dir: &VolumeDir) -> Result<()> {
    // Not looked into: it may be one that nobody answers for. Mostly there is none.
    let _ = umount2(&dir.mount_point(), MntFlags::MNT_DETACH);
    dir.remove()
        .with_context(|| format!("removing {}", dir.path().display()))
}
