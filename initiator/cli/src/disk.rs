//! `capstan attach`, `detach` and `list`: volumes as disks of this machine.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, anyhow, bail};
use capstan_initiator::internals::disk::clearing::is_its_disk;
use capstan_initiator::internals::disk::control::{Answer, Request, State, ask_within};
use capstan_initiator::internals::disk::kept;
use capstan_initiator::internals::disk::mounts::{Mount, mount_at, resolved};
use capstan_initiator::internals::disk::record::{
    Record, RecordError, VolumeDir, run_dir, volumes,
};
use capstan_initiator::internals::disk::users::{open_in, users_of_unmounted};
use capstan_initiator::internals::disk::uses::{
    Use, claimed, claimed_behind_unmount, perhaps_by_overlays,
};
use capstan_initiator::internals::words::word_of;
use clap::Args;
use serde_json::{Value, json};

use super::args::OutputArgs;
use super::force::TELL_AFTER;
use super::found::found_at;
use super::interrupt::{Interrupted, Interrupts};
use super::left_over::{Trouble, clean_up, clean_up_ended, clean_up_unborn, when_closed};
use super::signatures::{self, Partition};
use super::tool::Tools;
use super::volume::{VolumeArgs, require_root};
use super::{detaching, force, left_over, output, warned, wire};

/// How long a serving process may take to end after its disk is gone: an orderly shutdown of the
/// association has five seconds.
pub(super) const EXIT_PATIENCE: Duration = Duration::from_secs(10);

/// How long the serving processes may take to say how they are, all of them together: each answers
/// at once, or when it has asked its controller (0.3 s).
const LIST_PATIENCE: Duration = Duration::from_millis(1500);
/// How long each may take in any case.
const ANSWER_AT_ONCE: Duration = Duration::from_millis(50);

/// How long the kernel may take to end a process that is killed, before what keeps it is looked for
/// in its own requests.
const KILL_PATIENCE: Duration = Duration::from_secs(2);

/// Arguments of `attach`.
#[derive(Args, Debug)]
pub(crate) struct Attach {
    #[command(flatten)]
    volume: VolumeArgs,
    #[command(flatten)]
    output: OutputArgs,
}

