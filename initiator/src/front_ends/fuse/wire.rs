//! Structures of the kernel's FUSE protocol (`include/uapi/linux/fuse.h`), version 7.31 and later.
//! Integers are the machine's own. Structures that are not used by a file system of one file are
//! left out.

use bitflags::bitflags;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Major version of the protocol.
pub(crate) const KERNEL_VERSION: u32 = 7;
/// The minor version this side speaks: that of Linux 5.4. Newer kernels adapt to it.
pub(crate) const KERNEL_MINOR_VERSION: u32 = 31;
/// Minor version of Linux 4.20, the first that lets requests have more than 32 pages.
pub(crate) const KERNEL_MINOR_VERSION_MIN: u32 = 28;
/// Node of the root folder.
pub(crate) const ROOT_ID: u64 = 1;
/// Bytes before the data of a write: what a read of the device must leave room for, beside the
/// data.
pub(crate) const WRITE_HEAD_BYTES: usize = size_of::<InHeader>() + size_of::<WriteIn>();

macro_rules! opcodes {
    ($($name:ident = $value:literal,)+) => {
        /// Kind of a request.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub(crate) struct Opcode(pub u32);

        // The names are those of fuse.h.
        impl Opcode {
            $(pub(crate) const $name: Self = Self($value);)+
        }
    };
}

opcodes! {
    LOOKUP = 1,
    FORGET = 2,
    GETATTR = 3,
    SETATTR = 4,
    OPEN = 14,
    READ = 15,
    WRITE = 16,
    STATFS = 17,
    RELEASE = 18,
    FSYNC = 20,
    FLUSH = 25,
    INIT = 26,
    OPENDIR = 27,
    READDIR = 28,
    RELEASEDIR = 29,
    FSYNCDIR = 30,
    DESTROY = 38,
    BATCH_FORGET = 42,
    FALLOCATE = 43,
}

bitflags! {
    /// Flags of INIT, both ways.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct InitFlags: u32 {
        /// Reads need not be in order.
        const ASYNC_READ = 1;
        /// Writes may be larger than a page.
        const BIG_WRITES = 1 << 5;
        /// Direct I/O may be asynchronous.
        const ASYNC_DIO = 1 << 15;
        /// Lookups need no lock.
        const PARALLEL_DIROPS = 1 << 18;
        /// Reading the device after an abort says ECONNABORTED.
        const ABORT_ERROR = 1 << 21;
        /// `max_pages` of the reply counts.
        const MAX_PAGES = 1 << 22;
    }
}

bitflags! {
    /// Flags of the reply to OPEN.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct OpenFlags: u32 {
        /// No page cache.
        const DIRECT_IO = 1;
        /// Direct writes need no lock against each other.
        const PARALLEL_DIRECT_WRITES = 1 << 6;
    }
}

/// `valid` of [`SetattrIn`]: the size is to be set.
pub(crate) const FATTR_SIZE: u32 = 1 << 3;

/// Before every request.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct InHeader {
    /// Bytes of the request, with this header.
    pub(crate) len_bytes: u32,
    /// [`Opcode`].
    pub(crate) opcode: u32,
    /// Comes back in the reply.
    pub(crate) unique: u64,
    /// The node it is about.
    pub(crate) nodeid: u64,
    /// User.
    pub(crate) uid: u32,
    /// Group.
    pub(crate) gid: u32,
    /// Process.
    pub(crate) pid: u32,
    /// Length of extensions; none are asked for.
    pub(crate) total_extlen: u16,
    /// Zero.
    pub(crate) padding: u16,
}
const _: () = assert!(size_of::<InHeader>() == 40);

/// Before every reply.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct OutHeader {
    /// Bytes of the reply, with this header.
    pub(crate) len_bytes: u32,
    /// Zero, or a negative errno.
    pub(crate) error: i32,
    /// Of the request.
    pub(crate) unique: u64,
}
const _: () = assert!(size_of::<OutHeader>() == 16);

/// `error` of an [`OutHeader`] without a request: the kernel is to keep data that follows a
/// [`StoreOut`]. That makes the file as long as where they end, if it is shorter.
pub(crate) const NOTIFY_STORE: i32 = 4;

