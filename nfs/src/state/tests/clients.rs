//! EXCHANGE_ID, leases, DESTROY_CLIENTID.

use super::*;

const NONE: ExchangeIdFlags = ExchangeIdFlags::empty();
const CONFIRMED_R: ExchangeIdFlags = ExchangeIdFlags::CONFIRMED_R;
const UPD_CONFIRMED_REC_A: ExchangeIdFlags = ExchangeIdFlags::UPD_CONFIRMED_REC_A;
const USE_NON_PNFS: ExchangeIdFlags = ExchangeIdFlags::USE_NON_PNFS;

const NAME: &[u8] = b"client";

/// A confirmed record of [`NAME`], by the first peer with verifier 1.
fn confirmed(server: &mut Server) -> (ClientId, CreateSessionOk) {
    let peer = Server::peer(1);
    let exchanged = server.exchange(NAME, 1, NONE, &peer).unwrap();
    let created = server.create(exchanged.client, 1, &peer).unwrap();
    (exchanged.client, created)
}

#[test]
fn case_1_and_4_make_a_new_record() {
    // pynfs EID1, EID5a to EID5d: whatever is the same, an unconfirmed record is replaced.
    for (other_verifier, other_peer) in [(1, 1), (1, 2), (2, 1), (2, 2)] {
        let mut server = Server::new();
        let first = server.exchange(NAME, 1, NONE, &Server::peer(1)).unwrap();
        assert_eq!((first.sequence, first.flags), (1, USE_NON_PNFS));
        let peer = Server::peer(other_peer);
        let second = server.exchange(NAME, other_verifier, NONE, &peer).unwrap();
        assert_ne!(first.client, second.client);
        assert_eq!(
            server.create(first.client, 1, &peer),
            Err(Status::STALE_CLIENTID)
        );
        assert!(server.create(second.client, 1, &peer).is_ok());
    }
}

#[test]
fn case_2_finds_the_confirmed_record() {
    // pynfs EID5h.
    let mut server = Server::new();
    let (client, _) = confirmed(&mut server);
    let again = server.exchange(NAME, 1, NONE, &Server::peer(1)).unwrap();
    let expected = ExchangedId {
        client,
        sequence: 2,
        flags: USE_NON_PNFS | CONFIRMED_R,
    };
    assert_eq!(again, expected);
}

#[test]
fn case_3_is_another_principal() {
    // pynfs EID5e and EID5g: without state the owner is the other's, with some it is in use.
    let mut server = Server::new();
    let (client, created) = confirmed(&mut server);
    let other = Server::peer(2);
    assert_eq!(
        server.exchange(NAME, 2, NONE, &other),
        Err(Status::CLID_INUSE)
    );
    assert_eq!(
        server.exchange(NAME, 1, NONE, &other),
        Err(Status::CLID_INUSE)
    );
    let only = DestroySessionPlace::First { is_only: true };
    server
        .state
        .destroy_session(created.sessionid, only, &Server::peer(1))
        .unwrap();
    let new = server.exchange(NAME, 2, NONE, &other).unwrap();
    assert_ne!(new.client, client);
    assert_eq!(
        server.create(client, 2, &Server::peer(1)),
        Err(Status::STALE_CLIENTID)
    );
    // And when the lease has expired.
    let mut server = Server::new();
    let (client, created) = confirmed(&mut server);
    server.wait_us(LEASE_US + 1);
    assert_ne!(
        server.exchange(NAME, 1, NONE, &other).unwrap().client,
        client
    );
    assert_eq!(server.state.client_of(created.sessionid), None);
}

#[test]
fn case_5_keeps_the_old_state_until_it_is_confirmed() {
    // pynfs EID5f, EID5fb.
    let mut server = Server::new();
    let host = server.host(1);
    server.open(&host, &file(1));
    let new = server.exchange(&host.name, 2, NONE, &host.peer).unwrap();
    assert_ne!(new.client, host.client);
    assert_eq!(server.renew(&host, 1), Ok(()));
    assert!(server.take_actions().is_empty());
    let created = server.create(new.client, 1, &host.peer).unwrap();
    assert_eq!(server.renew(&host, 2), Err(Status::BADSESSION));
    let [Action::Close { .. }, Action::EndClient { client }] = server.take_actions()[..] else {
        panic!("its open, and it");
    };
    assert_eq!(client, host.client);
    assert_eq!(server.state.client_of(created.sessionid), Some(new.client));
    assert_eq!(
        owners(&server.durable),
        BTreeSet::new(),
        "the old one may not reclaim"
    );
}

