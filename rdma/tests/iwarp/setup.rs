//! Connecting, refusing, migrating, ending.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use capstan_rdma::contract::{CmError, CmEventKind, PrivateData, QpState, RejectReason};
use capstan_rdma::iwarp::{Config, CrcUse, FpduSize, OtherProtocol, Provider};

use crate::side::{Pair, Side, any, disconnected, established, param, turn_until};

#[test]
fn all_ways_of_setting_up_connect() {
    for mpa_revision in [1, 2] {
        for peer_to_peer in [false, true] {
            for crc in [CrcUse::Never, CrcUse::BetweenMachines, CrcUse::Always] {
                for fpdu_size in [FpduSize::Negotiated, FpduSize::Segment] {
                    let config = Config {
                        mpa_revision,
                        peer_to_peer,
                        crc,
                        fpdu_size,
                        ..Config::default()
                    };
                    let pair = Pair::with(config.clone(), config);
                    assert_eq!(pair.host_qp.state(), QpState::ReadyToSend);
                    assert_eq!(pair.target_qp.state(), QpState::ReadyToSend);
                }
            }
        }
    }
}

#[test]
fn ipv6_and_wildcard_listeners_tell_the_real_address() {
    let sides = || (Side::new(Config::default()), Side::new(Config::default()));
    let (host, target) = sides();
    let pair = Pair::between(host, target, "[::1]:0".parse().unwrap());
    let (local, peer) = pair.target.cm.addresses(pair.target_id).unwrap();
    assert_eq!(
        (local.ip().to_string(), peer.ip().to_string()),
        ("::1".into(), "::1".into())
    );

    let (mut host, mut target) = sides();
    let (_, at) = target.cm.listen("0.0.0.0:0".parse().unwrap(), 4).unwrap();
    let to = (std::net::Ipv4Addr::LOCALHOST, at.port()).into();
    let id = host.cm.resolve(to, None, 1_000_000, 0).unwrap();
    let _qp = host.create_qp(id);
    let now = host.now_us();
    host.cm
        .connect(id, &param(&[], 1, 1), 5_000_000, now)
        .unwrap();
    turn_until(&mut host, &mut target, "request", |_, t| {
        !t.events.is_empty()
    });
    let (local, peer) = target.cm.addresses(target.events[0].id).unwrap();
    assert_eq!(local, to);
    assert_eq!(Some(peer), host.cm.addresses(id).map(|(local, _)| local));
}

#[test]
fn accept_tells_private_data_and_depths() {
    let (mut host, mut target) = (Side::new(Config::default()), Side::new(Config::default()));
    let (_, at) = target.cm.listen(any(), 4).unwrap();
    let now = host.now_us();
    let id = host.cm.resolve(at, None, 1_000_000, now).unwrap();
    let _host_qp = host.create_qp(id);
    let ask = param(&[7; 255], 3, 20);
    host.cm.connect(id, &ask, 5_000_000, now).unwrap();
    turn_until(&mut host, &mut target, "request", |_, t| {
        !t.events.is_empty()
    });
    let request = target.events.remove(0);
    let CmEventKind::ConnectRequest { param: asked, .. } = &request.kind else {
        panic!("{request:?}");
    };
    assert_eq!(asked.private_data.as_bytes(), [7; 255]);
    assert_eq!((asked.responder_resources, asked.initiator_depth), (3, 20));
    let _target_qp = target.create_qp(request.id);
    target
        .cm
        .accept(request.id, &param(&[9; 255], 5, 50))
        .unwrap();
    turn_until(&mut host, &mut target, "established", |h, t| {
        established(h, id) && established(t, request.id)
    });
    let told = host.events.iter().find_map(|e| match e.kind {
        CmEventKind::Established { param } => Some(param),
        _ => None,
    });
    let told = told.unwrap();
    assert_eq!(told.private_data.as_bytes(), [9; 255]);
    assert_eq!((told.responder_resources, told.initiator_depth), (3, 5));
}

