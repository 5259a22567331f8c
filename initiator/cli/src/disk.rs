//! `capstan attach` and `detach`: volumes as disks of this machine.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Error, Result, anyhow, bail};
use capstan_initiator::internals::disk::clearing::is_its_disk;
use capstan_initiator::internals::disk::control::{Answer, State};
use capstan_initiator::internals::disk::kept;
use capstan_initiator::internals::disk::mounts::{Mount, mount_at, resolved};
use capstan_initiator::internals::disk::record::{Record, VolumeDir, run_dir, volumes};
use capstan_initiator::internals::disk::users::open_in;
use capstan_initiator::internals::disk::uses::{Use, claimed, claimed_behind_unmount};
use clap::Args;
use serde_json::{Value, json};

use super::args::OutputArgs;
use super::force::TELL_AFTER;
use super::found::found_at;
use super::interrupt::{Interrupted, Interrupts};
use super::left_over::{clean_up, clean_up_ended, when_closed};
use super::signatures::{self, Partition};
use super::tool::Tools;
use super::volume::{VolumeArgs, require_root};
use super::volumes::parse_name;
use super::{detaching, force, left_over, output, volumes as persistent, warned};

/// How long a serving process may take to end after its disk is gone: an orderly shutdown of the
/// association has five seconds.
pub(super) const EXIT_PATIENCE: Duration = Duration::from_secs(10);

/// How long the kernel may take to end a process that is killed, before what keeps it is looked for
/// in its own requests.
const KILL_PATIENCE: Duration = Duration::from_secs(2);

/// Arguments of `attach`.
#[derive(Args, Debug)]
pub(crate) struct Attach {
    #[command(flatten)]
    volume: VolumeArgs,
    /// Name of the volume on this machine, for /dev/capstan/by-name/NAME and for `detach NAME`.
    #[arg(long, value_parser = parse_name)]
    name: Option<String>,
    /// Attach it at every boot: writes it into /etc/capstan/volumes.toml, and where systemd runs
    /// has `capstan@NAME.service` serve it [default for --name: the end of the NQN].
    #[arg(long)]
    persist: bool,
    #[command(flatten)]
    output: OutputArgs,
}

impl Attach {
    pub(crate) fn run(&self) -> Result<()> {
        // Taken before a thread starts, which must not get them.
        let interrupts = Interrupts::take()?;
        let name = self.name.as_deref();
        let (dir, record) = if self.persist {
            require_root("attaching a volume needs root (mount(2), loop devices)")?;
            persistent::persist(&self.volume, name, &interrupts)?
        } else {
            name.map_or(Ok(()), persistent::check_free)?;
            self.volume.attach(None, name, &interrupts)?
        };
        let tools = Tools::new(&interrupts, self.volume.patience());
        let partitions = match signatures::partitions(&record.device, &tools) {
            Ok(partitions) => partitions,
            Err(error) if error.is::<Interrupted>() => {
                return Err(force::give_up(&dir, &record, error, &interrupts));
            }
            // The disk is there; what is on it is told as far as that can be found out.
            Err(error) => {
                tracing::warn!("partitions were not looked for: {error:#}");
                Vec::new()
            }
        };
        interrupts.leave_to_the_kernel()?;
        warned::tell(&dir, &record);
        if self.output.is_json() {
            let mut told = serde_json::to_value(&record)?;
            told["partitions"] = partitions.iter().map(partition_json).collect();
            return named_anyway(&record, output::json(&told));
        }
        if record.read_only && !self.volume.read_only {
            output::note(&format!(
                "{} is read-only: the target protects namespace {} from writes",
                record.device.display(),
                record.nsid
            ));
        }
        // Not on stdout, which has the device for whatever reads it.
        for partition in &partitions {
            let device = partition.device.display();
            output::note(&format!("{device} is partition {}", partition.in_words()));
        }
        named_anyway(&record, output::line(&record.device.display().to_string()))
    }
}

/// Names a disk that stays on stderr where stdout cannot take it.
fn named_anyway(record: &Record, printed: Result<()>) -> Result<()> {
    let name = record.name();
    let stays = format!("{name} is attached, and stays: capstan detach {name}");
    match printed {
        Err(error) if output::is_closed_pipe(&error) => output::note(&stays),
        printed => return printed.context(stays),
    }
    Ok(())
}

fn partition_json(partition: &Partition) -> Value {
    json!({
        "number": partition.number,
        "device": partition.device,
        "size_bytes": partition.size_bytes,
        "type": partition.kind,
    })
}

