//! The io_uring of one reactor, as its volumes and the reactor see it.
#![expect(
    unsafe_code,
    reason = "a ring that cannot be drained is leaked instead of dropped"
)]

use std::cell::RefCell;
use std::fmt;
use std::mem::ManuallyDrop;
use std::os::fd::RawFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use capstan_memory::Slab;

use super::EngineError;
use super::fixed::FixedBuffers;
use super::open_file::{OpenFile, Refused};
use super::request::Request;
use super::ring::Ring;
use super::setup::Mode;
use super::syncs::Syncs;
use crate::file::FileStore;
use crate::io::Completion;

/// Sizes of an [`Engine`].
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Submission queue entries: operations that one system call submits. 1 to 32768.
    pub entries: u32,
    /// Operations in the kernel at once; more wait in the engine, in order.
    pub in_flight_max: u32,
    /// How many may wait there; one more ends with [`IoErrorKind::Retry`](crate::IoErrorKind).
    pub waiting_max: u32,
    /// Files in the ring's table; further ones work without it.
    pub files_max: u32,
    /// Bounce buffers for data that is not aligned as `O_DIRECT` needs it; operations that find
    /// none free wait in order.
    pub bounce_bytes: u32,
    /// How long dropping the engine waits for operations the kernel still has. After that their
    /// memory is leaked, since the kernel may write it at any time.
    pub drain_ms: u64,
}

impl Default for EngineConfig {
    /// 128 entries are the depth of one queue, and 1024 in flight keep any disk busy. 65536 waiting
    /// are 512 queues of depth 128. 1 MiB bounces 128 writes of 8 KiB that came in a capsule.
    fn default() -> Self {
        Self {
            entries: 128,
            in_flight_max: 1024,
            waiting_max: 1 << 16,
            files_max: 256,
            bounce_bytes: 1 << 20,
            drain_ms: 30_000,
        }
    }
}

/// The io_uring of one reactor, shared by its volumes. It belongs to the thread that made it.
pub struct Engine {
    ring: ManuallyDrop<RefCell<Ring>>,
    /// Indices in the table of fixed files whose file is gone.
    retired: Rc<RefCell<Vec<u32>>>,
    drain: Duration,
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

    /// As [`Engine::new`], as if the kernel had no better mode than `best`.
    pub(crate) fn with_mode(config: &EngineConfig, best: Mode) -> Result<Rc<Self>, EngineError> {
        let ring = Ring::new(config, best)?;
        Ok(Rc::new(Self {
            ring: ManuallyDrop::new(RefCell::new(ring)),
            retired: Rc::default(),
            drain: Duration::from_millis(config.drain_ms),
        }))
    }

    /// Registers a slab's memory with the ring, which saves the kernel from mapping pages for each
    /// operation on its buffers. Without it everything works, a little slower. A piece of the slab
    /// becomes resident when an operation first uses it. Where RLIMIT_MEMLOCK binds, all engines of
    /// a process register at most half of it, because rings need some, too; a slab counts as a
    /// whole.
    pub fn register_slab(&self, slab: &Arc<Slab>) -> FixedBuffers {
        self.ring.borrow_mut().register_slab(slab)
    }

    /// Submits everything queued to the kernel: one system call, or a few when more was queued than
    /// the submission queue holds.
    ///
    /// # Errors
    /// [`EngineError::Enter`] when the ring is broken. A kernel that is short of something for the
    /// moment is no error: what it did not take stays queued.
    pub fn submit_batch(&self) -> Result<(), EngineError> {
        self.close_retired();
        self.ring.borrow_mut().submit_batch()
    }

    /// Whether the kernel has no more to do than what the next [`Engine::submit_batch`] brings it:
    /// then that comes before other work, during which a disk would be idle.
    #[must_use]
    pub fn is_short_of_work(&self) -> bool {
        self.ring.borrow_mut().is_short_of_work()
    }

    /// Appends completed operations to `out`; returns how many. Those that need another step (short
    /// transfers, waiting operations) are queued for the next [`Engine::submit_batch`].
    pub fn poll(&self, out: &mut Vec<Completion>) -> usize {
        let before = out.len();
        self.ring.borrow_mut().poll(out);
        out.len() - before
    }

    /// Prepares to block until [`Engine::fd`] is readable, and submits what is queued. `true` when
    /// something has completed already or could not be submitted: call [`Engine::poll`] instead of
    /// waiting. (As with `arm` of every source: whether something is ready.)
    #[must_use = "waiting when something is ready loses it until the next wake-up"]
    pub fn arm(&self) -> bool {
        self.submit_batch().is_err() || self.ring.borrow_mut().arm()
    }

    /// Hint: [`Engine::fd`] was not readable when a wait after [`Engine::arm`] ended, so that it
    /// need not be read. Calling it is optional.
    pub fn stayed_silent(&self) {
        self.ring.borrow_mut().stayed_silent();
    }

