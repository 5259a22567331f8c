//! What a client gets wrong, how connections end, and how many calls there may be.

use std::sync::atomic::Ordering;
use std::time::Instant;

use capstan_nfs_client::rdma::{CallOf, How, RdmaClient};
use capstan_rpc_server::limits::{CREDITS_AT_FIRST, DATA_MIN_BYTES};
use capstan_rpc_server::{Settings, Transport};
use capstan_rpcrdma::chunks::Segment;
use capstan_rpcrdma::header::Fault;
use capstan_rpcrdma::limits::DATA_MAX_BYTES;

use super::{
    SOCKETS, fault, give, give_inline, header, inline_reply, null, rdma, start, take_reduced,
};
use crate::harness::{Client, Running, SERVER_THREAD, message, settings};
use crate::program::{NULL, PATIENCE, SILENT, Tester, WAIT, data};

cases!(
    credits_grow_with_their_use_and_bind,
    what_cannot_be_read_is_answered_with_an_error,
    a_reply_without_room_is_answered_with_an_error,
    a_client_that_goes_during_a_pull_takes_nothing_along,
    a_client_that_goes_with_calls_under_way_keeps_their_memory,
    data_that_does_not_come_ends_the_connection,
    data_that_comes_too_slowly_ends_the_connection,
    replies_that_are_not_taken_end_the_connection,
    a_key_that_is_none_ends_its_connection_alone,
    damaged_calls_harm_no_other_client,
    a_server_that_stops_answers_what_it_has_taken,
    what_is_no_call_gives_its_credit_back,
);

fn credits_grow_with_their_use_and_bind(how: How) {
    let (server, program) = start(rdma());
    let mut client = RdmaClient::connect(server.address(), how);
    let call = |xid| message(xid, NULL, |_| {});
    client.send_call(&CallOf::inline(0, &call(0)));
    let mut granted = inline_reply(&client.reply(), 0).1;
    assert_eq!(granted, CREDITS_AT_FIRST);
    let mut xid = 1;
    let start = Instant::now();
    while granted <= 2 * CREDITS_AT_FIRST {
        assert!(start.elapsed() < PATIENCE, "{granted} credits");
        let first = xid;
        for _ in 0..granted {
            client.send_call(&CallOf::inline(xid, &call(xid)));
            xid += 1;
        }
        for _ in first..xid {
            let reply = client.reply();
            granted = header(&reply).credits;
        }
    }
    // A client that asks for few gets few.
    let replies = granted;
    for _ in 0..replies {
        let call = call(xid);
        client.send_call(&CallOf {
            credits: 3,
            ..CallOf::inline(xid, &call)
        });
        granted = header(&client.reply()).credits;
    }
    assert_eq!(granted, 3);
    for xid in 0..3 {
        client.send_call(&CallOf::inline(xid, &message(xid, WAIT, |_| {})));
    }
    program.until_waiting(3);
    let mut other = RdmaClient::connect(server.address(), how);
    null(&mut other, 1);
    // One more than it may: it finds no receive, or is ended.
    client.send_call(&CallOf::inline(4, &call(4)));
    null(&mut other, 2);
    assert_eq!(program.ended(), 0);
    program.open_gate();
    for _ in 0..3 {
        client.reply();
    }
}

fn what_cannot_be_read_is_answered_with_an_error(how: How) {
    let (server, program) = start(rdma());
    let mut client = RdmaClient::connect(server.address(), how);
    let call = message(1, NULL, |_| {});
    let good = CallOf::inline(1, &call);
    let with_word = |at: usize, word: u32| {
        let mut bytes = good.bytes();
        bytes[at..at + 4].copy_from_slice(&word.to_be_bytes());
        bytes
    };
    client.send_raw(&with_word(4, 2));
    // ERR_VERS has the version of the call, and the credits where every version has them.
    let reply = client.reply();
    let words: Vec<u32> = (reply.chunks(4))
        .map(|word| u32::from_be_bytes(word.try_into().unwrap()))
        .collect();
    assert_eq!([&words[..2], &words[3..]].concat(), [1, 2, 4, 1, 1, 1]);
    assert!(words[2] >= 1);
    let nowhere = Segment {
        handle: 1,
        length_bytes: 4,
        offset: 0,
    };
    let misplaced = good.clone().read(400, &[nowhere]).bytes();
    let twice = good.clone().read(0, &[nowhere]).bytes();
    let too_long = Segment {
        length_bytes: DATA_MAX_BYTES + 1,
        ..nowhere
    };
    let too_long = good.clone().read(8, &[too_long]).bytes();
    let much = Segment {
        length_bytes: DATA_MAX_BYTES,
        ..nowhere
    };
    let too_much = (0..5)
        .fold(good.clone(), |call, _| call.write(vec![much]))
        .bytes();
    // No procedure, no credits, a list that is none, and chunks that make no message.
    for bytes in [
        with_word(12, 9),
        with_word(8, 0),
        with_word(16, 7),
        misplaced,
        twice,
        too_long,
        too_much,
        good.bytes()[..20].to_vec(),
    ] {
        client.send_raw(&bytes);
        assert_eq!(fault(&client.reply()), (1, Fault::Chunk));
    }
    null(&mut client, 2);
    let carried_out = program.carried_out.load(Ordering::Relaxed);
    assert_eq!(carried_out, 1);
    client.send_raw(&[0; 15]);
    client.until_over();
    program.until_ended(1);
}

