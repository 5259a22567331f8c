//! The connection manager, shaped like librdmacm.

use std::any::Any;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{OwnedFd, RawFd};
use std::rc::Rc;

use super::error::{CmError, RdmaError};
use super::memory::ProtectionDomain;
use super::queue::{Device, QpConfig, QueuePair};

/// Most private data any transport carries, in bytes (`struct rdma_conn_param`: a `u8` length).
pub const PRIVATE_DATA_MAX: usize = 255;

/// Names a listener or a connection (`struct rdma_cm_id`) within one [`ConnectionManager`]; never
/// reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CmId(pub u64);

/// Private data of a connection-manager message, held by value: the transport's pointer promises
/// neither alignment nor lifetime. The transport may have padded it with zeros.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PrivateData {
    len: u8,
    bytes: [u8; PRIVATE_DATA_MAX],
}

impl PrivateData {
    /// No private data.
    pub const EMPTY: Self = Self {
        len: 0,
        bytes: [0; PRIVATE_DATA_MAX],
    };

    /// A copy of `bytes`; `None` when longer than [`PRIVATE_DATA_MAX`].
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let mut data = Self::EMPTY;
        data.len = u8::try_from(bytes.len()).ok()?;
        data.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(data)
    }

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl fmt::Debug for PrivateData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrivateData({} bytes)", self.len)
    }
}

/// Parameters of a connect or accept, and what the peer asked for (`struct rdma_conn_param`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectParam {
    /// Private data.
    pub private_data: PrivateData,
    /// RDMA READs from the peer this side serves at once (IRD).
    pub responder_resources: u8,
    /// RDMA READs this side has outstanding at once (ORD).
    pub initiator_depth: u8,
    /// Receiver-not-ready retries; 7 means for ever. No meaning on iWARP.
    pub rnr_retry_count: u8,
}

/// Why a connect was refused by the other side or on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectReason {
    /// The peer's program refused; the private data says why.
    Consumer,
    /// Nothing listens at the address.
    NoListener,
    /// The peer does not speak this protocol or version.
    Protocol,
    /// Another reason of the transport.
    Other {
        /// Its code (`rdma_cm_event.status`).
        code: i32,
        /// What the code means.
        words: &'static str,
    },
}

/// What happened to an id (`enum rdma_cm_event_type`).
#[derive(Clone, Debug)]
pub enum CmEventKind {
    /// Address and route are resolved: [`ConnectionManager::device`] has the device, and a QP can
    /// be made.
    Resolved,
    /// A peer wants to connect; `id` of the event is the new connection's.
    ConnectRequest {
        /// The listener it came to.
        listener: CmId,
        /// What the peer sent. `responder_resources` is what the peer serves: the bound for this
        /// side's `initiator_depth`, and the other way round.
        param: ConnectParam,
    },
    /// The connection is established. On the connecting side `param` is what the peer accepted
    /// with: the negotiated depths, seen from this side.
    Established {
        /// The peer's accept.
        param: ConnectParam,
    },
    /// The peer refused.
    Rejected {
        /// Why.
        reason: RejectReason,
        /// What the peer's program sent with it.
        private_data: PrivateData,
    },
    /// Address, route or connection could not be had.
    Failed(CmError),
    /// The connection ended; the queue pair is in the error state.
    Disconnected {
        /// What ended it, in words for the log: which side, and why where that is known.
        cause: String,
        /// Whether the peer broke the rules of the transport, as far as the provider can tell:
        /// `false` with devices that do not say so.
        is_violation: bool,
    },
    /// The device went away, and the connection with it; a listener waits for the device and then
    /// listens again by itself.
    DeviceRemoved,
}

/// A connection-manager event (`struct rdma_cm_event`).
#[derive(Clone, Debug)]
pub struct CmEvent {
    /// The id it is about.
    pub id: CmId,
    /// What happened.
    pub kind: CmEventKind,
}

/// A connection request on its way to another thread's [`ConnectionManager`] of the same provider
/// (rdma_migrate_id(3)). Dropping it refuses the peer.
pub struct MigratedId(
    /// The provider's own state of the request.
    pub Box<dyn Any + Send>,
);

impl fmt::Debug for MigratedId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MigratedId")
    }
}

/// One thread's connection manager (`struct rdma_event_channel`).
///
/// No call blocks. Timeouts are reported as events; `now_us` is monotonic microseconds. (`Any`: as
/// for [`QueuePair`].)
pub trait ConnectionManager: Any {
    /// Listens at `addr` (port 0 picks one). Returns the address that was bound (rdma_create_id(3),
    /// rdma_bind_addr(3), rdma_listen(3)).
    ///
    /// # Errors
    /// Address in use, not of this machine, or no resources.
    fn listen(&mut self, addr: SocketAddr, backlog: u32) -> Result<(CmId, SocketAddr), CmError>;

