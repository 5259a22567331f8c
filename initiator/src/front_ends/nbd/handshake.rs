//! The fixed newstyle handshake of one connection, without I/O.
//!
//! Structured replies are the only extension, with the metadata context `base:allocation`. TLS is
//! refused: the socket is a unix socket that only
//! its owner can open.

use zerocopy::byteorder::big_endian::{U16, U32};
use zerocopy::{FromBytes, IntoBytes};

use super::wire::{
    BASE_ALLOCATION, BASE_ALLOCATION_ID, ClientFlags, EXPORT_NAME_ZEROES_BYTES, ExportNameReply,
    Greeting, HandshakeFlags, INIT_MAGIC, InfoBlockSize, InfoExport, InfoType, OPTION_MAGIC,
    OPTION_REPLY_MAGIC, OptionCode, OptionHeader, OptionReplyHeader, OptionReplyType,
    STRING_BYTES_MAX, TransmissionFlags,
};

/// Most data of one option that is looked at, in bytes: the longest export name with its length,
/// and as much again for what is asked of it: kinds of information, metadata contexts. Longer ones
/// are refused.
pub(crate) const OPTION_BYTES_MAX: u32 = 2 * (STRING_BYTES_MAX + 4);
/// Options one connection may send: far more than any client needs, and an end to one that loops.
pub(crate) const OPTIONS_MAX: u32 = 128;

/// What a connection is told about the volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Export {
    /// Its name; the empty name means it, too.
    pub(crate) name: String,
    /// For people.
    pub(crate) description: String,
    /// Size in bytes.
    pub(crate) size_bytes: u64,
    /// What it can do. [`TransmissionFlags::SEND_DF`] is added with structured replies.
    pub(crate) flags: TransmissionFlags,
    /// Offsets and lengths are multiples of this, in bytes; a power of two.
    pub(crate) minimum_bytes: u32,
    /// What is fast, in bytes.
    pub(crate) preferred_bytes: u32,
    /// Most data of one request, in bytes.
    pub(crate) maximum_bytes: u32,
}

/// What client and server have agreed on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Negotiated {
    /// Reads are answered by structured replies.
    pub(crate) structured: bool,
    /// Block status tells of `base:allocation`.
    pub(crate) allocation: bool,
}

/// What comes after a call of [`Handshake::input`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// More bytes are needed.
    More,
    /// The transmission phase begins with the next byte.
    Start(Negotiated),
    /// Close when the output is sent, for this reason.
    Close(&'static str),
}

#[derive(Debug)]
enum State {
    ClientFlags,
    Options,
    /// In the data of an option that is too long.
    Skip {
        option: OptionCode,
        left_bytes: u32,
    },
}

/// The handshake of one connection.
#[derive(Debug)]
pub(crate) struct Handshake {
    state: State,
    client: ClientFlags,
    negotiated: Negotiated,
    options: u32,
}

impl Handshake {
    /// Greets the client.
    pub(crate) fn new(output: &mut Vec<u8>) -> Self {
        let flags = HandshakeFlags::FIXED_NEWSTYLE | HandshakeFlags::NO_ZEROES;
        let greeting = Greeting {
            init_magic: INIT_MAGIC.into(),
            option_magic: OPTION_MAGIC.into(),
            flags: flags.bits().into(),
        };
        output.extend_from_slice(greeting.as_bytes());
        Self {
            state: State::ClientFlags,
            client: ClientFlags::empty(),
            negotiated: Negotiated::default(),
            options: 0,
        }
    }

    /// Takes whole items from the start of `bytes` and appends the answers to `output`. Returns how
    /// many bytes were taken; the rest is to come again with more behind it. An item has at most
    /// 16 + [`OPTION_BYTES_MAX`] bytes.
    pub(crate) fn input(
        &mut self,
        export: &Export,
        bytes: &[u8],
        output: &mut Vec<u8>,
    ) -> (usize, Step) {
        let mut taken = 0;
        // Bounded: every round takes bytes or returns.
        loop {
            let rest = bytes.get(taken..).unwrap_or_default();
            let (count, step) = match self.state {
                State::ClientFlags => self.client_flags(rest),
                State::Options => self.option(export, rest, output),
                State::Skip { option, left_bytes } => self.skip(option, left_bytes, rest, output),
            };
            taken += count;
            if count == 0 || step != Step::More {
                return (taken, step);
            }
        }
    }

    fn client_flags(&mut self, bytes: &[u8]) -> (usize, Step) {
        let Ok((bits, _)) = U32::read_from_prefix(bytes) else {
            return (0, Step::More);
        };
        // "If the server receives a flag it does not know, it MUST close" ("Client flags").
        let Some(client) = ClientFlags::from_bits(bits.get()) else {
            return (4, Step::Close("unknown client flags"));
        };
        self.client = client;
        self.state = State::Options;
        (4, Step::More)
    }