fn a_reply_without_room_is_answered_with_an_error(how: How) {
    let (server, _program) = start(rdma());
    let mut client = RdmaClient::connect(server.address(), how);
    client.send_call(&CallOf::inline(1, &give_inline(1, 5000)));
    assert_eq!(fault(&client.reply()), (1, Fault::Chunk));
    let buffer = client.memory(&[0; 4096]);
    let chunk = client.segments(&buffer, &[4096]);
    let call = give_inline(2, 5000);
    client.send_call(&CallOf {
        reply: Some(chunk.clone()),
        ..CallOf::inline(2, &call)
    });
    assert_eq!(fault(&client.reply()), (2, Fault::Chunk));
    // Data that its chunk does not hold goes inline, where it finds no room either.
    client.send_call(&CallOf::inline(3, &give(3, &[5000])).write(chunk));
    assert_eq!(fault(&client.reply()), (3, Fault::Chunk));
    null(&mut client, 4);
}

fn a_client_that_goes_during_a_pull_takes_nothing_along(how: How) {
    let (server, program) = start(rdma());
    for _ in 0..4 {
        let mut client = RdmaClient::connect(server.address(), how);
        null(&mut client, 1);
        let buffer = client.memory(&data(1 << 20));
        let segments = client.segments(&buffer, &[131_072; 8]);
        let (position, call) = take_reduced(7, 1 << 20);
        client.send_call(&CallOf::inline(7, &call).read(position, &segments));
        // It does not look at its connection any more, so that no READ of all is answered.
        drop(client);
    }
    program.until_ended(4);
    let mut other = RdmaClient::connect(server.address(), how);
    null(&mut other, 1);
    assert_eq!(program.carried_out.load(Ordering::Relaxed), 5);
}

fn a_client_that_goes_with_calls_under_way_keeps_their_memory(how: How) {
    let (server, program) = start(rdma());
    let mut client = RdmaClient::connect(server.address(), how);
    null(&mut client, 1);
    let buffer = client.memory(&[0; 65_536]);
    for xid in 2..5 {
        let chunk = client.segments(&buffer, &[65_536]);
        let call = message(xid, WAIT, |_| {});
        client.send_call(&CallOf::inline(xid, &call).write(chunk));
    }
    program.until_waiting(3);
    drop(client);
    let mut other = RdmaClient::connect(server.address(), how);
    let start = Instant::now();
    let mut xid = 0;
    while start.elapsed().as_millis() < 100 {
        null(&mut other, xid);
        xid += 1;
    }
    assert_eq!(program.ended(), 0, "calls are under way");
    program.open_gate();
    program.until_ended(1);
    null(&mut other, xid);
}

fn data_that_does_not_come_ends_the_connection(how: How) {
    let (server, program) = start(Settings {
        stall_ms: 300,
        ..rdma()
    });
    let mut client = RdmaClient::connect(server.address(), how);
    null(&mut client, 1);
    let buffer = client.memory(&data(1 << 20));
    let segments = client.segments(&buffer, &[131_072; 8]);
    let (position, call) = take_reduced(7, 1 << 20);
    client.send_call(&CallOf::inline(7, &call).read(position, &segments));
    // The client sleeps: nothing of it answers.
    program.until_ended(1);
    client.until_over();
}

fn data_that_comes_too_slowly_ends_the_connection(how: How) {
    let (server, program) = start(Settings {
        stall_ms: 150,
        ..rdma()
    });
    let mut client = RdmaClient::connect(server.address(), How { reads: 1, ..how });
    null(&mut client, 1);
    let buffer = client.memory(&data(1 << 20));
    let segments = client.segments(&buffer, &[32_768; 32]);
    let (position, call) = take_reduced(7, 1 << 20);
    client.send_call(&CallOf::inline(7, &call).read(position, &segments));
    // One RDMA READ after the other, each well in time: 32 of them take 2.5 s.
    while !client.is_over() {
        assert_eq!(program.carried_out.load(Ordering::Relaxed), 1);
        std::thread::sleep(std::time::Duration::from_millis(80));
        client.turn();
    }
    program.until_ended(1);
}