#[test]
fn reject_carries_private_data() {
    let (mut host, mut target) = (Side::new(Config::default()), Side::new(Config::default()));
    let (_, at) = target.cm.listen(any(), 4).unwrap();
    let now = host.now_us();
    let id = host.cm.resolve(at, None, 1_000_000, now).unwrap();
    let qp = host.create_qp(id);
    host.cm
        .connect(id, &param(b"?", 1, 1), 5_000_000, now)
        .unwrap();
    turn_until(&mut host, &mut target, "request", |_, t| {
        !t.events.is_empty()
    });
    let no = PrivateData::new(b"no such subsystem").unwrap();
    target.cm.reject(target.events[0].id, &no);
    turn_until(&mut host, &mut target, "answer", |h, _| h.events.len() > 1);
    match &host.events[1].kind {
        CmEventKind::Rejected {
            reason: RejectReason::Consumer,
            private_data,
        } => assert_eq!(private_data.as_bytes(), b"no such subsystem"),
        other => panic!("{other:?}"),
    }
    assert_eq!(qp.state(), QpState::Error);
}

#[test]
fn nobody_listening_is_told_as_such() {
    let (mut host, mut other) = (Side::new(Config::default()), Side::new(Config::default()));
    // Bound and closed again: a port that refuses.
    let (listener, at) = other.cm.listen(any(), 4).unwrap();
    other.cm.destroy(listener);
    let now = host.now_us();
    let id = host.cm.resolve(at, None, 1_000_000, now).unwrap();
    let _qp = host.create_qp(id);
    host.cm
        .connect(id, &param(&[], 1, 1), 5_000_000, now)
        .unwrap();
    turn_until(&mut host, &mut other, "answer", |h, _| h.events.len() > 1);
    let refused = matches!(
        host.events[1].kind,
        CmEventKind::Rejected {
            reason: RejectReason::NoListener,
            ..
        }
    );
    assert!(refused, "{:?}", host.events);
}

#[test]
fn a_silent_listener_times_out() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (mut host, mut other) = (Side::new(Config::default()), Side::new(Config::default()));
    let now = host.now_us();
    let at = silent.local_addr().unwrap();
    let id = host.cm.resolve(at, None, 1_000_000, now).unwrap();
    let _qp = host.create_qp(id);
    host.cm.connect(id, &param(&[], 1, 1), 50_000, now).unwrap();
    turn_until(&mut host, &mut other, "answer", |h, _| h.events.len() > 1);
    match &host.events[1].kind {
        CmEventKind::Failed(CmError::Silent {
            what,
            timeout_ms,
            came_bytes: 0,
        }) => {
            let expected = format!("waiting for the MPA Reply of {at}");
            assert_eq!((what, *timeout_ms), (&expected, 50));
        }
        other => panic!("{other:?}"),
    }
}

