//! The ring, its slots, and the order in which operations wait.
#![expect(unsafe_code, reason = "submission queue entries carry raw addresses")]

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use capstan_memory::{Buffer, Pages, Pool, Slab};
use io_uring::IoUring;
use io_uring::types::{CancelBuilder, SubmitArgs, Timespec};
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::EngineError;
use super::command::{Command, Next, Progress};
use super::engine::EngineConfig;
use super::entry::entry;
use super::fixed::{FixedBuffers, FixedTable};
use super::request::{BOUNCE_MAX_BYTES, Request};
use super::setup::{self, Mode};
use super::syncs::Syncs;
use crate::io::Completion;

/// Zeroes that are written where nothing better empties a range: large enough to save system calls,
/// small enough to stay in a cache.
const ZEROES_BYTES: u32 = 128 << 10;
/// Completions taken from the ring at a time.
const BATCH: usize = 32;

/// The io_uring and everything that is in flight through it.
pub(crate) struct Ring {
    uring: IoUring,
    /// Signalled by completions while armed. Not the ring's own descriptor: with deferred
    /// completions, poll(2) on that is not woken by what a kernel worker completes (seen on Linux
    /// 6.18: a FUA write that ended unnoticed).
    wake: EventFd,
    armed: bool,
    /// It has not been ruled out that it was signalled.
    may_be_signalled: bool,
    mode: Mode,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Operations without a slot.
    waiting: VecDeque<Request>,
    waiting_max: usize,
    /// Slots whose next entry found the submission queue full.
    unsent: VecDeque<u32>,
    /// Slots that wait for a bounce buffer.
    unbounced: VecDeque<u32>,
    fixed: FixedTable,
    free_files: Vec<u32>,
    bounce: Pool,
    zeroes: Buffer,
    /// Completions that belonged to nothing in flight: none, unless there is a bug.
    pub(crate) stale: u64,
    draining: bool,
}

/// A slot for one operation in the kernel.
#[derive(Default)]
struct Slot {
    /// Counts entries, so that a completion of an earlier one cannot be taken for that of a later
    /// one.
    generation: u32,
    request: Option<Request>,
}

impl Ring {
    /// A ring with its buffers and tables, in the best mode from `best` on that the kernel has.
    pub(crate) fn new(config: &EngineConfig, best: Mode) -> Result<Self, EngineError> {
        let bounce_bytes = config.bounce_bytes.max(BOUNCE_MAX_BYTES);
        let bounce = Pool::new(
            bounce_bytes as usize + ZEROES_BYTES as usize,
            Pages::Ordinary,
        )?;
        let no_memory = || EngineError::Setup {
            error: io::Error::from_raw_os_error(libc::ENOMEM),
            remedy: "the bounce slab is too small; this is a bug",
        };
        let zeroes = bounce.take(ZEROES_BYTES).ok_or_else(no_memory)?;
        let (mut uring, mode) = setup::ring(config.entries, config.in_flight_max, best)?;
        let in_flight_max = config.in_flight_max.max(1);
        let wake = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
            .map_err(io::Error::from)
            .and_then(|wake| {
                uring
                    .submitter()
                    .register_eventfd(wake.as_fd().as_raw_fd())?;
                Ok(wake)
            })
            .map_err(|source| EngineError::Wake { source })?;
        uring.completion().disable_eventfd();
        let mut fixed = FixedTable::new(&uring);
        // Good to have, but not worth a log line: those of the caller's slabs say everything.
        fixed.register_if_free(bounce.slab());
        let files_max = config.files_max;
        let has_files = files_max > 0 && uring.submitter().register_files_sparse(files_max).is_ok();
        Ok(Self {
            uring,
            wake,
            armed: false,
            may_be_signalled: false,
            mode,
            slots: (0..in_flight_max).map(|_| Slot::default()).collect(),
            free: (0..in_flight_max).rev().collect(),
            waiting: VecDeque::with_capacity(in_flight_max as usize),
            waiting_max: config.waiting_max as usize,
            unsent: VecDeque::with_capacity(in_flight_max as usize),
            unbounced: VecDeque::with_capacity(in_flight_max as usize),
            fixed,
            free_files: if has_files {
                (0..files_max).rev().collect()
            } else {
                Vec::new()
            },
            bounce,
            zeroes,
            stale: 0,
            draining: false,
        })
    }

