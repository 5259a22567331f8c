//! The transmission phase against a volume in memory, and a whole connection over a socket pair.

mod extents;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use proptest::prelude::*;
use zerocopy::{FromBytes, IntoBytes};

use super::connection::Connection;
use super::handshake::{Export, Negotiated};
use super::request::{CHUNK_BYTES, HEADER_BYTES};
use super::transmission::Transmission;
use super::wire::{
    BASE_ALLOCATION_ID, CHUNK_DONE, ChunkType, CommandType, Extent, NbdError, REQUEST_MAGIC,
    RequestHeader, SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC, SimpleReply, StructuredReply,
    TransmissionFlags,
};
use crate::front_ends::block::Geometry;
use crate::front_ends::fake::FakeQueue;
use crate::front_ends::lease::Part;

const LBA: u32 = 512;
const SIZE_BYTES: u64 = 8 << 20;
const MEMORY_BYTES: usize = 4 << 20;
const GEOMETRY: Geometry = Geometry {
    nsid: 1,
    size_bytes: SIZE_BYTES,
    lba_bytes: LBA,
    read_only: false,
    write_zeroes: true,
    discard: true,
    holes: false,
};

fn queue() -> FakeQueue {
    filled(GEOMETRY)
}

/// A volume whose every LBA is full of its number.
fn filled(geometry: Geometry) -> FakeQueue {
    let mut queue = FakeQueue::new(geometry, MEMORY_BYTES);
    for (lba, bytes) in queue.data.chunks_mut(512).enumerate() {
        bytes.fill(u8::try_from(lba % 251).unwrap());
    }
    queue
}

fn request(command: CommandType, flags: u16, cookie: u64, offset: u64, len: u32) -> Vec<u8> {
    let header = RequestHeader {
        magic: REQUEST_MAGIC.into(),
        flags: flags.into(),
        command: command.0.into(),
        cookie: cookie.into(),
        offset_bytes: offset.into(),
        len_bytes: len.into(),
    };
    header.as_bytes().to_vec()
}

fn write(cookie: u64, offset: u64, data: &[u8]) -> Vec<u8> {
    let len = u32::try_from(data.len()).unwrap();
    let mut bytes = request(CommandType::WRITE, 0, cookie, offset, len);
    bytes.extend_from_slice(data);
    bytes
}

/// A reply: cookie, error, and data with its offset.
#[derive(Debug, Default, PartialEq, Eq)]
struct Got {
    cookie: u64,
    error: u32,
    data: Vec<(u64, Vec<u8>)>,
    extents: Vec<(u32, u32)>,
}

/// Bytes and state of each.
fn extents(bytes: &[u8]) -> Vec<(u32, u32)> {
    let extents = <[Extent]>::ref_from_bytes(bytes).unwrap();
    let pairs = extents.iter().map(|e| (e.len_bytes.get(), e.state.get()));
    pairs.collect()
}

/// A client that has sent `input` to a transmission and takes everything it answers.
struct Run {
    transmission: Transmission,
    queue: FakeQueue,
    input: Vec<u8>,
    output: Vec<u8>,
}

impl Run {
    fn new(structured: bool, input: Vec<u8>) -> Self {
        Self::on(queue(), structured, input)
    }

    fn on(queue: FakeQueue, structured: bool, input: Vec<u8>) -> Self {
        Self {
            transmission: Transmission::new(
                queue.geometry,
                Negotiated {
                    structured,
                    allocation: structured,
                },
            ),
            queue,
            input,
            output: Vec::new(),
        }
    }

    fn feed(&mut self) {
        let taken = self.transmission.input(&self.input, &mut self.queue);
        self.input.drain(..taken);
    }

    fn send(&mut self, most: usize) {
        let mut parts = [Part::EMPTY; 5];
        let filled = self.transmission.output(&mut parts);
        let bytes: Vec<u8> = parts[..filled]
            .iter()
            .flat_map(|part| part.copied())
            .collect();
        let count = bytes.len().min(most);
        self.output.extend_from_slice(&bytes[..count]);
        self.transmission.sent(count);
    }

