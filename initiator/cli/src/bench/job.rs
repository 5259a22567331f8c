//! One job: a thread with an association of its own.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use capstan_initiator::{Completion, DirectQueue, Io, NamespaceInfo, Op, Options, Wire};
use capstan_memory::Buffer;
use capstan_reactor::Clock;
use hdrhistogram::Histogram;
use nix::sys::resource::{Usage, UsageWho, getrusage};

use super::super::taken::SharedTransport;
use super::super::warned::of_queue;
use super::beforehand::{Beforehand, LOOK_BYTES, tell_lowered};
use super::pattern::{Pattern, Random};
use super::{LAST_IO, LOOK, Progress, stall, verify};

/// Longest latency a histogram holds: an hour. Longer ones are counted as that.
const LATENCY_MAX_NS: u64 = 3_600_000_000_000;
/// Significant digits of a latency.
const LATENCY_DIGITS: u8 = 3;
/// I/Os between two updates of what the main thread shows.
const PROGRESS_IOS: u64 = 64;
/// Most blocks whose state is kept for `--verify`.
const VERIFY_BLOCKS_MAX: u64 = 1 << 28;

/// What every job does.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) options: Options,
    /// Of all jobs, where it is to be found.
    pub(super) transport: SharedTransport,
    pub(super) nsid: u32,
    pub(super) random: bool,
    pub(super) reads_percent: u8,
    pub(super) bs: u32,
    pub(super) iodepth: u16,
    pub(super) jobs: u16,
    pub(super) runtime: Option<Duration>,
    pub(super) ramp_time: Duration,
    pub(super) offset: u64,
    pub(super) size: Option<u64>,
    pub(super) verify: bool,
    pub(super) cores: Vec<usize>,
    pub(super) seed: u64,
    /// Of a workload that writes.
    pub(super) beforehand: Option<Beforehand>,
}

impl Plan {
    /// Gives the association the memory that the I/Os in progress need. A lease is a power of two
    /// of pages.
    pub(super) fn fit_memory(&mut self) {
        let lease_bytes = (self.bs as usize).next_power_of_two().max(4096);
        let look_bytes = self.beforehand.as_ref().map_or(0, |_| LOOK_BYTES as usize);
        self.options.data_memory_bytes =
            (lease_bytes * (usize::from(self.iodepth) + 1)).max(look_bytes);
    }
}

/// I/Os of one direction.
#[derive(Debug)]
pub(super) struct Side {
    pub(super) ios: u64,
    pub(super) bytes: u64,
    pub(super) latency_ns: Histogram<u64>,
}

impl Side {
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            ios: 0,
            bytes: 0,
            latency_ns: Histogram::new_with_bounds(1, LATENCY_MAX_NS, LATENCY_DIGITS)?,
        })
    }

    pub(super) fn add(&mut self, other: &Self) -> Result<()> {
        self.ios += other.ios;
        self.bytes += other.bytes;
        self.latency_ns.add(&other.latency_ns)?;
        Ok(())
    }
}

/// Outcome of the checks.
#[derive(Clone, Debug, Default)]
pub(super) struct Checked {
    pub(super) blocks: u64,
    pub(super) wrong: u64,
    /// The first wrong one.
    pub(super) first: Option<String>,
}

/// What a job has measured.
#[derive(Debug)]
pub(super) struct JobResult {
    pub(super) read: Side,
    pub(super) write: Side,
    pub(super) elapsed: Duration,
    pub(super) user: Duration,
    pub(super) system: Duration,
    pub(super) verify: Checked,
    pub(super) losses: u64,
    /// What carried its queue.
    pub(super) wire: Option<Wire>,
}

/// An I/O in progress.
struct Place {
    buffer: Option<Buffer>,
    block: u64,
    is_read: bool,
    start: Instant,
    /// State of the block when it was submitted, with `--verify`.
    state: u8,
}

