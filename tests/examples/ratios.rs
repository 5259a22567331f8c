//! What NVMe over iWARP makes of loopback TCP: plain TCP and Capstan in one run, one thread and one
//! core for each side.
//!
//! `cargo run --release -p capstan-tests --example ratios [SECONDS [FOLDER]]`
//!
//! Machines differ and are noisy, so every figure stands beside a limit measured in the same run:
//! the round trip of a plain TCP ping-pong (64 bytes there, the data back) and the throughput of a
//! plain TCP stream. Each figure is the best of its 5 ms slices: what the machine gives while
//! nobody else uses it. FOLDER holds the file of the file backend (default: the working folder).
#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]
#![expect(clippy::cast_precision_loss, reason = "figures for people")]

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use capstan_initiator::{DirectQueue, Io, Op};
use capstan_reactor::{SpinBudget, pin_to_core};
use capstan_tests::host::options;
use capstan_tests::target::{SUBNQN, TestTarget};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// A slice long enough for thousands of operations and short enough to fall between interruptions.
const SLICE: Duration = Duration::from_millis(5);
const HOST_CORE: usize = 0;
const TARGET_CORE: usize = 1;
const VOLUME_BYTES: u64 = 1 << 30;

/// Counts in slices of time and keeps the best.
struct Slices {
    start: Instant,
    slice: Instant,
    count: u64,
    best_per_second: f64,
}

impl Slices {
    fn new() -> Self {
        let now = Instant::now();
        Self {
            start: now,
            slice: now,
            count: 0,
            best_per_second: 0.0,
        }
    }

    fn add(&mut self, count: u64) {
        self.count += count;
        let elapsed = self.slice.elapsed();
        if elapsed >= SLICE {
            let per_second = self.count as f64 / elapsed.as_secs_f64();
            self.best_per_second = self.best_per_second.max(per_second);
            self.count = 0;
            self.slice = Instant::now();
        }
    }

    fn over(&self, time: Duration) -> bool {
        self.start.elapsed() >= time
    }
}

fn tcp_pair() -> Result<(TcpStream, TcpStream), Failure> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let one = TcpStream::connect(listener.local_addr()?)?;
    let (other, _) = listener.accept()?;
    for stream in [&one, &other] {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
    }
    Ok((one, other))
}

