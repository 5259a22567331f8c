//! Arguments of the operations on files and directories.

use crate::codec::{DataItem, Decode, Encode, ReadError, Reader, WriteError, Writer};
use crate::macros::{xdr_flags, xdr_struct};
use crate::v4::attr::Fattr;
use crate::v4::bitmap::Bitmap;
use crate::v4::types::{Component, DeviceNumbers, StableHow, Stateid, Verifier};

xdr_flags! {
    /// Rights that ACCESS is about (RFC 8881, section 18.1.1; RFC 8276, section 8.5 for the last
    /// three).
    pub struct AccessRights {
        /// Read data, or a directory.
        const READ = 0x0001;
        /// Look up a name.
        const LOOKUP = 0x0002;
        /// Write over data, or change entries.
        const MODIFY = 0x0004;
        /// Append data, or add entries.
        const EXTEND = 0x0008;
        /// Delete an entry.
        const DELETE = 0x0010;
        /// Execute.
        const EXECUTE = 0x0020;
        /// Read extended attributes.
        const XAREAD = 0x0040;
        /// Write extended attributes.
        const XAWRITE = 0x0080;
        /// List extended attributes.
        const XALIST = 0x0100;
    }
}

xdr_struct! {
    /// ACCESS (RFC 8881, section 18.1).
    pub struct Access {
        /// The rights asked about.
        pub access: AccessRights,
    }
}

xdr_struct! {
    /// COMMIT (RFC 8881, section 18.3).
    pub struct Commit {
        /// First byte.
        pub offset: u64,
        /// Bytes; 0 for all from there on.
        pub count: u32,
    }
}

/// What CREATE makes (createtype4; RFC 8881, section 18.4.1).
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum CreateType<'a> {
    /// A directory.
    Directory,
    /// A symbolic link to this text, which may have been reduced (RFC 8267, section 6.1).
    SymbolicLink(DataItem<'a>),
    /// A block device.
    Block(DeviceNumbers),
    /// A character device.
    Character(DeviceNumbers),
    /// A socket.
    Socket,
    /// A FIFO.
    Fifo,
    /// Another type, to be answered with NFS4ERR_BADTYPE.
    Other(u32),
}

impl CreateType<'_> {
    const BLOCK: u32 = 3;
    const CHARACTER: u32 = 4;
    const DIRECTORY: u32 = 2;
    const FIFO: u32 = 7;
    const SOCKET: u32 = 6;
    const SYMBOLIC_LINK: u32 = 5;
}

impl Encode for CreateType<'_> {
    fn encode(&self, to: &mut Writer<'_>) -> Result<(), WriteError> {
        match self {
            Self::Directory => to.u32(Self::DIRECTORY),
            Self::Socket => to.u32(Self::SOCKET),
            Self::Fifo => to.u32(Self::FIFO),
            Self::Other(other) => to.u32(*other),
            Self::SymbolicLink(text) => {
                to.u32(Self::SYMBOLIC_LINK)?;
                text.encode(to)
            }
            Self::Block(numbers) => {
                to.u32(Self::BLOCK)?;
                numbers.encode(to)
            }
            Self::Character(numbers) => {
                to.u32(Self::CHARACTER)?;
                numbers.encode(to)
            }
        }
    }
}

impl<'a> Decode<'a> for CreateType<'a> {
    fn decode(from: &mut Reader<'a>, field: &'static str) -> Result<Self, ReadError> {
        Ok(match from.u32(field)? {
            Self::DIRECTORY => Self::Directory,
            Self::SYMBOLIC_LINK => Self::SymbolicLink(Decode::decode(from, "linkdata")?),
            Self::BLOCK => Self::Block(Decode::decode(from, "devdata")?),
            Self::CHARACTER => Self::Character(Decode::decode(from, "devdata")?),
            Self::SOCKET => Self::Socket,
            Self::FIFO => Self::Fifo,
            other => Self::Other(other),
        })
    }
}

xdr_struct! {
    /// CREATE: of everything but regular files (RFC 8881, section 18.4).
    pub struct Create<'a> {
        /// What is made.
        pub objtype: CreateType<'a>,
        /// Its name in the current directory.
        pub objname: Component<'a>,
        /// The attributes it gets.
        pub createattrs: Fattr<'a>,
    }
}

xdr_struct! {
    /// READ (RFC 8881, section 18.22).
    pub struct Read {
        /// The state that allows it.
        pub stateid: Stateid,
        /// First byte.
        pub offset: u64,
        /// Bytes.
        pub count: u32,
    }
}

xdr_struct! {
    /// READDIR (RFC 8881, section 18.23).
    pub struct ReadDir {
        /// Of the entry to go on behind: 0 for the first entry.
        pub cookie: u64,
        /// The verifier that came with the cookie.
        pub cookieverf: Verifier,
        /// A hint: bytes of names and cookies; 0 for none.
        pub dircount: u32,
        /// Most bytes of the result ([`crate::v4::results::ReadDirOk`]), with its XDR.
        pub maxcount: u32,
        /// The attributes of each entry.
        pub attr_request: Bitmap,
    }
}

xdr_struct! {
    /// RENAME, from the saved to the current directory (RFC 8881, section 18.26).
    pub struct Rename<'a> {
        /// The name there was.
        pub oldname: Component<'a>,
        /// The name there is to be.
        pub newname: Component<'a>,
    }
}

xdr_struct! {
    /// SETATTR (RFC 8881, section 18.30).
    pub struct SetAttr<'a> {
        /// The state that allows a change of size.
        pub stateid: Stateid,
        /// The new values.
        pub obj_attributes: Fattr<'a>,
    }
}

xdr_struct! {
    /// WRITE (RFC 8881, section 18.32).
    pub struct Write<'a> {
        /// The state that allows it.
        pub stateid: Stateid,
        /// First byte.
        pub offset: u64,
        /// How stable the data is to be before the reply.
        pub stable: StableHow,
        /// The data, which may have been reduced.
        pub data: DataItem<'a>,
    }
}