    fn option(&mut self, export: &Export, bytes: &[u8], output: &mut Vec<u8>) -> (usize, Step) {
        let Ok((header, rest)) = OptionHeader::read_from_prefix(bytes) else {
            return (0, Step::More);
        };
        if header.magic.get() != OPTION_MAGIC {
            return (bytes.len(), Step::Close("an option without its magic"));
        }
        let option = OptionCode(header.option.get());
        let len_bytes = header.len_bytes.get();
        if len_bytes > OPTION_BYTES_MAX {
            self.state = State::Skip {
                option,
                left_bytes: len_bytes,
            };
            return (size_of::<OptionHeader>(), Step::More);
        }
        let Some(data) = rest.get(..len_bytes as usize) else {
            return (0, Step::More);
        };
        self.options += 1;
        let taken = size_of::<OptionHeader>() + data.len();
        if self.options > OPTIONS_MAX {
            return (taken, Step::Close("too many options"));
        }
        (taken, self.answer(export, option, data, output))
    }

    /// Takes the data of an option that is too long, then refuses it.
    fn skip(
        &mut self,
        option: OptionCode,
        left_bytes: u32,
        bytes: &[u8],
        output: &mut Vec<u8>,
    ) -> (usize, Step) {
        let count = bytes.len().min(left_bytes as usize);
        let left_bytes = left_bytes - u32::try_from(count).unwrap_or(left_bytes);
        if left_bytes > 0 {
            self.state = State::Skip { option, left_bytes };
            return (count, Step::More);
        }
        self.state = State::Options;
        if option == OptionCode::EXPORT_NAME {
            return (count, Step::Close("the export name is too long"));
        }
        reply(output, option, OptionReplyType::ERR_TOO_BIG, &[]);
        (count, Step::More)
    }

    fn answer(
        &mut self,
        export: &Export,
        option: OptionCode,
        data: &[u8],
        output: &mut Vec<u8>,
    ) -> Step {
        match option {
            OptionCode::EXPORT_NAME => self.export_name(export, data, output),
            OptionCode::ABORT => {
                reply(output, option, OptionReplyType::ACK, &[]);
                Step::Close("the client ended the handshake")
            }
            OptionCode::LIST if data.is_empty() => {
                let len_bytes = u32::try_from(export.name.len()).unwrap_or(0);
                let mut server = U32::new(len_bytes).as_bytes().to_vec();
                server.extend_from_slice(export.name.as_bytes());
                server.extend_from_slice(export.description.as_bytes());
                reply(output, option, OptionReplyType::SERVER, &server);
                reply(output, option, OptionReplyType::ACK, &[]);
                Step::More
            }
            OptionCode::STRUCTURED_REPLY if data.is_empty() => {
                self.negotiated.structured = true;
                reply(output, option, OptionReplyType::ACK, &[]);
                Step::More
            }
            OptionCode::LIST | OptionCode::STRUCTURED_REPLY => {
                reply(
                    output,
                    option,
                    OptionReplyType::ERR_INVALID,
                    b"no data is expected",
                );
                Step::More
            }
            OptionCode::INFO | OptionCode::GO => self.info(export, option, data, output),
            OptionCode::LIST_META_CONTEXT | OptionCode::SET_META_CONTEXT => {
                self.meta_context(export, option, data, output);
                Step::More
            }
            _ => {
                reply(output, option, OptionReplyType::ERR_UNSUP, &[]);
                Step::More
            }
        }
    }

    /// `NBD_OPT_EXPORT_NAME`: there is no way to refuse but to close.
    fn export_name(&self, export: &Export, name: &[u8], output: &mut Vec<u8>) -> Step {
        if !export.is_named(name) {
            return Step::Close("no such export");
        }
        let reply = ExportNameReply {
            size_bytes: export.size_bytes.into(),
            flags: self.flags(export).bits().into(),
        };
        output.extend_from_slice(reply.as_bytes());
        if !self.client.contains(ClientFlags::NO_ZEROES) {
            output.resize(output.len() + EXPORT_NAME_ZEROES_BYTES, 0);
        }
        Step::Start(self.negotiated)
    }

