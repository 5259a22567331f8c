//! Calls over TCP.

use std::io::Write;
use std::net::{Ipv6Addr, Shutdown, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use capstan_nfs_client::tcp::record;
use capstan_rpc_server::limits::{
    REFUSED_BYTES, REPLY_MAX_BYTES, STRANGERS_PER_SOURCE_MAX, TCP_CALLS_MAX,
};
use capstan_rpc_server::{BindError, Program, Server, Settings, Transport};
use capstan_rpcrdma::limits::{DATA_MAX_BYTES, FRAGMENTS_MAX, RECORD_MAX_BYTES};
use capstan_rpcrdma::xdr::Reader;

use crate::harness::{Client, Running, message, settings};
use crate::program::{GIVE, NULL, PANIC, PATIENCE, REFUSED, SILENT, TAKE, Tester, WAIT, data, sum};

fn start(settings: Settings, program: &Arc<Tester>) -> Running {
    Running::start(settings, Arc::clone(program) as Arc<dyn Program>)
}

fn give(xid: u32, length: usize) -> Vec<u8> {
    message(xid, GIVE, |writer| {
        writer.u32(1).unwrap();
        writer.u32(u32::try_from(length).unwrap()).unwrap();
    })
}

fn take(xid: u32, bytes: &[u8]) -> Vec<u8> {
    message(xid, TAKE, |writer| writer.opaque(bytes).unwrap())
}

/// What is answered to [`take`].
fn taken(reply: &[u8]) -> (usize, u64) {
    let mut reader = Reader::new(reply);
    let length = usize::try_from(reader.u32("length").unwrap()).unwrap();
    (length, reader.u64("sum").unwrap())
}

/// What is answered to [`give`].
fn given(reply: &[u8]) -> &[u8] {
    let mut reader = Reader::new(reply);
    let data = reader.opaque("data", DATA_MAX_BYTES).unwrap();
    assert_eq!(reader.u32("end"), Ok(0xE0E0_E0E0));
    reader.finish().unwrap();
    data
}

#[test]
fn calls_of_all_sizes_are_answered() {
    let program = Tester::new();
    let server = Running::tcp(&program);
    let mut client = server.connect();
    client.send(&message(7, NULL, |_| {}));
    assert_eq!(client.reply(), (7, Vec::new()));
    for length in [0, 1, 4095, 64 << 10, (256 << 10) + 3, 1 << 20] {
        client.send(&give(8, length));
        let (xid, reply) = client.reply();
        assert_eq!(xid, 8);
        assert!(given(&reply) == data(length), "{length} bytes");
        let bytes = data(length);
        client.send(&take(9, &bytes));
        let (xid, reply) = client.reply();
        assert_eq!((xid, taken(&reply)), (9, (length, sum(&bytes))));
    }
}

#[test]
fn what_need_not_wait_is_answered_by_the_thread_of_the_connections() {
    let program = Tester::new();
    program.gives_at_once.store(true, Ordering::Relaxed);
    let server = Running::tcp(&program);
    let mut client = server.connect();
    // One at a time, the workers of a pool would take turns.
    for length in [0, 1, 4096, 64 << 10, (64 << 10) + 1].repeat(9) {
        client.send(&give(8, length));
        let (xid, reply) = client.reply();
        assert!(xid == 8 && given(&reply) == data(length), "{length} bytes");
    }
    assert_eq!(program.threads(), 1);
    // Together with those that have to, in the same turns, and more than one turn takes.
    let calls: Vec<_> = (0..30)
        .flat_map(|n| {
            [
                record(&give(2 * n, 100_000)),
                record(&take(2 * n + 1, b"x")),
            ]
        })
        .collect();
    client.stream.write_all(&calls.concat()).unwrap();
    let mut answered: Vec<_> = (0..60)
        .map(|_| {
            let (xid, reply) = client.reply();
            if xid % 2 == 0 {
                assert!(given(&reply) == data(100_000));
            } else {
                assert_eq!(taken(&reply), (1, sum(b"x")));
            }
            xid
        })
        .collect();
    answered.sort_unstable();
    assert_eq!(answered, (0..60).collect::<Vec<_>>());
    assert!(program.threads() > 1, "all by one thread");
}

#[test]
fn a_call_that_takes_time_holds_up_no_other() {
    let program = Tester::new();
    let server = Running::tcp(&program);
    let mut client = server.connect();
    client.send(&message(1, WAIT, |_| {}));
    program.until_waiting(1);
    for xid in 2..20 {
        client.send(&message(xid, NULL, |_| {}));
        assert_eq!(client.reply().0, xid);
    }
    program.open_gate();
    assert_eq!(client.reply().0, 1);
}

#[test]
fn a_stream_may_be_cut_anywhere_and_a_record_into_fragments() {
    let program = Tester::new();
    let server = Running::tcp(&program);
    let call = take(3, b"cut");
    let fragments = [
        [&[0, 0, 0, 5], &call[..5]].concat(),
        vec![0; 4],
        [
            &[0x80, 0, 0, u8::try_from(call.len() - 5).unwrap()],
            &call[5..],
        ]
        .concat(),
    ];
    let stream = [record(&call), fragments.concat(), record(&call)].concat();
    let mut client = server.connect();
    for cut in 0..=stream.len() {
        client.stream.write_all(&stream[..cut]).unwrap();
        client.stream.write_all(&stream[cut..]).unwrap();
        for _ in 0..3 {
            let (xid, reply) = client.reply();
            assert_eq!((xid, taken(&reply)), (3, (3, sum(b"cut"))));
        }
    }
    let mut client = server.connect();
    for byte in stream {
        client.stream.write_all(&[byte]).unwrap();
    }
    for _ in 0..3 {
        assert_eq!(client.reply().0, 3);
    }
}

#[test]
fn a_record_too_long_or_in_too_many_fragments_ends_its_connection_alone() {
    let program = Tester::new();
    let server = Running::tcp(&program);
    let mut good = server.connect();
    let too_long = (RECORD_MAX_BYTES + 1) | 0x8000_0000;
    let empty_fragments = vec![0; 4 * (usize::try_from(FRAGMENTS_MAX).unwrap() + 1)];
    for stream in [&too_long.to_be_bytes()[..], &[0xFF; 64], &empty_fragments] {
        let mut client = server.connect();
        client.stream.write_all(stream).unwrap();
        assert_eq!(client.until_ended(), 0);
    }
    program.until_ended(3);
    good.send(&message(7, NULL, |_| {}));
    assert_eq!(good.reply().0, 7);
}

#[test]
fn what_is_no_call_is_passed_over_or_ends_the_connection() {
    let program = Tester::new();
    let server = Running::tcp(&program);
    let mut client = server.connect();
    client.send(&message(1, SILENT, |_| {}));
    client.send(&message(2, NULL, |_| {}));
    assert_eq!(client.reply().0, 2);
    client.send(&message(3, 99, |_| {}));
    assert_eq!(client.until_ended(), 0);
    for message in [&b""[..], b"abc", &message(4, PANIC, |_| {})] {
        let mut client = server.connect();
        client.send(message);
        assert_eq!(client.until_ended(), 0);
    }
    program.until_ended(4);
}

#[test]
fn a_client_has_a_bounded_number_of_calls_and_all_are_answered() {
    let program = Tester::new();
    let server = Running::tcp(&program);
    let mut client = server.connect();
    let calls = u32::try_from(3 * TCP_CALLS_MAX).unwrap();
    let mut stream = Vec::new();
    for xid in 0..calls {
        // The first ones keep all workers.
        let kind = if xid < 4 { WAIT } else { NULL };
        stream.extend(record(&message(xid, kind, |_| {})));
    }
    client.stream.write_all(&stream).unwrap();
    program.until_waiting(4);
    // Another client's call is not behind all of those.
    let mut other = server.connect();
    other.send(&message(1000, NULL, |_| {}));
    program.open_gate();
    assert_eq!(other.reply().0, 1000);
    let mut answered: Vec<u32> = (0..calls).map(|_| client.reply().0).collect();
    answered.sort_unstable();
    assert_eq!(answered, (0..calls).collect::<Vec<_>>());
}

#[test]
fn a_client_that_takes_no_reply_gets_no_more_and_ends() {
    let program = Tester::new();
    let server = start(
        Settings {
            stall_ms: 500,
            ..settings(&[Transport::Tcp])
        },
        &program,
    );
    let mut client = server.connect();
    let calls = 64;
    let start = Instant::now();
    for xid in 0..calls {
        client.send(&give(xid, 1 << 20));
    }
    program.until_ended(1);
    assert!(start.elapsed() >= Duration::from_millis(500));
    let carried_out = program.carried_out.load(Ordering::Relaxed);
    assert!(carried_out < 40, "{carried_out} replies of 1 MiB were made");
    drop(client);
    let mut other = server.connect();
    other.send(&message(1, NULL, |_| {}));
    assert_eq!(other.reply().0, 1);
}

#[test]
fn a_slow_client_gets_everything() {
    let program = Tester::new();
    let server = Running::tcp(&program);
    let mut client = server.connect();
    let calls = 24;
    for xid in 0..calls {
        client.send(&give(xid, 1 << 20));
    }
    let mut answered = Vec::new();
    for _ in 0..calls {
        std::thread::sleep(Duration::from_millis(5));
        let (xid, reply) = client.reply();
        assert!(given(&reply) == data(1 << 20));
        answered.push(xid);
    }
    answered.sort_unstable();
    assert_eq!(answered, (0..calls).collect::<Vec<_>>());
}

#[test]
fn a_record_left_unfinished_ends_its_connection_and_an_idle_one_stays() {
    let program = Tester::new();
    let server = start(
        Settings {
            stall_ms: 300,
            ..settings(&[Transport::Tcp])
        },
        &program,
    );
    let mut idle = server.connect();
    idle.send(&message(1, NULL, |_| {}));
    assert_eq!(idle.reply().0, 1);
    let mut client = server.connect();
    client.stream.write_all(&[0x80, 0, 1]).unwrap();
    assert_eq!(client.until_ended(), 0);
    idle.send(&message(2, NULL, |_| {}));
    assert_eq!(idle.reply().0, 2);
    assert_eq!(program.ended(), 1);
}

#[test]
fn a_client_that_goes_with_calls_under_way_is_told_of_when_they_are_over() {
    let program = Tester::new();
    let server = Running::tcp(&program);
    let mut client = server.connect();
    client.send(&message(1, WAIT, |_| {}));
    client.send(&message(2, WAIT, |_| {}));
    program.until_waiting(2);
    drop(client);
    // Its end is seen before this connection has an answer.
    let mut other = server.connect();
    other.send(&message(3, NULL, |_| {}));
    assert_eq!(other.reply().0, 3);
    assert_eq!(program.ended(), 0);
    program.open_gate();
    program.until_ended(1);
}

#[test]
fn a_server_that_stops_answers_what_it_has_taken() {
    let program = Tester::new();
    let server = Running::tcp(&program);
    let mut idle = server.connect();
    idle.send(&message(9, NULL, |_| {}));
    assert_eq!(idle.reply().0, 9);
    let mut client = server.connect();
    let calls: Vec<_> = (0..6)
        .map(|xid| record(&message(xid, WAIT, |_| {})))
        .collect();
    // In one piece, so that those which wait for a worker have come with the others.
    client.stream.write_all(&calls.concat()).unwrap();
    program.until_waiting(4);
    server.handle.stop();
    server.handle.stop();
    program.open_gate();
    let mut answered: Vec<u32> = (0..6).map(|_| client.reply().0).collect();
    answered.sort_unstable();
    assert_eq!(answered, [0, 1, 2, 3, 4, 5]);
    assert_eq!((client.until_ended(), idle.until_ended()), (0, 0));
    drop((client, idle));
    server.join();
    assert_eq!(program.ended(), 2);
}

#[test]
fn a_server_that_stops_waits_neither_for_clients_nor_for_calls_for_ever() {
    let program = Tester::new();
    let server = start(
        Settings {
            drain_ms: 100,
            ..settings(&[Transport::Tcp])
        },
        &program,
    );
    let mut client = server.connect();
    client.send(&message(1, WAIT, |_| {}));
    program.until_waiting(1);
    let idle = server.connect();
    let start = Instant::now();
    server.handle.stop();
    server.join();
    assert!(start.elapsed() < PATIENCE / 2);
    drop(idle);
    program.open_gate();
}

#[test]
fn an_address_that_is_not_admitted_has_its_calls_refused() {
    let program = Tester::new();
    let server = Running::tcp(&program);
    let mut before = server.connect();
    before.send(&message(1, NULL, |_| {}));
    assert_eq!(before.reply().0, 1);
    program.refuses.store(true, Ordering::Relaxed);
    let carried_out = program.carried_out.load(Ordering::Relaxed);
    let mut refused = server.connect();
    for xid in [7, 8] {
        refused.send(&message(xid, NULL, |_| {}));
        assert_eq!(refused.reply(), (xid, REFUSED.to_be_bytes().to_vec()));
    }
    assert_eq!(program.carried_out.load(Ordering::Relaxed), carried_out);
    before.send(&message(2, NULL, |_| {}));
    assert_eq!(before.reply().0, 2);
    // It is not known for that: others make it go.
    let strangers = STRANGERS_PER_SOURCE_MAX;
    let mut others: Vec<_> = (0..strangers).map(|_| server.connect()).collect();
    assert_eq!(refused.until_ended(), 0);
    // Of what it sends not much is taken.
    let other = others.last_mut().unwrap();
    let _ = other.stream.write_all(&vec![1; 4 * REFUSED_BYTES]);
    other.until_ended();
    // A reload may add its network.
    let other = others.get_mut(strangers - 2).unwrap();
    program.refuses.store(false, Ordering::Relaxed);
    other.send(&message(9, NULL, |_| {}));
    assert_eq!(other.reply().0, 9);
}

#[test]
fn both_families_listen_at_one_port() {
    let program = Tester::new();
    let at = |address: SocketAddr| {
        let mut settings = settings(&[Transport::Tcp]);
        settings.listeners[0].addr = address;
        start(settings, &program)
    };
    let v4 = at("0.0.0.0:0".parse().unwrap());
    let port = v4.addresses[0].port();
    let v6 = at(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port));
    for server in [v4, v6] {
        let mut client = server.connect();
        client.send(&message(1, NULL, |_| {}));
        assert_eq!(client.reply().0, 1);
    }
}

