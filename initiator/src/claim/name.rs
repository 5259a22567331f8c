//! The second half of an exclusive claim: an abstract name of a Unix socket, which nobody can
//! remove and the kernel lets go of when the process ends. The locked file says what has the claim,
//! but one who removes that file could lock another one of the same name.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use uuid::Uuid;

/// A name of this machine's (its network namespace's), held until it is dropped.
#[derive(Debug)]
pub(super) struct Name {
    _listener: UnixListener,
}

/// Whether a name is held.
pub(super) enum Named {
    Yes(Name),
    /// By this process, as far as it can be seen from here.
    No(Option<i32>),
}

impl Name {
    /// Takes the name of a claim.
    ///
    /// # Errors
    /// There is no socket to be had.
    pub(super) fn take(claim: &Uuid) -> io::Result<Named> {
        let address = SocketAddr::from_abstract_name(format!("capstan-claim-{claim}"))?;
        match UnixListener::bind_addr(&address) {
            Ok(listener) => Ok(Named::Yes(Self {
                _listener: listener,
            })),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                Ok(Named::No(holder(&address)))
            }
            Err(error) => Err(error),
        }
    }
}

/// The process that listens under a name.
fn holder(address: &SocketAddr) -> Option<i32> {
    let stream = UnixStream::connect_addr(address).ok()?;
    let credentials = getsockopt(&stream, PeerCredentials).ok()?;
    Some(credentials.pid()).filter(|pid| *pid > 0)
}
