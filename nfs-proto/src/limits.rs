//! The bounds of everything a peer can make grow, with the arithmetic behind them.
//!
//! What is not listed here is bounded by its message: it is borrowed from it, and nothing is kept.

/// Bytes that every element of an array takes: each item is a multiple of four bytes (RFC 4506,
/// section 3). A count can therefore not exceed a quarter of what is left of the message.
pub const LIST_ELEMENT_BYTES_MIN: usize = 4;

/// Bytes of a filehandle of NFS version 4 (NFS4_FHSIZE: RFC 5662).
pub const FILEHANDLE_BYTES_MAX: u32 = 128;

/// Bytes of an owner, a server owner's major id and a server scope (NFS4_OPAQUE_LIMIT: RFC 5662).
pub const OWNER_BYTES_MAX: u32 = 1024;

/// Bytes of a component that is a name: NAME_MAX of every Linux file system.
pub const NAME_BYTES_MAX: usize = 255;

/// Bytes of the target of a symbolic link: PATH_MAX of Linux, less the NUL behind it.
pub const LINK_TEXT_BYTES_MAX: usize = 4095;

/// Bytes of a COMPOUND's tag, which goes back in the reply: Linux sends none or up to 16 bytes, and
/// 1024 is what RFC 8881 lets any owner have.
pub const TAG_BYTES_MAX: u32 = 1024;

/// Words of a bitmap that are kept: 96 bits hold every attribute (0 to 86), operation (3 to 75),
/// hint and notification there is.
pub const BITMAP_WORDS: usize = 3;

/// Words of a bitmap that are looked at. 512 bits are five times what is defined; a longer bitmap
/// is refused as malformed.
pub const BITMAP_WORDS_MAX: u32 = 16;

/// Groups of an AUTH_SYS credential (RFC 5531, appendix A).
pub const AUTH_SYS_GIDS_MAX: u32 = 16;

/// Bytes of the machine name of an AUTH_SYS credential (RFC 5531, appendix A).
pub const AUTH_SYS_MACHINE_NAME_BYTES_MAX: u32 = 255;

/// Bytes of the decimal number that stands for a user or a group: 4294967295 has ten digits.
pub const PRINCIPAL_DIGITS_MAX: usize = 10;

/// Bytes of an extended attribute's name without its prefix: XATTR_NAME_MAX of Linux, of which
/// "user." takes 5 (RFC 8276, section 7).
pub const XATTR_NAME_BYTES_MAX: usize = 255 - "user.".len();

/// Bytes of an extended attribute's value: XATTR_SIZE_MAX of Linux.
pub const XATTR_VALUE_BYTES_MAX: usize = 65_536;

/// Bytes that the result of an operation that failed takes at most: its number and its status, and
/// of COPY the two requirements that were not met (8 bytes; SETATTR has an empty bitmap of 4). They
/// are kept free behind every result, so that an operation that finds no room can say so.
pub const FAILED_RESULT_BYTES_MAX: u64 = 4 + 4 + 8;

/// Bytes behind the last entry of a READDIR: that no entry follows, and whether it was the last of
/// the directory.
pub const DIRECTORY_END_BYTES: u64 = 4 + 4;

/// Bytes of a filehandle of NFS version 3 (NFS3_FHSIZE: RFC 1813, section 2.4).
pub const V3_FILEHANDLE_BYTES_MAX: u32 = 64;

/// Bytes of a path that is mounted (MNTPATHLEN: RFC 1813, section 5.1.2).
pub const MOUNT_PATH_BYTES_MAX: u32 = 1024;

/// Bytes of the name of a client or a group of them (MNTNAMLEN: RFC 1813, section 5.1.2).
pub const MOUNT_NAME_BYTES_MAX: u32 = 255;

const _: () = assert!(BITMAP_WORDS <= BITMAP_WORDS_MAX as usize);
