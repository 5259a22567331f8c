//! System calls on TCP sockets.
#![expect(unsafe_code, reason = "scatter/gather calls on registered memory")]

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrIn, SockaddrIn6, SockaddrLike, bind,
    connect, getsockopt, listen, setsockopt, socket, sockopt,
};

use super::config::Config;
use super::stag::Span;

/// One piece of a scatter/gather call.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(super) struct Piece(libc::iovec);

impl Piece {
    /// Registered memory. The caller keeps it mapped until the call.
    #[inline]
    pub(super) fn span(span: Span<'_>) -> Self {
        Self::raw(span.base(), span.len_bytes())
    }

    /// A range that starts at `base`.
    #[inline]
    pub(super) fn raw(base: *mut u8, len_bytes: usize) -> Self {
        Self(libc::iovec {
            iov_base: base.cast(),
            iov_len: len_bytes,
        })
    }

    /// Length in bytes.
    #[inline]
    pub(super) fn len_bytes(&self) -> usize {
        self.0.iov_len
    }

    /// One past the last byte.
    #[inline]
    pub(super) fn end(&self) -> *mut u8 {
        self.0.iov_base.cast::<u8>().wrapping_add(self.0.iov_len)
    }

    /// Makes the piece `bytes` longer.
    #[inline]
    pub(super) fn extend(&mut self, bytes: usize) {
        self.0.iov_len += bytes;
    }

    /// Leaves out what is beyond `bytes`.
    #[inline]
    pub(super) fn shorten_to(&mut self, bytes: usize) {
        self.0.iov_len = self.0.iov_len.min(bytes);
    }

    /// Leaves the first `bytes` out.
    #[inline]
    pub(super) fn advance(&mut self, bytes: usize) {
        let bytes = bytes.min(self.0.iov_len);
        self.0.iov_base = self.0.iov_base.cast::<u8>().wrapping_add(bytes).cast();
        self.0.iov_len -= bytes;
    }
}

/// Where a connection's bytes come from and go to.
pub(super) enum Link {
    /// A connected, non-blocking socket.
    Tcp(TcpStream),
}

/// What a scatter/gather call did.
pub(super) enum Transfer {
    /// So many bytes; 0 is the end of the stream when receiving.
    Bytes(usize),
    /// Nothing now.
    WouldBlock,
}

fn transfer(result: isize) -> io::Result<Transfer> {
    if let Ok(bytes) = usize::try_from(result) {
        return Ok(Transfer::Bytes(bytes));
    }
    let error = io::Error::last_os_error();
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::Interrupted => Ok(Transfer::WouldBlock),
        _ => Err(error),
    }
}

impl Link {
    /// Receives into `pieces` in order.
    ///
    /// # Safety
    /// Each piece is mapped memory that the caller may write and that nobody has a reference to.
    #[inline]
    pub(super) unsafe fn receive(&mut self, pieces: &mut [Piece]) -> io::Result<Transfer> {
        match self {
            Self::Tcp(stream) => {
                // SAFETY: `msghdr` is plain data for which zero is a valid value.
                let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
                header.msg_iov = pieces.as_mut_ptr().cast();
                header.msg_iovlen = pieces.len();
                // SAFETY: `header` names `pieces`, which the caller answers for; `Piece` has the
                // layout of `iovec`.
                transfer(unsafe {
                    libc::recvmsg(stream.as_raw_fd(), &raw mut header, libc::MSG_DONTWAIT)
                })
            }
        }
    }

    /// Sends `pieces` in order.
    ///
    /// # Safety
    /// Each piece is mapped memory.
    #[inline]
    pub(super) unsafe fn send(&mut self, pieces: &mut [Piece]) -> io::Result<Transfer> {
        match self {
            Self::Tcp(stream) => {
                // SAFETY: `msghdr` is plain data for which zero is a valid value.
                let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
                header.msg_iov = pieces.as_mut_ptr().cast();
                header.msg_iovlen = pieces.len();
                let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
                // SAFETY: as in `receive`.
                transfer(unsafe { libc::sendmsg(stream.as_raw_fd(), &raw const header, flags) })
            }
        }
    }

    /// The socket, when it is one.
    pub(super) fn into_tcp(self) -> Option<TcpStream> {
        match self {
            Self::Tcp(stream) => Some(stream),
        }
    }

    /// The socket, when it is one.
    pub(super) fn tcp(&self) -> Option<&TcpStream> {
        match self {
            Self::Tcp(stream) => Some(stream),
        }
    }
}

/// The maximum segment size of a connected socket in bytes.
pub(super) fn segment_bytes(stream: &TcpStream) -> usize {
    // 536 is what TCP assumes when nothing is known (RFC 9293 §3.7.1).
    let value = getsockopt(stream, sockopt::TcpMaxSeg).unwrap_or(536);
    usize::try_from(value).unwrap_or(536)
}

fn new_socket(addr: &SocketAddr) -> io::Result<OwnedFd> {
    let family = match addr {
        SocketAddr::V4(_) => AddressFamily::Inet,
        SocketAddr::V6(_) => AddressFamily::Inet6,
    };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    Ok(socket(family, SockType::Stream, flags, None)?)
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
pub(super) fn listener(addr: SocketAddr, backlog: u32) -> io::Result<TcpListener> {
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

/// A socket that has started to connect to `destination`, bound to `source` when given.
pub(super) fn connecting(destination: SocketAddr, source: Option<IpAddr>) -> io::Result<TcpStream> {
    let fd = new_socket(&destination)?;
    if let Some(source) = source {
        with_addr(&SocketAddr::new(source, 0), |addr| {
            bind(fd.as_raw_fd(), addr)
        })?;
    }
    match with_addr(&destination, |addr| connect(fd.as_raw_fd(), addr)) {
        Ok(()) | Err(nix::Error::EINPROGRESS) => Ok(TcpStream::from(fd)),
        Err(error) => Err(error.into()),
    }
}

/// Options of a connection: no delay, and probes that find a dead peer.
pub(super) fn tune(stream: &TcpStream, config: &Config) -> io::Result<()> {
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
