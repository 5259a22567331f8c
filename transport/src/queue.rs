//! A queue of the controller's side: its names, its events, and its operations over each wire.

use std::fmt;

use capstan_memory::{Buffer, RawBytes};
use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::error::CommandError;
use capstan_nvme_proto::sqe::Sqe;
use capstan_nvme_proto::transfer::DataTransfer;

use crate::data::{CapsuleData, Full, HostMemory, InPlace, Landed, Pushed, Receive, Source};
use crate::overdue::Overdue;
use crate::tcp::controller::Goes;
use crate::{rdma, tcp};

/// A queue of one wire of one reactor: an Admin queue or an I/O queue, and the connection under it.
/// Its user may use it again once the queue has [quiesced](Event::Quiesced) and was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QueueId(pub u32);

/// A command of one queue, as its user calls it; it comes back in the events of that command. It is
/// the index of a slot, of which a queue has somewhat more than entries, and no CID, which is the
/// host's to choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag(pub u16);

/// The queues of one wire, by the names that it has for them.
pub trait Queues<Q> {
    /// The queue of that name, while there is one.
    fn queue(&mut self, id: QueueId) -> Option<&mut Q>;

    /// What the queue of that name was to send has been handed to its device or socket.
    #[inline]
    fn flushed(&mut self, id: QueueId) {
        let _ = id;
    }
}

/// A command capsule, as it came.
#[derive(Debug)]
pub struct Capsule {
    /// The command.
    pub sqe: Sqe,
    /// What came behind it.
    pub data: CapsuleData,
    /// As [`Pulled::intact`].
    pub intact: bool,
}

/// A pull whose data has all come.
#[derive(Debug)]
pub struct Pulled {
    /// The command.
    pub tag: Tag,
    /// Its sink, which belonged to the queue until now.
    pub sink: Buffer,
    /// False where the data does not fit its digest: the command is to fail with Transient
    /// Transport Error (NVMe over TCP Transport 1.1, section 3.3.1.1).
    pub intact: bool,
}

/// What becomes of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Responded {
    /// The wire has it: the command is over, and no event follows.
    Released,
    /// It is on its way: [`Event::Released`] follows.
    Leaving,
}

/// What has happened on a queue of the controller's side. A wire is polled once per turn, and then
/// asked for one event after the other.
#[derive(Debug)]
pub enum Event {
    /// A command capsule has come.
    Capsule(Capsule),
    /// All data of a pull has come.
    Pulled(Pulled),
    /// The source of a push, or of a piece of one, that has left before its response; or the sink
    /// of a pull that the end of its queue cut short. It belonged to the queue until now.
    Returned(Tag, Buffer),
    /// Responses have left, and what was pushed before them: [`Queue::poll_released`] says of which
    /// commands, and has the buffers that have not come back before.
    Released,
    /// There is room again after a [`Full`] that said so.
    Room,
    /// The queue takes nothing any more. What has arrived may still land in sinks of pulls.
    Ended(EndReason),
    /// Everything that had arrived when this fence was set has come before this event.
    Fenced(FenceNumber),
    /// The last event of a queue that was ended: nothing can land in its buffers any more.
    Quiesced,
}

/// Names a fence of a wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FenceNumber(pub u64);

/// How a side ends its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// At once: what has not left is not sent.
    Now,
    /// When everything that was pushed and responded has left.
    Drained,
}

/// Why a queue has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// The host ended the connection in order.
    Host,
    /// This side ended it.
    Controller,
    /// The host sent what its wire does not allow; the text says what, and what was expected.
    Violation(String),
    /// The network or the host is gone; the text is the wire's own.
    Lost(String),
    /// The device under the queue was removed.
    DeviceRemoved,
}

impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("closed by the peer"),
            Self::Controller => f.write_str("this side disconnected"),
            Self::Violation(what) => write!(f, "the host broke the rules of its transport: {what}"),
            Self::Lost(why) => write!(f, "the connection was lost: {why}"),
            Self::DeviceRemoved => f.write_str("the device was removed"),
        }
    }
}

/// A queue of the controller's side, over its wire.
#[expect(
    clippy::large_enum_variant,
    reason = "a queue over RDMA lies within its connection, so that its commands load one pointer less"
)]
pub enum Queue {
    /// NVMe/RDMA.
    Rdma(rdma::RdmaQueue),
    /// NVMe/TCP.
    Tcp(Box<tcp::wire::TcpQueue>),
}

impl Queue {
    /// The queue, where it is over NVMe/RDMA.
    #[inline]
    pub fn rdma(&mut self) -> Option<&mut rdma::RdmaQueue> {
        match self {
            Self::Rdma(queue) => Some(queue),
            Self::Tcp(_) => None,
        }
    }

