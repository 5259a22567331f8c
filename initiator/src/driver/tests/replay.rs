//! What is issued again after a loss, when, and what is not.

use capstan_nvme_proto::command::{CrossControllerReset, IoCommand};
use capstan_nvme_proto::identify::{CapstanBlock, CapstanCapabilities, IdentifyController};
use capstan_nvme_proto::log::CrossControllerResetStatus;
use capstan_nvme_proto::sqe::Sqe;

use super::peer::Manner;
use super::{World, config};
use crate::driver::io::{Io, Op, Source};
use crate::error::{CommandError, IoError};
use crate::host::CommandData;
use crate::options::ReplayWrites;
use crate::scripted::{CNTLID, LBA_BYTES, ResetManner};

fn resets(identify: &mut IdentifyController) {
    identify.ciu = 7;
    identify.cirn = 99.into();
    identify.ccrl = 4;
    identify.oaes = (1 << 8 | 1 << 20).into();
}

/// A Capstan target with a volatile write cache, of one boot of its machine.
fn booted(identify: &mut IdentifyController, boot: u8) {
    identify.vwc = 1;
    identify.set_capstan(&CapstanBlock::new(CapstanCapabilities::empty(), [boot; 16]));
}

fn without_cache(identify: &mut IdentifyController, boot: u8) {
    booted(identify, boot);
    identify.vwc = 0;
}

fn world_of(identify: fn(&mut IdentifyController), kato_ms: u32, replay: ReplayWrites) -> World {
    let mut config = config();
    config.host.kato_ms = kato_ms;
    config.host.replay_writes = replay;
    let mut world = World::with(config, capstan_rdma::loopback::attributes());
    world.peer.controller.identify = identify;
    world.until_live();
    world
}

impl World {
    /// A write whose answer does not come.
    fn unanswered_write(&mut self, slba: u64, fill: u8) {
        self.peer.manner = Manner::Silent;
        let before = self.peer.commands.len();
        let buffer = self.buffer(1, fill);
        self.submit(slba, write(slba), Some(buffer));
        self.until(|world| world.peer.commands.len() > before);
        self.peer.manner = Manner::Proper;
    }

    /// Loses the association and waits for the next.
    fn lose(&mut self) {
        self.peer.commands.clear();
        self.peer.drop_connections();
        self.until(|world| !world.engine.host().is_live());
        self.until_live();
    }

    fn writes_that_came(&self) -> Vec<u64> {
        let slba = |command: &IoCommand| match command {
            IoCommand::Write(write) => Some(write.range.slba),
            _ => None,
        };
        self.peer.commands.iter().filter_map(slba).collect()
    }

    fn flush(&mut self) -> Result<(), IoError> {
        self.submit(0, Op::Flush, None);
        self.next().result
    }
}

fn write(slba: u64) -> Op {
    Op::Write {
        slba,
        nlb: 1,
        fua: false,
    }
}

