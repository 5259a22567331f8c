//! What the tests on real files and devices share.
#![allow(
    dead_code,
    clippy::allow_attributes,
    reason = "every test file uses its own part"
)]

use std::fs::{self, File};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use capstan_memory::{Pages, Pool};
use capstan_storage::{
    Completion, Data, DirectIo, Engine, EngineConfig, Io, IoError, Op, Store, Submitted, Volume,
    VolumeSpec,
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// A folder that goes away with the test.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{n}", process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// A sparse file of zeroes.
    pub(crate) fn file(&self, name: &str, bytes: u64) -> PathBuf {
        let path = self.0.join(name);
        File::create(&path).unwrap().set_len(bytes).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub(crate) fn spec(path: &Path, lba_bytes: u32, direct: DirectIo) -> VolumeSpec {
    let path = path.to_path_buf();
    VolumeSpec::Path {
        path,
        lba_bytes: Some(lba_bytes),
        read_only: false,
        direct,
    }
}

/// One reactor's worth: an engine, a volume and buffers.
pub(crate) struct Driver {
    pub(crate) volume: Box<dyn Volume>,
    pub(crate) engine: Rc<Engine>,
    pub(crate) pool: Pool,
    ended: Vec<Completion>,
    /// A clock that has gone on by a millisecond at each operation.
    now_us: u64,
}

impl Driver {
    pub(crate) fn new(spec: &VolumeSpec) -> Self {
        Self::with(spec, &EngineConfig::default(), true)
    }

    pub(crate) fn with(spec: &VolumeSpec, config: &EngineConfig, registered: bool) -> Self {
        let store = spec.prepare_alone().unwrap_or_else(|e| panic!("{e}"));
        Self::of(&store, config, registered)
    }

    /// One of several that have the store.
    pub(crate) fn of(store: &Store, config: &EngineConfig, registered: bool) -> Self {
        let engine = Engine::new(config).unwrap();
        let pool = Pool::new(16 << 20, Pages::Ordinary).unwrap();
        if registered {
            engine.register_slab(pool.slab());
        }
        let volume = store.open(&engine).unwrap_or_else(|e| panic!("{e}"));
        Self {
            volume,
            engine,
            pool,
            ended: Vec::new(),
            now_us: 0,
        }
    }

    pub(crate) fn lba_bytes(&self) -> u32 {
        self.volume.geometry().lba_bytes
    }

    /// Data that holds `bytes` at `offset`.
    pub(crate) fn data(&self, bytes: &[u8], offset: usize) -> Data {
        let len = u32::try_from(offset + bytes.len()).unwrap();
        let mut buffer = self.pool.take(len).expect("pool is large enough");
        buffer.copy_from(offset, bytes);
        Data {
            buffer,
            offset_bytes: u32::try_from(offset).unwrap(),
        }
    }

    /// Submits without waiting; what ends at once is kept for [`Driver::wait`].
    pub(crate) fn submit(&mut self, token: u64, op: Op, data: Option<Data>) {
        self.now_us += 1000;
        let submitted = self.volume.submit(Io { token, op, data }, self.now_us);
        if let Submitted::Done(completion) = submitted {
            self.ended.push(completion);
        }
    }

    /// Waits, blocked on the ring's descriptor, until `count` operations have ended.
    pub(crate) fn wait(&mut self, count: usize) -> Vec<Completion> {
        let deadline = Instant::now() + Duration::from_secs(30);
        while self.ended.len() < count {
            self.engine.submit_batch().unwrap();
            if self.engine.poll(&mut self.ended) > 0 {
                continue;
            }
            if !self.engine.arm() {
                self.sleep(Duration::from_secs(10));
            }
            let (ended, engine) = (self.ended.len(), &self.engine);
            assert!(
                Instant::now() < deadline,
                "{ended} of {count} ended, {engine:?}"
            );
        }
        self.ended.drain(..).collect()
    }

    fn sleep(&self, limit: Duration) {
        let fd = borrow(self.engine.fd());
        let mut fds = [PollFd::new(fd, PollFlags::POLLIN)];
        let ready = poll(&mut fds, PollTimeout::try_from(limit).unwrap()).unwrap();
        assert_eq!(
            ready,
            1,
            "armed, {} in flight, and never woken",
            self.engine.in_flight()
        );
    }

    pub(crate) fn run(&mut self, op: Op, data: Option<Data>) -> Completion {
        self.submit(42, op, data);
        let completion = self.wait(1).remove(0);
        assert_eq!(completion.token, 42);
        completion
    }

    pub(crate) fn result(&mut self, op: Op, data: Option<Data>) -> Result<(), IoError> {
        self.run(op, data).result
    }

    pub(crate) fn try_read(
        &mut self,
        lba: u64,
        lbas: u32,
        offset: usize,
    ) -> Result<Vec<u8>, IoError> {
        let len = (lbas * self.lba_bytes()) as usize;
        let data = self.data(&vec![0xee; len], offset);
        let completion = self.run(Op::Read { lba, lbas }, Some(data));
        completion
            .result
            .map(|()| content(completion.data.as_ref().unwrap()))
    }

    pub(crate) fn read(&mut self, lba: u64, lbas: u32) -> Vec<u8> {
        self.try_read(lba, lbas, 0).unwrap()
    }

    pub(crate) fn try_write(&mut self, lba: u64, bytes: &[u8], fua: bool) -> Result<(), IoError> {
        let data = self.data(bytes, 0);
        let lbas = u32::try_from(bytes.len()).unwrap() / self.lba_bytes();
        self.result(Op::Write { lba, lbas, fua }, Some(data))
    }

    pub(crate) fn write(&mut self, lba: u64, bytes: &[u8]) {
        self.try_write(lba, bytes, false).unwrap();
    }
}

#[expect(unsafe_code, reason = "the ring's descriptor is borrowed as a number")]
fn borrow<'a>(fd: std::os::fd::RawFd) -> BorrowedFd<'a> {
    // SAFETY: the caller keeps the engine, and with it the descriptor, open meanwhile.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// The bytes of data that has come back.
pub(crate) fn content(data: &Data) -> Vec<u8> {
    let mut out = vec![0; (data.buffer.len_bytes() - data.offset_bytes) as usize];
    data.buffer.copy_to(data.offset_bytes as usize, &mut out);
    out
}

/// Runs a program to its end; its output, or why it failed.
pub(crate) fn run(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(arguments).output();
    let output = output.map_err(|e| format!("{program}: {e}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    let error = String::from_utf8_lossy(&output.stderr);
    Err(format!(
        "{program} {}: {}",
        arguments.join(" "),
        error.trim()
    ))
}

/// A loop device, detached at the end.
///
/// # Panics
/// Where none can be made, as a test that cannot run has not passed. On such a machine leave these
/// tests out by name: `cargo nextest run -E 'not test(/^root_/)'`.
pub(crate) struct LoopDevice(String);

impl LoopDevice {
    pub(crate) fn new(file: &Path, sector_bytes: u32) -> Self {
        let sector = sector_bytes.to_string();
        let file = file.to_str().unwrap();
        let made = run(
            "losetup",
            &["--find", "--show", "--sector-size", &sector, file],
        );
        match made {
            Ok(path) => Self(path),
            Err(reason) => panic!(
                "no loop device: {reason}; this test needs root and loop devices, leave it out \
                 with: cargo nextest run -E 'not test(/^root_/)'"
            ),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        Path::new(&self.0)
    }

    /// Flush requests the device has completed (Documentation/block/stat.rst, field 16).
    pub(crate) fn flushes(&self) -> u64 {
        let name = self.path().file_name().unwrap().to_str().unwrap();
        let stat = fs::read_to_string(format!("/sys/block/{name}/stat")).unwrap();
        stat.split_ascii_whitespace()
            .nth(15)
            .unwrap()
            .parse()
            .unwrap()
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        if let Err(reason) = run("losetup", &["--detach", &self.0]) {
            eprintln!("{reason}");
        }
    }
}

/// Gives this test mounts of its own, which go with it.
pub(crate) fn own_mounts() {
    use nix::mount::{MsFlags, mount};
    use nix::sched::{CloneFlags, unshare};
    let none = None::<&str>;
    unshare(CloneFlags::CLONE_NEWNS)
        .and_then(|()| mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none))
        .unwrap_or_else(|reason| {
            panic!(
                "no mounts of its own: {reason}; this test needs root, leave it out with: \
                 cargo nextest run -E 'not test(/^root_/)'"
            )
        });
}
