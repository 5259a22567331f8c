//! The transport header of RPC-over-RDMA version 1: what comes before a message, or in place of one
//! (RFC 8166, section 4).

use crate::chunks::{ReadList, WriteChunk, WriteList, read_reply_chunk};
use crate::limits::WRITE_CHUNKS_MAX;
use crate::xdr::{ReadError, Reader, UNIT_BYTES, WriteError, Writer};

/// The version of the protocol (RFC 8166, section 4.2.2).
pub const VERSION: u32 = 1;
/// Bytes of the fixed fields: XID, version, credits, procedure.
pub const FIXED_BYTES: usize = 4 * UNIT_BYTES;
/// Bytes of a header whose lists are empty, which is all that most messages have.
pub const PLAIN_BYTES: usize = FIXED_BYTES + 3 * UNIT_BYTES;

// `rdma_proc` (RFC 8166, section 4.1).
const RDMA_MSG: u32 = 0;
const RDMA_NOMSG: u32 = 1;
const RDMA_DONE: u32 = 3;
const RDMA_ERROR: u32 = 4;

// `rpc_rdma_errcode` (RFC 8166, section 4.1).
const ERR_VERS: u32 = 1;
const ERR_CHUNK: u32 = 2;

/// Where the message of a header is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Procedure {
    /// RDMA_MSG: right behind it, except for what was reduced.
    Msg,
    /// RDMA_NOMSG: in a read chunk at position zero, or in the reply chunk (RFC 8166, section
    /// 3.5.3).
    NoMsg,
}

/// A header of a call or a reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header<'a> {
    /// That of the RPC message.
    pub xid: u32,
    /// Credits asked for by a requester, or granted by a responder: at least 1.
    pub credits: u32,
    /// Where the message is.
    pub procedure: Procedure,
    /// What a responder pulls.
    pub reads: ReadList<'a>,
    /// Where a responder pushes what is reduced in the reply, or how much it pushed.
    pub writes: WriteList<'a>,
    /// Where a responder pushes a reply that is too long to be inline, or how much it pushed.
    pub reply: Option<WriteChunk<'a>>,
    /// What follows the header: of RDMA_MSG the message.
    pub inline: &'a [u8],
}

/// What arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Received<'a> {
    /// A call or a reply.
    Message(Header<'a>),
    /// RDMA_ERROR: for a requester the end of a call. Responders discard it (RFC 8166, section
    /// 4.5).
    Error {
        /// The XID of the call.
        xid: u32,
        /// Credits granted: at least 1.
        credits: u32,
        /// What the responder could not do.
        fault: Fault,
    },
}

/// What RDMA_ERROR says (RFC 8166, section 4.5).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Fault {
    /// ERR_VERS: another version of the protocol.
    Version {
        /// Lowest version.
        low: u32,
        /// Highest version.
        high: u32,
    },
    /// ERR_CHUNK: the header cannot be read, or the chunks do not hold what they are for.
    Chunk,
}

/// An RDMA_ERROR to be sent.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ErrorReply {
    /// The XID of the call.
    pub xid: u32,
    /// The version of the call, whatever it was (RFC 8166, section 4.5).
    pub version: u32,
    /// What could not be done.
    pub fault: Fault,
}

/// Bytes of the longest RDMA_ERROR.
pub const ERROR_REPLY_MAX_BYTES: usize = FIXED_BYTES + 3 * UNIT_BYTES;

impl ErrorReply {
    /// ERR_CHUNK to the call with this XID.
    #[must_use]
    pub const fn chunk(xid: u32) -> Self {
        Self {
            xid,
            version: VERSION,
            fault: Fault::Chunk,
        }
    }

    /// Writes the whole of it.
    ///
    /// # Errors
    /// [`WriteError::Full`].
    pub fn write(&self, writer: &mut Writer<'_>, credits: u32) -> Result<(), WriteError> {
        for word in [self.xid, self.version, credits, RDMA_ERROR] {
            writer.u32(word)?;
        }
        match self.fault {
            Fault::Version { low, high } => {
                writer.u32(ERR_VERS)?;
                writer.u32(low)?;
                writer.u32(high)
            }
            Fault::Chunk => writer.u32(ERR_CHUNK),
        }
    }
}

/// What a responder does about a message that it cannot take.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Answer {
    /// It sends this.
    Error(ErrorReply),
    /// Nothing; the credit of the message is free again.
    Discard,
    /// It ends the connection.
    End,
}