    /// `NBD_OPT_INFO` and `NBD_OPT_GO`.
    fn info(&self, export: &Export, option: OptionCode, data: &[u8], output: &mut Vec<u8>) -> Step {
        let Some((name, wanted)) = parse_info(data) else {
            let message = b"expected a name and a list of information types";
            reply(output, option, OptionReplyType::ERR_INVALID, message);
            return Step::More;
        };
        if name.len() > STRING_BYTES_MAX as usize {
            reply(output, option, OptionReplyType::ERR_TOO_BIG, &[]);
            return Step::More;
        }
        if !export.is_named(name) {
            let message = format!("this socket exports {:?}", export.name);
            reply(
                output,
                option,
                OptionReplyType::ERR_UNKNOWN,
                message.as_bytes(),
            );
            return Step::More;
        }
        let info = InfoExport {
            info_type: InfoType::EXPORT.0.into(),
            size_bytes: export.size_bytes.into(),
            flags: self.flags(export).bits().into(),
        };
        reply(output, option, OptionReplyType::INFO, info.as_bytes());
        // Told even when it is not asked for: unaligned writes are refused ("a server MAY send
        // information the client did not ask for").
        let block_size = InfoBlockSize {
            info_type: InfoType::BLOCK_SIZE.0.into(),
            minimum_bytes: export.minimum_bytes.into(),
            preferred_bytes: export.preferred_bytes.into(),
            maximum_bytes: export.maximum_bytes.into(),
        };
        reply(output, option, OptionReplyType::INFO, block_size.as_bytes());
        for (info_type, text) in [
            (InfoType::NAME, &export.name),
            (InfoType::DESCRIPTION, &export.description),
        ] {
            if wanted.contains(&U16::new(info_type.0)) {
                let mut info = U16::new(info_type.0).as_bytes().to_vec();
                info.extend_from_slice(text.as_bytes());
                reply(output, option, OptionReplyType::INFO, &info);
            }
        }
        reply(output, option, OptionReplyType::ACK, &[]);
        if option == OptionCode::GO {
            Step::Start(self.negotiated)
        } else {
            Step::More
        }
    }

    fn flags(&self, export: &Export) -> TransmissionFlags {
        let mut flags = export.flags | TransmissionFlags::HAS_FLAGS;
        // "MUST NOT set this flag unless structured replies have been negotiated".
        flags.set(TransmissionFlags::SEND_DF, self.negotiated.structured);
        flags
    }

    /// `NBD_OPT_LIST_META_CONTEXT` and `NBD_OPT_SET_META_CONTEXT`.
    fn meta_context(
        &mut self,
        export: &Export,
        option: OptionCode,
        data: &[u8],
        output: &mut Vec<u8>,
    ) {
        let sets = option == OptionCode::SET_META_CONTEXT;
        if sets {
            // "Issuing this command replaces all previously-set metadata contexts (including when
            // this command fails)".
            self.negotiated.allocation = false;
        }
        let mut refuse = |reply_type, message: &str| {
            reply(output, option, reply_type, message.as_bytes());
        };
        if !self.negotiated.structured {
            return refuse(
                OptionReplyType::ERR_INVALID,
                "structured replies come first",
            );
        }
        let Some((name, queries)) = parse_meta_context(data) else {
            let message = "expected a name and a list of queries";
            return refuse(OptionReplyType::ERR_INVALID, message);
        };
        if !export.is_named(name) {
            let message = format!("this socket exports {:?}", export.name);
            return refuse(OptionReplyType::ERR_UNKNOWN, &message);
        }
        // The empty leaf names all of a namespace where they are listed, and no query all there
        // are.
        let lists = |query: &&[u8]| !sets && *query == b"base:";
        let is_wanted = |query: &&[u8]| *query == BASE_ALLOCATION.as_bytes() || lists(query);
        if queries.iter().any(is_wanted) || (!sets && queries.is_empty()) {
            let id = U32::new(if sets { BASE_ALLOCATION_ID } else { 0 });
            let context = [id.as_bytes(), BASE_ALLOCATION.as_bytes()].concat();
            reply(output, option, OptionReplyType::META_CONTEXT, &context);
            self.negotiated.allocation |= sets;
        }
        reply(output, option, OptionReplyType::ACK, &[]);
    }
}

impl Export {
    fn is_named(&self, name: &[u8]) -> bool {
        name.is_empty() || name == self.name.as_bytes()
    }
}

/// The name and the wanted information types of `NBD_OPT_INFO` and `NBD_OPT_GO`.
fn parse_info(data: &[u8]) -> Option<(&[u8], &[U16])> {
    let (name, rest) = parse_string(data)?;
    let (count, rest) = U16::read_from_prefix(rest).ok()?;
    let wanted = <[U16]>::ref_from_bytes(rest).ok()?;
    (wanted.len() == usize::from(count.get())).then_some((name, wanted))
}

/// The name and the queries of the options about metadata contexts.
fn parse_meta_context(data: &[u8]) -> Option<(&[u8], Vec<&[u8]>)> {
    let (name, rest) = parse_string(data)?;
    let (count, mut rest) = U32::read_from_prefix(rest).ok()?;
    let mut queries = Vec::new();
    for _ in 0..count.get() {
        let (query, behind) = parse_string(rest)?;
        queries.push(query);
        rest = behind;
    }
    rest.is_empty().then_some((name, queries))
}

/// A string behind its length, and what follows it.
fn parse_string(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = U32::read_from_prefix(data).ok()?;
    rest.split_at_checked(len.get() as usize)
}

fn reply(output: &mut Vec<u8>, option: OptionCode, reply_type: OptionReplyType, data: &[u8]) {
    let header = OptionReplyHeader {
        magic: OPTION_REPLY_MAGIC.into(),
        option: option.0.into(),
        reply_type: reply_type.0.into(),
        len_bytes: u32::try_from(data.len()).unwrap_or(u32::MAX).into(),
    };
    output.extend_from_slice(header.as_bytes());
    output.extend_from_slice(data);
}

#[cfg(test)]
mod tests;
