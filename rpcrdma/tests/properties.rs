//! Properties of everything that reads bytes of a peer, over values that were made up.

use capstan_rpcrdma::chunks::{ReadSegment, Segment, write_lists};
use capstan_rpcrdma::credits::{CreditPool, Credits};
use capstan_rpcrdma::header::{Header, Procedure, Received, write_fixed};
use capstan_rpcrdma::limits::{CALL_MAX_BYTES, DATA_MAX_BYTES};
use capstan_rpcrdma::private::Offer;
use capstan_rpcrdma::pull::{CallMessage, CallPlan, Destination};
use capstan_rpcrdma::push::{Pieces, ReplyPlan, Source};
use capstan_rpcrdma::record::{Event, RecordReader, record_mark};
use capstan_rpcrdma::rpc::{Accepted, AuthStat, AuthSys, Call, Credentials, Denied, Gids, Reply};
use capstan_rpcrdma::xdr::{DataItem, Reader, ReducedItem, Writer};
use proptest::collection::vec;
use proptest::prelude::*;

fn segment() -> impl Strategy<Value = Segment> {
    (any::<u32>(), 0..5000_u32, 0..u64::MAX / 2).prop_map(|(handle, length_bytes, offset)| {
        Segment {
            handle,
            length_bytes,
            offset,
        }
    })
}

fn message(bytes: &[u8]) -> Header<'_> {
    match Received::read(bytes) {
        Ok(Received::Message(header)) => header,
        other => panic!("{other:?}"),
    }
}

/// Data of an item: what distinguishes it and its bytes.
fn data(index: usize, length_bytes: usize) -> Vec<u8> {
    (0..length_bytes)
        .map(|at| u8::try_from((at * 7 + index * 31 + 1) % 251).unwrap())
        .collect()
}

/// The bytes of a message, piece by piece.
fn gather(pieces: Pieces<'_>, stream: &[u8], items: &[Vec<u8>]) -> Vec<u8> {
    let mut out = Vec::new();
    for piece in pieces {
        let start = usize::try_from(piece.at_bytes).unwrap();
        let end = start + usize::try_from(piece.length_bytes).unwrap();
        match piece.source {
            Source::Stream => out.extend(&stream[start..end]),
            Source::Item(index) => out.extend(&items[index][start..end]),
            Source::Padding => out.extend(vec![0; end - start]),
        }
    }
    out
}

/// What a test writes and reads back.
#[derive(Clone, Debug)]
enum Item {
    U32(u32),
    U64(u64),
    I64(i64),
    Bool(bool),
    Opaque(Vec<u8>),
    Fixed(Vec<u8>),
    Data(usize),
}

fn item() -> impl Strategy<Value = Item> {
    prop_oneof![
        any::<u32>().prop_map(Item::U32),
        any::<u64>().prop_map(Item::U64),
        any::<i64>().prop_map(Item::I64),
        any::<bool>().prop_map(Item::Bool),
        vec(any::<u8>(), 0..20).prop_map(Item::Opaque),
        vec(any::<u8>(), 0..20).prop_map(Item::Fixed),
        (0..70_usize).prop_map(Item::Data),
    ]
}

/// Writes items; `reduce` says whether the data is kept elsewhere. The data that was.
fn write_items(writer: &mut Writer<'_>, items: &[Item], reduce: bool) -> Vec<Vec<u8>> {
    let mut apart = Vec::new();
    for (index, item) in items.iter().enumerate() {
        match item {
            Item::U32(value) => writer.u32(*value).unwrap(),
            Item::U64(value) => writer.u64(*value).unwrap(),
            Item::I64(value) => writer.i64(*value).unwrap(),
            Item::Bool(value) => writer.bool(*value).unwrap(),
            Item::Opaque(bytes) => writer.opaque(bytes).unwrap(),
            Item::Fixed(bytes) => writer.opaque_fixed(bytes).unwrap(),
            Item::Data(length) if reduce && apart.len() < 16 => {
                writer.reduced(u32::try_from(*length).unwrap()).unwrap();
                apart.push(data(index, *length));
            }
            Item::Data(length) => writer.opaque(&data(index, *length)).unwrap(),
        }
    }
    apart
}

