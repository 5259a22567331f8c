//! Open regular files: data, its layout, and locks.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use capstan_memory::RawBytes;
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, FcntlArg, OFlag, copy_file_range, fallocate, fcntl, open};
use nix::libc;
use nix::sys::stat::Mode;
use nix::unistd::{Whence, fdatasync, fsync, lseek};

use crate::attributes::{Attributes, FileType};
use crate::error::{FileError, Result};
use crate::handle::{ExportId, KernelHandle};
use crate::identity::Caller;
use crate::limits::COPY_BYTES;
use crate::node::{Node, offset_of};
use crate::sys::{self, FdPath};
use crate::writers::WriteClaim;

/// What a file is open for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OpenAccess {
    /// Reading.
    Read,
    /// Writing.
    Write,
    /// Both.
    Both,
}

impl OpenAccess {
    pub(crate) const fn flags(self) -> OFlag {
        match self {
            Self::Read => OFlag::O_RDONLY,
            Self::Write => OFlag::O_WRONLY,
            Self::Both => OFlag::O_RDWR,
        }
    }

    /// Whether it is open for writing.
    pub const fn writes(self) -> bool {
        matches!(self, Self::Write | Self::Both)
    }

    pub(crate) const fn mode(self) -> libc::c_int {
        match self {
            Self::Read => libc::R_OK,
            Self::Write => libc::W_OK,
            Self::Both => libc::R_OK | libc::W_OK,
        }
    }
}

/// A regular file, open. What the caller who opened it might do then may be done for as long as it
/// is open.
#[derive(Debug)]
pub struct OpenFile {
    export: ExportId,
    kernel: KernelHandle,
    fd: OwnedFd,
    /// The same, past the page cache.
    direct: Option<OwnedFd>,
    access: OpenAccess,
    /// Uid and gid of the caller that it was opened for; `None` of this machine's own.
    opener: Option<(u32, u32)>,
    /// Reading it never waits for a disk.
    is_in_memory: bool,
    /// Of one that is open for writing.
    written: Option<WriteClaim>,
}

/// Bytes of a file, for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockRange {
    /// First of them.
    pub start: u64,
    /// How many there are; `None` for all behind the first.
    pub length: Option<u64>,
}

/// Kind of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    /// Others may have such a lock as well.
    Shared,
    /// There is no conflicting lock.
    Exclusive,
}

/// A lock that is in the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// Its bytes.
    pub range: LockRange,
    /// Its kind.
    pub kind: LockKind,
}

impl LockRange {
    fn flock(self, kind: libc::c_int) -> Result<libc::flock> {
        let l_start = offset_of("first byte of a lock", self.start)?;
        let l_len = match self.length {
            // To the kernel, 0 is all that is behind.
            None => 0,
            Some(length) => offset_of("length of a lock", length)?,
        };
        if self.length == Some(0) {
            return Err(FileError::kernel("locking no bytes")(Errno::EINVAL));
        }
        let l_type = libc::c_short::try_from(kind).unwrap_or_default();
        // A pid other than 0 would be an error: such locks are those of an open file.
        Ok(libc::flock {
            l_type,
            l_whence: 0,
            l_start,
            l_len,
            l_pid: 0,
        })
    }
}

impl LockKind {
    const fn raw(self) -> libc::c_int {
        match self {
            Self::Shared => libc::F_RDLCK,
            Self::Exclusive => libc::F_WRLCK,
        }
    }
}

impl Node {
    /// Opens the file for its data, if the kernel lets the caller. One that may execute the file
    /// may read it, as nothing is executed without being read (RFC 8881, section 6.2.1.3.1; RFC
    /// 1813, section 4.4): clients tell the two apart by the rights they ask for. With
    /// `owner_override` the owner may do so whatever the mode says, as it may have written the file
    /// before its mode was set.
    ///
    /// # Errors
    /// [`FileError::WrongType`] for anything but a regular file: nothing else is ever opened;
    /// [`FileError::Namespace`] for writing what hosts write over NVMe.
    pub fn open(
        &self,
        caller: &Caller,
        access: OpenAccess,
        owner_override: bool,
    ) -> Result<OpenFile> {
        self.check_caller(caller)?;
        if access.writes() {
            caller.check_writes()?;
        }
        self.check_type("opening a file", FileType::Regular)?;
        let written = self.claim(access)?;
        let opened = caller.act(|| self.reopen(access.flags(), "opening a file"));
        let fd = match opened {
            Err(FileError::Kernel {
                errno: Errno::EACCES,
                ..
            }) if self.is_overridden(caller, access, owner_override)? => {
                self.reopen(access.flags(), "opening a file past its mode")?
            }
            other => other?,
        };
        Ok(OpenFile::for_data(self, caller, fd, access, written))
    }

