//! Errors, one enum per operation.
//!
//! Their texts say what to do next, and call fields and functions by their names here. A program
//! has its own names in their place with [`call`](crate::names::call).

use std::borrow::Cow;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use capstan_nvme_proto::error::ErrorLocation;
use capstan_nvme_proto::nqn::Nqn;
use capstan_nvme_proto::status::{Status, StatusContext};
use capstan_rdma::contract::CmError;

use crate::address::AddressError;
use crate::host::{Held, NamespaceInfo, Unidentified, no_namespace, rdma_only};
use crate::names::Name;
use crate::transports::tried_for;
use crate::words::Count;

/// An option has a value it cannot have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionsError {
    /// Outside what is possible.
    #[error("{name} is {value}, expected {expected}")]
    Value {
        /// The option.
        name: Name,
        /// What it is.
        value: String,
        /// What it may be.
        expected: &'static str,
    },
    /// It cannot be the address of a target.
    #[error("traddr is {traddr:?}: {source}")]
    Address {
        /// What was given.
        traddr: String,
        /// What is wrong with it.
        source: Box<AddressError>,
    },
    /// A host name has no address.
    #[error("traddr {traddr}: {message}; check the name or give an address")]
    Lookup {
        /// What was looked up.
        traddr: String,
        /// The resolver's words.
        message: String,
    },
}

/// Why an association could not be made, or was lost.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ConnectError {
    /// An option is wrong.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// A name has several addresses, and none will do.
    #[error("{name} has {} addresses, and none leads to a controller: {failures}", failures.0.len())]
    Addresses {
        /// The name.
        name: String,
        /// Why, of each.
        failures: Failures,
    },
    /// No transport leads to a controller.
    #[error("no transport reaches {name}{}: {failures}", tried_for(*.tried_ms))]
    Transports {
        /// The name or address.
        name: String,
        /// How long they were tried, all of them together.
        tried_ms: u64,
        /// Why, of each.
        failures: TransportFailures,
    },
    /// The connection could not be made.
    #[error("queue {qid}: {source}")]
    Transport {
        /// The queue.
        qid: u16,
        /// What happened.
        source: CmError,
    },
    /// The target refused the RDMA connection.
    #[error("queue {qid}: the target refused the connection: {reason}; {next}")]
    Rejected {
        /// The queue.
        qid: u16,
        /// The target's reason.
        reason: String,
        /// What to do.
        next: String,
        /// A target has said so (RDMA_CM Reject), and not its machine or its network.
        by_target: bool,
    },
    /// Over NVMe/TCP no ICResp came: the other side sent something else, or closed the connection.
    #[error("queue {qid}: no ICResp came: {why}{}", next_of_mute(*is_mute))]
    NoIcResp {
        /// The queue.
        qid: u16,
        /// Why.
        why: String,
        /// It was closed without anything having been sent, as what does not speak NVMe/TCP may do.
        is_mute: bool,
    },
    /// The controller refused the Connect command.
    #[error(
        "queue {qid}: Connect was refused: {}{}: {reason}",
        status.display(StatusContext::Fabrics),
        at(location)
    )]
    Refused {
        /// The queue.
        qid: u16,
        /// Status.
        status: Status,
        /// The parameter it does not like.
        location: ErrorLocation,
        /// In words, with what to do.
        reason: String,
    },
    /// I/O queues of a discovery subsystem.
    #[error(
        "{subnqn} is a discovery subsystem, which has no namespaces and no I/O queues; expected one that has: {} at \
         the same address shows those, give the name of one ({})",
        Name::Discover,
        Name::Subnqn
    )]
    Discovery {
        /// Its name.
        subnqn: Box<Nqn>,
    },
    /// A command of the set-up failed.
    #[error("{step} failed: {status}{}", NextStep(*status))]
    Command {
        /// The step.
        step: &'static str,
        /// Status.
        status: Status,
    },
    /// A step took too long.
    #[error("{step} did not finish within {waited_ms} ms; {next}")]
    Timeout {
        /// The step.
        step: &'static str,
        /// How long it was waited for, in milliseconds.
        waited_ms: u64,
        /// What to do.
        next: String,
    },
    /// The controller lacks something this host needs.
    #[error("{what} is {value}, expected {expected}")]
    Unsupported {
        /// The property or field.
        what: &'static str,
        /// Its value.
        value: u64,
        /// What it must be.
        expected: &'static str,
    },
    /// The controller broke the protocol.
    #[error("queue {qid}: {what}; the target does not conform")]
    Protocol {
        /// The queue.
        qid: u16,
        /// What was wrong.
        what: String,
    },
    /// The connection ended.
    #[error("queue {qid}: the connection ended: {cause}")]
    Disconnected {
        /// The queue.
        qid: u16,
        /// Which side ended it, and why where that is known.
        cause: String,
    },
    /// The controller reported a fatal error (CSTS.CFS).
    #[error("the controller reports a fatal error (CSTS.CFS); see the target's log")]
    ControllerFatal,
    /// RDMA resources or memory could not be had.
    #[error("{what}: {message}")]
    Resources {
        /// The resource.
        what: &'static str,
        /// Why.
        message: String,
    },
    /// The local side closed the association.
    #[error("the association was closed")]
    Closed,
    /// The local side resets the controller.
    #[error("a reset of the controller was asked for")]
    Reset,
    /// The controller did not come back.
    #[error(
        "the controller was lost for {lost_s} s ({}; {} is {ctrl_loss_tmo_s} s): {cause}",
        Count((*attempts).into(), "attempt"),
        Name::CtrlLossTmo
    )]
    LossTimeout {
        /// How long, in seconds.
        lost_s: u64,
        /// Attempts to connect again.
        attempts: u32,
        /// The limit, in seconds.
        ctrl_loss_tmo_s: u64,
        /// The last reason.
        cause: Arc<Self>,
    },
}

