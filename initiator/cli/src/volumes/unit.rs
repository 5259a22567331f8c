//! The units of volumes, `capstan@NAME.service`, where systemd runs and has them.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Error, Result, anyhow, bail};
use sd_notify::NotifyState;

/// Is there where systemd is the system's manager (sd_booted(3)).
const SYSTEMD: &str = "/run/systemd/system";

/// The unit of a volume.
pub(super) fn name(volume: &str) -> String {
    format!("capstan@{volume}.service")
}

/// Whether volumes have units here. A folder of records of its own is none that units know.
pub(super) fn is_there() -> bool {
    let is_of_system = std::env::var_os("CAPSTAN_RUN_DIR").is_none_or(|folder| folder.is_empty())
        && std::env::var_os(super::file::VARIABLE).is_none_or(|path| path.is_empty());
    is_of_system
        && Path::new(SYSTEMD).exists()
        && systemctl(&["cat", "capstan@.service"]).is_ok_and(|output| output.status.success())
}

fn systemctl(words: &[&str]) -> Result<Output> {
    let mut systemctl = Command::new("systemctl");
    let output = systemctl.args(words).stdin(Stdio::null()).output();
    output.context("running systemctl")
}

/// Starts the units of volumes, and waits until each has its disk or has failed.
pub(super) fn start(volumes: &[&str]) -> Result<()> {
    let units: Vec<_> = volumes.iter().map(|volume| name(volume)).collect();
    let units: Vec<_> = units.iter().map(String::as_str).collect();
    let output = systemctl(&[&["start"], &units[..]].concat())?;
    if output.status.success() {
        return Ok(());
    }
    match volumes {
        [volume] => Err(why_not(volume)),
        _ => {
            let told = String::from_utf8_lossy(&output.stderr);
            bail!("systemctl start: {} ({})", told.trim(), output.status)
        }
    }
}

/// Why a unit has not started.
pub(super) fn why_not(volume: &str) -> Error {
    let unit = name(volume);
    let status = systemctl(&["show", "-P", "StatusText", &unit]);
    let status = status.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    let said = status.unwrap_or_default();
    let why = said.strip_prefix("failed: ").unwrap_or(&said);
    match why {
        "" => anyhow!("{unit} does not start: journalctl -u {unit}"),
        why => anyhow!("{why} ({unit})"),
    }
}

/// Stops the unit of a volume, if it runs or tries to.
pub(super) fn stop(volume: &str) -> Result<()> {
    let unit = name(volume);
    let output = systemctl(&["stop", &unit])?;
    if output.status.success() {
        return Ok(());
    }
    let told = String::from_utf8_lossy(&output.stderr);
    bail!("systemctl stop {unit}: {} ({})", told.trim(), output.status)
}

/// Whether the system is being shut down: also in the middle of a boot, when it calls its state
/// "starting".
pub(super) fn is_shutting_down() -> bool {
    let show = ["show", "--property=Job", "--property=ActiveState"];
    let shown = systemctl(&[&show[..], &["shutdown.target"]].concat());
    shown.is_ok_and(|output| {
        let shown = String::from_utf8_lossy(&output.stdout).into_owned();
        let mut lines = shown.lines();
        lines.any(|line| match line.split_once('=') {
            Some(("Job", job)) => !["", "0"].contains(&job),
            Some(("ActiveState", state)) => state == "active",
            _ => false,
        })
    })
}

/// Says how it goes where a unit's process runs; elsewhere nothing.
pub(in super::super) fn tell(text: &str) {
    notify(&[NotifyState::Status(text)]);
}

/// Says that the disk can be used, likewise.
pub(in super::super) fn tell_ready(text: &str) {
    notify(&[NotifyState::Ready, NotifyState::Status(text)]);
}

fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!("systemd is not told: {error}");
    }
}
