//! Whether anything else used the machine meanwhile.

use std::fs;

use anyhow::{Context as _, Result};
use nix::sys::resource::{UsageWho, getrusage};
use serde::{Deserialize, Serialize};

/// What is reported as noise: parts of one core.
const STEAL_MAX: f64 = 0.02;
const OTHERS_MAX: f64 = 0.1;
/// Of a figure: from its smallest sample to the largest, as a part of its median.
pub(crate) const SPREAD_MAX: f64 = 0.2;

/// Since a moment, in seconds of CPU time.
#[derive(Clone, Copy)]
pub(crate) struct Moment {
    /// User, nice and system time of all processes.
    busy: f64,
    steal: f64,
    /// Of this process and its children that have ended.
    ours: f64,
    at: std::time::Instant,
}

/// What others took between two moments, in cores.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Noise {
    /// Time that the hypervisor gave to other machines.
    pub(crate) steal: f64,
    /// Other processes.
    pub(crate) others: f64,
}

impl Moment {
    /// Now.
    pub(crate) fn now() -> Result<Self> {
        let stat = fs::read_to_string("/proc/stat")?;
        let line = stat.lines().next().context("/proc/stat has lines")?;
        let ticks: Vec<f64> = line
            .split_whitespace()
            .filter_map(|word| word.parse().ok())
            .collect();
        // user nice system idle iowait irq softirq steal, in hundredths of a second.
        let [user, nice, system, _, _, _, _, steal, ..] = ticks[..] else {
            anyhow::bail!("/proc/stat begins with {line:?}");
        };
        let used = |who| -> Result<f64> {
            let usage = getrusage(who)?;
            let seconds = |time: nix::sys::time::TimeVal| {
                #[expect(clippy::cast_precision_loss, reason = "seconds of a run")]
                let (whole, part) = (time.tv_sec() as f64, time.tv_usec() as f64);
                whole + part / 1e6
            };
            Ok(seconds(usage.user_time()) + seconds(usage.system_time()))
        };
        Ok(Self {
            busy: (user + nice + system) / 100.0,
            steal: steal / 100.0,
            ours: used(UsageWho::RUSAGE_SELF)? + used(UsageWho::RUSAGE_CHILDREN)?,
            at: std::time::Instant::now(),
        })
    }

    /// What others took since then.
    pub(crate) fn noise(self) -> Result<Noise> {
        let now = Self::now()?;
        let elapsed = (now.at - self.at).as_secs_f64().max(0.01);
        let others = (now.busy - self.busy) - (now.ours - self.ours);
        Ok(Noise {
            steal: (now.steal - self.steal) / elapsed,
            others: others.max(0.0) / elapsed,
        })
    }
}

impl Noise {
    /// What makes the figures doubtful.
    pub(crate) fn warning(&self) -> Option<String> {
        if self.steal <= STEAL_MAX && self.others <= OTHERS_MAX {
            return None;
        }
        Some(format!(
            "other machines took {:.2} and other processes {:.2} cores meanwhile",
            self.steal, self.others
        ))
    }
}
