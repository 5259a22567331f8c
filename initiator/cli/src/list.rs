//! `capstan list`: the volumes that are attached to this machine.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use capstan_initiator::internals::disk::clearing::is_its_disk;
use capstan_initiator::internals::disk::control::{Answer, Request, State, ask_within};
use capstan_initiator::internals::disk::mounts::Mount;
use capstan_initiator::internals::disk::record::{
    Record, RecordError, VolumeDir, run_dir, volumes,
};
use capstan_initiator::internals::disk::users::users_of_unmounted;
use capstan_initiator::internals::disk::uses::{claimed, perhaps_by_overlays};
use capstan_initiator::internals::words::word_of;
use clap::Args;
use serde_json::{Value, json};

use super::args::OutputArgs;
use super::disk::{ending, is_gone, not_mounted};
use super::left_over::{Trouble, clean_up, clean_up_unborn};
use super::volume::require_root;
use super::{left_over, output, wire};

/// How long the serving processes may take to say how they are, all of them together: each answers
/// at once, or when it has asked its controller (0.3 s).
const LIST_PATIENCE: Duration = Duration::from_millis(1500);
/// How long each may take in any case.
const ANSWER_AT_ONCE: Duration = Duration::from_millis(50);

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
            "name": self.record.volume_name,
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

/// The state of a volume that its process does not tell.
fn mute(state: &str, trouble: Trouble) -> State {
    State {
        state: state.to_owned(),
        attention: Some(format!("{}; {}", trouble.seen, trouble.next_in_words())),
        detail: trouble.seen,
        ..State::default()
    }
}
