//! SEQUENCE and kept replies.

use super::*;

#[test]
fn a_request_is_executed_once() {
    // pynfs SEQ9a to SEQ9f, SEQ13; RFC 8881, section 2.10.6.1.
    let mut server = Server::new();
    let host = server.host(1);
    let request = server.begin(&host, 3, 1);
    assert_eq!(request.client, host.client);
    assert_eq!(
        request.cached_bytes_max,
        Some(limits::CACHED_RESPONSE_BYTES_MAX)
    );
    let same = Server::request(&host, 3, 1);
    assert_eq!(
        server.sequence(&host, &same),
        Err(Status::DELAY),
        "it is under way"
    );
    let next = Server::request(&host, 3, 2);
    assert_eq!(server.sequence(&host, &next), Err(Status::SEQ_MISORDERED));
    server.finish(&request, b"the reply");
    let replay = Sequenced::Replay(b"the reply".as_slice().into());
    assert_eq!(server.sequence(&host, &same), Ok(replay.clone()));
    assert_eq!(server.sequence(&host, &same), Ok(replay));
    for wrong in [0, 3, u32::MAX] {
        let wrong = Server::request(&host, 3, wrong);
        assert_eq!(server.sequence(&host, &wrong), Err(Status::SEQ_MISORDERED));
    }
    let request = server.begin(&host, 3, 2);
    server.finish(&request, b"the next");
    assert_eq!(server.sequence(&host, &same), Err(Status::SEQ_MISORDERED));
}

#[test]
fn a_slot_that_was_not_used_has_nothing_to_repeat() {
    let mut server = Server::new();
    let host = server.host(1);
    for wrong in [0, 2] {
        let wrong = Server::request(&host, 0, wrong);
        assert_eq!(server.sequence(&host, &wrong), Err(Status::SEQ_MISORDERED));
    }
}

#[test]
fn sequence_numbers_wrap_through_zero() {
    // RFC 8881, section 2.10.6.1: unlike a stateid's seqid.
    let mut server = Server::new();
    let host = server.host(1);
    let request = server.begin(&host, 0, 1);
    server.finish(&request, b"");
    let slot = &mut server.state.sessions.get_mut(&host.session).unwrap().slots[0];
    slot.set_sequence(u32::MAX);
    let request = server.begin(&host, 0, 0);
    server.finish(&request, b"");
    server.begin(&host, 0, 1);
}

#[test]
fn another_request_is_not_given_the_reply() {
    // RFC 8881, section 2.10.6.1.3.1.
    let mut server = Server::new();
    let host = server.host(1);
    for (slot, cache_this) in [(0, true), (1, false)] {
        let request = Sequence {
            cachethis: cache_this,
            ..Server::request(&host, slot, 1)
        };
        let Ok(Sequenced::New(in_session, _)) = server.sequence(&host, &request) else {
            panic!();
        };
        server.finish(&in_session, b"secret");
        let other = RequestShape {
            fingerprint: 2,
            ..SHAPE
        };
        let result = server.sequence_of(&host, &request, &other);
        assert_eq!(result, Err(Status::SEQ_FALSE_RETRY));
    }
}

#[test]
fn a_reply_that_is_not_kept_is_not_executed_again() {
    // pynfs SEQ9f, SEQ10b; RFC 8881, sections 2.10.6.1.1 and 2.10.6.1.3.
    let mut server = Server::new();
    let host = server.host(1);
    let request = Sequence {
        cachethis: false,
        ..Server::request(&host, 0, 1)
    };
    let Ok(Sequenced::New(in_session, result)) = server.sequence(&host, &request) else {
        panic!();
    };
    assert_eq!(in_session.cached_bytes_max, None);
    server.finish(&in_session, b"reply");
    // That of SEQUENCE itself is known, which is all of a request without another operation.
    assert_eq!(
        server.sequence(&host, &request),
        Ok(Sequenced::Uncached(result))
    );
    // The same of one that is too long to be kept.
    let in_session = server.begin(&host, 1, 1);
    server.finish(
        &in_session,
        &[0; limits::CACHED_RESPONSE_BYTES_MAX as usize + 1],
    );
    let again = server.sequence(&host, &Server::request(&host, 1, 1));
    assert!(
        matches!(again, Ok(Sequenced::Uncached(result)) if result.slotid == 1),
        "{again:?}"
    );
    assert!(matches!(
        server.begin(&host, 1, 2),
        InSession { slot: 1, .. }
    ));
}

