//! Controllers that break the rules, and what is held against them.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::status::Status as CommandStatus;
use capstan_nvme_proto::tcp::setup::{DataAlignment, Digests, IcResponse};
use capstan_reactor::Clock;
use zerocopy::IntoBytes as _;

use super::{LBA_BYTES, Op, Queue, World, pattern};
use crate::host::{AssociationStatus, Event as HostEvent};

/// Why the host does not connect to what answers its ICReq with `bytes`, and its side of that.
fn answered_with(bytes: &[u8]) -> (String, TcpStream) {
    after(0, bytes)
}

/// The same, so much later.
fn after(later_us: u64, bytes: &[u8]) -> (String, TcpStream) {
    let mut world = World::new(Digests::empty());
    let (listener, engine) = (&world.peer.listener, &mut world.engine);
    listener.set_nonblocking(false).unwrap();
    engine.turn(Clock.now_us());
    let (mut stream, _) = listener.accept().unwrap();
    stream.write_all(bytes).unwrap();
    // Its ICReq has left.
    stream.set_nonblocking(true).unwrap();
    while stream.peek(&mut [0]).is_err() {
        engine.turn(Clock.now_us());
    }
    stream.set_nonblocking(false).unwrap();
    let end_us = Clock.now_us() + later_us + 10_000_000;
    let cause = loop {
        engine.turn(Clock.now_us() + later_us);
        match engine.status(0) {
            AssociationStatus::Failed(cause) => break cause,
            AssociationStatus::Waiting { cause, .. } => break cause,
            _ => assert!(Clock.now_us() + later_us < end_us),
        }
    };
    (cause.to_string(), stream)
}

#[test]
fn a_controller_that_sends_rubbish_is_told_and_the_loss_says_what() {
    // An ICResp is expected, and a response capsule comes: its type is 05h.
    let (told, mut stream) = answered_with(&[5, 0, 24, 0, 24, 0, 0, 0]);
    assert!(told.starts_with("queue 0: no ICResp came: "), "{told}");
    // It has spoken, and not as what speaks another transport.
    assert!(!told.contains("Transport::Rdma"), "{told}");
    let mut sent = Vec::new();
    stream
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    stream.read_to_end(&mut sent).unwrap();
    // Behind ICReq: an H2CTermReq, 02h, with FES 02h (PDU Sequence Error).
    assert_eq!((sent[128], &sent[136..138]), (0x02, &[0x02, 0][..]));
}

/// What has come is told, also where it is less than tells a PDU, or less than an ICResp.
#[test]
fn what_has_come_of_an_ic_resp_is_not_nothing() {
    for (bytes, words) in [
        (
            &b"+OK\r\n"[..],
            "does not speak NVMe/TCP: it begins with \"+OK\\r\\n\"",
        ),
        (&[1, 0, 128], ": 3 bytes of it have come in "),
        (
            &[1, 0, 128, 0, 128, 0, 0, 0, 0, 0],
            ": 10 bytes of it have come in ",
        ),
    ] {
        let (told, _) = after(4_000_000, bytes);
        assert!(told.contains(words), "{told}");
        assert!(!told.contains("nothing has come"), "{told}");
    }
}

#[test]
fn an_ic_resp_that_breaks_the_rules_has_come() {
    let good = IcResponse {
        cpda: DataAlignment::DWORD,
        digests: Digests::empty(),
        maxh2cdata_bytes: 4096,
    };
    let good = good.encode();
    for (at, byte, field) in [
        (4, 0, "PLEN"),
        (8, 1, "PFV"),
        (10, 0xFF, "CPDA"),
        (11, 3, "DGST"),
        (13, 0, "MAXH2CDATA"),
    ] {
        let mut bytes = good.as_bytes().to_vec();
        bytes[at] = byte;
        let (told, _) = answered_with(&bytes);
        let begin = format!("queue 0: {field} of ICResp is ");
        assert!(told.starts_with(&begin), "{told}");
        assert!(told.ends_with("; the target does not conform"), "{told}");
    }
}