    /// What a file has to have before it is opened for writing.
    pub(crate) fn claim(&self, access: OpenAccess) -> Result<Option<WriteClaim>> {
        let claim = || self.export().writers().open(self.fd());
        access.writes().then(claim).transpose()
    }

    /// Opens the file, which is a regular one, as this machine and not for a caller.
    pub(crate) fn open_as_self(&self, access: OpenAccess) -> Result<OpenFile> {
        let fd = self.reopen(access.flags(), "opening a file for itself")?;
        // For locks and syncs: nothing is written through it.
        Ok(OpenFile::of_fd(self, fd, access, None))
    }

    /// Opens the file for nothing but locks, of which this open file has its own. Whether a caller
    /// may lock is not asked: that is a matter of what the caller has open. Without exclusive locks
    /// it is not open for writing, so that it may be executed meanwhile; all kinds can be tested.
    ///
    /// # Errors
    /// [`FileError::WrongType`] for anything but a regular file; what the kernel says, as `EROFS`
    /// where exclusive locks are to be had of a file system that is only read.
    pub fn open_for_locks(&self, kind: LockKind) -> Result<OpenFile> {
        self.check_type("locking", FileType::Regular)?;
        self.open_as_self(match kind {
            LockKind::Shared => OpenAccess::Read,
            LockKind::Exclusive => OpenAccess::Both,
        })
    }

    /// Whether a caller that the mode does not let may open the file all the same: to read what it
    /// may execute, or with `owner_override` as its owner.
    pub(crate) fn is_overridden(
        &self,
        caller: &Caller,
        access: OpenAccess,
        owner_override: bool,
    ) -> Result<bool> {
        if owner_override && self.attributes()?.uid == caller.uid() {
            return Ok(true);
        }
        let may_execute = || sys::access(self.fd(), libc::X_OK).is_ok();
        Ok(access == OpenAccess::Read && caller.act(|| Ok(may_execute()))?)
    }
}

impl OpenFile {
    pub(crate) fn of_fd(
        node: &Node,
        fd: OwnedFd,
        access: OpenAccess,
        written: Option<WriteClaim>,
    ) -> Self {
        Self {
            export: node.export().id(),
            kernel: *node.kernel_handle(),
            fd,
            direct: None,
            access,
            opener: None,
            is_in_memory: node.export().is_in_memory(),
            written,
        }
    }

    /// One whose data is read and written for a caller, as its export wants it.
    pub(crate) fn for_data(
        node: &Node,
        caller: &Caller,
        fd: OwnedFd,
        access: OpenAccess,
        written: Option<WriteClaim>,
    ) -> Self {
        let file = Self {
            opener: Some((caller.uid(), caller.gid())),
            ..Self::of_fd(node, fd, access, written)
        };
        if node.export().settings().direct {
            file.with_direct()
        } else {
            file
        }
    }

    /// Whether it was opened for this user and group: others may not be what it was opened for.
    pub fn is_opened_for(&self, caller: &Caller) -> bool {
        self.opener == Some((caller.uid(), caller.gid()))
    }

    pub(crate) const fn direct(&self) -> Option<&OwnedFd> {
        self.direct.as_ref()
    }

