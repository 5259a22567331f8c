//! Why a connection ends, and the line of the log that says so.

use std::fmt;

use capstan_rdma::PEER_CAUSED;
use capstan_subsystem::DisconnectReason;
use capstan_transport::EndReason;

use super::connection::Connection;

/// Why a connection ends.
#[derive(Debug)]
pub(super) struct Cause {
    /// Of what kind it is, in a word or two (`metrics::reactor::ENDED`).
    word: &'static str,
    words: String,
    is_violation: bool,
}

impl Cause {
    /// The host did what its transport or the protocol does not allow.
    pub(super) fn violation(words: impl Into<String>) -> Self {
        Self {
            word: "violation",
            words: words.into(),
            is_violation: true,
        }
    }

    /// Of a kind that has a word.
    pub(super) fn new(word: &'static str, words: impl Into<String>) -> Self {
        Self {
            word,
            words: words.into(),
            is_violation: false,
        }
    }

    /// Of what kind it is.
    pub(super) fn word(&self) -> &'static str {
        self.word
    }

    /// Says in the log that the connection ends. A violation warns: it is a mistake of the host's
    /// software, or an attack. A host that goes, or that is gone, does not.
    pub(super) fn log(&self, connection: &Connection) {
        let (peer, qid) = (connection.identity.peer, connection.identity.sizes.qid);
        let reason = self.word;
        // A level is part of the place of a line in the program.
        macro_rules! disconnected {
            ($level:ident) => {
                match connection.association.as_deref() {
                    Some(association) => {
                        let hostnqn = association.hostnqn.to_string();
                        let (subnqn, cntlid) = (association.subnqn.as_str(), association.cntlid);
                        tracing::$level!(
                            target: PEER_CAUSED,
                            %peer, hostnqn, subnqn, cntlid, qid, reason,
                            "disconnected: {self}"
                        );
                    }
                    None => {
                        tracing::$level!(
                            target: PEER_CAUSED,
                            %peer, qid, reason,
                            "disconnected: {self}"
                        );
                    }
                }
            };
        }
        if self.is_violation {
            disconnected!(warn);
        } else {
            disconnected!(info);
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words)
    }
}

impl From<String> for Cause {
    fn from(words: String) -> Self {
        Self::new("other", words)
    }
}

impl From<&str> for Cause {
    fn from(words: &str) -> Self {
        words.to_owned().into()
    }
}

impl From<EndReason> for Cause {
    fn from(why: EndReason) -> Self {
        match why {
            EndReason::Violation(what) => Self::violation(what),
            EndReason::Lost(what) => Self::new("lost", what),
            EndReason::Host => Self::new("host", why.to_string()),
            EndReason::Controller => Self::new("controller", why.to_string()),
            EndReason::DeviceRemoved => Self::new("device-removed", why.to_string()),
        }
    }
}

impl From<DisconnectReason> for Cause {
    fn from(why: DisconnectReason) -> Self {
        Self {
            word: why.word(),
            words: why.to_string(),
            is_violation: matches!(why, DisconnectReason::QueueOverrun { .. }),
        }
    }
}