    /// Readable when something has completed after [`Engine::arm`], until [`Engine::poll`].
    #[must_use]
    pub fn fd(&self) -> RawFd {
        self.ring.borrow().fd()
    }

    /// Operations submitted and not yet completed.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.ring.borrow().in_flight()
    }

    /// Registers a file in the ring's table, as long as there is room.
    pub(crate) fn open_file(&self, store: &Arc<FileStore>) -> Rc<OpenFile> {
        self.close_retired();
        let fixed = self.ring.borrow_mut().take_file(store.raw_fd());
        Rc::new(OpenFile {
            store: Arc::clone(store),
            fixed,
            to_sync: store.open_to_sync(),
            syncs: Syncs::default(),
            refused: Refused::default(),
            retired: Rc::clone(&self.retired),
        })
    }

    /// Takes a request, or returns it when too many wait already.
    pub(crate) fn submit(&self, request: Request) -> Option<Request> {
        self.ring.borrow_mut().submit(request)
    }

    /// Removes files that are not used any more from the ring's table.
    pub(crate) fn close_retired(&self) {
        if self.retired.borrow().is_empty() {
            return;
        }
        let mut ring = self.ring.borrow_mut();
        for place in self.retired.borrow_mut().drain(..) {
            ring.give_file(place);
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let ring = self.ring.get_mut();
        if !ring.drain(self.drain) {
            tracing::error!(
                ?ring,
                "operations do not come back; leaking their memory and the ring"
            );
            return;
        }
        ring.close();
        // SAFETY: dropped once, here, and never touched again.
        unsafe { ManuallyDrop::drop(&mut self.ring) };
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Engine(")?;
        match self.ring.try_borrow() {
            Ok(ring) => write!(f, "{ring:?})"),
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
    use std::time::{Duration, Instant};

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

    /// What older kernels are given works, too, with fixed files or without.
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
                assert!(!engine.arm());
            }
        }
    }

    /// A reactor that has other work, too, must know whether a disk is idle meanwhile.
    #[test]
    fn is_short_of_work_while_most_of_it_is_not_handed_over() {
        let pool = pool(1 << 20);
        let engine = Engine::new(&EngineConfig::default()).unwrap();
        let mut volume = volume(&engine, "short");
        let mut submit = |count: u64| {
            for token in 0..count {
                let op = Op::Read {
                    lba: token,
                    lbas: 1,
                };
                let data = Some(data(&pool, &[0; 4096]));
                let submitted = volume.submit(Io { token, op, data }, 0);
                assert!(matches!(submitted, Submitted::Pending));
            }
        };
        assert!(!engine.is_short_of_work(), "nothing to hand over");
        submit(3);
        assert!(engine.is_short_of_work(), "three, and none before");
        engine.submit_batch().unwrap();
        assert!(!engine.is_short_of_work(), "nothing to hand over any more");
        // What has completed and was not looked at counts as what the kernel has.
        submit(2);
        assert!(!engine.is_short_of_work(), "two beside three");
        submit(1);
        assert!(engine.is_short_of_work(), "three beside three");
        assert_eq!(wait(&engine, 6).len(), 6);
        assert!(!engine.is_short_of_work(), "all have ended");
    }

    /// Deferred completions are run by the call that also submits: behind it the submission queue
    /// is empty, and what found it full before still has to be sent.
    #[test]
    fn what_found_the_submission_queue_full_is_sent_behind_deferred_completions() {
        let pool = pool(1 << 20);
        let config = EngineConfig {
            entries: 4,
            ..EngineConfig::default()
        };
        let engine = Engine::new(&config).unwrap();
        let mut volume = volume(&engine, "deferred");
        for token in 0..10 {
            let op = Op::Read {
                lba: token,
                lbas: 1,
            };
            let data = Some(data(&pool, &[0; 4096]));
            let submitted = volume.submit(Io { token, op, data }, 0);
            assert!(matches!(submitted, Submitted::Pending));
        }
        engine.ring.borrow_mut().run_deferred();
        let deadline = Instant::now() + Duration::from_secs(10);
        let mut out = Vec::new();
        while out.len() < 10 {
            assert!(Instant::now() < deadline, "{} of 10 reads", out.len());
            engine.submit_batch().unwrap();
            engine.poll(&mut out);
        }
    }

    /// A completion that belongs to nothing (a mistake of the kernel or of this program) ends
    /// nothing.
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
            let ring = &mut *engine.ring.borrow_mut();
            // No such slot; an earlier generation of the slot in use; a slot without a request.
            for user_data in [u64::MAX, 0, 1 << 32 | 1] {
                ring.completed(user_data, 4096, &mut out);
            }
            assert_eq!((ring.stale, out.len(), ring.used()), (3, 0, 1));
        }
        let ended = wait(&engine, 1);
        assert_eq!(
            (ended[0].token, bytes(ended[0].data.as_ref().unwrap())),
            (1, vec![0; 4096])
        );
    }
}
