//! State that is revoked with the export of its files: RFC 8881, sections 8.5, 18.38, 18.46.3 and
//! 18.48.

use super::*;
use crate::state::limits::REVOKED_PER_CLIENT_MAX;

/// A file of an export that is taken out.
fn of_export(export: u64, number: u8) -> FileKey {
    FileKey::new(export, &[number; 28]).unwrap()
}

impl Server {
    fn take_out(&mut self, export: u64) {
        self.state.give_up_exports(|of| of == export);
        self.settle();
    }

    /// What a SEQUENCE of the first slot says of the client's state.
    fn told(&mut self, host: &Host, sequence: u32) -> SequenceStatus {
        match self.sequence(host, &Self::request(host, 0, sequence)) {
            Ok(Sequenced::New(request, result)) => {
                self.finish(&request, b"");
                result.status_flags
            }
            other => panic!("{other:?}"),
        }
    }

    fn free(&mut self, host: &Host, stateid: Stateid) -> Result<(), Status> {
        let freed = self.state.free_stateid(host.client, stateid);
        self.settle();
        freed
    }
}

fn new_lock(open: &Opened) -> Locker<'static> {
    let open = open.stateid;
    let owner = b"lock id";
    Locker::New { open, owner }
}

#[test]
fn a_client_is_told_until_it_has_freed_all_of_it() {
    let mut server = Server::new();
    let (one, two) = (server.host(1), server.host(2));
    let (gone, kept) = (of_export(7, 1), of_export(8, 1));
    let open = server.try_open(&one, &gone, Shares::BOTH, Shares::WRITE, false);
    let (open, stays) = (open.unwrap(), server.open(&one, &kept));
    let all = range(0, u64::MAX);
    let lock = server
        .try_lock(&one, &gone, new_lock(&open), LockKind::Write, all)
        .unwrap();
    assert_eq!(server.told(&one, 1), SequenceStatus::empty());
    server.take_out(7);

    let released = |action: &Action| matches!(action, Action::ReleaseLocks { .. });
    let closed = |action: &Action| {
        *action
            == (Action::Close {
                open: open.open,
                file: gone.clone(),
            })
    };
    let actions = server.take_actions();
    assert!(
        actions.iter().any(released) && actions.iter().any(closed),
        "{actions:?}"
    );
    // Others have at once what was locked and denied.
    let other = server.open(&two, &gone);
    server
        .try_lock(&two, &gone, new_lock(&other), LockKind::Write, all)
        .unwrap();

    let revoked = Status::ADMIN_REVOKED;
    let state = &mut server.state;
    let now_us = server.now_us;
    for stateid in [open.stateid, lock] {
        assert_eq!(state.test_stateid(one.client, stateid), revoked);
        assert_eq!(state.test_stateid(two.client, stateid), Status::BAD_STATEID);
        let read = state.check_io(one.client, &gone, stateid, IoAccess::Read, now_us);
        assert_eq!(read, Err(revoked));
    }
    let later = Stateid {
        seqid: 0,
        ..open.stateid
    };
    assert_eq!(
        state.test_stateid(one.client, later),
        revoked,
        "whatever the seqid"
    );
    assert_eq!(state.close(one.client, &gone, open.stateid), Err(revoked));
    let unlocked = state.begin_unlock(one.client, &gone, lock, all, now_us);
    assert_eq!(unlocked, Err(revoked));
    let narrowed =
        state.open_downgrade(one.client, &gone, open.stateid, Shares::READ, Shares::NONE);
    assert_eq!(narrowed, Err(revoked));
    let locked = server.try_lock(&one, &gone, new_lock(&open), LockKind::Read, range(0, 1));
    assert_eq!(locked, Err(LockRefusal::Status(revoked)));
    assert_eq!(
        server
            .io(&one, &kept, stays.stateid, IoAccess::Write)
            .map(|_| ()),
        Ok(())
    );

    assert_eq!(server.told(&one, 2), SequenceStatus::ADMIN_STATE_REVOKED);
    assert_eq!(server.told(&two, 1), SequenceStatus::empty());
    assert_eq!(server.free(&two, lock), Err(Status::BAD_STATEID));
    assert_eq!(server.free(&one, lock), Ok(()));
    assert_eq!(server.free(&one, lock), Err(Status::BAD_STATEID), "once");
    assert_eq!(server.told(&one, 3), SequenceStatus::ADMIN_STATE_REVOKED);
    assert_eq!(server.free(&one, open.stateid), Ok(()));
    assert_eq!(server.told(&one, 4), SequenceStatus::empty());
    assert_eq!(
        server.state.test_stateid(one.client, open.stateid),
        Status::BAD_STATEID
    );
}

#[test]
fn a_lock_that_is_being_taken_is_revoked() {
    let mut server = Server::new();
    let one = server.host(1);
    let gone = of_export(7, 1);
    let open = server.open(&one, &gone);
    let intent = server
        .begin_lock(&one, &gone, new_lock(&open), LockKind::Write, range(0, 1))
        .unwrap();
    server.take_out(7);
    assert_eq!(
        server.state.commit_lock(&intent),
        Err(Status::ADMIN_REVOKED)
    );
    // Of the lock state the client was never told, and there is nothing of it to be freed.
    assert_eq!(server.free(&one, open.stateid), Ok(()));
    assert_eq!(server.told(&one, 1), SequenceStatus::empty());
}

