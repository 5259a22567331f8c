//! `capstan bench`: measures a namespace, with the words of fio.
//!
//! Every job is a thread with an association of its own, driven by that thread
//! ([`DirectQueue`](capstan_initiator::DirectQueue)): what is measured is the whole path a program
//! would use, without a hop between threads.

mod job;
mod pattern;
pub(super) mod report;
mod verify;

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use capstan_initiator::Options;
use clap::{Args, ValueEnum};
use hdrhistogram::Histogram;
use indicatif::{ProgressBar, ProgressStyle};

use super::args::{ConnectArgs, OutputArgs, ReplayArgs, parse_bytes, parse_duration};
use super::claim::ShareArgs;
use super::output;
use job::{BenchClaim, Job, JobResult, Plan};

/// Between two looks at the jobs.
const LOOK: Duration = Duration::from_millis(100);

/// Arguments of `bench`.
#[derive(Args, Debug)]
pub(crate) struct Bench {
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    replay: ReplayArgs,
    #[command(flatten)]
    share: ShareArgs,
    /// Namespace.
    #[arg(short = 'N', long, value_name = "NSID", default_value_t = 1)]
    namespace_id: u32,
    /// What to do.
    #[arg(long, value_enum, default_value_t = Workload::Read)]
    rw: Workload,
    /// Bytes of one I/O.
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, default_value = "4k")]
    bs: u64,
    /// I/Os in progress at once, of each job.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1023))]
    iodepth: u16,
    /// Jobs; each is a thread with an association of its own.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    numjobs: u16,
    /// How long to run [default: until the size is done]. A plain number is seconds.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    runtime: Option<Duration>,
    /// Time before the measurement starts. A plain number is seconds.
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "0")]
    ramp_time: Duration,
    /// Bytes each job works on [default: the namespace].
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    size: Option<u64>,
    /// Where in the namespace to start, in bytes.
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, default_value = "0")]
    offset: u64,
    /// Reads of a mixed workload, in percent.
    #[arg(long, value_name = "PERCENT", default_value_t = 50, value_parser = clap::value_parser!(u8).range(0..=100))]
    rwmixread: u8,
    /// Check contents: writes carry a checksum and are read back; reads must find one.
    #[arg(long, value_enum, num_args = 0..=1, default_missing_value = "crc32c")]
    verify: Option<Verify>,
    /// Cores to run the jobs on, one each in turn.
    #[arg(long, value_name = "CORE,...", value_delimiter = ',')]
    cpus_allowed: Vec<usize>,
    /// Start of the random sequence.
    #[arg(long, value_name = "N", default_value_t = 1)]
    randseed: u64,
    #[command(flatten)]
    output: OutputArgs,
}

/// What reads have measured.
#[derive(Debug)]
pub(super) struct Measured {
    pub(super) latency_ns: Histogram<u64>,
    pub(super) ios_per_s: f64,
    pub(super) bytes_per_s: f64,
    /// Connections that were lost meanwhile.
    pub(super) losses: u64,
}

/// Reads `bs` bytes at random for `runtime` on this thread, `iodepth` at once, through an
/// association of its own.
pub(super) fn random_reads(
    options: &Options,
    nsid: u32,
    bs: u32,
    iodepth: u16,
    runtime: Duration,
) -> Result<Measured> {
    let mut options = options.clone();
    options.nr_io_queues = 1;
    options.queue_size = options.queue_size.max(iodepth + 1);
    let mut plan = Plan {
        nsid,
        random: true,
        reads_percent: 100,
        bs,
        iodepth,
        jobs: 1,
        runtime: Some(runtime),
        ramp_time: Duration::ZERO,
        offset: 0,
        size: None,
        verify: false,
        cores: Vec::new(),
        seed: 1,
        options,
        claim: None,
    };
    plan.fit_memory();
    let mut job = Job::connect(&plan, 0, Arc::default())?;
    let result = job.run(Instant::now());
    job.close();
    let result = result?;
    let seconds = result.elapsed.as_secs_f64().max(1e-9);
    Ok(Measured {
        ios_per_s: result.read.ios as f64 / seconds,
        bytes_per_s: result.read.bytes as f64 / seconds,
        latency_ns: result.read.latency_ns,
        losses: result.losses,
    })
}

/// Workloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Workload {
    /// Sequential reads.
    Read,
    /// Sequential writes.
    Write,
    /// Random reads.
    Randread,
    /// Random writes.
    Randwrite,
    /// Sequential reads and writes.
    #[value(name = "rw", alias = "readwrite")]
    Mixed,
    /// Random reads and writes.
    Randrw,
}

/// Ways to check contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Verify {
    /// CRC-32C.
    Crc32c,
}

impl Workload {
    fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Randread => "randread",
            Self::Randwrite => "randwrite",
            Self::Mixed => "rw",
            Self::Randrw => "randrw",
        }
    }

    fn is_random(self) -> bool {
        matches!(self, Self::Randread | Self::Randwrite | Self::Randrw)
    }

    /// Reads in percent.
    fn reads(self, mix: u8) -> u8 {
        match self {
            Self::Read | Self::Randread => 100,
            Self::Write | Self::Randwrite => 0,
            Self::Mixed | Self::Randrw => mix,
        }
    }
}

