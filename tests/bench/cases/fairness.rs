//! `fairness`: a host at depth 1 beside one that has more than its share.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use capstan_reactor::SpinBudget;
use nix::unistd::gettid;

use crate::figure::{Better, Bounds, Figure, Findings, percentile};
use crate::load::{self, Link, Load, Loader, NULL, RAM, Target};
use crate::slices::Slices;
use crate::turns::in_turn;
use crate::{Setting, TARGET_CORE};

/// A thousand commands beside the other host, ten of which are beyond the percentile.
const TURN: Duration = Duration::from_millis(250);

/// Both hosts of a row: the one that is to be treated fairly, and the one that has more than its
/// share.
#[derive(Clone, Copy)]
struct Pair {
    row: &'static str,
    what: &'static str,
    nsid: u32,
    link: Link,
    /// Whether the second one writes, and does not read.
    writes: bool,
}

/// Namespaces 1 and 2 of the target.
const BACKINGS: [&str; 2] = [NULL, RAM];
const NSID_NULL: u32 = 1;
const NSID_RAM: u32 = 2;
const PAIRS: [Pair; 6] = [
    Pair {
        row: "fairness-p99",
        what: "null",
        nsid: NSID_NULL,
        link: Link::Tcp,
        writes: true,
    },
    Pair {
        row: "fairness-p99-ram",
        what: "RAM",
        nsid: NSID_RAM,
        link: Link::Tcp,
        writes: true,
    },
    Pair {
        row: "fairness-p99-same-host",
        what: "null, through shared memory",
        nsid: NSID_NULL,
        link: Link::SharedMemory,
        writes: true,
    },
    Pair {
        row: "fairness-p99-same-host-ram",
        what: "RAM, through shared memory",
        nsid: NSID_RAM,
        link: Link::SharedMemory,
        writes: true,
    },
    Pair {
        row: "fairness-p99-ram-reads",
        what: "RAM",
        nsid: NSID_RAM,
        link: Link::Tcp,
        writes: false,
    },
    Pair {
        row: "fairness-p99-same-host-ram-reads",
        what: "RAM, through shared memory",
        nsid: NSID_RAM,
        link: Link::SharedMemory,
        writes: false,
    },
];

/// The 99th percentile of a host at depth 1, alone and beside one that moves 1 MiB at depth 128.
///
/// Alone it has all of the target, beside the other one half of it: its share is the same when its
/// commands take twice as long, so that the reference is twice the latency alone.
pub(crate) fn run(setting: &Setting) -> Result<Findings> {
    let table = format!("reactors = [{TARGET_CORE}]\nspin = \"100ms\"\nmemory_budget = \"1GiB\"");
    let target = Target::start(&table, &BACKINGS)?;
    load::fill(target.address, NSID_RAM)?;
    let skipped = RefCell::new(Vec::new());
    let mut figures = Vec::new();
    for pair in PAIRS.iter().filter(|pair| setting.wants(pair.row)) {
        figures.push(pair.figure(setting, target.address, &skipped)?);
    }
    let mut skipped = skipped.into_inner();
    skipped.dedup();
    Ok(Findings { figures, skipped })
}

impl Pair {
    fn small(self) -> Load {
        Load {
            link: self.link,
            ..Load::read(self.nsid, 4096, 1)
        }
    }

    fn large(self) -> Load {
        Load {
            link: self.link,
            write: self.writes,
            ..Load::read(self.nsid, 1 << 20, 128)
        }
    }

    fn figure(
        self,
        setting: &Setting,
        address: SocketAddr,
        skipped: &RefCell<Vec<String>>,
    ) -> Result<Figure> {
        let mut large = Vec::new();
        let mut run = || {
            in_turn(
                setting.runtime,
                TURN,
                // Alone on half of the target.
                |time| Ok(2.0 * latency_us(address, self.small(), time, skipped)?),
                |time| {
                    let (small, rate) = self.beside_large(address, time, skipped)?;
                    large.push(rate);
                    Ok(small)
                },
            )
        };
        let runs = (0..setting.rounds)
            .map(|_| run())
            .collect::<Result<Vec<_>>>()?;
        let what = format!(
            "p99 of 4 KiB reads at depth 1 beside 1 MiB {} at depth 128, {} ({:.1} GB/s)",
            if self.writes { "writes" } else { "reads" },
            self.what,
            percentile(&large, 50.0)
        );
        Ok(Figure::in_turn(
            self.row,
            &what,
            &runs,
            "us",
            ("alone with half the target", "us"),
            ("of that", |beside, alone| beside / alone),
            // What is required is said of writes.
            Bounds {
                now: self.writes.then_some(3.0),
                ..Bounds::none(Better::Lower)
            },
        ))
    }

    /// What `latency_us` is beside the other host, and how much that one moves: GB/s.
    fn beside_large(
        self,
        address: SocketAddr,
        time: Duration,
        skipped: &RefCell<Vec<String>>,
    ) -> Result<(f64, f64)> {
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let other =
                scope.spawn(|| load::on_host_core(|| go_on_until(address, self.large(), &over)));
            // The other one is at its full depth.
            thread::sleep(Duration::from_millis(300));
            let small = latency_us(address, self.small(), time, skipped);
            over.store(true, Ordering::Relaxed);
            let rate = other
                .join()
                .map_err(|_| anyhow!("the other host panicked"))?;
            Ok((small?, rate?))
        })
    }
}

/// The 99th percentile of a host at depth 1 that sleeps between its commands. It shares its core
/// with the other host and goes first there, or it would measure that core's scheduler.
fn latency_us(
    address: SocketAddr,
    load: Load,
    time: Duration,
    skipped: &RefCell<Vec<String>>,
) -> Result<f64> {
    let (us, second) = load::on_host_core(|| {
        let mut host = Loader::connect(address, 1, load)?;
        host.queue.set_spin(SpinBudget { spin_us: 0 });
        let second = go_first().err();
        host.begin()?;
        let mut times = Vec::new();
        let start = Instant::now();
        let mut last = start;
        while start.elapsed() < time {
            let completion = host.queue.wait(None).context("nothing was in progress")?;
            let now = Instant::now();
            times.push((now - last).as_secs_f64() * 1e6);
            last = now;
            host.again(completion)?;
        }
        host.end()?;
        Ok((percentile(&times, 99.0), second))
    })?;
    let why = second.map(|why| format!("real-time priority in fairness: {why:#}"));
    skipped.borrow_mut().extend(why);
    Ok(us)
}

/// Puts this thread before all others of its core.
fn go_first() -> Result<()> {
    let thread = gettid().to_string();
    let output = Command::new("chrt")
        .args(["--fifo", "--pid", "10", &thread])
        .output()
        .context("chrt does not start")?;
    if !output.status.success() {
        bail!("chrt: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// Works until it is told to end: GB/s.
fn go_on_until(address: SocketAddr, load: Load, over: &AtomicBool) -> Result<f64> {
    let mut host = Loader::connect(address, 2, load)?;
    host.begin()?;
    let mut slices = Slices::new();
    while !over.load(Ordering::Relaxed) {
        if let Some(completion) = host.queue.wait(None) {
            slices.add(1);
            host.again(completion)?;
        }
    }
    let rate = slices.mean() * f64::from(load.bytes) / 1e9;
    host.end()?;
    Ok(rate)
}
