//! Replies.

use core::fmt;

use super::REPLY;
use super::auth::{AuthStat, OpaqueAuth};
use crate::xdr::{ReadError, Reader, WriteError, Writer};

/// `accepted_reply` without its verifier (RFC 5531, section 9).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Accepted {
    /// SUCCESS: the results follow.
    Success,
    /// PROG_UNAVAIL: the program is not here.
    ProgramUnavailable,
    /// PROG_MISMATCH: another version of it is.
    ProgramMismatch {
        /// Lowest version.
        low: u32,
        /// Highest version.
        high: u32,
    },
    /// PROC_UNAVAIL: the program has no such procedure.
    ProcedureUnavailable,
    /// GARBAGE_ARGS: the arguments cannot be read.
    GarbageArguments,
    /// SYSTEM_ERR: it could not be carried out for lack of memory or the like.
    SystemError,
}

/// `rejected_reply` (RFC 5531, section 9).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Denied {
    /// RPC_MISMATCH: another version of RPC.
    RpcMismatch {
        /// Lowest version.
        low: u32,
        /// Highest version.
        high: u32,
    },
    /// AUTH_ERROR.
    Auth(AuthStat),
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RpcMismatch { low, high } => {
                write!(f, "RPC_MISMATCH (RPC versions {low} to {high})")
            }
            Self::Auth(why) => write!(f, "AUTH_ERROR ({why})"),
        }
    }
}

/// The header of a reply; results follow that of a success.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Reply {
    /// That of the call.
    pub xid: u32,
    /// MSG_ACCEPTED or MSG_DENIED.
    pub outcome: Result<Accepted, Denied>,
}

/// A message that is no reply.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum ReplyError {
    /// It ends within its header, or has a value that is not defined.
    #[error("the header of a reply cannot be read ({0}): end the connection")]
    Unreadable(ReadError),
    /// `msg_type` is not REPLY.
    #[error("msg_type of XID {xid:08x} is {msg_type}, expected 1 (REPLY): discard the message")]
    NotAReply {
        /// The XID that came.
        xid: u32,
        /// The `msg_type` that came.
        msg_type: u32,
    },
}

impl From<ReadError> for ReplyError {
    fn from(error: ReadError) -> Self {
        Self::Unreadable(error)
    }
}

// RFC 5531, section 9.
const MSG_ACCEPTED: u32 = 0;
const MSG_DENIED: u32 = 1;
const SUCCESS: u32 = 0;
const PROG_UNAVAIL: u32 = 1;
const PROG_MISMATCH: u32 = 2;
const PROC_UNAVAIL: u32 = 3;
const GARBAGE_ARGS: u32 = 4;
const SYSTEM_ERR: u32 = 5;
const RPC_MISMATCH: u32 = 0;
const AUTH_ERROR: u32 = 1;

impl Reply {
    /// A reply of a success: the results come behind it.
    #[must_use]
    pub const fn success(xid: u32) -> Self {
        Self::accepted(xid, Accepted::Success)
    }

    /// A reply to a call that was accepted, as such.
    #[must_use]
    pub const fn accepted(xid: u32, accepted: Accepted) -> Self {
        Self {
            xid,
            outcome: Ok(accepted),
        }
    }

    /// A reply to a call that was denied.
    #[must_use]
    pub const fn denied(xid: u32, denied: Denied) -> Self {
        Self {
            xid,
            outcome: Err(denied),
        }
    }

    /// Writes the header, with an AUTH_NONE for a verifier, which is what goes with AUTH_NONE and
    /// AUTH_SYS (RFC 5531, appendix A).
    ///
    /// # Errors
    /// [`WriteError`].
    pub fn write(&self, writer: &mut Writer<'_>) -> Result<(), WriteError> {
        writer.u32(self.xid)?;
        writer.u32(REPLY)?;
        match self.outcome {
            Ok(accepted) => {
                writer.u32(MSG_ACCEPTED)?;
                OpaqueAuth::NONE.write(writer)?;
                match accepted {
                    Accepted::Success => writer.u32(SUCCESS),
                    Accepted::ProgramUnavailable => writer.u32(PROG_UNAVAIL),
                    Accepted::ProgramMismatch { low, high } => {
                        write_range(writer, PROG_MISMATCH, low, high)
                    }
                    Accepted::ProcedureUnavailable => writer.u32(PROC_UNAVAIL),
                    Accepted::GarbageArguments => writer.u32(GARBAGE_ARGS),
                    Accepted::SystemError => writer.u32(SYSTEM_ERR),
                }
            }
            Err(denied) => {
                writer.u32(MSG_DENIED)?;
                match denied {
                    Denied::RpcMismatch { low, high } => {
                        write_range(writer, RPC_MISMATCH, low, high)
                    }
                    Denied::Auth(why) => {
                        writer.u32(AUTH_ERROR)?;
                        writer.u32(why.0)
                    }
                }
            }
        }
    }

