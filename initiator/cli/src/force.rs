//! The end of a volume that cannot be unmounted or detached in order, or not soon enough:
//! `capstan umount --force`, a second signal to what waits for dirty data, and a signal to what
//! makes a disk.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, bail};
use capstan_initiator::error::Losses;
use capstan_initiator::internals::disk::control::{Answer, Request, State, ask};
use capstan_initiator::internals::disk::kept;
use capstan_initiator::internals::disk::mounts::{Mount, in_the_way, mounts_of};
use capstan_initiator::internals::disk::record::{Record, VolumeDir};
use capstan_initiator::internals::disk::users::users_of;
use capstan_initiator::internals::disk::uses::Use;
use capstan_initiator::internals::words::word_of;
use capstan_reactor::Asked;
use nix::mount::{MntFlags, umount2};

use super::busy::with_users;
use super::disk::{detach, end_process, wait_for_last_user};
use super::interrupt::{Interrupted, Interrupts, Work, wait_for, within};
use super::left_over::{StillOpen, abandon, clean_up_ended};
use super::others::{check_seen, in_words};
use super::tool::run;
use super::umount::MOMENT;
use super::unnamed::Unnamed;
use super::{others, output};

/// How long a file system may take to be unmounted in order, and again once its disk is dead: as
/// long as one I/O may take by default (`--io-timeout`).
const PATIENCE: Duration = Duration::from_secs(30);
/// Between two lines that say what an unmount still waits for.
const TELL_AGAIN: Duration = Duration::from_secs(60);
/// How long a disk that a signal gives up may take to go in order, and again by force.
const SOON: Duration = Duration::from_millis(750);
/// How long an unmount or the end of a disk may take before it says what it waits for, unasked.
pub(super) const TELL_AFTER: Duration = Duration::from_secs(2);
/// How long the serving process may take to say how it is: it asks its controller for 0.3 s.
const ANSWER_PATIENCE: Duration = Duration::from_secs(1);
/// How long file systems that lose their disk may write what is not written yet.
const WRITE_PATIENCE: Duration = Duration::from_secs(10);
/// Between two looks at a disk that goes.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// How an unmount has gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waited {
    /// In order, in spite of this signal.
    Over(Option<Interrupted>),
    /// A second signal has come.
    Insisted(Interrupted),
    Late,
}

/// Unmounts `mounts`. A signal tells what that waits for, and a second one ends it as with --force.
/// What comes back is why not everything is on the disk, if so: umount(2) does not tell it; and the
/// signal that has come meanwhile.
///
/// # Errors
/// What umount(8) says, or [`Interrupted`].
pub(super) fn unmount_in_order(
    dir: &VolumeDir,
    record: &Record,
    mounts: &[Mount],
    interrupts: &Interrupts,
) -> Result<(Option<io::Error>, Option<Interrupted>)> {
    let ours = mounts.to_vec();
    let device = (!record.read_only && !ours.is_empty()).then(|| record.device.clone());
    let unmounting = Work::start(move || {
        // Opened before, it is told of what fails from now on.
        let disk = device.and_then(|device| File::open(device).ok());
        ours.iter().try_for_each(others::unmount)?;
        Ok(disk.and_then(|disk| disk.sync_all().err()))
    })?;
    match wait(&unmounting, None, dir, record, interrupts)? {
        Waited::Over(asked) => unmounting
            .result()
            .map(|unwritten| (unwritten, asked))
            .map_err(|error| with_users(error, dir, record, mounts)),
        Waited::Late => unmounting
            .result()
            .map(|unwritten| (unwritten, None))
            .map_err(|error| with_users(error, dir, record, mounts)),
        Waited::Insisted(interrupted) => {
            let loss = Some("signals have ended its unmount".to_owned());
            end_mounted(dir, record, Some(&unmounting), loss)?;
            Err(Error::new(interrupted).context(format!(
                "{} is ended, and what was not written is lost",
                record.name()
            )))
        }
    }
}