/// Arguments of `detach`.
#[derive(Args, Debug)]
pub(crate) struct Detach {
    /// The disk, as `attach` printed it, the name of the volume, a folder that it is or was being
    /// mounted at, or the number of its process (PID of `list`); of a volume that has no disk yet,
    /// the folder that `list` shows.
    device: PathBuf,
    /// Take it out of /etc/capstan/volumes.toml, too: it is not attached at the next boot. One that
    /// is not attached is given by its name.
    #[arg(long)]
    persist: bool,
    /// End the serving process first, as when it does not answer: I/O in progress fails, and what
    /// was not written is lost. A disk that is mounted or otherwise in use is left as it is.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    output: OutputArgs,
}

impl Detach {
    pub(crate) fn run(&self) -> Result<()> {
        require_root("detaching a volume needs root")?;
        let (dir, record) = match find_device(&self.device) {
            Ok(found) => found,
            Err(error) if !self.persist || parse_name(&self.device.to_string_lossy()).is_err() => {
                return Err(error);
            }
            Err(_) => return persistent::forget(&self.device, None),
        };
        if self.force && record.process.is_alive() {
            // Looked at before anything is touched: a file system would lose its disk.
            if let Some(reason) = claimed(&record) {
                bail!("{reason}; nothing was changed");
            }
            end_process(&dir, &record)?;
            when_closed(&record, || clean_up_ended(&dir, &record))?;
        } else {
            detach(&dir, &record)?;
        }
        if self.persist {
            persistent::forget(&self.device, Some(&record))?;
        }
        check_losses(&dir, &record)?;
        if self.output.is_json() {
            return output::json(&left(&record, &[], false));
        }
        Ok(())
    }
}

/// What is left of a volume, as JSON.
pub(super) fn left(record: &Record, mounts: &[Mount], attached: bool) -> Value {
    json!({
        "device": record.has_disk().then_some(&record.device),
        "mount_points": mounts.iter().map(|m| &m.mount_point).collect::<Vec<_>>(),
        "attached": attached,
    })
}

/// What a disk that was to be mounted at `at`, and is not in use, is.
pub(super) fn not_mounted(record: &Record, at: &str) -> String {
    format!(
        "attached and not mounted: unless a mount of it at {at} is under way, it stays so; capstan detach {}",
        record.name()
    )
}

/// The state of a volume whose process has taken its disk down.
pub(super) fn ending() -> State {
    State {
        state: "closing".to_owned(),
        detail: "its process tells the controller of the end, and ends then".to_owned(),
        ..State::default()
    }
}

/// The volume that `name` names: by its disk, a partition of it, a folder that it is or was being
/// mounted at, its own folder below the state folder, its process, or its name.
pub(super) fn find_device(name: &Path) -> Result<(VolumeDir, Record)> {
    if let Some(found) = find_process(name)? {
        return Ok(found);
    }
    if let Some(found) = find_named(name)? {
        return Ok(found);
    }
    let path = resolved(name).with_context(|| name.display().to_string())?;
    let whole = if path.starts_with("/dev") {
        signatures::disk_of(path.clone())
    } else {
        path.clone()
    };
    let mounted = mount_at(&path).context("/proc/self/mountinfo")?;
    let has = |record: &Record| {
        record.device == whole
            || record.mount_points.contains(&path)
            || mounted.as_ref().is_some_and(|mount| {
                left_over::mounts(record).is_ok_and(|mounts| mounts.contains(mount))
            })
    };
    let found = find(|dir, record| dir.path() == path || has(record))?;
    found.ok_or_else(|| {
        anyhow!(
            "{} is no volume of capstan ({}), expected the disk of one, its name or its mount point: `capstan list` shows them",
            name.display(),
            found_at(name)
        )
    })
}

/// The volume of the process that `name` is the number of, as `list` shows it; `None` where it is
/// a path, or of no volume.
pub(super) fn find_process(name: &Path) -> Result<Option<(VolumeDir, Record)>> {
    let pid = name.to_str().and_then(|name| name.parse::<u32>().ok());
    match pid.filter(|_| !name.exists()) {
        Some(pid) => find(|_, record| u32::try_from(record.process.pid) == Ok(pid)),
        None => Ok(None),
    }
}

/// The volume of this name; `None` where it is a path, or of no volume.
pub(super) fn find_named(name: &Path) -> Result<Option<(VolumeDir, Record)>> {
    match name.to_str().filter(|name| parse_name(name).is_ok()) {
        Some(wanted) if !name.exists() => {
            find(|_, record| record.volume_name.as_deref() == Some(wanted))
        }
        _ => Ok(None),
    }
}

