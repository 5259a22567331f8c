//! The question that `capstan detach` has for a serving process, which may take its time to answer.

use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use capstan_initiator::internals::disk::control::{self, Answer, Request, ask};
use capstan_initiator::internals::disk::record::{Record, VolumeDir};
use capstan_initiator::internals::disk::uses::claimed;

use super::disk::{EXIT_PATIENCE, kept_by};
use super::force::TELL_AFTER;
use super::interrupt::{Work, wait_for};
use super::output;

/// Asks the serving process to end the volume in order, and says what that waits for when it takes
/// long. One that is stopped is not waited for as long as one that is at work may take.
pub(super) fn ask_to_detach(dir: &VolumeDir, record: &Record) -> Result<io::Result<Answer>> {
    let control = dir.control();
    let start = Instant::now();
    let asking = Work::start(move || Ok(ask(&control, Request::Detach)))?;
    if wait_for(&[asking.as_fd()], Some(TELL_AFTER))? {
        return asking.result();
    }
    let (pid, name) = (record.process.pid, record.name());
    if !record.process.is_stopped() {
        output::note(&format!(
            "{}: that is waited for, {} s more at most",
            kept_by(record, claimed(record)),
            whole_seconds(control::PATIENCE.saturating_sub(start.elapsed()))
        ));
        return asking.result();
    }
    let rest = EXIT_PATIENCE.saturating_sub(start.elapsed());
    output::note(&format!(
        "process {pid}, which serves {name}, is stopped (`kill -CONT {pid}` lets it go on): that is waited for, {} s more \
         at most",
        whole_seconds(rest)
    ));
    if wait_for(&[asking.as_fd()], Some(rest))? {
        return asking.result();
    }
    bail!(
        "{name} is not detached: process {pid}, which serves it, is stopped and has not answered for {} s; it detaches it \
         when it goes on (`kill -CONT {pid}`), and what ends it without what is not written is: capstan detach --force {name}",
        EXIT_PATIENCE.as_secs()
    )
}

/// Seconds, the last one begun counted.
fn whole_seconds(time: Duration) -> u128 {
    time.as_millis().div_ceil(1000)
}
