//! Peers that break the rules: each FES, both ways, and what becomes of buffers.

use capstan_memory::Pool;
use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::sqe::Sqe;
use capstan_nvme_proto::status::Status;
use capstan_nvme_proto::tcp::Role;
use capstan_nvme_proto::tcp::c2h::C2hData;
use capstan_nvme_proto::tcp::h2c::H2cData;
use capstan_nvme_proto::tcp::r2t::R2t;
use capstan_nvme_proto::tcp::setup::{Agreed, DataAlignment, Digests, IcResponse};
use capstan_nvme_proto::tcp::writer::PduWriter;
use capstan_transport::End;
use capstan_transport::tcp::controller::{ControllerQueue, IcSettings};
use capstan_transport::tcp::host::{self, HostQueue, Payload};
use capstan_transport::tcp::limits::{SETUP_US, TERM_US};
use capstan_transport::{EndReason, Event, Tag};
use zerocopy::IntoBytes;

use super::{
    connected, controller_events, host_events, pool, request, sent_by_controller, sent_by_host,
};

const SETTINGS: IcSettings = IcSettings {
    digests: Digests::all(),
    cpda: DataAlignment::DWORD,
    maxh2cdata_bytes: 8192,
    r2t_max_bytes: u32::MAX,
};

fn agreed(digests: Digests) -> Agreed {
    let response = IcResponse {
        cpda: SETTINGS.cpda,
        digests,
        maxh2cdata_bytes: SETTINGS.maxh2cdata_bytes,
    };
    Agreed::new(&request(digests, 0, 1), &response)
}

fn ends(digests: Digests, pool: &Pool) -> (HostQueue, ControllerQueue, PduWriter, PduWriter) {
    let (host, controller) = connected(SETTINGS, request(digests, 0, 1), pool);
    let agreed = agreed(digests);
    let by_host = PduWriter::new(Role::Host, &agreed);
    let by_controller = PduWriter::new(Role::Controller, &agreed);
    (host, controller, by_host, by_controller)
}

/// FES and FEI of the TermReq at the end of `sent`, of type `pdu_type`.
fn term_req(sent: &[u8], pdu_type: u8) -> (u16, u32) {
    assert_eq!(sent.first(), Some(&pdu_type), "no TermReq: {sent:?}");
    let fei = [sent[10], sent[11], sent[12], sent[13]];
    (
        u16::from_le_bytes([sent[8], sent[9]]),
        u32::from_le_bytes(fei),
    )
}

/// What a controller with an open pull of 16 KiB of the command 7 (TTAG 0) answers to `bytes`.
fn to_controller(digests: Digests, bytes: &[&[u8]]) -> (u16, u32) {
    let pool = pool();
    let (_, mut controller, by_host, _) = ends(digests, &pool);
    controller.handle_bytes(by_host.capsule_cmd(&Sqe::new(1, 7, 1), 0).as_bytes(), 0);
    let sink = pool.take(16_384).expect("memory");
    controller.pull(Tag(0), 7, 16_384, sink).expect("open");
    sent_by_controller(&mut controller, usize::MAX);
    controller_events(&mut controller);
    for bytes in bytes {
        controller.handle_bytes(bytes, 0);
    }
    // The sink is back, as nothing lands any more; and no event follows the end but Quiesced.
    match &controller_events(&mut controller)[..] {
        [
            Event::Ended(EndReason::Violation(text)),
            Event::Returned(Tag(0), _),
        ] => {
            assert!(text.contains("expected") && text.contains("FES"), "{text}");
        }
        events => panic!("{events:?}"),
    }
    assert_eq!(pool.free_bytes(), 8 << 20);
    let sent = sent_by_controller(&mut controller, usize::MAX);
    // The host is to read it: the connection stays until it closes, or for 30 seconds.
    assert!(!controller.wants_close());
    assert_eq!(controller.poll_timeout(), Some(TERM_US));
    controller.handle_bytes(bytes[0], 1);
    assert_eq!(
        controller.poll_event().map(|event| format!("{event:?}")),
        None
    );
    controller.handle_timeout(TERM_US);
    assert!(controller.wants_close());
    controller.closed();
    assert!(matches!(
        controller_events(&mut controller)[..],
        [Event::Quiesced]
    ));
    term_req(&sent, 0x03)
}

