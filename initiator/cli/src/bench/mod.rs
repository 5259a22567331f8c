//! `capstan bench`: measures a namespace, with the words of fio.
//!
//! Every job is a thread with an association of its own, driven by that thread
//! ([`DirectQueue`](capstan_initiator::DirectQueue)): what is measured is the whole path a program
//! would use, without a hop between threads.

mod beforehand;
mod job;
mod pattern;
pub(super) mod report;
mod stall;
mod verify;

use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use capstan_doctor::Machine;
use capstan_doctor::room::{HOST_THREADS, no_thread};
use capstan_initiator::Options;
use capstan_initiator::internals::words::Count;
use clap::{Args, ValueEnum};
use hdrhistogram::Histogram;
use indicatif::{ProgressBar, ProgressStyle};
use nix::sched::{CpuSet, sched_getaffinity};
use nix::sys::resource::{Resource, getrlimit};
use nix::unistd::Pid;

use super::args::{ConnectArgs, OutputArgs, ReplayArgs};
use super::claim::ShareArgs;
use super::interrupt::{Interrupted, Interrupts, PATIENCE};
use super::output;
use super::taken::SharedTransport;
use super::values::{
    parse_bs, parse_bytes, parse_duration, parse_nsid, parse_some_bytes, parse_time, within, wrong,
};
use beforehand::Beforehand;
use job::{Job, JobResult, Plan};
use stall::Stalls;

/// Between two looks at the jobs, and of a job at the signals while no I/O ends.
const LOOK: Duration = Duration::from_millis(100);
/// After a signal, how long I/O in progress may take to end: then there is time left for an orderly
/// end of the association.
const LAST_IO: Duration = Duration::from_millis(600);
/// Reads of a mixed workload, in percent.
const RWMIXREAD_PERCENT: u8 = 50;

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
    #[arg(short = 'N', long, value_name = "NSID", default_value_t = 1, value_parser = parse_nsid())]
    namespace_id: u32,
    /// What to do. All but read and randread write to the namespace: what is on it is lost.
    #[arg(long, value_enum, default_value_t = Workload::Read)]
    rw: Workload,
    /// Write over a namespace that holds a file system, a partition table or anything else with a
    /// signature, which is refused without.
    #[arg(long)]
    force: bool,
    /// Bytes of one I/O, 512 to 4 MiB.
    #[arg(long, value_name = "BYTES", value_parser = parse_bs, default_value = "4k")]
    bs: u32,
    /// I/Os in progress at once, of each job.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = within::<u16>(1..=1023))]
    iodepth: u16,
    /// Jobs; each is a thread with an association of its own.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = within::<u16>(1..=256))]
    numjobs: u16,
    /// How long to run [default: until the size is done]. A plain number is seconds. Meanwhile a
    /// terminal shows how it goes; where there is none, only a target that does not answer is told.
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    runtime: Option<Duration>,
    /// Time before the measurement starts. A plain number is seconds.
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "0")]
    ramp_time: Duration,
    /// Bytes each job works on [default: the namespace].
    #[arg(long, value_name = "BYTES", value_parser = parse_some_bytes)]
    size: Option<u64>,
    /// Where in the namespace to start, in bytes.
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, default_value = "0")]
    offset: u64,
    /// Reads of a mixed workload, in percent [default: 50].
    #[arg(long, value_name = "PERCENT", value_parser = within::<u8>(0..=100))]
    rwmixread: Option<u8>,
    /// Check contents: writes carry a checksum and are read back; reads must find one.
    #[arg(long, value_enum, num_args = 0..=1, default_missing_value = "crc32c")]
    verify: Option<Verify>,
    /// Cores to run the jobs on, one each in turn.
    #[arg(long, value_name = "CORE,...", value_delimiter = ',', value_parser = within::<usize>(0..=CpuSet::count() - 1))]
    cpus_allowed: Vec<usize>,
    /// Start of the random sequence.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = within::<u64>(0..=u64::MAX))]
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
        transport: SharedTransport::default(),
        beforehand: None,
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
    /// Sequential writes, over what is there.
    Write,
    /// Random reads.
    Randread,
    /// Random writes, over what is there.
    Randwrite,
    /// Sequential reads and writes, over what is there.
    #[value(name = "rw", alias = "readwrite")]
    Mixed,
    /// Random reads and writes, over what is there.
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
    /// A job has failed, or a signal has come: stop.
    stop: AtomicBool,
    /// When a signal came.
    interrupted_at: OnceLock<Instant>,
    stalls: Stalls,
}

