//! What the host state machine wants done, and what it tells.

use std::fmt;
use std::sync::Arc;

use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::rdma_cm::CmRequest;
use capstan_nvme_proto::sqe::Sqe;

use super::info::Unidentified;
use super::queue::SlotIndex;
use crate::error::{CommandError, ConnectError};

/// Data of an admin, Connect or passthrough command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandData {
    /// The command has none.
    None,
    /// The controller gets these bytes.
    ToController(Box<[u8]>),
    /// The controller sends this many bytes.
    FromController(u32),
}

impl CommandData {
    /// Bytes, whichever way they go.
    #[must_use]
    pub fn len_bytes(&self) -> u32 {
        match self {
            Self::None => 0,
            Self::ToController(bytes) => u32::try_from(bytes.len()).unwrap_or(u32::MAX),
            Self::FromController(len_bytes) => *len_bytes,
        }
    }
}

/// What the driver is to do, in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Make the connection of a queue. Leads to
    /// [`Host::handle_established`](super::Host::handle_established),
    /// [`Host::handle_rejected`](super::Host::handle_rejected) or
    /// [`Host::handle_open_failed`](super::Host::handle_open_failed).
    Open {
        /// Its entries, which are also the receives to post.
        entries: u16,
        /// The private data to send.
        request: CmRequest,
        /// Whether its Connect leaves SQ flow control on.
        flow_control: bool,
    },
    /// Send a command. Leads to [`Host::take_response`](super::Host::take_response) and, once its
    /// memory is back, [`Host::handle_completion`](super::Host::handle_completion).
    Send {
        /// Queue.
        qid: u16,
        /// Slot of the command; the CID is in the entry.
        slot: SlotIndex,
        /// Complete but for the data pointer.
        sqe: Box<Sqe>,
        /// Its data.
        data: CommandData,
    },
    /// Drop every connection; nothing of them is to be handled any more. Comes before anything that
    /// waits to be done.
    CloseAll {
        /// The controller has been shut down, or there is none: nothing is outstanding. Otherwise
        /// the connections are given up, and nothing that has not left may leave any more.
        orderly: bool,
    },
}

/// What the owner of the association learns.
#[derive(Debug)]
pub enum Event {
    /// I/O can be submitted.
    Live {
        /// It was live before.
        again: bool,
    },
    /// The connection is gone; I/O waits until [`Event::Live`] or [`Event::Failed`]. Every
    /// outstanding I/O command is to be issued again, what changes media when
    /// [`Host::holds_writes`](super::Host::holds_writes) allows it.
    Lost {
        /// Why.
        cause: Arc<ConnectError>,
    },
    /// An attempt to connect again has failed; another one follows, or [`Event::Failed`].
    AttemptFailed {
        /// Which since the controller was lost.
        attempt: u32,
        /// Why.
        cause: Arc<ConnectError>,
    },
    /// The old controller is gone: what changes media may be sent.
    WritesReleased,
    /// It is not known whether the old controller is gone: what was not answered has an unknown
    /// outcome. Other writes may be sent.
    WritesUnknown {
        /// Why.
        why: &'static str,
    },
    /// A controller that was shut down could not save everything that it had acknowledged
    /// (CSTS.CFS). Comes before [`Event::Lost`] or [`Event::Closed`].
    NotSaved,
    /// The association has failed for good.
    Failed {
        /// Why.
        cause: Arc<ConnectError>,
    },
    /// The association was shut down in order.
    Closed,
    /// Namespaces came, went or changed; [`Host::namespaces`](super::Host::namespaces) has them.
    NamespacesChanged,
    /// A namespace is left out of [`Host::namespaces`](super::Host::namespaces), and was not
    /// before.
    Unidentified(Unidentified),
    /// The discovery log page changed.
    DiscoveryLogChanged,
    /// An admin command of [`Host::submit_admin`](super::Host::submit_admin), or an I/O command
    /// that was sent as it is, is done.
    CommandDone {
        /// Its token.
        token: u64,
        /// Its answer.
        result: Result<CommandReply, CommandError>,
    },
}

/// The answer to a command, whatever its status.
#[derive(Clone, Debug)]
pub struct CommandReply {
    /// The completion.
    pub cqe: Cqe,
    /// Data from the controller.
    pub data: Vec<u8>,
}

/// Steps of setting an association up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Connection of the Admin Queue.
    OpenAdmin,
    /// Connect command of the Admin Queue.
    ConnectAdmin,
    /// Property Get of VS.
    Version,
    /// Property Get of CAP.
    Capabilities,
    /// Property Set of CC.EN.
    Enable,
    /// Property Get of CSTS until RDY.
    Ready,
    /// Identify Controller.
    Identify,
    /// Set Features: Number of Queues.
    NumberOfQueues,
    /// Set Features: Asynchronous Event Configuration.
    AsyncConfig,
    /// Connection of an I/O queue.
    OpenIo(u16),
    /// Connect command of an I/O queue.
    ConnectIo(u16),
    /// Identify of the namespaces.
    Scan,
}

