//! RPC-over-RDMA, RPC and XDR: what a client sends to a server of files.

use capstan_rpcrdma::chunks::{ReadSegment, Segment, write_lists};
use capstan_rpcrdma::header::{
    Answer, ERROR_REPLY_MAX_BYTES, Header, Procedure, Received, write_fixed,
};
use capstan_rpcrdma::limits::{CALL_MAX_BYTES, DATA_MAX_BYTES};
use capstan_rpcrdma::private::{Agreed, Offer};
use capstan_rpcrdma::pull::{CallMessage, CallPlan, Destination};
use capstan_rpcrdma::push::{Pieces, ReplyPlan, Source};
use capstan_rpcrdma::record::{Event, RecordError, RecordReader};
use capstan_rpcrdma::rpc::{Call, CallError, Reply};
use capstan_rpcrdma::xdr::{DataItem, REDUCED_ITEMS_MAX, ReadError, Reader, ReducedItem, Writer};

use crate::input::Input;

/// A Send of a client: header, lists, and what is pulled and pushed for them.
pub fn rpcrdma_header(bytes: &[u8]) {
    match Received::read(bytes) {
        Ok(Received::Message(header)) => {
            check_lists(bytes, &header);
            check_pulls(&header);
            check_reply(&header);
        }
        Ok(Received::Error { credits, .. }) => assert!(credits > 0),
        Err(error) => {
            assert!(!error.to_string().is_empty());
            if let Answer::Error(reply) = error.answer() {
                let mut buffer = [0; ERROR_REPLY_MAX_BYTES];
                let mut writer = Writer::new(&mut buffer);
                reply.write(&mut writer, 1).expect("room for any");
                assert_eq!(writer.written()[..4], bytes[..4], "the XID of the call");
            }
        }
    }
}

/// What was read is what was there.
fn check_lists(bytes: &[u8], header: &Header<'_>) {
    assert!(header.credits > 0);
    let reads: Vec<ReadSegment> = header.reads.segments().collect();
    let writes: Vec<Vec<Segment>> = header
        .writes
        .chunks()
        .map(|chunk| chunk.segments().collect())
        .collect();
    let writes: Vec<&[Segment]> = writes.iter().map(|chunk| &chunk[..]).collect();
    let reply: Option<Vec<Segment>> = header.reply.map(|chunk| chunk.segments().collect());
    let mut buffer = vec![0; bytes.len()];
    let mut writer = Writer::new(&mut buffer);
    write_fixed(&mut writer, header.xid, header.credits, header.procedure).expect("room");
    write_lists(&mut writer, &reads, &writes, reply.as_deref()).expect("room");
    let header_bytes = bytes.len() - header.inline.len();
    assert_eq!(writer.written(), &bytes[..header_bytes]);
}

/// Every byte of every buffer is pulled once, within the bounds; the message is then read.
fn check_pulls(header: &Header<'_>) {
    let plan = match CallPlan::new(header) {
        Ok(plan) => plan,
        Err(error) => {
            assert_eq!(error.answer().xid, header.xid);
            return;
        }
    };
    let message_bytes = match plan.message() {
        CallMessage::Inline(_) => 0,
        CallMessage::Pulled { length_bytes } => length_bytes,
    };
    let mut filled = vec![0_u32; plan.items().len() + 1];
    for pull in plan.pulls() {
        let buffer = match pull.into {
            Destination::Message => 0,
            Destination::Item(index) => index + 1,
        };
        assert!(pull.from.length_bytes > 0);
        assert_eq!(pull.at_bytes, filled[buffer], "without gaps, in order");
        filled[buffer] += pull.from.length_bytes;
    }
    assert_eq!(filled[0], message_bytes);
    for (item, filled) in plan.items().iter().zip(&filled[1..]) {
        assert_eq!(item.length_bytes, *filled);
        assert!(item.length_bytes <= DATA_MAX_BYTES && item.position > 0);
    }
    assert!(plan.items().is_sorted_by(|a, b| a.position < b.position));
    assert!(filled.iter().sum::<u32>() <= CALL_MAX_BYTES);
    if let CallMessage::Inline(message) = plan.message() {
        let mut reader = Reader::with_reduced(message, plan.items());
        if Call::read(&mut reader).is_ok() {
            walk(reader, plan.items());
        }
    }
}

