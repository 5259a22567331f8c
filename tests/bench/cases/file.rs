//! `file`: a file with `O_DIRECT`, over NVMe against fio's io_uring engine on the same file.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::figure::{Better, Bounds, Figure, Findings, Quantity};
use crate::load::{self, Link, Load, Target, VOLUME_BYTES};
use crate::tcp;
use crate::turns::in_turn;
use crate::{HOST_CORE, Setting};

/// A workload, and what it is held against.
struct Row {
    name: &'static str,
    what: &'static str,
    load: Load,
    /// What is required and aimed at, of fio.
    wanted: Option<(f64, f64, &'static str)>,
}

impl Row {
    /// Of its figure, and how much of it one operation is.
    fn unit(&self) -> (&'static str, f64) {
        match self.load.bytes {
            4096 => ("k IOPS", 1e-3),
            bytes => ("GB/s", f64::from(bytes) / 1e9),
        }
    }
}

/// Of fio, which takes longer than that to start.
const FILE_TURN: Duration = Duration::from_millis(250);

const LATENCY_NAME: &str = "file-read-4k-qd1";
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
            link: Link::SharedMemory,
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
    // A rate, as the figure has it.
    let both = |load, as_told: &dyn Fn(f64) -> f64| {
        in_turn(
            runtime,
            FILE_TURN,
            |time| Ok(as_told(fio(file.path(), load, time)?)),
            |time| Ok(as_told(load::rate(target.address, load, time)?.mean())),
        )
    };
    let mut round_trips = Vec::new();
    let mut latencies = Vec::new();
    let rows: Vec<&Row> = ROWS.iter().filter(|row| setting.wants(row.name)).collect();
    let with_latency = setting.wants(LATENCY_NAME);
    let mut runs = vec![Vec::new(); rows.len()];
    for _ in 0..setting.rounds {
        if with_latency {
            round_trips.push(target.aside(|| tcp::round_trip(runtime))? * 1e6);
            latencies.push(both(LATENCY, &|rate| 1e6 / rate)?);
        }
        for (row, runs) in rows.iter().zip(&mut runs) {
            let factor = row.unit().1;
            runs.push(both(row.load, &|rate| rate * factor)?);
        }
    }
    let added = latencies.iter().zip(&round_trips);
    let added = added.map(|(turns, round_trip)| turns.median(|us, fio| us - fio) / round_trip);
    let latency = with_latency.then(|| Figure {
        score: Quantity::new("RT added", added.collect()),
        ..Figure::in_turn(
            LATENCY_NAME,
            "file, O_DIRECT, 4 KiB random read, depth 1",
            &latencies,
            "us",
            ("fio io_uring", "us"),
            ("us added", |us, fio| us - fio),
            Bounds::new(Better::Lower, 1.5, 1.05).peer("1.7"),
        )
    });
    let mut figures: Vec<Figure> = latency.into_iter().collect();
    for (row, runs) in rows.iter().zip(&runs) {
        let unit = row.unit().0;
        figures.push(Figure::in_turn(
            row.name,
            row.what,
            runs,
            unit,
            ("fio io_uring", unit),
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
