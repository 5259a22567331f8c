//! Attributes of files, what limits a file system, and how attributes are set.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{SystemTime, UNIX_EPOCH};

use bitflags::bitflags;
use nix::fcntl::AT_FDCWD;
use nix::libc;
use nix::sys::stat::{FchmodatFlags, Mode, UtimensatFlags, fchmodat, utimensat};
use nix::sys::statfs::{BTRFS_SUPER_MAGIC, EXT4_SUPER_MAGIC, FsType, XFS_SUPER_MAGIC};
use nix::sys::time::TimeSpec;
use nix::unistd::{Gid, Uid, ftruncate, truncate};

use crate::error::{FileError, Result};
use crate::file::OpenFile;
use crate::node::{Node, offset_of};
use crate::sys::{self, FdPath};

/// Kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileType {
    /// Regular file.
    Regular,
    /// Directory.
    Directory,
    /// Symbolic link.
    Symlink,
    /// Block device.
    Block,
    /// Character device.
    Character,
    /// Socket.
    Socket,
    /// FIFO.
    Fifo,
}

impl std::fmt::Display for FileType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Regular => "regular file",
            Self::Directory => "directory",
            Self::Symlink => "symbolic link",
            Self::Block => "block device",
            Self::Character => "character device",
            Self::Socket => "socket",
            Self::Fifo => "FIFO",
        })
    }
}

impl FileType {
    pub(crate) fn of(stat: &libc::statx) -> Self {
        match u32::from(stat.stx_mode) & libc::S_IFMT {
            libc::S_IFDIR => Self::Directory,
            libc::S_IFLNK => Self::Symlink,
            libc::S_IFBLK => Self::Block,
            libc::S_IFCHR => Self::Character,
            libc::S_IFSOCK => Self::Socket,
            libc::S_IFIFO => Self::Fifo,
            _ => Self::Regular,
        }
    }
}

/// A point in time, since 1970-01-01 00:00 UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time {
    /// Seconds; negative before 1970.
    pub seconds: i64,
    /// Nanoseconds behind them, less than 10^9.
    pub nanoseconds: u32,
}

impl Time {
    /// What this machine's clock says.
    pub(crate) fn now() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        // A clock before 1970 is one that was never set.
        let since = since.unwrap_or_default();
        Self {
            seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
            nanoseconds: since.subsec_nanos(),
        }
    }
}

impl From<libc::statx_timestamp> for Time {
    fn from(time: libc::statx_timestamp) -> Self {
        Self {
            seconds: time.tv_sec,
            nanoseconds: time.tv_nsec,
        }
    }
}

/// What is known of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Its kind.
    pub file_type: FileType,
    /// Permission bits, setuid, setgid and sticky: the lower 12 bits.
    pub mode: u16,
    /// Names that it has.
    pub link_count: u32,
    /// Owner, a number of this machine.
    pub uid: u32,
    /// Group, a number of this machine.
    pub gid: u32,
    /// Bytes up to its end.
    pub size_bytes: u64,
    /// Bytes that it takes of the file system.
    pub used_bytes: u64,
    /// Bytes of an I/O that suits it.
    pub io_bytes: u32,
    /// Major and minor number of a device.
    pub device: (u32, u32),
    /// Its number in the file system.
    pub file_id: u64,
    /// Last read.
    pub accessed: Time,
    /// Last change of its data.
    pub modified: Time,
    /// Last change of anything.
    pub changed: Time,
    /// When it was made, where the file system keeps that.
    pub born: Option<Time>,
    /// Another number after every change: see [`change_of`].
    pub change: u64,
}

pub(crate) const MASK: libc::c_uint = libc::STATX_BASIC_STATS | libc::STATX_BTIME;

/// The change attribute, made of the time of the last change. The kernel keeps the cookie that its
/// own NFS target has (`STATX_CHANGE_COOKIE`) from programs. Since Linux 6.13 ext4, XFS and btrfs
/// take a finer clock for a change behind a look (multigrain timestamps): each change that could
/// have been seen has another time. Two within one tick of the clock look like one before, and on a
/// tmpfs where they remove entries: the directory has the time of the removed file then.
pub fn change_of(changed: Time) -> u64 {
    // 2^30 is more than the nanoseconds of a second.
    changed
        .seconds
        .cast_unsigned()
        .wrapping_shl(30)
        .wrapping_add(u64::from(changed.nanoseconds))
}

