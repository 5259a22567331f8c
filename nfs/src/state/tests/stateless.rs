//! What clients without state may do beside those that have some.

use super::*;

fn io(server: &mut Server, access: IoAccess) -> Result<(), Status> {
    let result = server
        .state
        .check_stateless_io(&file(1), access, server.now_us);
    server.settle();
    result
}

#[test]
fn shares_are_denied_to_clients_without_state() {
    let mut server = Server::new();
    let host = server.host(1);
    assert_eq!(io(&mut server, IoAccess::Write), Ok(()));
    let deny = |server: &mut Server, owner: &[u8], deny| {
        server
            .try_open_as(&host, owner, &file(1), (Shares::READ, deny), false)
            .unwrap()
    };
    deny(&mut server, b"none", Shares::NONE);
    assert_eq!(io(&mut server, IoAccess::Write), Ok(()));
    let opened = deny(&mut server, b"writing", Shares::WRITE);
    assert_eq!(io(&mut server, IoAccess::Write), Err(Status::LOCKED));
    assert_eq!(io(&mut server, IoAccess::Read), Ok(()));
    let other = server
        .state
        .check_stateless_io(&file(2), IoAccess::Write, server.now_us);
    assert_eq!(other, Ok(()));
    server
        .state
        .close(host.client, &file(1), opened.stateid)
        .unwrap();
    server.settle();
    assert_eq!(io(&mut server, IoAccess::Write), Ok(()));
}

#[test]
fn who_has_gone_denies_nothing_to_clients_without_state() {
    let mut server = Server::new();
    let host = server.host(1);
    let open = (Shares::READ, Shares::BOTH);
    server
        .try_open_as(&host, b"owner", &file(1), open, false)
        .unwrap();
    assert_eq!(io(&mut server, IoAccess::Read), Err(Status::LOCKED));
    server.take_actions();
    server.wait_us(LEASE_US + 1);
    assert_eq!(io(&mut server, IoAccess::Read), Ok(()));
    let actions = server.take_actions();
    let closes = |action: &Action| matches!(action, Action::Close { .. });
    assert!(actions.iter().any(closes), "{actions:?}");
}

#[test]
fn a_grace_period_is_not_for_clients_without_state() {
    let mut server = Server::new();
    server.host(1);
    let mut server = server.restart();
    assert!(server.state.is_in_grace(server.now_us));
    assert_eq!(io(&mut server, IoAccess::Write), Ok(()));
    assert!(server.state.is_in_grace(server.now_us));
}