impl ConnectError {
    /// The same, without [`ConnectError::next_step`]: where another transport has led to the
    /// controller, that is done.
    #[must_use]
    pub fn without_next_step(&self) -> String {
        match self {
            Self::Rejected { qid, reason, .. } => {
                format!("queue {qid}: the target refused the connection: {reason}")
            }
            Self::NoIcResp { qid, why, .. } => format!("queue {qid}: no ICResp came: {why}"),
            Self::Addresses { name, failures } => {
                let each = failures.0.iter();
                let texts: Vec<_> = each
                    .map(|(address, error)| format!("{address}: {}", error.without_next_step()))
                    .collect();
                format!(
                    "none of the addresses of {name} takes it: {}",
                    texts.join("; ")
                )
            }
            other => other.to_string(),
        }
    }

    /// What to do where a target does not take a connection by this transport; `None` of other
    /// reasons.
    #[must_use]
    pub fn next_step(&self) -> Option<String> {
        match self {
            Self::Rejected { next, .. } => Some(next.clone()),
            Self::NoIcResp { is_mute: true, .. } => Some(no_tcp()),
            _ => None,
        }
    }
}

/// What to do about a connection by NVMe/TCP that was closed without a word.
fn no_tcp() -> String {
    format!("{}; else the target's log says why", rdma_only())
}

fn next_of_mute(is_mute: bool) -> String {
    match is_mute {
        true => format!("; {}", no_tcp()),
        false => String::new(),
    }
}

/// What is wrong with each of several addresses.
#[derive(Clone, Debug)]
pub struct Failures(pub Arc<[(SocketAddr, Arc<ConnectError>)]>);

impl fmt::Display for Failures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (address, error)) in self.0.iter().enumerate() {
            let separator = if at == 0 { "" } else { "; " };
            write!(f, "{separator}{address}: {error}")?;
        }
        Ok(())
    }
}

/// What is wrong with each of several transports, by their names.
#[derive(Clone, Debug)]
pub struct TransportFailures(pub Arc<[(String, Arc<ConnectError>)]>);

impl TransportFailures {
    /// Why, of each, without the next step: that was to take another transport.
    pub(crate) fn without_next_steps(&self) -> String {
        let each = self.0.iter();
        let each = each.map(|(name, error)| format!("{name}: {}", error.without_next_step()));
        each.collect::<Vec<_>>().join("; ")
    }
}

impl fmt::Display for TransportFailures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (name, error)) in self.0.iter().enumerate() {
            let separator = if at == 0 { "" } else { "; " };
            write!(f, "{separator}{name}: {error}")?;
        }
        Ok(())
    }
}