/// The volume that is `wanted`. Says which records cannot be read when none of the others is.
pub(super) fn find(
    wanted: impl Fn(&VolumeDir, &Record) -> bool,
) -> Result<Option<(VolumeDir, Record)>> {
    let (mut found, mut unreadable) = (Vec::new(), Vec::new());
    for (dir, record) in volumes(&run_dir())? {
        match record {
            Ok(Some(record)) if wanted(&dir, &record) => found.push((dir, record)),
            Ok(_) => {}
            Err(error) => unreadable.push(error),
        }
    }
    if found.is_empty() {
        for error in unreadable {
            tracing::warn!("{error}");
        }
    }
    // A dead volume may have left a record of a device that is another's by now.
    found.sort_by_key(|(_, record)| !record.process.is_alive());
    Ok(found.into_iter().next())
}

/// Ends a volume that is not in use.
pub(super) fn detach(dir: &VolumeDir, record: &Record) -> Result<()> {
    if !record.process.is_alive() {
        return when_closed(record, || clean_up(dir, record));
    }
    match detaching::ask_to_detach(dir, record)? {
        Ok(Answer::Detached) => wait_for_last_user(record),
        // The process does not know what was mounted by hand, and is being unmounted.
        Ok(Answer::Refused(reason)) => match claimed(record) {
            Some(used) => bail!("{used}"),
            None => bail!("{reason}"),
        },
        Ok(other) => bail!("process {} answered {other:?}", record.process.pid),
        Err(error) if is_gone(&error) => match record.process.anothers(dir.path()) {
            Some(other) => Err(other.into()),
            // It has just gone by itself.
            None => wait_for_last_user(record),
        },
        Err(error) => Err(error).with_context(|| {
            format!(
                "process {} does not answer; its log is {}; --force ends it",
                record.process.pid,
                dir.log().display()
            )
        }),
    }
}

/// Whether a serving process listens no more: it ends.
pub(super) fn is_gone(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::NotFound | ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset
    )
}

/// What keeps a disk that is to go, in words.
pub(super) fn kept_by(record: &Record, used: Option<Use>) -> String {
    let open = || {
        format!(
            "{} is still open {}",
            record.name(),
            open_in(&record.device)
        )
    };
    used.map_or_else(open, |used| used.by)
}

/// Waits for the end of a serving process which comes with the last user of its disk. What keeps
/// that is said when it takes long.
pub(super) fn wait_for_last_user(record: &Record) -> Result<()> {
    let pid = record.process.pid;
    if record.process.wait(TELL_AFTER) {
        return Ok(());
    }
    let rest = EXIT_PATIENCE.saturating_sub(TELL_AFTER);
    let is_there = || record.has_disk() && is_its_disk(record);
    let kept = || kept_by(record, claimed_behind_unmount(record));
    let waits_for = match is_there() {
        true => kept(),
        false => format!("process {pid} tells the controller that its disk has gone"),
    };
    output::note(&format!(
        "{waits_for}: that is waited for, {} s more at most",
        rest.as_secs()
    ));
    if record.process.wait(rest) {
        return Ok(());
    }
    if is_there() {
        bail!(
            "{}; the disk goes when that ends, and process {pid}, which serves it, with it",
            kept()
        );
    }
    Err(runs_on(record))
}

/// Waits until the serving process has ended.
pub(super) fn wait_for_exit(record: &Record) -> Result<()> {
    if record.process.wait(EXIT_PATIENCE) {
        return Ok(());
    }
    Err(runs_on(record))
}

fn runs_on(record: &Record) -> Error {
    anyhow!(
        "process {} still runs {} s after its disk has gone; `capstan list` tells what it does",
        record.process.pid,
        EXIT_PATIENCE.as_secs()
    )
}

/// Ends the serving process at once: I/O in progress fails.
pub(super) fn end_process(dir: &VolumeDir, record: &Record) -> Result<()> {
    record.process.end(dir.path())?;
    if !record.process.wait(KILL_PATIENCE)
        && let Some(Err(error)) = record.fuse.map(|fuse| fuse.abort(dir.path()))
    {
        tracing::warn!("aborting its FUSE connection: {error}");
    }
    wait_for_exit(record)
}

/// Fails when a volume whose process has ended has lost writes.
pub(super) fn check_losses(dir: &VolumeDir, record: &Record) -> Result<()> {
    match kept::losses(dir, record) {
        None => Ok(()),
        Some(losses) => bail!(
            "{} is detached, but {losses}; the volume's log is {}",
            record.name(),
            kept::path(dir, record).display()
        ),
    }
}
