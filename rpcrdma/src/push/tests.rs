extern crate std;
use super::*;
use crate::chunks::{ReadSegment, write_lists};
use crate::header::{Fault, PLAIN_BYTES, Procedure, Received, write_fixed};
use std::vec;
use std::vec::Vec;

fn segment(handle: u32, length_bytes: u32) -> Segment {
    Segment {
        handle,
        length_bytes,
        offset: u64::from(handle) << 32,
    }
}

/// The header of a call with these lists.
fn call(writes: &[&[Segment]], reply: Option<&[Segment]>) -> Vec<u8> {
    let mut buffer = vec![0; 1 << 16];
    let mut writer = Writer::new(&mut buffer);
    write_fixed(&mut writer, 7, 32, Procedure::Msg).unwrap();
    write_lists(&mut writer, &[], writes, reply).unwrap();
    writer.written().to_vec()
}

fn header(bytes: &[u8]) -> Header<'_> {
    match Received::read(bytes) {
        Ok(Received::Message(header)) => header,
        other => panic!("{other:?}"),
    }
}

/// A reply: words and data that is reduced, and its stream.
fn reply(lengths: &[u32]) -> (Vec<u8>, Vec<ReducedItem>) {
    let mut buffer = vec![0; 1 << 16];
    let mut writer = Writer::new(&mut buffer);
    writer.u32(0x1111_1111).unwrap();
    for length_bytes in lengths {
        writer.reduced(*length_bytes).unwrap();
        writer.u32(0x2222_2222).unwrap();
    }
    (writer.written().to_vec(), writer.reduced_items().to_vec())
}

/// What a client finds after the pushes and the Send.
struct Client {
    memory: Vec<(Segment, Vec<Option<u8>>)>,
    received: Vec<u8>,
}

impl Client {
    fn new(writes: &[&[Segment]], reply: Option<&[Segment]>) -> Self {
        let all = writes.iter().copied().chain(reply).flatten();
        Self {
            memory: all
                .map(|segment| (*segment, vec![None; to_usize(segment.length_bytes)]))
                .collect(),
            received: Vec::new(),
        }
    }

    /// Carries out a plan; data of item `i` is bytes of the value `0xD0 + i`.
    fn carry_out(&mut self, plan: &ReplyPlan<'_>, stream: &[u8], inline_bytes: u32) {
        let byte = |source, at: u32| match source {
            Source::Stream => stream[to_usize(at)],
            Source::Item(index) => 0xD0 + u8::try_from(index).unwrap(),
            Source::Padding => 0,
        };
        for push in plan.pushes() {
            assert!(push.to.length_bytes > 0);
            let (segment, memory) = self
                .memory
                .iter_mut()
                .find(|(segment, _)| segment.handle == push.to.handle)
                .unwrap();
            let start = usize::try_from(push.to.offset - segment.offset).unwrap();
            for index in 0..push.to.length_bytes {
                let slot = &mut memory[start + to_usize(index)];
                assert_eq!(*slot, None, "a byte is pushed once");
                *slot = Some(byte(push.source, push.at_bytes + index));
            }
        }
        let mut buffer = vec![0; to_usize(inline_bytes)];
        let mut writer = Writer::new(&mut buffer);
        plan.write_header(&mut writer, 16).unwrap();
        self.received = writer.written().to_vec();
        for piece in plan.inline() {
            let bytes = (0..piece.length_bytes).map(|at| byte(piece.source, piece.at_bytes + at));
            self.received.extend(bytes);
        }
        assert_eq!(u64::try_from(self.received.len()), Ok(plan.send_bytes()));
        assert!(self.received.len() <= to_usize(inline_bytes));
    }

    /// What the lengths of a chunk in the reply say was pushed.
    fn chunk(&self, chunk: &WriteChunk<'_>) -> Vec<u8> {
        let mut data = Vec::new();
        for said in chunk.segments() {
            let (_, memory) = self
                .memory
                .iter()
                .find(|(segment, _)| segment.handle == said.handle)
                .unwrap();
            let pushed: Vec<u8> = memory.iter().map_while(|byte| *byte).collect();
            assert_eq!(pushed.len(), to_usize(said.length_bytes));
            data.extend(pushed);
        }
        data
    }

