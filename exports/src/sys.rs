//! System calls that nix does not wrap, or wraps for the whole process.
#![expect(unsafe_code, reason = "foreign functions and what they fill in")]

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::LazyLock;

use capstan_memory::{RawBytes, Span};
use nix::Result;
use nix::errno::Errno;
use nix::libc;

use crate::handle::{KERNEL_HANDLE_BYTES, KernelHandle};

mod ioctls {
    #[repr(C)]
    #[derive(Default)]
    pub(super) struct FileSystemUuid {
        pub(super) length: u8,
        pub(super) uuid: [u8; 16],
    }

    // include/uapi/linux/fs.h, Linux 6.9
    nix::ioctl_read!(fs_ioc_getfsuuid, 0x15, 0, FileSystemUuid);
    // The kernel writes an int, though the number says long (ioctl_iflags(2)).
    nix::ioctl_read!(fs_ioc_getflags, b'f', 1, libc::c_long);
    nix::ioctl_write_ptr!(ficlonerange, 0x94, 13, libc::file_clone_range);
}

/// Path by which an open file is reached again, whatever has become of its name.
pub(crate) struct FdPath([u8; Self::BYTES]);

impl FdPath {
    const FOLDER: &[u8] = b"/proc/self/fd/";
    /// The folder, the ten digits of the largest descriptor, and the end.
    const BYTES: usize = Self::FOLDER.len() + 10 + 1;

    pub(crate) fn new(fd: BorrowedFd<'_>) -> Self {
        let mut path = [0; Self::BYTES];
        let mut rest = fd.as_raw_fd().unsigned_abs();
        let mut digits = [0; 10];
        let mut first = digits.len();
        loop {
            first -= 1;
            digits[first] = b'0' + u8::try_from(rest % 10).unwrap_or(0);
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        let bytes = Self::FOLDER.iter().chain(digits.iter().skip(first));
        for (to, from) in path.iter_mut().zip(bytes) {
            *to = *from;
        }
        Self(path)
    }

    pub(crate) fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.0).unwrap_or_default()
    }
}

/// The kernel's own limit, `MAX_HANDLE_SZ` (include/linux/exportfs.h).
const MAX_HANDLE_SZ: usize = 128;

#[repr(C)]
struct FileHandle {
    bytes: u32,
    kind: i32,
    handle: [u8; MAX_HANDLE_SZ],
}

/// Why the kernel's handle of a file cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoHandle {
    Kernel(Errno),
    /// It has so many bytes, or a type that has more than 16 bits.
    Large {
        bytes: u32,
        kind: i32,
    },
}

/// `name_to_handle_at(2)` of an open file (`O_PATH` is enough).
pub(crate) fn kernel_handle(fd: BorrowedFd<'_>) -> std::result::Result<KernelHandle, NoHandle> {
    let mut handle = FileHandle {
        bytes: 128,
        kind: 0,
        handle: [0; MAX_HANDLE_SZ],
    };
    let mut mount_id = 0;
    let flags = libc::AT_EMPTY_PATH;
    // SAFETY: `handle` is laid out as struct file_handle, and says how many bytes follow its head;
    // the kernel writes no more than that, and one int to `mount_id`.
    let made = unsafe {
        libc::name_to_handle_at(
            fd.as_raw_fd(),
            c"".as_ptr(),
            (&raw mut handle).cast(),
            &raw mut mount_id,
            flags,
        )
    };
    let too_large = |handle: &FileHandle| NoHandle::Large {
        bytes: handle.bytes,
        kind: handle.kind,
    };
    match Errno::result(made) {
        Err(Errno::EOVERFLOW) if handle.bytes > 128 => return Err(too_large(&handle)),
        other => other.map_err(NoHandle::Kernel)?,
    };
    usize::try_from(handle.bytes)
        .ok()
        .and_then(|bytes| handle.handle.get(..bytes))
        .zip(u16::try_from(handle.kind).ok())
        .and_then(|(bytes, kind)| KernelHandle::new(kind, bytes))
        .ok_or_else(|| too_large(&handle))
}

