//! Bounds of a queue of NVMe/TCP.

/// Payload of at least this many bytes goes from its buffer to the socket, and from the socket to
/// its buffer. Smaller payload is copied once, so that several PDUs share a system call.
pub const DIRECT_MIN_BYTES: u32 = 16 * 1024;

/// Zeroes of at least this many bytes are sent from a shared page: one more iovec of a call costs
/// less than filling memory with zeroes and reading it.
pub const ZEROES_MIN_BYTES: u32 = 1024;

/// Data of at least this many bytes that stays where it is (`Source::Held`) leaves from there:
/// shorter data is copied for less than one more iovec costs.
pub const HELD_MIN_BYTES: usize = 4096;

/// Memory for what is copied to be sent comes in pieces of this size: two PDUs of the largest data
/// that is copied fit into one, or seven of 4 KiB.
pub const STAGED_CHUNK_BYTES: usize = 32 * 1024;

/// Where the pieces that the queues of a reactor share are used up no data is copied, and a queue
/// has pieces of this size for its responses, the heads of its data and R2Ts: 36 responses each.
pub const STAGED_HEADS_BYTES: usize = 1024;

/// High-water mark of bytes that are staged (copied to be sent): above it nothing is pushed until
/// half of them have left. Responses and R2Ts are staged regardless; with 1024 entries they take at
/// most `1024 * 28 + 256 * 28` bytes, unless a host answers R2Ts before it can have read them.
pub const STAGED_MAX_BYTES: usize = 256 * 1024;

/// R2Ts outstanding on one queue, over all its commands: about 6 KiB of memory, from the first pull
/// on. Pulls beyond it wait until an R2T is answered.
pub const R2TS_MAX: usize = 256;

/// From the connection to the first command capsule, which is Connect.
pub const SETUP_US: u64 = 10_000_000;

/// From a TermReq that was sent to the end of the connection: the peer has 30 seconds to read it
/// and to close (NVMe over TCP Transport 1.1, section 3.6.1).
pub const TERM_US: u64 = 30_000_000;

/// A host that closes a connection with a fault waits so long for the controller's machine to
/// acknowledge the TermReq: the acknowledgement is due in less than half a second (RFC 1122,
/// section
/// 4.2.3.2). Nothing else is done meanwhile on that association, which has lost its queues.
pub const LAST_WORD_US: u64 = 500_000;

/// Between two looks whether that has come.
pub const LAST_WORD_LOOK_MS: u16 = 1;

/// A connection makes progress when this many bytes of data have been received from its host, or
/// acknowledged by it, since the last progress; or all that were left. Without progress it is ended
/// after 10 s, and after 2 s while other hosts wait for buffers that it holds. So the slowest host
/// has 0.2 Mbit/s, or then 1 Mbit/s, at which a buffer of 1 MiB, the largest transfer, is free
/// after 8 s.
pub const HEADWAY_BYTES: u64 = 256 << 10;

/// Bytes that are read and dropped behind the end of a queue: what a host may have sent before it
/// knows, the largest transfer. Then the connection is closed, whether its TermReq was read or not.
pub const DROPPED_BYTES_MAX: u64 = 1 << 20;

/// Data of one H2CData PDU (MAXH2CDATA): the largest transfer there is in one piece.
pub const MAXH2CDATA_BYTES: u32 = 4 << 20;

/// System calls of one queue in one turn in one direction. The remaining bytes wait for the next
/// turn, so that no queue starves the others.
pub const CALLS_PER_TURN: usize = 4;

/// Iovecs of one call to send: 4 KiB of the stack. `IOV_MAX` of Linux is 1024.
pub const PIECES_MAX: usize = 256;

/// Where data may come that has a buffer of its own, a call to receive puts at most this many
/// bytes, beside small data that is due, into scratch memory: headers, other small PDUs, and the
/// start of the data, which is copied.
pub const LARGE_HEAD_BYTES: usize = 512;

/// Bytes of one call to receive what has no buffer of its own: the capsules of a deep queue.
pub const SCRATCH_BYTES: usize = 64 * 1024;

/// Calls to receive that find nothing, divided by the number of queues that are read in every turn,
/// before a queue is left to epoll. This value and the next three were measured on user-space
/// iWARP.
pub const IDLE_RUNS: u32 = 2048;

/// Turns between two looks at epoll while queues are read in every turn.
pub const EPOLL_EVERY: u32 = 8;

/// Queues at work from which on epoll says which of them to read.
pub const MANY_AT_WORK: usize = 24;

/// Events of one look at epoll.
pub const EPOLL_EVENTS: usize = 64;

/// How long a closing connection waits for its host to read the last bytes before it is dropped, in
/// microseconds; as user-space iWARP.
pub const CLOSE_TIMEOUT_US: u64 = 1_000_000;