/// Unmounts `mounts`: `true` when that was done in order, and the disk is left. Otherwise it was
/// done without what was not written, and everything of the volume is gone; what else is mounted of
/// the disk is written before, and named.
pub(super) fn unmount(
    dir: &VolumeDir,
    record: &Record,
    mounts: &[Mount],
    interrupts: &Interrupts,
) -> Result<bool> {
    // What a process that had died before has not written is not lost here.
    let was_alive = record.process.is_alive();
    let start = Instant::now();
    let ours = mounts.to_vec();
    // On a thread, as it stands still while the disk does.
    let unmounting = Work::start(move || Ok(unmount_or_write(&ours)))?;
    let (why, unmounting, mut unwritten, patience) =
        match wait(&unmounting, Some(PATIENCE), dir, record, interrupts)? {
            Waited::Over(_) => match unmounting.result()? {
                Ok(()) => return Ok(true),
                Err(Busy { error, unwritten }) => {
                    let users: Vec<_> = mounts.iter().map(|m| users_of(&m.mount_point)).collect();
                    let why = format!("{error:#}; used by {}", users.join(", "));
                    (
                        why,
                        None,
                        unwritten,
                        PATIENCE.saturating_sub(start.elapsed()),
                    )
                }
            },
            Waited::Insisted(_) => {
                let why = "a second signal has come".to_owned();
                (why.clone(), Some(unmounting), vec![why], MOMENT)
            }
            Waited::Late => {
                let waits_for = what_io_waits_for(dir, record);
                let waits_for = waits_for.map_or_else(String::new, |why| format!("; {why}"));
                let seconds = PATIENCE.as_secs();
                let why = format!("it is not unmounted after {seconds} s{waits_for}");
                (why.clone(), Some(unmounting), vec![why], WRITE_PATIENCE)
            }
        };
    let unnamed = Unnamed::write(record, mounts)?;
    let also = unnamed.in_words();
    unwritten.extend(unnamed.unwritten(patience));
    let lost = match (was_alive, &unwritten[..]) {
        (true, []) => "what was written to it until now is on the volume",
        _ => "what was not written is lost",
    };
    tracing::warn!(
        device = %record.name(),
        "{why}: the serving process is ended, and {lost}{also}"
    );
    let loss = (was_alive && !unwritten.is_empty()).then(|| unwritten.join("; "));
    end_mounted(dir, record, unmounting.as_ref(), loss)?;
    Ok(false)
}

/// Why a file system was not unmounted, and why not all of them are written, if so.
struct Busy {
    error: Error,
    unwritten: Vec<String>,
}

/// Keeps the log of a volume whose process was ended by force before everything was written.
fn keep_loss(dir: &VolumeDir, record: &Record, why: &str) {
    let losses = Losses(vec![format!(
        "its process was ended by force, and what was not written is lost ({why})"
    )]);
    if let Err(error) = kept::keep(dir, record, &losses) {
        let log = dir.log();
        tracing::warn!("{losses}; its log {} is not kept: {error}", log.display());
    }
}

/// Waits for `unmounting`. What it waits for is said to the first signal, and unasked when it takes
/// long.
fn wait<T: Send + 'static>(
    unmounting: &Work<T>,
    patience: Option<Duration>,
    dir: &VolumeDir,
    record: &Record,
    interrupts: &Interrupts,
) -> Result<Waited> {
    let start = Instant::now();
    let (mut asked, mut first): (Option<Asked>, _) = (None, None);
    let mut tell_at = TELL_AFTER;
    loop {
        let rest = patience.map(|patience| patience.saturating_sub(start.elapsed()));
        let untold = tell_at.saturating_sub(start.elapsed());
        let patience = rest.map_or(untold, |rest| rest.min(untold));
        if !wait_for(&[unmounting.as_fd(), interrupts.as_fd()], Some(patience))? {
            if rest.is_some_and(|rest| rest <= untold) {
                return Ok(Waited::Late);
            }
            let ends = match asked {
                None => "two signals (twice ctrl-C) end",
                Some(_) => "another signal ends",
            };
            tell_wait(dir, record, start.elapsed(), ends);
            tell_at = start.elapsed() + TELL_AGAIN;
            continue;
        }
        match interrupts.next() {
            Some(interrupted)
                if !interrupted.is_hangup()
                    && asked.is_some_and(|asked| asked.is_insisted_on()) =>
            {
                return Ok(Waited::Insisted(interrupted));
            }
            Some(_) if asked.is_some() => {}
            Some(interrupted) => {
                tell_wait(dir, record, start.elapsed(), "another signal ends");
                asked = Some(Asked::now());
                first = Some(interrupted);
            }
            None if wait_for(&[unmounting.as_fd()], Some(Duration::ZERO))? => {
                return Ok(Waited::Over(first));
            }
            None => {}
        }
    }
}

fn tell_wait(dir: &VolumeDir, record: &Record, since: Duration, signals_end: &str) {
    let since = match since.as_secs() / 60 {
        0 => String::new(),
        minutes => format!(" since {minutes} min"),
    };
    output::note(&format!(
        "the file system is being unmounted{since}: it writes what is not written yet to {}, {}{}; {signals_end} the disk \
         at once, and what is not written is lost",
        record.name(),
        how_it_is(dir, record),
        waiting(record)
    ));
}

