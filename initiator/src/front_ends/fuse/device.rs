//! `/dev/fuse`, and a mount whose file system is on the other side of it.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::libc;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::unistd::{getgid, getuid};

use super::file_system::TRANSFER_BYTES_MAX;

/// The device.
pub(super) const FUSE_DEVICE: &str = "/dev/fuse";

/// The FUSE mount could not be made.
#[derive(Debug, thiserror::Error)]
pub enum FuseError {
    /// The device cannot be opened.
    #[error("{FUSE_DEVICE}: {0}; expected a kernel with FUSE (`modprobe fuse`) and root")]
    Device(io::Error),
    /// mount(2) says no.
    #[error("mounting FUSE at {}: {source}; expected root (`sudo`) and a folder", .path.display())]
    Mount {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// A mounted FUSE file system; unmounted when dropped.
#[derive(Debug)]
pub(crate) struct FuseMount {
    path: Option<PathBuf>,
}

impl FuseMount {
    /// Mounts at the folder `path`; `source` is what mountinfo shows. The returned descriptor does
    /// not block. Nothing of the mount can be used before INIT is answered on it.
    ///
    /// # Errors
    /// [`FuseError`].
    pub(crate) fn new(
        path: &Path,
        source: &str,
        read_only: bool,
    ) -> Result<(Self, File), FuseError> {
        let device = File::options()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(FUSE_DEVICE)
            .map_err(FuseError::Device)?;
        let options = format!(
            "fd={},rootmode=40000,user_id={},group_id={},max_read={TRANSFER_BYTES_MAX}",
            device.as_raw_fd(),
            getuid(),
            getgid(),
        );
        let mut flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
        flags.set(MsFlags::MS_RDONLY, read_only);
        mount(
            Some(source),
            path,
            Some("fuse.capstan"),
            flags,
            Some(options.as_str()),
        )
        .map_err(|errno| FuseError::Mount {
            path: path.to_owned(),
            source: errno.into(),
        })?;
        let path = Some(path.to_owned());
        Ok((Self { path }, device))
    }

    /// Takes the mount out of the folder tree. The file system lives on while a file of it is open,
    /// and ends with the last one.
    ///
    /// # Errors
    /// umount2(2).
    pub(crate) fn detach(mut self) -> io::Result<()> {
        match self.path.take() {
            Some(path) => Ok(umount2(&path, MntFlags::MNT_DETACH)?),
            None => Ok(()),
        }
    }
}

impl Drop for FuseMount {
    fn drop(&mut self) {
        if let Some(path) = self.path.take()
            && let Err(error) = umount2(&path, MntFlags::MNT_DETACH)
        {
            tracing::warn!(path = %path.display(), "unmounting FUSE: {error}");
        }
    }
}