impl Progress {
    fn interrupt(&self) {
        self.interrupted_at.get_or_init(Instant::now);
        self.stop.store(true, Ordering::Relaxed);
    }

    /// When a signal came, once I/O in progress has had its time to end.
    fn given_up(&self) -> Option<Instant> {
        let at = self.interrupted_at.get().copied();
        at.filter(|at| at.elapsed() >= LAST_IO)
    }
}

impl Bench {
    pub(crate) fn run(&self) -> Result<()> {
        self.check()?;
        let interrupts = Interrupts::take()?;
        let (connect, replay) = (self.connect.clone(), self.replay.clone());
        let options = interrupts.unless_one_comes(move || Ok(replay.apply(connect.options()?)))?;
        let plan = self.plan(options);
        let progress = Arc::new(Progress::default());
        let jobs = self.start_jobs(&plan, &progress, &interrupts)?;
        let shown = self.progress_bar().map(output::Progress::show);
        let bar = shown.as_ref().map(output::Progress::bar);
        let (results, interrupted) = self.watch(jobs, &progress, &interrupts, bar)?;
        drop(shown);
        match interrupted {
            None => interrupts.leave_to_the_kernel()?,
            Some(came) => interrupts.end_the_process_soon(came)?,
        }
        let has_measured = |result: &JobResult| result.read.ios + result.write.ios > 0;
        let ends_by_size = interrupted.is_none() && self.runtime.is_none();
        if ends_by_size && !self.ramp_time.is_zero() && !results.iter().any(has_measured) {
            bail!(
                "nothing was measured: all of --size was done before --ramp-time ({:?}) was over; expected a shorter \
                 --ramp-time, a larger --size, or a --runtime",
                self.ramp_time
            );
        }
        report::print(self, &plan, &results, interrupted)?;
        let wrong: u64 = results.iter().map(|r| r.verify.wrong).sum();
        if wrong > 0 {
            let first = results.iter().find_map(|r| r.verify.first.clone());
            let what = match plan.reads_percent {
                // A run that only reads does not know whether they were ever written.
                100 => "that do not prove themselves",
                _ => "with other bytes than were written",
            };
            bail!(
                "{} {what}: {}",
                Count(wrong, "block"),
                first.unwrap_or_default()
            );
        }
        interrupted.map_or(Ok(()), |interrupted| Err(interrupted.into()))
    }

    /// What can be told to be wrong before a target is asked.
    fn check(&self) -> Result<()> {
        let entries_min = self.iodepth + 1;
        if let Some(entries) = self
            .connect
            .queue_size
            .filter(|entries| *entries < entries_min)
        {
            bail!(
                "--queue-size is {entries}, expected at least {entries_min} for --iodepth {}: a queue holds one \
                 command less than it has entries",
                self.iodepth
            );
        }
        let rw = self.rw.name();
        if self.rwmixread.is_some() && !matches!(self.rw, Workload::Mixed | Workload::Randrw) {
            return Err(wrong(format!(
                "--rwmixread has no effect on --rw {rw}, expected --rw rw or randrw; leave it out"
            )));
        }
        if self.replay.is_given() && self.rw.reads(RWMIXREAD_PERCENT) == 100 {
            return Err(wrong(format!(
                "--replay-writes has no effect on --rw {rw}, which writes nothing; leave it out"
            )));
        }
        let reads = self.rw.reads(self.rwmixread.unwrap_or(RWMIXREAD_PERCENT));
        if self.share.shared && reads == 100 {
            return Err(wrong(format!(
                "--shared is for workloads that write, and --rw {rw} only reads; leave it out"
            )));
        }
        if self.force && reads == 100 {
            return Err(wrong(format!(
                "--force is for workloads that write, and --rw {rw} only reads; leave it out"
            )));
        }
        let allowed = sched_getaffinity(Pid::from_raw(0)).context("sched_getaffinity")?;
        let is_allowed = |core: usize| allowed.is_set(core) == Ok(true);
        if let Some(core) = self.cpus_allowed.iter().find(|core| !is_allowed(**core)) {
            let cores: Vec<_> = (0..CpuSet::count())
                .filter(|core| is_allowed(*core))
                .map(|core| core.to_string())
                .collect();
            bail!(
                "--cpus-allowed has core {core}, expected cores this process may run on: {}",
                cores.join(",")
            );
        }
        Ok(())
    }

