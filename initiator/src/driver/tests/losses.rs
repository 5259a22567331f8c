//! What is said of writes that fail or may be lost.

use capstan_nvme_proto::identify::IdentifyController;
use capstan_nvme_proto::status::Status;
use capstan_rdma::loopback::attributes;

use super::peer::Manner;
use super::{World, config};
use crate::driver::io::Op;
use crate::limits::TROUBLE_QUIET_US;

fn caches(identify: &mut IdentifyController) {
    identify.vwc = 1;
}

/// With a controller that has a volatile write cache, of any make.
fn world() -> World {
    let mut world = World::with(config(), attributes());
    world.peer.controller.identify = caches;
    world.until_live();
    world
}

impl World {
    fn end(&mut self) -> Vec<String> {
        self.engine.shutdown();
        self.until(|world| world.events.iter().any(|event| event == "Closed"));
        self.engine.losses().0
    }
}

#[test]
fn a_shutdown_that_saves_nothing_is_told_of_what_no_flush_had_covered() {
    for (flushed, fails) in [(false, true), (true, true), (false, false)] {
        let mut world = world();
        world.write(0, 1, 1).result.unwrap();
        if flushed {
            world.submit(1, Op::Flush, None);
            world.next().result.unwrap();
        }
        world.peer.controller.shutdown_fails = fails;
        let losses = world.end();
        if flushed || !fails {
            assert_eq!(losses, Vec::<String>::new(), "{flushed} {fails}");
            continue;
        }
        let [text] = &losses[..] else {
            panic!("{losses:?}");
        };
        for words in ["namespace 1", "may be lost", "CSTS.CFS", "restore"] {
            assert!(text.contains(words), "{text}");
        }
        assert_eq!(world.attention(7), None);
    }
}

/// A shutdown saves what is in the places of the namespaces then.
#[test]
fn a_shutdown_covers_no_writes_to_a_namespace_that_was_taken_out_or_replaced() {
    let takes_out: fn(&mut World) = |world| world.peer.controller.namespaces = vec![7];
    let replaces: fn(&mut World) = |world| world.peer.controller.nguid = [8; 16];
    for changes in [takes_out, replaces] {
        for flushed in [false, true] {
            let mut world = world();
            world.write(0, 1, 1).result.unwrap();
            if flushed {
                world.submit(1, Op::Flush, None);
                world.next().result.unwrap();
            }
            changes(&mut world);
            world.peer.drop_connections();
            world.until(|world| !world.engine.host().is_live());
            world.until_live();
            let losses = world.end();
            assert_eq!(losses.is_empty(), flushed, "{losses:?}");
            for text in losses {
                for words in ["namespace 1", "may be lost", "put in its place", "restore"] {
                    assert!(text.contains(words), "{text}");
                }
            }
        }
    }
}

#[test]
fn whoever_has_written_nothing_has_lost_nothing() {
    let mut world = world();
    world.read(0, 1);
    world.peer.controller.shutdown_fails = true;
    assert_eq!(world.end(), Vec::<String>::new());
}

#[test]
fn a_controller_that_is_not_shut_down_leaves_it_unknown() {
    let mut worlds = [world(), world(), world()];
    for world in &mut worlds {
        world.write(0, 1, 1).result.unwrap();
    }
    let [silent, unreachable, given_up] = &mut worlds;
    silent.peer.controller.shutdown_hangs = true;
    unreachable.peer.refuse = true;
    unreachable.peer.drop_connections();
    unreachable.until(|world| !world.engine.host().is_live());
    given_up.peer.refuse = true;
    given_up.peer.drop_connections();
    given_up.until(|world| world.events.iter().any(|event| event.starts_with("failed")));
    assert!(given_up.attention(1).unwrap().contains("connect anew"));
    let losses = [silent.end(), unreachable.end(), given_up.engine.losses().0];
    for losses in losses {
        let [text] = &losses[..] else {
            panic!("{losses:?}");
        };
        for words in ["namespace 1", "is unknown", "Volume::flush"] {
            assert!(text.contains(words), "{text}");
        }
    }
}

