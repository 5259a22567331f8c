//! `instructions` and `syscalls`: what one command costs the target, and the host. Counted, not
//! timed, and so the same on every machine that builds the same program: these figures are gated.
//!
//! Each is the difference of a long and a short run, so that start, connect and end cancel out. The
//! end that is counted runs so slowly under either tool that the other one has done all it can
//! whenever it looks: batches are as large as the depth lets them be.
//!
//! Rows of the verbs provider are counted with a device in software in place of the libraries
//! (`verbs_device`), whose own instructions are left out. What a device's library takes beside it
//! only the lab has (`soft-roce-counted`).

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::Signal;

use super::nfs;
use super::verbs_device::VerbsDevice;
use crate::figure::{Better, Bounds, Figure, Findings, Quantity};
use crate::load::{self, Link, Load, NULL, RAM, Target};
use crate::{Setting, TARGET_CORE};

const NSID_NULL: u32 = 1;
const NSID_RAM: u32 = 2;
/// Commands of the short run.
const SHORT: u64 = 2048;
/// How much longer the long run is, in commands.
const MORE_INSTRUCTIONS: u64 = 16_384;
const MORE_SYSCALLS: u64 = 131_072;

/// For another program to do what it does at once on a machine that is not busy.
const PATIENCE: Duration = Duration::from_secs(10);

/// The process that is counted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Target,
    /// This program once more, with [`play_host`].
    Host,
}

struct Row {
    name: &'static str,
    what: &'static str,
    end: End,
    load: Load,
    bounds: fn() -> Bounds,
}

/// The limit for the build that is measured: counts of instructions repeat within 1 %, those of
/// system calls within 10 % in most runs, those of a write 50 to 70 % more in three of sixteen.
/// Lower it with what lowers the count.
pub(super) const fn gate(release: f64, dev: f64) -> f64 {
    if cfg!(debug_assertions) { dev } else { release }
}

/// The limit of a dev build, which `.ci/run` counts, for rows that nobody has counted in a release.
const fn dev_gate(dev: f64) -> Option<f64> {
    if cfg!(debug_assertions) {
        Some(dev)
    } else {
        None
    }
}

/// The limit above a count that a row has had.
const fn a_tenth_more(count: f64) -> f64 {
    1.1 * count
}

/// What the first row has had in a dev build.
const NULL_READ: f64 = 2976.0;