impl Attach {
    pub(crate) fn run(&self) -> Result<()> {
        // Taken before a thread starts, which must not get them.
        let interrupts = Interrupts::take()?;
        let (dir, record) = self.volume.attach(None, &interrupts)?;
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
    /// The disk, as `attach` printed it, a folder that it is or was being mounted at, or the
    /// number of its process (PID of `list`); of a volume that has no disk yet, the folder that
    /// `list` shows.
    device: PathBuf,
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
        let (dir, record) = find_device(&self.device)?;
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

/// Arguments of `list`.
#[derive(Args, Debug)]
pub(crate) struct List {
    #[command(flatten)]
    output: OutputArgs,
}

impl List {
    pub(crate) fn run(&self) -> Result<()> {
        let (mut rows, mut unreadable) = (Vec::new(), Vec::new());
        let until = Instant::now() + LIST_PATIENCE;
        let found = volumes(&run_dir()).map_err(|error| match error {
            RecordError::System { source, .. } if source.kind() == ErrorKind::PermissionDenied => {
                let what = "what root has attached is listed by root";
                require_root(what).err().unwrap_or_else(|| source.into())
            }
            other => other.into(),
        })?;
        for (dir, record) in found {
            match record {
                Ok(Some(record)) => rows.extend(Row::new(&dir, record, until)?),
                Ok(None) => clean_up_unborn(&dir),
                Err(error) => unreadable.push((dir, error.to_string())),
            }
        }
        if self.output.is_json() {
            let volumes: Vec<Value> = rows.iter().map(Row::json).collect();
            let unreadable: Vec<Value> = unreadable
                .iter()
                .map(|(dir, error)| json!({ "folder": dir.path(), "error": error }))
                .collect();
            return output::json(&json!({ "volumes": volumes, "unreadable": unreadable }));
        }
        for (_, error) in &unreadable {
            tracing::warn!("{error}");
        }
        if rows.is_empty() && unreadable.is_empty() {
            return output::line("no volume is attached");
        }
        if rows.is_empty() {
            return Ok(());
        }
        output::table(
            &[
                "VOLUME",
                "DEVICE",
                "SIZE",
                "MOUNT POINT",
                "TARGET",
                "TRANSPORT",
                "STATE",
                "PID",
            ],
            rows.iter().map(Row::cells),
        )?;
        for row in &rows {
            if let Some(text) = row.state.below() {
                output::line(&format!("{}: {text}", row.record.name()))?;
            }
        }
        Ok(())
    }
}

/// One volume in the list.
struct Row {
    /// What `detach` takes while there is no disk.
    folder: PathBuf,
    record: Record,
    mounts: Vec<Mount>,
    state: State,
}

impl Row {
    /// `None` when the volume's process had died and what it left could be cleaned up.
    fn new(dir: &VolumeDir, record: Record, until: Instant) -> Result<Option<Self>> {
        let mounts = left_over::mounts(&record).context("/proc/self/mountinfo")?;
        let state = if record.process.is_alive() {
            // One that has no time left to wait for is still asked.
            let patience = until.saturating_duration_since(Instant::now());
            let patience = patience.max(ANSWER_AT_ONCE);
            match ask_within(&dir.control(), Request::Status, patience) {
                Ok(Answer::Status(state)) => state,
                Ok(other) => {
                    let why = format!("answered {other:?}");
                    mute("confused", Trouble::mute(dir, &record, &mounts, &why))
                }
                Err(error) if is_gone(&error) => match record.process.anothers(dir.path()) {
                    Some(other) => mute("dead", Trouble::anothers(dir, &other)),
                    None => ending(),
                },
                Err(error) => {
                    let why = match error.kind() {
                        ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                            format!("does not answer within {:.1} s", patience.as_secs_f32())
                        }
                        _ => format!("does not answer: {error}"),
                    };
                    mute("silent", Trouble::mute(dir, &record, &mounts, &why))
                }
            }
        } else if mounts.is_empty() && clean_up(dir, &record).is_ok() {
            return Ok(None);
        } else {
            mute("dead", Trouble::dead(dir, &record, &mounts))
        };
        let mut state = state;
        if !record.has_disk() && record.process.is_alive() {
            let folder = word_of(dir.path());
            state.attention = Some(format!(
                "it has no disk yet ({}); to give it up: capstan detach {folder}",
                state.detail
            ));
        }
        if let Some(point) = record.mount_points.first()
            && state.state != "closing"
            && mounts.is_empty()
            && state.attention.is_none()
        {
            let (at, folder) = (point.display(), word_of(point));
            let used = claimed(&record);
            let is_unused = used.is_none() && record.has_disk() && is_its_disk(&record);
            let kept = used.filter(|used| !used.folders.is_empty());
            state.attention = Some(match (kept, users_of_unmounted(&record.device)) {
                // By force it would end under those that still write to it.
                (Some(used), _) => format!(
                    "unmounted from {at}, and its file system lives on: {used}; the disk goes with that"
                ),
                (None, Some(users)) => format!(
                    "unmounted from {at} (lazily), and still in use by {users}: the disk goes when that ends"
                ),
                (None, None) if is_unused => not_mounted(&record, &at.to_string()),
                (None, None) => format!(
                    "being mounted at {at}, or unmounted from there; {}if that does not end: capstan \
                     umount --force {folder}",
                    perhaps_by_overlays()
                ),
            });
        }
        Ok(Some(Self {
            folder: dir.path().to_owned(),
            record,
            mounts,
            state,
        }))
    }

    fn mount_points(&self) -> Vec<String> {
        let points = self
            .mounts
            .iter()
            .map(|m| m.mount_point.display().to_string());
        points.collect()
    }

    fn json(&self) -> Value {
        let mut told = json!({
            "volume": format!("{}/{}", self.record.subnqn, self.record.nsid),
            "subnqn": self.record.subnqn,
            "nsid": self.record.nsid,
            "folder": self.folder,
            "device": self.record.has_disk().then_some(&self.record.device),
            "size_bytes": self.record.size_bytes,
            "lba_bytes": self.record.lba_bytes,
            "read_only": self.record.read_only,
            "mount_points": self.mount_points(),
            "traddr": self.record.traddr,
            "trsvcid": self.record.trsvcid,
            "transport": self.record.transport,
            "state": self.state.state,
            "attempt": self.state.attempt,
            "detail": self.state.detail,
            "held": self.state.held,
            "attention": self.state.attention,
            "pid": self.record.process.pid,
        });
        wire::add_fields(&mut told, wire::of(&self.record, &self.state));
        told
    }

    fn state_in_words(&self) -> String {
        let State {
            state,
            attempt,
            held,
            ..
        } = &self.state;
        let attempt = attempt.map(|attempt| format!("attempt {attempt}"));
        let see = self.state.below().map(|_| match state.as_str() {
            "live" => "but see below".to_owned(),
            _ => "see below".to_owned(),
        });
        let read_only = self.record.read_only.then(|| "read-only".to_owned());
        let texts = [Some(state.clone()), read_only, attempt, held.clone(), see];
        let texts: Vec<_> = texts.into_iter().flatten().collect();
        texts.join(", ")
    }

    fn cells(&self) -> Vec<String> {
        let mounts = self.mount_points();
        vec![
            format!("{}/{}", self.record.subnqn, self.record.nsid),
            if self.record.has_disk() {
                self.record.device.display().to_string()
            } else {
                "-".to_owned()
            },
            if self.record.size_bytes > 0 {
                output::size(self.record.size_bytes)
            } else {
                "-".to_owned()
            },
            if mounts.is_empty() {
                "-".to_owned()
            } else {
                mounts.join(" ")
            },
            format!("{}:{}", self.record.traddr, self.record.trsvcid),
            wire::in_words(&self.record, &self.state),
            self.state_in_words(),
            self.record.process.pid.to_string(),
        ]
    }
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

/// The state of a volume whose process does not tell it.
fn mute(state: &str, trouble: Trouble) -> State {
    State {
        state: state.to_owned(),
        attention: Some(format!("{}; {}", trouble.seen, trouble.next_in_words())),
        detail: trouble.seen,
        ..State::default()
    }
}

/// The volume that `name` names: by its disk, a partition of it, a folder that it is or was being
/// mounted at, its own folder below the state folder, or its process.
pub(super) fn find_device(name: &Path) -> Result<(VolumeDir, Record)> {
    if let Some(found) = find_process(name)? {
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
            "{} is no volume of capstan ({}), expected the disk of one or its mount point: `capstan list` shows both",
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