    /// Runs until nothing is left to do; `pick` chooses which I/O completes next.
    fn finish(&mut self, mut pick: impl FnMut(usize) -> usize) {
        loop {
            self.feed();
            self.send(usize::MAX);
            if let Some((token, ..)) = self.queue.asked.pop() {
                let allocated = self.queue.allocated.as_ref();
                self.transmission.looked_up(token, allocated);
                continue;
            }
            if self.queue.pending.is_empty() {
                let before = self.input.len();
                self.feed();
                if self.queue.pending.is_empty()
                    && self.input.len() == before
                    && self.transmission.output(&mut [Part::EMPTY]) == 0
                {
                    return;
                }
                continue;
            }
            let index = pick(self.queue.pending.len());
            let done = self.queue.complete(index);
            self.transmission
                .completed(done.token, done.result, done.buffer);
        }
    }

    /// What was answered, in the order of the last part of each reply. `lens` tells how long the
    /// data of simple replies to reads is, by cookie.
    fn replies(&self, len_of: impl Fn(u64) -> usize) -> Vec<Got> {
        let mut replies: Vec<Got> = Vec::new();
        let mut parts: Vec<Got> = Vec::new();
        let mut bytes = &self.output[..];
        while !bytes.is_empty() {
            if let Ok((reply, rest)) = SimpleReply::read_from_prefix(bytes)
                && reply.magic.get() == SIMPLE_REPLY_MAGIC
            {
                let (cookie, error) = (reply.cookie.get(), reply.error.get());
                let len = if error == 0 { len_of(cookie) } else { 0 };
                let (data, rest) = rest.split_at(len);
                bytes = rest;
                let data = if len > 0 {
                    vec![(0, data.to_vec())]
                } else {
                    Vec::new()
                };
                replies.push(Got {
                    cookie,
                    error,
                    data,
                    extents: Vec::new(),
                });
                continue;
            }
            let (chunk, rest) = StructuredReply::read_from_prefix(bytes).unwrap();
            assert_eq!(chunk.magic.get(), STRUCTURED_REPLY_MAGIC);
            let (body, rest) = rest.split_at(chunk.len_bytes.get() as usize);
            bytes = rest;
            let cookie = chunk.cookie.get();
            let at = parts.iter().position(|part| part.cookie == cookie);
            let mut part = at.map(|at| parts.swap_remove(at)).unwrap_or_default();
            part.cookie = cookie;
            match ChunkType(chunk.chunk_type.get()) {
                ChunkType::OFFSET_DATA => {
                    let offset = u64::from_be_bytes(body[..8].try_into().unwrap());
                    part.data.push((offset, body[8..].to_vec()));
                }
                ChunkType::BLOCK_STATUS => {
                    assert_eq!(body[..4], BASE_ALLOCATION_ID.to_be_bytes());
                    part.extents = extents(&body[4..]);
                }
                ChunkType::ERROR => part.error = u32::from_be_bytes(body[..4].try_into().unwrap()),
                other => panic!("chunk type {other:?}"),
            }
            if chunk.flags.get() & CHUNK_DONE != 0 {
                part.data.sort();
                replies.push(part);
            } else {
                parts.push(part);
            }
        }
        assert!(parts.is_empty(), "unfinished: {parts:?}");
        replies
    }

    fn assert_nothing_is_held(&self) {
        assert!(self.transmission.is_idle());
        assert_eq!(self.queue.free_bytes(), MEMORY_BYTES, "a lease leaked");
    }
}

#[test]
fn replies_come_in_the_order_of_completion() {
    for structured in [false, true] {
        let input = [
            request(CommandType::READ, 0, 1, 0, 4096),
            write(2, 8192, &[9; 1024]),
            request(CommandType::READ, 0, 3, 512, 512),
        ]
        .concat();
        let mut run = Run::new(structured, input);
        run.finish(|pending| pending - 1);
        let replies = run.replies(|cookie| match cookie {
            1 => 4096,
            3 => 512,
            _ => 0,
        });
        let cookies: Vec<_> = replies.iter().map(|r| r.cookie).collect();
        assert_eq!(cookies, [3, 2, 1]);
        assert_eq!(replies[0].data[0].1, [1; 512]);
        assert_eq!(replies[2].data[0].1, run.queue.data[..4096]);
        assert_eq!(run.queue.data[8192..8192 + 1024], [9; 1024]);
        run.assert_nothing_is_held();
    }
}

