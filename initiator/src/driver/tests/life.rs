//! Connections that do not come, break, or end.

use std::sync::Arc;

use capstan_rdma::loopback::{Fault, Notified, attributes};

use super::peer::Manner;
use super::{World, config};
use crate::driver::io::{Io, Op, Source};
use crate::error::{ConnectError, IoError};
use crate::host::AssociationStatus;
use crate::scripted::LBA_BYTES;

#[test]
fn what_was_outstanding_when_the_connection_broke_is_done_after_the_reconnect() {
    let mut world = World::live();
    world.peer.manner = Manner::Silent;
    for token in 0..10 {
        let buffer = world.buffer(1, 0x60 + u8::try_from(token).unwrap());
        let op = Op::Write {
            slba: token,
            nlb: 1,
            fua: false,
        };
        world.submit(token, op, Some(buffer));
    }
    world.until(|world| world.peer.commands.len() == 10);
    world.peer.drop_connections();
    world.peer.manner = Manner::Proper;
    let mut tokens: Vec<_> = (0..10)
        .map(|_| {
            let completion = world.next();
            completion.result.unwrap();
            completion.token
        })
        .collect();
    tokens.sort_unstable();
    assert_eq!(tokens, (0..10).collect::<Vec<_>>());
    for token in 0..10 {
        assert_eq!(
            world.peer.disk[token * LBA_BYTES],
            0x60 + u8::try_from(token).unwrap()
        );
    }
    assert_eq!(world.events[2..], ["live true", "WritesReleased"]);
}

#[test]
fn every_loss_in_a_run_of_writes_leaves_every_acknowledged_block() {
    for connection in 0..40 {
        let mut world = World::live();
        let mut expected = [0_u8; 64];
        for round in 0..6_u8 {
            if round % 2 == 1 {
                world.network.strike(Fault::LoseConnection {
                    connection: None,
                    at_us: world.now_us(),
                    notified: [
                        Notified::Both,
                        Notified::Active,
                        Notified::Passive,
                        Notified::Neither,
                    ][usize::from(round / 2 + connection) % 4],
                });
            }
            for block in 0..64_u8 {
                let fill = round.wrapping_mul(67).wrapping_add(block) | 1;
                let buffer = world.buffer(1, fill);
                let op = Op::Write {
                    slba: block.into(),
                    nlb: 1,
                    fua: false,
                };
                if world.engine.in_progress() == 20 {
                    world.next().result.unwrap();
                }
                world.submit(block.into(), op, Some(buffer));
                expected[usize::from(block)] = fill;
            }
            while world.engine.in_progress() > 0 {
                world.next().result.unwrap();
            }
            for (block, fill) in expected.iter().enumerate() {
                assert_eq!(world.peer.disk[block * LBA_BYTES], *fill, "round {round}");
            }
        }
    }
}

#[test]
fn io_waits_for_a_lost_controller_and_fails_after_ctrl_loss_tmo() {
    let mut world = World::live();
    world.peer.refuse = true;
    world.peer.drop_connections();
    world.until(|world| !world.engine.host().is_live());
    let buffer = world.buffer(1, 0);
    world.submit(1, Op::Read { slba: 0, nlb: 1 }, Some(buffer));
    world.pass(30_000_000);
    let status = world.engine.status(world.now_us()).to_string();
    assert!(status.starts_with("reconnecting: attempt"), "{status}");
    assert!(status.contains("No Resources"), "{status}");
    assert!(world.engine.poll_completion().is_none());
    let start = world.now_us();
    let error = world.next().result.unwrap_err();
    assert!(matches!(error, IoError::ControllerLost(_)), "{error}");
    assert!((29_000_000..=31_000_000).contains(&(world.now_us() - start)));
    assert!(matches!(
        world.engine.status(0),
        AssociationStatus::Failed(_)
    ));
    let late = world.engine.submit(
        Source::default(),
        2,
        Io {
            nsid: 1,
            op: Op::Flush,
        },
        None,
    );
    assert!(late.is_err());
    assert_eq!(world.peer.connections(), 0);
}

/// A target whose fence does not open within its bound ends the association that waits. Commands
/// wait through that, and are carried out when the target is ready.
#[test]
fn an_association_that_ends_before_it_is_ready_fails_no_command() {
    let mut world = World::live();
    world.peer.manner = Manner::Silent;
    let buffer = world.buffer(1, 0x5A);
    let write = Op::Write {
        slba: 3,
        nlb: 1,
        fua: false,
    };
    world.submit(1, write, Some(buffer));
    world.until(|world| world.peer.commands.len() == 1);
    world.peer.controller.polls_before_ready = u32::MAX;
    world.peer.drop_connections();
    world.peer.manner = Manner::Proper;
    for _ in 0..2 {
        let waits = |world: &mut World| {
            let status = world.engine.status(world.now_us()).to_string();
            status.contains("waiting for CSTS.RDY")
        };
        world.until(waits);
        world.peer.drop_connections();
        world.until(|world| !waits(world));
    }
    assert!(world.engine.poll_completion().is_none());
    world.peer.controller.polls_before_ready = 0;
    world.next().result.unwrap();
    assert_eq!(world.peer.disk[3 * LBA_BYTES], 0x5A);
}

#[test]
fn a_command_that_kills_the_connection_each_time_is_given_up() {
    let mut world = World::live();
    world.peer.manner = Manner::Overrun;
    let buffer = world.buffer(1, 0);
    world.submit(1, Op::Read { slba: 0, nlb: 1 }, Some(buffer));
    let error = world.next().result.unwrap_err();
    assert!(
        matches!(error, IoError::Replays { replays: 11, .. }),
        "{error}"
    );
    let text = error.to_string();
    let (_, cause) = text.split_once("the last connection was lost: ").unwrap();
    assert!(
        !cause.is_empty() && cause != ConnectError::Closed.to_string(),
        "{text}"
    );
}

#[test]
fn an_unanswered_io_ends_the_connection_after_the_io_timeout() {
    let mut world = World::live();
    world.peer.manner = Manner::Silent;
    world.submit(1, Op::Flush, None);
    let start = world.now_us();
    world.until(|world| world.events.len() > 1);
    assert!(
        world.events[1].starts_with("lost: an I/O command did not finish within 5"),
        "{:?}",
        world.events
    );
    assert!((5_000_000..=6_000_000).contains(&(world.now_us() - start)));
    world.peer.manner = Manner::Proper;
    world.next().result.unwrap();
}

#[test]
fn a_shutdown_finishes_what_is_in_progress_and_refuses_more() {
    let mut world = World::live();
    for token in 0..20 {
        let buffer = world.buffer(1, 7);
        let op = Op::Write {
            slba: token,
            nlb: 1,
            fua: false,
        };
        world.submit(token, op, Some(buffer));
    }
    world.engine.shutdown();
    let io = Io {
        nsid: 1,
        op: Op::Flush,
    };
    let refused = world.engine.submit(Source::default(), 99, io, None);
    assert!(refused.is_err());
    for _ in 0..20 {
        world.next().result.unwrap();
    }
    world.until(|world| world.events.contains(&"Closed".to_owned()));
    assert!(world.peer.controller.shutdown);
    world.until(|world| world.peer.connections() == 0);
}

#[test]
fn a_failed_first_connect_says_why() {
    let mut world = World::with(config(), attributes());
    world.peer.refuse = true;
    world.until(|world| !world.events.is_empty());
    assert!(
        world.events[0].contains("RDMA_CM reject: No Resources"),
        "{:?}",
        world.events
    );
    assert_eq!(Arc::strong_count(world.engine.data_pool().slab()), 1 + 1);
}
