//! What NVMe over iWARP makes of loopback TCP: plain TCP and Capstan in one run, one thread and one
//! core for each side.
//!
//! `cargo run --release -p capstan-tests --example ratios [SECONDS [FOLDER]]`
//!
//! Machines differ and are noisy, so every figure stands beside a limit measured in the same run:
//! the round trip of a plain TCP ping-pong (64 bytes there, the data back) and the throughput of a
//! plain TCP stream, and for the file backend fio's io_uring engine on the same file. A figure is the
//! median of 5 ms slices; the best one, what the machine gives while nobody else uses it, stands
//! beside it. FOLDER holds the file of the file backend (default: the working folder).
#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]
#![expect(clippy::cast_precision_loss, reason = "figures for people")]

use std::ffi::OsString;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use capstan_initiator::{DirectQueue, Io, Op};
use capstan_reactor::{SpinBudget, pin_to_core};
use capstan_tests::host::options;
use capstan_tests::target::{SUBNQN, TestTarget};
use nix::sys::socket::{setsockopt, sockopt};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// A slice long enough for thousands of operations and short enough to fall between interruptions.
const SLICE: Duration = Duration::from_millis(5);
const HOST_CORE: usize = 0;
const TARGET_CORE: usize = 1;
const VOLUME_BYTES: u64 = 1 << 30;

/// How often a second something happened.
#[derive(Clone, Copy)]
struct Rate {
    /// In the median slice.
    median: f64,
    /// In the best slice: what the machine gives while nobody else uses it.
    best: f64,
}

/// Counts in slices of time.
struct Slices {
    start: Instant,
    slice: Instant,
    count: u64,
    per_second: Vec<f64>,
}

impl Slices {
    fn new() -> Self {
        let now = Instant::now();
        Self {
            start: now,
            slice: now,
            count: 0,
            per_second: Vec::new(),
        }
    }

    fn add(&mut self, count: u64) {
        self.count += count;
        let elapsed = self.slice.elapsed();
        if elapsed >= SLICE {
            self.per_second
                .push(self.count as f64 / elapsed.as_secs_f64());
            self.count = 0;
            self.slice = Instant::now();
        }
    }

    fn over(&self, time: Duration) -> bool {
        self.start.elapsed() >= time
    }

    fn rate(mut self) -> Rate {
        self.per_second.sort_by(f64::total_cmp);
        let at = |index: usize| self.per_second.get(index).copied().unwrap_or_default();
        Rate {
            median: at(self.per_second.len() / 2),
            best: at(self.per_second.len().saturating_sub(1)),
        }
    }
}