const fn data(cid: u16, ttag: u16, offset_bytes: u32, length_bytes: u32, last: bool) -> H2cData {
    H2cData {
        cid,
        ttag,
        offset_bytes,
        length_bytes,
        last,
    }
}

#[test]
fn each_fault_of_a_host_has_its_fes() {
    let none = Digests::empty();
    let writer = PduWriter::new(Role::Host, &agreed(none));
    let send = |data| to_controller(none, &[writer.h2c_data(&data).as_bytes()]);
    // Invalid PDU Header Field: TTAG and CCCID that are not outstanding.
    assert_eq!(send(data(7, 1, 0, 4096, false)), (0x01, 10));
    assert_eq!(send(data(8, 0, 0, 4096, false)), (0x01, 8));
    // PDU Sequence Error: data in another order, LAST_PDU too early, a second ICReq.
    assert_eq!(send(data(7, 0, 4096, 4096, false)), (0x02, 0));
    assert_eq!(send(data(7, 0, 0, 4096, true)), (0x02, 0));
    let icreq = request(none, 0, 1).encode();
    assert_eq!(to_controller(none, &[icreq.as_bytes()]), (0x02, 0));
    // Header Digest Error, with the digest that came.
    let writer = PduWriter::new(Role::Host, &agreed(Digests::all()));
    let mut command = writer
        .capsule_cmd(&Sqe::new(0, 1, 1), 0)
        .as_bytes()
        .to_vec();
    command[72..76].copy_from_slice(&[1, 2, 3, 4]);
    assert_eq!(
        to_controller(Digests::all(), &[&command]),
        (0x03, 0x0403_0201)
    );
    // Data Transfer Out of Range and Data Transfer Limit Exceeded.
    assert_eq!(send(data(7, 0, 16_384, 4096, false)), (0x04, 0));
    assert_eq!(send(data(7, 0, 0, 8196, false)), (0x05, 0));
}

#[test]
fn data_that_nothing_asked_for_is_a_fault() {
    let pool = pool();
    let (_, mut controller, by_host, _) = ends(Digests::empty(), &pool);
    let data = by_host.h2c_data(&data(0, 0, 0, 512, true));
    controller.handle_bytes(data.as_bytes(), 0);
    assert_eq!(
        term_req(&sent_by_controller(&mut controller, 999), 0x03),
        (0x01, 10)
    );
}

#[test]
fn an_ic_req_of_another_version_is_an_unsupported_parameter() {
    let mut controller = ControllerQueue::new(SETTINGS, 0);
    let mut icreq = request(Digests::empty(), 0, 1).encode();
    icreq.pfv = 1.into();
    controller.handle_bytes(icreq.as_bytes(), 0);
    assert_eq!(
        term_req(&sent_by_controller(&mut controller, 999), 0x03),
        (0x06, 8)
    );
}

#[test]
fn no_more_commands_are_taken_than_the_queue_has_entries() {
    // One, before Connect is answered.
    let mut controller = ControllerQueue::new(SETTINGS, 0);
    controller.handle_bytes(request(Digests::empty(), 0, 1).encode().as_bytes(), 0);
    sent_by_controller(&mut controller, usize::MAX);
    let command = PduWriter::new(Role::Host, &agreed(Digests::empty()));
    let command = command.capsule_cmd(&Sqe::new(0, 1, 1), 0);
    controller.handle_bytes(command.as_bytes(), 0);
    controller.handle_bytes(command.as_bytes(), 0);
    let events = controller_events(&mut controller);
    assert!(
        matches!(events[..], [Event::Capsule(_), Event::Ended(_)]),
        "{events:?}"
    );
    assert_eq!(
        term_req(&sent_by_controller(&mut controller, 999), 0x03),
        (0x02, 0)
    );
}