    pub(crate) fn register_slab(&mut self, slab: &Arc<Slab>) -> FixedBuffers {
        self.fixed.register(slab)
    }

    /// The eventfd.
    pub(crate) fn fd(&self) -> RawFd {
        self.wake.as_fd().as_raw_fd()
    }

    /// Operations submitted and not completed.
    pub(crate) fn in_flight(&self) -> usize {
        self.used() + self.waiting.len()
    }

    pub(crate) fn used(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether the kernel has no more to do than what the next [`Ring::submit_batch`] brings it.
    pub(crate) fn is_short_of_work(&mut self) -> bool {
        let queued = self.uring.submission().len();
        queued > 0 && queued * 2 >= self.used()
    }

    /// Takes a request, or returns it when too many wait already.
    pub(crate) fn submit(&mut self, request: Request) -> Option<Request> {
        // Behind those that wait already.
        if let Some(slot) = self.free.pop_if(|_| self.waiting.is_empty()) {
            self.start(slot, request);
        } else if self.waiting.len() < self.waiting_max {
            self.waiting.push_back(request);
        } else {
            return Some(request);
        }
        None
    }

    fn start(&mut self, slot: u32, request: Request) {
        self.slots[slot as usize].request = Some(request);
        self.queue(slot);
    }

    /// Queues the slot's next entry behind everything that is queued.
    fn queue(&mut self, slot: u32) {
        if !self.unsent.is_empty() {
            self.unsent.push_back(slot);
            return;
        }
        match self.send(slot) {
            Sent::Queued | Sent::Waits => {}
            Sent::QueueFull => self.unsent.push_back(slot),
            Sent::NoBounce => self.unbounced.push_back(slot),
        }
    }

    /// Puts the slot's next entry into the submission queue.
    fn send(&mut self, slot: u32) -> Sent {
        let Slot {
            generation,
            request: Some(request),
        } = &mut self.slots[slot as usize]
        else {
            return Sent::Queued;
        };
        let command = loop {
            match request.next(&self.zeroes) {
                Next::Command(command) => break command,
                Next::Bounce(len_bytes) => match self.bounce.take(len_bytes) {
                    Some(buffer) => request.bounce(buffer),
                    None => return Sent::NoBounce,
                },
            }
        };
        let command = match command {
            Command::Fdatasync { .. } => {
                let syncs = &request.file().syncs;
                if !syncs.begin(slot) {
                    return Sent::Waits;
                }
                if syncs.is_shared() {
                    Command::WHOLE_FILE
                } else {
                    command
                }
            }
            other => other,
        };
        *generation = generation.wrapping_add(1);
        let user_data = u64::from(slot) | u64::from(*generation) << 32;
        let memory = command.memory();
        let place = memory.and_then(|(at, len)| self.fixed.place(&self.uring, at, len));
        let entry = entry(&command, request.file(), place).user_data(user_data);
        // SAFETY: the memory the entry names belongs to the request's buffer (its data or its
        // bounce buffer) or to `zeroes`. The slot owns the request until the completion of this
        // very entry arrives, `zeroes` lives as long as the ring, and both are leaked rather than
        // freed when the ring cannot be drained. The file is held by the request, too.
        match unsafe { self.uring.submission().push(&entry) } {
            Ok(()) => Sent::Queued,
            Err(_) => Sent::QueueFull,
        }
    }

    pub(crate) fn submit_batch(&mut self) -> Result<(), EngineError> {
        loop {
            // Not only behind what is submitted here: `poll` submits as well.
            self.resend();
            let queued = self.uring.submission().len();
            if queued == 0 {
                return Ok(());
            }
            match self.uring.submit() {
                Ok(_) => {}
                // The kernel is short of memory or wants completions reaped first; or a signal
                // came.
                Err(error)
                    if matches!(
                        error.raw_os_error(),
                        Some(libc::EAGAIN | libc::EBUSY | libc::EINTR)
                    ) =>
                {
                    return Ok(());
                }
                Err(source) => return Err(EngineError::Enter { source }),
            }
            if self.uring.submission().len() == queued {
                return Ok(());
            }
        }
    }

    /// Queues the entries that found the submission queue full.
    fn resend(&mut self) {
        while let Some(slot) = self.unsent.pop_front() {
            match self.send(slot) {
                Sent::Queued | Sent::Waits => {}
                Sent::QueueFull => return self.unsent.push_front(slot),
                Sent::NoBounce => self.unbounced.push_back(slot),
            }
        }
    }

    /// Lets completions signal the eventfd, and looks once more: `true` when one came before, or
    /// something is left to submit.
    pub(crate) fn arm(&mut self) -> bool {
        self.armed = true;
        self.may_be_signalled = true;
        self.uring.completion().enable_eventfd();
        // The kernel adds a completion, then reads the flag; the flag must be visible before the
        // look.
        fence(Ordering::SeqCst);
        self.ready()
    }

    /// Nothing had been signalled when the wait ended. What is signalled only now ends the next
    /// wait.
    pub(crate) fn stayed_silent(&mut self) {
        self.may_be_signalled = false;
    }

    fn disarm(&mut self) {
        self.armed = false;
        self.uring.completion().disable_eventfd();
        if self.may_be_signalled {
            // When there is nothing to read, nothing was signalled.
            let _ = self.wake.read();
        }
    }

    pub(crate) fn poll(&mut self, out: &mut Vec<Completion>) {
        if self.armed {
            self.disarm();
        }
        if self.used() == 0 {
            return;
        }
        if self.mode.has_taskrun_flag() && self.uring.submission().taskrun() {
            self.run_deferred();
        }
        loop {
            let mut batch = [const { MaybeUninit::uninit() }; BATCH];
            let ended = self.uring.completion().fill(&mut batch);
            let last = ended.len() < BATCH;
            for entry in ended {
                self.completed(entry.user_data(), entry.result(), out);
            }
            // Bounded: at most what is in flight, since nothing new is submitted here.
            if last {
                break;
            }
        }
        while let Some(slot) = self.waiting.front().and_then(|_| self.free.pop()) {
            if let Some(request) = self.waiting.pop_front() {
                self.start(slot, request);
            }
        }
    }

    /// Runs the deferred completions, and submits what is queued. What fails here fails in
    /// `submit_batch` again, where it is reported.
    pub(crate) fn run_deferred(&mut self) {
        let _ = self.uring.submit();
    }

    pub(crate) fn completed(&mut self, user_data: u64, answer: i32, out: &mut Vec<Completion>) {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the lower half is the slot"
        )]
        let (index, generation) = (user_data as u32, (user_data >> 32) as u32);
        let slot = self
            .slots
            .get(index as usize)
            .filter(|s| s.generation == generation);
        let Some(request) = slot.and_then(|slot| slot.request.as_ref()) else {
            self.stale += 1;
            tracing::warn!(user_data, answer, "a completion of nothing in flight");
            return;
        };
        let synced = request.syncs().then(|| Rc::clone(request.file()));
        self.answered(index, answer, out);
        if let Some(file) = synced {
            self.synced(&file.syncs, index, answer, out);
        }
    }

    /// Takes the kernel's result for what the request in the slot has asked for.
    fn answered(&mut self, index: u32, answer: i32, out: &mut Vec<Completion>) {
        let slot = &mut self.slots[index as usize];
        let Some(request) = slot.request.as_mut() else {
            return;
        };
        match request.advance(answer) {
            Progress::Again if !self.draining => self.queue(index),
            Progress::Again => self.release(index),
            Progress::Done(result) => {
                out.extend(slot.request.take().map(|request| request.complete(result)));
                self.release(index);
                self.wake_unbounced();
            }
        }
    }

    /// The sync of a slot has a result: so have those that it covers, and the next one may begin.
    fn synced(&mut self, syncs: &Syncs, index: u32, answer: i32, out: &mut Vec<Completion>) {
        let goes_on = |request: &Request| request.syncs();
        if self.slots[index as usize]
            .request
            .as_ref()
            .is_some_and(goes_on)
        {
            // It was interrupted, and is retried.
            return;
        }
        let (covered, next) = syncs.ended(index);
        for &slot in &covered {
            self.answered(slot, answer, out);
        }
        syncs.reuse(covered);
        if let Some(slot) = next {
            self.queue(slot);
        }
    }

    fn release(&mut self, slot: u32) {
        self.slots[slot as usize].request = None;
        self.free.push(slot);
    }

    /// Continues the first operation that waits for a bounce buffer, if there is one now.
    fn wake_unbounced(&mut self) {
        let Some(slot) = self.unbounced.pop_front() else {
            return;
        };
        match self.send(slot) {
            Sent::Queued | Sent::Waits => {}
            Sent::QueueFull => self.unsent.push_back(slot),
            Sent::NoBounce => self.unbounced.push_front(slot),
        }
    }

    /// Whether something has completed or is left to submit.
    fn ready(&mut self) -> bool {
        let queue = self.uring.submission();
        let queued = !queue.is_empty() || queue.taskrun();
        drop(queue);
        queued || !self.unsent.is_empty() || !self.uring.completion().is_empty()
    }

    pub(crate) fn take_file(&mut self, fd: RawFd) -> Option<u32> {
        let place = self.free_files.pop()?;
        match self.uring.submitter().register_files_update(place, &[fd]) {
            Ok(_) => Some(place),
            Err(error) => {
                tracing::debug!(%error, place, "a file goes without a fixed place");
                self.free_files.push(place);
                None
            }
        }
    }

    pub(crate) fn give_file(&mut self, place: u32) {
        match self.uring.submitter().register_files_update(place, &[-1]) {
            Ok(_) => self.free_files.push(place),
            // Only the table's entry is lost: the next file does without.
            Err(error) => tracing::warn!(%error, place, "cannot take a file back from the ring"),
        }
    }

    /// Unregisters files and memory, of which nothing is in flight. Closing the ring would do the
    /// same, but only later, when the kernel gets to it.
    pub(crate) fn close(&mut self) {
        self.fixed.clear(&self.uring);
        let _ = self.uring.submitter().unregister_files();
    }

    /// Slots whose sync waits for another one.
    fn waiting_syncs(&self) -> Vec<u32> {
        let requests = self.slots.iter().filter_map(|slot| slot.request.as_ref());
        requests
            .flat_map(|request| request.file().syncs.forget())
            .collect()
    }

    /// Cancels what can be cancelled and waits for the rest. `false`: the kernel still has some.
    pub(crate) fn drain(&mut self, limit: Duration) -> bool {
        self.draining = true;
        self.waiting.clear();
        // What the kernel has not seen is dropped.
        while let Some(slot) = self
            .unsent
            .pop_front()
            .or_else(|| self.unbounced.pop_front())
        {
            self.release(slot);
        }
        for slot in self.waiting_syncs() {
            self.release(slot);
        }
        let deadline = Instant::now() + limit;
        let mut ended = Vec::new();
        let _ = self.submit_batch();
        // This call fails when nothing can be cancelled, and on an old kernel: the wait below is
        // the same.
        let at_once = Some(Timespec::new().nsec(1));
        let _ = self
            .uring
            .submitter()
            .register_sync_cancel(at_once, CancelBuilder::any().all());
        loop {
            self.poll(&mut ended);
            ended.clear();
            if self.used() == 0 {
                return true;
            }
            if Instant::now() >= deadline {
                return false;
            }
            let tick = Timespec::new().nsec(50_000_000);
            let args = SubmitArgs::new().timespec(&tick);
            // Its errors are a time-out, or occur again until the deadline.
            let _ = self.uring.submitter().submit_with_args(1, &args);
        }
    }
}

/// What became of a slot's next entry.
enum Sent {
    Queued,
    /// It waits for the end of another sync of its file.
    Waits,
    QueueFull,
    NoBounce,
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?}, {} in the kernel, {} waiting, {} stale",
            self.mode,
            self.used(),
            self.waiting.len(),
            self.stale
        )
    }
}