#[test]
fn case_5_waits_for_requests_under_way() {
    let mut server = Server::new();
    let host = server.host(1);
    let request = server.begin(&host, 0, 1);
    let new = server.exchange(&host.name, 2, NONE, &host.peer).unwrap();
    assert_eq!(server.create(new.client, 1, &host.peer), Err(Status::DELAY));
    server.finish(&request, b"");
    assert!(
        server.create(new.client, 1, &host.peer).is_ok(),
        "the same number again"
    );
}

#[test]
fn cases_6_to_9_are_updates() {
    // pynfs EID6, EID6a to EID6h.
    let mut server = Server::new();
    let (first, second) = (Server::peer(1), Server::peer(2));
    assert_eq!(
        server.exchange(NAME, 1, UPD_CONFIRMED_REC_A, &first),
        Err(Status::NOENT)
    );
    server.exchange(NAME, 1, NONE, &first).unwrap();
    assert_eq!(
        server.exchange(NAME, 1, UPD_CONFIRMED_REC_A, &first),
        Err(Status::NOENT)
    );
    let (client, _) = confirmed(&mut server);
    let mut update = |verifier, peer| server.exchange(NAME, verifier, UPD_CONFIRMED_REC_A, peer);
    let updated = update(1, &first).unwrap();
    assert_eq!(
        (updated.client, updated.flags & CONFIRMED_R),
        (client, CONFIRMED_R)
    );
    assert_eq!(update(2, &first), Err(Status::NOT_SAME));
    assert_eq!(update(1, &second), Err(Status::PERM));
    assert_eq!(update(2, &second), Err(Status::PERM));
}

#[test]
fn flags_and_protection_that_are_not_there_are_refused() {
    // pynfs EID4; RFC 8881, section 18.35.3.
    let mut server = Server::new();
    let peer = Server::peer(1);
    for bits in [4, 0x8, CONFIRMED_R.bits()] {
        let flags = ExchangeIdFlags::from_bits_retain(bits);
        assert_eq!(
            server.exchange(NAME, 1, flags, &peer),
            Err(Status::INVAL),
            "{bits:#x}"
        );
    }
    let all = ExchangeIdFlags::from_bits_retain(0x0007_0103);
    assert!(server.exchange(NAME, 1, all, &peer).is_ok());
    let mut arguments = exchange_arguments(NAME, ExchangeIdFlags::SUPP_FENCE_OPS);
    let version_2 = server.state.exchange_id(&arguments, 2, &peer, 1, 0);
    assert!(version_2.is_ok(), "RFC 7862, section 14.1");
    let nothing = Bitmap::default();
    let ops = StateProtectOps {
        must_enforce: nothing,
        must_allow: nothing,
    };
    let ssv = SsvParameters {
        ops,
        hash_algs: List::default(),
        encr_algs: List::default(),
        window: 1,
        num_gss_handles: 1,
    };
    for (protection, status) in [
        (StateProtect::Ssv(ssv), Status::ENCR_ALG_UNSUPP),
        (StateProtect::MachineCredential(ops), Status::INVAL),
    ] {
        arguments.state_protect = protection;
        assert_eq!(
            server.state.exchange_id(&arguments, 2, &peer, 1, 0),
            Err(status)
        );
    }
}

#[test]
fn a_client_that_renews_keeps_its_state() {
    let mut server = Server::new();
    let (host, other) = (server.host(1), server.host(2));
    server
        .try_open(&host, &file(1), Shares::READ, Shares::WRITE, false)
        .unwrap();
    for sequence in 1..6 {
        server.wait_us(LEASE_US - 1);
        server.renew(&host, sequence).unwrap();
    }
    server.renew(&other, 1).unwrap();
    let denied = server.try_open(&other, &file(1), Shares::WRITE, Shares::NONE, false);
    assert_eq!(denied, Err(Status::SHARE_DENIED));
}

#[test]
fn state_without_a_lease_is_kept_until_another_client_wants_it() {
    // RFC 8881, section 8.4.3; pynfs COUR2 to COUR6.
    let mut server = Server::new();
    let (host, other) = (server.host(1), server.host(2));
    let opened = server
        .try_open(&host, &file(1), Shares::READ, Shares::WRITE, false)
        .unwrap();
    server.wait_us(10 * LEASE_US);
    server.state.handle_timers(server.now_us);
    server.renew(&other, 1).unwrap();
    server.open(&other, &file(2));
    let read = server.try_open(&other, &file(1), Shares::READ, Shares::NONE, false);
    assert!(read.is_ok(), "nothing is in its way");
    assert!(server.take_actions().is_empty());
    server.renew(&host, 1).unwrap();
    assert!(
        server
            .io(&host, &file(1), opened.stateid, IoAccess::Read)
            .is_ok()
    );
    // And now another one is in its way.
    server.wait_us(LEASE_US + 1);
    server.renew(&other, 2).unwrap();
    server
        .try_open(&other, &file(1), Shares::WRITE, Shares::NONE, false)
        .unwrap();
    let action = Action::Close {
        open: opened.open,
        file: file(1),
    };
    let client = host.client;
    let ended = Action::EndClient { client };
    assert_eq!(server.take_actions(), [action, ended]);
    assert_eq!(server.renew(&host, 2), Err(Status::BADSESSION));
    assert_eq!(
        owners(&server.durable),
        BTreeSet::from([other.name]),
        "before the answer"
    );
}