impl Attributes {
    pub(crate) fn of_fd(fd: BorrowedFd<'_>) -> Result<Self> {
        let stat = sys::statx(fd, MASK).map_err(FileError::kernel("getting attributes"))?;
        Ok(Self::of(&stat))
    }

    pub(crate) fn of(stat: &libc::statx) -> Self {
        let changed = stat.stx_ctime.into();
        let has_born = stat.stx_mask & libc::STATX_BTIME != 0;
        Self {
            file_type: FileType::of(stat),
            mode: stat.stx_mode & 0o7777,
            link_count: stat.stx_nlink,
            uid: stat.stx_uid,
            gid: stat.stx_gid,
            size_bytes: stat.stx_size,
            used_bytes: stat.stx_blocks.saturating_mul(512),
            io_bytes: stat.stx_blksize,
            device: (stat.stx_rdev_major, stat.stx_rdev_minor),
            file_id: stat.stx_ino,
            accessed: stat.stx_atime.into(),
            modified: stat.stx_mtime.into(),
            changed,
            born: has_born.then(|| stat.stx_btime.into()),
            change: change_of(changed),
        }
    }
}

/// What a time is set to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// What this machine's clock says.
    Now,
    /// What the client says.
    To(Time),
}

impl SetTime {
    fn spec(of: Option<Self>) -> Result<TimeSpec> {
        match of {
            None => Ok(TimeSpec::UTIME_OMIT),
            Some(Self::Now) => Ok(TimeSpec::UTIME_NOW),
            // The two numbers above are such nanoseconds.
            Some(Self::To(time)) if time.nanoseconds >= 1_000_000_000 => {
                Err(FileError::OutOfRange {
                    what: "nanoseconds of a time",
                    value: time.nanoseconds.into(),
                    most: 999_999_999,
                })
            }
            Some(Self::To(time)) => Ok(TimeSpec::new(time.seconds, time.nanoseconds.into())),
        }
    }
}

/// Attributes to set; those that are `None` stay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttributes {
    /// Bytes up to the end: cut off behind, or zeroes added.
    pub size_bytes: Option<u64>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// The lower 12 bits of the mode.
    pub mode: Option<u16>,
    /// Time of the last read.
    pub accessed: Option<SetTime>,
    /// Time of the last change of data.
    pub modified: Option<SetTime>,
}

bitflags! {
    /// Which attributes were set.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct WasSet: u8 {
        /// The size.
        const SIZE = 1;
        /// Owner and group.
        const OWNER = 2;
        /// The mode.
        const MODE = 4;
        /// The times.
        const TIMES = 8;
    }
}

/// The kernel takes it for "as it is".
fn id_of(what: &'static str, id: Option<u32>) -> Result<Option<u32>> {
    match id {
        Some(u32::MAX) => Err(FileError::OutOfRange {
            what,
            value: u32::MAX.into(),
            most: u64::from(u32::MAX) - 1,
        }),
        other => Ok(other),
    }
}

/// Sets in the order that leaves each as it was asked for: a new size takes setuid and setgid away
/// and sets the time of the data's change, and a new owner takes setuid and setgid away. The thread
/// acts for the caller.
pub(crate) fn set(
    fd: BorrowedFd<'_>,
    to: &SetAttributes,
    open: Option<&OpenFile>,
    done: &mut WasSet,
) -> Result<()> {
    let path = FdPath::new(fd);
    let path = path.as_c_str();
    let (uid, gid) = (id_of("uid", to.uid)?, id_of("gid", to.gid)?);
    let times = (SetTime::spec(to.accessed)?, SetTime::spec(to.modified)?);
    if let Some(size) = to.size_bytes {
        let size = offset_of("size", size)?;
        match open {
            Some(open) => ftruncate(open.fd(), size),
            None => truncate(path, size),
        }
        .map_err(FileError::kernel("setting the size"))?;
        *done |= WasSet::SIZE;
    }
    if uid.is_some() || gid.is_some() {
        let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
        nix::unistd::chown(path, uid, gid).map_err(FileError::kernel("setting the owner"))?;
        *done |= WasSet::OWNER;
    }
    if let Some(mode) = to.mode {
        let mode = Mode::from_bits_truncate(u32::from(mode & 0o7777));
        fchmodat(AT_FDCWD, path, mode, FchmodatFlags::FollowSymlink)
            .map_err(FileError::kernel("setting the mode"))?;
        *done |= WasSet::MODE;
    }
    if to.accessed.is_some() || to.modified.is_some() {
        utimensat(
            AT_FDCWD,
            path,
            &times.0,
            &times.1,
            UtimensatFlags::FollowSymlink,
        )
        .map_err(FileError::kernel("setting times"))?;
        *done |= WasSet::TIMES;
    }
    Ok(())
}