/// Being written.
const BUSY: u8 = 1 << 7;

/// A connected job.
pub(super) struct Job {
    plan: Plan,
    queue: DirectQueue,
    progress: Arc<Progress>,
    lba_bytes: u32,
    base: u64,
    blocks: u64,
    pattern: Pattern,
    random: Random,
    places: Vec<Place>,
    free: Vec<usize>,
    /// Per block, how often it was written (7 bits), and whether it is being written.
    written: Vec<u8>,
    scratch: Vec<u8>,
    checked: Checked,
    read: Side,
    write: Side,
    measuring: bool,
    /// When that began.
    usage_before: Option<Usage>,
    /// When to look next whether a signal has come.
    look_us: u64,
}

/// What a wait for I/O ends with.
enum Next {
    /// The next one that is done.
    Done(Completion),
    /// None is in progress.
    Idle,
    /// A signal came at that time, and what was in progress then does not end.
    GivenUp(Instant),
}

/// A time from now on, of the clock that I/O is waited for by.
fn deadline_us(from_now: Duration) -> u64 {
    let from_now_us = u64::try_from(from_now.as_micros()).unwrap_or(u64::MAX);
    Clock.now_us().saturating_add(from_now_us)
}

/// The part of the namespace that job `number` has: its first byte, and its blocks of `--bs`.
fn part(plan: &Plan, number: u16, namespace: &NamespaceInfo) -> Result<(u64, u64)> {
    let bs = u64::from(plan.bs);
    if !plan.bs.is_multiple_of(namespace.lba_bytes) {
        bail!(
            "--bs is {}, expected a multiple of the LBA size ({})",
            plan.bs,
            namespace.lba_bytes
        );
    }
    if !plan.offset.is_multiple_of(u64::from(namespace.lba_bytes)) {
        bail!(
            "--offset is {}, expected a multiple of the LBA size ({})",
            plan.offset,
            namespace.lba_bytes
        );
    }
    if plan.reads_percent < 100 && namespace.read_only {
        bail!(
            "namespace {} is write protected; --rw {} reads it",
            plan.nsid,
            if plan.random { "randread" } else { "read" }
        );
    }
    let namespace_bytes = namespace.size_bytes();
    let available = namespace_bytes.saturating_sub(plan.offset);
    if available < bs {
        bail!(
            "--offset is {} and --bs is {bs}, expected at most {namespace_bytes} together: the \
             bytes of namespace {}",
            plan.offset,
            plan.nsid
        );
    }
    let size = plan.size.unwrap_or(available);
    if size > available || size < bs {
        bail!(
            "--size is {size}, expected {bs} (--bs) to {available} (what the namespace has from \
             --offset on)"
        );
    }
    if plan.size.is_some_and(|size| !size.is_multiple_of(bs)) {
        bail!(
            "--size is {size}, expected a multiple of --bs ({bs}): {} or {} here",
            size - size % bs,
            size - size % bs + bs
        );
    }
    let mut blocks = size / bs;
    let mut base = plan.offset;
    if plan.verify && plan.jobs > 1 {
        // Jobs that check what they write must not write over each other.
        blocks /= u64::from(plan.jobs);
        base += u64::from(number) * blocks * bs;
        if blocks == 0 {
            bail!(
                "--size is {size}, expected at least {} with --verify: one I/O of --bs {bs} for each of {} jobs",
                bs * u64::from(plan.jobs),
                plan.jobs
            );
        }
    }
    if plan.verify && blocks > VERIFY_BLOCKS_MAX {
        bail!(
            "{blocks} blocks of --bs {bs} to --verify, expected at most {VERIFY_BLOCKS_MAX}; give --size {} or less",
            VERIFY_BLOCKS_MAX * bs
        );
    }
    Ok((base, blocks))
}

