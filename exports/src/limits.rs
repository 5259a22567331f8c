//! How much of anything there is, and why so much.

use std::time::Duration;

/// Exports, those that `crossmnt` makes among them: a descriptor and a kilobyte each.
pub const EXPORTS: usize = 1024;

/// Mount points of the machine that are looked at for those below an export.
pub const MOUNT_POINTS: usize = 16 << 10;

/// Entries of a directory that are looked at for the one that something is mounted on, once for
/// each mount: a tenth of a second.
pub const MOUNT_POINT_ENTRIES: usize = 64 << 10;

/// Directories above one another that are looked through for the root of an export: 1024 steps of
/// some 20 µs. Linux makes no path of more than 4096 bytes, but a tree can grow deeper one name at
/// a time.
pub const DEPTH: usize = 1 << 20;

/// Directories that one step leads up: a path of 3072 bytes, of which the kernel takes 4096.
pub const LEVELS_AT_ONCE: usize = 1024;

/// Times that the root of an export is looked for, when directories above are moved meanwhile.
pub const INSIDE_ATTEMPTS: usize = 3;

/// Times that a create is tried again, when the file is there and gone in turns.
pub const CREATE_ATTEMPTS: usize = 8;

/// Bytes of directory entries that the kernel is asked for at once.
pub const DIRECTORY_BUFFER_BYTES: usize = 32 << 10;

/// Most bytes that the entries of one answer take with their names: an NFS answer of 1 MiB.
pub const DIRECTORY_ANSWER_BYTES: usize = 1 << 20;

/// Most bytes of an extended attribute, and of their names: `XATTR_SIZE_MAX`, `XATTR_LIST_MAX`
/// (include/uapi/linux/limits.h).
pub const XATTR_BYTES: usize = 64 << 10;

/// Most bytes that one copy moves, so that no thread is gone for longer than tenths of a second:
/// 64 MiB take 0.3 s of one core, and a request has no more copied.
pub const COPY_BYTES: u64 = 16 << 20;

/// Bytes of the longest direct read or write: of a READ or WRITE. Each thread keeps as many.
pub const DIRECT_BYTES: usize = 1 << 20;

/// Files that have data which no sync has put on the disk: one descriptor each.
pub const UNSYNCED_FILES: usize = 4096;

/// Such files of a writer that are looked at for one that nothing is written to, to make room.
pub const UNSYNCED_TRIED: usize = 8;

/// Writers of one such file.
pub const UNSYNCED_WRITERS: usize = 1024;

/// Reads of what the kernel tells of directories that are being changed: 4096 bytes each, for all
/// that it keeps (`fs.inotify.max_queued_events`, 16,384 of up to 272 bytes).
pub const CHANGES_READ: usize = 2048;

/// Entries of one such directory of which the kernel tells: an operation changes two at most, and
/// all that counts of others is that they are there.
pub const CHANGES_SEEN: usize = 8;

/// How long a call of an export hangs before it counts as one of [`STILL_CALLS`]: many times as
/// long as a disk takes.
pub const STILL_AFTER: Duration = Duration::from_secs(2);
/// Calls of an export that hang before its file system counts as standing still
/// ([`still`](crate::still)), and most threads that others take the places of because of it.
///
/// Of the 64 that there are at most (`SPARE_THREADS_MAX` of `rpc-server`) five exports that hang
/// have 60, and four are left for what belongs to none. Of `n` threads, of which half are kept free
/// while calls are only slow, one export has `n + 12 - n / 2` under way when it is known to be
/// crowded, and 12 others are in their places then: half of `n` are free, also behind the second to
/// the fifth.
pub const STILL_CALLS: usize = 12;
/// Calls of an export that are stuck before no more than [`STILL_CALLS`] of it are carried out at
/// once: a few that write much to a medium are no reason to put others off.
pub const CROWDED_CALLS: usize = 4;
const _: () = assert!(CROWDED_CALLS < STILL_CALLS && 5 * STILL_CALLS < 64);
/// How long a call lasts before it counts as one of those.
pub const STUCK_AFTER: Duration = Duration::from_millis(500);
