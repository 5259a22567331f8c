//! The limits everything is compared with: plain TCP over loopback, measured in the same run, one
//! core for each side.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use capstan_rdma::pacing::do_not_pace;
use capstan_reactor::pin_to_core;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrIn, bind, connect, listen, socket,
};

use crate::slices::Slices;
use crate::{HOST_CORE, TARGET_CORE};

/// What a 4 KiB read over iWARP sends there: a command capsule and the FPDU around it.
const ASK_BYTES: usize = 72;
/// What comes back: the data, a response capsule, and the FPDUs around them.
const ANSWER_BYTES: usize = 4144;
/// Of one write of a stream.
const CHUNK_BYTES: usize = 128 << 10;

/// With the congestion control of Capstan's sockets: pacing would make the limit look low. One that
/// is accepted has that of the one that listens.
fn unpaced() -> Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let socket = socket(AddressFamily::Inet, SockType::Stream, flags, None)?;
    do_not_pace(&socket);
    Ok(socket)
}

fn pair() -> Result<(TcpStream, TcpStream)> {
    let (listener, one) = (unpaced()?, unpaced()?);
    let any_port = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0);
    bind(listener.as_raw_fd(), &SockaddrIn::from(any_port))?;
    listen(&listener, Backlog::new(1)?)?;
    let listener = TcpListener::from(listener);
    let SocketAddr::V4(to) = listener.local_addr()? else {
        bail!("a socket of IPv4 has another address");
    };
    connect(one.as_raw_fd(), &SockaddrIn::from(to))?;
    let one = TcpStream::from(one);
    let (other, _) = listener.accept()?;
    for stream in [&one, &other] {
        stream.set_nodelay(true)?;
    }
    Ok((one, other))
}

/// Moves all of `len` bytes; `false` when the peer has gone.
fn all(len: usize, mut step: impl FnMut(usize) -> std::io::Result<usize>) -> Result<bool> {
    let mut done = 0;
    while done < len {
        match step(done) {
            Ok(0) => return Ok(false),
            Ok(count) => done += count,
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock => std::hint::spin_loop(),
                ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => return Ok(false),
                _ => return Err(error.into()),
            },
        }
    }
    Ok(true)
}

fn receive(mut stream: &TcpStream, bytes: &mut [u8]) -> Result<bool> {
    all(bytes.len(), |at| stream.read(&mut bytes[at..]))
}

fn send(mut stream: &TcpStream, bytes: &[u8]) -> Result<bool> {
    all(bytes.len(), |at| stream.write(&bytes[at..]))
}

/// Runs `host` on one core while `target` runs on the other.
fn both<T: Send>(
    spin: bool,
    host: impl FnOnce(&TcpStream) -> Result<T> + Send,
    target: impl FnOnce(&TcpStream) -> Result<()> + Send,
) -> Result<T> {
    let (one, other) = pair()?;
    for stream in [&one, &other] {
        stream.set_nonblocking(spin)?;
    }
    thread::scope(|scope| {
        let target = scope.spawn(move || {
            pin_to_core(TARGET_CORE).context("pinning to the target's core")?;
            target(&other)
        });
        let host = scope.spawn(move || {
            pin_to_core(HOST_CORE).context("pinning to the host's core")?;
            // The stream ends with this closure, and with it the target.
            host(&one)
        });
        let found = host.join().map_err(|_| anyhow!("the host's side panicked"));
        target
            .join()
            .map_err(|_| anyhow!("the target's side panicked"))??;
        found?
    })
}

fn answer(stream: &TcpStream) -> Result<()> {
    let (mut ask, reply) = ([0; ASK_BYTES], [1; ANSWER_BYTES]);
    while receive(stream, &mut ask)? && send(stream, &reply)? {}
    Ok(())
}

/// RT: seconds of a round trip, both sides spinning.
pub(crate) fn round_trip(time: Duration) -> Result<f64> {
    let ask = |stream: &TcpStream| {
        let (ask, mut reply) = ([2; ASK_BYTES], [0; ANSWER_BYTES]);
        let mut slices = Slices::new();
        while !slices.over(time) && send(stream, &ask)? && receive(stream, &mut reply)? {
            slices.add(1);
        }
        Ok(1.0 / slices.median())
    };
    both(true, ask, answer)
}

/// Seconds of each of `count` round trips, both sides blocking, after a pause of `idle` each.
pub(crate) fn blocking_round_trips(count: usize, idle: Duration) -> Result<Vec<f64>> {
    let ask = |stream: &TcpStream| {
        let (ask, mut reply) = ([2; ASK_BYTES], [0; ANSWER_BYTES]);
        let mut times = Vec::with_capacity(count);
        for _ in 0..count {
            thread::sleep(idle);
            let start = Instant::now();
            if !send(stream, &ask)? || !receive(stream, &mut reply)? {
                break;
            }
            times.push(start.elapsed().as_secs_f64());
        }
        Ok(times)
    };
    both(false, ask, answer)
}

/// Bytes a second one way, both sides spinning.
pub(crate) fn stream(time: Duration) -> Result<f64> {
    let sink = |mut stream: &TcpStream| {
        let mut bytes = vec![0; 2 * CHUNK_BYTES];
        let mut slices = Slices::new();
        while !slices.over(time) {
            let count = match stream.read(&mut bytes) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
                read => read?,
            };
            slices.add(count as u64);
        }
        Ok(slices.median())
    };
    let source = |stream: &TcpStream| {
        let bytes = vec![1; CHUNK_BYTES];
        while send(stream, &bytes)? {}
        Ok(())
    };
    both(true, sink, source)
}
