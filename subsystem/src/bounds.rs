//! Every bound of this crate, each with the arithmetic behind it.

/// Largest data transfer of one command, in bytes: MDTS = 8 with a minimum page of 4 KiB
/// (CAP.MPSMIN = 0), 4 KiB * 2^8.
pub const TRANSFER_MAX_BYTES: u32 = 1 << 20;
/// MDTS in Identify Controller: a power of two of 4 KiB pages.
pub(crate) const MDTS: u8 = 8;
const _: () = assert!(4096 << MDTS == TRANSFER_MAX_BYTES);

/// IORCSZ: a response capsule in units of 16 bytes: one CQE.
pub(crate) const IORCSZ: u32 = 1;

/// Entries of an I/O queue: MQES + 1. The NVMe/RDMA private data and SQSIZE count in 16 bits; a
/// thousand receives of 64 + 8192 bytes are 8 MiB, which is as far as one queue should go.
pub const IO_QUEUE_ENTRIES_MAX: u16 = 1024;
/// Entries of an Admin queue, as in NVMe over Fabrics where 32 is the least a host may count on.
pub const ADMIN_QUEUE_ENTRIES_MAX: u16 = 128;
/// Entries of the smallest queue: SQSIZE 0 is reserved.
pub const QUEUE_ENTRIES_MIN: u16 = 2;

/// I/O queues of one controller.
pub const IO_QUEUES_MAX: u16 = 128;

/// Outstanding Asynchronous Event Requests of one controller: AERL + 1.
pub(crate) const AER_MAX: usize = 4;
/// Abort commands that one controller carries out at once: ACL + 1.
pub(crate) const ABORT_MAX: usize = 4;
const _: () = assert!(AER_MAX + ABORT_MAX < ADMIN_QUEUE_ENTRIES_MAX as usize);

/// Namespaces of one subsystem, and the highest NSID: NN and MNAN. 1,024 identifiers are exactly
/// one Active Namespace ID list, and one Changed Namespace List.
pub const NAMESPACES_MAX: u32 = 1024;

/// Controllers of the whole target, so that a CNTLID always exists (1 to FFEFh).
pub const CONTROLLERS_MAX: usize = 4096;
const _: () = assert!(CONTROLLERS_MAX < capstan_nvme_proto::fabrics::CNTLID_MAX as usize);

/// Entries of the Error Information log: ELPE + 1. 64 entries of 64 bytes are one page.
pub(crate) const ERROR_LOG_ENTRIES: usize = 64;
/// Errors one I/O queue keeps until the controller's log is read. The newest stay.
pub(crate) const QUEUE_ERRORS: usize = 8;

/// Different statuses that an I/O queue counts for each namespace: as many as fit on the cache
/// lines of its counters. A host that makes more kinds of mistakes has the others counted together.
pub(crate) const STATUSES_COUNTED: usize = 8;
/// Pairs of a host and a namespace that are counted by themselves: of 4,096 hosts with one
/// namespace each, or of fewer with more. Each has some 600 bytes with its names, 2.5 MiB in all.
pub const HOST_PAIRS_KEPT: usize = 4096;

/// Refused connects that are kept for an operator who asks why.
pub const REFUSALS_KEPT: usize = 64;

/// Ranges of one Dataset Management command (NR is 0's based in 8 bits).
pub const DSM_RANGES_MAX: u16 = 256;
/// Source ranges of one Copy command: MSRC + 1.
pub const COPY_RANGES_MAX: u16 = 128;

/// How long a controller may stay not ready because of commands of earlier associations of its
/// host, in microseconds from its Connect: 60 s. A disk may retry for as long as the kernel lets it
/// (30 s a SCSI command, and its error handling as long again). Then the association ends, and the
/// host connects again when it likes.
pub const FENCE_US_MAX: u64 = 60_000_000;
/// How long such a wait is nothing to tell, in microseconds: 1 s.
pub(crate) const FENCE_TOLD_US: u64 = 1_000_000;
/// CAP.TO and CRTO: how long hosts wait for CSTS.RDY, in units of 500 ms. The fence and 5 s, so
/// that the target is the one that ends a wait and can say why; disabling waits for the I/O queues'
/// connections to close, for which that is plenty.
pub(crate) const READY_TIMEOUT_500MS: u8 = 130;
const _: () = assert!(READY_TIMEOUT_500MS as u64 * 500_000 >= FENCE_US_MAX + 5_000_000);

/// Cross-Controller Resets that one controller has in progress: CCRL. As many as the specification
/// recommends.
pub(crate) const CROSS_RESETS_MAX: u8 = 4;

