//! Connection management, discovery, and the association with a subsystem.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use capstan_doctor::{Check, Verdict};
use capstan_initiator::names::Name;
use capstan_initiator::{ConnectError, DirectQueue, Unidentified, Wire};
use capstan_nvme_proto::log::{DiscoveryLogEntry, DiscoverySubsystemType};
use capstan_nvme_proto::nqn::Nqn;
use capstan_nvme_proto::status::StatusContext;
use capstan_rdma::address_words::RouteTo;
use capstan_rdma::contract::CmError;
use nix::libc;

use super::super::offers::{Offers, names_told};
use super::super::output;
use super::super::taken::told_unidentified;
use super::exercise::{namespace_to_read, nothing_to_read};
use super::reach::Reached;

/// Subsystems that are tried where none is named. Those behind one that does not answer are not.
const TRIED_MAX: usize = 16;
const LOG: &str = "see the target's log: journalctl -u capstan-target";

/// Connects to the discovery service and reads its log. `false` when it is of no use to go on.
pub(super) fn discover(reached: &mut Reached, checks: &mut Vec<Check>) -> bool {
    let start = Instant::now();
    let options = reached.connect.discovery_options(&reached.identity);
    let transport = options.transport;
    let mut queue = match DirectQueue::connect(&options) {
        Ok(queue) => queue,
        Err(error) => {
            // A target may refuse its discovery service to this host and not a subsystem.
            let go_on = matches!(error, ConnectError::Refused { .. });
            checks.extend(refused("discovery", reached, error));
            return go_on;
        }
    };
    let elapsed = start.elapsed();
    if let Some(taken) = queue.taken() {
        reached.take(options, taken, checks);
    }
    checks.push(connected(reached.connecting(), elapsed));
    let transport = queue.wire().map_or(transport, Wire::transport);
    let log = queue.discover();
    queue.close();
    match log {
        Ok((genctr, entries)) => {
            reached.offered = Some(Offers::over(transport, &entries));
            let hostnqn = reached.identity.hostnqn.as_str();
            let wanted = reached.connect.nqn.as_deref();
            checks.push(offers(&entries, genctr, wanted, hostnqn));
            true
        }
        Err(error) => {
            checks.push(Check::error(
                "discovery",
                error.to_string(),
                "a log page",
                LOG,
            ));
            true
        }
    }
}

fn connected(name: &'static str, elapsed: Duration) -> Check {
    let ms = elapsed.as_secs_f64() * 1e3;
    let seen = format!("accepted; the discovery controller was ready in {ms:.1} ms");
    Check::ok(name, seen).with_figure("ready_ms", ms)
}

/// What the discovery log offers this host.
fn offers(
    entries: &[DiscoveryLogEntry],
    genctr: u64,
    wanted: Option<&str>,
    hostnqn: &str,
) -> Check {
    const NAME: &str = "discovery";
    let mut names: Vec<Nqn> = entries
        .iter()
        .filter(|entry| entry.subtype == DiscoverySubsystemType::NVM)
        .filter_map(|entry| entry.subsystem_nqn().ok())
        .collect();
    names.sort();
    names.dedup();
    let seen = match names.as_slice() {
        [] => format!("no subsystem for this host (generation {genctr})"),
        names => format!("{} (generation {genctr})", names_told(names)),
    };
    let allow = format!(
        "check the name; if it is right, on the target: add \"{hostnqn}\" to the subsystem's \
         allowed_hosts, and systemctl reload capstan-target"
    );
    match wanted {
        Some(wanted) if !names.iter().any(|name| name.as_str() == wanted) => {
            Check::warning(NAME, seen, wanted, allow)
        }
        None if names.is_empty() => Check::warning(NAME, seen, "a subsystem", allow),
        _ => Check::ok(NAME, seen),
    }
}