/// Why an I/O failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum IoError {
    /// The controller completed it with an error.
    #[error("{}: {status}{}", Range { opcode: *opcode, nsid: *nsid, slba: *slba, nlb: *nlb }, NextStep(*status))]
    Status {
        /// The command.
        opcode: capstan_nvme_proto::opcode::IoOpcode,
        /// Namespace.
        nsid: u32,
        /// First LBA.
        slba: u64,
        /// Blocks.
        nlb: u32,
        /// Status.
        status: Status,
    },
    /// It is not inside the namespace, or its buffer does not fit it.
    #[error("{what} is {value}, expected {expected}")]
    Invalid {
        /// The parameter.
        what: &'static str,
        /// Its value.
        value: u64,
        /// What it must be.
        expected: &'static str,
    },
    /// The subsystem has no such namespace for this host.
    #[error("subsystem {subnqn} has {}", no_namespace(*nsid, nsids))]
    NoNamespace {
        /// Subsystem.
        subnqn: Arc<str>,
        /// Namespace.
        nsid: u32,
        /// Those that it has.
        nsids: Arc<[u32]>,
    },
    /// The controller lists it, and did not tell what it is.
    #[error("subsystem {subnqn} lists namespace {}, and this host cannot use it: {unidentified}; see the target's log", unidentified.nsid)]
    Unidentified {
        /// Subsystem.
        subnqn: Arc<str>,
        /// What has failed.
        unidentified: Unidentified,
    },
    /// After a reconnect the namespace is another one.
    #[error(
        "namespace {nsid} is not the one it was: {change}; connect anew to use it: {}",
        Name::ConnectAnew
    )]
    NamespaceReplaced {
        /// Namespace.
        nsid: u32,
        /// What is different.
        change: Arc<str>,
    },
    /// The controller does not have the command.
    #[error("the controller does not support {0}")]
    Unsupported(&'static str),
    /// The connection broke each time while this command was outstanding.
    #[error("given up after {} while it was outstanding; the last connection was lost: {cause}", Count(u64::from(*replays), "reconnect"))]
    Replays {
        /// How often it was sent again.
        replays: u8,
        /// What ended the last connection.
        cause: Arc<ConnectError>,
    },
    /// It was sent and not answered, and it is not known whether the old controller is gone.
    #[error(
        "{opcode} of {} at LBA {slba} of namespace {nsid} has an unknown outcome, now and later: {why}; \
         it is not sent again, and writes of these LBAs are refused until the volume is attached anew, once the \
         target has certainly ended the old connection",
        Count(u64::from(*nlb), "LBA")
    )]
    OutcomeUnknown {
        /// The command.
        opcode: capstan_nvme_proto::opcode::IoOpcode,
        /// Namespace.
        nsid: u32,
        /// First LBA.
        slba: u64,
        /// Blocks.
        nlb: u32,
        /// Why that is not known.
        why: &'static str,
    },
    /// The target's machine was started anew, and what was acknowledged and not flushed is gone
    /// with its caches.
    #[error(
        "acknowledged writes to namespace {nsid} may be lost: the target's machine was started anew before they \
         were flushed, the oldest was acknowledged {acknowledged_s} s ago; check what is there, or write it again. \
         This is told once: the next Flush is of what was written since"
    )]
    WritesLost {
        /// Namespace.
        nsid: u32,
        /// How long ago the oldest was acknowledged, in seconds.
        acknowledged_s: u64,
    },
    /// The controller is gone for good.
    #[error("the controller is gone: {0}")]
    ControllerLost(Arc<ConnectError>),
    /// The driver of the association has ended.
    #[error("the association was closed")]
    Closed,
}

impl IoError {
    /// That `nsid` is none of `namespaces`, which are those of the subsystem but for the
    /// `unidentified`.
    pub(crate) fn no_namespace(
        subnqn: &Nqn,
        nsid: u32,
        namespaces: &[NamespaceInfo],
        unidentified: &[Unidentified],
    ) -> Self {
        if let Some(unidentified) = unidentified.iter().find(|other| other.nsid == nsid) {
            return Self::Unidentified {
                subnqn: subnqn.as_str().into(),
                unidentified: *unidentified,
            };
        }
        Self::NoNamespace {
            subnqn: subnqn.as_str().into(),
            nsid,
            nsids: namespaces.iter().map(|namespace| namespace.nsid).collect(),
        }
    }
}

