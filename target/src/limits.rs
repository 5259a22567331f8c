//! Every bound of the target, in one place, with the arithmetic behind it.

use std::time::Duration;

use capstan_config::{ADMIN_QUEUE_DEPTH, STRANGERS_MAX};
pub(crate) use capstan_transport::limits::{
    ADMIN_PIECE_BYTES, IN_CAPSULE_BYTES, RECEIVES_MAX, SGL_DESCRIPTORS_MAX, SGL_LIST_PAGES,
    SPARE_BYTES, SQE_BYTES, STRANGER_RECEIVES, cq_depth, slots,
};
use capstan_transport::limits::{ADMIN_QUEUE_ENTRIES, DISCOVERY_CONTROLLERS, SGL_LIST_PAGE_BYTES};

/// Volumes that a line about all of them names, as systemd's status is. With paths of so many
/// characters it has some 300 at most.
pub(crate) const BRIEF_VOLUMES_MAX: usize = 3;
/// Characters of a path in such a line.
pub(crate) const BRIEF_PATH_CHARS_MAX: usize = 64;
/// Characters of what systemd is told as the status. The whole message has to fit in 4 KiB there.
pub(crate) const STATUS_CHARS_MAX: usize = 800;
/// Largest transfer of one command, in bytes (MDTS).
pub(crate) const TRANSFER_BYTES_MAX: u32 = 1 << 20;
/// Turns of a reactor after which it says again what memory it has: that costs some 30
/// instructions. One that sleeps says it before.
pub(crate) const TURNS_PER_REPORT: u32 = 64;
/// Answers from disks that are passed on per turn. Disks tend to end many operations at once: the
/// host takes up the first of them, and the disk gets new ones, while the last are being sent.
pub(crate) const DISK_ANSWERS_PER_TURN: usize = 4;
/// Bytes of their buffers, after which no further answer is passed on in a turn: sending them takes
/// time as well.
pub(crate) const DISK_ANSWER_BYTES_PER_TURN: u32 = 64 << 10;
/// Bytes that a turn reads out of volumes in memory before it looks after other commands: 100 to
/// 160 us, and as much as the user-space provider gives TCP in one call. A turn that takes in
/// commands and has others that waited moves twice as much.
pub(crate) const MOVED_BYTES_PER_TURN: u32 = 1 << 20;
/// Bytes of a read that a volume in memory answers before the answers to other commands of the turn
/// have left: some 12 us.
pub(crate) const READ_AT_ONCE_BYTES_MAX: u32 = 128 << 10;
/// What a command counts for that the controllers execute and that tells something: their lock,
/// what they look up, and a copy of it take as long as a read of so many bytes, some 12 us. Eight
/// of them fill a turn's share.
pub(crate) const ADMIN_COST_BYTES: u32 = READ_AT_ONCE_BYTES_MAX;
/// Connection requests waiting in the kernel's listener: what comes while a reactor does something
/// else for 50 ms, from someone who connects 20,000 times a second. One that finds no place comes
/// again after a second.
pub(crate) const LISTEN_BACKLOG: u32 = 1024;
/// Connection requests that are looked at in one turn of a reactor, some 100 us each: the
/// connections that they replace have ended when the next turn begins.
pub(crate) const REQUESTS_PER_TURN: usize = 32;
/// Messages waiting for a reactor: connection requests beyond that are refused. What controllers
/// want of connections is not: that waits however many there are, and its number is bounded by who
/// is connected. Per connection it is a Disconnect, and a table each time the operator reloads; per
/// command that waits for its answer (entries of Admin queues, Aborts up to ACL, reservation
/// commands in I/O queues) it is one.
pub(crate) const MAILBOX_BOUND: usize = 4096;
/// Sockets of NVMe/TCP that wait for the end of their connection, over all reactors, at most an
/// eighth of the descriptors that the process may have; as user-space iWARP. Where there are more,
/// the oldest is closed.
const CLOSING_SOCKETS_MAX: usize = 1_024;
/// How long a connection may take for its Connect, and then for the data of it when the target
/// pulls that, in microseconds each: a packet that is lost costs TCP a second, and another one two
/// more.
pub(crate) const CONNECT_TIMEOUT_US: u64 = 3_000_000;
/// The same for another queue of a host that has a controller already, in microseconds. The Linux
/// host connects up to 128 of them, which takes a slow network up to half a second each, before it
/// sends the first Connect.
pub(crate) const KNOWN_CONNECT_TIMEOUT_US: u64 = 60_000_000;
/// How long a host may take to disconnect when its Connect was refused, in microseconds: time to
/// read the response, which may have been lost twice.
pub(crate) const REFUSED_TIMEOUT_US: u64 = 3_000_000;
/// The data of a Connect, in bytes (NVMe Base 2.1, section 6.3).
pub(crate) const CONNECT_DATA_BYTES: u32 = 1024;
/// What an association may have of a reactor's data buffers: so many times as much as it leaves for
/// others. One alone has three quarters at most, and the next one finds a quarter. One with
/// nothing may have what is free, however large: of the least that a reactor has, two of the
/// largest transfers, each of two has one.
pub(crate) const SHARE_TIMES_FREE: u32 = 3;
/// Time between two looks at what hosts have yet to do, in microseconds: two a second, while
/// anything is under way.
pub(crate) const LOOK_PERIOD_US: u64 = 500_000;
/// Looks in a row that find that nothing moves, after which the connection ends: 10 s. The slowest
/// network that is served moves the largest transfer in that time: 1 MiB in 10 s are 0.9 Mbit/s.
/// TCP gives up a peer that is gone after minutes only, and most who are there answer after one to
/// three retransmissions: 0.2 + 0.4 + 0.8 s.
pub(crate) const STALLED_LOOKS: u32 = 20;
/// The same of a host that has buffers while a command of another finds none: 2 s, three
/// retransmissions of TCP.
pub(crate) const STALLED_LOOKS_WHILE_OTHERS_WAIT: u32 = 4;
/// How long SIGTERM waits for commands in flight, in microseconds.
pub(crate) const DRAIN_TIMEOUT_US: u64 = 5_000_000;
/// The longest that an operator lets hosts go in (`drain --within`), in seconds.
pub(crate) const DRAIN_WITHIN_S_MAX: u64 = 3600;
/// How long it waits for all of that: a storage operation that hangs must not keep the process for
/// ever. Below TimeoutStopSec= of capstan-target.service, 30 s.
pub(crate) const STOP_TIMEOUT_US: u64 = 4 * DRAIN_TIMEOUT_US;

