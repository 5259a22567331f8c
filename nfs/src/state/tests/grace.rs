//! Restarts of the server.

use super::*;
use crate::state::limits::RECLAIM_PAUSE_US;

/// Restarts it, with hosts 1 and 2 known, of which host 1 has a file open.
fn restarted() -> (Server, Host, Host) {
    let mut server = Server::new();
    let (first, second) = (server.host(1), server.host(2));
    server.open(&first, &file(1));
    (server.restart(), first, second)
}

fn reclaim(server: &mut Server, host: &Host) -> Result<Opened, Status> {
    server.try_open(host, &file(1), Shares::BOTH, Shares::NONE, true)
}

fn open_new(server: &mut Server, host: &Host) -> Result<Opened, Status> {
    server.try_open(host, &file(3), Shares::BOTH, Shares::NONE, false)
}

#[test]
fn opens_and_locks_are_reclaimed() {
    // pynfs REBT1, REBT2, REBT3; RFC 8881, section 8.4.2.1.
    let (mut server, first, second) = restarted();
    assert_eq!(server.renew(&first, 1), Err(Status::BADSESSION));
    assert_eq!(
        server.create(first.client, 2, &first.peer),
        Err(Status::STALE_CLIENTID)
    );
    let first = server.join(1, 1);
    assert_eq!(open_new(&mut server, &first), Err(Status::GRACE));
    let opened = reclaim(&mut server, &first).unwrap();
    let request = LockRequest {
        client: first.client,
        file: &file(1),
        kind: LockKind::Write,
        range: range(0, 10),
        is_reclaim: true,
        locker: Locker::New {
            open: opened.stateid,
            owner: b"lock id",
        },
    };
    let intent = server.state.begin_lock(&request, server.now_us).unwrap();
    server.commit(&intent);
    let new = LockRequest {
        is_reclaim: false,
        ..request
    };
    let refused = server.state.begin_lock(&new, server.now_us);
    assert_eq!(refused, Err(Status::GRACE.into()));
    server.complete_reclaim(&first).unwrap();
    assert_eq!(
        server.complete_reclaim(&first),
        Err(Status::COMPLETE_ALREADY),
        "RECC2"
    );
    assert_eq!(reclaim(&mut server, &first), Err(Status::NO_GRACE), "REBT6");
    assert_eq!(
        open_new(&mut server, &first),
        Err(Status::GRACE),
        "the second is waited for"
    );
    // The second has nothing to reclaim, and then all have.
    let second = Host { ..second };
    let second = server.join(second.peer.connection.0.try_into().unwrap(), 1);
    server.complete_reclaim(&second).unwrap();
    assert!(open_new(&mut server, &first).is_ok());
    assert_eq!(server.durable.last(), Some(&Record::GraceEnded));
}

#[test]
fn grace_ends_in_time_and_who_has_not_come_has_lost() {
    // RFC 8881, section 8.4.3: the second edge condition.
    let (mut server, first, second) = restarted();
    let second_again = server.join(2, 1);
    server.complete_reclaim(&second_again).unwrap();
    assert_eq!(server.state.next_timer_us(), Some(server.now_us + GRACE_US));
    server.wait_us(GRACE_US - 1);
    assert_eq!(open_new(&mut server, &second_again), Err(Status::GRACE));
    server.wait_us(1);
    assert_eq!(server.state.entitled_count(), 1);
    assert_eq!(server.state.take_grace_end(), None);
    server.state.handle_timers(server.now_us);
    server.settle();
    assert_eq!(
        server.state.take_grace_end(),
        Some(vec![first.name.clone().into()])
    );
    assert_eq!(server.state.take_grace_end(), None);
    assert!(open_new(&mut server, &second_again).is_ok());
    let late = server.join(1, 1);
    assert_eq!(reclaim(&mut server, &late), Err(Status::NO_GRACE));
    assert_eq!(
        open_new(&mut server, &late),
        Err(Status::GRACE),
        "before RECLAIM_COMPLETE"
    );
    let mut server = server.restart();
    assert_eq!(owners(&server.durable), BTreeSet::from([second.name]));
    let late = server.join(1, 1);
    assert_eq!(reclaim(&mut server, &late), Err(Status::RECLAIM_BAD));
    assert_ne!(first.client, late.client);
}

