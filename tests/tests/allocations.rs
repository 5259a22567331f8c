//! No I/O allocates memory, in the target's reactor or in the host's thread, once as many have been
//! in flight as there are.
//!
//! What may allocate, and is not here: connecting, Admin commands (Keep Alive is off), and commands
//! other than reads, writes and flushes.
#![expect(
    unsafe_code,
    reason = "a global allocator is one: it counts, and leaves the work to the system's"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::cell::Cell;
use std::fs;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use capstan_initiator::{DirectQueue, Io, Op, Options, Transport};
use capstan_memory::Buffer;
use capstan_nvme_proto::command::{IoCommand, LbaRange, Read, Write};
use capstan_nvme_proto::sgl::Sgl;
use capstan_rdma::iwarp::{Config, Provider};
use capstan_reactor::{Clock, SpinBudget};
use capstan_tests::host;
use capstan_tests::target::{SUBNQN, TestTarget};
use capstan_tests::wire_host::{Data, Queue, Wire, WireHost, connect_data};

const LBA_BYTES: u32 = 4096;
/// Commands in flight at once.
const DEPTH: u32 = 16;
/// Bytes that the loads go over, again and again.
const SPAN_BYTES: u32 = 16 << 20;
/// Runs of a load, of which one must allocate nothing.
const RUNS_MAX: usize = 8;
/// Stacks that a failure shows.
const STACKS_MAX: usize = 4;

// --- The allocator ------------------------------------------------------------------------------

const THREADS_MAX: usize = 64;
/// What each thread has allocated, by the number it has here, and the kernel's names of them.
static ALLOCATED: [AtomicU64; THREADS_MAX] = [const { AtomicU64::new(0) }; THREADS_MAX];
static TIDS: [AtomicI32; THREADS_MAX] = [const { AtomicI32::new(0) }; THREADS_MAX];
static THREADS: AtomicUsize = AtomicUsize::new(0);
/// A bit for the number of each thread whose stacks are kept.
static WATCHED: AtomicU64 = AtomicU64::new(0);
const _: () = assert!(THREADS_MAX <= u64::BITS as usize);
static STACKS: Mutex<Vec<String>> = Mutex::new(Vec::new());
/// Held by the test that runs, where they share a process: threads are found by their names.
static ALONE: Mutex<()> = Mutex::new(());

thread_local! {
    /// The number of this thread; `usize::MAX` before its first allocation.
    static NUMBER: Cell<usize> = const { Cell::new(usize::MAX) };
    static KEEPS_A_STACK: Cell<bool> = const { Cell::new(false) };
}

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The number of this thread; `None` when it ends.
fn number() -> Option<usize> {
    let number = NUMBER.try_with(Cell::get).ok()?;
    if number != usize::MAX {
        return Some(number);
    }
    let number = THREADS.fetch_add(1, Ordering::Relaxed).min(THREADS_MAX - 1);
    TIDS[number].store(nix::unistd::gettid().as_raw(), Ordering::Relaxed);
    NUMBER.try_with(|own| own.set(number)).ok()?;
    Some(number)
}

fn note() {
    let Some(number) = number() else { return };
    if KEEPS_A_STACK.try_with(Cell::get) != Ok(false) {
        return;
    }
    ALLOCATED[number].fetch_add(1, Ordering::Relaxed);
    if WATCHED.load(Ordering::Relaxed) >> number & 1 == 1 {
        KEEPS_A_STACK.set(true);
        let mut stacks = STACKS.lock().unwrap_or_else(PoisonError::into_inner);
        if stacks.len() < STACKS_MAX {
            stacks.push(Backtrace::force_capture().to_string());
        }
        drop(stacks);
        KEEPS_A_STACK.set(false);
    }
}

// SAFETY: every call is the system allocator's, with the arguments as they come.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note();
        // SAFETY: the caller keeps what this function asks for, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note();
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_bytes: usize) -> *mut u8 {
        note();
        // SAFETY: as above.
        unsafe { System.realloc(block, layout, new_bytes) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(block, layout) }
    }
}

/// The number of the thread that has this name.
fn thread(name: &str) -> usize {
    let count = THREADS.load(Ordering::Relaxed).min(THREADS_MAX);
    let is_it = |number: &usize| {
        let tid = TIDS[*number].load(Ordering::Relaxed);
        let comm = fs::read_to_string(format!("/proc/self/task/{tid}/comm"));
        comm.is_ok_and(|comm| comm.trim_end() == name)
    };
    let found = (0..count).find(is_it);
    found.unwrap_or_else(|| panic!("no thread {name} has allocated: has it another name now?"))
}