    fn plan(&self, mut options: Options) -> Plan {
        // The queue must hold what is asked, and the memory too.
        options.queue_size = options.queue_size.max(self.iodepth + 1);
        let mut plan = Plan {
            options,
            nsid: self.namespace_id,
            random: self.rw.is_random(),
            reads_percent: self.rw.reads(self.rwmixread.unwrap_or(RWMIXREAD_PERCENT)),
            bs: self.bs,
            iodepth: self.iodepth,
            jobs: self.numjobs,
            runtime: self.runtime,
            ramp_time: self.ramp_time,
            offset: self.offset,
            size: self.size,
            verify: self.verify.is_some(),
            cores: self.cpus_allowed.clone(),
            seed: self.randseed,
            transport: SharedTransport::default(),
            beforehand: None,
        };
        if plan.reads_percent < 100 {
            plan.beforehand = Some(Beforehand::new(self.share, self.force));
        }
        plan.fit_memory();
        plan
    }

    /// Connects every job, then lets them start together.
    fn start_jobs(
        &self,
        plan: &Plan,
        progress: &Arc<Progress>,
        interrupts: &Interrupts,
    ) -> Result<Vec<thread::JoinHandle<Result<JobResult>>>> {
        let (ready, readies) = mpsc::channel();
        let mut threads = Vec::new();
        let mut starts = Vec::new();
        let jobs = self.numjobs;
        for number in 0..jobs {
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
                    })
                    .map_err(|error| {
                        let needed = HOST_THREADS + u64::from(jobs);
                        anyhow!(
                            "starting the thread of job {number} of --numjobs {jobs}, which need one each: {error}; {}",
                            no_thread(&Machine::here(), needed)
                        )
                    })?,
            );
        }
        drop(ready);
        let queues = plan.options.nr_io_queues;
        let connected = interrupts.unless_one_comes(move || {
            let mut connected = readies.iter().take(usize::from(jobs));
            // Dropping the starts ends the other jobs.
            match connected.find_map(Result::err) {
                Some(error) if error.contains("Too many open files") => {
                    bail!("{error}; {}", descriptors(jobs, queues))
                }
                Some(error) => bail!("{error}"),
                None => Ok(()),
            }
        });
        if let (Err(_), Some(beforehand)) = (&connected, &plan.beforehand) {
            beforehand.give_up();
        }
        connected?;
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

    /// Shows progress until every job has ended, or a signal has come and the jobs had their time
    /// to end: one whose I/O does not end then is left out.
    fn watch(
        &self,
        mut jobs: Vec<thread::JoinHandle<Result<JobResult>>>,
        progress: &Progress,
        interrupts: &Interrupts,
        bar: Option<&ProgressBar>,
    ) -> Result<(Vec<JobResult>, Option<Interrupted>)> {
        let (mut ios_before, mut bytes_before, mut before) = (0, 0, Instant::now());
        let mut interrupted = None;
        while jobs.iter().any(|job| !job.is_finished()) {
            if let Some(signal) = interrupts.wait(LOOK)? {
                interrupted.get_or_insert(signal);
                progress.interrupt();
            }
            let at = progress.interrupted_at.get();
            if at.is_some_and(|at| at.elapsed() >= PATIENCE) {
                jobs.retain(thread::JoinHandle::is_finished);
                break;
            }
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
        let results: Result<Vec<_>> = jobs
            .into_iter()
            .map(|job| {
                job.join()
                    .unwrap_or_else(|_| Err(anyhow!("a job has panicked")))
            })
            .collect();
        Ok((results?, interrupted))
    }
}

/// What jobs take of the limit of open files, with a few more: 6 of the process, and of each job 7
/// and one for each of its I/O queues.
fn descriptors(jobs: u16, queues: u16) -> String {
    let needed = 8 + u64::from(jobs) * (7 + u64::from(queues));
    let limit = getrlimit(Resource::RLIMIT_NOFILE);
    let limit = limit.map_or_else(|_| "not known".to_owned(), |(soft, _)| soft.to_string());
    format!(
        "for {} with {} each, some {needed} descriptors are needed, and the limit is {limit}: raise it, or give \
         fewer --numjobs or --nr-io-queues",
        Count(jobs.into(), "job"),
        Count(queues.into(), "I/O queue")
    )
}
