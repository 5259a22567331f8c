//! `file`: a file with `O_DIRECT`, over NVMe against fio's io_uring engine on the same file.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::figure::{Better, Bounds, Figure, Findings, Quantity};
use crate::load::{self, Load, Target, VOLUME_BYTES};
use crate::tcp;
use crate::{HOST_CORE, Setting};

/// Measures depth 1 and 32, `rounds` times each, in turn with fio.
pub(crate) fn run(setting: &Setting) -> Result<Findings> {
    let file = tempfile::Builder::new()
        .prefix("capstan-bench-")
        .suffix(".img")
        .tempfile_in(&setting.folder)
        .with_context(|| format!("no file in {}", setting.folder.display()))?;
    write_all(file.as_file())?;
    let backing = format!("path = \"{}\"\ndirect = true", file.path().display());
    let target = Target::spinning(&[&backing])?;
    let mut round_trips = Vec::new();
    let mut rates = [(1, vec![], vec![]), (32, vec![], vec![])];
    for _ in 0..setting.rounds {
        round_trips.push(tcp::round_trip(setting.runtime)? * 1e6);
        for (depth, over_nvme, local) in &mut rates {
            let load = Load::read(1, 4096, *depth);
            let runtime = setting.runtime;
            over_nvme.push(load::rate(target.address, load, runtime)?.mean());
            local.push(fio(file.path(), load, runtime)?);
        }
    }
    let [(_, ours_1, fio_1), (_, ours_32, fio_32)] = rates;
    let micros = |rates: &[f64]| rates.iter().map(|rate| 1e6 / rate).collect::<Vec<_>>();
    let thousands = |rates: &[f64]| rates.iter().map(|rate| rate / 1e3).collect::<Vec<_>>();
    let (ours_us, fio_us) = (micros(&ours_1), micros(&fio_1));
    let added = ours_us.iter().zip(&fio_us).zip(&round_trips);
    let added = added.map(|((ours, fio), round_trip)| (ours - fio) / round_trip);
    let latency = Figure {
        score: Quantity::new("RT added", added.collect()),
        ..Figure::beside(
            "file-read-4k-qd1",
            "file, O_DIRECT, 4 KiB random read, depth 1",
            Quantity::new("us", ours_us),
            ("fio io_uring", Quantity::new("us", fio_us)),
            ("RT added", |ours, fio| ours - fio),
            Bounds::new(Better::Lower, 1.5, 1.05).peer("1.7"),
        )
    };
    let throughput = Figure::beside(
        "file-read-4k-qd32",
        "file, O_DIRECT, 4 KiB random read, depth 32",
        Quantity::new("k IOPS", thousands(&ours_32)),
        ("fio io_uring", Quantity::new("k IOPS", thousands(&fio_32))),
        ("of fio", |ours, fio| ours / fio),
        Bounds::new(Better::Higher, 0.95, 0.99).peer("0.97"),
    );
    Ok(vec![latency, throughput].into())
}

/// Written, not sparse: holes would be read without the disk.
fn write_all(mut file: &File) -> Result<()> {
    let chunk = vec![7; 1 << 20];
    for _ in 0..VOLUME_BYTES >> 20 {
        file.write_all(&chunk)?;
    }
    Ok(file.sync_all()?)
}

/// I/Os a second of fio's io_uring engine on the file itself.
fn fio(file: &Path, load: Load, time: Duration) -> Result<f64> {
    let output = Command::new("fio")
        .args(["--name=local", "--ioengine=io_uring", "--direct=1"])
        .args(["--rw=randread", "--time_based", "--output-format=json"])
        .arg(format!("--filename={}", file.display()))
        .arg(format!("--bs={}", load.bytes))
        .arg(format!("--iodepth={}", load.depth))
        .arg(format!("--cpus_allowed={HOST_CORE}"))
        .arg(format!("--runtime={}ms", time.as_millis()))
        .output()
        .context("fio does not start; apt-get install fio")?;
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    match report["jobs"][0]["read"]["iops"].as_f64() {
        Some(iops) if iops > 0.0 => Ok(iops),
        _ => bail!("fio: {}", String::from_utf8_lossy(&output.stderr)),
    }
}