#[test]
fn nothing_that_changes_media_is_sent_before_the_old_controller_is_gone() {
    let mut world = world_of(resets, 5000, ReplayWrites::Fenced);
    world.peer.controller.reset_manner = ResetManner::Goes(CrossControllerResetStatus::IN_PROGRESS);
    world.unanswered_write(5, 0xAA);
    world.lose();
    // Behind it: another write, and the others of its kind.
    let buffer = world.buffer(1, 0xBB);
    world.submit(6, write(6), Some(buffer));
    let zeroes = Op::WriteZeroes {
        slba: 7,
        nlb: 1,
        may_deallocate: false,
        fua: false,
    };
    world.submit(7, zeroes, None);
    world.submit(8, Op::Discard { slba: 8, nlb: 1 }, None);
    // Reads and Flush go on, though they were submitted later.
    assert_eq!(world.read(5, 1), [0; LBA_BYTES]);
    world.flush().unwrap();
    world.pass(20_000_000);
    assert_eq!(world.peer.commands.len(), 2, "{:?}", world.peer.commands);
    let now_us = world.now_us();
    let held = world.engine.held(now_us).unwrap();
    assert_eq!(held.cntlid, CNTLID);
    // So do commands that are sent as they are.
    let write = Sqe::new(0x01, 0, 1);
    let refused = world
        .engine
        .submit_passthru(1, write, &CommandData::None, now_us);
    assert!(matches!(refused, Err(CommandError::Held(_))), "{refused:?}");
    let flush = Sqe::new(0x00, 0, 1);
    world
        .engine
        .submit_passthru(2, flush, &CommandData::None, now_us)
        .unwrap();

    world.peer.commands.clear();
    world.peer.controller.reset_manner = ResetManner::Goes(CrossControllerResetStatus::SUCCESSFUL);
    for _ in 5..=8 {
        world.next().result.unwrap();
    }
    assert_eq!(world.writes_that_came(), [5, 6]);
    let disk = |lba: usize| world.peer.disk[lba * LBA_BYTES];
    assert_eq!([5, 6, 7, 8].map(disk), [0xAA, 0xBB, 0, 0xDD]);
    let asked = CrossControllerReset {
        icid: CNTLID,
        ciu: 7,
        cirn: 99,
    };
    assert_eq!(world.peer.controller.resets, [asked]);
    assert_eq!(world.engine.held(world.now_us()), None);
}

#[test]
fn nothing_is_sent_again_to_another_namespace_that_has_the_place_of_its_own() {
    let mut world = world_of(resets, 5000, ReplayWrites::Immediate);
    world.unanswered_write(5, 0xAA);
    world.peer.manner = Manner::Silent;
    let buffer = world.buffer(1, 0);
    world.submit(6, Op::Read { slba: 6, nlb: 1 }, Some(buffer));
    world.until(|world| world.peer.commands.len() == 2);
    world.peer.manner = Manner::Proper;
    let own = std::mem::replace(&mut world.peer.controller.nguid, [8; 16]);
    world.lose();
    for _ in 0..2 {
        let error = world.next().result.unwrap_err().to_string();
        assert!(error.contains("its NGUID changed"), "{error}");
    }
    world.pass(20_000_000);
    assert_eq!(world.peer.commands, []);
    assert_eq!(world.peer.disk[5 * LBA_BYTES], 0);
    // The one that it had is back.
    world.peer.controller.nguid = own;
    world.lose();
    world.write(5, 1, 0xBB).result.unwrap();
    assert_eq!(world.peer.disk[5 * LBA_BYTES], 0xBB);
}

#[test]
fn immediate_replay_sends_them_at_once() {
    let mut world = world_of(|_| {}, 5000, ReplayWrites::Immediate);
    world.unanswered_write(5, 0xAA);
    world.lose();
    let since_us = world.now_us();
    world.next().result.unwrap();
    assert!(world.now_us() - since_us < 1_000_000);
}

#[test]
fn without_any_word_the_outcome_is_unknown_and_the_block_is_left_alone() {
    let mut world = world_of(|_| {}, 0, ReplayWrites::Fenced);
    world.unanswered_write(5, 0xAA);
    world.lose();
    let error = world.next().result.unwrap_err();
    let IoError::OutcomeUnknown {
        slba: 5, nlb: 1, ..
    } = error
    else {
        panic!("{error}");
    };
    let text = error.to_string();
    assert!(
        text.contains("Keep Alive is off") && text.contains("attached anew"),
        "{text}"
    );
    // The old copy may come at any time: nothing may be acknowledged there.
    let over = world.write(4, 2, 0xBB).result;
    assert!(
        matches!(
            over,
            Err(IoError::OutcomeUnknown {
                slba: 4,
                nlb: 2,
                ..
            })
        ),
        "{over:?}"
    );
    world.write(4, 1, 0xBB).result.unwrap();
    world.write(6, 1, 0xBB).result.unwrap();
    world.read(5, 1);
    let text = world.attention(1).unwrap();
    assert!(
        text.contains("never answered") && text.contains("attached anew"),
        "{text}"
    );
    assert_eq!(world.engine.refusal(1), None);
    world.flush().unwrap();
}

