//! The provider as the side that connects, and so speaks first, to a hand-made peer.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use capstan_rdma::contract::{CmId, QpState, QueuePair, WcStatus, WorkCompletion};
use capstan_rdma::iwarp::wire::ddp::UNTAGGED_BYTES;
use capstan_rdma::iwarp::wire::mpa::{FRAME_BYTES, Frame, FrameKind};
use capstan_rdma::iwarp::{Config, CrcUse};

use crate::side::{PATIENCE, Side, disconnected, param, send};
use crate::wire::request;

/// A provider that has connected to a socket and speaks first.
fn connected_to_socket() -> (Side, CmId, Box<dyn QueuePair>, TcpStream) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let config = Config {
        crc: CrcUse::Never,
        peer_to_peer: false,
        ..Config::default()
    };
    let mut side = Side::new(config);
    let now = side.now_us();
    let at = listener.local_addr().unwrap();
    let id = side.cm.resolve(at, None, 1_000_000, now).unwrap();
    let qp = side.create_qp(id);
    side.cm
        .connect(id, &param(&[], 1, 1), 5_000_000, now)
        .unwrap();
    while side.events.is_empty() {
        side.turn();
    }
    let (mut peer, _) = listener.accept().unwrap();
    for _ in 0..100 {
        side.turn();
    }
    peer.read_exact(&mut [0; FRAME_BYTES + 4]).unwrap();
    let reply = Frame {
        kind: FrameKind::Reply,
        ..request(false, None)
    };
    peer.write_all(&reply.encode(&[]).unwrap()).unwrap();
    (side, id, qp, peer)
}

/// More than TCP takes is posted to a peer that does not read; then the connection is given up,
/// after an orderly end if `disconnect`.
fn abort_with_full_socket(disconnect: bool) {
    const MESSAGE: u32 = 1 << 20;
    let (mut side, id, mut qp, mut peer) = connected_to_socket();
    side.turn_until("established", |_| qp.state() == QpState::ReadyToSend);
    for wr_id in 0..64 {
        qp.post_send(&send(wr_id, &[side.sge(0, MESSAGE)])).unwrap();
    }
    qp.ring_doorbell();
    for _ in 0..100 {
        side.turn();
    }
    if disconnect {
        side.cm.disconnect(id);
    }
    side.cm.abort(id);
    assert_eq!(qp.state(), QpState::Error);
    // What lingers would not end by itself here.
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    let all: usize = 64 * MESSAGE as usize;
    let mut came = 0;
    let mut bytes = vec![0; 1 << 16];
    let end = loop {
        match peer.read(&mut bytes) {
            Ok(0) => break None,
            Ok(count) => came += count,
            Err(error) => break Some(error.kind()),
        }
    };
    // An orderly end would be an end of the stream, behind all that the kernel had.
    assert_eq!(end, Some(ErrorKind::ConnectionReset), "after {came} bytes");
    assert!(came < all, "{came} bytes came");
    side.turn_until("a disconnect", |side| disconnected(side).is_some());
    let flushed = |c: &&WorkCompletion| c.status == WcStatus::WrFlushError;
    assert!(side.completions.iter().filter(flushed).count() > 0);
    assert_eq!(side.completions.len(), 64);
}

#[test]
fn a_connection_that_is_given_up_is_reset_and_its_kernel_sends_nothing_more() {
    abort_with_full_socket(false);
}

#[test]
fn giving_up_cuts_short_an_end_that_lingers() {
    abort_with_full_socket(true);
}

#[test]
fn a_listening_side_that_missed_the_first_message_is_reminded() {
    let (mut side, _, mut qp, mut peer) = connected_to_socket();
    peer.set_nonblocking(true).unwrap();
    let mut heard = Vec::new();
    let mut listen_ms = |side: &mut Side, peer: &mut TcpStream, ms: u64| {
        let start = Instant::now();
        heard.clear();
        while start.elapsed() < Duration::from_millis(ms) {
            side.turn();
            let mut more = [0; 256];
            match peer.read(&mut more) {
                Ok(count) => heard.extend_from_slice(&more[..count]),
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        }
        heard.clone()
    };
    // Nothing was sent, so there is nothing to miss.
    assert_eq!(listen_ms(&mut side, &mut peer, 100), []);
    assert_eq!(qp.state(), QpState::ReadyToSend);

    side.write(0, b"anybody?");
    qp.post_send(&send(1, &[side.sge(0, 8)])).unwrap();
    qp.ring_doorbell();
    let said = listen_ms(&mut side, &mut peer, 700);
    let send_bytes = UNTAGGED_BYTES + 8 + 4;
    assert_eq!(said[..2], [0, 26]);
    // An FPDU of a tagged header alone, after the Send and again later.
    let reminders = &said[send_bytes..];
    assert!(
        reminders.len() >= 20 && reminders.len().is_multiple_of(20),
        "{said:02x?}"
    );
    assert_eq!(reminders[..4], [0, 14, 0xC1, 0x40]);

    // The peer is there: no more of them.
    peer.write_all(&reminders[..20]).unwrap();
    listen_ms(&mut side, &mut peer, 20);
    assert_eq!(listen_ms(&mut side, &mut peer, 1500), []);
    assert_eq!(qp.state(), QpState::ReadyToSend);
}