/// A message that cannot be taken.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum HeaderError {
    /// It ends within the fixed fields.
    #[error(
        "a message has {length_bytes} bytes, expected at least 16: the peer does not speak \
         RPC-over-RDMA, end the connection"
    )]
    Short {
        /// Bytes that came.
        length_bytes: usize,
    },
    /// Another version.
    #[error("rdma_vers of XID {xid:08x} is {version}, expected 1: answer ERR_VERS")]
    Version {
        /// The XID that came.
        xid: u32,
        /// The version that came.
        version: u32,
    },
    /// A procedure that is not taken: RDMA_MSGP, which is no longer supported, or none at all.
    #[error(
        "rdma_proc of XID {xid:08x} is {procedure}, expected 0 (RDMA_MSG) or 1 (RDMA_NOMSG): \
         answer ERR_CHUNK"
    )]
    Procedure {
        /// The XID that came.
        xid: u32,
        /// The procedure that came.
        procedure: u32,
    },
    /// RDMA_DONE, which is no longer supported (RFC 8166, section 4.6.2).
    #[error(
        "rdma_proc of XID {xid:08x} is 3 (RDMA_DONE), expected 0 (RDMA_MSG) or 1 (RDMA_NOMSG): \
         discard it"
    )]
    Done {
        /// The XID that came.
        xid: u32,
    },
    /// No credits: a peer that may have no call outstanding could never send one.
    #[error("rdma_credit of XID {xid:08x} is 0, expected at least 1: answer ERR_CHUNK")]
    Credits {
        /// The XID that came.
        xid: u32,
    },
    /// Lists that cannot be read.
    #[error("the header of XID {xid:08x} cannot be read ({error}): answer ERR_CHUNK")]
    Unreadable {
        /// The XID that came.
        xid: u32,
        /// What is wrong.
        error: ReadError,
    },
}

impl HeaderError {
    /// What a responder does. A requester discards all of it but [`HeaderError::Short`].
    #[must_use]
    pub const fn answer(&self) -> Answer {
        match *self {
            Self::Short { .. } => Answer::End,
            Self::Done { .. } => Answer::Discard,
            // RFC 8166, section 4.5.1.
            Self::Version { xid, version } => Answer::Error(ErrorReply {
                xid,
                version,
                fault: Fault::Version {
                    low: VERSION,
                    high: VERSION,
                },
            }),
            // RFC 8166, sections 4.5.2 and 4.6.1.
            Self::Procedure { xid, .. } | Self::Credits { xid } | Self::Unreadable { xid, .. } => {
                Answer::Error(ErrorReply::chunk(xid))
            }
        }
    }
}

impl<'a> Received<'a> {
    /// Reads a message that was received.
    ///
    /// # Errors
    /// [`HeaderError`]. The first four fields have their places in every version of the protocol
    /// (RFC 8166, section 4.2), and the version is looked at before the other two.
    pub fn read(bytes: &'a [u8]) -> Result<Self, HeaderError> {
        let short = |_short| HeaderError::Short {
            length_bytes: bytes.len(),
        };
        let mut reader = Reader::new(bytes);
        let xid = reader.u32("rdma_xid").map_err(short)?;
        let version = reader.u32("rdma_vers").map_err(short)?;
        let credits = reader.u32("rdma_credit").map_err(short)?;
        let procedure = reader.u32("rdma_proc").map_err(short)?;
        if version != VERSION {
            return Err(HeaderError::Version { xid, version });
        }
        let procedure = match procedure {
            RDMA_MSG => Some(Procedure::Msg),
            RDMA_NOMSG => Some(Procedure::NoMsg),
            RDMA_ERROR => None,
            RDMA_DONE => return Err(HeaderError::Done { xid }),
            procedure => return Err(HeaderError::Procedure { xid, procedure }),
        };
        // RFC 8166, section 3.3.1: with none granted nothing could ever be sent.
        if credits == 0 {
            return Err(HeaderError::Credits { xid });
        }
        let unreadable = |error| HeaderError::Unreadable { xid, error };
        let Some(procedure) = procedure else {
            let fault = Fault::read(&mut reader).map_err(unreadable)?;
            return Ok(Self::Error {
                xid,
                credits,
                fault,
            });
        };
        Ok(Self::Message(Header {
            xid,
            credits,
            procedure,
            reads: ReadList::read(&mut reader).map_err(unreadable)?,
            writes: WriteList::read(&mut reader).map_err(unreadable)?,
            reply: read_reply_chunk(&mut reader).map_err(unreadable)?,
            inline: reader.left(),
        }))
    }
}

