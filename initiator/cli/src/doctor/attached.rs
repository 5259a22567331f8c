//! The volumes that are attached to this machine, and what is wrong with them.

use std::time::Duration;

use capstan_doctor::Check;
use capstan_initiator::front_ends::disk::control::{Answer, Request, ask};
use capstan_initiator::front_ends::disk::record::{Record, VolumeDir, run_dir, volumes};

use super::super::interrupt::within;

/// How long a serving process may take to say how its volume is.
const PATIENCE: Duration = Duration::from_secs(2);
const EXPECTED: &str = "a live controller, and the volume as it was attached";
const LIST: &str = "capstan list";

/// A check of each volume; none where there is no volume.
pub(super) fn attached() -> Vec<Check> {
    match volumes(&run_dir()) {
        Ok(found) => found
            .into_iter()
            .filter_map(|(dir, record)| match record {
                Ok(record) => Some(volume(&dir, &record?)),
                Err(error) => {
                    let name = format!("volume {}", dir.path().display());
                    Some(Check::warning(name, error.to_string(), EXPECTED, LIST))
                }
            })
            .collect(),
        Err(error) => vec![Check::ok("volumes", format!("not looked at: {error}"))],
    }
}

fn volume(dir: &VolumeDir, record: &Record) -> Check {
    let name = format!("volume {}", record.name());
    if !record.process.is_alive() {
        let pid = record.process.pid;
        let seen = format!("process {pid}, which served it, has died: its I/O fails");
        return Check::error(name, seen, EXPECTED, LIST);
    }
    let control = dir.control();
    let asked = within(PATIENCE, move || Ok(ask(&control, Request::Status)?));
    let state = match asked {
        Ok(Some(Answer::Status(state))) => state,
        Ok(Some(other)) => {
            let seen = format!("its process answered {other:?}");
            return Check::error(name, seen, EXPECTED, LIST);
        }
        Ok(None) | Err(_) => {
            let seen = format!("process {} does not answer", record.process.pid);
            return Check::error(name, seen, EXPECTED, LIST);
        }
    };
    let seen = state.detail.clone();
    match (state.state.as_str(), &state.attention) {
        ("live", None) => Check::ok(name, seen),
        ("live" | "reconnecting" | "connecting" | "setting up", _) => {
            Check::warning(name, seen, EXPECTED, LIST)
        }
        _ => Check::error(name, seen, EXPECTED, LIST),
    }
}
