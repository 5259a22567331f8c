//! Golden bytes: messages that must be read, and written back to the same bytes. `README.md` beside
//! them says where each is from.

use std::path::Path;

use capstan_rpcrdma::chunks::{ReadSegment, Segment, write_lists};
use capstan_rpcrdma::header::{
    ErrorReply, FIXED_BYTES, Fault, Header, HeaderError, Procedure, Received, VERSION, write_fixed,
};
use capstan_rpcrdma::private::Offer;
use capstan_rpcrdma::pull::{CallMessage, CallPlan, Destination};
use capstan_rpcrdma::push::{Push, ReplyPlan, Source};
use capstan_rpcrdma::record::{Event, RecordReader};
use capstan_rpcrdma::rpc::{Call, Credentials, Reply};
use capstan_rpcrdma::xdr::{DataItem, Reader, ReducedItem, Writer};

const XID: u32 = 0x9A3C_0001;

fn folder() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn load(name: &str) -> Vec<u8> {
    let path = folder().join(format!("{name}.hex"));
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let hex: String = text
        .lines()
        .map(|line| line.split_once('#').map_or(line, |(hex, _comment)| hex))
        .flat_map(str::split_whitespace)
        .collect();
    assert!(hex.len().is_multiple_of(2), "{name}: half a byte");
    (0..hex.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex digits"))
        .collect()
}

fn message(bytes: &[u8]) -> Header<'_> {
    match Received::read(bytes) {
        Ok(Received::Message(header)) => header,
        other => panic!("{other:?}"),
    }
}

/// The header, written from what was read.
fn written_back(header: &Header<'_>) -> Vec<u8> {
    let reads: Vec<ReadSegment> = header.reads.segments().collect();
    let writes: Vec<Vec<Segment>> = header
        .writes
        .chunks()
        .map(|chunk| chunk.segments().collect())
        .collect();
    let writes: Vec<&[Segment]> = writes.iter().map(|chunk| &chunk[..]).collect();
    let reply: Option<Vec<Segment>> = header.reply.map(|chunk| chunk.segments().collect());
    let mut buffer = vec![0; 4096];
    let mut writer = Writer::new(&mut buffer);
    write_fixed(&mut writer, header.xid, header.credits, header.procedure).unwrap();
    write_lists(&mut writer, &reads, &writes, reply.as_deref()).unwrap();
    writer.written().to_vec()
}

fn check_call(bytes: &[u8]) {
    let mut reader = Reader::new(bytes);
    let call = Call::read(&mut reader).unwrap();
    let mut buffer = vec![0; 1024];
    let mut writer = Writer::new(&mut buffer);
    call.write(&mut writer).unwrap();
    assert_eq!(writer.written(), &bytes[..reader.offset()]);
}

fn check_reply(bytes: &[u8]) {
    let mut reader = Reader::new(bytes);
    let reply = Reply::read(&mut reader).unwrap();
    let mut buffer = vec![0; 1024];
    let mut writer = Writer::new(&mut buffer);
    reply.write(&mut writer).unwrap();
    assert_eq!(writer.written(), &bytes[..reader.offset()]);
}

fn check_send(bytes: &[u8], check_message: fn(&[u8])) {
    let header = message(bytes);
    let header_bytes = bytes.len() - header.inline.len();
    assert_eq!(written_back(&header), &bytes[..header_bytes]);
    if header.procedure == Procedure::Msg {
        check_message(header.inline);
    }
}

fn record(mut stream: &[u8]) -> Vec<u8> {
    let (mut reader, mut record) = (RecordReader::default(), Vec::new());
    loop {
        match reader.next(&mut stream).unwrap() {
            Some(Event::Data(data)) => record.extend(data),
            Some(Event::End) => return record,
            None => panic!("a whole record"),
        }
    }
}

#[test]
fn every_file_is_read_and_written_back() {
    let mut files = 0;
    for entry in std::fs::read_dir(folder()).expect("the folder") {
        let name = entry.expect("an entry").file_name();
        let Some(name) = name.to_str().expect("UTF-8").strip_suffix(".hex") else {
            continue;
        };
        files += 1;
        let bytes = load(name);
        let (kind, _) = name.split_once('-').expect("a kind");
        match kind {
            "private" => {
                let offer = Offer::parse(&bytes);
                assert_eq!(offer.encode().unwrap(), bytes[..8], "{name}");
            }
            "call" => check_send(&bytes, check_call),
            "reply" => check_send(&bytes, check_reply),
            "error" => check_error(&bytes),
            "record" => check_call(&record(&bytes)),
            _ => panic!("{name}: a kind that README.md does not name"),
        }
    }
    assert!(files >= 55, "{files} files");
}