/// How long a host waits before it sends again what a namespace that it has not identified did not
/// take: Identify Controller CRDT1. Linux looks at namespaces some milliseconds after it has
/// connected, and sends a command again five times.
pub(crate) const RETRY_DELAY_100MS: u16 = 10;
/// How long a host that has read the identifiers and the shape of a namespace has for deciding
/// whether it is the one that it means, in microseconds: 3 s. Linux before 6.0 decides within
/// milliseconds and does not show it. What it sends again a second later comes behind that, and
/// what is for the right namespace is tried twice more after these 3 s.
pub(crate) const LOOKED_US_MAX: u64 = 3_000_000;
/// The same of a host that has read only some of it, from the first on: 7 s. By then Linux has sent
/// what waited as it connected for the fifth and last time.
pub(crate) const LOOK_US_MAX: u64 = 7_000_000;
const _: () = assert!(LOOKED_US_MAX >= 2 * RETRY_DELAY_100MS as u64 * 100_000);
const _: () = assert!(LOOK_US_MAX > 6 * RETRY_DELAY_100MS as u64 * 100_000);

/// Entries of a controller's Cross-Controller Reset log page. Hosts remove what they have read
/// (RMC); one that does not has this many lost controllers to tell of.
pub(crate) const CROSS_RESETS_KEPT: usize = 64;
const _: () = assert!(CROSS_RESETS_KEPT <= capstan_nvme_proto::log::CROSS_CONTROLLER_RESETS_MAX);
/// CQT: how long the commands of a controller may go on after its Keep Alive Timeout, in
/// milliseconds. 1 s until a busy reactor has seen the timer and closed the connections, behind
/// which nothing new reaches a medium; and 9 s for what a disk is doing, which bounds its own
/// retries to less (7 s is usual). A medium that hangs for longer is covered by no number: by the
/// fence and Cross-Controller Reset.
pub(crate) const QUIESCE_MS: u16 = 10_000;

/// Granularity of the Keep Alive timer, KAS, in units of 100 ms.
pub(crate) const KAS: u16 = 10;
/// Longest Keep Alive Timeout of a discovery controller, and that of one whose host asked for none,
/// so that a controller nobody uses goes away: 2 minutes, as the Linux target has it.
pub(crate) const DISCOVERY_KATO_MS: u32 = 120_000;
/// Discovery controllers of the whole target: anybody may have one, so they are few, and apart from
/// the others.
pub const DISCOVERY_CONTROLLERS_MAX: usize = 64;
/// How many times as many controllers as are left an address may have where any host may connect:
/// alone three quarters of them, the next one three quarters of the rest. Up to four in all, one
/// may have them all.
pub(crate) const SHARE_TIMES_FREE: usize = 3;
/// One part in so many of the controllers stays for hosts that are listed, where there are such.
pub(crate) const LISTED_PART: usize = 8;
/// How long an I/O controller may exist before its host enables it for the first time, in
/// microseconds: a minute, and hosts do that with the next commands.
pub(crate) const ENABLE_TIMEOUT_US: u64 = 60_000_000;

/// Largest number of bytes of `out` an admin command fills: no more than one transfer.
pub const ADMIN_DATA_MAX_BYTES: u32 = TRANSFER_MAX_BYTES;

/// Descriptors of one Get LBA Status: 8 + 255 * 16 bytes are a page. So the driver looks for 256
/// extents at most, with two system calls each: a millisecond or so, however many there are.
pub const LBA_STATUS_DESCRIPTORS_MAX: usize = 255;
const _: () = assert!(8 + LBA_STATUS_DESCRIPTORS_MAX * 16 <= 4096);

/// Entries of the smallest Admin queue a host may ask for: 32 (NVMe Base 2.1, section 3.3.2).
pub const ADMIN_QUEUE_ENTRIES_MIN: u16 = 32;

/// ANA groups: ANAGRPMAX and NANAGRPID. As many as Linux has, so that a configuration can move.
pub const ANA_GROUPS_MAX: u32 = 128;

/// Bytes one Copy command moves, MCL: 16 transfers, so that a copy cannot keep a backend from
/// other hosts for long.
pub const COPY_MAX_BYTES: u32 = 16 * TRANSFER_MAX_BYTES;

/// Hosts registered with one namespace's reservations. As many as one subsystem serves in practice
/// at once; a Reservation Report of all of them (64 + 128 * 64 bytes) is one transfer.
pub const REGISTRANTS_MAX: usize = 128;
const _: () = assert!(64 + REGISTRANTS_MAX * 64 <= TRANSFER_MAX_BYTES as usize);

/// Reservation notifications a controller keeps for its host; older ones are lost, which the host
/// sees by a gap in the Log Page Count.
pub(crate) const RESERVATION_NOTIFICATIONS: usize = 64;
