//! What ends a connection, in words for the log and in codes for the peer.

use std::fmt;
use std::io;

use super::stag::StagError;
use super::wire::crc::crc32c;
use super::wire::ddp::{Opcode, ReadRequest, Segment};
use super::wire::terminate::{self, ErrorCode, Terminate};
use crate::contract::WcStatus;

/// Why a connection ends.
#[derive(Debug)]
pub(super) enum Fatal {
    /// The peer broke the protocol; it is told with a Terminate.
    Violation {
        error: ErrorCode,
        /// Boxed: errors are rare and results that carry them are not.
        offending: Option<Box<(Segment, Option<ReadRequest>)>>,
        /// The status of the receive the message was going into.
        receive: WcStatus,
    },
    /// A work request of this side cannot be carried out.
    Local { position: u32, status: WcStatus },
    /// A Send found no receive in time.
    NotReady { waited_ms: u64 },
    /// The peer ended the connection with a Terminate.
    Terminated(Terminate),
    /// The peer closed the TCP connection.
    PeerClosed { inside_fpdu: bool },
    /// TCP failed.
    Io(io::Error),
    /// The program asked for it.
    Disconnect,
    /// The program gave the connection up.
    Abort,
    /// The queue pair was dropped.
    Dropped,
    /// The first message did not come in time.
    NoFirstMessage { waited_ms: u64 },
}

impl Fatal {
    /// A violation by a segment.
    pub(super) fn segment(error: ErrorCode, segment: &Segment) -> Self {
        Self::Violation {
            error,
            offending: Some(Box::new((*segment, None))),
            receive: WcStatus::WrFlushError,
        }
    }

    /// A violation whose header cannot be trusted or is not known.
    pub(super) fn stream(error: ErrorCode) -> Self {
        Self::Violation {
            error,
            offending: None,
            receive: WcStatus::WrFlushError,
        }
    }

    /// The error code the peer is told, when it is told one.
    pub(super) fn terminate(&self) -> Option<ErrorCode> {
        match self {
            Self::Violation { error, .. } => Some(*error),
            Self::Local { .. } => Some(ErrorCode::RDMAP_LOCAL_CATASTROPHIC),
            Self::NotReady { .. } => Some(ErrorCode::DDP_NO_BUFFER),
            Self::Terminated(_)
            | Self::PeerClosed { .. }
            | Self::Io(_)
            | Self::Disconnect
            | Self::Abort
            | Self::Dropped
            | Self::NoFirstMessage { .. } => None,
        }
    }

    /// Whether the peer still gets an orderly end of the byte stream.
    pub(super) fn says_goodbye(&self) -> bool {
        !matches!(self, Self::Io(_) | Self::Abort)
    }

    /// Whether this side ends the connection because it has no more to say: everything that it has
    /// posted may still arrive, also when this process is gone.
    pub(super) fn is_orderly(&self) -> bool {
        matches!(self, Self::Disconnect | Self::Dropped)
    }

    /// The status of the oldest outstanding RDMA Read, when this is an answer to it.
    pub(super) fn read_status(&self) -> Option<WcStatus> {
        let Self::Terminated(Terminate { error, opcode }) = self else {
            return None;
        };
        if opcode.is_some_and(|o| o != Opcode::READ_REQUEST) {
            return None;
        }
        match (error.layer, error.etype) {
            (0, 1) => Some(WcStatus::RemoteAccessError),
            (0, _) => Some(WcStatus::RemoteOperationError),
            (1, 2) if opcode.is_some() => Some(WcStatus::RemoteInvalidRequestError),
            _ => None,
        }
    }

    /// Status of the receive a message was going into.
    pub(super) fn receive_status(&self) -> WcStatus {
        match self {
            Self::Violation { receive, .. } => *receive,
            _ => WcStatus::WrFlushError,
        }
    }
}

impl fmt::Display for Fatal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Violation { error, .. } => {
                write!(
                    f,
                    "terminated by this side because the peer broke the protocol: {error}"
                )
            }
            Self::Local { status, .. } => {
                write!(
                    f,
                    "terminated by this side: a work request failed with {status}"
                )
            }
            Self::NotReady { waited_ms } => write!(
                f,
                "terminated by this side: a Send waited {waited_ms} ms for a receive to be posted"
            ),
            Self::Terminated(terminate) => {
                write!(f, "terminated by the peer: {}", terminate.error)
            }
            Self::PeerClosed { inside_fpdu: false } => f.write_str("closed by the peer"),
            Self::PeerClosed { inside_fpdu: true } => {
                f.write_str("closed by the peer in the middle of a message")
            }
            Self::Io(error) => match error.kind() {
                io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
                    f.write_str("reset by the peer (its process or machine went away)")
                }
                io::ErrorKind::TimedOut => {
                    f.write_str("lost: the peer does not answer on TCP any more")
                }
                _ => write!(f, "lost: {error}"),
            },
            Self::Disconnect => f.write_str("closed by this side"),
            Self::Abort => f.write_str("given up by this side"),
            Self::Dropped => f.write_str("closed by this side: its queue pair was dropped"),
            Self::NoFirstMessage { waited_ms } => write!(
                f,
                "closed by this side: the peer agreed to speak first and sent nothing for \
                 {waited_ms} ms"
            ),
        }
    }
}

/// The Terminate FPDU for `fatal` with its CRC; empty when the peer is told nothing.
pub(super) fn terminate_bytes(fatal: &Fatal, crc: bool) -> Vec<u8> {
    let Some(error) = fatal.terminate() else {
        return Vec::new();
    };
    let offending = match fatal {
        Fatal::Violation {
            offending: Some(offending),
            ..
        } => Some((&offending.0, offending.1.as_ref())),
        _ => None,
    };
    let (bytes, length) = terminate::encode(error, offending);
    let mut bytes = bytes[..length].to_vec();
    let crc = if crc { crc32c(&bytes) } else { 0 };
    bytes.extend_from_slice(&crc.to_le_bytes());
    bytes
}

/// The code for a tagged segment that does not fit its STag (RFC 5041 §7.1; access rights are
/// RDMAP's: RFC 5040 §7.2).
pub(super) fn tagged_error(error: StagError) -> ErrorCode {
    match error {
        StagError::Invalid => ErrorCode::DDP_INVALID_STAG,
        StagError::Bounds => ErrorCode::DDP_BOUNDS,
        StagError::Access => ErrorCode::RDMAP_ACCESS,
        StagError::NotAssociated => ErrorCode::DDP_STAG_NOT_ASSOCIATED,
        StagError::Wrap => ErrorCode::DDP_TO_WRAP,
    }
}

/// The code for a Read Request whose source does not fit its STag (RFC 5040 §7.2).
pub(super) fn read_error(error: StagError) -> ErrorCode {
    match error {
        StagError::Invalid => ErrorCode::RDMAP_INVALID_STAG,
        StagError::Bounds => ErrorCode::RDMAP_BOUNDS,
        StagError::Access => ErrorCode::RDMAP_ACCESS,
        StagError::NotAssociated => ErrorCode::RDMAP_STAG_NOT_ASSOCIATED,
        StagError::Wrap => ErrorCode::RDMAP_TO_WRAP,
    }
}
