//! `soft-roce`: `capstan-target` with the verbs provider against the Linux target, in the same boot
//! of the lab, with the Linux host and fio. `nvmet-tcp`: the same by NVMe/TCP. Each round has a
//! boot of its own: where kernel and program come to lie in memory changes the ratio by some 3 %,
//! and stays for as long as the machine is up.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use capstan_tests::program::program;

use crate::Setting;
use crate::figure::{Better, Bounds, Figure, Findings};
use crate::turns::Turns;

/// The jobs of `tests/lab/guest/compare.sh`: its name, and what it is.
const ROWS: [(&str, &str); 5] = [
    ("randread-4k-qd1", "4 KiB random read, depth 1, null"),
    ("randread-4k-qd32", "4 KiB random read, depth 32, null"),
    ("randwrite-4k-qd32", "4 KiB random write, depth 32, null"),
    ("read-128k-qd8", "128 KiB read, depth 8, null"),
    ("write-128k-qd8", "128 KiB write, depth 8, null"),
];
/// What the best other user-space target has of nvmet over Soft-RoCE.
const PEER: [(&str, &str); 5] = [
    ("randread-4k-qd1", "0.89"),
    ("randread-4k-qd32", "0.82"),
    ("randwrite-4k-qd32", "0.76"),
    ("read-128k-qd8", "1.05"),
    ("write-128k-qd8", "0.92"),
];

/// Boots the lab, nearly twice for each round, and runs the five jobs on both targets in turn.
pub(crate) fn soft_roce(setting: &Setting) -> Result<Findings> {
    in_turn(setting, &SOFT_ROCE, boots(setting))
}

/// The same by NVMe/TCP.
pub(crate) fn tcp(setting: &Setting) -> Result<Findings> {
    in_turn(setting, &TCP, boots(setting))
}

/// Measures in so many boots.
pub(super) fn in_turn(setting: &Setting, boot: &Boot, boots: usize) -> Result<Findings> {
    let turns = (setting.runtime.as_secs_f64() * TURNS_PER_SECOND).ceil();
    measure(setting, boot, boots, &[turns.to_string()])
}

/// An odd number has a median of its own. Its standard error is 1.3 % of nine, 1.7 % of five.
const fn boots(setting: &Setting) -> usize {
    2 * setting.rounds - 1
}

/// The same once, on one emulated processor whose time is its instructions: what the host, the
/// device and the target take together for a command, the same in every run within half a percent.
pub(crate) fn counted(setting: &Setting) -> Result<Findings> {
    let arguments = ["5", "1", "0.3"].map(str::to_owned);
    measure(setting, &COUNTED, 1, &arguments)
}

/// Of either target, in a round, for each second that a run takes elsewhere: the emulated machine
/// is slow.
const TURNS_PER_SECOND: f64 = 12.0;

/// A way to boot the lab.
pub(super) struct Boot {
    /// Of its folder and its figures.
    pub(super) name: &'static str,
    pub(super) what: &'static str,
    pub(super) option: &'static str,
    /// How long it may take.
    pub(super) seconds: &'static str,
    /// What runs in the guest.
    pub(super) script: &'static str,
    /// As the kernel names it.
    pub(super) transport: &'static str,
    /// Names of the script's rows, and what they are.
    pub(super) rows: &'static [(&'static str, &'static str)],
    /// What the rows stand beside.
    pub(super) beside: &'static str,
    pub(super) unit: &'static str,
    /// Of a row.
    pub(super) bounds: fn(row: &str) -> Bounds,
}

const SOFT_ROCE: Boot = Boot {
    name: "soft-roce",
    what: "Soft-RoCE, Linux host",
    option: "-p",
    seconds: "600",
    script: "compare.sh",
    transport: "rdma",
    rows: &ROWS,
    beside: "Linux nvmet",
    unit: "IOPS",
    bounds: |row| {
        let peer = PEER.iter().find(|(name, _)| *name == row);
        let peer = peer.map_or("", |(_, peer)| peer);
        Bounds::new(Better::Higher, 0.95, 1.1).peer(peer)
    },
};
/// What is wanted of NVMe/TCP stands beside SPDK, over the same loopback.
const TCP: Boot = Boot {
    name: "nvmet-tcp",
    what: "NVMe/TCP, Linux host",
    transport: "tcp",
    bounds: |_row| Bounds::none(Better::Higher),
    ..SOFT_ROCE
};
const COUNTED: Boot = Boot {
    name: "soft-roce-counted",
    what: "Soft-RoCE, instructions of one processor for all",
    option: "-i",
    bounds: |_row| Bounds::none(Better::Higher),
    ..SOFT_ROCE
};

/// `arguments` are those of the script in the guest, behind the number of the round.
pub(super) fn measure(
    setting: &Setting,
    boot: &Boot,
    rounds: usize,
    arguments: &[String],
) -> Result<Findings> {
    let lab = Path::new(env!("CARGO_MANIFEST_DIR")).join("lab");
    let lab = lab.canonicalize()?;
    let set_up = Command::new(lab.join("setup.sh")).status();
    if !set_up.is_ok_and(|status| status.success()) {
        return Ok(Findings {
            skipped: vec![format!(
                "{}: tests/lab/setup.sh failed, as it says above",
                boot.name
            )],
            ..Findings::default()
        });
    }
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
    let mut found: BTreeMap<String, Vec<Turns>> = BTreeMap::new();
    for round in 1..=rounds {
        let out = setting.folder.join(boot.name).join(round.to_string());
        fs::create_dir_all(&out).with_context(|| format!("{}", out.display()))?;
        let booted = Command::new(lab.join("boot.sh"))
            .args([boot.option, "-t", boot.seconds, "-o"])
            .arg(&out)
            .arg("-f")
            .arg(&target)
            .args([boot.script, boot.transport])
            .arg(round.to_string())
            .args(arguments)
            .stdout(Stdio::inherit())
            .stderr(Stdio::inherit())
            .status();
        if !booted.context("the lab does not start")?.success() {
            bail!("the lab failed: see {}", out.display());
        }
        for (job, turns) in samples(&out.join("samples"))? {
            found.entry(job).or_default().push(turns);
        }
    }
    let mut figures = Vec::new();
    for (row, what) in boot.rows {
        let runs = found.remove(*row);
        let runs = runs.filter(|runs| runs.len() == rounds);
        let runs = runs.with_context(|| format!("a boot has no samples of {row}"))?;
        figures.push(Figure::in_turn(
            &format!("{}-{row}", boot.name),
            &format!("{}: {what}", boot.what),
            &runs,
            boot.unit,
            (boot.beside, boot.unit),
            (&format!("of {}", boot.beside), |ours, theirs| ours / theirs),
            (boot.bounds)(row),
        ));
    }
    Ok(figures.into())
}

/// The turns of each job, of a file with a line for each turn of both targets: JOB CAPSTAN_IOPS
/// NVMET_IOPS.
fn samples(file: &Path) -> Result<BTreeMap<String, Turns>> {
    let text = fs::read_to_string(file).with_context(|| format!("{}", file.display()))?;
    let mut found: BTreeMap<String, Turns> = BTreeMap::new();
    for line in text.lines() {
        let words: Vec<_> = line.split(' ').collect();
        let [job, capstan, nvmet] = words[..] else {
            bail!(
                "{line:?} in {}, expected JOB CAPSTAN_IOPS NVMET_IOPS",
                file.display()
            );
        };
        let turns = found.entry(job.to_owned()).or_default();
        turns.0.push((capstan.parse()?, nvmet.parse()?));
    }
    Ok(found)
}
