//! Bounds of the wires, with the arithmetic behind them.

use capstan_nvme_proto::{rdma_sgl, tcp};

/// Bytes of a command capsule before its in-capsule data: the SQE.
pub const SQE_BYTES: u32 = 64;
/// Bytes of a response capsule.
pub const CQE_BYTES: u32 = 16;
/// Data that a work request carries itself where the device can: a command capsule without data; of
/// the controller, a response, or data of that length.
pub const INLINE_BYTES: u32 = SQE_BYTES;
/// In-capsule data a host may send, in bytes: two pages, so that it lands page-aligned in a buffer
/// of its own and goes to disk without a copy. Over NVMe/TCP as over NVMe/RDMA.
pub const IN_CAPSULE_BYTES: u32 = rdma_sgl::SUPPORT.in_capsule_bytes;
const _: () = assert!(tcp::command::SUPPORT.in_capsule_bytes == IN_CAPSULE_BYTES);
/// Keyed SGL descriptors of one command (MSDBD).
pub const SGL_DESCRIPTORS_MAX: u32 = rdma_sgl::SGL_DESCRIPTORS_MAX as u32;
/// Bytes of the longest list of SGL descriptors.
pub const SGL_LIST_BYTES: u32 = SGL_DESCRIPTORS_MAX * 16;
/// Responses in a row whose Send is not signaled: completions of Sends cost the device, the memory
/// and the processor as much as those of receives. The next one is signaled; its completion covers
/// those before it.
pub const UNSIGNALED_MAX: u16 = 7;
/// Receives in the place of a stranger (a connection whose host is not known to be permitted yet):
/// one for its Connect, and one to notice that more is sent, which ends the connection.
pub const STRANGER_RECEIVES: u32 = 2;
/// Completions that one poll of a device's queues takes at most: a turn also has timers and the
/// mailbox to look at, which do not wait longer than these take.
pub const COMPLETIONS_PER_TURN: usize = 128;
/// Command slots per queue entry, beside those of [`UNSIGNALED_MAX`]. A host may use an entry again
/// as soon as it has the response, which can be before this side has polled the completion of the
/// Send that carried it.
const SLOTS_PER_ENTRY: u16 = 2;
/// Receives of one reactor and device: 512 queues of 128 entries. Their SQEs fill one buffer of
/// 4 MiB; their data buffers are taken from the memory budget as queues connect.
pub const RECEIVES_MAX: u32 = 65_536;
/// Data that Admin commands return is sent in pieces of this many bytes, through a buffer of the
/// queue's own: one Identify structure, and what hosts read of a discovery log page at once.
pub const ADMIN_PIECE_BYTES: u32 = 4096;
/// RDMA READs outstanding per queue pair, when the device and the host allow as many.
pub const INITIATOR_DEPTH_MAX: u8 = 64;
/// How long a closing connection waits for its outstanding work before it is dropped, in
/// microseconds.
pub const CLOSE_TIMEOUT_US: u64 = 5_000_000;
/// Completions that a stranger's connection can have waiting when it breaks: of its receives, of
/// the RDMA READs of its Connect's data, and of its response.
pub const STRANGER_COMPLETIONS: u32 = STRANGER_RECEIVES + SGL_DESCRIPTORS_MAX + 1;
/// Entries of an Admin queue, and of the smallest queue: as the Linux host asks for
/// (`NVME_AQ_DEPTH`).
pub const ADMIN_QUEUE_ENTRIES: u16 = 32;
/// Discovery controllers of a target, all of which may come to be on one reactor.
pub const DISCOVERY_CONTROLLERS: u32 = 64;
/// The Admin queue of a discovery controller keeps its stranger's place and receives further SQEs
/// there. They are in the page of the place that has its responses, from this many bytes on: behind
/// the responses.
pub const SQES_IN_PLACE_AT: u32 =
    (slots(ADMIN_QUEUE_ENTRIES) as u32 * CQE_BYTES).next_multiple_of(SQE_BYTES);
/// SQEs from [`SQES_IN_PLACE_AT`] on: one for each entry of a discovery controller's queue, less
/// those for which the place has [`STRANGER_RECEIVES`].
pub const SQES_IN_PLACE: u32 = ADMIN_QUEUE_ENTRIES as u32 - STRANGER_RECEIVES;
/// Pages of a discovery controller's queue for the lists of SGL descriptors that come behind those
/// SQEs ([`SQES_IN_PLACE`]).
pub const SGL_LIST_PAGES: u32 = 2;
/// Bytes of one of the [`SGL_LIST_PAGES`].
pub const SGL_LIST_PAGE_BYTES: u32 = 4096;
/// Bytes of the page of a place that has responses and SQEs.
pub const PLACE_RESPONSE_BYTES: u32 = SQES_IN_PLACE_AT + SQES_IN_PLACE * SQE_BYTES;
/// A buffer of each queue's own, in bytes, for a command that finds no other: a read of as much as
/// a write brings in its capsule.
pub const SPARE_BYTES: u32 = IN_CAPSULE_BYTES;

/// Command slots of a queue of `entries`.
#[must_use]
pub const fn slots(entries: u16) -> u16 {
    entries * SLOTS_PER_ENTRY + UNSIGNALED_MAX
}

/// Work requests of the send queue for a queue of `entries`: data and response of every slot, and
/// one list of descriptors beyond that. Commands with lists wait until there is room for theirs.
#[must_use]
pub const fn send_wrs(entries: u16) -> u32 {
    2 * slots(entries) as u32 + SGL_DESCRIPTORS_MAX
}

/// Completions that a queue of `entries` can have waiting: one per receive and, when its connection
/// breaks, one per work request, signaled or not.
#[must_use]
pub const fn completions(entries: u16) -> u32 {
    entries as u32 + send_wrs(entries)
}

/// Completions that a discovery controller's queue of `entries` can have waiting beyond those of
/// its place: of its other receives and responses, and of the one Admin command at a time whose
/// data is being sent.
#[must_use]
pub const fn discovery_completions(entries: u16) -> u32 {
    let receives_and_responses = entries as u32 + slots(entries) as u32;
    (receives_and_responses + SGL_DESCRIPTORS_MAX + 1).saturating_sub(STRANGER_COMPLETIONS)
}

/// Completions of one reactor and device for `receives` receives, in queues as small as hosts make
/// them, and for all discovery controllers that a target may have.
#[must_use]
pub const fn cq_depth(receives: u32) -> u32 {
    receives.div_ceil(ADMIN_QUEUE_ENTRIES as u32) * completions(ADMIN_QUEUE_ENTRIES)
        + DISCOVERY_CONTROLLERS * discovery_completions(ADMIN_QUEUE_ENTRIES)
}

const _: () = {
    assert!(RECEIVES_MAX * SQE_BYTES <= 4 << 20);
    assert!(SQES_IN_PLACE * SGL_LIST_BYTES <= SGL_LIST_PAGES * SGL_LIST_PAGE_BYTES);
    // A discovery controller's Admin queue keeps the page of its responses, with a receive for each
    // SQE, and sends data from the page that its Connect's data came to. Other Admin queues send it
    // from their spare buffer.
    assert!(PLACE_RESPONSE_BYTES <= 4096 && ADMIN_PIECE_BYTES <= 4096);
    assert!(ADMIN_PIECE_BYTES <= SPARE_BYTES);
};
