//! Numbers and structures of the NBD protocol (NetworkBlockDevice/nbd, `doc/proto.md`). Every
//! integer is big-endian.

use bitflags::bitflags;
use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// `NBDMAGIC`, the first bytes the server sends.
pub(crate) const INIT_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// `IHAVEOPT`, before every option and in the greeting of the newstyle handshake.
pub(crate) const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Before every reply to an option.
pub(crate) const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Before every request.
pub(crate) const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Before every simple reply.
pub(crate) const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Before every chunk of a structured reply.
pub(crate) const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// The longest string the protocol allows, in bytes ("Conventions").
pub const STRING_BYTES_MAX: u32 = 4096;
/// The largest request a client may send that has not asked for block sizes, in bytes
/// ("Block size constraints").
pub(crate) const PAYLOAD_BYTES_MAX: u32 = 32 << 20;

/// The metadata context that says where zeroes are ("The `base:allocation` metadata context").
pub(crate) const BASE_ALLOCATION: &str = "base:allocation";
/// Its number, on every connection.
pub(crate) const BASE_ALLOCATION_ID: u32 = 1;
/// State of an extent in it: nothing is allocated there.
pub(crate) const STATE_HOLE: u32 = 1 << 0;
/// State of an extent in it: everything there reads as zero.
pub(crate) const STATE_ZERO: u32 = 1 << 1;

/// Bytes of the zeroes behind the reply to `NBD_OPT_EXPORT_NAME`.
pub(crate) const EXPORT_NAME_ZEROES_BYTES: usize = 124;

bitflags! {
    /// Handshake flags of the server.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct HandshakeFlags: u16 {
        /// More than one option is understood.
        const FIXED_NEWSTYLE = 1;
        /// The zeroes behind `NBD_OPT_EXPORT_NAME` can be left out.
        const NO_ZEROES = 1 << 1;
    }
}

bitflags! {
    /// Handshake flags of the client.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct ClientFlags: u32 {
        /// As [`HandshakeFlags::FIXED_NEWSTYLE`].
        const FIXED_NEWSTYLE = 1;
        /// As [`HandshakeFlags::NO_ZEROES`].
        const NO_ZEROES = 1 << 1;
    }
}

bitflags! {
    /// What the export can do.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct TransmissionFlags: u16 {
        /// Always set.
        const HAS_FLAGS = 1;
        /// Writes are refused.
        const READ_ONLY = 1 << 1;
        /// `NBD_CMD_FLUSH` is supported.
        const SEND_FLUSH = 1 << 2;
        /// `NBD_CMD_FLAG_FUA` is supported.
        const SEND_FUA = 1 << 3;
        /// `NBD_CMD_TRIM` is supported.
        const SEND_TRIM = 1 << 5;
        /// `NBD_CMD_WRITE_ZEROES` is supported.
        const SEND_WRITE_ZEROES = 1 << 6;
        /// `NBD_CMD_FLAG_DF` is supported.
        const SEND_DF = 1 << 7;
        /// A flush on one connection covers writes completed on any.
        const CAN_MULTI_CONN = 1 << 8;
    }
}

bitflags! {
    /// Flags of a request.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct CommandFlags: u16 {
        /// Reply when the data is on stable storage.
        const FUA = 1;
        /// Zeroes must not become a hole.
        const NO_HOLE = 1 << 1;
        /// Do not fragment a structured reply.
        const DF = 1 << 2;
        /// Only the first extent of a block status is wanted.
        const REQ_ONE = 1 << 3;
    }
}

macro_rules! numbers {
    ($(#[$doc:meta])* $name:ident($int:ty): $($(#[$vdoc:meta])* $variant:ident = $value:expr,)+) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub(crate) struct $name(pub $int);

        impl $name {
            $($(#[$vdoc])* pub(crate) const $variant: Self = Self($value);)+
        }
    };
}

numbers! {
    /// Option of the handshake.
    OptionCode(u32):
    /// Choose an export and start, without a way to say no.
    EXPORT_NAME = 1,
    /// End the handshake.
    ABORT = 2,
    /// List the exports.
    LIST = 3,
    /// Tell about an export.
    INFO = 6,
    /// As `INFO`, and start.
    GO = 7,
    /// Use structured replies.
    STRUCTURED_REPLY = 8,
    /// List metadata contexts.
    LIST_META_CONTEXT = 9,
    /// Choose the metadata contexts that block status tells of.
    SET_META_CONTEXT = 10,
}

numbers! {
    /// Kind of a reply to an option.
    OptionReplyType(u32):
    /// Done.
    ACK = 1,
    /// One export.
    SERVER = 2,
    /// One piece of information about an export.
    INFO = 3,
    /// One metadata context.
    META_CONTEXT = 4,
    /// The option is not supported.
    ERR_UNSUP = (1 << 31) + 1,
    /// The option's data makes no sense.
    ERR_INVALID = (1 << 31) + 3,
    /// There is no such export.
    ERR_UNKNOWN = (1 << 31) + 6,
    /// The option is too long.
    ERR_TOO_BIG = (1 << 31) + 9,
}

numbers! {
    /// Kind of information about an export.
    InfoType(u16):
    /// Size and flags.
    EXPORT = 0,
    /// The name.
    NAME = 1,
    /// A description for people.
    DESCRIPTION = 2,
    /// Block sizes.
    BLOCK_SIZE = 3,
}

numbers! {
    /// Command of a request.
    CommandType(u16):
    /// Read.
    READ = 0,
    /// Write; data follows.
    WRITE = 1,
    /// Disconnect; no reply.
    DISC = 2,
    /// Make completed writes durable.
    FLUSH = 3,
    /// The data is not needed any more.
    TRIM = 4,
    /// Set to zero.
    WRITE_ZEROES = 6,
    /// Tell what is known of a range.
    BLOCK_STATUS = 7,
}

numbers! {
    /// Kind of a chunk of a structured reply.
    ChunkType(u16):
    /// Nothing to say but that it is done.
    NONE = 0,
    /// Data, and where it belongs.
    OFFSET_DATA = 1,
    /// Extents and their state in one metadata context.
    BLOCK_STATUS = 5,
    /// An error of the whole request.
    ERROR = (1 << 15) + 1,
}

/// Bit of [`StructuredReply::flags`]: the last chunk of its reply.
pub(crate) const CHUNK_DONE: u16 = 1;

/// Error numbers of replies. They are Linux's, whatever the system ("Error values").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub(crate) enum NbdError {
    /// Operation not permitted: the export is read-only.
    Eperm = 1,
    /// Input/output error.
    Eio = 5,
    /// Invalid argument.
    Einval = 22,
    /// No space left: a write past the end.
    Enospc = 28,
    /// Value too large: too large for one chunk.
    Eoverflow = 75,
    /// Not supported.
    Enotsup = 95,
    /// The server is shutting down.
    Eshutdown = 108,
}

impl NbdError {
    /// The number on the wire.
    #[must_use]
    pub(crate) fn code(self) -> u32 {
        self as u32
    }
}

/// What the server sends first.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Greeting {
    /// [`INIT_MAGIC`].
    pub(crate) init_magic: U64,
    /// [`OPTION_MAGIC`].
    pub(crate) option_magic: U64,
    /// [`HandshakeFlags`].
    pub(crate) flags: U16,
}
const _: () = assert!(size_of::<Greeting>() == 18);

/// Before the data of an option.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct OptionHeader {
    /// [`OPTION_MAGIC`].
    pub(crate) magic: U64,
    /// [`OptionCode`].
    pub(crate) option: U32,
    /// Bytes of data that follow.
    pub(crate) len_bytes: U32,
}
const _: () = assert!(size_of::<OptionHeader>() == 16);