/// The threads under test.
struct Watched {
    reactor: usize,
    host: usize,
}

impl Watched {
    /// The one reactor, and this thread.
    fn new() -> Self {
        Self {
            reactor: thread("reactor-0"),
            host: number().expect("this thread goes on"),
        }
    }

    /// Runs `load` again and again, until it allocates nothing: not the target, and not the host
    /// where `is_host` says that it is one of ours. Lists grow when more is in flight in them than
    /// ever before, which may be late; what allocates for an I/O does so in each run.
    fn allocates_nothing(&self, what: &str, is_host: bool, mut load: impl FnMut()) {
        let threads = [self.reactor, self.host];
        let whose = ["the target's reactor", "the host's thread"];
        let looked_at = if is_host { 2 } else { 1 };
        // Arrays: what this thread allocates here would count.
        let counts = || threads.map(|number| ALLOCATED[number].load(Ordering::Relaxed));
        let bits = threads.iter().fold(0, |bits, number| bits | 1 << number);
        let mut seen = Vec::new();
        for _ in 0..RUNS_MAX {
            let before = counts();
            WATCHED.store(bits, Ordering::Relaxed);
            load();
            WATCHED.store(0, Ordering::Relaxed);
            let after = counts();
            let stacks =
                std::mem::take(&mut *STACKS.lock().unwrap_or_else(PoisonError::into_inner));
            let found = (0..looked_at).find(|&nth| after[nth] != before[nth]);
            let Some(nth) = found else { return };
            let count = after[nth] - before[nth];
            seen.push(format!(
                "{}: {count}, from {}",
                whose[nth],
                stacks.join("\n\n")
            ));
        }
        panic!(
            "{what}: each of {RUNS_MAX} runs allocates memory, expected none once as many have been in flight as there \
             are: {}",
            seen.pop().unwrap_or_default()
        );
    }
}

// --- The loads ----------------------------------------------------------------------------------

/// Runs `count` operations on `buffers`, as many at once as there are.
fn run(
    queue: &mut DirectQueue,
    buffers: &mut Vec<Buffer>,
    nsid: u32,
    count: u32,
    op: impl Fn(u32) -> Op,
) {
    let deadline_us = Clock.now_us() + 60_000_000;
    let (mut sent, mut done) = (0, 0);
    while done < count {
        while sent < count
            && let Some(buffer) = buffers.pop()
        {
            let io = Io { nsid, op: op(sent) };
            let buffer = if io.op == Op::Flush {
                buffers.push(buffer);
                None
            } else {
                Some(buffer)
            };
            let submitted = queue.submit(sent.into(), io, buffer);
            submitted.expect("there is room for it");
            sent += 1;
        }
        let completion = queue.wait(Some(deadline_us));
        let completion = completion.expect("an I/O within a minute");
        completion.result.expect("success");
        buffers.extend(completion.buffer);
        done += 1;
    }
}

/// Reads and writes of `len_bytes`, on a namespace.
fn reads_and_writes(
    queue: &mut DirectQueue,
    watched: &Watched,
    nsid: u32,
    len_bytes: u32,
    what: &str,
) {
    let take = |_| queue.take(len_bytes).expect("memory");
    let mut buffers: Vec<_> = (0..DEPTH).map(take).collect();
    let nlb = len_bytes / LBA_BYTES;
    let slba = |nth: u32| u64::from(nth % (SPAN_BYTES / len_bytes) * nlb);
    let count = if len_bytes > LBA_BYTES { 400 } else { 4000 };
    let name = |op: &str| format!("{what}: {count} {op} of {len_bytes} bytes of namespace {nsid}");
    watched.allocates_nothing(&name("writes"), true, || {
        run(queue, &mut buffers, nsid, count, |nth| Op::Write {
            slba: slba(nth),
            nlb,
            fua: false,
        });
    });
    watched.allocates_nothing(&name("reads"), true, || {
        run(queue, &mut buffers, nsid, count, |nth| Op::Read {
            slba: slba(nth),
            nlb,
        });
    });
    // Reads and writes at once, of which some are flushed.
    watched.allocates_nothing(&name("reads, writes and flushes"), true, || {
        run(queue, &mut buffers, nsid, count, |nth| {
            let slba = slba(nth);
            match nth % 16 {
                0 => Op::Flush,
                8..16 => Op::Read { slba, nlb },
                _ => Op::Write {
                    slba,
                    nlb,
                    fua: false,
                },
            }
        });
    });
    assert_eq!(buffers.len(), DEPTH as usize, "each buffer comes back");
}