const INSTRUCTIONS: [Row; 18] = [
    Row {
        name: "instructions-null-read-4k",
        what: "target instructions per 4 KiB read, null, depth 128",
        end: End::Target,
        load: Load::read(NSID_NULL, 4096, 128),
        bounds: || Bounds {
            aim: Some(1500.0),
            ..Bounds::none(Better::Lower).gate(gate(2550.0, a_tenth_more(NULL_READ)))
        },
    },
    Row {
        name: "instructions-tcp-null-read-4k",
        what: "the same over NVMe/TCP",
        end: End::Target,
        load: Load::read(NSID_NULL, 4096, 128).over(Link::NvmeTcp),
        bounds: || Bounds {
            gate: dev_gate(1.15 * NULL_READ),
            ..Bounds::none(Better::Lower)
        },
    },
    Row {
        name: "instructions-ram-read-4k",
        what: "target instructions per 4 KiB read, RAM, depth 128",
        end: End::Target,
        load: Load::read(NSID_RAM, 4096, 128),
        bounds: || Bounds::none(Better::Lower).gate(gate(2900.0, a_tenth_more(3964.0))),
    },
    Row {
        name: "instructions-ram-read-4k-crc32c",
        what: "the same with CRC32c, as between two machines",
        end: End::Target,
        load: Load::read(NSID_RAM, 4096, 128).over(Link::TcpCrc32c),
        bounds: || Bounds::none(Better::Lower).gate(gate(7500.0, a_tenth_more(10_837.0))),
    },
    Row {
        name: "instructions-ram-write-4k",
        what: "target instructions per 4 KiB write, RAM, depth 128",
        end: End::Target,
        load: Load::write(NSID_RAM, 4096, 128),
        bounds: || Bounds::none(Better::Lower).gate(gate(3500.0, a_tenth_more(5432.0))),
    },
    Row {
        name: "instructions-same-host-ram-read-4k",
        what: "target instructions per 4 KiB read, RAM, depth 128, through shared memory",
        end: End::Target,
        load: Load::read(NSID_RAM, 4096, 128).over(Link::SharedMemory),
        bounds: || Bounds {
            gate: dev_gate(a_tenth_more(5156.0)),
            ..Bounds::none(Better::Lower)
        },
    },
    Row {
        name: "instructions-same-host-ram-write-4k",
        what: "target instructions per 4 KiB write, RAM, depth 128, through shared memory",
        end: End::Target,
        load: Load::write(NSID_RAM, 4096, 128).over(Link::SharedMemory),
        bounds: || Bounds {
            gate: dev_gate(a_tenth_more(7677.0)),
            ..Bounds::none(Better::Lower)
        },
    },
    Row {
        name: "instructions-host-read-4k",
        what: "host instructions per 4 KiB read, RAM, depth 128",
        end: End::Host,
        load: Load::read(NSID_RAM, 4096, 128),
        bounds: || Bounds {
            gate: dev_gate(a_tenth_more(5750.0)),
            ..Bounds::none(Better::Lower)
        },
    },
    Row {
        name: "instructions-host-write-4k",
        what: "host instructions per 4 KiB write, RAM, depth 128",
        end: End::Host,
        load: Load::write(NSID_RAM, 4096, 128),
        bounds: || Bounds {
            gate: dev_gate(a_tenth_more(4690.0)),
            ..Bounds::none(Better::Lower)
        },
    },
    Row {
        name: "instructions-host-tcp-read-4k",
        what: "host instructions per 4 KiB read over NVMe/TCP, RAM, depth 128",
        end: End::Host,
        load: Load::read(NSID_RAM, 4096, 128).over(Link::NvmeTcp),
        bounds: || Bounds::none(Better::Lower).gate(a_tenth_more(4828.0)),
    },
    Row {
        name: "instructions-host-tcp-write-4k",
        what: "host instructions per 4 KiB write over NVMe/TCP, RAM, depth 128",
        end: End::Host,
        load: Load::write(NSID_RAM, 4096, 128).over(Link::NvmeTcp),
        bounds: || Bounds::none(Better::Lower).gate(a_tenth_more(8648.0)),
    },
    Row {
        name: "instructions-host-same-host-read-4k",
        what: "host instructions per 4 KiB read, RAM, depth 128, through shared memory",
        end: End::Host,
        load: Load::read(NSID_RAM, 4096, 128).over(Link::SharedMemory),
        bounds: || Bounds {
            gate: dev_gate(a_tenth_more(7207.0)),
            ..Bounds::none(Better::Lower)
        },
    },
    Row {
        name: "instructions-host-same-host-write-4k",
        what: "host instructions per 4 KiB write, RAM, depth 128, through shared memory",
        end: End::Host,
        load: Load::write(NSID_RAM, 4096, 128).over(Link::SharedMemory),
        bounds: || Bounds {
            gate: dev_gate(a_tenth_more(5464.0)),
            ..Bounds::none(Better::Lower)
        },
    },
    Row {
        name: "instructions-verbs-null-read-4k",
        what: "target instructions per 4 KiB read, null, depth 128, above libibverbs",
        end: End::Target,
        load: Load::read(NSID_NULL, 4096, 128).over(Link::VerbsDevice),
        bounds: || Bounds {
            gate: dev_gate(a_tenth_more(4170.0)),
            ..Bounds::none(Better::Lower)
        },
    },
    Row {
        name: "instructions-verbs-ram-read-4k",
        what: "target instructions per 4 KiB read, RAM, depth 128, above libibverbs",
        end: End::Target,
        load: Load::read(NSID_RAM, 4096, 128).over(Link::VerbsDevice),
        bounds: || Bounds {
            gate: dev_gate(a_tenth_more(7640.0)),
            ..Bounds::none(Better::Lower)
        },
    },
    Row {
        name: "instructions-verbs-ram-write-4k",
        what: "target instructions per 4 KiB write, RAM, depth 128, above libibverbs",
        end: End::Target,
        load: Load::write(NSID_RAM, 4096, 128).over(Link::VerbsDevice),
        bounds: || Bounds {
            gate: dev_gate(a_tenth_more(5800.0)),
            ..Bounds::none(Better::Lower)
        },
    },
    Row {
        name: "instructions-host-verbs-read-4k",
        what: "host instructions per 4 KiB read, RAM, depth 128, above libibverbs",
        end: End::Host,
        load: Load::read(NSID_RAM, 4096, 128).over(Link::VerbsDevice),
        bounds: || Bounds {
            gate: dev_gate(a_tenth_more(3740.0)),
            ..Bounds::none(Better::Lower)
        },
    },
    Row {
        name: "instructions-host-verbs-write-4k",
        what: "host instructions per 4 KiB write, RAM, depth 128, above libibverbs",
        end: End::Host,
        load: Load::write(NSID_RAM, 4096, 128).over(Link::VerbsDevice),
        bounds: || Bounds {
            gate: dev_gate(a_tenth_more(4020.0)),
            ..Bounds::none(Better::Lower)
        },
    },
];

