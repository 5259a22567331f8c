//! What the provider answers to a hand-made peer that breaks the rules, byte by byte.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use capstan_rdma::contract::{Access, CmEventKind, CmId, QpState, QueuePair, WcStatus};
use capstan_rdma::iwarp::wire::crc::crc32c;
use capstan_rdma::iwarp::wire::ddp::{
    Control, Opcode, ReadRequest, Segment, TaggedHeader, UNTAGGED_BYTES, UntaggedHeader, pad_bytes,
};
use capstan_rdma::iwarp::wire::mpa::{Enhanced, FRAME_BYTES, Frame, FrameKind, Rtr};
use capstan_rdma::iwarp::wire::terminate::{ErrorCode, Terminate};
use capstan_rdma::iwarp::{Config, CrcUse};
use zerocopy::IntoBytes;

use crate::side::{PATIENCE, Side, any, disconnected, param, send};

/// A provider that listens, and a socket that pretends to be a peer.
struct Bench {
    side: Side,
    qp: Box<dyn QueuePair>,
    id: CmId,
    peer: TcpStream,
    crc: bool,
}

pub(crate) fn request(crc: bool, peer_to_peer: Option<Rtr>) -> Frame {
    Frame {
        kind: FrameKind::Request,
        markers: false,
        crc,
        reject: false,
        large_fpdus: false,
        same_host: false,
        revision: 2,
        enhanced: Some(Enhanced {
            ird: 2,
            ord: 2,
            peer_to_peer,
        }),
    }
}

impl Bench {
    fn new(crc: bool, peer_to_peer: Option<Rtr>) -> Self {
        let config = Config {
            crc: CrcUse::Never,
            receiver_not_ready_timeout_ms: 50,
            setup_timeout_ms: 300,
            ..Config::default()
        };
        let mut side = Side::new(config);
        let (_, at) = side.cm.listen(any(), 4).unwrap();
        let mut peer = TcpStream::connect(at).unwrap();
        peer.set_nonblocking(true).unwrap();
        peer.write_all(&request(crc, peer_to_peer).encode(b"raw").unwrap())
            .unwrap();
        side.turn_until("a request", |side| !side.events.is_empty());
        let id = side.events.remove(0).id;
        let mut qp = side.create_qp(id);
        for wr_id in 0..4 {
            let room = side.sge(1000 * usize::try_from(wr_id).unwrap(), 1000);
            qp.post_recv(wr_id, &[room]).unwrap();
        }
        side.cm.accept(id, &param(&[], 2, 2)).unwrap();
        let mut bench = Self {
            side,
            qp,
            id,
            peer,
            crc,
        };
        let reply = bench.receive(FRAME_BYTES + 4);
        assert_eq!(&reply[..16], b"MPA ID Rep Frame");
        bench
    }