/// Writes that the disk was given and has not ended (Documentation/ABI/stable/sysfs-block,
/// `inflight`), in words; nothing where there are none.
fn waiting(record: &Record) -> String {
    let name = record.device.file_name().unwrap_or_default();
    let path = Path::new("/sys/block").join(name).join("inflight");
    let text = fs::read_to_string(path).unwrap_or_default();
    let writes: Option<u64> = text
        .split_ascii_whitespace()
        .nth(1)
        .and_then(|n| n.parse().ok());
    match writes {
        None | Some(0) => String::new(),
        Some(writes) => format!(", with {writes} writes under way"),
    }
}

/// How the controller of a volume is, in words.
fn how_it_is(dir: &VolumeDir, record: &Record) -> String {
    match status(dir) {
        Some(State {
            silent_ms: Some(ms),
            detail,
            ..
        }) => format!("whose target has not answered for {ms} ms (its controller is {detail})"),
        Some(state) => format!("whose controller is {}", state.detail),
        None => format!("whose serving process {}", why_mute(record)),
    }
}

/// Why the I/O of a volume waits, if it does.
pub(super) fn what_io_waits_for(dir: &VolumeDir, record: &Record) -> Option<String> {
    let (pid, name) = (record.process.pid, record.name());
    match status(dir) {
        Some(State {
            silent_ms: Some(ms),
            ..
        }) => Some(format!("the target of {name} has not answered for {ms} ms")),
        Some(state) if state.is_live() => None,
        Some(state) => Some(format!(
            "the target of {name} is away: its controller is {}",
            state.detail
        )),
        None => Some(format!(
            "process {pid}, which serves {name}, {}",
            why_mute(record)
        )),
    }
}

/// What a serving process does that does not answer.
fn why_mute(record: &Record) -> String {
    let pid = record.process.pid;
    match record.process.is_stopped() {
        true => format!("is stopped (`kill -CONT {pid}` lets it go on)"),
        false => "does not answer".to_owned(),
    }
}

/// `None` where the serving process does not answer.
fn status(dir: &VolumeDir) -> Option<State> {
    let control = dir.control();
    let asked = within(ANSWER_PATIENCE, move || Ok(ask(&control, Request::Status)?));
    match asked {
        Ok(Some(Answer::Status(state))) => Some(state),
        Ok(_) | Err(_) => None,
    }
}

/// Ends a volume that is mounted: its I/O fails, and what was not written is lost; `loss` says why
/// something was not, if so.
fn end_mounted<T: Send + 'static>(
    dir: &VolumeDir,
    record: &Record,
    unmounting: Option<&Work<T>>,
    loss: Option<String>,
) -> Result<()> {
    end_process(dir, record)?;
    if let Some(why) = loss {
        keep_loss(dir, record, &why);
    }
    // Its I/O fails now, so that it ends.
    if let Some(unmounting) = unmounting
        && !wait_for(&[unmounting.as_fd()], Some(PATIENCE))?
    {
        bail!(
            "{} is not unmounted {} s after its disk has ended; see the kernel's log",
            record.name(),
            PATIENCE.as_secs()
        );
    }
    hide_mounts(record)?;
    abandon(dir, record)
}

/// Takes every mount of a disk that has ended out of sight; each ends with the last process that
/// uses it. One that something else has come to lie on stays, as that would go with it.
fn hide_mounts(record: &Record) -> Result<()> {
    let mounts = mounts_of(&record.device).context("/proc/self/mountinfo")?;
    let others = in_the_way(&mounts).context("/proc/self/mountinfo")?;
    if !others.is_empty() {
        tracing::warn!("{} stays mounted: {}", record.name(), in_words(&others));
    }
    for mount in mounts {
        if others.iter().any(|found| found.of.id == mount.id) {
            continue;
        }
        if let Err(other) = check_seen(&mount) {
            tracing::warn!("{} stays mounted: {other:#}", record.name());
            continue;
        }
        umount2(&mount.mount_point, MntFlags::MNT_DETACH)
            .with_context(|| format!("umount2 of {}", mount.mount_point.display()))?;
    }
    Ok(())
}

/// Unmounts, or at least writes what is not written yet: all that are left.
fn unmount_or_write(mounts: &[Mount]) -> std::result::Result<(), Busy> {
    let mut left = mounts;
    while let Some((mount, rest)) = left.split_first() {
        if let Err(error) = others::unmount(mount) {
            let written = left.iter().map(|mount| write(&mount.mount_point));
            let unwritten = written.filter_map(|written| Some(format!("{:#}", written.err()?)));
            return Err(Busy {
                error,
                unwritten: unwritten.collect(),
            });
        }
        left = rest;
    }
    Ok(())
}

/// Has the file system that `folder` is on written.
pub(super) fn write(folder: &Path) -> Result<()> {
    run(Command::new("sync").arg("-f").arg(folder))
}

