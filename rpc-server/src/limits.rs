//! Bounds of what a client can make grow, with the arithmetic behind them.

use capstan_rpcrdma::limits::{
    CALL_MAX_BYTES, CREDITS_PER_CONNECTION_MAX, DATA_MAX_BYTES, INLINE_OFFER_BYTES,
    RECORD_MAX_BYTES,
};

/// Bytes of the buffer that a worker writes a reply to: a record, which also holds whatever goes to
/// a reply chunk.
pub const REPLY_MAX_BYTES: usize = RECORD_MAX_BYTES as usize;
/// Threads that carry out calls.
pub const WORKERS_MAX: usize = 256;
/// Calls that wait for a thread, for each thread: one, so that it has the next at once. All others
/// wait with their connections, each of which has its turn.
pub const AHEAD_PER_WORKER: usize = 1;
/// How long a thread is in one call before another one takes its place, in microseconds: many times
/// as long as a disk takes. Counted from when it is first looked at ([`LOOK_WORKERS_US`]).
pub const STUCK_US: u64 = 500_000;
/// How long a thread is in one call before the call counts as slow, in microseconds: longer than a
/// disk takes that is not overloaded. The address of a slow call has half of the threads at most,
/// and where more than half of them are in slow calls, others take the places of these.
pub const SLOW_US: u64 = 100_000;
/// How often the threads are looked at while calls are under way, in microseconds: a slow call is
/// found within twice as long.
pub const LOOK_WORKERS_US: u64 = 100_000;
/// Threads that there are at most in place of others that are stuck. The calls of one address have
/// half of these as well. Each has a call and the buffer
/// of a reply: 64 of [`CALL_MAX_BYTES`] and [`REPLY_MAX_BYTES`] are some 130 MiB, if all are as
/// long as they may be.
pub const SPARE_THREADS_MAX: usize = 64;
const _: () = assert!(SPARE_THREADS_MAX * (CALL_MAX_BYTES as usize + REPLY_MAX_BYTES) <= 160 << 20);
/// Bytes of answers from which on a turn of the thread that owns the connections carries out no
/// more calls itself, but leaves them to the workers, which are other cores: copying them takes
/// some 100 µs.
pub const AT_ONCE_BYTES_PER_TURN: usize = 256 << 10;
/// Bytes that an answer counts as at least, so that a turn gives no more than 64 so.
pub const AT_ONCE_BYTES_MIN: usize = 4 << 10;
/// Calls of one connection over TCP that are waiting or carried out: as many as Linux clients have
/// slots in a session. With as many, nothing more is read from it.
pub const TCP_CALLS_MAX: usize = 64;
/// Bytes that one read takes from a socket. Those that nothing can be done with yet stay with the
/// connection.
pub const READ_BYTES: usize = 256 << 10;
/// Reads of one connection, or acceptances of one listener, in a row: others have their turn then.
pub const CALLS_PER_TURN: usize = 8;
/// Sockets that one turn looks at.
pub const EVENTS_PER_TURN: usize = 128;
/// Messages from workers that one turn takes.
pub const ANSWERS_PER_TURN: usize = 128;
/// Bytes of a record before room is made for all that its marks announce: until then the memory
/// grows with what has come.
pub const RECORD_TRUSTED_BYTES: usize = 64 << 10;
/// Bytes of received records of one connection, with what was read behind them, from which on
/// nothing more is read: eight of the longest.
pub const RECEIVED_PER_CONNECTION_BYTES: usize = 8 * RECORD_MAX_BYTES as usize;
/// Bytes of received records of a connection whose address is not admitted, from which on it ends:
/// with the first call of a client, and a few behind it.
pub const REFUSED_BYTES: usize = 64 << 10;
/// Bytes of received records of all connections. Beyond it the connection ends whose record is
/// being received for the longest time. 32 connections can have all they may.
pub const RECEIVED_BYTES: usize = 32 * RECEIVED_PER_CONNECTION_BYTES;
/// Bytes of memory of replies that wait in one connection, from which on no call of it is carried
/// out: two of the longest. Those under way then may still add theirs.
pub const QUEUED_PER_CONNECTION_BYTES: usize = 2 * REPLY_MAX_BYTES;
/// Bytes of memory of replies that wait in all connections. Beyond it the connection ends that has
/// taken nothing for the longest time. 128 connections can have all they may.
pub const QUEUED_BYTES: usize = 128 * QUEUED_PER_CONNECTION_BYTES;
/// Bytes of the longest reply that is copied to others which leave with it. A longer one leaves
/// from the buffer that it was written to.
pub const COPIED_MAX_BYTES: usize = 64 << 10;
/// Memory of a piece of what is to be sent, where it has copied replies; more for a longer reply.
pub const PIECE_BYTES: usize = 32 << 10;
/// Pieces that one `sendmsg` takes.
pub const PIECES_PER_SEND: usize = 16;
/// Bytes of memory for records that is kept for others.
pub const SPARE_BYTES: usize = 16 << 20;
/// Bytes of one piece of memory that is kept so.
pub const SPARE_ONE_MAX_BYTES: usize = 2 << 20;
/// Bytes of the memory of a short message: one that comes in a page or two.
pub const SPARE_SHORT_BYTES: usize = 8 << 10;
/// Pieces of memory that are kept so, of short messages and of long ones.
pub const SPARE_MAX: usize = 1024;