fn check_error(bytes: &[u8]) {
    let (xid, version, fault) = match Received::read(bytes) {
        Ok(Received::Error { xid, fault, .. }) => (xid, VERSION, fault),
        // To a requester of another version its own.
        Err(HeaderError::Version { xid, version }) => {
            (xid, version, Fault::Version { low: 1, high: 1 })
        }
        other => panic!("{other:?}"),
    };
    let mut buffer = [0; 28];
    let mut writer = Writer::new(&mut buffer);
    let reply = ErrorReply {
        xid,
        version,
        fault,
    };
    reply.write(&mut writer, 64).unwrap();
    assert_eq!(writer.written(), bytes);
}

#[test]
fn private_data() {
    let offer = Offer {
        send_bytes: 4096,
        receive_bytes: 4096,
        remote_invalidation: true,
    };
    assert_eq!(
        Offer::parse(&load("private-4096-remote-invalidation")),
        offer
    );
    assert_eq!(Offer::parse(&load("private-1024-plain")), Offer::DEFAULT);
}

#[test]
fn a_write_whose_data_is_pulled() {
    let bytes = load("call-write-two-segments");
    let header = message(&bytes);
    assert_eq!((header.xid, header.credits), (XID, 128));
    let plan = CallPlan::new(&header).unwrap();
    let pulls: Vec<_> = plan
        .pulls()
        .map(|pull| (pull.into, pull.at_bytes, pull.from))
        .collect();
    let segment = |length_bytes, offset| Segment {
        handle: 0xA1,
        length_bytes,
        offset,
    };
    assert_eq!(
        pulls,
        [
            (Destination::Item(0), 0, segment(4096, 0x1_0000)),
            (Destination::Item(0), 4096, segment(905, 0x1_1000)),
        ]
    );
    let CallMessage::Inline(inline) = plan.message() else {
        panic!("inline");
    };
    let mut reader = Reader::with_reduced(inline, plan.items());
    let call = Call::read(&mut reader).unwrap();
    assert_eq!(
        (call.program, call.version, call.procedure),
        (100_003, 3, 7)
    );
    let Credentials::Sys(sys) = call.credentials else {
        panic!("AUTH_SYS");
    };
    assert_eq!(sys.machine_name, b"client1");
    assert_eq!((sys.stamp, sys.uid, sys.gid), (0x5F37_59DF, 1000, 100));
    assert_eq!(sys.gids.as_slice(), [10, 100]);
    assert_eq!(reader.opaque("file", 64).map(<[u8]>::len), Ok(32));
    assert_eq!(reader.u64("offset"), Ok(0x1_0000));
    assert_eq!(
        (reader.u32("count"), reader.u32("stable")),
        (Ok(5001), Ok(2))
    );
    assert_eq!(
        reader.data_item("data", 1 << 20),
        Ok(DataItem::Reduced {
            index: 0,
            length_bytes: 5001
        })
    );
    assert_eq!(reader.finish(), Ok(()));
}

#[test]
fn a_read_whose_data_is_pushed() {
    let call = load("call-read-eight-segments");
    let expected = load("reply-read-eight-segments");
    let expected_header = message(&expected);
    // The items of the reply, and its only data behind the last of them.
    let stream = expected_header.inline;
    let items = [ReducedItem {
        position: u32::try_from(stream.len()).unwrap(),
        length_bytes: 300_001,
    }];
    let stream_bytes = u32::try_from(stream.len()).unwrap();
    let plan = ReplyPlan::new(&message(&call), stream_bytes, &items, 4096).unwrap();
    let mut buffer = vec![0; 4096];
    let mut writer = Writer::new(&mut buffer);
    plan.write_header(&mut writer, 64).unwrap();
    writer.opaque_fixed(stream).unwrap();
    assert_eq!(writer.written(), expected);
    let push = |at_bytes, handle, length_bytes, low: u64| Push {
        source: Source::Item(0),
        at_bytes,
        to: Segment {
            handle,
            length_bytes,
            offset: 0x7F00_0000_0000 | low,
        },
    };
    assert_eq!(
        plan.pushes().collect::<Vec<_>>(),
        [
            push(0, 0x100, 131_072, 0),
            push(131_072, 0x101, 131_072, 0x2_0000),
            push(262_144, 0x102, 37_857, 0x4_0000),
        ]
    );
    // Eight keys, of which a Send can invalidate one.
    assert_eq!(plan.invalidate(), None);
}