#[test]
fn slots_and_requests_are_bounded() {
    // pynfs SEQ5 to SEQ8, SEQ12; RFC 8881, section 18.46.3.
    let mut server = Server::new();
    let host = server.host(1);
    let request = Server::request(&host, 63, 1);
    let mut refused = |request: Sequence| server.sequence(&host, &request).unwrap_err();
    assert_eq!(refused(Server::request(&host, 64, 1)), Status::BADSLOT);
    assert_eq!(
        refused(Sequence {
            highest_slotid: 62,
            ..request
        }),
        Status::BAD_HIGH_SLOT
    );
    let none = SessionId([9; 16]);
    assert_eq!(
        refused(Sequence {
            sessionid: none,
            ..request
        }),
        Status::BADSESSION
    );
    let mut refused = |shape| server.sequence_of(&host, &request, &shape).unwrap_err();
    assert_eq!(
        refused(RequestShape {
            operations: 9,
            ..SHAPE
        }),
        Status::TOO_MANY_OPS
    );
    assert_eq!(
        refused(RequestShape {
            bytes: 1_049_621,
            ..SHAPE
        }),
        Status::REQ_TOO_BIG
    );
    let reply = |reply_bytes| RequestShape {
        reply_bytes,
        ..SHAPE
    };
    assert_eq!(refused(reply(1_049_481)), Status::REP_TOO_BIG);
    let cached_max = limits::CACHED_RESPONSE_BYTES_MAX;
    assert_eq!(refused(reply(cached_max + 1)), Status::REP_TOO_BIG_TO_CACHE);
    let not_kept = Sequence {
        cachethis: false,
        ..Server::request(&host, 62, 1)
    };
    let big = server.sequence_of(&host, &not_kept, &reply(cached_max + 1));
    assert!(matches!(big, Ok(Sequenced::New(..))), "{big:?}");
    let Ok(Sequenced::New(_, reply)) = server.sequence(&host, &request) else {
        panic!();
    };
    let expected = SequenceOk {
        sessionid: host.session,
        sequenceid: 1,
        slotid: 63,
        highest_slotid: 63,
        target_highest_slotid: 63,
        status_flags: SequenceStatus::empty(),
    };
    assert_eq!(reply, expected);
}

/// A server whose kept replies have room for one whole one beside that of the first slot.
fn tight() -> (Server, Host) {
    // Another address would have to have its share as well.
    let whole = u64::from(limits::CACHED_RESPONSE_BYTES_MAX);
    let mut server = Server::with(Config::new().with_reply_bytes_max(whole * 3));
    let host = server.host(1);
    (server, host)
}