/// Connections that have had no call answered yet. For one more, the oldest one of the address that
/// has most of them ends.
pub const STRANGERS_MAX: usize = 512;
/// Of these, those of one address.
pub const STRANGERS_PER_SOURCE_MAX: usize = 256;
/// Connections waiting to be accepted (`listen(2)`).
pub const BACKLOG: u32 = 512;
/// Listeners of one server.
pub const LISTENERS_MAX: usize = 64;

/// How often connections are looked at that have to go on, in microseconds.
pub const LOOK_PERIOD_US: u64 = 1_000_000;
/// How many times as long as a client may leave something as it is all data of one call may take to
/// come, counted from when it has its buffers. A client that goes on a little now and then would
/// keep them for hours otherwise.
pub const PULL_STALLS: u64 = 4;
/// How long a listener is not looked at that has no descriptor for a connection, in microseconds.
pub const PAUSE_US: u64 = 100_000;
/// How long a server that stops waits for the other sides to end their connections, in
/// microseconds.
pub const CLOSE_TIMEOUT_US: u64 = 1_000_000;
/// Idle time after which TCP probes whether a client is still there, in seconds.
pub const KEEPALIVE_IDLE_S: u32 = 60;
/// Time without an answer after which TCP gives a client up, in milliseconds.
pub const DEAD_CLIENT_TIMEOUT_MS: u32 = 60_000;

/// Receives of all connections of RPC-over-RDMA: one for each there may be, and beyond that 3 for
/// each of 1024, or 127 for each of 24.
pub const RECEIVES: u32 = RDMA_CONNECTIONS_MAX + 3072;
/// Connections of RPC-over-RDMA: twice as many as one address may have.
pub const RDMA_CONNECTIONS_MAX: u32 = 2048;
const _: () = assert!(RDMA_CONNECTIONS_MAX <= RECEIVES);
/// Bytes of a receive, and of a Send: a page each.
pub const MESSAGE_BYTES: u32 = INLINE_OFFER_BYTES;
/// Bytes of the memory of receives and Sends. A call has a receive until it is answered, and then a
/// Send; a connection has no more Sends than credits. So this is all that connections without calls
/// can take: 40 MiB.
pub const MESSAGES_BYTES: usize = 2 * (RECEIVES * MESSAGE_BYTES) as usize;
const _: () = assert!(MESSAGES_BYTES <= 40 << 20);
/// Credits that a connection gets with its first reply, if it asks for as many. Further ones come
/// with their use.
pub const CREDITS_AT_FIRST: u32 = 8;
/// Calls of a connection that are received, carried out, or whose reply is being sent.
pub const RDMA_CALLS_MAX: usize = 2 * CREDITS_PER_CONNECTION_MAX as usize;
/// Calls whose memory for lists, and for what was received, is kept for others: 4 MiB or so.
pub const SPARE_CALLS_MAX: usize = 1024;
/// Bytes of data for which the write chunks of one call may ask, over all of them: a READ of
/// everything there may be, four times.
pub const RESULTS_MAX_BYTES: u32 = 4 * DATA_MAX_BYTES;
/// Bytes of the memory of data, at least: with the most that one call can take, twice.
///
/// That is a message of [`CALL_MAX_BYTES`] and a reply of [`RECORD_MAX_BYTES`], each in a lease of
/// 2 MiB; items of [`CALL_MAX_BYTES`] together and results of [`RESULTS_MAX_BYTES`], each in twice
/// as much.
pub const DATA_MIN_BYTES: usize = 2
    * (2 * (2 << 20)
        + 2 * (CALL_MAX_BYTES as usize).next_multiple_of(1 << 20)
        + 2 * RESULTS_MAX_BYTES as usize);
const _: () = assert!(DATA_MIN_BYTES == 32 << 20);
/// What the connections of one address may hold of the memory of data, as a multiple of what is
/// left for others.
pub const SHARE_TIMES_FREE: u32 = 1;
/// RDMA READs that a connection has outstanding, where its client and the device allow as many.
pub const READS_MAX: u8 = 16;
/// Work requests of the send queue of a connection: the RDMA WRITEs of one reply, of which a header
/// of [`MESSAGE_BYTES`] has no more than 255, with those that begin in the middle of a segment for
/// each of 17 chunks and the padding of each; its Send; and the RDMA READs.
pub const SEND_WRS: u32 = MESSAGE_BYTES / 16 + 3 * 17 + 1 + READS_MAX as u32;
/// Work requests of all send queues of a device, where it has completions for as many: those of 75
/// connections that have all they may. The others wait.
pub const DEVICE_SEND_WRS: u32 = 24 << 10;
/// Completions that one poll takes.
pub const COMPLETIONS_PER_TURN: usize = 128;
/// Connection-manager events that one turn takes.
pub const CM_EVENTS_PER_TURN: usize = 32;
