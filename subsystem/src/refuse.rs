//! Why a Connect was refused: one line for people, and the status for the host.

use alloc::boxed::Box;
use core::net::SocketAddr;

use capstan_nvme_proto::error::{CommandError, ErrorLocation};
use capstan_nvme_proto::fabrics::ConnectData;
use capstan_nvme_proto::nqn::Nqn;
use capstan_nvme_proto::status::{Status, StatusContext};

use crate::config::Transport;

/// Why a Connect was refused. Each message ends with the next step where there is one.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RefuseReason {
    /// The command or its data is malformed.
    #[error(
        "{} is {:X}h in {}, expected {}: answer {}", .0.field, .0.value, .0.location, .0.expected,
        .0.status.display(StatusContext::Fabrics)
    )]
    Malformed(#[from] CommandError),
    /// The first command of a connection was another one.
    #[error("opcode {opcode:02X}h before Connect, expected a Connect command")]
    NotConnect {
        /// The opcode.
        opcode: u8,
    },
    /// A second Connect on a connected queue.
    #[error("a second Connect on a connected queue, expected one per connection")]
    AlreadyConnected,
    /// No subsystem of this name.
    #[error("subsystem {subnqn} does not exist; compare it with `discover`")]
    UnknownSubsystem {
        /// The name.
        subnqn: Box<Nqn>,
    },
    /// No subsystem of this name, but one of the same UUID.
    #[error(
        "subsystem {subnqn} does not exist, but {written} does: names of subsystems are compared byte by \
         byte, the digits of a UUID too; have the host connect to that name"
    )]
    OtherCase {
        /// The name.
        subnqn: Box<Nqn>,
        /// The one of the subsystem.
        written: Box<Nqn>,
    },
    /// The subsystem is not offered on this port.
    #[error(
        "subsystem {subnqn} is not offered at {address}; add that listener to the subsystem or use another \
         address"
    )]
    NotOnPort {
        /// The name.
        subnqn: Box<Nqn>,
        /// Where the host connects.
        address: SocketAddr,
    },
    /// The host is not on the subsystem's list.
    #[error("host {hostnqn} is not allowed to use subsystem {subnqn}; add it to allowed_hosts")]
    HostNotAllowed {
        /// The host.
        hostnqn: Box<Nqn>,
        /// The subsystem.
        subnqn: Box<Nqn>,
    },
    /// The host gave no name, and the subsystem is for hosts with certain names.
    #[error(
        "the host gives no name (HOSTNQN is empty), and subsystem {subnqn} is for the hosts in \
         allowed_hosts; give the host its NQN (spdk_nvme_perf: `hostnqn:NQN` in -r), or write \
         allow_any_host = true"
    )]
    NamelessHost {
        /// The subsystem.
        subnqn: Box<Nqn>,
    },
    /// The host asked for a particular controller, and there is only the dynamic model.
    #[error("CNTLID is {cntlid:04X}h, expected FFFFh: controllers are allocated dynamically")]
    StaticController {
        /// What it asked for.
        cntlid: u16,
    },
    /// All controllers are in use.
    #[error("all {controllers} controllers are in use; disconnect hosts or raise the limit")]
    TooManyControllers {
        /// How many there may be.
        controllers: usize,
    },
    /// Its address has its share of the controllers.
    #[error(
        "any host may connect, and those of its address have {has} controllers and leave {left}; an address may have \
         three times as many as it leaves: list the host in allowed_hosts, raise hosts_max, or disconnect hosts there"
    )]
    ShareOfControllers {
        /// What the hosts of its address have.
        has: usize,
        /// How many are left.
        left: usize,
    },
    /// The controllers that are left are for hosts that are listed.
    #[error(
        "{reserve} of {controllers} controllers are kept for listed hosts, and the others are in use; list the host in \
         allowed_hosts, raise hosts_max, or disconnect hosts"
    )]
    ControllersReserved {
        /// How many there are.
        controllers: usize,
        /// How many of them are kept.
        reserve: usize,
    },
    /// There is no memory for the queue, or the device has no room for it.
    #[error("{why}")]
    NoRoom {
        /// What is missing, and the next step.
        why: Box<str>,
    },
    /// An I/O queue for a controller that does not exist.
    #[error("controller {cntlid:04X}h does not exist, expected the one the admin queue got")]
    UnknownController {
        /// What the host named.
        cntlid: u16,
    },
    /// An I/O queue from another host than the Admin queue's.
    #[error(
        "controller {cntlid:04X}h belongs to another host than {hostnqn}, expected the hostnqn \
         and hostid of its admin queue"
    )]
    OtherHost {
        /// The controller.
        cntlid: u16,
        /// The host that asked.
        hostnqn: Box<Nqn>,
    },
    /// An I/O queue through another port than the Admin queue's.
    #[error("controller {cntlid:04X}h was reached through another listener than that of {address}")]
    OtherPort {
        /// The controller.
        cntlid: u16,
        /// Where this connection came to.
        address: SocketAddr,
    },
    /// A queue by a transport that the port is not to speak.
    #[error(
        "the host connects by {transport}, which the listener at {address} does not speak; look at its transports"
    )]
    TransportNotOnPort {
        /// What the host has used.
        transport: Transport,
        /// Where it came to.
        address: SocketAddr,
    },
    /// An I/O queue by another transport than the Admin queue's.
    #[error(
        "controller {cntlid:04X}h is reached by {transport}, expected all its queues to use that"
    )]
    OtherTransport {
        /// The controller.
        cntlid: u16,
        /// What its Admin queue uses.
        transport: Transport,
    },
    /// An I/O queue before CSTS.RDY.
    #[error("controller {cntlid:04X}h is not ready, expected CC.EN = 1 and CSTS.RDY = 1 first")]
    NotReady {
        /// The controller.
        cntlid: u16,
    },
    /// A Queue Identifier beyond what the controller has.
    #[error("QID is {qid}, expected 1 to {queues}")]
    QidOutOfRange {
        /// What the host asked for.
        qid: u16,
        /// I/O queues of the controller.
        queues: u16,
    },
    /// Another Queue Identifier than the connection request announced.
    #[error(
        "QID is {qid}, expected {announced}, which the RDMA_CM_REQUEST of this connection announced"
    )]
    QidChanged {
        /// What Connect asks for.
        qid: u16,
        /// What the connection request did.
        announced: u16,
    },
    /// Another controller than the connection request announced.
    #[error(
        "CNTLID is {cntlid:04X}h, expected {announced:04X}h, which the RDMA_CM_REQUEST of this \
         connection announced"
    )]
    CntlidChanged {
        /// What Connect asks for.
        cntlid: u16,
        /// What the connection request did.
        announced: u16,
    },
    /// A Queue Identifier of a live queue.
    #[error("queue {qid} exists already")]
    QidInUse {
        /// The queue.
        qid: u16,
    },
    /// An earlier I/O queue of the controller has ended and left commands on a medium.
    #[error(
        "queue {qid} of a controller whose queue {left} has ended with commands that are not over, \
         expected none; connect it again when they are, and look at the storage if it stays so"
    )]
    QueueNotOver {
        /// The queue that was asked for.
        qid: u16,
        /// The queue that has ended.
        left: u16,
    },
    /// A queue that is larger than it may be.
    #[error("SQSIZE asks for {entries} entries, expected at most {max}")]
    QueueTooLarge {
        /// Entries asked for.
        entries: u32,
        /// Entries there may be: of the controller, and of what the connection agreed on.
        max: u16,
    },
}