/// How long a start waits for operations that a killed target has left on their way to a medium:
/// SCSI and NVMe disks give one 30 s, and once more. Below TimeoutStartSec= of
/// capstan-target.service, which starts the target again after that, and again it waits.
pub(crate) const UNFINISHED_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a reload waits for the reactors to open new volumes.
pub(crate) const OPEN_TIMEOUT: Duration = Duration::from_secs(10);

/// How often sizes and paths of files and devices are looked at: a few system calls for each.
pub(crate) const MEDIA_LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long a look may take before the volumes behind it are looked at by another thread.
pub(crate) const LOOK_PATIENCE: Duration = Duration::from_millis(500);
/// Looks that wait in the kernel at once, each with a thread: 16 network file systems that have
/// gone. Where there are more, sizes and paths are not watched until one of them answers.
pub(crate) const LOOKS_AT_ONCE_MAX: usize = 16;
/// A medium that has not answered a look for so long is said to.
pub(crate) const MEDIA_SILENT: Duration = Duration::from_secs(10);
/// How often a medium that goes on failing is said to, with a count.
pub(crate) const MEDIA_SAID_AGAIN: Duration = Duration::from_secs(60);

/// Files whose LBA size is remembered, those that were opened last: 16 subsystems full of
/// namespaces.
pub(crate) const LBA_SIZES_KEPT: usize = 16_384;
/// Bytes of that: 4 KiB are the longest path, and 100 bytes go with it.
pub(crate) const LBA_SIZES_TEXT_BYTES_MAX: u64 = LBA_SIZES_KEPT as u64 * 4200;

/// Bytes that a state folder should have free: a table of LBA sizes is written beside the old one,
/// and most have a hundred bytes for each of some namespaces; there is room for notes of lost
/// writes as well.
pub(crate) const STATE_BYTES_FREE_MIN: u64 = 1 << 20;

