//! The target as a process of its own, and hosts that load it from here.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use capstan_initiator::{Completion, DirectQueue, Io, Op, Options, Transport};
use capstan_memory::Buffer;
use capstan_nvme_proto::nqn::Nqn;
use capstan_rdma::{ProviderKind, iwarp};
use capstan_reactor::{SpinBudget, pin_to_core};
use capstan_tests::host;
use capstan_tests::program::{Daemon, own_address, signal};
use capstan_tests::target::SUBNQN;
use nix::sys::signal::Signal;

use crate::slices::Slices;
use crate::{HOST_CORE, TARGET_CORE};

/// Of every namespace that is not a file.
pub(crate) const VOLUME_BYTES: u64 = 1 << 30;
/// Of every LBA.
pub(crate) const LBA_BYTES: u32 = 4096;
/// Longest wait without sleep: for ever, for hosts that share their core with nobody.
const SPIN: SpinBudget = SpinBudget { spin_us: 1_000_000 };

/// A target that runs until it is dropped.
pub(crate) struct Target {
    pub(crate) daemon: Daemon,
    pub(crate) address: SocketAddr,
}

impl Target {
    /// With the lines of the table `[target]` and one namespace for each of `backings`, in order.
    pub(crate) fn start(table: &str, backings: &[&str]) -> Result<Self> {
        Self::start_under(&[], table, backings)
    }

    /// Run by `tool`: a command and its arguments that put themselves before a program.
    pub(crate) fn start_under(tool: &[&str], table: &str, backings: &[&str]) -> Result<Self> {
        Self::start_with("iwarp", tool, table, backings)
    }

    /// The same, over a provider of RDMA.
    pub(crate) fn start_with(
        provider: &str,
        tool: &[&str],
        table: &str,
        backings: &[&str],
    ) -> Result<Self> {
        let address = own_address();
        let mut toml = format!(
            "[target]\n{table}\n[queues]\ndepth_max = 256\n\
             [[listener]]\naddress = \"{}\"\nport = {}\nprovider = \"{provider}\"\n\
             [[subsystem]]\nnqn = \"{SUBNQN}\"\nallow_any_host = true\n",
            address.ip(),
            address.port(),
        );
        for backing in backings {
            toml += &format!("[[subsystem.namespace]]\n{backing}\nlba = {LBA_BYTES}\n");
        }
        let file = tempfile::NamedTempFile::new()?;
        std::fs::write(file.path(), toml)?;
        let path = file.path().to_str().context("a path of text")?;
        let daemon = Daemon::serve_under(tool, &["--config", path]);
        Ok(Self { daemon, address })
    }

    /// Does something else on the target's core, where it would spin beside it.
    pub(crate) fn aside<T>(&self, work: impl FnOnce() -> T) -> T {
        signal(self.daemon.pid(), Signal::SIGSTOP);
        let done = work();
        signal(self.daemon.pid(), Signal::SIGCONT);
        done
    }

    /// One spinning reactor on the target's core.
    pub(crate) fn spinning(backings: &[&str]) -> Result<Self> {
        let table = format!("reactors = [{TARGET_CORE}]\nspin = \"100ms\"");
        Self::start(&table, backings)
    }
}

/// Namespaces as `[[subsystem.namespace]]` says them.
pub(crate) const NULL: &str = "null = \"1GiB\"";
pub(crate) const RAM: &str = "ram = \"1GiB\"";

/// Runs `work` on a thread of the host's core.
pub(crate) fn on_host_core<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    on_core(HOST_CORE, work)
}

/// Runs `work` on a thread of a core.
pub(crate) fn on_core<T: Send>(core: usize, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let pinned = || {
        pin_to_core(core).with_context(|| format!("pinning to core {core}"))?;
        work()
    };
    thread::scope(|scope| scope.spawn(pinned).join())
        .map_err(|_| anyhow!("the host on core {core} panicked; its message is above"))?
}

/// How the bytes go between a host and the target, which are on one machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    /// Over TCP; without CRCs, as the two are on one machine.
    Tcp,
    /// Over TCP, with the CRC32c that there is between two machines.
    TcpCrc32c,
    /// Through the shared memory that both have. It is what they take when nobody says otherwise.
    SharedMemory,
    /// By NVMe/TCP instead of NVMe/RDMA, without digests.
    NvmeTcp,
    /// Over a verbs device: the one in software that the two have loaded.
    VerbsDevice,
}

/// One workload on one namespace: random addresses, always as many commands in progress.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) nsid: u32,
    pub(crate) write: bool,
    pub(crate) bytes: u32,
    pub(crate) depth: u16,
    pub(crate) link: Link,
}

