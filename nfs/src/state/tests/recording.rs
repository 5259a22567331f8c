//! Which answers wait for records.

use super::*;

/// A server whose records are not durable from now on.
fn unstable() -> Server {
    let mut server = Server::new();
    server.is_stable = false;
    server
}

fn durable(server: &mut Server) {
    let count = server.state.record_count();
    server.state.recorded(count);
}

#[test]
fn a_client_waits_for_its_own_record_and_others_do_not() {
    let mut server = Server::new();
    let here = server.host(1);
    server.is_stable = false;
    let new = server.join(2, 1);
    assert_eq!(server.awaited, 0, "nothing was there to be lost");
    server.complete_reclaim(&new).unwrap();
    assert_eq!(server.awaited, server.state.record_count());
    server.renew(&here, 1).unwrap();
    assert_eq!(server.awaited, 0);
    server.open(&here, &file(1));
    assert_eq!(server.awaited, 0);
    server.renew(&new, 1).unwrap();
    assert_eq!(server.awaited, 0, "the slot is not to be lost");
    server.open(&new, &file(1));
    assert_ne!(server.awaited, 0);
    // It was told to wait, and asks again.
    assert_eq!(server.complete_reclaim(&new), Ok(()));
    assert_ne!(server.awaited, 0);
    durable(&mut server);
    assert_eq!(server.complete_reclaim(&new), Err(Status::COMPLETE_ALREADY));
    server.open(&new, &file(1));
    assert_eq!(server.awaited, 0);
}

#[test]
fn what_a_client_has_lost_is_given_to_others_when_that_is_durable() {
    let mut server = Server::new();
    let (gone, here) = (server.host(1), server.host(2));
    for number in 1..3 {
        let opened = server.try_open(&gone, &file(number), Shares::BOTH, Shares::BOTH, false);
        opened.unwrap();
    }
    server.wait_us(LEASE_US + 1);
    server.renew(&here, 1).unwrap();
    server.is_stable = false;
    server.open(&here, &file(1));
    let lost = server.state.record_count();
    assert_eq!(server.awaited, lost);
    server.open(&here, &file(3));
    assert_eq!(server.awaited, 0, "it had nothing of that");
    let now_us = server.now_us;
    for number in 1..4 {
        let read = server
            .state
            .check_stateless_io(&file(number), IoAccess::Read, now_us);
        read.unwrap();
        server.settle();
        assert_eq!(server.awaited, if number < 3 { lost } else { 0 });
        let opened = server.io(&here, &file(number), Stateid::ANONYMOUS, IoAccess::Read);
        opened.unwrap();
        assert_eq!(server.awaited, if number < 3 { lost } else { 0 });
    }
    // Its next instance as well.
    let next = server.join(1, 2);
    assert_eq!(server.awaited, lost);
    durable(&mut server);
    server.open(&here, &file(2));
    assert_eq!(server.awaited, 0);
    assert_eq!(server.state.client_of(next.session), Some(next.client));
}

#[test]
fn the_end_of_a_grace_period_is_durable_before_an_open() {
    let mut server = Server::new();
    server.host(1);
    let mut server = server.restart();
    let new = server.host(2);
    server.is_stable = false;
    server.wait_us(GRACE_US);
    server.renew(&new, 1).unwrap();
    assert_eq!(server.awaited, 0);
    server.open(&new, &file(1));
    assert_eq!(server.awaited, server.state.record_count());
}

#[test]
fn records_that_cannot_be_written_are_bounded() {
    let mut server = unstable();
    let mut refused = 0;
    for number in 0..2 * limits::UNRECORDED_MAX {
        // Its instance before goes.
        let new = server.join(1, number);
        match server.complete_reclaim(&new) {
            Ok(()) => {}
            Err(status) => {
                assert_eq!(status, Status::DELAY);
                assert_eq!(
                    server.awaited,
                    server.state.record_count(),
                    "they are tried"
                );
                refused += 1;
            }
        }
    }
    assert!(refused > 0);
    assert!(server.durable.len() as u64 <= limits::UNRECORDED_MAX + 2);
    durable(&mut server);
    server.host(2);
}
