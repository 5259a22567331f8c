//! Listening sockets that one process of the service leaves to the next, through the
//! file-descriptor store of systemd (sd_pid_notify_with_fds(3)). Hosts and NFS clients that connect
//! while none runs wait in their queues, where they would be refused and wait longer.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use capstan_config::Config;
use listenfd::ListenFd;
use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::socket::{getsockopt, sockopt};
use nix::unistd::pipe2;
use sd_notify::NotifyState;

/// For so long the service manager is waited for.
const MANAGER_PATIENCE_MS: u16 = 5000;

/// The sockets, on both ways. Without a service manager there are none, and none are left.
#[derive(Debug, Default)]
pub(crate) struct Handover {
    /// What an earlier process has left and this one does not listen at yet.
    found: Mutex<Vec<(SocketAddr, TcpListener)>>,
}

impl Handover {
    /// What has been left to this process of where it is to listen. What is left elsewhere is
    /// closed first: a listener at another address may want the port.
    pub(crate) fn here(config: &Config) -> Self {
        let handover = Self::left();
        let nfs = config
            .nfs
            .iter()
            .flat_map(|nfs| nfs.tcp.iter().chain(&nfs.rdma));
        let wanted: Vec<_> = config
            .listeners
            .iter()
            .map(|of| &of.address)
            .chain(nfs)
            .collect();
        if handover.close(|address| !wanted.contains(&address)) {
            wait_for_manager();
        }
        handover
    }

    fn left() -> Self {
        let mut passed = ListenFd::from_env();
        let mut found: Vec<(SocketAddr, TcpListener)> = Vec::new();
        for number in 0..passed.len() {
            match passed.take_tcp_listener(number) {
                Ok(Some(socket)) => {
                    let socket = listening(socket);
                    // The store has one of a name.
                    found.extend(
                        socket.filter(|(address, _)| {
                            !found.iter().any(|(other, _)| other == address)
                        }),
                    );
                }
                Ok(None) => {}
                Err(error) => tracing::warn!(
                    "the service manager passed something that is no TCP socket (number {number} of LISTEN_FDS): {error}; \
                     it is not used"
                ),
            }
        }
        Self {
            found: Mutex::new(found),
        }
    }

    /// The socket that listens at this address already.
    pub(crate) fn take(&self, address: SocketAddr) -> Option<OwnedFd> {
        let mut found = self.found();
        let at = found.iter().position(|(other, _)| *other == address)?;
        Some(found.swap_remove(at).1.into())
    }

    /// Leaves a socket to the next process.
    pub(crate) fn keep(&self, address: SocketAddr, socket: &OwnedFd) {
        let name = name(address);
        let states = [NotifyState::FdStore, NotifyState::FdName(&name)];
        if let Err(error) = sd_notify::notify_with_fds(&states, &[socket.as_fd()]) {
            tracing::debug!(%error, "the service manager was not given the socket at {address}");
        }
    }

    /// No process is to listen at this address any more.
    pub(crate) fn forget(&self, address: SocketAddr) {
        let name = name(address);
        let states = [NotifyState::FdStoreRemove, NotifyState::FdName(&name)];
        if let Err(error) = sd_notify::notify(&states) {
            tracing::debug!(%error, "the service manager keeps the socket at {address}");
        }
    }

    /// Closes what was left and no listener goes on at: hosts are refused there.
    pub(crate) fn close_rest(&self) {
        self.close(|_| true);
    }

    /// Closes those that are not wanted: whether there were any.
    fn close(&self, is_unwanted: impl Fn(&SocketAddr) -> bool) -> bool {
        let unwanted: Vec<_> = self
            .found()
            .extract_if(.., |(at, _)| is_unwanted(at))
            .collect();
        let were_any = !unwanted.is_empty();
        for (address, socket) in unwanted {
            tracing::info!("no listener at {address} any more, where an earlier process listened");
            drop(socket);
            self.forget(address);
        }
        were_any
    }

    fn found(&self) -> MutexGuard<'_, Vec<(SocketAddr, TcpListener)>> {
        // Every use leaves it whole.
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A socket with its address, where it listens.
fn listening(socket: TcpListener) -> Option<(SocketAddr, TcpListener)> {
    let address = socket.local_addr();
    let is_listening = getsockopt(&socket, sockopt::AcceptConn).unwrap_or(false);
    // No program that this one starts is to have it.
    let is_own = fcntl(&socket, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).is_ok();
    match address {
        Ok(address) if is_listening && is_own => Some((address, socket)),
        _ => {
            tracing::warn!(
                "the service manager passed a socket that does not listen; it is not used"
            );
            None
        }
    }
}

/// Returns when the service manager has carried out what it was told (sd_notify_barrier(3)): a port
/// is free when its last socket is closed.
fn wait_for_manager() {
    let Ok((ours, theirs)) = pipe2(OFlag::O_CLOEXEC) else {
        return;
    };
    let told = sd_notify::notify_with_fds(&[NotifyState::Custom("BARRIER=1")], &[theirs.as_fd()]);
    drop(theirs);
    if told.is_ok() {
        // It closes its end.
        let mut ends = [PollFd::new(ours.as_fd(), PollFlags::empty())];
        let _or_goes_on = poll(&mut ends, MANAGER_PATIENCE_MS);
    }
}

/// What the store knows it by (FDNAME=), where a colon ends a name.
fn name(address: SocketAddr) -> String {
    format!("listener-{address}").replace(':', "-")
}
