//! System calls by path, and those that nix does not wrap or wraps for the whole process.
#![expect(unsafe_code, reason = "foreign functions and what they fill in")]

use std::ffi::{CStr, CString};
use std::fs::File;
use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::NonNull;

use nix::Result;
use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{OFlag, open as open_path};
use nix::libc;
use nix::sys::mman::{MapFlags, MsFlags, ProtFlags, mmap, msync, munmap};
use nix::sys::stat::{FchmodatFlags, FileStat, Mode, SFlag, fchmodat, mknod, utimensat};
use nix::sys::time::TimeSpec;
use nix::unistd::{Gid, Uid};

fn mode_of(bits: u32) -> Mode {
    Mode::from_bits_truncate(bits)
}

pub(crate) fn open(path: &Path, flags: OFlag, mode: u32) -> Result<File> {
    open_path(path, flags | OFlag::O_CLOEXEC, mode_of(mode)).map(File::from)
}

/// Makes a file that is not there yet, empty.
pub(crate) fn create(path: &Path, mode: u32) -> Result<File> {
    open(path, OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL, mode)
}

pub(crate) fn mkdir(path: &Path, mode: u32) -> Result<()> {
    nix::unistd::mkdir(path, mode_of(mode))
}

pub(crate) fn mkfifo(path: &Path, mode: u32) -> Result<()> {
    nix::unistd::mkfifo(path, mode_of(mode))
}

/// `device` in the form of makedev(3).
pub(crate) fn make_node(path: &Path, kind: SFlag, mode: u32, device: u64) -> Result<()> {
    mknod(path, kind, mode_of(mode), device)
}

pub(crate) fn chmod(path: &Path, mode: u32) -> Result<()> {
    fchmodat(
        nix::fcntl::AT_FDCWD,
        path,
        mode_of(mode),
        FchmodatFlags::FollowSymlink,
    )
}

pub(crate) fn chown(path: &Path, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
    nix::unistd::chown(path, uid.map(Uid::from_raw), gid.map(Gid::from_raw))
}

pub(crate) fn lchown(path: &Path, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
    nix::unistd::fchownat(
        nix::fcntl::AT_FDCWD,
        path,
        uid.map(Uid::from_raw),
        gid.map(Gid::from_raw),
        nix::fcntl::AtFlags::AT_SYMLINK_NOFOLLOW,
    )
}

pub(crate) fn link(from: &Path, to: &Path) -> Result<()> {
    let here = nix::fcntl::AT_FDCWD;
    nix::unistd::linkat(here, from, here, to, nix::fcntl::AtFlags::empty())
}

pub(crate) fn symlink(target: &Path, path: &Path) -> Result<()> {
    nix::unistd::symlinkat(target, nix::fcntl::AT_FDCWD, path)
}

pub(crate) fn rename(from: &Path, to: &Path) -> Result<()> {
    let here = nix::fcntl::AT_FDCWD;
    nix::fcntl::renameat(here, from, here, to)
}

pub(crate) fn unlink(path: &Path) -> Result<()> {
    nix::unistd::unlink(path)
}

pub(crate) fn rmdir(path: &Path) -> Result<()> {
    nix::unistd::unlinkat(
        nix::fcntl::AT_FDCWD,
        path,
        nix::unistd::UnlinkatFlags::RemoveDir,
    )
}

pub(crate) fn truncate(path: &Path, bytes: i64) -> Result<()> {
    nix::unistd::truncate(path, bytes)
}

pub(crate) fn stat(path: &Path) -> Result<FileStat> {
    nix::sys::stat::stat(path)
}

pub(crate) fn lstat(path: &Path) -> Result<FileStat> {
    nix::sys::stat::lstat(path)
}

/// Permissions with set-user-ID, set-group-ID and the sticky bit.
pub(crate) fn permissions(path: &Path) -> Result<u32> {
    Ok(lstat(path)?.st_mode & 0o7777)
}

/// Seconds and nanoseconds of the last access and the last modification.
pub(crate) fn set_times(path: &Path, accessed: (i64, i64), modified: (i64, i64)) -> Result<()> {
    utimensat(
        nix::fcntl::AT_FDCWD,
        path,
        &TimeSpec::new(accessed.0, accessed.1),
        &TimeSpec::new(modified.0, modified.1),
        nix::sys::stat::UtimensatFlags::FollowSymlink,
    )
}

/// Both times are to be now (UTIME_NOW), which takes less permission.
pub(crate) fn touch(path: &Path) -> Result<()> {
    set_times(path, (0, libc::UTIME_NOW), (0, libc::UTIME_NOW))
}

/// Names in a folder, without `.` and `..`, in the order they came.
pub(crate) fn names(path: &Path) -> Result<Vec<Vec<u8>>> {
    let mut folder = Dir::open(path, OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())?;
    let mut names = Vec::new();
    for entry in folder.iter() {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(name.to_vec());
        }
    }
    Ok(names)
}

/// Additional groups of the calling thread; the C library's function sets those of all threads.
pub(crate) fn set_groups_of_thread(groups: &[u32]) -> Result<()> {
    // SAFETY: the kernel reads as many words as there are in `groups`.
    let done = unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) };
    Errno::result(done).map(drop)
}

fn c_path(path: &Path) -> Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_nul| Errno::EINVAL)
}

/// Flags of setxattr(2).
pub(crate) const XATTR_CREATE: i32 = libc::XATTR_CREATE;
pub(crate) const XATTR_REPLACE: i32 = libc::XATTR_REPLACE;