#[test]
fn a_large_write_is_held_and_failed_as_a_whole() {
    let mut world = world_of(|_| {}, 0, ReplayWrites::Fenced);
    world.peer.manner = Manner::Silent;
    // Four commands of 128 KiB.
    let buffer = world.buffer(128, 1);
    let op = Op::Write {
        slba: 100,
        nlb: 128,
        fua: false,
    };
    world.submit(1, op, Some(buffer));
    world.until(|world| world.peer.commands.len() == 4);
    world.peer.manner = Manner::Proper;
    world.lose();
    assert!(matches!(
        world.next().result,
        Err(IoError::OutcomeUnknown { .. })
    ));
    assert_eq!(world.engine.in_progress(), 0);
    assert!(world.write(227, 1, 1).result.is_err());
    world.write(228, 1, 1).result.unwrap();
}

#[test]
fn a_command_that_was_sent_as_it_is_is_never_sent_again() {
    let mut world = world_of(resets, 5000, ReplayWrites::Fenced);
    world.peer.controller.reset_manner = ResetManner::Goes(CrossControllerResetStatus::IN_PROGRESS);
    world.peer.manner = Manner::Silent;
    let changing = [
        (0x01, "Write"),
        (0x0D, "Reservation Register"),
        (0x11, "Reservation Acquire"),
        (0x15, "Reservation Release"),
        (0x19, "Copy"),
    ];
    let opcodes = changing.iter().map(|(opcode, _)| *opcode).chain([0x00]);
    for (token, opcode) in (1..).zip(opcodes) {
        let mut sqe = Sqe::new(opcode, 0, 1);
        // Reservation Type 1, in the commands that have one.
        sqe.cdw10 = 0x0100.into();
        let now_us = world.now_us();
        world
            .engine
            .submit_passthru(token, sqe, &CommandData::None, now_us)
            .unwrap();
    }
    world.until(|world| world.peer.commands.len() == changing.len() + 1);
    world.lose();
    world.pass(1_000_000);
    assert!(world.peer.commands.is_empty());
    let told = |start: &str| world.events.iter().any(|event| event.starts_with(start));
    for (token, (_, name)) in (1..).zip(changing) {
        let words = format!("done {token}: {name} has an unknown outcome");
        assert!(told(&words), "{words}: {:?}", world.events);
    }
    assert!(
        told("done 6: the association was lost"),
        "{:?}",
        world.events
    );
    // It may be carried out yet: writes wait for it.
    assert!(world.engine.held(world.now_us()).is_some());
}

#[test]
fn a_reset_lets_what_is_outstanding_finish_and_ends_the_old_controller_first() {
    let mut world = world_of(|_| {}, 5000, ReplayWrites::Fenced);
    for slba in 0..20 {
        let buffer = world.buffer(1, 0x11);
        world.submit(slba, write(slba), Some(buffer));
    }
    let now_us = world.now_us();
    world.engine.turn(now_us);
    world.engine.reset(now_us);
    assert_eq!(
        world.engine.status(now_us).to_string(),
        "resetting: the controller is shut down first"
    );
    // Refused neither before nor after.
    let io = Io {
        nsid: 1,
        op: write(30),
    };
    let buffer = world.buffer(1, 0x22);
    world
        .engine
        .submit(Source::default(), 30, io, Some(buffer))
        .unwrap();
    for _ in 0..21 {
        world.next().result.unwrap();
    }
    let again = ["lost: a reset of the controller was asked for", "live true"];
    assert_eq!(world.events[1..], again);
    assert_eq!(world.peer.controller.shutdowns, 1);
    // No time had to be waited for, and no command came twice.
    assert!(world.now_us() - now_us < 1_000_000);
    assert_eq!(world.writes_that_came().len(), 21);
}