    /// Goes on at a socket that listens, as an earlier process has left it: peers that have
    /// connected since wait there. Returns its address.
    ///
    /// # Errors
    /// It is none that listens, or this provider has no sockets.
    fn listen_on(&mut self, _socket: OwnedFd) -> Result<(CmId, SocketAddr), CmError> {
        Err(CmError::Invalid("this provider does not listen at sockets"))
    }

    /// The socket of a listener, for a process that goes on at it ([`Self::listen_on`]). It listens
    /// until the last of these is closed. `None` where there is none.
    fn socket_of(&self, _listener: CmId) -> Option<OwnedFd> {
        None
    }

    /// Starts resolving `destination`, from `source` when given (rdma_create_id(3),
    /// rdma_resolve_addr(3), rdma_resolve_route(3)). Leads to [`CmEventKind::Resolved`] or
    /// [`CmEventKind::Failed`] within `timeout_us`.
    ///
    /// # Errors
    /// What can be found at once.
    fn resolve(
        &mut self,
        destination: SocketAddr,
        source: Option<IpAddr>,
        timeout_us: u64,
        now_us: u64,
    ) -> Result<CmId, CmError>;

    /// The device behind a resolved or requested connection (`verbs` of its id). Two ids on one
    /// device get the same `Rc`, so it can be the key of per-device resources.
    fn device(&self, id: CmId) -> Option<Rc<dyn Device>>;

    /// Addresses of a connection: local, peer (rdma_get_local_addr(3), rdma_get_peer_addr(3)).
    fn addresses(&self, id: CmId) -> Option<(SocketAddr, SocketAddr)>;

    /// Makes the queue pair of a resolved or requested connection (rdma_create_qp(3)).
    ///
    /// # Errors
    /// Unknown id, or no resources.
    fn create_qp(
        &mut self,
        id: CmId,
        pd: &Rc<dyn ProtectionDomain>,
        config: &QpConfig,
    ) -> Result<Box<dyn QueuePair>, RdmaError>;

    /// Connects (rdma_connect(3)). Leads to `Established`, `Rejected` or `Failed` within
    /// `timeout_us`.
    ///
    /// # Errors
    /// Unknown id, no queue pair, or private data too long for the transport.
    fn connect(
        &mut self,
        id: CmId,
        param: &ConnectParam,
        timeout_us: u64,
        now_us: u64,
    ) -> Result<(), CmError>;

    /// Accepts a connection request (rdma_accept(3)). Leads to `Established` or
    /// `Failed`/`Disconnected`.
    ///
    /// # Errors
    /// Unknown id, no queue pair, or the peer has gone.
    fn accept(&mut self, id: CmId, param: &ConnectParam) -> Result<(), CmError>;

    /// Refuses a connection request (rdma_reject(3)) and forgets the id.
    fn reject(&mut self, id: CmId, private_data: &PrivateData);

    /// Ends a connection (rdma_disconnect(3)): the queue pair goes to the error state, everything
    /// outstanding is flushed, and `Disconnected` follows on both sides.
    fn disconnect(&mut self, id: CmId);

    /// Aborts a connection: as [`ConnectionManager::disconnect`], but without an orderly end. What
    /// was posted and has not left this side, whole or in part, never does: no kernel goes on
    /// sending it, and no socket lingers. What has left may still arrive. To be called before the
    /// queue pair is dropped, which is an orderly end.
    ///
    /// A connection that has ended and still lingers ends at once. A device in hardware or in the
    /// kernel is told to stop (ibv_modify_qp(3), to `IBV_QPS_ERR`); siw then leaves to TCP what TCP
    /// has.
    fn abort(&mut self, id: CmId);

    /// Forgets an id (listener or connection; rdma_destroy_id(3)). The queue pair must have been
    /// dropped before.
    fn destroy(&mut self, id: CmId);

    /// Takes a connection request out of this manager for another thread's (rdma_migrate_id(3)).
    ///
    /// # Errors
    /// Unknown id, or one that already has a queue pair.
    fn migrate(&mut self, id: CmId) -> Result<MigratedId, CmError>;

    /// Takes over a request that another thread's manager of the same provider gave away
    /// (rdma_migrate_id(3)).
    ///
    /// # Errors
    /// From another provider, or the peer has gone.
    fn adopt(&mut self, id: MigratedId) -> Result<CmId, CmError>;

    /// The next event, if any (rdma_get_cm_event(3), rdma_ack_cm_event(3)).
    fn poll(&mut self, now_us: u64) -> Option<CmEvent>;

    /// As [`CompletionQueue::arm`](super::CompletionQueue::arm), for events.
    #[must_use = "waiting when something is ready loses it until the next wake-up"]
    fn arm(&mut self) -> bool;

    /// Becomes readable after [`ConnectionManager::arm`] when there is something to poll (`fd` of
    /// rdma_create_event_channel(3)).
    fn fd(&self) -> RawFd;

    /// When `poll` must be called next even if the descriptor is not readable: timeouts are given
    /// in the calls above, and librdmacm has none for a connect.
    fn next_deadline_us(&self) -> Option<u64>;
}