/// Connects to the subsystem that was named; without one, to the first of those that are offered
/// which takes this host and has something for it to read from: the namespace `nsid`, where that
/// was named. Says what was not tried.
pub(super) fn connect(
    reached: &mut Reached,
    nsid: Option<u32>,
    checks: &mut Vec<Check>,
) -> Option<DirectQueue> {
    if reached.connect.nqn.is_some() {
        return connect_to_named(reached, checks).ok().flatten();
    }
    let names = match &reached.offered {
        Some(offers) if offers.here.is_empty() => {
            let why = offers.why_none(&reached.identity.hostnqn);
            // Nothing was found out of what was asked for.
            checks.push(Check::error(
                "reads",
                format!("not tried: the target {why}"),
                "a subsystem that this host can read from",
                format!("{} shows what it is offered", Name::Discover),
            ));
            return None;
        }
        Some(offers) => offers.here.clone(),
        None => {
            let seen = "not tried: it is not known which subsystems there are; give one with --nqn";
            checks.push(Check::ok("reads", seen));
            return None;
        }
    };
    let left = names.len().saturating_sub(TRIED_MAX);
    let mut refusals = Vec::new();
    for name in names.into_iter().take(TRIED_MAX) {
        reached.connect.nqn = Some(name.as_str().to_owned());
        let mut of_it = Vec::new();
        let connected = connect_to_named(reached, &mut of_it);
        let Ok(connected) = connected else {
            refusals.append(&mut of_it);
            continue;
        };
        if let Some(queue) = &connected
            && let Err(error) = namespace_to_read(queue, nsid)
        {
            refusals.append(&mut of_it);
            refusals.push(nothing_to_read(&error, &reached.connect.way()));
            connected?.close();
            continue;
        }
        // Another one has what was asked for.
        for mut refusal in refusals {
            if refusal.verdict == Verdict::Error {
                refusal.verdict = Verdict::Warning;
            }
            checks.push(refusal);
        }
        checks.append(&mut of_it);
        return connected;
    }
    checks.append(&mut refusals);
    if left > 0 {
        let seen = format!("{left} more subsystem(s) were not tried; give one with --nqn");
        checks.push(Check::ok("reads", seen));
    }
    None
}

/// A subsystem does not take this host; another one may.
struct Refused;

/// `None` where no other subsystem would do either.
fn connect_to_named(
    reached: &mut Reached,
    checks: &mut Vec<Check>,
) -> Result<Option<DirectQueue>, Refused> {
    let mut options = match reached.connect.options() {
        Ok(options) => options,
        Err(error) => {
            let seen = output::chain(&error);
            checks.push(Check::error(
                "subsystem",
                seen,
                "an NQN",
                Name::Discover.to_string(),
            ));
            return Ok(None);
        }
    };
    // What is lost is to be told, not to be waited for.
    options.ctrl_loss_tmo = Some(Duration::ZERO);
    match DirectQueue::connect(&options) {
        Ok(queue) => {
            let subnqn = options.subnqn.clone();
            if let Some(taken) = queue.taken() {
                reached.take(options, taken, checks);
            }
            checks.push(controller(&queue, &subnqn, reached));
            checks.extend(unidentified(queue.unidentified()));
            Ok(Some(queue))
        }
        Err(error) => {
            let is_refused = matches!(error, ConnectError::Refused { .. });
            checks.extend(refused("subsystem", reached, error));
            match is_refused {
                true => Err(Refused),
                false => Ok(None),
            }
        }
    }
}

/// Namespaces that the controller lists, and does not tell what they are.
fn unidentified(all: &[Unidentified]) -> impl Iterator<Item = Check> {
    let (told, more) = told_unidentified(all);
    let each = told.iter().map(|unidentified| {
        let name = format!("namespace {}", unidentified.nsid);
        Check::warning(name, unidentified.to_string(), "success", LOG)
    });
    each.chain(more.map(|more| Check::warning("namespaces", more, "success", LOG)))
}

fn controller(queue: &DirectQueue, subnqn: &Nqn, reached: &Reached) -> Check {
    let info = queue.controller();
    let largest = info
        .transfer_bytes_max
        .map_or_else(|| "any size".to_owned(), |max| output::size(max.into()));
    let wire = queue
        .wire()
        .map_or_else(String::new, |wire| format!(" over {wire}"));
    Check::ok(
        "subsystem",
        format!(
            "{subnqn}: controller {} at {}{wire}: {} {}, {} I/O queue(s), transfers of {largest}, {} \
             in the capsule",
            info.cntlid,
            reached.address,
            info.model,
            info.firmware,
            info.io_queues,
            output::size(info.in_capsule_bytes.into()),
        ),
    )
}