    /// The message, put together from what was received and pushed.
    fn message(&self, items: &[ReducedItem]) -> Vec<u8> {
        let header = header(&self.received);
        let mut message = match header.procedure {
            Procedure::Msg => header.inline.to_vec(),
            Procedure::NoMsg => self.chunk(&header.reply.unwrap()),
        };
        let mut chunks = header.writes.chunks();
        for item in items {
            let data = chunks
                .next()
                .map(|chunk| (chunk.segment_count(), self.chunk(&chunk)));
            if let Some((1.., mut data)) = data {
                data.resize(data.len().next_multiple_of(4), 0);
                let at = to_usize(item.position);
                message.splice(at..at, data);
            }
        }
        message
    }
}

/// The message as it was meant.
fn whole(stream: &[u8], items: &[ReducedItem]) -> Vec<u8> {
    let mut message = stream.to_vec();
    for (index, item) in items.iter().enumerate() {
        let at = to_usize(item.position);
        let mut data = vec![0xD0 + u8::try_from(index).unwrap(); to_usize(item.length_bytes)];
        data.resize(data.len().next_multiple_of(4), 0);
        message.splice(at..at, data);
    }
    message
}

/// Whether the reply arrives as it was meant; the procedure it came by.
fn arrives(
    lengths: &[u32],
    writes: &[&[Segment]],
    reply_chunk: Option<&[Segment]>,
    inline_bytes: u32,
) -> Result<Procedure, ReplyChunkError> {
    let bytes = call(writes, reply_chunk);
    let (stream, items) = reply(lengths);
    let stream_bytes = u32::try_from(stream.len()).unwrap();
    let plan = ReplyPlan::new(&header(&bytes), stream_bytes, &items, inline_bytes)?;
    let mut client = Client::new(writes, reply_chunk);
    client.carry_out(&plan, &stream, inline_bytes);
    assert_eq!(client.message(&items), whole(&stream, &items));
    Ok(header(&client.received).procedure)
}

#[test]
fn a_short_reply_is_inline_and_its_reply_chunk_unused() {
    assert_eq!(arrives(&[], &[], None, 1024), Ok(Procedure::Msg));
    assert_eq!(
        arrives(&[], &[], Some(&[segment(1, 4096)]), 1024),
        Ok(Procedure::Msg)
    );
}

#[test]
fn data_without_a_write_chunk_is_inline_with_its_padding() {
    for length in 0..9 {
        assert_eq!(arrives(&[length, 3], &[], None, 1024), Ok(Procedure::Msg));
    }
}

#[test]
fn data_fills_the_segments_of_its_write_chunk() {
    let eight: Vec<_> = (1..=8).map(|handle| segment(handle, 131)).collect();
    for length in [0, 1, 130, 131, 132, 1000, 1048] {
        assert_eq!(
            arrives(&[length], &[&eight], None, 1024),
            Ok(Procedure::Msg)
        );
    }
    let uneven = [segment(1, 0), segment(2, 7), segment(3, 0), segment(4, 90)];
    assert_eq!(arrives(&[97], &[&uneven], None, 1024), Ok(Procedure::Msg));
}

#[test]
fn the_first_data_takes_the_first_chunk_and_an_empty_chunk_asks_for_it_inline() {
    let (a, b, c) = ([segment(1, 64)], [segment(2, 64)], [segment(3, 64)]);
    let chunks: &[&[Segment]] = &[&a, &b, &c];
    assert_eq!(arrives(&[5, 64, 1], chunks, None, 1024), Ok(Procedure::Msg));
    // Fewer results, and more, than chunks.
    assert_eq!(arrives(&[5], chunks, None, 1024), Ok(Procedure::Msg));
    assert_eq!(
        arrives(&[5, 6, 7, 8], chunks, None, 1024),
        Ok(Procedure::Msg)
    );
    assert_eq!(
        arrives(&[5, 6, 7], &[&a, &[], &c], None, 1024),
        Ok(Procedure::Msg)
    );
}

#[test]
fn a_long_reply_goes_to_the_reply_chunk() {
    let two = [segment(1, 700), segment(2, 4000)];
    assert_eq!(
        arrives(&[3001], &[], Some(&two), 1024),
        Ok(Procedure::NoMsg)
    );
    // With data that goes to a write chunk, and data that does not.
    let write = [segment(3, 64)];
    assert_eq!(
        arrives(&[33, 2001, 5], &[&write], Some(&two), 1024),
        Ok(Procedure::NoMsg)
    );
}

