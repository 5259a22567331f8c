//! How far a connection's life has come, and how long a phase that depends on the peer may last.

use crate::limits::{CONNECT_TIMEOUT_US, KNOWN_CONNECT_TIMEOUT_US, REFUSED_TIMEOUT_US};

/// The phase of a connection's life. Deadlines are on the program's clock, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Accepted; the first capsule must be Connect, and come in time.
    AwaitingConnect { deadline_us: u64 },
    /// Connect has arrived, and its data is on its way.
    AwaitingData { deadline_us: u64 },
    /// Its Connect was refused. Ending the connection is left to the host, for a while: an end
    /// right behind the response can overtake it (over siw it does, and the Linux host then waits
    /// for the response for a minute).
    Refused { deadline_us: u64 },
    /// An admin queue.
    Admin,
    /// An I/O queue.
    Io,
    /// Ending: nothing new is started; operations that are under way may end until this time.
    Closing { deadline_us: u64 },
}

impl Phase {
    /// For a host that is `known`: it has a controller, and connects another queue of it.
    pub(super) fn accepted(now_us: u64, known: bool) -> Self {
        let timeout_us = if known {
            KNOWN_CONNECT_TIMEOUT_US
        } else {
            CONNECT_TIMEOUT_US
        };
        let deadline_us = now_us + timeout_us;
        Self::AwaitingConnect { deadline_us }
    }

    pub(super) fn connecting(now_us: u64) -> Self {
        let deadline_us = now_us + CONNECT_TIMEOUT_US;
        Self::AwaitingData { deadline_us }
    }

    pub(super) fn refused(now_us: u64) -> Self {
        let deadline_us = now_us + REFUSED_TIMEOUT_US;
        Self::Refused { deadline_us }
    }

    pub(super) fn closing(now_us: u64, timeout_us: u64) -> Self {
        let deadline_us = now_us + timeout_us;
        Self::Closing { deadline_us }
    }

    /// When it ends at the latest.
    pub(super) fn deadline_us(self) -> Option<u64> {
        match self {
            Self::AwaitingConnect { deadline_us }
            | Self::AwaitingData { deadline_us }
            | Self::Refused { deadline_us }
            | Self::Closing { deadline_us } => Some(deadline_us),
            Self::Admin | Self::Io => None,
        }
    }

    /// Whether the connection is no queue and not ending: its time is limited.
    pub(super) fn is_unconnected(self) -> bool {
        matches!(
            self,
            Self::AwaitingConnect { .. } | Self::AwaitingData { .. } | Self::Refused { .. }
        )
    }

    /// Why the connection is ended at `now_us`, when the host has used up its time.
    pub(super) fn overdue(self, now_us: u64) -> Option<&'static str> {
        match self {
            Self::AwaitingConnect { deadline_us } if now_us >= deadline_us => {
                Some("the host sent no Connect in time")
            }
            Self::AwaitingData { deadline_us } if now_us >= deadline_us => {
                Some("the host did not answer the RDMA READ of its Connect's data in time")
            }
            Self::Refused { deadline_us } if now_us >= deadline_us => {
                Some("its Connect was refused, and the host did not disconnect in time")
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_US: u64 = 7_000_000;

    #[test]
    fn a_refused_connection_is_the_hosts_to_end_for_a_bounded_time() {
        let phase = Phase::refused(NOW_US);
        assert!(phase.is_unconnected());
        assert_eq!(phase.deadline_us(), Some(NOW_US + REFUSED_TIMEOUT_US));
        assert_eq!(phase.overdue(NOW_US), None);
        assert_eq!(phase.overdue(NOW_US + REFUSED_TIMEOUT_US - 1), None);
        let why = phase.overdue(NOW_US + REFUSED_TIMEOUT_US).expect("over");
        assert!(why.contains("refused"), "{why}");
    }

    #[test]
    fn a_host_that_never_connects_has_its_time() {
        for (known, timeout_us) in [
            (false, CONNECT_TIMEOUT_US),
            (true, KNOWN_CONNECT_TIMEOUT_US),
        ] {
            let phase = Phase::accepted(NOW_US, known);
            assert!(phase.is_unconnected());
            assert_eq!(phase.overdue(NOW_US + timeout_us - 1), None);
            let why = phase.overdue(NOW_US + timeout_us).expect("over");
            assert!(why.contains("no Connect"), "{why}");
        }
    }

    #[test]
    fn the_data_of_a_connect_has_its_time() {
        let phase = Phase::connecting(NOW_US);
        assert!(phase.is_unconnected());
        assert_eq!(phase.deadline_us(), Some(NOW_US + CONNECT_TIMEOUT_US));
        assert_eq!(phase.overdue(NOW_US + CONNECT_TIMEOUT_US - 1), None);
        let why = phase.overdue(NOW_US + CONNECT_TIMEOUT_US).expect("over");
        assert!(why.contains("RDMA READ"), "{why}");
    }

    #[test]
    fn a_queue_has_no_deadline_and_an_end_is_no_reason_for_another() {
        for phase in [Phase::Admin, Phase::Io] {
            assert_eq!((phase.deadline_us(), phase.overdue(u64::MAX)), (None, None));
            assert!(!phase.is_unconnected());
        }
        let phase = Phase::closing(NOW_US, 1_000_000);
        assert_eq!(phase.deadline_us(), Some(NOW_US + 1_000_000));
        assert_eq!(phase.overdue(u64::MAX), None);
        assert!(!phase.is_unconnected());
    }
}