#[test]
fn a_host_that_does_not_read_its_responses_has_no_room_for_more_commands() {
    let pool = pool();
    let (_, mut controller, by_host, _) = ends(Digests::empty(), &pool);
    let command = by_host.capsule_cmd(&Sqe::new(0, 1, 1), 0);
    let respond = |controller: &mut ControllerQueue| {
        let events = controller_events(controller);
        assert!(matches!(events[..], [Event::Capsule(_)]), "{events:?}");
        controller.respond(&Cqe::new(1, 0xFFFF, Status::SUCCESS, 0));
    };
    for _ in 0..64 {
        controller.handle_bytes(command.as_bytes(), 0);
        respond(&mut controller);
    }
    // One response has left, and the first byte of the next.
    assert_eq!(sent_by_controller(&mut controller, 25).len(), 25);
    controller.handle_bytes(command.as_bytes(), 0);
    respond(&mut controller);
    controller.handle_bytes(command.as_bytes(), 0);
    let events = controller_events(&mut controller);
    assert!(matches!(events[..], [Event::Ended(_)]), "{events:?}");
    let sent = sent_by_controller(&mut controller, usize::MAX);
    assert_eq!(term_req(&sent[23 + 63 * 24..], 0x03), (0x02, 0));
}

/// What a host with a read (command 1) and a write (command 2) of 4 KiB outstanding answers.
fn to_host(digests: Digests, bytes: &[&[u8]]) -> (u16, u32) {
    let pool = pool();
    let (mut host, ..) = ends(digests, &pool);
    let memory = || pool.take(4096).expect("memory");
    let read = Payload::FromController(memory(), 4096);
    host.send(Sqe::new(2, 1, 1), read).expect("room");
    let write = Payload::ToController(memory(), 4096);
    host.send(Sqe::new(1, 2, 1), write).expect("room");
    sent_by_host(&mut host, usize::MAX);
    for bytes in bytes {
        host.handle_bytes(bytes, 0);
    }
    let events = host_events(&mut host);
    assert!(
        matches!(
            events[..],
            [host::HostQueueEvent::Ended(EndReason::Violation(_))]
        ),
        "{events:?}"
    );
    let sent = sent_by_host(&mut host, usize::MAX);
    // Memory that was offered comes back only when nothing can land any more.
    host.closed();
    let events = host_events(&mut host);
    let [
        host::HostQueueEvent::Returned(1, _),
        host::HostQueueEvent::Returned(2, _),
        host::HostQueueEvent::Quiesced,
    ] = &events[..]
    else {
        panic!("{events:?}");
    };
    drop(events);
    assert_eq!(pool.free_bytes(), 8 << 20);
    term_req(&sent, 0x02)
}

#[test]
fn each_fault_of_a_controller_has_its_fes() {
    let none = Digests::empty();
    let writer = PduWriter::new(Role::Controller, &agreed(none));
    let c2h = |cid, offset_bytes, length_bytes, last| {
        let success = false;
        let data = C2hData {
            cid,
            offset_bytes,
            length_bytes,
            last,
            success,
        };
        to_host(none, &[writer.c2h_data(&data).as_bytes()])
    };
    let r2t = |cid, offset_bytes, length_bytes| R2t {
        cid,
        ttag: 9,
        offset_bytes,
        length_bytes,
    };
    let ask = |r2t| to_host(none, &[writer.r2t(&r2t).as_bytes()]);
    // Invalid PDU Header Field: a command that is not outstanding.
    assert_eq!(c2h(5, 0, 4096, true), (0x01, 8));
    assert_eq!(ask(r2t(5, 0, 4096)), (0x01, 8));
    let cqe = Cqe::new(5, 0, Status::SUCCESS, 0);
    assert_eq!(
        to_host(none, &[writer.capsule_resp(&cqe).as_bytes()]),
        (0x01, 20)
    );
    // PDU Sequence Error: another order, a missing LAST_PDU.
    assert_eq!(c2h(1, 512, 512, false), (0x02, 0));
    assert_eq!(c2h(1, 0, 4096, false), (0x02, 0));
    assert_eq!(ask(r2t(2, 512, 512)), (0x02, 0));
    // Header Digest Error.
    let digests = PduWriter::new(Role::Controller, &agreed(Digests::all()));
    let mut bytes = digests.r2t(&r2t(2, 0, 4096)).as_bytes().to_vec();
    bytes[24..28].copy_from_slice(&[4, 3, 2, 1]);
    assert_eq!(to_host(Digests::all(), &[&bytes]), (0x03, 0x0102_0304));
    // Data Transfer Out of Range: more than was asked for, or of a command without such data.
    assert_eq!(c2h(1, 0, 8192, true), (0x04, 0));
    assert_eq!(c2h(2, 0, 512, false), (0x04, 0));
    assert_eq!(ask(r2t(2, 0, 8192)), (0x04, 0));
    assert_eq!(ask(r2t(1, 0, 512)), (0x04, 0));
    // R2T Limit Exceeded: a second R2T where MAXR2T is 1.
    let two = [r2t(2, 0, 2048), r2t(2, 2048, 2048)].map(|r2t| writer.r2t(&r2t));
    assert_eq!(
        to_host(none, &[two[0].as_bytes(), two[1].as_bytes()]),
        (0x05, 0)
    );
}

