//! Work requests and work completions.

use std::fmt;

use super::memory::{Access, LKey, RKey};
use super::queue::QpNum;

/// A piece of registered local memory (`struct ibv_sge`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sge {
    /// First address.
    pub addr: u64,
    /// Length in bytes.
    pub len_bytes: u32,
    /// Key of the region it lies in.
    pub lkey: LKey,
}

/// Where an RDMA WRITE or READ goes at the peer (`wr.rdma` of `struct ibv_send_wr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Address (tagged offset in iWARP).
    pub addr: u64,
    /// The peer's key.
    pub rkey: RKey,
}

/// What a send work request does (`enum ibv_wr_opcode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOp {
    /// Send into the peer's next receive.
    Send {
        /// Key of the peer to invalidate when the Send is delivered (SEND_WITH_INV).
        invalidate: Option<RKey>,
        /// Raise a solicited event at the peer.
        solicited: bool,
    },
    /// RDMA WRITE of the SGEs to the peer's memory.
    Write(Remote),
    /// RDMA READ of the peer's memory into the SGEs.
    Read(Remote),
    /// Bind a type 2 memory window to `len_bytes` at `addr` of the region `lkey`; from its
    /// completion on (and for work requests posted after it on the same queue) `rkey` is valid.
    ///
    /// Fails with [`WcStatus::MwBindError`] when the window is still bound or of another domain,
    /// the region is not [`Access::MW_BIND`] or of another domain, the range leaves the region, or
    /// remote write is asked for memory without local write.
    BindWindow {
        /// Fresh key from [`MemoryWindow::next_rkey`](super::MemoryWindow::next_rkey).
        rkey: RKey,
        /// Region the window opens on; it must allow [`Access::MW_BIND`].
        lkey: LKey,
        /// First address.
        addr: u64,
        /// Length in bytes.
        len_bytes: u64,
        /// Remote access granted.
        access: Access,
    },
    /// Invalidate a bound window's key: the peer can use it no more once this completes, and the
    /// window can be bound again. A region's key cannot be invalidated by a work request, local or
    /// of the peer; it dies with the region.
    LocalInvalidate(RKey),
}

/// A send work request (`struct ibv_send_wr` of ibv_post_send(3)).
#[derive(Clone, Copy, Debug)]
pub struct SendWr<'a> {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// The operation.
    pub op: SendOp,
    /// Local memory, gathered or scattered in order.
    pub sges: &'a [Sge],
    /// Whether success makes a completion; an error always does.
    pub signaled: bool,
    /// Wait for earlier RDMA READs of this queue before starting.
    pub fence: bool,
}

/// Outcome of a work request, with the names of `enum ibv_wc_status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(
    missing_docs,
    reason = "the names are those of the verbs specification"
)]
pub enum WcStatus {
    Success,
    LocalLengthError,
    LocalQpOperationError,
    LocalProtectionError,
    WrFlushError,
    MwBindError,
    BadResponseError,
    LocalAccessError,
    RemoteInvalidRequestError,
    RemoteAccessError,
    RemoteOperationError,
    RetryExceededError,
    RnrRetryExceededError,
    RemoteAbortedError,
    FatalError,
    ResponseTimeoutError,
    GeneralError,
}

impl fmt::Display for WcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Success => "success",
            Self::LocalLengthError => "local length error (message longer than its receive)",
            Self::LocalQpOperationError => "local QP operation error",
            Self::LocalProtectionError => "local protection error (lkey, bounds or PD)",
            Self::WrFlushError => "work request flushed (connection ended)",
            Self::MwBindError => "memory window bind error",
            Self::BadResponseError => "bad response",
            Self::LocalAccessError => "local access error",
            Self::RemoteInvalidRequestError => "remote invalid request",
            Self::RemoteAccessError => "remote access error (rkey, bounds or access)",
            Self::RemoteOperationError => "remote operation error",
            Self::RetryExceededError => "transport retries exceeded (peer unreachable)",
            Self::RnrRetryExceededError => "receiver-not-ready retries exceeded",
            Self::RemoteAbortedError => "remote aborted",
            Self::FatalError => "fatal error",
            Self::ResponseTimeoutError => "response timeout",
            Self::GeneralError => "general error",
        })
    }
}

/// Which operation completed, with the names of `enum ibv_wc_opcode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(
    missing_docs,
    reason = "the names are those of the verbs specification"
)]
pub enum WcOpcode {
    Send,
    RdmaWrite,
    RdmaRead,
    BindMw,
    LocalInvalidate,
    Recv,
    /// What the provider's own calls say ([`direct`](crate::direct)).
    Driver1,
}

/// A work completion (`struct ibv_wc` of ibv_poll_cq(3)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkCompletion {
    /// The work request's `wr_id`; of `Driver1`, what the provider's own calls say.
    pub wr_id: u64,
    /// The queue pair.
    pub qp: QpNum,
    /// Outcome; when it is an error only `wr_id`, `qp` and `status` are valid.
    pub status: WcStatus,
    /// Operation.
    pub opcode: WcOpcode,
    /// Received bytes (`Recv`, `Driver1`), otherwise zero.
    pub byte_len: u32,
    /// The local key the peer's SEND_WITH_INV invalidated (`Recv`, `Driver1`).
    pub invalidated: Option<RKey>,
}

impl WorkCompletion {
    /// A blank one, to be polled into.
    pub const EMPTY: Self = Self {
        wr_id: 0,
        qp: QpNum(0),
        status: WcStatus::Success,
        opcode: WcOpcode::Send,
        byte_len: 0,
        invalidated: None,
    };
}