fn refused(step: &'static str, reached: &Reached, error: ConnectError) -> Vec<Check> {
    why_refused(step, reached.connecting(), reached.address, error)
}

/// Why there is no association: in the step `connecting`, or behind it.
fn why_refused(
    step: &'static str,
    connecting: &str,
    address: SocketAddr,
    error: ConnectError,
) -> Vec<Check> {
    match error {
        ConnectError::Rejected {
            qid, reason, next, ..
        } => vec![Check::error(
            connecting,
            format!("queue {qid}: rejected: {reason}"),
            "accepted",
            next,
        )],
        ConnectError::NoIcResp { .. } => {
            let next = error.next_step().unwrap_or_else(|| listens(address));
            vec![Check::error(
                connecting,
                error.without_next_step(),
                "an ICResp",
                next,
            )]
        }
        ConnectError::Transport { qid, source } => vec![Check::error(
            connecting,
            format!("queue {qid}: {source}"),
            "a connection",
            unreachable_remedy(&source, address),
        )],
        ConnectError::Timeout { .. } | ConnectError::Disconnected { .. } => {
            vec![Check::error(
                connecting,
                error.to_string(),
                "an answer",
                LOG,
            )]
        }
        ConnectError::Refused {
            qid,
            status,
            location,
            reason,
        } => vec![
            Check::ok(connecting, format!("accepted, queue {qid} of the {step}")),
            Check::error(
                step,
                format!(
                    "Connect was refused: {} at {location}",
                    status.display(StatusContext::Fabrics)
                ),
                "success",
                reason,
            ),
        ],
        ConnectError::Transports { failures, .. } => {
            let each = failures.0.iter();
            each.flat_map(|(transport, error)| {
                let connecting = format!("{connecting}, {transport}");
                why_refused(step, &connecting, address, ConnectError::clone(error))
            })
            .collect()
        }
        ConnectError::Addresses { failures, .. } => {
            let each = failures.0.iter();
            each.flat_map(|(address, error)| {
                why_refused(step, connecting, *address, ConnectError::clone(error))
            })
            .collect()
        }
        other => vec![Check::error(step, other.to_string(), "an association", LOG)],
    }
}

fn unreachable_remedy(error: &CmError, address: SocketAddr) -> String {
    let (ip, port) = (address.ip(), address.port());
    match error {
        CmError::Timeout { .. } => {
            format!("ping {ip}; on the target: nft list ruleset, for what drops port {port}; {LOG}")
        }
        // Another way there would find nothing either.
        CmError::System {
            errno: Some(libc::ECONNREFUSED),
            ..
        } => format!(
            "check the address and port; on the target: systemctl status capstan-target, and ss -ltn, for what listens; \
             {LOG}"
        ),
        CmError::System { .. } => format!("ip route get {}; {LOG}", RouteTo(address)),
        CmError::Silent { .. } | CmError::Protocol { .. } => listens(address),
        CmError::Invalid(_) => LOG.to_owned(),
    }
}

