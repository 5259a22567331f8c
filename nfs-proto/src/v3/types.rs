//! The basic types of NFS version 3.
//!
//! Source: RFC 1813, sections 2.4 to 2.6.

use core::fmt;

use crate::codec::{Decode, Encode, Opaque, ReadError, Reader, WriteError, Writer};
use crate::limits::{NAME_BYTES_MAX, V3_FILEHANDLE_BYTES_MAX};
use crate::macros::{xdr_enum, xdr_struct, xdr_union};
use crate::v3::status::Status;

/// A filehandle of up to 64 bytes (nfs_fh3).
pub type Filehandle<'a> = Opaque<'a, V3_FILEHANDLE_BYTES_MAX>;

/// What tells one instance from the next (cookieverf3, createverf3, writeverf3): 8 bytes.
pub type Verifier = [u8; 8];

/// A name in a directory as it arrived, not looked at yet (filename3).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct FileName<'a>(pub &'a [u8]);

impl<'a> FileName<'a> {
    /// The name, when it can be one: of 1 to [`NAME_BYTES_MAX`] bytes, without "/" and NUL. "." and
    /// ".." are names that LOOKUP knows (RFC 1813, section 3.3.3).
    ///
    /// # Errors
    /// What the procedure is to answer: NFS3ERR_NAMETOOLONG for a long one, else NFS3ERR_ACCES
    /// (RFC 1813, section 3.2: names that the server does not take).
    pub fn name(&self) -> Result<&'a [u8], Status> {
        match self.0 {
            long if long.len() > NAME_BYTES_MAX => Err(Status::NAMETOOLONG),
            odd if odd.is_empty() || odd.contains(&b'/') || odd.contains(&0) => Err(Status::ACCES),
            name => Ok(name),
        }
    }
}

impl fmt::Debug for FileName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

impl Encode for FileName<'_> {
    fn encode(&self, to: &mut Writer<'_>) -> Result<(), WriteError> {
        to.opaque(self.0)
    }
}

impl<'a> Decode<'a> for FileName<'a> {
    fn decode(from: &mut Reader<'a>, field: &'static str) -> Result<Self, ReadError> {
        from.opaque(field, u32::MAX).map(Self)
    }
}

xdr_enum! {
    /// The type of a file (ftype3).
    pub enum FileType {
        /// A regular file.
        Regular = 1,
        /// A directory.
        Directory = 2,
        /// A block device.
        Block = 3,
        /// A character device.
        Character = 4,
        /// A symbolic link.
        SymbolicLink = 5,
        /// A socket.
        Socket = 6,
        /// A FIFO.
        Fifo = 7,
    }
}

xdr_struct! {
    /// The numbers of a device (specdata3).
    pub struct DeviceNumbers {
        /// Major.
        pub specdata1: u32,
        /// Minor.
        pub specdata2: u32,
    }
}

xdr_struct! {
    /// Seconds and nanoseconds since 1970-01-01T00:00:00Z (nfstime3).
    pub struct Time {
        /// Seconds.
        pub seconds: u32,
        /// Nanoseconds to be added.
        pub nseconds: u32,
    }
}

xdr_struct! {
    /// Attributes of a file (fattr3; RFC 1813, section 2.6).
    pub struct Attributes {
        /// The type.
        pub file_type: FileType,
        /// The mode: its low 12 bits.
        pub mode: u32,
        /// Hard links.
        pub nlink: u32,
        /// The user.
        pub uid: u32,
        /// The group.
        pub gid: u32,
        /// Bytes.
        pub size: u64,
        /// Bytes allocated.
        pub used: u64,
        /// The numbers of a device.
        pub rdev: DeviceNumbers,
        /// The file system.
        pub fsid: u64,
        /// The number of the file in its file system.
        pub fileid: u64,
        /// When it was last read.
        pub atime: Time,
        /// When its data last changed.
        pub mtime: Time,
        /// When its attributes last changed.
        pub ctime: Time,
    }
}

/// Attributes behind a procedure, where they could be had (post_op_attr).
pub type PostOpAttr = Option<Attributes>;
/// The filehandle of what was made, where it could be had (post_op_fh3).
pub type PostOpFh<'a> = Option<Filehandle<'a>>;

xdr_struct! {
    /// What tells whether a file was changed by others (wcc_attr).
    pub struct WccAttr {
        /// Bytes.
        pub size: u64,
        /// When its data last changed.
        pub mtime: Time,
        /// When its attributes last changed.
        pub ctime: Time,
    }
}

xdr_struct! {
    /// A file before and behind a procedure (wcc_data).
    pub struct WccData {
        /// Before, where it could be had atomically (pre_op_attr).
        pub before: Option<WccAttr>,
        /// Behind.
        pub after: PostOpAttr,
    }
}

xdr_union! {
    /// A time to be set (set_atime, set_mtime).
    pub enum SetTime {
        /// Not.
        DontChange = 0,
        /// The server's time.
        Server = 1,
        /// This time.
        Client(Time) = 2,
    }
}

xdr_struct! {
    /// Attributes to be set (sattr3).
    pub struct SetAttributes {
        /// The mode.
        pub mode: Option<u32>,
        /// The user.
        pub uid: Option<u32>,
        /// The group.
        pub gid: Option<u32>,
        /// Bytes.
        pub size: Option<u64>,
        /// When it was last read.
        pub atime: SetTime,
        /// When its data last changed.
        pub mtime: SetTime,
    }
}

xdr_struct! {
    /// A name in a directory (diropargs3).
    pub struct DirOpArgs<'a> {
        /// The directory.
        pub dir: Filehandle<'a>,
        /// The name.
        pub name: FileName<'a>,
    }
}

xdr_enum! {
    /// How stable written data is (stable_how; RFC 1813, section 3.3.7).
    pub enum StableHow {
        /// In memory, until COMMIT.
        Unstable = 0,
        /// Data is on stable storage.
        DataSync = 1,
        /// Data and metadata are on stable storage.
        FileSync = 2,
    }
}