/// Reads the items that were written.
fn read_items(mut reader: Reader<'_>, items: &[Item], apart: &[Vec<u8>]) {
    for (index, item) in items.iter().enumerate() {
        match item {
            Item::U32(value) => assert_eq!(reader.u32("a"), Ok(*value)),
            Item::U64(value) => assert_eq!(reader.u64("b"), Ok(*value)),
            Item::I64(value) => assert_eq!(reader.i64("c"), Ok(*value)),
            Item::Bool(value) => assert_eq!(reader.bool("d"), Ok(*value)),
            Item::Opaque(bytes) => assert_eq!(reader.opaque("e", 20), Ok(&bytes[..])),
            Item::Fixed(bytes) => {
                assert_eq!(reader.opaque_fixed("f", bytes.len()), Ok(&bytes[..]));
            }
            Item::Data(length) => match reader.data_item("g", 70).unwrap() {
                DataItem::Inline(bytes) => assert_eq!(bytes, data(index, *length)),
                DataItem::Reduced {
                    index: at,
                    length_bytes,
                } => {
                    assert_eq!(apart[at][..*length], data(index, *length));
                    assert_eq!(usize::try_from(length_bytes), Ok(*length));
                }
            },
        }
    }
    assert_eq!(reader.finish(), Ok(()));
}

