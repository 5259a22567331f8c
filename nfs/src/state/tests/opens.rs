//! OPEN, OPEN_DOWNGRADE, CLOSE, stateids, and what READ and WRITE may do.

use super::*;

#[test]
fn opens_of_one_owner_are_one_state() {
    // pynfs OPEN1, OPEN2; RFC 8881, sections 8.2.2 and 9.9.
    let mut server = Server::new();
    let host = server.host(1);
    let mut open = |access| {
        server
            .try_open(&host, &file(1), access, Shares::NONE, false)
            .unwrap()
    };
    let first = open(Shares::WRITE);
    assert_eq!(
        (first.stateid.seqid, first.is_new, first.access),
        (1, true, Shares::WRITE)
    );
    let second = open(Shares::READ);
    assert_eq!(
        (second.stateid.seqid, second.is_new, second.access),
        (2, false, Shares::BOTH)
    );
    assert_eq!(
        (first.open, first.stateid.other),
        (second.open, second.stateid.other)
    );
    assert_eq!(
        server.io(&host, &file(1), first.stateid, IoAccess::Read),
        Err(Status::OLD_STATEID)
    );
    let other = (Shares::READ, Shares::NONE);
    let other = server
        .try_open_as(&host, b"another", &file(1), other, false)
        .unwrap();
    assert_ne!(other.open, second.open);
    // CLOSE with the seqid 0 (pynfs OPEN8).
    let zero = Stateid {
        seqid: 0,
        ..second.stateid
    };
    assert_eq!(
        server.state.close(host.client, &file(1), zero),
        Ok(Stateid::INVALID)
    );
    assert_eq!(
        server.take_actions(),
        [Action::Close {
            open: first.open,
            file: file(1)
        }]
    );
    let again = server.state.close(host.client, &file(1), zero);
    assert_eq!(again, Err(Status::BAD_STATEID));
}

#[test]
fn shares_are_denied_to_others_and_not_to_the_owner() {
    // RFC 8881, section 9.7: each pair of access and deny against each.
    let all = [Shares::NONE, Shares::READ, Shares::WRITE, Shares::BOTH];
    for (access, deny) in all[1..]
        .iter()
        .flat_map(|a| all.iter().map(move |d| (*a, *d)))
    {
        for (other_access, other_deny) in all[1..]
            .iter()
            .flat_map(|a| all.iter().map(move |d| (*a, *d)))
        {
            let mut server = Server::new();
            let (host, other) = (server.host(1), server.host(2));
            server
                .try_open(&host, &file(1), access, deny, false)
                .unwrap();
            let denied = deny.overlaps(other_access) || access.overlaps(other_deny);
            let opened = server.try_open(&other, &file(1), other_access, other_deny, false);
            assert_eq!(opened.err(), denied.then_some(Status::SHARE_DENIED));
            let own = server.try_open(&host, &file(1), Shares::READ, Shares::NONE, false);
            assert_eq!(own.is_ok(), denied || !other_deny.overlaps(Shares::READ));
            assert!(
                server
                    .try_open(&other, &file(2), other_access, other_deny, false)
                    .is_ok()
            );
        }
    }
}

#[test]
fn before_a_file_is_truncated_it_is_asked_for() {
    let mut server = Server::new();
    let (host, other) = (server.host(1), server.host(2));
    server
        .try_open(&host, &file(1), Shares::READ, Shares::WRITE, false)
        .unwrap();
    let request = OpenRequest {
        client: other.client,
        owner: b"open id",
        file: &file(1),
        access: Shares::WRITE,
        deny: Shares::NONE,
        is_reclaim: false,
    };
    assert_eq!(
        server.state.may_open(&request, server.now_us),
        Err(Status::SHARE_DENIED)
    );
    let reads = OpenRequest {
        access: Shares::READ,
        ..request
    };
    assert_eq!(server.state.may_open(&reads, server.now_us), Ok(()));
    server.settle();
    let opens = server.state.opens.used();
    assert_eq!(opens, 1, "nothing is opened");
}

#[test]
fn a_downgrade_lets_others_in() {
    // RFC 8881, section 18.18.3.
    let mut server = Server::new();
    let (host, other) = (server.host(1), server.host(2));
    server
        .try_open(&host, &file(1), Shares::READ, Shares::NONE, false)
        .unwrap();
    let opened = server
        .try_open(&host, &file(1), Shares::BOTH, Shares::WRITE, false)
        .unwrap();
    let downgrade = |server: &mut Server, stateid, access, deny| {
        let result = server
            .state
            .open_downgrade(host.client, &file(1), stateid, access, deny);
        server.settle();
        result
    };
    let wrong = downgrade(&mut server, opened.stateid, Shares::WRITE, Shares::NONE);
    assert_eq!(wrong, Err(Status::INVAL));
    let write =
        |server: &mut Server| server.try_open(&other, &file(1), Shares::WRITE, Shares::NONE, false);
    assert_eq!(write(&mut server), Err(Status::SHARE_DENIED));
    let less = downgrade(&mut server, opened.stateid, Shares::READ, Shares::NONE).unwrap();
    assert_eq!(less.seqid, 3);
    assert_eq!(
        server.io(&host, &file(1), less, IoAccess::Write),
        Err(Status::OPENMODE)
    );
    assert!(write(&mut server).is_ok());
    let old = downgrade(&mut server, opened.stateid, Shares::READ, Shares::NONE);
    assert_eq!(old, Err(Status::OLD_STATEID));
}