/// Ends a volume that is unmounted here and whose disk something else uses; `stays` where it does
/// not go with its last user. What is not written yet is written first, where that can be done.
pub(super) fn end_in_use(dir: &VolumeDir, record: &Record, used: &Use, stays: bool) -> Result<()> {
    tracing::warn!(
        device = %record.name(),
        "{}: by --force that loses its disk; what it has not written yet is written first, as far as that takes no \
         longer than {} s, and what it writes later is lost",
        used.by,
        WRITE_PATIENCE.as_secs()
    );
    // It may be an unmount that is still under way, or be in use for a moment only.
    let ends_by_itself = match used.folders.is_empty() {
        _ if stays => false,
        true => wait_for_last_user(record).is_ok(),
        false => record.process.wait(MOMENT),
    };
    if ends_by_itself {
        return Ok(());
    }
    let written = write_first(dir, record, used);
    if let Err(error) = &written {
        tracing::error!(
            device = %record.name(),
            "not everything could be written before the serving process is ended: {error:#}"
        );
    }
    end_process(dir, record)?;
    if let Err(error) = written {
        keep_loss(dir, record, &format!("{error:#}"));
    }
    abandon(dir, record)
}

/// Has the file systems that use a disk written, within [`WRITE_PATIENCE`].
fn write_first(dir: &VolumeDir, record: &Record, used: &Use) -> Result<()> {
    match status(dir) {
        Some(state) if state.is_live() => {}
        Some(state) => bail!("its controller is {}", state.detail),
        None => bail!("the serving process {}", why_mute(record)),
    }
    let folders = used.folders.clone();
    let written = within(WRITE_PATIENCE, move || {
        // Where nobody knows which it is, all are written.
        if folders.is_empty() {
            return run(&mut Command::new("sync"));
        }
        let mut folders = folders.iter();
        folders.try_for_each(|folder| write(folder))
    })?;
    written.with_context(|| format!("sync has not ended after {} s", WRITE_PATIENCE.as_secs()))
}

/// Ends a volume that is not in use and whose process does not end it.
pub(super) fn end(dir: &VolumeDir, record: &Record) -> Result<()> {
    end_process(dir, record)?;
    let start = Instant::now();
    // Its I/O fails now, so that an unmount that has waited for it comes to its end.
    while let Err(error) = clean_up_ended(dir, record) {
        // What has it open may do so for as long as it likes.
        let patience = if error.is::<StillOpen>() {
            MOMENT
        } else {
            PATIENCE
        };
        if start.elapsed() >= patience {
            tracing::warn!("{error:#}; the disk goes with its last user");
            return abandon(dir, record);
        }
        thread::sleep(LOOK_EVERY);
    }
    Ok(())
}

/// Ends a disk that was made for what has failed with `error`: soon, when that is a signal, or one
/// comes meanwhile. Nobody has written to it. What comes back says what is left of it.
pub(super) fn give_up(
    dir: &VolumeDir,
    record: &Record,
    error: Error,
    interrupts: &Interrupts,
) -> Error {
    if error.is::<Interrupted>() {
        return and_what_is_left(error, record, end_soon(dir, record));
    }
    let volume = (dir.clone(), record.clone());
    match interrupts.unless_one_comes(move || detach(&volume.0, &volume.1)) {
        Err(interrupted) if interrupted.is::<Interrupted>() => {
            let error = interrupted.context(format!("{error:#}"));
            and_what_is_left(error, record, end_soon(dir, record))
        }
        ended => and_what_is_left(error, record, ended),
    }
}

fn and_what_is_left(error: Error, record: &Record, ended: Result<()>) -> Error {
    match ended {
        Ok(()) => error,
        Err(left) => error.context(format!("{} stays attached ({left:#})", record.name())),
    }
}

fn end_soon(dir: &VolumeDir, record: &Record) -> Result<()> {
    let volume = (dir.clone(), record.clone());
    let in_order = within(SOON, move || {
        let (dir, record) = volume;
        let mounts = mounts_of(&record.device).context("/proc/self/mountinfo")?;
        mounts.iter().try_for_each(others::unmount)?;
        detach(&dir, &record)
    });
    if matches!(in_order, Ok(Some(()))) {
        return Ok(());
    }
    let volume = (dir.clone(), record.clone());
    let by_force = within(SOON, move || {
        let (dir, record) = volume;
        end_process(&dir, &record)?;
        hide_mounts(&record)?;
        end(&dir, &record)
    })?;
    by_force.with_context(|| {
        let (pid, folder) = (record.process.pid, word_of(dir.path()));
        format!("its process {pid} has not ended yet; capstan detach --force {folder}")
    })
}