impl Step {
    /// For people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::OpenAdmin => "connection of the Admin Queue",
            Self::ConnectAdmin => "Connect of the Admin Queue",
            Self::Version => "Property Get VS",
            Self::Capabilities => "Property Get CAP",
            Self::Enable => "Property Set CC.EN",
            Self::Ready => "waiting for CSTS.RDY",
            Self::Identify => "Identify Controller",
            Self::NumberOfQueues => "Set Features Number of Queues",
            Self::AsyncConfig => "Set Features Asynchronous Event Configuration",
            Self::OpenIo(_) => "connection of an I/O queue",
            Self::ConnectIo(_) => "Connect of an I/O queue",
            Self::Scan => "Identify of the namespaces",
        }
    }
}

/// Where an association is in its life; `Display` is for people.
#[derive(Clone, Debug, PartialEq)]
pub enum AssociationStatus {
    /// Being set up.
    Connecting {
        /// The step.
        step: Step,
        /// Which attempt since the controller was lost; 0 for the first connect.
        attempt: u32,
        /// Until I/O fails, in milliseconds; `None` is never, and of the first connect.
        fails_in_ms: Option<u64>,
        /// Why the attempt before this one failed, or the connection was lost.
        cause: Option<Arc<ConnectError>>,
    },
    /// Usable.
    Live,
    /// Waiting to try again.
    Waiting {
        /// The attempt that comes next.
        attempt: u32,
        /// In milliseconds.
        next_in_ms: u64,
        /// Until I/O fails, in milliseconds; `None` is never.
        fails_in_ms: Option<u64>,
        /// Why the last attempt failed, or the connection was lost.
        cause: Arc<ConnectError>,
    },
    /// The controller is being ended in order, to connect to a new one.
    Resetting,
    /// Being shut down.
    ShuttingDown,
    /// Shut down.
    Closed,
    /// Failed for good.
    Failed(Arc<ConnectError>),
}

impl fmt::Display for AssociationStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connecting {
                step, attempt: 0, ..
            } => write!(f, "connecting: {}", step.name()),
            Self::Connecting {
                step,
                attempt,
                fails_in_ms,
                cause,
            } => {
                write!(f, "reconnecting: attempt {attempt}, {}", step.name())?;
                fails_in(f, *fails_in_ms)?;
                match cause {
                    Some(cause) => write!(f, " ({cause})"),
                    None => Ok(()),
                }
            }
            Self::Live => f.write_str("live"),
            Self::Waiting {
                attempt,
                next_in_ms,
                fails_in_ms,
                cause,
            } => {
                write!(f, "reconnecting: attempt {attempt}, next in ")?;
                seconds(f, *next_in_ms)?;
                fails_in(f, *fails_in_ms)?;
                write!(f, " ({cause})")
            }
            Self::Resetting => f.write_str("resetting: the controller is shut down first"),
            Self::ShuttingDown => f.write_str("shutting down"),
            Self::Closed => f.write_str("closed"),
            Self::Failed(cause) => write!(f, "failed: {cause}"),
        }
    }
}

fn fails_in(f: &mut fmt::Formatter<'_>, fails_in_ms: Option<u64>) -> fmt::Result {
    let Some(fails_in_ms) = fails_in_ms else {
        return Ok(());
    };
    f.write_str(", I/O fails in ")?;
    seconds(f, fails_in_ms)
}

/// Tenths below ten seconds, whole seconds above.
fn seconds(f: &mut fmt::Formatter<'_>, ms: u64) -> fmt::Result {
    if ms < 10_000 {
        write!(f, "{}.{} s", ms / 1000, ms % 1000 / 100)
    } else {
        write!(f, "{} s", ms / 1000)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{AssociationStatus, ConnectError, Step};

    /// A target that says nothing has each attempt wait: most of the time there is one.
    #[test]
    fn an_attempt_that_is_under_way_says_until_when_there_are_more() {
        let status = |fails_in_ms| AssociationStatus::Connecting {
            step: Step::OpenAdmin,
            attempt: 3,
            fails_in_ms,
            cause: Some(Arc::new(ConnectError::Closed)),
        };
        let told = status(Some(42_000)).to_string();
        assert!(
            told.contains(", I/O fails in 42 s (the association"),
            "{told}"
        );
        assert!(!status(None).to_string().contains("I/O fails"));
    }
}
