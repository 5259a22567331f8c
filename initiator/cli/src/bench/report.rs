//! What was measured, for people and for programs.

use anyhow::Result;
use capstan_initiator::Wire;
use capstan_initiator::internals::words::Count;
use hdrhistogram::Histogram;
use serde_json::{Map, Value, json};

use super::super::interrupt::Interrupted;
use super::super::{output, wire};
use super::Bench;
use super::job::{Checked, JobResult, Plan, Side};

/// The percentiles fio prints.
const PERCENTILES: [f64; 12] = [
    1.0, 5.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 99.95, 99.99,
];

/// All jobs together.
struct Total {
    read: Side,
    write: Side,
    seconds: f64,
    user_percent: f64,
    system_percent: f64,
    verify: Checked,
    losses: u64,
    /// Of the first job: they all go to one target.
    wire: Option<Wire>,
}

impl Total {
    fn of(results: &[JobResult]) -> Result<Self> {
        let mut total = Self {
            read: Side::new()?,
            write: Side::new()?,
            seconds: 0.0,
            user_percent: 0.0,
            system_percent: 0.0,
            verify: Checked::default(),
            losses: 0,
            wire: results.iter().find_map(|job| job.wire.clone()),
        };
        for job in results {
            total.read.add(&job.read)?;
            total.write.add(&job.write)?;
            let seconds = job.elapsed.as_secs_f64().max(1e-9);
            total.seconds = total.seconds.max(seconds);
            total.user_percent += 100.0 * job.user.as_secs_f64() / seconds;
            total.system_percent += 100.0 * job.system.as_secs_f64() / seconds;
            total.verify.blocks += job.verify.blocks;
            total.verify.wrong += job.verify.wrong;
            total.losses += job.losses;
        }
        Ok(total)
    }
}

/// Prints what the jobs have measured.
pub(super) fn print(
    bench: &Bench,
    plan: &Plan,
    results: &[JobResult],
    interrupted: Option<Interrupted>,
) -> Result<()> {
    let total = Total::of(results)?;
    if bench.output.is_json() {
        return output::json(&as_json(bench, plan, &total, interrupted.is_some()));
    }
    output::line(&format!(
        "{}: bs {}, iodepth {}, numjobs {}, {:.1} s, {} namespace {}{}",
        bench.rw.name(),
        bytes(f64::from(plan.bs)),
        plan.iodepth,
        plan.jobs,
        total.seconds,
        plan.options.subnqn,
        plan.nsid,
        total
            .wire
            .as_ref()
            .map_or_else(String::new, |wire| format!(" over {wire}"))
    ))?;
    for (name, side) in [("read", &total.read), ("write", &total.write)] {
        if side.ios > 0 {
            print_side(name, side, total.seconds)?;
        }
    }
    output::line(&format!(
        "  cpu   : usr={:.1}%, sys={:.1}% (all jobs; 100% is one core)",
        total.user_percent, total.system_percent
    ))?;
    if plan.verify {
        output::line(&format!(
            "  verify: {} checked, {} wrong",
            Count(total.verify.blocks, "block"),
            total.verify.wrong
        ))?;
    }
    if let Some(interrupted) = interrupted {
        output::line(&format!(
            "  {}",
            early(plan, &total, results.len(), interrupted)
        ))?;
    }
    if total.losses > 0 {
        output::line(&format!("  lost  : {}", times(total.losses)))?;
    }
    Ok(())
}

/// That a measurement was ended early, and what it lacks.
fn early(plan: &Plan, total: &Total, jobs: usize, interrupted: Interrupted) -> String {
    let mut text = format!("{interrupted} after {:.1} s", total.seconds);
    if let Some(runtime) = plan.runtime {
        text += &format!(" of {:.1} s", runtime.as_secs_f64());
    }
    if total.read.ios + total.write.ios == 0 {
        text += "; nothing was measured until then";
    }
    match usize::from(plan.jobs).saturating_sub(jobs) {
        0 => {}
        left_out => text += &format!("; without {left_out} job(s), whose I/O did not end"),
    }
    text
}

/// How often the controller was lost.
fn times(losses: u64) -> String {
    match losses {
        1 => "once, and connected to again".to_owned(),
        losses => format!("{losses} times, and connected to again"),
    }
}

