//! Structures of the kernel's FUSE protocol (`include/uapi/linux/fuse.h`), version 7.31 and later.
//! Integers are the machine's own. Structures that are not used by a file system of one file are
//! left out.

use bitflags::bitflags;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Major version of the protocol.
pub const KERNEL_VERSION: u32 = 7;
/// The minor version this side speaks: that of Linux 5.4. Newer kernels adapt to it.
pub const KERNEL_MINOR_VERSION: u32 = 31;
/// Minor version of Linux 4.20, the first that lets requests have more than 32 pages.
pub const KERNEL_MINOR_VERSION_MIN: u32 = 28;
/// Node of the root folder.
pub const ROOT_ID: u64 = 1;
/// Bytes before the data of a write: what a read of the device must leave room for, beside the
/// data.
pub const WRITE_HEAD_BYTES: usize = size_of::<InHeader>() + size_of::<WriteIn>();

macro_rules! opcodes {
    ($($name:ident = $value:literal,)+) => {
        /// Kind of a request.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct Opcode(pub u32);

        #[expect(missing_docs, reason = "the names are those of fuse.h")]
        impl Opcode {
            $(pub const $name: Self = Self($value);)+
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
    INTERRUPT = 36,
    DESTROY = 38,
    BATCH_FORGET = 42,
    FALLOCATE = 43,
}

bitflags! {
    /// Flags of INIT, both ways.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct InitFlags: u32 {
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
    pub struct OpenFlags: u32 {
        /// No page cache.
        const DIRECT_IO = 1;
        /// Direct writes need no lock against each other.
        const PARALLEL_DIRECT_WRITES = 1 << 6;
    }
}

/// `valid` of [`SetattrIn`]: the size is to be set.
pub const FATTR_SIZE: u32 = 1 << 3;

/// Before every request.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct InHeader {
    /// Bytes of the request, with this header.
    pub len_bytes: u32,
    /// [`Opcode`].
    pub opcode: u32,
    /// Comes back in the reply.
    pub unique: u64,
    /// The node it is about.
    pub nodeid: u64,
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Process.
    pub pid: u32,
    /// Length of extensions; none are asked for.
    pub total_extlen: u16,
    /// Zero.
    pub padding: u16,
}
const _: () = assert!(size_of::<InHeader>() == 40);

/// Before every reply.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct OutHeader {
    /// Bytes of the reply, with this header.
    pub len_bytes: u32,
    /// Zero, or a negative errno.
    pub error: i32,
    /// Of the request.
    pub unique: u64,
}
const _: () = assert!(size_of::<OutHeader>() == 16);

/// `error` of an [`OutHeader`] without a request: the kernel is to keep data that follows a
/// [`StoreOut`]. That makes the file as long as where they end, if it is shorter.
pub const NOTIFY_STORE: i32 = 4;

/// Behind the header of [`NOTIFY_STORE`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct StoreOut {
    /// The node.
    pub nodeid: u64,
    /// First byte.
    pub offset_bytes: u64,
    /// Bytes.
    pub size_bytes: u32,
    /// Zero.
    pub padding: u32,
}
const _: () = assert!(size_of::<StoreOut>() == 24);

/// INIT. Newer kernels send more.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct InitIn {
    /// The kernel's version.
    pub major: u32,
    /// The kernel's version.
    pub minor: u32,
    /// Most bytes read ahead.
    pub max_readahead_bytes: u32,
    /// [`InitFlags`], and more.
    pub flags: u32,
}
const _: () = assert!(size_of::<InitIn>() == 16);

/// The reply to INIT.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct InitOut {
    /// This side's version.
    pub major: u32,
    /// This side's version.
    pub minor: u32,
    /// Most bytes read ahead.
    pub max_readahead_bytes: u32,
    /// [`InitFlags`].
    pub flags: u32,
    /// Asynchronous requests at once.
    pub max_background: u16,
    /// Asynchronous requests beyond which the file system counts as congested.
    pub congestion_threshold: u16,
    /// Most bytes of a write.
    pub max_write_bytes: u32,
    /// Granularity of times, in nanoseconds.
    pub time_gran_ns: u32,
    /// Most pages of a request.
    pub max_pages: u16,
    /// For DAX.
    pub map_alignment: u16,
    /// More flags.
    pub flags2: u32,
    /// Zero.
    pub unused: [u32; 7],
}
const _: () = assert!(size_of::<InitOut>() == 64);

/// Attributes of a node.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Attr {
    /// Inode.
    pub ino: u64,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Size in units of 512 bytes.
    pub blocks: u64,
    /// Last access.
    pub atime: u64,
    /// Last write.
    pub mtime: u64,
    /// Last change.
    pub ctime: u64,
    /// Its nanoseconds.
    pub atime_ns: u32,
    /// Its nanoseconds.
    pub mtime_ns: u32,
    /// Its nanoseconds.
    pub ctime_ns: u32,
    /// Type and permissions.
    pub mode: u32,
    /// Links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number.
    pub rdev: u32,
    /// Preferred size of I/O, in bytes.
    pub blksize_bytes: u32,
    /// Flags.
    pub flags: u32,
}
const _: () = assert!(size_of::<Attr>() == 88);