impl Job {
    /// Connects job `number`.
    pub(super) fn connect(plan: &Plan, number: u16, progress: Arc<Progress>) -> Result<Self> {
        if let Some(core) = plan
            .cores
            .get(usize::from(number) % plan.cores.len().max(1))
        {
            capstan_reactor::pin_to_core(*core)
                .with_context(|| format!("--cpus-allowed: core {core}"))?;
        }
        let mut queue = plan.transport.connect(&plan.options)?;
        let namespace = queue.namespace(plan.nsid)?.clone();
        if let Some(beforehand) = &plan.beforehand {
            beforehand.claim(&plan.options, &namespace)?;
        }
        let (base, blocks) = part(plan, number, &namespace)?;
        if let Some(beforehand) = &plan.beforehand {
            beforehand.look(&mut queue, &namespace)?;
        }
        let seed = plan.seed ^ u64::from(number) << 48;
        let pattern = match (plan.random, plan.verify || plan.runtime.is_none()) {
            (false, _) => Pattern::sequential(blocks),
            (true, true) => Pattern::permuted(blocks, seed),
            (true, false) => Pattern::random(blocks, seed),
        };
        if number == 0 {
            tell_lowered(plan.iodepth, queue.controller());
        }
        let mut job = Self {
            plan: plan.clone(),
            queue,
            progress,
            lba_bytes: namespace.lba_bytes,
            base,
            blocks,
            pattern,
            random: Random::new(seed.rotate_left(17)),
            places: Vec::new(),
            free: Vec::new(),
            written: Vec::new(),
            scratch: vec![0; plan.bs as usize],
            checked: Checked::default(),
            read: Side::new()?,
            write: Side::new()?,
            measuring: false,
            usage_before: None,
            look_us: 0,
        };
        job.prepare()?;
        Ok(job)
    }

    fn prepare(&mut self) -> Result<()> {
        if self.plan.verify {
            self.written = vec![0; usize::try_from(self.blocks)?];
        }
        for at in 0..usize::from(self.plan.iodepth) {
            let mut buffer = self
                .queue
                .take(self.plan.bs)
                .ok_or_else(|| anyhow!("no data memory is left for I/O {at}"))?;
            // Something that does not compress, for targets that look at it.
            verify::fill(&mut self.scratch, at as u64, self.plan.seed);
            buffer.copy_from(0, &self.scratch);
            self.places.push(Place {
                buffer: Some(buffer),
                block: 0,
                is_read: false,
                start: Instant::now(),
                state: 0,
            });
            self.free.push(at);
        }
        Ok(())
    }

    /// Ends the association in order: the target's log does not take it for a loss. After a signal
    /// only as long as there is time.
    pub(super) fn close(self) {
        let Self {
            queue,
            places,
            progress,
            ..
        } = self;
        drop(places);
        let at = progress.interrupted_at.get();
        let left = at.map(|at| (LAST_IO + LOOK * 4).saturating_sub(at.elapsed()));
        queue.close_by(left.map(deadline_us));
    }

    /// Runs the workload from `start` on.
    pub(super) fn run(&mut self, start: Instant) -> Result<JobResult> {
        let result = self.run_from(start);
        let Plan { options, nsid, .. } = &self.plan;
        result.map_err(|error| of_queue(error, &mut self.queue, options, *nsid))
    }