/// On a queue at work: what breaks the rules is named on the wire before the connection ends.
#[test]
fn a_controller_that_breaks_the_rules_is_told_before_the_connection_ends() {
    // FES 01h (Invalid PDU Header Field), FEI the offsets of PDU-Type and of CCCID.
    let data_of_no_command = [7, 4, 24, 24, 28, 0, 0, 0, 0x77, 0x77, 0, 0, 0, 0, 0, 0, 4];
    for (bytes, expected) in [
        (&b"HTTP/1.1 400 Bad Request"[..], "FEI 0h"),
        (
            &[data_of_no_command.as_slice(), &[0; 11]].concat(),
            "FEI 8h",
        ),
    ] {
        let mut world = World::live(Digests::empty());
        world.peer.silent = true;
        // Data that is on its way to the controller is no obstacle.
        let buffer = world.buffer(&pattern(100));
        let write = Op::Write {
            slba: 0,
            nlb: 100,
            fua: false,
        };
        world.submit(write, Some(buffer));
        world.until(|world| !world.peer.commands.is_empty());
        let mut queues = world.peer.queues.iter();
        let socket = queues.find(|queue| queue.qid == 1).unwrap().link.socket();
        nix::unistd::write(socket.unwrap(), bytes).unwrap();
        world.until(|world| !world.peer.ends.is_empty());
        let said = &world.peer.ends;
        let accuses = |end: &&String| end.contains("TermReq: FES 01h") && end.ends_with(expected);
        assert_eq!(said.iter().filter(accuses).count(), 1, "{said:?}");
    }
}

/// A response that comes with the end of another queue answers no command any more, and its
/// controller is not at fault.
#[test]
fn responses_that_come_with_an_end_are_not_held_against_the_controller() {
    let mut world = World::live(Digests::empty());
    world.peer.silent = true;
    let read = |slba| Op::Read { slba, nlb: 1 };
    for slba in 0..2 {
        let buffer = world.buffer(&[0xEE; LBA_BYTES]);
        world.submit(read(slba), Some(buffer));
    }
    world.until(|world| world.peer.commands.len() == 2);
    let at = |world: &World, qid| {
        let mut queues = world.peer.queues.iter();
        queues.position(|queue| queue.qid == qid).unwrap()
    };
    // On the second queue a response follows, in the same turn of the host.
    let second = at(&world, 2);
    let Queue { queue, link, .. } = &mut world.peer.queues[second];
    let sqhd = Cqe::SQHD_FLOW_CONTROL_DISABLED;
    for (qid, cid) in std::mem::take(&mut world.peer.unanswered) {
        if qid == 2 {
            queue.respond(&Cqe::new(cid, sqhd, CommandStatus::INVALID_FIELD, 0));
        }
    }
    link.send(queue);
    let first = at(&world, 1);
    world.peer.queues.swap_remove(first);
    world.engine.turn(Clock.now_us());
    world.until(|world| world.events.iter().any(|event| event.starts_with("lost")));
    assert_eq!(world.engine.host().counters().bad_cid, 0);
}

/// What is told of an attempt is of the address that was tried, not of the one whose turn is next.
#[test]
fn an_attempt_that_fails_is_told_of_the_address_that_was_tried() {
    let closed = |listener: TcpListener| listener.local_addr().unwrap();
    let mut world = World::live(Digests::empty());
    let other = closed(TcpListener::bind("127.0.0.2:0").unwrap());
    let first = world.peer.address();
    world.engine.set_other_addresses([other].into_iter());
    world.peer.listener = TcpListener::bind("127.0.0.3:0").unwrap();
    world.peer.queues.clear();
    let end_us = Clock.now_us() + 10_000_000;
    let mut tried = Vec::new();
    while tried.len() < 4 {
        let now_us = Clock.now_us();
        assert!(now_us < end_us, "{tried:?}");
        world.engine.turn(now_us);
        while let Some(event) = world.engine.poll_event() {
            if let HostEvent::AttemptFailed { cause, .. } = event {
                let told = cause.to_string();
                let at = world.engine.last_tried();
                assert!(told.contains(&format!("connecting to {at}: ")), "{told}");
                tried.push(at);
            }
        }
    }
    assert_eq!(tried, [first, other, first, other]);
}