fn replies_that_are_not_taken_end_the_connection(how: How) {
    let (server, program) = start(Settings {
        stall_ms: 300,
        ..rdma()
    });
    let mut client = RdmaClient::connect(server.address(), how);
    null(&mut client, 1);
    let buffer = client.memory(&vec![0; 1 << 20]);
    for xid in 0..CREDITS_AT_FIRST {
        let chunk = client.segments(&buffer, &[131_072; 8]);
        client.send_call(&CallOf::inline(xid, &give(xid, &[1 << 20])).write(chunk));
    }
    // The client sleeps, and more is pushed to it than socket or shared memory hold.
    program.until_ended(1);
    let mut other = RdmaClient::connect(server.address(), how);
    null(&mut other, 1);
}

fn a_key_that_is_none_ends_its_connection_alone(how: How) {
    let (server, program) = start(rdma());
    let mut other = RdmaClient::connect(server.address(), how);
    null(&mut other, 1);
    let nowhere = Segment {
        handle: 0xDEAD_BEEF,
        length_bytes: 4096,
        offset: 4096,
    };
    let mut reader = RdmaClient::connect(server.address(), how);
    let (position, call) = take_reduced(1, 4096);
    reader.send_call(&CallOf::inline(1, &call).read(position, &[nowhere]));
    reader.until_over();
    let mut writer = RdmaClient::connect(server.address(), how);
    writer.send_call(&CallOf::inline(1, &give(1, &[4096])).write(vec![nowhere]));
    writer.until("the end", RdmaClient::is_over);
    program.until_ended(2);
    null(&mut other, 2);
}

/// A number that looks random and is the same in each run (SplitMix64).
fn next_random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

fn damaged_calls_harm_no_other_client(how: How) {
    const CLIENTS: usize = 20;
    let (server, program) = start(Settings {
        data_bytes: DATA_MIN_BYTES,
        ..rdma()
    });
    let mut other = RdmaClient::connect(server.address(), how);
    let mut random = 7;
    for number in 0..CLIENTS {
        let mut client = RdmaClient::connect(server.address(), how);
        null(&mut client, 1);
        let buffer = client.memory(&data(65_536));
        let cuts = client.segments(&buffer, &[1000, 64_536]);
        let (position, take) = take_reduced(7, 65_536);
        let give = give(7, &[5000]);
        let no_message = CallOf {
            message: None,
            ..CallOf::inline(7, &[])
        };
        let calls = [
            CallOf::inline(7, &take).read(position, &cuts),
            CallOf::inline(7, &give).write(cuts.clone()),
            CallOf {
                reply: Some(cuts.clone()),
                ..CallOf::inline(7, &give)
            },
            no_message.read(0, &cuts),
        ];
        // One for each credit: what finds no receive would wait for one, or for 10 s.
        for call in calls.iter().cycle().take(calls.len() * 2) {
            let mut bytes = call.bytes();
            for _ in 0..1 + next_random(&mut random) % 3 {
                let at = usize::try_from(next_random(&mut random)).unwrap() % bytes.len();
                // As often a bit as a byte.
                let change = next_random(&mut random).to_le_bytes();
                bytes[at] ^= if change[1] < 128 {
                    1 << (change[0] % 8)
                } else {
                    change[0]
                };
            }
            if client.is_over() {
                break;
            }
            client.send_raw(&bytes);
            client.turn();
        }
        null(&mut other, u32::try_from(number).unwrap());
    }
    program.until_ended(CLIENTS);
    // Nothing is missing of the memory.
    for xid in 0..8 {
        let buffer = other.memory(&vec![0; 1 << 20]);
        let chunk = other.segments(&buffer, &[1 << 20]);
        other.send_call(&CallOf::inline(xid, &give(xid, &[1 << 20])).write(chunk));
        assert_eq!(header(&other.reply()).xid, xid);
    }
}

fn a_server_that_stops_answers_what_it_has_taken(how: How) {
    let (server, program) = start(rdma());
    let mut client = RdmaClient::connect(server.address(), how);
    null(&mut client, 1);
    let buffer = client.memory(&[0; 4096]);
    for xid in 2..5 {
        let chunk = client.segments(&buffer, &[4096]);
        client.send_call(&CallOf::inline(xid, &message(xid, WAIT, |_| {})).write(chunk));
    }
    program.until_waiting(3);
    server.handle.stop();
    program.open_gate();
    let mut answered: Vec<u32> = (0..3).map(|_| header(&client.reply()).xid).collect();
    answered.sort_unstable();
    assert_eq!(answered, [2, 3, 4]);
    client.until_over();
    drop(client);
    let start = Instant::now();
    server.join();
    assert!(start.elapsed() < PATIENCE / 2);
    assert_eq!(program.ended(), 1);
}

