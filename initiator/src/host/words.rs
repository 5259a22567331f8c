//! Refusals of the other side in words, with the next step.

use capstan_nvme_proto::error::ErrorLocation;
use capstan_nvme_proto::fabrics::ConnectData;
use capstan_nvme_proto::nqn::{HostId, Nqn};
use capstan_nvme_proto::rdma_cm::{CmReject, RejectStatus};
use capstan_nvme_proto::status::{Status, StatusContext};
use capstan_rdma::contract::RejectReason;

use super::scan::NAMESPACES_MAX;
use crate::names::Name;
use crate::options::Transport;

/// What this host said when it asked to connect.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked<'a> {
    pub(super) subnqn: &'a Nqn,
    pub(super) hostnqn: &'a Nqn,
    pub(super) hostid: HostId,
    pub(super) qid: u16,
    pub(super) entries: u16,
    pub(super) transport: Transport,
}

/// A refused RDMA connection: the reason, and what to do.
pub(super) fn rejected(reason: RejectReason, private_data: &[u8]) -> (String, String) {
    match reason {
        RejectReason::NoListener => (
            "nothing listens there".to_owned(),
            "check the address and port; on the target: `ss -ltn` (iwarp) or `rdma resource show cm_id` (verbs) shows \
             what listens"
                .to_owned(),
        ),
        RejectReason::Protocol => (
            "it does not speak this RDMA protocol".to_owned(),
            format!(
                "check that the port is one of NVMe over RDMA and that {} fits the target's (iwarp \
                 or verbs)",
                Name::Provider
            ),
        ),
        RejectReason::Other { code, words } => (
            format!("{words} (transport code {code})"),
            "see the target's log for the reason".to_owned(),
        ),
        RejectReason::Consumer => match CmReject::parse(private_data) {
            Ok(reject) => (
                format!("RDMA_CM reject: {}", reject.status),
                reject_hint(reject.status),
            ),
            Err(error) => (
                format!("without a reason ({error})"),
                "see the target's log for the reason".to_owned(),
            ),
        },
    }
}

fn reject_hint(status: RejectStatus) -> String {
    match status {
        RejectStatus::NO_RESOURCES => format!(
            "the target is at its limit of connections or memory, or was drained: lower {} or {}, \
             raise the target's limits, or have it take connections (`capstan-target status` there)",
            Name::FewerQueues,
            Name::QueueSize
        ),
        RejectStatus::INVALID_HSQSIZE | RejectStatus::INVALID_HRQSIZE => {
            format!("lower {} to what the target allows", Name::QueueSize)
        }
        // There is only the one format that was sent.
        RejectStatus::INVALID_RECFMT => format!(
            "this listener may speak NVMe/TCP only: try {}, or let it speak RDMA (transports of its [[listener]])",
            Name::TryTcp
        ),
        RejectStatus::INVALID_QID => {
            format!("lower {} to what the target allows", Name::NrIoQueues)
        }
        RejectStatus::INVALID_IRD | RejectStatus::INVALID_ORD => {
            "the two RDMA devices disagree on RDMA READ depth; see the target's log".to_owned()
        }
        _ => {
            "host and target disagree on the RDMA_CM private data; see the target's log".to_owned()
        }
    }
}

/// A refused Connect command, with what to do.
pub(super) fn refused(status: Status, location: ErrorLocation, asked: Asked<'_>) -> String {
    let Asked {
        subnqn,
        hostnqn,
        hostid,
        qid,
        entries,
        transport,
    } = asked;
    match status.code() {
        Status::CONNECT_INVALID_HOST => format!(
            "host {hostnqn} (host identifier {hostid}) may not connect to {subnqn}: add it to the \
             subsystem's allowed hosts, or connect with {} and {} of an allowed one",
            Name::Hostnqn,
            Name::Hostid
        ),
        Status::CONNECT_INVALID_PARAMETERS => invalid_parameters(location, asked),
        Status::CONNECT_CONTROLLER_BUSY if qid == 0 => format!(
            "the subsystem {subnqn} has no controller left for this host, or the target no memory for its queue (its log \
             says which); disconnect another host, or raise the target's limit of controllers or of memory (of \
             capstan-target hosts_max and memory_budget)"
        ),
        // Its controller is there.
        Status::CONNECT_CONTROLLER_BUSY => format!(
            "the target has a controller for this host, and no memory for I/O queue {qid} of {entries} entries, or it has \
             not finished with an earlier one (its log says which); lower {} or {}, disconnect \
             another host, or raise the target's limit of memory (of capstan-target memory_budget)",
            Name::QueueSize,
            Name::FewerQueues
        ),
        // There is only the one format that was sent.
        Status::CONNECT_INCOMPATIBLE_FORMAT if transport == Transport::Tcp => rdma_only(),
        Status::CONNECT_INCOMPATIBLE_FORMAT => {
            "the target does not know record format 0 of Connect; it speaks another revision of \
             NVMe over Fabrics"
                .to_owned()
        }
        Status::CONNECT_RESTART_DISCOVERY => format!(
            "the target wants discovery to be done again: connect to what {} shows",
            Name::Discover
        ),
        Status::AUTHENTICATION_REQUIRED => {
            "the target wants authentication (DH-HMAC-CHAP), which this host cannot do yet"
                .to_owned()
        }
        Status::INVALID_QUEUE_SIZE => {
            format!(
                "{entries} queue entries are too many; lower {}",
                Name::QueueSize
            )
        }
        _ => match status.name(StatusContext::Fabrics) {
            Some(_) => format!("queue {qid} of {subnqn}; see the target's log for the reason"),
            None => "a status this host does not know; see the target's log".to_owned(),
        },
    }
}