fn tcp_pair() -> Result<(TcpStream, TcpStream), Failure> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let one = TcpStream::connect(listener.local_addr()?)?;
    let (other, _) = listener.accept()?;
    for stream in [&one, &other] {
        stream.set_nodelay(true)?;
        // As the provider: BBR's pacing would make the limit look low.
        setsockopt(stream, sockopt::TcpCongestion, &OsString::from("cubic"))?;
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
fn ping_pong(answer: usize, time: Duration) -> Result<Rate, Failure> {
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
    Ok(slices.rate())
}

/// Bytes a second one way, in writes of `size` bytes.
fn stream(size: usize, time: Duration) -> Result<Rate, Failure> {
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
    Ok(slices.rate())
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
fn nvme(target: &TestTarget, load: Workload, time: Duration) -> Result<Rate, Failure> {
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
    Ok(slices.rate())
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

/// Writes the whole namespace, so that no figure contains the first touch of its memory.
fn fill(target: &TestTarget, nsid: u32) -> Result<(), Failure> {
    let bytes: u32 = 128 << 10;
    let mut queue = DirectQueue::connect(&options(target.addresses[0], 1))?;
    for at in 0..VOLUME_BYTES / u64::from(bytes) {
        let nlb = bytes / 4096;
        let op = Op::Write {
            slba: at * u64::from(nlb),
            nlb,
            fua: false,
        };
        let buffer = queue.take(bytes).ok_or("no memory for data")?;
        queue
            .submit(0, Io { nsid, op }, Some(buffer))
            .map_err(|refused| refused.reason)?;
        let completion = loop {
            if let Some(completion) = queue.poll() {
                break completion;
            }
        };
        completion.result?;
    }
    queue.close();
    Ok(())
}

/// I/Os a second of fio's io_uring engine on the file itself, or why there is no figure.
fn local(file: &Path, load: Workload, time: Duration) -> Result<f64, String> {
    let output = Command::new("fio")
        .args(["--name=local", "--ioengine=io_uring", "--direct=1"])
        .arg(format!("--filename={}", file.display()))
        .arg(if load.write {
            "--rw=randwrite"
        } else {
            "--rw=randread"
        })
        .arg(format!("--bs={}", load.bytes))
        .arg(format!("--iodepth={}", load.depth))
        .arg(format!("--cpus_allowed={HOST_CORE}"))
        .arg(format!("--runtime={}ms", time.as_millis()))
        .args(["--time_based", "--output-format=json"])
        .output()
        .map_err(|error| format!("fio does not start: {error}; apt-get install fio"))?;
    let complaint = || String::from_utf8_lossy(&output.stderr).into_owned();
    let report: serde_json::Value =
        serde_json::from_slice(&output.stdout).map_err(|_| complaint())?;
    let direction = if load.write { "write" } else { "read" };
    report["jobs"][0][direction]["iops"]
        .as_f64()
        .ok_or_else(complaint)
}

/// What a workload is compared with.
struct Limits {
    ping_pong: Rate,
    stream: Rate,
}

fn report(name: &str, load: Workload, rate: Rate, limits: &Limits) {
    let direction = if load.write { "write" } else { "read" };
    let size = load.bytes >> 10;
    let depth = load.depth;
    print!("{name:4} {size:3} KiB random {direction:5}, depth {depth:3}: ");
    if load.bytes > 4096 {
        let bytes = f64::from(load.bytes);
        println!(
            "{:6.2} GB/s (best {:5.2}), {:.2} of the stream",
            rate.median * bytes / 1e9,
            rate.best * bytes / 1e9,
            rate.median * bytes / limits.stream.median
        );
    } else {
        println!(
            "{:6.1} k IOPS (best {:6.1}), {:7.2} us each, {:.2} commands a round trip",
            rate.median / 1e3,
            rate.best / 1e3,
            1e6 * depth as f64 / rate.median,
            rate.median / limits.ping_pong.median
        );
    }
}

const fn workload(nsid: u32, write: bool, bytes: u32, depth: u64) -> Workload {
    Workload {
        nsid,
        write,
        bytes,
        depth,
    }
}

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let seconds: f64 = arguments.next().map_or(Ok(1.0), |text| text.parse())?;
    let folder = arguments.next().unwrap_or_else(|| ".".to_owned());
    let time = Duration::from_secs_f64(seconds);
    pin_to_core(HOST_CORE)?;
    let limits = Limits {
        ping_pong: ping_pong(4096, time)?,
        stream: stream(128 << 10, time)?,
    };
    println!(
        "plain TCP ping-pong 64 B / 4 KiB: {:.2} us a round trip (best {:.2})",
        1e6 / limits.ping_pong.median,
        1e6 / limits.ping_pong.best
    );
    println!(
        "plain TCP stream in 128 KiB writes: {:.2} GB/s (best {:.2})",
        limits.stream.median / 1e9,
        limits.stream.best / 1e9
    );
    let (target, file) = target(folder.as_ref())?;
    for (nsid, name) in [(1, "null"), (2, "ram"), (3, "file")] {
        if name == "ram" {
            fill(&target, nsid)?;
        }
        for load in [
            workload(nsid, false, 4096, 1),
            workload(nsid, false, 4096, 32),
            workload(nsid, false, 4096, 128),
            workload(nsid, true, 4096, 128),
            workload(nsid, false, 128 << 10, 16),
            workload(nsid, true, 128 << 10, 16),
        ] {
            let rate = nvme(&target, load, time)?;
            report(name, load, rate, &limits);
            if name == "file" {
                match local(&file, load, time) {
                    Ok(iops) => println!(
                        "     fio io_uring on the file itself: {:.1} k IOPS; {:.2} of it over NVMe",
                        iops / 1e3,
                        rate.median / iops
                    ),
                    Err(reason) => println!("     SKIPPED fio on the file itself: {reason}"),
                }
            }
        }
    }
    target.stop();
    std::fs::remove_file(file)?;
    Ok(())
}