/// What a connect is told that hears only this.
fn told_after(heard: &'static [u8], timeout_us: u64) -> String {
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = other.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = other.accept().unwrap();
        stream.write_all(heard).unwrap();
        stream
    });
    let (mut host, mut other) = (Side::new(Config::default()), Side::new(Config::default()));
    let now = host.now_us();
    let id = host.cm.resolve(at, None, 1_000_000, now).unwrap();
    let _qp = host.create_qp(id);
    host.cm
        .connect(id, &param(&[], 1, 1), timeout_us, now)
        .unwrap();
    turn_until(&mut host, &mut other, "answer", |h, _| h.events.len() > 1);
    drop(server.join().unwrap());
    match &host.events[1].kind {
        CmEventKind::Failed(error) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

/// Of a Reply that stands still, in its key or in its private data, it is told how much has come.
#[test]
fn a_reply_that_is_begun_is_not_nothing() {
    let stalls = b"MPA ID Rep Frame\x40\x01\x00\x20\0\0\0\0";
    for heard in [&stalls[..1], &stalls[..10], &stalls[..16], stalls] {
        let told = told_after(heard, 300_000);
        let words = match heard.len() {
            1 => "1 byte of it has come in 300 ms, and not the rest".to_owned(),
            bytes => format!("{bytes} bytes of it have come in 300 ms, and not the rest"),
        };
        assert!(told.contains(&words), "{told}");
    }
}

/// A banner may be shorter than a frame: what it says is not waited for any longer.
#[test]
fn a_short_banner_is_told_at_once() {
    for (heard, words) in [
        (&b"+OK\r\n"[..], "(\"+OK\\r\\n\")"),
        (b"SSH-2.0-Go\r\n", "(\"SSH-2.0-Go"),
    ] {
        let told = told_after(heard, 60_000_000);
        assert!(told.contains(words), "{told}");
        assert!(told.contains("does not speak iWARP"), "{told}");
    }
}

#[test]
fn what_is_no_iwarp_peer_is_named() {
    let told = told_after(b"HTTP/1.1 400 Bad Request\r\n\r\n", 5_000_000);
    for words in [
        "(\"HTTP/1.1 400",
        "does not speak iWARP; check the address and port",
    ] {
        assert!(told.contains(words), "{words}: {told}");
    }
}

#[test]
fn disconnect_reaches_both_sides_in_words() {
    let mut pair = Pair::new();
    pair.host.cm.disconnect(pair.host_id);
    pair.turn_until("disconnected", |h, t| {
        disconnected(h).is_some() && disconnected(t).is_some()
    });
    assert_eq!(disconnected(&pair.host), Some("closed by this side"));
    assert_eq!(disconnected(&pair.target), Some("closed by the peer"));
    assert_eq!(pair.host_qp.state(), QpState::Error);
    assert_eq!(pair.target_qp.state(), QpState::Error);
}

#[test]
fn dropping_the_queue_pair_ends_the_connection() {
    let Pair {
        mut host,
        mut target,
        host_qp,
        target_qp,
        ..
    } = Pair::new();
    drop(host_qp);
    turn_until(&mut host, &mut target, "disconnected", |h, t| {
        disconnected(h).is_some() && disconnected(t).is_some()
    });
    drop(target_qp);
}

#[test]
fn a_request_migrates_to_another_thread() {
    let (mut host, mut target) = (Side::new(Config::default()), Side::new(Config::default()));
    let (_, at) = target.cm.listen(any(), 4).unwrap();
    let now = host.now_us();
    let id = host.cm.resolve(at, None, 1_000_000, now).unwrap();
    let host_qp = host.create_qp(id);
    host.cm
        .connect(id, &param(b"x", 1, 1), 5_000_000, now)
        .unwrap();
    turn_until(&mut host, &mut target, "request", |_, t| {
        !t.events.is_empty()
    });
    let migrated = target.cm.migrate(target.events[0].id).unwrap();
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        let mut side = Side::new(Config::default());
        let id = side.cm.adopt(migrated).unwrap();
        let _qp = side.create_qp(id);
        side.cm.accept(id, &param(b"y", 1, 1)).unwrap();
        while stopped.try_recv().is_err() {
            side.turn();
        }
        established(&side, id)
    });
    turn_until(&mut host, &mut target, "established", |h, _| {
        established(h, id)
    });
    assert_eq!(host_qp.state(), QpState::ReadyToSend);
    std::thread::sleep(Duration::from_millis(20));
    stop.send(()).unwrap();
    assert!(thread.join().unwrap());
}

#[test]
fn a_manager_that_was_idle_for_long_gives_an_adopted_connection_its_whole_time() {
    let (mut host, mut target) = (Side::new(Config::default()), Side::new(Config::default()));
    let (_, at) = target.cm.listen(any(), 4).unwrap();
    let now = host.now_us();
    let id = host.cm.resolve(at, None, 1_000_000, now).unwrap();
    let _host_qp = host.create_qp(id);
    host.cm
        .connect(id, &param(b"x", 1, 1), 5_000_000, now)
        .unwrap();
    turn_until(&mut host, &mut target, "request", |_, t| {
        !t.events.is_empty()
    });
    let migrated = target.cm.migrate(target.events[0].id).unwrap();
    let config = Config {
        setup_timeout_ms: 300,
        ..Config::default()
    };
    let mut other = Side::new(config);
    other.turn();
    std::thread::sleep(Duration::from_millis(400));
    let adopted = other.cm.adopt(migrated).unwrap();
    let _qp = other.create_qp(adopted);
    other.cm.accept(adopted, &param(b"y", 1, 1)).unwrap();
    assert_eq!(other.cm.next_deadline_us(), Some(0));
    other.turn();
    turn_until(&mut host, &mut other, "established", |h, o| {
        established(h, id) && established(o, adopted)
    });
}

