//! The host's side of queues: what all wires have in common.
//!
//! A wire has the queues of one association, by QID. A queue sends command capsules, offers the
//! memory of their data to the controller and takes responses. The memory stays in its lease until
//! it is revoked: with the response, with [`HostEvent::Revoked`], or when the queues are closed.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;

use capstan_memory::Buffer;
use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::sqe::Sqe;
use capstan_nvme_proto::tcp::command::ADMIN_IN_CAPSULE_BYTES;
use capstan_nvme_proto::tcp::setup::Digests;
use capstan_rdma::contract::{
    CmError, ConnectionManager, DeviceAttributes, PostError, PrivateData, RKey, RejectReason,
};

use crate::{rdma, tcp};

/// The connection of one queue to its controller.
#[derive(Clone, Debug)]
pub struct OpenQueue {
    /// Its identifier.
    pub qid: u16,
    /// Its entries: one more than commands are outstanding at most.
    pub entries: u16,
    /// Whether its Connect is to leave SQ flow control on. Over NVMe/TCP a controller may let the
    /// last data of a read stand for its response where it is not.
    pub flow_control: bool,
    /// The controller's address.
    pub destination: SocketAddr,
    /// The address of this side, when it matters.
    pub source: Option<IpAddr>,
    /// How long each step of connecting may take, in microseconds.
    pub timeout_us: u64,
    /// What RDMA sends with the connection request; of no use to other wires.
    pub private_data: PrivateData,
}

/// Bytes of a lease.
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    /// The lease.
    pub buffer: &'a Buffer,
    /// Offset of the first byte in the lease.
    pub offset_bytes: u32,
    /// How many bytes.
    pub len_bytes: u32,
}