#[test]
fn an_ic_resp_with_a_digest_that_was_not_asked_for_is_an_unsupported_parameter() {
    let mut host = HostQueue::new(request(Digests::empty(), 0, 1), 8, false, 0);
    sent_by_host(&mut host, usize::MAX);
    let response = IcResponse {
        cpda: DataAlignment::DWORD,
        digests: Digests::DATA,
        maxh2cdata_bytes: 4096,
    };
    host.handle_bytes(response.encode().as_bytes(), 0);
    assert_eq!(term_req(&sent_by_host(&mut host, 999), 0x02), (0x06, 11));
}

#[test]
fn success_is_a_fault_where_flow_control_is_in_use() {
    let pool = pool();
    let mut host = HostQueue::new(request(Digests::empty(), 0, 1), 8, true, 0);
    sent_by_host(&mut host, usize::MAX);
    let response = IcResponse {
        cpda: DataAlignment::DWORD,
        digests: Digests::empty(),
        maxh2cdata_bytes: 4096,
    };
    host.handle_bytes(response.encode().as_bytes(), 0);
    let memory = pool.take(512).expect("memory");
    host.send(Sqe::new(2, 1, 1), Payload::FromController(memory, 512))
        .expect("room");
    sent_by_host(&mut host, usize::MAX);
    let data = C2hData {
        cid: 1,
        offset_bytes: 0,
        length_bytes: 512,
        last: true,
        success: true,
    };
    let writer = PduWriter::new(Role::Controller, &agreed(Digests::empty()));
    host.handle_bytes(writer.c2h_data(&data).as_bytes(), 0);
    assert_eq!(term_req(&sent_by_host(&mut host, 999), 0x02), (0x01, 1));
}

#[test]
fn a_term_req_ends_the_queue_without_an_answer() {
    let pool = pool();
    let (mut host, mut controller, by_host, _) = ends(Digests::empty(), &pool);
    let bad = by_host.h2c_data(&data(0, 0, 0, 512, true));
    controller.handle_bytes(bad.as_bytes(), 0);
    host.handle_bytes(&sent_by_controller(&mut controller, usize::MAX), 0);
    match &host_events(&mut host)[..] {
        [host::HostQueueEvent::Ended(EndReason::Lost(text))] => {
            assert!(
                text.contains("FES 01h") && text.contains("FEI Ah"),
                "{text}"
            );
        }
        events => panic!("{events:?}"),
    }
    assert!(host.wants_close() && sent_by_host(&mut host, usize::MAX).is_empty());
}