proptest! {
    #[test]
    fn items_are_read_as_written_and_reducing_changes_nothing(items in vec(item(), 0..30)) {
        let (mut whole, mut reduced) = (vec![0; 4096], vec![0; 4096]);
        let mut writer = Writer::new(&mut whole);
        write_items(&mut writer, &items, false);
        let whole = writer.written().to_vec();
        read_items(Reader::new(&whole), &items, &[]);
        let mut writer = Writer::new(&mut reduced);
        let apart = write_items(&mut writer, &items, true);
        prop_assert_eq!(writer.position(), u64::try_from(whole.len()).unwrap());
        read_items(Reader::with_reduced(writer.written(), writer.reduced_items()), &items, &apart);
        let stream_bytes = u32::try_from(writer.offset()).unwrap();
        let pieces = Pieces::whole(stream_bytes, writer.reduced_items());
        prop_assert_eq!(gather(pieces, writer.written(), &apart), whole);
    }

    #[test]
    fn a_call_arrives_by_chunks_as_it_was_written(
        items in vec(item(), 1..30),
        nomsg: bool,
        padded: bool,
        cut in 1..40_usize,
    ) {
        let mut buffer = vec![0; 4096];
        let mut writer = Writer::new(&mut buffer);
        let mut apart = write_items(&mut writer, &items, true);
        let stream = writer.written().to_vec();
        // The memory of the client: what a handle stands for.
        let mut memory: Vec<Vec<u8>> = Vec::new();
        let mut reads = Vec::new();
        let mut register = |position, bytes: &[u8]| {
            for part in bytes.chunks(bytes.len().div_ceil(3).max(cut)) {
                reads.push(ReadSegment {
                    position,
                    target: Segment {
                        handle: u32::try_from(memory.len()).unwrap(),
                        length_bytes: u32::try_from(part.len()).unwrap(),
                        offset: 0,
                    },
                });
                memory.push(part.to_vec());
            }
        };
        if nomsg {
            prop_assume!(!stream.is_empty());
            register(0, &stream);
        }
        for (item, bytes) in writer.reduced_items().iter().zip(&mut apart) {
            if padded {
                bytes.resize(bytes.len().next_multiple_of(4), 0);
            }
            register(item.position, bytes);
        }
        // An item without bytes has no segment, and stays in the stream.
        apart.retain(|bytes| !bytes.is_empty());
        let mut buffer = vec![0; 16384];
        let mut writer = Writer::new(&mut buffer);
        let procedure = if nomsg { Procedure::NoMsg } else { Procedure::Msg };
        write_fixed(&mut writer, 9, 1, procedure).unwrap();
        write_lists(&mut writer, &reads, &[], None).unwrap();
        if !nomsg {
            writer.opaque_fixed(&stream).unwrap();
        }
        let plan = CallPlan::new(&message(writer.written())).unwrap();
        let length = |bytes: u32| vec![0; usize::try_from(bytes).unwrap()];
        let mut pulled = match plan.message() {
            CallMessage::Inline(_) => Vec::new(),
            CallMessage::Pulled { length_bytes } => length(length_bytes),
        };
        let mut buffers: Vec<_> = plan.items().iter().map(|item| length(item.length_bytes)).collect();
        for pull in plan.pulls() {
            let buffer = match pull.into {
                Destination::Message => &mut pulled,
                Destination::Item(index) => &mut buffers[index],
            };
            let from = &memory[usize::try_from(pull.from.handle).unwrap()];
            let at = usize::try_from(pull.at_bytes).unwrap();
            buffer[at..at + from.len()].copy_from_slice(from);
        }
        prop_assert_eq!(&buffers, &apart);
        let stream = match plan.message() {
            CallMessage::Inline(bytes) => bytes,
            CallMessage::Pulled { .. } => &pulled,
        };
        read_items(Reader::with_reduced(stream, plan.items()), &items, &buffers);
    }

    #[test]
    fn a_reply_arrives_by_chunks_as_it_was_written(
        items in vec(item(), 0..20),
        writes in vec(vec(segment(), 0..4), 0..4),
        reply in proptest::option::of(vec(segment(), 1..5)),
        inline_bytes in 1024..4096_u32,
    ) {
        let mut buffer = vec![0; 4096];
        let mut writer = Writer::new(&mut buffer);
        let apart = write_items(&mut writer, &items, true);
        let (stream, reduced) = (writer.written().to_vec(), writer.reduced_items().to_vec());
        let mut buffer = vec![0; 16384];
        let mut writer = Writer::new(&mut buffer);
        let chunks: Vec<&[Segment]> = writes.iter().map(|chunk| &chunk[..]).collect();
        write_fixed(&mut writer, 9, 1, Procedure::Msg).unwrap();
        write_lists(&mut writer, &[], &chunks, reply.as_deref()).unwrap();
        let call = message(writer.written());
        let stream_bytes = u32::try_from(stream.len()).unwrap();
        let Ok(plan) = ReplyPlan::new(&call, stream_bytes, &reduced, inline_bytes) else {
            return Ok(());
        };
        let mut buffer = vec![0; 16384];
        let mut header = Writer::new(&mut buffer);
        plan.write_header(&mut header, 5).unwrap();
        let answer = message(header.written());
        prop_assert_eq!((answer.xid, answer.credits), (9, 5));
        prop_assert!(plan.send_bytes() <= u64::from(inline_bytes));
        // Pushes fill each chunk from its front, without gaps and no further than it says.
        let mut said: Vec<Segment> = answer.writes.chunks().flat_map(|chunk| chunk.segments())
            .chain(answer.reply.iter().flat_map(|chunk| chunk.segments()))
            .filter(|segment| segment.length_bytes > 0)
            .collect();
        said.reverse();
        let mut pushed_bytes = 0;
        for push in plan.pushes() {
            pushed_bytes += u64::from(push.to.length_bytes);
            let segment = said.last_mut().expect("a segment that the header names");
            prop_assert_eq!((push.to.handle, push.to.offset), (segment.handle, segment.offset));
            prop_assert!(push.to.length_bytes <= segment.length_bytes);
            segment.length_bytes -= push.to.length_bytes;
            segment.offset += u64::from(push.to.length_bytes);
            if segment.length_bytes == 0 {
                said.pop();
            }
        }
        prop_assert!(said.is_empty());
        let inline = gather(plan.inline(), &stream, &apart);
        let whole: u64 = Pieces::whole(stream_bytes, &reduced).length_bytes();
        // All of it went somewhere, but for the padding of what went to write chunks.
        let total = pushed_bytes + u64::try_from(inline.len()).unwrap();
        prop_assert!(total <= whole && whole - total <= 3 * 16);
    }

    #[test]
    fn calls_and_replies_are_read_as_written(
        words: [u32; 4],
        name in vec(any::<u8>(), 0..256),
        gids in vec(any::<u32>(), 0..17),
        none: bool,
        status in 0..8_u32,
    ) {
        let [xid, program, version, procedure] = words;
        let sys = AuthSys {
            stamp: version,
            machine_name: &name,
            uid: program,
            gid: procedure,
            gids: Gids::new(&gids).unwrap(),
        };
        let credentials = if none { Credentials::None } else { Credentials::Sys(sys) };
        let call = Call { xid, program, version, procedure, credentials };
        let mut buffer = [0; 512];
        let mut writer = Writer::new(&mut buffer);
        call.write(&mut writer).unwrap();
        let mut reader = Reader::new(writer.written());
        prop_assert_eq!(Call::read(&mut reader), Ok(call));
        prop_assert_eq!(reader.finish(), Ok(()));
        let reply = match status {
            0 => Reply::success(xid),
            1 => Reply::accepted(xid, Accepted::ProgramUnavailable),
            2 => Reply::accepted(xid, Accepted::ProgramMismatch { low: program, high: version }),
            3 => Reply::accepted(xid, Accepted::ProcedureUnavailable),
            4 => Reply::accepted(xid, Accepted::GarbageArguments),
            5 => Reply::accepted(xid, Accepted::SystemError),
            6 => Reply::denied(xid, Denied::RpcMismatch { low: program, high: version }),
            _ => Reply::denied(xid, Denied::Auth(AuthStat(procedure))),
        };
        let mut writer = Writer::new(&mut buffer);
        reply.write(&mut writer).unwrap();
        let mut reader = Reader::new(writer.written());
        prop_assert_eq!(Reply::read(&mut reader), Ok(reply));
        prop_assert_eq!(reader.finish(), Ok(()));
    }

    #[test]
    fn records_are_told_apart_wherever_the_stream_is_cut(
        records in vec(vec(any::<u8>(), 0..100), 0..8),
        piece_bytes in 1..60_usize,
    ) {
        let mut stream = Vec::new();
        for record in &records {
            stream.extend(record_mark(record.len()).unwrap());
            stream.extend(record);
        }
        let (mut reader, mut found, mut record) = (RecordReader::new(100), Vec::new(), Vec::<u8>::new());
        for mut piece in stream.chunks(piece_bytes) {
            while let Some(event) = reader.next(&mut piece).unwrap() {
                match event {
                    Event::Data(bytes) => record.extend(bytes),
                    Event::End => found.push(std::mem::take(&mut record)),
                }
            }
        }
        prop_assert_eq!(found, records);
    }

    #[test]
    fn no_bytes_panic_and_plans_are_within_their_bounds(
        words in vec(prop_oneof![0..3_u32, any::<u32>()], 0..60),
        tail in vec(any::<u8>(), 0..4),
    ) {
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        bytes.extend(tail);
        let _ = Call::read(&mut Reader::new(&bytes));
        let _ = Reply::read(&mut Reader::new(&bytes));
        let offer = Offer::parse(&bytes);
        prop_assert_eq!(offer.encode().map(|bytes| Offer::parse(&bytes)), Some(offer));
        // Version 1, so that more than the version is looked at.
        if let Some(version) = bytes.get_mut(4..8) {
            version.copy_from_slice(&[0, 0, 0, 1]);
        }
        if let Ok(Received::Message(header)) = Received::read(&bytes)
            && let Ok(plan) = CallPlan::new(&header)
        {
            let sum: u64 = plan.pulls().map(|pull| u64::from(pull.from.length_bytes)).sum();
            prop_assert!(sum <= u64::from(CALL_MAX_BYTES));
            prop_assert!(plan.items().iter().all(|item| item.length_bytes <= DATA_MAX_BYTES));
        }
    }

    #[test]
    fn a_client_within_its_credits_always_finds_a_receive(
        steps in vec((0..3_usize, 0..4_u8, 0..20_u32), 1..300),
    ) {
        const RECEIVES: u32 = 12;
        let mut pool = CreditPool::new(RECEIVES, 3, 8).unwrap();
        let mut connections: [Option<Connection>; 3] = [None, None, None];
        for (index, step, requested) in steps {
            let place = &mut connections[index];
            match (step, place.take()) {
                (_, None) => *place = Some(Connection::open(&mut pool)),
                (0, Some(connection)) => pool.close(connection.credits),
                (1, Some(mut connection)) => {
                    connection.call();
                    *place = Some(connection);
                }
                (2, Some(mut connection)) => {
                    connection.answer(&mut pool, requested);
                    *place = Some(connection);
                }
                (_, Some(mut connection)) => {
                    connection.take_reply();
                    *place = Some(connection);
                }
            }
            let held: u32 = connections.iter().flatten().map(|c| c.credits.granted()).sum();
            prop_assert_eq!(held, pool.held());
            prop_assert!(held <= RECEIVES);
        }
        for connection in connections.into_iter().flatten() {
            pool.close(connection.credits);
        }
        prop_assert_eq!(pool.held(), 0);
    }
}