/// The data of a command. The lease is to stay where it is until the memory has been revoked.
#[derive(Clone, Copy, Debug)]
pub enum Offer<'a> {
    /// None.
    None,
    /// To the controller, behind the SQE.
    InCapsule(Span<'a>),
    /// To the controller, when it asks for it.
    ToController(Span<'a>),
    /// From the controller.
    FromController(Span<'a>),
}

/// A response, and what the wire knows of the memory of its command.
#[derive(Clone, Copy, Debug)]
pub struct Response {
    /// The completion, as the controller sent it: its CID may be anything.
    pub cqe: Cqe,
    /// Its data came, and did not fit its digest.
    pub is_corrupt: bool,
    /// The key that the controller has closed.
    pub(crate) invalidated: Option<RKey>,
}

/// What happens on a queue of the host's side.
#[derive(Debug)]
pub enum HostEvent {
    /// The connection is made, with what the controller sent along over RDMA: Connect may be sent.
    Connected(Option<Box<PrivateData>>),
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
    /// Over NVMe/TCP an ICResp came that breaks the rules, in this way.
    BadIcResp(String),
    /// Over NVMe/TCP no ICResp came: the controller sent something else, or ended it.
    NoIcResp {
        /// Why.
        why: String,
        /// The other side has closed it without having sent anything, as what does not speak
        /// NVMe/TCP may do.
        is_mute: bool,
    },
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
    /// The queue refused it.
    #[error("a command was not taken: {0}")]
    Refused(&'static str),
}

/// How often each end closed the memory window of a command that was answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct WindowsClosed {
    /// By the controller, with SEND_WITH_INV.
    pub by_controller: u64,
    /// By this host.
    pub by_host: u64,
}

/// The transport over which an association reaches its controller.
pub enum HostTransport {
    /// RDMA, through this connection manager.
    Rdma(Box<dyn ConnectionManager>),
    /// NVMe/TCP, with these digests where the controller has them.
    Tcp(Digests),
}

/// The queues of one association over their wire.
pub enum HostWire {
    /// NVMe/RDMA.
    Rdma(Box<rdma::host::RdmaHostWire>),
    /// NVMe/TCP.
    Tcp(Box<tcp::host_wire::TcpHostWire>),
}

/// What is done over either wire.
macro_rules! either {
    ($wire:expr, $inner:ident => $done:expr) => {
        match $wire {
            HostWire::Rdma($inner) => $done,
            HostWire::Tcp($inner) => $done,
        }
    };
}

impl HostWire {
    /// Makes the wire over `transport`.
    ///
    /// # Errors
    /// This side lacks something.
    pub fn new(
        transport: HostTransport,
        settings: rdma::host::RdmaHostSettings,
    ) -> Result<Self, OpenError> {
        Ok(match transport {
            HostTransport::Rdma(cm) => {
                Self::Rdma(Box::new(rdma::host::RdmaHostWire::new(cm, settings)?))
            }
            HostTransport::Tcp(digests) => {
                Self::Tcp(Box::new(tcp::host_wire::TcpHostWire::new(digests)?))
            }
        })
    }

    /// Begins to connect a queue, one at a time. Leads to [`HostEvent::Connected`],
    /// [`HostEvent::Rejected`] or [`HostEvent::OpenFailed`].
    ///
    /// # Errors
    /// It could not be begun.
    pub fn open(&mut self, queue: OpenQueue, now_us: u64) -> Result<(), OpenError> {
        either!(self, wire => wire.open(queue, now_us))
    }

    /// The digests that all connected queues have; `None` while there is no connection, and over
    /// RDMA.
    #[must_use]
    pub fn digests(&self) -> Option<Digests> {
        match self {
            Self::Rdma(_) => None,
            Self::Tcp(wire) => wire.digests(),
        }
    }

    /// What the RDMA device can do; `None` while there is no connection, and over NVMe/TCP.
    #[must_use]
    pub fn device_attributes(&self) -> Option<&DeviceAttributes> {
        match self {
            Self::Rdma(wire) => wire.device_attributes(),
            Self::Tcp(_) => None,
        }
    }

    /// Whether shared memory carries the queues; `false` while there is no connection, and over
    /// NVMe/TCP.
    #[must_use]
    pub fn shares_memory(&self) -> bool {
        match self {
            Self::Rdma(wire) => wire.shares_memory(),
            Self::Tcp(_) => false,
        }
    }

    /// What closed the memory windows of commands so far; NVMe/TCP has none.
    #[must_use]
    pub fn windows_closed(&self) -> WindowsClosed {
        match self {
            Self::Rdma(wire) => wire.windows_closed(),
            Self::Tcp(_) => WindowsClosed::default(),
        }
    }

    /// Whether capsules of I/O can carry data, as far as the controller takes it.
    #[must_use]
    #[inline]
    pub fn takes_in_capsule(&self) -> bool {
        match self {
            Self::Rdma(wire) => wire.takes_in_capsule(),
            Self::Tcp(_) => true,
        }
    }

    /// How much data to the controller an Admin or Fabrics command has in its capsule, in bytes.
    /// Over NVMe/TCP every controller takes so much there, and Linux sends no other way.
    #[must_use]
    pub fn admin_in_capsule_bytes(&self) -> u32 {
        match self {
            Self::Rdma(_) => 0,
            Self::Tcp(_) => ADMIN_IN_CAPSULE_BYTES,
        }
    }

    /// Whether data that fits the capsule is always to go there. Linux's target over NVMe/TCP waits
    /// for it there when it refuses a command, whatever the SGL says.
    #[must_use]
    pub fn needs_in_capsule(&self) -> bool {
        matches!(self, Self::Tcp(_))
    }

    /// How many queues are connected.
    #[must_use]
    pub fn connections(&self) -> usize {
        either!(self, wire => wire.connections())
    }

    /// Whether a queue takes another command now.
    #[must_use]
    #[inline]
    pub fn has_room(&self, qid: u16) -> bool {
        either!(self, wire => wire.has_room(qid))
    }

    /// Sends a command, whose data pointer the wire fills in, in `slot` of its queue: one less than
    /// the entries, each until its memory is back. The low bits of its CID are the slot. It leaves
    /// with [`HostWire::flush`].
    ///
    /// # Errors
    /// The queue is to be closed.
    #[inline]
    pub fn send(
        &mut self,
        qid: u16,
        slot: u16,
        sqe: &mut Sqe,
        offer: Offer<'_>,
    ) -> Result<(), SendError> {
        match self {
            Self::Rdma(wire) => wire.send(qid, slot, sqe, offer),
            Self::Tcp(wire) => wire.send(qid, sqe, offer),
        }
    }

    /// `response` is that of the command in `slot`. Whether its memory is back; where it is not,
    /// [`HostEvent::Revoked`] follows.
    ///
    /// # Errors
    /// The queue is to be closed.
    #[inline]
    pub fn answered(
        &mut self,
        qid: u16,
        slot: u16,
        response: &Response,
    ) -> Result<bool, SendError> {
        match self {
            Self::Rdma(wire) => wire.answered(qid, slot, response),
            Self::Tcp(_) => Ok(true),
        }
    }

    /// Sends everything that was staged or posted.
    #[inline]
    pub fn flush(&mut self) {
        either!(self, wire => wire.flush());
    }

    /// Takes what has happened to commands, within the budget of a turn. Whether anything has.
    #[inline]
    pub fn poll(&mut self, now_us: u64, events: &mut Vec<(u16, HostEvent)>) -> bool {
        either!(self, wire => wire.poll(now_us, events))
    }

    /// Takes what has happened to connections. Whether anything has.
    pub fn poll_connections(&mut self, now_us: u64, events: &mut Vec<(u16, HostEvent)>) -> bool {
        either!(self, wire => wire.poll_connections(now_us, events))
    }

    /// Whether [`HostWire::poll_connections`] is to be called in each turn.
    #[must_use]
    pub fn awaits_cause(&self) -> bool {
        match self {
            Self::Rdma(wire) => wire.awaits_cause(),
            Self::Tcp(_) => false,
        }
    }

    /// Closes every queue, and gives up the one that is being connected. Nothing of them reaches
    /// memory any more when this returns, and no event of theirs follows.
    ///
    /// Unless it is an `orderly` end, the connections are given up first: what has not left is not
    /// sent any more.
    pub fn close(&mut self, orderly: bool) {
        either!(self, wire => wire.close(orderly));
    }

    /// Prepares to sleep: adds what to wait for. True where there is something to take.
    pub fn arm(&mut self, fds: &mut Vec<RawFd>) -> bool {
        either!(self, wire => wire.arm(fds))
    }

    /// When to poll even if every descriptor stays silent.
    #[must_use]
    pub fn next_deadline_us(&self) -> Option<u64> {
        either!(self, wire => wire.next_deadline_us())
    }
}
