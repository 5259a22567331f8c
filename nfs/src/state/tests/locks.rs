//! LOCK, LOCKT, LOCKU.

use super::*;
use LockKind::{Read, Write};

/// A host with a file open, and the stateid of that.
fn opened(server: &mut Server, number: u8) -> (Host, Stateid) {
    let host = server.host(number);
    let stateid = server.open(&host, &file(1)).stateid;
    (host, stateid)
}

fn by(open: Stateid) -> Locker<'static> {
    Locker::New {
        open,
        owner: b"lock id",
    }
}

fn denied(result: Result<Stateid, LockRefusal>) -> Denied {
    match result {
        Err(LockRefusal::Denied(denied)) => denied,
        other => panic!("{other:?}"),
    }
}

#[test]
fn owners_keep_each_other_out() {
    // RFC 8881, section 18.10; pynfs LOCK1 and LOCKT of 4.0.
    let mut server = Server::new();
    let ((first, first_open), (second, second_open)) =
        (opened(&mut server, 1), opened(&mut server, 2));
    let lock = server
        .try_lock(&first, &file(1), by(first_open), Write, range(10, 10))
        .unwrap();
    assert_eq!(lock.seqid, 1);
    let refused = server.try_lock(&second, &file(1), by(second_open), Read, range(19, 100));
    let expected = Denied {
        range: range(10, 10),
        kind: Write,
        client: first.client,
        owner: b"lock id".as_slice().into(),
    };
    assert_eq!(denied(refused), expected);
    let test = LockTest {
        client: second.client,
        owner: b"lock id",
        file: &file(1),
        kind: Read,
        range: range(0, u64::MAX),
    };
    let tested = server.state.test_lock(&test, server.now_us);
    assert_eq!(tested, Err(LockRefusal::Denied(expected)));
    let own = LockTest {
        client: first.client,
        ..test
    };
    assert_eq!(server.state.test_lock(&own, server.now_us), Ok(()));
    assert!(
        server
            .try_lock(&second, &file(1), by(second_open), Read, range(20, 100))
            .is_ok()
    );
    // Going on with its own stateid: to reading, which others may as well.
    let existing = Locker::Existing { lock };
    let lock = server
        .try_lock(&first, &file(1), existing, Read, range(10, 10))
        .unwrap();
    assert_eq!(lock.seqid, 2);
    assert!(
        server
            .try_lock(&second, &file(1), by(second_open), Read, range(0, 100))
            .is_ok()
    );
    // And back, which the second's reading forbids.
    let existing = Locker::Existing { lock };
    let refused = server.try_lock(&first, &file(1), existing, Write, range(10, 10));
    assert_eq!(denied(refused).client, second.client);
}

#[test]
fn locks_need_an_open_of_their_kind() {
    // RFC 8881, section 18.10.3.
    let mut server = Server::new();
    let host = server.host(1);
    let reads = server
        .try_open(&host, &file(1), Shares::READ, Shares::NONE, false)
        .unwrap();
    let refused = server.try_lock(&host, &file(1), by(reads.stateid), Write, range(0, 1));
    assert_eq!(refused, Err(Status::OPENMODE.into()));
    let lock = server
        .try_lock(&host, &file(1), by(reads.stateid), Read, range(0, 1))
        .unwrap();
    let existing = Locker::Existing { lock };
    let refused = server.try_lock(&host, &file(1), existing, Write, range(0, 1));
    assert_eq!(refused, Err(Status::OPENMODE.into()));
    for wrong in [
        by(lock),
        Locker::Existing {
            lock: reads.stateid,
        },
    ] {
        let refused = server.try_lock(&host, &file(1), wrong, Read, range(0, 1));
        assert_eq!(
            refused,
            Err(Status::BAD_STATEID.into()),
            "one for the other"
        );
    }
    let refused = server.try_lock(&host, &file(2), by(reads.stateid), Read, range(0, 1));
    assert_eq!(refused, Err(Status::BAD_STATEID.into()));
    let now_us = server.now_us;
    let unlock =
        server
            .state
            .begin_unlock(host.client, &file(1), reads.stateid, range(0, 1), now_us);
    assert_eq!(unlock, Err(Status::BAD_STATEID));
}

#[test]
fn what_is_being_carried_out_is_in_the_way() {
    let mut server = Server::new();
    let ((first, first_open), (second, second_open)) =
        (opened(&mut server, 1), opened(&mut server, 2));
    let intent = server
        .begin_lock(&first, &file(1), by(first_open), Write, range(0, 10))
        .unwrap();
    assert_eq!(
        intent.change,
        LockChange {
            range: range(0, 10),
            kind: Some(Write)
        }
    );
    let other = |server: &mut Server, range| {
        server.try_lock(&second, &file(1), by(second_open), Read, range)
    };
    assert_eq!(other(&mut server, range(5, 10)), Err(Status::DELAY.into()));
    assert!(other(&mut server, range(10, 10)).is_ok());
    let again = server.begin_lock(&first, &file(1), by(first_open), Read, range(50, 1));
    assert_eq!(again, Err(Status::DELAY.into()), "its own is under way");
    let close = server.state.close(first.client, &file(1), first_open);
    assert_eq!(close, Err(Status::DELAY));
    // A local user has it: nothing has changed, and the lock owner is not kept.
    server.state.roll_back_lock(&intent);
    assert!(matches!(
        server.take_actions()[..],
        [Action::ReleaseLocks { .. }]
    ));
    assert!(other(&mut server, range(5, 10)).is_ok());
    assert_eq!(
        server.state.close(first.client, &file(1), first_open),
        Ok(Stateid::INVALID)
    );
    server.settle();
}