#[test]
fn connections_of_one_address_are_bounded() {
    let program = Tester::new();
    let server = start(
        Settings {
            connections_per_source_max: 2,
            ..settings(&[Transport::Tcp])
        },
        &program,
    );
    let mut clients = [server.connect(), server.connect()];
    for client in &mut clients {
        client.send(&message(1, NULL, |_| {}));
        assert_eq!(client.reply().0, 1);
    }
    assert_eq!(server.connect().until_ended(), 0);
    clients[0].stream.shutdown(Shutdown::Both).unwrap();
    program.until_ended(1);
    let mut third = server.connect();
    third.send(&message(1, NULL, |_| {}));
    assert_eq!(third.reply().0, 1);
}

#[test]
fn connections_without_a_call_make_room_for_others_of_their_address() {
    let program = Tester::new();
    let server = Running::tcp(&program);
    let mut known = server.connect();
    known.send(&message(1, NULL, |_| {}));
    assert_eq!(known.reply().0, 1);
    let connect = |_| server.connect();
    let mut strangers: Vec<_> = (0..=STRANGERS_PER_SOURCE_MAX).map(connect).collect();
    program.until_ended(1);
    assert_eq!(strangers[0].until_ended(), 0);
    known.send(&message(2, NULL, |_| {}));
    assert_eq!(known.reply().0, 2);
    let last = strangers.last_mut().unwrap();
    last.send(&message(3, NULL, |_| {}));
    assert_eq!(last.reply().0, 3);
    assert_eq!(program.ended(), 1);
}

