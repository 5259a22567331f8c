//! What attacks over the raw wire have in common: the attacker's side of a connection, byte by
//! byte, and the permitted host that must not notice.

mod connects;
pub mod file_target;
mod sharing;

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use capstan_initiator::{DirectQueue, Op};
use capstan_nvme_proto::command::{AdminCommand, FabricsCommand, GetLogPage};
use capstan_nvme_proto::fabrics::{Cattr, Connect, ConnectParameters, PropertySet};
use capstan_nvme_proto::log::LogPageId;
use capstan_nvme_proto::property::{Cc, Property};
use capstan_nvme_proto::rdma_cm::CmRequest;
use capstan_nvme_proto::sgl::Sgl;
use capstan_nvme_proto::sqe::Sqe;
use capstan_rdma::iwarp::wire::ddp::{Control, Opcode, QN_SEND, UntaggedHeader, pad_bytes};
use capstan_rdma::iwarp::wire::mpa::{FRAME_BYTES, Frame, FrameKind};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect, setsockopt, socket, sockopt,
};
use zerocopy::IntoBytes;
use zerocopy::network_endian::{U16, U32};

pub use connects::Connects;
pub use sharing::connect_sharing;

use crate::host::{options, run};
use crate::process::{held_bytes_of, resident_bytes_of};

/// Where an attack comes from when it does not share the address of the permitted host, which is
/// 127.0.0.1.
pub const ELSEWHERE: Ipv4Addr = Ipv4Addr::new(127, 9, 9, 9);
/// Entries of the attackers' queues.
const ENTRIES: u16 = 32;
/// How long an attacker waits for an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Connects that are timed during an attack.
const CONNECTS: u8 = 20;
const LBA_BYTES: usize = 4096;