#[test]
fn grace_lasts_while_a_client_reclaims_but_not_for_ever() {
    // pynfs REBT5.
    let (mut server, ..) = restarted();
    let ends_us = server.now_us + GRACE_US;
    let first = server.join(1, 1);
    server.wait_us(GRACE_US - 1);
    reclaim(&mut server, &first).unwrap();
    while server.now_us < ends_us + GRACE_US - RECLAIM_PAUSE_US {
        server.wait_us(RECLAIM_PAUSE_US - 1);
        server.state.handle_timers(server.now_us);
        reclaim(&mut server, &first).unwrap();
    }
    assert_eq!(server.state.next_timer_us(), Some(ends_us + GRACE_US));
    server.wait_us(RECLAIM_PAUSE_US);
    assert_eq!(reclaim(&mut server, &first), Err(Status::NO_GRACE));
}

#[test]
fn a_reclaim_that_waits_to_be_carried_out_is_in_time() {
    let (mut server, ..) = restarted();
    let (first, second) = (server.join(1, 1), server.join(2, 1));
    server.wait_us(GRACE_US - 1);
    server.state.heard_until(server.now_us);
    server.wait_us(LEASE_US);
    assert_eq!(open_new(&mut server, &second), Err(Status::GRACE));
    reclaim(&mut server, &first).unwrap();
}

#[test]
fn who_lost_its_lease_and_its_locks_may_not_reclaim() {
    // RFC 8881, section 8.4.3: the first edge condition. The first is cut off, the second takes
    // what it had and gives it back, the server restarts, and the first comes again.
    let mut server = Server::new();
    let (first, second) = (server.host(1), server.host(2));
    server
        .try_open(&first, &file(1), Shares::BOTH, Shares::WRITE, false)
        .unwrap();
    server.wait_us(LEASE_US + 1);
    server.renew(&second, 1).unwrap();
    let opened = server.open(&second, &file(1));
    server
        .state
        .close(second.client, &file(1), opened.stateid)
        .unwrap();
    let mut server = server.restart();
    let first = server.join(1, 1);
    assert_eq!(reclaim(&mut server, &first), Err(Status::RECLAIM_BAD));
}

#[test]
fn a_server_without_clients_before_has_no_grace_period() {
    let mut server = Server::new();
    let host = server.join(1, 1);
    assert_eq!(
        open_new(&mut server, &host),
        Err(Status::GRACE),
        "pynfs RECC3"
    );
    assert_eq!(
        reclaim(&mut server, &host),
        Err(Status::NO_GRACE),
        "pynfs RECC4"
    );
    assert_eq!(
        server.state.reclaim_complete(host.client, true, 0),
        Ok(()),
        "of one file system"
    );
    server.complete_reclaim(&host).unwrap();
    assert!(open_new(&mut server, &host).is_ok());
    assert!(!server.durable.contains(&Record::GraceEnded));
}

#[test]
fn what_is_reclaimed_twice_is_one_too_many() {
    let (mut server, ..) = restarted();
    let (first, second) = (server.join(1, 1), server.join(2, 1));
    reclaim(&mut server, &first).unwrap();
    let both = server.try_open(&second, &file(1), Shares::READ, Shares::WRITE, true);
    assert_eq!(both, Err(Status::RECLAIM_CONFLICT));
}

#[test]
fn a_client_that_has_gone_is_not_waited_for() {
    let (mut server, ..) = restarted();
    let (first, second) = (server.join(1, 1), server.join(2, 1));
    server.complete_reclaim(&second).unwrap();
    let only = DestroySessionPlace::First { is_only: true };
    server
        .state
        .destroy_session(first.session, only, &first.peer)
        .unwrap();
    server
        .state
        .destroy_clientid(first.client, server.now_us)
        .unwrap();
    server.settle();
    assert!(open_new(&mut server, &second).is_ok());
    assert_eq!(owners(&server.durable), BTreeSet::from([second.name]));
}