/// What there is in a file system, and what is left of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Bytes of a block: what is shared by a clone begins and ends with one.
    pub block_bytes: u32,
    /// Bytes in all.
    pub total_bytes: u64,
    /// Bytes that are free.
    pub free_bytes: u64,
    /// Bytes of those that are not kept for root.
    pub available_bytes: u64,
    /// Files that there may be; 0 where the file system has no such number.
    pub total_files: u64,
    /// Files that there may be more.
    pub free_files: u64,
}

/// What names and links of a file system can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameLimits {
    /// Most bytes of a name.
    pub name_bytes: u64,
    /// Most names of a file.
    pub links: u64,
    /// Whether names that differ in case alone are the same, in this directory.
    pub ignores_case: bool,
}

/// What the kernel does not tell: `EXT4_LINK_MAX`, `XFS_MAXLINK`, `BTRFS_LINK_MAX`. Elsewhere the
/// kernel's count has 32 bits, and a file system that has fewer says `EMLINK` of a link too many.
fn most_links(file_system: FsType) -> u64 {
    match file_system {
        EXT4_SUPER_MAGIC => 65_000,
        XFS_SUPER_MAGIC => (1 << 31) - 1,
        BTRFS_SUPER_MAGIC => 65_535,
        _ => u32::MAX.into(),
    }
}

impl Node {
    /// Sets the times of the last change to now: for a change that left them as they were, within
    /// one tick of the clock. The kernel takes a finer clock where the attributes were looked at
    /// behind that change.
    ///
    /// # Errors
    /// Where the kernel refuses.
    pub fn renew_change(&self) -> Result<()> {
        let path = FdPath::new(self.fd());
        utimensat(
            AT_FDCWD,
            path.as_c_str(),
            &TimeSpec::UTIME_OMIT,
            &TimeSpec::UTIME_NOW,
            UtimensatFlags::FollowSymlink,
        )
        .map_err(FileError::kernel("setting the time of a change"))
    }

    /// What is left in its file system.
    ///
    /// # Errors
    /// Where the kernel does not tell.
    pub fn space(&self) -> Result<Space> {
        let stat = nix::sys::statfs::fstatfs(self.fd())
            .map_err(FileError::kernel("looking at the file system"))?;
        let unit = u64::try_from(stat.block_size()).unwrap_or(0);
        Ok(Space {
            block_bytes: u32::try_from(unit).unwrap_or(0),
            total_bytes: stat.blocks().saturating_mul(unit),
            free_bytes: stat.blocks_free().saturating_mul(unit),
            available_bytes: stat.blocks_available().saturating_mul(unit),
            total_files: stat.files(),
            free_files: stat.files_free(),
        })
    }

    /// Limits of names, as its file system has them.
    ///
    /// # Errors
    /// Where the kernel does not tell.
    pub fn name_limits(&self) -> Result<NameLimits> {
        let looking = FileError::kernel("looking at the limits of names");
        let stat = nix::sys::statfs::fstatfs(self.fd()).map_err(looking)?;
        let ignores_case = match self.file_type() {
            FileType::Directory => sys::ignores_case(self.readable_directory()?.as_fd()),
            _ => false,
        };
        Ok(NameLimits {
            name_bytes: u64::try_from(stat.maximum_name_length()).unwrap_or(0),
            links: most_links(stat.filesystem_type()),
            ignores_case,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_change_is_a_larger_number() {
        let change = |seconds, nanoseconds| {
            change_of(Time {
                seconds,
                nanoseconds,
            })
        };
        assert!(change(1, 999_999_999) < change(2, 0));
        assert!(change(2, 0) < change(2, 1));
        assert_eq!(change(0, 7), 7);
        // Before 1970, and behind the year 2514: other numbers still, if not larger ones.
        assert_ne!(change(-1, 0), change(-2, 0));
        assert_ne!(change(1 << 34, 1), change(1 << 34, 2));
    }

    #[test]
    fn nanoseconds_that_stand_for_something_else_are_refused() {
        for nanoseconds in [1_000_000_000, (1 << 30) - 1, (1 << 30) - 2, u32::MAX] {
            let time = Time {
                seconds: 0,
                nanoseconds,
            };
            assert!(
                SetTime::spec(Some(SetTime::To(time))).is_err(),
                "{nanoseconds}"
            );
        }
    }
}
