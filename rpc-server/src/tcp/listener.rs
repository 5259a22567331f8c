//! Sockets that listen.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, bind, listen, setsockopt, socket,
    sockopt,
};

use crate::limits::{BACKLOG, PAUSE_US};

/// A socket that listens.
#[derive(Debug)]
pub(super) struct Listener {
    socket: TcpListener,
    /// What epoll calls it.
    token: u64,
    /// It is not looked at before.
    paused_until_us: Option<u64>,
}

impl Listener {
    /// Listens at `addr`, where port 0 picks one, or goes on at the socket that does.
    ///
    /// # Errors
    /// As of `bind(2)`, `listen(2)` and `epoll_ctl(2)`.
    pub(super) fn bind(
        addr: SocketAddr,
        left: Option<OwnedFd>,
        token: u64,
        epoll: &Epoll,
    ) -> io::Result<(Self, SocketAddr)> {
        let socket = match left {
            Some(left) => TcpListener::from(left),
            None => listening(addr)?,
        };
        socket.set_nonblocking(true)?;
        let bound = socket.local_addr()?;
        epoll.add(&socket, EpollEvent::new(EpollFlags::EPOLLIN, token))?;
        let listener = Self {
            socket,
            token,
            paused_until_us: None,
        };
        Ok((listener, bound))
    }

    /// The same socket, for a process that goes on at it.
    ///
    /// # Errors
    /// There is no descriptor for it.
    pub(super) fn socket(&self) -> io::Result<OwnedFd> {
        Ok(self.socket.try_clone()?.into())
    }

    /// The next connection. Where the process has no descriptor for it, it is not looked at for a
    /// while.
    pub(super) fn accept(&mut self, epoll: &Epoll, now_us: u64) -> Option<(TcpStream, SocketAddr)> {
        match self.socket.accept() {
            Ok(accepted) => Some(accepted),
            Err(error) if error.kind() == ErrorKind::WouldBlock => None,
            // The client has gone already, or a signal came: there may be another one.
            Err(error) if is_of_one(&error) => None,
            Err(error) => {
                tracing::warn!(
                    target: capstan_rdma::PEER_CAUSED,
                    "cannot accept connections: {error}; raise the limit of open files \
                     (ulimit -n, LimitNOFILE= of the unit)"
                );
                self.watch(epoll, EpollFlags::empty());
                self.paused_until_us = Some(now_us.saturating_add(PAUSE_US));
                None
            }
        }
    }

    /// Looks at it again, where that is due.
    pub(super) fn resume(&mut self, epoll: &Epoll, now_us: u64) {
        if self
            .paused_until_us
            .is_some_and(|until_us| until_us <= now_us)
        {
            self.paused_until_us = None;
            self.watch(epoll, EpollFlags::EPOLLIN);
        }
    }

    /// When it is looked at again.
    pub(super) fn paused_until_us(&self) -> Option<u64> {
        self.paused_until_us
    }

    fn watch(&self, epoll: &Epoll, events: EpollFlags) {
        // A watch that exists can be changed.
        let _ = epoll.modify(&self.socket, &mut EpollEvent::new(events, self.token));
    }
}

/// A socket that listens. One of IPv6 takes IPv6 alone, so that both families
/// can listen at one port.
fn listening(addr: SocketAddr) -> io::Result<TcpListener> {
    let family = match addr {
        SocketAddr::V4(_) => AddressFamily::Inet,
        SocketAddr::V6(_) => AddressFamily::Inet6,
    };
    let socket = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    setsockopt(&socket, sockopt::ReuseAddr, &true)?;
    if addr.is_ipv6() {
        setsockopt(&socket, sockopt::Ipv6V6Only, &true)?;
    }
    bind(socket.as_raw_fd(), &SockaddrStorage::from(addr))?;
    let backlog = i32::try_from(BACKLOG).unwrap_or(i32::MAX);
    listen(&socket, Backlog::new(backlog)?)?;
    Ok(socket.into())
}

/// Whether an error of `accept(2)` is that of one connection.
fn is_of_one(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset | ErrorKind::Interrupted
    )
}
