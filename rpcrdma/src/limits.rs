//! Bounds of what a peer can make grow, with the arithmetic behind them.

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
