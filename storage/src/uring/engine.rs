//! The ring, its slots, and the order operations wait in.
#![expect(unsafe_code, reason = "submission queue entries carry raw addresses")]

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::mem::{ManuallyDrop, MaybeUninit};
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
use super::entry::entry;
use super::fixed::{FixedBuffers, FixedTable};
use super::request::{BOUNCE_MAX_BYTES, Next, OpenFile, Progress, Refused, Request};
use super::setup::{self, Mode};
use crate::file::FileStore;
use crate::io::Completion;

/// Zeroes that are written where nothing better empties a range: large enough to spare system
/// calls, small enough to stay in a cache.
const ZEROES_BYTES: u32 = 128 << 10;
/// Completions taken from the ring at a time.
const BATCH: usize = 32;

/// Sizes of an [`Engine`].
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Submission queue entries: operations one system call hands over. 1 to 32768.
    pub entries: u32,
    /// Operations in the kernel at once; more wait in the engine, in order.
    pub in_flight_max: u32,
    /// Files in the ring's table; more work without it.
    pub files_max: u32,
    /// Memory through which data goes that is not aligned as `O_DIRECT` needs it; operations that
    /// find none wait in order.
    pub bounce_bytes: u32,
    /// How long dropping the engine waits for operations the kernel still has. After that their
    /// memory is leaked, since the kernel may write it at any time.
    pub drain_ms: u64,
}

impl Default for EngineConfig {
    /// 128 entries are the depth of one queue, and 1024 in flight keep any disk busy. 1 MiB
    /// bounces 128 writes of 8 KiB that came in a capsule.
    fn default() -> Self {
        Self {
            entries: 128,
            in_flight_max: 1024,
            files_max: 256,
            bounce_bytes: 1 << 20,
            drain_ms: 30_000,
        }
    }
}

/// The io_uring of one reactor, shared by its volumes. It belongs to the thread that made it.
pub struct Engine {
    core: ManuallyDrop<RefCell<Core>>,
    /// Places in the table of fixed files whose file is gone.
    retired: Rc<RefCell<Vec<u32>>>,
    drain: Duration,
}

struct Core {
    ring: IoUring,
    /// Signalled by completions while armed. Not the ring's own descriptor: with deferred
    /// completions, poll(2) on that is not woken by what a kernel worker completes (seen on Linux
    /// 6.18: a FUA write that ended unnoticed).
    wake: EventFd,
    armed: bool,
    mode: Mode,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Operations without a slot.
    waiting: VecDeque<Request>,
    /// Slots whose next entry found the submission queue full.
    unsent: VecDeque<u32>,
    /// Slots that wait for a bounce buffer.
    unbounced: VecDeque<u32>,
    fixed: FixedTable,
    free_files: Vec<u32>,
    bounce: Pool,
    zeroes: Buffer,
    /// Completions that belonged to nothing in flight: none, unless there is a bug.
    stale: u64,
    draining: bool,
}

/// A place for one operation in the kernel.
#[derive(Default)]
struct Slot {
    /// Counts entries, so that a completion of an earlier one cannot be taken for this one's.
    generation: u32,
    request: Option<Request>,
}

impl Engine {
    /// Makes the ring. To be called on the thread that will use it.
    ///
    /// # Errors
    /// [`EngineError::Setup`] when the kernel refuses, with what to do about it;
    /// [`EngineError::Memory`] when the bounce buffers cannot be mapped.
    pub fn new(config: &EngineConfig) -> Result<Rc<Self>, EngineError> {
        Self::with_mode(config, Mode::DeferredNoArray)
    }

    /// As [`Engine::new`], pretending that the kernel knows nothing better than `best`.
    pub(crate) fn with_mode(config: &EngineConfig, best: Mode) -> Result<Rc<Self>, EngineError> {
        let bounce_bytes = config.bounce_bytes.max(BOUNCE_MAX_BYTES);
        let slab = Slab::new(
            bounce_bytes as usize + ZEROES_BYTES as usize,
            Pages::Ordinary,
        )?;
        let bounce = Pool::new(Arc::clone(&slab));
        let no_memory = || EngineError::Setup {
            source: io::Error::from_raw_os_error(libc::ENOMEM),
            remedy: "the bounce slab is too small; this is a bug",
        };
        let zeroes = bounce.take(ZEROES_BYTES).ok_or_else(no_memory)?;
        let (mut ring, mode) = setup::ring(config.entries, config.in_flight_max, best)?;
        let in_flight_max = config.in_flight_max.max(1);
        let wake = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
            .map_err(io::Error::from)
            .and_then(|wake| {
                ring.submitter()
                    .register_eventfd(wake.as_fd().as_raw_fd())?;
                Ok(wake)
            })
            .map_err(|source| EngineError::Wake { source })?;
        ring.completion().disable_eventfd();
        let mut fixed = FixedTable::new(&ring);
        // Worth having, not worth a word: the caller's slabs say what there is to say.
        fixed.register(&ring, &slab);
        let files_max = config.files_max;
        let has_files = files_max > 0 && ring.submitter().register_files_sparse(files_max).is_ok();
        let core = Core {
            ring,
            wake,
            armed: false,
            mode,
            slots: (0..in_flight_max).map(|_| Slot::default()).collect(),
            free: (0..in_flight_max).rev().collect(),
            waiting: VecDeque::with_capacity(in_flight_max as usize),
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
        };
        Ok(Rc::new(Self {
            core: ManuallyDrop::new(RefCell::new(core)),
            retired: Rc::default(),
            drain: Duration::from_millis(config.drain_ms),
        }))
    }