    fn run_from(&mut self, start: Instant) -> Result<JobResult> {
        let measure_from = start + self.plan.ramp_time;
        let end = self.plan.runtime.map(|runtime| measure_from + runtime);
        // Without a run time every block is visited once.
        let limit = if end.is_none() { self.blocks } else { u64::MAX };
        self.usage_before = None;
        self.measuring = false;
        if self.plan.ramp_time.is_zero() {
            self.measure()?;
        }
        let finished = self.workload(limit, measure_from, end)?;
        let elapsed = finished.saturating_duration_since(measure_from);
        let usage = getrusage(UsageWho::RUSAGE_THREAD)?;
        // Ended before anything was measured, it has spent nothing on that.
        let usage_before = self.usage_before.unwrap_or(usage);
        let spent = |now: nix::sys::time::TimeVal, before: nix::sys::time::TimeVal| {
            let us =
                (now.tv_sec() - before.tv_sec()) * 1_000_000 + now.tv_usec() - before.tv_usec();
            Duration::from_micros(us.unsigned_abs())
        };
        if self.plan.verify && self.plan.reads_percent < 100 {
            self.read_back()?;
        }
        Ok(JobResult {
            read: std::mem::replace(&mut self.read, Side::new()?),
            write: std::mem::replace(&mut self.write, Side::new()?),
            elapsed,
            user: spent(usage.user_time(), usage_before.user_time()),
            system: spent(usage.system_time(), usage_before.system_time()),
            verify: self.checked.clone(),
            losses: self.queue.counters().losses,
            wire: self.queue.wire().cloned(),
        })
    }

    /// What is done from now on counts: I/Os, and time of the processor.
    fn measure(&mut self) -> Result<()> {
        self.usage_before = Some(getrusage(UsageWho::RUSAGE_THREAD)?);
        self.measuring = true;
        Ok(())
    }

    /// Keeps the queue full until `limit` I/Os are done or `end` has come.
    fn workload(
        &mut self,
        limit: u64,
        measure_from: Instant,
        end: Option<Instant>,
    ) -> Result<Instant> {
        let mut left = limit;
        let mut now = Instant::now();
        let (mut ios, mut told) = (0_u64, 0_u64);
        loop {
            let over = end.is_some_and(|end| now >= end);
            while !over
                && left > 0
                && !self.progress.stop.load(Ordering::Relaxed)
                && let Some(at) = self.free.pop()
            {
                left -= 1;
                self.submit(at, now)?;
            }
            let completion = match self.next_completion() {
                Next::Done(completion) => completion,
                Next::Idle => break,
                Next::GivenUp(at) => return Ok(at),
            };
            now = Instant::now();
            if !self.measuring && now >= measure_from {
                self.measure()?;
            }
            self.completed(completion, now)?;
            ios += 1;
            if ios - told == PROGRESS_IOS {
                let count = ios - told;
                told = ios;
                self.progress.ios.fetch_add(count, Ordering::Relaxed);
                let bytes = count * u64::from(self.plan.bs);
                self.progress.bytes.fetch_add(bytes, Ordering::Relaxed);
            }
        }
        Ok(now)
    }

    /// Waits for the next I/O to end, with a look now and then at whether it is still waited for.
    fn next_completion(&mut self) -> Next {
        let (queue, progress) = (&mut self.queue, &*self.progress);
        let mut wait = None;
        loop {
            if let Some(completion) = queue.wait(Some(self.look_us)) {
                return Next::Done(completion);
            }
            if queue.in_progress() == 0 {
                return Next::Idle;
            }
            if let Some(at) = progress.given_up() {
                return Next::GivenUp(at);
            }
            let wait = wait.get_or_insert_with(|| stall::Wait::new(&progress.stalls));
            wait.goes_on(queue, &self.plan.options);
            self.look_us = deadline_us(LOOK);
        }
    }

    fn submit(&mut self, at: usize, now: Instant) -> Result<()> {
        let is_read = match self.plan.reads_percent {
            100 => true,
            0 => false,
            percent => self.random.below(100) < u64::from(percent),
        };
        let mut block = self.pattern.next();
        let mut state = 0;
        if self.plan.verify {
            // A block that is being written is left to its writer.
            while self.state(block) & BUSY != 0 {
                block = self.pattern.next();
            }
            state = self.state(block);
            if !is_read {
                state = (state + 1) & !BUSY;
                self.set_state(block, state | BUSY);
                let offset = self.base + block * u64::from(self.plan.bs);
                verify::fill(&mut self.scratch, offset, self.plan.seed ^ u64::from(state));
                if let Some(buffer) = self.places.get_mut(at).and_then(|p| p.buffer.as_mut()) {
                    buffer.copy_from(0, &self.scratch);
                }
            }
        }
        self.send(at, block, is_read, state, now)
    }