fn what_is_no_call_gives_its_credit_back(how: How) {
    let (server, _program) = start(rdma());
    let mut client = RdmaClient::connect(server.address(), how);
    // With the one credit that it begins with, again and again: an RDMA_DONE, an RDMA_ERROR, and a
    // message that is not answered.
    let words = |words: &[u32]| -> Vec<u8> { words.iter().flat_map(|w| w.to_be_bytes()).collect() };
    for _ in 0..20 {
        client.send_raw(&words(&[1, 1, 1, 3]));
        client.send_raw(&words(&[1, 1, 1, 4, 2]));
        client.send_call(&CallOf::inline(1, &message(1, SILENT, |_| {})));
        // It is passed over without a word; the next call finds a receive all the same.
        null(&mut client, 2);
    }
}

#[test]
fn one_port_has_both_where_that_is_wanted() {
    let (server, program) = start(settings(&[Transport::Both, Transport::Rdma]));
    let mut tcp = Client::new(server.addresses[0]);
    tcp.send(&message(1, NULL, |_| {}));
    assert_eq!(tcp.reply().0, 1);
    // The first fragment of several begins with another byte.
    let call = message(2, NULL, |_| {});
    let mut fragments = Client::new(server.addresses[0]);
    let bytes = [&[0, 0, 0, 4], &call[..4], &[0x80, 0, 0, 4], &call[4..]].concat();
    std::io::Write::write_all(&mut fragments.stream, &bytes).unwrap();
    assert_eq!(fragments.reply().0, 2);
    for address in &server.addresses {
        let mut client = RdmaClient::connect(*address, SOCKETS);
        null(&mut client, 3);
    }
    let mut refused = Client::new(server.addresses[1]);
    refused.send(&call);
    assert_eq!(refused.until_ended(), 0);
    drop((tcp, fragments, refused));
    program.until_ended(4);
}

#[test]
fn an_address_that_is_not_admitted_is_rejected() {
    let (server, program) = start(rdma());
    program.refuses.store(true, Ordering::Relaxed);
    let client = RdmaClient::connect(server.address(), SOCKETS);
    assert!(client.is_over());
    assert_eq!(program.ended(), 0);
}

/// The time that the processor has spent on the threads of a server of this name, in clock ticks of
/// 10 ms.
fn ticks_of(name: &str) -> u64 {
    let mut ticks = 0;
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let stat = std::fs::read_to_string(task.unwrap().path().join("stat"));
        // A thread may have ended meanwhile.
        let Ok(stat) = stat else { continue };
        let (before, after) = stat.rsplit_once(')').unwrap();
        if before.ends_with(&format!("({name}")) {
            // utime and stime (proc_pid_stat(5)).
            let times = after.split_ascii_whitespace().skip(11).take(2);
            ticks += times.map(|time| time.parse::<u64>().unwrap()).sum::<u64>();
        }
    }
    ticks
}

#[test]
fn a_server_without_calls_sleeps() {
    let server = Running::start_alone(settings(&[Transport::Both]), Tester::new());
    let mut tcp = Client::new(server.address());
    tcp.send(&message(1, NULL, |_| {}));
    assert_eq!(tcp.reply().0, 1);
    let mut rdma = [SOCKETS, super::SHARED_MEMORY].map(|how| {
        let mut client = RdmaClient::connect(server.address(), how);
        null(&mut client, 2);
        client
    });
    let before = ticks_of(SERVER_THREAD);
    assert!(before < 100, "{before}");
    std::thread::sleep(std::time::Duration::from_millis(600));
    let ticks = ticks_of(SERVER_THREAD) - before;
    assert!(ticks < 6, "{ticks} of 60 clock ticks without a call");
    for client in &mut rdma {
        null(client, 3);
    }
    drop(server);
}

#[test]
fn rdma_connections_of_one_address_leave_some_to_others() {
    let (server, program) = start(Settings {
        rdma_connections_max: 4,
        ..rdma()
    });
    let mut first = RdmaClient::connect(server.address(), SOCKETS);
    let mut second = RdmaClient::connect(server.address(), SOCKETS);
    null(&mut first, 1);
    null(&mut second, 1);
    assert!(RdmaClient::connect(server.address(), SOCKETS).is_over());
    drop(first);
    program.until_ended(1);
    let mut third = RdmaClient::connect(server.address(), SOCKETS);
    null(&mut third, 1);
}