/// A TCP connection from `source`, and not a byte on it.
///
/// # Errors
/// The target does not take it, or there are no descriptors.
pub fn tcp(target: SocketAddr, source: Ipv4Addr) -> io::Result<TcpStream> {
    let SocketAddr::V4(target) = target else {
        return Err(io::ErrorKind::AddrNotAvailable.into());
    };
    let flags = SockFlag::SOCK_CLOEXEC;
    let fd = socket(AddressFamily::Inet, SockType::Stream, flags, None)?;
    // Thousands of connections to one port need no port of their own each.
    setsockopt(&fd, sockopt::IpBindAddressNoPort, &true)?;
    bind(
        fd.as_raw_fd(),
        &SockaddrIn::from(SocketAddrV4::new(source, 0)),
    )?;
    connect(fd.as_raw_fd(), &SockaddrIn::from(target))?;
    let stream = TcpStream::from(fd);
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// The MPA Request of a host that asks for queue `qid`.
///
/// # Panics
/// Never: it fits.
#[must_use]
pub fn mpa_request(qid: u16) -> Vec<u8> {
    let request = CmRequest {
        qid,
        hrqsize: ENTRIES,
        // As large as it may be by default: the target keeps a receive for every entry.
        hsqsize: if qid == 0 { ENTRIES.into() } else { 128 },
        cntlid: 0,
    };
    let frame = Frame {
        kind: FrameKind::Request,
        markers: false,
        crc: false,
        reject: false,
        large_fpdus: false,
        same_host: false,
        // The connecting side may send as soon as it has the Reply.
        revision: 1,
        enhanced: None,
    };
    let private_data = request.encode().expect("a size that can be encoded");
    let bytes = frame.encode(private_data.as_bytes());
    bytes.expect("32 bytes of private data")
}

/// A Connect capsule of a host with these names. Its data is behind the SQE, or, when it is
/// `pulled`, at an address that the target is to read by RDMA.
#[must_use]
pub fn connect_capsule(
    cid: u16,
    qid: u16,
    kato_ms: u32,
    parameters: &ConnectParameters,
    pulled: bool,
) -> Vec<u8> {
    let connect = Connect {
        qid,
        sqsize: ENTRIES.into(),
        cattr: Cattr(0),
        kato_ms,
    };
    let data = parameters.encode();
    let length_bytes = u32::try_from(data.as_bytes().len()).unwrap_or(0);
    let sgl = if pulled {
        Sgl::Keyed {
            address: 0x1000,
            length_bytes,
            rkey: 0x1234_5601,
            invalidate: false,
        }
    } else {
        Sgl::InCapsule {
            offset_bytes: 0,
            length_bytes,
        }
    };
    let sqe: Sqe = FabricsCommand::Connect(connect).encode(cid, sgl);
    let mut capsule = sqe.as_bytes().to_vec();
    if !pulled {
        capsule.extend_from_slice(data.as_bytes());
    }
    capsule
}

/// A Send as one FPDU, without a CRC.
///
/// # Panics
/// When the payload is longer than an FPDU.
#[must_use]
pub fn fpdu(msn: u32, payload: &[u8]) -> Vec<u8> {
    let header = UntaggedHeader {
        ulpdu_length: U16::new(0),
        control: Control::new(false, true, Opcode::SEND),
        invalidate_stag: U32::new(0),
        qn: U32::new(QN_SEND),
        msn: U32::new(msn),
        mo: U32::new(0),
    };
    let mut bytes = [header.as_bytes(), payload].concat();
    let length = u16::try_from(bytes.len() - 2).expect("one FPDU");
    bytes[..2].copy_from_slice(&length.to_be_bytes());
    bytes.resize(bytes.len() + pad_bytes(bytes.len()), 0);
    bytes.extend([0; 4]);
    bytes
}

/// The attacker's end of a connection that was accepted.
pub struct Stranger {
    /// The socket.
    pub stream: TcpStream,
    msn: u32,
}

impl Stranger {
    /// Connects as far as the MPA Reply, from `source`, as queue `qid`.
    ///
    /// # Errors
    /// The target does not take it, or refuses it.
    pub fn connect(target: SocketAddr, source: Ipv4Addr, qid: u16) -> io::Result<Self> {
        let mut stream = tcp(target, source)?;
        stream.write_all(&mpa_request(qid))?;
        let mut reply = [0; FRAME_BYTES];
        stream.read_exact(&mut reply)?;
        // RFC 5044 §7.1.1: the reject flag, and the length of the private data.
        if reply[16] & 0x20 != 0 {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let mut private_data = vec![0; usize::from(u16::from_be_bytes([reply[18], reply[19]]))];
        stream.read_exact(&mut private_data)?;
        Ok(Self { stream, msn: 1 })
    }

    /// Sends a capsule.
    ///
    /// # Errors
    /// The target has ended the connection.
    pub fn send(&mut self, capsule: &[u8]) -> io::Result<()> {
        let bytes = fpdu(self.msn, capsule);
        self.msn += 1;
        self.stream.write_all(&bytes)
    }

    /// Makes the controller of its Admin queue, which is connected with `parameters`.
    ///
    /// # Errors
    /// As [`Stranger::send`].
    ///
    /// # Panics
    /// Never: CC has a size.
    pub fn associate(&mut self, parameters: &ConnectParameters) -> io::Result<()> {
        self.send(&connect_capsule(0, 0, 120_000, parameters, false))?;
        self.hears();
        self.enable()
    }

    /// Enables the controller of its Admin queue.
    ///
    /// # Errors
    /// As [`Stranger::send`].
    ///
    /// # Panics
    /// Never: CC has a size.
    pub fn enable(&mut self) -> io::Result<()> {
        let enable = PropertySet {
            property: Property::CC,
            size: Property::CC.size().expect("CC has a size"),
            value: Cc::ENABLE_NVM.encode().into(),
        };
        let sqe = FabricsCommand::PropertySet(enable).encode(0, Sgl::EMPTY);
        self.send(sqe.as_bytes())?;
        self.hears();
        Ok(())
    }

    /// Asks for a mebibyte of the log page `lid`.
    ///
    /// # Errors
    /// As [`Stranger::send`].
    pub fn ask_for_page(&mut self, cid: u16, lid: LogPageId) -> io::Result<()> {
        let length_bytes = 1 << 20;
        let get = GetLogPage {
            nsid: 0,
            ..GetLogPage::new(lid, length_bytes.into())
        };
        let sgl = Sgl::Keyed {
            address: 0,
            length_bytes,
            rkey: 0x1001,
            invalidate: false,
        };
        let sqe = AdminCommand::GetLogPage(get).encode(cid, sgl);
        self.send(sqe.as_bytes())
    }

    /// Waits until something comes: whether it is more than the end of the connection.
    pub fn hears(&mut self) -> bool {
        matches!(self.stream.read(&mut [0; 256]), Ok(1..))
    }
}

/// Counts the response capsules in what a target sends.
#[derive(Default)]
struct Responses {
    /// The beginning of an FPDU.
    head: Vec<u8>,
    /// Bytes of it that are still to come.
    left: usize,
}

impl Responses {
    fn count(&mut self, mut bytes: &[u8]) -> usize {
        let mut count = 0;
        while let [first, rest @ ..] = bytes {
            if self.left > 0 {
                let skipped = self.left.min(bytes.len());
                self.left -= skipped;
                bytes = &bytes[skipped..];
                continue;
            }
            self.head.push(*first);
            bytes = rest;
            if let [high, low, _, rdmap] = self.head[..] {
                let length = 2 + usize::from(u16::from_be_bytes([high, low]));
                // With the CRC, without these four bytes.
                self.left = length + pad_bytes(length);
                // RFC 5040, figure 4: Send, with Invalidate, and both with Solicited Event.
                count += usize::from((3..=6).contains(&(rdmap & 0xF)));
                self.head.clear();
            }
        }
        count
    }
}

/// Connections from `source`, one for each of `parameters`, that each keep as many commands
/// outstanding as their Admin queue takes: a mebibyte of the log page `lid`, whose data they take.
/// They come again when they are ended. `answered` counts the responses, whose data is a few KiB.
///
/// # Panics
/// When the data of a response is more than that.
pub fn ask_for_pages_without_end(
    (target, source): (SocketAddr, Ipv4Addr),
    parameters: &[ConnectParameters],
    lid: LogPageId,
    answered: &AtomicUsize,
    stop: &AtomicBool,
) {
    let ask = |parameters: &ConnectParameters| -> io::Result<()> {
        let mut stranger = Stranger::connect(target, source, 0)?;
        stranger.associate(parameters)?;
        let mut cids = (1..0x7FFF).cycle();
        let mut due = usize::from(ENTRIES) - 4;
        let (mut taken, mut all) = (0, 0);
        let (mut responses, mut bytes) = (Responses::default(), vec![0; 64 << 10]);
        while !stop.load(Ordering::Relaxed) {
            for cid in cids.by_ref().take(due) {
                stranger.ask_for_page(cid, lid)?;
            }
            let length = stranger.stream.read(&mut bytes)?;
            if length == 0 {
                return Ok(());
            }
            due = responses.count(&bytes[..length]);
            (taken, all) = (taken + length, all + due);
            answered.fetch_add(due, Ordering::Relaxed);
            assert!(
                taken <= (all + 1) * (16 << 10),
                "{taken} bytes for {all} log pages of a few KiB"
            );
        }
        Ok(())
    };
    thread::scope(|scope| {
        for parameters in parameters {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    // To be ended, or refused, is one way for it to go.
                    drop(ask(parameters));
                }
            });
        }
    });
}

