//! `soft-roce`: `capstan-target` with the verbs provider against the Linux target, in one boot of the
//! lab, with the Linux host and fio.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use capstan_tests::program::program;

use crate::Setting;
use crate::figure::{Better, Bounds, Figure, Findings};
use crate::turns::Turns;

/// The jobs of `tests/lab/guest/compare.sh`: its name, what it is, and what the best other
/// user-space target has of nvmet there.
const JOBS: [(&str, &str, &str); 5] = [
    ("randread-4k-qd1", "4 KiB random read, depth 1", "0.89"),
    ("randread-4k-qd32", "4 KiB random read, depth 32", "0.82"),
    ("randwrite-4k-qd32", "4 KiB random write, depth 32", "0.76"),
    ("read-128k-qd8", "128 KiB read, depth 8", "1.05"),
    ("write-128k-qd8", "128 KiB write, depth 8", "0.92"),
];

/// Boots the lab and runs the five jobs on both targets in turn, in five rounds.
pub(crate) fn run(setting: &Setting) -> Result<Findings> {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let repository = repository.canonicalize()?;
    let out = setting.folder.join("soft-roce");
    let samples = out.join("samples");
    let target = setting.folder.join("capstan-target");
    // The guest reads it over 9p, without its debugging information.
    let strip = Command::new("strip")
        .arg("-o")
        .arg(&target)
        .arg(program("capstan-target"))
        .status();
    if !strip.context("strip does not start")?.success() {
        bail!("the target could not be stripped");
    }
    let boot = Command::new(repository.join("tests/lab/boot.sh"))
        .args(["-p", "-t", "1800", "-o"])
        .arg(&out)
        .arg("-f")
        .arg(&target)
        .arg("compare.sh")
        .stdout(Stdio::inherit())
        .stderr(Stdio::inherit())
        .status();
    if !boot.context("the lab does not start")?.success() {
        bail!("the lab failed: see {}", out.display());
    }
    // A line for each turn of both: ROUND JOB CAPSTAN_IOPS NVMET_IOPS.
    let text = fs::read_to_string(&samples).with_context(|| format!("{}", samples.display()))?;
    let mut found: BTreeMap<&str, BTreeMap<&str, Turns>> = BTreeMap::new();
    for line in text.lines() {
        let words: Vec<_> = line.split(' ').collect();
        let [round, job, capstan, nvmet] = words[..] else {
            bail!(
                "{line:?} in {}, expected ROUND JOB CAPSTAN_IOPS NVMET_IOPS",
                samples.display()
            );
        };
        let turns = found.entry(job).or_default().entry(round).or_default();
        turns.0.push((capstan.parse()?, nvmet.parse()?));
    }
    let mut figures = Vec::new();
    for (job, what, peer) in JOBS {
        let runs = found.remove(job);
        let runs = runs.with_context(|| format!("no samples of {job} in {}", samples.display()))?;
        figures.push(Figure::in_turn(
            &format!("soft-roce-{job}"),
            &format!("Soft-RoCE, Linux host: {what}, null"),
            &runs.into_values().collect::<Vec<_>>(),
            "IOPS",
            ("Linux nvmet", "IOPS"),
            ("of nvmet", |ours, nvmet| ours / nvmet),
            Bounds::new(Better::Higher, 0.95, 1.1).peer(peer),
        ));
    }
    Ok(figures.into())
}
