//! What librdmacm's statuses mean, in the contract's terms and in words.

use nix::errno::Errno;

use super::error::{of_status, step};
use crate::contract::{CmError, RejectReason};

/// Reasons of a REJ message that the contract has a name for (InfiniBand specification, volume 1,
/// table "REJ Reason Codes"; `enum ib_cm_rej_reason` in Linux).
const REJ_INVALID_SERVICE_ID: i32 = 8;
const REJ_CONSUMER_DEFINED: i32 = 28;

/// The others, in words, by code (the same table).
const REJ_REASONS: [(i32, &str); 27] = [
    (1, "no queue pair available"),
    (2, "no end-to-end context available"),
    (3, "no resources available"),
    (4, "it waited for this side too long"),
    (5, "unsupported request"),
    (6, "invalid communication identifier"),
    (7, "invalid communication instance"),
    (9, "invalid transport service type"),
    (
        10,
        "a stale connection of this side is still open there; try again",
    ),
    (11, "no such reliable datagram channel"),
    (12, "the primary GID was rejected"),
    (13, "the primary LID was rejected"),
    (14, "invalid primary service level"),
    (15, "invalid primary traffic class"),
    (16, "invalid primary hop limit"),
    (17, "invalid primary packet rate"),
    (18, "the alternate GID was rejected"),
    (19, "the alternate LID was rejected"),
    (20, "invalid alternate service level"),
    (24, "redirected to another port and connection manager"),
    (25, "redirected to another port"),
    (26, "invalid path MTU: the two links differ"),
    (27, "it has too few RDMA READ resources for this side"),
    (29, "the receiver-not-ready retry count was rejected"),
    (30, "a connection with the same identifiers exists"),
    (31, "another version of the connection manager's protocol"),
    (32, "invalid primary flow label"),
];

/// How long the kernel's connection manager waits for each answer: 4.096 µs · 2^20 on InfiniBand
/// and RoCE (`CMA_CM_RESPONSE_TIMEOUT` in Linux).
const CM_RESPONSE_MS: u64 = (4_096 << 20) / 1_000_000;
/// How often it retries (`CMA_MAX_CM_RETRIES`).
const CM_RETRIES: u64 = 15;

/// Why the peer refused. Positive codes are InfiniBand's, negative ones error numbers (iWARP).
pub(super) fn reason(status: i32) -> RejectReason {
    match status {
        REJ_CONSUMER_DEFINED => RejectReason::Consumer,
        REJ_INVALID_SERVICE_ID => RejectReason::NoListener,
        // The peer answered the MPA request with the reject bit set.
        status if status == -libc::ECONNRESET => RejectReason::Consumer,
        status if status == -libc::ECONNREFUSED => RejectReason::NoListener,
        code if code < 0 => RejectReason::Other {
            code,
            words: Errno::from_raw(code.saturating_neg()).desc(),
        },
        code => {
            let known = REJ_REASONS.iter().find(|(known, _)| *known == code);
            RejectReason::Other {
                code,
                words: known.map_or("a code of a newer specification", |(_, words)| words),
            }
        }
    }
}

/// Why a step failed: `status` of its event. `timeout_ms` is the limit of the step where the
/// address is resolved; the kernel's own timers bound the others.
pub(super) fn why(what: String, status: i32, timeout_ms: Option<u64>) -> CmError {
    match (status, timeout_ms) {
        (0, _) => CmError::Invalid("the connection's queue pair was dropped while it connected"),
        (status, Some(timeout_ms)) if status == -libc::ETIMEDOUT => {
            CmError::Timeout { what, timeout_ms }
        }
        (status, None) if status == -libc::ETIMEDOUT => CmError::System {
            what,
            message: format!(
                "none of {} messages was answered, {CM_RESPONSE_MS} ms apart each; check that the \
                 address is right, that the peer's RDMA link is up, and that nothing on the way \
                 drops its packets (UDP port 4791 on RoCE)",
                CM_RETRIES + 1
            ),
            errno: Some(libc::ETIMEDOUT),
        },
        (code, _) if code > 0 => CmError::System {
            what,
            message: match reason(code) {
                RejectReason::Other { words, .. } => format!("{words} (code {code})"),
                RejectReason::NoListener => "nothing listens there".to_owned(),
                RejectReason::Consumer | RejectReason::Protocol => {
                    "the peer refused; see its log".to_owned()
                }
            },
            errno: None,
        },
        (status, _) => step(what, &of_status(status)),
    }
}

#[cfg(test)]
mod tests {
    use super::{reason, why};
    use crate::contract::{CmError, RejectReason};

    #[test]
    fn refusals_have_a_name_or_words() {
        assert_eq!(reason(28), RejectReason::Consumer);
        assert_eq!(reason(8), RejectReason::NoListener);
        assert_eq!(reason(-libc::ECONNRESET), RejectReason::Consumer);
        assert_eq!(reason(-libc::ECONNREFUSED), RejectReason::NoListener);
        for (code, expected) in [
            (3, "no resources"),
            (10, "stale connection"),
            (26, "path MTU"),
            (27, "RDMA READ"),
            (77, "newer"),
            (-libc::EHOSTUNREACH, "No route"),
        ] {
            match reason(code) {
                RejectReason::Other { code: told, words } => {
                    assert!(told == code && words.contains(expected), "{code}: {words}");
                }
                other => panic!("{code}: {other:?}"),
            }
        }
    }

    #[test]
    fn failures_name_the_step_the_peer_the_timers_and_what_to_do() {
        let text = |status, timeout_ms| {
            why("connecting to 10.9.0.2:4420".to_owned(), status, timeout_ms).to_string()
        };
        for (status, timeout_ms, parts) in [
            (-libc::ETIMEDOUT, Some(3000), &["3000 ms", "reachable"][..]),
            (
                -libc::ETIMEDOUT,
                None,
                &["16 messages", "4294 ms", "link is up"],
            ),
            (-libc::ENODEV, None, &["No such device", "rdma link"]),
            (
                -libc::EHOSTUNREACH,
                Some(3000),
                &["No route to host", "check the route"],
            ),
            (
                -libc::ENETUNREACH,
                None,
                &["unreachable", "check the route"],
            ),
            (
                -libc::ECONNRESET,
                None,
                &["reset by peer", "the peer's log"],
            ),
            (10, None, &["stale connection", "code 10"]),
            (8, None, &["nothing listens"]),
        ] {
            let text = text(status, timeout_ms);
            assert!(text.starts_with("connecting to 10.9.0.2:4420"), "{text}");
            for part in parts {
                assert!(text.contains(part), "{status}: {text}");
            }
        }
        let dropped = why("connecting".to_owned(), 0, None);
        assert!(matches!(dropped, CmError::Invalid(_)), "{dropped}");
    }
}