/// What a permitted host had to bear, and the target.
#[derive(Clone, Debug)]
pub struct Figures {
    /// Reads of 4 KiB at depth 1, in microseconds, the longest last.
    pub reads_us: Vec<u64>,
    /// New connects of permitted hosts, each up to the end of its first read.
    pub connects: Vec<Duration>,
    /// Resident memory of the target when the connects were over, and at the end of the attack.
    pub resident_bytes: (usize, usize),
    /// What it held then, of which the slabs are no matter of use ([`held_bytes_of`]).
    pub held_bytes: (usize, usize),
}

impl Figures {
    /// The time that `share` of the reads kept.
    #[must_use]
    pub fn percentile_us(&self, share: f64) -> u64 {
        let reads = self.reads_us.len();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a place among some ten thousand"
        )]
        let place = (reads as f64 * share) as usize;
        self.reads_us[place.min(reads - 1)]
    }

    /// Checks what is promised while an attack is running: reads with p99.9 below 100 ms and none
    /// above 1 s, connects below 2 s, memory flat. `tolerance` times as much is let pass: 1 by
    /// hand, 10 in CI, whose machines are busy. Flat is less than 8 MiB more than before.
    ///
    /// # Panics
    /// When it was worse.
    pub fn assert_kept(&self, tolerance: u32) {
        let most = u64::from(tolerance);
        assert!(self.reads_us.len() >= 100, "too few reads: {self}");
        assert!(self.percentile_us(0.999) < 100_000 * most, "{self}");
        assert!(self.percentile_us(1.0) < 1_000_000 * most, "{self}");
        let slowest = self.connects.iter().max().copied().unwrap_or_default();
        assert!(slowest < Duration::from_secs(2) * tolerance, "{self}");
        let (before, after) = self.held_bytes;
        let grown = after.saturating_sub(before);
        assert!(grown < (8 << 20) * tolerance as usize, "{self}");
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (before, after) = self.resident_bytes;
        let slowest = self.connects.iter().max().copied().unwrap_or_default();
        write!(
            f,
            "{} reads, p50 {} us, p99.9 {} us, max {} us; {} connects, slowest {} ms; resident {} KiB, \
             then {} KiB, {} KiB more beside the slabs",
            self.reads_us.len(),
            self.percentile_us(0.5),
            self.percentile_us(0.999),
            self.percentile_us(1.0),
            self.connects.len(),
            slowest.as_millis(),
            before >> 10,
            after >> 10,
            self.held_bytes.1.saturating_sub(self.held_bytes.0) >> 10,
        )
    }
}