/// What to do about a target that does not answer while an association is set up.
pub(super) fn hangs_in_setup() -> String {
    format!(
        "the target is too busy or hangs: see its log, or give it longer ({})",
        Name::ConnectTimeout
    )
}

/// What may be wrong where a listener takes no NVMe/TCP, and what to do.
pub(crate) fn rdma_only() -> String {
    format!(
        "this listener may speak NVMe/RDMA only: try {}, or let it speak NVMe/TCP (transports of its [[listener]])",
        Name::TryRdma
    )
}

/// Namespaces that a message lists.
const NSIDS_TOLD: usize = 16;

/// That `nsid` is none of `nsids`, and what to do.
pub(crate) fn no_namespace(nsid: u32, nsids: &[u32]) -> String {
    if nsids.is_empty() {
        return format!(
            "no namespace {nsid}, and no other one for this host: add one on the target (capstan-target: a \
             [[subsystem.namespace]], and a reload), or name another subsystem ({} shows those there are)",
            Name::Discover
        );
    }
    if let Some(last) = nsids
        .last()
        .filter(|last| nsids.len() >= NAMESPACES_MAX && **last < nsid)
    {
        return format!(
            "as many namespaces as this host looks at ({NAMESPACES_MAX}, the last of them {last}), and whether there is a {nsid} \
             was not asked: on the target, give it an NSID up to {last}, or a subsystem with fewer namespaces"
        );
    }
    let told: Vec<_> = nsids.iter().take(NSIDS_TOLD).map(u32::to_string).collect();
    let more = match nsids.len() - told.len() {
        0 => String::new(),
        more => format!(" and {more} more ({} shows all)", Name::Namespaces),
    };
    format!(
        "no namespace {nsid} for this host, expected one of: {}{more}",
        told.join(", ")
    )
}

