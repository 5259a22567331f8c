//! What the driver must do: the output of the state machine, besides the answers to its calls.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::net::SocketAddr;

use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::nqn::{HostId, Nqn};
use capstan_nvme_proto::status::Status;

use crate::ConnId;
use crate::config::PortId;
use crate::counters::NamespaceCounters;
use crate::namespace::{BackendId, NamespaceTable};
use crate::reservation::ReservationsToKeep;

/// The target's name of one controller, never used twice (a CNTLID is).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ControllerId(pub(crate) u64);

/// Names one Abort command whose answer depends on the driver.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct AbortId(pub(crate) u64);

/// Names one flush.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FlushId(pub(crate) u64);

/// Names reservations of a namespace that the driver puts on stable storage.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct KeepId(pub(crate) u64);

/// Names one command that waits for commands of other queues: a Preempt and Abort, or a Set
/// Features that write protects a namespace.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DrainId(pub(crate) u64);

/// Names the fence in front of one controller.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FenceId(pub(crate) u64);

/// Something the driver must do. Taken from [`Target::poll_action`](crate::Target::poll_action)
/// after every call that can produce one, and carried out in the order given.
#[derive(Debug)]
pub enum Action {
    /// Send this response capsule on an Admin queue.
    Complete {
        /// The Admin queue.
        conn: ConnId,
        /// The response.
        cqe: Cqe,
    },
    /// Close this connection; then call
    /// [`Target::handle_disconnected`](crate::Target::handle_disconnected).
    Disconnect {
        /// The connection.
        conn: ConnId,
        /// Why, for the log.
        why: DisconnectReason,
    },
    /// Try to abort a command of an I/O queue: complete it with
    /// [`Status::ABORT_REQUESTED`](capstan_nvme_proto::status::Status::ABORT_REQUESTED) if that is
    /// still possible. Then, always, call
    /// [`Target::handle_abort_result`](crate::Target::handle_abort_result).
    AbortIo {
        /// The I/O queue.
        conn: ConnId,
        /// Command Identifier of the command to abort.
        cid: u16,
        /// What to answer with.
        abort: AbortId,
    },
    /// Complete every command for `nsid` that has not reached its backend with
    /// [`Status::ABORTED_PREEMPT_AND_ABORT`] ([`IoQueue::withdraw`](crate::IoQueue::withdraw) those
    /// whose transfer is under way), begin a drain for the others
    /// ([`IoQueue::begin_drain`](crate::IoQueue::begin_drain)), and when it is over call
    /// [`Target::handle_drained`](crate::Target::handle_drained).
    DrainIo {
        /// The I/O queue.
        conn: ConnId,
        /// The namespace.
        nsid: u32,
        /// What to answer with.
        drain: DrainId,
    },
    /// Begin a drain ([`IoQueue::begin_drain_of_writes`](crate::IoQueue::begin_drain_of_writes)),
    /// take out of it ([`IoQueue::excuse`](crate::IoQueue::excuse)) the commands for `nsid` that
    /// change no block, and those that have not reached their backend and will be asked for again
    /// ([`IoQueue::check_again`](crate::IoQueue::check_again)) before they do; when it is over call
    /// [`Target::handle_drained`](crate::Target::handle_drained). The namespace becomes write
    /// protected.
    DrainWrites {
        /// The I/O queue.
        conn: ConnId,
        /// The namespace.
        nsid: u32,
        /// What to answer with.
        drain: DrainId,
    },
    /// Take in every command capsule that has arrived on this I/O queue by now, wherever it is on
    /// its way from the network to [`IoQueue::handle_command`](crate::IoQueue::handle_command),
    /// then begin to wait for all that was taken in
    /// ([`IoQueue::begin_fence`](crate::IoQueue::begin_fence)), and when that is over call
    /// [`Target::handle_fenced`](crate::Target::handle_fenced). Of a queue that ends before that,
    /// [`Target::handle_disconnected`](crate::Target::handle_disconnected) says it.
    FenceIo {
        /// The I/O queue.
        conn: ConnId,
        /// What to answer with.
        fence: FenceId,
    },
    /// Write to the log which commands of this I/O queue are outstanding: a fence has waited for
    /// them for more than a moment.
    TellOutstanding {
        /// The I/O queue.
        conn: ConnId,
    },
    /// Complete a [`ControlCommand`](crate::ControlCommand) that was held.
    CompleteIo {
        /// The I/O queue.
        conn: ConnId,
        /// Command Identifier of the command.
        cid: u16,
        /// The status.
        status: Status,
    },
    /// Give this table to the I/O queue
    /// ([`IoQueue::set_namespaces`](crate::IoQueue::set_namespaces)).
    SetNamespaces {
        /// The I/O queue.
        conn: ConnId,
        /// The new table.
        namespaces: Arc<NamespaceTable>,
        /// The queue's counters for it.
        counters: NamespaceCounters,
    },
    /// Put everything written so far to these backends on the medium, then, always, call
    /// [`Target::handle_flushed`](crate::Target::handle_flushed). A controller is shutting down,
    /// or a namespace becomes write protected.
    Flush {
        /// What to answer with.
        flush: FlushId,
        /// The backends, each once.
        backends: Vec<BackendId>,
    },
    /// Put these on stable storage, behind those of earlier ones of these actions, or leave what is
    /// there; and then, always, call
    /// [`Target::handle_reservations_kept`](crate::Target::handle_reservations_kept). A namespace
    /// that is added later with the same UUID gets them back ([`Persistence`](crate::Persistence)).
    KeepReservations {
        /// What to answer with.
        keep: KeepId,
        /// All that is to be kept of a namespace.
        kept: ReservationsToKeep,
    },
    /// Write this to the log.
    Log(Event),
}