#[test]
fn state_without_a_lease_ends_after_a_day() {
    let mut server = Server::new();
    let host = server.host(1);
    server.open(&host, &file(1));
    let timer = server.state.next_timer_us().unwrap();
    assert_eq!(timer, server.now_us + limits::COURTESY_US_MAX + 1);
    server.now_us = timer - 1;
    server.state.handle_timers(server.now_us);
    assert_eq!(server.state.client_count(), 1);
    server.now_us = timer;
    server.state.handle_timers(server.now_us);
    server.settle();
    assert_eq!(
        (server.state.client_count(), server.state.bytes_used()),
        (0, 0)
    );
    assert_eq!(server.state.next_timer_us(), None);
}

#[test]
fn a_client_with_a_request_under_way_is_not_ended() {
    let mut server = Server::new();
    let (host, other) = (server.host(1), server.host(2));
    server
        .try_open(&host, &file(1), Shares::READ, Shares::WRITE, false)
        .unwrap();
    let request = server.begin(&host, 0, 1);
    server.wait_us(LEASE_US + 1);
    let write =
        |server: &mut Server| server.try_open(&other, &file(1), Shares::WRITE, Shares::NONE, false);
    assert_eq!(write(&mut server), Err(Status::SHARE_DENIED));
    server.finish(&request, b"");
    assert!(write(&mut server).is_ok());
}

#[test]
fn a_request_that_takes_a_day_keeps_its_client() {
    let mut server = Server::new();
    let host = server.host(1);
    let request = server.begin(&host, 0, 1);
    server.wait_us(limits::COURTESY_US_MAX + 1);
    server.state.handle_timers(server.now_us);
    assert!(
        server.state.next_timer_us() > Some(server.now_us),
        "no timer is due again at once"
    );
    server.finish(&request, b"");
    assert_eq!(server.renew(&host, 2), Ok(()));
}

#[test]
fn destroy_clientid_asks_for_nothing_to_be_left() {
    // pynfs DESCID1 to DESCID8; RFC 8881, section 18.50.3.
    let mut server = Server::new();
    let peer = Server::peer(1);
    assert_eq!(
        server.state.destroy_clientid(ClientId(0), 0),
        Err(Status::STALE_CLIENTID)
    );
    let unconfirmed = server.exchange(NAME, 1, NONE, &peer).unwrap().client;
    assert_eq!(server.state.destroy_clientid(unconfirmed, 0), Ok(()));
    assert_eq!(
        server.state.destroy_clientid(unconfirmed, 0),
        Err(Status::STALE_CLIENTID)
    );
    let host = server.host(1);
    let opened = server.open(&host, &file(1));
    let destroy = |server: &mut Server| {
        let result = server.state.destroy_clientid(host.client, server.now_us);
        server.settle();
        result
    };
    assert_eq!(destroy(&mut server), Err(Status::CLIENTID_BUSY));
    server
        .state
        .close(host.client, &file(1), opened.stateid)
        .unwrap();
    assert_eq!(
        destroy(&mut server),
        Err(Status::CLIENTID_BUSY),
        "a session is left"
    );
    let only = DestroySessionPlace::First { is_only: true };
    server
        .state
        .destroy_session(host.session, only, &peer)
        .unwrap();
    assert_eq!(destroy(&mut server), Ok(()));
    assert_eq!(
        (server.state.bytes_used(), server.state.reply_bytes_used()),
        (0, 0)
    );
    assert_eq!(owners(&server.durable), BTreeSet::new());
}

#[test]
fn numbers_of_clients_cannot_be_guessed_and_do_not_meet() {
    let mut server = Server::new();
    let peer = Server::peer(1);
    let mut exchange = |name: &[u8]| {
        let arguments = exchange_arguments(name, NONE);
        server
            .state
            .exchange_id(&arguments, 1, &peer, 0xFFFF_FFFF, 0)
            .unwrap()
            .client
    };
    assert_eq!(exchange(b"a"), ClientId(0x1_FFFF_FFFF));
    assert_eq!(
        exchange(b"b"),
        ClientId(0x1_0000_0000),
        "the next that is free"
    );
}