#[test]
fn a_change_that_fails_leaves_what_was_there() {
    let mut server = Server::new();
    let ((first, first_open), (second, second_open)) =
        (opened(&mut server, 1), opened(&mut server, 2));
    let lock = server
        .try_lock(&first, &file(1), by(first_open), Read, range(0, 10))
        .unwrap();
    let existing = Locker::Existing { lock };
    let intent = server
        .begin_lock(&first, &file(1), existing, Write, range(0, 20))
        .unwrap();
    server.state.roll_back_lock(&intent);
    server.settle();
    assert_eq!(
        server.state.test_stateid(first.client, lock),
        Status::OK,
        "the same seqid"
    );
    let now_us = server.now_us;
    let unlock = server
        .state
        .begin_unlock(first.client, &file(1), lock, range(0, 5), now_us);
    let unlock = unlock.unwrap();
    let refused = server.try_lock(&second, &file(1), by(second_open), Write, range(0, 5));
    assert_eq!(denied(refused).range, range(0, 10), "until it is unlocked");
    server.commit(&unlock);
    assert!(
        server
            .try_lock(&second, &file(1), by(second_open), Write, range(0, 5))
            .is_ok()
    );
    let refused = server.try_lock(&second, &file(1), by(second_open), Write, range(0, 6));
    assert_eq!(denied(refused).range, range(5, 5));
}

#[test]
fn locks_go_with_their_open() {
    // RFC 8881, section 18.2.3.
    let mut server = Server::new();
    let ((first, first_open), (second, second_open)) =
        (opened(&mut server, 1), opened(&mut server, 2));
    let lock = server
        .try_lock(&first, &file(1), by(first_open), Write, range(0, 10))
        .unwrap();
    assert_eq!(
        server
            .io(&first, &file(1), lock, IoAccess::Write)
            .unwrap()
            .open,
        Some(OpenId(1))
    );
    server
        .state
        .close(first.client, &file(1), first_open)
        .unwrap();
    assert!(matches!(
        server.take_actions()[..],
        [Action::ReleaseLocks { .. }, Action::Close { .. }]
    ));
    assert_eq!(
        server.state.test_stateid(first.client, lock),
        Status::BAD_STATEID
    );
    assert!(
        server
            .try_lock(&second, &file(1), by(second_open), Write, range(0, 10))
            .is_ok()
    );
}

#[test]
fn renewals_that_wait_to_be_carried_out_keep_locks() {
    // RFC 8881, section 8.3: what a client has sent in time is not to count as late.
    let mut server = Server::new();
    let ((first, first_open), (second, second_open)) =
        (opened(&mut server, 1), opened(&mut server, 2));
    server
        .try_lock(&first, &file(1), by(first_open), Write, range(0, 10))
        .unwrap();
    let try_it = |server: &mut Server| {
        server.try_lock(&second, &file(1), by(second_open), Write, range(0, 10))
    };
    server.wait_us(LEASE_US / 2);
    // Its renewal comes now, and nothing is carried out until the lease has expired long since.
    server.state.heard_until(server.now_us);
    server.wait_us(100 * LEASE_US);
    server.renew(&second, 1).unwrap();
    server.state.handle_timers(server.now_us);
    assert_eq!(denied(try_it(&mut server)).client, first.client);
    server.renew(&first, 1).unwrap();
    server.state.heard_until(u64::MAX);
    assert_eq!(denied(try_it(&mut server)).client, first.client);
    // It is not there any more: nothing of it waits.
    server.wait_us(LEASE_US + 1);
    server.state.heard_until(server.now_us);
    try_it(&mut server).unwrap();
}

#[test]
fn locks_without_a_lease_give_way() {
    // pynfs COUR5; the record is there before the answer (RFC 8881, section 8.4.3).
    let mut server = Server::new();
    let ((first, first_open), (second, second_open)) =
        (opened(&mut server, 1), opened(&mut server, 2));
    let (third, third_open) = opened(&mut server, 3);
    server
        .try_lock(&first, &file(1), by(first_open), Read, range(0, 10))
        .unwrap();
    server
        .try_lock(&second, &file(1), by(second_open), Read, range(0, 10))
        .unwrap();
    server.wait_us(LEASE_US + 1);
    server.renew(&second, 1).unwrap();
    let refused = server.try_lock(&third, &file(1), by(third_open), Write, range(0, 10));
    assert_eq!(
        denied(refused).client,
        second.client,
        "one that is there is named"
    );
    assert!(
        server.take_actions().is_empty(),
        "no client goes for nothing"
    );
    server.wait_us(LEASE_US + 1);
    let test = LockTest {
        client: third.client,
        owner: b"lock id",
        file: &file(1),
        kind: Write,
        range: range(0, 1),
    };
    assert_eq!(server.state.test_lock(&test, server.now_us), Ok(()));
    assert_eq!(
        server.take_actions().len(),
        6,
        "two hosts with an open and locks each"
    );
    assert_eq!(owners(&server.durable), BTreeSet::from([third.name]));
}

#[test]
fn locks_of_two_opens_of_one_client_are_of_one_owner() {
    let mut server = Server::new();
    let (host, open) = opened(&mut server, 1);
    let other = (Shares::BOTH, Shares::NONE);
    let other = server
        .try_open_as(&host, b"another", &file(1), other, false)
        .unwrap();
    let first = server
        .try_lock(&host, &file(1), by(open), Write, range(0, 10))
        .unwrap();
    let second = server
        .try_lock(&host, &file(1), by(other.stateid), Read, range(5, 10))
        .unwrap();
    assert_eq!((second.other, second.seqid), (first.other, 2));
    let refused = Locker::New {
        open: other.stateid,
        owner: b"lock id 2",
    };
    let refused = server.try_lock(&host, &file(1), refused, Write, range(0, 1));
    assert_eq!(denied(refused).range, range(0, 5));
}