/// Why a connection is closed by this side.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DisconnectReason {
    /// The host sent more commands than the queue has entries.
    #[error("queue {qid} overrun: more than its {entries} entries are outstanding")]
    QueueOverrun {
        /// The queue.
        qid: u16,
        /// Its entries.
        entries: u16,
    },
    /// Neither Keep Alive nor any other command arrived in time.
    #[error("keep alive timer expired: no command for {kato_ms} ms")]
    KeepAliveExpired {
        /// Keep Alive Timeout.
        kato_ms: u32,
    },
    /// The host cleared CC.EN, which deletes the I/O queues.
    #[error("controller reset by the host (CC.EN = 0)")]
    ControllerReset,
    /// Commands of earlier associations of the host did not end in time.
    #[error(
        "not ready after {waited_ms} ms: commands of earlier associations of this host on {queues} \
         I/O queues are not over; the host may connect again, and look at the storage if it stays so"
    )]
    Fenced {
        /// I/O queues that were waited for.
        queues: usize,
        /// How long.
        waited_ms: u64,
    },
    /// The host had the controller reset through another one.
    #[error("reset by its host through controller {cntlid} (Cross-Controller Reset)")]
    CrossControllerReset {
        /// The other one.
        cntlid: u16,
    },
    /// The host, or another program of it, has connected, and its subsystem keeps one association
    /// per host, address and transport.
    #[error(
        "the host, or another program of it, has connected as controller {cntlid} from {peer}, the same \
         address, over the same transport, and end_older_association is set; programs that are to stay \
         beside each other need a host NQN and host identifier each"
    )]
    Replaced {
        /// The new one.
        cntlid: u16,
        /// Where it has connected from.
        peer: SocketAddr,
    },
    /// The Admin queue's connection is gone, and with it the association.
    #[error("the connection of the admin queue is gone")]
    AdminQueueGone,
    /// Another discovery controller needs the place.
    #[error(
        "it made room for another discovery controller: there are {controllers}, and most from its address"
    )]
    MadeRoom {
        /// How many there may be.
        controllers: usize,
    },
    /// The controller was not enabled in time.
    #[error("the host did not enable its controller within {timeout_s} s")]
    NotEnabled {
        /// How long it had, in seconds.
        timeout_s: u64,
    },
    /// The operator took the host off the list.
    #[error("the host is no longer allowed to use this subsystem")]
    HostNotAllowed,
    /// The operator removed the subsystem, or this port from it.
    #[error("the subsystem is no longer offered on this port")]
    SubsystemRemoved,
    /// The operator ended the association; the host may connect again.
    #[error("the operator has disconnected the host (`capstan-target connection disconnect`)")]
    Operator,
    /// The host deleted this queue with a Disconnect command.
    #[error("queue deleted by the host (Disconnect command)")]
    DisconnectCommand,
    /// A connection this target knows nothing of.
    #[error("no queue was connected on this connection")]
    NotConnected,
}

impl DisconnectReason {
    /// In a word or two, for a label: the same for all of a kind.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::QueueOverrun { .. } => "queue-overrun",
            Self::KeepAliveExpired { .. } => "keep-alive-expired",
            Self::ControllerReset => "controller-reset",
            Self::Fenced { .. } => "earlier-commands-not-over",
            Self::CrossControllerReset { .. } => "cross-controller-reset",
            Self::Replaced { .. } => "replaced",
            Self::AdminQueueGone => "admin-queue-gone",
            Self::MadeRoom { .. } => "made-room",
            Self::NotEnabled { .. } => "not-enabled",
            Self::HostNotAllowed => "host-not-allowed",
            Self::SubsystemRemoved => "subsystem-removed",
            Self::Operator => "operator",
            Self::DisconnectCommand => "queue-deleted",
            Self::NotConnected => "not-connected",
        }
    }

    /// Whether what this side has posted is to be given up with the connection: the host is not
    /// there, or goes on elsewhere and must not be answered by two.
    #[must_use]
    pub fn gives_up(self) -> bool {
        matches!(
            self,
            Self::KeepAliveExpired { .. }
                | Self::CrossControllerReset { .. }
                | Self::Replaced { .. }
        )
    }
}