    /// Registers a slab's memory with the ring, so that operations on its buffers spare the kernel
    /// mapping its pages. Without it everything works, a little slower.
    pub fn register_slab(&self, slab: &Arc<Slab>) -> FixedBuffers {
        let core = &mut *self.core.borrow_mut();
        core.fixed.register(&core.ring, slab)
    }

    /// Hands everything queued to the kernel: one system call, or a few when more was queued than
    /// the submission queue holds.
    ///
    /// # Errors
    /// [`EngineError::Enter`] when the ring is broken. A kernel that is short of something for the
    /// moment is no error: what it did not take stays queued.
    pub fn submit_batch(&self) -> Result<(), EngineError> {
        self.close_retired();
        self.core.borrow_mut().submit_batch()
    }

    /// Appends what has ended to `out`; returns how many. What goes on (short transfers, waiting
    /// operations) is queued for the next [`Engine::submit_batch`].
    pub fn poll(&self, out: &mut Vec<Completion>) -> usize {
        let before = out.len();
        self.core.borrow_mut().poll(out);
        out.len() - before
    }

    /// Prepares to block until [`Engine::fd`] is readable, handing over what is queued. `false`:
    /// something has ended already or could not be handed over, so [`Engine::poll`] instead.
    pub fn arm(&self) -> bool {
        self.submit_batch().is_ok() && self.core.borrow_mut().arm()
    }

    /// Readable when something has ended after [`Engine::arm`], until [`Engine::poll`].
    #[must_use]
    pub fn fd(&self) -> RawFd {
        self.core.borrow().wake.as_fd().as_raw_fd()
    }

    /// Operations submitted and not yet completed.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        let core = self.core.borrow();
        core.used() + core.waiting.len()
    }

    /// Gives a file a place in the ring's table, while there is one.
    pub(crate) fn open_file(&self, store: &Arc<FileStore>) -> Rc<OpenFile> {
        self.close_retired();
        let fixed = self.core.borrow_mut().take_file(store.raw_fd());
        Rc::new(OpenFile {
            store: Arc::clone(store),
            fixed,
            refused: Refused::default(),
            retired: Rc::clone(&self.retired),
        })
    }

    pub(crate) fn submit(&self, request: Request) {
        self.core.borrow_mut().submit(request);
    }

    /// Takes the files back from the ring that nobody uses any more.
    pub(crate) fn close_retired(&self) {
        if self.retired.borrow().is_empty() {
            return;
        }
        let core = &mut *self.core.borrow_mut();
        for place in self.retired.borrow_mut().drain(..) {
            core.give_file(place);
        }
    }
}

