//! Devices and queues.

use std::any::Any;
use std::os::fd::RawFd;
use std::rc::Rc;

use super::error::{PostError, RdmaError};
use super::memory::ProtectionDomain;
use super::work::{SendWr, Sge, WorkCompletion};

/// A queue pair's number within its provider (`qp_num`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QpNum(pub u32);

/// The kind of fabric under a device (`transport_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// InfiniBand or RoCE.
    InfiniBand,
    /// iWARP, in hardware, in the kernel (`siw`) or in this process.
    Iwarp,
    /// In memory, for tests.
    Loopback,
}

/// What a device can do; always queried, never assumed (`struct ibv_device_attr` and
/// `struct ibv_port_attr`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceAttributes {
    /// Name, as `rdma link` shows it.
    pub name: String,
    /// Kind of fabric.
    pub transport: Transport,
    /// Most work requests of one send or receive queue.
    pub qp_wr_max: u32,
    /// Most SGEs of one work request.
    pub sge_max: u32,
    /// Most SGEs of one RDMA READ (1 on some iWARP devices).
    pub sge_rd_max: u32,
    /// Most entries of a completion queue.
    pub cqe_max: u32,
    /// Most receives of a shared receive queue; 0 when it has none.
    pub srq_wr_max: u32,
    /// RDMA READs the device can serve at once per QP (`max_qp_rd_atom`; IRD).
    pub responder_resources_max: u8,
    /// RDMA READs the device can have outstanding per QP (`max_qp_init_rd_atom`; ORD).
    pub initiator_depth_max: u8,
    /// Longest message in bytes.
    pub message_bytes_max: u32,
    /// Whether type 2 memory windows exist.
    pub memory_windows: bool,
    /// Whether SEND_WITH_INV is understood.
    pub send_with_invalidate: bool,
    /// Whether the sink of an RDMA READ needs [`Access::REMOTE_WRITE`](super::Access) (iWARP).
    pub read_sink_needs_remote_write: bool,
    /// Number of its vendor (`vendor_id`); 0 where no device is under the provider.
    pub vendor_id: u32,
}

/// An opened RDMA device.
pub trait Device {
    /// Its capabilities (ibv_query_device(3), ibv_query_port(3)).
    fn attributes(&self) -> &DeviceAttributes;

    /// Whether it is gone (`IBV_EVENT_DEVICE_FATAL` of ibv_get_async_event(3),
    /// `RDMA_CM_EVENT_DEVICE_REMOVAL` of rdma_get_cm_event(3)). The hardware is released when
    /// everything that was made of it has been dropped; a connection made after its return has
    /// another [`Device`].
    fn is_removed(&self) -> bool;

    /// Allocates a protection domain (ibv_alloc_pd(3)).
    ///
    /// # Errors
    /// No resources.
    fn allocate_pd(&self) -> Result<Rc<dyn ProtectionDomain>, RdmaError>;

    /// Creates a completion queue of `depth` entries, with a channel of its own (ibv_create_cq(3),
    /// ibv_create_comp_channel(3)). Its users keep the number of outstanding work requests within
    /// it.
    ///
    /// # Errors
    /// No resources, or more entries than the device has.
    fn create_cq(&self, depth: u32) -> Result<Rc<dyn CompletionQueue>, RdmaError>;
}

/// A completion queue. (`Any`: a provider finds its own type in a [`QpConfig`] by upcasting.)
pub trait CompletionQueue: Any {
    /// Takes up to `out.len()` completions; returns how many (ibv_poll_cq(3)). A software provider
    /// makes progress (sends, receives, places data) inside this call.
    fn poll(&self, out: &mut [WorkCompletion]) -> usize;

    /// Asks for the fd to become readable at the next completion (ibv_req_notify_cq(3), and
    /// ibv_get_cq_event(3) for the last one). `true` when there may be completions already: poll
    /// again instead of waiting.
    #[must_use = "waiting when something is ready loses it until the next wake-up"]
    fn arm(&self) -> bool;

    /// Becomes readable after [`CompletionQueue::arm`] when there is something to poll (`fd` of
    /// ibv_create_comp_channel(3)).
    fn fd(&self) -> RawFd;
}

/// Receives shared by several queue pairs. (`Any`: as for [`CompletionQueue`].)
pub trait SharedReceiveQueue: Any {
    /// Posts a receive (ibv_post_srq_recv(3)).
    ///
    /// # Errors
    /// Queue full, or an SGE outside its region.
    fn post_recv(&self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError>;
}

/// Where a queue pair takes its receives from.
#[derive(Clone)]
pub enum ReceiveSource {
    /// Its own receive queue of this depth.
    Own(u32),
    /// A shared receive queue of the same protection domain.
    Shared(Rc<dyn SharedReceiveQueue>),
}

/// How to make a queue pair (reliable connected; selective signalling): `struct ibv_qp_init_attr`
/// of rdma_create_qp(3).
#[derive(Clone)]
pub struct QpConfig {
    /// Completions of sends.
    pub send_cq: Rc<dyn CompletionQueue>,
    /// Completions of receives; may be the same queue.
    pub recv_cq: Rc<dyn CompletionQueue>,
    /// Most outstanding send work requests.
    pub send_wr_max: u32,
    /// Receives.
    pub receives: ReceiveSource,
    /// Most SGEs of a send work request.
    pub send_sge_max: u32,
    /// Most SGEs of a receive.
    pub recv_sge_max: u32,
    /// Bytes of data that a send work request is to carry itself (`max_inline_data`), which saves a
    /// device an access to memory; a device that has less carries none.
    pub inline_bytes: u32,
}

/// State of a queue pair (`enum ibv_qp_state`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QpState {
    /// Made; receives may be posted.
    Init,
    /// Connected.
    ReadyToSend,
    /// Broken or disconnected; everything outstanding is flushed.
    Error,
}

/// A reliable connected queue pair. Dropping it (ibv_destroy_qp(3)) ends the connection and all
/// access to memory through it before the drop returns; completions not yet polled are lost.
/// (`Any`: a [`Pair`](crate::Pair) finds the provider's own type by upcasting.)
pub trait QueuePair: Any {
    /// Its number, as completions carry it (`qp_num`).
    fn num(&self) -> QpNum;

    /// Its state (ibv_query_qp(3)).
    fn state(&self) -> QpState;

    /// Posts a receive on its own receive queue (ibv_post_recv(3)).
    ///
    /// # Errors
    /// Queue full, an SGE outside its region, or the pair uses a shared receive queue. In the error
    /// state the receive is taken and flushed.
    fn post_recv(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError>;

    /// Adds a send work request to the list that the next [`QueuePair::ring_doorbell`] posts.
    /// Nothing moves until then.
    ///
    /// # Errors
    /// Queue full, too many SGEs, or not connected. Key and bounds errors of the SGEs may be
    /// reported here or by a completion. In the error state the request is taken and flushed.
    fn post_send(&mut self, wr: &SendWr<'_>) -> Result<(), PostError>;

    /// Hands everything posted since the last call to the device, in one go (ibv_post_send(3), of a
    /// list).
    fn ring_doorbell(&mut self);
}