/// `open_by_handle_at(2)` on the file system that `mount` is open on (not with `O_PATH`).
pub(crate) fn open_by_handle(
    mount: BorrowedFd<'_>,
    kernel: &KernelHandle,
    flags: libc::c_int,
) -> Result<OwnedFd> {
    const { assert!(KERNEL_HANDLE_BYTES <= MAX_HANDLE_SZ) };
    let mut handle = FileHandle {
        bytes: 0,
        kind: i32::from(kernel.kind()),
        handle: [0; MAX_HANDLE_SZ],
    };
    for (to, from) in handle.handle.iter_mut().zip(kernel.bytes()) {
        *to = *from;
        handle.bytes += 1;
    }
    // SAFETY: `handle` is laid out as struct file_handle and has as many bytes as it says.
    let fd = unsafe {
        libc::open_by_handle_at(
            mount.as_raw_fd(),
            (&raw mut handle).cast(),
            flags | libc::O_CLOEXEC,
        )
    };
    owned(Errno::result(fd)?)
}

fn owned(fd: RawFd) -> Result<OwnedFd> {
    // SAFETY: the kernel has just made this descriptor, and nothing else uses it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Whether the kernel has multigrain timestamps, which came with Linux 6.13: a change behind a look
/// has another time than what was seen. Nothing but the release tells.
pub(crate) fn has_fine_times() -> bool {
    static HAS: LazyLock<bool> = LazyLock::new(|| {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let mut numbers = release.split(|c: char| !c.is_ascii_digit());
        let mut next = || numbers.next().and_then(|number| number.parse::<u32>().ok());
        next().zip(next()) >= Some((6, 13))
    });
    *HAS
}

/// `statx(2)` of an open file (`O_PATH` is enough; of a link that is open so, of the link).
pub(crate) fn statx(fd: BorrowedFd<'_>, mask: libc::c_uint) -> Result<libc::statx> {
    // With another flag the kernel would walk the empty path, which takes as long as the rest.
    statx_with(fd, libc::AT_NO_AUTOMOUNT, mask)
}

/// As [`statx`], from what the kernel knows of the file: a file system whose server does not answer
/// is not asked.
pub(crate) fn statx_known(fd: BorrowedFd<'_>, mask: libc::c_uint) -> Result<libc::statx> {
    statx_with(fd, libc::AT_STATX_DONT_SYNC, mask)
}

fn statx_with(fd: BorrowedFd<'_>, flags: libc::c_int, mask: libc::c_uint) -> Result<libc::statx> {
    let mut stat = MaybeUninit::<libc::statx>::zeroed();
    let flags = libc::AT_EMPTY_PATH | flags;
    // SAFETY: the path is empty and ends; the kernel writes one struct statx into `stat`.
    let done = unsafe { libc::statx(fd.as_raw_fd(), c"".as_ptr(), flags, mask, stat.as_mut_ptr()) };
    Errno::result(done)?;
    // SAFETY: all-zero bytes are a valid struct statx, and the kernel filled it in.
    Ok(unsafe { stat.assume_init() })
}

/// Whether the thread's file system uid and gid may do what `mode` says (`R_OK`, `W_OK`, `X_OK`).
/// Without `AT_EACCESS` the kernel would ask about the real uid, which is the daemon's.
pub(crate) fn access(fd: BorrowedFd<'_>, mode: libc::c_int) -> Result<()> {
    let flags = libc::AT_EACCESS | libc::AT_EMPTY_PATH;
    // SAFETY: the path is empty and ends, and the call writes nowhere.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_faccessat2,
            fd.as_raw_fd(),
            c"".as_ptr(),
            mode,
            flags,
        )
    };
    Errno::result(answer).map(drop)
}

/// Supplementary groups of the calling thread: the C library's setgroups is for all threads.
pub(crate) fn set_thread_groups(groups: &[libc::gid_t]) -> Result<()> {
    // SAFETY: the kernel reads as many ids from `groups` as it has.
    let done = unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) };
    Errno::result(done).map(drop)
}