/// The chunks in knfsd's answers to the Linux client are those that we answer with.
#[test]
fn what_knfsd_answers_is_what_is_planned() {
    for name in [
        "linux-v42-write-chunk-of-1",
        "linux-v41-write-chunk-of-1",
        "linux-v3-write-chunk-of-1",
    ] {
        let (call, expected) = (
            load(&format!("call-{name}")),
            load(&format!("reply-{name}")),
        );
        let expected_header = message(&expected);
        assert_eq!(message(&call).xid, expected_header.xid, "{name}");
        let written = expected_header.writes.chunks().next().expect(name);
        let length_bytes = written.segments().map(|segment| segment.length_bytes).sum();
        let stream_bytes = u32::try_from(expected_header.inline.len()).unwrap();
        let items = [ReducedItem {
            position: stream_bytes,
            length_bytes,
        }];
        let plan = ReplyPlan::new(&message(&call), stream_bytes, &items, 4096).unwrap();
        let mut buffer = vec![0; 4096];
        let mut writer = Writer::new(&mut buffer);
        plan.write_header(&mut writer, expected_header.credits)
            .unwrap();
        writer.opaque_fixed(expected_header.inline).unwrap();
        assert_eq!(writer.written(), expected, "{name}");
    }
}

/// So are those of answers that are too long for a Send; knfsd uses a reply chunk wherever there is
/// one, so that the bound is put low here.
#[test]
fn what_knfsd_answers_by_a_reply_chunk_is_what_is_planned() {
    for (call, reply) in [
        (
            "call-linux-v42-reply-chunk-of-3",
            "reply-linux-v42-nomsg-reply-chunk-of-3",
        ),
        (
            "call-linux-v3-reply-chunk-of-3",
            "reply-linux-v3-nomsg-reply-chunk-of-3",
        ),
    ] {
        let expected = load(reply);
        let expected_header = message(&expected);
        let call = calls_of(call)
            .into_iter()
            .find(|call| message(call).xid == expected_header.xid)
            .unwrap_or_else(|| panic!("{reply}: no call {call}"));
        let chunk = expected_header.reply.expect(reply);
        let length_bytes = chunk.segments().map(|segment| segment.length_bytes).sum();
        let plan = ReplyPlan::new(&message(&call), length_bytes, &[], 128).unwrap();
        let mut buffer = vec![0; 4096];
        let mut writer = Writer::new(&mut buffer);
        plan.write_header(&mut writer, expected_header.credits)
            .unwrap();
        assert_eq!(writer.written(), expected, "{reply}");
    }
}

/// The calls of a name, which a number may tell apart.
fn calls_of(name: &str) -> Vec<Vec<u8>> {
    let names = [name.to_owned(), format!("{name}-2"), format!("{name}-3")];
    let there = names
        .iter()
        .filter(|name| folder().join(format!("{name}.hex")).exists());
    there.map(|name| load(name)).collect()
}

#[test]
fn a_reply_that_is_too_long_to_be_inline() {
    let call = load("call-readdir-reply-chunk");
    let plan = ReplyPlan::new(&message(&call), 2000, &[], 1024).unwrap();
    let mut buffer = vec![0; 4096];
    let mut writer = Writer::new(&mut buffer);
    plan.write_header(&mut writer, 64).unwrap();
    assert_eq!(writer.written(), load("reply-readdir-reply-chunk"));
    let to = Segment {
        handle: 0xB1,
        length_bytes: 2000,
        offset: 0x4000,
    };
    let push = Push {
        source: Source::Stream,
        at_bytes: 0,
        to,
    };
    assert_eq!(plan.pushes().collect::<Vec<_>>(), [push]);
    assert_eq!((plan.inline().count(), plan.invalidate()), (0, Some(0xB1)));
}

#[test]
fn a_long_call_is_pulled_whole() {
    let bytes = load("call-long");
    let header = message(&bytes);
    assert_eq!(header.procedure, Procedure::NoMsg);
    let plan = CallPlan::new(&header).unwrap();
    assert_eq!(plan.message(), CallMessage::Pulled { length_bytes: 6000 });
    let pulls: Vec<_> = plan
        .pulls()
        .map(|pull| (pull.into, pull.at_bytes))
        .collect();
    assert_eq!(
        pulls,
        [(Destination::Message, 0), (Destination::Message, 4096)]
    );
}

#[test]
fn errors() {
    assert_eq!(
        Received::read(&load("error-chunk")),
        Ok(Received::Error {
            xid: XID,
            credits: 64,
            fault: Fault::Chunk
        })
    );
    // To a call of version 2, as a server of version 1 answers it.
    let mut call = load("call-null");
    call[7] = 2;
    let answer = Received::read(&call).unwrap_err().answer();
    let capstan_rpcrdma::header::Answer::Error(reply) = answer else {
        panic!("{answer:?}");
    };
    let mut buffer = [0; FIXED_BYTES + 12];
    let mut writer = Writer::new(&mut buffer);
    reply.write(&mut writer, 64).unwrap();
    assert_eq!(writer.written(), load("error-version"));
}

#[test]
fn a_record_in_two_fragments_is_that_in_one() {
    let one = record(&load("record-call-null"));
    assert_eq!(one, record(&load("record-call-null-two-fragments")));
    assert_eq!(one, message(&load("call-null")).inline);
}