const SYSCALLS: [Row; 5] = [
    Row {
        name: "syscalls-null-read-4k",
        what: "target system calls per 4 KiB read, null, depth 128",
        end: End::Target,
        load: Load::read(NSID_NULL, 4096, 128),
        bounds: || Bounds {
            aim: Some(0.1),
            ..Bounds::none(Better::Lower).gate(gate(0.070, 0.085))
        },
    },
    Row {
        name: "syscalls-ram-write-4k",
        what: "target system calls per 4 KiB write, RAM, depth 128",
        end: End::Target,
        load: Load::write(NSID_RAM, 4096, 128),
        bounds: || Bounds {
            aim: Some(0.1),
            ..Bounds::none(Better::Lower).gate(gate(0.090, 0.11))
        },
    },
    Row {
        name: "syscalls-tcp-null-read-4k",
        what: "target system calls per 4 KiB read over NVMe/TCP, null, depth 128",
        end: End::Target,
        load: Load::read(NSID_NULL, 4096, 128).over(Link::NvmeTcp),
        bounds: || Bounds::none(Better::Lower).gate(0.05),
    },
    Row {
        name: "syscalls-host-tcp-read-4k",
        what: "host system calls per 4 KiB read over NVMe/TCP, RAM, depth 128",
        end: End::Host,
        load: Load::read(NSID_RAM, 4096, 128).over(Link::NvmeTcp),
        bounds: || Bounds::none(Better::Lower).gate(0.11),
    },
    Row {
        name: "syscalls-host-tcp-write-4k",
        what: "host system calls per 4 KiB write over NVMe/TCP, RAM, depth 128",
        end: End::Host,
        load: Load::write(NSID_RAM, 4096, 128).over(Link::NvmeTcp),
        // 0.035 to 0.072, by how many responses have come when the host looks.
        bounds: || Bounds::none(Better::Lower).gate(0.11),
    },
];

/// A reactor that sleeps as soon as it has nothing to do: a spin would be counted.
fn table() -> String {
    format!("reactors = [{TARGET_CORE}]\nspin = \"0s\"")
}

/// Instructions in user space, by callgrind. What it has seen stays in the folder of the results,
/// for `callgrind_annotate`.
pub(crate) fn instructions(setting: &Setting) -> Result<Findings> {
    let mut findings = Findings::default();
    let mut device = None;
    for row in INSTRUCTIONS.iter().filter(|row| setting.wants(row.name)) {
        let is_verbs = row.load.link == Link::VerbsDevice;
        if is_verbs && !cfg!(feature = "verbs") {
            let skipped = format!("{}: built without the feature verbs", row.name);
            findings.skipped.push(skipped);
            continue;
        }
        if is_verbs && device.is_none() {
            device = Some(VerbsDevice::build(&setting.folder)?);
        }
        let device = device.as_ref().filter(|_| is_verbs);
        let file = setting.folder.join(format!("callgrind.{}.out", row.name));
        let per_command = per_command(SHORT, MORE_INSTRUCTIONS, |commands| {
            match row.end {
                End::Target => callgrind_target(&file, row, commands, device),
                End::Host => callgrind_host(&file, row, commands, device),
            }
            .with_context(|| row.name)
        })?;
        let value = Quantity::new("instructions", vec![per_command]);
        let figure = Figure::plain(row.name, row.what, value, (row.bounds)());
        findings.figures.push(figure);
    }
    if setting.wants("instructions-nfs-read-4k") {
        findings.figures.push(nfs::instructions(setting)?);
    }
    Ok(findings)
}

/// System calls, by strace; and those of a target that runs at its own speed, by perf.
pub(crate) fn syscalls(setting: &Setting) -> Result<Findings> {
    let mut findings = Findings::default();
    for row in SYSCALLS.iter().filter(|row| setting.wants(row.name)) {
        let per_command = per_command(SHORT, MORE_SYSCALLS, |commands| {
            match row.end {
                End::Target => strace_target(&setting.folder, row.load, commands),
                End::Host => strace_host(&setting.folder, row, commands),
            }
            .with_context(|| row.name)
        })?;
        let value = Quantity::new("system calls", vec![per_command]);
        let figure = Figure::plain(row.name, row.what, value, (row.bounds)());
        findings.figures.push(figure);
    }
    if setting.wants("syscalls-nfs-read-4k") {
        findings.figures.push(nfs::syscalls(setting)?);
    }
    match at_full_speed(setting, SYSCALLS[0].load) {
        Ok(samples) => findings.figures.push(Figure::plain(
            "syscalls-at-full-speed",
            "the same read, one core each side at full speed (perf; depends on timing)",
            Quantity::new("system calls", samples),
            Bounds::none(Better::Lower),
        )),
        Err(why) => {
            let skipped = format!("syscalls-at-full-speed: {why:#}");
            findings.skipped.push(skipped);
        }
    }
    Ok(findings)
}

