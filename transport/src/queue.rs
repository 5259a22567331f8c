//! What a queue tells its user, and what it is called.

use std::fmt;

use capstan_nvme_proto::sqe::Sqe;

use crate::data::CapsuleData;

/// A queue of one wire of one reactor: an Admin queue or an I/O queue, and the connection under it.
/// The wire uses it again once the queue has [quiesced](Event::Quiesced) and its user has let go.
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
}

/// A command capsule, as it came.
#[derive(Debug)]
pub struct Capsule {
    /// The command.
    pub sqe: Sqe,
    /// What came behind it.
    pub data: CapsuleData,
}

/// What has happened on a queue of the controller's side. A wire is polled once per turn, and then
/// asked for one event after the other.
#[derive(Debug)]
pub enum Event {
    /// A command capsule has come.
    Capsule(Capsule),
    /// All data of a pull has come.
    Pulled(Tag),
    /// A piece of the data that a command returns has left.
    Pushed(Tag),
    /// Responses have left, and what was pushed before them: the queue says of which commands.
    Released,
    /// There is room again after a [`Full`](crate::Full).
    Room,
    /// The queue takes nothing any more. What has arrived may still land in buffers of pulls.
    Ended(EndReason),
    /// Everything that had arrived when this fence was set has come before this event.
    Fenced(FenceNumber),
    /// The last event of a queue that was ended: nothing can land in its buffers any more.
    Quiesced,
}

/// Names a fence of a wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FenceNumber(pub u64);

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
            Self::Host => f.write_str("the host disconnected"),
            Self::Controller => f.write_str("this side disconnected"),
            Self::Violation(what) => write!(f, "the host broke the rules of its transport: {what}"),
            Self::Lost(why) => write!(f, "the connection was lost: {why}"),
            Self::DeviceRemoved => f.write_str("the device was removed"),
        }
    }
}