impl RefuseReason {
    /// In a word or two, for a label: the same for all of a kind.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Malformed(_) => "malformed",
            Self::NotConnect { .. } => "not-a-connect",
            Self::AlreadyConnected => "already-connected",
            Self::UnknownSubsystem { .. } => "unknown-subsystem",
            Self::OtherCase { .. } => "subsystem-in-other-case",
            Self::NotOnPort { .. } => "subsystem-not-on-port",
            Self::HostNotAllowed { .. } => "host-not-allowed",
            Self::NamelessHost { .. } => "host-without-name",
            Self::StaticController { .. } => "static-controller",
            Self::TooManyControllers { .. } => "too-many-controllers",
            Self::ShareOfControllers { .. } => "share-of-controllers",
            Self::ControllersReserved { .. } => "controllers-reserved",
            Self::NoRoom { .. } => "no-room",
            Self::UnknownController { .. } => "unknown-controller",
            Self::OtherHost { .. } => "controller-of-other-host",
            Self::OtherPort { .. } => "controller-by-other-port",
            Self::TransportNotOnPort { .. } => "transport-not-on-port",
            Self::OtherTransport { .. } => "controller-by-other-transport",
            Self::NotReady { .. } => "controller-not-ready",
            Self::QidOutOfRange { .. } => "qid-out-of-range",
            Self::QidChanged { .. } => "qid-changed",
            Self::CntlidChanged { .. } => "cntlid-changed",
            Self::QidInUse { .. } => "qid-in-use",
            Self::QueueNotOver { .. } => "earlier-commands-not-over",
            Self::QueueTooLarge { .. } => "queue-too-large",
        }
    }

    /// The status of the response. NVMe Base 2.1, section 6.3.
    #[must_use]
    pub fn status(&self) -> Status {
        match self {
            Self::Malformed(error) => error.status,
            Self::NotConnect { .. } | Self::AlreadyConnected => {
                Status::COMMAND_SEQUENCE_ERROR.dnr()
            }
            Self::UnknownSubsystem { .. }
            | Self::OtherCase { .. }
            | Self::NotOnPort { .. }
            | Self::OtherTransport { .. }
            | Self::StaticController { .. }
            | Self::UnknownController { .. }
            | Self::OtherPort { .. }
            | Self::QidOutOfRange { .. }
            | Self::QidChanged { .. }
            | Self::CntlidChanged { .. }
            | Self::QueueTooLarge { .. } => Status::CONNECT_INVALID_PARAMETERS.dnr(),
            Self::HostNotAllowed { .. } | Self::NamelessHost { .. } | Self::OtherHost { .. } => {
                Status::CONNECT_INVALID_HOST.dnr()
            }
            // No format of a Connect is taken here. There is only format 0, so that a host cannot
            // take this for another reason, as it can an invalid parameter.
            Self::TransportNotOnPort { .. } => Status::CONNECT_INCOMPATIBLE_FORMAT.dnr(),
            // A host may try again: the controller can become ready, or a place become free.
            Self::TooManyControllers { .. }
            | Self::ShareOfControllers { .. }
            | Self::ControllersReserved { .. }
            | Self::NoRoom { .. }
            | Self::QueueNotOver { .. } => Status::CONNECT_CONTROLLER_BUSY,
            Self::NotReady { .. } | Self::QidInUse { .. } => Status::COMMAND_SEQUENCE_ERROR,
        }
    }

    /// The parameter at fault, which the response to Connect Invalid Parameters tells.
    #[must_use]
    pub fn location(&self) -> ErrorLocation {
        match self {
            Self::Malformed(error) => error.location,
            Self::NotConnect { .. } => ErrorLocation::sqe(0),
            Self::UnknownSubsystem { .. } | Self::OtherCase { .. } | Self::NotOnPort { .. } => {
                ConnectData::SUBNQN_LOCATION
            }
            Self::HostNotAllowed { .. } | Self::NamelessHost { .. } | Self::OtherHost { .. } => {
                ConnectData::HOSTNQN_LOCATION
            }
            Self::StaticController { .. }
            | Self::UnknownController { .. }
            | Self::OtherPort { .. }
            | Self::OtherTransport { .. }
            | Self::CntlidChanged { .. } => ConnectData::CNTLID_LOCATION,
            Self::QidOutOfRange { .. } | Self::QidChanged { .. } | Self::QidInUse { .. } => {
                ErrorLocation::sqe(42)
            }
            Self::QueueTooLarge { .. } => ErrorLocation::sqe(44),
            Self::AlreadyConnected
            | Self::TransportNotOnPort { .. }
            | Self::TooManyControllers { .. }
            | Self::ShareOfControllers { .. }
            | Self::ControllersReserved { .. }
            | Self::NoRoom { .. }
            | Self::NotReady { .. }
            | Self::QueueNotOver { .. } => ErrorLocation::Unspecified,
        }
    }
}

/// A refused Connect, kept for the operator who asks why.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// When, on the clock of the driver.
    pub at_us: u64,
    /// The host's address.
    pub peer: SocketAddr,
    /// The host, if its name could be read.
    pub hostnqn: Option<Nqn>,
    /// Why.
    pub why: RefuseReason,
}
