//! What the iWARP provider makes of loopback TCP: plain TCP and the provider in one run, one thread
//! and one core for each side.
//!
//! `cargo run --release -p capstan-rdma --no-default-features --example iwarp_bench [seconds]`
//!
//! The pattern is NVMe over RDMA: the host sends a 64-byte capsule; for a read the target answers
//! with an RDMA WRITE of the data and a 16-byte Send, for a write it pulls the data with an RDMA
//! READ and then sends the 16 bytes.
#![expect(
    unsafe_code,
    reason = "looks into registered memory, as a device would"
)]
#![expect(clippy::cast_possible_truncation, reason = "slot numbers are small")]
#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use capstan_memory::{Pages, Slab};
use capstan_rdma::contract::{
    Access, CmEventKind, CmId, CompletionQueue, ConnectParam, ConnectionManager, MemoryRegion,
    PrivateData, ProtectionDomain, QpConfig, QueuePair, RKey, ReceiveSource, Remote, SendOp,
    SendWr, Sge, WcOpcode, WcStatus, WorkCompletion,
};
use capstan_rdma::iwarp::{Config, CrcUse, Provider};
use capstan_rdma::pacing::do_not_pace;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrIn, bind, connect, listen, socket,
};
use nix::unistd::Pid;

const CAPSULE_BYTES: u32 = 64;
const RESPONSE_BYTES: u32 = 16;
const SLOTS: usize = 128;
/// Capsules and responses, then the data.
const DATA_AT: usize = 1 << 20;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Puts the calling thread on one core.
fn pin(core: usize) -> Result<(), Failure> {
    let mut set = CpuSet::new();
    set.set(core)?;
    Ok(sched_setaffinity(Pid::from_raw(0), &set)?)
}

/// Figures of one run.
#[derive(Clone, Copy)]
struct Figures {
    per_second: f64,
    bytes_per_second: f64,
    median_us: f64,
    /// Operations a second in the best slice: what the machine can do when nothing else uses it.
    best_per_second: f64,
}

/// Counts operations in slices of time.
struct Slices {
    start: Instant,
    slice_start: Instant,
    slice_count: u64,
    count: u64,
    best: f64,
}

const SLICE: Duration = Duration::from_millis(5);

impl Slices {
    fn new() -> Self {
        let now = Instant::now();
        Self {
            start: now,
            slice_start: now,
            slice_count: 0,
            count: 0,
            best: 0.0,
        }
    }

    fn add(&mut self, now: Instant, count: u64) {
        self.count += count;
        self.slice_count += count;
        let slice = now - self.slice_start;
        if slice >= SLICE {
            let rate = to_f64(self.slice_count) / slice.as_secs_f64();
            self.best = self.best.max(rate);
            self.slice_start = now;
            self.slice_count = 0;
        }
    }

