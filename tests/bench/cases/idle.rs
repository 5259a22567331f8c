//! `idle`, `wake` and `memory`: what hosts cost that do nothing, and the first command after that.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use capstan_initiator::{Controller, DirectQueue, Io, Op};
use capstan_reactor::SpinBudget;

use crate::figure::{Better, Bounds, Figure, Findings, Quantity, percentile};
use crate::load::{self, Load, NULL, RAM, Target};
use crate::process::{cpu, resident};
use crate::{Setting, TARGET_CORE, tcp};

/// Hosts of the idle row.
const HOSTS: u16 = 64;
/// Hosts of the memory row; each has two connections.
const MANY_HOSTS: u16 = 500;
/// Before every first command.
const PAUSE: Duration = Duration::from_millis(10);
/// First commands of one run.
const COMMANDS: usize = 50;
/// Of a host that sends nothing else: the one of `capstan`.
const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// What a host does that does nothing.
const LOAD: Load = Load::read(1, 4096, 31);

/// CPU time of a target whose hosts send nothing but their keep-alives.
pub(crate) fn idle(setting: &Setting) -> Result<Findings> {
    let target = Target::start("", &[RAM])?;
    let hosts = (0..HOSTS).map(|number| {
        let mut options = load::options(target.address, number, LOAD);
        options.keep_alive_tmo = KEEP_ALIVE;
        Ok(Controller::connect(options)?)
    });
    let hosts = hosts.collect::<Result<Vec<_>>>()?;
    // What connecting has begun is over.
    thread::sleep(Duration::from_secs(1));
    // Long enough for a keep-alive of every host.
    let window = setting.runtime.mul_f64(3.0);
    let mut samples = Vec::new();
    for _ in 0..setting.rounds {
        let (before, start) = (cpu(target.daemon.pid())?, Instant::now());
        thread::sleep(window);
        let used = cpu(target.daemon.pid())? - before;
        samples.push(100.0 * used.as_secs_f64() / start.elapsed().as_secs_f64());
    }
    for host in &hosts {
        host.close();
    }
    let value = Quantity::new("% of a core", samples);
    let bounds = Bounds::new(Better::Lower, 1.0, 0.1).peer("100");
    let what = "idle target, 64 hosts connected, keep-alives running";
    Ok(vec![Figure::plain("idle-64-hosts", what, value, bounds)].into())
}

/// Latency of the first command after a pause, both sides asleep.
pub(crate) fn wake(setting: &Setting) -> Result<Findings> {
    let target = Target::start(&format!("reactors = [{TARGET_CORE}]"), &[NULL])?;
    let (mut first, mut blocking) = (Vec::new(), Vec::new());
    for _ in 0..setting.rounds {
        let times = tcp::blocking_round_trips(COMMANDS, PAUSE)?;
        blocking.push(percentile(&times, 50.0) * 1e6);
        let times = load::on_host_core(|| {
            let options = load::options(target.address, 1, Load::read(1, 4096, 1));
            first_commands(load::connect_over_tcp(&options)?)
        })?;
        first.push(percentile(&times, 50.0) * 1e6);
    }
    Ok(vec![Figure::beside(
        "first-after-idle",
        "first 4 KiB read after 10 ms without any, null, both sides asleep",
        Quantity::new("us", first),
        ("blocking TCP ping-pong", Quantity::new("us", blocking)),
        ("of the ping-pong", |first, blocking| first / blocking),
        Bounds {
            aim: Some(1.5),
            ..Bounds::none(Better::Lower)
        },
    )]
    .into())
}

fn first_commands(mut queue: DirectQueue) -> Result<Vec<f64>> {
    queue.set_spin(SpinBudget { spin_us: 0 });
    let mut buffer = queue.take(4096);
    let mut times = Vec::with_capacity(COMMANDS);
    for _ in 0..COMMANDS {
        thread::sleep(PAUSE);
        let op = Op::Read { slba: 0, nlb: 1 };
        let start = Instant::now();
        let taken = queue.submit(0, Io { nsid: 1, op }, buffer.take());
        taken.map_err(|refused| refused.reason)?;
        let completion = queue.wait(None).context("nothing was in progress")?;
        times.push(start.elapsed().as_secs_f64());
        completion.result?;
        buffer = completion.buffer;
    }
    queue.close();
    Ok(times)
}

/// Resident memory of a target before its first host, and what each idle connection adds.
pub(crate) fn memory(_: &Setting) -> Result<Findings> {
    let target = Target::start("", &[NULL])?;
    let before = resident(target.daemon.pid())?;
    drop(target);
    let mib = |bytes: f64| Quantity::new("MiB", vec![bytes / f64::from(1 << 20)]);

    let target = Target::start("memory_budget = \"1GiB\"", &[NULL])?;
    let pid = target.daemon.pid();
    let none = resident(pid)?;
    let mut hosts = Vec::new();
    for number in 0..MANY_HOSTS {
        let options = load::options(target.address, number, LOAD);
        let host = load::connect_over_tcp(&options);
        hosts.push(host.with_context(|| format!("connecting host {number}"))?);
    }
    thread::sleep(Duration::from_millis(500));
    let all = resident(pid)?;
    let added = (all.all - all.slabs) - (none.all - none.slabs);
    let from_slabs = all.slabs - none.slabs;
    if added < 0.0 {
        bail!("the target has less memory with {MANY_HOSTS} hosts than without: {all:?}, {none:?}");
    }
    let connections = 2.0 * f64::from(MANY_HOSTS);
    let kib = |bytes: f64| Quantity::new("KiB", vec![bytes / connections / 1024.0]);
    drop(hosts);
    Ok(vec![
        Figure::plain(
            "memory-before-first-host",
            "target before its first host, default budget",
            mib(before.all),
            Bounds::new(Better::Lower, 128.0, 64.0),
        ),
        Figure::plain(
            "memory-huge-pages",
            "of that, reserved huge pages",
            mib(before.reserved),
            Bounds::none(Better::Lower),
        ),
        Figure::plain(
            "memory-per-connection",
            "idle connection of 32 entries, beyond the pool",
            kib(added),
            Bounds::new(Better::Lower, 128.0, 32.0),
        ),
        Figure::plain(
            "memory-per-connection-pool",
            "idle connection of 32 entries, pages of the pool that became resident",
            kib(from_slabs),
            Bounds::none(Better::Lower),
        ),
    ]
    .into())
}