#[test]
fn without_room_for_replies_fewer_slots_are_offered() {
    let (mut server, host) = tight();
    let first = server.begin(&host, 1, 1);
    let refused = Server::request(&host, 2, 1);
    for _ in 0..10 {
        assert_eq!(server.sequence(&host, &refused), Err(Status::DELAY));
    }
    // The first slot has its room for good, and tells the client.
    let Ok(Sequenced::New(request, reply)) = server.sequence(&host, &Server::request(&host, 0, 1))
    else {
        panic!();
    };
    assert_eq!((reply.highest_slotid, reply.target_highest_slotid), (63, 0));
    server.finish(&request, &[1; 2048]);
    // A client that has not seen it, or uses higher slots, keeps them.
    server.finish(&first, &[2; 2048]);
    let replay = server.sequence(&host, &Server::request(&host, 1, 1));
    assert_eq!(replay, Ok(Sequenced::Replay([2; 2048].as_slice().into())));
    let uses = Sequence {
        highest_slotid: 1,
        ..Server::request(&host, 0, 2)
    };
    let Ok(Sequenced::New(request, reply)) = server.sequence(&host, &uses) else {
        panic!();
    };
    assert_eq!(reply.highest_slotid, 63);
    server.finish(&request, b"");
    // One that has lets them go, and is offered new ones that start anew.
    let Ok(Sequenced::New(request, reply)) = server.sequence(&host, &Server::request(&host, 0, 3))
    else {
        panic!();
    };
    assert_eq!((reply.highest_slotid, reply.target_highest_slotid), (1, 1));
    server.finish(&request, b"");
    assert_eq!(server.state.reply_bytes_used(), 2048);
    let refused = Server::request(&host, 2, 1);
    assert_eq!(server.sequence(&host, &refused), Err(Status::BADSLOT));
    let request = server.begin(&host, 1, 1);
    server.finish(&request, b"");
}

#[test]
fn sessions_give_up_slots_before_room_for_replies_is_short() {
    let whole = u64::from(limits::CACHED_RESPONSE_BYTES_MAX);
    let max = 40 * whole;
    let mut server = Server::with(Config::new().with_reply_bytes_max(max));
    let hosts: Vec<_> = (1..=4).map(|number| server.host(number)).collect();
    // All slots of all hosts with a reply of 300 bytes each would not fit.
    assert!(4 * (64 * 300 + whole) > max);
    let mut sequences = vec![[0_u32; 64]; hosts.len()];
    let mut targets = vec![63; hosts.len()];
    let mut lowest = 63;
    for round in 0..20 {
        for (at, host) in hosts.iter().enumerate() {
            for slot in 0..=63 {
                if slot > targets[at] {
                    continue;
                }
                let sequence = &mut sequences[at][usize::try_from(slot).unwrap()];
                *sequence += 1;
                let request = Server::request(host, slot, *sequence);
                let result = server.sequence(host, &request);
                let Ok(Sequenced::New(request, reply)) = result else {
                    panic!("round {round}, slot {slot}: {result:?}");
                };
                server.finish(&request, &[0; 300]);
                targets[at] = reply.target_highest_slotid;
                lowest = lowest.min(targets[at]);
                // As Linux does: slots above the target start anew when they come back.
                for gone in &mut sequences[at][usize::try_from(targets[at]).unwrap() + 1..] {
                    *gone = 0;
                }
            }
        }
    }
    assert!(
        (limits::SLOTS_WHEN_SHORT - 1..63).contains(&lowest),
        "{lowest}"
    );
    assert!(server.state.reply_bytes_used() < max);
}

#[test]
fn a_request_that_waits_for_room_is_executed_later() {
    let (mut server, host) = tight();
    let first = server.begin(&host, 1, 1);
    let second = Server::request(&host, 2, 1);
    assert_eq!(server.sequence(&host, &second), Err(Status::DELAY));
    server.finish(&first, b"short");
    let result = server.sequence(&host, &second);
    assert!(matches!(result, Ok(Sequenced::New(..))), "{result:?}");
}

#[test]
fn a_retry_renews_the_lease_and_binds_the_connection() {
    let mut server = Server::new();
    let mut host = server.host(1);
    server.renew(&host, 1).unwrap();
    server.wait_us(LEASE_US);
    host.peer.connection = ConnId(50);
    server.renew(&host, 1).unwrap();
    server.wait_us(LEASE_US);
    let now_us = server.now_us;
    assert!(!server.state.has_lapsed(host.client, now_us));
    let only = DestroySessionPlace::First { is_only: true };
    assert_eq!(
        server.state.destroy_session(host.session, only, &host.peer),
        Ok(())
    );
}
