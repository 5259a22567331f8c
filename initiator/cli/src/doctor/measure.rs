//! Latency and bandwidth of reads, a second each.

use std::time::Duration;

use anyhow::Result;
use capstan_doctor::Check;
use capstan_initiator::NamespaceInfo;

use super::super::args::ConnectArgs;
use super::super::bench::{Measured, random_reads, report};
use super::super::output;

const RUNTIME: Duration = Duration::from_secs(1);
const LATENCY_BYTES: u32 = 4096;
const BANDWIDTH_BYTES: u32 = 128 << 10;
const BANDWIDTH_DEPTH: u16 = 16;

/// Measures, each through an association of its own.
pub(super) fn measure(connect: &ConnectArgs, namespace: &NamespaceInfo, checks: &mut Vec<Check>) {
    let run = |bytes: u32, iodepth| -> Result<(u32, Measured)> {
        let mut options = connect.options()?;
        options.ctrl_loss_tmo = Some(Duration::ZERO);
        // A multiple of the LBA size within the namespace.
        let fitting = namespace.size_bytes().min(bytes.into());
        let fitting = u32::try_from(fitting).unwrap_or(bytes);
        let lba_bytes = namespace.lba_bytes;
        let bs = (fitting - fitting % lba_bytes).max(lba_bytes);
        let measured = random_reads(&options, namespace.nsid, bs, iodepth, RUNTIME)?;
        Ok((bs, measured))
    };
    checks.push(told("latency", run(LATENCY_BYTES, 1), latency));
    let depth = BANDWIDTH_DEPTH;
    checks.push(told(
        "bandwidth",
        run(BANDWIDTH_BYTES, depth),
        |bs, measured| bandwidth(bs, depth, measured),
    ));
}

fn told(
    name: &str,
    result: Result<(u32, Measured)>,
    check: impl FnOnce(u32, &Measured) -> Check,
) -> Check {
    const LOG: &str = "see the target's log: journalctl -u capstan-target";
    match result {
        Ok((bs, measured)) if measured.losses == 0 => check(bs, &measured),
        Ok((_, measured)) => Check::error(
            name,
            format!("the connection was lost {} time(s)", measured.losses),
            "a connection that holds for a second",
            LOG,
        ),
        Err(error) => Check::error(name, output::chain(&error), "reads for a second", LOG),
    }
}

fn latency(bs: u32, measured: &Measured) -> Check {
    let at = |percentile| measured.latency_ns.value_at_percentile(percentile) as f64 / 1e3;
    let (p50, p99, p999) = (at(50.0), at(99.0), at(99.9));
    let seen = format!(
        "Read of {} at depth 1: p50 {p50:.1} us, p99 {p99:.1} us, p99.9 {p999:.1} us, {} IOPS",
        output::size(bs.into()),
        report::count(measured.ios_per_s)
    );
    Check::ok("latency", seen)
        .with_figure("p50_us", p50)
        .with_figure("p99_us", p99)
        .with_figure("p999_us", p999)
        .with_figure("iops", measured.ios_per_s)
}

fn bandwidth(bs: u32, depth: u16, measured: &Measured) -> Check {
    let seen = format!(
        "Read of {} at depth {depth}: {}/s",
        output::size(bs.into()),
        report::bytes(measured.bytes_per_s)
    );
    Check::ok("bandwidth", seen).with_figure("bytes_per_s", measured.bytes_per_s)
}