    fn figures(&self, unit_bytes: u64, size: u64, mut latencies_ns: Vec<u32>) -> Figures {
        latencies_ns.sort_unstable();
        let median = latencies_ns.get(latencies_ns.len() / 2).copied();
        let seconds = self.start.elapsed().as_secs_f64();
        let bytes_per_second = to_f64(self.count * unit_bytes) / seconds;
        Figures {
            per_second: bytes_per_second / to_f64(size),
            bytes_per_second,
            median_us: f64::from(median.unwrap_or(0)) / 1000.0,
            best_per_second: self.best * to_f64(unit_bytes) / to_f64(size),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn to_f64(value: u64) -> f64 {
    value as f64
}

fn show(name: &str, figures: Figures, against: Option<(&str, f64)>) {
    let ratio = against.map_or_else(String::new, |(what, ratio)| {
        format!("  {ratio:5.2} x {what}")
    });
    let best_bytes = figures.bytes_per_second * figures.best_per_second / figures.per_second;
    println!(
        "{name:30} {:8.0}/s {:6.2} GB/s  best {:8.0}/s {:6.2} GB/s  median {:7.2} us{ratio}",
        figures.per_second,
        figures.bytes_per_second / 1e9,
        figures.best_per_second,
        best_bytes / 1e9,
        figures.median_us
    );
}

// ---- plain TCP --------------------------------------------------------------------------------

/// As the provider's: BBR's pacing would make the limit look low.
fn unpaced() -> Result<OwnedFd, Failure> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let socket = socket(AddressFamily::Inet, SockType::Stream, flags, None)?;
    do_not_pace(&socket);
    Ok(socket)
}

fn tcp_pair() -> Result<(TcpStream, TcpStream), Failure> {
    let (listener, a) = (unpaced()?, unpaced()?);
    let any_port = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0);
    bind(listener.as_raw_fd(), &SockaddrIn::from(any_port))?;
    listen(&listener, Backlog::new(1)?)?;
    let listener = TcpListener::from(listener);
    let SocketAddr::V4(to) = listener.local_addr()? else {
        return Err("a socket of IPv4 has another address".into());
    };
    connect(a.as_raw_fd(), &SockaddrIn::from(to))?;
    let a = TcpStream::from(a);
    let (b, _) = listener.accept()?;
    for stream in [&a, &b] {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
    }
    Ok((a, b))
}

fn read_exactly(mut stream: &TcpStream, bytes: &mut [u8]) -> Result<bool, Failure> {
    let mut at = 0;
    while at < bytes.len() {
        match stream.read(&mut bytes[at..]) {
            Ok(0) => return Ok(false),
            Ok(count) => at += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(false),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(true)
}

fn write_all(mut stream: &TcpStream, bytes: &[u8]) -> Result<bool, Failure> {
    let mut at = 0;
    while at < bytes.len() {
        match stream.write(&bytes[at..]) {
            Ok(count) => at += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error)
                if [ErrorKind::BrokenPipe, ErrorKind::ConnectionReset].contains(&error.kind()) =>
            {
                return Ok(false);
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(true)
}

/// 64 bytes there, `answer` bytes back, both sides polling.
fn tcp_ping_pong(answer: usize, time: Duration) -> Result<Figures, Failure> {
    let (host, target) = tcp_pair()?;
    let server = thread::spawn(move || -> Result<(), Failure> {
        pin(1)?;
        let (mut ask, reply) = ([0; 64], vec![1; answer]);
        while read_exactly(&target, &mut ask)? && write_all(&target, &reply)? {}
        Ok(())
    });
    let (ask, mut reply) = ([2; 64], vec![0; answer]);
    let mut latencies = Vec::new();
    let mut slices = Slices::new();
    while slices.start.elapsed() < time {
        let sent = Instant::now();
        write_all(&host, &ask)?;
        read_exactly(&host, &mut reply)?;
        let now = Instant::now();
        latencies.push(u32::try_from((now - sent).as_nanos())?);
        slices.add(now, 1);
    }
    let figures = slices.figures(answer as u64, answer as u64, latencies);
    drop(host);
    server.join().map_err(|_| "the server thread panicked")??;
    Ok(figures)
}

/// One way, in writes of `size` bytes; the reader reads what there is.
fn tcp_stream(size: usize, time: Duration) -> Result<Figures, Failure> {
    let (sink, source) = tcp_pair()?;
    let sender = thread::spawn(move || -> Result<(), Failure> {
        pin(1)?;
        let bytes = vec![1; size];
        while write_all(&source, &bytes)? {}
        Ok(())
    });
    let mut bytes = vec![0; 256 << 10];
    let mut slices = Slices::new();
    while slices.start.elapsed() < time {
        match (&sink).read(&mut bytes) {
            Ok(count) => slices.add(Instant::now(), count as u64),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
    }
    let figures = slices.figures(1, size as u64, Vec::new());
    drop(sink);
    sender.join().map_err(|_| "the sender thread panicked")??;
    Ok(figures)
}

// ---- the provider -----------------------------------------------------------------------------

struct Side {
    cm: Box<dyn ConnectionManager>,
    pd: Rc<dyn ProtectionDomain>,
    cq: Rc<dyn CompletionQueue>,
    mr: Rc<dyn MemoryRegion>,
    slab: Arc<Slab>,
    start: Instant,
}

impl Side {
    fn new(config: Config, data_bytes: usize) -> Result<Self, Failure> {
        let provider = Provider::new(config).map_err(|e| e.to_string())?;
        let device = provider.device();
        let text = |e: capstan_rdma::contract::RdmaError| e.to_string();
        let pd = device.allocate_pd().map_err(text)?;
        let slab = Slab::new(DATA_AT + data_bytes, Pages::Ordinary)?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let region = pd.register(&slab, 0, slab.len_bytes(), access);
        Ok(Self {
            cm: provider.connection_manager().map_err(text)?,
            mr: region.map_err(text)?,
            cq: device.create_cq(4096).map_err(text)?,
            pd,
            slab,
            start: Instant::now(),
        })
    }

    fn now_us(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    fn sge(&self, at: usize, len_bytes: u32) -> Sge {
        Sge {
            addr: self.mr.addr() + at as u64,
            len_bytes,
            lkey: self.mr.lkey(),
        }
    }

    fn qp(&mut self, id: CmId) -> Result<Box<dyn QueuePair>, Failure> {
        let config = QpConfig {
            send_cq: Rc::clone(&self.cq),
            recv_cq: Rc::clone(&self.cq),
            send_wr_max: 1024,
            receives: ReceiveSource::Own(SLOTS as u32),
            send_sge_max: 1,
            recv_sge_max: 1,
            inline_bytes: 0,
        };
        let qp = self.cm.create_qp(id, &self.pd, &config);
        let mut qp = qp.map_err(|e| e.to_string())?;
        for slot in 0..SLOTS {
            qp.post_recv(slot as u64, &[self.sge(slot * 64, CAPSULE_BYTES)])?;
        }
        Ok(qp)
    }

    fn event(&mut self, running: &AtomicBool) -> Result<Option<(CmId, CmEventKind)>, Failure> {
        while running.load(Ordering::Relaxed) {
            let now = self.now_us();
            if let Some(event) = self.cm.poll(now) {
                return Ok(Some((event.id, event.kind)));
            }
            self.cq.poll(&mut []);
        }
        Ok(None)
    }

    /// The slot number in the capsule of receive `wr_id`.
    fn slot_of(&self, wr_id: u64) -> usize {
        let at = (wr_id as usize % SLOTS) * 64;
        let from = self.slab.base().as_ptr().wrapping_add(at);
        // SAFETY: inside the slab; the receive has completed, so nothing writes there now.
        let slot = unsafe { from.cast::<u64>().read_unaligned() };
        slot as usize % SLOTS
    }
}

fn param(private: &[u8]) -> ConnectParam {
    ConnectParam {
        private_data: PrivateData::new(private).unwrap_or(PrivateData::EMPTY),
        responder_resources: 128,
        initiator_depth: 128,
        rnr_retry_count: 7,
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// The host reads: RDMA WRITE and a Send.
    Read,
    /// The host writes: RDMA READ, then a Send.
    Write,
}

fn wr(wr_id: u64, op: SendOp, sges: &[Sge], signaled: bool) -> SendWr<'_> {
    SendWr {
        wr_id,
        op,
        sges,
        signaled,
        fence: false,
    }
}

const SEND: SendOp = SendOp::Send {
    invalidate: None,
    solicited: false,
};

/// Where the host's data is, from the private data of its connect.
fn remote_of(private: &[u8]) -> Option<(u64, RKey)> {
    let addr = u64::from_le_bytes(private.get(..8)?.try_into().ok()?);
    let rkey = u32::from_le_bytes(private.get(8..12)?.try_into().ok()?);
    Some((addr, RKey(rkey)))
}

fn target(
    config: Config,
    kind: Kind,
    size: u32,
    address: &mpsc::Sender<SocketAddr>,
    running: &AtomicBool,
) -> Result<(), Failure> {
    pin(1)?;
    let mut side = Side::new(config, SLOTS * size as usize)?;
    let (_, at) = side.cm.listen("127.0.0.1:0".parse()?, 8)?;
    address.send(at)?;
    let Some((id, CmEventKind::ConnectRequest { param: asked, .. })) = side.event(running)? else {
        return Err("no connection request".into());
    };
    let (remote, rkey) = remote_of(asked.private_data.as_bytes()).ok_or("no address")?;
    let mut qp = side.qp(id)?;
    side.cm.accept(id, &param(&[]))?;
    side.event(running)?;
    let mut out = [WorkCompletion::EMPTY; 64];
    while running.load(Ordering::Relaxed) {
        let count = side.cq.poll(&mut out);
        for done in &out[..count] {
            if done.status != WcStatus::Success {
                return Ok(());
            }
            let host_slot = match done.opcode {
                WcOpcode::Recv => {
                    let slot = side.slot_of(done.wr_id);
                    let receive = (done.wr_id as usize % SLOTS) * 64;
                    qp.post_recv(done.wr_id, &[side.sge(receive, CAPSULE_BYTES)])?;
                    slot
                }
                WcOpcode::RdmaRead => done.wr_id as usize,
                _ => continue,
            };
            let at = host_slot * size as usize;
            let data = [side.sge(DATA_AT + at, size)];
            let addr = remote + (DATA_AT + at) as u64;
            let there = Remote { addr, rkey };
            let number = host_slot as u64;
            if kind == Kind::Write && done.opcode == WcOpcode::Recv {
                qp.post_send(&wr(number, SendOp::Read(there), &data, true))?;
                continue;
            }
            if kind == Kind::Read {
                qp.post_send(&wr(number, SendOp::Write(there), &data, false))?;
            }
            let response = [side.sge(32_768 + host_slot * 64, RESPONSE_BYTES)];
            qp.post_send(&wr(number, SEND, &response, false))?;
        }
        if count > 0 {
            qp.ring_doorbell();
        }
    }
    Ok(())
}

fn provider(
    config: &Config,
    kind: Kind,
    size: u32,
    depth: usize,
    time: Duration,
) -> Result<Figures, Failure> {
    let running = Arc::new(AtomicBool::new(true));
    let (tell, told) = mpsc::channel();
    let (for_target, target_running) = (config.clone(), Arc::clone(&running));
    let server = thread::spawn(move || target(for_target, kind, size, &tell, &target_running));
    let address = told.recv()?;
    let mut side = Side::new(config.clone(), SLOTS * size as usize)?;
    let id = side.cm.resolve(address, None, 1_000_000, 0)?;
    let mut qp = side.qp(id)?;
    let mut private = side.mr.addr().to_le_bytes().to_vec();
    private.extend(side.mr.rkey().0.to_le_bytes());
    let now = side.now_us();
    side.cm.connect(id, &param(&private), 5_000_000, now)?;
    for expected in ["Resolved", "Established"] {
        let (_, event) = side.event(&running)?.ok_or("stopped")?;
        if !format!("{event:?}").starts_with(expected) {
            return Err(format!("{event:?} instead of {expected}").into());
        }
    }
    // Capsules lie behind the receives; each holds its slot number.
    let capsule = |slot: usize| 16_384 + slot * 64;
    for slot in 0..SLOTS {
        let to = side.slab.base().as_ptr().wrapping_add(capsule(slot));
        // SAFETY: inside the slab; nothing is in flight yet.
        unsafe { to.cast::<u64>().write_unaligned(slot as u64) };
    }
    let mut sent = vec![Instant::now(); depth];
    // The target answers in order, so the oldest is the one answered.
    let mut oldest = 0;
    for (slot, sent) in sent.iter_mut().enumerate() {
        qp.post_send(&wr(
            0,
            SEND,
            &[side.sge(capsule(slot), CAPSULE_BYTES)],
            false,
        ))?;
        *sent = Instant::now();
    }
    qp.ring_doorbell();
    let mut latencies = Vec::with_capacity(1 << 20);
    let mut out = [WorkCompletion::EMPTY; 64];
    let mut slices = Slices::new();
    let mut now = slices.start;
    while now - slices.start < time {
        let count = side.cq.poll(&mut out);
        now = Instant::now();
        for done in &out[..count] {
            if done.status != WcStatus::Success {
                return Err(format!("a completion with {}", done.status).into());
            }
            let receive = (done.wr_id as usize % SLOTS) * 64;
            qp.post_recv(done.wr_id, &[side.sge(receive, CAPSULE_BYTES)])?;
            latencies.push(u32::try_from((now - sent[oldest]).as_nanos())?);
            sent[oldest] = now;
            qp.post_send(&wr(
                0,
                SEND,
                &[side.sge(capsule(oldest), CAPSULE_BYTES)],
                false,
            ))?;
            oldest = (oldest + 1) % depth;
        }
        slices.add(now, count as u64);
        if count > 0 {
            qp.ring_doorbell();
        }
    }
    let figures = slices.figures(u64::from(size), u64::from(size), latencies);
    running.store(false, Ordering::Relaxed);
    server.join().map_err(|_| "the target thread panicked")??;
    Ok(figures)
}

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let seconds: f64 = arguments.next().map_or(Ok(1.0), |s| s.parse())?;
    let only = arguments.next().unwrap_or_default();
    let time = Duration::from_secs_f64(seconds);
    pin(0)?;
    let wanted = |name: &str| name.contains(&only);

    // With a filter the limits are only touched on.
    let tcp_time = if only.is_empty() {
        time
    } else {
        Duration::from_millis(100)
    };
    let ping = tcp_ping_pong(4096, tcp_time)?;
    show("TCP ping-pong 64 B -> 4 KiB", ping, None);
    let stream4 = tcp_stream(4096, tcp_time)?;
    show("TCP stream, writes of 4 KiB", stream4, None);
    let stream128 = tcp_stream(128 << 10, tcp_time)?;
    show("TCP stream, writes of 128 KiB", stream128, None);

    for crc in [CrcUse::Always, CrcUse::Never] {
        let config = Config {
            crc,
            ..Config::default()
        };
        println!(
            "-- iWARP, CRC32c {}",
            if crc == CrcUse::Always { "on" } else { "off" }
        );
        for depth in [1, 32, 128] {
            let name = format!("read 4 KiB, depth {depth}");
            if !wanted(&name) {
                continue;
            }
            let figures = provider(&config, Kind::Read, 4096, depth, time)?;
            let against = if depth == 1 {
                (
                    "the ping-pong's round trip",
                    figures.median_us / ping.median_us,
                )
            } else {
                (
                    "the 4 KiB stream",
                    figures.best_per_second / stream4.best_per_second,
                )
            };
            show(&name, figures, Some(against));
        }
        for (name, kind) in [
            ("read 128 KiB, depth 16", Kind::Read),
            ("write 128 KiB, depth 16", Kind::Write),
        ] {
            if wanted(name) {
                let figures = provider(&config, kind, 128 << 10, 16, time)?;
                let ratio = figures.best_per_second / stream128.best_per_second;
                show(name, figures, Some(("the 128 KiB stream", ratio)));
            }
        }
    }
    Ok(())
}