#[test]
fn a_lost_migrated_request_refuses_the_peer() {
    let (mut host, mut target) = (Side::new(Config::default()), Side::new(Config::default()));
    let (_, at) = target.cm.listen(any(), 4).unwrap();
    let now = host.now_us();
    let id = host.cm.resolve(at, None, 1_000_000, now).unwrap();
    let _qp = host.create_qp(id);
    host.cm
        .connect(id, &param(b"x", 1, 1), 5_000_000, now)
        .unwrap();
    turn_until(&mut host, &mut target, "request", |_, t| {
        !t.events.is_empty()
    });
    drop(target.cm.migrate(target.events[0].id).unwrap());
    turn_until(&mut host, &mut target, "answer", |h, _| h.events.len() > 1);
    let refused = matches!(host.events[1].kind, CmEventKind::Rejected { .. });
    assert!(refused, "{:?}", host.events);
}

/// Whether the other side has closed a connection, within `patience`.
fn is_closed(stream: &mut TcpStream, target: &mut Side, patience: Duration) -> bool {
    stream.set_nonblocking(true).unwrap();
    let start = Instant::now();
    while start.elapsed() < patience {
        target.turn();
        match stream.read(&mut [0; 1]) {
            Ok(0) => return true,
            // Unread bytes make the end a reset.
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return true,
            _ => {}
        }
    }
    false
}

#[test]
fn connections_that_say_nothing_make_room_for_one_that_does() {
    let config = Config {
        half_open_max: 3,
        half_open_per_source_max: 2,
        // Long, so that no deadline closes any of them.
        setup_timeout_ms: 60_000,
        ..Config::default()
    };
    let (mut host, mut target) = (Side::new(Config::default()), Side::new(config));
    let (_, at) = target.cm.listen(any(), 64).unwrap();
    let mut silent: Vec<_> = (0..40).map(|_| TcpStream::connect(at).unwrap()).collect();
    let now = host.now_us();
    let id = host.cm.resolve(at, None, 1_000_000, now).unwrap();
    let _qp = host.create_qp(id);
    host.cm
        .connect(id, &param(b"x", 1, 1), 5_000_000, now)
        .unwrap();
    turn_until(&mut host, &mut target, "request", |_, t| {
        !t.events.is_empty()
    });
    // One of their own went for each, but for the last: the oldest.
    for stream in &mut silent[..38] {
        assert!(is_closed(stream, &mut target, Duration::from_secs(5)));
    }
    assert!(!is_closed(
        &mut silent[39],
        &mut target,
        Duration::from_millis(20)
    ));
}

#[test]
fn a_request_that_has_come_is_read_before_its_connection_makes_room() {
    let config = Config {
        half_open_max: 3,
        half_open_per_source_max: 2,
        setup_timeout_ms: 60_000,
        ..Config::default()
    };
    let mut target = Side::new(config);
    let (_, at) = target.cm.listen(any(), 64).unwrap();
    let mut asks = TcpStream::connect(at).unwrap();
    // It is half-open, and the oldest.
    target.turn();
    // The listener has something first, by which it would make room for these.
    let _silent: Vec<_> = (0..8).map(|_| TcpStream::connect(at).unwrap()).collect();
    asks.write_all(b"MPA ID Req Frame\x40\x01\0\0").unwrap();
    target.turn();
    let is_closed = is_closed(&mut asks, &mut target, Duration::from_millis(20));
    assert!(!is_closed, "it made room though it had asked");
    assert_eq!(target.events.len(), 1, "{:?}", target.events);
}