#[test]
fn large_requests_are_cut_and_put_together() {
    let len = 3 * CHUNK_BYTES + 1024;
    let data: Vec<u8> = (0..len).map(|at| u8::try_from(at % 239).unwrap()).collect();
    for structured in [false, true] {
        let mut run = Run::new(structured, write(1, 4096, &data));
        run.finish(|pending| pending - 1);
        let replies = run.replies(|_| 0);
        assert_eq!((replies.len(), replies[0].error), (1, 0));
        assert!(run.queue.data[4096..4096 + len as usize] == data);
        run.input = request(CommandType::READ, 0, 2, 4096, len);
        run.output.clear();
        // The worst order for a reply that has no offsets.
        run.finish(|pending| pending - 1);
        let replies = run.replies(|_| len as usize);
        let read: Vec<u8> = replies[0]
            .data
            .iter()
            .flat_map(|(_, d)| d.clone())
            .collect();
        assert!(read == data);
        run.assert_nothing_is_held();
    }
}

#[test]
fn flush_and_fua_are_durable_when_answered() {
    let input = [
        request(CommandType::WRITE, 1, 1, 0, 512),
        vec![7; 512],
        write(2, 512, &[8; 512]),
    ]
    .concat();
    let mut run = Run::new(true, input);
    run.finish(|_| 0);
    assert_eq!(run.queue.durable[..1024], [[7; 512], [0; 512]].concat());
    run.input = request(CommandType::FLUSH, 0, 3, 0, 0);
    run.finish(|_| 0);
    assert_eq!(run.queue.durable[..1024], [[7; 512], [8; 512]].concat());
    // A TRIM with FUA ends with a flush.
    run.input = request(CommandType::TRIM, 1, 4, 0, 1024);
    run.finish(|_| 0);
    assert_eq!(run.queue.durable[..1024], [0; 1024]);
    let errors: Vec<_> = run
        .replies(|_| 0)
        .iter()
        .map(|r| (r.cookie, r.error))
        .collect();
    assert_eq!(errors, [(1, 0), (2, 0), (3, 0), (4, 0)]);
    run.assert_nothing_is_held();
}

#[test]
fn a_failed_read_says_so_and_a_begun_one_breaks_off() {
    let bad_lba = u64::from(CHUNK_BYTES / LBA) + 5;
    for structured in [false, true] {
        let mut run = Run::new(
            structured,
            request(CommandType::READ, 0, 1, 0, 2 * CHUNK_BYTES),
        );
        run.queue.bad_lba = Some(bad_lba);
        run.finish(|_| 0);
        if structured {
            let replies = run.replies(|_| 0);
            assert_eq!(
                (replies[0].error, replies[0].data.len()),
                (NbdError::Eio.code(), 1)
            );
            assert_eq!(run.transmission.end(), None);
        } else {
            assert!(run.transmission.end().is_some());
        }
        run.assert_nothing_is_held();
        // The bad chunk first: nothing has been sent, so both can say so.
        let mut run = Run::new(
            structured,
            request(CommandType::READ, 0, 1, 0, 2 * CHUNK_BYTES),
        );
        run.queue.bad_lba = Some(bad_lba);
        run.finish(|pending| pending - 1);
        assert_eq!(run.replies(|_| 0)[0].error, NbdError::Eio.code());
        run.assert_nothing_is_held();
    }
}

#[test]
fn refused_writes_are_skipped_over() {
    let input = [
        write(1, 3, &[1; 1000]),
        write(2, SIZE_BYTES, &[2; 512]),
        request(CommandType(77), 0, 3, 0, 0),
        write(4, 0, &[4; 512]),
        request(CommandType::DISC, 0, 5, 0, 0),
        write(6, 0, &[6; 512]),
    ]
    .concat();
    let mut run = Run::new(false, input);
    run.finish(|_| 0);
    let errors: Vec<_> = run
        .replies(|_| 0)
        .iter()
        .map(|r| (r.cookie, r.error))
        .collect();
    assert_eq!(errors, [(1, 22), (2, 28), (3, 22), (4, 0)]);
    assert_eq!(run.transmission.end(), Some("the client disconnected"));
    assert_eq!(run.queue.data[..512], [4; 512]);
    run.assert_nothing_is_held();
}

