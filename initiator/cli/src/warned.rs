//! What the controller says of a medium whose I/O fails: the kernel and its tools say no more of
//! that than that there was an I/O error.

use std::time::Duration;

use anyhow::Error;
use capstan_initiator::error::IoError;
use capstan_initiator::internals::disk::control::{Answer, Request, ask_within};
use capstan_initiator::internals::disk::record::{Record, VolumeDir};
use capstan_initiator::internals::health::Medium;
use capstan_initiator::internals::way::Way;
use capstan_initiator::{DirectQueue, Options};
use capstan_nvme_proto::log::{CriticalWarning, HealthLog, LogPageId};

use super::{logs, output};

/// How long the serving process may take: it asks its controller for 0.3 s.
const PATIENCE: Duration = Duration::from_secs(1);

/// An error of I/O to a namespace, behind what the controller warns of.
pub(super) fn of_queue(
    error: Error,
    queue: &mut DirectQueue,
    options: &Options,
    nsid: u32,
) -> Error {
    let is_status = |cause: &(dyn std::error::Error + 'static)| {
        matches!(cause.downcast_ref(), Some(IoError::Status { .. }))
    };
    if !error.chain().any(is_status) {
        return error;
    }
    let medium = Medium {
        way: &Way::of(options).to_string(),
        nsid,
    };
    let page = logs::log_page(queue, LogPageId::HEALTH, nsid, logs::HEALTH_BYTES);
    let warning = page.ok().and_then(|page| {
        let log = HealthLog::from_data(&page)?;
        medium.warned_of(CriticalWarning::from_bits_retain(log.critical_warning))
    });
    match warning {
        Some(warning) => error.context(warning),
        None => error,
    }
}

/// What is wrong with a volume, as the process that serves it says.
pub(super) fn of_volume(dir: &VolumeDir) -> Option<String> {
    match ask_within(&dir.control(), Request::Status, PATIENCE) {
        Ok(Answer::Status(state)) => {
            let medium = state
                .medium
                .filter(|text| state.attention.as_ref() != Some(text));
            let texts: Vec<_> = state.attention.into_iter().chain(medium).collect();
            (!texts.is_empty()).then(|| texts.join("; "))
        }
        _ => None,
    }
}

/// Says on stderr what is wrong with a volume that was just attached: what reads or writes it next
/// may fail.
pub(super) fn tell(dir: &VolumeDir, record: &Record) {
    if let Some(text) = of_volume(dir) {
        output::note(&format!("{}: {text}", record.name()));
    }
}