/// Bytes of a note of lost writes, and of the room that is reserved for one: the longest path
/// twice, 4 KiB each, and as much for the rest.
pub(crate) const LOST_NOTE_BYTES_MAX: u64 = 16 << 10;
/// Notes that have room where the state folder's file system is full. Others wait for some.
pub(crate) const LOST_NOTES_RESERVED: usize = 2;
/// How long a reactor keeps its hosts waiting for the note of a loss, once for each volume: a disk
/// syncs a small file in a tenth of it.
pub(crate) const LOST_NOTE_WAIT: Duration = Duration::from_secs(1);

/// How long the state folder may take before the log says that it is waited for: a disk takes a
/// tenth of it.
pub(crate) const STATE_PATIENCE: Duration = Duration::from_secs(1);
/// How long an end waits for a reload that is under way. It opens files and devices, and reads and
/// writes in the state folder: when that takes longer, one of them does not answer.
pub(crate) const RELOAD_PATIENCE: Duration = Duration::from_secs(2);

/// Room that is set aside for the table beside twice its size, in bytes: 16 namespaces that come.
pub(crate) const RESERVE_BYTES_MORE: usize = 16 << 10;

/// How often a start chooses what hosts know namespaces by: another target that starts with the
/// same state folder makes it choose once more, and there are not as many that start at the same
/// moment.
pub(crate) const CHOICES_MAX: u32 = 16;

/// Namespaces and media that are remembered, the latest, and NSIDs of which it is known what hosts
/// have seen there: 16 subsystems full of namespaces.
pub(crate) const NAMESPACES_KEPT: usize = 16_384;
/// Bytes of that: 4 KiB are the longest path, and an NQN and what tells a medium go with it; an NQN
/// and a UUID for each NSID.
pub(crate) const NAMESPACES_TEXT_BYTES_MAX: u64 = NAMESPACES_KEPT as u64 * (6144 + 512);

/// Sockets of NVMe/TCP that each of so many reactors may have closing, in a process that may have
/// so many descriptors.
pub(crate) fn closing_sockets(reactors: usize, descriptors: u64) -> usize {
    let few = usize::try_from(descriptors / 8).unwrap_or(usize::MAX);
    (CLOSING_SOCKETS_MAX.min(few) / reactors.max(1)).max(1)
}

const _: () = {
    // In-capsule data must hold a whole 4096-byte LBA, and a transfer whole LBAs.
    assert!(IN_CAPSULE_BYTES.is_multiple_of(4096) && TRANSFER_BYTES_MAX.is_multiple_of(4096));
    // Both ends of the same number: what the controllers advertise is what is moved at once.
    assert!(TRANSFER_BYTES_MAX == capstan_subsystem::bounds::TRANSFER_MAX_BYTES);
    // What the budget sets aside is what is taken: receives, and two pages; and of discovery
    // controllers two more.
    let stranger_bytes = STRANGER_RECEIVES as u64 * IN_CAPSULE_BYTES as u64 + 2 * 4096;
    let lists_bytes = (SGL_LIST_PAGES * SGL_LIST_PAGE_BYTES) as u64 * DISCOVERY_CONTROLLERS as u64;
    assert!(
        stranger_bytes * STRANGERS_MAX + lists_bytes
            <= capstan_config::STRANGER_BYTES * STRANGERS_MAX
    );
    assert!(DISCOVERY_CONTROLLERS as usize == capstan_subsystem::bounds::DISCOVERY_CONTROLLERS_MAX);
    assert!(CONNECT_DATA_BYTES <= ADMIN_PIECE_BYTES);
    assert!(ADMIN_QUEUE_ENTRIES == ADMIN_QUEUE_DEPTH);
};

/// Bytes of the file of one namespace's reservations: 128 registrants (`REGISTRANTS_MAX`) of some
/// 100 bytes each, a path of 4096 at most, and what is said of them.
pub(crate) const RESERVATIONS_TEXT_BYTES_MAX: u64 = 64 << 10;
const _: () = assert!(
    RESERVATIONS_TEXT_BYTES_MAX > capstan_subsystem::bounds::REGISTRANTS_MAX as u64 * 100 + 8192
);

#[cfg(test)]
mod tests {
    use super::closing_sockets;

    #[test]
    fn closing_sockets_are_few_and_divided_among_reactors() {
        assert_eq!(closing_sockets(1, 1 << 20), 1024);
        assert_eq!(closing_sockets(4, 1 << 20), 256);
        assert_eq!(closing_sockets(2, 1024), 64);
        assert_eq!(closing_sockets(64, 64), 1);
    }
}