/// Behind the header of [`NOTIFY_STORE`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct StoreOut {
    /// The node.
    pub(crate) nodeid: u64,
    /// First byte.
    pub(crate) offset_bytes: u64,
    /// Bytes.
    pub(crate) size_bytes: u32,
    /// Zero.
    pub(crate) padding: u32,
}
const _: () = assert!(size_of::<StoreOut>() == 24);

/// INIT. Newer kernels send more.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct InitIn {
    /// The kernel's version.
    pub(crate) major: u32,
    /// The kernel's version.
    pub(crate) minor: u32,
    /// Most bytes read ahead.
    pub(crate) max_readahead_bytes: u32,
    /// [`InitFlags`], and more.
    pub(crate) flags: u32,
}
const _: () = assert!(size_of::<InitIn>() == 16);

/// The reply to INIT.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct InitOut {
    /// This side's version.
    pub(crate) major: u32,
    /// This side's version.
    pub(crate) minor: u32,
    /// Most bytes read ahead.
    pub(crate) max_readahead_bytes: u32,
    /// [`InitFlags`].
    pub(crate) flags: u32,
    /// Asynchronous requests at once.
    pub(crate) max_background: u16,
    /// Asynchronous requests beyond which the file system counts as congested.
    pub(crate) congestion_threshold: u16,
    /// Most bytes of a write.
    pub(crate) max_write_bytes: u32,
    /// Granularity of times, in nanoseconds.
    pub(crate) time_gran_ns: u32,
    /// Most pages of a request.
    pub(crate) max_pages: u16,
    /// For DAX.
    pub(crate) map_alignment: u16,
    /// More flags.
    pub(crate) flags2: u32,
    /// Zero.
    pub(crate) unused: [u32; 7],
}
const _: () = assert!(size_of::<InitOut>() == 64);

/// Attributes of a node.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Attr {
    /// Inode.
    pub(crate) ino: u64,
    /// Size in bytes.
    pub(crate) size_bytes: u64,
    /// Size in units of 512 bytes.
    pub(crate) blocks: u64,
    /// Last access.
    pub(crate) atime: u64,
    /// Last write.
    pub(crate) mtime: u64,
    /// Last change.
    pub(crate) ctime: u64,
    /// Its nanoseconds.
    pub(crate) atime_ns: u32,
    /// Its nanoseconds.
    pub(crate) mtime_ns: u32,
    /// Its nanoseconds.
    pub(crate) ctime_ns: u32,
    /// Type and permissions.
    pub(crate) mode: u32,
    /// Links.
    pub(crate) nlink: u32,
    /// Owner.
    pub(crate) uid: u32,
    /// Group.
    pub(crate) gid: u32,
    /// Device number.
    pub(crate) rdev: u32,
    /// Preferred size of I/O, in bytes.
    pub(crate) blksize_bytes: u32,
    /// Flags.
    pub(crate) flags: u32,
}
const _: () = assert!(size_of::<Attr>() == 88);

/// The reply to LOOKUP.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct EntryOut {
    /// The node.
    pub(crate) nodeid: u64,
    /// Its generation.
    pub(crate) generation: u64,
    /// How long the name holds, in seconds.
    pub(crate) entry_valid_s: u64,
    /// How long the attributes hold, in seconds.
    pub(crate) attr_valid_s: u64,
    /// And nanoseconds.
    pub(crate) entry_valid_ns: u32,
    /// And nanoseconds.
    pub(crate) attr_valid_ns: u32,
    /// Attributes.
    pub(crate) attr: Attr,
}
const _: () = assert!(size_of::<EntryOut>() == 128);

/// The reply to GETATTR and SETATTR.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct AttrOut {
    /// How long the attributes hold, in seconds.
    pub(crate) attr_valid_s: u64,
    /// And nanoseconds.
    pub(crate) attr_valid_ns: u32,
    /// Zero.
    pub(crate) dummy: u32,
    /// Attributes.
    pub(crate) attr: Attr,
}
const _: () = assert!(size_of::<AttrOut>() == 104);