#[test]
fn bytes_that_come_one_by_one_are_no_reason_to_wait_longer() {
    let config = Config {
        setup_timeout_ms: 200,
        ..Config::default()
    };
    let mut target = Side::new(config);
    let (_, at) = target.cm.listen(any(), 64).unwrap();
    let mut silent = TcpStream::connect(at).unwrap();
    let mut slow = TcpStream::connect(at).unwrap();
    slow.set_nodelay(true).unwrap();
    let start = Instant::now();
    let request = b"MPA ID Req Frame\x40\x01\x00\xff".iter().chain(&[7; 255]);
    let mut ended = false;
    for byte in request {
        let sent = slow.write_all(&[*byte]);
        ended = sent.is_err() || is_closed(&mut slow, &mut target, Duration::from_millis(10));
        if ended {
            break;
        }
    }
    assert!(ended, "it took its time");
    // The first byte and the rest have their time each, whatever came in it.
    let took = start.elapsed();
    assert!(took >= Duration::from_millis(190), "{took:?}");
    assert!(is_closed(
        &mut silent,
        &mut target,
        Duration::from_millis(10)
    ));
    assert!(target.events.is_empty());
}

#[test]
fn markers_are_refused_with_a_reason() {
    let (mut host, mut target) = (Side::new(Config::default()), Side::new(Config::default()));
    let (_, at) = target.cm.listen(any(), 4).unwrap();
    let mut stream = TcpStream::connect(at).unwrap();
    stream.write_all(b"MPA ID Req Frame\xc0\x01\0\0").unwrap();
    stream.set_nonblocking(true).unwrap();
    let mut answer = Vec::new();
    let start = Instant::now();
    while answer.len() < 20 && start.elapsed() < Duration::from_secs(5) {
        host.turn();
        target.turn();
        let mut bytes = [0; 256];
        if let Ok(count) = stream.read(&mut bytes) {
            answer.extend_from_slice(&bytes[..count]);
        }
    }
    assert_eq!(&answer[..18], b"MPA ID Rep Frame\x60\x01");
    assert!(String::from_utf8_lossy(&answer[20..]).contains("markers"));
    assert!(target.events.is_empty());
}

/// Begins with a zero, which is all it needs.
const ONE_BYTE: OtherProtocol = OtherProtocol {
    first_bytes: &[0],
    asks_with_bytes: |_| 1,
};

/// Until it has asked for something a connection has but a socket, whatever it speaks.
#[test]
fn what_speaks_the_other_protocol_is_handed_over_when_it_has_asked_for_something() {
    const ASKED_BYTES: usize = 100;
    let provider = Provider::new(Config::default()).unwrap();
    let (mut cm, others) = provider
        .connection_manager_beside(OtherProtocol {
            asks_with_bytes: |bytes| if bytes.len() < 8 { 8 } else { ASKED_BYTES },
            ..ONE_BYTE
        })
        .unwrap();
    let (_, at) = cm.listen(any(), 4).unwrap();
    let mut streams = [0; 3].map(|_| TcpStream::connect(at).unwrap());
    let asked: Vec<u8> = (0..150).collect();
    // The time does not go on for the manager, so that no patience ends.
    let mut turn = || {
        assert!(cm.poll(1).is_none());
        others.take()
    };
    for sent in [0..1, 1..9, 9..ASKED_BYTES - 1] {
        for stream in &mut streams {
            stream.write_all(&asked[sent.clone()]).unwrap();
        }
        for _ in 0..1000 {
            assert!(turn().is_none(), "{sent:?}");
        }
    }
    let [mut whole, silent, ended] = streams;
    drop(ended);
    whole.write_all(&asked[ASKED_BYTES - 1..]).unwrap();
    let begin = Instant::now();
    let other = loop {
        if let Some(other) = turn() {
            break other;
        }
        assert!(begin.elapsed() < Duration::from_secs(10), "it did not come");
    };
    assert_eq!(other.peer, whole.local_addr().unwrap());
    assert_eq!(other.bytes, asked[..ASKED_BYTES]);
    // As one that sends half an MPA Request.
    let mut silent = silent;
    silent.set_nonblocking(true).unwrap();
    assert!(silent.read(&mut [0]).is_err(), "closed at once");
    let begin = Instant::now();
    while !matches!(silent.read(&mut [0]), Ok(0)) {
        assert!(cm.poll(1_000_000_000).is_none() && others.take().is_none());
        assert!(begin.elapsed() < Duration::from_secs(10), "it is open");
    }
}