    /// Turns the provider until `count` bytes have come to the peer.
    fn receive(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        let start = Instant::now();
        while bytes.len() < count {
            self.side.turn();
            let mut more = vec![0; count - bytes.len()];
            match self.peer.read(&mut more) {
                Ok(0) => break,
                Ok(count) => bytes.extend_from_slice(&more[..count]),
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
            assert!(start.elapsed() < PATIENCE, "{bytes:02x?} came");
        }
        bytes
    }

    fn send(&mut self, fpdu: &[u8]) {
        self.peer.write_all(fpdu).unwrap();
    }

    fn fpdu(&self, header: &[u8], payload: &[u8]) -> Vec<u8> {
        let mut bytes = [header, payload].concat();
        let length = u16::try_from(bytes.len() - 2).unwrap();
        bytes[..2].copy_from_slice(&length.to_be_bytes());
        bytes.resize(bytes.len() + pad_bytes(bytes.len()), 0);
        let crc = if self.crc { crc32c(&bytes) } else { 0 };
        bytes.extend(crc.to_le_bytes());
        bytes
    }

    /// The Terminate that ends the stream, which is closed behind it.
    fn terminated(&mut self) -> Terminate {
        let all = self.receive(usize::MAX >> 40);
        let segment = Segment::read(&all).unwrap_or_else(|| panic!("{all:02x?}"));
        assert_eq!(segment.control().opcode(), Opcode::TERMINATE);
        let end = 2 + usize::from(segment.ulpdu_length());
        assert_eq!(end + 4, all.len(), "nothing behind the Terminate");
        if self.crc {
            assert_eq!(crc32c(&all[..end]).to_le_bytes(), all[end..]);
        }
        // The high half of the first byte is the layer (RFC 5040 §4.8).
        assert_eq!(
            all[UNTAGGED_BYTES] >> 4,
            Terminate::parse(&all[UNTAGGED_BYTES..end])
                .unwrap()
                .error
                .layer
        );
        Terminate::parse(&all[UNTAGGED_BYTES..end]).unwrap()
    }

    fn ends_with(&mut self, error: ErrorCode) {
        assert_eq!(self.terminated().error, error);
        self.side
            .turn_until("a disconnect", |side| disconnected(side).is_some());
        let cause = disconnected(&self.side).unwrap();
        assert!(cause.contains(&error.to_string()), "{cause}");
        assert_eq!(self.qp.state(), QpState::Error);
        let flushed = |c: &&_| {
            matches!(
                c,
                capstan_rdma::contract::WorkCompletion {
                    status: WcStatus::WrFlushError,
                    ..
                }
            )
        };
        assert!(self.side.completions.iter().filter(flushed).count() >= 3);
    }
}

fn untagged(opcode: Opcode, qn: u32, msn: u32, mo: u32) -> UntaggedHeader {
    UntaggedHeader {
        ulpdu_length: 0.into(),
        control: Control::new(false, true, opcode),
        invalidate_stag: 0.into(),
        qn: qn.into(),
        msn: msn.into(),
        mo: mo.into(),
    }
}

fn tagged(opcode: Opcode, stag: u32, to: u64) -> TaggedHeader {
    TaggedHeader {
        ulpdu_length: 0.into(),
        control: Control::new(true, true, opcode),
        stag: stag.into(),
        to: to.into(),
    }
}

fn read_request(msn: u32, length: u32, stag: u32, to: u64) -> Vec<u8> {
    let request = ReadRequest {
        sink_stag: 7.into(),
        sink_to: 0.into(),
        length_bytes: length.into(),
        source_stag: stag.into(),
        source_to: to.into(),
    };
    let header = untagged(Opcode::READ_REQUEST, 1, msn, 0);
    [header.as_bytes(), request.as_bytes()].concat()
}

#[test]
fn untagged_segments_out_of_order_are_named() {
    let send = Opcode::SEND;
    let cases = [
        (untagged(send, 3, 1, 0), ErrorCode::DDP_INVALID_QN),
        (untagged(send, 0, 2, 0), ErrorCode::DDP_MSN_RANGE),
        (untagged(send, 0, 0, 0), ErrorCode::DDP_MSN_RANGE),
        (untagged(send, 0, 1, 4), ErrorCode::DDP_INVALID_MO),
    ];
    for crc in [false, true] {
        for (header, error) in cases {
            let mut bench = Bench::new(crc, None);
            let fpdu = bench.fpdu(header.as_bytes(), b"data");
            bench.send(&fpdu);
            bench.ends_with(error);
        }
    }
}

#[test]
fn a_send_that_is_too_long_is_refused_whole_or_in_pieces() {
    for (first, second) in [(1001, 0), (600, 401)] {
        let mut bench = Bench::new(true, None);
        let mut header = untagged(Opcode::SEND, 0, 1, 0);
        if second > 0 {
            header.control = Control::new(false, false, Opcode::SEND);
        }
        let mut bytes = bench.fpdu(header.as_bytes(), &vec![1; first]);
        if second > 0 {
            let header = untagged(Opcode::SEND, 0, 1, u32::try_from(first).unwrap());
            bytes.extend(bench.fpdu(header.as_bytes(), &vec![1; second]));
        }
        bench.send(&bytes);
        bench.ends_with(ErrorCode::DDP_TOO_LONG);
        let first = bench.side.completions[0];
        assert_eq!((first.wr_id, first.status), (0, WcStatus::LocalLengthError));
    }
}

#[test]
fn versions_opcodes_lengths_and_crcs() {
    let break_byte = |bytes: &mut Vec<u8>, at: usize, value: u8| {
        bytes[at] = value;
        let end = bytes.len() - 4;
        let crc = crc32c(&bytes[..end]).to_le_bytes();
        bytes[end..].copy_from_slice(&crc);
    };
    let cases: [(usize, u8, ErrorCode); 5] = [
        (2, 0x40, ErrorCode::DDP_UNTAGGED_VERSION),
        (2, 0xc2, ErrorCode::DDP_TAGGED_VERSION),
        (3, 0x83, ErrorCode::RDMAP_VERSION),
        (3, 0x48, ErrorCode::RDMAP_OPCODE),
        // A Write whose segment is untagged.
        (3, 0x40, ErrorCode::RDMAP_OPCODE),
    ];
    for (at, value, error) in cases {
        let mut bench = Bench::new(true, None);
        let mut bytes = bench.fpdu(untagged(Opcode::SEND, 0, 1, 0).as_bytes(), b"data");
        break_byte(&mut bytes, at, value);
        bench.send(&bytes);
        bench.ends_with(error);
    }
    let mut bench = Bench::new(true, None);
    let mut bytes = bench.fpdu(untagged(Opcode::SEND, 0, 1, 0).as_bytes(), b"data");
    *bytes.last_mut().unwrap() ^= 1;
    bench.send(&bytes);
    bench.ends_with(ErrorCode::MPA_CRC);
    // Shorter than any header.
    let mut bench = Bench::new(true, None);
    let bytes = bench.fpdu(&[0, 0, 0x41, 0x43], &[]);
    bench.send(&bytes);
    bench.ends_with(ErrorCode::MPA_FPDU);
}

#[test]
fn a_crc_that_is_wrong_at_the_end_of_a_long_segment() {
    let mut bench = Bench::new(true, None);
    let at = bench.side.mr.addr() + (1 << 20);
    let header = tagged(Opcode::RDMA_WRITE, bench.side.mr.rkey().0, at);
    let mut bytes = bench.fpdu(header.as_bytes(), &vec![9; 60_000]);
    let end = bytes.len() - 1;
    bytes[end] ^= 0x80;
    // In pieces, so that it takes the path of segments that do not come whole.
    for piece in bytes.chunks(10_000) {
        bench.send(piece);
        bench.side.turn();
    }
    bench.ends_with(ErrorCode::MPA_CRC);
}

#[test]
fn writes_and_reads_outside_what_the_key_allows() {
    let bench = |access| {
        let bench = Bench::new(true, None);
        let region = bench.side.pd.register(&bench.side.slab, 8192, 100, access);
        (bench, region.unwrap())
    };
    let write = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let cases = [
        (write, 1, 0, 1, ErrorCode::DDP_INVALID_STAG),
        (write, 0, 0, 101, ErrorCode::DDP_BOUNDS),
        (write, 0, 100, 1, ErrorCode::DDP_BOUNDS),
        (write, 0, u64::MAX - 8192, 1, ErrorCode::DDP_BOUNDS),
        (Access::REMOTE_READ, 0, 0, 1, ErrorCode::RDMAP_ACCESS),
    ];
    for (access, flip, offset, length, error) in cases {
        let (mut bench, region) = bench(access);
        bench.side.write(0, &vec![0x77; 16_384]);
        let to = region.addr().wrapping_add(offset);
        let header = tagged(Opcode::RDMA_WRITE, region.rkey().0 ^ flip, to);
        let bytes = bench.fpdu(header.as_bytes(), &vec![1; length]);
        bench.send(&bytes);
        bench.ends_with(error);
        assert!(bench.side.read(0, 16_384) == [0x77; 16_384]);
    }
    let cases = [
        (Access::REMOTE_READ, 1, 0, 1, ErrorCode::RDMAP_INVALID_STAG),
        (Access::REMOTE_READ, 0, 0, 101, ErrorCode::RDMAP_BOUNDS),
        (write, 0, 0, 1, ErrorCode::RDMAP_ACCESS),
    ];
    for (access, flip, offset, length, error) in cases {
        let (mut bench, region) = bench(access);
        let header = read_request(1, length, region.rkey().0 ^ flip, region.addr() + offset);
        let bytes = bench.fpdu(&header, &[]);
        bench.send(&bytes);
        bench.ends_with(error);
    }
}

#[test]
fn more_reads_than_the_depth_granted() {
    let mut bench = Bench::new(true, None);
    // Three at once where two were granted: in one segment, so that none is answered in between.
    let (stag, at) = (bench.side.mr.rkey().0, bench.side.mr.addr());
    let three: Vec<u8> = (1..=3)
        .flat_map(|msn| bench.fpdu(&read_request(msn, 10, stag, at), &[]))
        .collect();
    bench.send(&three);
    // The two that were allowed are answered first.
    let answers = bench.receive(2 * 32);
    for answer in answers.chunks(32) {
        let segment = Segment::read(answer).unwrap();
        assert_eq!(segment.control().opcode(), Opcode::READ_RESPONSE);
    }
    bench.ends_with(ErrorCode::DDP_NO_BUFFER);
}

#[test]
fn a_read_response_nobody_asked_for_and_keys_nobody_may_invalidate() {
    let mut bench = Bench::new(true, None);
    let header = tagged(
        Opcode::READ_RESPONSE,
        bench.side.mr.rkey().0,
        bench.side.mr.addr(),
    );
    let bytes = bench.fpdu(header.as_bytes(), b"surprise");
    bench.send(&bytes);
    bench.ends_with(ErrorCode::RDMAP_OPCODE);

    let mut bench = Bench::new(true, None);
    let mut header = untagged(Opcode::SEND_INVALIDATE, 0, 1, 0);
    header.invalidate_stag = bench.side.mr.rkey().0.into();
    let bytes = bench.fpdu(header.as_bytes(), b"data");
    bench.send(&bytes);
    bench.ends_with(ErrorCode::RDMAP_CANNOT_INVALIDATE);
    let first = bench.side.completions[0];
    assert_eq!(first.status, WcStatus::RemoteInvalidRequestError);
}

#[test]
fn a_send_without_a_receive_ends_after_its_time() {
    let mut bench = Bench::new(true, None);
    let five: Vec<u8> = (1..=5)
        .flat_map(|msn| bench.fpdu(untagged(Opcode::SEND, 0, msn, 0).as_bytes(), b"x"))
        .collect();
    bench.send(&five);
    let start = Instant::now();
    assert_eq!(bench.terminated().error, ErrorCode::DDP_NO_BUFFER);
    assert!(start.elapsed() >= Duration::from_millis(50));
    let cause = disconnected(&bench.side).unwrap();
    assert!(cause.contains("waited 50 ms for a receive"), "{cause}");
    assert_eq!(bench.side.completions.len(), 4);
}

#[test]
fn the_listening_side_is_silent_until_the_peer_has_spoken() {
    let mut bench = Bench::new(true, None);
    let sges = [bench.side.sge(0, 4)];
    bench.qp.post_send(&send(9, &sges)).unwrap();
    bench.qp.ring_doorbell();
    for _ in 0..100 {
        bench.side.turn();
    }
    assert_eq!(
        bench.peer.read(&mut [0; 8]).unwrap_err().kind(),
        ErrorKind::WouldBlock
    );
    let bytes = bench.fpdu(untagged(Opcode::SEND, 0, 1, 0).as_bytes(), b"data");
    bench.send(&bytes);
    let answer = bench.receive(28);
    assert_eq!(
        Segment::read(&answer).unwrap().control().opcode(),
        Opcode::SEND
    );
}

#[test]
fn every_kind_of_first_message_establishes() {
    let none = Rtr::default();
    let (write, read, empty) = (
        Rtr {
            write: true,
            ..none
        },
        Rtr { read: true, ..none },
        Rtr {
            empty_fpdu: true,
            ..none
        },
    );
    for rtr in [write, read, empty] {
        let mut bench = Bench::new(true, Some(rtr));
        assert!(bench.side.events.is_empty(), "not yet established");
        let fpdu = if rtr.write {
            bench.fpdu(tagged(Opcode::RDMA_WRITE, 1, 0).as_bytes(), &[])
        } else if rtr.read {
            bench.fpdu(&read_request(1, 0, 1, 0), &[])
        } else {
            bench.fpdu(&[0, 0], &[])
        };
        bench.send(&fpdu);
        if rtr.read {
            let answer = bench.receive(20);
            let opcode = Segment::read(&answer).unwrap().control().opcode();
            assert_eq!(opcode, Opcode::READ_RESPONSE);
        }
        bench
            .side
            .turn_until("an event", |side| !side.events.is_empty());
        let event = &bench.side.events[0];
        assert_eq!(event.id, bench.id);
        assert!(
            matches!(event.kind, CmEventKind::Established { .. }),
            "{event:?}"
        );
        assert!(bench.side.completions.is_empty());
    }
}

#[test]
fn a_first_message_that_does_not_come_ends_the_connection() {
    let write = Rtr {
        write: true,
        ..Rtr::default()
    };
    let mut bench = Bench::new(true, Some(write));
    let start = Instant::now();
    bench
        .side
        .turn_until("a disconnect", |side| disconnected(side).is_some());
    assert!(start.elapsed() >= Duration::from_millis(250));
    assert!(
        disconnected(&bench.side)
            .unwrap()
            .contains("sent nothing for 300 ms")
    );
}

#[test]
fn ends_of_the_peer_are_told_apart() {
    let cause = |end: fn(&mut Bench)| {
        let mut bench = Bench::new(true, None);
        let bytes = bench.fpdu(untagged(Opcode::SEND, 0, 1, 0).as_bytes(), b"data");
        bench.send(&bytes);
        end(&mut bench);
        bench
            .side
            .turn_until("a disconnect", |side| disconnected(side).is_some());
        // What came before the end is delivered.
        assert_eq!(bench.side.completions[0].status, WcStatus::Success);
        disconnected(&bench.side).unwrap().to_owned()
    };
    let closed = cause(|b| b.peer.shutdown(std::net::Shutdown::Write).unwrap());
    assert_eq!(closed, "closed by the peer");
    let inside = cause(|b| {
        b.send(&[0, 22, 0x41]);
        b.peer.shutdown(std::net::Shutdown::Write).unwrap();
    });
    assert_eq!(inside, "closed by the peer in the middle of a message");
    let terminated = cause(|b| {
        let header = untagged(Opcode::TERMINATE, 2, 1, 0);
        let bytes = b.fpdu(header.as_bytes(), &[0x02, 0x07, 0, 0]);
        b.send(&bytes);
    });
    assert_eq!(
        terminated,
        "terminated by the peer: RDMAP: catastrophic error, localized to the stream"
    );
}