/// The host that a log line is about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Association {
    /// Host NQN.
    pub hostnqn: Nqn,
    /// Host Identifier.
    pub hostid: HostId,
    /// NVM Subsystem NQN.
    pub subnqn: Nqn,
    /// Controller Identifier.
    pub cntlid: u16,
    /// Port the host came through.
    pub port: PortId,
    /// The host's address.
    pub peer: SocketAddr,
}

impl fmt::Display for Association {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "hostnqn={} peer={} subnqn={} cntlid={}",
            self.hostnqn, self.peer, self.subnqn, self.cntlid
        )
    }
}

/// Something worth a line in the log. Displays as that line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A host made an association.
    Connected {
        /// Whose.
        association: Arc<Association>,
        /// By which transport, in words.
        over: &'static str,
        /// Keep Alive Timeout in force; 0 for none.
        kato_ms: u32,
    },
    /// A host enabled its controller.
    Enabled {
        /// Whose.
        association: Arc<Association>,
    },
    /// A host added an I/O queue.
    QueueConnected {
        /// Whose.
        association: Arc<Association>,
        /// Queue Identifier.
        qid: u16,
        /// Entries.
        entries: u16,
        /// By which transport, in words.
        over: &'static str,
    },
    /// A controller is not ready because commands of earlier associations of its host are not over.
    FenceClosed {
        /// Whose.
        association: Arc<Association>,
        /// CNTLID and QID of the I/O queues that are waited for.
        queues: Vec<(u16, u16)>,
    },
    /// They are over.
    FenceOpened {
        /// Whose.
        association: Arc<Association>,
        /// How long they were waited for.
        waited_ms: u64,
    },
    /// A host reset its controller.
    Reset {
        /// Whose.
        association: Arc<Association>,
    },
    /// A host shut its controller down, and everything is on the medium.
    ShutDown {
        /// Whose.
        association: Arc<Association>,
    },
    /// An association ended.
    Disconnected {
        /// Whose.
        association: Arc<Association>,
        /// Why; `None` when the host (or the network) closed the connection.
        why: Option<DisconnectReason>,
    },
}

impl Event {
    /// The association that it is about.
    #[must_use]
    pub const fn association(&self) -> &Arc<Association> {
        match self {
            Self::Connected { association, .. }
            | Self::Enabled { association }
            | Self::QueueConnected { association, .. }
            | Self::FenceClosed { association, .. }
            | Self::FenceOpened { association, .. }
            | Self::Reset { association }
            | Self::ShutDown { association }
            | Self::Disconnected { association, .. } => association,
        }
    }
}

/// Queues that a log line names.
const QUEUES_TOLD: usize = 8;

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connected {
                association,
                over,
                kato_ms,
            } => write!(
                f,
                "host connected {association} transport={over:?} kato_ms={kato_ms}"
            ),
            Self::Enabled { association } => write!(f, "controller enabled {association}"),
            Self::QueueConnected {
                association,
                qid,
                entries,
                over,
            } => write!(
                f,
                "queue connected {association} qid={qid} entries={entries} transport={over:?}"
            ),
            Self::FenceClosed {
                association,
                queues,
            } => {
                write!(
                    f,
                    "controller waits {association}: commands of earlier associations of this host \
                     are not over on"
                )?;
                for (cntlid, qid) in queues.iter().take(QUEUES_TOLD) {
                    write!(f, " cntlid={cntlid} qid={qid}")?;
                }
                match queues.len().saturating_sub(QUEUES_TOLD) {
                    0 => Ok(()),
                    more => write!(f, " and {more} other queues"),
                }
            }
            Self::FenceOpened {
                association,
                waited_ms,
            } => write!(
                f,
                "commands of earlier associations are over {association} waited_ms={waited_ms}"
            ),
            Self::Reset { association } => write!(f, "controller reset {association}"),
            Self::ShutDown { association } => write!(f, "controller shut down {association}"),
            Self::Disconnected {
                association,
                why: None,
            } => write!(f, "host disconnected {association}"),
            Self::Disconnected {
                association,
                why: Some(why),
            } => write!(f, "association ended {association}: {why}"),
        }
    }
}