/// `struct __user_cap_header_struct` of version 3 (include/uapi/linux/capability.h).
#[repr(C)]
struct CapabilityHeader {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct CapabilityWords {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Version 3, and the calling thread.
const CAPABILITY_HEADER: CapabilityHeader = CapabilityHeader {
    version: 0x2008_0522,
    pid: 0,
};

fn capability_words() -> Result<[CapabilityWords; 2]> {
    let mut header = CAPABILITY_HEADER;
    let mut words = [CapabilityWords::default(); 2];
    // SAFETY: version 3 has two structs of words, and the kernel may write the header.
    let done = unsafe { libc::syscall(libc::SYS_capget, &raw mut header, words.as_mut_ptr()) };
    Errno::result(done)?;
    Ok(words)
}

/// Effective capabilities of the calling thread, one bit each.
pub(crate) fn effective_capabilities() -> Result<u64> {
    let [low, high] = capability_words()?;
    Ok(u64::from(low.effective) | u64::from(high.effective) << 32)
}

/// Takes from the calling thread's effective capabilities those that are not in `kept`.
pub(crate) fn keep_effective_capabilities(kept: u64) -> Result<()> {
    let mut header = CAPABILITY_HEADER;
    let mut words = capability_words()?;
    for (word, shift) in words.iter_mut().zip([0, 32]) {
        word.effective &= u32::try_from(kept >> shift & u64::from(u32::MAX)).unwrap_or(0);
    }
    // SAFETY: version 3 has two structs of words, and the kernel may write the header.
    let done = unsafe { libc::syscall(libc::SYS_capset, &raw mut header, words.as_ptr()) };
    Errno::result(done).map(drop)
}

/// `getdents64(2)`: how many bytes of `buffer` hold entries.
pub(crate) fn directory_entries(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<usize> {
    // SAFETY: the kernel writes no more than the length of `buffer` into it.
    let bytes = unsafe {
        libc::syscall(
            libc::SYS_getdents64,
            fd.as_raw_fd(),
            buffer.as_mut_ptr(),
            buffer.len(),
        )
    };
    Ok(usize::try_from(Errno::result(bytes)?).unwrap_or(0))
}

/// UUID of the file system that the file is on; `None` where it has none to tell.
pub(crate) fn file_system_uuid(fd: BorrowedFd<'_>) -> Option<[u8; 16]> {
    let mut answer = ioctls::FileSystemUuid::default();
    // SAFETY: the descriptor is open, and the kernel writes one struct fsuuid2 into `answer`.
    unsafe { ioctls::fs_ioc_getfsuuid(fd.as_raw_fd(), &raw mut answer) }.ok()?;
    (answer.length == 16 && answer.uuid != [0; 16]).then_some(answer.uuid)
}

/// `FS_CASEFOLD_FL` (include/uapi/linux/fs.h).
const CASEFOLD: libc::c_long = 0x4000_0000;

/// Whether names in the directory that differ in case alone are the same.
pub(crate) fn ignores_case(directory: BorrowedFd<'_>) -> bool {
    let mut flags: libc::c_long = 0;
    // SAFETY: the descriptor is open and the kernel writes a long at most into `flags`.
    let told = unsafe { ioctls::fs_ioc_getflags(directory.as_raw_fd(), &raw mut flags) };
    told.is_ok() && flags & CASEFOLD != 0
}

/// `FICLONERANGE` (ioctl_ficlonerange(2)): `length` 0 stands for all up to the end.
pub(crate) fn clone_range(
    from: BorrowedFd<'_>,
    offset: u64,
    length: u64,
    to: BorrowedFd<'_>,
    to_offset: u64,
) -> Result<()> {
    let range = libc::file_clone_range {
        src_fd: i64::from(from.as_raw_fd()),
        src_offset: offset,
        src_length: length,
        dest_offset: to_offset,
    };
    // SAFETY: both descriptors are open, and the kernel only reads `range`.
    unsafe { ioctls::ficlonerange(to.as_raw_fd(), &raw const range) }.map(drop)
}

/// pread(2) into memory that devices use as well.
pub(crate) fn read_at(fd: BorrowedFd<'_>, into: &Span, offset: libc::off_t) -> Result<usize> {
    // SAFETY: the span's bytes are mapped as long as it lives, and no safe code has a reference to
    // them (`capstan_memory`).
    length(unsafe {
        libc::pread(
            fd.as_raw_fd(),
            into.base().as_ptr().cast(),
            into.len_bytes(),
            offset,
        )
    })
}

/// preadv2(2) of what is in memory, unless `may_wait`: else `EAGAIN`, or `EOPNOTSUPP` where the
/// file system cannot tell.
pub(crate) fn read_now(
    fd: BorrowedFd<'_>,
    into: &mut [u8],
    offset: libc::off_t,
    may_wait: bool,
) -> Result<usize> {
    let bytes = libc::iovec {
        iov_base: into.as_mut_ptr().cast(),
        iov_len: into.len(),
    };
    // SAFETY: the bytes are borrowed as long as the call lasts.
    length(unsafe { preadv2(fd, &bytes, offset, may_wait) })
}

/// The same, into memory that devices use as well.
pub(crate) fn read_span_now(
    fd: BorrowedFd<'_>,
    into: &Span,
    offset: libc::off_t,
    may_wait: bool,
) -> Result<usize> {
    let bytes = libc::iovec {
        iov_base: into.base().as_ptr().cast(),
        iov_len: into.len_bytes(),
    };
    // SAFETY: as of `read_at`.
    length(unsafe { preadv2(fd, &bytes, offset, may_wait) })
}

/// # Safety
/// The bytes may be written.
unsafe fn preadv2(
    fd: BorrowedFd<'_>,
    bytes: &libc::iovec,
    offset: libc::off_t,
    may_wait: bool,
) -> isize {
    let flags = if may_wait { 0 } else { libc::RWF_NOWAIT };
    // SAFETY: as the caller says.
    unsafe { libc::preadv2(fd.as_raw_fd(), bytes, 1, offset, flags) }
}

/// pwrite(2) of bytes that others may write meanwhile.
pub(crate) fn write_at(
    fd: BorrowedFd<'_>,
    from: RawBytes<'_>,
    offset: libc::off_t,
) -> Result<usize> {
    // SAFETY: the bytes are mapped as long as they are borrowed (`RawBytes::new`), and only read.
    length(unsafe {
        libc::pwrite(
            fd.as_raw_fd(),
            from.base().as_ptr().cast(),
            from.len(),
            offset,
        )
    })
}

fn length(answer: isize) -> Result<usize> {
    Ok(usize::try_from(Errno::result(answer)?).unwrap_or(0))
}

/// `getxattr(2)` of an open file; an empty `value` asks for the length alone.
pub(crate) fn get_xattr(fd: BorrowedFd<'_>, name: &CStr, value: &mut [u8]) -> Result<usize> {
    let path = FdPath::new(fd);
    // SAFETY: both strings end; the kernel writes no more than the length of `value` into it.
    length(unsafe {
        libc::getxattr(
            path.as_c_str().as_ptr(),
            name.as_ptr(),
            value.as_mut_ptr().cast(),
            value.len(),
        )
    })
}

/// `setxattr(2)` of an open file.
pub(crate) fn set_xattr(
    fd: BorrowedFd<'_>,
    name: &CStr,
    value: &[u8],
    flags: libc::c_int,
) -> Result<()> {
    let path = FdPath::new(fd);
    // SAFETY: both strings end, and the kernel reads `value` no further than its length.
    let done = unsafe {
        libc::setxattr(
            path.as_c_str().as_ptr(),
            name.as_ptr(),
            value.as_ptr().cast(),
            value.len(),
            flags,
        )
    };
    Errno::result(done).map(drop)
}

/// `listxattr(2)` of an open file; an empty `names` asks for the length alone.
pub(crate) fn list_xattrs(fd: BorrowedFd<'_>, names: &mut [u8]) -> Result<usize> {
    let path = FdPath::new(fd);
    // SAFETY: the path ends; the kernel writes no more than the length of `names` into it.
    length(unsafe {
        libc::listxattr(
            path.as_c_str().as_ptr(),
            names.as_mut_ptr().cast(),
            names.len(),
        )
    })
}

/// `removexattr(2)` of an open file.
pub(crate) fn remove_xattr(fd: BorrowedFd<'_>, name: &CStr) -> Result<()> {
    let path = FdPath::new(fd);
    // SAFETY: both strings end, and the call writes nowhere.
    let done = unsafe { libc::removexattr(path.as_c_str().as_ptr(), name.as_ptr()) };
    Errno::result(done).map(drop)
}