    /// The queue, where it is over NVMe/TCP.
    #[inline]
    pub fn tcp(&mut self) -> Option<&mut tcp::wire::TcpQueue> {
        match self {
            Self::Tcp(queue) => Some(queue),
            Self::Rdma(_) => None,
        }
    }

    /// The memory of the host in which the data of the command `sqe` is or goes: `transfer` is what
    /// the command needs, and `data` what came behind `sqe`, of which that of the command is left
    /// where it has any there. It is exactly as long as the command needs.
    ///
    /// # Errors
    /// The status and the location of what the transport does not allow in an SGL.
    #[inline]
    pub fn host_memory(
        &self,
        sqe: &Sqe,
        transfer: DataTransfer,
        data: &mut CapsuleData,
    ) -> Result<HostMemory, CommandError> {
        match self {
            Self::Rdma(_) => rdma::host_memory(sqe, transfer, data),
            Self::Tcp(_) => tcp::host_memory(sqe, transfer, data),
        }
    }

    /// Work requests that data of a command in `host` takes beyond one.
    #[must_use]
    #[inline]
    pub fn extra_requests(&self, host: &HostMemory) -> u32 {
        let buffers = host.keyed().len().saturating_sub(1);
        u32::try_from(buffers).unwrap_or(u32::MAX)
    }