#[test]
fn a_connection_that_is_not_set_up_ends_at_its_deadline() {
    let mut controller = ControllerQueue::new(SETTINGS, 5);
    assert_eq!(controller.poll_timeout(), Some(SETUP_US + 5));
    // ICReq alone is not enough: Connect has to follow.
    controller.handle_bytes(request(Digests::empty(), 0, 1).encode().as_bytes(), 6);
    controller.handle_timeout(SETUP_US + 4);
    assert!(!controller.wants_close());
    controller.handle_timeout(SETUP_US + 5);
    assert!(controller.wants_close());
    let events = controller_events(&mut controller);
    assert!(
        matches!(events[..], [Event::Ended(EndReason::Lost(_))]),
        "a host that does not go on has broken no rule: {events:?}"
    );
    let mut host = HostQueue::new(request(Digests::empty(), 0, 1), 8, false, 0);
    host.handle_timeout(SETUP_US);
    assert!(host.wants_close());
}

#[test]
fn a_queue_that_is_drained_sends_what_it_has_and_closes() {
    let pool = pool();
    let (_, mut controller, by_host, _) = ends(Digests::empty(), &pool);
    controller.handle_bytes(by_host.capsule_cmd(&Sqe::new(0, 1, 1), 0).as_bytes(), 0);
    controller.respond(&Cqe::new(1, 0xFFFF, Status::SUCCESS, 0));
    controller.end(End::Drained, 0);
    assert!(!controller.wants_close());
    assert_eq!(sent_by_controller(&mut controller, usize::MAX).len(), 24);
    assert!(controller.wants_close());
}

#[test]
fn a_queue_that_ends_at_once_sends_nothing_more() {
    let pool = pool();
    // One that is open, one that drains, and one that has sent a TermReq.
    for before in 0..3 {
        let (_, mut controller, by_host, _) = ends(Digests::empty(), &pool);
        controller.handle_bytes(by_host.capsule_cmd(&Sqe::new(0, 1, 1), 0).as_bytes(), 0);
        controller_events(&mut controller);
        controller.respond(&Cqe::new(1, 0xFFFF, Status::SUCCESS, 0));
        match before {
            0 => {}
            1 => controller.end(End::Drained, 0),
            _ => {
                let unasked = by_host.h2c_data(&data(1, 0, 0, 512, true));
                controller.handle_bytes(unasked.as_bytes(), 0);
            }
        }
        assert!(controller.has_unsent() && !controller.wants_close());
        controller.end(End::Now, 0);
        assert!(controller.wants_close(), "{before}");
        assert_eq!(sent_by_controller(&mut controller, usize::MAX), []);
        controller.closed();
        let events = controller_events(&mut controller);
        assert!(
            matches!(events[..], [Event::Ended(_), Event::Quiesced]),
            "{before}: {events:?}"
        );
    }
}

#[test]
fn the_time_of_an_end_in_order_begins_with_it() {
    let pool = pool();
    let (_, mut controller, by_host, _) = ends(Digests::empty(), &pool);
    controller.handle_bytes(by_host.capsule_cmd(&Sqe::new(0, 1, 1), 0).as_bytes(), 0);
    controller.respond(&Cqe::new(1, 0xFFFF, Status::SUCCESS, 0));
    // Nothing has come for long, which tells the queue of no time.
    let now_us = 10 * TERM_US;
    controller.end(End::Drained, now_us);
    controller.handle_timeout(now_us + TERM_US - 1);
    assert!(!controller.wants_close());
    controller.handle_timeout(now_us + TERM_US);
    assert!(controller.wants_close());
}

#[test]
fn what_is_moved_after_the_end_comes_back() {
    let pool = pool();
    let (_, mut controller, ..) = ends(Digests::empty(), &pool);
    controller.end(End::Now, 0);
    let sink = pool.take(4096).expect("memory");
    controller.pull(Tag(1), 1, 4096, sink).expect("taken");
    let source = pool.take(4096).expect("memory");
    let source = capstan_transport::Source::Buffer(Tag(2), source, 0..4096);
    let pushed = controller.push(2, source);
    assert!(pushed.is_ok());
    let events = controller_events(&mut controller);
    let [
        Event::Ended(_),
        Event::Returned(Tag(1), _),
        Event::Returned(Tag(2), _),
    ] = &events[..]
    else {
        panic!("{events:?}");
    };
}
