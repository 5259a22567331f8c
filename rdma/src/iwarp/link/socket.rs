//! System calls on TCP sockets.
#![expect(unsafe_code, reason = "scatter/gather calls on registered memory")]

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrIn, SockaddrIn6, SockaddrLike, bind,
    connect, getsockopt, listen, setsockopt, socket, sockopt,
};

use crate::address_words::source_address;
use crate::iwarp::config::Config;
use crate::iwarp::link::c_width::for_c;
use crate::iwarp::piece::{Piece, StreamIo};
use crate::pacing::do_not_pace;

fn transfer(result: isize) -> io::Result<StreamIo> {
    if let Ok(bytes) = usize::try_from(result) {
        return Ok(StreamIo::Bytes(bytes));
    }
    let error = io::Error::last_os_error();
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::Interrupted => Ok(StreamIo::WouldBlock),
        _ => Err(error),
    }
}

/// The header that names `pieces` to the kernel. Calls for one piece do without, and find sooner
/// that nothing has arrived.
fn header(pieces: &mut [Piece]) -> libc::msghdr {
    // SAFETY: `msghdr` is plain data for which zero is a valid value.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    // `Piece` has the layout of `iovec`.
    header.msg_iov = pieces.as_mut_ptr().cast();
    header.msg_iovlen = for_c(pieces.len());
    header
}

/// Receives into `pieces` in order.
///
/// # Safety
/// As for [`Link::receive`](super::Link::receive).
#[inline]
pub(super) unsafe fn receive(stream: &TcpStream, pieces: &mut [Piece]) -> io::Result<StreamIo> {
    let (socket, flags) = (stream.as_raw_fd(), libc::MSG_DONTWAIT);
    if let [Piece(one)] = pieces {
        // SAFETY: the caller answers for the memory.
        return transfer(unsafe { libc::recv(socket, one.iov_base, one.iov_len, flags) });
    }
    let mut header = header(pieces);
    // SAFETY: `header` names `pieces`, which the caller answers for.
    transfer(unsafe { libc::recvmsg(socket, &raw mut header, flags) })
}

/// Sends `pieces` in order; with `end` they end a TCP segment.
///
/// # Safety
/// Each piece is mapped memory.
#[inline]
pub(super) unsafe fn send(
    stream: &TcpStream,
    pieces: &mut [Piece],
    end: bool,
) -> io::Result<StreamIo> {
    let end = if end { libc::MSG_EOR } else { 0 };
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | end;
    let socket = stream.as_raw_fd();
    if let [Piece(one)] = pieces {
        // SAFETY: as in `receive`.
        return transfer(unsafe { libc::send(socket, one.iov_base, one.iov_len, flags) });
    }
    let header = header(pieces);
    // SAFETY: as in `receive`.
    transfer(unsafe { libc::sendmsg(socket, &raw const header, flags) })
}

/// The maximum segment of a TCP connection in bytes.
pub(super) fn segment_bytes(stream: &TcpStream) -> Option<usize> {
    let value = getsockopt(stream, sockopt::TcpMaxSeg).ok();
    value.and_then(|bytes| usize::try_from(bytes).ok())
}

/// Bytes that have arrived at a socket and not been received.
pub(in crate::iwarp) fn waiting_bytes(stream: &TcpStream) -> u64 {
    let mut bytes: libc::c_int = 0;
    // SAFETY: FIONREAD stores one int, which outlives the call.
    let asked = unsafe { libc::ioctl(stream.as_raw_fd(), libc::FIONREAD, &raw mut bytes) };
    if asked == 0 {
        u64::try_from(bytes).unwrap_or(0)
    } else {
        0
    }
}

fn new_socket(addr: &SocketAddr) -> io::Result<OwnedFd> {
    let family = match addr {
        SocketAddr::V4(_) => AddressFamily::Inet,
        SocketAddr::V6(_) => AddressFamily::Inet6,
    };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = socket(family, SockType::Stream, flags, None)?;
    do_not_pace(&fd);
    Ok(fd)
}

fn with_addr(
    addr: &SocketAddr,
    call: impl FnOnce(&dyn SockaddrLike) -> nix::Result<()>,
) -> nix::Result<()> {
    match addr {
        SocketAddr::V4(v4) => call(&SockaddrIn::from(*v4)),
        SocketAddr::V6(v6) => call(&SockaddrIn6::from(*v6)),
    }
}

/// A listening socket. IPv6 sockets take IPv6 only, so that both families can listen on one port.
pub(in crate::iwarp) fn listener(addr: SocketAddr, backlog: u32) -> io::Result<TcpListener> {
    let fd = new_socket(&addr)?;
    setsockopt(&fd, sockopt::ReuseAddr, &true)?;
    if addr.is_ipv6() {
        setsockopt(&fd, sockopt::Ipv6V6Only, &true)?;
    }
    with_addr(&addr, |addr| bind(fd.as_raw_fd(), addr))?;
    let backlog = i32::try_from(backlog).unwrap_or(i32::MAX).clamp(1, 4096);
    listen(&fd, Backlog::new(backlog)?)?;
    Ok(TcpListener::from(fd))
}

/// Whether a listener of this provider, or of NVMe/TCP beside it, could listen at `addr` now: that
/// socket is made and closed.
///
/// # Errors
/// Why not.
pub fn can_listen(addr: SocketAddr) -> io::Result<()> {
    listener(addr, 1).map(drop)
}

/// A socket that has started to connect to `destination`, bound to `source` when given. It is
/// reset when it is closed, whatever closes it: this process may be killed at any moment, and its
/// kernel would go on to send what no process answers for any more. [`end_when_closed`] takes that
/// back.
pub(in crate::iwarp) fn connecting(
    destination: SocketAddr,
    source: Option<IpAddr>,
) -> io::Result<TcpStream> {
    let fd = new_socket(&destination)?;
    linger(&fd, true);
    if let Some(source) = source {
        let source = source_address(source, destination);
        with_addr(&source, |addr| bind(fd.as_raw_fd(), addr))?;
    }
    match with_addr(&destination, |addr| connect(fd.as_raw_fd(), addr)) {
        Ok(()) | Err(nix::Error::EINPROGRESS) => Ok(TcpStream::from(fd)),
        Err(error) => Err(error.into()),
    }
}

/// Makes the end of a socket a reset: the kernel drops what it has not sent, and retransmits
/// nothing (`socket(7)`, SO_LINGER with a time of 0).
pub(in crate::iwarp) fn reset_when_closed(stream: &TcpStream) {
    linger(stream, true);
}

/// Takes that back: the kernel sends what it has, and then the end.
pub(in crate::iwarp) fn end_when_closed(stream: &TcpStream) {
    linger(stream, false);
}

fn linger(socket: &impl AsFd, resets: bool) {
    let linger = libc::linger {
        l_onoff: resets.into(),
        l_linger: 0,
    };
    // Only a descriptor that is no socket is refused.
    let _ = setsockopt(socket, sockopt::Linger, &linger);
}

/// Options of a connection: no delay, and probes that find a dead peer.
pub(in crate::iwarp) fn tune(stream: &TcpStream, config: &Config) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    let fd = stream.as_fd();
    setsockopt(&fd, sockopt::KeepAlive, &true)?;
    setsockopt(&fd, sockopt::TcpKeepIdle, &config.keepalive_idle_s.max(1))?;
    setsockopt(&fd, sockopt::TcpKeepInterval, &3)?;
    setsockopt(&fd, sockopt::TcpKeepCount, &3)?;
    setsockopt(&fd, sockopt::TcpUserTimeout, &config.dead_peer_timeout_ms)?;
    Ok(())
}