    /// Calls `take` with in-capsule data where it arrived, as [`rdma::RdmaQueue::consume`].
    /// NVMe/TCP leaves none in place.
    #[inline]
    pub fn consume(&mut self, data: InPlace, take: impl FnMut(RawBytes<'_>) -> bool) -> bool {
        match self {
            Self::Rdma(queue) => queue.consume(data, take),
            Self::Tcp(_) => false,
        }
    }

    /// Puts in-capsule data where it can stay, as [`rdma::RdmaQueue::land`].
    pub fn land(&mut self, data: InPlace) -> Option<Landed> {
        self.rdma()?.land(data)
    }

    /// In-capsule data is not needed any more.
    pub fn give_back(&mut self, data: CapsuleData) {
        match self {
            Self::Rdma(queue) => queue.give_back(data),
            Self::Tcp(queue) => queue.give_back(data),
        }
    }

    /// As [`Queue::give_back`], of data that was split into its receive and its buffer.
    pub fn post_again(&mut self, receive: Receive, buffer: Buffer) {
        match self {
            Self::Rdma(queue) => queue.post_again(receive, buffer),
            Self::Tcp(queue) => queue.with(|queue| queue.give(buffer)),
        }
    }

    /// Pulls `len_bytes` from the host into `sink`, which belongs to the queue until
    /// [`Event::Pulled`]. Where it cannot be asked for, [`Event::Ended`] follows.
    pub fn pull(&mut self, tag: Tag, from: &HostMemory, sink: Buffer, len_bytes: u32) {
        match self {
            Self::Rdma(queue) => queue.pull(tag, from, sink, len_bytes),
            Self::Tcp(queue) => queue.pull(tag, from, sink, len_bytes),
        }
    }

    /// Pushes `source` to the host; the response of the command follows it. A buffer is always
    /// taken: where it cannot be sent, [`Event::Ended`] follows.
    ///
    /// # Errors
    /// The source, where the wire takes nothing now or not this kind: then it is to be tried as
    /// another kind, in the end as a buffer.
    // Inlined, the kind of source that a caller has is told apart when it is compiled, and a source
    // that comes back is not moved through memory.
    #[inline(always)]
    pub fn push<'s>(
        &mut self,
        to: &HostMemory,
        source: Source<'s>,
    ) -> Result<Pushed, Full<Source<'s>>> {
        match self {
            Self::Rdma(queue) => queue.push(to, source),
            Self::Tcp(queue) => queue.push(to, source),
        }
    }

    /// Whether so much waits to be sent that a read need not take a buffer before
    /// [`Event::Room`], which follows then. Over NVMe/RDMA never: work requests wait at the queue
    /// pair, which does not tell of them.
    #[inline]
    pub fn has_backlog(&mut self) -> bool {
        match self {
            Self::Rdma(_) => false,
            Self::Tcp(queue) => queue.has_backlog(),
        }
    }

    /// Whether a command that succeeds has to fill the host's data buffer to its end, with zeroes
    /// behind what it returns: C2HData of a command go on to the end of its Command Data Buffer
    /// (NVMe over TCP Transport 1.1, section 3.3.2.1). A [`Source::Piece`] that is the last does so
    /// by itself. NVMe/RDMA writes as much as there is.
    #[must_use]
    pub fn fills_data_buffer(&self) -> bool {
        matches!(self, Self::Tcp(_))
    }

    /// Whether so many bytes that stay where they are ([`Source::Held`]) are taken, rather than
    /// copied, while there is room; `None` where that is for a push to find out.
    #[inline]
    pub fn takes_held(&self, len_bytes: u32) -> Option<bool> {
        match self {
            Self::Rdma(queue) => queue.takes_held(),
            Self::Tcp(queue) => Some(queue.queue().holds(len_bytes as usize)),
        }
    }

    /// Sends the response of the command `tag`, behind what was pushed for it. Something `waits`
    /// for it to leave where the command has a buffer at the queue, or its user has something to do
    /// then; otherwise no event need follow. Where it cannot be sent, [`Event::Ended`] follows.
    #[inline]
    pub fn respond(
        &mut self,
        tag: Tag,
        cqe: &Cqe,
        invalidate: Option<u32>,
        waits: bool,
    ) -> Responded {
        match self {
            Self::Rdma(queue) => queue.respond(tag, cqe, invalidate, waits),
            Self::Tcp(queue) => queue.respond(tag, cqe, waits),
        }
    }

    /// The next command whose response has left: its slot is free, and so is the buffer that its
    /// data was pushed from, where that has not come back before.
    #[inline]
    pub fn poll_released(&mut self) -> Option<(Tag, Option<Buffer>)> {
        match self {
            Self::Rdma(queue) => queue.poll_released(),
            Self::Tcp(queue) => Some((queue.poll_released()?, None)),
        }
    }

    /// How many commands are under way, of so many that have a tag: those that are not answered,
    /// and those whose response an event will release. Where the wire knows how many responses were
    /// queued behind the last one that left, at least as many.
    #[must_use]
    #[inline]
    pub fn in_flight(&self, commands: usize) -> usize {
        match self {
            Self::Rdma(queue) => queue.in_flight(commands),
            Self::Tcp(_) => commands,
        }
    }

    /// Whether it can be ended without losing a response, where so many commands have a tag: they
    /// are answered and released, and nothing is left to be sent, as far as is known. Where their
    /// responses alone are missing, the wire sees to it that [`Event::Released`] tells of them.
    #[must_use]
    pub fn is_drained(&mut self, commands: usize) -> bool {
        match self {
            Self::Rdma(queue) => queue.is_drained(commands),
            Self::Tcp(queue) => commands == 0 && !queue.queue().has_unsent(),
        }
    }

    /// Whether this side waits for the host to send data, or to take data or responses.
    #[must_use]
    #[inline]
    pub fn awaits_host(&self) -> bool {
        match self {
            Self::Rdma(queue) => queue.awaits_host(),
            Self::Tcp(queue) => queue.awaits_host(),
        }
    }

    /// Over NVMe/TCP: how the host goes on with pulls, and with what it has to take. Over NVMe/RDMA
    /// events show it.
    pub fn headway(&mut self) -> Option<(Goes, Goes)> {
        Some(self.tcp()?.headway())
    }

    /// What the host has left undone, for the reason of an end, in the words of the wire.
    #[must_use]
    pub fn describe(&self, overdue: Overdue<'_>) -> String {
        match self {
            Self::Rdma(_) => overdue.over_rdma(),
            Self::Tcp(_) => overdue.over_tcp(),
        }
    }

    /// Sets a fence: everything that has arrived by now comes before [`Event::Fenced`], with the
    /// rest of a capsule or PDU of which only the beginning has. None comes where the queue is
    /// dropped first.
    pub fn fence(&mut self, number: FenceNumber) {
        match self {
            Self::Rdma(queue) => queue.fence(number),
            Self::Tcp(queue) => queue.fence(number),
        }
    }

    /// Takes nothing more: [`Event::Ended`] follows where it has not been told of, and
    /// [`Event::Quiesced`] when nothing can land in its buffers any more. Over NVMe/RDMA the
    /// connection is its manager's to end.
    pub fn end(&mut self, how: End) {
        match (self, how) {
            (Self::Rdma(queue), _) => queue.end(),
            (Self::Tcp(queue), End::Now) => queue.abort(),
            (Self::Tcp(queue), End::Drained) => queue.end(End::Drained),
        }
    }

    /// Whether something has arrived for which there was no event yet.
    pub fn has_arrivals(&mut self) -> bool {
        match self {
            Self::Rdma(queue) => queue.has_arrivals(),
            Self::Tcp(queue) => queue.has_unread(),
        }
    }
}
