//! The volumes that are attached to this machine, and what is wrong with them.

use std::time::Duration;

use capstan_doctor::Check;
use capstan_initiator::internals::disk::control::{Answer, Request, ask};
use capstan_initiator::internals::disk::record::{Record, VolumeDir, run_dir, volumes};
use capstan_initiator::internals::words::word_of;

use super::super::disk::{ending, is_gone};
use super::super::interrupt::within;
use super::super::left_over::{self, Trouble};

/// How long a serving process may take to say how its volume is.
const PATIENCE: Duration = Duration::from_secs(2);
const EXPECTED: &str = "a live controller, and the volume as it was attached";

/// A check of each volume; none where there is no volume.
pub(super) fn attached() -> Vec<Check> {
    match volumes(&run_dir()) {
        Ok(found) => found
            .into_iter()
            .filter_map(|(dir, record)| match record {
                Ok(record) => Some(volume(&dir, &record?)),
                Err(error) => {
                    let name = format!("volume {}", dir.path().display());
                    let remedy = format!("ls -la {}", dir.path().display());
                    Some(Check::warning(name, error.to_string(), EXPECTED, remedy))
                }
            })
            .collect(),
        Err(error) => vec![Check::ok("volumes", format!("not looked at: {error}"))],
    }
}

fn volume(dir: &VolumeDir, record: &Record) -> Check {
    let name = format!("volume {}", record.name());
    let mounts = left_over::mounts(record).unwrap_or_default();
    let mute = |trouble: Trouble| {
        let remedy = trouble.next_in_words();
        Check::error(name.clone(), trouble.seen, EXPECTED, remedy)
    };
    if !record.process.is_alive() {
        return mute(Trouble::dead(dir, record, &mounts));
    }
    let control = dir.control();
    let asked = within(PATIENCE, move || Ok(ask(&control, Request::Status)?));
    let state = match asked {
        Ok(Some(Answer::Status(state))) => state,
        Ok(Some(other)) => {
            let why = format!("answered {other:?}");
            return mute(Trouble::mute(dir, record, &mounts, &why));
        }
        Err(error) if error.downcast_ref().is_some_and(is_gone) => {
            return match record.process.anothers(dir.path()) {
                Some(other) => mute(Trouble::anothers(dir, &other)),
                None => Check::ok(name, ending().detail),
            };
        }
        Ok(None) | Err(_) => {
            return mute(Trouble::mute(dir, record, &mounts, "does not answer"));
        }
    };
    let seen = match state.wire.wire() {
        Some(wire) => format!("{}, over {wire}", state.detail),
        None => state.detail.clone(),
    };
    let log = format!("its log says more: cat {}", word_of(&dir.log()));
    match (state.state.as_str(), &state.attention) {
        ("live", None) => Check::ok(name, seen),
        ("live", Some(_)) => Check::warning(name, seen, EXPECTED, log),
        ("reconnecting" | "connecting" | "setting up", _) => {
            let (way, device) = (&record.way, word_of(&record.device));
            let why = format!(
                "capstan doctor {way}; where other options lead to the target: capstan detach {device}, and attach it with \
                 those"
            );
            Check::warning(name, seen, EXPECTED, why)
        }
        _ => Check::error(name, seen, EXPECTED, log),
    }
}
