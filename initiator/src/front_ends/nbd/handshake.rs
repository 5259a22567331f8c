//! The fixed newstyle handshake of one connection, without I/O.
//!
//! Structured replies are the only extension. TLS is refused: the socket is a unix socket that only
//! its owner can open.

use zerocopy::byteorder::big_endian::{U16, U32};
use zerocopy::{FromBytes, IntoBytes};

use super::wire::{
    ClientFlags, EXPORT_NAME_ZEROES_BYTES, ExportNameReply, Greeting, HandshakeFlags, INIT_MAGIC,
    InfoBlockSize, InfoExport, InfoType, OPTION_MAGIC, OPTION_REPLY_MAGIC, OptionCode,
    OptionHeader, OptionReplyHeader, OptionReplyType, STRING_BYTES_MAX, TransmissionFlags,
};

/// Most data of one option that is looked at, in bytes: the longest export name, its length, and
/// requests for more kinds of information than there are. Longer ones are refused.
pub const OPTION_BYTES_MAX: u32 = STRING_BYTES_MAX + 4 + 2 + 64 * 2;
/// Options one connection may send: far more than any client needs, and an end to one that loops.
pub const OPTIONS_MAX: u32 = 128;

/// What a connection is told about the volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// Its name; the empty name means it, too.
    pub name: String,
    /// For people.
    pub description: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// What it can do. [`TransmissionFlags::SEND_DF`] is added with structured replies.
    pub flags: TransmissionFlags,
    /// Offsets and lengths are multiples of this, in bytes; a power of two.
    pub minimum_bytes: u32,
    /// What is fast, in bytes.
    pub preferred_bytes: u32,
    /// Most data of one request, in bytes.
    pub maximum_bytes: u32,
}

/// What comes after a call of [`Handshake::input`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// More bytes are needed.
    More,
    /// The transmission phase begins with the next byte.
    Start {
        /// Reads are answered by structured replies.
        structured: bool,
    },
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
pub struct Handshake {
    state: State,
    client: ClientFlags,
    structured: bool,
    options: u32,
}

impl Handshake {
    /// Greets the client.
    pub fn new(output: &mut Vec<u8>) -> Self {
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
            structured: false,
            options: 0,
        }
    }

    /// Takes whole items from the start of `bytes` and appends the answers to `output`. Returns how
    /// many bytes were taken; the rest is to come again with more behind it. An item has at most
    /// 16 + [`OPTION_BYTES_MAX`] bytes.
    pub fn input(&mut self, export: &Export, bytes: &[u8], output: &mut Vec<u8>) -> (usize, Step) {
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
                self.structured = true;
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
        Step::Start {
            structured: self.structured,
        }
    }

    /// `NBD_OPT_INFO` and `NBD_OPT_GO`.
    fn info(&self, export: &Export, option: OptionCode, data: &[u8], output: &mut Vec<u8>) -> Step {
        let Some((name, wanted)) = parse_info(data) else {
            let message = b"expected a name and a list of information types";
            reply(output, option, OptionReplyType::ERR_INVALID, message);
            return Step::More;
        };
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
            Step::Start {
                structured: self.structured,
            }
        } else {
            Step::More
        }
    }

    fn flags(&self, export: &Export) -> TransmissionFlags {
        let mut flags = export.flags | TransmissionFlags::HAS_FLAGS;
        // "MUST NOT set this flag unless structured replies have been negotiated".
        flags.set(TransmissionFlags::SEND_DF, self.structured);
        flags
    }
}

impl Export {
    fn is_named(&self, name: &[u8]) -> bool {
        name.is_empty() || name == self.name.as_bytes()
    }
}

