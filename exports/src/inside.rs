//! Whether a directory is below the root of its export, however deep.

use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};

use crate::error::{FileError, Result};
use crate::export::{PLACE_MASK, Place};
use crate::limits::{DEPTH, INSIDE_ATTEMPTS, LEVELS_AT_ONCE};
use crate::node::Node;
use crate::sys;

const LOOKING: &str = "looking for the root of the export";

fn place(fd: BorrowedFd<'_>) -> Result<Place> {
    let stat = sys::statx(fd, PLACE_MASK).map_err(FileError::kernel(LOOKING))?;
    Ok(Place::of(&stat))
}

/// So many directories up on the same mount; `None` where that leads out of it. The root of the
/// whole file system is above itself.
fn up(from: BorrowedFd<'_>, levels: usize) -> Result<Option<OwnedFd>> {
    let path = CString::new("../".repeat(levels)).unwrap_or_default();
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_XDEV);
    match openat2(from, path.as_c_str(), how) {
        Ok(fd) => Ok(Some(fd)),
        Err(Errno::EXDEV) => Ok(None),
        Err(errno) => Err(FileError::kernel(LOOKING)(errno)),
    }
}

fn is_top(fd: BorrowedFd<'_>) -> Result<bool> {
    match up(fd, 1)? {
        Some(above) => Ok(place(above.as_fd())? == place(fd)?),
        None => Ok(true),
    }
}

/// How many directories are above one on its mount: found in steps that double, and then in steps
/// that halve, of which each ends below the top one.
fn depth(of: BorrowedFd<'_>) -> Result<usize> {
    if is_top(of)? {
        return Ok(0);
    }
    let (mut at, mut depth): (Option<OwnedFd>, usize) = (None, 1);
    let (mut step, mut grows) = (1, true);
    while step > 0 {
        let from = at.as_ref().map_or(of, AsFd::as_fd);
        let next = match up(from, step)? {
            Some(next) if !is_top(next.as_fd())? => Some(next),
            _ => None,
        };
        grows &= next.is_some();
        if next.is_some() {
            at = next;
            depth += step;
        }
        if depth > DEPTH {
            return Err(FileError::OutsideExport);
        }
        step = if grows {
            (step * 2).min(LEVELS_AT_ONCE)
        } else {
            step / 2
        };
    }
    Ok(depth)
}

impl Node {
    /// Whether the root of the export is above this directory. Where the root is that of a mount,
    /// the kernel goes no further; elsewhere it is as many levels up as this one is deeper.
    ///
    /// # Errors
    /// [`FileError::OutsideExport`] where it is not, or is more than [`DEPTH`] levels up.
    pub(crate) fn check_inside(&self) -> Result<()> {
        if self.export().root_is_mounted() {
            return Ok(());
        }
        for _ in 0..INSIDE_ATTEMPTS {
            if self.is_inside()? {
                return Ok(());
            }
        }
        Err(FileError::OutsideExport)
    }

    fn is_inside(&self) -> Result<bool> {
        let deeper = depth(self.fd())?.checked_sub(depth(self.export().root())?);
        let Some(mut left) = deeper else {
            return Ok(false);
        };
        let mut at: Option<OwnedFd> = None;
        while left > 0 {
            let levels = left.min(LEVELS_AT_ONCE);
            let above = up(at.as_ref().map_or_else(|| self.fd(), AsFd::as_fd), levels)?;
            let Some(above) = above else {
                return Ok(false);
            };
            at = Some(above);
            left -= levels;
        }
        let here = place(at.as_ref().map_or_else(|| self.fd(), AsFd::as_fd))?;
        Ok(here == self.export().root_place())
    }
}