pub(crate) fn set_xattr(path: &Path, name: &CStr, value: &[u8], flags: i32) -> Result<()> {
    let path = c_path(path)?;
    // SAFETY: both strings end with a NUL, and `value` is as long as said.
    let done = unsafe {
        libc::setxattr(
            path.as_ptr(),
            name.as_ptr(),
            value.as_ptr().cast(),
            value.len(),
            flags,
        )
    };
    Errno::result(done).map(drop)
}

/// The most that Linux has of an attribute's value (XATTR_SIZE_MAX), and of all names.
pub(crate) const XATTR_BYTES_MAX: usize = 65_536;

pub(crate) fn xattr(path: &Path, name: &CStr, room_bytes: usize) -> Result<Vec<u8>> {
    let path = c_path(path)?;
    let mut value = vec![0_u8; room_bytes];
    // SAFETY: both strings end with a NUL, and the kernel writes no more than `value` has room for.
    let read = unsafe {
        libc::getxattr(
            path.as_ptr(),
            name.as_ptr(),
            value.as_mut_ptr().cast(),
            value.len(),
        )
    };
    let read = usize::try_from(Errno::result(read)?).unwrap_or_default();
    value.truncate(read);
    Ok(value)
}

/// Names of attributes of users, sorted; NFS has others of its own (`system.nfs4_acl`).
pub(crate) fn xattr_names(path: &Path) -> Result<Vec<Vec<u8>>> {
    let path = c_path(path)?;
    let mut names = vec![0_u8; XATTR_BYTES_MAX];
    // SAFETY: the path ends with a NUL, and the kernel writes no more than `names` has room for.
    let read = unsafe { libc::listxattr(path.as_ptr(), names.as_mut_ptr().cast(), names.len()) };
    let read = usize::try_from(Errno::result(read)?).unwrap_or_default();
    names.truncate(read);
    let mut listed: Vec<Vec<u8>> = names
        .split(|byte| *byte == 0)
        .filter(|name| name.starts_with(b"user."))
        .map(<[u8]>::to_vec)
        .collect();
    listed.sort();
    Ok(listed)
}

pub(crate) fn remove_xattr(path: &Path, name: &CStr) -> Result<()> {
    let path = c_path(path)?;
    // SAFETY: both strings end with a NUL.
    let done = unsafe { libc::removexattr(path.as_ptr(), name.as_ptr()) };
    Errno::result(done).map(drop)
}

/// A shared mapping of a file, which is there for as long as this is.
pub(crate) struct Mapping {
    start: NonNull<std::ffi::c_void>,
    bytes: NonZeroUsize,
}

impl Mapping {
    /// Maps the file from byte `offset` on, which is a multiple of a page.
    pub(crate) fn new(file: impl AsFd, offset: i64, bytes: NonZeroUsize) -> Result<Self> {
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: the kernel chooses where, so nothing that is there is replaced.
        let start = unsafe { mmap(None, bytes, protection, MapFlags::MAP_SHARED, file, offset) }?;
        Ok(Self { start, bytes })
    }

    /// Copies out of it; what lies behind its end is left out.
    pub(crate) fn read(&self, at: usize, to: &mut [u8]) {
        for (index, byte) in to.iter_mut().enumerate() {
            let index = at.saturating_add(index);
            if index >= self.bytes.get() {
                return;
            }
            // SAFETY: `index` is less than the length of the mapping.
            let from = unsafe { self.start.cast::<u8>().add(index) };
            // SAFETY: a byte of the mapping, of which other processes may have the pages too.
            *byte = unsafe { from.read_volatile() };
        }
    }

    /// Copies into it; what lies behind its end is left out.
    pub(crate) fn write(&self, at: usize, from: &[u8]) {
        for (index, byte) in from.iter().enumerate() {
            let index = at.saturating_add(index);
            if index >= self.bytes.get() {
                return;
            }
            // SAFETY: `index` is less than the length of the mapping.
            let to = unsafe { self.start.cast::<u8>().add(index) };
            // SAFETY: a byte of the mapping, of which other processes may have the pages too.
            unsafe { to.write_volatile(*byte) };
        }
    }

    pub(crate) fn sync(&self) -> Result<()> {
        // SAFETY: start and length are those of the mapping.
        unsafe { msync(self.start, self.bytes.get(), MsFlags::MS_SYNC) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's, and nothing borrows of it.
        let _unmapped = unsafe { munmap(self.start, self.bytes.get()) };
    }
}

/// A `struct flock` of bytes `start` and on; `bytes` of 0 reach to the end of the file.
pub(crate) fn range(kind: i32, start: i64, bytes: i64) -> libc::flock {
    libc::flock {
        l_type: i16::try_from(kind).unwrap_or_default(),
        l_whence: 0,
        l_start: start,
        l_len: bytes,
        l_pid: 0,
    }
}

/// Memory for O_DIRECT: aligned to a page, and as long as a multiple of it.
pub(crate) struct Aligned {
    memory: Vec<u8>,
    skip: usize,
    bytes: usize,
}

const PAGE_BYTES: usize = 4096;

impl Aligned {
    pub(crate) fn new(bytes: usize) -> Self {
        let memory = vec![0_u8; bytes.saturating_add(PAGE_BYTES)];
        let skip = memory.as_ptr().align_offset(PAGE_BYTES);
        Self {
            memory,
            skip,
            bytes,
        }
    }

    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        let end = self.skip.saturating_add(self.bytes);
        self.memory.get_mut(self.skip..end).unwrap_or_default()
    }
}

/// The file system's statistics.
pub(crate) fn stat_fs(path: &Path) -> Result<nix::sys::statvfs::Statvfs> {
    nix::sys::statvfs::statvfs(path)
}

/// Closes, with the error that a drop would hide.
pub(crate) fn close(file: File) -> Result<()> {
    nix::unistd::close(file)
}