/// Moves all of `len` bytes by a call that may not be ready; `false` when the peer has gone.
fn all(len: usize, mut step: impl FnMut(usize) -> std::io::Result<usize>) -> Result<bool, Failure> {
    let mut done = 0;
    while done < len {
        match step(done) {
            Ok(0) => return Ok(false),
            Ok(count) => done += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(false),
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(false),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(true)
}

fn receive(mut stream: &TcpStream, bytes: &mut [u8]) -> Result<bool, Failure> {
    all(bytes.len(), |at| stream.read(&mut bytes[at..]))
}

fn send(mut stream: &TcpStream, bytes: &[u8]) -> Result<bool, Failure> {
    all(bytes.len(), |at| stream.write(&bytes[at..]))
}

/// Round trips a second of 64 bytes there and `answer` bytes back.
fn ping_pong(answer: usize, time: Duration) -> Result<f64, Failure> {
    let (host, target) = tcp_pair()?;
    let server = thread::spawn(move || -> Result<(), Failure> {
        pin_to_core(TARGET_CORE)?;
        let (mut ask, reply) = ([0; 64], vec![1; answer]);
        while receive(&target, &mut ask)? && send(&target, &reply)? {}
        Ok(())
    });
    let (ask, mut reply) = ([2; 64], vec![0; answer]);
    let mut slices = Slices::new();
    while !slices.over(time) && send(&host, &ask)? && receive(&host, &mut reply)? {
        slices.add(1);
    }
    drop(host);
    server.join().map_err(|_| "the server thread panicked")??;
    Ok(slices.best_per_second)
}

/// Bytes a second one way, in writes of `size` bytes.
fn stream(size: usize, time: Duration) -> Result<f64, Failure> {
    let (mut sink, source) = tcp_pair()?;
    let sender = thread::spawn(move || -> Result<(), Failure> {
        pin_to_core(TARGET_CORE)?;
        let bytes = vec![1; size];
        while send(&source, &bytes)? {}
        Ok(())
    });
    let mut bytes = vec![0; 256 << 10];
    let mut slices = Slices::new();
    while !slices.over(time) {
        match sink.read(&mut bytes) {
            Ok(count) => slices.add(count as u64),
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(error) => return Err(error.into()),
        }
    }
    drop(sink);
    sender.join().map_err(|_| "the sender thread panicked")??;
    Ok(slices.best_per_second)
}

/// One workload on one namespace.
#[derive(Clone, Copy)]
struct Workload {
    nsid: u32,
    write: bool,
    bytes: u32,
    depth: u64,
}

/// I/Os a second.
fn nvme(target: &TestTarget, load: Workload, time: Duration) -> Result<f64, Failure> {
    let mut options = options(target.addresses[0], 1);
    options.data_memory_bytes = 64 << 20;
    options.queue_size = 129;
    let mut queue = DirectQueue::connect(&options)?;
    queue.set_spin(SpinBudget { spin_us: 1_000_000 });
    let nlb = load.bytes / 4096;
    let blocks = VOLUME_BYTES / u64::from(load.bytes);
    let mut random = 0x9E37_79B9_7F4A_7C15_u64;
    let mut io = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let slba = random % blocks * u64::from(nlb);
        let op = match load.write {
            true => Op::Write {
                slba,
                nlb,
                fua: false,
            },
            false => Op::Read { slba, nlb },
        };
        Io {
            nsid: load.nsid,
            op,
        }
    };
    for token in 0..load.depth {
        let buffer = queue.take(load.bytes).ok_or("no memory for data")?;
        queue
            .submit(token, io(), Some(buffer))
            .map_err(|refused| refused.reason)?;
    }
    let mut slices = Slices::new();
    while !slices.over(time) {
        if let Some(completion) = queue.poll() {
            completion.result?;
            slices.add(1);
            queue
                .submit(completion.token, io(), completion.buffer)
                .map_err(|refused| refused.reason)?;
        }
    }
    while queue.in_progress() > 0 {
        queue.poll();
    }
    queue.close();
    Ok(slices.best_per_second)
}

fn target(folder: &Path) -> Result<(TestTarget, std::path::PathBuf), Failure> {
    let file = folder.join(format!("capstan-ratios-{}.img", std::process::id()));
    let image = std::fs::File::create(&file)?;
    // Written, not sparse: holes would be read without the disk.
    let chunk = vec![7; 1 << 20];
    for _ in 0..VOLUME_BYTES >> 20 {
        (&image).write_all(&chunk)?;
    }
    image.sync_all()?;
    let target = TestTarget::start(&format!(
        "[target]\nreactors = [{TARGET_CORE}]\nspin = \"100ms\"\n\
         [[listener]]\naddress = \"127.0.0.1\"\nport = 0\n\
         [[subsystem]]\nnqn = \"{SUBNQN}\"\nallow_any_host = true\n\
         [[subsystem.namespace]]\nnull = \"1GiB\"\nlba = 4096\n\
         [[subsystem.namespace]]\nram = \"1GiB\"\nlba = 4096\n\
         [[subsystem.namespace]]\npath = \"{}\"\nlba = 4096\n",
        file.canonicalize()?.display()
    ));
    Ok((target, file))
}

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let seconds: f64 = arguments.next().map_or(Ok(1.0), |text| text.parse())?;
    let folder = arguments.next().unwrap_or_else(|| ".".to_owned());
    let time = Duration::from_secs_f64(seconds);
    pin_to_core(HOST_CORE)?;
    let small = ping_pong(4096, time)?;
    let wide = stream(128 << 10, time)?;
    println!(
        "plain TCP ping-pong 64 B / 4 KiB: {:.2} us a round trip",
        1e6 / small
    );
    println!("plain TCP stream in 128 KiB writes: {:.2} GB/s", wide / 1e9);
    let (target, file) = target(folder.as_ref())?;
    for (nsid, name) in [(1, "null"), (2, "ram"), (3, "file")] {
        for depth in [1, 32, 128] {
            let load = Workload {
                nsid,
                write: false,
                bytes: 4096,
                depth,
            };
            let rate = nvme(&target, load, time)?;
            println!(
                "{name:4} 4 KiB random read, depth {depth:3}: {:8.1} k IOPS, {:7.2} us each, {:.2} x the ping-pong's rate",
                rate / 1e3,
                1e6 * depth as f64 / rate,
                rate / small
            );
        }
        for write in [false, true] {
            let load = Workload {
                nsid,
                write,
                bytes: 128 << 10,
                depth: 16,
            };
            let rate = nvme(&target, load, time)? * f64::from(load.bytes);
            println!(
                "{name:4} 128 KiB random {}, depth 16: {:5.2} GB/s, {:.2} of the stream",
                if write { "write" } else { "read " },
                rate / 1e9,
                rate / wide
            );
        }
    }
    target.stop();
    std::fs::remove_file(file)?;
    Ok(())
}
