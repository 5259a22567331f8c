//! Data that goes past the page cache (`O_DIRECT`), for exports that want it so.
//!
//! What begins and ends at multiples of [`ALIGN_BYTES`] goes past the cache, and all else through
//! it. The kernel keeps the two the same (mm/filemap.c): a direct read waits until what is dirty in
//! the cache is written, and a direct write takes what it replaces out of the cache. That does not
//! hold for pages that a program of this machine has mapped and writes meanwhile.

use std::cell::RefCell;
use std::os::fd::{AsFd, OwnedFd};

use capstan_memory::{RawBytes, Span};
use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::libc;
use nix::sys::stat::Mode;
use nix::sys::uio::pread;

use crate::error::{FileError, Result};
use crate::file::OpenFile;
use crate::limits::DIRECT_BYTES;
use crate::sys::{self, FdPath};

/// Bytes that offset, length and memory are multiples of: those of a page, which no disk that
/// Linux has a file system on exceeds.
const ALIGN_BYTES: usize = 4096;

thread_local! {
    /// Memory for data that lies anywhere.
    static ALIGNED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Gives `work` so many bytes of memory that direct reads and writes take.
fn with_aligned<T>(bytes: usize, work: impl FnOnce(&mut [u8]) -> T) -> T {
    ALIGNED.with_borrow_mut(|memory| {
        let needed = bytes.saturating_add(ALIGN_BYTES);
        if memory.len() < needed {
            memory.resize(needed, 0);
        }
        let skipped = memory.as_ptr().align_offset(ALIGN_BYTES);
        let aligned = memory.get_mut(skipped..skipped.saturating_add(bytes));
        work(aligned.unwrap_or_default())
    })
}

/// Bytes that went past the cache: none where the kernel wants them through it, as for a disk with
/// larger blocks.
fn gone(done: nix::Result<usize>, operation: &'static str) -> Result<usize> {
    match done {
        Err(Errno::EINVAL | Errno::EINTR | Errno::EAGAIN) => Ok(0),
        done => done.map_err(FileError::kernel(operation)),
    }
}

/// Whether a file system has direct reads and writes: as a file without a name in its `root` says.
/// One that cannot be asked, being read-only or without such files, is taken to.
pub(crate) fn is_possible(root: &OwnedFd) -> bool {
    let flags = OFlag::O_TMPFILE | OFlag::O_RDWR | OFlag::O_DIRECT | OFlag::O_CLOEXEC;
    let asked = open(FdPath::new(root.as_fd()).as_c_str(), flags, Mode::empty());
    !matches!(asked, Err(Errno::EINVAL))
}

impl OpenFile {
    /// The same file, for direct reads and writes; `None` where the kernel refuses, which leaves
    /// the cache.
    pub(crate) fn with_direct(mut self) -> Self {
        let flags = self.access().flags() | OFlag::O_DIRECT | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
        self.set_direct(open(FdPath::new(self.fd()).as_c_str(), flags, Mode::empty()).ok());
        self
    }

    /// What is open for a read or write of these bytes, if they go past the cache.
    fn direct_for(&self, offset: u64, bytes: usize) -> Option<(&OwnedFd, libc::off_t)> {
        let direct = self.direct()?;
        let is_aligned = offset.is_multiple_of(ALIGN_BYTES as u64)
            && bytes.is_multiple_of(ALIGN_BYTES)
            && (1..=DIRECT_BYTES).contains(&bytes);
        let offset = libc::off_t::try_from(offset).ok()?;
        is_aligned.then_some((direct, offset))
    }

    /// Reads past the cache: how many bytes, fewer than asked for where the rest goes through it.
    pub(crate) fn read_direct(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let Some((direct, at)) = self.direct_for(offset, buffer.len()) else {
            return Ok(0);
        };
        with_aligned(buffer.len(), |aligned| {
            let bytes = gone(pread(direct, aligned, at), "reading")?;
            for (to, from) in buffer.iter_mut().zip(aligned.iter().take(bytes)) {
                *to = *from;
            }
            Ok(bytes)
        })
    }

    /// As [`read_direct`](Self::read_direct), into memory that a device sends from.
    pub(crate) fn read_into_direct(&self, span: &Span, offset: u64) -> Result<usize> {
        let is_aligned = span.base().as_ptr().addr().is_multiple_of(ALIGN_BYTES);
        match self.direct_for(offset, span.len_bytes()) {
            Some((direct, at)) if is_aligned => {
                gone(sys::read_at(direct.as_fd(), span, at), "reading")
            }
            _ => Ok(0),
        }
    }

    /// Writes past the cache: how many bytes, fewer than given where the rest goes through it. The
    /// thread acts for the caller.
    pub(crate) fn write_direct(&self, data: RawBytes<'_>, offset: u64) -> Result<usize> {
        let Some((direct, at)) = self.direct_for(offset, data.len()) else {
            return Ok(0);
        };
        if data.base().as_ptr().addr().is_multiple_of(ALIGN_BYTES) {
            return gone(sys::write_at(direct.as_fd(), data, at), "writing");
        }
        with_aligned(data.len(), |aligned| {
            data.copy_to(aligned);
            gone(
                sys::write_at(direct.as_fd(), (&*aligned).into(), at),
                "writing",
            )
        })
    }
}