impl Core {
    fn used(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    fn submit(&mut self, request: Request) {
        match self.free.pop() {
            // Behind the ones that wait already.
            Some(slot) if self.waiting.is_empty() => self.start(slot, request),
            Some(slot) => {
                self.free.push(slot);
                self.waiting.push_back(request);
            }
            None => self.waiting.push_back(request),
        }
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
            Sent::Queued => {}
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
        *generation = generation.wrapping_add(1);
        let user_data = u64::from(slot) | u64::from(*generation) << 32;
        let entry = entry(&command, request.file(), &self.fixed).user_data(user_data);
        // SAFETY: the memory the entry names belongs to the request's buffer (its data or its
        // bounce buffer) or to `zeroes`. The slot owns the request until the completion of this
        // very entry arrives, `zeroes` lives as long as the ring, and both are leaked rather than
        // freed when the ring cannot be drained. The file is held by the request, too.
        match unsafe { self.ring.submission().push(&entry) } {
            Ok(()) => Sent::Queued,
            Err(_) => Sent::QueueFull,
        }
    }

    fn submit_batch(&mut self) -> Result<(), EngineError> {
        loop {
            let queued = self.ring.submission().len();
            if queued == 0 {
                return Ok(());
            }
            match self.ring.submit() {
                Ok(_) => {}
                // The kernel is short of memory or wants completions reaped first; or a signal.
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
            if self.ring.submission().len() == queued {
                return Ok(());
            }
            self.resend();
        }
    }

    /// Queues the entries that found the submission queue full.
    fn resend(&mut self) {
        while let Some(slot) = self.unsent.pop_front() {
            match self.send(slot) {
                Sent::Queued => {}
                Sent::QueueFull => return self.unsent.push_front(slot),
                Sent::NoBounce => self.unbounced.push_back(slot),
            }
        }
    }

    /// Lets completions signal the eventfd, and looks once more for one that came before.
    fn arm(&mut self) -> bool {
        self.armed = true;
        self.ring.completion().enable_eventfd();
        // The kernel adds a completion, then reads the flag; the flag must be out before the look.
        fence(Ordering::SeqCst);
        self.quiet()
    }

    fn disarm(&mut self) {
        self.armed = false;
        self.ring.completion().disable_eventfd();
        // Nothing to read means that nothing was signalled.
        let _ = self.wake.read();
    }

    fn poll(&mut self, out: &mut Vec<Completion>) {
        if self.armed {
            self.disarm();
        }
        if self.used() == 0 {
            return;
        }
        if self.mode.has_taskrun_flag() && self.ring.submission().taskrun() {
            // Runs the deferred completions. What fails here fails in `submit_batch` again, where
            // it is reported.
            let _ = self.ring.submit();
        }
        loop {
            let mut batch = [const { MaybeUninit::uninit() }; BATCH];
            let ended = self.ring.completion().fill(&mut batch);
            let last = ended.len() < BATCH;
            for entry in ended {
                self.completed(entry.user_data(), entry.result(), out);
            }
            // Bounded: at most what is in flight, since nothing new is handed over here.
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

    fn completed(&mut self, user_data: u64, answer: i32, out: &mut Vec<Completion>) {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the lower half is the slot"
        )]
        let (index, generation) = (user_data as u32, (user_data >> 32) as u32);
        let slot = self
            .slots
            .get_mut(index as usize)
            .filter(|s| s.generation == generation);
        let Some((slot, progress)) = slot.and_then(|slot| {
            let progress = slot.request.as_mut()?.advance(answer);
            Some((slot, progress))
        }) else {
            self.stale += 1;
            tracing::warn!(user_data, answer, "a completion of nothing in flight");
            return;
        };
        match progress {
            Progress::Again if !self.draining => self.queue(index),
            Progress::Again => self.release(index),
            Progress::Done(result) => {
                out.extend(slot.request.take().map(|request| request.complete(result)));
                self.release(index);
                self.wake_unbounced();
            }
        }
    }

    fn release(&mut self, slot: u32) {
        self.slots[slot as usize].request = None;
        self.free.push(slot);
    }

    /// Lets the first operation go on that waits for a bounce buffer, if there is one now.
    fn wake_unbounced(&mut self) {
        let Some(slot) = self.unbounced.pop_front() else {
            return;
        };
        match self.send(slot) {
            Sent::Queued => {}
            Sent::QueueFull => self.unsent.push_back(slot),
            Sent::NoBounce => self.unbounced.push_front(slot),
        }
    }

    /// Whether nothing has ended and nothing is left to hand over.
    fn quiet(&mut self) -> bool {
        let queue = self.ring.submission();
        let queued = !queue.is_empty() || queue.taskrun();
        drop(queue);
        !queued && self.unsent.is_empty() && self.ring.completion().is_empty()
    }

    fn take_file(&mut self, fd: RawFd) -> Option<u32> {
        let place = self.free_files.pop()?;
        match self.ring.submitter().register_files_update(place, &[fd]) {
            Ok(_) => Some(place),
            Err(error) => {
                tracing::debug!(%error, place, "a file goes without a fixed place");
                self.free_files.push(place);
                None
            }
        }
    }

    fn give_file(&mut self, place: u32) {
        match self.ring.submitter().register_files_update(place, &[-1]) {
            Ok(_) => self.free_files.push(place),
            // The place is lost, nothing else: the next file goes without.
            Err(error) => tracing::warn!(%error, place, "cannot take a file back from the ring"),
        }
    }

    /// Cancels what can be cancelled and waits for the rest. `false`: the kernel still has some.
    fn drain(&mut self, limit: Duration) -> bool {
        self.draining = true;
        self.waiting.clear();
        // What the kernel has not seen is simply forgotten.
        while let Some(slot) = self
            .unsent
            .pop_front()
            .or_else(|| self.unbounced.pop_front())
        {
            self.release(slot);
        }
        let deadline = Instant::now() + limit;
        let mut ended = Vec::new();
        let _ = self.submit_batch();
        // Nothing cancellable is an error of this call, and so is an old kernel: the wait below is
        // the same.
        let at_once = Some(Timespec::new().nsec(1));
        let _ = self
            .ring
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
            // Its errors are a time-out, or come back until the deadline.
            let _ = self.ring.submitter().submit_with_args(1, &args);
        }
    }
}

/// What became of a slot's next entry.
enum Sent {
    Queued,
    QueueFull,
    NoBounce,
}

impl Drop for Engine {
    fn drop(&mut self) {
        let core = self.core.get_mut();
        if !core.drain(self.drain) {
            tracing::error!(
                in_flight = core.used(),
                "the kernel does not give operations back; leaking their memory and the ring"
            );
            return;
        }
        core.fixed.clear(&core.ring);
        // Closing the ring would let the files go only later, in the kernel's own time.
        let _ = core.ring.submitter().unregister_files();
        // SAFETY: dropped once, here, and never touched again.
        unsafe { ManuallyDrop::drop(&mut self.core) };
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Engine(")?;
        match self.core.try_borrow() {
            Ok(core) => write!(
                f,
                "{:?}, {} in the kernel, {} waiting, {} stale)",
                core.mode,
                core.used(),
                core.waiting.len(),
                core.stale
            ),
            Err(_) => write!(f, "in use)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::env;
    use std::fs::{self, File};
    use std::process;
    use std::rc::Rc;

    use super::{Engine, EngineConfig};
    use crate::io::{Completion, Io, Op, Submitted};
    use crate::spec::{DirectIo, VolumeSpec};
    use crate::testing::{bytes, data, pool};
    use crate::uring::setup::Mode;
    use crate::volume::Volume;

    /// A volume on a file without a name.
    fn volume(engine: &Rc<Engine>, name: &str) -> Box<dyn Volume> {
        let path = env::temp_dir().join(format!("capstan-engine-{}-{name}", process::id()));
        File::create(&path).unwrap().set_len(1 << 20).unwrap();
        let (lba_bytes, direct) = (Some(4096), DirectIo::Auto);
        let spec = VolumeSpec::Path {
            path: path.clone(),
            lba_bytes,
            read_only: false,
            direct,
        };
        let volume = spec.open(engine).unwrap();
        fs::remove_file(path).unwrap();
        volume
    }

    fn wait(engine: &Engine, count: usize) -> Vec<Completion> {
        let mut out = Vec::new();
        while out.len() < count {
            engine.submit_batch().unwrap();
            engine.poll(&mut out);
        }
        out
    }

    /// What older kernels would be given works, too, fixed files or not.
    #[test]
    fn every_mode_reads_writes_and_flushes() {
        let pool = pool(1 << 20);
        for mode in Mode::ALL {
            for files_max in [0, 8] {
                let config = EngineConfig {
                    entries: 4,
                    files_max,
                    ..EngineConfig::default()
                };
                let engine = Engine::with_mode(&config, mode).unwrap();
                let mut volume = volume(&engine, &format!("{mode:?}-{files_max}"));
                let mut submit = |token, op| {
                    let data = Some(data(&pool, &[7; 8192]));
                    let submitted = volume.submit(Io { token, op, data }, 0);
                    assert!(matches!(submitted, Submitted::Pending));
                };
                for token in 0..20 {
                    submit(
                        token,
                        Op::Write {
                            lba: token * 2,
                            lbas: 2,
                            fua: token == 3,
                        },
                    );
                }
                submit(20, Op::Flush);
                assert!(
                    wait(&engine, 21).iter().all(|ended| ended.result.is_ok()),
                    "{mode:?}"
                );
                submit(21, Op::Read { lba: 10, lbas: 2 });
                let ended = wait(&engine, 1);
                assert_eq!(
                    bytes(ended[0].data.as_ref().unwrap()),
                    [7; 8192],
                    "{mode:?}"
                );
                assert!(engine.arm());
            }
        }
    }

    /// A completion that belongs to nothing (a kernel's mistake, or ours) ends nothing.
    #[test]
    fn stale_completions_are_counted_and_ignored() {
        let pool = pool(1 << 20);
        let engine = Engine::new(&EngineConfig::default()).unwrap();
        let mut volume = volume(&engine, "stale");
        let io = Io {
            token: 1,
            op: Op::Read { lba: 0, lbas: 1 },
            data: Some(data(&pool, &[1; 4096])),
        };
        assert!(matches!(volume.submit(io, 0), Submitted::Pending));
        let mut out = Vec::new();
        {
            let core = &mut *engine.core.borrow_mut();
            // No such slot; an earlier generation of the slot in use; a slot without a request.
            for user_data in [u64::MAX, 0, 1 << 32 | 1] {
                core.completed(user_data, 4096, &mut out);
            }
            assert_eq!((core.stale, out.len(), core.used()), (3, 0, 1));
        }
        let ended = wait(&engine, 1);
        assert_eq!(
            (ended[0].token, bytes(ended[0].data.as_ref().unwrap())),
            (1, vec![0; 4096])
        );
    }
}