/// libnbd drops the connection at an answer to what it has not sent yet.
#[test]
fn a_refused_write_is_answered_when_its_data_has_come() {
    let data = vec![1; 3 << 20];
    let input = [
        write(1, SIZE_BYTES - u64::from(LBA), &data),
        write(2, 0, &[2; 512]),
    ]
    .concat();
    let mut run = Run::new(false, input);
    let after = run.input.split_off(HEADER_BYTES + data.len() - 1);
    run.finish(|_| 0);
    assert_eq!((run.input.len(), run.output.len()), (0, 0));
    run.input = after;
    run.finish(|_| 0);
    let errors: Vec<_> = run
        .replies(|_| 0)
        .iter()
        .map(|r| (r.cookie, r.error))
        .collect();
    assert_eq!(errors, [(1, 28), (2, 0)]);
    run.assert_nothing_is_held();
}

#[test]
fn a_large_write_that_leaves_the_volume_changes_nothing() {
    let len = 3 * CHUNK_BYTES;
    let offset = SIZE_BYTES - u64::from(2 * CHUNK_BYTES);
    let input = [
        write(1, offset, &vec![9; len as usize]),
        request(CommandType::WRITE_ZEROES, 0, 2, offset, len),
        request(CommandType::TRIM, 0, 3, offset, len),
    ]
    .concat();
    let mut run = Run::new(true, input);
    run.finish(|_| 0);
    let errors: Vec<_> = run.replies(|_| 0).iter().map(|r| r.error).collect();
    assert_eq!(errors, [NbdError::Enospc.code(); 3]);
    assert!(run.queue.data == queue().data);
    run.assert_nothing_is_held();
}

#[test]
fn once_the_association_is_over_everything_is_answered_with_an_error() {
    let input = [
        request(CommandType::READ, 0, 1, 0, 2 * CHUNK_BYTES),
        write(2, 0, &vec![0; 2 << 20]),
        request(CommandType::FLUSH, 0, 3, 0, 0),
    ]
    .concat();
    let mut run = Run::new(true, input);
    run.queue.gone = true;
    run.finish(|_| 0);
    let errors: Vec<_> = run
        .replies(|_| 0)
        .iter()
        .map(|r| (r.cookie, r.error))
        .collect();
    assert_eq!(errors, [(1, 108), (2, 108), (3, 108)]);
    run.assert_nothing_is_held();
}