    fn send(
        &mut self,
        at: usize,
        block: u64,
        is_read: bool,
        state: u8,
        now: Instant,
    ) -> Result<()> {
        let place = self.places.get_mut(at).context("no such place")?;
        place.block = block;
        place.is_read = is_read;
        place.start = now;
        place.state = state;
        let buffer = place.buffer.take();
        let slba = (self.base + block * u64::from(self.plan.bs)) / u64::from(self.lba_bytes);
        let nlb = self.plan.bs / self.lba_bytes;
        let op = if is_read {
            Op::Read { slba, nlb }
        } else {
            Op::Write {
                slba,
                nlb,
                fua: false,
            }
        };
        let io = Io {
            nsid: self.plan.nsid,
            op,
        };
        self.queue
            .submit(at as u64, io, buffer)
            .map_err(|refused| refused.reason)?;
        Ok(())
    }

    fn completed(&mut self, completion: Completion, now: Instant) -> Result<()> {
        let at = usize::try_from(completion.token)?;
        if let Err(error) = completion.result {
            self.progress.stop.store(true, Ordering::Relaxed);
            return Err(error.into());
        }
        let place = self.places.get_mut(at).context("no such place")?;
        place.buffer = completion.buffer;
        let (block, is_read, state) = (place.block, place.is_read, place.state);
        if self.measuring {
            let latency = now.saturating_duration_since(place.start).as_nanos();
            let side = if is_read {
                &mut self.read
            } else {
                &mut self.write
            };
            side.ios += 1;
            side.bytes += u64::from(self.plan.bs);
            side.latency_ns
                .saturating_record(u64::try_from(latency).unwrap_or(u64::MAX).max(1));
        }
        if self.plan.verify {
            if !is_read {
                self.set_state(block, state);
            } else if self.plan.reads_percent == 100 || (state != 0 && self.state(block) == state) {
                self.check(at, block);
            }
        }
        self.free.push(at);
        Ok(())
    }

    /// Reads everything that was written and checks it.
    fn read_back(&mut self) -> Result<()> {
        self.measuring = false;
        let mut next = 0;
        loop {
            while next < self.blocks
                && !self.progress.stop.load(Ordering::Relaxed)
                && let Some(at) = self.free.pop()
            {
                while next < self.blocks && self.state(next) == 0 {
                    next += 1;
                }
                if next == self.blocks {
                    self.free.push(at);
                    break;
                }
                let state = self.state(next);
                self.send(at, next, true, state, Instant::now())?;
                next += 1;
            }
            let Next::Done(completion) = self.next_completion() else {
                return Ok(());
            };
            self.completed(completion, Instant::now())?;
        }
    }

    fn check(&mut self, at: usize, block: u64) {
        let offset = self.base + block * u64::from(self.plan.bs);
        let Some(buffer) = self.places.get(at).and_then(|p| p.buffer.as_ref()) else {
            return;
        };
        buffer.copy_to(0, &mut self.scratch);
        self.checked.blocks += 1;
        if let Err(problem) = verify::check(&self.scratch, offset) {
            self.checked.wrong += 1;
            self.checked.first.get_or_insert(problem);
        }
    }

    fn state(&self, block: u64) -> u8 {
        let at = usize::try_from(block).unwrap_or(usize::MAX);
        self.written.get(at).copied().unwrap_or(0)
    }

    fn set_state(&mut self, block: u64, state: u8) {
        let at = usize::try_from(block).unwrap_or(usize::MAX);
        // A count of 128 wraps to 1: zero means never written.
        let state = if state & !BUSY == 0 { state | 1 } else { state };
        if let Some(entry) = self.written.get_mut(at) {
            *entry = state;
        }
    }
}