/// Reads words, and data where an item may begin.
fn walk(mut reader: Reader<'_>, items: &[ReducedItem]) {
    let mut met = 0;
    loop {
        let mut ahead = reader;
        match ahead.data_item("data", DATA_MAX_BYTES) {
            Ok(DataItem::Reduced {
                index,
                length_bytes,
            }) => {
                assert_eq!(index, met);
                assert!(length_bytes <= items[index].length_bytes);
                met += 1;
                reader = ahead;
            }
            _ => {
                if reader.u32("word").is_err() {
                    break;
                }
            }
        }
    }
    assert!(met <= items.len());
    if reader.finish().is_ok() {
        assert_eq!((met, reader.left_bytes()), (items.len(), 0));
    }
}

/// Pushes for a reply, shaped by what follows the header, fill only what the call has.
fn check_reply(call: &Header<'_>) {
    let mut input = Input::new(call.inline);
    let mut buffer = vec![0; 8192];
    let mut writer = Writer::new(&mut buffer);
    for _ in 0..input.byte() & 0b111 {
        let words = usize::from(input.byte());
        writer.opaque_fixed(&vec![1; words]).expect("room");
        let length_bytes = u32::from(input.word());
        writer.reduced(length_bytes).expect("room");
    }
    let stream_bytes = u32::try_from(writer.offset()).expect("8192 at most");
    let inline_bytes = (u32::from(input.byte()) + 1) * 64;
    let items = writer.reduced_items();
    let plan = match ReplyPlan::new(call, stream_bytes, items, inline_bytes) {
        Ok(plan) => plan,
        Err(error) => {
            assert_eq!(error.answer().xid, call.xid);
            return;
        }
    };
    assert!(plan.send_bytes() <= u64::from(inline_bytes));
    let mut buffer = vec![0; 8192];
    let mut header = Writer::new(&mut buffer);
    plan.write_header(&mut header, 1).expect("room");
    let Ok(Received::Message(reply)) = Received::read(header.written()) else {
        panic!("a reply is read as a message");
    };
    assert_eq!(reply.xid, call.xid);
    assert_eq!(reply.procedure == Procedure::NoMsg, reply.reply.is_some());
    // What the header says was pushed, segment by segment, is what was.
    let mut said = reply
        .writes
        .chunks()
        .flat_map(|chunk| chunk.segments())
        .chain(reply.reply.iter().flat_map(|chunk| chunk.segments()))
        .filter(|segment| segment.length_bytes > 0);
    let mut segment = None;
    let mut apart_bytes = vec![0_u64; items.len()];
    let mut pushed_bytes = 0;
    for push in plan.pushes() {
        let mut at: Segment = segment
            .take()
            .or_else(|| said.next())
            .expect("a segment that the header names");
        assert_eq!((push.to.handle, push.to.offset), (at.handle, at.offset));
        assert!(push.to.length_bytes > 0 && push.to.length_bytes <= at.length_bytes);
        at.offset += u64::from(push.to.length_bytes);
        at.length_bytes -= push.to.length_bytes;
        segment = Some(at).filter(|at| at.length_bytes > 0);
        pushed_bytes += u64::from(push.to.length_bytes);
        if let Source::Item(index) = push.source {
            apart_bytes[index] += u64::from(push.to.length_bytes);
        }
    }
    assert!(segment.is_none() && said.next().is_none());
    let inline: u64 = plan
        .inline()
        .map(|piece| {
            if let Source::Item(index) = piece.source {
                apart_bytes[index] += u64::from(piece.length_bytes);
            }
            u64::from(piece.length_bytes)
        })
        .sum();
    for (item, bytes) in items.iter().zip(apart_bytes) {
        assert_eq!(u64::from(item.length_bytes), bytes, "data goes one way");
    }
    let whole = Pieces::whole(stream_bytes, items).length_bytes();
    let total = pushed_bytes + inline;
    assert!(total <= whole && whole - total <= 3 * REDUCED_ITEMS_MAX as u64);
}