/// What names that which has taken a connection and is no target.
fn listens(address: SocketAddr) -> String {
    let port = address.port();
    format!(
        "check the address and port; on the target: ss -ltnp 'sport = :{port}', for what listens there; {LOG}"
    )
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::Arc;

    use capstan_doctor::Verdict;
    use capstan_initiator::ConnectError;
    use capstan_initiator::error::TransportFailures;
    use capstan_nvme_proto::error::ErrorLocation;
    use capstan_nvme_proto::status::Status;

    use capstan_rdma::contract::CmError;
    use nix::libc;

    use super::{offers, why_refused};

    const CM: &str = "CM connect";

    fn address() -> SocketAddr {
        SocketAddr::from(([192, 0, 2, 1], 4420))
    }

    #[test]
    fn a_target_that_cannot_be_reached_comes_with_where_to_look() {
        let cases = [
            (
                CmError::Timeout {
                    what: "TCP connect".to_owned(),
                    timeout_ms: 3000,
                },
                "ping 192.0.2.1; on the target: nft list ruleset, for what drops port 4420",
            ),
            (
                CmError::System {
                    what: "connecting".to_owned(),
                    message: "no route to host".to_owned(),
                    errno: Some(113),
                },
                "ip route get 192.0.2.1",
            ),
            (
                CmError::System {
                    what: "connecting".to_owned(),
                    message: "Connection refused".to_owned(),
                    errno: Some(libc::ECONNREFUSED),
                },
                "check the address and port; on the target: systemctl status capstan-target",
            ),
            (
                CmError::Silent {
                    what: "ICResp".to_owned(),
                    timeout_ms: 3000,
                    came_bytes: 0,
                },
                "check the address and port; on the target: ss -ltnp 'sport = :4420'",
            ),
            (
                CmError::Protocol {
                    what: "reading",
                    got: "HTTP".to_owned(),
                    expected: "an MPA Reply",
                },
                "check the address and port; on the target: ss -ltnp 'sport = :4420'",
            ),
        ];
        for (source, remedy) in cases {
            let error = ConnectError::Transport { qid: 0, source };
            let checks = why_refused("discovery", CM, address(), error);
            assert_eq!(checks[0].name, "CM connect");
            let told = checks[0].remedy.as_deref().unwrap();
            assert!(told.starts_with(remedy), "{told}");
        }
    }

    #[test]
    fn a_reject_is_the_connection_managers_and_a_refusal_is_not() {
        let rejected = why_refused(
            "discovery",
            CM,
            address(),
            ConnectError::Rejected {
                qid: 0,
                reason: "nothing listens there".to_owned(),
                next: "check the address".to_owned(),
                by_target: false,
            },
        );
        assert_eq!(rejected.len(), 1);
        assert_eq!(rejected[0].name, "CM connect");
        assert_eq!(rejected[0].seen, "queue 0: rejected: nothing listens there");
        assert_eq!(rejected[0].remedy.as_deref(), Some("check the address"));
        let refused = why_refused(
            "subsystem",
            CM,
            address(),
            ConnectError::Refused {
                qid: 0,
                status: Status::CONNECT_INVALID_HOST,
                location: ErrorLocation::Unspecified,
                reason: "add the host".to_owned(),
            },
        );
        let told: Vec<_> = refused
            .iter()
            .map(|c| (c.name.as_str(), c.verdict))
            .collect();
        let expected = [("CM connect", Verdict::Ok), ("subsystem", Verdict::Error)];
        assert_eq!(told, expected);
        assert_eq!(refused[1].remedy.as_deref(), Some("add the host"));
    }

    #[test]
    fn each_transport_that_was_tried_has_a_line() {
        let timeout = || CmError::Timeout {
            what: "TCP connect".to_owned(),
            timeout_ms: 3500,
        };
        let failed = |name: &str| {
            let source = timeout();
            let error = ConnectError::Transport { qid: 0, source };
            (name.to_owned(), Arc::new(error))
        };
        let failures = [failed("RDMA (iwarp)"), failed("NVMe/TCP")];
        let error = ConnectError::Transports {
            name: "192.0.2.1".to_owned(),
            tried_ms: 0,
            failures: TransportFailures(failures.into()),
        };
        let checks = why_refused("discovery", "connect", address(), error);
        let names: Vec<_> = checks.iter().map(|check| check.name.as_str()).collect();
        assert_eq!(names, ["connect, RDMA (iwarp)", "connect, NVMe/TCP"]);
        assert!(checks.iter().all(|check| check.remedy.is_some()));
    }

    #[test]
    fn an_empty_discovery_log_names_the_host_to_allow() {
        let check = offers(&[], 3, Some("nqn.s"), "nqn.h");
        assert_eq!(check.verdict, Verdict::Warning);
        assert_eq!(check.seen, "no subsystem for this host (generation 3)");
        assert!(check.remedy.unwrap().contains("\"nqn.h\""));
    }
}
