//! Bounds of what a peer can make grow, with the arithmetic behind them.

use crate::xdr::REDUCED_ITEMS_MAX;

/// Bytes of the body of an `opaque_auth` (RFC 5531, section 8.2).
pub const AUTH_BODY_MAX_BYTES: u32 = 400;
/// Bytes of the machine name of AUTH_SYS (RFC 5531, appendix A).
pub const MACHINE_NAME_MAX_BYTES: u32 = 255;
/// Supplementary groups of AUTH_SYS (RFC 5531, appendix A).
pub const GIDS_MAX: u32 = 16;
// Everything AUTH_SYS can say fits: stamp, name and its count, uid, gid, groups and their count.
const _: () = assert!(
    4 + 4 + MACHINE_NAME_MAX_BYTES.next_multiple_of(4) + 4 + 4 + 4 + GIDS_MAX * 4
        <= AUTH_BODY_MAX_BYTES
);

/// Data of one READ or WRITE, in bytes: 1 MiB, the most that Linux clients ask for.
pub const DATA_MAX_BYTES: u32 = 1 << 20;
/// What a call has besides such data, in bytes: 64 KiB, for headers, credentials and the operations
/// around a WRITE.
pub const CALL_OVERHEAD_MAX_BYTES: u32 = 64 << 10;
/// Bytes of a call with everything that was reduced put back: what a client can make a server take.
pub const CALL_MAX_BYTES: u32 = DATA_MAX_BYTES + CALL_OVERHEAD_MAX_BYTES;

/// Bytes of a record over TCP: a call, or a reply with as much.
pub const RECORD_MAX_BYTES: u32 = CALL_MAX_BYTES;
/// Fragments of a record: some clients send one per kilobyte or more, none an empty one; so that
/// empty ones do not go on for ever.
pub const FRAGMENTS_MAX: u32 = RECORD_MAX_BYTES / 1024;

/// Bytes that either side can send inline as long as nothing else was said (RFC 8166, section
/// 3.3.3).
pub const INLINE_DEFAULT_BYTES: u32 = 1024;
/// Bytes that a server offers to send and receive inline: what Linux clients offer.
pub const INLINE_OFFER_BYTES: u32 = 4096;

/// Segments of a chunk. 1 MiB takes 8 where a registration has 32 pages; Linux clients send 16 at
/// most (`RPCRDMA_MAX_HDR_SEGS` in its `xprt_rdma.h`), and others may send twice as many.
pub const SEGMENTS_PER_CHUNK_MAX: u32 = 32;
/// Read chunks besides that at position zero: as many as items can be reduced.
pub const READ_CHUNKS_MAX: usize = REDUCED_ITEMS_MAX;
/// Segments of a read list, over all its chunks: a whole message in segments and data in as many.
pub const READ_SEGMENTS_MAX: u32 = 2 * SEGMENTS_PER_CHUNK_MAX;
/// Chunks of a write list: as many as items can be reduced.
pub const WRITE_CHUNKS_MAX: u32 = 16;
const _: () = assert!(WRITE_CHUNKS_MAX as usize == REDUCED_ITEMS_MAX);

/// Credits of a connection until its first reply (RFC 8166, section 3.3.3).
pub const CREDITS_INITIAL: u32 = 1;
/// Credits that a connection gets, if it asks for as many: as many as of Linux servers. Their
/// receives take 512 KiB.
pub const CREDITS_PER_CONNECTION_MAX: u32 = 128;
const _: () = assert!(CREDITS_PER_CONNECTION_MAX * INLINE_OFFER_BYTES == 512 << 10);