/// A target of one reactor that has memory, nothing and a file as its namespaces.
fn target(folder: &tempfile::TempDir) -> TestTarget {
    let file = folder.path().join("volume.img");
    let created = fs::File::create(&file).expect("a file");
    created.set_len(SPAN_BYTES.into()).expect("its size");
    let toml = format!(
        "[target]\nreactors = 1\nmemory_budget = \"256MiB\"\n\
         [[listener]]\naddress = \"127.0.0.1\"\nport = 0\nprovider = \"iwarp\"\n\
         [[subsystem]]\nnqn = \"{SUBNQN}\"\nallow_any_host = true\n\
         [[subsystem.namespace]]\nram = \"16MiB\"\nlba = {LBA_BYTES}\n\
         [[subsystem.namespace]]\nnull = \"16MiB\"\nlba = {LBA_BYTES}\n\
         [[subsystem.namespace]]\npath = {:?}\nlba = {LBA_BYTES}\n",
        file.display().to_string()
    );
    TestTarget::start(&toml)
}

fn options(address: SocketAddr, transport: Transport) -> Options {
    let mut options = host::options(address, 1);
    options.transport = transport;
    options.keep_alive_tmo = Duration::ZERO;
    options.data_memory_bytes = 16 << 20;
    options
}

fn over_every_namespace(mut queue: DirectQueue, what: &str) {
    let watched = Watched::new();
    // The host that spins polls its queue itself, and never sleeps.
    for (spin_us, waits) in [(10_000_000, "spins"), (0, "sleeps")] {
        queue.set_spin(SpinBudget { spin_us });
        let what = &format!("{what}, and the host {waits}");
        for nsid in 1..=3 {
            for len_bytes in [LBA_BYTES, 128 << 10] {
                reads_and_writes(&mut queue, &watched, nsid, len_bytes, what);
            }
        }
    }
    queue.close();
}

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn over_iwarp(same_host: bool, what: &str) {
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a folder");
    let target = target(&folder);
    let provider = Provider::new(Config {
        same_host,
        ..Config::default()
    });
    let manager = provider.expect("a device").connection_manager();
    let options = options(target.addresses[0], Transport::Rdma);
    let queue = DirectQueue::connect_through(&options, manager.expect("a manager"));
    over_every_namespace(queue.expect("it connects"), what);
    target.stop();
}

#[test]
fn over_sockets() {
    over_iwarp(false, "iWARP over sockets");
}

#[test]
fn over_shared_memory() {
    over_iwarp(true, "iWARP over shared memory");
}

#[test]
fn over_nvme_tcp() {
    let _alone = alone();
    for digests in [false, true] {
        let folder = tempfile::tempdir().expect("a folder");
        let target = target(&folder);
        let mut options = options(target.addresses[0], Transport::Tcp);
        options.header_digest = digests;
        options.data_digest = digests;
        let queue = DirectQueue::connect(&options).expect("it connects");
        over_every_namespace(queue, &format!("NVMe/TCP, digests: {digests}"));
        target.stop();
    }
}

/// Data that is in several places of the host, which the capsule has a list of. The host is one for
/// tests, which allocates.
#[test]
fn lists_of_buffers() {
    let _alone = alone();
    for same_host in [false, true] {
        let folder = tempfile::tempdir().expect("a folder");
        let target = target(&folder);
        let config = Config {
            same_host,
            ..Config::default()
        };
        let wire = Wire::new(config, 256, 16 << 20);
        let mut host = WireHost::connect_through(wire, target.addresses[0], connect_data(1));
        let watched = Watched::new();
        let data = vec![0x5A; 32 << 10];
        let range = LbaRange { slba: 0, nlb: 8 };
        for (nsid, pieces) in [(1, 4), (1, 16), (2, 4), (3, 16)] {
            let what = format!(
                "100 reads and writes of 32 KiB in {pieces} pieces of namespace {nsid}, shared memory: {same_host}"
            );
            watched.allocates_nothing(&what, false, || {
                for _ in 0..100 {
                    let write = IoCommand::Write(Write::new(nsid, range)).encode(0, Sgl::EMPTY);
                    let (cqe, _) = host.run(Queue::Io, write, Data::PulledInPieces(&data, pieces));
                    assert!(cqe.status().is_success(), "{:?}", cqe.status());
                    let read = IoCommand::Read(Read::new(nsid, range)).encode(0, Sgl::EMPTY);
                    let read_data = Data::PushedInPieces(32 << 10, pieces);
                    let (cqe, _) = host.run(Queue::Io, read, read_data);
                    assert!(cqe.status().is_success(), "{:?}", cqe.status());
                }
            });
        }
        target.stop();
    }
}