/// How much worse than promised figures may be here: ten times, or not at all where
/// `CAPSTAN_ATTACKS=full` is set.
#[must_use]
pub fn tolerance() -> u32 {
    if is_full() { 1 } else { 10 }
}

/// Whether attacks run at full strength and length.
#[must_use]
pub fn is_full() -> bool {
    std::env::var_os("CAPSTAN_ATTACKS").is_some_and(|value| value == "full")
}

/// Runs `attack` on a thread of its own, which ends soon after the flag is set, and meanwhile looks
/// at what it does to permitted hosts of the target in process `pid` at `at`: one reads for
/// `length`, others connect. `warmed_up` is called on this thread between the start of the attack
/// and the first look, and returns when the attack is at work.
///
/// # Panics
/// When a permitted host fails, or the attack does.
pub fn endure(
    target: (u32, SocketAddr),
    length: Duration,
    attack: impl FnOnce(&AtomicBool) + Send + 'static,
    warmed_up: impl FnOnce(),
) -> Figures {
    endure_beside(target, length, &Connects::default(), attack, warmed_up)
}

/// The same, where the attack sees the `connects` of the others.
///
/// # Panics
/// As [`endure`].
pub fn endure_beside(
    (pid, at): (u32, SocketAddr),
    length: Duration,
    connects: &Connects,
    attack: impl FnOnce(&AtomicBool) + Send + 'static,
    warmed_up: impl FnOnce(),
) -> Figures {
    let stop = Arc::new(AtomicBool::new(false));
    let reader = Reader::start(at, 1, &stop);
    let attacker = {
        let stop = Arc::clone(&stop);
        thread::spawn(move || attack(&stop))
    };
    warmed_up();
    let mut times = Vec::new();
    for number in 0..CONNECTS {
        let start = Instant::now();
        let options = options(at, 2 + number);
        let mut host = connects
            .run(|| DirectQueue::connect(&options))
            .unwrap_or_else(|error| panic!("connect {number} of a permitted host: {error}"));
        read(&mut host, 0);
        times.push(start.elapsed());
        host.close();
    }
    // What these hosts have used for the first time stays resident.
    let memory = || (resident_bytes_of(pid), held_bytes_of(pid));
    let before = memory();
    // Not a wait for something: the attack goes on for so long.
    thread::sleep(length);
    let after = memory();
    stop.store(true, Ordering::Relaxed);
    let reads_us = reader.finish();
    attacker.join().expect("the attack runs to its end");
    Figures {
        reads_us,
        connects: times,
        resident_bytes: (before.0, after.0),
        held_bytes: (before.1, after.1),
    }
}

/// A permitted host that reads 4 KiB at depth 1 until it is told to stop.
struct Reader(JoinHandle<Vec<u64>>);

impl Reader {
    /// Connects before it returns.
    fn start(at: SocketAddr, number: u8, stop: &Arc<AtomicBool>) -> Self {
        let stop = Arc::clone(stop);
        let (connected, wait) = mpsc::channel();
        let reader = thread::spawn(move || {
            let mut host = DirectQueue::connect(&options(at, number)).expect("before the attack");
            connected.send(()).expect("somebody waits");
            let mut times_us = Vec::new();
            let mut slba = 0;
            while !stop.load(Ordering::Relaxed) {
                let start = Instant::now();
                read(&mut host, slba);
                times_us.push(u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX));
                slba = (slba + 1) % 16;
                // A steady reader, which leaves the machine to the target and the attack.
                thread::sleep(Duration::from_micros(200));
            }
            host.close();
            times_us.sort_unstable();
            times_us
        });
        wait.recv().expect("the permitted host connects");
        Self(reader)
    }

    fn finish(self) -> Vec<u64> {
        self.0.join().expect("the permitted host read to the end")
    }
}

fn read(host: &mut DirectQueue, slba: u64) {
    run(host, Op::Read { slba, nlb: 1 }, &mut [0; LBA_BYTES]);
}

/// The two addresses an attack is to come from: another one, and the permitted host's own.
#[must_use]
pub fn sources() -> [Ipv4Addr; 2] {
    [ELSEWHERE, Ipv4Addr::LOCALHOST]
}
