//! `wire`: NVMe over iWARP against plain TCP, one core each side. `wire-crc32c`: the same with the
//! CRCs that there are between two machines. `same-host`: the same, when both ends may take the
//! shared memory they have on one machine. `wire-nvme-tcp`: the same by NVMe/TCP.

use std::time::Duration;

use anyhow::Result;

use crate::Setting;
use crate::figure::{Better, Bounds, Figure, Findings, Quantity, percentile};
use crate::load::{self, Link, Load, NULL, RAM, Target};
use crate::tcp;
use crate::turns::{TURN, Turns, in_turn};

/// What a row is compared with.
#[derive(Clone, Copy)]
enum Against {
    /// Its latency with the round trip.
    Latency,
    /// Commands in the time of a round trip.
    PerRoundTrip,
    /// Its bytes with those of the stream.
    Stream,
}

pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) what: &'static str,
    pub(super) load: Load,
    against: Against,
    /// What is required, what is aimed at, and what the best peer has; `None` for rows that only
    /// tell.
    wanted: Option<(f64, f64, &'static str)>,
}

const NSID_NULL: u32 = 1;
pub(super) const NSID_RAM: u32 = 2;

const ROWS: [Row; 10] = [
    Row {
        name: "null-read-4k-qd1",
        what: "4 KiB random read, depth 1, null",
        load: Load::read(NSID_NULL, 4096, 1),
        against: Against::Latency,
        wanted: Some((1.25, 1.05, "0.9 to 1.2")),
    },
    Row {
        name: "null-read-4k-qd32",
        what: "4 KiB random read, depth 32, null",
        load: Load::read(NSID_NULL, 4096, 32),
        against: Against::PerRoundTrip,
        wanted: None,
    },
    Row {
        name: "ram-read-4k-qd32",
        what: "4 KiB random read, depth 32, RAM",
        load: Load::read(NSID_RAM, 4096, 32),
        against: Against::PerRoundTrip,
        wanted: None,
    },
    Row {
        name: "null-read-4k-qd128",
        what: "4 KiB random read, depth 128, null",
        load: Load::read(NSID_NULL, 4096, 128),
        against: Against::PerRoundTrip,
        wanted: Some((9.4, 14.0, "9.4")),
    },
    Row {
        name: "ram-read-4k-qd128",
        what: "4 KiB random read, depth 128, RAM",
        load: Load::read(NSID_RAM, 4096, 128),
        against: Against::PerRoundTrip,
        wanted: Some((7.6, 13.0, "6.7")),
    },
    Row {
        name: "ram-write-4k-qd128",
        what: "4 KiB random write, depth 128, RAM",
        load: Load::write(NSID_RAM, 4096, 128),
        against: Against::PerRoundTrip,
        wanted: Some((10.7, 16.0, "10.7")),
    },
    Row {
        name: "ram-read-128k-qd16",
        what: "128 KiB random read, depth 16, RAM",
        load: Load::read(NSID_RAM, 128 << 10, 16),
        against: Against::Stream,
        wanted: Some((0.66, 0.95, "0.66")),
    },
    Row {
        name: "null-read-128k-qd16",
        what: "128 KiB random read, depth 16, null",
        load: Load::read(NSID_NULL, 128 << 10, 16),
        against: Against::Stream,
        wanted: Some((1.0, 1.0, "1.0")),
    },
    Row {
        name: "ram-write-128k-qd16",
        what: "128 KiB random write, depth 16, RAM",
        load: Load::write(NSID_RAM, 128 << 10, 16),
        against: Against::Stream,
        wanted: None,
    },
    Row {
        name: "null-write-128k-qd16",
        what: "128 KiB random write, depth 16, null",
        load: Load::write(NSID_NULL, 128 << 10, 16),
        against: Against::Stream,
        wanted: None,
    },
];

impl Row {
    /// What it is compared with, in the unit of that.
    pub(super) fn limit(&self, time: Duration) -> Result<f64> {
        match self.against {
            Against::Latency | Against::PerRoundTrip => Ok(tcp::round_trip(time)? * 1e6),
            Against::Stream => Ok(tcp::stream(time)? / 1e9),
        }
    }

    /// Commands a second as its figure has them.
    pub(super) fn value(&self, rate: f64) -> f64 {
        match self.against {
            Against::Latency => f64::from(self.load.depth) * 1e6 / rate,
            Against::PerRoundTrip => rate / 1e3,
            Against::Stream => rate * f64::from(self.load.bytes) / 1e9,
        }
    }

    /// Of its figure.
    pub(super) fn unit(&self) -> &'static str {
        match self.against {
            Against::Latency => "us",
            Against::PerRoundTrip => "k IOPS",
            Against::Stream => "GB/s",
        }
    }

    /// Which figures of it are the better ones.
    pub(super) fn better(&self) -> Better {
        match self.against {
            Against::Latency => Better::Lower,
            Against::PerRoundTrip | Against::Stream => Better::Higher,
        }
    }
}

/// The rows that were asked for.
pub(super) fn rows(setting: &Setting) -> Vec<&'static Row> {
    ROWS.iter().filter(|row| setting.wants(row.name)).collect()
}