    pub(crate) fn set_direct(&mut self, direct: Option<OwnedFd>) {
        self.direct = direct;
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Its export.
    pub const fn export(&self) -> ExportId {
        self.export
    }

    /// The kernel's handle of it.
    pub const fn kernel_handle(&self) -> &KernelHandle {
        &self.kernel
    }

    /// What it is open for.
    pub const fn access(&self) -> OpenAccess {
        self.access
    }

    pub(crate) fn check_file(&self, node: &Node) -> Result<()> {
        let same = self.export == node.export().id() && self.kernel == *node.kernel_handle();
        if same {
            Ok(())
        } else {
            Err(FileError::OtherFile)
        }
    }

    fn check_writer(&self, caller: &Caller) -> Result<()> {
        if caller.export() != self.export {
            let (caller, file) = (caller.export().0, self.export.0);
            return Err(FileError::OtherExport { caller, file });
        }
        caller.check_writes()
    }

    /// Opened once more for the same: with locks of its own.
    ///
    /// # Errors
    /// Where the kernel has no descriptors left.
    pub fn open_again(&self) -> Result<Self> {
        let flags = self.access.flags() | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
        let fd = open(FdPath::new(self.fd()).as_c_str(), flags, Mode::empty())
            .map_err(FileError::kernel("opening a file again"))?;
        Ok(Self {
            export: self.export,
            kernel: self.kernel,
            fd,
            direct: None,
            access: self.access,
            opener: self.opener,
            is_in_memory: self.is_in_memory,
            written: self.written.as_ref().map(WriteClaim::again),
        })
    }

    /// Its attributes, as they are now.
    ///
    /// # Errors
    /// Where the kernel does not tell.
    pub fn attributes(&self) -> Result<Attributes> {
        Attributes::of_fd(self.fd())
    }

    pub(crate) const fn is_in_memory(&self) -> bool {
        self.is_in_memory
    }

    /// Writes at `offset`: how many bytes; fewer than given where the kernel refused the next one.
    /// It runs as the caller, for whom the kernel takes setuid and setgid away and counts quotas.
    ///
    /// # Errors
    /// What the kernel says, where it says it of the first byte.
    pub fn write(&self, caller: &Caller, data: &[u8], offset: u64) -> Result<usize> {
        self.write_from(caller, data.into(), offset)
    }

    /// As [`write`](Self::write), out of memory that a device has filled.
    ///
    /// # Errors
    /// As there.
    pub fn write_from(&self, caller: &Caller, data: RawBytes<'_>, offset: u64) -> Result<usize> {
        self.check_writer(caller)?;
        offset_of("end of a write", offset.saturating_add(data.len() as u64))?;
        caller.act(|| {
            let mut done = self.write_direct(data, offset)?;
            while !data.skip(done).is_empty() {
                let at = offset_of("offset", offset.saturating_add(done as u64))?;
                match sys::write_at(self.fd(), data.skip(done), at) {
                    Ok(0) => break,
                    Ok(bytes) => done += bytes,
                    Err(Errno::EINTR) => {}
                    Err(_) if done > 0 => break,
                    Err(errno) => return Err(FileError::kernel("writing")(errno)),
                }
            }
            Ok(done)
        })
    }

    /// Puts data, and what of the attributes is needed to find it, on the disk.
    ///
    /// # Errors
    /// Also where an earlier write did not get there: once for each open file.
    pub fn sync_data(&self) -> Result<()> {
        fdatasync(self.fd()).map_err(FileError::kernel("syncing data"))
    }

    /// Puts data and all attributes on the disk.
    ///
    /// # Errors
    /// Also where an earlier write did not get there: once for each open file.
    pub fn sync_all(&self) -> Result<()> {
        fsync(self.fd()).map_err(FileError::kernel("syncing"))
    }

    /// Where the next data is from `offset` on; `None` where there is none up to the end.
    ///
    /// # Errors
    /// `ENXIO` where `offset` is not before the end of the file (RFC 7862, 15.11.3).
    pub fn next_data(&self, offset: u64) -> Result<Option<u64>> {
        match self.seek(offset, Whence::SeekData) {
            Err(FileError::Kernel {
                errno: Errno::ENXIO,
                ..
            }) if offset < self.attributes()?.size_bytes => Ok(None),
            other => other.map(Some),
        }
    }

    /// Where the next hole is from `offset` on; the end of the file counts as one.
    ///
    /// # Errors
    /// `ENXIO` where `offset` is not before the end of the file (RFC 7862, 15.11.3).
    pub fn next_hole(&self, offset: u64) -> Result<u64> {
        self.seek(offset, Whence::SeekHole)
    }

    fn seek(&self, offset: u64, whence: Whence) -> Result<u64> {
        let at = lseek(self.fd(), offset_of("offset", offset)?, whence)
            .map_err(FileError::kernel("looking for data and holes"))?;
        Ok(u64::try_from(at).unwrap_or(0))
    }

    /// Takes space for the bytes, and moves the end of the file behind them if it is before.
    ///
    /// # Errors
    /// `EOPNOTSUPP` where the file system cannot; `ENOSPC`.
    pub fn allocate(&self, caller: &Caller, offset: u64, length: u64) -> Result<()> {
        self.fallocate(
            caller,
            FallocateFlags::empty(),
            offset,
            length,
            "allocating space",
        )
    }

    /// Gives the space of the bytes back: they are zeroes then. The end of the file stays.
    ///
    /// # Errors
    /// `EOPNOTSUPP` where the file system cannot.
    pub fn deallocate(&self, caller: &Caller, offset: u64, length: u64) -> Result<()> {
        let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        self.fallocate(caller, flags, offset, length, "giving space back")
    }

    fn fallocate(
        &self,
        caller: &Caller,
        flags: FallocateFlags,
        offset: u64,
        length: u64,
        operation: &'static str,
    ) -> Result<()> {
        self.check_writer(caller)?;
        let (offset, length) = (offset_of("offset", offset)?, offset_of("length", length)?);
        caller.act(|| {
            fallocate(self.fd(), flags, offset, length).map_err(FileError::kernel(operation))
        })
    }

    /// Copies up to `length` bytes of `from` here: how many, 0 at the end of `from`. One call
    /// copies no more than [`COPY_BYTES`].
    ///
    /// # Errors
    /// [`FileError::CrossExport`]; `EINVAL` for ranges of one file that have bytes in common.
    pub fn copy_from(
        &self,
        caller: &Caller,
        from: &Self,
        from_offset: u64,
        offset: u64,
        length: u64,
    ) -> Result<u64> {
        self.check_writer(caller)?;
        if from.export != self.export {
            return Err(FileError::CrossExport);
        }
        let mut source = offset_of("offset", from_offset)?;
        let mut target = offset_of("offset", offset)?;
        let length = usize::try_from(length.min(COPY_BYTES)).unwrap_or(0);
        caller.act(|| {
            let (source, target) = (Some(&mut source), Some(&mut target));
            copy_file_range(from.fd(), source, self.fd(), target, length)
                .map(|copied| copied as u64)
                .map_err(FileError::kernel("copying"))
        })
    }

    /// Has both files share the bytes of a range; length 0 stands for all up to the end.
    ///
    /// # Errors
    /// [`FileError::CrossExport`]; `EOPNOTSUPP` where the file system cannot; `EINVAL` for a range
    /// that is not of whole blocks.
    pub fn clone_from(
        &self,
        caller: &Caller,
        from: &Self,
        from_offset: u64,
        offset: u64,
        length: u64,
    ) -> Result<()> {
        self.check_writer(caller)?;
        if from.export != self.export {
            return Err(FileError::CrossExport);
        }
        caller.act(|| {
            sys::clone_range(from.fd(), from_offset, length, self.fd(), offset)
                .map_err(FileError::kernel("cloning"))
        })
    }

    /// Locks bytes for this open file, in place of locks that it has on them; `Some` where another
    /// open file's lock is in the way. It never waits. Closing the file unlocks all.
    ///
    /// # Errors
    /// `EBADF` where the file is not open for reading (shared) or writing (exclusive).
    pub fn lock(&self, range: LockRange, kind: LockKind) -> Result<Option<Conflict>> {
        let lock = range.flock(kind.raw())?;
        match fcntl(self.fd(), FcntlArg::F_OFD_SETLK(&lock)) {
            Ok(_) => Ok(None),
            Err(Errno::EAGAIN | Errno::EACCES) => {
                // It may be gone by now: then what is in the way is not known any more.
                Ok(Some(
                    self.conflict(range, kind)?
                        .unwrap_or(Conflict { range, kind }),
                ))
            }
            Err(errno) => Err(FileError::kernel("locking")(errno)),
        }
    }

    /// A lock of another open file that such a lock would meet.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn conflict(&self, range: LockRange, kind: LockKind) -> Result<Option<Conflict>> {
        let mut lock = range.flock(kind.raw())?;
        fcntl(self.fd(), FcntlArg::F_OFD_GETLK(&mut lock))
            .map_err(FileError::kernel("looking for locks"))?;
        let kind = match libc::c_int::from(lock.l_type) {
            libc::F_RDLCK => LockKind::Shared,
            libc::F_WRLCK => LockKind::Exclusive,
            _ => return Ok(None),
        };
        let start = u64::try_from(lock.l_start).unwrap_or(0);
        let length = u64::try_from(lock.l_len).ok().filter(|&length| length > 0);
        Ok(Some(Conflict {
            range: LockRange { start, length },
            kind,
        }))
    }

    /// Unlocks bytes.
    ///
    /// # Errors
    /// `ENOLCK` where the kernel has no room for two locks in place of one.
    pub fn unlock(&self, range: LockRange) -> Result<()> {
        let lock = range.flock(libc::F_UNLCK)?;
        fcntl(self.fd(), FcntlArg::F_OFD_SETLK(&lock))
            .map(drop)
            .map_err(FileError::kernel("unlocking"))
    }
}