impl Fault {
    fn read(reader: &mut Reader<'_>) -> Result<Self, ReadError> {
        let start = *reader;
        match reader.u32("rdma_err")? {
            ERR_VERS => Ok(Self::Version {
                low: reader.u32("rdma_vers_low")?,
                high: reader.u32("rdma_vers_high")?,
            }),
            ERR_CHUNK => Ok(Self::Chunk),
            value => Err(start.invalid("rdma_err", u64::from(value), "1 or 2")),
        }
    }
}

/// Writes the fixed fields of a call or a reply; the lists come behind them.
///
/// # Errors
/// [`WriteError::Full`].
pub fn write_fixed(
    writer: &mut Writer<'_>,
    xid: u32,
    credits: u32,
    procedure: Procedure,
) -> Result<(), WriteError> {
    let procedure = match procedure {
        Procedure::Msg => RDMA_MSG,
        Procedure::NoMsg => RDMA_NOMSG,
    };
    for word in [xid, VERSION, credits, procedure] {
        writer.u32(word)?;
    }
    Ok(())
}

/// The header of a reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReplyHeader<'a> {
    /// That of the call.
    pub xid: u32,
    /// The write list of the call.
    pub writes: WriteList<'a>,
    /// Bytes that were pushed to each of its chunks, in their order. What is more than a chunk
    /// holds is not said.
    pub pushed_bytes: [u32; WRITE_CHUNKS_MAX as usize],
    /// The reply chunk of the call and the bytes of the message that were pushed there, or `None`
    /// for a message that follows the header. A reply chunk that is not used is left out.
    pub reply: Option<(WriteChunk<'a>, u32)>,
}

