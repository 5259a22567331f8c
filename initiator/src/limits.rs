//! Bounds of this crate that come from more than one place, with the arithmetic behind them.

/// How long each step of connecting may take over one transport where the next is tried after it,
/// in milliseconds: a SYN that is lost twice is sent again after one second and after three, and a
/// person waits three times that at most.
pub(crate) const TRANSPORT_ATTEMPT_MS: u64 = 3_500;
/// What is assumed of a controller that does not tell its Command Quiesce Time, in milliseconds:
/// the time after which Linux gives up a request to an NVMe or SCSI disk (`nvme_core.io_timeout`,
/// `SD_TIMEOUT`: 30 s), which is what such targets have for a medium. A medium that may hang for
/// longer needs a target that tells.
pub(crate) const CQT_ASSUMED_MS: u64 = 30_000;
/// Between two requests for a Cross-Controller Reset that could not begin yet, in microseconds: ten
/// a second are nothing to a target, and nobody feels the tenth.
pub(crate) const RESET_AGAIN_US: u64 = 100_000;
/// Between two looks at how a Cross-Controller Reset is going, in microseconds, where no event
/// tells: as above.
pub(crate) const RESET_LOOK_US: u64 = 100_000;
/// How long a reset waits for I/O that is outstanding, in microseconds, before it shuts the
/// controller down: the time that [`Host::shutdown`](crate::host::Host::shutdown) has for the rest
/// would otherwise be gone with it, and a command that takes longer is waited for as after a loss.
pub(crate) const RESET_DRAIN_US: u64 = 5_000_000;
/// Ranges of blocks kept apart whose last write has an unknown outcome. More than 128 queues with
/// 1023 commands each would not fit, but those are lost at once only; beyond it the ranges of a
/// namespace become one.
pub(crate) const UNKNOWN_RANGES_MAX: usize = 4096;
/// How long commands that failed and succeed again are told of in `capstan list`, and least time
/// between two lines of the log that they fail, in microseconds: a volume without room fails some
/// writes and carries out others.
pub(crate) const TROUBLE_QUIET_US: u64 = 60_000_000;
/// How long a cause for which attempts to connect again fail is not told once more, in
/// microseconds: a minute at first, twice that each time, an hour at last. A target that is away
/// for a weekend is some sixty lines.
pub(crate) const ATTEMPTS_QUIET_US: u64 = 60_000_000;
/// The longest of these times, in microseconds.
pub(crate) const ATTEMPTS_QUIET_MAX_US: u64 = 3_600_000_000;
/// Causes told of each address in each of these times: a target that goes, comes back and speaks
/// another transport has three, and texts may have numbers that differ each time.
pub(crate) const ATTEMPT_CAUSES_MAX: usize = 4;
/// Causes told of all addresses in each of these times: a name may have hundreds of addresses, and
/// sixteen are more than a target has ports.
pub(crate) const ATTEMPT_LINES_MAX: usize = 16 * ATTEMPT_CAUSES_MAX;
/// Statuses of failed commands kept apart: a person reads no more, and a target can make up 2048.
pub(crate) const TROUBLES_MAX: usize = 32;
/// Ranges of blocks kept apart whose last write by the kernel failed. A disk that fails at all
/// fails what is dirty, in runs of a mebibyte: beyond it the ranges become one.
pub(crate) const UNWRITTEN_RANGES_MAX: usize = 1024;
/// Descriptors that a disk takes beyond those of its association. It has 6 as long as it lives
/// (FUSE, the pipe that tells of the file's end, what wakes the front end), and 14 while it ends:
/// the command that asks (1), two threads that work for it (4), the process that clears the loop
/// device (7), what is read of it in `/proc` and `/sys` (2).
pub(crate) const DISK_DESCRIPTORS: usize = 20;
