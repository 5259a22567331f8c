//! CREATE_SESSION, BIND_CONN_TO_SESSION, DESTROY_SESSION.

use super::*;

fn exchanged(server: &mut Server) -> ClientId {
    server
        .exchange(b"client", 1, ExchangeIdFlags::empty(), &Server::peer(1))
        .unwrap()
        .client
}

const ONLY: DestroySessionPlace = DestroySessionPlace::First { is_only: true };

#[test]
fn a_create_session_is_executed_once() {
    // pynfs CSESS4, CSESS5, CSESS7, CSESS8; RFC 8881, section 18.36.4.
    let mut server = Server::new();
    let (client, peer) = (exchanged(&mut server), Server::peer(1));
    assert_eq!(
        server.create(client, 0, &peer),
        Err(Status::SEQ_MISORDERED),
        "none to repeat"
    );
    assert_eq!(server.create(client, 2, &peer), Err(Status::SEQ_MISORDERED));
    let created = server.create(client, 1, &peer).unwrap();
    assert_eq!(server.create(client, 1, &peer), Ok(created));
    assert_eq!(server.create(client, 3, &peer), Err(Status::SEQ_MISORDERED));
    assert_eq!(server.create(client, 0, &peer), Err(Status::SEQ_MISORDERED));
    let second = server.create(client, 2, &peer).unwrap();
    assert_ne!(second.sessionid, created.sessionid);
    assert_eq!(
        server.create(ClientId(99), 1, &peer),
        Err(Status::STALE_CLIENTID),
        "CSESS3"
    );
}

#[test]
fn a_create_session_that_failed_fails_again() {
    // pynfs CSESS6, CSESS9, CSESS10: another principal cannot confirm; afterwards it may join.
    let mut server = Server::new();
    let (client, other) = (exchanged(&mut server), Server::peer(2));
    assert_eq!(server.create(client, 1, &other), Err(Status::CLID_INUSE));
    assert_eq!(server.create(client, 1, &other), Err(Status::CLID_INUSE));
    assert!(server.create(client, 2, &Server::peer(1)).is_ok());
    assert!(server.create(client, 3, &other).is_ok());
}

#[test]
fn what_is_asked_for_is_bounded() {
    // pynfs CSESS22, CSESS15, CSESS29; RFC 8881, section 18.36.3.
    let mut server = Server::new();
    let (client, peer) = (exchanged(&mut server), Server::peer(1));
    let mut create_both = |sequence, flags, channels| {
        let flags = CreateSessionFlags::from_bits_retain(flags);
        server.create_with(client, sequence, &peer, flags, channels)
    };
    let small = |bytes| ChannelAttributes {
        maxrequestsize: bytes,
        ..FORE
    };
    let small_back = create_both(1, 0, [FORE, small(127)]);
    assert_eq!(
        small_back,
        Err(Status::TOOSMALL),
        "and the number is not used up"
    );
    let mut create = |sequence, flags, fore| create_both(sequence, flags, [fore, FORE]);
    let greedy = ChannelAttributes {
        headerpadsize: u32::MAX,
        maxrequestsize: u32::MAX,
        maxresponsesize: u32::MAX,
        maxresponsesize_cached: u32::MAX,
        maxoperations: u32::MAX,
        maxrequests: u32::MAX,
        rdma_ird: Some(u32::MAX),
    };
    let created = create(1, 7, greedy).unwrap();
    assert!(
        created.flags.is_empty(),
        "no back channel, nothing persistent"
    );
    assert_eq!(created.back_chan_attrs, FORE);
    let granted = ChannelAttributes {
        headerpadsize: 0,
        maxrequestsize: limits::REQUEST_BYTES_MAX,
        maxresponsesize: limits::RESPONSE_BYTES_MAX,
        maxresponsesize_cached: limits::CACHED_RESPONSE_BYTES_MAX,
        maxoperations: limits::OPERATIONS_MAX,
        maxrequests: limits::SLOTS_MAX,
        rdma_ird: None,
    };
    assert_eq!(created.fore_chan_attrs, granted);
    assert_eq!(create(2, 8, FORE), Err(Status::INVAL));
    assert_eq!(create(3, 0, small(127)), Err(Status::TOOSMALL));
    assert_eq!(
        create(3, 0, small(128))
            .unwrap()
            .fore_chan_attrs
            .maxrequestsize,
        128
    );
    let none = ChannelAttributes {
        maxrequests: 0,
        ..FORE
    };
    assert_eq!(create(4, 0, none), Err(Status::INVAL));
}

#[test]
fn a_client_has_so_many_sessions() {
    let mut server = Server::new();
    let (client, peer) = (exchanged(&mut server), Server::peer(1));
    for sequence in 1..=16 {
        assert!(server.create(client, sequence, &peer).is_ok());
    }
    assert_eq!(server.create(client, 17, &peer), Err(Status::NOSPC));
}

