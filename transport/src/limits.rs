//! Bounds of the wires, with the arithmetic behind them.

/// Bytes of a command capsule before its in-capsule data: the SQE.
pub const SQE_BYTES: u32 = 64;
/// Bytes of a response capsule.
pub const CQE_BYTES: u32 = 16;
/// Data that a work request carries itself where the device can: a command capsule without data; of
/// the controller, a response, or data of that length.
pub const INLINE_BYTES: u32 = SQE_BYTES;
/// In-capsule data a host may send, in bytes: two pages, so that it lands page-aligned in a buffer
/// of its own and goes to disk without a copy.
pub const IN_CAPSULE_BYTES: u32 = 8192;
/// Keyed SGL descriptors of one command (MSDBD).
pub const SGL_DESCRIPTORS_MAX: u32 = 16;
/// Bytes of the longest list of SGL descriptors.
pub const SGL_LIST_BYTES: u32 = SGL_DESCRIPTORS_MAX * 16;
/// Responses in a row whose Send is not signaled: completions of Sends cost the device, the memory
/// and the processor as much as those of receives. The next one is signaled; its completion covers
/// those before it.
pub const UNSIGNALED_MAX: u16 = 7;
/// Receives of a connection that is no queue yet: one for its Connect, and one that finds out
/// whether more is sent.
pub const STRANGER_RECEIVES: u32 = 2;
/// Completions that one poll of a device's queues takes, so that timers and the mailbox get theirs.
pub const COMPLETIONS_PER_TURN: usize = 128;
