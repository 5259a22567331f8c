//! The life of a queue of the controller's side, the same over every wire: from a connection with a
//! place among those that are no queue yet to a queue that has what it needs. How it begins and
//! ends is in [`crate::wires`].

use capstan_memory::{Buffer, Pool};
use capstan_nvme_proto::tcp::setup::Digests;

use crate::data::Receive;
use crate::limits::CLOSE_TIMEOUT_US;
use crate::queue::Queue;
use crate::resources::{Memory, NoResources};
use crate::tcp::limits::CLOSE_TIMEOUT_US as CLOSE_TCP_TIMEOUT_US;
use crate::tcp::wire::TcpQueue;

impl Queue {
    /// Whether what the queue is to be came with the request of the connection. Over NVMe/TCP its
    /// Connect says it.
    #[must_use]
    pub fn is_announced(&self) -> bool {
        matches!(self, Self::Rdma(_))
    }

    /// The digests of its PDUs, as the two sides have agreed; NVMe/RDMA has none.
    #[must_use]
    pub fn digests(&self) -> Digests {
        match self {
            Self::Rdma(_) => Digests::empty(),
            Self::Tcp(queue) => queue.digests(),
        }
    }

    /// Whether shared memory carries it, as between two ends on one machine over user-space iWARP.
    #[must_use]
    pub fn shares_memory(&self) -> bool {
        match self {
            Self::Rdma(queue) => queue.shares_memory(),
            Self::Tcp(_) => false,
        }
    }

    /// Whether it has a place among connections that are no queue yet, as its host is not (or not
    /// yet) permitted.
    #[must_use]
    pub fn has_place(&self) -> bool {
        match self {
            Self::Rdma(queue) => queue.has_place(),
            Self::Tcp(queue) => queue.has_place(),
        }
    }

    /// How many receives its wire has for more queues, from `pool`, that of queues.
    #[must_use]
    pub fn receives_left(&self, pool: &Pool) -> usize {
        match self {
            Self::Rdma(queue) => queue.receives_left(pool),
            Self::Tcp(_) => TcpQueue::receives_left(pool),
        }
    }

    /// Its host is permitted: gives it what a queue of `entries` needs instead of its place, before
    /// its first response. Returns its spare buffer, of
    /// [`SPARE_BYTES`](crate::limits::SPARE_BYTES).
    ///
    /// # Errors
    /// What is missing.
    pub fn furnish(&mut self, entries: u16, memory: &Memory) -> Result<Buffer, NoResources> {
        match self {
            Self::Rdma(queue) => queue.furnish(entries, memory),
            Self::Tcp(queue) => queue.furnish(entries, memory),
        }
    }

    /// It is the Admin queue of a discovery controller, of `entries`: it keeps its place. Returns a
    /// page of that for what the controller returns, of
    /// [`ADMIN_PIECE_BYTES`](crate::limits::ADMIN_PIECE_BYTES).
    ///
    /// # Errors
    /// What is missing.
    pub fn keep_place(&mut self, entries: u16, memory: &Memory) -> Result<Buffer, NoResources> {
        match self {
            Self::Rdma(queue) => queue.keep_place(entries, memory),
            Self::Tcp(_) => TcpQueue::keep_place(memory),
        }
    }

    /// Its Connect is accepted, for so many entries and with SQ flow control or without: to be
    /// called before the response.
    pub fn connected(&mut self, entries: u16, flow_control: bool) {
        match self {
            Self::Rdma(_) => {}
            Self::Tcp(queue) => queue.connected(entries, flow_control),
        }
    }

    /// The data that came with its Connect is read: as [`Queue::post_again`], or to the place that
    /// it was part of.
    pub fn give_back_connect_data(&mut self, receive: Receive, buffer: Buffer) {
        match self {
            Self::Rdma(queue) => queue.post_again(receive, buffer),
            Self::Tcp(queue) => queue.give_back_connect_data(buffer),
        }
    }

    /// How long its end may take once its user has ended it, in microseconds.
    #[must_use]
    pub fn close_timeout_us(&self) -> u64 {
        match self {
            Self::Rdma(_) => CLOSE_TIMEOUT_US,
            Self::Tcp(_) => CLOSE_TCP_TIMEOUT_US,
        }
    }
}
