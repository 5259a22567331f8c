//! The host's side of queues: what all wires have in common.
//!
//! A wire has the queues of one association, by QID. A queue sends command capsules, offers the
//! memory of their data to the controller and takes responses. The memory stays in its lease until
//! it is revoked: with the response, with [`HostEvent::Revoked`], or when the queues are closed.

use std::net::{IpAddr, SocketAddr};

use capstan_memory::{Buffer, SlabId};
use capstan_nvme_proto::cqe::Cqe;
use capstan_rdma::contract::{CmError, PostError, PrivateData, RKey, RejectReason};

/// The way of one queue to its controller.
#[derive(Clone, Debug)]
pub struct OpenQueue {
    /// Its identifier.
    pub qid: u16,
    /// Its entries: one more than commands are outstanding at most.
    pub entries: u16,
    /// The controller's address.
    pub destination: SocketAddr,
    /// The address of this side, when it matters.
    pub source: Option<IpAddr>,
    /// How long each step of connecting may take, in microseconds.
    pub timeout_us: u64,
    /// What RDMA sends with the connection request; of no use to other wires.
    pub private_data: PrivateData,
}

/// Where bytes of a lease are. It borrows nothing: what keeps the lease where it is until the
/// memory has been revoked is up to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The slab of the lease.
    pub slab: SlabId,
    /// The first byte.
    pub addr: u64,
    /// So many.
    pub len_bytes: u32,
}

impl Span {
    /// `len_bytes` from `offset_bytes` on of `buffer`, or what there is of them.
    #[must_use]
    pub fn of(buffer: &Buffer, offset_bytes: u32, len_bytes: u32) -> Self {
        let offset_bytes = offset_bytes.min(buffer.len_bytes());
        Self {
            slab: buffer.slab_id(),
            addr: buffer.addr() + u64::from(offset_bytes),
            len_bytes: len_bytes.min(buffer.len_bytes() - offset_bytes),
        }
    }
}

/// The data of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    /// None.
    None,
    /// To the controller, behind the SQE.
    InCapsule(Span),
    /// To the controller, when it asks for it.
    ToController(Span),
    /// From the controller.
    FromController(Span),
}

/// A response, and what the wire knows of the memory of its command.
#[derive(Clone, Copy, Debug)]
pub struct Response {
    /// The completion, as the controller sent it: its CID may be anything.
    pub cqe: Cqe,
    /// The key that the controller has closed.
    pub(crate) invalidated: Option<RKey>,
}

/// What happens on a queue of the host's side.
#[derive(Debug)]
pub enum HostEvent {
    /// The connection is made, with what the controller sent along: Connect may be sent.
    Connected(Box<PrivateData>),
    /// The controller refused the connection.
    Rejected(RejectReason, Box<PrivateData>),
    /// There is no connection for another reason.
    OpenFailed(Box<OpenError>),
    /// A response has come. When it is that of an outstanding command, `answered` of the wire is
    /// called with it.
    Response(Response),
    /// The memory of an answered command, by its slot, is back.
    Revoked(u16),
    /// The queue takes nothing any more: all are to be closed.
    Ended(Box<HostEnd>),
}

/// Why there is no connection.
#[derive(Clone, Debug)]
pub enum OpenError {
    /// This side lacks something.
    Resources {
        /// What.
        what: &'static str,
        /// The queue, and the system's words.
        message: String,
    },
    /// The network, the system, or the other side did not do its part.
    Connection(CmError),
    /// It was made and ended before it could be used, for this reason.
    Disconnected(String),
}

/// Why a queue has ended.
#[derive(Clone, Debug)]
pub enum HostEnd {
    /// One side or the network ended the connection; the text says which, and why.
    Disconnected(String),
    /// The connection failed.
    Failed(CmError),
    /// The controller broke the rules of the wire.
    Violation(String),
}

/// A queue did not take what it should send: it is to be closed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SendError {
    /// There is no such queue or slot.
    #[error("the queue is not connected")]
    NotConnected,
    /// The queue pair refused it.
    #[error("a work request was not taken: {0}")]
    Post(#[from] PostError),
}

/// How often each end closed the memory window of a command that was answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct WindowsClosed {
    /// By the controller, with SEND_WITH_INV.
    pub by_controller: u64,
    /// By this host.
    pub by_host: u64,
}
