//! The unix socket a volume is offered on.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket,
};
use nix::sys::stat::{Mode, fchmod};

use crate::names::Name;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 64;

/// The socket could not be made.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Something serves it.
    #[error("socket {}: another process listens on it; stop that one or choose another {}", .0.display(), Name::Socket)]
    InUse(PathBuf),
    /// Something that is no socket is there.
    #[error("socket {}: the file exists and is no socket; choose another {}", .0.display(), Name::Socket)]
    NotASocket(PathBuf),
    /// The system says no.
    #[error("socket {}: {source}; expected a path of at most 107 bytes in a folder this user can write", .path.display())]
    Bind {
        /// The path.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// A listening unix socket that only its owner can connect to (mode 0600). Its file goes when it is
/// dropped.
#[derive(Debug)]
pub struct NbdSocket {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode of the file, so that nobody else's is removed.
    file: (u64, u64),
}

impl NbdSocket {
    /// Listens at `path`. A socket there that nobody serves any more is replaced.
    ///
    /// # Errors
    /// [`SocketError`].
    pub fn bind(path: &Path) -> Result<Self, SocketError> {
        let error = |source| SocketError::Bind {
            path: path.to_owned(),
            source,
        };
        remove_stale(path)?;
        let listener = listen_at(path).map_err(|errno| error(errno.into()))?;
        let meta = fs::symlink_metadata(path).map_err(error)?;
        Ok(Self {
            listener,
            path: path.to_owned(),
            file: (meta.dev(), meta.ino()),
        })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The next connection, not blocking; `None` when none waits.
    pub(super) fn accept(&self) -> io::Result<Option<UnixStream>> {
        match self.listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(true)?;
                Ok(Some(stream))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl AsFd for NbdSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for NbdSocket {
    fn drop(&mut self) {
        let ours = fs::symlink_metadata(&self.path);
        if ours.is_ok_and(|meta| (meta.dev(), meta.ino()) == self.file) {
            // Whoever finds it later replaces it; nothing else can be done here.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn listen_at(path: &Path) -> nix::Result<UnixListener> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    // The mode of the file is that of the socket, so there is no moment in which it is open to
    // others.
    fchmod(&fd, Mode::S_IRUSR | Mode::S_IWUSR)?;
    bind(fd.as_raw_fd(), &UnixAddr::new(path)?)?;
    listen(&fd, Backlog::new(BACKLOG)?)?;
    Ok(UnixListener::from(fd))
}

fn remove_stale(path: &Path) -> Result<(), SocketError> {
    let Ok(meta) = fs::symlink_metadata(path) else {
        return Ok(());
    };
    if !meta.file_type().is_socket() {
        return Err(SocketError::NotASocket(path.to_owned()));
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            tracing::info!(path = %path.display(), "removing a socket that nobody serves");
            fs::remove_file(path).map_err(|source| SocketError::Bind {
                path: path.to_owned(),
                source,
            })
        }
        _ => Err(SocketError::InUse(path.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::{NbdSocket, SocketError};

    #[test]
    fn only_the_owner_may_connect_and_the_file_goes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let socket = NbdSocket::bind(&path).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(matches!(NbdSocket::bind(&path), Err(SocketError::InUse(_))));
        drop(socket);
        assert!(!path.exists());
    }

    #[test]
    fn a_stale_socket_is_replaced_and_a_file_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        // std's listener leaves its file behind.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        drop(NbdSocket::bind(&path).unwrap());
        fs::write(&path, "data").unwrap();
        let error = NbdSocket::bind(&path).unwrap_err();
        assert!(matches!(error, SocketError::NotASocket(_)));
        assert_eq!(fs::read(&path).unwrap(), b"data");
        let nowhere = dir.path().join("no/such/folder");
        assert!(matches!(
            NbdSocket::bind(&nowhere),
            Err(SocketError::Bind { .. })
        ));
    }
}
