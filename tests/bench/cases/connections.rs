//! `connections` and `reactors`: many connections, and two cores.

use std::thread;
use std::time::Duration;

use anyhow::{Result, anyhow};

use crate::capsules::Readers;
use crate::figure::{Better, Bounds, Figure, Findings, Quantity};
use crate::load::{self, Load, Loader, NULL, Target};
use crate::turns::in_turn;
use crate::{HOST_CORE, Setting, TARGET_CORE};

/// Hosts; each has an admin and an I/O connection.
const MANY: u16 = 1000;
const FEW: u16 = 5;
/// Some turns of all connections.
const CONNECTIONS_TURN: Duration = Duration::from_millis(250);

/// Total IOPS over 2,000 connections against 10, at the same depth each.
pub(crate) fn connections(setting: &Setting) -> Result<Findings> {
    let table = format!(
        "reactors = [{TARGET_CORE}]\nspin = \"100ms\"\nmemory_budget = \"2GiB\"\nhosts_max = 2048"
    );
    let target = Target::start(&table, &[NULL])?;
    let runs = load::on_host_core(|| {
        let mut few = Readers::connect(target.address, FEW)?;
        let mut many = Readers::connect(target.address, MANY)?;
        let mut run = || {
            in_turn(
                setting.runtime,
                CONNECTIONS_TURN,
                |time| Ok(few.rate(time)? / 1e3),
                |time| Ok(many.rate(time)? / 1e3),
            )
        };
        (0..setting.rounds)
            .map(|_| run())
            .collect::<Result<Vec<_>>>()
    })?;
    Ok(vec![Figure::in_turn(
        "connections-2000",
        "4 KiB random read, null, depth 16 each: 2,000 connections of 1,000 hosts",
        &runs,
        "k IOPS",
        ("10 connections of 5 hosts", "k IOPS"),
        ("of the 10", |many, few| many / few),
        Bounds::new(Better::Higher, 0.8, 0.95),
    )]
    .into())
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