    /// Reads the header; the reader is then at the results of a success. The verifier is read over.
    ///
    /// # Errors
    /// [`ReplyError`].
    pub fn read(reader: &mut Reader<'_>) -> Result<Self, ReplyError> {
        let xid = reader.u32("xid")?;
        let msg_type = reader.u32("msg_type")?;
        if msg_type != REPLY {
            return Err(ReplyError::NotAReply { xid, msg_type });
        }
        let start = *reader;
        let outcome = match reader.u32("reply_stat")? {
            MSG_ACCEPTED => {
                OpaqueAuth::read(reader, "verf")?;
                Ok(Accepted::read(reader)?)
            }
            MSG_DENIED => Err(Denied::read(reader)?),
            value => {
                return Err(start
                    .invalid("reply_stat", u64::from(value), "0 or 1")
                    .into());
            }
        };
        Ok(Self { xid, outcome })
    }
}

impl Accepted {
    fn read(reader: &mut Reader<'_>) -> Result<Self, ReadError> {
        let start = *reader;
        Ok(match reader.u32("accept_stat")? {
            SUCCESS => Self::Success,
            PROG_UNAVAIL => Self::ProgramUnavailable,
            PROG_MISMATCH => Self::ProgramMismatch {
                low: reader.u32("low")?,
                high: reader.u32("high")?,
            },
            PROC_UNAVAIL => Self::ProcedureUnavailable,
            GARBAGE_ARGS => Self::GarbageArguments,
            SYSTEM_ERR => Self::SystemError,
            value => return Err(start.invalid("accept_stat", u64::from(value), "0 to 5")),
        })
    }
}

impl Denied {
    fn read(reader: &mut Reader<'_>) -> Result<Self, ReadError> {
        let start = *reader;
        Ok(match reader.u32("reject_stat")? {
            RPC_MISMATCH => Self::RpcMismatch {
                low: reader.u32("low")?,
                high: reader.u32("high")?,
            },
            AUTH_ERROR => Self::Auth(AuthStat(reader.u32("auth_stat")?)),
            value => return Err(start.invalid("reject_stat", u64::from(value), "0 or 1")),
        })
    }
}

fn write_range(
    writer: &mut Writer<'_>,
    status: u32,
    low: u32,
    high: u32,
) -> Result<(), WriteError> {
    writer.u32(status)?;
    writer.u32(low)?;
    writer.u32(high)
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;

    #[test]
    fn every_outcome_is_written_as_it_is_read() {
        let range = (2, 4);
        let accepted = [
            (Accepted::Success, &[0][..]),
            (Accepted::ProgramUnavailable, &[1]),
            (
                Accepted::ProgramMismatch {
                    low: range.0,
                    high: range.1,
                },
                &[2, 2, 4],
            ),
            (Accepted::ProcedureUnavailable, &[3]),
            (Accepted::GarbageArguments, &[4]),
            (Accepted::SystemError, &[5]),
        ]
        .map(|(accepted, words)| (Ok(accepted), [&[0, 0, 0], words].concat()));
        let denied = [
            (Denied::RpcMismatch { low: 2, high: 2 }, &[0, 2, 2][..]),
            (Denied::Auth(AuthStat::TOOWEAK), &[1, 5]),
        ]
        .map(|(denied, words)| (Err(denied), [&[1], words].concat()));
        for (outcome, words) in accepted.into_iter().chain(denied) {
            let reply = Reply { xid: 9, outcome };
            let bytes: std::vec::Vec<u8> = [&[9, 1], &words[..]]
                .concat()
                .iter()
                .flat_map(|word: &u32| word.to_be_bytes())
                .collect();
            let mut buffer = [0; 64];
            let mut writer = Writer::new(&mut buffer);
            reply.write(&mut writer).unwrap();
            assert_eq!(writer.written(), bytes);
            let mut reader = Reader::new(&bytes);
            assert_eq!(Reply::read(&mut reader), Ok(reply));
            assert_eq!(reader.finish(), Ok(()));
        }
    }

    #[test]
    fn values_that_are_not_defined_are_no_reply() {
        for words in [[9, 1, 2, 0, 0, 0], [9, 1, 0, 0, 0, 6], [9, 1, 1, 2, 0, 0]] {
            let bytes: std::vec::Vec<u8> = words
                .iter()
                .flat_map(|word: &u32| word.to_be_bytes())
                .collect();
            assert!(matches!(
                Reply::read(&mut Reader::new(&bytes)),
                Err(ReplyError::Unreadable(ReadError::Invalid { .. }))
            ));
        }
    }
}