/// Both ends of a connection whose replies take a while.
struct Connection {
    credits: Credits,
    posted: u32,
    /// What the client knows.
    may: u32,
    sent: u32,
    /// Grants that are under way.
    replies: std::collections::VecDeque<u32>,
}

impl Connection {
    fn open(pool: &mut CreditPool) -> Self {
        Self {
            credits: pool.open().expect("room for three"),
            posted: 1,
            may: 1,
            sent: 0,
            replies: std::collections::VecDeque::new(),
        }
    }

    fn call(&mut self) {
        if self.sent < self.may {
            self.sent += 1;
            self.posted = self.posted.checked_sub(1).expect("a receive");
            self.credits.receive().expect("a credit");
        }
    }

    fn answer(&mut self, pool: &mut CreditPool, requested: u32) {
        if self.credits.outstanding() > 0 {
            let grant = self.credits.reply(pool, requested);
            self.posted += grant.post_receives;
            assert!(grant.credits >= 1);
            assert_eq!(self.posted + self.credits.outstanding(), grant.credits);
            self.replies.push_back(grant.credits);
        }
    }

    fn take_reply(&mut self) {
        if let Some(credits) = self.replies.pop_front() {
            self.sent -= 1;
            self.may = credits;
        }
    }
}

/// One that is never met fails the end of the message.
#[test]
fn reduced_items_out_of_order_are_not_passed_over() {
    let items = [(12, 4), (4, 4)].map(|(position, length_bytes)| ReducedItem {
        position,
        length_bytes,
    });
    let bytes = [0, 0, 0, 4, 1, 2, 3, 4, 0, 0, 0, 4];
    let mut reader = Reader::with_reduced(&bytes, &items);
    assert_eq!(
        reader.data_item("first", 8),
        Ok(DataItem::Inline(&[1, 2, 3, 4]))
    );
    assert!(matches!(
        reader.data_item("second", 8),
        Ok(DataItem::Reduced { index: 0, .. })
    ));
    assert!(reader.finish().is_err());
}
