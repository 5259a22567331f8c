//! `capstan reset` and `ns-rescan`: the controller of a volume that is attached.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use capstan_initiator::internals::disk::control::{Answer, Request, State, ask};
use capstan_initiator::internals::disk::record::{Record, VolumeDir};
use clap::Args;

use super::disk::find_device;
use super::values::within;
use super::volume::require_root;

/// Between two looks at a controller that connects again.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// A day: the most that a reset can be waited for, in seconds.
const TIMEOUT_MAX_S: u64 = 24 * 60 * 60;
/// How long namespaces are looked for.
const SCAN_PATIENCE: Duration = Duration::from_secs(30);

/// Arguments of `reset`.
#[derive(Args, Debug)]
pub(crate) struct Reset {
    /// The disk, as `attach` printed it and `list` shows it.
    device: PathBuf,
    /// Seconds to wait until the controller is live again; 0 does not wait.
    #[arg(short, long, default_value_t = 30, value_parser = within::<u64>(0..=TIMEOUT_MAX_S))]
    timeout: u64,
}

impl Reset {
    pub(crate) fn run(&self) -> Result<()> {
        require_root("resetting a controller needs root")?;
        let (dir, record) = find_device(&self.device)?;
        begin(&dir, &record, Request::Reset)?;
        let start = Instant::now();
        let mut now = state(&dir, &record)?;
        while !now.is_live() && start.elapsed() < Duration::from_secs(self.timeout) {
            if now.state != "reconnecting" {
                bail!(
                    "the controller of {} is {} after the reset: {}; unmount or detach the volume, and attach it anew",
                    record.device.display(),
                    now.state,
                    now.detail
                );
            }
            thread::sleep(LOOK_EVERY);
            now = state(&dir, &record)?;
        }
        if self.timeout != 0 && !now.is_live() {
            bail!(
                "the controller of {} is not live {} s after the reset: {}; it goes on trying, and \
                 `capstan list` shows how it goes",
                record.device.display(),
                self.timeout,
                now.detail
            );
        }
        check(&record, &now)
    }
}

/// Arguments of `ns-rescan`.
#[derive(Args, Debug)]
pub(crate) struct NsRescan {
    /// The disk, as `attach` printed it and `list` shows it.
    device: PathBuf,
}

impl NsRescan {
    pub(crate) fn run(&self) -> Result<()> {
        require_root("looking for namespaces again needs root")?;
        let (dir, record) = find_device(&self.device)?;
        begin(&dir, &record, Request::Rescan)?;
        let start = Instant::now();
        let mut now = state(&dir, &record)?;
        while now.scanning {
            if start.elapsed() > SCAN_PATIENCE {
                bail!(
                    "namespaces of {} are still looked for after {} s: {}; it goes on, and `capstan list` shows what \
                     becomes of the volume",
                    record.device.display(),
                    SCAN_PATIENCE.as_secs(),
                    now.detail
                );
            }
            thread::sleep(LOOK_EVERY);
            now = state(&dir, &record)?;
        }
        if now.state == "reconnecting" {
            tracing::warn!(
                "{} has no controller now ({}): namespaces are looked for when it is live again",
                record.device.display(),
                now.detail
            );
        }
        check(&record, &now)
    }
}

/// Says what is wrong with a volume though its controller has done what was asked. Fails when all
/// I/O is refused.
fn check(record: &Record, now: &State) -> Result<()> {
    let device = record.device.display();
    if let Some(reason) = &now.refused {
        bail!("I/O to {device} is still {reason}");
    }
    if let Some(attention) = &now.attention {
        tracing::warn!("{device}: {attention}");
    }
    Ok(())
}

/// Has the serving process begin something.
fn begin(dir: &VolumeDir, record: &Record, request: Request) -> Result<()> {
    match question(dir, record, request)? {
        Answer::Begun => Ok(()),
        other => bail!("process {} answered {other:?}", record.process.pid),
    }
}

fn state(dir: &VolumeDir, record: &Record) -> Result<State> {
    match question(dir, record, Request::Status)? {
        Answer::Status(state) => Ok(state),
        other => bail!("process {} answered {other:?}", record.process.pid),
    }
}

fn question(dir: &VolumeDir, record: &Record, request: Request) -> Result<Answer> {
    let pid = record.process.pid;
    ask(&dir.control(), request).with_context(|| {
        format!(
            "process {pid}, which serves {}, does not answer; `capstan list` tells whether it lives, its log is {}",
            record.device.display(),
            dir.log().display()
        )
    })
}