#[test]
fn a_client_that_frees_nothing_is_told_for_a_lease() {
    let mut server = Server::new();
    let one = server.host(1);
    let gone = of_export(7, 1);
    let open = server.open(&one, &gone);
    server.take_out(7);
    // It was away: the time begins when it hears of it.
    server.wait_us(3 * LEASE_US);
    assert_eq!(server.told(&one, 1), SequenceStatus::ADMIN_STATE_REVOKED);
    server.wait_us(LEASE_US);
    assert_eq!(server.told(&one, 2), SequenceStatus::ADMIN_STATE_REVOKED);
    assert_eq!(
        server.state.test_stateid(one.client, open.stateid),
        Status::ADMIN_REVOKED
    );
    server.wait_us(1);
    assert_eq!(server.told(&one, 3), SequenceStatus::empty());
    assert_eq!(
        server.state.test_stateid(one.client, open.stateid),
        Status::BAD_STATEID
    );
}

#[test]
fn of_more_than_there_may_be_the_oldest_are_forgotten() {
    let mut server = Server::new();
    let one = server.host(1);
    let before = server.state.bytes_used();
    let mut opens = Vec::new();
    for number in 0..=REVOKED_PER_CLIENT_MAX {
        let file = FileKey::new(7, &number.to_be_bytes()).unwrap();
        let request = OpenRequest {
            client: one.client,
            owner: b"o",
            file: &file,
            access: Shares::READ,
            deny: Shares::NONE,
            is_reclaim: false,
        };
        opens.push(server.state.open(&request, server.now_us).unwrap().stateid);
    }
    server.take_out(7);
    let test = |server: &Server, at: usize| server.state.test_stateid(one.client, opens[at]);
    assert_eq!(test(&server, 0), Status::BAD_STATEID);
    assert_eq!(test(&server, 1), Status::ADMIN_REVOKED);
    assert_eq!(test(&server, REVOKED_PER_CLIENT_MAX), Status::ADMIN_REVOKED);
    assert!(server.state.bytes_used() <= before + (128 << 10));
    // They keep a client from nothing, and go with it.
    let only = DestroySessionPlace::First { is_only: true };
    server
        .state
        .destroy_session(one.session, only, &one.peer)
        .unwrap();
    server
        .state
        .destroy_clientid(one.client, server.now_us)
        .unwrap();
    server.settle();
    assert_eq!(server.state.bytes_used(), 0);
}

fn reclaim(server: &mut Server, host: &Host, file: &FileKey) -> Result<Opened, Status> {
    server.try_open(host, file, Shares::BOTH, Shares::NONE, true)
}

#[test]
fn what_was_revoked_is_not_reclaimed_after_a_restart() {
    // RFC 8881, section 8.4.3: others may have had it, also when the export is there again.
    let mut server = Server::new();
    let one = server.host(1);
    let (gone, kept) = (of_export(7, 1), of_export(8, 1));
    server.open(&one, &gone);
    server.open(&one, &kept);
    server.take_out(7);
    let mut server = server.restart();
    let one = server.join(1, 1);
    assert_eq!(reclaim(&mut server, &one, &gone), Err(Status::RECLAIM_BAD));
    assert!(reclaim(&mut server, &one, &kept).is_ok());
    // What is revoked in the grace period as well.
    server.take_out(8);
    assert_eq!(reclaim(&mut server, &one, &kept), Err(Status::RECLAIM_BAD));

    // A snapshot says so too.
    server.durable = server.state.snapshot();
    let mut server = server.restart();
    let one = server.join(1, 1);
    for file in [&gone, &kept] {
        assert_eq!(reclaim(&mut server, &one, file), Err(Status::RECLAIM_BAD));
    }
    // It has lost all that, and what it opens then is new.
    server.complete_reclaim(&one).unwrap();
    server.open(&one, &gone);
    let mut server = server.restart();
    let one = server.join(1, 1);
    assert!(reclaim(&mut server, &one, &gone).is_ok());
}

#[test]
fn a_client_that_has_freed_what_was_revoked_reclaims_what_it_opens_then() {
    let mut server = Server::new();
    let one = server.host(1);
    let gone = of_export(7, 1);
    let open = server.open(&one, &gone);
    server.take_out(7);
    assert_eq!(server.free(&one, open.stateid), Ok(()));
    server.is_stable = false;
    server.open(&one, &gone);
    assert_eq!(server.awaited, 0, "that it knows was durable before");
    let mut server = server.restart();
    let one = server.join(1, 1);
    assert!(reclaim(&mut server, &one, &gone).is_ok());
}

#[test]
fn others_have_what_was_revoked_when_that_is_durable() {
    let mut server = Server::new();
    let (one, two) = (server.host(1), server.host(2));
    let gone = of_export(7, 1);
    let open = server.open(&one, &gone);
    server.is_stable = false;
    server.take_out(7);
    server.open(&two, &gone);
    assert_eq!(server.awaited, server.state.record_count());
    // Nor has it something new before it is known that the old is forgotten.
    assert_eq!(server.free(&one, open.stateid), Ok(()));
    server.open(&one, &of_export(8, 1));
    assert_eq!(server.awaited, server.state.record_count());
}