/// RPC headers, the private data of a connection, and any run of XDR reads.
pub fn rpcrdma_rpc(bytes: &[u8]) {
    let mut reader = Reader::new(bytes);
    match Call::read(&mut reader) {
        Ok(call) => {
            let mut buffer = [0; 1024];
            let mut writer = Writer::new(&mut buffer);
            call.write(&mut writer).expect("room");
            assert!(writer.offset() <= reader.offset());
            assert_eq!(Call::read(&mut Reader::new(writer.written())), Ok(call));
        }
        Err(CallError::Denied { xid, denied }) => {
            let reply = Reply::denied(xid, denied);
            let mut buffer = [0; 64];
            let mut writer = Writer::new(&mut buffer);
            reply.write(&mut writer).expect("room");
            assert_eq!(Reply::read(&mut Reader::new(writer.written())), Ok(reply));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    if let Ok(reply) = Reply::read(&mut Reader::new(bytes)) {
        let mut buffer = [0; 64];
        let mut writer = Writer::new(&mut buffer);
        reply.write(&mut writer).expect("room");
        assert_eq!(Reply::read(&mut Reader::new(writer.written())), Ok(reply));
    }
    let offer = Offer::parse(bytes);
    let encoded = offer.encode().expect("whole kilobytes");
    assert_eq!(Offer::parse(&encoded), offer);
    let agreed = Agreed::new(&offer, &Offer::DEFAULT);
    assert_eq!(agreed.send_inline_bytes, 1024);
    xdr_reads(bytes);
}

/// Reads as the input says, from a stream and reduced items that it has as well.
fn xdr_reads(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let operations_len = usize::from(input.byte());
    let operations = input.piece(operations_len);
    let mut items = Vec::new();
    for _ in 0..input.byte() & 0b11 {
        items.push(ReducedItem {
            position: u32::from(input.byte()) * 4,
            length_bytes: u32::from(input.byte()),
        });
    }
    let stream = input.piece(usize::MAX);
    let mut reader = Reader::with_reduced(stream, &items);
    for operation in operations {
        let before = reader;
        let outcome = read_one(&mut reader, *operation);
        if let Err(error) = outcome {
            assert!(!error.to_string().is_empty());
            assert!(reader.offset() - before.offset() <= 4, "a count at most");
            break;
        }
        assert!(reader.offset() <= stream.len());
        assert!(reader.position() >= before.position());
    }
    assert_eq!(reader.left(), &stream[reader.offset()..]);
}

fn read_one(reader: &mut Reader<'_>, operation: u8) -> Result<(), ReadError> {
    let bound = u32::from(operation >> 3) * 8;
    match operation & 0b111 {
        0 => reader.u32("a").map(|_value| ()),
        1 => reader.u64("b").map(|_value| ()),
        2 => reader.bool("c").map(|_value| ()),
        3 => {
            let data = reader.opaque("d", bound)?;
            assert!(data.len() <= usize::try_from(bound).expect("248"));
            Ok(())
        }
        4 => {
            let data = reader.data_item("e", bound)?;
            assert!(data.length_bytes() <= usize::try_from(bound).expect("248"));
            Ok(())
        }
        5 => {
            let count = reader.count("f", bound, 4)?;
            assert!(usize::try_from(count).expect("248") * 4 <= reader.left_bytes());
            Ok(())
        }
        6 => {
            let length_bytes = usize::from(operation >> 3);
            let data = reader.opaque_fixed("g", length_bytes)?;
            assert_eq!(data.len(), length_bytes);
            Ok(())
        }
        _ => reader.array::<5>("h").map(|_value| ()),
    }
}

/// A stream of records: the same records wherever it is cut, within their bound.
pub fn rpcrdma_records(bytes: &[u8]) {
    let Some((piece_bytes, stream)) = bytes.split_first() else {
        return;
    };
    let whole = records(stream, stream.len().max(1));
    let cut = records(stream, usize::from(*piece_bytes).max(1));
    assert_eq!(whole, cut);
}

/// The records, the one that is not whole, and how it ended.
fn records(stream: &[u8], piece_bytes: usize) -> (Vec<Vec<u8>>, Vec<u8>, Option<RecordError>) {
    const MAX_BYTES: u32 = 2048;
    let (mut reader, mut whole, mut record) =
        (RecordReader::new(MAX_BYTES), Vec::new(), Vec::new());
    let mut said_bytes = 0;
    for mut piece in stream.chunks(piece_bytes) {
        loop {
            match reader.next(&mut piece) {
                Ok(Some(Event::Data(data))) => {
                    assert!(!data.is_empty());
                    record.extend(data);
                    said_bytes = usize::try_from(reader.record_bytes()).expect("2048");
                    assert!(record.len() <= said_bytes);
                }
                Ok(Some(Event::End)) => {
                    assert_eq!(
                        record.len(),
                        std::mem::take(&mut said_bytes),
                        "as its headers said"
                    );
                    whole.push(std::mem::take(&mut record));
                }
                Ok(None) => break,
                Err(error) => return (whole, record, Some(error)),
            }
        }
        assert!(piece.is_empty());
    }
    (whole, record, None)
}
