//! Bounds of NFS version 3, with the arithmetic behind them.

/// Most bytes of a READ (rtmax): what one message of the transports carries.
pub(super) const READ_BYTES_MAX: u32 = 1 << 20;
/// Most bytes of a WRITE (wtmax), likewise.
pub(super) const WRITE_BYTES_MAX: u32 = 1 << 20;
/// Of which READs and WRITEs should be a multiple: a page.
pub(super) const MULTIPLE_BYTES: u32 = 4096;
/// Preferred bytes of a READDIR (dtpref): some 400 entries with attributes, which a client that
/// goes on reading asks for while it shows those before.
pub(super) const DIRECTORY_BYTES_PREFERRED: u32 = 64 << 10;
/// Bytes of a READDIR or READDIRPLUS that are given at most, whatever the client has room for: some
/// 1,700 files that are looked at for one call.
pub(super) const DIRECTORY_BYTES_MAX: u32 = 256 << 10;

/// Times that a CREATE which takes what is there (UNCHECKED) tries again, when the file is there
/// and gone in turns.
pub(super) const CREATE_ATTEMPTS: usize = 8;

/// Replies of one address that are kept for repeated calls. What a client repeats was under way
/// when its connection broke: 128 calls (the most credits) on each of 16 connections (the most of
/// nconnect).
pub(super) const REPLIES_PER_ADDRESS_MAX: usize = 128 * 16;
/// Replies of all addresses, calls under way included: 16 such clients, or hundreds of usual ones.
pub(super) const REPLIES_MAX: usize = 16 * REPLIES_PER_ADDRESS_MAX;
/// Bytes of one reply. The longest is that of CREATE: its status, a filehandle of 64 bytes, two
/// times attributes of 84 and what was before of 24 come to less than 320 with what goes around.
pub(super) const REPLY_BYTES_MAX: usize = 2048;
/// Bytes of all replies: those of RENAME, which are 180 bytes, for [`REPLIES_MAX`] calls and some
/// longer ones. What is kept beside each reply (its key three times, and its places in trees) is
/// some 300 bytes, and comes to 10 MiB when all places are taken.
pub(super) const REPLIES_BYTES_MAX: usize = 8 << 20;
const _: () = assert!(REPLIES_MAX * 180 < REPLIES_BYTES_MAX);
/// Microseconds that a reply is kept: a client repeats a call after a minute at the latest (timeo
/// of Linux over TCP), and once more.
pub(super) const REPLY_KEPT_US: u64 = 150_000_000;