#[test]
fn without_an_open_nothing_is_read_in_the_grace_period() {
    // RFC 8881, section 8.4.2: a share reservation that denies it may be reclaimed yet.
    let (mut server, ..) = restarted();
    let host = server.join(1, 1);
    let anonymous = server.io(&host, &file(1), Stateid::ANONYMOUS, IoAccess::Read);
    assert_eq!(anonymous, Err(Status::GRACE));
    let opened = reclaim(&mut server, &host).unwrap();
    assert!(
        server
            .io(&host, &file(1), opened.stateid, IoAccess::Write)
            .is_ok()
    );
    let test = LockTest {
        client: host.client,
        owner: b"lock id",
        file: &file(1),
        kind: LockKind::Read,
        range: range(0, 1),
    };
    let tested = server.state.test_lock(&test, server.now_us);
    assert_eq!(tested, Err(LockRefusal::Status(Status::GRACE)));
}

#[test]
fn twenty_restarts_lose_nothing() {
    let mut server = Server::new();
    let mut hosts: Vec<_> = (1..=3).map(|number| server.host(number)).collect();
    for host in &hosts {
        server.open(host, &file(1));
    }
    let mut instances = BTreeSet::new();
    for round in 0..20 {
        server = server.restart();
        assert!(instances.insert(server.state.instance));
        // Now and then it is killed again in the middle of a grace period.
        if round % 3 == 2 {
            let early = server.join(1, 1);
            reclaim(&mut server, &early).unwrap();
            server.complete_reclaim(&early).unwrap();
            server = server.restart();
            assert!(instances.insert(server.state.instance));
        }
        hosts = (1..=3).map(|number| server.join(number, 1)).collect();
        for host in &hosts {
            reclaim(&mut server, host).unwrap();
            server.complete_reclaim(host).unwrap();
        }
        assert!(open_new(&mut server, &hosts[0]).is_ok());
    }
    let names = hosts.iter().map(|host| host.name.clone()).collect();
    assert_eq!(owners(&server.durable), names);
}

#[test]
fn a_snapshot_says_the_same_as_all_records() {
    let (mut server, ..) = restarted();
    let compare = |server: &Server| {
        let mut ways = Vec::new();
        for ending in [None, Some(Record::GraceEnded)] {
            let of = |records: &[Record]| {
                let records: Vec<_> = records.iter().cloned().chain(ending.clone()).collect();
                owners(&records)
            };
            assert_eq!(of(&server.durable), of(&server.state.snapshot()));
            ways.push(of(&server.durable).len());
        }
        ways
    };
    assert_eq!(compare(&server), [2, 0]);
    let second = server.join(2, 1);
    server.complete_reclaim(&second).unwrap();
    assert_eq!(compare(&server), [2, 1]);
    server.wait_us(GRACE_US);
    server.state.handle_timers(server.now_us);
    server.settle();
    assert_eq!(compare(&server), [1, 1]);
}

#[test]
fn the_time_to_reclaim_begins_when_clients_can_come() {
    let (server, _, _) = restarted();
    let mut bytes = stable::MAGIC.to_vec();
    for record in &server.durable {
        stable::encode(record, &mut bytes);
    }
    let (before, _) = stable::replay(&bytes).unwrap();
    let config = server.state.config().clone();
    let grace_us = config.grace_us();
    let mut state = State::new(config, before);
    // The server starts slowly, or its address is not there for an hour.
    let late_us = 3_600_000_000;
    state.handle_timers(late_us);
    assert!(state.is_in_grace(late_us));
    state.begin_grace(late_us);
    assert!(state.is_in_grace(late_us + grace_us - 1));
    // Once.
    state.begin_grace(late_us + grace_us - 1);
    assert!(!state.is_in_grace(late_us + grace_us));
}