/// What the jobs tell while they run.
#[derive(Debug, Default)]
struct Progress {
    ios: AtomicU64,
    bytes: AtomicU64,
    /// Somebody failed: stop.
    stop: AtomicBool,
}

impl Bench {
    pub(crate) fn run(&self) -> Result<()> {
        let plan = self.plan()?;
        let progress = Arc::new(Progress::default());
        let jobs = self.start_jobs(&plan, &progress)?;
        let bar = self.progress_bar();
        let results = self.watch(jobs, &progress, bar.as_ref());
        if let Some(bar) = bar {
            bar.finish_and_clear();
        }
        let results = results?;
        report::print(self, &plan, &results)?;
        let wrong: u64 = results.iter().map(|r| r.verify.wrong).sum();
        if wrong > 0 {
            let first = results.iter().find_map(|r| r.verify.first.clone());
            bail!(
                "{wrong} blocks do not hold what was written: {}",
                first.unwrap_or_default()
            );
        }
        Ok(())
    }

    fn plan(&self) -> Result<Plan> {
        let mut options = self.replay.apply(self.connect.options()?);
        // The queue must hold what is asked, and the memory too.
        options.queue_size = options.queue_size.max(self.iodepth + 1);
        let bs = u32::try_from(self.bs)
            .ok()
            .filter(|bs| (512..=4 << 20).contains(bs))
            .ok_or_else(|| anyhow!("--bs is {}, expected 512 to 4 MiB", self.bs))?;
        let mut plan = Plan {
            options,
            nsid: self.namespace_id,
            random: self.rw.is_random(),
            reads_percent: self.rw.reads(self.rwmixread),
            bs,
            iodepth: self.iodepth,
            jobs: self.numjobs,
            runtime: self.runtime,
            ramp_time: self.ramp_time,
            offset: self.offset,
            size: self.size,
            verify: self.verify.is_some(),
            cores: self.cpus_allowed.clone(),
            seed: self.randseed,
            claim: None,
        };
        if plan.reads_percent < 100 {
            plan.claim = Some(BenchClaim::new(self.share));
        } else if self.share.shared {
            bail!(
                "--shared is for workloads that write, and --rw {} only reads; leave it out",
                self.rw.name()
            );
        }
        plan.fit_memory();
        Ok(plan)
    }

    /// Connects every job, then lets them start together.
    fn start_jobs(
        &self,
        plan: &Plan,
        progress: &Arc<Progress>,
    ) -> Result<Vec<thread::JoinHandle<Result<JobResult>>>> {
        let (ready, readies) = mpsc::channel();
        let mut threads = Vec::new();
        let mut starts = Vec::new();
        for number in 0..self.numjobs {
            let (start, started) = mpsc::channel::<Instant>();
            let (plan, progress, ready) = (plan.clone(), Arc::clone(progress), ready.clone());
            starts.push(start);
            threads.push(
                thread::Builder::new()
                    .name(format!("job{number}"))
                    .spawn(move || {
                        let job = Job::connect(&plan, number, progress);
                        let connected = job.as_ref().map(drop).map_err(output::chain);
                        // The receiver waits for every job.
                        let _ = ready.send(connected);
                        let mut job = job?;
                        let Ok(start) = started.recv() else {
                            job.close();
                            bail!("another job could not connect");
                        };
                        let result = job.run(start);
                        job.close();
                        result
                    })?,
            );
        }
        drop(ready);
        for connected in readies.iter().take(usize::from(self.numjobs)) {
            if let Err(error) = connected {
                // Dropping the starts ends the other jobs.
                bail!("{error}");
            }
        }
        let now = Instant::now();
        for start in starts {
            // A job that has died meanwhile says so when it is joined.
            let _ = start.send(now);
        }
        Ok(threads)
    }

    fn progress_bar(&self) -> Option<ProgressBar> {
        if !std::io::stderr().is_terminal() {
            return None;
        }
        let bar = ProgressBar::new_spinner();
        if let Ok(style) = ProgressStyle::with_template("{spinner} [{elapsed}] {msg}") {
            bar.set_style(style);
        }
        Some(bar)
    }

    /// Shows progress until every job has ended.
    fn watch(
        &self,
        jobs: Vec<thread::JoinHandle<Result<JobResult>>>,
        progress: &Progress,
        bar: Option<&ProgressBar>,
    ) -> Result<Vec<JobResult>> {
        let (mut ios_before, mut bytes_before, mut before) = (0, 0, Instant::now());
        while jobs.iter().any(|job| !job.is_finished()) {
            thread::sleep(LOOK);
            let Some(bar) = bar else {
                continue;
            };
            let ios = progress.ios.load(Ordering::Relaxed);
            let bytes = progress.bytes.load(Ordering::Relaxed);
            let seconds = before.elapsed().as_secs_f64();
            before = Instant::now();
            bar.set_message(format!(
                "{}: {} IOPS, {}/s",
                self.rw.name(),
                report::count((ios - ios_before) as f64 / seconds),
                report::bytes((bytes - bytes_before) as f64 / seconds)
            ));
            bar.tick();
            (ios_before, bytes_before) = (ios, bytes);
        }
        jobs.into_iter()
            .map(|job| {
                job.join()
                    .unwrap_or_else(|_| Err(anyhow!("a job has panicked")))
            })
            .collect()
    }
}
