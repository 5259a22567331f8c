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
/// Receives of a connection that is no queue yet: one for its Connect, and one that finds out
/// whether more is sent.
pub const STRANGER_RECEIVES: u32 = 2;
/// Completions that one poll of a device's queues takes, so that timers and the mailbox get theirs.
pub const COMPLETIONS_PER_TURN: usize = 128;