/// Before the data of a reply to an option.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct OptionReplyHeader {
    /// [`OPTION_REPLY_MAGIC`].
    pub(crate) magic: U64,
    /// The option that is answered.
    pub(crate) option: U32,
    /// [`OptionReplyType`].
    pub(crate) reply_type: U32,
    /// Bytes of data that follow.
    pub(crate) len_bytes: U32,
}
const _: () = assert!(size_of::<OptionReplyHeader>() == 20);

/// Information [`InfoType::EXPORT`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct InfoExport {
    /// [`InfoType::EXPORT`].
    pub(crate) info_type: U16,
    /// Size of the export in bytes.
    pub(crate) size_bytes: U64,
    /// [`TransmissionFlags`].
    pub(crate) flags: U16,
}
const _: () = assert!(size_of::<InfoExport>() == 12);

/// Information [`InfoType::BLOCK_SIZE`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct InfoBlockSize {
    /// [`InfoType::BLOCK_SIZE`].
    pub(crate) info_type: U16,
    /// Offsets and lengths are multiples of this, in bytes.
    pub(crate) minimum_bytes: U32,
    /// What is fast, in bytes.
    pub(crate) preferred_bytes: U32,
    /// Most data of one request, in bytes.
    pub(crate) maximum_bytes: U32,
}
const _: () = assert!(size_of::<InfoBlockSize>() == 14);

/// The reply to `NBD_OPT_EXPORT_NAME`, without the zeroes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct ExportNameReply {
    /// Size of the export in bytes.
    pub(crate) size_bytes: U64,
    /// [`TransmissionFlags`].
    pub(crate) flags: U16,
}
const _: () = assert!(size_of::<ExportNameReply>() == 10);

/// A request of the transmission phase.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RequestHeader {
    /// [`REQUEST_MAGIC`].
    pub(crate) magic: U32,
    /// [`CommandFlags`].
    pub(crate) flags: U16,
    /// [`CommandType`].
    pub(crate) command: U16,
    /// Comes back in the reply.
    pub(crate) cookie: U64,
    /// First byte.
    pub(crate) offset_bytes: U64,
    /// Bytes.
    pub(crate) len_bytes: U32,
}
const _: () = assert!(size_of::<RequestHeader>() == 28);

/// A simple reply; the data of a read follows.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct SimpleReply {
    /// [`SIMPLE_REPLY_MAGIC`].
    pub(crate) magic: U32,
    /// Zero, or an [`NbdError`].
    pub(crate) error: U32,
    /// Of the request.
    pub(crate) cookie: U64,
}
const _: () = assert!(size_of::<SimpleReply>() == 16);

/// A chunk of a structured reply, without its data.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct StructuredReply {
    /// [`STRUCTURED_REPLY_MAGIC`].
    pub(crate) magic: U32,
    /// [`CHUNK_DONE`].
    pub(crate) flags: U16,
    /// [`ChunkType`].
    pub(crate) chunk_type: U16,
    /// Of the request.
    pub(crate) cookie: U64,
    /// Bytes that follow.
    pub(crate) len_bytes: U32,
}
const _: () = assert!(size_of::<StructuredReply>() == 20);

/// An extent in a [`ChunkType::BLOCK_STATUS`] chunk, behind the number of the context.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub(crate) struct Extent {
    /// Bytes.
    pub(crate) len_bytes: U32,
    /// State.
    pub(crate) state: U32,
}
const _: () = assert!(size_of::<Extent>() == 8);

/// The start of an [`ChunkType::ERROR`] chunk; no message is sent.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct ErrorChunk {
    /// [`NbdError`].
    pub(crate) error: U32,
    /// Bytes of the message.
    pub(crate) message_len_bytes: U16,
}
const _: () = assert!(size_of::<ErrorChunk>() == 6);