impl ReplyHeader<'_> {
    /// Bytes that [`ReplyHeader::write`] writes.
    #[must_use]
    pub fn header_bytes(&self) -> usize {
        let reply_bytes = self.reply.map_or(0, |(chunk, _)| chunk.header_bytes());
        PLAIN_BYTES
            .saturating_add(self.writes.entries_bytes())
            .saturating_add(reply_bytes)
    }

    /// Writes the header, with the lists of the call and how much of each segment was pushed (RFC
    /// 8166, sections 4.3.2 and 4.3.3).
    ///
    /// # Errors
    /// [`WriteError`].
    pub fn write(&self, writer: &mut Writer<'_>, credits: u32) -> Result<(), WriteError> {
        let procedure = match self.reply {
            None => Procedure::Msg,
            Some(_) => Procedure::NoMsg,
        };
        write_fixed(writer, self.xid, credits, procedure)?;
        writer.bool(false)?; // A reply has no read list (RFC 8166, section 4.3.1).
        for (chunk, pushed_bytes) in self.writes.chunks().zip(self.pushed_bytes) {
            writer.bool(true)?;
            chunk.write_filled(writer, pushed_bytes)?;
        }
        writer.bool(false)?;
        writer.bool(self.reply.is_some())?;
        self.reply.map_or(Ok(()), |(chunk, pushed_bytes)| {
            chunk.write_filled(writer, pushed_bytes)
        })
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::string::ToString;
    use std::vec::Vec;

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_be_bytes()).collect()
    }

    fn answer(message: &[u32]) -> Answer {
        Received::read(&words(message)).unwrap_err().answer()
    }

    #[test]
    fn a_plain_message_is_28_bytes_and_what_follows() {
        let bytes = words(&[7, 1, 32, 0, 0, 0, 0, 0xAA]);
        let Ok(Received::Message(header)) = Received::read(&bytes) else {
            panic!("a message");
        };
        assert_eq!((header.xid, header.credits), (7, 32));
        assert_eq!(header.procedure, Procedure::Msg);
        assert!(header.reads.is_empty() && header.reply.is_none());
        assert_eq!(header.writes.chunks().count(), 0);
        assert_eq!(header.inline, [0, 0, 0, 0xAA]);
        let mut buffer = [0; PLAIN_BYTES];
        let mut writer = Writer::new(&mut buffer);
        write_fixed(&mut writer, 7, 32, Procedure::Msg).unwrap();
        assert_eq!(writer.written(), &bytes[..FIXED_BYTES]);
    }

    #[test]
    fn a_reply_has_the_lists_of_its_call_with_real_lengths() {
        let lists = [
            0, // no read list
            1, 2, 0xA1, 100, 0, 0x1000, 0xA2, 100, 0, 0x2000, // a chunk of two segments
            1, 0, // a chunk without segments
            0, 1, 1, 0xB1, 4096, 0, 0x3000, // a reply chunk
        ];
        let bytes = words(&[&[7, 1, 32, 0][..], &lists].concat());
        let Ok(Received::Message(call)) = Received::read(&bytes) else {
            panic!("a message");
        };
        let mut pushed_bytes = [0; WRITE_CHUNKS_MAX as usize];
        pushed_bytes[0] = 130;
        let mut reply = ReplyHeader {
            xid: 7,
            writes: call.writes,
            pushed_bytes,
            reply: None,
        };
        let writes = [1, 2, 0xA1, 100, 0, 0x1000, 0xA2, 30, 0, 0x2000, 1, 0, 0];
        let inline = [&[7, 1, 16, 0, 0][..], &writes, &[0]].concat();
        let pushed = [
            &[7, 1, 16, 1, 0][..],
            &writes,
            &[1, 1, 0xB1, 2000, 0, 0x3000],
        ]
        .concat();
        for (reply_chunk, expected) in [
            (None, inline),
            (call.reply.map(|chunk| (chunk, 2000)), pushed),
        ] {
            reply.reply = reply_chunk;
            let mut buffer = [0; 256];
            let mut writer = Writer::new(&mut buffer);
            reply.write(&mut writer, 16).unwrap();
            assert_eq!(writer.written(), words(&expected));
            assert_eq!(writer.offset(), reply.header_bytes());
        }
    }

    #[test]
    fn another_version_is_answered_with_the_range_and_its_own_version() {
        for version in [0, 2, u32::MAX] {
            // Whatever its other fields are.
            let all = [7, version, 0, 9];
            let expected = ErrorReply {
                xid: 7,
                version,
                fault: Fault::Version { low: 1, high: 1 },
            };
            assert_eq!(answer(&all), Answer::Error(expected));
            let mut buffer = [0; ERROR_REPLY_MAX_BYTES];
            let mut writer = Writer::new(&mut buffer);
            expected.write(&mut writer, 16).unwrap();
            assert_eq!(writer.written(), words(&[7, version, 16, 4, 1, 1, 1]));
        }
    }

    #[test]
    fn what_cannot_be_read_is_answered_with_err_chunk() {
        let chunk = Answer::Error(ErrorReply::chunk(7));
        // RDMA_MSGP and procedures that are none.
        for procedure in [2, 5, u32::MAX] {
            assert_eq!(answer(&[7, 1, 32, procedure, 0, 0, 0]), chunk);
        }
        // No credits.
        assert_eq!(answer(&[7, 1, 0, 0, 0, 0, 0]), chunk);
        // Lists that end early, and presence that is neither 0 nor 1.
        assert_eq!(answer(&[7, 1, 32, 0]), chunk);
        assert_eq!(answer(&[7, 1, 32, 0, 0, 0]), chunk);
        assert_eq!(answer(&[7, 1, 32, 1, 1, 0, 7, 100]), chunk);
        assert_eq!(answer(&[7, 1, 32, 0, 2, 0, 0]), chunk);
        let mut buffer = [0; ERROR_REPLY_MAX_BYTES];
        let mut writer = Writer::new(&mut buffer);
        ErrorReply::chunk(7).write(&mut writer, 16).unwrap();
        assert_eq!(writer.written(), words(&[7, 1, 16, 4, 2]));
    }

    #[test]
    fn rdma_done_is_discarded_and_a_stump_ends_the_connection() {
        assert_eq!(answer(&[7, 1, 32, 3]), Answer::Discard);
        assert_eq!(answer(&[7, 1, 32]), Answer::End);
        assert_eq!(answer(&[]), Answer::End);
        assert_eq!(
            Received::read(&[0; 15]).unwrap_err().to_string(),
            "a message has 15 bytes, expected at least 16: the peer does not speak RPC-over-RDMA, \
             end the connection"
        );
    }

    #[test]
    fn errors_are_read_as_they_are_written() {
        for fault in [Fault::Version { low: 1, high: 2 }, Fault::Chunk] {
            let reply = ErrorReply {
                xid: 9,
                version: VERSION,
                fault,
            };
            let mut buffer = [0; ERROR_REPLY_MAX_BYTES];
            let mut writer = Writer::new(&mut buffer);
            reply.write(&mut writer, 5).unwrap();
            assert_eq!(
                Received::read(writer.written()),
                Ok(Received::Error {
                    xid: 9,
                    credits: 5,
                    fault
                })
            );
        }
        assert!(matches!(
            Received::read(&words(&[9, 1, 5, 4, 3])),
            Err(HeaderError::Unreadable { xid: 9, .. })
        ));
    }
}
