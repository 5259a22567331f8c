//! Reading open files.

use std::io::IoSliceMut;

use capstan_memory::Span;
use nix::errno::Errno;
use nix::sys::uio::{pread, preadv};
use nix::unistd::{Whence, lseek};

use crate::error::{FileError, Result};
use crate::file::OpenFile;
use crate::node::offset_of;
use crate::sys;

impl OpenFile {
    /// Reads from `offset` on: how many bytes; fewer than asked for at the end alone.
    ///
    /// # Errors
    /// What the kernel says, where it says it of the first byte.
    pub fn read(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let reading = FileError::kernel("reading");
        let mut done = self.read_direct(buffer, offset)?;
        while let Some(rest @ [_, ..]) = buffer.get_mut(done..) {
            let at = offset_of("offset", offset.saturating_add(done as u64))?;
            match pread(self.fd(), rest, at) {
                Ok(0) => break,
                Ok(bytes) => done += bytes,
                Err(Errno::EINTR) => {}
                Err(_) if done > 0 => break,
                Err(errno) => return Err(reading(errno)),
            }
        }
        Ok(done)
    }

    /// As [`read`](Self::read), into memory that a device sends from.
    ///
    /// # Errors
    /// As there.
    pub fn read_into(&self, span: &Span, offset: u64) -> Result<usize> {
        let mut done = self.read_into_direct(span, offset)?;
        while let Some(rest) = span.part(done..span.len_bytes())
            && rest.len_bytes() > 0
        {
            let at = offset_of("offset", offset.saturating_add(done as u64))?;
            match sys::read_at(self.fd(), &rest, at) {
                Ok(0) => break,
                Ok(bytes) => done += bytes,
                Err(Errno::EINTR) => {}
                Err(_) if done > 0 => break,
                Err(errno) => return Err(FileError::kernel("reading")(errno)),
            }
        }
        Ok(done)
    }

    /// As [`read`](Self::read): how many bytes, and whether the file ends behind them. Unless it
    /// `may_wait`, `None` where a disk would have to be waited for, or the file system cannot tell.
    ///
    /// # Errors
    /// As there.
    pub fn read_to_end(
        &self,
        buffer: &mut [u8],
        offset: u64,
        may_wait: bool,
    ) -> Result<Option<(usize, bool)>> {
        if may_wait {
            let bytes = self.read(buffer, offset)?;
            return Ok(Some((bytes, self.is_end(offset, bytes)?)));
        }
        let Some(at) = self.now_at(offset) else {
            return Ok(None);
        };
        let read = sys::read_now(self.fd(), buffer, at, self.is_in_memory());
        self.read_now(read, offset, buffer.len())
    }

    /// As [`read_to_end`](Self::read_to_end), into memory that a device sends from.
    ///
    /// # Errors
    /// As there.
    pub fn read_into_to_end(
        &self,
        span: &Span,
        offset: u64,
        may_wait: bool,
    ) -> Result<Option<(usize, bool)>> {
        if may_wait {
            let bytes = self.read_into(span, offset)?;
            return Ok(Some((bytes, self.is_end(offset, bytes)?)));
        }
        let Some(at) = self.now_at(offset) else {
            return Ok(None);
        };
        let read = sys::read_span_now(self.fd(), span, at, self.is_in_memory());
        self.read_now(read, offset, span.len_bytes())
    }

    /// Where to read without waiting; `None` where a disk is always waited for.
    fn now_at(&self, offset: u64) -> Option<i64> {
        let at = offset_of("offset", offset).ok();
        at.filter(|_| self.direct().is_none())
    }

    /// What was read without waiting, if it is all that there was to be read.
    fn read_now(
        &self,
        read: nix::Result<usize>,
        offset: u64,
        asked: usize,
    ) -> Result<Option<(usize, bool)>> {
        let bytes = match read {
            Ok(bytes) => bytes,
            Err(Errno::EAGAIN | Errno::EOPNOTSUPP | Errno::EINTR) => return Ok(None),
            Err(errno) => return Err(FileError::kernel("reading")(errno)),
        };
        let is_end = self.is_end(offset, bytes)?;
        Ok((bytes == asked || is_end).then_some((bytes, is_end)))
    }

    fn is_end(&self, offset: u64, bytes: usize) -> Result<bool> {
        Ok(offset.saturating_add(bytes as u64) >= self.size_bytes()?)
    }

    /// Its size in bytes.
    ///
    /// # Errors
    /// Where the kernel does not tell.
    pub fn size_bytes(&self) -> Result<u64> {
        // Nothing uses the position of the open file.
        let end = lseek(self.fd(), 0, Whence::SeekEnd);
        let end = end.map_err(FileError::kernel("looking for the end of a file"))?;
        Ok(u64::try_from(end).unwrap_or(0))
    }

    /// As [`read`](Self::read), into several buffers in turn, in one call: it may read fewer bytes.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn read_vectored(&self, buffers: &mut [IoSliceMut<'_>], offset: u64) -> Result<usize> {
        let at = offset_of("offset", offset)?;
        preadv(self.fd(), buffers, at).map_err(FileError::kernel("reading"))
    }
}