#[expect(clippy::cast_precision_loss, reason = "counts of a few seconds")]
pub(super) fn per_command(less: u64, more: u64, count: impl Fn(u64) -> Result<u64>) -> Result<f64> {
    let short = count(less)?;
    let long = count(less + more)?;
    let difference = long.checked_sub(short);
    let difference = difference.context("the long run has fewer than the short one")?;
    Ok(difference as f64 / more as f64)
}

pub(super) const VALGRIND: [&str; 3] = ["valgrind", "--quiet", "--tool=callgrind"];

/// A target with a `device`, or without one, run by `tool`.
fn target_with(device: Option<&VerbsDevice>, tool: &[&str]) -> Result<Target> {
    let (table, backings) = (table(), [NULL, RAM]);
    let Some(device) = device else {
        return Target::start_under(tool, &table, &backings);
    };
    let preload = device.preload();
    let tool = [&["env", &preload][..], tool].concat();
    Target::start_with("verbs", &tool, &table, &backings)
}

/// A program that is about to be run by env(1) with a `device`, or without one.
fn command_with(device: Option<&VerbsDevice>) -> Command {
    let mut env = Command::new("env");
    env.args(device.map(VerbsDevice::preload));
    env
}

fn callgrind_target(
    file: &Path,
    row: &Row,
    commands: u64,
    device: Option<&VerbsDevice>,
) -> Result<u64> {
    let out = format!("--callgrind-out-file={}", file.display());
    let target = target_with(device, &[&VALGRIND[..], &[&out]].concat())?;
    match device {
        // Only a process of its own can have it loaded.
        Some(_) => host_under(command_with(device), &target, row, commands)?,
        None => load::count(target.address, row.load, commands)?,
    }
    let status = target.daemon.stop();
    if !status.success() {
        bail!("the target ended with {status} under valgrind");
    }
    total(file, device)
}

fn callgrind_host(
    file: &Path,
    row: &Row,
    commands: u64,
    device: Option<&VerbsDevice>,
) -> Result<u64> {
    let target = target_with(device, &[])?;
    let mut valgrind = command_with(device);
    valgrind
        .args(VALGRIND)
        .arg(format!("--callgrind-out-file={}", file.display()));
    host_under(valgrind, &target, row, commands)?;
    total(file, device)
}

/// Runs what [`play_host`] does under a tool.
fn host_under(mut tool: Command, target: &Target, row: &Row, commands: u64) -> Result<()> {
    let name = tool.get_program().to_string_lossy().into_owned();
    let status = tool
        .arg(std::env::current_exe()?)
        .args(["--play-host", &target.address.to_string()])
        .args(["--commands", &commands.to_string(), row.name])
        .status()
        .with_context(|| format!("{name} does not start"))?;
    if !status.success() {
        bail!("the host ended with {status} under {name}");
    }
    Ok(())
}

/// What a process of its own does for a row of [`End::Host`]. It sleeps as soon as it has nothing
/// to do: a spin would be counted.
pub(crate) fn play_host(name: &str, target: SocketAddr, commands: u64) -> Result<()> {
    let mut rows = INSTRUCTIONS.iter().chain(&SYSCALLS);
    let row = rows.find(|row| row.name == name);
    let row = row.with_context(|| format!("no row is called {name:?}"))?;
    load::count_sleeping(target, row.load, commands)
}

/// Instructions in callgrind's report, without those of a `device`.
pub(super) fn total(file: &Path, device: Option<&VerbsDevice>) -> Result<u64> {
    let report = fs::read_to_string(file).with_context(|| format!("{}", file.display()))?;
    let total = report
        .lines()
        .find_map(|line| line.strip_prefix("totals: "));
    let total = total.context("no totals in callgrind's report")?;
    let total: u64 = total.trim().parse()?;
    let device = device.map_or(Ok(0), |device| device.instructions(&report))?;
    Ok(total - device)
}