fn invalid_parameters(location: ErrorLocation, asked: Asked<'_>) -> String {
    let Asked {
        subnqn,
        hostnqn,
        hostid,
        qid,
        entries,
        ..
    } = asked;
    match location {
        ConnectData::SUBNQN_LOCATION => format!(
            "there is no subsystem {subnqn} at this address; {} shows those this host may use{}",
            Name::Discover,
            if subnqn.uuid().is_some() {
                ", and give the name as it is written there: the digits of a UUID count in upper or \
                 lower case"
            } else {
                ""
            }
        ),
        ConnectData::HOSTNQN_LOCATION => {
            format!(
                "the host NQN {hostnqn} is not acceptable; check {}",
                Name::Hostnqn
            )
        }
        ConnectData::HOSTID_LOCATION => format!(
            "the host identifier {hostid} is not acceptable; give the one that belongs to \
             {hostnqn} with {}",
            Name::Hostid
        ),
        ConnectData::CNTLID_LOCATION => format!(
            "the controller identifier is not acceptable for queue {qid}; the controller was \
             probably deleted in between, try again"
        ),
        // Offsets of NVMe Base 2.1, section 6.3 (Connect Command - Submission Queue Entry).
        ErrorLocation::Sqe { byte: 42 | 43, .. } => {
            format!(
                "queue identifier {qid} is not acceptable; lower {}",
                Name::NrIoQueues
            )
        }
        ErrorLocation::Sqe { byte: 44 | 45, .. } => {
            format!(
                "{entries} queue entries are too many; lower {}",
                Name::QueueSize
            )
        }
        ErrorLocation::Sqe { byte: 48..=51, .. } => {
            format!(
                "the Keep Alive Timeout is not acceptable; change {}",
                Name::KeepAliveTmo
            )
        }
        ErrorLocation::Unspecified | ErrorLocation::Sqe { .. } | ErrorLocation::Data { .. } => {
            format!("the target does not say which parameter of queue {qid} it means; see its log")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked<'a>(subnqn: &'a Nqn, hostnqn: &'a Nqn) -> Asked<'a> {
        Asked {
            subnqn,
            hostnqn,
            hostid: HostId([0x11; 16]),
            qid: 1,
            entries: 128,
            transport: Transport::Tcp,
        }
    }

    /// The list of a controller is cut, and a namespace behind the cut may be there.
    #[test]
    fn a_namespace_that_was_not_looked_for_is_not_said_to_be_missing() {
        let all: Vec<u32> = (1..).take(NAMESPACES_MAX).collect();
        let told = no_namespace(2000, &all);
        assert!(
            told.contains("whether there is a 2000 was not asked"),
            "{told}"
        );
        assert!(!told.contains("no namespace"), "{told}");
        let told = no_namespace(2000, &all[1..]);
        assert!(
            told.starts_with("no namespace 2000 for this host, expected one of: 2, 3"),
            "{told}"
        );
    }

    #[test]
    fn a_refused_host_reads_its_name_and_what_to_do() {
        let (subnqn, hostnqn) = (Nqn::new("nqn.sub").unwrap(), Nqn::new("nqn.me").unwrap());
        let text = refused(
            Status::CONNECT_INVALID_HOST.dnr(),
            ErrorLocation::Unspecified,
            asked(&subnqn, &hostnqn),
        );
        assert!(text.contains("nqn.me") && text.contains("nqn.sub") && text.contains("allowed"));
    }

    /// A controller is made with the Admin queue: an I/O queue that is refused lacks something
    /// else.
    #[test]
    fn a_busy_controller_is_no_missing_one_for_an_io_queue() {
        let (subnqn, hostnqn) = (Nqn::new("nqn.sub").unwrap(), Nqn::new("nqn.me").unwrap());
        let told = |qid| {
            let asked = Asked {
                qid,
                ..asked(&subnqn, &hostnqn)
            };
            let location = ErrorLocation::Unspecified;
            refused(Status::CONNECT_CONTROLLER_BUSY, location, asked)
        };
        let io = told(1);
        assert!(io.contains("no memory for I/O queue 1 of 128"), "{io}");
        assert!(io.contains("memory_budget"), "{io}");
        assert!(!io.contains("no controller left"), "{io}");
        assert!(!io.contains("limit of controllers"), "{io}");
        // Over NVMe/TCP the Admin queue may lack either.
        let admin = told(0);
        for words in ["no controller left", "hosts_max", "memory_budget"] {
            assert!(admin.contains(words), "{admin}");
        }
    }

    #[test]
    fn an_unknown_subsystem_is_told_by_ipo_256_in_the_data() {
        let (subnqn, hostnqn) = (Nqn::new("nqn.sub").unwrap(), Nqn::new("nqn.me").unwrap());
        // IATTR bit 0 set, IPO 256.
        let location = ErrorLocation::from_connect_dw0(0x0001_0100);
        let text = refused(
            Status::CONNECT_INVALID_PARAMETERS.dnr(),
            location,
            asked(&subnqn, &hostnqn),
        );
        assert!(text.starts_with("there is no subsystem nqn.sub"), "{text}");
        assert!(text.ends_with("those this host may use"), "{text}");
        let of_uuid = Nqn::from_uuid(HostId([0xAB; 16]).uuid());
        let text = refused(
            Status::CONNECT_INVALID_PARAMETERS.dnr(),
            location,
            asked(&of_uuid, &hostnqn),
        );
        assert!(text.contains("as it is written there"), "{text}");
    }

    #[test]
    fn cm_rejects_have_words_and_a_next_step() {
        let (reason, next) = rejected(RejectReason::Consumer, &[0, 0, 6, 0]);
        assert_eq!(reason, "RDMA_CM reject: No Resources");
        assert!(next.contains("Options::queue_size"), "{next}");
        let (reason, next) = rejected(RejectReason::Consumer, &[0, 0, 2, 0]);
        assert_eq!(reason, "RDMA_CM reject: Invalid RECFMT");
        assert!(next.contains("try Transport::Tcp"), "{next}");
        let (reason, _) = rejected(RejectReason::Consumer, &[]);
        assert!(reason.starts_with("without a reason"));
        assert!(
            rejected(RejectReason::NoListener, &[])
                .0
                .contains("nothing")
        );
    }
}
