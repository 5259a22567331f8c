//! `wire`: NVMe over iWARP against plain TCP, one core each side. `wire-crc32c`: the same with the CRCs that there are between two
//! machines. `same-host`: the same, when both ends may take the shared memory they have on one machine.

use anyhow::Result;

use crate::Setting;
use crate::figure::{Better, Bounds, Figure, Findings, Quantity};
use crate::load::{self, Load, NULL, RAM, Target, Way};
use crate::tcp;

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

struct Row {
    name: &'static str,
    what: &'static str,
    load: Load,
    against: Against,
    /// What is required, what is aimed at, and what the best peer has; `None` for rows that only tell.
    wanted: Option<(f64, f64, &'static str)>,
}

const NSID_NULL: u32 = 1;
const NSID_RAM: u32 = 2;

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

/// Measures the rows over TCP.
pub(crate) fn wire(setting: &Setting) -> Result<Findings> {
    run(setting, Way::Tcp)
}

/// Measures the rows over TCP with CRC32c.
pub(crate) fn wire_crc32c(setting: &Setting) -> Result<Findings> {
    run(setting, Way::TcpCrc32c)
}

/// Measures the rows through shared memory.
pub(crate) fn same_host(setting: &Setting) -> Result<Findings> {
    run(setting, Way::SharedMemory)
}

/// Measures the rows, `rounds` times each, in turn.
fn run(setting: &Setting, way: Way) -> Result<Findings> {
    let target = Target::spinning(&[NULL, RAM])?;
    load::fill(target.address, NSID_RAM)?;
    let (mut round_trips, mut streams) = (Vec::new(), Vec::new());
    let rows: Vec<&Row> = ROWS
        .iter()
        .filter(|row| row.name.contains(&setting.rows))
        .collect();
    let mut rates = vec![Vec::new(); rows.len()];
    for _ in 0..setting.rounds {
        round_trips.push(tcp::round_trip(setting.runtime)?);
        streams.push(tcp::stream(setting.runtime)?);
        for (row, rates) in rows.iter().zip(&mut rates) {
            let load = Load { way, ..row.load };
            rates.push(load::rate(target.address, load, setting.runtime)?.median());
        }
    }
    let round_trip_us: Vec<f64> = round_trips.iter().map(|s| s * 1e6).collect();
    let stream = Quantity::new("GB/s", streams.iter().map(|bytes| bytes / 1e9).collect());
    let round_trip = Quantity::new("us", round_trip_us);
    let mut figures = Vec::new();
    // What both stand beside is a figure once.
    if way == Way::Tcp {
        figures.push(Figure::plain(
            "round-trip",
            "RT: spinning TCP ping-pong, 72 B there, 4,144 B back",
            round_trip.clone(),
            Bounds::none(Better::Lower),
        ));
        figures.push(Figure::plain(
            "stream",
            "stream: spinning TCP in 128 KiB writes",
            stream.clone(),
            Bounds::none(Better::Higher),
        ));
    }
    for (row, rates) in rows.iter().zip(rates) {
        let mut figure = figure(row, way, &rates, &round_trip, &stream);
        let (name, what) = match way {
            Way::Tcp => ("", ""),
            Way::TcpCrc32c => ("crc32c-", "with CRC32c: "),
            Way::SharedMemory => ("same-host-", "through shared memory: "),
        };
        figure.name.insert_str(0, name);
        figure.what.insert_str(0, what);
        figures.push(figure);
    }
    Ok(figures.into())
}

fn figure(row: &Row, way: Way, rates: &[f64], round_trip: &Quantity, stream: &Quantity) -> Figure {
    let better = match row.against {
        Against::Latency => Better::Lower,
        Against::PerRoundTrip | Against::Stream => Better::Higher,
    };
    // The peers have no digests on by default.
    let bounds = match row.wanted.filter(|_| way != Way::TcpCrc32c) {
        Some((now, aim, peer)) => Bounds::new(better, now, aim).peer(peer),
        None => Bounds::none(better),
    };
    let value = |unit, of: &dyn Fn(f64) -> f64| {
        Quantity::new(unit, rates.iter().map(|rate| of(*rate)).collect())
    };
    match row.against {
        Against::Latency => Figure::beside(
            row.name,
            row.what,
            value("us", &|rate| f64::from(row.load.depth) * 1e6 / rate),
            ("RT", round_trip.clone()),
            ("RT", |value, round_trip| value / round_trip),
            bounds,
        ),
        Against::PerRoundTrip => Figure::beside(
            row.name,
            row.what,
            value("k IOPS", &|rate| rate / 1e3),
            ("RT", round_trip.clone()),
            ("commands/RT", |value, round_trip| {
                value * 1e3 * round_trip / 1e6
            }),
            bounds,
        ),
        Against::Stream => Figure::beside(
            row.name,
            row.what,
            value("GB/s", &|rate| rate * f64::from(row.load.bytes) / 1e9),
            ("stream", stream.clone()),
            ("of the stream", |value, stream| value / stream),
            bounds,
        ),
    }
}