/// A tool that counts the system calls of a target, and the file that it leaves when that has
/// ended.
pub(super) fn strace(folder: &Path) -> Result<(PathBuf, [String; 8])> {
    let file = folder.join("strace.out");
    remove(&file)?;
    let out = file.to_str().context("the folder is text")?;
    // -D: the target keeps the process, and strace is a child of it.
    let tool = ["strace", "-D", "-f", "-c", "-U", "calls,name", "-o", out];
    let tool = tool.map(str::to_owned);
    Ok((file, tool))
}

fn strace_target(folder: &Path, load: Load, commands: u64) -> Result<u64> {
    let (file, tool) = strace(folder)?;
    let tool = tool.each_ref().map(String::as_str);
    let target = Target::start_under(&tool, &table(), &[NULL, RAM])?;
    load::count(target.address, load, commands)?;
    let status = target.daemon.stop();
    if !status.success() {
        bail!("the target ended with {status} under strace");
    }
    // strace writes when the target has ended.
    wait_for(&file, system_calls)
}

fn strace_host(folder: &Path, row: &Row, commands: u64) -> Result<u64> {
    let file = folder.join("strace.out");
    remove(&file)?;
    let target = Target::start(&table(), &[NULL, RAM])?;
    let mut strace = Command::new("strace");
    strace.args(["-f", "-c", "-U", "calls,name", "-o"]);
    strace.arg(&file);
    host_under(strace, &target, row, commands)?;
    wait_for(&file, system_calls)
}

/// All of them, in strace's report.
pub(super) fn system_calls(report: &str) -> Option<u64> {
    let mut lines = report.lines();
    let line = lines.find(|line| line.trim_end().ends_with(" total"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Per run, by perf's count of a tracepoint.
fn at_full_speed(setting: &Setting, load: Load) -> Result<Vec<f64>> {
    let target = Target::start(&table(), &[NULL, RAM])?;
    let mut samples = Vec::new();
    for _ in 0..setting.rounds {
        samples.push(per_command(SHORT, 4 * MORE_SYSCALLS, |commands| {
            let perf = Perf::attach(&setting.folder, target.daemon.pid())?;
            load::count(target.address, load, commands)?;
            perf.count()
        })?);
    }
    Ok(samples)
}

/// A perf that counts system calls of a process.
struct Perf {
    child: Child,
    file: PathBuf,
}

impl Perf {
    fn attach(folder: &Path, pid: u32) -> Result<Self> {
        let file = folder.join("perf.out");
        remove(&file)?;
        let child = Command::new("perf")
            .args(["stat", "-x", ",", "-e", "raw_syscalls:sys_enter", "-o"])
            .arg(&file)
            .args(["-p", &pid.to_string()])
            .stderr(Stdio::piped())
            .spawn()
            .context("perf does not start")?;
        let mut perf = Self { child, file };
        // It says nothing when it has attached, and a signal before that ends it without a count.
        let start = Instant::now();
        while !perf.is_attached() {
            if perf.child.try_wait()?.is_some() {
                let output = perf.child.wait_with_output()?;
                bail!("perf: {}", String::from_utf8_lossy(&output.stderr).trim());
            }
            if start.elapsed() > PATIENCE {
                bail!("perf has opened no counter of process {pid} within {PATIENCE:?}");
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(perf)
    }

    /// Whether it has its counters, and with them the handler of the signal that ends it.
    fn is_attached(&self) -> bool {
        let fds = fs::read_dir(format!("/proc/{}/fd", self.child.id()));
        fds.into_iter().flatten().flatten().any(|fd| {
            fs::read_link(fd.path()).is_ok_and(|to| to.as_os_str() == "anon_inode:[perf_event]")
        })
    }

    fn count(mut self) -> Result<u64> {
        capstan_tests::program::signal(self.child.id(), Signal::SIGINT);
        self.child.wait()?;
        wait_for(&self.file, |report| {
            let line = report.lines().find(|line| line.contains("sys_enter"))?;
            line.split(',').next()?.parse().ok()
        })
    }
}

fn remove(file: &Path) -> Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

/// Reads a number from a file that is being written.
pub(super) fn wait_for(file: &Path, number: impl Fn(&str) -> Option<u64>) -> Result<u64> {
    let start = Instant::now();
    loop {
        let report = fs::read_to_string(file).unwrap_or_default();
        if let Some(number) = number(&report) {
            return Ok(number);
        }
        if start.elapsed() > PATIENCE {
            bail!("no count in {}: {report:?}", file.display());
        }
        thread::sleep(Duration::from_millis(10));
    }
}
