//! The few system calls for which no crate here has a safe function: what a file or device is.
#![expect(unsafe_code, reason = "ioctl, statx and flock are foreign functions")]

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;

mod ioctl {
    use super::LoopInfo64;

    nix::ioctl_read!(blkgetsize64, 0x12, 114, u64);
    nix::ioctl_read_bad!(blksszget, nix::request_code_none!(0x12, 104), libc::c_int);
    nix::ioctl_read_bad!(blkpbszget, nix::request_code_none!(0x12, 123), libc::c_uint);
    nix::ioctl_read!(fs_ioc_getflags, b'f', 1, libc::c_long);
    nix::ioctl_read!(fs_ioc_getversion, b'v', 1, libc::c_long);
    nix::ioctl_read_bad!(loop_get_status64, 0x4c05, LoopInfo64);
}

/// `FS_IMMUTABLE_FL` and `FS_APPEND_FL` of `linux/fs.h`.
const FS_IMMUTABLE_FL: u32 = 0x10;
const FS_APPEND_FL: u32 = 0x20;

/// `struct loop_info64` of `linux/loop.h`.
#[repr(C)]
#[derive(Clone, Copy)]
struct LoopInfo64 {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    rest: [u64; 25],
}
const _: () = assert!(size_of::<LoopInfo64>() == 232);

/// What a loop device is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LoopStatus {
    /// Of the file system that has the file, or the device file.
    pub(crate) device: u64,
    pub(crate) inode: u64,
    /// The number of a block device; 0 of a file.
    pub(crate) rdevice: u64,
    /// Where the loop device begins in it, in bytes.
    pub(crate) offset: u64,
}

/// `LOOP_GET_STATUS64`: what a loop device, or the one that a partition is of, is on.
pub(crate) fn loop_status(device: &File) -> io::Result<LoopStatus> {
    let mut info = MaybeUninit::<LoopInfo64>::zeroed();
    // SAFETY: the descriptor is open and the kernel writes one loop_info64 into `info`.
    unsafe { ioctl::loop_get_status64(device.as_raw_fd(), info.as_mut_ptr()) }?;
    // SAFETY: all-zero bytes are a valid loop_info64, and the kernel filled it in.
    let info = unsafe { info.assume_init() };
    Ok(LoopStatus {
        device: info.device,
        inode: info.inode,
        rdevice: info.rdevice,
        offset: info.offset,
    })
}

/// `BLKGETSIZE64`: a block device's size in bytes.
pub(crate) fn block_bytes(device: &File) -> io::Result<u64> {
    let mut bytes = 0;
    // SAFETY: the descriptor is open and the kernel writes one u64 into `bytes`.
    unsafe { ioctl::blkgetsize64(device.as_raw_fd(), &raw mut bytes) }?;
    Ok(bytes)
}

/// `BLKSSZGET`: the smallest transfer of a block device, in bytes.
pub(crate) fn logical_block_bytes(device: &File) -> io::Result<u32> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the descriptor is open and the kernel writes one int into `bytes`.
    unsafe { ioctl::blksszget(device.as_raw_fd(), &raw mut bytes) }?;
    u32::try_from(bytes).map_err(io::Error::other)
}

/// `BLKPBSZGET`: the block size the medium works in, in bytes.
pub(crate) fn physical_block_bytes(device: &File) -> io::Result<u32> {
    let mut bytes: libc::c_uint = 0;
    // SAFETY: the descriptor is open and the kernel writes one unsigned int into `bytes`.
    unsafe { ioctl::blkpbszget(device.as_raw_fd(), &raw mut bytes) }?;
    Ok(bytes)
}

/// The request's number says long; ioctl_iflags(2) and the kernel have an int.
type Int = [u32; size_of::<libc::c_long>() / size_of::<u32>()];

/// `FS_IOC_GETVERSION`: how often the inode number of a file was given, or a random number made
/// when it was.
pub(crate) fn inode_generation(file: &File) -> io::Result<u32> {
    let mut generation = Int::default();
    // SAFETY: the descriptor is open and the kernel writes a long at most into `generation`.
    unsafe { ioctl::fs_ioc_getversion(file.as_raw_fd(), generation.as_mut_ptr().cast()) }?;
    Ok(generation.first().copied().unwrap_or_default())
}

/// The attributes of a file that forbid to write it, whatever its mode (chattr(1)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// `i`: nobody may write it.
    pub immutable: bool,
    /// `a`: nobody may write what it has.
    pub append_only: bool,
}

/// `FS_IOC_GETFLAGS`: the attributes of an open file.
///
/// # Errors
/// Its file system has none, or it is a device.
pub fn attributes(file: &File) -> io::Result<Attributes> {
    let mut flags = Int::default();
    // SAFETY: the descriptor is open and the kernel writes a long at most into `flags`.
    unsafe { ioctl::fs_ioc_getflags(file.as_raw_fd(), flags.as_mut_ptr().cast()) }?;
    let flags = flags.first().copied().unwrap_or_default();
    let has = |flag: u32| flags & flag != 0;
    Ok(Attributes {
        immutable: has(FS_IMMUTABLE_FL),
        append_only: has(FS_APPEND_FL),
    })
}

/// What `O_DIRECT` requires of memory and file offsets, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DirectAlignment {
    pub(crate) memory_bytes: u32,
    pub(crate) offset_bytes: u32,
}

/// `statx` with `STATX_DIOALIGN` (Linux 6.1): `Ok(None)` when the kernel or the file system does
/// not say; zeroes mean that the file cannot be opened with `O_DIRECT`.
pub(crate) fn direct_alignment(file: &File) -> io::Result<Option<DirectAlignment>> {
    let stat = statx(file, 0, libc::STATX_DIOALIGN)?;
    Ok(
        (stat.stx_mask & libc::STATX_DIOALIGN != 0).then_some(DirectAlignment {
            memory_bytes: stat.stx_dio_mem_align,
            offset_bytes: stat.stx_dio_offset_align,
        }),
    )
}

/// A file's size as this machine knows it: a network file system is not asked
/// (`AT_STATX_DONT_SYNC`), so that the caller does not wait for one that does not answer.
pub(crate) fn known_file_bytes(file: &File) -> io::Result<u64> {
    Ok(statx(file, libc::AT_STATX_DONT_SYNC, libc::STATX_SIZE)?.stx_size)
}

fn statx(file: &File, flags: libc::c_int, mask: libc::c_uint) -> io::Result<libc::statx> {
    let mut stat = MaybeUninit::<libc::statx>::zeroed();
    // SAFETY: the descriptor is open, the path is an empty C string that AT_EMPTY_PATH allows, and
    // the kernel writes one statx structure into `stat`.
    let result = unsafe {
        libc::statx(
            file.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH | flags,
            mask,
            stat.as_mut_ptr(),
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: all-zero bytes are a valid statx, and the kernel filled in what it knows.
    Ok(unsafe { stat.assume_init() })
}

/// Takes an advisory lock on the open file description (`flock`), without waiting; with `is_shared`
/// beside other shared ones. The lock is released with the last reference to the description.
pub(crate) fn flock(file: &File, is_shared: bool) -> io::Result<()> {
    let kind = if is_shared {
        libc::LOCK_SH
    } else {
        libc::LOCK_EX
    };
    // SAFETY: the descriptor is open; the call touches no memory of ours.
    match unsafe { libc::flock(file.as_raw_fd(), kind | libc::LOCK_NB) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