/// What an I/O command was about, for people.
struct Range {
    opcode: capstan_nvme_proto::opcode::IoOpcode,
    nsid: u32,
    slba: u64,
    nlb: u32,
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            opcode,
            nsid,
            slba,
            nlb,
        } = self;
        match nlb {
            0 => write!(f, "{opcode} of namespace {nsid}"),
            _ => write!(
                f,
                "{opcode} of {} at LBA {slba} of namespace {nsid}",
                Count(u64::from(*nlb), "LBA")
            ),
        }
    }
}

/// What to do about a status, where that is known.
struct NextStep(Status);

impl fmt::Display for NextStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match next_step(self.0) {
            Some(step) => write!(f, "; {step}"),
            None => Ok(()),
        }
    }
}

/// What a person does about a command that failed with `status`, where its name alone is no help.
pub(crate) fn next_step(status: Status) -> Option<Cow<'static, str>> {
    Some(Cow::Borrowed(match status.code() {
        Status::WRITE_FAULT => {
            "its storage failed, or has lost what it had taken: see the target's log and `capstan-target doctor` there"
        }
        Status::CAPACITY_EXCEEDED => {
            "make room where the target keeps the volume; its log and `capstan-target doctor` there say where"
        }
        Status::NAMESPACE_IS_WRITE_PROTECTED => {
            return Some(Cow::Owned(format!(
                "end the protection (Set Features 84h, Namespace Write Protection Config; or what the target is \
                 configured for), or go on with {}",
                Name::ReadOnly
            )));
        }
        Status::RESERVATION_CONFLICT => {
            "another host has reserved it: Reservation Report tells which (`nvme resv-report`)"
        }
        Status::TRANSIENT_TRANSPORT_ERROR => {
            return Some(Cow::Owned(format!(
                "its data was corrupted on the way (with {}: its CRC32C did not match): look at the network devices \
                 between this host and the target",
                Name::DataDigest
            )));
        }
        Status::UNRECOVERED_READ_ERROR | Status::INTERNAL_ERROR => "see the target's log",
        _ => return None,
    }))
}

/// What was written and may not be on the medium, as the end of an association tells it: a text for
/// each namespace and reason, with what to do. `Display` is for people.
#[derive(Clone, Debug, Default, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("; "))]
pub struct Losses(pub Vec<String>);

impl Losses {
    /// Success when there are none.
    ///
    /// # Errors
    /// There are some.
    pub fn into_result(self) -> Result<(), Self> {
        if self.0.is_empty() { Ok(()) } else { Err(self) }
    }
}

/// Why an admin command, or an I/O command sent as it is, failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CommandError {
    /// The controller completed it with an error.
    #[error("{what}: {status}{}", NextStep(*status))]
    Status {
        /// The command.
        what: &'static str,
        /// Status.
        status: Status,
    },
    /// The association is lost; the command was not sent, or changes nothing.
    #[error("the association was lost before the answer: {0}")]
    Lost(Arc<ConnectError>),
    /// The association was lost while it was outstanding; it may or may not have been carried out.
    #[error(
        "{what} has an unknown outcome: it was sent, and the association was lost before the answer ({cause}); \
         it is not sent again: look at what it changes first"
    )]
    OutcomeUnknown {
        /// The command.
        what: &'static str,
        /// Why the association was lost.
        cause: Arc<ConnectError>,
    },
    /// It may change something, and an old controller may not be gone yet.
    #[error("{0}; send the command again then")]
    Held(Held),
    /// As many commands wait already as this host keeps, or use the memory there is for data.
    #[error("too many commands are waiting; try again when one has finished")]
    Busy,
    /// Its data is larger than this host moves for one command.
    #[error("{len_bytes} bytes of data, expected at most {max_bytes}; move them in pieces")]
    TooLong {
        /// Bytes asked for.
        len_bytes: u64,
        /// Most bytes.
        max_bytes: u32,
    },
    /// The answer is not what the specification says.
    #[error("{what}: {problem}; the target does not conform")]
    Data {
        /// The command.
        what: &'static str,
        /// What is wrong with its data.
        problem: String,
    },
}

impl PartialEq for ConnectError {
    /// Errors are equal when they say the same.
    fn eq(&self, other: &Self) -> bool {
        self.to_string() == other.to_string()
    }
}

/// Where a parameter is that a controller does not like, if it says so.
fn at(location: &ErrorLocation) -> String {
    match location {
        ErrorLocation::Unspecified => String::new(),
        _ => format!(" at {location}"),
    }
}