#[test]
fn many_clients_at_once_all_get_their_own_answers() {
    let program = Tester::new();
    let server = Running::tcp(&program);
    let address = server.address();
    let clients = (0..16_u32).map(|number| {
        std::thread::spawn(move || {
            let mut client = Client::new(address);
            for round in 0..50 {
                let xid = number * 1000 + round;
                let length = usize::try_from(number * 997 + round * 101).unwrap();
                client.send(&take(xid, &data(length)));
                client.send(&give(xid, length));
                for _ in 0..2 {
                    let (of, reply) = client.reply();
                    assert_eq!(of, xid);
                    if reply.len() == 12 {
                        assert_eq!(taken(&reply), (length, sum(&data(length))));
                    } else {
                        assert!(given(&reply) == data(length));
                    }
                }
            }
        })
    });
    for client in clients.collect::<Vec<_>>() {
        client.join().unwrap();
    }
    drop(server);
    assert_eq!(program.ended(), 16);
}

#[test]
fn settings_and_addresses_that_cannot_be_had_are_named() {
    let program = Tester::new();
    let bind = |settings: &Settings| {
        let program = Arc::clone(&program) as Arc<dyn Program>;
        Server::bind(settings, program)
            .err()
            .expect("it cannot be had")
    };
    let error = bind(&Settings::default());
    let words = "the number of listeners is 0, expected 1 to 64: choose a value in between";
    assert_eq!(error.to_string(), words);
    let mut one = settings(&[Transport::Tcp]);
    one.workers = 0;
    assert!(matches!(bind(&one), BindError::Setting { .. }));
    let server = Running::tcp(&program);
    let mut taken = settings(&[Transport::Tcp]);
    taken.listeners[0].addr = server.address();
    let error = bind(&taken).to_string();
    assert!(error.contains(&server.address().to_string()), "{error}");
}

#[test]
fn a_reply_as_long_as_a_record_can_be_leaves_whole() {
    let program = Tester::new();
    let server = Running::tcp(&program);
    let mut client = server.connect();
    // XID, direction, the count of the data, and the end.
    let most = REPLY_MAX_BYTES - 16;
    client.send(&message(1, crate::program::GIVE_INLINE, |writer| {
        writer.u32(u32::try_from(most).unwrap()).unwrap();
    }));
    let (xid, reply) = client.reply();
    assert_eq!((xid, reply.len()), (1, 4 + most));
    assert!(reply[4..] == data(most));
}