/// Measures the rows over TCP.
pub(crate) fn wire(setting: &Setting) -> Result<Findings> {
    run(setting, Link::Tcp)
}

/// Measures the rows over TCP with CRC32c.
pub(crate) fn wire_crc32c(setting: &Setting) -> Result<Findings> {
    run(setting, Link::TcpCrc32c)
}

/// Measures the rows through shared memory.
pub(crate) fn same_host(setting: &Setting) -> Result<Findings> {
    run(setting, Link::SharedMemory)
}

/// Measures the rows by NVMe/TCP, without digests.
pub(crate) fn wire_nvme_tcp(setting: &Setting) -> Result<Findings> {
    run(setting, Link::NvmeTcp)
}

/// Measures the rows, `rounds` times each, every one in turn with what it is compared with.
fn run(setting: &Setting, link: Link) -> Result<Findings> {
    let target = Target::spinning(&[NULL, RAM])?;
    load::fill(target.address, NSID_RAM)?;
    let rows = rows(setting);
    let mut runs = vec![Vec::new(); rows.len()];
    for _ in 0..setting.rounds {
        for (row, runs) in rows.iter().zip(&mut runs) {
            runs.push(measure(&target, row, link, setting.runtime)?);
        }
    }
    let mut figures = Vec::new();
    // What all stand beside is a figure once.
    if link == Link::Tcp {
        figures.extend(limits(&rows, &runs));
    }
    for (row, runs) in rows.iter().zip(&runs) {
        let mut figure = figure(row, link, runs);
        let (name, what) = match link {
            Link::Tcp => ("", ""),
            Link::TcpCrc32c => ("crc32c-", "with CRC32c: "),
            Link::SharedMemory => ("same-host-", "through shared memory: "),
            Link::NvmeTcp => ("tcp-", "over NVMe/TCP: "),
            Link::VerbsDevice => ("verbs-", "over a verbs device in software: "),
        };
        figure.name.insert_str(0, name);
        figure.what.insert_str(0, what);
        figures.push(figure);
    }
    Ok(figures.into())
}

/// One run of a row, in the units of its figure.
fn measure(target: &Target, row: &Row, link: Link, time: Duration) -> Result<Turns> {
    let load = Load { link, ..row.load };
    let limit = |time| target.aside(|| row.limit(time));
    let value = |time| Ok(row.value(load::rate(target.address, load, time)?.median()));
    in_turn(time, TURN, limit, value)
}

/// The two limits, in every run the median of all rows that stand beside them.
fn limits(rows: &[&Row], runs: &[Vec<Turns>]) -> Vec<Figure> {
    let of = |streams: bool, unit| {
        let beside = rows
            .iter()
            .zip(runs)
            .filter(|(row, _)| matches!(row.against, Against::Stream) == streams);
        let beside: Vec<&Vec<Turns>> = beside.map(|(_, runs)| runs).collect();
        let runs = beside.first().map_or(0, |runs| runs.len());
        let sample = |at: usize| {
            let medians: Vec<f64> = beside.iter().map(|runs| runs[at].reference()).collect();
            percentile(&medians, 50.0)
        };
        (runs > 0).then(|| Quantity::new(unit, (0..runs).map(sample).collect()))
    };
    let round_trip = of(false, "us").map(|round_trip| {
        Figure::plain(
            "round-trip",
            "RT: spinning TCP ping-pong, 72 B there, 4,144 B back",
            round_trip,
            Bounds::none(Better::Lower),
        )
    });
    let stream = of(true, "GB/s").map(|stream| {
        Figure::plain(
            "stream",
            "stream: spinning TCP in 128 KiB writes",
            stream,
            Bounds::none(Better::Higher),
        )
    });
    round_trip.into_iter().chain(stream).collect()
}

fn figure(row: &Row, link: Link, runs: &[Turns]) -> Figure {
    // The peers have no digests on by default. What is wanted of NVMe/TCP stands beside SPDK.
    let is_bound = !matches!(link, Link::TcpCrc32c | Link::NvmeTcp);
    let bounds = match row.wanted.filter(|_| is_bound) {
        Some((now, aim, peer)) => Bounds::new(row.better(), now, aim).peer(peer),
        None => Bounds::none(row.better()),
    };
    beside_limit(row, runs, bounds)
}

/// The figure of runs that were measured in turn with the row's limit.
pub(super) fn beside_limit(row: &Row, runs: &[Turns], bounds: Bounds) -> Figure {
    type Score = (&'static str, fn(f64, f64) -> f64);
    let (limit, score): (_, Score) = match row.against {
        Against::Latency => (("RT", "us"), ("RT", |us, round_trip| us / round_trip)),
        Against::PerRoundTrip => (
            ("RT", "us"),
            ("commands/RT", |thousands, round_trip| {
                thousands * round_trip / 1e3
            }),
        ),
        Against::Stream => (
            ("stream", "GB/s"),
            ("of the stream", |bytes, stream| bytes / stream),
        ),
    };
    Figure::in_turn(row.name, row.what, runs, row.unit(), limit, score, bounds)
}
