//! `crowd`, `fairness` and `reactors`: many connections, unequal ones, and two cores.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use capstan_reactor::SpinBudget;
use nix::unistd::gettid;

use crate::capsules::Crowd;
use crate::figure::{Better, Bounds, Figure, Findings, Quantity, percentile};
use crate::load::{self, Load, Loader, NULL, Target};
use crate::slices::Slices;
use crate::turns::in_turn;
use crate::{HOST_CORE, Setting, TARGET_CORE};

/// Hosts of the crowd; each has an admin and an I/O connection.
const MANY: u16 = 1000;
const FEW: u16 = 5;
/// Some turns of all connections.
const CROWD_TURN: Duration = Duration::from_millis(250);

/// Total IOPS over 2,000 connections against 10, at the same depth each.
pub(crate) fn crowd(setting: &Setting) -> Result<Findings> {
    let table = format!(
        "reactors = [{TARGET_CORE}]\nspin = \"100ms\"\nmemory_budget = \"2GiB\"\nhosts_max = 2048"
    );
    let target = Target::start(&table, &[NULL])?;
    let runs = load::on_host_core(|| {
        let mut few = Crowd::connect(target.address, FEW)?;
        let mut many = Crowd::connect(target.address, MANY)?;
        let mut run = || {
            in_turn(
                setting.runtime,
                CROWD_TURN,
                |time| Ok(few.rate(time)? / 1e3),
                |time| Ok(many.rate(time)? / 1e3),
            )
        };
        (0..setting.rounds)
            .map(|_| run())
            .collect::<Result<Vec<_>>>()
    })?;
    Ok(vec![Figure::in_turn(
        "crowd-2000-connections",
        "4 KiB random read, null, depth 16 each: 2,000 connections of 1,000 hosts",
        &runs,
        "k IOPS",
        ("10 connections of 5 hosts", "k IOPS"),
        ("of the 10", |many, few| many / few),
        Bounds::new(Better::Higher, 0.8, 0.95),
    )]
    .into())
}

/// The host that is to be treated fairly, and the one that has more than its share.
const SMALL: Load = Load::read(1, 4096, 1);
const LARGE: Load = Load::write(1, 1 << 20, 128);
/// A thousand commands beside the writer, ten of which are beyond the percentile.
const FAIRNESS_TURN: Duration = Duration::from_millis(250);

/// The 99th percentile of a host at depth 1, alone and beside one that writes 1 MiB at depth 128.
///
/// Alone it has all of the target, beside the other one half of it: its share is the same when its
/// commands take twice as long, so that the reference is twice the latency alone.
pub(crate) fn fairness(setting: &Setting) -> Result<Findings> {
    let table = format!("reactors = [{TARGET_CORE}]\nspin = \"100ms\"\nmemory_budget = \"1GiB\"");
    let target = Target::start(&table, &[NULL])?;
    let skipped = RefCell::new(Vec::new());
    let mut large = Vec::new();
    let mut run = || {
        in_turn(
            setting.runtime,
            FAIRNESS_TURN,
            // Alone on half of the target.
            |time| Ok(2.0 * latency_us(target.address, time, &skipped)?),
            |time| {
                let (small, rate) = beside_writes(target.address, time, &skipped)?;
                large.push(rate);
                Ok(small)
            },
        )
    };
    let runs = (0..setting.rounds)
        .map(|_| run())
        .collect::<Result<Vec<_>>>()?;
    let what = format!(
        "p99 of 4 KiB reads at depth 1 beside 1 MiB writes at depth 128 ({:.1} GB/s)",
        percentile(&large, 50.0)
    );
    let figure = Figure::in_turn(
        "fairness-p99",
        &what,
        &runs,
        "us",
        ("alone with half the target", "us"),
        ("of that", |beside, alone| beside / alone),
        Bounds {
            now: Some(3.0),
            ..Bounds::none(Better::Lower)
        },
    );
    let mut skipped = skipped.into_inner();
    skipped.dedup();
    Ok(Findings {
        figures: vec![figure],
        skipped,
    })
}

/// What `latency_us` is beside the writer, and how much that one writes: GB/s.
fn beside_writes(
    address: SocketAddr,
    time: Duration,
    skipped: &RefCell<Vec<String>>,
) -> Result<(f64, f64)> {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let writer = scope.spawn(|| load::on_host_core(|| writes(address, &over)));
        // The writer is at its full depth.
        thread::sleep(Duration::from_millis(300));
        let small = latency_us(address, time, skipped);
        over.store(true, Ordering::Relaxed);
        let rate = writer.join().map_err(|_| anyhow!("the writer panicked"))?;
        Ok((small?, rate?))
    })
}

/// The 99th percentile of a host at depth 1 that sleeps between its commands. It shares its core
/// with the writer and goes first there, or it would measure that core's scheduler.
fn latency_us(address: SocketAddr, time: Duration, skipped: &RefCell<Vec<String>>) -> Result<f64> {
    let (us, second) = load::on_host_core(|| {
        let mut host = Loader::connect(address, 1, SMALL)?;
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

/// Writes until it is told to end: GB/s.
fn writes(address: SocketAddr, over: &AtomicBool) -> Result<f64> {
    let mut host = Loader::connect(address, 2, LARGE)?;
    host.begin()?;
    let mut slices = Slices::new();
    while !over.load(Ordering::Relaxed) {
        if let Some(completion) = host.queue.wait(None) {
            slices.add(1);
            host.again(completion)?;
        }
    }
    let rate = slices.mean() * f64::from(LARGE.bytes) / 1e9;
    host.end()?;
    Ok(rate)
}

/// Total IOPS of two reactors against one, with a load on a core of its own for each.
pub(crate) fn reactors(setting: &Setting) -> Result<Findings> {
    let cores = thread::available_parallelism()?.get();
    if cores < 4 {
        return Ok(Findings::skipped(format!(
            "two-reactors: it takes a core for each of two reactors and two loads, and this \
             machine has {cores}"
        )));
    }
    let target = |reactors: &str| {
        let table = format!("reactors = [{reactors}]\nspin = \"100ms\"");
        Target::start(&table, &[NULL])
    };
    let (mut one, mut two) = (Vec::new(), Vec::new());
    for _ in 0..setting.rounds {
        one.push(two_loads(
            &target(&TARGET_CORE.to_string())?,
            setting.runtime,
        )?);
        two.push(two_loads(
            &target(&format!("{TARGET_CORE}, 2"))?,
            setting.runtime,
        )?);
    }
    Ok(vec![Figure::beside(
        "two-reactors",
        "4 KiB random read, depth 128, null, two loads on two reactors",
        Quantity::new("k IOPS", two),
        ("the same on one", Quantity::new("k IOPS", one)),
        ("of one", |two, one| two / one),
        Bounds::new(Better::Higher, 1.6, 1.95).peer("near 2"),
    )]
    .into())
}

/// Thousands of I/Os a second of a load on the host's core and another one on core 3.
fn two_loads(target: &Target, time: Duration) -> Result<f64> {
    let load = |number, core| {
        move || {
            load::on_core(core, || {
                Loader::connect(target.address, number, Load::read(1, 4096, 128))?.run(time)
            })
        }
    };
    thread::scope(|scope| {
        let loads = [scope.spawn(load(1, HOST_CORE)), scope.spawn(load(2, 3))];
        let mut total = 0.0;
        for load in loads {
            let slices = load.join().map_err(|_| anyhow!("a load panicked"))??;
            total += slices.mean() / 1e3;
        }
        Ok(total)
    })
}