impl Load {
    /// Random reads.
    pub(crate) const fn read(nsid: u32, bytes: u32, depth: u16) -> Self {
        Self {
            nsid,
            write: false,
            bytes,
            depth,
            link: Link::Tcp,
        }
    }

    /// Random writes.
    pub(crate) const fn write(nsid: u32, bytes: u32, depth: u16) -> Self {
        Self {
            write: true,
            ..Self::read(nsid, bytes, depth)
        }
    }

    /// The same, with the bytes going over that link.
    pub(crate) const fn over(self, link: Link) -> Self {
        Self { link, ..self }
    }
}

/// How long each command of a load takes. SPDK's load and fio keep it, so a comparison that does
/// not would be in our favour.
struct Latencies {
    /// By token.
    submitted: Vec<Instant>,
    least: Duration,
    most: Duration,
    total: Duration,
}

impl Latencies {
    fn new(depth: u16) -> Self {
        Self {
            submitted: vec![Instant::now(); usize::from(depth)],
            least: Duration::MAX,
            most: Duration::ZERO,
            total: Duration::ZERO,
        }
    }

    fn submits(&mut self, token: u64) {
        self.submitted[place(token)] = Instant::now();
    }

    fn completed(&mut self, token: u64) {
        let latency = self.submitted[place(token)].elapsed();
        self.least = self.least.min(latency);
        self.most = self.most.max(latency);
        self.total += latency;
    }
}

/// Of a command among those of a load, whose tokens are below its depth.
fn place(token: u64) -> usize {
    usize::try_from(token).expect("a token below the depth")
}

/// Commands after which a load looks at the clock at the latest.
const CLOCK_COMMANDS: u64 = 64;

/// A host with a workload.
pub(crate) struct Loader {
    pub(crate) queue: DirectQueue,
    load: Load,
    random: u64,
    /// For workloads that go from the first LBA to the last.
    next: Option<u64>,
    /// Whether it sleeps until something has come, as its queue is told to.
    sleeps: bool,
    /// Only while time is measured: what is counted is the host, not the clock.
    latencies: Option<Latencies>,
}

impl Loader {
    /// The `number`th host of the target at `address`.
    pub(crate) fn connect(address: SocketAddr, number: u16, load: Load) -> Result<Self> {
        let queue = connect(&options(address, number, load), load.link)
            .with_context(|| format!("connecting host {number}"))?;
        Ok(Self {
            queue,
            load,
            random: 0x9E37_79B9_7F4A_7C15 ^ u64::from(number) << 17,
            next: None,
            sleeps: false,
            latencies: None,
        })
    }

    fn io(&mut self) -> Io {
        let nlb = self.load.bytes / LBA_BYTES;
        let blocks = VOLUME_BYTES / u64::from(self.load.bytes);
        let block = if let Some(next) = &mut self.next {
            *next += 1;
            *next - 1
        } else {
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            self.random
        };
        let slba = block % blocks * u64::from(nlb);
        let op = match self.load.write {
            true => Op::Write {
                slba,
                nlb,
                fua: false,
            },
            false => Op::Read { slba, nlb },
        };
        Io {
            nsid: self.load.nsid,
            op,
        }
    }

    /// Submits the commands that are always in progress from now on.
    pub(crate) fn begin(&mut self) -> Result<()> {
        for token in 0..self.load.depth {
            let buffer = self.queue.take(self.load.bytes);
            let buffer = buffer.context("no memory for data")?;
            self.submit(u64::from(token), Some(buffer))?;
        }
        Ok(())
    }

    fn submit(&mut self, token: u64, buffer: Option<Buffer>) -> Result<()> {
        let io = self.io();
        if let Some(latencies) = &mut self.latencies {
            latencies.submits(token);
        }
        let taken = self.queue.submit(token, io, buffer);
        Ok(taken.map_err(|refused| refused.reason)?)
    }

    /// Submits another command for one that has ended.
    pub(crate) fn again(&mut self, completion: Completion) -> Result<()> {
        completion.result?;
        if let Some(latencies) = &mut self.latencies {
            latencies.completed(completion.token);
        }
        self.submit(completion.token, completion.buffer)
    }

    /// The next completion, or none yet.
    fn completion(&mut self) -> Option<Completion> {
        match self.sleeps {
            true => self.queue.wait(None),
            false => self.queue.poll(),
        }
    }

    /// Does `count` more commands.
    pub(crate) fn go_on(&mut self, count: u64) -> Result<()> {
        let mut left = count;
        while left > 0 {
            if let Some(completion) = self.completion() {
                left -= 1;
                self.again(completion)?;
            }
        }
        Ok(())
    }

