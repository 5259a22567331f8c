//! Devices and queues.

use std::any::Any;
use std::ops::Range;
use std::os::fd::RawFd;
use std::rc::Rc;
use std::sync::Arc;

use capstan_memory::{RawBytes, Slab};

use super::error::{PostError, RdmaError};
use super::memory::{ProtectionDomain, RKey};
use super::work::{Remote, SendWr, Sge, WorkCompletion};

/// A queue pair's number within its provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QpNum(pub u32);

/// The kind of fabric under a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// InfiniBand or RoCE.
    InfiniBand,
    /// iWARP, in hardware, in the kernel (`siw`) or in this process.
    Iwarp,
    /// In memory, for tests.
    Loopback,
}

/// What a device can do; always queried, never assumed.
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
    /// Whether the kernel of this machine does the device's work on the machine's cores (Soft-RoCE,
    /// `siw`): a thread that spins takes one of them from it.
    pub in_kernel: bool,
}

/// An opened RDMA device.
pub trait Device {
    /// Its capabilities.
    fn attributes(&self) -> &DeviceAttributes;

    /// Whether it is gone. The hardware is released when everything that was made of it has been
    /// dropped; a connection made after its return has another [`Device`].
    fn is_removed(&self) -> bool;

    /// Allocates a protection domain.
    ///
    /// # Errors
    /// No resources.
    fn allocate_pd(&self) -> Result<Rc<dyn ProtectionDomain>, RdmaError>;

    /// Creates a completion queue of `depth` entries. Its users keep the number of outstanding work
    /// requests within it.
    ///
    /// # Errors
    /// No resources, or more entries than the device has.
    fn create_cq(&self, depth: u32) -> Result<Rc<dyn CompletionQueue>, RdmaError>;
}

/// A completion queue. (`Any`: a provider finds its own type in a [`QpConfig`] by upcasting.)
pub trait CompletionQueue: Any {
    /// Takes up to `out.len()` completions; returns how many. A software provider makes progress
    /// (sends, receives, places data) inside this call.
    fn poll(&self, out: &mut [WorkCompletion]) -> usize;

    /// Asks for the fd to become readable at the next completion. `true` when there may be
    /// completions already: poll again instead of waiting.
    #[must_use = "waiting when something is ready loses it until the next wake-up"]
    fn arm(&self) -> bool;

    /// Becomes readable after [`CompletionQueue::arm`] when there is something to poll.
    fn fd(&self) -> RawFd;
}

/// Receives shared by several queue pairs. (`Any`: as for [`CompletionQueue`].)
pub trait SharedReceiveQueue: Any {
    /// Posts a receive.
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

/// How to make a queue pair (reliable connected; selective signalling).
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
}

/// Length of the first bytes of a lent message, which are copied out of the place where it arrived.
pub const LENT_HEAD_BYTES: usize = 64;

/// Calls its argument with the bytes of an RDMA WRITE, piece by piece.
pub type Source<'a> = dyn FnMut(&mut dyn FnMut(&[u8])) + 'a;

/// State of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QpState {
    /// Made; receives may be posted.
    Init,
    /// Connected.
    ReadyToSend,
    /// Broken or disconnected; everything outstanding is flushed.
    Error,
}

/// A reliable connected queue pair. Dropping it ends the connection and all access to memory
/// through it before the drop returns; completions not yet polled are lost.
pub trait QueuePair {
    /// Its number, as completions carry it.
    fn num(&self) -> QpNum;

    /// Its state.
    fn state(&self) -> QpState;

