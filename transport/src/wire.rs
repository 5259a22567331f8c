//! A wire of either transport, as its user sees it.

use std::os::fd::RawFd;

use crate::queue::{Event, Queue, QueueId, Queues};
use crate::{rdma, tcp};

/// A wire of one reactor. It is polled once per turn, and then asked for one event after the other.
pub enum Wire<'a> {
    /// The queues on one RDMA device.
    Rdma(&'a mut rdma::RdmaWire),
    /// The sockets of NVMe/TCP.
    Tcp(&'a mut tcp::wire::TcpWire),
}

impl Wire<'_> {
    /// Takes what has happened since the last poll, up to a budget; data that came in place must
    /// have been taken by then. Returns how many completions that is, or queues that got something.
    pub fn poll(&mut self, queues: &mut impl Queues<Queue>, now_us: u64) -> u32 {
        match self {
            Self::Rdma(wire) => wire.poll(&mut OverRdma(queues)),
            Self::Tcp(wire) => wire.poll(&mut OverTcp(queues), now_us),
        }
    }

    /// The next event of what was polled.
    #[inline]
    pub fn next_event(&mut self, queues: &mut impl Queues<Queue>) -> Option<(QueueId, Event)> {
        match self {
            Self::Rdma(wire) => wire.next_event(&mut OverRdma(queues)),
            Self::Tcp(wire) => wire.next_event(&mut OverTcp(queues)),
        }
    }

    /// The end of a turn: hands everything that its queues have to send to the device or to the
    /// sockets, queue by queue.
    pub fn flush(&mut self, queues: &mut impl Queues<Queue>) {
        match self {
            Self::Rdma(wire) => wire.flush(&mut OverRdma(queues)),
            Self::Tcp(wire) => wire.flush(&mut OverTcp(queues)),
        }
    }

    /// Before waiting at [`Wire::fd`]. `true` when there is something to poll already.
    #[must_use = "waiting when something is ready loses it until the next wake-up"]
    pub fn arm(&mut self, queues: &mut impl Queues<Queue>) -> bool {
        match self {
            Self::Rdma(wire) => wire.arm(),
            Self::Tcp(wire) => wire.arm(&mut OverTcp(queues)),
        }
    }

    /// Readable, once armed, when there is something to poll.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        match self {
            Self::Rdma(wire) => wire.fd(),
            Self::Tcp(wire) => wire.fd(),
        }
    }
}

/// The queues over NVMe/RDMA, of those of both wires.
struct OverRdma<'a, Q>(&'a mut Q);

impl<Q: Queues<Queue>> Queues<rdma::RdmaQueue> for OverRdma<'_, Q> {
    #[inline]
    fn queue(&mut self, id: QueueId) -> Option<&mut rdma::RdmaQueue> {
        self.0.queue(id)?.rdma()
    }

    #[inline]
    fn flushed(&mut self, id: QueueId) {
        self.0.flushed(id);
    }
}

/// The queues over NVMe/TCP, of those of both wires.
struct OverTcp<'a, Q>(&'a mut Q);

impl<Q: Queues<Queue>> Queues<tcp::wire::TcpQueue> for OverTcp<'_, Q> {
    #[inline]
    fn queue(&mut self, id: QueueId) -> Option<&mut tcp::wire::TcpQueue> {
        self.0.queue(id)?.tcp()
    }

    #[inline]
    fn flushed(&mut self, id: QueueId) {
        self.0.flushed(id);
    }
}