#[test]
fn a_listener_hands_over_what_speaks_the_other_protocol() {
    let provider = Provider::new(Config::default()).unwrap();
    let (mut cm, others) = provider.connection_manager_beside(ONE_BYTE).unwrap();
    let (listener, at) = cm.listen(any(), 4).unwrap();
    let mut streams = ["\0and what follows, which is longer than a frame", "\0"].map(|text| {
        let mut stream = TcpStream::connect(at).unwrap();
        stream.write_all(text.as_bytes()).unwrap();
        (stream, text)
    });
    let mut mpa = TcpStream::connect(at).unwrap();
    mpa.write_all(b"GET / HTTP/1.1 of neither").unwrap();
    for _ in 0..streams.len() {
        let begin = Instant::now();
        let mut other = loop {
            assert!(cm.poll(1).is_none());
            if let Some(other) = others.take() {
                break other;
            }
            assert!(begin.elapsed() < Duration::from_secs(10), "it did not come");
        };
        let (stream, text) = streams
            .iter_mut()
            .find(|(stream, _)| stream.local_addr().unwrap() == other.peer)
            .unwrap();
        assert_eq!((other.listener, other.local), (listener, at));
        // What was not read is in the socket.
        let (read, rest) = text.as_bytes().split_at(other.bytes.len());
        assert_eq!(other.bytes, read);
        let mut left = vec![0; rest.len()];
        other.stream.set_nonblocking(false).unwrap();
        other.stream.read_exact(&mut left).unwrap();
        assert_eq!(left, rest);
        other.stream.write_all(b"!").unwrap();
        stream.read_exact(&mut [0]).unwrap();
    }
    // What is neither is closed.
    let begin = Instant::now();
    mpa.set_nonblocking(true).unwrap();
    while !matches!(mpa.read(&mut [0]), Ok(0)) {
        assert!(cm.poll(1).is_none() && others.take().is_none());
        assert!(begin.elapsed() < Duration::from_secs(10), "it is open");
    }
}

/// A flood of connections of the other protocol waits in the kernel's queue of the listener, in its
/// order, and not in this process without a bound.
#[test]
fn no_more_is_looked_at_before_the_other_protocol_has_taken_what_there_is() {
    const STREAMS: usize = 200;
    /// Connections that are accepted, and events that are read, at one look.
    const AT_ONE_LOOK: usize = 32 + 64;
    let provider = Provider::new(Config::default()).unwrap();
    let (mut cm, others) = provider.connection_manager_beside(ONE_BYTE).unwrap();
    let (_, at) = cm.listen(any(), 256).unwrap();
    let streams: Vec<_> = (0..STREAMS)
        .map(|_| {
            let mut stream = TcpStream::connect(at).unwrap();
            stream.write_all(&[0]).unwrap();
            stream
        })
        .collect();
    let begin = Instant::now();
    let mut came = Vec::new();
    while came.len() < STREAMS {
        assert!(begin.elapsed() < Duration::from_secs(10), "{}", came.len());
        for _ in 0..STREAMS {
            assert!(cm.poll(1).is_none());
        }
        let before = came.len();
        came.extend(std::iter::from_fn(|| others.take()).map(|other| other.peer));
        let at_once = came.len() - before;
        assert!(at_once <= AT_ONE_LOOK, "{at_once} at once");
    }
    let opened: Vec<_> = streams.iter().map(|s| s.local_addr().unwrap()).collect();
    assert_eq!(came, opened);
}