/// The name and the wanted information types of `NBD_OPT_INFO` and `NBD_OPT_GO`.
fn parse_info(data: &[u8]) -> Option<(&[u8], &[U16])> {
    let (name_len, rest) = U32::read_from_prefix(data).ok()?;
    let (name, rest) = rest.split_at_checked(name_len.get() as usize)?;
    let (count, rest) = U16::read_from_prefix(rest).ok()?;
    let wanted = <[U16]>::ref_from_bytes(rest).ok()?;
    (wanted.len() == usize::from(count.get())).then_some((name, wanted))
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
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn export() -> Export {
        Export {
            name: "vol".to_owned(),
            description: "a volume".to_owned(),
            size_bytes: 1 << 30,
            flags: TransmissionFlags::SEND_FLUSH | TransmissionFlags::CAN_MULTI_CONN,
            minimum_bytes: 512,
            preferred_bytes: 4096,
            maximum_bytes: 32 << 20,
        }
    }

    fn option(option: OptionCode, data: &[u8]) -> Vec<u8> {
        let header = OptionHeader {
            magic: OPTION_MAGIC.into(),
            option: option.0.into(),
            len_bytes: u32::try_from(data.len()).unwrap().into(),
        };
        [header.as_bytes(), data].concat()
    }

    fn info_data(name: &[u8], wanted: &[InfoType]) -> Vec<u8> {
        let mut data = U32::new(u32::try_from(name.len()).unwrap())
            .as_bytes()
            .to_vec();
        data.extend_from_slice(name);
        data.extend_from_slice(U16::new(u16::try_from(wanted.len()).unwrap()).as_bytes());
        for info_type in wanted {
            data.extend_from_slice(U16::new(info_type.0).as_bytes());
        }
        data
    }

    /// Option, type and data of each reply.
    fn replies(mut output: &[u8]) -> Vec<(u32, u32, Vec<u8>)> {
        let mut replies = Vec::new();
        while let Ok((header, rest)) = OptionReplyHeader::read_from_prefix(output) {
            assert_eq!(header.magic.get(), OPTION_REPLY_MAGIC);
            let (data, rest) = rest.split_at(header.len_bytes.get() as usize);
            replies.push((header.option.get(), header.reply_type.get(), data.to_vec()));
            output = rest;
        }
        assert!(output.is_empty());
        replies
    }

    /// The output after the greeting, and the step.
    fn run(input: &[u8]) -> (Vec<u8>, Step) {
        let mut output = Vec::new();
        let mut handshake = Handshake::new(&mut output);
        assert_eq!(output.len(), 18);
        output.clear();
        let (taken, step) = handshake.input(&export(), input, &mut output);
        assert_eq!(taken, input.len());
        (output, step)
    }

    const FLAGS: [u8; 4] = [0, 0, 0, 3];

    #[test]
    fn go_tells_size_flags_and_block_sizes() {
        let go = option(OptionCode::GO, &info_data(b"vol", &[InfoType::NAME]));
        let structured = option(OptionCode::STRUCTURED_REPLY, &[]);
        let (output, step) = run(&[&FLAGS[..], &structured, &go].concat());
        assert_eq!(step, Step::Start { structured: true });
        let replies = replies(&output);
        let kinds: Vec<_> = replies.iter().map(|r| (r.0, r.1)).collect();
        assert_eq!(kinds, [(8, 1), (7, 3), (7, 3), (7, 3), (7, 1)]);
        let info = InfoExport::read_from_bytes(&replies[1].2).unwrap();
        assert_eq!(info.size_bytes.get(), 1 << 30);
        assert_eq!(
            TransmissionFlags::from_bits(info.flags.get()).unwrap(),
            TransmissionFlags::HAS_FLAGS
                | TransmissionFlags::SEND_FLUSH
                | TransmissionFlags::CAN_MULTI_CONN
                | TransmissionFlags::SEND_DF
        );
        let sizes = InfoBlockSize::read_from_bytes(&replies[2].2).unwrap();
        assert_eq!(
            (sizes.minimum_bytes.get(), sizes.maximum_bytes.get()),
            (512, 32 << 20)
        );
        assert_eq!(replies[3].2, b"\x00\x01vol");
    }

    #[test]
    fn an_unknown_name_is_refused_and_the_next_is_taken() {
        let wrong = option(OptionCode::GO, &info_data(b"other", &[]));
        let right = option(OptionCode::GO, &info_data(b"", &[]));
        let (output, step) = run(&[&FLAGS[..], &wrong, &right].concat());
        assert_eq!(step, Step::Start { structured: false });
        let replies = replies(&output);
        assert_eq!(replies[0].1, OptionReplyType::ERR_UNKNOWN.0);
        assert_eq!(replies.last().unwrap().1, OptionReplyType::ACK.0);
        let (_, step) = run(&[&FLAGS[..], &option(OptionCode::EXPORT_NAME, b"other")].concat());
        assert_eq!(step, Step::Close("no such export"));
    }

    #[test]
    fn export_name_has_zeroes_unless_they_were_waived() {
        let name = option(OptionCode::EXPORT_NAME, b"vol");
        let (output, step) = run(&[&[0, 0, 0, 1][..], &name].concat());
        assert_eq!(
            (output.len(), step),
            (134, Step::Start { structured: false })
        );
        let (output, _) = run(&[&FLAGS[..], &name].concat());
        assert_eq!(output.len(), 10);
    }

    #[test]
    fn what_is_not_supported_or_wrong_is_answered() {
        let too_long = vec![0; OPTION_BYTES_MAX as usize + 1];
        let wrong_count = [&info_data(b"vol", &[InfoType::NAME])[..], &[0, 1]].concat();
        let input = [
            &FLAGS[..],
            &option(OptionCode(5), &[]),
            &option(OptionCode::LIST, b"x"),
            &option(OptionCode(99), &too_long),
            &option(OptionCode::INFO, &wrong_count),
            &option(OptionCode::INFO, &[0, 0, 0, 200]),
            &option(OptionCode::LIST, &[]),
            &option(OptionCode::ABORT, &[]),
        ]
        .concat();
        let (output, step) = run(&input);
        assert_eq!(step, Step::Close("the client ended the handshake"));
        let types: Vec<_> = replies(&output).iter().map(|r| r.1).collect();
        let expected = [
            OptionReplyType::ERR_UNSUP,
            OptionReplyType::ERR_INVALID,
            OptionReplyType::ERR_TOO_BIG,
            OptionReplyType::ERR_INVALID,
            OptionReplyType::ERR_INVALID,
            OptionReplyType::SERVER,
            OptionReplyType::ACK,
            OptionReplyType::ACK,
        ];
        assert_eq!(types, expected.map(|t| t.0));
    }

    #[test]
    fn bad_magic_and_unknown_flags_close() {
        assert!(matches!(run(&[0, 0, 0, 4]).1, Step::Close(_)));
        assert!(matches!(
            run(&[&FLAGS[..], &[7; 16]].concat()).1,
            Step::Close(_)
        ));
        let many = option(OptionCode(99), &[]).repeat(OPTIONS_MAX as usize + 1);
        assert!(matches!(
            run(&[&FLAGS[..], &many].concat()).1,
            Step::Close(_)
        ));
    }

    proptest! {
        /// However the bytes are cut, the answers are the same.
        #[test]
        fn cuts_do_not_matter(
            options in prop::collection::vec((0_u32..12, prop::collection::vec(any::<u8>(), 0..40)), 0..6),
            cut in 1_usize..64,
        ) {
            let mut input = FLAGS.to_vec();
            for (code, data) in &options {
                input.extend(option(OptionCode(*code), data));
            }
            let mut whole = Vec::new();
            let mut handshake = Handshake::new(&mut whole);
            let (_, step) = handshake.input(&export(), &input, &mut whole);
            let mut parts = Vec::new();
            let mut handshake = Handshake::new(&mut parts);
            let mut buffer = Vec::new();
            let mut last = Step::More;
            for part in input.chunks(cut) {
                buffer.extend_from_slice(part);
                let (taken, step) = handshake.input(&export(), &buffer, &mut parts);
                buffer.drain(..taken);
                last = step;
                if step != Step::More {
                    break;
                }
            }
            prop_assert_eq!(last, step);
            prop_assert_eq!(parts, whole);
        }
    }
}