#[test]
fn a_client_that_leaves_in_the_middle_leaves_nothing_behind() {
    let mut run = Run::new(false, write(1, 0, &vec![5; 3 << 20]));
    run.input.truncate(HEADER_BYTES + (2 << 20) + 100);
    run.feed();
    assert_eq!(run.queue.pending.len(), 2);
    run.transmission.break_off("gone");
    assert!(!run.transmission.is_idle());
    run.finish(|_| 0);
    assert!(run.output.is_empty());
    run.assert_nothing_is_held();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Against a plain model: any mix of requests, cut anywhere, completed in any order.
    #[test]
    fn a_volume_is_a_volume(
        structured in any::<bool>(),
        ops in prop::collection::vec((0_u8..5, 0_u64..600, 1_u32..300, any::<u8>()), 1..24),
        cut in 1_usize..5000,
        sends in 1_usize..5000,
        capacity in 1_usize..6,
        picks in prop::collection::vec(any::<prop::sample::Index>(), 64),
    ) {
        let small = Geometry { size_bytes: 512 << 10, ..GEOMETRY };
        let mut run = Run::on(filled(small), structured, Vec::new());
        let mut model = run.queue.data.clone();
        run.queue.capacity = capacity;
        let mut picks = picks.into_iter().cycle();
        // One request at a time, so that the model knows what each read returns.
        for (cookie, (kind, lba, nlb, byte)) in (0_u64..).zip(&ops) {
            let (offset, len) = (lba * 512, nlb * LBA);
            let at = usize::try_from(offset).unwrap();
            let range = at..at + len as usize;
            let bytes = match kind {
                0 | 1 => request(CommandType::READ, 0, cookie, offset, len),
                2 | 3 => {
                    model[range.clone()].fill(*byte);
                    write(cookie, offset, &vec![*byte; len as usize])
                }
                _ => {
                    model[range.clone()].fill(0);
                    request(CommandType::WRITE_ZEROES, 0, cookie, offset, len)
                }
            };
            let mut sent = 0;
            run.output.clear();
            for part in bytes.chunks(cut) {
                sent += part.len();
                run.input.extend_from_slice(part);
                run.feed();
                run.send(sends);
            }
            prop_assert_eq!(sent, bytes.len());
            run.finish(|pending| picks.next().unwrap().index(pending));
            let replies = run.replies(|_| if *kind < 2 { len as usize } else { 0 });
            prop_assert_eq!(replies.len(), 1);
            prop_assert_eq!((replies[0].cookie, replies[0].error), (cookie, 0));
            if *kind < 2 {
                prop_assert!(replies[0].data[0].1 == model[range]);
            }
            run.assert_nothing_is_held();
        }
        prop_assert!(run.queue.data == model);
    }

    /// Arbitrary bytes end in replies or in a close, and nothing is left.
    #[test]
    fn arbitrary_bytes_do_no_harm(
        structured in any::<bool>(),
        parts in prop::collection::vec(
            prop_oneof![
                prop::collection::vec(any::<u8>(), 0..64),
                (0_u16..9, 0_u16..16, any::<u64>(), 0_u64..SIZE_BYTES, 0_u32..100_000)
                    .prop_map(|(command, flags, cookie, offset, len)| {
                        request(CommandType(command), flags, cookie, offset & !511, len & !511)
                    }),
            ],
            0..40,
        ),
    ) {
        let small = Geometry { size_bytes: 1 << 20, ..GEOMETRY };
        let mut run = Run::on(filled(small), structured, parts.concat());
        run.finish(|pending| pending / 2);
        run.transmission.break_off("end of the test");
        run.assert_nothing_is_held();
    }
}

/// A whole connection: handshake and requests through a socket pair.
#[test]
fn a_connection_from_greeting_to_goodbye() {
    let (client, ours) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    let export = Export {
        name: "vol".to_owned(),
        description: String::new(),
        size_bytes: SIZE_BYTES,
        flags: TransmissionFlags::SEND_FLUSH,
        minimum_bytes: LBA,
        preferred_bytes: 4096,
        maximum_bytes: 32 << 20,
    };
    let reader = std::thread::spawn(move || {
        let mut client = client;
        let mut greeting = [0; 18];
        client.read_exact(&mut greeting).unwrap();
        // Flags, then EXPORT_NAME and at once a request behind it.
        let mut hello = vec![0, 0, 0, 3];
        hello.extend_from_slice(b"IHAVEOPT\x00\x00\x00\x01\x00\x00\x00\x03vol");
        hello.extend(write(1, 0, &[3; 2 << 20]));
        hello.extend(request(CommandType::READ, 0, 2, 0, 2 << 20));
        hello.extend(request(CommandType::DISC, 0, 3, 0, 0));
        client.write_all(&hello).unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).unwrap();
        answer
    });
    let mut queue = queue();
    let mut connection = Connection::new(ours);
    while connection.is_over().is_none() {
        connection.set_readable();
        connection.set_writable();
        connection.turn(&export, &GEOMETRY, &mut queue);
        if !queue.pending.is_empty() {
            let done = queue.complete(0);
            connection.completed(done.token, done.result, done.buffer);
        }
    }
    assert_eq!(connection.is_over(), Some("the client disconnected"));
    drop(connection);
    let answer = reader.join().unwrap();
    assert_eq!(answer.len(), 10 + 16 + 16 + (2 << 20));
    assert!(answer[10 + 32..] == [3; 2 << 20][..]);
    assert_eq!(queue.free_bytes(), MEMORY_BYTES);
}
