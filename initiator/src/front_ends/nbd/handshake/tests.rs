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
const SIMPLE: Step = Step::Start(Negotiated {
    structured: false,
    allocation: false,
});
const STRUCTURED: Step = Step::Start(Negotiated {
    structured: true,
    allocation: false,
});

fn meta_data(name: &[u8], queries: &[&[u8]]) -> Vec<u8> {
    let len = |len: usize| U32::new(u32::try_from(len).unwrap());
    let mut data = len(name.len()).as_bytes().to_vec();
    data.extend_from_slice(name);
    data.extend_from_slice(len(queries.len()).as_bytes());
    for query in queries {
        data.extend_from_slice(len(query.len()).as_bytes());
        data.extend_from_slice(query);
    }
    data
}

#[test]
fn the_allocation_context_is_listed_and_set() {
    let structured = option(OptionCode::STRUCTURED_REPLY, &[]);
    let list =
        |queries: &[&[u8]]| option(OptionCode::LIST_META_CONTEXT, &meta_data(b"vol", queries));
    let set = |name: &[u8], queries: &[&[u8]]| {
        option(OptionCode::SET_META_CONTEXT, &meta_data(name, queries))
    };
    let go = option(OptionCode::GO, &info_data(b"vol", &[]));
    let ends = |options: &[Vec<u8>]| {
        let (output, step) = run(&[&FLAGS[..], &options.concat()].concat());
        let types: Vec<_> = replies(&output).iter().map(|r| (r.0, r.1)).collect();
        (types, step)
    };
    let with_context = Step::Start(Negotiated {
        structured: true,
        allocation: true,
    });
    let both: &[&[u8]] = &[b"qemu:dirty-bitmap:x", b"base:allocation"];
    let (types, step) = ends(&[
        structured.clone(),
        list(&[]),
        list(&[b"base:"]),
        list(&[b"other:"]),
        set(b"", both),
        go.clone(),
    ]);
    assert_eq!(step, with_context);
    let expected = [
        (8, 1),
        (9, 4),
        (9, 1),
        (9, 4),
        (9, 1),
        (9, 1),
        (10, 4),
        (10, 1),
    ];
    assert_eq!(types[..8], expected);
    // The last word counts, also when it is wrong.
    let unknown = OptionReplyType::ERR_UNKNOWN.0;
    for (last, reply) in [
        (set(b"vol", &[b"base:"]), OptionReplyType::ACK.0),
        (set(b"vol", &[]), OptionReplyType::ACK.0),
        (set(b"other", both), unknown),
        (
            option(OptionCode::SET_META_CONTEXT, &[0, 0, 0, 9]),
            OptionReplyType::ERR_INVALID.0,
        ),
    ] {
        let (types, step) = ends(&[structured.clone(), set(b"vol", both), last, go.clone()]);
        assert_eq!((types[3], step), ((10, reply), STRUCTURED));
    }
    // More queries than it has bytes for, and none without structured replies.
    let mut too_many = meta_data(b"vol", both);
    too_many[10] = 9;
    let wrong = option(OptionCode::LIST_META_CONTEXT, &too_many);
    let invalid = OptionReplyType::ERR_INVALID.0;
    let (types, _) = ends(&[structured, wrong]);
    assert_eq!(types[1], (9, invalid));
    let (types, step) = ends(&[set(b"vol", both), go]);
    assert_eq!((types[0], step), ((10, invalid), SIMPLE));
}

#[test]
fn a_name_beyond_the_protocol_is_too_big() {
    let name = vec![b'n'; STRING_BYTES_MAX as usize + 1];
    let (output, _) = run(&[
        &FLAGS[..],
        &option(OptionCode::INFO, &info_data(&name, &[])),
    ]
    .concat());
    assert_eq!(replies(&output)[0].1, OptionReplyType::ERR_TOO_BIG.0);
}

#[test]
fn go_tells_size_flags_and_block_sizes() {
    let go = option(OptionCode::GO, &info_data(b"vol", &[InfoType::NAME]));
    let structured = option(OptionCode::STRUCTURED_REPLY, &[]);
    let (output, step) = run(&[&FLAGS[..], &structured, &go].concat());
    assert_eq!(step, STRUCTURED);
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
    assert_eq!(step, SIMPLE);
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
    assert_eq!((output.len(), step), (134, SIMPLE));
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