#[test]
fn a_reset_that_saves_nothing_is_told_while_the_volume_goes_on() {
    let mut world = world();
    world.write(0, 1, 1).result.unwrap();
    world.peer.controller.shutdown_fails = true;
    let now_us = world.now_us();
    world.engine.reset(now_us);
    world.until(|world| !world.engine.host().is_live());
    world.until_live();
    world.peer.controller.shutdown_fails = false;
    let text = world.attention(1).unwrap();
    assert!(text.contains("CSTS.CFS"), "{text}");
    // A Flush covers what was written since.
    world.submit(1, Op::Flush, None);
    world.next().result.unwrap();
    assert_eq!(world.end().len(), 1);
}

#[test]
fn a_flush_that_failed_is_told_for_good_and_at_the_end() {
    let mut world = world();
    for _ in 0..2 {
        world.peer.manner = Manner::Fail(Status::WRITE_FAULT.dnr().more());
        world.submit(1, Op::Flush, None);
        let error = world.next().result.unwrap_err().to_string();
        assert!(
            error.starts_with("Flush of namespace 1: Write Fault"),
            "{error}"
        );
        assert!(error.contains("capstan-target doctor"), "{error}");
        world.peer.manner = Manner::Proper;
        world.submit(2, Op::Flush, None);
        world.next().result.unwrap();
    }
    world.pass(2 * TROUBLE_QUIET_US);
    let text = world.attention(1).unwrap();
    assert!(text.contains("a Flush failed with Write Fault"), "{text}");
    assert_eq!(world.end(), [text]);
}

#[test]
fn writes_and_reads_that_fail_are_told_until_they_succeed_again() {
    let mut world = world();
    world.peer.manner = Manner::Fail(Status::RESERVATION_CONFLICT.dnr());
    world.write(0, 1, 1).result.unwrap_err();
    world.submit(1, Op::Discard { slba: 0, nlb: 1 }, None);
    world.next().result.unwrap_err();
    world.peer.manner = Manner::Fail(Status::UNRECOVERED_READ_ERROR);
    let buffer = world.buffer(1, 0);
    world.submit(2, Op::Read { slba: 0, nlb: 1 }, Some(buffer));
    world.next().result.unwrap_err();
    // What differs is an answer.
    world.peer.manner = Manner::Fail(Status::COMPARE_FAILURE);
    let buffer = world.buffer(1, 0);
    world.submit(3, Op::Compare { slba: 0, nlb: 1 }, Some(buffer));
    world.next().result.unwrap_err();
    world.pass(10 * TROUBLE_QUIET_US);
    let text = world.attention(1).unwrap();
    for words in [
        "writes to namespace 1 fail with Reservation Conflict",
        ", 2 so far; another host has reserved it",
        "; reads of namespace 1 fail with Unrecovered Read Error",
    ] {
        assert!(text.contains(words), "{text}");
    }
    assert!(!text.contains("Compare"), "{text}");
    world.peer.manner = Manner::Proper;
    world.write(0, 1, 1).result.unwrap();
    world.read(0, 1);
    assert_eq!(world.attention(1), None);
    // Who wrote has the errors: nothing is lost.
    assert_eq!(world.end(), Vec::<String>::new());
}

#[test]
fn writes_that_were_never_answered_are_told_when_the_association_fails() {
    let mut world = world();
    world.peer.manner = Manner::Silent;
    for slba in 0..3 {
        let buffer = world.buffer(1, 1);
        let op = Op::Write {
            slba,
            nlb: 1,
            fua: true,
        };
        world.submit(slba, op, Some(buffer));
    }
    world.until(|world| world.peer.commands.len() == 3);
    world.peer.refuse = true;
    world.peer.drop_connections();
    for _ in 0..3 {
        world.next().result.unwrap_err();
    }
    let text = world.attention(1).unwrap();
    for words in [
        "all I/O to namespace 1 fails",
        "connect anew",
        "3 writes to namespace 1, sent and never answered,",
    ] {
        assert!(text.contains(words), "{text}");
    }
    assert_eq!(world.engine.losses().0.len(), 1);
}
