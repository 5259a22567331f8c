//! Arguments of the procedures, by the sections of RFC 1813 that describe them.

use crate::codec::{DataItem, Decode, Encode, ReadError, Reader, WriteError, Writer};
use crate::macros::{xdr_struct, xdr_union};
use crate::v3::types::{
    DeviceNumbers, DirOpArgs, Filehandle, SetAttributes, StableHow, Time, Verifier,
};

xdr_struct! {
    /// SETATTR (section 3.3.2).
    pub struct SetAttr<'a> {
        /// The object.
        pub object: Filehandle<'a>,
        /// The new values.
        pub new_attributes: SetAttributes,
        /// The ctime that the object is to have, or NFS3ERR_NOT_SYNC.
        pub guard: Option<Time>,
    }
}

xdr_struct! {
    /// ACCESS (section 3.3.4).
    pub struct Access<'a> {
        /// The object.
        pub object: Filehandle<'a>,
        /// The rights: as those of NFS version 4, READ to EXECUTE.
        pub access: u32,
    }
}

xdr_struct! {
    /// READ (section 3.3.6).
    pub struct Read<'a> {
        /// The file.
        pub file: Filehandle<'a>,
        /// First byte.
        pub offset: u64,
        /// Bytes.
        pub count: u32,
    }
}

xdr_struct! {
    /// WRITE (section 3.3.7).
    pub struct Write<'a> {
        /// The file.
        pub file: Filehandle<'a>,
        /// First byte.
        pub offset: u64,
        /// Bytes, as many as there are in `data`: else NFS3ERR_INVAL.
        pub count: u32,
        /// How stable the data is to be before the reply.
        pub stable: StableHow,
        /// The data, which may have been reduced (RFC 8267, section 4).
        pub data: DataItem<'a>,
    }
}

xdr_union! {
    /// How a file is made (createhow3).
    pub enum CreateHow {
        /// An existing file is opened.
        Unchecked(SetAttributes) = 0,
        /// An existing file is an error.
        Guarded(SetAttributes) = 1,
        /// An existing file is an error unless this verifier made it.
        Exclusive(Verifier) = 2,
    }
}

xdr_struct! {
    /// CREATE (section 3.3.8).
    pub struct Create<'a> {
        /// Where.
        pub place: DirOpArgs<'a>,
        /// How.
        pub how: CreateHow,
    }
}

xdr_struct! {
    /// MKDIR (section 3.3.9).
    pub struct MkDir<'a> {
        /// Where.
        pub place: DirOpArgs<'a>,
        /// The attributes it gets.
        pub attributes: SetAttributes,
    }
}

xdr_struct! {
    /// SYMLINK (section 3.3.10).
    pub struct SymLink<'a> {
        /// Where.
        pub place: DirOpArgs<'a>,
        /// The attributes it gets.
        pub symlink_attributes: SetAttributes,
        /// The text, which may have been reduced (RFC 8267, section 4).
        pub symlink_data: DataItem<'a>,
    }
}

xdr_struct! {
    /// A device to be made (devicedata3).
    pub struct Device {
        /// The attributes it gets.
        pub dev_attributes: SetAttributes,
        /// Its numbers.
        pub spec: DeviceNumbers,
    }
}

/// What MKNOD makes (mknoddata3).
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum MkNodData {
    /// A block device.
    Block(Device),
    /// A character device.
    Character(Device),
    /// A socket.
    Socket(SetAttributes),
    /// A FIFO.
    Fifo(SetAttributes),
    /// Another type, to be answered with NFS3ERR_BADTYPE.
    Other(u32),
}

impl MkNodData {
    const BLOCK: u32 = 3;
    const CHARACTER: u32 = 4;
    const FIFO: u32 = 7;
    const SOCKET: u32 = 6;
}

impl Encode for MkNodData {
    fn encode(&self, to: &mut Writer<'_>) -> Result<(), WriteError> {
        let (number, device, attributes) = match self {
            Self::Block(device) => (Self::BLOCK, Some(device), None),
            Self::Character(device) => (Self::CHARACTER, Some(device), None),
            Self::Socket(attributes) => (Self::SOCKET, None, Some(attributes)),
            Self::Fifo(attributes) => (Self::FIFO, None, Some(attributes)),
            Self::Other(other) => (*other, None, None),
        };
        to.u32(number)?;
        device.map_or(Ok(()), |device| device.encode(to))?;
        attributes.map_or(Ok(()), |attributes| attributes.encode(to))
    }
}

impl Decode<'_> for MkNodData {
    fn decode(from: &mut Reader<'_>, field: &'static str) -> Result<Self, ReadError> {
        Ok(match from.u32(field)? {
            Self::BLOCK => Self::Block(Decode::decode(from, "device")?),
            Self::CHARACTER => Self::Character(Decode::decode(from, "device")?),
            Self::SOCKET => Self::Socket(Decode::decode(from, "pipe_attributes")?),
            Self::FIFO => Self::Fifo(Decode::decode(from, "pipe_attributes")?),
            other => Self::Other(other),
        })
    }
}

xdr_struct! {
    /// MKNOD (section 3.3.11).
    pub struct MkNod<'a> {
        /// Where.
        pub place: DirOpArgs<'a>,
        /// What.
        pub what: MkNodData,
    }
}

xdr_struct! {
    /// RENAME (section 3.3.14).
    pub struct Rename<'a> {
        /// The name there was.
        pub from_place: DirOpArgs<'a>,
        /// The name there is to be.
        pub to_place: DirOpArgs<'a>,
    }
}

xdr_struct! {
    /// LINK (section 3.3.15).
    pub struct Link<'a> {
        /// The file.
        pub file: Filehandle<'a>,
        /// The name it gets.
        pub link: DirOpArgs<'a>,
    }
}

xdr_struct! {
    /// READDIR (section 3.3.16).
    pub struct ReadDir<'a> {
        /// The directory.
        pub dir: Filehandle<'a>,
        /// Of the entry to go on behind: 0 for the first entry.
        pub cookie: u64,
        /// The verifier that came with the cookie.
        pub cookieverf: Verifier,
        /// Most bytes of READDIR3resok, with its XDR.
        pub count: u32,
    }
}

xdr_struct! {
    /// READDIRPLUS (section 3.3.17).
    pub struct ReadDirPlus<'a> {
        /// The directory.
        pub dir: Filehandle<'a>,
        /// Of the entry to go on behind: 0 for the first entry.
        pub cookie: u64,
        /// The verifier that came with the cookie.
        pub cookieverf: Verifier,
        /// Most bytes of fileids, names and cookies.
        pub dircount: u32,
        /// Most bytes of READDIRPLUS3resok, with its XDR.
        pub maxcount: u32,
    }
}

xdr_struct! {
    /// COMMIT (section 3.3.21).
    pub struct Commit<'a> {
        /// The file.
        pub file: Filehandle<'a>,
        /// First byte.
        pub offset: u64,
        /// Bytes; 0 for all from there on.
        pub count: u32,
    }
}
