//! The contract between Capstan and an RDMA provider: what libibverbs and librdmacm have. Each call
//! says which of theirs it is, by its manual page; what a provider has beyond them is in
//! [`direct`](crate::direct).
//!
//! From beginning to end: a [`ConnectionManager`] listens or resolves; a [`CmId`] names one
//! connection; its [`Device`] gives a [`ProtectionDomain`] and a [`CompletionQueue`]; memory is
//! registered ([`MemoryRegion`]); a [`QueuePair`] is made for the id, receives are posted, then the
//! id is accepted or connected. Work requests are posted, the doorbell is rung once per batch, and
//! completions are polled.
//!
//! Rules every provider keeps and the conformance suite checks:
//! * Receives may be posted before accept or connect. A work request belongs to the provider from
//!   `post_*` until its completion has been polled, or, when it was not signaled, until a later
//!   signaled one of the same queue has; or until the queue pair has been dropped.
//! * An RDMA WRITE is placed at the peer before a Send posted after it completes a receive there.
//! * After an error the queue pair is in the error state and every outstanding work request is
//!   flushed with [`WcStatus::WrFlushError`], after the completion that has the cause.
//! * A completion with an error status carries a valid `wr_id`, `status` and `qp`, nothing else.
//! * Keys and bounds are checked by the provider on every access. A peer that breaks them loses its
//!   connection and touches nothing outside the region.

mod cm;
mod error;
mod memory;
mod queue;
mod work;

pub use cm::{
    CmEvent, CmEventKind, CmId, ConnectParam, ConnectionManager, MigratedId, PRIVATE_DATA_MAX,
    PrivateData, RejectReason,
};
pub use error::{CmError, PostError, RdmaError};
pub use memory::{Access, LKey, MemoryRegion, MemoryWindow, ProtectionDomain, RKey};
pub use queue::{
    CompletionQueue, Device, DeviceAttributes, QpConfig, QpNum, QpState, QueuePair, ReceiveSource,
    SharedReceiveQueue, Transport,
};
pub use work::{Remote, SendOp, SendWr, Sge, WcOpcode, WcStatus, WorkCompletion};
