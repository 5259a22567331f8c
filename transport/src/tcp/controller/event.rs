//! What happens on the controller's side of a queue.

use capstan_memory::Buffer;
use capstan_nvme_proto::sqe::Sqe;

use crate::data::CapsuleData;
use crate::queue::{EndReason, Tag};

/// What happens on the controller's side of a queue.
#[derive(Debug)]
pub enum Event {
    /// A command capsule has come.
    Capsule {
        /// The command.
        sqe: Sqe,
        /// What came behind it.
        data: CapsuleData,
        /// False where the data digest does not fit the data: the command is to fail with Transient
        /// Transport Error.
        intact: bool,
    },
    /// All data of a pull has come.
    Pulled {
        /// The command.
        tag: Tag,
        /// Its sink, which belonged to the queue until now.
        sink: Buffer,
        /// As for a capsule.
        intact: bool,
    },
    /// The memory of a push may be used again; or the sink of a pull that will not be complete, as
    /// the queue has ended.
    Released(Tag, Buffer),
    /// A part of the data of a command has left ([`push_part`](super::ControllerQueue::push_part)).
    PartLeft(Tag),
    /// There is room again after a [`Full`](crate::Full).
    Room,
    /// The queue takes nothing any more.
    Ended(EndReason),
    /// The last event: every buffer has been returned.
    Quiesced,
}