/// The reply to LOOKUP.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct EntryOut {
    /// The node.
    pub nodeid: u64,
    /// Its generation.
    pub generation: u64,
    /// How long the name holds, in seconds.
    pub entry_valid_s: u64,
    /// How long the attributes hold, in seconds.
    pub attr_valid_s: u64,
    /// And nanoseconds.
    pub entry_valid_ns: u32,
    /// And nanoseconds.
    pub attr_valid_ns: u32,
    /// Attributes.
    pub attr: Attr,
}
const _: () = assert!(size_of::<EntryOut>() == 128);

/// The reply to GETATTR and SETATTR.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AttrOut {
    /// How long the attributes hold, in seconds.
    pub attr_valid_s: u64,
    /// And nanoseconds.
    pub attr_valid_ns: u32,
    /// Zero.
    pub dummy: u32,
    /// Attributes.
    pub attr: Attr,
}
const _: () = assert!(size_of::<AttrOut>() == 104);

/// The start of SETATTR.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SetattrIn {
    /// What is to be set.
    pub valid: u32,
    /// Zero.
    pub padding: u32,
    /// File handle.
    pub fh: u64,
    /// Size in bytes.
    pub size_bytes: u64,
}
const _: () = assert!(size_of::<SetattrIn>() == 24);

/// OPEN and OPENDIR.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct OpenIn {
    /// As of open(2).
    pub flags: u32,
    /// More flags.
    pub open_flags: u32,
}
const _: () = assert!(size_of::<OpenIn>() == 8);

/// The reply to OPEN and OPENDIR.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct OpenOut {
    /// File handle.
    pub fh: u64,
    /// [`OpenFlags`].
    pub open_flags: u32,
    /// Zero.
    pub padding: u32,
}
const _: () = assert!(size_of::<OpenOut>() == 16);

/// READ and READDIR.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ReadIn {
    /// File handle.
    pub fh: u64,
    /// First byte.
    pub offset_bytes: u64,
    /// Bytes.
    pub size_bytes: u32,
    /// Flags.
    pub read_flags: u32,
    /// Lock owner.
    pub lock_owner: u64,
    /// As of open(2).
    pub flags: u32,
    /// Zero.
    pub padding: u32,
}
const _: () = assert!(size_of::<ReadIn>() == 40);

/// WRITE; the data follows.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct WriteIn {
    /// File handle.
    pub fh: u64,
    /// First byte.
    pub offset_bytes: u64,
    /// Bytes.
    pub size_bytes: u32,
    /// Flags.
    pub write_flags: u32,
    /// Lock owner.
    pub lock_owner: u64,
    /// As of open(2).
    pub flags: u32,
    /// Zero.
    pub padding: u32,
}
const _: () = assert!(size_of::<WriteIn>() == 40);

/// The reply to WRITE.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct WriteOut {
    /// Bytes written.
    pub size_bytes: u32,
    /// Zero.
    pub padding: u32,
}
const _: () = assert!(size_of::<WriteOut>() == 8);

/// FALLOCATE.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct FallocateIn {
    /// File handle.
    pub fh: u64,
    /// First byte.
    pub offset_bytes: u64,
    /// Bytes.
    pub length_bytes: u64,
    /// As of fallocate(2).
    pub mode: u32,
    /// Zero.
    pub padding: u32,
}
const _: () = assert!(size_of::<FallocateIn>() == 32);

/// The reply to STATFS.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct StatfsOut {
    /// Blocks of `bsize_bytes`.
    pub blocks: u64,
    /// Free ones.
    pub bfree: u64,
    /// Free for everybody.
    pub bavail: u64,
    /// Files.
    pub files: u64,
    /// Files that can be made.
    pub ffree: u64,
    /// Block size in bytes. The loop driver takes it for the granularity of discards.
    pub bsize_bytes: u32,
    /// Longest name.
    pub namelen: u32,
    /// Unit of `blocks`.
    pub frsize_bytes: u32,
    /// Zero.
    pub padding: u32,
    /// Zero.
    pub spare: [u32; 6],
}
const _: () = assert!(size_of::<StatfsOut>() == 80);

/// An entry of READDIR; the name follows, then zeroes to a multiple of 8 bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Dirent {
    /// Inode.
    pub ino: u64,
    /// Where the next entry is.
    pub off: u64,
    /// Bytes of the name.
    pub namelen: u32,
    /// Type of the file, as `d_type`.
    pub file_type: u32,
}
const _: () = assert!(size_of::<Dirent>() == 24);
