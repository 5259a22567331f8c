//! How much of anything there is, and why so much.

/// Exports, those that `crossmnt` makes among them: two descriptors and a kilobyte each.
pub const EXPORTS: usize = 1024;

/// Mount points of the machine that are looked at for those below an export.
pub const MOUNT_POINTS: usize = 16 << 10;

/// Directories above one another that are looked through for the root of an export. Linux makes no
/// path of more than 4096 bytes, but a tree can grow deeper one name at a time.
pub const DEPTH: usize = 4096;