fn print_side(name: &str, side: &Side, seconds: f64) -> Result<()> {
    let latency = &side.latency_ns;
    let us = |ns: f64| ns / 1000.0;
    output::line(&format!(
        "  {name:<6}: IOPS={}, BW={}/s, {} I/Os",
        count(side.ios as f64 / seconds),
        bytes(side.bytes as f64 / seconds),
        side.ios
    ))?;
    output::line(&format!(
        "    lat (usec): min={:.1}, max={:.1}, avg={:.2}, stdev={:.2}",
        us(latency.min() as f64),
        us(latency.max() as f64),
        us(latency.mean()),
        us(latency.stdev())
    ))?;
    for row in PERCENTILES.chunks(4) {
        let cells: Vec<String> = row
            .iter()
            .map(|p| format!("{p:>5.2}th=[{:>9.1}]", us(at(latency, *p))))
            .collect();
        output::line(&format!("    {}", cells.join(", ")))?;
    }
    Ok(())
}

fn at(latency: &Histogram<u64>, percentile: f64) -> f64 {
    latency.value_at_percentile(percentile) as f64
}

fn as_json(bench: &Bench, plan: &Plan, total: &Total, is_interrupted: bool) -> Value {
    let mut told = json!({
        "capstan version": env!("CARGO_PKG_VERSION"),
        "options": {
            "rw": bench.rw.name(),
            "bs": plan.bs,
            "iodepth": plan.iodepth,
            "numjobs": plan.jobs,
            "subnqn": plan.options.subnqn.as_str(),
            "traddr": plan.options.traddr,
            "trsvcid": plan.options.trsvcid,
            "nsid": plan.nsid,
        },
        "runtime_s": total.seconds,
        "interrupted": is_interrupted,
        "read": side_json(&total.read, total.seconds),
        "write": side_json(&total.write, total.seconds),
        "usr_cpu": total.user_percent,
        "sys_cpu": total.system_percent,
        "verify": { "blocks": total.verify.blocks, "wrong": total.verify.wrong },
        "reconnects": total.losses,
    });
    wire::add(&mut told, total.wire.as_ref());
    told
}

fn side_json(side: &Side, seconds: f64) -> Value {
    let latency = &side.latency_ns;
    let percentile: Map<String, Value> = PERCENTILES
        .iter()
        .map(|p| (format!("{p:.6}"), latency.value_at_percentile(*p).into()))
        .collect();
    json!({
        "total_ios": side.ios,
        "io_bytes": side.bytes,
        "iops": side.ios as f64 / seconds,
        "bw_bytes": side.bytes as f64 / seconds,
        "lat_ns": {
            "min": latency.min(),
            "max": latency.max(),
            "mean": latency.mean(),
            "stddev": latency.stdev(),
            "percentile": percentile,
        },
    })
}

/// A count with three or four digits: `512k`, `7.2k`, `980`.
pub(in super::super) fn count(n: f64) -> String {
    match n {
        n if n >= 1e7 => format!("{:.1}M", n / 1e6),
        n if n >= 1e6 => format!("{:.2}M", n / 1e6),
        n if n >= 1e5 => format!("{:.0}k", n / 1e3),
        n if n >= 1e4 => format!("{:.1}k", n / 1e3),
        n => format!("{n:.0}"),
    }
}

/// Bytes in powers of 1024.
pub(in super::super) fn bytes(n: f64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut n = n;
    let mut unit = 0;
    while n >= 1024.0 && unit + 1 < UNITS.len() {
        n /= 1024.0;
        unit += 1;
    }
    let digits = if n < 10.0 && unit > 0 {
        2
    } else {
        usize::from(n < 100.0 && unit > 0)
    };
    format!("{n:.digits$} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::{bytes, count};

    #[test]
    fn figures_are_short() {
        assert_eq!(count(999.4), "999");
        assert_eq!(count(12_345.0), "12.3k");
        assert_eq!(count(512_345.0), "512k");
        assert_eq!(count(1_512_345.0), "1.51M");
        assert_eq!(bytes(4096.0), "4.00 KiB");
        assert_eq!(bytes(131_072.0), "128 KiB");
        assert_eq!(bytes(2.5 * 1024.0 * 1024.0 * 1024.0), "2.50 GiB");
    }
}