#[test]
fn the_inline_threshold_is_for_header_and_message() {
    // 4 bytes, a count, the data, 4 bytes.
    let message_bytes = |length: u32| 12 + length.next_multiple_of(4);
    let header_bytes = u32::try_from(PLAIN_BYTES).unwrap();
    let fits = 1024 - header_bytes - 12;
    assert_eq!(header_bytes + message_bytes(fits), 1024);
    assert_eq!(arrives(&[fits], &[], None, 1024), Ok(Procedure::Msg));
    assert_eq!(
        arrives(&[fits + 1], &[], None, 1024),
        Err(ReplyChunkError::Message {
            xid: 7,
            message_bytes: u64::from(message_bytes(fits + 1)),
            inline_bytes: u64::from(1024 - header_bytes),
            chunk_bytes: 0
        })
    );
    let exact = [segment(1, message_bytes(fits + 1))];
    assert_eq!(
        arrives(&[fits + 1], &[], Some(&exact), 1024),
        Ok(Procedure::NoMsg)
    );
    let short = [segment(1, message_bytes(fits + 1) - 1)];
    assert!(arrives(&[fits + 1], &[], Some(&short), 1024).is_err());
}

#[test]
fn a_header_that_does_not_fit_is_refused_even_where_its_chunks_would() {
    let many: Vec<_> = (1..=32).map(|handle| segment(handle, 64)).collect();
    let lists: &[&[Segment]] = &[&many, &many];
    assert!(arrives(&[64], lists, None, 4096).is_ok());
    assert!(matches!(
        arrives(&[64], lists, Some(&many), 1024),
        Err(ReplyChunkError::Message {
            inline_bytes: 0,
            ..
        })
    ));
}

#[test]
fn data_longer_than_its_write_chunk_is_answered_with_err_chunk() {
    let error = arrives(&[65], &[&[segment(1, 64)]], None, 1024).unwrap_err();
    assert_eq!(
        error,
        ReplyChunkError::WriteChunk {
            xid: 7,
            index: 0,
            chunk_bytes: 64,
            length_bytes: 65
        }
    );
    assert_eq!(error.answer().fault, Fault::Chunk);
}

#[test]
fn a_key_is_invalidated_where_it_is_the_only_one() {
    let invalidated = |reads: &[u32], writes: &[u32], reply: Option<u32>| {
        let reads: Vec<_> = reads
            .iter()
            .map(|handle| ReadSegment {
                position: 8,
                target: segment(*handle, 4),
            })
            .collect();
        let writes: Vec<_> = writes.iter().map(|handle| segment(*handle, 64)).collect();
        let reply = reply.map(|handle| [segment(handle, 64)]);
        let mut buffer = vec![0; 1024];
        let mut writer = Writer::new(&mut buffer);
        write_fixed(&mut writer, 7, 32, Procedure::Msg).unwrap();
        let reply = reply.as_ref().map(|chunk| &chunk[..]);
        write_lists(&mut writer, &reads, &[&writes], reply).unwrap();
        ReplyPlan::new(&header(writer.written()), 4, &[], 1024)
            .unwrap()
            .invalidate()
    };
    assert_eq!(invalidated(&[], &[], None), None);
    assert_eq!(invalidated(&[9], &[], None), Some(9));
    assert_eq!(invalidated(&[9, 9], &[9], Some(9)), Some(9));
    assert_eq!(invalidated(&[], &[9, 9], None), Some(9));
    assert_eq!(invalidated(&[], &[], Some(9)), Some(9));
    for (reads, writes, reply) in [
        (&[8, 9][..], &[][..], None),
        (&[8], &[9], None),
        (&[8], &[], Some(9)),
        (&[], &[8, 8, 9], None),
    ] {
        assert_eq!(invalidated(reads, writes, reply), None);
    }
}

#[test]
fn over_tcp_all_data_is_put_back() {
    let (stream, items) = reply(&[5, 8]);
    let stream_bytes = u32::try_from(stream.len()).unwrap();
    let pieces: Vec<_> = Pieces::whole(stream_bytes, &items)
        .map(|piece| (piece.source, piece.at_bytes, piece.length_bytes))
        .collect();
    assert_eq!(
        pieces,
        [
            (Source::Stream, 0, 8),
            (Source::Item(0), 0, 5),
            (Source::Padding, 0, 3),
            (Source::Stream, 8, 8),
            (Source::Item(1), 0, 8),
            (Source::Stream, 16, 4),
        ]
    );
}