    /// All commands from now on are for the first block.
    pub(crate) fn stay_at_first_block(&mut self) {
        // What 0 becomes when it is shifted and XORed.
        self.random = 0;
    }

    /// Waits for the commands in progress.
    pub(crate) fn end(mut self) -> Result<()> {
        while self.queue.in_progress() > 0 {
            if let Some(completion) = self.completion() {
                completion.result?;
            }
        }
        self.queue.close();
        Ok(())
    }

    /// Works for a time, spinning, and keeps the latency of every command.
    pub(crate) fn run(mut self, time: Duration) -> Result<Slices> {
        self.latencies = Some(Latencies::new(self.load.depth));
        self.begin()?;
        let mut slices = Slices::new();
        while !slices.over(time) {
            let mut count = 0;
            while let Some(completion) = self.queue.poll() {
                count += 1;
                self.again(completion)?;
                if count == CLOCK_COMMANDS {
                    break;
                }
            }
            slices.add(count);
        }
        // The rows tell rates: the compiler must not find out that nothing looks at these.
        std::hint::black_box(self.latencies.take());
        self.end()?;
        Ok(slices)
    }

    /// Does `count` commands, spinning.
    pub(crate) fn run_count(mut self, count: u64) -> Result<()> {
        let depth = u64::from(self.load.depth);
        if count < depth {
            bail!("{count} commands are fewer than the depth of {depth}");
        }
        self.begin()?;
        self.go_on(count - depth)?;
        self.end()
    }
}

/// Connects a host that goes over TCP.
pub(crate) fn connect_over_tcp(options: &Options) -> Result<DirectQueue> {
    connect(options, Link::Tcp)
}

fn connect(options: &Options, link: Link) -> Result<DirectQueue> {
    if link == Link::NvmeTcp {
        let options = Options {
            transport: Transport::Tcp,
            ..options.clone()
        };
        return Ok(DirectQueue::connect(&options)?);
    }
    if link == Link::VerbsDevice {
        let manager = ProviderKind::Verbs.connection_manager()?;
        return Ok(DirectQueue::connect_through(options, manager)?);
    }
    let mut config = iwarp::Config {
        same_host: link == Link::SharedMemory,
        ..iwarp::Config::default()
    };
    if link == Link::TcpCrc32c {
        config.crc = iwarp::CrcUse::Always;
    }
    let manager = iwarp::Provider::new(config)?.connection_manager()?;
    Ok(DirectQueue::connect_through(options, manager)?)
}

/// Options of the `number`th host, with memory for a workload. It sends no Keep Alive: how many
/// there are is up to the clock, and a count is to be the same on a slow machine.
pub(crate) fn options(address: SocketAddr, number: u16, load: Load) -> Options {
    let mut options = host::options(address, 0);
    options.hostid.0[14..].copy_from_slice(&number.to_be_bytes());
    let hostnqn = format!("nqn.2026-11.org.example:load-{number}");
    options.hostnqn = Nqn::new(&hostnqn).expect("a valid NQN");
    options.queue_size = load.depth + 1;
    options.data_memory_bytes = load.bytes as usize * usize::from(load.depth);
    options.keep_alive_tmo = Duration::ZERO;
    options
}

/// I/Os a second of one spinning host on the host's core: in the median slice, and altogether.
pub(crate) fn rate(address: SocketAddr, load: Load, time: Duration) -> Result<Slices> {
    on_host_core(|| {
        let mut loader = Loader::connect(address, 1, load)?;
        loader.queue.set_spin(SPIN);
        loader.run(time)
    })
}

/// Does `count` commands with one spinning host on the host's core.
pub(crate) fn count(address: SocketAddr, load: Load, count: u64) -> Result<()> {
    on_host_core(|| {
        let mut loader = Loader::connect(address, 1, load)?;
        loader.queue.set_spin(SPIN);
        loader.run_count(count)
    })
}

/// As [`count`], but the host sleeps while it has nothing to do.
pub(crate) fn count_sleeping(address: SocketAddr, load: Load, count: u64) -> Result<()> {
    on_host_core(|| {
        let mut loader = Loader::connect(address, 1, load)?;
        loader.queue.set_spin(SpinBudget { spin_us: 0 });
        loader.sleeps = true;
        loader.run_count(count)
    })
}

/// Writes a whole namespace, so that no figure contains the first touch of its memory.
pub(crate) fn fill(address: SocketAddr, nsid: u32) -> Result<()> {
    let load = Load::write(nsid, 128 << 10, 16);
    on_host_core(|| {
        let mut loader = Loader::connect(address, 1, load)?;
        loader.next = Some(0);
        loader.run_count(VOLUME_BYTES / u64::from(load.bytes))
    })
}