#[test]
fn the_back_channel_is_declined_where_it_may_be() {
    // RFC 8881, section 18.34.3.
    let mut server = Server::new();
    let host = server.host(1);
    let peer = Server::peer(9);
    let mut bind = |direction| {
        server
            .state
            .bind_conn_to_session(host.session, direction, &peer)
    };
    assert_eq!(
        bind(ClientChannelDirection::ForeOrBoth),
        Ok(ChannelDirection::Fore)
    );
    assert_eq!(
        bind(ClientChannelDirection::Fore),
        Ok(ChannelDirection::Fore)
    );
    assert_eq!(
        bind(ClientChannelDirection::Back),
        Ok(ChannelDirection::Back)
    );
    assert_eq!(
        bind(ClientChannelDirection::BackOrBoth),
        Ok(ChannelDirection::Back)
    );
    let none = SessionId([9; 16]);
    let unknown = server
        .state
        .bind_conn_to_session(none, ClientChannelDirection::Fore, &peer);
    assert_eq!(unknown, Err(Status::BADSESSION));
}

#[test]
fn a_session_is_destroyed_by_a_connection_of_its_own() {
    // pynfs DSESS1, DSESS9001; RFC 8881, section 18.37.3.
    let mut server = Server::new();
    let host = server.host(1);
    let mut rogue = host.clone();
    rogue.peer.connection = ConnId(77);
    let unbound = server
        .state
        .destroy_session(host.session, ONLY, &rogue.peer);
    assert_eq!(unbound, Err(Status::CONN_NOT_BOUND_TO_SESSION));
    server.renew(&rogue, 1).unwrap();
    server.state.connection_ended(host.peer.connection);
    server.settle();
    let unbound = server.state.destroy_session(host.session, ONLY, &host.peer);
    assert_eq!(unbound, Err(Status::CONN_NOT_BOUND_TO_SESSION));
    assert_eq!(
        server
            .state
            .destroy_session(host.session, ONLY, &rogue.peer),
        Ok(())
    );
    assert_eq!(server.renew(&host, 2), Err(Status::BADSESSION));
    let again = server
        .state
        .destroy_session(host.session, ONLY, &rogue.peer);
    assert_eq!(again, Err(Status::BADSESSION));
    server.settle();
}

#[test]
fn destroy_session_has_its_place() {
    // pynfs DSESS9004, DSESS9005; RFC 8881, section 18.37.3.
    let mut server = Server::new();
    let host = server.host(1);
    let session = host.session;
    let mut destroy = |place| server.state.destroy_session(session, place, &host.peer);
    assert_eq!(
        destroy(DestroySessionPlace::First { is_only: false }),
        Err(Status::NOT_ONLY_OP)
    );
    let within = |is_last| DestroySessionPlace::InSession { session, is_last };
    assert_eq!(destroy(within(false)), Err(Status::NOT_ONLY_OP));
    let own = server.begin(&host, 0, 1);
    let other = server.begin(&host, 1, 1);
    let destroy = |server: &mut Server| {
        server
            .state
            .destroy_session(session, within(true), &host.peer)
    };
    assert_eq!(
        destroy(&mut server),
        Err(Status::DELAY),
        "another request is under way"
    );
    server.finish(&other, b"reply");
    assert_eq!(destroy(&mut server), Ok(()));
    server.finish(&own, b"reply");
    assert_eq!(server.state.reply_bytes_used(), 0);
}

#[test]
fn no_client_destroys_a_session_of_another() {
    let mut server = Server::new();
    let (host, other) = (server.host(1), server.host(2));
    let place = DestroySessionPlace::InSession {
        session: other.session,
        is_last: false,
    };
    let result = server
        .state
        .destroy_session(host.session, place, &other.peer);
    assert_eq!(result, Err(Status::CONN_NOT_BOUND_TO_SESSION));
}

#[test]
fn many_connections_of_a_session_are_forgotten_in_turn() {
    let mut server = Server::new();
    let mut host = server.host(1);
    for (sequence, connection) in (100..200).enumerate() {
        host.peer.connection = ConnId(connection);
        server
            .renew(&host, u32::try_from(sequence).unwrap() + 1)
            .unwrap();
    }
    host.peer.connection = ConnId(199 - 64);
    let forgotten = server.state.destroy_session(host.session, ONLY, &host.peer);
    assert_eq!(forgotten, Err(Status::CONN_NOT_BOUND_TO_SESSION));
    host.peer.connection = ConnId(200 - 64);
    assert_eq!(
        server.state.destroy_session(host.session, ONLY, &host.peer),
        Ok(())
    );
}
