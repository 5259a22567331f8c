//! `file`: a file with `O_DIRECT`, over NVMe against fio's io_uring engine on the same file.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::figure::{Better, Bounds, Figure, Findings, Quantity};
use crate::load::{self, Load, Target, VOLUME_BYTES, Way};
use crate::tcp;
use crate::{HOST_CORE, Setting};

/// A workload, and what it is held against.
struct Row {
    name: &'static str,
    what: &'static str,
    load: Load,
    /// What is required and aimed at, of fio.
    wanted: Option<(f64, f64, &'static str)>,
}

const LATENCY: Load = Load::read(1, 4096, 1);
const ROWS: [Row; 4] = [
    Row {
        name: "file-read-4k-qd32",
        what: "file, O_DIRECT, 4 KiB random read, depth 32",
        load: Load::read(1, 4096, 32),
        wanted: Some((0.95, 0.99, "0.97")),
    },
    Row {
        name: "file-read-4k-qd32-same-host",
        what: "through shared memory: file, O_DIRECT, 4 KiB random read, depth 32",
        load: Load {
            way: Way::SharedMemory,
            ..Load::read(1, 4096, 32)
        },
        wanted: Some((0.95, 0.99, "0.97")),
    },
    Row {
        name: "file-read-128k-qd16",
        what: "file, O_DIRECT, 128 KiB random read, depth 16",
        load: Load::read(1, 128 << 10, 16),
        wanted: None,
    },
    Row {
        name: "file-write-128k-qd16",
        what: "file, O_DIRECT, 128 KiB random write, depth 16",
        load: Load::write(1, 128 << 10, 16),
        wanted: None,
    },
];

/// Measures every row, `rounds` times each, in turn with fio.
pub(crate) fn run(setting: &Setting) -> Result<Findings> {
    let file = tempfile::Builder::new()
        .prefix("capstan-bench-")
        .suffix(".img")
        .tempfile_in(&setting.folder)
        .with_context(|| format!("no file in {}", setting.folder.display()))?;
    write_all(file.as_file())?;
    let backing = format!("path = \"{}\"\ndirect = true", file.path().display());
    let target = Target::spinning(&[&backing])?;
    let runtime = setting.runtime;
    let both = |load| {
        let over_nvme = load::rate(target.address, load, runtime)?.mean();
        anyhow::Ok((over_nvme, fio(file.path(), load, runtime)?))
    };
    let mut round_trips = Vec::new();
    let mut latencies = Vec::new();
    let mut rates = ROWS.map(|_| Vec::new());
    for _ in 0..setting.rounds {
        round_trips.push(tcp::round_trip(runtime)? * 1e6);
        latencies.push(both(LATENCY)?);
        for (row, rates) in ROWS.iter().zip(&mut rates) {
            rates.push(both(row.load)?);
        }
    }
    let micros = |rates: Vec<f64>| rates.into_iter().map(|rate| 1e6 / rate).collect::<Vec<_>>();
    let (ours, local): (Vec<_>, Vec<_>) = latencies.into_iter().unzip();
    let (ours_us, fio_us) = (micros(ours), micros(local));
    let added = ours_us.iter().zip(&fio_us).zip(&round_trips);
    let added = added.map(|((ours, fio), round_trip)| (ours - fio) / round_trip);
    let mut figures = vec![Figure {
        score: Quantity::new("RT added", added.collect()),
        ..Figure::beside(
            "file-read-4k-qd1",
            "file, O_DIRECT, 4 KiB random read, depth 1",
            Quantity::new("us", ours_us),
            ("fio io_uring", Quantity::new("us", fio_us)),
            ("RT added", |ours, fio| ours - fio),
            Bounds::new(Better::Lower, 1.5, 1.05).peer("1.7"),
        )
    }];
    for (row, rates) in ROWS.iter().zip(rates) {
        let (unit, per_second) = match row.load.bytes {
            4096 => ("k IOPS", 1e-3),
            bytes => ("GB/s", f64::from(bytes) / 1e9),
        };
        let (ours, local) = rates
            .into_iter()
            .map(|(ours, local)| (ours * per_second, local * per_second))
            .unzip();
        figures.push(Figure::beside(
            row.name,
            row.what,
            Quantity::new(unit, ours),
            ("fio io_uring", Quantity::new(unit, local)),
            ("of fio", |ours, fio| ours / fio),
            match row.wanted {
                Some((now, aim, peer)) => Bounds::new(Better::Higher, now, aim).peer(peer),
                None => Bounds::none(Better::Higher),
            },
        ));
    }
    Ok(figures.into())
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
    let direction = if load.write { "write" } else { "read" };
    let output = Command::new("fio")
        .args(["--name=local", "--ioengine=io_uring", "--direct=1"])
        .args(["--time_based", "--output-format=json"])
        .arg(format!("--rw=rand{direction}"))
        .arg(format!("--filename={}", file.display()))
        .arg(format!("--bs={}", load.bytes))
        .arg(format!("--iodepth={}", load.depth))
        .arg(format!("--cpus_allowed={HOST_CORE}"))
        .arg(format!("--runtime={}ms", time.as_millis()))
        .output()
        .context("fio does not start; apt-get install fio")?;
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    match report["jobs"][0][direction]["iops"].as_f64() {
        Some(iops) if iops > 0.0 => Ok(iops),
        _ => bail!("fio: {}", String::from_utf8_lossy(&output.stderr)),
    }
}
