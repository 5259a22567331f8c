//! Calls.

use super::auth::{AuthStat, Credentials};
use super::reply::Denied;
use super::{CALL, RPC_VERSION};
use crate::xdr::{ReadError, Reader, WriteError, Writer};

/// The header of a call; the arguments follow it (RFC 5531, section 9).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Call<'a> {
    /// What the reply is told by.
    pub xid: u32,
    /// Program number.
    pub program: u32,
    /// Version of the program.
    pub version: u32,
    /// Procedure number.
    pub procedure: u32,
    /// The caller.
    pub credentials: Credentials<'a>,
}

/// A message that is no call which could be carried out.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum CallError {
    /// It ends within its header.
    #[error("the header of a call cannot be read ({0}): end the connection")]
    Unreadable(ReadError),
    /// `msg_type` is not CALL. A server that has sent no calls has no replies to get.
    #[error("msg_type of XID {xid:08x} is {msg_type}, expected 0 (CALL): discard the message")]
    NotACall {
        /// The XID that came.
        xid: u32,
        /// The `msg_type` that came.
        msg_type: u32,
    },
    /// It is to be answered with this denial.
    #[error("the call with XID {xid:08x} cannot be carried out: answer {denied}")]
    Denied {
        /// The XID to answer.
        xid: u32,
        /// What to answer.
        denied: Denied,
    },
}

impl<'a> Call<'a> {
    /// Reads the header; the reader is then at the arguments.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn read(reader: &mut Reader<'a>) -> Result<Self, CallError> {
        let xid = reader.u32("xid").map_err(CallError::Unreadable)?;
        let msg_type = reader.u32("msg_type").map_err(CallError::Unreadable)?;
        if msg_type != CALL {
            return Err(CallError::NotACall { xid, msg_type });
        }
        let version = reader.u32("rpcvers").map_err(CallError::Unreadable)?;
        if version != RPC_VERSION {
            // RFC 5531, section 9: the lowest and highest version that is supported.
            let denied = Denied::RpcMismatch {
                low: RPC_VERSION,
                high: RPC_VERSION,
            };
            return Err(CallError::Denied { xid, denied });
        }
        let program = reader.u32("prog").map_err(CallError::Unreadable)?;
        let version = reader.u32("vers").map_err(CallError::Unreadable)?;
        let procedure = reader.u32("proc").map_err(CallError::Unreadable)?;
        let credentials = Credentials::read(reader).map_err(|why: AuthStat| CallError::Denied {
            xid,
            denied: Denied::Auth(why),
        })?;
        Ok(Self {
            xid,
            program,
            version,
            procedure,
            credentials,
        })
    }

    /// Writes the header; the arguments come behind it.
    ///
    /// # Errors
    /// [`WriteError`].
    pub fn write(&self, writer: &mut Writer<'_>) -> Result<(), WriteError> {
        for word in [
            self.xid,
            CALL,
            RPC_VERSION,
            self.program,
            self.version,
            self.procedure,
        ] {
            writer.u32(word)?;
        }
        self.credentials.write(writer)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::string::ToString;

    fn words(words: &[u32]) -> std::vec::Vec<u8> {
        words.iter().flat_map(|word| word.to_be_bytes()).collect()
    }

    #[test]
    fn a_null_call_is_ten_words() {
        let call = Call {
            xid: 0xDEAD_BEEF,
            program: 100_003,
            version: 4,
            procedure: 0,
            credentials: Credentials::None,
        };
        let bytes = words(&[0xDEAD_BEEF, 0, 2, 100_003, 4, 0, 0, 0, 0, 0]);
        let mut buffer = [0; 40];
        let mut writer = Writer::new(&mut buffer);
        call.write(&mut writer).unwrap();
        assert_eq!(writer.written(), bytes);
        let mut reader = Reader::new(&bytes);
        assert_eq!(Call::read(&mut reader), Ok(call));
        assert_eq!(reader.finish(), Ok(()));
    }

    #[test]
    fn what_is_no_call_says_what_to_do_with_it() {
        let read = |all: &[u32]| Call::read(&mut Reader::new(&words(all))).map(|_call| ());
        assert_eq!(
            read(&[7, 0, 3, 1, 1, 1]).unwrap_err().to_string(),
            "the call with XID 00000007 cannot be carried out: \
             answer RPC_MISMATCH (RPC versions 2 to 2)"
        );
        assert_eq!(
            read(&[7, 1, 0]),
            Err(CallError::NotACall {
                xid: 7,
                msg_type: 1
            })
        );
        assert!(matches!(read(&[7, 0, 2, 1]), Err(CallError::Unreadable(_))));
        assert!(matches!(read(&[]), Err(CallError::Unreadable(_))));
        assert_eq!(
            read(&[7, 0, 2, 1, 1, 1, 9, 0, 0, 0]),
            Err(CallError::Denied {
                xid: 7,
                denied: Denied::Auth(AuthStat::BADCRED)
            })
        );
    }
}