/// The start of SETATTR.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct SetattrIn {
    /// What is to be set.
    pub(crate) valid: u32,
    /// Zero.
    pub(crate) padding: u32,
    /// File handle.
    pub(crate) fh: u64,
    /// Size in bytes.
    pub(crate) size_bytes: u64,
}
const _: () = assert!(size_of::<SetattrIn>() == 24);

/// OPEN and OPENDIR.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct OpenIn {
    /// As of open(2).
    pub(crate) flags: u32,
    /// More flags.
    pub(crate) open_flags: u32,
}
const _: () = assert!(size_of::<OpenIn>() == 8);

/// The reply to OPEN and OPENDIR.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct OpenOut {
    /// File handle.
    pub(crate) fh: u64,
    /// [`OpenFlags`].
    pub(crate) open_flags: u32,
    /// Zero.
    pub(crate) padding: u32,
}
const _: () = assert!(size_of::<OpenOut>() == 16);

/// READ and READDIR.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct ReadIn {
    /// File handle.
    pub(crate) fh: u64,
    /// First byte.
    pub(crate) offset_bytes: u64,
    /// Bytes.
    pub(crate) size_bytes: u32,
    /// Flags.
    pub(crate) read_flags: u32,
    /// Lock owner.
    pub(crate) lock_owner: u64,
    /// As of open(2).
    pub(crate) flags: u32,
    /// Zero.
    pub(crate) padding: u32,
}
const _: () = assert!(size_of::<ReadIn>() == 40);

/// WRITE; the data follows.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct WriteIn {
    /// File handle.
    pub(crate) fh: u64,
    /// First byte.
    pub(crate) offset_bytes: u64,
    /// Bytes.
    pub(crate) size_bytes: u32,
    /// Flags.
    pub(crate) write_flags: u32,
    /// Lock owner.
    pub(crate) lock_owner: u64,
    /// As of open(2).
    pub(crate) flags: u32,
    /// Zero.
    pub(crate) padding: u32,
}
const _: () = assert!(size_of::<WriteIn>() == 40);

/// The reply to WRITE.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct WriteOut {
    /// Bytes written.
    pub(crate) size_bytes: u32,
    /// Zero.
    pub(crate) padding: u32,
}
const _: () = assert!(size_of::<WriteOut>() == 8);

/// FALLOCATE.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct FallocateIn {
    /// File handle.
    pub(crate) fh: u64,
    /// First byte.
    pub(crate) offset_bytes: u64,
    /// Bytes.
    pub(crate) length_bytes: u64,
    /// As of fallocate(2).
    pub(crate) mode: u32,
    /// Zero.
    pub(crate) padding: u32,
}
const _: () = assert!(size_of::<FallocateIn>() == 32);

/// The reply to STATFS.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct StatfsOut {
    /// Blocks of `bsize_bytes`.
    pub(crate) blocks: u64,
    /// Free ones.
    pub(crate) bfree: u64,
    /// Free for everybody.
    pub(crate) bavail: u64,
    /// Files.
    pub(crate) files: u64,
    /// Files that can be made.
    pub(crate) ffree: u64,
    /// Block size in bytes. The loop driver takes it for the granularity of discards.
    pub(crate) bsize_bytes: u32,
    /// Longest name.
    pub(crate) namelen: u32,
    /// Unit of `blocks`.
    pub(crate) frsize_bytes: u32,
    /// Zero.
    pub(crate) padding: u32,
    /// Zero.
    pub(crate) spare: [u32; 6],
}
const _: () = assert!(size_of::<StatfsOut>() == 80);

/// An entry of READDIR; the name follows, then zeroes to a multiple of 8 bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Dirent {
    /// Inode.
    pub(crate) ino: u64,
    /// Where the next entry is.
    pub(crate) off: u64,
    /// Bytes of the name.
    pub(crate) namelen: u32,
    /// Type of the file, as `d_type`.
    pub(crate) file_type: u32,
}
const _: () = assert!(size_of::<Dirent>() == 24);