    /// Posts a receive on its own receive queue.
    ///
    /// # Errors
    /// Queue full, an SGE outside its region, or the pair uses a shared receive queue. In the error
    /// state the receive is taken and flushed.
    fn post_recv(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError>;

    /// Queues a send work request. Nothing moves until [`QueuePair::ring_doorbell`].
    ///
    /// # Errors
    /// Queue full, too many SGEs, or not connected. Key and bounds errors of the SGEs may be
    /// reported here or by a completion. In the error state the request is taken and flushed.
    fn post_send(&mut self, wr: &SendWr<'_>) -> Result<(), PostError>;

    /// An RDMA WRITE of bytes that `source` has, registered or not, which has ended when this
    /// returns. It comes after everything posted so far, which is handed to the device; the peer
    /// may see both only with the next [`QueuePair::ring_doorbell`]. `source` is called once with
    /// where to put the bytes, `len_bytes` in all.
    ///
    /// `false`, and nothing is written, where a provider cannot copy right now, or never: the WRITE
    /// is to be posted then.
    fn write_now(&mut self, remote: Remote, len_bytes: u32, source: &mut Source<'_>) -> bool {
        let _ = (remote, len_bytes, source);
        false
    }

    /// An RDMA WRITE of the bytes `range` of `slab`, registered or not, behind everything posted so
    /// far. It takes no work request: the slab stays mapped until the peer has the bytes, which
    /// leave with the next [`QueuePair::ring_doorbell`] or later. Each page is sent as it was at
    /// one moment until then, provided that only the calling thread writes there.
    ///
    /// `false`, and nothing is written, where a provider cannot, now or ever, and when the range is
    /// empty or not inside the slab.
    fn write_in_place(&mut self, remote: Remote, slab: &Arc<Slab>, range: Range<usize>) -> bool {
        let _ = (remote, slab, range);
        false
    }

    /// Whether [`QueuePair::write_in_place`] takes nothing only because the device is full: it does
    /// again when something has left, which makes the descriptor of the completion queues readable
    /// once they are armed.
    fn is_full(&self) -> bool {
        false
    }

    /// A Send of `bytes`, which are copied, behind everything posted so far; with `invalidate` a
    /// Send with Invalidate. It takes no work request and has no completion: it leaves with the
    /// next [`QueuePair::ring_doorbell`] or later.
    ///
    /// `false`, and nothing is sent, where a provider cannot, now or ever: the Send is to be posted
    /// then.
    fn send_now(&mut self, bytes: &[u8], invalidate: Option<RKey>) -> bool {
        let _ = (bytes, invalidate);
        false
    }

    /// Whether, after a [`QueuePair::ring_doorbell`], something that [`QueuePair::write_in_place`]
    /// or [`QueuePair::send_now`] took has not left yet, as far as is known: ending the connection
    /// now would lose it. Where it is so, the completion queue's descriptor becomes readable, once
    /// armed, when more is known.
    fn has_unsent(&self) -> bool {
        false
    }

    /// At the time of the device's last completion: how many work requests and messages were queued
    /// behind the one that completed, which is how many more responses the peer had coming. 0 where
    /// that is not known.
    fn sent_behind(&self) -> u32 {
        0
    }

    /// From now on messages of [`LENT_HEAD_BYTES`] or more may stay where they arrived and take no
    /// receive, though one is reserved for each. Their completions are
    /// [`WcOpcode::RecvLent`](super::WcOpcode), with a number of the message as `wr_id`, for the
    /// other calls. For each of them the program calls [`QueuePair::lent_head`] and, when there are
    /// more bytes, [`QueuePair::take_lent`] until it has taken them, or [`QueuePair::land_lent`].
    /// It does so before it polls a completion queue again: what is left then is copied.
    fn lend_messages(&mut self) {}

    /// The first bytes of a lent message. They end a message that has no more. `None` when no such
    /// message is lent.
    fn lent_head(&mut self, message: u64) -> Option<[u8; LENT_HEAD_BYTES]> {
        let _ = message;
        None
    }

    /// Calls `take` with what follows the head of a lent message; another process may write it
    /// meanwhile. `true` when `take` says that it has what it wants, or will have copied it before
    /// a completion queue is polled or armed again or this queue pair is dropped: until then it may
    /// be read there. That ends the message.
    fn take_lent(&mut self, message: u64, take: &mut dyn FnMut(RawBytes<'_>) -> bool) -> bool {
        let _ = (message, take);
        false
    }

    /// Puts a lent message into a receive after all, head included; returns the `wr_id` of that.
    /// `None` when no such message is lent, or the queue pair has ended and with it its receives.
    fn land_lent(&mut self, message: u64) -> Option<u64> {
        let _ = message;
        None
    }

    /// A mark behind everything of the peer that has arrived here by now, whether or not it has a
    /// completion yet: in a socket, in shared memory, in the device. [`QueuePair::has_passed`] says
    /// when the provider is beyond it.
    fn arrived(&mut self) -> u64 {
        0
    }

    /// Whether every message that had arrived as a whole when [`QueuePair::arrived`] returned
    /// `mark` has its completion in a completion queue, or had one, or never will: a poll that
    /// leaves that queue empty has then returned all of them. A message of which a part was still
    /// on its way is not waited for. Polling brings the provider there, provided that there are
    /// receives.
    fn has_passed(&self, mark: u64) -> bool {
        let _ = mark;
        // What has arrived at a device has its completion.
        true
    }

    /// Work requests after which to ring at the latest, so that the peer can begin, where a
    /// doorbell costs next to nothing. Elsewhere `u32::MAX`: the fewer, the better.
    fn doorbell_interval(&self) -> u32 {
        u32::MAX
    }

    /// Hands everything posted since the last call to the device, in one go.
    fn ring_doorbell(&mut self);
}