#[test]
fn a_reset_of_a_controller_that_hangs_is_a_loss() {
    let mut world = world_of(resets, 5000, ReplayWrites::Fenced);
    world.unanswered_write(5, 0xAA);
    world.peer.manner = Manner::Silent;
    let now_us = world.now_us();
    world.engine.reset(now_us);
    world.until(|world| !world.engine.host().is_live());
    world.peer.manner = Manner::Proper;
    world.next().result.unwrap();
    assert!(world.now_us() - now_us >= 5_000_000);
    assert_eq!(world.peer.controller.resets.len(), 1);
}

#[test]
fn unflushed_writes_of_a_machine_that_was_started_anew_are_told_by_the_next_flush_once() {
    let mut world = world_of(|identify| booted(identify, 1), 5000, ReplayWrites::Fenced);
    world.write(5, 1, 0xAA).result.unwrap();
    world.pass(3_000_000);
    // Its process alone was started anew: nothing is lost.
    world.lose();
    world.peer.controller.identify = |identify| booted(identify, 2);
    world.lose();
    assert_eq!(world.attention(2), None);
    let error = world.flush().unwrap_err();
    assert!(
        matches!(
            error,
            IoError::WritesLost {
                nsid: 1,
                acknowledged_s: 3..
            }
        ),
        "{error}"
    );
    // Told or not, they stay lost.
    let text = world.attention(1).unwrap();
    assert!(text.contains("may be lost"), "{text}");
    assert!(
        world.peer.commands.is_empty(),
        "it says nothing of what is flushed now"
    );
    world.flush().unwrap();
}

#[test]
fn what_was_flushed_or_never_cached_is_not_lost() {
    let flushed = |world: &mut World| {
        world.write(5, 1, 0xAA).result.unwrap();
        world.flush().unwrap();
    };
    let durable = |world: &mut World| {
        let buffer = world.buffer(1, 1);
        let op = Op::Write {
            slba: 5,
            nlb: 1,
            fua: true,
        };
        world.submit(5, op, Some(buffer));
        world.next().result.unwrap();
        world.read(5, 1);
    };
    for io in [flushed as fn(&mut World), durable] {
        let mut world = world_of(|identify| booted(identify, 1), 5000, ReplayWrites::Fenced);
        io(&mut world);
        world.peer.controller.identify = |identify| booted(identify, 2);
        world.lose();
        world.flush().unwrap();
    }
    // No volatile write cache; a target that does not tell; one that stops telling.
    type Told = fn(&mut IdentifyController);
    let cases: [(Told, Told); 3] = [
        (|i| without_cache(i, 1), |i| without_cache(i, 2)),
        (|_| {}, |i| booted(i, 2)),
        (|i| booted(i, 1), |_| {}),
    ];
    for (before, after) in cases {
        let mut world = world_of(before, 5000, ReplayWrites::Fenced);
        world.write(5, 1, 0xAA).result.unwrap();
        world.peer.controller.identify = after;
        world.lose();
        world.flush().unwrap();
    }
}

#[test]
fn a_flush_that_was_outstanding_when_the_machine_went_fails_as_well() {
    let mut world = world_of(|identify| booted(identify, 1), 5000, ReplayWrites::Fenced);
    world.write(5, 1, 0xAA).result.unwrap();
    world.peer.manner = Manner::Silent;
    world.peer.commands.clear();
    world.submit(1, Op::Flush, None);
    world.until(|world| world.peer.commands.len() == 1);
    world.peer.manner = Manner::Proper;
    world.peer.controller.identify = |identify| booted(identify, 2);
    world.lose();
    let error = world.next().result.unwrap_err();
    assert!(matches!(error, IoError::WritesLost { .. }), "{error}");
}