#[test]
fn stateids_are_of_one_client_one_file_and_one_instance() {
    // RFC 8881, section 8.2.4.
    let mut server = Server::new();
    let (host, other) = (server.host(1), server.host(2));
    let opened = server.open(&host, &file(1));
    let good = opened.stateid;
    let mut read = |host: &Host, file, stateid| server.io(host, &file, stateid, IoAccess::Read);
    assert_eq!(
        read(&host, file(1), good),
        Ok(IoPermit {
            open: Some(opened.open)
        })
    );
    assert_eq!(read(&other, file(1), good), Err(Status::BAD_STATEID));
    assert_eq!(read(&host, file(2), good), Err(Status::BAD_STATEID));
    let later = Stateid { seqid: 2, ..good };
    assert_eq!(read(&host, file(1), later), Err(Status::BAD_STATEID));
    for special in [
        Stateid::CURRENT,
        Stateid::INVALID,
        Stateid {
            seqid: 9,
            other: [0xFF; 12],
        },
    ] {
        assert_eq!(read(&host, file(1), special), Err(Status::BAD_STATEID));
    }
    let mut server = server.restart();
    let host = server.join(1, 1);
    let stale = server.io(&host, &file(1), good, IoAccess::Read);
    assert_eq!(
        stale,
        Err(Status::BAD_STATEID),
        "RFC 8881, section 15.1.16.5"
    );
}

#[test]
fn reading_and_writing_without_an_open_heeds_share_reservations() {
    // RFC 8881, sections 8.2.3 and 9.1.2; pynfs OPEN31.
    let mut server = Server::new();
    let (host, other) = (server.host(1), server.host(2));
    let io = |server: &mut Server, stateid, access| {
        server
            .io(&other, &file(1), stateid, access)
            .map(|permit| permit.open)
    };
    let (anonymous, bypass) = (Stateid::ANONYMOUS, Stateid::READ_BYPASS);
    assert_eq!(io(&mut server, anonymous, IoAccess::Write), Ok(None));
    let opened = server
        .try_open(&host, &file(1), Shares::READ, Shares::WRITE, false)
        .unwrap();
    assert_eq!(
        io(&mut server, anonymous, IoAccess::Write),
        Err(Status::LOCKED)
    );
    assert_eq!(
        io(&mut server, bypass, IoAccess::Write),
        Err(Status::LOCKED)
    );
    assert_eq!(io(&mut server, anonymous, IoAccess::Read), Ok(None));
    server
        .try_open(&host, &file(1), Shares::READ, Shares::BOTH, false)
        .unwrap();
    assert_eq!(
        io(&mut server, anonymous, IoAccess::Read),
        Err(Status::LOCKED)
    );
    assert_eq!(
        io(&mut server, bypass, IoAccess::Read),
        Ok(None),
        "reading goes past it"
    );
    assert_eq!(
        server.io(&host, &file(1), anonymous, IoAccess::Read),
        Err(Status::LOCKED)
    );
    // One whose lease has expired denies nothing.
    server.wait_us(LEASE_US + 1);
    assert_eq!(io(&mut server, anonymous, IoAccess::Write), Ok(None));
    let closed = Action::Close {
        open: opened.open,
        file: file(1),
    };
    let client = host.client;
    assert_eq!(
        server.take_actions(),
        [closed, Action::EndClient { client }]
    );
}

#[test]
fn stateids_are_tested_and_freed() {
    // RFC 8881, sections 18.38 and 18.48.
    let mut server = Server::new();
    let (host, other) = (server.host(1), server.host(2));
    let opened = server.open(&host, &file(1));
    let locker = Locker::New {
        open: opened.stateid,
        owner: b"lock id",
    };
    let lock = server
        .try_lock(&host, &file(1), locker, LockKind::Read, range(0, 10))
        .unwrap();
    let test = |server: &Server, stateid| server.state.test_stateid(host.client, stateid);
    assert_eq!(test(&server, opened.stateid), Status::OK);
    assert_eq!(test(&server, lock), Status::OK);
    assert_eq!(
        test(&server, Stateid { seqid: 9, ..lock }),
        Status::BAD_STATEID
    );
    assert_eq!(test(&server, Stateid::ANONYMOUS), Status::BAD_STATEID);
    assert_eq!(
        server.state.test_stateid(other.client, lock),
        Status::BAD_STATEID
    );
    let free = |server: &mut Server, client, stateid| {
        let result = server.state.free_stateid(client, stateid);
        server.settle();
        result
    };
    assert_eq!(
        free(&mut server, host.client, opened.stateid),
        Err(Status::LOCKS_HELD)
    );
    assert_eq!(
        free(&mut server, host.client, lock),
        Err(Status::LOCKS_HELD)
    );
    assert_eq!(
        free(&mut server, other.client, lock),
        Err(Status::BAD_STATEID)
    );
    let unlocked = server.unlock(&host, &file(1), lock, range(0, 10));
    assert_eq!(
        free(&mut server, host.client, lock),
        Err(Status::OLD_STATEID)
    );
    assert_eq!(free(&mut server, host.client, unlocked), Ok(()));
    assert!(matches!(
        server.take_actions()[..],
        [Action::ReleaseLocks { .. }]
    ));
    assert_eq!(
        free(&mut server, host.client, unlocked),
        Err(Status::BAD_STATEID)
    );
}

#[test]
fn keys_of_files_are_bounded() {
    assert!(FileKey::new(1, &[0; 128]).is_ok());
    assert_eq!(FileKey::new(1, &[0; 129]), Err(Status::BADHANDLE));
    assert_ne!(FileKey::new(1, b"a"), FileKey::new(2, b"a"));
}
