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

/// The jobs of `tests/lab/guest/compare.sh`: its name, what it is, and what the best other
/// user-space target has of nvmet over Soft-RoCE.
const JOBS: [(&str, &str, &str); 5] = [
    ("randread-4k-qd1", "4 KiB random read, depth 1", "0.89"),
    ("randread-4k-qd32", "4 KiB random read, depth 32", "0.82"),
    ("randwrite-4k-qd32", "4 KiB random write, depth 32", "0.76"),
    ("read-128k-qd8", "128 KiB read, depth 8", "1.05"),
    ("write-128k-qd8", "128 KiB write, depth 8", "0.92"),
];

/// Boots the lab, nearly twice for each round, and runs the five jobs on both targets in turn.
pub(crate) fn soft_roce(setting: &Setting) -> Result<Findings> {
    in_turn(setting, &SOFT_ROCE)
}

/// The same by NVMe/TCP.
pub(crate) fn tcp(setting: &Setting) -> Result<Findings> {
    in_turn(setting, &TCP)
}

fn in_turn(setting: &Setting, boot: &Boot) -> Result<Findings> {
    let turns = (setting.runtime.as_secs_f64() * TURNS_PER_SECOND).ceil();
    // An odd number has a median of its own. Its standard error is 1.3 % of nine, 1.7 % of five.
    let boots = 2 * setting.rounds - 1;
    measure(setting, boot, boots, &[turns.to_string()])
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
struct Boot {
    /// Of its folder and its figures.
    name: &'static str,
    what: &'static str,
    option: &'static str,
    /// As the kernel names it.
    transport: &'static str,
    bounds: Option<(f64, f64)>,
}

const SOFT_ROCE: Boot = Boot {
    name: "soft-roce",
    what: "Soft-RoCE, Linux host",
    option: "-p",
    transport: "rdma",
    bounds: Some((0.95, 1.1)),
};
/// What is wanted of NVMe/TCP stands beside SPDK, over the same loopback.
const TCP: Boot = Boot {
    name: "nvmet-tcp",
    what: "NVMe/TCP, Linux host",
    option: "-p",
    transport: "tcp",
    bounds: None,
};
const COUNTED: Boot = Boot {
    name: "soft-roce-counted",
    what: "Soft-RoCE, instructions of one processor for all",
    option: "-i",
    transport: "rdma",
    bounds: None,
};

/// `arguments` are those of the script in the guest, behind the number of the round.
fn measure(
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
            .args([boot.option, "-t", "600", "-o"])
            .arg(&out)
            .arg("-f")
            .arg(&target)
            .args(["compare.sh", boot.transport])
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
    for (job, what, peer) in JOBS {
        let runs = found.remove(job);
        let runs = runs.filter(|runs| runs.len() == rounds);
        let runs = runs.with_context(|| format!("a boot has no samples of {job}"))?;
        let bounds = match boot.bounds {
            Some((now, aim)) => Bounds::new(Better::Higher, now, aim).peer(peer),
            None => Bounds::none(Better::Higher),
        };
        figures.push(Figure::in_turn(
            &format!("{}-{job}", boot.name),
            &format!("{}: {what}, null", boot.what),
            &runs,
            "IOPS",
            ("Linux nvmet", "IOPS"),
            ("of nvmet", |ours, nvmet| ours / nvmet),
            bounds,
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
